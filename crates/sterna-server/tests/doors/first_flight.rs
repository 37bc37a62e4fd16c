//! The first flight of a resumed client, packet by packet in virtual time: what the broker has done
//! with it, and when.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "this test uses its part of the world"
)]
#[path = "../../../sterna-net/tests/quic/world.rs"]
mod world;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{Dir, TransportConfig};
use sterna_broker::{Directory, Limits, NoStore};
use sterna_mqtt::{Packet, QoS, Version};
use sterna_net::quic::{Driver, DriverEvent, EventKind, Key, QuicConfig};
use sterna_net::{
    Chunk, ConnectionId, ConnectionInfo, Handler as _, Network, PathStatistics, StreamEnd, StreamId,
};
use sterna_server::config::{Config, EarlyData, Listener};
use sterna_server::{Mail, Outbox, Parts, Policy, Shard, metrics, sys};
use world::{Crossing, Fate, World};

use crate::fixture::{decode, describe, encode, plain, publish};

const V5: Version = Version::V5;
const RTT: Duration = Duration::from_secs(2);
const SUBSCRIBE: [u8; 9] = [0x82, 7, 0, 1, 0, 0, 1, b't', 0];

/// A shard's way to a driver.
struct Wire<'a> {
    driver: &'a mut Driver,
    infos: &'a HashMap<ConnectionId, ConnectionInfo>,
}

const fn id(key: Key) -> ConnectionId {
    ConnectionId {
        slot: key.slot,
        generation: key.generation,
    }
}

const fn key(id: ConnectionId) -> Key {
    Key {
        slot: id.slot,
        generation: id.generation,
    }
}

impl Network for Wire<'_> {
    fn now_ms(&self) -> u64 {
        1_700_000_000_000
    }
    fn info(&self, connection: ConnectionId) -> Option<&ConnectionInfo> {
        self.infos.get(&connection)
    }
    fn send(&mut self, connection: ConnectionId, stream: StreamId, bytes: &[u8]) {
        self.driver.send(key(connection), stream, bytes);
    }
    fn send_shared(&mut self, connection: ConnectionId, stream: StreamId, bytes: Bytes) {
        self.driver.send_shared(key(connection), stream, bytes);
    }
    fn send_datagram(&mut self, connection: ConnectionId, bytes: Bytes) -> bool {
        self.driver.send_datagram(key(connection), bytes)
    }
    fn unsent_on(&self, connection: ConnectionId, stream: StreamId) -> usize {
        self.driver.unsent_on(key(connection), stream)
    }
    fn watch(&mut self, connection: ConnectionId, stream: StreamId) {
        self.driver.watch(key(connection), stream);
    }
    fn unsent_bytes(&self, connection: ConnectionId) -> usize {
        self.driver.unsent_bytes(key(connection))
    }
    fn finish(&mut self, connection: ConnectionId, stream: StreamId) {
        self.driver.finish(key(connection), stream);
    }
    fn abort(&mut self, connection: ConnectionId, stream: StreamId, code: u64) {
        self.driver.abort(key(connection), stream, code);
    }
    fn reset(&mut self, connection: ConnectionId, stream: StreamId, code: u64) {
        self.driver.reset(key(connection), stream, code);
    }
    fn stop(&mut self, connection: ConnectionId, stream: StreamId, code: u64) {
        self.driver.stop(key(connection), stream, code);
    }
    fn close(&mut self, connection: ConnectionId, code: u64) {
        self.driver.close(key(connection), code);
    }
    fn pause(&mut self, connection: ConnectionId, paused: bool) {
        self.driver.pause(key(connection), paused);
    }
    fn path(&self, connection: ConnectionId) -> PathStatistics {
        self.driver.path(key(connection))
    }
}

#[derive(Debug)]
struct Alone;

impl Outbox for Alone {
    fn post(&mut self, _: usize, _: Mail) {}
    fn flush(&mut self) {}
    fn postbox(&self, _: usize) -> Option<Box<dyn FnOnce(Mail) + Send>> {
        None
    }
}

