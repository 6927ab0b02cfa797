//! What a failure of the database means for whoever asked: one variant per decision, never per library call.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use tokio_postgres::error::SqlState;

/// Why something asked of the database was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No session with the server. Try again later, or correct the settings.
    #[error("cannot connect to {target}: {why}")]
    NoDatabase {
        /// Where to, without the password.
        target: String,
        /// What stood in the way.
        why: Unreachable,
        /// What the library said.
        #[source]
        cause: Option<tokio_postgres::Error>,
    },
    /// The database has no Postrider schema. Apply the migrations.
    #[error("this database has no postrider schema")]
    SchemaMissing,
    /// The schema lacks migrations which this program relies on. Apply them.
    #[error("the schema is at version {found}, and this program needs version {needed}")]
    SchemaTooOld {
        /// The highest version that is applied.
        found: i32,
        /// The version this program was built for.
        needed: i32,
    },
    /// The schema is ahead of this program. Use a newer program.
    #[error(
        "the schema is at version {found}, and this program knows it only up to version {known}"
    )]
    SchemaTooNew {
        /// The highest version that is applied.
        found: i32,
        /// The highest version this program knows.
        known: i32,
    },
    /// A migration was edited after it had been applied. Restore the file, or the program, it was applied with.
    #[error(
        "migration {file} was applied with another content: recorded checksum {recorded}, here {here}"
    )]
    MigrationChanged {
        /// Its file, such as `0001_core.sql`.
        file: String,
        /// SHA-256 in the database, hex.
        recorded: String,
        /// SHA-256 of what this program carries, hex.
        here: String,
    },
    /// One migration failed and was rolled back; those before it stay applied.
    #[error("migration {file} failed and was rolled back")]
    MigrationFailed {
        /// Its file, such as `0001_core.sql`.
        file: String,
        /// Why.
        #[source]
        cause: Box<Error>,
    },
    /// Somebody else kept migrating until our patience ended. Try again when they are done.
    #[error("another session{} is migrating; gave up after {} ms", in_brackets(*.holder), waited.as_millis())]
    MigrationBusy {
        /// How long this one waited.
        waited: Duration,
        /// The server's process that holds the lock, if it was seen.
        holder: Option<i32>,
    },
    /// The role lacks a privilege. Grant it, or connect as another role.
    #[error("not permitted: {what}")]
    NotPermitted {
        /// The server's words.
        what: String,
    },
    /// The connection settings make no sense. Correct them; trying again does not help.
    #[error("{what}")]
    Settings {
        /// Which setting and why, without the password.
        what: String,
    },
    /// Any other failure of a statement.
    #[error("the database refused a statement")]
    Query(#[source] tokio_postgres::Error),
}

/// What stood between this program and a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// Nothing listens there, or the socket file does not exist.
    Refused,
    /// The host name did not resolve.
    NoSuchHost,
    /// No answer in time.
    Timeout,
    /// TLS could not be agreed on, or the certificate did not convince.
    Tls,
    /// The server wants another password, role or address.
    Authentication,
    /// The server has no database of that name.
    NoSuchDatabase,
    /// The server starts, stops, or has no slot left.
    NotReady,
    /// A session was there and is gone, or something rarer; the cause says what.
    Lost,
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Refused => "connection refused",
            Self::NoSuchHost => "the host name does not resolve",
            Self::Timeout => "no answer in time",
            Self::Tls => "TLS failed",
            Self::Authentication => "authentication failed",
            Self::NoSuchDatabase => "no such database",
            Self::NotReady => "the server takes no connections now",
            Self::Lost => "no session",
        })
    }
}

