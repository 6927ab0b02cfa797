use http::HeaderValue;
use proptest::prelude::*;

use super::super::sign;
use super::*;

const NOW: i64 = 1_614_265_330;
const TOLERANCE: Duration = Duration::from_secs(300);
const ID: &str = "evt_1";
const BODY: &[u8] = b"{\"a\":1.00}\n\xff\x00";

fn secret(fill: u8) -> Secret {
    Secret::parse(&format!("whsec_{}", STANDARD.encode([fill; 32]))).expect("32 bytes are a key")
}

fn schemes() -> [Scheme; 4] {
    let body_base64 = Scheme::parse("body-base64", Some("x-shop-hmac")).expect("known");
    [
        Scheme::Standard,
        Scheme::Github,
        Scheme::Stripe,
        body_base64,
    ]
}

fn signature_header(scheme: &Scheme) -> HeaderName {
    match scheme {
        Scheme::Standard => WEBHOOK_SIGNATURE,
        Scheme::Github => GITHUB_SIGNATURE,
        Scheme::Stripe => STRIPE_SIGNATURE,
        Scheme::BodyBase64 { header } => header.clone(),
        Scheme::None => panic!("`none` has no signature"),
    }
}

fn signed(scheme: &Scheme, timestamp: i64, secrets: &[Secret]) -> HeaderMap {
    sign(scheme, ID, timestamp, BODY, secrets)
        .expect("the id fits a header and there are secrets")
        .into_iter()
        .collect()
}

fn check(scheme: &Scheme, headers: &HeaderMap, secrets: &[Secret]) -> Result<(), VerifyError> {
    verify(scheme, headers, BODY, secrets, NOW, TOLERANCE)
}

#[test]
fn what_is_signed_is_verified() {
    for scheme in schemes() {
        let headers = signed(&scheme, NOW, &[secret(1)]);
        assert_eq!(check(&scheme, &headers, &[secret(1)]), Ok(()));
    }
}

#[test]
fn another_secret_or_another_body_is_a_mismatch() {
    for scheme in schemes() {
        let headers = signed(&scheme, NOW, &[secret(1)]);

        let other_secret = check(&scheme, &headers, &[secret(2)]);
        let other_body = verify(&scheme, &headers, b"{}", &[secret(1)], NOW, TOLERANCE);

        assert_eq!(other_secret, Err(VerifyError::Mismatch));
        assert_eq!(other_body, Err(VerifyError::Mismatch));
    }
}

#[test]
fn c10_during_a_rotation_either_side_may_hold_either_secret() {
    for scheme in [Scheme::Standard, Scheme::Stripe] {
        let headers = signed(&scheme, NOW, &[secret(2), secret(1)]);

        for held in [1, 2] {
            assert_eq!(check(&scheme, &headers, &[secret(held)]), Ok(()));
        }
        assert_eq!(
            check(&scheme, &headers, &[secret(3)]),
            Err(VerifyError::Mismatch)
        );
    }
    for scheme in schemes() {
        let headers = signed(&scheme, NOW, &[secret(1)]);
        assert_eq!(check(&scheme, &headers, &[secret(2), secret(1)]), Ok(()));
    }
}

#[test]
fn c8_a_signature_beyond_the_tolerance_is_refused_on_both_sides() {
    for scheme in [Scheme::Standard, Scheme::Stripe] {
        let at = |timestamp| {
            check(
                &scheme,
                &signed(&scheme, timestamp, &[secret(1)]),
                &[secret(1)],
            )
        };
        let seconds = 301;

        assert_eq!(at(NOW - 300), Ok(()));
        assert_eq!(at(NOW + 300), Ok(()));
        assert_eq!(at(NOW - 301), Err(VerifyError::TooOld { seconds }));
        assert_eq!(at(NOW + 301), Err(VerifyError::TooNew { seconds }));
        assert!(at(i64::MIN).is_err() && at(i64::MAX).is_err());
    }
}

