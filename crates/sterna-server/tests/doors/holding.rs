//! Publishers that wait for a reader whose queue is half full: at every door, on one shard and on two.

use std::collections::VecDeque;

use sterna_broker::{Limits, NoStore, QueueFull, Store};
use sterna_h3::{Content, Features};
use sterna_mqtt::packet::{Connect, Will};
use sterna_mqtt::{Packet, PacketId, PublishProperties, QoS, Version};
use sterna_net::TransportKind;
use sterna_server::config::Config;
use sterna_store::MemoryStore;

use crate::amqp_client::{Client, Start};
use crate::fixture::{Broker, Peer, encode, everybodys, plain, publish};

const V5: Version = Version::V5;
const V311: Version = Version::V311;

const BURST: usize = 20_000;
const STALL_MS: u64 = 2_000;
const BUDGET_MS: u64 = 30_000;

/// What a read of a byte stream brings at most.
const READ_BYTES: usize = 64 << 10;

fn broker(config: &Config, shards: usize) -> Broker {
    Broker::restored(config, shards, Limits::default(), || Box::new(NoStore))
}

fn is_paused(broker: &Broker, peer: Peer) -> bool {
    broker.wires[peer.shard].paused.contains(&peer.id)
}

/// An MQTT client on a shard.
fn client_on(broker: &mut Broker, shard: usize, version: Version, name: &str) -> Peer {
    let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
    broker.packet(peer, version, &Packet::Connect(plain(version, name)));
    let told = broker.told(peer, version);
    assert!(told[0].starts_with("CONNACK Success"), "{told:?}");
    peer
}

/// A subscriber that acknowledges what it is told to.
struct Reader {
    peer: Peer,
    unacknowledged: VecDeque<PacketId>,
    got: Vec<usize>,
}

impl Reader {
    fn on(broker: &mut Broker, shard: usize, name: &str, filter: &str) -> Self {
        let peer = client_on(broker, shard, V5, name);
        broker.subscribe(peer, V5, filter, QoS::AtLeastOnce);
        Self {
            peer,
            unacknowledged: VecDeque::new(),
            got: Vec::new(),
        }
    }

    fn read(&mut self, broker: &mut Broker) {
        let came = broker.packets(self.peer, V5, |packet| match packet {
            Packet::Publish(message) => {
                let text = String::from_utf8_lossy(message.payload).into_owned();
                (text.parse().expect("a number"), message.packet_id)
            }
            other => panic!("{other:?}"),
        });
        for (number, id) in came {
            self.got.push(number);
            self.unacknowledged.extend(id);
        }
    }

    /// Acknowledges up to `most` messages. How many it was.
    fn acknowledge(&mut self, broker: &mut Broker, most: usize) -> usize {
        self.read(broker);
        let count = most.min(self.unacknowledged.len());
        let mut bytes = Vec::new();
        for id in self.unacknowledged.drain(..count) {
            bytes.extend([0x40, 2, (id.get() >> 8) as u8, id.get() as u8]);
        }
        if !bytes.is_empty() {
            broker.send(self.peer, &bytes);
        }
        self.read(broker);
        count
    }

    /// All messages came once, in their order.
    fn check(&self, count: usize) {
        assert_eq!(self.got.len(), count);
        assert!(self.got.iter().copied().eq(0..count));
    }
}

/// An MQTT publisher that writes whatever its socket takes.
struct Publisher {
    peer: Peer,
    bytes: VecDeque<u8>,
}

impl Publisher {
    fn on(broker: &mut Broker, shard: usize, name: &str) -> Self {
        Self {
            peer: client_on(broker, shard, V311, name),
            bytes: VecDeque::new(),
        }
    }

    fn wants(&mut self, topic: &str, qos: QoS, numbers: std::ops::Range<usize>) {
        for number in numbers {
            let text = number.to_string();
            let mut message = publish(topic, &text, qos);
            if qos != QoS::AtMostOnce {
                message.packet_id = PacketId::new((number % 65_535 + 1) as u16);
            }
            (self.bytes).extend(encode(V311, &Packet::Publish(message)));
        }
    }

