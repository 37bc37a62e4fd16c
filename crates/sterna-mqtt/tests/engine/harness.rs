//! A server's end that is driven with packets in the notation of the malformed table.

use std::collections::BTreeMap;
use std::fmt::Write;

use bytes::BytesMut;
use sterna_mqtt::packet::SubscribeOptions;
use sterna_mqtt::server::{Accept, Connection, Event, Limits, NotSent, OutgoingPublish, Sent};
use sterna_mqtt::{
    Framer, Lane, LaneWriter, MqttSession, PacketId, PacketType, QoS, ReasonCode, Version,
    Violation,
};

use super::malformed::table;

/// One buffer per lane.
#[derive(Default)]
pub(crate) struct Buffers(pub(crate) BTreeMap<Lane, BytesMut>);

impl LaneWriter for Buffers {
    fn buffer(&mut self, lane: Lane) -> &mut BytesMut {
        self.0.entry(lane).or_default()
    }
}

/// An event without borrows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    Connect(String),
    Auth(ReasonCode),
    Publish {
        topic: String,
        payload: Vec<u8>,
        qos: QoS,
        packet_id: u16,
        forwarded: Vec<u8>,
    },
    Subscribe(u16, Vec<(String, SubscribeOptions)>),
    Unsubscribe(u16, Vec<String>),
    Delivered(u64, ReasonCode),
    HandedOver(u64),
    Disconnect {
        reason: ReasonCode,
        discards_will: bool,
        session_expiry_s: Option<u32>,
    },
}

impl Seen {
    fn new(event: Event<'_>) -> Self {
        match event {
            Event::Connect(connect) => Self::Connect(connect.client_id.to_owned()),
            Event::Auth(auth) => Self::Auth(auth.reason),
            Event::Publish(publish) => Self::Publish {
                topic: publish.topic.to_string(),
                payload: publish.payload.to_vec(),
                qos: publish.qos,
                packet_id: publish.packet_id.map_or(0, PacketId::get),
                forwarded: publish
                    .properties
                    .forward()
                    .slices()
                    .flatten()
                    .copied()
                    .collect(),
            },
            Event::Subscribe(subscribe) => Self::Subscribe(
                subscribe.packet_id.get(),
                subscribe
                    .filters()
                    .map(|(f, options)| (f.to_owned(), options))
                    .collect(),
            ),
            Event::Unsubscribe(unsubscribe) => Self::Unsubscribe(
                unsubscribe.packet_id.get(),
                unsubscribe.topics().map(str::to_owned).collect(),
            ),
            Event::Delivered { tag, reason } => Self::Delivered(tag, reason),
            Event::HandedOver { tag, .. } => Self::HandedOver(tag.expect("another is answered")),
            Event::Released { .. } | Event::Repeated { .. } => unreachable!("they are answered"),
            Event::Disconnect(disconnect) => Self::Disconnect {
                reason: disconnect.reason,
                discards_will: disconnect.discards_will(),
                session_expiry_s: disconnect.session_expiry_s(),
            },
        }
    }

    /// A publication without properties.
    pub(crate) fn publish(topic: &str, payload: &[u8], qos: QoS, packet_id: u16) -> Self {
        Self::Publish {
            topic: topic.to_owned(),
            payload: payload.to_vec(),
            qos,
            packet_id,
            forwarded: Vec::new(),
        }
    }
}

/// The server's end of a connection and of its session.
pub(crate) struct Server {
    pub(crate) limits: Limits,
    pub(crate) connection: Connection,
    pub(crate) session: MqttSession,
    pub(crate) out: Buffers,
    pub(crate) now_ms: u64,
    /// The topic of the last PUBLISH.
    last_topic: String,
    pub(crate) version: Version,
    framers: BTreeMap<Lane, Framer>,
}

pub(crate) const BOTH: [Version; 2] = [Version::V311, Version::V5];
pub(crate) const ALL: [Version; 3] = [Version::V31, Version::V311, Version::V5];

impl Server {
    /// Before the CONNECT.
    pub(crate) fn new(version: Version, limits: Limits) -> Self {
        Self {
            limits,
            connection: Connection::new(limits, 0),
            session: MqttSession::new(),
            out: Buffers::default(),
            now_ms: 0,
            last_topic: String::new(),
            version,
            framers: BTreeMap::new(),
        }
    }

    /// After the CONNACK of a clean start.
    pub(crate) fn connected(version: Version) -> Self {
        Self::connected_with(version, Limits::default(), "CONNECT")
    }

    pub(crate) fn connected_with(version: Version, limits: Limits, connect: &str) -> Self {
        let mut server = Self::new(version, limits);
        server.send(connect);
        server.accept(&Accept::default());
        server.out.0.clear();
        server
    }

    /// The same session on a new connection, which the client does not start cleanly.
    pub(crate) fn reconnect(&mut self) {
        let connect = match self.version {
            Version::V31 => "10 { s\"MQIsdp\" 03 00 0000 s\"malformed\" }",
            Version::V311 => "10 { s\"MQTT\" 04 00 0000 s\"malformed\" }",
            Version::V5 => "10 { s\"MQTT\" 05 00 0000 { 11 ffffffff } s\"malformed\" }",
        };
        self.reconnect_with(connect);
    }

