//! Two shards of the broker against a model that is too simple to be wrong: lists of subscriptions,
//! each compared with each message. A kept queue is beside them, see `queue.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use sterna_broker::{
    Broker, Close, ConsumerId, Delivery, Directory, Event, Limits, Message, MessageHeader,
    NEVER_EXPIRES_S, NoStore, OpenSession, Opened, Outcome, Publication, Qos, RetainHandling,
    SessionKey, SessionName, ShardId, SubscribeOptions,
};

use crate::queue::{FULL, Queue};
use crate::topics::{is_filter, is_match, is_name, text};

const SHARDS: u16 = 2;
const CLIENTS: [&str; 4] = ["alpha", "beta", "gamma", "delta"];

/// Most characters of a topic, and most steps of an input: enough for everything to meet everything.
const TOPIC_CHARACTERS: usize = 12;
const STEPS: u64 = 200;

/// What a client is sent, as far as the model knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    topic: String,
    payload: Vec<u8>,
    qos: Qos,
    identifiers: Vec<u32>,
    /// `None` where overlapping subscriptions disagree about it.
    retain: Option<bool>,
}

/// A client of the model.
#[derive(Debug, Default)]
struct Client {
    shard: u16,
    /// While it is connected.
    connection: Option<(SessionKey, ConsumerId)>,
    subscriptions: BTreeMap<String, SubscribeOptions>,
    expected: Vec<Seen>,
    got: Vec<Seen>,
}

struct World {
    now_ms: u64,
    shards: Vec<Broker<()>>,
    clients: Vec<Client>,
    /// Payload, level and publisher of each retained message.
    retained: BTreeMap<String, (Vec<u8>, Qos, usize)>,
    next_consumer: u64,
    queue: Queue,
}

/// Plays the steps that the bytes stand for on both, and compares after each what clients are sent.
///
/// # Panics
///
/// Where the broker and the model differ.
pub fn play(bytes: &[u8]) {
    let limits = Limits {
        group_queued_messages: FULL,
        counts_lost: true,
        redelivery_pause_ms: 0,
        ..Limits::default()
    };
    let directory = Directory::new(SHARDS, limits, 7);
    let mut shards: Vec<_> = (0..SHARDS)
        .map(|shard| Broker::new(ShardId(shard), Arc::clone(&directory), Box::new(NoStore)))
        .collect();
    let clients = (0..CLIENTS.len()).map(|_| Client::default()).collect();
    let retained = BTreeMap::new();
    let queue = Queue::new(1_000, &mut shards);
    let mut world = World {
        now_ms: 1_000,
        shards,
        clients,
        retained,
        next_consumer: 0,
        queue,
    };
    let mut input = Input(bytes);
    for client in 0..CLIENTS.len() {
        world.open(client, client as u16 % SHARDS, true);
        world.compare(true);
    }
    while let (Some(step), true) = (input.byte(), world.now_ms < 1_000 + STEPS) {
        world.now_ms += 1;
        let client = usize::from(step >> 4) % CLIENTS.len();
        let in_order = match step % 8 {
            _ if step >= 0xC0 => {
                let byte = input.byte().unwrap_or(0);
                world
                    .queue
                    .play(world.now_ms, &mut world.shards, step, byte);
                true
            }
            0 | 1 => world.subscribe(client, &mut input),
            2 if step >= 0x80 => world.unsubscribe_all(client, &mut input),
            2 => world.unsubscribe(client, &mut input),
            3 => world.reconnect(client, &mut input),
            4 => world.disconnect(client),
            _ => world.publish(client, &mut input),
        };
        world.compare(in_order);
    }
}

/// The bytes of an input that are still to be used.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A topic or filter: what comes up to a line feed.
    fn topic(&mut self) -> String {
        let end = self
            .0
            .iter()
            .position(|byte| *byte == b'\n')
            .unwrap_or(self.0.len());
        let (topic, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        text(&topic[..topic.len().min(TOPIC_CHARACTERS)])
    }
}

fn qos(bits: u8) -> Qos {
    Qos::from_u8(bits % 3).expect("0 to 2")
}

