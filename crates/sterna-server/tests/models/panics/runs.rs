//! What honest clients do, in all three protocols.

use sterna_amqp::messaging::{DeliveryState, Source, TerminusDurability, TerminusExpiryPolicy};
use sterna_h3::Features;
use sterna_mqtt::packet::{Connect, SubscribeOptions, Will};
use sterna_mqtt::{Packet, Properties, Property, PropertyBuf, PublishProperties, QoS};
use sterna_net::{Chunk, StreamId, TransportKind};

use crate::amqp_client::{Client as AmqpClient, Start};
use crate::fixture::{Broker, Peer, block, encode, plain, publish};
use crate::h3_client::Client as HttpClient;
use crate::panics::{Cast, Run, V5};

pub(crate) const MQTT: Run = Run {
    record: |broker| mqtt(broker, TransportKind::Tcp),
    mortal: "victim",
    is_exact: true,
    come_back: come_back_by_mqtt,
};

pub(crate) const MQTT_OVER_QUIC: Run = Run {
    record: |broker| mqtt(broker, TransportKind::Quic),
    mortal: "victim",
    is_exact: true,
    come_back: come_back_by_mqtt,
};

pub(crate) const AMQP: Run = Run {
    record: amqp,
    mortal: WITNESS,
    is_exact: false,
    come_back: |broker| {
        let mut client = AmqpClient::connect(broker, "victim");
        let session = client.begin(broker);
        let link = client.receiver(broker, session, "kept", kept("t"), 10);
        assert!(!client.answers[&link].refused);
    },
};

pub(crate) const HTTP3: Run = Run {
    record: http3,
    mortal: WITNESS,
    is_exact: false,
    come_back: |broker| {
        let mut client = HttpClient::connect(broker);
        let number = client.request(broker, "GET", PATH, &[], b"");
        assert_eq!(client.response(number).status, 200);
    },
};

pub(crate) const HTTP1: Run = Run {
    record: http1,
    mortal: WITNESS,
    is_exact: false,
    come_back: |broker| {
        let peer = open_http1(broker);
        broker.send(peer, get(PATH).as_bytes());
        let answer = String::from_utf8(broker.take(peer)).expect("text");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    },
};

/// Who leaves a will where the victim cannot.
const WITNESS: &str = "witness of the victim";

/// A subscription of HTTP that is kept.
const PATH: &str = "/v1/topics/t?session=victim";

fn open_http1(broker: &mut Broker) -> Peer {
    broker.listener = 1;
    let peer = broker.open_speaking(b"http/1.1", 0, TransportKind::Tcp, Vec::new());
    broker.listener = 0;
    peer
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

fn expiring() -> PropertyBuf {
    block(&[Property::SessionExpiryInterval(100_000)])
}

fn mortal(properties: &PropertyBuf) -> Connect<'_> {
    Connect {
        clean_start: false,
        properties: properties.properties(),
        will: Some(Will {
            topic: "will",
            payload: b"gone",
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: PublishProperties::EMPTY,
        }),
        ..plain(V5, "victim")
    }
}

fn come_back_by_mqtt(broker: &mut Broker) {
    let known = broker
        .sessions(0)
        .0
        .iter()
        .any(|info| info.name.id() == "victim");
    let peer = broker.open();
    let connect = Connect {
        clean_start: false,
        properties: Properties::EMPTY,
        ..plain(V5, "victim")
    };
    broker.packet(peer, V5, &Packet::Connect(connect));
    let told = broker.told(peer, V5);
    let present = if known { " present" } else { "" };
    assert_eq!(told[0], format!("CONNACK Success{present}"));
}

/// The watcher and the publisher.
fn audience(broker: &mut Broker) {
    let watcher = broker.client(V5, "watcher");
    broker.subscribe(watcher, V5, "will", QoS::AtMostOnce);
    assert_eq!(watcher, Cast::WATCHER);
    assert_eq!(broker.client(V5, "publisher"), Cast::PUBLISHER);
}

