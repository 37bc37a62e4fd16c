//! QUIC's own abilities, against a Sterna broker over a path that delays and counts.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rcgen::PublicKeyData as _;
use sterna_client::{
    Client, ConnectError, EarlyData, Error, Event, Events, Fingerprint, Message, Options, Priority,
    Publish, QoS, Scheme, Streams, Subscription, Tls, Url,
};
use sterna_server::Server;
use sterna_server::config::{Config, EarlyData as EarlyDataPolicy, Listener};

use crate::path::{Line, Path, Seen};
use crate::patience::PATIENCE;

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
    serve_with(folder, port, |_| ())
}

fn serve_with(
    folder: &std::path::Path,
    port: u16,
    change: impl FnOnce(&mut Config),
) -> (Server, SocketAddr) {
    let url = format!("mqtt+quic://127.0.0.1:{port}");
    let mut config = Config {
        listeners: vec![Listener::at(&url)],
        data_directory: Some(folder.to_owned()),
        ..Config::default()
    };
    config.quic.early_data = EarlyDataPolicy::All;
    config.shards = 1;
    config.network.linger_ms = 100;
    change(&mut config);
    let server = Server::start(&config).unwrap();
    let url: Url = server.listeners()[0].parse().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], url.port()));
    (server, address)
}

fn message(topic: &str, payload: impl Into<String>, qos: QoS) -> Publish {
    Publish::new(topic, payload.into()).unwrap().qos(qos)
}

async fn next(events: &mut Events) -> Message {
    let waiting = tokio::time::timeout(PATIENCE, events.message());
    waiting.await.expect("a message in time").unwrap()
}

/// Connects once, so that this process has a ticket.
async fn visit(options: Options) {
    let (client, _events) = Client::connect(options).await.unwrap();
    // The tickets come behind the handshake. The acknowledgement of what is sent after it comes behind them.
    for _ in 0..2 {
        client
            .publish(message("visit", "x", QoS::AtLeastOnce))
            .await
            .unwrap();
    }
    client.disconnect().await.unwrap();
}

/// CONNECT and the first PUBLISH of a client with a ticket ride in its first datagram, and nothing
/// else leaves before the server has answered.
async fn early_data_rides_in_the_first_datagram() {
    let broker = Broker::start();
    let path = broker.path(Line::delayed_ms(150)).await;
    visit(broker.options(&path)).await;
    let (_subscriber, mut received) = broker.subscriber("a").await;
    path.seen();

    let mut options = broker.options(&path);
    // However late a busy machine runs this thread.
    options.early_wait = Duration::from_secs(5);
    let (client, mut events) = Client::start(options).unwrap();
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
    let seen = path.seen_of_newest();
    let first_answer = seen.iter().position(|datagram| !datagram.up).unwrap();
    let flight: Vec<usize> = seen[..first_answer].iter().map(|one| one.bytes).collect();
    assert_eq!(flight, [1200], "{seen:#?}");
    assert_eq!(next(&mut received).await.payload(), &b"early"[..]);
    // The packet-level test in virtual time holds it to one (`first_flight.rs` of the server).
    println!("PUBACK after {acknowledged:?} at a round trip of 300 ms");
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
    for streams in [Streams::Single, Streams::PerTopic, Streams::PerPublish] {
        reject_early_data(streams).await;
    }
}

async fn reject_early_data(streams: Streams) {
    let mut broker = Broker::start();
    let path = broker.path(Line::delayed_ms(20)).await;
    visit(broker.options(&path)).await;
    broker.restart();
    let (_subscriber, mut received) = broker.subscriber("a").await;

    let mut options = broker.options(&path);
    options.streams = streams;
    let (client, mut events) = Client::start(options).unwrap();
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
    let mut payloads = Vec::new();
    for _ in 0..4 {
        payloads.push(next(&mut received).await.payload().to_vec());
    }
    if streams == Streams::PerPublish {
        payloads.sort_unstable();
    }
    assert_eq!(payloads, [b"0", b"1", b"2", b"3"], "{streams:?}");
    assert!(
        tokio::time::timeout(Duration::from_millis(100), received.message())
            .await
            .is_err(),
        "nothing comes twice"
    );
    client.disconnect().await.unwrap();
}

