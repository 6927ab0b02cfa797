//! The check of a signed request, as a receiver does it.
//!
//! Owns the reading of signature headers that come from outside. Each is read strictly, in the one form that
//! [`sign`](super::sign()) writes, and signatures are compared in constant time.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};
use thiserror::Error;

use super::mac::{Tag, from_hex};
use super::{
    GITHUB_SIGNATURE, STRIPE_SIGNATURE, Scheme, Secret, WEBHOOK_ID, WEBHOOK_SIGNATURE,
    WEBHOOK_TIMESTAMP,
};

/// Why a request is not to be trusted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VerifyError {
    /// A header that the scheme needs is not there.
    #[error(
        "the request has no `{header}` header: check that the endpoint's signature scheme is the one verified here, \
         and that no proxy drops the header"
    )]
    MissingHeader {
        /// The header.
        header: HeaderName,
    },
    /// A header is there, but not in the scheme's form.
    #[error("the header `{header}` is not in the form of this scheme: it must read like `{form}`")]
    MalformedHeader {
        /// The header.
        header: HeaderName,
        /// What it looks like when it is right.
        form: &'static str,
    },
    /// The request was signed too long ago, or is a replay of an old one.
    #[error(
        "the request was signed {seconds} s ago, more than the tolerance: it is replayed or was held up, \
         or this clock is fast; verify when it arrives"
    )]
    TooOld {
        /// How long ago by the given clock.
        seconds: u64,
    },
    /// The request claims to be from the future.
    #[error(
        "the request was signed {seconds} s in the future, more than the tolerance: set this clock or the sender's right"
    )]
    TooNew {
        /// How far ahead of the given clock.
        seconds: u64,
    },
    /// There is no secret to check against.
    #[error("no secret to verify with: give the endpoint's secret")]
    NoSecret,
    /// No signature was made of this body with one of these secrets.
    #[error(
        "no signature matches: check that the secret is this endpoint's, and that the body is the bytes received, \
         before any parsing or re-encoding"
    )]
    Mismatch,
    /// The scheme signs nothing, so that there is nothing to trust.
    #[error("the scheme `none` signs nothing: choose another signature scheme for the endpoint")]
    Unsigned,
}

const TIMESTAMP_FORM: &str = "1614265330";
const STANDARD_FORM: &str = "v1,<base64> v1,<base64>";
const GITHUB_FORM: &str = "sha256=<hex>";
const STRIPE_FORM: &str = "t=<seconds>,v1=<hex>";
const BASE64_FORM: &str = "<base64>";

/// Checks that a request was signed with one of `secrets`, and for `standard` and `stripe` at most `tolerance` before
/// or after `now_seconds` (since 1970; whole seconds count). The other schemes sign no time: they do not stop a replay.
///
/// # Errors
/// A variant per cause; its message says what to do. Whatever the cause, do not act on the request.
pub fn verify(
    scheme: &Scheme,
    headers: &HeaderMap,
    body: &[u8],
    secrets: &[Secret],
    now_seconds: i64,
    tolerance: Duration,
) -> Result<(), VerifyError> {
    if *scheme == Scheme::None {
        return Err(VerifyError::Unsigned);
    }
    if secrets.is_empty() {
        return Err(VerifyError::NoSecret);
    }

    let is_signed = match scheme {
        Scheme::Standard => {
            let id = required(headers, &WEBHOOK_ID)?;
            let time = required(headers, &WEBHOOK_TIMESTAMP)?;
            let signatures = standard_signatures(headers)?;
            check_time(
                seconds(time, &WEBHOOK_TIMESTAMP, TIMESTAMP_FORM)?,
                now_seconds,
                tolerance,
            )?;
            let message = [id, b".", time, b".", body];
            any_matches(secrets, &signatures, |secret| Tag::by_key(secret, &message))
        }
        Scheme::Stripe => {
            let (time, signatures) = stripe_signatures(headers)?;
            check_time(
                seconds(time.as_bytes(), &STRIPE_SIGNATURE, STRIPE_FORM)?,
                now_seconds,
                tolerance,
            )?;
            let message = [time.as_bytes(), b".", body];
            any_matches(secrets, &signatures, |secret| {
                Tag::by_text(secret, &message)
            })
        }
        Scheme::Github => {
            let signature = text(headers, &GITHUB_SIGNATURE, GITHUB_FORM)?
                .strip_prefix("sha256=")
                .and_then(from_hex)
                .ok_or_else(|| malformed(&GITHUB_SIGNATURE, GITHUB_FORM))?;
            any_matches(secrets, &[signature], |secret| {
                Tag::by_text(secret, &[body])
            })
        }
        Scheme::BodyBase64 { header } => {
            let signature = STANDARD
                .decode(text(headers, header, BASE64_FORM)?)
                .map_err(|_| malformed(header, BASE64_FORM))?;
            any_matches(secrets, &[signature], |secret| {
                Tag::by_text(secret, &[body])
            })
        }
        Scheme::None => false,
    };
    if is_signed {
        Ok(())
    } else {
        Err(VerifyError::Mismatch)
    }
}

