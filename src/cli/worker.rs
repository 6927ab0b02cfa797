//! `postrider worker`: delivers what is due until it is stopped.
#![allow(clippy::print_stderr, reason = "a subcommand's results and next steps")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::builder::FalseyValueParser;
use ipnet::IpNet;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::connection::ConnectArgs;
use super::files;
use super::{Exit, Failure, value};
use crate::outbound::{self, Client, Guard};
use crate::store::connect::Connector;
use crate::store::queue::Sessions;
use crate::store::{self, migrate};
use crate::worker::{self, Options, Pruning, Until, Waking};

/// Signals so close together are one: `timeout`, for example, signals its child, and then the group that the child is in.
const ONE_SIGNAL: Duration = Duration::from_millis(300);

/// Before a session that was lost right after its start is made again.
const LOST_SESSION: Duration = Duration::from_millis(200);

/// How a worker sends: what `worker`, `dev` and `demo` share.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct OutboundArgs {
    /// Also send to these addresses, which are forbidden otherwise: private, loopback and reserved ranges; a network or one
    /// address (repeatable)
    #[arg(
        long,
        value_name = "CIDR",
        env = "POSTRIDER_ALLOW_NETWORK",
        value_parser = value::network,
        value_delimiter = ',',
        help_heading = "Sending"
    )]
    allow_network: Vec<IpNet>,
    /// Also trust the CA certificates in this PEM file (repeatable)
    #[arg(
        long,
        value_name = "FILE",
        env = "POSTRIDER_CA_FILE",
        value_delimiter = ',',
        help_heading = "Sending"
    )]
    ca_file: Vec<PathBuf>,
    /// Give up connecting after this long
    #[arg(long, value_name = "TIME", env = "POSTRIDER_CONNECT_TIMEOUT", value_parser = humantime::parse_duration, default_value = "5s", help_heading = "Sending")]
    connect_timeout: Duration,
}

impl OutboundArgs {
    /// A client that keeps a connection for each of `tries` at a time.
    fn client(&self, tries: usize) -> anyhow::Result<Client> {
        let options = outbound::Options {
            idle_per_host: tries,
            guard: Guard {
                allowed: self.allow_network.clone(),
            },
            ca_files: self.ca_file.clone(),
            connect_timeout: self.connect_timeout,
            ..outbound::Options::default()
        };
        Client::new(options).map_err(|cause| {
            Failure::usage(
                cause.to_string(),
                "check --ca-file (POSTRIDER_CA_FILE): PEM files that this user may read",
            )
            .into()
        })
    }
}

