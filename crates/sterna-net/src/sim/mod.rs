//! The simulated network: shards and scripted clients in one thread, in virtual time, from a seed.
//!
//! A [`Simulation`] drives the same [`Handler`]s as the shards on real sockets. So a whole server
//! with all its protocols is tested for hours of virtual time in seconds. The seed decides
//! everything that is open on a real network. It decides when and in which pieces bytes arrive,
//! which of them share a turn, and when a cut is noticed. It also decides how letters between
//! shards overtake each other (in order per pair of shards, as on real ones). Two runs from one
//! seed are equal, step by step; [`Simulation::fingerprint`] shows it.
//!
//! ```
//! use sterna_net::sim::{ClientOptions, Settings, Simulation};
//! use sterna_net::{
//!     Chunk, CloseReason, ConnectionId, Handler, Network, StreamEnd, StreamId,
//! };
//!
//! /// Sends back what it gets.
//! struct Echo;
//!
//! impl Handler for Echo {
//!     type Mail = ();
//!     fn opened(&mut self, _: &mut dyn Network, _: ConnectionId) {}
//!     fn received(&mut self, net: &mut dyn Network, from: ConnectionId, chunk: Chunk<'_>) {
//!         net.send(from, chunk.stream, chunk.bytes);
//!     }
//!     fn stream_ended(&mut self, net: &mut dyn Network, from: ConnectionId, on: StreamId, end: StreamEnd) {
//!         if end == StreamEnd::Finished {
//!             net.finish(from, on);
//!         }
//!     }
//!     fn writable(&mut self, _: &mut dyn Network, _: ConnectionId) {}
//!     fn closed(&mut self, _: &mut dyn Network, _: ConnectionId, _: &CloseReason) {}
//!     fn mail(&mut self, _: &mut dyn Network, _: &mut Vec<()>) {}
//!     fn timeout(&mut self, _: &mut dyn Network) {}
//!     fn end_of_turn(&mut self, _: &mut dyn Network) {}
//!     fn deadline_ms(&self) -> Option<u64> { None }
//!     fn finished(&self) -> bool { false }
//! }
//!
//! let mut sim = Simulation::new(42, Settings::default(), 2, |_shard, _courier| Echo);
//! let client = sim.connect(ClientOptions::default());
//! sim.send(client, StreamId::FIRST, b"hello");
//! assert!(sim.run_until(1_000, |sim| sim.received(client, StreamId::FIRST) == b"hello"));
//! ```
//!
//! Packets and congestion are not simulated: the QUIC driver has a link of its own for its tests.
//! Nor are threads: shards take their turns one after another.

mod clients;
mod link;
mod random;
mod settings;
#[cfg(test)]
mod tests;
mod world;

use std::fmt;

pub use clients::{Client, ClientOptions};
pub use random::Random;
pub use settings::Settings;

use self::link::{Fate, Link};
use self::world::{Action, Port, Reason, World};
use crate::mailbox::{Courier, Mailbox};
use crate::{Chunk, Handler, Network, StreamEnd, StreamId};

/// A step of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A shard took a turn.
    Turn {
        /// Which.
        shard: usize,
    },
    /// Something happened to a client: bytes or an end arrived.
    Client(Client),
}

/// Several shards with their handlers, their clients, and the network in between.
pub struct Simulation<H: Handler> {
    shards: Vec<Shard<H>>,
    world: World,
    turns: u64,
}

struct Shard<H: Handler> {
    handler: H,
    /// Letters of this shard to each, as the handler's courier leaves them.
    posted: Vec<Mailbox<H::Mail>>,
    /// Letters under way from each shard to this one, in order.
    incoming: Vec<Vec<H::Mail>>,
    /// When letters of each shard arrive here at the earliest, so that they don't overtake.
    arrives_us: Vec<u64>,
    /// The deadline that a wake-up is scheduled for.
    wake_us: Option<u64>,
    /// Turns taken at `instant_us`.
    turns_here: u32,
    instant_us: u64,
}

impl<H: Handler> fmt::Debug for Simulation<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation")
            .field("shards", &self.shards.len())
            .field("now_ms", &self.now_ms())
            .field("turns", &self.turns)
            .finish_non_exhaustive()
    }
}

