//! Reading all of a cluster.

use std::collections::HashMap;

use async_nats::jetstream::consumer::DeliverPolicy;
use sterna_broker::{CarriedSession, Message, Records, name_of};

use super::super::log::{first_in, position};
use super::super::regions::OUT;
use super::super::sessions::{key_of_text, unhex};
use super::super::streams::{KEPT, LOG, RETAINED, SESSIONS};
use super::super::{Core, kept, sessions};
use super::notice::{State, UNDER_WAY};
use super::{Content, Left};
use crate::owners::{Key, Record};
use crate::requests::Entry;
use crate::subjects;

/// The kept state of sessions and requests.
#[derive(Default)]
struct Found {
    /// The epoch of the writer, and the records.
    sessions: HashMap<Key, (u64, Records)>,
    requests: HashMap<Key, Entry>,
    unreadable: u64,
}

impl Found {
    /// Takes an entry in. It is a session's where its records are of the session that its subject names.
    fn take(&mut self, key: Key, payload: &[u8], now_s: u64) {
        self.sessions.remove(&key);
        self.requests.remove(&key);
        if payload.is_empty() {
            return;
        }
        let is_its = |records: &Records| {
            let mut names = records
                .keys()
                .map(|record| name_of(record).map(key_of_text));
            names.all(|name| name == Some(key))
        };
        if let Some((epoch, records)) = kept::decode(payload).filter(|(_, all)| is_its(all)) {
            if !records.is_empty() {
                self.sessions.insert(key, (epoch, records));
            }
        } else if let Some((entry, until_s)) = Entry::decode(payload) {
            if until_s > now_s {
                self.requests.insert(key, entry);
            }
        } else {
            self.unreadable += 1;
        }
    }
}

impl Core {
    /// Whether all streams are there that are read.
    async fn has_streams(&self) -> Result<(), String> {
        for stream in [SESSIONS, KEPT, LOG, RETAINED] {
            if self.info_of(stream).await?.is_none() {
                return Err(format!(
                    "this NATS has no cluster {}: there is no stream {}",
                    self.settings.name,
                    self.settings.stream(stream)
                ));
            }
        }
        Ok(())
    }

    pub(super) async fn read_all(&self) -> Result<Content, String> {
        self.has_streams().await?;
        let (state, _) = self.patiently(async || self.notice().await).await?;
        if state == State::UnderWay {
            return Err(UNDER_WAY.to_owned());
        }
        let mut content = Content::default();
        self.learn_needs().await?;
        let mut owners = HashMap::<Key, (u64, Option<Record>)>::new();
        self.each_last(SESSIONS, &subjects::session("*"), |entry| {
            if let Some(key) = entry.subject.rsplit('.').next().and_then(unhex)
                && !entry.payload.is_empty()
            {
                owners.insert(key, (entry.position, Record::decode(&entry.payload)));
            }
        })
        .await?;
        let now_s = self.wall_ms() / 1_000;
        let mut found = Found::default();
        self.each_last(KEPT, &subjects::kept("*"), |entry| {
            if let Some(key) = entry.subject.rsplit('.').next().and_then(unhex) {
                found.take(key, &entry.payload, now_s);
            }
        })
        .await?;
        // A session may have been claimed, or its records written anew, while both were read.
        let unowned: Vec<Key> = (found.sessions.keys())
            .filter(|key| !owners.contains_key(*key))
            .copied()
            .collect();
        for key in unowned {
            let subject = sessions::subject_of(key);
            if let Some(last) = self.last_of_subject(SESSIONS, &subject).await? {
                owners.insert(key, (last.sequence, Record::decode(&last.payload)));
            }
        }
        // From here on the log has all that these sessions have not settled.
        let info = self.look_at_stream(LOG).await?;
        content.entries = (info.state.first_sequence, info.state.last_sequence);
        content.next_position = position(info.state.last_sequence + 1, 0);
        self.read_tail_to(content.next_position).await?;
        for (key, (sequence, record)) in owners {
            let Some(record) = record else {
                content.left.unreadable_sessions += 1;
                continue;
            };
            let record = (self.owners.borrow()).as_it_counts(sequence, record);
            if record.is_over {
                continue;
            }
            let records = if record.is_kept {
                self.records_of(key, found.sessions.remove(&key)).await?
            } else {
                Records::new()
            };
            if records.is_empty() && record.will.is_none() {
                continue;
            }
            let session = CarriedSession {
                will: record.will,
                records,
            };
            content.sessions.push((record.name, session));
        }
        content.left.unreadable_sessions += found.unreadable;
        for (key, entry) in found.requests {
            if entry.is_done {
                content.requests.push((key, entry.value));
            } else if let Some((value, _)) = self.published(key, entry.round) {
                content.requests.push((key, value));
            }
        }
        self.read_retained(&mut content).await?;
        if self.settings.region.is_some()
            && let Ok(out) = self.look_at_stream(OUT).await
        {
            content.left.for_regions = out.state.messages;
        }
        Ok(content)
    }

