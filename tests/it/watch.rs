//! A table's changes become events, in the writer's transaction and never at its cost.

/// What `watch` takes, and what it refuses.
mod arguments;
/// Many rows, large rows, and their order.
mod bulk;
/// `postrider watch`, `unwatch` and `watches`.
mod commands;
/// From the table to the receiver, and through a dump.
mod delivery;
/// Every kind of table, and every way of writing to one.
mod tables;
/// Whatever goes wrong, the writer goes on.
mod writers;

use serde_json::{Value, json};

use crate::support::Database;

/// A table `orders`, and an endpoint `e` that nobody sends to.
async fn orders() -> Database {
    let database = Database::fresh().await;
    database.endpoint("e", "http://127.0.0.1:1/").await;
    database
        .sql("set search_path = public; create table orders (id bigint primary key, status text, total numeric, password text)")
        .await;
    database
}

/// What became deliveries, in the order of their ids: event type and body.
async fn events(database: &Database) -> Vec<(String, Value)> {
    let rows = database
        .client()
        .query(
            "select d.event_type, coalesce(d.payload, e.payload)::text from postrider.deliveries d
               left join postrider.events e on e.id = d.event order by d.id",
            &[],
        )
        .await
        .expect("the table is there");
    rows.iter()
        .map(|row| {
            let body: String = row.try_get(1).expect("JSON text");
            (
                row.try_get(0).expect("a text"),
                serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")),
            )
        })
        .collect()
}

/// Only these members of each body, one after the other.
async fn members(database: &Database, paths: &[&str]) -> Vec<Value> {
    let events = events(database).await;
    let pick = |body: &Value| {
        paths
            .iter()
            .map(|path| body.pointer(path).cloned().unwrap_or(Value::Null))
            .collect()
    };
    events.iter().map(|(_, body)| pick(body)).collect()
}

async fn count(database: &Database, table: &str) -> i64 {
    database
        .value(&format!("select count(*) from {table}"))
        .await
}

/// SQLSTATE and message of what is refused.
async fn refused(database: &Database, statement: &str) -> (String, String) {
    let error = database.client().batch_execute(statement).await;
    let error = error.expect_err(statement);
    let said = error
        .as_db_error()
        .unwrap_or_else(|| panic!("{statement}: {error}"));
    (said.code().code().to_owned(), said.message().to_owned())
}

/// What is on record of the watches' errors: watch, SQLSTATE and count.
async fn errors(database: &Database) -> Vec<String> {
    database
        .value(
            "select coalesce(array_agg(watch || ' ' || sqlstate || ' ' || count order by watch, sqlstate), '{}') from postrider.watch_errors",
        )
        .await
}

#[tokio::test]
async fn each_change_is_an_event_with_the_row_after_and_before() {
    let database = orders().await;
    let watch: String = database
        .value("select postrider.watch('orders', endpoint => 'e')")
        .await;

    database
        .sql(
            "set timezone = 'Asia/Tokyo';
             insert into orders values (1, 'new', 1.50, null), (2, E'a\"\\n', null, 'x');
             update orders set status = 'paid' where id = 1;
             delete from orders where id = 2;
             update orders set status = 'none' where false",
        )
        .await;

    assert_eq!(watch, "public.orders");
    let first = json!({"id": 1, "status": "new", "total": 1.50, "password": null});
    let second = json!({"id": 2, "status": "a\"\n", "total": null, "password": "x"});
    let paid = json!({"id": 1, "status": "paid", "total": 1.50, "password": null});
    let paths = [
        "/type",
        "/table",
        "/schema",
        "/operation",
        "/record",
        "/old_record",
    ];
    let expected = [
        ("insert", first.clone(), Value::Null),
        ("insert", second.clone(), Value::Null),
        ("update", paid, first),
        ("delete", Value::Null, second),
    ];
    assert_eq!(
        members(&database, &paths).await,
        expected.map(|(operation, record, old)| json!([
            format!("orders.{operation}"),
            "orders",
            "public",
            operation,
            record,
            old
        ]))
    );
    let types: Vec<_> = events(&database)
        .await
        .into_iter()
        .map(|event| event.0)
        .collect();
    assert_eq!(
        types,
        [
            "orders.insert",
            "orders.insert",
            "orders.update",
            "orders.delete"
        ]
    );
}

