//! When a try is followed by another, and after how long.
//!
//! Owns the verdict on a reply and the delay before a retry, as pure functions: the draw for the jitter and the
//! time of day are arguments. How many retries a delivery has left is the delivery's to say, and writing any of
//! it down is the store's.

mod location;
mod retry_after;
mod retry_on;
mod schedule;
mod verdict;

pub use location::LOCATION_CAP;
pub use retry_after::{RETRY_AFTER_CAP, retry_after};
pub use retry_on::{RetryOn, RetryOnError};
pub use schedule::{LONGEST_DELAY, Policy, Schedule};
pub use verdict::{Verdict, judge};
