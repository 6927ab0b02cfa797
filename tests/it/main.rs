//! The integration suite: one binary, a module per stage of the way.
#![allow(
    clippy::unwrap_used,
    reason = "a helper fails like the test that calls it"
)]

/// The private server starts, ends and keeps what it should, whoever we are.
mod cluster;

/// The development receiver tells what came, and fails as it is told.
mod listen;
mod support;

// What leaves for receivers, and what comes back.
mod outbound;
