//! What receivers check: every try is signed afresh over the very bytes, and by nobody's judgement but their own.
//!
//! Standard Webhooks is verified by other people's code; for the other schemes the receiver's side is written out here.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::Sha256;

use crate::support::receiver::{self, Receiver, Script};
use crate::support::verifiers::{Checked, Received, verify_with_crate, verify_with_python};
use crate::support::{Database, Worker};

const TEXT: &str = "{\"b\":1.00, \"a\":\"caf\u{e9}\\u0000\"}\n";

/// A policy without a wait.
const AT_ONCE: &str = "insert into postrider.retry_policies (name, kind, delays, jitter, max_retries) values ('at once', 'schedule', '{0}', 0, 9)";

fn headers(request: &receiver::Received) -> HeaderMap {
    let names = request.header_names().into_iter();
    names
        .map(|name| {
            let value = HeaderValue::from_str(&request.header(&name).join(", "));
            let name: HeaderName = name.parse().expect("it came over the wire");
            (name, value.expect("likewise"))
        })
        .collect()
}

/// Both foreign verifiers accept every request for `secret`; or refuse each of them.
fn assert_verified(requests: &[receiver::Received], secret: &str, expected: bool) {
    let headers: Vec<_> = requests.iter().map(headers).collect();
    let received: Vec<_> = requests
        .iter()
        .zip(&headers)
        .map(|(request, headers)| Received {
            secret,
            headers,
            body: &request.body,
        })
        .collect();
    for one in &received {
        let verdict = verify_with_crate(one);
        assert_eq!(verdict.is_ok(), expected, "{verdict:?}: {:?}", one.headers);
    }
    if let Checked::Ran(verdicts) = verify_with_python(&received) {
        let as_expected = verdicts.iter().all(|verdict| verdict.is_ok() == expected);
        assert!(
            as_expected,
            "{verdicts:?}: {received:?}",
            received = headers
        );
    }
}

fn one(requests: &[receiver::Received], name: &str) -> Vec<String> {
    requests
        .iter()
        .map(|request| {
            let [value] = request.header(name).try_into().expect("exactly one");
            value
        })
        .collect()
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn c8_first_tries_retries_and_replays_verify_with_a_timestamp_of_their_own_and_one_id() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([503, 200, 200].map(Script::status));
    database
        .sql(
            "insert into postrider.retry_policies (name, kind, delays, jitter, max_retries)
             values ('in a second', 'schedule', '{1 s}', 0, 9)",
        )
        .await;
    database
        .endpoint("shop", &receiver.url("/hook"))
        .set("retry_policy", "in a second")
        .await;
    // As old as the oldest row in a backlog: a signature made at insertion would be refused.
    let id = database
        .insert("shop", TEXT)
        .set("created_at", "2020-01-01")
        .set("next_retry", "2020-01-01")
        .await;
    let _worker = Worker::spawn(&database, &[]);

    database.wait_for_status(id, "delivered").await;
    let replay = format!("select postrider.replay({id})");
    assert!(database.value::<bool>(&replay).await);
    let requests = receiver.wait_for_requests(3).await;

    assert_verified(&requests, &database.secret("shop").await, true);
    let ids = one(&requests, "webhook-id");
    assert_eq!(ids, vec![database.delivery(id).await.event_id; 3]);
    let times: Vec<i64> = one(&requests, "webhook-timestamp")
        .iter()
        .map(|time| time.parse().expect("seconds"))
        .collect();
    assert!(times[0] < times[1] && times[1] <= times[2], "{times:?}");
    let now: f64 = database
        .value("select extract(epoch from clock_timestamp())::float8")
        .await;
    for time in times {
        assert!(
            (now - 30.0..now + 1.0).contains(&(time as f64)),
            "{time} against {now}"
        );
    }
}

