use std::collections::BTreeMap;

use tokio::net::TcpListener;

use super::{claim, delivered, expire_leases, queue};
use crate::support::process::on;
use crate::support::receiver::{BlackHole, Gate, Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// Where on its way a worker is killed.
#[derive(Clone, Copy, Debug)]
enum At {
    Claimed,
    Connecting,
    Sending,
    Replied,
    Recording,
}

const EVERYWHERE: [At; 5] = [
    At::Claimed,
    At::Connecting,
    At::Sending,
    At::Replied,
    At::Recording,
];

/// A worker takes the one delivery that is due, and dies at this step.
async fn kill(at: At, database: &Database, receiver: &Receiver, id: i64) {
    let url = |url: String| format!("update postrider.endpoints set url = '{url}'");
    let spawn = || Worker::spawn(database, &["--poll-interval", "50ms"]);
    let leased = async || {
        database
            .wait_for(id, "it is claimed", |row| row.leased_for.is_some())
            .await
    };
    let other = database.connect().await;
    match at {
        At::Claimed => {
            // Between claim and send the worker reads the endpoint with its secrets.
            let lock = "begin; lock table postrider.endpoint_secrets in access exclusive mode";
            other.batch_execute(lock).await.expect("a lock");
            let mut worker = spawn();
            leased().await;
            worker.kill_9();
        }
        At::Connecting => {
            let hole = BlackHole::start().await;
            database.sql(&url(hole.url())).await;
            let mut worker = spawn();
            leased().await;
            worker.kill_9();
        }
        At::Sending => {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let addr = listener.local_addr().expect("its address");
            database.sql(&url(format!("http://{addr}/"))).await;
            let mut worker = spawn();
            // The body does not fit into the sockets' buffers, and nobody reads it.
            let _connection = listener.accept().await.expect("the worker comes");
            worker.kill_9();
        }
        At::Replied => {
            receiver.script([Script::raw("HTTP/1.1 200 OK\r\ncontent-le").then_stall()]);
            let seen = receiver.requests().len();
            let mut worker = spawn();
            receiver.wait_for_requests(seen + 1).await;
            worker.kill_9();
        }
        At::Recording => {
            let gate = Gate::closed();
            receiver.script([Script::status(200).behind(&gate)]);
            let seen = receiver.requests().len();
            let mut worker = spawn();
            receiver.wait_for_requests(seen + 1).await;
            let lock = "begin; select from postrider.deliveries for update";
            other.batch_execute(lock).await.expect("a lock");
            gate.open();
            let blocked = async || {
                let blocked = "select count(*) from pg_stat_activity
                                where datname = current_database() and wait_event_type = 'Lock'";
                database.value::<i64>(blocked).await
            };
            wait_until("its record waits", blocked, |n| *n == 1, SOON).await;
            worker.kill_9();
            // The server would go on with a statement whose client is gone.
            database
                .sql(
                    "select pg_terminate_backend(pid, 10000) from pg_stat_activity
                      where datname = current_database() and wait_event_type = 'Lock'",
                )
                .await;
        }
    }
    drop(other);
    until_sessions_end(database).await;
    database.sql(&url(receiver.url("/"))).await;
}

/// The server may have a last statement of the dead before it, which would claim for them what comes next.
async fn until_sessions_end(database: &Database) {
    let sessions = async || {
        let theirs = "select count(*) from pg_stat_activity
                       where datname = current_database() and application_name <> 'postrider tests'";
        database.value::<i64>(theirs).await
    };
    wait_until("its sessions have ended", sessions, |n| *n == 0, SOON).await;
}

#[tokio::test]
async fn c28_a_worker_killed_at_any_step_leaves_nothing_stuck_and_nothing_hidden() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let big = format!("\"{}\"", "x".repeat(8 << 20));
    let mut killed = Vec::new();

    for at in EVERYWHERE.iter().cycle().take(20) {
        let payload = if matches!(at, At::Sending) {
            &big
        } else {
            "{}"
        };
        let id = database.insert("shop", payload).await;
        kill(*at, &database, &receiver, id).await;
        killed.push((*at, id));
        let row = database.delivery(id).await;
        assert!(row.leased_for.is_some(), "{at:?}: {row:?}");
        // Those behind are not the next worker's business.
        database
            .sql(&format!(
                "update postrider.deliveries set lease_expires_at = 'infinity' where id = {id}"
            ))
            .await;
    }
    expire_leases(&database).await;
    let drain = ["worker", "--drain", "--allow-network", "127.0.0.0/8"];
    let mut drained = Worker::run(on(&database, &drain));

    assert_eq!(drained.wait().await.code(), Some(0), "{}", drained.said());
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for request in receiver.requests() {
        *seen
            .entry(request.header("webhook-id").concat())
            .or_default() += 1;
    }
    for (at, id) in killed {
        let delivery = database.delivery(id).await;
        let tries = database.attempts(id).await;
        let outcomes: Vec<_> = tries.iter().map(|a| a.outcome.as_str()).collect();
        assert_eq!(delivery.status, "delivered", "{at:?}");
        assert_eq!(outcomes, ["lost", "delivered"], "{at:?}");
        assert_eq!((tries[0].attempt_no, tries[1].attempt_no), (1, 2), "{at:?}");
        assert_eq!(delivery.attempt_count, 2, "{at:?}");
        let requests = seen[&delivery.event_id];
        let whole = matches!(at, At::Replied | At::Recording);
        assert_eq!(requests, if whole { 2 } else { 1 }, "{at:?}");
    }
}

