//! The story, act by act. Every figure comes from a query or from the receiver's own log; every fact is checked before it is
//! shown, and the first that does not hold ends the story.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};

use super::journal::Request;
use super::screen::Screen;
use super::stage::{Stage, WORKERS, number, until, until_answer};
use crate::cluster::Cluster;
use crate::store::connect::Client;
use crate::store::simple::{self, Answer, quoted};

/// Orders of the three outages, each in a transaction of its own.
const FIRST: (u32, u32) = (1, 5);
const WHILE_DOWN: (u32, u32) = (6, 8);
const WHILE_HANGING: (u32, u32) = (9, 12);
const REJECTED: (u32, u32) = (13, 13);

const OPEN: &str = "select count(*) from postrider.deliveries where status in ('queued', 'failed')";

/// Tells it all.
pub(super) async fn tell(
    stage: &mut Stage,
    screen: &mut Screen,
    cluster: &Cluster,
) -> anyhow::Result<()> {
    let client = stage.open().await?;
    let mut story = Story {
        stage,
        screen,
        client,
    };
    story.prepare(cluster).await?;
    story.events_are_rows().await?;
    story.the_receiver_goes_down().await?;
    let lost = story.a_worker_is_killed().await?;
    story.the_receiver_comes_back(&lost).await?;
    story.a_dead_letter_is_replayed().await?;
    story.what_is_on_record(&lost).await
}

struct Story<'a> {
    stage: &'a mut Stage,
    screen: &'a mut Screen,
    client: Client,
}

