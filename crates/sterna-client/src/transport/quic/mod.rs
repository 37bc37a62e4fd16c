//! QUIC: the first stream that the client opens carries the start of the protocol, further ones carry
//! more of the same connection.

mod cork;
pub(crate) mod memory;
mod stream;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connecting, Connection, ConnectionError, Endpoint, EndpointConfig, RecvStream,
    SendStream, TokenMemoryCache, TokenStore, VarInt, ZeroRttAccepted,
};
use sterna_quic::{CongestionControl, Meter, Role, SavedPath};

use super::Settings;
use crate::error::ConnectError;
use crate::options::random_bytes;
use crate::path::PathStatistics;
use crate::tls::{self, Preference};
use crate::url::{Protocol, Url};
use cork::{Cork, CorkedRuntime};
use memory::Known;
pub use stream::EarlyData;
pub(crate) use stream::QuicStream;
use stream::Verdict;

/// Shortest idle timeout, in seconds.
const MIN_IDLE_S: u64 = 30;
/// PINGs within the time-out of a protocol that leaves signs of life to QUIC. A broker that was killed and started
/// answers the next one with a reset.
const PINGS_PER_TIMEOUT: u64 = 2;
/// Longest time for the news of the end to leave. All data has arrived before, so no answer is
/// needed.
const CLOSE_PAUSE: Duration = Duration::from_millis(2);
/// Turns of other tasks before that.
const TURNS: usize = 1_000;
/// Application error code of an orderly end, as other brokers and clients use it.
const NO_ERROR: VarInt = VarInt::from_u32(0);
/// A third of two full datagrams. A server may want to send them to a client that has moved. One
/// has the challenge of the address, one the answer.
const PADDING_BYTES: usize = 800;
/// Unidirectional streams that an HTTP/3 server may have open: the three of RFC 9114, section 6.2, and
/// some that mean nothing.
const HTTP3_STREAMS: VarInt = VarInt::from_u32(8);
/// Part of the assumed round trip that chance adds at the most.
const SPREAD: f64 = 0.5;
/// Where the control stream stands among streams that have something to send.
pub(crate) const CONTROL_PRIORITY: i32 = 16;

/// Tokens by which servers know an address again (NEW_TOKEN): 2 for each of 256 servers.
static TOKENS: LazyLock<Arc<TokenMemoryCache>> =
    LazyLock::new(|| Arc::new(TokenMemoryCache::new(256, 2)));

type Opening =
    Pin<Box<dyn Future<Output = Result<(SendStream, RecvStream), ConnectionError>> + Send + Sync>>;

type Receiving = Pin<Box<dyn Future<Output = Result<Bytes, ConnectionError>> + Send + Sync>>;

/// A QUIC connection to a broker. It has its own socket, so that it can move to another network
/// alone.
pub(crate) struct Quic {
    own: OwnEnd,
    connection: Connection,
    verdict: Arc<Verdict>,
    /// Tells when the handshake is complete, as long as it is not.
    handshake: Option<ZeroRttAccepted>,
    /// Keeps the first datagram back.
    cork: Option<Cork>,
    /// A stream that the server has no room for yet.
    opening: Option<Opening>,
    /// The next datagram.
    receiving: Option<Receiving>,
    /// Number of migrations of the connection.
    migrations: u64,
}

