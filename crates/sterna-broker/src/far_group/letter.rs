//! Letters between roots and branches, and their form between nodes.

use std::sync::Arc;

use bytes::Bytes;

use super::Peer;
use crate::attempts::Failures;
use crate::mail::Address;
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

/// A letter that is read and written again: the same bytes, for those of a node. `None` for what is no letter.
#[must_use]
pub fn rewritten_letter(record: &[u8]) -> Option<Vec<u8>> {
    let heard = decode(&Arc::from(""), record)?;
    let (group, from) = (&heard.group, heard.from.incarnation);
    Some(encode(group, from, heard.is_queue, &heard.word))
}

/// A message that a root gives.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// Its place in the log; zero where it is not there.
    pub(crate) position: u64,
    pub(crate) failures: Failures,
    pub(crate) redelivered: bool,
    pub(crate) message: Arc<Message>,
}

impl Back {
    /// A message that a member may have had.
    pub(crate) const fn sent(position: u64) -> Self {
        Self::new(position, Failures { said: 0, lost: 0 }, true)
    }

    /// A message that was returned for no reason of its own.
    pub(crate) const fn new(position: u64, failures: Failures, was_sent: bool) -> Self {
        Self {
            position,
            failures,
            was_sent,
            is_lost: false,
            is_refused: false,
            is_forbidden: false,
            is_rejected: false,
            changed: None,
        }
    }
}

/// A message that a branch returns.
#[derive(Clone, Debug)]
pub(crate) struct Back {
    pub(crate) position: u64,
    pub(crate) failures: Failures,
    /// Whether a member may have it.
    pub(crate) was_sent: bool,
    /// Whether it comes back because its member was lost.
    pub(crate) is_lost: bool,
    /// Whether no member takes it that takes others.
    pub(crate) is_refused: bool,
    /// Whether no member of the branch may get it.
    pub(crate) is_forbidden: bool,
    /// Of a queue: whether a member has rejected it.
    pub(crate) is_rejected: bool,
    /// Of a queue: what a member has put into its place.
    pub(crate) changed: Option<Arc<Message>>,
}

/// The browser of a queue, and the place it has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Looking {
    pub(crate) address: Address,
    pub(crate) attendance: u32,
    /// The place of the last message that was seen.
    pub(crate) after: Option<u64>,
}

/// Words of roots and branches.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    /// To all: who has the root?
    Seek,
    /// The root is here. Of two, the one of the higher epoch is.
    Hello { epoch: u64 },
    /// To all: whether the queue has no room for what is published.
    Full { epoch: u64, is_full: bool },
    /// A branch's member looks at a queue, and takes at most `limit` messages.
    Look {
        epoch: u64,
        looking: Looking,
        limit: u32,
    },
    /// Has everything been given that this branch had said it takes?
    Ask {
        epoch: u64,
        attendance: u64,
        number: u64,
    },
    /// It has.
    Done {
        epoch: u64,
        attendance: u64,
        number: u64,
    },
    /// The messages that a browser sees, and where it goes on if there are more.
    Seen {
        epoch: u64,
        looking: Looking,
        messages: Vec<Arc<Message>>,
    },
    /// From here on a branch has these messages, and no others. It has done with some since it said so last.
    Attend {
        epoch: u64,
        attendance: u64,
        held: Vec<u64>,
        settled: Vec<u64>,
        /// How many messages it takes in this attendance.
        most: u64,
        /// Of a queue: members that are connected.
        members: u32,
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
        /// Of a queue: members that are connected.
        members: u32,
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
    (0..count).map(|_| fields.place()).collect()
}

const WAS_SENT: u8 = 1;
const IS_REFUSED: u8 = 2;
const IS_FORBIDDEN: u8 = 4;
const IS_REJECTED: u8 = 8;
const IS_CHANGED: u8 = 16;
const IS_LOST: u8 = 32;

fn put_message(out: &mut Vec<u8>, message: &Message) {
    let mut record = Vec::new();
    message.encode(&mut record);
    put_bytes(out, &record);
}

fn message(fields: &mut Fields<'_>) -> Option<Arc<Message>> {
    let record = Bytes::copy_from_slice(fields.bytes()?);
    Message::decode(record).ok().map(Arc::new)
}

