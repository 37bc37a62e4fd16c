//! One byte-stream connection: its socket, the layers on top of it, and its unwritten bytes.

use std::io::{self, IoSlice, Write};
use std::net::IpAddr;

use mio::net::TcpStream;
use thin_vec::ThinVec;

use crate::outbox::{Outbox, Pool};
use crate::peers::Place;
use crate::tls::{self, CIPHERTEXT_ROOM};
use crate::websocket;
use crate::{CloseReason, ConnectionInfo};

/// Most pieces handed to the kernel in one call.
const SLICES: usize = 64;
/// Pieces of plaintext are joined up to the size of a full TLS record.
const RECORD_BYTES: usize = 16 * 1024;

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// TLS or the WebSocket upgrade is not finished; the handler does not know of it.
    Handshake,
    /// The handler has it.
    Open,
    /// It writes its queue, then its own end of the stream.
    Closing,
    /// Its end of the stream is written. It waits for the peer's, so that the system does not drop
    /// bytes on their way.
    Lingering,
    /// It is removed as soon as the handler was told.
    Dead,
}

/// The system's reports about the peer's side of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hangup {
    /// Nothing.
    None,
    /// It has ended, or there was an error.
    Reported,
    /// The same, and a pause hid it: the connection is open until its deadline, and no longer.
    Expiring,
}

/// Buffers for encryption, one set per shard.
#[derive(Debug)]
pub(super) struct CipherScratch {
    plaintext: Vec<u8>,
    ciphertext: Vec<u8>,
}

impl CipherScratch {
    pub(super) fn new(needed: bool) -> Self {
        let room = |bytes| if needed { bytes } else { 0 };
        Self {
            plaintext: Vec::with_capacity(room(RECORD_BYTES)),
            ciphertext: vec![0; room(CIPHERTEXT_ROOM)],
        }
    }
}

/// Progress of writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pushed {
    /// Nothing is left to write.
    Everything,
    /// The socket takes no more for now.
    Blocked,
    /// It has written its share of this turn.
    Enough,
}

/// The client at the other end, or behind a balancer there.
#[derive(Debug)]
pub(super) enum Client {
    /// It has one of its address's places.
    Named(#[expect(dead_code, reason = "dropping it gives it back")] Place),
    /// The balancer's header has yet to name it: the part that was received.
    Unnamed(ThinVec<u8>),
}

/// Whether the handler has paused, and how often [`half_closed_timeout_ms`](crate::ShardConfig::half_closed_timeout_ms) has
/// passed since that changed, at the next look. In one byte, for idle connections are small.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pause(u8);

impl Pause {
    /// The handler has not paused since the connection began.
    pub(super) const NEVER: Self = Self(1);

    const ON: u8 = 0x80;
    const TIMES: u8 = 0x7f;

    pub(super) const fn is_on(self) -> bool {
        self.0 & Self::ON != 0
    }

    /// Pauses or goes on.
    pub(super) const fn set(&mut self, is_on: bool) {
        if self.is_on() != is_on {
            self.0 = if is_on { Self::ON } else { 0 };
        }
    }

    /// A look. Returns how often the time has passed at least; `None` where that is too often to count.
    pub(super) const fn look(&mut self) -> Option<u8> {
        let times = self.0 & Self::TIMES;
        if times == Self::TIMES {
            return None;
        }
        self.0 += 1;
        Some(times)
    }
}

/// The peer's side of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PeerSide {
    /// More may come.
    Open,
    /// Its end was read.
    Ended,
    /// Its end was read, and the handler has an answer for it, however long that takes.
    Awaiting,
}

impl PeerSide {
    pub(super) const fn has_ended(self) -> bool {
        !matches!(self, Self::Open)
    }

    /// Its end was read, of TLS or of the socket.
    pub(super) const fn end(&mut self) {
        if matches!(self, Self::Open) {
            *self = Self::Ended;
        }
    }
}

