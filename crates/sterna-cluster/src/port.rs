//! Between shards and the engine: what goes to the engine once a turn, and what comes back.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use sterna_broker::{
    Appended, Change, ClaimRefusal, Committed, Frame, FromPeer, Full, GroupLetter, Interest,
    Message, Outbound, Ownership, Peer, ReadAnswer, ReadRequest, Record, SessionKey, SessionName,
    Store, Wanted,
};
use tokio::sync::Notify;

use crate::report::Report;
use crate::requests::Begun;

/// A letter from the engine to a shard.
#[derive(Debug)]
pub enum ToShard {
    /// Messages of another node, in their order.
    Messages(Vec<(Message, FromPeer)>),
    /// The same, encoded: [`Broker::publish_encoded`](sterna_broker::Broker::publish_encoded). Where they are not valid,
    /// [`Port::cannot_read`] follows.
    Encoded {
        /// The messages.
        records: Bytes,
        /// The subject by which they came.
        subject: Arc<str>,
    },
    /// Filters that other nodes want; for the first shard.
    Wanted(Vec<(Arc<str>, Wanted)>),
    /// Filters that are held no longer for sessions which other nodes have; for the first shard.
    Released(Vec<Arc<str>>),
    /// All filters that other nodes wanted when this one joined have come before it; for the first shard:
    /// [`PeerGate::set_knows_wanted`](sterna_broker::PeerGate::set_knows_wanted).
    WantedIsWhole,
    /// A program exports the cluster: who says that it does; for the first shard.
    Exporting(String),
    /// Acknowledgements may leave: the shard's commitments have come further.
    Committed,
    /// A claim is settled: [`Broker::session_claimed`](sterna_broker::Broker::session_claimed).
    Claimed {
        /// The session that waits for it.
        session: SessionKey,
        /// Whether it may begin.
        result: Result<(), ClaimRefusal>,
    },
    /// As [`Claimed`](Self::Claimed), with what is kept of the session:
    /// [`Broker::session_restored`](sterna_broker::Broker::session_restored).
    Restored {
        /// The session that waits for it.
        session: SessionKey,
        /// Its records.
        records: Vec<Record>,
    },
    /// A session that is away is this node's from now on: [`Broker::adopt`](sterna_broker::Broker::adopt).
    Adopt {
        /// The session's name.
        name: SessionName,
        /// Its records.
        records: Vec<Record>,
    },
    /// The log comes by, for the first shard:
    /// [`Broker::publish_from_log`](sterna_broker::Broker::publish_from_log), then
    /// [`Broker::pass_log`](sterna_broker::Broker::pass_log).
    Logged {
        /// Messages with their positions, in order.
        messages: Vec<(u64, Message)>,
        /// The last position that has come by with them.
        last: u64,
    },
    /// Another node has a session now: [`Broker::lose_session`](sterna_broker::Broker::lose_session).
    Lost {
        /// The session's name.
        name: SessionName,
    },
    /// The records of a session cannot be kept:
    /// [`Broker::drop_unkept_session`](sterna_broker::Broker::drop_unkept_session).
    Unkept {
        /// The session's name.
        name: SessionName,
    },
    /// A will is to be published:
    /// [`Broker::publish_owned_will`](sterna_broker::Broker::publish_owned_will).
    Will {
        /// The will.
        will: Arc<[u8]>,
        /// The client whose rights are to be asked for, where another node had the session.
        testator: Option<SessionName>,
    },
    /// Another node's client asks about a session that is this node's; for any shard.
    Question {
        /// The session's name.
        name: SessionName,
        /// The question of the front door there.
        question: Bytes,
        /// Where the answer goes.
        answer: Answerer,
    },
    /// An operator of another node asks; for any shard.
    NodeQuestion {
        /// The question of the door of operators there.
        question: Bytes,
        /// Where the answer goes.
        answer: Answerer,
    },
    /// Letters of another node about shared subscriptions, for the home of their groups:
    /// [`Broker::group_letter`](sterna_broker::Broker::group_letter).
    GroupLetters {
        /// The node that has sent them.
        node: Arc<str>,
        /// The letters, in their order.
        letters: Vec<Vec<u8>>,
    },
    /// Letters of another node did not arrive:
    /// [`Broker::group_letters_missed`](sterna_broker::Broker::group_letters_missed).
    GroupLettersMissed {
        /// The node.
        node: Arc<str>,
    },
    /// Which processes may be sure of what they have: [`Broker::set_roll`](sterna_broker::Broker::set_roll).
    Roll {
        /// This process.
        own: Peer,
        /// Others; `None` where that is not known.
        sure: Option<Vec<Peer>>,
        /// Time in which members of a node that is gone come to other nodes.
        linger_ms: u64,
    },
    /// A ban of the cluster, or its end, that a node has made; for the first shard.
    Ban(BanRecord),
    /// NATS has lost what the shard told: [`Port::has_told`] follows when it is told again.
    TellAgain(Told),
}

