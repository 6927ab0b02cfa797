//! What a reply means for its delivery.
//!
//! Owns the one table from reply to verdict. What follows from a verdict (the next due time, a disabled endpoint, a
//! dead letter) is the worker's and the store's.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::location::printable;
use super::{RetryOn, retry_after};
use crate::reply::{Answer, Failure, FailureKind, Reply, Response};

/// What a reply means. Each `error` is one line for `last_error` and `attempts.error`, and holds no credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The receiver has it.
    Delivered,
    /// Worth another try, while retries are left.
    Retry {
        /// How long the receiver asks to wait, when it does; the wait is the longer of this and the policy's.
        not_before: Option<Duration>,
        /// Why the try failed.
        error: String,
    },
    /// The receiver refused it; the same request would be refused again.
    Rejected {
        /// The status, with the target of a redirect.
        error: String,
    },
    /// The receiver wants no more deliveries: the endpoint is to be disabled.
    Gone {
        /// The status.
        error: String,
    },
    /// The address is forbidden; no byte was sent.
    Blocked {
        /// Which address, and by which rule.
        error: String,
    },
    /// No request could be made of the delivery. [`judge`] never says so: there is no reply to judge.
    Unbuildable {
        /// What cannot be sent.
        error: String,
    },
}

/// Judges one reply at the time `now`, which a `Retry-After` date is measured against.
///
/// | what came back | verdict |
/// |---|---|
/// | 2xx | delivered, even if the body was cut |
/// | 410 | gone |
/// | another status in `retry_on` | retry, not before what `Retry-After` asks for |
/// | any other status | rejected; a redirect is never followed |
/// | no status: DNS, connect, TLS, timeout, protocol | retry |
/// | no status: the address is forbidden | blocked |
#[must_use]
pub fn judge(reply: &Reply, retry_on: &RetryOn, now: DateTime<Utc>) -> Verdict {
    match &reply.answer {
        Answer::Response(response) => judge_response(response, retry_on, now),
        Answer::Failure(failure) => judge_failure(failure),
    }
}

fn judge_response(response: &Response, retry_on: &RetryOn, now: DateTime<Utc>) -> Verdict {
    let error = status_line(response);

    match response.status {
        200..=299 => Verdict::Delivered,
        410 => Verdict::Gone { error },
        status if retry_on.contains(status) => Verdict::Retry {
            // Of several values the longest: too late is polite, too early is not.
            not_before: response
                .header_values("retry-after")
                .filter_map(|value| retry_after(value, now))
                .max(),
            error,
        },
        _ => Verdict::Rejected { error },
    }
}

fn judge_failure(failure: &Failure) -> Verdict {
    let error = failure.message.clone();

    match failure.kind {
        FailureKind::Dns
        | FailureKind::Connect
        | FailureKind::Tls
        | FailureKind::Timeout
        | FailureKind::Protocol => Verdict::Retry {
            not_before: None,
            error,
        },
        FailureKind::Blocked => Verdict::Blocked { error },
    }
}

