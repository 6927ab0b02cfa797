-- Ordered endpoints: in the order of ids, one at a time; what stands in front and cannot go yet holds the rest.

alter table postrider.endpoints drop constraint endpoints_ordered_is_not_offered_yet;
comment on column postrider.endpoints.ordered is
  'true: its deliveries go in the order of their ids, one at a time, whatever max_in_flight says. One that fails or is scheduled holds those behind it until it is delivered, exhausted, cancelled or skipped.';

-- The head of an ordered lane, whatever its due time is.
create index deliveries_order on postrider.deliveries (endpoint, id) where next_retry is not null;

alter table postrider.endpoint_health add column head bigint, add column head_claim_no bigint, add column head_until timestamptz;
comment on column postrider.endpoint_health.head is
  'The delivery that the last claim took while the endpoint was ordered. Others wait while it is in flight, also when lower ids are committed meanwhile.';
comment on column postrider.endpoint_health.head_claim_no is 'Under which claim it was taken.';
comment on column postrider.endpoint_health.head_until is
  'Until when that claim had its lease. If somebody ends the delivery while it is in flight, the next one waits for the try''s end, at most until then.';

-- ------------------------------------------------------------------ for the claim

create function postrider.lane_in_flight(
  endpoint text, max_in_flight integer, worker text, ordered boolean, mark_due timestamptz, mark_id bigint,
  out in_flight integer, out by_worker integer, out head bigint, out held_until timestamptz, out free_due timestamptz, out free_id bigint
)
language plpgsql volatile
-- Without statistics a planner may believe that sorting a lane costs nothing.
set search_path = pg_catalog, pg_temp set enable_sort = off set enable_incremental_sort = off as $$
declare
  first record;
  window_size integer := 16;
  seen integer;
  last record;
begin
  -- Until its transaction ends, a claim has the lane for itself. It must count after it has the lock, and in a snapshot of that
  -- moment, to see what the claim before it took: hence a function, whose queries see more than the statement that calls it.
  if not pg_try_advisory_xact_lock(hashtextextended('postrider.lane ' || lane_in_flight.endpoint, 0)) then
    return;
  end if;
  in_flight := 0;
  by_worker := 0;
  if lane_in_flight.ordered then
    -- Bounds instead of an equality: only deliveries_order has rows in this order then. For the order of ids alone the primary
    -- key would do, behind all of history.
    select d.id, d.lease_expires_at, d.leased_by, d.next_retry <= clock_timestamp() as due
      into first
      from postrider.deliveries d
     where d.endpoint >= lane_in_flight.endpoint and d.endpoint <= lane_in_flight.endpoint and d.next_retry is not null
     order by d.endpoint, d.id
     limit 1;
    if first.lease_expires_at > clock_timestamp() then
      in_flight := 1;
      by_worker := case when first.leased_by = lane_in_flight.worker then 1 else 0 end;
      held_until := first.lease_expires_at;
      return;
    elsif first.due is not true then
      return;
    end if;
    -- One with a higher id may be in flight: taken before this one was committed, or replayed.
    select d.lease_expires_at, d.claim_no, d.exhausted_reason, h.head, h.head_claim_no, h.head_until
      into last
      from postrider.endpoint_health h join postrider.deliveries d on d.id = h.head
     where h.endpoint = lane_in_flight.endpoint and d.endpoint = lane_in_flight.endpoint;
    if last.lease_expires_at > clock_timestamp() then
      in_flight := 1;
      held_until := last.lease_expires_at;
      return;
    end if;
    -- A request is not called back by ending its delivery. Whoever did that put the try on record as lost, until its result comes.
    if last.head_until > clock_timestamp()
       and (last.exhausted_reason in ('cancelled', 'deadline', 'endpoint_disabled') or last.claim_no > last.head_claim_no + 1)
       and exists (select from postrider.attempts a
                    where a.delivery_id = last.head and a.claim_no = last.head_claim_no and a.outcome = 'lost'
                      and a.started_at > clock_timestamp() - interval '1 day') then
      in_flight := 1;
      held_until := last.head_until;
      return;
    end if;
  end if;
  -- What is in flight stands in front, but for rows that others lock, and older ones that were committed late: 32 of them are
  -- looked past. Rows that a caller waits for stand in front too, as many as there are callers, and are not counted among these.
  -- An ordered lane may have been an unordered one a moment ago. The look goes only as far as it must, four times as far each time.
  loop
    window_size := least(window_size * 4, lane_in_flight.max_in_flight + 32);
    select count(*) filter (where front.leased), count(*) filter (where front.leased and front.leased_by = lane_in_flight.worker),
           count(*), min(front.next_retry) filter (where not front.leased), (array_agg(front.id) filter (where not front.leased))[1]
      into in_flight, by_worker, seen, free_due, free_id
      from (select d.lease_expires_at is not null and d.lease_expires_at > clock_timestamp() as leased, d.leased_by, d.next_retry, d.id
              from postrider.deliveries d
             where d.endpoint = lane_in_flight.endpoint and d.next_retry is not null and d.next_retry <= clock_timestamp()
               and (d.deadline is null or d.lease_expires_at is not null)
               and (d.next_retry, d.id) >= (coalesce(lane_in_flight.mark_due, '-infinity'), coalesce(lane_in_flight.mark_id, 0))
             order by d.next_retry, d.id
             limit window_size) front;
    exit when seen < window_size or seen - in_flight > 32 or window_size >= lane_in_flight.max_in_flight + 32;
  end loop;
  if exists (select from postrider.deliveries d
              where d.endpoint = lane_in_flight.endpoint and d.deadline is not null and d.next_retry is not null) then
    -- They were left out above and may stand before it.
    free_due := null;
    free_id := null;
  end if;
  if lane_in_flight.ordered and in_flight = 0 then
    head := first.id;
  end if;
