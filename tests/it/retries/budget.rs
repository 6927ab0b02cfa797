//! How often a delivery is tried: who says so, and that nothing makes it more.

use super::{AT_ONCE, refused_by};
use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

#[tokio::test]
async fn c22_two_retries_are_three_attempts_over_restarts_kills_and_two_workers() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([403; 20].map(Script::status));
    database
        .sql(
            "insert into postrider.retry_policies (name, kind, delays, jitter, max_retries, retry_on)
             values ('stubborn', 'schedule', '{1 h}', 0, 9, '{403}')",
        )
        .await;
    database
        .endpoint("shop", &receiver.url("/hook"))
        .set("retry_policy", "stubborn")
        .set("max_retries", 2)
        .await;
    let id = database.insert("shop", "{}").await;
    let tried = async |count: i32| {
        let what = format!("try {count} is on record");
        let holds = |delivery: &crate::support::database::Delivery| delivery.attempt_count == count;
        database.wait_for(id, &what, holds).await
    };
    let due_now = "update postrider.deliveries set next_retry = now()";

    let mut first = Worker::spawn(&database, &[]);
    tried(1).await;
    first.terminate();
    assert!(first.wait().await.success());
    database.sql(due_now).await;
    let mut second = Worker::spawn(&database, &[]);
    tried(2).await;
    second.kill_9();
    database.wait_until_no_worker_is_connected().await;
    database.sql(due_now).await;
    let _both = [Worker::spawn(&database, &[]), Worker::spawn(&database, &[])];
    let ended = tried(3).await;

    assert_eq!(ended.status, "exhausted");
    assert_eq!(ended.exhausted_reason.as_deref(), Some("retries_used"));
    assert_eq!((ended.last_status_code, ended.due_in), (Some(403), None));
    let attempts = database.attempts(id).await;
    let told: Vec<_> = attempts
        .iter()
        .map(|try_| (try_.attempt_no, try_.outcome.as_str(), try_.status_code))
        .collect();
    assert_eq!(told, [1, 2, 3].map(|n| (n, "retry", Some(403))));
    assert_eq!(receiver.requests().len(), 3);
}

#[tokio::test]
async fn c22_a_replay_has_the_same_budget_once_more_and_counts_on() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([500; 20].map(Script::status));
    database.sql(AT_ONCE).await;
    database
        .endpoint("shop", &receiver.url("/hook"))
        .set("retry_policy", "at once")
        .await;
    let id = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &[]);
    database.wait_for_status(id, "exhausted").await;

    let replay = format!("select postrider.replay({id})");
    assert!(database.value::<bool>(&replay).await);
    let ended = database.wait_for_status(id, "exhausted").await;

    assert_eq!((ended.attempt_count, ended.budget_from), (4, 2));
    let numbers: Vec<_> = database
        .attempts(id)
        .await
        .iter()
        .map(|a| a.attempt_no)
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    assert_eq!(receiver.requests().len(), 4);
}

#[tokio::test]
async fn c25_a_deliverys_max_retries_wins_over_the_endpoints_and_that_over_the_policys() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([500; 100].map(Script::status));
    database.sql(AT_ONCE).await;
    let mut rows = Vec::new();
    for (n, (endpoint, delivery, tries)) in [
        (None, None, 2),
        (None, Some(0), 1),
        (None, Some(3), 4),
        (Some(0), None, 1),
        (Some(2), None, 3),
        (Some(2), Some(0), 1),
        (Some(0), Some(2), 3),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("case {n}");
        database
            .endpoint(&name, &receiver.url("/hook"))
            .set("retry_policy", "at once")
            .set("max_retries", endpoint)
            .await;
        let id = database
            .insert(&name, "{}")
            .set("max_retries", delivery)
            .await;
        rows.push((id, name, tries));
    }

    let _worker = Worker::spawn(&database, &[]);

    for (id, name, tries) in rows {
        let ended = database.wait_for_status(id, "exhausted").await;
        assert_eq!(ended.attempt_count, tries, "{name}");
        assert_eq!(ended.exhausted_reason.as_deref(), Some("retries_used"));
        let attempts = database.attempts(id).await;
        let scheduled = attempts.iter().filter(|a| a.retry_after.is_some()).count();
        assert_eq!(
            scheduled + 1,
            attempts.len(),
            "{name}: only the last decides to stop"
        );
    }
}

