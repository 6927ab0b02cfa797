//! `postrider completions`: a script that teaches a shell the command line.
#![allow(clippy::print_stdout, reason = "the script is the result")]

use clap::CommandFactory as _;

use super::{Cli, Exit};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The shell to write it for
    shell: clap_complete::Shell,
}

#[expect(clippy::unused_async, reason = "every subcommand has this shape")]
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "postrider", &mut script);
    print!("{}", String::from_utf8(script)?);
    Ok(Exit::Done)
}
