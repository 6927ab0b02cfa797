//! `postrider dev`: a database that stays, a worker and a receiver, for as long as somebody tries things out.
#![allow(clippy::print_stdout, reason = "a subcommand's results and next steps")]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::mpsc;

use super::children::{Child, Recipe, Source};
use super::listen::Stops;
use super::private::{self, Port, ServerArgs};
use super::{Exit, Failure};
use crate::cluster::{self, Cluster, Data};
use crate::store::simple::{self, quoted};

/// Where the receiver listens if that is free and nothing else was asked for; as `postrider listen` does.
const USUAL_PORT: u16 = 9000;

/// How long the receiver may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

const WORKER: [&str; 11] = [
    "worker",
    "--name",
    "dev",
    "--allow-network",
    "127.0.0.0/8",
    "--lease-margin",
    "3s",
    "--poll-interval",
    "500ms",
    "--grace",
    "6s",
];

/// Settings of `postrider dev`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Where the database is kept [default: ~/.local/share/postrider/dev, or /var/lib/postrider/dev for root]
    #[arg(long, value_name = "DIR", env = "POSTRIDER_DEV_DATA")]
    data: Option<PathBuf>,
    /// Port of the receiver on 127.0.0.1 [default: 9000, or a free one]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Let the receiver fail on purpose: it answers CODE, always or as --times says
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(u16).range(200..=599))]
    fail: Option<u16>,
    /// Fail only the first N tries of each event
    #[arg(long, value_name = "N", requires = "fail")]
    times: Option<u64>,
    /// Keep everything: do not remove what is older than postrider.retention says
    #[arg(long)]
    no_prune: bool,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let mut stops = Stops::new()?;
    let binaries = args.server.binaries()?;
    let folder = match &args.data {
        Some(folder) => folder.clone(),
        None => cluster::usual_folder("dev").map_err(private::failure)?,
    };
    println!("starting PostgreSQL {} ...", binaries.major());
    let cluster = private::start(Data::Kept(folder), binaries).await?;
    let mut dev = Dev {
        args,
        url: private::url(&cluster),
        worker: None,
        receiver: None,
    };

    let worked = tokio::select! {
        biased;
        () = stops.next() => Ok(()),
        worked = dev.work(&cluster) => worked,
    };
    println!("\nstopping ...");
    let ended = dev.end().await;
    let folder = cluster.folder().display().to_string();
    let stopped = private::stop(cluster).await;
    worked.and(ended).and(stopped)?;
    println!("stopped; the rows stay in {folder}");
    Ok(Exit::Done)
}

struct Dev {
    args: Args,
    url: String,
    worker: Option<Child>,
    receiver: Option<Child>,
}

impl Dev {
    /// Sets everything up, says how to use it, and returns when something ends that should not.
    async fn work(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let client = private::open(&self.url).await?;
        let port = self.take_port()?;
        simple::run(&client, &endpoint(&port)).await?;
        let secrets = simple::run(
            &client,
            "select secret from postrider.endpoint_secrets where endpoint = 'dev' and coalesce(expires_at > now(), true)",
        )
        .await?
        .first_column()
        .join(",");
        let waiting = simple::run(
            &client,
            "select count(*) from postrider.deliveries where next_retry is not null",
        )
        .await?;
        drop(client);

        let receiver = self.start_receiver(&port, &secrets).await?;
        println!("{}", welcome(&self.url, cluster, &receiver));
        if let Some(waiting) = waiting.value().filter(|count| *count != "0") {
            println!(
                "{waiting} deliveries of earlier are still open; they go on when they are due.\n"
            );
        }
        let mut arguments = WORKER.to_vec();
        if self.args.no_prune {
            arguments.push("--no-prune");
        }
        self.worker = Some(Child::start(
            Recipe {
                arguments: &arguments,
                environment: &[("POSTRIDER_DATABASE_URL", &self.url)],
            },
            |_, line| println!("worker   | {line}"),
        )?);
        self.until_one_ends().await
    }

    fn take_port(&self) -> anyhow::Result<Port> {
        let busy = |port: u16, error: std::io::Error| {
            Failure::new(
                Exit::Failures,
                format!("cannot listen on 127.0.0.1:{port}: {error}"),
                "give another --port; without it a free one is taken",
            )
        };
        match self.args.port {
            Some(port) => Port::take(port).map_err(|error| busy(port, error).into()),
            None => Port::take(USUAL_PORT)
                .or_else(|_| Port::take(0))
                .map_err(|error| busy(0, error).into()),
        }
    }

