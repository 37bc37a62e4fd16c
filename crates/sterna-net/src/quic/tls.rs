//! TLS 1.3 within QUIC (RFC 9001), server side, that keeps nothing it no longer needs.
//!
//! quinn-proto's own binding to rustls keeps the whole TLS connection as long as the QUIC
//! connection lives. It also keeps the keys of the next key phase. These are 3 kB that an idle
//! device never uses. This binding drops the TLS connection at the end of the handshake. It derives
//! the keys of the next phase at their first use. It leaves all other work to quinn-proto.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::io::Cursor;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig,
    Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::HandshakeKind;
use rustls::quic::{KeyChange, PacketKeySet, Secrets, ServerConnection, Version};
use rustls::server::StoresServerSessions;
use thin_vec::ThinVec;

use super::SetupError;
use super::path_memory::{self, Noted};
use crate::handshake::HandshakeFault;
use crate::tls::{Hello, classify};

/// The TLS configuration of a listener.
pub(super) struct TlsServer {
    tls: Arc<rustls::ServerConfig>,
    /// Initial keys and Retry tags, which need no session.
    stateless: Arc<QuicServerConfig>,
}

impl TlsServer {
    /// The store of sessions.
    pub(super) fn sessions(&self) -> &dyn StoresServerSessions {
        &*self.tls.session_storage
    }

    pub(super) fn new(tls: Arc<rustls::ServerConfig>) -> Result<Self, SetupError> {
        if tls.max_early_data_size != 0 && tls.max_early_data_size != u32::MAX {
            return Err(SetupError::Tls(
                "max_early_data_size must be 0 or 0xffffffff (RFC 9001, section 4.6.1)".to_owned(),
            ));
        }
        let stateless = QuicServerConfig::try_from(tls.clone()).map_err(|_| {
            SetupError::Tls("TLS_AES_128_GCM_SHA256 is needed for Initial packets".to_owned())
        })?;
        // rustls checks the rest, TLS 1.3 above all, when a connection is made.
        ServerConnection::new(tls.clone(), Version::V1, Vec::new())
            .map_err(|error| SetupError::Tls(error.to_string()))?;
        Ok(Self {
            tls,
            stateless: Arc::new(stateless),
        })
    }
}

impl ServerConfig for TlsServer {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        self.stateless.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.stateless.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        let mut encoded = Vec::new();
        params.write(&mut encoded);
        let phase = match ServerConnection::new(self.tls.clone(), tls_version(version), encoded) {
            Ok(tls) => Phase::Handshake(Box::new(Handshaking {
                tls,
                flight: Vec::new(),
                refusal: None,
            })),
            // `TlsServer::new` made one of the same configuration.
            Err(error) => Phase::Failed(error.to_string()),
        };
        Box::new(ServerSession {
            config: self,
            version,
            phase,
            secrets: None,
            later: None,
            left: Mutex::default(),
            noted: Mutex::default(),
        })
    }
}

const fn transport_error(code: TransportErrorCode, reason: String) -> TransportError {
    TransportError {
        code,
        frame: None,
        reason,
    }
}

/// The TLS version label that goes with a version of QUIC; `initial_keys` refused all others.
const fn tls_version(version: u32) -> Version {
    match version {
        0xff00_001d..=0xff00_0020 => Version::V1Draft,
        _ => Version::V1,
    }
}

/// The handshake's knowledge of the peer. A [`ServerSession`] returns it by `handshake_data`, and
/// once more after the handshake's end.
#[derive(Debug, Default)]
pub(super) struct Negotiated {
    /// The application protocol (ALPN).
    pub(super) protocol: Box<[u8]>,
    /// The peer's certificates in DER, end-entity first.
    pub(super) certificates: ThinVec<Box<[u8]>>,
    /// Whether an earlier session was resumed.
    pub(super) resumed: bool,
    /// Whether there are keys for early data.
    pub(super) early_keys: bool,
    /// Tickets, and the memories beside them.
    pub(super) noted: Noted,
    /// Why this side refused the handshake, in words for the log; the client gets others.
    pub(super) refusal: Option<Refusal>,
}

