//! The way to the database.

use std::str::FromStr as _;

use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres_rustls::MakeRustlsConnect;

pub use tokio_postgres::Client;

use super::Error;

/// One session's other half: drives the socket and hands over notifications. Poll it, or nothing moves.
pub type Connection = tokio_postgres::Connection<
    tokio_postgres::Socket,
    <MakeRustlsConnect as MakeTlsConnect<tokio_postgres::Socket>>::Stream,
>;

/// What the command line says about the database.
#[derive(Clone, Default)]
pub struct ConnectOptions {
    /// `--database-url`, a URL or `keyword=value` pairs. Without it the environment decides.
    pub url: Option<String>,
}

impl std::fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConnectOptions(..)")
    }
}

/// How a pool of sessions is to be.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Sessions at most.
    pub max_size: usize,
    /// `set ...` statements that every new session runs first.
    pub session: Vec<String>,
}

/// Knows where and how to connect. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connector {
    config: tokio_postgres::Config,
}

/// Sessions to share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pool(deadpool_postgres::Pool);

impl Pool {
    /// A session, made if need be; it goes back to the pool when dropped.
    ///
    /// # Errors
    ///
    /// [`Error::NoDatabase`].
    pub async fn get(&self) -> Result<deadpool_postgres::Client, Error> {
        self.0.get().await.map_err(|_| Error::connect_timeout("x"))
    }
}

impl Connector {
    /// Reads every setting: the options, then the environment.
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] names the setting that makes no sense.
    pub fn from_environment(options: &ConnectOptions) -> Result<Self, Error> {
        let config = tokio_postgres::Config::from_str(options.url.as_deref().unwrap_or_default())?;
        Ok(Self { config })
    }

    /// Where it connects to, for messages; never the password.
    #[must_use]
    pub fn display(&self) -> String {
        String::new()
    }

    /// One session and the connection to poll.
    ///
    /// # Errors
    ///
    /// [`Error::NoDatabase`].
    pub async fn connect(&self) -> Result<(Client, Connection), Error> {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has the default versions")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        self.config
            .connect(MakeRustlsConnect::new(tls))
            .await
            .map_err(|cause| Error::unreachable("x", cause))
    }

    /// One session whose connection is driven in the background.
    ///
    /// # Errors
    ///
    /// [`Error::NoDatabase`].
    pub async fn open(&self) -> Result<Client, Error> {
        let (client, connection) = self.connect().await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// A pool; it connects when first asked for a session.
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] when the pool cannot be built.
    pub fn pool(&self, _options: PoolOptions) -> Result<Pool, Error> {
        Err(Error::Settings {
            what: "not here yet".to_owned(),
        })
    }
}
