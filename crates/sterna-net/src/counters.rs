//! What a shard has done, for metrics: written by the shard alone, read by any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::quic;

/// The figures of one shard at one moment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ShardFigures {
    /// Byte-stream connections taken in.
    pub accepted: u64,
    /// Byte-stream connections turned away by a limit.
    pub refused: u64,
    /// TLS handshakes and WebSocket upgrades that were not finished.
    pub failed_handshakes: u64,
    /// Byte-stream connections now, those that are closing included.
    pub connections: u64,
    /// Of these, in their handshake.
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

/// Where a shard publishes its figures, at the end of each of its turns.
#[derive(Debug, Default)]
pub struct ShardCounters {
    accepted: AtomicU64,
    refused: AtomicU64,
    failed_handshakes: AtomicU64,
    connections: AtomicU64,
    half_open: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    turns: AtomicU64,
    quic: Mutex<quic::Counters>,
}

impl ShardCounters {
    /// The figures as they were at the end of the shard's last turn; those of different kinds may
    /// be of different turns.
    #[must_use]
    pub fn figures(&self) -> ShardFigures {
        ShardFigures {
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            failed_handshakes: self.failed_handshakes.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
            half_open: self.half_open.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            turns: self.turns.load(Ordering::Relaxed),
            quic: *self.quic.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Publishes figures; `before` are those published last.
    pub(crate) fn publish(&self, figures: &ShardFigures, before: &ShardFigures) {
        // Plain stores: there is one writer.
        self.accepted.store(figures.accepted, Ordering::Relaxed);
        self.refused.store(figures.refused, Ordering::Relaxed);
        self.failed_handshakes
            .store(figures.failed_handshakes, Ordering::Relaxed);
        self.connections
            .store(figures.connections, Ordering::Relaxed);
        self.half_open.store(figures.half_open, Ordering::Relaxed);
        self.received_bytes
            .store(figures.received_bytes, Ordering::Relaxed);
        self.sent_bytes.store(figures.sent_bytes, Ordering::Relaxed);
        self.turns.store(figures.turns, Ordering::Relaxed);
        if figures.quic != before.quic {
            *self.quic.lock().unwrap_or_else(PoisonError::into_inner) = figures.quic;
        }
    }
}

/// Adds the figures of one QUIC listener.
pub(crate) fn add(sum: &mut quic::Counters, other: &quic::Counters) {
    // Every field is named, so that one that is new cannot be forgotten here.
    let quic::Counters {
        accepted,
        confirmed,
        opened_early,
        failed_handshakes,
        refused_protocols,
        retried,
        ignored,
        early_dropped,
        held_back,
        held_back_dropped,
        migrations,
    } = other;
    sum.accepted += accepted;
    sum.confirmed += confirmed;
    sum.opened_early += opened_early;
    sum.failed_handshakes += failed_handshakes;
    sum.refused_protocols += refused_protocols;
    sum.retried += retried;
    sum.ignored += ignored;
    sum.early_dropped += early_dropped;
    sum.held_back += held_back;
    sum.held_back_dropped += held_back_dropped;
    sum.migrations += migrations;
}
