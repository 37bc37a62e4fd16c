//! MQTT on one bidirectional stream of a QUIC connection, `quinn-proto` driven by hand.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use mio::event::Event as Readiness;
use mio::net::UdpSocket;
use mio::{Interest, Registry, Token};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    AckFrequencyConfig, ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, EndpointEvent, Event, StreamEvent, StreamId, TransportConfig, VarInt,
    WriteError,
};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};

use sterna_client::{QuicOverrides, QuicRole};

use super::tls::client_config;
use super::{LinkEvent, LinkOptions, UDP_TOKENS};

/// One receive buffer holds this much: the most that the kernel joins into one (UDP GRO).
const DATAGRAM_BUFFER_BYTES: usize = 64 * 1024;
/// Datagrams that are sent with one call (UDP GSO).
const MAX_SEGMENTS: usize = 32;
/// A closed connection waits this long for the broker to close first, so that DISCONNECT is read.
const LINGER: Duration = Duration::from_millis(100);
/// Keeps connections that are held for long from being taken for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Requested of the kernel for every socket; it grants at most its limit.
const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;

struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
    is_readable: bool,
}

struct QuicLink {
    connection: Connection,
    socket: usize,
    /// The link to report to; `None` once the load has closed the connection.
    link: Option<usize>,
    stream: Option<StreamId>,
    is_touched: bool,
    was_early: bool,
    /// The entry of this connection in the timer queue.
    timer: Option<Instant>,
    linger_until: Option<Instant>,
}

pub(super) struct QuicLinks {
    endpoint: Endpoint,
    config: ClientConfig,
    address: SocketAddr,
    name: String,
    sockets: Vec<Option<Socket>>,
    free_sockets: Vec<usize>,
    shares_socket: bool,
    /// Indexed by the endpoint's handles.
    connections: Vec<Option<Box<QuicLink>>>,
    /// From the load's numbers to handles.
    handles: Vec<usize>,
    touched: Vec<usize>,
    readable: Vec<usize>,
    early: Vec<usize>,
    unblocked: Vec<usize>,
    lingering: usize,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    receive_buffer: Vec<u8>,
    send_buffer: Vec<u8>,
}

type Sink<'a> = dyn FnMut(usize, LinkEvent<'_>, Instant) + 'a;

impl QuicLinks {
    pub(super) fn new(options: &LinkOptions, registry: &Registry) -> Result<Self, String> {
        let (target, shares_socket) = (&options.target, options.shared_udp_socket);
        let tls = client_config(options, &[b"mqtt"])?;
        let crypto = QuicClientConfig::try_from(tls).map_err(|e| format!("cannot set up: {e}"))?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        let mut endpoint = EndpointConfig::default();
        let mut transport = if options.quic == QuicOverrides::default() {
            let mut transport = TransportConfig::default();
            transport
                .max_idle_timeout(None)
                .keep_alive_interval(Some(KEEP_ALIVE));
            transport
        } else {
            let settings = options.quic.settings();
            endpoint
                .max_udp_payload_size(settings.max_received_payload_bytes)
                .map_err(|error| format!("--quic-set: {error}"))?;
            settings
                .transport_config(QuicRole::Client)
                .map_err(|problems| format!("--quic-set: {}", problems.join("; ")))?
        };
        if let Some(packets) = options.packets_per_ack {
            let mut asked = AckFrequencyConfig::default();
            // The threshold counts those that stay unacknowledged.
            asked.ack_eliciting_threshold(VarInt::from_u32(packets.saturating_sub(1)));
            transport.ack_frequency_config(Some(asked));
        }
        config.transport_config(Arc::new(transport));
        let mut this = Self {
            endpoint: Endpoint::new(Arc::new(endpoint), None, true, None),
            config,
            address: target.address,
            name: target.name.clone(),
            sockets: Vec::new(),
            free_sockets: Vec::new(),
            shares_socket,
            connections: Vec::new(),
            handles: Vec::new(),
            touched: Vec::new(),
            readable: Vec::new(),
            early: Vec::new(),
            unblocked: Vec::new(),
            lingering: 0,
            timers: BinaryHeap::new(),
            receive_buffer: vec![0; BATCH_SIZE * DATAGRAM_BUFFER_BYTES],
            send_buffer: Vec::with_capacity(MAX_SEGMENTS * 1500),
        };
        if shares_socket {
            this.socket(registry)
                .map_err(|e| format!("cannot open a UDP socket: {e}"))?;
        }
        Ok(this)
    }