#[test]
fn a_scheme_that_signs_no_time_checks_none() {
    for scheme in [Scheme::Github, schemes()[3].clone()] {
        let headers = signed(&scheme, 0, &[secret(1)]);
        assert_eq!(check(&scheme, &headers, &[secret(1)]), Ok(()));
    }
}

#[test]
fn a_missing_header_is_named() {
    for scheme in schemes() {
        let needed = match scheme {
            Scheme::Standard => vec![WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE],
            Scheme::Github | Scheme::Stripe | Scheme::BodyBase64 { .. } | Scheme::None => {
                vec![signature_header(&scheme)]
            }
        };

        for header in needed {
            let mut headers = signed(&scheme, NOW, &[secret(1)]);
            headers.remove(&header);

            let error = check(&scheme, &headers, &[secret(1)]).expect_err("a header is missing");
            assert!(error.to_string().contains(header.as_str()));
            assert_eq!(error, VerifyError::MissingHeader { header });
        }
    }
}

#[test]
fn a_malformed_signature_header_is_named() {
    let table: [(&Scheme, &[&str]); 4] = [
        (
            &schemes()[0],
            &["", "v1", "v1,", "v2,AAAA", "v1,*", "sha256=00", "v1,AAA"],
        ),
        (
            &schemes()[1],
            &["", "sha256", "sha1=00", "sha256=0", "sha256=AB", "00"],
        ),
        (
            &schemes()[2],
            &[
                "",
                "t=1",
                "v1=00",
                "t=1,v1=0",
                "t=x,v1=00",
                "t=1;v1=00",
                "t=1,v0=00",
                "t=1, v1=00",
            ],
        ),
        (&schemes()[3], &["*", "AAA", "AAAA AAAA", "-_-_"]),
    ];

    for (scheme, values) in table {
        for value in values {
            let header = signature_header(scheme);
            let mut headers = signed(scheme, NOW, &[secret(1)]);
            headers.insert(&header, HeaderValue::from_static(value));

            let error = check(scheme, &headers, &[secret(1)]);
            // Empty base64 is well formed, and matches nothing.
            let is_refused = match &error {
                Err(VerifyError::MalformedHeader { header: named, .. }) => *named == header,
                Err(VerifyError::Mismatch) => *value == "v1,",
                other => panic!("{value:?}: {other:?}"),
            };
            assert!(is_refused, "{value:?}: {error:?}");
        }
    }
}

#[test]
fn a_malformed_timestamp_is_named() {
    for value in ["", "soon", "1614265330.0", "99999999999999999999"] {
        let mut headers = signed(&Scheme::Standard, NOW, &[secret(1)]);
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from_static(value));

        let error = check(&Scheme::Standard, &headers, &[secret(1)]);
        let (header, form) = (WEBHOOK_TIMESTAMP, TIMESTAMP_FORM);
        assert_eq!(error, Err(VerifyError::MalformedHeader { header, form }));
    }
}

#[test]
fn signatures_of_other_versions_are_passed_over() {
    let mut headers = signed(&Scheme::Standard, NOW, &[secret(1)]);
    let ours = headers[WEBHOOK_SIGNATURE].to_str().expect("ASCII");
    let with_others = format!("v1a,bm90IG91cnM= {ours} v2,*");
    headers.insert(WEBHOOK_SIGNATURE, with_others.parse().expect("still ASCII"));

    assert_eq!(check(&Scheme::Standard, &headers, &[secret(1)]), Ok(()));
}

#[test]
fn nothing_is_trusted_without_a_secret_or_without_a_signature() {
    for scheme in schemes() {
        let headers = signed(&scheme, NOW, &[secret(1)]);
        assert_eq!(check(&scheme, &headers, &[]), Err(VerifyError::NoSecret));
    }
    let unsigned = signed(&Scheme::None, NOW, &[]);
    assert_eq!(
        check(&Scheme::None, &unsigned, &[secret(1)]),
        Err(VerifyError::Unsigned)
    );
}

