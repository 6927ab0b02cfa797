use super::{endpoints, publish, reached};
use crate::support::Database;

#[tokio::test]
async fn a_filter_matches_when_its_first_result_is_there_and_neither_false_nor_null() {
    let database = Database::fresh().await;
    let order = r#"{"total":120.50,"items":[{"sku":"a"},{"sku":"b"}],"gift":null,"paid":false,"note":"","zero":0,"at":"2030-01-31 08:00:00+00:00"}"#;
    for (filter, matches) in [
        ("$.total > 100", true),
        ("$.total > 1000", false),
        ("$ ? (@.total > 100)", true),
        ("$ ? (@.total > 1000)", false),
        ("exists($.items)", true),
        ("exists($.missing)", false),
        ("$.missing", false),
        ("$.gift", false),
        ("$.paid", false),
        ("$.note", true),
        ("$.zero", true),
        ("$.items[*].sku", true),
        ("$.items[*].sku == \"b\"", true),
        ("$.items[5]", false),
        ("strict $.missing", false),
        ("strict $.items[5]", false),
        ("$.total == \"120.50\"", false),
        ("$.total.datetime() > \"x\"", false),
        (
            "$.at.datetime() > \"2030-01-31 07:59:59+00:00\".datetime()",
            true,
        ),
        // Without a time zone: UTC, whatever the session's is.
        ("$.at.datetime() > \"2030-01-31 07:59:59\".datetime()", true),
        ("$.total / 0", false),
        ("$.total == $nobody", false),
        ("$.note like_regex \"^$\"", true),
        ("true", true),
        ("false", false),
        ("null", false),
        ("$", true),
    ] {
        database
            .sql("delete from postrider.deliveries; delete from postrider.endpoints; set timezone = 'America/New_York'")
            .await;
        database
            .endpoint("filtered", "http://127.0.0.1:1/")
            .set("filter", filter)
            .await;
        endpoints(&database, &[("all", "null")]).await;

        publish(&database, &format!("'t', '{order}'")).await;

        let expected = if matches { "all filtered" } else { "all" };
        assert_eq!(reached(&database).await, expected, "{filter}");
    }
}

#[tokio::test]
async fn a_filter_that_raises_is_no_match_and_spoils_no_other_filter() {
    let database = Database::fresh().await;
    for (name, filter) in [
        ("bad", "$.a == $nobody"),
        ("good", "$.a == 1"),
        ("not", "$.a == 2"),
    ] {
        database
            .endpoint(name, "http://127.0.0.1:1/")
            .set("filter", filter)
            .await;
    }
    endpoints(&database, &[("all", "null")]).await;

    database.sql("begin").await;
    assert_eq!(publish(&database, "'t', '{\"a\":1}'").await, 2);
    database.sql("create table mine (); commit").await;

    assert_eq!(reached(&database).await, "all good");
    // The caller's own work was not undone with it.
    database.sql("select from mine").await;
}

#[tokio::test]
async fn what_jsonb_cannot_hold_matches_no_filter_and_reaches_everybody_else() {
    let database = Database::fresh().await;
    endpoints(&database, &[("all", "null")]).await;
    database
        .endpoint("filtered", "http://127.0.0.1:1/")
        .set("filter", "true")
        .await;
    let deep = format!("{}1{}", "[".repeat(3000), "]".repeat(3000));
    let digits = "7".repeat(200_000);

    for (payload, expected) in [
        (r#"{"a":"x\u0000y"}"#, "all"),
        (r#"{"\u0000":1}"#, "all"),
        (r#"{"a":"\ud800"}"#, "all"),
        (r#"{"a":"\udc00\ud800"}"#, "all"),
        ("[1e999999]", "all"),
        (digits.as_str(), "all"),
        // jsonb rewrites these, which is no reason not to look at them.
        (r#"{"a":1,"a":2}"#, "all filtered"),
        (deep.as_str(), "all filtered"),
        ("null", "all filtered"),
    ] {
        assert_eq!(
            publish(&database, &format!("'t', '{payload}'")).await,
            if expected == "all" { 1 } else { 2 },
            "{payload:.40}"
        );
        assert_eq!(reached(&database).await, expected, "{payload:.40}");
    }
}

#[tokio::test]
async fn one_event_that_cannot_be_looked_into_spoils_no_other_of_its_batch() {
    let database = Database::fresh().await;
    database
        .endpoint("filtered", "http://127.0.0.1:1/")
        .set("filter", "$.n > 5")
        .await;
    database
        .sql(
            r#"insert into postrider.events (event_id, event_type, payload)
               select 'e' || n, 't', (case n when 7 then '{"n":7,"a":"\u0000"}' else '{"n":' || n || '}' end)::json from generate_series(1, 9) n"#,
        )
        .await;

    let made: i64 = database
        .value("select postrider.fan_out(array_agg(id)) from postrider.events")
        .await;

    assert_eq!(made, 3);
    let which: String = database
        .value("select string_agg(event_id, ' ' order by id) from postrider.deliveries")
        .await;
    assert_eq!(which, "e6 e8 e9");
}

#[tokio::test]
async fn a_filter_can_change_and_go() {
    let database = Database::fresh().await;
    database
        .endpoint("shop", "http://127.0.0.1:1/")
        .set("filter", "$.a == 1")
        .await;
    assert_eq!(publish(&database, "'t', '{\"a\":2}'").await, 0);

    database
        .sql("update postrider.endpoints set filter = '$.a == 2'")
        .await;
    assert_eq!(publish(&database, "'t', '{\"a\":2}'").await, 1);
    database
        .sql("update postrider.endpoints set filter = null")
        .await;
    assert_eq!(publish(&database, "'t', '{\"a\":3}'").await, 1);
}
