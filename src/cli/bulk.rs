//! What actions on many deliveries share: the question before them, and batches with progress.
#![allow(clippy::print_stderr, reason = "the question")]

use std::io::{self, IsTerminal as _, Write as _};

use indicatif::{ProgressBar, ProgressStyle};

use super::Failure;
use super::refusal::explain;
use crate::store;

/// Rows per statement: locks are short, and there is something to show in between.
const BATCH: i32 = 1000;

/// Asks on a terminal. A script has to say so beforehand.
pub(super) fn confirmed(question: &str, action: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        let what = format!("nobody is there to ask whether to {action} them");
        let hint = format!("add --yes to {action} them, or --dry-run to count only");
        return Err(Failure::usage(what, hint).into());
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Calls `batch` with how many it may take, each time in a transaction of its own, until `total` are done or none is left. Returns
/// how many were; `done` names what was done to them when it fails half-way.
pub(super) async fn in_batches(
    total: i64,
    done: &str,
    batch: impl AsyncFn(i32) -> Result<i64, store::Error>,
) -> anyhow::Result<i64> {
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len}, {eta} left")
        .expect("a fixed template");
    // Draws on stderr, and only when that is a terminal.
    let bar = ProgressBar::new(total.unsigned_abs()).with_style(style);
    let mut count = 0;
    while count < total {
        let most = i32::try_from(total - count).unwrap_or(BATCH).min(BATCH);
        match batch(most).await {
            Ok(0) => break,
            Ok(some) => count += some,
            Err(error) => {
                bar.abandon();
                return Err(explain(error)
                    .context(format!("{count} of {total} were {done} before it failed")));
            }
        }
        bar.set_position(count.unsigned_abs());
    }
    bar.finish_and_clear();
    Ok(count)
}
