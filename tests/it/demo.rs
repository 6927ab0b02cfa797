use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// What a demonstration may take at most.
const LIMIT: Duration = Duration::from_secs(60);

/// A program that runs until it is ended, with the test at the latest.
struct Running {
    process: Child,
    stdout: BufReader<ChildStdout>,
    said: String,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        Self {
            process,
            stdout,
            said: String::new(),
        }
    }

    /// Reads on until a line holds `wanted`; returns that line.
    fn until_line(&mut self, wanted: &str) -> String {
        loop {
            let mut line = String::new();
            let length = self.stdout.read_line(&mut line).expect("a line");
            if length == 0 {
                let mut stderr = String::new();
                let mut pipe = self.process.stderr.take().expect("piped");
                pipe.read_to_string(&mut stderr).expect("UTF-8");
                panic!("it ended without {wanted:?}: {}\n{stderr}", self.said);
            }
            self.said.push_str(&line);
            if line.contains(wanted) {
                return line.trim_end().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }

    /// Its end, with what it had still to say.
    fn end(&mut self) -> ExitStatus {
        self.stdout.read_to_string(&mut self.said).expect("UTF-8");
        self.process.wait().expect("it ends")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its own children end with their stdin, its server by the guard.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn postrider(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A place for temporary folders that the server's account can reach, too.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    folder
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("folder").next().is_none()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Every number that follows the word `process`.
fn processes(said: &str) -> Vec<i32> {
    said.split("process ")
        .skip(1)
        .filter_map(|rest| {
            rest.split(|it: char| !it.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        })
        .collect()
}

fn runs(pid: i32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat"));
    if Path::new("/proc/self/stat").exists() {
        // One that has ended may still wait for somebody to ask for its exit code.
        return state.is_ok_and(|state| {
            let after_name = state.rsplit(')').next().unwrap_or_default();
            !after_name.trim_start().starts_with('Z')
        });
    }
    Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
}

fn wait_until(fact: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "still not so after 30 s: {fact}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn psql(url: &str, statement: &str) -> String {
    let done = Command::new("psql")
        .args([
            "--no-psqlrc",
            "-At",
            "--set=ON_ERROR_STOP=1",
            url,
            "-c",
            statement,
        ])
        .output()
        .expect("psql is installed with PostgreSQL's client programs");
    assert!(done.status.success(), "{statement}: {}", text(&done.stderr));
    text(&done.stdout).trim().to_owned()
}

/// The first URL of a database in what was said.
fn url(said: &str) -> String {
    let start = said.find("postgresql://").expect("a URL");
    said[start..]
        .split(|it: char| it.is_whitespace() || it == '\'')
        .next()
        .expect("a URL")
        .to_owned()
}

fn assert_story_told(done: &Output) {
    let (said, errors) = (text(&done.stdout), text(&done.stderr));
    assert_eq!(done.status.code(), Some(0), "{said}\n{errors}");
    for fact in [
        "signatures verified",
        "nothing is lost",
        "each lost try is on record",
        "each accepted once",
        "replayed and delivered",
        "13 of 13 events were delivered in the end",
    ] {
        assert!(said.contains(fact), "{fact} is not in: {said}");
    }
    assert_eq!(errors, "");
}

#[test]
fn the_demo_holds_what_it_claims_and_leaves_nothing() {
    let folder = open_folder();
    let started = Instant::now();

    let done = postrider(&["demo"])
        .env("TMPDIR", folder.path())
        .output()
        .expect("runs");

    assert!(started.elapsed() < LIMIT, "took {:?}", started.elapsed());
    assert_story_told(&done);
    let said = text(&done.stdout);
    let processes = processes(&said);
    assert!(processes.len() >= 4, "{said}");
    assert!(!processes.iter().any(|pid| runs(*pid)), "{said}");
    assert!(is_empty(folder.path()), "the folder is gone");
    let too_wide: Vec<&str> = said
        .lines()
        .filter(|line| line.chars().count() > 80)
        .collect();
    assert!(too_wide.is_empty(), "{too_wide:?}");
    assert!(!said.contains('\u{1b}'), "no colours without a terminal");
}

#[test]
fn what_is_set_for_others_does_not_disturb_the_demo() {
    let hostile = [
        ("DATABASE_URL", "postgres://nobody@nowhere.invalid/none"),
        ("PGHOST", "nowhere.invalid"),
        ("PGPORT", "1"),
        ("PGUSER", "nobody"),
        ("PGSSLMODE", "verify-full"),
        ("PGOPTIONS", "-c default_transaction_read_only=on"),
        ("PGDATA", "/nonexistent"),
        (
            "POSTRIDER_DATABASE_URL",
            "postgres://nobody@nowhere.invalid/none",
        ),
        (
            "POSTRIDER_LISTEN_SECRETS",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        ),
        ("POSTRIDER_LEASE_MARGIN", "1h"),
        ("POSTRIDER_POLL_INTERVAL", "1h"),
        ("POSTRIDER_WORKER_NAME", "same"),
        ("POSTRIDER_ALLOW_NETWORK", "nonsense"),
        ("POSTRIDER_CA_FILE", "/nonexistent"),
        ("HTTP_PROXY", "http://127.0.0.1:1"),
        ("http_proxy", "http://127.0.0.1:1"),
        ("ALL_PROXY", "http://127.0.0.1:1"),
    ];

    let done = postrider(&["demo"]).envs(hostile).output().expect("runs");

    assert_story_told(&done);
}

#[test]
fn a_kept_demo_leaves_its_database_running_and_says_how_to_remove_it() {
    let folder = open_folder();

    let done = postrider(&["demo", "--keep"])
        .env("TMPDIR", folder.path())
        .output()
        .expect("runs");

    assert_story_told(&done);
    let said = text(&done.stdout);
    let delivered = psql(
        &url(&said),
        "select count(*) from postrider.deliveries where status = 'delivered'",
    );
    assert_eq!(delivered, "13");
    let line = said
        .lines()
        .find(|line| line.contains("remove it"))
        .expect("a way to remove it");
    let (_, removal) = line.split_once("remove it").expect("found");
    let removed = Command::new("sh")
        .args(["-c", removal.trim()])
        .status()
        .expect("sh");
    assert!(removed.success(), "{removal}");
    wait_until("every process has ended", || {
        !processes(&said).iter().any(|pid| runs(*pid))
    });
    let server = removal
        .split_whitespace()
        .find_map(|word| word.parse().ok())
        .expect("a process id");
    wait_until("the server has ended", || !runs(server));
}

#[test]
fn without_server_programs_the_demo_says_what_to_install() {
    let empty = tempfile::tempdir().expect("folder");
    let folder = empty.path().to_str().expect("UTF-8");

    for command in ["demo", "dev"] {
        let done = postrider(&[command, "--server-binaries", folder])
            .output()
            .expect("runs");

        let errors = text(&done.stderr);
        assert_eq!(done.status.code(), Some(3), "{errors}");
        assert!(errors.contains("apt-get install postgresql"), "{errors}");
        assert!(errors.contains("docker compose up"), "{errors}");
    }
    assert!(is_empty(empty.path()));
}

/// Ends a demonstration by `signal` while its workers run; returns what it left.
fn end_in_the_middle(signal: Signal) -> (Option<i32>, Vec<i32>, tempfile::TempDir) {
    let folder = open_folder();
    let mut demo = Running::start(postrider(&["demo"]).env("TMPDIR", folder.path()));
    demo.until_line("worker-b    process");
    let processes = processes(&demo.said);
    assert_eq!(processes.len(), 4, "{}", demo.said);
    assert!(processes.iter().all(|pid| runs(*pid)), "all four run");

    demo.signal(signal);
    let ended = demo.end();
    (ended.code(), processes, folder)
}

#[test]
fn a_demo_that_is_stopped_ends_its_processes_and_removes_its_folder() {
    for signal in [Signal::TERM, Signal::INT] {
        let (code, processes, folder) = end_in_the_middle(signal);

        assert_eq!(code, Some(1));
        assert!(!processes.iter().any(|pid| runs(*pid)), "{processes:?}");
        assert!(is_empty(folder.path()));
    }
}

#[test]
fn a_killed_demo_leaves_no_process_and_no_folder() {
    let (code, processes, folder) = end_in_the_middle(Signal::KILL);

    assert_eq!(code, None);
    wait_until("every process has ended", || {
        !processes.iter().any(|pid| runs(*pid))
    });
    wait_until("the folder is gone", || is_empty(folder.path()));
}

const INSERT: &str = "insert into postrider.deliveries (endpoint, event_type, payload) \
                      values ('dev', 'order.paid', json_build_object('type', 'order.paid')) returning event_id";

fn dev(data: &Path, more: &[&str]) -> Command {
    let mut command = postrider(&["dev", "--data", data.to_str().expect("UTF-8")]);
    command.args(more);
    command
}

#[test]
fn dev_keeps_its_rows_and_goes_on_with_what_is_due() {
    let folder = open_folder();
    let data = folder.path().join("dev");
    let mut first = Running::start(&mut dev(&data, &["--fail", "503"]));
    first.until_line("See retries");
    let event = psql(&url(&first.said), INSERT);
    let event = event.lines().next().expect("an id");
    first.until_line("-> 503");

    first.signal(Signal::INT);
    assert_eq!(first.end().code(), Some(0), "{}", first.said);
    let mut second = Running::start(&mut dev(&data, &[]));
    let arrived = second.until_line("-> 200");

    assert!(
        second
            .said
            .contains("1 deliveries of earlier are still open"),
        "{}",
        second.said
    );
    assert!(
        arrived.contains(event) && arrived.contains(" verified "),
        "{arrived}"
    );
    let url = url(&second.said);
    wait_until("it is on record as delivered", || {
        psql(&url, "select status from postrider.deliveries") == "delivered"
    });
    second.signal(Signal::TERM);
    assert_eq!(second.end().code(), Some(0), "{}", second.said);
    assert!(data.join("data").is_dir(), "the rows stay");
}

#[test]
fn a_receiver_of_dev_that_fails_on_purpose_shows_retries() {
    let folder = open_folder();
    let mut dev = Running::start(&mut dev(
        &folder.path().join("dev"),
        &["--fail", "503", "--times", "1"],
    ));
    dev.until_line("See retries");
    let url = url(&dev.said);
    psql(&url, INSERT);

    let delivered = dev.until_line("-> 200");

    assert!(delivered.contains("try 2"), "{delivered}");
    assert!(dev.said.contains("-> 503"), "{}", dev.said);
    dev.signal(Signal::TERM);
    assert_eq!(dev.end().code(), Some(0));
}

#[test]
fn a_second_dev_on_the_same_folder_is_told_who_uses_it() {
    let folder = open_folder();
    let data = folder.path().join("dev");
    let mut first = Running::start(&mut dev(&data, &[]));
    first.until_line("See retries");

    let second = dev(&data, &[]).output().expect("runs");

    let errors = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{errors}");
    assert!(errors.contains("is in use"), "{errors}");
    assert!(
        errors.contains(&format!("process {}", first.process.id())),
        "{errors}"
    );
    assert_eq!(
        psql(&url(&first.said), "select 1"),
        "1",
        "the first one goes on"
    );
    first.signal(Signal::TERM);
    assert_eq!(first.end().code(), Some(0));
}

#[test]
fn a_claim_that_does_not_hold_fails_the_demo_and_shows_what_the_workers_said() {
    let folder = open_folder();
    let mut demo = Running::start(postrider(&["demo"]).env("TMPDIR", folder.path()));
    demo.until_line("worker-b    process");
    let [_, _, worker_a, worker_b] = processes(&demo.said)[..] else {
        panic!("{}", demo.said);
    };
    for worker in [worker_a, worker_b] {
        let pid = Pid::from_raw(worker).expect("a process id");
        kill_process(pid, Signal::STOP).expect("it runs");
    }

    let ended = demo.end();

    let mut errors = String::new();
    let mut stderr = demo.process.stderr.take().expect("piped");
    stderr.read_to_string(&mut errors).expect("UTF-8");
    assert_eq!(ended.code(), Some(1), "{}\n{errors}", demo.said);
    assert!(errors.contains("this did not hold"), "{errors}");
    assert!(errors.contains("--- worker-a\n"), "{errors}");
    assert!(errors.contains("worker starts"), "{errors}");
    assert!(!runs(worker_a) && !runs(worker_b), "they ended");
    assert!(is_empty(folder.path()));
}
