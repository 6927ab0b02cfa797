use super::{granted, role};
use crate::support::Database;

/// One line per object and role that may do anything with it, with the columns where the privilege is not the table's; objects that
/// are for nobody say so. In the name of a role, the database's stands before the first `_` that is left out here.
const MATRIX: &str = "
with part (name, role) as (
  select p.name, current_database() || '_' || replace(p.name, ' ', '_')
    from unnest('{producer,worker,reader,operator,bound producer,bound reader}'::text[]) p (name)
), object (oid, kind, name) as (
  select c.oid, case c.relkind when 'v' then 'view' when 'S' then 'sequence' else 'table' end, c.relname::text
    from pg_class c
   where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') and not c.relispartition
     and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'i' and c.relkind = 'S')
  union all
  select p.oid, case p.prokind when 'p' then 'procedure' else 'function' end, replace(p.oid::regprocedure::text, 'postrider.', '')
    from pg_proc p where p.pronamespace = 'postrider'::regnamespace
), may (kind, object, part, verbs) as (
  select o.kind, o.name, p.name,
         case when o.kind in ('function', 'procedure') then case when has_function_privilege(p.role, o.oid, 'execute') then 'execute' end
              when o.kind = 'sequence' then concat_ws(', ', case when has_sequence_privilege(p.role, o.oid, 'usage') then 'usage' end,
                                                      case when has_sequence_privilege(p.role, o.oid, 'select') then 'select' end,
                                                      case when has_sequence_privilege(p.role, o.oid, 'update') then 'update' end)
              else (select string_agg(
                             case when has_table_privilege(p.role, o.oid, v.verb) then v.verb
                                  else v.verb || ' (' || (select string_agg(a.attname, ', ' order by a.attnum) from pg_attribute a
                                                           where a.attrelid = o.oid and a.attnum > 0 and not a.attisdropped
                                                             and has_column_privilege(p.role, o.oid, a.attnum, v.verb)) || ')' end,
                             ', ' order by v.place)
                      from unnest('{select,insert,update,delete,truncate,references,trigger}'::text[]) with ordinality v (verb, place)
                     where case when v.verb in ('select', 'insert', 'update', 'references')
                                then has_any_column_privilege(p.role, o.oid, v.verb)
                                else has_table_privilege(p.role, o.oid, v.verb) end) end
    from object o cross join part p
)
select string_agg(line, E'\\n' order by line collate \"C\") from (
  select m.kind || ' ' || m.object || ': ' || m.part || ': ' || m.verbs from may m where m.verbs <> ''
  union all
  select m.kind || ' ' || m.object || ': nobody but the owner' from may m group by m.kind, m.object having count(nullif(m.verbs, '')) = 0
) l (line)";

/// The six, on a database that no test shares, since row-level security is switched on in it.
async fn all_roles() -> Database {
    let database = Database::private().await;
    for part in ["producer", "worker", "reader", "operator"] {
        granted(&database, part).await;
    }
    for part in ["producer", "reader"] {
        let role = role(&database, &format!("bound_{part}")).await;
        database
            .sql(&format!("select postrider.grant_{part}('{role}', true)"))
            .await;
    }
    // Names are written out whatever the role is called.
    database.sql("set search_path = pg_catalog").await;
    database
}

#[tokio::test]
async fn every_table_view_sequence_and_function_is_decided_on_for_every_role() {
    let database = all_roles().await;

    let matrix: String = database.value(MATRIX).await;

    insta::assert_snapshot!("roles", matrix);
}

/// Tries every verb on every column and calls every routine in the name of a role, with no row to touch, and returns what was
/// answered otherwise than the catalog says.
const TRY_ALL: &str = r#"
create function pg_temp.try_all(part text) returns table (tried text) language plpgsql as $$
declare
  the record;
  denied boolean;
begin
  for the in
    select v.verb || ' ' || c.relname || '.' || a.attname as name, has_column_privilege(part, c.oid, a.attnum, v.verb) as allowed,
           case v.verb when 'select' then format('select %I from postrider.%I where false', a.attname, c.relname)
                       when 'insert' then format('insert into postrider.%I (%I) select null::%s where false', c.relname, a.attname, format_type(a.atttypid, a.atttypmod))
                       else format('update postrider.%I set %I = null where false', c.relname, a.attname) end as statement
      from pg_class c
      join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
     cross join unnest('{select,insert,update}'::text[]) v (verb)
     where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
       -- What nobody could write, whatever he may.
       and (v.verb = 'select' or c.relkind <> 'v' and a.attidentity <> 'a')
    union all
    select 'delete ' || c.relname, has_table_privilege(part, c.oid, 'delete'), format('delete from postrider.%I where false', c.relname)
      from pg_class c where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    union all
    select 'truncate ' || c.relname, has_table_privilege(part, c.oid, 'truncate'), format('truncate postrider.%I cascade', c.relname)
      from pg_class c where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    union all
    select 'partition ' || c.relname, false, format('select from postrider.%I where false', c.relname)
      from pg_class c where c.relnamespace = 'postrider'::regnamespace and c.relispartition and c.relkind = 'r'
    union all
    select p.oid::regprocedure::text, has_function_privilege(part, p.oid, 'execute'),
           case p.prokind when 'p' then format('call %s(%s)', p.oid::regproc, a.nulls)
                          else format('select %s(%s) from (select where false) no_row', p.oid::regproc, a.nulls) end
      from pg_proc p
     -- A random() keeps the planner from knowing the answer without a call.
     cross join lateral (select string_agg(format('case when random() < 2 then null::%s end', format_type(t.oid, null)), ', ' order by t.place)
                           from unnest(p.proargtypes) with ordinality t (oid, place)) a (nulls)
     where p.pronamespace = 'postrider'::regnamespace and p.prokind in ('f', 'p')
       -- Those can be called by triggers alone, and need no privilege for it; CALL would run what may be called.
       and p.prorettype <> 'trigger'::regtype and (p.prokind = 'f' or not has_function_privilege(part, p.oid, 'execute'))
  loop
    denied := false;
    begin
      execute format('set local role %I', part);
      execute the.statement;
    exception when insufficient_privilege then
      denied := true;
    end;
    reset role;
    if denied = the.allowed then
      tried := the.name;
      return next;
    end if;
  end loop;
