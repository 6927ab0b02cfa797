//! A receiver on port 0 that keeps every request byte for byte and answers as told, well-formed or not.
//!
//! It speaks HTTP/1.1 over raw sockets, so that a reply can be cut, stall, be reset, never end, or be no HTTP at all.
//!
//!     let receiver = Receiver::start().await;
//!     receiver.script([Script::status(503), Script::status(200)]);
//!     ... send to receiver.url("/hook") ...
//!     let [first, second] = receiver.wait_for_requests(2).await.try_into().unwrap();
//!
//! Each request takes the next script; when none is left, the answer is `200` with an empty body.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::PATIENCE;

/// What the receiver does with one request that it has read; see the constructors and `then_` methods.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    steps: Vec<Step>,
}

/// Holds replies back until it is opened.
#[derive(Clone, Debug)]
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    /// A closed one.
    pub(crate) fn closed() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Lets everything through, from now on.
    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Wait(Gate),
    Write(Vec<u8>),
    Endless(Vec<u8>),
    Stall,
    Close,
    Reset,
}

impl Script {
    /// These bytes and nothing else; the connection stays open.
    pub(crate) fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self::default().then(Step::Write(bytes.as_ref().to_vec()))
    }

    /// A status with an empty body.
    pub(crate) fn status(status: u16) -> Self {
        Self::reply(status, &[], b"")
    }

    /// A whole reply.
    pub(crate) fn reply(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Self {
        let headers: String = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        // These two have no body by definition; a length would be a lie.
        let length = match status {
            204 | 304 => String::new(),
            _ => format!("content-length: {}\r\n", body.len()),
        };

        Self::raw(
            [
                format!("HTTP/1.1 {status} Scripted\r\n{headers}{length}\r\n").as_bytes(),
                body,
            ]
            .concat(),
        )
    }

    /// The same, but not before the gate is open.
    pub(crate) fn behind(mut self, gate: &Gate) -> Self {
        self.steps.insert(0, Step::Wait(gate.clone()));
        self
    }

    /// No answer at all while the client waits.
    pub(crate) fn silence() -> Self {
        Self::default().then_stall()
    }

    /// The connection is closed without an answer.
    pub(crate) fn hang_up() -> Self {
        Self::default().then_close()
    }

    pub(crate) fn then_write(self, bytes: impl AsRef<[u8]>) -> Self {
        self.then(Step::Write(bytes.as_ref().to_vec()))
    }

    /// `bytes` over and over, as fast as the client takes them, until it hangs up.
    pub(crate) fn then_endlessly(self, bytes: impl AsRef<[u8]>) -> Self {
        self.then(Step::Endless(bytes.as_ref().to_vec()))
    }

    /// Silence until the client hangs up.
    pub(crate) fn then_stall(self) -> Self {
        self.then(Step::Stall)
    }

    /// An orderly end of the connection (FIN).
    pub(crate) fn then_close(self) -> Self {
        self.then(Step::Close)
    }

    /// A sudden end of the connection (RST).
    pub(crate) fn then_reset(self) -> Self {
        self.then(Step::Reset)
    }

    fn then(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }
}

/// One request as it came over the wire.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// Request line and headers with the empty line that ends them.
    pub(crate) head: Vec<u8>,
    /// As many bytes as Content-Length says.
    pub(crate) body: Vec<u8>,
    /// Which connection it came on, counted from 0.
    pub(crate) connection: u64,
    /// The host name that the TLS handshake asked for (SNI).
    pub(crate) server_name: Option<String>,
}

impl Received {
    /// For example `POST /hook HTTP/1.1`.
    pub(crate) fn request_line(&self) -> String {
        self.head_text()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    }

    /// The values of the header `name` (any case), in order.
    pub(crate) fn header(&self, name: &str) -> Vec<String> {
        values(&self.head, name)
    }

    /// The header names in lower case, in order.
    pub(crate) fn header_names(&self) -> Vec<String> {
        let head = self.head_text();
        let names = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        names.map(|(name, _)| name.to_ascii_lowercase()).collect()
    }