/// See the module's description.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts, each named at its field
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) socket: TcpStream,
    pub(super) info: ConnectionInfo,
    pub(super) phase: Phase,
    /// The handler was told of it and has not been told of its end.
    pub(super) announced: bool,
    /// It is in the list of connections to attend to.
    pub(super) queued: bool,
    /// There may be something to read.
    pub(super) readable: bool,
    /// Whether the peer has ended its side, or an error occurred: read until the system reports which.
    pub(super) hangup: Hangup,
    pub(super) peer_side: PeerSide,
    /// Whether the handler does not want to read.
    pub(super) pause: Pause,
    /// It is in the list of connections to write to.
    pub(super) dirty: bool,
    /// The socket did not take everything; wait for it to become writable.
    pub(super) blocked: bool,
    /// The unwritten bytes were above the high watermark, and have not been below the low one
    /// since.
    pub(super) above_high: bool,
    /// The handler has ended its side of the stream.
    pub(super) finishing: bool,
    /// That end is written.
    pub(super) shut: bool,
    pub(super) tls: Option<Box<tls::TlsSession>>,
    pub(super) websocket: Option<Box<websocket::WebSocketSession>>,
    pub(super) outbox: Option<Box<Outbox>>,
    /// The end, once it has begun; `None` stands for [`CloseReason::Local`]. An open connection has one once a write
    /// has failed.
    pub(super) end: Option<Box<ConnectionEnd>>,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    /// Its part of the shard's sum of bytes that wait to be sent and are copies.
    weighed_bytes: u32,
}

/// End of a connection.
#[derive(Debug)]
pub(super) struct ConnectionEnd {
    /// The reason that the handler gets.
    pub(super) reason: CloseReason,
    /// Bytes that were sent when it was looked at last.
    pub(super) sent_bytes: u64,
    /// Number of granted linger times.
    pub(super) waits: u8,
    /// A write failed, and the end that is read after that is not one of the peer's.
    pub(super) is_cut: bool,
}

impl ConnectionEnd {
    /// An end that begins now.
    pub(super) const fn new(reason: CloseReason, sent_bytes: u64) -> Self {
        Self {
            reason,
            sent_bytes,
            waits: 1,
            is_cut: false,
        }
    }
}

impl Connection {
    pub(super) fn new(socket: TcpStream, info: ConnectionInfo, client: Client) -> Self {
        Self {
            client,
            socket,
            info,
            phase: Phase::Handshake,
            announced: false,
            queued: false,
            readable: false,
            hangup: Hangup::None,
            peer_side: PeerSide::Open,
            pause: Pause::NEVER,
            dirty: false,
            blocked: false,
            above_high: false,
            finishing: false,
            shut: false,
            tls: None,
            websocket: None,
            outbox: None,
            end: None,
            received_bytes: 0,
            sent_bytes: 0,
            weighed_bytes: 0,
        }
    }

    /// Brings the shard's sum of bytes that wait to be sent and are copies up to date.
    pub(super) fn weigh(&mut self, sum_bytes: &mut usize) {
        let copied = self.outbox.as_ref().map_or(0, |outbox| outbox.copied());
        let encrypted = self.tls.as_ref().map_or(0, |tls| tls.pending().len());
        let weight_bytes = u32::try_from(copied + encrypted).unwrap_or(u32::MAX);
        debug_assert!(
            *sum_bytes >= self.weighed_bytes as usize,
            "it is in the sum"
        );
        *sum_bytes += weight_bytes as usize;
        *sum_bytes = sum_bytes.saturating_sub(self.weighed_bytes as usize);
        self.weighed_bytes = weight_bytes;
    }

    /// Whether a balancer's header is not complete.
    pub(super) const fn awaits_header(&self) -> bool {
        matches!(self.client, Client::Unnamed(_))
    }

    /// Whether a balancer's header has begun and is not complete.
    pub(super) fn has_part_of_header(&self) -> bool {
        matches!(&self.client, Client::Unnamed(part) if !part.is_empty())
    }

    /// The address under which its handshake counts; `None` while that is not known.
    pub(super) fn half_open_address(&self) -> Option<IpAddr> {
        (!self.awaits_header()).then(|| self.info.peer.ip())
    }

    /// Whether the handler may queue bytes.
    pub(super) fn takes_bytes(&self) -> bool {
        self.phase == Phase::Open && !self.finishing && !self.is_write_failed()
    }

    /// Bytes that the kernel has not taken.
    pub(super) fn unsent_bytes(&self) -> usize {
        let queued = self.outbox.as_ref().map_or(0, |outbox| outbox.len());
        let encrypted = self.tls.as_ref().map_or(0, |tls| tls.pending().len());
        queued + encrypted
    }

    /// Whether there is a reason to read.
    pub(super) fn wants_input(&self) -> bool {
        self.readable
            && !self.peer_side.has_ended()
            && match self.phase {
                Phase::Handshake | Phase::Lingering => true,
                Phase::Open => !self.pause.is_on(),
                Phase::Closing | Phase::Dead => false,
            }
    }

    /// Whether the peer's side has ended, and a pause hides it from the handler.
    pub(super) const fn hides_its_end(&self) -> bool {
        let is_paused = matches!(self.phase, Phase::Open) && self.pause.is_on();
        is_paused && !self.peer_side.has_ended() && matches!(self.hangup, Hangup::Reported)
    }

