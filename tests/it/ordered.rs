//! Ordered endpoints: strictly by id, one at a time, and what stands in front holds the rest.

/// Over several workers, with failures and deaths.
mod line;
/// What people see of it, and do about it.
mod turns;

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
    };
    queue.claim(ask).await.expect("it claims")
}

/// The ids that a claim took.
fn ids(claim: &Claim) -> Vec<i64> {
    claim.taken.iter().map(|one| one.delivery.id).collect()
}

/// Puts on record what came of it.
async fn record(queue: &Queue, claim: &Claim, taken: &Taken, next: Next) {
    let outcome = match next {
        Next::Delivered => Outcome::Delivered,
        Next::Retry(_) => Outcome::Retry,
        Next::Exhausted(_) => Outcome::Rejected,
    };
    let attempt = Attempt {
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
    };
    let moved = queue.record("w", &[attempt]).await.expect("recorded");
    assert_eq!(moved, [taken.delivery.id]);
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
