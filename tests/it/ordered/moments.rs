use std::time::Duration;

use postrider::attempt::{Next, Outcome};
use postrider::store::queue::STATEMENTS;
use tokio::task::JoinHandle;
use tokio_postgres::types::FromSqlOwned;
use tokio_postgres::{Client, Row};

use super::{claim, deliver, fill, ids, ordered, queue, record_late, result, states};
use crate::support::receiver::{Gate, Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// Asks in a session of its own, and returns when that waits for a lock.
async fn ask<T: FromSqlOwned + Send + 'static>(
    database: &Database,
    question: &str,
) -> JoinHandle<T> {
    let session = database.connect().await;
    let question = question.to_owned();
    let asking = tokio::spawn(async move { answer(&session, &question).await });
    let blocked = async || {
        let blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        database.value::<i64>(blocked).await
    };
    wait_until("it waits for the lock", blocked, |n| *n == 1, SOON).await;
    asking
}

async fn answer<T: FromSqlOwned>(session: &Client, question: &str) -> T {
    let row = session.query_one(question, &[]).await.expect(question);
    row.try_get(0).expect("of that type")
}

/// A claim in a transaction that is still open; the rows that it took.
async fn claim_within(session: &Client) -> Vec<Row> {
    session.batch_execute("begin").await.expect("begun");
    let claim = STATEMENTS.iter().find(|one| one.name == "claim");
    let claim = claim.expect("it is one of them").sql;
    let values = "'', 64, 64, 'w', 15000, 1000, 256, 67108864, '{}', '{}', '{}'";
    session
        .batch_execute(&format!("prepare claim as {claim}"))
        .await
        .expect("prepared");
    let rows = session
        .query(&format!("execute claim ({values})"), &[])
        .await;
    // The first row is the claim's own.
    rows.expect("claimed").split_off(1)
}

async fn end(session: &Client, how: &str) {
    session.batch_execute(how).await.expect("ended");
}

/// Outcomes of all tries, by delivery.
async fn outcomes(database: &Database) -> String {
    database
        .value("select coalesce(string_agg(delivery_id || ' ' || outcome, ', ' order by delivery_id, attempt_no), '') from postrider.attempts")
        .await
}

#[tokio::test]
async fn a_head_that_is_ended_in_flight_holds_the_next_until_its_try_has_ended() {
    for call in [
        "select postrider.cancel(1)::text",
        "select postrider.skip('line')::text",
        "select postrider.cancel_matching('line', max_rows => 1)::text",
    ] {
        let database = Database::fresh().await;
        ordered(&database).await;
        let queue = queue(&database);
        fill(&database, "line", 3).await;
        let first = claim(&queue).await;
        assert_eq!(ids(&first), [1]);

        database.value::<String>(call).await;
        let meanwhile = claim(&queue).await;
        record_late(&queue, &first).await;
        let after = claim(&queue).await;

        assert!(meanwhile.taken.is_empty() && meanwhile.capped, "{call}");
        let wake = meanwhile.wake.expect("the end of the lease").as_secs();
        assert!((25..=30).contains(&wake), "{call}: {wake} s");
        assert_eq!(ids(&after), [2], "{call}");
        assert_eq!(outcomes(&database).await, "1 delivered");
        let head = database.delivery(1).await;
        assert_eq!(head.exhausted_reason.as_deref(), Some("cancelled"));
    }
}

#[tokio::test]
async fn a_worker_that_dies_with_a_cancelled_head_holds_the_next_no_longer_than_its_lease() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    fill(&database, "line", 2).await;
    claim(&queue).await;
    database.sql("select postrider.cancel(1)").await;
    assert!(claim(&queue).await.taken.is_empty());

    database
        .sql("update postrider.endpoint_health set head_until = now() - interval '1 s'")
        .await;

    assert_eq!(ids(&claim(&queue).await), [2]);
}

#[tokio::test]
async fn a_head_that_is_cancelled_in_flight_and_replayed_waits_for_its_own_first_try() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    fill(&database, "line", 2).await;
    let first = claim(&queue).await;
    database
        .sql("select postrider.cancel(1); select postrider.replay(1)")
        .await;

    let meanwhile = claim(&queue).await;
    record_late(&queue, &first).await;
    let again = claim(&queue).await;
    deliver(&queue, &again).await;

    assert!(meanwhile.taken.is_empty());
    assert_eq!(ids(&again), [1]);
    assert_eq!(outcomes(&database).await, "1 delivered, 1 delivered");
    assert_eq!(ids(&claim(&queue).await), [2]);
}

