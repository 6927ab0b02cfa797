use tokio_postgres::error::SqlState;

use super::{endpoints, publish, reached, refused, somebody_waits, try_publish};
use crate::support::Database;

#[tokio::test]
async fn an_endpoint_that_is_deleted_in_between_is_left_out() {
    let database = Database::fresh().await;
    endpoints(&database, &[("going", "null"), ("staying", "null")]).await;
    let (other, publisher) = (database.connect().await, database.connect().await);
    other
        .batch_execute("begin; delete from postrider.endpoints where name = 'going'")
        .await
        .expect("deleted");

    let (made, ()) = tokio::join!(
        async {
            try_publish(&publisher, "'t', '{}'")
                .await
                .expect("published")
        },
        async {
            somebody_waits(&database).await;
            other.batch_execute("commit").await.expect("committed");
        }
    );

    assert_eq!(made, 1);
    assert_eq!(reached(&database).await, "staying");
}

#[tokio::test]
async fn an_endpoint_whose_deletion_is_rolled_back_gets_it() {
    let database = Database::fresh().await;
    endpoints(&database, &[("going", "null")]).await;
    let (other, publisher) = (database.connect().await, database.connect().await);
    other
        .batch_execute("begin; delete from postrider.endpoints where name = 'going'")
        .await
        .expect("deleted");

    let (made, ()) = tokio::join!(
        async {
            try_publish(&publisher, "'t', '{}'")
                .await
                .expect("published")
        },
        async {
            somebody_waits(&database).await;
            other.batch_execute("rollback").await.expect("rolled back");
        }
    );

    assert_eq!(made, 1);
}

#[tokio::test]
async fn an_endpoint_cannot_go_between_the_match_and_the_delivery() {
    let database = Database::fresh().await;
    endpoints(&database, &[("shop", "null")]).await;
    let (other, publisher) = (database.connect().await, database.connect().await);
    publisher.batch_execute("begin").await.expect("begun");
    try_publish(&publisher, "'t', '{}'")
        .await
        .expect("published");

    let (deleted, ()) = tokio::join!(
        other.batch_execute("delete from postrider.endpoints"),
        async {
            somebody_waits(&database).await;
            publisher.batch_execute("commit").await.expect("committed");
        }
    );

    let error = deleted.expect_err("it has a delivery");
    assert_eq!(error.code(), Some(&SqlState::FOREIGN_KEY_VIOLATION));
    assert_eq!(reached(&database).await, "shop");
}

#[tokio::test]
async fn an_edit_of_an_endpoint_holds_up_no_publisher() {
    let database = Database::fresh().await;
    endpoints(&database, &[("shop", "null")]).await;
    let other = database.connect().await;
    other
        .batch_execute("begin; update postrider.endpoints set paused = true, event_types = '{x}'")
        .await
        .expect("edited");
    database.sql("set lock_timeout = '10 s'").await;

    assert_eq!(publish(&database, "'t', '{}'").await, 1);
}

#[tokio::test]
async fn in_a_read_only_transaction_postgresql_says_so_itself() {
    let database = Database::fresh().await;
    endpoints(&database, &[("shop", "null")]).await;
    database.sql("begin read only").await;

    let (state, said) = refused(database.client(), "'t', '{}'").await;

    assert_eq!(state, SqlState::READ_ONLY_SQL_TRANSACTION, "{said}");
    assert!(said.contains("read-only"), "{said}");
}

#[tokio::test]
async fn a_role_without_rights_is_told_so_and_a_producer_needs_no_other() {
    let database = Database::fresh().await;
    endpoints(&database, &[("shop", "null")]).await;
    let role = format!("{}_app", database.name());
    database
        .sql(&format!(
            "create role {role}; grant usage on schema postrider to {role}"
        ))
        .await;
    let session = database.connect().await;
    session
        .batch_execute(&format!("set role {role}; set search_path = ''"))
        .await
        .expect("a superuser may be anybody");

    let (state, said) = refused(&session, "'t', '{}'").await;
    assert_eq!(state, SqlState::INSUFFICIENT_PRIVILEGE);
    assert_eq!(said, "permission denied for function publish");

    database
        .sql(&format!("select postrider.grant_producer('{role}')"))
        .await;
    let made = try_publish(&session, "'t', '{}', 'e1'").await;
    assert_eq!(made.expect("published"), 1);
    for inner in [
        "select postrider.fan_out('{1}')",
        "select postrider.has_subscriber('t')",
        "select * from postrider.subscriptions",
        "select payload from postrider.events",
        "insert into postrider.events (event_type, payload) values ('t', '{}')",
    ] {
        let error = session.batch_execute(inner).await.expect_err(inner);
        assert_eq!(
            error.code(),
            Some(&SqlState::INSUFFICIENT_PRIVILEGE),
            "{inner}"
        );
    }
}

