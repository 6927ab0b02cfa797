//! A delivery and its endpoint become one request: the frozen bytes, a fresh signature, and the user's headers.
//!
//! Owns the rules of what can be sent; it opens no socket. What cannot be built is an outcome of the try
//! (`unbuildable`), so its message is written for the person who filled in the row, and holds no credentials.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use url::Url;

use crate::delivery::{Delivery, Endpoint};
use crate::signing::{self, SchemeError, SignError};

use super::{headers, target};

/// Carries `deliveries.event_type`; not signed.
const EVENT_TYPE: HeaderName = HeaderName::from_static("postrider-event-type");
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("postrider/", env!("CARGO_PKG_VERSION")));
const MASK: &str = "***";

/// One physical try, ready to be sent.
#[derive(Clone)]
pub struct Request {
    /// `POST`, `PUT` or `PATCH`.
    pub method: Method,
    /// `http` or `https` with a host, without credentials and fragment.
    pub url: Url,
    /// All that is sent but `host`. Values marked sensitive are credentials and signatures.
    pub headers: HeaderMap,
    /// The stored bytes, shared, never copied or re-encoded: they are what was signed.
    pub body: Bytes,
    /// The budget of the whole try.
    pub timeout: Duration,
}

/// Why no request can be made of a delivery. Trying again changes nothing; the row must be edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unbuildable {
    /// The URL has no meaning.
    #[error("the endpoint's URL cannot be parsed: {0}")]
    Url(#[from] url::ParseError),
    /// Neither `http` nor `https`.
    #[error("the endpoint's URL must begin with http:// or https://")]
    Scheme,
    /// Good enough for a browser, but no request line can carry it (too long, or an unescaped character).
    #[error("the endpoint's URL is too long or holds characters that must be percent-encoded")]
    RequestLine,
    /// A method that carries no body.
    #[error("the endpoint's method must be POST, PUT or PATCH")]
    Method,
    /// The headers column holds something else than an object.
    #[error("headers must be a JSON object whose values are strings")]
    HeadersNotAnObject,
    /// A value of another JSON type.
    #[error("the value of header {name:?} must be a string")]
    HeaderNotAString {
        /// As the user wrote it.
        name: String,
    },
    /// A name that HTTP cannot carry.
    #[error("the header name that begins with {beginning:?} is not an HTTP token")]
    HeaderName {
        /// The part before what HTTP forbids.
        beginning: String,
    },
    /// A value that HTTP cannot carry.
    #[error("the value of header {name:?} holds a line break or another control character")]
    HeaderValue {
        /// As the user wrote it.
        name: String,
    },
    /// A name that is Postrider's own, or the connection's.
    #[error("header {name:?} is set by Postrider and cannot be overridden")]
    ReservedHeader {
        /// As the user wrote it.
        name: String,
    },
    /// A slip, or an attack on the receiver.
    #[error("more than {most} headers")]
    TooManyHeaders {
        /// The limit.
        most: usize,
    },
    /// Not `type/subtype`.
    #[error("the content type {content_type:?} is not a media type such as application/json")]
    ContentType {
        /// As the user wrote it.
        content_type: String,
    },
    /// The endpoint's signature scheme or header makes no sense.
    #[error("the request cannot be signed: {0}")]
    SignatureScheme(#[from] SchemeError),
    /// No signature can be made.
    #[error("the request cannot be signed: {0}")]
    Sign(#[from] SignError),
}

/// Makes the request of one try; `timestamp` is this try's, in seconds since the epoch.
///
/// # Errors
///
/// [`Unbuildable`] when no request can be made of these rows, now or later: the try ends there, nothing is sent.
pub fn build(
    endpoint: &Endpoint,
    delivery: &Delivery,
    timestamp: i64,
) -> Result<Request, Unbuildable> {
    let method = method(&endpoint.method)?;
    let (url, basic) = target::parse(&endpoint.url)?;

    let mut headers = HeaderMap::new();
    for json in [&endpoint.headers, &delivery.headers].into_iter().flatten() {
        headers::lay_over(&mut headers, json)?;
    }
    if !headers.contains_key(CONTENT_TYPE) {
        headers.insert(CONTENT_TYPE, content_type(&delivery.content_type)?);
    }
    headers.entry(USER_AGENT).or_insert(AGENT);
    headers
        .entry(ACCEPT)
        .or_insert(HeaderValue::from_static("*/*"));
    if let Some(basic) = basic {
        headers.entry(AUTHORIZATION).or_insert(basic);
    }
    // A convenience for receivers; a type that no header can carry is no reason to keep the event back.
    if let Ok(event_type) = HeaderValue::from_str(&delivery.event_type) {
        headers.entry(EVENT_TYPE).or_insert(event_type);
    }
    headers.insert(CONTENT_LENGTH, delivery.body.len().into());
    let signed = signing::sign(
        endpoint.scheme.as_ref().map_err(Clone::clone)?,
        &delivery.event_id,
        timestamp,
        &delivery.body,
        &endpoint.secrets,
    )?;
    for (name, value) in signed {
        if headers.contains_key(&name) {
            return Err(Unbuildable::ReservedHeader {
                name: name.as_str().to_owned(),
            });
        }
        headers.insert(name, value);
    }

    Ok(Request {
        method,
        url,
        headers,
        body: delivery.body.clone(),
        timeout: endpoint.timeout,
    })
}

impl Request {
    /// The headers as the attempts table keeps them: credentials and signatures are `***`.
    #[must_use]
    pub fn recorded_headers(&self) -> Vec<(String, String)> {
        self.headers
            .iter()
            .map(|(name, value)| {
                let shown = match value.is_sensitive() {
                    true => MASK.into(),
                    false => String::from_utf8_lossy(value.as_bytes()),
                };
                (name.as_str().to_owned(), shown.into_owned())
            })
            .collect()
    }
}

/// Leaves out path and query, which often hold a token, and the body.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("host", &self.url.host_str())
            .field("headers", &self.headers)
            .field("body_len", &self.body.len())
            .field("timeout", &self.timeout)
            .finish()
    }
}

