//! All of a cluster, read and written by a program that is no node: for `sterna cluster export` and `import`.
//!
//! An export reads streams and changes nothing, whether nodes run or not. It reads the sessions first, then the log up
//! to the last entry that it has by then. So all that these sessions have not settled is in it.
//!
//! An import writes as a process of the node whose settings it has, which has left. So nodes that start take the
//! sessions over as those of that process. A *notice* in NATS says that an import is under way: until it says that this
//! is done, no node joins. An import that has failed is begun anew, from the first line.

mod notice;
mod reading;
mod telling;
mod writing;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::Info;
use sterna_broker::{CarriedSession, Message, SessionName};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::{Core, Engine, clocks, connection, kept, streams};
use crate::owners::Key;
use crate::port::{Shards, ToShard};
use crate::settings::Settings;
use crate::wire;
use writing::Importing;

/// The shortest time in which a server of NATS has to be reached.
const SHORTEST_PATIENCE: Duration = Duration::from_secs(5);

/// Time in which NATS elects leaders of streams.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often is looked whether one was.
const LOOK: Duration = Duration::from_millis(20);

/// A connection to the NATS of a cluster.
pub struct Transfer {
    runtime: Runtime,
    tasks: LocalSet,
    core: Rc<Core>,
    importing: Option<Importing>,
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer")
            .field("settings", &self.core.settings)
            .finish_non_exhaustive()
    }
}

/// All of a cluster, but for the messages of its log.
#[derive(Debug, Default)]
pub struct Content {
    /// The sessions, with their names: those of clients, of front doors, and of the roots of shared subscriptions.
    pub sessions: Vec<(SessionName, CarriedSession)>,
    /// Requests that were done, by the digests of their keys, with the front door's records.
    pub requests: Vec<(Key, Box<[u8]>)>,
    /// The retained message of each topic that has one.
    pub retained: Vec<Message>,
    /// The position behind those of all messages of the log.
    pub next_position: u64,
    /// The parts that are not in it.
    pub left: Left,
    /// The entries of the log that are to be read: the first and the last.
    entries: (u64, u64),
}

/// The parts of a cluster that could not be read, or are not carried.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Left {
    /// Sessions whose records are not valid, or of another version.
    pub unreadable_sessions: u64,
    /// Retained messages that are not valid.
    pub unreadable_retained: u64,
    /// Entries of the log that are not valid. Each may be of many messages.
    pub unreadable_entries: u64,
    /// Messages that wait for other regions.
    pub for_regions: u64,
}

/// An import before it begins.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Whether what the cluster has is removed first. Otherwise it must be empty.
    pub replaces: bool,
    /// The position behind those of all messages.
    pub next_position: u64,
    /// Bytes of the messages, each with its topic.
    pub message_bytes: u64,
    /// Number of messages.
    pub messages: u64,
}

/// No shards: nobody is told anything.
#[derive(Debug)]
struct NoShards;

impl Shards for NoShards {
    fn post(&mut self, _: usize, _: ToShard) {}

    fn backlog(&self, _: usize) -> usize {
        0
    }
}

