//! Identifiers for QoS 2 in a session that another process began, and of which this one knows nothing.
//!
//! The peer may hold a message under any identifier: received, and not released. It would take a new message for a
//! repetition, and the message would be lost while its sender reads that it arrived. PUBREL makes the peer forget what
//! it holds, and PUBCOMP, which it always answers, says that it has ([MQTT-4.3.3-11], [MQTT311-4.3.3-2]). So a message
//! with QoS 2 takes an identifier that was released this way, or that a message of this process has used up.

use std::collections::{BTreeSet, VecDeque};

use crate::PacketId;

/// Identifiers that are released at first. Most devices need no more, and the packets are few bytes.
const FIRST_RELEASES: usize = 8;

#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Inherited {
    /// The peer holds no message with QoS 2 under these. Another packet of this process may be using one.
    free: VecDeque<PacketId>,
    /// PUBREL was sent; PUBCOMP is awaited.
    asked: BTreeSet<PacketId>,
    /// Number of those that were asked for and released.
    released: usize,
}

impl Inherited {
    /// Takes a free identifier that is not in use.
    pub(super) fn take(&mut self, is_used: impl Fn(PacketId) -> bool) -> Option<PacketId> {
        let at = self
            .free
            .iter()
            .position(|&packet_id| !is_used(packet_id))?;
        self.free.remove(at)
    }

    pub(super) fn has_free(&self, is_used: impl Fn(PacketId) -> bool) -> bool {
        self.free.iter().any(|&packet_id| !is_used(packet_id))
    }

    /// How many are to be released now: as many again as there are, and none before the last ones are.
    pub(super) fn wanted(&self, most: usize) -> usize {
        if !self.asked.is_empty() {
            return 0;
        }
        self.released.max(FIRST_RELEASES).min(most)
    }

    /// PUBREL is sent for this one.
    pub(super) fn ask(&mut self, packet_id: PacketId) {
        self.asked.insert(packet_id);
    }

    pub(super) fn is_asked(&self, packet_id: PacketId) -> bool {
        self.asked.contains(&packet_id)
    }

    /// The peer holds nothing under this one.
    pub(super) fn give_back(&mut self, packet_id: PacketId) {
        self.released += usize::from(self.asked.remove(&packet_id));
        debug_assert!(
            !self.free.contains(&packet_id),
            "an identifier that was taken is not free"
        );
        self.free.push_back(packet_id);
    }
}
