//! The settings of a QUIC listener.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, Mac};
use quinn_proto::congestion::{ControllerFactory, CubicConfig, NewRenoConfig};
use quinn_proto::{
    AckFrequencyConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig,
    ValidationTokenConfig, VarInt,
};
use rustls::server::StoresServerSessions;
use sha2::Sha256;

use super::connection_ids::ShardConnectionIds;
use super::driver::Placement;
use super::meter::Metering;
use super::tls::TlsServer;

/// How fast a connection sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Congestion {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// New Reno (RFC 9002, section 7).
    NewReno,
}

/// Search for the largest datagram that the path carries (RFC 8899).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MtuDiscovery {
    /// Largest UDP payload to try, in bytes.
    pub upper_bound_bytes: u16,
    /// Time between two searches.
    pub interval: Duration,
}

/// What the peer is asked to do about acknowledgements (draft-ietf-quic-ack-frequency), where it
/// supports that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestedAckFrequency {
    /// Ack-eliciting packets the peer may leave unacknowledged.
    pub threshold_packets: u32,
    /// How long it may delay an acknowledgement.
    pub max_delay: Duration,
}

/// The settings of a QUIC listener. Every one has a default that suits many mostly idle devices.
#[derive(Clone, Debug)]
pub struct QuicConfig {
    /// Application protocols (ALPN) that the listener serves, most wanted first. Default: `mqtt`.
    /// [`QuicConfig::prepare_tls`] puts them into the TLS configuration; a handshake that offers none
    /// of them fails with the alert `no_application_protocol`.
    pub protocols: Vec<Vec<u8>>,

    /// Whether early data (0-RTT) is accepted. Default: yes. It needs tickets.
    pub early_data: bool,
    /// Bytes that may answer early data before the handshake is confirmed; the rest follows then.
    /// Default: 6,000. At least 4,800 less than the initial congestion window.
    ///
    /// The library (quinn-proto 0.11.19) sets no loss timer when the handshake ends, so if by then
    /// a full congestion window of answers was sent and lost, or could not be decrypted because
    /// the server's first datagram was lost, the connection would stand still for ever.
    pub early_answer_bytes: usize,
    /// Tickets sent per connection. Each is good for one resumption. Default: 1; 0 turns resumption
    /// off.
    pub tickets: usize,
    /// Address validation tokens (NEW_TOKEN) sent per connection; they spare a Retry under load and
    /// cost about 90 bytes each. Default: 0.
    pub address_tokens: u32,

    /// Connections at a time, draining ones included. Default: 1,000,000. Above it first packets
    /// stay unanswered.
    pub max_connections: usize,
    /// Connections in their handshake at a time, failed ones that still drain included. Default:
    /// 8,192. Above it first packets stay unanswered, so that clients try again later.
    pub max_half_open: usize,
    /// The same per peer address (IPv6: per /64 network). Default: 1,024.
    pub max_half_open_per_address: usize,
    /// From this number of half-open connections on, clients must prove their address with a Retry,
    /// which costs them a round trip and us no memory. Default: 2,048.
    pub retry_half_open: usize,
    /// The same per peer address. Default: 256.
    pub retry_half_open_per_address: usize,
    /// Handshakes begun in one turn, each of which takes about 150 us of CPU: what a crowd of
    /// newcomers adds to everyone's latency. Default: 16.
    pub handshakes_per_turn: usize,
    /// First packets that wait for their turn. Default: 1,024. More stay unanswered.
    pub waiting_handshakes: usize,
    /// How long a handshake may take. Default: 30 s, for round trips of several seconds.
    pub handshake_timeout: Duration,
    /// 1-RTT datagrams that overtook the end of the handshake are held back, up to so many per
    /// connection. Default: 8. 0 drops them as the QUIC library would, which costs the client a
    /// probe timeout.
    pub held_back_datagrams: usize,
    /// Bytes held back per connection. Default: 12,000.
    pub held_back_bytes: usize,

