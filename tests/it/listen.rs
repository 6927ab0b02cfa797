use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sha2::Sha256;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

const PATIENCE: Duration = Duration::from_secs(20);

/// A running `postrider listen`, ended with the test.
struct Listener {
    process: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    address: SocketAddr,
}

impl Listener {
    /// Starts it on a free port and reads the address that it prints.
    fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, |_| {})
    }

    fn start_with(arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let mut listener = Self::start_quietly(arguments, prepare);
        let first = listener.stderr_line();
        let rest = first
            .strip_prefix("listening on http://")
            .unwrap_or_else(|| panic!("{first}"));
        listener.address = rest
            .split('/')
            .next()
            .expect("an address")
            .parse()
            .expect(rest);
        listener
    }

    /// Starts it and reads nothing yet.
    fn start_quietly(arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = listen(arguments);
        prepare(&mut command);
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        let stderr = BufReader::new(process.stderr.take().expect("piped"));
        Self {
            process,
            stdout,
            stderr,
            address: ([127, 0, 0, 1], 0).into(),
        }
    }

    fn stderr_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// The next line about a request.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        assert!(line.ends_with('\n'), "a whole line: {line:?}");
        line.trim_end().to_owned()
    }

    fn json(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
    }

    /// Waits for its end; returns how it ended and the rest of stderr.
    fn end(&mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.process.try_wait().expect("its state") {
                break status;
            }
            assert!(Instant::now() < deadline, "it still runs");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).expect("UTF-8");
        (status, rest)
    }

    fn post(&self, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
        post(self.address, headers, body)
    }

    fn post_id(&self, id: &str) -> u16 {
        self.post(&[("webhook-id", id)], b"{}").0
    }

    fn post_signed(&self, id: &str, body: &[u8], age_seconds: u64) -> u16 {
        let (timestamp, signature) = sign(id, body, age_seconds);
        let headers = [
            ("webhook-id", id),
            ("webhook-timestamp", &timestamp),
            ("webhook-signature", &signature),
        ];
        self.post(&headers, body).0
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn listen(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command
        .args(["listen", "--bind", "127.0.0.1:0"])
        .args(arguments)
        .env_remove("POSTRIDER_LISTEN_SECRETS");
    command
}

/// Posts a body with these headers; returns status code and body of the answer.
fn post(address: SocketAddr, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
    let mut request = format!(
        "POST /hook HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");

    let mut connection = TcpStream::connect(address).expect("it listens");
    connection
        .set_read_timeout(Some(PATIENCE))
        .expect("a timeout");
    connection.write_all(request.as_bytes()).expect("head");
    connection.write_all(body).expect("body");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), body.to_owned())
}

/// Signs as the Standard Webhooks specification says, apart from our own code; any bytes may be a body.
fn sign(id: &str, body: &[u8], age_seconds: u64) -> (String, String) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let timestamp = (now - age_seconds).to_string();
    let key = BASE64_STANDARD
        .decode(&SECRET["whsec_".len()..])
        .expect("base64");
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length will do");
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    (
        timestamp,
        format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes())),
    )
}

#[test]
fn each_id_fails_as_often_as_asked_and_is_then_accepted() {
    let mut listener = Listener::start(&["--fail", "503", "--times", "2", "--json"]);

    let answers = ["a", "a", "b", "a", "a", "b", "b"].map(|id| listener.post_id(id));

    assert_eq!(answers, [503, 503, 503, 200, 200, 503, 200]);
    let tries: Vec<(String, u64, u64)> = (0..7)
        .map(|_| listener.json())
        .map(|line| {
            let number = |name: &str| line[name].as_u64().expect(name);
            (
                line["id"].as_str().expect("an id").to_owned(),
                number("try"),
                number("status"),
            )
        })
        .collect();
    let expected = [
        ("a", 1, 503),
        ("a", 2, 503),
        ("b", 1, 503),
        ("a", 3, 200),
        ("a", 4, 200),
        ("b", 2, 503),
        ("b", 3, 200),
    ];
    assert_eq!(
        tries,
        expected.map(|(id, no, status)| (id.to_owned(), no, status))
    );
}

#[test]
fn without_times_it_fails_always() {
    let listener = Listener::start(&["--fail", "500"]);

    assert_eq!([(); 4].map(|()| listener.post_id("a")), [500; 4]);
}

#[test]
fn success_answers_what_was_asked_for() {
    let listener = Listener::start(&["--status", "204"]);

    assert_eq!(
        listener.post(&[("webhook-id", "a")], b"x"),
        (204, String::new())
    );
}

