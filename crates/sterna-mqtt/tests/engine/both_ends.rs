//! The client's engine against the server's, over connections that break at any byte.
//!
//! Messages go both ways with every QoS. Whatever happens, QoS 2 arrives exactly once and in order,
//! QoS 1 at least once and first in order, QoS 0 at most once and in order, and every sender learns
//! of its success once. A client's process may die, and another one goes on with its session and
//! with nothing else: then messages to the client may come to both.
#![allow(clippy::unwrap_used)] // it is all test

use std::collections::BTreeMap;

use bytes::{Buf as _, BytesMut};
use proptest::prelude::*;
use sterna_mqtt::packet::Connect;
use sterna_mqtt::{
    Framer, Lane, MqttSession, PacketId, Properties, Property, PropertyBuf, QoS, ReasonCode,
    Version, client, server,
};

const NOW_MS: u64 = 1_000;
/// Small, so that the windows are full most of the time.
const RECEIVE_MAXIMUM: u16 = 3;

#[derive(Clone, Copy, Debug)]
enum Action {
    ClientPublishes(u8),
    ServerPublishes(u8),
    BytesToServer(usize),
    BytesToClient(usize),
    /// The client is done with a message that it received.
    ClientAcknowledges,
    Break,
    /// Another process takes the place of the client's.
    Die,
}

/// An action of the bounds of `deaths`.
fn action(deaths: u32) -> impl Strategy<Value = Action> {
    prop_oneof![
        deaths => Just(Action::Die),
        4 => (0..3_u8).prop_map(Action::ClientPublishes),
        4 => (0..3_u8).prop_map(Action::ServerPublishes),
        6 => (1..60_usize).prop_map(Action::BytesToServer),
        6 => (1..60_usize).prop_map(Action::BytesToClient),
        3 => Just(Action::ClientAcknowledges),
        1 => Just(Action::Break),
    ]
}

/// What one side has published, and what the other has received.
#[derive(Default)]
struct Traffic {
    /// Messages up to now.
    count: u64,
    /// Published messages by tag, with those that wait for their turn.
    published: BTreeMap<u64, QoS>,
    waiting: Vec<u64>,
    received: Vec<u64>,
    delivered: Vec<u64>,
    handed_over: Vec<u64>,
}

impl Traffic {
    fn new_message(&mut self, qos: u8) {
        self.count += 1;
        let tag = self.count;
        self.published.insert(tag, QoS::from_u8(qos).unwrap());
        self.waiting.push(tag);
    }

    fn of(&self, tags: &[u64], qos: QoS) -> Vec<u64> {
        tags.iter()
            .copied()
            .filter(|tag| self.published[tag] == qos)
            .collect()
    }

    /// The sender's process is gone, and all that the receiver does not have.
    fn sender_died(&mut self) {
        let received = &self.received;
        self.published.retain(|tag, _| received.contains(tag));
        self.waiting.clear();
        self.handed_over.clear();
        // Nobody is told any more.
        let acknowledged = |tag: &u64| self.published[tag].is_acknowledged();
        self.delivered = self
            .published
            .keys()
            .copied()
            .filter(acknowledged)
            .collect();
    }

    fn check(&self, direction: &str) {
        let published: Vec<u64> = self.published.keys().copied().collect();
        let exactly = self.of(&self.received, QoS::ExactlyOnce);
        assert_eq!(
            exactly,
            self.of(&published, QoS::ExactlyOnce),
            "{direction}: QoS 2"
        );
        let mut at_least = self.of(&self.received, QoS::AtLeastOnce);
        let mut seen = std::collections::BTreeSet::new();
        at_least.retain(|tag| seen.insert(*tag));
        assert_eq!(
            at_least,
            self.of(&published, QoS::AtLeastOnce),
            "{direction}: QoS 1"
        );
        let at_most = self.of(&self.received, QoS::AtMostOnce);
        assert!(
            at_most.is_sorted_by(|a, b| a < b),
            "{direction}: QoS 0 {at_most:?}"
        );
        let mut delivered = self.delivered.clone();
        delivered.sort_unstable();
        let mut expected = published;
        expected.retain(|tag| self.published[tag].is_acknowledged());
        assert_eq!(delivered, expected, "{direction}: told once");
        let mut handed_over = self.handed_over.clone();
        handed_over.dedup();
        assert_eq!(
            handed_over, self.handed_over,
            "{direction}: handed over once"
        );
    }
}

