//! One test's database, and short words for what tests do in it.
//!
//! Owns how a row is put in and read; statements of Postrider's own are not used here, so that a test sees the tables
//! as a user does. Times are read as seconds from the database's now, since no test may trust two clocks.

use std::fmt::Debug;
use std::pin::Pin;

use serde_json::{Map, Value};
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{Client, Row};

use super::slots::{self, Slot};
use super::wait::{SOON, wait_until};

/// A database that no other test sees. A failed statement ends the test and shows itself.
pub(crate) struct Database {
    slot: Slot,
    // Dropped last: by then no session of ours is left.
    _private: Option<Private>,
}

/// Drops the database with the test.
struct Private(String);

impl Database {
    /// With the schema and without rows, in milliseconds. The test may add objects but must leave ours as they are.
    pub(crate) async fn fresh() -> Self {
        Self {
            slot: slots::lend().await,
            _private: None,
        }
    }

    /// The same database as the next test would get it.
    pub(crate) async fn lent_again(self) -> Self {
        let Self {
            slot,
            _private: private,
        } = self;
        Self {
            slot: slots::lend_again(slot).await,
            _private: private,
        }
    }

    /// A database of this test alone, for tests that change the schema; it takes half a second.
    pub(crate) async fn private() -> Self {
        let slot = slots::make().await;
        let private = Some(Private(slot.name.clone()));
        Self {
            slot,
            _private: private,
        }
    }

    /// For `--database-url`.
    pub(crate) fn url(&self) -> &str {
        &self.slot.url
    }

    /// Roles belong to the whole server: begin their names with this and `_`, and they go with the rows.
    pub(crate) fn name(&self) -> &str {
        &self.slot.name
    }

    /// The test's own session.
    pub(crate) fn client(&self) -> &Client {
        &self.slot.client
    }

    /// One more session.
    pub(crate) async fn connect(&self) -> Client {
        slots::connect(self.url()).await
    }

    /// Runs any statements.
    pub(crate) async fn sql(&self, statements: &str) {
        slots::run(self.client(), statements).await;
    }

    /// The one value of the one row.
    pub(crate) async fn value<T: FromSqlOwned>(&self, query: &str) -> T {
        let row = one(self.client(), query, &[]).await;
        get(&row, 0)
    }

    /// An endpoint; `.set(column, value)` what the test is about, then `.await`.
    pub(crate) fn endpoint(&self, name: &str, url: &str) -> NewEndpoint<'_> {
        NewEndpoint(
            NewRow::of(self, "endpoints")
                .set("name", name)
                .set("url", url),
        )
    }

    /// A delivery of type `test.event` with this JSON text; `.set(column, value)` what the test is about, then
    /// `.await` its id.
    pub(crate) fn insert(&self, endpoint: &str, payload: &str) -> NewDelivery<'_> {
        let row = NewRow::of(self, "deliveries")
            .set("endpoint", endpoint)
            .set("event_type", "test.event");
        NewDelivery {
            row,
            payload: Some(payload.to_owned()),
        }
    }

    /// The same with any bytes.
    pub(crate) fn insert_bytes(&self, endpoint: &str, body: &[u8]) -> NewDelivery<'_> {
        let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut delivery = self.insert(endpoint, "");
        delivery.payload = None;
        delivery.set("body", format!("\\x{hex}"))
    }

    /// The newest of the endpoint's secrets that still sign.
    pub(crate) async fn secret(&self, endpoint: &str) -> String {
        let query = "select secret from postrider.endpoint_secrets \
                      where endpoint = $1 and (expires_at is null or expires_at > now()) order by created_at desc limit 1";
        get(&one(self.client(), query, &[&endpoint]).await, 0)
    }

    /// What the table says about this delivery now.
    pub(crate) async fn delivery(&self, id: i64) -> Delivery {
        Delivery::read(&one(self.client(), &format!("{DELIVERY} where id = $1"), &[&id]).await)
    }

    /// Its tries, oldest first.
    pub(crate) async fn attempts(&self, id: i64) -> Vec<Attempt> {
        let rows = self.client().query(ATTEMPTS, &[&id]).await;
        rows.unwrap_or_else(|error| panic!("{error:?}"))
            .iter()
            .map(Attempt::read)
            .collect()
    }

    /// Waits until the delivery `holds`, and returns it as it then was.
    pub(crate) async fn wait_for(
        &self,
        id: i64,
        what: &str,
        holds: impl Fn(&Delivery) -> bool,
    ) -> Delivery {
        wait_until(what, async || self.delivery(id).await, holds, SOON).await
    }

    /// Waits until the server has ended every session of a worker. A killed worker's last statement may be on its way
    /// still, and would be carried out.
    pub(crate) async fn wait_until_no_worker_is_connected(&self) {
        let sessions = "select count(*) from pg_stat_activity \
                         where datname = current_database() and application_name = 'postrider'";
        let look = async || self.value::<i64>(sessions).await;
        wait_until("no worker is connected", look, |count| *count == 0, SOON).await;
    }

    /// Waits until the delivery has this status.
    pub(crate) async fn wait_for_status(&self, id: i64, status: &str) -> Delivery {
        self.wait_for(id, &format!("delivery {id} is {status}"), |delivery| {
            delivery.status == status
        })
        .await
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.0);
        // The test's own runtime cannot be waited for from here.
        let dropper = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(slots::unmake(&name));
        });
        // What could not be dropped now is swept later; the test's verdict stands without it.
        drop(dropper.join());
    }
}

