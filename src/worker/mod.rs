//! The worker: claims what is due, makes one try of each, records the results.
//!
//! Owns the loop, the slots, waking and stopping. Many workers run side by side and know of each other only through the rows. It
//! decides neither what a reply means nor when a retry is due.

mod attempt;
mod backoff;
mod clock;
mod endpoints;
mod lap;
mod marks;
mod memory;
mod options;
mod publisher;
mod recorder;
mod report;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::attempt::{Job, Lease};
use self::backoff::Backoff;
use self::clock::{DatabaseTime, Moment};
use self::endpoints::Endpoints;
use self::lap::{Lap, Step, Waits, Walk};
use self::marks::Marks;
use self::memory::{Memory, Slot};
pub use self::options::{Options, Pruning, Summary, Until, Waking};
use self::publisher::Publisher;
use self::recorder::{Held, Recorder, Tally, chain};
use self::upkeep::Upkeep;
use crate::outbound::Client;
use crate::store::connect::Connector;
use crate::store::queue::{Ask, Claim, Queue, Taken};
use crate::store::{Error, doorbell};

/// Deliveries that one claim takes at most.
const CLAIM_BATCH: usize = 1000;

/// Deliveries of disabled endpoints that one statement ends.
const RETIRE_BATCH: i32 = 1000;

/// How long a few free slots wait for more, so that a claim is worth its statement.
const LINGER: Duration = Duration::from_millis(3);

/// Looks after the first empty lap, before the poll interval alone rules: a transaction that began before this worker slept, and
/// commits now, found nobody to ring for.
const RECHECKS: [Duration; 3] = [
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(400),
];

/// When another claim was at a lane, which takes milliseconds.
const CONTENDED: Duration = Duration::from_millis(5);

/// The shortest sleep for the next due time when the last ones came to nothing: what comes due then belongs to paused endpoints.
const IDLE_LEAST: Duration = Duration::from_millis(50);

/// Deliveries from their claim until their result is written, for each try at a time: results that wait for their statement hold up no
/// slot, and a statement carries many. When results cannot be written, claiming stops here.
const PLACES: usize = 4;

/// Runs a worker until it is told to stop, or until it has drained what is due.
///
/// # Errors
///
/// Only before its first claim, and none that time may heal: [`Error::NotPermitted`] and so on. Later ones are waited out.
pub async fn run(
    options: Options,
    connector: &Connector,
    client: Client,
    stop: CancellationToken,
) -> Result<Summary, Error> {
    let queue = Queue::new(connector, options.sessions)?;
    let pid = i32::try_from(std::process::id()).unwrap_or_default();
    let mut backoff = Backoff::default();
    while let Err(error) = begin(&queue, &options, pid).await {
        if !error.is_transient() {
            return Err(error);
        }
        tracing::warn!(error = %chain(&error), "cannot begin yet: the database went away");
        tokio::select! {
            () = stop.cancelled() => return Ok(Summary::default()),
            () = tokio::time::sleep(backoff.next()) => {}
        }
    }

    let wake = Arc::new(Notify::new());
    let room_wanted = Arc::new(AtomicBool::new(false));
    let slots = Arc::new(Semaphore::new(options.concurrency));
    let all_places = PLACES * options.concurrency;
    let places = Arc::new(Semaphore::new(all_places));
    let tally = Arc::new(Tally::default());
    let (reports, inbox) = unbounded_channel();
    let recorder = Recorder {
        queue: queue.clone(),
        worker: options.name.clone(),
        places: Arc::clone(&places),
        all_places,
        tally: Arc::clone(&tally),
        room_wanted: Arc::clone(&room_wanted),
        wake: Arc::clone(&wake),
    };
    let recorder = tokio::spawn(recorder.run(inbox));
    let doorbell = (options.waking == Waking::Doorbell)
        .then(|| tokio::spawn(answer_doorbell(connector.clone(), Arc::clone(&wake))));
    let publisher = Publisher::new(queue.clone(), Arc::clone(&wake));
    let publishing = tokio::spawn(publisher.clone().run());
    let upkeep = tokio::spawn(Upkeep::of(&queue, options.pruning, &tally).run());

    let mut worker = Worker {
        slots,
        places,
        all_places,
        memory: Memory::default(),
        tries: TaskTracker::new(),
        cut: CancellationToken::new(),
        endpoints: Endpoints::default(),
        lap: Lap::default(),
        marks: Marks::default(),
        waits: Waits::default(),
        options,
        queue,
        client,
        pid,
        reports,
        publisher,
        wake,
        room_wanted,
    };
    worker.serve(&stop).await;
    upkeep.abort();
    if let Some(doorbell) = doorbell {
        doorbell.abort();
    }
    // A statement that is cut leaves nothing half done.
    publishing.abort();
    worker.finish(recorder).await;
    Ok(Summary {
        delivered: tally.delivered.load(Ordering::Relaxed),
        failed: tally.failed.load(Ordering::Relaxed),
        exhausted: tally.exhausted.load(Ordering::Relaxed),
    })
}

