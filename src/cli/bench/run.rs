//! One scenario from its first insert to its figures.
#![allow(
    clippy::cast_precision_loss,
    reason = "rates and means of counts far below 2^52"
)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::figures::{Ceiling, Figures, percentile};
use super::receiver::{self, now_us};
use super::scenario::Scenario;
use super::stage::{Part, Stage, Used, until_received, until_recorded};
use super::usage;

/// How long a worker is watched doing nothing.
const IDLE: Duration = Duration::from_secs(5);

/// Single events after that, and the time between two.
const SINGLES: usize = 300;
const BETWEEN: Duration = Duration::from_millis(20);

/// `steady` inserts at these intervals, for so long.
const TICK: Duration = Duration::from_millis(10);
const TICKS: usize = 500;

/// What is to be measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) scenario: Scenario,
    pub(super) deliveries: usize,
    pub(super) workers: usize,
    /// Tries at a time of a worker, if not its default.
    pub(super) concurrency: Option<u16>,
    /// Of `steady`, in events a second.
    pub(super) rate: Option<f64>,
    pub(super) ceiling: Option<Ceiling>,
}

/// Runs it.
pub(super) async fn scenario(stage: &Stage, plan: &Plan) -> anyhow::Result<Figures> {
    if plan.scenario.trickles() {
        return trickle(stage, plan).await;
    }
    let mut without = None;
    if plan.scenario == Scenario::Whale {
        without = backlog(stage, plan, "n % 10 = 0").await?.others_p99_ms;
        stage.clear().await?;
    }
    let mut figures = backlog(stage, plan, "true").await?;
    figures.others_p99_ms_without_whale = without;
    Ok(figures)
}

/// Lays a backlog before paused endpoints, lets the workers at it, and waits until all is recorded.
async fn backlog(stage: &Stage, plan: &Plan, only: &str) -> anyhow::Result<Figures> {
    let (receiver, address) = stage.start_receiver(plan.scenario, plan.deliveries).await?;
    stage.make_endpoints(plan.scenario, address).await?;
    stage
        .insert(plan.scenario, 0, plan.deliveries, only)
        .await?;
    stage.settle().await?;
    let inserted = stage.open_rows().await?;
    let workers = start_workers(stage, plan).await?;

    let before = stage.used(&workers, &receiver).await?;
    let began_us = now_us();
    stage.resume().await?;
    until_received(address, inserted).await?;
    until_recorded(stage).await?;
    let after = stage.used(&workers, &receiver).await?;

    let mut figures = figures(stage, plan, inserted, (&before, &after), address, &workers).await?;
    if plan.scenario == Scenario::Whale {
        let waits = waits(address, |n| (n % 10 == 0).then_some(began_us)).await?;
        figures.others_p99_ms = percentile(&waits, 0.99);
    }
    end(workers, receiver).await?;
    Ok(figures)
}

/// Inserts while the workers run, and asks how long each event took.
async fn trickle(stage: &Stage, plan: &Plan) -> anyhow::Result<Figures> {
    let per_tick = if plan.scenario == Scenario::Steady {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bounded by --rate"
        )]
        let rate = (plan.rate.unwrap_or(1000.0) * TICK.as_secs_f64()).round() as usize;
        rate.max(1)
    } else {
        1
    };
    let (ticks, tick) = if plan.scenario == Scenario::Steady {
        (TICKS, TICK)
    } else {
        (SINGLES, BETWEEN)
    };
    let (receiver, address) = stage
        .start_receiver(plan.scenario, ticks * per_tick)
        .await?;
    stage.make_endpoints(plan.scenario, address).await?;
    stage.resume().await?;
    stage.settle().await?;
    let workers = start_workers(stage, plan).await?;

    let mut idle = None;
    if plan.scenario == Scenario::Idle {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (first, ()) = (
            stage.used(&workers, &receiver).await?,
            tokio::time::sleep(IDLE).await,
        );
        idle = Some((first, stage.used(&workers, &receiver).await?));
    }
    let before = stage.used(&workers, &receiver).await?;
    let mut inserted_at = Vec::with_capacity(ticks);
    let mut next = Instant::now();
    for n in 0..ticks {
        tokio::time::sleep_until(next.into()).await;
        next += tick;
        inserted_at.push(now_us());
        stage
            .insert(plan.scenario, n * per_tick, per_tick, "true")
            .await?;
    }
    let inserted = u64::try_from(ticks * per_tick).unwrap_or(u64::MAX);
    until_received(address, inserted).await?;
    until_recorded(stage).await?;
    let after = stage.used(&workers, &receiver).await?;

    let mut figures = figures(stage, plan, inserted, (&before, &after), address, &workers).await?;
    let waits = waits(address, |n| inserted_at.get(n / per_tick).copied()).await?;
    figures.latency_p50_ms = percentile(&waits, 0.5);
    figures.latency_p95_ms = percentile(&waits, 0.95);
    figures.latency_p99_ms = percentile(&waits, 0.99);
    (figures.ideal_per_s, figures.ratio_to_ideal) = (None, None);
    if let Some((first, last)) = idle {
        let seconds = (last.at - first.at).as_secs_f64();
        // One of the statements is our own look at the counters: they are two.
        figures.idle_statements_per_s =
            Some((last.statements - first.statements).saturating_sub(2) as f64 / seconds);
        figures.idle_worker_cpu_ms_per_s = last
            .workers
            .zip(first.workers)
            .map(|(last, first)| (last - first).as_secs_f64() * 1e3 / seconds);
    }
    end(workers, receiver).await?;
    Ok(figures)
}

