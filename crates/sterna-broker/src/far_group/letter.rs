//! What roots and branches say to each other, and its form between nodes.

use std::sync::Arc;

use bytes::Bytes;

use super::Peer;
use crate::message::Message;
use crate::records::{Fields, put_bytes, put_number};

/// A letter about a group, for another node.
#[derive(Clone, Debug)]
pub struct GroupLetter {
    /// The node that is to have it; `None` for all other nodes.
    pub to: Option<Arc<str>>,
    /// The letter, for [`Broker::group_letter`](crate::Broker::group_letter) of the shard that is the home of
    /// [`group_of_letter`].
    pub record: Vec<u8>,
}

/// The whole filter of the group that a letter is about; `None` for what is no letter.
#[must_use]
pub fn group_of_letter(record: &[u8]) -> Option<&str> {
    Fields::new(record).text()
}

/// A message that a root gives.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// Its place in the log; zero where it is not there.
    pub(crate) position: u64,
    pub(crate) failures: u16,
    pub(crate) redelivered: bool,
    pub(crate) message: Arc<Message>,
}

impl Back {
    /// A message that a member may have had.
    pub(crate) const fn sent(position: u64) -> Self {
        Self::new(position, 0, true)
    }

    /// A message that was returned for no reason of its own.
    pub(crate) const fn new(position: u64, failures: u16, was_sent: bool) -> Self {
        Self {
            position,
            failures,
            was_sent,
            is_refused: false,
            is_forbidden: false,
        }
    }
}

/// A message that a branch returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Back {
    pub(crate) position: u64,
    pub(crate) failures: u16,
    /// Whether a member may have it.
    pub(crate) was_sent: bool,
    /// Whether no member takes it that takes others.
    pub(crate) is_refused: bool,
    /// Whether no member of the branch may get it.
    pub(crate) is_forbidden: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Word {
    /// To all: who has the root?
    Seek,
    /// The root is here. Of two, the one of the higher epoch is.
    Hello { epoch: u64 },
    /// From here on a branch has these messages, and no others. It has done with some since it said so last.
    Attend {
        epoch: u64,
        attendance: u64,
        held: Vec<u64>,
        settled: Vec<u64>,
        /// How many messages it takes in this attendance.
        most: u64,
    },
    /// The root knows of the attendance; these messages are not the branch's any more.
    Welcome {
        epoch: u64,
        attendance: u64,
        void: Vec<u64>,
    },
    Give {
        epoch: u64,
        attendance: u64,
        messages: Vec<Given>,
    },
    Report {
        epoch: u64,
        attendance: u64,
        settled: Vec<u64>,
        returned: Vec<Back>,
        most: u64,
    },
    /// A branch has no members and no messages any more, or never had.
    Leave { epoch: u64 },
}

fn put_positions(out: &mut Vec<u8>, positions: &[u64]) {
    put_number(out, positions.len() as u64);
    for &position in positions {
        put_number(out, position);
    }
}

fn positions(fields: &mut Fields<'_>) -> Option<Vec<u64>> {
    let count = fields.number()?;
    // Each takes a byte at least, so no more are made than there are.
    (0..count).map(|_| fields.number()).collect()
}

const WAS_SENT: u8 = 1;
const IS_REFUSED: u8 = 2;
const IS_FORBIDDEN: u8 = 4;

/// Encodes a letter about a group, from a process of this incarnation.
pub(crate) fn encode(group: &str, incarnation: u64, word: &Word) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, group.as_bytes());
    put_number(&mut out, incarnation);
    match word {
        Word::Seek => out.push(b's'),
        Word::Hello { epoch } => {
            out.push(b'h');
            put_number(&mut out, *epoch);
        }
        Word::Attend {
            epoch,
            attendance,
            held,
            settled,
            most,
        } => {
            out.push(b'a');
            for number in [*epoch, *attendance, *most] {
                put_number(&mut out, number);
            }
            put_positions(&mut out, held);
            put_positions(&mut out, settled);
        }
        Word::Welcome {
            epoch,
            attendance,
            void,
        } => {
            out.push(b'w');
            put_number(&mut out, *epoch);
            put_number(&mut out, *attendance);
            put_positions(&mut out, void);
        }
        Word::Give {
            epoch,
            attendance,
            messages,
        } => {
            out.push(b'g');
            put_number(&mut out, *epoch);
            put_number(&mut out, *attendance);
            let mut record = Vec::new();
            for given in messages {
                put_number(&mut out, given.position);
                put_number(&mut out, u64::from(given.failures));
                out.push(u8::from(given.redelivered));
                record.clear();
                given.message.encode(&mut record);
                put_bytes(&mut out, &record);
            }
        }
        Word::Report {
            epoch,
            attendance,
            settled,
            returned,
            most,
        } => {
            out.push(b'r');
            for number in [*epoch, *attendance, *most] {
                put_number(&mut out, number);
            }
            put_positions(&mut out, settled);
            for back in returned {
                put_number(&mut out, back.position);
                put_number(&mut out, u64::from(back.failures));
                let flag = |is_set, flag| if is_set { flag } else { 0 };
                out.push(
                    flag(back.was_sent, WAS_SENT)
                        | flag(back.is_refused, IS_REFUSED)
                        | flag(back.is_forbidden, IS_FORBIDDEN),
                );
            }
        }
        Word::Leave { epoch } => {
            out.push(b'l');
            put_number(&mut out, *epoch);
        }
    }
    out
}

