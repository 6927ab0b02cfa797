//! `postrider endpoint list` and `postrider endpoint show`.
#![allow(clippy::print_stdout, reason = "the result")]

use crate::cli::Exit;
use crate::cli::output::{self, cell};
use crate::cli::refusal::no_such_endpoint;
use crate::store::connect::Client;
use crate::store::operator::endpoint::{self, Endpoint, Listed};

#[derive(clap::Args, Debug)]
pub(super) struct ListArgs {
    #[command(flatten)]
    format: output::Format,
}

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The endpoint
    name: String,
    #[command(flatten)]
    format: output::Format,
}

pub(super) async fn list(client: &Client, args: &ListArgs) -> anyhow::Result<Exit> {
    let endpoints = endpoint::list(client).await?;
    if args.format.json {
        output::json(&endpoints)?;
    } else {
        output::table(
            &[
                "name",
                "url",
                "state",
                "policy",
                "tenant",
                "events",
                "open",
                "due",
                "in flight",
                "failed",
                "failing since",
            ],
            endpoints.iter().map(line),
        );
    }
    Ok(Exit::Done)
}

fn line(listed: &Listed) -> Vec<String> {
    vec![
        listed.name.clone(),
        listed.url.clone(),
        state(listed.enabled, listed.paused).to_owned(),
        listed.retry_policy.clone(),
        cell(listed.tenant.as_ref()),
        events(listed),
        listed.backlog.open.to_string(),
        listed.backlog.due.to_string(),
        listed.backlog.in_flight.to_string(),
        listed.backlog.failed.to_string(),
        cell(listed.failing_since.as_ref()),
    ]
}

/// Which published events it gets, as far as there is room.
fn events(listed: &Listed) -> String {
    let types = match &listed.event_types {
        None => "all".to_owned(),
        Some(types) if types.is_empty() => "none".to_owned(),
        Some(types) => output::cut(&types.join(", "), 40),
    };
    match listed.filter {
        Some(_) => format!("{types}, filtered"),
        None => types,
    }
}

fn state(enabled: bool, paused: bool) -> &'static str {
    match (enabled, paused) {
        (false, _) => "disabled",
        (true, true) => "paused",
        (true, false) => "active",
    }
}

pub(super) async fn run(client: &Client, args: &Args) -> anyhow::Result<Exit> {
    let Some(endpoint) = endpoint::show(client, &args.name).await? else {
        return Err(no_such_endpoint(&args.name));
    };
    if args.format.json {
        output::json(&endpoint)?;
        return Ok(Exit::Done);
    }
    output::details(&settings(&endpoint));
    println!();
    output::details(&health(&endpoint));
    println!();
    output::table(
        &["secret made", "signs until"],
        endpoint.secrets.iter().map(|secret| {
            let until = match (&secret.expires_at, secret.live) {
                (None, _) => "without end".to_owned(),
                (Some(time), true) => time.clone(),
                (Some(time), false) => format!("{time} (expired)"),
            };
            vec![secret.created_at.clone(), until]
        }),
    );
    Ok(Exit::Done)
}

fn settings(endpoint: &Endpoint) -> Vec<(&'static str, Option<String>)> {
    let retries = match endpoint.max_retries {
        Some(own) => own.to_string(),
        None => format!("{} (the policy's)", endpoint.policy_max_retries),
    };
    let names = &endpoint.header_names;
    vec![
        ("endpoint", Some(endpoint.name.clone())),
        ("url", Some(endpoint.url.clone())),
        (
            "state",
            Some(state(endpoint.enabled, endpoint.paused).to_owned()),
        ),
        ("disabled at", endpoint.disabled_at.clone()),
        ("disabled reason", endpoint.disabled_reason.clone()),
        ("paused reason", endpoint.paused_reason.clone()),
        ("method", Some(endpoint.method.clone())),
        (
            "headers",
            (!names.is_empty()).then(|| format!("{} (values not shown)", names.join(", "))),
        ),
        ("retry policy", Some(endpoint.retry_policy.clone())),
        ("max retries", Some(retries)),
        ("timeout", Some(format!("{} ms", endpoint.timeout_ms))),
        ("max in flight", Some(endpoint.max_in_flight.to_string())),
        (
            "rate limit",
            endpoint.rate_limit.map(|limit| format!("{limit}/s")),
        ),
        ("ordered", endpoint.ordered.then(|| "yes".to_owned())),
        (
            "event types",
            Some(match &endpoint.event_types {
                None => "all".to_owned(),
                Some(types) if types.is_empty() => "none".to_owned(),
                Some(types) => types.join(", "),
            }),
        ),
        ("filter", endpoint.filter.clone()),
        ("tenant", endpoint.tenant.clone()),
        ("signature scheme", Some(endpoint.signature_scheme.clone())),
        ("signature header", endpoint.signature_header.clone()),
        ("added at", Some(endpoint.created_at.clone())),
        ("edited at", Some(endpoint.updated_at.clone())),
    ]
}

/// The delivery that holds the rest of an ordered endpoint.
fn turn(endpoint: &Endpoint) -> Option<String> {
    let (id, state) = (endpoint.head?, endpoint.head_state.as_ref()?);
    let due = cell(endpoint.head_next_retry.as_ref());
    let held = endpoint.backlog.open - 1;
    Some(format!(
        "delivery {id}: {state}, due {due}; {held} behind it"
    ))
}

fn health(endpoint: &Endpoint) -> Vec<(&'static str, Option<String>)> {
    let backlog = &endpoint.backlog;
    vec![
        ("open deliveries", Some(backlog.open.to_string())),
        ("due", Some(backlog.due.to_string())),
        ("oldest due", backlog.oldest_due.clone()),
        ("in flight", Some(backlog.in_flight.to_string())),
        ("wait for a retry", Some(backlog.failed.to_string())),
        ("whose turn it is", turn(endpoint)),
        (
            "failures in a row",
            Some(endpoint.consecutive_failures.to_string()),
        ),
        ("failing since", endpoint.failing_since.clone()),
        ("circuit open until", endpoint.circuit_open_until.clone()),
        ("last success", endpoint.last_success_at.clone()),
    ]
}
