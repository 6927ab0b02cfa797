use assert_cmd::Command;
use serde_json::Value;

use crate::support::Database;
use crate::support::process::on;

/// What `postrider stats` prints where it is no terminal, under a locale.
async fn stats(database: &Database, locale: &str, arguments: &[&str]) -> String {
    let mut command = on(database, &["stats"]);
    command.args(arguments).env("LC_ALL", locale);
    let mut command = Command::from_std(command);
    let output = tokio::task::spawn_blocking(move || command.output().expect("it runs"))
        .await
        .expect("it ends");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// So many endpoints; the n-th has failed n times, and delivered each time after that.
async fn tries(database: &Database, endpoints: i32) {
    database
        .sql(&format!(
            "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, duration_ms, next_retry)
             select now() - g * interval '20 min', n, g, g, 'endpoint ' || to_char(n, 'FM000'),
                    case when g % 2 = 0 then 'delivered' else 'retry' end, 1800 * g, case when g % 2 = 1 then now() end
               from generate_series(1, {endpoints}) n cross join lateral generate_series(1, 2 * n) g"
        ))
        .await;
}

#[tokio::test]
async fn stats_draw_within_80_columns_and_without_colour_where_nobody_looks() {
    let database = Database::fresh().await;
    tries(&database, 30).await;

    let blocks = stats(&database, "C.UTF-8", &[]).await;
    let ascii = stats(&database, "C", &["--hours", "720"]).await;

    for text in [&blocks, &ascii] {
        assert!(!text.contains('\u{1b}'), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
    assert!(
        blocks.contains('█') && blocks.contains("50.00 %"),
        "{blocks}"
    );
    assert!(ascii.is_ascii() && ascii.contains("#"), "{ascii}");
}

#[tokio::test]
async fn of_many_endpoints_those_that_fail_most_get_a_line_and_json_has_all() {
    let database = Database::fresh().await;
    tries(&database, 30).await;

    let text = stats(&database, "C", &["--hours", "720"]).await;
    let json: Value =
        serde_json::from_str(&stats(&database, "C", &["--hours", "720", "--json"]).await)
            .expect("JSON");

    assert!(
        text.contains("endpoint 030") && text.contains("endpoint 011"),
        "{text}"
    );
    assert!(!text.contains("endpoint 010"), "{text}");
    assert!(text.contains("and 10 more: --endpoint NAME"), "{text}");
    assert_eq!(json["endpoints"].as_array().map(Vec::len), Some(30));
    assert_eq!(json["all"]["tries"], 930);
    let series = json["all"]["tries_series"].as_array().expect("a series");
    let sum: i64 = series.iter().filter_map(Value::as_i64).sum();
    assert_eq!(sum, 930);
}
