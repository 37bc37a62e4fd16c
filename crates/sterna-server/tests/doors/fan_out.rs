//! Messages that go to many readers: what is published in one turn, and what waits for another, at every door.

use sterna_broker::{FromPeer, Limits, Message, MessageHeader, NoStore, Wanted};
use sterna_cluster::ToShard;
use sterna_h3::{Content, Features};
use sterna_mqtt::{Packet, QoS, Version};
use sterna_net::TransportKind;
use sterna_server::Mail;
use sterna_server::config::Config;

use crate::amqp_client::{Client, Start};
use crate::fixture::{Broker, Peer, encode, everybodys, plain, publish};
use crate::h3_client::Client as HttpClient;

const V5: Version = Version::V5;

const READERS: usize = 40;
pub(crate) const PER_TURN: u64 = 100;

/// Messages to all readers in one turn, at most: the last one may begin when few copies are left.
const MOST_AT_ONCE: u64 = PER_TURN / READERS as u64 + 1;

pub(crate) fn broker_with(config: &Config, shards: usize) -> Broker {
    let limits = Limits {
        copies_per_turn: PER_TURN,
        ..Limits::default()
    };
    Broker::restored(config, shards, limits, || Box::new(NoStore))
}

pub(crate) fn is_paused(broker: &Broker, peer: Peer) -> bool {
    broker.wires[peer.shard].paused.contains(&peer.id)
}

/// Connects from an address that is `last` of its network.
pub(crate) fn client_at(broker: &mut Broker, shard: usize, last: u8, name: &str) -> Peer {
    broker.come_from([10, 0, 0, last]);
    let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
    broker.packet(peer, V5, &Packet::Connect(plain(V5, name)));
    let told = broker.told(peer, V5);
    assert!(told[0].starts_with("CONNACK Success"), "{told:?}");
    peer
}

/// Readers of the topic `all`, on all shards.
fn readers(broker: &mut Broker, shards: usize) -> Vec<Peer> {
    let open = |number| {
        let reader = client_at(broker, number % shards, 9, &format!("reader{number}"));
        broker.subscribe(reader, V5, "all", QoS::AtMostOnce);
        reader
    };
    (0..READERS).map(open).collect()
}

pub(crate) fn payloads(broker: &mut Broker, peer: Peer) -> Vec<String> {
    broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(message) => String::from_utf8_lossy(message.payload).into_owned(),
        other => panic!("{other:?}"),
    })
}

fn publications(topic: &str, count: usize) -> Vec<u8> {
    let each = |number: usize| {
        let text = number.to_string();
        encode(V5, &Packet::Publish(publish(topic, &text, QoS::AtMostOnce)))
    };
    (0..count).flat_map(each).collect()
}

/// Begins a turn, and publishes in it what it has copies for. Returns the publisher, which has `count` messages on its way.
fn spend(broker: &mut Broker, count: usize) -> Peer {
    let publisher = client_at(broker, 0, 1, "many");
    broker.end_turn();
    let before = broker.received_messages();
    broker.stays_in_turn = true;
    broker.burst(publisher, &publications("all", count));
    let received = broker.received_messages() - before;
    assert!(
        (1..=MOST_AT_ONCE).contains(&received),
        "{received} in one turn"
    );
    assert!(is_paused(broker, publisher));
    publisher
}

/// Each reader has these messages, in this order among those of a first letter.
fn check(broker: &mut Broker, readers: &[Peer], count: usize, others: &[&str]) -> Vec<String> {
    let mut first = Vec::new();
    for reader in readers {
        let all = payloads(broker, *reader);
        let (own, rest): (Vec<_>, Vec<_>) =
            (all.iter().map(String::as_str)).partition(|text| !others.contains(text));
        assert!(
            own.iter()
                .enumerate()
                .all(|(at, text)| *text == at.to_string()),
            "{all:?}"
        );
        assert_eq!((own.len(), rest.len()), (count, others.len()), "{all:?}");
        first = all;
    }
    first
}

