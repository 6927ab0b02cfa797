//! Postrider delivers webhooks out of PostgreSQL.

pub mod cluster;
pub mod store;

pub mod cli;
