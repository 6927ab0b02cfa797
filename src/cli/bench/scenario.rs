//! What a benchmark can put a worker through.

use std::time::Duration;

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Scenario {
    /// A backlog for a receiver that answers at once
    Fast,
    /// A receiver that takes 100 ms for each answer
    Slow,
    /// One endpoint has nine tenths of the backlog
    Whale,
    /// The backlog belongs to 10,000 endpoints
    Many,
    /// The receiver is away for the first two seconds
    Outage,
    /// The backlog is shared by several workers
    Replicas,
    /// Single events, half as many as a worker could take
    Steady,
    /// Nothing to do, then single events
    Idle,
}

impl Scenario {
    /// As it is typed and printed.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Slow => "slow",
            Self::Whale => "whale",
            Self::Many => "many",
            Self::Outage => "outage",
            Self::Replicas => "replicas",
            Self::Steady => "steady",
            Self::Idle => "idle",
        }
    }

    /// Endpoints that the events go to.
    pub(super) fn endpoints(self) -> usize {
        match self {
            Self::Many => 10_000,
            Self::Slow => 1,
            Self::Whale => 11,
            Self::Fast | Self::Outage | Self::Replicas | Self::Steady | Self::Idle => 16,
        }
    }

    /// Tries at a time of each endpoint.
    pub(super) fn in_flight(self) -> usize {
        if self == Self::Slow { 256 } else { 1000 }
    }

    /// Tries at a time of a worker, if not its default. A lane alone may have four fifths of them.
    pub(super) fn concurrency(self) -> Option<u16> {
        (self == Self::Slow).then_some(320)
    }

    /// Which endpoint the event `n` goes to, in SQL: a number from 0.
    pub(super) fn endpoint_of_event(self) -> String {
        match self {
            // The whale is 0; the others share every tenth event.
            Self::Whale => "case when n % 10 = 0 then 1 + n / 10 % 10 else 0 end".to_owned(),
            Self::Fast
            | Self::Slow
            | Self::Many
            | Self::Outage
            | Self::Replicas
            | Self::Steady
            | Self::Idle => {
                format!("n % {}", self.endpoints())
            }
        }
    }

    /// How long the receiver waits before it answers.
    pub(super) fn delay(self) -> Duration {
        if self == Self::Slow {
            Duration::from_millis(100)
        } else {
            Duration::ZERO
        }
    }

    /// How long the receiver answers 503 at first.
    pub(super) fn away(self) -> Duration {
        if self == Self::Outage {
            Duration::from_secs(2)
        } else {
            Duration::ZERO
        }
    }

    /// Whether events are inserted one by one while workers run, rather than all before.
    pub(super) fn trickles(self) -> bool {
        matches!(self, Self::Idle | Self::Steady)
    }
}
