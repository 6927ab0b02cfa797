//! The address guard: which addresses a delivery may reach.
//!
//! Owns the judgement of one parsed address. It resolves nothing and dials nothing; the resolver and the client ask it
//! about every address right before that address is dialled, so there is no second lookup that could answer otherwise.
//! The ranges are those of the IANA special-purpose registries for IPv4 and IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Judges addresses: the public internet is open, everything else needs to be named.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// What `--allow-network` opens. An IPv4 network also opens its IPv4-mapped spelling in IPv6.
    pub allowed: Vec<IpNet>,
}

/// Why an address may not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{addr} is forbidden ({reason}, {range}); --allow-network {addr} opens it")]
pub struct Forbidden {
    /// The address that was asked for.
    pub addr: IpAddr,
    /// The forbidden range that it lies in.
    pub range: IpNet,
    /// What that range is for.
    pub reason: &'static str,
}

impl Guard {
    /// Says whether `addr` may be dialled.
    ///
    /// # Errors
    ///
    /// [`Forbidden`] with the range; the delivery must not be sent, and sending it again changes nothing.
    pub fn judge(&self, addr: IpAddr) -> Result<(), Forbidden> {
        if self.opens(addr) {
            return Ok(());
        }

        let found = match addr {
            IpAddr::V4(v4) => forbidden_v4(v4),
            IpAddr::V6(v6) => match translated(v6) {
                Some(v4) if self.opens(v4.into()) => None,
                Some(v4) => forbidden_v4(v4),
                None => forbidden_v6(v6),
            },
        };

        match found {
            None => Ok(()),
            Some((range, reason)) => Err(Forbidden {
                addr,
                range,
                reason,
            }),
        }
    }

    fn opens(&self, addr: IpAddr) -> bool {
        self.allowed
            .iter()
            .any(|net| net.contains(&addr) || net.contains(&addr.to_canonical()))
    }
}

/// The IPv4 address that a NAT64 gateway would reach for `addr` (RFC 6052, the well-known prefix).
fn translated(addr: Ipv6Addr) -> Option<Ipv4Addr> {
    let [.., a, b, c, d] = addr.octets();

    NAT64.contains(&addr).then(|| Ipv4Addr::new(a, b, c, d))
}

fn forbidden_v4(addr: Ipv4Addr) -> Option<(IpNet, &'static str)> {
    V4.iter()
        .find(|(range, _)| range.contains(&addr))
        .map(|(range, reason)| (IpNet::V4(*range), *reason))
}

fn forbidden_v6(addr: Ipv6Addr) -> Option<(IpNet, &'static str)> {
    let listed = V6
        .iter()
        .find(|(range, _)| range.contains(&addr))
        .map(|(range, reason)| (IpNet::V6(*range), *reason));
    let unassigned = || {
        (!GLOBAL_V6.contains(&addr))
            .then_some((IpNet::V6(ALL_V6), "outside global unicast 2000::/3"))
    };

    listed.or_else(unassigned)
}

const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0], 96);
const GLOBAL_V6: Ipv6Net = v6([0x2000, 0, 0, 0], 3);
const ALL_V6: Ipv6Net = v6([0, 0, 0, 0], 0);

/// The first range that holds an address names the reason, so narrow ranges stand before wide ones.
const V4: &[(Ipv4Net, &str)] = &[
    (v4([0, 0, 0, 0], 8), "this network"),
    (v4([10, 0, 0, 0], 8), "private"),
    (v4([100, 64, 0, 0], 10), "carrier-grade NAT"),
    (v4([127, 0, 0, 0], 8), "loopback"),
    (v4([169, 254, 169, 254], 32), "cloud metadata"),
    (v4([169, 254, 0, 0], 16), "link-local"),
    (v4([172, 16, 0, 0], 12), "private"),
    (v4([192, 0, 0, 0], 24), "protocol assignments"),
    (v4([192, 0, 2, 0], 24), "documentation"),
    (v4([192, 88, 99, 0], 24), "6to4 relay"),
    (v4([192, 168, 0, 0], 16), "private"),
    (v4([198, 18, 0, 0], 15), "benchmarking"),
    (v4([198, 51, 100, 0], 24), "documentation"),
    (v4([203, 0, 113, 0], 24), "documentation"),
    (v4([224, 0, 0, 0], 4), "multicast"),
    (v4([255, 255, 255, 255], 32), "broadcast"),
    (v4([240, 0, 0, 0], 4), "reserved"),
];

/// As above; what lies outside `2000::/3` and is not listed is forbidden as unassigned.
const V6: &[(Ipv6Net, &str)] = &[
    (v6_host(1), "loopback"),
    (v6_mapped(), "IPv4-mapped"),
    (v6([0x64, 0xff9b, 1, 0], 48), "local-use NAT64"),
    (
        v6([0, 0, 0, 0], 8),
        "unspecified, IPv4-compatible and reserved",
    ),
    (v6([0x100, 0, 0, 0], 64), "discard-only"),
    (v6([0x2001, 0, 0, 0], 32), "Teredo"),
    (v6([0x2001, 0x10, 0, 0], 28), "ORCHID"),
    (v6([0x2001, 0x20, 0, 0], 28), "ORCHIDv2"),
    (v6([0x2001, 0, 0, 0], 23), "protocol assignments"),
    (v6([0x2001, 0xdb8, 0, 0], 32), "documentation"),
    (v6([0x2002, 0, 0, 0], 16), "6to4"),
    (v6([0x3fff, 0, 0, 0], 20), "documentation"),
    (v6([0xfc00, 0, 0, 0], 7), "unique local"),
    (v6([0xfe80, 0, 0, 0], 10), "link-local"),
    (v6([0xfec0, 0, 0, 0], 10), "site-local"),
    (v6([0xff00, 0, 0, 0], 8), "multicast"),
];

