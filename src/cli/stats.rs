//! `postrider stats`: what happened lately and what waits now.
#![allow(clippy::print_stdout, reason = "the result")]

mod chart;

use std::cmp::Reverse;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use self::chart::{Characters, bar, sparkline};
use super::connection::ConnectArgs;
use super::output::{self, cell};
use super::refusal::no_such_endpoint;
use super::{Exit, Failure};
use crate::harmless;
use crate::store::operator::endpoint;
use crate::store::operator::stats::{self, NEWEST, Stats, SuccessRate};

/// Characters of an endpoint's name that a line has room for.
const NAME_WIDTH: usize = 18;
/// A chart in a line of the table has at least so many, or is left out.
const NARROWEST_CHART: usize = 6;
/// Endpoints that get a line of their own; with more of them, those where most tries failed.
const LINES: usize = 20;
/// Before a chart on a line of its own.
const LABEL_WIDTH: usize = 10;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Only this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,
    /// The window, in hours; tries are counted by the hour (UTC), the present one included
    #[arg(long, value_name = "HOURS", default_value_t = 24.0)]
    hours: f64,
    /// Draw with ASCII only; so it is anyway where the locale is not UTF-8 or the terminal is dumb
    #[arg(long, conflicts_with = "json")]
    ascii: bool,
    #[command(flatten)]
    format: output::Format,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    // Attempts are not kept for longer than a year, and a year of hours is a page full of columns.
    if !(args.hours > 0.0 && args.hours <= 8784.0) {
        return Err(Failure::usage(
            "--hours must be above 0 and at most 8784",
            "for example --hours 24",
        )
        .into());
    }
    let client = args.connect.client().await?;
    if let Some(name) = &args.endpoint
        && !endpoint::exists(&client, name).await?
    {
        return Err(no_such_endpoint(name));
    }
    let stats = stats::read(&client, args.endpoint.as_deref(), args.hours).await?;
    if args.format.json {
        output::json(&stats)?;
    } else {
        let characters = if args.ascii {
            Characters::Ascii
        } else {
            characters(|name| std::env::var_os(name)?.into_string().ok())
        };
        print(&stats, characters);
    }
    Ok(Exit::Done)
}

/// What the terminal can draw, by its own word.
fn characters(setting: impl Fn(&str) -> Option<String>) -> Characters {
    let dumb = setting("TERM").is_some_and(|terminal| terminal == "dumb");
    // The first that is set and not empty decides.
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(setting)
        .find(|value| !value.is_empty())
        .unwrap_or_default()
        .to_ascii_lowercase();
    if !dumb && (locale.contains("utf-8") || locale.contains("utf8")) {
        Characters::Blocks
    } else {
        Characters::Ascii
    }
}

fn print(stats: &Stats, characters: Characters) {
    let backlog = &stats.backlog;
    output::details(&[
        ("due now", Some(backlog.due.to_string())),
        (
            "held: paused, disabled or in line",
            (backlog.held > 0).then(|| backlog.held.to_string()),
        ),
        ("oldest due", backlog.oldest_due.clone()),
        (
            "it waits for",
            backlog.oldest_due_seconds.map(|age| format!("{age} s")),
        ),
        ("workers alive", Some(backlog.workers_alive.to_string())),
    ]);
    if backlog.due > 0 && backlog.workers_alive == 0 {
        println!("No worker is running: start one with `postrider worker`.");
    }
    let of = if stats.deliveries_cut {
        format!(", among the newest {NEWEST}")
    } else {
        String::new()
    };
    println!("\nDeliveries queued in the last {} hours{of}:", stats.hours);
    output::table(
        &["status", "reason", "count"],
        stats.deliveries.iter().map(|count| {
            vec![
                count.status.clone(),
                cell(count.exhausted_reason.as_ref()),
                count.count.to_string(),
            ]
        }),
    );
    let Some(all) = &stats.all else {
        println!("\nNo tries in the last {} hours.", stats.hours);
        return;
    };
    println!("\nTries made in the last {} hours:", stats.hours);
    let width = output::line_width();
    overall(all, stats.slot_hours, width, characters);
    println!();
    let (shown, more) = worst(&stats.endpoints);
    for line in lines(&shown, width, characters) {
        println!("{line}");
    }
    if more > 0 {
        println!("and {more} more: --endpoint NAME shows one of them, --json all");
    }
}

/// Those that get a line, by name, and how many others there are.
fn worst(endpoints: &[SuccessRate]) -> (Vec<&SuccessRate>, usize) {
    let mut ranked: Vec<_> = endpoints.iter().enumerate().collect();
    ranked.sort_by_key(|(_, rate)| Reverse((rate.tries - rate.delivered_tries, rate.tries)));
    ranked.truncate(LINES);
    ranked.sort_by_key(|(place, _)| *place);
    let shown: Vec<_> = ranked.into_iter().map(|(_, rate)| rate).collect();
    let more = endpoints.len() - shown.len();
    (shown, more)
}

