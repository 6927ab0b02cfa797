//! A producer and a receiver in every language, run as a reader would.

mod page;
mod runtime;
mod session;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use page::Page;
use runtime::Runtime;
use session::{Kept, Post, Session};

/// What an example's receiver does with what it has verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receives {
    /// It does its work once per `webhook-id`, in the database.
    IntoTables,
    /// It prints.
    OntoTheTerminal,
}

#[tokio::test]
async fn psql_sends_and_the_listener_verifies() {
    sends_and_receives("psql", runtime::psql(), Receives::OntoTheTerminal).await;
}

#[tokio::test]
async fn python_sends_and_receives() {
    sends_and_receives("python", runtime::python(), Receives::IntoTables).await;
}

#[tokio::test]
async fn node_sends_and_receives() {
    sends_and_receives("node", runtime::node(), Receives::IntoTables).await;
}

#[tokio::test]
async fn go_sends_and_receives() {
    sends_and_receives("go", runtime::go(), Receives::IntoTables).await;
}

#[tokio::test]
async fn java_sends_and_receives() {
    sends_and_receives("java", runtime::java(), Receives::IntoTables).await;
}

#[tokio::test]
async fn php_sends_and_receives() {
    sends_and_receives("php", runtime::php(), Receives::IntoTables).await;
}

#[tokio::test]
async fn ruby_sends_and_receives() {
    sends_and_receives("ruby", runtime::ruby(), Receives::IntoTables).await;
}

#[tokio::test]
async fn rust_sends_and_receives() {
    sends_and_receives("rust", runtime::rust(), Receives::IntoTables).await;
}

/// The page's commands, with a worker of theirs.
async fn sends_and_receives(language: &str, runtime: Result<Runtime, String>, receives: Receives) {
    let Some(runtime) = runtime::or_tell(language, runtime) else {
        return;
    };
    let session = Session::start(&Page::of(language), runtime).await;

    every_event_arrives_once(&session, receives).await;
    only_what_is_signed_and_fresh_is_accepted(&session, receives).await;
    if receives == Receives::IntoTables {
        the_same_id_is_worked_on_once(&session).await;
    }
}

async fn every_event_arrives_once(session: &Session, receives: Receives) {
    session.send().await;
    session.wait_until_delivered(5).await;
    let first = session.sent().await;
    session.send().await;
    session.wait_until_delivered(6).await;

    let (sent, orders) = (session.sent().await, session.orders().await);
    let of = |event_type| {
        first
            .iter()
            .filter(move |event| event.event_type == event_type)
    };
    assert_eq!(
        ["order.created", "price.changed", "shop.opened"].map(|it| of(it).count()),
        [1, 3, 1],
        "{first:?}"
    );
    assert_eq!(orders, 2, "one for each run");
    let new: Vec<_> = sent.iter().filter(|event| !first.contains(event)).collect();
    assert!(
        matches!(new[..], [event] if event.event_type == "order.created"),
        "what has an event id of its work is queued once: {new:?}"
    );
    if receives == Receives::IntoTables {
        assert_eq!(session.received().await, sent, "each once, byte for byte");
    }
}

async fn only_what_is_signed_and_fresh_is_accepted(session: &Session, receives: Receives) {
    let before = session.kept(receives).await;
    let good = Post::new(
        "evt_odd",
        "{\"type\": \"odd\",\n \"n\": 1.00, \"a\":\"\\u0000é\"}\n",
    );

    let refused = [
        ("another body", good.clone().body_sent("{\"type\":\"odd\"}")),
        ("another id", good.clone().id_sent("evt_other")),
        (
            "another secret",
            good.clone()
                .secret("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"),
        ),
        ("too old", good.clone().age_seconds(6 * 60)),
        ("from the future", good.clone().age_seconds(-6 * 60)),
        ("another timestamp", good.clone().age_sent(60)),
        ("no signature", good.clone().without("webhook-signature")),
        ("no timestamp", good.clone().without("webhook-timestamp")),
        ("no id", good.clone().without("webhook-id")),
        (
            "a signature of another kind",
            good.clone().signature_of_version("v1a"),
        ),
    ];
    for (why, post) in refused {
        let status = session.post(&post).await;

        assert!([400, 401].contains(&status), "{why}: {status}");
    }
    assert_eq!(session.kept(receives).await, before, "nothing was done");
    let rotated = good.clone().age_seconds(4 * 60).signed_twice();
    let accepted = session.post(&rotated).await;

    assert!((200..300).contains(&accepted), "{accepted}");
    if receives == Receives::IntoTables {
        let last = session.bodies_of("odd").await;
        assert_eq!(last, [good.body()], "byte for byte");
        let unreadable = session.post(&Post::new("evt_bad", "no JSON")).await;
        assert_eq!(unreadable, 400, "what will never be understood");
    }
}

