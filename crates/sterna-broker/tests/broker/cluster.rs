//! Several shards' brokers in one thread, and the mail between them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sterna_broker::{
    Broker, Close, Companions, ConsumerId, Delivery, Directory, Event, Limits, Mail, Message,
    MessageHeader, NEVER_EXPIRES_S, NoStore, OpenSession, Opened, Outcome, Ownership, Publication,
    Qos, QueueRules, Routed, Selector, SessionKey, SessionName, ShardId, Store, SubscribeOptions,
    Subscribed, Will,
};

use crate::late_store;

/// A front door's state, to see that it goes where the session goes.
pub(crate) type Protocol = Vec<u32>;

pub(crate) struct Cluster {
    pub(crate) brokers: Vec<Broker<Protocol>>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) now_ms: u64,
    mail: BTreeMap<(u16, u16), VecDeque<Mail<Protocol>>>,
    pub(crate) events: Vec<Event>,
    next_consumer: u64,
    /// Number of messages that were sent.
    sent: u64,
    /// What shards have told of whose sessions are, in a cluster of nodes.
    pub(crate) notes: Vec<Ownership>,
    /// Whether other nodes leave this one every session that it claims.
    pub(crate) is_granted: bool,
}

/// A session as a test knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) shard: u16,
    pub(crate) key: SessionKey,
    pub(crate) consumer: ConsumerId,
    pub(crate) present: bool,
}

pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8(delivery.message.payload().to_vec()).expect("text")
}

pub(crate) fn message(topic: &str, payload: &str, qos: Qos, retain: bool) -> Message {
    let header = MessageHeader {
        qos,
        retain,
        ..MessageHeader::default()
    };
    Message::copy(topic, &[], payload.as_bytes(), header).expect("a small message")
}

pub(crate) fn expiring(topic: &str, payload: &str, qos: Qos, expires_at_ms: u64) -> Message {
    let header = MessageHeader {
        qos,
        expires_at_ms: Some(expires_at_ms),
        ..MessageHeader::default()
    };
    Message::copy(topic, &[], payload.as_bytes(), header).expect("a small message")
}

pub(crate) fn qos(qos: Qos) -> SubscribeOptions {
    SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    }
}

/// The name of the session of a client without a user name.
pub(crate) fn named(id: &str) -> SessionName {
    SessionName::new(None, id)
}

impl Cluster {
    pub(crate) fn new(shards: u16) -> Self {
        Self::with(shards, Limits::default(), |_| Box::new(NoStore))
    }

    pub(crate) fn limited(limits: Limits) -> Self {
        Self::with(1, limits, |_| Box::new(NoStore))
    }

    pub(crate) fn with(shards: u16, limits: Limits, store: impl Fn(u16) -> Box<dyn Store>) -> Self {
        let directory = Directory::new(shards, limits, 42);
        let brokers = (0..shards)
            .map(|shard| Broker::new(ShardId(shard), Arc::clone(&directory), store(shard)))
            .collect();
        Self {
            brokers,
            directory,
            now_ms: 1_000_000,
            mail: BTreeMap::new(),
            events: Vec::new(),
            next_consumer: 0,
            sent: 0,
            notes: Vec::new(),
            is_granted: true,
        }
    }

    /// Gathers mail and events from a shard.
    pub(crate) fn collect(&mut self, shard: u16) {
        let broker = &mut self.brokers[usize::from(shard)];
        for (to, mail) in broker.take_mail() {
            assert_ne!(to.0, shard, "no mail to oneself");
            self.mail.entry((shard, to.0)).or_default().push_back(mail);
        }
        while let Some(event) = broker.next_event() {
            self.events.push(event);
        }
    }

    /// Delivers the next letter of one pair of shards.
    pub(crate) fn deliver_one(&mut self, from: u16, to: u16) -> bool {
        let Some(mail) = self.mail.get_mut(&(from, to)).and_then(VecDeque::pop_front) else {
            return false;
        };
        self.brokers[usize::from(to)].mail(self.now_ms, mail);
        self.collect(to);
        true
    }