/// Reads a letter from a node: its group, the process that sent it, and what it says. `None` for what is no letter.
pub(crate) fn decode(node: &Arc<str>, record: &[u8]) -> Option<(Arc<str>, Peer, Word)> {
    let mut fields = Fields::new(record);
    let group = Arc::from(fields.text()?);
    let from = Peer {
        node: Arc::clone(node),
        incarnation: fields.number()?,
    };
    let fields = &mut fields;
    let word = match fields.byte()? {
        b's' => Word::Seek,
        b'h' => Word::Hello {
            epoch: fields.number()?,
        },
        b'a' => {
            let (epoch, attendance) = (fields.number()?, fields.number()?);
            let most = fields.number()?;
            Word::Attend {
                epoch,
                attendance,
                held: positions(fields)?,
                settled: positions(fields)?,
                most,
            }
        }
        b'w' => Word::Welcome {
            epoch: fields.number()?,
            attendance: fields.number()?,
            void: positions(fields)?,
        },
        b'g' => {
            let (epoch, attendance) = (fields.number()?, fields.number()?);
            let mut messages = Vec::new();
            while !fields.rest().is_empty() {
                messages.push(Given {
                    position: fields.number()?,
                    failures: u16::try_from(fields.number()?).ok()?,
                    redelivered: fields.byte()? != 0,
                    message: Arc::new(
                        Message::decode(Bytes::copy_from_slice(fields.bytes()?)).ok()?,
                    ),
                });
            }
            Word::Give {
                epoch,
                attendance,
                messages,
            }
        }
        b'r' => {
            let (epoch, attendance) = (fields.number()?, fields.number()?);
            let most = fields.number()?;
            let settled = positions(fields)?;
            let mut returned = Vec::new();
            while !fields.rest().is_empty() {
                let position = fields.number()?;
                let failures = u16::try_from(fields.number()?).ok()?;
                let flags = fields.byte()?;
                returned.push(Back {
                    position,
                    failures,
                    was_sent: flags & WAS_SENT != 0,
                    is_refused: flags & IS_REFUSED != 0,
                    is_forbidden: flags & IS_FORBIDDEN != 0,
                });
            }
            Word::Report {
                epoch,
                attendance,
                settled,
                returned,
                most,
            }
        }
        b'l' => Word::Leave {
            epoch: fields.number()?,
        },
        _ => return None,
    };
    fields.rest().is_empty().then_some((group, from, word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{MessageHeader, Qos};

    fn words() -> Vec<Word> {
        let header = MessageHeader {
            qos: Qos::AtLeastOnce,
            ..MessageHeader::default()
        };
        let message = Message::copy("t", &[], b"payload", header).map(Arc::new);
        let message = message.expect("a small message");
        let back = |position| Back {
            position,
            failures: 3,
            was_sent: position % 2 == 0,
            is_refused: position % 3 == 0,
            is_forbidden: position % 5 == 0,
        };
        let given = |position| Given {
            position,
            failures: 2,
            redelivered: position % 2 == 0,
            message: Arc::clone(&message),
        };
        vec![
            Word::Seek,
            Word::Hello { epoch: 300 },
            Word::Attend {
                epoch: 1,
                attendance: 2,
                held: vec![1 << 40, 7],
                settled: vec![],
                most: 20,
            },
            Word::Welcome {
                epoch: 1,
                attendance: 2,
                void: vec![9],
            },
            Word::Give {
                epoch: 1,
                attendance: 2,
                messages: vec![given(4), given(5)],
            },
            Word::Report {
                epoch: 1,
                attendance: 2,
                settled: vec![1, 2, 3],
                returned: vec![back(6), back(7)],
                most: 4,
            },
            Word::Leave { epoch: 5 },
        ]
    }

    #[test]
    fn letters_come_back_and_parts_of_them_do_not() {
        let node = Arc::from("a");
        for word in words() {
            let record = encode("$share/g/t", 12, &word);
            assert_eq!(group_of_letter(&record), Some("$share/g/t"));
            let (group, from, read) = decode(&node, &record).expect("its own form");
            assert_eq!(
                (&*group, &*from.node, from.incarnation),
                ("$share/g/t", "a", 12)
            );
            // Messages of equal content have equal records.
            assert_eq!(encode(&group, from.incarnation, &read), record);
            for end in 0..record.len() {
                let cut = decode(&node, &record[..end]);
                let is_shorter = |word: &Word| match word {
                    Word::Give { messages, .. } => messages.len() < 2,
                    Word::Report { returned, .. } => returned.len() < 2,
                    _ => false,
                };
                assert!(
                    cut.is_none_or(|(_, _, word)| is_shorter(&word)),
                    "{word:?} cut off at {end}"
                );
            }
        }
        assert!(decode(&node, &[1, b'g', 0, b'?']).is_none());
    }
}
