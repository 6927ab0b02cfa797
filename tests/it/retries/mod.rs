//! What becomes of a delivery after each kind of answer, how often it is tried, and when.

use crate::support::Database;

mod answers;
mod budget;
mod due;
mod lanes;

/// A schedule without a wait and without jitter, its retries bounded by whoever uses it.
const AT_ONCE: &str = "insert into postrider.retry_policies (name, kind, delays, jitter, max_retries) values ('at once', 'schedule', '{0}', 0, 1)";

/// The constraint that a statement runs into.
async fn refused_by(database: &Database, statement: &str) -> String {
    let error = database.client().batch_execute(statement).await;
    let error = error.expect_err(statement);
    let constraint = error.as_db_error().and_then(|error| error.constraint());
    constraint
        .unwrap_or_else(|| panic!("{statement}: {error}"))
        .to_owned()
}
