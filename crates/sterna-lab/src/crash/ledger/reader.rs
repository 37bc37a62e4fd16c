//! A reader's page: what it asked for, and what it got.

use std::collections::HashMap;

use super::{Moment, Protocol, PublisherId, Stamp};

/// A filter, from the moment a reader asks for it to the moment it is rid of it.
#[derive(Debug)]
pub(super) struct Interest {
    filter: String,
    asked: Moment,
    granted: Option<Moment>,
    leaving: Option<Moment>,
    left: Option<Moment>,
}

/// What a reader promises and is promised.
#[derive(Clone, Copy, Debug)]
pub(in crate::crash) struct Reading {
    /// By which it reads.
    pub(in crate::crash) protocol: Protocol,
    /// Whether it takes messages exactly once, where they were sent so.
    pub(in crate::crash) is_exact: bool,
    /// Whether it is one consumer, which sees the order; several that share see parts of it.
    pub(in crate::crash) is_ordered: bool,
}

/// A durable reader: a session, a durable subscription, a queue, or a group that shares.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) name: String,
    pub(super) reading: Reading,
    pub(super) interests: Vec<Interest>,
    /// It was ended on purpose: nothing is due to it.
    pub(super) is_retired: bool,
    /// What came, by publisher and sequence.
    pages: Vec<Vec<Entry>>,
    /// Highest sequence that came, by publisher and topic.
    highest: HashMap<(PublisherId, usize), u32>,
}

/// What came of a message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    pub(super) copies: u16,
    /// The broker's life in which the first came, from 1.
    pub(super) first_life: u16,
    /// The life in which the last came.
    pub(super) last_life: u16,
}

/// What a copy is to its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    First,
    /// The first, and behind one that was published after it.
    Late {
        /// The sequence of that one.
        after: u32,
    },
    Repeated,
}

impl Reader {
    pub(super) fn new(name: String, reading: Reading) -> Self {
        Self {
            name,
            reading,
            interests: Vec::new(),
            is_retired: false,
            pages: Vec::new(),
            highest: HashMap::new(),
        }
    }

    pub(super) fn entry(&self, stamp: Stamp) -> Entry {
        let page = self.pages.get(stamp.publisher as usize);
        let entry = page.and_then(|page| page.get(stamp.sequence as usize));
        entry.copied().unwrap_or_default()
    }

    /// Whether a copy has come.
    pub(super) fn has(&self, stamp: Stamp) -> bool {
        self.entry(stamp).copies > 0
    }

    /// Notes a copy of a message on a topic.
    pub(super) fn take(&mut self, stamp: Stamp, topic: usize, life: usize) -> Copy {
        let (publisher, sequence) = (stamp.publisher as usize, stamp.sequence as usize);
        if self.pages.len() <= publisher {
            self.pages.resize_with(publisher + 1, Vec::new);
        }
        let page = &mut self.pages[publisher];
        if page.len() <= sequence {
            page.resize(sequence + 1, Entry::default());
        }
        let entry = &mut page[sequence];
        entry.copies = entry.copies.saturating_add(1);
        entry.last_life = life as u16;
        if entry.copies > 1 {
            return Copy::Repeated;
        }
        entry.first_life = life as u16;
        let highest = (self.highest).entry((PublisherId(stamp.publisher), topic));
        let highest = highest.or_insert(stamp.sequence);
        if *highest > stamp.sequence {
            return Copy::Late { after: *highest };
        }
        *highest = stamp.sequence;
        Copy::First
    }

    /// Whether a message is due: it was sent after the broker had granted a filter that matches, which the
    /// reader has kept since.
    pub(super) fn is_due(&self, topic: &str, sent: Moment) -> bool {
        !self.is_retired
            && self.interests.iter().any(|interest| {
                interest.granted.is_some_and(|granted| granted < sent)
                    && interest.leaving.is_none()
                    && matches(&interest.filter, topic)
            })
    }

    /// Whether the broker had granted a filter that matches when a message was sent.
    pub(super) fn had_asked(&self, topic: &str, sent: Moment) -> bool {
        self.interests.iter().any(|interest| {
            interest.granted.is_some_and(|granted| granted < sent)
                && matches(&interest.filter, topic)
        })
    }

    /// Whether a message may come: the broker may have taken it, from `sent` to `taken`, while a filter that
    /// matches was in force.
    pub(super) fn may_have(&self, topic: &str, sent: Moment, taken: Option<Moment>) -> bool {
        self.interests.iter().any(|interest| {
            taken.is_none_or(|taken| interest.asked < taken)
                && interest.left.is_none_or(|left| sent < left)
                && matches(&interest.filter, topic)
        })
    }

    pub(super) fn ask(&mut self, filter: &str, now: Moment) {
        self.interests.push(Interest {
            filter: filter.to_owned(),
            asked: now,
            granted: None,
            leaving: None,
            left: None,
        });
    }

    /// The interest in a filter that was asked for last.
    fn last(&mut self, filter: &str) -> Option<&mut Interest> {
        let mut interests = self.interests.iter_mut().rev();
        interests.find(|interest| interest.filter == filter)
    }

    /// An answer to a question. Members of a group ask the same; the group has the filter with the first answer.
    pub(super) fn granted(&mut self, filter: &str, now: Moment) {
        let mut interests = self.interests.iter_mut().rev();
        let asked = |one: &&mut Interest| one.filter == filter && one.granted.is_none();
        if let Some(interest) = interests.find(asked) {
            interest.granted = Some(now);
        }
    }

    pub(super) fn granted_interests(&self) -> usize {
        let interests = self.interests.iter();
        interests.filter(|one| one.granted.is_some()).count()
    }

    pub(super) fn is_asking(&self) -> bool {
        let mut interests = self.interests.iter();
        interests.any(|one| one.granted.is_none() && one.leaving.is_none())
    }

    pub(super) fn leave(&mut self, filter: &str, now: Moment) {
        if let Some(interest) = self.last(filter) {
            interest.leaving = Some(now);
        }
    }

    pub(super) fn left(&mut self, filter: &str, now: Moment) {
        if let Some(interest) = self.last(filter) {
            interest.left = Some(now);
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
