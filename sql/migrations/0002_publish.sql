-- Publishing: an event's bytes are stored once, and every endpoint that asked for it gets a delivery. The essay is in sql/README.md.

-- ------------------------------------------------------------------ who asked for what

create function postrider.are_patterns(items text[]) returns boolean
language sql immutable strict set search_path = pg_catalog, pg_temp as $$
  select coalesce(bool_and(length(item) between 1 and 200 and (item = '*' or item ~ '^[^*]+([.][*])?$')), true)
    from unnest(items) as item
$$;
comment on function postrider.are_patterns(text[]) is
  'Whether each item is an event type (order.paid), a prefix of them (order.*) or all of them (*), and at most 200 characters long.';

-- Until now nothing read them. What could never match is taken out, so that no edit of such an endpoint fails later.
update postrider.endpoints e
   set event_types = array(select t.item from unnest(e.event_types) with ordinality as t (item, place)
                            where postrider.are_patterns(array[t.item]) order by t.place)
 where not postrider.are_patterns(e.event_types);

alter table postrider.endpoints
  add constraint endpoints_event_types_are_types_or_end_in_dot_star check (postrider.are_patterns(event_types)),
  add constraint endpoints_tenant_is_at_most_200_characters check (length(tenant) <= 200);
comment on column postrider.endpoints.event_types is
  'Which published events it gets: exact types, prefixes (order.* is order.paid and order.paid.late, not order) or *. NULL: all; {}: none.';
comment on column postrider.endpoints.filter is
  'Which of them: a jsonpath over the payload whose first result is there and neither false nor null. What cannot be evaluated is no match. NULL: all.';
comment on column postrider.endpoints.tenant is
  'Whose endpoint it is: it gets published events of this tenant only. NULL: events without a tenant only.';

create table postrider.subscriptions (
  tenant   text collate "C" not null default '',
  pattern  text collate "C" not null,
  endpoint text collate "C" not null references postrider.endpoints (name) on update cascade on delete cascade,
  constraint subscriptions_are_one_per_pattern_and_endpoint primary key (pattern, tenant, endpoint)
);
create index subscriptions_by_endpoint on postrider.subscriptions (endpoint);
comment on table postrider.subscriptions is
  'endpoints.event_types, one row per pattern, for matching by index. Kept by triggers: edit endpoints, not this.';
comment on column postrider.subscriptions.tenant is 'endpoints.tenant; empty: none.';
comment on column postrider.subscriptions.pattern is 'One of endpoints.event_types; * when that is NULL.';
comment on column postrider.subscriptions.endpoint is 'postrider.endpoints.name.';

insert into postrider.subscriptions (tenant, pattern, endpoint)
select distinct coalesce(e.tenant, ''), t.pattern, e.name
  from postrider.endpoints e cross join unnest(coalesce(e.event_types, '{*}')) as t (pattern);

create function postrider.subscribe_endpoint() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  if tg_op = 'UPDATE' then
    delete from postrider.subscriptions s where s.endpoint in (old.name, new.name);
  end if;
  insert into postrider.subscriptions (tenant, pattern, endpoint)
  select distinct coalesce(new.tenant, ''), t.pattern, new.name from unnest(coalesce(new.event_types, '{*}')) as t (pattern);
  return null;
end
$$;
comment on function postrider.subscribe_endpoint() is 'Trigger: writes the subscriptions that follow from endpoints.event_types and tenant.';
create trigger endpoints_subscribe_new after insert on postrider.endpoints
  for each row execute function postrider.subscribe_endpoint();
create trigger endpoints_subscribe_again after update on postrider.endpoints for each row
  when (old.event_types is distinct from new.event_types or old.tenant is distinct from new.tenant)
  execute function postrider.subscribe_endpoint();

create function postrider.event_patterns(event_type text) returns text[]
language sql immutable strict set search_path = pg_catalog, pg_temp as $$
  -- Patterns are at most 200 characters long, so dots further on ask for nothing, however many there are.
  select array['*'] || array(select left(event_patterns.event_type, n) || '*'
                               from generate_series(1, least(length(event_patterns.event_type), 198)) as n
                              where substr(left(event_patterns.event_type, 200), n, 1) = '.')
      || case when length(event_patterns.event_type) <= 200 and event_patterns.event_type <> '*' then array[event_patterns.event_type] else '{}' end
$$;
comment on function postrider.event_patterns(text) is 'The patterns that match an event type: for a.b.c these are *, a.*, a.b.* and a.b.c.';

