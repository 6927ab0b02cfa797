//! What the receiver sees.

use postrider::delivery::{Delivery, Endpoint};
use postrider::outbound::build;

use crate::support::receiver::Receiver;
use crate::support::rows;

use super::{client, post, post_to, response};

#[tokio::test]
async fn c2_the_body_arrives_byte_for_byte_with_its_length() {
    let receiver = Receiver::start().await;
    let client = client();
    let bodies: [&[u8]; 9] = [
        br#"{"b":1,"a":2}"#,
        br#"{"a":1,"a":2}"#,
        b"[1.0, 1.00, 1e2, 12345678901234567890]",
        b"{\n  \"pretty\": true\n}\n",
        b"",
        b"\0\x01\xff\xfe not text at all",
        b"\xef\xbb\xbf{}",
        b"\r\n\r\n",
        &[b'x'; 300_000],
    ];

    for body in bodies {
        let request = build(&rows::endpoint(receiver.url("/")), &rows::delivery(body), 1).unwrap();
        assert_eq!(response(client.send(&request).await).status, 200);
    }

    let received = receiver.wait_for_requests(bodies.len()).await;
    for (request, body) in received.iter().zip(bodies) {
        assert_eq!(request.body, body);
        assert_eq!(request.header("content-length"), [body.len().to_string()]);
        assert_eq!(request.header("transfer-encoding"), [""; 0]);
    }
}

#[tokio::test]
async fn c3_what_was_signed_is_what_is_sent() {
    let receiver = Receiver::start().await;
    let endpoint = rows::endpoint(receiver.url("/"));
    let body = r#"{"amount": 1.00, "note": "café"}"#;
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let timestamp = i64::try_from(now).unwrap();

    response(
        client()
            .send(&build(&endpoint, &rows::delivery(body), timestamp).unwrap())
            .await,
    );

    let received = &receiver.wait_for_requests(1).await[0];
    let mut headers = http::HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        headers.insert(name, received.header(name)[0].parse().unwrap());
    }
    let verifier = standardwebhooks::Webhook::new(endpoint.secrets[0].expose_text()).unwrap();
    verifier.verify(&received.body, &headers).unwrap();
}

#[tokio::test]
async fn the_headers_on_the_wire_are_those_on_record_and_host() {
    let receiver = Receiver::start().await;
    let endpoint = Endpoint {
        headers: Some(r#"{"X-Team": "shop", "X-Note": "café"}"#.into()),
        ..rows::endpoint(receiver.url("/in?x=1#part"))
    };
    let request = build(&endpoint, &rows::delivery("{}"), 1).unwrap();

    response(client().send(&request).await);

    let received = &receiver.wait_for_requests(1).await[0];
    assert_eq!(received.request_line(), "POST /in?x=1 HTTP/1.1");
    assert_eq!(received.header("x-note"), ["café"]);
    assert_eq!(received.header("host"), [receiver.addr().to_string()]);
    let mut recorded: Vec<String> = request
        .recorded_headers()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    recorded.push("host".into());
    recorded.sort();
    let mut sent = received.header_names();
    sent.sort();
    assert_eq!(sent, recorded);
    for absent in ["accept-encoding", "referer", "cookie"] {
        assert!(!sent.iter().any(|name| name == absent), "{absent}");
    }
}

#[tokio::test]
async fn put_and_patch_are_sent_as_such() {
    let receiver = Receiver::start().await;

    for method in ["PUT", "PATCH"] {
        let endpoint = Endpoint {
            method: method.into(),
            ..rows::endpoint(receiver.url("/"))
        };
        response(post_to(&client(), &endpoint).await);
    }

    let lines: Vec<String> = receiver
        .wait_for_requests(2)
        .await
        .iter()
        .map(|r| r.request_line())
        .collect();
    assert_eq!(lines, ["PUT / HTTP/1.1", "PATCH / HTTP/1.1"]);
}

#[tokio::test]
async fn c16_credentials_in_a_url_arrive_as_basic_and_show_nowhere() {
    let receiver = Receiver::start().await;
    let url = receiver.url("/").replace("http://", "http://user:s3cret@");

    let reply = post(&client(), url.clone()).await;
    let request = build(&rows::endpoint(url), &rows::delivery("{}"), 1).unwrap();

    let received = &receiver.wait_for_requests(1).await[0];
    assert_eq!(received.header("authorization"), ["Basic dXNlcjpzM2NyZXQ="]);
    for shown in [
        format!("{reply:?}"),
        format!("{request:?}"),
        format!("{:?}", request.recorded_headers()),
    ] {
        assert!(
            !shown.contains("s3cret") && !shown.contains("dXNlcjpzM2NyZXQ="),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn c16_a_failed_try_shows_neither_credentials_nor_query() {
    for url in [
        "http://user:s3cret@127.0.0.1:1/in?token=s3cret",
        "https://user:s3cret@127.0.0.1:1/in?token=s3cret",
        "http://user:s3cret@unknown.example/in?token=s3cret",
        "http://user:s3cret@10.0.0.1/in?token=s3cret",
    ] {
        let reply = post(&client(), url).await;

        assert!(!format!("{reply:?}").contains("s3cret"), "{reply:?}");
    }
}

#[tokio::test]
async fn c15_a_neighbour_of_an_unbuildable_delivery_is_sent() {
    let receiver = Receiver::start().await;
    let endpoint = rows::endpoint(receiver.url("/"));
    let broken = Delivery {
        headers: Some(r#"{"X-A": "a\nb"}"#.into()),
        ..rows::delivery("{}")
    };

    let refused = build(&endpoint, &broken, 1);
    let reply = post_to(&client(), &endpoint).await;

    assert!(refused.unwrap_err().to_string().contains("\"X-A\""));
    assert_eq!(response(reply).status, 200);
    assert_eq!(receiver.requests().len(), 1);
}
