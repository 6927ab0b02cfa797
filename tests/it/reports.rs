//! Numbers that agree with the attempts they were counted from, at every moment, and what they cost.

/// Tries as workers make and record them: late results, replays, retries over the border of an hour.
mod recorded;
/// `postrider stats`.
mod shown;
/// How fast the reports are, by what they touch.
mod speed;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio_postgres::Client;

use crate::support::receiver::Receiver;
use crate::support::{Database, SOON, Worker, wait_until};

/// What `success_rate` says otherwise than the attempts do. Counters are exact. A percentile lies in the bucket of the exact one and is less
/// than 19 % off; below 8 ms it is exact.
pub(crate) const DISAGREEMENTS: &str = "
with exact as (
  select a.endpoint, date_trunc('hour', a.started_at at time zone 'utc') at time zone 'utc' as hour,
         count(*) as tries, count(*) filter (where a.outcome = 'delivered') as delivered_tries,
         count(*) filter (where a.attempt_no = 1) as first_tries,
         count(*) filter (where a.attempt_no = 1 and a.outcome = 'delivered') as first_try_delivered,
         count(*) filter (where a.next_retry is null) as finished,
         count(*) filter (where a.next_retry is null and a.outcome = 'delivered') as finished_delivered,
         percentile_disc(array[0.5, 0.95, 0.99]) within group (order by a.duration_ms) as percentiles
    from postrider.attempts a
   group by 1, 2
)
select coalesce(string_agg(coalesce(e.endpoint, s.endpoint) || ': ' || coalesce(e::text, 'no attempts') || ' against ' || coalesce(s::text, 'nothing'), E'\\n'), '')
  from exact e
  full join postrider.success_rate s on s.endpoint = e.endpoint and s.hour = e.hour
 where (e.tries, e.delivered_tries, e.first_tries, e.first_try_delivered, e.finished, e.finished_delivered)
         is distinct from
       (s.tries, s.delivered_tries, s.first_tries, s.first_try_delivered, s.finished, s.finished_delivered)
    or exists (
         select from unnest(coalesce(e.percentiles, '{null,null,null}'), array[s.p50_ms, s.p95_ms, s.p99_ms]) as p (exact, shown)
          where (p.exact is null) <> (p.shown is null) or p.exact < 8 and p.exact <> p.shown or abs(p.exact - p.shown) > 0.19 * p.exact
             or width_bucket(p.exact, postrider.duration_bounds()) <> width_bucket(floor(p.shown)::integer, postrider.duration_bounds()))";

#[track_caller]
pub(crate) fn same(disagreements: &str) {
    assert_eq!(disagreements, "", "the reports disagree with the attempts");
}

/// A try as somebody may write it, some time around the border of an hour.
#[derive(Clone, Debug)]
struct Try {
    endpoint: u8,
    minutes_ago: i32,
    duration_ms: Option<i32>,
    outcome: &'static str,
    attempt_no: i32,
    followed: bool,
}

#[derive(Clone, Debug)]
enum Step {
    /// One statement.
    Write(Vec<Try>),
    /// Lost tries turn out to have been something else.
    FoundAfterAll {
        outcome: &'static str,
        duration_ms: i32,
        most: i32,
    },
    /// An update that changes nothing that counts.
    Purge,
    Fold(i32),
}

fn a_try() -> impl Strategy<Value = Try> {
    let duration = prop_oneof![
        1 => Just(None),
        4 => (0..12).prop_map(Some),
        4 => (0..70_000).prop_map(Some),
        1 => (0..=i32::MAX).prop_map(Some),
        1 => Just(Some(i32::MAX)),
    ];
    let outcome = prop_oneof![
        Just("delivered"),
        Just("retry"),
        Just("rejected"),
        Just("lost")
    ];
    (0..3_u8, 0..130, duration, outcome, 1..4, any::<bool>()).prop_map(
        |(endpoint, minutes_ago, duration_ms, outcome, attempt_no, followed)| Try {
            endpoint,
            minutes_ago,
            duration_ms,
            outcome,
            attempt_no,
            followed,
        },
    )
}

fn a_step() -> impl Strategy<Value = Step> {
    let found = prop_oneof![Just("delivered"), Just("retry"), Just("lost")];
    prop_oneof![
        4 => prop::collection::vec(a_try(), 0..40).prop_map(Step::Write),
        2 => (found, 0..70_000, 0..9).prop_map(|(outcome, duration_ms, most)| Step::FoundAfterAll { outcome, duration_ms, most }),
        1 => Just(Step::Purge),
        2 => (0..6).prop_map(Step::Fold),
    ]
}

