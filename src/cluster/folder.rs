//! The folder of one cluster: made, checked, filled by initdb, and removed if it was temporary.
//!
//! Owns what lies in it and who it belongs to. Processes are the server's matter.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rand::distr::{Alphanumeric, SampleString as _};
use tempfile::TempDir;

use super::account::Account;
use super::{Binaries, ClusterError, SUPERUSER};

/// Others may pass through, but not look around.
const PASS_THROUGH: u32 = 0o711;

/// See the module's docs for what lies where.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    temporary: Option<TempDir>,
}

impl Folder {
    /// A new folder that is removed with this value.
    pub(super) fn temporary(account: Option<&Account>) -> Result<Self, ClusterError> {
        let unreachable =
            |place: &PathBuf| account.is_some_and(|account| account.barrier(place).is_some());
        // A TMPDIR of root's own is no place for the server's account.
        let place = Some(std::env::temp_dir())
            .filter(|it| !unreachable(it))
            .unwrap_or_else(|| "/tmp".into());
        let made = tempfile::Builder::new()
            .prefix("postrider-")
            .tempdir_in(&place)
            .map_err(ClusterError::folder("make a folder in", &place))?;
        let folder = Self {
            path: made.path().to_owned(),
            temporary: Some(made),
        };
        folder.open_for(account)?;
        Ok(folder)
    }

    /// A folder that stays. It is made with its parents, or must be empty or one of ours.
    pub(super) fn kept(path: PathBuf, account: Option<&Account>) -> Result<Self, ClusterError> {
        let path = std::path::absolute(&path).map_err(ClusterError::folder("find", path))?;
        if let Some(account) = account {
            // What is missing will be made passable; the folder itself is opened below if it is ours.
            let way = path.parent().unwrap_or(&path);
            if let Some(barrier) = account.barrier(way) {
                return Err(ClusterError::NotTraversable {
                    folder: path,
                    barrier,
                    account: account.name().to_owned(),
                });
            }
        }

        make_passable(&path)?;
        let folder = Self {
            path,
            temporary: None,
        };
        if !folder.is_initialised() && !folder.holds_only_our_remains()? {
            return Err(ClusterError::NotOurs {
                folder: folder.path,
            });
        }
        folder.open_for(account)?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The server's own data folder.
    pub(super) fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.path.join("server.log")
    }

    fn password_file(&self) -> PathBuf {
        self.path.join("password")
    }

    fn owner_file(&self) -> PathBuf {
        self.path.join("owner")
    }

    /// The folder to remove if nobody is left to do it.
    pub(super) fn to_remove(&self) -> Option<&Path> {
        self.temporary.as_ref().map(TempDir::path)
    }

    /// Data that go away with the server need not survive a power cut.
    pub(super) fn default_settings(&self) -> Vec<(String, String)> {
        match self.temporary {
            Some(_) => vec![
                ("fsync".into(), "off".into()),
                ("full_page_writes".into(), "off".into()),
            ],
            None => Vec::new(),
        }
    }

    /// Runs initdb unless the data are there. Returns the superuser's password.
    pub(super) fn initialise(
        &self,
        binaries: &Binaries,
        account: Option<&Account>,
    ) -> Result<String, ClusterError> {
        if self.is_initialised() {
            let file = self.password_file();
            return fs::read_to_string(&file).map_err(ClusterError::folder("read", file));
        }

        let data = self.data();
        // An initdb that was cut short leaves half a folder, which the next one would refuse.
        remove_all(&data)?;
        DirBuilder::new()
            .mode(0o700)
            .create(&data)
            .map_err(ClusterError::folder("make", &data))?;
        let password = Alphanumeric.sample_string(&mut rand::rng(), 32);
        let for_initdb = self.path.join("password.initdb");
        write_secret(&for_initdb, &password)?;
        if let Some(account) = account {
            account.give(&data)?;
            account.give(&for_initdb)?;
        }

        self.run_initdb(binaries, account, &for_initdb)?;
        // Its presence says that the data are whole; until then the other one says that they are not.
        write_secret(&self.password_file(), &password)?;
        remove_all(&for_initdb)?;
        Ok(password)
    }

