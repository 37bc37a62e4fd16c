//! The settings of a QUIC listener.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, Mac};
use quinn_proto::{EndpointConfig, TransportConfig, ValidationTokenConfig, VarInt};
use rustls::server::StoresServerSessions;
use sha2::Sha256;
use sterna_quic::{Role, Settings};

use super::address_tokens::AddressTokens;
use super::connection_ids::{ServerId, ShardConnectionIds};
use super::driver::Placement;
use super::path_memory::PathSessions;
use super::tls::TlsServer;

/// Configuration of a QUIC listener. Every setting has a default for many devices that are mostly
/// idle.
#[derive(Clone, Debug)]
pub struct QuicConfig {
    /// Application protocols (ALPN) that the listener serves, most wanted first. Default: `mqtt`.
    /// [`QuicConfig::prepare_tls`] puts them into the TLS configuration; a handshake that offers none
    /// of them fails with the alert `no_application_protocol`.
    pub protocols: Vec<Vec<u8>>,

    /// Settings for the paths: timers, windows, streams, tickets, ciphers. Default: those of
    /// [`sterna_quic::Profile::Default`].
    pub settings: Settings,

    /// Whether early data (0-RTT) is accepted. Default: yes. It needs tickets.
    pub early_data: bool,
    /// Largest answer to early data before the handshake is confirmed, in bytes. The rest follows
    /// then. Default: 6,000. At least 4,800 less than the initial congestion window.
    ///
    /// The library (quinn-proto 0.11.19) sets no loss timer at the end of the handshake. A full
    /// congestion window of answers may be lost until then. Or it cannot be decrypted, because the
    /// server's first datagram was lost. Then the connection would stop for ever.
    pub early_answer_bytes: usize,
    /// Seals the tokens that prove addresses. Drivers with the same clients share one.
    /// [`Settings::address_tokens`] is the number of tokens sent.
    pub address_tokens: AddressTokens,
    /// Lifetime of tokens in NEW_TOKEN frames. Default: 24 h, as the tickets beside them.
    pub address_token_lifetime: Duration,

    /// Connections at a time, draining ones included. Default: 1,000,000. Above it first packets
    /// stay unanswered.
    pub max_connections: usize,
    /// Connections in their handshake at a time, failed ones that still drain included. Default:
    /// 8,192. Above it first packets stay unanswered, so that clients try again later.
    pub max_half_open: usize,
    /// Largest number of half-open connections per peer address (IPv6: per /64 network). Default:
    /// 1,024.
    pub max_half_open_per_address: usize,
    /// From this number of half-open connections on, clients must prove their address with a Retry.
    /// It costs them a round trip, and the server no memory. Default: 2,048.
    pub retry_half_open: usize,
    /// Number of half-open connections per peer address from which newcomers get a Retry. Default:
    /// 256.
    pub retry_half_open_per_address: usize,
    /// Whether a client that sends from another address gets a path challenge at once. Default: yes.
    ///
    /// The library (quinn-proto 0.11.19) fills a challenge up to 1,200 bytes, also where RFC 9000, section 8.2.1, allows a
    /// smaller one. With this, one leaves before so much may be sent to the new address, while all that has gone to
    /// addresses without a proof keeps to three times what came from the client. Without, a device waits until it has
    /// sent 400 bytes from there.
    pub challenge_at_once: bool,
    /// Most handshakes begun in one turn. Each takes about 150 us of CPU: this limits the delay
    /// that new connections add for all clients. Default: 16.
    pub handshakes_per_turn: usize,
    /// Bytes of datagrams above which a turn sends no more: connections that have no turn in it come first in the next one,
    /// where those of each address have their turns. Default: 4 MiB, which take about 10 ms.
    pub sent_per_turn_bytes: usize,
    /// First packets that wait for their turn. Default: 1,024. More stay unanswered.
    pub waiting_handshakes: usize,
    /// Bytes that a client may send as early data, without its first datagram. Default: 16 KiB. More
    /// is dropped; the client sends it again, and after the handshake it is welcome.
    pub max_early_bytes: usize,
    /// Largest amount of early data of all clients of the driver in their handshake, in bytes.
    /// Default: 16 MiB.
    pub max_early_bytes_total: usize,
    /// Most 1-RTT datagrams per connection that are held back because they overtook the end of the
    /// handshake. Default: 8. 0 drops them as the QUIC library would, which costs the client a
    /// probe timeout.
    pub held_back_datagrams: usize,
    /// Bytes held back per connection. Default: 12,000.
    pub held_back_bytes: usize,

    /// Time that a connection closed by the handler waits for the next acknowledgement of sent
    /// bytes. It waits at least three probe timeouts of its path, and ten times this in all.
    /// Default: 2 s.
    pub linger: Duration,

    /// Whether observers may measure the round trip (RFC 9000, section 17.4). Default: no.
    pub spin_bit: bool,
    /// Whether a peer may change its address. Default: yes.
    pub migration: bool,