    fn socket(&mut self, registry: &Registry) -> io::Result<usize> {
        let any: SocketAddr = if self.address.is_ipv4() {
            (Ipv4Addr::UNSPECIFIED, 0).into()
        } else {
            (Ipv6Addr::UNSPECIFIED, 0).into()
        };
        let mut io = UdpSocket::bind(any)?;
        let state = UdpSocketState::new((&io).into())?;
        // Best effort: a small buffer costs retransmissions, not correctness.
        let _ = state.set_recv_buffer_size((&io).into(), SOCKET_BUFFER_BYTES);
        let index = self.free_sockets.pop().unwrap_or_else(|| {
            self.sockets.push(None);
            self.sockets.len() - 1
        });
        registry.register(&mut io, Token(UDP_TOKENS + index), Interest::READABLE)?;
        self.sockets[index] = Some(Socket {
            io,
            state,
            is_readable: false,
        });
        Ok(index)
    }

    pub(super) fn open(
        &mut self,
        link: usize,
        registry: &Registry,
        now: Instant,
    ) -> io::Result<()> {
        let socket = if self.shares_socket {
            0
        } else {
            self.socket(registry)?
        };
        let (handle, mut connection) = self
            .endpoint
            .connect(now, self.config.clone(), self.address, &self.name)
            .map_err(io::Error::other)?;
        let mut stream = None;
        if connection.has_0rtt() {
            stream = connection.streams().open(Dir::Bi);
            self.early.push(handle.0);
        }
        if self.connections.len() <= handle.0 {
            self.connections.resize_with(handle.0 + 1, || None);
        }
        if self.handles.len() <= link {
            self.handles.resize(link + 1, usize::MAX);
        }
        self.connections[handle.0] = Some(Box::new(QuicLink {
            connection,
            socket,
            link: Some(link),
            was_early: stream.is_some(),
            stream,
            is_touched: false,
            timer: None,
            linger_until: None,
        }));
        self.handles[link] = handle.0;
        self.touch(handle.0);
        Ok(())
    }

    fn touch(&mut self, handle: usize) {
        if let Some(Some(link)) = self.connections.get_mut(handle)
            && !link.is_touched
        {
            link.is_touched = true;
            self.touched.push(handle);
        }
    }

    /// Notes the readiness of a socket.
    pub(super) fn socket_event(&mut self, index: usize, event: &Readiness) {
        if event.is_readable()
            && let Some(Some(socket)) = self.sockets.get_mut(index)
            && !socket.is_readable
        {
            socket.is_readable = true;
            self.readable.push(index);
        }
    }

    /// Moves bytes into the stream as far as flow control lets it.
    pub(super) fn write(&mut self, link: usize, out: &mut Vec<u8>) {
        let handle = self.handles[link];
        let Some(Some(quic)) = self.connections.get_mut(handle) else {
            return;
        };
        let Some(stream) = quic.stream else { return };
        let mut written = 0;
        while written < out.len() {
            match quic.connection.send_stream(stream).write(&out[written..]) {
                Ok(count) => written += count,
                Err(WriteError::Blocked) => break,
                // The end of the connection is reported by its own event.
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => written = out.len(),
            }
        }
        out.drain(..written);
        self.touch(handle);
    }

    pub(super) fn close(&mut self, link: usize, out: &mut Vec<u8>, now: Instant) {
        self.write(link, out);
        let handle = self.handles[link];
        let Some(Some(quic)) = self.connections.get_mut(handle) else {
            return;
        };
        quic.link = None;
        quic.linger_until = Some(now + LINGER);
        self.lingering += 1;
        if let Some(stream) = quic.stream {
            // Fails only if the stream is already closed, which is the aim.
            let _ = quic.connection.send_stream(stream).finish();
        }
        self.touch(handle);
    }

    /// Whether closed connections still wait for their peers.
    pub(super) fn is_lingering(&self) -> bool {
        self.lingering > 0
    }

