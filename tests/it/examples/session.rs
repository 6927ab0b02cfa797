//! One reader's shell: a page's commands pasted into it, and what then stands in the database.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process_group};
use standardwebhooks::Webhook;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Receives;
use super::page::Page;
use super::runtime::Runtime;
use crate::support::{Database, SOON, Worker, wait_until};

/// What a compiler may need first, on a machine that does much else.
const LONG: Duration = Duration::from_secs(180);

/// How the names of variables begin that a reader's shell does not have. A Cargo that found those of another would build
/// its dependencies anew.
const NOT_THE_READERS: [&str; 4] = ["PG", "POSTRIDER_", "CARGO_PKG_", "CARGO_MANIFEST_"];

/// An event as it was queued, or as it was received.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    pub(super) event_type: String,
    pub(super) body: String,
}

/// What the receiver has in its tables.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) seen: Vec<String>,
    pub(super) events: Vec<Event>,
}

/// A worker and the receiver, as the page starts them; both end with it.
pub(super) struct Session {
    runtime: Runtime,
    database: Database,
    port: u16,
    send: String,
    // Dropped before the rest.
    running: Group,
}

impl Session {
    /// Pastes what is under "Receive", and waits until somebody listens.
    pub(super) async fn start(page: &Page, runtime: Runtime) -> Self {
        // The programs make tables of their own.
        let database = Database::private().await;
        let port = free_port();
        let mut shell = shell(&database, port, &runtime);
        shell
            .args(["-ec", &format!("{}wait", page.commands("Receive"))])
            .process_group(0);
        let session = Self {
            send: page.commands("Send"),
            running: Group(Worker::run(shell)),
            runtime,
            database,
            port,
        };
        let look = async || {
            let reached = TcpStream::connect(session.address()).await.is_ok();
            (reached, session.running.0.said())
        };
        wait_until("somebody listens", look, |(reached, _)| *reached, LONG).await;
        session
    }

    /// Pastes what is under "Send".
    pub(super) async fn send(&self) {
        let mut shell = shell(&self.database, self.port, &self.runtime);
        shell.args(["-ec", &self.send]);
        let output = tokio::process::Command::from(shell)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = timeout(LONG, output)
            .await
            .expect("the producer ends")
            .expect("a shell runs");
        assert!(output.status.success(), "{output:?}");
    }

    pub(super) async fn wait_until_delivered(&self, count: i64) {
        let look = async || {
            let states = "select coalesce(json_agg(json_build_array(event_id, status, last_status_code, last_error))::text, '') \
                            from postrider.deliveries";
            let delivered =
                "select count(*) filter (where status = 'delivered') = count(*) and count(*) = ";
            let done: bool = self
                .database
                .value(&format!("{delivered} {count} from postrider.deliveries"))
                .await;
            (done, self.database.value::<String>(states).await)
        };
        wait_until("all is delivered", look, |(done, _)| *done, SOON).await;
    }

    /// What was queued, sorted.
    pub(super) async fn sent(&self) -> Vec<Event> {
        self.events(
            "select d.event_type, coalesce(d.payload, e.payload)::text
               from postrider.deliveries d left join postrider.events e on e.id = d.event",
        )
        .await
    }

    /// What the receiver worked on, sorted.
    pub(super) async fn received(&self) -> Vec<Event> {
        self.events("select event_type, body from received_events")
            .await
    }

    pub(super) async fn bodies_of(&self, event_type: &str) -> Vec<String> {
        let mut events = self.received().await;
        events.retain(|event| event.event_type == event_type);
        events.into_iter().map(|event| event.body).collect()
    }

    /// What a receiver with tables has in them; of one without, nothing is known.
    pub(super) async fn kept(&self, receives: Receives) -> Kept {
        let mut kept = Kept {
            seen: Vec::new(),
            events: Vec::new(),
        };
        if receives == Receives::IntoTables {
            let ids = "select coalesce(array_agg(webhook_id order by webhook_id), '{}') from seen_webhooks";
            kept.seen = self.database.value(ids).await;
            kept.events = self.received().await;
        }
        kept
    }

    pub(super) async fn orders(&self) -> i64 {
        self.database.value("select count(*) from orders").await
    }

