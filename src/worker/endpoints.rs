//! What the worker remembers of endpoints, by revision.
//!
//! A claim names each endpoint's revision; an entry of another revision, or one whose secret has expired since, is read again. So an
//! edit of an endpoint reaches the next try without a query per delivery.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::clock::Moment;
use crate::delivery::Endpoint;
use crate::store::Error;
use crate::store::queue::{Queue, Taken};

/// Entries kept at most; past it the memory starts afresh.
const KEPT: usize = 50_000;

/// Endpoints as last read.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    known: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    endpoint: Arc<Endpoint>,
    read: Moment,
    good_for: Option<Duration>,
}

impl Entry {
    fn holds(&self, revision: i64) -> bool {
        // An endpoint that was edited between claim and reading is newer than the claim knew, and right.
        self.endpoint.revision >= revision
            && self.good_for.is_none_or(|time| self.read.elapsed() < time)
    }
}

impl Endpoints {
    /// Makes sure that the endpoints of `taken` are known as they are now.
    ///
    /// # Errors
    ///
    /// Any of the store; what was known stays known.
    pub(super) async fn refresh(&mut self, queue: &Queue, taken: &[Taken]) -> Result<(), Error> {
        let mut stale: Vec<String> = taken
            .iter()
            .filter(|one| {
                !self
                    .known
                    .get(&one.delivery.endpoint)
                    .is_some_and(|entry| entry.holds(one.revision))
            })
            .map(|one| one.delivery.endpoint.clone())
            .collect();
        stale.sort_unstable();
        stale.dedup();
        if stale.is_empty() {
            return Ok(());
        }
        let read = Moment::now();
        if self.known.len() + stale.len() > KEPT {
            self.known.clear();
            stale = taken
                .iter()
                .map(|one| one.delivery.endpoint.clone())
                .collect();
        }
        for loaded in queue.endpoints(&stale).await? {
            for fault in &loaded.faults {
                tracing::error!(
                    endpoint = loaded.endpoint.name,
                    fault,
                    "a setting of this endpoint makes no sense"
                );
            }
            self.known.insert(
                loaded.endpoint.name.clone(),
                Entry {
                    endpoint: Arc::new(loaded.endpoint),
                    read,
                    good_for: loaded.good_for,
                },
            );
        }
        Ok(())
    }

    /// The endpoint of that name as last read.
    #[must_use]
    pub(super) fn get(&self, name: &str) -> Option<Arc<Endpoint>> {
        self.known
            .get(name)
            .map(|entry| Arc::clone(&entry.endpoint))
    }
}
