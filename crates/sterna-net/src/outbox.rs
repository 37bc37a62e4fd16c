//! Bytes that wait to be written to one connection, and the pool of their buffers.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

/// Largest chunk of copied bytes, the size of a full TLS record. A larger `send` makes a larger
/// chunk.
const CHUNK_BYTES: usize = 16 * 1024;
/// Capacity of a new chunk.
const FIRST_CHUNK_BYTES: usize = 1024;
/// A recycled outbox keeps its list when it has at most this many places.
const KEPT_PLACES: usize = 64;
/// Estimated memory of a recycled outbox besides its chunks.
const OUTBOX_BYTES: usize = 256;

/// Buffers that no connection needs now. Idle connections have none.
#[derive(Debug)]
pub(crate) struct Pool {
    buffers: Vec<Vec<u8>>,
    // Boxed because they move between the pool and the connections.
    #[allow(clippy::vec_box)]
    outboxes: Vec<Box<Outbox>>,
    held_bytes: usize,
    limit_bytes: usize,
}

impl Pool {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            buffers: Vec::new(),
            outboxes: Vec::new(),
            held_bytes: 0,
            limit_bytes,
        }
    }

    /// An empty buffer.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        match self.buffers.pop() {
            Some(buffer) => {
                self.held_bytes -= buffer.capacity();
                buffer
            }
            None => Vec::with_capacity(FIRST_CHUNK_BYTES),
        }
    }

    /// Takes a buffer back.
    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        // One of the size of a head would be too small for the next.
        let is_fit = (FIRST_CHUNK_BYTES..=CHUNK_BYTES).contains(&bytes);
        if !is_fit || self.held_bytes + bytes > self.limit_bytes {
            return;
        }
        buffer.clear();
        self.held_bytes += bytes;
        debug_assert!(self.held_bytes <= self.limit_bytes, "the pool has a limit");
        self.buffers.push(buffer);
    }

    /// An empty outbox.
    pub(crate) fn outbox(&mut self) -> Box<Outbox> {
        match self.outboxes.pop() {
            Some(outbox) => {
                self.held_bytes -= OUTBOX_BYTES;
                outbox
            }
            None => Box::default(),
        }
    }

    /// Takes an outbox back, with its content.
    pub(crate) fn recycle_outbox(&mut self, mut outbox: Box<Outbox>) {
        outbox.clear(self);
        if outbox.chunks.capacity() <= KEPT_PLACES
            && self.held_bytes + OUTBOX_BYTES <= self.limit_bytes
        {
            self.held_bytes += OUTBOX_BYTES;
            self.outboxes.push(outbox);
        }
    }
}

#[derive(Debug)]
enum Chunk {
    Copied(Vec<u8>),
    Shared(Bytes),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(buffer) => buffer,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// Bytes in the order in which they leave.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    chunks: VecDeque<Chunk>,
    /// Written bytes of the first chunk.
    first_offset: usize,
    /// Bytes that wait.
    len: usize,
    /// Bytes of the buffers of copied chunks, whatever part of them is filled.
    copied: usize,
}

impl Outbox {
    /// Bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory held by copying.
    pub(crate) fn copied(&self) -> usize {
        self.copied
    }

    /// Appends a copy.
    pub(crate) fn push(&mut self, bytes: &[u8], pool: &mut Pool) {
        if bytes.is_empty() {
            return;
        }
        self.len += bytes.len();
        let mut buffer = match self.chunks.back_mut() {
            Some(Chunk::Copied(last)) if last.len() + bytes.len() <= CHUNK_BYTES => {
                let before = last.capacity();
                last.extend_from_slice(bytes);
                self.copied += last.capacity() - before;
                return;
            }
            // Mostly the head of a message: another shared payload follows.
            Some(Chunk::Shared(_)) => Vec::with_capacity(bytes.len()),
            _ => pool.buffer(),
        };
        buffer.extend_from_slice(bytes);
        self.copied += buffer.capacity();
        self.chunks.push_back(Chunk::Copied(buffer));
    }

