//! Readers that get nothing do not hold the log: segments go.

use std::sync::Arc;

use sterna_broker::{Close, Limits, Message, MessageHeader, NEVER_EXPIRES_S, Qos};
use sterna_store::disk::{Disk as _, SimulatedDisk};
use sterna_store::{Engine, Settings, ShardStore};

use crate::cluster::{Client, Cluster, qos};

/// Brokers on the engine of the store, whose segments are small.
struct Node {
    disk: SimulatedDisk,
    engine: Engine,
    cluster: Cluster,
    /// Sessions that move between two shards all the time: their names, and the shards where they are.
    movers: Vec<(&'static str, u16)>,
}

impl Node {
    /// On what the disk has.
    fn on(disk: SimulatedDisk, shards: u16, now_ms: u64) -> Self {
        let settings = Settings {
            segment_bytes: 16 << 10,
            minimum_free_bytes: 0,
            checkpoint_interval_ms: 100,
            ..Settings::default()
        };
        let engine =
            Engine::open_with_identity(Arc::new(disk.clone()), settings, [9; 16]).expect("opens");
        let mut cluster = Cluster::with(shards, Limits::default(), |_| {
            let handle = engine.handle(Box::new(|| {}));
            Box::new(ShardStore::new(handle, Arc::default()))
        });
        cluster.now_ms = now_ms;
        for shard in 0..shards {
            cluster.broker(shard).restore(now_ms);
            cluster.collect(shard);
        }
        cluster.run();
        Self {
            disk,
            engine,
            cluster,
            movers: Vec::new(),
        }
    }

    /// Lets time pass, in which the store works.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            if self.movers.is_empty() {
                self.cluster.pass(250);
            } else {
                self.pass_with_claims(250);
            }
            let now_ms = self.cluster.now_ms;
            self.disk.set_now_ms(now_ms);
            let disk = self.disk.clone();
            self.engine
                .turn(now_ms, &mut || disk.busy_until_ms() > now_ms);
            for shard in 0..self.cluster.brokers.len() as u16 {
                self.cluster.broker(shard).poll_store(now_ms);
                self.cluster.collect(shard);
            }
            self.cluster.run();
        }
    }

    /// Lets time pass. Each mover comes back on the other shard, and is claimed while timers are due.
    fn pass_with_claims(&mut self, duration_ms: u64) {
        let mut claims = Vec::new();
        for (name, shard) in &self.movers {
            claims.push(self.cluster.start_open(1 - shard, name, false, 3_600, None));
        }
        self.cluster.now_ms += duration_ms;
        let now_ms = self.cluster.now_ms;
        for shard in 0..2 {
            self.cluster.broker(shard).timeout(now_ms);
            self.cluster.collect(shard);
        }
        for ((_, shard), (consumer, opened)) in self.movers.iter_mut().zip(claims) {
            *shard = self.cluster.opened(1 - *shard, consumer, opened).shard;
        }
    }

    /// Thousands of messages that somebody reads and settles.
    fn load(&mut self, busy: Client) {
        for _ in 0..20 {
            for n in 0..100 {
                let topic = format!("busy/{}", n % 7);
                self.cluster
                    .publish(busy.shard, &topic, &"x".repeat(100), Qos::AtLeastOnce);
            }
            assert_eq!(self.cluster.drain(busy).len(), 100);
            self.pass(1);
        }
        self.pass(60);
    }

    fn segments(&self) -> usize {
        let names = self.disk.list("log").expect("a folder");
        names
            .iter()
            .filter(|name| name.strip_suffix(".log").is_some())
            .count()
    }

    fn away(&mut self, name: &str, filters: &[&str]) {
        let client = self
            .cluster
            .open_with(0, name, false, NEVER_EXPIRES_S, None);
        for filter in filters {
            self.cluster
                .subscribe(client, filter, qos(Qos::ExactlyOnce));
        }
        self.cluster.close(client, Close::LOST);
    }

    fn check(&self) {
        for broker in &self.cluster.brokers {
            broker.check();
        }
    }
}

/// What such a load would fill.
const FEW: usize = 8;

