//! Writes results in batches, and keeps them while the database is away.
//!
//! A result holds its worker's slot until it is written: results pile up to the number of slots and no further, and claiming stops by
//! itself. One bad value never stops a batch: the batch is halved until the value stands alone, and then written without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::attempt::Report;
use super::backoff::Backoff;
use crate::attempt::{Attempt, Next};
use crate::store::Error;
use crate::store::queue::Queue;

/// Results per statement at most.
const BATCH: usize = 500;

/// How long the first result of a batch waits for company.
const LINGER: Duration = Duration::from_millis(4);

/// A report and the slot that it holds until it is written.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) report: Report,
    pub(super) slot: OwnedSemaphorePermit,
}

/// What has become of the deliveries of this run.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) delivered: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) exhausted: AtomicU64,
}

/// The one who writes.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) queue: Queue,
    pub(super) worker: String,
    pub(super) tally: Arc<Tally>,
    /// Somebody waits for a lane to have room again; a written batch then rings `wake`.
    pub(super) room_wanted: Arc<AtomicBool>,
    pub(super) wake: Arc<Notify>,
}

impl Recorder {
    /// Writes until every sender is gone and the last report is written.
    pub(super) async fn run(self, mut inbox: UnboundedReceiver<Held>) {
        let mut held = Vec::with_capacity(BATCH);
        while inbox.recv_many(&mut held, BATCH).await > 0 {
            if held.len() < BATCH {
                gather(&mut inbox, &mut held).await;
            }
            let mut attempts = Vec::with_capacity(held.len());
            let mut unsent = Vec::new();
            let mut slots = Vec::with_capacity(held.len());
            for Held { report, slot } in held.drain(..) {
                slots.push(slot);
                match report {
                    Report::Attempt(attempt) => attempts.push(*attempt),
                    Report::GiveBack {
                        delivery_id,
                        claim_no,
                    } => unsent.push((delivery_id, claim_no)),
                }
            }
            if !attempts.is_empty() {
                self.record(attempts).await;
            }
            if !unsent.is_empty() {
                self.release(&unsent).await;
            }
            drop(slots);
            if self.room_wanted.swap(false, Ordering::AcqRel) {
                self.wake.notify_one();
            }
        }
    }

    /// Writes a batch; on a bad value, its halves, down to the one result that it is in.
    async fn record(&self, attempts: Vec<Attempt>) {
        let mut batches = vec![attempts];
        while let Some(mut batch) = batches.pop() {
            let Err(error) = self.persist(&batch).await else {
                continue;
            };
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
            } else if let Some(plain) = batch.first().and_then(without_texts) {
                tracing::warn!(delivery = plain.delivery_id, error = %chain(&error), "a reply could not be stored, the try is recorded without it");
                batches.push(vec![plain]);
            } else {
                let delivery = batch.first().map(|attempt| attempt.delivery_id);
                tracing::error!(delivery, error = %chain(&error), "a try could not be recorded; its lease will run out and it will count as lost");
            }
        }
    }

    /// Writes a batch, however long the database is away. An error means that a value is at fault.
    async fn persist(&self, batch: &[Attempt]) -> Result<(), Error> {
        let mut backoff = Backoff::default();
        let mut sent_before = false;
        loop {
            match self.record_twice(batch).await {
                Ok(moved) => {
                    self.log(batch, &moved, sent_before);
                    return Ok(());
                }
                Err(error) if error.is_data_error() => return Err(error),
                Err(error) => {
                    let wait = backoff.next();
                    tracing::warn!(results = batch.len(), error = %chain(&error), retry_ms = wait.as_millis(), "results wait in memory: the database does not take them");
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
        let mut moved = moved.to_vec();
        moved.sort_unstable();
        for attempt in batch {
            let late = moved.binary_search(&attempt.delivery_id).is_err();
            if late && !sent_before {
                tracing::warn!(
                    delivery = attempt.delivery_id,
                    endpoint = attempt.endpoint,
                    outcome = attempt.outcome.as_str(),
                    "a result came too late: its lease had run out, or the delivery was cancelled"
                );
            }
            let counter = match attempt.next {
                Next::Delivered => &self.tally.delivered,
                Next::Retry(_) => &self.tally.failed,
                Next::Exhausted(_) => &self.tally.exhausted,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            log_attempt(attempt);
        }
    }
}

fn log_attempt(attempt: &Attempt) {
    let (delivery, endpoint) = (attempt.delivery_id, attempt.endpoint.as_str());
    let duration_ms = attempt.duration.as_millis();
    let status = attempt.status_code;
    let error = attempt.error.as_deref();
    match attempt.next {
        Next::Delivered => tracing::debug!(delivery, endpoint, status, duration_ms, "delivered"),
        Next::Retry(delay) => {
            tracing::info!(
                delivery,
                endpoint,
                status,
                duration_ms,
                error,
                retry_s = delay.as_secs(),
                "failed, will be tried again"
            );
        }
        Next::Exhausted(reason) => {
            tracing::warn!(
                delivery,
                endpoint,
                status,
                duration_ms,
                error,
                reason = reason.as_str(),
                "exhausted, will not be tried again"
            );
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

/// The same result without anything a receiver could have chosen; `None` when there was nothing of that kind.
fn without_texts(attempt: &Attempt) -> Option<Attempt> {
    let plain = attempt.response_body.is_none()
        && attempt.response_headers.is_empty()
        && attempt.request_headers.is_empty();
    (!plain).then(|| Attempt {
        error: Some("the reply could not be stored".to_owned()),
        request_headers: Vec::new(),
        response_headers: Vec::new(),
        response_body: None,
        response_truncated: attempt.response_body.is_some(),
        ..attempt.clone()
    })
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
    line
}
