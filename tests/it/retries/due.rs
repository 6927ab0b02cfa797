//! When a delivery is due: one clock, whatever anybody's time zone, transaction or infinity says.

use tokio_postgres::Client;

use crate::support::process::on;
use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// Waits until some worker sleeps, having found nothing to do.
async fn asleep(database: &Database) {
    let sleeping =
        "select coalesce(bool_and(sleeping_until > now()), false) from postrider.workers";
    let look = async || database.value::<bool>(sleeping).await;
    wait_until("the worker sleeps", look, |asleep| *asleep, SOON).await;
}

async fn run(session: &Client, statements: &str) {
    let done = session.batch_execute(statements).await;
    done.unwrap_or_else(|error| panic!("{error:?}"));
}

#[tokio::test]
async fn c23_three_time_zones_over_a_clock_change_are_due_within_a_second() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/hook")).await;
    database
        .sql(&format!(
            "alter database {} set timezone = 'Asia/Kolkata'",
            database.name()
        ))
        .await;
    let mut command = on(&database, &["worker", "--allow-network", "127.0.0.0/8"]);
    command
        .env("TZ", "America/St_Johns")
        .env("PGTZ", "Pacific/Chatham");
    let _worker = Worker::run(command);
    asleep(&database).await;

    let producer = database.connect().await;
    run(
        &producer,
        "set timezone = 'Australia/Lord_Howe';
         insert into postrider.deliveries (endpoint, event_type, payload, event_id) values ('shop', 'a', '{}', 'now');
         insert into postrider.deliveries (endpoint, event_type, payload, event_id, next_retry)
         values ('shop', 'a', '{}', 'soon', clock_timestamp() + interval '400 ms');
         insert into postrider.deliveries (endpoint, event_type, payload, event_id, next_retry)
         select 'shop', 'a', '{}', 'text', (clock_timestamp() + interval '600 ms')::text::timestamptz;
         create table wanted as select event_id, next_retry from postrider.deliveries;",
    )
    .await;
    let requests = receiver.wait_for_requests(3).await;

    let order: Vec<_> = requests
        .iter()
        .map(|r| r.header("webhook-id").concat())
        .collect();
    assert_eq!(order, ["now", "soon", "text"]);
    let recorded = "select count(*) from postrider.attempts";
    let look = async || database.value::<i64>(recorded).await;
    wait_until("all are on record", look, |count| *count == 3, SOON).await;
    for (id, early, late) in [(1, -1.0, 1.0), (2, 0.0, 1.0), (3, 0.0, 1.0)] {
        let lag: f64 = database
            .value(&format!(
                "select extract(epoch from a.started_at - w.next_retry)::float8 from postrider.attempts a
                   join postrider.deliveries d on d.id = a.delivery_id join wanted w using (event_id) where d.id = {id}"
            ))
            .await;
        assert!((early..late).contains(&lag), "delivery {id}: {lag} s");
    }
}

#[tokio::test]
async fn c23_a_days_delay_is_24_hours_in_every_time_zone() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::status(500)]);
    database
        .sql(&format!(
            "insert into postrider.retry_policies (name, kind, delays, jitter, max_retries)
             values ('yearly', 'schedule', '{{200 days}}', 0, 1);
             alter database {} set timezone = 'America/New_York'",
            database.name()
        ))
        .await;
    database
        .endpoint("shop", &receiver.url("/hook"))
        .set("retry_policy", "yearly")
        .await;
    let id = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &[]);

    database.wait_for_status(id, "failed").await;

    let [attempt] = database.attempts(id).await.try_into().unwrap();
    let hours = attempt.retry_after.expect("it was decided") / 3600.0;
    assert!(
        (hours - 4800.0).abs() < 0.01,
        "200 days of 24 hours, not {hours} h"
    );
}

#[tokio::test]
async fn c24_a_row_that_a_long_transaction_commits_late_is_delivered() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/hook")).await;
    let slow = database.connect().await;
    run(
        &slow,
        "begin;
         insert into postrider.deliveries (endpoint, event_type, payload, event_id) values ('shop', 'a', '{}', 'late')",
    )
    .await;
    let _worker = Worker::spawn(&database, &[]);
    // Younger rows have long passed it by id, by time and on the wire.
    for n in 0..3 {
        let id = database
            .insert("shop", "{}")
            .set("event_id", format!("{n}"))
            .await;
        database.wait_for_status(id, "delivered").await;
    }
    asleep(&database).await;

    run(&slow, "commit").await;

    let requests = receiver.wait_for_requests(4).await;
    assert_eq!(requests[3].header("webhook-id"), ["late"]);
}

