//! A delivery that may have been sent before says so, and has the identifier that it had: over a flap, a take-over,
//! a move to another shard, and the end of the process. [MQTT-3.3.1-1] [MQTT-4.4.0-1] [MQTT311-3.3.1-1]

use bytes::BytesMut;
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{Header, MessageWriter, Source};
use sterna_amqp::performatives::Role;
use sterna_mqtt::packet::{Connect, Publish};
use sterna_mqtt::{Packet, PacketId, Property, QoS, Version};
use sterna_net::TransportKind;

use crate::amqp::durable;
use crate::amqp_client::Client as AmqpClient;
use crate::fixture::{Broker, Peer, block, plain, publish};
use crate::h3_client::Client as HttpClient;
use crate::store::{Held, config};

const V5: Version = Version::V5;

/// What became of a reader's connection before its next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// DISCONNECT.
    Orderly,
    Lost,
    /// Its client connects again, to another shard where there are more.
    TakenOver,
    /// SIGTERM.
    Stop,
    /// SIGKILL.
    Kill,
}

const ENDS: [End; 5] = [
    End::Orderly,
    End::Lost,
    End::TakenOver,
    End::Stop,
    End::Kill,
];

/// A PUBLISH: its identifier, whether it says that it may have come before, its payload.
type Came = (u16, bool, String);

/// Connects on a shard, with a session that is kept. What comes with the welcome is yet to be taken.
fn connect(broker: &mut Broker, shard: usize, client_id: &str) -> Peer {
    let peer = broker.open_on(shard, TransportKind::Tcp, Vec::new());
    let properties = block(&[Property::SessionExpiryInterval(1_000)]);
    let connect = Connect {
        clean_start: false,
        properties: properties.properties(),
        ..plain(V5, client_id)
    };
    broker.packet(peer, V5, &Packet::Connect(connect));
    peer
}

/// The messages that have come.
fn came(broker: &mut Broker, peer: Peer) -> Vec<Came> {
    let came = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(publish) => Some((
            publish.packet_id.map_or(0, PacketId::get),
            publish.dup,
            String::from_utf8_lossy(publish.payload).into_owned(),
        )),
        _ => None,
    });
    came.into_iter().flatten().collect()
}

/// The same without the identifiers.
fn marked(came: &[Came]) -> Vec<(bool, &str)> {
    (came.iter())
        .map(|(_, dup, payload)| (*dup, &**payload))
        .collect()
}

/// A session that is away and wants all of a topic, so that it is in the log.
fn keep(broker: &mut Broker, topic: &str) {
    let keeper = connect(broker, 0, "keeper");
    broker.take(keeper);
    broker.subscribe(keeper, V5, topic, QoS::ExactlyOnce);
    broker.cut(keeper);
}

/// Publishes a message, which is acknowledged.
fn send(broker: &mut Broker, publisher: Peer, topic: &str, payload: &str) {
    broker.packet(
        publisher,
        V5,
        &Packet::Publish(Publish {
            packet_id: PacketId::new(1),
            ..publish(topic, payload, QoS::ExactlyOnce)
        }),
    );
    broker.send(publisher, &[0x62, 2, 0, 1]);
    let told = broker.told(publisher, V5);
    assert_eq!(told, ["PUBREC 1 Success", "PUBCOMP 1 Success"], "{topic}");
}

fn answer(broker: &mut Broker, peer: Peer, packet: u8, id: u16) {
    let [high, low] = id.to_be_bytes();
    broker.send(peer, &[packet, 2, high, low]);
}

/// Acknowledges a delivery to its end.
fn acknowledge(broker: &mut Broker, peer: Peer, qos: QoS, id: u16) {
    match qos {
        QoS::ExactlyOnce => {
            answer(broker, peer, 0x50, id);
            answer(broker, peer, 0x70, id);
        }
        _ => answer(broker, peer, 0x40, id),
    }
}

