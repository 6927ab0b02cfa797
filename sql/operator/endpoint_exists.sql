-- Whether there is an endpoint of this name.
--   $1 text  endpoint
-- Returns one row: found boolean.
select exists (select from postrider.endpoints e where e.name = $1::text) as found;
