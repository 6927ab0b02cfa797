use std::time::Duration;

use super::{count, fill};
use crate::support::receiver::{Gate, Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// Of the worker, in this database.
const THEIRS: &str = "pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
                        and backend_type = 'client backend' and application_name <> 'postrider tests'";

async fn asleep(database: &Database, workers: i64) {
    let asleep = async || count(database, "postrider.workers where sleeping_until > now()").await;
    wait_until("they sleep", asleep, |n| *n == workers, SOON).await;
}

#[tokio::test]
async fn the_doorbell_wakes_a_worker_that_would_sleep_for_long() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let _worker = Worker::spawn(&database, &["--poll-interval", "10m"]);
    asleep(&database, 1).await;
    let listens = async || {
        count(
            &database,
            &format!("{THEIRS} and query = 'listen postrider'"),
        )
        .await
    };
    wait_until("it listens", listens, |n| *n == 1, SOON).await;

    for _ in 0..3 {
        asleep(&database, 1).await;
        let id = database.insert("shop", "{}").await;
        let delivered = async || database.delivery(id).await.status;
        let second = Duration::from_secs(1);
        wait_until(
            "it is delivered",
            delivered,
            |status| status == "delivered",
            second,
        )
        .await;
    }

    let until: f64 = database
        .value("select extract(epoch from sleeping_until - last_seen_at)::float8 from postrider.workers")
        .await;
    assert!(
        until > 600.0,
        "the doorbell is wanted for the whole sleep, not for {until} s"
    );
}

#[tokio::test]
async fn nobody_rings_while_all_workers_are_awake() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.script(vec![Script::status(200).behind(&gate); 2]);
    database.endpoint("shop", &receiver.url("/")).await;
    let listener = database.connect().await;
    listener
        .batch_execute("listen postrider")
        .await
        .expect("it listens");
    let pending = "select pg_notification_queue_usage() > 0";
    let _worker = Worker::spawn(
        &database,
        &["--concurrency", "1", "--no-listen", "--poll-interval", "1h"],
    );
    database.insert("shop", "{}").await;
    receiver.wait_for_requests(1).await;

    // Its one slot is taken, so it does not look, and does not sleep either.
    let awake = count(&database, "postrider.workers where sleeping_until is null").await;
    database.insert("shop", "{}").await;

    assert_eq!(awake, 1);
    assert!(!database.value::<bool>(pending).await);
    gate.open();
    receiver.wait_for_requests(2).await;
}

#[tokio::test]
async fn without_a_doorbell_a_poll_finds_what_is_new() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let worker = Worker::spawn(&database, &["--no-listen", "--poll-interval", "200ms"]);
    worker.wait_for_line("LISTEN is off").await;
    asleep(&database, 1).await;

    let id = database.insert("shop", "{}").await;

    database.wait_for_status(id, "delivered").await;
    let listens = count(&database, &format!("{THEIRS} and query like 'listen%'")).await;
    assert_eq!(listens, 0);
}

#[tokio::test]
async fn a_scheduled_delivery_is_sent_when_it_is_due_and_not_at_the_next_poll() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    database
        .sql("insert into postrider.deliveries (endpoint, event_type, payload, next_retry) values ('shop', 't', '{}', now() + interval '1500 ms')")
        .await;

    let _worker = Worker::spawn(&database, &["--poll-interval", "1h"]);
    receiver.wait_for_requests(1).await;
    let recorded = async || count(&database, "postrider.attempts").await;
    wait_until("it is on record", recorded, |n| *n == 1, SOON).await;

    let late: f64 = database
        .value("select extract(epoch from a.started_at - d.created_at)::float8 - 1.5 from postrider.attempts a, postrider.deliveries d")
        .await;
    assert!((0.0..1.0).contains(&late), "{late} s late");
}

