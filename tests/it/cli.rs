//! Whatever fails, the command says what, what to do next, and ends with the documented code.

use std::borrow::BorrowMut;
use std::net::TcpListener;
use std::process::Stdio;

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin_cmd;
use postrider::store::connect::Client;
use postrider::store::migrate::{self, UpOptions};

use crate::server::Database;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_SECRET: &str = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==";

/// Every command that needs a database.
const DATABASE_COMMANDS: [&[&str]; 5] = [
    &["migrate"],
    &["migrate", "up"],
    &["migrate", "status"],
    &["migrate", "sql", "--pending"],
    &["worker", "--drain"],
];

/// The program with nothing of this environment but the way to other programs.
fn postrider(args: &[&str]) -> Command {
    let mut command = cargo_bin_cmd!("postrider");
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .args(args);
    command
}

/// Exit code, stdout and stderr.
#[track_caller]
fn outcome(mut command: impl BorrowMut<Command>) -> (i32, String, String) {
    let output = command.borrow_mut().output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("it writes UTF-8");
    (
        output.status.code().expect("no signal ended it"),
        text(output.stdout),
        text(output.stderr),
    )
}

#[track_caller]
fn succeeds(command: impl BorrowMut<Command>) -> String {
    let (code, stdout, stderr) = outcome(command);
    assert_eq!(code, 0, "{stderr}");
    stdout
}

/// It ends with this code, says what failed and what is next, and keeps the password.
#[track_caller]
fn fails(code: i32, says: &str, command: impl BorrowMut<Command>) {
    let (found, _, stderr) = outcome(command);
    assert_eq!(found, code, "{stderr}");
    let line = |start| {
        stderr
            .lines()
            .any(|line: &str| line.strip_prefix(start).is_some_and(|rest| rest.len() > 9))
    };
    assert!(line("error: ") && line("hint: "), "{stderr}");
    assert!(stderr.contains(says), "{says:?} is not in: {stderr}");
    assert!(!stderr.contains("s3cret"), "{stderr}");
}

async fn migrated() -> (Database, Client) {
    let database = Database::create().await;
    let mut client = database.open().await;
    migrate::up(&mut client, UpOptions::default(), |_| ())
        .await
        .expect("it applies");
    (database, client)
}

/// A port where nobody listens.
fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

#[test]
fn c46_an_address_that_makes_no_sense_is_a_usage_error() {
    let malformed = [
        "postgres://u:s3cret/x@host/db",
        "s3cret",
        "mysql://u:s3cret@host/db",
        "postgres://h/?password=s3cret&service=x",
    ];

    for args in DATABASE_COMMANDS {
        for url in malformed {
            fails(
                2,
                "--database-url",
                postrider(args).args(["--database-url", url]),
            );
            fails(
                2,
                "POSTRIDER_DATABASE_URL",
                postrider(args).env("POSTRIDER_DATABASE_URL", url),
            );
            fails(2, "DATABASE_URL", postrider(args).env("DATABASE_URL", url));
        }
        fails(
            2,
            "sslmode",
            postrider(args)
                .env("PGUSER", "me")
                .env("PGSSLMODE", "s3cret"),
        );
    }
}

#[test]
fn c46_a_database_that_is_down_is_said_with_its_address() {
    let port = closed_port();

    for args in DATABASE_COMMANDS {
        let url = format!("postgres://me:s3cret@127.0.0.1:{port}/shop");
        fails(
            3,
            &format!("me@127.0.0.1:{port}/shop"),
            postrider(args).args(["--database-url", &url]),
        );
        fails(
            3,
            "does not resolve",
            postrider(args).args(["--database-url", "postgres://me:s3cret@host.invalid/shop"]),
        );
    }
}

#[test]
fn c46_a_server_that_says_nothing_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = silent.local_addr().expect("it is bound").port();

    let url = format!("postgres://me:s3cret@127.0.0.1:{port}/shop?connect_timeout=1");
    fails(
        3,
        "no answer in time",
        postrider(&["migrate", "status", "--database-url", &url]),
    );
}

#[tokio::test]
async fn c46_a_server_that_refuses_the_session_is_said_with_the_reason() {
    let database = Database::create().await;
    let wrong_password = database.url_with(|url| {
        url.set_password(Some("s3cret"))
            .expect("the URL has a host")
    });
    let no_password = database.url_with(|url| url.set_password(None).expect("the URL has a host"));
    let no_database = database.url_with(|url| url.set_path("/missing"));

    for args in DATABASE_COMMANDS {
        fails(
            3,
            "authentication failed",
            postrider(args).env("DATABASE_URL", &wrong_password),
        );
        fails(
            3,
            "authentication failed",
            postrider(args).env("DATABASE_URL", &no_password),
        );
        fails(
            3,
            "no such database",
            postrider(args).env("DATABASE_URL", &no_database),
        );
        let no_tls = format!("{}?sslmode=require", database.url());
        fails(3, "TLS", postrider(args).env("DATABASE_URL", no_tls));
    }
}