struct World {
    client: client::Connection,
    client_session: MqttSession,
    client_framer: Framer,
    server: server::Connection,
    server_session: MqttSession,
    server_framer: Framer,
    to_server: BytesMut,
    to_client: BytesMut,
    /// Messages that the client has received and not acknowledged yet, by their tags.
    unacknowledged: Vec<(PacketId, u64)>,
    /// Tags of those that it has acknowledged.
    acknowledged: std::collections::BTreeSet<u64>,
    up: Traffic,
    down: Traffic,
    /// The client's process has died.
    has_died: bool,
}

fn limits() -> server::Limits {
    server::Limits {
        receive_maximum: RECEIVE_MAXIMUM.try_into().unwrap(),
        ..server::Limits::default()
    }
}

fn open(session: &mut MqttSession, out: &mut BytesMut) -> client::Connection {
    let mut properties = PropertyBuf::new();
    properties
        .push(Property::ReceiveMaximum(RECEIVE_MAXIMUM))
        .unwrap();
    properties
        .push(Property::SessionExpiryInterval(60))
        .unwrap();
    properties.push(Property::TopicAliasMaximum(2)).unwrap();
    let connect = Connect {
        version: Version::V5,
        clean_start: false,
        keep_alive_s: 0,
        client_id: "c",
        will: None,
        user_name: None,
        password: None,
        properties: properties.properties(),
    };
    let known = client::ServerLimits {
        receive_maximum: RECEIVE_MAXIMUM,
        ..client::ServerLimits::EARLY
    };
    client::Connection::open(&connect, true, known, session, NOW_MS, out).unwrap()
}

impl World {
    fn new() -> Self {
        let (mut client_session, mut to_server) = (MqttSession::new(), BytesMut::new());
        Self {
            client: open(&mut client_session, &mut to_server),
            client_session,
            client_framer: Framer::new(),
            server: server::Connection::new(limits(), NOW_MS),
            server_session: MqttSession::new(),
            server_framer: Framer::new(),
            to_server,
            to_client: BytesMut::new(),
            unacknowledged: Vec::new(),
            acknowledged: std::collections::BTreeSet::new(),
            up: Traffic::default(),
            down: Traffic::default(),
            has_died: false,
        }
    }

    /// Another process goes on with the client's session.
    fn die(&mut self) {
        self.has_died = true;
        self.client_session = MqttSession::inherited();
        self.unacknowledged.clear();
        self.up.sender_died();
        self.reconnect();
    }

