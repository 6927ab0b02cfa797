-- What postrider.cancel_matching would take with the same filter, and the moment of asking. That moment, given as $5 of
-- cancel_matching, lets the cancelling end, however many deliveries are queued meanwhile.
--   $1 text              endpoint; null: any
--   $2 text              event type; null: any
--   $3 text              status: queued or failed; null: either
--   $4 text              queued at this time or later, a timestamp with time zone; null: see $5
--   $5 double precision  queued this many seconds ago or later; null: any time
--   $6 text              queued before this time; null: see $7
--   $7 double precision  queued longer than this many seconds ago; null: before now
-- Returns one row: matching bigint, since text, until text (RFC 3339 with microseconds).
with span as (
  select coalesce($4::text::timestamptz, now() - make_interval(secs => $5::double precision), '-infinity') as since,
         least($6::text::timestamptz, now() - make_interval(secs => $7::double precision), now()) as until
)
select postrider.cancel_matching(
         endpoint => $1::text, event_type => $2::text, status => $3::text, since => s.since, until => s.until, dry_run => true
       ) as matching,
       coalesce(to_char(s.since at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), s.since::text) as since,
       coalesce(to_char(s.until at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), s.until::text) as until
  from span s;
