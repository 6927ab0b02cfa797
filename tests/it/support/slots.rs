//! A database for each test, in milliseconds.
//!
//! Making one takes a cluster-wide lock and half a second, so they are kept: a template with the schema in it, named
//! after what it was made from; clones of it, made at first need; and a lock that lends a clone to one test at a time.
//! All locks are advisory ones, keyed by the database's name, and die with the session that holds them. So whatever
//! has nobody's lock is nobody's, and [`sweep`] may drop it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest as _, Sha256};
use tokio_postgres::{Client, Config, NoTls};
use url::Url;

use super::server::Server;

/// First half of the key of every advisory lock here: `post` as a number, to stay clear of others.
const LOCKS: i32 = 0x706f_7374;

/// More than any machine runs tests at a time.
const SLOTS: u32 = 500;

/// A database that is one test's for as long as this value lives.
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) url: String,
    /// A session in it.
    pub(super) client: Client,
    /// Its session holds the lock.
    _lender: Client,
}

/// A clone of the template, empty but for what the schema ships.
pub(super) async fn lend() -> Slot {
    let lender = connect(&Server::get().url).await;
    let template = Template::hold(&lender).await;
    for number in 0..SLOTS {
        let name = format!("postrider_slot_{}_{number}", template.key);
        if !try_lock(&lender, &name).await {
            continue;
        }
        let url = url_of(&name);
        let used = exists(&lender, &name).await;
        if used {
            end_sessions(&lender, &name).await;
        } else {
            template.copy_to(&lender, &name).await;
        }
        let client = connect(&url).await;
        if used {
            run(&client, include_str!("empty.sql")).await;
        }
        return Slot {
            name,
            url,
            client,
            _lender: lender,
        };
    }
    panic!("{SLOTS} databases are lent at this moment: somebody does not give them back");
}

/// A new clone for a test that changes the schema. The caller drops it, or the next [`sweep`] does.
pub(super) async fn make() -> Slot {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let lender = connect(&Server::get().url).await;
    let template = Template::hold(&lender).await;
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let name = format!(
        "postrider_own_{}_{}_{number}",
        template.key,
        std::process::id()
    );
    assert!(
        try_lock(&lender, &name).await,
        "{name} is this process's own name"
    );
    run(
        &lender,
        &format!("drop database if exists {name} with (force)"),
    )
    .await;
    template.copy_to(&lender, &name).await;
    let url = url_of(&name);
    let client = connect(&url).await;
    Slot {
        name,
        url,
        client,
        _lender: lender,
    }
}

/// Drops a database made by [`make`], with whoever is still connected.
pub(super) async fn unmake(name: &str) {
    let maintenance = connect(&Server::get().url).await;
    run(
        &maintenance,
        &format!("drop database if exists {name} with (force)"),
    )
    .await;
}

/// A session to `url` whose other half runs in the background of this test.
pub(super) async fn connect(url: &str) -> Client {
    let mut config: Config = url.parse().expect("the address of a database");
    config.application_name("postrider tests");
    let (client, connection) = config
        .connect(NoTls)
        .await
        .unwrap_or_else(|error| panic!("no session: {error:?}"));
    // How it ends is told to whoever uses the client.
    tokio::spawn(async move { drop(connection.await) });
    client
}

/// Runs statements that must not fail.
pub(super) async fn run(client: &Client, statements: &str) {
    if let Err(error) = client.batch_execute(statements).await {
        panic!("{error:?}\nin: {statements}");
    }
}

/// The database with the schema that the others are copied from.
struct Template {
    key: String,
    name: String,
}

impl Template {
    /// Makes it if it is not there, and keeps it from being swept while `session` lives.
    async fn hold(session: &Client) -> Self {
        let key = key();
        let template = Self {
            name: format!("postrider_tpl_{key}"),
            key,
        };
        let lock = "select pg_advisory_lock_shared($1, hashtext($2))";
        session
            .execute(lock, &[&LOCKS, &template.name])
            .await
            .expect("a lock");
        if exists(session, &template.name).await {
            return template;
        }
        let unlock = "select pg_advisory_unlock_shared($1, hashtext($2))";
        session
            .execute(unlock, &[&LOCKS, &template.name])
            .await
            .expect("an unlock");

        // A session of its own, since the two locks are one name's and would be in each other's way.
        let maker = connect(&Server::get().url).await;
        let lock = "select pg_advisory_lock($1, hashtext($2))";
        maker
            .execute(lock, &[&LOCKS, &template.name])
            .await
            .expect("a lock");
        if !exists(&maker, &template.name).await {
            template.make(&maker).await;
            sweep(&maker, &template.key).await;
        }
        let unlock = "select pg_advisory_unlock($1, hashtext($2))";
        maker
            .execute(unlock, &[&LOCKS, &template.name])
            .await
            .expect("an unlock");

        let lock = "select pg_advisory_lock_shared($1, hashtext($2))";
        session
            .execute(lock, &[&LOCKS, &template.name])
            .await
            .expect("a lock");
        template
    }

