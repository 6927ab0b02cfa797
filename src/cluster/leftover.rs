//! A server that an earlier process left in a kept folder: found by `postmaster.pid`, and ended.
//!
//! Owns the reading of that file and the question whether its process is really that server: after
//! a crash or in a new container the number may belong to anybody.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::ClusterError;
use super::folder::Folder;

/// How long a fast shutdown may take: it ends with a checkpoint.
pub(super) const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at something that will happen soon.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// What the server's own lock file says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LockFile {
    pub(super) pid: i32,
    pub(super) port: u16,
    /// The server takes connections.
    pub(super) ready: bool,
}

impl LockFile {
    /// `None` if there is none, or if the server is still writing it.
    pub(super) fn read(data: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(data.join("postmaster.pid")).ok()?)
    }

    /// Lines as PostgreSQL 10 and later write them: 1 process id, 4 port, 8 status.
    fn parse(text: &str) -> Option<Self> {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        Some(Self {
            pid: lines.first()?.parse().ok().filter(|pid| *pid > 0)?,
            port: lines.get(3)?.parse().ok()?,
            ready: lines.get(7) == Some(&"ready"),
        })
    }
}

/// Makes the folder free for a new server.
///
/// A server whose owner still runs is left alone and reported; one that was left behind is stopped;
/// a stale lock file whose number now belongs to another process is removed, since PostgreSQL would
/// believe it.
pub(super) fn clear(folder: &Folder) -> Result<(), ClusterError> {
    let data = folder.data();
    let Some(lock) = LockFile::read(&data) else {
        return Ok(());
    };
    let (Some(pid), Ok(server)) = (Pid::from_raw(lock.pid), u32::try_from(lock.pid)) else {
        return Ok(());
    };
    if !is_server_of(&data, pid, lock.port) {
        let file = data.join("postmaster.pid");
        return match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ClusterError::folder("remove", file)(error))
            }
            _ => Ok(()),
        };
    }
    if let Some(owner) = folder.claimed_by().filter(|owner| is_alive(*owner)) {
        return Err(ClusterError::InUse {
            folder: folder.path().to_owned(),
            owner,
            server,
        });
    }

    let not_stopped = || ClusterError::NotStopped {
        pid: server,
        log: folder.log(),
    };
    kill_process(pid, Signal::INT).map_err(|_| not_stopped())?;
    let deadline = Instant::now() + STOP_PATIENCE;
    while is_server_of(&data, pid, lock.port) {
        if Instant::now() >= deadline {
            return Err(not_stopped());
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Whether process `pid` is a server that runs on `data`.
fn is_server_of(data: &Path, pid: Pid, port: u16) -> bool {
    match working_folder(pid) {
        // A server stands in its data folder for as long as it lives.
        Ok(folder) => data.canonicalize().is_ok_and(|data| data == folder),
        Err(Unknown::Gone) => false,
        Err(Unknown::NotTold) => answers_as_postgres(port),
    }
}

fn is_alive(pid: u32) -> bool {
    i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .is_some_and(|pid| !matches!(working_folder(pid), Err(Unknown::Gone)))
}

enum Unknown {
    /// There is no such process, or only its exit code is left.
    Gone,
    /// The system does not say.
    NotTold,
}

fn working_folder(pid: Pid) -> Result<PathBuf, Unknown> {
    if test_kill_process(pid).is_err_and(|error| error == rustix::io::Errno::SRCH) {
        return Err(Unknown::Gone);
    }
    let has_proc = Path::new("/proc/self/cwd").exists();
    fs::read_link(format!("/proc/{}/cwd", pid.as_raw_pid())).map_err(|error| {
        if has_proc && error.kind() == io::ErrorKind::NotFound {
            Unknown::Gone
        } else {
            Unknown::NotTold
        }
    })
}

/// Asks for TLS as any client may: only PostgreSQL answers that with `S` or `N`.
pub(super) fn answers_as_postgres(port: u16) -> bool {
    const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    let patience = Duration::from_secs(1);
    let ask = || {
        let mut connection =
            TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), patience)?;
        connection.set_read_timeout(Some(patience))?;
        connection.write_all(&SSL_REQUEST)?;
        let mut answer = [0];
        connection.read_exact(&mut answer)?;
        io::Result::Ok(answer[0])
    };
    matches!(ask(), Ok(b'S' | b'N'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: &str = "4711\n/srv/data\n1700000000\n54321\n\n127.0.0.1\n  1234  5\nready   \n";

    #[test]
    fn the_lock_file_tells_process_port_and_status() {
        let lock = LockFile::parse(READY);

        assert_eq!(
            lock,
            Some(LockFile {
                pid: 4711,
                port: 54321,
                ready: true
            })
        );
    }

    #[test]
    fn a_server_that_is_starting_or_stopping_is_not_ready() {
        for status in ["starting", "stopping", ""] {
            let lock = LockFile::parse(&READY.replace("ready   ", status)).expect("parses");

            assert!(!lock.ready, "{status:?}");
        }
    }

    #[test]
    fn half_a_lock_file_and_a_negative_process_are_nothing() {
        assert_eq!(LockFile::parse("4711\n/srv/data\n"), None);
        assert_eq!(LockFile::parse(&READY.replace("4711", "-4711")), None);
        assert_eq!(LockFile::parse(""), None);
    }

    #[test]
    fn another_process_with_the_same_number_is_not_the_server() {
        let elsewhere = tempfile::tempdir().expect("folder");

        assert!(!is_server_of(
            elsewhere.path(),
            rustix::process::getpid(),
            1
        ));
    }
}
