//! Replays the table of malformed and out-of-order sequences against the engine.

use std::collections::BTreeSet;

use bytes::BytesMut;
use sterna_mqtt::server::{Accept, Connection, Event, Limits, OutgoingPublish};
use sterna_mqtt::{
    Framer, Lane, MAX_PACKET_BYTES, MqttSession, Packet, QoS, ReasonCode, Version, Violation, topic,
};

#[path = "../malformed/mod.rs"]
pub(crate) mod table;

use table::{Case, Expect, Step};

/// The least of a broker: one client, which gets what it publishes.
struct Loopback {
    connection: Connection,
    session: MqttSession,
    framer: Framer,
    subscriptions: Vec<(String, QoS)>,
    out: BytesMut,
}

impl Loopback {
    fn new() -> Self {
        Self {
            connection: Connection::new(Limits::default(), 0),
            session: MqttSession::new(),
            framer: Framer::new(),
            subscriptions: Vec::new(),
            out: BytesMut::new(),
        }
    }

    fn input(&mut self, mut bytes: &[u8]) {
        while let Err(violation) = self.turn(&mut bytes) {
            self.connection.violation(&violation, &mut self.out);
        }
    }

    /// Until the input is used up, or the first violation.
    fn turn(&mut self, bytes: &mut &[u8]) -> Result<(), Violation> {
        let lane = Lane::CONTROL;
        while !self.connection.is_closed() {
            let max_packet_bytes = self.connection.max_packet_bytes();
            let frame = match self.framer.next(bytes, max_packet_bytes) {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    return self
                        .framer
                        .partial()
                        .map_or(Ok(()), |first| self.connection.check_partial(lane, first));
                }
                Err(error) => return Err(self.connection.decode_failed(lane, error)),
            };
            let session = Some(&mut self.session);
            match self
                .connection
                .receive(session, lane, &frame, 0, &mut self.out)?
            {
                Some(Event::Connect(_)) => self
                    .connection
                    .accept(&mut self.session, &Accept::default(), 0, &mut self.out)
                    .expect("fits"),
                Some(Event::Publish(publish)) => {
                    let reason = ReasonCode::Success;
                    match (publish.packet_id, publish.qos) {
                        (Some(id), QoS::AtLeastOnce) => {
                            self.connection.puback(lane, id, reason, &mut self.out);
                        }
                        (Some(id), _) => {
                            let session = &mut self.session;
                            self.connection
                                .pubrec(session, lane, id, reason, &mut self.out);
                        }
                        _ => {}
                    }
                    for (filter, qos) in &self.subscriptions {
                        if topic::matches(filter, &publish.topic) {
                            let delivery = OutgoingPublish {
                                tag: 1,
                                lane,
                                qos: publish.qos.min(*qos),
                                packet_id: None,
                                dup: false,
                                retain: false,
                                topic: publish.topic.as_bytes(),
                                properties: &[],
                                expires_at_ms: None,
                                identifiers: &[],
                                payload: publish.payload,
                            };
                            let session = &mut self.session;
                            self.connection
                                .publish(session, &delivery, 0, &mut self.out)
                                .expect("can be sent");
                        }
                    }
                }
                Some(Event::Subscribe(subscribe)) => {
                    let mut codes = Vec::new();
                    for (filter, options) in subscribe.filters() {
                        self.subscriptions.push((filter.to_owned(), options.qos));
                        codes.push(ReasonCode::granted(options.qos));
                    }
                    self.connection
                        .suback(lane, subscribe.packet_id, &codes, &mut self.out);
                }
                Some(Event::Unsubscribe(unsubscribe)) => {
                    let codes = vec![ReasonCode::NoSubscriptionExisted; unsubscribe.len()];
                    self.connection
                        .unsuback(lane, unsubscribe.packet_id, &codes, &mut self.out);
                }
                Some(Event::HandedOver {
                    packet_id, reason, ..
                }) => self
                    .connection
                    .pubrel(lane, packet_id, reason, &mut self.out),
                Some(Event::Released {
                    packet_id, reason, ..
                }) => {
                    self.connection
                        .pubcomp(lane, packet_id, reason, &mut self.out);
                }
                Some(Event::Repeated { packet_id }) => self.connection.pubrec(
                    &mut self.session,
                    lane,
                    packet_id,
                    ReasonCode::Success,
                    &mut self.out,
                ),
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes the packets that were sent: first bytes and reason codes.
    fn sent(&mut self, version: Version) -> Vec<(u8, u8)> {
        let written = self.out.split();
        let mut input = &written[..];
        let mut framer = Framer::new();
        let mut sent = Vec::new();
        while let Some(frame) = framer.next(&mut input, MAX_PACKET_BYTES).expect("valid") {
            let packet = Packet::decode(&frame, version).expect("valid");
            let code = match packet {
                Packet::ConnAck(_) => frame.body()[1],
                Packet::Disconnect(packet) => packet.reason as u8,
                _ => 0,
            };
            sent.push((frame.first_byte(), code));
        }
        sent
    }
}

/// Runs a case, its bytes cut into pieces of `piece_bytes`.
fn run(case: &Case, piece_bytes: usize) {
    let version = match case.version {
        3 => Version::V31,
        4 => Version::V311,
        _ => Version::V5,
    };
    let name = format!("{} in {version}, pieces of {piece_bytes}", case.name);
    let mut server = Loopback::new();
    let mut sent = Vec::new();
    for step in &case.steps {
        match step {
            Step::Send(bytes) => {
                for piece in bytes.chunks(piece_bytes) {
                    server.input(piece);
                }
                sent.extend(server.sent(version));
            }
            Step::Wait(first) => {
                assert!(
                    sent.iter().any(|packet| packet.0 & 0xf0 == *first),
                    "{name}: {sent:x?}"
                );
            }
        }
    }
    let connack = sent
        .iter()
        .find(|packet| packet.0 == 0x20)
        .map(|packet| packet.1);
    let disconnect = sent
        .iter()
        .find(|packet| packet.0 == 0xe0)
        .map(|packet| packet.1);
    let closed = server.connection.is_closed();
    match case.expect {
        Expect::ConnAck(code) => {
            assert_eq!(
                (connack, disconnect, closed),
                (Some(code), None, true),
                "{name}"
            );
        }
        Expect::Disconnect(code) => {
            let expected = (version == Version::V5).then_some(code);
            assert_eq!(
                (connack, disconnect, closed),
                (Some(0), expected, true),
                "{name}"
            );
        }
        Expect::Close => {
            assert_eq!((disconnect, closed), (None, true), "{name}");
            assert_eq!(connack.unwrap_or(0), 0, "{name}");
        }
        Expect::Alive => {
            server.input(b"\xc0\x00");
            assert_eq!(server.sent(version), [(0xd0, 0)], "{name}");
        }
    }
    if case.expect != Expect::Alive {
        let last = sent.last().map(|packet| packet.0);
        if case.expect == Expect::Disconnect(0) {
            assert_eq!(last, Some(0xe0), "{name}");
        }
        // [MQTT-3.14.4-1] [MQTT-4.13.1-1] [MQTT311-4.8.0-1] nothing more is processed
        server.input(b"\xc0\x00\x30\x04\x00\x01t\x00");
        assert_eq!(server.sent(version), [], "{name}");
    }
}

/// Replays the sequences of the table that show one of these statements.
pub(crate) fn replay(statements: &[&str]) {
    let cases = table::cases();
    for statement in statements {
        let mut found = 0;
        for case in cases
            .iter()
            .filter(|case| case.statements.iter().any(|s| s == statement))
        {
            run(case, usize::MAX);
            found += 1;
        }
        assert!(found > 0, "no sequence shows {statement}");
    }
}

/// Every sequence ends as the specification asks, however its bytes arrive.
#[test]
fn table_of_malformed_sequences() {
    let cases = table::cases();
    assert!(cases.len() >= 150, "{} cases", cases.len());
    let names: BTreeSet<_> = cases
        .iter()
        .map(|case| (&case.name, case.version))
        .collect();
    assert_eq!(names.len(), cases.len(), "names are unique");
    for case in &cases {
        assert!(!case.statements.is_empty(), "{} cites nothing", case.name);
        run(case, usize::MAX);
        run(case, 1);
        run(case, 7);
    }
    println!("{} cases", cases.len());
}