impl<H: Handler> Simulation<H> {
    /// A simulation of `shards` shards. `make` gets the index of each and its courier to all of
    /// them, and returns its handler.
    pub fn new(
        seed: u64,
        settings: Settings,
        shards: usize,
        mut make: impl FnMut(usize, Courier<H::Mail>) -> H,
    ) -> Self {
        let world = World::new(seed, settings, shards);
        let shards = (0..shards)
            .map(|shard| {
                let posted: Vec<_> = (0..shards).map(|_| Mailbox::unattended()).collect();
                Shard {
                    handler: make(shard, Courier::new(posted.iter().cloned())),
                    posted,
                    incoming: (0..shards).map(|_| Vec::new()).collect(),
                    arrives_us: vec![0; shards],
                    wake_us: None,
                    turns_here: 0,
                    instant_us: 0,
                }
            })
            .collect();
        let mut simulation = Self {
            shards,
            world,
            turns: 0,
        };
        // Letters and deadlines of handlers from their creation.
        for shard in 0..simulation.shards.len() {
            simulation.after_turn(shard);
        }
        simulation
    }

    /// Number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The virtual time in milliseconds since the Unix epoch, as handlers see it.
    #[must_use]
    pub const fn now_ms(&self) -> u64 {
        self.world.now_ms()
    }

    /// Turns taken so far, by all shards.
    #[must_use]
    pub const fn turns(&self) -> u64 {
        self.turns
    }

    /// A digest of everything that handlers were told so far, and when.
    #[must_use]
    pub const fn fingerprint(&self) -> u64 {
        self.world.fingerprint
    }

    /// The source of all randomness, for scripts that want theirs from the same seed.
    pub const fn random(&mut self) -> &mut Random {
        &mut self.world.random
    }

    /// The handler of a shard.
    ///
    /// # Panics
    ///
    /// When there is no such shard.
    #[must_use]
    pub fn handler(&self, shard: usize) -> &H {
        &self.shards[shard].handler
    }

    /// The handler of a shard, for changes of it. Its own commands follow in its next turn: see
    /// [`Simulation::nudge`].
    ///
    /// # Panics
    ///
    /// When there is no such shard.
    pub fn handler_mut(&mut self, shard: usize) -> &mut H {
        &mut self.shards[shard].handler
    }

