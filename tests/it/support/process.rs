//! The real program, as a user starts it, and the ways in which it may end.
//!
//! Owns processes of ours only: signals go to a child that has not been waited for, so its number is nobody else's.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use super::Database;
use super::wait::{SOON, wait_until};

/// The program with nothing around it that a test did not put there: no `PG*`, no `DATABASE_URL`, no proxy, no
/// `~/.pgpass`.
pub(crate) fn postrider() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR"));
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command
}

/// A command that runs and ends, on this database. Arguments come first, as a user types them.
pub(crate) fn on(database: &Database, arguments: &[&str]) -> Command {
    let mut command = postrider();
    command
        .args(arguments)
        .args(["--database-url", database.url()]);
    command
}

/// A running `postrider worker`, or another command that stays. It is killed with this value, and when the test
/// fails, what it said is shown.
pub(crate) struct Worker {
    process: Child,
    said: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Worker {
    /// A worker that may send to this machine. `arguments` come after ours, so that they win.
    pub(crate) fn spawn(database: &Database, arguments: &[&str]) -> Self {
        let mut command = on(
            database,
            &[
                "worker",
                "--allow-network",
                "127.0.0.0/8",
                "--allow-network",
                "::1/128",
            ],
        );
        command.args(arguments);
        Self::run(command)
    }

    /// Any command, with its output kept.
    pub(crate) fn run(mut command: Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let said = Arc::new(Mutex::new(String::new()));
        let readers = vec![
            keep_lines(process.stdout.take().expect("it is piped"), &said),
            keep_lines(process.stderr.take().expect("it is piped"), &said),
        ];
        Self {
            process,
            said,
            readers,
        }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it has printed so far, both streams, line by line as they came.
    pub(crate) fn said(&self) -> String {
        self.said
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits until a line of it contains `text`.
    pub(crate) async fn wait_for_line(&self, text: &str) {
        let what = format!("the worker says {text:?}");
        wait_until(
            &what,
            async || self.said(),
            |said| said.contains(text),
            SOON,
        )
        .await;
    }

    /// As when the machine dies: nothing can be tidied up. Returns when it is gone.
    pub(crate) fn kill_9(&mut self) {
        self.process.kill().expect("a child can be killed");
        self.process.wait().expect("a killed child ends");
    }

    /// It stands still (SIGSTOP), as in a swapped or paused machine.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::STOP);
    }

    /// It goes on after [`Worker::stop`].
    pub(crate) fn cont(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end (SIGTERM), as service managers do.
    pub(crate) fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Waits until it has ended by itself, and all it said is here.
    pub(crate) async fn wait(&mut self) -> ExitStatus {
        let Self { process, said, .. } = self;
        let look = async || (process.try_wait().expect("its state"), Shown(said));
        let (status, _) = wait_until(
            "the program has ended",
            look,
            |(status, _)| status.is_some(),
            SOON,
        )
        .await;
        for reader in self.readers.drain(..) {
            reader.join().expect("readers do not fail");
        }
        status.expect("waited for it")
    }

    fn signal(&mut self, signal: Signal) {
        let ended = self.process.try_wait().expect("its state");
        assert_eq!(
            ended,
            None,
            "it has ended by itself; it said:\n{}",
            self.said()
        );
        kill_process(Pid::from_child(&self.process), signal).expect("our own child takes signals");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
        if std::thread::panicking() {
            for reader in self.readers.drain(..) {
                drop(reader.join());
            }
            show(&format!(
                "---- process {} said:\n{}----",
                self.id(),
                self.said()
            ));
        }
    }
}

#[allow(
    clippy::print_stderr,
    reason = "the test runner shows it with the test that failed"
)]
fn show(text: &str) {
    eprintln!("{text}");
}

/// Prints as the text it holds, with its lines.
struct Shown<'worker>(&'worker Mutex<String>);

impl std::fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn keep_lines(stream: impl Read + Send + 'static, said: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        // Bytes, since a program that prints something odd must not lose what it says next.
        while stream
            .read_until(b'\n', &mut line)
            .is_ok_and(|length| length > 0)
        {
            said.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    })
}
