//! Bulk actions by filter, and deliveries for later: from SQL, as people call them, and by the commands over it.

use serde_json::Value;

use crate::contract::plans::buffers;
use crate::support::process::on;
use crate::support::receiver::{Gate, Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// Endpoints a and b, each with open deliveries 1 to 5 of two types; the first two of each have failed once.
async fn open_rows(database: &Database) {
    database
        .sql(
            "insert into postrider.endpoints (name, url) values ('a', 'http://127.0.0.1:1/'), ('b', 'http://127.0.0.1:1/');
             insert into postrider.deliveries (endpoint, event_type, payload, status, created_at)
             select e, case when n % 2 = 0 then 'even' else 'odd' end, '{}', case when n < 3 then 'failed' else 'queued' end,
                    now() - (10 - n) * interval '1 h'
               from generate_series(1, 5) n, unnest(array['a', 'b']) e",
        )
        .await;
}

async fn count(database: &Database, condition: &str) -> i64 {
    database
        .value(&format!(
            "select count(*) from postrider.deliveries where {condition}"
        ))
        .await
}

async fn refused(database: &Database, call: &str) -> String {
    let error = database.client().query(call, &[]).await;
    let error = error.expect_err(call);
    error.code().expect("the server's").code().to_owned()
}

/// Exit code, standard output and standard error of a command.
fn run(database: &Database, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = on(database, arguments).output().expect("it runs");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[tokio::test]
async fn a_cancel_takes_what_every_part_of_its_filter_says_and_nothing_else() {
    let database = Database::fresh().await;
    open_rows(&database).await;

    for (filter, matching) in [
        ("endpoint => 'a'", 5),
        ("event_type => 'even'", 4),
        ("status => 'failed'", 4),
        (
            "endpoint => 'b', event_type => 'odd', status => 'queued'",
            2,
        ),
        ("since => now() - interval '7 h 30 min'", 6),
        ("until => now() - interval '7 h 30 min'", 4),
        ("endpoint => 'nobody'", 0),
        ("since => '-infinity'", 10),
    ] {
        let dry: i64 = database
            .value(&format!(
                "select postrider.cancel_matching({filter}, max_rows => 1, dry_run => true)"
            ))
            .await;
        assert_eq!(dry, matching, "{filter}");
        assert_eq!(count(&database, "next_retry is not null").await, 10);

        database.sql("begin").await;
        let done: i64 = database
            .value(&format!("select postrider.cancel_matching({filter})"))
            .await;
        let ended = count(
            &database,
            "exhausted_reason = 'cancelled' and finished_at = now()",
        )
        .await;
        let again: i64 = database
            .value(&format!("select postrider.cancel_matching({filter})"))
            .await;
        database.sql("rollback").await;
        assert_eq!((done, ended, again), (matching, matching, 0), "{filter}");
    }
}

#[tokio::test]
async fn a_cancel_without_a_filter_or_of_what_has_ended_is_refused() {
    let database = Database::fresh().await;
    open_rows(&database).await;

    let call = |arguments: &str| format!("select postrider.cancel_matching({arguments})");
    assert_eq!(refused(&database, &call("")).await, "PR016");
    assert_eq!(refused(&database, &call("max_rows => 5")).await, "PR016");
    assert_eq!(
        refused(&database, &call("status => 'delivered'")).await,
        "PR017"
    );
    let replay = "select postrider.replay_matching(status => 'queued')";
    assert_eq!(refused(&database, replay).await, "PR017");
    assert_eq!(count(&database, "next_retry is not null").await, 10);
}

#[tokio::test]
async fn a_cancel_is_bounded_and_leaves_out_what_somebody_else_holds() {
    let database = Database::fresh().await;
    open_rows(&database).await;
    let other = database.connect().await;
    other
        .batch_execute("begin; select from postrider.deliveries where id = (select min(id) from postrider.deliveries where endpoint = 'a') for update")
        .await
        .expect("a lock");
    let cancel = "select postrider.cancel_matching('a', max_rows => 3)";

    let mut batches = Vec::new();
    for _ in 0..3 {
        batches.push(database.value::<i64>(cancel).await);
    }

    assert_eq!(batches, [3, 1, 0]);
    other.batch_execute("rollback").await.expect("released");
    assert_eq!(database.value::<i64>(cancel).await, 1);
    assert_eq!(count(&database, "next_retry is not null").await, 5, "b's");
}

#[tokio::test]
async fn a_cancelled_try_in_flight_is_on_record_and_its_true_outcome_replaces_that() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.script(vec![Script::status(200).behind(&gate); 3]);
    database
        .endpoint("shop", &receiver.url("/"))
        .set("max_in_flight", 3)
        .await;
    database
        .sql("insert into postrider.deliveries (endpoint, event_type, payload) select 'shop', 't', '{}' from generate_series(1, 5)")
        .await;
    let _worker = Worker::spawn(&database, &[]);
    receiver.wait_for_requests(3).await;

    let cancelled: i64 = database
        .value("select postrider.cancel_matching('shop')")
        .await;
    let outcomes = "select coalesce(string_agg(outcome, ' ' order by delivery_id), '') from postrider.attempts";
    let at_first: String = database.value(outcomes).await;
    gate.open();

    assert_eq!((cancelled, at_first.as_str()), (5, "lost lost lost"));
    let look = async || database.value::<String>(outcomes).await;
    let truth = "delivered delivered delivered";
    wait_until("the truth is on record", look, |seen| seen == truth, SOON).await;
    let tries =
        "exhausted_reason = 'cancelled' and attempt_count = case when id <= 3 then 1 else 0 end";
    assert_eq!(count(&database, tries).await, 5);
    assert_eq!(receiver.requests().len(), 3);
}

#[tokio::test]
async fn c48_cancel_by_filter_empties_the_backlog_of_a_storm() {
    let database = Database::private().await;
    let receiver = Receiver::start().await;
    database.endpoint("storm", &receiver.url("/")).await;
    // Each delivery makes one more, as a receiver that calls back would.
    database
        .sql(
            "create function storm() returns trigger language plpgsql as $$ begin
               insert into postrider.deliveries (endpoint, event_type, payload) values ('storm', 't', '{}'); return null; end $$;
             create trigger storm after insert on postrider.attempts for each row execute function storm();
             insert into postrider.deliveries (endpoint, event_type, payload) select 'storm', 't', '{}' from generate_series(1, 2500)",
        )
        .await;
    let _worker = Worker::spawn(&database, &[]);
    receiver.wait_for_requests(100).await;

    // While it goes on, cancelling what was queued before comes to an end.
    let (code, said, errors) = run(
        &database,
        &["delivery", "cancel", "--endpoint", "storm", "--yes"],
    );
    assert!(matches!(code, Some(0 | 1)), "{said}{errors}");
    database.sql("select postrider.pause('storm')").await;
    let flying = async || count(&database, "lease_expires_at > now()").await;
    wait_until("the last tries have ended", flying, |n| *n == 0, SOON).await;
    let mut batches = 0;
    while database
        .value::<i64>("select postrider.cancel_matching('storm')")
        .await
        > 0
    {
        batches += 1;
        assert!(batches < 20, "it does not end");
    }

    assert_eq!(count(&database, "next_retry is not null").await, 0);
}

#[tokio::test]
async fn the_command_counts_asks_and_cancels_in_batches() {
    let database = Database::fresh().await;
    open_rows(&database).await;
    database
        .sql("insert into postrider.deliveries (endpoint, event_type, payload) select 'a', 'many', '{}' from generate_series(1, 2500)")
        .await;

    let dry = run(
        &database,
        &["delivery", "cancel", "--event-type", "many", "--dry-run"],
    );
    assert_eq!(
        dry,
        (
            Some(0),
            "2500 open deliveries match\n".to_owned(),
            String::new()
        )
    );
    let (code, _, hint) = run(&database, &["delivery", "cancel", "--endpoint", "a"]);
    assert_eq!(code, Some(2), "nobody is there to ask");
    assert!(hint.contains("--yes"), "{hint}");
    let (code, _, hint) = run(&database, &["delivery", "cancel"]);
    assert_eq!(code, Some(2), "{hint}");
    let (code, _, hint) = run(
        &database,
        &["delivery", "cancel", "--endpoint", "nobody", "--yes"],
    );
    assert!(
        code == Some(1) && hint.contains("there is no endpoint nobody"),
        "{hint}"
    );
    assert_eq!(count(&database, "next_retry is null").await, 0);

    let done = run(
        &database,
        &["delivery", "cancel", "--event-type", "many", "--yes"],
    );
    assert_eq!(done.1, "2500 open deliveries match\n2500 cancelled\n");
    let narrow = [
        "delivery",
        "cancel",
        "--endpoint",
        "a",
        "--status",
        "failed",
        "--until",
        "8h30m",
        "--yes",
    ];
    assert_eq!(
        run(&database, &narrow).1,
        "1 open deliveries match\n1 cancelled\n"
    );
    let all = run(&database, &["delivery", "cancel", "--all", "--yes"]);
    assert_eq!(all.1, "9 open deliveries match\n9 cancelled\n");
}

#[tokio::test]
async fn c33_a_dry_run_counts_all_that_a_replay_in_batches_then_sends() {
    let database = Database::fresh().await;
    database.endpoint("gone", "http://127.0.0.1:1/").await;
    database.endpoint("other", "http://127.0.0.1:1/").await;
    database
        .sql(
            "insert into postrider.deliveries (endpoint, event_type, payload) select 'gone', 't', '{}' from generate_series(1, 10000);
             select postrider.disable('gone')",
        )
        .await;
    let mut worker = Worker::spawn(&database, &["--drain"]);
    assert_eq!(worker.wait().await.code(), Some(0));
    let dry = "select postrider.replay_matching('gone', reason => 'endpoint_disabled', max_rows => 10, dry_run => true)";
    let disabled: i64 = database.value(dry).await;
    database.sql("select postrider.enable('gone')").await;

    let counted: i64 = database.value(dry).await;
    let mut batches = Vec::new();
    loop {
        let batch: i64 = database
            .value("select postrider.replay_matching('gone', max_rows => 4000)")
            .await;
        if batch == 0 {
            break;
        }
        batches.push(batch);
    }

    assert_eq!((disabled, counted), (0, 10_000));
    assert_eq!(batches, [4000, 4000, 2000]);
    assert_eq!(
        count(&database, "status = 'queued' and attempt_count = 0").await,
        10_000
    );
}

#[tokio::test]
async fn c34_a_replay_by_filter_leaves_open_rows_alone_and_two_at_once_are_one() {
    let database = Database::fresh().await;
    open_rows(&database).await;
    let end = "update postrider.deliveries set status = 'exhausted', exhausted_reason = 'rejected', finished_at = created_at,
                      next_retry = null, attempt_count = 1 where id % 2 = 0";
    database.sql(end).await;
    let (one, two) = (database.connect().await, database.connect().await);
    let replay = "select postrider.replay_matching(reason => 'rejected')";

    one.batch_execute("begin").await.expect("begun");
    let first: i64 = one
        .query_one(replay, &[])
        .await
        .expect("a row")
        .try_get(0)
        .expect("a count");
    let second: i64 = two
        .query_one(replay, &[])
        .await
        .expect("a row")
        .try_get(0)
        .expect("a count");
    one.batch_execute("commit").await.expect("committed");

    assert_eq!((first, second), (5, 0));
    assert_eq!(
        count(&database, "claim_no = 1 and budget_from = 1").await,
        5
    );
    assert_eq!(
        count(&database, "claim_no = 0 and next_retry is not null").await,
        5
    );
}

#[tokio::test]
async fn what_a_deadline_ended_is_replayed_by_filter_without_it() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let id = database
        .insert("shop", "{}")
        .set("deadline", "2000-01-01")
        .await;
    let _worker = Worker::spawn(&database, &[]);
    let ended = database.wait_for_status(id, "exhausted").await;
    assert_eq!(ended.exhausted_reason.as_deref(), Some("deadline"));

    let replayed: i64 = database
        .value("select postrider.replay_matching(reason => 'deadline')")
        .await;

    assert_eq!(replayed, 1);
    database.wait_for_status(id, "delivered").await;
}

