-- Roles: who may do what, and tenants. The matrix is a view, so that grant, revoke, the tests and people read the same rows.

-- ------------------------------------------------------------------ the matrix

create view postrider.role_privileges (part, object, verbs) as values
  -- Queues and publishes. It gives the columns that README names and reads what RETURNING and ON CONFLICT need, no contents; not
  -- deliveries.event, by which it could have anybody's published event sent.
  ('producer', 'table postrider.deliveries',
   'insert (endpoint, event_id, event_type, payload, body, content_type, headers, next_retry, max_retries, deadline), '
   'select (id, endpoint, event_id, event_type, status, exhausted_reason, attempt_count, next_retry, created_at, finished_at)'),
  ('producer', 'function postrider.send', 'execute'),
  ('producer', 'function postrider.publish', 'execute'),
  ('producer', 'procedure postrider.deliver_now', 'execute'),
  ('producer', 'function postrider.deliver_now_refuse_transaction', 'execute'),
  ('producer', 'function postrider.deliver_now_prepare', 'execute'),
  ('producer', 'function postrider.deliver_now_look', 'execute'),
  ('producer', 'function postrider.deliver_now_end', 'execute'),
  ('producer', 'function postrider.deliver_now_outcome', 'execute'),

  -- Owners of tables watch them. What a watch hands over may go to any endpoint and tenant, so not for whoever is bound to one.
  ('unbound producer', 'table postrider.changes',
   'insert (watch, schema_name, table_name, operation, event_type, endpoint, tenant, shaped, records, old_records, tenants)'),
  ('unbound producer', 'table postrider.watches', 'select'),
  ('unbound producer', 'function postrider.watch', 'execute'),
  ('unbound producer', 'function postrider.unwatch', 'execute'),
  ('unbound producer', 'function postrider.watch_settings', 'execute'),
  ('unbound producer', 'function postrider.watch_function', 'execute'),
  ('unbound producer', 'function postrider.watch_query', 'execute'),
  ('unbound producer', 'function postrider.watch_source', 'execute'),
  ('unbound producer', 'function postrider.watched_body_call', 'execute'),
  ('unbound producer', 'function postrider.try_watch_query', 'execute'),
  ('unbound producer', 'function postrider.check_watched_table', 'execute'),
  ('unbound producer', 'function postrider.check_watched_columns', 'execute'),
  ('unbound producer', 'function postrider.check_watched_endpoint', 'execute'),
  ('unbound producer', 'function postrider.forget_watch_errors', 'execute'),
  ('unbound producer', 'function postrider.take_changes', 'execute'),
  ('unbound producer', 'function postrider.note_watch_error', 'execute'),

  -- Delivers. It reads all that is sent and signs with the secrets; it changes neither contents nor addresses.
  ('worker', 'table postrider.schema_migrations', 'select'),
  ('worker', 'table postrider.retry_policies', 'select'),
  ('worker', 'table postrider.endpoints', 'select, update (enabled, disabled_reason)'),
  ('worker', 'table postrider.endpoint_secrets', 'select'),
  ('worker', 'table postrider.endpoint_health', 'select, update'),
  ('worker', 'table postrider.events', 'select'),
  ('worker', 'table postrider.deliveries',
   'select, update (status, exhausted_reason, next_retry, lease_expires_at, leased_by, claim_no, attempt_count, last_status_code, last_error, finished_at)'),
  ('worker', 'table postrider.changes', 'select (id, next_try)'),
  ('worker', 'function postrider.publish_changes', 'execute'),
  ('worker', 'table postrider.attempts', 'select, insert, update'),
  ('worker', 'table postrider.workers', 'select, insert, update, delete'),
  ('worker', 'sequence postrider.revisions', 'usage'),
  ('worker', 'function postrider.lane_in_flight(text, integer, text)', 'execute'),
  ('worker', 'function postrider.lane_in_flight(text, integer, text, boolean, timestamptz, bigint)', 'execute'),
  ('worker', 'function postrider.make_attempt_partitions', 'execute'),
  ('worker', 'function postrider.fold_reports', 'execute'),
  ('worker', 'function postrider.are_patterns', 'execute'),
  ('worker', 'function postrider.prune', 'execute'),

  -- Looks. No secret, no header that was configured, no URL but masked, nothing that was to be sent; what receivers answered, yes.
  ('reader', 'table postrider.schema_migrations', 'select'),
  ('reader', 'table postrider.retry_policies', 'select'),
  ('reader', 'table postrider.endpoints',
   'select (name, enabled, disabled_at, disabled_reason, paused, paused_reason, retry_policy, max_retries, timeout, max_in_flight, '
   'rate_limit, ordered, event_types, filter, tenant, method, signature_scheme, signature_header, revision, created_at, updated_at)'),
  ('reader', 'table postrider.endpoint_health', 'select'),
  ('reader', 'table postrider.subscriptions', 'select'),
  ('reader', 'table postrider.events', 'select (id, event_id, event_type, tenant, created_at, deliveries)'),
  ('reader', 'table postrider.deliveries',
   'select (id, endpoint, event_id, event_type, event, content_type, status, exhausted_reason, max_retries, attempt_count, budget_from, '
   'next_retry, deadline, claim_no, lease_expires_at, leased_by, last_status_code, last_error, created_at, finished_at, payload_purged_at)'),
  ('reader', 'table postrider.attempts', 'select'),
  ('reader', 'table postrider.retention', 'select'),
  ('reader', 'table postrider.reports', 'select'),
  ('reader', 'table postrider.report_changes', 'select'),
  ('reader', 'function postrider.duration_bounds', 'execute'),
  ('reader', 'function postrider.percentile_ms', 'execute'),
  ('reader', 'table postrider.tenant_endpoint_urls', 'select'),
  ('reader', 'table postrider.tenant_delivery_state', 'select'),
  ('reader', 'table postrider.tenant_dead_letters', 'select'),
  ('reader', 'table postrider.tenant_due_now', 'select'),
  ('reader', 'table postrider.tenant_success_rate', 'select'),
  ('reader', 'table postrider.tenant_endpoint_summary', 'select'),

  -- Everything that the command line does; no DDL.
  ('operator', 'table postrider.schema_migrations', 'select'),
  ('operator', 'table postrider.retry_policies', 'select, insert, update, delete'),
  ('operator', 'table postrider.endpoints', 'select, insert, update, delete'),
  ('operator', 'table postrider.endpoint_secrets', 'select, insert, update, delete'),
  ('operator', 'table postrider.endpoint_health', 'select, update'),
  ('operator', 'table postrider.subscriptions', 'select'),
  ('operator', 'table postrider.events', 'select'),
  ('operator', 'table postrider.deliveries',
   'select, insert (endpoint, event_id, event_type, payload, body, content_type, event, headers, next_retry, max_retries, deadline), '
   'update (status, exhausted_reason, next_retry, deadline, lease_expires_at, leased_by, claim_no, attempt_count, budget_from, finished_at)'),
  ('operator', 'table postrider.changes', 'select, delete'),
  ('operator', 'table postrider.watch_errors', 'select, delete'),
  ('operator', 'table postrider.watches', 'select'),
  ('operator', 'function postrider.watch_settings', 'execute'),
  ('operator', 'function postrider.publish_changes', 'execute'),
  ('operator', 'table postrider.attempts', 'select, insert'),
  ('operator', 'table postrider.workers', 'select'),
  ('operator', 'table postrider.retention', 'select, update (age)'),
  ('operator', 'table postrider.reports', 'select, delete'),
  ('operator', 'table postrider.report_changes', 'select'),
  ('operator', 'table postrider.report_sums', 'select'),
  ('operator', 'table postrider.report_hours', 'select'),
  ('operator', 'table postrider.role_privileges', 'select'),
  ('operator', 'table postrider.tenant_rules', 'select'),
  ('operator', 'table postrider.delivery_state', 'select'),
  ('operator', 'table postrider.dead_letters', 'select'),
  ('operator', 'table postrider.due_now', 'select'),
  ('operator', 'table postrider.success_rate', 'select'),
  ('operator', 'table postrider.endpoint_summary', 'select'),
  ('operator', 'table postrider.endpoint_urls', 'select'),
  ('operator', 'table postrider.tenant_endpoint_urls', 'select'),
  ('operator', 'table postrider.tenant_delivery_state', 'select'),
  ('operator', 'table postrider.tenant_dead_letters', 'select'),
  ('operator', 'table postrider.tenant_due_now', 'select'),
  ('operator', 'table postrider.tenant_success_rate', 'select'),
  ('operator', 'table postrider.tenant_endpoint_summary', 'select'),
  ('operator', 'sequence postrider.revisions', 'usage'),
  ('operator', 'function postrider.send', 'execute'),
  ('operator', 'function postrider.publish', 'execute'),
  ('operator', 'function postrider.has_subscriber', 'execute'),
  ('operator', 'procedure postrider.deliver_now', 'execute'),
  ('operator', 'function postrider.deliver_now_refuse_transaction', 'execute'),
  ('operator', 'function postrider.deliver_now_prepare', 'execute'),
  ('operator', 'function postrider.deliver_now_look', 'execute'),
  ('operator', 'function postrider.deliver_now_end', 'execute'),
  ('operator', 'function postrider.deliver_now_outcome', 'execute'),
  ('operator', 'function postrider.replay', 'execute'),
  ('operator', 'function postrider.replay_matching', 'execute'),
  ('operator', 'function postrider.cancel', 'execute'),
  ('operator', 'function postrider.cancel_matching', 'execute'),
  ('operator', 'function postrider.skip', 'execute'),
  ('operator', 'function postrider.pause', 'execute'),
  ('operator', 'function postrider.resume', 'execute'),
  ('operator', 'function postrider.disable', 'execute'),
  ('operator', 'function postrider.enable', 'execute'),
  ('operator', 'function postrider.edit_endpoint', 'execute'),
  ('operator', 'function postrider.rotate_secret', 'execute'),
  ('operator', 'function postrider.new_secret', 'execute'),
  ('operator', 'function postrider.ring', 'execute'),
  ('operator', 'function postrider.fold_reports', 'execute'),
  ('operator', 'function postrider.prune', 'execute'),
  ('operator', 'function postrider.prunable', 'execute'),
  ('operator', 'function postrider.duration_bounds', 'execute'),
  ('operator', 'function postrider.percentile_ms', 'execute'),
  ('operator', 'function postrider.lists_statuses', 'execute'),
  ('operator', 'function postrider.are_waits', 'execute'),
  ('operator', 'function postrider.are_patterns', 'execute'),

  -- Views read with their owner's rights, so that no row-level security binds them: for readers who see every tenant.
  ('unbound reader', 'table postrider.workers', 'select'),
  ('unbound reader', 'table postrider.changes',
   'select (id, next_try, at, tries, shaped, watch, schema_name, table_name, operation, event_type, endpoint, tenant, error)'),
  ('unbound reader', 'table postrider.watch_errors', 'select'),
  ('unbound reader', 'table postrider.watches', 'select'),
  ('unbound reader', 'function postrider.watch_settings', 'execute'),
  ('unbound reader', 'table postrider.report_sums', 'select'),
  ('unbound reader', 'table postrider.report_hours', 'select'),
  ('unbound reader', 'table postrider.delivery_state', 'select'),
  ('unbound reader', 'table postrider.dead_letters', 'select'),
  ('unbound reader', 'table postrider.due_now', 'select'),
  ('unbound reader', 'table postrider.success_rate', 'select'),
  ('unbound reader', 'table postrider.endpoint_summary', 'select'),
  ('unbound reader', 'table postrider.endpoint_urls', 'select'),

  -- What the policies of the tenant-bound ask in their name.
  ('bound', 'table postrider.endpoints', 'select (name, tenant)');
