//! Postrider delivers webhooks out of PostgreSQL.

pub mod delivery;
pub mod outbound;
pub mod policy;
pub mod reply;
pub mod signing;
