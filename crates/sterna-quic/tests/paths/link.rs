//! Two ends of the QUIC library in virtual time, and a bottleneck between them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event, ServerConfig, StreamEvent, StreamId, Transmit,
};
use sterna_quic::{PathMemory, Phase, Role, Settings};

/// Where the calendar stands when a run begins.
pub(crate) const EPOCH_MS: u64 = 1_790_000_000_000;

/// A path whose bottleneck is on the way from the server to the client.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    pub(crate) round_trip: Duration,
    pub(crate) bytes_per_s: u64,
    /// Bytes that may wait at the bottleneck.
    pub(crate) queue_bytes: u64,
    /// Datagrams of a thousand that get lost before it, by a generator with a fixed seed.
    pub(crate) loss_per_mille: u32,
}

impl Path {
    /// Geostationary satellite: 600 ms, 10 Mbit/s, a queue of one bandwidth-delay product.
    pub(crate) const SATELLITE: Self = Self {
        round_trip: Duration::from_millis(600),
        bytes_per_s: 1_250_000,
        queue_bytes: 750_000,
        loss_per_mille: 0,
    };
}

/// What the server's connection looked like at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Duration,
    pub(crate) phase: Option<Phase>,
    pub(crate) window_bytes: u64,
}

struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    inbound: VecDeque<(Instant, BytesMut)>,
    remote: SocketAddr,
}

/// A client that asks once, and a server that answers with some bytes.
pub(crate) struct Link {
    path: Path,
    start: Instant,
    now: Instant,
    client: End,
    server: End,
    /// When the last datagram at the bottleneck has left it.
    busy_until: Instant,
    dice: u32,
    request: Option<StreamId>,
    answer: Option<StreamId>,
    unwritten_bytes: usize,
    steps: u32,
    pub(crate) received_bytes: usize,
    /// Sizes of all datagrams, up and down.
    pub(crate) sent: [Vec<usize>; 2],
    pub(crate) moments: Vec<Moment>,
}

impl Link {
    /// Begins to connect; the answer will have so many bytes.
    pub(crate) fn new(path: Path, settings: &Settings, answer_bytes: usize) -> Self {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = certified.cert.der().clone();
        let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let server_tls = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key.unwrap())
            .unwrap();
        let client_tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();

