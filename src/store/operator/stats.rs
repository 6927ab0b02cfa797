//! Numbers about the last hours, bounded by what they look at and not by how much history there is.

use serde::Serialize;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::{rows, the_row};
use crate::store::Error;

/// How many of the newest deliveries are looked at.
pub const NEWEST: i64 = 100_000;

/// What happened lately and what waits now.
#[derive(Debug, Serialize)]
pub struct Stats {
    /// The window.
    pub hours: f64,
    /// Deliveries queued in it, by status and reason.
    pub deliveries: Vec<Count>,
    /// The window held more than the newest [`NEWEST`] deliveries, so these counts leave older ones out.
    pub deliveries_cut: bool,
    /// Tries made in it, per endpoint.
    pub endpoints: Vec<SuccessRate>,
    /// What waits now.
    #[serde(flatten)]
    pub backlog: Backlog,
}

/// So many deliveries.
#[derive(Debug, Serialize)]
pub struct Count {
    /// queued, failed, delivered or exhausted.
    pub status: String,
    /// Why exhausted.
    pub exhausted_reason: Option<String>,
    /// How many.
    pub count: i64,
}

/// How many tries of an endpoint delivered.
#[derive(Debug, Serialize)]
pub struct SuccessRate {
    /// Endpoint, by name.
    pub endpoint: String,
    /// Physical tries.
    pub tries: i64,
    /// Of them, delivered.
    pub delivered_tries: i64,
    /// Deliveries first tried in the window.
    pub first_tries: i64,
    /// Of them, delivered at once.
    pub first_try_delivered: i64,
    /// Of them, delivered by now.
    pub eventually_delivered: i64,
    /// `delivered_tries` of `tries`.
    pub success_percent: f64,
    /// Median duration of a try.
    pub p50_ms: Option<f64>,
    /// 95 % of tries took less.
    pub p95_ms: Option<f64>,
}

/// What waits for a worker.
#[derive(Debug, Serialize)]
pub struct Backlog {
    /// Deliveries due now.
    pub due: i64,
    /// Due, but their endpoint is paused or disabled.
    pub held: i64,
    /// Since when the oldest of them is.
    pub oldest_due: Option<String>,
    /// The same as an age.
    pub oldest_due_seconds: Option<i64>,
    /// Workers seen within the last minute.
    pub workers_alive: i64,
}

/// The numbers of the last `hours`, of one endpoint or of all.
///
/// # Errors
///
/// The database's.
pub async fn read(client: &Client, endpoint: Option<&str>, hours: f64) -> Result<Stats, Error> {
    let (deliveries, deliveries_cut) = deliveries(client, endpoint, hours).await?;
    Ok(Stats {
        hours,
        deliveries,
        deliveries_cut,
        endpoints: success_rates(client, endpoint, hours).await?,
        backlog: backlog(client, endpoint).await?,
    })
}

async fn deliveries(
    client: &Client,
    endpoint: Option<&str>,
    hours: f64,
) -> Result<(Vec<Count>, bool), Error> {
    let parameters = [
        (&endpoint as _, Type::TEXT),
        (&hours as _, Type::FLOAT8),
        (&NEWEST as _, Type::INT8),
    ];
    let rows = rows(
        client,
        include_str!("../../../sql/operator/stats_deliveries.sql"),
        &parameters,
    )
    .await?;
    let cut = rows.first().map_or(Ok(false), |row| row.try_get("cut"))?;
    let mut counts = Vec::new();
    for row in &rows {
        // The row that only says whether the window was cut has no status.
        if let Some(status) = row.try_get("status")? {
            counts.push(Count {
                status,
                exhausted_reason: row.try_get("exhausted_reason")?,
                count: row.try_get("count")?,
            });
        }
    }
    Ok((counts, cut))
}

async fn success_rates(
    client: &Client,
    endpoint: Option<&str>,
    hours: f64,
) -> Result<Vec<SuccessRate>, Error> {
    let parameters = [(&endpoint as _, Type::TEXT), (&hours as _, Type::FLOAT8)];
    let rows = rows(
        client,
        include_str!("../../../sql/operator/stats_endpoints.sql"),
        &parameters,
    )
    .await?;
    rows.iter()
        .map(|row| {
            Ok(SuccessRate {
                endpoint: row.try_get("endpoint")?,
                tries: row.try_get("tries")?,
                delivered_tries: row.try_get("delivered_tries")?,
                first_tries: row.try_get("first_tries")?,
                first_try_delivered: row.try_get("first_try_delivered")?,
                eventually_delivered: row.try_get("eventually_delivered")?,
                success_percent: row.try_get("success_percent")?,
                p50_ms: row.try_get("p50_ms")?,
                p95_ms: row.try_get("p95_ms")?,
            })
        })
        .collect()
}

async fn backlog(client: &Client, endpoint: Option<&str>) -> Result<Backlog, Error> {
    let row = the_row(
        client,
        include_str!("../../../sql/operator/stats_backlog.sql"),
        &[(&endpoint, Type::TEXT)],
    )
    .await?;
    Ok(Backlog {
        due: row.try_get("due")?,
        held: row.try_get("held")?,
        oldest_due: row.try_get("oldest_due")?,
        oldest_due_seconds: row.try_get("oldest_due_seconds")?,
        workers_alive: row.try_get("workers_alive")?,
    })
}

/// Workers seen within the last minute.
///
/// # Errors
///
/// The database's.
pub async fn workers_alive(client: &Client) -> Result<i64, Error> {
    let row = the_row(
        client,
        include_str!("../../../sql/operator/workers_alive.sql"),
        &[],
    )
    .await?;
    Ok(row.try_get("workers_alive")?)
}
