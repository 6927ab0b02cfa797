//! From SQL through the worker to a receiver and back into the tables: no byte changes, and none does harm.

use std::collections::BTreeMap;

use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// JSON texts that a jsonb column would refuse or rewrite.
const TEXTS: [&str; 14] = [
    r#"{"b":1,"a":2}"#,
    r#"{"a":1,"a":2}"#,
    r#"[1.0, 1.00, 1e2, -0, -0.0, 1E+2, 0.10]"#,
    "{\"a\": 1}\n",
    "\n\n {\n\t\"pretty\" : [\r\n 1 ,\n 2 ]\n}\t \r\n",
    r#"{"a":"x\u0000y"}"#,
    r#"{"\u0000":"\ud800 \udc00\ud800 \uDFFF"}"#,
    r#""\u00e9\/é☃😀""#,
    r#"[12345678901234567, 0.12345678901234567, 9007199254740993, 1e999999, 1e-999999]"#,
    "\"\u{7f}\u{2028}\u{feff}\"",
    r#"{"__proto__":{"a":null}}"#,
    "null",
    "0",
    r#""""#,
];

async fn shop(database: &Database, receiver: &Receiver) {
    database.endpoint("shop", &receiver.url("/hook")).await;
}

/// The bodies that came, by `webhook-id`; each with a Content-Length that is true.
async fn bodies(receiver: &Receiver, count: usize) -> BTreeMap<String, Vec<u8>> {
    let requests = receiver.wait_for_requests(count).await;
    let bodies: BTreeMap<_, _> = requests
        .into_iter()
        .map(|request| {
            assert_eq!(
                request.header("content-length"),
                [request.body.len().to_string()]
            );
            let id = request.header("webhook-id").concat();
            (id, request.body)
        })
        .collect();
    assert_eq!(bodies.len(), count, "one request for each");
    bodies
}

#[tokio::test]
async fn c1_c2_c4_whatever_json_accepts_is_taken_and_arrives_byte_for_byte() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    shop(&database, &receiver).await;
    let digits = "7".repeat(400);
    let long = [
        digits.clone(),
        format!("{{\"n\":-{digits}.{digits}}}"),
        format!("{}1{}", "[".repeat(500), "]".repeat(500)),
    ];
    let texts: Vec<&str> = TEXTS
        .into_iter()
        .chain(long.iter().map(String::as_str))
        .collect();

    for (n, text) in texts.iter().enumerate() {
        database
            .insert("shop", text)
            .set("event_id", format!("evt_{n}"))
            .await;
    }
    let _worker = Worker::spawn(&database, &[]);

    let arrived = bodies(&receiver, texts.len()).await;
    for (n, text) in texts.iter().enumerate() {
        let body = &arrived[&format!("evt_{n}")];
        assert_eq!(String::from_utf8_lossy(body), *text);
    }
    for request in receiver.requests() {
        assert_eq!(request.header("content-type"), ["application/json"]);
    }
}

#[tokio::test]
async fn c1_a_trigger_that_enqueues_never_fails_the_users_own_update() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    shop(&database, &receiver).await;
    let text = r#"{"note":"x\u0000y","lone":"\udead"}"#;
    database
        .sql(
            "create table notes (id int primary key, note json);
             insert into notes values (1, null);
             create function tell() returns trigger language plpgsql as $$
             begin
               perform postrider.send('shop', 'note.changed', new.note);
               return new;
             end $$;
             create trigger tell after update on notes for each row execute function tell();",
        )
        .await;
    let _worker = Worker::spawn(&database, &[]);

    database
        .sql(&format!("update notes set note = '{text}' where id = 1"))
        .await;

    let kept: String = database.value("select note::text from notes").await;
    assert_eq!(kept, text);
    let [request] = receiver.wait_for_requests(1).await.try_into().unwrap();
    assert_eq!(request.body, text.as_bytes());
    assert_eq!(request.header("postrider-event-type"), ["note.changed"]);
}

#[tokio::test]
async fn c1_a_role_that_may_only_insert_enqueues() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    shop(&database, &receiver).await;
    let role = format!("{}_app", database.name());
    database
        .sql(&format!(
            "create role {role};
             grant usage on schema postrider to {role};
             grant insert on postrider.deliveries to {role};"
        ))
        .await;
    let _worker = Worker::spawn(&database, &[]);

    let producer = database.connect().await;
    let insert = format!(
        "set role {role};
         set search_path = '';
         begin isolation level serializable;
         insert into postrider.deliveries (endpoint, event_type, payload) values ('shop', 'a', '{{}}');
         commit;"
    );
    producer.batch_execute(&insert).await.unwrap();

    receiver.wait_for_requests(1).await;
}