/// What has to be there before the first claim: the days of attempts, and the worker on the list.
async fn begin(queue: &Queue, options: &Options, pid: i32) -> Result<(), Error> {
    queue.make_partitions(&[]).await?;
    queue.arrive(&options.name, &options.hostname, pid).await
}

struct Worker {
    options: Options,
    queue: Queue,
    client: Client,
    pid: i32,
    endpoints: Endpoints,
    lap: Lap,
    marks: Marks,
    /// Of the present lap.
    waits: Waits,
    /// One for each try at a time.
    slots: Arc<Semaphore>,
    /// One for each delivery from its claim until its result is written, and how many there are.
    places: Arc<Semaphore>,
    all_places: usize,
    memory: Memory,
    tries: TaskTracker,
    /// Ends the tries in flight, when the grace is over.
    cut: CancellationToken,
    reports: UnboundedSender<Held>,
    publisher: Publisher,
    /// A permit is stored when somebody rings while nobody waits, so no ring is lost between a claim and the sleep after it.
    wake: Arc<Notify>,
    room_wanted: Arc<AtomicBool>,
}

/// What a claim leads to.
enum Round {
    GoOn,
    Rest(Waits),
}

impl Worker {
    async fn serve(&mut self, stop: &CancellationToken) {
        let mut backoff = Backoff::default();
        let mut rests = 0;
        loop {
            let Some(room) = self.room(stop).await else {
                return;
            };
            let nap = match self.claim(room).await {
                Ok(Round::GoOn) => {
                    backoff.reset();
                    rests = 0;
                    continue;
                }
                Ok(Round::Rest(waits)) => {
                    backoff.reset();
                    if self.options.until == Until::Drained
                        && !self.waits_for(waits)
                        && self.is_idle()
                    {
                        return;
                    }
                    rests += 1;
                    self.nap(rests, waits)
                }
                // A lost try goes on record by the claim, and its day may have been dropped.
                Err(error)
                    if error.is_data_error()
                        && self
                            .queue
                            .make_partitions(&[])
                            .await
                            .is_ok_and(|made| made > 0) =>
                {
                    continue;
                }
                Err(error) => {
                    let wait = backoff.next();
                    tracing::warn!(error = %chain(&error), retry_ms = wait.as_millis(), "cannot claim: the database does not answer as it should");
                    self.return_after(wait, stop).await;
                    continue;
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wake.notified() => {}
                () = tokio::time::sleep(nap) => {}
            }
        }
    }

    /// Waits for free slots and says how many there are; `None` when it is time to stop.
    async fn room(&self, stop: &CancellationToken) -> Option<usize> {
        tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            free = async { (self.places.acquire().await, self.slots.acquire().await) } => drop(free),
        }
        let worth_it = u32::try_from(self.options.concurrency / 4)
            .unwrap_or(u32::MAX)
            .max(1);
        tokio::time::timeout(LINGER, self.slots.acquire_many(worth_it))
            .await
            .ok();
        let free = self
            .slots
            .available_permits()
            .min(self.places.available_permits());
        Some(free.clamp(1, CLAIM_BATCH))
    }