impl Error {
    /// The same call may succeed later with nobody's help: outage, failover, deadlock, serialization, no free slot.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoDatabase { why, .. } => match why {
                Unreachable::Refused
                | Unreachable::NoSuchHost
                | Unreachable::Timeout
                | Unreachable::NotReady
                | Unreachable::Lost => true,
                Unreachable::Tls | Unreachable::Authentication | Unreachable::NoSuchDatabase => {
                    false
                }
            },
            Self::MigrationBusy { .. } => true,
            Self::MigrationFailed { cause, .. } => cause.is_transient(),
            Self::Query(cause) => {
                self.needs_new_connection()
                    || cause.code().is_some_and(|state| {
                        // 40: rolled back by the server's choice; 53: out of resources; 55P03: a lock; 57014: cancelled.
                        ["40", "53"]
                            .iter()
                            .any(|class| state.code().starts_with(class))
                            || *state == SqlState::LOCK_NOT_AVAILABLE
                            || *state == SqlState::QUERY_CANCELED
                    })
            }
            Self::SchemaMissing
            | Self::SchemaTooOld { .. }
            | Self::SchemaTooNew { .. }
            | Self::MigrationChanged { .. }
            | Self::NotPermitted { .. }
            | Self::Settings { .. } => false,
        }
    }

    /// One of the values is at fault (SQLSTATE class 22 or 23, or it could not even be bound): halve the batch and
    /// try again.
    #[must_use]
    pub fn is_data_error(&self) -> bool {
        let Self::Query(cause) = self else {
            return false;
        };
        match cause.code() {
            Some(state) => ["22", "23"]
                .iter()
                .any(|class| state.code().starts_with(class)),
            // The library has no public kind for a value it cannot bind, only this wording.
            None => cause.to_string().starts_with("error serializing parameter"),
        }
    }

    /// A statement that this session prepared is not there, or one that it did not prepare is (26000, 42P05): a pooler stands
    /// between, and hands out another session each time.
    #[must_use]
    pub fn is_of_a_pooler(&self) -> bool {
        matches!(self, Self::Query(cause) if cause.code().is_some_and(|state| {
            [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT].contains(state)
        }))
    }

    /// Another transaction held a lock for too long (55P03). Nothing was done.
    #[must_use]
    pub fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Query(cause) if cause.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }

    /// The session is of no more use: it is closed, going away, or on a server that became read-only (25006, after a
    /// failover), where a cheap `select 1` would still succeed. Drop it, whatever a pool thinks.
    #[must_use]
    pub fn needs_new_connection(&self) -> bool {
        match self {
            Self::NoDatabase { .. } => true,
            Self::Query(cause) => session_is_over(cause),
            Self::MigrationFailed { cause, .. } => cause.needs_new_connection(),
            Self::SchemaMissing
            | Self::SchemaTooOld { .. }
            | Self::SchemaTooNew { .. }
            | Self::MigrationChanged { .. }
            | Self::MigrationBusy { .. }
            | Self::NotPermitted { .. }
            | Self::Settings { .. } => false,
        }
    }

    /// The server takes no writes: a standby, or a primary that was replaced.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        let cause = if let Self::MigrationFailed { cause, .. } = self {
            cause
        } else {
            self
        };
        matches!(cause, Self::Query(cause) if cause.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION))
    }

    /// A failure on the way to a session with `target` (without its password).
    pub(crate) fn unreachable(target: &str, cause: tokio_postgres::Error) -> Self {
        Self::NoDatabase {
            target: target.to_owned(),
            why: why_unreachable(&cause),
            cause: Some(cause),
        }
    }

    /// No session with `target` within the limit.
    pub(crate) fn connect_timeout(target: &str) -> Self {
        Self::NoDatabase {
            target: target.to_owned(),
            why: Unreachable::Timeout,
            cause: None,
        }
    }
}

impl From<tokio_postgres::Error> for Error {
    fn from(cause: tokio_postgres::Error) -> Self {
        let Some(db) = cause.as_db_error() else {
            return Self::Query(cause);
        };
        let state = db.code();
        if *state == SqlState::INSUFFICIENT_PRIVILEGE {
            return Self::NotPermitted {
                what: db.message().to_owned(),
            };
        }
        // The server names the missing schema or table in its message only, but it quotes the name as the statement has it.
        let missing = [SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_TABLE].contains(state);
        if missing && db.message().contains("postrider") {
            return Self::SchemaMissing;
        }
        Self::Query(cause)
    }
}

fn in_brackets(pid: Option<i32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

/// Whether a session can do no more work after this failure.
fn session_is_over(cause: &tokio_postgres::Error) -> bool {
    if cause.is_closed() {
        return true;
    }
    match cause.code() {
        Some(state) => {
            state.code().starts_with("08")
                || [
                    SqlState::READ_ONLY_SQL_TRANSACTION,
                    SqlState::ADMIN_SHUTDOWN,
                    SqlState::CRASH_SHUTDOWN,
                    SqlState::CANNOT_CONNECT_NOW,
                ]
                .contains(state)
        }
        None => io_cause(cause).is_some(),
    }
}

/// Sorts a failure to connect by what a person would do about it.
fn why_unreachable(cause: &tokio_postgres::Error) -> Unreachable {
    if let Some(state) = cause.code() {
        return match state.code() {
            "3D000" => Unreachable::NoSuchDatabase,
            code if code.starts_with("28") => Unreachable::Authentication,
            // 53300 no slot, 57P03 starting or stopping, 57P01 and 57P02 shut down meanwhile.
            code if code.starts_with("53") || code.starts_with("57P") => Unreachable::NotReady,
            _ => Unreachable::Lost,
        };
    }
    // The library keeps its kinds to itself; their wording is the only way to tell them apart.
    let said = cause.to_string();
    let detail = cause.source().map(ToString::to_string).unwrap_or_default();
    if said.contains("TLS") {
        return Unreachable::Tls;
    }
    if said.contains("authentication") || detail.contains("password missing") {
        return Unreachable::Authentication;
    }
    match io_cause(cause).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Unreachable::Refused,
        Some(io::ErrorKind::TimedOut) => Unreachable::Timeout,
        Some(_) if detail.contains("lookup address") => Unreachable::NoSuchHost,
        Some(_) | None => Unreachable::Lost,
    }
}

/// The I/O error at the bottom, if there is one.
fn io_cause(cause: &tokio_postgres::Error) -> Option<&io::Error> {
    cause
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>())
}
