//! Shards on loopback with a handler that echoes, and the means to look at what it saw.
#![allow(dead_code, reason = "each test binary uses its own part of this")]
#![allow(clippy::unwrap_used, missing_docs)]

pub(crate) mod pki;
pub(crate) mod quinn_client;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sterna_net::{
    BoundShard, Chunk, CloseReason, ConnectionId, ConnectionInfo, Courier, FailedHandshake, Gate,
    Handler, ListenerConfig, ListenerTransport, Mailbox, Network, SHARE_BYTES, ShardConfig,
    ShardCounters, ShardFigures, StreamEnd, StreamId, bind,
};

/// How long a test waits for something that is to happen. A stalled machine takes long, so only what never comes fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What the handler saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Opened(ConnectionId),
    Received(ConnectionId, StreamId, usize),
    Confirmed(ConnectionId),
    Migrated(ConnectionId),
    Finished(ConnectionId, StreamId),
    Aborted(ConnectionId, StreamId, u64),
    Writable(ConnectionId),
    Closed(ConnectionId, CloseReason),
    Mail(usize),
    Failed(FailedHandshake),
}

type Job = Box<dyn FnOnce(&mut Echo, &mut dyn Network) + Send>;

/// A letter to the echo handler.
pub(crate) enum Letter {
    /// Is only counted.
    Count(u64),
    /// Runs within the shard.
    Run(Job),
    /// Ends the loop.
    Stop,
}

impl fmt::Debug for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Letter")
    }
}

/// What a test looks at while the shards run.
#[derive(Default)]
pub(crate) struct Log {
    seen: Mutex<Vec<(usize, Seen)>>,
    changed: Condvar,
    pub(crate) most_unsent_bytes: AtomicUsize,
    /// Turns whose end nobody sees: without something that was sent, and with it.
    pub(crate) unseen_turns: [AtomicUsize; 2],
    pub(crate) received_bytes: AtomicUsize,
    /// Most connections whose end was told in one turn.
    pub(crate) most_ends: AtomicUsize,
    /// Most chunks in one turn.
    pub(crate) most_chunks: AtomicUsize,
}

impl Log {
    fn add(&self, shard: usize, seen: Seen) {
        self.seen.lock().unwrap().push((shard, seen));
        self.changed.notify_all();
    }

    /// Waits until something was seen for which `pick` returns a value.
    pub(crate) fn wait<T>(&self, what: &str, mut pick: impl FnMut(&Seen) -> Option<T>) -> T {
        let started = Instant::now();
        let mut seen = self.seen.lock().unwrap();
        let mut looked_at = 0;
        loop {
            for (_, one) in &seen[looked_at..] {
                if let Some(value) = pick(one) {
                    return value;
                }
            }
            looked_at = seen.len();
            assert!(
                started.elapsed() < PATIENCE,
                "waited in vain for {what}; seen: {seen:?}"
            );
            seen = self
                .changed
                .wait_timeout(seen, Duration::from_millis(100))
                .unwrap()
                .0;
        }
    }

    pub(crate) fn wait_closed(&self, id: ConnectionId) -> CloseReason {
        self.wait("a close", |seen| match seen {
            Seen::Closed(who, reason) if *who == id => Some(reason.clone()),
            _ => None,
        })
    }

    pub(crate) fn wait_opened(&self) -> ConnectionId {
        self.wait("a connection", |seen| match seen {
            Seen::Opened(id) => Some(*id),
            _ => None,
        })
    }

    pub(crate) fn count(&self, mut matches: impl FnMut(usize, &Seen) -> bool) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .filter(|(shard, one)| matches(*shard, one))
            .count()
    }

    pub(crate) fn forget(&self) {
        self.seen.lock().unwrap().clear();
    }
}