    /// Writes as long as it is read.
    fn press(&mut self, broker: &mut Broker) {
        while !self.bytes.is_empty() && !is_paused(broker, self.peer) {
            let count = READ_BYTES.min(self.bytes.len());
            let read: Vec<u8> = self.bytes.drain(..count).collect();
            broker.burst(self.peer, &read);
        }
    }
}

#[test]
fn a_burst_over_mqtt_reaches_a_reader_that_takes_it_at_its_pace() {
    // A client has at most 16,384 messages of QoS 2 that it has not released.
    for (shards, qos, count) in [
        (1, QoS::AtLeastOnce, BURST),
        (2, QoS::AtLeastOnce, BURST),
        (1, QoS::ExactlyOnce, BURST / 2),
    ] {
        let mut broker = broker(&everybodys(), shards);
        let mut reader = Reader::on(&mut broker, 0, "reader", "t");
        let mut publisher = Publisher::on(&mut broker, shards - 1, "publisher");
        publisher.wants("t", qos, 0..count);
        publisher.press(&mut broker);
        assert!(is_paused(&broker, publisher.peer));
        let mut rounds = 0;
        while reader.got.len() < count {
            reader.acknowledge(&mut broker, 200);
            publisher.press(&mut broker);
            rounds += 1;
            assert!(rounds < 1_000, "{} came", reader.got.len());
        }
        reader.check(count);
        let answers = broker.told(publisher.peer, V311);
        assert_eq!(answers.len(), count, "each is acknowledged");
        assert!(!is_paused(&broker, publisher.peer));
    }
}

/// Members of a shared subscription are its reader: none takes all, and together they do.
#[test]
fn a_burst_over_mqtt_reaches_the_members_of_a_shared_subscription() {
    for shards in [1, 2] {
        let mut broker = broker(&everybodys(), shards);
        let mut members: Vec<Reader> = (0..2)
            .map(|n| Reader::on(&mut broker, n % shards, &format!("m{n}"), "$share/g/t"))
            .collect();
        let mut publisher = Publisher::on(&mut broker, shards - 1, "publisher");
        publisher.wants("t", QoS::AtLeastOnce, 0..BURST);
        publisher.press(&mut broker);
        assert!(is_paused(&broker, publisher.peer));
        let mut rounds = 0;
        while members.iter().map(|member| member.got.len()).sum::<usize>() < BURST {
            for member in &mut members {
                member.acknowledge(&mut broker, 200);
            }
            publisher.press(&mut broker);
            rounds += 1;
            assert!(rounds < 2_000, "{} came", members[0].got.len());
        }
        let mut all: Vec<usize> = members
            .iter()
            .flat_map(|member| member.got.clone())
            .collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..BURST), "each of them once");
        assert_eq!(broker.told(publisher.peer, V311).len(), BURST);
        assert!(!is_paused(&broker, publisher.peer));
    }
}

#[test]
fn many_publishers_wait_for_one_reader_and_each_goes_on() {
    let mut broker = broker(&everybodys(), 2);
    let mut reader = Reader::on(&mut broker, 0, "reader", "t/#");
    let mut publishers: Vec<Publisher> = (0..40)
        .map(|n| {
            let mut one = Publisher::on(&mut broker, n % 2, &format!("p{n}"));
            one.wants(&format!("t/{n}"), QoS::AtLeastOnce, 0..200);
            one
        })
        .collect();
    let mut rounds = 0;
    while reader.got.len() < 8_000 {
        for publisher in &mut publishers {
            publisher.press(&mut broker);
        }
        reader.acknowledge(&mut broker, 300);
        rounds += 1;
        assert!(rounds < 1_000, "{} came", reader.got.len());
    }
    for publisher in &publishers {
        assert_eq!(broker.told(publisher.peer, V311).len(), 200);
    }
}