comment on view postrider.role_privileges is
  'What postrider.grant_producer, grant_worker, grant_reader and grant_operator grant, one row per part and object. "unbound reader" goes with reader unless it is bound to a tenant, "unbound producer" likewise, "bound" with whoever is.';

-- Later migrations make functions, too; a test holds that none of them is left to PUBLIC.
revoke all on all routines in schema postrider from public;

-- ------------------------------------------------------------------ tenants

create view postrider.tenant_rules (relation, sees, writes) as
with mine (tenant, endpoint) as (values (
  $$tenant = nullif(current_setting('postrider.tenant', true), '')$$,
  $$exists (select from postrider.endpoints e where e.name = endpoint and e.tenant = nullif(current_setting('postrider.tenant', true), ''))$$
))
select r.relation, r.sees, r.writes
  from mine m
 cross join lateral (values
  ('endpoints',        m.tenant,   m.tenant),
  ('endpoint_secrets', m.endpoint, m.endpoint),
  ('endpoint_health',  m.endpoint, m.endpoint),
  ('subscriptions',    m.endpoint, m.endpoint),
  ('events',           m.tenant,   m.tenant),
  -- Whoever may write another's event into a delivery has it sent.
  ('deliveries',       m.endpoint, m.endpoint || ' and event is null'),
  -- A chunk may hold rows of several tenants.
  ('changes',          'false',    'false'),
  ('attempts',         m.endpoint, m.endpoint),
  ('reports',          m.endpoint, m.endpoint),
  ('report_changes',   m.endpoint, m.endpoint)
 ) r (relation, sees, writes);
