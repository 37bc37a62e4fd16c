//! The behaviour of queues when the process is short of memory.

use crate::account::Account;
use crate::message::Message;
use crate::queues::Queues;

/// How short memory is. Each does what those before it do, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub enum Pressure {
    /// There is enough.
    #[default]
    None,
    /// Sessions that read the log settle what they have before they get more.
    Settle,
    /// Messages that wait for a session and are in the log leave memory. They are read again when they are due.
    MoveToLog,
    /// Messages of QoS 0 that wait are dropped, then older ones where that is the queues' policy. Only
    /// consumers that keep up get new ones. No topic gets its first retained message.
    Drop,
    /// There are no new sessions, subscriptions and wills.
    Refuse,
}

impl Pressure {
    /// The pressure of a number; the highest for one that is none of them.
    pub(crate) const fn of_number(number: u8) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Settle,
            2 => Self::MoveToLog,
            3 => Self::Drop,
            _ => Self::Refuse,
        }
    }
}

/// Messages that a session may have, waiting or sent, and still keep up under pressure.
pub(crate) const PRESSED_MESSAGES: usize = 16;
/// The same in bytes of their bodies.
pub(crate) const PRESSED_BYTES: u64 = 64 << 10;

impl Account {
    /// Whether a session has little enough to keep up under pressure, with another body.
    const fn is_light(&self, body_bytes: u64) -> bool {
        let held_bytes = self.pending_bytes + self.sent_bytes;
        held_bytes == 0 || held_bytes + body_bytes <= PRESSED_BYTES
    }
}

impl<P> Queues<P> {
    /// Whether a session that is to acknowledge a message still keeps up.
    pub(crate) fn is_light(&self, slot: u32, message: &Message) -> bool {
        let session = &self.sessions[slot];
        session.account.is_light(message.body_bytes() as u64)
            && session.pending.len() + session.ledger.len() < PRESSED_MESSAGES
    }

    /// Messages that a session reads ahead in the log, in number and bytes.
    pub(crate) fn read_ahead(&self) -> (usize, usize) {
        let limits = &self.limits;
        if self.settles_first() {
            let messages = limits.read_ahead_messages.min(PRESSED_MESSAGES);
            let bytes = self.part_bytes() as usize;
            (messages, limits.read_ahead_bytes.min(bytes))
        } else {
            (limits.read_ahead_messages, limits.read_ahead_bytes)
        }
    }

    /// Whether sessions that read the log settle what they have before they get more: memory is short, or they have much
    /// of it together.
    pub(crate) fn settles_first(&self) -> bool {
        self.pressure >= Pressure::Settle || self.reads.is_tight()
    }

    /// Bytes that such a session may have.
    pub(crate) fn part_bytes(&self) -> u64 {
        if self.reads.is_tight() {
            self.reads.part_bytes(self.counters.sessions_connected)
        } else {
            PRESSED_BYTES
        }
    }
}
