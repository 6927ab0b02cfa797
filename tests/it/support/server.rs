//! Which PostgreSQL the tests use, and that it is gone after them.
//!
//! Three ways, the first that works: the server that `POSTRIDER_TEST_DATABASE_URL` names, a private one made from
//! installed programs, or one in a container. The last two start once for each test process. Their end does not
//! depend on ours being orderly: a private server has a guard, and a container belongs to a child process (this
//! very program again, see [`keeper`]) that removes it when the pipe from us closes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use postrider::cluster::{Cluster, Options};
use rustix::process::{Pid, Signal, kill_process};
use testcontainers::core::wait::LogWaitStrategy;
use testcontainers::core::{IntoContainerPort as _, WaitFor};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, GenericImage, ImageExt as _};

use super::tell;

/// A role that may create databases; the database is only a place to stand.
pub(crate) const URL: &str = "POSTRIDER_TEST_DATABASE_URL";

/// Tells a child process that it is to keep a container.
const KEEP: &str = "POSTRIDER_TEST_KEEP_CONTAINER";

/// Tests run on every core, and each holds a few sessions, besides its workers' own.
const MAX_CONNECTIONS: &str = "300";

const IMAGE: (&str, &str) = ("postgres", "17-alpine");

/// A server that runs until this process ends.
pub(crate) struct Server {
    /// A database on it that is nobody's: for making others, and for locks.
    pub(crate) url: String,
    _held: Held,
}

enum Held {
    ByOthers,
    Private(Cluster),
    Container(Child),
}

impl Server {
    /// The one server of this process.
    ///
    /// # Panics
    ///
    /// When there is none, with the ways to get one.
    pub(crate) fn get() -> &'static Self {
        static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
        match SERVER.get_or_init(Self::start) {
            Ok(server) => server,
            Err(advice) => panic!("{advice}"),
        }
    }

    fn start() -> Result<Self, String> {
        if let Some(url) = std::env::var_os(URL) {
            let url = url
                .into_string()
                .map_err(|_| format!("{URL} is not UTF-8"))?;
            tell(&format!("tests use the PostgreSQL of {URL}"));
            return Ok(Self {
                url,
                _held: Held::ByOthers,
            });
        }
        let no_programs = match private() {
            Ok(cluster) => {
                let url = cluster.url("postgres");
                tell(&format!(
                    "tests use a private PostgreSQL, process {}",
                    cluster.pid()
                ));
                return Ok(Self {
                    url,
                    _held: Held::Private(cluster),
                });
            }
            Err(reason) => reason,
        };
        match container() {
            Ok((keeper, url)) => {
                tell(&format!(
                    "tests use PostgreSQL in a container ({}:{})",
                    IMAGE.0, IMAGE.1
                ));
                Ok(Self {
                    url,
                    _held: Held::Container(keeper),
                })
            }
            Err(no_engine) => Err(three_ways(&no_programs, &no_engine)),
        }
    }
}

fn three_ways(no_programs: &str, no_engine: &str) -> String {
    format!(
        "these tests need a PostgreSQL, and any one of three will do:\n\
         1. {URL}=postgresql://... naming a role that may create databases (not set)\n\
         2. PostgreSQL's server programs on this machine ({no_programs})\n\
         3. a container engine, at DOCKER_HOST or /var/run/docker.sock ({no_engine})"
    )
}

fn private() -> Result<Cluster, String> {
    let settings = [
        ("fsync", "off"),
        ("max_connections", MAX_CONNECTIONS),
        // Every clone of a template asks for a checkpoint, which would otherwise be spread over minutes.
        ("checkpoint_timeout", "1h"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let cluster = Cluster::start(Options {
        settings: settings.into(),
        ..Options::default()
    })
    .map_err(|error| error.to_string())?;
    check_passwords_on_the_server(&cluster).map_err(|error| error.to_string())?;
    Ok(cluster)
}

/// SCRAM has the client derive a key, which takes a debug build 80 ms of every session; the server does it in 3 ms.
/// The password thus goes over loopback as it is, but nobody gets in without it.
fn check_passwords_on_the_server(cluster: &Cluster) -> std::io::Result<()> {
    let file = cluster.folder().join("data/pg_hba.conf");
    let rules = std::fs::read_to_string(&file)?;
    std::fs::write(&file, rules.replace("scram-sha-256", "password"))?;
    let server = i32::try_from(cluster.pid()).ok().and_then(Pid::from_raw);
    let server = server.expect("a running process has a number");
    Ok(kill_process(server, Signal::HUP)?)
}

/// Starts the keeper and waits for the address it prints.
fn container() -> Result<(Child, String), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut keeper = Command::new(program)
        .args([
            "--exact",
            "support::server::keeper",
            "--ignored",
            "--nocapture",
        ])
        .env(KEEP, "yes")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // A Ctrl-C in the terminal is for us; the keeper then sees its pipe close.
        .process_group(0)
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut output = BufReader::new(keeper.stdout.take().expect("it is piped"));
    for line in output.by_ref().lines().map_while(Result::ok) {
        if let Some(url) = line.strip_prefix("container at ") {
            // Kept open: after a minute the runner says how long the keeper takes, and would die of a closed pipe.
            keeper.stdout = Some(output.into_inner());
            return Ok((keeper, url.to_owned()));
        }
        if let Some(reason) = line.strip_prefix("no container: ") {
            return Err(reason.to_owned());
        }
    }
    Err("the process that starts the container said nothing".to_owned())
}

#[tokio::test]
#[ignore = "the suite runs it in a process of its own"]
async fn keeper() {
    if std::env::var_os(KEEP).is_none() {
        return;
    }
    let mut stdout = std::io::stdout();
    match start_container().await {
        Ok((container, url)) => {
            writeln!(stdout, "\ncontainer at {url}").expect("the parent reads it");
            // Ends when the parent does, however that comes.
            drop(std::io::stdin().read_to_end(&mut Vec::new()));
            container
                .rm()
                .await
                .expect("the engine removes the container");
        }
        Err(error) => {
            let reason = error.to_string().replace('\n', " ");
            writeln!(stdout, "\nno container: {reason}").expect("the parent reads it");
        }
    }
}

async fn start_container()
-> Result<(ContainerAsync<GenericImage>, String), testcontainers::TestcontainersError> {
    // The image starts the server twice, and only the second one stays. The first is pg_ctl's, which sends all that it
    // says to stdout, so the readiness on stderr is the second one's.
    let first = LogWaitStrategy::stdout("init process complete");
    let ready = LogWaitStrategy::stderr("ready to accept connections");
    let container = GenericImage::new(IMAGE.0, IMAGE.1)
        .with_exposed_port(5432.tcp())
        .with_wait_for(WaitFor::log(first))
        .with_wait_for(WaitFor::log(ready))
        .with_env_var("POSTGRES_PASSWORD", "postrider")
        .with_cmd([
            "-c",
            "fsync=off",
            "-c",
            &format!("max_connections={MAX_CONNECTIONS}"),
        ])
        .start()
        .await?;
    let (host, port) = (
        container.get_host().await?,
        container.get_host_port_ipv4(5432).await?,
    );
    Ok((
        container,
        format!("postgresql://postgres:postrider@{host}:{port}/postgres"),
    ))
}

#[test]
fn without_any_server_the_message_names_the_three_ways() {
    let advice = three_ways("no initdb", "no socket");

    for part in [
        URL,
        "server programs",
        "no initdb",
        "DOCKER_HOST",
        "no socket",
    ] {
        assert!(advice.contains(part), "{part} is not in: {advice}");
    }
}