fn status_line(response: &Response) -> String {
    let status = response.status;
    let target = match status {
        300..=399 => response.header_values("location").next().map(printable),
        _ => None,
    };

    match target {
        Some(target) if !target.is_empty() => format!("HTTP {status} to {target}"),
        _ => format!("HTTP {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Completeness;

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(784_111_777, 0).expect("1994 is in range")
    }

    fn reply(answer: Answer) -> Reply {
        Reply {
            answer,
            duration: Duration::from_millis(12),
            remote_addr: None,
        }
    }

    fn response(status: u16, headers: &[(&str, &[u8])]) -> Reply {
        reply(Answer::Response(Response {
            status,
            headers: headers
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_vec()))
                .collect(),
            body: Vec::new(),
            completeness: Completeness::Whole,
        }))
    }

    fn failure(kind: FailureKind) -> Reply {
        reply(Answer::Failure(Failure {
            kind,
            message: format!("{}: it broke", kind.as_str()),
        }))
    }

    fn verdict(reply: &Reply) -> Verdict {
        judge(reply, &RetryOn::default(), now())
    }

    fn retry_on(items: &[&str]) -> RetryOn {
        RetryOn::parse(items).expect("the test's items are valid")
    }

    fn rejected(error: &str) -> Verdict {
        Verdict::Rejected {
            error: error.into(),
        }
    }

    fn not_before(reply: &Reply) -> Option<Duration> {
        let verdict = judge(reply, &retry_on(&["302", "429", "500-599"]), now());
        let Verdict::Retry { not_before, .. } = verdict else {
            panic!("{verdict:?} is no retry")
        };
        not_before
    }

    /// The documented table once more, written as words per status.
    fn word(verdict: &Verdict) -> &'static str {
        match verdict {
            Verdict::Delivered => "delivered",
            Verdict::Retry { .. } => "retry",
            Verdict::Rejected { .. } => "rejected",
            Verdict::Gone { .. } => "gone",
            Verdict::Blocked { .. } => "blocked",
            Verdict::Unbuildable { .. } => "unbuildable",
        }
    }

    #[test]
    fn c19_each_status_of_the_field_has_its_documented_verdict() {
        let table = [
            ("delivered", &[200, 201, 202, 204, 206, 299][..]),
            ("rejected", &[300, 301, 302, 303, 304, 307, 308, 399]),
            (
                "rejected",
                &[400, 401, 403, 404, 408, 409, 413, 422, 425, 428, 430, 499],
            ),
            ("gone", &[410]),
            ("retry", &[429, 500, 501, 502, 503, 504, 522, 599]),
            ("rejected", &[100, 101, 199, 600, 700, 999]),
        ];

        for (expected, statuses) in table {
            for &status in statuses {
                assert_eq!(word(&verdict(&response(status, &[]))), expected, "{status}");
            }
        }
    }

    #[test]
    fn c19_every_status_from_100_to_999_has_one_verdict_whatever_retry_on_says() {
        let (nothing, everything) = (retry_on(&[]), retry_on(&["100-999"]));

        for status in 100..=999 {
            let reply = response(status, &[]);
            let fixed = match status {
                200..=299 => Some("delivered"),
                410 => Some("gone"),
                _ => None,
            };
            let by_default = match status {
                429 | 500..=599 => "retry",
                _ => "rejected",
            };

            let words = [&RetryOn::default(), &nothing, &everything]
                .map(|retry_on| word(&judge(&reply, retry_on, now())));
            let expected = [by_default, "rejected", "retry"].map(|word| fixed.unwrap_or(word));
            assert_eq!(words, expected, "{status}");
        }
    }

    #[test]
    fn c19_a_malformed_status_line_and_every_other_network_failure_is_retried() {
        let kinds = [
            FailureKind::Dns,
            FailureKind::Connect,
            FailureKind::Tls,
            FailureKind::Timeout,
            FailureKind::Protocol,
        ];

        for kind in kinds {
            // Not even a policy that retries on no status gives these up.
            let verdict = judge(&failure(kind), &retry_on(&[]), now());
            let error = format!("{}: it broke", kind.as_str());
            let not_before = None;
            assert_eq!(verdict, Verdict::Retry { not_before, error });
        }
    }

    #[test]
    fn a_forbidden_address_is_blocked_and_not_retried() {
        let error = "blocked: it broke".to_owned();

        assert_eq!(
            verdict(&failure(FailureKind::Blocked)),
            Verdict::Blocked { error }
        );
    }

    #[test]
    fn a_2xx_is_delivered_even_if_its_body_was_cut() {
        let cut = reply(Answer::Response(Response {
            status: 200,
            headers: Vec::new(),
            body: b"{\"par".to_vec(),
            completeness: Completeness::Truncated,
        }));

        assert_eq!(verdict(&cut), Verdict::Delivered);
    }

    #[test]
    fn a_retry_names_the_status() {
        let expected = Verdict::Retry {
            not_before: None,
            error: "HTTP 503".into(),
        };

        assert_eq!(verdict(&response(503, &[])), expected);
    }

    #[test]
    fn retry_after_is_honoured_on_every_status_that_is_retried() {
        for status in [302, 429, 500, 503, 599] {
            let reply = response(status, &[("retry-after", b"77")]);
            assert_eq!(not_before(&reply), Some(Duration::from_secs(77)));
        }
    }

    #[test]
    fn of_several_retry_after_values_the_largest_valid_one_counts() {
        let several: &[(&str, &[u8])] = &[
            ("Retry-After", b"30"),
            ("x-other", b"999"),
            ("RETRY-AFTER", b"Sun, 06 Nov 1994 08:50:37 GMT"),
            ("retry-after", b"\xff"),
            ("retry-after", b"-5"),
        ];

        assert_eq!(
            not_before(&response(429, several)),
            Some(Duration::from_secs(60))
        );
        assert_eq!(not_before(&response(429, &several[3..])), None);
    }

    #[test]
    fn c18_a_redirect_is_rejected_with_its_target_in_the_error() {
        for status in [301, 302, 303, 307, 308] {
            let reply = response(status, &[("Location", b"https://example.com/login")]);
            let error = format!("HTTP {status} to https://example.com/login");
            assert_eq!(verdict(&reply), Verdict::Rejected { error });
        }
        assert_eq!(
            verdict(&response(302, &[("location", b" ")])),
            rejected("HTTP 302")
        );
        assert_eq!(
            verdict(&response(201, &[("location", b"/orders/1")])),
            Verdict::Delivered
        );
        assert_eq!(
            verdict(&response(404, &[("location", b"/orders/1")])),
            rejected("HTTP 404")
        );
    }
}
