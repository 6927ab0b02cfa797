//! How a worker is to run, and what it then says it did.

use std::time::Duration;

use crate::store::queue::Sessions;

/// How a worker runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// `workers.id`, unique among those that run.
    pub name: String,
    /// For people who look for it.
    pub hostname: String,
    /// Tries at a time.
    pub concurrency: usize,
    /// The longest sleep.
    pub poll_interval: Duration,
    /// What a lease has beyond the endpoint's timeout.
    pub lease_margin: Duration,
    /// After a stop signal, tries in flight may go on for this long.
    pub grace: Duration,
    /// When to end.
    pub until: Until,
    /// How to hear of new rows.
    pub waking: Waking,
    /// Whether to remove what retention says is old.
    pub pruning: Pruning,
    /// Whose sessions the statements run in.
    pub sessions: Sessions,
}

/// When a worker ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When it is told to.
    Stopped,
    /// When nothing is due and nothing in flight.
    Drained,
}

/// How a worker hears of new rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waking {
    /// By the doorbell, and by polling.
    Doorbell,
    /// By polling alone.
    Poll,
}

/// Whether a worker removes what retention says is old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pruning {
    /// From time to time, one worker at a time.
    On,
    /// Never: others do, or nobody.
    Off,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Tries that delivered.
    pub delivered: u64,
    /// Tries that failed and are tried again.
    pub failed: u64,
    /// Tries that ended their delivery.
    pub exhausted: u64,
}
