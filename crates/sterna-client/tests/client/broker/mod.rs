//! A broker that does what a test tells it to, one packet at a time.
#![allow(clippy::unwrap_used, dead_code)] // it is all test, and each test file uses a part

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sterna_client::{Client, Events, Options, PropertyBuf, QoS, ReasonCode, Version};
use sterna_mqtt::packet::{
    Ack, ConnAck, Packet, Publish, SubscribeOptions, encode_suback, encode_unsuback,
};
use sterna_mqtt::{Framer, MAX_PACKET_BYTES, PacketId, Properties, Property, PublishProperties};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::patience::PATIENCE;

/// What the broker received, without borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Connect {
        clean_start: bool,
        client_id: String,
        user: Option<String>,
        data: Option<Vec<u8>>,
    },
    Publish {
        id: u16,
        topic: String,
        payload: Vec<u8>,
        qos: QoS,
        dup: bool,
    },
    Subscribe {
        id: u16,
        filters: Vec<String>,
    },
    Unsubscribe {
        id: u16,
    },
    PubAck(u16),
    PubRec(u16),
    PubRel(u16),
    PubComp(u16),
    PingReq,
    Auth {
        reason: ReasonCode,
        data: Vec<u8>,
    },
    Disconnect(ReasonCode),
    Closed,
}

pub(crate) struct Listener(TcpListener);

