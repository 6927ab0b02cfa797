//! What the receiver says, and how little of it can hurt.

use std::time::Duration;

use postrider::outbound::build;
use postrider::reply::{BODY_CAP, Completeness, FailureKind};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::receiver::{Receiver, Script};
use crate::support::rows;

use super::{client, failure, post, post_within, response};

/// Far above what socket buffers and one read hold, far below what was offered.
const A_LITTLE: u64 = 64 * 1024 * 1024;

#[tokio::test]
async fn c6_every_header_value_arrives_as_raw_bytes() {
    let receiver = Receiver::start().await;
    receiver.script([Script::raw(
        b"HTTP/1.1 200 OK\r\nX-Reason: caf\xC3\xA9\r\nX-Bin: \xFF\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\ncontent-length: 0\r\n\r\n",
    )]);

    let headers = response(post(&client(), receiver.url("/")).await).headers;

    let values = |wanted: &str| -> Vec<&[u8]> {
        headers
            .iter()
            .filter(|(name, _)| name == wanted)
            .map(|(_, value)| &value[..])
            .collect()
    };
    assert_eq!(values("x-reason"), [b"caf\xC3\xA9"]);
    assert_eq!(values("x-bin"), [b"\xFF"]);
    assert_eq!(values("set-cookie"), [b"a=1", b"b=2"]);
}

#[tokio::test]
async fn a_slip_in_a_header_leaves_the_status_standing() {
    let receiver = Receiver::start().await;
    let client = client();
    for header in [
        "no colon at all",
        "X Space: 1",
        "X-Late : 1",
        "X-Fold: 1\r\n 2",
        "\u{1}: 1",
    ] {
        receiver.script([Script::raw(format!(
            "HTTP/1.1 200 OK\r\n{header}\r\ncontent-length: 0\r\n\r\n"
        ))]);

        assert_eq!(
            response(post(&client, receiver.url("/")).await).status,
            200,
            "{header:?}"
        );
    }
}

