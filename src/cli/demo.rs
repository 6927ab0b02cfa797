//! `postrider demo`: what becomes of webhooks when things go wrong, shown with real processes on this machine.
//!
//! Owns the life of the run: whatever happens, every process that was started ends, and the folder goes. What is shown is the
//! acts' matter ([`acts`]), how it looks the screen's; the stage has the processes and what they said.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the story is the result"
)]

mod acts;
mod afterwards;
mod journal;
mod outage;
mod screen;
mod stage;

use std::time::Instant;

use super::listen::Stops;
use super::private::{self, ServerArgs};
use super::{Exit, Failure};
use crate::cluster::{Cluster, Data};
use screen::Screen;
use stage::Stage;

/// Settings of `postrider demo`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Leave the database running at the end, to look around in it
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let mut stops = Stops::new()?;
    let mut screen = Screen::new();
    let binaries = args.server.binaries()?;
    screen.title("postrider demo: what becomes of webhooks when things go wrong");
    screen.text(&format!(
        "Everything here is real, and runs on this machine only: a private PostgreSQL {},\n\
         two workers and a receiver of webhooks, each a process of its own.",
        binaries.major()
    ));

    // Not cut short by a signal: half a server would stay behind. The signal is seen right after it.
    let cluster = match private::start(Data::Temporary, binaries).await {
        Ok(cluster) => cluster,
        // A Ctrl-C reaches initdb, too.
        Err(error) => tokio::select! {
            biased;
            () = stops.next() => return Err(interrupted()),
            () = std::future::ready(()) => return Err(error),
        },
    };
    let mut stage = Stage::new(private::url(&cluster));
    let told = tokio::select! {
        biased;
        () = stops.next() => Err(interrupted()),
        told = acts::tell(&mut stage, &mut screen, &cluster) => told.map_err(|error| broken(&error, &stage)),
    };
    let ended = stage.end().await;
    let told = told.and(ended);

    if args.keep && !told.as_ref().is_err_and(is_interruption) {
        print_what_stays(&mut screen, &cluster);
        cluster.leave_running();
        told?;
    } else {
        let stopped = private::stop(cluster).await;
        told?;
        stopped?;
    }
    let rest = if args.keep {
        "The workers and the receiver have ended."
    } else {
        "Every process has ended, and the folder is gone."
    };
    screen.title(&format!(
        "All {} facts marked ok were checked, within {:.0} s.\n{rest}",
        screen.facts(),
        started.elapsed().as_secs_f64().ceil()
    ));
    Ok(Exit::Done)
}

fn print_what_stays(screen: &mut Screen, cluster: &Cluster) {
    let folder = cluster.folder().display();
    screen.title("The database stays, as you asked");
    screen.lines(&[
        format!("folder       {folder}"),
        format!("look inside  psql '{}'", private::url(cluster)),
        // QUIT, since the server writes nothing more then: what it wrote while it ended would come in the way of rm.
        format!(
            "remove it    kill -QUIT {} && rm -rf {folder}",
            cluster.pid()
        ),
    ]);
}

const INTERRUPTED: &str = "stopped before the end of the story";

fn interrupted() -> anyhow::Error {
    Failure::new(
        Exit::Failures,
        INTERRUPTED,
        "everything that the demo had started has ended; run it again any time",
    )
    .into()
}

fn is_interruption(error: &anyhow::Error) -> bool {
    error.to_string() == INTERRUPTED
}

/// Shows what the processes said, and names the claim that did not hold.
fn broken(error: &anyhow::Error, stage: &Stage) -> anyhow::Error {
    eprint!("\n{}", stage.last_words());
    Failure::new(
        Exit::Failures,
        format!("this did not hold: {error:#}"),
        "the last lines of each process are above; `postrider demo --keep` leaves the database to look into",
    )
    .into()
}
