//! What the log says of results: one line for those of a batch that went the same way at the same endpoint.
//!
//! So ten thousand rows for one broken endpoint are some dozens of lines. Each try by itself is on record in `postrider.attempts`.

use std::collections::{BTreeMap, HashSet};

use crate::attempt::{Attempt, Next, Reason};

/// Tells how tries went.
pub(super) fn attempts(batch: &[Attempt]) {
    let mut alike: BTreeMap<_, Vec<&Attempt>> = BTreeMap::new();
    for attempt in batch {
        let key = (
            attempt.endpoint.as_str(),
            Way::of(attempt.next),
            attempt.status_code,
            attempt.error_kind,
        );
        alike.entry(key).or_default().push(attempt);
    }
    for ((endpoint, way, status, _), attempts) in alike {
        let deliveries = attempts.len();
        let Some(first) = attempts.first() else {
            continue;
        };
        let (delivery, error) = (first.delivery_id, first.error.as_deref());
        let duration_ms = first.duration.as_millis();
        match first.next {
            Next::Delivered => {
                tracing::debug!(
                    endpoint,
                    delivery,
                    deliveries,
                    status,
                    duration_ms,
                    "delivered"
                );
            }
            Next::Retry(delay) => tracing::info!(
                endpoint,
                delivery,
                deliveries,
                status,
                duration_ms,
                error,
                retry_s = delay.as_secs_f64().round(),
                "failed, will be tried again"
            ),
            Next::Exhausted(_) => tracing::warn!(
                endpoint,
                delivery,
                deliveries,
                status,
                duration_ms,
                error,
                reason = way.reason(),
                "exhausted, will not be tried again"
            ),
        }
    }
}

/// Tells which results moved no delivery.
pub(super) fn late(batch: &[Attempt], moved: &[i64]) {
    let moved: HashSet<i64> = moved.iter().copied().collect();
    let mut late = batch
        .iter()
        .filter(|attempt| !moved.contains(&attempt.delivery_id));
    if let Some(first) = late.next() {
        tracing::warn!(
            endpoint = first.endpoint,
            delivery = first.delivery_id,
            outcome = first.outcome.as_str(),
            deliveries = 1 + late.count(),
            "results came too late: their leases had run out, or the deliveries were cancelled"
        );
    }
}

/// How a try went, without what differs from one to the next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Delivered,
    Retry,
    Exhausted(&'static str),
}

impl Way {
    fn of(next: Next) -> Self {
        match next {
            Next::Delivered => Self::Delivered,
            Next::Retry(_) => Self::Retry,
            Next::Exhausted(reason) => Self::Exhausted(Reason::as_str(reason)),
        }
    }

    fn reason(self) -> Option<&'static str> {
        match self {
            Self::Exhausted(reason) => Some(reason),
            Self::Delivered | Self::Retry => None,
        }
    }
}
