//! Numbers about the last hours, bounded by what they look at and not by how much history there is.

use serde::Serialize;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::{rows, the_row};
use crate::store::Error;

/// How many of the newest deliveries are looked at.
pub const NEWEST: i64 = 100_000;

/// Hours in a slot of a series: the smallest of them that makes no more than [`MOST_SLOTS`].
const SLOT_HOURS: [i32; 9] = [1, 2, 3, 4, 6, 8, 12, 24, 168];
const MOST_SLOTS: i32 = 48;
/// Of a window, in hours: a year and a day.
const LONGEST: i32 = 8784;

/// What happened lately and what waits now.
#[derive(Debug, Serialize)]
pub struct Stats {
    /// The window.
    pub hours: f64,
    /// Deliveries queued in it, by status and reason.
    pub deliveries: Vec<Count>,
    /// The window held more than the newest [`NEWEST`] deliveries, so these counts leave older ones out.
    pub deliveries_cut: bool,
    /// Hours in a slot of the series below. The window of tries is `hours` rounded up, the present hour included.
    pub slot_hours: i32,
    /// All tries made in it; `None`: there were none.
    pub all: Option<SuccessRate>,
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
    /// Endpoint, by name; `None`: all of them.
    pub endpoint: Option<String>,
    /// Physical tries.
    pub tries: i64,
    /// Of them, delivered.
    pub delivered_tries: i64,
    /// Of them, the first of their delivery.
    pub first_tries: i64,
    /// Of the first ones, delivered.
    pub first_try_delivered: i64,
    /// Of them, those after which no other was to follow.
    pub finished: i64,
    /// Of the last ones, delivered.
    pub finished_delivered: i64,
    /// `delivered_tries` of `tries`.
    pub success_percent: f64,
    /// `first_try_delivered` of `first_tries`.
    pub first_try_percent: Option<f64>,
    /// `finished_delivered` of `finished`.
    pub eventual_percent: Option<f64>,
    /// Median duration of a try. Percentiles are less than 19 % off.
    pub p50_ms: Option<f64>,
    /// 95 % of tries took no longer.
    pub p95_ms: Option<f64>,
    /// 99 % of tries took no longer.
    pub p99_ms: Option<f64>,
    /// Tries in each slot of the window, the oldest first.
    pub tries_series: Vec<i64>,
    /// Of them, not delivered.
    pub failures_series: Vec<i64>,
}

/// What waits for a worker.
#[derive(Debug, Serialize)]
pub struct Backlog {
    /// Deliveries due now.
    pub due: i64,
    /// Due, but their endpoint is paused or disabled, or ordered and another delivery in front.
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
    let window = Window::of(hours);
    let (all, endpoints) = success_rates(client, endpoint, window).await?;
    Ok(Stats {
        hours,
        deliveries,
        deliveries_cut,
        slot_hours: window.slot_hours,
        all,
        endpoints,
        backlog: backlog(client, endpoint).await?,
    })
}

/// The window of tries.
#[derive(Clone, Copy, Debug)]
struct Window {
    hours: i32,
    slot_hours: i32,
}

impl Window {
    fn of(hours: f64) -> Self {
        // What has been counted has been counted by the hour.
        let hours = (1..LONGEST)
            .find(|&whole| f64::from(whole) >= hours)
            .unwrap_or(LONGEST);
        let slot_hours = SLOT_HOURS
            .into_iter()
            .find(|slot| hours <= slot * MOST_SLOTS)
            .unwrap_or(SLOT_HOURS[8] * 2);
        Self { hours, slot_hours }
    }

    fn slots(self) -> usize {
        let slots = (self.hours + self.slot_hours - 1) / self.slot_hours;
        usize::try_from(slots).unwrap_or(0)
    }
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

/// Of all endpoints together, and of each.
async fn success_rates(
    client: &Client,
    endpoint: Option<&str>,
    window: Window,
) -> Result<(Option<SuccessRate>, Vec<SuccessRate>), Error> {
    let parameters = [
        (&endpoint as _, Type::TEXT),
        (&window.hours as _, Type::INT4),
        (&window.slot_hours as _, Type::INT4),
    ];
    let rows = rows(
        client,
        include_str!("../../../sql/operator/stats_endpoints.sql"),
        &parameters,
    )
    .await?;
    let mut rates = Vec::with_capacity(rows.len());
    for row in &rows {
        rates.push(success_rate(row, window.slots())?);
    }
    let all = (!rates.is_empty()).then(|| rates.remove(0));
    Ok((all, rates))
}

fn success_rate(row: &Row, slots: usize) -> Result<SuccessRate, Error> {
    let places: Vec<i32> = row.try_get("slots")?;
    let series = |counts: Vec<i64>| {
        let mut series = vec![0; slots];
        for (place, count) in places.iter().zip(counts) {
            // A clock that was ahead may have left tries in an hour that is still to come.
            if let Some(slot) = usize::try_from(*place)
                .ok()
                .and_then(|at| series.get_mut(at))
            {
                *slot = count;
            }
        }
        series
    };
    Ok(SuccessRate {
        endpoint: row.try_get("endpoint")?,
        tries: row.try_get("tries")?,
        delivered_tries: row.try_get("delivered_tries")?,
        first_tries: row.try_get("first_tries")?,
        first_try_delivered: row.try_get("first_try_delivered")?,
        finished: row.try_get("finished")?,
        finished_delivered: row.try_get("finished_delivered")?,
        success_percent: row.try_get("success_percent")?,
        first_try_percent: row.try_get("first_try_percent")?,
        eventual_percent: row.try_get("eventual_percent")?,
        p50_ms: row.try_get("p50_ms")?,
        p95_ms: row.try_get("p95_ms")?,
        p99_ms: row.try_get("p99_ms")?,
        tries_series: series(row.try_get("slot_tries")?),
        failures_series: series(row.try_get("slot_failures")?),
    })
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
