//! The `postrider` command: parse, run, exit code; nothing else.

use std::process::ExitCode;

use clap::Parser as _;
use postrider::cli::{self, Cli};

fn main() -> ExitCode {
    cli::prepare_process();
    cli::run(Cli::parse())
}
