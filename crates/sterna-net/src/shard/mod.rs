//! The loop of one shard.
//!
//! A turn waits for events, and writes to connections that have room again. Then it reads at most one
//! buffer of each connection, and takes datagrams and letters. It passes deadlines and accepts connections.
//! It lets the handler end its turn, and writes all queues. Work above a limit goes to the next turn, which
//! then does not wait. Established connections come before new ones.

mod accept;
mod admission;
mod connection;
mod core;
mod deadlines;
mod input;
mod quic;
mod shift;

use std::io;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use self::accept::Acceptors;
use self::connection::{CipherScratch, Connection, Hangup, PeerSide, Phase};
use self::core::Core;
use self::shift::Shift;
use crate::bind::BoundShard;
use crate::mailbox::Mailbox;
use crate::tls::PARTIAL_ROOM;
use crate::tokens::{self, Source};
use crate::udp::UdpScratch;
use crate::{CloseReason, ConnectionId, Handler};

/// Most events fetched at once; more wait in the kernel.
const EVENTS: usize = 1_024;
/// Least bytes that are read from a connection in its turn.
const LEAST_READ_BYTES: usize = 4 * 1024;
/// Ends of connections that are told in each turn, whatever the handler says.
const ENDS_TOLD: usize = 1;
/// Turns in which nothing is read, after which each waits for a while.
const BRIEF_TURNS: u32 = 64;
/// That wait, unless a letter comes.
const HELD_BACK: Duration = Duration::from_millis(1);
/// Memory of lists that a burst has made long is given back beyond this many entries.
const KEPT_ENTRIES: usize = 4_096;
/// Application code of connections that are closed because the shard stops.
const SHUTDOWN_CODE: u64 = 0;

/// Buffers that all connections of the shard share.
#[derive(Debug)]
struct Scratch {
    /// Read bytes: behind [`PARTIAL_ROOM`].
    read: Vec<u8>,
    /// Their decrypted form.
    plaintext: Vec<u8>,
    cipher: CipherScratch,
    udp: UdpScratch,
}

/// One thread's loop with everything that it drives.
pub(crate) struct Shard<H: Handler> {
    poll: Poll,
    core: Core,
    handler: H,
    acceptors: Acceptors,
    mailbox: Mailbox<H::Mail>,
    letters: Vec<H::Mail>,
    /// The drivers' counters as other threads see them.
    published: Vec<crate::quic::Counters>,
    /// The list that is being worked through.
    working: Vec<ConnectionId>,
    scratch: Scratch,
    /// Most bytes that are read from one connection in this turn.
    read_bytes: usize,
    /// Whether something was read in this turn.
    has_read: bool,
    /// Whether something was not read in this turn, for the handler takes nothing now.
    is_held_back: bool,
    /// Which byte streams are read in this turn: others wait for that reason, or for want of time, or of handshakes.
    reading: Shift,
    /// Which are written to.
    writing: Shift,
    /// Whether datagrams were not read in the last turn for that reason.
    are_datagrams_held_back: bool,
    /// Whether QUIC has events for the next turn.
    has_quic_events: bool,
    /// Whether they are there for want of time: input that was read waits.
    is_quic_behind: bool,
    /// Turns before this one, one after another, in which that was so and nothing was read.
    held_turns: u32,
    /// Handshake flights that may still be worked on in this turn.
    handshakes_left: usize,
}

impl<H: Handler> Shard<H> {
    pub(crate) fn new(bound: BoundShard<H::Mail>, handler: H) -> io::Result<Self> {
        let mailbox = bound.mailbox();
        let BoundShard {
            config,
            clock,
            peers,
            poll,
            listeners,
            mut udp,
            gate,
            counters,
            ..
        } = bound;
        let acceptors = Acceptors::new(listeners, gate, poll.registry())?;
        for (index, listener) in udp.iter_mut().enumerate() {
            let own = counters.listener(listener.driver.listener());
            own.set_quic(&listener.driver.counters());
            listener.register(poll.registry(), tokens::udp(index))?;
        }
        let scratch = Scratch {
            read: vec![0; PARTIAL_ROOM + config.read_bytes_per_turn.max(1)],
            plaintext: Vec::new(),
            cipher: CipherScratch::new(acceptors.have_tls()),
            udp: UdpScratch::new(!udp.is_empty()),
        };
        Ok(Self {
            poll,
            published: vec![crate::quic::Counters::default(); udp.len()],
            core: Core::new(config, clock, peers, udp, counters),
            handler,
            acceptors,
            mailbox,
            letters: Vec::new(),
            working: Vec::new(),
            scratch,
            read_bytes: 0,
            has_read: false,
            is_held_back: false,
            reading: Shift::default(),
            writing: Shift::default(),
            are_datagrams_held_back: false,
            has_quic_events: false,
            is_quic_behind: false,
            held_turns: 0,
            handshakes_left: 0,
        })
    }

    pub(crate) fn run(mut self) -> io::Result<H> {
        let mut events = Events::with_capacity(EVENTS);
        while !self.handler.finished() {
            self.wait(&mut events)?;
            self.turn(&events);
        }
        self.shut_down();
        Ok(self.handler)
    }

