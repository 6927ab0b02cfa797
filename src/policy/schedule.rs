//! How long to wait before a retry.
//!
//! Owns the arithmetic, which is total: what stands in a policy row was written by a person, so every value has a
//! meaning here and none can panic. It does not own the limit on retries, nor what a receiver asks for.

use std::time::Duration;

use super::RetryOn;

/// No delay is longer, whatever a policy says: 365 days.
pub const LONGEST_DELAY: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// One row of `retry_policies`, without `max_retries`: that one is resolved per delivery.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The delays before jitter.
    pub schedule: Schedule,
    /// How far a delay strays to either side, as a share of it: 0 not at all, 1 from nothing to double. Values
    /// outside 0 to 1 count as the nearer end, NaN as 0.
    pub jitter: f64,
    /// The statuses that are tried again.
    pub retry_on: RetryOn,
}

/// The delays of a policy, before jitter.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// One delay after the other; the last repeats. An empty list retries at once.
    Fixed {
        /// The delay before the first retry, the second, and so on.
        delays: Vec<Duration>,
    },
    /// `base`, `base * factor`, `base * factor^2` and so on, never above `cap`.
    Exponential {
        /// The delay before the first retry.
        base: Duration,
        /// What each delay is multiplied by for the next. Below 1 and NaN count as 1: a schedule never shrinks.
        factor: f64,
        /// The longest delay before jitter; jitter may exceed it.
        cap: Duration,
    },
}

impl Policy {
    /// The wait before retry number `retry` (1 is the first; 0 counts as 1), at most [`LONGEST_DELAY`].
    ///
    /// `draw` is uniform in `[0, 1)` and chooses the place within the jitter: 0 the earliest, 0.5 the middle. Out of
    /// range it counts as the nearer end, NaN as the middle.
    #[must_use]
    pub fn delay(&self, retry: u32, draw: f64) -> Duration {
        let jitter = within_unit(self.jitter, 0.0);
        let draw = within_unit(draw, 0.5);
        let scale = 1.0 - jitter + 2.0 * jitter * draw;

        // At most a year times a scale of at most 2: the product cannot overflow, which would panic.
        self.schedule
            .delay(retry)
            .min(LONGEST_DELAY)
            .mul_f64(scale)
            .min(LONGEST_DELAY)
    }
}

impl Schedule {
    fn delay(&self, retry: u32) -> Duration {
        let step = retry.saturating_sub(1);

        match self {
            Self::Fixed { delays } => usize::try_from(step)
                .ok()
                .and_then(|step| delays.get(step))
                .or(delays.last())
                .copied()
                .unwrap_or(Duration::ZERO),
            Self::Exponential { base, factor, cap } => exponential(*base, *factor, *cap, step),
        }
    }
}

fn exponential(base: Duration, factor: f64, cap: Duration, step: u32) -> Duration {
    // Nothing times an infinite power is not a number.
    if base.is_zero() {
        return Duration::ZERO;
    }

    // `f64::max` returns the other side of a NaN.
    let power = factor.max(1.0).powf(f64::from(step));
    Duration::try_from_secs_f64(base.as_secs_f64() * power)
        .unwrap_or(Duration::MAX)
        .min(cap)
}

