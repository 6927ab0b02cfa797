//! How a request looks on the terminal, as text or as JSON.
//!
//! Whatever a sender puts into a request, printing it moves no cursor, sets no colour and reverses no text.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::{Local, SecondsFormat};
use serde::Serialize;

use super::receiver::{Check, Received, Summary};

/// Characters of a body's first line that are shown.
const BODY_WIDTH: usize = 100;

/// Characters of an id or an event type that are shown.
const WORD_WIDTH: usize = 80;

/// A request for people.
pub(super) fn text(received: &Received) -> String {
    let word = |word: &Option<String>| {
        word.as_deref()
            .map_or("-".to_owned(), |word| inert(word, WORD_WIDTH))
    };
    let check = match &received.check {
        Check::Verified => "verified".to_owned(),
        Check::Unverified(reason) => format!("NOT VERIFIED: {}", inert(reason, usize::MAX)),
        Check::Unchecked => "not checked (no --secret)".to_owned(),
    };
    let fields = [
        received
            .at
            .with_timezone(&Local)
            .format("%H:%M:%S%.3f")
            .to_string(),
        format!("#{}", received.count),
        word(&received.id),
        word(&received.event_type),
        format!("{} B", received.body.len()),
        check,
        format!("try {}", received.try_no),
        format!("-> {}", received.status.as_u16()),
        first_line(&received.body),
    ];
    fields.join("  ").trim_end().to_owned()
}

/// A request for programs.
pub(super) fn json(received: &Received) -> String {
    let body = std::str::from_utf8(&received.body).ok();
    let line = Line {
        at: received.at.to_rfc3339_opts(SecondsFormat::Millis, true),
        count: received.count,
        id: received.id.as_deref(),
        event_type: received.event_type.as_deref(),
        try_no: received.try_no,
        method: &received.method,
        path: &received.path,
        status: received.status.as_u16(),
        verified: match received.check {
            Check::Verified => Some(true),
            Check::Unverified(_) => Some(false),
            Check::Unchecked => None,
        },
        reason: match &received.check {
            Check::Unverified(reason) => Some(reason),
            Check::Verified | Check::Unchecked => None,
        },
        bytes: received.body.len(),
        body,
        body_base64: body
            .is_none()
            .then(|| BASE64_STANDARD.encode(&received.body)),
    };
    let line = serde_json::to_string(&line).expect("strings and numbers always serialise");
    escape_in_json(&line)
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    count: u64,
    id: Option<&'a str>,
    #[serde(rename = "type")]
    event_type: Option<&'a str>,
    #[serde(rename = "try")]
    try_no: u64,
    method: &'a str,
    path: &'a str,
    status: u16,
    verified: Option<bool>,
    reason: Option<&'a str>,
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

/// The last line.
pub(super) fn summary(summary: &Summary) -> String {
    let Summary {
        requests,
        ids,
        repeats,
        unverified,
        accepted,
    } = summary;
    format!(
        "received: {requests} requests, {ids} distinct ids ({accepted} accepted), {repeats} repeats, {unverified} unverified"
    )
}

fn first_line(body: &[u8]) -> String {
    // Only what can be shown is looked at: a body may have megabytes without a line's end.
    let start = &body[..body.len().min(4 * BODY_WIDTH + 4)];
    let text = String::from_utf8_lossy(start);
    let (line, rest) = text.split_once(['\n', '\r']).unwrap_or((&text, ""));
    let mut shown = inert(line, BODY_WIDTH);
    if !rest.trim().is_empty() && !shown.ends_with('…') {
        shown.push_str(" …");
    }
    shown
}

/// `text` with everything a terminal would act on written out, cut to so many of its characters.
fn inert(text: &str, width: usize) -> String {
    let mut shown = String::new();
    let mut characters = text.chars();
    for character in characters.by_ref().take(width) {
        if acts_on_a_terminal(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// JSON lets C1 and direction controls stand in a string as they are; terminals do not let them pass.
fn escape_in_json(line: &str) -> String {
    let mut escaped = String::with_capacity(line.len());
    for character in line.chars() {
        if acts_on_a_terminal(character) {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                write!(escaped, "\\u{unit:04x}").expect("writing to a String cannot fail");
            }
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Controls (C0, DEL, C1), line separators, and what changes the direction or the visibility of text.
fn acts_on_a_terminal(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;

    use super::*;

    fn received(body: &[u8]) -> Received {
        Received {
            at: chrono::DateTime::UNIX_EPOCH,
            count: 7,
            method: "POST".to_owned(),
            path: "/hook".to_owned(),
            id: Some("msg_1".to_owned()),
            event_type: Some("order.paid".to_owned()),
            try_no: 2,
            check: Check::Verified,
            status: StatusCode::OK,
            body: Bytes::copy_from_slice(body),
        }
    }

    #[test]
    fn a_line_tells_it_all_in_one_order() {
        let line = text(&received(b"{\"a\":1}\n"));

        let (_, after_time) = line.split_once("  ").expect("a time");
        assert_eq!(
            after_time,
            "#7  msg_1  order.paid  8 B  verified  try 2  -> 200  {\"a\":1}"
        );
    }

    #[test]
    fn nothing_that_a_sender_writes_acts_on_the_terminal() {
        let hostile = "\u{1b}[2J\u{7}\u{9b}31m\u{202e}txt\u{200b}\u{7f}\u{2028}\u{e0041}";
        let mut received = received(hostile.as_bytes());
        received.id = Some(hostile.to_owned());
        received.event_type = Some(hostile.to_owned());
        received.path = hostile.to_owned();
        received.check = Check::Unverified(hostile.to_owned());

        for line in [text(&received), json(&received)] {
            let acting: Vec<char> = line.chars().filter(|it| acts_on_a_terminal(*it)).collect();
            assert!(acting.is_empty(), "{acting:?}: {line}");
        }
    }

    #[test]
    fn what_is_escaped_in_json_reads_back_as_it_was() {
        let hostile = "\u{1b}[2J\u{9b}\u{202e}\u{7f}\u{e0041} \"\\ é \u{0}";

        let line: serde_json::Value =
            serde_json::from_str(&json(&received(hostile.as_bytes()))).expect("JSON");

        assert_eq!(line["body"], hostile);
        assert_eq!(line.get("body_base64"), None);
    }

    #[test]
    fn a_long_body_is_cut_between_characters_and_marked() {
        let line = first_line("é".repeat(3 * BODY_WIDTH).as_bytes());

        assert_eq!(line, format!("{}…", "é".repeat(BODY_WIDTH)));
    }

    #[test]
    fn only_the_first_line_of_a_body_is_shown_and_the_rest_is_marked() {
        assert_eq!(first_line(b"one\ntwo"), "one …");
        assert_eq!(first_line(b"one\rtwo"), "one …");
        assert_eq!(first_line(b"one\r\n"), "one");
        assert_eq!(first_line(b"one\n"), "one");
        assert_eq!(first_line(b""), "");
    }
}
