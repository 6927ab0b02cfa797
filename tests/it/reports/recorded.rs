use std::time::Duration;

use chrono::{DateTime, Utc};
use postrider::attempt::{Attempt, Next, Outcome, Reason};
use postrider::store::connect::{ConnectOptions, Connector};
use postrider::store::queue::{Ask, Queue, Sessions, Taken};

use super::{DISAGREEMENTS, same};
use crate::support::Database;

fn queue(database: &Database) -> Queue {
    let options = ConnectOptions {
        url: Some(database.url().to_owned()),
    };
    let connector = Connector::new(&options, &|_| None).expect("the test's own address");
    Queue::new(&connector, Sessions::Own).expect("a pool")
}

async fn claim(queue: &Queue) -> Vec<Taken> {
    let ask = Ask {
        cursor: "",
        lanes: 64,
        wanted: 100,
        worker: "w",
        margin: Duration::from_secs(15),
        sleep: Duration::from_secs(1),
        free: i32::MAX,
        bytes: i64::MAX,
        marks: &[],
    };
    queue.claim(ask).await.expect("it claims").taken
}

/// How a try went.
fn went(
    taken: &Taken,
    started_at: DateTime<Utc>,
    millis: u64,
    outcome: Outcome,
    next: Next,
) -> Attempt {
    Attempt {
        delivery_id: taken.delivery.id,
        claim_no: taken.delivery.claim_no,
        endpoint: taken.delivery.endpoint.clone(),
        started_at,
        duration: Duration::from_millis(millis),
        outcome,
        next,
        status_code: None,
        error_kind: None,
        error: None,
        request_headers: Vec::new(),
        response_headers: Vec::new(),
        response_body: None,
        response_truncated: false,
        remote_addr: None,
    }
}

#[tokio::test]
async fn late_results_replays_and_retries_over_the_border_of_an_hour_are_counted_as_the_attempts_say()
 {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    database.endpoint("b", "http://127.0.0.1:1/").await;
    let queue = queue(&database);
    let hour: DateTime<Utc> = database
        .value("select date_bin('1 h', now(), '2000-01-01 00:00:00+00')")
        .await;
    let before = |millis| hour - Duration::from_millis(millis);
    for _ in 0..4 {
        database.insert("a", "{}").await;
        database.insert("b", "{}").await;
    }

    // The first tries end on both sides of the border; one worker never reports.
    let mut late = Vec::new();
    let mut results = Vec::new();
    for (n, taken) in claim(&queue).await.iter().enumerate() {
        let millis = 1 + 40 * n as u64;
        let (outcome, next) = match n % 4 {
            0 => (Outcome::Delivered, Next::Delivered),
            1 => (Outcome::Retry, Next::Retry(Duration::ZERO)),
            2 => (Outcome::Rejected, Next::Exhausted(Reason::Rejected)),
            _ => (Outcome::Delivered, Next::Delivered),
        };
        let started_at = if n < 4 { before(1 + millis) } else { hour };
        let result = went(taken, started_at, millis, outcome, next);
        if n % 4 == 3 {
            late.push(result);
        } else {
            results.push(result);
        }
    }
    assert_eq!(late.len(), 2);
    queue.record("w", &results).await.expect("it is written");
    // Sent again after a lost acknowledgement, it counts once.
    queue.record("w", &results).await.expect("it is written");
    same(&database.value::<String>(DISAGREEMENTS).await);

    // Retries, takeovers of what was never reported, and a replay, in the hour that is now.
    database
        .sql(
            "update postrider.deliveries set lease_expires_at = now() - interval '1 s' where lease_expires_at is not null;
             select postrider.fold_reports(1);
             select postrider.replay_matching('a');
             select postrider.replay_matching('b', status => 'delivered')",
        )
        .await;
    let second = claim(&queue).await;
    assert!(second.len() >= 4, "{second:?}");
    same(&database.value::<String>(DISAGREEMENTS).await);
    let results: Vec<_> = second
        .iter()
        .map(|taken| went(taken, hour, 3, Outcome::Delivered, Next::Delivered))
        .collect();
    queue.record("w", &results).await.expect("it is written");
    same(&database.value::<String>(DISAGREEMENTS).await);

    // The first worker reports after all.
    let moved = queue.record("w", &late).await.expect("it is written");
    assert!(moved.is_empty(), "{moved:?}");
    let lost: i64 = database
        .value("select count(*) from postrider.attempts where outcome = 'lost'")
        .await;
    assert_eq!(lost, 0);
    same(&database.value::<String>(DISAGREEMENTS).await);
    database.sql("select postrider.fold_reports()").await;
    same(&database.value::<String>(DISAGREEMENTS).await);
}