async fn start_workers(stage: &Stage, plan: &Plan) -> anyhow::Result<Vec<Part>> {
    let mut workers = Vec::with_capacity(plan.workers);
    for _ in 0..plan.workers {
        workers.push(stage.start_worker(plan.concurrency).await?);
    }
    // They have sessions, prepared statements and an empty lap behind them then.
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok(workers)
}

async fn end(workers: Vec<Part>, receiver: Part) -> anyhow::Result<()> {
    for worker in workers {
        worker.end().await?;
    }
    receiver.end().await
}

/// How long each event took to come, in ms and sorted, for those of which `since` says when they began, in µs since the epoch.
async fn waits(
    receiver: SocketAddr,
    since: impl Fn(usize) -> Option<u64>,
) -> anyhow::Result<Vec<f64>> {
    let times = receiver::times(receiver).await?;
    let mut waits: Vec<f64> = times
        .into_iter()
        .enumerate()
        .filter(|&(_, at)| at > 0)
        .filter_map(|(n, at)| Some(at.saturating_sub(since(n)?) as f64 / 1e3))
        .collect();
    waits.sort_by(f64::total_cmp);
    Ok(waits)
}

async fn figures(
    stage: &Stage,
    plan: &Plan,
    inserted: u64,
    (before, after): (&Used, &Used),
    receiver: SocketAddr,
    workers: &[Part],
) -> anyhow::Result<Figures> {
    let progress = receiver::progress(receiver).await?;
    let delivered = stage.delivered_rows().await?;
    let seconds = (after.at - before.at).as_secs_f64();
    let per_s = inserted as f64 / seconds;
    let ideal = match plan.scenario {
        Scenario::Slow => {
            Some(plan.scenario.in_flight() as f64 / plan.scenario.delay().as_secs_f64())
        }
        // The receiver's absence is no work.
        Scenario::Outage => None,
        Scenario::Fast
        | Scenario::Whale
        | Scenario::Many
        | Scenario::Replicas
        | Scenario::Steady
        | Scenario::Idle => plan.ceiling.map(|ceiling| ceiling.per_s),
    };
    let each = |before: Option<Duration>, after: Option<Duration>| {
        before.zip(after).map(|(before, after)| {
            after.saturating_sub(before).as_secs_f64() * 1e6 / inserted as f64
        })
    };
    Ok(Figures {
        scenario: plan.scenario.name(),
        workers: plan.workers,
        deliveries: inserted,
        seconds,
        deliveries_per_s: per_s,
        ideal_per_s: ideal,
        ratio_to_ideal: ideal.map(|ideal| per_s / ideal),
        lost: inserted.saturating_sub(delivered.min(progress.events)),
        duplicates: progress.duplicates,
        requests: progress.requests,
        worker_cpu_us: each(before.workers, after.workers),
        postgres_cpu_us: each(before.server, after.server),
        receiver_cpu_us: each(before.receiver, after.receiver),
        wal_bytes_per_delivery: (after.wal - before.wal) as f64 / inserted as f64,
        statements_per_delivery: (after.statements - before.statements) as f64 / inserted as f64,
        worker_peak_mb: workers
            .iter()
            .filter_map(|worker| usage::peak_memory_of(worker.pid()))
            .max()
            .map(|bytes| bytes as f64 / 1_048_576.0),
        ..Figures::default()
    })
}
