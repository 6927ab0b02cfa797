-- Retention: what is old goes, by settings, in small steps, one cleaner at a time; what is open stays.
--
-- prune() is one step: a short transaction that takes at most max_rows rows. Workers call it again until nothing is left, then rest.
-- What each kind costs:
--
--   delivered, exhausted  Deliveries by finished_at. A finished row stands in exactly one of three partial indexes, so a step reads its
--                         batch and nothing of the millions that are kept. The hot path pays for one entry at the right edge of a
--                         small index when a delivery ends, where the row gets new entries in its other indexes anyway: measured,
--                         1,205 bytes of WAL for a claim and its end instead of 1,137. A walk by id would be free there, but would
--                         have to pass all that is kept, again and again; BRIN loses its order as soon as freed pages are used again.
--   payloads              Contents of finished deliveries, before the rows themselves. A row that is done changes over to the index of
--                         those, so that no step looks at it twice, and no mark of how far it came can miss a late commit.
--   replies               What receivers answered, in attempts. Day by day and block by block, from where the last step ended. No
--                         index: it would cost every try. A day is done when all of it is old enough.
--   attempts              Whole days, by dropping their partitions. The lock that this takes would make every worker queue up behind
--                         one long reader: it is waited for a tenth of a second, and tried again by a later step.
--   events                Published events that no delivery names any more, walked by id in laps.
--   reports               Hours of success_rate.

create table postrider.retention (
  kind text collate "C" primary key,
  age  interval,
  constraint retention_kind_is_known
    check (kind in ('delivered', 'exhausted', 'payloads', 'replies', 'attempts', 'events', 'reports')),
  constraint retention_age_is_between_a_minute_and_a_century
    check ((timestamp '2000-01-01 00:00' - age) between timestamp '1900-01-01 00:00' and timestamp '1999-12-31 23:59'),
  -- A lost try may be put on record a day late, and its day must be there.
  constraint retention_keeps_replies_and_attempts_for_a_day check (kind not in ('replies', 'attempts') or age >= interval '1 day')
);
comment on table postrider.retention is
  'For how long what is kept. Set age with UPDATE, NULL keeps for ever; workers prune by it, and `postrider prune --dry-run` shows what would go. Open deliveries always stay.';
comment on column postrider.retention.kind is
  'delivered, exhausted: deliveries, from finished_at on. payloads: contents of finished deliveries, which cannot be replayed then. replies: what receivers answered, in attempts. attempts: whole days (UTC) of them. events: published ones, and with them what publish knows of their event_id; never while a delivery names one; the age of payloads holds if it is shorter. reports: hours of success_rate.';
comment on column postrider.retention.age is
  'EDIT. For example ''30 days''; NULL: for ever. From a minute on, replies and attempts from a day on.';
insert into postrider.retention (kind, age) values
  ('delivered', '30 days'), ('exhausted', '90 days'), ('payloads', null), ('replies', '30 days'), ('attempts', '90 days'),
  ('events', '30 days'), ('reports', '400 days');

create table postrider.prune_progress (
  kind        text collate "C" primary key,
  done_before timestamptz not null default '-infinity',
  place       bigint not null default 0
);
comment on table postrider.prune_progress is 'Where the next step of postrider.prune goes on. It writes this; without a row it begins anew.';
comment on column postrider.prune_progress.kind is 'What steps walk through: replies, events, or finished deliveries by status.';
comment on column postrider.prune_progress.done_before is
  'Deliveries: finished_at from which the next step goes on; -infinity: a new lap. replies: days that ended until then are done.';
comment on column postrider.prune_progress.place is 'replies: block of the next day at which to go on. events: id after which to go on.';

-- ------------------------------------------------------------------ what a purge leaves behind

alter table postrider.deliveries
  add column payload_purged_at timestamptz,
  drop constraint deliveries_have_one_of_payload_body_event,
  -- Whatever the old rule let in keeps the new one: no row needs to be looked at. The next migration validates it without this lock.
  add constraint deliveries_have_one_of_payload_body_event
    check (num_nonnulls(payload, body, event) = case when payload_purged_at is null then 1 else 0 end) not valid,
  add constraint deliveries_only_finished_rows_are_purged check (payload_purged_at is null or finished_at is not null) not valid;
