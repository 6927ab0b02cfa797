use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{count, fill};
use crate::support::process::on;
use crate::support::receiver::{Gate, Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

const LOOPBACK: [&str; 2] = ["--allow-network", "127.0.0.0/8"];

fn drain(database: &Database) -> Worker {
    let mut command = on(database, &["worker", "--drain"]);
    command.args(LOOPBACK);
    Worker::run(command)
}

#[tokio::test]
async fn a_worker_that_stood_still_past_its_lease_sends_nothing_on_waking() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database
        .endpoint("shop", &receiver.url("/"))
        .set("timeout", "100 ms")
        .await;
    let id = database.insert("shop", "{}").await;
    let other = database.connect().await;
    // Between claim and send the worker reads the endpoint with its secrets.
    other
        .batch_execute("begin; lock table postrider.endpoint_secrets in access exclusive mode")
        .await
        .expect("a lock");
    let mut worker = Worker::spawn(
        &database,
        &[
            "--lease-margin",
            "1s",
            "--poll-interval",
            "1h",
            "--no-listen",
        ],
    );
    database
        .wait_for(id, "it is claimed", |row| row.leased_for.is_some())
        .await;

    worker.stop();
    database
        .wait_for(id, "its lease runs out", |row| row.leased_for < Some(0.0))
        .await;
    // So that the worker cannot take it once more, and what it sent is from before.
    database.sql("select postrider.pause('shop')").await;
    other.batch_execute("rollback").await.expect("unlocked");
    worker.cont();

    worker.wait_for_line("gave deliveries back unsent").await;
    assert_eq!(receiver.connections(), 0);
    assert_eq!(database.delivery(id).await.leased_for, None);
    assert_eq!(database.attempts(id).await, []);
}

#[tokio::test]
async fn the_late_result_of_a_worker_that_stood_still_is_fenced() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let (first, second) = (Gate::closed(), Gate::closed());
    receiver.script([
        Script::reply(200, &[], b"first").behind(&first),
        Script::reply(200, &[], b"second").behind(&second),
    ]);
    database.endpoint("shop", &receiver.url("/")).await;
    let id = database.insert("shop", "{}").await;
    let mut slow = Worker::spawn(&database, &["--name", "slow", "--concurrency", "1"]);
    receiver.wait_for_requests(1).await;
    slow.stop();
    database
        .sql("update postrider.deliveries set lease_expires_at = now() - interval '1 s'")
        .await;
    let _quick = Worker::spawn(&database, &["--name", "quick"]);
    receiver.wait_for_requests(2).await;

    first.open();
    slow.cont();
    slow.wait_for_line("came too late").await;
    let between = database.delivery(id).await;
    second.open();

    assert_eq!(
        (between.status.as_str(), between.leased_by.as_deref()),
        ("queued", Some("quick"))
    );
    let delivery = database.wait_for_status(id, "delivered").await;
    assert_eq!(delivery.attempt_count, 2);
    let bodies: Vec<_> = database
        .attempts(id)
        .await
        .into_iter()
        .map(|a| a.response_body)
        .collect();
    assert_eq!(bodies, [Some(b"first".to_vec()), Some(b"second".to_vec())]);
}

#[tokio::test]
async fn c45_a_stopped_worker_records_what_finishes_in_the_grace_and_cuts_the_rest() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.script(vec![Script::status(200).behind(&gate); 12]);
    receiver.script(vec![Script::silence(); 8]);
    database
        .endpoint("shop", &receiver.url("/"))
        .set("max_in_flight", 20)
        .await;
    fill(&database, "shop", 50).await;
    let mut worker = Worker::spawn(&database, &["--grace", "1s"]);
    receiver.wait_for_requests(20).await;

    worker.terminate();
    worker.wait_for_line("tries in flight may finish").await;
    gate.open();

    assert_eq!(worker.wait().await.code(), Some(0), "{}", worker.said());
    assert_eq!(receiver.requests().len(), 20, "claims have stopped");
    let facts: String = database
        .value(
            "select concat_ws(' ', count(*) filter (where status = 'delivered'),
                                   count(*) filter (where status = 'failed' and attempt_count = 1 and next_retry <= now()),
                                   count(*) filter (where status = 'queued' and attempt_count = 0),
                                   count(lease_expires_at), count(leased_by),
                                   (select count(*) from postrider.workers))
               from postrider.deliveries",
        )
        .await;
    assert_eq!(facts, "12 8 30 0 0 0");
    let lost: i64 = count(
        &database,
        "postrider.attempts where outcome = 'lost' and error is not null",
    )
    .await;
    assert_eq!(lost, 8);
}

