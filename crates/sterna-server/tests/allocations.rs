//! The heap on the road of a message: a budget, not a time, so it does not flake.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use bytes::Bytes;
use sterna_broker::{Directory, Limits, NoStore, Store};
use sterna_net::{
    Chunk, CloseReason, ConnectionId, ConnectionInfo, Handler as _, Network, PathStatistics,
    StreamEnd, StreamId, TransportKind,
};
use sterna_server::config::{Config, Effect, Listener, Rule};
use sterna_server::{Mail, Outbox, Parts, Policy, Shard, metrics, sys};
use sterna_store::MemoryStore;

/// Counts what this thread allocates. Every call goes to the system's allocator unchanged, so its
/// contract is the system's.
mod counting {
    #![allow(unsafe_code)]

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
        static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
        static HEAP_BYTES: Cell<i64> = const { Cell::new(0) };
    }

    pub(super) struct Counting;

    pub(super) fn allocations() -> u64 {
        ALLOCATIONS.with(Cell::get)
    }

    pub(super) fn live_bytes() -> i64 {
        LIVE_BYTES.with(Cell::get)
    }

    /// As [`live_bytes`], with what glibc's heap adds to each block.
    pub(super) fn heap_bytes() -> i64 {
        HEAP_BYTES.with(Cell::get)
    }

    /// What a block costs in glibc's heap: eight bytes more, in steps of sixteen, at least 32.
    fn cost(size: usize) -> i64 {
        (size + 8).next_multiple_of(16).max(32) as i64
    }

    // The thread's last calls may come after its locals are gone.
    fn count(allocations: u64, bytes: i64, heap_bytes: i64) {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + allocations));
        let _ = LIVE_BYTES.try_with(|n| n.set(n.get() + bytes));
        let _ = HEAP_BYTES.try_with(|n| n.set(n.get() + heap_bytes));
    }

    // SAFETY: forwards every call to `System` with the arguments it got.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count(1, layout.size() as i64, cost(layout.size()));
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
            count(0, -(layout.size() as i64), -cost(layout.size()));
            unsafe { System.dealloc(ptr, layout) }
        }

        unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
            let size = layout.size();
            count(
                1,
                new_size as i64 - size as i64,
                cost(new_size) - cost(size),
            );
            unsafe { System.realloc(ptr, layout, new_size) }
        }
    }
}

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// A network that keeps what was sent and reuses its memory, as the shard's does.
#[derive(Default)]
struct Wire {
    infos: HashMap<ConnectionId, ConnectionInfo>,
    sent: HashMap<ConnectionId, Vec<u8>>,
    /// Time that has passed.
    passed_ms: u64,
    /// Whose transport takes nothing.
    full: Option<ConnectionId>,
}

impl Wire {
    /// Heap of the fixture itself, whose tables double as well.
    fn bytes(&self) -> i64 {
        let info = size_of::<(ConnectionId, ConnectionInfo)>() + 1;
        let sent = size_of::<(ConnectionId, Vec<u8>)>() + 1;
        let buffers: usize = self.sent.values().map(Vec::capacity).sum();
        // A hash table has eight places for every seven that can be used.
        (self.infos.capacity() * 8 / 7 * info + self.sent.capacity() * 8 / 7 * sent + buffers)
            as i64
    }
}

