//! Processes of this same program that work for `demo` and `dev`: started, read line by line, ended.
//!
//! A child sees a clean environment, so that nothing set for the parent's sake (`PG*`, `DATABASE_URL`, `POSTRIDER_*`, a proxy)
//! changes what it does. Its stdin is a pipe that ends with us: even if we are killed, it does not stay behind.

use std::io::Read as _;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{ChildStdin, Command};
use tokio::task::JoinSet;

/// The flag, without its dashes, by which a child is asked to end with its stdin.
pub(super) const END_WITH_STDIN: &str = "end-with-stdin";

/// How long a child may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(8);

/// The other half of [`Child`]: ends this process when its stdin does.
pub(super) fn end_with_stdin() {
    std::thread::spawn(|| {
        // An error is an end, too. Nobody is left to read what we would say.
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        std::process::exit(1);
    });
}

/// What to start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe<'a> {
    /// The subcommand and its flags.
    pub(super) arguments: &'a [&'a str],
    /// All that it finds in its environment; the place for secrets, which arguments would show to every user.
    pub(super) environment: &'a [(&'a str, &'a str)],
}

/// Where a child said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Its results.
    Stdout,
    /// What it tells about itself.
    Stderr,
}

/// A process that was started here. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Child {
    process: tokio::process::Child,
    pid: u32,
    /// Ends the child when it closes, by our own end at the latest.
    _stdin: Option<ChildStdin>,
    readers: JoinSet<()>,
}

impl Child {
    /// Starts this program anew; `on_line` is called with each line that it prints.
    pub(super) fn start(
        recipe: Recipe<'_>,
        on_line: impl Fn(Source, &str) + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut process = Command::new(&program)
            .args(recipe.arguments)
            .arg(format!("--{END_WITH_STDIN}"))
            .env_clear()
            .envs(recipe.environment.iter().copied())
            // Times on the screen are those of the user's clock.
            .envs(std::env::var_os("TZ").map(|zone| ("TZ", zone)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C is for us to act on: we end the children in their order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;

        let on_line = Arc::new(on_line);
        let mut readers = JoinSet::new();
        if let Some(stdout) = process.stdout.take() {
            let on_line = Arc::clone(&on_line);
            readers.spawn(read_lines(stdout, move |line| {
                on_line(Source::Stdout, line);
            }));
        }
        if let Some(stderr) = process.stderr.take() {
            readers.spawn(read_lines(stderr, move |line| {
                on_line(Source::Stderr, line);
            }));
        }
        Ok(Self {
            pid: process.id().context("a process that has just begun")?,
            _stdin: process.stdin.take(),
            process,
            readers,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns when it has ended by itself.
    pub(super) async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        self.process.wait().await.context("cannot wait for a child")
    }

    /// SIGKILL. Returns when the process is gone and every line it had printed was handed over.
    pub(super) async fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill().await.context("cannot kill a child")?;
        self.all_read().await;
        Ok(())
    }

    /// SIGTERM, and SIGKILL if that takes too long. Returns as [`kill`](Self::kill) does.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        self.ask_to_end();
        if tokio::time::timeout(PATIENCE, self.process.wait())
            .await
            .is_err()
        {
            return self.kill().await;
        }
        self.all_read().await;
        Ok(())
    }

    fn ask_to_end(&self) {
        // `id` is there only until the process was waited for, so the number is still its own.
        let pid = self.process.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM).ok();
        }
    }

    async fn all_read(&mut self) {
        while self.readers.join_next().await.is_some() {}
    }
}

async fn read_lines(stream: impl AsyncRead + Unpin, on_line: impl Fn(&str)) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    while stream
        .read_until(b'\n', &mut line)
        .await
        .is_ok_and(|length| length > 0)
    {
        on_line(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}
