use std::fmt::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use tokio_postgres::error::SqlState;
use tokio_postgres::{NoTls, SimpleQueryMessage};
use url::Url;

use crate::support::process::{Worker, postrider};
use crate::support::receiver::{Receiver, Script};
use crate::support::verifiers::MUST_RUN;
use crate::support::{Database, SOON, tell, wait_until};

/// A worker that comes to the database by this address, and has no session of its own there.
fn worker(url: &str) -> Worker {
    let mut command = postrider();
    command.args(["worker", "--pooler", "--poll-interval", "100ms"]);
    command.args(["--allow-network", "127.0.0.0/8", "--database-url", url]);
    Worker::run(command)
}

/// First tries and retries arrive, and the start says that LISTEN is off.
async fn delivers(database: &Database, worker: &Worker) {
    let receiver = Receiver::start().await;
    receiver.script([Script::status(503)]);
    database
        .sql("insert into postrider.retry_policies (name, kind, delays, max_retries) values ('now', 'schedule', '{0 s}', 3)")
        .await;
    database
        .endpoint("shop", &receiver.url("/"))
        .set("retry_policy", "now")
        .await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(database.insert("shop", "{}").await);
    }

    for id in ids {
        database.wait_for_status(id, "delivered").await;
    }

    assert_eq!(receiver.requests().len(), 21);
    worker.wait_for_line("LISTEN is off").await;
}

/// PgBouncer in transaction mode with two sessions for everybody, and its address. It lives as long as its folder.
struct Bouncer {
    _process: Worker,
    _folder: tempfile::TempDir,
    url: String,
}

impl Bouncer {
    /// `None`: it is not installed, which only a machine that must run everything may not say.
    async fn before(database: &Database) -> Option<Self> {
        let Some(program) = pgbouncer() else {
            tell("not run: pgbouncer is not installed");
            assert!(
                std::env::var_os(MUST_RUN).is_none(),
                "and everything must run"
            );
            return None;
        };
        let server = Url::parse(database.url()).expect("a URL");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|free| free.local_addr())
            .expect("a free port")
            .port();
        let mut settings = String::from("[databases]\n");
        let password = server
            .password()
            .map_or_else(String::new, |password| format!(" password={password}"));
        writeln!(
            settings,
            "* = host=127.0.0.1 port={} user={}{password}",
            server.port().expect("its port"),
            server.username(),
        )
        .expect("it is memory");
        writeln!(
            settings,
            "[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2"
        )
        .expect("it is memory");
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("ours");
        let mut command = Command::new(program);
        if rustix::process::geteuid().is_root() {
            command.args(["--user", "nobody"]);
        }
        command.arg(&file);
        let process = Worker::run(command);
        let answers = async || TcpStream::connect(("127.0.0.1", port)).is_ok();
        wait_until("pgbouncer listens", answers, |yes| *yes, SOON).await;
        let mut behind = server.clone();
        behind.set_port(Some(port)).expect("it has a port");
        Some(Self {
            _process: process,
            _folder: folder,
            url: behind.into(),
        })
    }
}

#[tokio::test]
async fn c43_behind_pgbouncer_in_transaction_mode_everything_is_delivered() {
    let database = Database::fresh().await;
    let Some(bouncer) = Bouncer::before(&database).await else {
        return;
    };

    let worker = worker(&bouncer.url);

    delivers(&database, &worker).await;
}

#[tokio::test]
async fn behind_pgbouncer_in_transaction_mode_deliver_now_gets_its_answer_or_a_refusal() {
    let database = Database::fresh().await;
    let Some(bouncer) = Bouncer::before(&database).await else {
        return;
    };
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let (caller, connection) = tokio_postgres::connect(&bouncer.url, NoTls)
        .await
        .expect("pgbouncer takes it");
    tokio::spawn(connection);
    let call = |timeout: &str| {
        format!("call postrider.deliver_now('shop', 't', '{{}}', timeout => '{timeout}')")
    };

    let nobody = caller.batch_execute(&call("100 ms")).await;
    let inside = caller
        .batch_execute(&format!("begin; {}", call("20 s")))
        .await;
    caller.batch_execute("rollback").await.expect("it is over");
    let worker = worker(database.url());
    let answered = caller.simple_query(&call("20 s")).await;

    for (outcome, state) in [(nobody, "PR008"), (inside, "PR009")] {
        let error = outcome.expect_err("it is refused");
        assert_eq!(error.code().map(SqlState::code), Some(state), "{error:?}");
    }
    let answered = answered.expect("delivered");
    let [_, SimpleQueryMessage::Row(row), ..] = &answered[..] else {
        panic!("{answered:?}");
    };
    assert_eq!(row.get(0), Some("200"));
    assert_eq!(receiver.requests().len(), 1);
    drop(worker);
}

fn pgbouncer() -> Option<PathBuf> {
    [
        "/usr/sbin/pgbouncer",
        "/usr/bin/pgbouncer",
        "/usr/local/bin/pgbouncer",
    ]
    .into_iter()
    .map(PathBuf::from)
    .find(|path| path.exists())
}
