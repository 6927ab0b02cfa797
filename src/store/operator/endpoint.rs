//! Endpoints: added, looked at, held, ended, and given secrets.

use std::fmt;

use serde::Serialize;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::{row, rows, the_row};
use crate::harmless;
use crate::store::Error;

/// Whether deliveries of an endpoint wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// They do not.
    #[default]
    None,
    /// One after another, in the order of their ids.
    ById,
}

/// What a new endpoint is to be. `None` leaves a setting at the table's default.
#[derive(Default)]
pub struct NewEndpoint {
    /// Its name; generated when left out.
    pub name: Option<String>,
    /// Where deliveries go.
    pub url: String,
    /// Retry policy, by name.
    pub policy: Option<String>,
    /// Retries after the first try.
    pub max_retries: Option<i32>,
    /// Budget of a whole try, in seconds.
    pub timeout_seconds: Option<f64>,
    /// Requests at a time.
    pub max_in_flight: Option<i32>,
    /// Requests per second.
    pub rate_limit: Option<f64>,
    /// JSON text: an object of strings.
    pub headers: Option<String>,
    /// Signature scheme.
    pub scheme: Option<String>,
    /// For the scheme body-base64.
    pub signature_header: Option<String>,
    /// HTTP method.
    pub method: Option<String>,
    /// Which published events it gets.
    pub event_types: Option<Vec<String>>,
    /// Whose it is.
    pub tenant: Option<String>,
    /// Which of them: a jsonpath.
    pub filter: Option<String>,
    /// In what order, and how many at a time.
    pub order: Order,
    /// The caller's own signing secret; generated when left out.
    pub secret: Option<String>,
}

impl fmt::Debug for NewEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // URL, headers and secret hold credentials.
        f.debug_struct("NewEndpoint")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// An endpoint's name and the secret its receiver verifies with: to be shown once.
#[derive(Serialize)]
pub struct WithSecret {
    /// `endpoints.name`.
    pub name: String,
    /// `whsec_` and base64.
    pub secret: String,
}

impl fmt::Debug for WithSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithSecret")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A line of the list of endpoints.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// `endpoints.name`.
    pub name: String,
    /// Without credentials.
    pub url: String,
    /// Not disabled.
    pub enabled: bool,
    /// Its deliveries wait.
    pub paused: bool,
    /// By name.
    pub retry_policy: String,
    /// How requests are signed.
    pub signature_scheme: String,
    /// Whose it is.
    pub tenant: Option<String>,
    /// Which published events it gets; `None`: all.
    pub event_types: Option<Vec<String>>,
    /// Which of them: a jsonpath.
    pub filter: Option<String>,
    /// Its backlog.
    #[serde(flatten)]
    pub backlog: Backlog,
    /// Failed tries since the last success.
    pub consecutive_failures: i32,
    /// When the first of them was recorded.
    pub failing_since: Option<String>,
}

/// The open deliveries of an endpoint.
#[derive(Debug, Serialize)]
pub struct Backlog {
    /// Queued or failed.
    pub open: i64,
    /// Wait for a worker now.
    pub due: i64,
    /// A try of theirs is going on.
    pub in_flight: i64,
    /// Wait for a retry.
    pub failed: i64,
    /// Since when the oldest that is not in flight is due.
    pub oldest_due: Option<String>,
}

/// All that may be known of one endpoint.
#[derive(Debug, Serialize)]
pub struct Endpoint {
    /// `endpoints.name`.
    pub name: String,
    /// Without credentials.
    pub url: String,
    /// Not disabled.
    pub enabled: bool,
    /// When it was disabled.
    pub disabled_at: Option<String>,
    /// Why.
    pub disabled_reason: Option<String>,
    /// Its deliveries wait.
    pub paused: bool,
    /// Why.
    pub paused_reason: Option<String>,
    /// By name.
    pub retry_policy: String,
    /// Its own; `None`: the policy's.
    pub max_retries: Option<i32>,
    /// The policy's.
    pub policy_max_retries: i32,
    /// Budget of a whole try.
    pub timeout_ms: i64,
    /// Requests at a time.
    pub max_in_flight: i32,
    /// Requests per second.
    pub rate_limit: Option<f64>,
    /// In order of insertion, one at a time.
    pub ordered: bool,
    /// Which published events it gets; `None`: all.
    pub event_types: Option<Vec<String>>,
    /// Which of them: a jsonpath.
    pub filter: Option<String>,
    /// Whose it is.
    pub tenant: Option<String>,
    /// Names of its headers; their values are often credentials.
    pub header_names: Vec<String>,
    /// HTTP method.
    pub method: String,
    /// How requests are signed.
    pub signature_scheme: String,
    /// For the scheme body-base64.
    pub signature_header: Option<String>,
    /// When it was added.
    pub created_at: String,
    /// When it was edited.
    pub updated_at: String,
    /// Its open deliveries.
    #[serde(flatten)]
    pub backlog: Backlog,
    /// Failed tries since the last success.
    pub consecutive_failures: i32,
    /// When the first of them was recorded.
    pub failing_since: Option<String>,
    /// The success that ended the last run of failures, or the first one.
    pub last_success_at: Option<String>,
    /// Nothing is sent to it before then.
    pub circuit_open_until: Option<String>,
    /// When it is ordered: the open delivery whose turn it is, and which holds the rest.
    pub head: Option<i64>,
    /// What that one does.
    pub head_state: Option<String>,
    /// When that one is due.
    pub head_next_retry: Option<String>,
    /// Its secrets by their dates, newest first.
    pub secrets: Vec<SecretDates>,
}