#[tokio::test]
async fn a_null_from_a_variable_that_was_not_set_means_the_cautious_thing() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    database
        .sql("insert into postrider.deliveries (endpoint, event_type, payload) select 'shop', 't', '{}' from generate_series(1, 1500)")
        .await;
    let ask = async |call: &str| {
        database
            .value::<i64>(&format!("select postrider.{call}"))
            .await
    };

    let counted = ask("cancel_matching('shop', dry_run => null)").await;
    assert_eq!(count(&database, "next_retry is not null").await, 1500);
    let cancelled = ask("cancel_matching('shop', max_rows => null)").await;
    let dead = ask("replay_matching('shop', dry_run => null)").await;
    let rest = ask("cancel_matching('shop', max_rows => 0)").await;
    let status = refused(
        &database,
        "select postrider.replay_matching(status => null)",
    )
    .await;

    assert_eq!((counted, cancelled, dead, rest), (1500, 1000, 1000, 0));
    assert_eq!(status, "PR017");
    assert_eq!(count(&database, "next_retry is not null").await, 500);
}

#[tokio::test]
async fn the_oldest_dead_are_replayed_first() {
    let database = Database::fresh().await;
    open_rows(&database).await;
    database
        .sql(
            "update postrider.deliveries set status = 'exhausted', exhausted_reason = 'rejected', next_retry = null,
                    finished_at = now() - id * interval '1 min' where endpoint = 'a'",
        )
        .await;

    let two: i64 = database
        .value("select postrider.replay_matching('a', max_rows => 2)")
        .await;

    assert_eq!(two, 2);
    let replayed = "endpoint = 'a' and next_retry is not null
                    and id in (select id from postrider.deliveries where endpoint = 'a' order by id desc limit 2)";
    assert_eq!(count(&database, replayed).await, 2);
}

