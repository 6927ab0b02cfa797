//! The integration suite: one binary, a module per stage of the way.

/// The private server starts, ends and keeps what it should, whoever we are.
mod cluster;

/// The demonstration holds what it claims, `dev` keeps its rows, and neither leaves a process behind.
mod demo;

/// The development receiver tells what came, and fails as it is told.
mod listen;