    /// Appends without copying.
    pub(crate) fn push_shared(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.chunks.push_back(Chunk::Shared(bytes));
        }
    }

    /// All waiting bytes, where they are in one piece.
    pub(crate) fn single(&self) -> Option<&[u8]> {
        match self.chunks.len() {
            1 => Some(&self.chunks[0].bytes()[self.first_offset..]),
            _ => None,
        }
    }

    /// Puts the first `limit` waiting bytes into `slices`, as far as there is room, from index
    /// `used` on. Returns the number of slices used then, and the number of bytes put in.
    pub(crate) fn gather<'a>(
        &'a self,
        limit: usize,
        slices: &mut [IoSlice<'a>],
        mut used: usize,
    ) -> (usize, usize) {
        let mut gathered = 0;
        let mut offset = self.first_offset;
        for chunk in &self.chunks {
            if used == slices.len() || gathered == limit {
                break;
            }
            let bytes = &chunk.bytes()[offset..];
            let bytes = &bytes[..bytes.len().min(limit - gathered)];
            offset = 0;
            slices[used] = IoSlice::new(bytes);
            used += 1;
            gathered += bytes.len();
        }
        (used, gathered)
    }

    /// Drops the first `count` waiting bytes.
    pub(crate) fn advance(&mut self, mut count: usize, pool: &mut Pool) {
        debug_assert!(count <= self.len, "only what was queued can leave");
        self.len -= count;
        while count > 0 {
            let Some(first) = self.chunks.front() else {
                return;
            };
            let left = first.bytes().len() - self.first_offset;
            if count < left {
                self.first_offset += count;
                return;
            }
            count -= left;
            self.first_offset = 0;
            if let Some(Chunk::Copied(buffer)) = self.chunks.pop_front() {
                self.copied -= buffer.capacity();
                pool.recycle(buffer);
            }
        }
        debug_assert!(
            !self.chunks.is_empty() || (self.len == 0 && self.copied == 0),
            "an empty outbox holds nothing"
        );
    }

    fn clear(&mut self, pool: &mut Pool) {
        for chunk in self.chunks.drain(..) {
            if let Chunk::Copied(buffer) = chunk {
                pool.recycle(buffer);
            }
        }
        self.first_offset = 0;
        self.len = 0;
        self.copied = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contents(outbox: &Outbox) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 1024];
        let (used, gathered) = outbox.gather(usize::MAX, &mut slices, 0);
        let bytes: Vec<u8> = slices[..used]
            .iter()
            .flat_map(|s| s.iter().copied())
            .collect();
        assert_eq!(bytes.len(), gathered);
        bytes
    }

    proptest! {
        #[test]
        fn bytes_leave_in_order(
            steps in prop::collection::vec((any::<bool>(), 0usize..20_000, 0usize..30_000), 1..20)
        ) {
            let mut pool = Pool::new(1 << 20);
            let mut outbox = Outbox::default();
            let mut model: VecDeque<u8> = VecDeque::new();
            let mut next = 0u8;
            for (shared, pushed, left) in steps {
                let bytes: Vec<u8> = (0..pushed).map(|_| { next = next.wrapping_add(1); next }).collect();
                model.extend(&bytes);
                if shared {
                    outbox.push_shared(bytes.into());
                } else {
                    outbox.push(&bytes, &mut pool);
                }
                let left = left.min(outbox.len());
                outbox.advance(left, &mut pool);
                model.drain(..left);
                prop_assert_eq!(outbox.len(), model.len());
                prop_assert_eq!(contents(&outbox), model.iter().copied().collect::<Vec<_>>());
            }
            let left = outbox.len();
            outbox.advance(left, &mut pool);
            prop_assert_eq!(outbox.len(), 0);
            prop_assert_eq!(outbox.copied(), 0);
        }
    }

    /// The head of a message is short, and its payload is shared.
    #[test]
    fn what_lies_between_shared_bytes_takes_little_and_all_that_is_taken_counts() {
        const HEADS: usize = 100;
        let mut pool = Pool::new(1 << 20);
        for _ in 0..HEADS {
            pool.recycle(Vec::with_capacity(CHUNK_BYTES));
        }
        let mut outbox = pool.outbox();
        for _ in 0..HEADS {
            outbox.push(&[7; 20], &mut pool);
            outbox.push_shared(Bytes::from_static(&[8; 4096]));
        }
        let taken = outbox.chunks.iter().map(|chunk| match chunk {
            Chunk::Copied(buffer) => buffer.capacity(),
            Chunk::Shared(_) => 0,
        });
        let taken: usize = taken.sum();
        assert!(taken <= CHUNK_BYTES + HEADS * 64, "{taken} bytes for heads");
        assert_eq!(outbox.copied(), taken);
        outbox.advance(outbox.len(), &mut pool);
        assert_eq!(outbox.copied(), 0);
    }

    #[test]
    fn small_messages_share_a_chunk_and_the_pool_keeps_its_limit() {
        let mut pool = Pool::new(8 * 1024);
        let mut outbox = pool.outbox();
        for _ in 0..100 {
            outbox.push(&[7; 64], &mut pool);
        }
        assert_eq!(outbox.chunks.len(), 1);
        outbox.push_shared(Bytes::from_static(&[8; 4096]));
        outbox.push(&[9; 64], &mut pool);
        assert_eq!(outbox.chunks.len(), 3);
        pool.recycle_outbox(outbox);
        assert!(pool.held_bytes > 0 && pool.held_bytes <= 8 * 1024);
        for _ in 0..100 {
            pool.recycle(Vec::with_capacity(1024));
        }
        assert!(pool.held_bytes <= 8 * 1024);
    }
}
