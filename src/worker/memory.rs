//! How much memory the payloads in flight may take.
//!
//! Small payloads are bounded by the number of slots and not counted. Large ones wait until those before them are done, so that a
//! thousand of them do not fill the machine.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Payloads in flight may take this much, those below [`SMALL`] aside; one that is larger goes alone.
const BUDGET: usize = 64 * 1024 * 1024;

/// What of each payload is not counted; the claim's statement knows the same number.
const SMALL: usize = 16 * 1024;

/// A permit is one KiB.
const UNIT: usize = 1024;

/// The memory of one worker.
#[derive(Debug)]
pub(super) struct Memory(Arc<Semaphore>);

/// What a try holds until it has ended.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) _slot: OwnedSemaphorePermit,
    pub(super) _memory: Option<OwnedSemaphorePermit>,
}

impl Default for Memory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET / UNIT)))
    }
}

impl Memory {
    /// Bytes that are free.
    pub(super) fn left(&self) -> i64 {
        i64::try_from(self.0.available_permits() * UNIT).unwrap_or(i64::MAX)
    }

    /// Takes what a payload of so many bytes needs, as far as it is there: it has been claimed, and must go.
    pub(super) fn hold(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = bytes.saturating_sub(SMALL).div_ceil(UNIT);
        let units = u32::try_from(units.min(self.0.available_permits())).unwrap_or(u32::MAX);
        if units == 0 {
            return None;
        }
        Arc::clone(&self.0).try_acquire_many_owned(units).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_payloads_take_nothing_and_large_ones_give_back_what_they_took() {
        let memory = Memory::default();
        let whole = memory.left();

        let small = memory.hold(SMALL);
        let large = memory.hold(SMALL + 10 * UNIT);
        let huge = memory.hold(10 * BUDGET);

        assert!(small.is_none());
        assert_eq!(memory.left(), 0);
        drop(huge);
        assert_eq!(memory.left(), whole - 10 * 1024);
        drop(large);
        assert_eq!(memory.left(), whole);
    }
}