#[tokio::test]
async fn c9_a_takeover_after_a_kill_and_a_replay_keep_the_id() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::silence(), Script::status(400)]);
    database.endpoint("shop", &receiver.url("/hook")).await;
    let id = database.insert("shop", TEXT).await;
    let mut killed = Worker::spawn(&database, &["--name", "killed"]);
    receiver.wait_for_requests(1).await;

    killed.kill_9();
    database.wait_until_no_worker_is_connected().await;
    database
        .sql("update postrider.deliveries set lease_expires_at = now()")
        .await;
    let _heir = Worker::spawn(&database, &["--name", "heir"]);
    database.wait_for_status(id, "exhausted").await;
    let replay = format!("select postrider.replay({id})");
    assert!(database.value::<bool>(&replay).await);
    database.wait_for_status(id, "delivered").await;

    let requests = receiver.requests();
    assert_eq!(requests.len(), 3);
    assert_verified(&requests, &database.secret("shop").await, true);
    let ids = one(&requests, "webhook-id");
    assert_eq!(ids, vec![database.delivery(id).await.event_id; 3]);
    let attempts = database.attempts(id).await;
    let told: Vec<_> = attempts
        .iter()
        .map(|try_| {
            let worker = try_.worker.as_deref().unwrap_or_default();
            (try_.attempt_no, try_.outcome.as_str(), worker)
        })
        .collect();
    assert_eq!(
        told,
        [
            (1, "lost", "killed"),
            (2, "rejected", "heir"),
            (3, "delivered", "heir")
        ]
    );
}

#[tokio::test]
async fn c10_during_a_rotation_both_secrets_sign_and_the_newest_comes_first() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/hook")).await;
    let old = database.secret("shop").await;
    let _worker = Worker::spawn(&database, &[]);
    database.insert("shop", TEXT).await;
    receiver.wait_for_requests(1).await;

    let new: String = database
        .value("select postrider.rotate_secret('shop', '1 hour')")
        .await;
    database.insert("shop", TEXT).await;
    let requests = receiver.wait_for_requests(2).await;

    assert_verified(&requests, &old, true);
    assert_verified(&requests[..1], &new, false);
    assert_verified(&requests[1..], &new, true);
    let signatures = one(&requests[1..], "webhook-signature").concat();
    let signatures: Vec<_> = signatures.split(' ').collect();
    let [time, id] =
        ["webhook-timestamp", "webhook-id"].map(|name| one(&requests[1..], name).concat());
    let expected: Vec<_> = [&new, &old]
        .iter()
        .map(|secret| {
            let key = BASE64.decode(&secret["whsec_".len()..]).expect("base64");
            let message = format!("{id}.{time}.{TEXT}");
            format!("v1,{}", BASE64.encode(hmac(&key, &[message.as_bytes()])))
        })
        .collect();
    assert_eq!(signatures, expected);
}

#[tokio::test]
async fn c10_an_expired_secret_signs_no_more_though_nobody_edits_the_endpoint() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/hook")).await;
    let old = database.secret("shop").await;
    let _worker = Worker::spawn(&database, &[]);
    let new: String = database
        .value("select postrider.rotate_secret('shop', '1 s')")
        .await;
    database.insert("shop", TEXT).await;
    receiver.wait_for_requests(1).await;

    // Due just after the old secret's end, which the worker has to notice by itself.
    let after = "insert into postrider.deliveries (endpoint, event_type, payload, next_retry)
                 select endpoint, 'test.event', '{}', expires_at + interval '10 ms'
                   from postrider.endpoint_secrets where expires_at is not null";
    database.sql(after).await;
    let requests = receiver.wait_for_requests(2).await;

    assert_verified(&requests[..1], &old, true);
    assert_verified(&requests[1..], &old, false);
    assert_verified(&requests, &new, true);
    assert_eq!(one(&requests, "webhook-signature")[1].split(' ').count(), 1);
}

#[tokio::test]
async fn c10_an_edit_of_secrets_by_hand_reaches_the_next_try_of_a_row_that_waited() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::status(503)]);
    database.endpoint("shop", &receiver.url("/hook")).await;
    let old = database.secret("shop").await;
    let id = database.insert("shop", TEXT).await;
    let _worker = Worker::spawn(&database, &[]);
    database.wait_for_status(id, "failed").await;

    let mine = format!("whsec_{}", BASE64.encode([7; 24]));
    database
        .sql(&format!(
            "insert into postrider.endpoint_secrets (endpoint, secret, expires_at) values ('shop', '{mine}', 'infinity');
             update postrider.endpoint_secrets set expires_at = '-infinity' where secret = '{old}';
             update postrider.deliveries set next_retry = '-infinity';"
        ))
        .await;
    let requests = receiver.wait_for_requests(2).await;

    assert_verified(&requests[1..], &mine, true);
    assert_verified(&requests[1..], &old, false);
}

