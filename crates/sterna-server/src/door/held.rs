//! Input that cannot be looked at yet: what follows an undecided question, and early data that its
//! listener does not let through.

use sterna_net::{Chunk, StreamId};

use crate::config::{EarlyData, Protocol};
use crate::context::Context;

/// What becomes of early data, which may be a replay until the handshake is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Early {
    /// Nothing that arrives now can be a replay.
    Over,
    /// What may be done at once is.
    Allowed,
    /// Something had to wait, and whatever follows waits behind it.
    Waiting,
}

/// What a stream brought before it could be looked at.
#[derive(Debug)]
pub(crate) enum Held {
    /// Bytes.
    Bytes(StreamId, Box<[u8]>),
    /// The end of the stream, in order.
    Finished(StreamId),
}

impl Held {
    pub(crate) const fn stream(&self) -> StreamId {
        match self {
            Self::Bytes(stream, _) | Self::Finished(stream) => *stream,
        }
    }
}

/// Heap of what is held; an end of a stream counts as much as its entry.
pub(crate) fn held_bytes(held: &[Held]) -> usize {
    let entries = size_of_val(held);
    held.iter().fold(entries, |sum, held| match held {
        Held::Bytes(_, bytes) => sum + bytes.len(),
        Held::Finished(_) => sum,
    })
}

/// Marks a client whose bytes can be a replay. What its listener does not let through waits until the
/// handshake has shown that they are none.
pub(crate) fn note_early(
    cx: &Context<'_>,
    early: &mut Early,
    protocol: Protocol,
    listener: u16,
    chunk: &Chunk<'_>,
) {
    if chunk.early && !chunk.confirmed && *early == Early::Over {
        match cx.policy.listener(listener).early_data {
            EarlyData::Off => hold_early(cx, early, protocol),
            EarlyData::Idempotent | EarlyData::All => *early = Early::Allowed,
        }
    }
}

/// Holds back all further input of a client until its handshake is complete.
pub(crate) fn hold_early(cx: &Context<'_>, early: &mut Early, protocol: Protocol) {
    *early = Early::Waiting;
    cx.meters.early_data_held(protocol);
}