/// What the handler does with what it receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Manner {
    /// Sends it back, and reads no further while too much of it is unsent.
    #[default]
    Echo,
    /// Drops it.
    Drop,
    /// The same, and pauses at the end of the stream.
    DropAndPause,
    /// Queues this many bytes for every chunk, whatever is unsent.
    Flood(usize),
    /// Panics at a chunk that begins with `!`, echoes others.
    Fragile,
}

/// Echoes.
pub(crate) struct Echo {
    pub(crate) shard: usize,
    pub(crate) manner: Manner,
    pub(crate) close_on_end: bool,
    pub(crate) log: Arc<Log>,
    pub(crate) courier: Courier<Letter>,
    pub(crate) counted: u64,
    pub(crate) open: Vec<ConnectionId>,
    pub(crate) stop: bool,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) timeouts: Arc<AtomicUsize>,
    pub(crate) turns: Arc<AtomicUsize>,
    is_in_turn: bool,
    /// Whether it takes nothing now.
    pub(crate) is_full: bool,
    /// Most reads of a turn, if there is such a limit.
    pub(crate) reads_per_turn: Option<usize>,
    /// Whether it is told of no more ends than it must be.
    pub(crate) is_deaf_to_ends: bool,
    /// Reads, chunks and ends of this turn.
    reads: usize,
    chunks: usize,
    ends: usize,
    /// Whether something was sent in this turn.
    sends: bool,
    high_bytes: usize,
}

impl Handler for Echo {
    type Mail = Letter;

    fn opened(&mut self, net: &mut dyn Network, id: ConnectionId) {
        assert!(net.info(id).is_some(), "an open connection is known");
        self.open.push(id);
        self.log.add(self.shard, Seen::Opened(id));
    }

    fn handshake_failed(&mut self, _: &mut dyn Network, failed: FailedHandshake) {
        self.log.add(self.shard, Seen::Failed(failed));
    }

    fn takes_input(&mut self, _: &mut dyn Network) -> bool {
        let takes = !self.is_full && self.reads_per_turn.is_none_or(|most| self.reads < most);
        self.reads += usize::from(takes);
        takes
    }

    fn takes_ends(&mut self, _: &mut dyn Network) -> bool {
        !self.is_deaf_to_ends
    }

    fn received(&mut self, net: &mut dyn Network, id: ConnectionId, chunk: Chunk<'_>) {
        assert!(!self.is_full);
        assert!(!chunk.bytes.is_empty());
        self.chunks += 1;
        (self.log.most_chunks).fetch_max(self.chunks, Ordering::Relaxed);
        self.log
            .received_bytes
            .fetch_add(chunk.bytes.len(), Ordering::Relaxed);
        match self.manner {
            Manner::Drop | Manner::DropAndPause => {
                let seen = Seen::Received(id, chunk.stream, chunk.bytes.len());
                self.log.add(self.shard, seen);
            }
            Manner::Flood(bytes) => {
                self.sends = true;
                net.send(id, chunk.stream, &vec![b'f'; bytes]);
            }
            Manner::Fragile if chunk.bytes[0] == b'!' => panic!("as asked"),
            Manner::Echo | Manner::Fragile => {
                self.sends = true;
                if chunk.bytes.len() >= SHARE_BYTES {
                    net.send_shared(id, chunk.stream, Bytes::copy_from_slice(chunk.bytes));
                } else {
                    net.send(id, chunk.stream, chunk.bytes);
                }
                if net.unsent_bytes(id) > self.high_bytes {
                    net.pause(id, true);
                }
            }
        }
        let unsent = net.unsent_bytes(id);
        self.log
            .most_unsent_bytes
            .fetch_max(unsent, Ordering::Relaxed);
    }

    fn confirmed(&mut self, net: &mut dyn Network, id: ConnectionId) {
        assert!(net.info(id).is_some_and(|info| info.is_peer_proved));
        self.log.add(self.shard, Seen::Confirmed(id));
    }