    /// Unsent bytes per connection above which the handler should stop. Default: 256 KiB.
    pub high_watermark_bytes: usize,
    /// Unsent bytes below which `Writable` tells the handler to go on. Default: 64 KiB.
    pub low_watermark_bytes: usize,
    /// Unsent bytes at which a connection is given up. Default: 64 MiB.
    pub max_unsent_bytes: usize,
    /// Secret from which the tokens of stateless resets are derived, by each listener with its address
    /// ([`Placement::address`]). With the same secret and address a restarted broker tells peers of
    /// lost connections at once to connect again. Default: a random one.
    ///
    /// Nodes that get each other's packets have different secrets, or a `server_id`.
    pub reset_secret: Option<[u8; 32]>,
    /// The node's name in connection identifiers, for balancers. Default: none, and identifiers name the
    /// shard alone.
    pub server_id: Option<ServerId>,
    /// Least time between two stateless resets. Default: 5 ms.
    pub reset_interval: Duration,
}

impl Default for QuicConfig {
    fn default() -> Self {
        Self {
            protocols: vec![b"mqtt".to_vec()],
            settings: Settings::default(),
            early_data: true,
            early_answer_bytes: 6_000,
            address_tokens: AddressTokens::default(),
            address_token_lifetime: Duration::from_secs(24 * 3600),
            max_connections: 1_000_000,
            max_half_open: 8_192,
            max_half_open_per_address: 1_024,
            retry_half_open: 2_048,
            retry_half_open_per_address: 256,
            challenge_at_once: true,
            handshakes_per_turn: 16,
            sent_per_turn_bytes: 4 * 1024 * 1024,
            waiting_handshakes: 1_024,
            max_early_bytes: 16 * 1024,
            max_early_bytes_total: 16 * 1024 * 1024,
            held_back_datagrams: 8,
            held_back_bytes: 12_000,
            linger: Duration::from_secs(2),
            spin_bit: false,
            migration: true,
            high_watermark_bytes: 256 * 1024,
            low_watermark_bytes: 64 * 1024,
            max_unsent_bytes: 64 * 1024 * 1024,
            reset_secret: None,
            server_id: None,
            reset_interval: Duration::from_millis(5),
        }
    }
}

impl QuicConfig {
    /// A copy of `base` for this listener: with its protocols, single-use tickets, and its policy
    /// for early data. `base` brings the certificates and the verification of clients, and must
    /// allow TLS 1.3. `tickets` is a [`super::TicketStore`] or a wrapper of one. Early data is safe
    /// against replay because `take` gives a session away once.
    #[must_use]
    pub fn prepare_tls(
        &self,
        base: &rustls::ServerConfig,
        tickets: Arc<dyn StoresServerSessions>,
    ) -> rustls::ServerConfig {
        let mut tls = base.clone();
        tls.alpn_protocols.clone_from(&self.protocols);
        let sent = usize::from(self.settings.tickets);
        tls.send_tls13_tickets = sent;
        tls.max_tls13_tickets = sent;
        // Stateful tickets are taken out of the store at their use. This makes 0-RTT safe against
        // replay (RFC 8446, section 8.1). A stateless ticketer would defeat it.
        tls.session_storage = if self.settings.path_memory_lifetime_ms > 0 {
            Arc::new(PathSessions::new(tickets))
        } else {
            tickets
        };
        tls.ticketer = Arc::new(NoStatelessTickets);
        // QUIC knows only these two values (RFC 9001, section 4.6.1).
        tls.max_early_data_size = if self.early_data && sent > 0 {
            u32::MAX
        } else {
            0
        };
        tls
    }

    pub(super) fn endpoint(&self, placement: Placement) -> Result<EndpointConfig, SetupError> {
        let mut endpoint = EndpointConfig::default();
        if let Some(secret) = self.reset_secret {
            endpoint.reset_key(Arc::new(ResetKey::of_listener(&secret, placement.address)));
        }
        endpoint
            .max_udp_payload_size(self.settings.max_received_payload_bytes)
            .map_err(|_| SetupError::Setting("max_received_payload_bytes".to_owned()))?;
        endpoint.min_reset_interval(self.reset_interval);
        let server_id = self.server_id;
        endpoint.cid_generator(move || Box::new(ShardConnectionIds::new(placement, server_id)));
        Ok(endpoint)
    }

    pub(super) fn server(
        &self,
        crypto: Arc<TlsServer>,
    ) -> Result<quinn_proto::ServerConfig, SetupError> {
        let mut server = quinn_proto::ServerConfig::with_crypto(crypto);
        server.transport_config(Arc::new(self.transport()?));
        let mut tokens = ValidationTokenConfig::default();
        tokens
            .sent(self.settings.address_tokens.into())
            .lifetime(self.address_token_lifetime)
            .log(self.address_tokens.log());
        server.token_key(self.address_tokens.key());
        server.validation_token_config(tokens);
        server.migration(self.migration);
        // First packets that wait for their turn, and the packets that follow them meanwhile.
        server
            .max_incoming(self.waiting_handshakes + 1)
            .incoming_buffer_size(FLIGHT_BYTES)
            .incoming_buffer_size_total(FLIGHT_BYTES * self.waiting_handshakes as u64 / 4);
        Ok(server)
    }

