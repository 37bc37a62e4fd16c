//! Number of connections from each address, over all shards, listeners and transports.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The unit that counts as one address, in few bytes: an IPv4 address, or a /64 of IPv6, which one
/// host has.
type Network = u64;

fn network(peer: IpAddr) -> Network {
    /// Multicast (RFC 4291, section 2.7): no peer is there.
    const OF_IPV4: u64 = 0xFFFF_FFFF << 32;
    match peer.to_canonical() {
        IpAddr::V4(address) => OF_IPV4 | u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    }
}

/// Counts connections by address.
#[derive(Debug)]
pub(crate) struct Peers {
    most: usize,
    /// Peers choose the keys, so the map must not become slow by chosen keys.
    counts: Mutex<HashMap<Network, usize>>,
}

/// The place of one connection, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    peers: Arc<Peers>,
    network: Network,
}

impl Peers {
    /// Admits at most N connections from one address.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            counts: Mutex::default(),
        })
    }

    /// A place for a connection from this address; `None` where it has as many as it may.
    pub(crate) fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let network = network(peer);
        let mut counts = self.counts();
        let count = counts.entry(network).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Place {
            peers: Arc::clone(self),
            network,
        })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Network, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.peers.counts();
        if let Some(count) = counts.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.network);
                if counts.is_empty() {
                    counts.shrink_to(64);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_so_many_places_and_gets_them_back() {
        let peers = Peers::new(2);
        let enter = |text: &str| peers.enter(text.parse().expect("an address"));
        let first = enter("192.0.2.1").expect("a place");
        let _second = enter("::ffff:192.0.2.1").expect("the same address");
        assert!(enter("192.0.2.1").is_none());
        let other = enter("192.0.2.2").expect("another address");
        let _a = enter("2001:db8:0:1::1").expect("a place");
        let _b = enter("2001:db8:0:1:ffff::2").expect("the same /64");
        assert!(enter("2001:db8:0:1::3").is_none());
        assert!(enter("2001:db8:0:2::1").is_some());
        drop(first);
        drop(other);
        assert!(enter("192.0.2.1").is_some());
        assert_eq!(peers.counts().len(), 2, "who is gone is forgotten");
    }
}
