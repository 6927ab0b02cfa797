use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;
use tokio::task::spawn_blocking;

use crate::support::process::{on, postrider};
use crate::support::{Database, SOON, wait_until};

/// Secret enough to be looked for.
const OWN_SECRET: &str = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";

/// What a command said and how it ended.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().expect("it was not killed"),
            out: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            err: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }

    #[track_caller]
    fn is(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// It failed in its own words and says what to do next.
    #[track_caller]
    fn fails(self, code: i32, with: &str) -> Self {
        let said = self.is(code);
        assert!(
            said.err.contains("error: ") && said.err.contains("hint: "),
            "{said:#?}"
        );
        assert!(said.err.contains(with), "no {with:?} in {said:#?}");
        said
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Runs a command to its end, without a terminal.
async fn run(database: &Database, arguments: &[&str]) -> Said {
    run_with_stdin(database, arguments, b"").await
}

async fn run_with_stdin(database: &Database, arguments: &[&str], stdin: &[u8]) -> Said {
    let mut command = Command::from_std(on(database, arguments));
    command.write_stdin(stdin).timeout(SOON);
    // The test's runtime has to drive its own sessions meanwhile.
    Said::of(
        spawn_blocking(move || command.output().expect("it runs"))
            .await
            .expect("it does not panic"),
    )
}

/// A finished delivery.
async fn exhausted(database: &Database, endpoint: &str, reason: &str) -> i64 {
    database
        .insert(endpoint, "{}")
        .set("status", "exhausted")
        .set("exhausted_reason", reason)
        .set("next_retry", Value::Null)
        .set("finished_at", "2020-01-01T00:00:00Z")
        .await
}

async fn in_flight(database: &Database, endpoint: &str) -> i64 {
    database
        .insert(endpoint, "{}")
        .set("lease_expires_at", "2999-01-01T00:00:00Z")
        .set("leased_by", "w1")
        .await
}

// ------------------------------------------------------------------ endpoint

#[tokio::test]
async fn a_new_endpoint_has_the_tables_defaults_unless_told() {
    let database = Database::fresh().await;
    database.endpoint("by_insert", "http://127.0.0.1:1/").await;

    run(
        &database,
        &[
            "endpoint",
            "add",
            "http://127.0.0.1:1/",
            "--name",
            "by_command",
        ],
    )
    .await
    .is(0);

    let columns = "to_jsonb(e) - '{name,revision,created_at,updated_at}'::text[]";
    let same: bool = database
        .value(&format!(
            "select count(distinct {columns}) = 1 and count(*) = 2 from postrider.endpoints e"
        ))
        .await;
    assert!(same);
}

#[tokio::test]
async fn every_setting_of_a_new_endpoint_reaches_the_table() {
    let database = Database::fresh().await;

    let said = run(
        &database,
        &[
            "endpoint",
            "add",
            "--url",
            "http://127.0.0.1:1/",
            "--name",
            "shop",
            "--policy",
            "once",
            "--max-retries",
            "3",
            "--timeout",
            "1m 500ms",
            "--max-in-flight",
            "2",
            "--rate-limit",
            "0.5",
            "--header",
            "X-A: b: c",
            "--scheme",
            "body-base64",
            "--signature-header",
            "X-Mac",
            "--method",
            "PUT",
            "--event-type",
            "order.*,a",
            "--tenant",
            "t",
            "--filter",
            "$.a == 1",
        ],
    )
    .await
    .is(0);

    let row: String = database
        .value(
            "select concat_ws(' ', name, url, retry_policy, max_retries, timeout, max_in_flight, rate_limit, headers,
                                   signature_scheme, signature_header, method, event_types, tenant, filter)
               from postrider.endpoints",
        )
        .await;
    assert_eq!(
        row,
        "shop http://127.0.0.1:1/ once 3 00:01:00.5 2 0.5 {\"X-A\": \"b: c\"} body-base64 X-Mac PUT {order.*,a} t ($.\"a\" == 1)"
    );
    assert!(
        said.out.contains(&database.secret("shop").await),
        "{said:?}"
    );
}

#[tokio::test]
async fn your_own_secret_replaces_the_generated_one() {
    let database = Database::fresh().await;
    let by_flag = [
        "endpoint",
        "add",
        "http://127.0.0.1:1/",
        "--name",
        "a",
        "--secret",
        OWN_SECRET,
        "--json",
    ];
    let mut by_variable = on(
        &database,
        &["endpoint", "add", "http://127.0.0.1:1/", "--name", "b"],
    );
    by_variable.env("POSTRIDER_SECRET", OWN_SECRET);

    let said = run(&database, &by_flag).await.is(0);
    Command::from_std(by_variable).assert().success();

    assert_eq!(said.json()["secret"], OWN_SECRET);
    let secrets: String = database
        .value("select string_agg(endpoint || ' ' || secret, ', ' order by endpoint) from postrider.endpoint_secrets")
        .await;
    assert_eq!(secrets, format!("a {OWN_SECRET}, b {OWN_SECRET}"));
}

#[tokio::test]
async fn an_endpoint_that_could_not_work_is_refused_before_it_is_added() {
    let database = Database::fresh().await;
    database.endpoint("taken", "http://127.0.0.1:1/").await;
    let url = "http://127.0.0.1:1/";
    let refused: &[(&[&str], i32, &str)] = &[
        (&["not a url"], 2, "the URL cannot be used"),
        (&["ftp://h/"], 2, "http or https"),
        (
            &[url, "--name", "taken"],
            1,
            "there is an endpoint taken already",
        ),
        (&[url, "--policy", "nope"], 2, "no retry policy nope"),
        (
            &[url, "--max-retries", "1001"],
            2,
            "max retries is between 0 and 1000",
        ),
        (
            &[url, "--timeout", "1ms"],
            2,
            "timeout is between 100 ms and 1 hour",
        ),
        (
            &[url, "--rate-limit", "0"],
            2,
            "rate limit is between a millionth and a million",
        ),
        (&[url, "--secret", "short"], 2, "24 to 64 bytes"),
        (&[url, "--filter", "$.a ==="], 2, "jsonpath"),
        (&[url, "--header", "no colon"], 2, "colon"),
        (
            &[url, "--header", "X Y: z"],
            2,
            "name that HTTP does not allow",
        ),
        (
            &[url, "--signature-header", "X"],
            2,
            "signature header goes with body base64",
        ),
    ];

    for (arguments, code, words) in refused {
        run(&database, &[&["endpoint", "add"], *arguments].concat())
            .await
            .fails(*code, words);
    }

    assert_eq!(
        database
            .value::<i64>("select count(*) from postrider.endpoints")
            .await,
        1
    );
}

#[tokio::test]
async fn c16_secrets_are_printed_when_they_are_made_and_never_again() {
    let database = Database::fresh().await;
    let add = [
        "endpoint",
        "add",
        "https://user:s3cret@127.0.0.1/in?token=s3cret#s3cret",
        "--name",
        "a",
        "--header",
        "Authorization: Bearer s3cret",
        "--secret",
        OWN_SECRET,
    ];
    run(&database, &add).await.is(0);
    let rotated = run(&database, &["endpoint", "rotate-secret", "a"])
        .await
        .is(0);
    let id = database
        .insert("a", "{}")
        .set("headers", serde_json::json!({"X-Key": "s3cret"}))
        .await
        .to_string();
    let fresh = database.secret("a").await;
    assert!(rotated.out.contains(&fresh), "{rotated:?}");

    for command in [
        &["endpoint", "list"][..],
        &["endpoint", "show", "a"],
        &["delivery", "list"],
        &["delivery", "show", &id, "--full"],
        &["watches"],
        &["prune"],
        &["prune", "--dry-run"],
        &["stats"],
    ] {
        for format in [&[][..], &["--json"]] {
            if command.contains(&"--full") && !format.is_empty() {
                continue;
            }
            let said = run(&database, &[command, format].concat()).await.is(0);
            for secret in ["s3cret", "whsec_", OWN_SECRET, &fresh] {
                assert!(
                    !said.out.contains(secret) && !said.err.contains(secret),
                    "{command:?}: {said:#?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_rotation_keeps_the_old_secret_for_the_overlap() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;

    run(
        &database,
        &["endpoint", "rotate-secret", "a", "--overlap", "2h"],
    )
    .await
    .is(0);

    let shown = run(&database, &["endpoint", "show", "a", "--json"])
        .await
        .json();
    assert_eq!(
        shown["secrets"].as_array().map(Vec::len),
        Some(2),
        "{shown}"
    );
    assert!(
        shown["secrets"][0]["expires_at"].is_null() && shown["secrets"][1]["live"] == true,
        "{shown}"
    );
    let left: f64 = database
        .value(
            "select extract(epoch from expires_at - now())::float8 from postrider.endpoint_secrets
              where expires_at is not null",
        )
        .await;
    assert!((7000.0..=7200.0).contains(&left), "{left}");
}

#[tokio::test]
async fn pause_resume_disable_and_enable_say_and_do_it() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    let state = "select concat_ws(' ', enabled, paused, paused_reason, disabled_reason) from postrider.endpoints";

    for (arguments, holds) in [
        (
            &["endpoint", "pause", "a", "--reason", "storm"][..],
            "t t storm",
        ),
        (&["endpoint", "resume", "a"], "t f"),
        (
            &["endpoint", "disable", "a", "--reason", "moved"],
            "f f moved",
        ),
        (&["endpoint", "enable", "a"], "t f"),
    ] {
        let said = run(&database, arguments).await.is(0);

        assert!(said.out.starts_with("endpoint a is "), "{said:?}");
        assert_eq!(
            database.value::<String>(state).await,
            holds,
            "{arguments:?}"
        );
    }
}

#[tokio::test]
async fn an_unknown_endpoint_is_named_by_every_command_that_takes_one() {
    let database = Database::fresh().await;
    let commands: &[&[&str]] = &[
        &["endpoint", "show", "nobody"],
        &["endpoint", "pause", "nobody"],
        &["endpoint", "resume", "nobody"],
        &["endpoint", "enable", "nobody"],
        &["endpoint", "disable", "nobody"],
        &["endpoint", "rotate-secret", "nobody"],
        &["endpoint", "test", "nobody"],
        &["send", "nobody", "a", "1"],
        &["delivery", "list", "--endpoint", "nobody"],
        &["replay", "--endpoint", "nobody", "--yes"],
        &["stats", "--endpoint", "nobody"],
    ];

    for command in commands {
        run(&database, command)
            .await
            .fails(1, "there is no endpoint nobody");
    }
}

/// Plays the worker: waits for the test's row, then finishes it with one try.
async fn answer_the_test(database: &Database, status: &str, reason: &str, code: i32) {
    let count = "select count(*) from postrider.deliveries where event_type = 'postrider.test' and max_retries = 0";
    let look = async || database.value::<i64>(count).await;
    wait_until("the test is queued", look, |found| *found == 1, SOON).await;
    let outcome = if status == "delivered" {
        "delivered"
    } else {
        "rejected"
    };
    database
        .sql(&format!(
            "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, status_code)
               select now(), id, 1, 1, endpoint, '{outcome}', {code} from postrider.deliveries;
             update postrider.deliveries
                set status = '{status}', exhausted_reason = {reason}, next_retry = null, finished_at = now(),
                    attempt_count = 1, last_status_code = {code}"
        ))
        .await;
}

#[tokio::test]
async fn a_test_that_is_delivered_exits_0_and_shows_the_try() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;

    let (said, ()) = tokio::join!(
        run(&database, &["endpoint", "test", "a"]),
        answer_the_test(&database, "delivered", "null", 204)
    );

    let said = said.is(0);
    assert!(
        said.out.contains("delivered") && said.out.contains("204"),
        "{said:#?}"
    );
    assert!(said.err.contains("no worker is running"), "{said:#?}");
}

#[tokio::test]
async fn a_test_that_is_refused_exits_1() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;

    let (said, ()) = tokio::join!(
        run(&database, &["endpoint", "test", "a", "--json"]),
        answer_the_test(&database, "exhausted", "'rejected'", 404)
    );

    let said = said.fails(1, "the receiver answered 404");
    assert_eq!(said.json()["attempts"][0]["status_code"], 404);
}

#[tokio::test]
async fn a_test_without_a_result_says_what_is_missing() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    database
        .endpoint("paused", "http://127.0.0.1:1/")
        .set("paused", true)
        .await;
    database
        .endpoint("off", "http://127.0.0.1:1/")
        .set("enabled", false)
        .await;

    run(&database, &["endpoint", "test", "a", "--timeout", "1ms"])
        .await
        .fails(1, "no worker is running");
    run(&database, &["endpoint", "test", "paused"])
        .await
        .fails(1, "is paused");
    run(&database, &["endpoint", "test", "off"])
        .await
        .fails(1, "is disabled");

    assert_eq!(
        database
            .value::<i64>("select count(*) from postrider.deliveries")
            .await,
        1
    );
}

// ------------------------------------------------------------------ send

#[tokio::test]
async fn c2_a_payload_is_stored_to_the_byte_whatever_way_it_comes() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("payload.json");
    let file = path.to_str().expect("UTF-8");
    let payloads = [
        r#"{"b":1,"a":2}"#,
        r#"{"a":1,"a":2}"#,
        "1.0",
        " 1.00",
        "1e2",
        "{\n  \"b\": 1.00,\n  \"a\": \"\\u0000 é\"\n}\n",
        "[1,2]\r\n\t",
        "-12345678901234567.00000000000000000000000001",
    ];

    for payload in payloads {
        std::fs::write(file, payload).expect("it is written");
        let ways = [
            run(&database, &["send", "a", "t", "--json", payload]).await,
            run(&database, &["send", "a", "t", "--json", "--file", file]).await,
            run_with_stdin(
                &database,
                &["send", "a", "t", "--json", "-"],
                payload.as_bytes(),
            )
            .await,
        ];
        for said in ways {
            let id = said.is(0).json()["id"].as_i64().expect("a number");
            let stored: String = database
                .value(&format!(
                    "select payload::text from postrider.deliveries where id = {id}"
                ))
                .await;
            assert_eq!(stored, payload);
            let shown = run(&database, &["delivery", "show", &id.to_string(), "--json"])
                .await
                .json();
            assert_eq!(shown["payload"], payload);
        }
    }
}

