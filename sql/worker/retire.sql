-- Ends open deliveries of disabled endpoints, a bounded batch at a time; a try in flight is left to its worker.
--
-- $1 text[]  endpoints to look at
-- $2 integer end at most this many deliveries
--
-- Returns endpoint and how many of its deliveries were ended (no row: nothing left to do).
with chosen as materialized (
  select c.id, c.claim_no, c.attempt_count, c.leased_by, c.lease_expires_at, e.name as endpoint
    from postrider.endpoints e
   cross join lateral (
      select d.id, d.claim_no, d.attempt_count, d.leased_by, d.lease_expires_at
        from postrider.deliveries d
       where d.endpoint = e.name and d.next_retry is not null
         and (d.lease_expires_at is null or d.lease_expires_at <= now())
       order by d.next_retry, d.id
       limit $2::integer
         for no key update skip locked) c
   where e.name = any ($1::text[]) and not e.enabled
   limit $2::integer
),
lost as (
  insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, error_kind, error, worker)
  select now(), c.id, c.claim_no, c.attempt_count + 1, c.endpoint, 'lost', 'lost',
         'the worker never reported: killed, stopped or cut off', c.leased_by
    from chosen c
   where c.lease_expires_at is not null
),
ended as (
  update postrider.deliveries d
     set status = 'exhausted', exhausted_reason = 'endpoint_disabled', next_retry = null, finished_at = now(),
         claim_no = d.claim_no + 1, lease_expires_at = null, leased_by = null,
         attempt_count = d.attempt_count + case when d.lease_expires_at is null then 0 else 1 end
   where d.id = any (array(select c.id from chosen c))
  returning d.endpoint
)
select n.endpoint, count(*) as ended from ended n group by n.endpoint
