//! The headers that sign one try.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};
use thiserror::Error;

use super::mac::{Tag, to_hex};
use super::{
    GITHUB_SIGNATURE, STRIPE_SIGNATURE, Scheme, Secret, WEBHOOK_ID, WEBHOOK_SIGNATURE,
    WEBHOOK_TIMESTAMP,
};

/// Why a try cannot be signed: it is unbuildable until somebody edits the endpoint or the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SignError {
    /// The endpoint has no live secret.
    #[error(
        "the endpoint has no live secret for the signature scheme `{scheme}`: rotate its secret, or set the scheme to `none`"
    )]
    NoSecret {
        /// The scheme that needs one.
        scheme: &'static str,
    },
    /// The event id cannot stand in a header.
    #[error(
        "the event id cannot be sent as the header `webhook-id`: it must be visible ASCII, not empty, without spaces at its ends"
    )]
    EventId,
}

/// The headers that identify and sign one try: `webhook-id`, `webhook-timestamp` and those of the scheme.
///
/// `timestamp` is this try's, in seconds since 1970, for receivers refuse one that is minutes old. `body` is exactly
/// what is sent. `secrets` are the live ones, newest first; schemes that can carry several signatures use all of them.
/// Signatures are marked sensitive, so that `Debug` does not show them.
///
/// # Errors
/// See [`SignError`]; another try of the same delivery fails the same way.
pub fn sign(
    scheme: &Scheme,
    event_id: &str,
    timestamp: i64,
    body: &[u8],
    secrets: &[Secret],
) -> Result<Vec<(HeaderName, HeaderValue)>, SignError> {
    let mut headers = vec![
        (WEBHOOK_ID, event_id_header(event_id)?),
        (WEBHOOK_TIMESTAMP, HeaderValue::from(timestamp)),
    ];
    let newest = || {
        secrets.first().ok_or(SignError::NoSecret {
            scheme: scheme.as_str(),
        })
    };
    let time = timestamp.to_string();

    let (name, signature) = match scheme {
        Scheme::Standard => {
            newest()?;
            let message = [event_id.as_bytes(), b".", time.as_bytes(), b".", body];
            let signatures: Vec<_> = secrets
                .iter()
                .map(|secret| format!("v1,{}", base64(Tag::by_key(secret, &message))))
                .collect();
            (WEBHOOK_SIGNATURE, signatures.join(" "))
        }
        Scheme::Github => {
            let tag = Tag::by_text(newest()?, &[body]);
            (GITHUB_SIGNATURE, format!("sha256={}", to_hex(&tag.bytes())))
        }
        Scheme::Stripe => {
            newest()?;
            let message = [time.as_bytes(), b".", body];
            let signatures: String = secrets
                .iter()
                .map(|secret| format!(",v1={}", to_hex(&Tag::by_text(secret, &message).bytes())))
                .collect();
            (STRIPE_SIGNATURE, format!("t={time}{signatures}"))
        }
        Scheme::BodyBase64 { header } => (header.clone(), base64(Tag::by_text(newest()?, &[body]))),
        Scheme::None => return Ok(headers),
    };

    let mut value =
        HeaderValue::try_from(signature).expect("base64, hex and their separators fit a header");
    value.set_sensitive(true);
    headers.push((name, value));
    Ok(headers)
}

fn event_id_header(event_id: &str) -> Result<HeaderValue, SignError> {
    let is_visible = event_id.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    // A receiver trims a header's ends, and would then check the signature of another id.
    if event_id.is_empty() || !is_visible || event_id.trim() != event_id {
        return Err(SignError::EventId);
    }
    HeaderValue::from_str(event_id).map_err(|_| SignError::EventId)
}