    fn head_text(&self) -> String {
        String::from_utf8_lossy(&self.head).into_owned()
    }
}

fn values(head: &[u8], name: &str) -> Vec<String> {
    String::from_utf8_lossy(head)
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .filter(|(key, _)| key.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim().to_owned())
        .collect()
}

/// Runs until it is dropped; its port is then closed, and so are its connections.
pub(crate) struct Receiver {
    addr: SocketAddr,
    scheme: &'static str,
    state: Arc<State>,
    acceptor: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    scripts: Mutex<VecDeque<Script>>,
    requests: watch::Sender<Vec<Received>>,
    connections: AtomicU64,
    open: watch::Sender<usize>,
    bytes_sent: AtomicU64,
}

impl Receiver {
    /// On 127.0.0.1, without TLS.
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address")).await
    }

    /// At a given address, for a receiver that comes back where another one went.
    pub(crate) async fn start_at(addr: SocketAddr) -> Self {
        Self::run(TcpListener::bind(addr).await.expect("a free port"), None)
    }

    /// On 127.0.0.1, with TLS.
    pub(crate) async fn start_tls(tls: TlsAcceptor) -> Self {
        Self::run(
            TcpListener::bind("127.0.0.1:0").await.expect("a free port"),
            Some(tls),
        )
    }

    fn run(listener: TcpListener, tls: Option<TlsAcceptor>) -> Self {
        let state = Arc::new(State::default());
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let acceptor = tokio::spawn(accept(listener, tls, Arc::clone(&state)));

        Self {
            addr,
            scheme,
            state,
            acceptor,
        }
    }

    /// Ends it, and returns when its port refuses connections.
    pub(crate) async fn stop(mut self) {
        self.acceptor.abort();
        let ended = (&mut self.acceptor).await;
        assert!(
            ended.is_err_and(|error| error.is_cancelled()),
            "it runs until it is stopped"
        );
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// By address; `path` begins with a slash.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.addr)
    }

    /// By name, which the client under test must resolve to this address.
    pub(crate) fn url_of(&self, host: &str, path: &str) -> String {
        format!("{}://{host}:{}{path}", self.scheme, self.addr.port())
    }

    /// Answers the next requests, in this order.
    pub(crate) fn script(&self, scripts: impl IntoIterator<Item = Script>) {
        self.state
            .scripts
            .lock()
            .expect("no test panics with it")
            .extend(scripts);
    }

    /// All requests so far, in the order in which they were read to their end.
    pub(crate) fn requests(&self) -> Vec<Received> {
        self.state.requests.borrow().clone()
    }

    /// All requests as soon as there are `count`.
    ///
    /// Panics after [`PATIENCE`] with what has come by then.
    pub(crate) async fn wait_for_requests(&self, count: usize) -> Vec<Received> {
        let mut requests = self.state.requests.subscribe();
        let enough = requests.wait_for(|all| all.len() >= count);

        match tokio::time::timeout(PATIENCE, enough).await {
            Ok(all) => all.expect("the state outlives its receiver").clone(),
            Err(_) => panic!(
                "{count} requests were awaited, these came: {:#?}",
                self.requests()
            ),
        }
    }

    /// Returns when no connection is open any more, so that whatever is counted is final.
    pub(crate) async fn wait_until_deserted(&self) {
        let mut open = self.state.open.subscribe();
        let deserted = open.wait_for(|count| *count == 0);

        let _none = tokio::time::timeout(PATIENCE, deserted)
            .await
            .unwrap_or_else(|_| panic!("{} connections are still open", *self.state.open.borrow()))
            .expect("the state outlives its receiver");
    }

    /// Connections made so far; one that never sent a request counts too.
    pub(crate) fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Bytes that went into sockets so far, TLS and receive buffers of the peer aside.
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.state.bytes_sent.load(Ordering::SeqCst)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, state: Arc<State>) {
    // Dropped with this task, and every connection with it.
    let mut connections = tokio::task::JoinSet::new();

    loop {
        let Ok((socket, _)) = listener.accept().await else {
            continue;
        };
        let number = state.connections.fetch_add(1, Ordering::SeqCst);
        let (tls, state) = (tls.clone(), Arc::clone(&state));
        state.open.send_modify(|open| *open += 1);
        connections.spawn(async move {
            // A connection that breaks is what many tests are about.
            let _ended: io::Result<()> = match tls {
                None => serve(socket, number, &state).await,
                Some(tls) => match tls.accept(socket).await {
                    Ok(stream) => serve(stream, number, &state).await,
                    Err(error) => Err(error),
                },
            };
            state.open.send_modify(|open| *open -= 1);
        });
    }
}