#[test]
fn what_is_of_qos_0_or_for_others_does_not_wait() {
    let mut broker = broker(&everybodys(), 1);
    let _reader = Reader::on(&mut broker, 0, "reader", "t");
    let other = client_on(&mut broker, 0, V5, "other");
    broker.subscribe(other, V5, "u", QoS::AtLeastOnce);
    let mut publisher = Publisher::on(&mut broker, 0, "publisher");
    publisher.wants("t", QoS::AtLeastOnce, 0..3_000);
    publisher.press(&mut broker);
    assert!(is_paused(&broker, publisher.peer));
    let mut second = Publisher::on(&mut broker, 0, "second");
    second.wants("t", QoS::AtMostOnce, 0..10);
    second.wants("u", QoS::AtLeastOnce, 0..10);
    second.press(&mut broker);
    assert!(!is_paused(&broker, second.peer));
    assert_eq!(broker.told(other, V5).len(), 10);
}

/// The keep alive of the publisher stands still meanwhile, and its queue's rule holds afterwards.
#[test]
fn a_reader_that_takes_nothing_holds_nobody_after_two_seconds() {
    for shards in [1, 2] {
        let mut broker = broker(&everybodys(), shards);
        let mut reader = Reader::on(&mut broker, 0, "reader", "t");
        let peer = broker.open_on(shards - 1, TransportKind::Tcp, Vec::new());
        let mut connect = plain(V311, "publisher");
        connect.keep_alive_s = 1;
        broker.packet(peer, V311, &Packet::Connect(connect));
        broker.told(peer, V311);
        let mut publisher = Publisher {
            peer,
            bytes: VecDeque::new(),
        };
        publisher.wants("t", QoS::AtLeastOnce, 0..10_000);
        // PINGREQ is behind all of it.
        publisher.bytes.extend([0xC0, 0]);
        publisher.press(&mut broker);
        broker.advance(STALL_MS - 1);
        publisher.press(&mut broker);
        assert!(is_paused(&broker, peer));
        broker.advance(1);
        publisher.press(&mut broker);
        assert_eq!(
            (publisher.bytes.len(), is_paused(&broker, peer)),
            (0, false),
            "{shards}"
        );
        let answers = broker.told(peer, V311);
        assert_eq!(
            answers.len(),
            10_001,
            "each is answered, the last by PINGRESP"
        );
        // It takes again: what had places is there, and it holds its publishers again.
        while reader.acknowledge(&mut broker, 100) > 0 {}
        let lost = 10_000 - reader.got.len();
        assert!(lost > 1_000, "{lost}");
        publisher.wants("t", QoS::AtLeastOnce, 0..5_000);
        let before = reader.got.len();
        while reader.got.len() < before + 5_000 {
            publisher.press(&mut broker);
            assert!(
                reader.acknowledge(&mut broker, 100) > 0,
                "{}",
                reader.got.len()
            );
        }
    }
}

/// Otherwise a client could hold all publishers of a broker, by little that it takes.
#[test]
fn a_reader_that_takes_little_now_and_then_holds_nobody() {
    let mut broker = broker(&everybodys(), 1);
    let mut reader = Reader::on(&mut broker, 0, "reader", "#");
    let mut publisher = Publisher::on(&mut broker, 0, "publisher");
    publisher.wants("t", QoS::AtLeastOnce, 0..60_000);
    for _ in 0..4 {
        publisher.press(&mut broker);
        broker.advance(1_900);
        reader.acknowledge(&mut broker, 1);
    }
    publisher.press(&mut broker);
    assert!(
        publisher.bytes.is_empty(),
        "{} bytes wait",
        publisher.bytes.len()
    );
}

