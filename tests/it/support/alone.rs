//! One test in a process of its own, for what is read from the environment: changing that of a running process is unsafe.

use tokio::process::Command;

const ARGUMENT: &str = "POSTRIDER_TEST_ARGUMENT";

/// In the process that [`run`] started: its argument. `None` in the one that is to call it.
pub(crate) fn argument() -> Option<String> {
    std::env::var_os(ARGUMENT).map(|argument| argument.into_string().expect("written by `run`"))
}

/// Runs the test with this path again, and panics with its output if it fails or does not exist.
pub(crate) async fn run(test: &str, argument: String, environment: &[(&str, String)]) {
    let output = Command::new(std::env::current_exe().expect("this process has a file"))
        .args(["--exact", test, "--nocapture"])
        .env(ARGUMENT, argument)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .kill_on_drop(true)
        .output()
        .await
        .expect("a test binary can be started");

    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{output:?}"
    );
}