    /// Under another name until it is whole, so that one which exists is never half a one.
    async fn make(&self, maker: &Client) {
        let half = format!("{}_half", self.name);
        assert!(
            try_lock(maker, &half).await,
            "whoever makes {half} holds the template's lock, and that is us"
        );
        run(
            maker,
            &format!("drop database if exists {half} with (force)"),
        )
        .await;
        run(
            maker,
            &format!("create database {half} template template0 encoding 'UTF8'"),
        )
        .await;
        let inside = connect(&url_of(&half)).await;
        migrate(&inside).await;
        run(&inside, include_str!("template.sql")).await;
        drop(inside);
        end_sessions(maker, &half).await;
        run(
            maker,
            &format!("alter database {half} with allow_connections false"),
        )
        .await;
        run(
            maker,
            &format!("alter database {half} rename to {}", self.name),
        )
        .await;
    }

    async fn copy_to(&self, session: &Client, name: &str) {
        let version = "select current_setting('server_version_num')::int4";
        let version: i32 = session
            .query_one(version, &[])
            .await
            .expect("a row")
            .try_get(0)
            .expect("a number");
        let strategy = if version >= 150_000 {
            "strategy file_copy"
        } else {
            ""
        };
        run(
            session,
            &format!("create database {name} template {} {strategy}", self.name),
        )
        .await;
    }
}

/// The schema, as a user gets it.
async fn migrate(client: &Client) {
    run(client, "create schema postrider").await;
    for file in migrations() {
        let statements = std::fs::read_to_string(&file).expect("a migration is UTF-8");
        run(client, &statements).await;
    }
}

fn migrations() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/migrations");
    let entries = std::fs::read_dir(folder).expect("the folder of migrations");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
    files.sort();
    files
}

/// Stands for all that a template is made from: eight hexadecimal digits.
fn key() -> String {
    let mut hash = Sha256::new();
    for file in migrations() {
        hash.update(std::fs::read(&file).expect("a migration"));
    }
    hash.update(include_str!("slots.rs"));
    hash.update(include_str!("template.sql"));
    hash.finalize()
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Drops what earlier versions of the schema, and killed tests, have left on a server that stays.
async fn sweep(session: &Client, key: &str) {
    let ours = "select datname::text from pg_database \
                 where datname ~ '^postrider_(tpl|slot|own)_' and not datname ~ ('^postrider_(tpl|slot)_' || $1)";
    for row in session.query(ours, &[&key]).await.expect("databases") {
        let name: String = row.try_get(0).expect("a name");
        if try_lock(session, &name).await {
            run(
                session,
                &format!("drop database if exists {name} with (force)"),
            )
            .await;
            let unlock = "select pg_advisory_unlock($1, hashtext($2))";
            session
                .execute(unlock, &[&LOCKS, &name])
                .await
                .expect("an unlock");
        }
    }
}

async fn try_lock(session: &Client, name: &str) -> bool {
    let lock = "select pg_try_advisory_lock($1, hashtext($2))";
    session
        .query_one(lock, &[&LOCKS, &name])
        .await
        .expect("a row")
        .try_get(0)
        .expect("a boolean")
}

async fn exists(session: &Client, name: &str) -> bool {
    let look = "select exists (select from pg_database where datname = $1::text)";
    session
        .query_one(look, &[&name])
        .await
        .expect("a row")
        .try_get(0)
        .expect("a boolean")
}

/// Those of the test before may still be on their way out, with rows locked.
async fn end_sessions(session: &Client, name: &str) {
    let end = "select pg_terminate_backend(pid, 10000) from pg_stat_activity \
                where datname = $1::text and backend_type = 'client backend'";
    session
        .query(end, &[&name])
        .await
        .expect("its sessions end");
}

fn url_of(database: &str) -> String {
    let mut url = Url::parse(&Server::get().url).expect("the server's address is a URL");
    url.set_path(database);
    url.into()
}