#[tokio::test]
async fn a_try_that_a_stopping_worker_cuts_or_gives_back_unsent_is_claimed_again_at_once() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    fill(&database, "line", 2).await;

    let first = claim(&queue).await;
    let mut cut = result(&first, &first.taken[0], Next::Retry(Duration::ZERO));
    cut.outcome = Outcome::Lost;
    queue.record("w", &[cut]).await.expect("recorded");
    let second = claim(&queue).await;
    let given_back = (
        second.taken[0].delivery.id,
        second.taken[0].delivery.claim_no,
    );
    queue.release(&[given_back]).await.expect("released");
    let third = claim(&queue).await;

    assert_eq!([ids(&first), ids(&second), ids(&third)], [[1], [1], [1]]);
}

#[tokio::test]
async fn a_skip_during_a_request_is_followed_by_the_next_one_when_it_is_answered() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    let gate = Gate::closed();
    receiver.script([Script::status(200).behind(&gate)]);
    database
        .endpoint("line", &receiver.url("/"))
        .set("ordered", true)
        .await;
    let all = fill(&database, "line", 2).await;
    let _workers: Vec<_> = (0..2)
        .map(|_| Worker::spawn(&database, &["--poll-interval", "1h"]))
        .collect();
    receiver.wait_for_requests(1).await;

    let skipped: Option<i64> = database.value("select postrider.skip('line')").await;
    let queue = queue(&database);
    // A look of the workers' may be at the lane at the same moment.
    let looks = async || claim(&queue).await;
    let looked = wait_until("a look", looks, |look| !look.contended, SOON).await;
    let requests = receiver.requests().len();
    gate.open();

    assert_eq!((skipped, requests), (Some(all[0]), 1));
    assert!(looked.taken.is_empty() && looked.capped);
    database.wait_for_status(all[1], "delivered").await;
    let requests = receiver.requests();
    assert_eq!(requests.len(), 2, "each once");
}

#[tokio::test]
async fn two_who_skip_at_once_skip_one() {
    let database = Database::fresh().await;
    ordered(&database).await;
    fill(&database, "line", 3).await;
    let one = database.connect().await;
    end(&one, "begin; select postrider.skip('line')").await;
    let two = ask::<Option<i64>>(&database, "select postrider.skip('line')").await;

    end(&one, "commit").await;

    assert_eq!(two.await.expect("it ends"), None);
    assert_eq!(states(&database).await, "exhausted, queued, held by 2");
}

#[tokio::test]
async fn a_skip_of_what_somebody_saw_does_not_skip_what_came_after() {
    let database = Database::fresh().await;
    ordered(&database).await;
    fill(&database, "line", 3).await;
    let skip = "select postrider.skip('line', seen => 1)";

    let first: Option<i64> = database.value(skip).await;
    let double_click: Option<i64> = database.value(skip).await;
    let command =
        crate::support::process::on(&database, &["endpoint", "skip", "line", "--delivery", "1"])
            .output()
            .expect("it runs");

    assert_eq!((first, double_click), (Some(1), None));
    let said = String::from_utf8_lossy(&command.stdout).into_owned();
    assert!(said.contains("nothing was skipped"), "{said}");
    assert!(command.status.success());
    assert_eq!(states(&database).await, "exhausted, queued, held by 2");
}

#[tokio::test]
async fn a_skip_while_the_result_is_written_skips_nobody() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    fill(&database, "line", 3).await;
    claim(&queue).await;
    let recorder = database.connect().await;
    end(
        &recorder,
        "begin; update postrider.deliveries set status = 'delivered', next_retry = null, finished_at = now(), claim_no = claim_no + 1,
                        lease_expires_at = null, leased_by = null, attempt_count = 1 where id = 1",
    )
    .await;
    let skip = ask::<Option<i64>>(&database, "select postrider.skip('line')").await;

    end(&recorder, "commit").await;

    assert_eq!(skip.await.expect("it ends"), None);
    assert_eq!(ids(&claim(&queue).await), [2]);
}

