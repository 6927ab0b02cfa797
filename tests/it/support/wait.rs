//! Waiting for facts.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Longer than anything takes that works, on a machine that does much else.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(15);

/// Looks until what it sees `holds`, and returns that.
///
/// # Panics
///
/// When the deadline has passed: with `what` was waited for and what was seen last.
#[track_caller]
pub(crate) fn wait_until<T: Debug>(
    what: &str,
    mut look: impl AsyncFnMut() -> T,
    holds: impl Fn(&T) -> bool,
    deadline: Duration,
) -> impl Future<Output = T> {
    let asked_at = std::panic::Location::caller();
    async move {
        let began = Instant::now();
        loop {
            let seen = look().await;
            if holds(&seen) {
                return seen;
            }
            assert!(
                began.elapsed() < deadline,
                "{asked_at}: still not so after {deadline:?}: {what}; last seen: {seen:#?}"
            );
            tokio::time::sleep(PAUSE).await;
        }
    }
}
