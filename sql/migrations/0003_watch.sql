-- watch: a table's changes become events, in the writer's transaction. The essay is in sql/README.md.
--
-- What the user wrote (condition, body) runs in a function of the table's owner, never as the owner of this schema: watch() makes one
-- for each watch, beside the table. What it hands over is finished JSON; from there on only functions of ours act.

-- ------------------------------------------------------------------ what waits to be published

create table postrider.changes (
  id          bigint generated always as identity primary key,
  next_try    timestamptz not null default '-infinity',
  at          timestamptz not null default now(),
  tries       integer not null default 0,
  shaped      boolean not null default false,
  watch       text collate "C" not null,
  schema_name text not null,
  table_name  text not null,
  operation   text not null,
  event_type  text not null,
  endpoint    text collate "C",
  tenant      text,
  tenants     text[],
  error       text,
  records     json,
  old_records json,
  constraint changes_operation_is_insert_update_or_delete check (operation in ('insert', 'update', 'delete')),
  constraint changes_have_records_or_old_records check (num_nonnulls(records, old_records) > 0),
  constraint changes_tries_are_not_negative check (tries >= 0)
) with (
  -- A chunk of some forty rows mostly stays in one page then, neither compressed nor cut.
  toast_tuple_target = 8160,
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
alter table postrider.changes alter column records set storage external, alter column old_records set storage external;
create index changes_due on postrider.changes (next_try, id);
create index changes_by_watch on postrider.changes (watch, id);

comment on table postrider.changes is
  'Changes of watched tables that are not events yet, some forty rows each. Workers publish them in order of ids, and delete them.';
comment on column postrider.changes.id is 'Given by the table; the order of publishing.';
comment on column postrider.changes.next_try is 'When workers try it; later than now after a failure.';
comment on column postrider.changes.at is 'Start of the transaction that wrote the rows.';
comment on column postrider.changes.tries is 'How often publishing it has failed.';
comment on column postrider.changes.shaped is 'Whether records are whole bodies, made by the watch''s own function.';
comment on column postrider.changes.watch is 'Name of the watch.';
comment on column postrider.changes.schema_name is 'Schema of the watched table at that time.';
comment on column postrider.changes.table_name is 'The watched table''s name at that time.';
comment on column postrider.changes.operation is 'insert, update or delete.';
comment on column postrider.changes.event_type is 'Of the events.';
comment on column postrider.changes.endpoint is 'Where to; NULL: to whoever subscribed.';
comment on column postrider.changes.tenant is 'Of all its events.';
comment on column postrider.changes.tenants is 'One for each row, when the watch takes the tenant from a column.';
comment on column postrider.changes.error is 'Why it could not be published at the last try.';
comment on column postrider.changes.records is 'A JSON array: each row after the change, or each body.';
comment on column postrider.changes.old_records is 'A JSON array: each row before the change, in the same order.';

create table postrider.watch_errors (
  watch       text collate "C" not null,
  sqlstate    text not null,
  message     text not null,
  count       bigint not null default 1,
  first_at    timestamptz not null default clock_timestamp(),
  last_at     timestamptz not null default clock_timestamp(),
  constraint watch_errors_are_one_per_watch_and_sqlstate primary key (watch, sqlstate)
);
comment on table postrider.watch_errors is
  'Statements whose changes became no events, since something in the watch failed; the writer''s transaction went on. One row per watch and kind of error.';
comment on column postrider.watch_errors.watch is 'Name of the watch.';
comment on column postrider.watch_errors.sqlstate is 'What kind of error.';
comment on column postrider.watch_errors.message is 'The last one, for people.';
comment on column postrider.watch_errors.count is 'At least so many statements; of those that fail at the same moment only one counts.';
comment on column postrider.watch_errors.first_at is 'The first of them.';
comment on column postrider.watch_errors.last_at is 'The last of them.';

-- ------------------------------------------------------------------ from changes to events

create function postrider.publish_records(change postrider.changes) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  head text;
  between text := ',"old_record":';
  tail text := ',"at":' || to_json(to_char(change.at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) || '}';
  stored bigint[];
  made bigint;
begin
  head := '{"type":' || to_json(change.event_type) || ',"table":' || to_json(change.table_name)
       || ',"schema":' || to_json(change.schema_name) || ',"operation":' || to_json(change.operation) || ',"record":';
  if change.endpoint is not null then
    perform from postrider.endpoints e where e.name = change.endpoint for key share;
    if not found then
      raise exception 'there is no endpoint %', change.endpoint using errcode = 'PR004',
        hint = 'Make it again, or call postrider.unwatch for a watch that is not needed any more.';
    end if;
    insert into postrider.deliveries (endpoint, event_type, payload)
    select change.endpoint, change.event_type,
           case when change.shaped then r.record
                else (head || coalesce(r.record::text, 'null') || between || coalesce(r.old_record::text, 'null') || tail)::json end
      from rows from (json_array_elements(change.records), json_array_elements(change.old_records))
           with ordinality as r (record, old_record, place)
     order by r.place;
    get diagnostics made = row_count;
    return made;
  end if;
  -- What nobody has asked for is not stored.
  if not postrider.has_subscriber(change.event_type) then
    return 0;
  end if;
  with event as (
    insert into postrider.events (event_type, payload, tenant)
    select change.event_type,
           case when change.shaped then r.record
                else (head || coalesce(r.record::text, 'null') || between || coalesce(r.old_record::text, 'null') || tail)::json end,
           case when change.tenants is null then change.tenant else change.tenants[r.place] end
      from rows from (json_array_elements(change.records), json_array_elements(change.old_records))
           with ordinality as r (record, old_record, place)
     order by r.place
    returning id
  )
  select array_agg(event.id order by event.id) into stored from event;
  return postrider.fan_out(stored);
end
$$;
comment on function postrider.publish_records(postrider.changes) is 'Makes deliveries of one chunk of changes, whether it is stored or not; returns how many.';

create function postrider.publish_records_at_once(change postrider.changes) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '10ms' as $$
begin
  return postrider.publish_records(change);
end
$$;
comment on function postrider.publish_records_at_once(postrider.changes) is
  'The same in the writer''s transaction: waits for no lock, for example of an endpoint that somebody is deleting.';

create function postrider.publish_changes(max_chunks integer default 25) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
declare
  change postrider.changes;
  done bigint := 0;
  failed text;
begin
  -- One at a time: two would overtake each other, and neither would be faster.
  if not pg_try_advisory_xact_lock(hashtextextended('postrider.publish_changes', 0)) then
    return 0;
  end if;
  for change in
    select c.* from postrider.changes c where c.next_try <= now()
     order by c.next_try, c.id limit least(greatest(max_chunks, 1), 1000) for update skip locked
  loop
    begin
      perform postrider.publish_records(change);
      delete from postrider.changes c where c.id = change.id;
    exception when others or assert_failure then
      failed := sqlerrm;
      -- From one second on, twice as long each time, an hour at most.
      update postrider.changes c
         set tries = c.tries + 1, error = failed,
             next_try = clock_timestamp() + least(2 ^ least(c.tries, 12), 3600) * interval '1 s'
       where c.id = change.id;
    end;
    done := done + 1;
  end loop;
  return done;
end
$$;
comment on function postrider.publish_changes(integer) is
  'Publishes chunks of changes that wait, in order; returns how many it dealt with, 0 when none waits or somebody else is at it. Workers call it. A chunk that fails is tried again later and holds up no other.';

create function postrider.take_changes(
  watch text, schema_name text, table_name text, operation text, event_type text, endpoint text, tenant text, tenants text[],
  shaped boolean, records json, old_records json, at_once boolean
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  spent constant text := coalesce(current_setting('postrider.published_at_once', true), '');
  change postrider.changes;
begin
  if not at_once then
    -- What the transaction writes later must not overtake this.
    perform set_config('postrider.published_at_once', repeat('x', 32), true);
  elsif length(spent) < 32 and current_setting('transaction_isolation') = 'read committed'
        and not exists (select from postrider.changes c where c.watch = take_changes.watch) then
    -- A block that can fail takes a transaction id of its own when it writes; beyond 64 of them in a transaction everybody's snapshots
    -- become slow.
    perform set_config('postrider.published_at_once', spent || 'x', true);
    begin
      change.at := now();
      change.shaped := take_changes.shaped;
      change.watch := take_changes.watch;
      change.schema_name := take_changes.schema_name;
      change.table_name := take_changes.table_name;
      change.operation := take_changes.operation;
      change.event_type := take_changes.event_type;
      change.endpoint := take_changes.endpoint;
      change.tenant := take_changes.tenant;
      change.tenants := take_changes.tenants;
      change.records := take_changes.records;
      change.old_records := take_changes.old_records;
      perform postrider.publish_records_at_once(change);
      return;
    exception when others or assert_failure then
      -- Workers try it again and say what is wrong.
      null;
    end;
  end if;
  insert into postrider.changes as c
         (watch, schema_name, table_name, operation, event_type, endpoint, tenant, tenants, shaped, records, old_records)
  values (take_changes.watch, take_changes.schema_name, take_changes.table_name, take_changes.operation, take_changes.event_type,
          take_changes.endpoint, take_changes.tenant, take_changes.tenants, take_changes.shaped, take_changes.records,
          take_changes.old_records);
  perform postrider.ring();
end
$$;
comment on function postrider.take_changes(text, text, text, text, text, text, text, text[], boolean, json, json, boolean) is
  'Takes what a watch has seen: publishes it at once when it is little, leaves it to workers otherwise. The watch''s trigger calls it, as the table''s owner.';

create function postrider.note_watch_error(watch text, error_state text, error_message text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  spent constant text := coalesce(current_setting('postrider.errors_noted', true), '');
begin
  -- Whoever fails at the same moment does not wait for the other's transaction to end: one of them counts.
  if length(spent) >= 16
     or not pg_try_advisory_xact_lock(hashtextextended('postrider.watch_errors ' || watch || ' ' || error_state, 0)) then
    return;
  end if;
  perform set_config('postrider.errors_noted', spent || 'x', true);
  insert into postrider.watch_errors as e (watch, sqlstate, message)
  values (note_watch_error.watch, error_state, left(error_message, 1000))
  on conflict on constraint watch_errors_are_one_per_watch_and_sqlstate do update
     set count = e.count + 1, last_at = clock_timestamp(), message = excluded.message;
end
$$;
comment on function postrider.note_watch_error(text, text, text) is
  'Puts on record that a statement''s changes became no events. The watch''s trigger calls it, as the table''s owner.';
