//! Writing all of a cluster: an import.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::message::PublishMessage;
use futures_util::StreamExt;
use sterna_broker::{CarriedSession, Interest, Message, SessionName};

use super::super::interest::digest_of;
use super::super::log::{MOST_IN_ENTRY, POSITION, position, sequence};
use super::super::sessions::key_of;
use super::super::streams::{KEPT, LOG, NODES, RETAINED, SESSIONS};
use super::super::writing::as_last;
use super::super::{Core, kept, membership, retained, sessions, streams};
use super::Plan;
use super::notice::{ANOTHER, State, UNDER_WAY};
use crate::owners::{Key, Process, Record};
use crate::requests::Entry;
use crate::subjects;
use crate::wire::EncodedRun;

/// The epoch of sessions' records before a node has them. Those of nodes are higher.
const EPOCH: u64 = 1;

/// Bytes of an entry of the log beside its messages: numbers and headers.
const ENTRY_BYTES: u64 = 160;

/// Time in which NATS may free what it had set aside for streams that were removed.
const FREEING: Duration = Duration::from_secs(10);

/// How often is tried to make them again.
const RETRY: Duration = Duration::from_millis(200);

/// An entry of the log that is being filled.
struct Filling {
    subject: String,
    topic: Box<str>,
    run: EncodedRun,
    first: u64,
    next: u64,
}

/// An import that is under way.
pub(super) struct Importing {
    core: Rc<Core>,
    /// The sequence number of its notice.
    notice: u64,
    /// The number of the last entry of the log.
    last: u64,
    filling: Option<Filling>,
    full: Vec<Filling>,
    /// The positions of the first message, and behind the last.
    positions: Option<(u64, u64)>,
    next_position: u64,
}

impl Importing {
    pub(super) async fn begin(core: Rc<Core>, plan: Plan) -> Result<Self, String> {
        if core.settings.region.is_some() {
            // Messages that other regions keep for this one would come again.
            return Err("an import into a region (cluster.region) is not possible".to_owned());
        }
        core.has_room_for(plan)?;
        let contents = core.contents().await?;
        let (state, before) = core.patiently(async || core.notice().await).await?;
        if !plan.replaces {
            if state == State::UnderWay {
                return Err(UNDER_WAY.to_owned());
            }
            if let Some(contents) = &contents {
                return Err(core.not_empty(contents));
            }
        }
        // The stream of nodes is never removed: it has the notice.
        let streams = core.wanted_streams();
        let of_nodes = streams.into_iter().find(|(stream, _)| *stream == NODES);
        if let Some((stream, config)) = of_nodes {
            let made = core.make_stream(config).await;
            let info = made.map_err(|why| core.explained(&format!("stream {stream}: {why}")))?;
            core.found_stream(stream, &info).await?;
        }
        let notice = core.note_import(State::UnderWay, before).await?;
        if let Err(why) = core.is_nobody_here().await {
            // Nothing has changed so far.
            if state == State::Idle {
                core.note_import(State::Idle, notice).await?;
            }
            return Err(why);
        }
        let mut has_removed = false;
        if let Err(why) = core.make_room(plan, &mut has_removed).await {
            // All that the cluster had is still there, so nodes may go on with it.
            if !has_removed {
                core.note_import(state, notice).await?;
            }
            return Err(why);
        }
        // Servers that have just begun may not have known of their streams.
        let contents = core.contents().await?;
        if let Some(contents) = contents {
            core.note_import(state, notice).await?;
            return Err(core.not_empty(&contents));
        }
        let entered = core.enter().await;
        entered.map_err(|why| core.explained(&why))?;
        let info = core.look_at_stream(LOG).await?;
        let last = info.state.last_sequence;
        if last < sequence(plan.next_position) {
            return Err("the log in NATS begins before the positions of the export".to_owned());
        }
        Ok(Self {
            core,
            notice,
            last,
            filling: None,
            full: Vec::new(),
            positions: None,
            next_position: plan.next_position,
        })
    }

