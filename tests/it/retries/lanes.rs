//! What one endpoint's rows may do to the rows of others, and to the endpoint's own cap.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// A receiver that takes its time over each request, and counts how many it has at once.
async fn slow_receiver(most: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let now = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"{}") {
                    if socket.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(100)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                let reply = b"HTTP/1.1 204 Done\r\nconnection: close\r\n\r\n";
                socket.write_all(reply).await.ok();
            });
        }
    });
    addr
}

/// Rows of one statement are due at one moment: without a tie-break the head of their lane is other rows at each look.
#[tokio::test]
async fn the_cap_holds_for_rows_that_are_due_at_the_same_moment() {
    let database = Database::fresh().await;
    let most = Arc::new(AtomicUsize::new(0));
    let addr = slow_receiver(Arc::clone(&most)).await;
    database
        .endpoint("shop", &format!("http://{addr}/"))
        .set("max_in_flight", 5)
        .await;
    let _workers = [(); 2].map(|()| Worker::spawn(&database, &[]));

    database
        .sql(
            "insert into postrider.deliveries (endpoint, event_type, payload)
             select 'shop', 'a', '{}' from generate_series(1, 100)",
        )
        .await;
    let open = "select count(*) from postrider.deliveries where status <> 'delivered'";
    let look = async || database.value::<i64>(open).await;
    wait_until("all are delivered", look, |open| *open == 0, SOON).await;

    assert_eq!(most.load(Ordering::SeqCst), 5);
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
