//! The command line: what can be typed, and which module answers it.
//!
//! To add a subcommand: `src/cli/<name>.rs` with `pub struct Args` (a clap `Args`) and
//! `pub async fn run(args: Args) -> anyhow::Result<Exit>`, a `mod` line, a variant of `Command` and its line in
//! `Command::run`. Print results to stdout with `println!`, progress to stderr; return errors, never print them.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub mod connection;
pub mod exit;
pub mod listen;
mod log;

mod bench;
mod bulk;
mod cancel;
mod children;
mod completions;
mod delivery;
mod demo;
mod dev;
mod endpoint;
mod files;
mod man;
mod migrate;
mod output;
mod private;
mod publish;
mod prune;
mod refusal;
mod replay;
mod send;
mod sign;
mod signature;
mod stats;
mod value;
mod verify;
mod watch;
mod worker;

pub use exit::{Exit, Failure};

const START_HERE: &str = "\
Start here:
  postrider demo              see it at work, with nothing set up: takes half a minute
  postrider dev               a database, a worker and a receiver to try it by hand
  postrider migrate up        create the schema `postrider` in your database
  postrider worker            deliver what is due, until you stop it
  postrider send --help       queue an event by hand

Which database: --database-url, else POSTRIDER_DATABASE_URL, else DATABASE_URL,
else libpq's PGHOST, PGUSER and so on, else the local server.

Exit codes: 0 done, 1 done with failures, 2 usage, 3 no database,
4 schema missing or of another version, 5 not permitted.";

/// Delivers webhooks out of PostgreSQL
///
/// Your program inserts a row in its own transaction. Postrider delivers it: signed, retried on a schedule, every try
/// on record.
#[derive(Debug, Parser)]
#[command(name = "postrider", version, after_help = START_HERE, arg_required_else_help = true)]
#[command(subcommand_required = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    log: log::LogArgs,
    /// End when stdin does: how our own children notice that we are gone
    #[arg(long = children::END_WITH_STDIN, global = true, hide = true)]
    end_with_stdin: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See it at work, with nothing set up: outages, a killed worker, a dead letter
    Demo(demo::Args),
    /// Run a database, a worker and a receiver for development, until you stop it
    Dev(dev::Args),
    /// Create the schema in your database, or bring it up to date
    Migrate(migrate::Args),
    /// Add, list, show, pause, disable and test endpoints
    Endpoint(endpoint::Args),
    /// Queue an event by hand
    Send(send::Args),
    /// Queue an event for every endpoint that asks for it
    Publish(publish::Args),
    /// List, show and cancel deliveries
    Delivery(delivery::Args),
    /// Send finished deliveries again
    Replay(replay::Args),
    /// Make events of the changes of a table
    Watch(watch::Args),
    /// End a watch
    Unwatch(watch::EndArgs),
    /// List the watches, with what waits and what went wrong
    Watches(watch::ListArgs),
    /// Show what happened lately and what waits now
    Stats(stats::Args),
    /// Deliver what is due, until you stop it
    Worker(worker::Args),
    /// Remove what is older than postrider.retention says, or show what that is
    Prune(prune::Args),
    /// Receive webhooks on this machine: see them, verify them, fail them on purpose
    Listen(listen::Args),
    /// Print the headers that sign a body
    Sign(sign::Args),
    /// Check the signature of a request that was received
    Verify(verify::Args),
    /// Measure how fast it is here, beside what this machine could do at most
    Bench(bench::Args),
    /// A process of a benchmark
    #[command(hide = true)]
    BenchPart(bench::PartArgs),
    /// Print a completion script for your shell
    Completions(completions::Args),
    /// Print the manual page
    #[command(hide = true)]
    Man(man::Args),
}

impl Command {
    /// Each subcommand by its module.
    async fn run(self) -> anyhow::Result<Exit> {
        match self {
            Self::Demo(args) => demo::run(args).await,
            Self::Dev(args) => dev::run(args).await,
            Self::Migrate(args) => migrate::run(args).await,
            Self::Endpoint(args) => endpoint::run(args).await,
            Self::Send(args) => send::run(args).await,
            Self::Publish(args) => publish::run(args).await,
            Self::Delivery(args) => delivery::run(args).await,
            Self::Replay(args) => replay::run(args).await,
            Self::Watch(args) => watch::run(args).await,
            Self::Unwatch(args) => watch::end(args).await,
            Self::Watches(args) => watch::list(args).await,
            Self::Stats(args) => stats::run(args).await,
            Self::Worker(args) => worker::run(args).await,
            Self::Prune(args) => prune::run(args).await,
            Self::Listen(args) => listen::run(args).await,
            Self::Sign(args) => sign::run(args).await,
            Self::Verify(args) => verify::run(args).await,
            Self::Bench(args) => bench::run(args).await,
            Self::BenchPart(args) => bench::run_part(args).await,
            Self::Completions(args) => completions::run(args).await,
            Self::Man(args) => man::run(args).await,
        }
    }

    /// What is logged when neither `--log` nor `POSTRIDER_LOG` says. A long-running command tells what it does; the
    /// others speak by their output.
    fn default_log(&self) -> &'static str {
        if matches!(self, Self::Worker(_)) {
            log::PROGRESS
        } else {
            log::WARNINGS
        }
    }
}

/// What must hold before anything else of this process runs.
pub fn prepare_process() {
    exit::end_quietly_when_stdout_closes();
    // rustls panics at its first use when no provider was chosen. An error means that one is chosen already.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
}

/// Runs what was asked for, to its exit code.
#[must_use]
pub fn run(cli: Cli) -> ExitCode {
    if cli.end_with_stdin {
        children::end_with_stdin();
    }
    let outcome = log::start(&cli.log, cli.command.default_log()).and_then(|()| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let outcome = runtime.block_on(cli.command.run());
        // A name that is still being looked up would otherwise keep the process from ending.
        runtime.shutdown_background();
        outcome
    });
    outcome.unwrap_or_else(|error| exit::report(&error)).into()
}
