//! Which statuses are tried again.
//!
//! Owns the text form of `retry_policies.retry_on`. Two rows of the verdict table are out of its reach: a 2xx is
//! always delivered and 410 is always gone, whatever stands here.

use std::ops::RangeInclusive;

use thiserror::Error;

const STATUSES: RangeInclusive<u16> = 100..=999;

/// The statuses that a policy tries again: single codes and ranges. By default 429 and 500 to 599; an empty list
/// retries on no status, only on failures without one.
///
/// A 2xx is always delivered and 410 always gone, even when listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryOn {
    ranges: Vec<RangeInclusive<u16>>,
}

/// An item of `retry_on` that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "retry_on item {item:?} is neither a status (`429`) nor a range from low to high (`500-599`), each from 100 to 999"
)]
pub struct RetryOnError {
    /// The item as it was written.
    pub item: String,
}

impl Default for RetryOn {
    fn default() -> Self {
        Self {
            ranges: vec![429..=429, 500..=599],
        }
    }
}

impl RetryOn {
    /// Reads items such as `429` and `500-599`; spaces around numbers are allowed.
    ///
    /// # Errors
    /// The first item that is neither; correct it in the policy.
    pub fn parse<I>(items: I) -> Result<Self, RetryOnError>
    where
        I: IntoIterator<Item: AsRef<str>>,
    {
        let ranges = items
            .into_iter()
            .map(|item| {
                let item = item.as_ref();
                range(item).ok_or_else(|| RetryOnError { item: item.into() })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { ranges })
    }

    /// Whether `status` is listed.
    #[must_use]
    pub fn contains(&self, status: u16) -> bool {
        self.ranges.iter().any(|range| range.contains(&status))
    }
}

fn range(item: &str) -> Option<RangeInclusive<u16>> {
    let (low, high) = item.split_once('-').unwrap_or((item, item));
    let range = status(low)?..=status(high)?;
    (!range.is_empty()).then_some(range)
}

fn status(text: &str) -> Option<u16> {
    let digits = text.trim();
    // `parse` alone takes a leading plus.
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits
        .parse()
        .ok()
        .filter(|status| STATUSES.contains(status))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_default_is_429_and_the_5xx() {
        let parsed = RetryOn::parse(["429", "500-599"]).expect("both items are valid");

        assert_eq!(parsed, RetryOn::default());
        for status in STATUSES {
            let expected = status == 429 || (500..=599).contains(&status);
            assert_eq!(parsed.contains(status), expected, "{status}");
        }
    }

    #[test]
    fn an_empty_list_holds_no_status() {
        let none = RetryOn::parse::<[&str; 0]>([]).expect("an empty list is valid");

        assert!((100..=999).all(|status| !none.contains(status)));
    }

    #[test]
    fn spaces_around_numbers_are_allowed() {
        let parsed = RetryOn::parse([" 408 ", "500 - 502"]).expect("both items are valid");

        assert!(parsed.contains(408) && parsed.contains(502) && !parsed.contains(503));
    }

    #[test]
    fn a_bad_item_is_named_in_the_error() {
        let bad = [
            "",
            " ",
            "-",
            "5xx",
            "429,500",
            "+429",
            "-429",
            "99",
            "1000",
            "65965",
            "500-",
            "-599",
            "599-500",
            "500-599-600",
            "500..599",
            "４２９",
            "99-200",
            "4e2",
        ];

        for item in bad {
            let error = RetryOn::parse(["429", item]).expect_err(item);
            assert_eq!(error.item, item);
            assert!(error.to_string().contains(&format!("{item:?}")));
        }
    }

    proptest! {
        #[test]
        fn a_range_holds_exactly_what_lies_between_its_ends(
            low in STATUSES, high in STATUSES, status in any::<u16>(),
        ) {
            let parsed = RetryOn::parse([format!("{low}-{high}")]);

            prop_assert_eq!(parsed.is_ok(), low <= high);
            if let Ok(parsed) = parsed {
                prop_assert_eq!(parsed.contains(status), low <= status && status <= high);
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused_by_name(item in ".*") {
            if let Err(error) = RetryOn::parse([&item]) {
                prop_assert_eq!(error.item, item);
            }
        }
    }
}
