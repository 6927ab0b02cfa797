use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use postrider::cluster::{Cluster, ClusterError, Data, Options, usual_folder};

/// Tells the child process below to hold a cluster, and where: a folder, or `temporary`.
const HOLD: &str = "POSTRIDER_TEST_HOLD_CLUSTER";

fn kept(folder: &Path) -> Options {
    Options {
        data: Data::Kept(folder.to_owned()),
        ..Options::default()
    }
}

/// A place that the server's account can reach, too.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    folder
}

/// Runs one statement with psql, which no test here does without.
fn psql(url: &str, statement: &str) -> String {
    let done = Command::new("psql")
        .args([
            "--no-psqlrc",
            "--tuples-only",
            "--no-align",
            "--set=ON_ERROR_STOP=1",
            url,
            "--command",
            statement,
        ])
        .output()
        .expect("psql is installed with PostgreSQL's client programs");
    assert!(
        done.status.success(),
        "{statement}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout)
        .expect("UTF-8")
        .trim()
        .to_owned()
}

fn wait_until(fact: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "still not so after 30 s: {fact}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Another process that holds a cluster until its input ends.
struct Holder {
    process: Ends,
    // Kept open, so that the test runner in the child can go on printing.
    _output: BufReader<ChildStdout>,
    port: u16,
    folder: PathBuf,
}

impl Holder {
    fn start(hold: &Path, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this test's own program"));
        command
            .args([
                "--exact",
                "cluster::hold_a_cluster_for_another_test",
                "--ignored",
                "--nocapture",
            ])
            .env(HOLD, hold)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        prepare(&mut command);
        let mut process = Ends(command.spawn().expect("the test's own program runs"));

        let mut output = BufReader::new(process.0.stdout.take().expect("piped"));
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            let length = output.read_line(&mut line).expect("a line");
            assert!(length > 0, "the holder ended: {seen}");
            if let Some((port, folder)) = line
                .strip_prefix("holding ")
                .and_then(|rest| rest.split_once(' '))
            {
                let folder = PathBuf::from(folder.trim_end());
                return Self {
                    process,
                    _output: output,
                    port: port.parse().expect("a port"),
                    folder,
                };
            }
            seen.push_str(&line);
        }
    }

    fn kill(&mut self) {
        self.process.0.kill().expect("it runs");
        self.process.0.wait().expect("it ended");
    }
}

/// A process that ends with the test, whatever comes of it.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
#[ignore = "run by the other tests in a process of its own"]
#[allow(
    clippy::print_stdout,
    reason = "how this process talks to the one that started it"
)]
fn hold_a_cluster_for_another_test() {
    let Some(hold) = std::env::var_os(HOLD) else {
        return;
    };
    let options = if hold == "temporary" {
        Options::default()
    } else {
        kept(Path::new(&hold))
    };

    let cluster = Cluster::start(options).expect("starts");

    println!(
        "\nholding {} {}",
        cluster.port(),
        cluster.folder().display()
    );
    std::io::stdin().lines().for_each(drop);
}

#[test]
fn a_cluster_takes_connections_with_its_password_and_on_loopback_alone() {
    let cluster = Cluster::start(Options::default()).expect("starts");

    let facts = psql(
        &cluster.url("postgres"),
        "select pg_encoding_to_char(encoding), datcollate, current_setting('listen_addresses'), current_user, \
         current_setting('password_encryption') from pg_database where datname = 'postgres'",
    );
    let stranger = Command::new("psql")
        .args(["--no-password", "--command", "select 1"])
        .arg(format!(
            "postgresql://postrider:wrong@127.0.0.1:{}/postgres",
            cluster.port()
        ))
        .output()
        .expect("psql runs");

    assert_eq!(facts, "UTF8|C|127.0.0.1|postrider|scram-sha-256");
    let refusal = String::from_utf8_lossy(&stranger.stderr).into_owned();
    assert!(
        refusal.contains("password authentication failed"),
        "{refusal}"
    );
}

#[test]
fn settings_reach_the_server_and_the_last_one_wins() {
    let settings = [("max_connections", "31"), ("fsync", "on")]
        .map(|(name, value)| (name.into(), value.into()));
    let cluster = Cluster::start(Options {
        settings: settings.into(),
        ..Options::default()
    })
    .expect("starts");

    let facts = psql(
        &cluster.url("postgres"),
        "select current_setting('max_connections'), current_setting('fsync'), current_setting('full_page_writes')",
    );

    assert_eq!(facts, "31|on|off");
}

