-- watch: a table's changes become events, in the writer's transaction. The essay is in sql/README.md.
--
-- What the user wrote (condition, body) runs in a function of the table's owner, never as the owner of this schema: watch() makes one
-- for each watch, beside the table. What it hands over is finished JSON; from there on only functions of ours act.
-- Errors: PR012 watch() refuses an argument, PR013 there is a watch of this name, PR014 there is none.

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
  tenants     json,
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
create trigger changes_ring_doorbell after insert on postrider.changes
  for each statement execute function postrider.ring_doorbell();

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
comment on column postrider.changes.tenants is 'A JSON array, one for each row, when the watch takes the tenant from a column.';
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
           coalesce(change.tenant, r.tenant)
      from rows from (json_array_elements(change.records), json_array_elements(change.old_records), json_array_elements_text(change.tenants))
           with ordinality as r (record, old_record, tenant, place)
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
  began constant timestamptz := clock_timestamp();
  change postrider.changes;
  done bigint := 0;
  made bigint := 0;
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
      made := made + postrider.publish_records(change);
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
    -- One chunk may be for thousands of subscribers.
    exit when made >= 5000 or clock_timestamp() > began + interval '1 s';
  end loop;
  return done;
end
$$;
comment on function postrider.publish_changes(integer) is
  'Publishes chunks of changes that wait, in order; returns how many it dealt with, 0 when none waits or somebody else is at it. Workers call it. A chunk that fails is tried again later and holds up no other.';

