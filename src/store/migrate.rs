//! The schema's versions: which this program carries, which a database has, and the way from one to the other.
//!
//! Owns `postrider.schema_migrations` and the lock that lets many programs start at once. The migrations themselves are
//! files in `sql/migrations`: numbered, forward only, never changed once they were applied somewhere.
//!
//! Everything is sent in the simple protocol, so that it works through a pooler that knows no prepared statements.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow, Transaction};

use super::Error;

/// One step of the schema.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number, from 1 without a gap.
    pub version: i32,
    /// What it is about, one word or several with underscores.
    pub name: &'static str,
    sql: &'static str,
}

/// A migration by its number and name, with the file of that name.
macro_rules! migration {
    ($version:literal, $name:literal, $file:literal) => {
        Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../../sql/migrations/", $file)),
        }
    };
}

/// Every step, in order.
const MIGRATIONS: [Migration; 9] = [
    migration!(1, "core", "0001_core.sql"),
    migration!(2, "publish", "0002_publish.sql"),
    migration!(3, "watch", "0003_watch.sql"),
    migration!(4, "deliver_now", "0004_deliver_now.sql"),
    migration!(5, "ordered", "0005_ordered.sql"),
    migration!(6, "reports", "0006_reports.sql"),
    migration!(7, "retention", "0007_retention.sql"),
    migration!(8, "matching", "0008_matching.sql"),
    migration!(9, "roles", "0009_roles.sql"),
];

/// The advisory lock of whoever migrates. Any number will do that no version ever changes; below 2^31, `pg_locks` shows
/// it whole in `objid`.
pub const LOCK: i32 = 1_886_352_500;

/// Between two looks at a lock that somebody else holds.
const PAUSE: Duration = Duration::from_millis(100);

const CREATE_SCHEMA: &str = "create schema if not exists postrider;";

const CREATE_TABLE: &str = "\
create table if not exists postrider.schema_migrations (
  version    integer primary key,
  name       text not null,
  checksum   text not null,
  applied_at timestamptz not null default now(),
  applied_by text not null default current_user
);
comment on table postrider.schema_migrations is 'The migrations of this schema that were applied. Written by `postrider migrate`.';
comment on column postrider.schema_migrations.version is 'Its number.';
comment on column postrider.schema_migrations.name is 'What it is about.';
comment on column postrider.schema_migrations.applied_at is 'When it was applied here.';
comment on column postrider.schema_migrations.applied_by is 'The role that applied it.';
comment on column postrider.schema_migrations.checksum is 'SHA-256 of the migration''s file, hex.';";

impl Migration {
    /// `0001_core.sql`
    #[must_use]
    pub fn file(&self) -> String {
        format!("{:04}_{}.sql", self.version, self.name)
    }

    fn checksum(&self) -> String {
        let mut hex = String::with_capacity(64);
        for byte in Sha256::digest(self.sql) {
            write!(hex, "{byte:02x}").expect("a string takes whatever is written");
        }
        hex
    }

    /// Name and checksum are made of letters, digits and underscores: nothing to quote.
    fn bookkeeping(&self) -> String {
        format!(
            "insert into postrider.schema_migrations (version, name, checksum) values ({}, '{}', '{}');",
            self.version,
            self.name,
            self.checksum()
        )
    }
}

/// How long [`up`] is patient.
#[derive(Clone, Copy, Debug)]
pub struct UpOptions {
    /// For each lock on a table. A migration that waits for one blocks everybody behind it, so this is short; the
    /// migration is tried again until `patience` ends.
    pub lock_timeout: Duration,
    /// For another session that is migrating, and for table locks.
    pub patience: Duration,
}

impl Default for UpOptions {
    fn default() -> Self {
        Self {
            lock_timeout: Duration::from_secs(3),
            patience: Duration::from_secs(60),
        }
    }
}