#[test]
fn a_database_name_may_need_escapes_in_the_url() {
    let cluster = Cluster::start(Options::default()).expect("starts");
    psql(&cluster.url("postgres"), "create database \"a b/c?d\"");

    let name = psql(&cluster.url("a b/c?d"), "select current_database()");

    assert_eq!(name, "a b/c?d");
}

#[test]
fn a_stopped_temporary_cluster_leaves_neither_server_nor_folder() {
    let cluster = Cluster::start(Options::default()).expect("starts");
    let (port, folder) = (cluster.port(), cluster.folder().to_owned());
    assert!(listens(port) && folder.join("data").is_dir());

    cluster.stop().expect("stops");

    assert!(!listens(port));
    assert!(!folder.exists());
}

#[test]
fn a_dropped_cluster_leaves_nothing_even_while_a_session_is_open() {
    let cluster = Cluster::start(Options::default()).expect("starts");
    let (port, folder) = (cluster.port(), cluster.folder().to_owned());
    let url = cluster.url("postgres");
    let mut session = Command::new("psql")
        .args([&url, "--command", "select pg_sleep(60)"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("psql runs");
    wait_until("the session sleeps", || {
        psql(
            &url,
            "select count(*) from pg_stat_activity where wait_event = 'PgSleep'",
        ) == "1"
    });

    drop(cluster);

    assert!(!listens(port));
    assert!(!folder.exists());
    session.wait().expect("the session was ended");
}

#[test]
fn a_kept_folder_finds_its_data_and_password_again() {
    let root = open_folder();
    let folder = root.path().join("made/on/the/way");
    let first = Cluster::start(kept(&folder)).expect("starts");
    psql(
        &first.url("postgres"),
        "create table event as select 42 as answer",
    );
    let password = first.url("").split('@').next().map(str::to_owned);
    first.stop().expect("stops");

    let second = Cluster::start(kept(&folder)).expect("starts again");

    assert_eq!(
        psql(&second.url("postgres"), "select answer from event"),
        "42"
    );
    assert_eq!(
        second.url("").split('@').next().map(str::to_owned),
        password
    );
}

#[test]
fn a_folder_in_use_is_refused_and_its_server_lives_on() {
    let root = open_folder();
    let folder = root.path().join("cluster");
    let holder = Holder::start(&folder, |_| {});

    let refused = Cluster::start(kept(&folder)).expect_err("in use");

    let said = refused.to_string();
    assert!(
        matches!(refused, ClusterError::InUse { owner, .. } if owner == holder.process.0.id()),
        "{said}"
    );
    assert!(
        said.contains(&format!("process {}", holder.process.0.id())),
        "{said}"
    );
    assert!(listens(holder.port));
}

#[test]
fn a_server_does_not_outlive_a_killed_parent() {
    let mut holder = Holder::start(Path::new("temporary"), |_| {});
    assert!(listens(holder.port) && holder.folder.is_dir());

    holder.kill();

    wait_until("the guard stopped the server", || !listens(holder.port));
    wait_until("the guard removed the folder", || !holder.folder.exists());
}

#[test]
fn a_kept_folder_starts_again_right_after_its_owner_was_killed() {
    let root = open_folder();
    let folder = root.path().join("cluster");
    let mut holder = Holder::start(&folder, |_| {});
    holder.kill();

    let cluster = Cluster::start(kept(&folder)).expect("starts");

    assert_eq!(psql(&cluster.url("postgres"), "select 1"), "1");
    assert!(!listens(holder.port));
}

#[test]
fn a_lock_file_that_names_a_stranger_does_not_stop_a_start() {
    let root = open_folder();
    let folder = root.path().join("cluster");
    Cluster::start(kept(&folder))
        .expect("starts")
        .stop()
        .expect("stops");
    // A process that lives and that PostgreSQL would take for the old server.
    let stranger = Command::new("sleep")
        .arg("60")
        .current_dir("/")
        .spawn()
        .expect("sleep runs");
    let mut stranger = Ends(stranger);
    let lock = format!(
        "{}\n{}/data\n1700000000\n1\n\n127.0.0.1\n\nready   \n",
        stranger.0.id(),
        folder.display()
    );
    fs::write(folder.join("data/postmaster.pid"), lock).expect("lock file");

    let cluster = Cluster::start(kept(&folder)).expect("starts");

    assert_eq!(psql(&cluster.url("postgres"), "select 1"), "1");
    assert!(
        stranger.0.try_wait().expect("its state").is_none(),
        "the stranger was left alone"
    );
}

#[test]
fn a_folder_with_something_else_in_it_is_left_alone() {
    let root = open_folder();
    fs::write(root.path().join("thesis.txt"), "years of work").expect("file");
    let before = fs::metadata(root.path()).expect("facts");

    let refused = Cluster::start(kept(root.path())).expect_err("not ours");

    let after = fs::metadata(root.path()).expect("facts");
    assert!(matches!(refused, ClusterError::NotOurs { .. }), "{refused}");
    assert_eq!((before.uid(), before.mode()), (after.uid(), after.mode()));
    assert_eq!(fs::read_dir(root.path()).expect("folder").count(), 1);
}

#[test]
fn a_first_start_that_was_cut_short_is_begun_anew() {
    let root = open_folder();
    let folder = root.path().join("cluster");
    fs::create_dir_all(folder.join("data/base")).expect("folder");
    fs::write(folder.join("data/PG_VERSION"), "15\n").expect("file");
    fs::write(folder.join("password.initdb"), "secret").expect("file");

    let cluster = Cluster::start(kept(&folder)).expect("starts");

    assert_eq!(psql(&cluster.url("postgres"), "select 1"), "1");
}

#[test]
fn a_server_that_refuses_its_settings_is_quoted() {
    let settings = vec![("max_connections".to_owned(), "many".to_owned())];

    let failed = Cluster::start(Options {
        settings,
        ..Options::default()
    })
    .expect_err("no number");

    let said = failed.to_string();
    assert!(matches!(failed, ClusterError::Exited { .. }), "{said}");
    assert!(
        said.contains("invalid value for parameter \"max_connections\""),
        "{said}"
    );
}

#[test]
fn the_secrets_of_a_kept_folder_are_for_its_owner_alone() {
    let root = open_folder();
    let folder = root.path().join("cluster");

    let cluster = Cluster::start(kept(&folder)).expect("starts");

    let mode = |name: &str| {
        fs::metadata(cluster.folder().join(name))
            .expect(name)
            .mode()
            & 0o777
    };
    assert_eq!((mode("password"), mode("data")), (0o600, 0o700));
    assert!(!folder.join("password.initdb").exists());
}

/// The rules for root; an ordinary user's are what every other test here then shows.
mod as_root {
    use super::*;

    fn we_are_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn root_hands_the_server_and_its_data_to_another_user() {
        let cluster = Cluster::start(Options::default()).expect("starts");

        let server = fs::metadata(format!("/proc/{}", cluster.pid()))
            .expect("Linux")
            .uid();
        let data = fs::metadata(cluster.folder().join("data"))
            .expect("facts")
            .uid();

        assert_eq!(server, data);
        assert_eq!(we_are_root(), server != rustix::process::geteuid().as_raw());
        assert_ne!(server, 0);
    }

    #[test]
    fn a_folder_that_the_account_cannot_reach_is_refused_with_advice() {
        let closed = tempfile::tempdir().expect("folder");
        fs::set_permissions(closed.path(), fs::Permissions::from_mode(0o700)).expect("mode");
        let folder = closed.path().join("cluster");

        let outcome = Cluster::start(kept(&folder));

        if we_are_root() {
            let said = outcome.expect_err("unreachable").to_string();
            assert!(said.contains("choose a folder elsewhere"), "{said}");
            assert!(
                said.contains(&closed.path().display().to_string()),
                "{said}"
            );
            assert!(!folder.exists());
        } else {
            outcome
                .expect("our own folder is no barrier to ourselves")
                .stop()
                .expect("stops");
        }
    }

    #[test]
    fn the_usual_folder_of_root_is_one_that_the_account_can_reach() {
        let folder = usual_folder("dev").expect("a folder");

        assert!(folder.ends_with("postrider/dev"), "{}", folder.display());
        assert!(
            !we_are_root() || !folder.starts_with("/root"),
            "{}",
            folder.display()
        );
    }

    #[test]
    fn an_ordinary_user_runs_the_server_as_themselves() {
        let nobody = 65_534;
        let holder = Holder::start(Path::new("temporary"), |command| {
            if we_are_root() {
                command
                    .uid(nobody)
                    .gid(nobody)
                    .current_dir("/")
                    .env("TMPDIR", "/tmp");
            }
        });

        let ours = if we_are_root() {
            nobody
        } else {
            rustix::process::geteuid().as_raw()
        };
        assert_eq!(fs::metadata(&holder.folder).expect("facts").uid(), ours);
        assert!(listens(holder.port));
    }
}
