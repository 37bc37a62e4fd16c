//! What clients do and get, on both sides: the brokers and the model.

use std::collections::BTreeSet;

use sterna_broker::{
    Close, Delivery, Message, MessageHeader, Opened, Outcome, RetainHandling, SubscribeOptions,
    WillFate,
};

use super::Model;
use super::state::{
    Connection, Expected, FILTERS, Fate, GROUP_TOPICS, Published, Publisher, Sent, TOPICS,
    client_id, group_of, matches, payload_id, topics_of_group,
};
use crate::cluster::Client;

impl Model {
    // What clients do.

    pub(super) fn open(&mut self, index: usize) {
        let shard = self.random.below(self.shards()) as u16;
        let anchor = self.sessions[index].anchor;
        let clean_start = !anchor && self.random.chance(20);
        let expiry_s = match self.random.below(4) {
            _ if anchor => u32::MAX,
            0 => 0,
            1 => 5,
            _ => 1_000,
        };
        let (consumer, opened) =
            self.cluster
                .start_open(shard, &client_id(index), clean_start, expiry_s, None);
        self.consumers.insert(consumer, index);
        self.trace(
            index,
            &("open", shard, clean_start, expiry_s, consumer, opened),
        );
        let (key, ready) = match opened {
            Opened::Ready { session, present } => (session, Some(present)),
            Opened::Pending { session } => (session, None),
        };
        let client = Client {
            shard,
            key,
            consumer,
            present: false,
        };
        // Evictions that the opening caused count before it.
        self.take_events();
        let session = &mut self.sessions[index];
        let mut fate = std::mem::take(&mut session.next);
        fate.doomed |= clean_start;
        session.connections.push(Connection {
            client,
            expiry_s,
            ready: false,
            fate,
        });
        if let Some(present) = ready {
            self.opened(index, consumer, key, present);
        }
    }

    pub(super) fn close(&mut self, index: usize) {
        let waiting = self.random.chance(30);
        let session = &mut self.sessions[index];
        let Some(at) = session
            .connections
            .iter()
            .position(|connection| connection.ready != waiting)
        else {
            return;
        };
        let Connection {
            client,
            expiry_s,
            ready,
            ..
        } = session.connections[at];
        let changed = (!session.anchor && expiry_s > 0 && self.random.chance(10))
            .then(|| [0, 7, 1_000][self.random.below(3)]);
        let expiry_s = changed.unwrap_or(expiry_s);
        let ends = expiry_s == 0;
        session.remove(
            at,
            Fate {
                doomed: ends,
                unordered: ends,
            },
        );
        if ready && ends {
            session.subscriptions.clear();
            session.expected.clear();
        }
        let expires_at_ms = if expiry_s == u32::MAX {
            u64::MAX
        } else {
            self.cluster.now_ms + u64::from(expiry_s) * 1_000
        };
        session.may_expire_at_ms = session.may_expire_at_ms.min(expires_at_ms);
        let now_ms = self.cluster.now_ms;
        let close = Close {
            will: WillFate::Publish,
            expiry_s: changed,
            ..Close::LOST
        };
        self.trace(index, &("close", client, expiry_s));
        self.cluster
            .broker(client.shard)
            .close(now_ms, client.key, close);
        self.cluster.collect(client.shard);
        self.take_events();
    }

