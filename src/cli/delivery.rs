//! `postrider delivery`: what became of them.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "results, and what a page leaves out"
)]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use super::connection::ConnectArgs;
use super::output::{self, cell};
use super::refusal::no_such_endpoint;
use super::{Exit, Failure, cancel};
use crate::harmless;
use crate::store::connect::Client;
use crate::store::operator::delivery::{self, Attempt, Delivery, Filter, Listed};
use crate::store::operator::endpoint;

/// Why a delivery is exhausted, as the schema knows them.
pub(super) const REASONS: [&str; 9] = [
    "retries_used",
    "rejected",
    "gone",
    "unbuildable",
    "blocked",
    "endpoint_disabled",
    "cancelled",
    "deadline",
    "lost",
];
/// Characters of a payload that are shown without `--full`.
const SOME: i32 = 1000;
/// Characters of an error in a list.
const ERROR_WIDTH: usize = 60;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List deliveries, newest first
    List(ListArgs),
    /// Show one delivery with what it carries and every try
    Show(ShowArgs),
    /// End open deliveries; a try that is in flight cannot be called back
    Cancel(Box<cancel::Args>),
}

#[derive(clap::Args, Debug)]
struct ListArgs {
    /// Only those with this status
    #[arg(long, value_parser = PossibleValuesParser::new(["queued", "failed", "delivered", "exhausted"]))]
    status: Option<String>,
    /// Only those to this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// Only those exhausted for this reason
    #[arg(long, value_parser = PossibleValuesParser::new(REASONS))]
    reason: Option<String>,
    /// Only those of this event type
    #[arg(long, value_name = "TYPE")]
    event_type: Option<String>,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(i64).range(1..=10_000))]
    limit: i64,
    /// Only those older than this one: the next page
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    #[command(flatten)]
    format: output::Format,
}

#[derive(clap::Args, Debug)]
struct ShowArgs {
    /// Id of the delivery, or its event id
    #[arg(value_name = "ID|EVENT_ID")]
    which: String,
    /// All of the payload, and what was sent and answered at every try
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    format: output::Format,
}

/// A delivery and its tries: one JSON object.
#[derive(Serialize)]
pub(super) struct Whole<'a> {
    #[serde(flatten)]
    pub(super) delivery: &'a Delivery,
    pub(super) attempts: &'a [Attempt],
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let client = args.connect.client().await?;
    match args.action {
        Action::List(list) => run_list(&client, list).await,
        Action::Show(show) => run_show(&client, &show).await,
        Action::Cancel(cancel) => cancel::run(&client, *cancel).await,
    }
}

async fn run_list(client: &Client, args: ListArgs) -> anyhow::Result<Exit> {
    let filter = Filter {
        status: args.status,
        endpoint: args.endpoint,
        reason: args.reason,
        event_type: args.event_type,
        before: args.before,
    };
    let listed = delivery::list(client, &filter, args.limit).await?;
    if let (true, Some(name)) = (listed.is_empty(), &filter.endpoint)
        && !endpoint::exists(client, name).await?
    {
        return Err(no_such_endpoint(name));
    }
    if args.format.json {
        output::json(&listed)?;
        return Ok(Exit::Done);
    }
    let headings = [
        "id",
        "endpoint",
        "event type",
        "event id",
        "state",
        "tries",
        "next try",
        "newest try",
    ];
    output::table(&headings, listed.iter().map(line));
    let full_page = i64::try_from(listed.len()) == Ok(args.limit);
    if let (true, Some(oldest)) = (full_page, listed.last()) {
        eprintln!("There may be more: --before {}", oldest.id);
    }
    Ok(Exit::Done)
}

fn line(listed: &Listed) -> Vec<String> {
    let state = match (&listed.exhausted_reason, listed.held_by) {
        (Some(reason), _) => format!("{}: {reason}", listed.state),
        (None, Some(head)) => format!("{} by {head}", listed.state),
        (None, None) => listed.state.clone(),
    };
    vec![
        listed.id.to_string(),
        listed.endpoint.clone(),
        listed.event_type.clone(),
        listed.event_id.clone(),
        state,
        listed.attempt_count.to_string(),
        cell(listed.next_retry.as_ref()),
        what_came_back(listed.last_status_code, listed.last_error.as_deref()),
    ]
}

