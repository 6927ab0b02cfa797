use super::*;

/// The SQLSTATE of statements sent as one text, in the simple protocol, as `psql -c` does.
async fn state_of(session: &Client, statements: &str) -> String {
    let outcome = session.simple_query(statements).await;
    run_on(session, "rollback").await;
    match outcome {
        Ok(_) => "none".to_owned(),
        Err(error) => Refused::from(error).state,
    }
}

async fn rows(database: &Database) -> i64 {
    database
        .value("select count(*) from postrider.deliveries")
        .await
}

#[tokio::test]
async fn inside_a_transaction_block_it_says_so_and_leaves_nothing() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let session = database.client();
    run_on(
        session,
        "create function public.wrapped() returns int language plpgsql as $$
         declare status int; body bytea;
         begin call postrider.deliver_now('shop', 'test.event', '{}', '1 s', status, body); return status; end $$;
         create procedure public.definer() language plpgsql security definer as $$
         declare status int; body bytea;
         begin call postrider.deliver_now('shop', 'test.event', '{}', '1 s', status, body); end $$",
    )
    .await;
    let call_it = "call postrider.deliver_now('shop', 'test.event', '{}', '1 s')";
    let in_a_do = "do $$ declare status int; body bytea;
                   begin call postrider.deliver_now('shop', 'test.event', '{}', '1 s', status, body); end $$";

    for statements in [
        &format!("begin; {call_it}"),
        &format!("select 1; {call_it}"),
        &format!("begin; {in_a_do}"),
        "select public.wrapped()",
        "call public.definer()",
        &format!("begin; savepoint one; {call_it}"),
    ] {
        assert_eq!(state_of(session, statements).await, "PR009", "{statements}");
    }
    run_on(session, "begin").await;
    let by_extended_protocol = refused(call(session, "shop", "{}", "1 s").await, "PR009");
    run_on(session, "rollback; begin isolation level serializable").await;
    refused(call(session, "shop", "{}", "1 s").await, "PR009");
    run_on(session, "rollback").await;

    assert!(by_extended_protocol.hint.contains("postrider.send"));
    assert_eq!(rows(&database).await, 0);
}

#[tokio::test]
async fn a_block_that_catches_errors_cannot_wait_and_leaves_nothing() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;

    let caught = "do $$ declare status int; body bytea;
        begin
          begin call postrider.deliver_now('shop', 'test.event', '{}', '1 s', status, body);
          exception when division_by_zero then null; end;
        end $$";
    let state = state_of(database.client(), caught).await;

    assert!(["PR009", "2D000"].contains(&state.as_str()), "{state}");
    assert_eq!(rows(&database).await, 0);
}

#[tokio::test]
async fn every_way_that_commits_by_itself_can_wait() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let _worker = idle_worker(&database).await;
    let session = database.client();

    let text = "call postrider.deliver_now('shop', 'test.event', '{}', timeout => '20 s')";
    let simple = session.simple_query(text).await.expect("delivered");
    let prepared = session.prepare(text).await.expect("it is prepared");
    let prepared = session.query(&prepared, &[]).await.expect("delivered");
    run_on(
        session,
        "do $$ declare status int; body bytea;
         begin
           call postrider.deliver_now('shop', 'test.event', '{}', '20 s', status, body);
           if status <> 200 then raise 'no answer'; end if;
         end $$",
    )
    .await;

    let [_, SimpleQueryMessage::Row(row), ..] = &simple[..] else {
        panic!("{simple:?}");
    };
    assert_eq!(row.get(0), Some("200"));
    assert_eq!(prepared[0].try_get(0).ok(), Some(200));
    assert_eq!(receiver.requests().len(), 3);
}

#[tokio::test]
async fn any_default_isolation_will_do_and_a_read_only_session_is_told() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let worker = idle_worker(&database).await;
    let session = database.client();

    for level in ["repeatable read", "serializable"] {
        run_on(
            session,
            &format!("set default_transaction_isolation = '{level}'"),
        )
        .await;
        call(session, "shop", "{}", "20 s")
            .await
            .expect("delivered");
    }
    run_on(session, "set default_transaction_read_only = on").await;
    let read_only = refused(call(session, "shop", "{}", "20 s").await, "25006");
    run_on(session, "set default_transaction_read_only = off").await;
    drop(worker);
    server_is_done(&database).await;
    refused(call(session, "shop", "{}", "100 ms").await, "PR008");

    assert!(read_only.hint.contains("default_transaction_read_only"));
    assert_eq!(receiver.requests().len(), 2);
}

