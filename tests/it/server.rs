//! A server for the tests of this suite that need one, and a database of its own for each.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use postrider::cluster::{Cluster, Options};
use postrider::store::connect::{Client, ConnectOptions, Connector};
use url::Url;

/// Alive as long as some test holds it; a static one would never be stopped.
static SERVER: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(0);

fn shared() -> Arc<Cluster> {
    let mut server = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    server.upgrade().unwrap_or_else(|| {
        let settings = vec![("max_connections".to_owned(), "200".to_owned())];
        let started = Arc::new(
            Cluster::start(Options {
                settings,
                ..Options::default()
            })
            .expect("a server starts"),
        );
        *server = Arc::downgrade(&started);
        started
    })
}

/// A new, empty database.
pub(crate) struct Database {
    server: Arc<Cluster>,
    name: String,
}

impl Database {
    pub(crate) async fn create() -> Self {
        let server = tokio::task::spawn_blocking(shared)
            .await
            .expect("the start does not panic");
        let name = format!(
            "t{}_{}",
            std::process::id(),
            DATABASES.fetch_add(1, Ordering::Relaxed)
        );
        let database = Self { server, name };
        let admin = open(&database.server.url("postgres")).await;
        admin
            .batch_execute(&format!("create database {}", database.name))
            .await
            .expect("a new name");
        database
    }

    /// The superuser's way in.
    pub(crate) fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// The same server with another role, password or database.
    pub(crate) fn url_with(&self, change: impl FnOnce(&mut Url)) -> String {
        let mut url = Url::parse(&self.url()).expect("the cluster's URL parses");
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