#[tokio::test]
async fn batches_cost_no_more_at_the_end_than_at_the_start_whatever_history_there_is() {
    let database = Database::private().await;
    database
        .sql(
            "insert into postrider.endpoints (name, url) values ('shop', 'http://127.0.0.1:1/'), ('other', 'http://127.0.0.1:1/');
             set session_replication_role = replica;
             insert into postrider.deliveries (endpoint, event_id, event_type, payload, status, next_retry, finished_at)
             select 'shop', 'd' || n, 't', '{}', 'delivered', null, now() from generate_series(1, 50000) n;
             insert into postrider.deliveries (endpoint, event_id, event_type, payload, status, next_retry, finished_at, exhausted_reason)
             select case when n % 2 = 0 then 'shop' else 'other' end, n::text, 't', '{}', 'exhausted', null, now() - n * interval '1 s', 'rejected'
               from generate_series(1, 40000) n;
             set session_replication_role = origin",
        )
        .await;
    let cost = async |call: &str| {
        let plan: Value = database
            .value(&format!(
                "explain (analyze, buffers, format json) select {call}"
            ))
            .await;
        buffers(&plan[0]["Plan"])
    };

    for call in [
        "postrider.replay_matching('shop', max_rows => 500)",
        "postrider.cancel_matching('shop', max_rows => 500)",
    ] {
        let mut costs = Vec::new();
        for _ in 0..38 {
            costs.push(cost(call).await);
        }
        let (early, late) = (costs[1], costs[37]);
        assert!(late < early * 2 && early < 500 * 60, "{call}: {costs:?}");
    }
    assert_eq!(
        count(&database, "status = 'exhausted' and endpoint = 'shop'").await,
        20_000
    );
    assert_eq!(
        count(&database, "exhausted_reason = 'cancelled'").await,
        19_000
    );
}