    pub(super) fn subscribe(&mut self, index: usize, filter: &'static str) {
        let Some(Connection { client, .. }) = self.ready(index) else {
            return;
        };
        let shared = filter.starts_with('$');
        let options = SubscribeOptions {
            qos: self.random.qos(),
            no_local: !shared && self.random.chance(20),
            // A retained copy and a live message with its flag kept look the same, so each session
            // gets only one of the two.
            retain_as_published: index.is_multiple_of(5),
            retain_handling: if index.is_multiple_of(5) {
                RetainHandling::Never
            } else {
                RetainHandling::Always
            },
            identifier: self
                .random
                .chance(30)
                .then(|| 1 + self.random.below(5) as u32),
            ..SubscribeOptions::default()
        };
        let now_ms = self.cluster.now_ms;
        let broker = self.cluster.broker(client.shard);
        let subscribed = broker
            .subscribe(now_ms, client.key, filter, options)
            .expect("a valid filter within limits");
        self.cluster.collect(client.shard);
        let session = &mut self.sessions[index];
        let known = session.subscriptions.insert(filter, options).is_some();
        assert_eq!(subscribed.existed, known);
        let mut retained = 0;
        if shared {
            session.joined.insert(filter);
        } else if !options.retain_as_published {
            for (_, &id) in self
                .retained
                .iter()
                .filter(|(topic, _)| matches(filter, topic))
            {
                let own = self.published[id as usize].publisher.0 == index;
                if !(options.no_local && own) {
                    let qos = options.qos.min(self.published[id as usize].qos);
                    let kind = usize::from(qos.is_acknowledged());
                    session.retained.entry(id).or_default()[kind] += 1;
                    retained += 1;
                }
            }
        }
        assert_eq!(subscribed.retained, retained);
    }

    pub(super) fn unsubscribe(&mut self, index: usize) {
        let Some(Connection { client, .. }) = self.ready(index) else {
            return;
        };
        let filter = if self.random.chance(70) {
            FILTERS[self.random.below(FILTERS.len())]
        } else if self.sessions[index].anchor {
            return;
        } else {
            group_of(index)
        };
        let now_ms = self.cluster.now_ms;
        let existed = self
            .cluster
            .broker(client.shard)
            .unsubscribe(now_ms, client.key, filter);
        self.cluster.collect(client.shard);
        assert_eq!(
            existed,
            self.sessions[index].subscriptions.remove(filter).is_some()
        );
    }

    /// Ends everybody's subscriptions to a filter, also of sessions that are on their way. Nothing is
    /// published until that has gone round.
    pub(super) fn unsubscribe_all(&mut self) {
        let filter = FILTERS[self.random.below(FILTERS.len())];
        let shard = self.random.below(self.shards()) as u16;
        let now_ms = self.cluster.now_ms;
        let count = self.cluster.broker(shard).unsubscribe_all(now_ms, filter);
        let known = self.sessions.iter_mut();
        let known = known.filter_map(|session| session.subscriptions.remove(filter));
        // Sessions that have ended, or will when the mail arrives, may be among those known.
        assert!(count <= known.count());
        self.cluster.collect(shard);
        self.take_events();
        self.deliver_mail(usize::MAX);
        let again = self.cluster.broker(shard).unsubscribe_all(now_ms, filter);
        assert_eq!(again, 0, "{filter} has ended for everybody");
    }