/// A row by its columns; those that are not set have the table's defaults.
struct NewRow<'db> {
    database: &'db Database,
    table: &'static str,
    columns: Map<String, Value>,
}

impl<'db> NewRow<'db> {
    fn of(database: &'db Database, table: &'static str) -> Self {
        Self {
            database,
            table,
            columns: Map::new(),
        }
    }

    fn set(mut self, column: &str, value: impl Into<Value>) -> Self {
        self.columns.insert(column.to_owned(), value.into());
        self
    }

    /// Inserts it, with `payload` as the very text if there is one. Returns what `returning` names.
    async fn insert(self, payload: Option<String>, returning: &str) -> Row {
        let columns: Vec<_> = self
            .columns
            .keys()
            .map(|column| format!("\"{column}\""))
            .collect();
        let columns = columns.join(", ");
        let (into, from) = match payload {
            Some(_) => (", payload", ", $2::text::json"),
            None => ("", ""),
        };
        let table = self.table;
        let insert = format!(
            "insert into postrider.{table} ({columns}{into}) \
             select {columns}{from} from jsonb_populate_record(null::postrider.{table}, $1) returning {returning}"
        );
        let columns = Value::Object(self.columns);
        match payload {
            Some(payload) => one(self.database.client(), &insert, &[&columns, &payload]).await,
            None => one(self.database.client(), &insert, &[&columns]).await,
        }
    }
}

/// Await it.
#[must_use]
pub(crate) struct NewEndpoint<'db>(NewRow<'db>);

impl NewEndpoint<'_> {
    /// The value as JSON: text for times and intervals, arrays as arrays.
    pub(crate) fn set(self, column: &str, value: impl Into<Value>) -> Self {
        Self(self.0.set(column, value))
    }
}

impl<'db> IntoFuture for NewEndpoint<'db> {
    type Output = ();
    type IntoFuture = Pin<Box<dyn Future<Output = ()> + Send + 'db>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { drop(self.0.insert(None, "name").await) })
    }
}

/// Await its id.
#[must_use]
pub(crate) struct NewDelivery<'db> {
    row: NewRow<'db>,
    payload: Option<String>,
}

impl NewDelivery<'_> {
    /// The value as JSON: text for times and intervals.
    pub(crate) fn set(mut self, column: &str, value: impl Into<Value>) -> Self {
        self.row = self.row.set(column, value);
        self
    }
}

impl<'db> IntoFuture for NewDelivery<'db> {
    type Output = i64;
    type IntoFuture = Pin<Box<dyn Future<Output = i64> + Send + 'db>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { get(&self.row.insert(self.payload, "id").await, 0) })
    }
}

const DELIVERY: &str = "
select endpoint, event_id, event_type, status, exhausted_reason, attempt_count, budget_from, max_retries, claim_no,
       leased_by, last_status_code, last_error,
       extract(epoch from next_retry)::float8 - extract(epoch from now())::float8 as due_in,
       extract(epoch from lease_expires_at)::float8 - extract(epoch from now())::float8 as leased_for,
       finished_at is not null as finished
  from postrider.deliveries";

