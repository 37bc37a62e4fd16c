//! This cluster's streams in NATS: making them, and making them again where NATS has lost them.
//!
//! NATS loses a stream when most of its servers come back without their data, or when somebody deletes it. The
//! first node that notices makes all that are missing. Each node writes again everything it knows: the filters of
//! its readers, retained messages, its sessions' records, and their kept state. Messages that were in an inbox or
//! in the log are lost.
//!
//! The first sequence number of a stream is the time of its making in microseconds. So its numbers are higher than
//! those of the stream before it, and incarnations, epochs, cursors and reading positions go on. No position is
//! ahead of a new stream, and no position in the old stream is taken for one in the new.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{
    CreateStreamErrorKind, DeleteStreamError, DeleteStreamErrorKind, GetStreamError,
    GetStreamErrorKind,
};
use async_nats::jetstream::stream::{self, DiscardPolicy, Info, StorageType, Stream};
use tokio::sync::Notify;

use super::regions::OUT;
use super::{Core, regions};
use crate::port::{ToShard, Told};
use crate::subjects;

/// Filters that nodes want.
pub(super) const NODES: &str = "NODES";
/// Nodes' inboxes.
pub(super) const INBOX: &str = "INBOX";
/// Retained messages.
pub(super) const RETAINED: &str = "RETAINED";
/// Messages that somebody wants who outlives a connection.
pub(super) const LOG: &str = "LOG";
/// The kept state of sessions and of requests.
pub(super) const KEPT: &str = "KEPT";
/// Sessions' records, and nodes' marks.
pub(super) const SESSIONS: &str = "SESSIONS";

/// Time for which NATS knows a batch again that it has. Nodes know them longer.
pub(super) const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// Time for which NATS says that a stream is not there before it is made again. A server that has just begun may
/// not know of it yet.
const LOST_AFTER: Duration = Duration::from_secs(3);

/// How often is looked for the stream that nobody follows.
const LOOK: Duration = Duration::from_secs(1);

/// The pause after something is told again, and before all is told once more because something was missed.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(300));

/// The facts known of one stream.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// When it was made, in nanoseconds since the Unix epoch by NATS' clock: another stream of the name has another.
    made: Cell<Option<i128>>,
    /// The highest sequence number that was seen.
    highest: Cell<u64>,
    /// Since when NATS says that it is not there.
    lacking_since_ms: Cell<Option<u64>>,
}

impl Known {
    /// The highest sequence number that was seen.
    pub(super) const fn highest(&self) -> u64 {
        self.highest.get()
    }

    pub(super) fn saw(&self, sequence: u64) {
        self.highest.set(self.highest.get().max(sequence));
    }
}

/// The facts known of all streams.
#[derive(Debug, Default)]
pub(super) struct Streams {
    known: RefCell<HashMap<String, Rc<Known>>>,
    /// Shards that tell something again.
    telling: Cell<usize>,
    /// Whether the kept state of sessions is to be written again.
    is_kept_lost: Cell<bool>,
    /// Notified when other nodes' filters are to be told again.
    pub(super) is_interest_lost: Notify,
    /// Notified when bans are to be written again.
    pub(super) are_bans_lost: Notify,
}

impl Core {
    pub(super) fn known_stream(&self, stream: &str) -> Rc<Known> {
        let mut known = self.streams.known.borrow_mut();
        Rc::clone(known.entry(stream.to_owned()).or_default())
    }

    /// A stream of the cluster, which may not be there. Asks NATS for nothing.
    ///
    /// # Errors
    /// A sentence for the log: the name is none.
    pub(super) async fn stream(&self, stream: &str) -> Result<Stream<()>, String> {
        let found = self
            .jetstream
            .get_stream_no_info(self.settings.stream(stream))
            .await;
        found.map_err(|error| error.to_string())
    }

    /// Makes the streams that are not there.
    ///
    /// # Errors
    /// NATS's words, for the log.
    pub(super) async fn make_streams(&self) -> Result<(), String> {
        for (stream, config) in self.wanted_streams() {
            let name = config.name.clone();
            let info = self
                .make_stream(config.clone())
                .await
                .map_err(|error| format!("stream {name}: {error}"))?;
            let info = self.raise_replicas(info).await;
            self.set_sources(&config, &info).await?;
            self.found_stream(stream, &info).await?;
        }
        Ok(())
    }

    /// Gets a stream, or makes it where there is none.
    pub(super) async fn make_stream(&self, config: stream::Config) -> Result<Info, String> {
        let name = config.name.clone();
        let made = match self.jetstream.get_or_create_stream(config).await {
            Err(error) if was_made_by_another(&error.kind()) => {
                let found = self.jetstream.get_stream(&name).await;
                found.map_err(|error| error.to_string())
            }
            made => made.map_err(|error| error.to_string()),
        };
        Ok(made?.cached_info().clone())
    }

    /// The names of this cluster's streams in NATS.
    pub(super) fn stream_names(&self) -> Vec<String> {
        let wanted = self.wanted_streams().into_iter();
        wanted.map(|(_, config)| config.name).collect()
    }

