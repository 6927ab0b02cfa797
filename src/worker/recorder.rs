//! Writes results in batches, and keeps them while the database is away.
//!
//! A result holds a place until it is written: results pile up to the number of places and no further, and claiming stops by itself. One bad value never stops a batch: the batch is halved until the value stands alone, and then written without it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::attempt::Report;
use super::backoff::Backoff;
use super::report;
use crate::attempt::{Attempt, Next};
use crate::store::Error;
use crate::store::queue::Queue;

/// Results per statement at most.
const BATCH: usize = 500;

/// How long the first result of a batch waits for company.
const LINGER: Duration = Duration::from_millis(4);

/// A report and the place that it holds until it is written.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) report: Report,
    pub(super) place: OwnedSemaphorePermit,
}

/// What has become of the deliveries of this run.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) delivered: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) exhausted: AtomicU64,
}

impl Tally {
    /// Tries that were written.
    pub(super) fn written(&self) -> u64 {
        [&self.delivered, &self.failed, &self.exhausted]
            .map(|counter| counter.load(Ordering::Relaxed))
            .iter()
            .sum()
    }
}

/// The one who writes.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    pub(super) queue: Queue,
    pub(super) worker: String,
    /// Places for what is claimed and not written, and how many there are: whether a try is going on whose result could come along.
    pub(super) places: Arc<Semaphore>,
    pub(super) all_places: usize,
    pub(super) tally: Arc<Tally>,
    /// Somebody waits for a lane to have room again; a written batch then rings `wake`.
    pub(super) room_wanted: Arc<AtomicBool>,
    pub(super) wake: Arc<Notify>,
}

/// Results that belong to rows whose lock somebody else holds, with the places they keep.
type Stuck = Vec<(Attempt, OwnedSemaphorePermit)>;

impl Recorder {
    /// Writes until every sender is gone and the last report is written.
    pub(super) async fn run(self, mut inbox: UnboundedReceiver<Held>) {
        let stuck = TaskTracker::new();
        let mut held = Vec::with_capacity(BATCH);
        while inbox.recv_many(&mut held, BATCH).await > 0 {
            if held.len() < BATCH && self.others_are_under_way(held.len()) {
                gather(&mut inbox, &mut held).await;
            }
            let mut results = Vec::with_capacity(held.len());
            let mut unsent = Vec::new();
            for Held { report, place } in held.drain(..) {
                match report {
                    Report::Attempt(attempt) => results.push((*attempt, place)),
                    Report::GiveBack {
                        delivery_id,
                        claim_no,
                    } => unsent.push((delivery_id, claim_no)),
                }
            }
            let locked = self.record(results).await;
            if !locked.is_empty() {
                stuck.spawn(self.clone().wait_for_locks(locked));
            }
            if !unsent.is_empty() {
                self.release(&unsent).await;
            }
            self.ring();
        }
        stuck.close();
        stuck.wait().await;
    }

    /// Whether places are taken for more than these results. Where one delivery waits for another, nobody would come along, and
    /// each wait would be added to the next.
    fn others_are_under_way(&self, held: usize) -> bool {
        self.all_places
            .saturating_sub(self.places.available_permits())
            > held
    }

    /// Writes results, and returns those whose rows are locked by somebody else. On a bad value it writes the halves of a batch, down
    /// to the one result that the value is in.
    async fn record(&self, results: Stuck) -> Stuck {
        let (attempts, mut places): (Vec<_>, HashMap<_, _>) = results
            .into_iter()
            .map(|(attempt, place)| {
                let claim = (attempt.delivery_id, attempt.claim_no);
                (attempt, (claim, place))
            })
            .unzip();
        let mut stuck = Vec::new();
        let mut batches = vec![attempts];
        while let Some(mut batch) = batches.pop() {
            if batch.is_empty() {
                continue;
            }
            match self.persist(&batch).await {
                Ok(()) => {}
                Err(error) if error.is_lock_timeout() => {
                    let (free, locked) = self.part_by_locks(batch).await;
                    batches.push(free);
                    stuck.extend(locked);
                }
                Err(error) => {
                    if self
                        .queue
                        .make_partitions(&batch)
                        .await
                        .is_ok_and(|made| made > 0)
                    {
                        batches.push(batch);
                    } else if batch.len() > 1 {
                        let rest = batch.split_off(batch.len() / 2);
                        batches.push(rest);
                        batches.push(batch);
                    } else {
                        batches.push(plainer(&batch, &error));
                    }
                }
            }
        }
        stuck
            .into_iter()
            .filter_map(|attempt: Attempt| {
                let place = places.remove(&(attempt.delivery_id, attempt.claim_no))?;
                Some((attempt, place))
            })
            .collect()
    }

    /// Writes results as their rows become free, while other batches go on.
    async fn wait_for_locks(self, mut results: Stuck) {
        let mut backoff = Backoff::default();
        while !results.is_empty() {
            tracing::warn!(
                results = results.len(),
                delivery = results.first().map(|(attempt, _)| attempt.delivery_id),
                "results wait: another transaction holds the locks of their rows"
            );
            tokio::time::sleep(backoff.next()).await;
            results = self.record(results).await;
            self.ring();
        }
    }