impl Network for Wire {
    fn now_ms(&self) -> u64 {
        1_700_000_000_000 + self.passed_ms
    }
    fn info(&self, connection: ConnectionId) -> Option<&ConnectionInfo> {
        self.infos.get(&connection)
    }
    fn send(&mut self, connection: ConnectionId, _: StreamId, bytes: &[u8]) {
        self.sent
            .entry(connection)
            .or_default()
            .extend_from_slice(bytes);
    }
    fn send_shared(&mut self, connection: ConnectionId, stream: StreamId, bytes: Bytes) {
        self.send(connection, stream, &bytes);
    }
    fn send_datagram(&mut self, _: ConnectionId, _: Bytes) -> bool {
        false
    }
    fn unsent_bytes(&self, connection: ConnectionId) -> usize {
        if self.full == Some(connection) {
            1 << 20
        } else {
            0
        }
    }
    fn unsent_on(&self, _: ConnectionId, _: StreamId) -> usize {
        0
    }
    fn reset(&mut self, _: ConnectionId, _: StreamId, _: u64) {}
    fn stop(&mut self, _: ConnectionId, _: StreamId, _: u64) {}
    fn finish(&mut self, _: ConnectionId, _: StreamId) {}
    fn abort(&mut self, _: ConnectionId, _: StreamId, _: u64) {}
    fn close(&mut self, _: ConnectionId, _: u64) {}
    fn pause(&mut self, _: ConnectionId, _: bool) {}
    fn path(&self, _: ConnectionId) -> PathStatistics {
        PathStatistics::default()
    }
}

#[derive(Debug)]
struct Nowhere;

impl Outbox for Nowhere {
    fn post(&mut self, _: usize, _: Mail) {}
    fn flush(&mut self) {}
    fn postbox(&self, _: usize) -> Option<Box<dyn FnOnce(Mail) + Send>> {
        None
    }
}

/// Letters of a shard to itself.
#[derive(Debug)]
struct Loop(Sender<Mail>);

impl Outbox for Loop {
    fn post(&mut self, _: usize, letter: Mail) {
        let _ = self.0.send(letter);
    }
    fn flush(&mut self) {}
    fn postbox(&self, _: usize) -> Option<Box<dyn FnOnce(Mail) + Send>> {
        None
    }
}

struct Fixture {
    shard: Shard,
    wire: Wire,
}

impl Fixture {
    fn new() -> Self {
        Self::with(&Config::default(), Limits::default())
    }

    fn with(config: &Config, limits: Limits) -> Self {
        Self::over(config, limits, Box::new(Nowhere))
    }

    fn over(config: &Config, limits: Limits, outbox: Box<dyn Outbox>) -> Self {
        Self::on(config, limits, outbox, Box::new(NoStore))
    }

    fn on(config: &Config, limits: Limits, outbox: Box<dyn Outbox>, store: Box<dyn Store>) -> Self {
        let wire = Wire::default();
        let parts = Parts {
            number: 0,
            directory: Directory::new(1, limits, 7),
            store,
            amqp: Arc::default(),
            http: Arc::default(),
            repetitions: Arc::default(),
            policy: Arc::new(Policy::load(config).expect("a policy")),
            checker: None,
            bans: Arc::default(),
            seats: Arc::default(),
            tracer: None,
            outbox,
            cluster: None,
            board: Arc::new(sys::Board::new(1)),
            sources: Arc::new(metrics::Sources::new(1, 0)),
            memory: None,
            sys_interval_ms: 0,
            high_watermark_bytes: 256 << 10,
        };
        let shard = Shard::new(parts, wire.now_ms());
        Self { shard, wire }
    }

    fn connect(&mut self, slot: u32, packets: &[u8]) -> ConnectionId {
        let connection = self.open(slot, TransportKind::Tcp, b"");
        self.turn(connection, packets);
        connection
    }

    /// A subscriber by this SUBSCRIBE with one filter, and a publisher.
    fn pair(&mut self, subscribe: &[u8]) -> (ConnectionId, ConnectionId) {
        let subscriber = self.connect(1, &[&connect("sub"), subscribe].concat());
        assert_eq!(self.take(subscriber), [0x20, 2, 0, 0, 0x90, 3, 0, 1, 0]);
        (subscriber, self.connect(2, &connect("pub")))
    }

    /// Makes room for what is sent, so that it is not counted.
    fn reserve(&mut self, connection: ConnectionId) {
        let sent = self.wire.sent.entry(connection).or_default();
        sent.reserve(1 << 20);
    }