#[tokio::test]
async fn c2_any_bytes_arrive_as_they_are_with_their_media_type() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    shop(&database, &receiver).await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let megabyte: Vec<u8> = all_bytes.iter().copied().cycle().take(1 << 20).collect();
    let cases = [
        ("empty", Vec::new(), None),
        ("binary", all_bytes, Some("image/png")),
        ("megabyte", megabyte, Some("application/x-tar")),
        (
            "form",
            b"a=1&b=%20\r\n\r\n".to_vec(),
            Some("application/x-www-form-urlencoded; charset=\"utf-8\""),
        ),
    ];

    for (id, body, content_type) in &cases {
        database
            .insert_bytes("shop", body)
            .set("event_id", *id)
            .set("content_type", *content_type)
            .await;
    }
    let _worker = Worker::spawn(&database, &[]);

    let arrived = bodies(&receiver, cases.len()).await;
    for (id, body, content_type) in &cases {
        assert!(arrived[*id] == *body, "{id} differs");
        let requests = receiver.requests();
        let request = requests
            .iter()
            .find(|request| request.header("webhook-id") == [*id])
            .expect("it arrived");
        let expected = content_type.unwrap_or("application/octet-stream");
        assert_eq!(request.header("content-type"), [expected]);
    }
}

#[tokio::test]
async fn c2_a_published_event_sends_its_stored_text_to_each_endpoint() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    for name in ["a", "b"] {
        database
            .endpoint(name, &receiver.url(&format!("/{name}")))
            .await;
    }
    let text = "{\"b\":1.00,\n \"b\":\"\\u0000\"}\n";
    database
        .sql(&format!(
            "with event as (
               insert into postrider.events (event_id, event_type, payload) values ('evt_1', 'order.paid', '{text}') returning *)
             insert into postrider.deliveries (endpoint, event_id, event_type, event)
             select name, event.event_id, event.event_type, event.id from postrider.endpoints, event"
        ))
        .await;

    let _worker = Worker::spawn(&database, &[]);

    let requests = receiver.wait_for_requests(2).await;
    let mut lines: Vec<_> = requests.iter().map(|r| r.request_line()).collect();
    lines.sort();
    assert_eq!(lines, ["POST /a HTTP/1.1", "POST /b HTTP/1.1"]);
    for request in &requests {
        assert_eq!(String::from_utf8_lossy(&request.body), text);
        assert_eq!(request.header("content-type"), ["application/json"]);
        assert_eq!(request.header("webhook-id"), ["evt_1"]);
    }
}

#[tokio::test]
async fn c4_settings_of_the_database_change_no_byte_and_stop_no_worker() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    shop(&database, &receiver).await;
    let name = database.name();
    database
        .sql(&format!(
            "alter database {name} set datestyle = 'German, DMY';
             alter database {name} set intervalstyle = 'sql_standard';
             alter database {name} set bytea_output = 'escape';
             alter database {name} set standard_conforming_strings = off;
             alter database {name} set timezone = 'Asia/Kathmandu';
             alter database {name} set default_transaction_isolation = 'serializable';
             alter database {name} set extra_float_digits = -15;
             alter database {name} set client_min_messages = debug1;
             do $$ begin
               execute 'drop table postrider.attempts_' || to_char(now() at time zone 'utc', 'YYYYMMDD');
             end $$;"
        ))
        .await;
    receiver.script([Script::status(503)]);
    let text = "[123456789.123456789123456789, 1e400]";
    let id = database.insert("shop", text).await;

    let _worker = Worker::spawn(&database, &[]);

    let failed = database.wait_for_status(id, "failed").await;
    assert!(failed.due_in.is_some_and(|due| due < 7.0), "{failed:?}");
    assert_eq!(receiver.requests()[0].body, text.as_bytes());
    assert_eq!(database.attempts(id).await.len(), 1);
}

#[tokio::test]
async fn c5_any_reply_body_is_recorded_and_the_next_delivery_goes_out() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database
        .endpoint("shop", &receiver.url("/hook"))
        .set("max_in_flight", 1)
        .await;
    let replies: [&[u8]; 6] = [
        b"\x00\x01\xff\xfe",
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
        b"caf\xe9 na\xefve",
        b"{\"half a character\": \"\xe2\x98",
        b"\\x00\\",
        b"",
    ];
    receiver.script(replies.map(|body| Script::reply(400, &[], body)));

    let mut ids = Vec::new();
    for _ in replies {
        ids.push(database.insert("shop", "{}").await);
    }
    let last = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &[]);

    database.wait_for_status(last, "delivered").await;
    for (id, body) in ids.into_iter().zip(replies) {
        let delivery = database.delivery(id).await;
        assert_eq!(delivery.exhausted_reason.as_deref(), Some("rejected"));
        let [attempt] = database.attempts(id).await.try_into().unwrap();
        assert_eq!(attempt.response_body.as_deref(), Some(body));
        assert!(!attempt.response_truncated);
    }
}