    /// How long to sleep after so many empty laps in a row.
    fn nap(&self, rests: usize, waits: Waits) -> Duration {
        if waits.contended {
            return CONTENDED;
        }
        let recheck = RECHECKS.get(rests - 1).copied();
        let nap = recheck
            .unwrap_or(self.options.poll_interval)
            .min(self.options.poll_interval);
        let least = if recheck.is_some() {
            Duration::from_millis(1)
        } else {
            IDLE_LEAST
        };
        // The due time was rounded to a millisecond; a look that comes too early would find nothing.
        nap.min(
            waits
                .wake
                .map_or(nap, |time| (time + Duration::from_millis(1)).max(least)),
        )
    }

    /// Whether there is something due that this worker, too, has to wait for.
    fn waits_for(&self, waits: Waits) -> bool {
        waits.any() || (waits.changes && !self.publisher.is_failing())
    }

    fn is_idle(&self) -> bool {
        self.places.available_permits() == self.all_places
    }

    /// One claim, and a try for each delivery that it took.
    async fn claim(&mut self, room: usize) -> Result<Round, Error> {
        if self.lap.cursor().is_empty() {
            self.waits = Waits::default();
        }
        // Before the claim looks: a result that is written meanwhile may be the room that it did not see.
        self.room_wanted.store(true, Ordering::Release);
        let asked = Moment::now();
        let wanted = i32::try_from(room).unwrap_or(i32::MAX);
        let lanes = self.lap.lanes(room);
        let marks = self
            .marks
            .choose(self.lap.cursor(), usize::try_from(lanes).unwrap_or(0));
        let mut claim = self
            .queue
            .claim(Ask {
                cursor: self.lap.cursor(),
                lanes,
                wanted,
                worker: &self.options.name,
                margin: self.options.lease_margin,
                sleep: self.options.poll_interval,
                free: i32::try_from(self.slots.available_permits()).unwrap_or(i32::MAX),
                bytes: self.memory.left(),
                marks: &marks,
            })
            .await?;
        if claim.taken.len() + claim.ended.len() > room {
            tracing::error!(
                asked = room,
                got = claim.taken.len(),
                "a claim took more deliveries than it was asked for"
            );
        }
        for (delivery, reason) in &claim.ended {
            tracing::warn!(delivery, reason, "exhausted, will not be tried again");
        }
        self.marks.learn(&claim);
        let step = self.lap.advance(&walk(&claim, lanes, room));
        self.waits = self.waits.and(Waits {
            wake: claim.wake,
            rationed: claim.rationed,
            capped: claim.capped || claim.heavy,
            contended: claim.contended,
            changes: claim.changes,
        });
        if claim.changes {
            self.publisher.ask();
        }
        let waits = self.waits;
        if !waits.capped {
            self.room_wanted.store(false, Ordering::Release);
        }
        self.start(
            std::mem::take(&mut claim.taken),
            DatabaseTime::new(claim.claimed_at, asked),
        )
        .await;
        // Last: what was claimed has begun by then, whatever comes of this.
        let retired = self.retire(&claim).await?;
        Ok(match step {
            Step::Rest if !retired => Round::Rest(waits),
            Step::Rest | Step::GoOn => Round::GoOn,
        })
    }

