//! `postrider endpoint test`: one delivery, the way all of them go, and its result.
#![allow(clippy::print_stderr, reason = "says what it waits for")]

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::cli::refusal::{explain, no_such_endpoint};
use crate::cli::{Exit, Failure, delivery as shown, output};
use crate::harmless;
use crate::store::connect::Client;
use crate::store::operator::delivery::{
    self, Attempt, Content, Delivery, Due, NewDelivery, Queued,
};
use crate::store::operator::{endpoint, stats};

/// How often the row is looked at.
const POLL: Duration = Duration::from_millis(200);
/// What is sent.
const PAYLOAD: &str = r#"{"type":"postrider.test","message":"A test delivery from Postrider. Nothing has happened."}"#;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The endpoint
    name: String,
    /// How long to wait for the result
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    format: output::Format,
}

pub(super) async fn run(client: &Client, args: &Args) -> anyhow::Result<Exit> {
    check_that_it_takes_deliveries(client, &args.name).await?;
    let queued = queue(client, &args.name).await?;
    if !queued.worker_runs {
        eprintln!("note: no worker is running; start one with `postrider worker`");
    }

    let Some((delivery, attempts)) = wait(client, queued.id, args.timeout).await? else {
        return Err(no_result(client, &queued).await?.into());
    };

    if args.format.json {
        output::json(&shown::Whole {
            delivery: &delivery,
            attempts: &attempts,
        })?;
    } else {
        shown::print_attempts(&attempts);
    }
    if delivery.summary.status == "delivered" {
        return Ok(Exit::Done);
    }
    Err(not_delivered(&delivery).into())
}

async fn check_that_it_takes_deliveries(client: &Client, name: &str) -> anyhow::Result<()> {
    let Some(endpoint) = endpoint::show(client, name).await? else {
        return Err(no_such_endpoint(name));
    };
    let name = harmless::line(name);
    if !endpoint.enabled {
        let what = format!("endpoint {name} is disabled, so nothing was sent");
        return Err(Failure::new(
            Exit::Failures,
            what,
            format!("`postrider endpoint enable {name}` first"),
        )
        .into());
    }
    if endpoint.paused {
        let what = format!("endpoint {name} is paused, so nothing was sent");
        return Err(Failure::new(
            Exit::Failures,
            what,
            format!("`postrider endpoint resume {name}` first"),
        )
        .into());
    }
    Ok(())
}

async fn queue(client: &Client, name: &str) -> anyhow::Result<Queued> {
    let test = NewDelivery {
        endpoint: name.to_owned(),
        event_type: "postrider.test".to_owned(),
        event_id: None,
        content: Content::Json(PAYLOAD.to_owned()),
        headers: None,
        // One try: its result is the answer, and a test should not come back hours later.
        max_retries: Some(0),
        due: Due::Now,
    };
    delivery::send(client, &test).await.map_err(explain)
}

/// The delivery and its tries once it is finished; `None` when time is up.
async fn wait(
    client: &Client,
    id: i64,
    patience: Duration,
) -> anyhow::Result<Option<(Delivery, Vec<Attempt>)>> {
    let begin = Instant::now();
    loop {
        match delivery::show(client, id, None).await? {
            Some(delivery) if delivery.summary.finished_at.is_some() => {
                return Ok(Some((delivery, delivery::attempts(client, id).await?)));
            }
            Some(_) if begin.elapsed() < patience => sleep(POLL).await,
            Some(_) | None => return Ok(None),
        }
    }
}

async fn no_result(client: &Client, queued: &Queued) -> anyhow::Result<Failure> {
    let id = queued.id;
    let what = format!("no result in time; the test stays queued as delivery {id}");
    let hint = if stats::workers_alive(client).await? == 0 {
        format!(
            "no worker is running: start one with `postrider worker`, or give up with `postrider delivery cancel {id}`"
        )
    } else {
        format!(
            "wait longer with --timeout, look again with `postrider delivery show {id}`, or give up with `postrider delivery cancel {id}`"
        )
    };
    Ok(Failure::new(Exit::Failures, what, hint))
}

fn not_delivered(delivery: &Delivery) -> Failure {
    let summary = &delivery.summary;
    let why = match (
        &summary.last_error,
        summary.last_status_code,
        &summary.exhausted_reason,
    ) {
        (Some(error), _, _) => harmless::line(error),
        (None, Some(status), _) => format!("the receiver answered {status}"),
        (None, None, Some(reason)) => reason.clone(),
        (None, None, None) => summary.status.clone(),
    };
    let hint = format!(
        "`postrider delivery show {} --full` shows what was sent and what came back",
        summary.id
    );
    Failure::new(
        Exit::Failures,
        format!("the test was not delivered: {why}"),
        hint,
    )
}
