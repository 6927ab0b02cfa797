-- deliver_now: one try while the caller waits. What makes it safe is the deadline: a column that every claim obeys, so that nothing is
-- left to send when the caller has gone on, however the caller ended.
--
-- A procedure with SET or SECURITY DEFINER may not commit. So the procedure is bare: it names schemas everywhere, uses no operator, and
-- leaves what is to be known and decided to the functions below, which pin their search_path.

alter table postrider.deliveries add column deadline timestamptz;
comment on column postrider.deliveries.deadline is
  'No try begins after it, and none lasts beyond it; what is still open then ends as exhausted, deadline. NULL: none. A replay clears it.';

-- Rows that a caller waits for are put in front of their lane, also of what a claim believes to be its front. They are few, and so is this.
create index deliveries_awaited on postrider.deliveries (endpoint, next_retry, id) where deadline is not null and next_retry is not null;

create or replace function postrider.lane_in_flight(
  endpoint text, max_in_flight integer, worker text, out in_flight integer, out by_worker integer
)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  -- Until its transaction ends, a claim has the lane for itself. It must count after it has the lock, and in a snapshot of that
  -- moment, to see what the claim before it took: hence a function, whose queries see more than the statement that calls it.
  if not pg_try_advisory_xact_lock(hashtextextended('postrider.lane ' || lane_in_flight.endpoint, 0)) then
    return;
  end if;
  -- What is in flight stands in front, but for rows that others lock, and older ones that were committed late: 32 of them are
  -- looked past. Rows that a caller waits for stand in front too, as many as there are callers, and are not counted among these.
  select count(*), count(*) filter (where head.leased_by = lane_in_flight.worker)
    into lane_in_flight.in_flight, lane_in_flight.by_worker
    from (select d.lease_expires_at, d.leased_by
            from postrider.deliveries d
           where d.endpoint = lane_in_flight.endpoint and d.next_retry is not null and d.next_retry <= clock_timestamp()
             and (d.deadline is null or d.lease_expires_at is not null)
           order by d.next_retry, d.id
           limit lane_in_flight.max_in_flight + 32) head
   where head.lease_expires_at > clock_timestamp();
end
$$;

-- ------------------------------------------------------------------ a replay is a new decision, which no old deadline ends

create or replace function postrider.replay(id bigint, seen_claim_no bigint default null) returns boolean
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  d record;
begin
  select r.status, r.claim_no, r.lease_expires_at > clock_timestamp() as in_flight, r.endpoint, e.enabled
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

create or replace function postrider.replay_matching(
  endpoint text default null, reason text default null, status text default 'exhausted',
  since timestamptz default null, until timestamptz default null, max_rows integer default 1000
) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  replayed bigint;
begin
  if replay_matching.status not in ('exhausted', 'delivered') then
    raise exception 'only exhausted or delivered deliveries can be replayed, not %', replay_matching.status;
  end if;
  with chosen as materialized (
    select r.id from postrider.deliveries r join postrider.endpoints e on e.name = r.endpoint and e.enabled
     where r.status = replay_matching.status and r.next_retry is null
       and (replay_matching.endpoint is null or r.endpoint = replay_matching.endpoint)
       and (replay_matching.reason is null or r.exhausted_reason = replay_matching.reason)
       and (replay_matching.since is null or r.finished_at >= replay_matching.since)
       and (replay_matching.until is null or r.finished_at < replay_matching.until)
     order by r.id limit replay_matching.max_rows for no key update of r skip locked
  )
  update postrider.deliveries r
     set status = 'queued', exhausted_reason = null, finished_at = null, next_retry = now(), deadline = null,
         budget_from = r.attempt_count, claim_no = r.claim_no + 1
    from chosen c where r.id = c.id;
  get diagnostics replayed = row_count;
  if replayed > 0 then
    perform postrider.ring();
  end if;
  return replayed;
end
$$;

-- ------------------------------------------------------------------ the steps of deliver_now
-- They read and end only rows that deliver_now made: those with a deadline, and only for who made them. The event_id is a hash of a key
-- that the caller alone holds: others see the event_id, in the table or at the receiver, and learn nothing by it.
-- Errors of our own: PR006 rejected, PR007 failed, PR008 no worker took it in time, PR009 inside a transaction block.