/// The publisher says something to neighbour and victim.
fn tell(broker: &mut Broker, text: &str) {
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        broker.publish(Cast::PUBLISHER, V5, "t", text, qos);
    }
}

fn mqtt(broker: &mut Broker, transport: TransportKind) {
    audience(broker);
    let neighbour = broker.client(V5, "neighbour");
    assert_eq!(neighbour, Cast::NEIGHBOUR);
    broker.subscribe(neighbour, V5, "t", QoS::AtMostOnce);
    let victim = broker.open_on(0, transport, Vec::new());
    let properties = expiring();
    let connect = encode(V5, &Packet::Connect(mortal(&properties)));
    // In two pieces.
    broker.send(victim, &connect[..5]);
    broker.send(victim, &connect[5..]);
    let ping = |broker: &mut Broker| broker.send(neighbour, &[0xC0, 0]);
    ping(broker);
    for filter in ["t", "own"] {
        let options = SubscribeOptions::new(QoS::AtLeastOnce);
        broker.subscribe_with(victim, V5, filter, options, &[]);
        ping(broker);
    }
    tell(broker, "hello");
    ping(broker);
    // PUBACK of the first delivery that wants one.
    broker.send(victim, &[0x40, 2, 0, 1]);
    tell(broker, &"large ".repeat(1_000));
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        broker.publish(victim, V5, "own", "mine", qos);
        ping(broker);
    }
    broker.wires[0].unsent_bytes = 0;
    broker.writable(victim);
    broker.migrate(victim);
    if transport == TransportKind::Quic {
        more_streams(broker, victim);
    }
    // Time for looks at the keep alive, which is a minute.
    for _ in 0..2 {
        broker.advance(50_000);
        for peer in [Cast::WATCHER, Cast::PUBLISHER, neighbour, victim] {
            broker.send(peer, &[0xC0, 0]);
        }
    }
    broker.cut(victim);
    tell(broker, "after");
}

fn more_streams(broker: &mut Broker, victim: Peer) {
    for (number, end) in [(4, false), (8, true)] {
        let stream = StreamId(number);
        broker.send_on(
            victim,
            stream,
            &encode(V5, &Packet::Publish(publish("own", "x", QoS::AtLeastOnce))),
        );
        tell(broker, "between");
        if end {
            broker.finish(victim, stream);
        } else {
            broker.stop_reading(victim, stream);
            broker.abort(victim, stream);
        }
    }
    broker.datagram(
        victim,
        &encode(V5, &Packet::Publish(publish("own", "x", QoS::AtMostOnce))),
    );
}

/// A client of MQTT that is cut with the victim, and has a will.
fn witness(broker: &mut Broker) -> Peer {
    let properties = expiring();
    let peer = broker.open();
    let connect = Connect {
        client_id: WITNESS,
        ..mortal(&properties)
    };
    broker.packet(peer, V5, &Packet::Connect(connect));
    peer
}

fn kept(address: &str) -> Source<'_> {
    Source {
        durable: TerminusDurability::UnsettledState,
        expiry_policy: TerminusExpiryPolicy::Never,
        ..Source::new(address)
    }
}

