//! The clients that take part: publishers and readers of all protocols and transports.

use sterna_client::{QoS, Streams, Version};

use sterna_ledger::{Promise, Protocol};

use super::amqp::{self, QUEUES, Receives, Sends, Source, Transacts};
use super::broker::Door;
use super::http::{Listens, Posts};
use super::mqtt::{Dialect, Fickle, Publisher, Subscriber};
use super::site::{Habit, Running, Site};
use super::wills::Wills;

/// Everything that publishers publish, retained messages and wills aside.
const ALL: &str = "t/#";
/// Topics of a publisher.
const TOPICS: u32 = 3;
/// Retained topics of a publisher.
const RETAINED_TOPICS: u32 = 5;

/// Those who take part, until this is dropped.
pub(super) struct Cast {
    tasks: Vec<Running>,
    site: Site,
    /// Publishers that were started.
    pub(super) publishers: usize,
    /// Filters that readers ask for when they begin.
    pub(super) interests: usize,
    /// Topics with one publisher each, whose retained messages are compared.
    pub(super) retained: Vec<String>,
    /// Whether the broker may take a consumer for alive that has gone. Then a queue has two for a while, and what
    /// the old one was sent comes late to the new one.
    has_ghosts: bool,
}

fn topics(prefix: &str, name: &str, count: u32) -> Vec<String> {
    (0..count)
        .map(|number| format!("{prefix}/{name}/{number}"))
        .collect()
}

impl Cast {
    pub(super) const fn new(site: Site, has_ghosts: bool) -> Self {
        Self {
            has_ghosts,
            tasks: Vec::new(),
            site,
            publishers: 0,
            interests: 0,
            retained: Vec::new(),
        }
    }

    /// Starts a client; that it gives up is a breach.
    fn enter(
        &mut self,
        protocol: Protocol,
        name: String,
        part: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        let site = self.site.clone();
        self.tasks.push(Running::start(async move {
            if let Err(error) = part.await {
                let text = format!("{name} gave up: {error}");
                site.complain(Promise::Serving, protocol, &name, text);
            }
        }));
    }

    fn subscriber(&mut self, name: &str, dialect: Dialect, filters: &[&str], habit: Habit) {
        self.interests += filters.len();
        let part = Subscriber {
            name: name.to_owned(),
            dialect,
            filters: filters.iter().map(|&filter| filter.to_owned()).collect(),
            habit,
            group: None,
        };
        let part = part.run(self.site.clone());
        self.enter(Protocol::Mqtt, name.to_owned(), part);
    }

    /// A group with durable members, which come and go.
    fn group(&mut self, name: &str, filter: &str, qos: QoS, doors: [Door; 2]) {
        let reading = Dialect::new(doors[0], qos).reading(false);
        let reader = (self.site.ledger()).reader(format!("the group {name}"), reading);
        for door in doors {
            self.interests += 1;
            let member = format!("{name}-{}", door.scheme().replace('+', "-"));
            let part = Subscriber {
                name: member.clone(),
                dialect: Dialect::new(door, qos),
                filters: vec![filter.to_owned()],
                habit: Habit::Wanders {
                    here_ms: 4_000,
                    away_ms: 1_500,
                },
                group: Some((name.to_owned(), reader)),
            };
            let part = part.run(self.site.clone());
            self.enter(Protocol::Mqtt, member, part);
        }
    }

    fn receiver(&mut self, name: &str, door: Door, source: Source, is_exact: bool, habit: Habit) {
        // Queues are there from the beginning.
        self.interests += usize::from(matches!(source, Source::Topic(_)));
        let part = Receives {
            name: name.to_owned(),
            door,
            source,
            is_exact,
            habit,
        };
        let part = part.run(self.site.clone());
        self.enter(Protocol::Amqp, name.to_owned(), part);
    }

