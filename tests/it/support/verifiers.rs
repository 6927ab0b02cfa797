//! Signatures are checked by somebody else's verifiers of Standard Webhooks: the Rust crate and the Python package.
//!
//! Both refuse a timestamp that is more than five minutes off, and a body that is not UTF-8.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use http::HeaderMap;
use serde_json::json;
use standardwebhooks::{Webhook, WebhookError};

use super::tell;

/// Set where every check must run, such as on a build server: what cannot run then fails.
pub(crate) const MUST_RUN: &str = "POSTRIDER_TEST_MUST_RUN_ALL";

/// One request as a receiver got it, and the secret that it knows.
pub(crate) struct Received<'a> {
    pub(crate) secret: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
}

/// Asks the Rust crate.
pub(crate) fn verify_with_crate(received: &Received<'_>) -> Result<(), WebhookError> {
    Webhook::new(received.secret)?.verify(received.body, received.headers)
}

/// What became of a check by a program that may be missing.
#[derive(Debug)]
#[must_use]
pub(crate) enum Checked {
    /// In the order of the requests: fine, or what the verifier said.
    Ran(Vec<Result<(), String>>),
    /// The reason has been told on stderr.
    NotRun,
}

/// Asks the Python package about all of them in one process.
///
/// # Panics
///
/// When it cannot be asked although [`MUST_RUN`] is set.
pub(crate) fn verify_with_python(batch: &[Received<'_>]) -> Checked {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match PYTHON.get_or_init(python_with_the_package) {
        Ok(python) => Checked::Ran(ask(python, batch)),
        Err(reason) => {
            assert!(
                std::env::var_os(MUST_RUN).is_none(),
                "the check in Python must run: {reason}"
            );
            tell(&format!(
                "NOT RUN: signatures were not checked in Python: {reason}"
            ));
            Checked::NotRun
        }
    }
}

const SCRIPT: &str = r#"
import json, sys
from standardwebhooks.webhooks import Webhook

def verdict(received):
    try:
        body = bytes.fromhex(received["body"])
        Webhook(received["secret"]).verify(body, received["headers"])
    except Exception as error:
        return f"{type(error).__name__}: {error}"

json.dump([verdict(received) for received in json.load(sys.stdin)], sys.stdout)
"#;

fn ask(python: &Path, batch: &[Received<'_>]) -> Vec<Result<(), String>> {
    let batch: Vec<_> = batch
        .iter()
        .map(|received| {
            let headers = received
                .headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.to_str().unwrap_or("")));
            let body: String = received
                .body
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            json!({
                "secret": received.secret,
                "headers": headers.collect::<std::collections::BTreeMap<_, _>>(),
                "body": body,
            })
        })
        .collect();
    let mut process = Command::new(python)
        .args(["-I", "-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the environment's own Python runs");
    let mut stdin = process.stdin.take().expect("it is piped");
    stdin
        .write_all(json!(batch).to_string().as_bytes())
        .expect("the script reads its input");
    drop(stdin);
    let output = process.wait_with_output().expect("the script ends");
    assert!(
        output.status.success(),
        "the script failed: {}",
        output.status
    );
    let verdicts: Vec<Option<String>> =
        serde_json::from_slice(&output.stdout).expect("a list of verdicts");
    assert_eq!(verdicts.len(), batch.len(), "a verdict for each");
    verdicts
        .into_iter()
        .map(|verdict| verdict.map_or(Ok(()), Err))
        .collect()
}

/// The Python of a virtual environment that is made once, beside the build.
fn python_with_the_package() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("standardwebhooks-venv");
    let python = folder.join("bin/python");
    if imports(&python) {
        return Ok(python);
    }
    // Made aside and moved, since another test process may be at it, too: the first that is done wins.
    let aside =
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|error| error.to_string())?;
    let half = aside.path().join("venv");
    succeed(Command::new("python3").args(["-m", "venv"]).arg(&half))?;
    succeed(Command::new(half.join("bin/python")).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "standardwebhooks",
    ]))?;
    // Refused when the other one has won; what counts is what is there now.
    drop(std::fs::rename(&half, &folder));
    if imports(&python) {
        Ok(python)
    } else {
        Err(format!("{} cannot be imported from", folder.display()))
    }
}

fn imports(python: &Path) -> bool {
    let import = Command::new(python)
        .args(["-I", "-c", "import standardwebhooks.webhooks"])
        .output();
    import.is_ok_and(|output| output.status.success())
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{command:?}: {}",
        said.lines().last().unwrap_or("no reason given")
    ))
}
