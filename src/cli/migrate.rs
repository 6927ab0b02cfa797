//! `postrider migrate`: the schema, created, brought up to date, looked at, or printed for somebody else to apply.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a subcommand's results and next steps"
)]

use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::json;

use super::connection::ConnectArgs;
use super::{Exit, Failure};
use crate::store::migrate::{self, Content, Status, UpOptions};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Apply what is pending (the default); safe to run from many places at once
    Up(UpArgs),
    /// List the migrations and whether they are applied; exits with 4 unless all are
    Status(StatusArgs),
    /// Print the migrations as a script for psql; needs no database
    Sql(SqlArgs),
}

#[derive(clap::Args, Debug)]
struct UpArgs {
    /// Give up a table lock after this long, and try the migration again
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "3s")]
    lock_timeout: Duration,
    /// Give up when another session migrates, or a table stays locked, for this long
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "60s")]
    wait: Duration,
}

#[derive(clap::Args, Debug)]
struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct SqlArgs {
    /// Begin with this version
    #[arg(long, value_name = "VERSION", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    from: i32,
    /// Begin with the first version that the database lacks
    #[arg(long, conflicts_with = "from")]
    pending: bool,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    match args.what {
        None => up(&args.connect, UpOptions::default()).await,
        Some(What::Up(UpArgs { lock_timeout, wait })) => {
            up(
                &args.connect,
                UpOptions {
                    lock_timeout,
                    patience: wait,
                },
            )
            .await
        }
        Some(What::Status(StatusArgs { json })) => {
            let rows = migrate::status(&args.connect.connector()?.open().await?).await?;
            println!(
                "{}",
                if json {
                    as_json(&rows)?
                } else {
                    as_table(&rows)
                }
            );
            verdict(&rows)
        }
        Some(What::Sql(SqlArgs { from, pending })) => {
            let from = if pending {
                first_pending(&args.connect).await?
            } else {
                from
            };
            print!("{}", migrate::sql(from));
            Ok(Exit::Done)
        }
    }
}

async fn up(connect: &ConnectArgs, options: UpOptions) -> anyhow::Result<Exit> {
    let connector = connect.connector()?;
    let mut client = connector.open().await?;
    let applied = migrate::up(&mut client, options, |migration| {
        println!("applied {}", migration.file())
    })
    .await?;
    let version = migrate::newest();
    let already = if applied.is_empty() { "already " } else { "" };
    println!("{} is {already}at version {version}", connector.display());
    Ok(Exit::Done)
}

async fn first_pending(connect: &ConnectArgs) -> anyhow::Result<i32> {
    let rows = migrate::status(&connect.connector()?.open().await?).await?;
    let first = rows
        .iter()
        .find(|row| row.content == Content::Pending)
        .map(|row| row.version);
    Ok(first.unwrap_or_else(|| migrate::newest() + 1))
}

/// Scripts ask by exit code whether the schema fits.
fn verdict(rows: &[Status]) -> anyhow::Result<Exit> {
    let first = |content| {
        rows.iter()
            .find(|row| row.content == content)
            .map(|row| row.version)
    };
    let (what, hint) = if let Some(version) = first(Content::Changed) {
        (
            format!("migration {version} was applied with another content"),
            "use the postrider that applied it",
        )
    } else if let Some(version) = first(Content::Unknown) {
        (
            format!("migration {version} is unknown to this postrider"),
            "use a postrider as new as the one that applied it",
        )
    } else if let Some(version) = first(Content::Pending) {
        (
            format!("migration {version} is pending"),
            "apply it with `postrider migrate up`",
        )
    } else {
        return Ok(Exit::Done);
    };
    Err(Failure::new(Exit::Schema, what, hint).into())
}

fn as_json(rows: &[Status]) -> anyhow::Result<String> {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "version": row.version,
                "name": row.name,
                "status": row.content.as_str(),
                "applied_at": row.applied_at,
                "applied_by": row.applied_by,
            })
        })
        .collect();
    Ok(serde_json::to_string_pretty(&rows)?)
}

fn as_table(rows: &[Status]) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["VERSION", "NAME", "STATUS", "APPLIED AT", "BY"]);
    for row in rows {
        table.add_row([
            &row.version.to_string(),
            &row.name,
            row.content.as_str(),
            row.applied_at.as_deref().unwrap_or("-"),
            row.applied_by.as_deref().unwrap_or("-"),
        ]);
    }
    table.trim_fmt()
}
