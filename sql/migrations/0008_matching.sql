-- Many at once, by filter: replayed, cancelled, counted first.

-- Of the migration before, in a transaction of its own: rows are looked at while others write.
alter table postrider.deliveries validate constraint deliveries_have_one_of_payload_body_event;
alter table postrider.deliveries validate constraint deliveries_only_finished_rows_are_purged;

-- Oldest first within an endpoint, so that each batch goes on where the one before ended. Only what ended undelivered and can be sent is in it.
create index deliveries_dead on postrider.deliveries (endpoint, finished_at) where status = 'exhausted' and payload_purged_at is null;

-- Errors of our own: PR016 nothing says which ones, PR017 a status that this cannot be done to.

drop function postrider.replay_matching(text, text, text, timestamptz, timestamptz, integer);
create function postrider.replay_matching(
  endpoint text default null, reason text default null, status text default 'exhausted',
  since timestamptz default null, until timestamptz default null, max_rows integer default 1000, dry_run boolean default false
) returns bigint
language plpgsql
-- Planned for the filter at hand: what is not asked for costs nothing.
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  replayed bigint;
  purged bigint;
begin
  if replay_matching.status is null or replay_matching.status not in ('exhausted', 'delivered') then
    raise exception 'only exhausted or delivered deliveries can be replayed, not %', coalesce(replay_matching.status, 'null')
      using errcode = 'PR017', hint = 'Those that are queued or failed are sent anyway.';
  end if;
  if replay_matching.dry_run is distinct from false then
    select count(*) filter (where r.payload_purged_at is null), count(*) filter (where r.payload_purged_at is not null) into replayed, purged
      from postrider.deliveries r join postrider.endpoints e on e.name = r.endpoint and e.enabled
     where r.status = replay_matching.status and r.next_retry is null
       and (replay_matching.endpoint is null or r.endpoint = replay_matching.endpoint)
       and (replay_matching.reason is null or r.exhausted_reason = replay_matching.reason)
       and (replay_matching.since is null or r.finished_at >= replay_matching.since)
       and (replay_matching.until is null or r.finished_at < replay_matching.until);
    if purged > 0 then
      raise notice '% more would match, but their payload was purged: they cannot be replayed', purged;
    end if;
    return replayed;
  end if;
  if replay_matching.status = 'exhausted' then
    with chosen as materialized (
      select c.id
        from postrider.endpoints e
       cross join lateral (
          select r.id from postrider.deliveries r
           where r.endpoint = e.name and r.status = 'exhausted' and r.next_retry is null and r.payload_purged_at is null
             and (replay_matching.reason is null or r.exhausted_reason = replay_matching.reason)
             and (replay_matching.since is null or r.finished_at >= replay_matching.since)
             and (replay_matching.until is null or r.finished_at < replay_matching.until)
           order by r.finished_at limit coalesce(replay_matching.max_rows, 1000) for no key update skip locked) c
       where e.enabled and (replay_matching.endpoint is null or e.name = replay_matching.endpoint)
       limit coalesce(replay_matching.max_rows, 1000)
    )
    update postrider.deliveries r
       set status = 'queued', exhausted_reason = null, finished_at = null, next_retry = now(),
           deadline = null, budget_from = r.attempt_count, claim_no = r.claim_no + 1
     where r.id = any (array(select c.id from chosen c));
  else
    -- No index leads to delivered rows by endpoint and time: it would cost each delivery.
    with chosen as materialized (
      select r.id from postrider.deliveries r join postrider.endpoints e on e.name = r.endpoint and e.enabled
       where r.status = replay_matching.status and r.next_retry is null and r.payload_purged_at is null
         and replay_matching.reason is null
         and (replay_matching.endpoint is null or r.endpoint = replay_matching.endpoint)
         and (replay_matching.since is null or r.finished_at >= replay_matching.since)
         and (replay_matching.until is null or r.finished_at < replay_matching.until)
       order by r.id limit coalesce(replay_matching.max_rows, 1000) for no key update of r skip locked
    )
    update postrider.deliveries r
       set status = 'queued', finished_at = null, next_retry = now(), deadline = null,
           budget_from = r.attempt_count, claim_no = r.claim_no + 1
     where r.id = any (array(select c.id from chosen c));
  end if;
  get diagnostics replayed = row_count;
  if replayed > 0 then
    perform postrider.ring();
  end if;
  return replayed;
