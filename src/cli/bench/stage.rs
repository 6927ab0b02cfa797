//! The database and the processes of a benchmark, and what they have used so far.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::receiver::{self, Progress};
use super::scenario::Scenario;
use super::usage;
use crate::cli::children::{Child, Recipe, Source};
use crate::cli::private;
use crate::store::connect::Client;
use crate::store::simple;

/// Nothing may take longer; then something is broken.
const PATIENCE: Duration = Duration::from_secs(600);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Whose database it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Database {
    /// Made for the benchmark; emptied between scenarios.
    Private,
    /// The user's: what was inserted is deleted again, and nothing else.
    Given,
}

/// See the module's docs.
pub(super) struct Stage {
    pub(super) client: Client,
    url: String,
    database: Database,
    /// The server's process, if it runs on this machine.
    server: Option<u32>,
    /// Begins the names of endpoints and event ids of this run.
    pub(super) prefix: String,
    payload: usize,
}

/// A process of the benchmark and what it said.
pub(super) struct Part {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

/// What was used until a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    pub(super) at: Instant,
    pub(super) workers: Option<Duration>,
    pub(super) receiver: Option<Duration>,
    pub(super) server: Option<Duration>,
    pub(super) wal: u64,
    pub(super) statements: u64,
}

impl Stage {
    /// On a database that has the schema.
    pub(super) async fn new(
        client: Client,
        url: String,
        database: Database,
        payload: usize,
    ) -> anyhow::Result<Self> {
        let answer = simple::run(&client, "select pg_backend_pid()").await?;
        let server = answer
            .value()
            .and_then(|pid| pid.parse().ok())
            .and_then(usage::server_of_backend);
        let prefix = format!("bench-{:08x}", rand::random::<u32>());
        Ok(Self {
            client,
            url,
            database,
            server,
            prefix,
            payload,
        })
    }

    pub(super) async fn number(&self, sql: &str) -> anyhow::Result<u64> {
        let answer = simple::run(&self.client, sql).await?;
        let value = answer.value().context("the query answers a number")?;
        value
            .parse()
            .with_context(|| format!("not a count: {value}"))
    }

    /// Makes the endpoints, paused, so that a backlog can be laid before them.
    pub(super) async fn make_endpoints(
        &self,
        scenario: Scenario,
        receiver: SocketAddr,
    ) -> anyhow::Result<()> {
        let in_flight = scenario.in_flight();
        let sql = format!(
            "insert into postrider.retry_policies (name, kind, delays, max_retries) values ('{prefix}', 'schedule', '{{500 ms}}', 50) on conflict do nothing;
             insert into postrider.endpoints (name, url, max_in_flight, paused, retry_policy)
             select '{prefix}-' || n, 'http://{receiver}/', {in_flight}, true, '{prefix}' from generate_series(0, {last}) n",
            prefix = self.prefix,
            last = scenario.endpoints() - 1,
        );
        simple::run(&self.client, &sql).await?;
        Ok(())
    }

    /// Inserts the events from `first` on, in one statement; `only` leaves out those for which it is not true, in SQL.
    pub(super) async fn insert(
        &self,
        scenario: Scenario,
        first: usize,
        count: usize,
        only: &str,
    ) -> anyhow::Result<()> {
        let sql = format!(
            "insert into postrider.deliveries (endpoint, event_id, event_type, payload)
             select '{prefix}-' || {endpoint}, '{prefix}-' || n, 'bench.event', ('{{\"n\":' || n || ',\"pad\":\"' || repeat('x', {pad}) || '\"}}')::json
               from generate_series({first}, {last}) n where {only}",
            prefix = self.prefix,
            endpoint = scenario.endpoint_of_event(),
            pad = self.payload.saturating_sub(24),
            last = (first + count).saturating_sub(1),
        );
        simple::run(&self.client, &sql).await?;
        Ok(())
    }

    /// Lets workers at the endpoints.
    pub(super) async fn resume(&self) -> anyhow::Result<()> {
        let sql = format!(
            "update postrider.endpoints set paused = false where name like '{}-%'; select postrider.ring()",
            self.prefix
        );
        simple::run(&self.client, &sql).await?;
        Ok(())
    }

    /// What is known of the tables, as autovacuum would see to within a minute.
    pub(super) async fn settle(&self) -> anyhow::Result<()> {
        simple::run(&self.client, "analyze postrider.deliveries").await?;
        if self.database == Database::Private {
            simple::run(&self.client, "checkpoint").await?;
        }
        Ok(())
    }

