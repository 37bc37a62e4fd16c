//! A store in memory whose commits a test releases.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sterna_broker::{
    Appended, Committed, Frame, Full, Limits, ReadAnswer, ReadRequest, Store, is_of_node,
};
use sterna_server::config::{ActionName, Config, Durability, Listener, Rule};
use sterna_store::MemoryStore;

use crate::fixture::{Broker, everybodys};

/// A handle on the store of a broker. Clones are handles on the same store.
#[derive(Clone, Debug)]
pub struct Held {
    pub memory: MemoryStore,
    written: Arc<AtomicU64>,
    synced: Arc<AtomicU64>,
    /// How often something of the log was asked for.
    pub reads: Arc<AtomicU64>,
    /// The lowest append that a shard waits for, each; `u64::MAX` where none does.
    wish: Arc<[AtomicU64; 2]>,
}

impl Held {
    /// An empty store that keeps everything at once.
    pub fn new() -> Self {
        Self::on(MemoryStore::new())
    }

    /// As [`new`](Self::new), with what is in the memory.
    pub fn on(memory: MemoryStore) -> Self {
        let all = || Arc::new(AtomicU64::new(u64::MAX));
        Self {
            memory,
            written: all(),
            synced: all(),
            reads: Arc::default(),
            wish: Arc::new([u64::MAX; 2].map(AtomicU64::new)),
        }
    }

    /// Messages, and records but those that a node keeps of itself.
    pub fn counts(&self) -> (usize, usize) {
        let keys = self.memory.keys();
        let records = keys.iter().filter(|key| !is_of_node(key)).count();
        (self.memory.counts().0, records)
    }

    /// Wakes the broker where a wish has come true, which is then forgotten: as the engine does.
    fn progressed(&self, broker: &mut Broker) {
        let committed = self.committed();
        let reached = [committed.written, committed.synced];
        let come_true = |(wish, reached): (&AtomicU64, u64)| {
            let is_there = wish.load(Ordering::Relaxed) <= reached;
            is_there && wish.swap(u64::MAX, Ordering::Relaxed) != u64::MAX
        };
        let count = self.wish.iter().zip(reached).map(come_true);
        if count.filter(|come_true| *come_true).count() > 0 {
            broker.wake();
        }
    }

    /// A broker on the store.
    pub fn broker(&self, config: &Config, shards: usize) -> Broker {
        let limits = Limits {
            cursor_interval_ms: config.store.cursor_interval_ms,
            will_grace_ms: u64::from(config.mqtt.will_grace_ms),
            counts_lost: config.amqp.queue_counts_lost_connections,
            group_queued_messages: config.broker.maximum_group_queued_messages as usize,
            ..Limits::default()
        };
        Broker::restored(config, shards, limits, || Box::new(self.clone()))
    }

    /// From now on nothing is committed.
    pub fn hold(&self) {
        let now = self.memory.appends();
        self.written.store(now, Ordering::Relaxed);
        self.synced.store(now, Ordering::Relaxed);
    }

    /// Whether a shard waits for an append.
    pub fn is_awaited(&self) -> bool {
        (self.wish.iter()).any(|wish| wish.load(Ordering::Relaxed) != u64::MAX)
    }

    /// Everything so far is with the kernel.
    pub fn write(&self, broker: &mut Broker) {
        self.written.store(self.memory.appends(), Ordering::Relaxed);
        self.progressed(broker);
    }

    /// Everything up to this append is on the disk.
    pub fn sync_up_to(&self, broker: &mut Broker, append: u64) {
        self.written.store(append, Ordering::Relaxed);
        self.synced.store(append, Ordering::Relaxed);
        self.progressed(broker);
    }

    /// Everything so far is on the disk.
    pub fn sync(&self, broker: &mut Broker) {
        self.synced.store(self.memory.appends(), Ordering::Relaxed);
        self.write(broker);
    }
}

impl Store for Held {
    fn next_position(&self) -> u64 {
        self.memory.next_position()
    }
    fn append(&mut self, frame: Frame<'_>) -> Result<Appended, Full> {
        self.memory.append(frame)
    }
    fn is_full(&self) -> bool {
        self.memory.is_full()
    }
    fn is_stuck(&self) -> bool {
        self.memory.is_stuck()
    }
    fn lacks_room(&self) -> bool {
        self.memory.lacks_room()
    }
    fn committed(&self) -> Committed {
        Committed {
            written: self.written.load(Ordering::Relaxed),
            synced: self.synced.load(Ordering::Relaxed),
        }
    }
    fn wake_at(&mut self, wanted: Committed) {
        for (wish, token) in self.wish.iter().zip([wanted.written, wanted.synced]) {
            if token > 0 {
                wish.fetch_min(token, Ordering::Relaxed);
            }
        }
    }
    fn read(&mut self, request: ReadRequest) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.memory.read(request);
    }
    fn next_answer(&mut self) -> Option<ReadAnswer> {
        self.memory.next_answer()
    }
    fn read_now(&mut self, request: ReadRequest) -> ReadAnswer {
        self.memory.read_now(request)
    }
    fn load(&mut self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.memory.load(visit);
    }
    fn needed_from(&mut self, position: u64) {
        self.memory.needed_from(position);
    }
    fn hold_from(&mut self, position: u64) {
        self.memory.hold_from(position);
    }
}

/// Listeners that wait for the disk, for the kernel and for nothing, in this order.
pub fn config() -> Config {
    let listener = |durability| Listener {
        durability: Some(durability),
        ..Listener::at("mqtt://127.0.0.1:0")
    };
    Config {
        listeners: [Durability::Commit, Durability::Interval, Durability::Memory]
            .map(listener)
            .to_vec(),
        ..everybodys()
    }
}

/// The same, where a rule asks for the disk below `kept/strict`. The third listener asks for nothing.
pub fn with_strict_rule() -> Config {
    let mut config = config();
    config.authorization.rules = vec![Rule {
        topics: vec!["kept/strict/#".to_owned()],
        actions: vec![ActionName::Publish],
        durability: Some(Durability::Commit),
        ..Rule::default()
    }];
    config
}
