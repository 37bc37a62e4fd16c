//! The memory of the process: an account of the memory that peers make it hold, a ceiling, and stages. The nearer the
//! ceiling, the more is done to stay below it.
//!
//! Each shard writes its share of the account at the end of a turn, in its own numbers. A [`look`] adds up all shares
//! and the memory that all shards have together, and finds the [`Stage`]. A shard looks when it holds noticeably more
//! or less than at its last look, and after 64 turns. A thread of its own ([`Watch`]) looks four times a second, and
//! once a second while little memory is taken. It also asks the system how much of the process is resident. The stage
//! follows from the larger of the two, so that memory in no account counts, too.
//!
//! [`look`]: Memory::look

mod allocator;
mod gather;
mod machine;
mod stages;
mod trim;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sterna_broker::{Counters, Directory, Limits, Principal, Principals, RETAINED_MESSAGE_BYTES};
use sterna_net::{ShardCounters, TransportKind};
use sterna_store::UsageReader;

use crate::config::{Broker, Config};
pub use allocator::{Unused, give_back_with, keep_one_heap};
pub(crate) use machine::ceiling_bytes;
pub use stages::Stage;
use stages::Thresholds;
pub(crate) use watch::Watch;

/// Bytes that all retained messages may take, by the settings: the limit, and a part of the ceiling.
pub(crate) fn retained_bytes(broker: &Broker, ceiling_bytes: Option<u64>) -> u64 {
    let percent = u64::from(broker.memory_retained_percent);
    let of_ceiling = ceiling_bytes.map(|bytes| bytes / 100 * percent);
    within(broker.maximum_retained_bytes, of_ceiling)
}

/// Bytes that all wills may take, by the settings: the limit, and a part of the ceiling.
pub(crate) fn will_bytes(broker: &Broker, ceiling_bytes: Option<u64>) -> u64 {
    let percent = u64::from(broker.memory_wills_percent);
    let of_ceiling = ceiling_bytes.map(|bytes| bytes / 100 * percent);
    within(broker.maximum_will_bytes, of_ceiling)
}

/// Subscriptions that there may be, by the settings: the limit, and a part of the ceiling.
pub(crate) fn subscriptions(broker: &Broker, ceiling_bytes: Option<u64>) -> u64 {
    let percent = u64::from(broker.memory_subscriptions_percent);
    let of_ceiling = ceiling_bytes.map(|bytes| bytes / 100 * percent / SUBSCRIPTION_BYTES);
    within(broker.maximum_subscriptions, of_ceiling)
}

/// Bytes that messages may take which were read in the log, by the settings: a part of the ceiling.
pub(crate) fn replayed_bytes(broker: &Broker, ceiling_bytes: Option<u64>) -> u64 {
    let percent = u64::from(broker.memory_replay_percent);
    let of_ceiling = ceiling_bytes.map(|bytes| bytes / 100 * percent);
    of_ceiling.unwrap_or_else(|| Limits::default().replayed_bytes)
}

/// A limit, and at most a part of the ceiling where there is one.
fn within(limit: u64, of_ceiling: Option<u64>) -> u64 {
    of_ceiling.map_or(limit, |most| most.min(limit))
}

/// Bytes that a subscription counts with where subscriptions have a part of the ceiling.
const SUBSCRIPTION_BYTES: u64 = 1 << 10;

/// The use of memory in the account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Bodies of messages, those of retained ones included.
    Bodies,
    /// Places in queues and ledgers of unacknowledged messages.
    Queues,
    /// Topics of retained messages.
    Retained,
    /// Sessions, subscriptions and wills; created topics, queues and keys of requests.
    Sessions,
    /// Memory that connections need while nothing happens.
    Connections,
    /// State of clients in doors: partly arrived packets, messages and requests, links of AMQP, also of those that are
    /// away, and posts in open transactions.
    Partial,
    /// Copied bytes that wait to be sent; on QUIC also until they are acknowledged. On QUIC also bytes that have come
    /// and are not read.
    Send,
    /// Bytes of the store on their way to the disk, and in its caches.
    Store,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 8] = [
        Self::Bodies,
        Self::Queues,
        Self::Retained,
        Self::Sessions,
        Self::Connections,
        Self::Partial,
        Self::Send,
        Self::Store,
    ];

    /// Its name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bodies => "bodies",
            Self::Queues => "queues",
            Self::Retained => "retained",
            Self::Sessions => "sessions",
            Self::Connections => "connections",
            Self::Partial => "partial",
            Self::Send => "send",
            Self::Store => "store",
        }
    }

    /// The command by which an operator frees it.
    const fn freed_by(self) -> &'static str {
        match self {
            Self::Bodies | Self::Queues | Self::Sessions => "sterna admin sessions end",
            Self::Retained => "sterna admin retained delete",
            Self::Connections | Self::Partial | Self::Send => "sterna admin clients disconnect",
            Self::Store => RAISE_CEILING,
        }
    }
}

