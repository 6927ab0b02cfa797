//! Whoever waits gets the receiver's answer or an error in time, and after an error nothing is sent any more.

/// What a caller may do wrong, and from where a call can be made at all.
mod calling;
/// The deadline as the claim, the record and the replay know it.
mod deadline;
/// `postrider send --wait`.
mod waiting_send;

use std::time::{Duration, Instant};

use tokio_postgres::types::Type;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::support::database::Attempt;
use crate::support::receiver::{Gate, Receiver, Script};
use crate::support::{Database, SOON, Worker, tell, wait_until};

/// What a call came to: status and body, or the server's error.
type Outcome = Result<(Option<i32>, Option<Vec<u8>>), Refused>;

/// An error as a caller sees it.
#[derive(Debug)]
struct Refused {
    state: String,
    message: String,
    detail: String,
    hint: String,
}

impl From<tokio_postgres::Error> for Refused {
    fn from(error: tokio_postgres::Error) -> Self {
        let said = error.as_db_error().expect("the server said it");
        Self {
            state: said.code().code().to_owned(),
            message: said.message().to_owned(),
            detail: said.detail().unwrap_or_default().to_owned(),
            hint: said.hint().unwrap_or_default().to_owned(),
        }
    }
}

/// The call as programs send it: parsed, bound and executed in one go, on a session that commits by itself.
async fn call(session: &Client, endpoint: &str, payload: &str, timeout: &str) -> Outcome {
    let rows = session
        .query_typed(
            "call postrider.deliver_now($1::text, 'test.event', $2::text::json, $3::text::interval)",
            &[
                (&endpoint, Type::TEXT),
                (&payload, Type::TEXT),
                (&timeout, Type::TEXT),
            ],
        )
        .await?;
    let [row] = &rows[..] else {
        panic!("a call returns one row");
    };
    Ok((
        row.try_get(0).expect("an integer"),
        row.try_get(1).expect("bytes"),
    ))
}

/// The error of a call, which must be this one and say what to do.
#[track_caller]
fn refused(outcome: Outcome, state: &str) -> Refused {
    let refused = outcome.expect_err("it is refused");
    assert_eq!(refused.state, state, "{refused:?}");
    assert!(!refused.hint.is_empty(), "{refused:?}");
    refused
}

/// A worker that has looked once and sleeps.
async fn idle_worker(database: &Database) -> Worker {
    let worker = Worker::spawn(database, &[]);
    worker_sleeps(database).await;
    worker
}

async fn worker_sleeps(database: &Database) {
    let sleeps = "select count(*) from postrider.workers where sleeping_until > now()";
    let look = async || database.value::<i64>(sleeps).await;
    wait_until("a worker sleeps", look, |count| *count > 0, SOON).await;
}

/// What a worker's sessions were told last, the server does also when the worker is stopped or killed meanwhile.
async fn server_is_done(database: &Database) {
    let busy = "select count(*) from pg_stat_activity
                 where application_name = 'postrider' and datname = current_database() and state <> 'idle'";
    let look = async || database.value::<i64>(busy).await;
    wait_until(
        "workers' sessions are idle",
        look,
        |count| *count == 0,
        SOON,
    )
    .await;
}

/// The id of the one delivery that somebody waits for, as soon as it is there.
async fn waited_for(database: &Database) -> i64 {
    let newest = "select coalesce(max(id), 0) from postrider.deliveries where deadline is not null and next_retry is not null";
    let look = async || database.value::<i64>(newest).await;
    wait_until("a caller waits", look, |id| *id > 0, SOON).await
}