/// Ends the reader's connection. The broker after that, and the shard on which the reader comes back.
fn after(
    mut broker: Broker,
    reader: Peer,
    store: &Held,
    end: End,
    shards: usize,
) -> (Broker, usize) {
    match end {
        End::Orderly => broker.send(reader, &[0xe0, 0]),
        End::Lost => broker.cut(reader),
        End::Stop => {
            broker.stop();
            broker.advance(60_000);
            assert!(broker.finished());
        }
        End::TakenOver | End::Kill => {}
    }
    if matches!(end, End::Stop | End::Kill) {
        drop(broker);
        broker = store.broker(&config(), shards);
    }
    (broker, shards - 1)
}

/// The reader acknowledges the first and the third of four, and has room for no more.
#[test]
fn what_a_session_may_have_is_repeated_with_its_identifier() {
    for shards in [1, 3] {
        for end in ENDS {
            for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
                let case = format!("{shards} {end:?} {qos:?}");
                let store = Held::new();
                let mut broker = store.broker(&config(), shards);
                keep(&mut broker, "other");
                let reader = connect(&mut broker, 0, "reader");
                broker.take(reader);
                broker.subscribe(reader, V5, "a", qos);
                let publisher = broker.client(V5, "p");
                for payload in ["1", "2", "3", "4"] {
                    // Places of others lie between.
                    send(&mut broker, publisher, "other", "");
                    send(&mut broker, publisher, "a", payload);
                }
                let first = came(&mut broker, reader);
                let expected = ["1", "2", "3", "4"].map(|payload| (false, payload));
                assert_eq!(marked(&first), expected, "{case}");
                for at in [0, 2] {
                    acknowledge(&mut broker, reader, qos, first[at].0);
                }
                let (mut broker, shard) = after(broker, reader, &store, end, shards);
                let reader = connect(&mut broker, shard, "reader");
                let again = came(&mut broker, reader);
                // Without its cursor the broker may repeat what was acknowledged at QoS 1.
                let is_expected = |(_, _, payload): &&Came| {
                    end == End::Kill && qos == QoS::AtLeastOnce || !["1", "3"].contains(&&**payload)
                };
                let due: Vec<Came> = (first.iter().filter(is_expected))
                    .map(|(id, _, payload)| (*id, true, payload.clone()))
                    .collect();
                assert_eq!(again, due, "{case}");
                let publisher = broker.client(V5, "p");
                for (id, ..) in &again {
                    acknowledge(&mut broker, reader, qos, *id);
                }
                send(&mut broker, publisher, "a", "5");
                let new = came(&mut broker, reader);
                assert_eq!(marked(&new), [(false, "5")], "{case}");
                assert!(first.iter().all(|(id, ..)| *id != new[0].0), "{case}");
            }
        }
    }
}

/// An acknowledgement in the last bytes of a connection counts, where the broker ends right behind them, too. No cursor was
/// written before. [MQTT-4.3.3-4] [MQTT-4.4.0-1]
#[test]
fn what_is_acknowledged_in_the_last_bytes_is_not_repeated() {
    for shards in [1, 3] {
        for (qos, packet) in [(QoS::AtLeastOnce, 0x40), (QoS::ExactlyOnce, 0x50)] {
            for goodbye in [&[0xe0, 0][..], &[]] {
                for is_killed in [false, true] {
                    let case = format!("{shards} {qos:?} {goodbye:?} {is_killed}");
                    let store = Held::new();
                    let mut config = config();
                    config.store.cursor_interval_ms = 3_600_000;
                    let mut broker = store.broker(&config, shards);
                    let reader = connect(&mut broker, 0, "reader");
                    broker.take(reader);
                    broker.subscribe(reader, V5, "a", qos);
                    let publisher = broker.client(V5, "p");
                    for payload in ["1", "2", "3"] {
                        send(&mut broker, publisher, "a", payload);
                    }
                    let mut last = Vec::new();
                    for (id, ..) in came(&mut broker, reader) {
                        let [high, low] = id.to_be_bytes();
                        last.extend_from_slice(&[packet, 2, high, low]);
                    }
                    assert_eq!(last.len(), 3 * 4, "{case}");
                    last.extend_from_slice(goodbye);
                    broker.send(reader, &last);
                    if !is_killed {
                        broker.stop();
                        assert!(broker.finished(), "{case}");
                    }
                    drop(broker);
                    let mut broker = store.broker(&config, shards);
                    let reader = connect(&mut broker, shards - 1, "reader");
                    let again = came(&mut broker, reader);
                    // Without its cursor the broker may repeat what was acknowledged at QoS 1.
                    let may_repeat = is_killed && qos == QoS::AtLeastOnce;
                    assert!(may_repeat || again.is_empty(), "{case}: {again:?}");
                    let publisher = broker.client(V5, "p");
                    send(&mut broker, publisher, "a", "4");
                    let new = came(&mut broker, reader);
                    assert_eq!(marked(&new), [(false, "4")], "{case}");
                }
            }
        }
    }
}

