use std::time::Duration;

use postrider::attempt::Next;
use serde_json::Value;

use super::{claim, deliver, fill, ids, queue, record, refused};
use crate::contract::plans::{CLAIM_64, buffers, explain, worker_settings};
use crate::support::process::on;
use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, Worker};

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

#[tokio::test]
async fn a_head_that_fails_holds_the_rest_and_whoever_looks_sees_it() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    let all = fill(&database, "line", 3).await;
    let first = claim(&queue).await;
    assert_eq!(ids(&first), all[..1]);
    assert_eq!(states(&database).await, "sending, held by 1, held by 1");

    record(
        &queue,
        &first,
        &first.taken[0],
        Next::Retry(Duration::from_secs(60)),
    )
    .await;
    let held = claim(&queue).await;

    assert_eq!(ids(&held), Vec::<i64>::new());
    // The worker sleeps until the head is due: nothing else counts as due, as soon to be due, or as a reason to look again.
    assert!(!held.capped && !held.contended && !held.rationed);
    let wake = held.wake.expect("the head's due time");
    assert!((55..=60).contains(&wake.as_secs()), "{wake:?}");
    assert_eq!(states(&database).await, "failed, held by 1, held by 1");
    let due: i64 = database
        .value("select count(*) from postrider.due_now")
        .await;
    assert_eq!(due, 0, "nothing waits for a worker");
    let shown = |arguments: &[&str]| {
        let output = on(&database, arguments).output().expect("it runs");
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(shown(&["delivery", "list"]).contains("held by 1"));
    assert!(shown(&["delivery", "show", "2"]).contains("held by delivery"));
    let endpoint = shown(&["endpoint", "show", "line"]);
    assert!(endpoint.contains("delivery 1: failed, due "), "{endpoint}");
    assert!(endpoint.contains("; 2 behind it"), "{endpoint}");
    let json: Value =
        serde_json::from_str(&shown(&["delivery", "show", "2", "--json"])).expect("JSON");
    assert_eq!(json["held_by"], 1);
}

#[tokio::test]
async fn while_the_head_is_in_flight_the_rest_waits_for_its_end_or_its_lease() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    fill(&database, "line", 3).await;
    let first = claim(&queue).await;

    let other = claim(&queue).await;

    assert!(other.taken.is_empty() && other.capped && !other.contended);
    let wake = other.wake.expect("the lease of the one in flight");
    assert!((25..=30).contains(&wake.as_secs()), "{wake:?}");
    deliver(&queue, &first).await;
    assert_eq!(ids(&claim(&queue).await), [2]);
    let due: i64 = database
        .value("select count(*) from postrider.due_now")
        .await;
    assert_eq!(due, 0);
}

#[tokio::test]
async fn the_rest_goes_on_when_the_head_is_exhausted_cancelled_or_skipped() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::status(400)]);
    database
        .endpoint("line", &receiver.url("/"))
        .set("ordered", true)
        .await;
    let exhausted = database.insert("line", "{}").await;
    let cancelled = database
        .insert("line", "{}")
        .set("next_retry", "infinity")
        .await;
    let skipped = database
        .insert("line", "{}")
        .set("next_retry", "infinity")
        .await;
    let last = database.insert("line", "{}").await;
    let _worker = Worker::spawn(&database, &[]);
    database.wait_for_status(exhausted, "exhausted").await;
    assert_eq!(
        states(&database).await,
        "exhausted, scheduled, held by 2, held by 2"
    );

    database
        .sql(&format!("select postrider.cancel({cancelled})"))
        .await;
    let output = on(&database, &["endpoint", "skip", "line"])
        .output()
        .expect("it runs");

    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains(&format!("delivery {skipped}: cancelled")),
        "{said}"
    );
    database.wait_for_status(last, "delivered").await;
    let reason = database.delivery(skipped).await.exhausted_reason;
    assert_eq!(reason.as_deref(), Some("cancelled"));
    let none: Option<i64> = database.value("select postrider.skip('line')").await;
    assert_eq!(none, None, "nothing is open");
}

