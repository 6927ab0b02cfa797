//! The flags of every command that needs a database, and the way from them to a session.

use clap::Args;

use crate::store::connect::{Client, ConnectOptions, Connector};
use crate::store::migrate;

/// Flatten this into the arguments of a command that needs the database.
#[derive(Args, Clone, Default)]
pub struct ConnectArgs {
    /// The database, as `postgres://user:password@host:5432/database` or `host=... dbname=...` [default: `DATABASE_URL`,
    /// then `PGHOST`, `PGUSER` and so on]
    #[arg(
        long,
        value_name = "URL",
        env = "POSTRIDER_DATABASE_URL",
        hide_env_values = true,
        global = true,
        help_heading = "Database"
    )]
    pub database_url: Option<String>,
}

// No derive: the URL holds the password.
impl std::fmt::Debug for ConnectArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectArgs").finish_non_exhaustive()
    }
}

impl ConnectArgs {
    /// Where to connect to, all settings read and checked; nothing is connected yet.
    ///
    /// # Errors
    ///
    /// A setting makes no sense ([`store::Error::Settings`](crate::store::Error::Settings)).
    pub fn connector(&self) -> anyhow::Result<Connector> {
        let options = ConnectOptions {
            url: self.database_url.clone(),
        };
        Ok(Connector::from_environment(&options)?)
    }

    /// One session on a database whose schema this program knows.
    ///
    /// # Errors
    ///
    /// No session, or a schema that is missing or of another version.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let client = self.connector()?.open().await?;
        migrate::check(&client).await?;
        Ok(client)
    }
}
