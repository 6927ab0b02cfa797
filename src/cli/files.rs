//! How many files this process may have open: each try has a socket, and each connection that is kept for the next one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is open besides receivers' sockets: sessions, the runtime's own, logs, names being looked up.
const OTHERS: u64 = 64;

/// Raises the limit as far as this process may, and returns how many tries at a time it then allows for; `None`: any number.
///
/// The usual limit of 1024 is for the sake of programs that use `select`; which files there are is bounded by the hard limit.
pub(super) fn tries_allowed() -> Option<usize> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Refused at worst, and then the old limit stands.
    let now = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    now.map(tries_within)
}

/// As many tries as there can be connections kept for later ones.
fn tries_within(files: u64) -> usize {
    usize::try_from(files.saturating_sub(OTHERS) / 2)
        .unwrap_or(usize::MAX)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_leave_room_for_few_tries_but_one() {
        assert_eq!(tries_within(1_048_576), 524_256);
        assert_eq!(tries_within(256), 96);
        assert_eq!(tries_within(10), 1);
    }
}
