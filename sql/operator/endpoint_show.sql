-- One endpoint: settings, health, backlog. Header values and secrets stay in the database.
--   $1 text  endpoint
-- Returns one row or none: name text, url text (as stored: mask it before anybody sees it), enabled boolean,
--   disabled_at text, disabled_reason text, paused boolean, paused_reason text, retry_policy text, max_retries integer,
--   policy_max_retries integer, timeout_ms bigint, max_in_flight integer, rate_limit double precision, ordered boolean,
--   event_types text[], filter text, tenant text, header_names text[], method text, signature_scheme text,
--   signature_header text, created_at text, updated_at text, open bigint, due bigint, in_flight bigint, failed bigint,
--   oldest_due text, consecutive_failures integer, failing_since text, last_success_at text, circuit_open_until text,
--   head bigint, head_state text, head_next_retry text (of an ordered endpoint: the open delivery whose turn it is);
--   times as RFC 3339.
select e.name, e.url, e.enabled,
       coalesce(to_char(e.disabled_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), e.disabled_at::text) as disabled_at,
       e.disabled_reason, e.paused, e.paused_reason, e.retry_policy, e.max_retries,
       p.max_retries as policy_max_retries,
       (extract(epoch from e.timeout) * 1000)::bigint as timeout_ms,
       e.max_in_flight, e.rate_limit, e.ordered, e.event_types, e.filter::text as filter, e.tenant,
       array(select key from jsonb_object_keys(e.headers) as key order by key) as header_names,
       e.method, e.signature_scheme, e.signature_header,
       coalesce(to_char(e.created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), e.created_at::text) as created_at,
       coalesce(to_char(e.updated_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), e.updated_at::text) as updated_at,
       b.open, b.due, b.in_flight, b.failed,
       coalesce(to_char(b.oldest_due at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), b.oldest_due::text) as oldest_due,
       coalesce(h.consecutive_failures, 0) as consecutive_failures,
       coalesce(to_char(h.failing_since at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), h.failing_since::text) as failing_since,
       coalesce(to_char(h.last_success_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), h.last_success_at::text) as last_success_at,
       coalesce(to_char(h.circuit_open_until at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), h.circuit_open_until::text) as circuit_open_until,
       o.id as head,
       (select s.state from postrider.delivery_state s where s.id = o.id) as head_state,
       coalesce(to_char(o.next_retry at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), o.next_retry::text) as head_next_retry
  from postrider.endpoints e
  join postrider.retry_policies p on p.name = e.retry_policy
  join postrider.endpoint_summary b on b.endpoint = e.name
  left join postrider.endpoint_health h on h.endpoint = e.name
  left join lateral (
    select d.id, d.next_retry from postrider.deliveries d
     where e.ordered and d.endpoint >= e.name and d.endpoint <= e.name and d.next_retry is not null
     order by d.endpoint, d.id limit 1) o on true
 where e.name = $1::text;
