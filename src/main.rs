//! The `postrider` command: parse, run, exit code; nothing else.

use std::process::ExitCode;

use clap::Parser as _;
use postrider::cli::{self, Cli};

/// Tries are many small pieces of memory, made by one thread and given back by another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::prepare_process();
    cli::run(Cli::parse())
}