#[tokio::test]
async fn only_an_ordered_endpoint_can_skip() {
    let database = Database::fresh().await;
    database.endpoint("plain", "http://127.0.0.1:1/").await;
    let id = database.insert("plain", "{}").await;

    assert_eq!(
        refused(&database, "select postrider.skip('plain')").await,
        "PR015"
    );
    assert_eq!(
        refused(&database, "select postrider.skip('nobody')").await,
        "PR004"
    );
    let output = on(&database, &["endpoint", "skip", "plain"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("postrider delivery cancel ID"));
    assert_eq!(database.delivery(id).await.status, "queued");
}

#[tokio::test]
async fn two_who_skip_at_once_skip_one() {
    let database = Database::fresh().await;
    ordered(&database).await;
    fill(&database, "line", 3).await;
    let (one, two) = (database.connect().await, database.connect().await);
    one.batch_execute("begin; select postrider.skip('line')")
        .await
        .expect("skipped");
    let second = tokio::spawn(async move {
        let row = two
            .query_one("select postrider.skip('line')", &[])
            .await
            .expect("a row");
        row.try_get::<_, Option<i64>>(0).expect("an id or none")
    });
    let blocked = async || {
        let blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        database.value::<i64>(blocked).await
    };
    crate::support::wait_until(
        "the second waits",
        blocked,
        |n| *n == 1,
        crate::support::SOON,
    )
    .await;

    one.batch_execute("commit").await.expect("committed");

    assert_eq!(second.await.expect("it ends"), None);
    assert_eq!(states(&database).await, "exhausted, queued, held by 2");
}

#[tokio::test]
async fn lower_ids_that_are_committed_late_go_next_and_never_beside_the_one_in_flight() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    let late = database.connect().await;
    late.batch_execute(
        "begin; insert into postrider.deliveries (endpoint, event_type, payload) select 'line', 't', '{}' from generate_series(1, 3000)",
    )
    .await
    .expect("inserted");
    let early = database.insert("line", "{}").await;
    let first = claim(&queue).await;
    assert_eq!(ids(&first), [early]);

    late.batch_execute("commit").await.expect("committed");
    let beside = claim(&queue).await;
    deliver(&queue, &first).await;
    let next = claim(&queue).await;

    assert_eq!(ids(&beside), Vec::<i64>::new());
    assert!(beside.capped, "it waits for the one in flight");
    assert_eq!(ids(&next), [1]);
}

#[tokio::test]
async fn a_replay_keeps_its_place_and_so_goes_next() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    fill(&database, "line", 3).await;
    deliver(&queue, &claim(&queue).await).await;
    let second = claim(&queue).await;
    assert_eq!(ids(&second), [2]);

    database.sql("select postrider.replay(1)").await;

    assert!(claim(&queue).await.taken.is_empty(), "one is in flight");
    assert_eq!(states(&database).await, "queued, sending, held by 1");
    deliver(&queue, &second).await;
    let replayed = claim(&queue).await;
    assert_eq!(ids(&replayed), [1]);
    deliver(&queue, &replayed).await;
    assert_eq!(ids(&claim(&queue).await), [3]);
}

#[tokio::test]
async fn an_endpoint_can_become_ordered_and_unordered_while_deliveries_are_in_flight() {
    let database = Database::fresh().await;
    database
        .endpoint("line", "http://127.0.0.1:1/")
        .set("max_in_flight", 3)
        .await;
    let queue = queue(&database);
    fill(&database, "line", 10).await;
    let three = claim(&queue).await;
    assert_eq!(ids(&three), [1, 2, 3]);
    let switch = async |to: &str| {
        let switch = format!("update postrider.endpoints set ordered = {to}");
        database.sql(&switch).await;
    };

    switch("true").await;
    for (n, taken) in three.taken.iter().enumerate().rev() {
        assert!(
            claim(&queue).await.taken.is_empty(),
            "{} are in flight",
            n + 1
        );
        record(&queue, &three, taken, Next::Delivered).await;
    }
    let one = claim(&queue).await;
    assert_eq!(ids(&one), [4]);
    switch("false").await;
    let more = claim(&queue).await;
    assert_eq!(ids(&more), [5, 6]);
    switch("true").await;
    deliver(&queue, &one).await;
    assert!(claim(&queue).await.taken.is_empty(), "two are in flight");
}