fn any_scheme() -> impl Strategy<Value = Scheme> {
    prop::sample::select(schemes().to_vec())
}

/// The headers that a scheme's signature stands for or stands in.
fn covered(scheme: &Scheme) -> Vec<HeaderName> {
    let mut headers = vec![signature_header(scheme)];
    if *scheme == Scheme::Standard {
        headers.extend([WEBHOOK_ID, WEBHOOK_TIMESTAMP]);
    }
    headers
}

proptest! {
    #[test]
    fn any_signed_body_is_verified_within_the_tolerance(
        scheme in any_scheme(),
        key in prop::collection::vec(any::<u8>(), 24..=64),
        id in "[!-~]([ -~]{0,30}[!-~])?",
        body in any::<Vec<u8>>(),
        timestamp in 0..4_000_000_000_i64,
        skew in -300..=300_i64,
    ) {
        let secrets =
            [Secret::parse(&format!("whsec_{}", STANDARD.encode(key))).expect("in range")];
        let headers = sign(&scheme, &id, timestamp, &body, &secrets)
            .expect("the id is visible ASCII")
            .into_iter()
            .collect();

        prop_assert_eq!(
            verify(&scheme, &headers, &body, &secrets, timestamp + skew, TOLERANCE),
            Ok(())
        );
    }

    #[test]
    fn one_flipped_bit_in_the_body_is_refused(
        scheme in any_scheme(),
        body in prop::collection::vec(any::<u8>(), 1..200),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u32,
    ) {
        let headers = sign(&scheme, ID, NOW, &body, &[secret(1)])
            .expect("the id fits a header")
            .into_iter()
            .collect();
        let mut flipped = body.clone();
        flipped[at.index(body.len())] ^= 1 << bit;

        prop_assert_eq!(
            verify(&scheme, &headers, &flipped, &[secret(1)], NOW, TOLERANCE),
            Err(VerifyError::Mismatch)
        );
    }

    #[test]
    fn any_headers_are_refused_without_a_panic(
        scheme in any_scheme(),
        value in prop::collection::vec(prop_oneof![Just(b'\t'), 0x20..=0x7e_u8, 0x80..=0xff_u8], 0..80),
    ) {
        let mut headers = signed(&scheme, NOW, &[secret(1)]);
        let value = HeaderValue::from_bytes(&value).expect("no control characters");
        headers.insert(signature_header(&scheme), value);

        prop_assert!(check(&scheme, &headers, &[secret(1)]).is_err());
    }
}

#[test]
fn one_flipped_bit_in_any_covered_header_is_refused() {
    for scheme in schemes() {
        let good = signed(&scheme, NOW, &[secret(1)]);
        assert_eq!(check(&scheme, &good, &[secret(1)]), Ok(()));

        for header in covered(&scheme) {
            let value = good[&header].as_bytes();
            for (at, bit) in (0..value.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut flipped = value.to_vec();
                flipped[at] ^= 1 << bit;
                // What no header can hold never arrives.
                let Ok(flipped) = HeaderValue::from_bytes(&flipped) else {
                    continue;
                };
                let mut headers = good.clone();
                headers.insert(&header, flipped.clone());

                assert!(
                    check(&scheme, &headers, &[secret(1)]).is_err(),
                    "{header}: {flipped:?} passed"
                );
            }
        }
    }
}

#[test]
fn one_flipped_bit_in_the_secret_is_refused() {
    for scheme in schemes() {
        let headers = signed(&scheme, NOW, &[secret(1)]);
        for (at, bit) in (0..32).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut key = [1; 32];
            key[at] ^= 1 << bit;
            let other =
                Secret::parse(&format!("whsec_{}", STANDARD.encode(key))).expect("32 bytes");

            assert_eq!(
                check(&scheme, &headers, &[other]),
                Err(VerifyError::Mismatch)
            );
        }
    }
}
