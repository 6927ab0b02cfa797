//! A monotonic clock that also runs while the machine is suspended.
//!
//! A lease is measured with it: after a suspended laptop wakes up, the time that the database counted has passed here too. The
//! standard library's `Instant` stands still during a suspend on Linux.

use std::time::Duration;

use chrono::{DateTime, Utc};
use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// A point on this machine's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(Duration);

impl Moment {
    /// This moment.
    #[must_use]
    pub(super) fn now() -> Self {
        let time = clock_gettime(CLOCK);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Self(Duration::new(seconds, nanos))
    }

    /// The moment that was so long ago.
    #[cfg(test)]
    pub(super) fn ago(age: Duration) -> Self {
        Self(Self::now().0.saturating_sub(age))
    }

    /// Time since this moment.
    #[must_use]
    pub(super) fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}

/// The database's clock, as known since a claim: its `now()` then, and the time that has passed here since.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatabaseTime {
    at: DateTime<Utc>,
    known: Moment,
}

impl DatabaseTime {
    /// The database said `at`; `asked` is just before it was asked.
    #[must_use]
    pub(super) fn new(at: DateTime<Utc>, asked: Moment) -> Self {
        Self { at, known: asked }
    }

    /// What the database's clock shows about now.
    #[must_use]
    pub(super) fn now(self) -> DateTime<Utc> {
        self.at + self.elapsed()
    }

    /// Time since the database was asked.
    #[must_use]
    pub(super) fn elapsed(self) -> Duration {
        self.known.elapsed()
    }
}
