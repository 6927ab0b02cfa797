//! The integration suite: one binary, a module per stage of the way.

fn main() {}
