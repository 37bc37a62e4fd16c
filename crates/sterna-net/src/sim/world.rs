//! The simulated network itself: links, time and pending events.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use bytes::Bytes;

use super::link::{Fate, Link, Pipe};
use super::{Random, Settings};
use crate::{CloseReason, ConnectionId, ConnectionInfo, Network, PathStatistics, StreamId};

/// Something that is going to happen.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    /// The server is told of a connection.
    Open { link: u32 },
    /// The connection's handshake is confirmed.
    Confirm { link: u32 },
    /// Some bytes of a stream, or its end, arrive at the server.
    Up { link: u32, stream: StreamId },
    /// Some bytes of a stream, or its end, arrive at the client.
    Down { link: u32, stream: StreamId },
    /// A datagram arrives at the server.
    DatagramUp { link: u32, bytes: Bytes },
    /// A datagram arrives at the client.
    DatagramDown { link: u32, bytes: Bytes },
    /// The client's address has changed.
    Migrate { link: u32, peer: SocketAddr },
    /// A connection can take more.
    Writable { link: u32 },
    /// A closed connection has had its time.
    Linger { link: u32 },
    /// The client's side has ended, and a pause of the server may hide it no longer.
    HalfClosed { link: u32, code: u64 },
    /// The server learns that a connection is over.
    End { link: u32, reason: Reason },
    /// The client learns that a connection is over.
    EndDown { link: u32, reason: Reason },
    /// Letters arrive.
    Mail { from: usize, to: usize },
    /// A handler's deadline.
    Wake { shard: usize },
}

/// Why a connection ended, in a form that can be ordered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    Local,
    Peer(u64),
    TimedOut,
    Reset,
}

impl Reason {
    pub(super) fn to_close_reason(&self) -> CloseReason {
        match self {
            Self::Local => CloseReason::Local,
            Self::Peer(code) => CloseReason::Peer { code: *code },
            Self::TimedOut => CloseReason::TimedOut,
            Self::Reset => CloseReason::Failed("the simulated network cut it".to_owned()),
        }
    }
}

/// A shard's slots for connections.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<(u32, Option<u32>)>,
    free: VecDeque<u32>,
}

impl Slots {
    pub(super) fn take(&mut self, link: u32) -> ConnectionId {
        let slot = self.free.pop_front().unwrap_or_else(|| {
            self.slots.push((0, None));
            (self.slots.len() - 1) as u32
        });
        let (generation, holder) = &mut self.slots[slot as usize];
        *holder = Some(link);
        ConnectionId {
            slot,
            generation: *generation,
        }
    }

    pub(super) fn give_back(&mut self, id: ConnectionId) {
        let (generation, holder) = &mut self.slots[id.slot as usize];
        *generation += 1;
        *holder = None;
        self.free.push_back(id.slot);
    }

    fn link(&self, id: ConnectionId) -> Option<u32> {
        let (generation, link) = self.slots.get(id.slot as usize)?;
        link.filter(|_| *generation == id.generation)
    }
}

/// Everything but the handlers.
#[derive(Debug)]
pub(super) struct World {
    pub(super) settings: Settings,
    pub(super) random: Random,
    pub(super) now_us: u64,
    pub(super) links: Vec<Link>,
    pub(super) slots: Vec<Slots>,
    agenda: BinaryHeap<Reverse<(u64, u64, Action)>>,
    scheduled: u64,
    /// A digest of everything that handlers were told.
    pub(super) fingerprint: u64,
}

impl World {
    pub(super) fn new(seed: u64, settings: Settings, shards: usize) -> Self {
        Self {
            settings,
            random: Random::new(seed),
            now_us: 0,
            links: Vec::new(),
            slots: (0..shards).map(|_| Slots::default()).collect(),
            agenda: BinaryHeap::new(),
            scheduled: 0,
            fingerprint: seed,
        }
    }

    pub(super) const fn now_ms(&self) -> u64 {
        self.settings.start_ms + self.now_us / 1_000
    }