/// Settings of `postrider worker`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Tries at a time
    #[arg(long, value_name = "N", env = "POSTRIDER_CONCURRENCY", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    concurrency: u16,
    /// Look for due deliveries at least this often; the doorbell makes it sooner
    #[arg(long, value_name = "TIME", env = "POSTRIDER_POLL_INTERVAL", value_parser = humantime::parse_duration, default_value = "1s")]
    poll_interval: Duration,
    /// A claim is held for the endpoint's timeout and this; a killed worker's deliveries are due again after it
    #[arg(long, value_name = "TIME", env = "POSTRIDER_LEASE_MARGIN", value_parser = humantime::parse_duration, default_value = "15s")]
    lease_margin: Duration,
    /// When stopped, tries in flight may go on for this long
    #[arg(long, value_name = "TIME", env = "POSTRIDER_GRACE", value_parser = humantime::parse_duration, default_value = "20s")]
    grace: Duration,
    /// Work off what is due now, then exit: 0 when all was delivered, 1 otherwise
    #[arg(long)]
    drain: bool,
    /// Do not LISTEN: find new rows by polling alone
    #[arg(long, env = "POSTRIDER_NO_LISTEN", value_parser = FalseyValueParser::new())]
    no_listen: bool,
    /// The database is behind PgBouncer in transaction mode: no LISTEN, no prepared statements, no session settings
    #[arg(long, env = "POSTRIDER_POOLER", value_parser = FalseyValueParser::new())]
    pooler: bool,
    /// Do not remove what is older than postrider.retention says; another worker or `postrider prune` may. --drain never does
    #[arg(long, env = "POSTRIDER_NO_PRUNE", value_parser = FalseyValueParser::new())]
    no_prune: bool,
    /// How this worker is called in postrider.workers and in attempts [default: host, process id and a random part]
    #[arg(long, value_name = "NAME", env = "POSTRIDER_WORKER_NAME")]
    name: Option<String>,
    #[command(flatten)]
    outbound: OutboundArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let stop = stop_on_signal()?;
    let mut options = options(&args)?;
    if let Some(allowed) = files::tries_allowed().filter(|&allowed| allowed < options.concurrency) {
        tracing::warn!(
            concurrency = options.concurrency,
            allowed,
            "this process may not open enough files for --concurrency and goes on with fewer tries at a time: raise `ulimit -n`"
        );
        options.concurrency = allowed;
    }
    let client = args.outbound.client(options.concurrency)?;
    let connector = args.connect.connector()?;
    check_schema(&connector).await?;
    if options.waking == Waking::Poll {
        tracing::info!(
            poll_ms = options.poll_interval.as_millis(),
            "LISTEN is off: new rows are found by polling"
        );
    }
    tracing::info!(
        worker = options.name,
        database = connector.display(),
        concurrency = options.concurrency,
        version = env!("CARGO_PKG_VERSION"),
        "worker starts"
    );
    let until = options.until;
    let summary = worker::run(options, &connector, client, stop).await?;
    tracing::info!(
        delivered = summary.delivered,
        failed = summary.failed,
        exhausted = summary.exhausted,
        "worker has stopped"
    );
    if until == Until::Drained {
        eprintln!(
            "drained: {} delivered, {} failed and scheduled again, {} exhausted",
            summary.delivered, summary.failed, summary.exhausted
        );
        if summary.failed + summary.exhausted > 0 {
            eprintln!(
                "hint: `postrider delivery list --status failed` and `--status exhausted` show what went wrong"
            );
            return Ok(Exit::Failures);
        }
    }
    Ok(Exit::Done)
}

/// Refuses a schema of another version. A database that is not there is a failure at once; a session that is lost on the way is not.
async fn check_schema(connector: &Connector) -> Result<(), store::Error> {
    for _ in 0..5 {
        let client = connector.open().await?;
        match migrate::check(&client).await {
            Err(error) if error.needs_new_connection() => tokio::time::sleep(LOST_SESSION).await,
            checked => return checked,
        }
    }
    migrate::check(&connector.open().await?).await
}

fn options(args: &Args) -> anyhow::Result<Options> {
    for (flag, value, least) in [
        (
            "--poll-interval (POSTRIDER_POLL_INTERVAL)",
            args.poll_interval,
            Duration::from_millis(10),
        ),
        (
            "--lease-margin (POSTRIDER_LEASE_MARGIN)",
            args.lease_margin,
            Duration::from_secs(1),
        ),
    ] {
        if value < least || value > Duration::from_secs(3600) {
            let what = format!("{flag} is {}", humantime::format_duration(value));
            return Err(Failure::usage(
                what,
                format!("give {} to 1h", humantime::format_duration(least)),
            )
            .into());
        }
    }
    let hostname = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let name = args.name.clone().unwrap_or_else(|| {
        format!(
            "{hostname}:{}:{:04x}",
            std::process::id(),
            rand::random::<u16>()
        )
    });
    Ok(Options {
        name,
        hostname,
        concurrency: usize::from(args.concurrency),
        poll_interval: args.poll_interval,
        lease_margin: args.lease_margin,
        grace: args.grace,
        until: if args.drain {
            Until::Drained
        } else {
            Until::Stopped
        },
        pruning: if args.no_prune || args.drain {
            Pruning::Off
        } else {
            Pruning::On
        },
        sessions: if args.pooler {
            Sessions::Pooled
        } else {
            Sessions::Own
        },
        waking: if args.no_listen || args.pooler {
            Waking::Poll
        } else {
            Waking::Doorbell
        },
    })
}

/// A token that SIGTERM or SIGINT cancels; the second signal ends the process at once. As PID 1 too, where a signal without a
/// handler does nothing.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle SIGINT")?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        let code = tokio::select! {
            _ = terminate.recv() => 143,
            _ = interrupt.recv() => 130,
        };
        tracing::info!("stopping; a second signal ends it at once");
        token.cancel();
        let first = Instant::now();
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if first.elapsed() > ONE_SIGNAL {
                std::process::exit(code);
            }
        }
    });
    Ok(stop)
}