    /// The records of a session, with those that its owner did not come to write.
    async fn records_of(&self, key: Key, found: Option<(u64, Records)>) -> Result<Records, String> {
        let (epoch, mut records) = match found {
            Some(found) => found,
            // It was written over while it was read.
            None => match self.get_kept(key).await? {
                Some((_, epoch, records)) => (epoch, records),
                None => return Ok(Records::new()),
            },
        };
        self.amend(key, epoch, &mut records);
        Ok(records)
    }

    async fn read_retained(&self, content: &mut Content) -> Result<(), String> {
        let now_ms = self.wall_ms();
        let (retained, left) = (&mut content.retained, &mut content.left);
        self.each_last(RETAINED, &subjects::retained(">"), |entry| {
            if entry.payload.is_empty() {
                return;
            }
            let Ok(runs) = self.read(&entry.payload) else {
                left.unreadable_retained += 1;
                return;
            };
            for message in runs.into_iter().flat_map(|run| run.messages) {
                let is_over = message.expires_at_ms().is_some_and(|at_ms| at_ms <= now_ms);
                if !message.payload().is_empty() && !is_over {
                    retained.push(message);
                }
            }
        })
        .await
    }

    pub(super) async fn read_messages(
        &self,
        (first, last): (u64, u64),
        left: &mut Left,
        visit: &mut dyn FnMut(u64, &Message) -> Result<(), String>,
    ) -> Result<(), String> {
        if first > last {
            return Ok(());
        }
        let start = DeliverPolicy::ByStartSequence {
            start_sequence: first,
        };
        let mut entries = self.follow(LOG, None, start).await?;
        if entries.waiting == 0 {
            return Ok(());
        }
        loop {
            let entry = entries.next().await?;
            if entry.position > last {
                return Ok(());
            }
            let first = first_in(entry.position, entry.headers.as_ref());
            match self.read(&entry.payload) {
                Ok(runs) => {
                    let messages = runs.into_iter().flat_map(|run| run.messages);
                    for (position, message) in (first..).zip(messages) {
                        visit(position, &message)?;
                    }
                }
                Err(_) => left.unreadable_entries += 1,
            }
            if entry.position == last || entry.pending == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sterna_broker::{SessionName, key_of_door};

    use super::super::super::sessions::key_of;
    use super::*;
    use crate::owners::Process;

    #[test]
    fn entries_of_sessions_and_of_requests_are_told_apart() {
        let name = SessionName::new(Some("ann"), "client");
        let key = key_of(&name);
        let records: Records = [(key_of_door(&name, b"k"), Box::from(&b"v"[..]))].into();
        let of_session = kept::encode(7, &records);
        let request = Entry {
            is_done: true,
            round: 3,
            by: Process {
                node: "a".into(),
                incarnation: 9,
            },
            value: Box::from(&b"value"[..]),
        };
        let mut found = Found::default();
        found.take(key, &of_session, 100);
        assert_eq!(found.sessions[&key], (7, records));
        // Of another session: no server has it there, and nobody takes it for a request that was done.
        found.take(key_of(&SessionName::new(None, "client")), &of_session, 100);
        found.take(key, &request.encode(200), 100);
        assert!(found.sessions.is_empty());
        assert_eq!(found.requests[&key], request);
        found.take(key, &request.encode(100), 100);
        assert!(found.requests.is_empty(), "its time is over");
        found.take(key, &kept::encode(8, &Records::new()), 100);
        assert!(found.sessions.is_empty(), "nothing is kept any more");
        found.take(key, b"\x09 another version", 100);
        assert!(found.unreadable > 0);
    }
}