/// A ban of the cluster, or its end. The engine does not look into it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BanRecord {
    /// A name for whoever is banned: each has one record.
    pub name: String,
    /// When the ban was made, or has ended, in milliseconds since the Unix epoch. The later of two counts.
    pub at_ms: u64,
    /// Whether it has ended.
    pub is_end: bool,
    /// The ban, as the server writes it.
    pub ban: Bytes,
}

impl BanRecord {
    /// The record of the higher rank counts. Of one time it is the end.
    pub(crate) const fn rank(&self) -> (u64, bool) {
        (self.at_ms, self.is_end)
    }
}

/// Where the answer to another node's question goes. Without one that node is told that the session is not here.
pub struct Answerer(pub(crate) Box<dyn FnOnce(Vec<u8>) + Send>);

impl Answerer {
    /// A way for an answer: `take` gets it, on the thread that gives it.
    #[must_use]
    pub fn new(take: impl FnOnce(Vec<u8>) + Send + 'static) -> Self {
        Self(Box::new(take))
    }

    /// Answers. An empty answer says that the session is not here.
    pub fn answer(self, answer: Vec<u8>) {
        (self.0)(answer);
    }
}

impl fmt::Debug for Answerer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answerer")
    }
}

/// The result of a question about a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The answer of the node that has the session.
    Said(Bytes),
    /// No node has a session of that name.
    NoSession,
    /// No answer: the node that has the session is away, or NATS is.
    Away,
}

/// Where the answer to a question about a session goes.
pub(crate) struct QuestionReply(pub(crate) Box<dyn FnOnce(Answer) + Send>);

impl fmt::Debug for QuestionReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuestionReply")
    }
}

/// The result of a question to the door of operators of another node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeAnswer {
    /// The answer of that door.
    Said(Bytes),
    /// The answer has more bytes than it may, or the question.
    TooLarge,
    /// No answer in time: the node is away, or NATS is.
    Away,
}

/// A question to the door of operators of another node.
pub(crate) struct NodeQuestion {
    pub(crate) node: Box<str>,
    pub(crate) question: Bytes,
    pub(crate) within_ms: u64,
    pub(crate) maximum_bytes: usize,
    pub(crate) reply: NodeReply,
}

impl fmt::Debug for NodeQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f.debug_struct("NodeQuestion").field("node", &self.node)).finish_non_exhaustive()
    }
}

/// Where the answer of another node's door goes.
pub(crate) struct NodeReply(pub(crate) Box<dyn FnOnce(NodeAnswer) + Send>);

/// A kind of state that a shard tells again, a part at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// Its sessions, from this place on:
    /// [`Broker::renew_sessions`](sterna_broker::Broker::renew_sessions).
    Sessions(usize),
    /// Retained messages, after the first N; for the first shard:
    /// [`Broker::restore_retained`](sterna_broker::Broker::restore_retained).
    Retained(usize),
}

/// A session that waits for its claim: its shard, and its key there.
pub(crate) type Waiting = (usize, SessionKey);

