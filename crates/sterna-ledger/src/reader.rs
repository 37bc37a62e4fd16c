//! A reader's page: what it asked for, and what it got.

use std::collections::HashMap;

use super::{Moment, Protocol, PublisherId, Stamp};

/// A filter, from the moment a reader asks for it to the moment it is rid of it.
#[derive(Debug)]
pub(crate) struct Interest {
    filter: String,
    asked: Moment,
    granted: Option<Moment>,
    leaving: Option<Moment>,
    left: Option<Moment>,
}

/// How a reader reads.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The protocol by which it reads.
    pub protocol: Protocol,
    /// Whether it takes messages exactly once, where they were sent so.
    pub is_exact: bool,
    /// Whether it is one consumer, which sees the order; several that share see parts of it.
    pub is_ordered: bool,
}

/// A durable reader: a session, a durable subscription, a queue, or a group that shares.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) name: String,
    pub(crate) reading: Reading,
    /// Filters that it has, or asks for, or asks to be rid of.
    interests: Vec<Interest>,
    /// Filters that it is rid of, in the order of that.
    past: Vec<Interest>,
    /// It was ended on purpose: nothing is due to it.
    pub(crate) is_retired: bool,
    /// The copies that came, by publisher and sequence.
    pages: Vec<Vec<Entry>>,
    /// Highest sequence that came, by publisher and topic.
    highest: HashMap<(PublisherId, usize), u32>,
}

/// The copies of a message that came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// When the first copy came; the start of the ledger for none.
    pub(crate) first: Moment,
    /// When the last copy came.
    pub(crate) last: Moment,
    /// Number of copies, less those that the reader does not have to know any more.
    pub(crate) copies: u16,
}

/// A copy's place among all that came to its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    First,
    /// The first, and behind one that was published after it.
    Late,
    Repeated,
    /// Another one, after the broker was allowed to forget that the reader has it.
    Forgotten,
}

impl Reader {
    pub(crate) fn new(name: String, reading: Reading) -> Self {
        Self {
            name,
            reading,
            interests: Vec::new(),
            past: Vec::new(),
            is_retired: false,
            pages: Vec::new(),
            highest: HashMap::new(),
        }
    }

    pub(crate) fn entry(&self, stamp: Stamp) -> Entry {
        let page = self.pages.get(stamp.publisher as usize);
        let entry = page.and_then(|page| page.get(stamp.sequence as usize));
        entry.copied().unwrap_or_default()
    }

    /// Whether a copy has come.
    pub(crate) fn has(&self, stamp: Stamp) -> bool {
        self.entry(stamp).last > Moment::START
    }

    fn entry_mut(&mut self, stamp: Stamp) -> &mut Entry {
        let (publisher, sequence) = (stamp.publisher as usize, stamp.sequence as usize);
        if self.pages.len() <= publisher {
            self.pages.resize_with(publisher + 1, Vec::new);
        }
        let page = &mut self.pages[publisher];
        if page.len() <= sequence {
            page.resize(sequence + 1, Entry::default());
        }
        &mut page[sequence]
    }

    /// Notes a copy of a message on a topic.
    pub(crate) fn take(&mut self, stamp: Stamp, topic: usize, now: Moment) -> Copy {
        let entry = self.entry_mut(stamp);
        let is_first = entry.last == Moment::START;
        entry.copies = entry.copies.saturating_add(1);
        entry.last = now;
        if !is_first {
            return match entry.copies {
                1 => Copy::Forgotten,
                _ => Copy::Repeated,
            };
        }
        entry.first = now;
        let place = (PublisherId(stamp.publisher), topic);
        let highest = self.highest.entry(place).or_insert(stamp.sequence);
        if *highest > stamp.sequence {
            return Copy::Late;
        }
        *highest = stamp.sequence;
        Copy::First
    }

    /// The reader has told the broker again that it has this message.
    pub(crate) fn tell_again(&mut self, stamp: Stamp, now: Moment) {
        if self.has(stamp) {
            self.entry_mut(stamp).last = now;
        }
    }

    /// The broker's notes of the reader since a moment may be gone.
    pub(crate) fn excuse(&mut self, since: Moment) {
        let is_late = |moment: &Moment| *moment >= since;
        for interest in &mut self.interests {
            interest.granted.take_if(|moment| is_late(moment));
        }
        for interest in self.past.iter_mut().rev() {
            if interest.left.take_if(|moment| is_late(moment)).is_none() {
                break;
            }
        }
    }

    /// The broker may have forgotten that the reader has this message, if it knows that only since a moment.
    pub(crate) fn forget(&mut self, stamp: Stamp, since: Moment) {
        let entry = self.entry_mut(stamp);
        if entry.last >= since {
            entry.copies = 0;
        }
    }

