//! Who gets which delivery, for how long, and what becomes of it when its worker dies, is late or is told otherwise.

/// A fair share for each lane, and no more than it may have.
mod lanes;
/// Whatever dies, nothing is stuck, nothing is hidden.
mod crashes;
/// Results are written once, wait when they must, and stop nobody.
mod records;
/// Replay, cancel, pause, disable: what people do while workers run.
mod people;

use std::time::Duration;

use chrono::{DateTime, Utc};
use postrider::attempt::{Attempt, Next, Outcome};
use postrider::store::connect::{ConnectOptions, Connector};
use postrider::store::queue::{Ask, Claim, Queue, Sessions};

use crate::support::Database;

/// The worker's own statements on this database.
fn queue(database: &Database) -> Queue {
    let options = ConnectOptions {
        url: Some(database.url().to_owned()),
    };
    let connector = Connector::new(&options, &|_| None).expect("the test's own address");
    Queue::new(&connector, Sessions::Own).expect("a pool")
}

/// One claim from the start of the lap.
async fn claim(queue: &Queue, worker: &str, wanted: i32) -> Claim {
    let ask = Ask {
        cursor: "",
        lanes: 64,
        wanted,
        worker,
        margin: Duration::from_secs(15),
        sleep: Duration::from_secs(1),
        free: i32::MAX,
        bytes: i64::MAX,
        marks: &[],
    };
    queue.claim(ask).await.expect("it claims")
}

/// What a worker would report of the one delivery that it has claimed: delivered.
fn delivered(claim: &Claim) -> Attempt {
    let [taken] = &claim.taken[..] else {
        panic!("one delivery was expected: {claim:?}");
    };
    attempt(taken.delivery.id, taken.delivery.claim_no, claim.claimed_at)
}

fn attempt(delivery_id: i64, claim_no: i64, started_at: DateTime<Utc>) -> Attempt {
    Attempt {
        delivery_id,
        claim_no,
        endpoint: "shop".into(),
        started_at,
        duration: Duration::from_millis(7),
        outcome: Outcome::Delivered,
        next: Next::Delivered,
        status_code: Some(200),
        error_kind: None,
        error: None,
        request_headers: vec![("webhook-id".into(), "evt_1".into())],
        response_headers: Vec::new(),
        response_body: Some(b"ok".to_vec()),
        response_truncated: false,
        remote_addr: None,
    }
}

/// Many due deliveries, in one statement.
async fn fill(database: &Database, endpoint: &str, count: usize) {
    database
        .sql(&format!(
            "insert into postrider.deliveries (endpoint, event_type, payload)
             select '{endpoint}', 'test.event', '{{}}' from generate_series(1, {count})"
        ))
        .await;
}

/// As if all leases had run out.
async fn expire_leases(database: &Database) {
    database
        .sql("update postrider.deliveries set lease_expires_at = now() - interval '1 s' where lease_expires_at is not null")
        .await;
}

async fn in_flight(database: &Database, endpoint: &str) -> i64 {
    database
        .value(&format!(
            "select count(*) from postrider.deliveries where endpoint = '{endpoint}' and lease_expires_at > now()"
        ))
        .await
}

async fn with_status(database: &Database, endpoint: &str, status: &str) -> i64 {
    database
        .value(&format!(
            "select count(*) from postrider.deliveries where endpoint = '{endpoint}' and status = '{status}'"
        ))
        .await
}
