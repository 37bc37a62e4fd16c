//! The HTTP client against a Sterna broker, each version of HTTP, and MQTT beside it.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use std::net::SocketAddr;
use std::time::Duration;

use sterna_client::http::{
    self, Client, Credentials, Error, Options, Retained, Subscribe, Version,
};
use sterna_client::{
    Backoff, EarlyData, Event, Publish, QoS, Scheme, Subscription as MqttSubscription, Tls, Url,
};
use sterna_server::Server;
use sterna_server::config::{
    Config, Durability, EarlyData as EarlyDataPolicy, HttpAuthentication, Listener,
};

use crate::path::{Line, Path};
use crate::patience::soon;

/// A broker of HTTP and MQTT in this process.
struct Broker {
    server: Option<Server>,
    config: Config,
    folder: tempfile::TempDir,
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
    fn start(change: impl FnOnce(&mut Config, &std::path::Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config {
            listeners: ["h3", "https", "http", "mqtt"]
                .map(|scheme| Listener::at(&format!("{scheme}://127.0.0.1:0")))
                .to_vec(),
            data_directory: Some(folder.path().to_owned()),
            shards: 2,
            ..Config::default()
        };
        config.authorization.admins = vec!["anonymous".to_owned()];
        config.quic.early_data = EarlyDataPolicy::All;
        change(&mut config, folder.path());
        let server = Server::start(&config).unwrap();
        let mut tls = Tls::default();
        tls.fingerprints = vec![server.certificate().fingerprint.parse().unwrap()];
        let urls = server.listeners().iter();
        // Started again, it is at the same places.
        config.listeners = urls.clone().map(|url| Listener::at(url)).collect();
        Self {
            urls: urls.map(|url| url.parse().unwrap()).collect(),
            server: Some(server),
            config,
            folder,
            tls,
        }
    }

    fn stop(&mut self) {
        self.server.take().unwrap().shutdown();
    }

    fn start_again(&mut self) {
        self.server = Some(Server::start(&self.config).unwrap());
    }

    fn url(&self, scheme: Scheme) -> Url {
        let found = self.urls.iter().find(|url| url.scheme() == scheme);
        found.unwrap().clone()
    }

    fn options(&self, url: Url) -> Options {
        let mut options = Options::new(url);
        options.tls = self.tls.clone();
        options.http3 = false;
        options.reconnect = Some(Backoff {
            min: Duration::from_millis(5),
            max: Duration::from_millis(50),
            max_attempts: Some(50),
        });
        options
    }

    fn client(&self, scheme: Scheme) -> Client {
        Client::new(self.options(self.url(scheme))).unwrap()
    }

    /// A client of each version.
    fn each(&self) -> [(Client, Version); 3] {
        [
            (self.client(Scheme::H3), Version::Http3),
            (self.client(Scheme::Https), Version::Http2),
            (self.client(Scheme::Http), Version::Http11),
        ]
    }
}

fn message(topic: &str, payload: &str) -> Publish {
    Publish::new(topic, payload.to_owned())
        .unwrap()
        .qos(QoS::AtLeastOnce)
}

#[tokio::test]
async fn messages_keep_what_they_carry_between_all_versions_and_mqtt() {
    let broker = Broker::start(|_, _| {});
    let mqtt = sterna_client::Options::new(broker.url(Scheme::Mqtt));
    let (mqtt, mut events) = soon(sterna_client::Client::connect(mqtt)).await.unwrap();
    let filter = MqttSubscription::new("all/#", QoS::ExactlyOnce).unwrap();
    soon(mqtt.subscribe([filter])).await.unwrap();
    let mut subscriptions = Vec::new();
    for (client, version) in broker.each() {
        let subscribe = Subscribe::new("all/#", QoS::ExactlyOnce).unwrap();
        let subscription = soon(client.subscribe(subscribe)).await.unwrap();
        assert_eq!(client.connection().unwrap().version, version);
        subscriptions.push(subscription);
    }
    let full = |topic: &str| {
        message(topic, "21.5")
            .qos(QoS::ExactlyOnce)
            .content_type("text/plain")
            .unwrap()
            .response_topic("answers/é 1")
            .unwrap()
            .correlation_data(&[0, 255, 1])
            .unwrap()
            .utf8()
            .unwrap()
            .user_property("unit, or so", "°C = %")
            .unwrap()
    };
    let clients = broker.each();
    for (client, _) in &clients {
        soon(client.publish(full("all/http"))).await.unwrap();
    }
    soon(mqtt.publish(full("all/mqtt"))).await.unwrap();
    let check = |message: &sterna_client::Message| {
        let properties = message.properties();
        assert_eq!(message.payload_bytes(), b"21.5");
        assert_eq!(message.qos(), QoS::ExactlyOnce);
        assert_eq!(properties.content_type(), Some("text/plain"));
        assert_eq!(properties.response_topic(), Some("answers/é 1"));
        assert_eq!(properties.correlation_data(), Some(&[0, 255, 1][..]));
        assert!(properties.is_utf8_payload());
        let user: Vec<_> = properties.user_properties().collect();
        assert_eq!(user, [("unit, or so", "°C = %")]);
    };
    for subscription in &mut subscriptions {
        // Only what one connection publishes keeps its order.
        let mut topics = Vec::new();
        for _ in 0..4 {
            let received = soon(subscription.next()).await.unwrap();
            topics.push(received.message.topic().to_owned());
            check(&received.message);
        }
        topics.sort();
        assert_eq!(topics, ["all/http", "all/http", "all/http", "all/mqtt"]);
    }
    let mut arrived = 0;
    while arrived < 4 {
        if let Some(Event::Message(message)) = soon(events.next()).await {
            check(&message);
            arrived += 1;
        }
    }
}

#[tokio::test]
async fn topics_retained_messages_and_sessions_are_managed() {
    let broker = Broker::start(|_, _| {});
    for (client, version) in broker.each() {
        let topic = format!("managed/{version}");
        assert!(!soon(client.topic_exists(&topic)).await.unwrap());
        assert!(soon(client.create_topic(&topic)).await.unwrap());
        assert!(!soon(client.create_topic(&topic)).await.unwrap());
        assert!(soon(client.topic_exists(&topic)).await.unwrap());
        let none = soon(client.retained(&topic, None)).await.unwrap();
        assert!(matches!(none, Retained::None));
        soon(client.publish(message(&topic, "on").retain(true)))
            .await
            .unwrap();
        let Retained::Message { message, etag } =
            soon(client.retained(&topic, None)).await.unwrap()
        else {
            panic!("no message");
        };
        assert_eq!(message.payload_bytes(), b"on");
        let same = soon(client.retained(&topic, etag.as_deref()))
            .await
            .unwrap();
        assert!(matches!(same, Retained::NotModified), "{same:?}");
        assert!(soon(client.delete_topic(&topic)).await.unwrap());
        assert!(!soon(client.delete_topic(&topic)).await.unwrap());
        // A durable subscription keeps what comes while nobody listens.
        let subscribe = || {
            Subscribe::new(&topic, QoS::AtLeastOnce)
                .unwrap()
                .session("mine")
                .unwrap()
        };
        let mut subscription = soon(client.subscribe(subscribe())).await.unwrap();
        for payload in ["1", "2"] {
            soon(client.publish(self::message(&topic, payload)))
                .await
                .unwrap();
        }
        let first = soon(subscription.next()).await.unwrap();
        assert_eq!(first.message.payload_bytes(), b"1");
        soon(subscription.close()).await.unwrap();
        // The second one was sent perhaps, and not acknowledged.
        let mut subscription = soon(client.subscribe(subscribe())).await.unwrap();
        let second = soon(subscription.next()).await.unwrap();
        assert_eq!(second.message.payload_bytes(), b"2");
        soon(subscription.close()).await.unwrap();
        let session = soon(client.session("mine")).await.unwrap().unwrap();
        assert_eq!(session.filters, [topic.as_str()]);
        assert!(soon(client.end_session("mine")).await.unwrap());
        assert!(soon(client.session("mine")).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn the_first_message_of_a_resumed_client_is_in_the_first_datagram() {
    // An answer that waits for the store would come a turn of the shard later.
    let broker = Broker::start(|config, _| config.store.durability = Durability::Memory);
    let address = SocketAddr::from(([127, 0, 0, 1], broker.url(Scheme::H3).port()));
    let path = Path::new(address, Line::delayed_ms(20)).await;
    let url = Url::new(Scheme::H3, "127.0.0.1", Some(path.address.port())).unwrap();
    let first = Client::new(broker.options(url.clone())).unwrap();
    // The tickets come behind the handshake. The answer to what is asked after it comes behind them.
    soon(first.publish(message("early", "1"))).await.unwrap();
    soon(first.publish(message("early", "2"))).await.unwrap();
    first.close().await;
    let watcher = broker.client(Scheme::H3);
    let subscribe = Subscribe::new("early", QoS::AtLeastOnce).unwrap();
    let mut subscription = soon(watcher.subscribe(subscribe)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    path.seen();
    let again = Client::new(broker.options(url)).unwrap();
    soon(again.publish(message("early", "3"))).await.unwrap();
    let seen = path.seen_of_newest();
    let connected = soon(again.connected()).await.unwrap();
    assert_eq!(connected.early_data, EarlyData::Accepted);
    assert_eq!(
        soon(subscription.next()).await.unwrap().message.payload(),
        "3"
    );
    // The answer comes with the server's first flight, a round trip after the only datagram up.
    let up = seen.iter().filter(|datagram| datagram.up).count();
    assert_eq!(up, 1, "{seen:?}");
}

/// A small message is one packet up and one down.
#[tokio::test]
async fn a_message_is_a_packet_each_way() {
    const MESSAGES: u64 = 50;
    let broker = Broker::start(|_, _| {});
    let mut options = broker.options(broker.url(Scheme::H3));
    options.quic.set("mtu_discovery", "false").unwrap();
    let client = Client::new(options).unwrap();
    for _ in 0..5 {
        soon(client.publish(message("one/packet", "21.5")))
            .await
            .unwrap();
    }
    let before = client.path().unwrap();
    for _ in 0..MESSAGES {
        soon(client.publish(message("one/packet", "21.5")))
            .await
            .unwrap();
    }
    let after = client.path().unwrap();
    let up = after.datagrams_sent - before.datagrams_sent;
    let down = after.datagrams_received - before.datagrams_received;
    assert!(
        (MESSAGES..=MESSAGES + MESSAGES / 5).contains(&up),
        "{up} up"
    );
    assert!(
        (MESSAGES..=MESSAGES + MESSAGES / 5).contains(&down),
        "{down} down"
    );
    let bytes = (after.wire_bytes_sent - before.wire_bytes_sent) / MESSAGES;
    assert!(bytes <= 110, "{bytes} bytes a message");
}

/// Responses that break again and again: a subscription misses nothing and gets nothing twice that is
/// not marked.
#[tokio::test]
async fn a_subscription_outlives_its_connections() {
    const MESSAGES: u32 = 200;
    let broker = Broker::start(|_, _| {});
    for scheme in [Scheme::H3, Scheme::Http] {
        let publisher = broker.client(scheme);
        let subscriber = broker.client(scheme);
        let topic = format!("outlives/{scheme}");
        let subscribe = Subscribe::new(&topic, QoS::AtLeastOnce).unwrap();
        let mut subscription = soon(subscriber.subscribe(subscribe)).await.unwrap();
        let publishing = tokio::spawn(async move {
            for number in 0..MESSAGES {
                publisher
                    .publish(message(&topic, &number.to_string()))
                    .await
                    .unwrap();
            }
        });
        let mut seen = Vec::new();
        while seen.len() < MESSAGES as usize {
            let received = soon(subscription.next()).await.unwrap();
            let text = String::from_utf8(received.message.payload_bytes().to_vec()).unwrap();
            seen.push(text.parse::<u32>().unwrap());
            if seen.len() % 50 == 0 {
                subscriber.drop_connection();
            }
        }
        soon(publishing).await.unwrap();
        assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>());
        assert_eq!(subscription.restarts(), 0);
    }
}

/// A response that ends because somebody else listens, or because the topic is gone, ends for good; one
/// that ends because the broker does is resumed.
#[tokio::test]
async fn subscriptions_know_why_they_end() {
    let mut broker = Broker::start(|_, _| {});
    for (number, (client, version)) in broker.each().into_iter().enumerate() {
        let topic = format!("ends/{version}");
        let subscribe = || Subscribe::new(&topic, QoS::AtLeastOnce).unwrap();
        let named = || subscribe().session(format!("mine-{number}")).unwrap();
        let mut first = soon(client.subscribe(named())).await.unwrap();
        let mut second = soon(client.subscribe(named())).await.unwrap();
        let error = soon(first.next()).await.unwrap_err();
        assert!(matches!(error, Error::Closed), "{version}: {error}");
        soon(client.publish(message(&topic, "1"))).await.unwrap();
        soon(second.next()).await.unwrap();
        soon(client.create_topic(&topic)).await.unwrap();
        let mut third = soon(client.subscribe(subscribe())).await.unwrap();
        assert!(soon(client.delete_topic(&topic)).await.unwrap());
        let error = soon(third.next()).await.unwrap_err();
        assert!(matches!(error, Error::Closed), "{version}: {error}");
    }
    let mut options = broker.options(broker.url(Scheme::H3));
    options.reconnect = None;
    let client = Client::new(options).unwrap();
    let subscribe = Subscribe::new("a", QoS::AtLeastOnce).unwrap();
    let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
    broker.stop();
    let error = soon(subscription.next()).await.unwrap_err();
    assert!(!matches!(error, Error::Closed), "{error}");
}

/// Waits until an attempt to connect has failed.
async fn no_connection(events: &mut http::Events) {
    while !matches!(
        soon(events.next()).await.unwrap(),
        http::Event::Disconnected {
            error: Error::Connect(_),
            retry_in: Some(_)
        }
    ) {}
}

/// Options for a broker that may be away longer than a connection may take to come about.
fn patient(broker: &Broker, scheme: Scheme) -> Options {
    let mut options = broker.options(broker.url(scheme));
    options.retry_first = true;
    options.reconnect.as_mut().unwrap().max_attempts = None;
    options.connect_timeout = Duration::from_millis(1_500);
    // A connection with early data counts as standing before anybody answers.
    options.early_data = false;
    options
}

#[tokio::test]
async fn a_subscription_outlives_failed_attempts_to_connect() {
    for scheme in [Scheme::H3, Scheme::Https, Scheme::Http] {
        let mut broker = Broker::start(|_, _| {});
        let client = Client::new(patient(&broker, scheme)).unwrap();
        let mut events = client.events();
        let subscribe = Subscribe::new("outage", QoS::AtLeastOnce).unwrap();
        let mut subscription = soon(client.subscribe(subscribe)).await.unwrap();
        broker.stop();
        let mut next = Box::pin(soon(subscription.next()));
        tokio::select! {
            ended = &mut next => panic!("{scheme}: {ended:?}"),
            () = no_connection(&mut events) => {}
        }
        broker.start_again();
        // It comes either way: the broker has forgotten the session, and may learn of this before that.
        let publish = message("outage", "over").retain(true);
        let (received, published) = tokio::join!(next, soon(client.publish(publish)));
        published.unwrap();
        assert_eq!(received.unwrap().message.payload(), "over", "{scheme}");
    }
}

#[tokio::test]
async fn a_first_subscription_waits_for_its_broker_where_it_may() {
    for scheme in [Scheme::H3, Scheme::Https, Scheme::Http] {
        let mut broker = Broker::start(|_, _| {});
        broker.stop();
        let client = Client::new(patient(&broker, scheme)).unwrap();
        let mut events = client.events();
        let subscribe = Subscribe::new("outage", QoS::AtLeastOnce).unwrap();
        let mut subscribing = Box::pin(soon(client.subscribe(subscribe)));
        tokio::select! {
            ended = &mut subscribing => panic!("{scheme}: {ended:?}"),
            () = no_connection(&mut events) => {}
        }
        broker.start_again();
        subscribing.await.unwrap();
    }
}

#[tokio::test]
async fn credentials_are_asked_for_and_remembered_by_the_connection() {
    use sterna_auth::{MIN_ITERATIONS, PasswordFile, Record};
    let broker = Broker::start(|config, folder| {
        let mut users = PasswordFile::new();
        let record = Record::from_password("p", &[7; 16], MIN_ITERATIONS).unwrap();
        users.set("u", record).unwrap();
        let file = folder.join("passwords");
        std::fs::write(&file, users.to_string()).unwrap();
        config.authentication.password_file = Some(file);
        config.http.authentication = HttpAuthentication::Connection;
    });
    for scheme in [Scheme::H3, Scheme::Https, Scheme::Http] {
        let error = soon(broker.client(scheme).publish(message("a", "1"))).await;
        let error = error.unwrap_err();
        assert_eq!(error.problem().unwrap().status, 401, "{error}");
        assert_eq!(error.problem().unwrap().name, "unauthenticated");
        let mut options = broker.options(broker.url(scheme));
        options.credentials = Credentials::Basic {
            user: "u".into(),
            password: "p".into(),
        };
        options.credentials_once = true;
        let client = Client::new(options.clone()).unwrap();
        for number in 0..3 {
            soon(client.publish(message("a", &number.to_string())))
                .await
                .unwrap();
        }
        options.credentials = Credentials::Basic {
            user: "u".into(),
            password: "wrong".into(),
        };
        let wrong = soon(Client::new(options).unwrap().publish(message("a", "1"))).await;
        assert!(matches!(wrong, Err(Error::Problem(_))), "{wrong:?}");
    }
    assert!(broker.folder.path().exists());
}
