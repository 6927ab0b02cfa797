use std::process::Output;
use std::time::Duration;

use bytes::Bytes;
use futures_util::SinkExt as _;
use tokio::task::spawn_blocking;

use super::{does, granted, is_denied, role, session_as, text, url_as};
use crate::support::process::postrider;
use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// A worker of this role, which may send to this machine.
pub(super) fn worker_as(database: &Database, role: &str, arguments: &[&str]) -> Worker {
    let mut command = postrider();
    command
        .args(["worker", "--allow-network", "127.0.0.0/8"])
        .args(["--database-url", &url_as(database, role)])
        .args(arguments);
    Worker::run(command)
}

/// A command of this role, to its end.
async fn command_as(database: &Database, role: &str, arguments: &[&str]) -> Output {
    let mut command = assert_cmd::Command::from_std(postrider());
    command
        .args(arguments)
        .args(["--database-url", &url_as(database, role)])
        .timeout(SOON);
    spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("it does not panic")
}

#[tokio::test]
async fn a_producer_queues_in_every_way_there_is() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let producer = granted(&database, "producer").await;
    let session = session_as(&database, &producer).await;

    let row = "insert into postrider.deliveries (endpoint, event_id, event_type, payload, headers, next_retry, max_retries)
               values ('shop', 'e1', 't', '{}', '{\"X-A\": \"b\"}', now() + interval '1 h', 2)";
    let id = text(&session, &format!("{row} returning id::text")).await;
    does(
        &session,
        &format!("{row} on conflict (endpoint, event_id) do nothing"),
    )
    .await;
    does(&session, &format!("{row} on conflict do nothing")).await;
    does(
        &session,
        "insert into postrider.deliveries (endpoint, event_type, body, content_type) values ('shop', 't', 'x', 'text/plain')",
    )
    .await;
    let copy = "copy postrider.deliveries (endpoint, event_id, event_type, payload) from stdin";
    let sink = session.copy_in(copy).await.expect("COPY begins");
    let mut sink = std::pin::pin!(sink);
    sink.send(Bytes::from_static(b"shop\te2\tt\t{}\nshop\te3\tt\t{}\n"))
        .await
        .expect("it takes rows");
    sink.finish().await.expect("COPY ends");
    let sent = "select postrider.send('shop', 't', '{}', event_id => 'e1')::text";

    assert_eq!(text(&session, sent).await, id, "the first one's id");
    assert_eq!(
        text(
            &session,
            "select count(*)::text from (select status from postrider.deliveries) d"
        )
        .await,
        "4"
    );
}

#[tokio::test]
async fn a_producer_reads_no_contents_and_decides_nothing() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    database.insert("shop", "{}").await;
    let producer = granted(&database, "producer").await;
    let session = session_as(&database, &producer).await;

    for statement in [
        "select payload from postrider.deliveries",
        "select * from postrider.deliveries",
        "insert into postrider.deliveries (endpoint, event_type, payload) values ('shop', 't', '{}') returning payload",
        "insert into postrider.deliveries as d (endpoint, event_id, event_type, payload) values ('shop', 'e', 't', '{}')
           on conflict (endpoint, event_id) do update set payload = excluded.payload",
        "insert into postrider.deliveries (endpoint, event_type, event) values ('shop', 't', 1)",
        "insert into postrider.deliveries (endpoint, event_type, payload, status, next_retry, finished_at) values ('shop', 't', '{}', 'delivered', null, now())",
        "copy postrider.deliveries to stdout",
        "select headers from postrider.deliveries",
        "update postrider.deliveries set next_retry = now()",
        "delete from postrider.deliveries",
        "select id from postrider.deliveries for update",
        "select url from postrider.endpoints",
        "select headers from postrider.endpoints",
        "select secret from postrider.endpoint_secrets",
        "select response_body from postrider.attempts",
        "select payload from postrider.events",
        "select last_error from postrider.delivery_state",
        "select postrider.replay(1)",
        "select postrider.cancel(1)",
        "select postrider.disable('shop')",
        "select postrider.rotate_secret('shop')",
        "select postrider.make_attempt_partitions(current_date, current_date)",
        "select postrider.grant_operator(current_user::regrole)",
        "create table postrider.mine (id int)",
    ] {
        is_denied(&session, statement).await;
    }
}

