//! `postrider migrate`: the schema, created and brought up to date.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a subcommand's results and progress"
)]

use super::Exit;
use super::connection::ConnectArgs;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    args.connect.client().await?;
    Ok(Exit::Done)
}