#[test]
fn connections_are_refused_while_it_is_down_and_taken_after() {
    let mut listener = Listener::start_quietly(&["--down-for", "1s"], |_| {});
    let said = listener.stderr_line();
    let address = said
        .split("connections to ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .expect(&said);
    listener.address = address.parse().expect(&said);

    let refused = TcpStream::connect(listener.address).expect_err("down");
    let up = listener.stderr_line();

    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(said.contains("down for 1s"), "{said}");
    assert!(
        up.starts_with(&format!("listening on http://{address}/")),
        "{up}"
    );
    assert_eq!(listener.post_id("a"), 200);
}

#[test]
fn a_good_signature_is_told_from_a_bad_an_old_and_a_missing_one() {
    let mut listener = Listener::start(&["--json", "--secret", OTHER_SECRET, "--secret", SECRET]);
    let (timestamp, signature) = sign("a", b"{}", 0);
    let tampered = [
        ("webhook-id", "a"),
        ("webhook-timestamp", &timestamp),
        ("webhook-signature", &signature),
    ];

    listener.post_signed("a", b"{}", 0);
    listener.post(&tampered, b"{ }");
    listener.post_signed("a", b"{}", 3600);
    listener.post_id("a");

    assert_eq!(listener.json()["verified"], true);
    for reason in ["no signature matches", "signed 360", "no `webhook-"] {
        let line = listener.json();
        assert_eq!(
            (&line["verified"], &line["status"]),
            (&false.into(), &200.into()),
            "{line}"
        );
        let said = line["reason"].as_str().expect("a reason");
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn an_unverified_request_is_refused_when_signatures_are_required() {
    let mut listener = Listener::start(&["--secret", SECRET, "--require-signature"]);

    let unsigned = listener.post(&[("webhook-id", "a")], b"{}");
    let signed = listener.post_signed("a", b"{}", 0);

    assert_eq!((unsigned.0, signed), (401, 200));
    assert!(unsigned.1.starts_with("not verified: "), "{}", unsigned.1);
    let line = listener.line();
    assert!(
        line.contains("  NOT VERIFIED: ") && line.contains("  try 1  -> 401  {}"),
        "{line}"
    );
    let line = listener.line();
    assert!(line.contains("  verified  try 2  -> 200  {}"), "{line}");
}

#[test]
fn secrets_come_from_the_environment_too() {
    let secrets = format!("{OTHER_SECRET},{SECRET}");
    let mut listener = Listener::start_with(&[], |command| {
        command.env("POSTRIDER_LISTEN_SECRETS", secrets);
    });

    listener.post_signed("a", b"{}", 0);

    assert!(listener.line().contains("  verified  "));
}

#[test]
fn a_binary_body_survives_in_json() {
    let mut listener = Listener::start(&["--json", "--secret", SECRET]);
    let body: Vec<u8> = (0..=255).cycle().take(100_000).collect();

    listener.post_signed("a", &body, 0);

    let line = listener.json();
    let base64 = line["body_base64"].as_str().expect("base64");
    assert_eq!(BASE64_STANDARD.decode(base64).expect("base64"), body);
    assert_eq!(
        (line.get("body"), &line["bytes"], &line["verified"]),
        (None, &100_000.into(), &true.into())
    );
}

#[test]
fn a_stdout_that_nobody_reads_holds_up_neither_answers_nor_a_signal() {
    let mut listener = Listener::start(&["--json"]);
    let more_than_a_pipe_holds = vec![b'x'; 200_000];

    let answers = [(); 5].map(|()| {
        listener
            .post(&[("webhook-id", "a")], &more_than_a_pipe_holds)
            .0
    });
    listener.signal(Signal::INT);
    let lines = [(); 5].map(|()| listener.json()["try"].clone());
    let (status, _) = listener.end();

    assert_eq!(answers, [200; 5]);
    assert_eq!(lines, [1, 2, 3, 4, 5]);
    assert_eq!(status.code(), Some(0));
}

#[test]
fn json_lines_tell_id_type_time_and_text() {
    let mut listener = Listener::start(&["--json"]);
    let body = "{\"type\":\"order.paid\",\"total\":1.00,\"é\":\"\\u0000\"}\n";

    listener.post(&[("webhook-id", "msg_1")], body.as_bytes());
    listener.post(&[], b"{\"type\":7}");

    let first = listener.json();
    let fields = [
        "id", "type", "count", "try", "method", "path", "verified", "reason", "bytes", "body",
    ];
    let values = fields.map(|name| first[name].clone());
    let nothing = Value::Null;
    let expected: [Value; 10] = [
        "msg_1".into(),
        "order.paid".into(),
        1.into(),
        1.into(),
        "POST".into(),
        "/hook".into(),
        nothing.clone(),
        nothing.clone(),
        body.len().into(),
        body.into(),
    ];
    assert_eq!(values, expected);
    let at = first["at"].as_str().expect("a time");
    chrono::DateTime::parse_from_rfc3339(at).expect(at);
    let second = listener.json();
    assert_eq!([&second["id"], &second["type"]], [&nothing; 2]);
}

#[test]
fn a_hostile_request_prints_inert() {
    for mode in [&[][..], &["--json"]] {
        let mut listener = Listener::start(mode);
        let body = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}{\"type\"\r\n\u{1b}[A overwritten";

        listener.post(&[("webhook-id", "a\u{9b}2Jb")], body.as_bytes());

        let line = listener.line();
        let acting: Vec<char> = line
            .chars()
            .filter(|it| it.is_control() || *it == '\u{202e}')
            .collect();
        assert!(acting.is_empty(), "{acting:?}: {line}");
        assert!(line.contains("1b"), "{line}");
    }
}

#[test]
fn it_ends_by_itself_when_enough_different_ids_were_accepted() {
    let mut listener = Listener::start(&["--until", "2", "--fail", "500", "--times", "1"]);

    let answers = ["a", "a", "a", "b", "b"].map(|id| listener.post_id(id));
    let (status, said) = listener.end();

    assert_eq!(answers, [500, 200, 200, 500, 200]);
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(
        said.contains("5 requests, 2 distinct ids (2 accepted), 3 repeats, 0 unverified"),
        "{said}"
    );
}

#[test]
fn a_signal_ends_it_with_a_summary() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut listener = Listener::start(&["--secret", SECRET]);
        listener.post_id("a");
        listener.post_id("a");

        listener.signal(signal);
        let (status, said) = listener.end();

        assert_eq!(status.code(), Some(0), "{said}");
        assert!(
            said.contains("2 requests, 1 distinct ids (1 accepted), 1 repeats, 2 unverified"),
            "{said}"
        );
    }
}

#[test]
fn an_answer_on_its_way_is_still_given_after_a_signal() {
    let mut listener = Listener::start(&["--delay", "300ms"]);

    let address = listener.address;
    let asking = std::thread::spawn(move || post(address, &[("webhook-id", "a")], b"{}").0);
    // It is told when it has come, before the delay.
    listener.line();
    listener.signal(Signal::TERM);
    let answer = asking.join().expect("an answer");
    let (status, said) = listener.end();

    assert_eq!((answer, status.code()), (200, Some(0)), "{said}");
}

#[test]
fn a_stop_before_enough_has_come_is_a_failure() {
    let mut listener = Listener::start(&["--until", "3"]);
    listener.post_id("a");

    listener.signal(Signal::TERM);
    let (status, said) = listener.end();

    assert_eq!(status.code(), Some(1), "{said}");
    assert!(
        said.contains("1 of the 3 webhook-ids") && said.contains("hint: "),
        "{said}"
    );
}

#[test]
fn a_signal_ends_it_while_it_is_down() {
    let mut listener = Listener::start_quietly(&["--down-for", "1h"], |_| {});
    listener.stderr_line();

    listener.signal(Signal::INT);

    assert_eq!(listener.end().0.code(), Some(0));
}

#[test]
fn an_address_in_use_is_said_with_what_to_do() {
    let first = Listener::start(&[]);

    let second = Command::new(env!("CARGO_BIN_EXE_postrider"))
        .args(["listen", "--bind", &first.address.to_string()])
        .output()
        .expect("the program runs");

    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&first.address.to_string()) && said.contains("--bind"),
        "{said}"
    );
}

#[test]
fn flags_that_make_no_sense_are_a_usage_error_that_shows_no_secret() {
    let nonsense: BTreeSet<&[&str]> = BTreeSet::from([
        &["--secret", "hunter2-hunter2"][..],
        &["--scheme", "rot13"],
        &["--require-signature"],
        &["--times", "2"],
        &["--fail", "99"],
        &["--until", "0"],
        &["--delay", "soon"],
    ]);
    for arguments in nonsense {
        let done = listen(arguments).output().expect("the program runs");

        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(
            said.contains(arguments[0]) && !said.contains("hunter2"),
            "{said}"
        );
    }
}

#[test]
fn a_body_too_large_is_refused_and_told() {
    let mut listener = Listener::start(&["--json"]);
    let mut connection = TcpStream::connect(listener.address).expect("it listens");
    let length = 32 * 1024 * 1024 + 1;
    write!(
        connection,
        "POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    )
    .expect("head");

    // It may answer and hang up before it has read all of it.
    drop(connection.write_all(&vec![b'x'; length]));

    let line = listener.json();
    assert_eq!(
        (&line["status"], &line["verified"], &line["body"]),
        (&413.into(), &false.into(), &"".into()),
        "{line}"
    );
}
