//! What can go wrong with a private server, one variant per thing that a user would do about it.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use super::binaries::OLDEST_MAJOR;

/// Why a private PostgreSQL could not be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// No folder has both `initdb` and `postgres`.
    #[error(
        "no PostgreSQL server programs (initdb, postgres) on this machine, neither on PATH nor in the usual folders. \
         Install them (Debian, Ubuntu: `apt-get install postgresql`; Fedora: `dnf install postgresql-server`; \
         macOS: `brew install postgresql`), or use a server in a container: `docker compose up`"
    )]
    BinariesMissing,

    /// There are programs, but of a version that Postrider does not support.
    #[error("PostgreSQL {major} in {} is too old: install version {OLDEST_MAJOR} or later", folder.display())]
    BinariesTooOld {
        /// Where the newest ones are.
        folder: PathBuf,
        /// Their major version.
        major: u32,
    },

    /// PostgreSQL refuses to run as root, and there is nobody else.
    #[error(
        "PostgreSQL does not run as root, and there is neither a user `postgres` nor a user `nobody`: \
         create one (`useradd --system postgres`), or run this as an ordinary user"
    )]
    NoAccount,

    /// The account that the server runs as cannot get to the folder.
    #[error(
        "the server runs as user `{account}`, who may not enter {}, so {} cannot hold its data: \
         choose a folder elsewhere, such as /var/lib/postrider, or run `chmod o+x {}`",
        barrier.display(), folder.display(), barrier.display()
    )]
    NotTraversable {
        /// The folder that was asked for.
        folder: PathBuf,
        /// The ancestor that stops the account.
        barrier: PathBuf,
        /// Name of the account.
        account: String,
    },

    /// The folder has something else in it, which we leave alone.
    #[error("{} is not empty and holds no cluster of Postrider: choose an empty or a new folder", folder.display())]
    NotOurs {
        /// The folder that was asked for.
        folder: PathBuf,
    },

    /// Another running process of ours has a server in this folder.
    #[error(
        "{} is in use: process {owner} runs a PostgreSQL (process {server}) in it. \
         Stop process {owner} first, or choose another folder",
        folder.display()
    )]
    InUse {
        /// The folder that was asked for.
        folder: PathBuf,
        /// The process that started the server.
        owner: u32,
        /// The server itself.
        server: u32,
    },

    /// Making the data folder failed.
    #[error("initdb could not make {}:\n{output}", folder.display())]
    Initdb {
        /// The data folder.
        folder: PathBuf,
        /// What it said.
        output: String,
    },

    /// The server ended before it was ready.
    #[error("PostgreSQL ended while it was starting ({status}). Its log ends with:\n{log}")]
    Exited {
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },

    /// The server runs, but took no connections in time.
    #[error("PostgreSQL took no connections within {seconds} seconds. Its log ends with:\n{log}")]
    NotReady {
        /// How long we waited.
        seconds: u64,
        /// The last lines of its log.
        log: String,
    },

    /// The server did not end in time when asked to.
    #[error("PostgreSQL (process {pid}) did not stop in time; look at {}", log.display())]
    NotStopped {
        /// Its process id.
        pid: u32,
        /// Its log file.
        log: PathBuf,
    },

    /// A program could not be run at all.
    #[error("cannot run {}", program.display())]
    NotRunnable {
        /// Which one.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },

    /// The system refused something that we need in the folder.
    #[error("cannot {doing} {}", path.display())]
    Folder {
        /// A verb.
        doing: &'static str,
        /// What it was to be done to.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },

    /// There is no loopback port for the server.
    #[error("no free port on 127.0.0.1")]
    NoPort(#[source] io::Error),
}

impl ClusterError {
    /// For `map_err`: names the step and the path that an I/O error belongs to.
    pub(super) fn folder(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Folder {
            doing,
            path,
            source,
        }
    }

    /// For `map_err`: names the program that an I/O error belongs to.
    pub(super) fn not_runnable(program: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let program = program.into();
        move |source| Self::NotRunnable { program, source }
    }
}