/// A fault, and what it is in words.
pub(super) type Refusal = (HandshakeFault, String);

impl Negotiated {
    fn of(connection: &ServerConnection, noted: Noted) -> Self {
        let certificates = connection.peer_certificates().unwrap_or_default();
        Self {
            protocol: connection.alpn_protocol().unwrap_or_default().into(),
            certificates: certificates.iter().map(|der| der.as_ref().into()).collect(),
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            early_keys: connection.zero_rtt_keys().is_some(),
            noted,
            refusal: None,
        }
    }
}

/// A handshake that is under way.
struct Handshaking {
    tls: ServerConnection,
    /// The start of the client's first flight.
    flight: Vec<u8>,
    refusal: Option<Refusal>,
}

/// Most bytes of a ClientHello that are looked at after a refusal.
const FLIGHT_BYTES: usize = 4096;

impl Handshaking {
    /// Keeps the start of the client's first flight until this side has answered.
    fn keep_flight(&mut self, read: &[u8]) {
        if self.tls.is_handshaking() && self.tls.protocol_version().is_none() {
            let room = FLIGHT_BYTES - self.flight.len();
            self.flight.extend_from_slice(&read[..read.len().min(room)]);
        } else {
            self.flight = Vec::new();
        }
    }

    /// Notes the words for an error.
    fn refuse(&mut self, error: &rustls::Error, served: &[Vec<u8>]) {
        let hello = (self.flight.get(4..)).and_then(Hello::of);
        let refusal = classify(error, &[], hello.as_ref(), served);
        REFUSED.set(Some(refusal.clone()));
        self.refusal = Some(refusal);
    }
}

enum Phase {
    Handshake(Box<Handshaking>),
    Done,
    Failed(String),
}

struct ServerSession {
    config: Arc<TlsServer>,
    version: u32,
    phase: Phase,
    secrets: Option<Arc<Mutex<Secrets>>>,
    later: Option<Arc<LaterKeys>>,
    /// The finished handshake's result for the driver, until it is fetched.
    left: Mutex<Option<Box<Negotiated>>>,
    /// Tickets that were used and issued.
    noted: Mutex<Option<Box<Noted>>>,
}

impl ServerSession {
    const fn handshake(&self) -> Option<&ServerConnection> {
        match &self.phase {
            Phase::Handshake(handshaking) => Some(&handshaking.tls),
            _ => None,
        }
    }

    /// Keeps the last call's effects on the store of sessions.
    fn keep_noted(&mut self) {
        let new = path_memory::noted();
        if new.issued.is_some() || new.path.is_some() {
            let kept = self.noted.get_mut().unwrap_or_else(PoisonError::into_inner);
            let kept = kept.get_or_insert_default();
            kept.path = new.path.or(kept.path);
            kept.issued = new.issued.or_else(|| kept.issued.take());
        }
    }

    fn take_noted(&self) -> Noted {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.take().map_or_else(Noted::default, |noted| *noted)
    }

    /// Lets go of the TLS connection once it has nothing more to say. A server expects no TLS
    /// messages after the handshake (RFC 9001, section 4.4 and 6).
    fn shed(&mut self) {
        if self
            .handshake()
            .is_none_or(|connection| connection.is_handshaking())
        {
            return;
        }
        let noted = self.take_noted();
        if let Phase::Handshake(handshaking) = mem::replace(&mut self.phase, Phase::Done) {
            *self.left.get_mut().unwrap_or_else(PoisonError::into_inner) =
                Some(Box::new(Negotiated::of(&handshaking.tls, noted)));
        }
    }
}