    /// Whether a write has failed: it is read to its end, nothing more is written.
    pub(super) fn is_write_failed(&self) -> bool {
        self.phase == Phase::Open && self.end.is_some()
    }

    /// Whether the end of the stream that is read is a reset that a failed write was told of.
    pub(super) fn is_cut(&self) -> bool {
        self.is_write_failed() && self.end.as_ref().is_some_and(|end| end.is_cut)
    }

    /// Ends its writing because of an error. Bytes in the socket are to be read, for as long as a pause may hide an
    /// end of the peer's.
    pub(super) fn fail_write(&mut self, error: &io::Error, pool: &mut Pool) {
        let reason = CloseReason::Failed(error.to_string());
        let mut end = ConnectionEnd::new(reason, self.sent_bytes);
        // Told once, the system reports a reset as an end. One that came after the peer's end is a broken pipe.
        end.is_cut = error.kind() != io::ErrorKind::BrokenPipe;
        self.end = Some(Box::new(end));
        self.hangup = Hangup::Expiring;
        self.readable = true;
        if let Some(outbox) = self.outbox.take() {
            pool.recycle_outbox(outbox);
        }
        if let Some(tls) = self.tls.as_deref_mut() {
            tls.drop_pending(pool);
        }
    }

    /// Why the peer is gone, when its end was not read.
    pub(super) fn loss(&self) -> CloseReason {
        match self.socket.take_error() {
            Ok(Some(error)) => CloseReason::Failed(error.to_string()),
            _ => CloseReason::Peer { code: 0 },
        }
    }

    /// Whether this side of the stream ends after the queue.
    fn is_ending(&self) -> bool {
        self.finishing || self.phase == Phase::Closing
    }

    /// Writes as much as the socket takes, and not much more than `share` bytes.
    pub(super) fn push(
        &mut self,
        share: usize,
        scratch: &mut CipherScratch,
        pool: &mut Pool,
    ) -> io::Result<Pushed> {
        let enough = self.sent_bytes + share as u64;
        let pushed = if self.tls.is_some() {
            self.push_encrypted(enough, scratch, pool)?
        } else {
            self.push_plain(enough, pool)?
        };
        if pushed == Pushed::Everything
            && let Some(outbox) = self.outbox.take()
        {
            pool.recycle_outbox(outbox);
        }
        Ok(pushed)
    }

    /// Stops once `enough` bytes were sent since the beginning.
    fn push_plain(&mut self, enough: u64, pool: &mut Pool) -> io::Result<Pushed> {
        loop {
            if self.sent_bytes >= enough {
                return Ok(Pushed::Enough);
            }
            // A turn nearly always queues one piece.
            if self.websocket.is_none()
                && let Some(outbox) = self.outbox.as_deref_mut()
                && let Some(piece) = outbox.single()
            {
                let length = piece.len();
                let Some(written) = write(|| self.socket.write(piece))? else {
                    return Ok(Pushed::Blocked);
                };
                self.sent_bytes += written as u64;
                outbox.advance(written, pool);
                if written < length {
                    return Ok(Pushed::Blocked);
                }
                return Ok(Pushed::Everything);
            }
            self.stage();
            let mut slices = [IoSlice::new(&[]); SLICES];
            let (used, gathered) = gather(
                self.websocket.as_deref(),
                self.outbox.as_deref(),
                &mut slices,
            );
            if gathered == 0 {
                if self.stage_end() {
                    continue;
                }
                return Ok(Pushed::Everything);
            }
            let written = write(|| match &slices[..used] {
                [single] => self.socket.write(single),
                several => self.socket.write_vectored(several),
            });
            let Some(written) = written? else {
                return Ok(Pushed::Blocked);
            };
            self.sent_bytes += written as u64;
            self.advance(written, pool);
            if written < gathered {
                return Ok(Pushed::Blocked);
            }
        }
    }

