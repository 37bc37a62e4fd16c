//! Sessions that are away with messages that were sent to them: what becomes of these where memory is short.

use std::sync::atomic::Ordering;

use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::{AttachOptions, Unsettled};
use sterna_amqp::messaging::{
    DeliveryState, Source, Target, TargetArchetype, TerminusDurability, TerminusExpiryPolicy,
};
use sterna_amqp::performatives::{ReceiverSettleMode, Role};
use sterna_broker::Limits;
use sterna_mqtt::packet::Connect;
use sterna_mqtt::{Packet, PacketId, Property, QoS};
use sterna_server::Stage;

use super::{AMQP, HTTP, MQTT, V5, config, resident};
use crate::amqp_client::Client as AmqpClient;
use crate::fixture::{Broker, Peer, block, plain};
use crate::overload::store::Held;

const MESSAGES: usize = 200;

fn reader(broker: &mut Broker) -> Peer {
    let properties = block(&[Property::SessionExpiryInterval(1_000)]);
    let connect = Connect {
        clean_start: false,
        properties: properties.properties(),
        ..plain(V5, "reader")
    };
    let peer = broker.open();
    broker.packet(peer, V5, &Packet::Connect(connect));
    peer
}

/// The payloads, identifiers and DUP flags of messages that have come.
fn came(broker: &mut Broker, peer: Peer) -> Vec<(String, PacketId, bool)> {
    let messages = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(publish) => {
            let text = String::from_utf8_lossy(publish.payload).into_owned();
            Some((text, publish.packet_id.expect("an identifier"), publish.dup))
        }
        _ => None,
    });
    messages.into_iter().flatten().collect()
}

/// Answers with PUBACK (`0x40`), PUBREC (`0x50`) or PUBCOMP (`0x70`).
fn answer(broker: &mut Broker, peer: Peer, first_byte: u8, id: PacketId) {
    let [high, low] = id.get().to_be_bytes();
    broker.send(peer, &[first_byte, 2, high, low]);
}

fn unsettled(broker: &Broker) -> usize {
    let (sessions, _) = broker.sessions(0);
    sessions
        .iter()
        .map(|session| session.queue.unacknowledged)
        .sum()
}

/// What was sent is read in the log again, and comes as it would have: in its order, by its identifiers, and once.
#[test]
fn what_was_sent_to_a_reader_that_is_away_leaves_memory() {
    for (qos, restarts) in [
        (QoS::AtLeastOnce, false),
        (QoS::ExactlyOnce, false),
        (QoS::AtLeastOnce, true),
        (QoS::ExactlyOnce, true),
    ] {
        let store = Held::new();
        let broker_of =
            || Broker::restored(&config(), 1, Limits::default(), || Box::new(store.clone()));
        let mut broker = broker_of();
        let first = reader(&mut broker);
        broker.take(first);
        broker.subscribe(first, V5, "t", qos);
        let publisher = broker.client(V5, "publisher");
        for number in 0..MESSAGES {
            broker.publish(publisher, V5, "t", &number.to_string(), qos);
            // PUBREL of the identifier that it uses for all, which at QoS 1 means nothing.
            broker.send(publisher, &[0x62, 2, 0, 7]);
        }
        let sent = came(&mut broker, first);
        assert_eq!(sent.len(), MESSAGES);
        // Some are settled, out of order; some are in the client's hands.
        let (settled, taken) = ([3, 7, 100], [0, 5]);
        for number in settled {
            let id = sent[number].1;
            if qos == QoS::ExactlyOnce {
                answer(&mut broker, first, 0x50, id);
                answer(&mut broker, first, 0x70, id);
            } else {
                answer(&mut broker, first, 0x40, id);
            }
        }
        if qos == QoS::ExactlyOnce {
            for number in taken {
                answer(&mut broker, first, 0x50, sent[number].1);
            }
        }
        broker.cut(first);
        assert_eq!(unsettled(&broker), MESSAGES - settled.len());
        resident(&mut broker, 85, Stage::MoveToLog);
        broker.advance(5_000);
        let kept = if qos == QoS::ExactlyOnce {
            taken.len()
        } else {
            0
        };
        assert_eq!(unsettled(&broker), kept, "they are in the log");
        resident(&mut broker, 10, Stage::Normal);
        if restarts {
            broker.advance(60_000);
            broker = broker_of();
        }
        let second = reader(&mut broker);
        let mut rest = came(&mut broker, second);
        let is_done = |number: &usize| {
            settled.contains(number) || qos == QoS::ExactlyOnce && taken.contains(number)
        };
        let expected: Vec<_> = (sent.iter().enumerate())
            .filter(|(number, _)| !is_done(number))
            .map(|(_, (text, id, _))| (text.clone(), *id, true))
            .collect();
        while rest.len() < expected.len() {
            broker.advance(10);
            let more = came(&mut broker, second);
            assert!(!more.is_empty(), "{} came", rest.len());
            rest.extend(more);
        }
        assert_eq!(rest, expected, "{qos:?}, restarts: {restarts}");
    }
}