#[tokio::test]
async fn what_could_not_work_is_refused_at_once_and_leaves_nothing() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    database.endpoint("off", "http://127.0.0.1:1/").await;
    database.endpoint("held", "http://127.0.0.1:1/").await;
    database
        .sql("select postrider.disable('off'), postrider.pause('held')")
        .await;
    let session = database.client();

    for timeout in [
        "0",
        "-1 s",
        "1 h 1 s",
        "1000000 years",
        "1 mon -30 days",
        "0.5 ms",
    ] {
        let refused = refused(call(session, "shop", "{}", timeout).await, "22023");
        assert!(refused.hint.contains("10 s"), "{refused:?}");
    }
    refused(call(session, "nobody", "{}", "1 h").await, "PR004");
    refused(call(session, "off", "{}", "1 h").await, "PR005");
    let paused = refused(call(session, "held", "{}", "1 h").await, "PR008");
    assert!(
        paused.hint.contains("postrider.resume('held')"),
        "{paused:?}"
    );
    for (arguments, state) in [
        ("'shop', 'test.event', '{}', null", "22023"),
        ("'shop', null, '{}'", "22004"),
        ("'shop', 'test.event', null", "22004"),
        ("null, 'test.event', '{}'", "PR004"),
        ("'shop', 'test.event', 'no json'", "22P02"),
    ] {
        let text = format!("call postrider.deliver_now({arguments})");
        assert_eq!(state_of(session, &text).await, state, "{arguments}");
    }
    assert_eq!(rows(&database).await, 0);
}

#[tokio::test]
async fn a_producer_needs_no_more_than_its_part_and_its_path_is_not_trusted() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let _worker = idle_worker(&database).await;
    let role = format!("{}_producer", database.name());
    database
        .sql(&format!(
            "create role {role};
             select postrider.grant_producer('{role}');
             create schema trap;
             grant usage on schema trap to {role};
             create function trap.now() returns timestamptz language plpgsql as 'begin raise ''trapped''; end';
             create function trap.pg_sleep(float8) returns void language plpgsql as 'begin raise ''trapped''; end';
             create table trap.deliveries (id int)"
        ))
        .await;
    let producer = database.connect().await;
    run_on(
        &producer,
        &format!("set role {role}; set search_path = trap, pg_catalog"),
    )
    .await;

    let outcome = call(&producer, "shop", "{}", "20 s").await;

    assert_eq!(outcome.expect("delivered").0, Some(200));
    let reads = producer
        .simple_query("select * from postrider.deliveries")
        .await;
    assert_eq!(Refused::from(reads.expect_err("it may not")).state, "42501");
}

#[tokio::test]
async fn the_steps_of_a_call_neither_read_nor_end_a_delivery_that_nobody_waits_for() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let id = database.insert("shop", "{}").set("event_id", "evt_1").await;
    let session = database.client();

    let outcome = state_of(
        session,
        "select * from postrider.deliver_now_outcome('shop', 'evt_1')",
    )
    .await;
    run_on(
        session,
        "select postrider.deliver_now_end('shop', 'evt_1', null)",
    )
    .await;

    assert_eq!(outcome, "PR007");
    assert_eq!(database.delivery(id).await.status, "queued");
}

#[tokio::test]
async fn the_start_of_a_body_is_one_line_of_text_whatever_it_holds() {
    let database = Database::fresh().await;

    for (body, shown) in [
        ("convert_to('a' || chr(10) || 'b', 'UTF8')", "a b"),
        (
            "convert_to(repeat('x', 299) || 'üü', 'UTF8')",
            &*"x".repeat(299),
        ),
        ("'\\x41ff00'::bytea", "A\\377\\000"),
        ("''::bytea", ""),
    ] {
        let text: String = database
            .value(&format!("select postrider.start_of({body})"))
            .await;
        assert_eq!(text, shown, "{body}");
    }
}
