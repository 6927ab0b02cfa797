//! The way to the database: from settings to a session, or to a pool of them.
//!
//! The client library reads no `PG*` variable and refuses `sslmode=verify-full`, `sslrootcert` and `passfile`; this
//! module gives all of them libpq's meaning (PostgreSQL manual, "Database Connection Control Functions"). It owns the
//! trying of servers and the time this may take. How settings are written is `params`' business, what they mean is
//! `servers`'.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use rand::seq::SliceRandom as _;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::Socket;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres_rustls::MakeRustlsConnect;

pub use tokio_postgres::Client;

use super::params::Params;
use super::servers::{Order, Server, Targets};
use super::tls;
use super::{Error, Unreachable};

/// One session's other half: drives the socket and hands over notifications. Poll it, or nothing moves.
pub type Connection =
    tokio_postgres::Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// A session lent by a [`Pool`].
pub type Session = deadpool_postgres::Client;

/// What the command line says about the database.
#[derive(Clone, Default)]
pub struct ConnectOptions {
    /// `--database-url`, a URL or `keyword=value` pairs. Without it the environment decides.
    pub url: Option<String>,
}

// No derive: the URL holds the password.
impl std::fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("url", &self.url.as_ref().map(|_| "..."))
            .finish()
    }
}

/// How a pool of sessions is to be.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Sessions at most.
    pub max_size: usize,
    /// `set ...` statements that every new session runs before it is lent for the first time.
    pub session: Vec<String>,
}

/// Knows where and how to connect; connects to nothing by itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connector(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    targets: Targets,
    tls: Tls,
    params: Params,
}

#[derive(Clone)]
struct Tls(MakeRustlsConnect);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Connector {
    /// Reads and checks every setting: the options, then the environment, then the password file.
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] names the setting that makes no sense; trying again does not help.
    pub fn from_environment(options: &ConnectOptions) -> Result<Self, Error> {
        #[allow(
            clippy::disallowed_methods,
            reason = "the one place where the environment is read for the database"
        )]
        let lookup = |name: &str| std::env::var(name).ok();
        Self::new(options, &lookup)
    }

    /// The same with an environment of the caller's own.
    ///
    /// # Errors
    ///
    /// As [`from_environment`](Self::from_environment).
    pub fn new(
        options: &ConnectOptions,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let params = Params::resolve(options.url.as_deref(), lookup)?;
        let targets = Targets::from_params(&params, lookup)?;
        let tls = tls::client_config(targets.mode, &targets.files)?;
        Ok(Self(Arc::new(Inner {
            targets,
            tls: Tls(MakeRustlsConnect::new(tls)),
            params,
        })))
    }

    /// Where it connects to, such as `me@db.example:5432/shop`; never the password.
    #[must_use]
    pub fn display(&self) -> String {
        self.0.targets.display.clone()
    }

    /// Where a libpq setting such as `host` or `user` was said: a flag, a variable, or `default`.
    #[must_use]
    pub fn source(&self, setting: &str) -> &'static str {
        self.0.params.source(setting)
    }

    /// One session, and the connection that the caller must poll (and so sees notifications).
    ///
    /// # Errors
    ///
    /// [`Error::NoDatabase`] about the server that was tried last.
    pub async fn connect(&self) -> Result<(Client, Connection), Error> {
        let dialled = match self.total_limit() {
            Some(limit) => timeout(limit, self.dial())
                .await
                .map_err(|_| Error::connect_timeout(&self.0.targets.display))?,
            None => self.dial().await,
        };
        dialled.map_err(|cause| Error::unreachable(&self.0.targets.display, cause))
    }

    /// One session whose connection is driven in the background until the session is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::NoDatabase`].
    pub async fn open(&self) -> Result<Client, Error> {
        let (client, connection) = self.connect().await?;
        drive(connection);
        Ok(client)
    }

    /// Asks the server to cancel what a session is doing, which then fails there if it has not ended before.
    ///
    /// # Errors
    ///
    /// [`Error::NoDatabase`] when the server cannot be asked.
    pub async fn cancel(&self, session: &Client) -> Result<(), Error> {
        let token = session.cancel_token();
        Ok(token.cancel_query(self.0.tls.0.clone()).await?)
    }

    /// A pool; it connects when it is first asked for a session.
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] when the pool cannot be built.
    pub fn pool(&self, options: PoolOptions) -> Result<Pool, Error> {
        // Fast: a returned session is asked nothing. Whether it is still of use is told by the errors of its work.
        let manager = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let manager = Manager::from_connect(tokio_postgres::Config::new(), self.clone(), manager);
        let preparation: Arc<str> = options.session.join(";\n").into();
        let prepare = Hook::async_fn(move |session: &mut deadpool_postgres::ClientWrapper, _| {
            let preparation = Arc::clone(&preparation);
            Box::pin(async move {
                session
                    .batch_execute(&preparation)
                    .await
                    .map_err(HookError::Backend)
            })
        });
        let pool = deadpool_postgres::Pool::builder(manager)
            .max_size(options.max_size)
            .timeouts(Timeouts {
                wait: None,
                create: self.total_limit(),
                recycle: None,
            })
            .post_create(prepare)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| Error::Settings {
                what: format!("the pool cannot be built: {error}"),
            })?;
        Ok(Pool {
            pool,
            target: self.display().into(),
        })
    }

    /// Tries the servers in turn. The last one has no limit of its own: the caller's limit over all ends it.
    async fn dial(&self) -> Result<(Client, Connection), tokio_postgres::Error> {
        let mut servers: Vec<&Server> = self.0.targets.servers.iter().collect();
        if let Order::Random = self.0.targets.order {
            servers.shuffle(&mut rand::rng());
        }
        let (last, before) = servers
            .split_last()
            .expect("settings without a server are refused");
        for server in before {
            let attempt = server.config.connect(self.0.tls.0.clone());
            let outcome = match self.0.targets.limit {
                Some(limit) => timeout(limit, attempt).await.ok(),
                None => Some(attempt.await),
            };
            if let Some(Ok(session)) = outcome {
                return Ok(session);
            }
            tracing::debug!(
                host = server.host,
                port = server.port,
                "no session with this server, trying the next"
            );
        }
        last.config.connect(self.0.tls.0.clone()).await
    }

    fn total_limit(&self) -> Option<Duration> {
        let servers = u32::try_from(self.0.targets.servers.len()).unwrap_or(u32::MAX);
        self.0
            .targets
            .limit
            .map(|limit| limit.saturating_mul(servers))
    }
}