impl Story<'_> {
    async fn prepare(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let port = self.stage.take_port()?;
        self.screen.text(
            "\nAn endpoint says where webhooks go. This one retries every 2 seconds, so that\n\
             you need not wait; the default schedule goes on for more than a day.",
        );
        self.run(&format!(
            "insert into postrider.retry_policies (name, kind, delays, jitter, max_retries)\n\
             values ('demo', 'schedule', '{{2 s}}', 0, 10);\n\
             insert into postrider.endpoints (name, url, retry_policy, timeout)\n\
             values ('shop', 'http://127.0.0.1:{port}/hook', 'demo', '2 s');\n\
             create table orders (id int primary key, total numeric);"
        ))
        .await?;
        let secret = self
            .ask("select secret from postrider.endpoint_secrets where endpoint = 'shop'")
            .await?;
        self.stage.set_secret(
            secret
                .value()
                .context("an endpoint gets a secret by itself")?,
        );

        let receiver = self.stage.start_receiver(&[]).await?;
        let workers = self.stage.start_workers()?;
        until_answer(
            &self.client,
            "both workers are at work",
            "select count(*) from postrider.workers",
            &WORKERS.len().to_string(),
        )
        .await?;
        self.screen.lines(&[
            format!(
                "PostgreSQL  port {}, process {}",
                cluster.port(),
                cluster.pid()
            ),
            format!("receiver    port {port}, process {receiver}, checks every signature"),
            format!("{}    process {}", WORKERS[0], workers[0]),
            format!("{}    process {}", WORKERS[1], workers[1]),
        ]);
        Ok(())
    }

    async fn events_are_rows(&mut self) -> anyhow::Result<()> {
        self.screen
            .act("An event is a row, written in your own transaction");
        self.screen
            .text("Plain SQL, so any language will do. No commit, no event: they go together.");
        self.place_orders(FIRST).await?;
        self.until_open(0, "the events are delivered").await?;

        let events = count(FIRST);
        let delivered = self
            .ask(&format!(
                "select count(*) from postrider.deliveries where status = 'delivered' and {}",
                these(FIRST)
            ))
            .await?;
        ensure!(number(&delivered)? == events, "all {events} are delivered");
        let took = self
            .ask(&format!(
                "select ceil(extract(epoch from max(finished_at - created_at)) * 1000)::int from postrider.deliveries where {}",
                these(FIRST)
            ))
            .await?;
        self.screen.fact(&format!(
            "{events} events delivered, the last one {} ms after the transaction began",
            number(&took)?
        ));
        let requests = self.stage.requests();
        ensure!(
            requests.len() == events,
            "the receiver saw {events} requests, not {}",
            requests.len()
        );
        let verified = all_verified(&requests)?;
        self.screen.fact(&format!(
            "the receiver verified {verified} of {} signatures",
            requests.len()
        ));
        Ok(())
    }

    async fn the_receiver_goes_down(&mut self) -> anyhow::Result<()> {
        self.screen.act("The receiver goes down");
        let pid = self.stage.kill_receiver().await?;
        self.screen.text(&format!(
            "Its process {pid} is killed: nobody listens on the port any more.\n\
             Your program notices nothing and goes on."
        ));
        self.place_orders(WHILE_DOWN).await?;
        let events = count(WHILE_DOWN);
        let failed = format!(
            "select count(*) from postrider.deliveries where status = 'failed' and next_retry is not null and {}",
            these(WHILE_DOWN)
        );
        until_answer(
            &self.client,
            "every try has failed",
            &failed,
            &events.to_string(),
        )
        .await?;

        let table = self
            .run(
                "select id, status, attempt_count, last_error,\n       \
                 greatest(0, round(extract(epoch from next_retry - now()), 1)) || ' s' as retry_in\n  \
                 from postrider.deliveries where status = 'failed' order by id;",
            )
            .await?;
        self.screen.table(&table);
        ensure!(
            table.rows.len() == events,
            "{events} rows wait for a retry, not {}",
            table.rows.len()
        );
        self.screen.fact(&format!(
            "nothing is lost: {events} rows say what failed and when they are tried again"
        ));
        Ok(())
    }

    /// Returns the ids of the deliveries that the killed worker had in flight.
    async fn a_worker_is_killed(&mut self) -> anyhow::Result<Vec<String>> {
        self.screen.act("A worker is killed in mid-flight");
        let receiver = self
            .stage
            .start_receiver(&["--fail", "503", "--delay", "1m"])
            .await?;
        self.screen.text(&format!(
            "The receiver is back (process {receiver}), but it hangs: it takes requests and does\n\
             not answer. So tries are under way when the worker that makes them is killed."
        ));
        let seen = self.stage.requests().len();
        self.place_orders(WHILE_HANGING).await?;

        let victim = self.worker_in_mid_flight(seen).await?;
        let pid = self.stage.kill_worker(&victim).await?;
        let table = self
            .run(&format!(
                "select id, leased_by, claim_no,\n       \
                 greatest(0, round(extract(epoch from lease_expires_at - now()), 1)) || ' s' as lease_ends_in\n  \
                 from postrider.deliveries where leased_by = {} order by id;",
                quoted(&victim)
            ))
            .await?;
        self.screen.table(&table);
        let in_flight: Vec<String> = table
            .first_column()
            .into_iter()
            .map(str::to_owned)
            .collect();
        ensure!(
            !in_flight.is_empty(),
            "{victim} had something in flight when it was killed"
        );
        self.screen.fact(&format!(
            "SIGKILL ended {victim} (process {pid}) with {} in flight; nobody cleaned up",
            plural(in_flight.len(), "try", "tries")
        ));

        let survivor = WORKERS
            .into_iter()
            .find(|name| *name != victim)
            .unwrap_or_default();
        self.taken_over(&victim, survivor, &in_flight).await?;
        Ok(in_flight)
    }

    /// Waits until a worker has a request at the receiver that began a moment ago, and so is still under way.
    async fn worker_in_mid_flight(&self, seen: usize) -> anyhow::Result<String> {
        let sql = "select d.leased_by, d.event_id from postrider.deliveries d \
                   where d.lease_expires_at > clock_timestamp() + interval '3 s'";
        until("a worker has a request under way", async || {
            let leased = simple::run(&self.client, sql).await?;
            let requests = self.stage.requests();
            let at_receiver = |id: &str| {
                requests
                    .iter()
                    .skip(seen)
                    .any(|request| request.id.as_deref() == Some(id))
            };
            let found = leased.rows.iter().find_map(|row| match row.as_slice() {
                [Some(worker), Some(event)] if at_receiver(event) => Some(worker.clone()),
                _ => None,
            });
            Ok(found)
        })
        .await
    }

    async fn taken_over(
        &mut self,
        victim: &str,
        survivor: &str,
        in_flight: &[String],
    ) -> anyhow::Result<()> {
        let ids = in_flight.join(", ");
        let lost = format!(
            "select count(*) from postrider.attempts a join postrider.deliveries d on d.id = a.delivery_id \
             where a.outcome = 'lost' and a.worker = {} and d.id in ({ids}) \
             and (d.leased_by = {taker} or exists (select from postrider.attempts b \
                  where b.delivery_id = d.id and b.claim_no > a.claim_no and b.worker = {taker}))",
            quoted(victim),
            taker = quoted(survivor)
        );
        until_answer(
            &self.client,
            "the other worker takes the rows over",
            &lost,
            &in_flight.len().to_string(),
        )
        .await?;
        let table = self
            .run(
                "select delivery_id as id, attempt_no, outcome, worker, error\n  \
                 from postrider.attempts where outcome = 'lost' order by delivery_id;",
            )
            .await?;
        self.screen.table(&table);
        ensure!(
            table.rows.len() == in_flight.len(),
            "only those tries are lost"
        );
        self.screen.fact(&format!(
            "the leases ran out, {survivor} took over {}, and each lost try is on record",
            plural(in_flight.len(), "row", "rows")
        ));
        Ok(())
    }

    async fn the_receiver_comes_back(&mut self, lost: &[String]) -> anyhow::Result<()> {
        self.screen.act("The receiver comes back");
        let old = self.stage.kill_receiver().await?;
        let new = self.stage.start_receiver(&[]).await?;
        self.screen.text(&format!(
            "The hanging process {old} is replaced by a good one, {new}, on the same port.\n"
        ));
        self.until_open(0, "what had failed is delivered").await?;

        let events = count(FIRST) + count(WHILE_DOWN) + count(WHILE_HANGING);
        let requests = self.stage.requests();
        let accepted = accepted(&requests);
        ensure!(
            accepted.len() == events,
            "{events} webhook-ids were accepted, not {}",
            accepted.len()
        );
        let twice = accepted.values().filter(|times| **times > 1).count();
        ensure!(twice == 0, "no event was accepted twice, but {twice} were");
        self.screen.fact(&format!(
            "all {events} events have arrived, each accepted once (by its webhook-id)"
        ));

        let ids: std::collections::BTreeSet<_> =
            requests.iter().filter_map(|it| it.id.as_deref()).collect();
        let repeats = requests.len() - ids.len();
        let at_receiver = self.lost_tries_that_arrived(lost, &requests).await?;
        ensure!(repeats > 0, "some events had to be sent again");
        self.screen.fact(&format!(
            "the receivers saw {} requests, so {repeats} were repeats, with the same webhook-id:\n\
             the hanging one had taken them and never answered, {at_receiver} of them from the killed\n\
             worker. Nobody can know what became of such a request, so it is sent again:\n\
             at least once. A receiver that may get one twice remembers webhook-ids.",
            requests.len()
        ));
        let verified = all_verified(&requests)?;
        self.screen.fact(&format!(
            "{verified} of {} signatures verified, on retries too: each is signed afresh",
            requests.len()
        ));
        let tries = number(&self.ask("select count(*) from postrider.attempts").await?)?;
        ensure!(
            tries >= requests.len(),
            "{tries} tries on record, and {} requests seen",
            requests.len()
        );
        self.screen.fact(&format!(
            "{tries} tries are on record, no fewer than the {} requests that were seen",
            requests.len()
        ));
        Ok(())
    }

    /// How many of the killed worker's tries the receiver had taken.
    async fn lost_tries_that_arrived(
        &self,
        lost: &[String],
        requests: &[Request],
    ) -> anyhow::Result<usize> {
        let sql = format!(
            "select event_id from postrider.deliveries where id in ({})",
            lost.join(", ")
        );
        let events = self.ask(&sql).await?;
        Ok(events
            .first_column()
            .into_iter()
            .filter(|id| {
                requests
                    .iter()
                    .any(|it| it.status == 503 && it.id.as_deref() == Some(*id))
            })
            .count())
    }

    async fn a_dead_letter_is_replayed(&mut self) -> anyhow::Result<()> {
        self.screen.act("A dead letter, and its replay");
        self.stage.kill_receiver().await?;
        self.stage.start_receiver(&["--fail", "422"]).await?;
        self.screen.text(
            "The receiver gets an update with a bug: it answers 422, \"I do not want this\".\n\
             A retry would be told the same, so there is none.",
        );
        self.place_orders(REJECTED).await?;
        self.until_open(0, "the event is rejected").await?;
        let dead = self
            .run(
                "select id, exhausted_reason, attempt_count, last_status_code, last_error\n  \
                 from postrider.dead_letters;",
            )
            .await?;
        self.screen.table(&dead);
        ensure!(
            dead.rows.len() == 1,
            "one dead letter, not {}",
            dead.rows.len()
        );
        ensure!(
            dead.rows[0][1].as_deref() == Some("rejected"),
            "it was rejected"
        );
        ensure!(dead.rows[0][2].as_deref() == Some("1"), "after one try");
        let id = dead.value().context("a dead letter has an id")?.to_owned();
        self.screen
            .fact("the event is kept as a dead letter: exhausted, rejected, after one try");

        self.stage.kill_receiver().await?;
        self.stage.start_receiver(&[]).await?;
        self.screen
            .text("\nThe bug is fixed, and somebody sends the event again:");
        self.run(&format!("select postrider.replay({id});")).await?;
        self.until_open(0, "the replay is delivered").await?;

        let arrived = self
            .ask(&format!(
                "select event_id, status, attempt_count from postrider.deliveries where id = {id}"
            ))
            .await?;
        let event = arrived.value().context("it has an event id")?;
        ensure!(
            arrived.rows[0][1].as_deref() == Some("delivered"),
            "delivery {id} is delivered"
        );
        let requests = self.stage.requests();
        let statuses: Vec<u16> = requests
            .iter()
            .filter(|it| it.id.as_deref() == Some(event))
            .map(|it| it.status)
            .collect();
        ensure!(
            statuses == [422, 200],
            "the receiver answered 422, then 200, not {statuses:?}"
        );
        all_verified(&requests)?;
        self.screen.fact(&format!(
            "replayed and delivered: answered 422, then 200, both times with webhook-id\n{event}"
        ));
        Ok(())
    }

    async fn what_is_on_record(&mut self, lost: &[String]) -> anyhow::Result<()> {
        self.screen.act("All of it is on record");
        self.screen
            .text("How the endpoint does, from the record of tries:");
        let rate = self
            .run(
                "select endpoint, tries, first_tries, first_try_delivered,\n       \
                 eventually_delivered, success_percent, p95_ms::int\n  \
                 from postrider.success_rate;",
            )
            .await?;
        self.screen.table(&rate);
        let all = self
            .ask("select sum(first_tries) = sum(eventually_delivered) and sum(first_tries) = (select count(*) from postrider.deliveries) from postrider.success_rate")
            .await?;
        ensure!(
            all.value() == Some("t"),
            "every event was delivered in the end"
        );
        let events = number(
            &self
                .ask("select count(*) from postrider.deliveries")
                .await?,
        )?;
        self.screen.fact(&format!(
            "{events} of {events} events were delivered in the end"
        ));

        self.screen
            .text("\nThe life of one event, whose worker was killed:");
        let id = lost.first().context("a try was lost")?;
        let life = self
            .run(&format!(
                "select attempt_no, outcome, status_code, error_kind, duration_ms, worker\n  \
                 from postrider.attempts where delivery_id = {id} order by attempt_no;"
            ))
            .await?;
        self.screen.table(&life);
        ensure!(
            life.rows
                .last()
                .is_some_and(|row| row[1].as_deref() == Some("delivered")),
            "its last try delivered it"
        );
        self.screen.text("Go on:");
        self.screen.lines(&[
            "postrider dev             try it by hand: a database, a worker and a receiver"
                .to_owned(),
            "postrider demo --keep     this again, and the database stays to look around"
                .to_owned(),
            "postrider migrate --help  put it into your own database".to_owned(),
            "README.md                 how it works, and what it promises".to_owned(),
        ]);
        Ok(())
    }

    /// Inserts orders and their events, as an application would.
    async fn place_orders(&mut self, (first, last): (u32, u32)) -> anyhow::Result<()> {
        self.run(&format!(
            "begin;\n\
             insert into orders select n, 10 * n from generate_series({first}, {last}) as n;\n\
             insert into postrider.deliveries (endpoint, event_type, payload)\n\
             select 'shop', 'order.paid',\n       \
             json_build_object('type', 'order.paid', 'order', id, 'total', total)\n  \
             from orders where id between {first} and {last};\n\
             commit;"
        ))
        .await?;
        Ok(())
    }

    async fn until_open(&self, wanted: usize, fact: &str) -> anyhow::Result<()> {
        until_answer(&self.client, fact, OPEN, &wanted.to_string()).await
    }

    /// Shows a statement and runs it.
    async fn run(&mut self, sql: &str) -> anyhow::Result<Answer> {
        self.screen.sql(sql);
        self.ask(sql).await
    }

    /// Runs a statement behind the scenes, to check a fact.
    async fn ask(&self, sql: &str) -> anyhow::Result<Answer> {
        simple::run(&self.client, sql)
            .await
            .with_context(|| sql.to_owned())
    }
}

