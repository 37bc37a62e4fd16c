//! The ends of connections over paths that are slow or gone: nothing that was said is lost in silence.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use std::net::SocketAddr;
use std::time::Duration;

use sterna_client::{
    Client, Error, Events, Options, Publish, QoS, QuicProfile, Scheme, Subscription, Tls, Url, amqp,
};
use sterna_server::Server;
use sterna_server::config::{Config, Listener};

use crate::path::{Line, Path};
use crate::patience::PATIENCE;

/// Messages of one test.
const MESSAGES: usize = 40;
/// A path with a round trip of two seconds.
const SLOW: u64 = 1_000;

/// A broker over QUIC in this process, for MQTT and AMQP.
struct Broker {
    server: Option<Server>,
    _folder: tempfile::TempDir,
    mqtt: SocketAddr,
    amqp: SocketAddr,
    tls: Tls,
}

impl Broker {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            listeners: ["mqtt+quic://127.0.0.1:0", "amqp+quic://127.0.0.1:0"]
                .map(|url| Listener {
                    profile: Some(QuicProfile::NbIot),
                    ..Listener::at(url)
                })
                .to_vec(),
            data_directory: Some(folder.path().to_owned()),
            shards: 1,
            ..Config::default()
        };
        let server = Server::start(&config).unwrap();
        let address = |number: usize| {
            let url: Url = server.listeners()[number].parse().unwrap();
            SocketAddr::from(([127, 0, 0, 1], url.port()))
        };
        let mut tls = Tls::default();
        tls.fingerprints = vec![server.certificate().fingerprint.parse().unwrap()];
        Self {
            mqtt: address(0),
            amqp: address(1),
            server: Some(server),
            _folder: folder,
            tls,
        }
    }

    /// Options of MQTT for a device that reaches the broker over this path.
    fn mqtt(&self, path: &Path) -> Options {
        let url = Url::new(Scheme::MqttQuic, "127.0.0.1", Some(path.address.port())).unwrap();
        let mut options = Options::new(url);
        options.tls = self.tls.clone();
        options.reconnect = None;
        options.quic.profile = Some(QuicProfile::NbIot);
        options
    }

    /// The same of AMQP.
    fn amqp(&self, path: &Path) -> amqp::Options {
        let url = Url::new(Scheme::AmqpQuic, "127.0.0.1", Some(path.address.port())).unwrap();
        let mut options = amqp::Options::new(url);
        options.tls = self.tls.clone();
        options.reconnect = None;
        options.quic.profile = Some(QuicProfile::NbIot);
        options
    }

    /// A subscriber to everything, over this path.
    async fn subscriber(&self, delay_ms: u64) -> (Client, Events) {
        let path = Path::new(self.mqtt, Line::delayed_ms(delay_ms)).await;
        let (client, events) = Client::connect(self.mqtt(&path)).await.unwrap();
        let subscription = Subscription::new("#", QoS::AtMostOnce).unwrap();
        client.subscribe([subscription]).await.unwrap();
        (client, events)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown();
        }
    }
}

/// More than leaves at once, all of them together.
fn payload(number: usize) -> String {
    format!("{number:>1000}")
}

/// Less than QUIC keeps until it is acknowledged, all of them together.
fn short(number: usize) -> String {
    format!("{number:>200}")
}

/// What a subscriber receives up to the last message, or until nothing more comes.
async fn received(events: &mut Events) -> Vec<String> {
    let mut all = Vec::new();
    while all.len() < MESSAGES {
        let Ok(Some(message)) = tokio::time::timeout(PATIENCE, events.message()).await else {
            break;
        };
        all.push(String::from_utf8(message.payload().to_vec()).unwrap());
    }
    all
}

fn expected() -> Vec<String> {
    (0..MESSAGES).map(payload).collect()
}

