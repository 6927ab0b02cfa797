use super::{claim, delivered, fill, queue, with_status};
use crate::support::receiver::{Gate, Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// A batch that has been sent twice, since its acknowledgement got lost.
#[tokio::test]
async fn a_record_sent_twice_does_nothing_twice() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let id = database.insert("shop", "{}").await;
    let queue = queue(&database);
    let result = [delivered(&claim(&queue, "w", 10).await)];

    let first = queue.record("w", &result).await.expect("recorded");
    let after_first = (
        database.delivery(id).await,
        database.attempts(id).await.len(),
    );
    let second = queue.record("w", &result).await.expect("taken");

    assert_eq!((first, second), (vec![id], vec![]));
    let after_second = (
        database.delivery(id).await,
        database.attempts(id).await.len(),
    );
    assert_eq!(after_first, after_second);
    assert_eq!((after_second.0.attempt_count, after_second.1), (1, 1));
}

#[tokio::test]
async fn a_claim_that_is_given_back_is_due_again_and_no_try() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    let id = database.insert("shop", "{}").await;
    let queue = queue(&database);
    let taken = claim(&queue, "w", 10).await;
    let held = taken.taken[0].delivery.claim_no;

    let ours = queue.release(&[(id, held)]).await.expect("released");
    let again = queue.release(&[(id, held)]).await.expect("taken");

    assert_eq!((ours, again), (vec![id], vec![]));
    let delivery = database.delivery(id).await;
    assert_eq!(
        (
            delivery.attempt_count,
            delivery.leased_for,
            delivery.claim_no
        ),
        (0, None, held + 1)
    );
    let moved = queue
        .record("w", &[delivered(&taken)])
        .await
        .expect("taken");
    assert!(moved.is_empty(), "what was given back is fenced");
}

#[tokio::test]
async fn one_bad_value_does_not_stop_its_batch() {
    let database = Database::private().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    database
        .sql("alter table postrider.attempts add constraint poison check (response_body <> 'poison')")
        .await;
    let gate = Gate::closed();
    let reply = |body: &str| Script::reply(200, &[], body.as_bytes()).behind(&gate);
    receiver.script((0..20).map(|number| reply(if number == 7 { "poison" } else { "fine" })));
    fill(&database, "shop", 20).await;
    let worker = Worker::spawn(&database, &[]);
    receiver.wait_for_requests(20).await;

    gate.open();

    let done = async || with_status(&database, "shop", "delivered").await;
    wait_until("all are on record", done, |n| *n == 20, SOON).await;
    let bodies: String = database
        .value(
            "select string_agg(n::text || ' ' || body, ', ' order by body) from (
               select count(*), coalesce(convert_from(response_body, 'UTF8'), error) from postrider.attempts group by 2) b (n, body)",
        )
        .await;
    assert_eq!(bodies, "19 fine, 1 the reply could not be stored");
    assert!(worker.said().contains("recorded without it"));
}

#[tokio::test]
async fn c29_while_results_cannot_be_written_claiming_stops_and_nothing_is_sent_twice() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.script(vec![Script::status(200).behind(&gate); 8]);
    database.endpoint("shop", &receiver.url("/")).await;
    fill(&database, "shop", 100).await;
    let _worker = Worker::spawn(
        &database,
        &["--concurrency", "10", "--poll-interval", "20ms"],
    );
    receiver.wait_for_requests(8).await;
    let other = database.connect().await;
    other
        .batch_execute(
            "begin; select from postrider.deliveries where lease_expires_at is not null for update",
        )
        .await
        .expect("a lock");

    gate.open();

    let waits = async || {
        let waits = "select count(*) from pg_stat_activity
                      where datname = current_database() and wait_event_type = 'Lock' and clock_timestamp() - query_start > '500 ms'";
        database.value::<i64>(waits).await
    };
    wait_until(
        "the record has waited for many polls",
        waits,
        |n| *n == 1,
        SOON,
    )
    .await;
    let sent = receiver.requests().len();
    assert!(
        sent <= 4 * 10,
        "{sent} requests: more than four times the tries at a time"
    );
    other.batch_execute("rollback").await.expect("unlocked");
    let done = async || with_status(&database, "shop", "delivered").await;
    wait_until("all are delivered", done, |n| *n == 100, SOON).await;
    assert_eq!(receiver.requests().len(), 100);
}

#[tokio::test]
async fn results_wait_in_memory_while_the_database_is_away() {
    let database = Database::private().await;
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.script(vec![Script::status(200).behind(&gate); 10]);
    database.endpoint("shop", &receiver.url("/")).await;
    fill(&database, "shop", 10).await;
    let worker = Worker::spawn(&database, &[]);
    receiver.wait_for_requests(10).await;
    let outside = Database::fresh().await;
    let name = database.name();
    let allow = |answer: &str| format!("alter database {name} with allow_connections {answer}");
    outside.sql(&allow("false")).await;
    database
        .sql("select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
        .await;

    gate.open();
    worker.wait_for_line("results wait in memory").await;
    assert_eq!(with_status(&database, "shop", "delivered").await, 0);
    outside.sql(&allow("true")).await;

    let done = async || with_status(&database, "shop", "delivered").await;
    wait_until("the results are on record", done, |n| *n == 10, SOON).await;
    assert_eq!(receiver.requests().len(), 10, "nothing was sent again");
    let id = database.insert("shop", "{}").await;
    database.wait_for_status(id, "delivered").await;
}

#[tokio::test]
async fn c44_sessions_that_are_ended_again_and_again_lose_nothing() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database
        .endpoint("shop", &receiver.url("/"))
        .set("rate_limit", 200)
        .await;
    fill(&database, "shop", 300).await;
    let _worker = Worker::spawn(&database, &["--poll-interval", "50ms"]);

    let done = async || {
        database
            .sql(
                "select pg_terminate_backend(pid) from pg_stat_activity
                  where datname = current_database() and application_name <> 'postrider tests' and random() < 0.05",
            )
            .await;
        with_status(&database, "shop", "delivered").await
            + super::in_flight(&database, "shop").await
    };
    wait_until(
        "all are delivered or were claimed in vain",
        done,
        |n| *n == 300,
        SOON,
    )
    .await;
    super::expire_leases(&database).await;
    let done = async || with_status(&database, "shop", "delivered").await;
    wait_until("all are delivered", done, |n| *n == 300, SOON).await;

    let hidden: i64 = database
        .value("select count(*) from postrider.deliveries d where attempt_count <> (select count(*) from postrider.attempts a where a.delivery_id = d.id)")
        .await;
    assert_eq!(hidden, 0);
    let tries: i64 = database
        .value("select count(*) from postrider.attempts")
        .await;
    assert!(receiver.requests().len() <= usize::try_from(tries).expect("a count"));
}