/// Few messages may be large.
#[test]
fn a_few_large_messages_leave_memory_as_well() {
    let store = Held::new();
    let mut broker = Broker::restored(&config(), 1, Limits::default(), || Box::new(store.clone()));
    let first = reader(&mut broker);
    broker.take(first);
    broker.subscribe(first, V5, "t", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "publisher");
    let large = |number: usize| format!("{number}{}", "x".repeat(100_000));
    for number in 0..3 {
        broker.publish(publisher, V5, "t", &large(number), QoS::AtLeastOnce);
    }
    assert_eq!(came(&mut broker, first).len(), 3);
    broker.cut(first);
    resident(&mut broker, 85, Stage::MoveToLog);
    broker.advance(5_000);
    assert_eq!(unsettled(&broker), 0);
    resident(&mut broker, 10, Stage::Normal);
    let second = reader(&mut broker);
    let texts: Vec<String> = (came(&mut broker, second).into_iter())
        .map(|(text, ..)| text)
        .collect();
    assert_eq!(texts, (0..3).map(large).collect::<Vec<_>>());
}

/// Many may be away, each with one message that is not settled.
#[test]
fn a_little_leaves_memory_when_messages_are_dropped() {
    let store = Held::new();
    let mut broker = Broker::restored(&config(), 1, Limits::default(), || Box::new(store.clone()));
    let first = reader(&mut broker);
    broker.take(first);
    broker.subscribe(first, V5, "t", QoS::AtLeastOnce);
    let publisher = broker.client(V5, "publisher");
    broker.publish(publisher, V5, "t", "one", QoS::AtLeastOnce);
    assert_eq!(came(&mut broker, first).len(), 1);
    broker.cut(first);
    resident(&mut broker, 85, Stage::MoveToLog);
    broker.advance(5_000);
    assert_eq!(unsettled(&broker), 1);
    resident(&mut broker, 91, Stage::Drop);
    broker.advance(5_000);
    assert_eq!(unsettled(&broker), 0);
    resident(&mut broker, 10, Stage::Normal);
    let second = reader(&mut broker);
    let texts: Vec<String> = (came(&mut broker, second).into_iter())
        .map(|(text, ..)| text)
        .collect();
    assert_eq!(texts, ["one"]);
}

/// Attaches a link that lasts, with what its client has not settled.
fn attach(
    client: &mut AmqpClient,
    broker: &mut Broker,
    mode: ReceiverSettleMode,
    unsettled: Option<&[Unsettled]>,
) -> (SessionId, LinkId) {
    let session = client.begin(broker);
    let source = Source {
        durable: TerminusDurability::UnsettledState,
        expiry_policy: TerminusExpiryPolicy::Never,
        ..Source::new("t")
    };
    let options = AttachOptions {
        rcv_settle_mode: mode,
        unsettled: unsettled.unwrap_or_default(),
        recover: unsettled.is_some(),
        source: Some(source),
        target: Some(TargetArchetype::Target(Target::default())),
        ..AttachOptions::default()
    };
    let link = client.attach(broker, session, "sub", Role::Receiver, &options);
    client.credit(broker, link, MESSAGES as u32);
    (session, link)
}

