//! What processes have used of the machine, as Linux tells it in `/proc`. Elsewhere nothing is known.

use std::fs;
use std::time::Duration;

/// A tick of the times in `/proc/<pid>/stat`; Linux shows them in hundredths of a second on every machine.
const TICK: Duration = Duration::from_millis(10);

/// CPU time of a process with all its threads, user and system.
pub(super) fn cpu_of(pid: u32) -> Option<Duration> {
    let stat = Stat::of(pid)?;
    Some(TICK * (stat.own))
}

/// CPU time of a server with all its processes, those that have ended included.
pub(super) fn cpu_of_server(pid: u32) -> Option<Duration> {
    loop {
        let before = Stat::of(pid)?;
        let children: u32 = fs::read_dir("/proc")
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(Stat::of)
            .filter(|child| child.parent == pid)
            .map(|child| child.own)
            .sum();
        let server = Stat::of(pid)?;
        // One that ends between the looks would count twice, or not at all.
        if server.ended_children == before.ended_children {
            return Some(TICK * (server.own + server.ended_children + children));
        }
    }
}

/// The most memory that a process ever had, in bytes.
pub(super) fn peak_memory_of(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// The server that a session's process belongs to, if it runs on this machine.
pub(super) fn server_of_backend(pid: u32) -> Option<u32> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    name.trim()
        .starts_with("postgres")
        .then(|| Stat::of(pid))?
        .map(|stat| stat.parent)
}

/// CPUs that this process may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Of `/proc/<pid>/stat`, times in ticks.
struct Stat {
    parent: u32,
    own: u32,
    ended_children: u32,
}

impl Stat {
    fn of(pid: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is the program's name in parentheses, and may hold anything.
        let fields: Vec<&str> = text.get(text.rfind(')')? + 2..)?.split(' ').collect();
        let field = |number: usize| fields.get(number)?.parse::<u32>().ok();
        Some(Self {
            parent: field(1)?,
            own: field(11)? + field(12)?,
            ended_children: field(13)? + field(14)?,
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn our_own_use_is_known() {
        let me = std::process::id();

        assert!(cpu_of(me).is_some());
        assert!(peak_memory_of(me).is_some_and(|bytes| bytes > 1024 * 1024));
        assert!(cpu_of_server(me).is_some());
    }
}
