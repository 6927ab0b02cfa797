use std::process::Command;

use super::{count, orders};
use crate::server;
use crate::support::receiver::Receiver;
use crate::support::{Database, SOON, Worker, tell, wait_until};

/// Bodies in the order in which they came.
fn bodies(receiver: &Receiver) -> Vec<String> {
    receiver
        .requests()
        .iter()
        .map(|one| String::from_utf8(one.body.clone()).expect("UTF-8"))
        .collect()
}

/// Nothing waits to be published, and nothing to be sent.
async fn all_is_delivered(database: &Database, deliveries: i64) {
    let look = async || {
        (
            count(database, "postrider.changes").await,
            count(database, "postrider.deliveries where status = 'delivered'").await,
        )
    };
    wait_until(
        "all is delivered",
        look,
        |seen| *seen == (0, deliveries),
        SOON,
    )
    .await;
}

#[tokio::test]
async fn rows_arrive_in_the_order_of_the_changes_from_one_row_and_from_thousands() {
    let receiver = Receiver::start().await;
    let database = orders().await;
    database
        .endpoint("shop", &receiver.url("/"))
        .set("ordered", true)
        .await;
    database
        .sql(
            "create function id(o orders) returns json language sql as $$ select to_json(o.id) $$;
             select postrider.watch('orders', '{insert}', endpoint => 'shop', body => 'id')",
        )
        .await;
    let _worker = Worker::spawn(&database, &["--poll-interval", "1h"]);

    database.sql("insert into orders values (1)").await;
    all_is_delivered(&database, 1).await;
    database
        .sql("insert into orders select n from generate_series(2, 150) n")
        .await;
    all_is_delivered(&database, 150).await;

    let expected: Vec<String> = (1..=150).map(|id| id.to_string()).collect();
    assert_eq!(bodies(&receiver), expected);
}

#[tokio::test]
async fn a_sleeping_worker_is_woken_by_a_bulk_change_and_by_the_next_try_of_a_failed_one() {
    let receiver = Receiver::start().await;
    let database = orders().await;
    database
        .sql("select postrider.watch('orders', endpoint => 'e')")
        .await;
    database
        .sql("delete from postrider.endpoints; insert into orders values (1)")
        .await;
    let _worker = Worker::spawn(&database, &["--poll-interval", "1h"]);
    let look = async || {
        database
            .value::<i64>("select coalesce(sum(tries), 0) from postrider.changes")
            .await
    };
    wait_until("the first try fails", look, |tries| *tries > 0, SOON).await;

    // Within its first waits of a second or two, long before the poll.
    database.endpoint("e", &receiver.url("/")).await;

    all_is_delivered(&database, 1).await;
}

#[tokio::test]
async fn a_worker_that_drains_publishes_first() {
    let receiver = Receiver::start().await;
    let database = orders().await;
    database.endpoint("shop", &receiver.url("/")).await;
    database
        .sql(
            "select postrider.watch('orders', endpoint => 'shop');
             insert into orders select n from generate_series(1, 1200) n",
        )
        .await;

    let mut worker = Worker::spawn(&database, &["--drain"]);
    let status = worker.wait().await;

    assert!(status.success(), "{}", worker.said());
    assert_eq!(receiver.requests().len(), 1200);
}

#[tokio::test]
async fn workers_share_the_publishing_and_nothing_is_published_twice() {
    let receiver = Receiver::start().await;
    let database = orders().await;
    database.endpoint("shop", &receiver.url("/")).await;
    database
        .sql("select postrider.watch('orders', endpoint => 'shop')")
        .await;
    let _workers = [
        Worker::spawn(&database, &["--poll-interval", "200ms"]),
        Worker::spawn(&database, &["--poll-interval", "200ms"]),
    ];

    for n in 0..10 {
        database
            .sql(&format!(
                "insert into orders select n from generate_series({n} * 150, {n} * 150 + 149) n"
            ))
            .await;
    }

    all_is_delivered(&database, 1500).await;
    let distinct: i64 = database
        .value("select count(distinct payload #>> '{record,id}') from postrider.deliveries")
        .await;
    assert_eq!(distinct, 1500);
}

#[tokio::test]
async fn a_dump_restored_elsewhere_watches_on() {
    let database = Database::private().await;
    database.endpoint("e", "http://127.0.0.1:1/").await;
    database
        .sql(
            r#"create schema "sh'op %s"; create table "sh'op %s".orders (id int, gone int, password text);
               alter table "sh'op %s".orders drop column gone;
               select postrider.watch('"sh''op %s".orders', endpoint => 'e', without => '{password}', condition => E'new.id > 0 -- \\ $$\n', name => 'w $$ \');
               insert into "sh'op %s".orders select n, 'x' from generate_series(1, 200) n"#,
        )
        .await;
    let elsewhere = server::Database::create().await;

    let file = tempfile::NamedTempFile::new().expect("a file");
    let dumped = Command::new("pg_dump")
        .args([
            "--dbname",
            database.url(),
            "--exclude-schema=postrider_shipped",
            "--file",
        ])
        .arg(file.path())
        .output()
        .expect("pg_dump is installed with PostgreSQL's client programs");
    if String::from_utf8_lossy(&dumped.stderr).contains("server version mismatch") {
        tell("not run: pg_dump is older than the server");
        return;
    }
    assert!(dumped.status.success(), "{dumped:?}");
    let restored = Command::new("psql")
        .args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file"])
        .arg(file.path())
        .arg(elsewhere.url())
        .output()
        .expect("psql is, too");
    assert!(restored.status.success(), "{restored:?}");

    let session = elsewhere.open().await;
    session
        .batch_execute(
            r#"select postrider.publish_changes(100); insert into "sh'op %s".orders values (201, 's3cret'), (-1, 's3cret')"#,
        )
        .await
        .expect("it is as it was");
    let row = session
        .query_one(
            "select count(*), max(payload::text), (select string_agg(watch || ' ' || errors, '') from postrider.watches) from postrider.deliveries",
            &[],
        )
        .await
        .expect("one row");
    let (events, watches): (i64, String) = (
        row.try_get(0).expect("a count"),
        row.try_get(2).expect("a text"),
    );
    let newest: String = session
        .query_one(
            "select payload::text from postrider.deliveries order by id desc limit 1",
            &[],
        )
        .await
        .and_then(|row| row.try_get(0))
        .expect("a text");

    assert_eq!((events, watches.as_str()), (201, "w $$ \\ 0"));
    assert!(newest.contains(r#""record":{"id":201},"#), "{newest}");
}
