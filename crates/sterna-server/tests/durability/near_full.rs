//! A reader of `#` that acknowledges nothing while the store fills: it is let go, and publishers go on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use sterna_amqp::link::AttachOptions;
use sterna_amqp::performatives::Role;
use sterna_broker::Limits;
use sterna_mqtt::packet::{Connect, Publish, SubscribeOptions};
use sterna_mqtt::{Packet, PacketId, Property, QoS, Version};
use sterna_store::disk::SimulatedDisk;
use sterna_store::{Engine, ShardStore};

use crate::amqp::durable;
use crate::amqp_client::{Client as AmqpClient, Happened};
use crate::fixture::{Broker, Lines, Peer, block, plain, publish};
use crate::h3_client::Client as HttpClient;
use crate::page;

const V5: Version = Version::V5;

/// Room of the log.
const MAXIMUM_BYTES: u64 = 1 << 20;
/// Messages that take a quarter more than the room, with their headers.
const MESSAGES: u32 = 2_048;
const BODY_BYTES: usize = 512;
/// Messages that are published at a time, 8 KiB.
const BATCH: u32 = 16;
/// Time between two batches while there is room.
const FAST_MS: u64 = 100;
/// The same from there on, so that a fifth of the room is not full before segments are rewritten. That is every five
/// seconds, with the changes of records that are in their file, which is written every five seconds.
const BATCH_MS: u64 = 1_000;
const STEP_MS: u64 = 10;
/// Messages that a limited session may have waiting.
const AWAY_MESSAGES: u64 = 10;

/// A broker on the engine of the store, and a disk in memory.
struct Stage {
    broker: Broker,
    engine: Engine,
    woken: Arc<AtomicBool>,
    disk: SimulatedDisk,
    now_ms: u64,
    publisher: Peer,
    published: u32,
    batch_ms: u64,
}

impl Stage {
    fn new() -> Self {
        Self::with(Limits {
            survey_interval_ms: 200,
            away_messages: AWAY_MESSAGES,
            unacknowledged: 10,
            ..Limits::default()
        })
    }

    fn with(limits: Limits) -> Self {
        let mut config = page::config();
        config.sys.interval_s = 0;
        config.amqp.idle_timeout_ms = 3_600_000;
        config.http.idle_timeout_ms = 3_600_000;
        config.store.maximum_bytes = MAXIMUM_BYTES;
        config.store.segment_bytes = 8 << 10;
        config.store.minimum_free_bytes = 0;
        let disk = SimulatedDisk::new(1);
        let now_ms = 1_700_000_000_000;
        disk.set_now_ms(now_ms);
        let settings = sterna_store::Settings::from(&config.store);
        assert_eq!(settings.check(), Ok(()));
        let engine = Engine::open(Arc::new(disk.clone()), settings).expect("the store opens");
        let woken = Arc::new(AtomicBool::new(false));
        let failure = Arc::new(OnceLock::new());
        let mut broker = Broker::restored_at(&config, 1, limits, now_ms, || {
            let woken = Arc::clone(&woken);
            let handle = engine.handle(Box::new(move || woken.store(true, Ordering::Relaxed)));
            Box::new(ShardStore::new(handle, Arc::clone(&failure)))
        });
        let publisher = broker.client(V5, "publisher");
        Self {
            broker,
            engine,
            woken,
            disk,
            now_ms,
            publisher,
            published: 0,
            batch_ms: FAST_MS,
        }
    }

    /// The store does all that it has to.
    fn work(&mut self) {
        loop {
            let worked = self.engine.turn(self.now_ms, &mut || false);
            if self.woken.swap(false, Ordering::Relaxed) {
                self.broker.wake();
            } else if !worked {
                return;
            }
        }
    }

