//! How a worker stands still, wakes up and ends, and what it does while there is nothing to do.

/// From a signal, or an empty queue, to the exit code.
mod ending;
/// What wakes a worker, and how little it asks while it sleeps.
mod waking;

use crate::support::Database;

async fn fill(database: &Database, endpoint: &str, count: usize) {
    database
        .sql(&format!(
            "insert into postrider.deliveries (endpoint, event_type, payload)
             select '{endpoint}', 'test.event', '{{}}' from generate_series(1, {count})"
        ))
        .await;
}

async fn count(database: &Database, what: &str) -> i64 {
    database
        .value(&format!("select count(*) from {what}"))
        .await
}
