//! How the story looks: headings, statements as they are run, tables, and facts that were checked.
#![allow(clippy::print_stdout, reason = "the story is the result")]

use std::io::IsTerminal as _;

use comfy_table::{ContentArrangement, Table, presets};

use crate::store::simple::Answer;

const BOLD: &str = "1";
const CYAN: &str = "36";
const GREEN: &str = "1;32";

/// See the module's docs.
#[derive(Debug)]
pub(super) struct Screen {
    colours: Colours,
    acts: u32,
    facts: u32,
    last: Last,
}

/// What was printed last.
#[derive(Clone, Copy, Debug)]
enum Last {
    Line,
    Fact,
    Gap,
}

#[derive(Clone, Copy, Debug)]
enum Colours {
    On,
    Off,
}

impl Screen {
    pub(super) fn new() -> Self {
        // no-color.org: any value but an empty one says no.
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        let colours = if std::io::stdout().is_terminal() && !refused {
            Colours::On
        } else {
            Colours::Off
        };
        Self {
            colours,
            acts: 0,
            facts: 0,
            last: Last::Line,
        }
    }

    /// How many facts were shown.
    pub(super) fn facts(&self) -> u32 {
        self.facts
    }

    pub(super) fn title(&mut self, text: &str) {
        self.gap();
        self.line(&self.painted(BOLD, text));
        self.gap();
    }

    /// The next act.
    pub(super) fn act(&mut self, name: &str) {
        self.acts += 1;
        self.title(&format!("{}. {name}", self.acts));
    }

    pub(super) fn text(&mut self, text: &str) {
        for line in text.lines() {
            self.line(line);
        }
    }

    /// Lines that belong together, set in.
    pub(super) fn lines(&mut self, lines: &[String]) {
        self.gap();
        for line in lines {
            self.line(&format!("   {line}"));
        }
        self.gap();
    }

    /// A statement that is run now, as it is run.
    pub(super) fn sql(&mut self, sql: &str) {
        self.gap();
        for line in sql.lines() {
            self.line(&format!("   {}", self.painted(CYAN, line)));
        }
        self.gap();
    }

    /// What a statement answered.
    pub(super) fn table(&mut self, answer: &Answer) {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(&answer.columns);
        for row in &answer.rows {
            table.add_row(row.iter().map(|value| value.as_deref().unwrap_or("-")));
        }
        for line in table.trim_fmt().lines() {
            // Each cell begins with a space.
            self.line(&format!("  {}", line.trim_end()));
        }
        self.gap();
    }

    /// Something that the caller has checked.
    pub(super) fn fact(&mut self, text: &str) {
        if let Last::Line = self.last {
            self.gap();
        }
        self.facts += 1;
        let mut mark = self.painted(GREEN, "ok");
        for line in text.lines() {
            self.line(&format!("{mark} {line}"));
            mark = "  ".to_owned();
        }
        self.last = Last::Fact;
    }

    fn line(&mut self, line: &str) {
        println!("{line}");
        self.last = Last::Line;
    }

    /// An empty line, if there is none yet.
    fn gap(&mut self) {
        if let Last::Line | Last::Fact = self.last {
            println!();
            self.last = Last::Gap;
        }
    }

    fn painted(&self, code: &str, text: &str) -> String {
        match self.colours {
            Colours::On => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            Colours::Off => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colours_a_text_stays_as_it_is() {
        let plain = Screen {
            colours: Colours::Off,
            acts: 0,
            facts: 0,
            last: Last::Gap,
        };

        assert_eq!(plain.painted(GREEN, "ok"), "ok");
    }
}