/// The signatures of version 1; those of other versions are a sender's to add and not ours to read.
fn standard_signatures(headers: &HeaderMap) -> Result<Vec<Vec<u8>>, VerifyError> {
    let signatures: Option<Vec<_>> = text(headers, &WEBHOOK_SIGNATURE, STANDARD_FORM)?
        .split(' ')
        .map(|signature| signature.split_once(','))
        .filter(|pair| pair.is_none_or(|(version, _)| version == "v1"))
        .map(|pair| STANDARD.decode(pair?.1).ok())
        .collect();

    signatures
        .filter(|signatures| !signatures.is_empty())
        .ok_or_else(|| malformed(&WEBHOOK_SIGNATURE, STANDARD_FORM))
}

/// The timestamp as it was written, and the signatures of version 1.
fn stripe_signatures(headers: &HeaderMap) -> Result<(&str, Vec<Vec<u8>>), VerifyError> {
    let malformed = || malformed(&STRIPE_SIGNATURE, STRIPE_FORM);
    let mut time = None;
    let mut signatures = Vec::new();

    for item in text(headers, &STRIPE_SIGNATURE, STRIPE_FORM)?.split(',') {
        match item.split_once('=').ok_or_else(malformed)? {
            ("t", value) => time = Some(value),
            ("v1", value) => signatures.push(from_hex(value).ok_or_else(malformed)?),
            // Other versions are a sender's to add and not ours to read.
            _ => {}
        }
    }
    if signatures.is_empty() {
        return Err(malformed());
    }
    Ok((time.ok_or_else(malformed)?, signatures))
}

fn any_matches(secrets: &[Secret], signatures: &[Vec<u8>], tag: impl Fn(&Secret) -> Tag) -> bool {
    secrets.iter().any(|secret| {
        let tag = tag(secret);
        signatures.iter().any(|signature| tag.matches(signature))
    })
}

fn check_time(signed: i64, now: i64, tolerance: Duration) -> Result<(), VerifyError> {
    let seconds = now.abs_diff(signed);
    if seconds <= tolerance.as_secs() {
        Ok(())
    } else if signed < now {
        Err(VerifyError::TooOld { seconds })
    } else {
        Err(VerifyError::TooNew { seconds })
    }
}

fn seconds(value: &[u8], header: &HeaderName, form: &'static str) -> Result<i64, VerifyError> {
    str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| malformed(header, form))
}

fn text<'a>(
    headers: &'a HeaderMap,
    header: &HeaderName,
    form: &'static str,
) -> Result<&'a str, VerifyError> {
    str::from_utf8(required(headers, header)?).map_err(|_| malformed(header, form))
}

fn required<'a>(headers: &'a HeaderMap, header: &HeaderName) -> Result<&'a [u8], VerifyError> {
    headers
        .get(header)
        .map(http::HeaderValue::as_bytes)
        .ok_or_else(|| VerifyError::MissingHeader {
            header: header.clone(),
        })
}

fn malformed(header: &HeaderName, form: &'static str) -> VerifyError {
    VerifyError::MalformedHeader {
        header: header.clone(),
        form,
    }
}

#[cfg(test)]
mod tests;