/// The configuration of QUIC for these settings, with the tickets of this process.
pub(super) fn attempt(
    settings: &Settings,
    name: String,
    url: &Url,
    known: Option<&Known>,
) -> Result<Attempt, ConnectError> {
    let overrides = &settings.link.quic;
    let mut quic = overrides.settings();
    // MQTT's keep alive finds a dead peer after 1.5 times its interval, and QUIC must not be
    // quicker. A client without keep alive has no limit for its sleep. AMQP leaves liveness to
    // QUIC, whose probes repeat a PING that is lost.
    if overrides.idle_timeout_ms.is_none() && overrides.profile.is_none() {
        let keep_alive_s = u64::from(settings.keep_alive_s);
        let idle_s = if settings.quic_pings {
            keep_alive_s
        } else {
            3 * keep_alive_s
        };
        quic.idle_timeout_ms = match idle_s {
            0 => 0,
            idle_s => idle_s.max(MIN_IDLE_S) * 1000,
        };
        if settings.quic_pings && overrides.keep_alive_interval_ms.is_none() {
            quic.keep_alive_interval_ms = keep_alive_s * 1000 / PINGS_PER_TIMEOUT;
        }
    }
    if let Some(path) = known.and_then(|known| known.path.as_ref()) {
        quic = quic.remembering(path, memory::now_ms());
    }
    // As all brokers name it.
    let alpn = [url.scheme().protocol().name().as_bytes()];
    let preference = Preference {
        key_share: quic.key_share,
        chacha20: quic.cipher.prefers_chacha20(),
        port: url.port(),
    };
    let config = settings
        .link
        .tls
        .config(&alpn, settings.link.early_data, Some(preference))?;
    let crypto = QuicClientConfig::try_from(config)
        .map_err(|error| ConnectError::Quic(format!("no cipher for QUIC: {error}")))?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    // Streams of the server's own have no meaning in MQTT and AMQP, so it may not open any.
    let mut transport = quic
        .transport_config(Role::Client)
        .map_err(|problems| ConnectError::Quic(problems.join("; ")))?;
    transport.initial_rtt(spread(quic.initial_rtt_ms));
    if url.scheme().protocol() == Protocol::Http {
        transport.max_concurrent_uni_streams(HTTP3_STREAMS);
    }
    #[cfg(feature = "qlog")]
    if let Some(qlog) = &settings.link.qlog {
        transport.qlog_stream(qlog.begin(url.host()).map_err(ConnectError::Quic)?);
    }
    config.transport_config(Arc::new(transport));
    config.token_store(Arc::clone(&TOKENS) as Arc<dyn TokenStore>);
    let mut endpoint = EndpointConfig::default();
    endpoint
        .max_udp_payload_size(quic.max_received_payload_bytes)
        .map_err(|error| ConnectError::Quic(error.to_string()))?;
    Ok(Attempt {
        config,
        endpoint,
        name,
        url: url.clone(),
        bind: settings.link.bind,
        names_authorities: settings.link.tls.names_authorities(),
        max_ack_delay: Duration::from_millis(quic.max_ack_delay_ms.into()),
    })
}

/// The round trip that is assumed before the first measurement: these milliseconds, and at random up to
/// [`SPREAD`] more. Clients that power brings back at one moment lose their first datagrams in one full
/// queue. Without chance all their probes would meet there again, at each doubled timeout.
fn spread(initial_rtt_ms: u32) -> Duration {
    let mut random = [0; 4];
    random_bytes(&mut random);
    let part = f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX);
    Duration::from_millis(initial_rtt_ms.into()).mul_f64(SPREAD.mul_add(part, 1.0))
}

/// Where and how to connect.
#[derive(Clone)]
pub(super) struct Attempt {
    config: ClientConfig,
    endpoint: EndpointConfig,
    /// The name in the server's certificate.
    name: String,
    url: Url,
    bind: Option<IpAddr>,
    /// Whether the settings have authorities of their own.
    names_authorities: bool,
    /// Longest delay of an acknowledgement by the server.
    max_ack_delay: Duration,
}

/// This end of a connection.
struct OwnEnd {
    endpoint: Endpoint,
    /// The server.
    url: Url,
    /// Whether the settings have authorities of their own.
    names_authorities: bool,
    /// Longest delay of an acknowledgement by the server.
    max_ack_delay: Duration,
}

/// A connection that has been started and has sent nothing.
pub(super) struct Started {
    own: OwnEnd,
    connecting: Connecting,
    cork: Cork,
}

impl Attempt {
    /// Prepares a connection to one address. Nothing is sent yet.
    pub(super) fn start(self, address: SocketAddr) -> Result<Started, ConnectError> {
        let any: IpAddr = if address.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let local = SocketAddr::new(self.bind.unwrap_or(any), 0);
        let socket = std::net::UdpSocket::bind(local)?;
        let (runtime, cork) = CorkedRuntime::new();
        let endpoint = Endpoint::new(self.endpoint, None, socket, runtime)?;
        let connecting = endpoint
            .connect_with(self.config, address, &self.name)
            .map_err(|error| ConnectError::Quic(error.to_string()))?;
        Ok(Started {
            own: OwnEnd {
                endpoint,
                url: self.url,
                names_authorities: self.names_authorities,
                max_ack_delay: self.max_ack_delay,
            },
            connecting,
            cork,
        })
    }
}