/// The cure where memory is held by nothing that an operator could end.
const RAISE_CEILING: &str = "a higher broker.memory_ceiling";

/// State that all shards share, beside the broker's, which peers can make grow.
pub(crate) trait Shared: Send + Sync + std::fmt::Debug {
    /// Its bytes of a kind. Each look asks.
    fn bytes(&self, kind: Kind) -> u64;
}

// Costs of things beside their bytes, as measured in a release build under the GNU C library.
// `tests/memory/` of the crate `sterna` compares the sum with the system's.
/// A message beside its body; several queues may share it.
const MESSAGE_BYTES: u64 = 160;
/// A place in a queue or a ledger.
const ENTRY_BYTES: u64 = 112;
/// Bytes of such a place in the broker's own count.
const COUNTED_ENTRY_BYTES: u64 = 64;
/// A message of a queue that waits in the log alone; the same in the broker's own count.
const LOGGED_BYTES: u64 = 32;
/// A byte-stream connection with its engine; a layer of TLS adds to it.
const CONNECTION_BYTES: u64 = 2_600;
/// A QUIC connection with its engine.
const QUIC_CONNECTION_BYTES: u64 = 17_000;

/// Bytes that a connection needs while nothing happens.
pub(crate) const fn connection_bytes(transport: Option<TransportKind>) -> u64 {
    match transport {
        Some(TransportKind::Quic) => QUIC_CONNECTION_BYTES,
        _ => CONNECTION_BYTES,
    }
}

/// A shard's share of the account.
#[derive(Debug, Default)]
#[repr(align(128))] // the cache line stays with its core
struct Share {
    kept_bytes: AtomicU64,
    entries: AtomicU64,
    /// Those of them that share no message, as far as is known.
    alone: AtomicU64,
    /// Messages of queues that wait in the log alone.
    logged: AtomicU64,
    /// Bytes that it held at its last look.
    looked_bytes: AtomicU64,
    turns: AtomicU64,
}

/// Much is this part of what is used.
const MUCH: u64 = 4;
/// Room for those that have little each, as a part of the ceiling. With retained messages and the program it is
/// below the end of the first stage.
const WORTH: u64 = 10;
/// Turns of a shard after which it looks, however little it holds.
const LOOK_TURNS: u64 = 64;
/// Bytes more or less than at its last look after which a shard looks.
const LOOK_BYTES: u64 = 256 << 10;

/// The account of the process's memory, its ceiling, and the stage in force.
#[derive(Debug)]
pub struct Memory {
    ceiling_bytes: Option<u64>,
    thresholds: Option<Thresholds>,
    patience_ms: u64,
    stage: AtomicU8,
    /// Whether messages are much of what is used: whoever publishes makes it more.
    is_for_messages: AtomicBool,
    shares: Box<[Share]>,
    directory: Arc<Directory>,
    /// By shard; empty in a simulation.
    transports: Vec<Arc<ShardCounters>>,
    store: Option<UsageReader>,
    /// State of doors; none before the first shard is made.
    shared: OnceLock<Vec<Arc<dyn Shared>>>,
    /// Values that change slowly or take a lock to ask for, at the last refresh.
    retained_bytes: AtomicU64,
    connections_bytes: AtomicU64,
    store_bytes: AtomicU64,
    resident_bytes: AtomicU64,
    /// How often each stage was entered.
    entered: [AtomicU64; Stage::SHORT.len()],
    /// Held while the stage changes.
    changing: Mutex<()>,
}

impl Memory {
    /// An account without a ceiling, for a simulation.
    #[must_use]
    pub fn unlimited(shards: usize, directory: Arc<Directory>) -> Self {
        Self::with(shards, directory, None, &Broker::default())
    }

