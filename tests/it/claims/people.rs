use super::{fill, in_flight, with_status};
use crate::support::receiver::{Gate, Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// The SQLSTATE that a call is refused with.
async fn refused(database: &Database, call: &str) -> String {
    let error = database.client().query(call, &[]).await;
    let error = error.expect_err(call);
    error.code().expect("the server's").code().to_owned()
}

#[tokio::test]
async fn c34_a_replay_sends_the_same_event_again_and_goes_on_counting() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let id = database
        .insert("shop", "{\"b\": 1.0}")
        .set("event_id", "evt_1")
        .await;
    let _worker = Worker::spawn(&database, &[]);
    database.wait_for_status(id, "delivered").await;

    let replayed: bool = database
        .value(&format!("select postrider.replay({id})"))
        .await;

    assert!(replayed);
    let requests = receiver.wait_for_requests(2).await;
    for request in &requests {
        assert_eq!(request.header("webhook-id"), ["evt_1"]);
        assert_eq!(request.body, b"{\"b\": 1.0}");
    }
    let again = |row: &crate::support::database::Delivery| row.attempt_count == 2;
    let delivery = database
        .wait_for(id, "the second is on record", again)
        .await;
    assert_eq!(delivery.status, "delivered");
    let numbers: Vec<_> = database
        .attempts(id)
        .await
        .iter()
        .map(|a| a.attempt_no)
        .collect();
    assert_eq!(numbers, [1, 2]);
}

#[tokio::test]
async fn c34_a_replay_of_an_exhausted_delivery_has_a_fresh_budget() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script(vec![Script::status(500); 4]);
    database
        .sql("insert into postrider.retry_policies (name, kind, delays, max_retries, jitter) values ('at-once', 'schedule', '{0 s}', 1, 0)")
        .await;
    database
        .endpoint("shop", &receiver.url("/"))
        .set("retry_policy", "at-once")
        .await;
    let id = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &["--poll-interval", "50ms"]);
    let first = database.wait_for_status(id, "exhausted").await;
    assert_eq!(first.attempt_count, 2);

    database
        .sql(&format!("select postrider.replay({id})"))
        .await;

    let used_up = |row: &crate::support::database::Delivery| {
        row.status == "exhausted" && row.attempt_count == 4
    };
    let delivery = database
        .wait_for(id, "its second budget is used up", used_up)
        .await;
    assert_eq!(delivery.exhausted_reason.as_deref(), Some("retries_used"));
    assert_eq!(delivery.budget_from, 2);
    database
        .sql(&format!("select postrider.replay({id})"))
        .await;
    database.wait_for_status(id, "delivered").await;
    let numbers: Vec<_> = database
        .attempts(id)
        .await
        .iter()
        .map(|a| a.attempt_no)
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn c34_a_delivery_in_flight_is_not_replayed() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.script([Script::status(200).behind(&gate)]);
    database.endpoint("shop", &receiver.url("/")).await;
    let id = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &[]);
    receiver.wait_for_requests(1).await;

    let code = refused(&database, &format!("select postrider.replay({id})")).await;

    assert_eq!(code, "PR002");
    assert_eq!(
        refused(&database, "select postrider.replay(4711)").await,
        "PR001"
    );
    gate.open();
    let delivery = database.wait_for_status(id, "delivered").await;
    assert_eq!(delivery.attempt_count, 1);
}

#[tokio::test]
async fn c34_a_double_click_is_one_replay() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let id = database.insert("shop", "{}").await;
    database
        .sql("update postrider.deliveries set status = 'delivered', next_retry = null, finished_at = now(), attempt_count = 1")
        .await;
    let (one, two) = (database.connect().await, database.connect().await);
    let replay = format!("select postrider.replay({id})");
    one.batch_execute("begin").await.expect("begun");
    let first: bool = one
        .query_one(&replay, &[])
        .await
        .expect("replayed")
        .try_get(0)
        .expect("a boolean");

    let second = async {
        two.query_one(&replay, &[])
            .await
            .expect("answered")
            .try_get::<_, bool>(0)
            .expect("a boolean")
    };
    let commit_when_it_waits = async {
        let blocked = async || {
            let blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
            database.value::<i64>(blocked).await
        };
        wait_until("the second click waits", blocked, |n| *n == 1, SOON).await;
        one.batch_execute("commit").await.expect("committed");
    };
    let (second, ()) = tokio::join!(second, commit_when_it_waits);

    assert_eq!((first, second), (true, false));
    assert_eq!(database.delivery(id).await.claim_no, 1);
}

