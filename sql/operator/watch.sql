-- Watches a table.
--   $1  text     table, as SQL writes it
--   $2  text[]   operations: insert, update, delete
--   $3  text     event type; null: the table's name and the operation
--   $4  text     endpoint; null: all that subscribed
--   $5  text     condition, SQL over new and old; null: none
--   $6  text[]   columns of which one must have changed; null: any
--   $7  text[]   columns that are left out; null: none
--   $8  text     function that makes the body, with its argument types when there are several; null: the default body
--   $9  text     tenant of all events; null: none
--   $10 text     column that says the tenant; null: none
--   $11 boolean  strict
--   $12 text     name; null: after the table
-- Returns one row: watch text. What cannot be found goes in as NULL or 0, and is refused by postrider.watch.
select postrider.watch(
         target => to_regclass($1::text), operations => $2::text[], event_type => $3::text, endpoint => $4::text, condition => $5::text,
         columns => $6::text[], without => $7::text[],
         body => case when $8::text is null then null
                      when position('(' in $8::text) > 0 then coalesce(to_regprocedure($8::text)::oid, 0::oid)::regproc
                      else coalesce(to_regproc($8::text)::oid, 0::oid)::regproc end,
         tenant => $9::text, tenant_column => $10::text, strict => $11::boolean, name => $12::text
       ) as watch;
