-- Sends to a disabled endpoint again.
--   $1 text  endpoint
-- Returns one row: done text, which is empty. Raises PR004 when there is no such endpoint.
select postrider.enable($1::text)::text as done;