#[tokio::test]
async fn c34_a_replay_of_what_somebody_saw_does_not_replay_what_came_after() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let id = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &[]);
    let seen = database.wait_for_status(id, "delivered").await.claim_no;
    let replay = format!("select postrider.replay({id}, {seen})");
    let first: bool = database.value(&replay).await;
    let again = |row: &crate::support::database::Delivery| row.attempt_count == 2;
    database.wait_for(id, "it was sent again", again).await;

    let second: bool = database.value(&replay).await;

    assert_eq!((first, second), (true, false));
}

#[tokio::test]
async fn an_open_delivery_that_is_cancelled_is_never_sent() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let id = database.insert("shop", "{}").await;
    let cancel = format!("select postrider.cancel({id})");

    let (first, second): (bool, bool) =
        (database.value(&cancel).await, database.value(&cancel).await);

    assert_eq!((first, second), (true, false));
    let _worker = Worker::spawn(&database, &[]);
    let other = database.insert("shop", "{}").await;
    database.wait_for_status(other, "delivered").await;
    assert_eq!(receiver.requests().len(), 1);
    let delivery = database.delivery(id).await;
    assert_eq!(delivery.exhausted_reason.as_deref(), Some("cancelled"));
    assert_eq!(database.attempts(id).await, []);
    assert_eq!(
        refused(&database, &format!("select postrider.cancel({other})")).await,
        "PR003"
    );
    assert_eq!(
        refused(&database, "select postrider.cancel(4711)").await,
        "PR001"
    );
}

#[tokio::test]
async fn a_try_in_flight_that_is_cancelled_goes_on_record_as_it_ended() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.script([Script::reply(200, &[], b"too late").behind(&gate)]);
    database.endpoint("shop", &receiver.url("/")).await;
    let id = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &[]);
    receiver.wait_for_requests(1).await;

    let cancelled: bool = database
        .value(&format!("select postrider.cancel({id})"))
        .await;
    let at_first = database.attempts(id).await;
    gate.open();

    assert!(cancelled);
    let outcomes = |tries: &[crate::support::database::Attempt]| -> Vec<String> {
        tries.iter().map(|one| one.outcome.clone()).collect()
    };
    assert_eq!(outcomes(&at_first), ["lost"]);
    let tries = async || database.attempts(id).await;
    let is_delivered = |tries: &Vec<_>| outcomes(tries) == ["delivered"];
    let tries = wait_until("the true outcome is on record", tries, is_delivered, SOON).await;
    assert_eq!(tries[0].response_body.as_deref(), Some(&b"too late"[..]));
    let delivery = database.delivery(id).await;
    assert_eq!(
        (delivery.exhausted_reason.as_deref(), delivery.attempt_count),
        (Some("cancelled"), 1)
    );
}

#[tokio::test]
async fn c48_pause_ends_a_storm_within_a_second_and_cancel_empties_its_backlog() {
    let database = Database::private().await;
    let receiver = Receiver::start().await;
    for name in ["storm", "z-calm"] {
        database.endpoint(name, &receiver.url("/")).await;
    }
    // Each delivery makes one more, as a receiver that calls back would.
    database
        .sql(
            "create function storm() returns trigger language plpgsql as $$ begin
               insert into postrider.deliveries (endpoint, event_type, payload)
               select 'storm', 't', '{}' where new.endpoint = 'storm'; return null; end $$;
             create trigger storm after insert on postrider.attempts for each row execute function storm()",
        )
        .await;
    fill(&database, "storm", 20).await;
    let _worker = Worker::spawn(&database, &[]);
    receiver.wait_for_requests(100).await;

    database.sql("create table paused as select clock_timestamp() as at; select postrider.pause('storm', 'it storms')").await;

    let flying = async || in_flight(&database, "storm").await;
    let calm = database.insert("z-calm", "{}").await;
    database.wait_for_status(calm, "delivered").await;
    wait_until("the last tries have ended", flying, |n| *n == 0, SOON).await;
    let late: i64 = database
        .value("select count(*) from postrider.attempts, paused where endpoint = 'storm' and started_at > paused.at + interval '1 s'")
        .await;
    assert_eq!(late, 0);
    let held =
        "select count(*) from postrider.delivery_state where endpoint = 'storm' and state = 'held'";
    assert_eq!(database.value::<i64>(held).await, 20);
    let cancelled: i64 = database
        .value("select count(*) filter (where postrider.cancel(id)) from postrider.deliveries where endpoint = 'storm' and next_retry is not null")
        .await;
    assert_eq!(cancelled, 20);
    database.sql("select postrider.resume('storm')").await;
    let id = database.insert("storm", "{}").await;
    database.wait_for_status(id, "delivered").await;
}

