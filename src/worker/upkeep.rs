//! What a worker does for the tables beside delivering: days of attempts are made ahead, what is old is pruned.
//!
//! Owns when that is done. Every worker tries; the database lets one at a time do it. What is old is said by `postrider.retention`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::clock::Moment;
use super::options::Pruning;
use super::recorder::chain;
use crate::store::Error;
use crate::store::queue::Queue;

/// Day partitions are looked after this often.
const PARTITIONS_EVERY: Duration = Duration::from_secs(3600);

/// Rows that one transaction removes at most.
const STEP: i32 = 1000;

/// Between two steps, so that pruning is never all that the database does.
const PAUSE: Duration = Duration::from_millis(50);

/// After a run that found something; a run that finds nothing doubles it, up to [`LONGEST_REST`].
const REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(600);

/// The one who keeps the tables in order.
#[derive(Debug)]
pub(super) struct Upkeep {
    pub(super) queue: Queue,
    pub(super) pruning: Pruning,
}

impl Upkeep {
    /// Goes on until it is aborted; what a step has not committed is undone then.
    pub(super) async fn run(self) {
        let mut partitions_made = Moment::now();
        let mut rest = REST;
        loop {
            rest = match self.pruning {
                Pruning::On if self.prune().await => REST,
                Pruning::On | Pruning::Off => (rest * 2).min(LONGEST_REST),
            };
            tokio::time::sleep(rest).await;
            if partitions_made.elapsed() > PARTITIONS_EVERY {
                partitions_made = Moment::now();
                self.make_partitions().await;
            }
        }
    }

    async fn make_partitions(&self) {
        if let Err(error) = self.queue.make_partitions(&[]).await {
            tracing::error!(error = %chain(&error), "could not make the day partitions of postrider.attempts ahead; within a week tries could not be recorded");
        }
    }

    /// Step after step until nothing is left to do; whether there was anything.
    async fn prune(&self) -> bool {
        let mut removed = BTreeMap::new();
        let outcome = self.prune_into(&mut removed).await;
        for (kind, count) in &removed {
            tracing::info!(
                kind,
                count,
                "pruned what is older than postrider.retention says"
            );
        }
        if let Err(error) = outcome {
            tracing::warn!(error = %chain(&error), "could not prune; it is tried again later");
        }
        !removed.is_empty()
    }

    async fn prune_into(&self, removed: &mut BTreeMap<String, i64>) -> Result<(), Error> {
        loop {
            let mut more = false;
            for step in self.queue.prune(STEP).await? {
                more |= step.more;
                if let Some(why) = step.waits {
                    tracing::warn!(kind = step.kind, why, "pruning is put off");
                }
                if step.count > 0 {
                    *removed.entry(step.kind).or_default() += step.count;
                }
            }
            if !more {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
