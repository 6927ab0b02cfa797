use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A part of `src`, and the parts that it may name.
const MAY_NAME: [(&str, &[&str]); 11] = [
    ("delivery", NOUNS),
    ("attempt", NOUNS),
    ("harmless", &[]),
    ("reply", NOUNS),
    ("policy", NOUNS),
    ("signing", NOUNS),
    ("outbound", NOUNS),
    ("store", NOUNS),
    ("cluster", &[]),
    (
        "worker",
        &[
            "delivery", "reply", "policy", "signing", "store", "outbound",
        ],
    ),
    ("web", &["delivery", "reply", "policy", "signing", "store"]),
];
const NOUNS: &[&str] = &["delivery", "attempt", "reply", "policy", "signing", "harmless"];

/// A word, and the only part that may say it.
const SAID_BY: [(&str, &str); 7] = [
    ("tokio_postgres", "store"),
    ("deadpool_postgres", "store"),
    ("reqwest", "outbound"),
    ("println!", "cli"),
    ("eprintln!", "cli"),
    ("print!", "cli"),
    ("eprint!", "cli"),
];

/// Every source file: the part it belongs to, its path, and its lines that are not comments.
fn sources() -> Vec<(String, String, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path
                .strip_prefix(&root)
                .expect("below it")
                .to_str()
                .expect("UTF-8")
                .to_owned();
            let part = name
                .split(['/', '.'])
                .next()
                .expect("a first part")
                .to_owned();
            let text = fs::read_to_string(&path).expect("source is UTF-8");
            let lines = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .map(str::to_owned);
            found.push((part, name, lines.collect()));
        }
    }
    found
}

/// The names that follow `crate::`, in braces too.
fn named(line: &str) -> Vec<&str> {
    let after = line.split("crate::").skip(1);
    let names = after.flat_map(|rest| match rest.strip_prefix('{') {
        Some(list) => list.split(',').collect(),
        None => vec![rest],
    });
    names
        .filter_map(|name| {
            name.trim()
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
        })
        .collect()
}

#[test]
fn arrows_point_down_only() {
    for (part, name, lines) in sources() {
        let Some((_, allowed)) = MAY_NAME.iter().find(|(known, _)| *known == part) else {
            continue;
        };
        for other in lines.iter().flat_map(|line| named(line)) {
            assert!(
                other == part || allowed.contains(&other),
                "src/{name} names {other}, but {part} may name only {allowed:?}"
            );
        }
    }
}

#[test]
fn each_edge_alone_knows_its_library_and_only_the_command_line_prints() {
    for (part, name, lines) in sources() {
        for (word, owner) in SAID_BY {
            let line = lines.iter().find(|line| {
                line.split(|c: char| !c.is_alphanumeric() && !"_!".contains(c))
                    .any(|it| it == word)
            });
            assert!(
                part == owner || line.is_none(),
                "src/{name} says {word}, which is for src/{owner}: {line:?}"
            );
        }
    }
}

#[test]
fn the_table_in_the_crate_docs_lists_the_parts_there_are() {
    let docs = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs"))
        .expect("lib.rs");
    let rows = docs.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let listed: BTreeSet<_> = rows
        .filter_map(|row| row.split('`').next())
        .map(str::to_owned)
        .collect();

    let there: BTreeSet<_> = sources()
        .into_iter()
        .map(|(part, ..)| part)
        .filter(|it| it != "lib" && it != "main")
        .collect();

    assert_eq!(
        listed, there,
        "the rows `//! | `part` | ... |` of src/lib.rs against the entries of src"
    );
}

#[test]
fn names_are_found_in_every_form_of_a_use_line() {
    assert_eq!(
        named("use crate::{store, worker::claim};"),
        ["store", "worker"]
    );
    assert_eq!(
        named("pub(crate) fn f(x: crate::outbound::Reply)"),
        ["outbound"]
    );
    assert_eq!(named("let x = 1;"), [""; 0]);
}