#[tokio::test]
async fn a_lane_whose_worker_died_goes_on_with_the_same_delivery() {
    let database = Database::fresh().await;
    ordered(&database).await;
    database
        .sql("update postrider.endpoints set max_retries = 1")
        .await;
    let queue = queue(&database);
    fill(&database, "line", 2).await;
    let expire = "update postrider.deliveries set lease_expires_at = now() - interval '1 s' where lease_expires_at is not null";

    assert_eq!(ids(&claim(&queue).await), [1]);
    database.sql(expire).await;
    assert_eq!(ids(&claim(&queue).await), [1], "again");
    database.sql(expire).await;
    let spent = claim(&queue).await;

    assert_eq!(spent.ended, [(1, "lost".to_owned())]);
    assert!(spent.taken.is_empty());
    assert_eq!(ids(&claim(&queue).await), [2]);
}

#[tokio::test]
async fn pauses_and_rate_limits_hold_for_ordered_endpoints_too() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    fill(&database, "line", 3).await;
    database.sql("select postrider.pause('line')").await;
    assert!(claim(&queue).await.taken.is_empty());
    assert_eq!(states(&database).await, "held, held by 1, held by 1");
    database
        .sql("select postrider.resume('line'); update postrider.endpoints set rate_limit = 0.01")
        .await;

    let first = claim(&queue).await;
    deliver(&queue, &first).await;
    let rationed = claim(&queue).await;

    assert_eq!(ids(&first), [1]);
    assert!(rationed.taken.is_empty() && rationed.rationed);
    database
        .sql("update postrider.endpoint_health set rate_tokens = 1")
        .await;
    assert_eq!(ids(&claim(&queue).await), [2]);
}

#[tokio::test]
async fn a_worker_from_before_finds_every_ordered_lane_full() {
    let database = Database::fresh().await;
    ordered(&database).await;
    database.endpoint("plain", "http://127.0.0.1:1/").await;
    fill(&database, "line", 3).await;
    fill(&database, "plain", 3).await;
    claim(&queue(&database)).await;

    let full: i32 = database
        .value("select in_flight from postrider.lane_in_flight('line', 64, 'w')")
        .await;
    let some: i32 = database
        .value("select in_flight from postrider.lane_in_flight('plain', 64, 'w')")
        .await;

    assert_eq!((full, some), (64, 3));
}

#[tokio::test]
async fn a_claim_costs_the_same_whatever_waits_behind_the_head() {
    let database = Database::private().await;
    database
        .sql(
            "set session_replication_role = replica;
             alter table postrider.deliveries set (autovacuum_enabled = off);
             insert into postrider.endpoints (name, url, ordered) values ('line', 'http://127.0.0.1:1/', true);
             insert into postrider.endpoint_health (endpoint) values ('line');
             insert into postrider.deliveries (endpoint, event_id, event_type, payload, status, next_retry, finished_at)
             select 'line', n::text, 't', '{}', case when n <= 100000 then 'delivered' else 'queued' end,
                    case when n > 100000 then now() - n % 1000 * interval '1 ms' end, case when n <= 100000 then now() end
               from generate_series(1, 1100000) n;
             update postrider.deliveries set status = 'failed', next_retry = now() + interval '1 h' where id = 100001;
             set session_replication_role = origin",
        )
        .await;
    let ours = worker_settings();
    // The first plan of a session reads the catalog, more of it with every index.
    explain(&database, &ours, "force_generic_plan", CLAIM_64).await;

    for (settings, told) in [(ours.as_str(), "told"), ("", "not told")] {
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let held = buffers(&explain(&database, settings, mode, CLAIM_64).await);
            database
                .sql("update postrider.deliveries set next_retry = now() - interval '1 s' where id = 100001")
                .await;
            let due = buffers(&explain(&database, settings, mode, CLAIM_64).await);
            database
                .sql("update postrider.deliveries set next_retry = now() + interval '1 h' where id = 100001")
                .await;
            assert!(
                held < 200 && due < 200,
                "{mode}, {told} how: {held} and {due} buffers"
            );
        }
    }
    for (what, query) in [
        (
            "one",
            "select * from postrider.delivery_state where id = 900000",
        ),
        (
            "the newest",
            "select * from postrider.delivery_state order by id desc limit 20",
        ),
    ] {
        let plan: Value = database
            .value(&format!("explain (analyze, buffers, format json) {query}"))
            .await;
        let touched = buffers(&plan[0]["Plan"]);
        assert!(touched < 200, "{what}: {touched} buffers: {plan:#}");
    }
}