impl Session for ServerSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, _side: Side) -> Keys {
        match self.config.initial_keys(self.version, dst_cid) {
            Ok(keys) => keys,
            Err(UnsupportedVersion) => unreachable!("the version was checked before the session"),
        }
    }

    /// A boxed [`Negotiated`]; after the handshake it is returned once, with the notes.
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        if let Phase::Handshake(handshaking) = &self.phase {
            let negotiated = Negotiated::of(&handshaking.tls, self.take_noted());
            return Some(Box::new(Negotiated {
                refusal: handshaking.refusal.clone(),
                ..negotiated
            }));
        }
        let left = self
            .left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        left.map(|negotiated| negotiated as Box<dyn Any>)
    }

    /// In [`Negotiated`].
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.handshake()?.zero_rtt_keys()?;
        Some((Box::new(keys.header), Box::new(keys.packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None // asked of clients only
    }

    fn is_handshaking(&self) -> bool {
        match &self.phase {
            Phase::Handshake(handshaking) => handshaking.tls.is_handshaking(),
            Phase::Done => false,
            Phase::Failed(_) => true,
        }
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        const UNEXPECTED_MESSAGE: u8 = 10;
        let handshaking = match &mut self.phase {
            Phase::Handshake(handshaking) => handshaking,
            Phase::Done => {
                return Err(transport_error(
                    TransportErrorCode::crypto(UNEXPECTED_MESSAGE),
                    "TLS message after the handshake".to_owned(),
                ));
            }
            Phase::Failed(why) => {
                return Err(transport_error(
                    TransportErrorCode::INTERNAL_ERROR,
                    why.clone(),
                ));
            }
        };
        path_memory::noted();
        handshaking.keep_flight(buf);
        let read = handshaking.tls.read_hs(buf);
        let result = match read {
            // The driver asks for `handshake_data` when it wants it.
            Ok(()) => Ok(false),
            Err(error) => {
                handshaking.refuse(&error, &self.config.tls.alpn_protocols);
                let alert = handshaking.tls.alert();
                let code = alert.map_or(TransportErrorCode::PROTOCOL_VIOLATION, |alert| {
                    TransportErrorCode::crypto(alert.into())
                });
                Err(transport_error(code, error.to_string()))
            }
        };
        self.keep_noted();
        result
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(encoded) = self
            .handshake()
            .and_then(|tls| tls.quic_transport_parameters())
        else {
            return Ok(None);
        };
        Ok(Some(TransportParameters::read(
            Side::Server,
            &mut Cursor::new(encoded),
        )?))
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let Phase::Handshake(handshaking) = &mut self.phase else {
            return None;
        };
        let before = buf.len();
        let keys = match handshaking.tls.write_hs(buf) {
            None => {
                if buf.len() == before {
                    self.shed();
                }
                return None;
            }
            Some(KeyChange::Handshake { keys }) => {
                return Some(Keys {
                    header: KeyPair {
                        local: Box::new(keys.local.header),
                        remote: Box::new(keys.remote.header),
                    },
                    packet: KeyPair {
                        local: Box::new(keys.local.packet),
                        remote: Box::new(HandshakeKey(keys.remote.packet)),
                    },
                });
            }
            Some(KeyChange::OneRtt { keys, next }) => {
                self.secrets = Some(Arc::new(Mutex::new(next)));
                keys
            }
        };
        Some(Keys {
            header: KeyPair {
                local: Box::new(keys.local.header),
                remote: Box::new(keys.remote.header),
            },
            packet: KeyPair {
                local: Box::new(keys.local.packet),
                remote: Box::new(keys.remote.packet),
            },
        })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let secrets = self.secrets.clone()?;
        // The secrets move on by one phase per set of keys, so sets are derived in order.
        if let Some(before) = &self.later {
            before.keys();
        }
        let later = Arc::new(LaterKeys {
            secrets,
            keys: OnceLock::new(),
            is_used: AtomicBool::new(false),
        });
        self.later = Some(later.clone());
        Some(KeyPair {
            local: Box::new(LaterKey {
                pair: later.clone(),
                local: true,
            }),
            remote: Box::new(LaterKey {
                pair: later,
                local: false,
            }),
        })
    }

    fn is_valid_retry(
        &self,
        _orig_dst_cid: &ConnectionId,
        _header: &[u8],
        _payload: &[u8],
    ) -> bool {
        false // servers get none
    }

    fn export_keying_material(
        &self,
        _output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError) // nobody asks, and the secret would have to be kept for it
    }
}

