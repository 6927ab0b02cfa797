//! Events: published to whoever asks for them.

use std::fmt;

use serde::Serialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::the_row;
use crate::store::Error;

/// An event to be published.
pub struct NewEvent {
    /// For example `order.paid`.
    pub event_type: String,
    /// JSON text; PostgreSQL checks it and keeps it to the letter.
    pub payload: String,
    /// Idempotency key; generated when left out.
    pub event_id: Option<String>,
    /// Whose it is; `None`: the session's, or nobody's.
    pub tenant: Option<String>,
    /// When its deliveries are due, RFC 3339; `None`: now.
    pub deliver_at: Option<String>,
}

impl fmt::Debug for NewEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The payload is nobody's business.
        f.debug_struct("NewEvent")
            .field("event_type", &self.event_type)
            .finish_non_exhaustive()
    }
}

/// An event that was published.
#[derive(Debug, Serialize)]
pub struct Published {
    /// Idempotency key; the `webhook-id` of all its deliveries.
    pub event_id: String,
    /// How many deliveries were made of it, by the first call with this event id.
    pub deliveries: i32,
    /// Some worker was seen within the last minute.
    #[serde(skip)]
    pub worker_runs: bool,
}

/// Publishes one event.
///
/// # Errors
///
/// [`Error::refusal`] when the payload is not JSON, a value outside its rule, or the session acts for another tenant.
pub async fn publish(client: &Client, new: &NewEvent) -> Result<Published, Error> {
    let parameters = [
        (&new.event_type as _, Type::TEXT),
        (&new.payload as _, Type::TEXT),
        (&new.event_id as _, Type::TEXT),
        (&new.tenant as _, Type::TEXT),
        (&new.deliver_at as _, Type::TEXT),
    ];
    let row = the_row(
        client,
        include_str!("../../../sql/operator/publish.sql"),
        &parameters,
    )
    .await?;
    Ok(Published {
        event_id: row.try_get("event_id")?,
        deliveries: row.try_get("deliveries")?,
        worker_runs: row.try_get("worker_runs")?,
    })
}
