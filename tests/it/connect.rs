//! A session comes about as libpq would make it, by name and certificate, and a pool of them behaves.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postrider::cluster::{Cluster, Options};
use postrider::store::connect::{Client, ConnectOptions, Connector, Pool, PoolOptions};
use postrider::store::{Error, Unreachable};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use url::Url;

use crate::server::{Database, connector, open};

/// A server with TLS: certificate for `localhost` by a CA of its own, and what clients need, in a folder.
struct TlsServer {
    cluster: Cluster,
    files: tempfile::TempDir,
}

type Ca = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Ca {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
        .expect("a certificate")
}

/// Certificate and key, both PEM.
fn certificate(authority: &Ca, names: &[&str], common_name: &str) -> (String, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("plain names");
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    let key = KeyPair::generate().expect("a key");
    (
        params
            .signed_by(&key, authority)
            .expect("a certificate")
            .pem(),
        key.serialize_pem(),
    )
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).expect("the folder is ours");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
}

impl TlsServer {
    /// With `server`'s certificate and key; clients' certificates are checked against `clients`.
    async fn start(server: (String, String), clients: &Ca) -> Self {
        let cluster = tokio::task::spawn_blocking(|| {
            Cluster::start(Options::default()).expect("a server starts")
        })
        .await
        .expect("the start does not panic");
        let data = cluster.folder().join("data");
        let owner = fs::metadata(&data).expect("it is there");
        for (name, text) in [
            ("server.crt", &server.0),
            ("server.key", &server.1),
            ("clients.crt", &clients.pem()),
        ] {
            write_private(&data.join(name), text);
            chown(data.join(name), Some(owner.uid()), Some(owner.gid()))
                .expect("it becomes the server's");
        }
        let rules = data.join("pg_hba.conf");
        let before = fs::read_to_string(&rules).expect("it is there");
        fs::write(
            &rules,
            format!("hostssl all by_certificate 127.0.0.1/32 cert\n{before}"),
        )
        .expect("it is ours");
        let admin = open(&cluster.url("postgres")).await;
        for statement in [
            "create role by_certificate login",
            "alter system set ssl_ca_file = 'clients.crt'",
            "alter system set ssl = on",
            "select pg_reload_conf()",
        ] {
            admin.batch_execute(statement).await.expect(statement);
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while !encrypted(&open(&cluster.url("postgres")).await).await {
            assert!(
                Instant::now() < deadline,
                "the server never switched to TLS"
            );
        }
        Self {
            cluster,
            files: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.files.path().join(name);
        write_private(&path, text);
        path
    }

    /// A session under this host name, whatever it resolves to.
    async fn session(&self, host: &str, settings: &[(&str, &str)]) -> Result<Client, Error> {
        let mut url = Url::parse(&self.cluster.url("postgres")).expect("the cluster's URL parses");
        url.set_host(Some(host)).expect("a host name");
        url.query_pairs_mut()
            .append_pair("hostaddr", "127.0.0.1")
            .extend_pairs(settings);
        Connector::new(
            &ConnectOptions {
                url: Some(url.into()),
            },
            &|_| None,
        )?
        .open()
        .await
    }
}

async fn encrypted(client: &Client) -> bool {
    let query = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    client
        .query_one(query, &[])
        .await
        .expect("a row")
        .try_get(0)
        .expect("a boolean")
}

#[track_caller]
fn refused_by_tls(outcome: Result<Client, Error>) {
    let error = outcome.expect_err("the certificate does not fit");
    assert!(
        matches!(
            error,
            Error::NoDatabase {
                why: Unreachable::Tls,
                ..
            }
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn each_sslmode_checks_what_libpq_checks() {
    let (ours, foreign) = (authority("ours"), authority("foreign"));
    let server = TlsServer::start(certificate(&ours, &["localhost"], "server"), &ours).await;
    let root = server.file("root.crt", &ours.pem());
    let other = server.file("other.crt", &foreign.pem());
    let (root, other) = (
        root.to_str().expect("a plain path"),
        other.to_str().expect("a plain path"),
    );

    let connect = async |host: &str, mode: &str, root: &str| {
        server
            .session(host, &[("sslmode", mode), ("sslrootcert", root)])
            .await
    };

    assert!(
        !encrypted(
            &connect("localhost", "disable", "")
                .await
                .expect("it is not asked")
        )
        .await
    );
    for mode in ["allow", "prefer", "require"] {
        let client = connect("elsewhere.example", mode, "")
            .await
            .expect("nothing is checked");
        assert!(encrypted(&client).await, "{mode}");
    }
    for mode in ["require", "verify-ca"] {
        connect("elsewhere.example", mode, root)
            .await
            .expect("the name is not checked");
        refused_by_tls(connect("localhost", mode, other).await);
    }
    connect("localhost", "verify-full", root)
        .await
        .expect("name and root fit");
    refused_by_tls(connect("elsewhere.example", "verify-full", root).await);
    refused_by_tls(connect("localhost", "verify-full", other).await);
}

#[tokio::test]
async fn a_self_signed_certificate_is_trusted_when_it_is_named_as_the_root() {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a plain name");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
        .expect("a certificate");
    let server = TlsServer::start((own.pem(), own.key().serialize_pem()), &own).await;
    let root = server.file("root.crt", &own.pem());
    let root = root.to_str().expect("a plain path");

    let full = [("sslmode", "verify-full"), ("sslrootcert", root)];
    server
        .session("localhost", &full)
        .await
        .expect("it is the root itself");
    refused_by_tls(server.session("elsewhere.example", &full).await);
}

#[tokio::test]
async fn a_client_certificate_logs_in_when_its_key_is_private() {
    let ours = authority("ours");
    let server = TlsServer::start(certificate(&ours, &["localhost"], "server"), &ours).await;
    let (public, private) = certificate(&ours, &[], "by_certificate");
    let (public, private) = (
        server.file("client.crt", &public),
        server.file("client.key", &private),
    );
    let settings = [
        ("user", "by_certificate"),
        ("sslmode", "require"),
        ("sslcert", public.to_str().expect("a plain path")),
        ("sslkey", private.to_str().expect("a plain path")),
    ];

    let client = server
        .session("localhost", &settings)
        .await
        .expect("the certificate is enough");
    let user: String = client
        .query_one("select current_user::text", &[])
        .await
        .expect("a row")
        .try_get(0)
        .expect("text");
    assert_eq!(user, "by_certificate");

    let without = server
        .session("localhost", &settings[..2])
        .await
        .expect_err("there is no certificate");
    assert!(
        matches!(
            without,
            Error::NoDatabase {
                why: Unreachable::Authentication,
                ..
            }
        ),
        "{without:?}"
    );
    fs::set_permissions(&private, fs::Permissions::from_mode(0o644)).expect("the file is ours");
    let shared = server
        .session("localhost", &settings)
        .await
        .expect_err("others may read the key");
    assert!(
        matches!(shared, Error::Settings { .. }) && shared.to_string().contains("sslkey"),
        "{shared:?}"
    );
}

#[tokio::test]
async fn a_password_of_odd_characters_logs_in_from_url_and_password_file() {
    let database = Database::create().await;
    let odd = "p@:/?#[]% &='\"\\é+";
    let name = database.stranger().await;
    let user = Url::parse(&name).expect("a URL").username().to_owned();
    database
        .run(&format!(
            "alter role {user} password '{}'",
            odd.replace('\'', "''")
        ))
        .await;

    let encoded: String = odd.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let plain = database.url_with(|url| {
        url.set_username(&user).expect("the URL has a host");
        url.set_password(None).expect("the URL has a host");
    });
    open(&plain.replacen(&user, &format!("{user}:{encoded}"), 1)).await;

    let folder = tempfile::tempdir().expect("a temporary folder");
    write_private(
        &folder.path().join(".pgpass"),
        &format!(
            "*:*:*:{user}:{}\n",
            odd.replace('\\', r"\\").replace(':', r"\:")
        ),
    );
    let home = folder.path().to_str().expect("a plain path").to_owned();
    let lookup = |name: &str| (name == "HOME").then(|| home.clone());
    let connector = Connector::new(&ConnectOptions { url: Some(plain) }, &lookup)
        .expect("the settings make sense");
    connector.open().await.expect("the file has the password");
}

#[tokio::test]
async fn hosts_are_tried_in_turn_also_past_one_that_says_nothing() {
    let database = Database::create().await;
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = silent.local_addr().expect("it is bound").port();
    let url = database.url();
    let (before, after) = url.split_once('@').expect("it has a password");
    let several = |first: &str| format!("{before}@{first},{after}?connect_timeout=1");

    let started = Instant::now();
    open(&several("127.0.0.1:1")).await;
    open(&several("host.invalid:1")).await;
    open(&several(&format!("127.0.0.1:{silent}"))).await;

    assert!(started.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_session_bears_our_name_and_the_options() {
    let database = Database::create().await;

    let client = open(&format!(
        "{}?options=-cstatement_timeout%3D7s",
        database.url()
    ))
    .await;

    let query =
        "select current_setting('application_name') || ' ' || current_setting('statement_timeout')";
    let found: String = client
        .query_one(query, &[])
        .await
        .expect("a row")
        .try_get(0)
        .expect("text");
    assert_eq!(found, "postrider 7s");
}

#[tokio::test]
async fn a_server_of_the_other_kind_is_not_taken() {
    let database = Database::create().await;

    let url = format!("{}?target_session_attrs=read-only", database.url());
    let error = connector(&url).open().await.expect_err("it takes writes");

    assert!(matches!(error, Error::NoDatabase { .. }), "{error:?}");
}

fn pool(url: &str, session: &[&str]) -> Pool {
    let session = session
        .iter()
        .map(|statement| (*statement).to_owned())
        .collect();
    connector(url)
        .pool(PoolOptions {
            max_size: 2,
            session,
        })
        .expect("it can be built")
}

#[tokio::test]
async fn a_pool_prepares_each_session_and_lends_no_more_than_it_may() {
    let database = Database::create().await;
    let pool = pool(
        &database.url(),
        &[
            "set statement_timeout = '8s'",
            "set plan_cache_mode = force_custom_plan",
        ],
    );

    let (first, second) = (
        pool.get().await.expect("a session"),
        pool.get().await.expect("a session"),
    );
    let query =
        "select current_setting('statement_timeout') || ' ' || current_setting('plan_cache_mode')";
    for session in [&first, &second] {
        let found: String = session
            .query_one(query, &[])
            .await
            .expect("a row")
            .try_get(0)
            .expect("text");
        assert_eq!(found, "8s force_custom_plan");
    }

    let third = tokio::time::timeout(Duration::from_millis(200), pool.get());
    assert!(third.await.is_err(), "there were three");
    drop(first);
    drop(pool.get().await.expect("one came back"));
}

#[tokio::test]
async fn a_discarded_session_is_replaced_by_a_new_one() {
    let database = Database::create().await;
    let pool = pool(&database.url(), &[]);
    let pid = async || {
        let session = pool.get().await.expect("a session");
        let pid: i32 = session
            .query_one("select pg_backend_pid()", &[])
            .await
            .expect("a row")
            .try_get(0)
            .expect("a pid");
        (session, pid)
    };

    let (session, first) = pid().await;
    drop(session);
    let (session, again) = pid().await;
    Pool::discard(session);
    let (_session, other) = pid().await;

    assert_eq!(first, again);
    assert_ne!(first, other);
}

#[tokio::test]
async fn c44_a_server_that_became_read_only_and_one_that_went_away_ask_for_a_new_session() {
    let database = Database::create().await;
    let client = open(&format!(
        "{}?options=-cdefault_transaction_read_only%3Don",
        database.url()
    ))
    .await;

    let read_only: Error = client
        .batch_execute("create table t ()")
        .await
        .expect_err("it takes no writes")
        .into();
    client
        .simple_query("select 1")
        .await
        .expect("it is as lively as ever");
    assert!(
        read_only.needs_new_connection() && read_only.is_transient(),
        "{read_only:?}"
    );

    let pid: i32 = client
        .query_one("select pg_backend_pid()", &[])
        .await
        .expect("a row")
        .try_get(0)
        .expect("a pid");
    database
        .run(&format!("select pg_terminate_backend({pid}, 10000)"))
        .await;
    let gone: Error = client
        .simple_query("select 1")
        .await
        .expect_err("it was ended")
        .into();
    assert!(
        gone.needs_new_connection() && gone.is_transient(),
        "{gone:?}"
    );
}

#[tokio::test]
async fn an_error_is_told_apart_by_what_to_do_about_it() {
    let database = Database::create().await;
    let client = database.open().await;
    let mut errors = Vec::new();
    for statement in [
        "select 1/0",
        "do $$ begin raise sqlstate '40P01'; end $$",
        "select * from postrider.deliveries",
        "select * from t",
    ] {
        errors.push(Error::from(
            client.batch_execute(statement).await.expect_err(statement),
        ));
    }
    let unbound: Error = client
        .query("select $1::int", &[&"text"])
        .await
        .expect_err("the type differs")
        .into();

    let [data, deadlock, no_schema, no_table] = &errors[..] else {
        panic!("four statements, four errors")
    };
    assert!(
        data.is_data_error() && !data.is_transient() && !data.needs_new_connection(),
        "{data:?}"
    );
    assert!(
        deadlock.is_transient() && !deadlock.is_data_error() && !deadlock.needs_new_connection(),
        "{deadlock:?}"
    );
    assert!(matches!(no_schema, Error::SchemaMissing), "{no_schema:?}");
    assert!(
        matches!(no_table, Error::Query(_)) && !no_table.is_transient(),
        "{no_table:?}"
    );
    assert!(unbound.is_data_error(), "{unbound:?}");
}

#[tokio::test]
async fn a_connection_hands_over_notifications() {
    let database = Database::create().await;
    let (client, mut connection) = connector(&database.url())
        .connect()
        .await
        .expect("a session");
    let reader = tokio::spawn(async move {
        loop {
            let message = std::future::poll_fn(|context| connection.poll_message(context)).await;
            let message = message
                .expect("the session is alive")
                .expect("the session is well");
            if let tokio_postgres::AsyncMessage::Notification(heard) = message {
                return heard.channel().to_owned();
            }
        }
    });

    client
        .batch_execute("listen bell")
        .await
        .expect("it may listen");
    database.run("notify bell").await;

    assert_eq!(reader.await.expect("the reader does not panic"), "bell");
}
