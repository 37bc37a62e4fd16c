//! A process that goes on with the session of another one, which ended in the middle of its work.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use std::net::SocketAddr;

use bytes::BytesMut;
use sterna_client::{
    Client, Events, Options, Property, Publish, QoS, Streams, Subscription, Tls, Url, Version,
};
use sterna_mqtt::packet::{Connect, Packet, Publish as PublishPacket};
use sterna_mqtt::{Framer, MAX_PACKET_BYTES, PacketType, PropertyBuf, PublishProperties};
use sterna_server::Server;
use sterna_server::config::{Config, Listener};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::broker::packet_id;
use crate::patience::soon;

/// Messages with QoS 2 that the first process leaves behind, with the identifiers from one on.
const LEFT: u16 = 3;

/// A broker of MQTT in this process, over TCP and QUIC.
struct Broker {
    server: Option<Server>,
    _folder: tempfile::TempDir,
    tls: Tls,
    urls: Vec<Url>,
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown();
        }
    }
}

impl Broker {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            listeners: ["mqtt://127.0.0.1:0", "mqtt+quic://127.0.0.1:0"]
                .map(Listener::at)
                .to_vec(),
            data_directory: Some(folder.path().to_owned()),
            shards: 1,
            ..Config::default()
        };
        let server = Server::start(&config).unwrap();
        let mut tls = Tls::default();
        tls.fingerprints = vec![server.certificate().fingerprint.parse().unwrap()];
        let urls = server.listeners().iter();
        Self {
            urls: urls.map(|url| url.parse().unwrap()).collect(),
            server: Some(server),
            _folder: folder,
            tls,
        }
    }

    fn options(&self, over_quic: bool) -> Options {
        let mut options = Options::new(self.urls[usize::from(over_quic)].clone());
        options.tls = self.tls.clone();
        options
    }

    /// A subscriber to everything.
    async fn subscriber(&self) -> (Client, Events) {
        let (client, events) = Client::connect(self.options(false)).await.unwrap();
        let everything = Subscription::new("#", QoS::ExactlyOnce).unwrap();
        client.subscribe([everything]).await.unwrap();
        (client, events)
    }

    /// A device's first process. It sends messages and dies before it releases one of them.
    async fn leave_messages(&self, device: &str, version: Version) {
        let address = SocketAddr::from(([127, 0, 0, 1], self.urls[0].port()));
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut properties = PropertyBuf::new();
        if version.is_v5() {
            let hour = Property::SessionExpiryInterval(3_600);
            properties.push(hour).unwrap();
        }
        let mut bytes = BytesMut::new();
        let connect = Packet::Connect(Connect {
            version,
            clean_start: false,
            keep_alive_s: 0,
            client_id: device,
            will: None,
            user_name: None,
            password: None,
            properties: properties.properties(),
        });
        connect
            .encode(version, MAX_PACKET_BYTES, &mut bytes)
            .unwrap();
        for id in 1..=LEFT {
            let publish = Packet::Publish(PublishPacket {
                dup: false,
                qos: QoS::ExactlyOnce,
                retain: false,
                topic: "reading",
                packet_id: Some(packet_id(id)),
                properties: PublishProperties::EMPTY,
                payload: b"17",
            });
            publish
                .encode(version, MAX_PACKET_BYTES, &mut bytes)
                .unwrap();
        }
        stream.write_all(&bytes).await.unwrap();
        let (mut framer, mut received) = (Framer::new(), 0);
        while received < LEFT {
            let mut buffer = BytesMut::with_capacity(1 << 10);
            assert_ne!(soon(stream.read_buf(&mut buffer)).await.unwrap(), 0);
            let mut rest = &buffer[..];
            while let Some(frame) = framer.next(&mut rest, MAX_PACKET_BYTES).unwrap() {
                received += u16::from(frame.packet_type() == Some(PacketType::PubRec));
            }
        }
    }
}

/// The messages of a subscriber up to one on the topic "end", as topic and payload.
async fn texts(events: &mut Events) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        let message = soon(events.message()).await.unwrap();
        if message.topic() == "end" {
            return texts;
        }
        let payload = String::from_utf8_lossy(&message.payload()).into_owned();
        texts.push(format!("{} {payload}", message.topic()));
    }
}

/// The broker holds identifiers that the first process has used and not released. The second one uses
/// them for other messages, also for one that is equal in all that the broker compares.
#[tokio::test]
async fn new_messages_are_not_taken_for_those_of_an_earlier_process() {
    let ways = [
        (Version::V5, false, Streams::Single),
        (Version::V311, false, Streams::Single),
        (Version::V31, false, Streams::Single),
        (Version::V5, true, Streams::Single),
        (Version::V311, true, Streams::PerTopic),
        (Version::V5, true, Streams::PerTopic),
        (Version::V5, true, Streams::PerPublish),
        (Version::V5, true, Streams::Priority),
    ];
    let broker = Broker::start();
    let (_subscriber, mut events) = broker.subscriber().await;
    for (version, over_quic, streams) in ways {
        let device = format!("{version:?} {over_quic} {streams:?}");
        broker.leave_messages(&device, version).await;
        let mut options = broker.options(over_quic);
        options.version = version;
        options.client_id = Some(device.clone());
        options.clean_start = false;
        options.session_expiry_s = 3_600;
        options.streams = streams;
        let (client, _events) = Client::start(options).unwrap();
        let mut expected = vec!["reading 17".to_owned(); usize::from(LEFT)];
        for payload in ["17", "18", "19", "20"] {
            let message = Publish::new("reading", payload).unwrap();
            soon(client.publish(message.qos(QoS::ExactlyOnce)))
                .await
                .unwrap();
            expected.push(format!("reading {payload}"));
        }
        let end = Publish::new("end", "").unwrap().qos(QoS::AtLeastOnce);
        soon(client.publish(end)).await.unwrap();
        assert_eq!(texts(&mut events).await, expected, "{device}");
    }
}
