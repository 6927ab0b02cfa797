//! Publishes what watched tables have left behind, beside the sending.
//!
//! A claim says that changes wait; from then on this goes on until none is left or another worker is at it. What it made is due at once,
//! so it rings for the next claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::backoff::Backoff;
use super::recorder::chain;
use crate::store::queue::Queue;

/// Chunks of changes, some forty rows each, that one statement deals with.
const CHUNKS: i32 = 25;

/// The one who publishes, and how it is told to.
#[derive(Clone, Debug)]
pub(super) struct Publisher {
    queue: Queue,
    /// Stores a permit, so no claim's word is lost while a statement runs.
    wanted: Arc<Notify>,
    failing: Arc<AtomicBool>,
    wake: Arc<Notify>,
}

impl Publisher {
    /// Rings `wake` whenever something was published.
    pub(super) fn new(queue: Queue, wake: Arc<Notify>) -> Self {
        Self {
            queue,
            wanted: Arc::new(Notify::new()),
            failing: Arc::new(AtomicBool::new(false)),
            wake,
        }
    }

    /// Changes wait.
    pub(super) fn ask(&self) {
        self.wanted.notify_one();
    }

    /// Whether it could not publish when it was last asked: nobody should wait for it.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Acquire)
    }

    /// Publishes whenever it is asked; ends with its task.
    pub(super) async fn run(self) {
        let mut backoff = Backoff::default();
        loop {
            self.wanted.notified().await;
            while let Some(done) = self.publish(&mut backoff).await {
                if done == 0 {
                    break;
                }
                tracing::debug!(chunks = done, "published changes of watched tables");
                self.wake.notify_one();
            }
        }
    }

    /// One statement; `None` when it failed and the wait after it is over.
    async fn publish(&self, backoff: &mut Backoff) -> Option<i64> {
        match self.queue.publish(CHUNKS).await {
            Ok(done) => {
                self.failing.store(false, Ordering::Release);
                backoff.reset();
                Some(done)
            }
            Err(error) => {
                self.failing.store(true, Ordering::Release);
                let wait = backoff.next();
                tracing::warn!(error = %chain(&error), retry_ms = wait.as_millis(), "cannot publish the changes of watched tables");
                tokio::time::sleep(wait).await;
                None
            }
        }
    }
}