fn shard(early_data: EarlyData) -> Shard {
    let listener = Listener {
        early_data: Some(early_data),
        ..Listener::at("mqtt+quic://127.0.0.1:0")
    };
    let config = Config {
        // The world's driver says that it is the fourth.
        listeners: vec![listener; 4],
        ..Config::default()
    };
    Shard::new(
        Parts {
            number: 0,
            directory: Directory::new(1, Limits::default(), 7),
            store: Box::new(NoStore),
            amqp: Arc::default(),
            http: Arc::default(),
            repetitions: Arc::default(),
            policy: Arc::new(Policy::load(&config).expect("a policy")),
            checker: None,
            bans: Arc::default(),
            seats: Arc::default(),
            tracer: None,
            outbox: Box::new(Alone),
            cluster: None,
            board: Arc::new(sys::Board::new(1)),
            sources: Arc::new(metrics::Sources::new(1, 0)),
            memory: None,
            sys_interval_ms: 0,
            high_watermark_bytes: 1 << 18,
        },
        1_700_000_000_000,
    )
}

/// Hands what the driver reports to a shard, as the shard's loop does.
fn serve(shard: Shard) -> world::Reaction {
    let mut shard = shard;
    let mut infos = HashMap::new();
    Box::new(move |driver: &mut Driver, event: &DriverEvent| {
        let id = id(event.connection);
        if let EventKind::Opened { info, .. } = &event.kind {
            infos.insert(id, (**info).clone());
        }
        if let (EventKind::Confirmed, Some(info)) = (&event.kind, infos.get_mut(&id)) {
            info.is_peer_proved = true;
        }
        let net = &mut Wire {
            driver,
            infos: &infos,
        };
        match &event.kind {
            EventKind::Opened { .. } => shard.opened(net, id),
            EventKind::Confirmed => shard.confirmed(net, id),
            EventKind::Chunk {
                stream,
                bytes,
                early,
                confirmed,
            } => {
                let chunk = Chunk {
                    stream: *stream,
                    bytes,
                    early: *early,
                    confirmed: *confirmed,
                };
                shard.received(net, id, chunk);
            }
            EventKind::Finished { stream } => {
                shard.stream_ended(net, id, *stream, StreamEnd::Finished);
            }
            EventKind::Closed { reason } => shard.closed(net, id, reason),
            _ => {}
        }
        shard.end_of_turn(net);
        if matches!(event.kind, EventKind::Closed { .. }) {
            infos.remove(&id);
        }
    })
}

/// A world with a broker, a connected subscriber to `t`, and the TLS of a client that was there before.
fn world_with(early_data: EarlyData) -> (World, usize, Arc<rustls::ClientConfig>) {
    let quic = QuicConfig {
        early_data: early_data != EarlyData::Off,
        ..QuicConfig::default()
    };
    let mut world = World::new(quic, RTT / 2);
    world.reaction = serve(shard(early_data));
    let subscriber = world.connect();
    world.run_until(RTT * 6, |world| {
        world.clients[subscriber].connected.is_some()
    });
    let mut flight = encode(V5, &Packet::Connect(plain(V5, "subscriber"))).to_vec();
    flight.extend_from_slice(&SUBSCRIBE);
    world.open(subscriber, Dir::Bi, &flight, false);
    let tls = Arc::new(world.identity.client_tls(&[b"mqtt"]));
    let earlier = world.connect_with(tls.clone(), World::transport());
    world.run_for(RTT * 6);
    assert_eq!(
        told(&world, subscriber),
        ["CONNACK Success", "SUBACK 1 0x00"]
    );
    let now = world.now;
    world.clients[earlier]
        .connection
        .close(now, 0u32.into(), Bytes::new());
    world.run_for(RTT * 6);
    (world, subscriber, tls)
}

/// What a client was told on the control stream.
fn told(world: &World, client: usize) -> Vec<String> {
    let bytes = world.clients[client].received.get(&0);
    decode(V5, bytes.map_or(&[][..], Vec::as_slice), describe)
}

/// CONNECT and a message, by a device with a name, or without one.
fn first_flight(name: &str) -> Vec<u8> {
    let mut bytes = encode(V5, &Packet::Connect(plain(V5, name))).to_vec();
    let message = publish("t", "awake", QoS::AtLeastOnce);
    bytes.extend_from_slice(&encode(V5, &Packet::Publish(message)));
    bytes
}

/// When each of these came, in halves of a round trip from the client's first datagram.
#[derive(Debug, PartialEq, Eq)]
struct Times {
    connack: u32,
    puback: u32,
    /// At the subscriber, half a round trip from the broker.
    delivered: u32,
}

/// A device that knows how far its broker is, and sleeps as long as it wants.
fn transport() -> TransportConfig {
    let mut transport = World::transport();
    transport.initial_rtt(RTT).max_idle_timeout(None);
    transport
}