    /// Whether every handler says that it has finished.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.shards.iter().all(|shard| shard.handler.finished())
    }

    /// Gives a shard a turn soon, as a wake-up from another thread would.
    pub fn nudge(&mut self, shard: usize) {
        self.world
            .schedule(self.world.now_us, Action::Wake { shard });
    }

    /// Runs for N milliseconds.
    pub fn run_for(&mut self, time_ms: u64) {
        let until_us = self.world.now_us + time_ms * 1_000;
        while self.step_until_us(until_us).is_some() {}
        self.world.now_us = until_us;
    }

    /// Runs until `done` returns true; returns false if it does not within N milliseconds.
    pub fn run_until(&mut self, limit_ms: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let until_us = self.world.now_us + limit_ms * 1_000;
        loop {
            if done(self) {
                return true;
            }
            if self.step_until_us(until_us).is_none() {
                self.world.now_us = until_us;
                return done(self);
            }
        }
    }

    /// Takes the next step, unless it lies beyond a time, which then is the time that it is.
    pub fn step(&mut self, limit_ms: u64) -> Option<Step> {
        let until_us = limit_ms.saturating_sub(self.world.settings.start_ms) * 1_000;
        let step = self.step_until_us(until_us);
        if step.is_none() {
            self.world.now_us = self.world.now_us.max(until_us);
        }
        step
    }

    fn step_until_us(&mut self, until_us: u64) -> Option<Step> {
        loop {
            let (at_us, _) = self.world.next()?;
            if at_us > until_us {
                return None;
            }
            let action = self.world.pop()?;
            match self.world.shard_of(&action) {
                Some(shard) => {
                    if self.shards[shard].handler.finished() {
                        continue;
                    }
                    self.turn(shard, action);
                    return Some(Step::Turn { shard });
                }
                None => {
                    if let Some(client) = self.world.at_client(action) {
                        return Some(Step::Client(client));
                    }
                }
            }
        }
    }

    // --- A shard's turn --------------------------------------------------------------------------

    fn turn(&mut self, shard: usize, first: Action) {
        self.turns += 1;
        self.guard_against_spinning(shard);
        let port = &mut Port {
            world: &mut self.world,
            shard,
        };
        self.shards[shard].handler.begin_of_turn(port);
        let mut letters = Vec::new();
        let mut action = Some(first);
        while let Some(this) = action.take() {
            self.act(shard, this, &mut letters);
            // Other due events may come in the same turn, or in the next.
            let due = self.world.next().is_some_and(|(at_us, next)| {
                at_us <= self.world.now_us && self.world.shard_of(next) == Some(shard)
            });
            if due && self.world.random.chance(750_000) {
                action = self.world.pop();
            }
        }
        let port = &mut Port {
            world: &mut self.world,
            shard,
        };
        let handler = &mut self.shards[shard].handler;
        if !letters.is_empty() {
            port.world
                .note(&[1, shard as u64, letters.len() as u64], &[]);
            handler.mail(port, &mut letters);
        }
        if handler
            .deadline_ms()
            .is_some_and(|deadline| deadline <= port.now_ms())
        {
            port.world.note(&[2, shard as u64], &[]);
            handler.timeout(port);
        }
        handler.end_of_turn(port);
        self.after_turn(shard);
    }

    fn guard_against_spinning(&mut self, shard: usize) {
        let limit = self.world.settings.turns_per_instant;
        let this = &mut self.shards[shard];
        if this.instant_us != self.world.now_us {
            this.instant_us = self.world.now_us;
            this.turns_here = 0;
        }
        this.turns_here += 1;
        assert!(
            this.turns_here <= limit,
            "shard {shard} took {limit} turns and no time passed: its deadline is {:?} at {}",
            this.handler.deadline_ms(),
            self.world.now_ms(),
        );
    }

    /// Sends the letters that a handler posted, and sees to its next deadline.
    fn after_turn(&mut self, from: usize) {
        let mut letters = Vec::new();
        for to in 0..self.shards.len() {
            self.shards[from].posted[to].collect(&mut letters);
            if letters.is_empty() {
                continue;
            }
            let travel_us = self.world.draw(|settings| &settings.mail_us);
            let target = &mut self.shards[to];
            let at_us = (self.world.now_us + travel_us).max(target.arrives_us[from]);
            target.arrives_us[from] = at_us;
            target.incoming[from].append(&mut letters);
            self.world.schedule(at_us, Action::Mail { from, to });
        }
        let Some(deadline_ms) = self.shards[from].handler.deadline_ms() else {
            return;
        };
        // One that is in the past wants the next turn.
        let after_start_ms = deadline_ms.saturating_sub(self.world.settings.start_ms);
        let wake_us = after_start_ms.saturating_mul(1_000).max(self.world.now_us);
        let this = &mut self.shards[from];
        if this.wake_us.is_none_or(|set_us| wake_us < set_us) {
            this.wake_us = Some(wake_us);
            self.world.schedule(wake_us, Action::Wake { shard: from });
        }
    }

    /// One input of a turn.
    fn act(&mut self, shard: usize, action: Action, letters: &mut Vec<H::Mail>) {
        let handler = &mut self.shards[shard].handler;
        let port = &mut Port {
            world: &mut self.world,
            shard,
        };
        match action {
            Action::Open { link } => open(handler, port, link),
            Action::Confirm { link } => confirm(handler, port, link),
            Action::Up { link, stream } => arrive(handler, port, link, stream),
            Action::Migrate { link, peer } => {
                let target = port.world.link(link);
                target.info.peer = peer;
                target.migrations += 1;
                if let Some(id) = target.id.filter(|_| target.is_usable()) {
                    port.world.note(&[14, u64::from(link)], &[]);
                    handler.migrated(port, id);
                }
            }
            Action::DatagramUp { link, bytes } => {
                let target = port.world.link(link);
                let confirmed = target.confirmed;
                if let Some(id) = target.id.filter(|_| target.is_usable()) {
                    target.received_bytes += bytes.len() as u64;
                    port.world.note(&[3, u64::from(link)], &bytes);
                    let chunk = Chunk {
                        stream: StreamId::FIRST,
                        bytes: &bytes,
                        early: !confirmed,
                        confirmed,
                    };
                    handler.datagram(port, id, chunk);
                }
            }
            Action::Writable { link } => {
                let target = port.world.link(link);
                if let Some(id) = target.id.filter(|_| target.is_usable()) {
                    port.world.note(&[4, u64::from(link)], &[]);
                    handler.writable(port, id);
                }
            }
            Action::End { link, reason } => {
                let target = port.world.link(link);
                if let Some(id) = target.id {
                    // The end that closed a connection gets no other reason.
                    let closed = target.server_closing.is_some();
                    let reason = if closed { Reason::Local } else { reason }.to_close_reason();
                    port.world
                        .note(&[5, u64::from(link)], format!("{reason:?}").as_bytes());
                    handler.closed(port, id, &reason);
                    port.world.slots[shard].give_back(id);
                }
                let target = port.world.link(link);
                target.id = None;
                target.up_bytes = 0;
                target.down_bytes = 0;
                for stream in target.streams.values_mut() {
                    stream.up.over = true;
                    stream.up.drop_bytes();
                    stream.down.over = true;
                    stream.down.drop_bytes();
                }
            }
            Action::Mail { from, to } => {
                // All letters posted up to now, or a part of them.
                let waiting = &mut self.shards[to].incoming[from];
                let count = if self.world.random.chance(750_000) {
                    waiting.len()
                } else {
                    self.world.random.below(waiting.len() as u64 + 1) as usize
                };
                letters.extend(waiting.drain(..count));
                if !waiting.is_empty() {
                    let gap_us = self.world.draw(|settings| &settings.gap_us);
                    let at_us = self.world.now_us + gap_us;
                    let arrives_us = &mut self.shards[to].arrives_us[from];
                    *arrives_us = at_us.max(*arrives_us);
                    self.world.schedule(at_us, Action::Mail { from, to });
                }
            }
            Action::Wake { shard } => {
                let this = &mut self.shards[shard];
                if this
                    .wake_us
                    .is_some_and(|wake_us| wake_us <= self.world.now_us)
                {
                    this.wake_us = None;
                }
            }
            Action::Down { .. }
            | Action::DatagramDown { .. }
            | Action::Linger { .. }
            | Action::HalfClosed { .. }
            | Action::EndDown { .. } => unreachable!("these happen to clients"),
        }
    }
}

