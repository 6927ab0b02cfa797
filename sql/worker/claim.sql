-- Takes due deliveries for one worker, a fair share of each lane it walks past.
--
-- $1 text    cursor: the walk starts at the first endpoint after this name ('' is the start of the lap)
-- $2 integer lanes: walk past at most this many endpoints
-- $3 integer wanted: take at most this many deliveries
-- $4 text    worker: postrider.workers.id
-- $5 bigint  margin: the lease is the endpoint's timeout and this many milliseconds
-- $6 bigint  sleep: a worker that takes nothing looks again after at most this many milliseconds, and wants the doorbell until then
-- $7 integer free: slots that the worker has free
-- $8 bigint  bytes: take payloads until they fill this much, as stored; what is below 16 KiB is not counted
--
-- $9 text[]   marked: endpoints after the cursor, by name, one more than $2, so that the walk ends among them; usually none
-- $10 timestamptz[] marked_due: the next_retry of each before which nothing of it was open lately
-- $11 bigint[] marked_ids: and the id, among deliveries with that next_retry
--
-- Returns first a row of the claim's: walk_end and hops (where the walk ended, NULL and 0 at the end of a lap; fewer hops than $2: the lap is
-- over), claimed_at, wake_ms (only when nothing was taken: until the next known due time), disabled (endpoints passed by whose open
-- rows are to be ended), rationed (a lane waits for rate tokens), capped (a lane waits for tries of it to end), contended (another claim
-- is at a lane just now), heavy (payloads were left behind that did not fit $8), changes (changes of watched tables wait to be published), fronts,
-- fronts_due, fronts_id (what stands first in each lane passed by, in flight or not: marks for later claims), took_ms (what finding
-- the deliveries took). Then a row for each delivery: ended_as means that it was ended (lost or deadline), not claimed; left_ms is
-- what is left until its deadline, NULL when that is beyond its lease anyway.
--
-- Every step reads an index in its own order and stops early, so that the cost is the batch's, whatever stands behind it. What stands before it
-- are entries of rows that have ended. An index forgets them as they are passed, but not while some transaction is open that might
-- still see them: marks step over these.
-- Past its deadline a delivery is ended where it would be taken. Before it, a try gets no more time than is left: who waited has gone by then.
-- A lane may hold at most four times as many of the worker's slots as it and its like then leave free, but always one: so several
-- endpoints may hang, whatever their caps, and there are slots for the others.
-- The update compares with an array of one id, since only then it cannot be anything but a probe of the primary key for each row: a planner
-- that believes in an empty table would join otherwise.
-- A row in flight keeps its next_retry and so stands at the head of its lane: lane_in_flight looks little further than the cap, and
-- keeps other claims away from the lane until this one is committed, so that two at a time cannot both fill its room.
-- Of an ordered lane lane_in_flight names the one delivery that may go, in a snapshot newer than this statement's: what the older one
-- shows as first may have been overtaken. What this statement cannot see or lock yet is left for the next look.
with recursive mark as materialized (
  select m.endpoint, coalesce(a.next_retry, m.next_retry) as next_retry, coalesce(a.id, m.id) as id
    from unnest($9::text[] collate "C", $10::timestamptz[], $11::bigint[]) as m (endpoint, next_retry, id)
    left join lateral (
      select d.next_retry, d.id
        from postrider.deliveries d
       where d.endpoint = m.endpoint and d.deadline is not null and d.next_retry is not null
         and (d.next_retry, d.id) < (m.next_retry, m.id)
       order by d.next_retry, d.id
       limit 1) a on true
),
walk (endpoint, first_due, first_id, hop) as (
  select $1::text collate "C", null::timestamptz, null::bigint, 0
  union all
  select coalesce(u.endpoint, m.endpoint), coalesce(u.next_retry, f.next_retry), coalesce(u.id, f.id), w.hop + 1
    from walk w
   cross join lateral (select min(m.endpoint) as endpoint from mark m where m.endpoint > w.endpoint) n
    left join mark m on m.endpoint = n.endpoint
    left join lateral (
      select d.endpoint, d.next_retry, d.id
        from postrider.deliveries d
       where d.next_retry is not null and d.endpoint > w.endpoint and d.endpoint < coalesce(m.endpoint, repeat(chr(1114111), 500))
       order by d.endpoint, d.next_retry, d.id
       limit 1) u on true
    left join lateral (
      select d.next_retry, d.id
        from postrider.deliveries d
       where u.endpoint is null and d.endpoint = m.endpoint and d.next_retry is not null and (d.next_retry, d.id) >= (m.next_retry, m.id)
       order by d.next_retry, d.id
       limit 1) f on true
   where w.hop < $2::integer and coalesce(u.endpoint, m.endpoint) is not null
),
passed as materialized (
  select w.endpoint, w.first_due, w.first_id, m.next_retry as mark_due, m.id as mark_id, e.enabled, e.paused, e.revision, e.timeout, e.rate_limit, e.ordered,
         case when e.ordered then 1 else e.max_in_flight end as max_in_flight,
         coalesce(e.max_retries, p.max_retries) as max_retries, h.circuit_open_until
    from walk w
    join postrider.endpoints e on e.name = w.endpoint
    join postrider.retry_policies p on p.name = e.retry_policy
    left join postrider.endpoint_health h on h.endpoint = w.endpoint
    left join mark m on m.endpoint = w.endpoint
   where w.first_due is not null
),
front as (
  -- A transaction that takes less than a second to commit its rows is not overlooked by a mark.
  select s.endpoint, least(s.first_due, now() - interval '1 s') as due, case when s.first_due < now() - interval '1 s' then s.first_id else 0 end as id
    from passed s
   where s.first_due > '-infinity'
),
lane as materialized (
  select s.*
    from passed s
   where s.first_due <= now() and s.enabled and not s.paused
     and (s.circuit_open_until is null or s.circuit_open_until <= now())
),
bucket as materialized (
  select h.endpoint,
         least(greatest(1, l.rate_limit / 10),
               h.rate_tokens + l.rate_limit * greatest(0, extract(epoch from now() - h.rate_filled_at)::double precision)) as tokens
    from lane l
    join postrider.endpoint_health h on h.endpoint = l.endpoint
   where l.rate_limit is not null
     for no key update of h skip locked
),
share as materialized (
  select greatest(1, ceil($3::integer::numeric / greatest(1, count(*))))::integer as quota, count(*) as lanes from lane
),
room as materialized (
  select l.endpoint, l.revision, l.timeout, l.max_retries, l.ordered, f.head, f.held_until,
         coalesce(f.free_due, l.first_due) as first_due, coalesce(f.free_id, l.first_id) as first_id,
         f.in_flight is null as contended,
         case when f.in_flight is null then 0
              else least(s.quota, l.max_in_flight - f.in_flight, coalesce(floor(b.tokens)::integer, s.quota),
                         greatest(case f.by_worker when 0 then 1 else 0 end,
                                  floor((4.0 * $7::integer - f.by_worker) / (1 + 4 * s.lanes))::integer)) end as free
    from lane l
   cross join share s
    left join bucket b on b.endpoint = l.endpoint
   cross join lateral postrider.lane_in_flight(l.endpoint, l.max_in_flight, $4::text, l.ordered, l.mark_due, l.mark_id) f
   where l.rate_limit is null or b.tokens >= 1
),
turn as materialized (
  select d.id, d.claim_no, d.attempt_count, d.budget_from, d.max_retries, d.lease_expires_at, d.leased_by, d.endpoint, d.deadline,
         coalesce(pg_column_size(d.payload), pg_column_size(d.body),
                  (select pg_column_size(v.payload) from postrider.events v where v.id = d.event), 0) as bytes
    from room r
    join postrider.endpoint_health h on h.endpoint = r.endpoint
    join postrider.deliveries d on d.id = r.head
   where r.free > 0 and d.next_retry is not null and d.next_retry <= now()
     and (d.lease_expires_at is null or d.lease_expires_at <= now())
     for no key update of h, d skip locked
),
due as materialized (
  select c.id, c.claim_no, c.attempt_count, c.lease_expires_at, c.leased_by, r.endpoint, r.revision, r.timeout,
         case when c.deadline > now() and c.deadline < now() + r.timeout + $5::bigint * interval '1 ms' then c.deadline - now() end as left_over,
         coalesce(c.max_retries, r.max_retries) as max_retries,
         c.lease_expires_at is not null as lost,
         case when c.lease_expires_at is not null
                   and c.attempt_count + 1 - c.budget_from > coalesce(c.max_retries, r.max_retries) then 'lost'
              when c.deadline <= now() then 'deadline' end as ended_as,
         greatest(0, c.bytes - 16384) as heavy_bytes
    from room r
   cross join lateral (
      select u.id, u.claim_no, u.attempt_count, u.budget_from, u.max_retries, u.lease_expires_at, u.leased_by, u.deadline, u.bytes
        from (
      select d.id, d.claim_no, d.attempt_count, d.budget_from, d.max_retries, d.lease_expires_at, d.leased_by, d.deadline,
             coalesce(pg_column_size(d.payload), pg_column_size(d.body),
                      (select pg_column_size(v.payload) from postrider.events v where v.id = d.event), 0) as bytes
        from postrider.deliveries d
       where d.endpoint = r.endpoint and d.next_retry is not null and d.next_retry <= now()
         and (d.next_retry, d.id) >= (r.first_due, r.first_id)
         and (d.lease_expires_at is null or d.lease_expires_at <= now())
       order by d.next_retry, d.id
       limit case when r.ordered then 0 else greatest(0, r.free) end
         for no key update skip locked) u
      union all
      select t.id, t.claim_no, t.attempt_count, t.budget_from, t.max_retries, t.lease_expires_at, t.leased_by, t.deadline, t.bytes
        from turn t
       where t.endpoint = r.endpoint) c
   limit $3::integer
),
weighed as materialized (
  select u.*, sum(u.heavy_bytes) over (rows unbounded preceding) - u.heavy_bytes as bytes_before from due u
),
candidate as materialized (
  select w.* from weighed w where w.heavy_bytes = 0 or w.bytes_before < $8::bigint
),
taken as (
  update postrider.deliveries d
     set claim_no = d.claim_no + 1,
         attempt_count = d.attempt_count + case when c.lost then 1 else 0 end,
         last_status_code = case when c.lost then null else d.last_status_code end,
         last_error = case when c.lost then 'the worker never reported this try'
                           when c.ended_as = 'deadline' then 'the deadline passed before a worker took it' else d.last_error end,
         lease_expires_at = case when c.ended_as is not null then null else now() + least(c.timeout, c.left_over) + $5::bigint * interval '1 ms' end,
         leased_by = case when c.ended_as is not null then null else $4::text end,
         status = case when c.ended_as is not null then 'exhausted' else d.status end,
         exhausted_reason = c.ended_as,
         next_retry = case when c.ended_as is not null then null else d.next_retry end,
         finished_at = case when c.ended_as is not null then now() end
    from candidate c
   where d.id = any (array[c.id])
  returning d.id, d.endpoint, c.revision, d.claim_no, d.attempt_count, d.attempt_count - d.budget_from as tries_used,
            (extract(epoch from least(c.timeout, c.left_over)) * 1000)::bigint + $5::bigint as lease_ms,
            floor(extract(epoch from c.left_over) * 1000)::bigint as left_ms,
            c.max_retries, d.event_id, d.event_type, d.content_type, d.headers::text as headers, c.ended_as,
            case when c.ended_as is not null then null
                 else coalesce(d.payload::text, (select v.payload::text from postrider.events v where v.id = d.event)) end as payload,
            case when c.ended_as is not null then null else d.body end as body
),
lost as (
  insert into postrider.attempts
         (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, error_kind, error, worker, next_retry)
  select greatest(c.lease_expires_at - c.timeout - $5::bigint * interval '1 ms', now() - interval '1 day'),
         c.id, c.claim_no, c.attempt_count + 1, c.endpoint, 'lost', 'lost',
         'the worker never reported: killed, stopped or cut off', c.leased_by,
         case when c.ended_as is not null then null else now() end
    from candidate c
   where c.lost
),
served as materialized (
  select c.endpoint, count(*) as deliveries, max(c.claim_no) + 1 as claim_no,
         max(case when c.ended_as is null then now() + least(c.timeout, c.left_over) + $5::bigint * interval '1 ms' end) as lease_expires_at
    from candidate c group by c.endpoint
),
spent as (
  update postrider.endpoint_health h
     set rate_tokens = coalesce(b.tokens - s.deliveries, h.rate_tokens),
         rate_filled_at = case when b.tokens is null then h.rate_filled_at else greatest(now(), h.rate_filled_at) end,
         head = coalesce(r.head, h.head),
         head_claim_no = case when r.head is null then h.head_claim_no else s.claim_no end,
         head_until = case when r.head is null then h.head_until else s.lease_expires_at end
    from served s
    join room r on r.endpoint = s.endpoint
    left join bucket b on b.endpoint = s.endpoint
   where h.endpoint = s.endpoint and (r.head is not null or b.tokens is not null)
),
seen as (
  update postrider.workers w
     set last_seen_at = now(),
         sleeping_until = case when exists (select from candidate) then null
                               else now() + $6::bigint * interval '1 ms' + interval '30 s' end
   where w.id = $4::text
     and (w.last_seen_at < now() - interval '10 s'
          or case when exists (select from candidate) then w.sleeping_until is not null
                  else w.sleeping_until is null or w.sleeping_until < now() + $6::bigint * interval '1 ms' + interval '15 s' end)
)
select m.walk_end, m.hops, now() as claimed_at,
       case when exists (select from candidate) then null
            else (extract(epoch from least(
                   (select d.next_retry from postrider.deliveries d
                     where d.status = 'queued' and d.next_retry > now() and d.next_retry < 'infinity'
                     order by d.next_retry limit 1),
                   (select d.next_retry from postrider.deliveries d
                     where d.status = 'failed' and d.next_retry > now() and d.next_retry < 'infinity'
                     order by d.next_retry limit 1),
                   (select min(s.circuit_open_until) from passed s
                     where s.circuit_open_until > now() and s.circuit_open_until < 'infinity'),
                   (select min(now() + least((1 - b.tokens) / l.rate_limit, 86400) * interval '1 s')
                      from lane l join bucket b on b.endpoint = l.endpoint where b.tokens < 1),
                   (select min(r.held_until) from room r where r.held_until < 'infinity'),
                   (select c.next_try from postrider.changes c where c.next_try > now() order by c.next_try, c.id limit 1)
                 ) - now()) * 1000)::bigint end as wake_ms,
       array(select s.endpoint from passed s where not s.enabled) as disabled,
       exists (select from bucket b where b.tokens < 1) as rationed,
       exists (select from room r
                where not r.contended and (r.free <= 0 or r.head is not null and not exists (select from due u where u.id = r.head))) as capped,
       exists (select from room r where r.contended) as contended,
       (select count(*) from due) > (select count(*) from candidate) as heavy,
       exists (select from postrider.changes c where c.next_try <= now()) as changes,
       array(select f.endpoint from front f) as fronts,
       array(select f.due from front f) as fronts_due,
       array(select f.id from front f) as fronts_id,
       (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000)::bigint as took_ms,
       null::bigint as id, null::text as endpoint, null::bigint as revision, null::bigint as lease_ms, null::bigint as left_ms,
       null::bigint as claim_no, null::integer as attempt_count, null::integer as tries_used, null::integer as max_retries,
       null::text as event_id, null::text as event_type, null::text as content_type, null::text as headers, null::text as ended_as,
       null::text as payload, null::bytea as body
  from (select max(w.endpoint) filter (where w.hop > 0) as walk_end, max(w.hop) as hops from walk w) m
union all
select null, null, null, null, null, null, null, null, null, null, null, null, null, null,
       t.id, t.endpoint, t.revision, t.lease_ms, t.left_ms, t.claim_no, t.attempt_count, t.tries_used, t.max_retries, t.event_id,
       t.event_type, t.content_type, t.headers, t.ended_as, t.payload, t.body
  from taken t