end
$$"#;

#[tokio::test]
async fn every_role_is_refused_at_everything_that_the_matrix_does_not_list() {
    let database = all_roles().await;
    database.sql(TRY_ALL).await;

    for part in [
        "producer",
        "worker",
        "reader",
        "operator",
        "bound_producer",
        "bound_reader",
    ] {
        let otherwise: Vec<String> = database
            .value(&format!(
                "select coalesce(array_agg(t.tried), '{{}}') from pg_temp.try_all(current_database() || '_{part}') t"
            ))
            .await;
        assert_eq!(otherwise, Vec::<String>::new(), "{part}");
    }
}

#[tokio::test]
async fn nothing_in_the_schema_is_left_to_public() {
    let database = Database::fresh().await;

    let open: Vec<String> = database
        .value(
            "select coalesce(array_agg(o.name), '{}') from (
               select p.oid::regprocedure::text, coalesce(p.proacl, acldefault('f', p.proowner)) from pg_proc p
                where p.pronamespace = 'postrider'::regnamespace
               union all
               select c.oid::regclass::text, c.relacl from pg_class c where c.relnamespace = 'postrider'::regnamespace
               union all
               select 'schema', n.nspacl from pg_namespace n where n.nspname = 'postrider'
             ) o (name, acl)
              where exists (select from aclexplode(o.acl) a where a.grantee = 0)",
        )
        .await;

    assert_eq!(open, Vec::<String>::new());
}

#[tokio::test]
async fn every_table_that_holds_rows_of_tenants_has_a_rule() {
    let database = Database::fresh().await;

    let without: Vec<String> = database
        .value(
            "select coalesce(array_agg(distinct c.relname::text), '{}') from pg_class c
               join pg_attribute a on a.attrelid = c.oid and a.attname in ('endpoint', 'endpoints', 'delivery', 'delivery_id', 'event', 'tenant', 'payload')
              where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
                and c.relname not in (select r.relation from postrider.tenant_rules r)",
        )
        .await;

    assert_eq!(without, Vec::<String>::new());
}

#[tokio::test]
async fn every_view_that_a_bound_role_reads_keeps_to_the_tenant_by_itself() {
    let database = all_roles().await;

    // A view reads with its owner's rights, whom row-level security does not bind.
    let loose: Vec<String> = database
        .value(
            "select coalesce(array_agg(c.relname::text), '{}') from pg_class c
              where c.relnamespace = 'postrider'::regnamespace and c.relkind = 'v'
                and (has_any_column_privilege(current_database() || '_bound_reader', c.oid, 'select')
                     or has_any_column_privilege(current_database() || '_bound_producer', c.oid, 'select'))
                and not ('security_barrier=true' = any (c.reloptions)
                         and pg_get_viewdef(c.oid) like '%current_setting(''postrider.tenant''%')",
        )
        .await;

    assert_eq!(loose, Vec::<String>::new());
}

#[tokio::test]
async fn no_function_with_its_owners_rights_can_be_led_astray_by_a_search_path() {
    let database = Database::fresh().await;
    let role = granted(&database, "producer").await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    database
        .sql(&format!(
            "grant temporary on database {} to {role}",
            database.name()
        ))
        .await;

    let session = super::session_as(&database, &role).await;
    super::does(
        &session,
        "create temporary table workers (sleeping_until timestamptz);
         create function pg_temp.now() returns timestamptz language plpgsql as 'begin raise ''led astray''; end';
         create function pg_temp.clock_timestamp() returns timestamptz language plpgsql as 'begin raise ''led astray''; end';
         create function pg_temp.pg_notify(text, text) returns void language plpgsql as 'begin raise ''led astray''; end';
         set search_path = pg_temp, pg_catalog, postrider;
         insert into postrider.deliveries (endpoint, event_type, payload) values ('shop', 't', '{}');
         select postrider.send('shop', 't', '{}')",
    )
    .await;

    let last: bool = database
        .value(
            "select bool_and(p.proconfig[1] = 'search_path=pg_catalog, pg_temp') from pg_proc p
              where p.pronamespace = 'postrider'::regnamespace and p.prosecdef",
        )
        .await;
    assert!(last, "pg_temp is looked at last, and by name");
}
