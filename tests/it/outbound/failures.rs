//! What comes back when no response does. Each is a reply with a kind of its own.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use postrider::outbound::{Client, Looking, Lookup, Options};
use postrider::reply::FailureKind;

use tokio::net::TcpListener;

use crate::support::receiver::{BlackHole, Receiver, Script};

use super::{Names, client, client_knowing, failure, options, post, post_within, response};

#[tokio::test]
async fn c14_an_unknown_name_is_a_dns_failure() {
    let failure = failure(
        post(&client(), "http://unknown.example/").await,
        FailureKind::Dns,
    );

    assert!(
        failure
            .message
            .contains("unknown.example cannot be resolved: no such host is known"),
        "{failure:?}"
    );
}

#[tokio::test]
async fn c14_a_silent_name_server_is_a_dns_failure() {
    #[derive(Debug)]
    struct Silent;
    impl Lookup for Silent {
        fn lookup(&self, _host: &str) -> Looking {
            Box::pin(std::future::pending())
        }
    }
    let connect_timeout = Duration::from_millis(500);
    let client = Client::new(Options {
        lookup: Arc::new(Silent),
        connect_timeout,
        ..options()
    })
    .unwrap();

    let failure = failure(
        post(&client, "http://slow.example/").await,
        FailureKind::Dns,
    );

    assert!(
        failure
            .message
            .contains("did not answer for slow.example within 400ms"),
        "{failure:?}"
    );
}

#[tokio::test]
async fn c14_a_refused_connection_is_a_connect_failure() {
    let receiver = Receiver::start().await;
    let url = receiver.url("/");
    receiver.stop().await;

    let failure = failure(post(&client(), url).await, FailureKind::Connect);

    assert!(
        failure.message.contains("Connection refused"),
        "{failure:?}"
    );
}

#[tokio::test]
async fn c14_a_black_hole_is_a_connect_failure_within_the_connect_limit() {
    let hole = BlackHole::start().await;
    let client = Client::new(Options {
        connect_timeout: Duration::from_millis(300),
        ..options()
    })
    .unwrap();

    let reply = post(&client, hole.url()).await;

    assert!(
        reply.duration < Duration::from_secs(5),
        "{:?}",
        reply.duration
    );
    failure(reply, FailureKind::Connect);
}

#[tokio::test]
async fn the_deadline_covers_the_connecting_too() {
    let hole = BlackHole::start().await;

    let reply = post_within(&client(), hole.url(), Duration::from_millis(200)).await;

    assert!(
        reply.duration < Duration::from_secs(5),
        "{:?}",
        reply.duration
    );
    failure(reply, FailureKind::Timeout);
}

#[tokio::test]
async fn c14_a_receiver_that_says_nothing_is_a_timeout() {
    let receiver = Receiver::start().await;
    receiver.script([Script::silence()]);

    let reply = post_within(&client(), receiver.url("/"), Duration::from_millis(200)).await;

    let failure = failure(reply, FailureKind::Timeout);
    assert_eq!(failure.message, "no response within 200ms");
    receiver.wait_until_deserted().await;
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn a_timeout_of_zero_or_of_an_age_is_no_panic() {
    let receiver = Receiver::start().await;
    let hole = BlackHole::start().await;

    failure(
        post_within(&client(), hole.url(), Duration::ZERO).await,
        FailureKind::Timeout,
    );
    response(post_within(&client(), receiver.url("/"), Duration::MAX).await);
}

#[tokio::test]
async fn c14_a_connection_that_ends_before_a_status_is_a_protocol_failure() {
    let receiver = Receiver::start().await;
    let scripts = [
        Script::hang_up(),
        Script::default().then_reset(),
        Script::raw("HTTP/1.1 20").then_close(),
        Script::raw("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n").then_close(),
    ];

    for script in scripts {
        receiver.script([script]);

        let failure = failure(
            post(&client(), receiver.url("/")).await,
            FailureKind::Protocol,
        );

        assert!(!failure.message.is_empty());
    }
    assert_eq!(receiver.requests().len(), 4);
}

#[tokio::test]
async fn c14_a_dead_aaaa_beside_a_live_a_is_delivered() {
    let receiver = Receiver::start().await;
    let client = client_knowing("both.example", &["::1", "127.0.0.1"]);

    let reply = post(&client, receiver.url_of("both.example", "/")).await;

    assert_eq!(reply.remote_addr, Some(receiver.addr()));
    assert_eq!(response(reply).status, 200);
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn c14_a_dead_address_before_a_live_one_is_delivered() {
    let receiver = Receiver::start().await;
    let client = client_knowing("both.example", &["127.0.0.2", "127.0.0.1"]);

    let reply = post(&client, receiver.url_of("both.example", "/")).await;

    assert_eq!(response(reply).status, 200);
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn c14_a_silent_address_before_a_live_one_is_delivered() {
    let receiver = Receiver::start().await;
    let port = receiver.addr().port();
    let _hole = BlackHole::start_at(([127, 0, 0, 2], port).into()).await;
    let lookup = Arc::new(Names::of("both.example", &["127.0.0.2", "127.0.0.1"]));
    let connect_timeout = Duration::from_secs(2);
    let client = Client::new(Options {
        lookup,
        connect_timeout,
        ..options()
    })
    .unwrap();

    let reply = post(&client, receiver.url_of("both.example", "/")).await;

    assert_eq!(response(reply).status, 200);
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn c14_a_silent_aaaa_beside_a_live_a_is_delivered_without_waiting_for_its_limit() {
    let receiver = Receiver::start().await;
    let port = receiver.addr().port();
    // Without an IPv6 loopback the address is unreachable at once, which the other rule covers.
    let Ok(_) = TcpListener::bind(("::1", 0)).await else {
        return;
    };
    let _hole = BlackHole::start_at((Ipv6Addr::LOCALHOST, port).into()).await;
    let client = client_knowing("both.example", &["::1", "127.0.0.1"]);

    let reply = post(&client, receiver.url_of("both.example", "/")).await;

    assert!(
        reply.duration < Duration::from_secs(4),
        "{:?}",
        reply.duration
    );
    assert_eq!(reply.remote_addr, Some(receiver.addr()));
    assert_eq!(response(reply).status, 200);
}