    /// A connection on which nothing arrives for so long is dropped without a word; the peer's own
    /// value counts if it is smaller. Default: 1 h. `None`: never, so that only the message protocol
    /// finds dead peers.
    pub idle_timeout: Option<Duration>,
    /// A PING is sent after so long without traffic. Default: never; devices sleep, and those that
    /// need their NAT binding kept ping themselves.
    pub keep_alive_interval: Option<Duration>,
    /// How long a connection that the handler closed may take to deliver what was queued. Default:
    /// 2 s.
    pub linger: Duration,

    /// Round trip assumed before the first measurement. Default: 333 ms (RFC 9002). With less than
    /// the real one, every handshake packet is sent more than once.
    pub initial_rtt: Duration,
    /// UDP payload in bytes before any discovery, at least 1,200, which is the default.
    pub initial_mtu_bytes: u16,
    /// Search for larger datagrams. Default: off; it costs about 11 kB per connection.
    pub mtu_discovery: Option<MtuDiscovery>,
    /// Largest UDP payload accepted, 1,200 to 65,527 bytes. Default: 1,472 (Ethernet).
    pub max_received_payload_bytes: u16,
    /// Congestion control. Default: CUBIC.
    pub congestion: Congestion,
    /// Congestion window at the start, in bytes. Default: the library's (12,000).
    pub initial_window_bytes: Option<u64>,
    /// Asks the peer to acknowledge less often. Default: not asked.
    pub ack_frequency: Option<RequestedAckFrequency>,
    /// Whether observers may measure the round trip (RFC 9000, section 17.4). Default: no.
    pub spin_bit: bool,
    /// Whether a peer may change its address. Default: yes.
    pub migration: bool,

    /// Bidirectional streams that a client may have open at once, at first. Default: 5, what the
    /// clients in use open by themselves. Every one permitted costs about 50 bytes.
    pub initial_bidirectional_streams: u32,
    /// What that grows to, doubling, as the client uses them. Default: 256.
    pub max_bidirectional_streams: u32,
    /// Unidirectional streams that a client may have open at once, at first. Default: 2.
    pub initial_unidirectional_streams: u32,
    /// What that grows to. Default: 256.
    pub max_unidirectional_streams: u32,
    /// Bytes a peer may send on a stream ahead of our reading. Also the limit for early data on a
    /// stream. Default: 128 KiB.
    pub stream_receive_window_bytes: u32,
    /// The same for a whole connection. Default: 256 KiB.
    pub receive_window_bytes: u32,
    /// Bytes per connection taken over from the buffers of its streams, until they are
    /// acknowledged. Default: 256 KiB.
    pub send_window_bytes: u64,
    /// Unsent bytes per connection above which the handler should stop. Default: 256 KiB.
    pub high_watermark_bytes: usize,
    /// Unsent bytes below which `Writable` tells the handler to go on. Default: 64 KiB.
    pub low_watermark_bytes: usize,
    /// Unsent bytes at which a connection is given up. Default: 64 MiB.
    pub max_unsent_bytes: usize,
    /// Buffer for unreliable datagrams (RFC 9221), each way; `None` refuses them. Default: 64 KiB.
    pub datagram_buffer_bytes: Option<usize>,
    /// Out-of-order handshake bytes kept per connection. Default: 16 KiB.
    pub crypto_buffer_bytes: usize,

    /// Secret from which the tokens of stateless resets are derived. With the same secret a restarted
    /// broker tells peers of lost connections at once to connect anew. Default: a random one.
    pub reset_secret: Option<[u8; 32]>,
    /// Least time between two stateless resets. Default: 5 ms.
    pub reset_interval: Duration,
}

