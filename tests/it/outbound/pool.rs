//! Connections that are kept, lost and found again.

use std::time::Duration;

use postrider::outbound::build;
use postrider::reply::{Answer, FailureKind};

use crate::support::receiver::{Receiver, Script};
use crate::support::rows;

use super::{client, failure, post, post_within, response};

#[tokio::test]
async fn a_connection_is_used_again() {
    let receiver = Receiver::start().await;
    let client = client();

    for _ in 0..5 {
        response(post(&client, receiver.url("/")).await);
    }

    assert_eq!(receiver.requests().len(), 5);
    assert_eq!(receiver.connections(), 1);
}

/// The receiver closes while the next request is on its way: the kept connection may or may not be noticed as dead.
#[tokio::test]
async fn a_request_is_never_written_twice_when_a_kept_connection_closes() {
    let receiver = Receiver::start().await;
    let client = client();
    let tries = 200;
    receiver.script((0..tries).map(|_| Script::status(200).then_close()));

    let (mut answered, mut failed) = (0, 0);
    for number in 0..tries {
        let request = build(
            &rows::endpoint(receiver.url("/")),
            &rows::delivery(number.to_string()),
            1,
        )
        .unwrap();
        match client.send(&request).await.answer {
            Answer::Response(_) => answered += 1,
            Answer::Failure(failure) => {
                assert_eq!(failure.kind, FailureKind::Protocol, "{failure:?}");
                failed += 1;
            }
        }
    }

    let mut bodies: Vec<Vec<u8>> = receiver
        .requests()
        .into_iter()
        .map(|request| request.body)
        .collect();
    let received = bodies.len();
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), received, "a request came twice");
    assert_eq!(
        received, answered,
        "every request that was read was answered"
    );
    assert_eq!(answered + failed, tries);
}

/// The harder half: the receiver reads the request on the kept connection, and then hangs up without a word.
#[tokio::test]
async fn a_request_is_never_written_twice_when_the_receiver_hangs_up_on_it() {
    let receiver = Receiver::start().await;
    let client = client();
    let endings = [
        Script::hang_up(),
        Script::default().then_reset(),
        Script::raw("HTTP/1.1 2").then_close(),
    ];

    for ending in endings {
        receiver.script([Script::status(200), ending]);
        let before = receiver.requests().len();

        response(post(&client, receiver.url("/")).await);
        failure(
            post(&client, receiver.url("/")).await,
            FailureKind::Protocol,
        );

        let new = &receiver.requests()[before..];
        assert_eq!(new.len(), 2);
        assert_eq!(
            new[0].connection, new[1].connection,
            "the second came on the kept connection"
        );
    }
}

#[tokio::test]
async fn a_surplus_reply_is_never_taken_for_the_next_one() {
    let receiver = Receiver::start().await;
    let client = client();
    let reply = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

    for _ in 0..50 {
        let before = receiver.requests().len();
        receiver.script([Script::raw(reply.repeat(2)), Script::status(500)]);

        response(post(&client, receiver.url("/")).await);
        let next = post(&client, receiver.url("/")).await.answer;

        match next {
            Answer::Response(response) => assert_eq!(response.status, 500),
            Answer::Failure(failure) => {
                assert_eq!(failure.kind, FailureKind::Protocol);
                let unread = receiver.requests().len() == before + 1;
                if unread {
                    response(post(&client, receiver.url("/")).await);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_503_is_asked_for_once() {
    let receiver = Receiver::start().await;
    receiver.script([Script::reply(503, &[("retry-after", "0")], b"")]);

    assert_eq!(
        response(post(&client(), receiver.url("/")).await).status,
        503
    );
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn c21_a_client_recovers_after_its_connections_died() {
    let receiver = Receiver::start().await;
    let addr = receiver.addr();
    let url = receiver.url("/");
    let client = client();
    let (first, second) = tokio::join!(post(&client, url.clone()), post(&client, url.clone()));
    response(first);
    response(second);

    receiver.stop().await;
    while let Answer::Response(_) = post_within(&client, url.clone(), Duration::from_secs(1))
        .await
        .answer
    {
        tokio::task::yield_now().await;
    }
    failure(post(&client, url.clone()).await, FailureKind::Connect);
    let receiver = Receiver::start_at(addr).await;

    assert_eq!(response(post(&client, url).await).status, 200);
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn c21_a_client_recovers_from_a_receiver_that_went_silent() {
    let receiver = Receiver::start().await;
    let client = client();
    receiver.script([Script::status(200), Script::silence()]);
    response(post(&client, receiver.url("/")).await);

    let silent = post_within(&client, receiver.url("/"), Duration::from_millis(200)).await;
    let next = post(&client, receiver.url("/")).await;

    failure(silent, FailureKind::Timeout);
    assert_eq!(response(next).status, 200);
    let connections: Vec<u64> = receiver
        .requests()
        .iter()
        .map(|request| request.connection)
        .collect();
    assert_eq!(connections, [0, 0, 1]);
}
