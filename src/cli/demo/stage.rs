//! The processes of the demonstration, its session on the database, and the waiting for facts.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::journal::{Journal, Request};
use crate::cli::children::{Child, Recipe};
use crate::cli::private::{self, Port};
use crate::store::connect::Client;
use crate::store::simple::{self, Answer};

/// How long a fact may take to come true; on a busy machine it does take seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(25);

const RECEIVER: &str = "receiver";

/// The names of the two workers.
pub(super) const WORKERS: [&str; 2] = ["worker-a", "worker-b"];

/// See the module's docs.
#[derive(Debug)]
pub(super) struct Stage {
    url: String,
    journal: Journal,
    secret: String,
    port: Option<Port>,
    receiver: Option<Child>,
    workers: Vec<(&'static str, Child)>,
}

impl Stage {
    /// Nothing runs on it yet.
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            journal: Journal::default(),
            secret: String::new(),
            port: None,
            receiver: None,
            workers: Vec::new(),
        }
    }

    /// A session with the schema in its database.
    pub(super) async fn open(&self) -> anyhow::Result<Client> {
        private::open(&self.url).await
    }

    /// Takes a port for the receiver; it stays the same while receivers come and go.
    pub(super) fn take_port(&mut self) -> anyhow::Result<u16> {
        let port = Port::take(0).context("no free port on 127.0.0.1")?;
        let number = port.address().port();
        self.port = Some(port);
        Ok(number)
    }

    /// What the receiver verifies with.
    pub(super) fn set_secret(&mut self, secret: &str) {
        secret.clone_into(&mut self.secret);
    }

    /// Starts a receiver on the port; returns its process id when it listens.
    pub(super) async fn start_receiver(&mut self, manner: &[&str]) -> anyhow::Result<u32> {
        let port = self.port.as_ref().context("a port was taken before")?;
        let address = port.address().to_string();
        let mut arguments = vec!["listen", "--json", "--bind", &address];
        arguments.extend(manner);
        self.journal.forget(RECEIVER);
        let journal = self.journal.clone();
        let child = Child::start(
            Recipe {
                arguments: &arguments,
                environment: &[("POSTRIDER_LISTEN_SECRETS", &self.secret)],
            },
            move |source, line| journal.note(RECEIVER, source, line),
        )?;
        let pid = child.pid();
        self.receiver = Some(child);
        let journal = &self.journal;
        until("the receiver listens", async || {
            Ok(journal.find(RECEIVER, |line| {
                private::listening_on(line).map(str::to_owned)
            }))
        })
        .await?;
        Ok(pid)
    }

    /// Kills the receiver; returns the process id it had.
    pub(super) async fn kill_receiver(&mut self) -> anyhow::Result<u32> {
        let receiver = self.receiver.take().context("a receiver runs")?;
        let pid = receiver.pid();
        receiver.kill().await?;
        Ok(pid)
    }

    /// Starts both workers; returns their process ids.
    pub(super) fn start_workers(&mut self) -> anyhow::Result<Vec<u32>> {
        for name in WORKERS {
            let journal = self.journal.clone();
            let child = Child::start(
                Recipe {
                    arguments: &[
                        "worker",
                        "--name",
                        name,
                        "--allow-network",
                        "127.0.0.1/32",
                        "--lease-margin",
                        "2s",
                        "--poll-interval",
                        "200ms",
                        "--grace",
                        "2s",
                    ],
                    environment: &[("POSTRIDER_DATABASE_URL", &self.url)],
                },
                move |source, line| journal.note(name, source, line),
            )?;
            self.workers.push((name, child));
        }
        Ok(self.workers.iter().map(|(_, child)| child.pid()).collect())
    }

    /// SIGKILL to a worker; returns the process id it had.
    pub(super) async fn kill_worker(&mut self, name: &str) -> anyhow::Result<u32> {
        let place = self.workers.iter().position(|(who, _)| *who == name);
        let (_, worker) = self.workers.remove(place.context("this worker runs")?);
        let pid = worker.pid();
        worker.kill().await?;
        Ok(pid)
    }

    /// All requests that reached a receiver so far.
    pub(super) fn requests(&self) -> Vec<Request> {
        self.journal.requests()
    }

    /// What each process said last.
    pub(super) fn last_words(&self) -> String {
        self.journal.last_words()
    }

    /// Ends every process: the workers first, so that their last tries find a receiver.
    pub(super) async fn end(&mut self) -> anyhow::Result<()> {
        let workers = std::mem::take(&mut self.workers);
        let ended =
            futures_util::future::join_all(workers.into_iter().map(|(_, worker)| worker.end()))
                .await;
        let receiver = match self.receiver.take() {
            Some(receiver) => receiver.end().await,
            None => Ok(()),
        };
        ended.into_iter().chain([receiver]).collect()
    }
}

/// Looks until `look` finds what it looks for.
pub(super) async fn until<T>(
    fact: &str,
    look: impl AsyncFn() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        ensure!(
            Instant::now() < deadline,
            "within {} s: {fact}",
            PATIENCE.as_secs()
        );
        tokio::time::sleep(PAUSE).await;
    }
}

/// Asks until the answer is `wanted`.
pub(super) async fn until_answer(
    client: &Client,
    fact: &str,
    sql: &str,
    wanted: &str,
) -> anyhow::Result<()> {
    let answer = until(fact, async || {
        let answer = simple::run(client, sql).await?;
        Ok((answer.value() == Some(wanted)).then_some(()))
    })
    .await;
    if let Err(error) = answer {
        let last = simple::run(client, sql).await?;
        bail!(
            "{error} (asked for {wanted}, last answer {})",
            last.value().unwrap_or("none")
        );
    }
    Ok(())
}

/// The number in the first column of the only row.
pub(super) fn number(answer: &Answer) -> anyhow::Result<usize> {
    let value = answer.value().context("the query answers a number")?;
    value
        .parse()
        .with_context(|| format!("not a count: {value}"))
}
