//! A shard's counts, for metrics: only the shard writes them, any thread reads them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::handshake::{FaultCounts, HandshakeFault};
use crate::quic;

/// The figures of one shard at one moment, all listeners together.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ShardFigures {
    /// Byte-stream connections taken in.
    pub accepted: u64,
    /// Connections turned away.
    pub refused: u64,
    /// TLS handshakes and WebSocket upgrades that were not finished.
    pub failed_handshakes: u64,
    /// Byte-stream connections now, those that are closing included.
    pub connections: u64,
    /// Connections in their handshake now, of QUIC as well.
    pub half_open: u64,
    /// Bytes read from byte-stream sockets.
    pub received_bytes: u64,
    /// Bytes written to byte-stream sockets.
    pub sent_bytes: u64,
    /// Turns of the loop.
    pub turns: u64,
    /// QUIC, all listeners of the shard together.
    pub quic: quic::Counters,
}

/// The figures of one listener on one shard at one moment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ListenerFigures {
    /// Connections taken in; of QUIC, those whose handshake was begun.
    pub accepted: u64,
    /// Connections turned away, by reason in the order of [`RefusedConnection::ALL`].
    pub refused: [u64; RefusedConnection::ALL.len()],
    /// Handshakes of TLS and QUIC that were finished, those that resumed a session included.
    pub handshakes: u64,
    /// Number of handshakes that resumed a session.
    pub resumed: u64,
    /// Handshakes and WebSocket upgrades that were not finished, by fault in the order of [`HandshakeFault::ALL`].
    pub failed: FaultCounts,
    /// Connections now, those that are closing included.
    pub connections: u64,
    /// Bytes read from the sockets, without the headers of IP, UDP and TCP.
    pub received_bytes: u64,
    /// Bytes written to the sockets, without the headers of IP, UDP and TCP.
    pub sent_bytes: u64,
    /// Datagrams read; QUIC only.
    pub received_datagrams: u64,
    /// Datagrams written; QUIC only.
    pub sent_datagrams: u64,
    /// The driver's own counters; `None` on byte streams.
    pub quic: Option<quic::Counters>,
}

/// The reason of a connection that is turned away: a byte stream at its accept or its balancer's header, QUIC at its first
/// packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusedConnection {
    /// The shard has as many connections as [`crate::ShardConfig::connections`].
    Connections,
    /// The address has as many as [`crate::ShardConfig::connections_per_address`].
    ConnectionsPerAddress,
    /// The listener has as many as [`crate::ListenerConfig::connections`].
    ConnectionsPerListener,
    /// As many are in their handshake as [`crate::ShardConfig::half_open`].
    HalfOpen,
    /// Of the address are as many as [`crate::ShardConfig::half_open_per_address`].
    HalfOpenPerAddress,
    /// The system did not let the shard register it.
    System,
    /// The handler refuses all newcomers, see [`crate::Network::refuse_newcomers`].
    Refused,
    /// The handler refuses newcomers from its network, see [`crate::RefusedPeers::Of`].
    RefusedNetwork,
    /// It is none of the listener's balancers, see [`crate::ListenerConfig::balancers`].
    NotBalancer,
    /// A balancer's header is malformed, too long, or did not come in time.
    ProxyHeader,
}

impl RefusedConnection {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Connections,
        Self::ConnectionsPerAddress,
        Self::ConnectionsPerListener,
        Self::HalfOpen,
        Self::HalfOpenPerAddress,
        Self::System,
        Self::Refused,
        Self::RefusedNetwork,
        Self::NotBalancer,
        Self::ProxyHeader,
    ];

    /// The reason as metrics and the log name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionsPerAddress => "connections_per_address",
            Self::ConnectionsPerListener => "connections_per_listener",
            Self::HalfOpen => "half_open",
            Self::HalfOpenPerAddress => "half_open_per_address",
            Self::System => "system",
            Self::Refused => "refused",
            Self::RefusedNetwork => "refused_network",
            Self::NotBalancer => "not_balancer",
            Self::ProxyHeader => "proxy_header",
        }
    }

    /// The limit that holds, for the operator.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            Self::Connections => "the shard has network.maximum_connections, or no more open files",
            Self::ConnectionsPerAddress => {
                "the address has network.maximum_connections_per_address"
            }
            Self::ConnectionsPerListener => "the listener has its maximum_connections",
            Self::HalfOpen => "network.maximum_half_open are in their handshake",
            Self::HalfOpenPerAddress => {
                "of the address network.maximum_half_open_per_address are in their handshake"
            }
            Self::System => "the system does not let the broker watch it",
            Self::Refused => "memory is short (broker.memory_ceiling)",
            Self::RefusedNetwork => {
                "memory is short (broker.memory_ceiling), and connections of its address hold most of it"
            }
            Self::NotBalancer => "it is none of the listener's balancers (proxy_protocol.from)",
            Self::ProxyHeader => "its header of the PROXY protocol is not one",
        }
    }
}

/// A number that one thread changes and any thread reads.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds to the number; for its one writer.
    pub fn add(&self, amount: u64) {
        // No read-modify-write: there is one writer.
        self.set(self.get().wrapping_add(amount));
    }

    /// Subtracts from the number, down to 0; for its one writer.
    pub fn sub(&self, amount: u64) {
        debug_assert!(self.get() >= amount, "what goes was counted when it came");
        self.set(self.get().saturating_sub(amount));
    }

    /// Sets the number.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one listener on one shard.
