//! What a benchmark found, for people and for programs.
#![allow(clippy::print_stdout, reason = "the result")]

use serde::Serialize;

use crate::cli::output;

/// One scenario. A figure that could not be had is null: CPU times are known on Linux alone, and the server's only when it runs here.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    pub(super) scenario: &'static str,
    pub(super) workers: usize,
    pub(super) deliveries: u64,
    pub(super) seconds: f64,
    pub(super) deliveries_per_s: f64,
    /// What this machine could do at most: see [`Ceiling`]; for `slow`, requests in flight by the receiver's delay.
    pub(super) ideal_per_s: Option<f64>,
    pub(super) ratio_to_ideal: Option<f64>,
    /// Committed and not delivered.
    pub(super) lost: u64,
    /// Accepted by the receiver more than once.
    pub(super) duplicates: u64,
    pub(super) requests: u64,
    /// From the INSERT, its commit included, until the receiver has it.
    pub(super) latency_p50_ms: Option<f64>,
    pub(super) latency_p95_ms: Option<f64>,
    pub(super) latency_p99_ms: Option<f64>,
    pub(super) worker_cpu_us: Option<f64>,
    pub(super) postgres_cpu_us: Option<f64>,
    pub(super) receiver_cpu_us: Option<f64>,
    pub(super) wal_bytes_per_delivery: f64,
    /// Transactions of the database; each statement of a worker is one.
    pub(super) statements_per_delivery: f64,
    /// Of the worker with the most.
    pub(super) worker_peak_mb: Option<f64>,
    /// Whale: until 99 % of the other endpoints' events had come, with the whale and without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) others_p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) others_p99_ms_without_whale: Option<f64>,
    /// Idle: with nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idle_statements_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idle_worker_cpu_ms_per_s: Option<f64>,
}

/// What a delivery costs at least, in µs of CPU: measured in the same run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Ceiling {
    /// The bare HTTP client and the receiver, for one request.
    pub(super) request_us: f64,
    /// Of it, the receiver.
    pub(super) receiver_us: f64,
    /// Claim and record of one row, without sending: the database, and the program that asks it.
    pub(super) row_us: f64,
    /// Of it, the database.
    pub(super) postgres_us: f64,
    pub(super) cores: f64,
    /// Cores by the sum of both.
    pub(super) per_s: f64,
}

pub(super) fn print_ceiling(ceiling: &Ceiling) {
    println!(
        "ceiling: {:.0} deliveries/s = {} cores / ({:.0} µs a request, receiver's {:.0} included + {:.0} µs a row, database's {:.0} included)",
        ceiling.per_s,
        ceiling.cores,
        ceiling.request_us,
        ceiling.receiver_us,
        ceiling.row_us,
        ceiling.postgres_us
    );
}

pub(super) fn print_json(figures: &Figures) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(figures)?);
    Ok(())
}

pub(super) fn print(figures: &Figures) {
    println!("\n{}", figures.scenario);
    output::details(&[&outcome(figures)[..], &costs(figures)[..]].concat());
}

fn text(value: Option<f64>, digits: usize, unit: &str) -> Option<String> {
    value.map(|value| format!("{value:.digits$}{unit}"))
}

/// How much came through, and how fast.
fn outcome(figures: &Figures) -> [(&'static str, Option<String>); 7] {
    let rate =
        (figures.ideal_per_s.is_some() || figures.idle_statements_per_s.is_none()).then(|| {
            let of = match (figures.ideal_per_s, figures.ratio_to_ideal) {
                (Some(ideal), Some(ratio)) => format!(", {:.0} % of {ideal:.0}", ratio * 100.0),
                _ => String::new(),
            };
            format!("{:.0}{of}", figures.deliveries_per_s)
        });
    [
        (
            "  deliveries",
            Some(format!(
                "{} in {:.2} s, {} worker(s)",
                figures.deliveries, figures.seconds, figures.workers
            )),
        ),
        ("  deliveries/s", rate),
        ("  lost", Some(figures.lost.to_string())),
        ("  duplicates", Some(figures.duplicates.to_string())),
        (
            "  insert to received",
            figures.latency_p50_ms.map(|p50| {
                format!(
                    "p50 {p50:.1} ms, p95 {:.1} ms, p99 {:.1} ms",
                    figures.latency_p95_ms.unwrap_or_default(),
                    figures.latency_p99_ms.unwrap_or_default()
                )
            }),
        ),
        ("  others' p99", text(figures.others_p99_ms, 0, " ms")),
        (
            "  the same without the whale",
            text(figures.others_p99_ms_without_whale, 0, " ms"),
        ),
    ]
}

/// What it took.
fn costs(figures: &Figures) -> [(&'static str, Option<String>); 8] {
    [
        (
            "  CPU of workers",
            text(figures.worker_cpu_us, 1, " µs a delivery"),
        ),
        (
            "  CPU of PostgreSQL",
            text(figures.postgres_cpu_us, 1, " µs a delivery"),
        ),
        (
            "  CPU of the receiver",
            text(figures.receiver_cpu_us, 1, " µs a delivery"),
        ),
        (
            "  WAL",
            Some(format!(
                "{:.0} bytes a delivery",
                figures.wal_bytes_per_delivery
            )),
        ),
        (
            "  statements",
            Some(format!("{:.3} a delivery", figures.statements_per_delivery)),
        ),
        (
            "  peak memory of a worker",
            text(figures.worker_peak_mb, 1, " MB"),
        ),
        (
            "  statements when idle",
            text(figures.idle_statements_per_s, 2, " a second"),
        ),
        (
            "  CPU of the worker when idle",
            text(figures.idle_worker_cpu_ms_per_s, 2, " ms a second"),
        ),
    ]
}

/// The value below which the share `of` lies; `values` must be sorted.
pub(super) fn percentile(values: &[f64], of: f64) -> Option<f64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a place in a list that fits into memory"
    )]
    let place = ((values.len() as f64 * of).ceil() as usize).saturating_sub(1);
    values.get(place).copied()
}
