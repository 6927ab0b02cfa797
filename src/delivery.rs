//! What one try needs to know: the delivery and its endpoint, as the claim hands them over.
//!
//! Owns the shapes only. Nothing here reads a clock, a socket or a database.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::policy::Policy;
use crate::signing::{Scheme, SchemeError, Secret};

/// One claimed delivery: the frozen event and the budget that is left for it.
#[derive(Clone)]
pub struct Delivery {
    /// `deliveries.id`.
    pub id: i64,
    /// Name of the endpoint it goes to.
    pub endpoint: String,
    /// Idempotency key; the same on every try, `webhook-id` on the wire.
    pub event_id: String,
    /// For example `order.paid`.
    pub event_type: String,
    /// The stored bytes: what is signed is what is sent.
    pub body: Bytes,
    /// Media type of `body`.
    pub content_type: String,
    /// Extra headers of this delivery as JSON text (an object of strings), if any.
    pub headers: Option<String>,
    /// The fencing token of this claim.
    pub claim_no: i64,
    /// Physical tries on record before this one.
    pub attempt_count: u32,
    /// Tries already spent from the present retry budget (a replay starts a new one).
    pub tries_used: u32,
    /// Retries allowed after the first try; from delivery, endpoint, policy in this order.
    pub max_retries: u32,
}

/// Where deliveries go and how: one row of `endpoints` with its policy and secrets.
#[derive(Clone)]
pub struct Endpoint {
    /// `endpoints.name`.
    pub name: String,
    /// Changes with every edit of the endpoint, its secrets or its policy.
    pub revision: i64,
    /// As the user wrote it; may be nonsense, then the try is unbuildable.
    pub url: String,
    /// `POST`, `PUT` or `PATCH`.
    pub method: String,
    /// Headers of every delivery as JSON text (an object of strings), if any.
    pub headers: Option<String>,
    /// Budget of one whole try: DNS, connect, TLS, headers and body.
    pub timeout: Duration,
    /// How requests are signed, or why the setting makes no sense.
    pub scheme: Result<Scheme, SchemeError>,
    /// Live secrets, newest first.
    pub secrets: Vec<Secret>,
    /// When a failed try is tried again.
    pub policy: Policy,
}

// No derive: bodies, headers and URLs hold what no log may show.
impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.id)
            .field("endpoint", &self.endpoint)
            .field("event_id", &self.event_id)
            .field("claim_no", &self.claim_no)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("name", &self.name)
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}