    /// An account with a ceiling in bytes, and the stages of a configuration.
    #[must_use]
    pub fn with_ceiling(
        shards: usize,
        directory: Arc<Directory>,
        ceiling_bytes: u64,
        settings: &Broker,
    ) -> Self {
        Self::with(shards, directory, Some(ceiling_bytes), settings)
    }

    /// The account of a process with this ceiling.
    pub(crate) fn of_process(
        config: &Config,
        ceiling_bytes: Option<u64>,
        directory: Arc<Directory>,
        transports: Vec<Arc<ShardCounters>>,
        store: Option<UsageReader>,
    ) -> Self {
        if let Some(ceiling_bytes) = ceiling_bytes {
            tracing::info!(ceiling_bytes, "memory has a ceiling");
        } else {
            tracing::warn!(
                "memory has no ceiling: the system does not say how much there is; set broker.memory_ceiling"
            );
        }
        Self {
            transports,
            store,
            ..Self::with(
                usize::from(config.shard_count()),
                directory,
                ceiling_bytes,
                &config.broker,
            )
        }
    }

    fn with(
        shards: usize,
        directory: Arc<Directory>,
        ceiling_bytes: Option<u64>,
        settings: &Broker,
    ) -> Self {
        let thresholds = ceiling_bytes.map(|bytes| {
            Thresholds::of(
                bytes,
                settings.memory_stages_percent(),
                settings.memory_hysteresis_percent,
            )
        });
        Self {
            ceiling_bytes,
            thresholds,
            patience_ms: settings.memory_patience_ms,
            stage: AtomicU8::new(0),
            is_for_messages: AtomicBool::new(true),
            shares: (0..shards).map(|_| Share::default()).collect(),
            directory,
            transports: Vec::new(),
            store: None,
            shared: OnceLock::new(),
            retained_bytes: AtomicU64::new(0),
            connections_bytes: AtomicU64::new(0),
            store_bytes: AtomicU64::new(0),
            resident_bytes: AtomicU64::new(0),
            entered: Default::default(),
            changing: Mutex::new(()),
        }
    }

    /// The ceiling in bytes; `None` where there is none.
    #[must_use]
    pub const fn ceiling_bytes(&self) -> Option<u64> {
        self.ceiling_bytes
    }

    /// Whether a principal is among the heaviest. Once that has consequences beyond a pause, it is one if memory is short
    /// because of what it holds.
    pub(crate) fn is_heavy(&self, principal: Principal) -> bool {
        let principals = self.principals();
        if self.stage() >= Stage::MoveToLog {
            principals.is_burden(principal)
        } else {
            principals.is_heavy(principal)
        }
    }

    /// The stage of short memory in force.
    #[must_use]
    pub fn stage(&self) -> Stage {
        Stage::of_number(self.stage.load(Ordering::Relaxed))
    }

    /// The holders of memory.
    pub(crate) fn principals(&self) -> &Principals {
        self.directory.principals()
    }

    /// Whether messages are much of what is used, those that wait and those on their way to clients; or may be.
    pub(crate) fn is_for_messages(&self) -> bool {
        self.is_for_messages.load(Ordering::Relaxed)
    }

    /// Whether so many bytes are enough of the ceiling that their holders are ended, each of whom has little.
    pub(crate) fn is_worth_ending(&self, bytes: u64) -> bool {
        (self.ceiling_bytes).is_some_and(|ceiling_bytes| bytes >= ceiling_bytes / WORTH)
    }

    /// Whether sessions are. Where they are not, their end would bring little, and take what was acknowledged.
    pub(crate) fn is_for_sessions(&self) -> bool {
        self.is_worth_ending(self.directory.principals().lasting_bytes())
    }

