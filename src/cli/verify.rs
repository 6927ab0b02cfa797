//! `postrider verify`: whether a request that was received is authentic, and if not, why.
#![allow(clippy::print_stdout, reason = "the verdict is the result")]

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::signature::{Material, SignatureArgs, now_seconds};
use super::{Exit, Failure};
use crate::signing;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    signature: SignatureArgs,
    /// A header of the request, as 'name: value'; repeat it for each
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// A file with one 'name: value' on each line
    #[arg(long, value_name = "FILE")]
    headers_file: Option<PathBuf>,
    /// How old, or how far ahead, a signature may be
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "5m")]
    tolerance: Duration,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Material {
        scheme,
        secrets,
        body,
    } = args.signature.read()?;
    let mut lines = args.headers;
    if let Some(path) = &args.headers_file {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(
                format!("cannot read {}: {error}", path.display()),
                "name a text file with --headers-file",
            )
        })?;
        lines.extend(text.lines().map(str::to_owned));
    }
    let headers = parse_headers(&lines)?;
    signing::verify(
        &scheme,
        &headers,
        &body,
        &secrets,
        now_seconds()?,
        args.tolerance,
    )
    .map_err(|error| {
        let hint = "sign the same bytes with `postrider sign` and compare the headers; --tolerance takes older ones";
        Failure::new(Exit::Failures, format!("not verified: {error}"), hint)
    })?;
    println!("verified");
    Ok(Exit::Done)
}

/// A copied request or status line and empty lines are left out.
fn parse_headers(lines: &[String]) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for (at, line) in lines.iter().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with("HTTP/") || line.contains(" HTTP/") {
            continue;
        }
        let parsed = line.split_once(':').and_then(|(name, value)| {
            Some((
                name.trim().parse::<HeaderName>().ok()?,
                HeaderValue::from_bytes(value.trim().as_bytes()).ok()?,
            ))
        });
        // The line is not quoted: an Authorization header may be among them.
        let (name, value) = parsed.ok_or_else(|| {
            Failure::usage(
                format!("header number {} is no 'name: value'", at + 1),
                "write it like 'webhook-id: evt_1'",
            )
        })?;
        headers.append(name, value);
    }
    Ok(headers)
}
