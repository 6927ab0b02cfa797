use postrider::store::queue::{SESSION, STATEMENTS};
use serde_json::Value;

use crate::support::Database;

/// Due rows of 100 endpoints, and as much history, put in so fast that nobody has analysed anything.
const MILLION: &str = "
set session_replication_role = replica;
alter table postrider.deliveries set (autovacuum_enabled = off);
insert into postrider.endpoints (name, url) select 'e' || to_char(n, 'FM000'), 'http://127.0.0.1:1/' from generate_series(0, 99) n;
insert into postrider.endpoint_health (endpoint) select name from postrider.endpoints;
insert into postrider.deliveries (endpoint, event_id, event_type, payload, status, next_retry, finished_at)
select 'e' || to_char(n % 100, 'FM000'), n::text, 't', '{}',
       case when n % 2 = 0 then 'queued' else 'delivered' end,
       case when n % 2 = 0 then now() - n * interval '1 ms' end,
       case when n % 2 = 1 then now() end
  from generate_series(1, 1000000) n;
set session_replication_role = origin";

/// What the worker tells its sessions, for one transaction.
pub(crate) fn worker_settings() -> String {
    SESSION
        .iter()
        .map(|setting| setting.replacen("set ", "set local ", 1) + ";")
        .collect()
}

/// Every node of a plan.
fn nodes<'plan>(node: &'plan Value, found: &mut Vec<&'plan Value>) {
    found.push(node);
    for child in node["Plans"].as_array().into_iter().flatten() {
        nodes(child, found);
    }
}

/// Buffers that a plan touched. CTEs that write and that nobody reads run beside the root, and so count apart.
pub(crate) fn buffers(root: &Value) -> u64 {
    let of = |node: &Value| {
        node["Shared Hit Blocks"].as_u64().unwrap_or(0)
            + node["Shared Read Blocks"].as_u64().unwrap_or(0)
    };
    let mut all = Vec::new();
    nodes(root, &mut all);
    let is_read = |node: &Value| {
        let name = node["Subplan Name"].as_str().unwrap_or_default();
        all.iter()
            .filter_map(|reader| reader["CTE Name"].as_str())
            .any(|read| name.strip_prefix("CTE ") == Some(read))
    };
    let beside = root["Plans"].as_array().into_iter().flatten();
    let beside = beside.filter(|node| node["Node Type"] == "ModifyTable" && !is_read(node));
    of(root) + beside.map(of).sum::<u64>()
}

/// The plan of a statement of the worker's, as it went; what it did is undone.
pub(crate) async fn explain(
    database: &Database,
    settings: &str,
    mode: &str,
    (name, arguments): (&str, &str),
) -> Value {
    let statement = STATEMENTS.iter().find(|statement| statement.name == name);
    let statement = statement.expect("it is one of them").sql;
    database
        .sql(&format!(
            "begin; {settings} set local plan_cache_mode = {mode}; prepare explained as {statement}"
        ))
        .await;
    let plan: Value = database
        .value(&format!(
            "explain (analyze, buffers, format json) execute explained ({arguments})"
        ))
        .await;
    database.sql("rollback; deallocate explained").await;
    plan[0]["Plan"].clone()
}

pub(crate) const CLAIM_64: (&str, &str) = (
    "claim",
    "'', 64, 64, 'w', 15000, 1000, 256, 67108864, '{}', '{}', '{}'",
);

fn check(plan: &Value, what: &str) {
    let mut all = Vec::new();
    nodes(plan, &mut all);
    let shown = || serde_json::to_string_pretty(plan).expect("JSON");
    for node in &all {
        let kind = node["Node Type"].as_str().expect("a kind");
        let seq = kind == "Seq Scan" && node["Relation Name"] == "deliveries";
        assert!(!seq && !kind.contains("Sort"), "{what}: {}", shown());
    }
    assert!(
        all.iter()
            .any(|node| node["Index Name"] == "deliveries_lane"),
        "{what}: {}",
        shown()
    );
}

#[tokio::test]
async fn c35_a_claim_costs_its_batch_whatever_stands_behind_it_and_whatever_the_planner_knows() {
    let database = Database::private().await;
    database.sql(MILLION).await;
    let analysed: i64 = database
        .value("select count(*) from pg_stats where schemaname = 'postrider' and tablename = 'deliveries'")
        .await;
    assert_eq!(analysed, 0, "the planner knows nothing");

    let ours = worker_settings();
    for (settings, told) in [(ours.as_str(), "told"), ("", "not told")] {
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let what = format!("{mode}, {told} how");
            let plan = explain(&database, settings, mode, CLAIM_64).await;
            check(&plan, &what);
            let touched = buffers(&plan);
            assert!(touched < 64 * 200, "{what}: {touched} buffers for 64 lanes");
        }
    }
}

#[tokio::test]
async fn a_planner_that_believes_in_an_empty_table_does_not_read_all_of_it() {
    let database = Database::private().await;
    let fill = "insert into postrider.deliveries (endpoint, event_type, payload) select 'shop', 't', '{}' from generate_series(1, 5000)";
    database
        .sql("alter table postrider.deliveries set (autovacuum_enabled = off)")
        .await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    database.sql(fill).await;
    database.sql("delete from postrider.deliveries").await;
    database.sql("analyze").await;
    database.sql(fill).await;
    database
        .endpoint("gone", "http://127.0.0.1:1/")
        .set("enabled", false)
        .set("disabled_at", "now")
        .await;
    database
        .sql("insert into postrider.deliveries (endpoint, event_type, payload) select 'gone', 't', '{}' from generate_series(1, 5000)")
        .await;

    let (claim, retire) = (CLAIM_64, ("retire", "'{gone}', 64"));
    for (settings, statement) in [
        (worker_settings().as_str(), claim),
        (worker_settings().as_str(), retire),
        ("", claim),
        ("", retire),
    ] {
        let plan = explain(&database, settings, "force_generic_plan", statement).await;

        let mut all = Vec::new();
        nodes(&plan, &mut all);
        let read = all
            .iter()
            .filter(|node| node["Relation Name"] == "deliveries");
        let rows = |node: &Value| {
            let each = ["Actual Rows", "Rows Removed by Filter"]
                .map(|key| node[key].as_f64().unwrap_or(0.0));
            each.iter().sum::<f64>() * node["Actual Loops"].as_f64().unwrap_or(0.0)
        };
        let most = read.map(|node| rows(node)).fold(0.0, f64::max);
        assert!(
            most < 500.0,
            "{most} rows for 64: {}",
            serde_json::to_string_pretty(&plan).expect("JSON")
        );
    }
}
