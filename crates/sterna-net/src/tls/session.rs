//! The server side of one TLS connection, without buffers of its own while nothing is under way.

use std::fmt;
use std::sync::Arc;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{Error, HandshakeKind};
use thin_vec::ThinVec;

use super::fault::classify;
use super::hello::{FirstRecord, Hello};
use super::record_sizes::BySize;
use crate::handshake::HandshakeFault;
use crate::outbox::Pool;

/// Room that a caller of [`TlsSession::receive`] leaves in front of the read bytes, for earlier
/// incomplete records. A handshake message has at most 64 KiB. A message in more records than fit
/// here is refused.
pub(crate) const PARTIAL_ROOM: usize = 72 * 1024;
/// Most plaintext encrypted at once: four full records.
pub(crate) const ROUND_BYTES: usize = 4 * 16 * 1024;
/// The same where records are small: the overhead of those of 64 bytes and more fits into the other half.
const SMALL_ROUND_BYTES: usize = ROUND_BYTES / 2;
/// Room for one round, with TLS's overhead for each record and a message of TLS's own.
pub(crate) const CIPHERTEXT_ROOM: usize = ROUND_BYTES + 4 * 64 + 1024;

/// Result of received bytes.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The handshake has just finished.
    pub(crate) opened: bool,
    /// The peer will send no more.
    pub(crate) ended: bool,
    /// The connection cannot go on; an alert that says so waits to be written.
    pub(crate) failure: Option<TlsFailure>,
}

/// Why a connection cannot go on.
#[derive(Debug)]
pub(crate) struct TlsFailure {
    /// The fault of a handshake.
    pub(crate) fault: HandshakeFault,
    /// The fault in words.
    pub(crate) detail: String,
}

/// The library's side of a connection.
enum Stage {
    /// Nothing but a part of the first record has come.
    Start(Arc<BySize>),
    /// The handshake is under way. The client's offers are for the log.
    Handshake(UnbufferedServerConnection, Box<Begun>),
    /// The handshake is finished.
    Open(UnbufferedServerConnection),
    /// There is no connection, for it could not be made.
    Failed,
}

/// Facts about a client whose handshake has begun.
struct Begun {
    /// Its first bytes.
    first: [u8; FIRST_BYTES],
    hello: Option<Box<Hello>>,
    configs: Arc<BySize>,
}

/// Bytes that tell what a client speaks that does not speak TLS.
const FIRST_BYTES: usize = 8;

impl Stage {
    const fn connection(&self) -> Option<&UnbufferedServerConnection> {
        match self {
            Self::Handshake(tls, _) | Self::Open(tls) => Some(tls),
            Self::Start(_) | Self::Failed => None,
        }
    }

    const fn connection_mut(&mut self) -> Option<&mut UnbufferedServerConnection> {
        match self {
            Self::Handshake(tls, _) | Self::Open(tls) => Some(tls),
            Self::Start(_) | Self::Failed => None,
        }
    }

    const fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// An error in our words.
    fn explain(&self, error: &Error) -> TlsFailure {
        let (fault, detail) = match self {
            Self::Handshake(_, begun) => {
                let served = begun.configs.protocols();
                classify(error, &begun.first, begun.hello.as_deref(), served)
            }
            _ => classify(error, &[], None, &[]),
        };
        TlsFailure { fault, detail }
    }
}

/// See the module's description.
pub(crate) struct TlsSession {
    stage: Stage,
    /// Records that are not complete yet; without memory when there are none.
    partial: Vec<u8>,
    /// Records to be written; without memory when there are none.
    pending: Vec<u8>,
    /// Written bytes of `pending`.
    written: usize,
    /// The client takes small records.
    is_small: bool,
    close_sent: bool,
    /// Nothing but an alert that waits may follow.
    failed: bool,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession")
            .field("opened", &self.stage.is_open())
            .field("partial_bytes", &self.partial.len())
            .field("pending_bytes", &self.pending().len())
            .finish_non_exhaustive()
    }
}

impl TlsSession {
    pub(crate) fn new(configs: Arc<BySize>) -> Self {
        Self {
            stage: Stage::Start(configs),
            partial: Vec::new(),
            pending: Vec::new(),
            written: 0,
            is_small: false,
            close_sent: false,
            failed: false,
        }
    }

    /// The application protocol that was negotiated.
    pub(crate) fn protocol(&self) -> &[u8] {
        let tls = self.stage.connection();
        tls.and_then(|tls| tls.alpn_protocol()).unwrap_or_default()
    }

    /// Whether the handshake resumed an earlier session.
    pub(crate) fn is_resumed(&self) -> bool {
        let kind = self.stage.connection().and_then(|tls| tls.handshake_kind());
        kind == Some(HandshakeKind::Resumed)
    }

