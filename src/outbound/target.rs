//! The URL of an endpoint, taken apart: what is sent to, and the credentials in it.
//!
//! Owns the rules for URLs. Whether the host may be reached is for the guard.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderValue;
use url::Url;

use super::Unbuildable;

/// The URL without credentials and fragment, and the credentials as a value for `authorization`.
pub(super) fn parse(text: &str) -> Result<(Url, Option<HeaderValue>), Unbuildable> {
    // The parser drops line breaks and tabs, and so would make another host of what the user never wrote.
    if text.chars().any(char::is_control) {
        return Err(Unbuildable::RequestLine);
    }
    let mut url = Url::parse(text)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Unbuildable::Scheme);
    }

    url.set_fragment(None);
    let basic = take_credentials(&mut url)?;
    match url.as_str().parse::<http::Uri>() {
        Ok(_) => Ok((url, basic)),
        Err(_) => Err(Unbuildable::RequestLine),
    }
}

/// Moves `user:password@` out of the URL into the value of an `authorization` header (RFC 7617).
fn take_credentials(url: &mut Url) -> Result<Option<HeaderValue>, Unbuildable> {
    if url.username().is_empty() && url.password().is_none() {
        return Ok(None);
    }

    let mut pair = percent_decoded(url.username());
    pair.push(b':');
    pair.extend(percent_decoded(url.password().unwrap_or_default()));
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64.encode(pair)))
        .expect("base64 is printable ASCII");
    value.set_sensitive(true);

    url.set_username("").map_err(|()| Unbuildable::Scheme)?;
    url.set_password(None).map_err(|()| Unbuildable::Scheme)?;
    Ok(Some(value))
}

/// What is no valid escape stands for itself, as in browsers.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();

    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        decoded.push(match (byte, after) {
            (b'%', &[high, low, ref tail @ ..]) => match (hex(high), hex(low)) {
                (Some(high), Some(low)) => {
                    rest = tail;
                    high * 16 + low
                }
                _ => byte,
            },
            _ => byte,
        });
    }
    decoded
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_malformed_escape_in_the_credentials_stands_for_itself() {
        assert_eq!(percent_decoded("a%zz%4"), b"a%zz%4");
        assert_eq!(percent_decoded("%ff%41%"), b"\xffA%");
    }

    #[test]
    fn a_line_break_in_a_url_does_not_make_another_host_of_it() {
        for text in ["http://a\r\nb/", "http://a\tb/", "http://a/\u{7f}"] {
            assert_eq!(parse(text), Err(Unbuildable::RequestLine), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_credentials_survive_the_way_into_the_header(user in "[^:%]{1,12}", password in "[^%]{0,12}") {
            // Without %: the setters take it for the beginning of an escape, and leave it as it is.
            let mut url = Url::parse("https://host/").unwrap();
            url.set_username(&user).unwrap();
            url.set_password(Some(&password)).unwrap();

            let (bare, basic) = parse(url.as_str()).unwrap();

            prop_assert_eq!(bare.as_str(), "https://host/");
            let expected = format!("Basic {}", BASE64.encode(format!("{user}:{password}")));
            prop_assert_eq!(basic.unwrap(), expected);
        }

        #[test]
        fn no_text_makes_the_parser_panic_or_leak(text in "(https?://)?.{0,40}") {
            if let Ok((url, _)) = parse(&text) {
                prop_assert!(url.username().is_empty() && url.password().is_none());
                prop_assert!(url.has_host());
            }
        }
    }
}
