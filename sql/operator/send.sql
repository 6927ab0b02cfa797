-- Queues one delivery.
--   $1 text              endpoint
--   $2 text              event type
--   $3 text              event id; null: generated
--   $4 text              payload, JSON text, stored as it is; null when $5 is given
--   $5 bytea             body; null when $4 is given
--   $6 text              media type of body
--   $7 text              headers, a JSON object of strings; null: none
--   $8 integer           retries after the first try; null: the endpoint's
--   $9 text              when it is due, a timestamp with time zone; null: see $10
--   $10 double precision when it is due, in seconds from now; null: now
-- Returns one row: id bigint, event_id text, next_retry text (RFC 3339), later boolean (due in the future),
--   enabled boolean, paused boolean (both of the endpoint), worker_runs boolean.
-- Fails with 23503 deliveries_endpoint_exists, 23505 deliveries_event_id_is_unique_per_endpoint, 22P02 not JSON.
with queued as (
  insert into postrider.deliveries (
    endpoint, event_type, event_id, payload, body, content_type, headers, max_retries, next_retry
  ) values (
    $1::text,
    $2::text,
    coalesce($3::text, 'evt_' || replace(gen_random_uuid()::text, '-', '')),
    $4::text::json,
    $5::bytea,
    $6::text,
    $7::text::jsonb,
    $8::integer,
    coalesce($9::text::timestamptz, now() + make_interval(secs => coalesce($10::double precision, 0)))
  )
  returning id, event_id, endpoint, next_retry
)
select q.id, q.event_id,
       coalesce(to_char(q.next_retry at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), q.next_retry::text) as next_retry,
       q.next_retry > now() as later,
       coalesce(e.enabled, true) as enabled, coalesce(e.paused, false) as paused,
       exists (select from postrider.workers w where w.last_seen_at > now() - interval '1 min') as worker_runs
  from queued q left join postrider.endpoints e on e.name = q.endpoint;
