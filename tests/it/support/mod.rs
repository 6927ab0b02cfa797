//! What the tests stand on: a database each, the real program, receivers that do as told, and other people's verifiers.
//!
//! Owns no rule of Postrider's: nothing in here decides whether a test passes but its deadlines.

#![allow(dead_code, reason = "a helper may wait for the test that needs it")]

pub(crate) mod alone;
pub(crate) mod certificate;
pub(crate) mod database;
pub(crate) mod process;
pub(crate) mod receiver;
pub(crate) mod rows;
mod server;
mod slots;
mod template;
pub(crate) mod verifiers;
pub(crate) mod wait;

pub(crate) use database::Database;
pub(crate) use process::Worker;
pub(crate) use server::{Server, URL as SERVER_URL};
pub(crate) use wait::{SOON, wait_until};

use std::io::Write as _;
use std::time::Duration;

/// How long a test waits for a fact before it gives up; far above what any fact takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Says something to whoever runs the tests, also when the test passes: the runner captures only `eprintln!`.
pub(crate) fn tell(line: &str) {
    // With nobody there to read it, the tests go on.
    drop(writeln!(std::io::stderr(), "{line}"));
}
