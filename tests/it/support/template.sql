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