/// A row of `deliveries`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Delivery {
    pub(crate) endpoint: String,
    pub(crate) event_id: String,
    pub(crate) event_type: String,
    pub(crate) status: String,
    pub(crate) exhausted_reason: Option<String>,
    pub(crate) attempt_count: i32,
    pub(crate) budget_from: i32,
    pub(crate) max_retries: Option<i32>,
    pub(crate) claim_no: i64,
    pub(crate) leased_by: Option<String>,
    pub(crate) last_status_code: Option<i32>,
    pub(crate) last_error: Option<String>,
    /// `next_retry`, in seconds from now; may be infinite.
    pub(crate) due_in: Option<f64>,
    /// `lease_expires_at`, in seconds from now; negative when it has run out.
    pub(crate) leased_for: Option<f64>,
    /// Whether `finished_at` is set.
    pub(crate) finished: bool,
}

impl Delivery {
    fn read(row: &Row) -> Self {
        Self {
            endpoint: get(row, "endpoint"),
            event_id: get(row, "event_id"),
            event_type: get(row, "event_type"),
            status: get(row, "status"),
            exhausted_reason: get(row, "exhausted_reason"),
            attempt_count: get(row, "attempt_count"),
            budget_from: get(row, "budget_from"),
            max_retries: get(row, "max_retries"),
            claim_no: get(row, "claim_no"),
            leased_by: get(row, "leased_by"),
            last_status_code: get(row, "last_status_code"),
            last_error: get(row, "last_error"),
            due_in: get(row, "due_in"),
            leased_for: get(row, "leased_for"),
            finished: get(row, "finished"),
        }
    }
}

const ATTEMPTS: &str = "
select attempt_no, claim_no, endpoint, outcome, status_code, error_kind, error, duration_ms, worker, remote_addr,
       request_headers, response_headers, response_body, response_truncated,
       extract(epoch from started_at)::float8 - extract(epoch from now())::float8 as started_in,
       extract(epoch from next_retry)::float8 - extract(epoch from started_at)::float8 as retry_after
  from postrider.attempts where delivery_id = $1 order by attempt_no, claim_no";

/// A row of `attempts`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attempt {
    pub(crate) attempt_no: i32,
    pub(crate) claim_no: i64,
    pub(crate) endpoint: String,
    pub(crate) outcome: String,
    pub(crate) status_code: Option<i32>,
    pub(crate) error_kind: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) duration_ms: Option<i32>,
    pub(crate) worker: Option<String>,
    pub(crate) remote_addr: Option<String>,
    pub(crate) request_headers: Option<Value>,
    pub(crate) response_headers: Option<Value>,
    pub(crate) response_body: Option<Vec<u8>>,
    pub(crate) response_truncated: bool,
    /// `started_at`, in seconds from now: negative.
    pub(crate) started_in: f64,
    /// `next_retry`, in seconds from `started_at`.
    pub(crate) retry_after: Option<f64>,
}

impl Attempt {
    fn read(row: &Row) -> Self {
        Self {
            attempt_no: get(row, "attempt_no"),
            claim_no: get(row, "claim_no"),
            endpoint: get(row, "endpoint"),
            outcome: get(row, "outcome"),
            status_code: get(row, "status_code"),
            error_kind: get(row, "error_kind"),
            error: get(row, "error"),
            duration_ms: get(row, "duration_ms"),
            worker: get(row, "worker"),
            remote_addr: get(row, "remote_addr"),
            request_headers: get(row, "request_headers"),
            response_headers: get(row, "response_headers"),
            response_body: get(row, "response_body"),
            response_truncated: get(row, "response_truncated"),
            started_in: get(row, "started_in"),
            retry_after: get(row, "retry_after"),
        }
    }
}

async fn one(client: &Client, query: &str, parameters: &[&(dyn ToSql + Sync)]) -> Row {
    client
        .query_one(query, parameters)
        .await
        .unwrap_or_else(|error| panic!("{error:?}\nin: {query}"))
}

fn get<T: FromSqlOwned>(
    row: &Row,
    column: impl tokio_postgres::row::RowIndex + Debug + std::fmt::Display,
) -> T {
    let name = format!("{column:?}");
    row.try_get(column)
        .unwrap_or_else(|error| panic!("column {name}: {error:?}"))
}