    /// The status code of the answer.
    pub(super) async fn post(&self, post: &Post) -> u16 {
        let secret = self.database.secret("crm").await;
        let request = post.request(&secret);
        let exchange = async {
            let mut connection = TcpStream::connect(self.address()).await?;
            connection.write_all(&request).await?;
            let mut answer = Vec::new();
            connection.read_to_end(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        let answer = timeout(SOON, exchange)
            .await
            .expect("it answers")
            .unwrap_or_else(|error| panic!("{error}: {}", self.running.0.said()));
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        status.unwrap_or_else(|| panic!("{answer:?}: {}", self.running.0.said()))
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    async fn events(&self, query: &str) -> Vec<Event> {
        let rows = self.database.client().query(query, &[]).await;
        let mut events: Vec<Event> = rows
            .unwrap_or_else(|error| panic!("{error:?}"))
            .iter()
            .map(|row| Event {
                event_type: row.try_get(0).expect("text"),
                body: row.try_get(1).expect("text"),
            })
            .collect();
        events.sort();
        events
    }
}

/// One request as a sender makes it, or somebody who would like to be one.
#[derive(Clone)]
pub(super) struct Post {
    id: String,
    id_sent: Option<String>,
    body: String,
    body_sent: Option<String>,
    secret: Option<String>,
    age: i64,
    age_sent: Option<i64>,
    left_out: Option<&'static str>,
    version: &'static str,
    other_signatures: &'static str,
}

impl Post {
    /// Signed with the endpoint's secret, now.
    pub(super) fn new(id: &str, body: &str) -> Self {
        Self {
            id: id.to_owned(),
            id_sent: None,
            body: body.to_owned(),
            body_sent: None,
            secret: None,
            age: 0,
            age_sent: None,
            left_out: None,
            version: "v1",
            other_signatures: "",
        }
    }

    pub(super) fn body(&self) -> String {
        self.body.clone()
    }

    /// The body is another one than was signed.
    pub(super) fn body_sent(mut self, body: &str) -> Self {
        self.body_sent = Some(body.to_owned());
        self
    }

    /// The id is another one than was signed.
    pub(super) fn id_sent(mut self, id: &str) -> Self {
        self.id_sent = Some(id.to_owned());
        self
    }

    pub(super) fn secret(mut self, secret: &str) -> Self {
        self.secret = Some(secret.to_owned());
        self
    }

    /// Signed so long ago; negative: in the future.
    pub(super) fn age_seconds(mut self, age: i64) -> Self {
        self.age = age;
        self
    }

    /// The timestamp is another one than was signed.
    pub(super) fn age_sent(mut self, age: i64) -> Self {
        self.age_sent = Some(age);
        self
    }

    pub(super) fn without(mut self, header: &'static str) -> Self {
        self.left_out = Some(header);
        self
    }

    pub(super) fn signature_of_version(mut self, version: &'static str) -> Self {
        self.version = version;
        self
    }

    /// With the signatures of secrets that the receiver does not know in front.
    pub(super) fn signed_twice(mut self) -> Self {
        self.other_signatures = "v1a,AAAA v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4= ";
        self
    }

    fn request(&self, secret: &str) -> Vec<u8> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        let now = i64::try_from(now.as_secs()).expect("not that late");
        let secret = self.secret.as_deref().unwrap_or(secret);
        let signature = Webhook::new(secret)
            .expect("a secret")
            .sign(&self.id, now - self.age, self.body.as_bytes())
            .expect("it can be signed");
        let signature = signature.replacen("v1", self.version, 1);
        let id = self.id_sent.as_ref().unwrap_or(&self.id);
        let timestamp = now - self.age_sent.unwrap_or(self.age);
        let body = self.body_sent.as_ref().unwrap_or(&self.body);

        let headers = [
            ("host", "localhost".to_owned()),
            ("connection", "close".to_owned()),
            ("content-type", "application/json".to_owned()),
            ("content-length", body.len().to_string()),
            ("webhook-id", id.clone()),
            ("webhook-timestamp", timestamp.to_string()),
            (
                "webhook-signature",
                format!("{}{signature}", self.other_signatures),
            ),
        ];
        let mut request = "POST / HTTP/1.1\r\n".to_owned();
        for (name, value) in headers {
            if self.left_out != Some(name) {
                request.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        request.push_str("\r\n");
        request.push_str(body);
        request.into_bytes()
    }
}

/// What a shell started, children of children included.
struct Group(Worker);

impl Drop for Group {
    fn drop(&mut self) {
        // The shell has not been waited for, so the number is still its group's.
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            kill_process_group(group, Signal::KILL).ok();
        }
    }
}

/// A shell with the reader's surroundings: the database, the program on the path, and a port that is free.
fn shell(database: &Database, port: u16, runtime: &Runtime) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_postrider"));
    let programs = program.parent().expect("a folder").display();
    let mut shell = Command::new("sh");
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if NOT_THE_READERS.iter().any(|start| name.starts_with(start)) {
            shell.env_remove(&*name);
        }
    }
    let (before, path): (Vec<_>, Vec<_>) = runtime
        .environment
        .iter()
        .partition(|(name, _)| *name != "PATH");
    let path = match path.first() {
        Some((_, path)) => path.clone(),
        None => super::runtime::path(),
    };
    shell
        .current_dir(&runtime.folder)
        .envs(before.iter().map(|(name, value)| (name, value)))
        .env("PATH", format!("{programs}:{path}"))
        .env("DATABASE_URL", database.url())
        // One driver takes a server without TLS only then.
        .env("PGSSLMODE", "disable")
        .env("PORT", port.to_string());
    shell
}

/// A port below those that the system gives to clients, so that nobody has it by chance when the receiver takes it.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 10_000).expect("below 10,000");
    for _ in 0..1_000 {
        let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port")
}
