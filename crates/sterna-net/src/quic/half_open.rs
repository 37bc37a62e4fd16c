//! Number of handshakes in progress, in total and per peer address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::QuicConfig;
use crate::counters::RefusedConnection;

/// Decision about a first packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Accept,
    /// Have the client prove its address first.
    Retry,
    /// Leave it unanswered for this reason: the client sends it again, and by then there may be room.
    Ignore(RefusedConnection),
}

/// Counts of half-open connections. The standard map is used because peers choose the keys.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl HalfOpen {
    pub(super) const fn total(&self) -> usize {
        self.total
    }

    /// Decides on a first packet from `peer` whose address is proven (`validated`) or not, while
    /// `connections` exist.
    pub(super) fn judge(
        &self,
        config: &QuicConfig,
        connections: usize,
        peer: SocketAddr,
        validated: bool,
    ) -> Verdict {
        let here = self.by_address.get(&network(peer)).copied().unwrap_or(0);
        let limits = [
            (
                connections,
                config.max_connections,
                RefusedConnection::Connections,
            ),
            (
                self.total,
                config.max_half_open,
                RefusedConnection::HalfOpen,
            ),
            (
                here,
                config.max_half_open_per_address,
                RefusedConnection::HalfOpenPerAddress,
            ),
        ];
        for (now, most, reason) in limits {
            if now >= most {
                return Verdict::Ignore(reason);
            }
        }
        // Forged addresses cannot pass a Retry, so beyond these numbers they take no room. The room
        // between them and the limits above is left for clients with a proved address.
        let crowded =
            self.total >= config.retry_half_open || here >= config.retry_half_open_per_address;
        if crowded && !validated {
            Verdict::Retry
        } else {
            Verdict::Accept
        }
    }

    pub(super) fn begin(&mut self, peer: SocketAddr) {
        self.total += 1;
        *self.by_address.entry(network(peer)).or_default() += 1;
    }

    pub(super) fn end(&mut self, peer: SocketAddr) {
        self.total -= 1;
        let network = network(peer);
        if let Some(count) = self.by_address.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&network);
                if self.by_address.is_empty() {
                    self.by_address.shrink_to(64);
                }
            }
        }
    }
}

/// One customer of a provider has one IPv4 address, but a whole /64 of IPv6.
pub(super) fn network(peer: SocketAddr) -> IpAddr {
    match peer.ip().to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> QuicConfig {
        QuicConfig {
            max_connections: 100,
            max_half_open: 8,
            max_half_open_per_address: 4,
            retry_half_open: 6,
            retry_half_open_per_address: 2,
            ..QuicConfig::default()
        }
    }

    fn peer(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn one_address_is_asked_to_prove_itself_and_then_held_back() {
        let (config, mut half_open) = (config(), HalfOpen::default());
        let (busy, other) = (peer("192.0.2.1:1000"), peer("192.0.2.2:1000"));
        let judge = |half_open: &HalfOpen, peer, valid| half_open.judge(&config, 0, peer, valid);
        for _ in 0..2 {
            assert_eq!(judge(&half_open, busy, false), Verdict::Accept);
            half_open.begin(busy);
        }
        for _ in 0..2 {
            assert_eq!(judge(&half_open, busy, false), Verdict::Retry);
            assert_eq!(judge(&half_open, busy, true), Verdict::Accept);
            half_open.begin(busy);
        }
        assert_eq!(
            judge(&half_open, busy, true),
            Verdict::Ignore(RefusedConnection::HalfOpenPerAddress)
        );
        assert_eq!(judge(&half_open, other, false), Verdict::Accept);
        for _ in 0..4 {
            half_open.end(busy);
        }
        assert_eq!(judge(&half_open, busy, false), Verdict::Accept);
        assert_eq!(half_open.total(), 0);
        assert!(half_open.by_address.is_empty());
    }

    #[test]
    fn many_addresses_meet_the_total() {
        let (config, mut half_open) = (config(), HalfOpen::default());
        for n in 0..6 {
            let peer = peer(&format!("192.0.2.{n}:1000"));
            assert_eq!(half_open.judge(&config, 0, peer, false), Verdict::Accept);
            half_open.begin(peer);
        }
        let late = peer("198.51.100.1:1000");
        assert_eq!(half_open.judge(&config, 0, late, false), Verdict::Retry);
        assert_eq!(
            half_open.judge(&config, 100, late, true),
            Verdict::Ignore(RefusedConnection::Connections)
        );
        half_open.begin(late);
        half_open.begin(late);
        assert_eq!(
            half_open.judge(&config, 0, peer("203.0.113.1:1"), true),
            Verdict::Ignore(RefusedConnection::HalfOpen)
        );
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let a = network(peer("[2001:db8:1:2:3:4:5:6]:1"));
        assert_eq!(a, network(peer("[2001:db8:1:2::9]:2")));
        assert_ne!(a, network(peer("[2001:db8:1:3::9]:2")));
        assert_eq!(
            network(peer("[::ffff:192.0.2.1]:1")),
            network(peer("192.0.2.1:2"))
        );
    }
}
