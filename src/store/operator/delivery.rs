//! Deliveries: queued by hand, looked at with their tries, cancelled.

use std::fmt;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::{base64, row, rows, the_row};
use crate::store::Error;

/// What a delivery carries. The bytes go in as they are.
pub enum Content {
    /// JSON text; PostgreSQL checks it and keeps it to the letter.
    Json(String),
    /// Any bytes and their media type.
    Body(Vec<u8>, Option<String>),
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(text) => write!(f, "Json({} bytes)", text.len()),
            Self::Body(bytes, _) => write!(f, "Body({} bytes)", bytes.len()),
        }
    }
}

/// When a delivery is due.
#[derive(Clone, Debug, Default)]
pub enum Due {
    /// At once.
    #[default]
    Now,
    /// At this time, RFC 3339.
    At(String),
    /// So many seconds after the database's now.
    In(f64),
}

/// A delivery to be queued.
#[derive(Debug)]
pub struct NewDelivery {
    /// Where to, by name.
    pub endpoint: String,
    /// For example `order.paid`.
    pub event_type: String,
    /// Idempotency key; generated when left out.
    pub event_id: Option<String>,
    /// What it carries.
    pub content: Content,
    /// JSON text: an object of strings.
    pub headers: Option<String>,
    /// Retries after the first try; `None`: the endpoint's.
    pub max_retries: Option<i32>,
    /// When.
    pub due: Due,
}

/// A delivery that was queued, and what it meets.
#[derive(Debug, Serialize)]
pub struct Queued {
    /// `deliveries.id`.
    pub id: i64,
    /// Idempotency key.
    pub event_id: String,
    /// When it is due.
    pub next_retry: String,
    /// It is due in the future.
    #[serde(skip)]
    pub later: bool,
    /// The endpoint is not disabled.
    #[serde(skip)]
    pub enabled: bool,
    /// The endpoint's deliveries wait.
    #[serde(skip)]
    pub paused: bool,
    /// Some worker was seen within the last minute.
    #[serde(skip)]
    pub worker_runs: bool,
}

/// Which deliveries to list; `None`: any.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Status.
    pub status: Option<String>,
    /// Endpoint, by name.
    pub endpoint: Option<String>,
    /// Why it is exhausted.
    pub reason: Option<String>,
    /// Event type.
    pub event_type: Option<String>,
    /// Only ids below this one.
    pub before: Option<i64>,
}

/// A line of the list of deliveries.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// `deliveries.id`.
    pub id: i64,
    /// Where to.
    pub endpoint: String,
    /// Idempotency key.
    pub event_id: String,
    /// For example `order.paid`.
    pub event_type: String,
    /// What it does right now: its status, or sending, held, scheduled.
    pub state: String,
    /// queued, failed, delivered or exhausted.
    pub status: String,
    /// Why it is exhausted.
    pub exhausted_reason: Option<String>,
    /// The delivery of the same ordered endpoint that has to end first.
    pub held_by: Option<i64>,
    /// Tries on record.
    pub attempt_count: i32,
    /// When it is due; `None` once it is finished.
    pub next_retry: Option<String>,
    /// HTTP status of the newest try.
    pub last_status_code: Option<i32>,
    /// Why the newest try did not deliver.
    pub last_error: Option<String>,
    /// When it was queued.
    pub created_at: String,
    /// When it was delivered or exhausted.
    pub finished_at: Option<String>,
}

/// One delivery with what it carries.
#[derive(Debug, Serialize)]
pub struct Delivery {
    /// As in the list.
    #[serde(flatten)]
    pub summary: Listed,
    /// `attempt_count` when the present retry budget began.
    pub budget_from: i32,
    /// Its own; `None`: the endpoint's.
    pub max_retries: Option<i32>,
    /// In flight until then, at most.
    pub lease_expires_at: Option<String>,
    /// By this worker.
    pub leased_by: Option<String>,
    /// When what it carried was removed by retention; it cannot be replayed since.
    pub payload_purged_at: Option<String>,
    /// Names of its extra headers; their values are often credentials.
    pub header_names: Vec<String>,
    /// Media type of what it carries.
    pub content_type: String,
    /// Bytes of what it carries, all of it.
    pub content_bytes: i32,
    /// JSON text, perhaps only its beginning.
    pub payload: Option<String>,
    /// Any bytes, perhaps only their beginning.
    #[serde(rename = "body_base64", serialize_with = "base64")]
    pub body: Option<Vec<u8>>,
}