#[test]
fn a_burst_to_many_stops_neither_others_nor_others_bursts() {
    for shards in [1, 2] {
        let mut broker = broker_with(&everybodys(), shards);
        let readers = readers(&mut broker, shards);
        let light = client_at(&mut broker, 0, 2, "light");
        let other = client_at(&mut broker, 0, 3, "other");
        broker.subscribe(light, V5, "few", QoS::AtMostOnce);
        let many = spend(&mut broker, 200);
        // It goes to one reader.
        broker.publish(light, V5, "few", "x", QoS::AtLeastOnce);
        assert!(!is_paused(&broker, light));
        let told = broker.told(light, V5);
        assert!(told[0].starts_with("PUBACK"), "{told:?}");
        // It goes to many, and its turn is the next.
        broker.publish(other, V5, "all", "other", QoS::AtMostOnce);
        assert!(is_paused(&broker, other));
        let newcomer = client_at(&mut broker, 0, 4, "newcomer");
        broker.end_turn();
        assert_eq!(payloads(&mut broker, light), ["x"]);
        let came = check(&mut broker, &readers, 200, &["other"]);
        let at = came.iter().position(|text| text == "other");
        assert!(at.is_some_and(|at| at as u64 <= 3 * MOST_AT_ONCE), "{at:?}");
        for peer in [many, other, newcomer] {
            assert!(!is_paused(&broker, peer));
        }
    }
}

#[test]
fn a_publisher_that_is_gone_while_it_waits_leaves_the_line() {
    let mut broker = broker_with(&everybodys(), 1);
    let readers = readers(&mut broker, 1);
    let many = spend(&mut broker, 5);
    broker.cut(many);
    broker.end_turn();
    let came = payloads(&mut broker, readers[0]);
    assert!(came.len() as u64 <= MOST_AT_ONCE, "{came:?}");
    spend(&mut broker, 5);
    broker.end_turn();
}

#[test]
fn a_datagram_to_many_is_lost_and_one_to_few_is_not() {
    let mut broker = broker_with(&everybodys(), 1);
    let readers = readers(&mut broker, 1);
    let sender = broker.open_on(0, TransportKind::Quic, Vec::new());
    broker.packet(sender, V5, &Packet::Connect(plain(V5, "sender")));
    broker.told(sender, V5);
    spend(&mut broker, 20);
    for (topic, text) in [("all", "a"), ("few", "b")] {
        broker.datagram(
            sender,
            &encode(V5, &Packet::Publish(publish(topic, text, QoS::AtMostOnce))),
        );
    }
    assert!(!is_paused(&broker, sender), "nothing of it is held");
    broker.end_turn();
    check(&mut broker, &readers, 20, &[]);
}

#[test]
fn transfers_to_many_wait_and_those_to_few_do_not() {
    let mut broker = broker_with(&everybodys(), 1);
    let readers = readers(&mut broker, 1);
    let mut senders = ["all", "few"].map(|topic| {
        let mut sender = Client::start(&mut broker, Start::new(topic));
        let session = sender.begin(&mut broker);
        let link = sender.sender(&mut broker, session, topic);
        (sender, link)
    });
    spend(&mut broker, 20);
    let [(to_all, all), (to_few, few)] = &mut senders;
    to_all.send_settled(&mut broker, *all, "settled");
    to_all.send(&mut broker, *all, 1, "sent");
    to_few.send(&mut broker, *few, 2, "x");
    assert!(is_paused(&broker, to_all.peer) && !is_paused(&broker, to_few.peer));
    assert_eq!(to_few.outcomes(), [(2, "accepted".to_owned())]);
    assert!(to_all.outcomes().is_empty());
    broker.end_turn();
    to_all.turn(&mut broker);
    assert_eq!(to_all.outcomes(), [(1, "accepted".to_owned())]);
    check(&mut broker, &readers, 20, &["settled", "sent"]);
}

#[test]
fn a_transaction_that_goes_to_too_many_is_rolled_back() {
    let mut config = everybodys();
    config.amqp.maximum_transaction_copies = PER_TURN as u32;
    let mut broker = broker_with(&config, 1);
    let readers = readers(&mut broker, 1);
    let mut sender = Client::start(&mut broker, Start::new("sender"));
    let session = sender.begin(&mut broker);
    let link = sender.sender(&mut broker, session, "all");
    let coordinator = sender.coordinator(&mut broker, session);
    for (count, outcome) in [(2, "accepted"), (5, "amqp:transaction:rollback")] {
        let txn = sender.declare(&mut broker, coordinator).expect("declared");
        for number in 0..count {
            sender.post(&mut broker, link, 1, &txn, &number.to_string());
        }
        assert_eq!(sender.outcomes().len(), count);
        sender.discharge(&mut broker, coordinator, 2, &txn, false);
        let outcomes = sender.outcomes();
        assert!(outcomes[0].1.contains(outcome), "{outcomes:?}");
    }
    check(&mut broker, &readers, 2, &[]);
}