    fn listener(&mut self, name: &str, door: Door, filter: &str, habit: Habit) {
        self.interests += 1;
        let part = Listens {
            name: name.to_owned(),
            door,
            filter: filter.to_owned(),
            habit,
        };
        let part = part.run(self.site.clone());
        self.enter(Protocol::Http, name.to_owned(), part);
    }

    /// Starts all readers.
    pub(super) fn start_readers(&mut self) {
        use QoS::{AtLeastOnce, ExactlyOnce};
        let wanders = Habit::Wanders {
            here_ms: 3_000,
            away_ms: 2_000,
        };
        let v3 = Dialect {
            version: Version::V311,
            ..Dialect::new(Door::Mqtts, AtLeastOnce)
        };
        let exactly = Dialect::new(Door::Mqtt, ExactlyOnce);
        self.subscriber("sub-2-tcp", exactly, &[ALL, "w/#"], Habit::Stays);
        let exactly = Dialect::new(Door::MqttQuic, ExactlyOnce);
        self.subscriber("sub-2-quic", exactly, &[ALL], wanders);
        self.subscriber("sub-1-tls-v3", v3, &[ALL, "t/+/0", "w/#"], wanders);
        let flaps = Habit::Wanders {
            here_ms: 400,
            away_ms: 100,
        };
        let dialect = Dialect::new(Door::Mqtt, AtLeastOnce);
        self.subscriber("sub-1-flaps", dialect, &[ALL], flaps);
        let sleeper = Dialect::new(Door::Mqtt, ExactlyOnce);
        self.subscriber("sub-2-sleeper", sleeper, &[ALL], Habit::Sleeps);
        self.group("group-1", ALL, AtLeastOnce, [Door::Mqtt, Door::MqttQuic]);
        self.group("group-2", "t/+/1", ExactlyOnce, [Door::Mqtts, Door::Mqtt]);

        let topic = || Source::Topic(ALL.to_owned());
        self.receiver("amqp-sub-tls", Door::Amqps, topic(), false, wanders);
        self.receiver(
            "amqp-sub-exact-quic",
            Door::AmqpQuic,
            topic(),
            true,
            wanders,
        );
        let single = amqp::queue_reader(&self.site, QUEUES[0], !self.has_ghosts);
        let shared = amqp::queue_reader(&self.site, QUEUES[1], false);
        self.interests += QUEUES.len();
        let single = Source::Queue(QUEUES[0], single);
        let shared = Source::Queue(QUEUES[1], shared);
        self.receiver("amqp-queue-tcp", Door::Amqp, single, false, Habit::Stays);
        self.receiver(
            "amqp-shared-tcp",
            Door::Amqp,
            shared.clone(),
            false,
            wanders,
        );
        self.receiver("amqp-shared-quic", Door::AmqpQuic, shared, false, wanders);

        self.listener("http-sub-h3", Door::H3, ALL, wanders);
        self.listener("http-sub-tcp", Door::Http, "t/+/1", Habit::Stays);
    }

    fn publisher(&mut self, name: &str, dialect: Dialect, streams: Streams, window: usize) {
        self.publish(Publisher {
            name: name.to_owned(),
            dialect,
            streams,
            topics: topics("t", name, TOPICS),
            retain: false,
            window,
            pause_ms: 60,
        });
    }

    fn publish(&mut self, part: Publisher) {
        self.publishers += 1;
        let name = part.name.clone();
        let part = part.run(self.site.clone());
        self.enter(Protocol::Mqtt, name, part);
    }

    fn retainer(&mut self, name: &str, dialect: Dialect) {
        let topics = topics("r", name, RETAINED_TOPICS);
        self.retained.extend(topics.iter().cloned());
        self.publish(Publisher {
            name: name.to_owned(),
            dialect,
            streams: Streams::Single,
            topics,
            retain: true,
            window: 4,
            pause_ms: 100,
        });
    }