comment on column postrider.deliveries.payload_purged_at is
  'When payload, body, event and headers were removed, by retention; it cannot be replayed since. NULL: they are there.';

alter table postrider.attempts add column reply_purged_at timestamptz;
comment on column postrider.attempts.reply_purged_at is
  'When response_headers and response_body were removed, by retention. NULL: what is NULL or empty there never came.';
comment on column postrider.attempts.response_body is 'The first 16 KiB; see reply_purged_at.';

create index deliveries_delivered on postrider.deliveries (finished_at) where status = 'delivered' and payload_purged_at is null;
create index deliveries_exhausted on postrider.deliveries (finished_at) where status = 'exhausted' and payload_purged_at is null;
create index deliveries_purged on postrider.deliveries (status, finished_at) where payload_purged_at is not null;

-- PR010: the payload is gone.
create or replace function postrider.replay(id bigint, seen_claim_no bigint default null) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  d record;
begin
  select r.status, r.claim_no, r.lease_expires_at > clock_timestamp() as in_flight, r.payload_purged_at, r.endpoint, e.enabled
    into d
    from postrider.deliveries r join postrider.endpoints e on e.name = r.endpoint
   where r.id = replay.id for no key update of r;
  if not found then
    raise exception 'there is no delivery %', replay.id using errcode = 'PR001',
      hint = 'Its id is in postrider.deliveries; finished rows may have been pruned.';
  elsif d.in_flight then
    raise exception 'delivery % is in flight', replay.id using errcode = 'PR002',
      hint = 'Wait for the result of this try, then replay it if it is still needed.';
  elsif d.status in ('queued', 'failed') or d.claim_no <> replay.seen_claim_no then
    return false;
  elsif d.payload_purged_at is not null then
    raise exception 'delivery % cannot be replayed, its payload was purged at %', replay.id, date_trunc('second', d.payload_purged_at)
      using errcode = 'PR010', hint = 'Queue the event anew. How long payloads are kept: select age from postrider.retention where kind = ''payloads''.';
  elsif not d.enabled then
    raise exception 'endpoint % is disabled, a replay would end at once', d.endpoint using errcode = 'PR005',
      hint = format('Call postrider.enable(%L) first.', d.endpoint);
  end if;
  update postrider.deliveries r
     set status = 'queued', exhausted_reason = null, finished_at = null, next_retry = now(), deadline = null,
         budget_from = r.attempt_count, claim_no = r.claim_no + 1
   where r.id = replay.id;
  perform postrider.ring();
  return true;
end
$$;
comment on function postrider.replay(bigint, bigint) is
  'Sends a finished delivery again: same event_id, same bytes, a fresh retry budget. True: it is queued. False: it was open already, or seen_claim_no is no longer its claim_no. Raises PR002 while it is in flight, PR010 when its payload was purged.';

-- ------------------------------------------------------------------ the kinds, a step each

