//! The integration suite: one binary, a module per stage of the way.
#![allow(
    clippy::unwrap_used,
    reason = "a helper fails like the test that calls it"
)]

mod support;

// What leaves for receivers, and what comes back.
mod outbound;
