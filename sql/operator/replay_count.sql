-- What postrider.replay_matching would take with the same filter, and the moment of asking. That moment, given as $7 of
-- replay_matching, keeps deliveries that fail again while the replay goes on from being replayed twice.
--   $1 text              endpoint; null: any
--   $2 text              exhausted_reason; null: any
--   $3 text              status: exhausted or delivered
--   $4 text              finished at this time or later, a timestamp with time zone; null: see $5
--   $5 double precision  finished this many seconds ago or later; null: any time
--   $6 text              finished before this time; null: see $7
--   $7 double precision  finished longer than this many seconds ago; null: before now
-- Returns one row: matching bigint, at_disabled bigint (would match, but their endpoint is disabled), purged bigint (would match, but
--   their payload was purged), since text,
--   until text (RFC 3339 with microseconds).
with span as (
  select coalesce($4::text::timestamptz, now() - make_interval(secs => $5::double precision)) as since,
         least($6::text::timestamptz, now() - make_interval(secs => $7::double precision), now()) as until
)
select count(d.id) filter (where e.enabled and d.payload_purged_at is null) as matching,
       count(d.id) filter (where not e.enabled and d.payload_purged_at is null) as at_disabled,
       count(d.id) filter (where d.payload_purged_at is not null) as purged,
       coalesce(to_char(min(s.since) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), min(s.since)::text) as since,
       coalesce(to_char(min(s.until) at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), min(s.until)::text) as until
  from span s
  left join (
    postrider.deliveries d join postrider.endpoints e on e.name = d.endpoint
  ) on d.status = $3::text and d.next_retry is null
   and ($1::text is null or d.endpoint = $1::text)
   and ($2::text is null or d.exhausted_reason = $2::text)
   and (s.since is null or d.finished_at >= s.since)
   and d.finished_at < s.until;