#[tokio::test]
async fn any_bytes_go_in_with_their_media_type() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    let send = [
        "send",
        "a",
        "t",
        "--body",
        "-",
        "--content-type",
        "image/png",
    ];

    run_with_stdin(&database, &send, b"\x89PNG\0\xff")
        .await
        .is(0);

    let stored: String = database
        .value("select encode(body, 'hex') || ' ' || content_type from postrider.deliveries")
        .await;
    assert_eq!(stored, "89504e4700ff image/png");
    let shown = run(&database, &["delivery", "show", "1", "--json"])
        .await
        .json();
    assert_eq!(shown["body_base64"], "iVBORwD/");
    assert_eq!(shown["content_bytes"], 6);
}

#[tokio::test]
async fn what_is_said_of_a_delivery_reaches_its_row() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    let later = [
        "send",
        "a",
        "t",
        "1",
        "--event-id",
        "e1",
        "--in",
        "1h",
        "--max-retries",
        "0",
        "--header",
        "X-A: b",
    ];

    let said = run(&database, &later).await.is(0);
    run(
        &database,
        &[
            "send",
            "a",
            "t",
            "1",
            "--deliver-at",
            "2100-01-01T00:00:00+02:00",
        ],
    )
    .await
    .is(0);

    assert_eq!(said.out, "queued delivery 1, event id e1\n");
    let row = database.delivery(1).await;
    assert!(
        row.due_in
            .is_some_and(|due| (3500.0..=3600.0).contains(&due)),
        "{row:?}"
    );
    assert_eq!((row.event_id.as_str(), row.max_retries), ("e1", Some(0)));
    let more: String = database
        .value(
            "select concat_ws(' ', (select headers from postrider.deliveries where id = 1),
                    (select next_retry at time zone 'utc' from postrider.deliveries where id = 2))",
        )
        .await;
    assert_eq!(more, r#"{"X-A": "b"} 2099-12-31 22:00:00"#);
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_with_its_reason() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    run(&database, &["send", "a", "t", "1", "--event-id", "e1"])
        .await
        .is(0);

    run(&database, &["send", "a", "t", "{\"a\":oops}"])
        .await
        .fails(2, "Token \"oops\" is invalid");
    run(&database, &["send", "a", "t", "2", "--event-id", "e1"])
        .await
        .fails(1, "this event id already: a, e1");
    run(&database, &["send", "a", "t", "1", "--max-retries", "-1"])
        .await
        .is(2);
    run(&database, &["send", "a", "t", "1", "--max-retries", "1001"])
        .await
        .fails(2, "between 0 and 1000");
    run(&database, &["send", "a", "t", "1", "--event-id", ""])
        .await
        .fails(2, "event id is 1 to 500 bytes");
    run(&database, &["send", "a", "t", "--file", "/nowhere/x"])
        .await
        .fails(2, "cannot read /nowhere/x");
    run_with_stdin(&database, &["send", "a", "t", "-"], b"\"\xff\"")
        .await
        .fails(2, "not UTF-8");
    run(
        &database,
        &["send", "a", "t", "1", "--deliver-at", "infinity"],
    )
    .await
    .is(2);
    run(
        &database,
        &[
            "send",
            "a",
            "t",
            "1",
            "--in",
            "1h",
            "--deliver-at",
            "2100-01-01T00:00:00Z",
        ],
    )
    .await
    .is(2);
    run(&database, &["send", "a", "t"]).await.is(2);

    assert_eq!(
        database
            .value::<i64>("select count(*) from postrider.deliveries")
            .await,
        1
    );
}

