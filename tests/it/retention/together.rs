use super::{count, due, finished, prune, try_of_day};
use crate::support::receiver::Receiver;
use crate::support::{Database, SOON, Worker, wait_until};

/// How many sessions of this database wait for a lock that another one holds.
async fn waiting(database: &Database) -> i64 {
    database
        .value("select count(*) from pg_stat_activity where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0")
        .await
}

#[tokio::test]
async fn c36_of_two_cleaners_one_works_and_the_other_goes_on_at_once() {
    let database = Database::fresh().await;
    finished(&database, "delivered", "31 days", 20).await;
    let other = database.connect().await;
    other
        .batch_execute("begin; select from postrider.prune(5)")
        .await
        .expect("a step");

    let steps: i64 = database
        .value("select count(*) from postrider.prune(5)")
        .await;
    other.batch_execute("rollback").await.expect("undone");

    assert_eq!(steps, 0);
    assert_eq!(count(&database, "deliveries").await, 20);
    assert_eq!(prune(database.client(), 5).await["delivered"], 20);
}

#[tokio::test]
async fn c36_many_cleaners_and_replays_at_once_end_without_an_error_and_lose_no_open_row() {
    let database = Database::fresh().await;
    finished(&database, "exhausted", "91 days", 600).await;
    let sessions = [
        database.connect().await,
        database.connect().await,
        database.connect().await,
    ];
    let replays = database.connect().await;

    let replay = async {
        let mut replayed = 0_i64;
        loop {
            let batch: i64 = replays
                .query_one("select postrider.replay_matching(max_rows => 7)", &[])
                .await
                .expect("replays do not fail")
                .try_get(0)
                .expect("a count");
            replayed += batch;
            if batch == 0 {
                return replayed;
            }
        }
    };
    let (a, b, c, replayed) = tokio::join!(
        prune(&sessions[0], 11),
        prune(&sessions[1], 13),
        prune(&sessions[2], 17),
        replay
    );
    let last = prune(database.client(), 100).await;

    let pruned: i64 = [a, b, c, last].iter().flat_map(|all| all.values()).sum();
    assert_eq!(pruned + replayed, 600);
    assert_eq!(
        count(&database, "deliveries where status = 'queued'").await,
        replayed
    );
}

#[tokio::test]
async fn a_row_that_is_replayed_at_this_moment_is_left_alone() {
    let database = Database::fresh().await;
    finished(&database, "delivered", "31 days", 3).await;
    let other = database.connect().await;
    other
        .batch_execute("begin; select postrider.replay((select min(id) from postrider.deliveries))")
        .await
        .expect("a replay");

    let during = prune(database.client(), 10).await;
    other.batch_execute("commit").await.expect("committed");
    let after = prune(database.client(), 10).await;

    assert_eq!(during["delivered"], 2);
    assert!(after.is_empty(), "{after:?}");
    assert_eq!(
        count(&database, "deliveries where status = 'queued'").await,
        1
    );
}

#[tokio::test]
async fn a_replay_that_comes_while_a_row_is_pruned_finds_it_gone() {
    let database = Database::fresh().await;
    finished(&database, "delivered", "31 days", 1).await;
    let id: i64 = database.value("select id from postrider.deliveries").await;
    let (cleaner, other) = (database.connect().await, database.connect().await);
    cleaner
        .batch_execute("begin; select from postrider.prune(5)")
        .await
        .expect("a step");

    let call = format!("select postrider.replay({id})");
    let replay = tokio::spawn(async move { other.batch_execute(&call).await });
    let look = async || waiting(&database).await;
    wait_until("the replay waits for the row", look, |n| *n == 1, SOON).await;
    cleaner.batch_execute("commit").await.expect("committed");

    let error = replay.await.expect("it ends").expect_err("it is gone");
    assert_eq!(error.code().expect("the server's").code(), "PR001");
}