create function postrider.has_subscriber(event_type text) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
  select exists (select from postrider.subscriptions s where s.pattern = any (postrider.event_patterns(has_subscriber.event_type)))
$$;
comment on function postrider.has_subscriber(text) is 'Whether any endpoint, of whatever tenant and filter, could get events of this type.';

-- ------------------------------------------------------------------ from an event to its deliveries

alter table postrider.events add column deliveries integer;
comment on column postrider.events.deliveries is
  'How many publish() made of it; what it returns for the same event_id again. NULL: not from publish().';
-- Only what was published: an event that somebody inserted may have any event_id.
create unique index events_are_published_once_per_tenant on postrider.events ((coalesce(tenant, '')), event_id) where deliveries is not null;
-- Without it each event that is deleted would cost a walk through all deliveries.
create index deliveries_by_event on postrider.deliveries (event) where event is not null;

create function postrider.passing(
  ids bigint[], kinds bigint[], asking_kinds bigint[], asking_endpoints text[], filters jsonpath[],
  out events bigint[], out endpoints text[]
)
language plpgsql stable
-- A filter decides the same in every session; it joins by hash, since the sizes of arrays are not known when it is planned.
set search_path = pg_catalog, pg_temp set timezone = 'UTC' set enable_nestloop = off set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  event record;
  asking record;
  body jsonb;
begin
  begin
    with asked as (
      select a.id, a.kind from unnest(ids, kinds) as a (id, kind)
    ), asking as (
      select a.kind, a.endpoint, a.filter from unnest(asking_kinds, asking_endpoints, filters) as a (kind, endpoint, filter)
       where a.filter is not null
    ), bodies as materialized (
      select e.id, a.kind, e.payload::jsonb as body
        from postrider.events e join asked a on a.id = e.id
       where e.id = any (ids) and a.kind in (select s.kind from asking s)
    )
    select array_agg(b.id), array_agg(s.endpoint) into events, endpoints
      from bodies b join asking s on s.kind = b.kind
     where jsonb_path_query_first_tz(b.body, s.filter, silent => true) not in ('false', 'null');
    return;
  exception
    -- No verdict on the filter: the caller may try again.
    when insufficient_resources then raise;
    when others then null;
  end;
  -- Some body is JSON that jsonb cannot hold, or some filter is more than wrong: no match for these alone.
  events := '{}';
  endpoints := '{}';
  for event in
    select e.id, a.kind, e.payload from postrider.events e join unnest(ids, kinds) as a (id, kind) on a.id = e.id where e.id = any (ids)
  loop
    begin
      body := event.payload::jsonb;
    exception
      when insufficient_resources then raise;
      when others then continue;
    end;
    for asking in
      select a.endpoint, a.filter from unnest(asking_kinds, asking_endpoints, filters) as a (kind, endpoint, filter)
       where a.kind = event.kind and a.filter is not null
    loop
      begin
        if jsonb_path_query_first_tz(body, asking.filter, silent => true) not in ('false', 'null') then
          events := events || event.id;
          endpoints := endpoints || asking.endpoint;
        end if;
      exception
        when insufficient_resources then raise;
        when others then null;
      end;
    end loop;
  end loop;
end
$$;
comment on function postrider.passing(bigint[], bigint[], bigint[], text[], jsonpath[]) is
  'For fan_out: which events pass the filters of which endpoints that ask for their kind. An error while evaluating is no match.';

create function postrider.fan_out(events bigint[], deliver_at timestamptz default null) returns bigint
language plpgsql security definer
-- The sizes of arrays are not known when it is planned, and there may be no statistics: probe indexes, join by hash. What such
-- settings cost in the plan would have it compiled, which takes half a second.
set search_path = pg_catalog, pg_temp set enable_nestloop = off set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  ids bigint[];
  kinds bigint[];
  asking_kinds bigint[];
  asking_endpoints text[];
  filters jsonpath[];
  passed record;
  made bigint;