/// The way from the engine to all shards.
pub trait Shards: Send + fmt::Debug {
    /// Delivers a letter to a shard. Letters arrive in order and are never dropped.
    fn post(&mut self, shard: usize, letter: ToShard);

    /// Letters that the shard has not taken yet.
    fn backlog(&self, shard: usize) -> usize;
}

/// Where a report goes.
pub(crate) struct Reply(pub(crate) Box<dyn FnOnce(Report) + Send>);

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

/// Where it is told whether NATS keeps so many copies.
pub(crate) struct ReplicasReply(pub(crate) Box<dyn FnOnce(Result<(), String>) + Send>);

impl fmt::Debug for ReplicasReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplicasReply")
    }
}

/// Where the answer about a key goes.
pub(crate) struct KeyReply(pub(crate) Box<dyn FnOnce(Begun) + Send>);

impl fmt::Debug for KeyReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyReply")
    }
}

/// A front door's order about a key that its client chose.
#[derive(Debug)]
pub(crate) enum KeyOrder {
    Begin {
        key: Box<[u8]>,
        value: Box<[u8]>,
        kept_for_s: u32,
        reply: KeyReply,
    },
    GiveUp {
        key: Box<[u8]>,
    },
    Forget {
        key: Box<[u8]>,
        value: Box<[u8]>,
    },
}

/// A letter from a shard or the process to the engine.
#[derive(Debug)]
pub(crate) enum FromShard {
    /// Messages for other nodes.
    Messages {
        shard: usize,
        outbound: Outbound,
        changes: Vec<Change>,
    },
    /// Something that came from another node is not valid. `place` is its subject, or its node.
    Unreadable {
        kind: &'static str,
        place: Arc<str>,
        error: &'static str,
    },
    /// A shard wants to read the log.
    Read { shard: usize, request: ReadRequest },
    /// Changes of the owners of sessions.
    Ownership { shard: usize, notes: Vec<Ownership> },
    /// Letters about shared subscriptions.
    GroupLetters {
        shard: usize,
        letters: Vec<GroupLetter>,
    },
    /// Filters of this node's readers.
    Interest(Vec<(Arc<str>, Interest)>),
    /// Bans that were made here, and ends of bans.
    Bans(Vec<BanRecord>),
    /// Some of what NATS has lost is told again, and what is to follow.
    HasTold {
        shard: usize,
        told: Told,
        next: Option<Told>,
    },
    /// Somebody wants to know how the cluster is.
    Ask(Reply),
    /// An operator wants another number of copies in NATS.
    SetReplicas(usize, ReplicasReply),
    /// A front door wants to do a request once.
    Key(KeyOrder),
    /// A client asks about a session that another node may have.
    Question {
        name: SessionName,
        question: Bytes,
        reply: QuestionReply,
    },
    /// An operator asks the door of another node.
    AskNode(NodeQuestion),
    /// The node will leave.
    Drain,
    /// The node leaves.
    Stop {
        /// The time until which it waits for what NATS does not have yet.
        by: Instant,
    },
}

/// The engine's letters. Their bytes are bounded by the gate that all shards look at.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// `None` when the engine has ended.
    letters: Mutex<Option<Vec<FromShard>>>,
    pub(crate) arrived: Notify,
}

impl Default for Inbound {
    fn default() -> Self {
        Self {
            letters: Mutex::new(Some(Vec::new())),
            arrived: Notify::new(),
        }
    }
}

impl Inbound {
    /// False where nobody takes letters any more.
    pub(crate) fn post(&self, letter: FromShard) -> bool {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = letters.is_some();
        if let Some(letters) = &mut *letters {
            letters.push(letter);
        }
        drop(letters);
        self.arrived.notify_one();
        is_open
    }