    pub(super) fn wanted_streams(&self) -> Vec<(&'static str, stream::Config)> {
        let settings = &self.settings;
        let base = |stream: &str, subjects: &[String]| stream::Config {
            name: settings.stream(stream),
            subjects: subjects
                .iter()
                .map(|subject| settings.subject(subject))
                .collect(),
            storage: StorageType::File,
            num_replicas: settings.replicas,
            duplicate_window: DUPLICATE_WINDOW,
            allow_direct: true,
            first_sequence: Some(self.first_sequence(stream)),
            ..stream::Config::default()
        };
        let last_of_subject = |stream: &str, subjects: &[String]| stream::Config {
            allow_rollup: true,
            ..base(stream, subjects)
        };
        // An entry of a key says itself until when it holds. One that comes again after that is none.
        let kept = stream::Config {
            allow_message_ttl: true,
            ..last_of_subject(KEPT, &[subjects::kept("*")])
        };
        // Nobody is waited for that long.
        let waits = Duration::from_millis(settings.absence_ms.saturating_mul(2) + 60_000);
        let inbox = stream::Config {
            discard: DiscardPolicy::New,
            max_bytes: i64::try_from(settings.inbox_bytes).unwrap_or(i64::MAX),
            max_age: waits,
            duplicate_window: DUPLICATE_WINDOW.min(waits),
            ..base(INBOX, &[subjects::inbox("*", "*")])
        };
        let log = stream::Config {
            discard: DiscardPolicy::New,
            max_bytes: i64::try_from(settings.log_bytes).unwrap_or(i64::MAX),
            sources: regions::sources_of_log(settings),
            ..base(LOG, &[subjects::log(">")])
        };
        let retained = stream::Config {
            sources: regions::sources_of_retained(settings),
            ..last_of_subject(RETAINED, &[subjects::retained(">")])
        };
        let of_nodes = [
            subjects::join("*"),
            subjects::want("*", "*"),
            subjects::came("*"),
            subjects::ban("*"),
            subjects::IMPORT.to_owned(),
        ];
        let of_sessions = [
            subjects::session("*"),
            subjects::mark("*"),
            subjects::floor("*"),
        ];
        let mut wanted = vec![
            (NODES, last_of_subject(NODES, &of_nodes)),
            (INBOX, inbox),
            (RETAINED, retained),
            (LOG, log),
            (KEPT, kept),
            (SESSIONS, last_of_subject(SESSIONS, &of_sessions)),
        ];
        let out = subjects::OUT_KINDS.map(|kind| subjects::out(kind, ">"));
        wanted.extend(regions::out(settings, base(OUT, &out)).map(|out| (OUT, out)));
        wanted
    }

    /// Above all numbers that this node knows of, also where its clock was set back.
    fn first_sequence(&self, stream: &str) -> u64 {
        let mut before = self.known_stream(stream).highest.get();
        if stream == NODES {
            before = before.max(self.incarnation.get());
        }
        (self.wall_ms() * 1_000).max(before + 1)
    }

    /// NATS says that a stream is not there. It is made again where that stays so.
    pub(super) async fn lacks_stream(&self, stream: &str) {
        let (now_ms, known) = (self.now_ms(), self.known_stream(stream));
        let Some(since_ms) = known.lacking_since_ms.get() else {
            tracing::error!(stream, "NATS has a stream of this cluster no more");
            known.lacking_since_ms.set(Some(now_ms));
            return self.note_lacking();
        };
        if now_ms - since_ms < LOST_AFTER.as_millis() as u64 {
            return;
        }
        let made = async {
            self.is_no_import_since().await?;
            self.make_streams().await
        };
        if let Err(why) = made.await {
            tracing::warn!(why, "streams cannot be made again yet");
        }
    }

    /// A stream is there that was made in place of another.
    pub(super) fn found_anew(&self, stream: &str, info: &Info) {
        let known = self.known_stream(stream);
        known.made.set(Some(made_at(info)));
        known.saw(info.state.last_sequence);
    }

    /// A stream is there. Where it is another than before, this node writes again what it knows.
    ///
    /// # Errors
    /// The reason why the stream is not to be used, for the log.
    pub(super) async fn found_stream(&self, stream: &str, info: &Info) -> Result<(), String> {
        let known = self.known_stream(stream);
        let made = made_at(info);
        let is_another = |known: &Known| known.made.get().is_some_and(|before| before != made);
        if is_another(&known) {
            self.is_no_import_since().await?;
        }
        known.lacking_since_ms.set(None);
        self.note_lacking();
        known.saw(info.state.last_sequence);
        // Another reader of it may have found it meanwhile.
        let is_another = is_another(&known);
        known.made.set(Some(made));
        if is_another {
            tracing::warn!(
                stream,
                "NATS has another stream: what this node knows is written again"
            );
            self.renew(stream);
        }
        Ok(())
    }

    fn note_lacking(&self) {
        let known = self.streams.known.borrow();
        let lacks = (known.values()).any(|known| known.lacking_since_ms.get().is_some());
        (self.status.lacks_streams).store(lacks, Ordering::Release);
    }

