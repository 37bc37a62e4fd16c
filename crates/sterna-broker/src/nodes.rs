//! Where the entries of all queues and ledgers of a shard lie.
//!
//! An idle session's queue is three numbers. Entries are taken from chunks that all queues share. So a
//! queue that fills and drains allocates nothing. Chunks without entries are given back, but for a few.

use std::sync::Arc;

use slab::Slab;

use crate::attempts::Failures;
use crate::counters::Held;
use crate::message::{Message, Qos};
use crate::route::Context;

/// No entry.
pub(crate) const NIL: u32 = u32::MAX;

const CHUNK: usize = 256;

/// Empty chunks that are kept, so that a fan-out to some thousand queues allocates nothing.
const SPARE_CHUNKS: u32 = 16;

/// How far the delivery of an entry has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Not yet sent.
    Pending,
    /// Sent, no answer yet.
    Sent,
    /// The receiver has taken it over (PUBREC); the message itself is no longer kept.
    HandedOver,
}

/// A message in a queue or ledger.
#[derive(Debug)]
pub(crate) struct Entry {
    /// `None` once it was handed over.
    pub(crate) message: Option<Arc<Message>>,
    pub(crate) context: Option<Arc<Context>>,
    /// The delivery's tag. Its upper half counts the session's entries. Its lower half is the place of the entry
    /// when it was made. The entry is still at this place unless the session has moved. Until the entry lies
    /// anywhere, that half is [`NIL`].
    pub(crate) tag: u64,
    /// The tag it has in its group's queue; zero where it comes from none.
    pub(crate) group_tag: u64,
    /// The shared subscription it came from, or [`NIL`].
    pub(crate) group: u32,
    /// Attempts to deliver it that failed.
    pub(crate) failures: Failures,
    pub(crate) qos: Qos,
    pub(crate) phase: Phase,
    pub(crate) retain: bool,
    /// Whether it was sent before.
    pub(crate) redelivered: bool,
    /// Whether it is here because a new subscription asked for retained messages.
    pub(crate) retained_copy: bool,
    /// Whether it is from a kept queue, and goes back there with its consumer's connection.
    pub(crate) is_kept: bool,
    /// Its place in the log; zero where it is not there.
    pub(crate) position: u64,
    /// Whether it is from a group and its session's alone from now on. [MQTT-4.8.2-5]
    pub(crate) is_owned: bool,
    /// While it waits: whether the store has a record that it is its session's alone.
    pub(crate) is_claimed: bool,
    /// Whether the rules have changed since it came: it is judged when it is its turn.
    pub(crate) is_to_be_judged: bool,
    /// While it waits: whether its consumer's selector is still to be asked.
    pub(crate) is_to_be_selected: bool,
}

impl Entry {
    /// A message that begins to wait, in no group.
    pub(crate) fn waiting(tag: u64, message: Arc<Message>) -> Self {
        Self {
            context: None,
            tag,
            group_tag: 0,
            group: NIL,
            failures: Failures::default(),
            qos: message.qos(),
            phase: Phase::Pending,
            retain: message.retain(),
            redelivered: false,
            retained_copy: false,
            is_kept: false,
            position: 0,
            is_owned: false,
            is_claimed: false,
            is_to_be_judged: false,
            is_to_be_selected: false,
            message: Some(message),
        }
    }

    /// Its place in the log as a message of the session's own subscriptions. Zero for a message that a
    /// group has assigned, and for one that is not in the log.
    pub(crate) const fn own_position(&self) -> u64 {
        if self.group == NIL && self.group_tag == 0 {
            self.position
        } else {
            0
        }
    }

    /// In a group's queue: whether it may wait in the log alone. It is there as it is.
    pub(crate) fn may_wait_in_log(&self) -> bool {
        let message = self.message.as_ref();
        self.position != 0 && message.is_some_and(|message| !message.is_changed())
    }

    /// Its body in the sums.
    pub(crate) fn held(&self) -> Held {
        Held::of(self.message.as_deref())
    }

    pub(crate) fn body_bytes(&self) -> u64 {
        self.message
            .as_ref()
            .map_or(0, |message| message.body_bytes() as u64)
    }
}

#[derive(Debug)]
struct Slot {
    entry: Option<Entry>,
    /// In a list: the neighbours. In a chunk's list of free slots: `next` only.
    next: u32,
    previous: u32,
    /// The session or group whose list it is in; guards against tags that were made up.
    owner: u32,
}

#[derive(Debug)]
struct Chunk {
    slots: Box<[Slot; CHUNK]>,
    first_free: u32,
    used: u32,
    /// Neighbours among the chunks that have free slots.
    next: u32,
    previous: u32,
}