impl Default for QuicConfig {
    fn default() -> Self {
        Self {
            protocols: vec![b"mqtt".to_vec()],
            early_data: true,
            early_answer_bytes: 6_000,
            tickets: 1,
            address_tokens: 0,
            max_connections: 1_000_000,
            max_half_open: 8_192,
            max_half_open_per_address: 1_024,
            retry_half_open: 2_048,
            retry_half_open_per_address: 256,
            handshakes_per_turn: 16,
            waiting_handshakes: 1_024,
            handshake_timeout: Duration::from_secs(30),
            held_back_datagrams: 8,
            held_back_bytes: 12_000,
            idle_timeout: Some(Duration::from_hours(1)),
            keep_alive_interval: None,
            linger: Duration::from_secs(2),
            initial_rtt: Duration::from_millis(333),
            initial_mtu_bytes: 1_200,
            mtu_discovery: None,
            max_received_payload_bytes: 1_472,
            congestion: Congestion::Cubic,
            initial_window_bytes: None,
            ack_frequency: None,
            spin_bit: false,
            migration: true,
            initial_bidirectional_streams: 5,
            max_bidirectional_streams: 256,
            initial_unidirectional_streams: 2,
            max_unidirectional_streams: 256,
            stream_receive_window_bytes: 128 * 1024,
            receive_window_bytes: 256 * 1024,
            send_window_bytes: 256 * 1024,
            high_watermark_bytes: 256 * 1024,
            low_watermark_bytes: 64 * 1024,
            max_unsent_bytes: 64 * 1024 * 1024,
            datagram_buffer_bytes: Some(64 * 1024),
            crypto_buffer_bytes: 16 * 1024,
            reset_secret: None,
            reset_interval: Duration::from_millis(5),
        }
    }
}

impl QuicConfig {
    /// A copy of `base` made fit for this listener: its protocols, single-use tickets, early data as
    /// allowed. `base` brings the certificates and the verification of clients, and must allow
    /// TLS 1.3. `tickets` is a [`super::TicketStore`] or one that wraps it: what makes early data
    /// safe against replay is that `take` gives a session away once.
    #[must_use]
    pub fn prepare_tls(
        &self,
        base: &rustls::ServerConfig,
        tickets: Arc<dyn StoresServerSessions>,
    ) -> rustls::ServerConfig {
        let mut tls = base.clone();
        tls.alpn_protocols.clone_from(&self.protocols);
        tls.send_tls13_tickets = self.tickets;
        tls.max_tls13_tickets = self.tickets;
        // Stateful tickets are taken out of the store when they are used: that is what makes 0-RTT
        // safe against replay (RFC 8446, section 8.1). A stateless ticketer would defeat it.
        tls.session_storage = tickets;
        tls.ticketer = Arc::new(NoStatelessTickets);
        // QUIC knows only these two values (RFC 9001, section 4.6.1).
        tls.max_early_data_size = if self.early_data && self.tickets > 0 {
            u32::MAX
        } else {
            0
        };
        tls
    }

    pub(super) fn endpoint(&self, placement: Placement) -> Result<EndpointConfig, SetupError> {
        let mut endpoint = EndpointConfig::default();
        if let Some(secret) = self.reset_secret {
            endpoint.reset_key(Arc::new(ResetKey(secret)));
        }
        endpoint
            .max_udp_payload_size(self.max_received_payload_bytes)
            .map_err(|_| SetupError::Setting("max_received_payload_bytes".to_owned()))?;
        endpoint.min_reset_interval(self.reset_interval);
        endpoint.cid_generator(move || Box::new(ShardConnectionIds::new(placement)));
        Ok(endpoint)
    }

    pub(super) fn server(
        &self,
        crypto: Arc<TlsServer>,
    ) -> Result<quinn_proto::ServerConfig, SetupError> {
        let mut server = quinn_proto::ServerConfig::with_crypto(crypto);
        server.transport_config(Arc::new(self.transport()?));
        let mut tokens = ValidationTokenConfig::default();
        tokens.sent(self.address_tokens);
        server.validation_token_config(tokens);
        server.migration(self.migration);
        // First packets that wait for their turn, and what follows them in the meantime.
        server
            .max_incoming(self.waiting_handshakes + 1)
            .incoming_buffer_size(FLIGHT_BYTES)
            .incoming_buffer_size_total(FLIGHT_BYTES * self.waiting_handshakes as u64 / 4);
        Ok(server)
    }

