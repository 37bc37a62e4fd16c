//! The sessions of a shard, by their slots.
//!
//! A session that is away and has nothing in memory is *packed*: its text and numbers become a few dozen
//! bytes. Parts that few sessions have are in a table of their own. Publishing never touches it, for its
//! routes are asleep. All else unpacks it first ([`Sessions::unpack`]). At the end of the call it is packed
//! again, if it may be. So only this module and `packed.rs` know of the form; all others see sessions.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::api::DoorState;
use crate::directory::{Directory, Principal};
use crate::packed;
use crate::queues::Queues;
use crate::session::{BrokerSession, NEVER_MS, Rare};
use crate::will::SessionWill;

#[derive(Debug)]
enum Slot<P> {
    Open(Box<BrokerSession<P>>),
    Packed(Box<[u8]>),
}

/// The parts of a packed session that are neither text nor number.
#[derive(Debug)]
struct Extra<P> {
    protocol: P,
    will: Option<Box<SessionWill>>,
    rare: Option<Box<Rare>>,
}

/// See the module. A packed session is not found by [`get`](Self::get), and indexing it is a fault.
#[derive(Debug)]
pub(crate) struct Sessions<P> {
    slots: Slab<Slot<P>>,
    /// By slot, of the few packed sessions that have any.
    extras: FxHashMap<u32, Box<Extra<P>>>,
    /// Those that were unpacked in this call, or fell asleep.
    unpacked: Vec<u32>,
    pub(crate) directory: Arc<Directory>,
}

impl<P> Sessions<P> {
    pub(crate) fn new(directory: Arc<Directory>) -> Self {
        Self {
            slots: Slab::new(),
            extras: FxHashMap::default(),
            unpacked: Vec::new(),
            directory,
        }
    }

    /// Number of sessions, packed ones included.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Number of sessions that were unpacked in this call.
    pub(crate) const fn unpacked(&self) -> usize {
        self.unpacked.len()
    }

    /// All slots are below.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// The slot that the next session gets.
    pub(crate) fn vacant_slot(&self) -> u32 {
        self.slots.vacant_key() as u32
    }

    /// Adds a session, and returns its slot.
    pub(crate) fn insert(&mut self, session: BrokerSession<P>) -> u32 {
        self.slots.insert(Slot::Open(Box::new(session))) as u32
    }

    /// Takes a session out that is there and not packed.
    pub(crate) fn remove(&mut self, slot: u32) -> Box<BrokerSession<P>> {
        let Slot::Open(removed) = self.slots.remove(slot as usize) else {
            unreachable!("a session is unpacked before it ends");
        };
        let (principals, weight) = (self.directory.principals(), removed.weight);
        principals.adjust_lasting(weight.principal, weight.charged.into(), 0);
        principals.leave(weight.principal);
        let slots = &mut self.slots;
        if slots.capacity() > 1024 && slots.capacity() > 8 * slots.len() {
            slots.shrink_to_fit();
        }
        removed
    }

    /// A session that is not packed.
    pub(crate) fn get(&self, slot: u32) -> Option<&BrokerSession<P>> {
        match self.slots.get(slot as usize)? {
            Slot::Open(session) => Some(session),
            Slot::Packed(_) => None,
        }
    }

    /// As [`get`](Self::get).
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut BrokerSession<P>> {
        match self.slots.get_mut(slot as usize)? {
            Slot::Open(session) => Some(session),
            Slot::Packed(_) => None,
        }
    }

    /// Whether there is a session that is not packed.
    pub(crate) fn is_open(&self, slot: u32) -> bool {
        self.get(slot).is_some()
    }

    /// Whether there is a packed session.
    pub(crate) fn is_packed(&self, slot: u32) -> bool {
        matches!(self.slots.get(slot as usize), Some(Slot::Packed(_)))
    }

    /// The sessions that are not packed, with their slots.
    pub(crate) fn open(&self) -> impl Iterator<Item = (u32, &BrokerSession<P>)> {
        self.slots.iter().filter_map(|(slot, held)| match held {
            Slot::Open(session) => Some((slot as u32, &**session)),
            Slot::Packed(_) => None,
        })
    }

    /// The slots of all sessions, packed ones included.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().map(|(slot, _)| slot as u32)
    }

    /// The generation of a session, packed or not.
    pub(crate) fn generation(&self, slot: u32) -> Option<u32> {
        match self.slots.get(slot as usize)? {
            Slot::Open(session) => Some(session.generation),
            Slot::Packed(packed) => packed::generation(packed),
        }
    }

    /// The holder of a session, and the bytes that they are charged with for it.
    pub(crate) fn charge(&self, slot: u32) -> Option<(Principal, u32)> {
        match self.slots.get(slot as usize)? {
            Slot::Open(session) => Some((session.weight.principal, session.weight.charged)),
            Slot::Packed(packed) => packed::charge(packed),
        }
    }

    /// The lowest position of the log that a packed session needs.
    pub(crate) fn packed_needs(&self, slot: u32) -> Option<u64> {
        match self.slots.get(slot as usize)? {
            Slot::Open(_) => None,
            // A packed session that can't be read needs everything.
            Slot::Packed(packed) => Some(packed::needed(packed).unwrap_or(0)),
        }
    }
}