/// [MQTT-3.3.1-3]
#[test]
fn what_was_published_while_a_session_was_away_comes_for_the_first_time() {
    for (away, end) in [
        (End::Orderly, End::Kill),
        (End::Lost, End::Kill),
        (End::Lost, End::Stop),
        (End::Stop, End::Kill),
        (End::Kill, End::Stop),
        (End::Kill, End::Kill),
    ] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let reader = connect(&mut broker, 0, "reader");
        broker.take(reader);
        broker.subscribe(reader, V5, "a", QoS::AtLeastOnce);
        let publisher = broker.client(V5, "p");
        for payload in ["1", "2"] {
            send(&mut broker, publisher, "a", payload);
        }
        let first = came(&mut broker, reader);
        let (mut broker, _) = after(broker, reader, &store, away, 1);
        let publisher = broker.client(V5, "q");
        send(&mut broker, publisher, "a", "3");
        // Cursors are written.
        broker.advance(10_000);
        let (mut broker, _) = after(broker, reader, &store, end, 1);
        let publisher = broker.client(V5, "q");
        send(&mut broker, publisher, "a", "4");
        let reader = connect(&mut broker, 0, "reader");
        let again = came(&mut broker, reader);
        let expected = [(true, "1"), (true, "2"), (false, "3"), (false, "4")];
        assert_eq!(marked(&again), expected, "{away:?} {end:?}");
        let ids = |came: &[Came]| [came[0].0, came[1].0];
        assert_eq!(ids(&again), ids(&first), "{away:?} {end:?}");
    }
}

/// Retained copies have no place in the log, and come between messages that have one.
#[test]
fn retained_copies_and_messages_of_the_log_have_different_identifiers() {
    for end in [End::Orderly, End::Lost, End::TakenOver] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let publisher = broker.client(V5, "p");
        for topic in ["r/1", "r/2", "r/3"] {
            let retained = Publish {
                retain: true,
                ..publish(topic, topic, QoS::AtMostOnce)
            };
            let retained = Publish {
                qos: QoS::AtLeastOnce,
                packet_id: PacketId::new(1),
                ..retained
            };
            broker.packet(publisher, V5, &Packet::Publish(retained));
        }
        broker.take(publisher);
        let reader = connect(&mut broker, 0, "reader");
        broker.take(reader);
        let options = sterna_mqtt::packet::SubscribeOptions::new(QoS::AtLeastOnce);
        broker.subscribe_with(reader, V5, "a", options, &[]);
        let mut first = Vec::new();
        for number in 0..6 {
            send(&mut broker, publisher, "a", &number.to_string());
            if number == 2 {
                broker.subscribe_with(reader, V5, "r/#", options, &[]);
            }
            first.extend(came(&mut broker, reader));
        }
        assert!(first.iter().all(|(_, dup, _)| !dup), "{first:?}");
        let mut payloads: Vec<&str> = first.iter().map(|(.., payload)| &**payload).collect();
        payloads.sort_unstable();
        let expected = ["0", "1", "2", "3", "4", "5", "r/1", "r/2", "r/3"];
        assert_eq!(payloads, expected);
        let mut ids: Vec<u16> = first.iter().map(|(id, ..)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), first.len(), "{first:?}");
        let (mut broker, _) = after(broker, reader, &store, end, 1);
        let reader = connect(&mut broker, 0, "reader");
        let again = came(&mut broker, reader);
        for one in &mut first {
            one.1 = true;
        }
        assert_eq!(again, first, "{end:?}");
    }
}