fn statement(place: usize, step: &Step) -> String {
    match step {
        Step::Write(tries) => {
            let mut text = format!(
"insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, duration_ms, next_retry, response_body)
                 select '2000-01-01 00:00:00+00'::timestamptz + make_interval(mins => t.minutes), {place} * 1000 + row_number() over (), 1, t.attempt_no, t.endpoint, t.outcome, t.duration_ms,
                        case when t.followed then now() end, 'ok'
                   from (values (0, 0, '', '', null::integer, false)");
            for one in tries {
                let duration = one
                    .duration_ms
                    .map_or_else(|| "null".to_owned(), |ms| ms.to_string());
                text += &format!(
                    ", ({}, {}, 'e{}', '{}', {duration}, {})",
                    600 - one.minutes_ago,
                    one.attempt_no,
                    one.endpoint,
                    one.outcome,
                    one.followed
                );
            }
            text + ") t (minutes, attempt_no, endpoint, outcome, duration_ms, followed) where t.attempt_no > 0"
        }
        Step::FoundAfterAll {
            outcome,
            duration_ms,
            most,
        } => format!(
            "update postrider.attempts set outcome = '{outcome}', duration_ms = {duration_ms}
              where ctid = any (array(select a.ctid from postrider.attempts a where a.outcome = 'lost' limit {most})) and outcome = 'lost'"
        ),
        Step::Purge => "update postrider.attempts set response_body = null".to_owned(),
        Step::Fold(rows) => format!("select postrider.fold_reports({rows})"),
    }
}

/// In one transaction, so that what the writer itself sees is tested, and nothing is left.
async fn check(session: &Client, steps: &[Step]) -> Result<(), TestCaseError> {
    session.batch_execute("begin").await.expect("it begins");
    let mut outcome = Ok(());
    for (place, step) in steps.iter().enumerate() {
        session
            .batch_execute(&statement(place, step))
            .await
            .expect("it is written");
        let row = session.query_one(DISAGREEMENTS, &[]).await;
        let said: String = row.and_then(|row| row.try_get(0)).expect("a text");
        if !said.is_empty() {
            outcome = Err(TestCaseError::fail(format!("after {step:?}: {said}")));
            break;
        }
    }
    session.batch_execute("rollback").await.expect("it ends");
    outcome
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_written_and_whenever_it_is_added_up_the_numbers_are_those_of_the_attempts() {
    let database = Database::private().await;
    database
        .sql("select postrider.make_attempt_partitions('1999-12-31', '2000-01-02')")
        .await;
    let mut runner = TestRunner::new(Config {
        cases: 60,
        failure_persistence: None,
        ..Config::default()
    });

    let handle = tokio::runtime::Handle::current();
    let outcome = tokio::task::block_in_place(|| {
        runner.run(&prop::collection::vec(a_step(), 1..10), |steps| {
            handle.block_on(check(database.client(), &steps))
        })
    });

    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[tokio::test]
async fn those_who_write_and_those_who_add_up_at_the_same_time_lose_nothing() {
    let database = Database::fresh().await;
    let sessions = futures_util::future::join_all((0..6).map(|_| database.connect())).await;
    let (writers, folders) = sessions.split_at(4);

    let writing = writers.iter().zip(1..).map(|(session, writer)| async move {
        for round in 0..10 {
            let n = writer * 10 + round;
            run_on(
                session,
                &format!(
                    "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, duration_ms)
                     select now() - g * interval '1 min', g, {n}, 1, 'e' || g % 3, case when g % 5 = 0 then 'lost' else 'delivered' end, g * {n}
                       from generate_series(1, 70) g"
                ),
            )
            .await;
            run_on(
                session,
                &format!("update postrider.attempts set outcome = 'retry', duration_ms = 9 where outcome = 'lost' and claim_no = {n}"),
            )
            .await;
        }
    });
    let folding = folders.iter().map(|session| async move {
        for _ in 0..40 {
            run_on(session, "select postrider.fold_reports(7)").await;
        }
    });
    tokio::join!(
        futures_util::future::join_all(writing),
        futures_util::future::join_all(folding)
    );

    same(&database.value::<String>(DISAGREEMENTS).await);
    let tries: i64 = database
        .value("select sum(tries)::int8 from postrider.success_rate")
        .await;
    assert_eq!(tries, 4 * 10 * 70);
}

#[tokio::test]
async fn a_statement_of_results_leaves_one_row_for_each_endpoint_and_hour() {
    let database = Database::fresh().await;

    database
        .sql(
            "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, duration_ms)
             select date_bin('1 h', now(), '2000-01-01 00:00:00+00') - (g / 125) * interval '1 h', g, 1, 1, 'e' || g % 3, 'delivered', g
               from generate_series(0, 249) g",
        )
        .await;

    let rows = "select count(*) from postrider.report_changes";
    assert_eq!(database.value::<i64>(rows).await, 2 * 3);
    database
        .sql("update postrider.attempts set response_body = 'x'; update postrider.attempts set outcome = 'retry' where false")
        .await;
    assert_eq!(database.value::<i64>(rows).await, 2 * 3);
}

#[tokio::test]
async fn what_is_pruned_stays_counted() {
    let database = Database::fresh().await;
    database
        .sql(
            "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome, duration_ms)
             select now(), g, 1, 1, 'e', 'delivered', 5 from generate_series(1, 4) g",
        )
        .await;
    let before: String = database
        .value("select s::text from postrider.success_rate s")
        .await;

    database
        .sql("delete from postrider.attempts; select postrider.fold_reports()")
        .await;

    let after: String = database
        .value("select s::text from postrider.success_rate s")
        .await;
    assert_eq!(before, after);
    assert!(after.contains(",4,4,4,4,4,4,100.00,"), "{after}");
}

#[tokio::test]
async fn workers_add_up_what_others_left_and_what_they_wrote() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    database
        .sql(
            "insert into postrider.attempts (started_at, delivery_id, claim_no, attempt_no, endpoint, outcome)
             values (now(), 1, 1, 1, 'left', 'lost')",
        )
        .await;
    let counted = async |endpoint: &str| {
        let tries = format!(
            "select coalesce(sum(tries), 0)::int8 from postrider.reports where endpoint = '{endpoint}'"
        );
        let look = async || database.value::<i64>(&tries).await;
        wait_until("it is added up", look, |tries| *tries == 1, SOON).await
    };

    let _worker = Worker::spawn(&database, &[]);
    counted("left").await;
    let id = database.insert("shop", "{}").await;
    database.wait_for_status(id, "delivered").await;
    counted("shop").await;

    let left: i64 = database
        .value("select count(*) from postrider.report_changes")
        .await;
    assert_eq!(left, 0);
}

async fn run_on(session: &Client, statement: &str) {
    session.batch_execute(statement).await.expect("it succeeds");
}
