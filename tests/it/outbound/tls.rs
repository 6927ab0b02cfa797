//! Receivers behind TLS.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Version};
use axum::routing::post as route_post;
use postrider::outbound::{Client, ClientError, Options, SystemRoots};
use postrider::reply::{Completeness, FailureKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::support::alone;
use crate::support::certificate::Certificate;
use crate::support::receiver::{Receiver, Script};

use super::{Names, client, failure, options, post, post_within, response};

fn trusting(certificate: &Certificate) -> Client {
    let lookup = Arc::new(Names::of("hook.example", &["127.0.0.1"]));
    let ca_files = vec![certificate.path().to_owned()];
    Client::new(Options {
        ca_files,
        lookup,
        ..options()
    })
    .unwrap()
}

#[tokio::test]
async fn c12_the_handshake_asks_for_the_name_and_checks_it() {
    let certificate = Certificate::of(&["hook.example"]);
    let receiver = Receiver::start_tls(certificate.acceptor(&["http/1.1"])).await;
    let client = trusting(&certificate);

    let named = post(&client, receiver.url_of("hook.example", "/")).await;
    let by_address = post(&client, receiver.url("/")).await;

    assert_eq!(named.remote_addr, Some(receiver.addr()));
    assert_eq!(response(named).status, 200);
    failure(by_address, FailureKind::Tls);
    let requests = receiver.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].server_name.as_deref(), Some("hook.example"));
}

#[tokio::test]
async fn c14_a_certificate_that_nobody_vouches_for_is_a_tls_failure() {
    let trusted = Certificate::of(&["elsewhere.example"]);
    let receiver = Receiver::start_tls(Certificate::of(&["hook.example"]).acceptor(&[])).await;

    let reply = post(&trusting(&trusted), receiver.url_of("hook.example", "/")).await;

    let failure = failure(reply, FailureKind::Tls);
    assert!(
        failure.message.contains("invalid peer certificate"),
        "{failure:?}"
    );
    assert!(!failure.message.contains("--ca-file"), "{failure:?}");
    assert_eq!(receiver.requests().len(), 0);
}

#[tokio::test]
async fn c17_without_any_ca_certificate_the_try_says_what_to_do() {
    let receiver = Receiver::start_tls(Certificate::of(&["127.0.0.1"]).acceptor(&[])).await;

    let failure = failure(post(&client(), receiver.url("/")).await, FailureKind::Tls);

    assert!(
        failure.message.contains("no CA certificates were found"),
        "{failure:?}"
    );
    assert!(failure.message.contains("--ca-file"), "{failure:?}");
}

#[tokio::test]
async fn c17_a_machine_without_a_ca_bundle_starts_all_the_same() {
    if let Some(url) = alone::argument() {
        let system_roots = SystemRoots::Load;
        let client = Client::new(Options {
            system_roots,
            ..options()
        })
        .unwrap();
        let failure = failure(post(&client, url).await, FailureKind::Tls);
        assert!(failure.message.contains("--ca-file"), "{failure:?}");
        return;
    }
    let receiver = Receiver::start_tls(Certificate::of(&["127.0.0.1"]).acceptor(&[])).await;
    let nowhere = ["SSL_CERT_FILE", "SSL_CERT_DIR"].map(|name| (name, "/nowhere".to_owned()));

    let test = "outbound::tls::c17_a_machine_without_a_ca_bundle_starts_all_the_same";
    alone::run(test, receiver.url("/"), &nowhere).await;

    assert_eq!(receiver.connections(), 1);
}

#[test]
fn c17_a_ca_file_that_is_of_no_use_is_named() {
    let mut no_pem = tempfile::NamedTempFile::new().unwrap();
    no_pem.write_all(b"not a certificate").unwrap();
    let mut bad_der = tempfile::NamedTempFile::new().unwrap();
    bad_der
        .write_all(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .unwrap();

    for path in [
        PathBuf::from("/nowhere/ca.pem"),
        no_pem.path().to_owned(),
        bad_der.path().to_owned(),
    ] {
        let error = Client::new(Options {
            ca_files: vec![path.clone()],
            ..options()
        })
        .unwrap_err();

        assert!(
            matches!(
                error,
                ClientError::CaFile { .. } | ClientError::CaCertificate { .. }
            ),
            "{error:?}"
        );
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
}

#[tokio::test]
async fn c14_a_receiver_that_speaks_no_tls_is_a_tls_failure() {
    // The handshake is no request, so nothing here is scripted: a listener that answers anything with plain HTTP.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        for reply in ["HTTP/1.1 400 Bad Request\r\n\r\n", ""] {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.read_u8().await.unwrap();
            socket.write_all(reply.as_bytes()).await.unwrap();
        }
    });

    for _ in 0..2 {
        failure(post(&client(), url.clone()).await, FailureKind::Tls);
    }
    server.await.unwrap();
}

