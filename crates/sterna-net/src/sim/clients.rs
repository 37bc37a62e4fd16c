//! The clients' side, for scripts.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;

use super::link::{Fate, Link, Paused};
use super::world::{Action, Reason, World};
use super::{Settings, Simulation};
use crate::{CloseReason, ConnectionInfo, Handler, StreamId, TransportKind};

/// A client's connection; never used again after its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Client(u32);

/// Options of a client's connection.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The shard that gets the connection; `None`: any.
    pub shard: Option<usize>,
    /// The claimed transport of the connection. TCP, TLS and WebSocket have one stream; the others
    /// any number.
    pub transport: TransportKind,
    /// The application protocol that was negotiated.
    pub protocol: Vec<u8>,
    /// Index of the listener.
    pub listener: u16,
    /// The client's certificates in DER.
    pub certificates: Vec<Box<[u8]>>,
    /// Whether the connection opens before its handshake is confirmed, so that the first bytes are
    /// early data.
    pub early: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            shard: None,
            transport: TransportKind::Simulated,
            protocol: b"mqtt".to_vec(),
            listener: 0,
            certificates: Vec::new(),
            early: false,
        }
    }
}

impl<H: Handler> Simulation<H> {
    /// Connects a client. It can send at once; its bytes arrive after the server has seen the
    /// connection.
    pub fn connect(&mut self, options: ClientOptions) -> Client {
        let world = &mut self.world;
        let link = world.links.len() as u32;
        let shards = world.slots.len();
        let shard = options
            .shard
            .unwrap_or_else(|| world.random.below(shards as u64) as usize)
            % shards;
        let delay_up_us = world.draw(|settings| &settings.delay_us);
        let delay_down_us = world.draw(|settings| &settings.delay_us);
        let handshake_us = if options.early {
            delay_up_us
        } else {
            2 * delay_up_us + delay_down_us
        };
        // The grain of time must not let bytes come before the connection.
        let open_at_us =
            (world.now_us + handshake_us).next_multiple_of(world.settings.tick_us.max(1));
        let [.., a, b, c] = link.to_be_bytes();
        let peer = SocketAddr::from(([10, a, b, c], 40_000 + (link % 20_000) as u16));
        let mut target = Link {
            shard,
            id: None,
            info: ConnectionInfo {
                listener: options.listener,
                transport: options.transport,
                protocol: options.protocol.into(),
                peer,
                is_peer_proved: !options.early,
                peer_certificates: options.certificates.into(),
            },
            streams: BTreeMap::new(),
            confirmed: !options.early,
            opened: [0; 2],
            delay_up_us,
            delay_down_us,
            open_at_us,
            paused: Paused::default(),
            down_bytes: 0,
            up_bytes: 0,
            above: false,
            server_closing: None,
            client_closing: None,
            fate: Fate::Whole,
            client_closed: None,
            datagrams: Vec::new(),
            received_bytes: 0,
            sent_bytes: 0,
            migrations: 0,
        };
        if target.is_byte_stream() {
            target.streams.entry(StreamId::FIRST).or_default();
            target.opened = [1, 0];
        }
        world.links.push(target);
        world.schedule(open_at_us, Action::Open { link });
        if options.early {
            let confirmed_us = open_at_us + world.draw(|settings| &settings.confirm_us);
            world.schedule(confirmed_us, Action::Confirm { link });
        }
        Client(link)
    }

    fn link(&self, client: Client) -> &Link {
        &self.world.links[client.0 as usize]
    }

    /// The shard that has the connection.
    #[must_use]
    pub fn shard_of(&self, client: Client) -> usize {
        self.link(client).shard
    }

    /// The server's view of the connection.
    #[must_use]
    pub fn info(&self, client: Client) -> &ConnectionInfo {
        &self.link(client).info
    }

    /// Opens the next stream of the client's: bidirectional or unidirectional. The server learns of
    /// it with its first bytes or its end.
    pub fn open(&mut self, client: Client, bidirectional: bool) -> StreamId {
        let link = self.world.link(client.0);
        let direction = usize::from(!bidirectional);
        let stream = StreamId(link.opened[direction] * 4 + 2 * direction as u64);
        link.opened[direction] += 1;
        let opened = link.streams.entry(stream).or_default();
        opened.down.over = !bidirectional;
        stream
    }

    /// Sends bytes. [`StreamId::FIRST`] is opened by it; other streams must be open. Nothing happens
    /// on a connection that is closed.
    pub fn send(&mut self, client: Client, stream: StreamId, bytes: &[u8]) {
        if self.link(client).opened[0] == 0 && stream == StreamId::FIRST {
            self.open(client, true);
        }
        let link = self.world.link(client.0);
        if !link.is_open_to_client() {
            return;
        }
        let delay_us = link.delay_up_us;
        let Some(pipe) = link.streams.get_mut(&stream).map(|stream| &mut stream.up) else {
            return;
        };
        if pipe.over || pipe.finish || pipe.abort.is_some() {
            return;
        }
        pipe.bytes.extend(bytes);
        link.up_bytes += bytes.len();
        self.world.pump_up(client.0, stream, delay_us);
    }

