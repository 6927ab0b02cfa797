//! `postrider man`: the manual page, for packagers.
#![allow(clippy::print_stdout, reason = "the page is the result")]

use clap::CommandFactory as _;

use super::{Cli, Exit};

#[derive(clap::Args, Debug)]
pub(super) struct Args {}

#[expect(clippy::unused_async, reason = "every subcommand has this shape")]
pub(super) async fn run(_args: Args) -> anyhow::Result<Exit> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page)?;
    print!("{}", String::from_utf8(page)?);
    Ok(Exit::Done)
}