/// A secret by its dates.
#[derive(Debug, Serialize)]
pub struct SecretDates {
    /// When it was made.
    pub created_at: String,
    /// Signs until then; `None`: without end.
    pub expires_at: Option<String>,
    /// Signs now.
    pub live: bool,
}

/// Adds an endpoint and hands out the secret of its receiver.
///
/// # Errors
///
/// [`Error::refusal`] when the name is taken, the policy unknown or a value outside its rule.
pub async fn add(client: &mut Client, new: &NewEndpoint) -> Result<WithSecret, Error> {
    let transaction = client.transaction().await?;
    let name: String = the_row(
        &transaction,
        include_str!("../../../sql/operator/endpoint_add.sql"),
        &[
            (&new.name, Type::TEXT),
            (&new.url, Type::TEXT),
            (&new.policy, Type::TEXT),
            (&new.max_retries, Type::INT4),
            (&new.timeout_seconds, Type::FLOAT8),
            (&new.max_in_flight, Type::INT4),
            (&new.rate_limit, Type::FLOAT8),
            (&new.headers, Type::TEXT),
            (&new.scheme, Type::TEXT),
            (&new.signature_header, Type::TEXT),
            (&new.method, Type::TEXT),
            (&new.event_types, Type::TEXT_ARRAY),
            (&new.tenant, Type::TEXT),
            (&new.filter, Type::TEXT),
            (&(new.order == Order::ById), Type::BOOL),
        ],
    )
    .await?
    .try_get("name")?;
    if let Some(secret) = &new.secret {
        let statement = include_str!("../../../sql/operator/endpoint_set_secret.sql");
        rows(
            &transaction,
            statement,
            &[(&name, Type::TEXT), (secret, Type::TEXT)],
        )
        .await?;
    }
    let statement = include_str!("../../../sql/operator/endpoint_newest_secret.sql");
    let secret = the_row(&transaction, statement, &[(&name, Type::TEXT)])
        .await?
        .try_get("secret")?;
    transaction.commit().await?;
    Ok(WithSecret { name, secret })
}

/// Every endpoint, by name.
///
/// # Errors
///
/// The database's.
pub async fn list(client: &Client) -> Result<Vec<Listed>, Error> {
    let rows = rows(
        client,
        include_str!("../../../sql/operator/endpoint_list.sql"),
        &[],
    )
    .await?;
    rows.iter().map(listed).collect()
}

fn listed(row: &Row) -> Result<Listed, Error> {
    Ok(Listed {
        name: row.try_get("name")?,
        url: harmless::url(row.try_get("url")?),
        enabled: row.try_get("enabled")?,
        paused: row.try_get("paused")?,
        retry_policy: row.try_get("retry_policy")?,
        signature_scheme: row.try_get("signature_scheme")?,
        tenant: row.try_get("tenant")?,
        event_types: row.try_get("event_types")?,
        filter: row.try_get("filter")?,
        backlog: backlog(row)?,
        consecutive_failures: row.try_get("consecutive_failures")?,
        failing_since: row.try_get("failing_since")?,
    })
}

fn backlog(row: &Row) -> Result<Backlog, Error> {
    Ok(Backlog {
        open: row.try_get("open")?,
        due: row.try_get("due")?,
        in_flight: row.try_get("in_flight")?,
        failed: row.try_get("failed")?,
        oldest_due: row.try_get("oldest_due")?,
    })
}

/// One endpoint, if there is one of this name.
///
/// # Errors
///
/// The database's.
pub async fn show(client: &Client, name: &str) -> Result<Option<Endpoint>, Error> {
    let parameters = [(&name as _, Type::TEXT)];
    let Some(found) = row(
        client,
        include_str!("../../../sql/operator/endpoint_show.sql"),
        &parameters,
    )
    .await?
    else {
        return Ok(None);
    };
    let secrets = rows(
        client,
        include_str!("../../../sql/operator/endpoint_secrets.sql"),
        &parameters,
    )
    .await?;
    let secrets = secrets.iter().map(secret_dates).collect::<Result<_, _>>()?;
    Ok(Some(endpoint(&found, secrets)?))
}