fn method(name: &str) -> Result<Method, Unbuildable> {
    match name {
        "POST" => Ok(Method::POST),
        "PUT" => Ok(Method::PUT),
        "PATCH" => Ok(Method::PATCH),
        _ => Err(Unbuildable::Method),
    }
}

fn content_type(text: &str) -> Result<HeaderValue, Unbuildable> {
    let refused = || Unbuildable::ContentType {
        content_type: text.to_owned(),
    };
    // A header name is a token, and so are both halves of a media type.
    let is_token = |part: &str| HeaderName::from_bytes(part.as_bytes()).is_ok();

    let essence = text.split(';').next().unwrap_or_default().trim();
    match essence.split_once('/') {
        Some((kind, subtype)) if is_token(kind) && is_token(subtype) => {
            HeaderValue::from_str(text).map_err(|_| refused())
        }
        _ => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;

    use crate::policy::{Policy, RetryOn, Schedule};
    use crate::signing::{Scheme, Secret};

    use super::*;

    fn delivery(body: &'static [u8]) -> Delivery {
        Delivery {
            id: 1,
            endpoint: "shop".into(),
            event_id: "evt_1".into(),
            event_type: "order.paid".into(),
            body: Bytes::from_static(body),
            content_type: "application/json".into(),
            headers: None,
            claim_no: 1,
            attempt_count: 0,
            tries_used: 0,
            max_retries: 7,
        }
    }

    fn endpoint(url: &str) -> Endpoint {
        Endpoint {
            name: "shop".into(),
            revision: 1,
            url: url.into(),
            method: "POST".into(),
            headers: None,
            timeout: Duration::from_secs(15),
            scheme: Ok(Scheme::Standard),
            secrets: secrets(),
            policy: policy(),
        }
    }

    fn secrets() -> Vec<Secret> {
        vec![Secret::parse(&format!("whsec_{}", BASE64.encode([7; 24]))).unwrap()]
    }

    fn policy() -> Policy {
        Policy {
            schedule: Schedule::Fixed { delays: Vec::new() },
            jitter: 0.0,
            retry_on: RetryOn::default(),
        }
    }

    fn built(endpoint: &Endpoint) -> Request {
        build(endpoint, &delivery(b"{}"), 1).unwrap()
    }

    fn recorded(request: &Request, name: &str) -> Vec<String> {
        let headers = request.recorded_headers().into_iter();
        headers
            .filter(|(key, _)| key == name)
            .map(|(_, value)| value)
            .collect()
    }

    #[test]
    fn c3_the_body_is_the_stored_buffer_itself() {
        let delivery = delivery(b"{\"b\":1, \"a\":1.00}\n");

        let request = build(&endpoint("https://receiver.example/in"), &delivery, 1).unwrap();

        assert_eq!(request.body.as_ptr(), delivery.body.as_ptr());
        assert_eq!(request.headers["content-length"], "18");
        assert_eq!(request.headers["content-type"], "application/json");
    }

    #[test]
    fn an_empty_body_has_a_content_length_too() {
        let request = build(&endpoint("https://receiver.example"), &delivery(b""), 1).unwrap();

        assert_eq!(request.headers["content-length"], "0");
    }

    #[test]
    fn c8_the_timestamp_is_that_of_this_try_and_the_id_stays() {
        let endpoint = endpoint("https://receiver.example");

        let first = build(&endpoint, &delivery(b"{}"), 1_000).unwrap();
        let second = build(&endpoint, &delivery(b"{}"), 9_000).unwrap();

        assert_eq!(first.headers["webhook-timestamp"], "1000");
        assert_eq!(second.headers["webhook-timestamp"], "9000");
        assert_eq!(first.headers["webhook-id"], second.headers["webhook-id"]);
    }

    #[test]
    fn c15_a_url_that_cannot_be_sent_to_is_unbuildable_without_its_credentials() {
        for url in [
            "",
            "nonsense",
            "http://",
            "http://user:s3cret@",
            "http://user:s3cret@[::",
            "http://user:s3cret@host:99999/",
            "user:s3cret@host/",
            "ftp://user:s3cret@host/",
            "mailto:s3cret@host",
            "file:///etc/passwd",
        ] {
            let error = build(&endpoint(url), &delivery(b"{}"), 1).unwrap_err();

            assert!(
                matches!(error, Unbuildable::Url(_) | Unbuildable::Scheme),
                "{url}: {error}"
            );
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }

        let long = format!("http://host/{}", "a".repeat(70_000));
        assert_eq!(
            build(&endpoint(&long), &delivery(b"{}"), 1).unwrap_err(),
            Unbuildable::RequestLine
        );
    }

    #[test]
    fn a_method_without_a_body_is_unbuildable() {
        for method in ["GET", "CONNECT", "post", "", "PO ST"] {
            let endpoint = Endpoint {
                method: method.into(),
                ..endpoint("http://host")
            };

            assert_eq!(
                build(&endpoint, &delivery(b"{}"), 1).unwrap_err(),
                Unbuildable::Method
            );
        }
    }

    #[test]
    fn c16_credentials_move_from_the_url_into_a_basic_header_and_are_masked() {
        let request = built(&endpoint("https://us%40er:p%3Aw%20s3cret@host/in?a=b#part"));

        assert_eq!(request.url.as_str(), "https://host/in?a=b");
        let expected = format!("Basic {}", BASE64.encode("us@er:p:w s3cret"));
        assert_eq!(request.headers["authorization"], expected);
        assert_eq!(recorded(&request, "authorization"), ["***"]);
        assert!(!format!("{request:?}").contains(&expected));
    }

    #[test]
    fn an_explicit_authorization_wins_over_the_urls() {
        let headers = Some(r#"{"Authorization": "Bearer t"}"#.to_owned());

        let request = built(&Endpoint {
            headers,
            ..endpoint("https://u:p@host/")
        });

        assert_eq!(request.headers["authorization"], "Bearer t");
        assert_eq!(request.url.as_str(), "https://host/");
    }

    #[test]
    fn a_deliverys_header_wins_over_the_endpoints_and_both_over_the_defaults() {
        let endpoint = Endpoint {
            headers: Some(r#"{"X-Team": "shop", "User-Agent": "shop/1"}"#.into()),
            ..endpoint("http://host")
        };
        let headers = Some(r#"{"x-team": "depot", "Content-Type": "text/plain"}"#.to_owned());

        let request = build(
            &endpoint,
            &Delivery {
                headers,
                ..delivery(b"{}")
            },
            1,
        )
        .unwrap();

        assert_eq!(request.headers["x-team"], "depot");
        assert_eq!(request.headers["user-agent"], "shop/1");
        assert_eq!(request.headers["content-type"], "text/plain");
    }

    #[test]
    fn c15_an_unknown_content_type_is_unbuildable() {
        for text in [
            "",
            "json",
            "a/b/c",
            "/json",
            "text/",
            "text/pl ain",
            "text/plain; a=\r\nb",
        ] {
            let delivery = Delivery {
                content_type: text.into(),
                ..delivery(b"{}")
            };

            let error = build(&endpoint("http://host"), &delivery, 1).unwrap_err();

            assert_eq!(
                error,
                Unbuildable::ContentType {
                    content_type: text.into()
                }
            );
        }
    }

    #[test]
    fn the_signature_header_of_the_scheme_is_reserved_and_masked() {
        for (scheme, name) in [
            (Scheme::Standard, "webhook-signature"),
            (Scheme::Github, "x-hub-signature-256"),
            (Scheme::Stripe, "stripe-signature"),
            (
                Scheme::BodyBase64 {
                    header: HeaderName::from_static("x-shop-hmac"),
                },
                "x-shop-hmac",
            ),
        ] {
            let endpoint = Endpoint {
                scheme: Ok(scheme),
                ..endpoint("http://host")
            };
            let headers = Some(serde_json::json!({ name: "forged" }).to_string());

            assert_eq!(recorded(&built(&endpoint), name), ["***"]);
            assert!(matches!(
                build(
                    &endpoint,
                    &Delivery {
                        headers,
                        ..delivery(b"{}")
                    },
                    1
                ),
                Err(Unbuildable::ReservedHeader { .. })
            ));
        }
    }
}