impl Transfer {
    /// Connects to NATS with the settings of a node.
    ///
    /// # Errors
    /// A sentence for the operator: what is wrong with the settings, or that no server can be reached.
    pub fn connect(settings: Settings) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(|error| format!("cluster: no runtime: {error}"))?;
        let engine = Engine::new(settings, 0);
        let connected = Arc::new(Notify::new());
        let client = {
            let connecting = connection::connect(
                &engine.settings,
                (&engine.status, &engine.fence),
                &connected,
            );
            runtime.block_on(connecting)?
        };
        let core = {
            // Tasks of the client begin here.
            let _entered = runtime.enter();
            // No task of it runs that could end a node.
            let report = Rc::new(|_| {});
            engine.core(
                client,
                Box::new(NoShards),
                connected,
                (Box::new(clocks::system_ms), report),
            )
        };
        let transfer = Self {
            runtime,
            tasks: LocalSet::new(),
            core: Rc::new(core),
            importing: None,
        };
        transfer.wait(transfer.core.is_reached())?;
        Ok(transfer)
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.tasks.block_on(&self.runtime, work)
    }

    /// The most bytes that the body of a message may have in this cluster: topic, properties and payload.
    #[must_use]
    pub fn most_message_bytes(&self) -> usize {
        self.core.most_message_bytes()
    }

    /// Reads all of the cluster but the messages of its log, which [`messages`](Self::messages) reads. Nothing is changed.
    /// Nodes that run are told before `by` whom.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn read(&self, by: &str) -> Result<Content, String> {
        self.wait(async {
            self.core.say_that_it_exports(by).await?;
            self.core.read_all().await
        })
    }

    /// Reads the messages of the log with their positions, in order.
    ///
    /// # Errors
    /// A sentence for the operator, also that of `visit`, which ends the reading.
    pub fn messages(
        &self,
        content: &mut Content,
        visit: &mut dyn FnMut(u64, &Message) -> Result<(), String>,
    ) -> Result<(), String> {
        let (entries, left) = (content.entries, &mut content.left);
        self.wait(self.core.read_messages(entries, left, visit))
    }

    /// Begins an import: no node joins from now on. Looks before whether a node runs, and whether the cluster is empty.
    ///
    /// # Errors
    /// A sentence for the operator. Nothing is changed where it says so; otherwise the import is to be begun anew.
    pub fn begin(&mut self, plan: Plan) -> Result<(), String> {
        let importing = self.wait(Importing::begin(Rc::clone(&self.core), plan))?;
        self.importing = Some(importing);
        Ok(())
    }

    fn importing(&mut self) -> Result<(&Runtime, &LocalSet, &mut Importing), String> {
        let importing = self.importing.as_mut();
        let importing = importing.ok_or("no import has begun")?;
        Ok((&self.runtime, &self.tasks, importing))
    }

    /// Writes a message to the log. Positions rise.
    ///
    /// # Errors
    /// See [`begin`](Self::begin); so do the other calls.
    pub fn message(&mut self, position: u64, message: &Message) -> Result<(), String> {
        let (runtime, tasks, importing) = self.importing()?;
        if importing.push(position, message)? {
            tasks.block_on(runtime, importing.flush())?;
        }
        Ok(())
    }

    /// Writes retained messages.
    ///
    /// # Errors
    /// See [`message`](Self::message).
    pub fn retained(&mut self, messages: &[Message]) -> Result<(), String> {
        let (runtime, tasks, importing) = self.importing()?;
        tasks.block_on(runtime, importing.retained(messages))
    }

    /// Writes requests that were done: digests of their keys, the front door's records, and until when they are known, in
    /// seconds since the Unix epoch.
    ///
    /// # Errors
    /// See [`message`](Self::message).
    pub fn requests(&mut self, requests: &[(Key, Box<[u8]>, u64)]) -> Result<(), String> {
        let (runtime, tasks, importing) = self.importing()?;
        tasks.block_on(runtime, importing.requests(requests))
    }

    /// Writes all sessions, and ends the import: nodes may join. To be called last, and once.
    ///
    /// # Errors
    /// See [`message`](Self::message).
    pub fn finish(&mut self, sessions: &[(SessionName, CarriedSession)]) -> Result<(), String> {
        let (runtime, tasks, importing) = self.importing()?;
        tasks.block_on(runtime, importing.finish(sessions))?;
        self.importing = None;
        Ok(())
    }

    /// Whether all records of a session fit a message of NATS: the bytes that they take, and the most.
    ///
    /// # Errors
    /// Both numbers where they do not.
    pub fn fits(&self, session: &CarriedSession) -> Result<(), (usize, usize)> {
        let bytes = kept::encode(u64::from(u32::MAX), &session.records).len();
        let most = self.core.most_kept_bytes();
        if bytes <= most {
            Ok(())
        } else {
            Err((bytes, most))
        }
    }
}

impl Core {
    /// Waits until NATS is connected.
    async fn is_reached(&self) -> Result<(), String> {
        let patience = Duration::from_millis(self.settings.answer_timeout_ms * 2);
        let end = Instant::now() + patience.max(SHORTEST_PATIENCE);
        while !self.status.is_connected() {
            if Instant::now() >= end {
                return Err(self.explained("NATS is not there"));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// The state of a stream; `None` where there is none.
    async fn info_of(&self, stream: &str) -> Result<Option<Info>, String> {
        let name = self.settings.stream(stream);
        self.patiently(async || match self.jetstream.get_stream(&name).await {
            Ok(found) => {
                let info = found.cached_info();
                self.found_stream(stream, info).await?;
                Ok(Some(info.clone()))
            }
            Err(error) if streams::is_no_stream(&error) => Ok(None),
            Err(error) => Err(format!("stream {name}: {error}")),
        })
        .await
    }

    /// Tries until NATS answers: servers that have just begun refuse at first.
    async fn patiently<T>(
        &self,
        attempt: impl AsyncFn() -> Result<T, String>,
    ) -> Result<T, String> {
        let end = Instant::now() + PATIENCE;
        loop {
            match attempt().await {
                Ok(answer) => return Ok(answer),
                Err(why) if Instant::now() >= end || self.status.rights.sentence().is_some() => {
                    return Err(self.explained(&why));
                }
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// A reason, with what NATS has refused.
    pub(super) fn explained(&self, why: &str) -> String {
        let refused = if self.status.is_connected() {
            self.status.rights.sentence()
        } else {
            self.status.trouble()
        };
        match refused {
            Some(refused) if refused != why => format!("{why}: {refused}"),
            _ => why.to_owned(),
        }
    }

    fn most_message_bytes(&self) -> usize {
        let headers = connection::HEADER_BYTES;
        let overhead = headers
            + wire::RECORD_OVERHEAD_BYTES
            + wire::BATCH_OVERHEAD_BYTES
            + sterna_broker::LETTER_OVERHEAD_BYTES;
        self.client.max_payload().saturating_sub(overhead)
    }
}
