//! What one endpoint's rows may do to the rows of others, and to the endpoint's own cap.

use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// Rows of one statement are due at one moment: without a tie-break the head of their lane is other rows at each look.
#[tokio::test]
async fn the_cap_holds_for_rows_that_are_due_at_the_same_moment() {
    const CAP: usize = 3;
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script(vec![Script::silence(); 60]);
    database
        .endpoint("shop", &receiver.url("/hook"))
        .set("max_in_flight", i32::try_from(CAP).unwrap())
        .await;
    database
        .sql(
            "insert into postrider.deliveries (endpoint, event_type, payload)
             select 'shop', 'a', to_json(repeat('x', n * 20)) from generate_series(1, 60) n",
        )
        .await;

    let _workers = [(); 2].map(|()| Worker::spawn(&database, &["--poll-interval", "50ms"]));
    receiver.wait_for_requests(CAP).await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;

    assert_eq!(receiver.requests().len(), CAP);
}

/// `begin; select postrider.enable('sick')` and a long lunch.
#[tokio::test]
async fn a_lock_on_the_health_of_one_endpoint_holds_up_nobody_elses_results() {
    let database = Database::fresh().await;
    let (sick, well) = (Receiver::start().await, Receiver::start().await);
    sick.script([Script::status(500)]);
    database.endpoint("sick", &sick.url("/hook")).await;
    database.endpoint("well", &well.url("/hook")).await;
    let somebody = database.connect().await;
    somebody
        .batch_execute("begin; update postrider.endpoint_health set failing_since = null where endpoint = 'sick'")
        .await
        .unwrap();
    let _worker = Worker::spawn(&database, &[]);
    let failing = database.insert("sick", "{}").await;
    sick.wait_for_requests(1).await;
    let waiting = "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())";
    let look = async || database.value::<bool>(waiting).await;
    wait_until("the result waits for the lock", look, |waits| *waits, SOON).await;

    let fine = database.insert("well", "{}").await;
    database.wait_for_status(fine, "delivered").await;
    assert_eq!(database.delivery(failing).await.status, "queued");
    somebody.batch_execute("commit").await.unwrap();

    database.wait_for_status(failing, "failed").await;
    assert_eq!((sick.requests().len(), well.requests().len()), (1, 1));
}

/// One of these would overflow in the claim, and stop every worker, or be in flight for ever.
#[tokio::test]
async fn a_row_that_no_worker_could_count_on_is_refused() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://a.test/").await;
    for (column, value) in [
        ("claim_no", "9223372036854775807"),
        ("attempt_count", "2147483647"),
        ("lease_expires_at", "'infinity'"),
    ] {
        let insert = format!(
            "insert into postrider.deliveries (endpoint, event_type, payload, {column}) values ('shop', 'a', '{{}}', {value})"
        );

        let refusal = database.client().batch_execute(&insert).await.unwrap_err();

        let code = refusal.code().map(tokio_postgres::error::SqlState::code);
        assert_eq!(code, Some("23514"), "{column}: {refusal:?}");
    }
}

/// Days may be dropped, and the try of a dead worker goes on record in one of them.
#[tokio::test]
async fn a_lost_try_whose_day_was_dropped_stops_no_claim() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/hook")).await;
    let _worker = Worker::spawn(&database, &[]);
    let first = database.insert("shop", "{}").await;
    database.wait_for_status(first, "delivered").await;

    database
        .sql(
            "do $$
             declare day regclass;
             begin
               for day in select inhrelid::regclass from pg_inherits where inhparent = 'postrider.attempts'::regclass loop
                 execute 'drop table ' || day;
               end loop;
             end $$",
        )
        .await;
    let lost = database
        .insert("shop", "{}")
        .set("lease_expires_at", "2001-01-01T00:00:00Z")
        .await;

    let delivery = database.wait_for_status(lost, "delivered").await;
    assert_eq!(delivery.attempt_count, 2);
    assert_eq!(database.attempts(lost).await.len(), 2);
}
