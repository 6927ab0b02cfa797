//! The HTTP client: one request, one physical try, one reply.
//!
//! Owns the deadline over the whole try and everything that a client library does by itself. Off are redirects,
//! cookies, decompression, proxies from the environment, and retries.
//!
//! One kind of repetition in the library has no switch: when a pooled connection turns out closed while a request
//! still waits in its queue, the request is handed to another connection. That is harmless, because it only happens
//! while not one byte of the request has been written; once hyper has taken a request from the queue, an error is final
//! and ends the try. So a receiver never sees a try twice (`a_request_is_never_written_twice` in the tests).

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem;
use tokio::time::{Instant, timeout_at};
use url::{Host, Url};

use crate::reply::{Answer, BODY_CAP, Completeness, Failure, FailureKind, Reply, Response};

use super::failure::{Transport, failure};
use super::resolver::Resolver;
use super::tls::{self, Trust};
use super::{Forbidden, Guard, Lookup, Request, SystemLookup, SystemRoots};

/// Longer budgets are cut to this; it keeps the arithmetic on instants from overflowing.
const LONGEST_TRY: Duration = Duration::from_secs(24 * 60 * 60);

/// Response headers past this number are a protocol failure. Their size is bounded by hyper, at about 400 KB.
const MOST_HEADERS: usize = 512;

/// What can be set about a [`Client`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Which addresses may be reached.
    pub guard: Guard,
    /// Whether the machine's CA certificates are trusted.
    pub system_roots: SystemRoots,
    /// PEM files with more CA certificates.
    pub ca_files: Vec<PathBuf>,
    /// The limit for DNS, TCP and TLS together, within the try's own deadline. DNS gets four fifths of it.
    pub connect_timeout: Duration,
    /// How long an unused connection stays open. Below the 5 s after which common servers close theirs, so that
    /// requests seldom meet a connection that is just being closed.
    pub idle_timeout: Duration,
    /// Connections kept open to one receiver while nothing is sent over them. As many as tries at a time: with fewer, a busy
    /// receiver's connections are made anew for most tries.
    pub idle_per_host: usize,
    /// Who resolves names.
    pub lookup: Arc<dyn Lookup>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            guard: Guard::default(),
            system_roots: SystemRoots::default(),
            ca_files: Vec::new(),
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(4),
            idle_per_host: 256,
            lookup: Arc::new(SystemLookup),
        }
    }
}

/// Why there is no client; all of them are faults of the set-up and end the program.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A `--ca-file` cannot be read, or holds no PEM certificate.
    #[error("the CA file {} cannot be used: {source}", path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// A certificate in a `--ca-file` is malformed.
    #[error("a certificate in the CA file {} is malformed: {source}", path.display())]
    CaCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// The TLS library refuses its own defaults.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[source] rustls::Error),
    /// The HTTP library refuses the settings.
    #[error("the HTTP client cannot be set up: {0}")]
    Http(#[source] reqwest::Error),
}

/// Sends requests; cheap to clone, and clones share their connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    guard: Arc<Guard>,
    trust: Trust,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("guard", &self.guard)
            .field("trust", &self.trust)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client; reads the CA certificates, opens no connection.
    ///
    /// # Errors
    ///
    /// [`ClientError`] when a named CA file is of no use. A machine without CA certificates is none.
    pub fn new(options: Options) -> Result<Self, ClientError> {
        let (tls, trust) = tls::config(options.system_roots, &options.ca_files)?;
        let guard = Arc::new(options.guard);
        let resolver = Resolver {
            lookup: options.lookup,
            guard: Arc::clone(&guard),
            limit: options.connect_timeout / 5 * 4,
        };

        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .dns_resolver(resolver)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .connect_timeout(options.connect_timeout)
            .pool_idle_timeout(options.idle_timeout)
            .pool_max_idle_per_host(options.idle_per_host)
            .tcp_nodelay(true)
            .http1_max_headers(MOST_HEADERS)
            // A slip in a header must not turn a receiver's 200 into a failure that is tried again.
            .http1_ignore_invalid_headers_in_responses(true)
            .http1_allow_spaces_after_header_name_in_responses(true)
            .http1_allow_obsolete_multiline_headers_in_responses(true)
            .http2_max_header_list_size(64 * 1024)
            .http2_initial_stream_window_size(64 * 1024)
            .http2_initial_connection_window_size(1024 * 1024)
            // Many tries share one HTTP/2 connection: a dead one is found by a ping, not by each of them.
            .http2_keep_alive_interval(Duration::from_secs(10))
            .http2_keep_alive_timeout(Duration::from_secs(5))
            .build()
            .map_err(ClientError::Http)?;

        Ok(Self { http, guard, trust })
    }

    /// Sends `request` once and waits for the reply, no longer than its timeout. Never fails: no connection is a
    /// reply too.
    pub async fn send(&self, request: &Request) -> Reply {
        let started = Instant::now();
        let deadline = started + request.timeout.min(LONGEST_TRY);

        let (answer, remote_addr) = self.exchange(request, deadline).await;

        Reply {
            answer,
            duration: started.elapsed(),
            remote_addr,
        }
    }

    async fn exchange(&self, request: &Request, deadline: Instant) -> (Answer, Option<SocketAddr>) {
        if let Err(forbidden) = self.judge_literal(&request.url) {
            return (failed(FailureKind::Blocked, forbidden.to_string()), None);
        }

        match timeout_at(deadline, self.http.execute(outgoing(request))).await {
            Err(_) => {
                let message = format!("no response within {:?}", request.timeout);
                (failed(FailureKind::Timeout, message), None)
            }
            Ok(Err(error)) => {
                let transport = if request.url.scheme() == "https" {
                    Transport::Tls
                } else {
                    Transport::Plain
                };
                (Answer::Failure(failure(error, transport, self.trust)), None)
            }
            Ok(Ok(response)) => {
                let remote_addr = response.remote_addr();
                (
                    Answer::Response(received(response, deadline).await),
                    remote_addr,
                )
            }
        }
    }

    /// A host that is an address already is dialled without the resolver, and so without its guard.
    fn judge_literal(&self, url: &Url) -> Result<(), Forbidden> {
        match url.host() {
            Some(Host::Ipv4(addr)) => self.guard.judge(addr.into()),
            Some(Host::Ipv6(addr)) => self.guard.judge(addr.into()),
            Some(Host::Domain(_)) | None => Ok(()),
        }
    }
}

fn failed(kind: FailureKind, message: String) -> Answer {
    Answer::Failure(Failure { kind, message })
}

fn outgoing(request: &Request) -> reqwest::Request {
    let mut outgoing = reqwest::Request::new(request.method.clone(), request.url.clone());
    *outgoing.headers_mut() = request.headers.clone();
    *outgoing.body_mut() = Some(request.body.clone().into());
    outgoing
}

/// The status has arrived and decides: whatever happens to the body from here only ends its reading.
async fn received(mut response: reqwest::Response, deadline: Instant) -> Response {
    let status = response.status().as_u16();
    let headers = response
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect();

    let mut body = Vec::new();
    let completeness = loop {
        match timeout_at(deadline, response.chunk()).await {
            Ok(Ok(Some(chunk))) => {
                let room = BODY_CAP - body.len();
                body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                if chunk.len() > room {
                    break Completeness::Truncated;
                }
            }
            Ok(Ok(None)) => break Completeness::Whole,
            Ok(Err(_)) | Err(_) => break Completeness::Truncated,
        }
    };

    Response {
        status,
        headers,
        body,
        completeness,
    }
}