    /// All filters that it has or had.
    fn all_interests(&self) -> impl Iterator<Item = &Interest> {
        self.interests.iter().chain(&self.past)
    }

    /// Whether a message is due: it was sent after the broker had granted a matching filter. The reader has kept the
    /// filter since.
    pub(crate) fn is_due(&self, topic: &str, sent: Moment) -> bool {
        !self.is_retired
            && self.interests.iter().any(|interest| {
                interest.granted.is_some_and(|granted| granted < sent)
                    && interest.leaving.is_none()
                    && matches(&interest.filter, topic)
            })
    }

    /// Whether a message had to come before a later one of its publisher, which has come. The broker had granted a
    /// filter when the message was sent, and both match it. If the reader left it, it had not asked anew when the
    /// later one came.
    ///
    /// MQTT 5.0 orders messages as the broker receives them (section 4.6), and the publisher may repeat one. The
    /// broker may have received the first copy when no filter was in force. The reader has only the repetition then,
    /// and that comes behind messages received before it.
    pub(crate) fn was_first(&self, topic: &str, sent: Moment, later: Stamp) -> bool {
        let came = self.entry(later).first;
        let had_asked_anew = |left: Moment| {
            self.all_interests().any(|interest| {
                left < interest.asked && interest.asked < came && matches(&interest.filter, topic)
            })
        };
        self.all_interests().any(|interest| {
            interest.granted.is_some_and(|granted| granted < sent)
                && !interest.leaving.is_some_and(had_asked_anew)
                && matches(&interest.filter, topic)
        })
    }

    /// Whether a message may come: the broker may have taken it, from `sent` to `taken`, while a matching filter was in
    /// force.
    pub(crate) fn may_have(&self, topic: &str, sent: Moment, taken: Option<Moment>) -> bool {
        self.all_interests().any(|interest| {
            taken.is_none_or(|taken| interest.asked < taken)
                && interest.left.is_none_or(|left| sent < left)
                && matches(&interest.filter, topic)
        })
    }

    pub(crate) fn ask(&mut self, filter: &str, now: Moment) {
        self.interests.push(Interest {
            filter: filter.to_owned(),
            asked: now,
            granted: None,
            leaving: None,
            left: None,
        });
    }

    /// An answer to a question. Members of a group ask the same; the group has the filter with the first answer.
    pub(crate) fn granted(&mut self, filter: &str, now: Moment) {
        let mut interests = self.interests.iter_mut().rev();
        let asked = |one: &&mut Interest| one.filter == filter && one.granted.is_none();
        if let Some(interest) = interests.find(asked) {
            interest.granted = Some(now);
        }
    }

    pub(crate) fn granted_interests(&self) -> usize {
        let interests = self.interests.iter();
        interests.filter(|one| one.granted.is_some()).count()
    }

    pub(crate) fn is_asking(&self) -> bool {
        let mut interests = self.interests.iter();
        interests.any(|one| one.granted.is_none() && one.leaving.is_none())
    }

    pub(crate) fn is_granted(&self, filter: &str) -> bool {
        let mut interests = self.interests.iter();
        interests.any(|one| one.filter == filter && one.granted.is_some() && one.leaving.is_none())
    }

    pub(crate) fn leave(&mut self, filter: &str, now: Moment) {
        for interest in &mut self.interests {
            if interest.filter == filter {
                interest.leaving.get_or_insert(now);
            }
        }
    }

    pub(crate) fn left(&mut self, filter: &str, now: Moment) {
        let is_over = |one: &mut Interest| one.filter == filter && one.leaving.is_some();
        for mut interest in self.interests.extract_if(.., is_over) {
            interest.left = Some(now);
            self.past.push(interest);
        }
    }
}

/// Whether a filter matches a topic (MQTT 5.0, section 4.7). The harness has its own definition, so that it
/// does not ask the one under test.
fn matches(filter: &str, topic: &str) -> bool {
    let mut levels = topic.split('/');
    for wanted in filter.split('/') {
        if wanted == "#" {
            return true;
        }
        match levels.next() {
            Some(level) if wanted == "+" || wanted == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_match_as_the_standard_says() {
        for (filter, topic, is_match) in [
            ("a/b", "a/b", true),
            ("a/+", "a/b", true),
            ("a/#", "a/b/c", true),
            ("a/#", "a", true),
            ("#", "a", true),
            ("a/+", "a/b/c", false),
            ("a/b", "a", false),
            ("a", "a/b", false),
        ] {
            assert_eq!(matches(filter, topic), is_match, "{filter} {topic}");
        }
    }
}
