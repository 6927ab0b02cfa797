-- Notes in the template what the schema ships, so that a lent clone can be brought back to it (empty.sql).
-- Object ids are the same in every clone.

create schema postrider_shipped;

create table postrider_shipped.objects as
  select 'pg_class'::regclass as catalog, c.oid from pg_class c where c.relnamespace = 'postrider'::regnamespace
  union all
  select 'pg_proc'::regclass, p.oid from pg_proc p where p.pronamespace = 'postrider'::regnamespace;

do $$
declare
  shipped record;
  filled boolean;
begin
  for shipped in
    select c.relname from pg_class c
     where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
       and c.relname <> 'schema_migrations'
  loop
    execute format('select exists (select from postrider.%I)', shipped.relname) into filled;
    if filled then
      execute format('create table postrider_shipped.rows_of_%s as select * from postrider.%I',
                     shipped.relname, shipped.relname);
    end if;
  end loop;
end
$$;

-- Changes whenever a table, view, index, trigger or function of ours is altered; days' partitions come and go.
create view postrider_shipped.shape as
with ours as (
  select c.oid from pg_class c
   where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
), item (line) as (
  select concat_ws(' ', a.attrelid, a.attnum, a.attname, a.atttypid, a.attnotnull, pg_get_expr(d.adbin, d.adrelid))
    from ours join pg_attribute a on a.attrelid = ours.oid and a.attnum > 0
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
  union all
  select concat_ws(' ', c.conrelid, c.conname, pg_get_constraintdef(c.oid)) from ours join pg_constraint c on c.conrelid = ours.oid
  union all
  select concat_ws(' ', i.indexrelid, i.indisvalid) from ours join pg_index i on i.indrelid = ours.oid
  union all
  select concat_ws(' ', t.tgrelid, t.tgname, t.tgenabled) from ours join pg_trigger t on t.tgrelid = ours.oid
   where not t.tgisinternal
  union all
  select concat_ws(' ', p.oid, p.proname, md5(p.prosrc), p.prosecdef, p.proconfig) from pg_proc p
   where p.pronamespace = 'postrider'::regnamespace
)
select md5(string_agg(line, E'\n' order by line)) as sum from item;

create table postrider_shipped.shape_shipped as select sum from postrider_shipped.shape;
