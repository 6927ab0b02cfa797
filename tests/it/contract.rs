//! The contract with users: the schema as it ships, what its tables refuse, and what people may count on.

/// Every CHECK refuses its nonsense by name.
mod refusals;
/// How the claim finds its rows, whatever the planner knows.
pub(crate) mod plans;

use postrider::store::queue::STATEMENTS;
use tokio_postgres::types::Type;

use crate::support::Database;

/// One line per object, without what differs from day to day or between versions of the server.
const LISTING: &str = r#"
with ours as (
  select c.oid, c.relname, c.relkind from pg_class c
   where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p', 'v', 'S') and not c.relispartition
), line (place, text) as (
  select o.relname || ' 0', case o.relkind when 'v' then 'view ' when 'S' then 'sequence ' else 'table ' end || o.relname
         || coalesce(' partitioned by ' || pg_get_partkeydef(o.oid), '')
         || coalesce(' with (' || (select string_agg(p.item, ', ' order by p.item) from unnest(c.reloptions) p (item)) || ')', '')
         || coalesce(' -- ' || obj_description(o.oid, 'pg_class'), '')
    from ours o join pg_class c on c.oid = o.oid
   where not exists (select from pg_depend d where d.objid = o.oid and d.deptype = 'i' and o.relkind = 'S')
  union all
  select o.relname || ' 1' || to_char(a.attnum, '000'),
         '  ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
         || case when a.attcollation = '"C"'::regcollation then ' collate "C"' else '' end
         || case when a.attnotnull then ' not null' else '' end
         || case when a.attidentity <> '' then ' identity' else '' end
         || coalesce(' default ' || pg_get_expr(f.adbin, f.adrelid), '')
         || coalesce(' -- ' || col_description(o.oid, a.attnum), '')
    from ours o
    join pg_attribute a on a.attrelid = o.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef f on f.adrelid = a.attrelid and f.adnum = a.attnum
   where o.relkind <> 'S'
  union all
  select o.relname || ' 2' || c.conname, '  constraint ' || c.conname || ' ' || pg_get_constraintdef(c.oid)
    from ours o join pg_constraint c on c.conrelid = o.oid and c.contype <> 'n'
  union all
  select o.relname || ' 3' || i.indexrelid::regclass, '  index ' || pg_get_indexdef(i.indexrelid)
    from ours o join pg_index i on i.indrelid = o.oid
  union all
  select o.relname || ' 4' || t.tgname, '  trigger ' || pg_get_triggerdef(t.oid)
    from ours o join pg_trigger t on t.tgrelid = o.oid and not t.tgisinternal
  union all
  select '~ ' || p.oid::regprocedure,
         case p.prokind when 'p' then 'procedure ' else 'function ' end || p.proname || '(' || pg_get_function_arguments(p.oid) || ')'
         || coalesce(' returns ' || pg_get_function_result(p.oid), '')
         || case p.provolatile when 'v' then ' volatile' when 's' then ' stable' else ' immutable' end
         || case when p.prosecdef then ' security definer' else '' end
         || coalesce(' set ' || array_to_string(p.proconfig, ', '), '')
         || coalesce(' -- ' || obj_description(p.oid, 'pg_proc'), '')
    from pg_proc p where p.pronamespace = 'postrider'::regnamespace
)
select string_agg(text, E'\n' order by place collate "C", text collate "C") from line"#;

#[tokio::test]
async fn the_schema_is_the_one_that_was_agreed_on() {
    let database = Database::fresh().await;
    // Names are written out whatever the role is called.
    database.sql("set search_path = pg_catalog").await;

    let listing: String = database.value(LISTING).await;

    insta::assert_snapshot!("schema", listing);
}

#[tokio::test]
async fn every_table_column_view_and_function_is_explained() {
    let database = Database::fresh().await;

    let unexplained: Vec<String> = database
        .value(
            "select coalesce(array_agg(o.name order by o.name), '{}') from (
               select c.relname::text from pg_class c
                where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
                  and obj_description(c.oid, 'pg_class') is null
               union all
               select c.relname || '.' || a.attname from pg_class c
                 join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
                where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
                  and col_description(c.oid, a.attnum) is null
               union all
               select p.oid::regprocedure::text from pg_proc p
                where p.pronamespace = 'postrider'::regnamespace and obj_description(p.oid, 'pg_proc') is null
             ) o (name)",
        )
        .await;

    assert_eq!(unexplained, Vec::<String>::new());
}

#[tokio::test]
async fn every_function_pins_its_search_path() {
    let database = Database::fresh().await;

    let loose: Vec<String> = database
        .value(
            "select coalesce(array_agg(p.oid::regprocedure::text), '{}') from pg_proc p
              where p.pronamespace = 'postrider'::regnamespace
                -- With a setting of its own it could not commit; deliver_now::calling tries it with a path that is a trap.
                and p.proname <> 'deliver_now'
                and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)",
        )
        .await;

    assert_eq!(loose, Vec::<String>::new());
}