/// Whatever its readers do, a publisher goes on after its time. It has as much of it again when as much has passed.
/// A reader takes just what it must, so that it holds all others for as long as it likes.
#[test]
fn who_sends_now_and_then_is_not_held_and_loses_nothing() {
    for shards in [1, 2] {
        let mut broker = broker(&everybodys(), shards);
        let mut reader = Reader::on(&mut broker, 0, "reader", "#");
        let mut many = Publisher::on(&mut broker, 0, "many");
        many.wants("t", QoS::AtLeastOnce, 0..5_000);
        many.press(&mut broker);
        assert!(is_paused(&broker, many.peer));
        let device = client_on(&mut broker, shards - 1, V5, "device");
        let (mut held, mut published) = (0, 0);
        for second in 0..20_u16 {
            for _ in 0..10 {
                broker.advance(100);
                reader.acknowledge(&mut broker, 10);
                many.press(&mut broker);
            }
            held += usize::from(is_paused(&broker, many.peer));
            let mut message = publish("t", "", QoS::AtLeastOnce);
            let text = (1_000_000 + usize::from(second)).to_string();
            message.payload = text.as_bytes();
            message.packet_id = PacketId::new(second + 1);
            broker.packet(device, V5, &Packet::Publish(message));
            let told = broker.told(device, V5);
            assert!(
                told.iter().any(|told| told.starts_with("PUBACK")),
                "{second}: {told:?}"
            );
            assert!(!is_paused(&broker, device));
            published += 1;
        }
        assert!(
            held > 10,
            "the reader held who sends much for {held} of 20 seconds"
        );
        while reader.acknowledge(&mut broker, 1_000) > 0 || !many.bytes.is_empty() {
            many.press(&mut broker);
        }
        let came = reader.got.iter().filter(|number| **number >= 1_000_000);
        assert!(came.copied().eq(1_000_000..1_000_000 + published));
        let came = reader.got.iter().filter(|number| **number < 1_000_000);
        assert!(came.copied().eq(0..5_000));
    }
}

/// It sends one message in each interval beside what the reader takes.
#[test]
fn who_is_held_goes_on_by_one_message_now_and_then() {
    for interval_ms in [1_000, 0] {
        let mut config = everybodys();
        config.broker.held_publisher_interval_ms = interval_ms;
        let mut broker = broker(&config, 1);
        let mut reader = Reader::on(&mut broker, 0, "reader", "t");
        let mut many = Publisher::on(&mut broker, 0, "many");
        many.wants("t", QoS::AtLeastOnce, 0..5_000);
        many.press(&mut broker);
        // It takes its share. Its queue drains once, and then not again.
        let take = |broker: &mut Broker, reader: &mut Reader, times| {
            for _ in 0..times {
                broker.advance(100);
                reader.acknowledge(broker, 6);
            }
        };
        take(&mut broker, &mut reader, 15);
        let before = broker.received_messages();
        take(&mut broker, &mut reader, 20);
        let passed = broker.received_messages() - before;
        let expected = if interval_ms == 0 { 0 } else { 2 };
        assert_eq!(passed, expected);
    }
}

#[test]
fn a_publisher_waits_no_longer_than_its_time() {
    let mut broker = broker(&everybodys(), 1);
    let mut reader = Reader::on(&mut broker, 0, "reader", "#");
    let mut publisher = Publisher::on(&mut broker, 0, "publisher");
    publisher.wants("t", QoS::AtLeastOnce, 0..60_000);
    let mut waited_ms = 0;
    for _ in 0..400 {
        publisher.press(&mut broker);
        if publisher.bytes.is_empty() {
            break;
        }
        broker.advance(100);
        waited_ms += 100;
        // Just as much as it has to.
        reader.acknowledge(&mut broker, 6);
    }
    assert!(publisher.bytes.is_empty());
    assert!(
        (BUDGET_MS - 1_000..=BUDGET_MS).contains(&waited_ms),
        "{waited_ms} ms"
    );
    // What it has regained meanwhile.
    broker.advance(5_000);
    publisher.wants("t", QoS::AtLeastOnce, 0..60_000);
    waited_ms = 0;
    while !publisher.bytes.is_empty() {
        publisher.press(&mut broker);
        broker.advance(100);
        waited_ms += 100;
        reader.acknowledge(&mut broker, 6);
        assert!(waited_ms < 20_000);
    }
    assert!(waited_ms <= 6_000, "{waited_ms} ms");
}

