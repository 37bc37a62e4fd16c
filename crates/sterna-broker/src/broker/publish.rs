//! Routing a message (MQTT 5.0, sections 3.3 and 4.6).

use std::sync::Arc;

use super::Broker;
use crate::api::{Publication, Retention, Routed, ShardId};
use crate::fill::Fill;
use crate::mail::{Letter, Mail};
use crate::message::Message;
use crate::queues::Queues;
use crate::route::Parcel;

/// All shards' messages are summed up every so many publications, and at every large one.
const SUM_EVERY: u32 = 64;
const LARGE_BYTES: usize = 65_536;

/// A turn's letter to another shard has room for so many messages from the start.
const PARCELS: usize = 8;

impl<P: Default + Send> Broker<P> {
    /// Routes a message to every queue whose subscription it matches, here and on other shards; to
    /// none where a kept one is full ([`Routed::refused`]).
    ///
    /// The order of one publisher's messages is kept in every queue, across shards as well.
    /// [MQTT-4.6.0-5] [MQTT-4.6.0-6] [MQTT311-4.6.0-5] [MQTT311-4.6.0-6]
    pub fn publish(&mut self, now_ms: u64, publication: Publication) -> Routed {
        let Publication {
            origin,
            mut message,
        } = publication;
        if let Some(session) = origin.and_then(|key| self.queues.attended(key)) {
            message = message.with_origin(session.origin);
        }
        self.queues.counters.received_messages += 1;
        self.queues.counters.received_bytes += message.payload().len() as u64;
        let routed = self.route(now_ms, message);
        self.finish(now_ms);
        routed
    }

    /// Routes several messages, or none of them if a kept queue has no room for what it is to get of
    /// them all. Whether they were routed; what is not a topic name, or cannot be retained, counts as
    /// routed.
    pub fn publish_together(&mut self, now_ms: u64, messages: Vec<Message>) -> bool {
        let mut reserved: Vec<Vec<Arc<Fill>>> = Vec::with_capacity(messages.len());
        for message in &messages {
            let Some(fills) = self.reserve_ahead(message) else {
                for (fills, message) in reserved.iter().zip(&messages) {
                    release(fills, message.body_bytes() as u64);
                }
                self.queues.counters.refused_messages += messages.len() as u64;
                return false;
            };
            reserved.push(fills);
        }
        for (message, fills) in messages.into_iter().zip(reserved) {
            self.queues.counters.received_messages += 1;
            self.queues.counters.received_bytes += message.payload().len() as u64;
            self.route_reserved(now_ms, message, Some(&fills));
        }
        self.finish(now_ms);
        true
    }

    /// The retained message of exactly this topic, unless it has expired.
    #[must_use]
    pub fn retained(&self, now_ms: u64, topic: &str) -> Option<Arc<Message>> {
        self.directory
            .retained_before(topic, false, u64::MAX, now_ms, 1)
            .pop()
    }

    /// Removes a topic's retained message without publishing anything; false where there was none.
    pub fn clear_retained(&mut self, topic: &str) -> bool {
        let is_cleared = self.directory.clear_retained(topic);
        if is_cleared && self.queues.is_durable {
            self.queues.store.retained_cleared(topic);
        }
        is_cleared
    }

    pub(super) fn route(&mut self, now_ms: u64, message: Message) -> Routed {
        if !message.retain() {
            return self.route_reserved(now_ms, message, None);
        }
        let Some(reserved) = self.reserve_ahead(&message) else {
            return self.refuse();
        };
        self.route_reserved(now_ms, message, Some(&reserved))
    }

    /// Routes a message for which room may be reserved already; that of a retained one must be.
    fn route_reserved(
        &mut self,
        now_ms: u64,
        mut message: Message,
        reserved: Option<&[Arc<Fill>]>,
    ) -> Routed {
        message.charge(&self.gauge);
        message.stamp(now_ms);
        self.unsummed += 1;
        if self.unsummed >= SUM_EVERY || message.body_bytes() >= LARGE_BYTES {
            self.unsummed = 0;
            self.report();
            self.queues.is_over_memory =
                self.directory.message_bytes() > self.queues.limits.message_bytes;
        }
        // [MQTT-3.3.1-8] [MQTT311-3.3.1-12]
        if !message.retain() {
            self.catch_up();
            return self.spread(now_ms, message, Retention::NotAsked, reserved);
        }
        let message = Arc::new(message);
        let (retention, length) = self.directory.retain(&message);
        match retention {
            Retention::InvalidTopic => {
                release(reserved.unwrap_or_default(), message.body_bytes() as u64);
                return Routed {
                    retention,
                    ..Routed::default()
                };
            }
            Retention::Stored if self.queues.is_durable => self.queues.store.retained_set(&message),
            Retention::Cleared if self.queues.is_durable => {
                self.queues.store.retained_cleared(message.topic());
            }
            _ => {}
        }
        self.catch_up_to(length);
        self.spread(now_ms, message, retention, reserved)
    }