/// Places that are 65,535 apart have one identifier. [MQTT-2.2.1-4]
#[test]
fn a_message_waits_while_another_has_its_identifier() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    keep(&mut broker, "other");
    let reader = connect(&mut broker, 0, "reader");
    broker.take(reader);
    broker.subscribe(reader, V5, "a", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "p");
    send(&mut broker, publisher, "a", "first");
    let packet = crate::fixture::encode(
        V5,
        &Packet::Publish(Publish {
            packet_id: PacketId::new(1),
            ..publish("other", "", QoS::AtLeastOnce)
        }),
    );
    let hundred = packet.repeat(100);
    for _ in 0..655 {
        broker.send(publisher, &hundred);
        broker.take(publisher);
    }
    for _ in 0..34 {
        broker.send(publisher, &packet);
    }
    broker.take(publisher);
    for payload in ["second", "third"] {
        send(&mut broker, publisher, "a", payload);
    }
    let first = came(&mut broker, reader);
    assert_eq!(marked(&first), [(false, "first")]);
    answer(&mut broker, reader, 0x40, first[0].0);
    let next = came(&mut broker, reader);
    assert_eq!(marked(&next), [(false, "second"), (false, "third")]);
    assert_eq!(next[0].0, first[0].0, "they are that far apart");
    let (mut broker, _) = after(broker, reader, &store, End::Kill, 1);
    let reader = connect(&mut broker, 0, "reader");
    let again = came(&mut broker, reader);
    // Its acknowledgement may not be kept.
    let again = if again.len() == 1 && again[0].2 == "first" {
        answer(&mut broker, reader, 0x40, again[0].0);
        came(&mut broker, reader)
    } else {
        again
    };
    assert_eq!(marked(&again), [(true, "second"), (true, "third")]);
    assert_eq!([again[0].0, again[1].0], [next[0].0, next[1].0]);
}

/// A member of a shared subscription gets again what it had, with the identifier that it had.
#[test]
fn a_message_of_a_shared_subscription_is_repeated_with_its_identifier() {
    for end in ENDS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let reader = connect(&mut broker, 0, "reader");
        broker.take(reader);
        broker.subscribe(reader, V5, "$share/g/a", QoS::AtLeastOnce);
        let publisher = broker.client(V5, "p");
        for payload in ["1", "2"] {
            send(&mut broker, publisher, "a", payload);
        }
        let first = came(&mut broker, reader);
        assert_eq!(marked(&first), [(false, "1"), (false, "2")]);
        let (mut broker, _) = after(broker, reader, &store, end, 1);
        let publisher = broker.client(V5, "p");
        send(&mut broker, publisher, "a", "3");
        let reader = connect(&mut broker, 0, "reader");
        let again = came(&mut broker, reader);
        // The earlier connection had the third.
        let is_third_sent = end == End::TakenOver;
        let expected = [(true, "1"), (true, "2"), (is_third_sent, "3")];
        assert_eq!(marked(&again), expected, "{end:?}");
        assert_eq!(again[0].0, first[0].0, "{end:?}");
        assert_eq!(again[1].0, first[1].0, "{end:?}");
    }
}

/// The lines of a response: payloads, and whether they say that they may have come before.
fn lines(client: &HttpClient, number: u64) -> Vec<(bool, String)> {
    let text = String::from_utf8(client.response(number).content.clone()).expect("text");
    let lines = text.lines().filter(|line| line.starts_with('{'));
    let lines = lines.map(|line| serde_json::from_str(line).expect("a line of JSON"));
    lines
        .filter_map(|line: serde_json::Value| {
            let payload = line["payload"].as_str()?.to_owned();
            Some((line["redelivered"] == true, payload))
        })
        .collect()
}

