-- Holds the deliveries of an endpoint.
--   $1 text  endpoint
--   $2 text  why; null: no reason given
-- Returns one row: done text, which is empty. Raises PR004 when there is no such endpoint.
select postrider.pause($1::text, $2::text)::text as done;