#[tokio::test]
async fn a_row_for_later_waits_and_holds_nobody_up() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/hook")).await;
    let later = database
        .value::<i64>("select postrider.send('shop', 'a', '{}', 'later', now() + interval '1 h')")
        .await;
    let never = database
        .insert("shop", "{}")
        .set("next_retry", "infinity")
        .await;
    let long_ago = database
        .insert("shop", "{}")
        .set("next_retry", "-infinity")
        .set("created_at", "infinity")
        .await;
    let now = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &[]);

    for id in [long_ago, now] {
        database.wait_for_status(id, "delivered").await;
    }
    asleep(&database).await;
    for id in [later, never] {
        let waiting = database.delivery(id).await;
        assert_eq!(
            (waiting.status.as_str(), waiting.attempt_count),
            ("queued", 0)
        );
    }
    assert_eq!(receiver.requests().len(), 2);
    let state = format!("select state from postrider.delivery_state where id = {later}");
    assert_eq!(database.value::<String>(&state).await, "scheduled");

    database
        .sql("update postrider.deliveries set next_retry = now() where event_id = 'later'")
        .await;

    database.wait_for_status(later, "delivered").await;
}

#[tokio::test]
async fn an_infinite_time_in_any_column_of_a_user_stops_nothing() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::status(503), Script::status(503)]);
    database
        .endpoint("shop", &receiver.url("/hook"))
        .set("created_at", "-infinity")
        .set("rate_limit", 1000)
        .await;
    database
        .sql(
            "update postrider.endpoints set updated_at = 'infinity', created_at = 'infinity';
             update postrider.endpoint_secrets set created_at = 'infinity', expires_at = 'infinity';
             insert into postrider.endpoint_secrets (endpoint, secret, created_at, expires_at)
             select endpoint, postrider.new_secret(), '-infinity', '-infinity' from postrider.endpoint_secrets;",
        )
        .await;
    let worker = Worker::spawn(&database, &[]);
    let first = database
        .insert("shop", "{}")
        .set("next_retry", "-infinity")
        .await;
    let second = database
        .insert("shop", "{}")
        .set("created_at", "-infinity")
        .await;
    for id in [first, second] {
        database.wait_for_status(id, "failed").await;
    }

    database
        .sql(&format!(
            "update postrider.deliveries set next_retry = 'infinity' where id = {first};
             update postrider.deliveries set next_retry = '-infinity' where id = {second};"
        ))
        .await;

    database.wait_for_status(second, "delivered").await;
    let first = database.delivery(first).await;
    assert_eq!(
        (first.status.as_str(), first.due_in),
        ("failed", Some(f64::INFINITY))
    );
    let [request, ..] = &receiver.requests()[..] else {
        panic!("it came")
    };
    assert_eq!(request.header("webhook-signature")[0].split(' ').count(), 1);
    let views = "select (select count(*) from postrider.delivery_state) + (select count(*) from postrider.due_now)
                      + (select count(*) from postrider.endpoint_summary) + (select count(*) from postrider.success_rate)";
    assert!(database.value::<i64>(views).await >= 4, "every view reads");
    assert!(!worker.said().contains("ERROR"), "{}", worker.said());
}

#[tokio::test]
async fn an_edit_of_endpoint_or_policy_reaches_the_next_try_of_a_row_that_waits() {
    let database = Database::fresh().await;
    let (before, after) = (Receiver::start().await, Receiver::start().await);
    before.script([Script::status(500)]);
    after.script([403, 403].map(Script::status));
    database
        .sql(
            "insert into postrider.retry_policies (name, kind, delays, jitter, max_retries)
             values ('mine', 'schedule', '{1 h}', 0, 9)",
        )
        .await;
    database
        .endpoint("shop", &before.url("/hook"))
        .set("retry_policy", "mine")
        .await;
    let id = database.insert("shop", "{\"a\":1.00}").await;
    let _worker = Worker::spawn(&database, &["--poll-interval", "20ms"]);
    database.wait_for_status(id, "failed").await;

    database
        .sql(&format!(
            "update postrider.endpoints set url = '{}', method = 'PUT', headers = '{{\"X-Team\": \"depot\"}}';
             update postrider.retry_policies set retry_on = '{{403}}', delays = '{{0}}', max_retries = 2 where name = 'mine';
             update postrider.deliveries set next_retry = now();",
            after.url("/other")
        ))
        .await;

    let ended = database.wait_for_status(id, "exhausted").await;
    assert_eq!(ended.exhausted_reason.as_deref(), Some("retries_used"));
    assert_eq!((before.requests().len(), after.requests().len()), (1, 2));
    for request in after.requests() {
        assert_eq!(request.request_line(), "PUT /other HTTP/1.1");
        assert_eq!(request.header("x-team"), ["depot"]);
        assert_eq!(request.body, b"{\"a\":1.00}");
    }
}
