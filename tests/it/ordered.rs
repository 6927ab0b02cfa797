//! Ordered endpoints: strictly by id, one at a time, and what stands in front holds the rest.

/// Over several workers, with failures and deaths.
mod line;
/// What people see of it, and do about it.
mod turns;
/// What people do at the very moment in which something happens to the head.
mod moments;

use std::time::Duration;

use postrider::attempt::{Attempt, Next, Outcome};
use postrider::store::connect::{ConnectOptions, Connector};
use postrider::store::queue::{Ask, Claim, Queue, Sessions, Taken};

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
async fn claim(queue: &Queue) -> Claim {
    let ask = Ask {
        cursor: "",
        lanes: 64,
        wanted: 100,
        worker: "w",
        margin: Duration::from_secs(15),
        sleep: Duration::from_secs(1),
        free: 256,
        bytes: i64::MAX,
        marks: &[],
    };
    queue.claim(ask).await.expect("it claims")
}

/// The ids that a claim took.
fn ids(claim: &Claim) -> Vec<i64> {
    claim.taken.iter().map(|one| one.delivery.id).collect()
}

/// What came of it.
fn result(claim: &Claim, taken: &Taken, next: Next) -> Attempt {
    let outcome = match next {
        Next::Delivered => Outcome::Delivered,
        Next::Retry(_) => Outcome::Retry,
        Next::Exhausted(_) => Outcome::Rejected,
    };
    Attempt {
        delivery_id: taken.delivery.id,
        claim_no: taken.delivery.claim_no,
        endpoint: taken.delivery.endpoint.clone(),
        started_at: claim.claimed_at,
        duration: Duration::from_millis(1),
        outcome,
        next,
        status_code: Some(200),
        error_kind: None,
        error: None,
        request_headers: Vec::new(),
        response_headers: Vec::new(),
        response_body: None,
        response_truncated: false,
        remote_addr: None,
    }
}

/// Puts on record what came of it.
async fn record(queue: &Queue, claim: &Claim, taken: &Taken, next: Next) {
    let moved = queue.record("w", &[result(claim, taken, next)]).await;
    assert_eq!(moved.expect("recorded"), [taken.delivery.id]);
}

/// The same when the delivery is no longer the worker's.
async fn record_late(queue: &Queue, claim: &Claim) {
    let late = result(claim, &claim.taken[0], Next::Delivered);
    let moved = queue.record("w", &[late]).await.expect("recorded");
    assert!(moved.is_empty(), "it came too late to move anything");
}

/// The one delivery of a claim is delivered.
async fn deliver(queue: &Queue, claim: &Claim) {
    let [taken] = &claim.taken[..] else {
        panic!("one delivery was expected: {claim:?}");
    };
    record(queue, claim, taken, Next::Delivered).await;
}

/// Many due deliveries, in one statement; their ids.
async fn fill(database: &Database, endpoint: &str, count: usize) -> Vec<i64> {
    database
        .value(&format!(
            "with made as (insert into postrider.deliveries (endpoint, event_type, payload)
             select '{endpoint}', 'test.event', '{{}}' from generate_series(1, {count}) returning id)
             select array_agg(id order by id) from made"
        ))
        .await
}

/// The SQLSTATE that a call is refused with.
async fn refused(database: &Database, call: &str) -> String {
    let error = database.client().query(call, &[]).await;
    let error = error.expect_err(call);
    error.code().expect("the server's").code().to_owned()
}

async fn ordered(database: &Database) {
    database
        .endpoint("line", "http://127.0.0.1:1/")
        .set("ordered", true)
        .await;
}

/// State of each delivery, and who holds it, by id.
async fn states(database: &Database) -> String {
    database
        .value("select string_agg(state || coalesce(' by ' || held_by, ''), ', ' order by id) from postrider.delivery_state")
        .await
}