#[tokio::test]
async fn send_says_what_keeps_a_delivery_waiting() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    database
        .endpoint("paused", "http://127.0.0.1:1/")
        .set("paused", true)
        .await;
    database
        .endpoint("off", "http://127.0.0.1:1/")
        .set("enabled", false)
        .await;

    for (arguments, words) in [
        (&["send", "a", "t", "1"][..], "no worker is running"),
        (&["send", "a", "t", "1", "--in", "1h"], "it is due at 2"),
        (&["send", "paused", "t", "1"], "is paused"),
        (&["send", "off", "t", "1"], "is disabled"),
    ] {
        let said = run(&database, arguments).await.is(0);
        assert!(said.err.contains(words), "{said:#?}");
    }
    database
        .sql("insert into postrider.workers (id, hostname, pid, version) values ('w', 'h', 1, '0')")
        .await;
    assert_eq!(run(&database, &["send", "a", "t", "1"]).await.is(0).err, "");
}

// ------------------------------------------------------------------ delivery

#[tokio::test]
async fn a_list_is_newest_first_filtered_and_goes_on_page_by_page() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    database.endpoint("b", "http://127.0.0.1:1/").await;
    let first = database.insert("a", "{}").await;
    let gone = exhausted(&database, "a", "gone").await;
    let other = database
        .insert("b", "{}")
        .set("event_type", "x")
        .set("next_retry", "infinity")
        .await;
    let ids = async |filter: &[&str]| {
        let said = run(
            &database,
            &[&["delivery", "list", "--json"], filter].concat(),
        )
        .await
        .is(0);
        let rows = said.json();
        rows.as_array()
            .expect("an array")
            .iter()
            .map(|row| row["id"].as_i64().expect("a number"))
            .collect::<Vec<_>>()
    };

    assert_eq!(ids(&[]).await, [other, gone, first]);
    assert_eq!(ids(&["--limit", "1"]).await, [other]);
    assert_eq!(
        ids(&["--limit", "1", "--before", &other.to_string()]).await,
        [gone]
    );
    assert_eq!(ids(&["--status", "exhausted"]).await, [gone]);
    assert_eq!(ids(&["--reason", "gone"]).await, [gone]);
    assert_eq!(
        ids(&["--endpoint", "a", "--status", "queued"]).await,
        [first]
    );
    assert_eq!(ids(&["--event-type", "x"]).await, [other]);
    assert_eq!(ids(&["--reason", "lost"]).await, [0_i64; 0]);
    run(&database, &["delivery", "list", "--status", "sending"])
        .await
        .is(2);
    run(&database, &["delivery", "list", "--limit", "0"])
        .await
        .is(2);

    let said = run(&database, &["delivery", "list", "--limit", "2"])
        .await
        .is(0);
    assert!(said.err.contains(&format!("--before {gone}")), "{said:#?}");
    assert!(
        said.out.contains("infinity") && said.out.contains("exhausted: gone"),
        "{said:#?}"
    );
}

