//! A signing secret.
//!
//! Owns its text form and keeps it out of logs: neither `Debug` nor an error shows any of it.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

const PREFIX: &str = "whsec_";
const KEY_LENGTHS: std::ops::RangeInclusive<usize> = 24..=64;

/// A secret in the form of Standard Webhooks: `whsec_` and the base64 of 24 to 64 bytes.
#[derive(Clone)]
pub struct Secret {
    text: String,
    key: Vec<u8>,
}

/// Why a text is no secret. No message repeats any of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SecretError {
    /// It does not start with `whsec_`.
    #[error("a signing secret starts with `whsec_`: give all of it, the prefix included")]
    MissingPrefix,
    /// It starts with `v1,whsec_`, as some dashboards show it.
    #[error("a signing secret starts with `whsec_`: leave out the `v1,` before it")]
    VersionPrefix,
    /// What follows the prefix is not base64.
    #[error(
        "behind `whsec_` a signing secret is standard base64 with its padding (`A-Z a-z 0-9 + / =`), \
         without spaces or line breaks"
    )]
    NotBase64,
    /// The key is too short to be safe, or longer than receivers take.
    #[error("the key of a signing secret has 24 to 64 bytes, this one has {bytes}: make a new one")]
    WrongLength {
        /// Bytes of the key that was given.
        bytes: usize,
    },
}

impl Secret {
    /// Reads the text form, strictly: what is accepted here is accepted by every receiver's library.
    ///
    /// # Errors
    /// One variant for each mistake; its message says how to correct the text.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let Some(encoded) = text.strip_prefix(PREFIX) else {
            return Err(match text.strip_prefix("v1,") {
                Some(rest) if rest.starts_with(PREFIX) => SecretError::VersionPrefix,
                _ => SecretError::MissingPrefix,
            });
        };

        let key = STANDARD
            .decode(encoded)
            .map_err(|_| SecretError::NotBase64)?;
        if !KEY_LENGTHS.contains(&key.len()) {
            return Err(SecretError::WrongLength { bytes: key.len() });
        }
        Ok(Self {
            text: text.to_owned(),
            key,
        })
    }

    /// The whole text, `whsec_` included: for the one place that hands a secret to its owner.
    #[must_use]
    pub fn expose_text(&self) -> &str {
        &self.text
    }

    /// The decoded key.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(bytes: usize) -> String {
        format!("{PREFIX}{}", STANDARD.encode(vec![0xfb; bytes]))
    }

    fn error(text: &str) -> SecretError {
        Secret::parse(text).expect_err("the text is no secret")
    }

    #[test]
    fn a_secret_keeps_its_text_and_its_key() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("valid");

        assert_eq!(
            secret.expose_text(),
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
        );
        assert_eq!(secret.key().len(), 24);
        assert_eq!(secret.key()[..3], [0x31, 0xf2, 0x90]);
    }

    #[test]
    fn a_key_has_24_to_64_bytes() {
        for bytes in 0..100 {
            let expected =
                (!(24..=64).contains(&bytes)).then_some(SecretError::WrongLength { bytes });
            assert_eq!(Secret::parse(&encoded(bytes)).err(), expected);
        }
    }

    #[test]
    fn each_mistake_has_its_own_error() {
        let good = encoded(32);
        let body = &good[PREFIX.len()..];

        assert_eq!(error(""), SecretError::MissingPrefix);
        assert_eq!(error(body), SecretError::MissingPrefix);
        assert_eq!(error(&format!("WHSEC_{body}")), SecretError::MissingPrefix);
        assert_eq!(error(&format!(" {good}")), SecretError::MissingPrefix);
        assert_eq!(error(&format!("v1,{body}")), SecretError::MissingPrefix);
        assert_eq!(error(&format!("v1,{good}")), SecretError::VersionPrefix);
        assert_eq!(error(PREFIX), SecretError::WrongLength { bytes: 0 });
    }

    #[test]
    fn only_standard_base64_with_its_padding_is_taken() {
        let good = encoded(32);
        let unpadded = good.trim_end_matches('=');

        assert!(good.ends_with('=') && good.contains('+'));
        for bad in [
            unpadded.to_owned(),
            good.replace('+', "-"),
            format!("{good}\n"),
            format!("{good}="),
            good.replacen('+', " ", 1),
            // The last character carries bits that no byte uses.
            unpadded[..unpadded.len() - 1].to_owned() + "t=",
        ] {
            assert_eq!(error(&bad), SecretError::NotBase64);
        }
    }

    #[test]
    fn debug_shows_nothing_of_a_secret() {
        let secret = Secret::parse(&encoded(32)).expect("valid");

        assert_eq!(format!("{secret:?}"), "Secret(redacted)");
    }

    proptest! {
        #[test]
        fn the_key_is_what_was_encoded(key in prop::collection::vec(any::<u8>(), 24..=64)) {
            let text = format!("{PREFIX}{}", STANDARD.encode(&key));
            let secret = Secret::parse(&text).expect("in range");

            prop_assert_eq!(secret.key(), key);
        }

        #[test]
        fn no_error_message_repeats_the_text(text in "(v1,)?(whsec_)?[A-Za-z0-9+/=]{12,40}") {
            if let Err(error) = Secret::parse(&text) {
                let given = text.trim_start_matches("v1,").trim_start_matches(PREFIX);
                let shown = format!("{error} {error:?}");
                prop_assert!(!shown.contains(given));
            }
        }
    }
}