fn count((first, last): (u32, u32)) -> usize {
    (first..=last).count()
}

/// The deliveries of these orders.
fn these((first, last): (u32, u32)) -> String {
    format!("(payload ->> 'order')::int between {first} and {last}")
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// How many requests there are, all with a good signature.
fn all_verified(requests: &[Request]) -> anyhow::Result<usize> {
    let verified = requests
        .iter()
        .filter(|it| it.verified == Some(true))
        .count();
    ensure!(
        verified == requests.len(),
        "every signature is good, but {} are not",
        requests.len() - verified
    );
    Ok(verified)
}

/// How often each webhook-id was answered with a 2xx.
fn accepted(requests: &[Request]) -> BTreeMap<&str, usize> {
    let mut times = BTreeMap::new();
    for request in requests.iter().filter(|it| (200..300).contains(&it.status)) {
        if let Some(id) = request.id.as_deref() {
            *times.entry(id).or_default() += 1;
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str, status: u16, verified: bool) -> Request {
        Request {
            id: Some(id.to_owned()),
            status,
            verified: Some(verified),
        }
    }

    #[test]
    fn only_a_2xx_accepts_an_event_and_each_one_counts() {
        let requests = [
            request("a", 503, true),
            request("a", 200, true),
            request("b", 200, true),
            request("b", 204, true),
            request("c", 422, true),
        ];

        assert_eq!(accepted(&requests), BTreeMap::from([("a", 1), ("b", 2)]));
    }

    #[test]
    fn one_bad_signature_ends_the_story() {
        let good = [request("a", 200, true)];
        let bad = [request("a", 200, true), request("b", 200, false)];

        assert_eq!(all_verified(&good).expect("all good"), 1);
        assert!(all_verified(&bad).is_err());
    }
}
