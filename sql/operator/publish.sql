-- Publishes one event.
--   $1 text  event type
--   $2 text  payload, JSON text, stored as it is
--   $3 text  event id; null: generated
--   $4 text  tenant; null: that of the session, or none
--   $5 text  when its deliveries are due, a timestamp with time zone; null: now
-- Returns one row: event_id text, deliveries integer (how many were made, by the first call with this event id),
--   worker_runs boolean.
-- Fails with PR011 when the session acts for another tenant, 22P02 not JSON.
select e.event_id, postrider.publish($1::text, $2::text::json, e.event_id, $4::text, $5::text::timestamptz) as deliveries,
       exists (select from postrider.workers w where w.last_seen_at > now() - interval '1 min') as worker_runs
  from (select coalesce($3::text, 'evt_' || replace(gen_random_uuid()::text, '-', '')) as event_id) e;
