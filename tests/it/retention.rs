//! What is old goes, in small steps, and nothing that is open.

/// What is shown, and the commands.
mod shown;
/// Who is in the way, and who is not.
mod together;

use std::collections::BTreeMap;

use tokio_postgres::Client;

use crate::contract::plans::worker_settings;
use crate::support::receiver::Receiver;
use crate::support::{Database, SOON, Worker, wait_until};

/// Steps of at most `most` rows until nothing is left; what was removed per kind.
async fn prune(session: &Client, most: i32) -> BTreeMap<String, i64> {
    let mut removed = BTreeMap::new();
    loop {
        let rows = session
            .query("select * from postrider.prune($1)", &[&most])
            .await
            .expect("a step");
        let mut more = false;
        for row in rows {
            more |= row.try_get::<_, bool>("more").expect("a column");
            let count: i64 = row.try_get("pruned").expect("a column");
            *removed
                .entry(row.try_get("kind").expect("a column"))
                .or_default() += count;
        }
        if !more {
            removed.retain(|_, count| *count > 0);
            return removed;
        }
    }
}

/// What the dry run says, without kinds that have nothing due.
async fn due(database: &Database) -> BTreeMap<String, i64> {
    let rows = database
        .client()
        .query(
            "select kind, due from postrider.prunable() where due > 0 and exact",
            &[],
        )
        .await;
    rows.expect("they are counted")
        .iter()
        .map(|row| {
            (
                row.try_get(0).expect("a kind"),
                row.try_get(1).expect("a count"),
            )
        })
        .collect()
}

async fn count(database: &Database, of: &str) -> i64 {
    database
        .value(&format!("select count(*) from postrider.{of}"))
        .await
}

/// So many finished deliveries of the endpoint `shop`, a minute apart, the youngest of this age.
async fn finished(database: &Database, status: &str, age: &str, rows: i32) {
    database
        .sql(&format!(
            "insert into postrider.endpoints (name, url) values ('shop', 'http://127.0.0.1:1/') on conflict do nothing;
             insert into postrider.deliveries (endpoint, event_type, payload, status, exhausted_reason, next_retry, finished_at)
             select 'shop', 't', '{{\"n\":1}}', '{status}', case '{status}' when 'exhausted' then 'rejected' end, null,
                    now() - interval '{age}' - n * interval '1 min'
               from generate_series(1, {rows}) n"
        ))
        .await;
}

/// The day of attempts that was so many days ago, and a try in it with a reply.
async fn try_of_day(database: &Database, days_ago: i32) {
    database
        .sql(&format!(
            "select postrider.make_attempt_partitions((now() at time zone 'utc')::date - {days_ago}, (now() at time zone 'utc')::date - {days_ago});
             insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, status_code, response_truncated,
                                             response_headers, response_body)
             values (date_trunc('day', now(), 'utc') - {days_ago} * interval '1 day', {days_ago}, 1, 1, 'shop', 'delivered', 200, true,
                     '[[\"content-type\",\"text/plain\"]]', 'thanks')"
        ))
        .await;
}

#[tokio::test]
async fn each_kind_goes_when_it_is_old_enough_and_a_dry_run_counts_it_before() {
    let database = Database::fresh().await;
    for (status, old, young) in [
        ("delivered", "30 days", "29 days"),
        ("exhausted", "90 days", "89 days"),
    ] {
        finished(&database, status, old, 25).await;
        finished(&database, status, young, 7).await;
    }
    for days_ago in [29, 30, 31, 40, 90, 91, 95] {
        try_of_day(&database, days_ago).await;
    }
    // Two events that nobody names, one of an open delivery, one of a delivery that goes.
    database
        .sql(
            "insert into postrider.events (event_id, event_type, payload, created_at) values
               ('young', 't', '{}', now() - interval '29 days'), ('old', 't', '{}', now() - interval '31 days'),
               ('open', 't', '{}', now() - interval '1 year'), ('ended', 't', '{}', now() - interval '1 year');
             insert into postrider.deliveries (endpoint, event_type, event) select 'shop', 't', id from postrider.events where event_id = 'open';
             insert into postrider.deliveries (endpoint, event_type, event, status, next_retry, finished_at)
             select 'shop', 't', id, 'delivered', null, now() - interval '31 days' from postrider.events where event_id = 'ended';
             insert into postrider.reports (endpoint, hour, tries, delivered, first_tries, first_delivered, ended, ended_delivered, buckets, counts)
             select 'shop', date_trunc('hour', now()) - n * interval '1 day', 1, 1, 1, 1, 1, 1, '{}', '{}' from generate_series(395, 404) n where n <> 400",
        )
        .await;

    let counted = due(&database).await;
    let removed = prune(database.client(), 10).await;

    let expected = [
        ("attempts", 2),
        ("delivered", 26),
        ("events", 2),
        ("exhausted", 25),
        ("replies", 3),
        ("reports", 4),
    ];
    assert_eq!(
        removed,
        expected.map(|(kind, n)| (kind.to_owned(), n)).into()
    );
    assert_eq!(counted, removed);
    assert_eq!(due(&database).await, BTreeMap::new());
    for (rows, of) in [
        (7, "deliveries where status = 'delivered'"),
        (7, "deliveries where status = 'exhausted'"),
        (1, "deliveries where status = 'queued'"),
        (2, "events where event_id in ('young', 'open')"),
        (2, "events"),
        (5, "reports"),
        (5, "attempts"),
    ] {
        assert_eq!(count(&database, of).await, rows, "{of}");
    }
}