    fn transport(&self) -> Result<TransportConfig, SetupError> {
        let mut transport = self
            .settings
            .transport_config(Role::Server)
            .map_err(|problems| SetupError::Setting(problems.join("; ")))?;
        transport.allow_spin(self.spin_bit);
        Ok(transport)
    }

    pub(super) fn check(&self) -> Result<(), SetupError> {
        let ordered = [
            (
                "high_watermark_bytes",
                self.low_watermark_bytes as u64,
                self.high_watermark_bytes as u64,
            ),
            (
                "max_unsent_bytes",
                self.high_watermark_bytes as u64,
                self.max_unsent_bytes as u64,
            ),
        ];
        for (name, least, value) in ordered {
            if value < least {
                return Err(SetupError::Setting(format!(
                    "{name} must be at least {least}"
                )));
            }
        }
        let window = self.settings.initial_window_bytes;
        if self.early_answer_bytes as u64 + EARLY_ROOM_BYTES > window {
            let most = window.saturating_sub(EARLY_ROOM_BYTES);
            return Err(SetupError::Setting(format!(
                "early_answer_bytes must be at most {most}"
            )));
        }
        for (setting, value) in [
            ("handshakes_per_turn", self.handshakes_per_turn),
            ("sent_per_turn_bytes", self.sent_per_turn_bytes),
        ] {
            if value == 0 {
                return Err(SetupError::Setting(format!("{setting} must not be 0")));
            }
        }
        if self.low_watermark_bytes == 0 {
            return Err(SetupError::Setting(
                "low_watermark_bytes must not be 0".to_owned(),
            ));
        }
        self.settings
            .check()
            .map_err(|problems| SetupError::Setting(problems.join("; ")))
    }

    pub(super) fn handshake_timeout(&self) -> Duration {
        Duration::from_millis(self.settings.handshake_timeout_ms.into())
    }

    /// Number of streams of a direction that may be open at once at the start and at most.
    pub(super) const fn streams(&self, dir: quinn_proto::Dir) -> (u32, u32) {
        let settings = &self.settings;
        match dir {
            quinn_proto::Dir::Bi => (
                settings.initial_bidirectional_streams,
                settings.max_bidirectional_streams,
            ),
            quinn_proto::Dir::Uni => (
                settings.initial_unidirectional_streams,
                settings.max_unidirectional_streams,
            ),
        }
    }
}

/// An application error code as QUIC carries it: larger ones are cut to the largest.
pub(super) fn code(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

/// Why a driver could not be made or reconfigured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SetupError {
    /// The TLS configuration doesn't suit QUIC; the text says why.
    Tls(String),
    /// A setting is out of bounds; the text says which.
    Setting(String),
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(why) => write!(f, "TLS configuration unsuitable for QUIC: {why}"),
            Self::Setting(which) => write!(f, "QUIC setting out of bounds: {which}"),
        }
    }
}

impl std::error::Error for SetupError {}

/// Disables stateless tickets of any TLS configuration.
#[derive(Debug)]
struct NoStatelessTickets;

impl rustls::server::ProducesTickets for NoStatelessTickets {
    fn enabled(&self) -> bool {
        false
    }

    fn lifetime(&self) -> u32 {
        0
    }

    fn encrypt(&self, _plain: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn decrypt(&self, _cipher: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// Part of the window that answers to early data leave for other packets.
const EARLY_ROOM_BYTES: u64 = 4_800;
/// Bytes kept of a client's input while its first packet waits for its turn.
const FLIGHT_BYTES: u64 = 16 * 1024;

/// The key of stateless reset tokens (RFC 9000, section 10.3.2): HMAC-SHA-256.
struct ResetKey([u8; 32]);

impl ResetKey {
    /// The key of one listener. Another listener does not know this one's connections: with the same key it would tell
    /// the token of a living connection to anybody who has seen a packet of it (RFC 9000, section 21.11).
    fn of_listener(secret: &[u8; 32], address: SocketAddr) -> Self {
        let name = format!(
            "stateless resets of {} port {}",
            address.ip(),
            address.port()
        );
        Self(
            Self(*secret)
                .mac(name.as_bytes())
                .finalize()
                .into_bytes()
                .into(),
        )
    }

    fn mac(&self, data: &[u8]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.0)
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        mac.update(data);
        mac
    }
}

impl quinn_proto::crypto::HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        let tag = self.mac(data).finalize().into_bytes();
        signature_out.copy_from_slice(&tag[..signature_out.len()]);
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(
        &self,
        data: &[u8],
        signature: &[u8],
    ) -> Result<(), quinn_proto::crypto::CryptoError> {
        self.mac(data)
            .verify_slice(signature)
            .map_err(|_| quinn_proto::crypto::CryptoError)
    }
}
