//! QUIC's own abilities, against a Sterna broker over a path that delays and counts.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

mod path;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use path::{Line, Path};
use sterna_client::{
    Client, EarlyData, Event, Events, Message, Options, Publish, QoS, Scheme, Subscription, Tls,
    Url,
};
use sterna_server::Server;
use sterna_server::config::{Config, Listener};

/// A broker over QUIC in this process.
struct Broker {
    server: Option<Server>,
    folder: tempfile::TempDir,
    address: SocketAddr,
    tls: Tls,
}

impl Broker {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (server, address) = serve(folder.path(), 0);
        let mut tls = Tls::default();
        tls.fingerprints = vec![server.certificate().fingerprint.parse().unwrap()];
        Self {
            server: Some(server),
            folder,
            address,
            tls,
        }
    }

    /// A broker that knows nothing of what was before, at the same place.
    fn restart(&mut self) {
        self.server.take().unwrap().shutdown();
        self.server = Some(serve(self.folder.path(), self.address.port()).0);
    }

    /// Options for a client on this path.
    fn options(&self, path: &Path) -> Options {
        let url = Url::new(Scheme::MqttQuic, "127.0.0.1", Some(path.address.port())).unwrap();
        let mut options = Options::new(url);
        options.tls = self.tls.clone();
        options.reconnect = None;
        options
    }

    async fn path(&self, line: Line) -> Path {
        Path::new(self.address, line).await
    }

    /// A subscriber over a path of its own.
    async fn subscriber(&self, filter: &str) -> (Client, Events) {
        let path = self.path(Line::delayed_ms(0)).await;
        let mut options = self.options(&path);
        // With tickets of its own.
        options.early_data = false;
        let (client, events) = Client::connect(options).await.unwrap();
        let subscription = Subscription::new(filter, QoS::ExactlyOnce).unwrap();
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

fn serve(folder: &std::path::Path, port: u16) -> (Server, SocketAddr) {
    let url = format!("mqtt+quic://127.0.0.1:{port}");
    let mut config = Config {
        listeners: vec![Listener::at(&url)],
        data_directory: Some(folder.to_owned()),
        ..Config::default()
    };
    config.quic.early_data = true;
    config.shards = 1;
    let server = Server::start(&config).unwrap();
    let url: Url = server.listeners()[0].parse().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], url.port()));
    (server, address)
}

fn message(topic: &str, payload: impl Into<String>, qos: QoS) -> Publish {
    Publish::new(topic, payload.into()).unwrap().qos(qos)
}

async fn next(events: &mut Events) -> Message {
    let waiting = tokio::time::timeout(Duration::from_secs(20), events.message());
    waiting.await.expect("a message in time").unwrap()
}

/// Connects once, so that this process has a ticket.
async fn visit(options: Options) {
    let (client, _events) = Client::connect(options).await.unwrap();
    client
        .publish(message("visit", "x", QoS::AtLeastOnce))
        .await
        .unwrap();
    // The tickets come right behind the handshake.
    tokio::time::sleep(Duration::from_millis(150)).await;
    client.disconnect().await.unwrap();
}

/// CONNECT and the first PUBLISH of a client with a ticket ride in its first datagram, and nothing
/// else leaves before the server has answered.
async fn early_data_rides_in_the_first_datagram() {
    let broker = Broker::start();
    let path = broker.path(Line::delayed_ms(50)).await;
    visit(broker.options(&path)).await;
    let (_subscriber, mut received) = broker.subscriber("a").await;
    path.seen();

    let (client, mut events) = Client::start(broker.options(&path)).unwrap();
    let started = Instant::now();
    let delivery = client
        .send(message("a", "early", QoS::AtLeastOnce))
        .await
        .unwrap();
    delivery.await.unwrap();
    let acknowledged = started.elapsed();
    let Some(Event::Connected(connected)) = events.next().await else {
        panic!("not connected");
    };
    assert_eq!(connected.early_data, EarlyData::Accepted);
    let seen = path.seen();
    let first_answer = seen.iter().position(|datagram| !datagram.up).unwrap();
    let flight: Vec<usize> = seen[..first_answer].iter().map(|one| one.bytes).collect();
    assert_eq!(flight, [1200], "{seen:#?}");
    assert_eq!(next(&mut received).await.payload(), &b"early"[..]);
    println!("PUBACK after {acknowledged:?} at a round trip of 100 ms");
    // One round trip where the broker's policy lets it pass, two where it waits for the handshake.
    assert!(
        acknowledged < Duration::from_millis(280),
        "{acknowledged:?}"
    );
    client.disconnect().await.unwrap();
}

#[tokio::test]
async fn early_data_rides_in_the_first_datagram_on_one_thread() {
    early_data_rides_in_the_first_datagram().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn early_data_rides_in_the_first_datagram_on_several_threads() {
    early_data_rides_in_the_first_datagram().await;
}

/// A server that has lost its tickets gets everything again after the handshake: nothing is lost,
/// nothing comes twice, and the order stays.
#[tokio::test]
async fn rejected_early_data_is_sent_again() {
    let mut broker = Broker::start();
    let path = broker.path(Line::delayed_ms(20)).await;
    visit(broker.options(&path)).await;
    broker.restart();
    let (_subscriber, mut received) = broker.subscriber("a").await;

    let (client, mut events) = Client::start(broker.options(&path)).unwrap();
    let mut deliveries = Vec::new();
    for qos in [QoS::AtLeastOnce, QoS::AtMostOnce, QoS::ExactlyOnce] {
        let payload = format!("{}", deliveries.len());
        deliveries.push(client.send(message("a", payload, qos)).await.unwrap());
    }
    let Some(Event::Connected(connected)) = events.next().await else {
        panic!("not connected");
    };
    assert_eq!(connected.early_data, EarlyData::Rejected);
    for delivery in deliveries {
        delivery.await.unwrap();
    }
    let last = client.publish(message("a", "3", QoS::AtLeastOnce)).await;
    last.unwrap();
    for expected in 0..4 {
        let message = next(&mut received).await;
        assert_eq!(message.payload(), expected.to_string().as_bytes());
    }
    assert!(
        tokio::time::timeout(Duration::from_millis(100), received.message())
            .await
            .is_err(),
        "nothing comes twice"
    );
    client.disconnect().await.unwrap();
}

#[tokio::test]
async fn early_data_can_be_turned_off() {
    let broker = Broker::start();
    let path = broker.path(Line::delayed_ms(5)).await;
    let mut options = broker.options(&path);
    options.early_data = false;
    visit(options.clone()).await;
    let (client, _events) = Client::connect(options).await.unwrap();
    let connected = client.connected().await.unwrap();
    assert_eq!(connected.early_data, EarlyData::NotTried);
    client.disconnect().await.unwrap();
}