    fn push_encrypted(
        &mut self,
        enough: u64,
        scratch: &mut CipherScratch,
        pool: &mut Pool,
    ) -> io::Result<Pushed> {
        loop {
            if self.sent_bytes >= enough {
                return Ok(Pushed::Enough);
            }
            let Some(tls) = self.tls.as_deref_mut() else {
                return Ok(Pushed::Everything);
            };
            let pending = tls.pending();
            if !pending.is_empty() {
                let Some(written) = write(|| self.socket.write(pending))? else {
                    return Ok(Pushed::Blocked);
                };
                self.sent_bytes += written as u64;
                let complete = written == pending.len();
                tls.advance(written, pool);
                if !complete {
                    return Ok(Pushed::Blocked);
                }
            }
            self.stage();
            let mut slices = [IoSlice::new(&[]); SLICES];
            let (used, gathered) = gather(
                self.websocket.as_deref(),
                self.outbox.as_deref(),
                &mut slices,
            );
            let Some(tls) = self.tls.as_deref_mut() else {
                return Ok(Pushed::Everything);
            };
            let (taken, filled) = if gathered > 0 {
                let most = tls.round_bytes();
                let plaintext = join(&slices[..used], most, &mut scratch.plaintext);
                let filled = tls
                    .encrypt(plaintext, &mut scratch.ciphertext)
                    .map_err(io::Error::other)?;
                (plaintext.len(), filled)
            } else if self.stage_end() {
                continue;
            } else if self.is_ending()
                && let Some(tls) = self.tls.as_deref_mut()
                && !tls.close_sent()
            {
                (0, tls.encrypt_close(&mut scratch.ciphertext))
            } else {
                return Ok(Pushed::Everything);
            };
            self.advance(taken, pool);
            if filled == 0 {
                continue;
            }
            let ciphertext = &scratch.ciphertext[..filled];
            let written = write(|| self.socket.write(ciphertext))?.unwrap_or(0);
            self.sent_bytes += written as u64;
            if written < filled {
                if let Some(tls) = self.tls.as_deref_mut() {
                    tls.keep(&ciphertext[written..], pool);
                }
                return Ok(Pushed::Blocked);
            }
        }
    }

    /// Lets the WebSocket layer put its frame around the queue.
    fn stage(&mut self) {
        if let Some(websocket) = self.websocket.as_deref_mut() {
            let queued = self.outbox.as_ref().map_or(0, |outbox| outbox.len());
            websocket.stage(queued);
        }
    }

    /// Stages the WebSocket layer's end of the stream when it is due; whether it did.
    fn stage_end(&mut self) -> bool {
        if !self.is_ending() {
            return false;
        }
        match self.websocket.as_deref_mut() {
            Some(websocket) if !websocket.close_sent() => {
                websocket.stage_close();
                true
            }
            _ => false,
        }
    }

    /// Drops the first `count` gathered bytes.
    fn advance(&mut self, count: usize, pool: &mut Pool) {
        let queued = match self.websocket.as_deref_mut() {
            Some(websocket) => websocket.advance(count),
            None => count,
        };
        if let Some(outbox) = self.outbox.as_deref_mut() {
            outbox.advance(queued, pool);
        }
    }

    /// Gives back all buffers.
    pub(super) fn dissolve(&mut self, pool: &mut Pool) {
        if let Some(outbox) = self.outbox.take() {
            pool.recycle_outbox(outbox);
        }
        if let Some(tls) = self.tls.take() {
            tls.dissolve(pool);
        }
        self.websocket = None;
    }
}

/// Puts the pieces of the next output into `slices`; returns their number and their bytes.
fn gather<'a>(
    websocket: Option<&'a websocket::WebSocketSession>,
    outbox: Option<&'a Outbox>,
    slices: &mut [IoSlice<'a>],
) -> (usize, usize) {
    match (websocket, outbox) {
        (Some(websocket), outbox) => websocket.gather(outbox, slices),
        (None, Some(outbox)) => outbox.gather(usize::MAX, slices, 0),
        (None, None) => (0, 0),
    }
}

/// The plaintext of the next records: the first piece if it fills them or is alone, otherwise
/// several pieces joined. A record costs more than a copy. The first piece is cut at `most` bytes.
fn join<'a>(slices: &'a [IoSlice<'_>], most: usize, joined: &'a mut Vec<u8>) -> &'a [u8] {
    let first: &[u8] = slices.first().map_or(&[], |slice| slice);
    if slices.len() <= 1 || first.len() >= RECORD_BYTES {
        return &first[..first.len().min(most)];
    }
    joined.clear();
    for slice in slices {
        let room = RECORD_BYTES - joined.len();
        joined.extend_from_slice(&slice[..slice.len().min(room)]);
        if joined.len() == RECORD_BYTES {
            break;
        }
    }
    joined
}

/// The number of bytes that a write took; `None` when the socket is full.
fn write(mut attempt: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match attempt() {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Connection;
    use crate::table::slot_bytes;

    #[test]
    fn an_idle_connection_is_small() {
        // With debug assertions, sockets of mio remember their selector.
        let of_mio = if cfg!(debug_assertions) { 8 } else { 0 };
        assert_eq!(slot_bytes::<Connection>(), 160 + of_mio);
    }
}
