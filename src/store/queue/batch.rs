//! From attempts to the arrays that the record statement takes.

use chrono::{DateTime, Utc};
use tokio_postgres::types::ToSql;

use super::millis;
use crate::attempt::{Attempt, Next};
use crate::store::text;

/// Results as the arrays that the record statement takes.
#[derive(Default)]
pub(super) struct Batch<'a> {
    delivery_ids: Vec<i64>,
    claim_nos: Vec<i64>,
    statuses: Vec<&'static str>,
    reasons: Vec<Option<&'static str>>,
    delays_ms: Vec<Option<i64>>,
    endpoints: Vec<&'a str>,
    started_ats: Vec<DateTime<Utc>>,
    durations_ms: Vec<i32>,
    outcomes: Vec<&'static str>,
    status_codes: Vec<Option<i32>>,
    error_kinds: Vec<Option<&'static str>>,
    errors: Vec<Option<String>>,
    request_headers: Vec<String>,
    response_headers: Vec<Option<String>>,
    response_bodies: Vec<Option<&'a [u8]>>,
    truncations: Vec<bool>,
    remote_addrs: Vec<Option<String>>,
}

impl<'a> Batch<'a> {
    pub(super) fn from(attempts: &'a [Attempt]) -> Self {
        let mut batch = Self::default();
        let mut rising: Vec<&Attempt> = attempts.iter().collect();
        rising.sort_unstable_by_key(|attempt| (attempt.delivery_id, attempt.claim_no));
        for attempt in rising {
            let (status, reason, delay) = match attempt.next {
                Next::Delivered => ("delivered", None, None),
                Next::Retry(delay) => ("failed", None, Some(millis(delay))),
                Next::Exhausted(reason) => ("exhausted", Some(reason.as_str()), None),
            };
            batch.delivery_ids.push(attempt.delivery_id);
            batch.claim_nos.push(attempt.claim_no);
            batch.statuses.push(status);
            batch.reasons.push(reason);
            batch.delays_ms.push(delay);
            batch.endpoints.push(&attempt.endpoint);
            batch.started_ats.push(attempt.started_at);
            batch
                .durations_ms
                .push(i32::try_from(attempt.duration.as_millis()).unwrap_or(i32::MAX));
            batch.outcomes.push(attempt.outcome.as_str());
            batch.status_codes.push(attempt.status_code.map(i32::from));
            batch.error_kinds.push(attempt.error_kind);
            batch
                .errors
                .push(attempt.error.as_deref().map(text::storable));
            batch
                .request_headers
                .push(text::request_headers(&attempt.request_headers));
            let answered = attempt.response_body.is_some();
            batch
                .response_headers
                .push(answered.then(|| text::response_headers(&attempt.response_headers)));
            batch.response_bodies.push(attempt.response_body.as_deref());
            batch.truncations.push(attempt.response_truncated);
            batch
                .remote_addrs
                .push(attempt.remote_addr.map(|addr| addr.to_string()));
        }
        batch
    }

    /// In the order of `sql/worker/record.sql`.
    pub(super) fn params<'p>(&'p self, worker: &'p &str) -> [&'p (dyn ToSql + Sync); 18] {
        [
            &self.delivery_ids,
            &self.claim_nos,
            &self.statuses,
            &self.reasons,
            &self.delays_ms,
            &self.endpoints,
            &self.started_ats,
            &self.durations_ms,
            &self.outcomes,
            &self.status_codes,
            &self.error_kinds,
            &self.errors,
            &self.request_headers,
            &self.response_headers,
            &self.response_bodies,
            &self.truncations,
            &self.remote_addrs,
            worker,
        ]
    }
}
