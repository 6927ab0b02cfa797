//! Watches: tables whose changes become events.

use serde::Serialize;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::{rows, the_row};
use crate::store::Error;

/// Whether what goes wrong in a watch fails the writer's statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// It goes on record; the writer goes on.
    Record,
    /// It fails the statement.
    Fail,
}

/// What is to be watched, and how. `None` and empty lists leave a setting at its default.
#[derive(Clone, Debug)]
pub struct NewWatch {
    /// As SQL writes it, `shop.orders`.
    pub table: String,
    /// insert, update, delete.
    pub operations: Vec<String>,
    /// Of the events; else the table's name and the operation.
    pub event_type: Option<String>,
    /// Where to; else to all that subscribed.
    pub endpoint: Option<String>,
    /// SQL over `new` and `old`.
    pub condition: Option<String>,
    /// Updates count only if one of them changed.
    pub columns: Vec<String>,
    /// Left out of the body.
    pub without: Vec<String>,
    /// The function that makes the body.
    pub body: Option<String>,
    /// Whose the events are.
    pub tenant: Option<String>,
    /// The column that says whose they are.
    pub tenant_column: Option<String>,
    /// Who is hurt by an error.
    pub on_error: OnError,
    /// Its name; else after the table.
    pub name: Option<String>,
}

/// A row of `postrider.watches`.
#[derive(Debug, Serialize)]
pub struct Watch {
    /// Its name.
    pub watch: String,
    /// `None`: the table is gone.
    pub schema_name: Option<String>,
    /// Likewise.
    pub table_name: Option<String>,
    /// insert, update, delete.
    pub operations: Vec<String>,
    /// `None`: after table and operation.
    pub event_type: Option<String>,
    /// `None`: all that subscribed.
    pub endpoint: Option<String>,
    /// SQL over `new` and `old`.
    pub condition: Option<String>,
    /// Of which one must have changed; empty: any.
    pub columns: Vec<String>,
    /// Left out of the body.
    pub without: Vec<String>,
    /// The function that makes the body.
    pub body: Option<String>,
    /// Whose the events are.
    pub tenant: Option<String>,
    /// The column that says whose they are.
    pub tenant_column: Option<String>,
    /// Whether errors fail the writer's statement.
    pub strict: bool,
    /// False: somebody disabled one of its triggers.
    pub enabled: bool,
    /// Chunks of changes that are not events yet.
    pub waiting: i64,
    /// Statements whose changes became no events, and chunks that cannot be published so far.
    pub errors: i64,
    /// The last of them.
    pub last_error: Option<String>,
    /// RFC 3339.
    pub last_error_at: Option<String>,
}

impl Watch {
    fn read(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            watch: row.try_get("watch")?,
            schema_name: row.try_get("schema_name")?,
            table_name: row.try_get("table_name")?,
            operations: row.try_get("operations")?,
            event_type: row.try_get("event_type")?,
            endpoint: row.try_get("endpoint")?,
            condition: row.try_get("condition")?,
            columns: row.try_get("columns")?,
            without: row.try_get("without")?,
            body: row.try_get("body")?,
            tenant: row.try_get("tenant")?,
            tenant_column: row.try_get("tenant_column")?,
            strict: row.try_get("strict")?,
            enabled: row.try_get("enabled")?,
            waiting: row.try_get("waiting")?,
            errors: row.try_get("errors")?,
            last_error: row.try_get("last_error")?,
            last_error_at: row.try_get("last_error_at")?,
        })
    }
}

/// Watches a table; returns the watch's name.
///
/// # Errors
///
/// [`Error::refusal`] when an argument makes no sense or the name is taken.
pub async fn add(client: &Client, new: &NewWatch) -> Result<String, Error> {
    let some = |names: &[String]| (!names.is_empty()).then(|| names.to_vec());
    let (columns, without) = (some(&new.columns), some(&new.without));
    let strict = new.on_error == OnError::Fail;
    let row = the_row(
        client,
        include_str!("../../../sql/operator/watch.sql"),
        &[
            (&new.table, Type::TEXT),
            (&new.operations, Type::TEXT_ARRAY),
            (&new.event_type, Type::TEXT),
            (&new.endpoint, Type::TEXT),
            (&new.condition, Type::TEXT),
            (&columns, Type::TEXT_ARRAY),
            (&without, Type::TEXT_ARRAY),
            (&new.body, Type::TEXT),
            (&new.tenant, Type::TEXT),
            (&new.tenant_column, Type::TEXT),
            (&strict, Type::BOOL),
            (&new.name, Type::TEXT),
        ],
    )
    .await?;
    Ok(row.try_get("watch")?)
}

/// Ends a watch.
///
/// # Errors
///
/// [`Error::refusal`] when there is none of this name.
pub async fn end(client: &Client, name: &str) -> Result<(), Error> {
    let statement = include_str!("../../../sql/operator/unwatch.sql");
    the_row(client, statement, &[(&name, Type::TEXT)])
        .await
        .map(drop)
}

/// All watches, by name.
///
/// # Errors
///
/// The database's.
pub async fn list(client: &Client) -> Result<Vec<Watch>, Error> {
    let statement = include_str!("../../../sql/operator/watches.sql");
    let rows = rows(client, statement, &[]).await?;
    rows.iter().map(Watch::read).collect()
}
