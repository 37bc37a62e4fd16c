//! Writing cursors, and telling the store what of the log nobody needs any more.
//!
//! A cursor may not pass a message that is still on its way from another shard. So each shard has a *watermark*:
//! the position before which no message of the others is under way to it. It asks the other shards when it writes
//! cursors. Letters between two shards keep their order, so an answer comes after everything that was sent before
//! it.

use super::Broker;
use crate::api::DoorState;
use crate::cursor::Reader;
use crate::group_reader::GroupRecord;
use crate::mail::Letter;
use crate::needs::{Behind, LogNeeds, ReaderNeeds};
use crate::queues::Queues;
use crate::records::{self, Kind};

/// While more readers hold the log than can be looked after at once, or the store has little room, it is surveyed so many
/// times as often.
const SURVEYS_SOON: u64 = 10;
/// While the store has little room, it is told of a survey as soon as that holds. That is looked at so many times in the
/// time between two.
const LOOKS_TO_TELL: u64 = 100;
/// How long a shard holds the log for a session that it has handed to another shard, at least. The other holds it from
/// the session's arrival on.
const HANDOVER_MS: u64 = 10_000;
/// Sessions that are looked at in one call.
const SURVEY_SESSIONS: usize = 8_192;

/// A survey of what readers need of the log.
#[derive(Debug)]
pub(super) struct Survey {
    /// The first session that was not looked at.
    at: usize,
    /// The lowest position that one of them needs.
    lowest: u64,
    /// Those that need the lowest positions, where the store wants to know more of them.
    behind: Option<Behind<LogReader>>,
}

/// A reader of the log, in the order in which those of one position are listed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum LogReader {
    /// By its slot.
    Session(u32),
    /// By its number.
    Group(u32),
    /// One that is yet to be read in the log.
    Unread(u32),
    /// A stored one without members, by its filter.
    Orphan(Box<str>),
}

/// The result of a survey.
#[derive(Debug)]
struct Surveyed {
    /// The lowest position that is needed.
    lowest: u64,
    /// The needs of those that are furthest behind, where the store wants to know them.
    needs: Option<LogNeeds>,
    /// The token after which it holds: the cursors that were seen are on the disk then.
    token: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Surveys {
    under_way: Option<Survey>,
    done: Option<Surveyed>,
    next_ms: u64,
    /// When the last one ended.
    ended_ms: u64,
    /// When to look whether it holds, where that is urgent.
    tell_ms: u64,
    handed: Handed,
}

/// The lowest positions that sessions needed which this shard has handed to others.
#[derive(Debug)]
struct Handed {
    lately: u64,
    before: u64,
    /// Since when they count as lately.
    since_ms: u64,
}

impl Default for Handed {
    fn default() -> Self {
        Self {
            lately: u64::MAX,
            before: u64::MAX,
            since_ms: 0,
        }
    }
}

impl Handed {
    /// The position to hold the log from; those that are older than a while count no more.
    fn lowest(&mut self, now_ms: u64) -> u64 {
        if now_ms.saturating_sub(self.since_ms) >= HANDOVER_MS {
            self.before = std::mem::replace(&mut self.lately, u64::MAX);
            self.since_ms = now_ms;
        }
        self.lately.min(self.before)
    }
}

impl<P> Queues<P> {
    /// The position before which nothing is under way to this shard.
    pub(crate) fn watermark(&self) -> u64 {
        let others = self.marks.iter().copied().min();
        others.unwrap_or_else(|| self.store.next_position())
    }

    /// Lists a session's cursor as one to be written.
    pub(crate) fn mark_changed(&mut self, slot: u32) {
        if let Some(reader) = &mut self.sessions[slot].reader
            && !std::mem::replace(&mut reader.is_changed, true)
        {
            self.changed.push(slot);
        }
    }

    /// Notes that a session is done with a message of the log.
    pub(crate) fn settle_position(&mut self, slot: u32, position: u64) {
        if position == 0 {
            return;
        }
        let Some(reader) = &mut self.sessions[slot].reader else {
            return;
        };
        if reader.settle(position) {
            self.write_cursor(slot);
        } else {
            self.mark_changed(slot);
        }
    }