fn put_returned(out: &mut Vec<u8>, returned: &[Back], is_queue: bool) {
    for back in returned {
        put_number(out, back.position);
        put_number(out, back.failures.to_number());
        let changed = back.changed.as_ref().filter(|_| is_queue);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        out.push(
            flag(back.was_sent, WAS_SENT)
                | flag(back.is_lost, IS_LOST)
                | flag(back.is_refused, IS_REFUSED)
                | flag(back.is_forbidden, IS_FORBIDDEN)
                | flag(back.is_rejected && is_queue, IS_REJECTED)
                | flag(changed.is_some(), IS_CHANGED),
        );
        if let Some(changed) = changed {
            put_message(out, changed);
        }
    }
}

fn returned(fields: &mut Fields<'_>, is_queue: bool) -> Option<Vec<Back>> {
    let mut returned = Vec::new();
    while !fields.rest().is_empty() {
        let position = fields.place()?;
        let failures = Failures::from_number(fields.number()?)?;
        let flags = fields.byte()?;
        let changed = if flags & IS_CHANGED != 0 && is_queue {
            Some(message(fields)?)
        } else {
            None
        };
        returned.push(Back {
            position,
            failures,
            was_sent: flags & WAS_SENT != 0,
            is_lost: flags & IS_LOST != 0,
            is_refused: flags & IS_REFUSED != 0,
            is_forbidden: flags & IS_FORBIDDEN != 0,
            is_rejected: flags & IS_REJECTED != 0 && is_queue,
            changed,
        });
    }
    Some(returned)
}

fn put_looking(out: &mut Vec<u8>, looking: &Looking) {
    let Looking {
        address,
        attendance,
        after,
    } = looking;
    let numbers = [
        u64::from(address.shard),
        u64::from(address.slot),
        u64::from(address.generation),
        u64::from(*attendance),
        after.map_or(0, |after| after.saturating_add(1)),
    ];
    for number in numbers {
        put_number(out, number);
    }
}

fn looking(fields: &mut Fields<'_>) -> Option<Looking> {
    Some(Looking {
        address: Address {
            shard: u16::try_from(fields.number()?).ok()?,
            slot: u32::try_from(fields.number()?).ok()?,
            generation: u32::try_from(fields.number()?).ok()?,
        },
        attendance: u32::try_from(fields.number()?).ok()?,
        after: fields.number()?.checked_sub(1),
    })
}

/// The byte that says what a letter is about; of a queue it is the capital one.
const fn tag_of(word: &Word) -> u8 {
    match word {
        Word::Seek => b's',
        Word::Hello { .. } => b'h',
        Word::Full { .. } => b'f',
        Word::Look { .. } => b'b',
        Word::Seen { .. } => b'c',
        Word::Ask { .. } => b'q',
        Word::Done { .. } => b'd',
        Word::Attend { .. } => b'a',
        Word::Welcome { .. } => b'w',
        Word::Give { .. } => b'g',
        Word::Report { .. } => b'r',
        Word::Leave { .. } => b'l',
    }
}

/// Encodes a letter about a group, from a process of this incarnation.
pub(crate) fn encode(group: &str, incarnation: u64, is_queue: bool, word: &Word) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, group.as_bytes());
    put_number(&mut out, incarnation);
    let tag = tag_of(word);
    out.push(if is_queue {
        tag.to_ascii_uppercase()
    } else {
        tag
    });
    match word {
        Word::Seek => {}
        Word::Hello { epoch } | Word::Leave { epoch } => put_number(&mut out, *epoch),
        Word::Full { epoch, is_full } => {
            put_number(&mut out, *epoch);
            out.push(u8::from(*is_full));
        }
        Word::Look {
            epoch,
            looking,
            limit,
        } => {
            put_number(&mut out, *epoch);
            put_looking(&mut out, looking);
            put_number(&mut out, u64::from(*limit));
        }
        Word::Ask {
            epoch,
            attendance,
            number,
        }
        | Word::Done {
            epoch,
            attendance,
            number,
        } => {
            for number in [*epoch, *attendance, *number] {
                put_number(&mut out, number);
            }
        }
        Word::Seen {
            epoch,
            looking,
            messages,
        } => {
            put_number(&mut out, *epoch);
            put_looking(&mut out, looking);
            for message in messages {
                put_message(&mut out, message);
            }
        }
        Word::Attend {
            epoch,
            attendance,
            held,
            settled,
            most,
            members,
        } => {
            for number in [*epoch, *attendance, *most] {
                put_number(&mut out, number);
            }
            put_positions(&mut out, held);
            put_positions(&mut out, settled);
            if is_queue {
                put_number(&mut out, u64::from(*members));
            }
        }
        Word::Welcome {
            epoch,
            attendance,
            void,
        } => {
            put_number(&mut out, *epoch);
            put_number(&mut out, *attendance);
            put_positions(&mut out, void);
        }
        Word::Give {
            epoch,
            attendance,
            messages,
        } => {
            put_number(&mut out, *epoch);
            put_number(&mut out, *attendance);
            for given in messages {
                put_number(&mut out, given.position);
                put_number(&mut out, given.failures.to_number());
                out.push(u8::from(given.redelivered));
                put_message(&mut out, &given.message);
            }
        }
        Word::Report {
            epoch,
            attendance,
            settled,
            returned,
            most,
            members,
        } => {
            for number in [*epoch, *attendance, *most] {
                put_number(&mut out, number);
            }
            put_positions(&mut out, settled);
            if is_queue {
                put_number(&mut out, u64::from(*members));
            }
            put_returned(&mut out, returned, is_queue);
        }
    }
    out
}