    // --- The agenda ------------------------------------------------------------------------------

    /// Has something happen; things of the same moment happen in the order in which they were
    /// scheduled.
    pub(super) fn schedule(&mut self, at_us: u64, action: Action) {
        let at_us = at_us
            .max(self.now_us)
            .next_multiple_of(self.settings.tick_us.max(1));
        self.scheduled += 1;
        self.agenda.push(Reverse((at_us, self.scheduled, action)));
    }

    pub(super) fn draw(&mut self, range: impl FnOnce(&Settings) -> &RangeInclusive<u64>) -> u64 {
        self.random.within(range(&self.settings))
    }

    pub(super) fn next(&self) -> Option<(u64, &Action)> {
        self.agenda
            .peek()
            .map(|Reverse((at_us, _, action))| (*at_us, action))
    }

    pub(super) fn pop(&mut self) -> Option<Action> {
        let Reverse((at_us, _, action)) = self.agenda.pop()?;
        self.now_us = self.now_us.max(at_us);
        Some(action)
    }

    /// The shard whose turn an action belongs to; `None`: the client's.
    pub(super) fn shard_of(&self, action: &Action) -> Option<usize> {
        match action {
            Action::Down { .. }
            | Action::DatagramDown { .. }
            | Action::EndDown { .. }
            | Action::HalfClosed { .. }
            | Action::Linger { .. } => None,
            Action::Open { link }
            | Action::Confirm { link }
            | Action::Up { link, .. }
            | Action::DatagramUp { link, .. }
            | Action::Migrate { link, .. }
            | Action::Writable { link }
            | Action::End { link, .. } => Some(self.links[*link as usize].shard),
            Action::Mail { to, .. } => Some(*to),
            Action::Wake { shard } => Some(*shard),
        }
    }

