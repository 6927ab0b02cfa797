//! `postrider bench`: how fast it is here, and how near that is to what this machine could do at most.
//!
//! Each figure is taken beside its yardstick in one run, since the same program is twice as fast on another machine, and half as fast while
//! somebody else uses this one. Workers, receiver and yardsticks are processes of their own, so that their CPU times can be told apart.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the result, and how far it is"
)]

mod ceiling;
mod figures;
mod part;
mod receiver;
mod run;
mod scenario;
mod stage;
mod usage;

use clap::ValueEnum as _;

pub(super) use self::part::{Args as PartArgs, run as run_part};
use self::scenario::Scenario;
use self::stage::{Database, Stage};
use super::connection::ConnectArgs;
use super::private::{self, ServerArgs};
use super::{Exit, Failure};
use crate::cluster::{Cluster, Data};

/// As a server for work is set up: nothing is faster here because it could be lost.
const SERVER_SETTINGS: [(&str, &str); 4] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("shared_buffers", "256MB"),
    ("max_wal_size", "4GB"),
];

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// What to measure [default: all]
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Deliveries of a scenario that lays a backlog
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    deliveries: u32,
    /// Bytes of each payload
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(32..=1_000_000))]
    payload: u32,
    /// Workers of the scenario `replicas`
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    replicas: u8,
    /// Tries at a time of each worker [default: the worker's own, 320 for `slow`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    concurrency: Option<u16>,
    /// Events a second of the scenario `steady` [default: half of what `fast` reached]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// Measure in the database of --database-url instead of a private server made for it; workers on it must be stopped
    #[arg(long)]
    here: bool,
    /// Print one JSON object per scenario and line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    if cfg!(debug_assertions) {
        eprintln!(
            "this is a debug build: its figures say nothing about speed; use cargo build --release"
        );
    }
    if args.here {
        let Some(url) = args.connect.database_url.clone() else {
            return Err(Failure::usage(
                "--here needs the address of the database",
                "give --database-url or POSTRIDER_DATABASE_URL",
            )
            .into());
        };
        let client = args.connect.client().await?;
        refuse_other_workers(&client).await?;
        let stage = Stage::new(client, url, Database::Given, payload(&args)).await?;
        return measure(&args, stage).await;
    }
    let binaries = args.server.binaries()?;
    let settings = SERVER_SETTINGS
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    eprintln!("starting a private PostgreSQL ...");
    let cluster: Cluster = private::start_with(Data::Temporary, binaries, settings).await?;
    let url = private::url(&cluster);
    let outcome = async {
        let client = private::open(&url).await?;
        let stage = Stage::new(client, url.clone(), Database::Private, payload(&args)).await?;
        tokio::select! {
            outcome = measure(&args, stage) => outcome,
            _ = tokio::signal::ctrl_c() => Err(Failure::new(Exit::Failures, "stopped before it was done", "run it again, or fewer scenarios: `postrider bench fast`").into()),
        }
    }
    .await;
    private::stop(cluster).await?;
    outcome
}

fn payload(args: &Args) -> usize {
    usize::try_from(args.payload).unwrap_or(usize::MAX)
}

/// They would take part of the load, and the figures would be of nothing.
async fn refuse_other_workers(client: &crate::store::connect::Client) -> anyhow::Result<()> {
    let answer = crate::store::simple::run(
        client,
        "select count(*) from postrider.workers where last_seen_at > now() - interval '30 s'",
    )
    .await?;
    if answer.value() == Some("0") {
        return Ok(());
    }
    Err(Failure::usage(
        "workers run on this database",
        "stop them first, or leave --here out to measure on a private server",
    )
    .into())
}

async fn measure(args: &Args, stage: Stage) -> anyhow::Result<Exit> {
    let scenarios = if args.scenarios.is_empty() {
        Scenario::value_variants()
    } else {
        &args.scenarios
    };
    let deliveries = usize::try_from(args.deliveries).unwrap_or(usize::MAX);
    let ceiling = ceiling::measure(&stage, deliveries, payload(args)).await;
    stage.clear().await?;
    let ceiling = ceiling?;
    if let Some(ceiling) = ceiling.as_ref().filter(|_| !args.json) {
        figures::print_ceiling(ceiling);
    }
    let (mut fastest, mut flawless) = (None, true);
    for &scenario in scenarios {
        let plan = run::Plan {
            scenario,
            deliveries,
            workers: if scenario == Scenario::Replicas {
                usize::from(args.replicas)
            } else {
                1
            },
            concurrency: args.concurrency.or(scenario.concurrency()),
            rate: args.rate.map(f64::from).or(fastest),
            ceiling,
        };
        let outcome = run::scenario(&stage, &plan).await;
        stage.clear().await?;
        let found = outcome?;
        if scenario == Scenario::Fast {
            fastest = Some(found.deliveries_per_s / 2.0);
        }
        flawless &= found.lost == 0 && found.duplicates == 0;
        if args.json {
            figures::print_json(&found)?;
        } else {
            figures::print(&found);
        }
    }
    if flawless {
        return Ok(Exit::Done);
    }
    Err(Failure::new(
        Exit::Failures,
        "events were lost or came twice",
        "run it again with POSTRIDER_LOG=debug, and report what you see",
    )
    .into())
}
