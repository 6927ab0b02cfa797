//! The one cryptographic step that all schemes share: HMAC-SHA256 over bytes, and its hex form.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Secret;

/// An HMAC that has seen the whole message.
#[derive(Clone)]
pub(super) struct Tag(Hmac<Sha256>);

impl Tag {
    /// Keyed with the secret's decoded bytes, as Standard Webhooks says.
    pub(super) fn by_key(secret: &Secret, message: &[&[u8]]) -> Self {
        Self::new(secret.key(), message)
    }

    /// Keyed with the secret's whole text, as libraries do that take the string they are given.
    pub(super) fn by_text(secret: &Secret, message: &[&[u8]]) -> Self {
        Self::new(secret.expose_text().as_bytes(), message)
    }

    fn new(key: &[u8], message: &[&[u8]]) -> Self {
        let mut mac = Hmac::new_from_slice(key).expect("HMAC takes a key of any length");
        for part in message {
            mac.update(part);
        }
        Self(mac)
    }

    pub(super) fn bytes(self) -> [u8; 32] {
        self.0.finalize().into_bytes().into()
    }

    /// Compares in constant time.
    pub(super) fn matches(&self, signature: &[u8]) -> bool {
        self.0.clone().verify_slice(signature).is_ok()
    }
}

/// Lower-case hex.
pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of lower-case hex. Upper case is refused, so that a signature has one form only.
pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs
        .iter()
        .map(|&[high, low]| Some(nibble(high)? << 4 | nibble(low)?))
        .collect()
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_tag_is_that_of_rfc_4231_case_2() {
        let tag = Tag::new(b"Jefe", &[b"what do ya want ", b"", b"for nothing?"]);

        assert_eq!(
            to_hex(&tag.bytes()),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    #[test]
    fn hex_has_one_form_only() {
        for bad in ["a", "AB", "0g", " a", "+1", "é"] {
            assert_eq!(from_hex(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn hex_comes_back_as_it_went(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        }
    }
}
