-- Ends a watch.
--   $1 text  name
-- Returns one row: unwatch void, without meaning. Raises PR014.
select postrider.unwatch($1::text);