#[tokio::test]
async fn a_delivery_is_shown_with_every_try_by_either_id() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    database.endpoint("b", "http://127.0.0.1:1/").await;
    let id = database
        .insert("a", "{\"a\":1.00}\n")
        .set("event_id", "e1")
        .set("next_retry", "infinity")
        .await;
    database.insert("a", "{}").set("event_id", "e2").await;
    database.insert("b", "{}").set("event_id", "e2").await;
    database
        .sql(&format!(
            "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, status_code,
                 error_kind, error, duration_ms, response_body, response_headers, next_retry, worker)
               values (now() - interval '1 s', {id}, 2, 1, 'a', 'retry', 503, null, 'HTTP 503', 12, '\\x0001fffe',
                       '[[\"a\", \"1.00\"]]', '2100-01-01T00:00:00Z', 'w1'),
                      (now(), {id}, 4, 2, 'a', 'lost', null, 'lost', 'its worker never reported', null, null, null, null, 'w2')"
        ))
        .await;

    let said = run(&database, &["delivery", "show", "e1", "--json"])
        .await
        .is(0)
        .json();

    assert_eq!(said["id"], id);
    assert_eq!(said["payload"], "{\"a\":1.00}\n");
    assert_eq!(said["next_retry"], "infinity");
    let tries = said["attempts"].as_array().expect("an array");
    let outcomes: Vec<_> = tries.iter().map(|attempt| &attempt["outcome"]).collect();
    assert_eq!(outcomes, ["retry", "lost"]);
    assert_eq!(tries[0]["response_body_base64"], "AAH//g==");
    assert_eq!(tries[0]["next_retry"], "2100-01-01T00:00:00.000Z");
    assert_eq!(tries[1]["duration_ms"], Value::Null);
    let text = run(&database, &["delivery", "show", &id.to_string(), "--full"])
        .await
        .is(0)
        .out;
    for word in [
        "503",
        "12 ms",
        "retry at 2100-01-01",
        "lost: its worker never reported",
        "no retry",
        "base64: AAH//g==",
    ] {
        assert!(text.contains(word), "no {word:?} in\n{text}");
    }
    run(&database, &["delivery", "show", "e2"])
        .await
        .fails(1, "several endpoints");
    run(&database, &["delivery", "show", "nothing"])
        .await
        .fails(1, "there is no delivery nothing");
    run(&database, &["delivery", "show", "99999"])
        .await
        .fails(1, "there is no delivery 99999");
}

