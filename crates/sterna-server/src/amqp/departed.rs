//! The memory of clients' sending links that are attached nowhere: its bytes, its limits, and when it ends.
//!
//! No client gives it back by its end. So it ends by time, and goes before any client is ended for want of memory. It
//! takes at most `amqp.maximum_suspended_bytes`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use sterna_amqp::messaging::DeliveryStateBuf;

use super::Door;
use super::registry::{LinkKey, Registry};
use super::target::forget;
use crate::config::Amqp;
use crate::context::Context;
use crate::giving_way::{GivingWay, Owner, Place};
use crate::memory;

/// Departed links are forgotten together, at whole seconds: each time wakes the shards.
const ROUND_MS: u64 = 1_000;
/// A departed link beside its texts and deliveries.
const LINK_BYTES: usize = 400;
/// An encoded state beside its content.
const STATE_BYTES: usize = 64;

/// The most that is remembered of departed links.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Most {
    pub(super) links: usize,
    pub(super) bytes: usize,
}

impl Most {
    /// No limit.
    pub(super) const ANY: Self = Self {
        links: usize::MAX,
        bytes: usize::MAX,
    };

    /// The limits of a configuration, where something else takes bytes of them.
    pub(super) fn of(config: &Amqp, other_bytes: usize) -> Self {
        let bytes = usize::try_from(config.maximum_suspended_bytes).unwrap_or(usize::MAX);
        Self {
            links: (config.maximum_suspended_links as usize).max(1),
            bytes: bytes.saturating_sub(other_bytes),
        }
    }
}

/// The place of a departed link: the time at which it is forgotten, and a number that no other one has.
pub(super) type Deadline = (u64, u64);

/// Departed links by the time at which they are forgotten, with the bytes that each takes.
#[derive(Debug, Default)]
pub(super) struct Departed {
    links: BTreeMap<Deadline, (LinkKey, usize, Place)>,
    /// By those who have left them, and their bytes.
    owners: GivingWay<Deadline>,
    bytes: usize,
    next: u64,
}

impl Departed {
    /// Takes up a link of somebody with so many bytes of deliveries.
    pub(super) fn add(
        &mut self,
        owner: Owner,
        key: LinkKey,
        deadline_ms: u64,
        bytes: usize,
    ) -> Deadline {
        let bytes = link_bytes(&key) + bytes;
        self.next += 1;
        let deadline = (deadline_ms, self.next);
        self.bytes += bytes;
        let place = self.owners.add_weighed(owner, deadline, bytes);
        self.links.insert(deadline, (key, bytes, place));
        deadline
    }

    /// A link has more deliveries.
    pub(super) fn grow(&mut self, deadline: Deadline, more_bytes: usize) {
        if let Some((_, bytes, place)) = self.links.get_mut(&deadline) {
            *bytes += more_bytes;
            self.owners.grow(*place, more_bytes);
            self.bytes += more_bytes;
        }
    }

    /// A link is attached again, or forgotten.
    pub(super) fn remove(&mut self, deadline: Deadline) {
        if let Some((_, bytes, place)) = self.links.remove(&deadline) {
            self.bytes -= bytes;
            self.owners.remove(place);
        }
    }

    /// All links, each with its place.
    ///
    /// # Panics
    /// Where the bytes are not those of the links, or a place is still to be given.
    pub(super) fn check(&self) -> impl Iterator<Item = (Deadline, &LinkKey)> {
        let bytes: usize = self.links.values().map(|(_, bytes, _)| bytes).sum();
        assert_eq!(self.bytes, bytes, "bytes of departed links");
        let mut places = self.links.keys();
        assert!(
            places.all(|(_, number)| *number <= self.next),
            "places are given in order"
        );
        let links = self.links.iter();
        links.map(|(deadline, (key, ..))| (*deadline, key))
    }

    /// The next link whose time is up, or that has to make room: the oldest of whoever has left most.
    pub(super) fn late(&self, now_ms: u64, most: Most) -> Option<LinkKey> {
        let ((deadline_ms, _), (first, ..)) = self.links.first_key_value()?;
        if *deadline_ms <= now_ms {
            return Some(first.clone());
        }
        let is_too_much = self.links.len() > most.links || self.bytes > most.bytes;
        let (_, oldest) = self.owners.first().filter(|_| is_too_much)?;
        self.links.get(oldest).map(|(key, ..)| key.clone())
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Bytes of departed links, and when the first is to be forgotten: to be read without their lock.
#[derive(Debug)]
pub(super) struct Gauge {
    bytes: AtomicUsize,
    due_ms: AtomicU64,
}

impl Default for Gauge {
    fn default() -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            due_ms: AtomicU64::new(u64::MAX),
        }
    }
}

impl Gauge {
    pub(super) fn set(&self, departed: &Departed) {
        let first = departed.links.first_key_value();
        let due_ms = first.map(|((first_ms, _), _)| first_ms.div_ceil(ROUND_MS) * ROUND_MS);
        self.bytes.store(departed.bytes, Ordering::Relaxed);
        self.due_ms
            .store(due_ms.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// When links are to be forgotten; `None` where there are none.
    pub(super) fn due_ms(&self) -> Option<u64> {
        Some(self.due_ms.load(Ordering::Relaxed)).filter(|due_ms| *due_ms != u64::MAX)
    }
}

/// About the bytes of a departed link without its deliveries. Its key is there twice.
fn link_bytes(key: &LinkKey) -> usize {
    let user = key.user.as_deref().unwrap_or_default();
    LINK_BYTES + 2 * (user.len() + key.container.len() + key.name.len())
}

/// Bytes of a state beside its place in a delivery.
pub(super) fn state_bytes(state: &DeliveryStateBuf) -> usize {
    match state {
        DeliveryStateBuf::Other(encoded) => STATE_BYTES + encoded.bytes().len(),
        DeliveryStateBuf::Accepted | DeliveryStateBuf::Released | DeliveryStateBuf::Received(_) => {
            0
        }
    }
}

impl memory::Shared for Registry {
    fn bytes(&self, kind: memory::Kind) -> u64 {
        match kind {
            memory::Kind::Partial => self.departed_bytes() as u64,
            memory::Kind::Sessions => self.queue_bytes(),
            _ => 0,
        }
    }
}

impl Door {
    /// When [`forget_departed`](Self::forget_departed) is to be called.
    pub(crate) fn departed_ms(&self) -> Option<u64> {
        self.service.registry.departed_ms()
    }

    /// Forgets departed links whose time is up.
    pub(crate) fn forget_departed(&self, cx: &mut Context<'_>) {
        let now_ms = cx.now_ms;
        if self.departed_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            let forgotten = self.service.registry.forget_late(now_ms);
            forget(cx, forgotten);
        }
    }

    /// Forgets so many bytes of departed links, those first that would be forgotten first. Returns how many it has
    /// found.
    pub(crate) fn give_up_departed(&self, cx: &mut Context<'_>, bytes: u64) -> u64 {
        let registry = &self.service.registry;
        let before = registry.departed_bytes();
        if before == 0 {
            return 0;
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let forgotten = registry.give_up(cx.now_ms, bytes);
        forget(cx, forgotten);
        let freed_bytes = before.saturating_sub(registry.departed_bytes());
        tracing::warn!(
            freed_bytes,
            "memory is short: links that are attached nowhere are forgotten"
        );
        freed_bytes as u64
    }
}
