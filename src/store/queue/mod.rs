//! The worker's side of the database: claim, record, release and what goes with them.
//!
//! One function per file in `sql/worker/`. Owns the sessions they run on: results have their own, so that a slow claim never holds
//! them up, and neither does what is done beside delivering. Knows nothing of HTTP, nor of what a verdict is.

mod batch;
mod rows;
mod statement;

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use self::batch::Batch;
use self::rows::{read_claim, read_endpoint};
use self::statement::{
    ARRIVE, CLAIM, ENDPOINTS, FOLD, LEAVE, LOCKABLE, PARTITIONS, PRUNE, PUBLISH, RECORD, RELEASE,
    RETIRE,
};
use super::Error;
use super::connect::{Connector, Pool, PoolOptions};
use crate::attempt::Attempt;
use crate::delivery::{Delivery, Endpoint};

pub use self::statement::{SESSION, STATEMENTS, Statement};

/// No statement of a worker takes this long; past it the session counts as dead.
const STATEMENT_LIMIT: Duration = Duration::from_secs(60);

/// Whose the sessions are that a worker's statements run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sessions {
    /// The worker's own, for as long as they live: statements are prepared once, plans are pinned.
    Own,
    /// A pooler's, another one for each transaction (PgBouncer in transaction mode): nothing is left behind in them, so each statement
    /// is parsed and planned anew.
    Pooled,
}

/// The worker's sessions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Queue {
    sessions: Sessions,
    claims: Pool,
    records: Pool,
    publishes: Pool,
    upkeep: Pool,
    target: String,
}

/// What a worker asks a claim for.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The walk starts after this endpoint; empty: at the start of the lap.
    pub cursor: &'a str,
    /// Lanes to walk past at most.
    pub lanes: i32,
    /// Deliveries to take at most.
    pub wanted: i32,
    /// `workers.id`.
    pub worker: &'a str,
    /// The lease is the endpoint's timeout and this.
    pub margin: Duration,
    /// A worker that takes nothing looks again after this long at most, and wants the doorbell until then.
    pub sleep: Duration,
    /// Slots that the worker has free; no lane takes nearly all of them.
    pub free: i32,
    /// Bytes of payloads, as stored, that the worker has room for.
    pub bytes: i64,
    /// Where to begin in lanes after the cursor, by name, one more than `lanes`; lanes that are missing are looked at from their start.
    pub marks: &'a [Front],
}

/// Where the open deliveries of a lane began at some moment: nothing open stood before, in the order of due times and ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Front {
    /// The lane.
    pub endpoint: String,
    /// `next_retry` of its first delivery, or a second before the claim if that is earlier.
    pub next_retry: DateTime<Utc>,
    /// `id` of its first delivery, or 0.
    pub id: i64,
}

/// What a claim took, and where its walk ended.
#[derive(Debug)]
pub struct Claim {
    /// Last endpoint walked past; `None` when no lane was left.
    pub walk_end: Option<String>,
    /// Lanes walked past.
    pub hops: i32,
    /// Database time of the claim.
    pub claimed_at: DateTime<Utc>,
    /// Time until the next known due time, when nothing was taken.
    pub wake: Option<Duration>,
    /// Endpoints walked past whose open deliveries are to be retired.
    pub disabled: Vec<String>,
    /// Whether a lane waits for rate tokens.
    pub rationed: bool,
    /// Whether a lane waits for tries of it to end.
    pub capped: bool,
    /// Whether another claim was at a lane, which was left out for it.
    pub contended: bool,
    /// Whether payloads were left behind that the worker had no room for.
    pub heavy: bool,
    /// Whether changes of watched tables wait to be published.
    pub changes: bool,
    /// Of each lane walked past.
    pub fronts: Vec<Front>,
    /// Time that the database took to find what it took.
    pub took: Duration,
    /// Taken, under a lease of this worker.
    pub taken: Vec<Taken>,
    /// Deliveries that were ended instead, and as what: their last allowed try was lost, or their deadline has passed.
    pub ended: Vec<(i64, String)>,
}

/// One claimed delivery with what belongs to its lease.
#[derive(Debug)]
pub struct Taken {
    /// What to send.
    pub delivery: Delivery,
    /// The endpoint's revision at the claim.
    pub revision: i64,
    /// The lease runs from the claim for this long.
    pub lease: Duration,
    /// From the claim on, until its deadline: no try may begin after that, nor last beyond it. `None`: no deadline within the lease.
    pub left: Option<Duration>,
}