/// Sends CONNECT and PUBLISH at once, and takes the times.
fn wake(world: &mut World, subscriber: usize, tls: Arc<rustls::ClientConfig>) -> (usize, Times) {
    wake_as("device", world, subscriber, tls)
}

fn wake_as(
    name: &str,
    world: &mut World,
    subscriber: usize,
    tls: Arc<rustls::ClientConfig>,
) -> (usize, Times) {
    let start = world.since_start();
    let device = world.connect_with(tls, transport());
    if !world.clients[device].connection.has_0rtt() {
        world.run_until(RTT * 6, |world| world.clients[device].connected.is_some());
    }
    world.open(device, Dir::Bi, &first_flight(name), false);
    let mut seen = [None; 3];
    world.run_until(RTT * 6, |world| {
        let passed = world.since_start().saturating_sub(start);
        for (place, client, line) in [
            (0, device, "CONNACK Success"),
            (1, device, "PUBACK 7 Success"),
            (2, subscriber, "PUBLISH0 t=awake"),
        ] {
            if told(world, client).iter().any(|told| told == line) {
                seen[place].get_or_insert(passed);
            }
        }
        seen.iter().all(Option::is_some)
    });
    let [connack, puback, delivered] = seen.map(|passed| {
        let passed = passed.expect("all were seen");
        let halves = passed.as_millis() / (RTT / 2).as_millis();
        assert_eq!(passed, RTT / 2 * halves as u32, "nothing waits for a timer");
        halves as u32
    });
    let times = Times {
        connack,
        puback,
        delivered,
    };
    (device, times)
}

/// How often the message came.
fn deliveries(world: &World, subscriber: usize) -> usize {
    let told = told(world, subscriber);
    told.iter()
        .filter(|line| *line == "PUBLISH0 t=awake")
        .count()
}

/// Counts the datagrams that a client sends before it hears from the server.
fn count_first_flight(world: &mut World) -> Rc<RefCell<usize>> {
    let count = Rc::new(RefCell::new(0));
    let counted = Rc::clone(&count);
    let newcomer = world.clients.len();
    let mut answered = false;
    world.rule = Box::new(move |crossing: &Crossing<'_>| {
        if crossing.client == newcomer {
            answered |= !crossing.to_server;
            if !answered {
                *counted.borrow_mut() += 1;
            }
        }
        Fate::Deliver
    });
    count
}

/// The acknowledgement is back one round trip after the first datagram left, and the message has left
/// the broker half a round trip after it. So it is by default.
#[test]
fn a_resumed_client_has_its_acknowledgement_after_one_round_trip() {
    for early_data in [Config::default().quic.early_data, EarlyData::All] {
        let (mut world, subscriber, tls) = world_with(early_data);
        let datagrams = count_first_flight(&mut world);
        let (device, times) = wake(&mut world, subscriber, tls);
        let after_one_round_trip = Times {
            connack: 2,
            puback: 2,
            delivered: 2,
        };
        assert_eq!(times, after_one_round_trip);
        assert!(world.clients[device].connection.accepted_0rtt());
        assert_eq!(
            *datagrams.borrow(),
            1,
            "CONNECT and PUBLISH ride in the datagram that the handshake begins with"
        );
        world.run_for(RTT * 6);
        assert_eq!(deliveries(&world, subscriber), 1);
    }
}

/// What a replay could harm waits for the handshake, and everything comes once: here a message of a
/// device without a name, whose repetition nobody would know.
#[test]
fn what_may_not_be_done_early_takes_half_a_round_trip_more() {
    let (mut world, subscriber, tls) = world_with(EarlyData::Idempotent);
    let (_, times) = wake_as("", &mut world, subscriber, tls);
    let held = Times {
        connack: 2,
        puback: 4,
        delivered: 4,
    };
    assert_eq!(times, held);
    world.run_for(RTT * 6);
    assert_eq!(deliveries(&world, subscriber), 1);
}

/// Without early data, and for a client that has no ticket, the same flight takes a round trip more.
#[test]
fn a_full_handshake_takes_one_round_trip_more() {
    for early_data in [EarlyData::Off, EarlyData::All] {
        let (mut world, subscriber, resumed) = world_with(early_data);
        let tls = match early_data {
            EarlyData::Off => resumed,
            _ => Arc::new(world.identity.client_tls(&[b"mqtt"])),
        };
        let (_, times) = wake(&mut world, subscriber, tls);
        let full = Times {
            connack: 4,
            puback: 4,
            delivered: 4,
        };
        assert_eq!(times, full, "{early_data:?}");
    }
}