#[tokio::test]
async fn the_schemes_of_others_verify_as_their_receivers_do_on_first_tries_and_retries() {
    let database = Database::fresh().await;
    database.sql(AT_ONCE).await;
    let _worker = Worker::spawn(&database, &[]);
    let body: Vec<u8> = (0..=255).collect();

    for (scheme, header) in [
        ("github", "x-hub-signature-256"),
        ("stripe", "stripe-signature"),
        ("body-base64", "x-hmac-sha256"),
        ("body-base64", "x-shop-hmac"),
        ("none", ""),
    ] {
        let receiver = Receiver::start().await;
        receiver.script([Script::status(500)]);
        let name = format!("{scheme} {header}");
        let custom = (header == "x-shop-hmac").then_some("X-Shop-Hmac");
        database
            .endpoint(&name, &receiver.url("/hook"))
            .set("signature_scheme", scheme)
            .set("signature_header", custom)
            .set("retry_policy", "at once")
            .await;
        let old = database.secret(&name).await;
        let rotate = format!("select postrider.rotate_secret('{name}')");
        let new: String = database.value(&rotate).await;
        let id = database.insert_bytes(&name, &body).await;

        database.wait_for_status(id, "delivered").await;

        let requests = receiver.requests();
        assert_eq!(requests.len(), 2);
        assert_eq!(
            one(&requests, "webhook-id"),
            vec![database.delivery(id).await.event_id; 2]
        );
        for request in &requests {
            assert_eq!(request.body, body);
            let time = request.header("webhook-timestamp").concat();
            let by = |secret: &str, parts: &[&[u8]]| hmac(secret.as_bytes(), parts);
            let stamped = [time.as_bytes(), b".", &body];
            let expected = match scheme {
                "github" => vec![format!("sha256={}", hex(&by(&new, &[&body])))],
                "stripe" => vec![format!(
                    "t={time},v1={},v1={}",
                    hex(&by(&new, &stamped)),
                    hex(&by(&old, &stamped))
                )],
                "body-base64" => vec![BASE64.encode(by(&new, &[&body]))],
                _ => Vec::new(),
            };
            assert_eq!(request.header(header), expected, "{name}");
            let signed = request.header_names();
            let signed = signed
                .iter()
                .filter(|name| name.contains("signature") || name.contains("hmac"));
            assert_eq!(signed.count(), expected.len(), "{name}: nothing else signs");
        }
    }
}

#[tokio::test]
async fn a_signature_is_in_no_table() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::status(503)]);
    database.endpoint("shop", &receiver.url("/hook")).await;
    let id = database.insert("shop", TEXT).await;
    let _worker = Worker::spawn(&database, &[]);
    database.wait_for_status(id, "failed").await;

    let signature = one(&receiver.requests(), "webhook-signature").concat();
    let [attempt] = database.attempts(id).await.try_into().unwrap();

    let sent = attempt.request_headers.expect("they are on record");
    let recorded = |name: &str| {
        let pairs = sent.as_array().expect("pairs").iter();
        pairs
            .filter(|pair| pair[0] == name)
            .map(|pair| pair[1].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(recorded("webhook-signature"), ["***"]);
    assert_eq!(
        recorded("webhook-id"),
        [database.delivery(id).await.event_id]
    );
    let found: i64 = database
        .value(&format!(
            "select count(*) from postrider.attempts a where a::text like '%{}%'",
            &signature[3..]
        ))
        .await;
    assert_eq!(found, 0);
}

#[tokio::test]
async fn the_table_refuses_a_secret_that_cannot_sign() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let canonical = |bytes: usize| BASE64.encode(vec![0xff; bytes]);

    for bytes in [24, 25, 26, 64] {
        let insert = insert_secret(&canonical(bytes));
        database.sql(&insert).await;
    }
    for encoded in [
        canonical(23),
        canonical(65),
        canonical(24).replace('/', "_"),
        canonical(25).replace('=', ""),
        // Bits after the last byte, which strict decoders refuse.
        canonical(25).replace("w==", "x=="),
        canonical(26).replace("8=", "9="),
        format!("{}\n", canonical(24)),
        String::new(),
    ] {
        let refused = database
            .client()
            .batch_execute(&insert_secret(&encoded))
            .await;
        let error = refused.expect_err(&encoded);
        let constraint = error.as_db_error().and_then(|error| error.constraint());
        let rule = "endpoint_secrets_secret_is_whsec_and_base64_of_24_to_64_bytes";
        assert_eq!(constraint, Some(rule), "{encoded:?}: {error}");
    }
}

fn insert_secret(encoded: &str) -> String {
    format!(
        "insert into postrider.endpoint_secrets (endpoint, secret) values ('shop', 'whsec_{encoded}')"
    )
}
