//! Retention: what is old, and its removal step by step.

use serde::Serialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::rows;
use crate::store::Error;

/// What would be removed of a kind now.
#[derive(Debug, Serialize)]
pub struct Due {
    /// `retention.kind`.
    pub kind: String,
    /// An interval as PostgreSQL writes it; `None`: for ever.
    pub kept_for: Option<String>,
    /// Rows; of attempts days.
    pub due: i64,
    /// `due` was counted, not estimated.
    pub exact: bool,
    /// Since when the oldest that is there has been there.
    pub oldest: Option<String>,
}

/// What a step did to a kind.
#[derive(Debug)]
pub struct Step {
    /// `retention.kind`.
    pub kind: String,
    /// Rows; of attempts days.
    pub pruned: i64,
    /// There is more to do now.
    pub more: bool,
    /// What had to be left for later, and why.
    pub waits: Option<String>,
}

/// What retention would remove now, per kind.
///
/// # Errors
///
/// The database's.
pub async fn due(client: &Client) -> Result<Vec<Due>, Error> {
    let statement = include_str!("../../../sql/operator/prunable.sql");
    rows(client, statement, &[])
        .await?
        .iter()
        .map(|row| {
            Ok(Due {
                kind: row.try_get("kind")?,
                kept_for: row.try_get("kept_for")?,
                due: row.try_get("due")?,
                exact: row.try_get("exact")?,
                oldest: row.try_get("oldest")?,
            })
        })
        .collect()
}

/// Removes at most `most` rows, in a transaction of its own. Nothing is returned when another session is at it.
///
/// # Errors
///
/// The database's; the step is undone then.
pub async fn step(client: &Client, most: i32) -> Result<Vec<Step>, Error> {
    let statement = include_str!("../../../sql/operator/prune.sql");
    rows(client, statement, &[(&most, Type::INT4)])
        .await?
        .iter()
        .map(|row| {
            Ok(Step {
                kind: row.try_get("kind")?,
                pruned: row.try_get("pruned")?,
                more: row.try_get("more")?,
                waits: row.try_get("waits")?,
            })
        })
        .collect()
}
