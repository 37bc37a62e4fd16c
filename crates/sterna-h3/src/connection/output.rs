//! Input and output of the engine, beside events and commands.

use bytes::Bytes;

use crate::{ErrorCode, StreamId};

/// Bytes that arrived on a stream, in order, with their properties.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The stream they arrived on.
    pub stream: StreamId,
    /// Bytes that the engine has not taken yet.
    pub bytes: &'a [u8],
    /// Whether the bytes are early data (0-RTT), and the handshake is not complete. An attacker may
    /// have replayed them.
    pub early: bool,
    /// Whether the peer's side of the stream ends after them.
    pub fin: bool,
}

impl<'a> Chunk<'a> {
    /// Bytes that are no early data, of a stream that goes on.
    #[must_use]
    pub const fn new(stream: StreamId, bytes: &'a [u8]) -> Self {
        Self {
            stream,
            bytes,
            early: false,
            fin: false,
        }
    }

    /// The end of the peer's side of a stream.
    #[must_use]
    pub const fn fin(stream: StreamId) -> Self {
        Self {
            stream,
            bytes: &[],
            early: false,
            fin: true,
        }
    }
}

/// The transport, as far as the engine needs it.
///
/// The engine numbers its own streams, each kind in order. The first call for a number opens the
/// stream. If a transport may open no more streams for now, it queues the bytes. A caller that does
/// not want that asks the transport before the command.
pub trait Output {
    /// Queues bytes on a stream. One command makes few calls, mostly one: bytes that leave in one
    /// packet arrive in one.
    fn write(&mut self, stream: StreamId, bytes: &[u8]);

    /// The same without a copy, for contents that a caller has handed over as [`Bytes`].
    fn write_shared(&mut self, stream: StreamId, bytes: Bytes) {
        self.write(stream, &bytes);
    }

    /// Ends this side of a stream after the queued bytes.
    fn finish(&mut self, stream: StreamId);

    /// Aborts this side of a stream (RESET_STREAM): queued bytes need not be sent.
    fn reset(&mut self, stream: StreamId, code: ErrorCode);

    /// Asks the peer to end its side (STOP_SENDING). The engine ignores bytes that still arrive.
    fn stop(&mut self, stream: StreamId, code: ErrorCode);

    /// Queues a QUIC datagram (RFC 9221). False where the peer takes none or not one of this size.
    fn datagram(&mut self, bytes: &[u8]) -> bool;
}
