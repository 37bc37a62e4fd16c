//! Number of connections from each address, over all shards, listeners and transports, and by each listener, over all
//! shards.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counters::RefusedConnection;

/// The unit that counts as one address, in few bytes: an IPv4 address, or a /64 of IPv6, which one
/// host has.
pub(crate) type Host = u64;

pub(crate) fn host_of(peer: IpAddr) -> Host {
    /// Multicast (RFC 4291, section 2.7): no peer is there.
    const OF_IPV4: u64 = 0xFFFF_FFFF << 32;
    match peer.to_canonical() {
        IpAddr::V4(address) => OF_IPV4 | u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    }
}

/// Orders a list so that the first of each address comes first, then the second of each, and so on. Those of one address
/// stay in their order.
pub(crate) fn in_turns<T: Copy>(
    list: impl Iterator<Item = T>,
    host: impl Fn(T) -> Option<Host>,
) -> Vec<T> {
    let mut rounds: HashMap<Host, u32> = HashMap::new();
    let with_round = |one| {
        let round = host(one).map_or(0, |host| {
            let round = rounds.entry(host).or_default();
            *round += 1;
            *round
        });
        (round, one)
    };
    let mut ordered: Vec<(u32, T)> = list.map(with_round).collect();
    ordered.sort_by_key(|(round, _)| *round);
    ordered.into_iter().map(|(_, one)| one).collect()
}

/// Counts connections by address and by listener.
#[derive(Debug)]
pub(crate) struct Peers {
    /// By their indexes; the last one stands for all others.
    listeners: Box<[Arc<OfListener>]>,
}

/// Counts the connections of a listener.
#[derive(Debug)]
struct OfListener {
    most: usize,
    count: AtomicUsize,
    addresses: Arc<Addresses>,
}

/// Counts the connections from each address.
#[derive(Debug)]
struct Addresses {
    most: usize,
    /// Peers choose the keys, so the map must not become slow by chosen keys.
    counts: Mutex<HashMap<Host, usize>>,
}

/// The place of one connection, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    listener: Arc<OfListener>,
    host: Host,
}

impl Peers {
    /// Admits at most `most` connections from one address, and of each listener as many as are named in their order.
    pub(crate) fn new(most: usize, most_of_listeners: &[usize]) -> Arc<Self> {
        let addresses = Arc::new(Addresses {
            most,
            counts: Mutex::default(),
        });
        let of_listener = |most: usize| {
            Arc::new(OfListener {
                most,
                count: AtomicUsize::new(0),
                addresses: Arc::clone(&addresses),
            })
        };
        let listeners = most_of_listeners.iter().copied().chain([usize::MAX]);
        Arc::new(Self {
            listeners: listeners.map(of_listener).collect(),
        })
    }

    /// A place for a connection from this address by a listener.
    ///
    /// # Errors
    /// The address, or the listener, has as many as it may.
    pub(crate) fn enter(&self, peer: IpAddr, listener: u16) -> Result<Place, RefusedConnection> {
        let host = host_of(peer);
        let at = usize::from(listener).min(self.listeners.len() - 1);
        let listener = &self.listeners[at];
        let mut counts = listener.addresses.counts();
        // Both counts change while the addresses are locked.
        if listener.count.load(Ordering::Relaxed) >= listener.most {
            return Err(RefusedConnection::ConnectionsPerListener);
        }
        let count = counts.entry(host).or_default();
        if *count >= listener.addresses.most {
            return Err(RefusedConnection::ConnectionsPerAddress);
        }
        *count += 1;
        listener.count.fetch_add(1, Ordering::Relaxed);
        drop(counts);
        Ok(Place {
            listener: Arc::clone(listener),
            host,
        })
    }
}

impl Addresses {
    fn counts(&self) -> MutexGuard<'_, HashMap<Host, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.listener.addresses.counts();
        self.listener.count.fetch_sub(1, Ordering::Relaxed);
        if let Some(count) = counts.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.host);
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
        let peers = Peers::new(2, &[]);
        let enter = |text: &str| peers.enter(text.parse().expect("an address"), 0);
        let first = enter("192.0.2.1").expect("a place");
        let _second = enter("::ffff:192.0.2.1").expect("the same address");
        assert!(enter("192.0.2.1").is_err());
        let other = enter("192.0.2.2").expect("another address");
        let _a = enter("2001:db8:0:1::1").expect("a place");
        let _b = enter("2001:db8:0:1:ffff::2").expect("the same /64");
        assert!(enter("2001:db8:0:1::3").is_err());
        assert!(enter("2001:db8:0:2::1").is_ok());
        drop(first);
        drop(other);
        assert!(enter("192.0.2.1").is_ok());
        let counts = peers.listeners[0].addresses.counts();
        assert_eq!(counts.len(), 2, "who is gone is forgotten");
    }

    #[test]
    fn a_listener_has_so_many_places_and_gets_them_back() {
        let peers = Peers::new(9, &[1, usize::MAX]);
        let enter = |host: u8, listener| peers.enter([192, 0, 2, host].into(), listener);
        let first = enter(1, 0).expect("a place");
        assert_eq!(
            enter(2, 0).err(),
            Some(RefusedConnection::ConnectionsPerListener)
        );
        let known = peers.listeners[0].addresses.counts().len();
        assert_eq!(known, 1, "it has left nothing");
        let _other = enter(1, 1).expect("another listener");
        drop(first);
        assert!(enter(2, 0).is_ok());
    }
}
