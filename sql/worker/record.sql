-- Writes a batch of results: moves the deliveries on, puts the attempts on record, keeps the endpoints' health.
--
-- Arrays of equal length, one element per result:
-- $1  bigint[]      delivery_id, rising: rows are locked in this order, so that two batches cannot wait for each other
-- $2  bigint[]      claim_no: the claim under which the try was made; the fence
-- $3  text[]        status: what the delivery becomes: failed, delivered or exhausted
-- $4  text[]        exhausted_reason, NULL unless exhausted
-- $5  bigint[]      delay_ms: until the next try, NULL unless failed
-- $6  text[]        endpoint
-- $7  timestamptz[] started_at
-- $8  integer[]     duration_ms
-- $9  text[]        outcome: delivered, retry, rejected, blocked or unbuildable
-- $10 integer[]     status_code
-- $11 text[]        error_kind
-- $12 text[]        error
-- $13 text[]        request_headers, JSON text
-- $14 text[]        response_headers, JSON text
-- $15 bytea[]       response_body
-- $16 boolean[]     response_truncated
-- $17 text[]        remote_addr
-- $18 text          worker
--
-- Returns the delivery_id of each result that moved its delivery. One that is missing came too late, or was written before (the
-- acknowledgement got lost): it moves nothing, and only an attempt that stands as lost takes over what it knows.
--
-- The fence is id and claim_no alone, and the id is compared with an array of one, so that the way in is a probe of the primary key for each
-- result, one after the other, whatever the planner believes.
with result as materialized (
  select r.*
    from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::timestamptz[], $8::integer[],
                $9::text[], $10::integer[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bytea[], $16::boolean[],
                $17::text[])
      as r (delivery_id, claim_no, status, exhausted_reason, delay_ms, endpoint, started_at, duration_ms,
            outcome, status_code, error_kind, error, request_headers, response_headers, response_body, response_truncated,
            remote_addr)
),
moved as (
  update postrider.deliveries d
     set status = r.status,
         exhausted_reason = r.exhausted_reason,
         next_retry = now() + r.delay_ms * interval '1 ms',
         finished_at = case when r.delay_ms is null then now() end,
         claim_no = d.claim_no + 1,
         attempt_count = d.attempt_count + 1,
         lease_expires_at = null,
         leased_by = null,
         last_status_code = r.status_code,
         last_error = r.error
    from result r
   where d.id = any (array[r.delivery_id]) and d.claim_no = r.claim_no
  returning d.attempt_count, d.next_retry, r.*
),
recorded as (
  insert into postrider.attempts
         (started_at, delivery_id, claim_no, attempt_no, next_retry, endpoint, duration_ms, outcome, status_code, error_kind, error,
          request_headers, response_headers, response_body, response_truncated, remote_addr, worker)
  select m.started_at, m.delivery_id, m.claim_no, m.attempt_count, m.next_retry, m.endpoint, m.duration_ms, m.outcome,
         m.status_code, m.error_kind, m.error, m.request_headers::jsonb, m.response_headers::jsonb, m.response_body,
         m.response_truncated, m.remote_addr, $18::text
    from moved m
),
late as materialized (
  select r.* from result r where (r.delivery_id, r.claim_no) not in (select m.delivery_id, m.claim_no from moved m)
),
found_after_all as (
  update postrider.attempts a
     set outcome = l.outcome, duration_ms = l.duration_ms, status_code = l.status_code, error_kind = l.error_kind, error = l.error,
         request_headers = l.request_headers::jsonb, response_headers = l.response_headers::jsonb,
         response_body = l.response_body, response_truncated = l.response_truncated, remote_addr = l.remote_addr
    from late l
   where a.delivery_id = any (array(select n.delivery_id from late n))
     and a.delivery_id = l.delivery_id and a.claim_no = l.claim_no and a.outcome = 'lost'
),
tally as materialized (
  select m.endpoint,
         count(*) filter (where m.outcome in ('retry', 'rejected'))::integer as failures,
         count(*) filter (where m.outcome = 'delivered') as successes
    from moved m
   group by m.endpoint
),
sick as materialized (
  select h.endpoint, t.failures, t.successes
    from tally t join postrider.endpoint_health h on h.endpoint = t.endpoint
   where t.failures > 0 or h.consecutive_failures > 0 or h.last_success_at is null
   order by h.endpoint
     for no key update of h
),
health as (
  update postrider.endpoint_health h
     set consecutive_failures = case when s.successes > 0 then 0 else least(h.consecutive_failures, 1000000000) + s.failures end,
         failing_since = case when s.successes > 0 then null else coalesce(h.failing_since, now()) end,
         last_success_at = case when s.successes > 0 then now() else h.last_success_at end
    from sick s
   where h.endpoint = s.endpoint and (s.successes > 0 or s.failures > 0)
),
unwelcome as materialized (
  -- Somebody who edits the endpoint right now must not hold up the batch; the next 410 disables it.
  select e.name
    from postrider.endpoints e
   where e.enabled
     and e.name = any (array(select m.endpoint from moved m where m.exhausted_reason = 'gone'))
     for no key update skip locked
),
gone as (
  update postrider.endpoints e
     set enabled = false, disabled_reason = 'the receiver answered 410 Gone'
   where e.name = any (array(select u.name from unwelcome u))
)
select m.delivery_id from moved m