/// A step returns whether the order of what clients are sent is known.
impl World {
    fn subscribe(&mut self, client: usize, input: &mut Input<'_>) -> bool {
        let bits = input.byte().unwrap_or(0);
        let filter = input.topic();
        let Some((session, _)) = self.clients[client].connection else {
            return true;
        };
        let options = SubscribeOptions {
            qos: qos(bits),
            no_local: bits & 0x04 != 0,
            retain_as_published: bits & 0x08 != 0,
            retain_handling: match bits >> 4 & 3 {
                0 | 1 => RetainHandling::Always,
                2 => RetainHandling::IfNew,
                _ => RetainHandling::Never,
            },
            identifier: (bits & 0x40 != 0).then_some(1 + u32::from(bits >> 5)),
            hint: 0,
            keep: false,
        };
        let shard = usize::from(self.clients[client].shard);
        let result = self.shards[shard].subscribe(self.now_ms, session, &filter, options);
        assert_eq!(result.is_ok(), is_filter(&filter), "{filter:?} {result:?}");
        let Ok(subscribed) = result else { return true };
        let model = &mut self.clients[client];
        let existed = model
            .subscriptions
            .insert(filter.clone(), options)
            .is_some();
        assert_eq!(subscribed.existed, existed);
        let wanted = match options.retain_handling {
            RetainHandling::Always => true,
            RetainHandling::IfNew => !existed,
            RetainHandling::Never => false,
        };
        let before = model.expected.len();
        for (topic, (payload, level, publisher)) in &self.retained {
            let own = options.no_local && *publisher == client;
            if wanted && !own && is_match(&filter, topic) {
                model.expected.push(Seen {
                    topic: topic.clone(),
                    payload: payload.clone(),
                    qos: options.qos.min(*level),
                    identifiers: options.identifier.into_iter().collect(),
                    retain: Some(true),
                });
            }
        }
        assert_eq!(subscribed.retained, model.expected.len() - before);
        false
    }

    fn unsubscribe(&mut self, client: usize, input: &mut Input<'_>) -> bool {
        let filter = input.topic();
        let model = &mut self.clients[client];
        let Some((session, _)) = model.connection else {
            return true;
        };
        let shard = usize::from(model.shard);
        let existed = self.shards[shard].unsubscribe(self.now_ms, session, &filter);
        assert_eq!(
            existed,
            model.subscriptions.remove(&filter).is_some(),
            "{filter:?}"
        );
        true
    }

    /// Ends everybody's subscriptions to a filter, from some shard; who is connected is told.
    fn unsubscribe_all(&mut self, shard: usize, input: &mut Input<'_>) -> bool {
        let filter = input.topic();
        let shard = shard % usize::from(SHARDS);
        let count = self.shards[shard].unsubscribe_all(self.now_ms, &filter);
        self.pump();
        let (mut known, mut to_tell) = (0, Vec::new());
        for client in &mut self.clients {
            if client.subscriptions.remove(&filter).is_some() {
                known += 1;
                to_tell.extend(client.connection.map(|(_, consumer)| consumer));
            }
        }
        assert_eq!(count, known, "{filter:?}");
        let mut told = Vec::new();
        for broker in &mut self.shards {
            while let Some(event) = broker.next_event() {
                let Event::Unsubscribed { consumer, .. } = event else {
                    panic!("{event:?}");
                };
                told.push(consumer);
            }
        }
        told.sort_unstable();
        to_tell.sort_unstable();
        assert_eq!(told, to_tell, "{filter:?}");
        true
    }

    fn publish(&mut self, client: usize, input: &mut Input<'_>) -> bool {
        let bits = input.byte().unwrap_or(0);
        let topic = input.topic();
        let Some((session, _)) = self.clients[client].connection else {
            return true;
        };
        if !is_name(&topic) {
            return true;
        }
        let payload = if bits & 0x30 == 0x30 {
            Vec::new()
        } else {
            self.now_ms.to_be_bytes().to_vec()
        };
        let header = MessageHeader {
            qos: qos(bits),
            retain: bits & 0x08 != 0,
            published_ms: self.now_ms,
            expires_at_ms: None,
        };
        let message = Message::copy(&topic, &[], &payload, header).expect("a small message");
        let shard = usize::from(self.clients[client].shard);
        let publication = Publication::new(Some(session), message);
        let is_refused = is_match("#", &topic) && self.queue.is_full(&self.shards);
        let routed = self.shards[shard].publish(self.now_ms, publication);
        assert_eq!(routed.refused.is_some(), is_refused);
        if is_refused {
            return true;
        }
        self.queue.expect(&topic, &payload);
        if header.retain && payload.is_empty() {
            self.retained.remove(&topic);
        } else if header.retain {
            self.retained
                .insert(topic.clone(), (payload.clone(), header.qos, client));
        }
        for (index, model) in self.clients.iter_mut().enumerate() {
            model.expect(index == client, &topic, &payload, header);
        }
        true
    }

    fn disconnect(&mut self, client: usize) -> bool {
        let model = &mut self.clients[client];
        if let Some((session, _)) = model.connection.take() {
            self.shards[usize::from(model.shard)].close(self.now_ms, session, Close::LOST);
        }
        true
    }

    fn reconnect(&mut self, client: usize, input: &mut Input<'_>) -> bool {
        let bits = input.byte().unwrap_or(0);
        self.open(client, u16::from(bits) % SHARDS, bits & 0x04 != 0);
        true
    }