#[tokio::test]
async fn the_example_of_the_readme_does_what_it_says() {
    let section = include_str!("../../README.md")
        .split_once("### Events out of tables")
        .and_then(|(_, rest)| rest.split_once("```sql\n"))
        .and_then(|(_, rest)| rest.split_once("```"));
    let (example, _) = section.expect("the README has it");
    let database = orders().await;
    database.sql(example).await;

    database
        .sql(
            "insert into customers values (1, 'old@example.com', 's3cret', 3), (2, null, 's3cret', 0);
             update customers set visits = 4, password_hash = 'x';
             update customers set email = 'new@example.com' where id = 1;
             delete from customers",
        )
        .await;

    let record = |email: &str, visits: i32| json!({"id": 1, "email": email, "visits": visits});
    assert_eq!(
        members(&database, &["/type", "/record", "/old_record"]).await,
        [
            json!(["customers.insert", record("old@example.com", 3), null]),
            json!([
                "customers.update",
                record("new@example.com", 4),
                record("old@example.com", 4)
            ]),
        ]
    );
}

#[tokio::test]
async fn the_time_is_that_of_the_writers_transaction_and_the_text_is_as_documented() {
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e', without => '{password}')")
        .await;

    database
        .sql("begin; insert into orders values (1, 'new', 1.50, 's3cret')")
        .await;
    let same: bool = database
        .value(
            r#"select payload::text = '{"type":"orders.insert","table":"orders","schema":"public","operation":"insert",'
                   || '"record":{"id":1,"status":"new","total":1.50},"old_record":null,"at":'
                   || to_json(to_char(now() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) || '}'
                from postrider.deliveries"#,
        )
        .await;
    database.sql("commit").await;

    assert!(same);
}

#[tokio::test]
async fn a_condition_sees_both_rows_and_what_it_does_not_affirm_is_no_event() {
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e', condition => $$new.status = 'paid' and old.status is distinct from 'paid' -- once$$)")
        .await;

    database
        .sql(
            "insert into orders values (1, 'paid'), (2, 'new'), (3, null), (4, 'new');
             update orders set status = 'paid' where id in (1, 2, 4);
             update orders set total = 1;
             delete from orders",
        )
        .await;

    assert_eq!(
        members(&database, &["/operation", "/record/id"]).await,
        [
            json!(["insert", 1]),
            json!(["update", 2]),
            json!(["update", 4])
        ]
    );
}

#[tokio::test]
async fn an_update_counts_only_if_one_of_the_columns_changed_and_types_need_no_equality() {
    let database = orders().await;
    database
        .sql(
            "alter table orders add column place point, add column document json;
             select postrider.watch('orders', endpoint => 'e', operations => '{update}', columns => '{status,place,document}')",
        )
        .await;

    database
        .sql(
            "insert into orders values (1, 'new', 1, 'x', '(1,2)', '{\"a\":1}');
             update orders set total = 2, password = 'y';
             update orders set status = 'new', document = '{\"a\":1}';
             update orders set place = '(1,3)';
             update orders set document = '{\"a\": 1}';
             update orders set status = null;
             update orders set status = null",
        )
        .await;

    assert_eq!(
        members(&database, &["/record/place", "/record/status"]).await,
        [
            json!(["(1,3)", "new"]),
            json!(["(1,3)", "new"]),
            json!(["(1,3)", null])
        ]
    );
}

#[tokio::test]
async fn columns_left_out_stay_out_when_they_are_renamed_or_dropped_and_others_come_and_go() {
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e', without => '{password,total}', columns => '{status,total}')")
        .await;

    database
        .sql(
            "insert into orders values (1, 'new', 1, 's3cret');
             alter table orders rename password to hash;
             update orders set status = 'paid';
             alter table orders drop column total;
             update orders set status = 'sent';
             alter table orders add column note text default 's3cret';
             delete from orders",
        )
        .await;

    let bodies = events(&database).await;
    assert_eq!(bodies.len(), 4);
    assert!(
        bodies
            .iter()
            .all(|(_, body)| !body.to_string().contains("s3cret")),
        "{bodies:?}"
    );
    assert_eq!(
        bodies[3].1["old_record"],
        json!({"id": 1, "status": "sent"})
    );
}

#[tokio::test]
async fn the_users_function_shapes_the_body_and_null_is_no_event() {
    let database = orders().await;
    database
        .sql(
            r#"create function one(o orders) returns json language sql as $$ select case when o.id > 1 then json_build_object('one', o.id) end $$;
               create function two(n orders, o orders) returns json language sql as
                 $$ select ('{ "new" : ' || coalesce(to_json(n.status)::text, 'null') || ', "old":' || coalesce(to_json(o)::text, 'null') || '}')::json $$;
               create function three(n orders, o orders, operation text) returns jsonb language sql as
                 $$ select jsonb_build_object('z', operation, 'a', coalesce(n.id, o.id)) $$;
               select postrider.watch('orders', endpoint => 'e', event_type => 'one', body => 'one', name => 'one');
               select postrider.watch('orders', endpoint => 'e', event_type => 'two', body => 'two', name => 'two', operations => '{insert,delete}');
               select postrider.watch('orders', endpoint => 'e', event_type => 'three', body => 'three(orders,orders,text)'::regprocedure, name => 'three')"#,
        )
        .await;

    database
        .sql("insert into orders values (1, 'new'); insert into orders values (2, 'x'); delete from orders where id = 1")
        .await;

    let bodies: Vec<String> = database
        .value("select array_agg(event_type || ' ' || payload::text order by event_type, id) from postrider.deliveries")
        .await;
    assert_eq!(
        bodies,
        [
            r#"one {"one" : 2}"#,
            r#"three {"a": 1, "z": "insert"}"#,
            r#"three {"a": 2, "z": "insert"}"#,
            r#"three {"a": 1, "z": "delete"}"#,
            r#"two { "new" : "new", "old":null}"#,
            r#"two { "new" : "x", "old":null}"#,
            r#"two { "new" : null, "old":{"id":1,"status":"new","total":null,"password":null}}"#,
        ]
    );
}

#[tokio::test]
async fn without_an_endpoint_all_that_subscribed_get_it_and_the_tenant_may_be_a_column() {
    let database = orders().await;
    for (name, tenant, types) in [
        ("of-a", json!("a"), json!(["orders.*"])),
        ("of-b", json!("b"), json!(["orders.insert"])),
        ("of-nobody", Value::Null, json!(["other"])),
    ] {
        database
            .endpoint(name, "http://127.0.0.1:1/")
            .set("tenant", tenant)
            .set("event_types", types)
            .await;
    }
    database
        .sql("select postrider.watch('orders', tenant_column => 'status')")
        .await;

    database
        .sql("insert into orders values (1, 'a'), (2, 'b'), (3, 'a'); update orders set total = 1 where id < 3")
        .await;
    database
        .sql("insert into orders select n, 'b' from generate_series(100, 150) n")
        .await;
    let left: i64 = database.value("select postrider.publish_changes()").await;

    let of = async |endpoint: &str| -> Vec<String> {
        database
            .value(&format!(
                "select array_agg(d.event_type || ' ' || (e.payload #>> '{{record,id}}') order by d.id)
                   from postrider.deliveries d join postrider.events e on e.id = d.event where d.endpoint = '{endpoint}'"
            ))
            .await
    };
    assert_eq!(
        of("of-a").await,
        ["orders.insert 1", "orders.insert 3", "orders.update 1"]
    );
    let of_b = of("of-b").await;
    assert_eq!((of_b.len(), of_b[0].as_str()), (52, "orders.insert 2"));
    assert_eq!((left > 0, errors(&database).await.len()), (true, 0));
}

#[tokio::test]
async fn what_nobody_subscribed_to_is_not_stored() {
    let database = orders().await;
    database
        .sql(
            "update postrider.endpoints set event_types = '{something.else}';
             select postrider.watch('orders');
             insert into orders select n from generate_series(1, 5) n;
             insert into orders select n from generate_series(10, 500) n",
        )
        .await;

    database.sql("select postrider.publish_changes()").await;

    for table in ["events", "deliveries", "changes"] {
        assert_eq!(count(&database, &format!("postrider.{table}")).await, 0);
    }
}
