//! After a restart: what the store has kept becomes sessions, routes and queues again.

use std::cmp::Ordering;
use std::sync::Arc;

use super::Broker;
use crate::account::Account;
use crate::api::{NEVER_EXPIRES_S, SubscribeOptions};
use crate::directory::{Claimed, Owner};
use crate::filter::Filter;
use crate::group::{GROUP_OWNER, is_before};
use crate::message::Message;
use crate::nodes::{Entry, List, NIL};
use crate::route::{Context, RouteFlags};
use crate::session::{BrokerSession, NEVER_MS, State, Subscription};
use crate::store::{Phase, QueueName, Share, StoredEntry, StoredSession};

impl<P: Default + Send> Broker<P> {
    /// Takes over this shard's share of what the store holds. Once, before anything else; all
    /// sessions are away, and their expiry counts on from where it was.
    pub fn restore(&mut self, now_ms: u64) {
        let share = Share {
            shard: self.shard,
            shards: self.directory.shards(),
        };
        let stored = self.queues.store.load(share);
        for mut message in stored.retained {
            self.charge(&mut message);
            self.directory.retain(&message);
        }
        self.orphans.extend(stored.groups);
        for session in stored.sessions {
            self.restore_session(now_ms, session);
        }
        self.finish(now_ms);
    }

    fn restore_session(&mut self, now_ms: u64, stored: StoredSession) {
        let slot = self.queues.sessions.vacant_key() as u32;
        let generation = self.directory.next_opening();
        let shard = self.shard;
        let user = stored.user.as_deref();
        let claimed = self
            .directory
            .claim(&stored.client_id, user, shard, || Owner {
                shard,
                slot,
                generation,
            });
        // Beyond the limit, or there twice: it stays in the store.
        let Claimed::New { client_id, .. } = claimed else {
            return;
        };
        let session = BrokerSession::new(client_id, generation, State::Active);
        self.queues.sessions.insert(Box::new(session));
        for (filter, subscription) in stored.subscriptions {
            let Some(parsed) = Filter::parse(&filter, &self.queues.limits) else {
                continue;
            };
            let is_shared = parsed.shared;
            if !self.directory.add_subscription() {
                continue;
            }
            let flags = RouteFlags::of(&SubscribeOptions {
                qos: subscription.qos,
                no_local: subscription.no_local,
                retain_as_published: subscription.retain_as_published,
                keep: subscription.keep,
                ..SubscribeOptions::default()
            });
            let context = subscription
                .identifier
                .and_then(|identifier| context(&[identifier]));
            let subscription = Subscription {
                flags,
                group: NIL,
                context,
            };
            if self
                .add_routes(slot, &Arc::from(filter), is_shared, subscription)
                .is_none()
            {
                self.directory.remove_subscriptions(1);
            }
        }
        let (mut ledger, mut pending) = (List::default(), List::default());
        let mut earliest_ms = NEVER_MS;
        let mut rehomed = Vec::new();
        let mut latest = 0;
        for mut stored in stored.entries {
            stored
                .message
                .as_mut()
                .into_iter()
                .for_each(|message| self.charge(message));
            let entry = entry(stored, NIL);
            let tag = entry.tag;
            latest = latest.max((tag >> 32) as u32);
            if entry.phase == Phase::Pending {
                let node = self.queues.restore(&mut pending, slot, entry);
                earliest_ms = earliest_ms.min(self.queues.expires_at_ms(node));
            } else {
                let node = self.queues.restore(&mut ledger, slot, entry);
                rehomed.push((tag, node));
            }
        }
        let session = &mut self.queues.sessions[slot as usize];
        session.ledger = ledger;
        session.pending = pending;
        session.account = Account::of(&self.queues.nodes, pending, ledger);
        session.next_sequence = latest;
        session.is_stored = true;
        session.expiry_s = stored.expiry_s;
        session.sweep_at_ms = earliest_ms;
        session.expires_at_ms = match (stored.expires_at_ms, stored.expiry_s) {
            (Some(at_ms), _) => at_ms,
            (None, NEVER_EXPIRES_S) => NEVER_MS,
            // It was connected when the broker stopped: its connection ends now.
            (None, expiry_s) => now_ms + u64::from(expiry_s) * 1000,
        };
        if !rehomed.is_empty() || stored.protocol.is_some() {
            let rare = session.rare_mut();
            rare.rehomed.extend(rehomed);
            rare.snapshot = stored.protocol;
        }
        self.queues.set_session_timer(slot);
    }

    /// Counts a message that comes from outside of the process among those that are alive.
    fn charge(&self, message: &mut Arc<Message>) {
        if let Some(message) = Arc::get_mut(message) {
            message.charge(&self.gauge);
        }
    }

    /// Gives a group the queue it had.
    pub(super) fn restore_group(&mut self, id: u32, mut entries: Vec<StoredEntry>) {
        // What was out with consumers takes its old place.
        entries.sort_by(|a, b| {
            if is_before(a.tag, b.tag) {
                Ordering::Less
            } else if is_before(b.tag, a.tag) {
                Ordering::Greater
            } else {
                Ordering::Equal
            }
        });
        let mut queue = List::default();
        let mut bytes = 0;
        if let Some(group) = self.queues.groups.get_mut(&id) {
            group.resume_count(entries.iter().map(|entry| entry.tag));
        }
        for mut stored in entries {
            stored
                .message
                .as_mut()
                .into_iter()
                .for_each(|message| self.charge(message));
            let was_sent = stored.phase == Phase::Sent;
            let mut entry = entry(stored, id);
            entry.phase = Phase::Pending;
            if was_sent && let Some(group) = self.queues.groups.get(&id) {
                let name = QueueName::Group(&group.filter);
                self.queues.store.failed(name, entry.tag, entry.failures);
                self.queues.store.advanced(name, entry.tag, Phase::Pending);
            }
            bytes += entry.body_bytes();
            self.queues.restore(&mut queue, GROUP_OWNER, entry);
        }
        if let Some(group) = self.queues.groups.get_mut(&id) {
            group.queue = queue;
            group.queued_bytes = bytes;
        }
    }
}

fn context(identifiers: &[u32]) -> Option<Arc<Context>> {
    (!identifiers.is_empty()).then(|| {
        Arc::new(Context {
            identifiers: identifiers.into(),
            hint: 0,
            attendance: 0,
            permit: None,
        })
    })
}

fn entry(stored: StoredEntry, group: u32) -> Entry {
    Entry {
        message: stored.message,
        context: context(&stored.identifiers),
        tag: stored.tag,
        group_tag: 0,
        group,
        // The attempt that was under way when the broker ended has failed.
        failures: stored
            .failures
            .saturating_add(u16::from(stored.phase == Phase::Sent)),
        qos: stored.qos,
        phase: stored.phase,
        retain: stored.retain,
        redelivered: stored.phase != Phase::Pending,
        retained_copy: false,
        is_kept: false,
        in_group_store: false,
    }
}
