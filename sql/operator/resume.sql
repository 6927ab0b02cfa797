-- Ends the pause of an endpoint.
--   $1 text  endpoint
-- Returns one row. Raises PR004 when there is no such endpoint.
select postrider.resume($1::text)::text as done;