/// Columns and values of a policy that is refused, and the constraint that does so.
const ODD_POLICIES: [(&str, &str, &str); 20] = [
    (
        "delays",
        "'schedule', 1, '{}'",
        "schedule_has_a_delay_for_its_retries",
    ),
    (
        "delays",
        "'schedule', 1, '{-1 s}'",
        "delays_are_between_zero_and_a_year",
    ),
    (
        "delays",
        "'schedule', 1, '{1 s,null}'",
        "delays_are_between_zero_and_a_year",
    ),
    (
        "delays",
        "'schedule', 1, '{1 s,2 years}'",
        "delays_are_between_zero_and_a_year",
    ),
    (
        "delays",
        "'schedule', -1, '{1 s}'",
        "max_retries_is_between_0_and_1000",
    ),
    (
        "delays",
        "'schedule', 1001, '{1 s}'",
        "max_retries_is_between_0_and_1000",
    ),
    (
        "delays",
        "'other', 1, '{1 s}'",
        "kind_is_schedule_or_exponential",
    ),
    (
        "delays, jitter",
        "'schedule', 1, '{1 s}', 1.1",
        "jitter_is_between_0_and_1",
    ),
    (
        "delays, jitter",
        "'schedule', 1, '{1 s}', 'NaN'",
        "jitter_is_between_0_and_1",
    ),
    (
        "base, cap",
        "'exponential', 1, '1 s', '1 h'",
        "exponential_has_base_factor_and_cap",
    ),
    (
        "base, cap, factor",
        "'exponential', 1, '1 s', '1 h', 0.5",
        "factor_is_between_1_and_1000",
    ),
    (
        "base, cap, factor",
        "'exponential', 1, '1 s', '1 h', 'NaN'",
        "factor_is_between_1_and_1000",
    ),
    (
        "base, cap, factor",
        "'exponential', 1, '-1 s', '1 h', 2",
        "base_and_cap_are_between_zero_and_a_year",
    ),
    (
        "delays, retry_on",
        "'schedule', 1, '{1 s}', '{4xx}'",
        "retry_on_lists_codes_and_ranges",
    ),
    (
        "delays, retry_on",
        "'schedule', 1, '{1 s}', '{200}'",
        "retry_on_lists_codes_and_ranges",
    ),
    (
        "delays, retry_on",
        "'schedule', 1, '{1 s}', '{429,null}'",
        "retry_on_lists_codes_and_ranges",
    ),
    (
        "delays, retry_on",
        "'schedule', 1, '{1 s}', '{429,\"\"}'",
        "retry_on_lists_codes_and_ranges",
    ),
    (
        "delays, retry_on",
        "'schedule', 1, '{1 s}', '{\"403,429\"}'",
        "retry_on_lists_codes_and_ranges",
    ),
    (
        "delays, retry_on",
        "'schedule', 1, '{1 s}', '{\"403\n\"}'",
        "retry_on_lists_codes_and_ranges",
    ),
    (
        "delays, retry_on",
        "'schedule', 1, '{1 s}', '{599-500}'",
        "retry_on_lists_codes_and_ranges",
    ),
];

#[tokio::test]
async fn c25_a_policy_that_has_no_meaning_is_refused_by_the_name_of_its_rule() {
    let database = Database::fresh().await;

    for (columns, values, constraint) in ODD_POLICIES {
        let insert = format!(
            "insert into postrider.retry_policies (name, kind, max_retries, {columns}) values ('odd', {values})"
        );
        let refused_by = refused_by(&database, &insert).await;
        assert_eq!(
            refused_by,
            format!("retry_policies_{constraint}"),
            "{insert}"
        );
    }
}

#[tokio::test]
async fn c25_a_limit_that_has_no_meaning_is_refused_by_the_name_of_its_rule() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let insert = |columns: &str, values: &str| {
        format!("insert into postrider.deliveries (event_type, {columns}) values ('a', {values})")
    };

    for (statement, constraint) in [
        (
            "update postrider.endpoints set max_retries = -1".into(),
            "endpoints_max_retries_is_between_0_and_1000",
        ),
        (
            "update postrider.endpoints set timeout = '0'".into(),
            "endpoints_timeout_is_between_100_ms_and_1_hour",
        ),
        (
            insert("endpoint, payload, max_retries", "'shop', '{}', -1"),
            "deliveries_max_retries_is_between_0_and_1000",
        ),
        (
            insert("endpoint, payload, next_retry", "'shop', '{}', null"),
            "deliveries_queued_or_failed_means_scheduled",
        ),
        (
            insert("endpoint", "'shop'"),
            "deliveries_have_one_of_payload_body_event",
        ),
        (
            insert("endpoint, payload", "'nobody', '{}'"),
            "deliveries_endpoint_exists",
        ),
    ] {
        let refused_by = refused_by(&database, &statement).await;
        assert_eq!(refused_by, constraint, "{statement}");
    }
}

