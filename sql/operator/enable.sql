-- Sends to a disabled endpoint again.
--   $1 text  endpoint
-- Returns one row. Raises PR004 when there is no such endpoint.
select postrider.enable($1::text)::text as done;
