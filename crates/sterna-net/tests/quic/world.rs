//! One server (a [`Driver`]) and any number of clients (quinn-proto) on a link in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, ConnectionIdGenerator,
    DatagramEvent, Dir, Endpoint, EndpointConfig, Event, RandomConnectionIdGenerator, ReadError,
    StreamEvent, StreamId as ClientStreamId, TokenMemoryCache, TransportConfig, VarInt,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sterna_net::StreamId;
use sterna_net::quic::{
    Driver, DriverEvent, EventKind, Key, Placement, QuicConfig, Sent, TicketStore,
};
use sterna_quic::Settings;

pub(crate) const SERVER_NAME: &str = "broker.example";

/// A server's configuration with some settings changed.
pub(crate) fn settings(change: impl FnOnce(&mut Settings)) -> QuicConfig {
    let mut config = QuicConfig::default();
    change(&mut config.settings);
    config
}

/// Certificate, key and the stores that both sides of a world use.
pub(crate) struct Identity {
    pub(crate) server_tls: rustls::ServerConfig,
    pub(crate) trusted: rustls::RootCertStore,
    pub(crate) tickets: Arc<TicketStore>,
}

impl Identity {
    pub(crate) fn new() -> Self {
        let certified = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()])
            .expect("a valid test setup");
        let certificate: CertificateDer<'static> = certified.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.clone()).expect("a valid test setup");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server_tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("a valid test setup")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivateKeyDer::Pkcs8(key))
            .expect("a valid test setup");
        Self {
            server_tls,
            trusted: roots,
            tickets: Arc::new(TicketStore::new(1_000)),
        }
    }

    /// TLS of a client that offers the protocols given; each has a memory for tickets of its own.
    pub(crate) fn client_tls(&self, protocols: &[&[u8]]) -> rustls::ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("a valid test setup")
            .with_root_certificates(self.trusted.clone())
            .with_no_client_auth();
        tls.enable_early_data = true;
        // As sterna-client asks.
        tls.send_ticket_request = Some(rustls::client::TicketRequest {
            new_session_count: 8,
            resumption_count: 2,
        });
        tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        tls
    }
}

/// What the link does with a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Deliver,
    Drop,
    /// Deliver so much later than usual.
    Late(Duration),
    Twice,
    /// Deliver with one byte changed.
    Garbled(usize),
}

/// A datagram about to cross the link.
pub(crate) struct Crossing<'a> {
    pub(crate) to_server: bool,
    pub(crate) client: usize,
    /// How many of this client went in this direction before.
    pub(crate) number: usize,
    pub(crate) bytes: &'a [u8],
}

impl Crossing<'_> {
    pub(crate) fn is_one_rtt(&self) -> bool {
        self.bytes[0] & 0x80 == 0
    }
}

pub(crate) struct Client {
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: Connection,
    pub(crate) handle: ConnectionHandle,
    pub(crate) address: SocketAddr,
    pub(crate) connected: Option<Duration>,
    pub(crate) lost: Option<ConnectionError>,
    pub(crate) received: BTreeMap<u64, Vec<u8>>,
    /// When the first byte of a stream came.
    pub(crate) first_byte: BTreeMap<u64, Duration>,
    pub(crate) finished: BTreeSet<u64>,
    pub(crate) reset: BTreeMap<u64, u64>,
    pub(crate) stopped: BTreeMap<u64, u64>,
    pub(crate) datagrams: Vec<Bytes>,
    /// Datagrams and bytes towards the server and back.
    pub(crate) up: (usize, usize),
    pub(crate) down: (usize, usize),
    /// Bytes that the connection has not taken yet, per stream.
    pub(crate) unsent: BTreeMap<ClientStreamId, Vec<u8>>,
    pub(crate) reads: bool,
}

