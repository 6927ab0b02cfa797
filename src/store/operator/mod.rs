//! What people ask of the database through the command line and the pages: one statement per function, named as its file
//! in `sql/operator/`.
//!
//! Owns the shapes of the answers. Times are RFC 3339 text made by PostgreSQL (`infinity` included), since nothing here
//! computes with them. Secrets and header values are not read at all, apart from the functions that say so.

pub mod cancel;
pub mod delivery;
pub mod endpoint;
pub mod event;
pub mod prune;
pub mod replay;
pub mod stats;
pub mod watch;

use serde::Serializer;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use super::Error;

/// A parameter with the type that its cast in the statement names. Sent with the statement in one round trip, so that no
/// prepared statement is left on a server connection that a pooler shares out.
type Param<'a> = (&'a (dyn ToSql + Sync), Type);

async fn rows(
    client: &impl GenericClient,
    statement: &str,
    parameters: &[Param<'_>],
) -> Result<Vec<Row>, Error> {
    Ok(client.query_typed(statement, parameters).await?)
}

/// For statements that return one row or none.
async fn row(
    client: &impl GenericClient,
    statement: &str,
    parameters: &[Param<'_>],
) -> Result<Option<Row>, Error> {
    Ok(rows(client, statement, parameters)
        .await?
        .into_iter()
        .next())
}

/// For statements that always return a row.
async fn the_row(
    client: &impl GenericClient,
    statement: &str,
    parameters: &[Param<'_>],
) -> Result<Row, Error> {
    let row = row(client, statement, parameters).await?;
    Ok(row.expect("the statement aggregates, inserts one row, or has no FROM"))
}

/// Bytes in JSON: base64 text, or null.
fn base64<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    match bytes {
        Some(bytes) => serializer.serialize_some(&STANDARD.encode(bytes)),
        None => serializer.serialize_none(),
    }
}