    /// The results whose rows are free, and those whose rows are locked.
    async fn part_by_locks(&self, batch: Vec<Attempt>) -> (Vec<Attempt>, Vec<Attempt>) {
        let ids: Vec<i64> = batch.iter().map(|attempt| attempt.delivery_id).collect();
        match self.queue.lockable(&ids).await {
            Ok(free) => batch
                .into_iter()
                .partition(|attempt| free.contains(&attempt.delivery_id)),
            // Nothing is known then; all of them wait.
            Err(_) => (Vec::new(), batch),
        }
    }

    fn ring(&self) {
        if self.room_wanted.swap(false, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }

    /// Writes a batch, however long the database is away. An error means that one of its values or rows is at fault.
    async fn persist(&self, batch: &[Attempt]) -> Result<(), Error> {
        let mut backoff = Backoff::default();
        let mut sent_before = false;
        loop {
            match self.record_twice(batch).await {
                Ok(moved) => {
                    self.log(batch, &moved, sent_before);
                    return Ok(());
                }
                Err(error) if error.is_data_error() || error.is_lock_timeout() => {
                    return Err(error);
                }
                Err(error) => {
                    let wait = backoff.next();
                    tracing::warn!(
                        results = batch.len(),
                        error = %chain(&error),
                        retry_ms = wait.as_millis(),
                        "results wait in memory: the database does not take them"
                    );
                    sent_before = true;
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// What came too late is sent once more: whoever took the delivery over may have been at it at the same moment, and put its try
    /// on record as lost only after our statement had looked for that.
    async fn record_twice(&self, batch: &[Attempt]) -> Result<Vec<i64>, Error> {
        let moved = self.queue.record(&self.worker, batch).await?;
        if moved.len() == batch.len() {
            return Ok(moved);
        }
        let late: Vec<Attempt> = batch
            .iter()
            .filter(|attempt| !moved.contains(&attempt.delivery_id))
            .cloned()
            .collect();
        self.queue.record(&self.worker, &late).await?;
        Ok(moved)
    }

    async fn release(&self, claims: &[(i64, i64)]) {
        match self.queue.release(claims).await {
            Ok(ours) => tracing::info!(
                claimed = claims.len(),
                released = ours.len(),
                "gave deliveries back unsent: too little of their lease was left"
            ),
            Err(error) => {
                tracing::warn!(claimed = claims.len(), error = %chain(&error), "could not give deliveries back; their leases will run out")
            }
        }
    }

    fn log(&self, batch: &[Attempt], moved: &[i64], sent_before: bool) {
        for attempt in batch {
            let counter = match attempt.next {
                Next::Delivered => &self.tally.delivered,
                Next::Retry(_) => &self.tally.failed,
                Next::Exhausted(_) => &self.tally.exhausted,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        report::attempts(batch);
        // After a lost acknowledgement nobody knows which of them were written by the first sending.
        if !sent_before {
            report::late(batch, moved);
        }
    }
}

/// Waits a little for more results, so that a statement carries many.
async fn gather(inbox: &mut UnboundedReceiver<Held>, held: &mut Vec<Held>) {
    let until = tokio::time::Instant::now() + LINGER;
    while held.len() < BATCH {
        let room = BATCH - held.len();
        match tokio::time::timeout_at(until, inbox.recv_many(held, room)).await {
            Ok(more) if more > 0 => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// The one result again, without anything that a receiver could have chosen; nothing when there was nothing of that kind left.
fn plainer(batch: &[Attempt], error: &Error) -> Vec<Attempt> {
    let error = chain(error);
    let Some(attempt) = batch.first() else {
        return Vec::new();
    };
    let plain = attempt.response_body.is_none()
        && attempt.response_headers.is_empty()
        && attempt.request_headers.is_empty();
    if plain {
        tracing::error!(
            delivery = attempt.delivery_id,
            error,
            "a try could not be recorded; its lease will run out and it will count as lost"
        );
        return Vec::new();
    }
    tracing::warn!(
        delivery = attempt.delivery_id,
        error,
        "a reply could not be stored, the try is recorded without it"
    );
    vec![Attempt {
        error: Some("the reply could not be stored".to_owned()),
        request_headers: Vec::new(),
        response_headers: Vec::new(),
        response_body: None,
        response_truncated: attempt.response_body.is_some(),
        ..attempt.clone()
    }]
}

/// An error and its causes in one line.
pub(super) fn chain(error: &Error) -> String {
    let mut line = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        line.push_str(": ");
        line.push_str(&next.to_string());
        cause = next.source();
    }
    if error.is_of_a_pooler() {
        line.push_str(
            "; a pooler such as PgBouncer stands in between: start the worker with --pooler",
        );
    }
    line
}