impl Started {
    /// The connection, ready for data before anything was sent, if a ticket allows it; else the
    /// started attempt.
    pub(super) fn into_early(self) -> Result<Quic, Box<Self>> {
        let Self {
            own,
            connecting,
            cork,
        } = self;
        match connecting.into_0rtt() {
            Ok((connection, handshake)) => {
                let mut quic = Quic::new(own, connection, EarlyData::Pending);
                quic.handshake = Some(handshake);
                quic.cork = Some(cork);
                Ok(quic)
            }
            Err(connecting) => Err(Box::new(Self {
                own,
                connecting,
                cork,
            })),
        }
    }

    /// The connection once the handshake is complete.
    pub(super) async fn established(self) -> Result<Quic, ConnectError> {
        drop(self.cork);
        let connection = self.connecting.await.map_err(|error| {
            ConnectError::Quic(tls::explain(&error, self.own.names_authorities))
        })?;
        Ok(Quic::new(self.own, connection, EarlyData::NotTried))
    }
}

impl Quic {
    fn new(own: OwnEnd, connection: Connection, early_data: EarlyData) -> Self {
        Self {
            own,
            connection,
            verdict: Arc::new(Verdict::new(early_data)),
            handshake: None,
            cork: None,
            opening: None,
            receiving: None,
            migrations: 0,
        }
    }

    /// The server as it was named.
    pub(crate) fn url(&self) -> &Url {
        &self.own.url
    }