#[tokio::test]
async fn c25_an_empty_schedule_that_an_endpoint_stretches_retries_at_once() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([500, 500].map(Script::status));
    database
        .endpoint("once", &receiver.url("/hook"))
        .set("retry_policy", "once")
        .await;
    database
        .endpoint("stretched", &receiver.url("/hook"))
        .set("retry_policy", "once")
        .set("max_retries", 1)
        .await;
    let stretched = database.insert("stretched", "{}").await;
    let worker = Worker::spawn(&database, &[]);
    database.wait_for_status(stretched, "exhausted").await;
    receiver.script([Script::status(500)]);
    let once = database.insert("once", "{}").await;

    let once = database.wait_for_status(once, "exhausted").await;

    assert_eq!(once.attempt_count, 1, "{}", worker.said());
    let attempts = database.attempts(stretched).await;
    assert_eq!(attempts.len(), 2);
    assert!(
        attempts[0].retry_after.is_some_and(|wait| wait < 1.0),
        "{attempts:?}"
    );
}

#[tokio::test]
async fn c26_a_thousand_rows_that_fail_together_come_back_spread_over_the_jitter() {
    let database = Database::fresh().await;
    database
        .sql(
            "insert into postrider.retry_policies (name, kind, delays, jitter, max_retries)
             values ('spread', 'schedule', '{1000 s}', 0.5, 1);
             insert into postrider.endpoints (name, url, retry_policy, max_in_flight)
             values ('down', 'http://127.0.0.1:1/', 'spread', 256);
             insert into postrider.deliveries (endpoint, event_type, payload)
             select 'down', 'test.event', '{}' from generate_series(1, 1000);",
        )
        .await;

    let _worker = Worker::spawn(&database, &["--log", "warn"]);

    let failed = "select count(*) from postrider.deliveries where status = 'failed'";
    let look = async || database.value::<i64>(failed).await;
    wait_until("all have failed once", look, |count| *count == 1000, SOON).await;
    // The outer tenths also take what was recorded a little late, and what began a little before the clocks say.
    let tenths: Vec<i64> = database
        .value(
            "select array_agg(n order by tenth) from (
               select greatest(1, least(10, width_bucket(extract(epoch from next_retry - started_at)::float8, 500, 1500, 10))) as tenth,
                      count(*) as n
                 from postrider.attempts group by 1) t",
        )
        .await;
    assert_eq!(tenths.len(), 10, "{tenths:?}");
    assert!(
        tenths.iter().all(|n| (45..=155).contains(n)),
        "evenly: {tenths:?}"
    );
}

#[tokio::test]
async fn c25_an_exponential_policy_grows_to_its_cap() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([500; 9].map(Script::status));
    database
        .sql(
            "insert into postrider.retry_policies (name, kind, base, factor, cap, jitter, max_retries)
             values ('grows', 'exponential', '10 min', 3, '2 h', 0, 5)",
        )
        .await;
    database
        .endpoint("shop", &receiver.url("/hook"))
        .set("retry_policy", "grows")
        .await;
    let id = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &["--poll-interval", "20ms"]);

    for tries in 1..=6 {
        let what = format!("try {tries} is on record");
        database
            .wait_for(id, &what, |now| now.attempt_count == tries)
            .await;
        // Moved in time, since nobody waits for hours.
        database
            .sql("update postrider.deliveries set next_retry = now() where status = 'failed'")
            .await;
    }

    database.wait_for_status(id, "exhausted").await;
    let waits: Vec<_> = database
        .attempts(id)
        .await
        .iter()
        .map(|try_| try_.retry_after.map(|wait| (wait / 60.0).round()))
        .collect();
    let minutes = [10.0, 30.0, 90.0, 120.0, 120.0].map(Some);
    assert_eq!(waits, [&minutes[..], &[None]].concat());
}
