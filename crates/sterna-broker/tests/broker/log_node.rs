//! A node of a cluster in virtual time: its shards, and a model of the log that all nodes read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sterna_broker::{
    Appended, Change, Committed, Destination, Frame, Full, Keeping, Limits, Message, Outgoing,
    PeerGate, ReadAnswer, ReadRequest, Record, Store, Wanted,
};

use crate::cluster::Cluster;

pub(crate) const SHARDS: u16 = 2;
/// Positions have gaps, as those of entries have.
pub(crate) const APART: u64 = 1 << 10;

/// The log, whose first message has the position `APART`.
pub(crate) type Log = Arc<Mutex<Vec<Arc<Message>>>>;

fn position(at: usize) -> u64 {
    (at as u64 + 1) * APART
}

/// A shard's store: it reads the common log, and is told when what was handed over is kept.
#[derive(Debug)]
struct NodeStore {
    log: Log,
    end: Arc<AtomicU64>,
    committed: Arc<AtomicU64>,
    answers: VecDeque<ReadAnswer>,
}

impl Store for NodeStore {
    fn next_position(&self) -> u64 {
        self.end.load(Ordering::SeqCst)
    }

    fn append(&mut self, _: Frame<'_>) -> Result<Appended, Full> {
        Err(Full)
    }

    fn committed(&self) -> Committed {
        let token = self.committed.load(Ordering::SeqCst);
        Committed {
            written: token,
            synced: token,
        }
    }

    fn came_by(&mut self, position: u64) {
        self.end.fetch_max(position + 1, Ordering::SeqCst);
    }

    fn read(&mut self, request: ReadRequest) {
        let mut answer = ReadAnswer {
            reader: request.reader,
            messages: Vec::new(),
            next: request.to,
        };
        for (at, message) in self.log.lock().expect("unharmed").iter().enumerate() {
            let position = position(at);
            if (request.from..request.to).contains(&position) {
                // Encoded and read again, as from the wire.
                let mut record = Vec::new();
                message.encode(&mut record);
                let message = Message::decode(record.into()).expect("its own form");
                answer.messages.push((position, Arc::new(message)));
                if answer.messages.len() == request.most_messages {
                    answer.next = position + 1;
                    break;
                }
            }
        }
        self.answers.push_back(answer);
    }

    fn next_answer(&mut self) -> Option<ReadAnswer> {
        self.answers.pop_front()
    }

    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        ReadAnswer {
            next: request.to,
            ..ReadAnswer::default()
        }
    }

    fn load(&mut self, _: &mut dyn FnMut(&[u8], &[u8])) {}

    fn needed_from(&mut self, _: u64) {}
    fn hold_from(&mut self, _: u64) {}
}

fn is_same(known: &Message, message: &Message) -> bool {
    known.topic() == message.topic() && known.payload() == message.payload()
}