#[tokio::test]
async fn c7_of_a_huge_reply_only_the_head_is_read() {
    let receiver = Receiver::start().await;
    receiver.script([
        Script::raw("HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n")
            .then_endlessly([b'x'; 65536]),
    ]);

    let response = response(post(&client(), receiver.url("/")).await);

    assert_eq!(response.status, 200);
    assert_eq!(response.body, [b'x'; BODY_CAP]);
    assert_eq!(response.completeness, Completeness::Truncated);
    receiver.wait_until_deserted().await;
    assert!(
        receiver.bytes_sent() < A_LITTLE,
        "{} bytes were taken",
        receiver.bytes_sent()
    );
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn c7_endless_chunks_end_at_the_cap() {
    let receiver = Receiver::start().await;
    receiver.script([
        Script::raw("HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n")
            .then_endlessly("1\r\nx\r\n".repeat(1000)),
    ]);

    let response = response(post(&client(), receiver.url("/")).await);

    assert_eq!(response.status, 500);
    assert_eq!(response.body.len(), BODY_CAP);
    assert_eq!(response.completeness, Completeness::Truncated);
    receiver.wait_until_deserted().await;
    assert!(
        receiver.bytes_sent() < A_LITTLE,
        "{} bytes were taken",
        receiver.bytes_sent()
    );
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn c7_a_body_that_stalls_is_decided_by_its_status() {
    let receiver = Receiver::start().await;
    receiver
        .script([Script::raw("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart").then_stall()]);

    let reply = post_within(&client(), receiver.url("/"), Duration::from_millis(300)).await;

    assert!(
        reply.duration >= Duration::from_millis(300) && reply.duration < Duration::from_secs(5)
    );
    assert_eq!(reply.remote_addr, Some(receiver.addr()));
    let response = response(reply);
    assert_eq!((response.status, &response.body[..]), (200, &b"part"[..]));
    assert_eq!(response.completeness, Completeness::Truncated);
    receiver.wait_until_deserted().await;
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn c7_a_body_that_is_cut_is_decided_by_its_status() {
    let receiver = Receiver::start().await;
    let client = client();
    let begun = Script::raw("HTTP/1.1 201 Made\r\ncontent-length: 100\r\n\r\npart");
    let chunked =
        Script::raw("HTTP/1.1 201 Made\r\ntransfer-encoding: chunked\r\n\r\n4\r\npart\r\n");
    receiver.script([
        begun.clone().then_close(),
        chunked.clone().then_close(),
        chunked.then_write("no chunk size\r\n"),
    ]);

    for _ in 0..3 {
        let response = response(post(&client, receiver.url("/")).await);

        assert_eq!(
            (response.status, response.completeness),
            (201, Completeness::Truncated)
        );
        assert!(b"part".starts_with(&response.body), "{:?}", response.body);
    }
    assert_eq!(receiver.requests().len(), 3);
}

#[tokio::test]
async fn c7_a_gzip_bomb_stays_packed() {
    let receiver = Receiver::start().await;
    let packed = [b"\x1f\x8b\x08\0\0\0\0\0\0\x03".as_slice(), &[0xAA; 1000]].concat();
    receiver.script([Script::reply(200, &[("content-encoding", "gzip")], &packed)]);

    let response = response(post(&client(), receiver.url("/")).await);

    assert_eq!(response.body, packed);
    assert_eq!(response.completeness, Completeness::Whole);
}

#[tokio::test]
async fn a_body_of_exactly_the_cap_is_whole_and_one_byte_more_is_not() {
    let receiver = Receiver::start().await;
    let client = client();
    receiver.script([
        Script::reply(200, &[], &[b'x'; BODY_CAP]),
        Script::reply(200, &[], &[b'x'; BODY_CAP + 1]),
    ]);

    let exact = response(post(&client, receiver.url("/")).await);
    let over = response(post(&client, receiver.url("/")).await);

    assert_eq!(
        (exact.body.len(), exact.completeness),
        (BODY_CAP, Completeness::Whole)
    );
    assert_eq!(
        (over.body.len(), over.completeness),
        (BODY_CAP, Completeness::Truncated)
    );
}

#[tokio::test]
async fn headers_without_end_are_a_protocol_failure() {
    let receiver = Receiver::start().await;
    receiver.script([
        Script::raw("HTTP/1.1 200 OK\r\n").then_endlessly("X-More: and more and more\r\n"),
        Script::raw("HTTP/1.1 200 OK\r\nX-Long: ").then_endlessly([b'x'; 4096]),
    ]);

    for _ in 0..2 {
        failure(
            post(&client(), receiver.url("/")).await,
            FailureKind::Protocol,
        );
    }

    receiver.wait_until_deserted().await;
    assert!(
        receiver.bytes_sent() < A_LITTLE,
        "{} bytes were taken",
        receiver.bytes_sent()
    );
}

#[tokio::test]
async fn c18_a_redirect_is_never_followed() {
    let receiver = Receiver::start().await;
    let client = client();

    for status in [301, 302, 303, 307, 308] {
        let elsewhere = receiver.url("/elsewhere");
        receiver.script([Script::reply(status, &[("location", &elsewhere)], b"")]);

        let response = response(post(&client, receiver.url("/")).await);

        assert_eq!(response.status, status);
        assert!(
            response
                .headers
                .contains(&("location".into(), elsewhere.into_bytes()))
        );
    }
    assert_eq!(receiver.requests().len(), 5);
    assert!(
        receiver
            .requests()
            .iter()
            .all(|request| request.request_line() == "POST / HTTP/1.1")
    );
}

#[tokio::test]
async fn c19_every_status_comes_back_as_it_is() {
    let receiver = Receiver::start().await;
    let client = client();

    for status in [
        200, 201, 202, 204, 206, 299, 304, 400, 401, 404, 407, 408, 410, 413, 421, 425, 429, 500,
        503, 599, 600, 999,
    ] {
        receiver.script([Script::status(status)]);

        assert_eq!(
            response(post(&client, receiver.url("/")).await).status,
            status
        );
    }
    assert_eq!(receiver.requests().len(), 22);
}

#[tokio::test]
async fn an_interim_response_is_not_the_answer() {
    let receiver = Receiver::start().await;
    receiver.script([Script::raw(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 202 OK\r\ncontent-length: 0\r\n\r\n",
    )]);

    assert_eq!(
        response(post(&client(), receiver.url("/")).await).status,
        202
    );
}

#[tokio::test]
async fn c19_a_malformed_status_line_is_a_protocol_failure() {
    let receiver = Receiver::start().await;
    let client = client();

    for line in [
        "HTTP/1.1 OK",
        "HTTP/1.1 99 Low",
        "HTTP/1.1 2000 High",
        "HTTP/9.9 200 OK",
        "SSH-2.0-OpenSSH_9",
        "\0\0\0",
    ] {
        receiver.script([Script::raw(format!("{line}\r\n\r\n")).then_close()]);

        let failure = failure(
            post(&client, receiver.url("/")).await,
            FailureKind::Protocol,
        );

        assert!(!failure.message.is_empty());
    }
    assert_eq!(receiver.requests().len(), 6);
}

/// A receiver that refuses a large body answers before it has read it, and closes.
#[tokio::test]
async fn an_answer_that_comes_before_the_body_is_sent_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.read_exact(&mut [0; 100]).await.unwrap();
        socket
            .write_all(b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
        socket.shutdown().await.unwrap();
        let mut sink = [0; 65536];
        while socket.read(&mut sink).await.is_ok_and(|count| count > 0) {}
    });
    let request = build(
        &rows::endpoint(url),
        &rows::delivery(vec![b'x'; 32 * 1024 * 1024]),
        1,
    )
    .unwrap();

    let reply = client().send(&request).await;

    assert_eq!(response(reply).status, 413);
    server.await.unwrap();
}