#[tokio::test]
async fn what_is_to_be_kept_for_ever_is() {
    let database = Database::fresh().await;
    finished(&database, "delivered", "40 years", 3).await;
    finished(&database, "exhausted", "40 years", 3).await;
    try_of_day(&database, 400).await;
    database
        .sql("update postrider.retention set age = null")
        .await;

    assert_eq!(due(&database).await, BTreeMap::new());
    assert_eq!(prune(database.client(), 10).await, BTreeMap::new());
}

#[tokio::test]
async fn open_rows_stay_however_old_they_are() {
    let database = Database::fresh().await;
    finished(&database, "delivered", "1 day", 3).await;
    database
        .sql(
            "update postrider.retention set age = case when kind in ('replies', 'attempts') then interval '1 day' else '1 min' end;
             insert into postrider.deliveries (endpoint, event_type, payload, status, created_at, next_retry, attempt_count)
             select 'shop', 't', '{}', s, now() - interval '10 years', t, 1
               from unnest('{queued,failed}'::text[]) s, unnest(array[now() - interval '9 years', now(), 'infinity']::timestamptz[]) t;
             update postrider.deliveries set lease_expires_at = now() - interval '8 years' where id % 2 = 0 and next_retry is not null",
        )
        .await;

    let removed = prune(database.client(), 100).await;

    assert_eq!(removed, BTreeMap::from([("delivered".to_owned(), 3)]));
    assert_eq!(
        count(&database, "deliveries where payload is not null").await,
        6
    );
}

#[tokio::test]
async fn c36_a_step_takes_no_more_than_it_was_asked_for_whatever_the_planner_believes() {
    let database = Database::private().await;
    database
        .sql("alter table postrider.deliveries set (autovacuum_enabled = off); analyze")
        .await;
    finished(&database, "delivered", "31 days", 3000).await;
    finished(&database, "exhausted", "91 days", 40).await;
    database
        .sql("update postrider.retention set age = '1 day' where kind = 'payloads'")
        .await;
    finished(&database, "delivered", "2 days", 100).await;

    let mut steps = 0;
    loop {
        let all = "deliveries where payload_purged_at is null";
        let before = count(&database, all).await;
        let row = database
            .client()
            .query_one(
                "select sum(pruned)::bigint, bool_or(more) from postrider.prune(64)",
                &[],
            )
            .await
            .expect("a step");
        let (said, more): (i64, bool) = (
            row.try_get(0).expect("a sum"),
            row.try_get(1).expect("whether"),
        );
        assert!(said <= 64, "{said}");
        assert_eq!(before - count(&database, all).await, said);
        steps += 1;
        if !more {
            break;
        }
        assert_eq!(said, 64, "a step that is not the last is full");
    }

    // The last one that is full cannot know that it is the last.
    assert_eq!(steps, (3000 + 40 + 100) / 64 + 1);
    assert_eq!(count(&database, "deliveries").await, 100);
}

#[tokio::test]
async fn c36_a_step_reads_its_batch_and_not_what_is_kept() {
    let database = Database::private().await;
    database
        .sql(
            "set session_replication_role = replica;
             alter table postrider.deliveries set (autovacuum_enabled = off);
             insert into postrider.endpoints (name, url) values ('shop', 'http://127.0.0.1:1/');
             insert into postrider.deliveries (endpoint, event_id, event_type, payload, status, exhausted_reason, next_retry, finished_at)
             select 'shop', n, 't', '{}', case when n % 10 = 0 then 'exhausted' else 'delivered' end, case when n % 10 = 0 then 'rejected' end,
                    null, now() - interval '29 days' - case when n % 400 = 1 then interval '2 days' else '0' end
               from generate_series(1, 200000) n;
             set session_replication_role = origin",
        )
        .await;

    for settings in [String::new(), worker_settings()] {
        for known in ["", "analyze postrider.deliveries;"] {
            database.sql(&format!("{known} begin; {settings}")).await;
            let plan: serde_json::Value = database
                .value("explain (analyze, buffers, format json) select * from postrider.prune(100)")
                .await;
            database.sql("rollback").await;

            let touched = crate::contract::plans::buffers(&plan[0]["Plan"]);
            assert!(
                touched < 3000,
                "{touched} buffers for 100 rows; {settings} {known}"
            );
        }
    }
    let table: i64 = database
        .value("select pg_relation_size('postrider.deliveries') / 8192")
        .await;
    assert!(table > 5000, "to read all of it would be seen: {table}");
}

