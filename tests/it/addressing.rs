//! Where a delivery may go, and what keeps it from going: through SQL, the worker and its environment.

use serde_json::json;

use crate::support::certificate::Certificate;
use crate::support::database::NewDelivery;
use crate::support::process::on;
use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, Worker};

/// Endpoints that no request can be made for, with `url` where theirs does not matter.
async fn unusable_endpoints(database: &Database, url: &str) -> [&'static str; 6] {
    database.endpoint("nonsense", "not a url").await;
    database.endpoint("no host", "http://").await;
    database.endpoint("ftp", "ftp://127.0.0.1/").await;
    database
        .endpoint("no such port", "http://127.0.0.1:99999/")
        .await;
    database
        .endpoint("bad header", url)
        .set("headers", json!({"X-A": "a\r\nX-Smuggled: 1"}))
        .await;
    database
        .endpoint("bad signature header", url)
        .set("signature_scheme", "body-base64")
        .set("signature_header", "content-type")
        .await;
    [
        "nonsense",
        "no host",
        "ftp",
        "no such port",
        "bad header",
        "bad signature header",
    ]
}

/// Deliveries to `shop` that no request can be made of.
fn unusable_deliveries(database: &Database) -> Vec<NewDelivery<'_>> {
    let headers = [
        json!({"X-A": "a\nb"}),
        json!({"X-A": 1}),
        json!({"X-A": null}),
        json!({"X-A": {"b": "c"}}),
        json!({"X A": "b"}),
        json!({"": "b"}),
        json!({"Content-Length": "3"}),
        json!({"WEBHOOK-ID": "forged"}),
        json!({"Host": "elsewhere"}),
        json!({"Transfer-Encoding": "chunked"}),
    ]
    .map(|headers| database.insert("shop", "{}").set("headers", headers));
    let content_types = ["", "json", "text/html\r\nX-Smuggled: 1", "é/é"].map(|content_type| {
        let delivery = database.insert_bytes("shop", b"x");
        delivery.set("content_type", content_type)
    });
    let event_ids = ["évt", " evt", "evt\n1"]
        .map(|event_id| database.insert("shop", "{}").set("event_id", event_id));

    headers
        .into_iter()
        .chain(content_types)
        .chain(event_ids)
        .collect()
}

#[tokio::test]
async fn c15_what_cannot_be_sent_ends_after_one_try_and_its_neighbours_are_delivered() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/hook")).await;
    let mut bad = Vec::new();
    let mut good = vec![database.insert("shop", "{}").await];
    for name in unusable_endpoints(&database, &receiver.url("/")).await {
        bad.push(database.insert(name, "{}").await);
    }
    for delivery in unusable_deliveries(&database) {
        bad.push(delivery.await);
        good.push(database.insert("shop", "{}").await);
    }
    let mut worker = Worker::spawn(&database, &[]);

    for id in &good {
        database.wait_for_status(*id, "delivered").await;
    }
    for id in &bad {
        let delivery = database.wait_for_status(*id, "exhausted").await;
        assert_eq!(
            delivery.exhausted_reason.as_deref(),
            Some("unbuildable"),
            "{delivery:?}"
        );
        assert_eq!(
            (delivery.attempt_count, delivery.last_status_code),
            (1, None)
        );
        let [attempt] = database.attempts(*id).await.try_into().unwrap();
        assert_eq!(attempt.outcome, "unbuildable");
        assert_eq!(attempt.error_kind.as_deref(), Some("unbuildable"));
        assert_eq!(attempt.error, delivery.last_error);
        assert!(attempt.error.is_some_and(|error| !error.is_empty()));
        assert_eq!((attempt.response_body, attempt.remote_addr), (None, None));
    }
    assert_eq!(
        receiver.requests().len(),
        good.len(),
        "nothing of the bad ones was sent"
    );
    worker.terminate();
    assert!(worker.wait().await.success());
    let said = worker.said();
    let lines = |what: &str| said.lines().filter(|line| line.contains(what)).count();
    let told = lines("reason=\"unbuildable\"");
    assert!(
        (1..=bad.len()).contains(&told),
        "{told} lines for {} rows:\n{said}",
        bad.len()
    );
    assert!(
        said.lines().count() <= bad.len() + 8,
        "and few others:\n{said}"
    );
}

