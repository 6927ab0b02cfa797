//! `postrider endpoint add`.
#![allow(clippy::print_stderr, reason = "a subcommand's next steps")]

use std::net::{IpAddr, Ipv4Addr};

use clap::builder::PossibleValuesParser;
use url::{Host, Url};

use crate::cli::connection::ConnectArgs;
use crate::cli::refusal::explain;
use crate::cli::{Exit, Failure, output, value};
use crate::outbound::{Forbidden, Guard};
use crate::store::operator::endpoint::{self, NewEndpoint, Order};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Where deliveries go; user:password@ in it becomes a Basic header
    #[arg(required_unless_present = "url_flag", conflicts_with = "url_flag")]
    url: Option<String>,
    /// The same, as a flag
    #[arg(long = "url", id = "url_flag", value_name = "URL")]
    url_flag: Option<String>,
    /// How deliveries name it [default: generated]
    #[arg(long)]
    name: Option<String>,
    /// Retry policy [default: standard]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Retries after the first try; 0 means one try [default: the policy's]
    #[arg(long, value_name = "N")]
    max_retries: Option<i32>,
    /// Budget of one whole try, from DNS to the last byte [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = value::seconds)]
    timeout: Option<f64>,
    /// Requests at a time, over all workers [default: 64]
    #[arg(long, value_name = "N")]
    max_in_flight: Option<i32>,
    /// Requests per second, over all workers [default: no limit]
    #[arg(long, value_name = "N")]
    rate_limit: Option<f64>,
    /// One after another in the order of their ids; one that fails holds the rest
    #[arg(long)]
    ordered: bool,
    /// Header sent with every delivery; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// How requests are signed [default: standard]
    #[arg(long, value_parser = PossibleValuesParser::new(["standard", "github", "stripe", "body-base64", "none"]))]
    scheme: Option<String>,
    /// The header that carries the signature, for the scheme body-base64
    #[arg(long, value_name = "NAME")]
    signature_header: Option<String>,
    /// HTTP method [default: POST]
    #[arg(long, value_parser = PossibleValuesParser::new(["POST", "PUT", "PATCH"]))]
    method: Option<String>,
    /// Published events that it gets: order.paid, order.* or *; may be repeated [default: all]
    #[arg(long = "event-type", value_name = "TYPE", value_delimiter = ',')]
    event_types: Option<Vec<String>>,
    /// Whose endpoint it is: it gets published events of this tenant only [default: those without one]
    #[arg(long)]
    tenant: Option<String>,
    /// Which of these events: a jsonpath over the payload, for example '$.total > 100' [default: all]
    #[arg(long, value_name = "JSONPATH")]
    filter: Option<String>,
    /// Your own signing secret: whsec_ and the base64 of 24 to 64 bytes [default: generated]
    #[arg(
        long,
        value_name = "SECRET",
        env = "POSTRIDER_SECRET",
        hide_env_values = true
    )]
    secret: Option<String>,
    #[command(flatten)]
    format: output::Format,
}

impl std::fmt::Debug for Args {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // URL, headers and secret hold credentials.
        f.debug_struct("Args")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

pub(super) async fn run(args: Args, connect: &ConnectArgs) -> anyhow::Result<Exit> {
    let format = args.format;
    let new = understand(args)?;
    let mut client = connect.client().await?;
    let added = endpoint::add(&mut client, &new).await.map_err(explain)?;
    let exit = super::hand_out(&added, format)?;
    if let Some(forbidden) = forbidden(&new.url) {
        eprintln!(
            "note: workers refuse {} ({}) unless they are started with --allow-network {}",
            forbidden.addr, forbidden.reason, forbidden.range
        );
    }
    Ok(exit)
}

fn understand(args: Args) -> anyhow::Result<NewEndpoint> {
    let url = args.url.or(args.url_flag).unwrap_or_default();
    check_url(&url)?;
    Ok(NewEndpoint {
        name: args.name,
        url,
        policy: args.policy,
        max_retries: args.max_retries,
        timeout_seconds: args.timeout,
        max_in_flight: args.max_in_flight,
        rate_limit: args.rate_limit,
        headers: value::headers(&args.headers)?,
        scheme: args.scheme,
        signature_header: args.signature_header,
        method: args.method,
        event_types: args.event_types,
        tenant: args.tenant,
        filter: args.filter,
        order: if args.ordered {
            Order::ById
        } else {
            Order::None
        },
        // An empty variable is an unset one.
        secret: args.secret.filter(|secret| !secret.is_empty()),
    })
}

/// The address in the URL, if it is one that workers refuse by themselves. What a name resolves to is theirs to find out.
fn forbidden(url: &str) -> Option<Forbidden> {
    let address: IpAddr = match Url::parse(url).ok()?.host()? {
        Host::Ipv4(v4) => v4.into(),
        Host::Ipv6(v6) => v6.into(),
        Host::Domain("localhost") => Ipv4Addr::LOCALHOST.into(),
        Host::Domain(_) => return None,
    };
    Guard::default().judge(address).err()
}

/// The table takes any text, and a try would end as unbuildable; better said now. Never quotes the URL.
fn check_url(url: &str) -> Result<(), Failure> {
    let wrong = |what: String| Failure::usage(what, "write it like https://shop.example/webhooks");
    let parsed =
        Url::parse(url).map_err(|error| wrong(format!("the URL cannot be used: {error}")))?;
    match parsed.scheme() {
        "http" | "https" => Ok(()),
        other => Err(wrong(format!("the URL must be http or https, not {other}"))),
    }
}