/// Sends something else through the same lane: what comes before it there has gone by then, or never will.
async fn lane_is_served(database: &Database, endpoint: &str) {
    let sentinel = database.insert(endpoint, r#"{"sentinel":1}"#).await;
    database.wait_for_status(sentinel, "delivered").await;
}

fn bodies(receiver: &Receiver) -> Vec<String> {
    let requests = receiver.requests();
    let text = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
    requests.iter().map(|request| text(&request.body)).collect()
}

#[tokio::test]
async fn the_answer_comes_back_to_whoever_waits_and_no_byte_changes() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    receiver.script([
        Script::reply(201, &[], b"\x00\xffok"),
        Script::status(204),
        Script::reply(200, &[], &[b'x'; 20_000]),
    ]);
    let _worker = idle_worker(&database).await;
    let payload = "{\"b\":1.00, \"a\":\"\\u0000\"}\n";

    let first = call(database.client(), "shop", payload, "20 s").await;
    let empty = call(database.client(), "shop", "{}", "20 s").await;
    let long = call(database.client(), "shop", "{}", "20 s").await;

    assert_eq!(
        first.expect("delivered"),
        (Some(201), Some(b"\x00\xffok".to_vec()))
    );
    assert_eq!(empty.expect("delivered"), (Some(204), Some(Vec::new())));
    let (_, body) = long.expect("delivered");
    assert_eq!(body, Some(vec![b'x'; 16 * 1024]));
    assert_eq!(bodies(&receiver)[0], payload);
    let delivery = database.delivery(1).await;
    assert_eq!(
        (delivery.status.as_str(), delivery.attempt_count),
        ("delivered", 1)
    );
}

#[tokio::test]
async fn each_cause_has_its_own_sqlstate_and_one_request_at_most() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    database.endpoint("gone", &receiver.url("/gone")).await;
    database.endpoint("closed", "http://127.0.0.1:1/").await;
    database.endpoint("private", "http://10.0.0.1/").await;
    database.endpoint("nonsense", "no url").await;
    let _worker = idle_worker(&database).await;
    let reply = |status| Script::reply(status, &[], "kein Gr\u{fc}n\u{1b}[2J".as_bytes());
    let answers = [
        ("shop", Some(reply(422)), "PR006", "status 422"),
        ("shop", Some(reply(302)), "PR006", "status 302"),
        ("gone", Some(reply(410)), "PR006", "status 410"),
        ("private", None, "PR006", "no status"),
        ("nonsense", None, "PR006", "no status"),
        ("shop", Some(reply(503)), "PR007", "status 503"),
        ("shop", Some(reply(429)), "PR007", "status 429"),
        ("shop", Some(Script::hang_up()), "PR007", "no status"),
        ("closed", None, "PR007", "no status"),
    ];

    for (endpoint, script, state, status) in answers {
        let (sent, before) = (script.is_some(), receiver.requests().len());
        receiver.script(script.clone());
        let refused = refused(call(database.client(), endpoint, "{}", "20 s").await, state);

        assert!(refused.message.contains(endpoint), "{refused:?}");
        assert!(refused.detail.contains("delivery "), "{refused:?}");
        assert!(refused.detail.contains(status), "{refused:?}");
        assert!(!refused.detail.contains('\u{1b}'), "{refused:?}");
        let body = status != "no status";
        assert_eq!(
            refused.detail.contains("body: kein Gr\u{fc}n"),
            body,
            "{refused:?}"
        );
        let requests = receiver.requests().len() - before;
        assert_eq!(requests, usize::from(sent), "{refused:?}");
    }
    refused(call(database.client(), "gone", "{}", "20 s").await, "PR005");
    let open: i64 = database
        .value("select count(*) from postrider.deliveries where next_retry is not null")
        .await;
    assert_eq!(open, 0);
}

