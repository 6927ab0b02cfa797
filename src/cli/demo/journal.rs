//! What the processes of the demonstration said: the receiver's requests, and everybody's last lines.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;

use crate::cli::children::Source;

/// Lines of each process that are shown when something went wrong.
const LAST: usize = 15;

/// A request, as `postrider listen --json` tells it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Request {
    /// `webhook-id`.
    pub(super) id: Option<String>,
    /// What it was, or would have been, answered.
    pub(super) status: u16,
    /// Whether its signature was good; `None`: not checked.
    pub(super) verified: Option<bool>,
}

/// Filled by the readers of the processes' lines. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal(Arc<Mutex<Pages>>);

#[derive(Debug, Default)]
struct Pages {
    requests: Vec<Request>,
    lines: Vec<(&'static str, String)>,
}

impl Journal {
    /// Takes a line of the process `name`.
    pub(super) fn note(&self, name: &'static str, source: Source, line: &str) {
        let mut pages = self.pages();
        if source == Source::Stdout
            && let Ok(request) = serde_json::from_str(line)
        {
            pages.requests.push(request);
        }
        pages.lines.push((name, line.to_owned()));
    }

    /// All requests that any receiver saw, in their order.
    pub(super) fn requests(&self) -> Vec<Request> {
        self.pages().requests.clone()
    }

    /// Whether `name` said a line for which `find` has a value, and which.
    pub(super) fn find(&self, name: &str, find: impl Fn(&str) -> Option<String>) -> Option<String> {
        let pages = self.pages();
        let mut lines = pages.lines.iter().rev().filter(|(who, _)| *who == name);
        lines.find_map(|(_, line)| find(line))
    }

    /// Forgets what `name` said, so that [`find`](Self::find) sees only what comes from now on.
    pub(super) fn forget(&self, name: &str) {
        self.pages().lines.retain(|(who, _)| *who != name);
    }

    /// The last lines of each process.
    pub(super) fn last_words(&self) -> String {
        let pages = self.pages();
        let names: BTreeSet<&str> = pages.lines.iter().map(|(who, _)| *who).collect();
        let mut text = String::new();
        for name in names {
            let lines: Vec<&String> = pages
                .lines
                .iter()
                .filter(|(who, _)| *who == name)
                .map(|(_, line)| line)
                .collect();
            writeln!(text, "--- {name}").expect("a string takes whatever is written");
            for line in &lines[lines.len().saturating_sub(LAST)..] {
                writeln!(text, "{line}").expect("a string takes whatever is written");
            }
        }
        text
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        // Whole after every step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_receiver_are_its_requests() {
        let journal = Journal::default();

        journal.note(
            "receiver",
            Source::Stderr,
            "listening on http://127.0.0.1:9/ (...)",
        );
        journal.note(
            "receiver",
            Source::Stdout,
            r#"{"at":"x","count":1,"id":"evt_1","type":"order.paid","try":1,"status":422,"verified":true,"bytes":2}"#,
        );

        let requests = journal.requests();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].id.as_deref(), Some("evt_1"));
        assert_eq!(requests[0].status, 422);
        assert_eq!(requests[0].verified, Some(true));
    }

    #[test]
    fn last_words_are_the_newest_lines_of_each() {
        let journal = Journal::default();
        for n in 0..=LAST {
            journal.note("worker-a", Source::Stderr, &format!("line {n}"));
        }
        journal.note("worker-b", Source::Stderr, "only this");

        let words = journal.last_words();

        assert!(!words.contains("line 0\n"), "{words}");
        assert!(words.contains("line 1\n"), "{words}");
        assert!(words.ends_with("--- worker-b\nonly this\n"), "{words}");
    }
}