#[tokio::test]
async fn c45_a_second_signal_ends_it_at_once() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::silence()]);
    database.endpoint("shop", &receiver.url("/")).await;
    database.insert("shop", "{}").await;
    let mut worker = Worker::spawn(&database, &["--grace", "1h"]);
    receiver.wait_for_requests(1).await;
    worker.terminate();
    worker.wait_for_line("tries in flight may finish").await;

    // Long enough not to be taken for the same one.
    tokio::time::sleep(Duration::from_millis(400)).await;
    worker.terminate();

    assert_eq!(worker.wait().await.code(), Some(143));
}

#[tokio::test]
async fn a_signal_that_comes_twice_at_once_is_one() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::silence()]);
    database.endpoint("shop", &receiver.url("/")).await;
    database.insert("shop", "{}").await;
    let mut worker = Worker::spawn(&database, &["--grace", "1s"]);
    receiver.wait_for_requests(1).await;
    worker.terminate();
    // Long enough for the kernel not to make one of them.
    tokio::time::sleep(Duration::from_millis(50)).await;

    worker.terminate();

    assert_eq!(worker.wait().await.code(), Some(0), "{}", worker.said());
}

#[tokio::test]
async fn a_drain_works_off_what_is_due_and_says_so() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    for name in ["a", "b"] {
        database.endpoint(name, &receiver.url("/")).await;
        fill(&database, name, 200).await;
    }
    let later = database
        .insert("a", "{}")
        .set("next_retry", "infinity")
        .await;

    let mut worker = drain(&database);

    assert_eq!(worker.wait().await.code(), Some(0), "{}", worker.said());
    assert!(worker.said().contains("drained: 400 delivered, 0 failed"));
    assert_eq!(receiver.requests().len(), 400);
    assert_eq!(database.delivery(later).await.status, "queued");
}

#[tokio::test]
async fn a_drain_in_which_something_failed_says_so_with_its_exit_code() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::status(500), Script::status(400)]);
    database.endpoint("shop", &receiver.url("/")).await;
    fill(&database, "shop", 5).await;

    let mut worker = drain(&database);

    assert_eq!(worker.wait().await.code(), Some(1), "{}", worker.said());
    assert!(
        worker
            .said()
            .contains("drained: 3 delivered, 1 failed and scheduled again, 1 exhausted")
    );
}

#[tokio::test]
async fn a_drain_waits_for_rates_and_caps() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    // More lanes than one claim walks past, and the slow ones first.
    database
        .endpoint("a-rate", &receiver.url("/"))
        .set("rate_limit", 5)
        .await;
    database
        .endpoint("b-cap", &receiver.url("/"))
        .set("max_in_flight", 1)
        .await;
    for name in ["a-rate", "b-cap"] {
        fill(&database, name, 4).await;
    }
    database
        .sql(&format!(
            "insert into postrider.endpoints (name, url) select 'e' || n, '{}' from generate_series(1, 100) n;
             insert into postrider.deliveries (endpoint, event_type, payload, next_retry)
             select name, 't', '{{}}', case when name like 'e%' then timestamptz 'infinity' else now() end from postrider.endpoints",
            receiver.url("/")
        ))
        .await;

    let mut worker = drain(&database);

    assert_eq!(worker.wait().await.code(), Some(0), "{}", worker.said());
    assert!(
        worker.said().contains("drained: 10 delivered"),
        "{}",
        worker.said()
    );
}

#[tokio::test]
async fn c32_a_rolling_restart_of_four_workers_requests_each_row_once() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    for name in ["a", "b", "c", "d"] {
        database.endpoint(name, &receiver.url("/")).await;
        fill(&database, name, 500).await;
    }
    let spawn = || {
        Worker::spawn(
            &database,
            &["--concurrency", "32", "--poll-interval", "50ms"],
        )
    };
    let mut workers: Vec<Worker> = (0..4).map(|_| spawn()).collect();
    receiver.wait_for_requests(100).await;

    for worker in &mut workers {
        worker.terminate();
        assert_eq!(worker.wait().await.code(), Some(0));
        *worker = spawn();
    }

    let left = async || {
        count(
            &database,
            "postrider.deliveries where status <> 'delivered'",
        )
        .await
    };
    wait_until("all are delivered", left, |left| *left == 0, SOON).await;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for request in receiver.requests() {
        *seen
            .entry(request.header("webhook-id").concat())
            .or_default() += 1;
    }
    assert_eq!(seen.len(), 2000);
    let twice: Vec<_> = seen.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[tokio::test]
async fn a_stop_while_idle_is_quick() {
    let database = Database::fresh().await;
    let mut worker = Worker::spawn(&database, &["--poll-interval", "1h"]);
    let asleep = async || {
        count(
            &database,
            "postrider.workers where sleeping_until is not null",
        )
        .await
    };
    wait_until("it sleeps", asleep, |n| *n == 1, SOON).await;
    let told = Instant::now();

    worker.terminate();

    assert_eq!(worker.wait().await.code(), Some(0));
    assert!(
        told.elapsed() < Duration::from_secs(3),
        "{:?}",
        told.elapsed()
    );
}