    /// Takes away all that was inserted.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        let ours = format!("endpoint like '{}-%'", self.prefix);
        let mut sql = match self.database {
            Database::Private => "truncate postrider.attempts, postrider.deliveries".to_owned(),
            Database::Given => format!(
                "delete from postrider.attempts where {ours}; delete from postrider.deliveries where {ours}"
            ),
        };
        sql += &format!(
            "; delete from postrider.endpoints where name like '{prefix}-%'; delete from postrider.retry_policies where name = '{prefix}'",
            prefix = self.prefix
        );
        simple::run(&self.client, &sql).await?;
        Ok(())
    }

    pub(super) async fn open_rows(&self) -> anyhow::Result<u64> {
        self.number(&format!("select count(*) from postrider.deliveries where next_retry is not null and endpoint like '{}-%'", self.prefix)).await
    }

    pub(super) async fn delivered_rows(&self) -> anyhow::Result<u64> {
        self.number(&format!("select count(*) from postrider.deliveries where status = 'delivered' and endpoint like '{}-%'", self.prefix)).await
    }

    /// Starts one of our processes and waits until it says a line that `ready` finds something in.
    pub(super) async fn start<T>(
        &self,
        arguments: &[&str],
        ready: impl Fn(&str) -> Option<T>,
    ) -> anyhow::Result<(Part, T)> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&lines);
        let environment = [
            ("POSTRIDER_DATABASE_URL", self.url.as_str()),
            ("POSTRIDER_LOG", "postrider=warn,postrider::cli=info"),
        ];
        let child = Child::start(
            Recipe {
                arguments,
                environment: &environment,
            },
            move |_: Source, line| {
                heard
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line.to_owned());
            },
        )?;
        let mut part = Part { child, lines };
        let found = part.wait_for(ready).await?;
        Ok((part, found))
    }

    /// A receiver, and where it listens.
    pub(super) async fn start_receiver(
        &self,
        scenario: Scenario,
        expect: usize,
    ) -> anyhow::Result<(Part, SocketAddr)> {
        let arguments = [
            "bench-part".to_owned(),
            "receive".to_owned(),
            format!("--bind={}", SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
            format!("--expect={expect}"),
            format!("--delay-ms={}", scenario.delay().as_millis()),
            format!("--away-ms={}", scenario.away().as_millis()),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.start(&arguments, |line| private::listening_on(line)?.parse().ok())
            .await
    }

    /// A worker that is ready to claim.
    pub(super) async fn start_worker(&self, concurrency: Option<u16>) -> anyhow::Result<Part> {
        let concurrency = concurrency.map(|tries| format!("--concurrency={tries}"));
        let arguments: Vec<&str> = ["worker", "--allow-network=127.0.0.0/8"]
            .into_iter()
            .chain(concurrency.as_deref())
            .collect();
        let (part, ()) = self
            .start(&arguments, |line| {
                line.contains("worker starts").then_some(())
            })
            .await?;
        Ok(part)
    }

    /// The counters of this moment.
    pub(super) async fn used(&self, workers: &[Part], receiver: &Part) -> anyhow::Result<Used> {
        let wal = self
            .number("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
            .await?;
        let statements = self
            .number("select xact_commit + xact_rollback from pg_stat_database where datname = current_database()")
            .await?;
        Ok(Used {
            at: Instant::now(),
            workers: workers
                .iter()
                .map(|worker| usage::cpu_of(worker.pid()))
                .sum(),
            receiver: usage::cpu_of(receiver.pid()),
            server: self.server_cpu(),
            wal,
            statements,
        })
    }

    pub(super) fn server_cpu(&self) -> Option<Duration> {
        self.server.and_then(usage::cpu_of_server)
    }
}

impl Part {
    pub(super) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Waits for a line that `find` finds something in.
    pub(super) async fn wait_for<T>(
        &mut self,
        find: impl Fn(&str) -> Option<T>,
    ) -> anyhow::Result<T> {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.said().iter().find_map(|line| find(line));
            if let Some(found) = found {
                return Ok(found);
            }
            if let Ok(ended) = tokio::time::timeout(PAUSE, self.child.ended()).await {
                anyhow::bail!(
                    "a process of the benchmark ended ({}): {}",
                    ended?,
                    self.said().join(" / ")
                );
            }
            ensure!(
                Instant::now() < until,
                "a process of the benchmark does not get ready: {}",
                self.said().join(" / ")
            );
        }
    }

    fn said(&self) -> Vec<String> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) async fn end(self) -> anyhow::Result<()> {
        self.child.end().await
    }
}

/// Waits until so many events were received.
pub(super) async fn until_received(receiver: SocketAddr, events: u64) -> anyhow::Result<Progress> {
    let until = Instant::now() + PATIENCE;
    loop {
        let progress = receiver::progress(receiver).await?;
        if progress.events >= events || Instant::now() > until {
            return Ok(progress);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until nothing is open, or for so long in vain.
pub(super) async fn until_recorded(stage: &Stage) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    while stage.open_rows().await? > 0 && Instant::now() < until {
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
