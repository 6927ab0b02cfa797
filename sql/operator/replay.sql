-- Sends a finished delivery again.
--   $1 bigint  id
-- Returns one row: replayed boolean (false: it is open anyway). Raises PR001, PR002, PR005, PR010.
select postrider.replay($1::bigint) as replayed;