/// An endpoint, and for how long what was read holds: a secret may expire.
#[derive(Debug)]
pub struct Loaded {
    /// As it is now.
    pub endpoint: Endpoint,
    /// Until the first of its secrets expires.
    pub good_for: Option<Duration>,
    /// What in the row makes no sense and was left out, for the log.
    pub faults: Vec<String>,
}

/// What a step of retention did to one kind.
#[derive(Debug)]
pub struct Pruned {
    /// `retention.kind`.
    pub kind: String,
    /// Rows that were removed; of attempts days.
    pub count: i64,
    /// There is more to do now.
    pub more: bool,
    /// What had to be left for later, and why.
    pub waits: Option<String>,
}

impl Queue {
    /// Sessions made on demand by `connector`.
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] when a pool cannot be built.
    pub fn new(connector: &Connector, sessions: Sessions) -> Result<Self, Error> {
        let session = match sessions {
            Sessions::Own => SESSION.map(str::to_owned).to_vec(),
            Sessions::Pooled => Vec::new(),
        };
        let pool = |max_size| {
            connector.pool(PoolOptions {
                max_size,
                session: session.clone(),
            })
        };
        Ok(Self {
            sessions,
            claims: pool(2)?,
            records: pool(3)?,
            publishes: pool(1)?,
            upkeep: pool(1)?,
            target: connector.display().to_owned(),
        })
    }

    /// Takes due deliveries; see `sql/worker/claim.sql`.
    ///
    /// # Errors
    ///
    /// Any of the store; nothing is claimed then, or its lease runs out unused.
    pub async fn claim(&self, ask: Ask<'_>) -> Result<Claim, Error> {
        let (margin, sleep) = (millis(ask.margin), millis(ask.sleep));
        let marked: Vec<_> = ask.marks.iter().map(|mark| &mark.endpoint).collect();
        let marked_due: Vec<_> = ask.marks.iter().map(|mark| mark.next_retry).collect();
        let marked_ids: Vec<_> = ask.marks.iter().map(|mark| mark.id).collect();
        let rows = self
            .run(
                &self.claims,
                &CLAIM,
                &[
                    &ask.cursor,
                    &ask.lanes,
                    &ask.wanted,
                    &ask.worker,
                    &margin,
                    &sleep,
                    &ask.free,
                    &ask.bytes,
                    &marked,
                    &marked_due,
                    &marked_ids,
                ],
            )
            .await?;
        read_claim(&rows)
    }

    /// Writes results; returns the ids of those that moved their delivery. Sent again it does nothing twice.
    ///
    /// # Errors
    ///
    /// [`Error::is_data_error`] when a value is at fault: halve the batch. Otherwise send it again later.
    pub async fn record(&self, worker: &str, attempts: &[Attempt]) -> Result<Vec<i64>, Error> {
        let batch = Batch::from(attempts);
        let rows = self
            .run(&self.records, &RECORD, &batch.params(&worker))
            .await?;
        ids(&rows)
    }

    /// Which of these deliveries nobody else holds a lock on at this moment.
    ///
    /// # Errors
    ///
    /// Any of the store.
    pub async fn lockable(&self, deliveries: &[i64]) -> Result<Vec<i64>, Error> {
        let rows = self.run(&self.records, &LOCKABLE, &[&deliveries]).await?;
        ids(&rows)
    }

    /// Gives claims back unsent; returns the ids of those that were still ours.
    ///
    /// # Errors
    ///
    /// Any of the store; the leases then run out.
    pub async fn release(&self, claims: &[(i64, i64)]) -> Result<Vec<i64>, Error> {
        let (deliveries, claim_nos): (Vec<i64>, Vec<i64>) = claims.iter().copied().unzip();
        let rows = self
            .run(&self.records, &RELEASE, &[&deliveries, &claim_nos])
            .await?;
        ids(&rows)
    }

    /// Ends open deliveries of disabled endpoints, at most `limit`; returns how many for each endpoint.
    ///
    /// # Errors
    ///
    /// Any of the store.
    pub async fn retire(
        &self,
        endpoints: &[String],
        limit: i32,
    ) -> Result<Vec<(String, i64)>, Error> {
        let rows = self
            .run(&self.claims, &RETIRE, &[&endpoints, &limit])
            .await?;
        rows.iter()
            .map(|row| Ok((row.try_get("endpoint")?, row.try_get("ended")?)))
            .collect()
    }

    /// Reads endpoints by name; those that do not exist are missing.
    ///
    /// # Errors
    ///
    /// Any of the store.
    pub async fn endpoints(&self, names: &[String]) -> Result<Vec<Loaded>, Error> {
        let rows = self.run(&self.claims, &ENDPOINTS, &[&names]).await?;
        rows.iter().map(read_endpoint).collect()
    }

    /// Puts the worker on the list of workers.
    ///
    /// # Errors
    ///
    /// Any of the store.
    pub async fn arrive(&self, worker: &str, hostname: &str, pid: i32) -> Result<(), Error> {
        let version = env!("CARGO_PKG_VERSION");
        self.run(&self.claims, &ARRIVE, &[&worker, &hostname, &pid, &version])
            .await
            .map(drop)
    }

    /// Takes the worker off the list.
    ///
    /// # Errors
    ///
    /// Any of the store.
    pub async fn leave(&self, worker: &str) -> Result<(), Error> {
        self.run(&self.claims, &LEAVE, &[&worker]).await.map(drop)
    }

    /// Makes the day partitions of attempts that are missing around now, and around the given tries.
    ///
    /// # Errors
    ///
    /// Any of the store.
    pub async fn make_partitions(&self, attempts: &[Attempt]) -> Result<i32, Error> {
        let first = attempts.iter().map(|attempt| attempt.started_at).min();
        let last = attempts.iter().map(|attempt| attempt.started_at).max();
        let rows = self
            .run(&self.claims, &PARTITIONS, &[&first, &last])
            .await?;
        rows.first().map_or(Ok(0), |row| Ok(row.try_get("made")?))
    }

    /// Publishes changes of watched tables, at most so many chunks; returns how many it dealt with, 0 when another worker is at it.
    ///
    /// # Errors
    ///
    /// Any of the store; nothing was published then.
    pub async fn publish(&self, chunks: i32) -> Result<i64, Error> {
        let rows = self.run(&self.publishes, &PUBLISH, &[&chunks]).await?;
        rows.first().map_or(Ok(0), |row| Ok(row.try_get("done")?))
    }

    /// One step of retention, at most `limit` rows; a [`Pruned`] for each kind, none when another session is at it.
    ///
    /// # Errors
    ///
    /// Any of the store; nothing is removed then.
    pub async fn prune(&self, limit: i32) -> Result<Vec<Pruned>, Error> {
        let rows = self.run(&self.upkeep, &PRUNE, &[&limit]).await?;
        rows.iter()
            .map(|row| {
                Ok(Pruned {
                    kind: row.try_get("kind")?,
                    count: row.try_get("pruned")?,
                    more: row.try_get("more")?,
                    waits: row.try_get("waits")?,
                })
            })
            .collect()
    }

    /// Adds at most `limit` rows of counted tries up into the reports; returns how many there were.
    ///
    /// # Errors
    ///
    /// Any of the store; they are added up later then.
    pub async fn fold(&self, limit: i32) -> Result<i32, Error> {
        let rows = self.run(&self.upkeep, &FOLD, &[&limit]).await?;
        rows.first().map_or(Ok(0), |row| Ok(row.try_get("folded")?))
    }

    async fn run(
        &self,
        pool: &Pool,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let client = pool.get().await?;
        let work = async {
            match self.sessions {
                Sessions::Own => {
                    let prepared = client
                        .prepare_typed_cached(statement.sql, statement.types)
                        .await?;
                    client.query(&prepared, params).await
                }
                Sessions::Pooled => {
                    let typed: Vec<_> = params
                        .iter()
                        .copied()
                        .zip(statement.types.iter().cloned())
                        .collect();
                    client.query_typed(statement.sql, &typed).await
                }
            }
        };
        let outcome = match tokio::time::timeout(STATEMENT_LIMIT, work).await {
            Ok(outcome) => outcome.map_err(Error::from),
            Err(_) => Err(Error::connect_timeout(&self.target)),
        };
        if outcome.as_ref().is_err_and(Error::needs_new_connection) {
            Pool::discard(client);
        }
        outcome
    }
}

fn ids(rows: &[Row]) -> Result<Vec<i64>, Error> {
    rows.iter()
        .map(|row| Ok(row.try_get("delivery_id")?))
        .collect()
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
