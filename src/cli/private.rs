//! What `demo` and `dev` share: a private PostgreSQL with the schema in it, and a port for a receiver.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tokio::net::TcpSocket;

use super::{Exit, Failure};
use crate::cluster::{Binaries, Cluster, ClusterError, Data, Options};
use crate::store::connect::{Client, ConnectOptions, Connector};
use crate::store::migrate::{self, UpOptions};

/// The database in a private server that is used: one that is always there.
const DATABASE: &str = "postgres";

/// Where the server's programs are.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct ServerArgs {
    /// Use the PostgreSQL server programs in this folder instead of looking for them
    #[arg(long, value_name = "DIR", hide = true)]
    server_binaries: Option<PathBuf>,
}

impl ServerArgs {
    /// The programs to use.
    pub(super) fn binaries(&self) -> anyhow::Result<Binaries> {
        match &self.server_binaries {
            Some(folder) => Binaries::find_in([folder.clone()]),
            None => Binaries::find(),
        }
        .map_err(failure)
    }
}

/// Starts a server and waits until it takes connections.
pub(super) async fn start(data: Data, binaries: Binaries) -> anyhow::Result<Cluster> {
    start_with(data, binaries, Vec::new()).await
}

/// Starts a server with settings of its own, such as `("fsync", "on")`.
pub(super) async fn start_with(
    data: Data,
    binaries: Binaries,
    settings: Vec<(String, String)>,
) -> anyhow::Result<Cluster> {
    let options = Options {
        data,
        binaries: Some(binaries),
        settings,
    };
    tokio::task::spawn_blocking(|| Cluster::start(options))
        .await?
        .map_err(failure)
}

/// Stops it; its folder goes if it is a temporary one.
pub(super) async fn stop(cluster: Cluster) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(|| cluster.stop())
        .await?
        .map_err(failure)
}

/// Where to connect to.
pub(super) fn url(cluster: &Cluster) -> String {
    cluster.url(DATABASE)
}

/// A session on a database with the schema in it, whatever the environment says.
pub(super) async fn open(url: &str) -> anyhow::Result<Client> {
    let options = ConnectOptions {
        url: Some(url.to_owned()),
    };
    let mut client = Connector::new(&options, &|_| None)?.open().await?;
    migrate::up(&mut client, UpOptions::default(), |_| {}).await?;
    Ok(client)
}

/// A loopback port that stays ours while no receiver has it.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    /// Bound, and never listening: connections are refused, others get another port, and a child that sets `SO_REUSEADDR` may
    /// listen on it. Only Linux has it so.
    _held: Option<TcpSocket>,
}

impl Port {
    /// This port, or any free one for 0.
    pub(super) fn take(number: u16) -> std::io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::LOCALHOST, number).into())?;
        Ok(Self {
            number: socket.local_addr()?.port(),
            _held: cfg!(target_os = "linux").then_some(socket),
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

/// The address in what a receiver says first, once it listens.
pub(super) fn listening_on(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("listening on ")?;
    rest.split(' ').next()
}

/// With its exit code and the next step.
pub(super) fn failure(error: ClusterError) -> anyhow::Error {
    use ClusterError as E;
    let (exit, hint) = match &error {
        E::BinariesMissing | E::BinariesTooOld { .. } => (
            Exit::NoDatabase,
            "install the server programs and run this again; no database has to be set up, and none of yours is used",
        ),
        E::InUse { .. } => (
            Exit::Failures,
            "one folder holds one running server; --data names another folder",
        ),
        E::Folder { .. } => (
            Exit::NoDatabase,
            "`postrider dev --data DIR` takes another folder; a temporary one is made in TMPDIR",
        ),
        E::NotOurs { .. } | E::NotTraversable { .. } => {
            (Exit::Usage, "--data names the folder for its data")
        }
        E::NoAccount
        | E::Initdb { .. }
        | E::Exited { .. }
        | E::NotReady { .. }
        | E::NotStopped { .. }
        | E::NotRunnable { .. }
        | E::NoPort(_) => (
            Exit::NoDatabase,
            "a server of your own works as well: give its URL to `postrider migrate` and `postrider worker`",
        ),
    };
    let what = anyhow::Error::new(error);
    Failure::new(exit, format!("{what:#}"), hint).into()
}