    /// The pairs of shards that have mail under way.
    pub(crate) fn pairs(&self) -> Vec<(u16, u16)> {
        self.mail
            .iter()
            .filter(|(_, mail)| !mail.is_empty())
            .map(|(&pair, _)| pair)
            .collect()
    }

    /// Delivers all mail, and what follows from it.
    pub(crate) fn run(&mut self) {
        loop {
            while let Some(&(from, to)) = self.pairs().first() {
                self.deliver_one(from, to);
            }
            if !self.poll_stores() && !self.hear() {
                return;
            }
        }
    }

    /// Takes what shards tell of whose sessions are; false where they tell nothing.
    fn hear(&mut self) -> bool {
        let mut is_told = false;
        for shard in 0..self.brokers.len() {
            let now_ms = self.now_ms;
            for note in self.brokers[shard].take_ownership() {
                is_told = true;
                if let (Ownership::Claim { session, .. }, true) = (&note, self.is_granted) {
                    self.brokers[shard].session_claimed(now_ms, *session, Ok(()));
                }
                self.notes.push(note);
            }
            self.collect(shard as u16);
        }
        is_told
    }

    /// Wakes all shards where a store owes answers; false where none does.
    pub(crate) fn poll_stores(&mut self) -> bool {
        let is_awaited = late_store::is_awaited();
        for shard in 0..self.brokers.len() {
            if is_awaited {
                let now_ms = self.now_ms;
                self.brokers[shard].poll_store(now_ms);
                self.collect(shard as u16);
            }
        }
        is_awaited
    }

    pub(crate) fn broker(&mut self, shard: u16) -> &mut Broker<Protocol> {
        &mut self.brokers[usize::from(shard)]
    }

    pub(crate) fn start_open(
        &mut self,
        shard: u16,
        client_id: &str,
        clean_start: bool,
        expiry_s: u32,
        will: Option<Will>,
    ) -> (ConsumerId, Opened) {
        let request = OpenSession {
            name: named(client_id),
            clean_start,
            expiry_s,
            consumer: ConsumerId::default(),
            will,
            on_demand: false,
            selector: None,
        };
        self.start_request(shard, request)
    }

    /// As [`start_open`](Self::start_open); the request is given a consumer of its own.
    pub(crate) fn start_request(
        &mut self,
        shard: u16,
        request: OpenSession,
    ) -> (ConsumerId, Opened) {
        self.next_consumer += 1;
        let consumer = ConsumerId(self.next_consumer);
        let now_ms = self.now_ms;
        let request = OpenSession {
            consumer,
            ..request
        };
        let opened = self
            .broker(shard)
            .open(now_ms, request)
            .expect("within limits");
        self.collect(shard);
        (consumer, opened)
    }

    pub(crate) fn open_with(
        &mut self,
        shard: u16,
        client_id: &str,
        clean_start: bool,
        expiry_s: u32,
        will: Option<Will>,
    ) -> Client {
        let (consumer, opened) = self.start_open(shard, client_id, clean_start, expiry_s, will);
        self.opened(shard, consumer, opened)
    }

    /// A session that lasts for the connection, of a consumer that takes messages on demand.
    pub(crate) fn open_on_demand(
        &mut self,
        shard: u16,
        client_id: &str,
        selector: Option<Arc<dyn Selector>>,
    ) -> Client {
        let request = OpenSession {
            name: named(client_id),
            clean_start: false,
            expiry_s: 0,
            consumer: ConsumerId::default(),
            will: None,
            on_demand: true,
            selector,
        };
        let (consumer, opened) = self.start_request(shard, request);
        self.opened(shard, consumer, opened)
    }

