//! Wills that wait, in memory and as a store keeps them.

use bytes::Bytes;

use crate::message::Message;
use crate::records::{Fields, put_number};

/// A will in waiting.
#[derive(Debug)]
pub(crate) struct SessionWill {
    pub(crate) message: Message,
    pub(crate) delay_s: u32,
    pub(crate) expiry_s: Option<u32>,
    /// Until when the rights hold that came with its client; `None` if it does not need them.
    pub(crate) given_until_ms: Option<u64>,
    /// When to publish it, once the connection is lost.
    pub(crate) due_ms: u64,
    /// Whether a store has it.
    pub(crate) is_stored: bool,
    /// Whether its client may be a replay: a store is not told of it before that is known.
    pub(crate) is_unproved: bool,
    /// Whether its connection ended with the broker. Then it goes without a word where its client returns first, however
    /// it does.
    pub(crate) is_orphaned: bool,
}

impl SessionWill {
    /// Milliseconds of its delay.
    pub(crate) fn delay_ms(&self) -> u64 {
        u64::from(self.delay_s) * 1_000
    }

    /// Its record.
    pub(crate) fn record(&self, wait: Wait) -> Vec<u8> {
        let terms = (self.expiry_s, self.given_until_ms.is_some());
        encode_record((wait, self.delay_s), terms, &self.message)
    }
}

/// The event that a will waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// The end of its connection, which is open.
    Connection,
    /// This time, in milliseconds since the Unix epoch: its connection was lost.
    Lost(u64),
    /// The same, where its connection ended with the broker.
    Orphaned(u64),
}

/// A will, as stored.
#[derive(Debug)]
pub(crate) struct WillRecord {
    pub(crate) wait: Wait,
    pub(crate) delay_s: u32,
    pub(crate) expiry_s: Option<u32>,
    /// Whether it needs rights that came with its client.
    pub(crate) is_given: bool,
    pub(crate) message: Message,
}

/// The record of a will with a delay in seconds. `terms` are for how many seconds it holds, and whether it needs rights
/// that came with its client.
pub(crate) fn encode_record(
    (wait, delay_s): (Wait, u32),
    (expiry_s, is_given): (Option<u32>, bool),
    message: &Message,
) -> Vec<u8> {
    let mut out = Vec::new();
    let (kind, due_ms) = match wait {
        Wait::Connection => (0, None),
        Wait::Lost(due_ms) => (1, Some(due_ms)),
        Wait::Orphaned(due_ms) => (2, Some(due_ms)),
    };
    out.push(kind);
    if let Some(due_ms) = due_ms {
        put_number(&mut out, due_ms);
    }
    put_number(&mut out, u64::from(delay_s));
    put_terms(&mut out, expiry_s, is_given);
    message.encode(&mut out);
    out
}

impl WillRecord {
    /// A will, as [`encode_record`] writes it; `None` for what is none.
    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(record);
        let wait = match fields.byte()? {
            0 => Wait::Connection,
            1 => Wait::Lost(fields.number()?),
            2 => Wait::Orphaned(fields.number()?),
            _ => return None,
        };
        let delay_s = u32::try_from(fields.number()?).ok()?;
        let (expiry_s, is_given) = terms_of(&mut fields)?;
        Some(Self {
            wait,
            delay_s,
            expiry_s,
            is_given,
            message: Message::decode(Bytes::copy_from_slice(fields.rest())).ok()?,
        })
    }
}

/// Beside a will's expiry: the will needs rights that came with its client.
const GIVEN: u64 = 1 << 40;

/// Writes for how many seconds a will holds, and whether it needs rights that came with its client.
pub(crate) fn put_terms(out: &mut Vec<u8>, expiry_s: Option<u32>, is_given: bool) {
    let expiry = expiry_s.map_or(0, |expiry_s| u64::from(expiry_s) + 1);
    put_number(out, if is_given { expiry | GIVEN } else { expiry });
}

/// For how many seconds a will holds, and whether it needs rights that came with its client; `None` for what is
/// neither.
pub(crate) fn terms_of(fields: &mut Fields<'_>) -> Option<(Option<u32>, bool)> {
    let terms = fields.number()?;
    let expiry_s = match (terms & !GIVEN).checked_sub(1) {
        None => None,
        Some(expiry_s) => Some(u32::try_from(expiry_s).ok()?),
    };
    Some((expiry_s, terms & GIVEN != 0))
}
