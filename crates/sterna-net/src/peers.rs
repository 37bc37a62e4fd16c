//! Number of connections from each address, over all shards, listeners and transports, and by each listener, over all
//! shards.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counters::RefusedConnection;

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

/// Counts connections by address and by listener.
#[derive(Debug)]
pub(crate) struct Peers {
    most: usize,
    /// Most connections of each listener.
    most_of_listeners: Box<[usize]>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Peers choose the keys, so the map must not become slow by chosen keys.
    addresses: HashMap<Network, usize>,
    listeners: Box<[usize]>,
}

/// The place of one connection, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    peers: Arc<Peers>,
    network: Network,
    listener: u16,
}

impl Peers {
    /// Admits at most `most` connections from one address, and of each listener as many as are named in their order.
    pub(crate) fn new(most: usize, most_of_listeners: Box<[usize]>) -> Arc<Self> {
        let counts = Counts {
            addresses: HashMap::new(),
            listeners: vec![0; most_of_listeners.len()].into(),
        };
        Arc::new(Self {
            most,
            most_of_listeners,
            counts: Mutex::new(counts),
        })
    }

    /// A place for a connection from this address by a listener.
    ///
    /// # Errors
    /// The address, or the listener, has as many as it may.
    pub(crate) fn enter(
        self: &Arc<Self>,
        peer: IpAddr,
        listener: u16,
    ) -> Result<Place, RefusedConnection> {
        let (network, at) = (network(peer), usize::from(listener));
        let mut counts = self.counts();
        let Counts {
            addresses,
            listeners,
        } = &mut *counts;
        let most_here = self.most_of_listeners.get(at).copied();
        if let (Some(count), Some(most)) = (listeners.get(at), most_here)
            && *count >= most
        {
            return Err(RefusedConnection::ConnectionsPerListener);
        }
        let count = addresses.entry(network).or_default();
        if *count >= self.most {
            return Err(RefusedConnection::ConnectionsPerAddress);
        }
        *count += 1;
        if let Some(count) = listeners.get_mut(at) {
            *count += 1;
        }
        drop(counts);
        Ok(Place {
            peers: Arc::clone(self),
            network,
            listener,
        })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.peers.counts();
        if let Some(count) = counts.listeners.get_mut(usize::from(self.listener)) {
            *count -= 1;
        }
        let addresses = &mut counts.addresses;
        if let Some(count) = addresses.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&self.network);
                if addresses.is_empty() {
                    addresses.shrink_to(64);
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
        let peers = Peers::new(2, Box::default());
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
        assert_eq!(
            peers.counts().addresses.len(),
            2,
            "who is gone is forgotten"
        );
    }

    #[test]
    fn a_listener_has_so_many_places_and_gets_them_back() {
        let peers = Peers::new(9, [1, usize::MAX].into());
        let enter = |host: u8, listener| peers.enter([192, 0, 2, host].into(), listener);
        let first = enter(1, 0).expect("a place");
        assert_eq!(
            enter(2, 0).err(),
            Some(RefusedConnection::ConnectionsPerListener)
        );
        assert_eq!(peers.counts().addresses.len(), 1, "it has left nothing");
        let _other = enter(1, 1).expect("another listener");
        drop(first);
        assert!(enter(2, 0).is_ok());
    }
}
