//! What a worker does for the tables beside delivering: days of attempts are made ahead, what is old is pruned, tries are added up.
//!
//! Owns when that is done. Every worker tries; the database lets one at a time do it. What is old is said by `postrider.retention`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::clock::Moment;
use super::options::Pruning;
use super::recorder::{Tally, chain};
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

/// Tries that this worker wrote are added up into the reports this often. Whoever reads the reports sees them at once; it only takes
/// longer the more there are that nobody added up.
const FOLD_EVERY: Duration = Duration::from_secs(10);

/// Statements' worth of tries, per endpoint, that one transaction adds up.
const FOLD: i32 = 10_000;

/// The one who keeps the tables in order.
#[derive(Debug)]
pub(super) struct Upkeep {
    queue: Queue,
    pruning: Pruning,
    tally: Arc<Tally>,
}

impl Upkeep {
    pub(super) fn of(queue: &Queue, pruning: Pruning, tally: &Arc<Tally>) -> Self {
        Self {
            queue: queue.clone(),
            pruning,
            tally: Arc::clone(tally),
        }
    }

    /// Goes on until it is aborted; what a step has not committed is undone then.
    pub(super) async fn run(self) {
        tokio::join!(self.keep_order(), self.keep_reports());
    }

    async fn keep_order(&self) {
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

    /// At first what others may have left. Later there is something to do only when this worker wrote something, so that an idle one
    /// does not ask.
    async fn keep_reports(&self) {
        let mut folded = None;
        loop {
            let written = self.tally.written();
            if folded != Some(written) {
                match self.fold().await {
                    Ok(()) => folded = Some(written),
                    Err(error) => {
                        tracing::warn!(error = %chain(&error), "could not add tries up into postrider.reports; it is tried again later");
                    }
                }
            }
            tokio::time::sleep(FOLD_EVERY).await;
        }
    }

    async fn fold(&self) -> Result<(), Error> {
        while self.queue.fold(FOLD).await? >= FOLD {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
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