    /// A kept queue: its anchor is a session that isn't connected.
    pub(crate) fn keep(&mut self, shard: u16, filter: &str) -> Client {
        let request = OpenSession {
            name: named(filter),
            clean_start: false,
            expiry_s: NEVER_EXPIRES_S,
            consumer: ConsumerId::default(),
            will: None,
            on_demand: true,
            selector: None,
        };
        let (consumer, opened) = self.start_request(shard, request);
        let anchor = self.opened(shard, consumer, opened);
        let options = SubscribeOptions {
            keep: true,
            ..qos(Qos::ExactlyOnce)
        };
        self.subscribe(anchor, filter, options);
        self.close(anchor, Close::NORMAL);
        anchor
    }

    /// A kept queue with rules.
    pub(crate) fn keep_with(&mut self, shard: u16, filter: &str, rules: QueueRules) -> Client {
        let anchor = self.open_on_demand(shard, filter, None);
        let now_ms = self.now_ms;
        let kept =
            self.broker(shard)
                .keep_queue(now_ms, anchor.key, filter, qos(Qos::ExactlyOnce), rules);
        kept.expect("a valid filter within limits");
        self.collect(shard);
        self.run();
        anchor
    }

    /// A consumer of a kept queue.
    pub(crate) fn consume(&mut self, shard: u16, client_id: &str, filter: &str) -> Client {
        let client = self.open_on_demand(shard, client_id, None);
        self.subscribe(client, filter, qos(Qos::ExactlyOnce));
        client
    }

    pub(crate) fn demand(&mut self, client: Client, credit: u32) {
        let now_ms = self.now_ms;
        self.broker(client.shard).demand(now_ms, client.key, credit);
        self.collect(client.shard);
    }

    pub(crate) fn start_drain(&mut self, client: Client) {
        let now_ms = self.now_ms;
        self.broker(client.shard).drain(now_ms, client.key);
        self.collect(client.shard);
    }

    /// How often a client was told that it is drained.
    pub(crate) fn drained(&self, client: Client) -> usize {
        let told = |event: &&Event| matches!(event, Event::Drained { consumer, session } if (*consumer, *session) == (client.consumer, client.key));
        self.events.iter().filter(told).count()
    }

    pub(crate) fn pending(&mut self, client: Client) -> usize {
        let queue = self.broker(client.shard).queue(client.key);
        queue.map_or(0, |queue| queue.pending)
    }

    pub(crate) fn opened(&mut self, shard: u16, consumer: ConsumerId, opened: Opened) -> Client {
        let (key, present) = match opened {
            Opened::Ready { session, present } => (session, present),
            Opened::Pending { session: pending } => {
                self.run();
                let arrived = self.events.iter().rev().find_map(|event| match event {
                    Event::Opened {
                        consumer: who,
                        session,
                        present,
                    } if *who == consumer => Some((*session, *present)),
                    _ => None,
                });
                let (session, present) = arrived.expect("a claimed session arrives");
                assert_eq!(session, pending);
                (session, present)
            }
        };
        Client {
            shard,
            key,
            consumer,
            present,
        }
    }

    /// A persistent session, resumed if it is there.
    pub(crate) fn open(&mut self, shard: u16, client_id: &str) -> Client {
        self.open_with(shard, client_id, false, 3600, None)
    }

    pub(crate) fn subscribe(
        &mut self,
        client: Client,
        filter: &str,
        options: SubscribeOptions,
    ) -> Subscribed {
        let now_ms = self.now_ms;
        let result = self
            .broker(client.shard)
            .subscribe(now_ms, client.key, filter, options);
        self.collect(client.shard);
        self.run();
        result.expect("a valid filter within limits")
    }

    pub(crate) fn unsubscribe(&mut self, client: Client, filter: &str) -> bool {
        let now_ms = self.now_ms;
        let existed = self
            .broker(client.shard)
            .unsubscribe(now_ms, client.key, filter);
        self.collect(client.shard);
        self.run();
        existed
    }