    fn sender(&mut self, name: &str, door: Door, address: &str, is_exact: bool) {
        self.publishers += 1;
        let part = Sends {
            name: name.to_owned(),
            door,
            address: address.to_owned(),
            is_exact,
            window: 16,
            pause_ms: 80,
        };
        let part = part.run(self.site.clone());
        self.enter(Protocol::Amqp, name.to_owned(), part);
    }

    fn poster(&mut self, name: &str, door: Door, qos: QoS) {
        self.publishers += 1;
        let part = Posts {
            name: name.to_owned(),
            door,
            topics: topics("t", name, TOPICS),
            qos,
            pause_ms: 60,
        };
        let part = part.run(self.site.clone());
        self.enter(Protocol::Http, name.to_owned(), part);
    }

    /// Starts all who publish.
    pub(super) fn start_publishers(&mut self) {
        use QoS::{AtLeastOnce, ExactlyOnce};
        let v3 = Dialect {
            version: Version::V311,
            ..Dialect::new(Door::Mqtts, AtLeastOnce)
        };
        let dialect = Dialect::new(Door::Mqtt, AtLeastOnce);
        self.publisher("pub-1-tcp", dialect, Streams::Single, 32);
        let dialect = Dialect::new(Door::Mqtt, ExactlyOnce);
        self.publisher("pub-2-tcp", dialect, Streams::Single, 16);
        let dialect = Dialect::new(Door::MqttQuic, AtLeastOnce);
        self.publisher("pub-1-quic", dialect, Streams::PerTopic, 16);
        let dialect = Dialect::new(Door::MqttQuic, ExactlyOnce);
        self.publisher("pub-2-quic", dialect, Streams::Single, 8);
        self.publisher("pub-1-tls-v3", v3, Streams::Single, 8);
        self.retainer("retain-1", Dialect::new(Door::Mqtt, AtLeastOnce));
        self.retainer("retain-2", Dialect::new(Door::MqttQuic, ExactlyOnce));

        self.sender("amqp-topic-tcp", Door::Amqp, "t/amqp-topic-tcp/0", false);
        self.sender(
            "amqp-exact-quic",
            Door::AmqpQuic,
            "t/amqp-exact-quic/1",
            true,
        );
        self.sender("amqp-queue-tls", Door::Amqps, "queue/single", false);
        self.sender("amqp-shared-quic", Door::AmqpQuic, "queue/shared", false);
        let addresses = [
            "t/amqp-transactions/0",
            "t/amqp-transactions/1",
            "queue/single",
        ];
        self.publishers += 1;
        let part = Transacts {
            name: "amqp-transactions".to_owned(),
            door: Door::Amqp,
            addresses: addresses.map(str::to_owned).to_vec(),
            pause_ms: 150,
        };
        let part = part.run(self.site.clone());
        self.enter(Protocol::Amqp, "amqp-transactions".to_owned(), part);

        self.poster("post-2-h3", Door::H3, ExactlyOnce);
        self.poster("post-1-tcp", Door::Http, AtLeastOnce);
        self.poster("post-2-tls", Door::Https, ExactlyOnce);
    }

    /// Starts those who subscribe for a while, and those who are lost.
    pub(super) fn start_passers_by(&mut self) {
        use QoS::ExactlyOnce;
        let fickle = Fickle {
            name: "fickle".to_owned(),
            dialect: Dialect::new(Door::Mqtt, ExactlyOnce),
            filters: [
                "t/pub-1-tcp/0",
                "t/pub-2-quic/+",
                "t/amqp-topic-tcp/#",
                "t/+/2",
            ]
            .map(str::to_owned)
            .to_vec(),
            pause_ms: 300,
        };
        let part = fickle.run(self.site.clone());
        self.enter(Protocol::Mqtt, "fickle".to_owned(), part);
        let wills = Wills {
            name: "will".to_owned(),
            dialect: Dialect::new(Door::Mqtt, ExactlyOnce),
            pause_ms: 800,
        };
        let part = wills.run(self.site.clone());
        self.enter(Protocol::Mqtt, "will".to_owned(), part);
    }
}