#[tokio::test]
async fn c27_what_is_not_the_receivers_fault_leaves_its_health_alone() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/hook")).await;
    database.endpoint("inside", "http://10.1.2.3/").await;
    database.endpoint("down", &receiver.url("/down")).await;
    receiver.script([Script::status(500)]);
    let worker = Worker::spawn(&database, &[]);
    let down = database.insert("down", "{}").await;
    database.wait_for_status(down, "failed").await;

    let mut ended = Vec::new();
    for _ in 0..3 {
        let row = database
            .insert("shop", "{}")
            .set("headers", json!({"Host": "x"}));
        ended.push((row.await, "unbuildable"));
        ended.push((database.insert("inside", "{}").await, "blocked"));
    }
    for (id, reason) in ended {
        let delivery = database.wait_for_status(id, "exhausted").await;
        assert_eq!(
            delivery.exhausted_reason.as_deref(),
            Some(reason),
            "{}",
            worker.said()
        );
    }

    let sick = "select string_agg(endpoint || ' ' || consecutive_failures || ' ' || (failing_since is not null), ', '
                                  order by endpoint collate \"C\") from postrider.endpoint_health";
    let sick: String = database.value(sick).await;
    assert_eq!(sick, "down 1 true, inside 0 false, shop 0 false");
}

#[tokio::test]
async fn an_address_of_this_machine_is_blocked_unless_it_is_allowed() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("literal", &receiver.url("/")).await;
    database
        .endpoint("name", &receiver.url_of("localhost", "/"))
        .await;
    let blocked = [
        database.insert("literal", "{}").await,
        database.insert("name", "{}").await,
    ];

    let worker = Worker::run(on(&database, &["worker"]));

    for id in blocked {
        let delivery = database.wait_for_status(id, "exhausted").await;
        assert_eq!(delivery.exhausted_reason.as_deref(), Some("blocked"));
        let [attempt] = database.attempts(id).await.try_into().unwrap();
        assert_eq!(attempt.outcome, "blocked");
        assert_eq!(attempt.error_kind.as_deref(), Some("blocked"));
    }
    assert_eq!(receiver.connections(), 0, "{}", worker.said());
}

#[tokio::test]
async fn c12_the_handshake_asks_for_the_name_and_a_ca_file_vouches_for_it() {
    let database = Database::fresh().await;
    let certificate = Certificate::of(&["localhost"]);
    let receiver = Receiver::start_tls(certificate.acceptor(&[])).await;
    database
        .endpoint("shop", &receiver.url_of("localhost", "/hook"))
        .await;
    let id = database.insert("shop", "{}").await;

    let ca_file = certificate.path().to_str().expect("a temporary path");
    let _worker = Worker::spawn(&database, &["--ca-file", ca_file]);

    database.wait_for_status(id, "delivered").await;
    let [request] = receiver.requests().try_into().unwrap();
    assert_eq!(request.server_name.as_deref(), Some("localhost"));
    let host = format!("localhost:{}", receiver.addr().port());
    assert_eq!(request.header("host"), [host]);
}

#[tokio::test]
async fn c13_a_proxy_in_the_workers_environment_is_ignored() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let proxy = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/hook")).await;
    let id = database.insert("shop", "{}").await;
    let mut command = on(&database, &["worker", "--allow-network", "127.0.0.0/8"]);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        command.env(name, proxy.url(""));
    }

    let _worker = Worker::run(command);

    database.wait_for_status(id, "delivered").await;
    assert_eq!((receiver.requests().len(), proxy.connections()), (1, 0));
}

