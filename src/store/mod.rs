//! Everything that is asked of PostgreSQL, and the only module that names its client library.
//!
//! Owns the way to the database ([`connect`]), its schema's version ([`migrate`]), the worker's statements ([`queue`]), the doorbell
//! ([`doorbell`]), statements as text ([`simple`]) and what a failure means ([`Error`]). It does not know why it is asked: what to
//! claim, when to retry and what to print is decided above.

pub mod connect;
mod error;
pub mod migrate;
pub mod operator;
mod params;
mod passfile;
mod refusal;
mod servers;
pub mod simple;
mod tls;
pub mod queue;
pub mod doorbell;
mod text;

pub use error::{Error, Unreachable};
pub use refusal::{Refusal, Refused};

/// The log target that prints, at its debug level, every value a statement carries, and with them what receivers answered. Whoever
/// wants that has to name it.
pub const TELLS_VALUES: &str = "tokio_postgres";