    pub(crate) fn take(&self) -> Vec<FromShard> {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Nobody will take letters any more: they are dropped.
    pub(crate) fn close(&self) {
        *self.letters.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The way of questions about the cluster.
#[derive(Clone, Debug)]
pub struct Asker(Arc<Inbound>);

impl Asker {
    pub(crate) const fn new(inbound: Arc<Inbound>) -> Self {
        Self(inbound)
    }

    /// Asks how the cluster is. `reply` is called on the engine's thread, after `cluster.answer_timeout_ms` at
    /// the latest. False where the engine has ended, and nobody answers.
    #[must_use]
    pub fn ask(&self, reply: impl FnOnce(Report) + Send + 'static) -> bool {
        self.0.post(FromShard::Ask(Reply(Box::new(reply))))
    }

    /// Has NATS keep a number of copies of all streams of the cluster, more or fewer. `reply` is called on the engine's
    /// thread when NATS has taken all, or with the sentence why it has not; those of earlier streams are changed then.
    /// False where the engine has ended, and nobody answers.
    #[must_use]
    pub fn set_replicas(
        &self,
        replicas: usize,
        reply: impl FnOnce(Result<(), String>) + Send + 'static,
    ) -> bool {
        let reply = ReplicasReply(Box::new(reply));
        self.0.post(FromShard::SetReplicas(replicas, reply))
    }

    /// Asks whether a request is to be done, by the key that its client chose. `value` is the front door's record
    /// of the request, which is kept for `kept_for_s` seconds. `reply` is called on the engine's thread, after
    /// `cluster.claim_timeout_ms` at the latest. It is done when a record of the whole cluster says so
    /// ([`Broker::keep_shared`](sterna_broker::Broker::keep_shared)). False where the engine has ended, and nobody
    /// answers.
    #[must_use]
    pub fn begin(
        &self,
        key: &[u8],
        value: &[u8],
        kept_for_s: u32,
        reply: impl FnOnce(Begun) + Send + 'static,
    ) -> bool {
        self.0.post(FromShard::Key(KeyOrder::Begin {
            key: key.into(),
            value: value.into(),
            kept_for_s,
            reply: KeyReply(Box::new(reply)),
        }))
    }

    /// Asks the node that has a session something about it, which a front door there understands. `reply` is called on the
    /// engine's thread, after `cluster.answer_timeout_ms` at the latest. False where the engine has ended, and nobody
    /// answers.
    #[must_use]
    pub fn ask_owner(
        &self,
        name: &SessionName,
        question: Vec<u8>,
        reply: impl FnOnce(Answer) + Send + 'static,
    ) -> bool {
        self.0.post(FromShard::Question {
            name: name.clone(),
            question: question.into(),
            reply: QuestionReply(Box::new(reply)),
        })
    }

    /// Asks the door of operators of another node something that it understands. `reply` is called on the engine's thread,
    /// after `within_ms` at the latest. An answer has at most `maximum_bytes`, and at most what NATS takes. False where the
    /// engine has ended, and nobody answers.
    #[must_use]
    pub fn ask_node(
        &self,
        node: &str,
        question: Vec<u8>,
        (within_ms, maximum_bytes): (u64, usize),
        reply: impl FnOnce(NodeAnswer) + Send + 'static,
    ) -> bool {
        self.0.post(FromShard::AskNode(NodeQuestion {
            node: node.into(),
            question: question.into(),
            within_ms,
            maximum_bytes,
            reply: NodeReply(Box::new(reply)),
        }))
    }

    /// Gives up a request that was to be done: its key is free again.
    pub fn give_up(&self, key: &[u8]) {
        let key = key.into();
        self.0.post(FromShard::Key(KeyOrder::GiveUp { key }));
    }

    /// Forgets a request that was done: its key is free again, unless another record is kept for it by now.
    pub fn forget(&self, key: &[u8], value: &[u8]) {
        let (key, value) = (key.into(), value.into());
        (self.0).post(FromShard::Key(KeyOrder::Forget { key, value }));
    }
}

/// A shard's way to the engine.
#[derive(Debug)]
pub struct Port {
    shard: usize,
    inbound: Arc<Inbound>,
}

impl Port {
    pub(crate) const fn new(shard: usize, inbound: Arc<Inbound>) -> Self {
        Self { shard, inbound }
    }

    /// Hands over what a turn had for other nodes: [`Broker::take_outgoing`](sterna_broker::Broker::take_outgoing)
    /// and [`Broker::take_changes`](sterna_broker::Broker::take_changes).
    pub fn send(&self, outbound: Outbound, changes: Vec<Change>) {
        self.inbound.post(FromShard::Messages {
            shard: self.shard,
            outbound,
            changes,
        });
    }

    /// Tells that something is not valid that came from another node, such as [`ToShard::Encoded`]. `kind` is a noun for the
    /// log, and `place` the subject, node or client. The engine counts it, and the log has the first of each interval.
    pub fn cannot_read(&self, kind: &'static str, place: Arc<str>, error: &'static str) {
        (self.inbound).post(FromShard::Unreadable { kind, place, error });
    }

    /// Tells of bans of the cluster that were made here, and of their ends: other nodes have them by [`ToShard::Ban`].
    pub fn tell_bans(&self, records: Vec<BanRecord>) {
        self.inbound.post(FromShard::Bans(records));
    }

    /// Tells what becomes of sessions:
    /// [`Broker::take_ownership`](sterna_broker::Broker::take_ownership).
    pub fn own(&self, notes: Vec<Ownership>) {
        self.inbound.post(FromShard::Ownership {
            shard: self.shard,
            notes,
        });
    }

    /// Sends letters about shared subscriptions:
    /// [`Broker::take_group_letters`](sterna_broker::Broker::take_group_letters).
    pub fn send_group_letters(&self, letters: Vec<GroupLetter>) {
        self.inbound.post(FromShard::GroupLetters {
            shard: self.shard,
            letters,
        });
    }

    /// Says that something is told again, and what is to be told next.
    pub fn has_told(&self, told: Told, next: Option<Told>) {
        self.inbound.post(FromShard::HasTold {
            shard: self.shard,
            told,
            next,
        });
    }

    /// Tells what readers want: [`Broker::take_interest`](sterna_broker::Broker::take_interest).
    pub fn tell(&self, interest: Vec<(Arc<str>, Interest)>) {
        self.inbound.post(FromShard::Interest(interest));
    }
}

/// How far a shard's messages have come, and how far they are waited for.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    committed: AtomicU64,
    wish: AtomicU64,
}

impl Progress {
    /// Everything up to a token is with the engine. True where somebody waits for that.
    pub(crate) fn commit(&self, token: u64) -> bool {
        self.committed.store(token, Ordering::SeqCst);
        let wish = self.wish.load(Ordering::SeqCst);
        let has_come_true = wish != 0 && wish <= token;
        if has_come_true {
            self.wish.store(0, Ordering::SeqCst);
        }
        has_come_true
    }

    fn committed(&self) -> u64 {
        self.committed.load(Ordering::SeqCst)
    }

    /// Wishes to be told of a token. True where it has come so far already.
    fn wish(&self, token: u64) -> bool {
        let wish = self.wish.load(Ordering::SeqCst);
        if wish == 0 || token < wish {
            self.wish.store(token, Ordering::SeqCst);
        }
        token <= self.committed()
    }
}

/// The log as the shards see it, and their reading as the engine sees it.
#[derive(Debug)]
pub(crate) struct LogView {
    /// The position behind the last that has come by on the first shard.
    end: AtomicU64,
    shards: Box<[LogReader]>,
}

#[derive(Debug)]
struct LogReader {
    /// No reader of the shard needs what is before it.
    needed: AtomicU64,
    answers: Mutex<VecDeque<ReadAnswer>>,
}

impl LogView {
    pub(crate) fn new(shards: usize) -> Self {
        let reader = || LogReader {
            needed: AtomicU64::new(u64::MAX),
            answers: Mutex::default(),
        };
        Self {
            end: AtomicU64::new(1),
            shards: std::iter::repeat_with(reader).take(shards).collect(),
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::SeqCst)
    }

    /// The lowest position that a reader of this node needs.
    pub(crate) fn needed(&self) -> u64 {
        let each = (self.shards.iter()).map(|shard| shard.needed.load(Ordering::SeqCst));
        each.fold(self.end(), u64::min)
    }

    pub(crate) fn answer(&self, shard: usize, answer: ReadAnswer) {
        let mut answers =
            (self.shards[shard].answers.lock()).unwrap_or_else(PoisonError::into_inner);
        answers.push_back(answer);
    }
}

/// The store of a node in a cluster: the log and the records are NATS'. Messages are appended by way of
/// [`Broker::take_outgoing`](sterna_broker::Broker::take_outgoing), whose tokens are those of this store, and have
/// their positions when they come by.
pub(crate) struct Commitments {
    shard: usize,
    progress: Arc<Progress>,
    log: Arc<LogView>,
    inbound: Arc<Inbound>,
    wake: Box<dyn Fn() + Send>,
}

impl fmt::Debug for Commitments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commitments")
            .field("progress", &self.progress)
            .finish_non_exhaustive()
    }
}