    /// Looks whether a stream is there, and is the one that is known.
    ///
    /// # Errors
    /// NATS' words, for the log.
    pub(super) async fn look_at_stream(&self, stream: &str) -> Result<Info, String> {
        let found = (self.jetstream)
            .get_stream(self.settings.stream(stream))
            .await;
        match found {
            Ok(found) => {
                let info = found.cached_info();
                self.found_stream(stream, info).await?;
                Ok(info.clone())
            }
            Err(error) => {
                if is_no_stream(&error) {
                    self.lacks_stream(stream).await;
                }
                Err(error.to_string())
            }
        }
    }

    /// Looks after the stream that nobody follows.
    pub(super) async fn look_after_kept(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.status.is_connected() {
                let _ = self.look_at_stream(KEPT).await;
            }
            if self.streams.is_kept_lost.replace(false) {
                self.keep_all_again().await;
            }
        }
    }

    fn renew(&self, stream: &str) {
        match stream {
            NODES => {
                let filters: Vec<_> = self.own.borrow().keys().cloned().collect();
                self.untold.borrow_mut().extend(filters);
                self.untold_arrived.notify_one();
                self.streams.is_interest_lost.notify_one();
                self.streams.are_bans_lost.notify_one();
            }
            LOG => {
                tracing::error!("messages that waited in NATS for sessions are lost");
            }
            KEPT => self.streams.is_kept_lost.set(true),
            INBOX => {
                tracing::error!("messages of QoS 1 and 2 that waited in NATS for nodes are lost");
            }
            OUT => {
                tracing::error!("messages that waited in NATS for other regions are lost");
            }
            RETAINED => self.tell_again(0, Told::Retained(0)),
            SESSIONS => {
                (self.owners.borrow_mut()).records_lost(self.fence.now_ms());
                self.owners_changed.notify_one();
                for shard in 0..self.settings.shards {
                    self.tell_again(shard, Told::Sessions(0));
                }
            }
            _ => {}
        }
    }

    /// Whether the stream of sessions' records is so young that an earlier one may have had others.
    pub(super) fn has_young_records(&self, age: Duration) -> bool {
        let Some(made) = self.known_stream(SESSIONS).made.get() else {
            return true;
        };
        let since = i128::from(self.wall_ms()) * 1_000_000 - made;
        since < age.as_nanos() as i128
    }

    fn tell_again(&self, shard: usize, told: Told) {
        self.set_telling(self.streams.telling.get() + 1);
        self.post(shard, ToShard::TellAgain(told));
    }

    fn set_telling(&self, telling: usize) {
        self.streams.telling.set(telling);
        (self.status.tells_again).store(telling > 0, Ordering::Release);
    }

    /// A shard has told again some of the lost state. It goes on when NATS has that part. It begins again as long
    /// as sessions are missing, which may have moved to another shard meanwhile.
    pub(super) async fn told_again(self: Rc<Self>, shard: usize, told: Told, next: Option<Told>) {
        tokio::time::sleep(PAUSES.0).await;
        let next = match told {
            Told::Retained(_) => {
                while !self.retained.borrow().is_empty() {
                    tokio::time::sleep(PAUSES.0).await;
                }
                next
            }
            Told::Sessions(_) => {
                while self.owners.borrow().busy() > self.settings.maximum_in_flight {
                    tokio::time::sleep(PAUSES.0).await;
                }
                if next.is_none() {
                    tokio::time::sleep(PAUSES.1).await;
                }
                let is_complete = self.owners.borrow().forgotten() == 0;
                next.or_else(|| (!is_complete).then_some(Told::Sessions(0)))
            }
        };
        if let Some(next) = next {
            self.post(shard, ToShard::TellAgain(next));
        } else {
            self.set_telling(self.streams.telling.get().saturating_sub(1));
        }
    }
}

/// When a stream was made, in nanoseconds since the Unix epoch by NATS' clock.
fn made_at(info: &Info) -> i128 {
    info.created.unix_timestamp_nanos()
}

/// Whether NATS says that it has no stream of a name.
pub(super) fn is_no_stream(error: &GetStreamError) -> bool {
    match error.kind() {
        GetStreamErrorKind::JetStream(answer) => answer.error_code() == ErrorCode::STREAM_NOT_FOUND,
        _ => false,
    }
}

/// The same, where one was to be removed.
pub(super) fn is_none_to_remove(error: &DeleteStreamError) -> bool {
    match error.kind() {
        DeleteStreamErrorKind::JetStream(answer) => {
            answer.error_code() == ErrorCode::STREAM_NOT_FOUND
        }
        _ => false,
    }
}

/// Nodes propose different first numbers: the first has its way.
fn was_made_by_another(kind: &CreateStreamErrorKind) -> bool {
    match kind {
        CreateStreamErrorKind::JetStream(error) => {
            error.error_code() == ErrorCode::STREAM_NAME_EXIST
        }
        _ => false,
    }
}