impl<P: DoorState> Sessions<P> {
    /// Looks at a session, packed or not. Parts that are neither text nor number are not seen of a packed one.
    pub(crate) fn look<R>(
        &self,
        slot: u32,
        look: impl FnOnce(&BrokerSession<P>) -> R,
    ) -> Option<R> {
        match self.slots.get(slot as usize)? {
            Slot::Open(session) => Some(look(session)),
            Slot::Packed(packed) => packed::unpack(packed, &self.directory).as_ref().map(look),
        }
    }

    /// Whether a session has a will, packed or not.
    pub(crate) fn has_will(&self, slot: u32) -> bool {
        match self.slots.get(slot as usize) {
            Some(Slot::Open(session)) => session.will.is_some(),
            Some(Slot::Packed(_)) => {
                (self.extras.get(&slot)).is_some_and(|extra| extra.will.is_some())
            }
            None => false,
        }
    }

    /// When something is to be done with a packed session.
    pub(crate) fn packed_deadline_ms(&self, slot: u32) -> u64 {
        let will_ms = self
            .extras
            .get(&slot)
            .and_then(|extra| Some(extra.will.as_ref()?.due_ms));
        let expires_at_ms = self.look(slot, |session| session.expires_at_ms);
        will_ms
            .into_iter()
            .chain(expires_at_ms)
            .min()
            .unwrap_or(NEVER_MS)
    }

    /// Unpacks a session, if it is packed. It is packed again at the end of the call, if it may be.
    pub(crate) fn unpack(&mut self, slot: u32) {
        let Some(Slot::Packed(packed)) = self.slots.get(slot as usize) else {
            return;
        };
        let Some(mut session) = packed::unpack(packed, &self.directory) else {
            debug_assert!(false, "what was packed can be unpacked");
            return;
        };
        if let Some(extra) = self.extras.remove(&slot) {
            session.protocol = extra.protocol;
            session.will = extra.will;
            session.rare = extra.rare;
        }
        session.timer_ms = session.deadline_ms();
        self.directory.remove_packed(session.subscriptions.len());
        self.slots[slot as usize] = Slot::Open(Box::new(session));
        self.reweigh(slot);
        self.unpacked.push(slot);
    }

    /// Packs a session that may be packed.
    fn pack(&mut self, slot: u32) {
        self.reweigh_as(slot, true);
        let Some(Slot::Open(session)) = self.slots.get_mut(slot as usize) else {
            return;
        };
        let packed = packed::pack(session);
        self.directory.add_packed(session.subscriptions.len());
        let is_rare = session.rare.as_ref().is_some_and(|rare| !rare.is_empty());
        let is_plain = session.protocol.is_idle() && session.will.is_none() && !is_rare;
        if !is_plain {
            let extra = Extra {
                protocol: std::mem::take(&mut session.protocol),
                will: session.will.take(),
                rare: session.rare.take(),
            };
            self.extras.insert(slot, Box::new(extra));
        }
        self.slots[slot as usize] = Slot::Packed(packed);
    }
}

impl<P: DoorState> Queues<P> {
    /// The session of a slot, if it is still the one of that generation; unpacked if it was packed.
    pub(crate) fn session(&mut self, slot: u32, generation: u32) -> Option<&mut BrokerSession<P>> {
        if self.sessions.is_packed(slot) && self.sessions.generation(slot) == Some(generation) {
            self.sessions.unpack(slot);
        }
        let session = self.sessions.get_mut(slot)?;
        (session.generation == generation).then_some(session)
    }

    /// Packs a session that is away and has nothing in memory; others stay as they are.
    pub(crate) fn pack(&mut self, slot: u32) {
        let session = self.sessions.get_mut(slot);
        let Some(session) = session.filter(|session| packed::is_packable(session)) else {
            return;
        };
        // Nothing waits that could expire.
        session.set_sweep(NEVER_MS);
        self.set_session_timer(slot);
        self.sessions.pack(slot);
    }

    /// Packs what was unpacked in this call.
    pub(crate) fn pack_again(&mut self) {
        while let Some(slot) = self.sessions.unpacked.pop() {
            self.pack(slot);
        }
        if self.sessions.unpacked.capacity() > 4096 {
            self.sessions.unpacked = Vec::new();
        }
    }
}

impl<P> Index<u32> for Sessions<P> {
    type Output = BrokerSession<P>;

    fn index(&self, slot: u32) -> &BrokerSession<P> {
        self.get(slot)
            .expect("a session is unpacked before it is used")
    }
}

impl<P> IndexMut<u32> for Sessions<P> {
    fn index_mut(&mut self, slot: u32) -> &mut BrokerSession<P> {
        self.get_mut(slot)
            .expect("a session is unpacked before it is used")
    }
}
