use super::publish;
use crate::support::Database;

/// Endpoints that ask for other things, put in so fast that nobody has analysed anything.
const TEN_THOUSAND: &str = "
set session_replication_role = replica;
insert into postrider.endpoints (name, url, event_types)
select 'e' || n, 'http://127.0.0.1:1/', array['kind' || n || '.*', 'a.b' || n] from generate_series(1, 9997) n;
insert into postrider.subscriptions (pattern, endpoint)
select p.pattern, e.name from postrider.endpoints e cross join unnest(e.event_types) as p (pattern);
set session_replication_role = origin;
insert into postrider.endpoints (name, url, event_types, filter) values
  ('exact', 'http://127.0.0.1:1/', '{a.b.c}', null), ('prefix', 'http://127.0.0.1:1/', '{a.b.*}', '$.n > 1'), ('all', 'http://127.0.0.1:1/', null, null)";

/// What this session has done to a table, as far as the server has not yet summed it up: the difference within a transaction counts.
async fn counted(database: &Database, table: &str, counter: &str) -> i64 {
    database
        .value(&format!(
            "select {counter} from pg_stat_xact_all_tables where schemaname = 'postrider' and relname = '{table}'"
        ))
        .await
}

#[tokio::test]
async fn with_ten_thousand_endpoints_exactly_the_four_patterns_of_the_type_are_probed() {
    let database = Database::fresh().await;
    database.sql(TEN_THOUSAND).await;
    let patterns: Vec<String> = database
        .value("select postrider.event_patterns('a.b.c')")
        .await;
    assert_eq!(patterns, ["*", "a.*", "a.b.*", "a.b.c"]);

    for statistics in [
        "select",
        "analyze postrider.endpoints, postrider.subscriptions",
    ] {
        database.sql(statistics).await;
        let counters = async || {
            [
                counted(&database, "subscriptions", "idx_scan").await,
                counted(&database, "subscriptions", "seq_scan").await,
                counted(&database, "endpoints", "seq_scan").await,
                counted(&database, "endpoints", "idx_scan + idx_tup_fetch").await,
            ]
        };
        database.sql("begin").await;
        let before = counters().await;

        let made = publish(&database, "'a.b.c', '{\"n\":2}'").await;

        let after = counters().await;
        let [probes, walks, walks_of_endpoints, reads_of_endpoints] =
            std::array::from_fn(|n| after[n] - before[n]);
        assert_eq!(made, 3);
        assert_eq!(
            (probes, walks, walks_of_endpoints),
            (4, 0, 0),
            "after {statistics}"
        );
        // Three are found and locked, and asked for again by the foreign key.
        assert!(
            (3..=15).contains(&reads_of_endpoints),
            "after {statistics}: {reads_of_endpoints}"
        );
        database.sql("rollback").await;
    }
}

#[tokio::test]
async fn an_event_that_nobody_asks_for_reads_as_little_among_ten_thousand_as_among_three() {
    let database = Database::fresh().await;
    let publish_to_none = async || {
        let plan: serde_json::Value = database
            .value("explain (analyze, buffers, format json) select postrider.publish('nobody', '{}', tenant => 'x')")
            .await;
        let of = |what: &str| plan[0]["Plan"][what].as_u64().expect("a count");
        of("Shared Hit Blocks") + of("Shared Read Blocks")
    };
    database.endpoint("all", "http://127.0.0.1:1/").await;
    publish_to_none().await;
    let few = publish_to_none().await;
    database.sql("delete from postrider.endpoints").await;
    database.sql(TEN_THOUSAND).await;
    publish_to_none().await;

    let many = publish_to_none().await;

    // The index has a level or two more.
    assert!(many <= few + 20, "{many} against {few} buffers");
}

#[tokio::test]
async fn nothing_of_it_is_ever_compiled() {
    let database = Database::fresh().await;

    // The planner's settings make plans look dear, and the compiler would take half a second for each.
    let compiled: Vec<String> = database
        .value(
            "select coalesce(array_agg(p.proname::text), '{}') from pg_proc p
              where p.pronamespace = 'postrider'::regnamespace and p.proname in ('fan_out', 'passing', 'has_subscriber')
                and not 'jit=off' = any (p.proconfig)",
        )
        .await;

    assert_eq!(compiled, Vec::<String>::new());
}
