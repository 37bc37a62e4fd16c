//! The client's end against a server that is made of bytes.

mod authentication;
mod end;
mod incoming;
mod outgoing;
mod quic;
mod robustness;
mod session;
mod start;
mod time;

use bytes::BytesMut;

use super::*;
use crate::packet::{
    Ack, Auth, ConnAck, Connect, Disconnect, Publish, SubscribeOptions, encode_suback,
    encode_unsuback,
};
use crate::session::Stage;
use crate::{
    Answer, Framer, Lane, MAX_PACKET_BYTES, MqttSession, Packet, PacketId, Properties, Property,
    PropertyBuf, PropertyContext, PublishProperties, QoS, ReasonCode, Version, Violation,
};

const NOW_MS: u64 = 1_000_000;

/// A connection with its session and its output.
struct Client {
    connection: Connection,
    session: MqttSession,
    out: BytesMut,
}

/// The events of the tests, without borrows.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Connected { session_present: bool },
    Refused(ReasonCode),
    Challenge(Vec<u8>),
    Reauthenticated,
    Message(String, Vec<u8>),
    HandedOver(u64),
    Delivered(u64, ReasonCode),
    Subscribed(u64, Vec<ReasonCode>),
    Unsubscribed(u64, Vec<ReasonCode>),
    Disconnected(ReasonCode),
}

fn block(properties: &[Property<'_>]) -> PropertyBuf {
    let mut block = PropertyBuf::new();
    for property in properties {
        block.push(*property).unwrap();
    }
    block
}

fn id(packet_id: u16) -> PacketId {
    PacketId::new(packet_id).unwrap()
}

fn connect(properties: &PropertyBuf) -> Connect<'_> {
    Connect {
        version: Version::V5,
        clean_start: false,
        keep_alive_s: 60,
        client_id: "c",
        will: None,
        user_name: None,
        password: None,
        properties: properties.properties(),
    }
}

const fn message(topic: &str, qos: QoS) -> Publication<'_> {
    Publication {
        topic,
        payload: b"x",
        qos,
        retain: false,
        properties: Properties::EMPTY,
    }
}

fn bytes_of(packet: &Packet<'_>, version: Version) -> BytesMut {
    let mut bytes = BytesMut::new();
    packet
        .encode(version, MAX_PACKET_BYTES, &mut bytes)
        .unwrap();
    bytes
}