    /// Time passes.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(STEP_MS) {
            self.now_ms += STEP_MS;
            self.disk.set_now_ms(self.now_ms);
            self.broker.advance(STEP_MS);
            self.work();
        }
        self.broker.inputs.clear();
    }

    /// Publishes the next numbers, each of which is acknowledged, and lets a survey follow.
    fn publish(&mut self) {
        for number in self.published..self.published + BATCH {
            let payload = format!("{number:0BODY_BYTES$}");
            let packet = Packet::Publish(Publish {
                packet_id: PacketId::new(number as u16 + 1),
                ..publish("t/a", &payload, QoS::AtLeastOnce)
            });
            self.broker.packet(self.publisher, V5, &packet);
        }
        self.published += BATCH;
        self.pass(self.batch_ms);
        let told = self.broker.told(self.publisher, V5);
        let is_success = |told: &&String| told.starts_with("PUBACK") && told.ends_with(" Success");
        let acknowledged = told.iter().filter(is_success).count();
        assert_eq!(acknowledged, BATCH as usize, "{} {told:?}", self.published);
    }

    /// Publishes until that is so. Returns how many were published before.
    fn publish_until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) -> u32 {
        while !is_so(self) {
            assert!(self.published < MESSAGES, "nobody is let go");
            self.publish();
        }
        self.batch_ms = BATCH_MS;
        self.published
    }

    fn publish_rest(&mut self) {
        while self.published < MESSAGES {
            self.publish();
        }
    }

    /// One reader was let go, which the log says once.
    fn check(&mut self, lines: &Lines) {
        let page = page::scrape(&mut self.broker);
        assert_eq!(page.value("sterna_store_readers_let_go_total"), 1);
        let text = lines.text();
        let warnings: Vec<&str> = (text.lines())
            .filter(|line| line.contains("little room left"))
            .collect();
        assert!(
            matches!(&*warnings, [one] if one.contains("WARN") && one.contains("reader")),
            "{warnings:?}"
        );
    }
}

/// Plays with what the log is given on this thread.
pub(crate) fn with_lines(play: impl FnOnce(&Lines)) {
    Lines::of(tracing::Level::WARN, play);
}

fn connect(broker: &mut Broker) -> Peer {
    connect_as(broker, V5)
}

fn connect_as(broker: &mut Broker, version: Version) -> Peer {
    let peer = broker.open();
    let seconds = [Property::SessionExpiryInterval(1_000)];
    let properties = block(if version == V5 { &seconds } else { &[] });
    let connect = Connect {
        clean_start: false,
        keep_alive_s: 0,
        properties: properties.properties(),
        ..plain(version, "reader")
    };
    broker.packet(peer, version, &Packet::Connect(connect));
    peer
}

/// The packet identifiers and numbers of what has come.
fn came(broker: &mut Broker, peer: Peer) -> Vec<(u16, u32)> {
    let came = broker.packets(peer, V5, |packet| match packet {
        Packet::Publish(publish) => {
            let text = std::str::from_utf8(publish.payload).expect("text");
            let number = text.parse::<u32>().expect("a number");
            publish.packet_id.map(|id| (id.get(), number))
        }
        _ => None,
    });
    came.into_iter().flatten().collect()
}

#[test]
fn a_reader_of_mqtt_that_acknowledges_nothing_is_let_go_before_publishers_are_refused() {
    with_lines(|lines| {
        let mut stage = Stage::new();
        let reader = connect(&mut stage.broker);
        stage.work();
        assert_eq!(stage.broker.told(reader, V5), ["CONNACK Success"]);
        let options = SubscribeOptions::new(QoS::AtLeastOnce);
        stage.broker.subscribe_with(reader, V5, "#", options, &[]);
        stage.work();
        let mut told = Vec::new();
        let before = stage.publish_until(|stage| {
            told.extend(stage.broker.told(reader, V5));
            stage.broker.is_closed(reader)
        });
        let last = told.last().map(String::as_str);
        assert_eq!(last, Some("DISCONNECT Quota exceeded"));
        assert!(u64::from(before) * 512 > MAXIMUM_BYTES / 2, "{before}");
        // It is back at once, and acknowledges nothing again.
        let reader = connect(&mut stage.broker);
        stage.work();
        stage.publish_rest();
        assert!(!stage.broker.is_closed(reader), "once");
        stage.check(lines);
        // All from before it was let go, and what its limits admit.
        let mut numbers = Vec::new();
        loop {
            stage.pass(FAST_MS);
            let came = came(&mut stage.broker, reader);
            if came.is_empty() {
                break;
            }
            for (id, number) in came {
                let [high, low] = id.to_be_bytes();
                stage.broker.send(reader, &[0x40, 2, high, low]);
                numbers.push(number);
            }
        }
        let all = before + AWAY_MESSAGES as u32;
        assert_eq!(numbers, (0..all).collect::<Vec<_>>());
        // From here on nothing counts.
        let next = stage.published;
        stage.publish();
        stage.publish();
        let came = came(&mut stage.broker, reader);
        assert_eq!(came.first().map(|(_, number)| *number), Some(next));
    });
}

