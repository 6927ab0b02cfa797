//! What a delivery costs, in counts that no other load on the machine changes: buffers, WAL records, statements, HOT updates.

use std::fmt::Write as _;
use std::time::Duration;

use postrider::attempt::{Attempt, Next, Outcome};
use postrider::store::connect::{ConnectOptions, Connector};
use postrider::store::queue::{Ask, Claim, Front, Queue, Sessions};
use serde_json::Value;

use crate::contract::plans::{CLAIM_64, buffers, explain, worker_settings};
use crate::support::{Database, SOON, process, wait_until};

fn queue(database: &Database) -> Queue {
    let options = ConnectOptions {
        url: Some(database.url().to_owned()),
    };
    let connector = Connector::new(&options, &|_| None).expect("the test's own address");
    Queue::new(&connector, Sessions::Own).expect("a pool")
}

async fn claim(queue: &Queue, wanted: i32, marks: &[Front]) -> Claim {
    let ask = Ask {
        cursor: "",
        lanes: 64,
        wanted,
        worker: "w",
        margin: Duration::from_secs(15),
        sleep: Duration::from_secs(1),
        free: i32::MAX,
        bytes: i64::MAX,
        marks,
    };
    queue.claim(ask).await.expect("it claims")
}

/// What a worker would report of all that it took.
fn delivered(claim: &Claim) -> Vec<Attempt> {
    let attempt = |taken: &postrider::store::queue::Taken| Attempt {
        delivery_id: taken.delivery.id,
        claim_no: taken.delivery.claim_no,
        endpoint: taken.delivery.endpoint.clone(),
        started_at: claim.claimed_at,
        duration: Duration::from_millis(7),
        outcome: Outcome::Delivered,
        next: Next::Delivered,
        status_code: Some(200),
        error_kind: None,
        error: None,
        request_headers: Vec::new(),
        response_headers: Vec::new(),
        response_body: Some(Vec::new()),
        response_truncated: false,
        remote_addr: None,
    };
    claim.taken.iter().map(attempt).collect()
}

async fn fill(database: &Database, endpoints: usize, each: usize) {
    for n in 0..endpoints {
        database
            .endpoint(&format!("e{n}"), "http://127.0.0.1:1/")
            .set("max_in_flight", 1000)
            .await;
    }
    database
        .sql(&format!(
            "insert into postrider.deliveries (endpoint, event_type, payload, next_retry)
             select 'e' || n % {endpoints}, 't', to_json(repeat('x', 1024)), now() - interval '1 h' from generate_series(1, {}) n",
            endpoints * each
        ))
        .await;
}

#[tokio::test]
async fn a_claim_changes_no_index() {
    let database = Database::private().await;
    fill(&database, 16, 100).await;
    let queue = queue(&database);

    let mut taken = 0;
    while taken < 1600 {
        let claim = claim(&queue, 250, &[]).await;
        assert!(!claim.taken.is_empty());
        taken += claim.taken.len();
    }

    let hot = async || {
        database
            .value::<i64>(
                "select n_tup_hot_upd from pg_stat_user_tables where relname = 'deliveries'",
            )
            .await
    };
    wait_until(
        "nineteen of twenty claims are HOT updates",
        hot,
        |n| *n >= 1520,
        SOON,
    )
    .await;
}

#[tokio::test]
async fn a_delivery_writes_few_wal_records() {
    let database = Database::private().await;
    fill(&database, 16, 64).await;
    let queue = queue(&database);
    // The first ones write whole pages, and read the catalogue.
    let warm = claim(&queue, 500, &[]).await;
    queue
        .record("w", &delivered(&warm))
        .await
        .expect("recorded");
    let mut records = 0.0;
    let mut rows = 0.0;

    for statement in ["claim", "record"] {
        let plan = explain_wal(&database, statement).await;
        records += plan.0;
        rows = plan.1;
    }

    let each = records / rows;
    assert!(each <= 14.0, "{each} WAL records a delivery");
}

/// WAL records and rows of a claim, or of the record of what one took, as it went.
async fn explain_wal(database: &Database, name: &str) -> (f64, f64) {
    let find = |name: &str| {
        let statement = postrider::store::queue::STATEMENTS
            .iter()
            .find(|statement| statement.name == name);
        statement.expect("it is one of them").sql
    };
    let claim = "execute claiming ('', 64, 250, 'w', 15000, 1000, 256, 67108864, '{}', '{}', '{}')";
    let mut session = worker_settings();
    write!(session, "prepare claiming as {}; ", find("claim")).expect("a string takes it");
    write!(session, "prepare recording as {}; ", find("record")).expect("a string takes it");
    database.sql(&session).await;
    let plan: Value = if name == "claim" {
        let explain = format!("explain (analyze, wal, format json) {claim}");
        database.value(&explain).await
    } else {
        let constants = [
            "id",
            "claim_no",
            "'delivered'::text",
            "null::text",
            "null::bigint",
            "endpoint",
            "now()",
            "7",
            "'delivered'::text",
            "200",
            "null::text",
            "null::text",
            "null::text",
            "null::text",
            "null::bytea",
            "false",
            "null::text",
        ];
        let arrays =
            constants.map(|what| format!("quote_literal(array_agg({what} order by id)::text)"));
        let arguments: String = database
            .value(&format!(
                "select concat_ws(', ', {}) from postrider.deliveries where lease_expires_at is not null",
                arrays.join(", ")
            ))
            .await;
        database
            .value(&format!(
                "explain (analyze, wal, format json) execute recording ({arguments}, 'w')"
            ))
            .await
    };
    database.sql("deallocate all").await;
    let plan = &plan[0]["Plan"];
    let rows = plan["Actual Rows"].as_f64().expect("a number");
    let wal = |node: &Value| node["WAL Records"].as_f64().unwrap_or(0.0);
    // What nobody reads stands beside, not below.
    let beside = plan["Plans"].as_array().into_iter().flatten();
    let beside: f64 = beside
        .filter(|node| node["Node Type"] == "ModifyTable")
        .map(wal)
        .sum();
    (wal(plan).max(beside), rows)
}

