//! `postrider endpoint`: where deliveries go.
#![allow(clippy::print_stdout, reason = "says what was done")]

mod add;
mod show;
mod test;

use clap::Subcommand;

use super::connection::ConnectArgs;
use super::refusal::explain;
use super::{Exit, output, value};
use crate::harmless;
use crate::store::connect::Client;
use crate::store::operator::endpoint;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add an endpoint; prints its signing secret, once
    Add(Box<add::Args>),
    /// List all endpoints with their backlog
    List(show::ListArgs),
    /// Show settings, health and backlog of one endpoint
    Show(show::Args),
    /// Let its deliveries wait
    Pause(WithReason),
    /// End a pause
    Resume(Named),
    /// Send to it again after it was disabled
    Enable(Named),
    /// End its open deliveries, and those to come, as exhausted (`endpoint_disabled`)
    Disable(WithReason),
    /// Cancel the delivery that holds the rest of an ordered endpoint
    Skip(Skip),
    /// Give it a new signing secret; prints it, once
    RotateSecret(Rotate),
    /// Send it a test delivery and wait for the result
    Test(test::Args),
}

#[derive(clap::Args, Debug)]
struct Skip {
    /// The endpoint
    name: String,
    /// Only this one: another that stands in front by now is left alone
    #[arg(long, value_name = "ID")]
    delivery: Option<i64>,
}

#[derive(clap::Args, Debug)]
struct Named {
    /// The endpoint
    name: String,
}

#[derive(clap::Args, Debug)]
struct WithReason {
    /// The endpoint
    name: String,
    /// Why, for people
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(clap::Args, Debug)]
struct Rotate {
    /// The endpoint
    name: String,
    /// For how long the old secrets go on signing beside the new one
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = value::seconds)]
    overlap: f64,
    #[command(flatten)]
    format: output::Format,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let connect = args.connect;
    match args.action {
        // What is wrong with the values themselves is said before anything is connected.
        Action::Add(add) => add::run(*add, &connect).await,
        Action::List(list) => show::list(&connect.client().await?, &list).await,
        Action::Show(show) => show::run(&connect.client().await?, &show).await,
        Action::Test(test) => test::run(&connect.client().await?, &test).await,
        Action::RotateSecret(rotate) => rotate_secret(&connect.client().await?, &rotate).await,
        Action::Pause(of) => {
            let client = connect.client().await?;
            endpoint::pause(&client, &of.name, of.reason.as_deref())
                .await
                .map_err(explain)?;
            done(
                &of.name,
                "paused; its deliveries wait, tries in flight finish",
            )
        }
        Action::Resume(of) => {
            let client = connect.client().await?;
            endpoint::resume(&client, &of.name).await.map_err(explain)?;
            done(&of.name, "not paused")
        }
        Action::Enable(of) => {
            let client = connect.client().await?;
            endpoint::enable(&client, &of.name).await.map_err(explain)?;
            done(&of.name, "enabled, with a clean health record")
        }
        Action::Skip(of) => {
            let client = connect.client().await?;
            skip(&client, &of).await
        }
        Action::Disable(of) => {
            let client = connect.client().await?;
            endpoint::disable(&client, &of.name, of.reason.as_deref())
                .await
                .map_err(explain)?;
            done(
                &of.name,
                "disabled; its open deliveries end as endpoint_disabled and can be replayed later",
            )
        }
    }
}

fn done(name: &str, what: &str) -> anyhow::Result<Exit> {
    println!("endpoint {} is {what}", harmless::line(name));
    Ok(Exit::Done)
}

async fn skip(client: &Client, args: &Skip) -> anyhow::Result<Exit> {
    let skipped = endpoint::skip(client, &args.name, args.delivery)
        .await
        .map_err(explain)?;
    match (skipped, args.delivery) {
        (Some(id), _) => println!("delivery {id}: cancelled; the next one goes on"),
        (None, Some(id)) => println!("delivery {id} is not in front; nothing was skipped"),
        (None, None) => println!(
            "endpoint {} has nothing to skip",
            harmless::line(&args.name)
        ),
    }
    Ok(Exit::Done)
}

async fn rotate_secret(client: &Client, args: &Rotate) -> anyhow::Result<Exit> {
    let fresh = endpoint::rotate_secret(client, &args.name, args.overlap)
        .await
        .map_err(explain)?;
    hand_out(&fresh, args.format)
}

/// Prints a secret: the one place that does.
fn hand_out(fresh: &endpoint::WithSecret, format: output::Format) -> anyhow::Result<Exit> {
    if format.json {
        output::json(fresh)?;
        return Ok(Exit::Done);
    }
    output::details(&[
        ("endpoint", Some(fresh.name.clone())),
        ("secret", Some(fresh.secret.clone())),
    ]);
    println!(
        "Give this secret to the receiver, which verifies signatures with it: it is not shown again."
    );
    Ok(Exit::Done)
}