comment on view postrider.tenant_rules is
  'The rows that a role bound to a tenant sees and writes, per table. postrider.tenant not set, or empty: none.';

create view postrider.endpoint_urls as
select e.name as endpoint,
       -- A password may stand before an @, a token in the query or fragment. What does not look like a URL is not shown.
       coalesce(regexp_replace(
         substring(e.url from '(?i)^https?://(?:[^/?#\\[:space:]]*@)?(?:[^]/?#\\@:[:space:][]+|\[[0-9a-f:.]+\])(?::[0-9]*)?(?:/[^?#\\@[:space:]]*)?(?:[?#].*)?$'),
         '^([^:]+://)(?:[^/?#]*@)?([^?#]*)([?#].*)?$',
         case when e.url ~ '[?#]' then '\1\2?***' else '\1\2' end), '***') as url,
       array(select h.name from jsonb_object_keys(e.headers) as h (name) order by h.name) as header_names
  from postrider.endpoints e;
comment on view postrider.endpoint_urls is 'Where endpoints send, without credentials and query, and the names of the headers that each adds.';

-- One view per view of all tenants: the rows of the tenant in postrider.tenant, whoever asks. They list what theirs lists at this
-- migration. The barrier keeps functions in a WHERE from seeing the rest.
create view postrider.tenant_endpoint_urls with (security_barrier) as
select v.* from postrider.endpoint_urls v
 where v.endpoint in (select e.name from postrider.endpoints e where e.tenant = nullif(current_setting('postrider.tenant', true), ''));
