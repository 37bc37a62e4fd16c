//! Invariants of the log, for tests: the checks look at everything.

use super::shared::Shared;
use crate::log::frame::{HEADER_BYTES, Header, Item, Seal, is_sound, items};
use crate::log::index::Index as _;
use crate::log::segment::SEGMENT_HEADER_BYTES;

/// Frames in memory, each of which follows on the one before.
pub(super) struct Follow {
    /// Of the next frame.
    pub(super) sequence: u64,
    /// The next message's, or a later one.
    pub(super) position: u64,
    seal: Seal,
}

impl Follow {
    pub(super) const fn new(sequence: u64, position: u64, seal: Seal) -> Self {
        Self {
            sequence,
            position,
            seal,
        }
    }

    /// Goes behind some frames.
    ///
    /// # Panics
    /// Where one is damaged, cut off, or does not follow on the one before.
    pub(super) fn check(&mut self, frames: &[u8]) {
        let mut rest = frames;
        while !rest.is_empty() {
            let sequence = self.sequence;
            let header = Header::decode(rest, self.seal);
            let header = header.unwrap_or_else(|| panic!("frame {sequence} has a header"));
            assert_eq!(
                header.sequence, sequence,
                "a frame follows on the one before"
            );
            let bytes = HEADER_BYTES + header.body_bytes as usize;
            assert!(bytes <= rest.len(), "frame {sequence} is whole");
            let (frame, after) = rest.split_at(bytes);
            let body = &frame[HEADER_BYTES..];
            assert!(
                is_sound(&header, body, self.seal),
                "frame {sequence} is sound"
            );
            assert!(
                header.first_position >= self.position,
                "messages of frame {sequence} follow on those before"
            );
            let messages = items(body).filter(|item| matches!(item, Ok(Item::Message { .. })));
            self.position = header.first_position + messages.count() as u64;
            self.sequence += 1;
            rest = after;
        }
    }
}

/// Looks at the segments that all threads know.
///
/// # Panics
/// Where they do not follow on each other, or one does not agree with its index.
pub(super) fn segments(shared: &Shared) {
    let segments = shared.segments();
    let mut before = None;
    for (at, segment) in segments.iter().enumerate() {
        let state = segment.state();
        let (number, end) = (segment.number, state.end);
        assert!(!state.is_replaced, "no other stands for segment {number}");
        assert!(
            state.file.is_none() || at + 1 == segments.len(),
            "segment {number} is written while it is the last"
        );
        assert!(
            end.offset >= SEGMENT_HEADER_BYTES as u64
                && end.sequence + 1 >= segment.first_sequence
                && end.position >= segment.first_position,
            "segment {number} ends behind its beginning"
        );
        if let Some((number_before, sequence, position)) = before {
            assert!(
                number_before < number
                    && sequence < segment.first_sequence
                    && position <= segment.first_position,
                "segment {number} begins behind the one before"
            );
        }
        before = Some((number, end.sequence, end.position));
        if let Some(index) = &state.index {
            assert!(
                index.messages() <= end.position - segment.first_position,
                "the index of segment {number} has its messages"
            );
        }
    }
    if let Some((_, sequence, position)) = before {
        assert!(
            sequence < shared.inbox().next_sequence && position <= shared.inbox().next_position,
            "what is appended follows on the last segment"
        );
    }
}
