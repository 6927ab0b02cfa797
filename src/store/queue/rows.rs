//! From rows to nouns. Values that a CHECK should have kept out are met with a default and named, never with a panic.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use tokio_postgres::Row;

use super::{Claim, Front, Loaded, Taken};
use crate::delivery::{Delivery, Endpoint};
use crate::policy::{Policy, RetryOn, Schedule};
use crate::signing::{Scheme, Secret};
use crate::store::Error;

pub(super) fn read_claim(rows: &[Row]) -> Result<Claim, Error> {
    let (first, deliveries) = rows
        .split_first()
        .expect("a claim always returns where its walk ended");
    let fronts: Vec<String> = first.try_get("fronts")?;
    let fronts_due: Vec<DateTime<Utc>> = first.try_get("fronts_due")?;
    let fronts_id: Vec<i64> = first.try_get("fronts_id")?;
    let fronts = fronts.into_iter().zip(fronts_due).zip(fronts_id);
    let wake_ms: Option<i64> = first.try_get("wake_ms")?;
    let mut claim = Claim {
        walk_end: first.try_get("walk_end")?,
        hops: first.try_get("hops")?,
        claimed_at: first.try_get("claimed_at")?,
        wake: wake_ms.map(duration),
        disabled: first.try_get("disabled")?,
        rationed: first.try_get("rationed")?,
        capped: first.try_get("capped")?,
        contended: first.try_get("contended")?,
        heavy: first.try_get("heavy")?,
        changes: first.try_get("changes")?,
        fronts: fronts
            .map(|((endpoint, next_retry), id)| Front {
                endpoint,
                next_retry,
                id,
            })
            .collect(),
        took: duration(first.try_get("took_ms")?),
        taken: Vec::with_capacity(deliveries.len()),
        ended: Vec::new(),
    };
    for row in deliveries {
        let id = row.try_get("id")?;
        match row.try_get("ended_as")? {
            Some(reason) => claim.ended.push((id, reason)),
            None => claim.taken.push(read_taken(id, row)?),
        }
    }
    Ok(claim)
}

fn read_taken(id: i64, row: &Row) -> Result<Taken, Error> {
    let payload: Option<&str> = row.try_get("payload")?;
    let (body, kind) = match payload {
        Some(json) => (Bytes::copy_from_slice(json.as_bytes()), "application/json"),
        None => {
            let bytes: Option<&[u8]> = row.try_get("body")?;
            (
                Bytes::copy_from_slice(bytes.unwrap_or_default()),
                "application/octet-stream",
            )
        }
    };
    let left_ms: Option<i64> = row.try_get("left_ms")?;
    let content_type: Option<String> = row.try_get("content_type")?;
    Ok(Taken {
        delivery: Delivery {
            id,
            endpoint: row.try_get("endpoint")?,
            event_id: row.try_get("event_id")?,
            event_type: row.try_get("event_type")?,
            body,
            content_type: content_type.unwrap_or_else(|| kind.to_owned()),
            headers: row.try_get("headers")?,
            claim_no: row.try_get("claim_no")?,
            attempt_count: count(row.try_get("attempt_count")?),
            tries_used: count(row.try_get("tries_used")?),
            max_retries: count(row.try_get("max_retries")?),
        },
        revision: row.try_get("revision")?,
        lease: duration(row.try_get("lease_ms")?),
        left: left_ms.map(duration),
    })
}

pub(super) fn read_endpoint(row: &Row) -> Result<Loaded, Error> {
    let mut faults = Vec::new();
    let scheme_name: &str = row.try_get("signature_scheme")?;
    let scheme = Scheme::parse(scheme_name, row.try_get("signature_header")?);
    faults.extend(scheme.as_ref().err().map(ToString::to_string));
    let texts: Vec<String> = row.try_get("secrets")?;
    let mut secrets = Vec::with_capacity(texts.len());
    for text in &texts {
        match Secret::parse(text) {
            Ok(secret) => secrets.push(secret),
            Err(error) => faults.push(error.to_string()),
        }
    }
    let retry_on: Option<Vec<String>> = row.try_get("retry_on")?;
    let retry_on = retry_on.map_or_else(|| Ok(RetryOn::default()), |items| RetryOn::parse(&items));
    let retry_on = retry_on.unwrap_or_else(|error| {
        faults.push(error.to_string());
        RetryOn::default()
    });
    let lefts: Vec<Option<i64>> = row.try_get("secrets_left_ms")?;
    let endpoint = Endpoint {
        name: row.try_get("name")?,
        revision: row.try_get("revision")?,
        url: row.try_get("url")?,
        method: row.try_get("method")?,
        headers: row.try_get("headers")?,
        timeout: duration(row.try_get("timeout_ms")?),
        scheme,
        secrets,
        policy: Policy {
            schedule: read_schedule(row)?,
            jitter: row.try_get("jitter")?,
            retry_on,
        },
    };
    Ok(Loaded {
        endpoint,
        good_for: lefts.into_iter().flatten().min().map(duration),
        faults,
    })
}

fn read_schedule(row: &Row) -> Result<Schedule, Error> {
    let kind: &str = row.try_get("kind")?;
    if kind == "exponential" {
        let base: Option<i64> = row.try_get("base_ms")?;
        let factor: Option<f64> = row.try_get("factor")?;
        let cap: Option<i64> = row.try_get("cap_ms")?;
        return Ok(Schedule::Exponential {
            base: duration(base.unwrap_or_default()),
            factor: factor.unwrap_or(1.0),
            cap: duration(cap.unwrap_or_default()),
        });
    }
    let delays: Vec<i64> = row.try_get("delays_ms")?;
    Ok(Schedule::Fixed {
        delays: delays.into_iter().map(duration).collect(),
    })
}

/// Milliseconds from the database; a negative one is no time at all.
fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// A counter that a CHECK keeps from being negative.
fn count(n: i32) -> u32 {
    u32::try_from(n).unwrap_or(0)
}
