use super::{count, errors, events, members, orders, refused};
use crate::support::Database;
use serde_json::json;

/// With a watch of these further arguments.
async fn watched(arguments: &str) -> Database {
    let database = orders().await;
    database
        .sql(&format!(
            "create function breaks(o orders) returns json language plpgsql as $$ begin
               if o.status = 'assert' then assert false; end if;
               return json_build_object('inverse', 1 / o.id); end $$;
             select postrider.watch('orders', endpoint => 'e', {arguments})"
        ))
        .await;
    database
}

#[tokio::test]
async fn a_condition_or_body_that_fails_is_on_record_and_the_writer_goes_on() {
    for (arguments, state) in [
        ("condition => '1 / new.id > 0'", "22012"),
        ("body => 'breaks'", "22012"),
    ] {
        let database = watched(arguments).await;

        database
            .sql(
                "begin; insert into orders values (0); insert into orders values (1); commit;
                 insert into orders select n from generate_series(-1000, -1) n;
                 update orders set total = 1 where id = 0",
            )
            .await;

        assert_eq!(count(&database, "orders").await, 1002, "{arguments}");
        assert_eq!(
            errors(&database).await,
            [format!("public.orders {state} 2")],
            "{arguments}"
        );
        let said: String = database
            .value("select errors || ' ' || last_error from postrider.watches")
            .await;
        assert!(said.ends_with("2 division by zero"), "{said}");
        assert_eq!(events(&database).await.len(), 1, "{arguments}");
    }
}

#[tokio::test]
async fn a_failed_assertion_of_the_users_is_on_record_too() {
    let database = watched("body => 'breaks'").await;

    database
        .sql("insert into orders values (1, 'assert')")
        .await;

    assert_eq!(errors(&database).await, ["public.orders P0004 1"]);
}

