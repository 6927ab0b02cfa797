//! `postrider listen`: a receiver for development, which verifies what comes and can fail on purpose.
//!
//! Owns the flags and the life of the process. What a request is answered is the receiver's matter
//! ([`receiver`]), how it looks on the terminal the line's.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the lines are the result; stderr tells where it listens"
)]

mod line;
pub mod receiver;

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context as _;
use http::StatusCode;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Exit, Failure};
use crate::signing::{Scheme, Secret};
use receiver::{OnPurpose, Receiver, Rules, Unverified};

/// How long a stop waits for requests that are still being answered. A second signal ends it at once.
const GRACE: Duration = Duration::from_secs(10);

/// Connections that may wait to be taken.
const BACKLOG: u32 = 1024;

const EXAMPLES: &str = "\
Each request is a line: time, count, webhook-id, event type, size, signature, try of that id, answer, body.
The event type is the body's `type`, if it is JSON and has one.

Examples:
  Verify what an endpoint sends, with that endpoint's secret:
    postrider listen --secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw

  See retries at work: each event fails twice, then is taken:
    postrider listen --fail 503 --times 2

  An outage of half a minute:
    postrider listen --down-for 30s

  In a script: end with exit code 0 once 10 different events were accepted:
    postrider listen --until 10 --json > received.jsonl

Register http://127.0.0.1:9000/ as an endpoint's URL.
Workers refuse loopback addresses unless started with --allow-network 127.0.0.0/8.";

/// What can be typed after `postrider listen`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Address to listen on; port 0 takes a free one and prints it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    bind: SocketAddr,

    /// Signing secret to verify with; may be repeated, one that fits is enough. The variable takes several, separated
    /// by commas
    #[arg(
        long,
        value_name = "whsec_...",
        env = "POSTRIDER_LISTEN_SECRETS",
        hide_env_values = true,
        value_delimiter = ',',
        help_heading = "Signatures"
    )]
    secret: Vec<Hidden>,

    /// How requests are signed: standard, github, stripe or body-base64
    #[arg(
        long,
        value_name = "NAME",
        default_value = "standard",
        help_heading = "Signatures"
    )]
    scheme: String,

    /// The header that carries the signature of `--scheme body-base64`
    #[arg(long, value_name = "HEADER", help_heading = "Signatures")]
    signature_header: Option<String>,

    /// Answer 401 to a request whose signature does not verify, instead of only saying so
    #[arg(long, help_heading = "Signatures")]
    require_signature: bool,

    /// What a successful request is answered
    #[arg(long, value_name = "CODE", default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..=599), help_heading = "Answers")]
    status: u16,

    /// Fail on purpose: answer CODE, always or as --times says
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(u16).range(200..=599), help_heading = "Answers")]
    fail: Option<u16>,

    /// Fail only the first N tries of each webhook-id; a request without one is always a first try
    #[arg(long, value_name = "N", requires = "fail", help_heading = "Answers")]
    times: Option<u64>,

    /// Wait this long before each answer, for example 20s
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "0s", help_heading = "Answers")]
    delay: Duration,

    /// Refuse connections for this long first, as a receiver that is down does
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, help_heading = "Answers")]
    down_for: Option<Duration>,

    /// Stop once N different webhook-ids were answered with a 2xx; exit code 1 if stopped before
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    until: Option<u64>,

    /// Print one JSON object per line: at, count, id, type, try, method, path, status, verified (true, false, null),
    /// reason, bytes, and body, or `body_base64` if it is not text
    #[arg(long)]
    json: bool,
}

/// Runs until it is stopped, or has what `--until` asks for.
///
/// # Errors
///
/// A flag that makes no sense, an address that cannot be listened on, or a stop before `--until` was met.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let print = if args.json { line::json } else { line::text };
    let printer = Printer::start();
    let lines = printer.lines.clone();
    let receiver = Arc::new(Receiver::new(args.rules()?, move |received| {
        // It fails only when the printer has ended, and with it the process.
        drop(lines.send(Some(print(received))));
    }));
    let mut stops = Stops::new()?;
    let (socket, address) = reserve(args.bind)?;

    let up = match args.down_for {
        Some(down) => stay_down(down, address, &mut stops).await,
        None => Up::Now,
    };
    if let Up::Now = up {
        let listener = socket
            .listen(BACKLOG)
            .map_err(|error| cannot_listen(address, &error))?;
        eprintln!(
            "listening on http://{address}/ ({})",
            args.what_is_verified()
        );
        receive(&receiver, listener, args.until, &mut stops).await?;
    }

    tokio::select! {
        () = printer.finish() => {}
        () = stops.next() => {}
    }
    eprintln!("{}", line::summary(&receiver.summary()));
    finish(&receiver, args.until)
}

