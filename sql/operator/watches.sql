-- Every watch, by name, with what waits and what went wrong.
-- Returns: watch text, schema_name text, table_name text (null: the table is gone), operations text[], event_type text (null: after table and
--   operation), endpoint text (null: all that subscribed), condition text, columns text[], without text[], body text, tenant text,
--   tenant_column text, strict boolean, enabled boolean, waiting bigint, errors bigint, last_error text, last_error_at text (RFC 3339).
select w.watch, w.schema_name::text, w.table_name::text, w.operations, w.event_type, w.endpoint, w.condition, w.columns, w.without, w.body,
       w.tenant, w.tenant_column, w.strict, w.enabled, w.waiting, w.errors, w.last_error,
       to_char(w.last_error_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as last_error_at
  from postrider.watches w
 order by w.watch;