        let mut server =
            ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server_tls).unwrap()));
        server.transport_config(Arc::new(settings.transport_config(Role::Server).unwrap()));
        let mut client =
            ClientConfig::new(Arc::new(QuicClientConfig::try_from(client_tls).unwrap()));
        client.transport_config(Arc::new(settings.transport_config(Role::Client).unwrap()));

        let endpoint = |server: Option<Arc<ServerConfig>>, seed: u8| {
            Endpoint::new(
                Arc::new(EndpointConfig::default()),
                server,
                true,
                Some([seed; 32]),
            )
        };
        let client_address = SocketAddr::from(([10, 0, 0, 1], 1_000));
        let server_address = SocketAddr::from(([10, 0, 0, 2], 14_567));
        let start = Instant::now();
        let mut client_endpoint = endpoint(None, 1);
        let connection = client_endpoint
            .connect(start, client, server_address, "localhost")
            .unwrap();
        Self {
            path,
            start,
            now: start,
            client: End {
                endpoint: client_endpoint,
                connection: Some(connection),
                inbound: VecDeque::new(),
                remote: server_address,
            },
            server: End {
                endpoint: endpoint(Some(Arc::new(server)), 2),
                connection: None,
                inbound: VecDeque::new(),
                remote: client_address,
            },
            busy_until: start,
            dice: 1,
            request: None,
            answer: None,
            unwritten_bytes: answer_bytes,
            steps: 0,
            received_bytes: 0,
            sent: [Vec::new(), Vec::new()],
            moments: Vec::new(),
        }
    }

    /// Time since the beginning.
    pub(crate) fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// The clocks of both kinds.
    pub(crate) fn now(&self) -> (Instant, u64) {
        (self.now, EPOCH_MS + self.elapsed().as_millis() as u64)
    }

    /// The server's connection, from the moment it was accepted.
    pub(crate) fn server(&self) -> Option<&Connection> {
        Some(&self.server.connection.as_ref()?.1)
    }

    /// Runs until the server has its connection, as a driver does that then looks the ticket up.
    pub(crate) fn accept(&mut self) -> PathMemory {
        while self.server.connection.is_none() {
            self.step();
        }
        PathMemory::of(self.server().unwrap()).expect("path memory is on")
    }

    /// Runs until the client has so much of the answer.
    pub(crate) fn receive(&mut self, bytes: usize) -> Duration {
        while self.received_bytes < bytes {
            self.step();
        }
        self.elapsed()
    }

    /// Runs for a while.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step_until(end);
        }
    }

    /// Timers that are set, at the client and at the server.
    pub(crate) fn timers(&mut self) -> [Option<Instant>; 2] {
        [&mut self.client, &mut self.server]
            .map(|end| end.connection.as_mut().and_then(|(_, c)| c.poll_timeout()))
    }

    /// From now on the client's datagrams come from there.
    pub(crate) fn move_client(&mut self, address: SocketAddr) {
        self.server.remote = address;
    }

    /// The client says something, which shows the server where it is.
    pub(crate) fn ping(&mut self) {
        self.client.connection.as_mut().unwrap().1.ping();
    }

    /// The server has more to say.
    pub(crate) fn say(&mut self, bytes: usize) {
        self.unwritten_bytes += bytes;
    }

    fn step(&mut self) {
        self.steps += 1;
        assert!(self.steps < 1_000_000, "no progress");
        self.step_until(self.now + Duration::from_secs(1));
    }

    /// Both ends do what they can now; then time goes on to what happens next.
    fn step_until(&mut self, end: Instant) {
        self.receive_datagrams();
        self.converse();
        self.send_datagrams();
        if let Some(connection) = self.server() {
            let moment = Moment {
                at: self.elapsed(),
                phase: Phase::of(connection),
                window_bytes: connection.congestion_state().window(),
            };
            self.moments.push(moment);
        }
        let next = [&mut self.client, &mut self.server]
            .into_iter()
            .flat_map(|end| {
                let arrival = end.inbound.front().map(|(at, _)| *at);
                let timer = end.connection.as_mut().and_then(|(_, c)| c.poll_timeout());
                [arrival, timer]
            })
            .flatten()
            .min();
        // Never twice in the same moment, so that a timer that is due cannot hold time up.
        let soon = self.now + Duration::from_micros(1);
        self.now = next.map_or(end, |next| next.min(end)).max(soon);
    }

    fn receive_datagrams(&mut self) {
        for end in [&mut self.client, &mut self.server] {
            while end.inbound.front().is_some_and(|(at, _)| *at <= self.now) {
                let (_, data) = end.inbound.pop_front().unwrap();
                let mut buffer = Vec::new();
                match end
                    .endpoint
                    .handle(self.now, end.remote, None, None, data, &mut buffer)
                {
                    Some(DatagramEvent::NewConnection(incoming)) => {
                        let accepted = end.endpoint.accept(incoming, self.now, &mut buffer, None);
                        end.connection = Some(accepted.map_err(|error| error.cause).unwrap());
                    }
                    Some(DatagramEvent::ConnectionEvent(_, event)) => {
                        end.connection.as_mut().unwrap().1.handle_event(event);
                    }
                    Some(DatagramEvent::Response(_)) | None => {}
                }
            }
            let Some((handle, connection)) = &mut end.connection else {
                continue;
            };
            if connection.poll_timeout().is_some_and(|at| at <= self.now) {
                connection.handle_timeout(self.now);
            }
            while let Some(event) = connection.poll_endpoint_events() {
                if let Some(event) = end.endpoint.handle_event(*handle, event) {
                    connection.handle_event(event);
                }
            }
        }
    }

    /// The applications: a request of four bytes, and its answer.
    fn converse(&mut self) {
        if let Some((_, client)) = &mut self.client.connection {
            while let Some(event) = client.poll() {
                match event {
                    Event::Connected => {
                        let stream = client.streams().open(Dir::Bi).unwrap();
                        client.send_stream(stream).write(b"more").unwrap();
                        self.request = Some(stream);
                    }
                    Event::ConnectionLost { reason } if reason != ConnectionError::TimedOut => {
                        panic!("client: {reason}")
                    }
                    _ => {}
                }
            }
            if let Some(stream) = self.request {
                let mut stream = client.recv_stream(stream);
                if let Ok(mut chunks) = stream.read(true) {
                    while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
                        self.received_bytes += chunk.bytes.len();
                    }
                    let _ = chunks.finalize();
                }
            }
        }
        if let Some((_, server)) = &mut self.server.connection {
            while let Some(event) = server.poll() {
                match event {
                    Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                        self.answer = server.streams().accept(Dir::Bi);
                    }
                    Event::ConnectionLost { reason } if reason != ConnectionError::TimedOut => {
                        panic!("server: {reason}")
                    }
                    _ => {}
                }
            }
            if let Some(stream) = self.answer {
                while self.unwritten_bytes > 0 {
                    let chunk = Bytes::from(vec![0; self.unwritten_bytes.min(65_536)]);
                    match server.send_stream(stream).write(&chunk) {
                        Ok(written) => self.unwritten_bytes -= written,
                        Err(_) => break,
                    }
                }
            }
        }
    }

    fn send_datagrams(&mut self) {
        let half = self.path.round_trip / 2;
        for (data, at) in transmissions(&mut self.client, self.now) {
            self.sent[0].push(data.len());
            self.server.inbound.push_back((at + half, data));
        }
        for (data, at) in transmissions(&mut self.server, self.now) {
            self.sent[1].push(data.len());
            let waiting = self.busy_until.saturating_duration_since(at).as_micros() as u64
                * self.path.bytes_per_s
                / 1_000_000;
            // Numerical Recipes' generator; its upper bits are good enough for losses.
            self.dice = self
                .dice
                .wrapping_mul(1_664_525)
                .wrapping_add(1_013_904_223);
            let lost = (self.dice >> 8) % 1_000 < self.path.loss_per_mille;
            if lost || waiting > self.path.queue_bytes {
                continue;
            }
            let takes_us = data.len() as u64 * 1_000_000 / self.path.bytes_per_s;
            self.busy_until = self.busy_until.max(at) + Duration::from_micros(takes_us);
            self.client
                .inbound
                .push_back((self.busy_until + half, data));
        }
    }
}

fn transmissions(end: &mut End, now: Instant) -> Vec<(BytesMut, Instant)> {
    let Some((_, connection)) = &mut end.connection else {
        return Vec::new();
    };
    let mut datagrams = Vec::new();
    let mut buffer = Vec::new();
    while let Some(Transmit {
        size, segment_size, ..
    }) = connection.poll_transmit(now, 10, &mut buffer)
    {
        for datagram in buffer[..size].chunks(segment_size.unwrap_or(size)) {
            datagrams.push((BytesMut::from(datagram), now));
        }
        buffer.clear();
    }
    datagrams
}
