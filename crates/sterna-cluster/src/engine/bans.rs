//! Bans of the cluster: nodes that start later have them, too.
//!
//! A ban is a record, and so is its end. Of two for the same names the later one counts, whichever comes first.

use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;

use async_nats::jetstream::consumer::DeliverPolicy;
use bytes::Bytes;

use super::following::Entry;
use super::interest::digest_of;
use super::streams::NODES;
use super::{Core, Retry};
use crate::owners::number_in;
use crate::port::{BanRecord, ToShard};
use crate::subjects;

/// The form of a record, as a line of text.
const FORM: &str = "1";
/// The words for a ban, and for its end.
const BANNED: &str = "banned";
const ENDED: &str = "ended";

/// Bans that hold, as this node has read them, by their subjects: they are written again where NATS has lost them.
pub(super) type Known = HashMap<String, BanRecord>;

impl Core {
    /// Keeps bans and ends that were made on this node.
    pub(super) fn keep_bans(self: &Rc<Self>, records: Vec<BanRecord>) {
        for record in records {
            let core = Rc::clone(self);
            self.spawn(async move { core.keep_ban(record).await });
        }
    }

    /// Writes a ban or its end, unless NATS has a later one of the same names.
    async fn keep_ban(&self, record: BanRecord) {
        let subject = subjects::ban(&digest_of(&record.name));
        let is_later =
            |known: &Bytes| read(known).is_some_and(|known| known.rank() >= record.rank());
        let line = line_of(&record);
        let written = self.write_unless(NODES, &subject, &line, is_later).await;
        if let Some(sequence) = written
            && record.is_end
        {
            self.note_end(NODES, &subject, sequence);
        }
    }

    /// Follows the bans of all nodes.
    pub(super) async fn follow_bans(self: Rc<Self>) {
        let mut retry = Retry::new();
        loop {
            let Err(why) = self.follow_bans_once().await;
            tracing::debug!(why, "bans are read anew");
            self.status.failed_attempts.add(1);
            retry.wait().await;
        }
    }

    async fn follow_bans_once(&self) -> Result<Infallible, String> {
        let filter = subjects::ban("*");
        let start = DeliverPolicy::LastPerSubject;
        let mut entries = self.follow(NODES, Some(&filter), start).await?;
        loop {
            self.ban_passed(&entries.next().await?);
        }
    }

    fn ban_passed(&self, entry: &Entry) {
        let Some(record) = read(&entry.payload) else {
            let why = "its form is not known";
            return self.cannot_read("ban", &*entry.subject, why);
        };
        let subject = subjects::ban(&digest_of(&record.name));
        let mut known = self.bans.borrow_mut();
        if record.is_end {
            known.remove(&subject);
            self.note_end_of_another(NODES, &subject, entry.position);
        } else {
            known.insert(subject, record.clone());
        }
        drop(known);
        self.post(0, ToShard::Ban(record));
    }

    /// Writes what is known of bans again, each time when NATS has lost it.
    pub(super) async fn look_after_bans(self: Rc<Self>) {
        loop {
            self.streams.are_bans_lost.notified().await;
            let known = self.bans.borrow().values().cloned().collect();
            self.keep_bans(known);
        }
    }
}

fn line_of(record: &BanRecord) -> Vec<u8> {
    let word = if record.is_end { ENDED } else { BANNED };
    let mut line = format!(
        "{FORM} {} {word} {} {}",
        record.at_ms,
        record.name.len(),
        record.name
    )
    .into_bytes();
    line.extend_from_slice(&record.ban);
    line
}

fn read(payload: &Bytes) -> Option<BanRecord> {
    let mut words = payload.splitn(5, |byte| *byte == b' ');
    let mut word = || std::str::from_utf8(words.next()?).ok();
    if word()? != FORM {
        return None;
    }
    let at_ms = number_in(word()?)?;
    let is_end = match word()? {
        BANNED => false,
        ENDED => true,
        _ => return None,
    };
    let name_bytes = usize::try_from(number_in(word()?)?).ok()?;
    let (name, ban) = words.next()?.split_at_checked(name_bytes)?;
    Some(BanRecord {
        name: std::str::from_utf8(name).ok()?.to_owned(),
        at_ms,
        is_end,
        ban: payload.slice_ref(ban),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_what_is_none_does_not() {
        for is_end in [false, true] {
            let record = BanRecord {
                name: "{\"user\":\"a b\"}".to_owned(),
                at_ms: 17,
                is_end,
                ban: Bytes::from_static(b"{\"reason\": \"x y\"}"),
            };
            assert_eq!(read(&line_of(&record).into()), Some(record));
        }
        for other in [
            "",
            "2 17 banned 1 ab",
            "1 x banned 1 ab",
            "1 17 else 1 ab",
            "1 17 banned 3 ab",
            "1 17 banned",
        ] {
            assert_eq!(read(&Bytes::from_static(other.as_bytes())), None, "{other}");
        }
    }

    #[test]
    fn the_later_record_counts_and_an_end_before_a_ban_of_its_time() {
        let record = |at_ms, is_end| BanRecord {
            name: "n".to_owned(),
            at_ms,
            is_end,
            ban: Bytes::new(),
        };
        let in_order = [(1, false), (1, true), (2, false), (3, true)];
        for pair in in_order.windows(2) {
            let [before, after] = [pair[0], pair[1]].map(|(at_ms, is_end)| record(at_ms, is_end));
            assert!(before.rank() < after.rank());
        }
    }
}