/// Versions before 5.0 have no word for it.
#[test]
fn a_reader_of_an_older_version_is_let_go_without_a_word() {
    with_lines(|lines| {
        let mut stage = Stage::new();
        let reader = connect_as(&mut stage.broker, Version::V311);
        stage.work();
        let told = stage.broker.told(reader, Version::V311);
        assert_eq!(told, ["CONNACK Success"]);
        let options = SubscribeOptions::new(QoS::AtLeastOnce);
        (stage.broker).subscribe_with(reader, Version::V311, "#", options, &[]);
        stage.work();
        let mut told = Vec::new();
        stage.publish_until(|stage| {
            told.extend(stage.broker.told(reader, Version::V311));
            stage.broker.is_closed(reader)
        });
        let is_message = |line: &String| line.starts_with("PUBLISH1 t/a=");
        assert_eq!(told[0], "SUBACK 1 0x01");
        assert!(told[1..].iter().all(is_message), "{:?}", told.last());
        let again = connect_as(&mut stage.broker, Version::V311);
        stage.work();
        stage.publish_rest();
        assert!(!stage.broker.is_closed(again), "once");
        stage.check(lines);
    });
}

#[test]
fn a_reader_of_amqp_that_settles_nothing_is_let_go_before_publishers_are_refused() {
    with_lines(|lines| {
        let mut stage = Stage::new();
        stage.broker.listener = page::AMQP;
        let mut client = AmqpClient::connect(&mut stage.broker, "reader");
        stage.broker.listener = page::MQTT;
        let session = client.begin(&mut stage.broker);
        let link = client.receiver(&mut stage.broker, session, "sub", durable("#"), 10);
        stage.work();
        client.turn(&mut stage.broker);
        stage.publish_until(|stage| {
            client.turn(&mut stage.broker);
            client.happened.iter().any(|happened| {
                matches!(happened, Happened::Detached { link: detached, condition: Some(condition), .. }
                    if *detached == link && condition == "amqp:resource-limit-exceeded")
            })
        });
        assert_eq!(client.received.len(), 10);
        let recover = AttachOptions {
            recover: true,
            ..AttachOptions::default()
        };
        client.happened.clear();
        client.attach(&mut stage.broker, session, "sub", Role::Receiver, &recover);
        stage.work();
        stage.publish_rest();
        client.turn(&mut stage.broker);
        let is_detached = |happened: &Happened| matches!(happened, Happened::Detached { .. });
        assert!(!client.happened.iter().any(is_detached), "once");
        stage.check(lines);
    });
}

#[test]
fn a_reader_of_http_that_acknowledges_nothing_is_let_go_before_publishers_are_refused() {
    with_lines(|lines| {
        let mut stage = Stage::new();
        let get = "/v1/topics/%23?session=reader&qos=1";
        stage.broker.listener = page::HTTP;
        let mut client = HttpClient::connect(&mut stage.broker);
        stage.broker.listener = page::MQTT;
        let number = client.request(&mut stage.broker, "GET", get, &[], b"");
        stage.work();
        client.turn(&mut stage.broker);
        assert_eq!(client.response(number).status, 200);
        stage.publish_until(|stage| {
            client.turn(&mut stage.broker);
            client.response(number).is_complete
        });
        let again = client.request(&mut stage.broker, "GET", get, &[], b"");
        stage.work();
        stage.publish_rest();
        client.turn(&mut stage.broker);
        assert_eq!(client.response(again).status, 200);
        assert!(!client.response(again).is_complete, "once");
        stage.check(lines);
    });
}

/// The times between surveys and checkpoints are those of the settings. A small store is full before they are over, of what
/// everybody has settled.
#[test]
fn a_small_store_takes_messages_as_fast_as_its_readers_settle_them() {
    for batch_ms in [40, 20] {
        let mut stage = Stage::with(Limits::default());
        stage.batch_ms = batch_ms;
        let reader = connect(&mut stage.broker);
        stage.work();
        assert_eq!(stage.broker.told(reader, V5), ["CONNACK Success"]);
        let options = SubscribeOptions::new(QoS::AtLeastOnce);
        stage.broker.subscribe_with(reader, V5, "#", options, &[]);
        stage.work();
        let mut next = 0;
        while stage.published < 4 * MESSAGES {
            stage.publish();
            for (id, number) in came(&mut stage.broker, reader) {
                assert_eq!(number, next);
                next += 1;
                let [high, low] = id.to_be_bytes();
                stage.broker.send(reader, &[0x40, 2, high, low]);
            }
        }
        assert!(stage.published - next <= 2 * BATCH, "{next}");
        assert!(!stage.broker.is_closed(reader));
    }
}