    /// Waits for events, as long as there is no work.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let timeout = self.timeout();
        if (1..=BRIEF_TURNS).contains(&self.held_turns) {
            // Another thread has work to do first.
            std::thread::yield_now();
        }
        match self.poll.poll(events, timeout) {
            // An interrupted wait is a turn without events.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
            result => result?,
        }
        self.mailbox.wake_up();
        self.core.tick();
        Ok(())
    }

    fn timeout(&mut self) -> Option<Duration> {
        if self.held_turns > BRIEF_TURNS && self.mailbox.fall_asleep() {
            return Some(HELD_BACK);
        }
        if self.core.is_busy()
            || self.has_quic_events
            || self.acceptors.are_busy()
            || !self.mailbox.fall_asleep()
        {
            return Some(Duration::ZERO);
        }
        let milliseconds = [
            self.core.next_deadline_ms(),
            self.handler.deadline_ms(),
            self.acceptors.retry_ms(),
        ];
        let deadline = milliseconds
            .into_iter()
            .flatten()
            .min()
            .map(|deadline_ms| self.core.instant(deadline_ms));
        let quic = self.core.udp.iter().filter_map(|udp| udp.driver.deadline());
        let earliest = quic.chain(deadline).min()?;
        Some(earliest.saturating_duration_since(Instant::now()))
    }

    fn turn(&mut self, events: &Events) {
        self.handshakes_left = self.core.config.handshakes_per_turn;
        self.handler.begin_of_turn(&mut self.core);
        self.heed_gate();
        for event in events {
            match tokens::source(event.token()) {
                Source::Waker => {}
                Source::Listener(index) => self.acceptors.note(index),
                Source::Udp(index) => self.note_udp(index, event),
                Source::Connection(slot, cut) => self.note(slot, cut, event),
            }
        }
        // Each has its turn first where the other leaves it none.
        if self.are_datagrams_held_back {
            self.receive_datagrams();
            self.read_streams();
        } else {
            self.read_streams();
            self.receive_datagrams();
        }
        self.work_through(|core| &mut core.relieved, Self::relieve);
        self.mail();
        while let Some((kind, id)) = self.core.deadlines.pop(self.core.now_ms) {
            self.core.expire(kind, id);
        }
        self.accept();
        self.reap();
        if self
            .handler
            .deadline_ms()
            .is_some_and(|due| due <= self.core.now_ms)
        {
            self.handler.timeout(&mut self.core);
        }
        self.handler.end_of_turn(&mut self.core);
        self.flush();
        self.publish();
        let has_read = std::mem::take(&mut self.has_read);
        self.held_turns = if std::mem::take(&mut self.is_held_back) && !has_read {
            self.held_turns.saturating_add(1)
        } else {
            0
        };
    }

    /// Reads from byte streams. The more have something to say, the less is read from each, so that none waits for long.
    fn read_streams(&mut self) {
        let config = &self.core.config;
        let share = config.streams_bytes_per_turn / self.core.ready.len().max(1);
        let least = LEAST_READ_BYTES.min(config.read_bytes_per_turn);
        self.read_bytes = share.clamp(least, config.read_bytes_per_turn);
        if self.reading.begin() {
            (self.core).take_turns_by_address(|core| &mut core.ready);
        }
        self.work_through(|core| &mut core.ready, Self::attend);
        self.reading.end(&mut self.core.ready);
    }

    /// Has a connection wait for the next turn, to be read then.
    fn hold_back(&mut self, id: ConnectionId) {
        self.reading.hold_back(&self.core.ready);
        self.core.enqueue(id);
    }

    /// Writes what is queued, for as long as a turn may.
    fn write_streams(&mut self) {
        if self.writing.begin() {
            (self.core).take_turns_by_address(|core| &mut core.dirty);
        }
        self.work_through(
            |core| &mut core.dirty,
            |shard, id| {
                if shard.writing.is_over(shard.core.config.writing_per_turn_ms) {
                    shard.writing.hold_back(&shard.core.dirty);
                    shard.core.dirty.push(id);
                } else {
                    shard.core.flush(id, &mut shard.scratch.cipher);
                }
            },
        );
        self.writing.end(&mut self.core.dirty);
    }

    /// Lets other threads see the figures of this turn.
    fn publish(&mut self) {
        let counters = &self.core.counters;
        let mut half_open = self.core.admission.half_open();
        for (udp, published) in self.core.udp.iter().zip(&mut self.published) {
            half_open += udp.driver.half_open();
            udp.publish(counters.listener(udp.driver.listener()), published);
        }
        counters.half_open.set(half_open as u64);
        counters.turns.add(1);
        let udp = self.core.udp.iter();
        let quic_bytes: u64 = udp.map(|udp| udp.driver.held_bytes()).sum();
        (counters.held_bytes).set(self.core.unsent_bytes as u64 + quic_bytes);
    }

    /// Takes a list of the core and goes through it. Entries added meanwhile stay for the next
    /// time.
    fn work_through(
        &mut self,
        list: fn(&mut Core) -> &mut Vec<ConnectionId>,
        each: fn(&mut Self, ConnectionId),
    ) {
        debug_assert!(self.working.is_empty(), "one list at a time");
        std::mem::swap(&mut self.working, list(&mut self.core));
        for index in 0..self.working.len() {
            each(self, self.working[index]);
        }
        self.working.clear();
        self.working.shrink_to(KEPT_ENTRIES);
    }

    /// Notes the kernel's report about a connection.
    fn note(&mut self, slot: u32, cut: u32, event: &mio::event::Event) {
        let Some(id) = self.core.connections.current(slot) else {
            return;
        };
        let Some(connection) = self.core.connections.get_mut(id) else {
            return;
        };
        if !tokens::same_generation(cut, id.generation) {
            return;
        }
        // Nobody reads any more what would show this.
        if event.is_error() && connection.peer_side == PeerSide::Awaiting {
            let reason = connection.loss();
            return self.core.end(id, reason);
        }
        if (event.is_read_closed() || event.is_error()) && connection.hangup == Hangup::None {
            connection.hangup = Hangup::Reported;
        }
        if event.is_readable() || connection.hangup != Hangup::None {
            connection.readable = true;
        }
        let unblocked = connection.blocked && (event.is_writable() || event.is_write_closed());
        if unblocked {
            connection.blocked = false;
            self.core.mark_dirty(id);
        }
        if self
            .core
            .connections
            .get(id)
            .is_some_and(Connection::wants_input)
        {
            self.core.enqueue(id);
        }
        self.core.limit_pause(id);
    }

    /// A connection's queue has shrunk enough for the handler to queue more.
    fn relieve(&mut self, id: ConnectionId) {
        let open = |c: &Connection| c.phase == Phase::Open;
        if self.core.connections.get(id).is_some_and(open) {
            self.handler.writable(&mut self.core, id);
        }
    }

    /// Hands over the letters that have come.
    pub(in crate::shard) fn mail(&mut self) {
        self.mailbox.collect(&mut self.letters);
        if !self.letters.is_empty() {
            self.handler.mail(&mut self.core, &mut self.letters);
            self.letters.clear();
            if self.letters.capacity() > KEPT_ENTRIES {
                self.letters = Vec::new();
            }
        }
    }

    /// Tells the handler of handshakes that have failed and connections that have ended, and removes those that are dead.
    fn reap(&mut self) {
        for failed in std::mem::take(&mut self.core.failed) {
            self.handler.handshake_failed(&mut self.core, failed);
        }
        let mut told = 0;
        // The handler may end others in turn.
        while (told < ENDS_TOLD || self.handler.takes_ends(&mut self.core))
            && let Some(id) = self.core.ended.pop_front()
        {
            let Some(connection) = self.core.connections.get_mut(id) else {
                continue;
            };
            if connection.announced {
                let end = connection.end.as_ref();
                let reason = end.map_or(CloseReason::Local, |end| end.reason.clone());
                told += 1;
                // Still known while the handler says goodbye to it.
                self.handler.closed(&mut self.core, id, &reason);
            }
            let Some(connection) = self.core.connections.get_mut(id) else {
                continue;
            };
            connection.announced = false;
            if connection.phase == Phase::Dead {
                let counters = self.core.counters.listener(connection.info.listener);
                counters.connections.sub(1);
                self.core.connections.remove(id);
            }
        }
    }

    /// Writes what is queued, as far as that goes without waiting.
    fn flush_all(&mut self) {
        self.work_through(
            |core| &mut core.dirty,
            |shard, id| shard.core.flush(id, &mut shard.scratch.cipher),
        );
        while self.transmit() {}
    }

    fn flush(&mut self) {
        self.write_streams();
        self.transmit();
    }

    /// Sends datagrams, as many as a turn may. Whether more may be sent at once.
    fn transmit(&mut self) -> bool {
        let mut has_more = false;
        for (index, udp) in self.core.udp.iter_mut().enumerate() {
            has_more |= udp.transmit(self.core.now, &mut self.scratch.udp);
            udp.watch(self.poll.registry(), tokens::udp(index));
        }
        has_more
    }

    /// Closes open connections, as far as that goes without waiting.
    fn shut_down(&mut self) {
        for id in self.core.connections.ids() {
            if let Some(connection) = self.core.connections.get_mut(id) {
                if let Some(websocket) = &mut connection.websocket {
                    websocket.set_close_code(crate::websocket::code::GOING_AWAY);
                }
                self.core.begin_close(id, Some(CloseReason::Shutdown));
            }
        }
        let now = self.core.now;
        for udp in &mut self.core.udp {
            udp.driver.shutdown(now, SHUTDOWN_CODE);
        }
        self.flush_all();
        for id in self.core.connections.ids() {
            self.core.end(id, CloseReason::Shutdown);
        }
        while !self.core.ended.is_empty() {
            self.reap();
        }
        self.drain_quic(None);
        while self.has_quic_events {
            self.drain_quic(None);
        }
        self.flush_all();
    }
}
