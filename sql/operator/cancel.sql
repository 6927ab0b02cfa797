-- Ends an open delivery.
--   $1 bigint  id
-- Returns one row: cancelled boolean (false: it was cancelled before). Raises PR001, PR003.
select postrider.cancel($1::bigint) as cancelled;
