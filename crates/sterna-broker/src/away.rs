//! Absences of a session's consumer: only messages that were published in one count against the limits of its queue.
//!
//! A session's cursor keeps the *spans* of the log in which its consumer was away: from the position at which it left
//! to the one at which it came back. They stay until they are read, and share one limit. Messages that
//! were published while a consumer was connected, and those that were sent before, count in none.
//!
//! A session has few spans, as a rule one. A client that comes and goes without reading has many, so there is a bound:
//! with more, the shortest is forgotten. Its messages count then as if a consumer had been connected. So more is
//! kept than by a complete list, and nothing is lost that such a list would keep.
//!
//! A session that lost its consumer because it held most of the log of a store that was nearly full is *limited*: its
//! last span lasts until it has read all (`broker/pinning.rs`).

use crate::limits::QueueFull;
use crate::records::{Fields, HIGHEST_PLACE, put_number};

/// Spans of one list. Each takes two to some ten bytes of a record.
pub(crate) const MOST_SPANS: usize = 256;

/// The end of a span that lasts.
const OPEN: u64 = u64::MAX;

/// Positions of the log, from one on and before another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// Spans of the log that lie apart, rising.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Spans(Vec<Span>);

impl Spans {
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = Span> {
        self.0.iter().copied()
    }

    /// The span that a position is in.
    fn of(&self, position: u64) -> Option<Span> {
        let behind = self.0.partition_point(|span| span.from <= position);
        let span = *self.0.get(behind.checked_sub(1)?)?;
        (position < span.until).then_some(span)
    }

    pub(crate) fn contains(&self, position: u64) -> bool {
        self.of(position).is_some()
    }

    /// Whether the last span lasts.
    pub(crate) fn is_open(&self) -> bool {
        self.0.last().is_some_and(|span| span.until == OPEN)
    }

    /// Begins a span that lasts, unless one does.
    pub(crate) fn open(&mut self, position: u64) {
        match self.0.last_mut() {
            Some(last) if last.until == OPEN => {}
            // Nothing was published in between.
            Some(last) if last.until >= position => last.until = OPEN,
            _ => self.insert(Span {
                from: position,
                until: OPEN,
            }),
        }
    }

    /// Ends the span that lasts; false where there is none.
    pub(crate) fn close(&mut self, position: u64) -> bool {
        let Some(last) = self.0.last_mut().filter(|span| span.until == OPEN) else {
            return false;
        };
        last.until = position.max(last.from);
        if last.from == last.until {
            self.0.pop();
        }
        true
    }

    /// The end of the part that has ended, where some of it is at a position or behind; `end` is that of a span that
    /// lasts.
    pub(crate) fn until(&self, position: u64, end: u64) -> Option<u64> {
        let last = self.0.last()?.until;
        let until = if last == OPEN { end } else { last };
        (until > position).then_some(until)
    }

    /// Notes a position that is done with, in one piece with the one before; and with the one `after` which it comes, if
    /// both are in one span of `within`. There is nothing between them that is not done with.
    pub(crate) fn add(&mut self, position: u64, after: Option<u64>, within: &Self) {
        if self.contains(position) {
            return;
        }
        let behind = self.0.partition_point(|span| span.from <= position);
        if let Some(before) = behind.checked_sub(1).and_then(|at| self.0.get_mut(at))
            && (before.until == position
                || after == Some(before.until - 1)
                    && within.of(before.until - 1) == within.of(position))
        {
            before.until = position + 1;
            return;
        }
        self.insert(Span {
            from: position,
            until: position + 1,
        });
    }

    /// Enters a span that overlaps none. With too many, the shortest goes.
    fn insert(&mut self, span: Span) {
        let at = self.0.partition_point(|known| known.from <= span.from);
        if self.0.capacity() == 0 {
            // Most sessions have one, and a million sessions may be away.
            self.0.reserve_exact(1);
        }
        self.0.insert(at, span);
        if self.0.len() > MOST_SPANS {
            let lengths = self.0.iter().enumerate();
            let shortest = lengths.min_by_key(|(_, span)| span.until - span.from);
            if let Some((at, _)) = shortest {
                self.0.remove(at);
            }
        }
    }

    /// Forgets all before a position.
    pub(crate) fn trim(&mut self, before: u64) {
        self.0.retain(|span| span.until > before);
        if let Some(first) = self.0.first_mut() {
            first.from = first.from.max(before);
        }
    }