/// Serves until enough was accepted or a signal came, then lets open requests finish.
async fn receive(
    receiver: &Arc<Receiver>,
    listener: TcpListener,
    until: Option<u64>,
    stops: &mut Stops,
) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let mut serving =
        tokio::spawn(Arc::clone(receiver).serve(listener, stop.clone().cancelled_owned()));
    let enough = async {
        match until {
            Some(ids) => receiver.accepted(ids).await,
            None => std::future::pending().await,
        }
    };

    tokio::select! {
        () = enough => {}
        () = stops.next() => {}
        ended = &mut serving => return Ok(ended??),
    }

    stop.cancel();
    tokio::select! {
        ended = &mut serving => ended??,
        () = tokio::time::sleep(GRACE) => eprintln!("some requests were not answered within {} s", GRACE.as_secs()),
        () = stops.next() => {}
    }
    Ok(())
}

fn finish(receiver: &Receiver, until: Option<u64>) -> anyhow::Result<Exit> {
    let accepted = receiver.summary().accepted;
    match until {
        Some(wanted) if accepted < wanted => Err(Failure::new(
            Exit::Failures,
            format!("stopped when {accepted} of the {wanted} webhook-ids of --until were accepted"),
            "leave it running until they have come, or ask for fewer",
        )
        .into()),
        _ => Ok(Exit::Done),
    }
}

enum Up {
    Now,
    Never,
}

async fn stay_down(down: Duration, address: SocketAddr, stops: &mut Stops) -> Up {
    let time = humantime::format_duration(down);
    eprintln!("down for {time}: connections to {address} are refused");
    tokio::select! {
        () = tokio::time::sleep(down) => Up::Now,
        () = stops.next() => Up::Never,
    }
}

/// Takes the address without listening on it: until then the system refuses connections, and nobody else gets it.
fn reserve(address: SocketAddr) -> anyhow::Result<(TcpSocket, SocketAddr)> {
    let bind = || {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let taken = socket.local_addr()?;
        std::io::Result::Ok((socket, taken))
    };
    bind().map_err(|error| cannot_listen(address, &error))
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> anyhow::Error {
    let what = format!("cannot listen on {address}: {error}");
    Failure::new(
        Exit::Failures,
        what,
        "choose another address with --bind; port 0 takes a free one",
    )
    .into()
}

impl Args {
    fn rules(&self) -> anyhow::Result<Rules> {
        let scheme =
            Scheme::parse(&self.scheme, self.signature_header.as_deref()).map_err(|error| {
                Failure::usage(
                    format!("--scheme: {error}"),
                    "see `postrider listen --help`",
                )
            })?;
        let secrets = self
            .secret
            .iter()
            .map(|secret| Secret::parse(&secret.0))
            .collect::<Result<Vec<_>, _>>();
        let secrets = secrets.map_err(|error| {
            Failure::usage(
                format!("--secret (POSTRIDER_LISTEN_SECRETS): {error}"),
                "copy the endpoint's secret whole, from `whsec_` to its end",
            )
        })?;
        if self.require_signature && secrets.is_empty() {
            let what = "--require-signature needs a secret to verify with";
            return Err(Failure::usage(
                what,
                "add --secret whsec_... or set POSTRIDER_LISTEN_SECRETS",
            )
            .into());
        }
        Ok(Rules {
            scheme,
            secrets,
            unverified: if self.require_signature {
                Unverified::Refuse
            } else {
                Unverified::Tell
            },
            fail: self.fail.map(status).transpose()?.map(|status| OnPurpose {
                status,
                times: self.times,
            }),
            status: status(self.status)?,
            delay: self.delay,
        })
    }

    fn what_is_verified(&self) -> String {
        match self.secret.len() {
            0 => "signatures are not checked: no --secret".to_owned(),
            1 => format!("{} signatures are verified", self.scheme),
            secrets => format!(
                "{} signatures are verified with {secrets} secrets",
                self.scheme
            ),
        }
    }
}

fn status(code: u16) -> anyhow::Result<StatusCode> {
    StatusCode::from_u16(code).context("clap lets 200 to 599 through")
}

/// Keeps a secret out of `Debug`, and out of clap's messages, since every text is accepted here.
#[derive(Clone)]
struct Hidden(String);

impl FromStr for Hidden {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.trim().to_owned()))
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

/// A thread of its own for stdout: a pager that waits holds up neither the answers nor a signal.
struct Printer {
    /// `None` is the end.
    lines: mpsc::Sender<Option<String>>,
    ended: oneshot::Receiver<()>,
}

impl Printer {
    fn start() -> Self {
        let (lines, to_print) = mpsc::channel::<Option<String>>();
        let (at_end, ended) = oneshot::channel();
        // Not a blocking task: the runtime would wait for it even if nobody reads stdout any more.
        std::thread::spawn(move || {
            to_print
                .iter()
                .map_while(|line| line)
                .for_each(|line| println!("{line}"));
            drop(at_end);
        });
        Self { lines, ended }
    }

    /// Returns when all that was sent is printed.
    async fn finish(self) {
        drop(self.lines.send(None));
        drop(self.ended.await);
    }
}

/// SIGINT and SIGTERM.
pub(super) struct Stops {
    interrupt: Signal,
    terminate: Signal,
}

impl Stops {
    pub(super) fn new() -> anyhow::Result<Self> {
        let of = |kind| signal(kind).context("cannot watch for signals");
        Ok(Self {
            interrupt: of(SignalKind::interrupt())?,
            terminate: of(SignalKind::terminate())?,
        })
    }

    /// Returns at the next of them, and at once for one that came since.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
