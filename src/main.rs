//! The `postrider` command: parse, run, exit code; nothing else.

fn main() {}
