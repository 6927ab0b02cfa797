//! From the answer to the row: status, reason, error kind, next due time.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::receiver::{BlackHole, Receiver, Script};
use crate::support::{Database, Worker};

/// A port that answers a TLS handshake with something else, once.
async fn speaks_no_tls() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.read_u8().await.unwrap();
        socket.write_all(b"SSH-2.0-no\r\n").await.unwrap();
    });
    url
}

/// A port that nobody listens on.
async fn closed_port() -> String {
    let receiver = Receiver::start().await;
    let url = receiver.url("/");
    receiver.stop().await;
    url
}

#[tokio::test]
async fn c14_each_failure_of_the_network_is_retried_under_a_kind_of_its_own() {
    let database = Database::fresh().await;
    let hole = BlackHole::start().await;
    let silent = Receiver::start().await;
    silent.script([Script::silence()]);
    let garbled = Receiver::start().await;
    garbled.script([Script::raw("HTP/1.1 200 OK\r\n\r\n").then_close()]);
    let absent = Receiver::start().await;
    absent.script([Script::hang_up()]);
    let cases = [
        ("refused", closed_port().await, "connect"),
        ("unknown name", "http://nobody.invalid/".into(), "dns"),
        ("black hole", hole.url(), "connect"),
        ("no TLS", speaks_no_tls().await, "tls"),
        ("silence", silent.url("/"), "timeout"),
        ("malformed status line", garbled.url("/"), "protocol"),
        ("hangs up", absent.url("/"), "protocol"),
    ];
    let mut ids = Vec::new();
    for (name, url, _) in &cases {
        database.endpoint(name, url).set("timeout", "1 s").await;
        ids.push(database.insert(name, "{}").await);
    }

    let _worker = Worker::spawn(&database, &["--connect-timeout", "500ms"]);

    for (id, (name, _, kind)) in ids.into_iter().zip(&cases) {
        let delivery = database.wait_for_status(id, "failed").await;
        let [attempt] = database.attempts(id).await.try_into().unwrap();
        assert_eq!(
            attempt.error_kind.as_deref(),
            Some(*kind),
            "{name}: {attempt:?}"
        );
        assert_eq!(
            (attempt.outcome.as_str(), attempt.status_code),
            ("retry", None)
        );
        assert_eq!(attempt.error, delivery.last_error);
        assert!(
            attempt.error.is_some_and(|error| !error.is_empty()),
            "{name}"
        );
        assert_eq!(
            (attempt.response_body, attempt.response_headers),
            (None, None)
        );
        assert_eq!(
            (delivery.attempt_count, delivery.last_status_code),
            (1, None)
        );
        assert!(
            delivery.due_in.is_some_and(|due| due < 7.0),
            "{name}: {delivery:?}"
        );
        let wait = attempt.retry_after.expect("it was decided");
        assert!(
            (3.9..9.0).contains(&wait),
            "{name}: 5 s, 20 % jitter, the try: {wait}"
        );
    }
}

#[tokio::test]
async fn c18_a_redirect_ends_the_delivery_and_is_not_followed() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let login = Receiver::start().await;
    let _worker = Worker::spawn(&database, &[]);

    for (n, status) in [301, 302, 303, 307, 308].into_iter().enumerate() {
        let target = login.url("/login");
        receiver.script([Script::reply(status, &[("location", &target)], b"")]);
        let name = format!("shop {status}");
        database.endpoint(&name, &receiver.url("/hook")).await;
        let id = database.insert(&name, "{}").await;

        let delivery = database.wait_for_status(id, "exhausted").await;

        assert_eq!(delivery.exhausted_reason.as_deref(), Some("rejected"));
        assert_eq!(delivery.last_status_code, Some(i32::from(status)));
        let error = delivery.last_error.expect("it says where to");
        assert!(error.contains(&target), "{error}");
        assert_eq!(receiver.requests().len(), n + 1);
    }
    assert_eq!(login.connections(), 0);
}

