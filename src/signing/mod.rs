//! How a receiver can know that a request is ours, untouched and of today.
//!
//! Owns the signature schemes: making the headers of a try, and checking them for whoever receives one. The default
//! is Standard Webhooks (<https://www.standardwebhooks.com>); the others are for people who move over from a sender
//! with a format of its own. Bytes in are bytes signed: nothing here parses or re-encodes a body, and the time is an
//! argument, so that each try is signed afresh.

mod mac;
mod scheme;
mod secret;
mod sign;
mod verify;

pub use scheme::{Scheme, SchemeError};
pub use secret::{Secret, SecretError};
pub use sign::{SignError, sign};
pub use verify::{VerifyError, verify};

use http::HeaderName;

/// The event id, the same on every try.
pub const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
/// When this try was signed, in seconds since 1970.
pub const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
/// The signatures of [`Scheme::Standard`].
pub const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// The signature of [`Scheme::Github`].
pub const GITHUB_SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");
/// Timestamp and signatures of [`Scheme::Stripe`].
pub const STRIPE_SIGNATURE: HeaderName = HeaderName::from_static("stripe-signature");
