//! Where a redirect points, fit to be shown.
//!
//! Owns the cleaning of a `Location` for an error text. A receiver may put a login, a token or any bytes into one; it
//! is only ever shown, never followed.

/// The most of a `Location` that an error repeats, in characters.
pub const LOCATION_CAP: usize = 500;

/// A `Location` as an error may show it: text, on one line, without userinfo, query and fragment.
pub(super) fn printable(location: &[u8]) -> String {
    // Control characters go first, since clients skip some of them where a URL is parsed.
    let text: String = String::from_utf8_lossy(location)
        .chars()
        .filter(|character| !character.is_control())
        .collect();
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let target = text[..end].trim();

    let (before, authority_on) = target.split_at(authority_start(target));
    let authority_end = authority_on.find(['/', '\\']).unwrap_or(authority_on.len());
    let host = authority_on[..authority_end]
        .rfind('@')
        .map_or(0, |at| at + 1);

    before
        .chars()
        .chain(authority_on[host..].chars())
        .take(LOCATION_CAP)
        .collect()
}

/// Where the authority begins: behind a scheme and its slashes, or behind two slashes. Browsers take a backslash for a
/// slash and any number of them, so both count. A path has no authority, then it is the end of the text.
fn authority_start(target: &str) -> usize {
    let is_slash = |character| matches!(character, '/' | '\\');
    let scheme = target
        .find(':')
        .filter(|&colon| !target[..colon].contains(is_slash))
        .map_or(0, |colon| colon + 1);
    let slashes = target[scheme..]
        .chars()
        .take_while(|&c| is_slash(c))
        .count();

    if scheme > 0 || slashes >= 2 {
        scheme + slashes
    } else {
        target.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn c18_a_redirect_target_shows_no_credentials_and_no_query() {
        let table: &[(&[u8], &str)] = &[
            (
                b"https://me:s3cret@example.com:8443/a",
                "https://example.com:8443/a",
            ),
            (b"https://s3cret@example.com", "https://example.com"),
            (b"https://me:s3@cret@example.com/", "https://example.com/"),
            (b"//me:s3cret@example.com/a", "//example.com/a"),
            (b"https:me:s3cret@example.com/a", "https:example.com/a"),
            (
                b"https:\\\\me:s3cret@example.com\\a",
                "https:\\\\example.com\\a",
            ),
            (b"ht\ttps://me:s3cret@example.com/", "https://example.com/"),
            (
                b"https://example.com/a?token=s3cret",
                "https://example.com/a",
            ),
            (
                b"https://example.com/a#token=s3cret",
                "https://example.com/a",
            ),
            (b"/login?next=s3cret", "/login"),
            (b"/@someone/posts", "/@someone/posts"),
            (
                b"https://example.com/@someone",
                "https://example.com/@someone",
            ),
            (b"/caf\xe9\x00\r\n/a", "/caf\u{fffd}/a"),
            (b"\xff", "\u{fffd}"),
        ];

        for &(location, shown) in table {
            assert_eq!(printable(location), shown);
        }
    }

    #[test]
    fn a_redirect_target_is_cut_at_500_characters() {
        let long = format!("https://example.com/{}", "é".repeat(1000));

        let shown = printable(long.as_bytes());

        assert_eq!(shown.chars().count(), LOCATION_CAP);
        assert!(long.starts_with(&shown));
    }

    proptest! {
        #[test]
        fn any_location_gives_one_clean_line(location in prop::collection::vec(any::<u8>(), 0..700)) {
            let shown = printable(&location);

            prop_assert!(shown.chars().count() <= LOCATION_CAP);
            prop_assert!(!shown.contains(|c: char| c.is_control() || c == '?' || c == '#'));
        }

        #[test]
        fn what_a_url_parser_takes_for_a_credential_is_never_shown(
            scheme in "(https|http|ftp|HTTPS)",
            slashes in r"(//|/|///|\\\\|/\\|)",
            user in "[a-z:@;=%.-]{0,8}",
            path in r"[/\\][a-z@:/.]{0,20}",
            query in r"(\?[a-z=@/]{0,10})?",
        ) {
            let location = format!("{scheme}:{slashes}{user}SECRET@example.com{path}{query}");
            let parsed = url::Url::parse(&location);
            prop_assume!(parsed.is_ok_and(|url| url.host_str() == Some("example.com")));

            prop_assert!(!printable(location.as_bytes()).contains("SECRET"));
        }
    }
}
