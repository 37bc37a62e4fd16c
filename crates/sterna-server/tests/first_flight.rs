//! The first flight of a resumed client, packet by packet in virtual time: what the broker has done
//! with it, and when.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "this test uses its part of the world"
)]
#[path = "../../sterna-net/tests/quic/world.rs"]
mod world;

mod fixture;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fixture::{decode, describe, encode, plain, publish};
use quinn_proto::{Dir, TransportConfig};
use sterna_broker::{Directory, Limits, NoStore};
use sterna_mqtt::{Packet, QoS, Version};
use sterna_net::quic::{Driver, DriverEvent, EventKind, Key, QuicConfig};
use sterna_net::{
    Chunk, ConnectionId, ConnectionInfo, Handler as _, Network, PathStatistics, StreamId,
};
use sterna_server::config::{Config, EarlyData, Listener};
use sterna_server::{Mail, Outbox, Parts, Policy, Shard, sys};
use world::{Crossing, Fate, World};

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
            policy: Arc::new(Policy::load(&config).expect("a policy")),
            checker: None,
            tracer: None,
            outbox: Box::new(Alone),
            board: Arc::new(sys::Board::new(1)),
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
            EventKind::Finished { stream } => shard.stream_finished(net, id, *stream),
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

fn first_flight() -> Vec<u8> {
    let mut bytes = encode(V5, &Packet::Connect(plain(V5, "device"))).to_vec();
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
    let start = world.since_start();
    let device = world.connect_with(tls, transport());
    if !world.clients[device].connection.has_0rtt() {
        world.run_until(RTT * 6, |world| world.clients[device].connected.is_some());
    }
    world.open(device, Dir::Bi, &first_flight(), false);
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
/// the broker half a round trip after it.
#[test]
fn a_resumed_client_has_its_acknowledgement_after_one_round_trip() {
    let (mut world, subscriber, tls) = world_with(EarlyData::All);
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

/// What a replay could harm waits for the handshake, and everything comes once.
#[test]
fn what_may_not_be_done_early_takes_half_a_round_trip_more() {
    let (mut world, subscriber, tls) = world_with(EarlyData::Idempotent);
    let (_, times) = wake(&mut world, subscriber, tls);
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

/// Whoever recorded the first flight gains nothing by sending it again, from wherever he does.
#[test]
fn a_replayed_first_flight_delivers_nothing() {
    let (mut world, subscriber, tls) = world_with(EarlyData::All);
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
}
