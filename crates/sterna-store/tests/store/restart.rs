//! Brokers rebuilt from a store: sessions, subscriptions, retained messages and queues are back.

use std::sync::Arc;

use bytes::Bytes;
use sterna_broker::{
    Broker, Close, CompanionRecord, ConsumerId, Delivery, Directory, Event, Limits, Message,
    MessageHeader, NEVER_EXPIRES_S, NativeFormat, OpenSession, Opened, Outcome, Publication, Qos,
    QueueFull, SessionKey, SessionName, ShardId, SubscribeOptions, Unacknowledged,
};
use sterna_store::MemoryStore;

struct Node {
    brokers: Vec<Broker<()>>,
    directory: Arc<Directory>,
    now_ms: u64,
}

impl Node {
    fn start(store: &MemoryStore, shards: u16, now_ms: u64) -> Self {
        Self::start_with(store, shards, now_ms, Limits::default())
    }

    fn start_with(store: &MemoryStore, shards: u16, now_ms: u64, limits: Limits) -> Self {
        let directory = Directory::new(shards, limits, 7);
        let mut brokers: Vec<_> = (0..shards)
            .map(|shard| {
                let store = Box::new(store.clone());
                Broker::new(ShardId(shard), Arc::clone(&directory), store)
            })
            .collect();
        for broker in &mut brokers {
            broker.restore(now_ms);
        }
        let mut node = Self {
            brokers,
            directory,
            now_ms,
        };
        node.run();
        node
    }

    /// Ends the brokers in order.
    fn stop(mut self) {
        self.run();
        for broker in &mut self.brokers {
            broker.write_cursors();
        }
    }

    fn run(&mut self) {
        loop {
            let mail: Vec<_> = self
                .brokers
                .iter_mut()
                .flat_map(|broker| broker.take_mail().collect::<Vec<_>>())
                .collect();
            if mail.is_empty() {
                return;
            }
            for (to, mail) in mail {
                self.brokers[usize::from(to.0)].mail(self.now_ms, mail);
            }
        }
    }

    fn open(&mut self, shard: usize, client_id: &str, expiry_s: u32) -> (SessionKey, bool) {
        self.open_as(shard, client_id, expiry_s, false)
    }

    fn open_as(
        &mut self,
        shard: usize,
        client_id: &str,
        expiry_s: u32,
        on_demand: bool,
    ) -> (SessionKey, bool) {
        let consumer = ConsumerId(1);
        let request = OpenSession {
            name: SessionName::new(None, client_id),
            clean_start: false,
            expiry_s,
            consumer,
            will: None,
            on_demand,
            selector: None,
        };
        match self.brokers[shard]
            .open(self.now_ms, request)
            .expect("within limits")
        {
            Opened::Ready { session, present } => (session, present),
            Opened::Pending { .. } => {
                self.run();
                loop {
                    match self.brokers[shard]
                        .next_event()
                        .expect("the session arrives")
                    {
                        Event::Opened {
                            session, present, ..
                        } => return (session, present),
                        Event::Evicted { .. }
                        | Event::Drained { .. }
                        | Event::Unsubscribed { .. }
                        | Event::LostRight { .. } => {}
                    }
                }
            }
        }
    }

    fn subscribe(&mut self, shard: usize, key: SessionKey, filter: &str, identifier: Option<u32>) {
        let options = SubscribeOptions {
            qos: Qos::ExactlyOnce,
            identifier,
            ..SubscribeOptions::default()
        };
        self.brokers[shard]
            .subscribe(self.now_ms, key, filter, options)
            .expect("a valid filter");
        self.run();
    }

    fn publish(&mut self, shard: usize, topic: &str, payload: &str, retain: bool) -> usize {
        let header = MessageHeader {
            qos: Qos::ExactlyOnce,
            retain,
            ..MessageHeader::default()
        };
        let message =
            Message::copy(topic, &[], payload.as_bytes(), header).expect("a small message");
        let routed = self.brokers[shard].publish(self.now_ms, Publication::new(None, message));
        self.run();
        routed.matched
    }

    fn next(&mut self, shard: usize, key: SessionKey) -> Option<Delivery> {
        let delivery = self.brokers[shard].next_delivery(self.now_ms, key);
        self.run();
        delivery
    }