    /// Gathers the record of a session's cursor.
    pub(crate) fn write_cursor(&mut self, slot: u32) {
        let watermark = self.watermark();
        let Some(session) = self.sessions.get_mut(slot) else {
            return;
        };
        let Some(mut reader) = session.reader.take() else {
            return;
        };
        let (ledger, pending) = (session.ledger, session.pending);
        let bound = reader.bound(watermark);
        let (mut waiting, mut sent) = (Vec::new(), Vec::new());
        self.nodes.each(pending, |entry| {
            if entry.own_position() != 0 {
                waiting.push(entry.position);
            }
        });
        self.nodes.each(ledger, |entry| {
            // Messages that were handed over have a record of their own.
            if entry.own_position() != 0 && entry.message.is_some() {
                sent.push(entry.position);
            }
        });
        if self.roots.contains_key(&slot) {
            return self.write_cursor_of_queue(slot, reader, bound, &waiting);
        }
        reader.advance(bound, &waiting, &sent);
        let cursor = reader.cursor.encode();
        let session = &mut self.sessions[slot];
        // Subscriptions that had ended where it is now.
        for past in reader
            .past
            .extract_if(.., |past| past.until <= reader.needed)
        {
            let change = records::remove(Kind::Past, session.name.text(), &past.key());
            self.changes.push(change);
        }
        session.reader = Some(reader);
        if session.is_stored {
            let record = records::put(Kind::Cursor, session.name.text(), &[], cursor);
            self.changes.push(record);
        }
    }

    /// The same for the root of a queue. Its session is done with what has come into the queue; the cursor that is kept
    /// is the queue's.
    fn write_cursor_of_queue(
        &mut self,
        slot: u32,
        mut reader: Box<Reader>,
        bound: u64,
        waiting: &[u64],
    ) {
        let reached = waiting.iter().copied().fold(bound, u64::min);
        reader.is_changed = false;
        let mut cursor = None;
        if let Some(root) = self.roots.get_mut(&slot) {
            let (id, has_all) = (root.group, root.reach(reached));
            if has_all {
                reader.cursor.unsettled.clear();
                reader.advance(bound, waiting, &[]);
            }
            if let Some(group) = self.groups.get_mut(&id)
                && let Some(log) = &mut group.log
            {
                if has_all {
                    cursor = Some(log.write(reader.cursor.from, &group.tail));
                    reader.needed = reader.needed.min(log.needed());
                } else if !std::mem::replace(&mut log.is_changed, true) {
                    // Settled positions are to be kept, also where nothing changes after this.
                    self.changed_groups.push(id);
                }
            }
        }
        let session = &mut self.sessions[slot];
        session.reader = Some(reader);
        if let Some(cursor) = cursor.filter(|_| session.is_stored) {
            let record = records::put(Kind::Cursor, session.name.text(), &[], cursor.encode());
            self.changes.push(record);
        }
    }

    /// Gathers the record of a group's cursor.
    pub(crate) fn write_group_cursor(&mut self, id: u32) {
        if let Some(group) = self.groups.get_mut(&id)
            && let Some(slot) = group.root
        {
            if let Some(log) = &mut group.log {
                log.is_changed = false;
            }
            return self.write_cursor(slot);
        }
        let watermark = self.watermark();
        if let Some(group) = self.groups.get_mut(&id)
            && let Some(log) = &mut group.log
        {
            let cursor = log.write(watermark, &group.tail);
            if !log.is_stored {
                return;
            }
            let record = GroupRecord {
                is_kept: group.is_kept,
                is_attended: group.attending > 0,
                cursor,
            };
            let record = records::put(Kind::Group, &group.filter, &[], record.encode());
            self.changes.push(record);
        }
    }
}

impl<P: DoorState> Broker<P> {
    /// Writes all cursors that have changed: what consumers have settled is kept from then on. Done in
    /// [`timeout`](Self::timeout) at intervals, and to be done before the broker ends.
    pub fn write_cursors(&mut self) {
        for slot in std::mem::take(&mut self.queues.changed) {
            let session = self.queues.sessions.get(slot);
            let reader = session.and_then(|session| session.reader.as_ref());
            if reader.is_some_and(|reader| reader.is_changed) {
                self.queues.write_cursor(slot);
                self.queues.pack(slot);
            }
        }
        for group in std::mem::take(&mut self.queues.changed_groups) {
            self.queues.write_group_cursor(group);
        }
        if !self.queues.changes.is_empty() {
            self.append_changes();
        }
    }

    /// When cursors are to be written; `None` where none has changed.
    pub(super) fn cursors_due_ms(&self) -> Option<u64> {
        let queues = &self.queues;
        let is_due = !queues.changed.is_empty()
            || !queues.changed_groups.is_empty()
            || !queues.disowned.is_empty();
        is_due.then(|| self.cursors_written_ms + queues.limits.cursor_interval_ms)
    }

    /// Writes cursors if it is time to.
    pub(super) fn write_cursors_if_due(&mut self, now_ms: u64) {
        if self.cursors_due_ms().is_none_or(|due_ms| due_ms > now_ms) {
            return;
        }
        self.cursors_written_ms = now_ms;
        self.write_cursors();
        self.ask_marks();
    }