/// One physical try.
#[derive(Debug, Serialize)]
pub struct Attempt {
    /// 1, 2, 3 ... within its delivery.
    pub attempt_no: i32,
    /// The claim under which it was made.
    pub claim_no: i64,
    /// When it began.
    pub started_at: String,
    /// How long it took; `None`: nobody knows.
    pub duration_ms: Option<i32>,
    /// delivered, retry, rejected, blocked, unbuildable or lost.
    pub outcome: String,
    /// HTTP status.
    pub status_code: Option<i32>,
    /// Kind of failure when no status arrived.
    pub error_kind: Option<String>,
    /// What went wrong, for people.
    pub error: Option<String>,
    /// Who made it.
    pub worker: Option<String>,
    /// The address that answered.
    pub remote_addr: Option<String>,
    /// JSON, credentials masked by the worker.
    pub request_headers: Option<Box<RawValue>>,
    /// JSON.
    pub response_headers: Option<Box<RawValue>>,
    /// The beginning of what the receiver answered.
    #[serde(rename = "response_body_base64", serialize_with = "base64")]
    pub response_body: Option<Vec<u8>>,
    /// The receiver sent more than that.
    pub response_truncated: bool,
    /// When response headers and body were removed by retention.
    pub reply_purged_at: Option<String>,
    /// What was decided: when it is tried again; `None`: not again.
    pub next_retry: Option<String>,
}

/// Queues one delivery.
///
/// # Errors
///
/// [`Error::refusal`] when the endpoint is unknown, the event id taken, the payload not JSON or a value outside its rule.
pub async fn send(client: &Client, new: &NewDelivery) -> Result<Queued, Error> {
    let (payload, body, content_type) = match &new.content {
        Content::Json(text) => (Some(text), None, None),
        Content::Body(bytes, content_type) => (None, Some(bytes), content_type.as_ref()),
    };
    let (at, after) = match &new.due {
        Due::Now => (None, None),
        Due::At(time) => (Some(time), None),
        Due::In(seconds) => (None, Some(*seconds)),
    };
    let parameters = [
        (&new.endpoint as _, Type::TEXT),
        (&new.event_type as _, Type::TEXT),
        (&new.event_id as _, Type::TEXT),
        (&payload as _, Type::TEXT),
        (&body as _, Type::BYTEA),
        (&content_type as _, Type::TEXT),
        (&new.headers as _, Type::TEXT),
        (&new.max_retries as _, Type::INT4),
        (&at as _, Type::TEXT),
        (&after as _, Type::FLOAT8),
    ];
    let row = the_row(
        client,
        include_str!("../../../sql/operator/send.sql"),
        &parameters,
    )
    .await?;
    Ok(Queued {
        id: row.try_get("id")?,
        event_id: row.try_get("event_id")?,
        next_retry: row.try_get("next_retry")?,
        later: row.try_get("later")?,
        enabled: row.try_get("enabled")?,
        paused: row.try_get("paused")?,
        worker_runs: row.try_get("worker_runs")?,
    })
}

/// What a receiver answered to a delivery that was waited for.
#[derive(Debug, Serialize)]
pub struct Answer {
    /// HTTP status, 200 to 299.
    pub status_code: Option<i32>,
    /// The beginning of the body.
    #[serde(rename = "response_body_base64", serialize_with = "base64")]
    pub response_body: Option<Vec<u8>>,
}

/// Sends an event at once, one try, and waits for the answer, at most so many seconds.
///
/// # Errors
///
/// [`Error::refusal`] unless it was delivered; nothing is sent after that.
pub async fn deliver_now(
    client: &Client,
    endpoint: &str,
    event_type: &str,
    payload: &str,
    seconds: f64,
) -> Result<Answer, Error> {
    let parameters = [
        (&endpoint as _, Type::TEXT),
        (&event_type as _, Type::TEXT),
        (&payload as _, Type::TEXT),
        (&seconds as _, Type::FLOAT8),
    ];
    let row = the_row(
        client,
        include_str!("../../../sql/operator/deliver_now.sql"),
        &parameters,
    )
    .await?;
    Ok(Answer {
        status_code: row.try_get("status_code")?,
        response_body: row.try_get("response_body")?,
    })
}

/// Deliveries, newest first, `limit` at most.
///
/// # Errors
///
/// The database's.
pub async fn list(client: &Client, filter: &Filter, limit: i64) -> Result<Vec<Listed>, Error> {
    let parameters = [
        (&filter.status as _, Type::TEXT),
        (&filter.endpoint as _, Type::TEXT),
        (&filter.reason as _, Type::TEXT),
        (&filter.event_type as _, Type::TEXT),
        (&filter.before as _, Type::INT8),
        (&limit as _, Type::INT8),
    ];
    let rows = rows(
        client,
        include_str!("../../../sql/operator/delivery_list.sql"),
        &parameters,
    )
    .await?;
    rows.iter().map(listed).collect()
}

