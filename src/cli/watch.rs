//! `postrider watch`, `postrider unwatch` and `postrider watches`: events out of tables.
#![allow(clippy::print_stdout, reason = "says what was done")]

use clap::builder::PossibleValuesParser;

use super::connection::ConnectArgs;
use super::output::{self, cell};
use super::refusal::explain;
use super::{Exit, Failure};
use crate::harmless;
use crate::store::operator::watch::{self, NewWatch, OnError, Watch};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    /// The table, with its schema if need be: `orders`, `shop.orders`
    table: String,
    /// What makes an event
    #[arg(long, value_name = "OPERATION", value_delimiter = ',', default_value = "insert,update,delete",
          value_parser = PossibleValuesParser::new(["insert", "update", "delete"]))]
    on: Vec<String>,
    /// Type of the events [default: orders.insert, orders.update, orders.delete]
    #[arg(long, value_name = "TYPE")]
    event_type: Option<String>,
    /// Where to [default: every endpoint that subscribed to the type]
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// Only rows for which this holds: SQL over `new` and `old`, the rows after and before
    #[arg(long, value_name = "SQL")]
    when: Option<String>,
    /// Only updates that changed one of these columns
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    columns: Vec<String>,
    /// Columns that no event may show, such as password hashes
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    without: Vec<String>,
    /// Your function that makes the body: takes the row, or new and old, or both and the operation; returns json
    #[arg(long, value_name = "FUNCTION")]
    body: Option<String>,
    /// Whose the events are
    #[arg(long, value_name = "TENANT", conflicts_with_all = ["tenant_column", "endpoint"])]
    tenant: Option<String>,
    /// The column that says whose an event is
    #[arg(long, value_name = "COLUMN", conflicts_with = "endpoint")]
    tenant_column: Option<String>,
    /// Fail the writer's statement when the watch fails, rather than put it on record
    #[arg(long)]
    strict: bool,
    /// Name of the watch [default: after the table]
    #[arg(long)]
    name: Option<String>,
}

#[derive(clap::Args, Debug)]
pub(super) struct EndArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// The watch, as `postrider watches` lists it
    name: String,
}

#[derive(clap::Args, Debug)]
pub(super) struct ListArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    format: output::Format,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let client = args.connect.client().await?;
    let new = NewWatch {
        table: args.table,
        operations: args.on,
        event_type: args.event_type,
        endpoint: args.endpoint,
        condition: args.when,
        columns: args.columns,
        without: args.without,
        body: args.body,
        tenant: args.tenant,
        tenant_column: args.tenant_column,
        on_error: if args.strict {
            OnError::Fail
        } else {
            OnError::Record
        },
        name: args.name,
    };
    let name = watch::add(&client, &new).await.map_err(explain)?;
    println!("watching as {}", harmless::line(&name));
    Ok(Exit::Done)
}

pub(super) async fn end(args: EndArgs) -> anyhow::Result<Exit> {
    let client = args.connect.client().await?;
    watch::end(&client, &args.name).await.map_err(explain)?;
    println!("{} is watched no more", harmless::line(&args.name));
    Ok(Exit::Done)
}

pub(super) async fn list(args: ListArgs) -> anyhow::Result<Exit> {
    let client = args.connect.client().await?;
    let watches = watch::list(&client).await?;
    if args.format.json {
        output::json(&watches)?;
    } else {
        output::table(
            &[
                "watch",
                "table",
                "on",
                "event type",
                "endpoint",
                "waiting",
                "errors",
                "last error",
            ],
            watches.iter().map(line),
        );
    }
    let failing = watches.iter().filter(|watch| watch.errors > 0).count();
    if failing == 0 {
        return Ok(Exit::Done);
    }
    Err(Failure::new(
        Exit::Failures,
        format!("{failing} of {} watches have lost changes, or cannot publish them", watches.len()),
        "LAST ERROR says why; correct it, then `postrider unwatch` and `postrider watch` begin without errors",
    )
    .into())
}

fn line(watch: &Watch) -> Vec<String> {
    let table = match (&watch.schema_name, &watch.table_name) {
        (Some(schema), Some(table)) if watch.enabled => format!("{schema}.{table}"),
        (Some(schema), Some(table)) => format!("{schema}.{table} (disabled)"),
        _ => "(gone)".to_owned(),
    };
    vec![
        watch.watch.clone(),
        table,
        watch.operations.join(", "),
        watch
            .event_type
            .clone()
            .unwrap_or_else(|| "by operation".to_owned()),
        watch
            .endpoint
            .clone()
            .unwrap_or_else(|| "subscribers".to_owned()),
        watch.waiting.to_string(),
        watch.errors.to_string(),
        cell(watch.last_error.as_ref()),
    ]
}