    pub(super) fn publish(&mut self) {
        let (publisher, shard, origin, index) = if self.random.chance(60) {
            let index = self.any_session();
            let Some(Connection { client, .. }) = self.ready(index) else {
                return;
            };
            self.sessions[index].sequence += 1;
            let publisher = Publisher(index, self.sessions[index].epoch);
            (publisher, client.shard, Some(client.key), Some(index))
        } else {
            let shard = self.random.below(self.shards());
            self.shard_sequences[shard] += 1;
            (Publisher(usize::MAX - shard, 0), shard as u16, None, None)
        };
        let sequence = match index {
            Some(index) => self.sessions[index].sequence,
            None => self.shard_sequences[usize::from(shard)],
        };
        let id = self.published.len() as u64;
        let to_group = self.random.chance(30);
        let topic = if to_group {
            GROUP_TOPICS[self.random.below(GROUP_TOPICS.len())]
        } else {
            TOPICS[self.random.below(TOPICS.len())]
        };
        let now_ms = self.cluster.now_ms;
        let header = MessageHeader {
            qos: self.random.qos(),
            retain: !to_group && self.random.chance(10),
            published_ms: now_ms,
            expires_at_ms: self
                .random
                .chance(10)
                .then(|| now_ms + 1 + self.random.below(20_000) as u64),
        };
        let retain = header.retain && header.expires_at_ms.is_none();
        let header = MessageHeader { retain, ..header };
        let message = Message::copy(topic, &[], &id.to_le_bytes(), header).expect("small");

        let mut matched = 0;
        for (at, session) in self.sessions.iter_mut().enumerate() {
            let hits: Vec<_> = session
                .subscriptions
                .iter()
                .filter(|(filter, _)| !filter.starts_with('$') && matches(filter, topic))
                .map(|(_, options)| *options)
                .collect();
            matched += usize::from(!hits.is_empty());
            let heard: Vec<_> = hits
                .iter()
                .filter(|options| !(options.no_local && index == Some(at)))
                .collect();
            let Some(qos) = heard.iter().map(|options| options.qos).max() else {
                continue;
            };
            let qos = qos.min(header.qos);
            let mut identifiers: Vec<_> = heard
                .iter()
                .filter_map(|options| options.identifier)
                .collect();
            identifiers.sort_unstable();
            session.expected.insert(
                id,
                Expected {
                    qos,
                    retain: retain && heard.iter().any(|options| options.retain_as_published),
                    identifiers,
                    required: qos.is_acknowledged()
                        && header.expires_at_ms.is_none()
                        && !self.lossy,
                    restarted: false,
                },
            );
        }
        let groups: BTreeSet<_> = self
            .sessions
            .iter()
            .flat_map(|session| session.subscriptions.keys().copied())
            .filter(|filter| filter.starts_with('$') && matches(topics_of_group(filter), topic))
            .collect();
        matched += groups.len();
        self.published.push(Published {
            publisher,
            sequence,
            qos: header.qos,
            expires_at_ms: header.expires_at_ms,
            group_deliveries: groups.into_iter().map(|filter| (filter, 0)).collect(),
            restarted: false,
            topic: topic.to_owned(),
        });
        if retain {
            self.retained.insert(topic.to_owned(), id);
        }
        let quiet = self.cluster.pairs().is_empty()
            && self.sessions.iter().all(|session| {
                let comes = session
                    .connections
                    .iter()
                    .any(|connection| !connection.ready);
                (!session.next.doomed && !comes && session.may_expire_at_ms > now_ms)
                    || session.subscriptions.is_empty()
            });
        let routed = self.cluster.send(shard, origin, message);
        if quiet && self.store.is_some() && header.qos.is_acknowledged() {
            // All who read the log count once for each filter.
            assert_eq!(routed.matched > 0, matched > 0);
        } else if quiet && self.store.is_some() {
            // Who reads the log gets no messages of QoS 0.
            assert!(routed.matched == 0 || matched > 0);
        } else if quiet {
            assert_eq!(routed.matched, matched);
        }
    }

    pub(super) fn receive(&mut self, index: usize, limit: usize) -> usize {
        let Some(Connection { client, .. }) = self.ready(index) else {
            return 0;
        };
        let mut received = 0;
        while received < limit {
            let Some(delivery) = self.cluster.next(client) else {
                break;
            };
            received += 1;
            self.check(index, &delivery);
        }
        received
    }