#[test]
fn clients_that_publish_to_each_other_and_to_themselves_go_on() {
    let mut broker = broker(&everybodys(), 2);
    for (shard, name) in [(0, "a"), (1, "b")] {
        let peer = client_on(&mut broker, shard, V311, name);
        broker.subscribe(peer, V311, name, QoS::AtLeastOnce);
        let other = if name == "a" { "b" } else { "a" };
        let mut publisher = Publisher {
            peer,
            bytes: VecDeque::new(),
        };
        publisher.wants(name, QoS::AtLeastOnce, 0..3_000);
        if name == "a" {
            publisher.press(&mut broker);
            assert!(publisher.bytes.is_empty(), "nobody waits for itself");
        }
        publisher.bytes.clear();
        publisher.wants(other, QoS::AtLeastOnce, 0..3_000);
        publisher.press(&mut broker);
        if name == "b" {
            // The other one's queue is full; it does not wait for this one.
            assert!(is_paused(&broker, peer));
            broker.advance(STALL_MS);
            publisher.press(&mut broker);
            assert_eq!(
                (publisher.bytes.len(), is_paused(&broker, peer)),
                (0, false)
            );
        }
    }
}

/// The socket of a client that waits is still known to be gone.
#[test]
fn clients_that_wait_may_go_and_readers_may_go() {
    let mut broker = broker(&everybodys(), 2);
    let reader = Reader::on(&mut broker, 0, "reader", "t");
    let mut first = Publisher::on(&mut broker, 1, "first");
    let mut second = Publisher::on(&mut broker, 1, "second");
    first.wants("t", QoS::AtLeastOnce, 0..10_000);
    first.press(&mut broker);
    second.wants("t", QoS::AtLeastOnce, 0..10_000);
    second.press(&mut broker);
    assert!(is_paused(&broker, first.peer) && is_paused(&broker, second.peer));
    broker.cut(first.peer);
    assert!(is_paused(&broker, second.peer));
    broker.cut(reader.peer);
    assert!(!is_paused(&broker, second.peer), "nobody holds it");
    second.press(&mut broker);
    assert!(second.bytes.is_empty());
    assert_eq!(broker.told(second.peer, V311).len(), 10_000);
}

/// Its DISCONNECT came behind a message that waits, and its connection is gone before that goes on.
#[test]
fn a_publisher_that_has_ended_in_order_while_it_waits_leaves_no_will() {
    let mut broker = broker(&everybodys(), 1);
    let mut reader = Reader::on(&mut broker, 0, "reader", "t");
    let watcher = client_on(&mut broker, 0, V5, "watcher");
    broker.subscribe(watcher, V5, "will", QoS::AtLeastOnce);
    for is_orderly in [true, false] {
        let peer = broker.open_on(0, TransportKind::Quic, Vec::new());
        let will = Will {
            topic: "will",
            payload: b"gone",
            qos: QoS::AtLeastOnce,
            retain: false,
            properties: PublishProperties::EMPTY,
        };
        let connect = Connect {
            will: Some(will),
            ..plain(V311, "publisher")
        };
        broker.packet(peer, V311, &Packet::Connect(connect));
        broker.told(peer, V311);
        let mut publisher = Publisher {
            peer,
            bytes: VecDeque::new(),
        };
        publisher.wants("t", QoS::AtLeastOnce, 0..1_800);
        if is_orderly {
            publisher.bytes.extend([0xe0, 0]);
        }
        publisher.press(&mut broker);
        assert!(is_paused(&broker, peer) && publisher.bytes.is_empty());
        broker.cut(peer);
        assert_eq!(broker.told(watcher, V5).len(), usize::from(!is_orderly));
        while reader.acknowledge(&mut broker, 100) > 0 {}
        reader.check(1_800);
        reader.got.clear();
    }
}

