//! Where this machine keeps the server programs of PostgreSQL.
//!
//! Owns the search; it runs nothing but `pg_config --bindir` and `postgres --version`.

use std::cmp::Reverse;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ClusterError;

/// The oldest server that the schema works on.
pub(super) const OLDEST_MAJOR: u32 = 14;

/// Folders that packages use: parent, then what each entry's name starts with, then the way to the programs.
const USUAL: [(&str, &str, &str); 5] = [
    ("/usr/lib/postgresql", "", "bin"),
    ("/usr", "pgsql-", "bin"),
    ("/usr/local", "pgsql", "bin"),
    ("/opt/homebrew/opt", "postgresql", "bin"),
    ("/usr/local/opt", "postgresql", "bin"),
];

/// The programs of one installed server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    folder: PathBuf,
    major: u32,
}

impl Binaries {
    /// Looks on `PATH`, asks `pg_config`, then looks in the usual folders of packages, newest first.
    ///
    /// # Errors
    ///
    /// [`ClusterError::BinariesMissing`] or [`ClusterError::BinariesTooOld`]; both say what to install.
    pub fn find() -> Result<Self, ClusterError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let candidates = on_path(&path)
            .into_iter()
            .chain(from_pg_config(&path))
            .chain(usual_folders());
        Self::find_in(candidates)
    }

    /// The first of these folders that holds the programs of a supported version.
    ///
    /// # Errors
    ///
    /// As [`Binaries::find`].
    pub fn find_in(folders: impl IntoIterator<Item = PathBuf>) -> Result<Self, ClusterError> {
        let mut too_old = None;
        for folder in folders {
            let Some(found) = Self::inspect(folder) else {
                continue;
            };
            if found.major >= OLDEST_MAJOR {
                return Ok(found);
            }
            too_old.get_or_insert(found);
        }
        Err(match too_old {
            Some(Self { folder, major }) => ClusterError::BinariesTooOld { folder, major },
            None => ClusterError::BinariesMissing,
        })
    }

    /// Their folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Their major version, for example 17.
    #[must_use]
    pub fn major(&self) -> u32 {
        self.major
    }

    pub(super) fn initdb(&self) -> PathBuf {
        self.folder.join("initdb")
    }

    pub(super) fn postgres(&self) -> PathBuf {
        self.folder.join("postgres")
    }

    fn inspect(folder: PathBuf) -> Option<Self> {
        if !is_program(&folder.join("initdb")) {
            return None;
        }
        let said = Command::new(folder.join("postgres"))
            .arg("--version")
            .output()
            .ok()?;
        let major = major_version(&String::from_utf8_lossy(&said.stdout))?;
        Some(Self { folder, major })
    }
}

fn on_path(path: &OsStr) -> Vec<PathBuf> {
    // An empty or relative entry would mean whatever folder we happen to stand in.
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .collect()
}

fn from_pg_config(path: &OsStr) -> Option<PathBuf> {
    let program = on_path(path)
        .into_iter()
        .map(|folder| folder.join("pg_config"))
        .find(|it| is_program(it))?;
    let said = Command::new(program).arg("--bindir").output().ok()?;
    let folder = String::from_utf8(said.stdout).ok()?;
    Some(PathBuf::from(folder.trim_end()))
}

fn usual_folders() -> Vec<PathBuf> {
    USUAL
        .iter()
        .flat_map(|(parent, prefix, rest)| newest_first(Path::new(parent), prefix, rest))
        .collect()
}

/// `parent/prefix*/rest`, ordered by the number that follows the prefix.
fn newest_first(parent: &Path, prefix: &str, rest: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort_by_cached_key(|name| Reverse((leading_number(&name[prefix.len()..]), name.clone())));
    names
        .into_iter()
        .map(|name| parent.join(name).join(rest))
        .collect()
}

/// The first run of digits in `text`: 17 of `17`, `@17` and `17.2`, 0 if there is none.
fn leading_number(text: &str) -> u32 {
    text.split(|c: char| !c.is_ascii_digit())
        .find(|run| !run.is_empty())
        .and_then(|run| run.parse().ok())
        .unwrap_or(0)
}

/// The major version in what `postgres --version` prints.
fn major_version(said: &str) -> Option<u32> {
    let (_, version) = said.split_once("(PostgreSQL) ")?;
    Some(leading_number(version)).filter(|major| *major > 0)
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by a shell: a file that we hold open for writing ourselves cannot be run while another
    /// test forks.
    fn program(path: &Path, script: &str) {
        fs::create_dir_all(path.parent().expect("has a parent")).expect("folder");
        let wrote = Command::new("sh")
            .args([
                "-c",
                "printf '%s' \"$2\" > \"$1\" && chmod 755 \"$1\"",
                "sh",
            ])
            .arg(path)
            .arg(script)
            .status();
        assert!(wrote.expect("sh runs").success());
    }

    fn installation(root: &Path, version: &str) -> PathBuf {
        program(&root.join("initdb"), "#!/bin/sh\n");
        program(
            &root.join("postgres"),
            &format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n"),
        );
        root.to_owned()
    }

    #[test]
    fn the_first_folder_with_both_programs_is_taken() {
        let root = tempfile::tempdir().expect("folder");
        let half = root.path().join("half");
        program(&half.join("initdb"), "#!/bin/sh\n");
        let whole = installation(&root.path().join("whole"), "16.3 (Debian 16.3-1)");

        let found = Binaries::find_in([root.path().join("absent"), half, whole.clone()]);

        assert_eq!(
            found.expect("found"),
            Binaries {
                folder: whole,
                major: 16
            }
        );
    }

    #[test]
    fn a_server_too_old_is_passed_over_and_named_only_if_there_is_no_other() {
        let root = tempfile::tempdir().expect("folder");
        let old = installation(&root.path().join("old"), "9.6.24");
        let new = installation(&root.path().join("new"), "14.1");

        let both = Binaries::find_in([old.clone(), new.clone()]).expect("found");
        let alone = Binaries::find_in([old.clone()]).expect_err("too old");

        assert_eq!(both.folder(), new);
        assert!(
            matches!(alone, ClusterError::BinariesTooOld { folder, major: 9 } if folder == old)
        );
    }

    #[test]
    fn missing_programs_are_answered_with_what_to_install() {
        let message = Binaries::find_in([])
            .expect_err("nothing there")
            .to_string();

        for advice in [
            "apt-get install postgresql",
            "dnf install",
            "brew install",
            "docker compose up",
        ] {
            assert!(message.contains(advice), "{advice} is not in: {message}");
        }
    }

    #[test]
    fn versions_are_ordered_as_numbers_newest_first() {
        let root = tempfile::tempdir().expect("folder");
        for name in ["9.6", "17", "14", "beta"] {
            fs::create_dir(root.path().join(name)).expect("folder");
        }

        let found = newest_first(root.path(), "", "bin");

        let expected: Vec<_> = ["17", "14", "9.6", "beta"]
            .map(|name| root.path().join(name).join("bin"))
            .into();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_relative_entry_of_path_is_not_searched() {
        let found = on_path(OsStr::new(":bin:.:/usr/bin"));

        assert_eq!(found, [PathBuf::from("/usr/bin")]);
    }
}
