//! A private PostgreSQL server: made, started and stopped by us, for `demo`, `dev` and the tests.
//!
//! Owns the server's folder, its process and its end. It does not speak SQL: whoever wants a
//! connection takes [`Cluster::url`] to the store. Everything here blocks; callers on a runtime use
//! `spawn_blocking`.
//!
//! A folder holds `data` (the server's own), `server.log`, `password` and `owner` (the process that
//! started the server). Only `data` belongs to the account that the server runs as, so that this
//! account cannot make us follow a link of its choice.

mod account;
mod binaries;
mod error;
mod folder;
mod leftover;
mod server;

pub use binaries::Binaries;
pub use error::ClusterError;

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use account::Account;
use folder::Folder;
use server::Server;

/// The superuser of every cluster of ours.
const SUPERUSER: &str = "postrider";

/// How many free ports are tried: another process may take one between our look and the bind.
const PORT_TRIES: u32 = 4;

/// What kind of cluster to start.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where its data live, and for how long.
    pub data: Data,
    /// Server settings such as `("max_connections", "200")`; a later one wins over an earlier.
    pub settings: Vec<(String, String)>,
    /// The programs to use; `None` looks for them with [`Binaries::find`].
    pub binaries: Option<Binaries>,
}

/// Where a cluster's data live, and for how long.
#[derive(Clone, Debug, Default)]
pub enum Data {
    /// In a folder that goes away with the cluster. Such a server never waits for the disk
    /// (`fsync = off`) unless the settings say otherwise.
    #[default]
    Temporary,
    /// In this folder, which is made if it is missing and found again by the next start.
    Kept(PathBuf),
}

/// A running server of our own. Dropping it stops the server.
#[derive(Debug)]
pub struct Cluster {
    // Fields are dropped in this order: the server must have ended before its folder goes.
    server: Server,
    folder: Folder,
    password: String,
}

impl Cluster {
    /// Makes the folder if needed, starts the server and waits until it takes connections.
    ///
    /// A server that an ended process left behind in a kept folder is stopped first.
    ///
    /// # Errors
    ///
    /// Each variant of [`ClusterError`] says what the user can do about it.
    pub fn start(options: Options) -> Result<Self, ClusterError> {
        let binaries = match options.binaries {
            Some(binaries) => binaries,
            None => Binaries::find()?,
        };
        let account = Account::for_server()?;
        let folder = match options.data {
            Data::Temporary => Folder::temporary(account.as_ref())?,
            Data::Kept(path) => Folder::kept(path, account.as_ref())?,
        };

        leftover::clear(&folder)?;
        let password = folder.initialise(&binaries, account.as_ref())?;

        let mut settings = folder.default_settings();
        settings.extend(options.settings);
        let server = start_on_a_free_port(&binaries, &folder, account.as_ref(), &settings)?;
        folder.claim()?;
        Ok(Self {
            server,
            folder,
            password,
        })
    }

    /// The address of one of its databases, with the superuser's password in it; `postgres` always
    /// exists.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        let mut url = url::Url::parse("postgresql://127.0.0.1").expect("a literal that parses");
        url.set_username(SUPERUSER).expect("the URL has a host");
        url.set_password(Some(&self.password))
            .expect("the URL has a host");
        url.set_port(Some(self.server.port()))
            .expect("the URL has a host");
        url.path_segments_mut()
            .expect("the URL has a host")
            .push(database);
        url.into()
    }

    /// The loopback port it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Process id of the server.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// The folder that holds `data` and `server.log`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Lets the server run on when this process has ended, and its folder stay.
    ///
    /// The next start in this folder stops it and takes over; by hand, a signal to [`pid`](Self::pid) does.
    pub fn leave_running(self) {
        // Its drop would stop the server.
        let mut cluster = ManuallyDrop::new(self);
        cluster.server.dismiss_guard();
        cluster.folder.keep();
    }

    /// Ends open sessions, stops the server and removes a temporary folder.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NotStopped`] if the server had to be ended by force (its data recover at the
    /// next start), [`ClusterError::Folder`] if the folder could not be removed.
    pub fn stop(mut self) -> Result<(), ClusterError> {
        self.server.stop()?;
        self.folder.release()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let stopped = self.server.stop().and_then(|()| self.folder.release());
        if let Err(error) = stopped {
            tracing::warn!(%error, "the private PostgreSQL left something behind");
        }
    }
}

/// The usual place for a kept cluster called `name`: in the user's data folder, or in
/// `/var/lib/postrider` when the server's account could not reach that.
///
/// # Errors
///
/// [`ClusterError::NoAccount`] if we are root and there is no account to run the server.
pub fn usual_folder(name: &str) -> Result<PathBuf, ClusterError> {
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let reachable = match (home, Account::for_server()?) {
        (Some(home), Some(account)) if account.barrier(&home).is_none() => Some(home),
        (_, Some(_)) => None,
        (home, None) => home,
    };
    Ok(match reachable {
        Some(home) => home.join(".local/share/postrider").join(name),
        None => Path::new("/var/lib/postrider").join(name),
    })
}

fn start_on_a_free_port(
    binaries: &Binaries,
    folder: &Folder,
    account: Option<&Account>,
    settings: &[(String, String)],
) -> Result<Server, ClusterError> {
    let mut tries = 1;
    loop {
        match Server::start(binaries, folder, account, settings) {
            Err(ClusterError::Exited { ref log, .. })
                if tries < PORT_TRIES && lost_the_port(log) =>
            {
                tries += 1
            }
            outcome => return outcome,
        }
    }
}

fn lost_the_port(log: &str) -> bool {
    log.contains("Address already in use")
}
