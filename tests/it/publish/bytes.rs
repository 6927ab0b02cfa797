use super::{endpoints, publish, try_publish};
use crate::support::receiver::{Receiver, Script};
use crate::support::{Database, SOON, Worker, wait_until};

/// JSON texts that jsonb would refuse or rewrite.
const TEXTS: [&str; 10] = [
    r#"{"b":1,"a":2}"#,
    r#"{"a":1,"a":2}"#,
    r#"[1.0, 1.00, 1e2, -0, -0.0, 1E+2, 0.10]"#,
    "{\"a\": 1}\n",
    "\n\n {\n\t\"pretty\" : [\r\n 1 ,\n 2 ]\n}\t \r\n",
    r#"{"a":"x\u0000y"}"#,
    r#"{"\u0000":"\ud800 \udc00\ud800 \uDFFF"}"#,
    r#""\u00e9\/é☃😀""#,
    r#"[12345678901234567, 0.12345678901234567, 1e999999, 1e-999999]"#,
    "null",
];

#[tokio::test]
async fn c1_c2_c4_what_was_published_arrives_byte_for_byte_at_first_tries_and_retries() {
    let database = Database::fresh().await;
    let (steady, shaky) = (Receiver::start().await, Receiver::start().await);
    shaky.script(TEXTS.map(|_| Script::status(503)));
    database
        .sql("insert into postrider.retry_policies (name, kind, delays, jitter, max_retries) values ('at once', 'schedule', '{0}', 0, 5)")
        .await;
    for (name, receiver) in [("steady", &steady), ("shaky", &shaky)] {
        database
            .endpoint(name, &receiver.url("/"))
            .set("retry_policy", "at once")
            .await;
    }

    for (n, text) in TEXTS.iter().enumerate() {
        let published = database
            .client()
            .query_one(
                "select postrider.publish('order.paid', $1::text::json, $2::text)",
                &[text, &format!("evt_{n}")],
            )
            .await
            .expect("published");
        assert_eq!(published.try_get::<_, i32>(0).expect("a count"), 2);
    }
    let _worker = Worker::spawn(&database, &[]);

    for (receiver, tries) in [(&steady, 1), (&shaky, 2)] {
        let requests = receiver.wait_for_requests(tries * TEXTS.len()).await;
        for (n, text) in TEXTS.iter().enumerate() {
            let of_this: Vec<_> = requests
                .iter()
                .filter(|request| request.header("webhook-id") == [format!("evt_{n}")])
                .collect();
            assert_eq!(of_this.len(), tries, "{text}");
            for request in of_this {
                assert_eq!(String::from_utf8_lossy(&request.body), *text);
                assert_eq!(request.header("content-length"), [text.len().to_string()]);
                assert_eq!(request.header("content-type"), ["application/json"]);
                assert_eq!(request.header("postrider-event-type"), ["order.paid"]);
            }
        }
    }
    let stored: i64 = database
        .value("select count(*) from postrider.events")
        .await;
    assert_eq!(stored, TEXTS.len() as i64, "once for both endpoints");
    let all_done = async || {
        database
            .value::<i64>("select count(*) from postrider.deliveries where status <> 'delivered'")
            .await
    };
    wait_until("all are delivered", all_done, |open| *open == 0, SOON).await;
}

#[tokio::test]
async fn a_payload_of_25_megabytes_is_stored_once_and_arrives() {
    let database = Database::fresh().await;
    let receivers = [Receiver::start().await, Receiver::start().await];
    for (n, receiver) in receivers.iter().enumerate() {
        database
            .endpoint(&format!("e{n}"), &receiver.url("/"))
            .await;
    }
    database
        .endpoint("filtered", "http://127.0.0.1:1/")
        .set("filter", "$.missing")
        .await;

    let made = publish(
        &database,
        "'t', ('{\"a\":\"' || repeat('0123456789', 2621440) || '\"}')::json",
    )
    .await;
    let _worker = Worker::spawn(&database, &[]);

    assert_eq!(made, 2);
    for receiver in &receivers {
        let [request] = receiver.wait_for_requests(1).await.try_into().unwrap();
        assert_eq!(request.body.len(), 26_214_400 + 8);
        assert!(request.body.starts_with(b"{\"a\":\"0123") && request.body.ends_with(b"89\"}"));
    }
}

#[tokio::test]
async fn c1_a_trigger_that_publishes_never_fails_the_users_own_update() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    database
        .endpoint("filtered", &receiver.url("/"))
        .set("filter", "$.note == $nobody")
        .await;
    let text = r#"{"note":"x\u0000y","lone":"\udead"}"#;
    database
        .sql(
            "create table notes (id int primary key, note json);
             insert into notes values (1, null);
             create function tell() returns trigger language plpgsql as $$
             begin
               perform postrider.publish('note.changed', new.note);
               return new;
             end $$;
             create trigger tell after update on notes for each row execute function tell();",
        )
        .await;
    let _worker = Worker::spawn(&database, &[]);

    database
        .sql(&format!("update notes set note = '{text}' where id = 1"))
        .await;

    let [request] = receiver.wait_for_requests(1).await.try_into().unwrap();
    assert_eq!(request.body, text.as_bytes());
}

#[tokio::test]
async fn c24_what_a_long_transaction_publishes_is_delivered_when_it_commits() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    let slow = database.connect().await;
    slow.batch_execute("begin").await.expect("begun");
    try_publish(&slow, "'t', '\"slow\"', 'slow'")
        .await
        .expect("published");
    let _worker = Worker::spawn(&database, &[]);
    publish(&database, "'t', '\"fast\"', 'fast'").await;
    receiver.wait_for_requests(1).await;

    slow.batch_execute("commit").await.expect("committed");

    let requests = receiver.wait_for_requests(2).await;
    assert_eq!(requests[0].header("webhook-id"), ["fast"]);
    assert_eq!(requests[1].header("webhook-id"), ["slow"]);
}

#[tokio::test]
async fn c34_a_published_delivery_is_replayed_with_its_id_and_bytes() {
    let database = Database::fresh().await;
    let receiver = Receiver::start().await;
    database.endpoint("shop", &receiver.url("/")).await;
    endpoints(&database, &[("other", "{x}")]).await;
    publish(&database, "'t', '{\"a\": 1.00}', 'e1'").await;
    let _worker = Worker::spawn(&database, &[]);
    let id: i64 = database.value("select id from postrider.deliveries").await;
    database.wait_for_status(id, "delivered").await;

    database
        .sql(&format!("select postrider.replay({id})"))
        .await;

    let requests = receiver.wait_for_requests(2).await;
    for request in requests {
        assert_eq!(request.header("webhook-id"), ["e1"]);
        assert_eq!(request.body, b"{\"a\": 1.00}");
    }
}
