//! The bare client, as fast as it goes: what a request costs before anything of ours is done with it.
//!
//! The yardstick of `postrider bench`. It guards, signs, judges and keeps nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, Method};
use tokio::task::JoinSet;

use super::ClientError;

/// What is sent over and over.
#[derive(Clone, Debug)]
pub struct Flood {
    /// Where to.
    pub url: url::Url,
    /// The same for all.
    pub headers: HeaderMap,
    /// The same for all.
    pub body: bytes::Bytes,
    /// How many, in all.
    pub requests: usize,
    /// How many at a time.
    pub in_flight: usize,
}

/// Sends all of them and returns how many were answered with a 2xx.
///
/// # Errors
///
/// [`ClientError`] when there is no client.
pub async fn flood(flood: Flood) -> Result<usize, ClientError> {
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .pool_max_idle_per_host(usize::MAX)
        .tcp_nodelay(true)
        .build()
        .map_err(ClientError::Http)?;
    let flood = Arc::new(flood);
    let (begun, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut senders = JoinSet::new();
    for _ in 0..flood.in_flight {
        let (client, flood, begun, answered) = (
            client.clone(),
            Arc::clone(&flood),
            Arc::clone(&begun),
            Arc::clone(&answered),
        );
        senders.spawn(async move {
            while begun.fetch_add(1, Ordering::Relaxed) < flood.requests {
                let mut request = reqwest::Request::new(Method::POST, flood.url.clone());
                request.headers_mut().clone_from(&flood.headers);
                *request.body_mut() = Some(flood.body.clone().into());
                if let Ok(response) = client.execute(request).await
                    && response.status().is_success()
                    && response.bytes().await.is_ok()
                {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while senders.join_next().await.is_some() {}
    Ok(answered.load(Ordering::Relaxed))
}