struct Flight {
    at: Instant,
    number: u64,
    to_server: bool,
    client: usize,
    from: SocketAddr,
    bytes: BytesMut,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Flight {}
impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

pub(crate) type Rule = Box<dyn FnMut(&Crossing<'_>) -> Fate>;
/// Called before the server's code runs; what it returns is dropped after.
pub(crate) type Around = Box<dyn Fn() -> Box<dyn std::any::Any>>;
pub(crate) type Reaction = Box<dyn FnMut(&mut Driver, &DriverEvent)>;

pub(crate) struct World {
    pub(crate) identity: Identity,
    pub(crate) start: Instant,
    pub(crate) now: Instant,
    pub(crate) server: Driver,
    pub(crate) server_address: SocketAddr,
    pub(crate) clients: Vec<Client>,
    /// Everything the driver reported, with its time since the start.
    pub(crate) log: Vec<(Duration, DriverEvent)>,
    pub(crate) delay: Duration,
    pub(crate) rule: Rule,
    /// What the handler does on an event.
    pub(crate) reaction: Reaction,
    pub(crate) around_server: Option<Around>,
    pub(crate) segments: usize,
    /// Calls of `poll_transmit`'s sink.
    pub(crate) sends: usize,
    pub(crate) turns: usize,
    /// Datagrams and bytes of the server to addresses where no client is.
    pub(crate) astray: (usize, usize),
    /// The bytes by address.
    pub(crate) astray_to: HashMap<SocketAddr, usize>,
    /// Tokens that clients got (NEW_TOKEN), for all clients of the world.
    tokens: Arc<TokenMemoryCache>,
    flights: BinaryHeap<Reverse<Flight>>,
    flown: u64,
    buffer: Vec<u8>,
}

impl World {
    pub(crate) fn new(config: QuicConfig, delay: Duration) -> Self {
        Self::with_identity(Identity::new(), config, delay)
    }

    pub(crate) fn with_identity(identity: Identity, config: QuicConfig, delay: Duration) -> Self {
        let start = Instant::now();
        let tls = Arc::new(config.prepare_tls(&identity.server_tls, identity.tickets.clone()));
        let server_address = "192.0.2.1:14567".parse().expect("a valid test setup");
        let placement = Placement {
            listener: 3,
            shard: 1,
            shards: 4,
            address: server_address,
        };
        let server = Driver::new(config, tls, placement, start).expect("a valid test setup");
        Self {
            identity,
            start,
            now: start,
            server,
            server_address,
            clients: Vec::new(),
            log: Vec::new(),
            delay,
            rule: Box::new(|_| Fate::Deliver),
            reaction: Box::new(|_, _| ()),
            around_server: None,
            segments: 10,
            sends: 0,
            turns: 0,
            astray: (0, 0),
            astray_to: HashMap::new(),
            tokens: Arc::default(),
            flights: BinaryHeap::new(),
            flown: 0,
            buffer: Vec::new(),
        }
    }

    pub(crate) fn since_start(&self) -> Duration {
        self.now - self.start
    }

    /// The transport settings of a plain client.
    pub(crate) fn transport() -> TransportConfig {
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(100u32.into())
            .max_concurrent_uni_streams(100u32.into())
            .mtu_discovery_config(None);
        transport
    }

    pub(crate) fn connect(&mut self) -> usize {
        let tls = self.identity.client_tls(&[b"mqtt"]);
        self.connect_with(Arc::new(tls), Self::transport())
    }

    pub(crate) fn connect_with(
        &mut self,
        tls: Arc<rustls::ClientConfig>,
        transport: TransportConfig,
    ) -> usize {
        let n = self.clients.len();
        let address = SocketAddr::from(([198, 51, 100, 7], 20_000 + n as u16));
        self.connect_from(tls, transport, address)
    }

    pub(crate) fn connect_from(
        &mut self,
        tls: Arc<rustls::ClientConfig>,
        transport: TransportConfig,
        address: SocketAddr,
    ) -> usize {
        let tls = QuicClientConfig::try_from(tls).expect("a valid test setup");
        self.connect_by(Arc::new(tls), transport, address)
    }

    pub(crate) fn connect_by(
        &mut self,
        tls: Arc<dyn quinn_proto::crypto::ClientConfig>,
        transport: TransportConfig,
        address: SocketAddr,
    ) -> usize {
        let n = self.clients.len();
        let mut endpoint_config = EndpointConfig::default();
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&(n as u64).to_be_bytes());
        endpoint_config.rng_seed(Some(seed));
        endpoint_config.cid_generator(|| -> Box<dyn ConnectionIdGenerator> {
            Box::new(RandomConnectionIdGenerator::new(8))
        });
        let mut endpoint = Endpoint::new(Arc::new(endpoint_config), None, false, None);
        let mut config = ClientConfig::new(tls);
        config.transport_config(Arc::new(transport));
        config.token_store(self.tokens.clone());
        let (handle, connection) = endpoint
            .connect(self.now, config, self.server_address, SERVER_NAME)
            .expect("a valid test setup");
        self.clients.push(Client {
            endpoint,
            connection,
            handle,
            address,
            connected: None,
            lost: None,
            received: BTreeMap::new(),
            first_byte: BTreeMap::new(),
            finished: BTreeSet::new(),
            reset: BTreeMap::new(),
            stopped: BTreeMap::new(),
            datagrams: Vec::new(),
            up: (0, 0),
            down: (0, 0),
            unsent: BTreeMap::new(),
            reads: true,
        });
        n
    }

    /// Opens a stream and writes to it; it leaves when the world runs on.
    pub(crate) fn open(&mut self, client: usize, dir: Dir, bytes: &[u8], finish: bool) -> StreamId {
        let connection = &mut self.clients[client].connection;
        let id = connection
            .streams()
            .open(dir)
            .expect("a stream is permitted");
        self.write(client, StreamId(id.into()), bytes, finish);
        StreamId(id.into())
    }

    pub(crate) fn write(&mut self, client: usize, stream: StreamId, bytes: &[u8], finish: bool) {
        let id = ClientStreamId::from(VarInt::from_u64(stream.0).expect("a valid test setup"));
        let client = &mut self.clients[client];
        client
            .unsent
            .entry(id)
            .or_default()
            .extend_from_slice(bytes);
        client.write_unsent();
        if finish {
            assert!(client.unsent.is_empty(), "all was written");
            client
                .connection
                .send_stream(id)
                .finish()
                .expect("a valid test setup");
        }
    }

    /// Events of one kind, with their times.
    pub(crate) fn events<T>(
        &self,
        pick: impl Fn(&EventKind) -> Option<T>,
    ) -> Vec<(Duration, Key, T)> {
        let found = self.log.iter();
        found
            .filter_map(|(at, event)| Some((*at, event.connection, pick(&event.kind)?)))
            .collect()
    }

    /// What arrived at the server on a stream of a connection.
    pub(crate) fn arrived(&self, key: Key, stream: StreamId) -> Vec<u8> {
        let mut all = Vec::new();
        for (_, event) in &self.log {
            if let EventKind::Chunk {
                stream: on, bytes, ..
            } = &event.kind
                && (event.connection, *on) == (key, stream)
            {
                all.extend_from_slice(bytes);
            }
        }
        all
    }

    pub(crate) fn opened(&self) -> Vec<(Duration, Key, bool)> {
        self.events(|kind| match kind {
            EventKind::Opened { confirmed, .. } => Some(*confirmed),
            _ => None,
        })
    }

    /// Runs for so long.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        self.run(until, |_| false);
        self.now = until;
    }

