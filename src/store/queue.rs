//! The worker's side of the database: claim, record, release and what goes with them.
//!
//! One function per file in `sql/worker/`. Owns the sessions they run on: results have their own, so that a slow claim never holds
//! them up. Knows nothing of HTTP, nor of what a verdict is.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::connect::{Connector, Pool, PoolOptions};
use super::{Error, text};
use crate::attempt::{Attempt, Next};
use crate::delivery::{Delivery, Endpoint};
use crate::policy::{Policy, RetryOn, Schedule};
use crate::signing::{Scheme, Secret};

/// No statement of a worker takes this long; past it the session counts as dead.
const STATEMENT_LIMIT: Duration = Duration::from_secs(60);

/// What every session of a worker is told first. The statements are written for index scans in index order; a planner
/// without statistics, or with those of a table that was empty an hour ago, must not choose otherwise.
const SESSION: [&str; 8] = [
    "set enable_seqscan = off",
    "set enable_hashjoin = off",
    "set enable_mergejoin = off",
    "set enable_bitmapscan = off",
    "set jit = off",
    // A person who holds a row's lock in an open transaction must not hold up a batch for longer.
    "set lock_timeout = '5s'",
    "set plan_cache_mode = force_generic_plan",
    "set default_transaction_isolation = 'read committed'",
];

/// One statement of `sql/worker/`: its text and the types of its parameters.
#[derive(Debug)]
pub struct Statement {
    /// File name without `.sql`.
    pub name: &'static str,
    /// The file.
    pub sql: &'static str,
    /// `$1`, `$2`, ...
    pub types: &'static [Type],
}

macro_rules! statement {
    ($name:literal, [$($ty:ident),*]) => {
        Statement {
            name: $name,
            sql: include_str!(concat!("../../sql/worker/", $name, ".sql")),
            types: &[$(Type::$ty),*],
        }
    };
}

/// Every statement that a worker sends.
pub static STATEMENTS: [&Statement; 8] = [
    &CLAIM,
    &RECORD,
    &RELEASE,
    &RETIRE,
    &ENDPOINTS,
    &ARRIVE,
    &LEAVE,
    &PARTITIONS,
];

static CLAIM: Statement = statement!("claim", [TEXT, INT4, INT4, TEXT, INT8, INT8]);
#[rustfmt::skip]
static RECORD: Statement = statement!("record", [
    INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY, TEXT_ARRAY, TIMESTAMPTZ_ARRAY, INT4_ARRAY, TEXT_ARRAY,
    INT4_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, TEXT_ARRAY, BYTEA_ARRAY, BOOL_ARRAY, TEXT_ARRAY, TEXT
]);
static LOCKABLE: Statement = statement!("lockable", [INT8_ARRAY]);
static RELEASE: Statement = statement!("release", [INT8_ARRAY, INT8_ARRAY]);
static RETIRE: Statement = statement!("retire", [TEXT_ARRAY, INT4]);
static ENDPOINTS: Statement = statement!("endpoints", [TEXT_ARRAY]);
static ARRIVE: Statement = statement!("arrive", [TEXT, TEXT, INT4, TEXT]);
static LEAVE: Statement = statement!("leave", [TEXT]);
static PARTITIONS: Statement = statement!("partitions", [TIMESTAMPTZ, TIMESTAMPTZ]);

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
    /// Taken, under a lease of this worker.
    pub taken: Vec<Taken>,
    /// Deliveries that were ended because their last allowed try was lost.
    pub lost: Vec<i64>,
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
            drop(deadpool_postgres::Client::take(client));
        }
        outcome
    }
}

fn ids(rows: &[Row]) -> Result<Vec<i64>, Error> {
    rows.iter()
        .map(|row| Ok(row.try_get("delivery_id")?))
        .collect()
}