end
$$;
comment on function postrider.lane_in_flight(text, integer, text, boolean, timestamptz, bigint) is
  'For claims: how many of an endpoint''s deliveries are in flight, in all and by one worker; NULL while another claim is at them. Nothing open stands before mark_due and mark_id (NULL: not known). free_due and free_id: where the first one stands that is not. When ordered: head, the one that may go now, or held_until, the lease of the one that is going.';

create or replace function postrider.lane_in_flight(
  endpoint text, max_in_flight integer, worker text, out in_flight integer, out by_worker integer
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if exists (select from postrider.endpoints e where e.name = lane_in_flight.endpoint and e.ordered) then
    in_flight := lane_in_flight.max_in_flight;
    by_worker := 0;
  else
    select f.in_flight, f.by_worker into in_flight, by_worker
      from postrider.lane_in_flight(lane_in_flight.endpoint, lane_in_flight.max_in_flight, lane_in_flight.worker, false, null, null) f;
  end if;
end
$$;
comment on function postrider.lane_in_flight(text, integer, text) is
  'For claims of workers that know nothing of ordered endpoints, during an upgrade: as the other one, and an ordered lane is full.';

-- ------------------------------------------------------------------ what people call
-- Errors of our own: PR015 the endpoint is not ordered.

create or replace function postrider.cancel(id bigint) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  d record;
begin
  select r.* into d from postrider.deliveries r where r.id = cancel.id for no key update;
  if not found then
    raise exception 'there is no delivery %', cancel.id using errcode = 'PR001',
      hint = 'Its id is in postrider.deliveries; finished rows may have been pruned.';
  elsif d.status = 'exhausted' and d.exhausted_reason = 'cancelled' then
    return false;
  elsif d.next_retry is null then
    raise exception 'delivery % is already %', cancel.id, d.status using errcode = 'PR003',
      hint = 'Only queued and failed deliveries can be cancelled.';
  end if;
  if d.lease_expires_at is not null then
    -- Whoever takes over a lease puts that try on record; its own result, if one comes, replaces the row.
    insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, error_kind, error, worker)
    values (now(), d.id, d.claim_no, d.attempt_count + 1, d.endpoint, 'lost', 'lost', 'cancelled while it was in flight', d.leased_by);
  end if;
  update postrider.deliveries r
     set status = 'exhausted', exhausted_reason = 'cancelled', finished_at = now(), next_retry = null,
         lease_expires_at = null, leased_by = null, claim_no = r.claim_no + 1,
         attempt_count = r.attempt_count + case when d.lease_expires_at is null then 0 else 1 end
   where r.id = cancel.id;
  if exists (select from postrider.endpoints e where e.name = d.endpoint and e.ordered) then
    -- What it held may go now.
    perform postrider.ring();
  end if;
  return true;
end
$$;
create function postrider.skip(endpoint text, seen bigint default null) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set enable_sort = off set enable_incremental_sort = off as $$
declare
  ordered boolean;
  head bigint;
begin
  select e.ordered into ordered from postrider.endpoints e where e.name = skip.endpoint;
  if not found then
    raise exception 'there is no endpoint %', skip.endpoint using errcode = 'PR004',
      hint = 'List them: select name, url from postrider.endpoints.';
  elsif not ordered then
    raise exception 'endpoint % is not ordered, so nothing stands in the way of the rest', skip.endpoint using errcode = 'PR015',
      hint = 'End one delivery with postrider.cancel(id).';
  end if;
  select d.id into head
    from postrider.deliveries d
   where d.endpoint >= skip.endpoint and d.endpoint <= skip.endpoint and d.next_retry is not null
   order by d.endpoint, d.id
   limit 1;
  if head <> skip.seen then
    return null;
  end if;
  -- Two at once mean the same one: when it ended while we waited for its lock, the next is not skipped in its place.
  perform from postrider.deliveries d where d.id = head and d.next_retry is not null for no key update;
  if not found then
    return null;
  end if;
  perform postrider.cancel(head);
  return head;
