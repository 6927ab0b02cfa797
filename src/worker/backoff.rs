//! Growing waits with jitter, for a database that is away.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// How often in a row something has failed.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure: half to the whole of a limit that doubles.
    pub(super) fn next(&mut self) -> Duration {
        let limit = FIRST
            .saturating_mul(2_u32.saturating_pow(self.failures))
            .min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        limit.mul_f64(0.5 + rand::random::<f64>() / 2.0)
    }

    /// It worked.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_ten_seconds_and_start_afresh_after_a_success() {
        let mut backoff = Backoff::default();

        let waits: Vec<Duration> = (0..1000).map(|_| backoff.next()).collect();
        backoff.reset();

        assert!(waits[0] <= FIRST);
        assert!(waits[999] >= LONGEST / 2 && waits.iter().all(|wait| *wait <= LONGEST));
        assert!(backoff.next() <= FIRST);
    }
}
