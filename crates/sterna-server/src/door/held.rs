//! Input that cannot be looked at yet: input behind an undecided question, and early data that its listener does
//! not let through.

use sterna_net::{Chunk, StreamId};

use crate::config::{EarlyData, Protocol};
use crate::context::Context;

/// The state of early data, which may be a replay until the handshake is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Early {
    /// Nothing that arrives now can be a replay.
    Over,
    /// Early data is done at once where it may be.
    Allowed,
    /// Some input had to wait, and all later input waits behind it.
    Waiting,
}

/// A stream's input that came before it could be looked at.
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

/// Heap bytes of held input; an end of a stream counts as much as its entry.
pub(crate) fn held_bytes(held: &[Held]) -> usize {
    let entries = size_of_val(held);
    held.iter().fold(entries, |sum, held| match held {
        Held::Bytes(_, bytes) => sum + bytes.len(),
        Held::Finished(_) => sum,
    })
}

/// Marks a client whose bytes can be a replay. If the listener does not let early data through, the data waits
/// until the handshake has shown that it is no replay.
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
