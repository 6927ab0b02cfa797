//! A delivery leaves once, as it was stored, to an address that was judged, and its reply comes back whatever it is.

mod failures;
mod pool;
mod replies;
mod target;
mod tls;
mod wire;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use postrider::delivery::Endpoint;
use postrider::outbound::{Client, Guard, Looking, Lookup, Options, SystemRoots, build};
use postrider::reply::{Answer, Failure, FailureKind, Reply, Response};

use super::support::rows;

/// Loopback is open, names resolve to nothing, nobody is trusted: a test adds what it is about.
fn options() -> Options {
    let loopback = ["127.0.0.0/8", "::1/128"].map(|net| net.parse().unwrap());

    Options {
        guard: Guard {
            allowed: loopback.into(),
        },
        system_roots: SystemRoots::Ignore,
        lookup: Arc::new(Names::default()),
        ..Options::default()
    }
}

fn client() -> Client {
    Client::new(options()).unwrap()
}

/// A client for which `host` has these addresses.
fn client_knowing(host: &str, addrs: &[&str]) -> Client {
    Client::new(Options {
        lookup: Arc::new(Names::of(host, addrs)),
        ..options()
    })
    .unwrap()
}

async fn post(client: &Client, url: impl Into<String>) -> Reply {
    post_to(client, &rows::endpoint(url)).await
}

async fn post_within(client: &Client, url: impl Into<String>, timeout: Duration) -> Reply {
    post_to(
        client,
        &Endpoint {
            timeout,
            ..rows::endpoint(url)
        },
    )
    .await
}

async fn post_to(client: &Client, endpoint: &Endpoint) -> Reply {
    let request = build(endpoint, &rows::delivery("{}"), 1).unwrap();
    client.send(&request).await
}

#[track_caller]
fn response(reply: Reply) -> Response {
    match reply.answer {
        Answer::Response(response) => response,
        Answer::Failure(failure) => panic!("no response: {failure:?}"),
    }
}

#[track_caller]
fn failure(reply: Reply, kind: FailureKind) -> Failure {
    match reply.answer {
        Answer::Failure(failure) => {
            assert_eq!(failure.kind, kind, "{failure:?}");
            failure
        }
        Answer::Response(response) => panic!("{kind:?} was expected, not {response:?}"),
    }
}

/// A resolver that knows only what it is told, each name in the order of its addresses.
#[derive(Debug, Default)]
struct Names(HashMap<String, Vec<IpAddr>>);

impl Names {
    fn of(host: &str, addrs: &[&str]) -> Self {
        let addrs = addrs.iter().map(|addr| addr.parse().unwrap()).collect();
        Self(HashMap::from([(host.to_owned(), addrs)]))
    }
}

impl Lookup for Names {
    fn lookup(&self, host: &str) -> Looking {
        let known = self.0.get(host).cloned();
        let found =
            known.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such host is known"));
        Box::pin(async move { found })
    }
}