#[tokio::test]
async fn a_row_that_kills_its_workers_ends_as_lost() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let id = database.insert("shop", "{}").set("max_retries", 2).await;
    let queue = queue(&database);

    for _ in 0..3 {
        assert_eq!(claim(&queue, "dies", 10).await.taken.len(), 1);
        expire_leases(&database).await;
    }
    let last = claim(&queue, "lives", 10).await;

    assert!(last.taken.is_empty());
    assert_eq!(last.ended, [(id, "lost".to_owned())]);
    let delivery = database.delivery(id).await;
    assert_eq!(
        (
            delivery.status.as_str(),
            delivery.exhausted_reason.as_deref()
        ),
        ("exhausted", Some("lost"))
    );
    let tries = database.attempts(id).await;
    let outcomes: Vec<_> = tries
        .iter()
        .map(|a| (a.attempt_no, a.outcome.as_str(), a.worker.as_deref()))
        .collect();
    let dies = Some("dies");
    assert_eq!(
        outcomes,
        [(1, "lost", dies), (2, "lost", dies), (3, "lost", dies)]
    );
}

#[tokio::test]
async fn a_lost_lease_records_nothing_on_the_delivery_and_its_true_outcome_on_the_lost_try() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let id = database.insert("shop", "{}").await;
    let queue = queue(&database);
    let first = claim(&queue, "slow", 10).await;
    expire_leases(&database).await;
    let second = claim(&queue, "quick", 10).await;
    let before = database.delivery(id).await;

    let moved = queue
        .record("slow", &[delivered(&first)])
        .await
        .expect("recorded");

    assert!(moved.is_empty());
    let after = database.delivery(id).await;
    assert_eq!(
        (after.status, after.claim_no, after.leased_by.as_deref()),
        (before.status, before.claim_no, Some("quick"))
    );
    let [tried] = &database.attempts(id).await[..] else {
        panic!("one try was expected");
    };
    assert_eq!(
        (tried.outcome.as_str(), tried.status_code, tried.duration_ms),
        ("delivered", Some(200), Some(7))
    );
    let moved = queue
        .record("quick", &[delivered(&second)])
        .await
        .expect("recorded");
    assert_eq!(moved, [id]);
    assert_eq!(database.attempts(id).await.len(), 2);
}

#[tokio::test]
async fn a_late_result_that_meets_the_takeover_itself_is_not_lost() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.script([Script::status(200).behind(&gate)]);
    database.endpoint("shop", &receiver.url("/")).await;
    let id = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &["--poll-interval", "1h"]);
    receiver.wait_for_requests(1).await;

    // A takeover that has written, but not yet committed, when the result arrives: cancel puts the try on record as lost.
    let other = database.connect().await;
    other
        .batch_execute(&format!("begin; select postrider.cancel({id})"))
        .await
        .expect("cancelled");
    gate.open();
    let blocked = async || {
        let blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        database.value::<i64>(blocked).await
    };
    wait_until("the record waits for it", blocked, |n| *n == 1, SOON).await;
    other.batch_execute("commit").await.expect("committed");

    let tries = async || database.attempts(id).await;
    wait_until(
        "the true outcome is on record",
        tries,
        |tries| tries.len() == 1 && tries[0].outcome == "delivered",
        SOON,
    )
    .await;
    let delivery = database.delivery(id).await;
    assert_eq!(delivery.exhausted_reason.as_deref(), Some("cancelled"));
}