    /// The client's certificates, end-entity first.
    pub(crate) fn peer_certificates(&self) -> ThinVec<Box<[u8]>> {
        let tls = self.stage.connection();
        let chain = tls.and_then(|tls| tls.peer_certificates());
        let chain = chain.unwrap_or_default().iter();
        chain.map(|der| der.as_ref().into()).collect()
    }

    /// Most plaintext that [`TlsSession::encrypt`] takes at once.
    pub(crate) const fn round_bytes(&self) -> usize {
        if self.is_small {
            SMALL_ROUND_BYTES
        } else {
            ROUND_BYTES
        }
    }

    /// Begins the handshake once the first record is there, with records as small as the client asks for.
    fn begin(&mut self, received: &[u8]) -> Result<(), TlsFailure> {
        let Stage::Start(configs) = &self.stage else {
            return Ok(());
        };
        let hello = match FirstRecord::of(received) {
            FirstRecord::Incomplete => return Ok(()),
            FirstRecord::Hello(hello) => Some(hello),
            FirstRecord::Other => None,
        };
        let asked_bytes = hello.as_ref().and_then(|hello| hello.record_bytes);
        let config = configs.of(asked_bytes);
        self.is_small = config.max_fragment_size.is_some();
        let mut first = [0; FIRST_BYTES];
        let seen = received.len().min(FIRST_BYTES);
        first[..seen].copy_from_slice(&received[..seen]);
        let configs = Arc::clone(configs);
        match UnbufferedServerConnection::new(config) {
            Ok(tls) => {
                let begun = Begun {
                    first,
                    hello,
                    configs,
                };
                self.stage = Stage::Handshake(tls, Box::new(begun));
                Ok(())
            }
            Err(error) => {
                self.stage = Stage::Failed;
                Err(TlsFailure {
                    fault: HandshakeFault::Internal,
                    detail: error.to_string(),
                })
            }
        }
    }

