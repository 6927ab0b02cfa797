-- Ends the pause of an endpoint.
--   $1 text  endpoint
-- Returns one row: done text, which is empty. Raises PR004 when there is no such endpoint.
select postrider.resume($1::text)::text as done;