fn read_claim(rows: &[Row]) -> Result<Claim, Error> {
    let first = rows
        .first()
        .expect("a claim always returns where its walk ended");
    let wake_ms: Option<i64> = first.try_get("wake_ms")?;
    let mut claim = Claim {
        walk_end: first.try_get("walk_end")?,
        hops: first.try_get("hops")?,
        claimed_at: first.try_get("claimed_at")?,
        wake: wake_ms.map(duration),
        disabled: first.try_get("disabled")?,
        rationed: first.try_get("rationed")?,
        capped: first.try_get("capped")?,
        contended: first.try_get("contended")?,
        taken: Vec::with_capacity(rows.len()),
        lost: Vec::new(),
    };
    for row in rows {
        let Some(id) = row.try_get::<_, Option<i64>>("id")? else {
            continue;
        };
        if row.try_get("lost_spent")? {
            claim.lost.push(id);
        } else {
            claim.taken.push(read_taken(id, row)?);
        }
    }
    Ok(claim)
}

fn read_taken(id: i64, row: &Row) -> Result<Taken, Error> {
    let payload: Option<&str> = row.try_get("payload")?;
    let (body, kind) = match payload {
        Some(json) => (Bytes::copy_from_slice(json.as_bytes()), "application/json"),
        None => {
            let bytes: Option<&[u8]> = row.try_get("body")?;
            (
                Bytes::copy_from_slice(bytes.unwrap_or_default()),
                "application/octet-stream",
            )
        }
    };
    let content_type: Option<String> = row.try_get("content_type")?;
    Ok(Taken {
        delivery: Delivery {
            id,
            endpoint: row.try_get("endpoint")?,
            event_id: row.try_get("event_id")?,
            event_type: row.try_get("event_type")?,
            body,
            content_type: content_type.unwrap_or_else(|| kind.to_owned()),
            headers: row.try_get("headers")?,
            claim_no: row.try_get("claim_no")?,
            attempt_count: count(row.try_get("attempt_count")?),
            tries_used: count(row.try_get("tries_used")?),
            max_retries: count(row.try_get("max_retries")?),
        },
        revision: row.try_get("revision")?,
        lease: duration(row.try_get("lease_ms")?),
    })
}

fn read_endpoint(row: &Row) -> Result<Loaded, Error> {
    let mut faults = Vec::new();
    let scheme_name: &str = row.try_get("signature_scheme")?;
    let scheme = Scheme::parse(scheme_name, row.try_get("signature_header")?);
    faults.extend(scheme.as_ref().err().map(ToString::to_string));
    let texts: Vec<String> = row.try_get("secrets")?;
    let mut secrets = Vec::with_capacity(texts.len());
    for text in &texts {
        match Secret::parse(text) {
            Ok(secret) => secrets.push(secret),
            Err(error) => faults.push(error.to_string()),
        }
    }
    let retry_on: Option<Vec<String>> = row.try_get("retry_on")?;
    let retry_on = retry_on.map_or_else(|| Ok(RetryOn::default()), |items| RetryOn::parse(&items));
    let retry_on = retry_on.unwrap_or_else(|error| {
        faults.push(error.to_string());
        RetryOn::default()
    });
    let lefts: Vec<Option<i64>> = row.try_get("secrets_left_ms")?;
    let endpoint = Endpoint {
        name: row.try_get("name")?,
        revision: row.try_get("revision")?,
        url: row.try_get("url")?,
        method: row.try_get("method")?,
        headers: row.try_get("headers")?,
        timeout: duration(row.try_get("timeout_ms")?),
        scheme,
        secrets,
        policy: Policy {
            schedule: read_schedule(row)?,
            jitter: row.try_get("jitter")?,
            retry_on,
        },
    };
    Ok(Loaded {
        endpoint,
        good_for: lefts.into_iter().flatten().min().map(duration),
        faults,
    })
}

