//! The processes of a benchmark besides its workers: a receiver, and the yardsticks. Each is this program again, so that the CPU time of
//! each can be told apart.
#![allow(
    clippy::print_stdout,
    reason = "how a part answers the benchmark that started it"
)]

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::net::TcpListener;

use super::receiver::{self, Manner};
use crate::attempt::{Attempt, Next, Outcome};
use crate::cli::Exit;
use crate::cli::connection::ConnectArgs;
use crate::outbound::{Flood, flood};
use crate::store::connect::Connector;
use crate::store::queue::{Ask, Queue, Sessions, Taken};

/// As long as the name of a worker usually is.
const WORKER: &str = "bench-of-rows-0001-000001";

#[derive(clap::Args, Debug)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(clap::Subcommand, Debug)]
enum Part {
    /// Take requests
    Receive(ReceiveArgs),
    /// Send requests with the bare HTTP client
    Flood(FloodArgs),
    /// Claim and record without sending
    Rows(RowsArgs),
}

#[derive(clap::Args, Debug)]
struct ReceiveArgs {
    #[arg(long)]
    bind: SocketAddr,
    #[command(flatten)]
    manner: Manner,
}

#[derive(clap::Args, Debug)]
struct FloodArgs {
    #[arg(long)]
    url: url::Url,
    #[arg(long)]
    requests: usize,
    #[arg(long)]
    in_flight: usize,
    #[arg(long)]
    payload: usize,
}

#[derive(clap::Args, Debug)]
struct RowsArgs {
    #[arg(long)]
    rows: usize,
    #[arg(long)]
    batch: i32,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(in crate::cli) async fn run(args: Args) -> anyhow::Result<Exit> {
    match args.part {
        Part::Receive(args) => {
            let listener = TcpListener::bind(args.bind)
                .await
                .context("cannot listen")?;
            println!("listening on {}", listener.local_addr()?);
            receiver::serve(listener, args.manner).await?;
        }
        Part::Flood(args) => {
            let answered = flood(Flood {
                url: args.url,
                headers: usual_headers(),
                body: Bytes::from(vec![b'x'; args.payload]),
                requests: args.requests,
                in_flight: args.in_flight,
            })
            .await?;
            done(answered).await;
        }
        Part::Rows(args) => {
            let rows = work_off(&args.connect.connector()?, args.rows, args.batch).await?;
            done(rows).await;
        }
    }
    Ok(Exit::Done)
}

/// Says so, and stays until it is ended: its CPU time is read meanwhile.
async fn done(count: usize) {
    println!("done {count}");
    std::future::pending().await
}

/// As many and as long as those of a delivery.
fn usual_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static("postrider/0.1.0"));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    for (name, value) in [
        ("postrider-event-type", "bench.event"),
        ("webhook-id", "bench-0123456789-0000"),
        ("webhook-timestamp", "1767225600"),
        (
            "webhook-signature",
            "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
        ),
    ] {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    headers
}

/// Claims and records with the worker's own statements, one after the other, as if each try had been answered at once.
async fn work_off(connector: &Connector, rows: usize, batch: i32) -> anyhow::Result<usize> {
    let queue = Queue::new(connector, Sessions::Own)?;
    let (mut done, mut cursor) = (0, String::new());
    while done < rows {
        let claim = queue
            .claim(Ask {
                cursor: &cursor,
                lanes: 64,
                wanted: batch,
                worker: WORKER,
                margin: Duration::from_secs(15),
                sleep: Duration::from_secs(1),
                free: 1_000_000,
                bytes: 64 * 1024 * 1024,
                marks: &[],
            })
            .await?;
        let over = claim.hops < 64;
        anyhow::ensure!(
            !claim.taken.is_empty() || !cursor.is_empty() || !over,
            "rows are missing: {done} of {rows}"
        );
        cursor = if over {
            String::new()
        } else {
            claim.walk_end.unwrap_or_default()
        };
        let attempts: Vec<Attempt> = claim
            .taken
            .into_iter()
            .map(|taken| answered(taken, claim.claimed_at))
            .collect();
        if !attempts.is_empty() {
            done += queue.record(WORKER, &attempts).await?.len();
        }
    }
    Ok(done)
}

fn answered(taken: Taken, at: chrono::DateTime<chrono::Utc>) -> Attempt {
    let delivery = taken.delivery;
    Attempt {
        delivery_id: delivery.id,
        claim_no: delivery.claim_no,
        endpoint: delivery.endpoint,
        started_at: at,
        duration: Duration::from_millis(2),
        outcome: Outcome::Delivered,
        next: Next::Delivered,
        status_code: Some(200),
        error_kind: None,
        error: None,
        request_headers: usual_headers()
            .iter()
            .map(|(name, value)| {
                (
                    name.as_str().to_owned(),
                    value.to_str().unwrap_or_default().to_owned(),
                )
            })
            .collect(),
        response_headers: vec![
            ("content-type".into(), b"text/plain".to_vec()),
            ("content-length".into(), b"2".to_vec()),
        ],
        response_body: Some(b"ok".to_vec()),
        response_truncated: false,
        remote_addr: Some(([127, 0, 0, 1], 9000).into()),
    }
}