/// When the day partition of a week from now ends, as its name says.
const LAST_DAY: &str = "to_char((now() at time zone 'utc')::date + 7, 'YYYYMMDD')";

/// A worker without work has a row that says so, and listens.
async fn is_idle(database: &Database) {
    let ready = async || {
        database
            .value::<bool>(
                "select exists (select from postrider.workers where sleeping_until > now())
                    and exists (select from pg_stat_activity where datname = current_database() and query = 'listen postrider' and application_name = 'postrider')",
            )
            .await
    };
    wait_until("it sleeps and listens", ready, |ready| *ready, SOON).await;
}

/// Ends it, which must go well, and nothing was refused to it.
async fn ends_without_complaint(mut worker: Worker) {
    worker.terminate();
    assert_eq!(worker.wait().await.code(), Some(0), "{}", worker.said());
    assert!(
        !worker.said().contains("permission denied") && !worker.said().contains("could not"),
        "{}",
        worker.said()
    );
}

#[tokio::test]
async fn a_worker_does_all_that_workers_do() {
    let database = Database::fresh().await;
    let worker = granted(&database, "worker").await;
    let receiver = Receiver::start().await;
    receiver.script([Script::status(503), Script::status(200)]);
    let gone = Receiver::start().await;
    gone.script([Script::status(410)]);
    database
        .sql("insert into postrider.retry_policies (name, kind, delays, jitter, max_retries) values ('at once', 'schedule', '{0}', 0, 3)")
        .await;
    database
        .endpoint("shop", &receiver.url("/"))
        .set("retry_policy", "at once")
        .set("rate_limit", 1000)
        .await;
    database.endpoint("gone", &gone.url("/")).await;
    database
        .endpoint("off", &receiver.url("/"))
        .set("enabled", false)
        .await;
    let retried = database.insert("shop", "{}").await;
    let lost = database.insert("shop", "{}").await;
    database
        .sql(&format!(
            "update postrider.deliveries set lease_expires_at = now() - interval '1 s', leased_by = 'dead', claim_no = 1 where id = {lost}"
        ))
        .await;
    let last = database.insert("gone", "{}").await;
    let retired = database.insert("off", "{}").await;
    database
        .sql(&format!(
            "do $$ begin execute 'drop table postrider.attempts_' || {LAST_DAY}; end $$"
        ))
        .await;

    let running = worker_as(&database, &worker, &[]);

    for id in [retried, lost] {
        database.wait_for_status(id, "delivered").await;
    }
    for id in [last, retired] {
        database.wait_for_status(id, "exhausted").await;
    }
    is_idle(&database).await;
    ends_without_complaint(running).await;
    assert_eq!(database.attempts(lost).await[0].outcome, "lost");
    let facts: String = database
        .value(&format!(
            "select concat_ws(' ', to_regclass('postrider.attempts_' || {LAST_DAY}) is not null, e.enabled, e.disabled_reason,
                              (select count(*) from postrider.workers), (select exhausted_reason from postrider.deliveries where id = {retired}))
               from postrider.endpoints e where e.name = 'gone'"
        ))
        .await;
    assert_eq!(
        facts,
        "t f the receiver answered 410 Gone 0 endpoint_disabled"
    );
}

