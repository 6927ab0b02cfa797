//! Acts 5 and 6: a dead letter and its replay, and what is on record of it all.

use anyhow::{Context as _, ensure};

use super::acts::{Story, all_verified};
use super::stage::number;

/// The order that the receiver does not want.
const REJECTED: u32 = 13;

impl Story<'_> {
    pub(super) async fn a_dead_letter_is_replayed(&mut self) -> anyhow::Result<()> {
        self.screen.act("A dead letter, and its replay");
        self.stage.kill_receiver().await?;
        self.stage.start_receiver(&["--fail", "422"]).await?;
        self.screen.text(
            "The receiver gets an update with a bug: it answers 422, \"I do not want this\".\n\
             A retry would be told the same, so there is none.",
        );
        self.run(&format!(
            "select postrider.send('shop', 'order.paid',\n                      \
             '{{\"type\": \"order.paid\", \"order\": {REJECTED}}}');"
        ))
        .await?;
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

    pub(super) async fn what_is_on_record(&mut self, lost: &[String]) -> anyhow::Result<()> {
        self.screen.act("All of it is on record");
        self.screen
            .text("How the endpoint does, from the record of tries:");
        let rate = self
            .run(
                "select endpoint, first_tries as events, first_try_delivered as at_once,\n       \
                 finished_delivered as in_the_end, tries, success_percent, p95_ms::int\n  \
                 from postrider.success_rate;",
            )
            .await?;
        self.screen.table(&rate);
        let all = self
            .ask("select sum(first_tries) = sum(finished_delivered) and sum(first_tries) = (select count(*) from postrider.deliveries) from postrider.success_rate")
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
}