    fn drain(&mut self, shard: usize, key: SessionKey) -> Vec<String> {
        let mut payloads = Vec::new();
        while let Some(delivery) = self.next(shard, key) {
            payloads.push(String::from_utf8(delivery.message.payload().to_vec()).expect("text"));
            if delivery.tag != 0 {
                self.brokers[shard].settle(self.now_ms, key, delivery.tag, Outcome::Accepted);
                self.run();
            }
        }
        payloads
    }
}

/// [MQTT-3.1.2-23] [MQTT-4.1.0-1]
#[test]
fn a_restart_loses_nothing_that_was_to_last() {
    for (shards, shards_after) in [(1, 1), (2, 2), (3, 2), (1, 4)] {
        let store = MemoryStore::new();
        let mut node = Node::start(&store, shards, 1_000);
        let last = usize::from(shards) - 1;
        let (lasting, present) = node.open(last, "lasting", 3600);
        assert!(!present);
        let (fleeting, _) = node.open(0, "fleeting", 0);
        let (away, _) = node.open(0, "away", 10);
        node.subscribe(last, lasting, "a/+", Some(5));
        node.subscribe(last, lasting, "gone", None);
        assert!(node.brokers[last].unsubscribe(1_000, lasting, "gone"));
        node.subscribe(0, fleeting, "a/+", None);
        node.subscribe(0, away, "a/1", None);
        node.brokers[0].close(1_000, away, Close::LOST);
        node.publish(0, "r/1", "retained", true);
        node.publish(0, "r/2", "cleared", true);
        node.publish(0, "r/2", "", true);
        for i in 0..5 {
            node.publish(0, "a/1", &i.to_string(), false);
        }
        let tags: Vec<_> = (0..3)
            .map(|_| node.next(last, lasting).unwrap().tag)
            .collect();
        let broker = &mut node.brokers[last];
        assert!(broker.settle(1_000, lasting, tags[0], Outcome::Accepted));
        assert!(broker.handed_over(lasting, tags[1]));
        broker.keep(lasting, b"packet", b"identifiers");
        assert_eq!(store.counts().0, 5, "each message is there once");
        node.stop();

        let mut node = Node::start(&store, shards_after, 2_000);
        assert_eq!(node.directory.sessions(), 2);
        assert_eq!(node.directory.retained().0, 1);
        assert_eq!(node.publish(0, "a/1", "5", false), 2);
        let (lasting, present) = node.open(0, "lasting", 3600);
        assert!(present);
        let broker = &mut node.brokers[0];
        let records = broker.take_records(lasting);
        let packet = (b"packet"[..].into(), b"identifiers"[..].into());
        assert_eq!(records, [packet]);
        assert!(broker.take_records(lasting).is_empty());
        let entries = broker.unacknowledged(lasting);
        let [Unacknowledged::HandedOver { tag, position: 2 }] = &entries[..] else {
            panic!("what was handed over is: {entries:?}");
        };
        assert!(broker.settle(2_000, lasting, *tag, Outcome::Accepted));
        let again = node
            .next(0, lasting)
            .expect("what was only sent comes again");
        assert_eq!(again.message.payload(), b"2");
        assert_eq!(again.identifiers(), [5]);
        assert!(node.brokers[0].settle(2_000, lasting, again.tag, Outcome::Accepted));
        assert_eq!(node.drain(0, lasting), ["3", "4", "5"]);
        node.subscribe(0, lasting, "r/+", None);
        assert_eq!(node.drain(0, lasting), ["retained"]);

        // The session that was away expires when it would have without the restart.
        for broker in &mut node.brokers {
            broker.timeout(10_999);
        }
        assert_eq!(node.directory.sessions(), 2);
        for broker in &mut node.brokers {
            broker.timeout(11_000);
        }
        assert_eq!(node.directory.sessions(), 1);
        let of_away = |key: &[u8]| key.windows(4).any(|part| part == b"away");
        assert!(!store.keys().iter().any(|key| of_away(key)));
    }
}

fn retained(topic: &str, payload: &str) -> Message {
    retained_until(topic, payload, None)
}

fn retained_until(topic: &str, payload: &str, expires_at_ms: Option<u64>) -> Message {
    let header = MessageHeader {
        qos: Qos::ExactlyOnce,
        retain: true,
        expires_at_ms,
        ..MessageHeader::default()
    };
    Message::copy(topic, &[], payload.as_bytes(), header).expect("a small message")
}