/// A link of AMQP is told by places what it has settled second; what it has settled first comes again, as after a restart.
#[test]
fn what_was_sent_to_a_link_that_is_away_leaves_memory() {
    for (mode, accepted_come_again) in [
        (ReceiverSettleMode::Second, false),
        (ReceiverSettleMode::First, true),
    ] {
        let store = Held::new();
        let mut broker =
            Broker::restored(&config(), 1, Limits::default(), || Box::new(store.clone()));
        broker.listener = AMQP;
        let mut first = AmqpClient::connect(&mut broker, "c");
        let (session, _) = attach(&mut first, &mut broker, mode, None);
        broker.listener = MQTT;
        let publisher = broker.client(V5, "publisher");
        for number in 0..MESSAGES {
            broker.publish(publisher, V5, "t", &number.to_string(), QoS::AtLeastOnce);
        }
        first.turn(&mut broker);
        assert_eq!(first.received.len(), MESSAGES, "{mode:?}");
        // It has accepted two, and the broker has not heard of it.
        for number in [0, 7] {
            let id = first.received[number].id;
            let accepted = DeliveryState::ACCEPTED;
            (first.engine)
                .dispose(session, (id, id), Some(&accepted), false, &mut first.out)
                .expect("a delivery");
        }
        let left = first.cut(&mut broker).pop().expect("the link").1;
        assert_eq!((left.len(), unsettled(&broker)), (MESSAGES, MESSAGES));
        resident(&mut broker, 85, Stage::MoveToLog);
        broker.advance(5_000);
        assert_eq!(unsettled(&broker), 0, "{mode:?}: they are in the log");
        resident(&mut broker, 10, Stage::Normal);
        broker.listener = AMQP;
        let mut second = AmqpClient::connect(&mut broker, "c");
        let (_, link) = attach(&mut second, &mut broker, mode, Some(&left));
        // What is settled for it has used its credit.
        second.credit(&mut broker, link, MESSAGES as u32);
        for _ in 0..100 {
            broker.advance(10);
            second.turn(&mut broker);
        }
        let expected: Vec<String> = (0..MESSAGES)
            .filter(|number| accepted_come_again || ![0, 7].contains(number))
            .map(|number| number.to_string())
            .collect();
        assert_eq!(second.texts(), expected, "{mode:?}");
    }
}

/// The ids and texts of messages in an answer to a poll of HTTP.
fn polled(broker: &mut Broker, query: &str) -> Vec<(u64, String)> {
    broker.listener = HTTP;
    let peer = broker.open();
    let request = format!(
        "GET /v1/topics/t?session=n&wait=0s&max={MESSAGES}{query} HTTP/1.1\r\nHost: localhost\r\n\
         Accept: application/json\r\nConnection: close\r\n\r\n"
    );
    broker.send(peer, request.as_bytes());
    for _ in 0..10 {
        broker.advance(10);
    }
    let answer = String::from_utf8(broker.take(peer)).expect("text");
    let Some(start) = answer.find('[') else {
        return Vec::new();
    };
    let end = answer.rfind(']').expect("an array");
    let messages: Vec<serde_json::Value> =
        serde_json::from_str(&answer[start..=end]).expect("messages");
    let text = |message: &serde_json::Value| message["payload"].as_str().expect("text").to_owned();
    (messages.iter())
        .map(|message| (message["id"].as_u64().expect("an id"), text(message)))
        .collect()
}

