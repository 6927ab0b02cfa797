//! The integration suite: one binary, a module per stage of the way.
#![allow(
    clippy::unwrap_used,
    reason = "a helper fails like the test that calls it"
)]

mod support;

/// What the other tests stand on: databases that nobody shares, programs that end, verifiers that refuse.
mod harness;
/// Arrows point down only: who may know whom.
mod architecture;
/// The private server starts, ends and keeps what it should, whoever we are.
mod cluster;
/// A session comes about as libpq would make it.
mod connect;
/// The schema is created once, whoever runs at the same time.
mod migrate;
/// Every failure says what to do next and has its exit code.
mod cli;

/// The demonstration holds what it claims, `dev` keeps its rows, and neither leaves a process behind.
mod demo;

/// The development receiver tells what came, and fails as it is told.
mod listen;
/// What leaves for receivers, and what comes back.
mod outbound;

/// An empty database on a server of this binary, for the tests of migrations and sessions.
mod server;
/// The operator's commands: endpoints, deliveries, replays, numbers.
mod operator;
/// No byte changes on its way, and none that comes back does harm.
mod bytes;
/// Where a delivery may go, and what keeps it from going.
mod addressing;
/// What receivers check: every try is signed afresh over the very bytes.
mod signatures;
/// What becomes of a delivery after each kind of answer, how often it is tried, and when.
mod retries;
/// What the schema promises to users.
mod contract;
/// Who gets which delivery, and what becomes of it when its worker dies.
mod claims;
/// What a delivery costs, in counts.
mod costs;
/// How a worker sleeps, wakes and ends.
mod stopping;
/// Behind a pooler the worker has no session of its own.
mod pooler;

/// An event reaches every endpoint that asked for it, and breaks no caller's transaction.
mod publish;
/// A table's changes become events, in the writer's transaction and never at its cost.
mod watch;
/// The event that refuses to be deferred: delivered within the time, or an error and nothing left to send.
mod deliver_now;
/// One after another: what holds, and who holds it.
mod ordered;
/// Numbers that agree with the attempts they were counted from.
mod reports;
/// What is old goes, in small steps, and nothing that is open.
mod retention;
/// Many at once, by filter: replayed, cancelled, counted first.
mod matching;
/// Each role does its part and sees no more.
mod roles;
/// A producer and a receiver in every language, run as a reader would.
mod examples;