comment on view postrider.tenant_endpoint_urls is 'postrider.endpoint_urls of the tenant in the setting postrider.tenant.';

create view postrider.tenant_delivery_state with (security_barrier) as
select v.* from postrider.delivery_state v
 where v.endpoint in (select e.name from postrider.endpoints e where e.tenant = nullif(current_setting('postrider.tenant', true), ''));
comment on view postrider.tenant_delivery_state is 'postrider.delivery_state of the tenant in the setting postrider.tenant.';

create view postrider.tenant_dead_letters with (security_barrier) as
select v.* from postrider.dead_letters v
 where v.endpoint in (select e.name from postrider.endpoints e where e.tenant = nullif(current_setting('postrider.tenant', true), ''));
comment on view postrider.tenant_dead_letters is 'postrider.dead_letters of the tenant in the setting postrider.tenant.';

create view postrider.tenant_due_now with (security_barrier) as
select v.* from postrider.due_now v
 where v.endpoint in (select e.name from postrider.endpoints e where e.tenant = nullif(current_setting('postrider.tenant', true), ''));
comment on view postrider.tenant_due_now is 'postrider.due_now of the tenant in the setting postrider.tenant.';

create view postrider.tenant_success_rate with (security_barrier) as
select v.* from postrider.success_rate v
 where v.endpoint in (select e.name from postrider.endpoints e where e.tenant = nullif(current_setting('postrider.tenant', true), ''));
comment on view postrider.tenant_success_rate is 'postrider.success_rate of the tenant in the setting postrider.tenant.';

create view postrider.tenant_endpoint_summary with (security_barrier) as
select v.* from postrider.endpoint_summary v
 where v.endpoint in (select e.name from postrider.endpoints e where e.tenant = nullif(current_setting('postrider.tenant', true), ''));
comment on view postrider.tenant_endpoint_summary is 'postrider.endpoint_summary of the tenant in the setting postrider.tenant.';

create function postrider.tenant_of_caller() returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  tenant constant text := nullif(current_setting('postrider.tenant', true), '');
  -- Inside a SECURITY DEFINER function current_user is its owner. Whoever called is the role of the session, or of its SET ROLE.
  caller constant name := case current_setting('role') when 'none' then session_user else current_setting('role')::name end;