#[tokio::test]
async fn a_handshake_that_stalls_ends_at_the_connect_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let client = Client::new(Options {
        connect_timeout: Duration::from_millis(300),
        ..options()
    })
    .unwrap();

    let reply = post(&client, url).await;

    assert!(
        reply.duration < Duration::from_secs(5),
        "{:?}",
        reply.duration
    );
    failure(reply, FailureKind::Connect);
}

#[tokio::test]
async fn a_plain_request_to_a_tls_port_is_a_protocol_failure() {
    let receiver = Receiver::start_tls(Certificate::of(&["127.0.0.1"]).acceptor(&[])).await;

    let reply = post(&client(), receiver.url("/").replace("https:", "http:")).await;

    failure(reply, FailureKind::Protocol);
}

#[tokio::test]
async fn c7_a_body_that_stalls_behind_tls_is_decided_by_its_status() {
    let certificate = Certificate::of(&["127.0.0.1"]);
    let receiver = Receiver::start_tls(certificate.acceptor(&["http/1.1"])).await;
    receiver.script([Script::raw("HTTP/1.1 202 OK\r\ncontent-length: 9\r\n\r\npart").then_stall()]);

    let reply = post_within(
        &trusting(&certificate),
        receiver.url("/"),
        Duration::from_secs(1),
    )
    .await;

    let response = response(reply);
    assert_eq!(
        (response.status, response.completeness),
        (202, Completeness::Truncated)
    );
}

/// axum over TLS, for HTTP/2: what came in, as version, headers and body.
struct Http2 {
    addr: SocketAddr,
    received: watch::Receiver<Vec<(Version, HeaderMap, Bytes)>>,
}

impl Http2 {
    async fn start(tls: TlsAcceptor) -> Self {
        let (sender, received) = watch::channel(Vec::new());
        let app = Router::new().route(
            "/",
            route_post(
                async move |version: Version, headers: HeaderMap, body: Bytes| {
                    sender.send_modify(|all: &mut Vec<_>| all.push((version, headers, body)));
                    "thanks"
                },
            ),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(TlsListener { listener, tls }, app).await });

        Self { addr, received }
    }
}

struct TlsListener {
    listener: TcpListener,
    tls: TlsAcceptor,
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (socket, peer) = self.listener.accept().await.unwrap();
            if let Ok(stream) = self.tls.accept(socket).await {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

#[tokio::test]
async fn http_2_is_spoken_when_the_receiver_offers_it() {
    let certificate = Certificate::of(&["127.0.0.1"]);
    let receiver = Http2::start(certificate.acceptor(&["h2", "http/1.1"])).await;
    let client = trusting(&certificate);
    let url = format!("https://{}/", receiver.addr);

    let (first, second) = tokio::join!(post(&client, url.clone()), post(&client, url));

    assert_eq!(first.remote_addr, Some(receiver.addr));
    for reply in [first, second] {
        let response = response(reply);
        assert_eq!((response.status, &response.body[..]), (200, &b"thanks"[..]));
        assert_eq!(response.completeness, Completeness::Whole);
    }
    let received = receiver.received.borrow().clone();
    assert_eq!(received.len(), 2);
    for (version, headers, body) in received {
        assert_eq!(version, Version::HTTP_2);
        assert_eq!(headers["content-length"], "2");
        assert_eq!(headers["webhook-id"], "evt_1");
        assert!(!headers.contains_key("accept-encoding"));
        assert_eq!(&body[..], b"{}");
    }
}

/// Answers the stream of every request with `REFUSED_STREAM`, which a client is allowed to try again by itself.
async fn refuse_streams(
    mut wire: TlsStream<TcpStream>,
    requests: watch::Sender<usize>,
) -> std::io::Result<()> {
    const HEADERS: u8 = 1;
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
    let mut preface = [0; 24];
    wire.read_exact(&mut preface).await?;
    wire.write_all(&SETTINGS).await?;

    loop {
        let mut frame = [0; 9];
        wire.read_exact(&mut frame).await?;
        let [a, b, c, kind, _flags, stream @ ..] = frame;
        let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap()];
        wire.read_exact(&mut payload).await?;
        if kind == HEADERS {
            requests.send_modify(|count| *count += 1);
            let reset = [&[0, 0, 4, 3, 0][..], &stream, &REFUSED_STREAM].concat();
            wire.write_all(&reset).await?;
            wire.flush().await?;
        }
    }
}

#[tokio::test]
async fn a_request_is_never_written_twice_when_an_http_2_stream_is_refused() {
    let certificate = Certificate::of(&["127.0.0.1"]);
    let tls = certificate.acceptor(&["h2"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let requests = watch::Sender::new(0);
    let counter = requests.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let stream = tls.accept(socket).await.unwrap();
            tokio::spawn(refuse_streams(stream, counter.clone()));
        }
    });

    let failure = failure(
        post(&trusting(&certificate), url).await,
        FailureKind::Protocol,
    );

    assert!(failure.message.contains("refused"), "{failure:?}");
    assert_eq!(*requests.borrow(), 1);
}