    /// Mixes something that a handler was told into the fingerprint.
    pub(super) fn note(&mut self, values: &[u64], bytes: &[u8]) {
        let mut digest = self.fingerprint ^ self.now_us;
        let mut mix = |value: u64| {
            digest = (digest ^ value)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23);
        };
        values.iter().copied().for_each(&mut mix);
        for byte in bytes {
            mix(u64::from(*byte));
        }
        self.fingerprint = digest;
    }

    // --- Bytes on their way ----------------------------------------------------------------------

    pub(super) fn link(&mut self, link: u32) -> &mut Link {
        &mut self.links[link as usize]
    }

    /// Has the bytes of a stream arrive at the server, if there are any and it reads.
    pub(super) fn pump_up(&mut self, link: u32, stream: StreamId, delay_us: u64) {
        let now_us = self.now_us;
        let target = &mut self.links[link as usize];
        if target.paused.server {
            return;
        }
        let Some(pipe) = target.streams.get_mut(&stream).map(|stream| &mut stream.up) else {
            return;
        };
        if pipe.is_loaded() && !pipe.scheduled {
            pipe.scheduled = true;
            let at_us = (now_us + delay_us).max(target.open_at_us);
            self.schedule(at_us, Action::Up { link, stream });
        }
    }

    /// Has the bytes of a stream arrive at the client, if there are any and it reads.
    pub(super) fn pump_down(&mut self, link: u32, stream: StreamId, delay_us: u64) {
        let at_us = self.now_us + delay_us;
        let target = &mut self.links[link as usize];
        if target.paused.client || target.fate == Fate::Cut {
            return;
        }
        let Some(pipe) = target
            .streams
            .get_mut(&stream)
            .map(|stream| &mut stream.down)
        else {
            return;
        };
        if pipe.is_loaded() && !pipe.scheduled {
            pipe.scheduled = true;
            self.schedule(at_us, Action::Down { link, stream });
        }
    }

    /// Takes a random number of bytes that arrive together.
    pub(super) fn take_chunk(random: &mut Random, largest: usize, pipe: &mut Pipe) -> Vec<u8> {
        let available = pipe.bytes.len().min(largest.max(1)) as u64;
        // Often all there is, as on a quiet network; otherwise any part of it.
        let length = if available == 0 || random.chance(500_000) {
            available
        } else {
            1 + random.below(available)
        };
        pipe.bytes.drain(..length as usize).collect()
    }

    /// Nothing gets through any more; both sides learn of it in time.
    pub(super) fn cut(&mut self, link: u32) {
        let target = &mut self.links[link as usize];
        if target.fate == Fate::Cut {
            return;
        }
        let ending = target.fate == Fate::Ending;
        target.fate = Fate::Cut;
        if target.client_closed.is_none() {
            target.client_closed = Some(Reason::Reset.to_close_reason());
        }
        // Bytes on their way may get lost from any point on.
        let streams: Vec<_> = target.streams.keys().copied().collect();
        for stream in streams {
            let random = &mut self.random;
            let target = &mut self.links[link as usize];
            if let Some(pipe) = target.streams.get_mut(&stream).map(|stream| &mut stream.up) {
                let kept = random.below(pipe.bytes.len() as u64 + 1) as usize;
                if kept < pipe.bytes.len() {
                    target.up_bytes -= pipe.bytes.len() - kept;
                    pipe.bytes.truncate(kept);
                    pipe.finish = false;
                    pipe.abort = None;
                }
            }
        }
        if !ending {
            let target = &self.links[link as usize];
            let opens_at_us = target.open_at_us;
            let noticed_us = self.now_us + self.draw(|settings| &settings.cut_us);
            let reason = if self.random.chance(500_000) {
                Reason::TimedOut
            } else {
                Reason::Reset
            };
            self.schedule(noticed_us.max(opens_at_us), Action::End { link, reason });
        }
    }

    /// Limits how long a pause of the server may hide that the client has ended its side.
    pub(super) fn limit_pause(&mut self, link: u32, code: u64) {
        let target = &self.links[link as usize];
        let arrives_us = (self.now_us + target.delay_up_us).max(target.open_at_us);
        let at_us = arrives_us + self.settings.half_closed_us;
        self.schedule(at_us, Action::HalfClosed { link, code });
    }

    /// Ends a connection that one side closes and that has passed on everything.
    pub(super) fn end_if_passed_on(&mut self, link: u32) {
        let now_us = self.now_us;
        let target = &self.links[link as usize];
        if target.fate != Fate::Whole {
            return;
        }
        if let Some(code) = target.server_closing {
            if target.is_down_empty() {
                self.end_from_server(link, code);
            }
        } else if let Some(code) = target.client_closing
            && target.is_up_empty()
        {
            let at_us = (now_us + target.delay_up_us).max(target.open_at_us);
            self.link(link).fate = Fate::Ending;
            self.schedule(
                at_us,
                Action::End {
                    link,
                    reason: Reason::Peer(code),
                },
            );
        }
    }

    /// Ends a connection that the server has closed.
    pub(super) fn end_from_server(&mut self, link: u32, code: u64) {
        let target = &mut self.links[link as usize];
        if target.fate == Fate::Whole {
            target.fate = Fate::Ending;
        }
        // The first end counts.
        let delay_us = target.delay_down_us;
        self.schedule(
            self.now_us,
            Action::End {
                link,
                reason: Reason::Local,
            },
        );
        self.schedule(
            self.now_us + delay_us,
            Action::EndDown {
                link,
                reason: Reason::Peer(code),
            },
        );
    }

    /// Takes note that bytes towards the client have left.
    pub(super) fn left_down(&mut self, link: u32, bytes: usize) {
        let (window, low) = (
            self.settings.window_bytes,
            self.settings.low_watermark_bytes,
        );
        let now_us = self.now_us;
        let target = &mut self.links[link as usize];
        target.down_bytes -= bytes;
        if target.above && target.unsent_bytes(window) < low {
            target.above = false;
            self.schedule(now_us, Action::Writable { link });
        }
    }
}

/// The network as one shard's handler sees it.
pub(super) struct Port<'a> {
    pub(super) world: &'a mut World,
    pub(super) shard: usize,
}