/// With a store a session that is kept falls behind and reads the log, and so holds nobody.
#[test]
fn a_session_that_is_kept_holds_nobody() {
    let store = MemoryStore::new();
    let config = everybodys();
    let handle = || Box::new(store.clone()) as Box<dyn Store>;
    let mut broker = Broker::restored(&config, 1, Limits::default(), handle);
    let peer = broker.open();
    let mut connect = plain(V311, "kept");
    connect.clean_start = false;
    broker.packet(peer, V311, &Packet::Connect(connect));
    broker.told(peer, V311);
    broker.subscribe(peer, V311, "t", QoS::AtLeastOnce);
    let mut publisher = Publisher::on(&mut broker, 0, "publisher");
    publisher.wants("t", QoS::AtLeastOnce, 0..10_000);
    publisher.press(&mut broker);
    for _ in 0..10 {
        broker.wake();
        publisher.press(&mut broker);
    }
    assert!(publisher.bytes.is_empty() && !is_paused(&broker, publisher.peer));
    // One that ends with its connection does.
    let _brief = Reader::on(&mut broker, 0, "brief", "u");
    publisher.wants("u", QoS::AtLeastOnce, 0..10_000);
    publisher.press(&mut broker);
    broker.wake();
    publisher.press(&mut broker);
    assert!(is_paused(&broker, publisher.peer));
}

#[test]
fn a_burst_over_amqp_reaches_a_reader_that_takes_it_at_its_pace() {
    for shards in [1, 2] {
        let mut broker = broker(&everybodys(), shards);
        let mut reader = Reader::on(&mut broker, 0, "reader", "t");
        let mut sender = Client::start(&mut broker, Start::new("sender").on(shards - 1));
        let session = sender.begin(&mut broker);
        let link = sender.sender(&mut broker, session, "t");
        let count = 5_000;
        let (mut sent, mut accepted, mut rounds) = (0, 0, 0);
        let mut has_waited = false;
        while reader.got.len() < count {
            while sent < count && !is_paused(&broker, sender.peer) && sender.engine.credit(link) > 0
            {
                sender.send(&mut broker, link, sent as u64, &sent.to_string());
                sent += 1;
            }
            has_waited |= is_paused(&broker, sender.peer);
            reader.acknowledge(&mut broker, 100);
            sender.turn(&mut broker);
            accepted += sender.outcomes().len();
            rounds += 1;
            assert!(
                rounds < 1_000,
                "{} came, {accepted} accepted",
                reader.got.len()
            );
        }
        reader.check(count);
        sender.turn(&mut broker);
        accepted += sender.outcomes().len();
        assert!(has_waited && accepted == count, "{accepted} were accepted");
    }
}

/// When its messages came, nothing was half full. They all go at the discharge.
#[test]
fn a_transaction_over_amqp_reaches_a_reader_whose_queue_has_fewer_places() {
    for shards in [1, 2] {
        let mut broker = broker(&everybodys(), shards);
        let mut reader = Reader::on(&mut broker, 0, "reader", "t");
        let mut sender = Client::start(&mut broker, Start::new("sender").on(shards - 1));
        let session = sender.begin(&mut broker);
        let link = sender.sender(&mut broker, session, "t");
        let coordinator = sender.coordinator(&mut broker, session);
        let txn = sender.declare(&mut broker, coordinator).expect("declared");
        let count = 3_000;
        for number in 0..count {
            assert!(sender.engine.credit(link) > 0);
            sender.post(&mut broker, link, 1, &txn, &number.to_string());
        }
        assert_eq!(sender.outcomes().len(), count);
        sender.discharge(&mut broker, coordinator, 1_001, &txn, false);
        assert_eq!(sender.outcomes(), [(1_001, "accepted".to_owned())]);
        while reader.acknowledge(&mut broker, 100) > 0 {}
        reader.check(count);
    }
}

