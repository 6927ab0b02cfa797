//! Values as people type them: durations, moments, headers.

use std::net::IpAddr;

use chrono::DateTime;
use ipnet::IpNet;
use serde_json::{Map, Value};

use super::Failure;
use crate::store::operator::replay::When;

/// A duration such as `15s` or `1h 30m`, in seconds.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    humantime::parse_duration(text)
        .map(|duration| duration.as_secs_f64())
        .map_err(|error| format!("{error}; write it like 15s, 5m or 1h 30m"))
}

/// A network such as `10.1.0.0/16`, or one address, as the refusal of an address names it.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "write it like 10.1.0.0/16, 10.1.2.3 or fd00::/8".to_owned())
}

/// A moment with its offset from UTC, RFC 3339.
pub(super) fn moment(text: &str) -> Result<String, String> {
    DateTime::parse_from_rfc3339(text)
        .map(|time| time.to_rfc3339())
        .map_err(|error| format!("{error}; write it like 2030-01-31T08:00:00Z"))
}

/// A moment, or a duration that has passed since.
pub(super) fn when(text: &str) -> Result<When, String> {
    if let Ok(time) = moment(text) {
        return Ok(When::At(time));
    }
    seconds(text)
        .map(When::Ago)
        .map_err(|_| "write it like 2030-01-31T08:00:00Z, or as a time ago like 24h".to_owned())
}

/// `Name: value` lines as the JSON object that the headers columns hold; none at all is null.
pub(super) fn headers(lines: &[String]) -> anyhow::Result<Option<String>> {
    if lines.is_empty() {
        return Ok(None);
    }
    let mut object = Map::new();
    for line in lines {
        let (name, value) = header(line)?;
        // Names are the same in any case, so two spellings would be two headers of one name on the wire.
        if object.keys().any(|known| known.eq_ignore_ascii_case(name)) {
            return Err(Failure::usage(
                format!("the header {name} is given twice"),
                "give it once; a value with commas can carry several",
            )
            .into());
        }
        object.insert(name.to_owned(), Value::String(value.to_owned()));
    }
    Ok(Some(Value::Object(object).to_string()))
}

/// Checked as the request will be built, so that it does not fail at the first try. Errors never quote the value.
fn header(line: &str) -> Result<(&str, &str), Failure> {
    let wrong = |what: String| Failure::usage(what, "write it like --header 'X-Shop: 42'");
    let (name, value) = line
        .split_once(':')
        .ok_or_else(|| wrong("a --header has no colon".to_owned()))?;
    let (name, value) = (name.trim(), value.trim());
    if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return Err(wrong(
            "a --header has a name that HTTP does not allow".to_owned(),
        ));
    }
    if http::HeaderValue::from_str(value).is_err() {
        return Err(wrong(format!(
            "the value of the header {name} has characters that HTTP does not allow"
        )));
    }
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_become_an_object_of_strings() {
        let lines = ["X-B: 1".to_owned(), "x-a:  \"two\": 3 ".to_owned()];

        let object = headers(&lines)
            .expect("both are headers")
            .expect("there are some");

        let object: Value = serde_json::from_str(&object).expect("it is JSON");
        assert_eq!(object, serde_json::json!({"X-B": "1", "x-a": "\"two\": 3"}));
        assert_eq!(headers(&[]).expect("nothing is wrong"), None);
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_refused_without_its_value() {
        for line in ["s3cret", "X Y: s3cret", "X: s3cret\r\nY: 1", ": s3cret"] {
            let refused = headers(&[line.to_owned()])
                .expect_err("cannot be sent")
                .to_string();

            assert!(!refused.contains("s3cret"), "{refused}");
        }
        assert!(headers(&["X-A: 1".to_owned(), "x-a: 2".to_owned()]).is_err());
    }

    #[test]
    fn a_network_may_be_one_address() {
        for (text, same) in [
            ("127.0.0.1", "127.0.0.1/32"),
            ("::1", "::1/128"),
            ("10.0.0.0/8", "10.0.0.0/8"),
        ] {
            assert_eq!(
                network(text).map(|network| network.to_string()).as_deref(),
                Ok(same)
            );
        }
        for text in ["127.0.0.0/33", "localhost", ""] {
            assert!(network(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_moment_has_an_offset() {
        assert_eq!(
            moment("2030-01-31T08:00:00+02:00").as_deref(),
            Ok("2030-01-31T08:00:00+02:00")
        );
        for text in ["2030-01-31T08:00:00", "tomorrow", "infinity", ""] {
            assert!(moment(text).is_err(), "{text}");
        }
    }
}
