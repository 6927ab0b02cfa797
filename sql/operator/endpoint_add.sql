-- Adds an endpoint. Its secret and health row come by trigger.
--   $1  text             name; null: generated
--   $2  text             url
--   $3  text             retry policy; null: standard
--   $4  integer          retries after the first try; null: the policy's
--   $5  double precision timeout in seconds; null: the table's default
--   $6  integer          requests at a time; null: the table's default
--   $7  double precision requests per second; null: no limit
--   $8  text             headers, a JSON object of strings; null: none
--   $9  text             signature scheme; null: standard
--   $10 text             signature header, for body-base64; null: its default
--   $11 text             method; null: POST
--   $12 text[]           event types that publish fans out to it; null: all
--   $13 text             tenant; null: none
--   $14 text             jsonpath filter of publish; null: none
--   $15 boolean          one after another, in the order of ids
-- Returns one row: name text. The literals repeat the table's defaults, which a statement cannot name.
insert into postrider.endpoints (
  name, url, retry_policy, max_retries, timeout, max_in_flight, rate_limit, headers,
  signature_scheme, signature_header, method, event_types, tenant, filter, ordered
) values (
  coalesce($1::text, 'ep_' || replace(gen_random_uuid()::text, '-', '')),
  $2::text,
  coalesce($3::text, 'standard'),
  $4::integer,
  coalesce(make_interval(secs => $5::double precision), interval '15 s'),
  coalesce($6::integer, 64),
  $7::double precision,
  $8::text::jsonb,
  coalesce($9::text, 'standard'),
  $10::text,
  coalesce($11::text, 'POST'),
  $12::text[],
  $13::text,
  $14::text::jsonpath,
  $15::boolean
)
returning name;
