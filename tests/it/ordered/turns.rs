use std::time::Duration;

use postrider::attempt::Next;
use serde_json::Value;

use super::{claim, deliver, fill, ids, ordered, queue, record, refused, states};
use crate::contract::plans::{CLAIM_64, buffers, explain, worker_settings};
use crate::support::process::on;
use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, SOON, Worker, tell, wait_until};

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
    let summary: String = database
        .value("select concat_ws(' ', open, due, failed, oldest_due > now()) from postrider.endpoint_summary")
        .await;
    assert_eq!(summary, "3 0 1 t");
    let stats: Value = serde_json::from_str(&shown(&["stats", "--json"])).expect("JSON");
    assert_eq!(
        (&stats["due"], &stats["held"]),
        (&0.into(), &2.into()),
        "{stats}"
    );
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
async fn whoever_ends_the_head_wakes_a_worker_that_sleeps() {
    for call in [
        "select postrider.cancel(1)",
        "select postrider.skip('line')",
        "select postrider.cancel_matching('line', max_rows => 1)",
    ] {
        let database = Database::fresh().await;
        let receiver = Receiver::start().await;
        database
            .endpoint("line", &receiver.url("/"))
            .set("ordered", true)
            .await;
        let head = database
            .insert("line", "{}")
            .set("next_retry", "infinity")
            .await;
        let next = database.insert("line", "{}").await;
        let _worker = Worker::spawn(&database, &["--poll-interval", "1h"]);
        let quiet = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'postrider'
                        and (query like '-- Takes due%' and state = 'idle' and query_start < clock_timestamp() - interval '1 s'
                             or query = 'listen postrider')";
        let quiet = async || database.value::<i64>(quiet).await;
        wait_until("it sleeps and listens", quiet, |n| *n == 2, SOON).await;

        database.sql(call).await;

        database.wait_for_status(next, "delivered").await;
        assert_eq!(database.delivery(head).await.status, "exhausted", "{call}");
    }
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
async fn c24_rows_that_a_long_transaction_commits_late_are_delivered_next_in_their_own_order() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database
        .endpoint("line", &receiver.url("/"))
        .set("ordered", true)
        .await;
    let long = database.connect().await;
    long.batch_execute(
        "begin; insert into postrider.deliveries (endpoint, event_type, event_id, payload)
                values ('line', 't', 'late 1', '{}'), ('line', 't', 'late 2', '{}')",
    )
    .await
    .expect("inserted");
    let _worker = Worker::spawn(&database, &[]);
    let early = database.insert("line", "{}").set("event_id", "early").await;
    database.wait_for_status(early, "delivered").await;
    let held = database
        .insert("line", "{}")
        .set("event_id", "held")
        .set("next_retry", "infinity")
        .await;

    long.batch_execute("commit").await.expect("committed");
    database.wait_for_status(2, "delivered").await;
    database
        .sql(&format!(
            "update postrider.deliveries set next_retry = now() where id = {held}"
        ))
        .await;
    database.wait_for_status(held, "delivered").await;

    let requests = receiver.requests();
    let order: Vec<_> = requests
        .iter()
        .map(|request| request.header("webhook-id").join(""))
        .collect();
    assert_eq!(order, ["early", "late 1", "late 2", "held"]);
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

/// An ordered endpoint with `history` delivered and `held` due deliveries, put in so fast that nobody has analysed anything; the
/// first due one waits for its retry.
async fn crowd(database: &Database, history: usize, held: usize) {
    database
        .sql(&format!(
            "set session_replication_role = replica;
             alter table postrider.deliveries set (autovacuum_enabled = off);
             insert into postrider.endpoints (name, url, ordered) values ('line', 'http://127.0.0.1:1/', true);
             insert into postrider.endpoint_health (endpoint) values ('line');
             insert into postrider.deliveries (endpoint, event_id, event_type, payload, status, next_retry, finished_at)
             select 'line', n::text, 't', '{{}}', case when n <= {history} then 'delivered' else 'queued' end,
                    case when n > {history} then now() - n % 1000 * interval '1 ms' end, case when n <= {history} then now() end
               from generate_series(1, {history} + {held}) n;
             update postrider.deliveries set status = 'failed', next_retry = now() + interval '1 h' where id = {history} + 1;
             set session_replication_role = origin"
        ))
        .await;
}

/// Buffers of a claim while the head waits for its retry, and when it is due, for each way of planning.
async fn costs(database: &Database) -> Vec<(String, u64, u64)> {
    let head = "id = (select min(id) from postrider.deliveries where next_retry is not null)";
    let ours = worker_settings();
    let due_in = async |time: &str| {
        let moved = format!(
            "update postrider.deliveries set next_retry = now() + interval '{time}' where {head}"
        );
        database.sql(&moved).await;
    };
    // What a session reads of the catalog once is no part of it.
    for time in ["-1 s", "1 h"] {
        due_in(time).await;
        explain(database, &ours, "force_generic_plan", CLAIM_64).await;
    }
    let mut costs = Vec::new();
    for (settings, told) in [(ours.as_str(), "told"), ("", "not told")] {
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let held = buffers(&explain(database, settings, mode, CLAIM_64).await);
            due_in("-1 s").await;
            let due = buffers(&explain(database, settings, mode, CLAIM_64).await);
            due_in("1 h").await;
            costs.push((format!("{mode}, {told} how"), held, due));
        }
    }
    costs
}