#[tokio::test]
async fn a_long_payload_is_cut_unless_asked_for() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    let payload = format!("\"{}\"", "é".repeat(3000));
    let id = database.insert("a", &payload).await.to_string();

    let short = run(&database, &["delivery", "show", &id]).await.is(0).out;
    let full = run(&database, &["delivery", "show", &id, "--full"])
        .await
        .is(0)
        .out;
    let json = run(&database, &["delivery", "show", &id, "--json"])
        .await
        .json();

    assert!(
        short.contains("6002 bytes") && short.contains("--full") && !short.contains(&payload),
        "{short}"
    );
    assert!(
        full.contains(&payload) && !full.contains("cut here"),
        "{full}"
    );
    assert_eq!(json["payload"], payload);
}

#[tokio::test]
async fn nothing_that_is_shown_can_steer_a_terminal() {
    let database = Database::fresh().await;
    database
        .endpoint("a", "http://127.0.0.1:1/")
        .set("tenant", "\u{1b}[31mred\u{9b}1m")
        .await;
    let id = database
        .insert("a", "\"\u{9b}31m \u{202e}\u{7f}\"")
        .set("event_type", "x\u{1b}]0;title\u{7}")
        .set("event_id", "e\r\u{1b}[2K")
        .set("last_error", "\u{1b}[1A\u{85}")
        .await
        .to_string();

    for command in [
        &["endpoint", "list"][..],
        &["endpoint", "show", "a"],
        &["delivery", "list"],
        &["delivery", "show", &id],
        &["delivery", "show", "\u{1b}[31m"],
    ] {
        for format in [&[][..], &["--json"]] {
            let said = run(&database, &[command, format].concat()).await;
            let harmful = |c: &char| (c.is_control() && *c != '\n') || *c == '\u{202e}';
            assert_eq!(
                said.out.chars().chain(said.err.chars()).find(harmful),
                None,
                "{command:?} {said:#?}"
            );
        }
    }
    let json = run(&database, &["delivery", "show", &id, "--json"])
        .await
        .json();
    assert_eq!(
        json["payload"], "\"\u{9b}31m \u{202e}\u{7f}\"",
        "programs get the very text"
    );
}

