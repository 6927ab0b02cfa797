use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

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

/// The table in the crate's docs: each part, and the parts that it may name; `None` means any.
fn table() -> BTreeMap<String, Option<BTreeSet<String>>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs"))
        .expect("lib.rs");
    let rows: Vec<_> = text
        .lines()
        .skip_while(|line| *line != "//! | module | knows |")
        .skip(2)
        .map_while(|line| {
            line.strip_prefix("//! | ")?
                .strip_suffix(" |")?
                .split_once(" | ")
        })
        .collect();
    let nouns = rows.first().map_or("", |(parts, _)| parts);
    let known = |knows: &str| match knows {
        "everything" => None,
        _ if knows.starts_with("each other") || knows.starts_with("the nouns") => {
            Some(linked(nouns).chain(linked(knows)).collect())
        }
        _ => Some(linked(knows).collect()),
    };
    rows.iter()
        .flat_map(|(parts, knows)| linked(parts).map(|part| (part, known(knows))))
        .collect()
}

/// The names in links such as [`store`].
fn linked(cell: &str) -> impl Iterator<Item = String> {
    cell.split("[`")
        .skip(1)
        .filter_map(|rest| rest.split_once("`]"))
        .map(|(name, _)| name.to_owned())
}

#[test]
fn arrows_point_down_only() {
    let table = table();
    for (part, name, lines) in sources() {
        let Some(Some(allowed)) = table.get(&part) else {
            continue;
        };
        for other in lines.iter().flat_map(|line| named(line)) {
            let may = other == part || allowed.contains(other);
            assert!(
                may,
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
    let listed: BTreeSet<_> = table().into_keys().collect();

    let parts = sources().into_iter().map(|(part, ..)| part);
    let there: BTreeSet<_> = parts
        .filter(|part| part != "lib" && part != "main")
        .collect();

    assert_eq!(
        listed, there,
        "the rows of `| module | knows |` in src/lib.rs against the entries of src"
    );
}

#[test]
fn the_table_lets_the_edges_know_the_nouns_and_not_each_other() {
    let table = table();

    let store = table["store"]
        .as_ref()
        .expect("the store may not know everything");
    assert!(
        store.contains("delivery") && !store.contains("outbound"),
        "{store:?}"
    );
    assert_eq!(table["cli"], None);
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