fn what_came_back(status: Option<i32>, error: Option<&str>) -> String {
    match (status, error) {
        // The error of a status begins with it.
        (Some(status), Some(error)) if !error.starts_with(&format!("HTTP {status}")) => {
            format!("{status}, {}", output::cut(error, ERROR_WIDTH))
        }
        (_, Some(error)) => output::cut(error, ERROR_WIDTH),
        (status, None) => cell(status),
    }
}

async fn run_show(client: &Client, args: &ShowArgs) -> anyhow::Result<Exit> {
    let all = args.full || args.format.json;
    let delivery = which(client, &args.which, (!all).then_some(SOME)).await?;
    let attempts = delivery::attempts(client, delivery.summary.id).await?;
    if args.format.json {
        output::json(&Whole {
            delivery: &delivery,
            attempts: &attempts,
        })?;
        return Ok(Exit::Done);
    }
    output::details(&properties(&delivery));
    println!();
    print_content(&delivery);
    println!();
    print_attempts(&attempts);
    let on_record = i32::try_from(attempts.len()).unwrap_or(i32::MAX);
    if on_record < delivery.summary.attempt_count {
        println!(
            "({} tries are not on record any more: days of attempts are pruned)",
            delivery.summary.attempt_count - on_record
        );
    }
    if args.full {
        print_exchanges(&attempts);
    } else {
        print_newest_refusal(&attempts);
    }
    Ok(Exit::Done)
}

/// By its id, else by its event id, which is unique per endpoint only.
async fn which(client: &Client, text: &str, most: Option<i32>) -> anyhow::Result<Delivery> {
    if let Ok(id) = text.parse()
        && let Some(found) = delivery::show(client, id, most).await?
    {
        return Ok(found);
    }
    let found = delivery::find(client, text).await?;
    let text = harmless::line(text);
    if let [(id, _)] = found[..]
        && let Some(found) = delivery::show(client, id, most).await?
    {
        return Ok(found);
    }
    if found.is_empty() {
        let hint =
            "find it with `postrider delivery list`; finished deliveries may have been pruned";
        return Err(
            Failure::new(Exit::Failures, format!("there is no delivery {text}"), hint).into(),
        );
    }
    let ids: Vec<String> = found
        .iter()
        .map(|(id, endpoint)| format!("{id} ({})", harmless::line(endpoint)))
        .collect();
    let what = format!("several endpoints have a delivery with the event id {text}");
    Err(Failure::new(
        Exit::Failures,
        what,
        format!("name one by its id: {}", ids.join(", ")),
    )
    .into())
}

fn properties(delivery: &Delivery) -> Vec<(&'static str, Option<String>)> {
    let summary = &delivery.summary;
    let names = &delivery.header_names;
    vec![
        ("delivery", Some(summary.id.to_string())),
        ("endpoint", Some(summary.endpoint.clone())),
        ("event type", Some(summary.event_type.clone())),
        ("event id", Some(summary.event_id.clone())),
        ("state", Some(summary.state.clone())),
        ("status", Some(summary.status.clone())),
        ("reason", summary.exhausted_reason.clone()),
        (
            "held by delivery",
            summary.held_by.map(|head| head.to_string()),
        ),
        ("tries", Some(summary.attempt_count.to_string())),
        (
            "max retries",
            delivery.max_retries.map(|own| format!("{own} (its own)")),
        ),
        (
            "replayed after try",
            (delivery.budget_from > 0).then(|| delivery.budget_from.to_string()),
        ),
        ("queued at", Some(summary.created_at.clone())),
        ("next try at", summary.next_retry.clone()),
        ("lease until", delivery.lease_expires_at.clone()),
        ("leased by", delivery.leased_by.clone()),
        ("finished at", summary.finished_at.clone()),
        (
            "newest status",
            summary.last_status_code.map(|status| status.to_string()),
        ),
        ("newest error", summary.last_error.clone()),
        (
            "headers",
            (!names.is_empty()).then(|| format!("{} (values not shown)", names.join(", "))),
        ),
    ]
}

