//! `postrider send`: an event put into the outbox by hand, or delivered at once.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "says what was queued, and what will keep it waiting"
)]

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use super::connection::ConnectArgs;
use super::delivery::bytes_as_text;
use super::refusal::explain;
use super::{Exit, Failure, output, value};
use crate::harmless;
use crate::store::operator::delivery::{self, Content, Due, NewDelivery, Queued};

/// How long --wait waits, in seconds, unless it is told.
const PATIENCE: f64 = 10.0;

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("content").required(true).args(["payload", "file", "body"])))]
#[command(group(clap::ArgGroup::new("when").args(["deliver_at", "after"])))]
pub(super) struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Where to
    endpoint: String,
    /// For example order.paid
    event_type: String,
    /// JSON text, sent byte for byte; - reads it from stdin
    #[arg(allow_negative_numbers = true)]
    payload: Option<String>,
    /// Read the JSON text from a file; - is stdin
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Send any bytes instead, from a file; - is stdin
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// Media type of --body [default: application/octet-stream]
    #[arg(long, value_name = "TYPE", requires = "body")]
    content_type: Option<String>,
    /// Idempotency key, unique per endpoint, the same on every try [default: generated]
    #[arg(long, value_name = "ID")]
    event_id: Option<String>,
    /// Deliver at this time, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = value::moment)]
    deliver_at: Option<String>,
    /// Deliver after this time
    #[arg(long = "in", id = "after", value_name = "DURATION", value_parser = value::seconds)]
    after: Option<f64>,
    /// Retries after the first try; 0 means one try [default: the endpoint's]
    #[arg(long, value_name = "N")]
    max_retries: Option<i32>,
    /// Extra header of this delivery; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Deliver it at once, one try, and print what the receiver answers
    #[arg(long, conflicts_with_all = ["body", "event_id", "when", "max_retries", "headers"])]
    wait: bool,
    /// With --wait: how long the answer may take, at most 1h [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = value::seconds, requires = "wait")]
    timeout: Option<f64>,
    #[command(flatten)]
    format: output::Format,
}

impl std::fmt::Debug for Args {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Payload and headers are nobody's business.
        f.debug_struct("Args")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let (connect, format) = (args.connect.clone(), args.format);
    if args.wait {
        return deliver_now(args).await;
    }
    let new = understand(args)?;
    let client = connect.client().await?;
    let queued = delivery::send(&client, &new).await.map_err(explain)?;
    if format.json {
        output::json(&queued)?;
    } else {
        println!(
            "queued delivery {}, event id {}",
            queued.id,
            harmless::line(&queued.event_id)
        );
    }
    say_what_keeps_it_waiting(&new.endpoint, &queued);
    Ok(Exit::Done)
}

async fn deliver_now(args: Args) -> anyhow::Result<Exit> {
    let (connect, format) = (args.connect.clone(), args.format);
    let seconds = args.timeout.unwrap_or(PATIENCE);
    let NewDelivery {
        endpoint,
        event_type,
        content,
        ..
    } = understand(args)?;
    let Content::Json(payload) = content else {
        return Err(Failure::usage(
            "--wait sends JSON only",
            "give the payload as JSON text, or leave --wait out",
        )
        .into());
    };
    let client = connect.client().await?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    let call = delivery::deliver_now(&client, &endpoint, &event_type, &payload, seconds);
    tokio::pin!(call);
    let answer = tokio::select! {
        answer = &mut call => answer.map_err(explain)?,
        _ = async { tokio::select! { _ = terminate.recv() => (), _ = interrupt.recv() => () } } => {
            // Without us the server would go on until the time is over, and might send it yet.
            connect.connector()?.cancel(&client).await.map_err(explain)?;
            call.await.map_err(|_| stopped())?
        }
    };
    if format.json {
        output::json(&answer)?;
        return Ok(Exit::Done);
    }
    println!("delivered, status {}", output::cell(answer.status_code));
    if let Some(body) = answer.response_body.filter(|body| !body.is_empty()) {
        println!("{}", bytes_as_text(&body));
    }
    Ok(Exit::Done)
}

fn stopped() -> Failure {
    Failure::new(
        Exit::Failures,
        "stopped while it waited: it is not tried again, though a request that was under way may have arrived",
        "`postrider delivery list --limit 5` shows what became of it; send it again, without --wait to have it retried",
    )
}

fn understand(args: Args) -> anyhow::Result<NewDelivery> {
    let due = match (args.deliver_at, args.after) {
        (Some(time), _) => Due::At(time),
        (None, Some(seconds)) => Due::In(seconds),
        (None, None) => Due::Now,
    };
    let content = match (args.payload, args.file, args.body) {
        (_, _, Some(path)) => Content::Body(read(&path)?, args.content_type),
        (_, Some(path), None) => Content::Json(json_text(read(&path)?)?),
        (Some(payload), None, None) if payload == "-" => {
            Content::Json(json_text(read(Path::new("-"))?)?)
        }
        (payload, None, None) => Content::Json(payload.unwrap_or_default()),
    };
    Ok(NewDelivery {
        endpoint: args.endpoint,
        event_type: args.event_type,
        event_id: args.event_id,
        content,
        headers: value::headers(&args.headers)?,
        max_retries: args.max_retries,
        due,
    })
}

/// A whole file; `-` is stdin.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|mut file| file.read_to_end(&mut bytes))
    };
    read.map_err(|error| {
        let what = format!(
            "cannot read {}: {error}",
            harmless::line(&path.to_string_lossy())
        );
        Failure::usage(what, "name a file that can be read, or - for stdin")
    })?;
    Ok(bytes)
}

pub(super) fn json_text(bytes: Vec<u8>) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|_| {
        Failure::usage(
            "the payload is not JSON: it is not UTF-8",
            "correct it, or send bytes that are not JSON with --body FILE --content-type TYPE",
        )
    })
}

fn say_what_keeps_it_waiting(endpoint: &str, queued: &Queued) {
    let endpoint = harmless::line(endpoint);
    if !queued.enabled {
        eprintln!("note: endpoint {endpoint} is disabled, so it will end as endpoint_disabled");
    } else if queued.paused {
        eprintln!(
            "note: endpoint {endpoint} is paused; `postrider endpoint resume {endpoint}` lets it go"
        );
    } else if queued.later {
        eprintln!("note: it is due at {}", queued.next_retry);
    } else if !queued.worker_runs {
        eprintln!("note: no worker is running; start one with `postrider worker`");
    }
}