#[tokio::test]
async fn c33_the_backlog_of_a_disabled_endpoint_ends_with_few_words_and_can_be_replayed() {
    let database = Database::fresh().await;
    database.endpoint("gone", "http://127.0.0.1:1/").await;
    fill(&database, "gone", 10_000).await;
    database
        .sql("select postrider.disable('gone', 'moved away')")
        .await;

    let mut worker = Worker::spawn(&database, &[]);

    let ended = async || with_status(&database, "gone", "exhausted").await;
    wait_until("all have ended", ended, |n| *n == 10_000, SOON).await;
    worker.terminate();
    assert_eq!(worker.wait().await.code(), Some(0));
    let lines = worker.said().lines().count();
    assert!(lines < 30, "{lines} lines:\n{}", worker.said());
    let sent: i64 = database
        .value("select count(*) from postrider.attempts")
        .await;
    assert_eq!(sent, 0);
    let reasons: Vec<String> = database
        .value("select array_agg(distinct exhausted_reason) from postrider.deliveries")
        .await;
    assert_eq!(reasons, ["endpoint_disabled"]);
    let id: i64 = database
        .value("select min(id) from postrider.deliveries")
        .await;
    assert_eq!(
        refused(&database, &format!("select postrider.replay({id})")).await,
        "PR005"
    );
    let none: i64 = database
        .value("select postrider.replay_matching('gone')")
        .await;
    database.sql("select postrider.enable('gone')").await;
    let all: i64 = database
        .value("select postrider.replay_matching('gone', reason => 'endpoint_disabled', max_rows => 20000)")
        .await;
    assert_eq!((none, all), (0, 10_000));
}

#[tokio::test]
async fn an_endpoint_that_is_disabled_in_flight_keeps_the_result_of_that_try() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.script([Script::status(200).behind(&gate)]);
    database.endpoint("shop", &receiver.url("/")).await;
    let flying = database.insert("shop", "{}").await;
    let _worker = Worker::spawn(&database, &["--poll-interval", "50ms"]);
    receiver.wait_for_requests(1).await;

    let later = database
        .insert("shop", "{}")
        .set("next_retry", "infinity")
        .await;
    database.sql("select postrider.disable('shop')").await;
    let ended = database.wait_for_status(later, "exhausted").await;
    gate.open();

    assert_eq!(ended.exhausted_reason.as_deref(), Some("endpoint_disabled"));
    database.wait_for_status(flying, "delivered").await;
}

#[tokio::test]
async fn enabling_an_endpoint_again_forgets_its_failures() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::status(500)]);
    database
        .endpoint("shop", &receiver.url("/"))
        .set("retry_policy", "once")
        .await;
    let _worker = Worker::spawn(&database, &[]);
    let id = database.insert("shop", "{}").await;
    database.wait_for_status(id, "exhausted").await;
    let health = "select concat_ws(' ', e.enabled, e.disabled_reason, h.consecutive_failures, h.failing_since is not null)
                    from postrider.endpoints e join postrider.endpoint_health h on h.endpoint = e.name";
    database
        .sql("select postrider.disable('shop', 'it fails')")
        .await;
    assert_eq!(database.value::<String>(health).await, "f it fails 1 t");

    database.sql("select postrider.enable('shop')").await;

    assert_eq!(database.value::<String>(health).await, "t 0 f");
    database
        .sql(&format!("select postrider.replay({id})"))
        .await;
    database.wait_for_status(id, "delivered").await;
    assert_eq!(
        refused(&database, "select postrider.enable('nobody')").await,
        "PR004"
    );
}
