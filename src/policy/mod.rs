//! When a try is followed by another, and after how long.

mod retry_after;
mod schedule;
mod verdict;

pub use retry_after::retry_after;
pub use schedule::{Policy, Schedule};
pub use verdict::{RetryOn, Verdict, judge};
