//! `postrider publish`: an event for every endpoint that asks for it.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "says what was queued, and what will keep it waiting"
)]

use std::path::Path;

use super::connection::ConnectArgs;
use super::refusal::explain;
use super::send::{json_text, read};
use super::{Exit, Failure, output, value};
use crate::harmless;
use crate::store::operator::event::{self, NewEvent};

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    /// For example order.paid
    event_type: String,
    /// JSON text, sent byte for byte; @FILE reads it from a file, - from stdin
    #[arg(allow_negative_numbers = true)]
    payload: String,
    /// Idempotency key, unique per tenant, the same on every try [default: generated]
    #[arg(long, value_name = "ID")]
    event_id: Option<String>,
    /// Whose event it is: endpoints of this tenant get it [default: those without one]
    #[arg(long)]
    tenant: Option<String>,
    /// Deliver at this time, RFC 3339
    #[arg(long = "at", value_name = "TIME", value_parser = value::moment)]
    deliver_at: Option<String>,
    #[command(flatten)]
    format: output::Format,
}

impl std::fmt::Debug for Args {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The payload is nobody's business.
        f.debug_struct("Args")
            .field("event_type", &self.event_type)
            .finish_non_exhaustive()
    }
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let new = NewEvent {
        payload: payload(args.payload)?,
        event_type: args.event_type,
        event_id: args.event_id,
        tenant: args.tenant,
        deliver_at: args.deliver_at,
    };
    let client = args.connect.client().await?;
    let published = event::publish(&client, &new).await.map_err(explain)?;
    if args.format.json {
        output::json(&published)?;
    } else {
        println!(
            "published event {}, deliveries: {}",
            harmless::line(&published.event_id),
            published.deliveries
        );
    }
    if published.deliveries == 0 {
        eprintln!("note: no endpoint asks for it; `postrider endpoint list` shows what each gets");
    } else if !published.worker_runs {
        eprintln!("note: no worker is running; start one with `postrider worker`");
    }
    Ok(Exit::Done)
}

fn payload(given: String) -> Result<String, Failure> {
    // No JSON text begins with an @ or is a lone -.
    let file = match given.strip_prefix('@') {
        Some(file) => file,
        None if given == "-" => "-",
        None => return Ok(given),
    };
    json_text(read(Path::new(file))?)
}