async fn the_same_id_is_worked_on_once(session: &Session) {
    let post = Post::new("evt_twice", "{\"type\":\"twice\"}");

    let answers = tokio::join!(
        session.post(&post),
        session.post(&post),
        session.post(&post),
    );
    let later = session.post(&post).await;

    for status in [answers.0, answers.1, answers.2, later] {
        assert!((200..300).contains(&status), "{status}");
    }
    assert_eq!(session.bodies_of("twice").await, [post.body()]);
    let Kept { seen, .. } = session.kept(Receives::IntoTables).await;
    assert_eq!(seen.iter().filter(|id| *id == "evt_twice").count(), 1);
}

#[test]
fn every_example_has_its_page_and_its_line_in_the_main_one() {
    let folders: BTreeSet<String> = fs::read_dir(page::root().join("examples"))
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_dir())
        .map(|path| name(&path))
        .collect();
    let readme = fs::read_to_string(page::root().join("README.md")).expect("the main page");

    let linked: BTreeSet<String> = readme
        .split("](examples/")
        .skip(1)
        .filter_map(|rest| rest.split("/)").next())
        .map(str::to_owned)
        .collect();

    assert_eq!(linked, folders);
    let tested = [
        "go", "java", "node", "php", "psql", "python", "ruby", "rust",
    ];
    assert_eq!(folders, tested.map(str::to_owned).into());
}

#[test]
fn a_page_names_files_that_exist_and_all_programs_of_its_folder() {
    for language in [
        "go", "java", "node", "php", "psql", "python", "ruby", "rust",
    ] {
        let page = Page::of(language);

        let links = page.links();

        for link in &links {
            assert!(page.folder().join(link).is_file(), "{language}: {link}");
        }
        assert!(
            links
                .iter()
                .any(|link| link.to_lowercase().contains("producer"))
        );
        assert!(
            language == "psql"
                || links
                    .iter()
                    .any(|link| link.to_lowercase().contains("receiver"))
        );
    }
}

#[test]
fn every_page_prepares_in_the_same_way() {
    let preparations: BTreeSet<String> = [
        "go", "java", "node", "php", "psql", "python", "ruby", "rust",
    ]
    .map(|language| {
        let receive = Page::of(language).commands("Receive");
        let end = receive.find("worker --allow-network").expect("a worker");
        receive[..end].to_owned()
    })
    .into();

    assert_eq!(preparations.len(), 1, "{preparations:#?}");
}

#[test]
fn the_crates_named_for_rust_are_those_it_is_built_with() {
    let manifest = fs::read_to_string(page::root().join("Cargo.toml")).expect("the manifest");
    let page = Page::of("rust");

    let named = page.block("Install", "toml");

    for line in named.lines() {
        assert!(manifest.lines().any(|one| one == line), "{line}");
    }
    let programs = ["producer.rs", "receiver.rs"]
        .map(|name| fs::read_to_string(page.folder().join(name)).expect("a program"))
        .concat();
    let used = programs
        .lines()
        .filter_map(|line| line.strip_prefix("use "));
    for crate_name in used.filter_map(|path| path.split(':').next()) {
        let dependency = format!("{} = ", crate_name.replace('_', "-"));
        let plain = format!("{crate_name} = ");
        assert!(
            crate_name == "std"
                || named
                    .lines()
                    .any(|line| line.starts_with(&dependency) || line.starts_with(&plain)),
            "{crate_name}"
        );
    }
}

fn name(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str());
    name.expect("a name in UTF-8").to_owned()
}
