//! Handshakes that begin and never end: the effect of many dead or hostile clients on the others.

use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig};

use super::idle::Connected;
use super::links::LinkOptions;
use super::links::target::Scheme;
use super::links::tls::client_config;
use super::new_latencies;
use super::report::float;

/// Longest wait for the answers to the silent clients' first packets.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);
/// Time for a broker to read incomplete input.
const SETTLE: Duration = Duration::from_millis(500);
/// QUIC clients that begin together.
const TOGETHER: usize = 50;
/// Largest UDP payload of an answer that is looked at.
const DATAGRAM_BYTES: usize = 2048;
/// The type of a Retry packet in the first byte of its long header (RFC 9000, section 17.2.5).
const RETRY: u8 = 0xF0;

/// Half-open handshakes, as long as this lives.
struct Silence {
    _streams: Vec<TcpStream>,
    sockets: Vec<UdpSocket>,
    /// Clients that got the broker's first flight and do not answer it. Zero on byte streams, where
    /// the broker waits for the rest of the input.
    answered: usize,
    /// Clients that were asked to prove their address (Retry).
    retried: usize,
}

/// A crowd's effect on honest clients, over all rounds.
pub(super) struct Crowd {
    /// See [`Silence::answered`]; of the last round.
    pub(super) answered: usize,
    /// See [`Silence::retried`]; of the last round.
    pub(super) retried: usize,
    pub(super) failed: u64,
    pub(super) alone: Histogram<u64>,
    pub(super) beside: Histogram<u64>,
    /// Median of the rounds' ratios of medians. Each round has its own, because a machine is faster at
    /// one time than at another.
    pub(super) ratio: f64,
}

/// Measures alone and beside `count` silent handshakes, in at least one round.
pub(super) fn compare(
    count: usize,
    rounds: u16,
    forget: Duration,
    options: &LinkOptions,
    measure: impl Fn() -> Result<Connected, String>,
) -> Result<Crowd, String> {
    let mut crowd = Crowd {
        answered: 0,
        retried: 0,
        failed: 0,
        alone: new_latencies(),
        beside: new_latencies(),
        ratio: 0.0,
    };
    let mut ratios = Vec::new();
    for round in 0..rounds {
        if round > 0 && options.target.scheme == Scheme::Quic {
            std::thread::sleep(forget);
        }
        let alone = measure()?;
        let silence = begin(count, options)?;
        let beside = measure()?;
        ratios.push(median_us(&beside.latencies) / median_us(&alone.latencies).max(0.001));
        crowd.answered = silence.answered;
        crowd.retried = silence.retried;
        crowd.failed += alone.failed + beside.failed;
        crowd.alone += alone.latencies;
        crowd.beside += beside.latencies;
    }
    ratios.sort_by(f64::total_cmp);
    crowd.ratio = ratios[ratios.len() / 2];
    Ok(crowd)
}

/// The median of latencies, in microseconds.
pub(super) fn median_us(latencies: &Histogram<u64>) -> f64 {
    float(latencies.value_at_quantile(0.5)) / 1000.0
}

/// Begins `count` handshakes and lets them be.
fn begin(count: usize, options: &LinkOptions) -> Result<Silence, String> {
    if options.target.scheme == Scheme::Quic {
        begin_quic(count, options)
    } else {
        begin_streams(count, options)
    }
}

/// Connects, and on TLS sends the first half of a ClientHello.
fn begin_streams(count: usize, options: &LinkOptions) -> Result<Silence, String> {
    let mut hello = Vec::new();
    if matches!(options.target.scheme, Scheme::Tls | Scheme::SecureWebSocket) {
        let tls = client_config(options, &[])?;
        let name = options.target.name.clone();
        let name = name
            .try_into()
            .map_err(|e| format!("no server name: {e}"))?;
        let mut client = rustls::ClientConnection::new(Arc::new(tls), name)
            .map_err(|e| format!("cannot set up: {e}"))?;
        client
            .write_tls(&mut hello)
            .map_err(|e| format!("cannot set up: {e}"))?;
        hello.truncate(hello.len() / 2);
    }
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(options.target.address)
            .map_err(|e| format!("cannot connect: {e}"))?;
        stream
            .write_all(&hello)
            .map_err(|e| format!("cannot send: {e}"))?;
        streams.push(stream);
    }
    std::thread::sleep(SETTLE);
    Ok(Silence {
        _streams: streams,
        sockets: Vec::new(),
        answered: 0,
        retried: 0,
    })
}

/// Sends the first datagram of each client, and reads whether the broker answered it. It sends a few at
/// a time. A broker may leave handshakes unanswered that it cannot begin at once, and these clients
/// would ask again.
fn begin_quic(count: usize, options: &LinkOptions) -> Result<Silence, String> {
    let fail = |e: std::io::Error| format!("cannot use a UDP socket: {e}");
    let tls = client_config(options, &[b"mqtt"])?;
    let crypto = QuicClientConfig::try_from(tls).map_err(|e| format!("cannot set up: {e}"))?;
    let config = ClientConfig::new(Arc::new(crypto));
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
    let (address, name) = (options.target.address, &options.target.name);
    let mut silence = Silence {
        _streams: Vec::new(),
        sockets: Vec::with_capacity(count),
        answered: 0,
        retried: 0,
    };
    let mut buffer = Vec::new();
    let end = Instant::now() + ANSWER_LIMIT;
    while silence.sockets.len() < count {
        let first = silence.sockets.len();
        for number in first..count.min(first + TOGETHER) {
            let socket = UdpSocket::bind(source(address, number)).map_err(fail)?;
            socket.connect(address).map_err(fail)?;
            socket.set_nonblocking(true).map_err(fail)?;
            let now = Instant::now();
            let (_, mut connection) = endpoint
                .connect(now, config.clone(), address, name)
                .map_err(|e| format!("cannot set up: {e}"))?;
            buffer.clear();
            if let Some(transmit) = connection.poll_transmit(now, 1, &mut buffer) {
                socket.send(&buffer[..transmit.size]).map_err(fail)?;
            }
            silence.sockets.push(socket);
        }
        silence.read_answers(first, end);
    }
    Ok(silence)
}

impl Silence {
    /// Reads the broker's answers to the clients from `first` on, until each has an answer or the
    /// time is up.
    fn read_answers(&mut self, first: usize, end: Instant) {
        let mut datagram = [0; DATAGRAM_BYTES];
        let mut waiting: Vec<&UdpSocket> = self.sockets[first..].iter().collect();
        while !waiting.is_empty() && Instant::now() < end {
            waiting.retain(|socket| match socket.recv(&mut datagram) {
                Ok(_) => {
                    if datagram[0] & 0xF0 == RETRY {
                        self.retried += 1;
                    } else {
                        self.answered += 1;
                    }
                    false
                }
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            });
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Source address of a silent client. A broker on loopback sees each at an address of its own. So
/// the crowd is measured, and not the broker's limit for one address.
fn source(target: SocketAddr, number: usize) -> SocketAddr {
    match target {
        SocketAddr::V4(target) if target.ip().is_loopback() => {
            let [high, low] = (number as u16).to_be_bytes();
            (Ipv4Addr::new(127, 1, high, low), 0).into()
        }
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}
