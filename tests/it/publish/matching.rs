use super::{endpoints, publish, reached, refused};
use crate::support::Database;

#[tokio::test]
async fn an_event_reaches_its_exact_type_its_prefixes_and_whoever_asks_for_all() {
    let database = Database::fresh().await;
    endpoints(
        &database,
        &[
            ("all", "null"),
            ("star", "{*}"),
            ("nothing", "{}"),
            ("order", "{order}"),
            ("orders", "{order.*}"),
            ("paid", "{order.paid}"),
            ("paids", "{order.paid.*}"),
            ("several", "{order.paid,order.*,*,refund.made}"),
            ("spaces", "{\"a b, c\"}"),
        ],
    )
    .await;

    for (event_type, expected) in [
        ("order", "all order several star"),
        ("order.paid", "all orders paid several star"),
        ("order.paid.late", "all orders paids several star"),
        ("orders", "all several star"),
        ("order.", "all orders several star"),
        ("ORDER.PAID", "all several star"),
        (".order", "all several star"),
        ("a b, c", "all several spaces star"),
        ("order.%", "all orders several star"),
        ("", "all several star"),
        ("*", "all several star"),
        ("\u{e9}.\u{1f600}", "all several star"),
    ] {
        let made = publish(&database, &format!("'{event_type}', '{{}}'")).await;

        assert_eq!(reached(&database).await, expected, "{event_type}");
        assert_eq!(
            usize::try_from(made).expect("a count"),
            expected.split(' ').count(),
            "{event_type}: what it returns"
        );
    }
}

#[tokio::test]
async fn an_event_type_of_any_length_probes_few_patterns() {
    let database = Database::fresh().await;
    let long = format!("{}.x", "a".repeat(197));
    endpoints(
        &database,
        &[
            ("all", "null"),
            ("long", &format!("{{{}.*}}", "a".repeat(197))),
            ("longest", &format!("{{{}}}", "b".repeat(200))),
        ],
    )
    .await;

    for (event_type, expected) in [
        (long.clone(), "all long"),
        (format!("{long}{}", ".x".repeat(1000)), "all long"),
        ("b".repeat(200), "all longest"),
        ("b".repeat(201), "all"),
        (".".repeat(100_000), "all"),
    ] {
        publish(&database, &format!("'{event_type}', '{{}}'")).await;
        assert_eq!(reached(&database).await, expected, "{}", event_type.len());
    }
    let probed: i32 = database
        .value("select cardinality(postrider.event_patterns(repeat('.', 100000)))")
        .await;
    assert!(probed <= 200, "{probed}");
}

#[tokio::test]
async fn an_endpoint_gets_the_events_of_its_tenant_and_one_without_those_without() {
    let database = Database::fresh().await;
    for (name, tenant) in [("a1", "a"), ("a2", "a"), ("b", "b"), ("empty", "")] {
        database
            .endpoint(name, "http://127.0.0.1:1/")
            .set("tenant", tenant)
            .await;
    }
    database.endpoint("nobody", "http://127.0.0.1:1/").await;

    for (tenant, expected) in [
        ("'a'", "a1 a2"),
        ("'b'", "b"),
        ("'c'", ""),
        ("null", "empty nobody"),
        ("''", "empty nobody"),
    ] {
        publish(&database, &format!("'t', '{{}}', tenant => {tenant}")).await;
        assert_eq!(reached(&database).await, expected, "{tenant}");
    }
}

#[tokio::test]
async fn a_session_with_a_tenant_publishes_for_it_and_for_no_other() {
    let database = Database::fresh().await;
    for tenant in ["a", "b"] {
        database
            .endpoint(tenant, "http://127.0.0.1:1/")
            .set("tenant", tenant)
            .await;
    }
    database.sql("set postrider.tenant = 'a'").await;

    publish(&database, "'t', '{}'").await;
    assert_eq!(reached(&database).await, "a");
    publish(&database, "'t', '{}', tenant => 'a'").await;
    assert_eq!(reached(&database).await, "a");

    for other in ["b", ""] {
        let (state, said) = refused(
            database.client(),
            &format!("'t', '{{}}', tenant => '{other}'"),
        )
        .await;
        assert_eq!(state.code(), "PR011", "{said}");
    }
}

