//! What came back from one physical try. A refused connection is a reply too: it is judged, not thrown.

use std::net::SocketAddr;
use std::time::Duration;

/// The most of a response body that is kept, in bytes.
pub const BODY_CAP: usize = 16 * 1024;

/// The outcome of one physical HTTP try, before anybody has judged it.
#[derive(Clone, Debug)]
pub struct Reply {
    /// A response, or why there is none.
    pub answer: Answer,
    /// From the start of the try to its end, monotonic.
    pub duration: Duration,
    /// The peer that answered, when known.
    pub remote_addr: Option<SocketAddr>,
}

/// A response or the failure that took its place.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A status line and headers arrived.
    Response(Response),
    /// No status arrived.
    Failure(Failure),
}

/// What the receiver said.
#[derive(Clone, Debug)]
pub struct Response {
    /// HTTP status code, 100 to 999.
    pub status: u16,
    /// Every header value in wire order; a value is raw bytes, since receivers send anything.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The first [`BODY_CAP`] bytes.
    pub body: Vec<u8>,
    /// Whether `body` is all of it.
    pub completeness: Completeness,
}

impl Response {
    /// The values of a header in wire order; names compare without case.
    pub fn header_values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.headers
            .iter()
            .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_slice())
    }
}

/// Whether a response body is all that the receiver sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// The whole body was read.
    Whole,
    /// Cut at the cap, at the deadline, or by the receiver.
    Truncated,
}

/// Why no status came back.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The kind that the attempts table shows as `error_kind`.
    pub kind: FailureKind,
    /// For a person: what failed, with the chain of causes; no credentials, no query string.
    pub message: String,
}

/// The kinds of failure a try can end in without a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The host name did not resolve.
    Dns,
    /// No TCP connection: refused, unreachable, or no answer within the connect limit.
    Connect,
    /// The TLS handshake failed.
    Tls,
    /// The try's deadline passed before a status arrived.
    Timeout,
    /// What came back is not HTTP, or the connection ended before a status.
    Protocol,
    /// The address is forbidden; no byte was sent.
    Blocked,
}

impl FailureKind {
    /// The word in `attempts.error_kind`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Protocol => "protocol",
            Self::Blocked => "blocked",
        }
    }
}