fn amqp(broker: &mut Broker) {
    audience(broker);
    let mut neighbour = AmqpClient::start(broker, Start::new("neighbour"));
    assert_eq!(neighbour.peer, Cast::NEIGHBOUR);
    let session = neighbour.begin(broker);
    neighbour.receiver(broker, session, "n", Source::new("t"), 1_000);
    let mut victim = AmqpClient::start(broker, Start::new("victim"));
    let session = victim.begin(broker);
    let link = victim.receiver(broker, session, "kept", kept("t"), 10);
    victim.receiver(broker, session, "passing", Source::new("t"), 10);
    victim.receiver(broker, session, "queue", Source::new("/queues/q"), 10);
    let sender = victim.sender(broker, session, "own");
    let to_queue = victim.sender(broker, session, "/queues/q");
    let last = witness(broker);
    tell(broker, "hello");
    victim.turn(broker);
    neighbour.turn(broker);
    victim.accept_all(broker);
    for token in 1..3 {
        victim.send(broker, sender, token, "mine");
        victim.send_settled(broker, sender, "mine, settled");
        victim.send(broker, to_queue, 10 + token, "to a queue");
        neighbour.turn(broker);
    }
    let first = victim
        .received
        .first()
        .map(|received| (received.link, received.id));
    if let Some((link, id)) = first {
        victim.dispose(
            broker,
            link.session,
            (id, id),
            &DeliveryState::RELEASED,
            true,
        );
    }
    broker.writable(victim.peer);
    broker.migrate(victim.peer);
    tell(broker, &"large ".repeat(1_000));
    victim.credit(broker, link, 20);
    victim.detach(broker, link, false);
    victim.receiver(broker, session, "kept", kept("t"), 10);
    tell(broker, "more");
    broker.cut(last);
    broker.cut(victim.peer);
    tell(broker, "after");
}

fn http3(broker: &mut Broker) {
    audience(broker);
    let mut neighbour = HttpClient::connect(broker);
    assert_eq!(neighbour.peer, Cast::NEIGHBOUR);
    neighbour.request(broker, "GET", "/v1/topics/t?session=other", &[], b"");
    let mut victim = HttpClient::connect_with(broker, Features::default());
    let first = victim.request(broker, "GET", PATH, &[], b"");
    let last = witness(broker);
    tell(broker, "hello");
    victim.turn(broker);
    neighbour.turn(broker);
    victim.request(
        broker,
        "POST",
        "/v1/topics/own?qos=1",
        &[("idempotency-key", "\"k\"")],
        b"mine",
    );
    victim.request(
        broker,
        "POST",
        "/v1/sessions/victim/ack",
        &[],
        b"{\"id\": 1}",
    );
    victim.request(
        broker,
        "GET",
        "/v1/topics?session=passing&filter=t",
        &[],
        b"",
    );
    victim.request(broker, "GET", "/v1/sessions/victim", &[], b"");
    victim.request(broker, "GET", "/nowhere", &[], b"");
    tell(broker, &"large ".repeat(1_000));
    broker.writable(victim.peer);
    broker.migrate(victim.peer);
    broker.stop_reading(victim.peer, StreamId(first));
    victim.request(broker, "GET", PATH, &[], b"");
    tell(broker, "more");
    broker.cut(last);
    broker.cut(victim.peer);
    tell(broker, "after");
}

fn http1(broker: &mut Broker) {
    audience(broker);
    let say = |broker: &mut Broker, peer, text: &str| {
        let chunk = Chunk {
            stream: StreamId::FIRST,
            bytes: text.as_bytes(),
            early: false,
            confirmed: true,
        };
        broker.arrive(peer, chunk);
    };
    let neighbour = open_http1(broker);
    assert_eq!(neighbour, Cast::NEIGHBOUR);
    say(broker, neighbour, &get("/v1/topics/t?session=other"));
    let victim = open_http1(broker);
    let request = get(PATH);
    say(broker, victim, &request[..20]);
    say(broker, victim, &request[20..]);
    let post = open_http1(broker);
    let last = witness(broker);
    tell(broker, "hello");
    say(
        broker,
        post,
        "POST /v1/topics/own?qos=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nmine",
    );
    say(broker, post, &get("/v1/sessions/victim"));
    tell(broker, &"large ".repeat(1_000));
    broker.writable(victim);
    broker.migrate(victim);
    tell(broker, "more");
    broker.advance(3_000);
    broker.cut(last);
    broker.cut(post);
    broker.cut(victim);
    tell(broker, "after");
}