#[test]
fn a_session_of_http_is_told_what_it_may_have() {
    for end in [End::Lost, End::Stop, End::Kill] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let get = "/v1/topics/a?session=s&qos=1";
        let mut client = HttpClient::connect(&mut broker);
        let number = client.request(&mut broker, "GET", get, &[], b"");
        let publisher = broker.client(V5, "p");
        for payload in ["1", "2"] {
            send(&mut broker, publisher, "a", payload);
        }
        client.turn(&mut broker);
        let first = lines(&client, number);
        assert_eq!(first, [(false, "1".to_owned()), (false, "2".to_owned())]);
        let (mut broker, _) = after(broker, client.peer, &store, end, 1);
        let publisher = broker.client(V5, "p");
        send(&mut broker, publisher, "a", "3");
        let mut client = HttpClient::connect(&mut broker);
        let number = client.request(&mut broker, "GET", get, &[], b"");
        client.turn(&mut broker);
        let again = lines(&client, number);
        let expected = [(true, "1"), (true, "2"), (false, "3")];
        let expected = expected.map(|(again, payload)| (again, payload.to_owned()));
        assert_eq!(again, expected, "{end:?}");
    }
}

/// What an AMQP receiver has got: whether it may have come before, and the text.
fn acquired(client: &AmqpClient) -> Vec<(bool, String)> {
    (client.received.iter())
        .map(|one| (!one.is_first(), one.text()))
        .collect()
}

#[test]
fn a_durable_subscription_of_amqp_is_told_what_it_may_have() {
    for end in [End::Orderly, End::Lost, End::Stop, End::Kill] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let mut client = AmqpClient::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        let link = client.receiver(&mut broker, session, "sub", durable("a"), 2);
        let publisher = broker.client(V5, "p");
        for payload in ["1", "2", "3"] {
            send(&mut broker, publisher, "a", payload);
        }
        client.turn(&mut broker);
        let expected = |marks: [bool; 3]| -> Vec<(bool, String)> {
            let texts = ["1", "2", "3"].map(str::to_owned);
            marks.into_iter().zip(texts).collect()
        };
        assert_eq!(acquired(&client), expected([false; 3])[..2]);
        if end == End::Orderly {
            client.detach(&mut broker, link, false);
        }
        let peer = client.peer;
        let lost = if end == End::Orderly { End::Lost } else { end };
        let (mut broker, _) = after(broker, peer, &store, lost, 1);
        let mut client = AmqpClient::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        let options = AttachOptions {
            recover: true,
            ..AttachOptions::default()
        };
        let link = client.attach(&mut broker, session, "sub", Role::Receiver, &options);
        client.credit(&mut broker, link, 10);
        // Without its cursor the broker cannot know what had no credit.
        let expected = expected([true, true, end == End::Kill]);
        assert_eq!(acquired(&client), expected, "{end:?}");
    }
}

#[test]
fn consumers_of_a_queue_are_told_what_one_may_have_had() {
    for end in [End::Orderly, End::Lost, End::Stop, End::Kill] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let mut sender = AmqpClient::connect(&mut broker, "s");
        let session = sender.begin(&mut broker);
        let to = sender.sender(&mut broker, session, "queue/q");
        for token in 1..=3 {
            let mut message = BytesMut::new();
            let header = Header {
                first_acquirer: true,
                ..Header::default()
            };
            let text = token.to_string();
            (MessageWriter::new(&mut message).header(&header)).data(text.as_bytes());
            sender.send_message(&mut broker, to, token, &message, false, None);
        }
        let mut client = AmqpClient::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        let link = client.receiver(&mut broker, session, "r", Source::new("queue/q"), 2);
        assert_eq!(client.received.len(), 2);
        match end {
            End::Orderly => client.detach(&mut broker, link, true),
            End::Lost => broker.cut(client.peer),
            _ => {}
        }
        let ended_before = matches!(end, End::Orderly | End::Lost);
        if ended_before {
            // Cursors are written.
            broker.advance(10_000);
        }
        let end_of_process = if ended_before { End::Kill } else { end };
        let (mut broker, _) = after(broker, client.peer, &store, end_of_process, 1);
        let mut client = AmqpClient::connect(&mut broker, "d");
        let session = client.begin(&mut broker);
        client.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
        let marks: Vec<bool> = acquired(&client).iter().map(|(again, _)| *again).collect();
        assert_eq!(marks, [true, true, end == End::Kill], "{end:?}");
    }
}