/// One migration as the database has it.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its number.
    pub version: i32,
    /// What it is about.
    pub name: String,
    /// When, as the server writes it; `None`: pending.
    pub applied_at: Option<String>,
    /// By which role; `None`: pending.
    pub applied_by: Option<String>,
    /// Whether what was applied is what this program carries.
    pub content: Content,
}

/// The recorded checksum against this program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Not applied yet.
    Pending,
    /// The same bytes.
    Same,
    /// Other bytes were applied under this number.
    Changed,
    /// This program does not know the migration: it is from a newer one.
    Unknown,
}

impl Content {
    /// The word that the command line shows.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Same => "applied",
            Self::Changed => "changed",
            Self::Unknown => "unknown",
        }
    }
}

/// The version this program needs and knows.
#[must_use]
pub fn newest() -> i32 {
    MIGRATIONS[MIGRATIONS.len() - 1].version
}

/// Applies what is pending, one transaction for each, and calls `progress` after each.
///
/// Any number of programs may do this at the same time: one works, the others wait, and then find nothing to do.
///
/// # Errors
///
/// [`Error::MigrationBusy`] after `patience`; [`Error::MigrationFailed`], with what went before it applied;
/// [`Error::MigrationChanged`] and [`Error::SchemaTooNew`] with nothing done; [`Error::NotPermitted`].
pub async fn up(
    client: &mut Client,
    options: UpOptions,
    mut progress: impl FnMut(&Migration),
) -> Result<Vec<Migration>, Error> {
    let started = Instant::now();
    let mut applied = Vec::new();
    loop {
        let failure = match step(client, options).await {
            Ok(Step::Nothing) => return Ok(applied),
            Ok(Step::Applied(migration)) => {
                progress(&migration);
                applied.push(migration);
                continue;
            }
            Ok(Step::Busy) => Error::MigrationBusy {
                waited: started.elapsed(),
                holder: holder(client).await?,
            },
            Err(error) if waited_for_a_table(&error) => error,
            Err(error) => return Err(error),
        };
        if started.elapsed() + PAUSE > options.patience {
            return Err(failure);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What one transaction came to.
enum Step {
    Applied(Migration),
    Nothing,
    Busy,
}

/// Takes the lock, looks, and applies the first pending migration. Whatever was true before the lock is looked at again.
async fn step(client: &mut Client, options: UpOptions) -> Result<Step, Error> {
    let transaction = client.transaction().await?;
    // Not `pg_advisory_xact_lock`: a statement that waits holds a snapshot, and so holds back vacuum and concurrent
    // index builds of the very session it waits for.
    if row(
        &transaction,
        &format!("select pg_try_advisory_xact_lock({LOCK})"),
    )
    .await?
    .try_get(0)?
        != Some("t")
    {
        return Ok(Step::Busy);
    }
    let lock_timeout = options.lock_timeout.as_millis();
    transaction
        .batch_execute(&format!(
            "set local lock_timeout = {lock_timeout}; set local statement_timeout = 0"
        ))
        .await?;
    create_bookkeeping(&transaction).await?;
    let recorded = recorded(transaction.simple_query(RECORDED).await?)?;
    verify(&recorded)?;
    let pending = MIGRATIONS
        .into_iter()
        .find(|known| recorded.iter().all(|row| row.version != known.version));
    let Some(migration) = pending else {
        transaction.commit().await?;
        return Ok(Step::Nothing);
    };
    let text = format!("{}\n{}", migration.sql, migration.bookkeeping());
    transaction
        .batch_execute(&text)
        .await
        .map_err(|cause| Error::MigrationFailed {
            file: migration.file(),
            cause: Box::new(cause.into()),
        })?;
    transaction.commit().await?;
    Ok(Step::Applied(migration))
}

/// Asks first what is there: `if not exists` would want the privilege to create even when there is nothing to create.
async fn create_bookkeeping(transaction: &Transaction<'_>) -> Result<(), Error> {
    let present = |kind: &str, name: &str| format!("select {kind}('{name}') is not null");
    if row(transaction, &present("to_regnamespace", "postrider"))
        .await?
        .try_get(0)?
        != Some("t")
    {
        transaction.batch_execute(CREATE_SCHEMA).await?;
    }
    if row(
        transaction,
        &present("to_regclass", "postrider.schema_migrations"),
    )
    .await?
    .try_get(0)?
        != Some("t")
    {
        transaction.batch_execute(CREATE_TABLE).await?;
    }
    Ok(())
}

async fn row(transaction: &Transaction<'_>, query: &str) -> Result<SimpleQueryRow, Error> {
    let rows = rows(transaction.simple_query(query).await?);
    Ok(rows
        .into_iter()
        .next()
        .expect("a select without a from has one row"))
}

/// The process that holds the lock, if it still does.
async fn holder(client: &Client) -> Result<Option<i32>, Error> {
    let query = format!(
        "select pid from pg_catalog.pg_locks where locktype = 'advisory' and granted and classid = 0 and objid = {LOCK} \
         and database = (select oid from pg_catalog.pg_database where datname = current_database())"
    );
    match rows(client.simple_query(&query).await?).first() {
        Some(row) => Ok(row.try_get(0)?.and_then(|pid| pid.parse().ok())),
        None => Ok(None),
    }
}

/// `lock_timeout` struck: on a table of the migration's, or on the bookkeeping itself.
fn waited_for_a_table(error: &Error) -> bool {
    let error = if let Error::MigrationFailed { cause, .. } = error {
        cause
    } else {
        error
    };
    matches!(error, Error::Query(cause) if cause.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
}

/// A row of `schema_migrations`.
struct Recorded {
    version: i32,
    name: String,
    checksum: String,
    applied_at: String,
    applied_by: String,
}

const RECORDED: &str = "select version, name, checksum, applied_at, applied_by from postrider.schema_migrations order by version";

fn recorded(messages: Vec<SimpleQueryMessage>) -> Result<Vec<Recorded>, Error> {
    rows(messages)
        .into_iter()
        .map(|row| {
            let text = |column| {
                Ok::<_, tokio_postgres::Error>(row.try_get(column)?.unwrap_or_default().to_owned())
            };
            Ok(Recorded {
                version: text(0)?.parse().expect("the column is an integer"),
                name: text(1)?,
                checksum: text(2)?,
                applied_at: text(3)?,
                applied_by: text(4)?,
            })
        })
        .collect()
}

fn rows(messages: Vec<SimpleQueryMessage>) -> Vec<SimpleQueryRow> {
    messages
        .into_iter()
        .filter_map(|message| {
            if let SimpleQueryMessage::Row(row) = message {
                Some(row)
            } else {
                None
            }
        })
        .collect()
}

/// Nothing is built upon a schema that is not what this program thinks it is.
fn verify(recorded: &[Recorded]) -> Result<(), Error> {
    for row in recorded {
        let Some(known) = MIGRATIONS.iter().find(|known| known.version == row.version) else {
            continue;
        };
        let here = known.checksum();
        if row.checksum != here {
            return Err(Error::MigrationChanged {
                file: known.file(),
                recorded: row.checksum.clone(),
                here,
            });
        }
    }
    match recorded.last() {
        Some(last) if last.version > newest() => Err(Error::SchemaTooNew {
            found: last.version,
            known: newest(),
        }),
        Some(_) | None => Ok(()),
    }
}

/// Every migration that this program or the database knows, in order.
///
/// # Errors
///
/// [`Error::NotPermitted`], [`Error::Query`]. A missing schema is no error: all is pending.
pub async fn status(client: &Client) -> Result<Vec<Status>, Error> {
    let recorded = match client.simple_query(RECORDED).await.map_err(Error::from) {
        Ok(messages) => recorded(messages)?,
        Err(Error::SchemaMissing) => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut all: Vec<Status> = recorded
        .into_iter()
        .map(|row| {
            let content = match MIGRATIONS.iter().find(|known| known.version == row.version) {
                Some(known) if known.checksum() == row.checksum => Content::Same,
                Some(_) => Content::Changed,
                None => Content::Unknown,
            };
            let (applied_at, applied_by) = (Some(row.applied_at), Some(row.applied_by));
            Status {
                version: row.version,
                name: row.name,
                applied_at,
                applied_by,
                content,
            }
        })
        .collect();
    let pending = MIGRATIONS
        .into_iter()
        .filter(|known| all.iter().all(|row| row.version != known.version));
    let pending: Vec<_> = pending
        .map(|known| Status {
            version: known.version,
            name: known.name.to_owned(),
            applied_at: None,
            applied_by: None,
            content: Content::Pending,
        })
        .collect();
    all.extend(pending);
    all.sort_by_key(|row| row.version);
    Ok(all)
}

/// Refuses a schema that is missing, older than this program needs or newer than it knows.
///
/// # Errors
///
/// [`Error::SchemaMissing`], [`Error::SchemaTooOld`], [`Error::SchemaTooNew`]; [`Error::NotPermitted`].
pub async fn check(client: &Client) -> Result<(), Error> {
    let rows = rows(
        client
            .simple_query("select max(version) from postrider.schema_migrations")
            .await?,
    );
    let found = rows
        .first()
        .map(|row| row.try_get(0))
        .transpose()?
        .flatten()
        .and_then(|text| text.parse().ok());
    let (found, newest) = (found.unwrap_or(0), newest());
    match found.cmp(&newest) {
        std::cmp::Ordering::Less => Err(Error::SchemaTooOld {
            found,
            needed: newest,
        }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(Error::SchemaTooNew {
            found,
            known: newest,
        }),
    }
}

/// The migrations from version `from` on as a script for `psql`, with the same bookkeeping as [`up`] does. Empty when
/// there are none.
#[must_use]
pub fn sql(from: i32) -> String {
    let mut script = String::new();
    for migration in MIGRATIONS
        .iter()
        .filter(|migration| migration.version >= from)
    {
        if script.is_empty() {
            script.push_str("-- Postrider's schema. Apply with: psql --no-psqlrc --file THIS_FILE\n\\set ON_ERROR_STOP on\n");
        }
        let bookkeeping = if migration.version == 1 {
            format!("{CREATE_SCHEMA}\n{CREATE_TABLE}\n")
        } else {
            String::new()
        };
        write!(
            script,
            "\n-- {file}\n\nbegin;\nset local lock_timeout = '3s';\nset local statement_timeout = 0;\n\
             do $$ begin\n  if not pg_try_advisory_xact_lock({LOCK}) then\n    \
             raise exception 'another session is migrating postrider; try again later';\n  end if;\nend $$;\n\
             {bookkeeping}\n{sql}\n{row}\ncommit;\n",
            file = migration.file(),
            sql = migration.sql.trim_end(),
            row = migration.bookkeeping(),
        )
        .expect("a string takes whatever is written");
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_a_gap_and_named_plainly() {
        for (at, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(usize::try_from(migration.version), Ok(at + 1));
            let plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(migration.name.bytes().all(plain), "{}", migration.name);
        }
    }

    #[test]
    fn every_file_of_the_folder_is_carried() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/sql/migrations");
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .expect("the folder is there")
            .map(|entry| {
                entry
                    .expect("it can be read")
                    .file_name()
                    .into_string()
                    .expect("a plain name")
            })
            .filter(|name| name.ends_with(".sql"))
            .collect();
        files.sort();

        assert_eq!(files, MIGRATIONS.map(|migration| migration.file()));
    }

    #[test]
    fn the_script_begins_where_it_is_told() {
        assert!(sql(1).contains("create schema if not exists postrider;"));
        assert_eq!(sql(newest() + 1), "");
    }
}