trait Wire: AsyncRead + AsyncWrite + Unpin {
    fn socket(&self) -> &TcpStream;
    fn server_name(&self) -> Option<String>;
}

impl Wire for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }

    fn server_name(&self) -> Option<String> {
        None
    }
}

impl Wire for TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }

    fn server_name(&self) -> Option<String> {
        self.get_ref().1.server_name().map(str::to_owned)
    }
}

async fn serve(mut wire: impl Wire, connection: u64, state: &State) -> io::Result<()> {
    let mut buffer = Vec::new();

    while let Some((head, body)) = read_request(&mut wire, &mut buffer).await? {
        let server_name = wire.server_name();
        state.requests.send_modify(|all| {
            all.push(Received {
                head,
                body,
                connection,
                server_name,
            })
        });
        let next = state
            .scripts
            .lock()
            .expect("no test panics with it")
            .pop_front();

        for step in next.unwrap_or_else(|| Script::status(200)).steps {
            match step {
                Step::Wait(gate) => {
                    let mut open = gate.0.subscribe();
                    // The step holds the gate itself, so it cannot go away.
                    drop(open.wait_for(|open| *open).await);
                }
                Step::Write(bytes) => write(&mut wire, &bytes, state).await?,
                Step::Endless(bytes) => loop {
                    write(&mut wire, &bytes, state).await?;
                },
                Step::Stall => return until_the_client_leaves(&mut wire).await,
                Step::Close => return wire.shutdown().await,
                Step::Reset => return wire.socket().set_zero_linger(),
            }
        }
    }
    Ok(())
}

async fn write(wire: &mut impl Wire, bytes: &[u8], state: &State) -> io::Result<()> {
    wire.write_all(bytes).await?;
    wire.flush().await?;
    state
        .bytes_sent
        .fetch_add(u64::try_from(bytes.len()).expect("fits"), Ordering::SeqCst);
    Ok(())
}

async fn until_the_client_leaves(wire: &mut impl Wire) -> io::Result<()> {
    let mut sink = [0; 1024];
    while wire.read(&mut sink).await? > 0 {}
    Ok(())
}

/// One request, or `None` at an orderly end between requests. `buffer` keeps what came after it.
async fn read_request(
    wire: &mut impl Wire,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let head_len = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if wire.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head: Vec<u8> = buffer.drain(..head_len).collect();

    let length = values(&head, "content-length")
        .first()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    while buffer.len() < length {
        if wire.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Some((head, buffer.drain(..length).collect())))
}

/// An address where connections are neither accepted nor refused: the queue of its listener is full.
pub(crate) struct BlackHole {
    addr: SocketAddr,
    _listener: std::net::TcpListener,
    _queued: Vec<TcpStream>,
}

impl BlackHole {
    /// On 127.0.0.1.
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address")).await
    }

    /// At a given address, for one beside a live receiver.
    pub(crate) async fn start_at(addr: SocketAddr) -> Self {
        let socket = match addr {
            SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4(),
            SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6(),
        }
        .expect("a socket");
        socket.bind(addr).expect("a free port");
        let listener = socket
            .listen(0)
            .expect("a listener")
            .into_std()
            .expect("a plain listener");
        let addr = listener
            .local_addr()
            .expect("a bound socket has an address");

        // The kernel drops what finds the queue full, so the first connection that gets no answer proves it.
        let mut queued = Vec::new();
        while let Ok(Ok(stream)) =
            tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(addr)).await
        {
            queued.push(stream);
        }
        Self {
            addr,
            _listener: listener,
            _queued: queued,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.addr)
    }
}
