//! The yardsticks: what a request and what a row cost at least, on this machine and now.

use std::time::Duration;

use super::figures::Ceiling;
use super::scenario::Scenario;
use super::stage::Stage;
use super::usage;

/// Requests at a time of the bare client: more do not make it faster.
const IN_FLIGHT: usize = 128;

/// Rows of a bare claim.
const BATCH: usize = 500;

/// Measures both; `None` where CPU times are not to be had.
pub(super) async fn measure(
    stage: &Stage,
    count: usize,
    payload: usize,
) -> anyhow::Result<Option<Ceiling>> {
    let Some((request_us, receiver_us)) = request(stage, count, payload).await? else {
        return Ok(None);
    };
    let Some((row_us, postgres_us)) = row(stage, count).await? else {
        return Ok(None);
    };
    #[expect(clippy::cast_precision_loss, reason = "a number of CPUs")]
    let cores = usage::cores() as f64;
    Ok(Some(Ceiling {
        request_us,
        receiver_us,
        row_us,
        postgres_us,
        cores,
        per_s: cores * 1e6 / (request_us + row_us),
    }))
}

/// The bare client against the receiver: µs of both together, and of the receiver.
async fn request(
    stage: &Stage,
    count: usize,
    payload: usize,
) -> anyhow::Result<Option<(f64, f64)>> {
    let (receiver, address) = stage.start_receiver(Scenario::Fast, 0).await?;
    let arguments = [
        "bench-part".to_owned(),
        "flood".to_owned(),
        format!("--url=http://{address}/"),
        format!("--requests={count}"),
        format!("--in-flight={IN_FLIGHT}"),
        format!("--payload={payload}"),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (flood, answered) = stage.start(&arguments, done).await?;
    let used = (usage::cpu_of(flood.pid()), usage::cpu_of(receiver.pid()));
    flood.end().await?;
    receiver.end().await?;
    let (Some(client), Some(receiver)) = used else {
        return Ok(None);
    };
    Ok(Some((
        each(client + receiver, answered),
        each(receiver, answered),
    )))
}

/// Claim and record alone: µs of the database and of the program that asks it, and of the database.
async fn row(stage: &Stage, count: usize) -> anyhow::Result<Option<(f64, f64)>> {
    stage
        .make_endpoints(Scenario::Fast, ([127, 0, 0, 1], 9).into())
        .await?;
    stage.insert(Scenario::Fast, 0, count, "true").await?;
    stage.resume().await?;
    stage.settle().await?;
    let before = stage.server_cpu();
    let arguments = [
        "bench-part".to_owned(),
        "rows".to_owned(),
        format!("--rows={count}"),
        format!("--batch={BATCH}"),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (rows, done) = stage.start(&arguments, done).await?;
    let used = (usage::cpu_of(rows.pid()), before, stage.server_cpu());
    rows.end().await?;
    let (Some(client), Some(before), Some(after)) = used else {
        return Ok(None);
    };
    Ok(Some((
        each(client + (after - before), done),
        each(after - before, done),
    )))
}

/// The number in what a part says when it has done its work.
fn done(line: &str) -> Option<u64> {
    line.strip_prefix("done ")?.parse().ok()
}

fn each(time: Duration, count: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    let count = count.max(1) as f64;
    time.as_secs_f64() * 1e6 / count
}