    /// Connections with room to write again since the last call.
    pub(super) fn take_unblocked(&mut self) -> impl Iterator<Item = usize> + '_ {
        self.unblocked.drain(..)
    }

    /// When [`Self::process`] has to run next without input.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((when, _))| *when)
    }

    /// Reads all sockets that are readable, serves the timers, and reports.
    pub(super) fn process(&mut self, registry: &Registry, sink: &mut Sink<'_>) {
        self.receive();
        let now = Instant::now();
        self.expire(registry, now);
        for handle in std::mem::take(&mut self.early) {
            if let Some(Some(quic)) = self.connections.get(handle)
                && let Some(link) = quic.link
            {
                sink(link, LinkEvent::Open, now);
            }
        }
        let mut index = 0;
        while let Some(&handle) = self.touched.get(index) {
            index += 1;
            self.report(handle, registry, now, sink);
        }
    }

    fn receive(&mut self) {
        let mut readable = std::mem::take(&mut self.readable);
        for &index in &readable {
            let mut metas = [RecvMeta::default(); BATCH_SIZE];
            while let Some(Some(socket)) = self.sockets.get_mut(index) {
                socket.is_readable = false;
                let mut chunks = self.receive_buffer.chunks_mut(DATAGRAM_BUFFER_BYTES);
                let mut buffers: [IoSliceMut<'_>; BATCH_SIZE] =
                    std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
                let count = match socket
                    .state
                    .recv((&socket.io).into(), &mut buffers, &mut metas)
                {
                    Ok(count) => count,
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    // Nothing left, or an ICMP error that QUIC's own timers deal with.
                    Err(_) => break,
                };
                let now = Instant::now();
                for (slot, meta) in metas.iter().enumerate().take(count) {
                    let start = slot * DATAGRAM_BUFFER_BYTES;
                    let mut data = BytesMut::from(&self.receive_buffer[start..start + meta.len]);
                    while !data.is_empty() {
                        let datagram = data.split_to(meta.stride.min(data.len()));
                        self.send_buffer.clear();
                        let event = self.endpoint.handle(
                            now,
                            meta.addr,
                            meta.dst_ip,
                            meta.ecn
                                .and_then(|e| quinn_proto::EcnCodepoint::from_bits(e as u8)),
                            datagram,
                            &mut self.send_buffer,
                        );
                        if let Some(DatagramEvent::ConnectionEvent(handle, event)) = event
                            && let Some(Some(quic)) = self.connections.get_mut(handle.0)
                        {
                            quic.connection.handle_event(event);
                            if !quic.is_touched {
                                quic.is_touched = true;
                                self.touched.push(handle.0);
                            }
                        }
                    }
                }
                // A short batch has emptied the socket; later datagrams raise a new edge.
                if count < BATCH_SIZE {
                    break;
                }
            }
        }
        readable.clear();
        self.readable = readable;
    }

    fn expire(&mut self, registry: &Registry, now: Instant) {
        while let Some(&Reverse((when, handle))) = self.timers.peek()
            && when <= now
        {
            self.timers.pop();
            let Some(Some(quic)) = self.connections.get_mut(handle) else {
                continue;
            };
            if quic.timer != Some(when) {
                continue;
            }
            quic.timer = None;
            if quic.linger_until.is_some_and(|until| until <= now) {
                self.end(handle, registry, now);
                continue;
            }
            if quic.connection.poll_timeout().is_some_and(|t| t <= now) {
                quic.connection.handle_timeout(now);
            }
            self.touch(handle);
        }
    }

    /// Polls a connection's events.
    fn report(&mut self, handle: usize, registry: &Registry, now: Instant, sink: &mut Sink<'_>) {
        let Some(Some(quic)) = self.connections.get_mut(handle) else {
            return;
        };
        while let Some(event) = quic.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(ConnectionHandle(handle), event) {
                quic.connection.handle_event(event);
            }
        }
        let mut lost = None;
        while let Some(event) = quic.connection.poll() {
            match event {
                Event::Connected => {
                    if quic.was_early && quic.connection.accepted_0rtt() {
                        continue;
                    }
                    quic.stream = quic.connection.streams().open(Dir::Bi);
                    if let Some(link) = quic.link {
                        match quic.stream {
                            Some(_) => sink(link, LinkEvent::Open, now),
                            None => lost = Some("the broker allows no stream".to_owned()),
                        }
                    }
                }
                Event::ConnectionLost { reason } => lost = Some(reason.to_string()),
                Event::Stream(StreamEvent::Readable { id }) if Some(id) == quic.stream => {
                    let mut stream = quic.connection.recv_stream(id);
                    let Ok(mut chunks) = stream.read(true) else {
                        continue;
                    };
                    loop {
                        match chunks.next(usize::MAX) {
                            Ok(Some(chunk)) => {
                                if let Some(link) = quic.link {
                                    sink(link, LinkEvent::Bytes(&chunk.bytes), now);
                                }
                            }
                            Ok(None) => {
                                lost = Some("the broker ended the stream".to_owned());
                                break;
                            }
                            Err(quinn_proto::ReadError::Blocked) => break,
                            Err(e) => {
                                lost = Some(format!("stream {e}"));
                                break;
                            }
                        }
                    }
                    let _ = chunks.finalize();
                }
                Event::Stream(StreamEvent::Writable { .. }) => self.unblocked.extend(quic.link),
                Event::Stream(StreamEvent::Stopped { error_code, .. }) => {
                    lost = Some(format!(
                        "the broker stopped the stream with code {error_code}"
                    ));
                }
                _ => {}
            }
        }
        if let Some(why) = lost {
            let link = quic.link;
            self.end(handle, registry, now);
            if let Some(link) = link {
                sink(link, LinkEvent::Closed(&why), now);
            }
        }
    }

    /// Says good-bye in one packet and forgets the connection.
    fn end(&mut self, handle: usize, registry: &Registry, now: Instant) {
        let Some(Some(quic)) = self.connections.get_mut(handle) else {
            return;
        };
        if quic.linger_until.is_some() {
            self.lingering -= 1;
        }
        if !quic.connection.is_closed() {
            quic.connection
                .close(now, VarInt::from_u32(0), bytes::Bytes::new());
        }
        self.transmit_one(handle, now);
        let Some(Some(quic)) = self.connections.get_mut(handle) else {
            return;
        };
        let socket = quic.socket;
        self.endpoint
            .handle_event(ConnectionHandle(handle), EndpointEvent::drained());
        self.connections[handle] = None;
        if !self.shares_socket
            && let Some(mut socket_held) = self.sockets[socket].take()
        {
            // The socket closes here in any case.
            let _ = registry.deregister(&mut socket_held.io);
            self.free_sockets.push(socket);
        }
    }

    /// Ends all waiting connections.
    pub(super) fn end_all(&mut self, registry: &Registry, now: Instant) {
        for handle in 0..self.connections.len() {
            self.end(handle, registry, now);
        }
    }

    /// Sends the datagrams of the touched connections and sets their timers.
    pub(super) fn transmit(&mut self, now: Instant) {
        let mut touched = std::mem::take(&mut self.touched);
        for &handle in &touched {
            if let Some(Some(quic)) = self.connections.get_mut(handle) {
                quic.is_touched = false;
            }
            self.transmit_one(handle, now);
        }
        touched.clear();
        self.touched = touched;
    }

    fn transmit_one(&mut self, handle: usize, now: Instant) {
        let Some(Some(quic)) = self.connections.get_mut(handle) else {
            return;
        };
        let Some(Some(socket)) = self.sockets.get(quic.socket) else {
            return;
        };
        let segments = socket.state.max_gso_segments().min(MAX_SEGMENTS);
        loop {
            self.send_buffer.clear();
            let Some(transmit) =
                quic.connection
                    .poll_transmit(now, segments, &mut self.send_buffer)
            else {
                break;
            };
            let transmit = Transmit {
                destination: transmit.destination,
                ecn: transmit
                    .ecn
                    .and_then(|e| quinn_udp::EcnCodepoint::from_bits(e as u8)),
                contents: &self.send_buffer[..transmit.size],
                segment_size: transmit.segment_size,
                src_ip: transmit.src_ip,
            };
            // A datagram that the kernel has no room for counts as lost, and QUIC repeats it.
            let _ = socket.state.send((&socket.io).into(), &transmit);
        }
        let due = quic.connection.poll_timeout();
        let due = match (due, quic.linger_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        // An entry that is earlier than needed only costs a look when it is due.
        if let Some(due) = due
            && quic.timer.is_none_or(|timer| due < timer)
        {
            quic.timer = Some(due);
            self.timers.push(Reverse((due, handle)));
        }
    }
}
