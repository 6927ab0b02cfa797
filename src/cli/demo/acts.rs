//! The story, act by act. Every figure comes from a query or from the receiver's own log; every fact is checked before it is
//! shown, and the first that does not hold ends the story.

use anyhow::{Context as _, ensure};

use super::journal::Request;
use super::screen::Screen;
use super::stage::{Stage, WORKERS, number, until_answer};
use crate::cluster::Cluster;
use crate::store::connect::Client;
use crate::store::simple::{self, Answer};

/// First and last order of the first act's events.
pub(super) const FIRST: (u32, u32) = (1, 5);

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

/// What every act works with.
pub(super) struct Story<'a> {
    pub(super) stage: &'a mut Stage,
    pub(super) screen: &'a mut Screen,
    pub(super) client: Client,
}

impl Story<'_> {
    async fn prepare(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let port = self.stage.take_port()?;
        self.screen.text(
            "\nAn endpoint says where webhooks go. This one retries every 2 seconds, so that\n\
             you need not wait; the default schedule goes on for more than a day.",
        );
        self.run(&format!(
            "insert into postrider.retry_policies\n       \
             (name, kind, delays, jitter, max_retries)\n\
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
        self.run(&format!(
            "begin;\n\
             insert into orders select n, 10 * n from generate_series({first}, {last}) as n;\n\
             insert into postrider.deliveries (endpoint, event_type, payload)\n\
             select 'shop', 'order.paid',\n       \
             json_build_object('type', 'order.paid', 'order', id, 'total', total)\n  \
             from orders;\n\
             commit;",
            first = FIRST.0,
            last = FIRST.1
        ))
        .await?;
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

    /// More events of the same kind.
    pub(super) async fn insert_events(&mut self, (first, last): (u32, u32)) -> anyhow::Result<()> {
        self.run(&format!(
            "insert into postrider.deliveries (endpoint, event_type, payload)\n\
             select 'shop', 'order.paid',\n       \
             json_build_object('type', 'order.paid', 'order', n)\n  \
             from generate_series({first}, {last}) as n;"
        ))
        .await?;
        Ok(())
    }

    pub(super) async fn until_open(&self, wanted: usize, fact: &str) -> anyhow::Result<()> {
        until_answer(&self.client, fact, OPEN, &wanted.to_string()).await
    }

    /// Shows a statement and runs it.
    pub(super) async fn run(&mut self, sql: &str) -> anyhow::Result<Answer> {
        self.screen.sql(sql);
        self.ask(sql).await
    }

    /// Runs a statement behind the scenes, to check a fact.
    pub(super) async fn ask(&self, sql: &str) -> anyhow::Result<Answer> {
        simple::run(&self.client, sql)
            .await
            .with_context(|| sql.to_owned())
    }
}

pub(super) fn count((first, last): (u32, u32)) -> usize {
    (first..=last).count()
}

/// The deliveries of these orders.
pub(super) fn these((first, last): (u32, u32)) -> String {
    format!("(payload ->> 'order')::int between {first} and {last}")
}

/// How many requests there are, all with a good signature.
pub(super) fn all_verified(requests: &[Request]) -> anyhow::Result<usize> {
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