    fn open(&mut self, slot: u32, transport: TransportKind, protocol: &[u8]) -> ConnectionId {
        let connection = ConnectionId {
            slot,
            generation: 0,
        };
        self.wire.infos.insert(
            connection,
            ConnectionInfo {
                // Among the default ones, that of HTTPS is the tenth.
                listener: if protocol == b"http/1.1" { 9 } else { 0 },
                transport,
                protocol: protocol.into(),
                peer: SocketAddr::from(([127, 0, 0, 1], 4000 + slot as u16)),
                is_peer_proved: true,
                peer_certificates: [].into(),
            },
        );
        self.shard.opened(&mut self.wire, connection);
        self.shard.end_of_turn(&mut self.wire);
        connection
    }

    fn turn(&mut self, connection: ConnectionId, bytes: &[u8]) {
        self.turn_on(connection, StreamId::FIRST, bytes);
    }

    fn turn_on(&mut self, connection: ConnectionId, stream: StreamId, bytes: &[u8]) {
        let chunk = Chunk {
            stream,
            bytes,
            early: false,
            confirmed: true,
        };
        self.shard.begin_of_turn(&mut self.wire);
        self.shard.received(&mut self.wire, connection, chunk);
        self.shard.end_of_turn(&mut self.wire);
    }

    fn take(&mut self, connection: ConnectionId) -> Vec<u8> {
        std::mem::take(self.wire.sent.entry(connection).or_default())
    }
}

/// CONNECT of 3.1.1 with a clean session.
fn connect(client_id: &str) -> Vec<u8> {
    let mut packet = vec![0x10, 12 + client_id.len() as u8, 0, 4];
    packet.extend_from_slice(b"MQTT\x04\x02\x00\x3c\x00");
    packet.push(client_id.len() as u8);
    packet.extend_from_slice(client_id.as_bytes());
    packet
}

fn publish(topic: &str, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![
        0x30,
        (2 + topic.len() + payload.len()) as u8,
        0,
        topic.len() as u8,
    ];
    packet.extend_from_slice(topic.as_bytes());
    packet.extend_from_slice(payload);
    packet
}

#[test]
fn a_qos_0_publish_to_one_subscriber_makes_at_most_two_allocations() {
    let mut fixture = Fixture::new();
    let (subscriber, publisher) = fixture.pair(&[0x82, 9, 0, 1, 0, 4, b'a', b'/', b'b', b'c', 0]);
    let message = publish("a/bc", &[b'x'; 64]);
    for _ in 0..1000 {
        fixture.turn(publisher, &message);
    }
    assert_eq!(fixture.take(subscriber), message.repeat(1000));
    fixture.reserve(subscriber);

    let before = counting::allocations();
    for _ in 0..1000 {
        fixture.turn(publisher, &message);
    }
    let each = (counting::allocations() - before) as f64 / 1000.0;
    assert_eq!(fixture.take(subscriber).len(), 1000 * message.len());
    assert!(each <= 2.0, "{each} allocations a message");
}