    /// Writes them; they begin at `base` or behind.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, base: u64) {
        put_number(out, self.0.len() as u64);
        let mut after = base;
        for span in &self.0 {
            debug_assert!(span.from >= after, "spans lie apart, behind the cursor");
            put_number(out, span.from.saturating_sub(after));
            // None is empty.
            let is_open = span.until == OPEN;
            put_number(out, if is_open { 0 } else { span.until - span.from });
            after = span.until;
        }
    }

    /// Reads them; `None` where they cannot be understood.
    pub(crate) fn decode(fields: &mut Fields<'_>, base: u64) -> Option<Self> {
        let mut spans = Vec::new();
        let mut after = base;
        let beyond = |after: u64, more: u64| {
            let position = after.checked_add(more);
            position.filter(|&position| position <= HIGHEST_PLACE)
        };
        for _ in 0..fields.number()? {
            let from = beyond(after, fields.number()?)?;
            let until = match fields.number()? {
                0 => OPEN,
                length => beyond(from, length)?,
            };
            spans.push(Span { from, until });
            after = until;
        }
        (spans.len() <= MOST_SPANS).then_some(Self(spans))
    }
}

/// A number of messages, and the bytes of their bodies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Amount {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    pub(crate) fn add(&mut self, body_bytes: usize) {
        self.messages += 1;
        self.bytes += body_bytes as u64;
    }

    pub(crate) fn remove(&mut self, body_bytes: usize) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(body_bytes as u64);
    }

    /// Whether it is within a limit. One message may have any size.
    pub(crate) const fn fits(self, limit: Self) -> bool {
        self.messages <= limit.messages && (self.bytes <= limit.bytes || self.messages <= 1)
    }
}

/// The part that a session which has its consumer back may have of what was published while that was away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allowance {
    /// Where the last of its spans ends.
    pub(crate) until: u64,
    rule: Rule,
    /// The last message that did not stay, if all that has come since was none that counts.
    last_dropped: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// The first that fit stay. `is_full` from the first on that did not.
    Newest { taken: Amount, is_full: bool },
    /// The last that fit stay: with more than those that fit `unread`, the next one goes.
    Oldest { unread: Amount },
}

impl Allowance {
    /// For a session of which nothing is read yet; `unread` was counted before where the oldest are dropped.
    pub(crate) fn new(until: u64, queue_full: QueueFull, unread: Amount) -> Self {
        let rule = match queue_full {
            QueueFull::DropNewest => Rule::Newest {
                taken: Amount::default(),
                is_full: false,
            },
            QueueFull::DropOldest => Rule::Oldest { unread },
        };
        Self {
            until,
            rule,
            last_dropped: None,
        }
    }

    /// Whether the next message stays. One that does is to be [taken](Self::take); one that does not is passed with this.
    pub(crate) fn admits(&mut self, body_bytes: usize, limit: Amount) -> bool {
        match &mut self.rule {
            Rule::Newest { taken, is_full } => {
                let mut with_it = *taken;
                with_it.add(body_bytes);
                *is_full |= !with_it.fits(limit);
                !*is_full
            }
            Rule::Oldest { unread } => {
                let fits = unread.fits(limit);
                if !fits {
                    unread.remove(body_bytes);
                }
                fits
            }
        }
    }

    /// Notes the position of a message that does not stay, and returns that of the one before.
    pub(crate) const fn dropped(&mut self, position: u64) -> Option<u64> {
        self.last_dropped.replace(position)
    }

    /// A message that stays was read.
    pub(crate) fn take(&mut self, body_bytes: usize) {
        self.last_dropped = None;
        match &mut self.rule {
            Rule::Newest { taken, .. } => taken.add(body_bytes),
            Rule::Oldest { unread } => unread.remove(body_bytes),
        }
    }

    /// A message that stays is to be read again.
    pub(crate) fn give_back(&mut self, body_bytes: usize) {
        self.last_dropped = None;
        match &mut self.rule {
            Rule::Newest { taken, is_full } => {
                taken.remove(body_bytes);
                // It comes again, those that did not fit do not.
                *is_full = false;
            }
            Rule::Oldest { unread } => unread.add(body_bytes),
        }
    }

    /// A message that was counted does not come.
    pub(crate) fn pass(&mut self, body_bytes: usize) {
        if let Rule::Oldest { unread } = &mut self.rule {
            unread.remove(body_bytes);
        }
    }
}
