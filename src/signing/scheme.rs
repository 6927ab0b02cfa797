//! The signature schemes by name.
//!
//! Owns the words of `endpoints.signature_scheme`.

use http::{HeaderName, header};
use thiserror::Error;

use super::{WEBHOOK_ID, WEBHOOK_TIMESTAMP};

/// How the requests of an endpoint are signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Standard Webhooks: `webhook-signature`, over id, timestamp and body, with every live secret.
    Standard,
    /// As GitHub signs: `X-Hub-Signature-256`, over the body, with the newest secret.
    Github,
    /// As Stripe signs: `Stripe-Signature`, over timestamp and body, with every live secret.
    Stripe,
    /// The base64 of the body's HMAC in a header of the receiver's choice, with the newest secret.
    BodyBase64 {
        /// Where the signature goes; `X-Hmac-Sha256` unless named.
        header: HeaderName,
    },
    /// Unsigned.
    None,
}

/// Why a scheme cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SchemeError {
    /// No scheme has this name.
    #[error(
        "unknown signature scheme {name:?}: use `standard`, `github`, `stripe`, `body-base64` or `none`"
    )]
    Unknown {
        /// The name as it was written.
        name: String,
    },
    /// The header for `body-base64` is no header name.
    #[error(
        "{header:?} is no header name: use letters, digits and hyphens, for example `X-Hmac-Sha256`"
    )]
    BadHeader {
        /// The header as it was written.
        header: String,
    },
    /// The header for `body-base64` already has another meaning in a delivery.
    #[error("the header `{header}` cannot carry a signature, a delivery needs it: use another one")]
    ReservedHeader {
        /// The header that is taken.
        header: HeaderName,
    },
}

const DEFAULT_HEADER: HeaderName = HeaderName::from_static("x-hmac-sha256");

const RESERVED: [HeaderName; 12] = [
    WEBHOOK_ID,
    WEBHOOK_TIMESTAMP,
    header::AUTHORIZATION,
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::EXPECT,
    header::HOST,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

impl Scheme {
    /// Reads the word of `endpoints.signature_scheme`. `header` is for `body-base64` and ignored by the others.
    ///
    /// # Errors
    /// The name is unknown, or the header cannot be used; the message says what can.
    pub fn parse(name: &str, header: Option<&str>) -> Result<Self, SchemeError> {
        match name {
            "standard" => Ok(Self::Standard),
            "github" => Ok(Self::Github),
            "stripe" => Ok(Self::Stripe),
            "body-base64" => Ok(Self::BodyBase64 {
                header: header.map_or(Ok(DEFAULT_HEADER), signature_header)?,
            }),
            "none" => Ok(Self::None),
            _ => Err(SchemeError::Unknown { name: name.into() }),
        }
    }

    /// The word in `endpoints.signature_scheme`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Github => "github",
            Self::Stripe => "stripe",
            Self::BodyBase64 { .. } => "body-base64",
            Self::None => "none",
        }
    }
}

fn signature_header(name: &str) -> Result<HeaderName, SchemeError> {
    let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| SchemeError::BadHeader {
        header: name.into(),
    })?;
    if RESERVED.contains(&header) {
        return Err(SchemeError::ReservedHeader { header });
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_read_and_written() {
        for word in ["standard", "github", "stripe", "body-base64", "none"] {
            let scheme = Scheme::parse(word, None).expect(word);
            assert_eq!(scheme.as_str(), word);
        }
    }

    #[test]
    fn body_base64_takes_a_header_and_has_a_default() {
        let header = |name| match Scheme::parse("body-base64", name) {
            Ok(Scheme::BodyBase64 { header }) => header,
            other => panic!("{other:?}"),
        };

        assert_eq!(header(None), "x-hmac-sha256");
        assert_eq!(header(Some("X-Shop-Hmac")), "x-shop-hmac");
    }

    #[test]
    fn the_other_schemes_ignore_the_header() {
        assert_eq!(
            Scheme::parse("github", Some("not a header")),
            Ok(Scheme::Github)
        );
    }

    #[test]
    fn an_unknown_name_and_an_unusable_header_are_named() {
        let unknown = Scheme::parse("Standard", None).expect_err("names are lower case");
        assert!(unknown.to_string().contains("\"Standard\""));

        for bad in ["", "a b", "x:y", "caf\u{e9}", "x\ny"] {
            let header = bad.to_owned();
            let error = Scheme::parse("body-base64", Some(bad));
            assert_eq!(error, Err(SchemeError::BadHeader { header }));
        }
    }

    #[test]
    fn a_header_that_a_delivery_needs_cannot_carry_a_signature() {
        for header in RESERVED {
            let error = Scheme::parse("body-base64", Some(&header.as_str().to_uppercase()));
            assert_eq!(error, Err(SchemeError::ReservedHeader { header }));
        }
    }
}