fn payload(node: &Node, topic: &str) -> Option<String> {
    let message = node.brokers[0].retained(node.now_ms, topic)?;
    Some(String::from_utf8(message.payload().to_vec()).expect("text"))
}

/// What is known of a publication, its copy for a reader, and what it retains are kept together or not at all, whatever
/// moment the process dies at: a repetition of what is known is not published again.
#[test]
fn a_crash_does_not_part_a_message_from_what_it_retains() {
    for has_reader in [true, false] {
        for appends in 0..4 {
            let store = MemoryStore::new();
            let mut node = Node::start(&store, 1, 1_000);
            let (reader, _) = node.open(0, "reader", 3600);
            let (publisher, _) = node.open(0, "publisher", 3600);
            if has_reader {
                node.subscribe(0, reader, "r/#", None);
            }
            node.publish(0, "r/1", "old", true);
            node.drain(0, reader);
            node.brokers[0].write_cursors();
            store.die_after(appends);
            let broker = &mut node.brokers[0];
            let mut publication = Publication::new(Some(publisher), retained("r/1", "new"));
            publication.companions.record = Some(CompanionRecord::Session {
                session: publisher,
                key: b"identifier",
                value: b"",
            });
            let routed = broker.publish(1_000, publication);
            assert_eq!((routed.refused, routed.token), (None, store.appends()));

            let mut node = Node::start(&store.snapshot(), 1, 2_000);
            let (reader, _) = node.open(0, "reader", 3600);
            let (publisher, _) = node.open(0, "publisher", 3600);
            let is_known = !node.brokers[0].take_records(publisher).is_empty();
            let is_retained = payload(&node, "r/1").as_deref() == Some("new");
            let has_come = node.drain(0, reader).contains(&"new".to_owned());
            let found = (is_known, is_retained, has_come);
            let is_kept = appends > 0;
            assert_eq!(
                found,
                (is_kept, is_kept, is_kept && has_reader),
                "{has_reader} {appends}"
            );
        }
    }
}

#[test]
fn a_crash_does_not_part_a_transaction_from_what_it_retains() {
    for appends in 0..4 {
        let store = MemoryStore::new();
        let mut node = Node::start(&store, 1, 1_000);
        let (reader, _) = node.open(0, "reader", 3600);
        node.subscribe(0, reader, "r/#", None);
        node.publish(0, "r/2", "old", true);
        store.die_after(appends);
        let messages = ["new", "", "last"];
        let messages = (1..)
            .zip(messages)
            .map(|(number, payload)| retained(&format!("r/{number}"), payload));
        let routed = node.brokers[0].publish_together(1_000, None, messages.collect(), &[]);
        assert_eq!((routed.refused, routed.token), (None, store.appends()));

        let mut node = Node::start(&store.snapshot(), 1, 2_000);
        let found = [1, 2, 3].map(|number| payload(&node, &format!("r/{number}")));
        let (reader, _) = node.open(0, "reader", 3600);
        let come = node.drain(0, reader);
        if appends > 0 {
            assert_eq!(
                found,
                [Some("new".to_owned()), None, Some("last".to_owned())]
            );
            assert_eq!(come, ["old", "new", "", "last"]);
        } else {
            assert_eq!(found, [None, Some("old".to_owned()), None]);
            assert_eq!(come, ["old"]);
        }
    }
}

/// A store that refuses a message leaves what its topic had retained, with its expiry.
#[test]
fn a_refused_message_retains_nothing() {
    let store = MemoryStore::new();
    let mut node = Node::start(&store, 1, 1_000);
    let (reader, _) = node.open(0, "reader", 3600);
    node.subscribe(0, reader, "#", None);
    let old = retained_until("r/1", "old", Some(5_000));
    let messages = vec![old, retained("r/2", "old")];
    assert_eq!(
        node.brokers[0]
            .publish_together(1_000, None, messages, &[])
            .refused,
        None
    );
    let before = node.directory.retained();
    store.refuse_next();
    let messages = ["r/1", "r/2", "r/3", "r/1"].map(|topic| retained(topic, "new"));
    let routed = node.brokers[0].publish_together(1_000, None, messages.into(), &[]);
    assert!(routed.refused.is_some());
    assert_eq!(node.directory.retained(), before);
    let found = [1, 2, 3].map(|number| payload(&node, &format!("r/{number}")));
    assert_eq!(
        found,
        [Some("old".to_owned()), Some("old".to_owned()), None]
    );
    node.now_ms = 6_000;
    node.brokers[0].timeout(6_000);
    assert_eq!(payload(&node, "r/1"), None, "it has expired");
    assert_eq!(node.directory.retained().0, 1);
}