    /// The server's address.
    pub(super) fn peer(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// The connection itself, for a protocol that has streams of its own.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The smoothed round trip.
    pub(crate) fn rtt(&self) -> Duration {
        self.connection.rtt()
    }

    /// Longest time to the server's acknowledgement (RFC 9002, section 6.2.1).
    pub(crate) fn probe_timeout(&self) -> Duration {
        let rtt = self.rtt();
        let variation = match self.meter().variance() {
            Duration::ZERO => rtt / 2,
            variation => variation,
        };
        rtt + (4 * variation).max(Duration::from_millis(1)) + self.own.max_ack_delay
    }

    /// Values of the path that the library's statistics leave out.
    fn meter(&self) -> Meter {
        Meter::in_copy(self.connection.congestion_state(), self.rtt())
    }

    /// When the server's last acknowledgement came.
    pub(crate) fn acknowledged(&self) -> Option<Instant> {
        self.meter().acknowledged()
    }

    /// Verdict on the early data.
    pub(crate) fn early_data(&self) -> EarlyData {
        self.verdict.get()
    }

    /// Whether the first datagram is held back for early data.
    pub(crate) fn is_corked(&self) -> bool {
        self.cork.is_some()
    }

    /// Lets the first datagram leave. Without effect when it has left.
    pub(crate) fn uncork(&mut self) {
        self.cork = None;
    }

    /// Ready once, with the verdict about the early data, when the handshake is complete.
    ///
    /// # Errors
    /// When it failed. The server is then forgotten: perhaps it is at another address now.
    pub(crate) fn poll_handshake(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<EarlyData, ConnectError>> {
        let Some(handshake) = &mut self.handshake else {
            return Poll::Pending;
        };
        let Poll::Ready(accepted) = Pin::new(handshake).poll(cx) else {
            return Poll::Pending;
        };
        self.handshake = None;
        if let (false, Some(error)) = (accepted, self.handshake_error()) {
            self.forget();
            return Poll::Ready(Err(error));
        }
        let verdict = if accepted {
            EarlyData::Accepted
        } else {
            EarlyData::Rejected
        };
        tracing::debug!(?verdict, "early data");
        self.verdict.set(verdict);
        Poll::Ready(Ok(verdict))
    }

    /// Why the handshake, which is not complete, never will be.
    pub(crate) fn handshake_error(&self) -> Option<ConnectError> {
        let reason = self.connection.close_reason()?;
        Some(ConnectError::Quic(tls::explain(&reason, self.own.names_authorities)).at(self.url()))
    }

    /// Opens a stream in both directions; ready when the server has room for one more.
    pub(crate) fn poll_open(
        &mut self,
        priority: i32,
        cx: &mut Context<'_>,
    ) -> Poll<Result<QuicStream, ConnectError>> {
        let opening = self.opening.get_or_insert_with(|| {
            let connection = self.connection.clone();
            Box::pin(async move { connection.open_bi().await })
        });
        let Poll::Ready(opened) = opening.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.opening = None;
        Poll::Ready(match opened {
            Ok((send, receive)) => Ok(QuicStream::new(
                self.connection.clone(),
                Arc::clone(&self.verdict),
                priority,
                send,
                receive,
            )),
            Err(error) => Err(ConnectError::Quic(error.to_string())),
        })
    }

    /// Largest datagram that can be sent now, in bytes; `None` if the server takes no datagrams.
    pub(crate) fn max_datagram_bytes(&self) -> Option<usize> {
        self.connection.max_datagram_size()
    }

    /// Sends a datagram. False when there is no room for it.
    pub(crate) fn send_datagram(&self, bytes: Bytes) -> bool {
        bytes.len() <= self.connection.datagram_send_buffer_space()
            && self.connection.send_datagram(bytes).is_ok()
    }

    /// The next datagram of the server's.
    pub(crate) fn poll_datagram(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let receiving = self.receiving.get_or_insert_with(|| {
            let connection = self.connection.clone();
            Box::pin(async move { connection.read_datagram().await })
        });
        let Poll::Ready(received) = receiving.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.receiving = None;
        if let Ok(bytes) = received {
            return Poll::Ready(bytes);
        }
        // The streams tell about the end of the connection.
        self.receiving = Some(Box::pin(std::future::pending()));
        Poll::Pending
    }

    /// Moves the connection to a new local port, as a change of network would. The library announces
    /// it with a PING when its task runs.
    ///
    /// A server must not send more than three times the bytes from an address that it has not
    /// validated. Servers with this library count from the second datagram on. So let the PING
    /// leave before other data, and then write the padding of [`Quic::pad`]. A message in the
    /// datagram of the PING would be answered after two round trips.
    pub(crate) fn rebind(&mut self) -> io::Result<()> {
        let mut address = self.own.endpoint.local_addr()?;
        address.set_port(0);
        self.own
            .endpoint
            .rebind(std::net::UdpSocket::bind(address)?)?;
        self.migrations += 1;
        Ok(())
    }

    /// Sends padding that lets the server answer at once after a move, if it takes datagrams. Its
    /// first byte says that it is not an MQTT packet.
    pub(crate) fn pad(&self) {
        if self.connection.max_datagram_size() >= Some(PADDING_BYTES) {
            self.send_datagram(Bytes::from_static(&[0; PADDING_BYTES]));
        }
    }

    /// Statistics of the path. Counters of the caller's are left at zero.
    pub(crate) fn statistics(&self) -> PathStatistics {
        let stats = self.connection.stats();
        PathStatistics {
            peer: self.peer(),
            rtt: stats.path.rtt,
            min_rtt: stats.path.min_rtt,
            rtt_variation: self.meter().variance(),
            congestion_control: CongestionControl::of(self.connection.congestion_state()),
            congestion_window_bytes: stats.path.cwnd,
            congestion_events: stats.path.congestion_events,
            packets_sent: stats.path.sent_packets,
            packets_lost: stats.path.lost_packets,
            bytes_lost: stats.path.lost_bytes,
            mtu_bytes: stats.path.current_mtu,
            datagrams_sent: stats.udp_tx.datagrams,
            datagrams_received: stats.udp_rx.datagrams,
            wire_bytes_sent: stats.udp_tx.bytes,
            wire_bytes_received: stats.udp_rx.bytes,
            packet_bytes_sent: 0,
            packet_bytes_received: 0,
            early_data: self.early_data(),
            migrations: self.migrations,
            streams: 0,
            datagram_messages: 0,
        }
    }

    /// Remembers what the next connection to this server can start from.
    pub(crate) fn remember(&self) {
        let path = self.connection.stats().path;
        let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX).max(1);
        let known = Known {
            address: self.peer(),
            path: Some(SavedPath {
                rtt_us: micros(path.rtt),
                min_rtt_us: micros(path.min_rtt.min(path.rtt)),
                // The library doesn't tell a client how far the window was filled.
                congestion_window_bytes: 0,
                mtu_bytes: path.current_mtu,
                saved_at_ms: memory::now_ms(),
            }),
        };
        memory::SERVERS.remember(self.url(), known);
    }

    /// Forgets the server, which did not answer where it was expected.
    pub(crate) fn forget(&self) {
        memory::SERVERS.forget(self.url());
    }

    /// Ends the connection. Data of a stream that was not shut down may be lost.
    pub(crate) async fn close(mut self) {
        self.uncork();
        close(&self.connection, NO_ERROR).await;
    }
}

/// The first error code of TLS alerts (RFC 9001, section 4.8).
const FIRST_ALERT: u64 = 0x100;

/// The alert of these words: HTTP/2 keeps nothing else of an error.
fn named_alert(words: &str) -> Option<rustls::Error> {
    let mut alerts = (0..=u8::MAX).map(|code| rustls::Error::AlertReceived(code.into()));
    alerts.find(|alert| alert.to_string() == words)
}

/// The fault of TLS behind an error, such as the alert with which the server has ended the connection. In TLS 1.3 a
/// server refuses a client's certificate after the client has finished.
pub(crate) fn alert(error: &(dyn std::error::Error + 'static)) -> Option<rustls::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(ConnectionError::ConnectionClosed(close)) = error.downcast_ref() {
            let alert = u64::from(close.error_code).checked_sub(FIRST_ALERT)?;
            let alert = u8::try_from(alert).ok()?;
            return Some(rustls::Error::AlertReceived(alert.into()));
        }
        let of_stream = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        if let Some(fault) = of_stream {
            let known = fault.downcast_ref::<rustls::Error>().cloned();
            return known.or_else(|| named_alert(&fault.to_string()));
        }
        cause = error.source();
    }
    None
}