impl Listener {
    pub(crate) async fn new() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn at(address: SocketAddr) -> Self {
        Self(TcpListener::bind(address).await.unwrap())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    pub(crate) fn options(&self) -> Options {
        let mut options = Options::new(format!("mqtt://{}", self.address()).parse().unwrap());
        let backoff = sterna_client::Backoff {
            min: Duration::from_millis(10),
            max: Duration::from_millis(50),
            max_attempts: None,
        };
        options.reconnect = Some(backoff);
        options
    }

    pub(crate) async fn accept(&self) -> Broker<TcpStream> {
        let accepted = tokio::time::timeout(PATIENCE, self.0.accept()).await;
        Broker::new(accepted.expect("a connection in time").unwrap().0)
    }

    /// Accepts a connection and its CONNECT.
    pub(crate) async fn accept_connected(&self, session_present: bool) -> Broker<TcpStream> {
        let mut broker = self.accept().await;
        assert!(matches!(broker.next().await, Got::Connect { .. }));
        broker.connack(session_present, &[]).await;
        broker
    }
}

/// A client with its connection at the broker.
pub(crate) async fn connected(
    options: Options,
    listener: &Listener,
) -> (Client, Events, Broker<TcpStream>) {
    let (client, events) = Client::start(options).unwrap();
    let broker = listener.accept_connected(false).await;
    client.connected().await.unwrap();
    (client, events, broker)
}

pub(crate) struct Broker<S> {
    pub(crate) stream: S,
    framer: Framer,
    input: Bytes,
    version: Version,
    /// The options in the last SUBSCRIBE.
    pub(crate) options: Vec<SubscribeOptions>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Broker<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            framer: Framer::new(),
            input: Bytes::new(),
            version: Version::V5,
            options: Vec::new(),
        }
    }

    /// The next packet that the client sends.
    pub(crate) async fn next(&mut self) -> Got {
        tokio::time::timeout(PATIENCE, self.read())
            .await
            .expect("a packet in time")
    }

    async fn read(&mut self) -> Got {
        loop {
            let mut rest = &self.input[..];
            let before = rest.len();
            let frame = self.framer.next(&mut rest, MAX_PACKET_BYTES).unwrap();
            let got = frame.map(|frame| {
                let packet = Packet::decode(&frame, self.version).unwrap();
                if let Packet::Connect(connect) = &packet {
                    self.version = connect.version;
                }
                if let Packet::Subscribe(subscribe) = &packet {
                    self.options = subscribe.filters().map(|(_, options)| options).collect();
                }
                got(&packet)
            });
            let used = before - rest.len();
            self.input = self.input.slice(used..);
            if let Some(got) = got {
                return got;
            }
            let mut buffer = BytesMut::with_capacity(1 << 16);
            match self.stream.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return Got::Closed,
                Ok(_) => self.input = buffer.freeze(),
            }
        }
    }

    /// Packets that have arrived together with the last one.
    pub(crate) fn has_more(&self) -> bool {
        !self.input.is_empty()
    }

    pub(crate) async fn send(&mut self, packet: Packet<'_>) {
        let mut bytes = BytesMut::new();
        packet
            .encode(self.version, MAX_PACKET_BYTES, &mut bytes)
            .unwrap();
        self.stream.write_all(&bytes).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    pub(crate) async fn connack(&mut self, session_present: bool, properties: &[Property<'_>]) {
        let block = block(properties);
        let connack = ConnAck {
            session_present,
            reason: ReasonCode::Success,
            properties: block.properties(),
        };
        self.send(Packet::ConnAck(connack)).await;
    }

    pub(crate) async fn refuse(&mut self, reason: ReasonCode, text: &str) {
        let block = block(&[Property::ReasonString(text)]);
        let connack = ConnAck {
            session_present: false,
            reason,
            properties: block.properties(),
        };
        self.send(Packet::ConnAck(connack)).await;
    }

    pub(crate) async fn publish(&mut self, topic: &str, payload: &[u8], qos: QoS, id: u16) {
        let publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id: PacketId::new(id),
            properties: PublishProperties::EMPTY,
            payload,
        };
        self.send(Packet::Publish(publish)).await;
    }

    pub(crate) async fn suback(&mut self, id: u16, codes: &[ReasonCode]) {
        let mut bytes = BytesMut::new();
        let codes = codes.iter().copied();
        let none = Properties::EMPTY;
        encode_suback(
            self.version,
            packet_id(id),
            none,
            codes,
            MAX_PACKET_BYTES,
            &mut bytes,
        )
        .unwrap();
        self.stream.write_all(&bytes).await.unwrap();
    }

    pub(crate) async fn unsuback(&mut self, id: u16, codes: &[ReasonCode]) {
        let mut bytes = BytesMut::new();
        let codes = codes.iter().copied();
        let none = Properties::EMPTY;
        let id = packet_id(id);
        encode_unsuback(self.version, id, none, codes, MAX_PACKET_BYTES, &mut bytes).unwrap();
        self.stream.write_all(&bytes).await.unwrap();
    }

    pub(crate) async fn ack(&mut self, packet: fn(Ack<'static>) -> Packet<'static>, id: u16) {
        self.send(packet(Ack::new(packet_id(id), ReasonCode::Success)))
            .await;
    }
}

pub(crate) fn packet_id(id: u16) -> PacketId {
    PacketId::new(id).unwrap()
}

pub(crate) fn block(properties: &[Property<'_>]) -> PropertyBuf {
    let mut block = PropertyBuf::new();
    for property in properties {
        block.push(*property).unwrap();
    }
    block
}

fn got(packet: &Packet<'_>) -> Got {
    match packet {
        Packet::Connect(connect) => Got::Connect {
            clean_start: connect.clean_start,
            client_id: connect.client_id.to_owned(),
            user: connect.user_name.map(str::to_owned),
            data: connect.properties.authentication_data().map(<[u8]>::to_vec),
        },
        Packet::Publish(publish) => Got::Publish {
            id: publish.packet_id.map_or(0, PacketId::get),
            topic: publish.topic.to_owned(),
            payload: publish.payload.to_vec(),
            qos: publish.qos,
            dup: publish.dup,
        },
        Packet::Subscribe(subscribe) => Got::Subscribe {
            id: subscribe.packet_id.get(),
            filters: subscribe
                .filters()
                .map(|(filter, _)| filter.to_owned())
                .collect(),
        },
        Packet::Unsubscribe(unsubscribe) => Got::Unsubscribe {
            id: unsubscribe.packet_id.get(),
        },
        Packet::PubAck(ack) => Got::PubAck(ack.packet_id.get()),
        Packet::PubRec(ack) => Got::PubRec(ack.packet_id.get()),
        Packet::PubRel(ack) => Got::PubRel(ack.packet_id.get()),
        Packet::PubComp(ack) => Got::PubComp(ack.packet_id.get()),
        Packet::PingReq => Got::PingReq,
        Packet::Auth(auth) => Got::Auth {
            reason: auth.reason,
            data: auth
                .properties
                .authentication_data()
                .unwrap_or_default()
                .to_vec(),
        },
        Packet::Disconnect(disconnect) => Got::Disconnect(disconnect.reason),
        other => panic!("a client sent {other:?}"),
    }
}

/// A publication as the broker sees it.
pub(crate) fn published(id: u16, topic: &str, qos: QoS, dup: bool) -> Got {
    Got::Publish {
        id,
        topic: topic.to_owned(),
        payload: b"x".to_vec(),
        qos,
        dup,
    }
}