/// A shared subscription's queue, with nobody there to read it.
#[test]
fn queues_of_shared_subscriptions_are_back() {
    for shards_after in 1..=3 {
        let store = MemoryStore::new();
        let mut node = Node::start(&store, 2, 1_000);
        let (member, _) = node.open(1, "member", 3600);
        node.subscribe(1, member, "$share/g/t", None);
        node.brokers[1].close(1_000, member, Close::LOST);
        node.run();
        for i in 0..3 {
            assert_eq!(node.publish(0, "t", &i.to_string(), false), 1);
        }
        node.stop();
        let mut node = Node::start(&store, shards_after, 2_000);
        assert_eq!(node.publish(0, "t", "3", false), 1);
        let (member, present) = node.open(0, "member", 3600);
        assert!(present);
        assert_eq!(node.drain(0, member), ["0", "1", "2", "3"]);
        assert!(node.brokers[0].unsubscribe(2_000, member, "$share/g/t"));
        assert_eq!(node.publish(0, "t", "4", false), 0);
    }
}

/// A session that is made to last only when it is closed.
#[test]
fn an_expiry_interval_given_at_the_end_counts() {
    let store = MemoryStore::new();
    let mut node = Node::start(&store, 1, 1_000);
    let (key, _) = node.open(0, "a", 0);
    node.subscribe(0, key, "t", None);
    node.publish(0, "t", "1", false);
    node.publish(0, "t", "2", false);
    node.next(0, key).unwrap();
    assert_eq!(store.counts(), (0, 0));
    node.brokers[0].close(
        1_000,
        key,
        Close {
            expiry_s: Some(100),
            ..Close::NORMAL
        },
    );
    drop(node);
    let mut node = Node::start(&store, 1, 2_000);
    let (key, present) = node.open(0, "a", 100);
    assert!(present, "what was published before was not to last");
    assert_eq!(node.publish(0, "t", "3", false), 1);
    assert_eq!(node.drain(0, key), ["3"]);
    // And the other way round.
    node.brokers[0].close(
        2_000,
        key,
        Close {
            expiry_s: Some(0),
            ..Close::NORMAL
        },
    );
    assert_eq!(store.counts().1, 0);
}

/// Released deliveries stand in front, also after a restart.
#[test]
fn the_order_of_released_deliveries_is_kept() {
    let store = MemoryStore::new();
    let mut node = Node::start(&store, 1, 1_000);
    let (key, _) = node.open(0, "a", 100);
    node.subscribe(0, key, "t", None);
    for i in 0..4 {
        node.publish(0, "t", &i.to_string(), false);
    }
    let tags: Vec<_> = (0..3).map(|_| node.next(0, key).unwrap().tag).collect();
    for tag in tags.into_iter().rev() {
        node.brokers[0].settle(1_000, key, tag, Outcome::Released);
    }
    drop(node);
    let mut node = Node::start(&store, 1, 2_000);
    let (key, _) = node.open(0, "a", 100);
    assert_eq!(node.drain(0, key), ["0", "1", "2", "3"]);
}

/// What was assigned to a member whose session doesn't last is the group's again after a crash,
/// unless it was exactly-once and sent: then it was for that member only. [MQTT-4.8.2-5]
#[test]
fn a_crash_does_not_take_assigned_messages_along() {
    let store = MemoryStore::new();
    let mut node = Node::start(&store, 2, 1_000);
    let (fleeting, _) = node.open(0, "fleeting", 0);
    node.subscribe(0, fleeting, "$share/g/t", None);
    let (lasting, _) = node.open(1, "lasting", 100);
    node.subscribe(1, lasting, "$share/g/t", None);
    node.brokers[1].close(1_000, lasting, Close::LOST);
    node.run();
    for i in 0..4 {
        node.publish(1, "t", &i.to_string(), false);
    }
    assert_eq!(node.next(0, fleeting).unwrap().message.payload(), b"0");
    node.stop();
    let mut node = Node::start(&store, 1, 2_000);
    let (lasting, _) = node.open(0, "lasting", 100);
    assert_eq!(node.drain(0, lasting), ["1", "2", "3"]);
}

