//! A delivery and an endpoint as the claim hands them over; a test names only what it is about.

use std::time::Duration;

use postrider::delivery::{Delivery, Endpoint};
use postrider::policy::{Policy, RetryOn, Schedule};
use postrider::signing::{Scheme, Secret};

pub(crate) fn delivery(body: impl Into<Vec<u8>>) -> Delivery {
    Delivery {
        id: 1,
        endpoint: "shop".into(),
        event_id: "evt_1".into(),
        event_type: "order.paid".into(),
        body: body.into().into(),
        content_type: "application/json".into(),
        headers: None,
        claim_no: 1,
        attempt_count: 0,
        tries_used: 0,
        max_retries: 7,
    }
}

pub(crate) fn endpoint(url: impl Into<String>) -> Endpoint {
    Endpoint {
        name: "shop".into(),
        revision: 1,
        url: url.into(),
        method: "POST".into(),
        headers: None,
        timeout: Duration::from_secs(15),
        scheme: Ok(Scheme::Standard),
        secrets: vec![
            Secret::parse("whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH").expect("base64 of 24 bytes"),
        ],
        policy: Policy {
            schedule: Schedule::Fixed {
                delays: vec![Duration::from_secs(5)],
            },
            jitter: 0.0,
            retry_on: RetryOn::default(),
        },
    }
}