#[tokio::test]
async fn c19_each_status_moves_its_delivery_as_the_table_says() {
    let database = Database::fresh().await;
    let delivered = ("delivered", "delivered", None);
    let rejected = ("rejected", "exhausted", Some("rejected"));
    let gone = ("rejected", "exhausted", Some("gone"));
    let retry = ("retry", "failed", None);
    let table = [
        (delivered, &[200, 201, 202, 204, 206, 299][..]),
        (
            rejected,
            &[300, 304, 400, 401, 403, 404, 408, 409, 413, 422, 425, 600],
        ),
        (gone, &[410]),
        (retry, &[429, 500, 502, 503, 504, 599]),
    ];
    let mut rows = Vec::new();
    for (expected, statuses) in table {
        for &status in statuses {
            let receiver = Receiver::start().await;
            receiver.script([Script::reply(status, &[("x-a", "b")], b"")]);
            let name = format!("answers {status}");
            database.endpoint(&name, &receiver.url("/")).await;
            let id = database.insert(&name, "{}").await;
            rows.push((status, id, expected, receiver));
        }
    }

    let _worker = Worker::spawn(&database, &[]);

    for (status, id, (outcome, becomes, reason), receiver) in rows {
        let delivery = database.wait_for_status(id, becomes).await;
        assert_eq!(delivery.exhausted_reason.as_deref(), reason, "{status}");
        assert_eq!(delivery.last_status_code, Some(i32::from(status)));
        assert_eq!(delivery.finished, becomes != "failed");
        assert_eq!(delivery.due_in.is_some(), becomes == "failed");
        let error = (outcome != "delivered").then(|| format!("HTTP {status}"));
        assert_eq!(delivery.last_error, error);
        let [attempt] = database.attempts(id).await.try_into().unwrap();
        assert_eq!((attempt.outcome.as_str(), attempt.error), (outcome, error));
        assert_eq!(attempt.status_code, Some(i32::from(status)));
        assert_eq!((attempt.error_kind, attempt.attempt_no), (None, 1));
        assert_eq!(attempt.remote_addr, Some(receiver.addr().to_string()));
        assert_eq!(attempt.retry_after.is_some(), becomes == "failed");
        assert_eq!(receiver.requests().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn c19_retry_after_postpones_a_retry_and_is_capped_at_a_day() {
    let database = Database::fresh().await;
    let date = "select to_char((clock_timestamp() + interval '1 h') at time zone 'utc', 'Dy, DD Mon YYYY HH24:MI:SS \"GMT\"')";
    let in_an_hour: String = database.value(date).await;
    let past = "Sun, 06 Nov 1994 08:49:37 GMT";
    let mut rows = Vec::new();
    for (status, value, least, most) in [
        (429, "120", 119.9, 125.0),
        (503, in_an_hour.as_str(), 3590.0, 3602.0),
        (500, "999999999999", 86_399.9, 86_405.0),
        (429, "Fri, 31 Dec 9999 23:59:59 GMT", 86_399.9, 86_405.0),
        (429, past, 3.9, 8.0),
        (429, "0", 3.9, 8.0),
        (429, "-5", 3.9, 8.0),
        (429, "soon", 3.9, 8.0),
        (429, "3", 3.9, 8.0),
    ] {
        let receiver = Receiver::start().await;
        receiver.script([Script::reply(status, &[("retry-after", value)], b"")]);
        let name = format!("{status} {value}");
        database.endpoint(&name, &receiver.url("/")).await;
        let id = database.insert(&name, "{}").await;
        rows.push((id, name, least..most, receiver));
    }

    let _worker = Worker::spawn(&database, &[]);

    for (id, name, expected, _receiver) in rows {
        database.wait_for_status(id, "failed").await;
        let [attempt] = database.attempts(id).await.try_into().unwrap();
        let wait = attempt.retry_after.expect("it was decided");
        assert!(
            expected.contains(&wait),
            "{name}: {wait}, not in {expected:?}"
        );
    }
}

#[tokio::test]
async fn c19_a_410_disables_the_endpoint_and_ends_its_other_deliveries() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::status(410)]);
    database
        .endpoint("shop", &receiver.url("/hook"))
        .set("max_in_flight", 1)
        .await;
    database.endpoint("neighbour", &receiver.url("/else")).await;
    let first = database
        .insert("shop", "{}")
        .set("next_retry", "2020-01-01")
        .await;
    let due = database.insert("shop", "{}").await;
    let later = database
        .insert("shop", "{}")
        .set("next_retry", "2999-01-01")
        .await;
    let never = database
        .insert("shop", "{}")
        .set("next_retry", "infinity")
        .await;
    let _worker = Worker::spawn(&database, &[]);

    for (id, reason, tries) in [
        (first, "gone", 1),
        (due, "endpoint_disabled", 0),
        (later, "endpoint_disabled", 0),
        (never, "endpoint_disabled", 0),
    ] {
        let delivery = database.wait_for_status(id, "exhausted").await;
        assert_eq!(delivery.exhausted_reason.as_deref(), Some(reason));
        assert_eq!(delivery.attempt_count, tries);
    }
    let disabled = "select disabled_reason || ' ' || enabled || ' ' || (disabled_at <= now())
                      from postrider.endpoints where name = 'shop'";
    let disabled: String = database.value(disabled).await;
    assert_eq!(disabled, "the receiver answered 410 Gone false true");
    let neighbour = database.insert("neighbour", "{}").await;
    database.wait_for_status(neighbour, "delivered").await;
    assert_eq!(
        receiver.requests().len(),
        2,
        "nothing more went to the shop"
    );

    database.sql("select postrider.enable('shop')").await;
    let replayed: i64 = database
        .value("select postrider.replay_matching('shop')")
        .await;
    assert_eq!(replayed, 4);
    for id in [first, due, later, never] {
        database.wait_for_status(id, "delivered").await;
    }
}
