//! Frames that were appended and not yet taken by the writer.

use std::ops::Range;

use super::check::Follow;
use super::handle::Appended;
use crate::log::frame::{Draft, HEADER_BYTES, Header, MOST_SHARED_BYTES, Seal};

/// See the module.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Frames, one after the other.
    frames: Vec<u8>,
    /// The last of them, where messages may join it.
    shared: Option<SharedFrame>,
    pub(crate) next_sequence: u64,
    pub(crate) next_position: u64,
    /// The writer waits to be woken.
    pub(crate) writer_sleeps: bool,
    /// The engine ends: these frames are still written.
    pub(crate) closing: bool,
}

/// A frame with messages of one topic and nothing else. A message joins it that is appended before the writer takes it:
/// a frame's header would be a third of a small message. Other topics have frames of their own, so that each can be
/// taken out of a full segment by itself.
#[derive(Debug)]
struct SharedFrame {
    /// Its place in the inbox.
    start: usize,
    /// The place of its topic there.
    topic: Range<usize>,
    header: Header,
}

/// How far a frame is from the last one on the disk. The frames between are in memory: there are never 4 billion of them.
fn unsynced(sequence: u64, synced: u64) -> u32 {
    debug_assert!(
        synced < sequence,
        "a frame is on the disk after it is appended"
    );
    u32::try_from(sequence - synced).unwrap_or(u32::MAX)
}

impl Inbox {
    pub(crate) fn new(next_sequence: u64, next_position: u64) -> Self {
        Self {
            frames: Vec::new(),
            shared: None,
            next_sequence,
            next_position,
            writer_sleeps: false,
            closing: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Bytes of the frames.
    pub(crate) fn bytes(&self) -> usize {
        self.frames.len()
    }

    /// Gives all frames away, in exchange for an empty buffer.
    pub(crate) fn take(&mut self, empty: &mut Vec<u8>) {
        std::mem::swap(&mut self.frames, empty);
        self.shared = None;
    }

    /// Looks at the frames that wait, behind those before.
    ///
    /// # Panics
    /// Where they do not follow on each other, or the next append would not follow on them.
    pub(super) fn check(&self, before: &mut Follow) {
        before.check(&self.frames);
        assert_eq!(
            before.sequence, self.next_sequence,
            "the next frame follows on the last"
        );
        assert!(
            before.position <= self.next_position,
            "the next message follows on the last"
        );
        if let Some(shared) = &self.shared {
            let bytes = HEADER_BYTES + shared.header.body_bytes as usize;
            assert_eq!(
                shared.start + bytes,
                self.frames.len(),
                "the frame that messages join is the last"
            );
        }
    }

    /// The checksum of a body, where it is long: it is made before the inbox is locked.
    pub(crate) fn checksum_of_long(body: &[u8], seal: Seal) -> Option<u32> {
        (body.len() > MOST_SHARED_BYTES).then(|| seal.checksum(body))
    }

    /// Appends a frame, whose first message gets a position that is not below the next. All up to `synced` is on the disk.
    /// The checksum is that of [`checksum_of_long`](Self::checksum_of_long).
    pub(crate) fn append(
        &mut self,
        draft: &Draft,
        position: Option<u64>,
        (checksum, seal): (Option<u32>, Seal),
        synced: u64,
    ) -> Appended {
        if position.is_none()
            && let Some(appended) = self.join(draft, synced, seal)
        {
            return appended;
        }
        let body = draft.body();
        self.next_position = self.next_position.max(position.unwrap_or(0));
        let header = Header {
            body_bytes: body.len() as u32,
            sequence: self.next_sequence,
            first_position: self.next_position,
            unsynced: unsynced(self.next_sequence, synced),
            body_checksum: checksum.unwrap_or_else(|| seal.checksum(body)),
        };
        let start = self.frames.len();
        let body_at = start + HEADER_BYTES;
        self.frames.extend_from_slice(&header.encode(seal));
        self.frames.extend_from_slice(body);
        self.shared = draft.lone_topic().map(|topic| SharedFrame {
            start,
            topic: body_at + topic.start..body_at + topic.end,
            header,
        });
        self.next_sequence += 1;
        self.next_position += u64::from(draft.messages());
        Appended {
            first: header.first_position,
            sequence: header.sequence,
        }
    }

    /// Has the one message of a draft join the last frame, if that has its topic and room for it.
    fn join(&mut self, draft: &Draft, synced: u64, seal: Seal) -> Option<Appended> {
        let shared = self.shared.as_mut()?;
        let body = draft.body();
        let frame_bytes = self.frames.len() - shared.start + body.len();
        if frame_bytes > MOST_SHARED_BYTES
            || body[draft.lone_topic()?] != self.frames[shared.topic.clone()]
        {
            return None;
        }
        shared.header.unsynced = unsynced(shared.header.sequence, synced);
        shared.header.body_bytes += body.len() as u32;
        shared.header.body_checksum = Seal::checksum_with(shared.header.body_checksum, body);
        self.frames.extend_from_slice(body);
        self.frames[shared.start..][..HEADER_BYTES].copy_from_slice(&shared.header.encode(seal));
        let first = self.next_position;
        self.next_position += 1;
        Some(Appended {
            first,
            sequence: shared.header.sequence,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sync may pass while a frame waits for the writer.
    #[test]
    fn a_shared_frame_tells_what_was_on_the_disk_at_its_last_append() {
        let seal = Seal::of([7; 16]);
        let mut inbox = Inbox::new(8, 1);
        let mut draft = Draft::default();
        draft
            .message("a", |out| out.extend_from_slice(b"a 1"))
            .expect("it fits");
        let appended = [3, 5].map(|synced| inbox.append(&draft, None, (None, seal), synced));
        inbox.check(&mut Follow::new(8, 1, seal));
        assert_eq!(appended.map(|one| one.sequence), [8, 8]);
        let mut frames = Vec::new();
        inbox.take(&mut frames);
        let header = Header::decode(&frames, seal).expect("it is a frame");
        assert_eq!((header.synced(), header.first_position), (5, 1));
        assert!(crate::log::frame::is_sound(
            &header,
            &frames[HEADER_BYTES..],
            seal
        ));
    }
}