    fn transport(&self) -> Result<TransportConfig, SetupError> {
        let out = |name: &str| SetupError::Setting(name.to_owned());
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(self.initial_bidirectional_streams.into())
            .max_concurrent_uni_streams(self.initial_unidirectional_streams.into())
            .max_idle_timeout(match self.idle_timeout {
                None => None,
                Some(idle) => Some(IdleTimeout::try_from(idle).map_err(|_| out("idle_timeout"))?),
            })
            .keep_alive_interval(self.keep_alive_interval)
            .stream_receive_window(self.stream_receive_window_bytes.into())
            .receive_window(self.receive_window_bytes.into())
            .send_window(self.send_window_bytes)
            .initial_rtt(self.initial_rtt)
            .initial_mtu(self.initial_mtu_bytes)
            .mtu_discovery_config(self.mtu_discovery.map(|discovery| {
                let mut config = MtuDiscoveryConfig::default();
                config
                    .upper_bound(discovery.upper_bound_bytes)
                    .interval(discovery.interval);
                config
            }))
            .ack_frequency_config(self.ack_frequency.map(|asked| {
                let mut config = AckFrequencyConfig::default();
                config
                    .ack_eliciting_threshold(asked.threshold_packets.into())
                    .max_ack_delay(Some(asked.max_delay));
                config
            }))
            .crypto_buffer_size(self.crypto_buffer_bytes)
            .allow_spin(self.spin_bit)
            .datagram_receive_buffer_size(self.datagram_buffer_bytes)
            .datagram_send_buffer_size(self.datagram_buffer_bytes.unwrap_or(0));
        let controllers: Arc<dyn ControllerFactory + Send + Sync> = match self.congestion {
            Congestion::Cubic => {
                let mut cubic = CubicConfig::default();
                if let Some(bytes) = self.initial_window_bytes {
                    cubic.initial_window(bytes);
                }
                Arc::new(cubic)
            }
            Congestion::NewReno => {
                let mut reno = NewRenoConfig::default();
                if let Some(bytes) = self.initial_window_bytes {
                    reno.initial_window(bytes);
                }
                Arc::new(reno)
            }
        };
        transport.congestion_controller_factory(Arc::new(Metering(controllers)));
        Ok(transport)
    }

    pub(super) fn check(&self) -> Result<(), SetupError> {
        let ordered = [
            (
                "max_bidirectional_streams",
                u64::from(self.initial_bidirectional_streams),
                { u64::from(self.max_bidirectional_streams) },
            ),
            (
                "max_unidirectional_streams",
                u64::from(self.initial_unidirectional_streams),
                { u64::from(self.max_unidirectional_streams) },
            ),
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
        let window = self
            .initial_window_bytes
            .unwrap_or(DEFAULT_INITIAL_WINDOW_BYTES);
        if self.early_answer_bytes as u64 + EARLY_ROOM_BYTES > window {
            let most = window.saturating_sub(EARLY_ROOM_BYTES);
            return Err(SetupError::Setting(format!(
                "early_answer_bytes must be at most {most}"
            )));
        }
        if self.handshakes_per_turn == 0 {
            return Err(SetupError::Setting(
                "handshakes_per_turn must not be 0".to_owned(),
            ));
        }
        if self.low_watermark_bytes == 0 {
            return Err(SetupError::Setting(
                "low_watermark_bytes must not be 0".to_owned(),
            ));
        }
        Ok(())
    }

    /// Number of streams of a direction that may be open at once at the start and at most.
    pub(super) const fn streams(&self, dir: quinn_proto::Dir) -> (u32, u32) {
        match dir {
            quinn_proto::Dir::Bi => (
                self.initial_bidirectional_streams,
                self.max_bidirectional_streams,
            ),
            quinn_proto::Dir::Uni => (
                self.initial_unidirectional_streams,
                self.max_unidirectional_streams,
            ),
        }
    }

    /// The protocols served, for the log.
    pub(super) fn served(&self) -> String {
        let names: Vec<_> = self
            .protocols
            .iter()
            .map(|name| name.escape_ascii().to_string())
            .collect();
        names.join(", ")
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

/// Turns stateless tickets off, whatever the TLS configuration started with.
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

/// The library's initial congestion window.
const DEFAULT_INITIAL_WINDOW_BYTES: u64 = 12_000;
/// Room that answers to early data leave in it, for what else leaves with them.
const EARLY_ROOM_BYTES: u64 = 4_800;
/// Bytes kept of what a client sends while its first packet waits for its turn.
const FLIGHT_BYTES: u64 = 16 * 1024;

/// The key of stateless reset tokens (RFC 9000, section 10.3.2): HMAC-SHA-256.
struct ResetKey([u8; 32]);

impl ResetKey {
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