    /// Connects a client, whether or not it is connected already.
    fn open(&mut self, client: usize, shard: u16, clean_start: bool) {
        self.next_consumer += 1;
        let consumer = ConsumerId(self.next_consumer);
        let request = OpenSession {
            name: SessionName::new(None, CLIENTS[client]),
            clean_start,
            expiry_s: NEVER_EXPIRES_S,
            consumer,
            will: None,
            on_demand: false,
            selector: None,
        };
        let opened = self.shards[usize::from(shard)].open(self.now_ms, request);
        let first = self.next_consumer <= CLIENTS.len() as u64;
        let expected_presence = !clean_start && !first;
        let opened = opened.expect("far from any limit");
        self.pump();
        let (session, mut present) = match opened {
            Opened::Ready { session, present } => (session, Some(present)),
            Opened::Pending { session } => (session, None),
        };
        let before = self.clients[client]
            .connection
            .map(|(_, consumer)| consumer);
        let mut evicted = None;
        for broker in &mut self.shards {
            while let Some(event) = broker.next_event() {
                match event {
                    Event::Evicted { consumer, .. } => evicted = Some(consumer),
                    Event::Opened {
                        consumer: who,
                        session: key,
                        present: there,
                    } => {
                        assert_eq!((who, key, present), (consumer, session, None));
                        present = Some(there);
                    }
                    Event::Drained { .. }
                    | Event::Unsubscribed { .. }
                    | Event::LostRight { .. } => {
                        panic!("nobody asked")
                    }
                }
            }
        }
        assert_eq!(evicted, before, "the connection that was there is told");
        assert_eq!(present, Some(expected_presence));
        let model = &mut self.clients[client];
        model.connection = Some((session, consumer));
        model.shard = shard;
        if clean_start {
            model.subscriptions.clear();
            model.expected.clear();
        }
    }

    /// Carries mail between the shards until there is none.
    fn pump(&mut self) {
        pump(self.now_ms, &mut self.shards);
    }

    /// Takes everything out of the broker's queues and compares it with the model.
    fn compare(&mut self, in_order: bool) {
        self.pump();
        for broker in &mut self.shards {
            while let Some((consumer, session)) = broker.next_ready() {
                let client = self
                    .clients
                    .iter_mut()
                    .find(|client| client.connection == Some((session, consumer)))
                    .expect("only who is connected is ready");
                while let Some(delivery) = broker.next_delivery(self.now_ms, session) {
                    client.got.push(Seen::of(&delivery));
                    if delivery.qos == Qos::ExactlyOnce {
                        assert!(broker.handed_over(session, delivery.tag));
                    }
                    if delivery.qos.is_acknowledged() {
                        let settled =
                            broker.settle(self.now_ms, session, delivery.tag, Outcome::Accepted);
                        assert!(settled);
                    }
                }
            }
        }
        self.pump();
        self.queue.check(&self.shards);
        for (client, name) in self.clients.iter_mut().zip(CLIENTS) {
            if client.connection.is_none() {
                continue;
            }
            let mut expected = std::mem::take(&mut client.expected);
            let mut got = std::mem::take(&mut client.got);
            if !in_order {
                expected.sort();
                got.sort();
            }
            for (got, expected) in got.iter_mut().zip(&expected) {
                if expected.retain.is_none() {
                    got.retain = None;
                }
            }
            assert_eq!(got, expected, "{name}");
        }
    }
}

/// Carries mail between shards until there is none.
pub(crate) fn pump(now_ms: u64, shards: &mut [Broker<()>]) {
    loop {
        let mail: Vec<_> = shards.iter_mut().flat_map(Broker::take_mail).collect();
        if mail.is_empty() {
            return;
        }
        for (to, mail) in mail {
            shards[usize::from(to.0)].mail(now_ms, mail);
        }
    }
}

impl Client {
    /// Notes what a message means for the client.
    fn expect(&mut self, is_publisher: bool, topic: &str, payload: &[u8], header: MessageHeader) {
        let matching: Vec<&SubscribeOptions> = self
            .subscriptions
            .iter()
            .filter(|(filter, options)| {
                is_match(filter, topic) && !(is_publisher && options.no_local)
            })
            .map(|(_, options)| options)
            .collect();
        let Some(level) = matching.iter().map(|options| options.qos).max() else {
            return;
        };
        let qos = level.min(header.qos);
        if self.connection.is_none() && qos == Qos::AtMostOnce {
            return;
        }
        let mut identifiers: Vec<u32> = matching
            .iter()
            .filter_map(|options| options.identifier)
            .collect();
        identifiers.sort_unstable();
        identifiers.dedup();
        let kept = matching[0].retain_as_published;
        let agree = matching
            .iter()
            .all(|options| options.retain_as_published == kept);
        let retain = agree.then_some(kept && header.retain);
        let (topic, payload) = (topic.to_owned(), payload.to_owned());
        self.expected.push(Seen {
            topic,
            payload,
            qos,
            identifiers,
            retain,
        });
    }
}

impl Seen {
    fn of(delivery: &Delivery) -> Self {
        let mut identifiers = delivery.identifiers().to_vec();
        identifiers.sort_unstable();
        identifiers.dedup();
        Self {
            topic: delivery.message.topic().to_owned(),
            payload: delivery.message.payload().to_vec(),
            qos: delivery.qos,
            identifiers,
            retain: Some(delivery.retain),
        }
    }
}
