//! Cancels by filter: open deliveries ended because a person says so.

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::replay::{When, parts};
use super::the_row;
use crate::store::Error;

/// Which open deliveries; `None`: any.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Endpoint, by name.
    pub endpoint: Option<String>,
    /// Event type.
    pub event_type: Option<String>,
    /// queued or failed.
    pub status: Option<String>,
    /// Queued then or later.
    pub since: Option<When>,
    /// Queued before then.
    pub until: Option<When>,
}

/// A filter with its span of time fixed, so that what is queued meanwhile is left alone.
#[derive(Clone, Debug)]
pub struct Selection {
    filter: Filter,
    since: String,
    until: String,
    /// Deliveries in it when it was made.
    pub matching: i64,
}

/// Counts what a filter selects and fixes its span of time.
///
/// # Errors
///
/// [`Error::refusal`] when a value makes no sense.
pub async fn select(client: &Client, filter: Filter) -> Result<Selection, Error> {
    let (since_at, since_ago) = parts(filter.since.as_ref());
    let (until_at, until_ago) = parts(filter.until.as_ref());
    let parameters = [
        (&filter.endpoint as _, Type::TEXT),
        (&filter.event_type as _, Type::TEXT),
        (&filter.status as _, Type::TEXT),
        (&since_at as _, Type::TEXT),
        (&since_ago as _, Type::FLOAT8),
        (&until_at as _, Type::TEXT),
        (&until_ago as _, Type::FLOAT8),
    ];
    let row = the_row(
        client,
        include_str!("../../../sql/operator/cancel_count.sql"),
        &parameters,
    )
    .await?;
    Ok(Selection {
        since: row.try_get("since")?,
        until: row.try_get("until")?,
        matching: row.try_get("matching")?,
        filter,
    })
}

/// Ends at most `most` of a selection. Returns how many; 0: none is left, or others hold them.
///
/// # Errors
///
/// The database's. What earlier calls cancelled stays cancelled.
pub async fn batch(client: &Client, selection: &Selection, most: i32) -> Result<i64, Error> {
    let parameters = [
        (&selection.filter.endpoint as _, Type::TEXT),
        (&selection.filter.event_type as _, Type::TEXT),
        (&selection.filter.status as _, Type::TEXT),
        (&selection.since as _, Type::TEXT),
        (&selection.until as _, Type::TEXT),
        (&most as _, Type::INT4),
    ];
    let row = the_row(
        client,
        include_str!("../../../sql/operator/cancel_matching.sql"),
        &parameters,
    )
    .await?;
    Ok(row.try_get("cancelled")?)
}