#[tokio::test]
async fn what_was_committed_late_is_found_by_the_next_lap() {
    let database = Database::fresh().await;
    finished(&database, "delivered", "31 days", 5).await;
    let step: i64 = database
        .value("select pruned from postrider.prune(4) where kind = 'delivered'")
        .await;
    finished(&database, "delivered", "32 days", 1).await;

    let rest = prune(database.client(), 4).await;
    let next_lap = prune(database.client(), 4).await;

    assert_eq!((step, rest["delivered"]), (4, 1));
    assert_eq!(next_lap["delivered"], 1);
}

#[tokio::test]
async fn a_purge_of_replies_leaves_the_rest_of_the_try_and_the_reports_as_they_were() {
    let database = Database::fresh().await;
    try_of_day(&database, 33).await;
    database
        .sql(
            "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, status_code, response_headers, response_body)
             select a.started_at, 1000 + n, 1, 1, 'shop', 'rejected', 400, '[]', case when n % 2 = 0 then decode(repeat('ab', 5000), 'hex') end
               from postrider.attempts a, generate_series(1, 499) n;
             insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, error_kind)
             select a.started_at, 2000, 1, 1, 'shop', 'retry', 'timeout' from postrider.attempts a where a.delivery_id = 33",
        )
        .await;
    try_of_day(&database, 2).await;
    let rest = "select md5(string_agg(concat_ws(' ', a.delivery_id, a.started_at, a.outcome, a.status_code, a.response_truncated, a.error_kind), ',' order by a.delivery_id))
                  from postrider.attempts a";
    let before: String = database.value(rest).await;
    let changes = count(&database, "report_changes").await;

    let removed = prune(database.client(), 64).await;

    assert_eq!(removed, BTreeMap::from([("replies".to_owned(), 500)]));
    assert_eq!(count(&database, "attempts where reply_purged_at is not null and num_nonnulls(response_headers, response_body) = 0").await, 500);
    assert_eq!(
        count(
            &database,
            "attempts where reply_purged_at is null and delivery_id = 2000"
        )
        .await,
        1,
        "nothing was there"
    );
    assert_eq!(
        count(&database, "attempts where response_body is not null").await,
        1,
        "the young one's"
    );
    assert_eq!(database.value::<String>(rest).await, before);
    assert_eq!(count(&database, "report_changes").await, changes);
}

#[tokio::test]
async fn days_of_attempts_are_there_ahead_and_no_partition_takes_what_fits_nowhere() {
    let database = Database::fresh().await;
    try_of_day(&database, 3).await;
    database
        .sql("update postrider.retention set age = '1 day' where kind = 'attempts'")
        .await;

    let removed = prune(database.client(), 10).await;

    assert_eq!(removed["attempts"], 1);
    let missing: i64 = database
        .value(
            "select count(*) from generate_series(-1, 7) n
              where to_regclass('postrider.attempts_' || to_char((now() at time zone 'utc')::date + n, 'YYYYMMDD')) is null",
        )
        .await;
    assert_eq!(missing, 0);
    let default: bool = database
        .value("select partdefid = 0 from pg_partitioned_table where partrelid = 'postrider.attempts'::regclass")
        .await;
    assert!(default, "no DEFAULT partition");
}

#[tokio::test]
async fn a_worker_prunes_by_itself_and_says_what() {
    let database = Database::fresh().await;
    finished(&database, "delivered", "31 days", 2500).await;
    finished(&database, "delivered", "1 day", 10).await;

    let worker = Worker::spawn(&database, &["--poll-interval", "1h"]);

    let left = async || count(&database, "deliveries").await;
    wait_until("what is old has gone", left, |n| *n == 10, SOON).await;
    worker.wait_for_line("count=2500").await;
}

#[tokio::test]
async fn a_worker_that_is_told_not_to_prune_does_not() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    finished(&database, "delivered", "31 days", 10).await;
    database.endpoint("live", &receiver.url("/")).await;
    let id = database.insert("live", "{}").await;

    for arguments in [["--no-prune"], ["--drain"]] {
        let mut worker = Worker::spawn(&database, &arguments);
        database.wait_for_status(id, "delivered").await;
        if arguments == ["--no-prune"] {
            worker.terminate();
        }
        worker.wait().await;
    }

    assert_eq!(count(&database, "deliveries").await, 11);
}