#[tokio::test]
async fn c46_a_role_without_privileges_is_told_which() {
    let (database, _client) = migrated().await;
    let empty = Database::create().await;

    for args in DATABASE_COMMANDS {
        fails(
            5,
            "permission denied",
            postrider(args).args(["--database-url", &database.stranger().await]),
        );
    }
    fails(
        5,
        "permission denied",
        postrider(&["migrate", "--database-url", &empty.stranger().await]),
    );
}

#[tokio::test]
async fn c46_a_schema_of_another_version_is_said_with_the_next_step() {
    let (database, client) = migrated().await;
    let url = database.url();

    client
        .batch_execute("delete from postrider.schema_migrations")
        .await
        .expect("it is ours");
    fails(
        4,
        "migration 1 is pending",
        postrider(&["migrate", "status", "--database-url", &url]),
    );
    fails(
        4,
        "version 0",
        postrider(&["worker", "--drain", "--database-url", &url]),
    );

    let newer =
        "insert into postrider.schema_migrations (version, name, checksum) values (4711, 'x', 'y')";
    client.batch_execute(newer).await.expect("it is ours");
    fails(
        4,
        "4711",
        postrider(&["migrate", "up", "--database-url", &url]),
    );
    fails(
        4,
        "4711",
        postrider(&["worker", "--drain", "--database-url", &url]),
    );
    fails(
        4,
        "4711",
        postrider(&["migrate", "status", "--json", "--database-url", &url]),
    );
}

#[tokio::test]
async fn c46_a_server_that_takes_no_writes_is_said() {
    let database = Database::create().await;
    let url = format!(
        "{}?options=-cdefault_transaction_read_only%3Don",
        database.url()
    );

    fails(
        3,
        "primary",
        postrider(&["migrate", "up", "--database-url", &url]),
    );
}

#[tokio::test]
async fn c46_another_migrator_is_waited_for_and_then_named() {
    let database = Database::create().await;
    let other = database.open().await;
    other
        .batch_execute(&format!("select pg_advisory_lock({})", migrate::LOCK))
        .await
        .expect("it is free");

    fails(
        1,
        "pid",
        postrider(&[
            "migrate",
            "up",
            "--wait",
            "200ms",
            "--database-url",
            &database.url(),
        ]),
    );
}

#[test]
fn c46_a_command_line_that_makes_no_sense_is_a_usage_error() {
    let nonsense: [&[&str]; 6] = [
        &[],
        &["migrate", "sideways"],
        &["migrate", "up", "--wait", "soon"],
        &["migrate", "sql", "--from", "0"],
        &["migrate", "--log-format", "xml"],
        &["completions", "cobol"],
    ];

    for args in nonsense {
        let (code, _, stderr) = outcome(postrider(args));
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stderr.contains("--help"), "{args:?}: {stderr}");
    }
    fails(2, "--log", postrider(&["--log", "a=b=c", "migrate", "sql"]));
}

#[test]
fn c46_a_signature_that_cannot_be_made_is_a_usage_error() {
    for command in ["sign", "verify"] {
        fails(2, "POSTRIDER_SECRET", postrider(&[command, "-"]));
        fails(
            2,
            "/nowhere",
            postrider(&[command, "/nowhere", "--secret", SECRET]),
        );
        fails(
            2,
            "whsec_",
            postrider(&[command, "-", "--secret", "s3cret"]),
        );
        fails(
            2,
            "standard",
            postrider(&[command, "-", "--secret", SECRET, "--scheme", "rot13"]),
        );
    }
    fails(
        2,
        "number 1",
        postrider(&["verify", "-", "--secret", SECRET, "--header", "s3cret"]),
    );
    fails(
        2,
        "/nowhere",
        postrider(&[
            "verify",
            "-",
            "--secret",
            SECRET,
            "--headers-file",
            "/nowhere",
        ]),
    );
}

#[tokio::test]
async fn migrations_are_applied_once_and_listed() {
    let database = Database::create().await;
    let migrate = |args: &[&str]| {
        succeeds(
            postrider(&["migrate"])
                .args(args)
                .env("DATABASE_URL", database.url()),
        )
    };

    let first = migrate(&[]);
    let second = migrate(&["up"]);
    let table = migrate(&["status"]);
    let json: serde_json::Value =
        serde_json::from_str(&migrate(&["status", "--json"])).expect("it is JSON");

    assert!(first.contains("applied 0001_core.sql"), "{first}");
    assert!(
        second.contains("already at version") && !second.contains("applied"),
        "{second}"
    );
    assert!(
        table.contains("core") && table.contains("applied"),
        "{table}"
    );
    assert_eq!(json[0]["version"], 1);
    assert_eq!(json[0]["status"], "applied");
    assert!(
        json[0]["applied_at"].is_string() && json[0]["applied_by"].is_string(),
        "{json}"
    );
}

