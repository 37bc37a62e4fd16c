//! Reading of streams, and the count of bytes that are not read.

use quinn_proto::{ReadError, StreamId, VarInt};

use super::connection::{Connected, Shared, Stage, number};
use super::event::{DriverEvent, EventKind};
use super::gaps;

/// Bytes read from a stream before others have their turn.
const READ_BATCH_BYTES: usize = 64 * 1024;

impl Connected {
    pub(super) fn read(&mut self, shared: &mut Shared, stream: StreamId) {
        if self.stage == Stage::Lingering {
            return self.discard(stream);
        }
        if !self.is_usable() {
            return;
        }
        if self.paused {
            if !self.readable.contains(&stream) {
                self.readable.push(stream);
            }
            return;
        }
        let confirmed = self.handshake.is_none();
        let connection = self.key;
        let name = number(stream);
        let mut emit = |kind| shared.events.push_back(DriverEvent { connection, kind });
        let mut over = false;
        let mut receiver = self.quic.recv_stream(stream);
        let Ok(mut chunks) = receiver.read(true) else {
            return;
        };
        let mut bytes = 0;
        while bytes < READ_BATCH_BYTES && !over {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => {
                    bytes += chunk.bytes.len();
                    emit(EventKind::Chunk {
                        stream: name,
                        bytes: chunk.bytes,
                        early: !confirmed,
                        confirmed,
                    });
                }
                Ok(None) => {
                    emit(EventKind::Finished { stream: name });
                    over = true;
                }
                Err(ReadError::Reset(code)) => {
                    let code = code.into_inner();
                    emit(EventKind::Aborted { stream: name, code });
                    over = true;
                }
                Err(ReadError::Blocked) => break,
            }
        }
        let _ = chunks.finalize();
        self.figures.received_payload_bytes += bytes as u64;
        self.gaps.read(stream, bytes);
        if bytes >= READ_BATCH_BYTES && !over {
            self.readable.push(stream);
        }
        if over {
            self.gaps.ended(stream);
            self.trace_stream(shared, stream, "half_closed_remote");
            self.tend_limit(shared, stream.dir());
        }
    }

    /// Reads what comes once the handler has closed the connection, and keeps nothing of it.
    fn discard(&mut self, stream: StreamId) {
        let mut receiver = self.quic.recv_stream(stream);
        let Ok(mut chunks) = receiver.read(true) else {
            return;
        };
        let mut bytes = 0;
        let is_behind_a_gap = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => bytes += chunk.bytes.len(),
                Ok(None) | Err(ReadError::Reset(_)) => break false,
                Err(ReadError::Blocked) => break bytes == 0,
            }
        };
        let _ = chunks.finalize();
        if is_behind_a_gap {
            let _ = receiver.stop(VarInt::from_u32(0));
        }
    }

    /// Gives back what the library keeps of streams that nobody reads any more: else it has that until the end of the
    /// connection is over, too.
    pub(super) fn drop_unread(&mut self, shared: &mut Shared) {
        self.paused = false;
        self.forget_unread(shared);
        for stream in std::mem::take(&mut self.readable) {
            self.discard(stream);
        }
        for stream in self.gaps.take_streams(&mut shared.unread_bytes) {
            let _ = self.quic.recv_stream(stream).stop(VarInt::from_u32(0));
        }
    }

    /// Stops or resumes reading; returns whether there is something to read.
    pub(super) fn pause(&mut self, shared: &mut Shared, paused: bool) -> bool {
        // A connection that has ended holds nothing.
        self.paused = paused && self.is_usable();
        if !self.paused {
            self.forget_unread(shared);
        }
        !paused && !self.readable.is_empty()
    }

    /// While nothing is read, counts a datagram of this length. Its bytes outside of streams are counted, too: the
    /// library does not tell them apart.
    pub(super) fn note_unread(&mut self, shared: &mut Shared, length: usize) {
        if self.paused {
            let room = shared.config.settings.receive_window_bytes - self.unread_bytes;
            let unread = room.min(length.try_into().unwrap_or(u32::MAX));
            self.unread_bytes += unread;
            shared.unread_bytes += u64::from(unread);
        }
    }

    /// All that could be read was read: counts the bytes behind gaps, and with them all unread bytes.
    pub(super) fn settle_unread(&mut self, shared: &mut Shared) {
        if !self.paused && self.is_usable() {
            let window_bytes = shared.config.settings.receive_window_bytes;
            self.gaps.settle(gaps::most_bytes(window_bytes));
        }
        self.gaps.count(&mut shared.unread_bytes);
    }

    /// [`crate::Network::unread_bytes`].
    pub(super) fn unread_bytes(&self) -> usize {
        self.unread_bytes as usize + self.gaps.bytes() as usize
    }

    /// Whether what comes now is dropped, since too much is unread.
    pub(super) fn drops_input(&self) -> bool {
        self.unread_bytes() >= self.most_unread_bytes as usize
    }

    /// Nothing is unread any more.
    pub(super) fn forget_unread(&mut self, shared: &mut Shared) {
        shared.unread_bytes -= u64::from(std::mem::take(&mut self.unread_bytes));
    }
}