/// Rules that look at addresses and messages, and limits of the user's rates: a message costs what it costs without.
#[test]
fn rules_and_limits_make_no_allocation_for_each_message() {
    let text = "
        [authorization]
        default_allow = false
        [[authorization.limit]]
        connections = 9
        messages_per_s = 4000000000
        bytes_per_s = 4000000000
        [[authorization.rule]]
        effect = 'deny'
        addresses = ['192.0.2.0/24']
        topics = ['#']
        [[authorization.rule]]
        effect = 'deny'
        actions = ['publish']
        qos = [2]
        topics = ['never/#']
        [[authorization.rule]]
        topics = ['a/#']";
    let config = sterna_server::config::parse("x", text).expect("a configuration");
    let cost = |config: &Config, topics: &[&str]| {
        let mut fixture = Fixture::with(config, Limits::default());
        let (subscriber, publisher) = fixture.pair(&[0x82, 8, 0, 1, 0, 3, b'a', b'/', b'#', 0]);
        let messages: Vec<Vec<u8>> = (topics.iter())
            .map(|topic| publish(topic, &[b'x'; 64]))
            .collect();
        let mut run = || {
            fixture.reserve(subscriber);
            let before = counting::allocations();
            for number in 0..1000 {
                fixture.turn(publisher, &messages[number % messages.len()]);
            }
            let made = counting::allocations() - before;
            assert!(fixture.take(subscriber).len() >= 1000 * 64, "they came");
            made
        };
        run();
        run()
    };
    let few = ["a/b", "a/c", "a/d", "a/e"];
    // More than are remembered: each takes the place of another.
    let many = ["a/b", "a/c", "a/d", "a/e", "a/f", "a/g", "a/h"];
    for topics in [&few[..1], &few, &many] {
        let without = cost(&Config::default(), topics);
        let with = cost(&config, topics);
        assert!(
            with <= without,
            "{with} instead of {without} for {topics:?}"
        );
    }
}

/// Attacks 17 and 38: subscribers that read and never acknowledge, or never read, cost what the limits
/// say, and publishers are served all the while.
/// While nobody looks at a trace, a message costs what it costs without traces: also after one has ended.
#[test]
fn a_trace_costs_nothing_before_and_after_it() {
    let mut config = Config::default();
    config.authorization.admins = vec!["anonymous".to_owned()];
    config.listeners = ["mqtt://127.0.0.1:0", "admin://127.0.0.1:0"]
        .into_iter()
        .map(Listener::at)
        .collect();
    let (sender, letters) = channel();
    let mut fixture = Fixture::over(&config, Limits::default(), Box::new(Loop(sender)));
    let (subscriber, publisher) = fixture.pair(&[0x82, 9, 0, 1, 0, 4, b'a', b'/', b'b', b'c', 0]);
    let message = publish("a/bc", &[b'x'; 64]);
    let cost = |fixture: &mut Fixture| {
        for _ in 0..1000 {
            fixture.turn(publisher, &message);
        }
        fixture.take(subscriber);
        fixture.reserve(subscriber);
        let before = counting::allocations();
        for _ in 0..1000 {
            fixture.turn(publisher, &message);
        }
        counting::allocations() - before
    };
    let without = cost(&mut fixture);
    let operator = ConnectionId {
        slot: 3,
        generation: 0,
    };
    let info = ConnectionInfo {
        listener: 1,
        ..fixture.wire.infos[&publisher].clone()
    };
    fixture.wire.infos.insert(operator, info);
    fixture.shard.opened(&mut fixture.wire, operator);
    let request = b"GET /admin/v1/trace?topic=a/%23 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    fixture.turn(operator, request);
    let deliver = |fixture: &mut Fixture| {
        let mut mail: Vec<Mail> = letters.try_iter().collect();
        fixture.shard.mail(&mut fixture.wire, &mut mail);
        fixture.shard.end_of_turn(&mut fixture.wire);
    };
    deliver(&mut fixture);
    assert!(cost(&mut fixture) > without + 1000, "somebody looks");
    deliver(&mut fixture);
    let seen = String::from_utf8_lossy(&fixture.take(operator)).into_owned();
    assert!(seen.contains("\"event\":\"sent\""), "{seen}");
    let reason = CloseReason::Failed("gone".to_owned());
    fixture.shard.closed(&mut fixture.wire, operator, &reason);
    fixture.shard.end_of_turn(&mut fixture.wire);
    deliver(&mut fixture);
    assert_eq!(cost(&mut fixture), without);
}