/// A queue: a doubly linked list of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            len: 0,
        }
    }
}

impl List {
    pub(crate) const fn len(self) -> usize {
        self.len as usize
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The first entry, or [`NIL`].
    pub(crate) const fn first(self) -> u32 {
        self.head
    }

    /// The last entry, or [`NIL`].
    pub(crate) const fn last(self) -> u32 {
        self.tail
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Nodes {
    chunks: Slab<Chunk>,
    /// The first chunk with a free slot.
    open: u32,
    empty_chunks: u32,
    used: usize,
}

impl Nodes {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: Slab::new(),
            open: NIL,
            empty_chunks: 0,
            used: 0,
        }
    }

    /// Entries in all lists.
    pub(crate) const fn len(&self) -> usize {
        self.used
    }

    #[inline]
    fn slot(&self, node: u32) -> &Slot {
        &self.chunks[node as usize / CHUNK].slots[node as usize % CHUNK]
    }

    #[inline]
    fn slot_mut(&mut self, node: u32) -> &mut Slot {
        &mut self.chunks[node as usize / CHUNK].slots[node as usize % CHUNK]
    }

    /// The first entry of a list.
    #[inline]
    pub(crate) fn first(&self, list: List) -> Option<&Entry> {
        (list.head != NIL).then(|| self.entry(list.head))?
    }

    /// The entry of a node in a list.
    #[inline]
    pub(crate) fn entry(&self, node: u32) -> Option<&Entry> {
        self.slot(node).entry.as_ref()
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, node: u32) -> Option<&mut Entry> {
        self.slot_mut(node).entry.as_mut()
    }

    /// The entry of a node that may never have been one, if it is in a list of this owner.
    pub(crate) fn owned(&self, node: u32, owner: u32) -> Option<&Entry> {
        let chunk = self.chunks.get(node as usize / CHUNK)?;
        let slot = &chunk.slots[node as usize % CHUNK];
        if slot.owner == owner {
            slot.entry.as_ref()
        } else {
            None
        }
    }

    pub(crate) fn next(&self, node: u32) -> u32 {
        self.slot(node).next
    }

    /// # Panics
    /// Where a list's length, its neighbours or its owner are not what they should be.
    pub(crate) fn check(&self, list: List, owner: u32) {
        let (mut node, mut previous, mut count) = (list.head, NIL, 0);
        while node != NIL {
            let slot = self.slot(node);
            assert!(slot.entry.is_some(), "a list has entries only");
            assert_eq!(slot.previous, previous, "neighbours know each other");
            assert_eq!(slot.owner, owner, "the owner of a list's entry");
            (previous, node) = (node, slot.next);
            count += 1;
        }
        assert_eq!(
            (list.tail, list.len),
            (previous, count),
            "the end of a list"
        );
    }

    /// Looks at every entry of a list, in order.
    pub(crate) fn each(&self, list: List, mut look: impl FnMut(&Entry)) {
        let mut node = list.head;
        while node != NIL {
            self.entry(node).into_iter().for_each(&mut look);
            node = self.next(node);
        }
    }

    /// The tag of a node's entry, or zero.
    pub(crate) fn tag(&self, node: u32) -> u64 {
        self.entry(node).map_or(0, |entry| entry.tag)
    }

    pub(crate) fn previous(&self, node: u32) -> u32 {
        self.slot(node).previous
    }

    /// Makes a node with these neighbours, which do not know it yet.
    #[inline]
    fn allocate(&mut self, owner: u32, mut entry: Entry, (previous, next): (u32, u32)) -> u32 {
        if self.open == NIL {
            self.add_chunk();
        }
        let index = self.open;
        let chunk = &mut self.chunks[index as usize];
        let place = chunk.first_free;
        let node = index * CHUNK as u32 + place;
        if entry.tag as u32 == NIL {
            entry.tag = (entry.tag & !u64::from(NIL)) | u64::from(node);
        }
        let slot = &mut chunk.slots[place as usize % CHUNK];
        chunk.first_free = slot.next;
        let old = slot.entry.replace(entry);
        debug_assert!(old.is_none(), "a free slot is empty");
        std::mem::forget(old); // nothing to drop, and no need to look
        (slot.previous, slot.next) = (previous, next);
        slot.owner = owner;
        if chunk.used == 0 {
            self.empty_chunks -= 1;
        }
        chunk.used += 1;
        self.used += 1;
        debug_assert!(
            chunk.used as usize <= CHUNK
                && (chunk.first_free == NIL) == (chunk.used as usize == CHUNK),
            "a full chunk has no free slot"
        );
        if chunk.first_free == NIL {
            self.unlink_chunk(index);
        }
        node
    }

    fn add_chunk(&mut self) {
        let slots = Box::new(std::array::from_fn(|place| Slot {
            entry: None,
            next: if place + 1 == CHUNK {
                NIL
            } else {
                place as u32 + 1
            },
            previous: NIL,
            owner: NIL,
        }));
        let index = self.chunks.insert(Chunk {
            slots,
            first_free: 0,
            used: 0,
            next: NIL,
            previous: NIL,
        });
        self.empty_chunks += 1;
        self.link_chunk(index as u32);
    }

    fn link_chunk(&mut self, index: u32) {
        let first = self.open;
        self.chunks[index as usize].next = first;
        self.chunks[index as usize].previous = NIL;
        if first != NIL {
            self.chunks[first as usize].previous = index;
        }
        self.open = index;
    }

    fn unlink_chunk(&mut self, index: u32) {
        let Chunk { next, previous, .. } = self.chunks[index as usize];
        if previous == NIL {
            self.open = next;
        } else {
            self.chunks[previous as usize].next = next;
        }
        if next != NIL {
            self.chunks[next as usize].previous = previous;
        }
    }

    #[inline]
    fn free(&mut self, node: u32) -> Option<Entry> {
        let entry = self.slot_mut(node).entry.take()?;
        self.vacate(node);
        Some(entry)
    }

    /// Makes the slot of a node free, and drops what is left in it.
    #[inline]
    fn vacate(&mut self, node: u32) {
        let index = node / CHUNK as u32;
        let chunk = &mut self.chunks[index as usize];
        let was_full = chunk.first_free == NIL;
        let slot = &mut chunk.slots[node as usize % CHUNK];
        slot.entry = None;
        slot.owner = NIL;
        slot.next = chunk.first_free;
        chunk.first_free = node % CHUNK as u32;
        chunk.used -= 1;
        self.used -= 1;
        let is_empty = chunk.used == 0;
        if was_full {
            self.link_chunk(index);
        }
        if is_empty {
            if self.empty_chunks >= SPARE_CHUNKS {
                self.unlink_chunk(index);
                self.chunks.remove(index as usize);
                if self.chunks.len() * 4 < self.chunks.capacity() {
                    self.chunks.shrink_to_fit();
                }
            } else {
                self.empty_chunks += 1;
            }
        }
    }

    /// Appends an entry and returns its node.
    #[inline]
    pub(crate) fn push_back(&mut self, list: &mut List, owner: u32, entry: Entry) -> u32 {
        let node = self.allocate(owner, entry, (list.tail, NIL));
        self.end_with(list, node);
        node
    }

    /// Puts an entry in front and returns its node.
    pub(crate) fn push_front(&mut self, list: &mut List, owner: u32, entry: Entry) -> u32 {
        let node = self.allocate(owner, entry, (NIL, list.head));
        self.begin_with(list, node);
        node
    }

    /// Puts an entry before another of a list and returns its node.
    pub(crate) fn insert_before(
        &mut self,
        list: &mut List,
        other: u32,
        owner: u32,
        entry: Entry,
    ) -> u32 {
        let previous = self.slot(other).previous;
        if previous == NIL {
            return self.push_front(list, owner, entry);
        }
        let node = self.allocate(owner, entry, (previous, other));
        self.slot_mut(previous).next = node;
        self.slot_mut(other).previous = node;
        list.len += 1;
        node
    }

    /// Takes a node out of its list and drops it, returning the entry.
    #[inline]
    pub(crate) fn remove(&mut self, list: &mut List, node: u32) -> Option<Entry> {
        self.unlink(list, node);
        self.free(node)
    }

    /// Takes a node out of its list, and drops its entry where it lies.
    #[inline]
    pub(crate) fn discard(&mut self, list: &mut List, node: u32) {
        self.unlink(list, node);
        self.vacate(node);
    }

    #[inline]
    pub(crate) fn pop_front(&mut self, list: &mut List) -> Option<Entry> {
        if list.is_empty() {
            return None;
        }
        self.remove(list, list.head)
    }

    /// Moves a node from one list to the end of another.
    pub(crate) fn move_back(&mut self, from: &mut List, to: &mut List, node: u32) {
        self.unlink(from, node);
        self.link_back(to, node);
    }

    /// Moves a node from one list to the front of another.
    pub(crate) fn move_front(&mut self, from: &mut List, to: &mut List, node: u32) {
        self.unlink(from, node);
        self.link_front(to, node);
    }

    /// Joins two lists: `first`, then `second`.
    pub(crate) fn join(&mut self, first: List, second: List) -> List {
        if first.is_empty() {
            return second;
        }
        if second.is_empty() {
            return first;
        }
        self.slot_mut(first.tail).next = second.head;
        self.slot_mut(second.head).previous = first.tail;
        List {
            head: first.head,
            tail: second.tail,
            len: first.len + second.len,
        }
    }

    #[inline]
    fn link_back(&mut self, list: &mut List, node: u32) {
        let slot = self.slot_mut(node);
        (slot.previous, slot.next) = (list.tail, NIL);
        self.end_with(list, node);
    }

    /// Makes a node the last of a list, which knows its neighbours.
    #[inline]
    fn end_with(&mut self, list: &mut List, node: u32) {
        if list.tail == NIL {
            list.head = node;
        } else {
            self.slot_mut(list.tail).next = node;
        }
        list.tail = node;
        list.len += 1;
    }

    fn link_front(&mut self, list: &mut List, node: u32) {
        let slot = self.slot_mut(node);
        (slot.previous, slot.next) = (NIL, list.head);
        self.begin_with(list, node);
    }

    /// Makes a node the first of a list, which knows its neighbours.
    fn begin_with(&mut self, list: &mut List, node: u32) {
        if list.head == NIL {
            list.tail = node;
        } else {
            self.slot_mut(list.head).previous = node;
        }
        list.head = node;
        list.len += 1;
    }

    #[inline]
    fn unlink(&mut self, list: &mut List, node: u32) {
        debug_assert!(list.len > 0, "a node leaves the list that it is in");
        let Slot { next, previous, .. } = *self.slot(node);
        if previous == NIL {
            list.head = next;
        } else {
            self.slot_mut(previous).next = next;
        }
        if next == NIL {
            list.tail = previous;
        } else {
            self.slot_mut(next).previous = previous;
        }
        list.len -= 1;
        debug_assert!(
            (list.len == 0) == (list.head == NIL) && (list.head == NIL) == (list.tail == NIL),
            "an empty list has no ends"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn entry(tag: u64) -> Entry {
        Entry {
            message: None,
            context: None,
            tag,
            group_tag: 0,
            group: NIL,
            failures: Failures::default(),
            qos: Qos::AtMostOnce,
            phase: Phase::Pending,
            retain: false,
            redelivered: false,
            retained_copy: false,
            is_kept: false,
            position: 0,
            is_owned: false,
            is_claimed: false,
            is_to_be_judged: false,
            is_to_be_selected: false,
        }
    }

    #[test]
    fn lists_behave_like_queues_and_memory_is_given_back() {
        let mut nodes = Nodes::new();
        let mut lists = [List::default(); 5];
        let mut models: [VecDeque<u64>; 5] = std::array::from_fn(|_| VecDeque::new());
        let mut random = 1_u64;
        for step in 0..200_000_u64 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let (a, b) = ((random >> 40) as usize % 5, (random >> 50) as usize % 5);
            // Grows for a while, then shrinks.
            let grow = if step / 20_000 % 2 == 0 { 6 } else { 2 };
            match (random >> 33) % 10 {
                0 => {
                    nodes.push_front(&mut lists[a], a as u32, entry(step));
                    models[a].push_front(step);
                }
                n if n < grow => {
                    nodes.push_back(&mut lists[a], a as u32, entry(step));
                    models[a].push_back(step);
                }
                6 if a != b && !lists[a].is_empty() => {
                    let [from, to] = lists.get_disjoint_mut([a, b]).unwrap();
                    let node = from.first();
                    nodes.move_back(from, to, node);
                    let tag = models[a].pop_front().unwrap();
                    models[b].push_back(tag);
                }
                7 if !lists[a].is_empty() => {
                    let node = lists[a].first();
                    nodes.discard(&mut lists[a], node);
                    models[a].pop_front();
                }
                _ => {
                    let popped = nodes.pop_front(&mut lists[a]).map(|entry| entry.tag);
                    assert_eq!(popped, models[a].pop_front());
                }
            }
            assert_eq!(lists[a].len(), models[a].len());
        }
        assert_eq!(nodes.len(), models.iter().map(VecDeque::len).sum::<usize>());
        for (list, model) in lists.iter_mut().zip(models) {
            let mut node = list.first();
            for tag in &model {
                assert_eq!(nodes.entry(node).unwrap().tag, *tag);
                node = nodes.next(node);
            }
            assert_eq!(node, NIL);
            while nodes.pop_front(list).is_some() {}
        }
        assert_eq!(nodes.len(), 0);
        assert!(nodes.chunks.len() <= SPARE_CHUNKS as usize);
    }
}