#[tokio::test]
async fn open_deliveries_are_cancelled_and_others_are_not() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    let open = database.insert("a", "{}").await;
    let ended = exhausted(&database, "a", "gone").await;
    let (open_id, ended_id) = (open.to_string(), ended.to_string());

    let said = run(
        &database,
        &["delivery", "cancel", &ended_id, "777", &open_id],
    )
    .await;

    let said = said.fails(1, "2 of 3 deliveries were not cancelled");
    assert_eq!(said.out, format!("delivery {open}: cancelled\n"));
    assert_eq!(
        database.delivery(open).await.exhausted_reason.as_deref(),
        Some("cancelled")
    );
    let again = run(&database, &["delivery", "cancel", &open_id])
        .await
        .is(0);
    assert_eq!(
        again.out,
        format!("delivery {open}: was cancelled before\n")
    );
    run(&database, &["delivery", "cancel", &ended_id])
        .await
        .fails(1, "already exhausted");
    run(&database, &["delivery", "cancel", "777"])
        .await
        .fails(1, "there is no delivery 777");
}

// ------------------------------------------------------------------ replay

#[tokio::test]
async fn c34_a_replay_keeps_the_event_id_and_a_row_in_flight_says_no() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    database
        .endpoint("off", "http://127.0.0.1:1/")
        .set("enabled", false)
        .await;
    let ended = exhausted(&database, "a", "gone").await;
    let delivered = database
        .insert("a", "{}")
        .set("status", "delivered")
        .set("next_retry", Value::Null)
        .set("finished_at", "2020-01-01T00:00:00Z")
        .await;
    let flying = in_flight(&database, "a").await;
    let off = exhausted(&database, "off", "endpoint_disabled").await;
    let before = [
        database.delivery(ended).await.event_id,
        database.delivery(delivered).await.event_id,
    ];

    let both = run(
        &database,
        &["replay", &ended.to_string(), &delivered.to_string()],
    )
    .await
    .is(0);
    let twice = run(&database, &["replay", &ended.to_string()]).await.is(0);

    assert_eq!(
        both.out,
        format!("delivery {ended}: queued again\ndelivery {delivered}: queued again\n")
    );
    assert_eq!(twice.out, format!("delivery {ended}: is open anyway\n"));
    let (first, second) = (
        database.delivery(ended).await,
        database.delivery(delivered).await,
    );
    assert_eq!([first.event_id, second.event_id], before);
    assert_eq!(
        (first.status.as_str(), first.claim_no, second.claim_no),
        ("queued", 1, 1)
    );
    run(&database, &["replay", &flying.to_string()])
        .await
        .fails(1, "is in flight");
    run(&database, &["replay", &off.to_string()])
        .await
        .fails(1, "is disabled");
    run(&database, &["replay", "777"])
        .await
        .fails(1, "there is no delivery 777");
    let some = run(
        &database,
        &["replay", &flying.to_string(), &ended.to_string()],
    )
    .await;
    some.fails(1, "1 of 2 deliveries were not queued again");
    assert_eq!(database.delivery(flying).await.claim_no, 0);
}

#[tokio::test]
async fn c50_a_replay_by_filter_takes_what_matches_and_nothing_else() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    database.endpoint("b", "http://127.0.0.1:1/").await;
    database
        .endpoint("off", "http://127.0.0.1:1/")
        .set("enabled", false)
        .await;
    let gone = exhausted(&database, "a", "gone").await;
    let rejected = exhausted(&database, "a", "rejected").await;
    let elsewhere = exhausted(&database, "b", "gone").await;
    let off = exhausted(&database, "off", "gone").await;

    let said = run(
        &database,
        &["replay", "--endpoint", "a", "--reason", "gone", "--yes"],
    )
    .await
    .is(0);

    assert_eq!(said.out, "1 finished deliveries match\n1 queued again\n");
    assert_eq!(database.delivery(gone).await.status, "queued");
    for untouched in [rejected, elsewhere, off] {
        assert_eq!(database.delivery(untouched).await.status, "exhausted");
    }
    let rest = run(&database, &["replay", "--status", "exhausted", "--yes"])
        .await
        .is(0);
    assert!(
        rest.out.contains("2 queued again") && rest.err.contains("1 more belong to disabled"),
        "{rest:#?}"
    );
}

#[tokio::test]
async fn a_replay_by_filter_asks_first_and_a_script_has_to_say_yes() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    let ids = [
        exhausted(&database, "a", "gone").await,
        exhausted(&database, "a", "gone").await,
    ];

    run(&database, &["replay", "--reason", "gone"])
        .await
        .fails(2, "--yes");
    let dry = run(&database, &["replay", "--reason", "gone", "--dry-run"])
        .await
        .is(0);
    assert_eq!(dry.out, "2 finished deliveries match\n");
    for id in ids {
        assert_eq!(database.delivery(id).await.status, "exhausted");
    }
    run(&database, &["replay"]).await.is(2);
    run(&database, &["replay", "1", "--endpoint", "a"])
        .await
        .is(2);

    let one = run(
        &database,
        &["replay", "--reason", "gone", "--limit", "1", "--yes"],
    )
    .await
    .is(0);
    assert!(one.out.contains("the oldest 1 of them"), "{one:#?}");
    assert_eq!(database.delivery(ids[0]).await.status, "queued");
    assert_eq!(database.delivery(ids[1]).await.status, "exhausted");
}

