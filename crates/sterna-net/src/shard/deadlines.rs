//! Deadlines of connections. All deadlines of a kind are equally long, so each kind is a queue.
//! There is no heap, and no work when a connection meets its deadline.

use std::collections::VecDeque;

use crate::ConnectionId;

/// Purpose of a deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Having a balancer's header.
    Header,
    /// Finishing TLS and the WebSocket upgrade.
    Handshake,
    /// Writing the queue before closing.
    Closing,
    /// Seeing the peer's end of the stream after closing.
    Lingering,
    /// Staying open after the peer's end of the stream.
    HalfClosed,
}

const KINDS: [Kind; 5] = [
    Kind::Header,
    Kind::Handshake,
    Kind::Closing,
    Kind::Lingering,
    Kind::HalfClosed,
];

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    queues: [VecDeque<(u64, ConnectionId)>; KINDS.len()],
}

impl Deadlines {
    /// Adds a deadline. Those of one kind must be added in their order.
    pub(super) fn push(&mut self, kind: Kind, deadline_ms: u64, id: ConnectionId) {
        let queue = &mut self.queues[kind as usize];
        debug_assert!(queue.back().is_none_or(|last| last.0 <= deadline_ms));
        queue.push_back((deadline_ms, id));
    }

    /// Takes one deadline that has passed.
    pub(super) fn pop(&mut self, now_ms: u64) -> Option<(Kind, ConnectionId)> {
        for kind in KINDS {
            let queue = &mut self.queues[kind as usize];
            if let Some((deadline_ms, id)) = queue.front().copied()
                && deadline_ms <= now_ms
            {
                queue.pop_front();
                return Some((kind, id));
            }
        }
        None
    }

    /// The earliest deadline that `matters`; earlier ones are dropped.
    pub(super) fn next_ms(
        &mut self,
        mut matters: impl FnMut(Kind, ConnectionId) -> bool,
    ) -> Option<u64> {
        let mut earliest: Option<u64> = None;
        for kind in KINDS {
            let queue = &mut self.queues[kind as usize];
            while let Some((deadline_ms, id)) = queue.front().copied() {
                if matters(kind, id) {
                    earliest = Some(earliest.map_or(deadline_ms, |other| other.min(deadline_ms)));
                    break;
                }
                queue.pop_front();
            }
            if queue.is_empty() && queue.capacity() > 1_024 {
                queue.shrink_to(1_024);
            }
        }
        earliest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_pass_in_order_and_those_that_were_met_are_forgotten() {
        let id = |slot| ConnectionId {
            slot,
            generation: 0,
        };
        let mut deadlines = Deadlines::default();
        deadlines.push(Kind::Handshake, 10, id(1));
        deadlines.push(Kind::Handshake, 20, id(2));
        deadlines.push(Kind::Lingering, 15, id(3));
        assert_eq!(deadlines.next_ms(|_, who| who != id(1)), Some(15));
        assert_eq!(deadlines.pop(14), None);
        assert_eq!(deadlines.pop(20), Some((Kind::Handshake, id(2))));
        assert_eq!(deadlines.pop(20), Some((Kind::Lingering, id(3))));
        assert_eq!(deadlines.pop(20), None);
        assert_eq!(deadlines.next_ms(|_, _| true), None);
    }
}
