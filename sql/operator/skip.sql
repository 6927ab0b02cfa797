-- Cancels the delivery that holds the rest of an ordered endpoint.
--   $1 text  endpoint
-- Returns one row: skipped bigint, its id (null: there is nothing to skip). Raises PR004, PR015.
select postrider.skip($1::text) as skipped;
