//! Postrider delivers webhooks out of PostgreSQL.