#[test]
fn what_is_not_acknowledged_or_not_read_is_bounded_on_the_heap() {
    const MOST_BYTES: usize = 1 << 20;
    let fixture = || {
        let mut fixture = Fixture::with(
            &Config::default(),
            Limits {
                queued_bytes: MOST_BYTES,
                queued_qos0_bytes: MOST_BYTES,
                // Publishers go on.
                reader_stall_ms: 0,
                ..Limits::default()
            },
        );
        let mut packets = connect("sub");
        // A filter at QoS 0 and one at QoS 1.
        packets.extend_from_slice(&[0x82, 10, 0, 1, 0, 1, b'0', 0, 0, 1, b'1', 1]);
        let subscriber = fixture.connect(1, &packets);
        let publisher = fixture.connect(2, &connect("pub"));
        fixture.take(publisher);
        (fixture, subscriber, publisher)
    };
    let large = |topic: u8| {
        let mut packet = vec![0x32, 0x85, 0x80, 0x02, 0, 1, topic, 0, 7];
        packet.resize(4 + (2 << 14) + 5, b'x');
        packet
    };
    for (topic, reads, what) in [
        (b'1', true, "read and not acknowledged"),
        (b'1', false, "not read at QoS 1"),
        (b'0', false, "not read at QoS 0"),
    ] {
        let (mut fixture, subscriber, publisher) = fixture();
        if !reads {
            fixture.wire.full = Some(subscriber);
        }
        let message = large(topic);
        let live = counting::live_bytes();
        let mut most = 0;
        for _ in 0..200 {
            fixture.turn(publisher, &message);
            assert_eq!(fixture.take(publisher), [0x40, 2, 0, 7]);
            drop(fixture.take(subscriber));
            most = most.max(counting::live_bytes() - live);
        }
        println!("{what}: {most} bytes");
        // The bodies up to the limit, one buffer of the transport, and what holds them.
        assert!(most <= (MOST_BYTES + (256 << 10)) as i64, "{what}: {most}");
        assert!(most >= (MOST_BYTES / 2) as i64, "{what}: it is used");
    }
}

/// Rules with names in them, of which none fits before the last, and a subscription to everything of
/// which something is denied.
#[test]
fn rules_and_a_subscription_in_part_cost_no_allocation() {
    let mut config = Config::default();
    let rule = |effect, topics: String| Rule {
        effect,
        topics: vec![topics],
        ..Rule::default()
    };
    config.authorization.default_allow = false;
    config.authorization.rules = (0..100)
        .map(|n| rule(Effect::Allow, format!("site/{n}/%c/+")))
        .chain([
            rule(Effect::Deny, "secret/%c/#".to_owned()),
            rule(Effect::Allow, "#".to_owned()),
        ])
        .collect();
    let mut fixture = Fixture::with(&config, Limits::default());
    let (subscriber, publisher) = fixture.pair(&[0x82, 6, 0, 1, 0, 1, b'#', 0]);
    let denied = publish("secret/sub/x", b"no");
    let message = publish("a/bc", &[b'x'; 64]);
    let mut each = 0.0;
    for _ in 0..2 {
        fixture.take(subscriber);
        fixture.reserve(subscriber);
        let before = counting::allocations();
        for _ in 0..1000 {
            fixture.turn(publisher, &message);
            fixture.turn(publisher, &denied);
        }
        each = (counting::allocations() - before) as f64 / 1000.0;
        assert_eq!(fixture.take(subscriber), message.repeat(1000));
    }
    // Two for the message that is delivered, one for that which goes to nobody.
    assert!(each <= 3.0, "{each} allocations for two messages");
}

#[test]
fn an_idle_client_with_its_session_takes_at_most_688_bytes() {
    let mut fixture = Fixture::new();
    // Tables double; a power of two beside the measured ones keeps their growth out of the figure.
    for slot in 0..=1024 {
        fixture.connect(slot, &connect(&format!("client-{slot}")));
    }
    let (wire, live) = (fixture.wire.bytes(), counting::live_bytes());
    for slot in 1025..=2000 {
        fixture.connect(slot, &connect(&format!("client-{slot}")));
    }
    let grown = counting::live_bytes() - live - (fixture.wire.bytes() - wire);
    let each = grown / 976;
    println!("{each} bytes a client");
    assert!(each <= 688, "{each} bytes a client");
}