    /// Takes `buffer[PARTIAL_ROOM..end]`, and appends the decrypted bytes to `plaintext`. The bytes
    /// in front of it in `buffer` are overwritten.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        end: usize,
        plaintext: &mut Vec<u8>,
        pool: &mut Pool,
    ) -> Received {
        let mut start = PARTIAL_ROOM - self.partial.len();
        if !self.partial.is_empty() {
            buffer[start..PARTIAL_ROOM].copy_from_slice(&self.partial);
            pool.recycle(std::mem::take(&mut self.partial));
        }
        let mut received = Received::default();
        if let Err(failure) = self.begin(&buffer[start..end]) {
            self.failed = true;
            received.failure = Some(failure);
            return received;
        }
        let mut failure: Option<Error> = None;
        while let Some(tls) = self.stage.connection_mut() {
            let UnbufferedStatus { mut discard, state } =
                tls.process_tls_records(&mut buffer[start..end]);
            match state {
                Ok(ConnectionState::ReadTraffic(mut records)) => {
                    while let Some(record) = records.next_record() {
                        match record {
                            Ok(record) => {
                                discard += record.discard;
                                plaintext.extend_from_slice(record.payload);
                            }
                            Err(error) => {
                                failure.get_or_insert(error);
                                break;
                            }
                        }
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut message)) => {
                    append(&mut self.pending, pool, |room| match message.encode(room) {
                        Ok(length) => Ok(length),
                        Err(EncodeError::InsufficientSize(InsufficientSizeError {
                            required_size,
                        })) => Err(required_size),
                        Err(EncodeError::AlreadyEncoded) => Ok(0),
                    });
                }
                // `pending` is written at the end of the turn.
                Ok(ConnectionState::TransmitTlsData(transmit)) => transmit.done(),
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    received.ended = true;
                }
                // Early data is not enabled; input that does not fit the state is not read.
                Ok(ConnectionState::ReadEarlyData(_)) => {
                    failure = Some(Error::General("early data".into()));
                }
                Ok(_) => {
                    start += discard;
                    break;
                }
                Err(error) => failure = Some(error),
            }
            start += discard;
            if received.ended {
                break;
            }
            // After an error only the alert is fetched, if there is one: records must not be looked
            // at again.
            if failure.is_some() && !tls.wants_write() {
                break;
            }
        }
        let goes_on = failure.is_none() && !received.ended;
        if goes_on && start < end {
            let rest = &buffer[start..end];
            if rest.len() > PARTIAL_ROOM {
                failure = Some(Error::General(
                    "a handshake message takes too many records".into(),
                ));
            } else {
                self.partial = pool.buffer();
                self.partial.extend_from_slice(rest);
            }
        }
        self.failed = failure.is_some();
        received.failure = failure.map(|error| self.stage.explain(&error));
        if !self.failed {
            received.opened = self.open();
        }
        received
    }

    /// Notes the end of the handshake, once.
    fn open(&mut self) -> bool {
        match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Handshake(tls, _) if !tls.is_handshaking() => {
                self.stage = Stage::Open(tls);
                true
            }
            other => {
                self.stage = other;
                false
            }
        }
    }

    /// Encrypts up to [`TlsSession::round_bytes`] into `room`, which has [`CIPHERTEXT_ROOM`], and returns the
    /// number of filled bytes.
    pub(crate) fn encrypt(&mut self, plaintext: &[u8], room: &mut [u8]) -> Result<usize, Error> {
        debug_assert!(plaintext.len() <= self.round_bytes() && room.len() >= CIPHERTEXT_ROOM);
        self.write(Some(plaintext), room)
    }

    /// Encrypts the end of this side's stream; nothing the second time, or where no keys are
    /// established.
    pub(crate) fn encrypt_close(&mut self, room: &mut [u8]) -> usize {
        if self.close_sent {
            return 0;
        }
        self.close_sent = true;
        if !self.stage.is_open() || self.failed {
            return 0;
        }
        self.write(None, room).unwrap_or(0)
    }

    /// Whether the end of this side's stream was encrypted.
    pub(crate) fn close_sent(&self) -> bool {
        self.close_sent
    }

    /// Encrypts plaintext, or the end of the stream, behind TLS's own messages.
    fn write(&mut self, plaintext: Option<&[u8]>, room: &mut [u8]) -> Result<usize, Error> {
        let mut filled = 0;
        // All complete records were processed at their arrival. Only messages of TLS's own can
        // appear here, for example a change of keys.
        let Some(tls) = self.stage.connection_mut() else {
            return Err(Error::HandshakeNotComplete);
        };
        loop {
            let UnbufferedStatus { discard, state } = tls.process_tls_records(&mut self.partial);
            debug_assert_eq!(discard, 0, "incomplete records stay");
            match state? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    let result = match plaintext {
                        Some(plaintext) => traffic.encrypt(plaintext, &mut room[filled..]),
                        None => traffic.queue_close_notify(&mut room[filled..]),
                    };
                    return match result {
                        Ok(length) => Ok(filled + length),
                        Err(error) => Err(Error::General(error.to_string())),
                    };
                }
                ConnectionState::EncodeTlsData(mut message) => {
                    filled += message
                        .encode(&mut room[filled..])
                        .map_err(|error| Error::General(error.to_string()))?;
                }
                ConnectionState::TransmitTlsData(transmit) => transmit.done(),
                ConnectionState::PeerClosed => {}
                _ => return Err(Error::HandshakeNotComplete),
            }
        }
    }

    /// Ciphertext that waits to be written.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.pending[self.written..]
    }

    /// Drops the first `count` waiting bytes.
    pub(crate) fn advance(&mut self, count: usize, pool: &mut Pool) {
        self.written += count;
        debug_assert!(self.written <= self.pending.len());
        if self.written == self.pending.len() {
            self.written = 0;
            pool.recycle(std::mem::take(&mut self.pending));
        }
    }

    /// Drops all waiting bytes: nothing can be written any more.
    pub(crate) fn drop_pending(&mut self, pool: &mut Pool) {
        self.written = 0;
        pool.recycle(std::mem::take(&mut self.pending));
    }

    /// Keeps ciphertext that the socket did not take.
    pub(crate) fn keep(&mut self, ciphertext: &[u8], pool: &mut Pool) {
        if self.pending.capacity() == 0 {
            self.pending = pool.buffer();
        }
        self.pending.extend_from_slice(ciphertext);
    }

    /// Returns its buffers.
    pub(crate) fn dissolve(self, pool: &mut Pool) {
        pool.recycle(self.partial);
        pool.recycle(self.pending);
    }
}

/// Appends the output of `encode`, which returns the needed room if there is too little.
fn append(
    buffer: &mut Vec<u8>,
    pool: &mut Pool,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, usize>,
) {
    const FIRST_TRY: usize = 1024;
    if buffer.capacity() == 0 {
        *buffer = pool.buffer();
    }
    let start = buffer.len();
    let mut room = FIRST_TRY;
    for _ in 0..2 {
        buffer.resize(start + room, 0);
        match encode(&mut buffer[start..]) {
            Ok(length) => {
                buffer.truncate(start + length);
                return;
            }
            Err(needed) => room = needed,
        }
    }
    buffer.truncate(start);
}