fn read_schedule(row: &Row) -> Result<Schedule, Error> {
    let kind: &str = row.try_get("kind")?;
    if kind == "exponential" {
        let base: Option<i64> = row.try_get("base_ms")?;
        let factor: Option<f64> = row.try_get("factor")?;
        let cap: Option<i64> = row.try_get("cap_ms")?;
        return Ok(Schedule::Exponential {
            base: duration(base.unwrap_or_default()),
            factor: factor.unwrap_or(1.0),
            cap: duration(cap.unwrap_or_default()),
        });
    }
    let delays: Vec<i64> = row.try_get("delays_ms")?;
    Ok(Schedule::Fixed {
        delays: delays.into_iter().map(duration).collect(),
    })
}

/// Results as the arrays that the record statement takes.
#[derive(Default)]
struct Batch<'a> {
    delivery_ids: Vec<i64>,
    claim_nos: Vec<i64>,
    statuses: Vec<&'static str>,
    reasons: Vec<Option<&'static str>>,
    delays_ms: Vec<Option<i64>>,
    endpoints: Vec<&'a str>,
    started_ats: Vec<DateTime<Utc>>,
    durations_ms: Vec<i32>,
    outcomes: Vec<&'static str>,
    status_codes: Vec<Option<i32>>,
    error_kinds: Vec<Option<&'static str>>,
    errors: Vec<Option<String>>,
    request_headers: Vec<String>,
    response_headers: Vec<Option<String>>,
    response_bodies: Vec<Option<&'a [u8]>>,
    truncations: Vec<bool>,
    remote_addrs: Vec<Option<String>>,
}

impl<'a> Batch<'a> {
    fn from(attempts: &'a [Attempt]) -> Self {
        let mut batch = Self::default();
        for attempt in attempts {
            let (status, reason, delay) = match attempt.next {
                Next::Delivered => ("delivered", None, None),
                Next::Retry(delay) => ("failed", None, Some(millis(delay))),
                Next::Exhausted(reason) => ("exhausted", Some(reason.as_str()), None),
            };
            batch.delivery_ids.push(attempt.delivery_id);
            batch.claim_nos.push(attempt.claim_no);
            batch.statuses.push(status);
            batch.reasons.push(reason);
            batch.delays_ms.push(delay);
            batch.endpoints.push(&attempt.endpoint);
            batch.started_ats.push(attempt.started_at);
            batch
                .durations_ms
                .push(i32::try_from(attempt.duration.as_millis()).unwrap_or(i32::MAX));
            batch.outcomes.push(attempt.outcome.as_str());
            batch.status_codes.push(attempt.status_code.map(i32::from));
            batch.error_kinds.push(attempt.error_kind);
            batch
                .errors
                .push(attempt.error.as_deref().map(text::storable));
            batch
                .request_headers
                .push(text::request_headers(&attempt.request_headers));
            let answered = attempt.response_body.is_some();
            batch
                .response_headers
                .push(answered.then(|| text::response_headers(&attempt.response_headers)));
            batch.response_bodies.push(attempt.response_body.as_deref());
            batch.truncations.push(attempt.response_truncated);
            batch
                .remote_addrs
                .push(attempt.remote_addr.map(|addr| addr.to_string()));
        }
        batch
    }

    /// In the order of `sql/worker/record.sql`.
    fn params<'p>(&'p self, worker: &'p &str) -> [&'p (dyn ToSql + Sync); 18] {
        [
            &self.delivery_ids,
            &self.claim_nos,
            &self.statuses,
            &self.reasons,
            &self.delays_ms,
            &self.endpoints,
            &self.started_ats,
            &self.durations_ms,
            &self.outcomes,
            &self.status_codes,
            &self.error_kinds,
            &self.errors,
            &self.request_headers,
            &self.response_headers,
            &self.response_bodies,
            &self.truncations,
            &self.remote_addrs,
            worker,
        ]
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Milliseconds from the database; a negative one is no time at all.
fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// A counter that a CHECK keeps from being negative.
fn count(n: i32) -> u32 {
    u32::try_from(n).unwrap_or(0)
}
