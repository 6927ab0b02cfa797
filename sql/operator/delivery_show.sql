-- One delivery with what it carries.
--   $1 bigint   id
--   $2 integer  characters of payload and bytes of body at most; null: all
-- Returns one row or none: id bigint, endpoint text, event_id text, event_type text, state text, status text,
--   exhausted_reason text, held_by bigint, attempt_count integer, budget_from integer, max_retries integer, next_retry text,
--   lease_expires_at text, leased_by text, last_status_code integer, last_error text, created_at text,
--   finished_at text, payload_purged_at text (when payload, body and headers were removed), header_names text[], content_type text, content_bytes integer, payload text, body bytea; times as
--   RFC 3339. Header values stay in the database.
select d.id, d.endpoint, d.event_id, d.event_type, s.state, d.status, d.exhausted_reason, s.held_by, d.attempt_count,
       d.budget_from, d.max_retries,
       coalesce(to_char(d.next_retry at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), d.next_retry::text) as next_retry,
       coalesce(to_char(d.lease_expires_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), d.lease_expires_at::text) as lease_expires_at,
       d.leased_by, d.last_status_code, d.last_error,
       coalesce(to_char(d.created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), d.created_at::text) as created_at,
       coalesce(to_char(d.finished_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), d.finished_at::text) as finished_at,
       coalesce(to_char(d.payload_purged_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), d.payload_purged_at::text) as payload_purged_at,
       array(select key from jsonb_object_keys(d.headers) as key order by key) as header_names,
       case when d.body is not null then coalesce(d.content_type, 'application/octet-stream') else 'application/json' end as content_type,
       coalesce(octet_length(d.body), octet_length(coalesce(d.payload, v.payload)::text), 0) as content_bytes,
       case when $2::integer is null then coalesce(d.payload, v.payload)::text
            else left(coalesce(d.payload, v.payload)::text, $2::integer) end as payload,
       case when $2::integer is null then d.body else substring(d.body from 1 for $2::integer) end as body
  from postrider.deliveries d
  join postrider.delivery_state s on s.id = d.id
  left join postrider.events v on v.id = d.event
 where d.id = $1::bigint;