fn base64(tag: Tag) -> String {
    STANDARD.encode(tag.bytes())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http::HeaderMap;
    use proptest::prelude::*;
    use standardwebhooks::Webhook;

    use super::*;

    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const TIMESTAMP: i64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const NEWEST: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OLDER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    fn secret(text: &str) -> Secret {
        Secret::parse(text).expect("the test's secret is valid")
    }

    fn signed(scheme: &Scheme, secrets: &[&str]) -> HeaderMap {
        let secrets: Vec<_> = secrets.iter().copied().map(secret).collect();
        sign(scheme, ID, TIMESTAMP, BODY, &secrets)
            .expect("the id fits a header and there are secrets")
            .into_iter()
            .collect()
    }

    fn body_base64() -> Scheme {
        Scheme::parse("body-base64", None).expect("known")
    }

    #[test]
    fn standard_signs_as_the_example_of_the_specification() {
        let headers = signed(&Scheme::Standard, &[NEWEST]);

        assert_eq!(headers["webhook-id"], ID);
        assert_eq!(headers["webhook-timestamp"], "1614265330");
        assert_eq!(
            headers["webhook-signature"],
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
        assert_eq!(headers.len(), 3);
    }

    // The three expected values below were made with `openssl dgst -sha256 -hmac`.
    #[test]
    fn github_signs_the_body_with_the_newest_secrets_text() {
        let headers = signed(&Scheme::Github, &[NEWEST, OLDER]);

        assert_eq!(
            headers["x-hub-signature-256"],
            "sha256=80ec8a89ce3cd22133a1066caecb4d04fea7467657c8514d717ec42c38a5c94c"
        );
        assert_eq!(headers.len(), 3);
    }

    #[test]
    fn body_base64_signs_the_body_with_the_newest_secrets_text() {
        let headers = signed(&body_base64(), &[NEWEST, OLDER]);

        assert_eq!(
            headers["x-hmac-sha256"],
            "gOyKic480iEzoQZsrstNBP6nRnZXyFFNcX7ELDilyUw="
        );
        assert_eq!(headers.len(), 3);
    }

    #[test]
    fn stripe_signs_timestamp_and_body_with_the_secrets_text() {
        let headers = signed(&Scheme::Stripe, &[NEWEST]);

        assert_eq!(
            headers["stripe-signature"],
            "t=1614265330,v1=2e37df5d4a028c51a7f3133d64ae1e300d2c2c900f1b1d49d4369ad2530f8964"
        );
        assert_eq!(headers.len(), 3);
    }

    #[test]
    fn c8_a_fresh_timestamp_gives_another_signature_under_the_same_id() {
        let secrets = [secret(NEWEST)];
        let at = |timestamp| {
            sign(&Scheme::Standard, ID, timestamp, BODY, &secrets)
                .expect("the same but for its time")
        };
        let (first, retry) = (at(TIMESTAMP), at(TIMESTAMP + 7200));

        assert_eq!(first[0], retry[0]);
        assert_ne!(first[1], retry[1]);
        assert_ne!(first[2], retry[2]);
        assert_eq!(first, at(TIMESTAMP));
    }

    #[test]
    fn c10_all_live_secrets_sign_and_the_newest_comes_first() {
        let text = |headers: &HeaderMap, name: &str| {
            headers[name]
                .to_str()
                .expect("signatures are ASCII")
                .to_owned()
        };
        let standard =
            |secrets: &[&str]| text(&signed(&Scheme::Standard, secrets), "webhook-signature");
        let stripe = |secrets: &[&str]| text(&signed(&Scheme::Stripe, secrets), "stripe-signature");

        let joined = [standard(&[NEWEST]), standard(&[OLDER])].join(" ");
        assert_eq!(standard(&[NEWEST, OLDER]), joined);
        let older = stripe(&[OLDER]).replace("t=1614265330", "");
        assert_eq!(stripe(&[NEWEST, OLDER]), stripe(&[NEWEST]) + &older);
    }

    #[test]
    fn unsigned_deliveries_still_carry_id_and_timestamp() {
        let headers = signed(&Scheme::None, &[]);

        assert_eq!(headers["webhook-id"], ID);
        assert_eq!(headers["webhook-timestamp"], "1614265330");
        assert_eq!(headers.len(), 2);
    }

    #[test]
    fn without_a_live_secret_nothing_is_signed() {
        for scheme in [
            Scheme::Standard,
            Scheme::Github,
            Scheme::Stripe,
            body_base64(),
        ] {
            let error = sign(&scheme, ID, TIMESTAMP, BODY, &[]);
            let scheme = scheme.as_str();
            assert_eq!(error, Err(SignError::NoSecret { scheme }));
        }
    }

    #[test]
    fn an_event_id_that_no_header_carries_is_refused_by_every_scheme() {
        let secrets = [secret(NEWEST)];

        for id in [
            "",
            " ",
            " a",
            "a ",
            "a\n",
            "a\r\nx: y",
            "a\tb",
            "a\0b",
            "a\u{7f}",
            "caf\u{e9}",
        ] {
            for scheme in [Scheme::Standard, Scheme::Github, Scheme::None] {
                let error = sign(&scheme, id, TIMESTAMP, BODY, &secrets);
                assert_eq!(error, Err(SignError::EventId), "{id:?}");
            }
        }
        assert!(sign(&Scheme::Standard, "order 7/~!", TIMESTAMP, BODY, &secrets).is_ok());
    }

    #[test]
    fn debug_shows_no_signature() {
        for scheme in [
            Scheme::Standard,
            Scheme::Github,
            Scheme::Stripe,
            body_base64(),
        ] {
            let shown = format!("{:?}", signed(&scheme, &[NEWEST]));
            assert_eq!(shown.matches("Sensitive").count(), 1, "{shown}");
        }
    }

    fn any_secret() -> impl Strategy<Value = String> {
        prop::collection::vec(any::<u8>(), 24..=64)
            .prop_map(|key| format!("whsec_{}", STANDARD.encode(key)))
    }

    fn unix_now() -> i64 {
        let since = SystemTime::UNIX_EPOCH.elapsed().expect("it is after 1970");
        i64::try_from(since.as_secs()).expect("the year is not that late")
    }

    proptest! {
        #[test]
        fn somebody_elses_library_makes_the_same_signature(
            text in any_secret(), id in "[!-~]{1,40}", timestamp in any::<i64>(), body in any::<String>(),
        ) {
            let ours = sign(&Scheme::Standard, &id, timestamp, body.as_bytes(), &[secret(&text)])
                .expect("the id is visible ASCII");
            let theirs = Webhook::new(&text)
                .and_then(|webhook| webhook.sign(&id, timestamp, body.as_bytes()))
                .expect("the secret and the body are valid");

            prop_assert_eq!(&ours[2].1, &theirs);
        }

        #[test]
        fn somebody_elses_verifier_accepts_either_secret_of_a_rotation(
            newest in any_secret(), older in any_secret(), id in "[!-~]{1,40}", body in any::<String>(),
        ) {
            let secrets = [secret(&newest), secret(&older)];
            let headers: HeaderMap =
                sign(&Scheme::Standard, &id, unix_now(), body.as_bytes(), &secrets)
                    .expect("the id is visible ASCII")
                    .into_iter()
                    .collect();

            for text in [&newest, &older] {
                let webhook = Webhook::new(text).expect("the secret is valid");
                prop_assert!(webhook.verify(body.as_bytes(), &headers).is_ok());
            }
        }

        #[test]
        fn an_id_is_refused_exactly_when_it_would_not_arrive_as_it_is(id in "[ -~\t\n\u{7f}\u{e9}]{0,4}|[ -~]{0,9}") {
            let headers = sign(&Scheme::None, &id, TIMESTAMP, BODY, &[]);

            let arrives = HeaderValue::from_bytes(id.as_bytes())
                .is_ok_and(|value| value.to_str().is_ok_and(|text| text.trim() == id && !id.contains('\t')))
                && !id.is_empty();
            prop_assert_eq!(headers.is_ok(), arrives);
            if let Ok(headers) = headers {
                prop_assert_eq!(headers[0].1.as_bytes(), id.as_bytes());
            }
        }
    }
}