#[tokio::test]
async fn an_event_that_is_being_named_by_a_delivery_stays() {
    let database = Database::fresh().await;
    database.endpoint("shop", "http://127.0.0.1:1/").await;
    database
        .sql("insert into postrider.events (event_type, payload, created_at) select 't', '{}', now() - interval '1 year' from generate_series(1, 3)")
        .await;
    let other = database.connect().await;
    other
        .batch_execute("begin; insert into postrider.deliveries (endpoint, event_type, event) select 'shop', 't', min(id) from postrider.events")
        .await
        .expect("a delivery");

    let during = prune(database.client(), 2).await;
    other.batch_execute("commit").await.expect("committed");
    let after = prune(database.client(), 2).await;

    assert_eq!(during["events"], 2);
    assert!(after.is_empty(), "{after:?}");
}

#[tokio::test]
async fn c36_a_long_reader_of_attempts_puts_off_the_drop_of_a_day_and_holds_up_no_worker() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("live", &receiver.url("/")).await;
    try_of_day(&database, 95).await;
    try_of_day(&database, 96).await;
    let reader = database.connect().await;
    reader
        .batch_execute("begin; select count(*) from postrider.attempts")
        .await
        .expect("it reads");

    // Its upkeep meets the reader as it starts.
    let worker = Worker::spawn(&database, &["--poll-interval", "50ms"]);
    worker.wait_for_line("pruning is put off").await;
    let mut waits = Vec::new();
    for _ in 0..3 {
        let step = "select coalesce(max(waits), '') from postrider.prune(10)";
        waits.push(database.value::<String>(step).await);
        let id = database.insert("live", "{}").await;
        database.wait_for_status(id, "delivered").await;
    }
    let left = due(&database).await;
    reader.batch_execute("commit").await.expect("it has read");
    let removed = prune(database.client(), 10).await;

    for why in waits {
        assert!(why.contains("another transaction"), "{why}");
    }
    assert_eq!((left["attempts"], removed["attempts"]), (2, 2));
    assert_eq!(count(&database, "attempts").await, 3, "the new ones");
}

#[tokio::test]
async fn a_day_that_something_of_yours_depends_on_stays_and_holds_up_no_other() {
    let database = Database::fresh().await;
    try_of_day(&database, 95).await;
    try_of_day(&database, 96).await;
    database
        .sql(
            "do $$ begin execute 'create view public.mine as select * from postrider.attempts_'
                || to_char((now() at time zone 'utc')::date - 96, 'YYYYMMDD'); end $$",
        )
        .await;

    let removed = prune(database.client(), 10).await;

    assert_eq!(removed["attempts"], 1);
    let why: String = database
        .value("select waits from postrider.prune(10) where kind = 'attempts'")
        .await;
    assert!(why.contains("cannot be dropped"), "{why}");
    database.sql("drop view public.mine").await;
    assert_eq!(prune(database.client(), 10).await["attempts"], 1);
}

#[tokio::test]
async fn what_a_table_of_yours_names_stays_and_keeps_no_other_kind() {
    let database = Database::private().await;
    finished(&database, "delivered", "31 days", 5).await;
    finished(&database, "exhausted", "91 days", 5).await;
    try_of_day(&database, 95).await;
    database
        .sql("create table public.mine (delivery bigint references postrider.deliveries (id));
              insert into public.mine select max(id) from postrider.deliveries where status = 'delivered'")
        .await;

    let removed = prune(database.client(), 3).await;
    let why: String = database
        .value("select waits from postrider.prune(3) where kind = 'delivered'")
        .await;
    database.sql("delete from public.mine").await;
    let then = prune(database.client(), 3).await;

    let removed: Vec<(&str, i64)> = removed
        .iter()
        .map(|(kind, n)| (kind.as_str(), *n))
        .collect();
    assert_eq!(removed, [("attempts", 1), ("exhausted", 5)]);
    assert!(why.contains("mine_delivery_fkey"), "{why}");
    assert_eq!(then["delivered"], 5);
}
