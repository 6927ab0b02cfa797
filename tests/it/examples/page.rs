//! An example's page, and the commands that it tells the reader to paste.

use std::fs;
use std::path::{Path, PathBuf};

/// The repository.
pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(super) struct Page {
    folder: PathBuf,
    text: String,
}

impl Page {
    pub(super) fn of(language: &str) -> Self {
        let folder = root().join("examples").join(language);
        let page = folder.join("README.md");
        let text =
            fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        Self { folder, text }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What to paste into a shell under this heading.
    pub(super) fn commands(&self, heading: &str) -> String {
        self.block(heading, "sh")
    }

    /// The first block of this kind under this heading.
    pub(super) fn block(&self, heading: &str, kind: &str) -> String {
        let missing = || panic!("{}: no {kind} under {heading}", self.folder.display());
        let section = self
            .text
            .split("\n## ")
            .find_map(|section| section.strip_prefix(heading)?.strip_prefix('\n'));
        let block = section.and_then(|section| {
            let (_, rest) = section.split_once(&format!("```{kind}\n"))?;
            Some(rest.split_once("```")?.0.to_owned())
        });
        block.unwrap_or_else(missing)
    }

    /// The files that it links to.
    pub(super) fn links(&self) -> Vec<String> {
        self.text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
            .filter(|link| !link.starts_with("http"))
            .map(str::to_owned)
            .collect()
    }
}
