//! Publishing: who gets an event, once, with its very bytes, and no caller's transaction breaks.

/// What leaves for receivers is what was published.
mod bytes;
/// From a shell.
mod command;
/// Matching costs what matches, not what there is.
mod cost;
/// Whatever goes wrong, the caller's transaction goes on, or fails in PostgreSQL's own words.
mod faults;
/// A filter decides, or is no match.
mod filters;
/// Type, tenant and state of an endpoint.
mod matching;
/// The same `event_id` is the same event.
mod once;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use crate::support::{Database, SOON, wait_until};

/// Endpoints by name and event types, as an array literal; `null`: all.
async fn endpoints(database: &Database, asking: &[(&str, &str)]) {
    for (name, types) in asking {
        let types = match *types {
            "null" => "null".to_owned(),
            types => format!("'{types}'"),
        };
        database
            .sql(&format!(
                "insert into postrider.endpoints (name, url, event_types) values ('{name}', 'http://127.0.0.1:1/', {types})"
            ))
            .await;
    }
}

/// What `publish` returns for these arguments, or how it fails.
async fn try_publish(session: &Client, arguments: &str) -> Result<i32, Error> {
    let call = format!("select postrider.publish({arguments})");
    session.query_one(&call, &[]).await?.try_get(0)
}

async fn publish(database: &Database, arguments: &str) -> i32 {
    try_publish(database.client(), arguments)
        .await
        .unwrap_or_else(|error| panic!("{arguments}: {error:?}"))
}

/// SQLSTATE and message of a refusal.
async fn refused(session: &Client, arguments: &str) -> (SqlState, String) {
    let error = try_publish(session, arguments).await.expect_err(arguments);
    let said = error.as_db_error().expect("the server says so");
    (said.code().clone(), said.message().to_owned())
}

/// Who has deliveries of the newest event, by name.
async fn reached(database: &Database) -> String {
    database
        .value(
            "select coalesce(string_agg(endpoint, ' ' order by endpoint), '') from postrider.deliveries
              where event = (select max(id) from postrider.events)",
        )
        .await
}

/// Waits until another session of this database waits for a lock.
async fn somebody_waits(database: &Database) {
    let blocked = async || {
        let blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        database.value::<i64>(blocked).await
    };
    wait_until("somebody waits", blocked, |count| *count == 1, SOON).await;
}
