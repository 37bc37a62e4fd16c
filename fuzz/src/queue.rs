//! A kept queue, with consumers on demand, beside the clients of [`routing`](crate::routing).
//!
//! It takes whatever is published, so it may refuse it. The model knows what is in it or with its
//! consumers, and how often each message has failed: nothing is lost, nobody has more than it asked
//! for, and nothing waits for a consumer that takes everything and has credit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sterna_broker::{
    Broker, Close, ConsumerId, Event, Message, NEVER_EXPIRES_S, OpenSession, Opened, Outcome, Qos,
    Selector, SessionKey, SessionName, SubscribeOptions,
};

use crate::routing::pump;
use crate::topics::is_match;

const FILTER: &str = "$share/queue/#";

/// Messages that fill the queue.
pub(crate) const FULL: usize = 8;

/// Consumers of the clients have smaller numbers.
const FIRST_CONSUMER: u64 = 1 << 32;

/// A message as the model knows it.
type Name = (String, Vec<u8>);

/// Wants payloads that end in an even byte.
#[derive(Debug)]
struct Even;

fn is_even(payload: &[u8]) -> bool {
    payload.last().is_some_and(|byte| byte.is_multiple_of(2))
}

impl Selector for Even {
    fn selects(&self, message: &Message, _: &mut u64) -> Option<bool> {
        Some(is_even(message.payload()))
    }
}

struct Consumer {
    key: SessionKey,
    id: ConsumerId,
    is_selective: bool,
    credit: u32,
    is_drained: bool,
    held: Vec<(u64, Name)>,
    refused: BTreeSet<Name>,
}

/// See the module.
pub(crate) struct Queue {
    /// One for each shard, while it is there.
    consumers: Vec<Option<Consumer>>,
    /// What was published and not accepted: failures of each message of that name.
    open: BTreeMap<Name, Vec<u16>>,
    next_consumer: u64,
}

impl Queue {
    /// Makes the queue: a session that isn't connected keeps it.
    pub(crate) fn new(now_ms: u64, shards: &mut [Broker<()>]) -> Self {
        let request = request("anchor", NEVER_EXPIRES_S, ConsumerId(FIRST_CONSUMER), false);
        let opened = shards[0].open(now_ms, request).expect("far from any limit");
        let Opened::Ready { session, .. } = opened else {
            panic!("it is new");
        };
        let options = SubscribeOptions {
            keep: true,
            ..SubscribeOptions::default()
        };
        shards[0]
            .subscribe(now_ms, session, FILTER, options)
            .expect("a filter");
        shards[0].close(now_ms, session, Close::NORMAL);
        pump(now_ms, shards);
        Self {
            consumers: shards.iter().map(|_| None).collect(),
            open: BTreeMap::new(),
            next_consumer: FIRST_CONSUMER,
        }
    }

    /// Whether a publication is to be refused now.
    pub(crate) fn is_full(&self, shards: &[Broker<()>]) -> bool {
        self.waiting(shards) >= FULL
    }

    /// Notes what was published and not refused.
    pub(crate) fn expect(&mut self, topic: &str, payload: &[u8]) {
        if is_match("#", topic) {
            let name = (topic.to_owned(), payload.to_vec());
            self.open.entry(name).or_default().push(0);
        }
    }

    /// Messages in the queue and with nobody.
    fn waiting(&self, shards: &[Broker<()>]) -> usize {
        let out: usize = self
            .consumers
            .iter()
            .zip(shards)
            .filter_map(|(consumer, broker)| Some((consumer.as_ref()?, broker)))
            .map(|(consumer, broker)| {
                consumer.held.len() + broker.queue(consumer.key).expect("it is there").pending
            })
            .sum();
        self.open.values().map(Vec::len).sum::<usize>() - out
    }

    /// One step of one consumer.
    pub(crate) fn play(&mut self, now_ms: u64, shards: &mut [Broker<()>], step: u8, byte: u8) {
        let at = usize::from(step >> 4 & 1) % shards.len();
        let broker = &mut shards[at];
        let mut drains = 0;
        if let Some(consumer) = &mut self.consumers[at] {
            match step % 8 {
                0 => {
                    // An end in order is no failed delivery.
                    let is_lost = byte.is_multiple_of(2);
                    let close = if is_lost { Close::LOST } else { Close::NORMAL };
                    broker.close(now_ms, consumer.key, close);
                    for (_, name) in std::mem::take(&mut consumer.held) {
                        // Which of several of one name it was is not known.
                        let failures = self.open.get_mut(&name).and_then(|all| all.first_mut());
                        *failures.expect("it is not accepted") += u16::from(is_lost);
                    }
                    self.consumers[at] = None;
                }
                1 | 2 => {
                    consumer.credit = u32::from(byte % 12);
                    consumer.is_drained = false;
                    broker.demand(now_ms, consumer.key, consumer.credit);
                }
                3 => {
                    consumer.is_drained = true;
                    broker.drain(now_ms, consumer.key);
                    drains = 1;
                }
                4 | 5 => Self::take(&self.open, now_ms, broker, consumer),
                _ => self.settle(now_ms, broker, at, byte),
            }
        } else {
            self.attach(now_ms, broker, at, byte.is_multiple_of(2));
        }
        pump(now_ms, shards);
        let id = self.consumers[at].as_ref().map(|consumer| consumer.id);
        for broker in &mut *shards {
            while let Some(event) = broker.next_event() {
                let Event::Drained { consumer, .. } = event else {
                    panic!("{event:?}");
                };
                assert_eq!(Some(consumer), id);
                drains -= 1;
            }
        }
        assert_eq!(drains, 0, "who asks is told");
        self.check(shards);
    }