fn endpoint(row: &Row, secrets: Vec<SecretDates>) -> Result<Endpoint, Error> {
    Ok(Endpoint {
        name: row.try_get("name")?,
        url: harmless::url(row.try_get("url")?),
        enabled: row.try_get("enabled")?,
        disabled_at: row.try_get("disabled_at")?,
        disabled_reason: row.try_get("disabled_reason")?,
        paused: row.try_get("paused")?,
        paused_reason: row.try_get("paused_reason")?,
        retry_policy: row.try_get("retry_policy")?,
        max_retries: row.try_get("max_retries")?,
        policy_max_retries: row.try_get("policy_max_retries")?,
        timeout_ms: row.try_get("timeout_ms")?,
        max_in_flight: row.try_get("max_in_flight")?,
        rate_limit: row.try_get("rate_limit")?,
        ordered: row.try_get("ordered")?,
        event_types: row.try_get("event_types")?,
        filter: row.try_get("filter")?,
        tenant: row.try_get("tenant")?,
        header_names: row.try_get("header_names")?,
        method: row.try_get("method")?,
        signature_scheme: row.try_get("signature_scheme")?,
        signature_header: row.try_get("signature_header")?,
        created_at: row.try_get("created_at")?,
        updated_at: row.try_get("updated_at")?,
        backlog: backlog(row)?,
        consecutive_failures: row.try_get("consecutive_failures")?,
        failing_since: row.try_get("failing_since")?,
        last_success_at: row.try_get("last_success_at")?,
        circuit_open_until: row.try_get("circuit_open_until")?,
        head: row.try_get("head")?,
        head_state: row.try_get("head_state")?,
        head_next_retry: row.try_get("head_next_retry")?,
        secrets,
    })
}

fn secret_dates(row: &Row) -> Result<SecretDates, Error> {
    Ok(SecretDates {
        created_at: row.try_get("created_at")?,
        expires_at: row.try_get("expires_at")?,
        live: row.try_get("live")?,
    })
}

/// Whether there is an endpoint of this name.
///
/// # Errors
///
/// The database's.
pub async fn exists(client: &Client, name: &str) -> Result<bool, Error> {
    let statement = include_str!("../../../sql/operator/endpoint_exists.sql");
    Ok(the_row(client, statement, &[(&name, Type::TEXT)])
        .await?
        .try_get("found")?)
}

/// Its deliveries wait from now on.
///
/// # Errors
///
/// [`Error::refusal`] when there is no such endpoint.
pub async fn pause(client: &Client, name: &str, reason: Option<&str>) -> Result<(), Error> {
    let parameters = [(&name as _, Type::TEXT), (&reason as _, Type::TEXT)];
    the_row(
        client,
        include_str!("../../../sql/operator/pause.sql"),
        &parameters,
    )
    .await?;
    Ok(())
}

/// Ends a pause.
///
/// # Errors
///
/// [`Error::refusal`] when there is no such endpoint.
pub async fn resume(client: &Client, name: &str) -> Result<(), Error> {
    the_row(
        client,
        include_str!("../../../sql/operator/resume.sql"),
        &[(&name, Type::TEXT)],
    )
    .await?;
    Ok(())
}

/// Sends to it again, with a clean health record.
///
/// # Errors
///
/// [`Error::refusal`] when there is no such endpoint.
pub async fn enable(client: &Client, name: &str) -> Result<(), Error> {
    the_row(
        client,
        include_str!("../../../sql/operator/enable.sql"),
        &[(&name, Type::TEXT)],
    )
    .await?;
    Ok(())
}

/// Its open deliveries end as exhausted, `endpoint_disabled`.
///
/// # Errors
///
/// [`Error::refusal`] when there is no such endpoint.
pub async fn disable(client: &Client, name: &str, reason: Option<&str>) -> Result<(), Error> {
    let parameters = [(&name as _, Type::TEXT), (&reason as _, Type::TEXT)];
    the_row(
        client,
        include_str!("../../../sql/operator/disable.sql"),
        &parameters,
    )
    .await?;
    Ok(())
}

/// Cancels the delivery that holds the rest of an ordered endpoint, and returns its id. `None`: nothing is open, or another one than
/// `seen` stands there.
///
/// # Errors
///
/// [`Error::refusal`] when there is no such endpoint or it is not ordered.
pub async fn skip(client: &Client, name: &str, seen: Option<i64>) -> Result<Option<i64>, Error> {
    let row = the_row(
        client,
        include_str!("../../../sql/operator/skip.sql"),
        &[(&name, Type::TEXT), (&seen, Type::INT8)],
    )
    .await?;
    Ok(row.try_get("skipped")?)
}

/// Gives it a new secret; the old ones go on signing for `overlap_seconds`.
///
/// # Errors
///
/// [`Error::refusal`] when there is no such endpoint.
pub async fn rotate_secret(
    client: &Client,
    name: &str,
    overlap_seconds: f64,
) -> Result<WithSecret, Error> {
    let parameters = [
        (&name as _, Type::TEXT),
        (&overlap_seconds as _, Type::FLOAT8),
    ];
    let row = the_row(
        client,
        include_str!("../../../sql/operator/rotate_secret.sql"),
        &parameters,
    )
    .await?;
    Ok(WithSecret {
        name: name.to_owned(),
        secret: row.try_get("secret")?,
    })
}
