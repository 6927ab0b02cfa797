//! Where a request may go.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use postrider::outbound::{Client, Guard, Looking, Lookup, Options};
use postrider::reply::FailureKind;

use crate::support::alone;
use crate::support::receiver::Receiver;

use super::{client, client_knowing, failure, options, post, response};

#[tokio::test]
async fn a_literal_address_is_judged_in_every_spelling_before_a_byte_is_sent() {
    let receiver = Receiver::start().await;
    let client = Client::new(Options {
        guard: Guard::default(),
        ..options()
    })
    .unwrap();
    let port = receiver.addr().port();

    for host in [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "%31%32%37.0.0.1",
        "１２７.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[0:0:0:0:0:ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "169.254.169.254",
    ] {
        let reply = post(&client, format!("http://{host}:{port}/")).await;

        let failure = failure(reply, FailureKind::Blocked);
        assert!(
            failure.message.contains("--allow-network"),
            "{host}: {failure:?}"
        );
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn a_name_that_leads_inside_is_blocked() {
    let receiver = Receiver::start().await;
    let lookup = Arc::new(super::Names::of("inside.example", &["127.0.0.1", "::1"]));
    let client = Client::new(Options {
        guard: Guard::default(),
        lookup,
        ..options()
    })
    .unwrap();

    let failure = failure(
        post(&client, receiver.url_of("inside.example", "/")).await,
        FailureKind::Blocked,
    );

    assert!(
        failure.message.contains("127.0.0.1 is forbidden (loopback"),
        "{failure:?}"
    );
    assert_eq!(receiver.connections(), 0);
}

/// Answers with an open address first and with a forbidden one ever after.
#[derive(Debug, Default)]
struct Rebinding(AtomicUsize);

impl Lookup for Rebinding {
    fn lookup(&self, _host: &str) -> Looking {
        let addr: IpAddr = match self.0.fetch_add(1, Ordering::SeqCst) {
            0 => [127, 0, 0, 1].into(),
            _ => [127, 0, 0, 2].into(),
        };
        Box::pin(async move { Ok(vec![addr]) })
    }
}

#[tokio::test]
async fn c11_the_judged_address_is_the_dialled_one() {
    let receiver = Receiver::start().await;
    let lookup = Arc::new(Rebinding::default());
    let guard = Guard {
        allowed: vec!["127.0.0.1/32".parse().unwrap()],
    };
    let client = || {
        Client::new(Options {
            guard: guard.clone(),
            lookup: lookup.clone(),
            ..options()
        })
        .unwrap()
    };
    let url = receiver.url_of("rebinding.example", "/");

    let first = post(&client(), url.clone()).await;
    let asked = lookup.0.load(Ordering::SeqCst);
    let second = post(&client(), url).await;

    assert_eq!(asked, 1, "one try asks once");
    assert_eq!(response(first).status, 200);
    failure(second, FailureKind::Blocked);
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn c12_the_name_stays_in_the_host_header() {
    let receiver = Receiver::start().await;
    let client = client_knowing("named.example", &["127.0.0.1"]);

    response(post(&client, receiver.url_of("named.example", "/")).await);

    let host = receiver.wait_for_requests(1).await[0].header("host");
    assert_eq!(host, [format!("named.example:{}", receiver.addr().port())]);
}

#[tokio::test]
async fn c13_a_proxy_in_the_environment_is_ignored() {
    if let Some(target) = alone::argument() {
        assert_eq!(response(post(&client(), target).await).status, 200);
        return;
    }
    let receiver = Receiver::start().await;
    let proxy = Receiver::start().await;
    let names = [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
    ];
    let mut environment = names.map(|name| (name, proxy.url(""))).to_vec();
    environment.push(("NO_PROXY", String::new()));
    environment.push(("no_proxy", String::new()));

    let test = "outbound::target::c13_a_proxy_in_the_environment_is_ignored";
    alone::run(test, receiver.url("/"), &environment).await;

    assert_eq!(receiver.requests().len(), 1);
    assert_eq!(proxy.connections(), 0);
}