/// SUBSCRIBE with one filter, at QoS 1.
fn subscribe(filter: &str) -> Vec<u8> {
    let mut packet = vec![0x82, 5 + filter.len() as u8, 0, 1, 0, filter.len() as u8];
    packet.extend_from_slice(filter.as_bytes());
    packet.push(1);
    packet
}

/// Clients connect, subscribe, are lost, and stay away.
fn sessions_that_are_away(store: &MemoryStore, filter_of: FilterOf) -> (i64, Fixture) {
    let store = Box::new(store.clone());
    let (config, limits) = (Config::default(), Limits::default());
    let mut fixture = Fixture::on(&config, limits, Box::new(Nowhere), store);
    let before = counting::heap_bytes();
    for slot in 0..AWAY {
        let mut packets = connect(&format!("away-{slot:06}"));
        packets[9] = 0; // not a clean session
        packets.extend_from_slice(&subscribe(&filter_of(slot)));
        let connection = fixture.connect(slot, &packets);
        assert_eq!(fixture.take(connection), [0x20, 2, 0, 0, 0x90, 3, 0, 1, 1]);
        let reason = CloseReason::Failed("gone".to_owned());
        fixture.shard.closed(&mut fixture.wire, connection, &reason);
        fixture.shard.end_of_turn(&mut fixture.wire);
        fixture.wire.infos.remove(&connection);
        fixture.wire.sent.remove(&connection);
    }
    fixture.wire.passed_ms += 60_000;
    fixture.shard.timeout(&mut fixture.wire);
    fixture.shard.end_of_turn(&mut fixture.wire);
    (counting::heap_bytes() - before, fixture)
}

const AWAY: u32 = 10_000;

/// The filter of a client, by its number.
type FilterOf = fn(u32) -> String;

/// The whole session, in front door, broker and registry. Its records are the store's.
#[test]
fn an_mqtt_session_that_is_away_takes_at_most_416_bytes() {
    let filters: [(&str, FilterOf); 2] = [
        ("a filter of its own", |slot| format!("away/{slot:06}")),
        ("one filter for all", |_| "away/all".to_owned()),
    ];
    for (what, filter_of) in filters {
        let store = MemoryStore::new();
        let before = counting::heap_bytes();
        drop(sessions_that_are_away(&store, filter_of));
        let of_store = counting::heap_bytes() - before;
        let second = MemoryStore::new();
        let (grown, fixture) = sessions_that_are_away(&second, filter_of);
        let each = (grown - of_store) / i64::from(AWAY);
        drop(fixture);
        println!("{what}: {each} bytes");
        assert!(each <= 416, "{what}: {each} bytes");
    }
}

/// What a client of HTTP/3 writes: its control stream and requests, one write each.
#[derive(Default)]
struct Written(Vec<(StreamId, Vec<u8>)>);

impl sterna_h3::Output for Written {
    fn write(&mut self, stream: sterna_h3::StreamId, bytes: &[u8]) {
        self.0.push((StreamId(stream.0), bytes.to_vec()));
    }
    fn finish(&mut self, _: sterna_h3::StreamId) {}
    fn reset(&mut self, _: sterna_h3::StreamId, _: sterna_h3::ErrorCode) {}
    fn stop(&mut self, _: sterna_h3::StreamId, _: sterna_h3::ErrorCode) {}
    fn datagram(&mut self, _: &[u8]) -> bool {
        false
    }
}

/// A client's control stream, and so many requests that publish 32 bytes.
fn posts(count: usize) -> Written {
    let mut written = Written::default();
    let (limits, features) = (sterna_h3::Limits::default(), sterna_h3::Features::default());
    let mut client = sterna_h3::Connection::client(&limits, features, None, &mut written);
    let line = sterna_h3::RequestLine::https("POST", "localhost", "/v1/topics/sensors/1");
    for _ in 0..count {
        let content = sterna_h3::Content::Whole(&[b'x'; 32]);
        let sent = client.request(&line, &[], content, &mut written);
        sent.expect("a request");
    }
    written
}

