-- Brings a clone that a test has used back to what the template holds: other objects go, rows go by DELETE (on small
-- tables far cheaper than TRUNCATE), shipped rows come back, sequences restart. A schema that was altered is an error.

set client_min_messages = warning;
set lock_timeout = '10 s';

do $$
declare
  today constant date := (now() at time zone 'utc')::date;
  target record;
  deletes text;
begin
  for target in
    select n.nspname from pg_namespace n
     where n.nspname !~ '^pg_' and n.nspname not in ('information_schema', 'public', 'postrider', 'postrider_shipped')
  loop
    execute format('drop schema %I cascade', target.nspname);
  end loop;

  for target in
    select c.oid::regclass::text as name,
           case c.relkind when 'v' then 'view' when 'm' then 'materialized view' when 'S' then 'sequence' else 'table' end as kind
      from pg_class c
     where c.relkind in ('r', 'p', 'v', 'm', 'S')
       and (c.relnamespace = 'public'::regnamespace
            or c.relnamespace = 'postrider'::regnamespace
               and not exists (select from postrider_shipped.objects o where o.catalog = 'pg_class'::regclass and o.oid = c.oid)
               and not (c.relispartition and c.relname between 'attempts_' || to_char(today - 1, 'YYYYMMDD')
                                                           and 'attempts_' || to_char(today + 7, 'YYYYMMDD')))
  loop
    execute format('drop %s if exists %s cascade', target.kind, target.name);
  end loop;

  for target in
    select p.oid::regprocedure::text as name from pg_proc p
     where p.pronamespace = 'public'::regnamespace
        or p.pronamespace = 'postrider'::regnamespace
           and not exists (select from postrider_shipped.objects o where o.catalog = 'pg_proc'::regclass and o.oid = p.oid)
  loop
    execute format('drop routine if exists %s cascade', target.name);
  end loop;

  -- Old days' partitions may be in a clone that has waited for long on a server of yours.
  for target in
    select c.relname from pg_class c
     where c.relnamespace = 'postrider'::regnamespace and c.relispartition and c.relkind = 'r'
       and c.relname ~ '^attempts_' and c.relname < 'attempts_' || to_char(today - 1, 'YYYYMMDD')
  loop
    execute format('drop table postrider.%I', target.relname);
  end loop;
  perform postrider.make_attempt_partitions(today - 1, today + 7);

  -- In one statement, so that foreign keys are asked when all the rows are gone.
  select string_agg(format('%I as (delete from postrider.%I)', 'of_' || c.relname, c.relname), ', ') into deletes
    from pg_class c
   where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
     and c.relname <> 'schema_migrations';
  execute 'with ' || deletes || ' select';

  for target in
    select substr(c.relname, length('rows_of_') + 1) as name from pg_class c
     where c.relnamespace = 'postrider_shipped'::regnamespace and c.relname like 'rows\_of\_%'
  loop
    execute format('insert into postrider.%I overriding system value select * from postrider_shipped.rows_of_%s',
                   target.name, target.name);
  end loop;

  perform setval(s.seqrelid::regclass, s.seqstart, false) from pg_sequence s;

  for target in select r.rolname from pg_roles r where starts_with(r.rolname, current_database() || '_') loop
    -- Unless we are a superuser, only a member may do that.
    execute format('grant %I to current_user', target.rolname);
    execute format('drop owned by %I', target.rolname);
    execute format('drop role %I', target.rolname);
  end loop;

  if (select sum from postrider_shipped.shape) <> (select sum from postrider_shipped.shape_shipped) then
    raise 'a test has changed the schema of a lent database; it should take one by Database::private()';
  end if;
end
$$;

reset client_min_messages;
reset lock_timeout;