impl Port<'_> {
    fn find(&self, connection: ConnectionId) -> Option<u32> {
        self.world.slots[self.shard].link(connection)
    }

    /// The link of a connection that the handler may still use.
    fn usable(&self, connection: ConnectionId) -> Option<u32> {
        let link = self.find(connection)?;
        self.world.links[link as usize].is_usable().then_some(link)
    }

    /// Whether the server may send on a stream of the link; server-opened ones come into being.
    fn sendable(&mut self, link: u32, stream: StreamId) -> bool {
        let target = self.world.link(link);
        if target.is_byte_stream() && stream != StreamId::FIRST {
            return false;
        }
        if stream.is_client_initiated() {
            stream.is_bidirectional()
                && target.streams.get(&stream).is_some_and(|stream| {
                    !stream.down.over && !stream.down.finish && stream.down.abort.is_none()
                })
        } else {
            let stream = target.streams.entry(stream).or_default();
            !stream.down.over && !stream.down.finish && stream.down.abort.is_none()
        }
    }
}

impl Network for Port<'_> {
    fn now_ms(&self) -> u64 {
        self.world.now_ms()
    }

    fn info(&self, connection: ConnectionId) -> Option<&ConnectionInfo> {
        let link = self.find(connection)?;
        Some(&self.world.links[link as usize].info)
    }

    fn send(&mut self, connection: ConnectionId, stream: StreamId, bytes: &[u8]) {
        let Some(link) = self.usable(connection) else {
            return;
        };
        if !self.sendable(link, stream) {
            return;
        }
        let (window, high) = (
            self.world.settings.window_bytes,
            self.world.settings.high_watermark_bytes,
        );
        let target = self.world.link(link);
        let delay_us = target.delay_down_us;
        if let Some(stream) = target.streams.get_mut(&stream) {
            stream.down.bytes.extend(bytes);
            target.down_bytes += bytes.len();
            target.sent_bytes += bytes.len() as u64;
        }
        target.above |= target.unsent_bytes(window) > high;
        self.world.pump_down(link, stream, delay_us);
    }

    fn send_shared(&mut self, connection: ConnectionId, stream: StreamId, bytes: Bytes) {
        self.send(connection, stream, &bytes);
    }

    fn datagram_bytes(&mut self, connection: ConnectionId) -> usize {
        let largest = self.world.settings.datagram_bytes;
        match self.usable(connection) {
            Some(link) if !self.world.link(link).is_byte_stream() => largest.unwrap_or(0),
            _ => 0,
        }
    }

    fn send_datagram(&mut self, connection: ConnectionId, bytes: Bytes) -> bool {
        let Some(link) = self.usable(connection) else {
            return false;
        };
        let largest = self.world.settings.datagram_bytes;
        if self.world.link(link).is_byte_stream() || largest.is_none_or(|max| bytes.len() > max) {
            return false;
        }
        if !self
            .world
            .random
            .chance(self.world.settings.lost_datagrams_per_million)
        {
            let jitter_us = self.world.draw(|settings| &settings.gap_us);
            let at_us = self.world.now_us + self.world.link(link).delay_down_us + jitter_us;
            self.world
                .schedule(at_us, Action::DatagramDown { link, bytes });
        }
        true
    }

    fn unsent_bytes(&self, connection: ConnectionId) -> usize {
        let window = self.world.settings.window_bytes;
        self.find(connection).map_or(0, |link| {
            self.world.links[link as usize].unsent_bytes(window)
        })
    }

    fn unsent_on(&self, connection: ConnectionId, stream: StreamId) -> usize {
        let window = self.world.settings.window_bytes;
        let link = self.find(connection);
        let stream = link.and_then(|link| self.world.links[link as usize].streams.get(&stream));
        stream.map_or(0, |stream| stream.down.bytes.len().saturating_sub(window))
    }

    fn watch(&mut self, connection: ConnectionId, stream: StreamId) {
        let Some(link) = self.usable(connection) else {
            return;
        };
        let window = self.world.settings.window_bytes;
        let target = self.world.link(link);
        match target.streams.get_mut(&stream) {
            Some(stream) if stream.down.bytes.len() > window => stream.watched = true,
            _ => {
                let now_us = self.world.now_us;
                self.world.schedule(now_us, Action::Writable { link });
            }
        }
    }

    fn finish(&mut self, connection: ConnectionId, stream: StreamId) {
        let Some(link) = self.usable(connection) else {
            return;
        };
        if !self.sendable(link, stream) {
            return;
        }
        let target = self.world.link(link);
        let delay_us = target.delay_down_us;
        if let Some(stream) = target.streams.get_mut(&stream) {
            stream.down.finish = true;
        }
        self.world.pump_down(link, stream, delay_us);
    }

    fn abort(&mut self, connection: ConnectionId, stream: StreamId, code: u64) {
        let Some(link) = self.usable(connection) else {
            return;
        };
        let target = self.world.link(link);
        if target.is_byte_stream() {
            target.server_closing = Some(code);
            self.world.end_from_server(link, code);
            return;
        }
        self.reset(connection, stream, code);
        self.stop(connection, stream, code);
    }

    fn reset(&mut self, connection: ConnectionId, stream: StreamId, code: u64) {
        let Some(link) = self.usable(connection) else {
            return;
        };
        let target = self.world.link(link);
        if target.is_byte_stream() {
            return self.abort(connection, stream, code);
        }
        let delay_us = target.delay_down_us;
        let Some(aborted) = target.streams.get_mut(&stream) else {
            return;
        };
        let mut lost = 0;
        if !aborted.down.over {
            lost = aborted.down.drop_bytes();
            aborted.down.finish = false;
            aborted.down.abort = Some(code);
        }
        self.world.left_down(link, lost);
        self.world.pump_down(link, stream, delay_us);
        self.world.end_if_passed_on(link);
    }

    fn stop(&mut self, connection: ConnectionId, stream: StreamId, code: u64) {
        let Some(link) = self.usable(connection) else {
            return;
        };
        let target = self.world.link(link);
        if target.is_byte_stream() {
            return self.abort(connection, stream, code);
        }
        let Some(stopped) = target.streams.get_mut(&stream) else {
            return;
        };
        stopped.up.over = true;
        let lost = stopped.up.drop_bytes();
        target.up_bytes -= lost;
        self.world.end_if_passed_on(link);
    }

    fn close(&mut self, connection: ConnectionId, code: u64) {
        let Some(link) = self.usable(connection) else {
            return;
        };
        self.world.link(link).server_closing = Some(code);
        let at_us = self.world.now_us + self.world.settings.linger_us;
        self.world.schedule(at_us, Action::Linger { link });
        self.world.end_if_passed_on(link);
    }

    fn pause(&mut self, connection: ConnectionId, paused: bool) {
        let Some(link) = self.usable(connection) else {
            return;
        };
        let now_us = self.world.now_us;
        let target = &mut self.world.link(link).paused;
        if paused && !target.server {
            target.server_since_us = now_us;
        }
        target.server = paused;
        if !paused {
            let streams: Vec<_> = self.world.link(link).streams.keys().copied().collect();
            for stream in streams {
                let gap_us = self.world.draw(|settings| &settings.gap_us);
                self.world.pump_up(link, stream, gap_us);
            }
        }
    }

    fn path(&self, connection: ConnectionId) -> PathStatistics {
        let Some(link) = self.find(connection) else {
            return PathStatistics::default();
        };
        let link = &self.world.links[link as usize];
        PathStatistics {
            rtt_us: link.delay_up_us + link.delay_down_us,
            min_rtt_us: link.delay_up_us + link.delay_down_us,
            received_bytes: link.received_bytes,
            sent_bytes: link.sent_bytes,
            received_payload_bytes: link.received_bytes,
            sent_payload_bytes: link.sent_bytes,
            migrations: link.migrations,
            open_streams: link.open_streams(),
            ..PathStatistics::default()
        }
    }
}