/// Tells the handler of a new connection.
fn open<H: Handler>(handler: &mut H, port: &mut Port<'_>, link: u32) {
    if port.world.link(link).fate == Fate::Cut {
        return; // cut before the server heard of it
    }
    let id = port.world.slots[port.shard].take(link);
    port.world.link(link).id = Some(id);
    port.world.note(&[6, u64::from(link)], &[]);
    handler.opened(port, id);
}

fn confirm<H: Handler>(handler: &mut H, port: &mut Port<'_>, link: u32) {
    let target = port.world.link(link);
    if target.confirmed || target.fate == Fate::Cut {
        return;
    }
    target.confirmed = true;
    target.info.is_peer_proved = true;
    if let Some(id) = target.id.filter(|_| target.is_usable()) {
        port.world.note(&[7, u64::from(link)], &[]);
        handler.confirmed(port, id);
    }
}

/// Some bytes of a stream, or its end, arrive at the server.
fn arrive<H: Handler>(handler: &mut H, port: &mut Port<'_>, link: u32, stream: StreamId) {
    let World {
        random,
        links,
        settings,
        ..
    } = &mut *port.world;
    let Link {
        id,
        streams,
        paused,
        server_closing,
        confirmed,
        ..
    } = &mut links[link as usize];
    let (Some(id), Some(pipe)) = (*id, streams.get_mut(&stream).map(|stream| &mut stream.up))
    else {
        return;
    };
    pipe.scheduled = false;
    if paused.server || pipe.over || server_closing.is_some() {
        return;
    }
    let confirmed = *confirmed;
    let bytes = World::take_chunk(random, settings.chunk_bytes, pipe);
    let drained = pipe.bytes.is_empty();
    // The end comes with the last bytes or after them.
    let ends = drained && (pipe.finish || pipe.abort.is_some());
    let ends = ends && (bytes.is_empty() || random.chance(500_000));
    let abort = pipe.abort;
    pipe.over |= ends;
    let target = port.world.link(link);
    target.up_bytes -= bytes.len();
    target.received_bytes += bytes.len() as u64;
    if !bytes.is_empty() {
        port.world
            .note(&[8, u64::from(link), stream.0, bytes.len() as u64], &bytes);
        let chunk = Chunk {
            stream,
            bytes: &bytes,
            early: !confirmed,
            confirmed,
        };
        handler.received(port, id, chunk);
    }
    if ends && port.world.link(link).is_usable() {
        if let Some(code) = abort {
            port.world.note(&[9, u64::from(link), stream.0, code], &[]);
            handler.stream_ended(port, id, stream, StreamEnd::Aborted(code));
        } else {
            port.world.note(&[10, u64::from(link), stream.0], &[]);
            handler.stream_ended(port, id, stream, StreamEnd::Finished);
        }
    }
    if port
        .world
        .random
        .chance(port.world.settings.cuts_per_million)
    {
        port.world.cut(link);
    }
    let gap_us = port.world.draw(|settings| &settings.gap_us);
    port.world.pump_up(link, stream, gap_us);
    port.world.end_if_passed_on(link);
}