#[tokio::test]
async fn c6_odd_reply_headers_are_recorded_each_and_in_order() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    shop(&database, &receiver).await;
    receiver.script([Script::raw(
        b"HTTP/1.1 200 caf\xe9\r\nX-Reason: caf\xC3\xA9\r\nX-Bin: \xFF\xFEa\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\
          X-Empty:\r\nSet-Cookie: a=1\r\nX-Quote: \"\\u0000\\\r\nContent-Length: 0\r\n\r\n",
    )]);

    let id = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &[]);

    database.wait_for_status(id, "delivered").await;
    let [attempt] = database.attempts(id).await.try_into().unwrap();
    // Values of one name stand together, as HTTP allows.
    let expected = serde_json::json!([
        ["x-reason", "café"],
        ["x-bin", "\\xFF\\xFEa"],
        ["set-cookie", "a=1"],
        ["set-cookie", "b=2"],
        ["set-cookie", "a=1"],
        ["x-empty", ""],
        ["x-quote", "\"\\u0000\\"],
        ["content-length", "0"],
    ]);
    assert_eq!(attempt.response_headers, Some(expected));
}

#[tokio::test]
async fn c7_a_200_that_stalls_never_ends_or_is_cut_is_delivered_once() {
    let database = Database::fresh().await;
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let cases = [
        (Script::raw(head).then_write("3\r\nabc\r\n").then_stall(), 3),
        (
            Script::raw(head).then_endlessly(format!("1000\r\n{}\r\n", "z".repeat(0x1000))),
            16 << 10,
        ),
        (
            Script::raw("HTTP/1.1 200 OK\r\n\r\n").then_endlessly("z".repeat(0x1000)),
            16 << 10,
        ),
        (
            Script::raw("HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\nabc").then_reset(),
            3,
        ),
    ];
    let _worker = Worker::spawn(&database, &[]);

    for (n, (script, kept)) in cases.into_iter().enumerate() {
        let receiver = Receiver::start().await;
        receiver.script([script]);
        let name = format!("case {n}");
        database
            .endpoint(&name, &receiver.url("/"))
            .set("timeout", "400 ms")
            .await;
        let id = database.insert(&name, "{}").await;

        database.wait_for_status(id, "delivered").await;

        let [attempt] = database.attempts(id).await.try_into().unwrap();
        assert_eq!(
            (attempt.outcome.as_str(), attempt.status_code),
            ("delivered", Some(200))
        );
        assert!(attempt.response_truncated, "{name}");
        // A reset may overtake what was sent before it.
        let length = attempt.response_body.map(|body| body.len());
        assert!(
            length == Some(kept) || (n == 3 && length < Some(kept)),
            "{name}: {length:?}"
        );
        receiver.wait_until_deserted().await;
        assert_eq!(receiver.requests().len(), 1, "{name}");
    }
}

#[tokio::test]
async fn c5_a_worker_outlives_every_reply() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    shop(&database, &receiver).await;
    let junk = [
        Script::raw("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n").then_close(),
        Script::raw("HTTP/1.1 500 \x00\r\n\r\n").then_close(),
        Script::raw(format!(
            "HTTP/1.1 500 x\r\n{}\r\n",
            "X-A: b\r\n".repeat(600)
        ))
        .then_close(),
        Script::raw(format!(
            "HTTP/1.1 500 x\r\nX-A: {}\r\n\r\n",
            "y".repeat(300_000)
        ))
        .then_close(),
        Script::reply(302, &[("location", "\u{1}\t\\\"é☃")], b""),
        Script::raw("HTTP/1.1 503 x\r\nRetry-After: 99999999999999999999999\r\n\r\n").then_close(),
        Script::raw("HTTP/1.1 999 x\r\n\r\n").then_close(),
        Script::raw(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        )
        .then_close(),
        Script::raw("HTTP/1.1 000 x\r\n\r\n").then_close(),
        Script::raw("HTTP/1.1 400 x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n")
            .then_close(),
        Script::raw(b"HTTP/1.1 400 x\r\nX-A: \0\r\n: b\r\nX \xe9: c\r\n\r\n").then_close(),
        Script::raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").then_close(),
        Script::raw([0_u8; 4096]).then_close(),
        Script::hang_up(),
    ];
    let count = junk.len();
    receiver.script(junk);
    let mut worker = Worker::spawn(&database, &[]);

    for _ in 0..count {
        database.insert("shop", "{}").await;
    }

    let recorded = "select count(*) from postrider.attempts";
    wait_until(
        "each has a try on record",
        async || database.value::<i64>(recorded).await,
        |seen| usize::try_from(*seen) == Ok(count),
        SOON,
    )
    .await;
    let last = database.insert("shop", "{}").await;
    database.wait_for_status(last, "delivered").await;
    let lost = "select count(*) from postrider.attempts where outcome = 'lost' or error = 'the reply could not be stored'";
    assert_eq!(database.value::<i64>(lost).await, 0);
    worker.terminate();
    assert!(worker.wait().await.success());
}