    /// Takes a message. True where those that wait are to be written.
    pub(super) fn push(&mut self, at: u64, message: &Message) -> Result<bool, String> {
        if at >= self.next_position {
            return Err(format!("position {at} is not below next_position"));
        }
        let (first, _) = self.positions.unwrap_or((at, at));
        self.positions = Some((first, at + 1));
        let most_bytes = self.core.batch_bytes();
        let has_room = |filling: &Filling| {
            *filling.topic == *message.topic()
                && filling.next == at
                && filling.run.messages() < MOST_IN_ENTRY
                && filling.run.bytes() + message.body_bytes() < most_bytes
        };
        if self.filling.as_ref().is_some_and(|one| !has_room(one)) {
            self.full.extend(self.filling.take());
        }
        let settings = &self.core.settings;
        let filling = self.filling.get_or_insert_with(|| {
            let place = retained::place(message.topic());
            Filling {
                subject: settings.subject(&subjects::log(&place)),
                topic: message.topic().into(),
                run: EncodedRun::new(0),
                first: at,
                next: at,
            }
        });
        filling.run.push(message, true);
        filling.next = at + 1;
        Ok(self.full.len() >= settings.maximum_in_flight)
    }

    /// Writes the entries that are full. Each says which number it is to have: where one is missing, all later ones are
    /// refused, so none overtakes another, and none is there twice.
    pub(super) async fn flush(&mut self) -> Result<(), String> {
        self.is_the_last().await?;
        let before = self.last;
        let writes = std::mem::take(&mut self.full);
        let writes = writes.into_iter().zip(before..).map(|(entry, before)| {
            let payload = self.core.batch([&entry.run]);
            let publish = PublishMessage::build()
                .payload(payload)
                .header(POSITION, entry.first.to_string())
                .expected_last_sequence(before);
            ((before + 1, entry.first), entry.subject, publish)
        });
        for ((expected, first), answer) in self.core.publish_all(writes).await {
            match answer {
                Ok(number) if number == expected => self.last = number,
                Ok(number) => {
                    return Err(format!(
                        "the message at position {first} has number {number} in NATS, and should have {expected}"
                    ));
                }
                Err(error) => {
                    return Err(self
                        .core
                        .refused(&format!("the message at position {first}"), &error));
                }
            }
        }
        Ok(())
    }

    /// Whether no other import has begun: that one waits for a lease before it removes and writes anything.
    async fn is_the_last(&self) -> Result<(), String> {
        let (_, notice) = self.core.notice().await?;
        if notice == self.notice {
            Ok(())
        } else {
            Err(ANOTHER.to_owned())
        }
    }

    /// Writes the last of subjects of a stream.
    async fn write(
        &self,
        what: &str,
        writes: impl Iterator<Item = (String, PublishMessage)>,
    ) -> Result<(), String> {
        let mut writes = writes.peekable();
        while writes.peek().is_some() {
            self.is_the_last().await?;
            let some = writes.by_ref().take(self.core.settings.maximum_in_flight);
            let some = some.map(|(subject, write)| {
                let subject = self.core.settings.subject(&subject);
                (subject.clone(), subject, write)
            });
            for (subject, answer) in self.core.publish_all(some).await {
                answer
                    .map_err(|error| self.core.refused(&format!("{what} ({subject})"), &error))?;
            }
        }
        Ok(())
    }

    pub(super) async fn retained(&self, messages: &[Message]) -> Result<(), String> {
        let core = &self.core;
        let writes = messages.iter().map(|message| {
            let mut run = EncodedRun::new(0);
            run.push(message, false);
            let publish = PublishMessage::build().payload(core.batch([&run]));
            // Nobody is a reader that it comes anew to.
            let publish = retained::as_retained(as_last(publish), true);
            (
                subjects::retained(&retained::place(message.topic())),
                publish,
            )
        });
        self.write("a retained message", writes).await
    }

    pub(super) async fn requests(&self, requests: &[(Key, Box<[u8]>, u64)]) -> Result<(), String> {
        let by = self.process();
        let writes = requests.iter().map(|(key, value, until_s)| {
            let entry = Entry {
                is_done: true,
                round: EPOCH,
                by: by.clone(),
                value: value.clone(),
            };
            let payload = entry.encode(*until_s).into();
            let publish = as_last(PublishMessage::build().payload(payload));
            (kept::subject_of(*key), publish)
        });
        self.write("a request that was done", writes).await
    }