/// A lane with so many dead entries in front that a claim would pass each of them, while a transaction that could still see their rows is open.
#[tokio::test]
async fn c39_a_claim_with_marks_steps_over_what_a_long_transaction_keeps() {
    let database = Database::private().await;
    fill(&database, 1, 20_000).await;
    let reader = database.connect().await;
    reader
        .batch_execute(
            "begin isolation level repeatable read; select count(*) from postrider.deliveries",
        )
        .await
        .expect("it reads");
    database
        .sql(
            "update postrider.deliveries set status = 'delivered', next_retry = null, finished_at = now() where id <= 19900",
        )
        .await;
    let front = claim(&queue(&database), 1, &[]).await.fronts;
    let [front] = &front[..] else {
        panic!("one lane: {front:?}");
    };
    assert_eq!(front.id, 19_901);
    database
        .sql("update postrider.deliveries set lease_expires_at = null, leased_by = null where lease_expires_at is not null")
        .await;

    let ours = worker_settings();
    let from_the_start = explain(&database, &ours, "force_generic_plan", CLAIM_64).await;
    let marked = format!(
        "'', 64, 64, 'w', 15000, 1000, 256, 67108864, '{{e0}}', array['{}'::timestamptz], '{{{}}}'",
        front.next_retry.to_rfc3339(),
        front.id
    );
    let marked = explain(&database, &ours, "force_generic_plan", ("claim", &marked)).await;

    let (from_the_start, marked) = (buffers(&from_the_start), buffers(&marked));
    assert!(
        from_the_start > 5 * marked,
        "{from_the_start} buffers from the start, {marked} with a mark"
    );
    reader.batch_execute("commit").await.expect("it ends");
}

#[tokio::test]
async fn a_mark_overlooks_nothing_that_a_caller_waits_for() {
    let database = Database::private().await;
    fill(&database, 1, 10).await;
    let queue = queue(&database);
    let marks = claim(&queue, 1, &[]).await.fronts;
    database
        .sql(
            "insert into postrider.deliveries (endpoint, event_type, payload, next_retry, deadline)
             select 'e0', 'awaited', '{}', min(next_retry) - interval '1 us', now() + interval '1 min' from postrider.deliveries",
        )
        .await;

    let next = claim(&queue, 1, &marks).await;

    assert_eq!(
        next.taken
            .iter()
            .map(|taken| taken.delivery.event_type.as_str())
            .collect::<Vec<_>>(),
        ["awaited"]
    );
}

#[tokio::test]
async fn what_comes_before_a_mark_is_seen_from_the_start_of_its_lane() {
    let database = Database::private().await;
    fill(&database, 2, 10).await;
    let queue = queue(&database);
    let marks = claim(&queue, 2, &[]).await.fronts;
    database.endpoint("e00", "http://127.0.0.1:1/").await;
    database
        .sql(
            "insert into postrider.deliveries (endpoint, event_type, payload, next_retry)
             values ('e0', 'late', '{}', now() - interval '2 h'), ('e00', 'new lane', '{}', now())",
        )
        .await;
    let types = |claim: &Claim| {
        let mut types: Vec<String> = claim
            .taken
            .iter()
            .map(|taken| taken.delivery.event_type.clone())
            .collect();
        types.sort_unstable();
        types.dedup();
        types
    };
    assert_eq!(marks.len(), 2);

    let with_marks = claim(&queue, 6, &marks).await;
    let from_the_start = claim(&queue, 6, &marks[1..]).await;

    assert_eq!(types(&with_marks), ["new lane", "t"]);
    assert_eq!(types(&from_the_start), ["late", "t"]);
}

#[tokio::test]
async fn a_bench_loses_nothing_and_says_what_it_measured() {
    let output = tokio::task::spawn_blocking(|| {
        process::postrider()
            .args(["bench", "fast", "--deliveries", "2000", "--json"])
            .output()
            .expect("it runs")
    })
    .await
    .expect("it ends");

    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let figures: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(figures["scenario"], "fast");
    assert_eq!(figures["deliveries"], 2000);
    assert_eq!(figures["requests"], 2000);
    assert_eq!(
        (&figures["lost"], &figures["duplicates"]),
        (&0.into(), &0.into())
    );
    for figure in [
        "deliveries_per_s",
        "ideal_per_s",
        "ratio_to_ideal",
        "worker_cpu_us",
        "postgres_cpu_us",
        "receiver_cpu_us",
        "worker_peak_mb",
        "wal_bytes_per_delivery",
    ] {
        let value = figures[figure].as_f64();
        assert!(
            value.is_some_and(|value| value > 0.0),
            "{figure}: {figures}"
        );
    }
    let statements = figures["statements_per_delivery"].as_f64();
    assert!(
        statements.is_some_and(|n| n < 0.25),
        "several deliveries share a statement: {figures}"
    );
}
