//! Replays: finished deliveries sent again because a person says so.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::the_row;
use crate::store::Error;

/// A moment as people give it.
#[derive(Clone, Debug)]
pub enum When {
    /// RFC 3339.
    At(String),
    /// So many seconds before the database's now.
    Ago(f64),
}

/// Which finished deliveries; `None`: any.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Endpoint, by name.
    pub endpoint: Option<String>,
    /// Why it is exhausted.
    pub reason: Option<String>,
    /// exhausted or delivered.
    pub status: String,
    /// Finished then or later.
    pub since: Option<When>,
    /// Finished before then.
    pub until: Option<When>,
}

/// A filter with its span of time fixed, so that what fails again meanwhile is not replayed twice.
#[derive(Clone, Debug)]
pub struct Selection {
    filter: Filter,
    since: Option<String>,
    until: String,
    /// Deliveries in it when it was made.
    pub matching: i64,
    /// Deliveries left out of it, because their endpoint is disabled.
    pub at_disabled: i64,
    /// Deliveries left out of it, because their payload was purged.
    pub purged: i64,
}

/// Sends one finished delivery again. False: it is open anyway.
///
/// # Errors
///
/// [`Error::refusal`] when there is no such delivery, it is in flight, its endpoint is disabled, or its
/// payload was purged.
pub async fn one(client: &Client, id: i64) -> Result<bool, Error> {
    let row = the_row(
        client,
        include_str!("../../../sql/operator/replay.sql"),
        &[(&id, Type::INT8)],
    )
    .await?;
    Ok(row.try_get("replayed")?)
}

/// Counts what a filter selects and fixes its span of time.
///
/// # Errors
///
/// The database's.
pub async fn select(client: &Client, filter: Filter) -> Result<Selection, Error> {
    let (since_at, since_ago) = parts(filter.since.as_ref());
    let (until_at, until_ago) = parts(filter.until.as_ref());
    let parameters = [
        (&filter.endpoint as _, Type::TEXT),
        (&filter.reason as _, Type::TEXT),
        (&filter.status as _, Type::TEXT),
        (&since_at as _, Type::TEXT),
        (&since_ago as _, Type::FLOAT8),
        (&until_at as _, Type::TEXT),
        (&until_ago as _, Type::FLOAT8),
    ];
    let row = the_row(
        client,
        include_str!("../../../sql/operator/replay_count.sql"),
        &parameters,
    )
    .await?;
    Ok(Selection {
        since: row.try_get("since")?,
        until: row.try_get("until")?,
        matching: row.try_get("matching")?,
        at_disabled: row.try_get("at_disabled")?,
        purged: row.try_get("purged")?,
        filter,
    })
}

/// The two ways of saying a moment, as two parameters.
pub(super) fn parts(when: Option<&When>) -> (Option<&str>, Option<f64>) {
    match when {
        None => (None, None),
        Some(When::At(time)) => (Some(time), None),
        Some(When::Ago(seconds)) => (None, Some(*seconds)),
    }
}

/// Sends at most `most` of a selection again, oldest first. Returns how many; 0: none is left.
///
/// # Errors
///
/// The database's. What earlier calls replayed stays replayed.
pub async fn batch(client: &Client, selection: &Selection, most: i32) -> Result<i64, Error> {
    let parameters = [
        (&selection.filter.endpoint as _, Type::TEXT),
        (&selection.filter.reason as _, Type::TEXT),
        (&selection.filter.status as _, Type::TEXT),
        (&selection.since as _, Type::TEXT),
        (&selection.until as _, Type::TEXT),
        (&most as _, Type::INT4),
    ];
    let row = the_row(
        client,
        include_str!("../../../sql/operator/replay_matching.sql"),
        &parameters,
    )
    .await?;
    Ok(row.try_get("replayed")?)
}