    /// The process as which this writes.
    fn process(&self) -> Process {
        Process {
            node: self.core.settings.node.as_str().into(),
            incarnation: self.core.incarnation.get(),
        }
    }

    /// Writes sessions: what they have, what they want, and last of all who they are.
    pub(super) async fn finish(
        &mut self,
        sessions: &[(SessionName, CarriedSession)],
    ) -> Result<(), String> {
        self.full.extend(self.filling.take());
        self.flush().await?;
        let kept = sessions.iter().filter(|(_, one)| !one.records.is_empty());
        let records = kept.map(|(name, one)| {
            let payload = kept::encode(EPOCH, &one.records).into();
            let publish = as_last(PublishMessage::build().payload(payload));
            (kept::subject_of(key_of(name)), publish)
        });
        self.write("what a session has", records).await?;
        let own = self.process();
        let filters: HashSet<&str> = (sessions.iter())
            .flat_map(|(_, one)| one.filters())
            .collect();
        let wants = filters.into_iter().map(|filter| {
            let line = Core::line(own.incarnation, Interest::Durable, filter);
            let publish = as_last(PublishMessage::build().payload(line.into()));
            let subject = subjects::want(&own.node, &digest_of(filter));
            (subject, publish)
        });
        self.write("what sessions want", wants).await?;
        let owners = (sessions.iter().zip(1..)).map(|((name, one), serial)| {
            let record = Record {
                owner: own.clone(),
                is_over: false,
                is_kept: !one.records.is_empty(),
                serial,
                name: name.clone(),
                will: one.will.clone(),
                since: None,
            };
            let publish = as_last(PublishMessage::build().payload(record.encode().into()));
            (sessions::subject_of(key_of(name)), publish)
        });
        self.write("who a session is of", owners).await?;
        self.leave().await
    }

    /// Says that the process has left, and what its sessions need of the log; then that nodes may join.
    async fn leave(&self) -> Result<(), String> {
        let Process { node, incarnation } = self.process();
        let end = position(self.last + 1, 0);
        let needed = self.positions.map_or(end, |(first, _)| first);
        let form = membership::FORM;
        let line = format!("{form} {incarnation} leaving 0 {needed} {end}");
        let mark = as_last(PublishMessage::build().payload(line.into()));
        let marks = [(subjects::mark(&node), mark)];
        self.write("the mark of the import", marks.into_iter())
            .await?;
        self.core.has_nobody_joined(self.notice).await?;
        self.core.note_import(State::Idle, self.notice).await?;
        Ok(())
    }
}

impl Core {
    fn not_empty(&self, contents: &str) -> String {
        format!(
            "the cluster {} is not empty: it has {contents}. With --replace all of it is removed first",
            self.settings.name
        )
    }

    /// NATS does not take something.
    fn refused(&self, what: &str, error: &PublishError) -> String {
        let source = std::error::Error::source(error).map(ToString::to_string);
        let why = source.unwrap_or_else(|| error.to_string());
        self.explained(&format!(
            "NATS does not take {what}: {why}. The import is to be begun anew, with --replace"
        ))
    }

    /// Whether the log has room for all messages, and for more behind them.
    fn has_room_for(&self, plan: Plan) -> Result<(), String> {
        let needed = plan.message_bytes + plan.messages * ENTRY_BYTES;
        let most = self.settings.log_bytes / 8 * 7;
        if needed <= most {
            return Ok(());
        }
        Err(format!(
            "the messages take up to {needed} bytes of the log, and {most} are free before publishers are refused: \
             cluster.maximum_log_bytes is to be higher"
        ))
    }

