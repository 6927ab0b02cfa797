//! Stub.
use http::{HeaderName, HeaderValue};
/// Stub.
#[derive(Clone, Debug)]
pub enum Scheme {
    /// Stub.
    Standard,
    /// Stub.
    Github,
    /// Stub.
    Stripe,
    /// Stub.
    BodyBase64 {
        /// Stub.
        header: String,
    },
    /// Stub.
    None,
}
/// Stub.
#[derive(Clone, Debug)]
pub struct Secret;
/// Stub.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stub")]
pub struct SignError;
/// Stub.
///
/// # Errors
/// Stub.
pub fn sign(
    scheme: &Scheme,
    event_id: &str,
    timestamp: i64,
    _body: &[u8],
    _secrets: &[Secret],
) -> Result<Vec<(HeaderName, HeaderValue)>, SignError> {
    let mut all = vec![
        (
            HeaderName::from_static("webhook-id"),
            HeaderValue::from_str(event_id).map_err(|_| SignError)?,
        ),
        (
            HeaderName::from_static("webhook-timestamp"),
            HeaderValue::from(timestamp),
        ),
    ];
    let name = match scheme {
        Scheme::Standard => "webhook-signature",
        Scheme::Github => "x-hub-signature-256",
        Scheme::Stripe => "stripe-signature",
        Scheme::BodyBase64 { header } => header.as_str(),
        Scheme::None => return Ok(all),
    };
    all.push((
        HeaderName::from_bytes(name.as_bytes()).map_err(|_| SignError)?,
        HeaderValue::from_static("c2lnbmF0dXJl"),
    ));
    Ok(all)
}