#[tokio::test]
async fn strict_fails_the_writers_statement() {
    let database = watched("body => 'breaks', strict => true").await;

    let (state, _) = refused(&database, "insert into orders values (0)").await;
    let bulk = "insert into orders select n from generate_series(0, 2000) n";
    let (bulk_state, _) = refused(&database, bulk).await;
    database
        .sql("delete from postrider.endpoints where name = 'e'")
        .await;
    let (gone, said) = refused(&database, "insert into orders values (1)").await;

    assert_eq!([state, bulk_state], ["22012", "22012"]);
    assert_eq!(
        (gone.as_str(), said.as_str()),
        ("PR004", "there is no endpoint e")
    );
    assert_eq!(count(&database, "orders").await, 0);
    assert_eq!(errors(&database).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_timeout_or_cancel_of_the_writers_is_not_swallowed() {
    let database = watched("condition => 'pg_sleep(60) is not null'").await;

    let (state, _) = refused(
        &database,
        "begin; set local statement_timeout = '50ms'; insert into orders values (1)",
    )
    .await;
    database.sql("rollback").await;

    assert_eq!(state, "57014");
    assert_eq!(errors(&database).await, Vec::<String>::new());
}

#[tokio::test]
async fn an_endpoint_that_is_gone_is_waited_for_and_said() {
    let database = watched("name => 'w'").await;
    database
        .sql("delete from postrider.endpoints where name = 'e'; insert into orders values (1); insert into orders values (2)")
        .await;

    database.sql("select postrider.publish_changes()").await;
    let said: String = database
        .value("select waiting || ' ' || errors || ' ' || last_error from postrider.watches")
        .await;
    let later: bool = database
        .value("select bool_and(next_try > now() and tries = 1) from postrider.changes")
        .await;
    database.endpoint("e", "http://127.0.0.1:1/").await;
    database
        .sql("update postrider.changes set next_try = now(); select postrider.publish_changes()")
        .await;

    assert_eq!(said, "2 2 there is no endpoint e");
    assert!(later);
    assert_eq!(
        members(&database, &["/record/id"]).await,
        [json!([1]), json!([2])]
    );
}

#[tokio::test]
async fn who_writes_does_not_wait_for_somebody_who_deletes_the_endpoint() {
    let database = watched("name => 'w'").await;
    let other = database.connect().await;
    other
        .batch_execute("begin; delete from postrider.endpoints where name = 'e'")
        .await
        .expect("nothing is queued for it");

    // It would wait for ever: the other's transaction does not end by itself.
    database.sql("insert into orders values (1)").await;
    let left = count(&database, "postrider.changes").await;
    other.batch_execute("rollback").await.expect("its end");
    database.sql("select postrider.publish_changes()").await;

    assert_eq!((left, events(&database).await.len()), (1, 1));
}

#[tokio::test]
async fn a_lock_on_our_tables_that_the_writer_gives_up_waiting_for_is_no_error_of_its_own() {
    let database = watched("name => 'w'").await;
    let other = database.connect().await;
    other
        .batch_execute("begin; lock table postrider.changes")
        .await
        .expect("nobody holds it");

    for rows in ["1, 1", "2, 500", "501, 2000"] {
        database
            .sql(&format!(
                "set lock_timeout = '50ms'; insert into orders select n from generate_series({rows}) n; reset lock_timeout"
            ))
            .await;
    }
    other.batch_execute("rollback").await.expect("its end");

    assert_eq!(count(&database, "orders").await, 2000);
    assert_eq!(errors(&database).await, ["w 55P03 3"]);
}

#[tokio::test]
async fn what_waits_is_not_overtaken_by_what_comes_later() {
    let database = watched("name => 'w'").await;
    database
        .sql("insert into orders select n from generate_series(1, 101) n; insert into orders values (102)")
        .await;
    assert_eq!(events(&database).await.len(), 0);

    database.sql("select postrider.publish_changes()").await;
    database.sql("insert into orders values (103)").await;

    let ids = members(&database, &["/record/id"]).await;
    let expected: Vec<_> = (1..=103).map(|id| json!([id])).collect();
    assert_eq!(ids, expected);
}

#[tokio::test]
async fn many_statements_in_a_transaction_take_few_subtransactions() {
    let database = watched("name => 'w'").await;

    database
        .sql("do $$ begin for n in 1 .. 500 loop insert into orders values (n); end loop; end $$")
        .await;
    // Each subtransaction that writes leaves its own number in the rows it wrote.
    let writers: i64 = database
        .value("select count(distinct xmin) from (select xmin::text from postrider.deliveries union all select xmin::text from postrider.changes) r (xmin)")
        .await;
    database.sql("select postrider.publish_changes(1000)").await;

    assert!((2..=25).contains(&writers), "{writers}");
    let ids = members(&database, &["/record/id"]).await;
    let expected: Vec<_> = (1..=500).map(|id| json!([id])).collect();
    assert_eq!(ids, expected);
}

#[tokio::test]
async fn a_serializable_writer_leaves_it_to_workers() {
    let database = watched("name => 'w'").await;

    for level in ["serializable", "repeatable read"] {
        database
            .sql(&format!(
                "begin isolation level {level}; insert into orders select max(id) + 1 from (select id from orders union all select 0) o; commit"
            ))
            .await;
    }

    assert_eq!(events(&database).await.len(), 0);
    assert_eq!(count(&database, "postrider.changes").await, 2);
}

#[tokio::test]
async fn a_writer_needs_no_right_on_postrider_and_the_tables_owner_needs_a_producers() {
    let database = orders().await;
    let (owner, writer) = (
        format!("{}_owner", database.name()),
        format!("{}_writer", database.name()),
    );
    database
        .sql(&format!(
            "create role {owner}; create role {writer}; create schema shop authorization {owner};
             create table shop.items (id int, secret text); alter table shop.items owner to {owner};
             grant usage on schema shop to {writer}; grant insert on shop.items to {writer};
             set role {owner}"
        ))
        .await;
    let watch = "select postrider.watch('shop.items', endpoint => 'e', condition => $$current_user = 'nobody' or new.id > 0$$)";
    let (without, _) = refused(&database, watch).await;
    database
        .sql(&format!(
            "reset role; select postrider.grant_producer('{owner}'); set role {owner}; {watch}; reset role;
             set role {writer}; insert into shop.items values (1); reset role"
        ))
        .await;
    let facts: Vec<String> = database
        .value(
            "select array[p.proowner::regrole::text, p.prosecdef::text, has_function_privilege('public', p.oid, 'execute')::text]
               from pg_proc p where p.proname like 'postrider_watch_%'",
        )
        .await;
    let published = events(&database).await.len();

    // Somebody takes the owner's rights away later: the writer is told, and goes on.
    database
        .sql(&format!(
            "select postrider.revoke('{owner}'); set role {writer};
             insert into shop.items values (2); insert into shop.items select n from generate_series(3, 2000) n; reset role"
        ))
        .await;

    assert_eq!(without, "42501");
    assert_eq!(facts, [owner, "true".to_owned(), "false".to_owned()]);
    assert_eq!((published, events(&database).await.len()), (1, 1));
    assert_eq!(count(&database, "shop.items").await, 2000);
}

#[tokio::test]
async fn without_our_schema_the_table_is_written_as_ever() {
    let database = Database::private().await;
    database.endpoint("e", "http://127.0.0.1:1/").await;
    database
        .sql(
            "set search_path = public; create table orders (id int); select postrider.watch('orders', endpoint => 'e');
             drop schema postrider cascade;
             insert into orders values (1); insert into orders select n from generate_series(1, 2000) n; delete from orders where id = 1",
        )
        .await;

    assert_eq!(count(&database, "orders").await, 1999);
}

#[tokio::test]
async fn a_read_only_transaction_is_refused_by_postgresql_itself() {
    let database = orders().await;

    let (state, _) = refused(
        &database,
        "begin read only; select postrider.watch('orders', endpoint => 'e')",
    )
    .await;
    database.sql("rollback").await;

    assert_eq!(state, "25006");
    assert_eq!(count(&database, "postrider.watches").await, 0);
}
