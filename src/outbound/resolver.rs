//! From a host name to the addresses that may be dialled.
//!
//! Owns the meeting of resolver and guard: the connection is made to exactly the addresses that were judged here, so a
//! name that resolves differently a moment later reaches nothing else. Hosts that are IP literals never come by; the
//! client judges those.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::{Forbidden, Guard};

/// What [`Lookup::lookup`] returns.
pub type Looking = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Asks for the addresses of a name.
pub trait Lookup: fmt::Debug + Send + Sync {
    /// All addresses of `host`, in the order in which they should be tried.
    fn lookup(&self, host: &str) -> Looking;
}

/// The operating system's resolver (`getaddrinfo`): hosts file, search domains and all.
#[derive(Clone, Copy, Debug)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, host: &str) -> Looking {
        let host = host.to_owned();

        Box::pin(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
            Ok(found.map(|addr| addr.ip()).collect())
        })
    }
}

/// A lookup behind the guard.
#[derive(Clone, Debug)]
pub(super) struct Resolver {
    pub(super) lookup: Arc<dyn Lookup>,
    pub(super) guard: Arc<Guard>,
    /// Shorter than the connect limit, so that a silent name server is told apart from a silent host.
    pub(super) limit: Duration,
}

/// Why a name leads nowhere.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unresolved {
    #[error("{host} cannot be resolved: {source}")]
    Lookup { host: String, source: io::Error },
    #[error("{host} has no address")]
    NoAddress { host: String },
    #[error("the name server did not answer for {host} within {limit:?}")]
    Slow { host: String, limit: Duration },
    #[error("{host} resolves to an address that may not be reached: {forbidden}")]
    Blocked { host: String, forbidden: Forbidden },
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();

        Box::pin(async move {
            let open = resolver.open_addresses(name.as_str().to_owned()).await?;
            // Port 0 stands for the URL's port.
            let addrs: Addrs = Box::new(open.into_iter().map(|ip| SocketAddr::new(ip, 0)));
            Ok(addrs)
        })
    }
}

impl Resolver {
    /// The addresses of `host` that the guard lets through, never none.
    async fn open_addresses(&self, host: String) -> Result<Vec<IpAddr>, Unresolved> {
        let found = match tokio::time::timeout(self.limit, self.lookup.lookup(&host)).await {
            Err(_) => {
                return Err(Unresolved::Slow {
                    host,
                    limit: self.limit,
                });
            }
            Ok(Err(source)) => return Err(Unresolved::Lookup { host, source }),
            Ok(Ok(found)) => found,
        };

        let mut open = Vec::new();
        let mut refused = None;
        for addr in found {
            match self.guard.judge(addr) {
                Ok(()) => open.push(addr),
                Err(forbidden) => refused = refused.or(Some(forbidden)),
            }
        }
        match (open.is_empty(), refused) {
            (false, _) => Ok(open),
            (true, Some(forbidden)) => Err(Unresolved::Blocked { host, forbidden }),
            (true, None) => Err(Unresolved::NoAddress { host }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed(&'static [&'static str]);

    impl Lookup for Fixed {
        fn lookup(&self, _host: &str) -> Looking {
            let addrs = self.0.iter().map(|addr| addr.parse().unwrap()).collect();
            Box::pin(async move { Ok(addrs) })
        }
    }

    fn resolver(lookup: impl Lookup + 'static) -> Resolver {
        Resolver {
            lookup: Arc::new(lookup),
            guard: Arc::new(Guard::default()),
            limit: Duration::from_secs(4),
        }
    }

    #[tokio::test]
    async fn only_the_open_addresses_of_a_mixed_answer_are_dialled() {
        let resolver = resolver(Fixed(&["10.0.0.1", "1.1.1.1", "::1", "2606:4700::1"]));

        let open = resolver
            .open_addresses("mixed.example".into())
            .await
            .unwrap();

        assert_eq!(
            open,
            [
                "1.1.1.1".parse::<IpAddr>().unwrap(),
                "2606:4700::1".parse().unwrap()
            ]
        );
    }

    #[tokio::test]
    async fn a_name_with_only_forbidden_addresses_is_blocked() {
        let resolver = resolver(Fixed(&["10.0.0.1", "::1"]));

        let refused = resolver.open_addresses("inside.example".into()).await;

        assert!(
            matches!(refused, Err(Unresolved::Blocked { forbidden, .. }) if forbidden.addr.is_ipv4())
        );
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_a_dns_failure() {
        let refused = resolver(Fixed(&[]))
            .open_addresses("empty.example".into())
            .await;

        assert!(matches!(refused, Err(Unresolved::NoAddress { .. })));
    }
}
