//! What the process says about itself while it works: to stderr, as text or as JSON lines.

use std::io::IsTerminal as _;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

use super::Failure;
use crate::store;

/// The level of commands that work on and on.
pub(super) const PROGRESS: &str = "info";

/// The level of commands that speak by their output.
pub(super) const WARNINGS: &str = "warn";

#[derive(Args, Debug)]
pub(super) struct LogArgs {
    /// What to log: error, warn, info, debug, trace, or a filter such as `info,postrider::worker=debug`
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "POSTRIDER_LOG",
        help_heading = "Logging"
    )]
    log: Option<String>,
    /// How log lines look on stderr
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        env = "POSTRIDER_LOG_FORMAT",
        default_value = "text",
        help_heading = "Logging"
    )]
    log_format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// Starts logging for the life of the process.
pub(super) fn start(args: &LogArgs, default: &str) -> anyhow::Result<()> {
    let wanted = args
        .log
        .as_deref()
        .filter(|filter| !filter.is_empty())
        .unwrap_or(default);
    let filter = if wanted.contains(store::TELLS_VALUES) {
        EnvFilter::try_new(wanted)
    } else {
        EnvFilter::try_new(format!("{wanted},{}=error", store::TELLS_VALUES))
    };
    let filter = filter.map_err(|error| {
        Failure::usage(
            format!("--log (POSTRIDER_LOG) is not a log filter: {error}"),
            "use error, warn, info, debug or trace",
        )
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match args.log_format {
        Format::Json => lines.json().flatten_event(true).init(),
        // Colours are the library's choice (it reads NO_COLOR), unless nobody looks.
        Format::Text if std::io::stderr().is_terminal() => lines.init(),
        Format::Text => lines.with_ansi(false).init(),
    }
    Ok(())
}
