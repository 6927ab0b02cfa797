//! From the client library's errors to the kinds of failure that a try can end in.
//!
//! Owns the walk along the chain of causes and the text that people read. URLs, and with them credentials and queries,
//! never get into it.

use std::error::Error;
use std::io;

use crate::reply::{Failure, FailureKind};

use super::resolver::Unresolved;
use super::tls::Trust;

/// The longest message that is kept, in characters.
const LONGEST: usize = 500;

const NOBODY_TRUSTED: &str = "; no CA certificates were found on this machine: install a CA bundle or name one with --ca-file";

const NO_TLS_THERE: &str =
    "; what answers at this address and port does not speak TLS: is the URL meant to be http://?";

/// Whether the try's URL asks for TLS; plain connections cannot fail in a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// `http`.
    Plain,
    /// `https`.
    Tls,
}

pub(super) fn failure(error: reqwest::Error, transport: Transport, trust: Trust) -> Failure {
    let error = error.without_url();
    let causes = causes(&error);

    if let Some(unresolved) = causes
        .iter()
        .find_map(|cause| cause.downcast_ref::<Unresolved>())
    {
        let kind = match unresolved {
            Unresolved::Blocked { .. } => FailureKind::Blocked,
            Unresolved::Lookup { .. } | Unresolved::NoAddress { .. } | Unresolved::Slow { .. } => {
                FailureKind::Dns
            }
        };
        return Failure {
            kind,
            message: unresolved.to_string(),
        };
    }

    let mut message = message(&causes);
    let tls = causes
        .iter()
        .find_map(|cause| cause.downcast_ref::<rustls::Error>());
    if trust == Trust::Nobody && matches!(tls, Some(rustls::Error::InvalidCertificate(_))) {
        message.push_str(NOBODY_TRUSTED);
    }
    if matches!(tls, Some(rustls::Error::InvalidMessage(_))) {
        message.push_str(NO_TLS_THERE);
    }
    let in_handshake = || {
        let mut io = causes
            .iter()
            .filter_map(|cause| cause.downcast_ref::<io::Error>());
        transport == Transport::Tls && io.any(|error| ends_an_open_connection(error.kind()))
    };
    let kind = match (error.is_connect(), tls) {
        (_, Some(_)) => FailureKind::Tls,
        (true, None) if in_handshake() => FailureKind::Tls,
        (true, None) => FailureKind::Connect,
        (false, None) => FailureKind::Protocol,
    };

    Failure { kind, message }
}

/// Errors that only a connection which was already made can end in: before HTTP begins, that is the TLS handshake.
fn ends_an_open_connection(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;

    matches!(
        kind,
        Kind::UnexpectedEof
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::InvalidData
    )
}

/// The error and what lies below it. What an `io::Error` wraps is its cause, though its `source` skips it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    let below = |error: &'a (dyn Error + 'static)| match error.downcast_ref::<io::Error>() {
        Some(io) if io.get_ref().is_some() => {
            io.get_ref().map(|inner| inner as &(dyn Error + 'static))
        }
        _ => error.source(),
    };

    std::iter::successors(Some(error), |error| below(*error)).collect()
}

/// The causes, outermost first, without those that only repeat the one above or name a layer of the client library.
fn message(causes: &[&(dyn Error + 'static)]) -> String {
    let mut message = String::new();

    for text in causes.iter().map(ToString::to_string) {
        let is_layer = text == "error sending request" || text.starts_with("client error (");
        if !is_layer && !message.contains(&text) {
            let separator = if message.is_empty() { "" } else { ": " };
            message.push_str(separator);
            message.push_str(&text);
        }
    }
    if message.is_empty() {
        message.push_str("the client gave no reason");
    }
    message.chars().take(LONGEST).collect()
}