#[tokio::test]
async fn a_replay_by_time_takes_moments_and_ages() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    exhausted(&database, "a", "gone").await;
    let young = exhausted(&database, "a", "gone").await;
    database
        .sql(&format!("update postrider.deliveries set finished_at = now() - interval '2 h' where id = {young}"))
        .await;
    let count = async |filter: &[&str]| {
        let said = run(&database, &[&["replay", "--dry-run"], filter].concat())
            .await
            .is(0);
        said.out
            .split(' ')
            .next()
            .map(str::to_owned)
            .unwrap_or_default()
    };

    assert_eq!(count(&["--since", "2019-12-31T23:59:59Z"]).await, "2");
    assert_eq!(count(&["--since", "3h"]).await, "1");
    assert_eq!(count(&["--since", "1h"]).await, "0");
    assert_eq!(count(&["--until", "3h"]).await, "1");
    assert_eq!(count(&["--since", "3h", "--until", "1h"]).await, "1");
    assert_eq!(count(&["--until", "2020-01-01T00:00:00Z"]).await, "0");
    assert_eq!(count(&["--until", "2999-01-01T00:00:00Z"]).await, "2");
    run(&database, &["replay", "--since", "yesterday", "--yes"])
        .await
        .is(2);
}

#[tokio::test]
async fn many_are_replayed_in_batches_and_what_fails_again_meanwhile_is_left_alone() {
    let database = Database::private().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    // Whatever is queued again fails at once, as a fast worker before a dead receiver would see to.
    database
        .sql(
            "insert into postrider.deliveries (endpoint, event_type, payload, status, exhausted_reason, next_retry, finished_at)
               select 'a', 't', '1', 'exhausted', 'rejected', null, now() from generate_series(1, 2500);
             create function fail_again() returns trigger language plpgsql as $$
               begin
                 new.status := 'exhausted'; new.exhausted_reason := 'rejected';
                 new.next_retry := null; new.finished_at := clock_timestamp();
                 return new;
               end $$;
             create trigger fail_again before update on postrider.deliveries for each row execute function fail_again();",
        )
        .await;

    let said = run(&database, &["replay", "--reason", "rejected", "--yes"])
        .await
        .is(0);

    assert_eq!(
        said.out,
        "2500 finished deliveries match\n2500 queued again\n"
    );
    let once: i64 = database
        .value("select count(*) from postrider.deliveries where claim_no = 1")
        .await;
    assert_eq!(once, 2500);
}

#[tokio::test]
async fn what_somebody_else_holds_is_reported_as_not_replayed() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    let held = exhausted(&database, "a", "gone").await;
    exhausted(&database, "a", "gone").await;
    let other = database.connect().await;
    other
        .batch_execute(&format!(
            "begin; select from postrider.deliveries where id = {held} for update"
        ))
        .await
        .expect("a lock");

    let said = run(&database, &["replay", "--reason", "gone", "--yes"]).await;

    let said = said.fails(1, "1 of 2 were not replayed");
    assert!(said.out.contains("1 queued again"), "{said:#?}");
}

// ------------------------------------------------------------------ stats

#[tokio::test]
async fn stats_count_the_window_and_what_waits() {
    let database = Database::fresh().await;
    database.endpoint("a", "http://127.0.0.1:1/").await;
    database.endpoint("b", "http://127.0.0.1:1/").await;
    exhausted(&database, "a", "gone").await;
    database
        .insert("a", "{}")
        .set("next_retry", "-infinity")
        .await;
    database
        .insert("b", "{}")
        .set("created_at", "2020-01-01T00:00:00Z")
        .await;
    database
        .sql(
            "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, duration_ms)
               select now() - interval '1 h', 1, n, n, 'a', case n when 3 then 'delivered' else 'retry' end, n * 2
                 from generate_series(1, 3) as n;
             insert into postrider.workers (id, hostname, pid, version) values ('w', 'h', 1, '0');
             insert into postrider.workers (id, hostname, pid, version, last_seen_at)
               values ('dead', 'h', 1, '0', now() - interval '1 h')",
        )
        .await;

    let all = run(&database, &["stats", "--json"]).await.is(0).json();

    assert_eq!(
        all["deliveries"],
        serde_json::json!([
            {"status": "exhausted", "exhausted_reason": "gone", "count": 1},
            {"status": "queued", "exhausted_reason": null, "count": 1},
        ])
    );
    assert_eq!(
        (&all["due"], &all["oldest_due"], &all["workers_alive"]),
        (&2.into(), &"-infinity".into(), &1.into())
    );
    let rate = &all["endpoints"][0];
    assert_eq!(
        (&rate["tries"], &rate["delivered_tries"], &rate["p50_ms"]),
        (&3.into(), &1.into(), &4.0.into())
    );
    let by_view: f64 = database
        .value("select success_percent::float8 from postrider.success_rate")
        .await;
    assert_eq!(rate["success_percent"], by_view);
    let of_b = run(
        &database,
        &["stats", "--json", "--endpoint", "b", "--hours", "0.5"],
    )
    .await
    .json();
    assert_eq!(
        (&of_b["due"], &of_b["deliveries"], &of_b["endpoints"]),
        (&1.into(), &Value::Array(vec![]), &Value::Array(vec![]))
    );
    let text = run(&database, &["stats"]).await.is(0).out;
    assert!(
        text.contains("in the last 24 hours") && text.contains("33.33"),
        "{text}"
    );
    for hours in ["0", "-1", "NaN", "inf", "1e9"] {
        run(&database, &["stats", &format!("--hours={hours}")])
            .await
            .fails(2, "--hours must be");
    }
}