#[tokio::test]
async fn a_worker_publishes_what_is_watched_adds_up_tries_and_prunes() {
    let database = Database::private().await;
    let worker = granted(&database, "worker").await;
    let producer = granted(&database, "producer").await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let old = database.insert("shop", "{}").await;
    database
        .sql(&format!(
            "update postrider.deliveries set status = 'delivered', next_retry = null, finished_at = now() - interval '40 days' where id = {old};
             select postrider.make_attempt_partitions(current_date - 200, current_date - 200);
             insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome) values (current_date - 200 + interval '12 h', {old}, 1, 1, 'shop', 'delivered');
             create schema app authorization {producer}"
        ))
        .await;
    let session = session_as(&database, &producer).await;
    does(
        &session,
        "create table app.orders (id int); create table app.bulk (id int);
         select postrider.watch('app.orders'), postrider.watch('app.bulk', event_type => 'bulk')",
    )
    .await;

    let running = worker_as(&database, &worker, &[]);
    does(
        &session,
        "select postrider.publish('paid', '{\"id\":1}');
         insert into app.orders values (1);
         insert into app.bulk select generate_series(1, 500)",
    )
    .await;

    let left = async || {
        database
            .value::<String>(&format!(
                "select concat_ws(' ', (select count(*) from postrider.deliveries where status = 'delivered' and id <> {old}),
                                  (select count(*) from postrider.changes), (select count(*) from postrider.deliveries where id = {old}),
                                  (select sum(r.delivered) from postrider.reports r where r.hour < current_date - 100),
                                  to_regclass('postrider.attempts_' || to_char(current_date - 200, 'YYYYMMDD')))"
            ))
            .await
    };
    wait_until("all of it is done", left, |left| left == "502 0 0 1", SOON).await;
    ends_without_complaint(running).await;
}

#[tokio::test]
async fn a_worker_drains_and_gives_back_what_it_may_not_send() {
    let database = Database::fresh().await;
    let worker = granted(&database, "worker").await;
    let receiver = Receiver::start().await;
    receiver.script([Script::silence()]);
    database.endpoint("slow", &receiver.url("/")).await;
    let id = database.insert("slow", "{}").await;
    let mut cut_short = worker_as(&database, &worker, &["--grace", "0s"]);
    receiver.wait_for_requests(1).await;

    cut_short.terminate();

    assert_eq!(
        cut_short.wait().await.code(),
        Some(0),
        "{}",
        cut_short.said()
    );
    let mut drain = worker_as(&database, &worker, &["--drain"]);
    assert_eq!(drain.wait().await.code(), Some(0), "{}", drain.said());
    database.wait_for_status(id, "delivered").await;
}

#[tokio::test]
async fn a_worker_changes_neither_what_is_sent_nor_where() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let worker = granted(&database, "worker").await;
    let session = session_as(&database, &worker).await;

    for statement in [
        "update postrider.deliveries set payload = '{}'",
        "update postrider.deliveries set endpoint = 'shop'",
        "update postrider.endpoints set url = 'http://127.0.0.1:2/'",
        "update postrider.endpoint_secrets set expires_at = now()",
        "insert into postrider.endpoints (url) values ('http://127.0.0.1:2/')",
        "insert into postrider.deliveries (endpoint, event_type, payload) values ('shop', 't', '{}')",
        "delete from postrider.deliveries",
        "delete from postrider.attempts",
        "select postrider.rotate_secret('shop')",
        "select postrider.send('shop', 't', '{}')",
    ] {
        is_denied(&session, statement).await;
    }
}