#[test]
fn sessions_with_quiet_filters_let_segments_go_present_or_away() {
    for shards in [1, 2] {
        let mut node = Node::on(SimulatedDisk::new(7), shards, 1_000_000);
        let busy = node.cluster.open(0, "busy");
        node.cluster
            .subscribe(busy, "busy/#", qos(Qos::AtLeastOnce));
        // All kinds of readers that get nothing.
        node.away("quiet", &["quiet/#", "silent"]);
        node.away("publishes only", &[]);
        node.away("QoS 0", &["none"]);
        let present = node.cluster.open(shards - 1, "present");
        node.cluster
            .subscribe(present, "quiet/present", qos(Qos::AtLeastOnce));
        let member = node.cluster.open(0, "member");
        node.cluster
            .subscribe(member, "$share/g/quiet/work", qos(Qos::AtLeastOnce));
        node.load(busy);
        assert!(node.segments() < FEW, "{} segments", node.segments());
        assert!(node.cluster.directory.packed().0 >= 3, "packed again");
        // What a session wants stays, however long it is away.
        node.cluster
            .publish(0, "quiet/one", "wanted", Qos::AtLeastOnce);
        node.load(busy);
        let held = node.segments();
        assert!(held > FEW, "{held} segments");
        node.check();
        // Over a restart, too.
        let Node {
            disk,
            engine,
            cluster,
            ..
        } = node;
        let now_ms = cluster.now_ms;
        drop((cluster, engine));
        disk.kill_process();
        let mut node = Node::on(disk, shards, now_ms);
        node.pass(60);
        let quiet = node.cluster.open(0, "quiet");
        assert!(quiet.present);
        node.pass(1);
        assert_eq!(node.cluster.drain(quiet), ["wanted"]);
        node.cluster.close(quiet, Close::LOST);
        node.pass(60);
        assert!(node.segments() < FEW, "{} segments", node.segments());
        node.check();
    }
}

#[test]
fn what_has_expired_holds_nothing() {
    let mut node = Node::on(SimulatedDisk::new(8), 1, 1_000_000);
    let busy = node.cluster.open(0, "busy");
    node.cluster
        .subscribe(busy, "busy/#", qos(Qos::AtLeastOnce));
    node.away("quiet", &["quiet"]);
    for _ in 0..40 {
        let header = MessageHeader {
            qos: Qos::AtLeastOnce,
            expires_at_ms: Some(node.cluster.now_ms + 5_000),
            ..MessageHeader::default()
        };
        let expires = Message::copy("quiet", &[], b"late", header).expect("it fits");
        node.cluster.send(0, None, expires);
        node.cluster.run();
    }
    node.load(busy);
    assert!(node.segments() < FEW, "{} segments", node.segments());
    node.cluster.publish(0, "quiet", "new", Qos::AtLeastOnce);
    node.pass(1);
    let quiet = node.cluster.open(0, "quiet");
    node.pass(1);
    assert_eq!(node.cluster.drain(quiet), ["new"]);
    node.check();
}

/// More than are looked after at once, most of them behind a message that they want: nobody writes again and again.
#[test]
fn sessions_that_hold_the_log_by_right_cost_no_writes() {
    let mut node = Node::on(SimulatedDisk::new(9), 1, 1_000_000);
    let busy = node.cluster.open(0, "busy");
    node.cluster
        .subscribe(busy, "busy/#", qos(Qos::AtLeastOnce));
    for n in 0..1_500 {
        node.away(&format!("waits {n}"), &["all"]);
    }
    node.away("quiet", &["quiet"]);
    node.cluster.publish(0, "all", "wanted", Qos::AtLeastOnce);
    node.load(busy);
    node.pass(30);
    let before = node.disk.written_bytes();
    node.pass(60);
    let written = node.disk.written_bytes() - before;
    assert!(written < 4_096, "{written} bytes");
    assert!(node.segments() > FEW);
    for n in 0..1_500 {
        let client = node.cluster.open(0, &format!("waits {n}"));
        let end = Close {
            expiry_s: Some(0),
            ..Close::NORMAL
        };
        node.cluster.close(client, end);
    }
    // Segments go behind the next checkpoints.
    node.load(busy);
    assert!(node.segments() < FEW, "{} segments", node.segments());
    node.check();
}

/// Devices that sleep come back on any shard, thousands of them in a second.
#[test]
fn sessions_that_move_let_segments_go() {
    let mut node = Node::on(SimulatedDisk::new(10), 2, 1_000_000);
    let busy = node.cluster.open(0, "busy");
    node.cluster
        .subscribe(busy, "busy/#", qos(Qos::AtLeastOnce));
    for (name, shard) in [("quiet/a", 0), ("quiet/b", 1)] {
        let mover = node.cluster.open(shard, name);
        node.cluster.subscribe(mover, name, qos(Qos::AtLeastOnce));
        node.movers.push((name, shard));
    }
    node.load(busy);
    assert!(node.segments() < FEW, "{} segments", node.segments());
    // What one of them has not settled stays.
    node.cluster
        .publish(0, "quiet/a", "wanted", Qos::AtLeastOnce);
    node.load(busy);
    let held = node.segments();
    assert!(held > FEW, "{held} segments");
    node.check();
}
