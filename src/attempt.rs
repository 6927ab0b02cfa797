//! What goes on record of one physical try, and what it means for its delivery.
//!
//! Owns the words of `attempts.outcome` and `deliveries.exhausted_reason`. Nothing here reads a clock, a socket or a database.

use std::net::SocketAddr;
use std::time::Duration;

use chrono::{DateTime, Utc};

/// One physical try, ready to be recorded.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// `deliveries.id`.
    pub delivery_id: i64,
    /// The claim under which it was made; the record is fenced by it.
    pub claim_no: i64,
    /// Name of the endpoint.
    pub endpoint: String,
    /// Database time when it began; picks the partition.
    pub started_at: DateTime<Utc>,
    /// Monotonic.
    pub duration: Duration,
    /// How it went.
    pub outcome: Outcome,
    /// What becomes of the delivery.
    pub next: Next,
    /// HTTP status, if one arrived.
    pub status_code: Option<u16>,
    /// The word for what went wrong without a status.
    pub error_kind: Option<&'static str>,
    /// What went wrong, for people.
    pub error: Option<String>,
    /// As sent, credentials masked.
    pub request_headers: Vec<(String, String)>,
    /// As received, in order.
    pub response_headers: Vec<(String, Vec<u8>)>,
    /// The first bytes of the response body; `None` when no response arrived.
    pub response_body: Option<Vec<u8>>,
    /// The receiver sent more, or broke off.
    pub response_truncated: bool,
    /// The peer that answered, when known.
    pub remote_addr: Option<SocketAddr>,
}

/// How one try went: `attempts.outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver has it.
    Delivered,
    /// Failed for now.
    Retry,
    /// Failed for good.
    Rejected,
    /// The address is forbidden; no byte was sent.
    Blocked,
    /// No request could be made; no byte was sent.
    Unbuildable,
    /// Its end is not known: the worker stopped before the reply.
    Lost,
}

impl Outcome {
    /// The word in the table.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Retry => "retry",
            Self::Rejected => "rejected",
            Self::Blocked => "blocked",
            Self::Unbuildable => "unbuildable",
            Self::Lost => "lost",
        }
    }
}

/// What becomes of a delivery after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is delivered.
    Delivered,
    /// It has failed and is tried again after this long.
    Retry(Duration),
    /// It will never be tried again.
    Exhausted(Reason),
}

/// Why a try's delivery is exhausted: the words of `deliveries.exhausted_reason` that a worker's try can end in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The retry budget is used up.
    RetriesUsed,
    /// The receiver refused it for good.
    Rejected,
    /// 410; the endpoint is disabled with it.
    Gone,
    /// No request could be made of it.
    Unbuildable,
    /// Its address is forbidden.
    Blocked,
    /// Its last try never reported.
    Lost,
}

impl Reason {
    /// The word in the table.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RetriesUsed => "retries_used",
            Self::Rejected => "rejected",
            Self::Gone => "gone",
            Self::Unbuildable => "unbuildable",
            Self::Blocked => "blocked",
            Self::Lost => "lost",
        }
    }
}