    /// Runs until something is so; panics when it is not within the time given.
    #[track_caller]
    pub(crate) fn run_until(&mut self, limit: Duration, done: impl FnMut(&Self) -> bool) {
        let until = self.now + limit;
        assert!(self.run(until, done), "did not happen within {limit:?}");
    }

    pub(crate) fn run(&mut self, until: Instant, mut done: impl FnMut(&Self) -> bool) -> bool {
        for client in 0..self.clients.len() {
            self.drive_client(client);
        }
        self.drive_server();
        loop {
            if done(self) {
                return true;
            }
            let flight = self.flights.peek().map(|Reverse(flight)| flight.at);
            let server = self.server.deadline();
            let clients = self
                .clients
                .iter_mut()
                .filter_map(|c| c.connection.poll_timeout())
                .min();
            let Some(next) = [flight, server, clients].into_iter().flatten().min() else {
                return false;
            };
            if next > until {
                return false;
            }
            assert!(self.turns < 2_000_000, "the world spins");
            self.now = self.now.max(next);
            self.step();
        }
    }

    fn step(&mut self) {
        let mut server_moved = false;
        let mut moved = BTreeSet::new();
        while let Some(Reverse(flight)) = self.flights.peek() {
            if flight.at > self.now {
                break;
            }
            let Some(Reverse(flight)) = self.flights.pop() else {
                break;
            };
            if flight.to_server {
                server_moved = true;
                // As from the socket: in a buffer of the server's.
                let guard = self.around_server.as_ref().map(|around| around());
                let bytes = BytesMut::from(&flight.bytes[..]);
                self.server
                    .datagram(self.now, None, flight.from, None, bytes);
                drop(guard);
            } else {
                moved.insert(flight.client);
                let client = &mut self.clients[flight.client];
                let mut response = Vec::new();
                if let Some(DatagramEvent::ConnectionEvent(_, event)) = client.endpoint.handle(
                    self.now,
                    self.server_address,
                    None,
                    None,
                    flight.bytes,
                    &mut response,
                ) {
                    client.connection.handle_event(event);
                }
            }
        }
        if self
            .server
            .deadline()
            .is_some_and(|deadline| deadline <= self.now)
        {
            let guard = self.around_server.as_ref().map(|around| around());
            self.server.timeout(self.now);
            drop(guard);
            server_moved = true;
        }
        if server_moved {
            self.drive_server();
        }
        for n in 0..self.clients.len() {
            let connection = &mut self.clients[n].connection;
            if connection
                .poll_timeout()
                .is_some_and(|deadline| deadline <= self.now)
            {
                connection.handle_timeout(self.now);
                moved.insert(n);
            }
        }
        for client in moved {
            self.drive_client(client);
        }
    }

