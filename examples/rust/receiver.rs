//! Receives webhooks: verifies each request, does its work once, and answers.
//!
//! Environment: `WEBHOOK_SECRET` (`whsec_...`), `PORT` (9000), `DATABASE_URL`.
#![allow(
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program of somebody who uses Postrider"
)]

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::routing::post;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use deadpool_postgres::{Manager, Pool, Transaction};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use sha2::Sha256;
use tokio_postgres::NoTls;

const LARGEST_BODY: usize = 1 << 20;
const TOLERANCE_SECONDS: u64 = 5 * 60;

struct Receiver {
    key: Vec<u8>,
    pool: Pool,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    event_type: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let secret = std::env::var("WEBHOOK_SECRET").context("WEBHOOK_SECRET")?;
    let key = secret.strip_prefix("whsec_").unwrap_or(&secret);
    let database: tokio_postgres::Config = std::env::var("DATABASE_URL")
        .context("DATABASE_URL")?
        .parse()?;
    let port = match std::env::var("PORT") {
        Ok(port) => port.parse().context("PORT")?,
        Err(_) => 9000,
    };

    let receiver = Receiver {
        key: BASE64_STANDARD.decode(key).context("WEBHOOK_SECRET")?,
        pool: Pool::builder(Manager::new(database, NoTls))
            .max_size(8)
            .build()?,
    };
    let tables = "create table if not exists seen_webhooks (
                    webhook_id  text primary key,
                    received_at timestamptz not null default now()  -- older than your longest retry: can go
                  );
                  create table if not exists received_events (event_type text not null, body text not null)";
    receiver.pool.get().await?.batch_execute(tables).await?;
    let app = Router::new()
        .route("/", post(receive))
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(Arc::new(receiver));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    Ok(axum::serve(listener, app).await?)
}

/// 5xx: it comes again; 4xx: it does not.
async fn receive(
    State(receiver): State<Arc<Receiver>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let Some(webhook_id) = verified(&receiver.key, &headers, &body) else {
        return StatusCode::UNAUTHORIZED;
    };
    let (Ok(text), Ok(event)) = (
        std::str::from_utf8(&body),
        serde_json::from_slice::<Event>(&body),
    ) else {
        return StatusCode::BAD_REQUEST;
    };
    match once(&receiver.pool, webhook_id, &event, text).await {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(error) => {
            eprintln!("{error:#}");
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

/// The `webhook-id`, if one of the signatures is right and fresh.
fn verified<'a>(key: &[u8], headers: &'a HeaderMap, body: &[u8]) -> Option<&'a str> {
    let header = |name| headers.get(name)?.to_str().ok();
    let id = header("webhook-id")?;
    let timestamp = header("webhook-timestamp")?;
    let signatures = header("webhook-signature")?;

    // An old request may be somebody's recording of it.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    if now.abs_diff(timestamp.parse().ok()?) > TOLERANCE_SECONDS {
        return None;
    }
    // Over the very bytes: a body that was parsed and written again has others.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    // There are several while a secret is being changed; one that fits is enough.
    signatures
        .split(' ')
        .filter_map(|one| BASE64_STANDARD.decode(one.strip_prefix("v1,")?).ok())
        .any(|signature| mac.clone().verify_slice(&signature).is_ok())
        .then_some(id)
}

/// The id is noted in the transaction that does the work: both are committed, or neither.
async fn once(pool: &Pool, webhook_id: &str, event: &Event, body: &str) -> anyhow::Result<()> {
    let note = "insert into seen_webhooks (webhook_id) values ($1) on conflict do nothing";

    let mut db = pool.get().await?;
    // Dropped before the commit, it is rolled back.
    let transaction = db.transaction().await?;
    if transaction.execute(note, &[&webhook_id]).await? == 1 {
        work(&transaction, event, body).await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Yours. What takes longer than some seconds should only be queued here.
async fn work(transaction: &Transaction<'_>, event: &Event, body: &str) -> anyhow::Result<()> {
    let insert = "insert into received_events (event_type, body) values ($1, $2)";

    transaction
        .execute(insert, &[&event.event_type, &body])
        .await?;
    Ok(())
}
