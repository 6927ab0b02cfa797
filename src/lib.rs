//! Postrider delivers webhooks out of PostgreSQL.

pub mod cluster;