fn ack(packet: fn(Ack<'static>) -> Packet<'static>, packet_id: u16) -> BytesMut {
    refusal(packet, packet_id, ReasonCode::Success)
}

fn refusal(
    packet: fn(Ack<'static>) -> Packet<'static>,
    packet_id: u16,
    reason: ReasonCode,
) -> BytesMut {
    bytes_of(&packet(Ack::new(id(packet_id), reason)), Version::V5)
}

fn connack(session_present: bool, properties: &[Property<'_>]) -> BytesMut {
    let block = block(properties);
    let packet = ConnAck {
        session_present,
        reason: ReasonCode::Success,
        properties: block.properties(),
    };
    bytes_of(&Packet::ConnAck(packet), Version::V5)
}

fn publish(topic: &str, qos: QoS, packet_id: u16, properties: &[Property<'_>]) -> BytesMut {
    let block = block(properties);
    let packet = Publish {
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id: PacketId::new(packet_id),
        properties: block.publish_properties(PropertyContext::Publish).unwrap(),
        payload: b"x",
    };
    bytes_of(&Packet::Publish(packet), Version::V5)
}

fn auth(reason: ReasonCode, properties: &[Property<'_>]) -> BytesMut {
    let block = block(properties);
    bytes_of(
        &Packet::Auth(Auth {
            reason,
            properties: block.properties(),
        }),
        Version::V5,
    )
}

fn suback(packet_id: u16, codes: &[ReasonCode]) -> BytesMut {
    let mut bytes = BytesMut::new();
    let codes = codes.iter().copied();
    let none = Properties::EMPTY;
    encode_suback(
        Version::V5,
        id(packet_id),
        none,
        codes,
        MAX_PACKET_BYTES,
        &mut bytes,
    )
    .unwrap();
    bytes
}

fn unsuback(packet_id: u16, codes: &[ReasonCode]) -> BytesMut {
    let mut bytes = BytesMut::new();
    let codes = codes.iter().copied();
    let none = Properties::EMPTY;
    encode_unsuback(
        Version::V5,
        id(packet_id),
        none,
        codes,
        MAX_PACKET_BYTES,
        &mut bytes,
    )
    .unwrap();
    bytes
}

fn seen(event: &Event<'_>) -> Seen {
    match event {
        Event::Connected(connack) => Seen::Connected {
            session_present: connack.session_present,
        },
        Event::Refused(connack) => Seen::Refused(connack.reason),
        Event::Challenge(auth) => Seen::Challenge(
            auth.properties
                .authentication_data()
                .unwrap_or_default()
                .to_vec(),
        ),
        Event::Reauthenticated(_) => Seen::Reauthenticated,
        Event::Publish { topic, publish } => {
            Seen::Message(topic.to_string(), publish.payload.to_vec())
        }
        Event::HandedOver { tag } => Seen::HandedOver(*tag),
        Event::Delivered { tag, reason, .. } => Seen::Delivered(*tag, *reason),
        Event::Subscribed { tag, codes, .. } => Seen::Subscribed(*tag, codes.clone().collect()),
        Event::Unsubscribed { tag, codes, .. } => Seen::Unsubscribed(*tag, codes.clone().collect()),
        Event::Disconnected(disconnect) => Seen::Disconnected(disconnect.reason),
    }
}

impl Client {
    fn open(connect: &Connect<'_>, holds_session: bool, mut session: MqttSession) -> Self {
        let mut out = BytesMut::new();
        let connection = Connection::open(
            connect,
            holds_session,
            ServerLimits::EARLY,
            &mut session,
            NOW_MS,
            &mut out,
        )
        .unwrap();
        let mut client = Self {
            connection,
            session,
            out,
        };
        let sent = client.sent();
        assert_eq!(sent.len(), 1, "CONNECT alone");
        client
    }

    /// Connected with default settings, the server's CONNACK having these properties.
    fn connected(properties: &[Property<'_>]) -> Self {
        let mut client = Self::open(&connect(&PropertyBuf::new()), false, MqttSession::new());
        let connected = client.feed(&connack(false, properties)).unwrap();
        assert_eq!(
            connected,
            [Seen::Connected {
                session_present: false
            }]
        );
        client
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Seen>, Violation> {
        let mut framer = Framer::new();
        let mut rest = bytes;
        let mut events = Vec::new();
        while let Some(frame) = framer.next(&mut rest, MAX_PACKET_BYTES).unwrap() {
            let event = self.connection.receive(
                &mut self.session,
                Lane::CONTROL,
                &frame,
                NOW_MS,
                &mut self.out,
            )?;
            events.extend(event.as_ref().map(seen));
        }
        Ok(events)
    }

    /// Packets written since the last call, one line each.
    fn sent(&mut self) -> Vec<String> {
        let bytes = self.out.split();
        let mut framer = Framer::new();
        let mut rest = &bytes[..];
        let mut packets = Vec::new();
        while let Some(frame) = framer.next(&mut rest, MAX_PACKET_BYTES).unwrap() {
            packets.push(
                match Packet::decode(&frame, self.connection.version()).unwrap() {
                    Packet::Publish(publish) => {
                        let dup = if publish.dup { " again" } else { "" };
                        let alias = publish
                            .properties
                            .topic_alias()
                            .map_or(String::new(), |alias| format!(" alias {alias}"));
                        let packet_id = publish.packet_id.map_or(0, PacketId::get);
                        format!("PUBLISH {packet_id} '{}'{alias}{dup}", publish.topic)
                    }
                    Packet::PubAck(ack) => format!("PUBACK {} {:?}", ack.packet_id, ack.reason),
                    Packet::PubRec(ack) => format!("PUBREC {} {:?}", ack.packet_id, ack.reason),
                    Packet::PubRel(ack) => format!("PUBREL {} {:?}", ack.packet_id, ack.reason),
                    Packet::PubComp(ack) => format!("PUBCOMP {} {:?}", ack.packet_id, ack.reason),
                    Packet::Subscribe(subscribe) => format!("SUBSCRIBE {}", subscribe.packet_id),
                    Packet::Unsubscribe(packet) => format!("UNSUBSCRIBE {}", packet.packet_id),
                    Packet::Disconnect(disconnect) => format!("DISCONNECT {:?}", disconnect.reason),
                    Packet::Auth(auth) => format!("AUTH {:?}", auth.reason),
                    other => format!("{:?}", other.packet_type()),
                },
            );
        }
        assert!(rest.is_empty());
        packets
    }

    fn publish(&mut self, topic: &str, qos: QoS, tag: u64) -> Result<(), SendError> {
        self.send(&message(topic, qos), tag)
    }

    fn send(&mut self, publication: &Publication<'_>, tag: u64) -> Result<(), SendError> {
        self.connection
            .publish(
                &mut self.session,
                Lane::CONTROL,
                publication,
                tag,
                &mut self.out,
            )
            .map(|_| ())
    }

    fn make_room(&mut self, qos: QoS) -> bool {
        self.connection
            .make_room(&mut self.session, qos, &mut self.out)
    }

    fn subscribe(&mut self, filters: &[&str], tag: u64) -> Result<PacketId, SendError> {
        let options = SubscribeOptions::new(QoS::ExactlyOnce);
        let filters = filters.iter().map(|filter| (*filter, options));
        let none = Properties::EMPTY;
        self.connection
            .subscribe(&mut self.session, filters, none, tag, &mut self.out)
    }

    fn acknowledge(&mut self, packet_id: u16, reason: ReasonCode) {
        self.connection
            .acknowledge(&mut self.session, id(packet_id), reason, &mut self.out);
    }

    fn violation(&mut self, bytes: &[u8]) -> (ReasonCode, Vec<String>) {
        let violation = self.feed(bytes).unwrap_err();
        self.connection.violation(&violation, &mut self.out);
        assert!(self.connection.is_closed());
        (violation.reason, self.sent())
    }

    /// The same session on a new connection.
    fn reconnect(self, session_present: bool) -> Self {
        let mut client = Self::open(&connect(&PropertyBuf::new()), true, self.session);
        client.feed(&connack(session_present, &[])).unwrap();
        client
    }

    fn resend_all(&mut self) -> Vec<u64> {
        let mut tags = Vec::new();
        while let Some(outgoing) = self
            .connection
            .next_resend(&mut self.session, &mut self.out)
        {
            let qos = match outgoing.stage {
                Stage::PublishQoS1 => QoS::AtLeastOnce,
                _ => QoS::ExactlyOnce,
            };
            let again = message("again", qos);
            self.connection
                .resend(&mut self.session, outgoing, &again, &mut self.out)
                .unwrap();
            tags.push(outgoing.tag);
        }
        tags
    }
}
