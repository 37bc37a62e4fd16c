//! Connections to the broker under load: one readiness loop, one thread, every transport.
//!
//! Bytes that are read together are handed up together, and writes of a turn leave at its end. So
//! the generator costs less than the measured broker.

mod byte_link;
mod quic;
pub(super) mod target;
pub(super) mod tls;

use std::io;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};

use byte_link::ByteLink;
use quic::QuicLinks;
use sterna_client::{QuicOverrides, Tls};
use target::{Scheme, Target};

/// Readiness events taken from the kernel at once.
const EVENTS_PER_POLL: usize = 1024;
/// Size of the buffer that sockets are read into.
const READ_BYTES: usize = 128 * 1024;
/// Tokens from here on are UDP sockets; below are connections.
const UDP_TOKENS: usize = 1 << 32;

/// An event of a connection.
#[derive(Debug)]
pub(super) enum LinkEvent<'a> {
    /// The transport is ready for MQTT bytes.
    Open,
    /// MQTT bytes arrived.
    Bytes(&'a [u8]),
    /// The connection is gone; the text says why. Nothing follows.
    Closed(&'a str),
}

/// The receiver of the connections' events.
pub(super) trait Observer {
    /// `now` was read after the event arrived.
    fn link_event(&mut self, link: usize, event: LinkEvent<'_>, out: &mut Outbox, now: Instant);
}

/// Bytes on their way out, one buffer for each connection.
#[derive(Default)]
pub(super) struct Outbox {
    queues: Vec<Queue>,
    dirty: Vec<usize>,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    /// Each packet travels in a masked frame of its own (RFC 6455, section 5.2).
    mask: Option<[u8; 4]>,
    is_dirty: bool,
}

impl Outbox {
    /// Appends one whole MQTT packet.
    pub(super) fn packet(&mut self, link: usize, packet: &[u8]) {
        let queue = &mut self.queues[link];
        match queue.mask {
            None => queue.bytes.extend_from_slice(packet),
            Some(mask) => byte_link::frame(packet, mask, &mut queue.bytes),
        }
        self.mark(link);
    }

    /// Bytes that the transport has not taken yet.
    pub(super) fn pending_bytes(&self, link: usize) -> usize {
        self.queues[link].bytes.len()
    }

    fn mark(&mut self, link: usize) {
        let queue = &mut self.queues[link];
        if !queue.is_dirty {
            queue.is_dirty = true;
            self.dirty.push(link);
        }
    }

    fn bytes_mut(&mut self, link: usize) -> &mut Vec<u8> {
        &mut self.queues[link].bytes
    }
}

enum Slot {
    Free,
    Bytes(Box<ByteLink>),
    Quic,
}

/// The way to the broker.
pub(super) struct LinkOptions {
    /// Where.
    pub(super) target: Target,
    /// Trust in the broker, the client's identity, and whether to resume instead of full handshakes.
    pub(super) tls: Tls,
    /// A profile of QUIC and changes to it.
    pub(super) quic: QuicOverrides,
    /// All QUIC connections leave from one UDP socket instead of one each.
    pub(super) shared_udp_socket: bool,
    /// Ask the broker to acknowledge at most every N packets, if it can.
    pub(super) packets_per_ack: Option<u32>,
}

/// All connections of a run.
pub(super) struct Links {
    poll: Poll,
    events: Events,
    slots: Vec<Slot>,
    quic: Option<QuicLinks>,
    tls: Option<tls::ByteStreamTls>,
    target: Target,
    read_buffer: Vec<u8>,
}

impl Links {
    /// Prepares for up to `connections` connections at a time; opens none.
    pub(super) fn new(
        options: &LinkOptions,
        connections: usize,
        out: &mut Outbox,
    ) -> Result<Self, String> {
        out.queues.resize_with(connections, Queue::default);
        let target = options.target.clone();
        let poll = Poll::new().map_err(|e| format!("cannot create an event loop: {e}"))?;
        let (mut quic, mut tls) = (None, None);
        match target.scheme {
            Scheme::Quic => {
                quic = Some(QuicLinks::new(options, poll.registry())?);
            }
            Scheme::Tls | Scheme::SecureWebSocket => {
                tls = Some(tls::ByteStreamTls::new(options)?);
            }
            Scheme::Tcp | Scheme::WebSocket => {}
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(EVENTS_PER_POLL),
            slots: (0..connections).map(|_| Slot::Free).collect(),
            quic,
            tls,
            target,
            read_buffer: vec![0; READ_BYTES],
        })
    }

    /// Starts to connect. [`LinkEvent::Open`] or [`LinkEvent::Closed`] follows.
    pub(super) fn open(&mut self, link: usize, out: &mut Outbox, now: Instant) -> io::Result<()> {
        out.queues[link].bytes.clear();
        self.slots[link] = if let Some(quic) = &mut self.quic {
            quic.open(link, self.poll.registry(), now)?;
            Slot::Quic
        } else {
            let tls = self
                .tls
                .as_ref()
                .map(tls::ByteStreamTls::connection)
                .transpose()?;
            let new = ByteLink::connect(&self.target, tls, self.poll.registry(), Token(link))?;
            Slot::Bytes(Box::new(new))
        };
        Ok(())
    }

    /// Sends the queue and ends the connection without waiting for the peer; no event follows.
    pub(super) fn close(&mut self, link: usize, out: &mut Outbox, now: Instant) {
        match &mut self.slots[link] {
            Slot::Free => return,
            Slot::Bytes(bytes) => {
                bytes.close(out.bytes_mut(link), self.poll.registry());
            }
            Slot::Quic => {
                if let Some(quic) = &mut self.quic {
                    quic.close(link, out.bytes_mut(link), now);
                }
            }
        }
        self.slots[link] = Slot::Free;
    }

    /// Writes all queues of the turn.
    pub(super) fn flush(&mut self, observer: &mut impl Observer, out: &mut Outbox, now: Instant) {
        let mut dirty = std::mem::take(&mut out.dirty);
        for &link in &dirty {
            out.queues[link].is_dirty = false;
            match &mut self.slots[link] {
                Slot::Free => {}
                Slot::Bytes(bytes) => {
                    if let Err(why) = bytes.flush(out.bytes_mut(link)) {
                        self.slots[link] = Slot::Free;
                        observer.link_event(link, LinkEvent::Closed(&why), out, now);
                    }
                }
                Slot::Quic => {
                    if let Some(quic) = &mut self.quic {
                        quic.write(link, out.bytes_mut(link));
                    }
                }
            }
        }
        dirty.clear();
        if out.dirty.is_empty() {
            out.dirty = dirty; // keeps its capacity
        }
        if let Some(quic) = &mut self.quic {
            quic.transmit(now);
        }
    }

    /// Waits for at most `timeout` (forever without one) and hands over the input.
    pub(super) fn turn(
        &mut self,
        observer: &mut impl Observer,
        out: &mut Outbox,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let mut timeout = timeout;
        if let Some(quic) = &self.quic
            && let Some(deadline) = quic.deadline()
        {
            let left = deadline.saturating_duration_since(Instant::now());
            timeout = Some(timeout.map_or(left, |t| t.min(left)));
        }
        match self.poll.poll(&mut self.events, timeout) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in &self.events {
            let token = event.token().0;
            if token >= UDP_TOKENS {
                if let Some(quic) = &mut self.quic {
                    quic.socket_event(token - UDP_TOKENS, event);
                }
                continue;
            }
            let Slot::Bytes(link) = &mut self.slots[token] else {
                continue;
            };
            let result = link.ready(event, &mut self.read_buffer, &mut |event, now| {
                observer.link_event(token, event, out, now);
            });
            let result = match result {
                // Taken up here because opening sets the mask of the connection's frames.
                Ok(opened) => {
                    if opened {
                        out.queues[token].mask = link.mask();
                        observer.link_event(token, LinkEvent::Open, out, Instant::now());
                    }
                    if event.is_writable() && !out.queues[token].bytes.is_empty() {
                        out.mark(token);
                    }
                    Ok(())
                }
                Err(why) => Err(why),
            };
            if let Err(why) = result {
                self.slots[token] = Slot::Free;
                observer.link_event(token, LinkEvent::Closed(&why), out, Instant::now());
            }
        }
        if let Some(quic) = &mut self.quic {
            let slots = &mut self.slots;
            quic.process(self.poll.registry(), &mut |link, event, now| {
                if matches!(event, LinkEvent::Closed(_)) {
                    slots[link] = Slot::Free;
                }
                observer.link_event(link, event, out, now);
            });
            for link in quic.take_unblocked() {
                out.mark(link);
            }
        }
        Ok(())
    }

    /// Lets closed connections say good-bye, for at most `limit`.
    pub(super) fn finish(
        &mut self,
        observer: &mut impl Observer,
        out: &mut Outbox,
        limit: Duration,
    ) -> io::Result<()> {
        let end = Instant::now() + limit;
        while self.quic.as_ref().is_some_and(QuicLinks::is_lingering) && Instant::now() < end {
            self.flush(observer, out, Instant::now());
            self.turn(observer, out, Some(Duration::from_millis(5)))?;
        }
        if let Some(quic) = &mut self.quic {
            quic.end_all(self.poll.registry(), Instant::now());
        }
        Ok(())
    }
}