#[test]
fn posts_to_many_wait_for_their_answers() {
    let mut broker = broker_with(&everybodys(), 1);
    let readers = readers(&mut broker, 1);
    let mut clients = [(); 2].map(|()| HttpClient::connect(&mut broker));
    spend(&mut broker, 20);
    let requests = [("all", "posted"), ("few", "x")];
    let mut numbers = Vec::new();
    for (client, (topic, text)) in clients.iter_mut().zip(requests) {
        let path = format!("/v1/topics/{topic}");
        numbers.push(client.begin("POST", &path, &[], Content::Whole(text.as_bytes())));
        client.flush(&mut broker);
        client.read(&mut broker);
    }
    let answers: Vec<u16> = (clients.iter().zip(&numbers))
        .map(|(client, number)| client.response(*number).status)
        .collect();
    assert_eq!(answers, [0, 204]);
    broker.end_turn();
    for (client, number) in clients.iter_mut().zip(numbers) {
        client.turn(&mut broker);
        assert_eq!(client.response(number).status, 204);
    }
    check(&mut broker, &readers, 20, &["posted"]);
}

#[test]
fn frames_of_webtransport_wait_and_its_datagrams_are_lost() {
    let mut broker = broker_with(&everybodys(), 1);
    broker.wires[0].datagram_bytes = 1_200;
    let readers = readers(&mut broker, 1);
    let features = Features {
        extended_connect: true,
        datagrams: true,
        webtransport: true,
    };
    let mut client = HttpClient::connect_with(&mut broker, features);
    let session = (client.engine)
        .connect_session("localhost", "/v1/topics/none", &[], &mut client.out)
        .expect("settings that allow it");
    client.turn(&mut broker);
    assert_eq!(client.response(session.0).status, 200);
    let stream = (client.engine)
        .open_session_stream(session, true, &mut client.out)
        .expect("a session that is open");
    spend(&mut broker, 20);
    let frame = crate::holding::frame;
    (client
        .engine
        .send(stream, &frame(1, "all", "framed"), &mut client.out))
    .expect("an open stream");
    client.flush(&mut broker);
    let lost = frame(0, "all", "lost");
    (client
        .engine
        .send_datagram(session, &lost[1..], &mut client.out))
    .expect("an open session");
    client.flush(&mut broker);
    broker.end_turn();
    client.turn(&mut broker);
    let answers = client.heard.streams.remove(&stream.0).unwrap_or_default();
    assert_eq!(answers, [3, 1, 0x40, 204]);
    check(&mut broker, &readers, 20, &["framed"]);
}

/// Messages of other nodes wait for another turn as well, in their order, and what comes behind them waits, too.
#[test]
fn letters_of_other_nodes_wait_for_their_turns() {
    const LEVELS: u32 = 11;
    let mut config = everybodys();
    config.cluster.nats = vec!["nats://127.0.0.1:1".to_owned()];
    config.cluster.node = Some("n1".to_owned());
    let mut broker = broker_with(&config, 1);
    let mut client = HttpClient::connect(&mut broker);
    // All ways through these filters match. So a message is more work than a turn has.
    let filters = (0..1_u32 << LEVELS).map(|bits| {
        let level = |level| if bits >> level & 1 == 0 { "a" } else { "+" };
        let filter: Vec<&str> = (0..LEVELS).map(level).collect();
        let mut wanted = Wanted::NOBODY;
        wanted.any.insert(2);
        (filter.join("/").into(), wanted)
    });
    let post = |broker: &mut Broker, letter| broker.letter(0, Mail::Cluster(Box::new(letter)));
    post(&mut broker, ToShard::Wanted(filters.collect()));
    broker.end_turn();
    broker.stays_in_turn = true;
    let messages = |topic: &str, what| {
        let message = Message::copy(topic, &[], b"x", MessageHeader::default());
        ToShard::Messages(vec![(message.expect("it fits"), what)])
    };
    let is_retained = |broker: &mut Broker, client: &mut HttpClient, topic: &str| {
        let number = client.begin(
            "HEAD",
            &format!("/v1/topics/{topic}"),
            &[],
            Content::Whole(b""),
        );
        client.turn(broker);
        client.response(number).status == 200
    };
    post(&mut broker, messages("first", FromPeer::Retain));
    let dear = ["a"; LEVELS as usize].join("/");
    post(&mut broker, messages(&dear, FromPeer::Publish));
    post(&mut broker, messages("second", FromPeer::Retain));
    assert!(is_retained(&mut broker, &mut client, "first"));
    assert!(!is_retained(&mut broker, &mut client, "second"));
    broker.end_turn();
    assert!(is_retained(&mut broker, &mut client, "second"));
}
