//! A receiver of webhooks for development: verifies, counts, and answers as its rules say.
//!
//! Owns what a request is answered and what is remembered of it. It prints nothing: whoever makes
//! one says what happens with each request, so that a demonstration or a test can have it, too.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::{Router, http::request::Parts};
use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use http::StatusCode;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::signing::{Scheme, Secret, WEBHOOK_ID, verify};

/// The largest body that is taken, in bytes.
pub const LARGEST_BODY: usize = 32 * 1024 * 1024;

/// How far a signature's time may be from ours; what receivers' libraries use.
const TOLERANCE: Duration = Duration::from_secs(300);

/// What requests are checked for and answered.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How requests are signed.
    pub scheme: Scheme,
    /// One that fits is enough. None: nothing is checked.
    pub secrets: Vec<Secret>,
    /// What becomes of a request whose signature does not verify.
    pub unverified: Unverified,
    /// Failures on purpose.
    pub fail: Option<OnPurpose>,
    /// What a request is answered otherwise.
    pub status: StatusCode,
    /// Wait before each answer.
    pub delay: Duration,
}

/// What becomes of a request whose signature does not verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unverified {
    /// It is marked, and answered as any other.
    Tell,
    /// It is answered 401.
    Refuse,
}

/// A failure on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnPurpose {
    /// What is answered.
    pub status: StatusCode,
    /// How many tries of each id fail; `None`: all.
    pub times: Option<u64>,
}

/// One request, as it came and as it is answered.
#[derive(Clone, Debug)]
pub struct Received {
    /// When its head had come, by this machine's clock.
    pub at: DateTime<Utc>,
    /// Counts the requests, from 1.
    pub count: u64,
    /// The method, usually `POST`.
    pub method: String,
    /// Path and query of its address.
    pub path: String,
    /// `webhook-id`, if it has one.
    pub id: Option<String>,
    /// `type` of a JSON body, if it has one.
    pub event_type: Option<String>,
    /// Counts the requests with this id, from 1; always 1 without an id.
    pub try_no: u64,
    /// What the signature says.
    pub check: Check,
    /// The answer.
    pub status: StatusCode,
    /// The bytes as they came; empty if they were too many or broke off.
    pub body: Bytes,
}

/// What the signature of a request says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// It was made with one of the secrets.
    Verified,
    /// Do not trust the request, for this reason.
    Unverified(String),
    /// There is no secret to check with.
    Unchecked,
}

/// What came so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// All requests.
    pub requests: u64,
    /// Different ids among them.
    pub ids: u64,
    /// Requests with an id that had come before.
    pub repeats: u64,
    /// Requests whose signature did not verify.
    pub unverified: u64,
    /// Different ids that were answered with a 2xx.
    pub accepted: u64,
}

/// See the module's docs. Shared by all connections.
pub struct Receiver {
    rules: Rules,
    on_request: Box<dyn Fn(&Received) + Send + Sync>,
    memory: Mutex<Memory>,
    accepted: watch::Sender<u64>,
}

#[derive(Default)]
struct Memory {
    summary: Summary,
    tries: HashMap<String, u64>,
    accepted: HashSet<String>,
}

impl Receiver {
    /// `on_request` is called once per request, in the order of their counts, before the answer goes out.
    pub fn new(rules: Rules, on_request: impl Fn(&Received) + Send + Sync + 'static) -> Self {
        Self {
            rules,
            on_request: Box::new(on_request),
            memory: Mutex::default(),
            accepted: watch::Sender::new(0),
        }
    }

