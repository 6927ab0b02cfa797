use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures_util::SinkExt as _;

use postrider::store::queue::{Ask, Claim};

use super::{attempt, claim, fill, in_flight, queue, with_status};
use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

#[tokio::test]
async fn c20_one_endpoint_that_hangs_does_not_keep_others_waiting() {
    let database = Database::fresh().await;
    let (hanging, fast) = (Receiver::start().await, Receiver::start().await);
    hanging.script(vec![Script::silence(); 600]);
    database
        .endpoint("a-hangs", &hanging.url("/"))
        .set("timeout", "30 s")
        .await;
    database.endpoint("fast", &fast.url("/")).await;
    fill(&database, "a-hangs", 600).await;
    let _worker = Worker::spawn(&database, &[]);
    hanging.wait_for_requests(64).await;

    fill(&database, "fast", 50).await;

    let delivered = async || with_status(&database, "fast", "delivered").await;
    let few_seconds = Duration::from_secs(5);
    wait_until("the 50 arrived", delivered, |n| *n == 50, few_seconds).await;
    assert_eq!(hanging.requests().len(), 64, "the default cap");
}

#[tokio::test]
async fn c20_many_endpoints_that_hang_leave_slots_for_others() {
    let database = Database::fresh().await;
    let (hanging, fast) = (Receiver::start().await, Receiver::start().await);
    hanging.script(vec![Script::silence(); 100]);
    for name in ["a", "b", "c", "d", "e", "f"] {
        database
            .endpoint(name, &hanging.url("/"))
            .set("timeout", "30 s")
            .await;
        fill(&database, name, 100).await;
    }
    database.endpoint("z", &fast.url("/")).await;
    let _worker = Worker::spawn(&database, &["--concurrency", "40"]);
    hanging.wait_for_requests(30).await;

    fill(&database, "z", 50).await;

    let delivered = async || with_status(&database, "z", "delivered").await;
    let few_seconds = Duration::from_secs(5);
    wait_until("the 50 arrived", delivered, |n| *n == 50, few_seconds).await;
    assert!(hanging.requests().len() < 40, "some slots stay free");
}

#[tokio::test]
async fn every_endpoint_gets_its_share_of_a_claim() {
    let database = Database::fresh().await;
    for name in ["a", "b", "c", "d"] {
        database.endpoint(name, "http://127.0.0.1:1/").await;
    }
    fill(&database, "a", 1000).await;
    for name in ["b", "c", "d"] {
        fill(&database, name, 30).await;
    }
    database
        .sql("update postrider.deliveries set next_retry = now() - interval '1 h' where endpoint = 'a'")
        .await;

    let taken = claim(&queue(&database), "w", 80).await.taken;

    let mut shares = BTreeMap::new();
    for one in &taken {
        *shares.entry(one.delivery.endpoint.as_str()).or_insert(0) += 1;
    }
    assert_eq!(shares, [("a", 20), ("b", 20), ("c", 20), ("d", 20)].into());
}

#[tokio::test]
async fn a_claim_stops_at_the_payloads_that_the_worker_has_no_room_for() {
    const MB: i64 = 1024 * 1024;
    let database = Database::private().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    database
        .sql(
            "alter table postrider.deliveries alter column body set storage external;
             insert into postrider.deliveries (endpoint, event_type, body)
             select 'shop', 't', convert_to(repeat('x', case when n % 2 = 0 then 1048576 else 10 end), 'UTF8')
               from generate_series(1, 8) n",
        )
        .await;
    let queue = queue(&database);
    let ask = |bytes| Ask {
        cursor: "",
        lanes: 64,
        wanted: 100,
        worker: "w",
        margin: Duration::from_secs(15),
        sleep: Duration::from_secs(1),
        free: 1000,
        bytes,
        marks: &[],
    };
    let large = |claim: &Claim| {
        claim
            .taken
            .iter()
            .filter(|one| one.delivery.body.len() > 10)
            .count()
    };

    let some = queue.claim(ask(MB * 3 / 2)).await.unwrap();
    let none = queue.claim(ask(0)).await.unwrap();
    let rest = queue.claim(ask(64 * MB)).await.unwrap();

    assert_eq!((some.taken.len(), large(&some), some.heavy), (6, 2, true));
    assert_eq!((none.taken.len(), none.heavy), (0, true));
    assert_eq!((rest.taken.len(), large(&rest), rest.heavy), (2, 2, false));
}