#[test]
fn a_request_of_http3_is_small_while_it_lasts_and_nothing_afterwards() {
    let mut fixture = Fixture::new();
    let connection = fixture.open(1 << 31, TransportKind::Quic, b"h3");
    let requests = posts(2_300).0;
    let finish = |fixture: &mut Fixture, stream| {
        let end = StreamEnd::Finished;
        (fixture.shard).stream_ended(&mut fixture.wire, connection, stream, end);
        fixture.shard.end_of_turn(&mut fixture.wire);
    };
    let (warm, measured) = requests.split_at(1_201);
    for (stream, bytes) in warm {
        fixture.turn_on(connection, *stream, bytes);
        if stream.is_bidirectional() {
            finish(&mut fixture, *stream);
        }
    }
    (fixture.wire.sent.entry(connection).or_default()).reserve(1 << 20);
    let (one_by_one, at_once) = measured.split_at(1_000);
    let before = counting::allocations();
    for (stream, bytes) in one_by_one {
        fixture.turn_on(connection, *stream, bytes);
        finish(&mut fixture, *stream);
    }
    let allocations = (counting::allocations() - before) as f64 / 1_000.0;
    let idle = counting::live_bytes();
    for (stream, bytes) in at_once {
        fixture.turn_on(connection, *stream, bytes);
    }
    let each = (counting::live_bytes() - idle) / at_once.len() as i64;
    for (stream, _) in at_once {
        finish(&mut fixture, *stream);
    }
    let left = counting::live_bytes() - idle;
    println!("a request: {allocations} allocations, {each} bytes until it is complete");
    assert!(allocations <= 24.0, "{allocations} allocations");
    assert!(each <= 1_024, "{each} bytes");
    assert!(
        left <= 1_024,
        "{left} bytes left of {} requests",
        at_once.len()
    );
}

#[test]
fn an_idle_client_of_http_stays_small() {
    for (name, transport, protocol, most) in [
        ("HTTP/3", TransportKind::Quic, &b"h3"[..], 2_048),
        ("HTTP/1.1", TransportKind::Tls, b"http/1.1", 2_048),
    ] {
        let mut fixture = Fixture::new();
        let requests = posts(1).0;
        let mut connect = |slot: u32| {
            let slot = if protocol == b"h3" {
                slot | 1 << 31
            } else {
                slot
            };
            let connection = fixture.open(slot, transport, protocol);
            if protocol == b"h3" {
                for (stream, bytes) in &requests {
                    fixture.turn_on(connection, *stream, bytes);
                }
                let (stream, end) = (StreamId::FIRST, StreamEnd::Finished);
                (fixture.shard).stream_ended(&mut fixture.wire, connection, stream, end);
            } else {
                let request = b"POST /v1/topics/a HTTP/1.1\r\nHost: localhost\r\n\
                                Content-Length: 1\r\n\r\nx";
                fixture.turn(connection, request);
            }
            fixture.shard.end_of_turn(&mut fixture.wire);
            fixture.wire.passed_ms += 1_500;
            fixture.shard.timeout(&mut fixture.wire);
            fixture.shard.end_of_turn(&mut fixture.wire);
            (counting::live_bytes(), fixture.wire.bytes())
        };
        let (mut live, mut wire) = (0, 0);
        for slot in 0..=1_024 {
            (live, wire) = connect(slot);
        }
        let mut end = (0, 0);
        for slot in 1_025..=2_000 {
            end = connect(slot);
        }
        let each = (end.0 - live - (end.1 - wire)) / 976;
        println!("{name}: {each} bytes a client");
        assert!(each <= most, "{name}: {each} bytes a client");
    }
}