#[tokio::test]
async fn a_bound_producer_publishes_for_its_tenant_only() {
    let database = Database::private().await;
    for tenant in ["a", "b"] {
        database
            .endpoint(tenant, "http://127.0.0.1:1/")
            .set("tenant", tenant)
            .await;
    }
    endpoints(&database, &[("nobody", "null")]).await;
    publish(&database, "'t', '{}', 'e1', 'b'").await;
    let role = format!("{}_app", database.name());
    database
        .sql(&format!(
            "create role {role}; select postrider.grant_producer('{role}', true)"
        ))
        .await;
    let session = database.connect().await;
    session
        .batch_execute(&format!("set role {role}"))
        .await
        .expect("a superuser may be anybody");

    let (state, _) = refused(&session, "'t', '{}'").await;
    assert_eq!(state, SqlState::INSUFFICIENT_PRIVILEGE, "no tenant is set");
    session
        .batch_execute("set postrider.tenant = 'a'")
        .await
        .expect("anybody may");
    let made = try_publish(&session, "'t', '{}', 'e1'").await;

    assert_eq!(made.expect("published"), 1);
    assert_eq!(reached(&database).await, "a");
    let (state, _) = refused(&session, "'t', '{}', tenant => 'b'").await;
    assert_eq!(state.code(), "PR011");
    database
        .sql(&format!("reset role; drop owned by {role}"))
        .await;
}

#[tokio::test]
async fn what_no_event_can_be_is_refused_whoever_asks_for_it() {
    let database = Database::fresh().await;
    let long = "x".repeat(501);

    for (arguments, state) in [
        ("null, '{}'".to_owned(), "22004"),
        ("'t', null".to_owned(), "22004"),
        ("'t', '{}', ''".to_owned(), "22023"),
        (format!("'t', '{{}}', '{long}'"), "22023"),
        (format!("'t', '{{}}', tenant => '{long}'"), "22023"),
        ("'t', '{'".to_owned(), "22P02"),
    ] {
        let (refused_with, said) = refused(database.client(), &arguments).await;
        assert_eq!(refused_with.code(), state, "{arguments:.60}: {said}");
    }
}

#[tokio::test]
async fn c48_a_receiver_that_publishes_at_each_call_can_be_paused() {
    let database = Database::fresh().await;
    endpoints(&database, &[("echo", "null")]).await;
    database.sql("select postrider.pause('echo')").await;

    publish(&database, "'t', '{}'").await;

    let held: i64 = database
        .value("select count(*) from postrider.delivery_state where state = 'held'")
        .await;
    assert_eq!(held, 1);
    let cancelled: i64 = database
        .value("select postrider.cancel_matching(endpoint => 'echo')")
        .await;
    assert_eq!(cancelled, 1);
}

#[tokio::test]
async fn objects_of_the_callers_with_names_of_ours_are_not_used() {
    let database = Database::fresh().await;
    endpoints(&database, &[("shop", "null")]).await;
    database
        .sql(
            "create schema trap;
             create function trap.now() returns timestamptz language sql as 'select null::timestamptz';
             create function trap.length(text) returns int language plpgsql as 'begin raise exception ''trapped''; end';
             create function trap.jsonb_path_query_first_tz(jsonb, jsonpath, jsonb, boolean) returns jsonb language sql as 'select null::jsonb';
             create temp table events (id int); create temp table deliveries (id int); create temp table subscriptions (id int);
             set search_path = trap, pg_temp, pg_catalog",
        )
        .await;

    assert_eq!(publish(&database, "'t', '{}', 'e1', ''").await, 1);
}
