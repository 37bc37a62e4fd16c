//! A session's record in NATS: who has it, and the will that is to be published when its owner dies.
//!
//! Numbers have seven bits a byte, the lowest first; a text has its length in front. `docs/cluster.md` has the
//! form as a table.

use std::sync::Arc;

use sterna_broker::SessionName;

/// The version that this node writes, and the only one that it reads.
const VERSION: u8 = 1;

/// The session of a record, in few bytes: the digest of its name.
pub type Key = [u8; 16];

/// A process: a node's name, and a number that is higher after each of its starts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Process {
    /// The node's name.
    pub node: Arc<str>,
    /// Its incarnation.
    pub incarnation: u64,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The process that has the session, or had it last.
    pub owner: Process,
    /// Whether the session has ended.
    pub is_over: bool,
    /// Whether it outlives its connection: other nodes find what it has.
    pub is_kept: bool,
    /// A number by which its writer knows it again.
    pub serial: u64,
    /// The session's name.
    pub name: SessionName,
    /// The will, as the broker writes it.
    pub will: Option<Arc<[u8]>>,
    /// The epoch of the ownership, where the record was written again after NATS had lost it.
    pub since: Option<u64>,
}

/// Flags.
const IS_OVER: u8 = 1;
const IS_KEPT: u8 = 2;
const HAS_SINCE: u8 = 4;

impl Record {
    /// The bytes that NATS keeps.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let flags = (u8::from(self.is_over) * IS_OVER)
            | (u8::from(self.is_kept) * IS_KEPT)
            | (u8::from(self.since.is_some()) * HAS_SINCE);
        let mut out = vec![VERSION, flags];
        put_bytes(&mut out, self.owner.node.as_bytes());
        put_number(&mut out, self.owner.incarnation);
        put_number(&mut out, self.serial);
        put_bytes(&mut out, self.name.text().as_bytes());
        match &self.will {
            Some(will) => {
                put_number(&mut out, will.len() as u64 + 1);
                out.extend_from_slice(will);
            }
            None => put_number(&mut out, 0),
        }
        if let Some(since) = self.since {
            put_number(&mut out, since);
        }
        out
    }

    /// Reads what was encoded; `None` for another version, or what is no record.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&version, rest) = bytes.split_first()?;
        let (&flags, rest) = rest.split_first()?;
        if version != VERSION || flags > IS_OVER | IS_KEPT | HAS_SINCE {
            return None;
        }
        let mut fields = Fields(rest);
        let node = Arc::from(fields.text()?);
        let incarnation = fields.number()?;
        let serial = fields.number()?;
        let name = SessionName::of_text(fields.text()?)?;
        let will = fields.optional()?.map(Arc::from);
        let since = if flags & HAS_SINCE == 0 {
            None
        } else {
            Some(fields.number()?)
        };
        fields.0.is_empty().then_some(Self {
            owner: Process { node, incarnation },
            is_over: flags & IS_OVER != 0,
            is_kept: flags & IS_KEPT != 0,
            serial,
            name,
            will,
            since,
        })
    }
}

pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The highest number that is taken from others: of a process, an epoch, a round or a position. NATS numbers entries from
/// the microseconds since 1970 on, and positions have ten bits more, so true ones stay below it. A number that is
/// derived from one cannot overflow.
pub(crate) const HIGHEST_NUMBER: u64 = i64::MAX as u64;

/// Reads a number in a word of others.
pub(crate) fn number_in(word: &str) -> Option<u64> {
    word.parse().ok().filter(|number| *number <= HIGHEST_NUMBER)
}

/// Reads the number of a process in a word of others: it is never 0.
pub(crate) fn incarnation_in(word: &str) -> Option<u64> {
    number_in(word).filter(|number| *number > 0)
}

/// Takes a number off the front of some bytes; `None` also where it is above [`HIGHEST_NUMBER`].
pub(crate) fn number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return (number <= HIGHEST_NUMBER).then_some(number);
        }
    }
    None
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn number(&mut self) -> Option<u64> {
        number(&mut self.0)
    }

    fn slice(&mut self, len: u64) -> Option<&'a [u8]> {
        let (slice, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(slice)
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = self.number()?;
        std::str::from_utf8(self.slice(len)?).ok()
    }

    /// A field that may be missing: its length and one, or zero.
    #[allow(clippy::option_option)] // missing is not malformed
    fn optional(&mut self) -> Option<Option<&'a [u8]>> {
        match self.number()?.checked_sub(1) {
            None => Some(None),
            Some(len) => Some(Some(self.slice(len)?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: SessionName, will: Option<&[u8]>) -> Record {
        Record {
            owner: Process {
                node: "node-1".into(),
                incarnation: 300,
            },
            is_over: will.is_none(),
            is_kept: name.user().is_some(),
            serial: 7,
            name,
            will: will.map(Into::into),
            since: None,
        }
    }

    #[test]
    fn records_come_back() {
        for user in [None, Some(""), Some("eve")] {
            for will in [None, Some(&b""[..]), Some(&[0, 255, 3][..])] {
                for since in [None, Some(0), Some(1_790_000_000_000_000)] {
                    let record = Record {
                        since,
                        ..record(SessionName::new(user, "a/ü"), will)
                    };
                    assert_eq!(Record::decode(&record.encode()), Some(record));
                }
            }
        }
    }

    #[test]
    fn what_is_no_record_is_none() {
        let bytes = record(SessionName::new(Some("eve"), "a"), Some(&[1, 2, 3])).encode();
        for end in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes[..end]), None, "cut off at {end}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(Record::decode(&longer), None);
        let mut other = bytes;
        other[0] = 2;
        assert_eq!(Record::decode(&other), None, "another version");
        let forged = |incarnation, since| {
            let mut forged = record(SessionName::new(None, "a"), None);
            forged.owner.incarnation = incarnation;
            forged.since = Some(since);
            Record::decode(&forged.encode())
        };
        assert!(forged(HIGHEST_NUMBER, HIGHEST_NUMBER).is_some());
        assert_eq!(forged(HIGHEST_NUMBER + 1, 7), None);
        assert_eq!(forged(7, u64::MAX), None);
    }
}