    /// Starts a try for each; what cannot be started is given back.
    async fn start(&mut self, taken: Vec<Taken>, claimed: DatabaseTime) {
        if taken.is_empty() {
            return;
        }
        if let Err(error) = self.endpoints.refresh(&self.queue, &taken).await {
            tracing::warn!(error = %chain(&error), "cannot read endpoints: what was claimed is given back");
        }
        for Taken {
            delivery,
            lease,
            left,
            ..
        } in taken
        {
            // There is a slot and a place for each: no more was claimed than was free, and nobody else takes one.
            let (Ok(slot), Ok(place)) = (
                Arc::clone(&self.slots).acquire_owned().await,
                Arc::clone(&self.places).acquire_owned().await,
            ) else {
                return;
            };
            let slot = Slot {
                _slot: slot,
                _memory: self.memory.hold(delivery.body.len()),
            };
            let Some(endpoint) = self.endpoints.get(&delivery.endpoint) else {
                let report = attempt::Report::GiveBack {
                    delivery_id: delivery.id,
                    claim_no: delivery.claim_no,
                };
                self.reports.send(Held { report, place }).ok();
                continue;
            };
            let job = Job {
                delivery,
                endpoint,
                lease: Lease {
                    length: lease,
                    reserve: self.options.lease_margin / 4,
                    claimed,
                    left,
                },
            };
            let (client, cut, reports) =
                (self.client.clone(), self.cut.clone(), self.reports.clone());
            self.tries.spawn(async move {
                let report = attempt::make(job, &client, &cut).await;
                drop(slot);
                // The recorder outlives every try: it ends when the last sender is gone.
                reports.send(Held { report, place }).ok();
            });
        }
    }

    /// Ends open deliveries of disabled endpoints; whether there were any.
    async fn retire(&self, claim: &Claim) -> Result<bool, Error> {
        if claim.disabled.is_empty() {
            return Ok(false);
        }
        let ended = self.queue.retire(&claim.disabled, RETIRE_BATCH).await?;
        for (endpoint, deliveries) in &ended {
            tracing::info!(
                endpoint,
                deliveries,
                reason = "endpoint_disabled",
                "ended open deliveries of a disabled endpoint"
            );
        }
        Ok(!ended.is_empty())
    }

    /// After a failure: waits, and puts itself on the list of workers again, which may have been lost with a failover.
    async fn return_after(&self, wait: Duration, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        self.queue
            .arrive(&self.options.name, &self.options.hostname, self.pid)
            .await
            .ok();
    }

    /// Lets tries in flight finish within the grace, cuts the rest, and writes everything.
    async fn finish(self, recorder: JoinHandle<()>) {
        self.tries.close();
        let in_flight = self.tries.len();
        if in_flight > 0 {
            tracing::info!(
                in_flight,
                grace_s = self.options.grace.as_secs(),
                "stopping: no more claims, tries in flight may finish"
            );
        }
        if tokio::time::timeout(self.options.grace, self.tries.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                in_flight = self.tries.len(),
                "the grace is over: tries in flight are cut and due again at once"
            );
            self.cut.cancel();
            self.tries.wait().await;
        }
        drop(self.reports);
        let patience = self.options.grace.max(Duration::from_secs(5));
        if tokio::time::timeout(patience, recorder).await.is_err() {
            tracing::error!(
                "the database did not take the last results; their leases will run out, and they count as lost"
            );
        }
        self.queue.leave(&self.options.name).await.ok();
    }
}

fn walk(claim: &Claim, lanes: i32, wanted: usize) -> Walk<'_> {
    Walk {
        end: claim.walk_end.as_deref(),
        hops: claim.hops,
        lanes,
        taken: claim.taken.len() + claim.ended.len(),
        last_served: claim
            .taken
            .iter()
            .map(|one| one.delivery.endpoint.as_str())
            .max(),
        wanted,
        heavy: claim.heavy,
    }
}

/// Keeps a session that listens; a lost one is made again, with a look at the queue right after it.
async fn answer_doorbell(connector: Connector, wake: Arc<Notify>) {
    let mut backoff = Backoff::default();
    loop {
        let heard = Moment::now();
        let error = doorbell::listen(&connector, || wake.notify_one()).await;
        if heard.elapsed() > Duration::from_secs(60) {
            backoff.reset();
        }
        let wait = backoff.next();
        tracing::warn!(error = %chain(&error), retry_ms = wait.as_millis(), "the doorbell is off, polling goes on");
        tokio::time::sleep(wait).await;
    }
}
