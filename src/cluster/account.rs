//! Who the server runs as: PostgreSQL refuses root, so root hands it to another user.
//!
//! Owns the choice of that user and the question whether it can reach a folder.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ClusterError;

/// Users that root hands the server to, best first.
const CANDIDATES: [&str; 2] = ["postgres", "nobody"];

/// Another user than ourselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    name: String,
    uid: u32,
    gid: u32,
}

impl Account {
    /// The account to run the server as; `None` means as ourselves.
    pub(super) fn for_server() -> Result<Option<Self>, ClusterError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        CANDIDATES
            .iter()
            .find_map(|name| Self::in_passwd(&users, name))
            .map(Some)
            .ok_or(ClusterError::NoAccount)
    }

    /// Finds `name` in the text of a passwd file. One that is root by another name does not count.
    fn in_passwd(users: &str, name: &str) -> Option<Self> {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let found = fields.next()? == name;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            (found && uid != 0).then(|| Self {
                name: name.to_owned(),
                uid,
                gid,
            })
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Makes `command` run as this account, without our supplementary groups.
    pub(super) fn apply(&self, command: &mut Command) {
        command.gid(self.gid).uid(self.uid);
    }

    /// Gives it the file or folder itself.
    pub(super) fn give(&self, path: &Path) -> Result<(), ClusterError> {
        chown(path, Some(self.uid), Some(self.gid))
            .map_err(ClusterError::folder("change the owner of", path))
    }

    /// The outermost existing folder on the way to (and including) `path` that it may not enter.
    pub(super) fn barrier(&self, path: &Path) -> Option<PathBuf> {
        let mut way: Vec<&Path> = path.ancestors().collect();
        way.reverse();
        way.into_iter()
            .filter_map(|step| Some((step, fs::metadata(step).ok()?)))
            .find(|(_, facts)| !self.may_enter(facts.uid(), facts.gid(), facts.mode()))
            .map(|(step, _)| step.to_owned())
    }

    fn may_enter(&self, owner: u32, group: u32, mode: u32) -> bool {
        let bit = if owner == self.uid {
            0o100
        } else if group == self.gid {
            0o010
        } else {
            0o001
        };
        mode & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/bash\n\
                         odd line\n\
                         toor:x:0:0::/:/bin/sh\n\
                         postgres:x:101:104:PostgreSQL,,,:/var/lib/postgresql:/bin/bash\n";

    #[test]
    fn an_account_is_found_by_its_whole_name() {
        let found = Account::in_passwd(USERS, "postgres");

        assert_eq!(
            found,
            Some(Account {
                name: "postgres".to_owned(),
                uid: 101,
                gid: 104
            })
        );
        assert_eq!(Account::in_passwd(USERS, "postgre"), None);
    }

    #[test]
    fn root_by_another_name_is_no_account_for_the_server() {
        assert_eq!(Account::in_passwd(USERS, "toor"), None);
    }

    #[test]
    fn who_may_enter_is_decided_by_the_first_class_that_fits() {
        let account = Account {
            name: "postgres".to_owned(),
            uid: 101,
            gid: 104,
        };

        assert!(account.may_enter(101, 0, 0o700));
        assert!(!account.may_enter(101, 0, 0o077));
        assert!(account.may_enter(0, 104, 0o710));
        assert!(!account.may_enter(0, 104, 0o701));
        assert!(account.may_enter(0, 0, 0o711));
        assert!(!account.may_enter(0, 0, 0o700));
    }
}
