-- Ordered endpoints: in the order of ids, one at a time; what stands in front and cannot go yet holds the rest.

alter table postrider.endpoints drop constraint endpoints_ordered_is_not_offered_yet;
comment on column postrider.endpoints.ordered is
  'true: its deliveries go in the order of their ids, one at a time, whatever max_in_flight says. One that fails or is scheduled holds those behind it until it is delivered, exhausted, cancelled or skipped.';

-- The head of an ordered lane, whatever its due time is.
create index deliveries_order on postrider.deliveries (endpoint, id) where next_retry is not null;

alter table postrider.endpoint_health add column head bigint;
comment on column postrider.endpoint_health.head is
  'The delivery that the last claim took while the endpoint was ordered. Others wait while it is in flight, also when lower ids are committed meanwhile.';

-- ------------------------------------------------------------------ for the claim

create function postrider.lane_in_flight(
  endpoint text, max_in_flight integer, worker text, ordered boolean,
  out in_flight integer, out by_worker integer, out head bigint, out held_until timestamptz
)
language plpgsql volatile
-- Without statistics a planner may believe that sorting a lane costs nothing.
set search_path = pg_catalog, pg_temp set enable_sort = off set enable_incremental_sort = off as $$
declare
  first record;
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
    select d.lease_expires_at into held_until
      from postrider.endpoint_health h join postrider.deliveries d on d.id = h.head
     where h.endpoint = lane_in_flight.endpoint and d.endpoint = lane_in_flight.endpoint and d.lease_expires_at > clock_timestamp();
    if held_until is not null then
      in_flight := 1;
      return;
    end if;
  end if;
  -- What is in flight stands in front, but for rows that others lock, and older ones that were committed late: 32 of them are
  -- looked past. Rows that a caller waits for stand in front too, as many as there are callers, and are not counted among these.
  -- An ordered lane may have been an unordered one a moment ago.
  select count(*), count(*) filter (where front.leased_by = lane_in_flight.worker)
    into in_flight, by_worker
    from (select d.lease_expires_at, d.leased_by
            from postrider.deliveries d
           where d.endpoint = lane_in_flight.endpoint and d.next_retry is not null and d.next_retry <= clock_timestamp()
             and (d.deadline is null or d.lease_expires_at is not null)
           order by d.next_retry, d.id
           limit lane_in_flight.max_in_flight + 32) front
   where front.lease_expires_at > clock_timestamp();
  if lane_in_flight.ordered and in_flight = 0 then
    head := first.id;
  end if;
end
$$;
comment on function postrider.lane_in_flight(text, integer, text, boolean) is
  'For claims: how many of an endpoint''s deliveries are in flight, in all and by one worker; NULL while another claim is at them. When ordered: head, the one that may go now, or held_until, the lease of the one that is going.';

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
      from postrider.lane_in_flight(lane_in_flight.endpoint, lane_in_flight.max_in_flight, lane_in_flight.worker, false) f;
  end if;
end
$$;
comment on function postrider.lane_in_flight(text, integer, text) is
  'For claims of workers that know nothing of ordered endpoints, during an upgrade: as the other one, and an ordered lane is full.';

-- ------------------------------------------------------------------ what people call
-- Errors of our own: PR015 the endpoint is not ordered.

create function postrider.skip(endpoint text) returns bigint
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
  -- Whoever asks twice means the same one: what ended while we waited for its lock is not followed by the next.
  perform from postrider.deliveries d where d.id = head and d.next_retry is not null for no key update;
  if not found then
    return null;
  end if;
  perform postrider.cancel(head);
  perform postrider.ring();
  return head;
end
$$;
comment on function postrider.skip(text) is
  'Cancels the delivery that holds the rest of an ordered endpoint, as postrider.cancel does, and returns its id. NULL: nothing is open, or it ended by itself meanwhile. Raises PR015 when the endpoint is not ordered.';

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