    pub(super) fn check(&mut self, index: usize, delivery: &Delivery) {
        let now_ms = self.cluster.now_ms;
        let id = payload_id(delivery);
        let published = &mut self.published[id as usize];
        let session = &mut self.sessions[index];
        assert_eq!(delivery.message.topic(), published.topic);
        assert!(
            published.expires_at_ms.is_none_or(|at_ms| at_ms > now_ms),
            "expired"
        );
        let mut identifiers = delivery.identifiers().to_vec();
        identifiers.sort_unstable();
        let mut is_copy = false;
        if published.topic.starts_with('g') {
            // At most one member gets it as new, of those groups the session is or was in.
            assert!(delivery.qos <= published.qos);
            let group = group_of(index);
            assert!(
                session.joined.contains(group),
                "session {index} is not in {group}"
            );
            let count = published.group_deliveries.get_mut(group);
            let count = count.unwrap_or_else(|| panic!("message {id} is not for {group}"));
            // One that was sent, and whose member's session then ended, goes to another as
            // redelivered; at QoS 0 there is no such flag.
            assert!(
                delivery.redelivered == (*count > 0)
                    || !delivery.qos.is_acknowledged()
                    || published.restarted,
                "message {id} went {count} times to members of {group}, now to session {index}"
            );
            *count += 1;
        } else if let Some(expected) = session.expected.get(&id).filter(|expected| {
            // A retained copy of a message that is also expected live has the flag set.
            // One that is expected since before a restart comes from the log.
            (!delivery.retain || expected.retain) && (delivery.position != 0 || !expected.restarted)
        }) {
            if expected.restarted {
                assert!(delivery.qos.is_acknowledged(), "the log has no other");
            } else {
                assert_eq!(
                    (
                        delivery.qos,
                        delivery.retain,
                        &identifiers,
                        delivery.redelivered
                    ),
                    (expected.qos, expected.retain, &expected.identifiers, false),
                    "message {id} to session {index}"
                );
            }
            session.expected.remove(&id);
            // With a log, messages of QoS 0 go their own way: order is kept for each level.
            // [MQTT-4.6.0-6]
            let is_logged = self.store.is_some() && delivery.qos.is_acknowledged();
            let stream = (published.publisher, is_logged);
            let latest = session.latest.entry(stream).or_default();
            assert!(
                *latest < published.sequence,
                "session {index} gets {id} out of order"
            );
            *latest = published.sequence;
        } else if delivery.position != 0 && session.repeatable.remove(&id) {
            // The brokers were killed before they had written that it was settled. [MQTT-3.3.1-1]
            assert!(delivery.redelivered, "session {index} had {id} before");
        } else {
            let kind = usize::from(delivery.qos.is_acknowledged());
            let copies = session
                .retained
                .get_mut(&id)
                .map(|copies| &mut copies[kind]);
            let copies = copies.filter(|copies| **copies > 0);
            let copies = copies.unwrap_or_else(|| {
                panic!("session {index} is not to get message {id}: {delivery:?}")
            });
            assert!(delivery.retain && !delivery.redelivered);
            *copies -= 1;
            is_copy = true;
        }
        if delivery.qos.is_acknowledged() && !is_copy {
            session.got.insert(id);
        }
        if delivery.qos.is_acknowledged() {
            session.sent.push(Sent {
                tag: delivery.tag,
                position: delivery.position,
                is_handed_over: false,
                id,
                qos: delivery.qos,
                is_copy,
            });
        } else {
            assert_eq!(delivery.tag, 0);
        }
    }

    pub(super) fn acknowledge(&mut self, index: usize) {
        let Some(Connection { client, .. }) = self.ready(index) else {
            return;
        };
        let session = &mut self.sessions[index];
        if session.sent.is_empty() {
            return;
        }
        let at = self.random.below(session.sent.len().min(8));
        let now_ms = self.cluster.now_ms;
        let broker = &mut self.cluster.brokers[usize::from(client.shard)];
        let Sent {
            tag,
            is_handed_over,
            ..
        } = session.sent[at];
        if !is_handed_over && self.random.chance(40) {
            assert!(broker.handed_over(client.key, tag));
            session.sent[at].is_handed_over = true;
            if !session.sent[at].is_copy {
                session.got.remove(&session.sent[at].id);
            }
        } else {
            let rejected = self.random.chance(10);
            let outcome = if rejected {
                Outcome::Rejected(0x80)
            } else {
                Outcome::Accepted
            };
            assert!(broker.settle(now_ms, client.key, tag, outcome));
            session.sent.remove(at);
        }
        self.cluster.collect(client.shard);
    }
}
