use tokio_postgres::error::SqlState;

use super::{endpoints, publish, refused, somebody_waits, try_publish};
use crate::support::Database;

const E1: &str = "'order.paid', '{}', 'e1'";

async fn rows(database: &Database) -> (i64, i64) {
    (
        database
            .value("select count(*) from postrider.events")
            .await,
        database
            .value("select count(*) from postrider.deliveries")
            .await,
    )
}

#[tokio::test]
async fn the_same_event_id_again_changes_nothing_and_returns_what_the_first_call_did() {
    let database = Database::fresh().await;
    endpoints(&database, &[("a", "null"), ("b", "{order.*}")]).await;

    assert_eq!(publish(&database, E1).await, 2);
    endpoints(&database, &[("c", "null")]).await;
    database.sql("delete from postrider.deliveries where endpoint = 'a'; set plan_cache_mode = force_generic_plan").await;

    assert_eq!(publish(&database, E1).await, 2);
    assert_eq!(publish(&database, "'other', '[1]', 'e1'").await, 2);
    assert_eq!(rows(&database).await, (1, 1));
    assert_eq!(publish(&database, "'t', '{}', 'e2', 'nobody'").await, 0);
    assert_eq!(publish(&database, "'t', '{}', 'e2', 'nobody'").await, 0);
}

#[tokio::test]
async fn the_same_event_id_within_one_transaction_is_one_event() {
    let database = Database::fresh().await;
    endpoints(&database, &[("a", "null")]).await;

    database.sql("begin").await;
    let both = (publish(&database, E1).await, publish(&database, E1).await);
    database.sql("commit").await;

    assert_eq!(both, (1, 1));
    assert_eq!(rows(&database).await, (1, 1));
}

#[tokio::test]
async fn an_event_id_is_of_its_tenant() {
    let database = Database::fresh().await;
    for tenant in ["a", "b"] {
        database
            .endpoint(tenant, "http://127.0.0.1:1/")
            .set("tenant", tenant)
            .await;
    }
    endpoints(&database, &[("nobody", "null")]).await;

    for tenant in ["'a'", "'b'", "null"] {
        let call = format!("'t', '{{}}', 'e1', {tenant}");
        assert_eq!(publish(&database, &call).await, 1, "{tenant}");
        assert_eq!(publish(&database, &call).await, 1, "{tenant}");
    }

    assert_eq!(rows(&database).await, (3, 3));
}

#[tokio::test]
async fn without_an_event_id_each_call_is_an_event() {
    let database = Database::fresh().await;
    endpoints(&database, &[("a", "null")]).await;

    publish(&database, "'t', '{}'").await;
    publish(&database, "'t', '{}'").await;

    assert_eq!(rows(&database).await, (2, 2));
    let same: bool = database
        .value("select bool_and(d.event_id = e.event_id and e.event_id like 'evt\\_%') from postrider.deliveries d join postrider.events e on e.id = d.event")
        .await;
    assert!(same, "the delivery's event id is the event's");
}

#[tokio::test]
async fn a_delivery_that_an_endpoint_had_before_is_not_made_again_nor_counted() {
    let database = Database::fresh().await;
    endpoints(&database, &[("a", "null"), ("b", "null")]).await;
    database.insert("a", "{}").set("event_id", "e1").await;

    assert_eq!(publish(&database, E1).await, 1);
    assert_eq!(publish(&database, E1).await, 1);

    assert_eq!(rows(&database).await, (1, 2));
}

#[tokio::test]
async fn of_two_calls_at_once_one_waits_for_the_other_and_returns_the_same() {
    let database = Database::fresh().await;
    endpoints(&database, &[("a", "null"), ("b", "null")]).await;
    let (first, second) = (database.connect().await, database.connect().await);
    first.batch_execute("begin").await.expect("begun");
    let one = try_publish(&first, E1).await.expect("published");

    let (two, ()) = tokio::join!(
        async { try_publish(&second, E1).await.expect("published") },
        async {
            somebody_waits(&database).await;
            first.batch_execute("commit").await.expect("committed");
        }
    );

    assert_eq!((one, two), (2, 2));
    assert_eq!(rows(&database).await, (1, 2));
}

#[tokio::test]
async fn when_the_first_of_two_calls_is_rolled_back_the_second_publishes() {
    let database = Database::fresh().await;
    endpoints(&database, &[("a", "null")]).await;
    let (first, second) = (database.connect().await, database.connect().await);
    first.batch_execute("begin").await.expect("begun");
    try_publish(&first, "'order.paid', '[\"first\"]', 'e1'")
        .await
        .expect("published");

    let (two, ()) = tokio::join!(
        async { try_publish(&second, E1).await.expect("published") },
        async {
            somebody_waits(&database).await;
            first.batch_execute("rollback").await.expect("rolled back");
        }
    );

    assert_eq!(two, 1);
    assert_eq!(rows(&database).await, (1, 1));
    let payload: String = database
        .value("select payload::text from postrider.events")
        .await;
    assert_eq!(payload, "{}");
}

#[tokio::test]
async fn in_repeatable_read_a_call_that_cannot_see_the_first_is_a_serialization_failure() {
    let database = Database::fresh().await;
    endpoints(&database, &[("a", "null")]).await;
    let late = database.connect().await;
    late.batch_execute("begin isolation level repeatable read; select")
        .await
        .expect("begun");
    late.query_one("select count(*) from postrider.events", &[])
        .await
        .expect("its snapshot is taken");
    publish(&database, E1).await;

    let (state, _) = refused(&late, E1).await;

    assert_eq!(state, SqlState::T_R_SERIALIZATION_FAILURE);
}

#[tokio::test]
async fn what_somebody_inserted_into_events_is_in_nobodys_way() {
    let database = Database::fresh().await;
    endpoints(&database, &[("a", "null")]).await;
    database
        .sql("insert into postrider.events (event_id, event_type, payload) values ('e1', 't', '1'), ('e1', 't', '2')")
        .await;

    assert_eq!(publish(&database, E1).await, 1);
    assert_eq!(rows(&database).await, (3, 1));
}

#[tokio::test]
async fn an_event_whose_deliveries_are_gone_can_be_deleted_and_its_id_is_new_again() {
    let database = Database::fresh().await;
    endpoints(&database, &[("a", "null")]).await;
    publish(&database, E1).await;

    database
        .sql("delete from postrider.deliveries; delete from postrider.events")
        .await;

    assert_eq!(publish(&database, E1).await, 1);
    assert_eq!(rows(&database).await, (1, 1));
}

#[tokio::test]
async fn deliver_at_schedules_every_delivery() {
    let database = Database::fresh().await;
    endpoints(&database, &[("a", "null"), ("b", "null")]).await;

    publish(&database, "'t', '{}', deliver_at => '2030-01-31T08:00:00Z'").await;

    let scheduled: i64 = database
        .value("select count(*) from postrider.deliveries where next_retry = '2030-01-31T08:00:00Z' and status = 'queued'")
        .await;
    assert_eq!(scheduled, 2);
}