    /// A turn of the shard.
    pub(crate) fn drive_server(&mut self) {
        loop {
            self.turns += 1;
            loop {
                let guard = self.around_server.as_ref().map(|around| around());
                let Some(event) = self.server.poll_event() else {
                    break;
                };
                (self.reaction)(&mut self.server, &event);
                drop(guard);
                self.log.push((self.now - self.start, event));
            }
            let mut parcels = Vec::new();
            let sends = &mut self.sends;
            let guard = self.around_server.as_ref().map(|around| around());
            self.server
                .transmit(self.now, self.segments, &mut self.buffer, &mut |out| {
                    *sends += 1;
                    let size = out.segment_bytes.unwrap_or(out.bytes.len());
                    for bytes in out.bytes.chunks(size) {
                        parcels.push((out.destination, BytesMut::from(bytes)));
                    }
                    Sent::Done
                });
            drop(guard);
            for (destination, bytes) in parcels {
                self.deliver_to_client(destination, &bytes);
            }
            if self
                .server
                .deadline()
                .is_none_or(|deadline| deadline > self.now)
            {
                break;
            }
            self.server.timeout(self.now);
        }
    }

    fn deliver_to_client(&mut self, destination: SocketAddr, bytes: &[u8]) {
        let Some(n) = self
            .clients
            .iter()
            .position(|client| client.address == destination)
        else {
            // An address that the client has left, or never was at.
            self.astray = (self.astray.0 + 1, self.astray.1 + bytes.len());
            *self.astray_to.entry(destination).or_default() += bytes.len();
            return;
        };
        let number = self.clients[n].down.0;
        self.clients[n].down.0 += 1;
        self.clients[n].down.1 += bytes.len();
        let crossing = Crossing {
            to_server: false,
            client: n,
            number,
            bytes,
        };
        let fate = (self.rule)(&crossing);
        self.launch(fate, false, n, self.server_address, bytes);
    }

    fn launch(
        &mut self,
        fate: Fate,
        to_server: bool,
        client: usize,
        from: SocketAddr,
        bytes: &[u8],
    ) {
        let (copies, extra) = match fate {
            Fate::Drop => return,
            Fate::Deliver => (1, Duration::ZERO),
            Fate::Late(extra) => (1, extra),
            Fate::Twice => (2, Duration::ZERO),
            Fate::Garbled(at) => {
                let mut garbled = bytes.to_vec();
                let at = at % garbled.len();
                garbled[at] ^= 0x55;
                return self.launch(Fate::Deliver, to_server, client, from, &garbled);
            }
        };
        for _ in 0..copies {
            self.flown += 1;
            self.flights.push(Reverse(Flight {
                at: self.now + self.delay + extra,
                number: self.flown,
                to_server,
                client,
                from,
                bytes: BytesMut::from(bytes),
            }));
        }
    }

