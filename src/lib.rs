//! Postrider delivers webhooks out of PostgreSQL.

pub mod store;

pub mod cli;