#[tokio::test]
async fn c40_an_idle_worker_asks_once_in_a_poll_interval() {
    let database = Database::private().await;
    let receiver = Receiver::start().await;
    for name in ["shop", "paused"] {
        database.endpoint(name, &receiver.url("/")).await;
    }
    database
        .sql("insert into postrider.deliveries (endpoint, event_type, payload, next_retry) values ('shop', 't', '{}', 'infinity');
              insert into postrider.deliveries (endpoint, event_type, payload) values ('paused', 't', '{}');
              select postrider.pause('paused')")
        .await;
    // A function that the claim calls would be counted with it; transactions are what a worker asks.
    let _worker = Worker::spawn(&database, &["--poll-interval", "200ms"]);
    asleep(&database, 1).await;
    let listens = async || {
        count(
            &database,
            &format!("{THEIRS} and query = 'listen postrider' and state = 'idle'"),
        )
        .await
    };
    wait_until("it listens", listens, |n| *n == 1, SOON).await;
    let seen = async || -> (i64, f64) {
        let row = database
            .client()
            .query_one(
                &format!("select coalesce(sum(extract(epoch from clock_timestamp() - query_start)), 0)::float8, count(*) from {THEIRS} and query like '-- Takes due%'"),
                &[],
            )
            .await
            .expect("a row");
        (
            row.try_get(1).expect("a count"),
            row.try_get(0).expect("a time"),
        )
    };
    // Past the quick looks after the last work.
    wait_until(
        "it has found its pace",
        seen,
        |(n, ago)| *n == 1 && *ago > 0.15,
        SOON,
    )
    .await;

    let starts = async || -> String {
        database
            .value(&format!("select coalesce(max(query_start), 'epoch')::text from {THEIRS} and query like '-- Takes due%'"))
            .await
    };
    let mut polls = std::collections::BTreeSet::new();
    let began: String = database.value("select clock_timestamp()::text").await;
    while polls.len() < 11 {
        let known = polls.clone();
        polls.insert(wait_until("the next poll", starts, |at| !known.contains(at), SOON).await);
    }
    let took: f64 = database
        .value(&format!(
            "select extract(epoch from clock_timestamp() - '{began}')::float8"
        ))
        .await;

    // Nine whole intervals at least; the look that follows the beginning of LISTEN may be among them.
    assert!(took > 1.6, "ten intervals of 200 ms went by in {took} s");
    let others = count(
        &database,
        &format!("{THEIRS} and query_start > '{began}' and query not like '-- Takes due%'"),
    )
    .await;
    assert_eq!(others, 0, "nothing else was asked");
}

#[tokio::test]
async fn c41_no_transaction_is_open_while_a_receiver_hangs() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script(vec![Script::silence(); 10]);
    database.endpoint("hangs", &receiver.url("/hangs")).await;
    database.endpoint("fast", &receiver.url("/fast")).await;
    fill(&database, "hangs", 10).await;
    let _worker = Worker::spawn(&database, &["--poll-interval", "50ms"]);
    receiver.wait_for_requests(10).await;

    for _ in 0..50 {
        let idle = count(
            &database,
            &format!("{THEIRS} and state like 'idle in transaction%'"),
        )
        .await;
        assert_eq!(idle, 0);
    }

    let id = database.insert("fast", "{}").await;
    database.wait_for_status(id, "delivered").await;
    assert_eq!(
        count(
            &database,
            &format!("{THEIRS} and state like 'idle in transaction%'")
        )
        .await,
        0
    );
}

#[tokio::test]
async fn workers_side_by_side_share_the_work() {
    for number in [2, 4] {
        let database = Database::fresh().await;
        let receiver = Receiver::start().await;
        let gate = Gate::closed();
        receiver.script(vec![Script::status(200).behind(&gate); 8 * number]);
        database.endpoint("shop", &receiver.url("/")).await;
        let workers: Vec<_> = (0..number)
            .map(|_| Worker::spawn(&database, &["--concurrency", "10"]))
            .collect();
        asleep(&database, i64::try_from(number).expect("few")).await;

        fill(&database, "shop", 200).await;
        // Of its 10 slots each keeps 2 for other endpoints, so that this many need all workers.
        receiver.wait_for_requests(8 * number).await;
        gate.open();

        let left = async || {
            count(
                &database,
                "postrider.deliveries where status <> 'delivered'",
            )
            .await
        };
        wait_until("all are delivered", left, |left| *left == 0, SOON).await;
        assert_eq!(receiver.requests().len(), 200);
        let shares = count(
            &database,
            "(select distinct worker from postrider.attempts) w",
        )
        .await;
        assert_eq!(shares, i64::try_from(number).expect("few"));
        drop(workers);
    }
}
