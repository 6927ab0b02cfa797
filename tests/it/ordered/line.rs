use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postrider::attempt::Next;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{claim, queue, record};
use crate::support::{Database, SOON, Worker, tell, wait_until};

/// A receiver that notes in which order ids come, and whether two requests were ever under way at once.
#[derive(Default)]
struct Gatekeeper {
    seen: Mutex<Vec<String>>,
    inside: AtomicUsize,
    crowded: AtomicBool,
    /// Whether a third of the requests is refused or hung up on, by lot.
    moody: bool,
    lot: AtomicU64,
}

impl Gatekeeper {
    async fn start(seed: Option<u64>) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/", listener.local_addr().expect("bound"));
        let gatekeeper = Arc::new(Self {
            moody: seed.is_some(),
            lot: AtomicU64::new(seed.unwrap_or_default()),
            ..Self::default()
        });
        let accepting = Arc::clone(&gatekeeper);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, Arc::clone(&accepting)));
            }
        });
        (gatekeeper, url)
    }

    /// The ids in the order in which they came, repeats right after one another told once.
    fn order(&self) -> Vec<String> {
        let mut order = self.seen.lock().expect("nobody panics with it").clone();
        order.dedup();
        order
    }

    fn requests(&self) -> usize {
        self.seen.lock().expect("nobody panics with it").len()
    }

    /// 0 to 5, from the seed on.
    fn draw(&self) -> u64 {
        let step = |x: u64| {
            x.wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407)
        };
        let before = self
            .lot
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |x| Some(step(x)));
        (step(before.expect("always some")) >> 33) % 6
    }
}

async fn serve(mut socket: TcpStream, gatekeeper: Arc<Gatekeeper>) {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            // Bodies are `{}`.
            if let Some(at) = buffer.windows(6).position(|window| window == b"\r\n\r\n{}") {
                break at + 6;
            }
            if !matches!(socket.read_buf(&mut buffer).await, Ok(1..)) {
                return;
            }
        };
        let request: Vec<u8> = buffer.drain(..end).collect();
        if gatekeeper.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            gatekeeper.crowded.store(true, Ordering::SeqCst);
        }
        let text = String::from_utf8_lossy(&request);
        let id = text
            .lines()
            .find_map(|line| line.strip_prefix("webhook-id: "));
        let id = id.unwrap_or_default().to_owned();
        gatekeeper
            .seen
            .lock()
            .expect("nobody panics with it")
            .push(id);
        // A receiver's work takes a moment, in which another request would be seen.
        tokio::time::sleep(Duration::from_millis(1)).await;
        gatekeeper.inside.fetch_sub(1, Ordering::SeqCst);
        let status = match if gatekeeper.moody {
            gatekeeper.draw()
        } else {
            5
        } {
            0 => 500,
            1 => return,
            _ => 200,
        };
        let reply = format!("HTTP/1.1 {status} Told\r\ncontent-length: 0\r\n\r\n");
        if socket.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// An endpoint that retries at once, and its deliveries with event ids that say their place.
async fn line_up(database: &Database, url: &str, count: usize) -> Vec<String> {
    database
        .sql("insert into postrider.retry_policies (name, kind, delays, max_retries, jitter) values ('at-once', 'schedule', '{10 ms}', 1000, 0)")
        .await;
    database
        .endpoint("line", url)
        .set("ordered", true)
        .set("retry_policy", "at-once")
        .set("timeout", "1 s")
        .await;
    database
        .sql(&format!(
            "insert into postrider.deliveries (endpoint, event_type, event_id, payload)
             select 'line', 't', 'evt_' || n, '{{}}' from generate_series(1, {count}) n"
        ))
        .await;
    (1..=count).map(|n| format!("evt_{n}")).collect()
}

async fn left(database: &Database) -> i64 {
    database
        .value("select count(*) from postrider.deliveries where status <> 'delivered'")
        .await
}

