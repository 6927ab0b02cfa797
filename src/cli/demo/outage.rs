//! Acts 2 to 4: the receiver goes down, a worker is killed, the receiver comes back.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;

use super::acts::{FIRST, Story, all_verified, count, these};
use super::journal::Request;
use super::stage::{WORKERS, number, until, until_answer};
use crate::store::simple::{self, quoted};

/// First and last order of each act's events.
const WHILE_DOWN: (u32, u32) = (6, 8);
const WHILE_HANGING: (u32, u32) = (9, 12);

impl Story<'_> {
    pub(super) async fn the_receiver_goes_down(&mut self) -> anyhow::Result<()> {
        self.screen.act("The receiver goes down");
        let pid = self.stage.kill_receiver().await?;
        self.screen.text(&format!(
            "Its process {pid} is killed: nobody listens on the port any more.\n\
             Your program notices nothing and goes on."
        ));
        self.insert_events(WHILE_DOWN).await?;
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
                "select id, status, attempt_count,\n       \
                 regexp_replace(last_error, '.*: ', '') as last_error,\n       \
                 extract(epoch from next_retry - now())::numeric(9, 1) as retry_in_s\n  \
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
    pub(super) async fn a_worker_is_killed(&mut self) -> anyhow::Result<Vec<String>> {
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
        self.insert_events(WHILE_HANGING).await?;

        let victim = self.worker_in_mid_flight(seen).await?;
        let pid = self.stage.kill_worker(&victim).await?;
        let table = self
            .run(&format!(
                "select id, status, leased_by,\n       \
                 extract(epoch from lease_expires_at - now())::numeric(9, 1) as lease_s\n  \
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
            "SIGKILL ended {victim} (process {pid}) with {} in flight",
            plural(in_flight.len(), "try", "tries")
        ));

        self.screen.text(
            "\nNobody cleans up after it, and nobody has to: when a lease runs out, the row is\n\
             due again, and the next claim writes down that the try before it was lost.",
        );
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
                   where d.lease_expires_at > clock_timestamp() + interval '3.5 s'";
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
                "select delivery_id as id, attempt_no, outcome, worker, error_kind\n  \
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

    pub(super) async fn the_receiver_comes_back(&mut self, lost: &[String]) -> anyhow::Result<()> {
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

        let ids: BTreeSet<_> = requests.iter().filter_map(|it| it.id.as_deref()).collect();
        let repeats = requests.len() - ids.len();
        let at_receiver = self.lost_tries_that_arrived(lost, &requests).await?;
        ensure!(repeats > 0, "some events had to be sent again");
        self.screen.fact(&format!(
            "the receivers saw {} requests, so {repeats} were repeats, with the same webhook-id:\n\
             the hanging one had taken them and never answered, {at_receiver} of them from the killed\n\
             worker. Nobody can know what became of such a request, so it is sent again:\n\
             at least once. A receiver tells a repeat by its webhook-id.",
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
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
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
