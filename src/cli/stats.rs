//! `postrider stats`: what happened lately and what waits now.
#![allow(clippy::print_stdout, reason = "the result")]

use super::connection::ConnectArgs;
use super::output::{self, cell};
use super::refusal::no_such_endpoint;
use super::{Exit, Failure};
use crate::store::operator::endpoint;
use crate::store::operator::stats::{self, NEWEST, Stats};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Only this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// The window, in hours
    #[arg(long, value_name = "HOURS", default_value_t = 24.0)]
    hours: f64,
    #[command(flatten)]
    format: output::Format,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    // A year; attempts are not kept for longer.
    if !(args.hours > 0.0 && args.hours <= 8784.0) {
        return Err(Failure::usage(
            "--hours must be above 0 and at most 8784",
            "for example --hours 24",
        )
        .into());
    }
    let client = args.connect.client().await?;
    if let Some(name) = &args.endpoint
        && !endpoint::exists(&client, name).await?
    {
        return Err(no_such_endpoint(name));
    }
    let stats = stats::read(&client, args.endpoint.as_deref(), args.hours).await?;
    if args.format.json {
        output::json(&stats)?;
    } else {
        print(&stats);
    }
    Ok(Exit::Done)
}

fn print(stats: &Stats) {
    let backlog = &stats.backlog;
    output::details(&[
        ("due now", Some(backlog.due.to_string())),
        (
            "held: endpoint paused or disabled",
            (backlog.held > 0).then(|| backlog.held.to_string()),
        ),
        ("oldest due", backlog.oldest_due.clone()),
        (
            "it waits for",
            backlog.oldest_due_seconds.map(|age| format!("{age} s")),
        ),
        ("workers alive", Some(backlog.workers_alive.to_string())),
    ]);
    if backlog.due > 0 && backlog.workers_alive == 0 {
        println!("No worker is running: start one with `postrider worker`.");
    }
    let of = if stats.deliveries_cut {
        format!(", among the newest {NEWEST}")
    } else {
        String::new()
    };
    println!("\nDeliveries queued in the last {} hours{of}:", stats.hours);
    output::table(
        &["status", "reason", "count"],
        stats.deliveries.iter().map(|count| {
            vec![
                count.status.clone(),
                cell(count.exhausted_reason.as_ref()),
                count.count.to_string(),
            ]
        }),
    );
    println!("\nTries made in the last {} hours:", stats.hours);
    let headings = [
        "endpoint",
        "tries",
        "delivered",
        "percent",
        "events",
        "at once",
        "by now",
        "p50 ms",
        "p95 ms",
    ];
    output::table(
        &headings,
        stats.endpoints.iter().map(|rate| {
            vec![
                rate.endpoint.clone(),
                rate.tries.to_string(),
                rate.delivered_tries.to_string(),
                rate.success_percent.to_string(),
                rate.first_tries.to_string(),
                rate.first_try_delivered.to_string(),
                rate.eventually_delivered.to_string(),
                cell(rate.p50_ms.map(|p50| format!("{p50:.0}"))),
                cell(rate.p95_ms.map(|p95| format!("{p95:.0}"))),
            ]
        }),
    );
}