const fn v4([a, b, c, d]: [u8; 4], prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

/// The upper half is enough for every range but the few below.
const fn v6([a, b, c, d]: [u16; 4], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), prefix)
}

const fn v6_host(last: u16) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, last), 128)
}

const fn v6_mapped() -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Written out apart from the tables above, so that a slip there is seen here.
    const REFUSED: &[&str] = &[
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "::/16",
        "::ffff:0:0/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
        "4000::/2",
        "8000::/2",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    ];

    const OPEN: &[&str] = &[
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2000::",
        "2001:200::",
        "2003::",
        "2606:4700:4700::1111",
        "3ffe:ffff::",
        "3fff:1000::",
        "64:ff9b::1.1.1.1",
    ];

    #[test]
    fn the_public_internet_is_open() {
        let guard = Guard::default();

        for addr in OPEN {
            assert_eq!(guard.judge(addr.parse().unwrap()), Ok(()), "{addr}");
        }
    }

    #[test]
    fn both_ends_of_every_forbidden_range_are_refused_and_an_allowance_opens_them() {
        for range in REFUSED {
            let range: IpNet = range.parse().unwrap();
            let open = Guard {
                allowed: vec![range],
            };

            for addr in [range.network(), range.broadcast()] {
                assert!(Guard::default().judge(addr).is_err(), "{addr} of {range}");
                assert_eq!(open.judge(addr), Ok(()), "{addr} of {range}");
            }
        }
    }

    #[test]
    fn a_refusal_names_address_range_and_the_way_out() {
        let refusal = Guard::default()
            .judge([169, 254, 169, 254].into())
            .unwrap_err();

        assert_eq!(
            refusal.to_string(),
            "169.254.169.254 is forbidden (cloud metadata, 169.254.169.254/32); --allow-network 169.254.169.254 opens it"
        );
    }

    #[test]
    fn a_mapped_address_is_opened_by_the_ipv4_network_inside() {
        let guard = Guard {
            allowed: vec!["10.1.0.0/16".parse().unwrap()],
        };

        assert_eq!(guard.judge("::ffff:10.1.2.3".parse().unwrap()), Ok(()));
        assert!(guard.judge("::ffff:10.2.2.3".parse().unwrap()).is_err());
        assert!(guard.judge("::ffff:1.1.1.1".parse().unwrap()).is_err());
        assert!(guard.judge("::10.1.2.3".parse().unwrap()).is_err());
    }

    #[test]
    fn a_translated_address_is_judged_by_the_ipv4_inside() {
        let guard = Guard {
            allowed: vec!["10.1.0.0/16".parse().unwrap()],
        };

        assert_eq!(guard.judge("64:ff9b::10.1.2.3".parse().unwrap()), Ok(()));
        assert!(guard.judge("64:ff9b::10.2.2.3".parse().unwrap()).is_err());
        assert!(
            guard
                .judge("64:ff9b::169.254.169.254".parse().unwrap())
                .is_err()
        );
        assert_eq!(guard.judge("64:ff9b::8.8.8.8".parse().unwrap()), Ok(()));
        assert!(guard.judge("64:ff9b::1:0:0".parse().unwrap()).is_err());
    }

    /// An address of `range` from random bits.
    fn inside(range: IpNet, bits: u128) -> IpAddr {
        match range {
            IpNet::V4(net) => {
                let bits = u32::try_from(bits >> 96).unwrap();
                Ipv4Addr::from(u32::from(net.network()) | (bits & u32::from(net.hostmask()))).into()
            }
            IpNet::V6(net) => {
                Ipv6Addr::from(u128::from(net.network()) | (bits & u128::from(net.hostmask())))
                    .into()
            }
        }
    }

    proptest! {
        #[test]
        fn every_address_of_a_forbidden_range_is_refused(which in 0..REFUSED.len(), bits: u128) {
            let addr = inside(REFUSED[which].parse().unwrap(), bits);

            prop_assert!(Guard::default().judge(addr).is_err(), "{addr}");
        }

        #[test]
        fn the_translated_and_the_plain_address_are_judged_alike(bits: u32) {
            let v4 = Ipv4Addr::from(bits);
            let v6 = Ipv6Addr::from((0x0064_ff9b_u128 << 96) | u128::from(bits));

            let plain = Guard::default().judge(v4.into()).map_err(|refusal| refusal.reason);
            let translated = Guard::default().judge(v6.into()).map_err(|refusal| refusal.reason);

            prop_assert_eq!(plain, translated);
        }

        #[test]
        fn an_allowance_opens_exactly_its_range(bits: u32, prefix in 8_u8..=32, other: u32) {
            let range = Ipv4Net::new(Ipv4Addr::from(0x0a00_0000 | (bits >> 8)), prefix).unwrap().trunc();
            let guard = Guard { allowed: vec![range.into()] };
            let within = inside(range.into(), u128::from(other) << 96);
            let private = Ipv4Addr::from(0x0a00_0000 | (other >> 8));

            prop_assert_eq!(guard.judge(within), Ok(()));
            prop_assert_eq!(guard.judge(private.into()).is_ok(), range.contains(&private));
            prop_assert_eq!(guard.judge([127, 0, 0, 1].into()).is_err(), true);
        }
    }
}