    pub(crate) fn reconnect_with(&mut self, connect: &str) {
        self.connection = Connection::new(self.limits, self.now_ms);
        self.framers.clear();
        self.out.0.clear();
        self.send(connect);
        self.accept(&Accept {
            session_present: true,
            ..Accept::default()
        });
        self.out.0.clear();
    }

    pub(crate) fn accept(&mut self, accept: &Accept<'_>) {
        self.connection
            .accept(&mut self.session, accept, self.now_ms, &mut self.out)
            .expect("the client takes the CONNACK");
    }

    pub(crate) fn bytes(&self, tokens: &str) -> Vec<u8> {
        table::bytes(tokens, self.version as u8)
    }

    /// Packets that are in order.
    pub(crate) fn send(&mut self, tokens: &str) -> Vec<Seen> {
        self.send_on(0, tokens)
    }

    pub(crate) fn send_on(&mut self, lane: u64, tokens: &str) -> Vec<Seen> {
        self.try_send(lane, tokens).expect("a packet in order")
    }

    /// Packets of which one is a violation.
    pub(crate) fn violate(&mut self, tokens: &str) -> Violation {
        self.violate_on(0, tokens)
    }

    pub(crate) fn violate_on(&mut self, lane: u64, tokens: &str) -> Violation {
        let violation = self.try_send(lane, tokens).expect_err("a violation");
        self.connection.violation(&violation, &mut self.out);
        violation
    }

    fn try_send(&mut self, lane: u64, tokens: &str) -> Result<Vec<Seen>, Violation> {
        let lane = Lane(lane);
        let bytes = self.bytes(tokens);
        let mut input = &bytes[..];
        let framer = self.framers.entry(lane).or_default();
        let mut seen = Vec::new();
        let max_packet_bytes = self.connection.max_packet_bytes();
        loop {
            let frame = match framer.next(&mut input, max_packet_bytes) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    // The lane is of no use any more; a test may open it anew.
                    self.framers.remove(&lane);
                    return Err(self.connection.decode_failed(lane, error));
                }
            };
            let session = Some(&mut self.session);
            // A topic that comes again goes the short way: all must be as on the long one.
            let topic = frame
                .topic_if(&self.last_topic)
                .filter(|_| frame.packet_type() == Some(PacketType::Publish));
            let (now_ms, out) = (self.now_ms, &mut self.out);
            let event =
                (self.connection).receive_known(session, lane, &frame, topic, now_ms, out)?;
            if let Some(Event::Publish(publish)) = &event {
                self.last_topic = publish.topic.to_string();
            }
            let (connection, out) = (&mut self.connection, &mut self.out);
            match event {
                Some(Event::Released {
                    packet_id, reason, ..
                }) => {
                    connection.pubcomp(lane, packet_id, reason, out);
                }
                Some(Event::Repeated { packet_id }) => {
                    let session = &mut self.session;
                    connection.pubrec(session, lane, packet_id, ReasonCode::Success, out);
                }
                Some(Event::HandedOver {
                    tag,
                    packet_id,
                    reason,
                }) => {
                    connection.pubrel(lane, packet_id, reason, out);
                    seen.extend(tag.map(Seen::HandedOver));
                }
                event => seen.extend(event.map(Seen::new)),
            }
        }
        Ok(seen)
    }

    /// What was sent on the control lane since the last look is exactly this.
    pub(crate) fn expect(&mut self, tokens: &str) {
        self.expect_on(0, tokens);
    }

    pub(crate) fn expect_on(&mut self, lane: u64, tokens: &str) {
        let expected = self.bytes(tokens);
        let sent = self.out.buffer(Lane(lane)).split();
        assert_eq!(
            hex(&sent),
            hex(&expected),
            "{} on lane {lane}",
            self.version
        );
    }

    /// Writes a new delivery on the control lane.
    pub(crate) fn deliver(&mut self, delivery: &OutgoingPublish<'_>) -> Result<Sent, NotSent> {
        let out = self.out.buffer(delivery.lane);
        self.connection
            .publish(&mut self.session, delivery, self.now_ms, out)
    }

    /// Repeats everything that is left over of an earlier connection; returns the tags.
    pub(crate) fn resend_all(&mut self, payload: &[u8]) -> Vec<u64> {
        let mut tags = Vec::new();
        loop {
            let out = self.out.buffer(Lane::CONTROL);
            let Some(resend) = self.connection.next_resend(&mut self.session, out) else {
                return tags;
            };
            tags.push(resend.tag);
            let delivery = OutgoingPublish {
                payload,
                ..delivery(resend.tag, resend.qos)
            };
            let out = self.out.buffer(Lane::CONTROL);
            self.connection
                .resend(
                    &mut self.session,
                    resend.packet_id,
                    &delivery,
                    self.now_ms,
                    out,
                )
                .expect("fits");
        }
    }
}

/// A delivery of "x" on topic "t".
pub(crate) const fn delivery(tag: u64, qos: QoS) -> OutgoingPublish<'static> {
    OutgoingPublish {
        tag,
        lane: Lane::CONTROL,
        qos,
        packet_id: None,
        dup: false,
        retain: false,
        topic: b"t",
        properties: &[],
        expires_at_ms: None,
        identifiers: &[],
        payload: b"x",
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x} ");
    }
    text
}