#[tokio::test]
async fn a_delivery_for_later_is_scheduled_and_can_be_cancelled_before_it_is_due() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let send = async |at: &str| -> i64 {
        let send = format!("select postrider.send('shop', 't', '{{}}', deliver_at => {at})");
        database.value(&send).await
    };
    let (tomorrow, never) = (
        send("now() + interval '1 day'").await,
        send("'infinity'").await,
    );
    let due = [
        send("'-infinity'").await,
        send("'0044-03-15 BC'").await,
        send("null").await,
        database
            .insert("shop", "{}")
            .set("next_retry", "-infinity")
            .await,
    ];
    let _worker = Worker::spawn(&database, &[]);

    for id in due {
        database.wait_for_status(id, "delivered").await;
    }
    let states: Vec<String> = database
        .value("select array_agg(state order by id) from postrider.delivery_state where id <= 2")
        .await;
    let cancelled: bool = database
        .value(&format!("select postrider.cancel({tomorrow})"))
        .await;
    let rest: i64 = database
        .value("select postrider.cancel_matching(endpoint => 'shop')")
        .await;

    assert_eq!((tomorrow, never), (1, 2));
    assert_eq!(states, ["scheduled", "scheduled"]);
    assert_eq!((cancelled, rest), (true, 1));
    assert_eq!(receiver.requests().len(), due.len());
}

#[tokio::test]
async fn c24_a_row_that_a_long_transaction_commits_late_is_found_by_filter_and_by_worker() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let long = database.connect().await;
    long.batch_execute("begin; insert into postrider.deliveries (endpoint, event_type, payload) values ('shop', 'late', '{}'), ('shop', 'late', '{}')")
        .await
        .expect("inserted");
    let early = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &[]);
    database.wait_for_status(early, "delivered").await;
    database.sql("select postrider.pause('shop')").await;

    long.batch_execute("commit").await.expect("committed");
    let cancelled: i64 = database
        .value("select postrider.cancel_matching(event_type => 'late', max_rows => 1)")
        .await;
    database.sql("select postrider.resume('shop')").await;

    assert_eq!(cancelled, 1);
    database.wait_for_status(2, "delivered").await;
}