end
$$;
comment on function postrider.skip(text, bigint) is
  'Cancels the delivery that holds the rest of an ordered endpoint, as postrider.cancel does, and returns its id. NULL: nothing is open, it ended by itself meanwhile, or it is not seen, the one that you saw there. Raises PR015 when the endpoint is not ordered.';

-- ------------------------------------------------------------------ what people read

create or replace view postrider.delivery_state as
select d.id, d.endpoint, d.event_id, d.event_type,
       case when d.lease_expires_at > now() then 'sending'
            when d.next_retry is not null and (e.paused or not e.enabled) then 'held'
            when d.next_retry is not null and h.head < d.id then 'held'
            when d.status = 'queued' and d.next_retry > now() then 'scheduled'
            else d.status end as state,
       d.status, d.exhausted_reason, d.attempt_count, d.next_retry, d.lease_expires_at, d.leased_by,
       d.last_status_code, d.last_error, d.created_at, d.finished_at,
       case when d.next_retry is not null and h.head < d.id and coalesce(d.lease_expires_at <= now(), true) then h.head end as held_by
  from postrider.deliveries d
  join postrider.endpoints e on e.name = d.endpoint
  left join lateral (
    select o.id as head from postrider.deliveries o
     where e.ordered and o.endpoint >= e.name and o.endpoint <= e.name and o.next_retry is not null
     order by o.endpoint, o.id limit 1) h on true;
comment on view postrider.delivery_state is
  'Deliveries with what they do right now: sending (in flight), scheduled (first try is later), held (endpoint paused or disabled, or ordered and held_by has to end first), or their status.';
comment on column postrider.delivery_state.held_by is 'The delivery of the same ordered endpoint that has to end first; NULL: none.';

create or replace view postrider.due_now as
select d.endpoint, count(*) as due, min(d.next_retry) as oldest_due
  from postrider.deliveries d join postrider.endpoints e on e.name = d.endpoint and e.enabled and not e.paused and not e.ordered
 where d.next_retry <= now() and (d.lease_expires_at is null or d.lease_expires_at <= now())
 group by d.endpoint
union all
select e.name, 1, h.next_retry
  from postrider.endpoints e
 cross join lateral (
    select o.next_retry, o.lease_expires_at from postrider.deliveries o
     where o.endpoint >= e.name and o.endpoint <= e.name and o.next_retry is not null
     order by o.endpoint, o.id limit 1) h
 where e.enabled and not e.paused and e.ordered
   and h.next_retry <= now() and (h.lease_expires_at is null or h.lease_expires_at <= now());
comment on view postrider.due_now is
  'Deliveries that wait for a worker at this moment, per endpoint that is neither paused nor disabled; of an ordered endpoint only the one whose turn it is.';

create or replace view postrider.endpoint_summary as
select e.name as endpoint, e.enabled, e.paused, e.disabled_reason,
       coalesce(o.open, 0) as open,
       case when e.ordered then case when t.next_retry <= now() then 1 else 0 end else coalesce(o.due, 0) end as due,
       coalesce(o.in_flight, 0) as in_flight, coalesce(o.failed, 0) as failed,
       case when e.ordered then t.next_retry else o.oldest_due end as oldest_due,
       h.consecutive_failures, h.failing_since, h.last_success_at
  from postrider.endpoints e
  left join postrider.endpoint_health h on h.endpoint = e.name
  left join (
    select d.endpoint, count(*) as open,
           count(*) filter (where d.next_retry <= now() and coalesce(d.lease_expires_at <= now(), true)) as due,
           count(*) filter (where d.lease_expires_at > now()) as in_flight,
           count(*) filter (where d.status = 'failed') as failed,
           min(d.next_retry) filter (where coalesce(d.lease_expires_at <= now(), true)) as oldest_due
      from postrider.deliveries d where d.next_retry is not null group by d.endpoint
  ) o on o.endpoint = e.name
  left join lateral (
    select case when coalesce(f.lease_expires_at <= now(), true) then f.next_retry end as next_retry
      from postrider.deliveries f
     where e.ordered and f.endpoint >= e.name and f.endpoint <= e.name and f.next_retry is not null
     order by f.endpoint, f.id limit 1) t on true;
comment on view postrider.endpoint_summary is
  'Each endpoint with its open deliveries and its health. Of an ordered endpoint only the delivery whose turn it is can be due.';