    /// Asks the other shards how far they have sent what they published. Cursors are written before.
    fn ask_marks(&mut self) {
        if self.unmarked > 0 {
            return; // they will answer
        }
        let from = self.shard;
        self.disowning.append(&mut self.queues.disowned);
        for shard in (0..self.directory.shards()).filter(|&shard| shard != from) {
            self.send(shard, Letter::AskMark { from });
            self.unmarked += 1;
        }
        self.disown();
    }

    /// Removes the records of deliveries that all cursors have passed.
    fn disown(&mut self) {
        if self.unmarked == 0 {
            self.queues.changes.append(&mut self.disowning);
        }
    }

    /// Another shard has sent everything that it has published before a position.
    pub(super) fn marked(&mut self, shard: u16, position: u64) {
        let at = usize::from(shard - u16::from(shard > self.shard));
        if let Some(mark) = self.queues.marks.get_mut(at) {
            *mark = position;
        }
        self.unmarked = self.unmarked.saturating_sub(1);
        self.disown();
    }

    /// A reader has come that needs the log from here on: what a survey found without it does not hold.
    pub(super) fn hold_log(&mut self, position: u64) {
        if let Some(survey) = &mut self.surveys.under_way {
            survey.hold(position);
        }
        if let Some(done) = &mut self.surveys.done {
            done.lowest = position.min(done.lowest);
            if let Some(needs) = &mut done.needs {
                needs.hold(position);
            }
        }
        self.queues.store.hold_from(position);
    }

    /// A reader leaves for another shard, and needs the log from here on. This shard holds it for a while, the other one
    /// from its arrival on.
    pub(super) fn hand_over_log(&mut self, position: u64) {
        if let Some(survey) = &mut self.surveys.under_way {
            // It may not have come to the session.
            survey.hold(position);
        }
        self.surveys.handed.lately = self.surveys.handed.lately.min(position);
    }

    /// When the log is to be surveyed, or the store to be told of that; `None` without a store.
    pub(super) fn survey_due_ms(&self) -> Option<u64> {
        if !self.queues.is_durable {
            return None;
        }
        let (surveys, is_urgent) = (&self.surveys, self.queues.store.has_little_room());
        let tells = is_urgent && surveys.done.is_some() && surveys.under_way.is_none();
        let next_ms = self.next_survey_ms();
        Some(if tells {
            next_ms.min(surveys.tell_ms)
        } else {
            next_ms
        })
    }

    /// When the next survey begins, or the one that is under way goes on.
    fn next_survey_ms(&self) -> u64 {
        let surveys = &self.surveys;
        if self.queues.store.has_little_room() {
            // Messages that nobody needs may be the room that is lacking.
            let soon_ms = self.queues.limits.survey_interval_ms / SURVEYS_SOON;
            surveys.next_ms.min(surveys.ended_ms + soon_ms)
        } else {
            surveys.next_ms
        }
    }

    /// Tells the store the result of the last survey, where that holds: when the cursors that it saw are on the disk.
    fn tell_survey(&mut self) {
        let store = &mut self.queues.store;
        let reached = store.committed().synced;
        if let Some(done) = self.surveys.done.take_if(|done| reached >= done.token) {
            store.needed_from(done.lowest);
            if let Some(needs) = done.needs {
                store.needs(needs);
            }
        }
    }

    /// Finds out, a part in each call, what of the log nobody needs any more.
    pub(super) fn survey_if_due(&mut self, now_ms: u64) {
        if self.survey_due_ms().is_none_or(|due_ms| due_ms > now_ms) {
            return;
        }
        let interval_ms = self.queues.limits.survey_interval_ms;
        if self.surveys.under_way.is_none() {
            self.tell_survey();
            self.surveys.tell_ms = now_ms + (interval_ms / LOOKS_TO_TELL).max(1);
            if self.next_survey_ms() > now_ms {
                return;
            }
        }
        let crowded = self.queues.store.crowded_before();
        let pressed = self.queues.store.pressed_before();
        let mut survey = match self.surveys.under_way.take() {
            Some(survey) => survey,
            None => self.begin_survey(now_ms, crowded),
        };
        let sessions = &self.queues.sessions;
        let all = sessions.capacity();
        let end = all.min(survey.at + SURVEY_SESSIONS);
        for slot in survey.at as u32..end as u32 {
            if let Some(needed) = sessions.packed_needs(slot) {
                survey.note(needed, LogReader::Session(slot));
                if needed < crowded {
                    self.passing.list_packed(slot);
                }
                if needed < pressed {
                    self.pinning.list_packed(slot);
                }
                continue;
            }
            let Some(session) = sessions.get(slot) else {
                continue;
            };
            // One that leaves counts here until it is handed over. One that is yet to come has no reader.
            if let Some(reader) = &session.reader {
                let needed = reader.holds();
                survey.note(needed, LogReader::Session(slot));
                if needed < crowded {
                    self.passing.list(slot, session);
                }
                if needed < pressed {
                    self.pinning.list(slot, session, needed);
                }
            }
        }
        self.pass(now_ms);
        survey.at = end;
        if end < all {
            self.surveys.under_way = Some(survey);
            return;
        }
        self.relieve_store(now_ms, pressed);
        let needs = survey.behind.map(|behind| self.needs_of(behind));
        self.surveys.done = Some(Surveyed {
            lowest: survey.lowest,
            needs,
            token: self.token(),
        });
        let has_more = self.passing.end_survey();
        let pause_ms = if has_more || pressed > 1 {
            interval_ms / SURVEYS_SOON
        } else {
            interval_ms
        };
        self.surveys.next_ms = now_ms + pause_ms;
        self.surveys.ended_ms = now_ms;
    }

