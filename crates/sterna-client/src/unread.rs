//! Clients whose events nobody reads: they connect again all the same, and who reads late learns the newest.
//!
//! MQTT's and AMQP's connections are made in memory, and time is virtual: it moves when there is nothing else to do. So a
//! client that waits for ever is found at once, on a machine of any speed.
#![allow(clippy::unwrap_used)] // it is all test

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;

use crate::transport::Dial;
use crate::{
    Backoff, Client, Event, Events, LinkOptions, Message, Options, Publish, QoS, amqp, http,
};

/// Far more than any queue has room for.
const RECONNECTIONS: usize = 10_000;

/// Virtual time after which a client that has done nothing hangs.
const FOR_EVER: Duration = Duration::from_secs(3_600);

async fn before_for_ever<T>(future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(FOR_EVER, future).await;
    done.expect("the client hangs")
}

/// A broker in memory.
struct Broker {
    connections: mpsc::UnboundedReceiver<DuplexStream>,
    /// What it says to a client that has said something.
    welcome: &'static [u8],
}

impl Broker {
    /// One that nobody reaches with the first attempts.
    fn new(link: &mut LinkOptions, failures: usize, welcome: &'static [u8]) -> Self {
        let (dialled, connections) = mpsc::unbounded_channel();
        let attempts = AtomicUsize::new(0);
        link.dial = Some(Dial(Arc::new(move || {
            if attempts.fetch_add(1, Ordering::Relaxed) < failures {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (client, broker) = tokio::io::duplex(65_536);
            dialled.send(broker).map_err(io::Error::other)?;
            Ok(client)
        })));
        link.retry_first = true;
        link.reconnect = Some(at_once(None));
        // The clock of this timeout is the real one, and virtual time runs ahead of it.
        link.connect_timeout = 1_000 * FOR_EVER;
        Self {
            connections,
            welcome,
        }
    }

    /// The next connection, whose client is let in.
    async fn accept(&mut self) -> DuplexStream {
        let mut stream = before_for_ever(self.connections.recv()).await.unwrap();
        let mut input = [0; 1_024];
        assert_ne!(before_for_ever(stream.read(&mut input)).await.unwrap(), 0);
        stream.write_all(self.welcome).await.unwrap();
        stream
    }
}

/// Attempts follow each other without a pause.
const fn at_once(max_attempts: Option<u32>) -> Backoff {
    Backoff {
        min: Duration::ZERO,
        max: Duration::ZERO,
        max_attempts,
    }
}

/// The newest of MQTT's events, which are no more than one of each kind.
fn newest(events: &mut Events) -> Option<Event> {
    let unread: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
    assert!(unread.len() <= 2, "{unread:?}");
    unread.into_iter().last()
}

/// The same of AMQP's, of a connection that stands.
async fn newest_connected(events: &mut amqp::Events) -> Arc<amqp::Connected> {
    for _ in 0..2 {
        if let amqp::Event::Connected(connected) = before_for_ever(events.next()).await.unwrap() {
            return connected;
        }
    }
    panic!("more than one event of a kind");
}

/// CONNACK without a session.
const CONNACK: &[u8] = &[0x20, 3, 0, 0, 0];

fn mqtt(failures: usize) -> (Options, Broker) {
    let mut options = Options::new("mqtt://broker.example".parse().unwrap());
    options.keep_alive_s = 0;
    let broker = Broker::new(&mut options.link, failures, CONNACK);
    (options, broker)
}

fn hello(qos: QoS) -> Publish {
    Publish::new("t", "hello").unwrap().qos(qos)
}

#[tokio::test(start_paused = true)]
async fn mqtt_connects_again_though_nobody_reads_its_events() {
    let (options, mut broker) = mqtt(0);
    let (client, mut events) = Client::start(options).unwrap();
    for _ in 0..RECONNECTIONS {
        broker.accept().await;
    }
    let _last = broker.accept().await;
    // The client reads what the broker has written.
    tokio::time::sleep(Duration::from_secs(1)).await;
    before_for_ever(client.publish(hello(QoS::AtMostOnce)))
        .await
        .unwrap();
    match newest(&mut events) {
        Some(Event::Connected(connected)) => {
            assert_eq!(connected.connections, RECONNECTIONS as u64 + 1);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn mqtt_connects_after_failures_that_nobody_reads_of() {
    let (options, mut broker) = mqtt(RECONNECTIONS);
    let (client, mut events) = Client::start(options).unwrap();
    let _last = broker.accept().await;
    before_for_ever(client.connected()).await.unwrap();
    let newest = newest(&mut events);
    assert!(matches!(newest, Some(Event::Connected(_))), "{newest:?}");
}

/// Messages are not dropped: where there is no room for them, the client stops reading.
#[tokio::test(start_paused = true)]
async fn mqtt_keeps_messages_among_news() {
    let (mut options, mut broker) = mqtt(0);
    options.incoming_messages = 3;
    let (client, mut events) = Client::start(options).unwrap();
    for payload in [b'1', b'2', b'3'] {
        let mut stream = broker.accept().await;
        // PUBLISH on "t" with QoS 0.
        stream
            .write_all(&[0x30, 5, 0, 1, b't', 0, payload])
            .await
            .unwrap();
    }
    let payload = |message: Message| message.payload().to_vec();
    for expected in [b"1", b"2", b"3"] {
        let message = before_for_ever(events.message()).await.unwrap();
        assert_eq!(payload(message), expected);
    }
    let _last = broker.accept().await;
    before_for_ever(client.connected()).await.unwrap();
}

/// Header and open of a server with the container-id "b".
const OPEN: &[u8] = b"AMQP\0\x01\0\0\0\0\0\x11\x02\0\0\0\0\x53\x10\xc0\x04\x01\xa1\x01b";

fn amqp(failures: usize) -> (amqp::Options, Broker) {
    let mut options = amqp::Options::new("amqp://broker.example".parse().unwrap());
    options.sasl = amqp::Sasl::None;
    options.idle_timeout_s = 0;
    let broker = Broker::new(&mut options.link, failures, OPEN);
    (options, broker)
}

#[tokio::test(start_paused = true)]
async fn amqp_connects_again_though_nobody_reads_its_events() {
    let (options, mut broker) = amqp(0);
    let (connection, mut events) = amqp::Connection::start(options).unwrap();
    for _ in 0..RECONNECTIONS {
        broker.accept().await;
    }
    let _last = broker.accept().await;
    // The client reads what the broker has written.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let connected = before_for_ever(connection.connected()).await.unwrap();
    assert_eq!(connected.connections, RECONNECTIONS as u64 + 1);
    assert_eq!(newest_connected(&mut events).await, connected);
}

#[tokio::test(start_paused = true)]
async fn amqp_connects_after_failures_that_nobody_reads_of() {
    let (options, mut broker) = amqp(RECONNECTIONS);
    let (connection, mut events) = amqp::Connection::start(options).unwrap();
    let _last = broker.accept().await;
    let connected = before_for_ever(connection.connected()).await.unwrap();
    assert_eq!(newest_connected(&mut events).await, connected);
}

/// HTTP has connections of TCP alone. Its requests connect themselves, and a port where nobody listens is enough: whether
/// it refuses, or virtual time is over before, the attempt fails.
#[tokio::test(start_paused = true)]
async fn http_fails_as_often_though_nobody_reads_its_events() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let mut options = http::Options::new(url.parse().unwrap());
    options.reconnect = Some(at_once(Some(RECONNECTIONS as u32)));
    options.retry_first = true;
    let client = http::Client::new(options).unwrap();
    let mut events = client.events();
    let published = client.publish(hello(QoS::AtLeastOnce)).await;
    assert!(published.is_err(), "{published:?}");
    let newest = events.next().await;
    assert!(
        matches!(
            newest,
            Some(http::Event::Disconnected { retry_in: None, .. })
        ),
        "{newest:?}"
    );
}