#[tokio::test]
async fn four_workers_keep_the_order_through_failures_and_deaths() {
    let database = Database::fresh().await;
    let seed: u64 = rand::random();
    tell(&format!("seed {seed}"));
    let (gatekeeper, url) = Gatekeeper::start(Some(seed)).await;
    let ids = line_up(&database, &url, 300).await;
    let spawn = || {
        Worker::spawn(
            &database,
            &["--poll-interval", "50ms", "--lease-margin", "1s"],
        )
    };
    let mut workers: Vec<_> = (0..4).map(|_| spawn()).collect();

    for death in 1..=3 {
        let far_enough = async || gatekeeper.requests();
        let enough = death * 60;
        wait_until("they get on", far_enough, |n| *n >= enough, SOON).await;
        // Whoever has the lane: its lease has to run out.
        let name: Option<String> = database
            .value("select max(leased_by) from postrider.deliveries where lease_expires_at > now()")
            .await;
        let pids: Vec<String> = workers.iter().map(|w| format!("-{}-", w.id())).collect();
        let holder = name.and_then(|name| pids.iter().position(|pid| name.contains(pid)));
        let victim = holder.unwrap_or(0);
        workers[victim].kill_9();
        workers[victim] = spawn();
    }
    let patience = SOON * 3;
    wait_until(
        "all arrived",
        async || left(&database).await,
        |n| *n == 0,
        patience,
    )
    .await;

    assert_eq!(gatekeeper.order(), ids, "seed {seed}");
    assert!(
        !gatekeeper.crowded.load(Ordering::SeqCst),
        "two at a time, seed {seed}"
    );
    let requests = gatekeeper.requests();
    assert!(
        requests > 360,
        "a third of them failed: {requests}, seed {seed}"
    );
}

#[tokio::test]
async fn the_next_one_goes_as_soon_as_a_result_is_on_record() {
    let database = Database::fresh().await;
    let (gatekeeper, url) = Gatekeeper::start(None).await;
    let ids = line_up(&database, &url, 200).await;
    let began = Instant::now();

    // A lane that waited for a poll would not get far.
    let _worker = Worker::spawn(&database, &["--poll-interval", "1h", "--no-listen"]);
    wait_until(
        "all arrived",
        async || left(&database).await,
        |n| *n == 0,
        SOON,
    )
    .await;

    let each = began.elapsed() / 200;
    tell(&format!("an ordered lane: {each:?} for each delivery"));
    assert_eq!(gatekeeper.order(), ids);
}

#[tokio::test]
async fn claims_at_the_same_moment_and_old_snapshots_break_no_order() {
    let database = Database::fresh().await;
    line_up(&database, "http://127.0.0.1:1/", 200).await;
    let taken = Arc::new(Mutex::new(Vec::new()));
    let inside = Arc::new(AtomicUsize::new(0));
    let ended = Arc::new(AtomicBool::new(false));

    let claimers: Vec<_> = (0..6)
        .map(|n| {
            let queue = queue(&database);
            let (taken, inside, ended) =
                (Arc::clone(&taken), Arc::clone(&inside), Arc::clone(&ended));
            tokio::spawn(async move {
                let mut turn = n;
                while !ended.load(Ordering::SeqCst) {
                    let got = claim(&queue).await;
                    let Some(one) = got.taken.first() else {
                        continue;
                    };
                    assert_eq!(got.taken.len(), 1);
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                    taken.lock().expect("no panic").push(one.delivery.id);
                    turn += 1;
                    let next = if turn % 2 == 0 {
                        Next::Retry(Duration::ZERO)
                    } else {
                        Next::Delivered
                    };
                    inside.fetch_sub(1, Ordering::SeqCst);
                    record(&queue, &got, one, next).await;
                }
            })
        })
        .collect();
    wait_until(
        "all are through",
        async || left(&database).await,
        |n| *n == 0,
        SOON * 2,
    )
    .await;
    ended.store(true, Ordering::SeqCst);
    for claimer in claimers {
        claimer.await.expect("its assertions held");
    }

    let mut order = taken.lock().expect("no panic").clone();
    assert!(order.len() > 250, "many were tried twice");
    order.dedup();
    assert!(order.is_sorted(), "{order:?}");
    assert_eq!(order.len(), 200);
}

#[tokio::test]
async fn many_ordered_endpoints_do_not_wait_for_each_other() {
    let database = Database::fresh().await;
    let (gatekeeper, url) = Gatekeeper::start(None).await;
    database
        .sql(&format!(
            "insert into postrider.endpoints (name, url, ordered) select 'e' || n, '{url}', true from generate_series(1, 100) n"
        ))
        .await;
    database
        .sql("insert into postrider.deliveries (endpoint, event_type, event_id, payload)
              select 'e' || e, 't', e || '-' || n, '{}' from generate_series(1, 100) e, generate_series(1, 20) n where e = 1 or n < 3")
        .await;

    let _worker = Worker::spawn(&database, &[]);

    wait_until(
        "all arrived",
        async || left(&database).await,
        |n| *n == 0,
        SOON,
    )
    .await;
    let order = gatekeeper.order();
    assert_eq!(order.len(), 218);
    let mut last = std::collections::HashMap::new();
    for id in order {
        let (endpoint, n) = id.split_once('-').expect("our own ids");
        let n: u32 = n.parse().expect("a number");
        let before = last.insert(endpoint.to_owned(), n).unwrap_or(0);
        assert_eq!(n, before + 1, "of endpoint {endpoint}");
    }
}