#[tokio::test]
async fn c17_a_worker_without_ca_certificates_starts_and_says_so_at_the_try() {
    let database = Database::fresh().await;
    let secure = Receiver::start_tls(Certificate::of(&["127.0.0.1"]).acceptor(&[])).await;
    let plain = Receiver::start().await;
    database.endpoint("secure", &secure.url("/")).await;
    database.endpoint("plain", &plain.url("/")).await;
    let failed = database.insert("secure", "{}").await;
    let delivered = database.insert("plain", "{}").await;
    let mut command = on(&database, &["worker", "--allow-network", "127.0.0.0/8"]);
    command
        .env("SSL_CERT_FILE", "/nowhere")
        .env("SSL_CERT_DIR", "/nowhere");

    let _worker = Worker::run(command);

    database.wait_for_status(delivered, "delivered").await;
    let failed = database.wait_for_status(failed, "failed").await;
    let error = failed.last_error.expect("it says why");
    assert!(error.contains("--ca-file"), "{error}");
}

/// Every relation of ours that shows `$1` in a row, the URL that a user has written aside. Named with its schema, also when
/// the role is called like the schema and so has it in its search path.
const SHOWN: &str = "
create function shown(canary text) returns text language plpgsql set search_path = pg_catalog as $$
declare
  relation regclass;
  rows bigint;
  found text := '';
begin
  for relation in select c.oid from pg_class c
                   where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p', 'v', 'm') loop
    execute format('select count(*) from %s r where (to_jsonb(r) - %L)::text like %L', relation,
                   case when relation = 'postrider.endpoints'::regclass then 'url' else '' end, '%' || canary || '%') into rows;
    if rows > 0 then
      found := found || relation || ' ';
    end if;
  end loop;
  return found;
end $$";

#[tokio::test]
async fn c16_the_password_in_a_url_reaches_the_receiver_and_no_log_and_no_table() {
    let database = Database::fresh().await;
    database.sql(SHOWN).await;
    let receiver = Receiver::start().await;
    let with_password =
        |url: String| url.replace("://", "://user:s3cr%33t@") + "?token=t0ken#fragm3nt";
    for (name, url) in [
        ("good", receiver.url("/hook")),
        ("refused", "http://127.0.0.1:1/".into()),
        ("unknown", "http://nobody.invalid/".into()),
        ("tls", receiver.url("/").replace("http:", "https:")),
        ("blocked", "http://10.0.0.1/".into()),
        ("port", "http://127.0.0.1:99999/".into()),
        ("scheme", "gopher://127.0.0.1/".into()),
    ] {
        database
            .endpoint(name, &with_password(url))
            .set("timeout", "500 ms")
            .await;
    }
    receiver.script([Script::reply(200, &[("x-a", "head3r")], b"b0dy")]);
    let good = database.insert("good", "[\"payl0ad\"]").await;
    let mut others = Vec::new();
    for name in ["refused", "unknown", "tls", "blocked", "port", "scheme"] {
        others.push(database.insert(name, "{}").await);
    }

    let mut worker = Worker::spawn(&database, &["--log", "trace"]);

    database.wait_for_status(good, "delivered").await;
    for id in others {
        database
            .wait_for(id, "it was tried", |delivery| delivery.attempt_count > 0)
            .await;
    }
    let request = &receiver.wait_for_requests(1).await[0];
    assert_eq!(request.request_line(), "POST /hook?token=t0ken HTTP/1.1");
    assert_eq!(request.header("authorization"), ["Basic dXNlcjpzM2NyM3Q="]);
    let secret = database.secret("good").await;
    worker.terminate();
    assert!(worker.wait().await.success());
    let said = worker.said();
    for canary in ["s3cr", "dXNlcjpzM2NyM3Q", "t0ken", "fragm3nt"] {
        let lines: Vec<_> = said.lines().filter(|line| line.contains(canary)).collect();
        assert!(lines.is_empty(), "{canary} in the log: {lines:#?}");
        let shown: String = database.value(&format!("select shown('{canary}')")).await;
        assert_eq!(shown, "", "{canary} in tables");
    }
    for canary in [
        "b0dy",
        "62306479",
        "98, 48, 100, 121",
        "head3r",
        "payl0ad",
        &secret[6..],
    ] {
        assert!(!said.contains(canary), "{canary} in the log");
    }
    let found: String = database.value("select shown('127.0.0.1')").await;
    assert!(
        found.contains("attempts"),
        "the search finds what is there: {found:?}"
    );
}
