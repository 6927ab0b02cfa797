//! From a failure to what the caller sees: an exit code, one line that says what failed, one that says what to do next.
//!
//! Owns the table of exit codes, which is a contract with scripts. Whatever fails, stderr is never empty.
#![allow(
    clippy::print_stderr,
    reason = "this is where a failure reaches the terminal"
)]

use std::process::ExitCode;

use crate::cluster::ClusterError;
use crate::store::{self, Unreachable};

/// How the process ends. Scripts may rely on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: all of it was done.
    Done,
    /// 1: it ran, and something in it failed: a delivery, a check, a verification.
    Failures,
    /// 2: the command line or a setting makes no sense.
    Usage,
    /// 3: the database cannot be reached.
    NoDatabase,
    /// 4: the schema is missing or of another version.
    Schema,
    /// 5: the database role lacks a privilege.
    NotPermitted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0_u8,
            Exit::Failures => 1,
            Exit::Usage => 2,
            Exit::NoDatabase => 3,
            Exit::Schema => 4,
            Exit::NotPermitted => 5,
        })
    }
}

/// A failure whose exit code and next step are known where it happens.
///
/// For everything that [`report`] cannot tell from the error's type: `Err(Failure::usage("...", "...").into())`.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Failure {
    exit: Exit,
    what: String,
    hint: String,
}

impl Failure {
    /// `what` failed, and `hint` is the next step. Neither holds a secret, nor ends in a full stop.
    pub fn new(exit: Exit, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            exit,
            what: what.into(),
            hint: hint.into(),
        }
    }

    /// The command line or a setting is at fault.
    pub fn usage(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what, hint)
    }
}

/// Prints `error: ...` and `hint: ...` to stderr and chooses the exit code.
#[must_use]
pub fn report(error: &anyhow::Error) -> Exit {
    let (exit, hint) = judge(error);
    eprintln!("error: {}", chain(error));
    eprintln!("hint: {hint}");
    exit
}

/// Makes `print!` into a closed pipe end the process quietly, where the standard library would panic: a reader of stdout
/// who left early (`postrider ... | head`) is no failure.
pub fn end_quietly_when_stdout_closes() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let said = info
            .payload()
            .downcast_ref::<String>()
            .map_or("", String::as_str);
        if said.starts_with("failed printing to stdout") && said.contains("Broken pipe") {
            std::process::exit(0);
        }
        usual(info);
    }));
}

/// The error and its causes in one line, without a cause that its parent already quotes.
fn chain(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let said = cause.to_string();
        if line.contains(&said) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&said);
    }
    line
}

/// The exit code and the next step.
fn judge(error: &anyhow::Error) -> (Exit, String) {
    if let Some(failure) = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Failure>())
    {
        return (failure.exit, failure.hint.clone());
    }
    if let Some(failure) = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<store::Error>())
    {
        let (exit, hint) = judge_store(failure);
        return (exit, hint.to_owned());
    }
    // Its messages say themselves what to install or to stop.
    if error.chain().any(|cause| cause.is::<ClusterError>()) {
        return (
            Exit::NoDatabase,
            "put that right and run this again".to_owned(),
        );
    }
    (
        Exit::Failures,
        "run it again with --log debug to see more".to_owned(),
    )
}

fn judge_store(error: &store::Error) -> (Exit, &'static str) {
    use store::Error as E;
    match error {
        E::NoDatabase { why, .. } => (Exit::NoDatabase, way_to_the_database(*why)),
        E::SchemaMissing | E::SchemaTooOld { .. } => (
            Exit::Schema,
            "apply the migrations with `postrider migrate up`, or review them first with `postrider migrate sql`",
        ),
        E::SchemaTooNew { .. } => (
            Exit::Schema,
            "use a postrider as new as the one that migrated this database",
        ),
        E::MigrationChanged { .. } => (
            Exit::Schema,
            "use the postrider that applied it; an applied migration never changes. `postrider migrate status` lists them",
        ),
        E::MigrationFailed { cause, .. } => judge_store(cause),
        E::MigrationBusy { .. } => (
            Exit::Failures,
            "wait for the other migration to end and run this again; `postrider migrate status` shows how far it is",
        ),
        E::NotPermitted { .. } => (
            Exit::NotPermitted,
            "let the owner of the schema `postrider` call postrider.grant_operator('your role') (grant_worker for workers, grant_producer to queue only), or connect as the owner",
        ),
        E::Settings { .. } => (
            Exit::Usage,
            "give --database-url or POSTRIDER_DATABASE_URL like postgres://user:password@host:5432/database (special characters percent-encoded), or set PGHOST, PGUSER and so on",
        ),
        E::Query(_) if error.is_read_only() => (
            Exit::NoDatabase,
            "connect to the primary; with several hosts in the URL, target_session_attrs=read-write finds it",
        ),
        E::Query(_) if error.needs_new_connection() => (
            Exit::NoDatabase,
            "the connection was lost on the way; run this again when the server is up",
        ),
        E::Query(_) if error.is_of_a_pooler() => (
            Exit::Failures,
            "a pooler such as PgBouncer stands in between: start the worker with --pooler, or connect to the server itself",
        ),
        E::Query(_) => (
            Exit::Failures,
            "see the server's message above; `postrider migrate status` tells whether the schema is as it should be",
        ),
    }
}

fn way_to_the_database(why: Unreachable) -> &'static str {
    match why {
        Unreachable::Refused => {
            "start PostgreSQL, or point --database-url (or POSTRIDER_DATABASE_URL, DATABASE_URL, PGHOST and PGPORT) at a running one"
        }
        Unreachable::NoSuchHost => {
            "check the host name in --database-url, POSTRIDER_DATABASE_URL, DATABASE_URL or PGHOST"
        }
        Unreachable::Timeout => {
            "check host, port and firewall; connect_timeout=SECONDS in the URL (or PGCONNECT_TIMEOUT) waits longer"
        }
        Unreachable::Tls => {
            "check sslmode and sslrootcert (or PGSSLMODE and PGSSLROOTCERT) against what the server offers"
        }
        Unreachable::Authentication => {
            "check user and password (in the URL, PGUSER and PGPASSWORD, or ~/.pgpass) and the server's pg_hba.conf"
        }
        Unreachable::NoSuchDatabase => {
            "create it with `createdb`, or name another one in the URL or PGDATABASE"
        }
        Unreachable::NotReady => {
            "try again in a moment; if it stays, the server is out of connections (max_connections)"
        }
        Unreachable::Lost => {
            "check that a PostgreSQL server, and not something else, listens at this address"
        }
    }
}