    fn refuse(&mut self) -> Routed {
        self.queues.counters.refused_messages += 1;
        Routed {
            refused: true,
            ..Routed::default()
        }
    }

    /// Reserves room in the kept queues that a message is for, before it is retained; `None` where
    /// there is none.
    fn reserve_ahead(&mut self, message: &Message) -> Option<Vec<Arc<Fill>>> {
        self.catch_up();
        if !self.index.has_kept_groups() {
            return Some(Vec::new());
        }
        let queues = &self.queues;
        let Some(matches) = self.index.matches(message, &queues.limits) else {
            return Some(Vec::new()); // not a topic name, which is found out again
        };
        let body_bytes = message.body_bytes() as u64;
        reserve(&matches.kept, body_bytes, queues).then(|| matches.kept.clone())
    }

    /// Delivers a message by the index as it is, if the kept queues among those it is for have room;
    /// in some it may be `reserved` already.
    fn spread(
        &mut self,
        now_ms: u64,
        message: impl Into<Arc<Message>> + AsRef<Message>,
        retention: Retention,
        reserved: Option<&[Arc<Fill>]>,
    ) -> Routed {
        let queues = &mut self.queues;
        let Some(matches) = self.index.matches(message.as_ref(), &queues.limits) else {
            return Routed {
                retention: Retention::InvalidTopic,
                ..Routed::default()
            };
        };
        if !matches.kept.is_empty() || reserved.is_some_and(|reserved| !reserved.is_empty()) {
            let body_bytes = message.as_ref().body_bytes() as u64;
            match reserved {
                None if !reserve(&matches.kept, body_bytes, queues) => return self.refuse(),
                None => {}
                Some(reserved) => {
                    // Routes may have changed since; then there is no way back.
                    for fill in &matches.kept {
                        fill.add(1, body_bytes);
                    }
                    release(reserved, body_bytes);
                }
            }
        }
        let routed = Routed {
            matched: matches.total,
            retention,
            refused: false,
        };
        if matches.total == 0 {
            queues.counters.unmatched_messages += 1;
            return routed;
        }
        let message = message.into();
        for (shard, targets) in &matches.remote {
            let parcel = Parcel {
                message: Arc::clone(&message),
                targets: Arc::clone(targets),
            };
            let open = &mut self.open_letters[usize::from(*shard)];
            if let Some((_, Mail(Letter::Deliver(parcels)))) =
                open.and_then(|at| self.outbox.get_mut(at))
            {
                parcels.push(parcel);
            } else {
                *open = Some(self.outbox.len());
                let mut parcels = Vec::with_capacity(PARCELS);
                parcels.push(parcel);
                self.outbox
                    .push((ShardId(*shard), Mail(Letter::Deliver(parcels))));
            }
        }
        if let Some((last, others)) = matches.local.split_last() {
            for target in others {
                queues.deliver(now_ms, Arc::clone(&message), target);
            }
            queues.deliver(now_ms, message, last);
        }
        routed
    }
}

/// Reserves room for a message in all of the kept queues, or in none.
fn reserve<P>(kept: &[Arc<Fill>], body_bytes: u64, queues: &Queues<P>) -> bool {
    if !kept.is_empty() && queues.is_over_memory {
        return false;
    }
    let room = kept
        .iter()
        .position(|fill| !fill.reserve(body_bytes, &queues.limits));
    release(&kept[..room.unwrap_or(0)], body_bytes);
    room.is_none()
}

/// Gives room back that a message will not take.
fn release(reserved: &[Arc<Fill>], body_bytes: u64) {
    for fill in reserved {
        fill.remove(1, body_bytes);
    }
}