fn listed(row: &Row) -> Result<Listed, Error> {
    Ok(Listed {
        id: row.try_get("id")?,
        endpoint: row.try_get("endpoint")?,
        event_id: row.try_get("event_id")?,
        event_type: row.try_get("event_type")?,
        state: row.try_get("state")?,
        status: row.try_get("status")?,
        exhausted_reason: row.try_get("exhausted_reason")?,
        held_by: row.try_get("held_by")?,
        attempt_count: row.try_get("attempt_count")?,
        next_retry: row.try_get("next_retry")?,
        last_status_code: row.try_get("last_status_code")?,
        last_error: row.try_get("last_error")?,
        created_at: row.try_get("created_at")?,
        finished_at: row.try_get("finished_at")?,
    })
}

/// Ids and endpoints of the deliveries that carry an event id, newest first, 20 at most.
///
/// # Errors
///
/// The database's.
pub async fn find(client: &Client, event_id: &str) -> Result<Vec<(i64, String)>, Error> {
    let statement = include_str!("../../../sql/operator/delivery_find.sql");
    let rows = rows(client, statement, &[(&event_id, Type::TEXT)]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get("id")?, row.try_get("endpoint")?)))
        .collect()
}

/// One delivery, if there is one with this id, with at most `most` characters or bytes of what it carries.
///
/// # Errors
///
/// The database's.
pub async fn show(client: &Client, id: i64, most: Option<i32>) -> Result<Option<Delivery>, Error> {
    let parameters = [(&id as _, Type::INT8), (&most as _, Type::INT4)];
    let Some(row) = row(
        client,
        include_str!("../../../sql/operator/delivery_show.sql"),
        &parameters,
    )
    .await?
    else {
        return Ok(None);
    };
    Ok(Some(Delivery {
        summary: listed(&row)?,
        budget_from: row.try_get("budget_from")?,
        max_retries: row.try_get("max_retries")?,
        lease_expires_at: row.try_get("lease_expires_at")?,
        leased_by: row.try_get("leased_by")?,
        payload_purged_at: row.try_get("payload_purged_at")?,
        header_names: row.try_get("header_names")?,
        content_type: row.try_get("content_type")?,
        content_bytes: row.try_get("content_bytes")?,
        payload: row.try_get("payload")?,
        body: row.try_get("body")?,
    }))
}

/// Every try of a delivery, in order.
///
/// # Errors
///
/// The database's.
pub async fn attempts(client: &Client, id: i64) -> Result<Vec<Attempt>, Error> {
    let rows = rows(
        client,
        include_str!("../../../sql/operator/attempts.sql"),
        &[(&id, Type::INT8)],
    )
    .await?;
    rows.iter().map(attempt).collect()
}

fn attempt(row: &Row) -> Result<Attempt, Error> {
    Ok(Attempt {
        attempt_no: row.try_get("attempt_no")?,
        claim_no: row.try_get("claim_no")?,
        started_at: row.try_get("started_at")?,
        duration_ms: row.try_get("duration_ms")?,
        outcome: row.try_get("outcome")?,
        status_code: row.try_get("status_code")?,
        error_kind: row.try_get("error_kind")?,
        error: row.try_get("error")?,
        worker: row.try_get("worker")?,
        remote_addr: row.try_get("remote_addr")?,
        request_headers: json(row.try_get("request_headers")?),
        response_headers: json(row.try_get("response_headers")?),
        response_body: row.try_get("response_body")?,
        response_truncated: row.try_get("response_truncated")?,
        reply_purged_at: row.try_get("reply_purged_at")?,
        next_retry: row.try_get("next_retry")?,
    })
}

fn json(text: Option<String>) -> Option<Box<RawValue>> {
    text.map(|text| RawValue::from_string(text).expect("jsonb prints as JSON"))
}

/// Ends an open delivery. False: it was cancelled before.
///
/// # Errors
///
/// [`Error::refusal`] when there is no such delivery or it is finished.
pub async fn cancel(client: &Client, id: i64) -> Result<bool, Error> {
    let row = the_row(
        client,
        include_str!("../../../sql/operator/cancel.sql"),
        &[(&id, Type::INT8)],
    )
    .await?;
    Ok(row.try_get("cancelled")?)
}