async fn publish_all(client: &Client) {
    for number in 0..MESSAGES {
        let message = Publish::new("a", payload(number)).unwrap();
        client.publish(message).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_waits_at_its_end_as_long_as_the_path_needs() {
    let broker = Broker::start();
    let (_subscriber, mut events) = broker.subscriber(0).await;
    let path = Path::new(broker.mqtt, Line::delayed_ms(SLOW)).await;
    let (client, _events) = Client::connect(broker.mqtt(&path)).await.unwrap();
    publish_all(&client).await;
    client.disconnect().await.unwrap();
    assert_eq!(received(&mut events).await, expected());
}

/// A path that also loses datagrams, and carries little: every message arrives, since the end waits for
/// as long as there is progress.
#[tokio::test]
async fn an_end_outlasts_losses_and_a_thin_path() {
    let broker = Broker::start();
    let (_subscriber, mut events) = broker.subscriber(0).await;
    let line = Line {
        rate: Some(4_000),
        lose_every: 7,
        ..Line::delayed_ms(200)
    };
    let path = Path::new(broker.mqtt, line).await;
    let (client, _events) = Client::connect(broker.mqtt(&path)).await.unwrap();
    publish_all(&client).await;
    client.disconnect().await.unwrap();
    assert_eq!(received(&mut events).await, expected());
}

#[tokio::test]
async fn an_end_without_an_answer_counts_what_may_be_lost() {
    let broker = Broker::start();
    let path = Path::new(broker.mqtt, Line::delayed_ms(20)).await;
    let mut options = broker.mqtt(&path);
    options.close_timeout = Duration::from_secs(2);
    let (client, _events) = Client::connect(options).await.unwrap();
    path.cut();
    for number in 0..MESSAGES {
        let message = Publish::new("a", short(number)).unwrap();
        client.publish(message).await.unwrap();
    }
    match client.disconnect().await {
        Err(Error::Unacknowledged(left)) => {
            assert_eq!(left.messages, MESSAGES as u64);
            assert!(left.bytes >= 200 * MESSAGES as u64, "{left:?}");
        }
        other => panic!("{other:?}"),
    }
}

async fn send_all(connection: &amqp::Connection) {
    let session = connection.session().await.unwrap();
    let sender = session.sender(amqp::SenderOptions::new("a")).await.unwrap();
    sender.attached().await.unwrap();
    for number in 0..MESSAGES {
        let message = amqp::Message::from(&Publish::new("a", payload(number)).unwrap());
        sender.send_settled(message).await.unwrap().await.unwrap();
    }
}

#[tokio::test]
async fn an_amqp_client_waits_at_its_end_as_long_as_the_path_needs() {
    let broker = Broker::start();
    let (_subscriber, mut events) = broker.subscriber(0).await;
    let path = Path::new(broker.amqp, Line::delayed_ms(SLOW)).await;
    let (connection, _events) = amqp::Connection::start(broker.amqp(&path)).unwrap();
    send_all(&connection).await;
    connection.close().await.unwrap();
    assert_eq!(received(&mut events).await, expected());
}

#[tokio::test]
async fn an_amqp_end_without_an_answer_counts_what_may_be_lost() {
    let broker = Broker::start();
    let path = Path::new(broker.amqp, Line::delayed_ms(20)).await;
    let mut options = broker.amqp(&path);
    options.close_timeout = Duration::from_secs(2);
    let (connection, _events) = amqp::Connection::start(options).unwrap();
    let session = connection.session().await.unwrap();
    let sender = session.sender(amqp::SenderOptions::new("a")).await.unwrap();
    sender.attached().await.unwrap();
    path.cut();
    for number in 0..MESSAGES {
        let message = amqp::Message::from(&Publish::new("a", short(number)).unwrap());
        sender.send_settled(message).await.unwrap().await.unwrap();
    }
    match connection.close().await {
        Err(amqp::Error::Unacknowledged(left)) => assert_eq!(left.messages, MESSAGES as u64),
        other => panic!("{other:?}"),
    }
}

/// The broker's own end: what a subscriber was sent before the broker stops arrives, over a path whose
/// round trip is longer than a glance.
#[tokio::test]
async fn a_broker_that_stops_first_delivers_what_it_has_sent() {
    let mut broker = Broker::start();
    let (_subscriber, mut events) = broker.subscriber(SLOW).await;
    let path = Path::new(broker.mqtt, Line::delayed_ms(0)).await;
    let (client, _events) = Client::connect(broker.mqtt(&path)).await.unwrap();
    for number in 0..MESSAGES {
        let message = Publish::new("a", payload(number)).unwrap();
        client.publish(message.qos(QoS::AtLeastOnce)).await.unwrap();
    }
    let server = broker.server.take().unwrap();
    let stopping = tokio::task::spawn_blocking(move || server.shutdown());
    assert_eq!(received(&mut events).await, expected());
    stopping.await.unwrap();
}
