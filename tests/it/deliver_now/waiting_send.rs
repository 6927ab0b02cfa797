use std::process::Output;

use serde_json::Value;

use super::*;
use crate::support::process::on;

async fn send(database: &Database, arguments: &[&str]) -> Output {
    let mut command = on(database, &["send"]);
    command.args(arguments);
    tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("it ends")
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn send_wait_prints_what_the_receiver_answers() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    receiver.script([
        Script::reply(200, &[], b"hello \x1b[31m\nthere"),
        Script::reply(202, &[], b"\xff"),
    ]);
    let _worker = idle_worker(&database).await;

    let text = send(&database, &["shop", "order.paid", "{\"b\": 1.0}", "--wait"]).await;
    let json = send(
        &database,
        &[
            "shop",
            "order.paid",
            "2",
            "--wait",
            "--timeout",
            "30s",
            "--json",
        ],
    )
    .await;

    assert_eq!(text.status.code(), Some(0), "{}", said(&text.stderr));
    assert_eq!(
        said(&text.stdout),
        "delivered, status 200\nhello \\u{1b}[31m\nthere\n"
    );
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["status_code"], 202);
    assert_eq!(json["response_body_base64"], "/w==");
    assert_eq!(bodies(&receiver), ["{\"b\": 1.0}", "2"]);
}

#[tokio::test]
async fn send_wait_fails_with_the_cause_and_the_next_step() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    receiver.script([Script::status(422), Script::status(503)]);

    let nobody = send(
        &database,
        &["shop", "t", "1", "--wait", "--timeout", "50ms"],
    )
    .await;
    let _worker = idle_worker(&database).await;
    let rejected = send(&database, &["shop", "t", "1", "--wait"]).await;
    let failed = send(&database, &["shop", "t", "1", "--wait"]).await;
    let unknown = send(&database, &["nobody", "t", "1", "--wait"]).await;

    for (output, cause, step) in [
        (nobody, "no worker took it", "postrider worker"),
        (rejected, "status 422", "refused again"),
        (failed, "status 503", "not tried again"),
        (unknown, "there is no endpoint nobody", "endpoint list"),
    ] {
        let text = said(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(cause) && text.contains(step), "{text}");
    }
}

#[tokio::test]
async fn send_wait_refuses_what_makes_no_sense_with_it() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;

    for more in [
        &["1", "--wait", "--in", "5s"][..],
        &["1", "--wait", "--deliver-at", "2030-01-31T08:00:00Z"],
        &["1", "--wait", "--max-retries", "3"],
        &["1", "--wait", "--event-id", "x"],
        &["1", "--wait", "--header", "X-A: 1"],
        &["--body", "/dev/null", "--wait"],
        &["1", "--timeout", "5s"],
        &["1", "--wait", "--timeout", "0s"],
        &["1", "--wait", "--timeout", "2h"],
        &["no json", "--wait"],
    ] {
        let output = send(&database, &[&["shop", "t"], more].concat()).await;
        let text = said(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {text}");
    }
    let rows: i64 = database
        .value("select count(*) from postrider.deliveries")
        .await;
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn send_wait_that_is_stopped_leaves_nothing_to_send() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let mut command = on(&database, &["send"]);
    command.args(["shop", "t", "1", "--wait", "--timeout", "1h"]);
    let mut waiting = Worker::run(command);
    let id = waited_for(&database).await;

    waiting.terminate();

    let status = waiting.wait().await;
    assert_eq!(status.code(), Some(1), "{}", waiting.said());
    assert!(
        waiting.said().contains("not tried again"),
        "{}",
        waiting.said()
    );
    let delivery = database.delivery(id).await;
    assert_eq!(delivery.exhausted_reason.as_deref(), Some("cancelled"));
    let _worker = Worker::spawn(&database, &[]);
    lane_is_served(&database, "shop").await;
    assert_eq!(bodies(&receiver), [r#"{"sentinel":1}"#]);
}
