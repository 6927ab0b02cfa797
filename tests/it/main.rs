//! The integration suite: one binary, a module per stage of the way.

mod support;

// What leaves for receivers, and what comes back.
mod outbound;