#[test]
fn posts_wait_for_their_answers_until_a_reader_has_room() {
    for shards in [1, 2] {
        let mut broker = broker(&everybodys(), shards);
        let mut reader = Reader::on(&mut broker, 0, "reader", "t");
        let features = Features::default();
        let mut client =
            crate::h3_client::Client::connect_on(&mut broker, shards - 1, features, Vec::new());
        let count = 3_000;
        let mut open = VecDeque::new();
        let (mut sent, mut rounds, mut has_waited) = (0, 0, false);
        while reader.got.len() < count {
            while sent < count && open.len() < 16 {
                let text = sent.to_string();
                let content = Content::Whole(text.as_bytes());
                open.push_back(client.begin("POST", "/v1/topics/t", &[], content));
                sent += 1;
            }
            client.turn(&mut broker);
            open.retain(|number| match client.response(*number).status {
                0 => true,
                204 => false,
                other => panic!("{other}"),
            });
            if !open.is_empty() || sent == count {
                has_waited |= !open.is_empty();
                reader.acknowledge(&mut broker, 100);
            }
            rounds += 1;
            assert!(rounds < 2_000, "{} came", reader.got.len());
        }
        reader.check(count);
        assert!(has_waited);
    }
}

/// A frame of the binary stream: its length, an id, flags, a topic, no properties, a payload.
pub(crate) fn frame(id: u8, topic: &str, payload: &str) -> Vec<u8> {
    let mut bytes = vec![id, 1, topic.len() as u8];
    bytes.extend_from_slice(topic.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(payload.as_bytes());
    bytes.insert(0, bytes.len() as u8);
    bytes
}

#[test]
fn frames_of_webtransport_wait_until_a_reader_has_room() {
    let mut broker = broker(&everybodys(), 1);
    broker.wires[0].datagram_bytes = 1_200;
    let mut reader = Reader::on(&mut broker, 0, "reader", "t");
    let features = Features {
        extended_connect: true,
        datagrams: true,
        webtransport: true,
    };
    let mut client = crate::h3_client::Client::connect_with(&mut broker, features);
    let session = (client.engine)
        .connect_session("localhost", "/v1/topics/none", &[], &mut client.out)
        .expect("settings that allow it");
    client.turn(&mut broker);
    assert_eq!(client.response(session.0).status, 200);
    let stream = (client.engine)
        .open_session_stream(session, true, &mut client.out)
        .expect("a session that is open");
    let (count, mut sent, mut answered) = (5_000, 0, 0);
    let mut has_waited = false;
    while reader.got.len() < count {
        while sent < count && !is_paused(&broker, client.peer) {
            let frames: Vec<u8> = (sent..(sent + 250).min(count))
                .flat_map(|number| frame(1, "t", &number.to_string()))
                .collect();
            sent = (sent + 250).min(count);
            // Cut somewhere within.
            for part in frames.chunks(1_001) {
                (client.engine.send(stream, part, &mut client.out)).expect("an open stream");
                client.turn(&mut broker);
            }
        }
        has_waited |= is_paused(&broker, client.peer);
        reader.acknowledge(&mut broker, 100);
        client.turn(&mut broker);
        let answers = client.heard.streams.remove(&stream.0).unwrap_or_default();
        // Length, id and the status 204 in two bytes each.
        assert!(answers.chunks(4).all(|answer| answer == [3, 1, 0x40, 204]));
        answered += answers.len() / 4;
    }
    reader.check(count);
    assert!(has_waited && answered == count, "{answered} answers");
}

/// The settings, and the rule of the queue where nobody is held.
#[test]
fn nobody_waits_where_that_is_off() {
    let limits = Limits {
        reader_stall_ms: 0,
        queue_full: QueueFull::DropNewest,
        ..Limits::default()
    };
    let mut broker = Broker::restored(&everybodys(), 1, limits, || Box::new(NoStore));
    let mut reader = Reader::on(&mut broker, 0, "reader", "t");
    let mut publisher = Publisher::on(&mut broker, 0, "publisher");
    publisher.wants("t", QoS::AtLeastOnce, 0..BURST);
    publisher.press(&mut broker);
    assert!(publisher.bytes.is_empty());
    while reader.acknowledge(&mut broker, 1_000) > 0 {}
    assert!(reader.got.len() < BURST / 5, "{}", reader.got.len());
}
