//! Whether this machine can run a language's example, and what its commands then need around them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::page::{self, Page};
use crate::support::tell;
use crate::support::verifiers::MUST_RUN;

/// Where Debian puts the sources of Go packages.
const DEBIAN_GO: &str = "/usr/share/gocode";

/// Where Debian puts what the page names.
const DEBIAN_JARS: [&str; 2] = ["/usr/share/java/postgresql.jar", "/usr/share/java/gson.jar"];

/// What can run an example.
pub(super) struct Runtime {
    /// Where its commands are pasted.
    pub(super) folder: PathBuf,
    pub(super) environment: Vec<(&'static str, String)>,
}

impl Runtime {
    fn of(language: &str) -> Self {
        Self {
            folder: page::root().join("examples").join(language),
            environment: Vec::new(),
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }
}

/// The runtime, or nothing when it is missing and that has been told.
///
/// # Panics
///
/// When it is missing although [`MUST_RUN`] is set.
pub(super) fn or_tell(language: &str, runtime: Result<Runtime, String>) -> Option<Runtime> {
    match runtime {
        Ok(runtime) => Some(runtime),
        Err(reason) => {
            assert!(
                std::env::var_os(MUST_RUN).is_none(),
                "the example in {language} must run: {reason}"
            );
            tell(&format!(
                "NOT RUN: the example in {language}: {}",
                reason.trim()
            ));
            None
        }
    }
}

pub(super) fn psql() -> Result<Runtime, String> {
    succeeds("psql", &["--version"])?;
    Ok(Runtime::of("psql"))
}

pub(super) fn python() -> Result<Runtime, String> {
    let import = ["-c", "import psycopg"];
    let runtime = Runtime::of("python");
    if succeeds("python3", &import).is_ok() {
        return Ok(runtime);
    }
    // The one that Debian's packages are for may stand behind another.
    succeeds("/usr/bin/python3", &import)?;
    Ok(runtime.with("PATH", format!("/usr/bin:{}", path())))
}

/// Its package is installed into a copy of the folder, beside the build, with the page's command.
pub(super) fn node() -> Result<Runtime, String> {
    succeeds("node", &["--version"])?;
    let page = Page::of("node");
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = tmp.join("examples-node");
    if !folder.join("node_modules/pg").exists() {
        // Made aside and moved, since another test process may be at it, too: the first that is done wins.
        let aside = tempfile::tempdir_in(tmp).map_err(|error| error.to_string())?;
        let half = aside.path().join("node");
        copy_files(page.folder(), &half)?;
        output(
            Command::new("sh")
                .args(["-ec", &page.commands("Install")])
                .current_dir(&half),
        )?;
        // Refused when the other one has won; what counts is what is there now.
        drop(fs::rename(&half, &folder));
    }
    copy_files(page.folder(), &folder)?;
    let mut runtime = Runtime::of("node");
    runtime.folder = folder;
    Ok(runtime)
}

/// With Debian's package of the driver, which is made for builds without modules.
pub(super) fn go() -> Result<Runtime, String> {
    succeeds("go", &["version"])?;
    exists(&format!("{DEBIAN_GO}/src/github.com/lib/pq"))?;
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples-go");
    let cache = cache.to_str().ok_or("the build's path is not UTF-8")?;
    Ok(Runtime::of("go")
        .with("GO111MODULE", "off")
        .with("GOPATH", DEBIAN_GO)
        .with("GOCACHE", cache))
}

pub(super) fn java() -> Result<Runtime, String> {
    // A runtime without the compiler cannot run a source file.
    succeeds("javac", &["--version"])?;
    DEBIAN_JARS.iter().try_for_each(|jar| exists(jar))?;
    Ok(Runtime::of("java"))
}

pub(super) fn php() -> Result<Runtime, String> {
    succeeds("php", &["-r", "exit(extension_loaded('pgsql') ? 0 : 1);"])?;
    Ok(Runtime::of("php"))
}

pub(super) fn ruby() -> Result<Runtime, String> {
    succeeds("ruby", &["-e", "require 'pg'; require 'webrick'"])?;
    Ok(Runtime::of("ruby"))
}

/// Built by the Cargo that builds the tests, from what is downloaded already.
pub(super) fn rust() -> Result<Runtime, String> {
    succeeds("cargo", &["--version"])?;
    Ok(Runtime::of("rust").with("CARGO_NET_OFFLINE", "true"))
}

/// Where programs are looked for.
pub(super) fn path() -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    path.to_string_lossy().into_owned()
}

fn exists(path: &str) -> Result<(), String> {
    if Path::new(path).exists() {
        Ok(())
    } else {
        Err(format!("there is no {path}"))
    }
}

fn succeeds(program: &str, arguments: &[&str]) -> Result<(), String> {
    output(Command::new(program).args(arguments))
}

fn output(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}: {said}", output.status))
}

/// The files right in it, not its folders.
fn copy_files(from: &Path, to: &Path) -> Result<(), String> {
    let copied = || -> std::io::Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), to.join(entry.file_name()))?;
            }
        }
        Ok(())
    };
    copied().map_err(|error| format!("{}: {error}", to.display()))
}