    /// Resident bytes when the system was asked last; 0 before.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident_bytes.load(Ordering::Relaxed)
    }

    /// How often each of [`Stage::SHORT`] was entered.
    pub(crate) fn entered(&self) -> [u64; Stage::SHORT.len()] {
        std::array::from_fn(|stage| self.entered[stage].load(Ordering::Relaxed))
    }

    /// Bytes by kind, in the order of [`Kind::ALL`].
    pub(crate) fn account(&self) -> [u64; Kind::ALL.len()] {
        Kind::ALL.map(|kind| self.bytes(kind))
    }

    /// Takes state of doors into the account. All shards bring the same.
    pub(crate) fn include(&self, shared: Vec<Arc<dyn Shared>>) {
        self.shared.get_or_init(|| shared);
    }

    fn bytes(&self, kind: Kind) -> u64 {
        let shared = self.shared.get().map_or(&[][..], Vec::as_slice);
        let shared = shared.iter().map(|state| state.bytes(kind));
        self.own_bytes(kind) + shared.sum::<u64>()
    }

    fn own_bytes(&self, kind: Kind) -> u64 {
        let sum = |of: fn(&Share) -> &AtomicU64| -> u64 {
            let shares = self.shares.iter();
            shares.map(|share| of(share).load(Ordering::Relaxed)).sum()
        };
        let entries = || sum(|share| &share.entries);
        match kind {
            // The broker's count has the bodies, and something for each place in a queue.
            Kind::Bodies => {
                let counted = self.directory.message_bytes();
                let places =
                    entries() * COUNTED_ENTRY_BYTES + sum(|share| &share.logged) * LOGGED_BYTES;
                let messages = sum(|share| &share.alone) + self.directory.shared_messages();
                counted.saturating_sub(places) + messages * MESSAGE_BYTES
            }
            Kind::Queues => entries() * ENTRY_BYTES + sum(|share| &share.logged) * LOGGED_BYTES,
            Kind::Retained => self.retained_bytes.load(Ordering::Relaxed),
            Kind::Sessions => self.directory.principals().lasting_bytes(),
            Kind::Connections => self.connections_bytes.load(Ordering::Relaxed),
            Kind::Partial => sum(|share| &share.kept_bytes),
            Kind::Send => {
                let transports = self.transports.iter();
                transports.map(|counters| counters.held_bytes()).sum()
            }
            Kind::Store => self.store_bytes.load(Ordering::Relaxed),
        }
    }

    /// Notes what a shard holds: bytes that its doors keep of their clients, and its broker's counts. Returns whether
    /// it is time for a [`look`](Self::look).
    pub(crate) fn note(&self, shard: usize, kept_bytes: u64, counters: &Counters) -> bool {
        let own = &self.shares[shard];
        own.kept_bytes.store(kept_bytes, Ordering::Relaxed);
        own.entries
            .store(counters.stored_messages, Ordering::Relaxed);
        own.alone.store(counters.alone_messages, Ordering::Relaxed);
        own.logged
            .store(counters.logged_messages, Ordering::Relaxed);
        if self.thresholds.is_none() {
            return false;
        }
        let held_bytes = kept_bytes
            + counters.stored_bytes
            + counters.logged_messages * LOGGED_BYTES
            + counters.stored_messages * (MESSAGE_BYTES + ENTRY_BYTES)
            // As of the end of the turn before: the transport counts behind its handler.
            + self.transports.get(shard).map_or(0, |transport| transport.held_bytes())
            + self.directory.principals().lasting_bytes();
        let turns = own.turns.load(Ordering::Relaxed) + 1;
        let looked_bytes = own.looked_bytes.load(Ordering::Relaxed);
        let is_due = turns >= LOOK_TURNS || held_bytes.abs_diff(looked_bytes) >= LOOK_BYTES;
        if is_due {
            own.looked_bytes.store(held_bytes, Ordering::Relaxed);
        }
        own.turns
            .store(if is_due { 0 } else { turns }, Ordering::Relaxed);
        is_due
    }

    /// Reads the parts that change slowly. `resident_bytes` is the process's resident memory, as
    /// the system tells it.
    pub fn refresh(&self, resident_bytes: Option<u64>) {
        let (retained, _) = self.directory.retained();
        let topic_bytes = self.directory.retained_topic_bytes() as u64;
        // The messages themselves are among those that queues may share.
        let place_bytes = RETAINED_MESSAGE_BYTES as u64 - MESSAGE_BYTES;
        let retained_bytes = retained as u64 * place_bytes + topic_bytes;
        self.retained_bytes.store(retained_bytes, Ordering::Relaxed);
        let mut connections_bytes = 0;
        for counters in &self.transports {
            let (streams, quic) = counters.open_connections();
            connections_bytes += streams * CONNECTION_BYTES + quic * QUIC_CONNECTION_BYTES;
        }
        self.connections_bytes
            .store(connections_bytes, Ordering::Relaxed);
        if let Some(store) = &self.store {
            let bytes = store.usage().memory_bytes;
            self.store_bytes.store(bytes, Ordering::Relaxed);
        }
        if let Some(resident_bytes) = resident_bytes {
            self.resident_bytes.store(resident_bytes, Ordering::Relaxed);
        }
    }

    /// Bytes in use: the sum of the account or the resident bytes, whichever is more.
    pub(crate) fn used_bytes(&self) -> u64 {
        let accounted_bytes = self.account().iter().sum();
        self.resident_bytes().max(accounted_bytes)
    }

    /// The kind that holds most of what is used, with the command by which an operator frees it. It is `other` where most is
    /// resident and in no account.
    pub(crate) fn held_most(&self) -> (&'static str, &'static str) {
        let account = self.account();
        let others = self.resident_bytes().saturating_sub(account.iter().sum());
        let kinds = Kind::ALL.into_iter().zip(account);
        match kinds.max_by_key(|(_, bytes)| *bytes) {
            Some((kind, bytes)) if bytes >= others => (kind.name(), kind.freed_by()),
            _ => ("other", RAISE_CEILING),
        }
    }

    /// The time for which memory may be short before clients have to give theirs back, in milliseconds.
    pub(crate) const fn patience_ms(&self) -> u64 {
        self.patience_ms
    }

    /// Bytes that clients have to give back by their end; 0 where none has to end. From the stage on in which messages are
    /// dropped, clients end until that stage is over. After `short_ms` of short memory they end until no stage is left.
    pub(crate) fn excess_bytes(&self, short_ms: u64) -> u64 {
        let Some(thresholds) = &self.thresholds else {
            return 0;
        };
        let end_bytes = if short_ms >= self.patience_ms {
            thresholds.first_end_bytes()
        } else if self.stage() >= Stage::Drop {
            thresholds.drop_end_bytes()
        } else {
            return 0;
        };
        self.used_bytes().saturating_sub(end_bytes)
    }

    /// Finds the stage. Returns whether it is another than before: then all shards are to be told.
    pub fn look(&self) -> bool {
        let Some(thresholds) = &self.thresholds else {
            return false;
        };
        let account = self.account();
        let used_bytes = self.resident_bytes().max(account.iter().sum());
        let before = self.stage();
        if before > Stage::Normal || used_bytes >= thresholds.first_end_bytes() {
            let of_messages = [Kind::Bodies, Kind::Queues, Kind::Send, Kind::Retained];
            let bytes: u64 = (of_messages.iter())
                .map(|kind| account[*kind as usize])
                .sum();
            let others: u64 = account.iter().sum::<u64>() - bytes;
            // Where the account does not tell what it is, it may be messages.
            let is_for_messages = bytes >= used_bytes / MUCH || others < used_bytes / 2;
            (self.is_for_messages).store(is_for_messages, Ordering::Relaxed);
        }
        if thresholds.next(before, used_bytes) == before {
            return false;
        }
        let _changing: MutexGuard<'_, ()> =
            self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.stage();
        let stage = thresholds.next(before, used_bytes);
        if stage == before {
            return false;
        }
        self.enter(before, stage, used_bytes);
        true
    }

    fn enter(&self, before: Stage, stage: Stage, used_bytes: u64) {
        self.stage.store(stage.number(), Ordering::Relaxed);
        self.directory.set_pressure(stage.pressure());
        let ceiling_bytes = self.ceiling_bytes.unwrap_or_default();
        for short in Stage::SHORT {
            let is_new = before < short && short <= stage;
            if is_new {
                let entered = &self.entered[usize::from(short.number()) - 1];
                entered.fetch_add(1, Ordering::Relaxed);
                let (held_as, freed_by) = self.held_most();
                tracing::warn!(
                    stage = short.name(),
                    used_bytes,
                    ceiling_bytes,
                    held_as,
                    freed_by,
                    "memory is short"
                );
            } else if stage < short && short <= before {
                tracing::info!(
                    stage = short.name(),
                    used_bytes,
                    ceiling_bytes,
                    "a stage of short memory is over"
                );
            }
        }
    }
}