end
$$;
comment on function postrider.replay_matching(text, text, text, timestamptz, timestamptz, integer, boolean) is
  'Replays finished deliveries of enabled endpoints, oldest first within each, at most max_rows; returns how many. Give until and call it again until it returns 0. Those whose payload was purged are left out. dry_run: only counts them, all that match, and says in a notice how many are left out.';

create function postrider.cancel_matching(
  endpoint text default null, event_type text default null, status text default null,
  since timestamptz default null, until timestamptz default null, max_rows integer default 1000, dry_run boolean default false
) returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
set enable_sort = off set enable_incremental_sort = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  cancelled bigint;
begin
  if num_nonnulls(cancel_matching.endpoint, cancel_matching.event_type, cancel_matching.status, cancel_matching.since, cancel_matching.until) = 0 then
    raise exception 'nothing says which deliveries to cancel' using errcode = 'PR016',
      hint = 'Give an endpoint, event_type, status, since or until; since => ''-infinity'' says all of them.';
  elsif cancel_matching.status not in ('queued', 'failed') then
    raise exception 'only queued or failed deliveries can be cancelled, not %', cancel_matching.status using errcode = 'PR017',
      hint = 'Those that are delivered or exhausted have ended.';
  end if;
  if cancel_matching.dry_run is distinct from false then
    select count(*) into cancelled
      from postrider.deliveries r
     where r.next_retry is not null
       and (cancel_matching.endpoint is null or r.endpoint = cancel_matching.endpoint)
       and (cancel_matching.event_type is null or r.event_type = cancel_matching.event_type)
       and (cancel_matching.status is null or r.status = cancel_matching.status)
       and (cancel_matching.since is null or r.created_at >= cancel_matching.since)
       and (cancel_matching.until is null or r.created_at < cancel_matching.until);
    return cancelled;
  end if;
  with chosen as materialized (
    select r.id, r.claim_no, r.attempt_count, r.endpoint, r.lease_expires_at, r.leased_by
      from postrider.deliveries r
     where r.next_retry is not null
       -- Bounds, so that only deliveries_order has the rows in this order, and not the primary key behind all of history.
       and (cancel_matching.endpoint is null or (r.endpoint >= cancel_matching.endpoint and r.endpoint <= cancel_matching.endpoint))
       and (cancel_matching.event_type is null or r.event_type = cancel_matching.event_type)
       and (cancel_matching.status is null or r.status = cancel_matching.status)
       and (cancel_matching.since is null or r.created_at >= cancel_matching.since)
       and (cancel_matching.until is null or r.created_at < cancel_matching.until)
     order by r.endpoint, r.id limit coalesce(cancel_matching.max_rows, 1000) for no key update skip locked
  ),
  lost as (
    -- As in postrider.cancel: a result that comes after all replaces the row.
    insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, error_kind, error, worker)
    select now(), c.id, c.claim_no, c.attempt_count + 1, c.endpoint, 'lost', 'lost', 'cancelled while it was in flight', c.leased_by
      from chosen c where c.lease_expires_at is not null
  )
  update postrider.deliveries r
     set status = 'exhausted', exhausted_reason = 'cancelled', finished_at = now(), next_retry = null,
         attempt_count = r.attempt_count + case when r.lease_expires_at is null then 0 else 1 end,
         lease_expires_at = null, leased_by = null, claim_no = r.claim_no + 1
   where r.id = any (array(select c.id from chosen c));
  get diagnostics cancelled = row_count;
  if cancelled > 0 then
    -- What an ordered endpoint held may go now.
    perform postrider.ring();
  end if;
  return cancelled;
end
$$;
comment on function postrider.cancel_matching(text, text, text, timestamptz, timestamptz, integer, boolean) is
  'Ends open deliveries as exhausted, cancelled, at most max_rows in the order of endpoint and id; those in flight as postrider.cancel does. since and until are about created_at. Returns how many; give until and call it again until it returns 0. Rows that somebody else holds locked are left out. dry_run: only counts them, all that match. Raises PR016 without any filter.';
