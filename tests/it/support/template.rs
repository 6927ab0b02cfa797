//! The template: a database with the schema as it ships, from which those of the tests are copied.
//!
//! Owns its making, once per server and version of the schema, whoever comes at the same time; and the end of those
//! that no version needs any more.

use std::path::{Path, PathBuf};

use postrider::store::migrate::{self, UpOptions};
use sha2::{Digest as _, Sha256};
use tokio_postgres::Client;

use super::server::Server;
use super::slots::{LOCKS, connect, end_sessions, exists, run, try_lock, url_of};

/// The database with the schema that the others are copied from.
pub(super) struct Template {
    /// Stands for all that it is made from; part of the names of its clones.
    pub(super) key: String,
    name: String,
}

impl Template {
    /// Makes it if it is not there, and keeps it from being swept while `session` lives.
    pub(super) async fn hold(session: &Client) -> Self {
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
        let mut inside = connect(&url_of(&half)).await;
        let migrated = migrate::up(&mut inside, UpOptions::default(), |_| ()).await;
        migrated.unwrap_or_else(|error| panic!("the schema: {error:?}"));
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

    pub(super) async fn copy_to(&self, session: &Client, name: &str) {
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

/// Eight hexadecimal digits that change with whatever makes the template.
fn key() -> String {
    let mut hash = Sha256::new();
    for file in migrations() {
        hash.update(std::fs::read(&file).expect("a migration"));
    }
    hash.update(include_str!("../../../src/store/migrate.rs"));
    hash.update(include_str!("template.rs"));
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