    /// Injects a datagram as if it came from an address.
    pub(crate) fn inject(&mut self, from: SocketAddr, bytes: &[u8]) {
        self.launch(Fate::Deliver, true, 0, from, bytes);
    }

    pub(crate) fn drive_client(&mut self, n: usize) {
        let since_start = self.since_start();
        loop {
            let client = &mut self.clients[n];
            while let Some(event) = client.connection.poll_endpoint_events() {
                if let Some(answer) = client.endpoint.handle_event(client.handle, event) {
                    client.connection.handle_event(answer);
                }
            }
            while let Some(event) = client.connection.poll() {
                client.event(&event, since_start);
            }
            client.write_unsent();
            let mut buffer = Vec::new();
            let Some(transmit) = client.connection.poll_transmit(self.now, 1, &mut buffer) else {
                break;
            };
            let (from, number) = (client.address, client.up.0);
            client.up.0 += 1;
            client.up.1 += transmit.size;
            let bytes = &buffer[..transmit.size];
            let crossing = Crossing {
                to_server: true,
                client: n,
                number,
                bytes,
            };
            let fate = (self.rule)(&crossing);
            self.launch(fate, true, n, from, bytes);
        }
    }
}

impl Client {
    fn write_unsent(&mut self) {
        let connection = &mut self.connection;
        self.unsent.retain(|id, bytes| {
            while !bytes.is_empty() {
                match connection.send_stream(*id).write(bytes) {
                    Ok(written) => drop(bytes.drain(..written)),
                    Err(quinn_proto::WriteError::Blocked) => return true,
                    Err(_) => return false,
                }
            }
            false
        });
    }

    fn event(&mut self, event: &Event, at: Duration) {
        match event {
            Event::Connected => self.connected = Some(at),
            Event::ConnectionLost { reason } => self.lost = Some(reason.clone()),
            Event::DatagramReceived => {
                while let Some(bytes) = self.connection.datagrams().recv() {
                    self.datagrams.push(bytes);
                }
            }
            Event::Stream(StreamEvent::Opened { dir }) => {
                while let Some(id) = self.connection.streams().accept(*dir) {
                    self.read(id, at);
                }
            }
            Event::Stream(StreamEvent::Readable { id }) => self.read(*id, at),
            Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                self.stopped.insert((*id).into(), error_code.into_inner());
                let _ = self.connection.send_stream(*id).reset(*error_code);
            }
            _ => {}
        }
    }

    pub(crate) fn read(&mut self, id: ClientStreamId, at: Duration) {
        if !self.reads {
            return;
        }
        let mut stream = self.connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else {
            return;
        };
        let number = u64::from(id);
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => {
                    self.first_byte.entry(number).or_insert(at);
                    self.received
                        .entry(number)
                        .or_default()
                        .extend_from_slice(&chunk.bytes);
                }
                Ok(None) => {
                    self.finished.insert(number);
                    break;
                }
                Err(ReadError::Reset(code)) => {
                    self.reset.insert(number, code.into_inner());
                    break;
                }
                Err(ReadError::Blocked) => break,
            }
        }
        let _ = chunks.finalize();
    }
}

/// The handler of an echo server: sends back what comes, ends what ends.
pub(crate) fn echo(server: &mut Driver, event: &DriverEvent) {
    let key = event.connection;
    match &event.kind {
        EventKind::Chunk { stream, bytes, .. } if stream.is_bidirectional() => {
            server.send(key, *stream, bytes);
        }
        EventKind::Finished { stream } if stream.is_bidirectional() => server.finish(key, *stream),
        EventKind::Datagram { bytes, .. } => {
            server.send_datagram(key, bytes.clone());
        }
        _ => {}
    }
}