create function postrider.deliver_now_refuse_transaction(commit_says text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  -- A function can never commit, and is told so in the same words, and the same language, as a procedure inside a transaction block.
  begin
    commit;
  exception when invalid_transaction_termination then
    if sqlerrm <> deliver_now_refuse_transaction.commit_says then
      return;
    end if;
  end;
  raise exception 'deliver_now needs a transaction of its own' using errcode = 'PR009',
    detail = 'Workers see a row only when it is committed, and inside a transaction block or a function it cannot be.',
    hint = 'CALL it outside begin and commit (autocommit on). Inside a transaction use postrider.send, or insert into postrider.deliveries: it goes when you commit.';
end
$$;
comment on function postrider.deliver_now_refuse_transaction(text) is
  'Raises PR009 if the error of a COMMIT that was caught says that there can be none here at all.';

create function postrider.deliver_now_event_id(key text) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select 'now_' || left(encode(sha256(convert_to(key, 'UTF8')), 'hex'), 32)
$$;
comment on function postrider.deliver_now_event_id(text) is 'The event_id of the delivery that the holder of this key waits for.';

create function postrider.deliver_now_prepare(
  endpoint text, event_type text, payload json, timeout interval,
  out key text, out event_id text, out next_retry timestamptz, out deadline timestamptz
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  e record;
  only_for text;
begin
  if current_setting('transaction_read_only')::boolean then
    raise exception 'deliver_now writes a delivery, and transactions are read-only here' using errcode = '25006',
      hint = 'Set default_transaction_read_only to off, or connect to the primary server.';
  elsif deliver_now_prepare.timeout is null or extract(epoch from deliver_now_prepare.timeout) not between 0.001 and 3600 then
    raise exception 'timeout must be between 1 ms and 1 hour, not %', coalesce(deliver_now_prepare.timeout::text, 'NULL') using errcode = '22023',
      hint = 'How long you would wait for the receiver''s answer, for example timeout => ''10 s''.';
  elsif deliver_now_prepare.event_type is null or deliver_now_prepare.payload is null then
    raise exception 'event_type and payload must not be NULL' using errcode = '22004',
      hint = 'For example: call postrider.deliver_now(''crm'', ''order.paid'', ''{"id":17}'').';
  end if;
  only_for := postrider.tenant_of_caller();
  select n.enabled, n.paused, n.ordered into e
    from postrider.endpoints n
   where n.name = deliver_now_prepare.endpoint and (only_for is null or n.tenant = only_for);
  if not found then
    raise exception 'there is no endpoint %', coalesce(deliver_now_prepare.endpoint, 'NULL') using errcode = 'PR004',
      hint = 'List them: select name, url from postrider.endpoints.';
  elsif not e.enabled then
    raise exception 'endpoint % is disabled', deliver_now_prepare.endpoint using errcode = 'PR005',
      hint = format('Call postrider.enable(%L) first.', deliver_now_prepare.endpoint);
  elsif e.paused then
    raise exception 'endpoint % is paused, no worker would take it in time', deliver_now_prepare.endpoint using errcode = 'PR008',
      hint = format('Nothing was sent. Call postrider.resume(%L) first, or queue it with postrider.send.', deliver_now_prepare.endpoint);
  end if;
  key := gen_random_uuid()::text;
  event_id := postrider.deliver_now_event_id(key);
  next_retry := clock_timestamp();
  deadline := next_retry + deliver_now_prepare.timeout;
  if not e.ordered then
    -- Somebody waits for it, so it goes before what nobody waits for, and behind those whose callers came first.
    next_retry := least(next_retry, (
      select d.next_retry - interval '1 us'
        from postrider.deliveries d
       where d.endpoint = deliver_now_prepare.endpoint and d.next_retry is not null and d.deadline is null
       order by d.next_retry, d.id
       limit 1));
  end if;
end
$$;
comment on function postrider.deliver_now_prepare(text, text, json, interval) is
  'What deliver_now asks first: whether it can work at all, and when the delivery is to be due and to be over.';

create function postrider.deliver_now_look(endpoint text, key text, out over boolean, out pause double precision)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  d record;
  waited double precision;
  remaining double precision;
begin
  select r.next_retry, r.deadline, r.created_at, r.lease_expires_at into d
    from postrider.deliveries r
   where r.endpoint = deliver_now_look.endpoint and r.event_id = postrider.deliver_now_event_id(deliver_now_look.key) and r.deadline is not null;
  if not found or d.next_retry is null then
    over := true;
    return;
  end if;
  waited := extract(epoch from clock_timestamp() - d.created_at);
  -- A try that was under way at the deadline may be about to be recorded; nothing begins any more.
  remaining := extract(epoch from d.deadline - clock_timestamp()) + case when d.lease_expires_at is null then 0 else 0.5 end;
  over := remaining <= 0;
  -- Longer looks apart the longer it takes, so that a caller waits little more than it must and many of them cost little.
  pause := greatest(0.0015, least(waited / 4, 0.02 + waited / 50, remaining));
end
$$;
comment on function postrider.deliver_now_look(text, text) is
  'Whether a delivery of deliver_now is finished or out of time; if not, in how many seconds to look again.';

create function postrider.deliver_now_end(endpoint text, key text, cancelled text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '300 ms' as $$
declare
  d record;
  why text := case when deliver_now_end.cancelled is null then 'the deadline passed' else 'the caller was cancelled' end;
begin
  select r.* into d from postrider.deliveries r
   where r.endpoint = deliver_now_end.endpoint and r.event_id = postrider.deliver_now_event_id(deliver_now_end.key) and r.deadline is not null
     and r.next_retry is not null
     for no key update;
  if not found then
    return true;
  end if;
  if d.lease_expires_at is not null then
    -- Whoever takes over a lease puts that try on record; its own result, if one comes, replaces the row.
    insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, error_kind, error, worker)
    values (now(), d.id, d.claim_no, d.attempt_count + 1, d.endpoint, 'lost', 'lost', why || ' while it was in flight', d.leased_by);
  end if;
  update postrider.deliveries r
     set status = 'exhausted', exhausted_reason = case when deliver_now_end.cancelled is null then 'deadline' else 'cancelled' end,
         finished_at = now(), next_retry = null, lease_expires_at = null, leased_by = null, claim_no = r.claim_no + 1,
         attempt_count = r.attempt_count + case when d.lease_expires_at is null then 0 else 1 end,
         last_status_code = null,
         last_error = why || case when d.lease_expires_at is null then ' before a worker took it' else ' while it was in flight' end
   where r.id = d.id;
  return true;
exception when lock_not_available then
  -- Somebody holds the row. No worker begins a try past the deadline, and the next claim ends it.
  return false;
end
$$;
comment on function postrider.deliver_now_end(text, text, text) is
  'Ends a delivery of deliver_now that is still open, so that nothing can be sent any more. False: its row is locked, and the deadline has to do it.';

create function postrider.start_of(body bytea) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  start bytea := substr(body, 1, 300);
begin
  -- The cut may be inside a character of up to four bytes.
  for cut in 0 .. 3 loop
    begin
      return regexp_replace(convert_from(substr(start, 1, length(start) - cut), 'UTF8'), '[[:cntrl:]]+', ' ', 'g');
    exception when others then
      exit when length(start) < 300 or cut = 3;
    end;
  end loop;
  return regexp_replace(encode(start, 'escape'), '[[:cntrl:]]+', ' ', 'g');
end
$$;
comment on function postrider.start_of(bytea) is 'The beginning of a reply''s body as one line of text, for messages.';

create function postrider.deliver_now_outcome(endpoint text, key text, out status_code integer, out response_body bytea)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  d record;
  state text;
  what text;
  next_step text;
begin
  select r.id, r.event_id, r.status, r.exhausted_reason, r.attempt_count, r.lease_expires_at, r.created_at, r.last_status_code, r.last_error
    into d
    from postrider.deliveries r
   where r.endpoint = deliver_now_outcome.endpoint and r.event_id = postrider.deliver_now_event_id(deliver_now_outcome.key) and r.deadline is not null;
  if not found then
    raise exception 'the delivery to endpoint % was taken away while it was waited for', deliver_now_outcome.endpoint using errcode = 'PR007',
      detail = format('event id %s', postrider.deliver_now_event_id(deliver_now_outcome.key)),
      hint = 'Somebody deleted or replayed it; look for its event id.';
  end if;
  select a.status_code, a.response_body into deliver_now_outcome.status_code, deliver_now_outcome.response_body
    from postrider.attempts a
   where a.delivery_id = d.id and a.started_at >= d.created_at - interval '1 day'
   order by a.attempt_no desc limit 1;
  if d.status = 'delivered' then
    return;
  end if;
  if d.exhausted_reason in ('rejected', 'gone', 'blocked', 'unbuildable') then
    state := 'PR006';
    what := format('endpoint %s rejected it: %s', deliver_now_outcome.endpoint, d.last_error);
    next_step := 'Sent again as it is, it would be rejected again. Correct the event or the endpoint first.';
    if d.exhausted_reason in ('blocked', 'unbuildable') then
      what := format('nothing could be sent to endpoint %s: %s', deliver_now_outcome.endpoint, d.last_error);
    end if;
  elsif d.exhausted_reason = 'endpoint_disabled' then
    state := 'PR005';
    what := format('endpoint %s was disabled meanwhile', deliver_now_outcome.endpoint);
    next_step := format('Nothing was sent. Call postrider.enable(%L) first.', deliver_now_outcome.endpoint);
  elsif d.attempt_count = 0 and d.lease_expires_at is null and d.exhausted_reason is distinct from 'cancelled' then
    state := 'PR008';
    what := format('no worker took it to endpoint %s in time', deliver_now_outcome.endpoint);
    next_step := 'Nothing was sent and nothing will be. See that a worker runs, and that the endpoint is not at its max_in_flight or rate_limit; then call again, or queue it with postrider.send.';
  else
    state := 'PR007';
    what := format('endpoint %s did not take it: %s', deliver_now_outcome.endpoint, coalesce(d.last_error, 'no answer in time'));
    next_step := 'It is not tried again. The receiver may have got it all the same if no answer came. Call again, or queue it with postrider.send, which retries.';
  end if;
  raise exception '%', what using errcode = state, hint = next_step,
    detail = format('delivery %s, event id %s, ', d.id, d.event_id)
             || coalesce('status ' || d.last_status_code, 'no status')
             || coalesce(', body: ' || nullif(postrider.start_of(deliver_now_outcome.response_body), ''), '');
end
$$;
comment on function postrider.deliver_now_outcome(text, text) is
  'What became of a delivery of deliver_now: the receiver''s answer, or PR005 to PR008.';

-- ------------------------------------------------------------------ what people call

create procedure postrider.deliver_now(
  endpoint text, event_type text, payload json, timeout interval default '10 s',
  inout status_code integer default null, inout response_body bytea default null
)
language plpgsql as $$
declare
  key pg_catalog.text;
  event_id pg_catalog.text;
  next_retry pg_catalog.timestamptz;
  deadline pg_catalog.timestamptz;
  over pg_catalog.bool;
  pause pg_catalog.float8;
  cancelled pg_catalog.text;
begin
  -- No block that catches errors can commit. Why it cannot tells whether anybody could here.
  begin
    commit;
  exception when invalid_transaction_termination then
    perform postrider.deliver_now_refuse_transaction(sqlerrm);
  end;
  -- Every step has a transaction of its own, so that it sees what workers did, and no snapshot is held while they work. Its isolation
  -- is set before anything else, even an expression, is evaluated in it.
  commit;
  set transaction isolation level read committed;
  select p.key, p.event_id, p.next_retry, p.deadline into key, event_id, next_retry, deadline
    from postrider.deliver_now_prepare(deliver_now.endpoint, deliver_now.event_type, deliver_now.payload, deliver_now.timeout) p;
  insert into postrider.deliveries (endpoint, event_id, event_type, payload, max_retries, next_retry, deadline)
  values (deliver_now.endpoint, event_id, deliver_now.event_type, deliver_now.payload, 0, next_retry, deadline);
  commit;
  set transaction isolation level read committed;
  loop
    begin
      select l.over, l.pause into over, pause from postrider.deliver_now_look(deliver_now.endpoint, key) l;
      if not over then
        perform pg_catalog.pg_sleep(pause);
      end if;
    exception when query_canceled then
      cancelled := sqlerrm;
    end;
    commit;
    set transaction isolation level read committed;
    exit when over or cancelled is not null;
  end loop;
  over := postrider.deliver_now_end(deliver_now.endpoint, key, cancelled);
  commit;
  set transaction isolation level read committed;
  if cancelled is not null then
    raise exception using errcode = 'query_canceled', message = cancelled,
      hint = case when over then 'The delivery is ended and will not be tried again. A request that was under way may have arrived.'
                  else 'Somebody holds the lock of the delivery; it may be sent until the timeout of this call is over.' end;
  end if;
  select o.status_code, o.response_body into deliver_now.status_code, deliver_now.response_body
    from postrider.deliver_now_outcome(deliver_now.endpoint, key) o;
end
$$;
comment on procedure postrider.deliver_now(text, text, json, interval, integer, bytea) is
  'Sends an event at once, one try, and returns the receiver''s status and body. Raises unless it was delivered: PR006 rejected, PR007 failed, PR008 no worker took it in time; nothing is sent after that. Not inside a transaction block (PR009).';