#[tokio::test]
async fn a_cancel_at_the_moment_of_the_claim_finds_it_in_flight() {
    let database = Database::fresh().await;
    ordered(&database).await;
    fill(&database, "line", 2).await;
    let worker = database.connect().await;
    assert_eq!(claim_within(&worker).await.len(), 1);
    let cancel = ask::<bool>(&database, "select postrider.cancel(1)").await;

    end(&worker, "commit").await;

    assert!(cancel.await.expect("it ends"));
    assert_eq!(outcomes(&database).await, "1 lost");
    let fence: i64 = database
        .value("select claim_no from postrider.attempts")
        .await;
    assert_eq!(fence, 1, "the claim's, so that its result replaces it");
    assert!(claim(&queue(&database)).await.taken.is_empty());
}

#[tokio::test]
async fn a_claim_at_the_moment_of_a_cancel_takes_nobody_behind_it() {
    for (how, next) in [("commit", 2), ("rollback", 1)] {
        let database = Database::fresh().await;
        ordered(&database).await;
        let queue = queue(&database);
        fill(&database, "line", 2).await;
        let person = database.connect().await;
        end(&person, "begin; select postrider.cancel(1)").await;

        let meanwhile = claim(&queue).await;
        end(&person, how).await;

        assert!(meanwhile.taken.is_empty() && meanwhile.capped);
        assert_eq!(ids(&claim(&queue).await), [next], "{how}");
    }
}

#[tokio::test]
async fn a_replay_at_the_moment_of_the_claim_goes_next_and_never_beside_it() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    fill(&database, "line", 3).await;
    deliver(&queue, &claim(&queue).await).await;
    let person = database.connect().await;
    end(&person, "begin; select postrider.replay(1)").await;

    let second = claim(&queue).await;
    end(&person, "commit").await;
    let beside = claim(&queue).await;
    deliver(&queue, &second).await;

    assert_eq!(ids(&second), [2]);
    assert!(beside.taken.is_empty() && beside.capped);
    assert_eq!(ids(&claim(&queue).await), [1]);
}

#[tokio::test]
async fn a_replay_and_a_cancel_at_once_are_one_after_the_other() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    fill(&database, "line", 1).await;
    deliver(&queue, &claim(&queue).await).await;
    let one = database.connect().await;

    end(&one, "begin; select postrider.replay(1)").await;
    let cancel = ask::<bool>(&database, "select postrider.cancel(1)").await;
    end(&one, "commit").await;
    assert!(cancel.await.expect("it ends"), "it was open by then");
    assert_eq!(states(&database).await, "exhausted");

    end(
        &one,
        "begin; select postrider.replay(1); select postrider.cancel(1)",
    )
    .await;
    let replay = ask::<bool>(&database, "select postrider.replay(1)").await;
    end(&one, "commit").await;
    assert!(replay.await.expect("it ends"), "it had ended by then");
    assert_eq!(states(&database).await, "queued");
    assert_eq!(database.delivery(1).await.claim_no, 7);
    let sent = claim(&queue).await;
    deliver(&queue, &sent).await;
    assert_eq!(outcomes(&database).await, "1 delivered, 1 delivered");
}

#[tokio::test]
async fn two_replays_at_once_are_one() {
    let database = Database::fresh().await;
    ordered(&database).await;
    let queue = queue(&database);
    fill(&database, "line", 1).await;
    deliver(&queue, &claim(&queue).await).await;
    let one = database.connect().await;
    end(&one, "begin; select postrider.replay(1)").await;
    let two = ask::<bool>(&database, "select postrider.replay(1)").await;

    end(&one, "commit").await;

    assert!(!two.await.expect("it ends"));
    assert_eq!(database.delivery(1).await.claim_no, 3);
}

#[tokio::test]
async fn deliver_now_stands_in_line_and_leaves_nothing_behind_when_its_time_is_over() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    receiver.script([Script::status(500)]);
    database
        .endpoint("line", &receiver.url("/"))
        .set("ordered", true)
        .set("retry_policy", "frappe")
        .await;
    let head = database.insert("line", "{}").await;
    let _worker = Worker::spawn(&database, &[]);
    database.wait_for_status(head, "failed").await;

    let call = "call postrider.deliver_now('line', 't', '{}', timeout => '300 ms')";
    let error = database.client().simple_query(call).await;

    let error = error.expect_err("nobody took it");
    assert_eq!(error.code().map(|code| code.code()), Some("PR008"));
    assert_eq!(states(&database).await, "failed, exhausted");
    assert_eq!(receiver.requests().len(), 1);
}