#[tokio::test]
async fn a_claim_costs_the_same_with_ten_and_with_a_hundred_thousand_behind_the_head() {
    let (few, many) = (Database::private().await, Database::private().await);
    crowd(&few, 10, 11).await;
    crowd(&many, 100_000, 100_001).await;

    let (ten, crowd) = (costs(&few).await, costs(&many).await);

    tell(&format!(
        "buffers of a claim, held and due: {ten:?} with 10, {crowd:?} with 100,000"
    ));
    for ((way, held, due), (_, much_held, much_due)) in ten.into_iter().zip(crowd) {
        // Trees are a level or two higher, and 33 due ones are looked at instead of 11.
        assert!(
            much_held <= held + 20 && much_due <= due + 80,
            "{way}: {much_held} instead of {held} while it is held, {much_due} instead of {due} when it is due"
        );
    }
    for query in [
        "select * from postrider.delivery_state where id = 150000",
        "select * from postrider.delivery_state order by id desc limit 20",
    ] {
        let plan: Value = many
            .value(&format!("explain (analyze, buffers, format json) {query}"))
            .await;
        let touched = buffers(&plan[0]["Plan"]);
        assert!(touched < 200, "{query}: {touched} buffers: {plan:#}");
    }
}

#[tokio::test]
async fn a_delivery_for_later_holds_those_behind_it_until_its_time() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    let later = "select postrider.send('line', 't', '{}', deliver_at => now() + interval '1 h')";
    let later: i64 = database.value(later).await;
    let next = database.insert("line", "{}").await;

    let early = claim(&queue).await;
    let held = states(&database).await;
    database
        .sql(&format!(
            "update postrider.deliveries set next_retry = now() where id = {later}"
        ))
        .await;
    let due = claim(&queue).await;
    deliver(&queue, &due).await;

    assert!(early.taken.is_empty());
    let wake = early.wake.expect("its time").as_secs();
    assert!((3590..=3600).contains(&wake), "{wake} s");
    assert_eq!(held, format!("scheduled, held by {later}"));
    assert_eq!(ids(&due), [later]);
    assert_eq!(ids(&claim(&queue).await), [next]);
}