    fn migrated(&mut self, net: &mut dyn Network, id: ConnectionId) {
        assert!(net.info(id).is_some());
        self.log.add(self.shard, Seen::Migrated(id));
    }

    fn datagram(&mut self, net: &mut dyn Network, id: ConnectionId, chunk: Chunk<'_>) {
        net.send_datagram(id, Bytes::copy_from_slice(chunk.bytes));
    }

    fn stream_ended(
        &mut self,
        net: &mut dyn Network,
        id: ConnectionId,
        stream: StreamId,
        end: StreamEnd,
    ) {
        if let StreamEnd::Aborted(code) = end {
            self.log.add(self.shard, Seen::Aborted(id, stream, code));
        }
        if end != StreamEnd::Finished {
            return;
        }
        if self.manner == Manner::DropAndPause {
            net.pause(id, true);
        }
        self.log.add(self.shard, Seen::Finished(id, stream));
        if net
            .info(id)
            .is_some_and(|info| info.transport == sterna_net::TransportKind::Quic)
        {
            if stream.is_bidirectional() {
                net.finish(id, stream);
            }
        } else if self.close_on_end {
            net.close(id, 0);
        }
    }

    fn writable(&mut self, net: &mut dyn Network, id: ConnectionId) {
        net.pause(id, false);
        self.log.add(self.shard, Seen::Writable(id));
    }

    fn closed(&mut self, _: &mut dyn Network, id: ConnectionId, reason: &CloseReason) {
        self.ends += 1;
        self.log.most_ends.fetch_max(self.ends, Ordering::Relaxed);
        let place = self.open.iter().position(|open| *open == id);
        self.open
            .swap_remove(place.expect("what is closed was open"));
        self.log.add(self.shard, Seen::Closed(id, reason.clone()));
    }

    fn mail(&mut self, net: &mut dyn Network, mail: &mut Vec<Letter>) {
        assert!(self.is_in_turn);
        self.log.add(self.shard, Seen::Mail(mail.len()));
        for letter in mail.drain(..) {
            match letter {
                Letter::Count(number) => self.counted += number,
                Letter::Run(job) => job(self, net),
                Letter::Stop => self.stop = true,
            }
        }
    }

    fn timeout(&mut self, net: &mut dyn Network) {
        assert!(self.is_in_turn);
        assert!(
            self.deadline_ms
                .take()
                .is_some_and(|due| due <= net.now_ms())
        );
        self.timeouts.fetch_add(1, Ordering::Relaxed);
    }

    fn begin_of_turn(&mut self, _: &mut dyn Network) {
        assert!(!self.is_in_turn, "the turn before has ended");
        self.is_in_turn = true;
        (self.reads, self.chunks, self.ends) = (0, 0, 0);
    }

    fn end_of_turn(&mut self, net: &mut dyn Network) {
        assert!(self.is_in_turn, "it has begun");
        self.is_in_turn = false;
        let sends = std::mem::take(&mut self.sends);
        if net.ends_unseen() {
            let turns = &self.log.unseen_turns[usize::from(sends)];
            turns.fetch_add(1, Ordering::Relaxed);
        }
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.courier.flush();
    }

    fn deadline_ms(&self) -> Option<u64> {
        self.deadline_ms
    }

    fn finished(&self) -> bool {
        self.stop
    }
}

/// Shards that run.
pub(crate) struct Server {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) log: Arc<Log>,
    pub(crate) mailboxes: Vec<Mailbox<Letter>>,
    pub(crate) gate: Gate,
    pub(crate) counters: Vec<Arc<ShardCounters>>,
    pub(crate) timeouts: Arc<AtomicUsize>,
    pub(crate) turns: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Echo>>,
}

/// How to start a [`Server`].
pub(crate) struct Setup {
    pub(crate) config: ShardConfig,
    pub(crate) shards: usize,
    pub(crate) manner: Manner,
    pub(crate) close_on_end: bool,
    pub(crate) listeners: Vec<ListenerConfig>,
}

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

