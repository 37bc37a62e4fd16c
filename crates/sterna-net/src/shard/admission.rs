//! Admission: limits on connections that have not proven anything yet.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use super::core::Core;
use crate::TransportKind;
use crate::config::ShardConfig;
use crate::counters::RefusedConnection;
use crate::peers::{Host, host_of};

/// Counts half-open connections, all and per address.
#[derive(Debug, Default)]
pub(super) struct Admission {
    half_open: usize,
    // Peers choose the keys, so the map must not become slow by chosen keys.
    per_address: HashMap<Host, usize>,
}

impl Admission {
    /// Lets a connection in or not; one that is let in counts until [`Admission::release`]. Without an address,
    /// it counts under none until [`Admission::name`].
    pub(super) fn admit(
        &mut self,
        peer: Option<IpAddr>,
        connections: usize,
        config: &ShardConfig,
    ) -> Result<(), RefusedConnection> {
        if connections >= config.connections {
            return Err(RefusedConnection::Connections);
        }
        if self.half_open >= config.half_open {
            return Err(RefusedConnection::HalfOpen);
        }
        if let Some(peer) = peer {
            self.name(peer, config)?;
        }
        self.half_open += 1;
        Ok(())
    }

    /// Counts a connection under its address.
    pub(super) fn name(
        &mut self,
        peer: IpAddr,
        config: &ShardConfig,
    ) -> Result<(), RefusedConnection> {
        let key = host_of(peer);
        let count = self.per_address.get(&key).copied().unwrap_or(0);
        if count >= config.half_open_per_address {
            return Err(RefusedConnection::HalfOpenPerAddress);
        }
        self.per_address.insert(key, count + 1);
        Ok(())
    }

    /// Number of connections in their handshake.
    pub(super) fn half_open(&self) -> usize {
        self.half_open
    }

    /// The connection has finished its handshake or is gone.
    pub(super) fn release(&mut self, peer: Option<IpAddr>) {
        debug_assert!(self.half_open > 0, "what is released was admitted");
        self.half_open = self.half_open.saturating_sub(1);
        let Some(key) = peer.map(host_of) else {
            return;
        };
        if let Some(count) = self.per_address.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.per_address.remove(&key);
            }
        }
    }
}

impl Core {
    /// Counts connections from somewhere (the listener, the transport, the last one's peer) that are turned away, and tells
    /// the operator.
    pub(super) fn turn_away(
        &mut self,
        (listener, transport, peer): (u16, TransportKind, SocketAddr),
        (reason, times): (RefusedConnection, u64),
        balancer: Option<SocketAddr>,
        error: Option<&std::io::Error>,
    ) {
        self.counters.listener(listener).refuse(reason, times);
        let Some(more) = self.refusals.pass(self.now_ms) else {
            return;
        };
        tracing::warn!(
            %peer,
            balancer = balancer.map(tracing::field::display),
            transport = ?transport,
            reason = reason.name(),
            detail = reason.detail(),
            error = error.map(tracing::field::display),
            more = more + times - 1,
            "a connection was refused"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn limits_hold_in_total_and_per_address() {
        let config = ShardConfig {
            connections: 10,
            half_open: 4,
            half_open_per_address: 2,
            ..ShardConfig::default()
        };
        let mut admission = Admission::default();
        let mut admit = |text| admission.admit(Some(address(text)), 0, &config);
        assert_eq!(admit("2001:db8::1"), Ok(()));
        assert_eq!(admit("2001:db8::2"), Ok(()));
        assert_eq!(
            admit("2001:db8::3"),
            Err(RefusedConnection::HalfOpenPerAddress)
        );
        assert_eq!(admit("2001:db8:0:1::3"), Ok(()));
        assert_eq!(admit("192.0.2.1"), Ok(()));
        assert_eq!(admit("192.0.2.2"), Err(RefusedConnection::HalfOpen));
        admission.release(Some(address("2001:db8::2")));
        assert_eq!(
            admission.admit(Some(address("::ffff:192.0.2.1")), 0, &config),
            Ok(())
        );
        admission.release(Some(address("2001:db8::1")));
        let full = admission.admit(Some(address("192.0.2.9")), 10, &config);
        assert_eq!(full, Err(RefusedConnection::Connections));
        for text in ["2001:db8:0:1::3", "192.0.2.1", "192.0.2.1"] {
            admission.release(Some(address(text)));
        }
        assert_eq!(admission.half_open, 0);
        assert!(admission.per_address.is_empty());
    }
}
