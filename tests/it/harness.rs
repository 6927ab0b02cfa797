use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use http::HeaderMap;
use standardwebhooks::Webhook;

use crate::support::process::{on, postrider};
use crate::support::verifiers::{Checked, Received, verify_with_crate, verify_with_python};
use crate::support::{Database, SERVER_URL, SOON, Worker, wait_until};

/// Tells a child process to hold a database until it is killed.
const HOLD: &str = "POSTRIDER_TEST_HOLD_DATABASE";

#[tokio::test]
async fn two_tests_never_share_a_database() {
    let databases = futures_util::future::join_all((0..4).map(|_| Database::fresh())).await;

    let names: BTreeSet<&str> = databases.iter().map(Database::name).collect();

    assert_eq!(names.len(), databases.len(), "{names:?}");
}

#[tokio::test]
async fn a_lent_database_is_as_the_schema_ships_it_whatever_was_done_in_it() {
    let used = Database::fresh().await;
    let name = used.name().to_owned();
    used.endpoint("a", "http://127.0.0.1:1/").await;
    let first = used.insert("a", "{}").await;
    used.sql(&format!(
        "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome)
           values (now(), {first}, 1, 1, 'a', 'lost');
         insert into postrider.retry_policies (name, kind, max_retries) values ('mine', 'schedule', 0);
         update postrider.retry_policies set max_retries = 1 where name = 'standard';
         delete from postrider.retry_policies where name = 'frappe';
         select postrider.make_attempt_partitions(date '2001-01-01', date '2001-01-02');
         create table orders (id serial primary key);
         create view postrider.extra as select 1 as one;
         create function watcher() returns trigger language plpgsql as 'begin return new; end';
         create trigger extra before insert on postrider.deliveries for each row execute function watcher();
         create schema app create table things (id int);
         create role {name}_reader;
         grant select on postrider.deliveries to {name}_reader;
         alter database {name} set timezone = 'Asia/Kolkata';"
    ))
    .await;

    let again = used.lent_again().await;

    let facts = "select concat_ws(' ',
                   (select count(*) from postrider.endpoints), (select count(*) from postrider.deliveries),
                   (select count(*) from postrider.attempts),
                   (select string_agg(p.name || ' ' || p.max_retries, ', ' order by p.name) from postrider.retry_policies p),
                   (select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace
                     where n.nspname in ('public', 'app') or c.relname in ('extra', 'attempts_20010101')),
                   (select count(*) from pg_trigger t where t.tgname = 'extra'),
                   (select count(*) from pg_roles r where r.rolname = current_database() || '_reader'),
                   current_setting('timezone') = 'Asia/Kolkata')";
    let facts: String = again.value(facts).await;
    assert_eq!(
        facts,
        "0 0 0 exponential 4, frappe 3, once 0, standard 7 0 0 0 f"
    );
    again.endpoint("a", "http://127.0.0.1:1/").await;
    assert_eq!(again.insert("a", "{}").await, 1, "sequences restart");
}

#[tokio::test]
async fn a_lent_database_whose_schema_a_test_has_changed_is_made_anew() {
    let used = Database::fresh().await;
    used.sql("alter table postrider.deliveries add column mine int")
        .await;

    let again = used.lent_again().await;

    let left = "select count(*) from information_schema.columns where column_name = 'mine'";
    assert_eq!(again.value::<i64>(left).await, 0);
}

#[tokio::test]
async fn a_private_database_goes_with_its_test() {
    let database = Database::private().await;
    database
        .sql("alter table postrider.deliveries add column mine int")
        .await;
    let name = database.name().to_owned();

    drop(database);

    let other = Database::fresh().await;
    let left: i64 = other
        .value(&format!(
            "select count(*) from pg_database where datname = '{name}'"
        ))
        .await;
    assert_eq!(left, 0);
}

#[tokio::test]
async fn what_a_test_inserts_it_reads_back() {
    let database = Database::fresh().await;
    database
        .endpoint("a", "http://127.0.0.1:1/")
        .set("max_retries", 2)
        .set("timeout", "1 s")
        .await;

    let json = database
        .insert("a", "{\"b\":1.00, \"a\":\"\\u0000\"}")
        .set("event_id", "evt_1")
        .await;
    let bytes = database
        .insert_bytes("a", b"\x00\xff")
        .set("next_retry", "infinity")
        .await;

    let stored: String = database
        .value(&format!(
            "select payload::text from postrider.deliveries where id = {json}"
        ))
        .await;
    assert_eq!(stored, "{\"b\":1.00, \"a\":\"\\u0000\"}");
    let delivery = database.wait_for_status(json, "queued").await;
    assert_eq!(
        (delivery.event_id.as_str(), delivery.event_type.as_str()),
        ("evt_1", "test.event")
    );
    let stored: Vec<u8> = database
        .value(&format!(
            "select body from postrider.deliveries where id = {bytes}"
        ))
        .await;
    assert_eq!(stored, b"\x00\xff");
    assert_eq!(database.delivery(bytes).await.due_in, Some(f64::INFINITY));
    let timeout: String = database
        .value("select timeout::text || max_retries from postrider.endpoints")
        .await;
    assert_eq!(timeout, "00:00:012");
    assert_eq!(database.attempts(json).await, []);
    assert!(database.secret("a").await.starts_with("whsec_"));
}