    /// Answers every request on `listener`. After `stop` it takes no more and returns when all are answered.
    ///
    /// # Errors
    ///
    /// The listener's, which end it.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let app = Router::new().fallback(receive).with_state(self);
        axum::serve(listener, app)
            .with_graceful_shutdown(stop)
            .await
    }

    /// Returns when this many different ids were answered with a 2xx.
    pub async fn accepted(&self, ids: u64) {
        let mut seen = self.accepted.subscribe();
        seen.wait_for(|accepted| *accepted >= ids)
            .await
            .expect("we hold the sender");
    }

    /// What came so far.
    pub fn summary(&self) -> Summary {
        self.memory().summary
    }

    /// Judges, counts and reports a request.
    fn note(&self, at: SystemTime, head: &Parts, body: Result<Bytes, Unread>) -> Received {
        let id = head
            .headers
            .get(WEBHOOK_ID)
            .map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned());
        let check = match &body {
            Ok(body) => self.check(at, head, body),
            Err(unread) => Check::Unverified(unread.to_string()),
        };

        // Held while it is reported, so that reports come in the order of the counts.
        let mut memory = self.memory();
        let (count, try_no) = memory.count(id.as_deref(), &check);
        let received = Received {
            at: at.into(),
            count,
            method: head.method.to_string(),
            path: head
                .uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .to_owned(),
            event_type: named_type(&head.headers)
                .or_else(|| body.as_ref().ok().and_then(|body| type_in_body(body))),
            id,
            try_no,
            status: match &body {
                Ok(_) => self.status(try_no, &check),
                Err(unread) => unread.status(),
            },
            check,
            body: body.unwrap_or_default(),
        };
        (self.on_request)(&received);
        received
    }

    fn check(&self, at: SystemTime, head: &Parts, body: &[u8]) -> Check {
        if self.rules.secrets.is_empty() {
            return Check::Unchecked;
        }
        let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(seconds).unwrap_or(i64::MAX);
        match verify(
            &self.rules.scheme,
            &head.headers,
            body,
            &self.rules.secrets,
            now,
            TOLERANCE,
        ) {
            Ok(()) => Check::Verified,
            Err(reason) => Check::Unverified(reason.to_string()),
        }
    }

    fn status(&self, try_no: u64, check: &Check) -> StatusCode {
        if self.rules.unverified == Unverified::Refuse && *check != Check::Verified {
            return StatusCode::UNAUTHORIZED;
        }
        match self.rules.fail {
            Some(fail) if fail.times.is_none_or(|times| try_no <= times) => fail.status,
            _ => self.rules.status,
        }
    }

    /// Remembers an answer that was not cut off by the sender's own timeout.
    fn note_answered(&self, received: &Received) {
        let Some(id) = received
            .id
            .as_ref()
            .filter(|_| received.status.is_success())
        else {
            return;
        };
        let mut memory = self.memory();
        if memory.accepted.insert(id.clone()) {
            memory.summary.accepted += 1;
            self.accepted.send_replace(memory.summary.accepted);
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Counts are whole after every step, whatever a report's panic interrupted.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    /// Counts a request; returns its number and its try.
    fn count(&mut self, id: Option<&str>, check: &Check) -> (u64, u64) {
        self.summary.requests += 1;
        self.summary.unverified += u64::from(matches!(check, Check::Unverified(_)));
        let Some(id) = id else {
            return (self.summary.requests, 1);
        };
        let tries = self.tries.entry(id.to_owned()).or_default();
        *tries += 1;
        if *tries == 1 {
            self.summary.ids += 1;
        } else {
            self.summary.repeats += 1;
        }
        (self.summary.requests, *tries)
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

async fn receive(State(receiver): State<Arc<Receiver>>, request: Request) -> Response {
    let at = SystemTime::now();
    let (head, body) = request.into_parts();
    let body = read(body).await;

    let received = receiver.note(at, &head, body);
    tokio::time::sleep(receiver.rules.delay).await;
    // A sender that hung up during the delay has had us dropped by now.
    receiver.note_answered(&received);
    (received.status, received.explanation()).into_response()
}

impl Received {
    /// The body of an answer that is not a success, for whoever reads the attempt's record.
    fn explanation(&self) -> String {
        match &self.check {
            _ if self.status.is_success() => String::new(),
            Check::Unverified(reason) if self.status.is_client_error() => {
                format!("not verified: {reason}\n")
            }
            Check::Verified | Check::Unverified(_) | Check::Unchecked => {
                format!(
                    "postrider listen was told to answer {}\n",
                    self.status.as_u16()
                )
            }
        }
    }
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
enum Unread {
    #[error("the body is larger than {} MiB", LARGEST_BODY >> 20)]
    TooLarge,
    #[error("the body broke off")]
    BrokeOff,
}

impl Unread {
    fn status(self) -> StatusCode {
        match self {
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BrokeOff => StatusCode::BAD_REQUEST,
        }
    }
}

async fn read(body: Body) -> Result<Bytes, Unread> {
    let mut chunks = body.into_data_stream();
    let mut read = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Unread::BrokeOff)?;
        if read.len() + chunk.len() > LARGEST_BODY {
            return Err(Unread::TooLarge);
        }
        read.extend_from_slice(&chunk);
    }
    Ok(read.freeze())
}

/// What Postrider says the event is.
fn named_type(headers: &http::HeaderMap) -> Option<String> {
    let value = headers.get("postrider-event-type")?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// What the event says it is, as Standard Webhooks bodies do.
fn type_in_body(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Typed {
        r#type: String,
    }

    Some(serde_json::from_slice::<Typed>(body).ok()?.r#type)
}