    pub(crate) fn send(
        &mut self,
        shard: u16,
        origin: Option<SessionKey>,
        message: Message,
    ) -> Routed {
        let now_ms = self.now_ms;
        self.sent += 1;
        // It is the same whether a message lies in its packet or not.
        let lies_in_packet = self.sent.is_multiple_of(2) && message.native().is_none();
        let broker = self.broker(shard);
        let routed = if lies_in_packet {
            (broker.publish_parts(now_ms, origin, message.parts(), Companions::default()))
                .expect("it is a message")
        } else {
            broker.publish(now_ms, Publication::new(origin, message))
        };
        self.collect(shard);
        routed
    }

    /// Publishes from a shard and carries the mail.
    pub(crate) fn publish(&mut self, shard: u16, topic: &str, payload: &str, qos: Qos) -> Routed {
        let routed = self.send(shard, None, message(topic, payload, qos, false));
        self.run();
        routed
    }

    pub(crate) fn retain(&mut self, shard: u16, topic: &str, payload: &str) -> Routed {
        let routed = self.send(shard, None, message(topic, payload, Qos::ExactlyOnce, true));
        self.run();
        routed
    }

    pub(crate) fn next(&mut self, client: Client) -> Option<Delivery> {
        let now_ms = self.now_ms;
        let delivery = self.broker(client.shard).next_delivery(now_ms, client.key);
        self.collect(client.shard);
        delivery
    }

    /// Takes everything that a client can be sent now.
    pub(crate) fn take(&mut self, client: Client) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        while let Some(delivery) = self.next(client) {
            deliveries.push(delivery);
            self.run();
        }
        deliveries
    }

    /// Takes everything and accepts it; returns the payloads.
    pub(crate) fn drain(&mut self, client: Client) -> Vec<String> {
        let mut payloads = Vec::new();
        loop {
            let deliveries = self.take(client);
            if deliveries.is_empty() {
                return payloads;
            }
            for delivery in deliveries {
                payloads.push(text(&delivery));
                if delivery.tag != 0 {
                    self.settle(client, delivery.tag, Outcome::Accepted);
                }
            }
        }
    }

    pub(crate) fn settle(&mut self, client: Client, tag: u64, outcome: Outcome) {
        let now_ms = self.now_ms;
        assert!(
            self.broker(client.shard)
                .settle(now_ms, client.key, tag, outcome)
        );
        self.collect(client.shard);
        self.run();
    }

    pub(crate) fn close(&mut self, client: Client, close: Close) {
        let now_ms = self.now_ms;
        self.broker(client.shard).close(now_ms, client.key, close);
        self.collect(client.shard);
        self.run();
    }

    /// Lets time pass, with all timers on the way.
    pub(crate) fn pass(&mut self, duration_ms: u64) {
        let end_ms = self.now_ms + duration_ms;
        loop {
            let next = (0..self.brokers.len())
                .filter_map(|shard| Some((self.brokers[shard].deadline_ms()?, shard)))
                .filter(|&(at_ms, _)| at_ms <= end_ms)
                .min();
            let Some((at_ms, shard)) = next else { break };
            self.now_ms = self.now_ms.max(at_ms);
            let now_ms = self.now_ms;
            self.brokers[shard].begin_turn(|| now_ms);
            self.brokers[shard].timeout(now_ms);
            self.collect(shard as u16);
            self.run();
        }
        self.now_ms = end_ms;
    }

    pub(crate) fn was_evicted(&self, client: Client) -> bool {
        self.events.iter().any(
            |event| matches!(event, Event::Evicted { consumer, .. } if *consumer == client.consumer),
        )
    }

    /// Nothing is stored and no memory charged once all is delivered and dropped.
    pub(crate) fn assert_empty(&self) {
        for broker in &self.brokers {
            let counters = broker.counters();
            assert_eq!((counters.stored_messages, counters.stored_bytes), (0, 0));
            assert_eq!(counters.logged_messages, 0);
        }
        let latest_bytes = self.directory.latest_bytes();
        assert_eq!(self.directory.message_bytes(), latest_bytes);
    }
}
