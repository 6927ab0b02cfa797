//! `postrider prune`: what is older than `postrider.retention` says, shown or removed.
#![allow(clippy::print_stdout, reason = "the result")]

use std::collections::BTreeMap;
use std::time::Duration;

use super::connection::ConnectArgs;
use super::output::{self, cell};
use super::refusal::explain;
use super::{Exit, Failure};
use crate::harmless;
use crate::store::connect::Client;
use crate::store::operator::prune::{self, Due};

/// Rows per transaction.
const STEP: i32 = 1000;

/// Another session may be at a step, which takes milliseconds; a worker then rests between two.
const BUSY_PAUSE: Duration = Duration::from_millis(25);
const BUSY_LOOKS: u32 = 200;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Stop after so many rows; days of attempts do not count
    #[arg(long, value_name = "N", conflicts_with = "dry_run", value_parser = clap::value_parser!(i64).range(1..))]
    max: Option<i64>,
    #[command(flatten)]
    format: output::Format,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let client = args.connect.client().await?;
    if args.dry_run {
        show(&prune::due(&client).await.map_err(explain)?, args.format)?;
        return Ok(Exit::Done);
    }
    let mut removed = Removed::default();
    let outcome = remove(&client, args.max.unwrap_or(i64::MAX), &mut removed).await;
    if args.format.json && outcome.is_ok() {
        output::json(&removed.counts)?;
    } else if !removed.counts.is_empty() {
        output::table(
            &["kind", "pruned"],
            removed
                .counts
                .iter()
                .map(|(kind, count)| vec![kind.clone(), amount(kind, *count)]),
        );
    }
    outcome?;
    if removed.waits.is_empty() {
        return Ok(Exit::Done);
    }
    let left: Vec<String> = removed
        .waits
        .iter()
        .map(|(kind, why)| format!("some of {kind} is left: {}", harmless::line(why)))
        .collect();
    Err(Failure::new(
        Exit::Failures,
        left.join("; "),
        "remove what is in the way and run it again; `select pid, xact_start, query from pg_stat_activity order by xact_start` shows transactions that take long",
    )
    .into())
}

/// What became of a run, whether or not it came to its end.
#[derive(Default)]
struct Removed {
    counts: BTreeMap<String, i64>,
    /// What the last step had to leave, and why.
    waits: BTreeMap<String, String>,
}

async fn remove(client: &Client, max: i64, removed: &mut Removed) -> anyhow::Result<()> {
    let mut left = max;
    let mut busy = 0;
    while left > 0 {
        let most = i32::try_from(left).unwrap_or(STEP).min(STEP);
        let steps = prune::step(client, most).await.map_err(explain)?;
        if steps.is_empty() {
            busy += 1;
            if busy > BUSY_LOOKS {
                return Err(Failure::new(
                    Exit::Failures,
                    "another session is pruning all the time",
                    "leave it to that one; `postrider prune --dry-run` shows what is left",
                )
                .into());
            }
            tokio::time::sleep(BUSY_PAUSE).await;
            continue;
        }
        busy = 0;
        let mut more = false;
        for step in steps {
            more |= step.more;
            if step.kind != "attempts" {
                left -= step.pruned;
            }
            if let Some(why) = step.waits {
                removed.waits.insert(step.kind.clone(), why);
            } else {
                removed.waits.remove(&step.kind);
            }
            *removed.counts.entry(step.kind).or_default() += step.pruned;
        }
        if !more {
            break;
        }
    }
    Ok(())
}

fn show(due: &[Due], format: output::Format) -> anyhow::Result<()> {
    if format.json {
        return output::json(&due);
    }
    output::table(
        &["kind", "kept for", "due now", "oldest"],
        due.iter().map(|kind| {
            let about = if kind.exact { "" } else { "about " };
            vec![
                kind.kind.clone(),
                kind.kept_for
                    .clone()
                    .unwrap_or_else(|| "for ever".to_owned()),
                format!("{about}{}", amount(&kind.kind, kind.due)),
                cell(kind.oldest.as_ref()),
            ]
        }),
    );
    Ok(())
}

/// Attempts go by the day.
fn amount(kind: &str, count: i64) -> String {
    match (kind, count) {
        ("attempts", 1) => "1 day".to_owned(),
        ("attempts", _) => format!("{count} days"),
        _ => count.to_string(),
    }
}
