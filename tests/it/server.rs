//! An empty database for each test that needs one, on the server that all tests share.

use std::sync::atomic::{AtomicU32, Ordering};

use postrider::store::connect::{Client, ConnectOptions, Connector};
use url::Url;

use crate::support::Server;

static DATABASES: AtomicU32 = AtomicU32::new(0);

/// A new, empty database, and whoever calls itself after it; gone after the test.
pub(crate) struct Database {
    name: String,
    url: Url,
}

impl Database {
    pub(crate) async fn create() -> Self {
        let server = tokio::task::spawn_blocking(Server::get)
            .await
            .expect("the start does not panic");
        let name = format!(
            "postrider_empty_{}_{}",
            std::process::id(),
            DATABASES.fetch_add(1, Ordering::Relaxed)
        );
        open(&server.url)
            .await
            .batch_execute(&format!("create database {name}"))
            .await
            .expect("a new name");
        let mut url = Url::parse(&server.url).expect("the server's address is a URL");
        url.set_path(&name);
        Self { name, url }
    }

    /// The superuser's way in.
    pub(crate) fn url(&self) -> String {
        self.url.to_string()
    }

    /// The same server with another role, password or database.
    pub(crate) fn url_with(&self, change: impl FnOnce(&mut Url)) -> String {
        let mut url = self.url.clone();
        change(&mut url);
        url.into()
    }

    /// A role that may connect and nothing else, and its way in.
    pub(crate) async fn stranger(&self) -> String {
        let role = format!("{}_stranger", self.name);
        self.run(&format!(
            "drop role if exists {role}; create role {role} login password 's3cret'"
        ))
        .await;
        self.url_with(|url| {
            url.set_username(&role).expect("the URL has a host");
            url.set_password(Some("s3cret"))
                .expect("the URL has a host");
        })
    }

    pub(crate) async fn open(&self) -> Client {
        open(&self.url()).await
    }

    pub(crate) async fn run(&self, statements: &str) {
        self.open()
            .await
            .batch_execute(statements)
            .await
            .expect(statements);
    }

    /// The one value of a query.
    pub(crate) async fn value(&self, query: &str) -> String {
        let row = self.open().await.query_one(query, &[]).await.expect(query);
        row.try_get(0).expect("a text column")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.name);
        // The test's own runtime cannot be waited for from here.
        let dropper = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let maintenance = open(&Server::get().url).await;
                for statement in [
                    format!("drop database if exists {name} with (force)"),
                    format!("drop role if exists {name}_stranger"),
                ] {
                    maintenance
                        .batch_execute(&statement)
                        .await
                        .expect(&statement);
                }
            });
        });
        // What is left over hinders nobody; the test's verdict stands without it.
        drop(dropper.join());
    }
}

/// Like the program, but with nothing from this environment.
pub(crate) fn connector(url: &str) -> Connector {
    Connector::new(
        &ConnectOptions {
            url: Some(url.to_owned()),
        },
        &|_| None,
    )
    .expect("the settings make sense")
}

pub(crate) async fn open(url: &str) -> Client {
    connector(url)
        .open()
        .await
        .expect("the server takes connections")
}