impl Setup {
    pub(crate) fn new(transport: ListenerTransport) -> Self {
        Self {
            config: ShardConfig::default(),
            shards: 1,
            manner: Manner::Echo,
            close_on_end: true,
            listeners: vec![ListenerConfig {
                address: loopback(),
                transport,
                balancers: None,
                connections: usize::MAX,
            }],
        }
    }

    pub(crate) fn start(self) -> Server {
        let bound: Vec<BoundShard<Letter>> =
            bind(&self.config, &self.listeners, self.shards).expect("bound");
        let log = Arc::new(Log::default());
        let timeouts = Arc::new(AtomicUsize::new(0));
        let turns = Arc::new(AtomicUsize::new(0));
        let addresses = bound[0].addresses().to_vec();
        let mailboxes = bound.iter().map(BoundShard::mailbox).collect();
        let gate = bound[0].gate();
        let counters = bound.iter().map(BoundShard::counters).collect();
        let threads = bound
            .into_iter()
            .map(|shard| {
                let echo = Echo {
                    shard: shard.index(),
                    manner: self.manner,
                    close_on_end: self.close_on_end,
                    log: Arc::clone(&log),
                    courier: shard.courier(),
                    counted: 0,
                    open: Vec::new(),
                    stop: false,
                    deadline_ms: None,
                    timeouts: Arc::clone(&timeouts),
                    turns: Arc::clone(&turns),
                    is_in_turn: false,
                    is_full: false,
                    reads_per_turn: None,
                    is_deaf_to_ends: false,
                    reads: 0,
                    chunks: 0,
                    ends: 0,
                    sends: false,
                    high_bytes: self.config.high_watermark_bytes,
                };
                std::thread::spawn(move || shard.run(echo).expect("the loop ran"))
            })
            .collect();
        Server {
            addresses,
            log,
            mailboxes,
            gate,
            counters,
            timeouts,
            turns,
            threads,
        }
    }
}

impl Server {
    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Runs something within a shard and returns what it returned.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        shard: usize,
        job: impl FnOnce(&mut Echo, &mut dyn Network) -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.mailboxes[shard].post(Letter::Run(Box::new(move |echo, net| {
            sender.send(job(echo, net)).unwrap();
        })));
        receiver.recv_timeout(PATIENCE).expect("the shard answers")
    }

    pub(crate) fn info(&self, id: ConnectionId) -> ConnectionInfo {
        self.run(0, move |_, net| net.info(id).cloned())
            .expect("open")
    }

    /// Waits until the first shard's figures are as wanted, and returns them.
    pub(crate) fn wait_figures(&self, wanted: impl Fn(&ShardFigures) -> bool) -> ShardFigures {
        let started = Instant::now();
        loop {
            let figures = self.counters[0].figures();
            if wanted(&figures) {
                return figures;
            }
            assert!(started.elapsed() < PATIENCE, "in vain: {figures:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a time of this length in which the shards have no more than `most` turns: they come to rest.
    pub(crate) fn wait_rest(&self, length: Duration, most: usize) {
        let started = Instant::now();
        loop {
            let before = self.turns.load(Ordering::Relaxed);
            std::thread::sleep(length);
            let turns = self.turns.load(Ordering::Relaxed) - before;
            if turns <= most {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{turns} turns in {length:?}");
        }
    }

    /// Waits for the end of all shards; whether it was a panic.
    pub(crate) fn has_panicked(self) -> bool {
        let ends = self.threads.into_iter().map(JoinHandle::join);
        ends.filter(Result::is_err).count() > 0
    }

    /// Stops all shards and returns their handlers.
    pub(crate) fn stop(self) -> Vec<Echo> {
        for mailbox in &self.mailboxes {
            mailbox.post(Letter::Stop);
        }
        self.threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    }
}

/// Bytes that differ from their neighbours.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}