create function postrider.note_watch_error(watch text, error_state text, error_message text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10ms' as $$
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
exception when others or assert_failure then
  raise warning 'postrider: changes seen by watch % became no events: %', watch, error_message;
end
$$;
comment on function postrider.note_watch_error(text, text, text) is
  'Puts on record that a statement''s changes became no events. The watch''s trigger calls it, as the table''s owner.';

create function postrider.take_changes(
  watch text, schema_name text, table_name text, operation text, event_type text, endpoint text, tenant text,
  shaped boolean, strict boolean, at_once boolean, records json[], old_records json[], tenants json[]
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  spent constant text := coalesce(current_setting('postrider.watch_blocks', true), '');
  change postrider.changes;
  chunk integer;
begin
  if strict and endpoint is not null and not exists (select from postrider.endpoints e where e.name = take_changes.endpoint) then
    raise exception 'there is no endpoint %', endpoint using errcode = 'PR004',
      hint = format('The watch %s is strict: make the endpoint again, or call postrider.unwatch(%L).', watch, watch);
  end if;
  -- A block that can fail takes a transaction id of its own when it writes; beyond 64 of them in a transaction everybody's snapshots
  -- become slow. Each call is within one block (see watch_source) and makes one more here, 24 times; errors on record make 16.
  if length(spent) < 24 then
    perform set_config('postrider.watch_blocks', spent || 'x', true);
  end if;
  -- What waits already must not be overtaken.
  if at_once and length(spent) < 24 and current_setting('transaction_isolation') = 'read committed'
     and not exists (select from postrider.changes c where c.watch = take_changes.watch) then
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
      for chunk in 1 .. cardinality(records) loop
        change.records := take_changes.records[chunk];
        change.old_records := take_changes.old_records[chunk];
        change.tenants := take_changes.tenants[chunk];
        perform postrider.publish_records_at_once(change);
      end loop;
      return;
    exception when others or assert_failure then
      -- Workers try it again and say what is wrong.
      null;
    end;
  end if;
  insert into postrider.changes as c
         (watch, schema_name, table_name, operation, event_type, endpoint, tenant, shaped, records, old_records, tenants)
  select take_changes.watch, take_changes.schema_name, take_changes.table_name, take_changes.operation, take_changes.event_type,
         take_changes.endpoint, take_changes.tenant, take_changes.shaped, r.records, r.old_records, r.tenants
    from unnest(take_changes.records, take_changes.old_records, take_changes.tenants) with ordinality as r (records, old_records, tenants, place)
   order by r.place;
end
$$;
comment on function postrider.take_changes(text, text, text, text, text, text, text, boolean, boolean, boolean, json[], json[], json[]) is
  'Takes what a watch has seen: publishes it at once when it is little, leaves it to workers otherwise. The watch''s trigger calls it, as the table''s owner.';

-- ------------------------------------------------------------------ what a watch is made of

create function postrider.watch_settings(source text) returns json
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
  -- The first line of the watch's function says how it was made, so that a dump carries it and nothing can disagree.
  return (substring(source from '^-- (\{[^\n]*\})\n'))::json;
exception when others then
  return null;
end
$$;
comment on function postrider.watch_settings(text) is 'What postrider.watch was told, out of the first line of the function that it made; NULL: it made none such.';

create function postrider.watch_function(watch text) returns text
language sql immutable strict set search_path = pg_catalog, pg_temp as $$
  select 'postrider_watch_' || left(regexp_replace(lower(watch), '[^a-z0-9]+', '_', 'g'), 24) || '_' || left(md5(watch), 8)
$$;
comment on function postrider.watch_function(text) is 'How the function of a watch is called; its triggers, too, with the operation behind it.';

create view postrider.watches as
select w.settings ->> 'name' as watch, t.schema_name, t.table_name,
       coalesce(t.operations, '{}') as operations, w.settings ->> 'event_type' as event_type, w.settings ->> 'endpoint' as endpoint,
       w.settings ->> 'condition' as condition,
       array(select json_array_elements_text(w.settings -> 'columns')) as columns,
       array(select json_array_elements_text(w.settings -> 'without')) as without,
       w.settings ->> 'body' as body, w.settings ->> 'tenant' as tenant, w.settings ->> 'tenant_column' as tenant_column,
       (w.settings ->> 'strict')::boolean as strict, coalesce(t.enabled, false) as enabled, c.waiting,
       coalesce(e.errors, 0) + c.failing as errors,
       -- Messages may quote values of the table.
       case when has_table_privilege('postrider.watch_errors', 'select') or pg_has_role(w.owner, 'usage')
            then coalesce(e.message, f.error) end as last_error,
       e.last_at as last_error_at
  from (select p.oid, p.proowner as owner, postrider.watch_settings(p.prosrc) as settings
          from pg_catalog.pg_proc p
         where p.proname like 'postrider\_watch\_%' and p.prorettype = 'pg_catalog.trigger'::pg_catalog.regtype and p.prosecdef) w
  left join lateral (
    select n.nspname as schema_name, r.relname as table_name, bool_and(g.tgenabled <> 'D') as enabled,
           array_agg(case when g.tgtype & 4 <> 0 then 'insert' when g.tgtype & 16 <> 0 then 'update' else 'delete' end
                     order by g.tgtype & 4 desc, g.tgtype & 16 desc) as operations
      from pg_catalog.pg_trigger g
      join pg_catalog.pg_class r on r.oid = g.tgrelid
      join pg_catalog.pg_namespace n on n.oid = r.relnamespace
     where g.tgfoid = w.oid
     group by n.nspname, r.relname) t on true
 cross join lateral (
    select count(*) as waiting, count(*) filter (where h.tries > 0) as failing
      from (select c.tries from postrider.changes c where c.watch = w.settings ->> 'name' limit 1000) h) c
  left join lateral (
    select c.error from postrider.changes c where c.watch = w.settings ->> 'name' and c.error is not null order by c.id limit 1) f on c.failing > 0
  left join lateral (
    select sum(x.count)::bigint as errors, max(x.last_at) as last_at, (array_agg(x.message order by x.last_at desc))[1] as message
      from postrider.watch_errors x where x.watch = w.settings ->> 'name') e on true
 where w.settings ->> 'name' is not null;
comment on view postrider.watches is
  'The watches that there are. waiting: chunks of changes that are not events yet, counted to 1000. errors: statements whose changes became no events, and chunks that cannot be published so far. table_name NULL: the table is gone, call postrider.unwatch.';

create function postrider.forget_watch_errors(watch text) returns void
language sql security definer set search_path = pg_catalog, pg_temp as $$
  delete from postrider.watch_errors e
   where e.watch = forget_watch_errors.watch
     and not exists (select from postrider.watches w where w.watch = forget_watch_errors.watch)
$$;
comment on function postrider.forget_watch_errors(text) is 'What watch and unwatch share: a name that is used afresh begins without errors.';

create function postrider.check_watched_endpoint(endpoint text) returns void
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
begin
  if not exists (select from postrider.endpoints e where e.name = check_watched_endpoint.endpoint) then
    raise exception 'there is no endpoint %', endpoint using errcode = 'PR004',
      hint = 'Insert it into postrider.endpoints first. Without endpoint, events go to all that subscribed to their type.';
  end if;
end
$$;
comment on function postrider.check_watched_endpoint(text) is 'What watch asks; its caller need not be able to read endpoints.';

create function postrider.check_watched_table(target regclass) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  t record;
begin
  select c.relkind, c.relpersistence, c.relowner, n.nspname, n.oid as nspoid into t
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = target;
  if not found then
    raise exception 'there is no such table' using errcode = 'PR012', hint = 'Name it as SQL does, for example postrider.watch(''shop.orders'').';
  elsif t.relkind not in ('r', 'p') then
    raise exception '% is no table', target using errcode = 'PR012',
      hint = 'Views, materialized views and foreign tables cannot be watched: watch the tables behind them.';
  elsif t.relpersistence = 't' then
    raise exception '% is a temporary table', target using errcode = 'PR012', hint = 'Only tables that stay can be watched.';
  elsif t.nspname in ('postrider', 'information_schema') or t.nspname like 'pg\_%' then
    raise exception 'tables of the schema % cannot be watched', t.nspname using errcode = 'PR012',
      hint = 'An event for each row of Postrider''s own would make events without end.';
  elsif exists (select from pg_partition_tree(target) p join pg_class c on c.oid = p.relid where c.relkind = 'f')
     or exists (with recursive child (oid) as (
                  select target::oid union select i.inhrelid from child p join pg_inherits i on i.inhparent = p.oid)
                select from child join pg_class c on c.oid = child.oid where c.relkind = 'f') then
    raise exception '% has foreign tables for partitions or children', target using errcode = 'PR012',
      hint = 'PostgreSQL cannot show a statement-level trigger what changes there; watch the other partitions one by one.';
  elsif not pg_has_role(current_user, t.relowner, 'usage') then
    raise exception 'only the owner of % can watch it', target using errcode = '42501',
      hint = format('Call it as %s, or as a member of that role.', t.relowner::regrole);
  elsif not has_schema_privilege(t.relowner, t.nspoid, 'create')
        and not (select r.rolsuper from pg_roles r where r.rolname = current_user) then
    raise exception '%, the owner of %, may not create functions in the schema %', t.relowner::regrole, target, quote_ident(t.nspname)
      using errcode = '42501', hint = format('grant create on schema %I to %s', t.nspname, t.relowner::regrole);
  elsif not has_schema_privilege(t.relowner, 'postrider', 'usage')
        or not has_column_privilege(t.relowner, 'postrider.changes', 'records', 'insert')
        or not has_function_privilege(t.relowner,
             'postrider.take_changes(text,text,text,text,text,text,text,boolean,boolean,boolean,json[],json[],json[])', 'execute') then
    raise exception '%, the owner of %, may not publish', t.relowner::regrole, target using errcode = '42501',
      hint = format('As the owner of the schema postrider: select postrider.grant_producer(%L)', t.relowner::regrole::text);
  end if;
end
$$;
comment on function postrider.check_watched_table(regclass) is 'Whether watch may and can watch this table; raises PR012 or 42501 with what to do.';

create function postrider.check_watched_columns(target regclass, names text[], argument text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  stranger text;
begin
  select coalesce(n, 'NULL') into stranger from unnest(names) as n
   where not exists (select from pg_attribute a
                      where a.attrelid = target and a.attname = n and a.attnum > 0 and not a.attisdropped)
   limit 1;
  if found then
    raise exception '% has no column %', target, stranger using errcode = 'PR012',
      hint = format('Look at %s: names are written as in the table, without quotes.', argument);
  end if;
end
$$;
comment on function postrider.check_watched_columns(regclass, text[], text) is 'Whether the table has these columns; raises PR012.';

create function postrider.watched_body_call(target regclass, body regproc) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  f record;
  arguments text[];
begin
  select p.oid, p.prokind, p.proretset, p.prorettype, p.proisstrict, p.pronargs, p.proargtypes, n.nspname, p.proname, c.reltype, c.relowner,
         array(select case when a.type in (c.reltype, 'record'::regtype) and a.place <= 2 then 'row'
                           when a.type = 'text'::regtype and a.place = 3 then 'text' else '?' end
                 from unnest(p.proargtypes::oid[]) with ordinality as a (type, place) order by a.place) as kinds
    into f
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace join pg_class c on c.oid = target
   where p.oid = body;
  if not found then
    raise exception 'there is no such function, or several of this name' using errcode = 'PR012',
      hint = 'Name it as SQL does, for example shop.order_body, or with its types: shop.order_body(shop.orders).';
  elsif f.prokind <> 'f' or f.proretset or f.prorettype not in ('json'::regtype, 'jsonb'::regtype)
        or f.kinds not in ('{row}', '{row,row}', '{row,row,text}') then
    raise exception 'function % cannot shape the bodies', f.oid::regprocedure using errcode = 'PR012',
      hint = format('It must return one json and take the row; or the row and the old row; or both and the operation as text: f(%s, %s, text).',
                    target, target);
  elsif f.proisstrict and f.pronargs > 1 then
    raise exception 'function % is strict', f.oid::regprocedure using errcode = 'PR012',
      hint = 'Either row is NULL for an insert or a delete, and it would not be called: make it CALLED ON NULL INPUT.';
  elsif not has_function_privilege(f.relowner, f.oid, 'execute') then
    raise exception '%, the owner of %, may not call function %', f.relowner::regrole, target, f.oid::regprocedure using errcode = '42501',
      hint = format('grant execute on function %s to %s', f.oid::regprocedure, f.relowner::regrole);
  end if;
  arguments := case f.pronargs when 1 then array['%1$s'] when 2 then array['%3$s', '%4$s'] else array['%3$s', '%4$s', '%2$L'] end;
  return replace(format('%I.%I', f.nspname, f.proname), '%', '%%') || '(' || array_to_string(arguments, ', ') || ')::json';
end
$$;
comment on function postrider.watched_body_call(regclass, regproc) is
  'How a watch calls the user''s function, for format with the row, the operation, the new row and the old one; raises PR012 when that cannot be.';

-- How the rows of a statement become chunks: new and old stand side by side in "rows", what passes is numbered, and cut where some 7500 bytes are
-- full, so that a chunk fits a page. Updates pair by place: both transition tables have the rows in the order of the changes. The "offset 0"
-- keeps the planner from calling the user's function twice.
create function postrider.watch_query(
  operation text, condition text, columns text, body text, kept_new text, kept_old text, tenant_column text
) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format(
    E'select c.chunk, %s as records, %s as old_records, %s as tenants '
    'from (select s.*, sum(coalesce(octet_length(s.record::text), 0) + coalesce(octet_length(s.old_record::text), 0)) over (rows unbounded preceding) / 7500 as chunk '
    'from (select row_number() over () as place, f.* from (select %s as record, %s as old_record, %s as tenant from %s where (%s'
    '\n) %s offset 0) f%s) s) c group by c.chunk',
    case when body is not null or operation <> 'delete' then 'json_agg(c.record order by c.place)' else 'null::json' end,
    case when body is null and operation <> 'insert' then 'json_agg(c.old_record order by c.place)' else 'null::json' end,
    case when tenant_column is null then 'null::json' else 'json_agg(c.tenant order by c.place)' end,
    case when body is not null then format(body, case operation when 'delete' then 'old.*' else 'new.*' end, operation,
                                          case operation when 'delete' then 'null' else 'new.*' end, case operation when 'insert' then 'null' else 'old.*' end)
         when operation = 'delete' then 'null::json' else kept_new end,
    case when body is not null or operation = 'insert' then 'null::json' else kept_old end,
    case when tenant_column is null then 'null::text'
         else format('%s.%I::text', case operation when 'delete' then 'old' else 'new' end, tenant_column) end,
    case operation
      when 'insert' then 'postrider_new new left join postrider_new old on false'
      when 'delete' then 'postrider_old old left join postrider_old new on false'
      else '(select row_number() over () as "postrider:place", r.* from postrider_new r) n '
           'join (select row_number() over () as "postrider:place", r.* from postrider_old r) o on o."postrider:place" = n."postrider:place" '
           'cross join lateral (select postrider:all_new) new cross join lateral (select postrider:all_old) old' end,
    coalesce(condition, 'true'),
    case when operation = 'update' and columns is not null then 'and ' || columns else '' end,
    case when body is not null then ' where f.record is not null' else '' end)
$$;
comment on function postrider.watch_query(text, text, text, text, text, text, text) is
  'The query of a watch''s trigger for one operation: from the rows of a statement to chunks of JSON.';

create function postrider.watch_source(settings json, keep text[], queries text[]) returns text
language sql immutable set search_path = pg_catalog, pg_temp as $$
  select format($source$-- %s
-- Made by postrider.watch; it goes with postrider.unwatch.
declare
  few constant bigint := %s;
  rows bigint;
  rows_before bigint;
  query text := case tg_op when 'INSERT' then %L when 'UPDATE' then %L else %L end;
  records json[];
  old_records json[];
  tenants json[];
  error_state text;
  error_message text;
begin
  begin
    if tg_op <> 'DELETE' then
      select count(*) into rows from postrider_new;
    end if;
    if tg_op <> 'INSERT' then
      select count(*) into rows_before from postrider_old;
    end if;
    if coalesce(rows, rows_before) = 0 then
      return null;
    elsif rows <> rows_before then
      raise exception 'rows before and after the update cannot be paired: a trigger dropped some on the way to another partition';
    elsif not has_function_privilege('postrider.take_changes(text,text,text,text,text,text,text,boolean,boolean,boolean,json[],json[],json[])', 'execute') then
      raise exception 'role %% may not call postrider.take_changes', current_user using errcode = '42501';
    end if;
    rows := coalesce(rows, rows_before);
    if position('postrider:' in query) > 0 then
      select replace(replace(replace(replace(replace(replace(query,
               'postrider:all_new', coalesce(string_agg('n.' || a.name, ', '), '')),
               'postrider:all_old', coalesce(string_agg('o.' || a.name, ', '), '')),
               'postrider:kept_new', coalesce(string_agg('new.' || a.name, ', ') filter (where a.kept), '')),
               'postrider:kept_old', coalesce(string_agg('old.' || a.name, ', ') filter (where a.kept), '')),
               'postrider:compared_new', coalesce(string_agg('new.' || a.name, ', ') filter (where a.compared), '')),
               'postrider:compared_old', coalesce(string_agg('old.' || a.name, ', ') filter (where a.compared), ''))
        into query
        from (select quote_ident(c.attname) as name, c.attname = any (%L::text[]) as kept, c.attname = any (%L::text[]) as compared
                from pg_attribute c where c.attrelid = tg_relid and c.attnum > 0 and not c.attisdropped order by c.attnum) a;
    end if;
    if rows <= 1000 then
      begin
        execute 'select array_agg(q.records order by q.chunk), array_agg(q.old_records order by q.chunk), array_agg(q.tenants order by q.chunk) from (' || query || ') q'
           into records, old_records, tenants;
      exception when program_limit_exceeded or out_of_memory then
        -- Too much for one value: chunk by chunk, then.
        rows := 1001;
      end;
    end if;
    if rows > 1000 then
      execute 'insert into postrider.changes (watch, schema_name, table_name, operation, event_type, endpoint, tenant, shaped, records, old_records, tenants) '
              'select $1, $2, $3, $4, $5, $6, $7, $8, q.records, q.old_records, q.tenants from (' || query || ') q order by q.chunk'
        using %L::text, tg_table_schema::text, tg_table_name::text, lower(tg_op), %s, %L::text, %L::text, %L::boolean;
    end if;
  exception when others or assert_failure then
    if %L::boolean then
      raise;
    end if;
    get stacked diagnostics error_state = returned_sqlstate, error_message = message_text;
  end;
  if error_state is null and records is not null then
    if %L::boolean or length(current_setting('postrider.watch_blocks', true)) >= 24 then
      perform postrider.take_changes(%L, tg_table_schema, tg_table_name, lower(tg_op), %s, %L, %L, %L, %L, rows <= few, records, old_records, tenants);
    else
      begin
        perform postrider.take_changes(%L, tg_table_schema, tg_table_name, lower(tg_op), %s, %L, %L, %L, %L, rows <= few, records, old_records, tenants);
      exception when others or assert_failure then
        get stacked diagnostics error_state = returned_sqlstate, error_message = message_text;
      end;
    end if;
  end if;
  if error_state is not null then
    begin
      perform postrider.note_watch_error(%L, error_state, error_message);
    exception when others or assert_failure then
      raise warning 'postrider: changes of %% became no events: %%', tg_relid::regclass, error_message;
    end;
  end if;
  return null;
end
$source$,
    s.settings, case when s.endpoint is null then 10 else 100 end, s.queries[1], s.queries[2], s.queries[3],
    s.keep, s.columns, s.watch, s.event_type, s.endpoint, s.tenant, s.shaped, s.strict,
    s.strict, s.watch, s.event_type, s.endpoint, s.tenant, s.shaped, s.strict, s.watch, s.event_type, s.endpoint, s.tenant, s.shaped, s.strict,
    s.watch)
    from (select watch_source.settings, watch_source.queries, watch_source.keep, settings ->> 'name' as watch, settings ->> 'endpoint' as endpoint,
                 settings ->> 'tenant' as tenant, settings ->> 'body' is not null as shaped, settings ->> 'strict' as strict,
                 array(select json_array_elements_text(settings -> 'columns')) as columns,
                 case when settings ->> 'event_type' is not null then format('%L::text', settings ->> 'event_type')
                      else format('%L || lower(tg_op)', settings ->> 'prefix') end as event_type) s
$$;
comment on function postrider.watch_source(json, text[], text[]) is 'The source of a watch''s trigger function.';

create function postrider.try_watch_query(target regclass, query text, argument text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  columns text[];
  place text;
  source text;
begin
  select array(select quote_ident(a.attname) from pg_attribute a where a.attrelid = target and a.attnum > 0 and not a.attisdropped order by a.attnum),
         quote_ident(n.nspname), format('%I.%I', n.nspname, c.relname)
    into columns, place, source
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = target;
  perform set_config('search_path', 'pg_catalog, ' || place || ', pg_temp', true);
  execute format(
    'with postrider_new as (select * from %1$s limit 0), postrider_old as (select * from %1$s limit 0) select count(*) from (%2$s) q', source,
    replace(replace(regexp_replace(query, 'postrider:(kept|compared)_(new|old)', '', 'g'),
                    'postrider:all_new', coalesce('n.' || array_to_string(columns, ', n.'), '')),
            'postrider:all_old', coalesce('o.' || array_to_string(columns, ', o.'), '')));
exception when others then
  raise exception '% does not work on rows of %: %', argument, target, sqlerrm using errcode = 'PR012',
    hint = 'A condition is SQL over new and old, the rows after and before. Names are looked up in pg_catalog and the table''s schema: write the schema before others.';
end
$$;
comment on function postrider.try_watch_query(regclass, text, text) is 'Tries a watch''s query on no rows; raises PR012 with what is wrong.';

create function postrider.watch(
  target regclass, operations text[] default '{insert,update,delete}', event_type text default null, endpoint text default null,
  condition text default null, columns text[] default null, without text[] default null, body regproc default null,
  tenant text default null, tenant_column text default null, strict boolean default false, name text default null
) returns text
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  t record;
  settings json;
  queries text[];
  keep text[];
  made text;
  operation text;
begin
  perform postrider.check_watched_table(target);
  select n.nspname, c.relname, c.relowner into t from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = target;
  name := coalesce(name, t.nspname || '.' || t.relname);
  operations := array(select o from unnest(array['insert', 'update', 'delete']) as o where o = any (watch.operations))
             || array(select distinct coalesce(o, 'NULL') from unnest(watch.operations) as o where o is null or o not in ('insert', 'update', 'delete'));
  if cardinality(operations) = 0 or operations && array['NULL'] or not operations <@ array['insert', 'update', 'delete'] then
    raise exception 'operations cannot be %', coalesce(watch.operations::text, 'NULL') using errcode = 'PR012',
      hint = 'One or more of insert, update and delete. TRUNCATE makes no events.';
  elsif name !~ '^[^[:cntrl:]]{1,200}$' or event_type = '' then
    raise exception 'name and event_type have 1 to 200 printable characters' using errcode = 'PR012', hint = 'Leave them out for names after the table.';
  elsif columns is not null and (cardinality(columns) = 0 or not 'update' = any (operations)) then
    raise exception 'columns are for updates: only if one of them changed' using errcode = 'PR012', hint = 'Add update to operations, or leave columns out.';
  elsif body is not null and without is not null then
    raise exception 'body and without do not go together' using errcode = 'PR012', hint = 'Leave the columns out in the function that makes the body.';
  elsif num_nonnulls(tenant, tenant_column, endpoint) > 1 then
    raise exception 'only one of tenant, tenant_column and endpoint can be given' using errcode = 'PR012',
      hint = 'The tenant chooses among the endpoints that subscribed; with endpoint there is nothing to choose.';
  elsif strict is null then
    raise exception 'strict is true or false' using errcode = 'PR012';
  end if;
  perform postrider.check_watched_columns(target, columns, 'columns');
  perform postrider.check_watched_columns(target, without, 'without');
  perform postrider.check_watched_columns(target, array_remove(array[tenant_column], null), 'tenant_column');
  if endpoint is not null then
    perform postrider.check_watched_endpoint(endpoint);
  end if;
  perform pg_advisory_xact_lock(hashtextextended('postrider.watch ' || name, 0));
  made := postrider.watch_function(name);
  if exists (select from pg_proc p join pg_trigger g on g.tgfoid = p.oid where p.proname = made) then
    raise exception 'there is a watch % already', name using errcode = 'PR013',
      hint = format('Choose another name, or call postrider.unwatch(%L) first.', name);
  elsif exists (select from pg_proc p where p.proname = made and postrider.watch_settings(p.prosrc) is not null) then
    -- Its table was dropped.
    perform postrider.unwatch(name);
  end if;

  settings := json_build_object(
    'name', name, 'prefix', t.relname || '.', 'event_type', event_type, 'endpoint', endpoint, 'condition', condition, 'columns', coalesce(columns, '{}'),
    'without', coalesce(without, '{}'), 'body', case when body is not null then body::oid::regprocedure::text end, 'tenant', tenant,
    'tenant_column', tenant_column, 'strict', strict);
  -- Of the columns that there are now, so that one renamed later is left out still.
  keep := array(select a.attname from pg_attribute a
                 where without is not null and a.attrelid = target and a.attnum > 0 and not a.attisdropped and a.attname <> all (without)
                 order by a.attnum);
  queries := array(
    select case when o = any (operations) then postrider.watch_query(o, condition,
             case when columns is not null then 'record_image_ne(row(postrider:compared_old), row(postrider:compared_new))' end,
             case when body is not null then postrider.watched_body_call(target, body) end,
             case when without is null then 'row_to_json(new.*)' else '(select row_to_json(k) from (select postrider:kept_new) k)' end,
             case when without is null then 'row_to_json(old.*)' else '(select row_to_json(k) from (select postrider:kept_old) k)' end,
             tenant_column) end
      from unnest(array['insert', 'update', 'delete']) with ordinality as o (o, place) order by o.place);
  for operation in select q from unnest(queries) as q where q is not null loop
    perform postrider.try_watch_query(
      target, operation, case when condition is not null then 'the condition' when body is not null then 'the body' else 'the watch' end);
  end loop;

  execute format(
    'create function %1$I.%2$I() returns trigger language plpgsql security definer set search_path = pg_catalog, %1$I, pg_temp '
    'set timezone = ''UTC'' set datestyle = ''ISO'' set intervalstyle = ''postgres'' set bytea_output = ''hex'' set extra_float_digits = 1 set jit = off as %3$L',
    t.nspname, made, postrider.watch_source(settings, keep, queries));
  -- Whoever could use it for a trigger of their own would publish in the owner's name.
  execute format('revoke all on function %I.%I() from public', t.nspname, made);
  execute format('comment on function %I.%I() is %L', t.nspname, made, format('Trigger: the watch %s of Postrider. See postrider.watches.', name));
  if current_user <> t.relowner::regrole::name then
    execute format('alter function %I.%I() owner to %s', t.nspname, made, t.relowner::regrole);
  end if;
  foreach operation in array operations loop
    execute format('create trigger %I after %s on %I.%I referencing %s for each statement execute function %I.%I()',
                   made || '_' || operation, operation, t.nspname, t.relname,
                   case operation when 'insert' then 'new table as postrider_new' when 'delete' then 'old table as postrider_old'
                                  else 'old table as postrider_old new table as postrider_new' end,
                   t.nspname, made);
  end loop;
  perform postrider.forget_watch_errors(name);
  return name;
end
$$;
comment on function postrider.watch(regclass, text[], text, text, text, text[], text[], regproc, text, text, boolean, text) is
  'From now on changes of the table become events, in the writer''s transaction; returns the watch''s name. For the table''s owner. endpoint NULL: to all that subscribed. condition: SQL over new and old. columns: updates count only if one of these changed. without: left out of the body. body: function that makes it. strict: an error fails the writer''s statement.';

create function postrider.unwatch(name text) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  made regprocedure;
  hung record;
begin
  select p.oid into made from pg_proc p
   where p.proname = postrider.watch_function(unwatch.name) and postrider.watch_settings(p.prosrc) ->> 'name' = unwatch.name;
  if not found then
    raise exception 'there is no watch %', unwatch.name using errcode = 'PR014', hint = 'List them: select watch, table_name from postrider.watches.';
  end if;
  for hung in select g.tgname, g.tgrelid from pg_trigger g where g.tgfoid = made loop
    execute (select format('drop trigger %I on %I.%I', hung.tgname, n.nspname, c.relname)
               from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = hung.tgrelid);
  end loop;
  execute (select format('drop function %I.%I()', n.nspname, p.proname)
             from pg_proc p join pg_namespace n on n.oid = p.pronamespace where p.oid = made);
  perform postrider.forget_watch_errors(unwatch.name);
end
$$;
comment on function postrider.unwatch(text) is 'Ends a watch, for the table''s owner; what it has seen is published still. Raises PR014 when there is none of this name.';
