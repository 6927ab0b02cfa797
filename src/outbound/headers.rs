//! The headers that users add: parsed from the JSON text of a row, checked, laid over each other.
//!
//! Owns what a user may set and what stays out of the record. It does not know what Postrider itself sends.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::value::RawValue;

use super::Unbuildable;

/// More header names than any server accepts; a row with more is a mistake.
const MOST: usize = 200;

/// Names that belong to the connection or to the signature: a user's value would break the request or lie in it.
const RESERVED: &[&str] = &[
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// A header with one of these in its name is taken for a credential; `auth` also covers `authorization`.
const CREDENTIAL: &[&str] = &[
    "auth",
    "cookie",
    "key",
    "password",
    "secret",
    "signature",
    "token",
];

/// Adds the headers in `json`, an object of strings; a name that is already in `headers` gets the new value.
pub(super) fn lay_over(headers: &mut HeaderMap, json: &str) -> Result<(), Unbuildable> {
    let object: BTreeMap<String, &RawValue> =
        serde_json::from_str(json).map_err(|_| Unbuildable::HeadersNotAnObject)?;

    for (name, value) in object {
        let (name, value) = checked(name, value)?;

        headers.insert(name, value);
        if headers.len() > MOST {
            return Err(Unbuildable::TooManyHeaders { most: MOST });
        }
    }
    Ok(())
}

fn checked(name: String, value: &RawValue) -> Result<(HeaderName, HeaderValue), Unbuildable> {
    let Ok(key) = HeaderName::from_bytes(name.as_bytes()) else {
        return Err(Unbuildable::HeaderName {
            beginning: beginning(&name),
        });
    };
    if RESERVED.contains(&key.as_str()) {
        return Err(Unbuildable::ReservedHeader { name });
    }
    let Ok(value) = serde_json::from_str::<String>(value.get()) else {
        return Err(Unbuildable::HeaderNotAString { name });
    };
    let Ok(mut value) = HeaderValue::from_bytes(value.as_bytes()) else {
        return Err(Unbuildable::HeaderValue { name });
    };

    value.set_sensitive(is_credential(key.as_str()));
    Ok((key, value))
}

/// The name up to where it goes wrong: a whole line `Authorization: Bearer ...` put there must not show its end.
fn beginning(name: &str) -> String {
    name.chars()
        .take_while(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_'))
        .take(100)
        .collect()
}

/// Whether the value of the header `name` (lower case) is kept out of the record.
pub(super) fn is_credential(name: &str) -> bool {
    CREDENTIAL.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<HeaderMap, Unbuildable> {
        let mut headers = HeaderMap::new();
        lay_over(&mut headers, json)?;
        Ok(headers)
    }

    #[test]
    fn a_later_header_replaces_an_earlier_one_of_any_case() {
        let mut headers = parse(r#"{"X-Team": "one", "X-Kept": "yes"}"#).unwrap();

        lay_over(&mut headers, r#"{"x-TEAM": "two"}"#).unwrap();

        assert_eq!(headers["x-team"], "two");
        assert_eq!(headers["x-kept"], "yes");
        assert_eq!(headers.len(), 2);
    }

    #[test]
    fn a_value_may_be_utf_8() {
        let headers = parse(r#"{"X-Reason": "caf\u00e9"}"#).unwrap();

        assert_eq!(headers["x-reason"].as_bytes(), "café".as_bytes());
    }

    #[test]
    fn c15_headers_that_are_no_object_of_strings_are_unbuildable() {
        for json in ["", "nonsense", "[]", "null", "\"a\"", "7"] {
            assert_eq!(parse(json), Err(Unbuildable::HeadersNotAnObject), "{json}");
        }
        for json in [r#"{"X-N": 1}"#, r#"{"X-N": null}"#, r#"{"X-N": ["a"]}"#] {
            assert_eq!(
                parse(json),
                Err(Unbuildable::HeaderNotAString { name: "X-N".into() }),
                "{json}"
            );
        }
    }

    #[test]
    fn c15_a_header_that_http_cannot_carry_is_unbuildable_and_named() {
        let line = "Authorization: Bearer s3cret";
        for (name, beginning) in [
            ("", ""),
            ("two words", "two"),
            (line, "Authorization"),
            ("caf\u{e9}", "caf"),
            ("a\nb", "a"),
        ] {
            let json = serde_json::json!({ name: "v" }).to_string();
            assert_eq!(
                parse(&json),
                Err(Unbuildable::HeaderName {
                    beginning: beginning.into()
                })
            );
        }
        for value in ["a\r\nX-Smuggled: 1", "a\nb", "a\rb", "a\0b", "\u{7f}"] {
            let json = serde_json::json!({ "X-V": value }).to_string();
            assert_eq!(
                parse(&json),
                Err(Unbuildable::HeaderValue { name: "X-V".into() })
            );
        }
    }

    #[test]
    fn a_reserved_name_is_refused_in_any_case() {
        for name in RESERVED {
            for name in [(*name).to_owned(), name.to_uppercase()] {
                let json = serde_json::json!({ &name: "v" }).to_string();
                assert_eq!(parse(&json), Err(Unbuildable::ReservedHeader { name }));
            }
        }
    }

    #[test]
    fn more_headers_than_a_server_takes_are_refused() {
        let many: BTreeMap<String, String> =
            (0..=MOST).map(|n| (format!("x-{n}"), "v".into())).collect();

        let refused = parse(&serde_json::to_string(&many).unwrap());

        assert_eq!(refused, Err(Unbuildable::TooManyHeaders { most: MOST }));
    }

    #[test]
    fn names_that_smell_of_a_credential_are_masked() {
        for name in [
            "authorization",
            "x-api-key",
            "cookie",
            "x-access-token",
            "client-secret",
            "x-password",
        ] {
            assert!(is_credential(name), "{name}");
        }
        for name in ["content-type", "user-agent", "x-team"] {
            assert!(!is_credential(name), "{name}");
        }
    }
}