#[tokio::test]
async fn a_thousand_endpoints_are_all_served() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database
        .sql(&format!(
            "insert into postrider.endpoints (name, url) select 'e' || n, '{}' from generate_series(1, 1000) n;
             insert into postrider.deliveries (endpoint, event_type, payload) select name, 't', '{{}}' from postrider.endpoints",
            receiver.url("/")
        ))
        .await;

    let _worker = Worker::spawn(&database, &[]);

    let left = async || {
        let left = "select count(*) from postrider.deliveries where status <> 'delivered'";
        database.value::<i64>(left).await
    };
    wait_until("all are delivered", left, |left| *left == 0, SOON).await;
}

#[tokio::test]
async fn four_workers_together_send_no_more_at_a_time_than_the_endpoint_takes() {
    let database = Database::fresh().await;
    let (slow, fast) = (Receiver::start().await, Receiver::start().await);
    slow.script(vec![Script::silence(); 200]);
    database
        .endpoint("slow", &slow.url("/"))
        .set("max_in_flight", 4)
        .set("timeout", "30 s")
        .await;
    database.endpoint("z-fast", &fast.url("/")).await;
    let workers: Vec<_> = (0..4)
        .map(|_| Worker::spawn(&database, &["--poll-interval", "50ms"]))
        .collect();
    let asleep = async || {
        let asleep = "select count(*) from postrider.workers where sleeping_until is not null";
        database.value::<i64>(asleep).await
    };
    wait_until("all four sleep", asleep, |n| *n == 4, SOON).await;

    fill(&database, "slow", 200).await;
    slow.wait_for_requests(4).await;
    for round in 1..=10 {
        fill(&database, "z-fast", 20).await;
        let delivered = async || with_status(&database, "z-fast", "delivered").await;
        let all = round * 20;
        wait_until("the others go on", delivered, |n| *n == all, SOON).await;
    }

    assert_eq!(slow.requests().len(), 4);
    assert_eq!(in_flight(&database, "slow").await, 4);
    drop(workers);
}

#[tokio::test]
async fn two_claims_at_the_same_moment_do_not_both_fill_the_room_of_a_lane() {
    let database = Database::fresh().await;
    database
        .endpoint("shop", "http://127.0.0.1:1/")
        .set("max_in_flight", 5)
        .await;
    fill(&database, "shop", 100).await;
    let queue = queue(&database);

    for _ in 0..20 {
        let claims = futures_util::future::join_all((0..2).map(|_| claim(&queue, "w", 50))).await;

        let taken: usize = claims.iter().map(|claim| claim.taken.len()).sum();
        assert_eq!(taken, 5);
        assert_eq!(in_flight(&database, "shop").await, 5);
        let done: Vec<_> = claims
            .iter()
            .flat_map(|claim| claim.taken.iter().map(|one| (one, claim.claimed_at)))
            .map(|(one, at)| attempt(one.delivery.id, one.delivery.claim_no, at))
            .collect();
        queue.record("w", &done).await.expect("recorded");
    }
}

#[tokio::test]
async fn a_rate_limit_is_held_over_two_workers() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database
        .endpoint("limited", &receiver.url("/"))
        .set("rate_limit", 20)
        .await;
    fill(&database, "limited", 200).await;

    let _workers = [(); 2].map(|()| Worker::spawn(&database, &[]));
    receiver.wait_for_requests(50).await;
    let delivered = async || with_status(&database, "limited", "delivered").await;
    wait_until("they are on record", delivered, |n| *n >= 50, SOON).await;

    // In any 500 ms: half of 20, the 2 that a bucket of this rate holds, and 3 for the way from claim to send.
    let most: i64 = database
        .value(
            "select max(n) from (select count(*) over (order by started_at range between interval '500 ms' preceding and current row) as n
                                   from postrider.attempts) a",
        )
        .await;
    assert!(most <= 15, "{most} in half a second");
    let per_second: f64 = database
        .value("select (count(*) / extract(epoch from max(started_at) - min(started_at)))::float8 from postrider.attempts")
        .await;
    assert!((10.0..25.0).contains(&per_second), "{per_second} a second");
}

#[tokio::test]
async fn a_rate_limit_of_next_to_nothing_stops_only_its_own_endpoint() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database
        .endpoint("a-slow", &receiver.url("/slow"))
        .set("rate_limit", 0.000_001)
        .await;
    database.endpoint("fast", &receiver.url("/fast")).await;
    fill(&database, "a-slow", 5).await;
    let _worker = Worker::spawn(&database, &["--poll-interval", "50ms"]);
    let delivered = async || with_status(&database, "a-slow", "delivered").await;
    wait_until("its first token is spent", delivered, |n| *n == 1, SOON).await;
    let asleep = async || {
        let asleep = "select count(*) from postrider.workers where sleeping_until is not null";
        database.value::<i64>(asleep).await
    };
    wait_until("the worker sleeps", asleep, |n| *n == 1, SOON).await;

    let id = database.insert("fast", "{}").await;

    database.wait_for_status(id, "delivered").await;
}

