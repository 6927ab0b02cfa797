//! `postrider replay`: finished deliveries sent again.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "counts, a question, and what was done"
)]

use clap::builder::PossibleValuesParser;

use super::connection::ConnectArgs;
use super::refusal::{self, Words, explain, no_such_endpoint};
use super::{Exit, Failure, bulk, delivery, value};
use crate::store::connect::Client;
use crate::store::operator::endpoint;
use crate::store::operator::replay::{self, Filter, Selection, When};

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
    if !args.yes && !bulk::confirmed("Send them again?", "replay")? {
        println!("nothing was replayed");
        return Ok(Exit::Done);
    }
    let replayed = bulk::in_batches(total, "queued again", async |most| {
        replay::batch(&client, &selection, most).await
    })
    .await?;
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
    if let (0, Some(name)) = (
        selection.matching + selection.at_disabled + selection.purged,
        &args.endpoint,
    ) && !endpoint::exists(client, name).await?
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
    if selection.purged > 0 {
        eprintln!(
            "note: {} more are left out: their payload was purged, they cannot be replayed",
            selection.purged
        );
    }
}
