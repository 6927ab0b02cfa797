-- Every endpoint with its backlog, by name.
-- Returns: name text, url text (as stored: mask it before anybody sees it), enabled boolean, paused boolean,
--   retry_policy text, signature_scheme text, tenant text, event_types text[], filter text, open bigint, due bigint, in_flight bigint, failed bigint,
--   oldest_due text, consecutive_failures integer, failing_since text; times as RFC 3339.
select e.name, e.url, e.enabled, e.paused, e.retry_policy, e.signature_scheme, e.tenant, e.event_types, e.filter::text as filter,
       s.open, s.due, s.in_flight, s.failed,
       coalesce(to_char(s.oldest_due at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), s.oldest_due::text) as oldest_due,
       coalesce(s.consecutive_failures, 0) as consecutive_failures,
       coalesce(to_char(s.failing_since at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), s.failing_since::text) as failing_since
  from postrider.endpoints e
  join postrider.endpoint_summary s on s.endpoint = e.name
 order by e.name;