begin
  if tenant is null and exists (
    select from pg_policy p cross join unnest(p.polroles) as bound (role)
     where p.polrelid = 'postrider.endpoints'::regclass and p.polname = 'tenant_bound' and pg_has_role(caller, bound.role, 'usage')
  ) and not exists (
    -- These stand above row-level security; to a superuser everybody's membership is granted.
    select from pg_roles r join pg_class c on c.oid = 'postrider.endpoints'::regclass
     where r.rolname = caller and (r.rolsuper or r.rolbypassrls or pg_has_role(r.oid, c.relowner, 'usage'))
  ) then
    raise exception 'role % is bound to a tenant, and no tenant is set', quote_ident(caller) using errcode = '42501',
      hint = 'Say which: set local postrider.tenant = ''...'', or for good: alter role ... set postrider.tenant = ''...''';
  end if;
  return tenant;
end
$$;
comment on function postrider.tenant_of_caller() is
  'For functions that run with their owner''s rights, which row-level security does not bind: the one tenant that their caller may act for; NULL: any. Raises 42501 when the caller is bound and names none.';

create function postrider.bind_to_tenant(role regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '3 s' set client_min_messages = warning as $$
declare
  bound text;
  rule record;
  open_view text;
begin
  if exists (select from pg_roles r join pg_class c on c.oid = 'postrider.endpoints'::regclass
              where r.oid = role and (r.rolsuper or r.rolbypassrls or pg_has_role(r.oid, c.relowner, 'usage'))) then
    raise exception 'role % cannot be bound to a tenant: row-level security does not apply to it', role using errcode = '22023',
      hint = 'Bind a role that is no superuser, has no BYPASSRLS and is no member of the owner of the schema.';
  elsif has_any_column_privilege(role, 'postrider.endpoint_secrets', 'select') then
    raise exception 'role % is a worker or an operator, which serve every tenant', role using errcode = '22023',
      hint = format('Bind another role, or call postrider.revoke(%L) first.', role);
  end if;
  for rule in select t.relation, t.sees, t.writes from postrider.tenant_rules t loop
    execute format('lock table postrider.%I in access exclusive mode', rule.relation);
    select string_agg(distinct r.bound::text, ', ') into bound
      from (select unnest(p.polroles)::regrole from pg_policy p
             where p.polrelid = format('postrider.%I', rule.relation)::regclass and p.polname = 'tenant_bound'
            union all select role) r (bound);
    execute format('drop policy if exists everybody on postrider.%I', rule.relation);
    execute format('drop policy if exists tenant_bound on postrider.%I', rule.relation);
    execute format('create policy everybody on postrider.%I using (true) with check (true)', rule.relation);
    execute format('create policy tenant_bound on postrider.%I as restrictive to %s using (%s) with check (%s)',
                   rule.relation, bound, rule.sees, rule.writes);
    execute format('alter table postrider.%I enable row level security', rule.relation);
  end loop;
  for rule in select p.verbs, p.object from postrider.role_privileges p where p.part like 'unbound %' loop
    execute format('revoke %s on %s from %s', rule.verbs, rule.object, role);
  end loop;
  select p.object into open_view from postrider.role_privileges p
   where p.part like 'unbound %' and p.object like 'table %' and has_table_privilege(role, substr(p.object, length('table ') + 1), 'select') limit 1;
  if open_view is not null then
    raise exception 'role % reads every tenant in % still', role, open_view using errcode = '22023',
      hint = 'Another role that it is a member of, or PUBLIC, may read it: take that away first.';
  end if;
end
$$;
comment on function postrider.bind_to_tenant(regrole) is
  'What grant_producer and grant_reader do for tenant_bound: from now on the role sees and writes rows of the tenant in postrider.tenant only, and none while it is not set. Locks the tables for a moment; turns row-level security on.';

create function postrider.unbind(role regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp set lock_timeout = '3 s' set client_min_messages = warning as $$
declare
  rest text;
  rule record;
begin
  for rule in select t.relation from postrider.tenant_rules t
               where exists (select from pg_policy p
                              where p.polrelid = format('postrider.%I', t.relation)::regclass and p.polname = 'tenant_bound'
                                and role = any (p.polroles)) loop
    execute format('lock table postrider.%I in access exclusive mode', rule.relation);
    select string_agg(r.bound::regrole::text, ', ') into rest
      from pg_policy p cross join unnest(p.polroles) as r (bound)
     where p.polrelid = format('postrider.%I', rule.relation)::regclass and p.polname = 'tenant_bound' and r.bound <> role;
    if rest is not null then
      execute format('alter policy tenant_bound on postrider.%I to %s', rule.relation, rest);
      continue;
    end if;
    execute format('drop policy tenant_bound on postrider.%I', rule.relation);
    execute format('drop policy if exists everybody on postrider.%I', rule.relation);
    -- Policies of your own stay in force.
    if not exists (select from pg_policy p where p.polrelid = format('postrider.%I', rule.relation)::regclass) then
      execute format('alter table postrider.%I disable row level security', rule.relation);
    end if;
  end loop;
end
$$;
comment on function postrider.unbind(regrole) is 'What revoke does for a role that is bound to a tenant. After the last one row-level security is off again.';

-- ------------------------------------------------------------------ what the owner calls

create function postrider.check_may_grant(role regrole) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  owner constant regrole := (select n.nspowner from pg_namespace n where n.nspname = 'postrider');
begin
  if not pg_has_role(current_user, owner, 'usage') then
    raise exception 'role % may not grant or revoke parts of Postrider', quote_ident(current_user) using errcode = '42501',
      hint = format('Call it as %s, the owner of the schema postrider, or as a superuser.', owner);
  elsif role is null then
    raise exception 'which role?' using errcode = '22004', hint = 'Give its name, for example ''app'' or ''"Shop App"''.';
  end if;
end
$$;
comment on function postrider.check_may_grant(regrole) is 'What the functions that grant and revoke ask first.';

create function postrider.grant_part(role regrole, part text, tenant_bound boolean) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  bound boolean;
  privilege record;
begin
  perform postrider.check_may_grant(role);
  bound := exists (select from pg_policy p where p.polrelid = 'postrider.endpoints'::regclass and p.polname = 'tenant_bound' and role = any (p.polroles));
  if bound and grant_part.part in ('worker', 'operator') then
    raise exception 'role % is bound to a tenant, a % serves every tenant', role, grant_part.part using errcode = '22023',
      hint = format('Use another role, or call postrider.revoke(%L) first.', role);
  end if;
  execute format('grant usage on schema postrider to %s', role);
  -- Once bound, always bound: only revoke ends it.
  bound := bound or coalesce(tenant_bound, true);
  for privilege in
    select p.verbs, p.object from postrider.role_privileges p
     where p.part = grant_part.part or p.part = case when bound then 'bound' else 'unbound ' || grant_part.part end
  loop
    execute format('grant %s on %s to %s', privilege.verbs, privilege.object, role);
  end loop;
  if bound then
    perform postrider.bind_to_tenant(role);
  end if;
end
$$;
comment on function postrider.grant_part(regrole, text, boolean) is 'What grant_producer, grant_worker, grant_reader and grant_operator share; call those.';

create function postrider.grant_producer(role regrole, tenant_bound boolean default false) returns void
language sql set search_path = pg_catalog, pg_temp as $$ select postrider.grant_part(role, 'producer', tenant_bound) $$;
comment on function postrider.grant_producer(regrole, boolean) is
  'Lets the role queue and publish, and read no contents. tenant_bound: only for the tenant in the setting postrider.tenant. Again, after an upgrade, for what is new.';

create function postrider.grant_worker(role regrole) returns void
language sql set search_path = pg_catalog, pg_temp as $$ select postrider.grant_part(role, 'worker', false) $$;
comment on function postrider.grant_worker(regrole) is 'Lets the role run workers. Again, after an upgrade, for what is new.';

create function postrider.grant_reader(role regrole, tenant_bound boolean default false) returns void
language sql set search_path = pg_catalog, pg_temp as $$ select postrider.grant_part(role, 'reader', tenant_bound) $$;
comment on function postrider.grant_reader(regrole, boolean) is
  'Lets the role look, but at no secret, header, payload or credential. tenant_bound: only at the tenant in the setting postrider.tenant. Again, after an upgrade, for what is new.';

create function postrider.grant_operator(role regrole) returns void
language sql set search_path = pg_catalog, pg_temp as $$ select postrider.grant_part(role, 'operator', false) $$;
comment on function postrider.grant_operator(regrole) is
  'Lets the role do what the command line does, secrets included, but change no schema. Again, after an upgrade, for what is new.';

create function postrider.revoke(role regrole) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  perform postrider.check_may_grant(role);
  perform postrider.unbind(role);
  execute format('revoke all on all tables in schema postrider from %s', role);
  execute format('revoke all on all sequences in schema postrider from %s', role);
  execute format('revoke all on all routines in schema postrider from %s', role);
  execute format('revoke all on schema postrider from %s', role);
end
$$;
comment on function postrider.revoke(regrole) is
  'Takes every privilege on the schema postrider from the role, those that you granted by hand, too; then it can be dropped.';

revoke all on all routines in schema postrider from public;