begin
  -- Events of one tenant and type are of one kind, called by the first of them: who asks is looked up once for all. The offset keeps
  -- the planner from anything but a probe for each pattern. An endpoint that is being deleted is waited for and, then, left out; one
  -- that is not cannot be deleted before our deliveries stand.
  with asked as materialized (
    select e.id, coalesce(e.tenant, '') as tenant, e.event_type,
           min(e.id) over (partition by coalesce(e.tenant, ''), e.event_type) as kind
      from postrider.events e where e.id = any (fan_out.events)
  ), found as materialized (
    select distinct a.kind, s.endpoint
      from asked a
     cross join lateral unnest(postrider.event_patterns(a.event_type)) as p (pattern)
     cross join lateral (
       select s.endpoint from postrider.subscriptions s where s.pattern = p.pattern and s.tenant = a.tenant offset 0
     ) s
     where a.id = a.kind
  ), locked as materialized (
    select e.name, e.filter from postrider.endpoints e
     where e.name = any (array(select f.endpoint from found f)) order by e.name for key share
  )
  select (select array_agg(a.id order by a.id) from asked a), (select array_agg(a.kind order by a.id) from asked a),
         array_agg(f.kind), array_agg(l.name), array_agg(l.filter)
    into ids, kinds, asking_kinds, asking_endpoints, filters
    from found f join locked l on l.name = f.endpoint;
  if asking_kinds is null then
    return 0;
  end if;
  if num_nonnulls(variadic filters) > 0 then
    select p.events, p.endpoints into passed from postrider.passing(ids, kinds, asking_kinds, asking_endpoints, filters) p;
  else
    select null::bigint[] as events, null::text[] as endpoints into passed;
  end if;
  insert into postrider.deliveries (endpoint, event_id, event_type, event, next_retry)
  select s.endpoint, e.event_id, e.event_type, e.id, coalesce(fan_out.deliver_at, now())
    from postrider.events e
    join unnest(ids, kinds) as a (id, kind) on a.id = e.id
    join unnest(asking_kinds, asking_endpoints, filters) as s (kind, endpoint, filter) on s.kind = a.kind
    left join unnest(passed.events, passed.endpoints) as p (event, endpoint) on p.event = e.id and p.endpoint = s.endpoint
   where e.id = any (ids) and (s.filter is null or p.event is not null)
   order by e.id, s.endpoint
  on conflict on constraint deliveries_event_id_is_unique_per_endpoint do nothing;
  get diagnostics made = row_count;
  return made;
end
$$;
comment on function postrider.fan_out(bigint[], timestamptz) is
  'Makes the deliveries of rows of postrider.events to all endpoints that ask for them; returns how many. Those that an endpoint has already are left out. publish() and watches call it.';

create function postrider.publish(
  event_type text, payload json, event_id text default null, tenant text default null, deliver_at timestamptz default null
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  callers constant text := postrider.tenant_of_caller();
  whose constant text := nullif(coalesce(publish.tenant, callers), '');
  event bigint;
  made integer;
begin
  if callers is not null and whose is distinct from callers then
    raise exception 'postrider.tenant is %, this event is of %', quote_literal(callers), coalesce('tenant ' || quote_literal(whose), 'no tenant')
      using errcode = 'PR011', hint = 'Leave the argument tenant out, or set postrider.tenant to it.';
  elsif publish.event_type is null or publish.payload is null then
    raise exception 'event_type and payload must not be NULL' using errcode = '22004',
      hint = 'For example: select postrider.publish(''order.paid'', ''{"id":17}''). The JSON value null is ''null''.';
  elsif length(whose) > 200 then
    raise exception 'a tenant has at most 200 characters, not %', length(whose) using errcode = '22023',
      hint = 'No endpoint can have such a tenant.';
  elsif octet_length(publish.event_id) not between 1 and 500 then
    raise exception 'an event_id has 1 to 500 bytes, not %', octet_length(publish.event_id) using errcode = '22023',
      hint = 'Leave it out to have one generated.';
  end if;
  loop
    -- While another transaction publishes the same event_id, this waits for its end.
    insert into postrider.events as e (event_id, event_type, payload, tenant, deliveries)
    values (coalesce(publish.event_id, 'evt_' || replace(gen_random_uuid()::text, '-', '')), publish.event_type, publish.payload, whose, 0)
    on conflict ((coalesce(e.tenant, '')), (e.event_id)) where e.deliveries is not null do nothing
    returning e.id into event;
    exit when found;
    select e.deliveries into made from postrider.events e
     where coalesce(e.tenant, '') = coalesce(whose, '') and e.event_id = publish.event_id and e.deliveries is not null;
    if found then
      return made;
    end if;
    -- It was deleted meanwhile.
  end loop;
  made := postrider.fan_out(array[event], publish.deliver_at);
  if made > 0 then
    update postrider.events e set deliveries = made where e.id = event;
  end if;
  return made;
end
$$;
comment on function postrider.publish(text, json, text, text, timestamptz) is
  'Queues an event, in your transaction, for every endpoint whose event_types, filter and tenant match; returns how many. The same event_id (per tenant) again changes nothing and returns what the first call did. tenant: that in the setting postrider.tenant, if any.';