thread_local! {
    /// The last refusal of a handshake.
    static REFUSED: Cell<Option<Refusal>> = const { Cell::new(None) };
    /// Whether a Handshake packet was read.
    static HANDSHAKE_READ: Cell<bool> = const { Cell::new(false) };
    /// Whether a packet was encrypted with keys that the client has not used yet.
    static KEYS_CHANGED: Cell<bool> = const { Cell::new(false) };
}

/// The last refusal of a handshake on this thread since the last question. It is for one whose first datagram was
/// refused: the library has forgotten its session.
pub(super) fn last_refusal() -> Option<Refusal> {
    REFUSED.take()
}

/// Whether this thread has read a Handshake packet since the last question. Its sender must have
/// read the bytes sent to the client's address (RFC 9000, section 8.1).
pub(super) fn has_read_handshake() -> bool {
    HANDSHAKE_READ.replace(false)
}

/// Whether this thread has begun a key phase that the client had not begun, since the last question.
pub(super) fn has_changed_keys() -> bool {
    KEYS_CHANGED.replace(false)
}

/// The key of the client's Handshake packets.
struct HandshakeKey(Box<dyn rustls::quic::PacketKey>);

impl PacketKey for HandshakeKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        PacketKey::encrypt(&self.0, packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        PacketKey::decrypt(&self.0, packet, header, payload)?;
        HANDSHAKE_READ.set(true);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        PacketKey::tag_len(&self.0)
    }

    fn confidentiality_limit(&self) -> u64 {
        PacketKey::confidentiality_limit(&self.0)
    }

    fn integrity_limit(&self) -> u64 {
        PacketKey::integrity_limit(&self.0)
    }
}

/// Packet keys of one key phase (RFC 9001, section 6), derived when one of them is first used.
///
/// Section 9.5 advises early derivation: it hides from an observer with a good clock which packet
/// changes the phase. Here the first packet that claims a change, genuine or not, takes some
/// microseconds longer, once per phase. The library changes the first phase within a thousand
/// packets, and later ones at the limits of the cipher. Most devices send less in a connection.
struct LaterKeys {
    secrets: Arc<Mutex<Secrets>>,
    keys: OnceLock<PacketKeySet>,
    /// Whether a packet was encrypted or decrypted with them.
    is_used: AtomicBool,
}

impl LaterKeys {
    fn keys(&self) -> &PacketKeySet {
        self.keys.get_or_init(|| {
            self.secrets
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next_packet_keys()
        })
    }

    /// Takes note of the first use. Returns whether this is it.
    fn begin(&self) -> bool {
        // Each packet asks, and only one thread has the connection.
        let is_first = !self.is_used.load(Ordering::Relaxed);
        if is_first {
            self.is_used.store(true, Ordering::Relaxed);
        }
        is_first
    }
}

struct LaterKey {
    pair: Arc<LaterKeys>,
    local: bool,
}

impl LaterKey {
    #[expect(
        clippy::borrowed_box,
        reason = "quinn-proto's trait is implemented for the box"
    )]
    fn key(&self) -> &Box<dyn rustls::quic::PacketKey> {
        let keys = self.pair.keys();
        if self.local {
            &keys.local
        } else {
            &keys.remote
        }
    }
}

impl PacketKey for LaterKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        PacketKey::encrypt(self.key(), packet, buf, header_len);
        if self.pair.begin() {
            KEYS_CHANGED.set(true);
        }
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        PacketKey::decrypt(self.key(), packet, header, payload)?;
        self.pair.begin();
        Ok(())
    }

    fn tag_len(&self) -> usize {
        PacketKey::tag_len(self.key())
    }

    fn confidentiality_limit(&self) -> u64 {
        PacketKey::confidentiality_limit(self.key())
    }

    fn integrity_limit(&self) -> u64 {
        PacketKey::integrity_limit(self.key())
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}