create function postrider.attempt_days(out partition regclass, out ends_at timestamptz) returns setof record
language sql stable set search_path = pg_catalog, pg_temp set datestyle = 'ISO' set timezone = 'UTC' as $$
  select c.oid::regclass, (regexp_match(pg_get_expr(c.relpartbound, c.oid), $re$ TO \('([^']+)'\)$re$))[1]::timestamptz
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
   where i.inhparent = 'postrider.attempts'::regclass and not i.inhdetachpending and c.relkind = 'r'
$$;
comment on function postrider.attempt_days() is 'The partitions of attempts and when each ends, whatever they are called.';

create function postrider.next_finished(lap text, status text, purged boolean, before timestamptz, max_rows integer) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  begins constant timestamptz := coalesce((select p.done_before from postrider.prune_progress p where p.kind = next_finished.lap), '-infinity');
  batch record;
begin
  -- Within a lap a step goes on where the last one ended: while a long transaction runs, what was removed stays in the index, and
  -- would be passed again by every step. The next lap begins anew, so that what was committed late is found.
  -- A row that is replayed at this moment is locked and left out, or is looked at again under our lock and found open.
  if purged then
    select array_agg(c.id) as ids, count(*) as n, max(c.finished_at) as ends into batch from (
      select d.id, d.finished_at from postrider.deliveries d
       where d.status = next_finished.status and d.payload_purged_at is not null and d.next_retry is null
         and d.finished_at < next_finished.before and d.finished_at >= begins
       order by d.finished_at limit next_finished.max_rows for update skip locked) c;
  else
    select array_agg(c.id) as ids, count(*) as n, max(c.finished_at) as ends into batch from (
      select d.id, d.finished_at from postrider.deliveries d
       where d.status = next_finished.status and d.payload_purged_at is null and d.next_retry is null
         and d.finished_at < next_finished.before and d.finished_at >= begins
       order by d.finished_at limit next_finished.max_rows for update skip locked) c;
  end if;
  if batch.n = max_rows or begins > '-infinity' then
    insert into postrider.prune_progress as p (kind, done_before)
    values (lap, case when batch.n = max_rows then batch.ends else '-infinity' end)
        on conflict on constraint prune_progress_pkey do update set done_before = excluded.done_before;
  end if;
  return coalesce(batch.ids, '{}');
end
$$;
comment on function postrider.next_finished(text, text, boolean, timestamptz, integer) is
  'Locks at most max_rows finished deliveries for a step of postrider.prune, the oldest first.';

create function postrider.prune_deliveries(status text, before timestamptz, max_rows integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  ids bigint[] := postrider.next_finished(status, status, false, before, max_rows);
begin
  if cardinality(ids) < max_rows then
    ids := ids || postrider.next_finished(status || ', purged', status, true, before, max_rows - cardinality(ids));
  end if;
  delete from postrider.deliveries d where d.id = any (ids);
  return cardinality(ids);
end
$$;
comment on function postrider.prune_deliveries(text, timestamptz, integer) is 'A step of postrider.prune; call that.';

create function postrider.prune_payloads(before timestamptz, max_rows integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  ids bigint[] := postrider.next_finished('payloads, delivered', 'delivered', false, before, max_rows);
begin
  if cardinality(ids) < max_rows then
    ids := ids || postrider.next_finished('payloads, exhausted', 'exhausted', false, before, max_rows - cardinality(ids));
  end if;
  update postrider.deliveries d
     set payload = null, body = null, content_type = null, event = null, headers = null, payload_purged_at = now()
   where d.id = any (ids);
  return cardinality(ids);
end
$$;
comment on function postrider.prune_payloads(timestamptz, integer) is 'A step of postrider.prune; call that.';

create function postrider.prune_replies(after timestamptz, before timestamptz, max_rows integer, out pruned integer, out more boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  -- What is looked at without finding anything has to be bounded, too.
  most_blocks constant bigint := 1000;
  progress postrider.prune_progress;
  day record;
  blocks bigint;
  upto bigint;
  last_block bigint;
begin
  select p.* into progress from postrider.prune_progress p where p.kind = 'replies';
  select a.partition, a.ends_at into day from postrider.attempt_days() a
   where a.ends_at <= prune_replies.before and a.ends_at > coalesce(prune_replies.after, '-infinity')
     and a.ends_at > coalesce(progress.done_before, '-infinity')
   order by a.ends_at limit 1;
  if not found then
    pruned := 0;
    more := false;
    return;
  end if;
  blocks := pg_relation_size(day.partition) / current_setting('block_size')::bigint;
  progress.place := least(coalesce(progress.place, 0), blocks);
  upto := least(blocks, progress.place + most_blocks);
  execute format(
    'with chosen as materialized (
       select a.ctid from only %1$s a
        where a.ctid >= $1 and a.ctid < $2 and a.reply_purged_at is null and num_nonnulls(a.response_body, a.response_headers) > 0
        limit $3 for no key update skip locked
     ),
     purged as (
       update only %1$s a set response_body = null, response_headers = null, reply_purged_at = now()
        where a.ctid = any (array(select c.ctid from chosen c))
     )
     select count(*), max((c.ctid::text::point)[0]::bigint) from chosen c', day.partition)
    into pruned, last_block
    using format('(%s,0)', progress.place)::tid, format('(%s,0)', upto)::tid, prune_replies.max_rows;
  -- A batch that is full may have ended within a block. New versions of rows, behind the end, have nothing left to purge.
  progress.place := case when pruned < prune_replies.max_rows then upto else last_block end;
  if pruned < prune_replies.max_rows and upto >= blocks then
    progress.done_before := day.ends_at;
    progress.place := 0;
  end if;
  insert into postrider.prune_progress as p (kind, done_before, place)
  values ('replies', coalesce(progress.done_before, '-infinity'), progress.place)
      on conflict on constraint prune_progress_pkey do update set done_before = excluded.done_before, place = excluded.place;
  more := true;
end
$$;
comment on function postrider.prune_replies(timestamptz, timestamptz, integer) is 'A step of postrider.prune; call that.';

create function postrider.prune_attempts(before timestamptz, out pruned integer, out waits text)
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '100 ms' as $$
declare
  day record;
begin
  pruned := 0;
  for day in select a.partition from postrider.attempt_days() a where a.ends_at <= prune_attempts.before order by a.ends_at loop
    begin
      -- Behind this lock everybody else waits, so nothing is waited for while it is held.
      lock table only postrider.attempts in access exclusive mode;
      execute format('lock table only %s in access exclusive mode nowait', day.partition);
      execute format('drop table %s', day.partition);
      pruned := 1;
      return;
    exception
      when lock_not_available then
        waits := 'another transaction has been using postrider.attempts for longer than a moment';
        return;
      when dependent_objects_still_exist or insufficient_privilege then
        waits := day.partition || ' cannot be dropped: ' || sqlerrm;
    end;
  end loop;
end
$$;
comment on function postrider.prune_attempts(timestamptz) is 'A step of postrider.prune; call that.';

create function postrider.prune_events(before timestamptz, max_rows integer, out pruned integer, out more boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  walked record;
begin
  with batch as materialized (
    select e.id, e.created_at from postrider.events e
     where e.id > coalesce((select p.place from postrider.prune_progress p where p.kind = 'events'), 0)
     order by e.id limit prune_events.max_rows
  )
  select count(*) as events, max(b.id) as last, min(b.created_at) as oldest,
         array_agg(b.id order by b.id) filter (where b.created_at < prune_events.before
           and not exists (select from postrider.deliveries d where d.event = b.id)) as unnamed
    into walked from batch b;
  -- A delivery that is inserted meanwhile locks its event, too: what we have locked is named by those alone that the delete sees.
  walked.unnamed := array(select e.id from postrider.events e where e.id = any (walked.unnamed) order by e.id for update skip locked);
  delete from postrider.events e
   where e.id = any (walked.unnamed) and not exists (select from postrider.deliveries d where d.event = e.id);
  get diagnostics pruned = row_count;
  -- The lap is over where nothing is old any more.
  more := walked.events = prune_events.max_rows and walked.oldest < prune_events.before;
  insert into postrider.prune_progress as p (kind, place) values ('events', case when more then walked.last else 0 end)
      on conflict on constraint prune_progress_pkey do update set place = excluded.place where p.place <> excluded.place;
end
$$;
comment on function postrider.prune_events(timestamptz, integer) is 'A step of postrider.prune; call that.';

create function postrider.prune_reports(before timestamptz, max_rows integer) returns integer
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  pruned integer;
begin
  delete from postrider.reports r
   where r.ctid = any (array(
     select o.ctid from postrider.reports o where o.hour < prune_reports.before order by o.hour limit prune_reports.max_rows for update skip locked));
  get diagnostics pruned = row_count;
  return pruned;
end
$$;
comment on function postrider.prune_reports(timestamptz, integer) is 'A step of postrider.prune; call that.';

-- ------------------------------------------------------------------ what people and workers call

create function postrider.prune_cutoffs(
  out delivered timestamptz, out exhausted timestamptz, out payloads timestamptz, out replies timestamptz, out attempts timestamptz,
  out events timestamptz, out reports timestamptz
)
language sql stable set search_path = pg_catalog, pg_temp as $$
  select max(now() - r.age) filter (where r.kind = 'delivered'),
         max(now() - r.age) filter (where r.kind = 'exhausted'),
         max(now() - r.age) filter (where r.kind = 'payloads'),
         max(now() - r.age) filter (where r.kind = 'replies'),
         max(now() - r.age) filter (where r.kind = 'attempts'),
         -- An event that no delivery names is a payload, too.
         max(now() - r.age) filter (where r.kind in ('events', 'payloads')),
         max(now() - r.age) filter (where r.kind = 'reports')
    from postrider.retention r
$$;
comment on function postrider.prune_cutoffs() is 'What is older than these is due, per kind of postrider.retention; NULL: nothing is.';

create function postrider.prune(max_rows integer default 1000)
returns table (kind text, pruned bigint, more boolean, waits text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  cut record;
  step record;
  left_over integer := max_rows;
begin
  if max_rows is null or max_rows not between 1 and 100000 then
    raise exception 'max_rows must be between 1 and 100000, not %', coalesce(max_rows::text, 'null') using errcode = '22023',
      hint = 'How many rows one transaction may take; call it again for more.';
  end if;
  -- One cleaner at a time. The others have nothing to wait for.
  if not pg_try_advisory_xact_lock(hashtextextended('postrider.prune', 0)) then
    return;
  end if;
  select * into cut from postrider.prune_cutoffs();

  foreach kind in array '{delivered,exhausted,payloads,replies,events,reports}'::text[] loop
    pruned := 0;
    more := false;
    waits := null;
    if left_over > 0 then
      -- What cannot go, because a foreign key of yours names it for example, keeps no other kind.
      begin
        case kind
          when 'delivered' then
            pruned := case when cut.delivered is null then 0 else postrider.prune_deliveries('delivered', cut.delivered, left_over) end;
            more := pruned = left_over;
          when 'exhausted' then
            pruned := case when cut.exhausted is null then 0 else postrider.prune_deliveries('exhausted', cut.exhausted, left_over) end;
            more := pruned = left_over;
          when 'payloads' then
            pruned := case when cut.payloads is null then 0 else postrider.prune_payloads(cut.payloads, left_over) end;
            more := pruned = left_over;
          when 'replies' then
            if cut.replies is not null then
              -- Days that are dropped as a whole need no purging.
              select s.pruned, s.more into step from postrider.prune_replies(cut.attempts, cut.replies, left_over) s;
              pruned := step.pruned;
              more := step.more;
            end if;
          when 'events' then
            if cut.events is not null then
              select s.pruned, s.more into step from postrider.prune_events(cut.events, left_over) s;
              pruned := step.pruned;
              more := step.more;
            end if;
          when 'reports' then
            pruned := case when cut.reports is null then 0 else postrider.prune_reports(cut.reports, left_over) end;
            more := pruned = left_over;
        end case;
      exception when others then
        pruned := 0;
        more := false;
        waits := sqlerrm;
      end;
      left_over := left_over - pruned;
    end if;
    return next;
  end loop;

  -- Last, since it holds up everybody who writes attempts until this transaction ends.
  kind := 'attempts';
  select s.pruned, s.pruned > 0, s.waits into pruned, more, waits from postrider.prune_attempts(cut.attempts) s;
  return next;
end
$$;
comment on function postrider.prune(integer) is
  'One step of retention: at most max_rows rows, and one day of attempts. Returns what it did per kind (pruned: rows, of attempts days), whether there is more to do now, and what it had to leave for later. Workers call it again until no kind has more; no row at all: another session is at it.';

create function postrider.count_or_estimate(query text, countable boolean, out n bigint, out exact boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  most constant bigint := 100000;
  plan json;
begin
  if countable then
    execute format('select count(*) from (%s limit %s) c', query, most + 1) into n;
    exact := n <= most;
    if exact then
      return;
    end if;
  end if;
  execute 'explain (format json) ' || query into plan;
  n := greatest(coalesce(n, 0), (plan -> 0 -> 'Plan' ->> 'Plan Rows')::numeric);
  exact := false;
end
$$;
comment on function postrider.count_or_estimate(text, boolean) is
  'How many rows a query has: counted up to 100,000, else what the planner expects of it.';

create function postrider.prunable() returns table (kind text, kept_for interval, due bigint, exact boolean, oldest timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
declare
  cut record;
  -- Conditions on d: what prune removes, and what it takes the payload from.
  goes text;
  bared text;
  query text;
  countable boolean;
begin
  select * into cut from postrider.prune_cutoffs();
  goes := format('coalesce(d.status = ''delivered'' and d.finished_at < %L or d.status = ''exhausted'' and d.finished_at < %L, false)',
                 cut.delivered, cut.exhausted);
  bared := format('coalesce(d.finished_at < %L, false)', cut.payloads);
  for kind, kept_for in
    select k.kind, r.age
      from unnest('{delivered,exhausted,payloads,replies,attempts,events,reports}'::text[]) with ordinality k (kind, place)
      left join postrider.retention r on r.kind = k.kind collate "C" order by k.place
  loop
    countable := true;
    case
      when kind in ('delivered', 'exhausted') then
        oldest := least(
          (select d.finished_at from postrider.deliveries d
            where d.status = prunable.kind and d.payload_purged_at is null order by d.finished_at limit 1),
          (select d.finished_at from postrider.deliveries d
            where d.status = prunable.kind and d.payload_purged_at is not null order by d.finished_at limit 1));
        query := format('select from postrider.deliveries d where d.status = %1$L and d.payload_purged_at is null and d.finished_at < %2$L
                         union all
                         select from postrider.deliveries d where d.status = %1$L and d.payload_purged_at is not null and d.finished_at < %2$L',
                        kind, case kind when 'delivered' then cut.delivered else cut.exhausted end);
      when kind = 'payloads' then
        oldest := least(
          (select d.finished_at from postrider.deliveries d
            where d.status = 'delivered' and d.payload_purged_at is null order by d.finished_at limit 1),
          (select d.finished_at from postrider.deliveries d
            where d.status = 'exhausted' and d.payload_purged_at is null order by d.finished_at limit 1));
        query := format('select from postrider.deliveries d where d.status = ''delivered'' and d.payload_purged_at is null and %1$s and not %2$s
                         union all
                         select from postrider.deliveries d where d.status = ''exhausted'' and d.payload_purged_at is null and %1$s and not %2$s',
                        format('d.finished_at < %L', cut.payloads), goes);
      when kind = 'events' then
        oldest := (select e.created_at from postrider.events e order by e.id limit 1);
        -- No index has them by time. In a large table all that are old are said to be due.
        countable := (select count(*) <= 100000 from (select from postrider.events limit 100001) c);
        query := format('select from postrider.events e where e.created_at < %L', cut.events)
                 || case when countable then format(' and not exists (select from postrider.deliveries d where d.event = e.id and not %s and not %s)', goes, bared)
                         else '' end;
      when kind = 'reports' then
        oldest := (select r.hour from postrider.reports r order by r.hour limit 1);
        query := format('select from postrider.reports r where r.hour < %L', cut.reports);
      when kind = 'attempts' then
        oldest := (select min(a.ends_at) - interval '1 day' from postrider.attempt_days() a);
        query := format('select from postrider.attempt_days() a where a.ends_at <= %L', cut.attempts);
      when kind = 'replies' then
        select min(a.ends_at) - interval '1 day', sum(pg_relation_size(a.partition)) filter (where a.ends_at <= cut.replies) < 100000000,
               coalesce(string_agg(format('select from only %s a where a.reply_purged_at is null and num_nonnulls(a.response_body, a.response_headers) > 0',
                                 a.partition), ' union all ') filter (where a.ends_at <= cut.replies), 'select where false')
          into oldest, countable, query
          from postrider.attempt_days() a
         where (cut.attempts is null or a.ends_at > cut.attempts)
           and a.ends_at > coalesce((select p.done_before from postrider.prune_progress p where p.kind = 'replies'), '-infinity');
    end case;
    select c.n, c.exact into due, exact from postrider.count_or_estimate(query, coalesce(countable, true)) c;
    return next;
  end loop;
end
$$;
comment on function postrider.prunable() is
  'What postrider.prune would remove now if it were called until nothing is left: per kind of postrider.retention how many (attempts: days), exact or estimated where counting would be dear, and since when the oldest that is there has been there.';