    /// Begins a survey with all readers but the sessions.
    fn begin_survey(&mut self, now_ms: u64, crowded: u64) -> Survey {
        if self.queues.watermark() < crowded {
            // A shard that has no cursor to write would hold the log from where it asked last.
            self.write_cursors();
            self.ask_marks();
        }
        let queues = &self.queues;
        let mut survey = Survey {
            at: 0,
            lowest: u64::MAX,
            behind: queues.store.wanted_needs().map(Behind::new),
        };
        survey.hold(queues.watermark().min(self.surveys.handed.lowest(now_ms)));
        for (&id, group) in &queues.groups {
            if let Some(log) = &group.log {
                survey.note(log.needed(), LogReader::Group(id));
            }
        }
        for (&id, record) in &queues.unread {
            survey.note(record.cursor.first(), LogReader::Unread(id));
        }
        for (filter, record) in &self.orphans {
            let orphan = || LogReader::Orphan(filter.clone());
            survey.note_as(record.cursor.first(), orphan);
        }
        self.list_idle_groups(crowded);
        survey
    }

    /// The needs of the readers that a survey has listed. Their cursors are written: what they have settled until now goes
    /// together with what it was replaced by, such as a dead letter.
    fn needs_of(&mut self, behind: Behind<LogReader>) -> LogNeeds {
        self.write_cursors();
        let (queues, orphans) = (&self.queues, &self.orphans);
        let mut is_unknown = false;
        let mut needs = behind.needs(|reader| match reader {
            LogReader::Session(slot) => {
                let found = queues.sessions.look(slot, ReaderNeeds::of_session);
                is_unknown |= found.is_none() && queues.sessions.is_packed(slot);
                found.flatten()
            }
            LogReader::Group(id) => {
                let group = queues.groups.get(&id)?;
                let (from, single) = group.log.as_ref()?.unsettled(&group.tail);
                Some(ReaderNeeds::of_group(&group.filter, from, single))
            }
            LogReader::Unread(id) => {
                // It may have been read since.
                is_unknown |= !queues.unread.contains_key(&id);
                let filter = &queues.groups.get(&id)?.filter;
                Some(ReaderNeeds::of_stored_group(
                    filter,
                    queues.unread.get(&id)?,
                ))
            }
            LogReader::Orphan(filter) => {
                is_unknown |= !orphans.contains_key(&filter);
                Some(ReaderNeeds::of_stored_group(&filter, orphans.get(&filter)?))
            }
        });
        if is_unknown {
            needs.hold(0);
        }
        needs
    }
}

impl Survey {
    /// Has everything stay from a position on.
    fn hold(&mut self, position: u64) {
        self.lowest = self.lowest.min(position);
        if let Some(behind) = &mut self.behind {
            behind.hold(position);
        }
    }

    /// Notes a reader, and the lowest position that it needs.
    fn note(&mut self, needed: u64, reader: LogReader) {
        self.note_as(needed, || reader);
    }

    /// The same, with a name that is made where it is listed.
    fn note_as(&mut self, needed: u64, reader: impl FnOnce() -> LogReader) {
        self.lowest = self.lowest.min(needed);
        if let Some(behind) = &mut self.behind {
            behind.note(needed, reader);
        }
    }
}

impl Surveys {
    /// Begins with the first survey some time after the start, when all shards have what was stored.
    pub(super) fn begin_after(&mut self, now_ms: u64, interval_ms: u64) {
        self.next_ms = now_ms + interval_ms;
        self.ended_ms = now_ms;
    }
}
