//! The integration suite: one binary, a module per stage of the way.

mod support;

/// Arrows point down only: who may know whom.
mod architecture;
/// The private server starts, ends and keeps what it should, whoever we are.
mod cluster;
/// What the other tests stand on: databases that nobody shares, programs that end, verifiers that refuse.
mod harness;
/// The operator's commands: endpoints, deliveries, replays, numbers.
mod operator;
