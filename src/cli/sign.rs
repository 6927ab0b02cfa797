//! `postrider sign`: the headers that a delivery of these bytes would bear, to test a receiver with.
#![allow(clippy::print_stdout, reason = "the headers are the result")]

use super::signature::{Material, SignatureArgs, now_seconds};
use super::{Exit, Failure};
use crate::signing;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    signature: SignatureArgs,
    /// The event id, the same on every try [default: a new one]
    #[arg(long, value_name = "ID")]
    event_id: Option<String>,
    /// When the try is signed, in seconds since 1970 [default: now]
    #[arg(long, value_name = "SECONDS")]
    timestamp: Option<i64>,
    /// Print one JSON object in place of `name: value` lines
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Material {
        scheme,
        secrets,
        body,
    } = args.signature.read()?;
    let event_id = args
        .event_id
        .unwrap_or_else(|| format!("evt_{:032x}", rand::random::<u128>()));
    let timestamp = args.timestamp.map_or_else(now_seconds, Ok)?;
    let headers = signing::sign(&scheme, &event_id, timestamp, &body, &secrets)
        .map_err(|error| Failure::usage(error.to_string(), "see `postrider sign --help`"))?;
    let mut object = serde_json::Map::new();
    for (name, value) in &headers {
        // Event ids are held to what a header can bear; the rest is ours.
        let value = value.to_str().map_err(|_| {
            Failure::usage(
                "the event id is not plain ASCII",
                "choose another --event-id",
            )
        })?;
        if args.json {
            object.insert(name.as_str().to_owned(), value.into());
        } else {
            println!("{name}: {value}");
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&object)?);
    }
    Ok(Exit::Done)
}