/// A member had a message of QoS 2, and its session has ended. A crash right after that gives it to nobody else.
/// [MQTT-4.8.2-5]
#[test]
fn a_crash_gives_nobody_what_an_ended_session_had() {
    for shards in 1..=2 {
        let store = MemoryStore::new();
        let mut node = Node::start(&store, shards, 1_000);
        let (first, _) = node.open(0, "first", 100);
        node.subscribe(0, first, "$share/g/t", None);
        node.publish(0, "t", "0", false);
        assert_eq!(node.next(0, first).unwrap().message.payload(), b"0");
        let shard = usize::from(shards) - 1;
        let (second, _) = node.open(shard, "second", 100);
        node.subscribe(shard, second, "$share/g/t", None);
        let close = Close {
            expiry_s: Some(0),
            ..Close::NORMAL
        };
        node.brokers[0].close(1_000, first, close);
        node.run();
        // No cursor is written.
        drop(node);
        let mut node = Node::start(&store, 1, 2_000);
        let (second, _) = node.open(0, "second", 100);
        assert_eq!(node.drain(0, second), Vec::<String>::new(), "{shards}");
    }
}

/// A kept queue is one again: with its messages of all levels, those that were out in their old
/// places and counted as failed, and as full as it was.
#[test]
fn a_kept_queue_outlives_the_broker_with_what_its_consumers_had() {
    const QUEUE: &str = "$share/g/t";
    for shards_after in 1..=3 {
        let store = MemoryStore::new();
        let mut node = Node::start(&store, 2, 1_000);
        let (anchor, _) = node.open_as(0, "anchor", NEVER_EXPIRES_S, true);
        let options = SubscribeOptions {
            keep: true,
            ..SubscribeOptions::default()
        };
        node.brokers[0]
            .subscribe(1_000, anchor, QUEUE, options)
            .expect("a valid filter");
        node.brokers[0].close(1_000, anchor, Close::NORMAL);
        node.run();
        for i in 0..5 {
            let header = MessageHeader {
                qos: Qos::from_u8(i % 3).expect("a level"),
                ..MessageHeader::default()
            };
            let body = Bytes::from(format!("t{i}+native{i}"));
            let message = Message::from_body(body, 0..1, 0..0, 1..2, header)
                .and_then(|message| message.with_native(NativeFormat::Amqp, 3..10))
                .expect("it fits");
            let origin = None;
            node.brokers[1].publish(1_000, Publication::new(origin, message));
            node.run();
        }
        let (fleeting, _) = node.open_as(0, "fleeting", 0, true);
        let (lasting, _) = node.open_as(1, "lasting", 100, true);
        for (shard, consumer) in [(0, fleeting), (1, lasting)] {
            node.subscribe(shard, consumer, QUEUE, None);
            node.brokers[shard].demand(1_000, consumer, 2);
            node.run();
            let delivery = node.next(shard, consumer).expect("one is assigned");
            if shard == 1 {
                let settled =
                    node.brokers[1].settle(1_000, consumer, delivery.tag, Outcome::Accepted);
                assert!(settled);
                node.run();
            }
        }
        node.stop();
        let mut node = Node::start(&store, shards_after, 2_000);
        let (consumer, _) = node.open_as(0, "consumer", 0, true);
        node.subscribe(0, consumer, QUEUE, None);
        node.brokers[0].demand(2_000, consumer, 100);
        node.run();
        let mut seen = Vec::new();
        while let Some(delivery) = node.next(0, consumer) {
            let native = delivery.message.native().expect("it has one").1.to_vec();
            let native = String::from_utf8(native).expect("text");
            assert_eq!(delivery.failures, 0, "nobody said so");
            seen.push((native, delivery.qos, delivery.redelivered));
            node.brokers[0].settle(2_000, consumer, delivery.tag, Outcome::Accepted);
            node.run();
        }
        // The first two were assigned to one consumer, the second two to the other, which has
        // settled the third. With members connected, any of the rest may have been sent when the process ended.
        let expected = [
            ("native0", Qos::AtLeastOnce, true),
            ("native1", Qos::AtLeastOnce, true),
            ("native3", Qos::AtLeastOnce, true),
            ("native4", Qos::AtLeastOnce, true),
        ];
        let expected = expected.map(|(native, qos, again)| (native.to_owned(), qos, again));
        assert_eq!(seen, expected);
        assert!(node.brokers[0].unsubscribe(2_000, consumer, QUEUE));
        assert_eq!(node.publish(0, "t", "still there", false), 1);
    }
}