#[tokio::test]
async fn a_delivery_needs_no_more_than_endpoint_type_and_payload() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;

    database
        .sql("insert into postrider.deliveries (endpoint, event_type, payload) values ('shop', 'order.paid', '{}')")
        .await;

    let row: String = database
        .value(
            "select concat_ws(' ', status, attempt_count, claim_no, next_retry = created_at, event_id ~ '^evt_[0-9a-f]{32}$')
               from postrider.deliveries",
        )
        .await;
    assert_eq!(row, "queued 0 0 t t");
}

#[tokio::test]
async fn the_same_event_for_the_same_endpoint_is_one_delivery() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    database.endpoint("b", "http://127.0.0.1:1/").await;
    let insert = "insert into postrider.deliveries (endpoint, event_id, event_type, payload) values ('a', 'evt_1', 't', '{}')";
    database.sql(insert).await;

    let plain = database.client().batch_execute(insert).await;
    database
        .sql(&format!(
            "{insert} on conflict (endpoint, event_id) do nothing"
        ))
        .await;
    database.insert("b", "{}").set("event_id", "evt_1").await;

    let refused = plain.expect_err("a duplicate");
    let refused = refused.as_db_error().expect("the server refused it");
    assert_eq!(
        refused.constraint(),
        Some("deliveries_event_id_is_unique_per_endpoint")
    );
    let rows: i64 = database
        .value("select count(*) from postrider.deliveries")
        .await;
    assert_eq!(rows, 2, "one for each endpoint");
}

#[tokio::test]
async fn sending_the_same_event_twice_changes_nothing_and_names_the_first() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let send = |payload: &str| {
        format!(
            "select postrider.send('shop', 'order.paid', '{payload}', event_id => 'evt_1', deliver_at => 'infinity')"
        )
    };

    let first: i64 = database.value(&send(r#"{"a":1.0}"#)).await;
    let second: i64 = database.value(&send(r#"{"b":2}"#)).await;
    let other: i64 = database
        .value("select postrider.send('shop', 'order.paid', '{}')")
        .await;

    assert_eq!(first, second);
    assert_ne!(
        first, other,
        "without an event_id each is an event of its own"
    );
    let payload: String = database
        .value(&format!(
            "select payload::text from postrider.deliveries where id = {first}"
        ))
        .await;
    assert_eq!(payload, r#"{"a":1.0}"#);
    assert_eq!(database.delivery(first).await.due_in, Some(f64::INFINITY));
}

#[tokio::test]
async fn c34_a_replay_is_not_swallowed_by_the_idempotency_key() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let id = database.insert("shop", "{}").set("event_id", "evt_1").await;
    database
        .sql("update postrider.deliveries set status = 'delivered', next_retry = null, finished_at = now()")
        .await;

    let replayed: bool = database
        .value(&format!("select postrider.replay({id})"))
        .await;

    assert!(replayed);
    let delivery = database.delivery(id).await;
    assert_eq!(
        (delivery.status.as_str(), delivery.event_id.as_str()),
        ("queued", "evt_1")
    );
}

#[tokio::test]
async fn every_statement_takes_what_its_header_says() {
    let database = Database::fresh().await;
    for statement in STATEMENTS {
        let prepared = database
            .client()
            .prepare(statement.sql)
            .await
            .unwrap_or_else(|error| panic!("{}: {error:?}", statement.name));

        let header: Vec<String> = statement
            .sql
            .lines()
            .take_while(|line| line.starts_with("--"))
            .filter_map(|line| line.strip_prefix("-- $"))
            .map(|line| {
                let mut words = line.split_whitespace();
                let number = words.next().expect("a number");
                format!("{number} {}", words.next().expect("a type"))
            })
            .collect();

        assert_eq!(header, numbered(prepared.params()), "{}", statement.name);
        assert_eq!(header, numbered(statement.types), "{}", statement.name);
    }
}

/// `1 text`, `2 bigint[]` ...
fn numbered(types: &[Type]) -> Vec<String> {
    let word = |name: &str| match name {
        "int8" => "bigint".to_owned(),
        "int4" => "integer".to_owned(),
        "bool" => "boolean".to_owned(),
        other => other.to_owned(),
    };
    types
        .iter()
        .enumerate()
        .map(|(index, ty)| {
            let name = match ty.name().strip_prefix('_') {
                Some(element) => format!("{}[]", word(element)),
                None => word(ty.name()),
            };
            format!("{} {name}", index + 1)
        })
        .collect()
}