// ------------------------------------------------------------------ what any of them does when it cannot

const ALL: &[&[&str]] = &[
    &["endpoint", "add", "http://127.0.0.1:1/"],
    &["endpoint", "list"],
    &["endpoint", "show", "a"],
    &["endpoint", "pause", "a"],
    &["endpoint", "resume", "a"],
    &["endpoint", "enable", "a"],
    &["endpoint", "disable", "a"],
    &["endpoint", "rotate-secret", "a"],
    &["endpoint", "test", "a"],
    &["send", "a", "t", "1"],
    &["publish", "t", "1"],
    &["delivery", "list"],
    &["delivery", "show", "1"],
    &["delivery", "show", "e1"],
    &["delivery", "cancel", "1"],
    &["delivery", "cancel", "1", "2"],
    &["replay", "1"],
    &["replay", "1", "2"],
    &["replay", "--endpoint", "a", "--yes"],
    &["replay", "--endpoint", "a"],
    &["delivery", "cancel", "--endpoint", "a"],
    &["endpoint", "skip", "a"],
    &["send", "a", "t", "1", "--wait"],
    &["watch", "orders"],
    &["unwatch", "a"],
    &["watches"],
    &["prune"],
    &["prune", "--dry-run"],
    &["stats"],
    &["stats", "--endpoint", "a"],
];

/// Every command on a database that it cannot use says the next step and nothing else.
#[track_caller]
fn each_fails(url: &str, code: i32) {
    for arguments in ALL {
        let mut command = postrider();
        command.args(*arguments).args(["--database-url", url]);

        let output = Command::from_std(command)
            .timeout(SOON)
            .output()
            .expect("it runs");

        let said = Said::of(output).fails(code, "");
        assert_eq!(said.out, "", "{arguments:?} {said:#?}");
    }
}

#[test]
fn c46_a_bad_url_exits_2_and_says_the_next_step() {
    each_fails("nonsense://h/d", 2);
}

#[test]
fn c46_a_database_that_is_down_exits_3_and_says_the_next_step() {
    each_fails("postgresql://nobody@127.0.0.1:1/nothing", 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn c46_a_database_without_the_schema_exits_4_and_says_the_next_step() {
    let database = Database::private().await;
    database.sql("drop schema postrider cascade").await;

    tokio::task::block_in_place(|| each_fails(database.url(), 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn c46_a_schema_of_another_version_exits_4_and_says_the_next_step() {
    let database = Database::private().await;
    database
        .sql("update postrider.schema_migrations set version = version + 1000")
        .await;

    tokio::task::block_in_place(|| each_fails(database.url(), 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn c46_a_role_without_privileges_exits_5_and_says_the_next_step() {
    let database = Database::fresh().await;
    let role = format!("{}_nobody", database.name());
    database.sql(&format!("create role {role}")).await;
    let joint = if database.url().contains('?') {
        '&'
    } else {
        '?'
    };
    let url = format!("{}{joint}options=-crole%3D{role}", database.url());

    tokio::task::block_in_place(|| each_fails(&url, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn c46_a_role_that_may_only_read_the_schemas_version_exits_5_and_says_the_next_step() {
    let database = Database::fresh().await;
    let role = format!("{}_nobody", database.name());
    database
        .sql(&format!(
            "create role {role};
             grant usage on schema postrider to {role};
             grant select on postrider.schema_migrations to {role}"
        ))
        .await;
    let joint = if database.url().contains('?') {
        '&'
    } else {
        '?'
    };
    let url = format!("{}{joint}options=-crole%3D{role}", database.url());

    tokio::task::block_in_place(|| each_fails(&url, 5));
}

// ------------------------------------------------------------------ the statements

#[tokio::test]
async fn every_statement_of_the_operator_states_its_parameters_as_postgresql_takes_them() {
    let database = Database::fresh().await;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/operator");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("UTF-8");
        let stated: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("--   $"))
            .map(|line| {
                let words: Vec<_> = line.split_whitespace().skip(1).collect();
                let two = words.get(1).is_some_and(|second| *second == "precision");
                words[..if two { 2 } else { 1 }].join(" ")
            })
            .collect();

        let statement = database
            .client()
            .prepare(&text)
            .await
            .unwrap_or_else(|error| panic!("{path:?}: {error:?}"));

        let taken: Vec<String> = statement
            .params()
            .iter()
            .map(|kind| sql_name(kind.name()).to_owned())
            .collect();
        assert_eq!(stated, taken, "{path:?}");
        for column in statement.columns() {
            let kind = sql_name(column.type_().name());
            let header = format!("{} {kind}", column.name());
            assert!(text.contains(&header), "{path:?}: no {header:?}");
        }
        read += 1;
    }
    assert!(read > 20, "{read}");
}

fn sql_name(name: &str) -> &str {
    match name {
        "int4" => "integer",
        "int8" => "bigint",
        "float8" => "double precision",
        "bool" => "boolean",
        "_text" => "text[]",
        "_int4" => "integer[]",
        "_int8" => "bigint[]",
        other => other,
    }
}