/// Closes a connection and waits until the packet that says so has left, for [`CLOSE_PAUSE`] at most.
///
/// quinn's own task sends it, and may do so on another thread before quinn's `close` returns. So
/// the datagrams are counted from before the call. A connection that the peer has closed sends
/// nothing more.
pub(crate) async fn close(connection: &Connection, code: VarInt) {
    if connection.close_reason().is_some() {
        return;
    }
    let sent = || connection.stats().udp_tx.datagrams;
    let before = sent();
    connection.close(code, b"");
    for _ in 0..TURNS {
        if sent() != before {
            return;
        }
        tokio::task::yield_now().await;
    }
    // The socket takes nothing, or the machine is busy.
    tokio::time::sleep(CLOSE_PAUSE).await;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::link::LinkOptions;

    /// A client that only receives learns of a lost broker by nothing else.
    #[test]
    fn the_time_out_of_amqp_is_that_of_quic_with_pings_within() {
        let url: Url = "amqp+quic://localhost:5671".parse().unwrap();
        let times = |keep_alive_s, quic_pings| {
            let settings = Settings {
                link: LinkOptions::new(url.clone()),
                keep_alive_s,
                quic_pings,
                max_packet_bytes: 1_000,
            };
            let attempt = attempt(&settings, "localhost".into(), &url, None).unwrap();
            // The library has no other way to tell.
            let text = format!("{:?}", attempt.config);
            let value = |name: &str| {
                let (_, rest) = text.split_once(name).unwrap();
                rest.split([',', ' ']).next().unwrap().to_owned()
            };
            [value("max_idle_timeout: "), value("keep_alive_interval: ")]
        };
        assert_eq!(times(60, true), ["Some(60000)", "Some(30s)"]);
        assert_eq!(times(5, true), ["Some(30000)", "Some(2.5s)"]);
        assert_eq!(times(0, true), ["None", "None"]);
        assert_eq!(times(60, false), ["Some(180000)", "None"]);
    }

    #[test]
    fn a_crowds_first_probes_leave_at_many_moments_and_none_too_early() {
        let url: Url = "mqtt+quic://localhost:14567".parse().unwrap();
        let settings = Settings {
            link: LinkOptions::new(url.clone()),
            keep_alive_s: 0,
            quic_pings: false,
            max_packet_bytes: 1_000,
        };
        let assumed = |_| {
            let attempt = attempt(&settings, "localhost".into(), &url, None).unwrap();
            // The library has no other way to tell.
            let text = format!("{:?}", attempt.config);
            let value = text.split_once("initial_rtt: ").unwrap().1;
            let value = value.split_once("ms").unwrap().0.parse::<f64>().unwrap();
            assert!((333.0..=499.5).contains(&value), "{value}");
            Duration::from_secs_f64(value / 1_000.0).as_micros()
        };
        let crowd: BTreeSet<u128> = (0..64).map(assumed).collect();
        // Two of 64 may meet by chance; with one value for all there would be one.
        assert!(crowd.len() > 56, "{crowd:?}");
        assert!(crowd.last().unwrap() - crowd.first().unwrap() > 80_000);
    }
}