#[tokio::test]
async fn a_script_that_was_applied_by_hand_leaves_nothing_pending() {
    let database = Database::create().await;
    let url = database.url();
    let script = succeeds(postrider(&["migrate", "sql"]));
    let pending = succeeds(postrider(&[
        "migrate",
        "sql",
        "--pending",
        "--database-url",
        &url,
    ]));
    assert_eq!(script, pending);

    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", "--file", "-", &url])
        .write_stdin(script);
    let (code, _, stderr) = outcome(psql);

    assert_eq!(code, 0, "{stderr}");
    succeeds(postrider(&["migrate", "status", "--database-url", &url]));
    assert_eq!(
        succeeds(postrider(&[
            "migrate",
            "sql",
            "--pending",
            "--database-url",
            &url
        ])),
        ""
    );
    let again = succeeds(postrider(&["migrate", "up", "--database-url", &url]));
    assert!(again.contains("already"), "{again}");
}

#[test]
fn what_is_signed_is_verified_until_a_byte_or_the_secret_changes() {
    let body = "{\"b\":1,\n \"a\":2}\n";
    for scheme in ["standard", "github", "stripe", "body-base64"] {
        let common = ["-", "--scheme", scheme];
        let headers = succeeds(
            postrider(&["sign"])
                .args(common)
                .env("POSTRIDER_SECRET", SECRET)
                .write_stdin(body),
        );
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("headers");
        std::fs::write(&file, format!("POST /hook HTTP/1.1\r\n{headers}\r\n"))
            .expect("it is written");
        let verify = |secret: &str, body: &'static str| {
            let mut command = postrider(&["verify"]);
            command
                .args(common)
                .arg("--headers-file")
                .arg(&file)
                .env("POSTRIDER_SECRET", secret)
                .write_stdin(body);
            command
        };

        assert_eq!(succeeds(verify(SECRET, body)), "verified\n");
        succeeds(verify(&format!("{OTHER_SECRET},{SECRET}"), body));
        fails(1, "not verified", verify(OTHER_SECRET, body));
        fails(1, "not verified", verify(SECRET, "{\"b\":1,\"a\":2}"));
    }
}

#[test]
fn an_old_signature_is_refused_with_the_reason() {
    let sign = [
        "sign",
        "-",
        "--secret",
        SECRET,
        "--event-id",
        "evt_1",
        "--timestamp",
        "1700000000",
        "--json",
    ];
    let json: serde_json::Value =
        serde_json::from_str(&succeeds(postrider(&sign).write_stdin("x"))).expect("it is JSON");
    assert_eq!(json["webhook-timestamp"], "1700000000");

    let mut verify = postrider(&["verify", "-", "--secret", SECRET]);
    for (name, value) in json.as_object().expect("an object") {
        verify
            .arg("--header")
            .arg(format!("{name}: {}", value.as_str().expect("text")));
    }

    fails(1, "tolerance", verify.write_stdin("x"));
    succeeds(verify.args(["--tolerance", "100years"]));
}

#[test]
fn a_reader_who_leaves_early_is_no_failure() {
    let mut process = std::process::Command::new(postrider(&[]).get_program())
        .args(["migrate", "sql"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    drop(process.stdout.take());

    let output = process.wait_with_output().expect("it ends");

    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn help_completions_and_the_manual_name_every_command() {
    let help = succeeds(postrider(&["--help"]));
    let completions = succeeds(postrider(&["completions", "bash"]));
    let manual = succeeds(postrider(&["man"]));

    for command in ["migrate", "sign", "verify"] {
        for text in [&help, &completions, &manual] {
            assert!(text.contains(command), "{command} is not in: {text}");
        }
    }
    assert!(
        help.contains("Start here:") && help.contains("Exit codes:"),
        "{help}"
    );
    assert!(!help.contains('\u{1b}'), "{help}");
}

#[test]
fn help_never_shows_the_values_of_secret_variables() {
    for command in ["migrate", "sign", "verify"] {
        let mut help = postrider(&[command, "--help"]);
        help.env("POSTRIDER_DATABASE_URL", "postgres://u:s3cret@h/d")
            .env("POSTRIDER_SECRET", "s3cret");
        assert!(!succeeds(&mut help).contains("s3cret"));
    }
}