    /// The contents of the cluster in words; `None` where it is empty, or there is none.
    async fn contents(&self) -> Result<Option<String>, String> {
        let mut words = Vec::new();
        let of_sessions = subjects::session("*");
        for (stream, filter, what) in [
            (SESSIONS, Some(of_sessions.as_str()), "records of sessions"),
            (KEPT, None, "entries of sessions and requests"),
            (LOG, None, "entries of the log"),
            (RETAINED, None, "retained messages"),
        ] {
            let Some(info) = self.info_of(stream).await? else {
                continue;
            };
            let count = match filter {
                Some(filter) => {
                    let start = DeliverPolicy::All;
                    self.follow(stream, Some(filter), start).await?.waiting
                }
                None => info.state.messages,
            };
            if count > 0 {
                words.push(format!("{count} {what}"));
            }
        }
        Ok(Some(words.join(", ")).filter(|words| !words.is_empty()))
    }

    /// Whether no node is heard of for a lease. Its own writes would be mixed with the import.
    async fn is_nobody_here(&self) -> Result<(), String> {
        let subject = self.settings.subject(&subjects::alive("*"));
        let words = self.client.subscribe(subject).await;
        let mut words = words.map_err(|error| error.to_string())?;
        let lease = Duration::from_millis(self.settings.lease_ms + self.settings.lease_ms / 4);
        let heard = async {
            while let Some(word) = words.next().await {
                let line = std::str::from_utf8(&word.payload).unwrap_or_default();
                if line.split(' ').nth(2) == Some("here") {
                    let node = word.subject.rsplit('.').next().unwrap_or_default();
                    return node.to_owned();
                }
            }
            String::new()
        };
        match tokio::time::timeout(lease, heard).await {
            Ok(node) if node.is_empty() => Err(self.explained("NATS is away")),
            Ok(node) => Err(format!(
                "the node {node} runs: an import needs all nodes of the cluster stopped"
            )),
            Err(_) => Ok(()),
        }
    }

    /// Whether no node has joined since the notice: one may have looked for it just before.
    async fn has_nobody_joined(&self, notice: u64) -> Result<(), String> {
        let mut joined = None;
        self.each_last(NODES, &subjects::join("*"), |entry| {
            if entry.position > notice && entry.position != self.incarnation.get() {
                joined = Some(entry.subject);
            }
        })
        .await?;
        joined.map_or(Ok(()), |subject| {
            let node = subject.split('.').nth(3).unwrap_or_default();
            Err(format!(
                "the node {node} has joined meanwhile: stop it, and begin the import anew with --replace"
            ))
        })
    }

    /// Makes all streams, empty, and the log above all positions of the export. Says by `has_removed` whether one was
    /// removed.
    async fn make_room(&self, plan: Plan, has_removed: &mut bool) -> Result<(), String> {
        let known = self.known_stream(LOG);
        let is_low = known.highest() < sequence(plan.next_position);
        known.saw(sequence(plan.next_position));
        let wanted = self.wanted_streams();
        for (stream, config) in &wanted {
            if *stream == NODES || !(plan.replaces || (is_low && *stream == LOG)) {
                continue;
            }
            match self.jetstream.delete_stream(&config.name).await {
                Ok(_) => *has_removed = true,
                Err(error) if streams::is_none_to_remove(&error) => {}
                Err(error) => {
                    let right = format!("$JS.API.STREAM.DELETE.{}", config.name);
                    return Err(self.explained(&format!(
                        "NATS does not remove the stream {} ({error}). It needs the right to publish to {right}",
                        config.name
                    )));
                }
            }
        }
        if plan.replaces {
            let wants = self.settings.subject(&subjects::want("*", "*"));
            let stream = self.stream(NODES).await?;
            *has_removed = true;
            let purged = stream.purge().filter(wants).await;
            purged.map_err(|error| self.explained(&format!("what nodes want: {error}")))?;
        }
        let end = tokio::time::Instant::now() + FREEING;
        for (stream, config) in wanted {
            loop {
                match self.make_stream(config.clone()).await {
                    Ok(info) => break self.found_anew(stream, &info),
                    Err(why) if tokio::time::Instant::now() >= end => {
                        return Err(self.explained(&format!("stream {}: {why}", config.name)));
                    }
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            }
        }
        Ok(())
    }
}