/// Whoever recorded the first flight gains nothing by sending it again, from wherever he does, at once or
/// later, nor after a restart (attack row 41).
#[test]
fn a_replayed_first_flight_delivers_nothing() {
    for early_data in [EarlyData::Idempotent, EarlyData::All] {
        replay(early_data);
    }
}

fn replay(early_data: EarlyData) {
    let (mut world, subscriber, tls) = world_with(early_data);
    let recorded = Rc::new(RefCell::new(Vec::new()));
    let tape = Rc::clone(&recorded);
    let newcomer = world.clients.len();
    world.rule = Box::new(move |crossing| {
        if crossing.to_server && crossing.client == newcomer && crossing.number == 0 {
            *tape.borrow_mut() = crossing.bytes.to_vec();
        }
        Fate::Deliver
    });
    let (device, _) = wake(&mut world, subscriber, tls);
    let recorded = recorded.borrow().clone();
    for attacker in ["203.0.113.9:4000", "203.0.113.9:4001"] {
        world.inject(attacker.parse().expect("an address"), &recorded);
        world.run_for(RTT * 20);
    }
    assert_eq!(deliveries(&world, subscriber), 1);
    assert!(
        world.clients[device].lost.is_none(),
        "the session was not taken over"
    );
    // Another process knows none of the tickets.
    let (mut world, subscriber, _) = world_with(early_data);
    world.inject("203.0.113.9:4000".parse().expect("an address"), &recorded);
    world.run_for(RTT * 20);
    assert_eq!(deliveries(&world, subscriber), 0);
}

// ---- HTTP/3 --------------------------------------------------------------------------------------

/// What a client of HTTP/3 writes, by stream, and the streams that it ends.
#[derive(Default)]
struct Written(Vec<(u64, Vec<u8>, bool)>);

impl sterna_h3::Output for Written {
    fn write(&mut self, stream: sterna_h3::StreamId, bytes: &[u8]) {
        self.0.push((stream.0, bytes.to_vec(), false));
    }
    fn finish(&mut self, stream: sterna_h3::StreamId) {
        let last = self.0.iter_mut().rfind(|(id, ..)| *id == stream.0);
        last.expect("a stream that was written to").2 = true;
    }
    fn reset(&mut self, _: sterna_h3::StreamId, _: sterna_h3::ErrorCode) {}
    fn stop(&mut self, _: sterna_h3::StreamId, _: sterna_h3::ErrorCode) {}
    fn datagram(&mut self, _: &[u8]) -> bool {
        false
    }
}

/// A client of HTTP/3, of which only requests are looked at.
struct Browser {
    client: usize,
    engine: sterna_h3::Connection,
    out: Written,
}

impl Browser {
    fn new(client: usize) -> Self {
        let mut out = Written::default();
        let limits = sterna_h3::Limits::default();
        let features = sterna_h3::Features::default();
        let engine = sterna_h3::Connection::client(&limits, features, None, &mut out);
        Self {
            client,
            engine,
            out,
        }
    }

    /// Publishes; the stream of the request.
    fn post(&mut self, world: &mut World, key: Option<&[u8]>) -> u64 {
        let line = sterna_h3::RequestLine::https("POST", "localhost", "/v1/topics/t");
        let qos = sterna_h3::Field::new("sterna-qos", b"0");
        let key = key.map(|key| sterna_h3::Field::new("idempotency-key", key));
        let fields: Vec<_> = std::iter::once(qos).chain(key).collect();
        let content = sterna_h3::Content::Whole(b"awake");
        let stream = (self.engine).request(&line, &fields, content, &mut self.out);
        let stream = stream.expect("a request").0;
        for (number, bytes, fin) in std::mem::take(&mut self.out.0) {
            let dir = if number & 2 == 0 { Dir::Bi } else { Dir::Uni };
            let opened = world.open(self.client, dir, &bytes, fin);
            assert_eq!(opened, StreamId(number));
        }
        stream
    }

    /// The status of a response that is complete.
    fn status(&mut self, world: &World, stream: u64) -> Option<u16> {
        let client = &world.clients[self.client];
        if !client.finished.contains(&stream) {
            return None;
        }
        let mut chunk = sterna_h3::Chunk {
            fin: true,
            ..sterna_h3::Chunk::new(sterna_h3::StreamId(stream), &client.received[&stream])
        };
        let event = (self.engine).receive(&mut chunk, 0, &mut self.out);
        match event.expect("a broker that keeps the rules") {
            Some(sterna_h3::Event::Response { head, .. }) => Some(head.status()),
            other => panic!("{other:?}"),
        }
    }
}

