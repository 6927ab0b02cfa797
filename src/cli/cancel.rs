//! `postrider delivery cancel`: open deliveries ended, by id or by filter.
#![allow(clippy::print_stdout, reason = "counts, and what was done")]

use clap::builder::PossibleValuesParser;

use super::refusal::{self, Words, explain, no_such_endpoint};
use super::{Exit, Failure, bulk, value};
use crate::store::connect::Client;
use crate::store::operator::cancel::{self, Filter, Selection};
use crate::store::operator::replay::When;
use crate::store::operator::{delivery, endpoint};

#[derive(clap::Args, Debug)]
#[command(group(
    clap::ArgGroup::new("filter").multiple(true).args(["endpoint", "event_type", "status", "since", "until", "all"])
))]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true).args(["ids", "endpoint", "event_type", "status", "since", "until", "all"])))]
pub(super) struct Args {
    /// Ids of deliveries
    #[arg(value_name = "ID", conflicts_with = "filter")]
    ids: Vec<i64>,
    /// All open ones that match, of this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// All open ones that match, of this event type
    #[arg(long, value_name = "TYPE")]
    event_type: Option<String>,
    /// All open ones that match, with this status [default: both]
    #[arg(long, value_parser = PossibleValuesParser::new(["queued", "failed"]))]
    status: Option<String>,
    /// All open ones that match, queued at this time (RFC 3339) or this long ago (24h), or later
    #[arg(long, value_name = "TIME", value_parser = value::when)]
    since: Option<When>,
    /// All open ones that match, queued before this time (RFC 3339) or longer ago than this (1h)
    #[arg(long, value_name = "TIME", value_parser = value::when)]
    until: Option<When>,
    /// All open ones, of every endpoint
    #[arg(long, conflicts_with_all = ["endpoint", "event_type", "status", "since", "until"])]
    all: bool,
    /// Do not ask
    #[arg(long, short, requires = "filter")]
    yes: bool,
    /// Only count them
    #[arg(long, requires = "filter", conflicts_with = "yes")]
    dry_run: bool,
}

pub(super) async fn run(client: &Client, args: Args) -> anyhow::Result<Exit> {
    if !args.ids.is_empty() {
        let words = Words {
            done: "cancelled",
            nothing_to_do: "was cancelled before",
        };
        return refusal::each(&args.ids, &words, async |id| {
            delivery::cancel(client, id).await
        })
        .await;
    }
    let selection = select(client, &args).await?;
    let total = selection.matching;
    println!("{total} open deliveries match");
    if total == 0 || args.dry_run {
        return Ok(Exit::Done);
    }
    if !args.yes && !bulk::confirmed("End them for good?", "cancel")? {
        println!("nothing was cancelled");
        return Ok(Exit::Done);
    }
    let cancelled = bulk::in_batches(total, "cancelled", async |most| {
        cancel::batch(client, &selection, most).await
    })
    .await?;
    println!("{cancelled} cancelled");
    if cancelled == total {
        return Ok(Exit::Done);
    }
    let what = format!(
        "{} of {total} were not cancelled: they have ended, or somebody else holds them",
        total - cancelled
    );
    Err(Failure::new(
        Exit::Failures,
        what,
        "run it again with --dry-run to see what is left",
    )
    .into())
}

async fn select(client: &Client, args: &Args) -> anyhow::Result<Selection> {
    let filter = Filter {
        endpoint: args.endpoint.clone(),
        event_type: args.event_type.clone(),
        status: args.status.clone(),
        since: args.since.clone(),
        until: args.until.clone(),
    };
    let selection = cancel::select(client, filter).await.map_err(explain)?;
    if let (0, Some(name)) = (selection.matching, &args.endpoint)
        && !endpoint::exists(client, name).await?
    {
        return Err(no_such_endpoint(name));
    }
    Ok(selection)
}