#[tokio::test]
#[should_panic(expected = "still not so after 50ms: the moon is cheese; last seen: \"rock\"")]
async fn a_wait_that_fails_says_what_it_last_saw() {
    wait_until(
        "the moon is cheese",
        async || "rock",
        |seen| *seen == "cheese",
        Duration::from_millis(50),
    )
    .await;
}

#[tokio::test]
async fn the_program_sees_no_setting_of_its_surroundings() {
    let mut command = postrider();
    command.arg("--version");
    let settings: Vec<_> = command
        .get_envs()
        .map(|(name, _)| name.to_owned())
        .collect();

    let mut program = Worker::run(command);

    assert!(program.wait().await.success());
    assert!(
        program.said().starts_with("postrider "),
        "{}",
        program.said()
    );
    assert!(
        settings.iter().all(|name| name == "PATH" || name == "HOME"),
        "{settings:?}"
    );
}

#[tokio::test]
async fn a_command_of_a_test_ends_with_the_words_it_said() {
    let database = Database::fresh().await;

    let output = on(&database, &["no-such-command"])
        .output()
        .expect("it runs");

    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-command"));
}

#[tokio::test]
async fn a_worker_stands_still_goes_on_ends_and_dies_as_it_is_told() {
    let database = Database::fresh().await;
    let workers = async || {
        database
            .value::<i64>("select count(*) from postrider.workers")
            .await
    };
    let mut first = Worker::spawn(&database, &["--poll-interval", "50ms"]);
    wait_until("it runs", workers, |count| *count == 1, SOON).await;

    first.stop();
    let state =
        async || std::fs::read_to_string(format!("/proc/{}/stat", first.id())).expect("Linux");
    wait_until(
        "it stands still",
        state,
        |state| state.contains(") T "),
        SOON,
    )
    .await;
    first.cont();
    first.terminate();

    assert_eq!(first.wait().await.code(), Some(0), "{}", first.said());
    assert_eq!(workers().await, 0, "one that ends in peace leaves no row");
    let mut second = Worker::spawn(&database, &["--no-listen"]);
    second.wait_for_line("worker starts").await;
    second.kill_9();
    assert_eq!(second.wait().await.code(), None);
}

#[test]
fn both_verifiers_accept_a_true_signature_and_refuse_a_forged_one() {
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let signer = Webhook::new(secret).expect("a secret");
    let signature = signer
        .sign("evt_1", now.try_into().expect("fits"), b"{}")
        .expect("signs");
    let headers: HeaderMap = [
        ("webhook-id", "evt_1"),
        ("webhook-timestamp", &now.to_string()),
        ("webhook-signature", &signature),
    ]
    .into_iter()
    .map(|(name, value)| {
        (
            name.parse::<http::HeaderName>().expect("a name"),
            value.parse().expect("a value"),
        )
    })
    .collect();
    let genuine = Received {
        secret,
        headers: &headers,
        body: b"{}",
    };
    let forged = Received {
        secret,
        headers: &headers,
        body: b"{ }",
    };

    let by_crate = (verify_with_crate(&genuine), verify_with_crate(&forged));
    let by_python = verify_with_python(&[genuine, forged]);

    assert!(matches!(by_crate, (Ok(()), Err(_))), "{by_crate:?}");
    if let Checked::Ran(verdicts) = by_python {
        assert!(
            matches!(&verdicts[..], [Ok(()), Err(said)] if said.contains("No matching signature")),
            "{verdicts:?}"
        );
    }
}

#[tokio::test]
#[ignore = "run by the next test in a process of its own"]
async fn hold_a_database_for_another_test() {
    if std::env::var_os(HOLD).is_none() {
        return;
    }
    let database = Database::fresh().await;
    writeln!(std::io::stdout(), "\nholding {}", database.url()).expect("the parent reads it");
    std::io::stdin().lines().for_each(drop);
}

#[tokio::test]
async fn a_killed_test_process_leaves_no_server() {
    let program = std::env::current_exe().expect("this test's own program");
    let mut command = Command::new(program);
    command
        .args([
            "--exact",
            "harness::hold_a_database_for_another_test",
            "--ignored",
            "--nocapture",
        ])
        .env(HOLD, "yes")
        // A server of somebody's own would rightly stay.
        .env_remove(SERVER_URL)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut holder = command.spawn().expect("it runs");
    let output = BufReader::new(holder.stdout.take().expect("it is piped"));
    let held = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("holding ").map(str::to_owned));
    let url = url::Url::parse(&held.expect("the holder has a database")).expect("its address");
    let address = (url.host_str().expect("a host"), url.port().expect("a port"));
    let listens = async || TcpStream::connect(address).is_ok();
    assert!(listens().await, "the server runs while its holder does");

    holder.kill().expect("it runs");
    holder.wait().expect("it ends");

    wait_until("the server is gone", listens, |listens| !listens, SOON).await;
}