/// All endpoints together.
fn overall(all: &SuccessRate, slot_hours: i32, width: usize, characters: Characters) {
    let number = format!("{:.2} %", all.success_percent);
    let room = width.saturating_sub(LABEL_WIDTH + number.len() + 3);
    let success = bar(
        all.delivered_tries,
        all.tries,
        room.clamp(NARROWEST_CHART, 48),
        characters,
    );
    println!("{:LABEL_WIDTH$}{success}  {number}", "success");
    let each = if slot_hours == 1 {
        "an hour".to_owned()
    } else {
        format!("{slot_hours} hours")
    };
    for (label, series, sum) in [
        ("tries", &all.tries_series, all.tries),
        (
            "failures",
            &all.failures_series,
            all.tries - all.delivered_tries,
        ),
    ] {
        let most = series.iter().max().copied().unwrap_or(0);
        let said = format!("{sum}, at most {most} in {each}");
        let room = width.saturating_sub(LABEL_WIDTH + said.len() + 3);
        let chart = sparkline(series, room.max(NARROWEST_CHART), characters);
        println!("{label:LABEL_WIDTH$}{chart}  {said}");
    }
    println!(
        "{:LABEL_WIDTH$}half within {}, 95 % within {}, 99 % within {}",
        "took",
        cell(all.p50_ms.map(short)),
        cell(all.p95_ms.map(short)),
        cell(all.p99_ms.map(short))
    );
}

/// A line for each endpoint, under headings; charts as wide as the rest leaves room for.
fn lines(endpoints: &[&SuccessRate], width: usize, characters: Characters) -> Vec<String> {
    let plain = table_of(endpoints, None);
    let taken = plain.first().map_or(0, |line| line.chars().count());
    // Each has a space before it.
    let room = width.saturating_sub(taken + 2) / 2;
    let slots = endpoints.first().map_or(0, |rate| rate.tries_series.len());
    if room < NARROWEST_CHART.min(slots) {
        return plain;
    }
    table_of(endpoints, Some((room, characters)))
}

fn table_of(endpoints: &[&SuccessRate], charts: Option<(usize, Characters)>) -> Vec<String> {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .force_no_tty()
        .set_content_arrangement(ContentArrangement::Disabled);
    let mut headings = vec![
        "ENDPOINT", "TRIES", "OK %", "1ST %", "END %", "P50", "P95", "P99",
    ];
    let numbers = headings.len();
    if charts.is_some() {
        headings.extend(["TRIES", "FAILS"]);
    }
    table.set_header(headings);
    for rate in endpoints {
        let name = harmless::line(rate.endpoint.as_deref().unwrap_or_default());
        let mut row = vec![
            output::cut(&name, NAME_WIDTH),
            rate.tries.to_string(),
            percent(Some(rate.success_percent)),
            percent(rate.first_try_percent),
            percent(rate.eventual_percent),
            cell(rate.p50_ms.map(short)),
            cell(rate.p95_ms.map(short)),
            cell(rate.p99_ms.map(short)),
        ];
        if let Some((room, characters)) = charts {
            row.push(sparkline(&rate.tries_series, room, characters));
            row.push(sparkline(&rate.failures_series, room, characters));
        }
        table.add_row(row);
    }
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if (1..numbers).contains(&place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

/// 100 only when it is all of them.
fn percent(percent: Option<f64>) -> String {
    cell(percent.map(|percent| match percent {
        100.0 => "100".to_owned(),
        below => format!("{:.1}", below.min(99.9)),
    }))
}

/// A duration in a few characters.
fn short(ms: f64) -> String {
    match ms {
        ..999.5 => format!("{ms:.0}ms"),
        ..59_950.0 => format!("{:.1}s", ms / 1e3),
        ..3_570_000.0 => format!("{:.0}m", ms / 6e4),
        _ => format!("{:.1}h", ms / 3.6e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_takes_few_characters_and_never_says_1000_ms() {
        for (ms, shown) in [
            (0.0, "0ms"),
            (999.4, "999ms"),
            (999.5, "1.0s"),
            (59_949.0, "59.9s"),
            (59_950.0, "1m"),
            (3_570_000.0, "1.0h"),
            (2_147_483_647.0, "596.5h"),
        ] {
            assert_eq!(short(ms), shown, "{ms}");
        }
    }

    #[test]
    fn blocks_are_drawn_only_where_the_locale_says_utf_8() {
        let with = |settings: &'static [(&'static str, &'static str)]| {
            characters(|name| {
                let (_, value) = settings.iter().find(|(known, _)| *known == name)?;
                Some((*value).to_owned())
            })
        };

        assert_eq!(with(&[("LANG", "de_DE.UTF-8")]), Characters::Blocks);
        assert_eq!(
            with(&[("LC_ALL", ""), ("LANG", "C.utf8")]),
            Characters::Blocks
        );
        assert_eq!(with(&[]), Characters::Ascii);
        assert_eq!(
            with(&[("LC_ALL", "C"), ("LANG", "C.UTF-8")]),
            Characters::Ascii
        );
        assert_eq!(
            with(&[("TERM", "dumb"), ("LANG", "C.UTF-8")]),
            Characters::Ascii
        );
    }
}