#[tokio::test]
async fn without_a_worker_it_is_refused_in_time_and_a_later_worker_sends_nothing() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;

    refused(
        call(database.client(), "shop", "{}", "100 ms").await,
        "PR008",
    );

    let delivery = database.delivery(1).await;
    assert_eq!(delivery.exhausted_reason.as_deref(), Some("deadline"));
    assert_eq!(delivery.attempt_count, 0);
    let _worker = Worker::spawn(&database, &[]);
    lane_is_served(&database, "shop").await;
    assert_eq!(bodies(&receiver), [r#"{"sentinel":1}"#]);
}

#[tokio::test]
async fn a_worker_that_stood_still_meanwhile_sends_nothing_when_it_goes_on() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let mut worker = idle_worker(&database).await;
    worker.stop();
    server_is_done(&database).await;

    refused(
        call(database.client(), "shop", "{}", "300 ms").await,
        "PR008",
    );
    worker.cont();

    lane_is_served(&database, "shop").await;
    assert_eq!(bodies(&receiver), [r#"{"sentinel":1}"#]);
}

#[tokio::test]
async fn a_worker_killed_in_the_middle_is_a_failure_and_the_next_one_sends_nothing() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    receiver.script([Script::silence()]);
    let mut worker = idle_worker(&database).await;

    let caller = database.connect().await;
    let (outcome, ()) = tokio::join!(call(&caller, "shop", "{}", "2 s"), async {
        receiver.wait_for_requests(1).await;
        worker.kill_9();
    });

    refused(outcome, "PR007");
    let delivery = database.delivery(1).await;
    assert_eq!(delivery.exhausted_reason.as_deref(), Some("deadline"));
    let [lost] = &database.attempts(1).await[..] else {
        panic!("one try was made");
    };
    assert_eq!(lost.outcome, "lost");
    let _next = Worker::spawn(&database, &[]);
    lane_is_served(&database, "shop").await;
    assert_eq!(bodies(&receiver), ["{}", r#"{"sentinel":1}"#]);
}

#[tokio::test]
async fn a_try_that_was_under_way_in_a_stopped_worker_is_told_of_when_it_goes_on_and_not_made_again()
 {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    receiver.script([Script::silence()]);
    let mut worker = idle_worker(&database).await;

    let caller = database.connect().await;
    let (outcome, ()) = tokio::join!(call(&caller, "shop", "{}", "1 s"), async {
        receiver.wait_for_requests(1).await;
        worker.stop();
    });
    refused(outcome, "PR007");
    assert_eq!(database.attempts(1).await[0].outcome, "lost");
    worker.cont();

    let tries = async || database.attempts(1).await;
    let told = |tries: &Vec<Attempt>| {
        tries.len() == 1 && tries[0].error_kind.as_deref() == Some("timeout")
    };
    wait_until("the worker tells how it went", tries, told, SOON).await;
    assert_eq!(database.delivery(1).await.status, "exhausted");
    lane_is_served(&database, "shop").await;
    assert_eq!(bodies(&receiver), ["{}", r#"{"sentinel":1}"#]);
}

#[tokio::test]
async fn a_receiver_that_hangs_gets_one_request_which_ends_with_the_callers_time_not_the_endpoints()
{
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database
        .endpoint("shop", &receiver.url("/"))
        .set("timeout", "15 s")
        .await;
    receiver.script([Script::silence()]);
    let _worker = idle_worker(&database).await;
    let began = Instant::now();

    let refused = refused(call(database.client(), "shop", "{}", "1 s").await, "PR007");

    let took = began.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}: {refused:?}");
    let tries = async || database.attempts(1).await;
    let ended = |tries: &Vec<Attempt>| {
        tries.len() == 1 && tries[0].error_kind.as_deref() == Some("timeout")
    };
    let tries = wait_until("the try has ended", tries, ended, SOON).await;
    assert!(tries[0].duration_ms <= Some(1100), "{tries:?}");
    assert_eq!(receiver.requests().len(), 1);
    assert_eq!(database.delivery(1).await.status, "exhausted");
}

#[tokio::test]
async fn a_status_whose_body_stalls_until_the_deadline_is_delivered_all_the_same() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    receiver.script([Script::raw("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab").then_stall()]);
    let _worker = idle_worker(&database).await;

    let outcome = call(database.client(), "shop", "{}", "1 s").await;

    assert_eq!(
        outcome.expect("delivered"),
        (Some(200), Some(b"ab".to_vec()))
    );
}

#[tokio::test]
async fn a_cancelled_caller_leaves_nothing_to_send() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let caller = database.connect().await;
    let cancel = caller.cancel_token();

    let (outcome, ()) = tokio::join!(call(&caller, "shop", "{}", "1 h"), async {
        waited_for(&database).await;
        cancel
            .cancel_query(tokio_postgres::NoTls)
            .await
            .expect("the server hears it");
    });
    refused(outcome, "57014");
    run_on(&caller, "set statement_timeout = '300 ms'").await;
    let timed_out = refused(call(&caller, "shop", "{}", "1 h").await, "57014");

    assert!(
        timed_out.message.contains("statement timeout"),
        "{timed_out:?}"
    );
    for id in [1, 2] {
        let delivery = database.delivery(id).await;
        assert_eq!(delivery.exhausted_reason.as_deref(), Some("cancelled"));
    }
    let _worker = Worker::spawn(&database, &[]);
    lane_is_served(&database, "shop").await;
    assert_eq!(bodies(&receiver), [r#"{"sentinel":1}"#]);
}

#[tokio::test]
async fn a_killed_caller_leaves_a_row_that_ends_at_its_deadline_unsent() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let caller = database.connect().await;

    let (outcome, ()) = tokio::join!(call(&caller, "shop", "{}", "1 h"), async {
        waited_for(&database).await;
        database
            .sql(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity
                  where query like 'call postrider.deliver_now%' and datname = current_database()",
            )
            .await;
    });
    assert_eq!(outcome.expect_err("it was killed").state, "57P01");
    assert_eq!(database.delivery(1).await.status, "queued");
    database
        .sql("update postrider.deliveries set deadline = now() - interval '1 ms'")
        .await;
    let _worker = Worker::spawn(&database, &[]);

    let delivery = database.wait_for_status(1, "exhausted").await;
    assert_eq!(delivery.exhausted_reason.as_deref(), Some("deadline"));
    assert_eq!(database.attempts(1).await, []);
    lane_is_served(&database, "shop").await;
    assert_eq!(bodies(&receiver), [r#"{"sentinel":1}"#]);
}

#[tokio::test]
async fn a_row_that_somebody_holds_locked_is_kept_from_being_sent_by_its_deadline() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let (caller, holder) = (database.connect().await, database.connect().await);

    let (outcome, ()) = tokio::join!(call(&caller, "shop", "{}", "1 s"), async {
        waited_for(&database).await;
        run_on(
            &holder,
            "begin; select from postrider.deliveries for update",
        )
        .await;
    });
    refused(outcome, "PR008");
    assert_eq!(database.delivery(1).await.status, "queued");
    run_on(&holder, "rollback").await;
    let _worker = Worker::spawn(&database, &[]);

    let delivery = database.wait_for_status(1, "exhausted").await;
    assert_eq!(delivery.exhausted_reason.as_deref(), Some("deadline"));
    lane_is_served(&database, "shop").await;
    assert_eq!(bodies(&receiver), [r#"{"sentinel":1}"#]);
}

#[tokio::test]
async fn an_endpoint_disabled_meanwhile_is_said_to_be() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let caller = database.connect().await;

    let (outcome, _worker) = tokio::join!(call(&caller, "shop", "{}", "30 s"), async {
        waited_for(&database).await;
        database.sql("select postrider.disable('shop')").await;
        Worker::spawn(&database, &[])
    });

    refused(outcome, "PR005");
}

#[tokio::test]
async fn the_example_of_the_readme_prints_the_answer_and_then_the_refusal() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("crm", &receiver.url("/")).await;
    receiver.script([
        Script::reply(200, &[], b"yes"),
        Script::reply(409, &[], b"no"),
    ]);
    let _worker = idle_worker(&database).await;
    let section = include_str!("../../README.md")
        .split_once("### Wait for the answer")
        .and_then(|(_, rest)| rest.split_once("```python\n"))
        .and_then(|(_, rest)| rest.split_once("```"));
    let (example, _) = section.expect("the README has it");
    let run = async || {
        let mut python = std::process::Command::new("python3");
        python
            .args(["-c", example])
            .env("DATABASE_URL", database.url());
        let ran = tokio::task::spawn_blocking(move || python.output()).await;
        ran.expect("no panic").ok()
    };

    let Some(first) = run().await else {
        return tell("no python3 here: the example was not run");
    };
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if said(&first.stderr).contains("No module named") {
        return tell("no psycopg here: the example was not run");
    }
    let second = run().await.expect("it ran before");

    assert_eq!(
        said(&first.stdout),
        "200 b'yes'\n",
        "{}",
        said(&first.stderr)
    );
    let refusal = said(&second.stdout);
    assert!(
        refusal.starts_with("PR006 endpoint crm rejected it"),
        "{refusal}"
    );
    assert!(refusal.contains("status 409, body: no"), "{refusal}");
}

#[tokio::test]
async fn fifty_callers_at_a_time_get_each_their_own_answer() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let _worker = idle_worker(&database).await;
    let gate = Gate::closed();
    receiver.script(
        (0..50).map(|n| Script::reply(200, &[], format!("answer {n}").as_bytes()).behind(&gate)),
    );
    let sessions = futures_util::future::join_all((0..50).map(|_| database.connect())).await;

    let payloads: Vec<_> = (0..50).map(|n| format!("{{\"n\":{n}}}")).collect();
    let calls = sessions
        .iter()
        .zip(&payloads)
        .map(|(session, payload)| call(session, "shop", payload, "30 s"));
    let (outcomes, ()) = tokio::join!(futures_util::future::join_all(calls), async {
        receiver.wait_for_requests(50).await;
        gate.open();
    });

    let bodies = bodies(&receiver);
    assert_eq!(bodies.len(), 50);
    for (payload, outcome) in payloads.iter().zip(outcomes) {
        let place = bodies.iter().position(|body| body == payload);
        let answer = format!("answer {}", place.expect("it was sent"));
        assert_eq!(
            outcome.expect("delivered"),
            (Some(200), Some(answer.into_bytes()))
        );
    }
}

#[tokio::test]
async fn a_second_of_waiting_takes_a_bounded_number_of_looks() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let caller = database.connect().await;
    run_on(&caller, "set track_functions = 'all'").await;

    refused(call(&caller, "shop", "{}", "1 s").await, "PR008");

    drop(caller);
    let looks = "select coalesce(sum(calls), 0)::int8 from pg_stat_user_functions where funcname = 'deliver_now_look'";
    let look = async || database.value::<i64>(looks).await;
    let looks = wait_until("they are counted", look, |looks| *looks > 0, SOON).await;
    assert!((5..=70).contains(&looks), "{looks} looks");
}

/// Runs statements on a session of the test's.
async fn run_on(session: &Client, statements: &str) {
    session
        .batch_execute(statements)
        .await
        .expect("they succeed");
}

/// Sorted, as fractions of all: the half, 90 %, 99 % and the longest.
fn tell_times(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    tell(&format!(
        "deliver_now, {what}: p50 {:?}, p90 {:?}, p99 {:?}, longest {:?} of {}",
        at(50),
        at(90),
        at(99),
        at(100),
        times.len()
    ));
}

async fn timed(session: &Client, endpoint: &str) -> Duration {
    let began = Instant::now();
    call(session, endpoint, "{}", "10 s")
        .await
        .expect("delivered");
    began.elapsed()
}

#[tokio::test]
#[ignore = "measures, and depends on the machine"]
async fn how_long_a_call_takes() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    database.endpoint("busy", &receiver.url("/")).await;
    let _worker = idle_worker(&database).await;

    let mut times = Vec::new();
    for round in 0..500 {
        if round % 10 == 0 {
            worker_sleeps(&database).await;
        }
        times.push(timed(database.client(), "shop").await);
    }
    tell_times("one caller, an idle worker", times);

    let sessions = futures_util::future::join_all((0..20).map(|_| database.connect())).await;
    let twenty = async |endpoint: &str, rounds: usize| {
        let each = sessions.iter().map(|session| async move {
            let mut times = Vec::new();
            for _ in 0..rounds {
                times.push(timed(session, endpoint).await);
            }
            times
        });
        futures_util::future::join_all(each).await.concat()
    };
    tell_times("20 callers at a time", twenty("shop", 50).await);

    let backlog = "insert into postrider.deliveries (endpoint, event_type, payload)
         select 'busy', 'test.event', '{}' from generate_series(1, 30000)";
    database.sql(backlog).await;
    let mut times = Vec::new();
    for _ in 0..50 {
        times.push(timed(database.client(), "shop").await);
    }
    tell_times("a worker busy with another endpoint", times);
    let mut times = Vec::new();
    for _ in 0..50 {
        times.push(timed(database.client(), "busy").await);
    }
    let left: i64 = database
        .value("select count(*) from postrider.deliveries where next_retry is not null")
        .await;
    tell_times(
        &format!("a worker busy with the same endpoint, {left} still due"),
        times,
    );
}