/// A world with a broker, a subscriber of MQTT to `t`, and the TLS of a client of HTTP/3 that was there
/// before.
fn world_of_http() -> (World, usize, Arc<rustls::ClientConfig>) {
    let quic = QuicConfig {
        protocols: vec![b"mqtt".to_vec(), b"h3".to_vec()],
        ..QuicConfig::default()
    };
    let mut world = World::new(quic, RTT / 2);
    world.reaction = serve(shard(EarlyData::Idempotent));
    let subscriber = world.connect();
    world.run_for(RTT * 6);
    let mut flight = encode(V5, &Packet::Connect(plain(V5, "subscriber"))).to_vec();
    flight.extend_from_slice(&SUBSCRIBE);
    world.open(subscriber, Dir::Bi, &flight, false);
    let tls = Arc::new(world.identity.client_tls(&[b"h3"]));
    let earlier = world.connect_with(tls.clone(), transport());
    world.run_for(RTT * 6);
    let now = world.now;
    world.clients[earlier]
        .connection
        .close(now, 0u32.into(), Bytes::new());
    world.run_for(RTT * 6);
    (world, subscriber, tls)
}

/// Publishes as soon as that goes; halves of a round trip until the message had come and until the answer.
fn publish_by_http(
    world: &mut World,
    subscriber: usize,
    tls: Arc<rustls::ClientConfig>,
    key: Option<&[u8]>,
) -> (u128, u128) {
    let start = world.since_start();
    let device = world.connect_with(tls, transport());
    assert!(world.clients[device].connection.has_0rtt());
    let mut browser = Browser::new(device);
    let stream = browser.post(world, key);
    let half = (RTT / 2).as_millis();
    let mut seen = [None; 2];
    world.run_until(RTT * 6, |world| {
        let halves = world.since_start().saturating_sub(start).as_millis() / half;
        if deliveries(world, subscriber) > 0 {
            seen[0].get_or_insert(halves);
        }
        if world.clients[device].finished.contains(&stream) {
            seen[1].get_or_insert(halves);
        }
        seen.iter().all(Option::is_some)
    });
    assert_eq!(browser.status(world, stream), Some(204));
    seen.map(|halves| halves.expect("both were seen")).into()
}

/// A POST that may be repeated is done with the first datagram of all, and answered with the next. Any
/// other waits for the handshake.
#[test]
fn a_resumed_client_of_http_is_answered_after_one_round_trip() {
    let (mut world, subscriber, tls) = world_of_http();
    let datagrams = count_first_flight(&mut world);
    let times = publish_by_http(&mut world, subscriber, tls, Some(b"k1"));
    assert_eq!(times, (2, 2));
    assert_eq!(*datagrams.borrow(), 1, "all in one datagram");
    world.run_for(RTT * 6);
    assert_eq!(deliveries(&world, subscriber), 1);

    let (mut world, subscriber, tls) = world_of_http();
    let times = publish_by_http(&mut world, subscriber, tls, None);
    assert_eq!(times, (4, 4));
}

/// On a connection that is there, a small request is one datagram, and so is its answer.
#[test]
fn a_request_of_http_is_a_datagram_and_so_is_its_answer() {
    let (mut world, _, tls) = world_of_http();
    let device = world.connect_with(tls, transport());
    let mut browser = Browser::new(device);
    browser.post(&mut world, None);
    world.run_for(RTT * 20);
    let mut sent = (0, 0);
    for _ in 0..20 {
        let before = (world.clients[device].up, world.clients[device].down);
        let stream = browser.post(&mut world, None);
        world.run_for(RTT * 20);
        assert_eq!(browser.status(&world, stream), Some(204));
        let after = (world.clients[device].up, world.clients[device].down);
        sent.0 += after.0.0 - before.0.0;
        sent.1 += after.1.0 - before.1.0;
    }
    let frames = world.clients[device].connection.stats().frame_rx;
    let permits = frames.max_streams_bidi as usize;
    println!(
        "20 requests: {} datagrams up, {} down, {permits} of them to permit more streams",
        sent.0, sent.1
    );
    assert!(permits <= 3, "permitted streams double as they are used");
    // Up with the acknowledgement of each answer.
    assert!(sent.0 <= 40 + permits, "{sent:?}");
    assert!(sent.1 <= 20 + permits, "{sent:?}");
}
