-- Ends a watch.
--   $1 text  name
-- Returns one row without meaning.
select postrider.unwatch($1::text);