impl deadpool_postgres::Connect for Connector {
    fn connect(
        &self,
        // The pool's own configuration is empty: a connector knows several servers.
        _config: &tokio_postgres::Config,
    ) -> std::pin::Pin<
        Box<
            dyn Future<Output = Result<(Client, JoinHandle<()>), tokio_postgres::Error>>
                + Send
                + '_,
        >,
    > {
        Box::pin(async {
            let (client, connection) = self.dial().await?;
            Ok((client, drive(connection)))
        })
    }
}

/// Sessions to share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pool {
    pool: deadpool_postgres::Pool,
    target: Arc<str>,
}

impl Pool {
    /// A session, made if need be; waits while all are lent. Dropped, it goes back.
    ///
    /// # Errors
    ///
    /// [`Error::NoDatabase`], or what a `set` statement of the options met.
    pub async fn get(&self) -> Result<Session, Error> {
        self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(cause) => Error::unreachable(&self.target, cause),
            PoolError::Timeout(_) => Error::connect_timeout(&self.target),
            PoolError::PostCreateHook(HookError::Backend(cause)) => cause.into(),
            PoolError::PostCreateHook(HookError::Message(_))
            | PoolError::Closed
            | PoolError::NoRuntimeSpecified => Error::NoDatabase {
                target: self.target.to_string(),
                why: Unreachable::Lost,
                cause: None,
            },
        })
    }

    /// Ends a session instead of giving it back: for [`Error::needs_new_connection`].
    pub fn discard(session: Session) {
        drop(Session::take(session));
    }
}

/// Polls a connection until its session is dropped or lost.
fn drive(connection: Connection) -> JoinHandle<()> {
    tokio::spawn(async move {
        // Whoever uses the session meets the same error and handles it.
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a database connection ended");
        }
    })
}
