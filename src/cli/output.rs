//! How results look: JSON for programs, tables for people, plain aligned columns where nobody looks.
//!
//! Owns the last step before stdout: whatever passes through here has no control characters left.
#![allow(clippy::print_stdout, reason = "this is where results reach stdout")]

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::harmless;

/// Stands for a value that is not there.
const NOTHING: &str = "-";
/// With less room for each cell, whole lines that the terminal breaks are easier to read, and ids in them to copy, than
/// cells of a few letters. Some terminals say that they have 0 columns.
const NARROWEST_CELL: usize = 16;

/// Flatten this into the arguments of a command that has a result to read.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct Format {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Prints a value as JSON.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        // serde_json escapes what JSON forbids. The rest of what a terminal obeys can stand only inside strings, and all
        // of it is below U+10000, where one escape is enough.
        if harmless::is_harmful(character) && character != '\n' {
            write!(safe, "\\u{:04x}", u32::from(character))?;
        } else {
            safe.push(character);
        }
    }
    println!("{safe}");
    Ok(())
}

/// Prints rows under their headings.
pub(super) fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(headings.iter().map(|heading| heading.to_uppercase()));
    for row in rows {
        table.add_row(row.iter().map(|cell| harmless::line(cell)));
    }
    let width = table.width().map_or(0, usize::from);
    if !std::io::stdout().is_terminal() {
        table.load_style(presets::NOTHING).force_no_tty();
    } else if table
        .lines()
        .next()
        .is_some_and(|line| line.chars().count() > width)
    {
        if width >= NARROWEST_CELL * headings.len() {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        } else {
            table.load_style(presets::NOTHING);
        }
    }
    // Without borders every line begins with the padding of its first cell.
    for line in table.trim_fmt().lines() {
        println!("{}", line.strip_prefix(' ').unwrap_or(line));
    }
}

/// Characters in a line: the terminal's, or 80 where there is none that says how many it has.
pub(super) fn line_width() -> usize {
    let width = Table::new().width().map_or(0, usize::from);
    if std::io::stdout().is_terminal() && width > 0 {
        width
    } else {
        80
    }
}

/// Prints one thing, a line for each of its properties. Those that are not there are left out.
pub(super) fn details(properties: &[(&str, Option<String>)]) {
    let width = properties
        .iter()
        .filter(|(_, value)| value.is_some())
        .map(|(name, _)| name.len())
        .max()
        .unwrap_or_default();
    for (name, value) in properties {
        if let Some(value) = value {
            println!("{name:width$}  {}", harmless::line(value));
        }
    }
}

/// A cell for a value that may be missing.
pub(super) fn cell(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| value.to_string())
}

/// At most `most` characters, with a sign that there was more.
pub(super) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
