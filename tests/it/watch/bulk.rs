use super::{count, errors, members, orders};
use serde_json::json;

#[tokio::test]
async fn a_statement_of_100_000_rows_makes_some_thousand_chunks_in_one_go() {
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e', without => '{password}')")
        .await;

    database
        .sql(
            "set track_functions = 'all'; begin;
             insert into orders select n, 'status ' || n, n * 1.5, 'x' from generate_series(1, 100000) n",
        )
        .await;
    let calls: Vec<String> = database
        .value("select array_agg(schemaname || ' ' || calls order by 1) from pg_stat_xact_user_functions")
        .await;
    let chunks: i64 = count(&database, "postrider.changes").await;
    let (fewest, most): (i32, i32) = (
        database
            .value("select min(json_array_length(records)) from postrider.changes where id < (select max(id) from postrider.changes)")
            .await,
        database
            .value("select max(json_array_length(records)) from postrider.changes")
            .await,
    );
    let in_order: bool = database
        .value(
            "select array_agg((r.value ->> 'id')::int order by c.id, r.place) = array(select generate_series(1, 100000))
               from postrider.changes c cross join json_array_elements(c.records) with ordinality r (value, place)",
        )
        .await;
    database.sql("commit").await;

    // The watch, and the doorbell of the chunks: nothing is called once per row or chunk.
    assert!(calls.len() <= 4, "{calls:?}");
    assert!(calls.iter().all(|one| one.ends_with(" 1")), "{calls:?}");
    assert!((500..4000).contains(&chunks), "{chunks} chunks");
    assert!(fewest > 20 && most < 300, "{fewest} to {most} rows");
    assert!(in_order);
}

#[tokio::test]
async fn the_events_of_a_transaction_are_in_its_order_whoever_publishes_them() {
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e')")
        .await;

    database
        .sql(
            "begin;
             insert into orders values (1);
             insert into orders select n from generate_series(2, 1500) n;
             insert into orders values (1501);
             update orders set total = 1 where id < 5;
             commit",
        )
        .await;
    let at_once = count(&database, "postrider.deliveries").await;
    while database
        .value::<i64>("select postrider.publish_changes(3)")
        .await
        > 0
    {}

    let ids: Vec<i64> = members(&database, &["/record/id"])
        .await
        .iter()
        .map(|one| one[0].as_i64().expect("an id"))
        .collect();
    let expected: Vec<i64> = (1..=1501).chain(1..5).collect();
    assert_eq!((at_once, ids), (1, expected));
    assert_eq!(count(&database, "postrider.changes").await, 0);
}

#[tokio::test]
async fn a_rollback_leaves_nothing() {
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e')")
        .await;

    database
        .sql(
            "begin; insert into orders values (1); insert into orders select n from generate_series(2, 2000) n; rollback;
             begin; insert into orders values (1); savepoint s; insert into orders values (2); rollback to s; commit",
        )
        .await;

    assert_eq!(members(&database, &["/record/id"]).await, [json!([1])]);
    assert_eq!(count(&database, "postrider.changes").await, 0);
}

#[tokio::test]
async fn c1_json_that_the_table_may_hold_arrives_as_it_was_written() {
    let database = orders().await;
    let document = r#"{ "nul":"\u0000", "lone":"\ud800", "a":1.00, "a":1e400 }"#;
    database
        .sql("create table documents (id int, document json); select postrider.watch('documents', endpoint => 'e')")
        .await;
    let statement = format!(
        "insert into documents select n, $x${document}$x$ from generate_series(1, 3) n;
         insert into documents select n, $x${document}$x$ from generate_series(1, 200) n"
    );

    database.sql(&statement).await;
    database.sql("select postrider.publish_changes(1000)").await;

    let intact: i64 = database
        .value(&format!(
            "select count(*) from postrider.deliveries where position($x$,\"document\":{document}}}$x$ in payload::text) > 0"
        ))
        .await;
    assert_eq!(intact, 203);
    assert_eq!(errors(&database).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_row_of_25_mb_is_an_event_like_any_other() {
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e')")
        .await;

    database
        .sql("insert into orders select n, repeat('x', 25000000) from generate_series(1, 2) n")
        .await;

    let lengths: Vec<i32> = database
        .value("select array_agg(length(payload #>> '{record,status}')) from postrider.deliveries")
        .await;
    assert_eq!(lengths, [25_000_000, 25_000_000]);
}