impl Commitments {
    /// `wake` has the shard look at its acknowledgements in its next turn.
    pub(crate) fn new(
        shard: usize,
        progress: Arc<Progress>,
        log: Arc<LogView>,
        inbound: Arc<Inbound>,
        wake: Box<dyn Fn() + Send>,
    ) -> Self {
        Self {
            shard,
            progress,
            log,
            inbound,
            wake,
        }
    }

    fn reader(&self) -> &LogReader {
        &self.log.shards[self.shard]
    }
}

impl Store for Commitments {
    fn next_position(&self) -> u64 {
        self.log.end()
    }

    fn append(&mut self, _: Frame<'_>) -> Result<Appended, Full> {
        // A broker in a cluster hands everything to the engine.
        Err(Full)
    }

    fn committed(&self) -> Committed {
        let token = self.progress.committed();
        Committed {
            written: token,
            synced: token,
        }
    }

    fn wake_at(&mut self, wanted: Committed) {
        let lowest = [wanted.written, wanted.synced]
            .into_iter()
            .filter(|token| *token > 0);
        if let Some(token) = lowest.min()
            && self.progress.wish(token)
        {
            (self.wake)();
        }
    }

    fn came_by(&mut self, position: u64) {
        self.log.end.fetch_max(position + 1, Ordering::SeqCst);
    }