/// Who has taken a client identifier first has taken it from nobody else.
#[test]
fn a_restored_session_is_its_users_alone() {
    let store = MemoryStore::new();
    let open = |node: &mut Node, user| {
        let request = OpenSession {
            name: SessionName::new(user, "a"),
            clean_start: false,
            expiry_s: NEVER_EXPIRES_S,
            consumer: ConsumerId(1),
            will: None,
            on_demand: false,
            selector: None,
        };
        node.brokers[0].open(node.now_ms, request)
    };
    let users = [Some("ann"), Some("bob"), None];
    let mut node = Node::start(&store, 1, 0);
    for user in users {
        assert!(matches!(
            open(&mut node, user),
            Ok(Opened::Ready { present: false, .. })
        ));
    }
    drop(node);
    let mut node = Node::start(&store, 1, 1_000);
    for user in users {
        assert!(matches!(
            open(&mut node, user),
            Ok(Opened::Ready { present: true, .. })
        ));
    }
}

/// Which messages of those that were published while a session was away are within the limit of its queue.
#[test]
fn the_limit_of_a_queue_holds_for_a_session_that_was_away() {
    for (queue_full, expected) in [
        (QueueFull::DropNewest, ["0", "1", "2"]),
        (QueueFull::DropOldest, ["7", "8", "9"]),
    ] {
        for restarts in [false, true] {
            let limits = Limits {
                away_messages: 3,
                queue_full,
                read_ahead_messages: 2,
                ..Limits::default()
            };
            let store = MemoryStore::new();
            let mut node = Node::start_with(&store, 1, 1_000, limits.clone());
            let (key, _) = node.open(0, "a", 100);
            node.subscribe(0, key, "t", None);
            node.brokers[0].close(1_000, key, Close::LOST);
            for i in 0..10 {
                assert_eq!(node.publish(0, "t", &i.to_string(), false), 1);
            }
            if restarts {
                node.stop();
                node = Node::start_with(&store, 1, 2_000, limits);
            }
            let (key, _) = node.open(0, "a", 100);
            assert_eq!(node.publish(0, "t", "live", false), 1);
            let got = node.drain(0, key);
            assert_eq!(got[..3], expected);
            assert_eq!(got[3..], ["live"]);
            assert_eq!(node.brokers[0].counters().dropped_full, 7);
        }
    }
}

/// What a message costs does not depend on how many want it, and nothing where nobody who lasts does.
#[test]
fn a_message_is_appended_once_and_only_where_it_is_wanted() {
    let store = MemoryStore::new();
    let mut node = Node::start(&store, 2, 1_000);
    let (fleeting, _) = node.open(0, "fleeting", 0);
    node.subscribe(0, fleeting, "#", None);
    let lasting: Vec<_> = (0..100)
        .map(|i| {
            let shard = i % 2;
            let (key, _) = node.open(shard, &format!("lasting-{i}"), 100);
            node.subscribe(shard, key, "t", None);
            (shard, key)
        })
        .collect();
    let before = store.appends();
    node.publish(0, "other", "nobody who lasts wants this", false);
    assert_eq!(store.appends(), before, "the store is not touched");
    node.publish(0, "t", "present", false);
    assert_eq!((store.appends(), store.counts().0), (before + 1, 1));
    for (shard, key) in lasting {
        node.brokers[shard].close(1_000, key, Close::LOST);
    }
    node.run();
    let before = store.appends();
    node.publish(1, "t", "away", false);
    assert_eq!((store.appends(), store.counts().0), (before + 1, 2));
    let held: u64 = node
        .brokers
        .iter()
        .map(|broker| broker.counters().stored_messages)
        .sum();
    assert_eq!(
        held, 3,
        "only the fleeting session's: who is away holds nothing"
    );
}
