//! `postrider replay`: finished deliveries sent again.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "counts, a question, and what was done"
)]

use std::io::{self, IsTerminal as _, Write as _};

use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressStyle};

use super::connection::ConnectArgs;
use super::refusal::{self, Words, explain, no_such_endpoint};
use super::{Exit, Failure, delivery, value};
use crate::store::connect::Client;
use crate::store::operator::endpoint;
use crate::store::operator::replay::{self, Filter, Selection, When};

/// Rows per statement: locks are short, and there is something to show in between.
const BATCH: i32 = 1000;

#[derive(clap::Args, Debug)]
#[command(group(
    clap::ArgGroup::new("filter").multiple(true).args(["endpoint", "reason", "status", "since", "until"])
))]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["ids", "endpoint", "reason", "status", "since", "until"])))]
pub(super) struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Ids of deliveries
    #[arg(value_name = "ID", conflicts_with = "filter")]
    ids: Vec<i64>,
    /// All that match, of this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// All that match, exhausted for this reason
    #[arg(long, value_parser = PossibleValuesParser::new(delivery::REASONS))]
    reason: Option<String>,
    /// All that match, with this status [default: exhausted]
    #[arg(long, value_parser = PossibleValuesParser::new(["exhausted", "delivered"]))]
    status: Option<String>,
    /// All that match, finished at this time (RFC 3339) or this long ago (24h), or later
    #[arg(long, value_name = "TIME", value_parser = value::when)]
    since: Option<When>,
    /// All that match, finished before this time (RFC 3339) or longer ago than this (1h)
    #[arg(long, value_name = "TIME", value_parser = value::when)]
    until: Option<When>,
    /// At most so many of them, the oldest first
    #[arg(long, value_name = "N", requires = "filter", value_parser = clap::value_parser!(i64).range(1..))]
    limit: Option<i64>,
    /// Do not ask
    #[arg(long, short, requires = "filter")]
    yes: bool,
    /// Only count them
    #[arg(long, requires = "filter", conflicts_with = "yes")]
    dry_run: bool,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let client = args.connect.client().await?;
    if !args.ids.is_empty() {
        let words = Words {
            done: "queued again",
            nothing_to_do: "is open anyway",
        };
        return refusal::each(&args.ids, &words, async |id| replay::one(&client, id).await).await;
    }
    let selection = select(&client, &args).await?;
    let total = args
        .limit
        .map_or(selection.matching, |limit| limit.min(selection.matching));
    announce(&selection, total);
    if total == 0 || args.dry_run {
        return Ok(Exit::Done);
    }
    if !args.yes && !confirmed()? {
        println!("nothing was replayed");
        return Ok(Exit::Done);
    }
    let replayed = in_batches(&client, &selection, total).await?;
    println!("{replayed} queued again");
    if replayed == total {
        return Ok(Exit::Done);
    }
    let what = format!(
        "{} of {total} were not replayed: somebody else holds them or was faster",
        total - replayed
    );
    Err(Failure::new(
        Exit::Failures,
        what,
        "run it again; what is queued already is left alone",
    )
    .into())
}

async fn select(client: &Client, args: &Args) -> anyhow::Result<Selection> {
    let filter = Filter {
        endpoint: args.endpoint.clone(),
        reason: args.reason.clone(),
        status: args
            .status
            .clone()
            .unwrap_or_else(|| "exhausted".to_owned()),
        since: args.since.clone(),
        until: args.until.clone(),
    };
    let selection = replay::select(client, filter).await.map_err(explain)?;
    if let (0, 0, Some(name)) = (selection.matching, selection.at_disabled, &args.endpoint)
        && !endpoint::exists(client, name).await?
    {
        return Err(no_such_endpoint(name));
    }
    Ok(selection)
}

fn announce(selection: &Selection, total: i64) {
    println!("{} finished deliveries match", selection.matching);
    if total < selection.matching {
        println!("the oldest {total} of them are taken");
    }
    if selection.at_disabled > 0 {
        eprintln!(
            "note: {} more belong to disabled endpoints and are left out; enable those first",
            selection.at_disabled
        );
    }
}

/// Asks on a terminal. A script has to say so beforehand.
fn confirmed() -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        let hint = "add --yes to replay them, or --dry-run to count only";
        return Err(Failure::usage("nobody is there to ask whether to replay them", hint).into());
    }
    eprint!("Send them again? [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

async fn in_batches(client: &Client, selection: &Selection, total: i64) -> anyhow::Result<i64> {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len}, {eta} left")
        .expect("a fixed template");
    // Draws on stderr, and only when that is a terminal.
    let bar = ProgressBar::new(total.unsigned_abs()).with_style(style);
    let mut replayed = 0;
    while replayed < total {
        let most = i32::try_from(total - replayed).unwrap_or(BATCH).min(BATCH);
        match replay::batch(client, selection, most).await {
            Ok(0) => break,
            Ok(some) => replayed += some,
            Err(error) => {
                bar.abandon();
                return Err(explain(error).context(format!(
                    "{replayed} of {total} were queued again before it failed"
                )));
            }
        }
        bar.set_position(replayed.unsigned_abs());
    }
    bar.finish_and_clear();
    Ok(replayed)
}