    /// Everything under way is lost; both ends start a new connection with what they remember.
    fn reconnect(&mut self) {
        self.to_server.clear();
        self.to_client.clear();
        self.client_framer = Framer::new();
        self.server_framer = Framer::new();
        // QoS 1 comes again. QoS 2 does not, so the application still has to acknowledge it.
        let published = &self.down.published;
        self.unacknowledged
            .retain(|(_, tag)| published[tag] == QoS::ExactlyOnce);
        self.server = server::Connection::new(limits(), NOW_MS);
        self.client = open(&mut self.client_session, &mut self.to_server);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::ClientPublishes(qos) => self.up.new_message(qos),
            Action::ServerPublishes(qos) => self.down.new_message(qos),
            Action::BytesToServer(count) => self.bytes_to_server(count),
            Action::BytesToClient(count) => self.bytes_to_client(count),
            Action::ClientAcknowledges => {
                if !self.unacknowledged.is_empty() {
                    // The last one first: the engine keeps the order.
                    let (packet_id, tag) = self.unacknowledged.pop().unwrap();
                    self.acknowledged.insert(tag);
                    self.client.acknowledge(
                        &mut self.client_session,
                        packet_id,
                        ReasonCode::Success,
                        &mut self.to_server,
                    );
                }
            }
            Action::Break => self.reconnect(),
            Action::Die => self.die(),
        }
        self.client_sends();
        self.server_sends();
    }

    fn client_sends(&mut self) {
        let publication = |tag: &str, qos| client::Publication {
            topic: "from/the/client",
            payload: tag.to_owned().into_bytes().leak(),
            qos,
            retain: false,
            properties: Properties::EMPTY,
        };
        while let Some(outgoing) = self
            .client
            .next_resend(&mut self.client_session, &mut self.to_server)
        {
            let again = publication(&outgoing.tag.to_string(), self.up.published[&outgoing.tag]);
            self.client
                .resend(
                    &mut self.client_session,
                    outgoing,
                    &again,
                    &mut self.to_server,
                )
                .unwrap();
        }
        while let Some(&tag) = self.up.waiting.first() {
            let qos = self.up.published[&tag];
            let message = publication(&tag.to_string(), qos);
            let (session, out) = (&mut self.client_session, &mut self.to_server);
            if !self.client.make_room(session, qos, out) {
                return;
            }
            match self
                .client
                .publish(session, Lane::CONTROL, &message, tag, out)
            {
                Ok(_) => self.up.waiting.remove(0),
                Err(client::SendError::Later) => return,
                Err(error) => panic!("{error}"),
            };
        }
    }

    fn server_sends(&mut self) {
        let delivery = |tag: u64, text: &'static [u8], qos| server::OutgoingPublish {
            tag,
            lane: Lane::CONTROL,
            qos,
            packet_id: None,
            dup: false,
            retain: false,
            topic: b"from/the/server",
            properties: &[],
            expires_at_ms: None,
            identifiers: &[],
            payload: text,
        };
        let text = |tag: u64| -> &'static [u8] { tag.to_string().into_bytes().leak() };
        while let Some(resend) = self
            .server
            .next_resend(&mut self.server_session, &mut self.to_client)
        {
            let again = delivery(resend.tag, text(resend.tag), resend.qos);
            let (session, out) = (&mut self.server_session, &mut self.to_client);
            let sent = self
                .server
                .resend(session, resend.packet_id, &again, NOW_MS, out)
                .unwrap();
            assert!(!sent.append_payload);
        }
        while let Some(&tag) = self.down.waiting.first() {
            let message = delivery(tag, text(tag), self.down.published[&tag]);
            let (session, out) = (&mut self.server_session, &mut self.to_client);
            match self.server.publish(session, &message, NOW_MS, out) {
                Ok(sent) => assert!(!sent.append_payload),
                Err(_) => return,
            }
            self.down.waiting.remove(0);
        }
    }

    fn bytes_to_server(&mut self, count: usize) {
        let bytes = self.to_server.split_to(count.min(self.to_server.len()));
        let mut input = &bytes[..];
        loop {
            let limit = self.server.max_packet_bytes();
            let Some(frame) = self.server_framer.next(&mut input, limit).unwrap() else {
                return;
            };
            let event = self
                .server
                .receive(
                    Some(&mut self.server_session),
                    Lane::CONTROL,
                    &frame,
                    NOW_MS,
                    &mut self.to_client,
                )
                .unwrap();
            match event {
                Some(server::Event::Connect(_)) => {
                    let accept = server::Accept {
                        session_present: true,
                        ..Default::default()
                    };
                    let (session, out) = (&mut self.server_session, &mut self.to_client);
                    self.server.accept(session, &accept, NOW_MS, out).unwrap();
                }
                Some(server::Event::Publish(publish)) => {
                    let tag = std::str::from_utf8(publish.payload)
                        .unwrap()
                        .parse()
                        .unwrap();
                    self.up.received.push(tag);
                    let (lane, success) = (Lane::CONTROL, ReasonCode::Success);
                    match (publish.qos, publish.packet_id) {
                        (QoS::AtLeastOnce, Some(id)) => {
                            self.server.puback(lane, id, success, &mut self.to_client);
                        }
                        (QoS::ExactlyOnce, Some(id)) => {
                            let session = &mut self.server_session;
                            self.server
                                .pubrec(session, lane, id, success, &mut self.to_client);
                        }
                        _ => {}
                    }
                }
                Some(server::Event::Delivered { tag, .. }) => self.down.delivered.push(tag),
                Some(server::Event::HandedOver {
                    tag,
                    packet_id,
                    reason,
                }) => {
                    // Nothing is acknowledged without the application.
                    assert!(tag.is_none_or(|tag| self.acknowledged.contains(&tag)));
                    self.down.handed_over.extend(tag);
                    let out = &mut self.to_client;
                    self.server.pubrel(Lane::CONTROL, packet_id, reason, out);
                }
                Some(server::Event::Released {
                    packet_id, reason, ..
                }) => {
                    let out = &mut self.to_client;
                    self.server.pubcomp(Lane::CONTROL, packet_id, reason, out);
                }
                Some(server::Event::Repeated { packet_id }) => {
                    let (session, out) = (&mut self.server_session, &mut self.to_client);
                    let success = ReasonCode::Success;
                    self.server
                        .pubrec(session, Lane::CONTROL, packet_id, success, out);
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }

    fn bytes_to_client(&mut self, count: usize) {
        let bytes = self.to_client.split_to(count.min(self.to_client.len()));
        let mut input = &bytes[..];
        loop {
            let limit = self.client.max_packet_bytes();
            let Some(frame) = self.client_framer.next(&mut input, limit).unwrap() else {
                break;
            };
            let event = self
                .client
                .receive(
                    &mut self.client_session,
                    Lane::CONTROL,
                    &frame,
                    NOW_MS,
                    &mut self.to_server,
                )
                .unwrap();
            match event {
                Some(client::Event::Publish { publish, topic }) => {
                    assert_eq!(&*topic, "from/the/server");
                    let tag = std::str::from_utf8(publish.payload)
                        .unwrap()
                        .parse()
                        .unwrap();
                    self.down.received.push(tag);
                    let packet_id = publish.packet_id;
                    self.unacknowledged.extend(packet_id.map(|id| (id, tag)));
                }
                Some(client::Event::Delivered { tag, .. }) => self.up.delivered.push(tag),
                Some(client::Event::HandedOver { tag }) => self.up.handed_over.push(tag),
                Some(client::Event::Connected(_)) | None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
        assert!(!input.has_remaining());
    }

    /// Lets everything arrive.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let before = (self.to_server.len(), self.to_client.len());
            self.act(Action::BytesToServer(usize::MAX));
            self.act(Action::BytesToClient(usize::MAX));
            self.act(Action::ClientAcknowledges);
            let idle = before == (0, 0) && self.to_server.is_empty() && self.to_client.is_empty();
            if idle && self.unacknowledged.is_empty() {
                return;
            }
        }
        panic!("it never comes to rest");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// [MQTT-4.3.1-1] [MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.3.3-10]
    /// [MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-4.9.0-2]
    #[test]
    fn promises_hold_over_broken_connections(actions in proptest::collection::vec(action(0), 1..150)) {
        let mut world = World::new();
        for action in actions {
            world.act(action);
        }
        world.settle();
        prop_assert!(!world.has_died);
        prop_assert!(world.up.waiting.is_empty() && world.down.waiting.is_empty());
        world.up.check("to the server");
        world.down.check("to the client");
        prop_assert!(world.client_session.is_empty() && world.server_session.is_empty());
    }

    /// [MQTT-4.3.3-11] A process that holds nothing of its session loses no message of its own, and
    /// none of an earlier process comes twice.
    #[test]
    fn promises_hold_over_processes_that_die(actions in proptest::collection::vec(action(1), 1..150)) {
        let mut world = World::new();
        for action in actions {
            world.act(action);
            world.client_session.check();
        }
        world.settle();
        prop_assert!(world.up.waiting.is_empty() && world.down.waiting.is_empty());
        world.up.check("to the server");
        // Both processes may have got a message that none has acknowledged to the end.
        let mut seen = std::collections::BTreeSet::new();
        world.down.received.retain(|tag| !world.has_died || seen.insert(*tag));
        world.down.check("to the client");
        prop_assert!(world.client_session.is_empty());
    }
}
