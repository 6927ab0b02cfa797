use postrider::attempt::{Attempt as Report, Next, Outcome};
use postrider::store::connect::{ConnectOptions, Connector};
use postrider::store::queue::{Ask, Claim, Queue, Sessions};

use super::*;

fn queue(database: &Database) -> Queue {
    let options = ConnectOptions {
        url: Some(database.url().to_owned()),
    };
    let connector = Connector::new(&options, &|_| None).expect("the test's own address");
    Queue::new(&connector, Sessions::Own).expect("a pool")
}

async fn claim(queue: &Queue, wanted: i32) -> Claim {
    let ask = Ask {
        cursor: "",
        lanes: 64,
        wanted,
        worker: "w",
        margin: Duration::from_secs(15),
        sleep: Duration::from_secs(1),
        free: i32::MAX,
        bytes: i64::MAX,
        marks: &[],
    };
    queue.claim(ask).await.expect("it claims")
}

fn taken(claim: &Claim) -> Vec<i64> {
    claim.taken.iter().map(|one| one.delivery.id).collect()
}

async fn fill(database: &Database, count: usize) {
    database
        .sql(&format!(
            "insert into postrider.deliveries (endpoint, event_type, payload)
             select 'shop', 'test.event', '{{}}' from generate_series(1, {count})"
        ))
        .await;
}

/// Rows as callers leave them, in front of the lane.
async fn callers(database: &Database, count: usize) {
    database
        .sql(&format!(
            "insert into postrider.deliveries (endpoint, event_type, payload, max_retries, next_retry, deadline)
             select 'shop', 'test.event', '{{}}', 0, now() - interval '1 h', now() + interval '1 h' from generate_series(1, {count})"
        ))
        .await;
}

#[tokio::test]
async fn a_claim_ends_what_is_past_its_deadline_and_takes_the_rest() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let queue = queue(&database);
    let over = database
        .insert("shop", "{}")
        .set("deadline", "-infinity")
        .await;
    let endless = database
        .insert("shop", "{}")
        .set("deadline", "infinity")
        .await;
    let none = database.insert("shop", "{}").await;

    let claim = claim(&queue, 10).await;

    assert_eq!(taken(&claim), [endless, none]);
    assert!(claim.taken.iter().all(|one| one.left.is_none()));
    assert_eq!(claim.ended, [(over, "deadline".to_owned())]);
    let delivery = database.delivery(over).await;
    assert_eq!(delivery.exhausted_reason.as_deref(), Some("deadline"));
    assert_eq!((delivery.attempt_count, delivery.claim_no), (0, 1));
    assert_eq!(database.attempts(over).await, []);
}

#[tokio::test]
async fn a_lease_is_no_longer_than_the_deadline_leaves_and_the_margin() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let queue = queue(&database);
    database
        .sql(
            "insert into postrider.deliveries (endpoint, event_type, payload, deadline)
             values ('shop', 'test.event', '{}', clock_timestamp() + interval '9 s')",
        )
        .await;

    let claim = claim(&queue, 1).await;

    let left = claim.taken[0].left.expect("its deadline is near");
    assert!(left <= Duration::from_secs(9), "{left:?}");
    assert_eq!(
        claim.taken[0].lease,
        left_rounded(&claim) + Duration::from_secs(15)
    );
    let leased_for = database.delivery(1).await.leased_for.expect("a lease");
    assert!(leased_for <= 24.0, "{leased_for}");
}

/// The lease is rounded to a millisecond, what is left is cut.
fn left_rounded(claim: &Claim) -> Duration {
    let one = &claim.taken[0];
    let left = one.left.expect("it has a deadline");
    let rounded = one.lease - Duration::from_secs(15);
    assert!(rounded - left <= Duration::from_millis(1), "{one:?}");
    rounded
}

#[tokio::test]
async fn a_lost_try_past_its_deadline_is_on_record_and_not_made_again() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let queue = queue(&database);
    let id = database
        .insert("shop", "{}")
        .set("deadline", "infinity")
        .await;
    assert_eq!(taken(&claim(&queue, 1).await), [id]);
    database
        .sql("update postrider.deliveries set lease_expires_at = now() - interval '2 s', deadline = now() - interval '1 s'")
        .await;

    let claim = claim(&queue, 1).await;

    assert_eq!(claim.ended, [(id, "deadline".to_owned())]);
    assert_eq!(database.attempts(id).await[0].outcome, "lost");
    assert_eq!(database.delivery(id).await.attempt_count, 1);
}

#[tokio::test]
async fn a_result_that_comes_after_the_caller_has_gone_changes_the_record_and_not_the_end() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let queue = queue(&database);
    let caller = database.connect().await;
    let (outcome, attempt) = tokio::join!(call(&caller, "shop", "{}", "1 s"), async {
        waited_for(&database).await;
        let claim = claim(&queue, 1).await;
        Report {
            delivery_id: claim.taken[0].delivery.id,
            claim_no: claim.taken[0].delivery.claim_no,
            endpoint: "shop".into(),
            started_at: claim.claimed_at,
            duration: Duration::from_millis(7),
            outcome: Outcome::Delivered,
            next: Next::Delivered,
            status_code: Some(200),
            error_kind: None,
            error: None,
            request_headers: Vec::new(),
            response_headers: Vec::new(),
            response_body: Some(b"ok".to_vec()),
            response_truncated: false,
            remote_addr: None,
        }
    });
    refused(outcome, "PR007");

    let moved = queue.record("w", &[attempt]).await.expect("it is written");

    assert!(moved.is_empty(), "{moved:?}");
    assert_eq!(database.delivery(1).await.status, "exhausted");
    assert_eq!(database.attempts(1).await[0].outcome, "delivered");
}

#[tokio::test]
async fn who_waits_goes_before_the_backlog_and_behind_who_waited_first() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let queue = queue(&database);
    fill(&database, 200).await;
    let callers = [database.connect().await, database.connect().await];

    let first = call(&callers[0], "shop", "{}", "3 s");
    let second = call(&callers[1], "shop", "{}", "3 s");
    let order = async {
        let one = waited_for(&database).await;
        let newest = async || waited_for(&database).await;
        let two = wait_until("both wait", newest, |id| *id > one, SOON).await;
        (one, two, taken(&claim(&queue, 2).await))
    };
    let delayed = async {
        waited_for(&database).await;
        second.await
    };
    let (_, _, (one, two, claimed)) = tokio::join!(first, delayed, order);

    assert_eq!(claimed, [one, two]);
}

#[tokio::test]
async fn the_cap_of_an_endpoint_holds_however_many_wait_in_front() {
    let database = Database::fresh().await;
    database
        .endpoint("shop", "http://127.0.0.1:1/")
        .set("max_in_flight", 1)
        .await;
    let queue = queue(&database);
    fill(&database, 3).await;
    assert_eq!(claim(&queue, 10).await.taken.len(), 1);
    callers(&database, 60).await;

    let claim = claim(&queue, 10).await;

    assert!(claim.taken.is_empty(), "{claim:?}");
    assert!(claim.capped);
}

#[tokio::test]
async fn a_replay_is_not_ended_by_the_deadline_of_the_first_time() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    refused(call(database.client(), "shop", "1", "1 ms").await, "PR008");
    refused(call(database.client(), "shop", "2", "1 ms").await, "PR008");

    database
        .sql("select postrider.replay(1); select postrider.replay_matching('shop')")
        .await;

    let _worker = Worker::spawn(&database, &[]);
    database.wait_for_status(1, "delivered").await;
    database.wait_for_status(2, "delivered").await;
}