    /// Sends an unreliable datagram.
    pub fn send_datagram(&mut self, client: Client, bytes: &[u8]) {
        let Settings {
            lost_datagrams_per_million,
            datagram_bytes,
            ..
        } = self.world.settings;
        let link = self.link(client);
        let carried = datagram_bytes.is_some_and(|largest| bytes.len() <= largest);
        if !link.is_open_to_client() || link.is_byte_stream() || !carried {
            return;
        }
        let earliest_us = link.open_at_us;
        let travel_us = link.delay_up_us + self.world.draw(|settings| &settings.gap_us);
        if !self.world.random.chance(lost_datagrams_per_million) {
            let at_us = (self.world.now_us + travel_us).max(earliest_us);
            let bytes = Bytes::copy_from_slice(bytes);
            self.world.schedule(
                at_us,
                Action::DatagramUp {
                    link: client.0,
                    bytes,
                },
            );
        }
    }

    /// Ends the client's side of a stream after the sent bytes.
    pub fn finish(&mut self, client: Client, stream: StreamId) {
        let link = self.world.link(client.0);
        let delay_us = link.delay_up_us;
        if !link.is_open_to_client() {
            return;
        }
        if let Some(stream) = link.streams.get_mut(&stream) {
            stream.up.finish = true;
        }
        if link.is_byte_stream() {
            self.world.limit_pause(client.0, 0);
        }
        self.world.pump_up(client.0, stream, delay_us);
    }

    /// Aborts both directions of a stream; undelivered bytes are lost. On a connection with one
    /// stream this is [`Simulation::cut`].
    pub fn abort(&mut self, client: Client, stream: StreamId, code: u64) {
        let link = self.world.link(client.0);
        if link.is_byte_stream() {
            self.world.cut(client.0);
            return;
        }
        let delay_us = link.delay_up_us;
        if !link.is_open_to_client() {
            return;
        }
        let Some(aborted) = link.streams.get_mut(&stream) else {
            return;
        };
        let lost_up = aborted.up.drop_bytes();
        aborted.up.finish = false;
        if !aborted.up.over {
            aborted.up.abort = Some(code);
        }
        aborted.down.over = true;
        let lost_down = aborted.down.drop_bytes();
        let is_relieved = std::mem::take(&mut aborted.watched);
        link.up_bytes -= lost_up;
        self.world.left_down(client.0, lost_down);
        self.world.pump_up(client.0, stream, delay_us);
        if is_relieved {
            let (at_us, link) = (self.world.now_us + delay_us, client.0);
            self.world.schedule(at_us, Action::Writable { link });
        }
        self.world.end_if_passed_on(client.0);
    }

    /// Closes in order: the server learns of it, with the code, after everything that was sent.
    pub fn close(&mut self, client: Client, code: u64) {
        let link = self.world.link(client.0);
        if !link.is_open_to_client() {
            return;
        }
        link.client_closing = Some(code);
        link.client_closed = Some(CloseReason::Local);
        self.world.limit_pause(client.0, code);
        self.world.end_if_passed_on(client.0);
    }

    /// Cuts the connection: bytes under way are lost from a random point on, and the server notices
    /// in its time.
    pub fn cut(&mut self, client: Client) {
        self.world.cut(client.0);
    }

    /// Stops or resumes reading at the client, so that the server feels it.
    pub fn pause(&mut self, client: Client, paused: bool) {
        self.world.link(client.0).paused.client = paused;
        if !paused {
            let streams: Vec<_> = self.link(client).streams.keys().copied().collect();
            for stream in streams {
                let gap_us = self.world.draw(|settings| &settings.gap_us);
                self.world.pump_down(client.0, stream, gap_us);
            }
        }
    }

    /// Moves the client to another address. On QUIC and the simulated transport the server learns of
    /// it after a round trip; byte streams cannot move.
    pub fn migrate(&mut self, client: Client, peer: SocketAddr) {
        let link = self.world.link(client.0);
        if link.is_byte_stream() {
            return;
        }
        // The client's next packet, the server's probe, and the answer to it.
        let delay_us = 2 * link.delay_up_us + link.delay_down_us;
        let action = Action::Migrate {
            link: client.0,
            peer,
        };
        let at_us = self.world.now_us + delay_us;
        self.world.schedule(at_us, action);
    }

    /// Received bytes of a stream that were not taken yet.
    #[must_use]
    pub fn received(&self, client: Client, stream: StreamId) -> &[u8] {
        self.link(client)
            .streams
            .get(&stream)
            .map_or(&[], |stream| &stream.inbox.bytes)
    }