    fn read(&mut self, request: ReadRequest) {
        let shard = self.shard;
        self.inbound.post(FromShard::Read { shard, request });
    }

    fn next_answer(&mut self) -> Option<ReadAnswer> {
        let answers = self.reader().answers.lock();
        answers.unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        // Only queues that a node keeps are read at the start. Those of a cluster are read as sessions are.
        ReadAnswer {
            reader: request.reader,
            messages: Vec::new(),
            next: request.to,
        }
    }

    fn load(&mut self, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn needed_from(&mut self, position: u64) {
        self.reader().needed.store(position, Ordering::SeqCst);
    }

    fn hold_from(&mut self, position: u64) {
        self.reader().needed.fetch_min(position, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(written: u64, synced: u64) -> Committed {
        Committed { written, synced }
    }

    #[test]
    fn a_wish_is_told_once_whichever_comes_first() {
        let progress = Arc::new(Progress::default());
        let woken = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&woken);
        let wake = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        let mut store = Commitments::new(
            0,
            Arc::clone(&progress),
            Arc::new(LogView::new(1)),
            Arc::default(),
            Box::new(wake),
        );
        assert!(!progress.commit(3), "nobody waits");
        store.wake_at(wanted(2, 0));
        assert_eq!(woken.load(Ordering::SeqCst), 1, "it has come so far");
        assert!(progress.commit(3), "the wish was still noted");
        store.wake_at(wanted(0, 9));
        store.wake_at(wanted(5, 9));
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        assert!(!progress.commit(4));
        assert!(progress.commit(6), "the lower of two wishes");
        assert!(!progress.commit(7), "once");
        assert_eq!(store.committed(), wanted(7, 7));
    }
}