/// A letter from a node.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) group: Arc<str>,
    /// The process that has sent it.
    pub(crate) from: Peer,
    /// Whether the group is a queue.
    pub(crate) is_queue: bool,
    pub(crate) word: Word,
}

/// Reads a letter from a node. `None` for what is no letter.
pub(crate) fn decode(node: &Arc<str>, record: &[u8]) -> Option<Heard> {
    let mut fields = Fields::new(record);
    let group = Arc::from(fields.text()?);
    let from = Peer {
        node: Arc::clone(node),
        incarnation: fields.place()?,
    };
    let tag = fields.byte()?;
    let is_queue = tag.is_ascii_uppercase();
    let fields = &mut fields;
    let word = match tag.to_ascii_lowercase() {
        b's' => Word::Seek,
        b'h' => Word::Hello {
            epoch: fields.place()?,
        },
        b'f' if is_queue => Word::Full {
            epoch: fields.place()?,
            is_full: fields.byte()? != 0,
        },
        b'b' if is_queue => Word::Look {
            epoch: fields.place()?,
            looking: looking(fields)?,
            limit: u32::try_from(fields.number()?).ok()?,
        },
        b'q' if is_queue => Word::Ask {
            epoch: fields.place()?,
            attendance: fields.place()?,
            number: fields.number()?,
        },
        b'd' if is_queue => Word::Done {
            epoch: fields.place()?,
            attendance: fields.place()?,
            number: fields.number()?,
        },
        b'c' if is_queue => {
            let (epoch, looking) = (fields.place()?, looking(fields)?);
            let mut messages = Vec::new();
            while !fields.rest().is_empty() {
                messages.push(message(fields)?);
            }
            Word::Seen {
                epoch,
                looking,
                messages,
            }
        }
        b'a' => {
            let (epoch, attendance) = (fields.place()?, fields.place()?);
            let most = fields.number()?;
            let (held, settled) = (positions(fields)?, positions(fields)?);
            let members = if is_queue {
                u32::try_from(fields.number()?).ok()?
            } else {
                0
            };
            Word::Attend {
                epoch,
                attendance,
                held,
                settled,
                most,
                members,
            }
        }
        b'w' => Word::Welcome {
            epoch: fields.place()?,
            attendance: fields.place()?,
            void: positions(fields)?,
        },
        b'g' => {
            let (epoch, attendance) = (fields.place()?, fields.place()?);
            let mut messages = Vec::new();
            while !fields.rest().is_empty() {
                messages.push(Given {
                    position: fields.place()?,
                    failures: Failures::from_number(fields.number()?)?,
                    redelivered: fields.byte()? != 0,
                    message: message(fields)?,
                });
            }
            Word::Give {
                epoch,
                attendance,
                messages,
            }
        }
        b'r' => {
            let (epoch, attendance) = (fields.place()?, fields.place()?);
            let most = fields.number()?;
            let settled = positions(fields)?;
            let members = if is_queue {
                u32::try_from(fields.number()?).ok()?
            } else {
                0
            };
            Word::Report {
                epoch,
                attendance,
                settled,
                returned: returned(fields, is_queue)?,
                most,
                members,
            }
        }
        b'l' => Word::Leave {
            epoch: fields.place()?,
        },
        _ => return None,
    };
    fields.rest().is_empty().then_some(Heard {
        group,
        from,
        is_queue,
        word,
    })
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
            failures: Failures { said: 3, lost: 1 },
            was_sent: position % 2 == 0,
            is_lost: position % 11 == 0,
            is_refused: position % 3 == 0,
            is_forbidden: position % 5 == 0,
            is_rejected: position % 7 == 0,
            changed: (position % 2 == 1).then(|| Arc::clone(&message)),
        };
        let looking = Looking {
            address: Address {
                shard: 1,
                slot: 300,
                generation: 7,
            },
            attendance: 4,
            after: Some(1 << 50),
        };
        let given = |position| Given {
            position,
            failures: Failures { said: 2, lost: 0 },
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
                members: 3,
            },
            Word::Full {
                epoch: 1,
                is_full: true,
            },
            Word::Look {
                epoch: 1,
                looking,
                limit: 100,
            },
            Word::Ask {
                epoch: 1,
                attendance: 2,
                number: 300,
            },
            Word::Done {
                epoch: 1,
                attendance: 2,
                number: 300,
            },
            Word::Seen {
                epoch: 1,
                looking: Looking {
                    after: None,
                    ..looking
                },
                messages: vec![Arc::clone(&message), Arc::clone(&message)],
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
                members: 2,
            },
            Word::Leave { epoch: 5 },
        ]
    }

    const fn is_of_queues_alone(word: &Word) -> bool {
        matches!(
            word,
            Word::Full { .. }
                | Word::Look { .. }
                | Word::Seen { .. }
                | Word::Ask { .. }
                | Word::Done { .. }
        )
    }

    #[test]
    fn letters_come_back_and_parts_of_them_do_not() {
        let node = Arc::from("a");
        for (word, is_queue) in
            (words().into_iter()).flat_map(|one| [(one.clone(), false), (one, true)])
        {
            if is_of_queues_alone(&word) && !is_queue {
                continue;
            }
            let record = encode("$share/g/t", 12, is_queue, &word);
            assert_eq!(group_of_letter(&record), Some("$share/g/t"));
            let heard = decode(&node, &record).expect("its own form");
            assert_eq!(
                (&*heard.group, &*heard.from.node, heard.from.incarnation),
                ("$share/g/t", "a", 12)
            );
            assert_eq!(heard.is_queue, is_queue);
            // Messages of equal content have equal records.
            let again = encode(&heard.group, heard.from.incarnation, is_queue, &heard.word);
            assert_eq!(again, record);
            assert_eq!(rewritten_letter(&record), Some(record.clone()));
            for end in 0..record.len() {
                let cut = decode(&node, &record[..end]);
                let is_shorter = |word: &Word| match word {
                    Word::Give { messages, .. } => messages.len() < 2,
                    Word::Report { returned, .. } => returned.len() < 2,
                    Word::Seen { messages, .. } => messages.len() < 2,
                    _ => false,
                };
                assert!(
                    cut.is_none_or(|heard| is_shorter(&heard.word)),
                    "{word:?} cut off at {end}"
                );
            }
        }
        assert!(decode(&node, &[1, b'g', 0, b'?']).is_none());
    }

    #[test]
    fn letters_with_numbers_that_are_no_ones_are_none() {
        let highest = u64::MAX;
        let report = |returned| Word::Report {
            epoch: 1,
            attendance: 2,
            settled: vec![],
            returned,
            most: 4,
            members: 0,
        };
        for word in [
            Word::Hello { epoch: highest },
            Word::Leave { epoch: highest },
            Word::Welcome {
                epoch: 1,
                attendance: 2,
                void: vec![highest],
            },
            report(vec![Back::sent(highest)]),
        ] {
            let record = encode("$share/g/t", 12, true, &word);
            assert!(decode(&Arc::from("a"), &record).is_none(), "{word:?}");
        }
    }

    #[test]
    fn what_queues_alone_have_is_no_letter_about_another_group() {
        for word in words().into_iter().filter(is_of_queues_alone) {
            let record = encode("$share/g/t", 12, false, &word);
            assert!(decode(&Arc::from("a"), &record).is_none(), "{word:?}");
        }
    }

    /// Bytes that can be read as a letter are written in a form that stays as it is.
    #[test]
    fn bytes_that_are_read_as_a_letter_are_written_in_one_form() {
        let mut read = 0;
        let both = words().into_iter().flat_map(|word| {
            [false, true].map(|is_queue| encode("$share/g/t", 12, is_queue, &word))
        });
        for record in both {
            for at in 0..record.len() {
                for value in [0, 1, 2, 0x7f, 0x80, 0xff] {
                    let mut bytes = record.clone();
                    bytes[at] = value;
                    let Some(written) = rewritten_letter(&bytes) else {
                        continue;
                    };
                    assert_eq!(rewritten_letter(&written).as_ref(), Some(&written));
                    assert_eq!(group_of_letter(&written), group_of_letter(&bytes));
                    read += 1;
                }
            }
        }
        assert!(read > 100, "only {read} were letters");
    }
}