    /// Returns where it listens.
    async fn start_receiver(&mut self, port: &Port, secrets: &str) -> anyhow::Result<String> {
        let address = port.address().to_string();
        let (fail, times) = (
            self.args.fail.map(|code| code.to_string()),
            self.args.times.map(|times| times.to_string()),
        );
        let mut arguments = vec!["listen", "--bind", &address];
        for (flag, value) in [("--fail", &fail), ("--times", &times)] {
            if let Some(value) = value {
                arguments.extend([flag, value]);
            }
        }
        let (listens, mut address) = mpsc::unbounded_channel();
        let receiver = Child::start(
            Recipe {
                arguments: &arguments,
                environment: &[("POSTRIDER_LISTEN_SECRETS", secrets)],
            },
            move |source, line| match private::listening_on(line) {
                // Nobody waits for it any more when the start was given up.
                Some(address) if source == Source::Stderr => {
                    listens.send(address.to_owned()).ok();
                }
                Some(_) | None => println!("receiver | {line}"),
            },
        )?;
        let receiver = self.receiver.insert(receiver);
        tokio::select! {
            Some(address) = address.recv() => Ok(address),
            ended = receiver.ended() => Err(ended_by_itself("receiver", &ended?.to_string())),
            () = tokio::time::sleep(PATIENCE) => Err(ended_by_itself("receiver", "no sign of life")),
        }
    }

    async fn until_one_ends(&mut self) -> anyhow::Result<()> {
        let worker = self.worker.as_mut().context("the worker was started")?;
        let receiver = self.receiver.as_mut().context("the receiver was started")?;
        Err(tokio::select! {
            ended = worker.ended() => ended_by_itself("worker", &ended?.to_string()),
            ended = receiver.ended() => ended_by_itself("receiver", &ended?.to_string()),
        })
    }

    /// The worker first, so that its last tries find a receiver.
    async fn end(&mut self) -> anyhow::Result<()> {
        for child in [self.worker.take(), self.receiver.take()]
            .into_iter()
            .flatten()
        {
            child.end().await?;
        }
        Ok(())
    }
}

fn ended_by_itself(name: &str, how: &str) -> anyhow::Error {
    Failure::new(
        Exit::Failures,
        format!("the {name} has ended by itself ({how})"),
        "its lines above say why; start `postrider dev` again when that is mended",
    )
    .into()
}

/// Run at every start: the URL follows the port, everything else stays as the user may have changed it.
fn endpoint(port: &Port) -> String {
    let url = quoted(&format!("http://{}/", port.address()));
    format!(
        "insert into postrider.retry_policies (name, kind, delays, jitter, max_retries) \
         values ('dev', 'schedule', '{{2 s,5 s,15 s,1 min}}', 0.1, 6) on conflict (name) do nothing; \
         insert into postrider.endpoints as e (name, url, retry_policy, timeout) \
         values ('dev', {url}, 'dev', '5 s') \
         on conflict (name) do update set url = excluded.url where e.url <> excluded.url"
    )
}

fn welcome(url: &str, cluster: &Cluster, receiver: &str) -> String {
    format!(
        "
Ready. It runs until you press Ctrl-C; the rows stay.

  database   {url}
  data       {}
  receiver   {receiver}  (endpoint 'dev'; checks every signature)

Put an event in, from another terminal:

  db='{url}'
  psql \"$db\" -c \"
    insert into postrider.deliveries (endpoint, event_type, payload)
    values ('dev', 'order.paid',
            json_build_object('type', 'order.paid', 'order', 1))\"

What became of it, and every try that was made:

  psql \"$db\" -c \"
    select id, status, attempt_count, last_error, next_retry
      from postrider.deliveries order by id desc limit 10\"
  psql \"$db\" -c \"
    select delivery_id, attempt_no, outcome, status_code, duration_ms, error
      from postrider.attempts order by started_at desc limit 10\"

See retries: stop it, and start `postrider dev --fail 503 --times 2`.
",
        cluster.folder().display()
    )
}
