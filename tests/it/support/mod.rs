//! What the stages share: a receiver that does as told, certificates for it, and rows as the claim would hand them over.
#![allow(
    dead_code,
    reason = "a helper serves the stages that need it, and not every one is needed at all times"
)]

pub(crate) mod alone;
pub(crate) mod certificate;
pub(crate) mod receiver;
pub(crate) mod rows;

use std::time::Duration;

/// How long a test waits for a fact before it gives up; far above what any fact takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