/// Records as a node has them, or as they are kept.
pub(crate) type Records = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// The form in which an owner takes records over.
pub(crate) fn record_list(records: &Records) -> Vec<Record> {
    (records.iter())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// What a shard had in one turn.
struct Turn {
    shard: usize,
    token: u64,
    outgoing: Vec<Outgoing>,
    changes: Vec<Change>,
}

pub(crate) struct LogNode {
    pub(crate) cluster: Cluster,
    /// What it writes, as a whole.
    pub(crate) records: Records,
    log: Log,
    end: Arc<AtomicU64>,
    committed: Vec<Arc<AtomicU64>>,
    followed: usize,
    turns: VecDeque<Turn>,
}

impl LogNode {
    /// A node that follows the log from its end, where somebody wants the topic `t`.
    pub(crate) fn start(log: &Log, mut limits: Limits, gate: PeerGate) -> Self {
        let followed = log.lock().expect("unharmed").len();
        let end = Arc::new(AtomicU64::new(position(followed)));
        let committed: Vec<_> = (0..SHARDS).map(|_| Arc::new(AtomicU64::new(0))).collect();
        limits.read_ahead_messages = 5;
        let mut cluster = Cluster::with(SHARDS, limits, |shard| {
            Box::new(NodeStore {
                log: Arc::clone(log),
                end: Arc::clone(&end),
                committed: Arc::clone(&committed[usize::from(shard)]),
                answers: VecDeque::new(),
            })
        });
        cluster.is_granted = false;
        gate.set_open(true);
        let gate = Arc::new(gate);
        for shard in 0..SHARDS {
            let broker = cluster.broker(shard);
            broker.join_cluster(Arc::clone(&gate));
            broker.set_keeping(Keeping::Synced);
            broker.restore(1_000_000);
        }
        let durable = Wanted {
            is_durable: true,
            ..Wanted::NOBODY
        };
        cluster.broker(0).set_wanted(
            ["t", "dead"]
                .map(|topic| (Arc::from(topic), durable))
                .into(),
        );
        cluster.collect(0);
        cluster.run();
        Self {
            cluster,
            records: Records::new(),
            log: Arc::clone(log),
            end,
            committed,
            followed,
            turns: VecDeque::new(),
        }
    }

    /// The end of what its store has seen of the log.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::SeqCst)
    }

    /// Nothing that it has handed over waits.
    pub(crate) fn is_quiet(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether what a shard has handed over is kept.
    pub(crate) fn has_kept(&self, shard: usize, token: u64) -> bool {
        self.committed[shard].load(Ordering::SeqCst) >= token
    }

    /// Shards take what their stores have for them.
    pub(crate) fn poll_stores(&mut self) {
        self.cluster.run();
        for shard in 0..SHARDS {
            let now_ms = self.cluster.now_ms;
            self.cluster.broker(shard).poll_store(now_ms);
            self.cluster.collect(shard);
        }
    }

    /// A shard hands over what it has for the log and the records.
    pub(crate) fn hand_over(&mut self, shard: u16) {
        let broker = self.cluster.broker(shard);
        let changes = broker.take_changes();
        if let Some(outbound) = broker.take_outgoing() {
            assert!(outbound.encoded.is_empty(), "there is no other node");
            self.turns.push_back(Turn {
                shard: usize::from(shard),
                token: outbound.token,
                outgoing: outbound.outgoing,
                changes,
            });
        }
    }

    /// The model takes the next turn: messages go to the log, and what is wanted of the changes to the records.
    /// Returns whether these have changed; `None` where there was no turn.
    pub(crate) fn take_turn(&mut self, is_wanted: impl Fn(&Change) -> bool) -> Option<bool> {
        let turn = self.turns.pop_front()?;
        for Outgoing {
            message,
            destination,
            ..
        } in turn.outgoing
        {
            let Destination::Log { once, .. } = destination else {
                panic!("{destination:?} is not the log");
            };
            let mut log = self.log.lock().expect("unharmed");
            // NATS leaves out what has a name that it knows.
            let is_known = once.is_some() && log.iter().any(|known| is_same(known, &message));
            if !is_known {
                log.push(message);
            }
        }
        let mut is_changed = false;
        for change in turn.changes.into_iter().filter(is_wanted) {
            is_changed = true;
            match change.value {
                Some(value) => self.records.insert(change.key, value),
                None => self.records.remove(&change.key),
            };
        }
        self.committed[turn.shard].store(turn.token, Ordering::SeqCst);
        Some(is_changed)
    }

    /// The next message of the log comes by. False where there is none.
    pub(crate) fn follow(&mut self) -> bool {
        let next = self.followed;
        let Some(message) = self.log.lock().expect("unharmed").get(next).cloned() else {
            return false;
        };
        let mut record = Vec::new();
        message.encode(&mut record);
        let message = Message::decode(record.into()).expect("its own form");
        self.followed += 1;
        let now_ms = self.cluster.now_ms;
        let broker = self.cluster.broker(0);
        broker.publish_from_log(now_ms, position(next), message);
        broker.pass_log(position(next + 1) - 1);
        self.cluster.collect(0);
        true
    }
}
