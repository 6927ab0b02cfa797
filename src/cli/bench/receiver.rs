//! The receiver of a benchmark: takes requests as fast as this machine can, answers 200, and remembers when each event came.
//!
//! HTTP/1.1 with a Content-Length and nothing else, which is what our worker sends. A real receiver checks signatures; this one only counts,
//! so that as little as possible of the machine goes to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok";
const AWAY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";

/// How it behaves.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct Manner {
    /// Events to expect
    #[arg(long)]
    pub(super) expect: usize,
    /// Wait before each answer, in ms
    #[arg(long, default_value_t = 0)]
    pub(super) delay_ms: u64,
    /// Answer 503 for so long after the first request, in ms
    #[arg(long, default_value_t = 0)]
    pub(super) away_ms: u64,
}

/// What came so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Requests of all kinds.
    pub(super) requests: u64,
    /// Different events that were accepted.
    pub(super) events: u64,
    /// Accepted requests beyond the first of their event.
    pub(super) duplicates: u64,
}

struct Receiver {
    manner: Manner,
    /// When each event was accepted first, in µs since the epoch; 0: not yet.
    accepted: Vec<AtomicU64>,
    requests: AtomicU64,
    events: AtomicU64,
    duplicates: AtomicU64,
    away_until: AtomicU64,
}

/// Serves until the process ends.
pub(super) async fn serve(listener: TcpListener, manner: Manner) -> anyhow::Result<()> {
    let receiver = Arc::new(Receiver {
        manner,
        accepted: (0..manner.expect).map(|_| AtomicU64::new(0)).collect(),
        requests: AtomicU64::new(0),
        events: AtomicU64::new(0),
        duplicates: AtomicU64::new(0),
        away_until: AtomicU64::new(0),
    });
    loop {
        let (stream, _) = listener
            .accept()
            .await
            .context("cannot take a connection")?;
        stream.set_nodelay(true).ok();
        let receiver = Arc::clone(&receiver);
        // A connection that breaks off is the sender's affair.
        tokio::spawn(async move { receiver.answer(stream).await.ok() });
    }
}

impl Receiver {
    async fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut buffer = Vec::with_capacity(16 * 1024);
        loop {
            let head = loop {
                if let Some(head) = Head::find(&buffer) {
                    break head;
                }
                if stream.read_buf(&mut buffer).await? == 0 {
                    return Ok(());
                }
            };
            while buffer.len() < head.length {
                if stream.read_buf(&mut buffer).await? == 0 {
                    return Ok(());
                }
            }
            match head.what {
                What::Event(number) => {
                    let answer = self.take(number);
                    if self.manner.delay_ms > 0 {
                        tokio::time::sleep(Duration::from_millis(self.manner.delay_ms)).await;
                    }
                    stream.write_all(answer).await?;
                }
                What::Progress => {
                    let progress = self.progress();
                    let text = format!(
                        "{} {} {}",
                        progress.requests, progress.events, progress.duplicates
                    );
                    write_body(&mut stream, text.as_bytes()).await?;
                }
                What::Times => {
                    let times: Vec<u8> = self
                        .accepted
                        .iter()
                        .flat_map(|at| at.load(Ordering::Relaxed).to_le_bytes())
                        .collect();
                    write_body(&mut stream, &times).await?;
                }
            }
            buffer.drain(..head.length);
        }
    }

    fn take(&self, number: Option<usize>) -> &'static [u8] {
        let now = now_us();
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.manner.away_ms > 0 {
            let until = now + self.manner.away_ms * 1000;
            let until = self
                .away_until
                .compare_exchange(0, until, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|set| set, |_| until);
            if now < until {
                return AWAY;
            }
        }
        if let Some(slot) = number.and_then(|number| self.accepted.get(number)) {
            match slot.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => self.events.fetch_add(1, Ordering::Relaxed),
                Err(_) => self.duplicates.fetch_add(1, Ordering::Relaxed),
            };
        }
        OK
    }

    fn progress(&self) -> Progress {
        Progress {
            requests: self.requests.load(Ordering::Relaxed),
            events: self.events.load(Ordering::Relaxed),
            duplicates: self.duplicates.load(Ordering::Relaxed),
        }
    }
}

/// µs since the epoch, by this machine's clock: inserts are timed by the same one.
pub(super) fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        })
}

enum What {
    /// The number at the end of its `webhook-id`, if there is one.
    Event(Option<usize>),
    Progress,
    Times,
}

struct Head {
    what: What,
    /// Of head and body together.
    length: usize,
}

impl Head {
    /// The head at the beginning of `bytes`, once all of it is there.
    fn find(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let (mut body, mut number) = (0, None);
        for line in head.split("\r\n").skip(1) {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            if name.eq_ignore_ascii_case("content-length") {
                body = value.trim().parse().unwrap_or(0);
            } else if name.eq_ignore_ascii_case("webhook-id") {
                number = value
                    .rsplit('-')
                    .next()
                    .and_then(|digits| digits.parse().ok());
            }
        }
        let what = if head.starts_with("GET /progress ") {
            What::Progress
        } else if head.starts_with("GET /times ") {
            What::Times
        } else {
            What::Event(number)
        };
        Some(Self {
            what,
            length: end + body,
        })
    }
}

async fn write_body(stream: &mut TcpStream, body: &[u8]) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await
}

/// Asks a receiver how far it is.
pub(super) async fn progress(receiver: SocketAddr) -> anyhow::Result<Progress> {
    let body = get(receiver, "/progress").await?;
    let text = String::from_utf8(body)?;
    let mut numbers = text.split(' ').map(str::parse);
    let mut next = || {
        numbers
            .next()
            .context("three numbers")
            .and_then(|number| Ok(number?))
    };
    Ok(Progress {
        requests: next()?,
        events: next()?,
        duplicates: next()?,
    })
}

/// When each event came, in µs since the epoch; 0: it did not.
pub(super) async fn times(receiver: SocketAddr) -> anyhow::Result<Vec<u64>> {
    let body = get(receiver, "/times").await?;
    let (numbers, _) = body.as_chunks::<8>();
    Ok(numbers
        .iter()
        .map(|bytes| u64::from_le_bytes(*bytes))
        .collect())
}

async fn get(receiver: SocketAddr, path: &str) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(receiver)
        .await
        .context("the benchmark's receiver does not answer")?;
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n").as_bytes())
        .await?;
    let mut bytes = Vec::new();
    let (end, length) = loop {
        if let Some(head) = Head::find(&bytes) {
            let end = bytes
                .windows(4)
                .position(|four| four == b"\r\n\r\n")
                .map_or(0, |at| at + 4);
            break (end, head.length);
        }
        anyhow::ensure!(
            stream.read_buf(&mut bytes).await? > 0,
            "the benchmark's receiver broke off"
        );
    };
    while bytes.len() < length {
        anyhow::ensure!(
            stream.read_buf(&mut bytes).await? > 0,
            "the benchmark's receiver broke off"
        );
    }
    Ok(bytes.split_off(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_found_when_it_is_whole() {
        let request =
            b"POST / HTTP/1.1\r\nContent-Length: 5\r\nwebhook-id: bench-7-42\r\n\r\nhelloPOST";

        assert!(Head::find(&request[..40]).is_none());
        let head = Head::find(request).expect("whole");
        assert_eq!(head.length, request.len() - 4);
        assert!(matches!(head.what, What::Event(Some(42))));
    }
}