#[tokio::test]
async fn a_reader_reads_every_view_and_no_secret_header_payload_or_credential() {
    let database = Database::fresh().await;
    database
        .endpoint("shop", "https://user:s3cret@example.com/in?token=s3cret")
        .set("headers", serde_json::json!({"Authorization": "s3cret"}))
        .await;
    database
        .insert("shop", "{\"s3cret\":1}")
        .set("headers", serde_json::json!({"Authorization": "s3cret"}))
        .await;
    database
        .sql(
            "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, request_headers, response_body)
             values (now(), 1, 1, 1, 'shop', 'delivered', '[[\"X-Team\", \"s3cret\"]]', 'thanks');
             insert into postrider.watch_errors (watch, sqlstate, message) values ('w', '22012', 'a value: s3cret')",
        )
        .await;
    let reader = granted(&database, "reader").await;
    let session = session_as(&database, &reader).await;

    let views = text(
        &session,
        "select string_agg(c.oid::regclass::text, ' ') from pg_class c
          where c.relnamespace = 'postrider'::regnamespace and c.relkind = 'v' and c.relname not in ('role_privileges', 'tenant_rules')",
    )
    .await;
    let mut seen = String::new();
    for view in views.split(' ') {
        seen += &text(
            &session,
            &format!("select coalesce(string_agg(v::text, ' '), '') from {view} v"),
        )
        .await;
    }
    does(&session, "select response_body from postrider.attempts; select sqlstate, count from postrider.watch_errors; select * from postrider.endpoint_health; select * from postrider.workers; select * from postrider.retry_policies").await;

    assert!(
        seen.contains("https://example.com/in?***") && seen.contains("Authorization"),
        "{seen}"
    );
    assert!(!seen.contains("s3cret"), "{seen}");
    for statement in [
        "select * from postrider.endpoint_secrets",
        "select url from postrider.endpoints",
        "select headers from postrider.endpoints",
        "select * from postrider.endpoints",
        "select headers from postrider.deliveries",
        "select payload from postrider.deliveries",
        "select body from postrider.deliveries",
        "select payload from postrider.events",
        "select d::text from postrider.deliveries d",
        "select request_headers from postrider.attempts",
        "select a::text from postrider.attempts a",
        "select message from postrider.watch_errors",
        "select records from postrider.changes",
        "insert into postrider.deliveries (endpoint, event_type, payload) values ('shop', 't', '{}')",
        "update postrider.endpoints set paused = true",
        "select postrider.pause('shop')",
        "select postrider.send('shop', 't', '{}')",
        "select name from postrider.endpoints for update",
    ] {
        is_denied(&session, statement).await;
    }
    for arguments in [&["stats"][..], &["delivery", "list"]] {
        let output = command_as(&database, &reader, arguments).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[tokio::test]
async fn a_readers_url_shows_no_password_however_it_is_written() {
    let database = Database::fresh().await;
    let stored = [
        (
            "https://example.com:8443/a/b",
            "https://example.com:8443/a/b",
        ),
        ("HTTPS://u:s3cret@example.com", "HTTPS://example.com"),
        ("http://u:s3@cret@[::1]:80/x", "http://[::1]:80/x"),
        ("http://example.com/x?s3cret", "http://example.com/x?***"),
        ("http://example.com#s3cret", "http://example.com?***"),
        ("http://u:s3cret/@example.com/", "***"),
        ("http:\\\\u:s3cret@example.com/", "***"),
        ("http://example.com\\u:s3cret@x/", "***"),
        ("http:u:s3cret@example.com/", "***"),
        (" http://u:s3cret@example.com/", "***"),
        ("ht\ntp://u:s3cret@example.com/", "***"),
        ("http://u:\ns3cret@example.com/", "***"),
        ("http:///u:s3cret@example.com/", "***"),
        ("s3cret", "***"),
    ];
    for (n, (url, _)) in stored.iter().enumerate() {
        database.endpoint(&format!("e{n}"), url).await;
    }

    for (n, (url, expected)) in stored.iter().enumerate() {
        let shown: String = database
            .value(&format!(
                "select url from postrider.endpoint_urls where endpoint = 'e{n}'"
            ))
            .await;
        assert_eq!(&shown, expected, "{url}");
    }
}

#[tokio::test]
async fn an_operator_does_what_the_command_line_does() {
    let database = Database::fresh().await;
    let operator = granted(&database, "operator").await;
    let worker = granted(&database, "worker").await;
    let receiver = Receiver::start().await;
    let _running = worker_as(&database, &worker, &[]);
    let url = receiver.url("/");
    let secret = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";

    for arguments in [
        &[
            "endpoint", "add", &url, "--name", "shop", "--secret", secret,
        ][..],
        &["endpoint", "list"],
        &["endpoint", "show", "shop"],
        &["endpoint", "pause", "shop"],
        &["send", "shop", "t", "{}", "--event-id", "e1"],
        &["delivery", "list"],
        &["delivery", "show", "1"],
        &["delivery", "show", "e1"],
        &["delivery", "cancel", "1"],
        &["endpoint", "resume", "shop"],
        &["endpoint", "disable", "shop"],
        &["endpoint", "enable", "shop"],
        &["endpoint", "rotate-secret", "shop"],
        &["endpoint", "test", "shop"],
        &["send", "shop", "t", "{}", "--wait"],
        &["replay", "1"],
        &[
            "replay",
            "--endpoint",
            "shop",
            "--status",
            "delivered",
            "--yes",
        ],
        &["publish", "t", "{}", "--event-id", "e2"],
        &["endpoint", "pause", "shop"],
        &["send", "shop", "t", "{}"],
        &["delivery", "cancel", "--endpoint", "shop", "--yes"],
        &["endpoint", "resume", "shop"],
        &["endpoint", "add", &url, "--name", "line", "--ordered"],
        &["watches"],
        &["prune", "--dry-run"],
        &["prune"],
        &["stats"],
        &["migrate", "status"],
        &["migrate", "up"],
    ] {
        let output = command_as(&database, &operator, arguments).await;
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        if arguments[0] == "replay" {
            database.wait_for_status(1, "delivered").await;
        }
    }
    let session = session_as(&database, &operator).await;
    does(
        &session,
        "insert into postrider.retry_policies (name, kind, delays, max_retries, retry_on) values ('mine', 'schedule', '{1 s}', 1, '{403}');
         update postrider.endpoints set url = 'http://127.0.0.1:2/', retry_policy = 'mine' where name = 'shop';
         select postrider.pause('line'), postrider.send('line', 't', '{}');
         do $$ begin perform postrider.skip('line'); end $$;
         update postrider.retention set age = '20 days' where kind = 'delivered';
         insert into postrider.endpoints (name, url) values ('other', 'http://127.0.0.1:1/');
         delete from postrider.endpoints where name = 'other'",
    )
    .await;
}

#[tokio::test]
async fn an_operator_changes_neither_the_schema_nor_what_was_queued() {
    let database = Database::fresh().await;
    let operator = granted(&database, "operator").await;
    let session = session_as(&database, &operator).await;

    for statement in [
        "drop table postrider.deliveries",
        "alter table postrider.deliveries add column mine int",
        "create table postrider.mine (id int)",
        "truncate postrider.deliveries cascade",
        "update postrider.deliveries set payload = '{}'",
        "delete from postrider.schema_migrations",
        "select postrider.grant_producer(current_user::regrole)",
        "select postrider.revoke(current_user::regrole)",
        "select postrider.watch('postrider.deliveries')",
    ] {
        is_denied(&session, statement).await;
    }
}

#[tokio::test]
async fn whoever_is_not_permitted_exits_5_and_reads_what_to_call() {
    let database = Database::fresh().await;
    let nobody = role(&database, "nobody").await;
    let producer = granted(&database, "producer").await;
    let reader = granted(&database, "reader").await;

    for (role, arguments) in [
        (&nobody, &["stats"][..]),
        (&producer, &["stats"]),
        (&producer, &["worker", "--drain"]),
        (&reader, &["endpoint", "list"]),
        (&reader, &["replay", "1"]),
        (&reader, &["worker", "--drain"]),
    ] {
        let output = command_as(&database, role, arguments).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(5),
            "{role} {arguments:?}: {said}"
        );
        assert!(
            said.contains("permission denied") && said.contains("postrider.grant_operator("),
            "{said}"
        );
    }
}

#[tokio::test]
async fn the_doorbell_of_a_producer_wakes_the_worker() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let worker = granted(&database, "worker").await;
    let producer = granted(&database, "producer").await;
    let _running = worker_as(&database, &worker, &["--poll-interval", "10m"]);
    is_idle(&database).await;

    let session = session_as(&database, &producer).await;
    does(&session, "select postrider.send('shop', 't', '{}')").await;

    let status = async || database.delivery(1).await.status;
    wait_until(
        "it is delivered",
        status,
        |status| status == "delivered",
        Duration::from_secs(5),
    )
    .await;
}
