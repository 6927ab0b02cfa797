use serde_json::Value;

use super::{DISAGREEMENTS, same};
use crate::contract::plans::{buffers, worker_settings};
use crate::support::Database;

/// 20 million tries of 100 endpoints over 30 days as they are when they are added up, and what ten busy seconds leave to be added. Nobody
/// has analysed anything.
const A_MONTH: &str = "
set session_replication_role = replica;
alter table postrider.reports set (autovacuum_enabled = off);
alter table postrider.report_changes set (autovacuum_enabled = off);
insert into postrider.reports
       (endpoint, hour, tries, delivered, first_tries, first_delivered, ended, ended_delivered, buckets, counts, p50_ms, p95_ms, p99_ms)
select 'e' || e, date_bin('1 h', now(), '2000-01-01 00:00:00+00') - h * interval '1 h', 278, 270, 275, 268, 276, 270,
       '{15,16,17,18,19,20,21,22,23,24,25,26}', '{1,4,9,30,70,64,40,30,20,6,3,1}', 50, 100, 150
  from generate_series(1, 100) e cross join generate_series(0, 719) h;
insert into postrider.report_changes (endpoint, hour, change, codes)
select 'e' || g % 100 + 1, date_bin('1 h', now(), '2000-01-01 00:00:00+00'), 1, array_fill(167::smallint, array[25])
  from generate_series(1, 4000) g;
set session_replication_role = origin";

async fn pages(database: &Database) -> u64 {
    let pages: i64 = database
        .value("select (pg_table_size('postrider.reports') + pg_table_size('postrider.report_changes')) / 8192")
        .await;
    u64::try_from(pages).expect("not negative")
}

async fn explain(database: &Database, query: &str) -> Value {
    let plan: Value = database
        .value(&format!("explain (analyze, buffers, format json) {query}"))
        .await;
    plan[0]["Plan"].clone()
}

#[tokio::test]
async fn a_month_of_twenty_million_tries_is_read_once_and_no_attempt_is_looked_at() {
    let database = Database::private().await;
    database.sql(A_MONTH).await;

    for known in ["nothing", "analysed"] {
        if known == "analysed" {
            database
                .sql("analyze postrider.reports, postrider.report_changes")
                .await;
        }
        let all = explain(
            &database,
            "select * from postrider.success_rate where hour > now() - interval '30 days'",
        )
        .await;
        let one = explain(
            &database,
            "select * from postrider.success_rate where endpoint = 'e7' and hour > now() - interval '30 days'",
        )
        .await;

        assert_eq!(all["Actual Rows"].as_f64(), Some(72_000.0));
        // The reports once, and the hundred that changed twice, each by four pages of the index.
        let most = pages(&database).await + 2 * 100 * 5 + 1000;
        assert!(buffers(&all) < most, "{known}: {} of {most}", buffers(&all));
        assert_eq!(one["Actual Rows"].as_f64(), Some(720.0));
        assert!(buffers(&one) < 1300, "{known}: {}", buffers(&one));
        for plan in [&all, &one] {
            let shown = plan.to_string();
            assert!(!shown.contains("\"attempts"), "{shown}");
        }
    }
}

#[tokio::test]
async fn adding_up_costs_its_rows_whatever_else_was_counted() {
    let database = Database::private().await;
    database.sql(A_MONTH).await;

    let session = worker_settings();
    database.sql(&format!("begin; {session}")).await;
    let first = explain(&database, "select postrider.fold_reports(4000)").await;
    database.sql("commit").await;

    let left: i64 = database
        .value("select count(*) from postrider.report_changes")
        .await;
    assert_eq!(left, 0);
    // Three for each row that is deleted, and 100 hours that are found twice and written; reading the reports twice would be 8000 more.
    assert!(buffers(&first) < 17_000, "{}", buffers(&first));
    let again = explain(&database, "select postrider.fold_reports(4000)").await;
    assert!(buffers(&again) < 300, "{}", buffers(&again));
}

#[tokio::test]
async fn attempts_that_were_there_before_the_reports_are_counted_by_the_migration() {
    let database = Database::private().await;
    database
        .sql(
            "alter table postrider.attempts disable trigger user;
             insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, duration_ms)
             select now() - g * interval '1 min', g, 1, 1, 'e' || g % 3, 'delivered', g from generate_series(1, 500) g",
        )
        .await;
    let migration = include_str!("../../../sql/migrations/0006_reports.sql");
    let (_, counts) = migration
        .split_once("what is there already")
        .expect("the part has a heading");

    database.sql(&format!("--{counts}")).await;

    same(&database.value::<String>(DISAGREEMENTS).await);
}
