//! What a receiver asks for in `Retry-After` (RFC 9110, section 10.2.3).
//!
//! Owns the reading of one value. The receiver is not trusted: nothing it sends panics, and nothing postpones a
//! retry beyond [`RETRY_AFTER_CAP`].

use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};

/// The longest wait that a receiver can ask for: 24 hours.
pub const RETRY_AFTER_CAP: Duration = Duration::from_secs(24 * 60 * 60);

/// How long the value asks to wait from `now`: seconds or an HTTP date, at most [`RETRY_AFTER_CAP`].
///
/// A date that has passed is zero. `None` when the value is neither form, such as a negative or a fractional number.
#[must_use]
pub fn retry_after(value: &[u8], now: DateTime<Utc>) -> Option<Duration> {
    let text = str::from_utf8(value).ok()?.trim_ascii();

    let wait = if is_digits(text) {
        // Only an overflow is left to fail, and more than fits is more than the cap.
        text.parse().map_or(RETRY_AFTER_CAP, Duration::from_secs)
    } else {
        let date: SystemTime = httpdate::parse_http_date(text).ok()?;
        (DateTime::<Utc>::from(date) - now)
            .to_std()
            .unwrap_or(Duration::ZERO)
    };
    Some(wait.min(RETRY_AFTER_CAP))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use proptest::prelude::*;

    use super::*;

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(784_111_777, 0).expect("1994 is in range")
    }

    fn seconds(value: &str) -> Option<u64> {
        retry_after(value.as_bytes(), now()).map(|wait| wait.as_secs())
    }

    #[test]
    fn seconds_are_read_and_capped_at_a_day() {
        assert_eq!(seconds("0"), Some(0));
        assert_eq!(seconds("120"), Some(120));
        assert_eq!(seconds("000120"), Some(120));
        assert_eq!(seconds("86400"), Some(86_400));
        assert_eq!(seconds("86401"), Some(86_400));
        assert_eq!(seconds("18446744073709551616"), Some(86_400));
        assert_eq!(seconds(&"9".repeat(10_000)), Some(86_400));
    }

    #[test]
    fn all_three_forms_of_an_http_date_are_read() {
        assert_eq!(seconds("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60));
        assert_eq!(seconds("Sunday, 06-Nov-94 08:50:37 GMT"), Some(60));
        assert_eq!(seconds("Sun Nov  6 08:50:37 1994"), Some(60));
    }

    #[test]
    fn a_date_that_has_passed_means_now_and_a_far_one_a_day() {
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:36 GMT"), Some(0));
        assert_eq!(seconds("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(seconds("Fri, 31 Dec 9999 23:59:59 GMT"), Some(86_400));
    }

    #[test]
    fn white_space_around_a_value_is_allowed() {
        assert_eq!(seconds(" \t120 \r\n"), Some(120));
        assert_eq!(seconds(" Sun, 06 Nov 1994 08:50:37 GMT "), Some(60));
    }

    #[test]
    fn garbage_asks_for_nothing() {
        let garbage = [
            "",
            " ",
            "-1",
            "+1",
            "1.5",
            "1e3",
            "0x10",
            "soon",
            "12 34",
            "120, 240",
            "１２",
            "Sun, 06 Nov 1994 08:50:37",
            "Mon, 06 Nov 1994 08:50:37 GMT",
            "Sun, 31 Feb 1994 08:50:37 GMT",
            "Sun, 06 Nov 1994 25:50:37 GMT",
            "1994-11-06T08:50:37Z",
        ];

        for value in garbage {
            assert_eq!(seconds(value), None, "{value:?}");
        }
        assert_eq!(retry_after(b"\xff\xfe", now()), None);
        assert_eq!(retry_after(b"12\x00", now()), None);
    }

    #[test]
    fn the_ends_of_the_calendar_do_not_panic() {
        for now in [DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC] {
            let wait = retry_after(b"Sun, 06 Nov 1994 08:50:37 GMT", now);
            assert!(wait == Some(Duration::ZERO) || wait == Some(RETRY_AFTER_CAP));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_or_exceed_the_cap(value in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(retry_after(&value, now()) <= Some(RETRY_AFTER_CAP));
        }

        #[test]
        fn nothing_that_looks_like_a_date_panics(
            value in "(Mon|Sunday|Wed)(, | )[A-Za-z0-9: -]{0,12}[0-9:]{0,9} ?(GMT|[0-9]{4})?",
        ) {
            prop_assert!(retry_after(value.as_bytes(), now()) <= Some(RETRY_AFTER_CAP));
        }

        #[test]
        fn a_date_asks_for_the_time_that_is_left(offset in -100_000_i64..100_000) {
            let date = SystemTime::from(now() + TimeDelta::seconds(offset));
            let expected = u64::try_from(offset).unwrap_or(0).min(86_400);

            prop_assert_eq!(seconds(&httpdate::fmt_http_date(date)), Some(expected));
        }

        #[test]
        fn a_number_asks_for_itself_up_to_the_cap(asked in any::<u64>()) {
            prop_assert_eq!(seconds(&asked.to_string()), Some(asked.min(86_400)));
        }
    }
}
