//! The server's process: started, watched until it is ready, stopped.
//!
//! Beside it runs a guard, a few lines of shell whose input is a pipe from us. When we end without
//! having stopped the server, even by SIGKILL, the pipe closes and the guard stops it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::account::Account;
use super::folder::Folder;
use super::leftover::{LockFile, PAUSE, STOP_PATIENCE, answers_as_postgres};
use super::{Binaries, ClusterError};

/// How long a start may take; a kept cluster may have to recover first.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// How much of a log an error shows.
const TAIL_LINES: usize = 15;

/// `$1` process id, `$2` data folder, `$3` folder to remove or nothing. The lock file must still
/// name the process, since a process id alone may have passed to another.
const GUARD: &str = r#"
read -r _
[ "$(head -n 1 "$2/postmaster.pid" 2>/dev/null)" = "$1" ] && kill -INT "$1"
tries=0
while [ -e "$2/postmaster.pid" ] && [ "$tries" -lt 300 ]; do sleep 0.1; tries=$((tries + 1)); done
[ -z "$3" ] || rm -rf "$3"
"#;

/// A running server; it ends with this value. Stopping it twice does no harm.
#[derive(Debug)]
pub(super) struct Server {
    process: Child,
    guard: Option<Child>,
    port: u16,
    log: PathBuf,
}

impl Server {
    /// Starts it on a free port and waits until it takes connections.
    pub(super) fn start(
        binaries: &Binaries,
        folder: &Folder,
        account: Option<&Account>,
        settings: &[(String, String)],
    ) -> Result<Self, ClusterError> {
        let port = free_port()?;
        let log = folder.log();
        let process = spawn(binaries, folder, account, settings, port)?;
        let guard = spawn_guard(folder, process.id());
        let mut server = Self {
            process,
            guard,
            port,
            log,
        };
        server.wait_until_ready(&folder.data())?;
        Ok(server)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Nobody stops it any more when we end.
    pub(super) fn dismiss_guard(&mut self) {
        if let Some(mut guard) = self.guard.take() {
            drop(guard.kill());
            drop(guard.wait());
        }
    }

    /// Fast shutdown: sessions are ended, data are written. By force if that takes too long.
    pub(super) fn stop(&mut self) -> Result<(), ClusterError> {
        let stopped = self.stop_process();
        // Only now: until the server has ended, it is the guard's task if we are killed.
        self.dismiss_guard();
        stopped
    }

    fn stop_process(&mut self) -> Result<(), ClusterError> {
        if self.ends_upon(Signal::INT, STOP_PATIENCE) {
            return Ok(());
        }
        if !self.ends_upon(Signal::QUIT, STOP_PATIENCE / 3) {
            drop(self.process.kill());
            drop(self.process.wait());
        }
        Err(ClusterError::NotStopped {
            pid: self.pid(),
            log: self.log.clone(),
        })
    }

    /// Whether it has ended, or does so within `patience` of the signal.
    fn ends_upon(&mut self, signal: Signal, patience: Duration) -> bool {
        // Sent only while it has not been waited for, so the number is still this process's own.
        if self.ended().is_none() && kill_process(Pid::from_child(&self.process), signal).is_err() {
            return self.ended().is_some();
        }
        let deadline = Instant::now() + patience;
        while self.ended().is_none() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    fn wait_until_ready(&mut self, data: &Path) -> Result<(), ClusterError> {
        let deadline = Instant::now() + START_PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.ended() {
                return Err(ClusterError::Exited {
                    status,
                    log: tail(&self.log),
                });
            }
            let lock =
                LockFile::read(data).filter(|lock| u32::try_from(lock.pid) == Ok(self.pid()));
            if lock.is_some_and(|lock| lock.ready) && answers_as_postgres(self.port) {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        Err(ClusterError::NotReady {
            seconds: START_PATIENCE.as_secs(),
            log: tail(&self.log),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(%error, "the private PostgreSQL did not stop cleanly");
        }
    }
}

fn spawn(
    binaries: &Binaries,
    folder: &Folder,
    account: Option<&Account>,
    settings: &[(String, String)],
    port: u16,
) -> Result<Child, ClusterError> {
    let path = folder.log();
    let log = File::create(&path).map_err(ClusterError::folder("write", &path))?;
    let log_too = log
        .try_clone()
        .map_err(ClusterError::folder("write", &path))?;

    let mut postgres = folder.command(&binaries.postgres(), account);
    postgres.arg("-D").arg(folder.data());
    for (name, value) in settings {
        postgres.arg("-c").arg(format!("{name}={value}"));
    }
    postgres
        // After the caller's, since we rely on them: loopback only, and the log where we look for it.
        .args([
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "unix_socket_directories=",
        ])
        .args([
            "-c",
            "logging_collector=off",
            "-c",
            "log_destination=stderr",
        ])
        .args(["-c", &format!("port={port}")])
        .stdout(log)
        .stderr(log_too)
        // A Ctrl-C is for us to act on: the server ends after those who use it.
        .process_group(0);
    postgres
        .spawn()
        .map_err(ClusterError::not_runnable(binaries.postgres()))
}

fn spawn_guard(folder: &Folder, server: u32) -> Option<Child> {
    let guard = Command::new("/bin/sh")
        .args(["-c", GUARD, "postrider-guard", &server.to_string()])
        .arg(folder.data())
        .arg(folder.to_remove().unwrap_or(Path::new("")))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn();
    guard
        .inspect_err(|error| tracing::warn!(%error, "no guard: the private PostgreSQL would outlive a SIGKILL"))
        .ok()
}

fn free_port() -> Result<u16, ClusterError> {
    let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(ClusterError::NoPort)?;
    Ok(probe.local_addr().map_err(ClusterError::NoPort)?.port())
}

fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
