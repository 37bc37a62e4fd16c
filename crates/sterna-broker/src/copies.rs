//! The copies that a shard makes of messages in a turn of its loop, which are bounded as other work is.
//!
//! A PUBLISH of a few bytes may go to very many readers, or be matched with very many filters. So front doors ask before each
//! message whether the copies of the turn are made. Then only messages that go to few readers are published in this turn.
//! The others wait for a turn of their own, each behind those that came before it.
//!
//! One copy is one delivery. Each 16 KiB of the body count as one more, and so do some places of the filters' tree that were
//! looked at. Queues and connections share a body, and what writes it to connections has a time of its own in each turn.
//! Bytes that are read for one session, or copied for one connection, count more. A change of a route counts as some: a
//! client may subscribe and unsubscribe without end. So does the end of a session's connection. Retained messages that a
//! subscription asks for count, too.

/// Parts of a copy, in which it is counted.
const PARTS: u64 = 16;

/// Copies that a KiB counts as which was copied, or written in another form, for one connection. So the default limit lets
/// a turn copy 4 MiB.
const COPIED_KIB_COPIES: u64 = 4;

/// Copies that a change of a route counts as, and the end of a session's connection.
pub(crate) const ROUTE_COPIES: usize = 8;

/// Copies of a message that never waits. The work for it is about that of reading it.
pub(crate) const LIGHT: usize = 8;

/// Places of the filters' tree that are looked at to find out whether a message is one of these.
pub(crate) const LIGHT_PLACES: u64 = LIGHT as u64 * PARTS;

/// The copies of a turn.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    parts: u64,
}

impl Copies {
    /// A turn begins.
    pub(crate) const fn begin_turn(&mut self) {
        self.parts = 0;
    }

    /// A message with a body of this length goes to so many queues.
    #[inline]
    pub(crate) const fn made(&mut self, targets: usize, body_bytes: usize) {
        let parts_each = PARTS + body_bytes as u64 / 1024;
        self.parts += targets as u64 * parts_each;
    }

    /// A message with a body of this length was read in the log for one session.
    #[inline]
    pub(crate) const fn read(&mut self, body_bytes: usize) {
        self.parts += PARTS + body_bytes as u64 * PARTS / 1024;
    }

    /// Bytes were copied for one connection.
    #[inline]
    pub(crate) const fn copied(&mut self, bytes: usize) {
        self.parts += bytes as u64 * COPIED_KIB_COPIES * PARTS / 1024;
    }

    /// The copies so far, with this number of places that were looked at.
    pub(crate) const fn count(&self, visited: u64) -> u64 {
        (self.parts + visited) / PARTS
    }
}
