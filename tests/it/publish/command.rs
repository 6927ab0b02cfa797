use std::process::Output;

use serde_json::Value;
use tokio::task::spawn_blocking;

use super::{endpoints, reached};
use crate::support::process::{on, postrider};
use crate::support::{Database, SOON};

async fn run(database: &Database, arguments: &[&str], stdin: &str) -> Output {
    let mut command = assert_cmd::Command::from_std(on(database, arguments));
    command.write_stdin(stdin).timeout(SOON);
    spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("it does not panic")
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[tokio::test]
async fn publish_says_the_event_and_how_many_get_it() {
    let database = Database::fresh().await;
    endpoints(
        &database,
        &[("a", "null"), ("b", "{order.*}"), ("c", "{x}")],
    )
    .await;

    let output = run(
        &database,
        &[
            "publish",
            "order.paid",
            "{\"b\": 1.00}",
            "--event-id",
            "e1",
            "--at",
            "2030-01-31T08:00:00Z",
            "--json",
        ],
        "",
    )
    .await;

    let (code, out, err) = said(&output);
    assert_eq!(code, Some(0), "{err}");
    let answer: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        answer,
        serde_json::json!({"event_id": "e1", "deliveries": 2})
    );
    assert!(err.contains("no worker is running"), "{err}");
    assert_eq!(reached(&database).await, "a b");
    let stored: String = database
        .value("select e.payload::text || ' ' || (d.next_retry = '2030-01-31T08:00:00Z')::text from postrider.events e join postrider.deliveries d on d.event = e.id limit 1")
        .await;
    assert_eq!(stored, "{\"b\": 1.00} true");
}

#[tokio::test]
async fn publish_reads_the_payload_from_a_file_or_stdin() {
    let database = Database::fresh().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("payload.json");
    std::fs::write(&file, "[1,\n\"from a file\"]\n").expect("written");
    let at_file = format!("@{}", file.display());

    for (payload, stdin, expected) in [
        (at_file.as_str(), "", "[1,\n\"from a file\"]\n"),
        ("-", "\"from stdin\"\n", "\"from stdin\"\n"),
        ("-1.50", "", "-1.50"),
    ] {
        let (code, out, err) = said(&run(&database, &["publish", "t", payload], stdin).await);

        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains("deliveries: 0"), "{out}");
        assert!(err.contains("no endpoint asks for it"), "{err}");
        let stored: String = database
            .value("select payload::text from postrider.events order by id desc limit 1")
            .await;
        assert_eq!(stored, expected);
    }
}

#[tokio::test]
async fn what_publish_cannot_take_exits_2_with_the_next_step() {
    let database = Database::fresh().await;
    let joint = if database.url().contains('?') {
        '&'
    } else {
        '?'
    };
    let url = format!("{}{joint}options=-cpostrider.tenant%3Da", database.url());

    for (arguments, what) in [
        (&["publish", "t", "{"][..], "not JSON"),
        (&["publish", "t", "@/nonexistent/file"], "cannot read"),
        (
            &["publish", "t", "1", "--event-id", ""],
            "an event_id has 1 to 500 bytes",
        ),
        (
            &["publish", "t", "1", "--tenant", "b"],
            "this event is of tenant",
        ),
        (&["publish", "t", "1", "--at", "tomorrow"], "--at"),
    ] {
        let mut command = assert_cmd::Command::from_std(postrider());
        command
            .args(arguments)
            .args(["--database-url", &url])
            .timeout(SOON);
        let output = spawn_blocking(move || command.output().expect("it runs"));
        let (code, _, err) = said(&output.await.expect("it does not panic"));
        assert_eq!(code, Some(2), "{arguments:?}: {err}");
        assert!(
            err.contains(what) && (err.contains("hint: ") || err.contains("write it like")),
            "{arguments:?}: {err}"
        );
    }
}

#[tokio::test]
async fn what_an_endpoint_asks_for_is_added_listed_and_shown() {
    let database = Database::fresh().await;

    let added = run(
        &database,
        &[
            "endpoint",
            "add",
            "http://127.0.0.1:1/",
            "--name",
            "shop",
            "--event-type",
            "order.*",
            "--event-type",
            "refund.made",
            "--filter",
            "$.total > 100",
            "--tenant",
            "a",
        ],
        "",
    )
    .await;
    assert_eq!(said(&added).0, Some(0), "{added:?}");

    let (_, list, _) = said(&run(&database, &["endpoint", "list"], "").await);
    assert!(list.contains("order.*, refund.made, filtered"), "{list}");
    let (_, list, _) = said(&run(&database, &["endpoint", "list", "--json"], "").await);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(
        list[0]["event_types"],
        serde_json::json!(["order.*", "refund.made"])
    );
    assert_eq!(
        (&list[0]["filter"], &list[0]["tenant"]),
        (&"($.\"total\" > 100)".into(), &"a".into())
    );
    let (_, shown, _) = said(&run(&database, &["endpoint", "show", "shop"], "").await);
    assert!(
        shown.contains("order.*, refund.made") && shown.contains("$.\"total\" > 100"),
        "{shown}"
    );

    let refused = run(
        &database,
        &[
            "endpoint",
            "add",
            "http://127.0.0.1:1/",
            "--event-type",
            "order*",
        ],
        "",
    )
    .await;
    let (code, _, err) = said(&refused);
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("event types are types or end in dot star"),
        "{err}"
    );
}