#[tokio::test]
async fn c30_eight_claimers_take_each_row_once_and_never_more_than_asked() {
    const ROWS: usize = 3000;
    let database = Database::fresh().await;
    database
        .sql("analyze postrider.deliveries; analyze postrider.endpoints")
        .await;
    for name in ["a", "b", "c"] {
        database
            .endpoint(name, "http://127.0.0.1:1/")
            .set("max_in_flight", 10_000)
            .await;
        fill(&database, name, ROWS / 3).await;
    }

    let claimers = (0..8).map(|number| {
        let (queue, database) = (queue(&database), &database);
        async move {
            let mut mine = Vec::new();
            loop {
                let claim = claim(&queue, &format!("w{number}"), 50).await;
                assert!(claim.taken.len() <= 50, "{} of 50", claim.taken.len());
                mine.extend(claim.taken.iter().map(|one| one.delivery.id));
                let left =
                    "select count(*) from postrider.deliveries where lease_expires_at is null";
                if claim.taken.is_empty() && database.value::<i64>(left).await == 0 {
                    return mine;
                }
            }
        }
    });
    let all: Vec<i64> = futures_util::future::join_all(claimers).await.concat();

    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (ROWS, ROWS));
    let once: bool = database
        .value("select bool_and(claim_no = 1) from postrider.deliveries")
        .await;
    assert!(once);
}

#[tokio::test]
async fn c31_what_rang_nobody_is_found_by_the_next_poll() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let worker = Worker::spawn(&database, &["--poll-interval", "300ms"]);
    worker.wait_for_line("worker starts").await;

    let copy = "copy postrider.deliveries (endpoint, event_type, payload) from stdin";
    let sink = database.client().copy_in::<_, Bytes>(copy).await;
    let mut sink = std::pin::pin!(sink.expect("it takes rows"));
    sink.send(Bytes::from_static(b"shop\tt\t{\"by\": \"copy\"}\n"))
        .await
        .expect("a row");
    sink.close().await.expect("the end of them");
    receiver.wait_for_requests(1).await;
    database
        .sql(
            "set session_replication_role = replica;
             insert into postrider.deliveries (endpoint, event_type, payload) values ('shop', 't', '{}');
             reset session_replication_role",
        )
        .await;

    receiver.wait_for_requests(2).await;
}

#[tokio::test]
async fn c24_a_row_that_was_committed_late_is_delivered_all_the_same() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let other = database.connect().await;
    let insert = "insert into postrider.deliveries (endpoint, event_id, event_type, payload) values ('shop', 'late', 't', '{}')";
    other
        .batch_execute(&format!("begin; {insert}"))
        .await
        .expect("a row that nobody sees yet");
    let _worker = Worker::spawn(&database, &["--poll-interval", "200ms"]);
    let newer = database.insert("shop", "{}").await;
    database.wait_for_status(newer, "delivered").await;

    other.batch_execute("commit").await.expect("committed");

    let requests = receiver.wait_for_requests(2).await;
    assert_eq!(requests[1].header("webhook-id"), ["late"]);
}

#[tokio::test]
async fn c38_few_open_files_mean_fewer_tries_at_a_time_and_none_fails() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database
        .endpoint("ep", &receiver.url("/"))
        .set("max_in_flight", 1000)
        .await;
    fill(&database, "ep", 3000).await;
    let mut limited = std::process::Command::new("sh");
    limited
        .args([
            "-c",
            "ulimit -n 256 && exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_postrider"),
            "worker",
        ])
        .args([
            "--allow-network",
            "127.0.0.0/8",
            "--drain",
            "--concurrency",
            "1000",
        ])
        .args(["--database-url", database.url()]);

    let mut worker = Worker::run(limited);

    let status = worker.wait().await;
    assert!(status.success(), "{status}");
    assert_eq!(with_status(&database, "ep", "delivered").await, 3000);
    assert_eq!(receiver.requests().len(), 3000, "each was requested once");
    assert!(worker.said().contains("raise `ulimit -n`"));
}

#[tokio::test]
async fn a_busy_receiver_keeps_its_connections() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database
        .endpoint("ep", &receiver.url("/"))
        .set("max_in_flight", 1000)
        .await;
    fill(&database, "ep", 3000).await;

    let mut worker = Worker::spawn(&database, &["--drain", "--concurrency", "100"]);

    worker.wait().await;
    let made = receiver.connections();
    assert!(made <= 200, "{made} connections for 100 tries at a time");
}