/// A client of HTTP acknowledges by the ids that it knows, and what it does not acknowledge has new ones.
#[test]
fn what_was_sent_to_a_session_of_http_leaves_memory() {
    let store = Held::new();
    let mut broker = Broker::restored(&config(), 1, Limits::default(), || Box::new(store.clone()));
    assert!(polled(&mut broker, "").is_empty());
    broker.listener = MQTT;
    let publisher = broker.client(V5, "publisher");
    for number in 0..MESSAGES {
        broker.publish(publisher, V5, "t", &number.to_string(), QoS::AtLeastOnce);
    }
    let sent = polled(&mut broker, "");
    assert_eq!(sent.len(), MESSAGES);
    assert_eq!(unsettled(&broker), MESSAGES);
    resident(&mut broker, 85, Stage::MoveToLog);
    broker.advance(5_000);
    assert_eq!(unsettled(&broker), 0, "they are in the log");
    resident(&mut broker, 10, Stage::Normal);
    broker.listener = HTTP;
    let peer = broker.open();
    let ids = format!("{{\"ids\":[{},{}]}}", sent[20].0, sent[50].0);
    let request = format!(
        "POST /v1/sessions/n/ack HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{ids}",
        ids.len()
    );
    broker.send(peer, request.as_bytes());
    let answer = String::from_utf8(broker.take(peer)).expect("text");
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    let rest = polled(&mut broker, &format!("&after={}", sent[9].0));
    let texts: Vec<&str> = rest.iter().map(|(_, text)| &text[..]).collect();
    let expected: Vec<&str> = (sent.iter().enumerate())
        .filter(|(number, _)| *number > 9 && ![20, 50].contains(number))
        .map(|(_, (_, text))| &text[..])
        .collect();
    assert_eq!(texts, expected);
    assert!(rest[0].0 > sent[MESSAGES - 1].0, "they have new ids");
}

/// A reader that settles nothing has what it may have after a few reads, however long messages are, and the log is not read
/// for it in a circle.
#[test]
fn a_slow_reader_of_long_messages_is_read_for_once() {
    for (body_bytes, is_short) in [
        (20_000, false),
        (20_000, true),
        (300_000, false),
        (300_000, true),
    ] {
        let store = Held::new();
        let mut broker =
            Broker::restored(&config(), 1, Limits::default(), || Box::new(store.clone()));
        let reader = super::kept(&mut broker, "reader");
        broker.subscribe(reader, V5, "t", QoS::AtLeastOnce);
        broker.cut(reader);
        let publisher = broker.client(V5, "publisher");
        for _ in 0..200 {
            broker.publish(
                publisher,
                V5,
                "t",
                &"x".repeat(body_bytes),
                QoS::AtLeastOnce,
            );
        }
        let reader = super::come_back(&mut broker, "reader");
        if is_short {
            resident(&mut broker, 85, Stage::MoveToLog);
        }
        broker.advance(5_000);
        assert_eq!(super::came(&mut broker, reader).len(), 4);
        let reads = store.reads.load(Ordering::Relaxed);
        broker.advance(60_000);
        let more = store.reads.load(Ordering::Relaxed) - reads;
        assert!(more <= 2, "{body_bytes} {is_short}: {more} more reads");
    }
}

/// Sessions that come back together share what they read, and memory is not short.
#[test]
fn what_many_read_counts_once() {
    const SESSIONS: usize = 300;
    let store = Held::new();
    let mut broker = Broker::restored(&config(), 1, Limits::default(), || Box::new(store.clone()));
    let name = |number: usize| format!("reader{number}");
    for number in 0..SESSIONS {
        let reader = super::kept(&mut broker, &name(number));
        broker.subscribe(reader, V5, "t", QoS::AtLeastOnce);
        broker.cut(reader);
    }
    let publisher = broker.client(V5, "publisher");
    let text = "x".repeat(1_000);
    for _ in 0..300 {
        broker.publish(publisher, V5, "t", &text, QoS::AtLeastOnce);
    }
    for number in 0..SESSIONS {
        let reader = super::come_back(&mut broker, &name(number));
        broker.advance(10);
        assert_eq!(super::came(&mut broker, reader).len(), 4);
        let stage = broker.memory.stage();
        assert_eq!(stage, Stage::Normal, "with {number} of them");
    }
    assert!(super::waiting(&broker) > 200 * SESSIONS);
}