    /// Takes the received bytes of a stream.
    pub fn take(&mut self, client: Client, stream: StreamId) -> Vec<u8> {
        let stream = self.world.link(client.0).streams.get_mut(&stream);
        stream.map_or_else(Vec::new, |stream| std::mem::take(&mut stream.inbox.bytes))
    }

    /// Takes the unreliable datagrams that arrived.
    pub fn take_datagrams(&mut self, client: Client) -> Vec<Bytes> {
        std::mem::take(&mut self.world.link(client.0).datagrams)
    }

    /// Streams on which something arrived, or that are open, lowest first.
    pub fn streams(&self, client: Client) -> impl Iterator<Item = StreamId> + '_ {
        self.link(client).streams.keys().copied()
    }

    /// Whether the server has ended its side of a stream, after everything it sent.
    #[must_use]
    pub fn has_finished(&self, client: Client, stream: StreamId) -> bool {
        self.link(client)
            .streams
            .get(&stream)
            .is_some_and(|stream| stream.inbox.finished)
    }

    /// The code with which the server aborted a stream.
    #[must_use]
    pub fn aborted(&self, client: Client, stream: StreamId) -> Option<u64> {
        self.link(client).streams.get(&stream)?.inbox.aborted
    }

    /// The client's reason for the end of the connection; `None` while it is open.
    #[must_use]
    pub fn closed(&self, client: Client) -> Option<&CloseReason> {
        self.link(client).client_closed.as_ref()
    }

    /// Bytes that the client sent and the server has not read.
    #[must_use]
    pub fn unread_bytes(&self, client: Client) -> usize {
        self.link(client).up_bytes
    }

    /// Whether the server still knows the connection.
    #[must_use]
    pub fn is_known(&self, client: Client) -> bool {
        self.link(client).id.is_some()
    }
}

impl World {
    /// Something happens to a client; returns which, if it can notice.
    pub(super) fn at_client(&mut self, action: Action) -> Option<Client> {
        match action {
            Action::Down { link, stream } => self.arrive_down(link, stream),
            Action::DatagramDown { link, bytes } => {
                let target = self.link(link);
                if target.client_closed.is_some() || target.fate == Fate::Cut {
                    return None;
                }
                target.datagrams.push(bytes);
                Some(Client(link))
            }
            Action::Linger { link } => {
                let target = self.link(link);
                let code = target.server_closing?;
                if target.id.is_some() {
                    self.end_from_server(link, code);
                }
                None
            }
            Action::HalfClosed { link, code } => {
                let (now_us, most_us) = (self.now_us, self.settings.half_closed_us);
                let target = self.link(link);
                let is_unread = target.fate == Fate::Whole && !target.is_up_empty();
                let until_us = target.paused.server_since_us + most_us;
                if is_unread && !target.paused.server {
                    self.schedule(now_us + most_us, Action::HalfClosed { link, code });
                } else if is_unread && now_us < until_us {
                    self.schedule(until_us, Action::HalfClosed { link, code });
                } else if is_unread {
                    target.fate = Fate::Ending;
                    let reason = Reason::Peer(code);
                    self.schedule(self.now_us, Action::End { link, reason });
                }
                None
            }
            Action::EndDown { link, reason } => {
                let target = self.link(link);
                if target.client_closed.is_some() {
                    return None;
                }
                target.client_closed = Some(reason.to_close_reason());
                Some(Client(link))
            }
            _ => unreachable!("these belong to shards"),
        }
    }

    fn arrive_down(&mut self, link: u32, stream: StreamId) -> Option<Client> {
        let largest = self.settings.chunk_bytes;
        let target = &mut self.links[link as usize];
        let cut = target.fate == Fate::Cut;
        let (paused, gone) = (target.paused.client, target.client_closed.is_some());
        let arrived = target.streams.get_mut(&stream)?;
        arrived.down.scheduled = false;
        if arrived.down.over || paused || cut {
            return None;
        }
        let bytes = Self::take_chunk(&mut self.random, largest, &mut arrived.down);
        let ends = arrived.down.bytes.is_empty();
        if !gone {
            arrived.inbox.bytes.extend_from_slice(&bytes);
        }
        let is_relieved = arrived.watched && arrived.down.bytes.len() <= self.settings.window_bytes;
        arrived.watched &= !is_relieved;
        if ends && let Some(code) = arrived.down.abort {
            arrived.inbox.aborted = Some(code);
            arrived.down.over = true;
        } else if ends && arrived.down.finish {
            arrived.inbox.finished = true;
            arrived.down.over = true;
        }
        self.left_down(link, bytes.len());
        if is_relieved {
            self.schedule(self.now_us, Action::Writable { link });
        }
        if self.random.chance(self.settings.cuts_per_million) {
            self.cut(link);
        }
        let gap_us = self.draw(|settings| &settings.gap_us);
        self.pump_down(link, stream, gap_us);
        self.end_if_passed_on(link);
        (!gone).then_some(Client(link))
    }
}