    fn attach(&mut self, now_ms: u64, broker: &mut Broker<()>, at: usize, is_selective: bool) {
        self.next_consumer += 1;
        let id = ConsumerId(self.next_consumer);
        let name = format!("consumer {at}");
        let opened = broker.open(now_ms, request(&name, 0, id, is_selective));
        let Ok(Opened::Ready { session: key, .. }) = opened else {
            panic!("the one before has ended: {opened:?}");
        };
        let options = SubscribeOptions {
            qos: Qos::ExactlyOnce,
            ..SubscribeOptions::default()
        };
        broker
            .subscribe(now_ms, key, FILTER, options)
            .expect("a filter");
        // It is served here, not when it is ready.
        broker.park(key);
        self.consumers[at] = Some(Consumer {
            key,
            id,
            is_selective,
            credit: 0,
            is_drained: false,
            held: Vec::new(),
            refused: BTreeSet::new(),
        });
    }

    fn take(
        open: &BTreeMap<Name, Vec<u16>>,
        now_ms: u64,
        broker: &mut Broker<()>,
        consumer: &mut Consumer,
    ) {
        let Some(delivery) = broker.next_delivery(now_ms, consumer.key) else {
            return;
        };
        let payload = delivery.message.payload().to_vec();
        assert!(!consumer.is_selective || is_even(&payload));
        assert!(delivery.qos.is_acknowledged());
        let name = (delivery.message.topic().to_owned(), payload);
        let failures = open.get(&name).expect("it was published");
        if name.1.is_empty() {
            // There may be several of that name.
            let failed: u32 = failures.iter().map(|&failures| u32::from(failures)).sum();
            assert!(u32::from(delivery.failures) <= failed);
        } else {
            assert_eq!(failures[..], [delivery.failures]);
            assert!(!consumer.refused.contains(&name));
        }
        consumer.credit -= 1;
        consumer.held.push((delivery.tag, name));
    }

    fn settle(&mut self, now_ms: u64, broker: &mut Broker<()>, at: usize, byte: u8) {
        let Some(consumer) = &mut self.consumers[at] else {
            return;
        };
        if consumer.held.is_empty() {
            return;
        }
        let (tag, name) = consumer
            .held
            .swap_remove(usize::from(byte >> 3) % consumer.held.len());
        let outcome = match byte % 8 {
            0 => Outcome::Released,
            1 => Outcome::Failed,
            2 => Outcome::Undeliverable,
            3 => Outcome::Rejected(0x80),
            4 => Outcome::Declined,
            _ => Outcome::Accepted,
        };
        assert!(broker.settle(now_ms, consumer.key, tag, outcome));
        let all = self.open.get_mut(&name).expect("it is not accepted");
        match outcome {
            Outcome::Released => {}
            Outcome::Failed => all[0] += 1,
            Outcome::Undeliverable | Outcome::Declined => {
                all[0] += u16::from(outcome == Outcome::Undeliverable);
                consumer.refused.insert(name);
            }
            Outcome::Accepted | Outcome::Rejected(_) => {
                // Of several of one name, what they have failed stays with those that are left.
                let failures = all.pop().unwrap_or_default();
                match all.first_mut() {
                    Some(first) => *first += failures,
                    None => drop(self.open.remove(&name)),
                }
            }
        }
    }

    /// What holds when no letter is under way.
    pub(crate) fn check(&self, shards: &[Broker<()>]) {
        let waiting = self.waiting(shards);
        for (consumer, broker) in self.consumers.iter().zip(shards) {
            let Some(consumer) = consumer else { continue };
            let pending = broker.queue(consumer.key).expect("it is there").pending;
            assert!(pending <= consumer.credit as usize, "more than it takes");
            let takes_all = !consumer.is_selective && consumer.refused.is_empty();
            if takes_all && !consumer.is_drained && pending < consumer.credit as usize {
                assert_eq!(waiting, 0, "somebody could have it");
            }
        }
    }
}

fn request(
    client_id: &str,
    expiry_s: u32,
    consumer: ConsumerId,
    is_selective: bool,
) -> OpenSession {
    OpenSession {
        name: SessionName::new(None, client_id),
        clean_start: false,
        expiry_s,
        consumer,
        will: None,
        on_demand: true,
        selector: is_selective.then(|| Arc::new(Even) as Arc<dyn Selector>),
    }
}