fn print_content(delivery: &Delivery) {
    if let Some(time) = &delivery.payload_purged_at {
        println!("its payload was purged at {time}: it cannot be replayed");
        return;
    }
    let kind = harmless::line(&delivery.content_type);
    println!("{kind}, {} bytes:", delivery.content_bytes);
    let (text, shown) = match (&delivery.payload, &delivery.body) {
        (Some(payload), _) => (harmless::paragraph(payload), payload.len()),
        (None, Some(body)) => (bytes_as_text(body), body.len()),
        (None, None) => return,
    };
    println!("{text}");
    if i64::try_from(shown).is_ok_and(|shown| shown < i64::from(delivery.content_bytes)) {
        println!("(cut here; --full shows all of it)");
    }
}

/// Text where it is text, base64 where it is not.
pub(super) fn bytes_as_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => harmless::paragraph(text),
        Err(_) => format!("base64: {}", STANDARD.encode(bytes)),
    }
}

/// The tries as a table.
pub(super) fn print_attempts(attempts: &[Attempt]) {
    let headings = [
        "try",
        "started at",
        "took",
        "outcome",
        "status",
        "error",
        "worker",
        "decided",
    ];
    output::table(
        &headings,
        attempts.iter().map(|attempt| {
            let error = match (&attempt.error_kind, &attempt.error) {
                (Some(kind), Some(error)) => format!("{kind}: {error}"),
                (kind, error) => cell(error.as_ref().or(kind.as_ref())),
            };
            vec![
                attempt.attempt_no.to_string(),
                attempt.started_at.clone(),
                cell(attempt.duration_ms.map(|took| format!("{took} ms"))),
                attempt.outcome.clone(),
                cell(attempt.status_code),
                error,
                cell(attempt.worker.as_ref()),
                decided(attempt),
            ]
        }),
    );
}

fn decided(attempt: &Attempt) -> String {
    match &attempt.next_retry {
        Some(time) => format!("retry at {time}"),
        None if attempt.outcome == "delivered" => "done".to_owned(),
        None => "no retry".to_owned(),
    }
}

/// What the receiver said when it last took no delivery: often the very reason.
fn print_newest_refusal(attempts: &[Attempt]) {
    let Some(attempt) = attempts.last().filter(|last| last.outcome != "delivered") else {
        return;
    };
    if let Some(time) = &attempt.reply_purged_at {
        println!(
            "\nwhat was answered to try {} was purged at {time}",
            attempt.attempt_no
        );
        return;
    }
    let Some(body) = attempt
        .response_body
        .as_ref()
        .filter(|body| !body.is_empty())
    else {
        return;
    };
    let most = usize::try_from(SOME).unwrap_or(usize::MAX);
    println!(
        "\nanswered to try {} (--full shows every exchange):",
        attempt.attempt_no
    );
    println!("{}", output::cut(&bytes_as_text(body), most));
}

/// What was sent and what came back, try by try.
fn print_exchanges(attempts: &[Attempt]) {
    for attempt in attempts {
        println!("\ntry {}", attempt.attempt_no);
        output::details(&[
            ("address", attempt.remote_addr.clone()),
            (
                "request headers",
                attempt
                    .request_headers
                    .as_ref()
                    .map(|headers| headers.get().to_owned()),
            ),
            (
                "response headers",
                attempt
                    .response_headers
                    .as_ref()
                    .map(|headers| headers.get().to_owned()),
            ),
        ]);
        if let Some(body) = attempt
            .response_body
            .as_ref()
            .filter(|body| !body.is_empty())
        {
            println!("{}", bytes_as_text(body));
        }
        if let Some(time) = &attempt.reply_purged_at {
            println!("(what was answered was purged at {time})");
        } else if attempt.response_truncated {
            println!("(the receiver sent more, which was not kept, or broke off)");
        }
    }
}