#[tokio::test]
async fn a_disabled_line_ends_whole_and_goes_on_in_its_order_when_it_is_replayed() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    let all = fill(&database, "line", 5).await;
    let first = claim(&queue).await;
    database.sql("select postrider.disable('line')").await;

    assert!(claim(&queue).await.taken.is_empty());
    queue
        .retire(&["line".to_owned()], 100)
        .await
        .expect("retired");
    assert_eq!(
        states(&database).await,
        "sending, exhausted, exhausted, exhausted, exhausted"
    );
    deliver(&queue, &first).await;
    database.sql("select postrider.enable('line')").await;
    // Those that somebody replays first are sent first; of those that wait, the order is that of their ids.
    let replayed: i64 = database
        .value("select count(*) from (select postrider.replay(id) from (values (4), (2), (5), (3)) d (id)) r")
        .await;

    assert_eq!(replayed, 4);
    for id in &all[1..] {
        let next = claim(&queue).await;
        assert_eq!(ids(&next), [*id]);
        deliver(&queue, &next).await;
    }
}

#[tokio::test]
async fn four_workers_look_at_a_held_line_once_in_a_poll_interval_each() {
    let database = Database::private().await;
    ordered(&database).await;
    database
        .sql("update postrider.endpoints set retry_policy = 'frappe'")
        .await;
    fill(&database, "line", 100).await;
    count_looks(&database).await;
    let _workers: Vec<_> = (0..4)
        .map(|_| Worker::spawn(&database, &["--poll-interval", "200ms"]))
        .collect();
    database.wait_for_status(1, "failed").await;
    let looks = async || {
        database
            .value::<i64>("select last_value from postrider.looks")
            .await
    };
    let soon = looks().await + 24;
    wait_until("the quick looks are over", looks, |n| *n >= soon, SOON).await;

    let (began, before): (String, i64) = (
        database.value("select clock_timestamp()::text").await,
        looks().await,
    );
    let seen = wait_until("forty more", looks, |n| *n >= before + 40, SOON).await;

    let intervals: f64 = database
        .value(&format!(
            "select extract(epoch from clock_timestamp() - '{began}')::float8 / 0.2"
        ))
        .await;
    let each = f64::from(i32::try_from(seen - before).expect("few")) / 4.0;
    assert!(
        each <= intervals + 2.0,
        "{each} looks by each in {intervals} intervals"
    );
    let tries: i64 = database
        .value("select count(*) from postrider.attempts")
        .await;
    assert_eq!(tries, 1);
}

#[tokio::test]
async fn a_head_that_fails_again_and_again_costs_few_looks_for_each_try() {
    let database = Database::private().await;
    let receiver = Receiver::start().await;
    receiver.script(vec![Script::status(500); 60]);
    database
        .sql("insert into postrider.retry_policies (name, kind, delays, max_retries, jitter) values ('soon', 'schedule', '{30 ms}', 1000, 0)")
        .await;
    database
        .endpoint("line", &receiver.url("/"))
        .set("ordered", true)
        .set("retry_policy", "soon")
        .await;
    let all = fill(&database, "line", 1000).await;
    count_looks(&database).await;
    let _workers: Vec<_> = (0..4)
        .map(|_| Worker::spawn(&database, &["--poll-interval", "10s"]))
        .collect();

    database.wait_for_status(all[0], "delivered").await;

    let looks: i64 = database
        .value("select last_value from postrider.looks")
        .await;
    tell(&format!(
        "{looks} looks of 4 workers at a line whose head failed 60 times"
    ));
    assert!(looks < 60 * 4 * 6, "{looks} looks for 61 tries");
}

/// Counts how often claims look at a lane, in the sequence `looks`.
async fn count_looks(database: &Database) {
    database
        .sql(
            "create sequence postrider.looks;
             do $do$ begin
               execute regexp_replace(pg_get_functiondef('postrider.lane_in_flight(text, integer, text, boolean, timestamptz, bigint)'::regprocedure),
                                      '\nbegin\n', E'\nbegin\n  perform nextval(''postrider.looks'');\n');
             end $do$",
        )
        .await;
}
