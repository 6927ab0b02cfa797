//! A database for each test, in milliseconds.
//!
//! Making one takes a cluster-wide lock and half a second, so they are kept: clones of a template, made at first need,
//! and a lock that lends a clone to one test at a time. All locks here are advisory ones, keyed by the database's name,
//! and die with the session that holds them. So whatever has nobody's lock is nobody's, and may be dropped.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio_postgres::{Client, Config, NoTls};
use url::Url;

use super::server::Server;
use super::tell;
use super::template::Template;

/// First half of the key of every advisory lock here: `test` as a number, to stay clear of others.
pub(super) const LOCKS: i32 = 0x7465_7374;

/// More than any machine runs tests at a time.
const SLOTS: u32 = 500;

/// A database that is one test's for as long as this value lives.
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) url: String,
    /// A session in it.
    pub(super) client: Client,
    /// Its session holds the lock.
    lender: Client,
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
        let client = prepare(&lender, &template, &name).await;
        return Slot {
            url: url_of(&name),
            name,
            client,
            lender,
        };
    }
    panic!("{SLOTS} databases are lent at this moment: somebody does not give them back");
}

/// The same clone, as the next test would get it.
pub(super) async fn lend_again(slot: Slot) -> Slot {
    let Slot {
        name,
        url,
        client,
        lender,
    } = slot;
    drop(client);
    let template = Template::hold(&lender).await;
    let client = prepare(&lender, &template, &name).await;
    Slot {
        name,
        url,
        client,
        lender,
    }
}

/// Makes the clone, or brings a used one back to what the template is. Returns a session in it.
async fn prepare(lender: &Client, template: &Template, name: &str) -> Client {
    if !exists(lender, name).await {
        template.copy_to(lender, name).await;
        return connect(&url_of(name)).await;
    }
    end_sessions(lender, name).await;
    // Before there is a session, which would keep the old ones.
    run(lender, &format!("alter database {name} reset all")).await;
    let session = connect(&url_of(name)).await;
    let Err(error) = session.batch_execute(include_str!("empty.sql")).await else {
        return session;
    };
    let reason = error
        .as_db_error()
        .map_or_else(|| error.to_string(), |error| error.message().to_owned());
    tell(&format!("{name} has to be made anew: {reason}"));
    run(lender, &format!("drop database {name} with (force)")).await;
    template.copy_to(lender, name).await;
    connect(&url_of(name)).await
}

/// A new clone for a test that changes the schema. The caller drops it, or the making of the next template does.
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
        lender,
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

pub(super) async fn try_lock(session: &Client, name: &str) -> bool {
    let lock = "select pg_try_advisory_lock($1, hashtext($2))";
    session
        .query_one(lock, &[&LOCKS, &name])
        .await
        .expect("a row")
        .try_get(0)
        .expect("a boolean")
}

pub(super) async fn exists(session: &Client, name: &str) -> bool {
    let look = "select exists (select from pg_database where datname = $1::text)";
    session
        .query_one(look, &[&name])
        .await
        .expect("a row")
        .try_get(0)
        .expect("a boolean")
}

/// Those of the test before may still be on their way out, with rows locked.
pub(super) async fn end_sessions(session: &Client, name: &str) {
    let end = "select pg_terminate_backend(pid, 10000) from pg_stat_activity \
                where datname = $1::text and backend_type = 'client backend'";
    session
        .query(end, &[&name])
        .await
        .expect("its sessions end");
}

pub(super) fn url_of(database: &str) -> String {
    let mut url = Url::parse(&Server::get().url).expect("the server's address is a URL");
    url.set_path(database);
    url.into()
}