#[tokio::test]
async fn paused_and_disabled_endpoints_get_it_as_they_get_what_is_inserted() {
    let database = Database::fresh().await;
    database
        .endpoint("paused", "http://127.0.0.1:1/")
        .set("paused", true)
        .await;
    database
        .endpoint("off", "http://127.0.0.1:1/")
        .set("enabled", false)
        .await;
    let inserted = database.insert("off", "{}").await;
    let _worker = crate::support::Worker::spawn(&database, &[]);

    assert_eq!(publish(&database, "'t', '{}', 'e1'").await, 2);

    let published: i64 = database
        .value("select id from postrider.deliveries where endpoint = 'off' and event_id = 'e1'")
        .await;
    let (published, inserted) = (
        database.wait_for_status(published, "exhausted").await,
        database.wait_for_status(inserted, "exhausted").await,
    );
    assert_eq!(
        published.exhausted_reason.as_deref(),
        Some("endpoint_disabled")
    );
    assert_eq!(published.exhausted_reason, inserted.exhausted_reason);
    let held: String = database
        .value("select state from postrider.delivery_state where endpoint = 'paused'")
        .await;
    assert_eq!(held, "held");
}

#[tokio::test]
async fn what_an_endpoint_asks_for_can_change_and_counts_from_the_next_event_on() {
    let database = Database::fresh().await;
    endpoints(&database, &[("shop", "{order.*}")]).await;

    for (edit, order, refund) in [
        ("event_types = '{refund.*}'", "", "shop"),
        ("event_types = '{refund.*,order.*,order.*}'", "shop", "shop"),
        ("event_types = null", "shop", "shop"),
        ("event_types = '{}'", "", ""),
        ("event_types = '{*}', tenant = 'a'", "", ""),
        ("tenant = null", "shop", "shop"),
    ] {
        database
            .sql(&format!(
                "delete from postrider.deliveries; update postrider.endpoints set {edit}"
            ))
            .await;
        publish(&database, "'order.paid', '{}'").await;
        assert_eq!(reached(&database).await, order, "order after {edit}");
        publish(&database, "'refund.made', '{}'").await;
        assert_eq!(reached(&database).await, refund, "refund after {edit}");
    }
    // A new name, together with new types.
    database
        .sql("delete from postrider.deliveries; update postrider.endpoints set name = 'store', event_types = '{order.*}'")
        .await;
    publish(&database, "'order.paid', '{}'").await;
    assert_eq!(reached(&database).await, "store");
    let written: String = database
        .value("select string_agg(s::text, ' ') from postrider.subscriptions s")
        .await;
    assert_eq!(written, "(\"\",order.*,store)");
}

#[tokio::test]
async fn a_deleted_endpoint_asks_for_nothing_any_more() {
    let database = Database::fresh().await;
    endpoints(&database, &[("shop", "{order.*}"), ("crm", "null")]).await;

    database
        .sql("delete from postrider.endpoints where name = 'shop'")
        .await;

    assert_eq!(publish(&database, "'order.paid', '{}'").await, 1);
    let left: i64 = database
        .value("select count(*) from postrider.subscriptions where endpoint = 'shop'")
        .await;
    assert_eq!(left, 0);
}

#[tokio::test]
async fn has_subscriber_is_true_when_any_tenants_endpoint_could_match_the_type() {
    let database = Database::fresh().await;
    database
        .endpoint("shop", "http://127.0.0.1:1/")
        .set("event_types", vec!["order.*"])
        .set("tenant", "a")
        .set("filter", "$.never")
        .await;

    for (event_type, expected) in [("order.paid", true), ("order", false), ("refund", false)] {
        let has: bool = database
            .value(&format!("select postrider.has_subscriber('{event_type}')"))
            .await;
        assert_eq!(has, expected, "{event_type}");
    }
}

#[tokio::test]
async fn many_events_are_fanned_out_at_once_in_their_order() {
    let database = Database::fresh().await;
    endpoints(&database, &[("all", "null"), ("orders", "{order.*}")]).await;
    database
        .endpoint("big", "http://127.0.0.1:1/")
        .set("filter", "$.n > 15")
        .await;
    database
        .sql(
            "insert into postrider.events (event_type, payload)
             select case n % 2 when 0 then 'order.paid' else 'refund' end, json_build_object('n', n) from generate_series(1, 20) n",
        )
        .await;
    let fan_out = "select postrider.fan_out(array_agg(id)) from postrider.events";

    let made: i64 = database.value(fan_out).await;

    assert_eq!(made, 20 + 10 + 5);
    let in_order: bool = database
        .value(
            "select bool_and(d.event > coalesce(d.before, 0)) from (
               select event, lag(event) over (partition by endpoint order by id) as before from postrider.deliveries) d",
        )
        .await;
    assert!(in_order);
    let again: i64 = database.value(fan_out).await;
    assert_eq!(again, 0, "none has it twice");
    let none: i64 = database
        .value("select postrider.fan_out('{}') + postrider.fan_out('{4711,null}')")
        .await;
    assert_eq!(none, 0);
}
