//! What may be shown of values that somebody else wrote: control characters made visible, credentials masked.
//!
//! Owns no output. Pages, terminals and log lines all call this on their way out.

use url::Url;

/// Stands in the place of what must not be shown.
const MASK: &str = "***";

/// One line of text in which nothing moves a cursor, changes a colour or turns the direction of reading.
///
/// `\n`, `\r` and `\t` become their escapes, other control and direction characters `\u{..}`.
#[must_use]
pub fn line(text: &str) -> String {
    escape(text, |_| false)
}

/// As [`line()`], but line breaks and tabs stay: for a payload shown as it was laid out.
#[must_use]
pub fn paragraph(text: &str) -> String {
    escape(text, |character| matches!(character, '\n' | '\t'))
}

/// Whether a terminal does something else than draw it.
#[must_use]
pub fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_harmful(character) && !keep(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// A URL without its user, password and fragment, the values of its query masked.
#[must_use]
pub fn url(stored: &str) -> String {
    match Url::parse(stored) {
        // `data:` and its like have no place to look for credentials in, so nothing of them is shown.
        Ok(url) if url.cannot_be_a_base() => format!("{}:{MASK}", url.scheme()),
        Ok(url) => without_credentials(url),
        // Not a URL, so nobody knows where in it a password stands.
        Err(_) => format!("{MASK} (not a URL)"),
    }
}

fn without_credentials(mut url: Url) -> String {
    // These refuse only URLs that have no host, and so no credentials.
    url.set_username("").ok();
    url.set_password(None).ok();
    url.set_fragment(None);
    let masked: Option<Vec<String>> = url.query().map(|query| {
        query
            .split('&')
            .map(|pair| match pair.split_once('=') {
                Some((name, _)) => format!("{name}={MASK}"),
                // A value without a name is as likely a token as a flag.
                None => MASK.to_owned(),
            })
            .collect()
    });
    url.set_query(masked.map(|pairs| pairs.join("&")).as_deref());
    line(url.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c16_a_shown_url_has_no_credentials_and_no_query_values() {
        let shown = url("https://user:s3cret@example.com:8443/in?token=s3cret&s3cret&a=#s3cret");

        assert_eq!(shown, "https://example.com:8443/in?token=***&***&a=***");
    }

    #[test]
    fn what_is_no_url_is_not_shown_at_all() {
        for stored in ["user:s3cret@host/", "http://user:s3cret@", "s3cret", ""] {
            assert!(!url(stored).contains("s3cret"), "{stored}: {}", url(stored));
        }
    }

    #[test]
    fn terminal_escapes_become_text() {
        assert_eq!(
            line("a\u{1b}[31m\r\nb\u{9b}\u{202e}c\u{e9}"),
            "a\\u{1b}[31m\\r\\nb\\u{9b}\\u{202e}c\u{e9}"
        );
        assert_eq!(
            paragraph("{\n\t\"a\": \"\u{7f}\"\r\n}"),
            "{\n\t\"a\": \"\\u{7f}\"\\r\n}"
        );
    }
}
