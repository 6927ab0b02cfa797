//! Text that PostgreSQL can hold, made of whatever a receiver sent.
//!
//! A row must never be poisoned by an answer: NUL and bytes that are not UTF-8 have no place in a `text` or `jsonb` column.

/// Longest error text that is stored, in bytes.
const ERROR_CAP: usize = 2000;

/// The same text without NUL, cut between characters.
pub(super) fn storable(text: &str) -> String {
    let mut kept: String = text.replace('\0', "\u{fffd}");
    if kept.len() > ERROR_CAP {
        let mut ends = (0..=ERROR_CAP).rev();
        kept.truncate(ends.find(|&end| kept.is_char_boundary(end)).unwrap_or(0));
        kept.push('…');
    }
    kept
}

/// `[[name, value], ...]` of what was sent.
pub(super) fn request_headers(headers: &[(String, String)]) -> String {
    pairs(
        headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.replace('\0', "\u{fffd}"))),
    )
}

/// `[[name, value], ...]` of what came back; a byte that is not UTF-8 becomes `\xNN`.
pub(super) fn response_headers(headers: &[(String, Vec<u8>)]) -> String {
    pairs(
        headers
            .iter()
            .map(|(name, value)| (name.as_str(), readable(value))),
    )
}

fn pairs<'a>(headers: impl Iterator<Item = (&'a str, String)>) -> String {
    let list: Vec<[String; 2]> = headers
        .map(|(name, value)| [name.to_owned(), value])
        .collect();
    serde_json::to_string(&list).expect("a list of strings has a JSON form")
}

fn readable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(&chunk.valid().replace('\0', "\\x00"));
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c6_header_values_survive_whatever_their_bytes() {
        let headers = vec![
            ("x-reason".to_owned(), b"caf\xC3\xA9".to_vec()),
            ("x-bin".to_owned(), b"\xFF".to_vec()),
            ("set-cookie".to_owned(), b"a=1".to_vec()),
            ("set-cookie".to_owned(), b"b=2".to_vec()),
        ];

        let json = response_headers(&headers);

        assert_eq!(
            json,
            r#"[["x-reason","café"],["x-bin","\\xFF"],["set-cookie","a=1"],["set-cookie","b=2"]]"#
        );
    }

    #[test]
    fn an_error_text_is_cut_between_characters_and_holds_no_nul() {
        let long = format!("a\0{}", "é".repeat(ERROR_CAP));

        let kept = storable(&long);

        assert!(kept.starts_with("a\u{fffd}é"));
        assert!(kept.len() <= ERROR_CAP + '…'.len_utf8());
        assert!(kept.ends_with('…'));
    }
}