#[derive(Debug, Default)]
pub(crate) struct ListenerCounters {
    pub(crate) accepted: Count,
    refused: [Count; RefusedConnection::ALL.len()],
    pub(crate) handshakes: Count,
    pub(crate) resumed: Count,
    failed: [Count; HandshakeFault::ALL.len()],
    pub(crate) connections: Count,
    pub(crate) received_bytes: Count,
    pub(crate) sent_bytes: Count,
    pub(crate) received_datagrams: Count,
    pub(crate) sent_datagrams: Count,
    /// `None` on byte streams.
    quic: Mutex<Option<quic::Counters>>,
}

impl ListenerCounters {
    pub(crate) fn refuse(&self, reason: RefusedConnection, times: u64) {
        self.refused[reason as usize].add(times);
    }

    pub(crate) fn fail(&self, fault: HandshakeFault) {
        self.failed[fault as usize].add(1);
    }

    pub(crate) fn set_quic(&self, counters: &quic::Counters) {
        *self.quic.lock().unwrap_or_else(PoisonError::into_inner) = Some(*counters);
    }

    fn figures(&self) -> ListenerFigures {
        let quic = *self.quic.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |count: &Count, driver: fn(&quic::Counters) -> u64| {
            quic.as_ref().map_or_else(|| count.get(), driver)
        };
        ListenerFigures {
            accepted: of(&self.accepted, |quic| quic.accepted),
            refused: std::array::from_fn(|reason| self.refused[reason].get()),
            handshakes: of(&self.handshakes, |quic| quic.confirmed),
            resumed: of(&self.resumed, |quic| quic.resumed),
            failed: quic.map_or_else(
                || std::array::from_fn(|fault| self.failed[fault].get()),
                |quic| quic.failed,
            ),
            connections: self.connections.get(),
            received_bytes: self.received_bytes.get(),
            sent_bytes: self.sent_bytes.get(),
            received_datagrams: self.received_datagrams.get(),
            sent_datagrams: self.sent_datagrams.get(),
            quic,
        }
    }
}

/// Counters of one shard.
#[derive(Debug, Default)]
pub struct ShardCounters {
    pub(crate) half_open: Count,
    pub(crate) turns: Count,
    pub(crate) held_bytes: Count,
    listeners: Box<[ListenerCounters]>,
}

impl ShardCounters {
    /// Counters of a shard with this number of listeners.
    pub(crate) fn new(listeners: usize) -> Self {
        Self {
            listeners: (0..listeners)
                .map(|_| ListenerCounters::default())
                .collect(),
            ..Self::default()
        }
    }

    /// The counters of a listener, by its index in the configuration.
    pub(crate) fn listener(&self, index: u16) -> &ListenerCounters {
        &self.listeners[usize::from(index)]
    }

    /// The figures now; those of different kinds may be of different moments.
    #[must_use]
    pub fn figures(&self) -> ShardFigures {
        let mut sum = ShardFigures {
            half_open: self.half_open.get(),
            turns: self.turns.get(),
            ..ShardFigures::default()
        };
        for listener in &self.listeners {
            let figures = listener.figures();
            sum.refused += figures.refused.iter().sum::<u64>();
            if let Some(quic) = &figures.quic {
                add(&mut sum.quic, quic);
            } else {
                sum.accepted += figures.accepted;
                sum.failed_handshakes += figures.failed.iter().sum::<u64>();
                sum.connections += figures.connections;
                sum.received_bytes += figures.received_bytes;
                sum.sent_bytes += figures.sent_bytes;
            }
        }
        sum
    }

    /// Bytes that connections hold: copies that wait to be sent, encrypted ones included. On QUIC also
    /// those that are not acknowledged, and bytes that have come and are not read.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.get()
    }

    /// Connections of byte streams and of QUIC now.
    #[must_use]
    pub fn open_connections(&self) -> (u64, u64) {
        let (mut streams, mut quic) = (0, 0);
        for listener in self.listeners.iter().map(ListenerCounters::figures) {
            let sum = if listener.quic.is_some() {
                &mut quic
            } else {
                &mut streams
            };
            *sum += listener.connections;
        }
        (streams, quic)
    }

    /// The figures of each listener now, in the order of the configuration.
    #[must_use]
    pub fn listeners(&self) -> Vec<ListenerFigures> {
        self.listeners
            .iter()
            .map(ListenerCounters::figures)
            .collect()
    }
}

/// Adds the figures of one QUIC listener.
fn add(sum: &mut quic::Counters, other: &quic::Counters) {
    // Every field is named, so that one that is new cannot be forgotten here.
    let quic::Counters {
        accepted,
        confirmed,
        resumed,
        opened_early,
        early_refused,
        failed,
        retried,
        ignored,
        early_dropped,
        unread_dropped,
        held_back,
        held_back_dropped,
        amplification_stops,
        migrations,
    } = other;
    sum.accepted += accepted;
    sum.confirmed += confirmed;
    sum.resumed += resumed;
    sum.opened_early += opened_early;
    sum.early_refused += early_refused;
    for (sum, failed) in sum.failed.iter_mut().zip(failed) {
        *sum += failed;
    }
    sum.retried += retried;
    sum.ignored += ignored;
    sum.early_dropped += early_dropped;
    sum.unread_dropped += unread_dropped;
    sum.held_back += held_back;
    sum.held_back_dropped += held_back_dropped;
    sum.amplification_stops += amplification_stops;
    sum.migrations += migrations;
}