    fn run_initdb(
        &self,
        binaries: &Binaries,
        account: Option<&Account>,
        password_file: &Path,
    ) -> Result<(), ClusterError> {
        let mut initdb = self.command(&binaries.initdb(), account);
        initdb
            .args([
                "--encoding=UTF8",
                "--locale=C",
                "--auth=scram-sha-256",
                "--username",
                SUPERUSER,
            ])
            .arg("--pwfile")
            .arg(password_file)
            .arg("--pgdata")
            .arg(self.data());
        if self.temporary.is_some() {
            initdb.arg("--no-sync");
        }

        let done = initdb
            .output()
            .map_err(ClusterError::not_runnable(binaries.initdb()))?;
        if !done.status.success() {
            let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
            return Err(ClusterError::Initdb {
                folder: self.data(),
                output,
            });
        }
        Ok(())
    }

    /// A server program that runs as `account`, in this folder, and that our own libpq settings do not reach.
    pub(super) fn command(&self, program: &Path, account: Option<&Account>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG"))
        {
            command.env_remove(name);
        }
        // We read its log, and macOS wants a locale that is certain to exist.
        command
            .env("LC_ALL", "C")
            .current_dir(&self.path)
            .stdin(Stdio::null());
        if let Some(account) = account {
            account.apply(&mut command);
        }
        command
    }

    /// Notes that this process has a server running here.
    pub(super) fn claim(&self) -> Result<(), ClusterError> {
        let file = self.owner_file();
        fs::write(&file, std::process::id().to_string())
            .map_err(ClusterError::folder("write", file))
    }

    /// The process that noted itself here, whether it still runs or not.
    pub(super) fn claimed_by(&self) -> Option<u32> {
        fs::read_to_string(self.owner_file())
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// Makes a temporary folder stay.
    pub(super) fn keep(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            drop(temporary.keep());
        }
    }

    /// Call it when the server has ended: takes the note back, or removes a temporary folder.
    pub(super) fn release(&mut self) -> Result<(), ClusterError> {
        match self.temporary.take() {
            Some(temporary) => temporary
                .close()
                .map_err(ClusterError::folder("remove", &self.path)),
            None => remove_all(&self.owner_file()),
        }
    }

    fn is_initialised(&self) -> bool {
        self.password_file().is_file() && self.data().join("PG_VERSION").is_file()
    }

    /// True for an empty folder, and for what an interrupted first start may have left.
    fn holds_only_our_remains(&self) -> Result<bool, ClusterError> {
        let failed = || ClusterError::folder("look into", &self.path);
        for entry in fs::read_dir(&self.path).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            let half_done = name == "data" && self.path.join("password.initdb").is_file();
            if !half_done && name != "password.initdb" && name != "server.log" {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn open_for(&self, account: Option<&Account>) -> Result<(), ClusterError> {
        match account {
            Some(_) => pass_through(&self.path),
            None => Ok(()),
        }
    }
}

/// Makes a folder and its missing parents so that the server's account can pass, whatever the umask.
fn make_passable(path: &Path) -> Result<(), ClusterError> {
    let missing: Vec<&Path> = path.ancestors().take_while(|step| !step.exists()).collect();
    for step in missing.into_iter().rev() {
        match fs::create_dir(step) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made.map_err(ClusterError::folder("make", step))?;
                pass_through(step)?;
            }
        }
    }
    Ok(())
}

fn pass_through(path: &Path) -> Result<(), ClusterError> {
    fs::set_permissions(path, Permissions::from_mode(PASS_THROUGH))
        .map_err(ClusterError::folder("change the permissions of", path))
}

/// A new file that only its owner reads; an old one of that name is replaced.
fn write_secret(path: &Path, secret: &str) -> Result<(), ClusterError> {
    remove_all(path)?;
    let write = |mut file: File| file.write_all(secret.as_bytes());
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(write)
        .map_err(ClusterError::folder("write", path))
}

/// Removes a file or a folder with all that is in it; it may be gone already.
fn remove_all(path: &Path) -> Result<(), ClusterError> {
    let removed = if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(ClusterError::folder("remove", path)),
    }
}