fn within_unit(value: f64, if_nan: f64) -> f64 {
    if value.is_nan() {
        if_nan
    } else {
        value.clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const MIDDLE: f64 = 0.5;

    fn policy(schedule: Schedule, jitter: f64) -> Policy {
        Policy {
            schedule,
            jitter,
            retry_on: RetryOn::default(),
        }
    }

    fn fixed(seconds: &[u64]) -> Schedule {
        Schedule::Fixed {
            delays: seconds.iter().copied().map(Duration::from_secs).collect(),
        }
    }

    fn seconds(policy: &Policy, retries: impl IntoIterator<Item = u32>) -> Vec<u64> {
        retries
            .into_iter()
            .map(|retry| policy.delay(retry, MIDDLE).as_secs())
            .collect()
    }

    #[test]
    fn a_fixed_schedule_is_walked_and_its_last_delay_repeats() {
        let policy = policy(fixed(&[5, 300, 1800]), 0.2);

        assert_eq!(
            seconds(&policy, [1, 2, 3, 4, 5, u32::MAX]),
            [5, 300, 1800, 1800, 1800, 1800]
        );
    }

    #[test]
    fn an_exponential_schedule_doubles_up_to_its_cap() {
        let schedule = Schedule::Exponential {
            base: Duration::from_secs(30),
            factor: 2.0,
            cap: Duration::from_secs(3600),
        };
        let policy = policy(schedule, 0.0);

        assert_eq!(
            seconds(&policy, [1, 2, 3, 7, 8, u32::MAX]),
            [30, 60, 120, 1920, 3600, 3600]
        );
    }

    #[test]
    fn c25_an_empty_schedule_and_a_zero_one_retry_at_once() {
        for schedule in [fixed(&[]), fixed(&[0])] {
            let policy = policy(schedule, 1.0);

            for retry in [0, 1, 2, u32::MAX] {
                assert_eq!(policy.delay(retry, 0.999), Duration::ZERO);
            }
        }
    }

    #[test]
    fn c25_nothing_grows_out_of_a_base_of_zero() {
        for factor in [2.0, f64::INFINITY] {
            let schedule = Schedule::Exponential {
                base: Duration::ZERO,
                factor,
                cap: Duration::from_secs(3600),
            };

            assert_eq!(
                policy(schedule, 0.2).delay(u32::MAX, MIDDLE),
                Duration::ZERO
            );
        }
    }

    #[test]
    fn c25_retry_zero_counts_as_the_first() {
        let policy = policy(fixed(&[5, 300]), 0.0);

        assert_eq!(policy.delay(0, MIDDLE), policy.delay(1, MIDDLE));
    }

    #[test]
    fn c25_nonsense_in_a_policy_has_its_documented_meaning() {
        let growing = |factor| Schedule::Exponential {
            base: Duration::from_secs(10),
            factor,
            cap: Duration::from_secs(1000),
        };
        let still_ten = [f64::NAN, f64::NEG_INFINITY, -3.0, 0.0, 0.5];

        for factor in still_ten {
            assert_eq!(seconds(&policy(growing(factor), 0.0), [1, 2, 9]), [10; 3]);
        }
        assert_eq!(
            seconds(&policy(growing(f64::INFINITY), 0.0), [1, 2, 3]),
            [10, 1000, 1000]
        );
        for jitter in [f64::NAN, f64::NEG_INFINITY, -0.2] {
            assert_eq!(policy(fixed(&[10]), jitter).delay(1, 0.0).as_secs(), 10);
        }
        for jitter in [1.0, 7.0, f64::INFINITY] {
            assert_eq!(policy(fixed(&[10]), jitter).delay(1, 0.0).as_secs(), 0);
            assert_eq!(policy(fixed(&[10]), jitter).delay(1, 1.0).as_secs(), 20);
        }
        assert_eq!(
            policy(fixed(&[10]), 0.2).delay(1, f64::NAN),
            Duration::from_secs(10)
        );
    }

    #[test]
    fn no_delay_is_longer_than_a_year() {
        let longest = Schedule::Fixed {
            delays: vec![Duration::MAX],
        };
        let endless = Schedule::Exponential {
            base: Duration::MAX,
            factor: f64::MAX,
            cap: Duration::MAX,
        };

        for schedule in [longest, endless] {
            assert_eq!(policy(schedule, 1.0).delay(3, 0.999), LONGEST_DELAY);
        }
    }

    #[test]
    fn c26_a_thousand_failures_of_one_second_spread_over_the_jitter() {
        let policy = policy(fixed(&[300]), 0.2);
        let mut rng = StdRng::seed_from_u64(26);
        let mut tenths = [0_u32; 10];

        for _ in 0..1000 {
            let delay = policy.delay(1, rng.random::<f64>()).as_secs_f64();
            let tenth = (0..10_u32)
                .find(|tenth| delay < 240.0 + 12.0 * f64::from(tenth + 1))
                .expect("a delay is below 300 s + 20 %");
            assert!(delay >= 240.0, "{delay} is below 300 s - 20 %");
            tenths[usize::try_from(tenth).expect("below ten")] += 1;
        }

        assert!(
            tenths.iter().all(|count| (60..=140).contains(count)),
            "not spread: {tenths:?}"
        );
    }

    fn any_duration() -> impl Strategy<Value = Duration> {
        prop_oneof![
            (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(s, ns)| Duration::new(s, ns)),
            (0..10_000_000_u64).prop_map(Duration::from_secs),
            Just(Duration::ZERO),
            Just(Duration::MAX),
        ]
    }

    fn any_schedule() -> impl Strategy<Value = Schedule> {
        prop_oneof![
            prop::collection::vec(any_duration(), 0..5)
                .prop_map(|delays| Schedule::Fixed { delays }),
            (any_duration(), prop::num::f64::ANY, any_duration())
                .prop_map(|(base, factor, cap)| Schedule::Exponential { base, factor, cap }),
        ]
    }

    proptest! {
        #[test]
        fn any_stored_values_and_any_retry_give_a_delay_within_a_year(
            schedule in any_schedule(),
            jitter in prop::num::f64::ANY,
            retry in any::<u32>(),
            draw in prop::num::f64::ANY,
        ) {
            prop_assert!(policy(schedule, jitter).delay(retry, draw) <= LONGEST_DELAY);
        }

        #[test]
        fn a_later_retry_of_an_exponential_schedule_never_waits_less(
            base in 0..100_000_u64,
            factor in 0.0..10.0_f64,
            cap in 0..1_000_000_u64,
            retry in 0..1_000_u32,
        ) {
            let schedule = Schedule::Exponential {
                base: Duration::from_secs(base),
                factor,
                cap: Duration::from_secs(cap),
            };
            let policy = policy(schedule, 0.0);

            prop_assert!(policy.delay(retry + 1, MIDDLE) >= policy.delay(retry, MIDDLE));
            prop_assert!(policy.delay(retry, MIDDLE) <= Duration::from_secs(cap));
        }

        #[test]
        fn a_delay_stays_within_its_jitter_and_grows_with_the_draw(
            seconds in 1..10_000_000_u64,
            jitter in 0.0..=1.0_f64,
            low in 0.0..1.0_f64,
            high in 0.0..1.0_f64,
        ) {
            let policy = policy(fixed(&[seconds]), jitter);
            let plain = Duration::from_secs(seconds).as_secs_f64();
            let (low, high) = (low.min(high), low.max(high));
            let (early, late) = (policy.delay(1, low), policy.delay(1, high));

            prop_assert!(early <= late);
            prop_assert!(early.as_secs_f64() >= plain * (1.0 - jitter) - 1e-6);
            prop_assert!(late.as_secs_f64() <= plain * (1.0 + jitter) + 1e-6);
        }
    }
}
