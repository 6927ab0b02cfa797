//! The integration suite: one binary, a module per stage of the way.

/// The private server starts, ends and keeps what it should, whoever we are.
mod cluster;

/// A server and a database of its own for each test.
mod server;

/// A session comes about as libpq would make it.
mod connect;
/// The schema is created once, whoever runs at the same time.
mod migrate;
/// Every failure says what to do next and has its exit code.
mod cli;