/// A client that has lost its connection comes back with early data, too.
#[tokio::test]
async fn a_lost_connection_is_regained_early() {
    let mut broker = Broker::start();
    let path = broker.path(Line::delayed_ms(20)).await;
    let mut options = broker.options(&path);
    options.reconnect = Some(sterna_client::Backoff {
        min: Duration::from_millis(50),
        max: Duration::from_millis(50),
        max_attempts: None,
    });
    let (client, mut events) = Client::start(options).unwrap();
    // With the second acknowledgement the tickets have come.
    for _ in 0..2 {
        client
            .publish(message("a", "x", QoS::AtLeastOnce))
            .await
            .unwrap();
    }
    broker.restart();
    let mut verdicts = Vec::new();
    while verdicts.len() < 2 {
        if let Some(Event::Connected(connected)) = events.next().await {
            verdicts.push(connected.early_data);
        }
    }
    assert_eq!(verdicts, [EarlyData::NotTried, EarlyData::Rejected]);
    client
        .publish(message("a", "x", QoS::AtLeastOnce))
        .await
        .unwrap();
    client.disconnect().await.unwrap();
}

/// Another server at the same address gets nothing: it cannot read the early data, and is not
/// trusted with the rest.
#[tokio::test]
async fn early_data_is_not_sent_again_to_a_stranger() {
    let mut broker = Broker::start();
    let path = broker.path(Line::delayed_ms(5)).await;
    visit(broker.options(&path)).await;
    std::fs::remove_dir_all(broker.folder.path()).unwrap();
    std::fs::create_dir(broker.folder.path()).unwrap();
    broker.restart();
    let (client, mut events) = Client::start(broker.options(&path)).unwrap();
    let delivery = client.send(message("a", "x", QoS::AtLeastOnce)).await;
    let failed = |error: &Error| match error {
        Error::Connect(ConnectError::Quic(text)) => text.contains("fingerprint"),
        _ => false,
    };
    let error = delivery.unwrap().await.unwrap_err();
    assert!(failed(&error), "{error:?}");
    match events.next().await {
        Some(Event::Disconnected { error, .. }) => assert!(failed(&error), "{error:?}"),
        other => panic!("{other:?}"),
    }
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

/// How many messages of a bulk upload that fills the link single messages overtake, each of them. Panics when a
/// connection is lost.
async fn overtaken_bulk(streams: Streams) -> Vec<usize> {
    const QUEUED: usize = 16;
    let broker = Broker::start();
    // 1 Mbit/s, and half a second of buffer at the bottleneck.
    let line = Line {
        delay: Duration::from_millis(20),
        rate: Some(125_000),
        queue_bytes: 64_000,
        lose_every: 0,
    };
    let path = broker.path(line).await;
    let (_subscriber, mut received) = broker.subscriber("#").await;
    let mut options = broker.options(&path);
    options.streams = streams;
    options.queued_messages = QUEUED;
    // Shorter than what one stream for everything survives.
    options.keep_alive_s = match streams {
        Streams::Single => 60,
        _ => 4,
    };
    let lasts = Duration::from_secs(9);
    let (client, mut events) = Client::connect(options).await.unwrap();
    let taken = Arc::new(AtomicUsize::new(0));
    let bulk = tokio::spawn({
        let (client, taken) = (client.clone(), Arc::clone(&taken));
        async move {
            loop {
                let message = Publish::new("bulk", vec![0; 16_000])
                    .unwrap()
                    .priority(Priority::Bulk);
                drop(client.send(message).await.unwrap());
                taken.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let taken = || taken.load(Ordering::Relaxed);
    // The link is busy, and the queue is full.
    let mut arrived = 0;
    while arrived < 8 || taken() < arrived + QUEUED {
        assert_eq!(next(&mut received).await.topic(), "bulk");
        arrived += 1;
    }
    let (mut overtaken, started) = (Vec::new(), Instant::now());
    while overtaken.len() < 4 || started.elapsed() < lasts {
        let before = taken();
        let small = message("small", "x", QoS::AtLeastOnce);
        drop(client.send(small).await.unwrap());
        while next(&mut received).await.topic() == "bulk" {
            arrived += 1;
        }
        overtaken.push(before.saturating_sub(arrived));
        // The queue fills up again.
        while taken() < arrived + QUEUED {
            assert_eq!(next(&mut received).await.topic(), "bulk");
            arrived += 1;
        }
    }
    bulk.abort();
    while let Some(event) = events.try_next() {
        assert!(!matches!(event, Event::Disconnected { .. }), "{event:?}");
    }
    overtaken
}

/// Single messages beside a bulk upload that fills the link: no disconnect, and with priorities they pass the bulk
/// that waits in the client.
#[tokio::test]
async fn small_messages_overtake_bulk() {
    let (single, priority) = tokio::join!(
        overtaken_bulk(Streams::Single),
        overtaken_bulk(Streams::Priority)
    );
    println!("overtaken: single {single:?}, priority {priority:?}");
    assert!(single.iter().all(|count| *count == 0), "{single:?}");
    assert!(priority.iter().all(|count| *count > 8), "{priority:?}");
}

#[tokio::test]
async fn messages_travel_as_datagrams_when_both_sides_want_it() {
    let broker = Broker::start();
    let path = broker.path(Line::delayed_ms(1)).await;
    let mut options = broker.options(&path);
    options.datagrams = true;
    let (client, mut events) = Client::connect(options).await.unwrap();
    let subscription = Subscription::new("a", QoS::AtLeastOnce).unwrap();
    client.subscribe([subscription]).await.unwrap();
    client
        .publish(message("a", "small", QoS::AtMostOnce))
        .await
        .unwrap();
    assert_eq!(next(&mut events).await.payload(), &b"small"[..]);
    assert_eq!(client.path().await.unwrap().datagram_messages, 2);
    // Too large for a datagram, and not for one in any case.
    client
        .publish(message("a", "x".repeat(5_000), QoS::AtMostOnce))
        .await
        .unwrap();
    client
        .publish(message("a", "safe", QoS::AtLeastOnce))
        .await
        .unwrap();
    assert_eq!(next(&mut events).await.payload().len(), 5_000);
    assert_eq!(next(&mut events).await.payload(), &b"safe"[..]);
    assert_eq!(client.path().await.unwrap().datagram_messages, 2);
    client.disconnect().await.unwrap();

    // One who didn't ask gets none and sends none.
    let (client, mut events) = Client::connect(broker.options(&path)).await.unwrap();
    let subscription = Subscription::new("a", QoS::AtMostOnce).unwrap();
    client.subscribe([subscription]).await.unwrap();
    client
        .publish(message("a", "small", QoS::AtMostOnce))
        .await
        .unwrap();
    assert_eq!(next(&mut events).await.payload(), &b"small"[..]);
    assert_eq!(client.path().await.unwrap().datagram_messages, 0);
}

/// A change of address in the middle of 1,000 messages a second: nothing is lost, nothing of QoS 2
/// comes twice, and it is the same connection.
#[tokio::test]
async fn messages_survive_a_change_of_address() {
    const MESSAGES: usize = 2_000;
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let broker = Broker::start();
        let path = broker.path(Line::delayed_ms(5)).await;
        let (_subscriber, mut received) = broker.subscriber("a").await;
        let (client, _events) = Client::connect(broker.options(&path)).await.unwrap();
        let sending = tokio::spawn({
            let client = client.clone();
            async move {
                let mut deliveries = Vec::new();
                let mut tick = tokio::time::interval(Duration::from_millis(1));
                for number in 0..MESSAGES {
                    tick.tick().await;
                    let moves = number % 500 == 250;
                    if moves {
                        client.migrate().await.unwrap();
                    }
                    let message = message("a", number.to_string(), qos);
                    let delivery = client.send(message).await.unwrap();
                    if moves {
                        // Something is sent from each address, however late this task runs.
                        delivery.await.unwrap();
                    } else {
                        deliveries.push(delivery);
                    }
                }
                for delivery in deliveries {
                    delivery.await.unwrap();
                }
            }
        });
        let mut seen = vec![0; MESSAGES];
        let mut last = 0;
        while last + 1 < MESSAGES {
            let message = next(&mut received).await;
            last = std::str::from_utf8(&message.payload())
                .unwrap()
                .parse()
                .unwrap();
            seen[last] += 1;
        }
        sending.await.unwrap();
        assert!(seen.iter().all(|times| *times == 1), "{qos:?} {seen:?}");
        let connected = client.connected().await.unwrap();
        assert_eq!(connected.connections, 1);
        let statistics = client.path().await.unwrap();
        assert_eq!(statistics.migrations, 4);
        println!("{qos:?} {}", statistics.to_json());
        let mut clients: Vec<_> = path.seen().iter().map(|seen| seen.client).collect();
        clients.sort_unstable();
        clients.dedup();
        assert_eq!(clients.len(), 5, "addresses of the client");
    }
}

/// A client that says that it moves has its next answer after one round trip.
#[tokio::test]
async fn the_first_exchange_after_a_move_takes_one_round_trip() {
    let broker = Broker::start();
    let path = broker.path(Line::delayed_ms(200)).await;
    let (client, _events) = Client::connect(broker.options(&path)).await.unwrap();
    for _ in 0..3 {
        let warm = client.publish(message("a", "x", QoS::AtLeastOnce)).await;
        warm.unwrap();
    }
    path.seen();
    let (moved, sent) = tokio::join!(
        client.migrate(),
        client.publish(message("a", "x", QoS::AtLeastOnce))
    );
    moved.unwrap();
    sent.unwrap();
    let seen = path.seen();
    // The announcement, and with the message what lets the server send two datagrams.
    let flight: Vec<_> = seen.iter().take_while(|one| one.up).collect();
    assert!(flight.len() >= 2, "{seen:?}");
    let counted: usize = flight[1..].iter().map(|one| one.bytes).sum();
    assert!(flight[0].bytes < 100 && counted > 800, "{seen:?}");
    // The acknowledgement was in the server's first flight: it has not spoken again since the client
    // answered that.
    let flights = seen.chunk_by(|one, next| one.up == next.up);
    assert_eq!(
        flights.filter(|flight| !flight[0].up).count(),
        1,
        "{seen:?}"
    );
}

/// On a path that loses every seventh datagram, in each mode: nothing is lost, nothing of QoS 2
/// comes twice, and the messages of a topic keep their order where the mode says so.
#[tokio::test]
async fn every_mode_keeps_its_promises_on_a_lossy_path() {
    const TOPICS: usize = 20;
    const EACH: usize = 30;
    for streams in [
        Streams::Single,
        Streams::PerTopic,
        Streams::PerPublish,
        Streams::Priority,
    ] {
        let broker = Broker::start();
        let mut line = Line::delayed_ms(4);
        line.lose_every = 7;
        let path = broker.path(line).await;
        let (_subscriber, mut received) = broker.subscriber("t/#").await;
        let mut options = broker.options(&path);
        options.streams = streams;
        options.max_streams = 8;
        let (client, _events) = Client::connect(options).await.unwrap();
        let mut deliveries = Vec::new();
        for number in 0..EACH {
            for topic in 0..TOPICS {
                let topic = format!("t/{topic}");
                let message = message(&topic, number.to_string(), QoS::ExactlyOnce);
                deliveries.push(client.send(message).await.unwrap());
            }
        }
        let mut seen = std::collections::HashMap::<String, Vec<usize>>::new();
        for _ in 0..TOPICS * EACH {
            let message = next(&mut received).await;
            let number = std::str::from_utf8(&message.payload())
                .unwrap()
                .parse()
                .unwrap();
            seen.entry(message.topic().to_owned())
                .or_default()
                .push(number);
        }
        for delivery in deliveries {
            delivery.await.unwrap();
        }
        for (topic, mut numbers) in seen {
            if streams == Streams::PerPublish {
                numbers.sort_unstable();
            }
            assert_eq!(
                numbers,
                (0..EACH).collect::<Vec<_>>(),
                "{streams:?} {topic}"
            );
        }
        let path = client.path().await.unwrap();
        println!("{streams:?} {} streams, {}", path.streams, path.to_json());
        assert!(path.packets_lost > 0);
        let most = match streams {
            // As many as the server allows before patience ends.
            Streams::PerTopic => 5..=9,
            Streams::PerPublish => {
                let all = 1 + (TOPICS * EACH) as u64;
                all..=all
            }
            _ => 1..=1,
        };
        assert!(most.contains(&path.streams), "{streams:?} {}", path.streams);
        client.disconnect().await.unwrap();
    }
}

/// The second connection starts from the round trip that the first one measured, so that nothing is
/// sent again before the server can have answered.
#[tokio::test]
async fn the_round_trip_is_remembered() {
    let broker = Broker::start();
    let path = broker.path(Line::delayed_ms(1_500)).await;
    let mut options = broker.options(&path);
    options.early_data = false;
    let mut flights = Vec::new();
    for _ in 0..2 {
        let (client, _events) = Client::connect(options.clone()).await.unwrap();
        let sent = client.publish(message("a", "x", QoS::AtLeastOnce)).await;
        sent.unwrap();
        let seen = path.seen();
        // Not the last words of the connection before.
        let client_address = seen[seen.len() - 1].client;
        let own = |one: &&Seen| one.up && one.client == client_address;
        let answered = seen.iter().find(own).unwrap().at + Duration::from_millis(2_990);
        let flight = seen.iter().filter(own).filter(|one| one.at < answered);
        flights.push(flight.count());
        client.disconnect().await.unwrap();
        path.seen();
    }
    // A round trip of 3 s where 333 to 500 ms are assumed: a probe of two datagrams after 1 to 1.5 s.
    println!("datagrams before the first answer: {flights:?}");
    assert!(flights[0] > 1, "{flights:?}");
    assert_eq!(flights[1], 1, "{flights:?}");
}

/// Both sides are known by nothing but their keys, also when the connection is resumed with early
/// data.
#[tokio::test]
async fn keys_alone_are_enough() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (known, unknown) = (
        rcgen::KeyPair::generate().unwrap(),
        rcgen::KeyPair::generate().unwrap(),
    );
    std::fs::write(file("server.pem"), certified.cert.pem()).unwrap();
    std::fs::write(file("server.key"), certified.signing_key.serialize_pem()).unwrap();
    std::fs::write(file("clients.pem"), known.public_key_pem()).unwrap();
    std::fs::write(file("known.key"), known.serialize_pem()).unwrap();
    std::fs::write(file("unknown.key"), unknown.serialize_pem()).unwrap();
    let (server, address) = serve_with(folder.path(), 0, |config| {
        config.tls.certificate = Some(file("server.pem"));
        config.tls.key = Some(file("server.key"));
        config.tls.raw_public_key = true;
        config.tls.client_keys = Some(file("clients.pem"));
    });
    let broker = Broker {
        server: Some(server),
        folder: tempfile::tempdir().unwrap(),
        address,
        tls: Tls::default(),
    };
    let path = broker.path(Line::delayed_ms(1)).await;
    let mut options = broker.options(&path);
    let spki = certified.signing_key.subject_public_key_info();
    options.tls.server_keys = vec![Fingerprint::of(&spki)];
    options.tls.key = Some(file("unknown.key"));
    let (stranger, _events) = Client::start(options.clone()).unwrap();
    let published = stranger.publish(message("a", "x", QoS::AtLeastOnce)).await;
    published.unwrap_err();
    options.tls.key = Some(file("known.key"));
    visit(options.clone()).await;
    let (client, _events) = Client::connect(options).await.unwrap();
    let connected = client.connected().await.unwrap();
    assert_eq!(connected.early_data, EarlyData::Accepted);
    let published = client.publish(message("a", "x", QoS::AtLeastOnce)).await;
    published.unwrap();
    client.disconnect().await.unwrap();
}
