use serde_json::Value;

use super::{count, due, finished, prune, try_of_day};
use crate::support::Database;
use crate::support::process::on;

/// Exit code, standard output and standard error of a command.
fn run(database: &Database, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = on(database, arguments).output().expect("it runs");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// Three delivered ones and an exhausted one whose payloads are purged, and an exhausted one that is whole.
async fn purged(database: &Database) -> i64 {
    finished(database, "delivered", "8 days", 3).await;
    finished(database, "exhausted", "8 days", 1).await;
    finished(database, "exhausted", "6 days", 1).await;
    database
        .sql("update postrider.retention set age = '7 days' where kind = 'payloads'")
        .await;
    assert_eq!(due(database).await["payloads"], 4);
    assert_eq!(prune(database.client(), 2).await["payloads"], 4);
    database
        .value("select id from postrider.deliveries where status = 'exhausted' and payload_purged_at is not null")
        .await
}

#[tokio::test]
async fn c36_a_replay_of_a_purged_payload_says_so() {
    let database = Database::fresh().await;
    let id = purged(&database).await;

    let error = database
        .client()
        .query(&format!("select postrider.replay({id})"), &[])
        .await
        .expect_err("nothing is left to send");
    let said = error.as_db_error().expect("the server's");
    assert_eq!(said.code().code(), "PR010");
    assert!(
        said.message().contains("its payload was purged"),
        "{}",
        said.message()
    );

    let (code, _, errors) = run(&database, &["replay", &id.to_string()]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(
        errors.contains("its payload was purged") && errors.contains("queue the event anew"),
        "{errors}"
    );
    assert_eq!(
        count(&database, "deliveries where next_retry is not null").await,
        0
    );
}

#[tokio::test]
async fn c36_a_replay_by_filter_leaves_purged_ones_out_and_says_how_many() {
    let database = Database::fresh().await;
    purged(&database).await;

    let dry: i64 = database
        .value("select postrider.replay_matching(dry_run => true)")
        .await;
    let (code, said, note) = run(&database, &["replay", "--status", "delivered", "--dry-run"]);
    assert_eq!(
        (code, said.as_str()),
        (Some(0), "0 finished deliveries match\n")
    );
    assert!(
        note.contains("3 more are left out: their payload was purged"),
        "{note}"
    );
    let (code, said, _) = run(&database, &["replay", "--status", "exhausted", "--yes"]);

    assert_eq!(dry, 1);
    assert_eq!(code, Some(0));
    assert!(said.contains("1 queued again"), "{said}");
    let by_status: i64 = database
        .value("select postrider.replay_matching(status => 'delivered')")
        .await;
    assert_eq!(by_status, 0);
    assert_eq!(
        count(&database, "deliveries where next_retry is not null").await,
        1
    );
}

#[tokio::test]
async fn what_was_purged_is_shown_as_purged_and_not_as_empty() {
    let database = Database::fresh().await;
    let id = purged(&database).await;
    try_of_day(&database, 31).await;
    database
        .sql(&format!(
            "update postrider.attempts set delivery_id = {id}, outcome = 'rejected', status_code = 400;
             update postrider.deliveries set attempt_count = 3 where id = {id}"
        ))
        .await;
    prune(database.client(), 10).await;

    let (_, said, errors) = run(&database, &["delivery", "show", &id.to_string()]);
    for line in [
        "its payload was purged at",
        "(2 tries are not on record any more",
        "what was answered to try 1 was purged at",
    ] {
        assert!(said.contains(line), "{line:?} is not in: {said}{errors}");
    }
    let (_, said, _) = run(&database, &["delivery", "show", &id.to_string(), "--full"]);
    assert!(said.contains("(what was answered was purged at"), "{said}");
    let (_, said, _) = run(&database, &["delivery", "show", &id.to_string(), "--json"]);
    let whole: Value = serde_json::from_str(&said).expect("JSON");
    assert!(
        whole["payload_purged_at"].is_string() && whole["payload"].is_null(),
        "{said}"
    );
    assert!(
        whole["attempts"][0]["reply_purged_at"].is_string(),
        "{said}"
    );
}

#[tokio::test]
async fn a_purged_row_cannot_be_made_open() {
    let database = Database::fresh().await;
    let id = purged(&database).await;

    let error = database
        .client()
        .batch_execute(&format!(
            "update postrider.deliveries set status = 'queued', exhausted_reason = null, finished_at = null, next_retry = now() where id = {id}"
        ))
        .await
        .expect_err("a worker would have nothing to send");

    let rule = error.as_db_error().and_then(|said| said.constraint());
    assert_eq!(rule, Some("deliveries_only_finished_rows_are_purged"));
}

#[tokio::test]
async fn the_command_shows_what_is_due_and_removes_it() {
    let database = Database::fresh().await;
    finished(&database, "delivered", "31 days", 2500).await;
    finished(&database, "exhausted", "1 day", 1).await;
    try_of_day(&database, 95).await;

    let (code, table, errors) = run(&database, &["prune", "--dry-run"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0], ["KIND", "KEPT", "FOR", "DUE", "NOW", "OLDEST"]);
    assert_eq!(lines[1][..4], ["delivered", "30", "days", "2500"]);
    assert_eq!(lines[2][..4], ["exhausted", "90", "days", "0"]);
    assert_eq!(lines[3], ["payloads", "for", "ever", "0", lines[3][4]]);
    assert_eq!(lines[5][..5], ["attempts", "90", "days", "1", "day"]);
    assert_eq!(count(&database, "deliveries").await, 2501);
    let (_, json, _) = run(&database, &["prune", "--dry-run", "--json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&json[0]["kind"], &json[0]["due"], &json[0]["exact"]),
        (&"delivered".into(), &2500.into(), &true.into())
    );

    let (code, said, _) = run(&database, &["prune", "--max", "1200", "--json"]);
    assert_eq!(code, Some(0));
    let json: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(json["delivered"], 1200);
    assert_eq!(count(&database, "deliveries").await, 1301);
    let (code, said, _) = run(&database, &["prune"]);
    assert_eq!(code, Some(0));
    assert!(said.contains("delivered  1300"), "{said}");
    assert_eq!(count(&database, "deliveries").await, 1);
}

#[tokio::test]
async fn the_command_says_when_days_of_attempts_are_left_and_who_else_may_be_at_it() {
    let database = Database::fresh().await;
    finished(&database, "delivered", "31 days", 5).await;
    try_of_day(&database, 95).await;
    let other = database.connect().await;
    other
        .batch_execute("begin; select from postrider.attempts")
        .await
        .expect("it reads");

    let (code, said, errors) = run(&database, &["prune"]);

    assert_eq!(code, Some(1), "{said}{errors}");
    assert!(
        errors.contains("some of attempts is left") && errors.contains("hint: "),
        "{errors}"
    );
    assert_eq!(count(&database, "deliveries").await, 0, "the rest is done");
    other
        .batch_execute("rollback; begin; select from postrider.prune()")
        .await
        .expect("a step");
    let (code, _, errors) = run(&database, &["prune"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("another session is pruning"), "{errors}");
}

#[tokio::test]
async fn a_count_that_would_be_dear_is_an_estimate_and_says_so() {
    let database = Database::private().await;
    database
        .sql(
            "set session_replication_role = replica;
             insert into postrider.deliveries (endpoint, event_id, event_type, payload, status, next_retry, finished_at)
             select 'shop', n, 't', '{}', 'delivered', null, now() - interval '31 days' from generate_series(1, 120000) n;
             analyze postrider.deliveries",
        )
        .await;

    let (_, said, _) = run(&database, &["prune", "--dry-run"]);

    let line = said.lines().nth(1).expect("a line");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[3], "about", "{line}");
    let about: i64 = words[4].parse().expect("a number");
    assert!((100_001..150_000).contains(&about), "{line}");
}
