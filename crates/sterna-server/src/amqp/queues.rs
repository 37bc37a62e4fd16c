//! Queues: shared subscriptions that are kept by an anchor, a session that nobody attends.

use std::sync::Arc;

use sterna_amqp::Condition;
use sterna_broker::{
    Broker, Close, NEVER_EXPIRES_S, OpenError, OpenSession, Opened, Qos, QueueRules, Share,
    SubscribeError, SubscribeOptions,
};

use super::attach::{Refusal, refusal};
use super::nodes::forget_dynamic_queue;
use super::owners::{Maker, owner_record};
use super::queue_reader::QueueReader;
use super::registry::Found;
use super::{ANCHOR, Door, HELD_ANCHOR, consumer_id};
use crate::config::{Amqp, QUEUE_LEVEL};
use crate::context::Context;
use crate::context::{STORE_FULL, TOO_MANY_SESSIONS, TOO_MANY_SUBSCRIPTIONS};
use crate::memory::Stage;
use crate::session::amqp::{is_dynamic, topic_of_queue};
use crate::session::topics::fault_of_filter;
use crate::session::{QUEUE_PREFIX, SessionState, anchor_of};

/// Sessions that are looked at in one call.
const SESSIONS_AT_ONCE: usize = 4_096;

impl Door {
    /// How many queues have sessions because of this shard.
    pub(crate) fn queues(&self) -> u64 {
        self.service.anchors.get()
    }

    /// Sees to it that there is a queue, if it may be there. One that is made is the user's.
    pub(super) fn find_queue(
        &self,
        cx: &mut Context<'_>,
        name: &str,
        user: Option<&str>,
    ) -> Result<(), Refusal> {
        if is_dynamic(name) {
            return self.find_node(cx, &topic_of_queue(name));
        }
        let now_ms = cx.now_ms;
        // It stays when its maker goes, so the last stage would not end.
        let is_short = cx.memory.stage() >= Stage::Drop;
        let maker = Maker::Client { user, is_short };
        self.make_queue(
            cx.broker,
            &cx.policy.amqp,
            now_ms,
            (name, maker, Anchor::Lasting),
        )
    }

    /// Makes a queue that is a node of a link. It is kept over a restart if it `is_lasting`: then it ends with its last
    /// message.
    pub(super) fn make_dynamic_queue(
        &self,
        cx: &mut Context<'_>,
        name: &str,
        user: Option<&str>,
        is_lasting: bool,
    ) -> Result<(), Refusal> {
        let now_ms = cx.now_ms;
        let is_short = cx.memory.stage() >= Stage::Drop;
        let maker = Maker::Link { user, is_short };
        let anchor = if is_lasting {
            Anchor::Lasting
        } else {
            Anchor::Held
        };
        self.make_queue(cx.broker, &cx.policy.amqp, now_ms, (name, maker, anchor))
    }

    /// Ends what is left of a queue that was the node of a link, if its anchor is on this shard.
    pub(super) fn end_dynamic_queue(&self, cx: &mut Context<'_>, name: &str) {
        let now_ms = cx.now_ms;
        let anchor = anchor_of(name);
        let is_held = cx.broker.key_named(&anchor).is_some();
        if cx.broker.end_session_here(now_ms, &anchor) {
            self.count_anchors(-1, if is_held { -1 } else { 0 });
        }
        // The records go last: what they are of is looked for after a restart.
        forget_dynamic_queue(cx, name);
    }

    fn count_anchors(&self, lasting: i64, held: i64) {
        for (count, change) in [
            (&self.service.anchors, lasting),
            (&self.service.held_anchors, held),
        ] {
            let now = count.get().checked_add_signed(change);
            debug_assert!(now.is_some(), "a queue that goes was counted");
            count.set(now.unwrap_or(0));
        }
    }

    /// Removes a queue whose anchor this shard has, with its messages. Returns the append that keeps that, 0 for none;
    /// `None` where the anchor is not here. Consumers that are there share what comes until they leave.
    pub(crate) fn remove_queue(&self, cx: &mut Context<'_>, name: &str) -> Option<u64> {
        let now_ms = cx.now_ms;
        self.service.registry.remove(name, || {
            let (has_ended, append) = cx.appended(|cx| {
                let anchor = anchor_of(name);
                let is_held = cx.broker.key_named(&anchor).is_some();
                let has_ended = cx.broker.end_session_here(now_ms, &anchor);
                if has_ended {
                    cx.broker.forget_node(&owner_record(name));
                    self.count_anchors(-1, if is_held { -1 } else { 0 });
                }
                has_ended
            });
            if has_ended {
                self.service.registry.end_node(&topic_of_queue(name));
            }
            has_ended.then_some(append)
        })
    }

    /// Makes the queues whose anchors belong to this shard after a start: those of the configuration, and
    /// those that were there before. Queues of which another shard has the anchor are made there.
    pub(crate) fn restore_queues(
        &self,
        broker: &mut Broker<SessionState>,
        config: &Amqp,
        now_ms: u64,
    ) {
        let share = Share {
            shard: broker.shard().0,
            shards: broker.directory().shards(),
        };
        let mut names = self.service.registry.names();
        names.retain(|name| share.holds(anchor_of(name).text()));
        for name in anchored(broker) {
            let known = broker.session_named(&anchor_of(&name));
            let filters = known.map(|(_, filters)| filters).unwrap_or_default();
            let registry = &self.service.registry;
            registry.know(&name, filters.iter().map(|filter| &**filter));
            names.push(name);
        }
        names.sort_unstable();
        names.dedup();
        for name in names {
            if let Err((_, detail)) = self.make_queue(
                broker,
                config,
                now_ms,
                (&name, Maker::Broker, Anchor::Lasting),
            ) {
                tracing::error!(queue = &*name, detail, "the queue was not made");
            }
        }
    }

    /// Makes the queues that other nodes of the cluster have, by their shared subscriptions. So messages
    /// published to them, and their members, are known here. A queue with a filter of its own is known by the
    /// configuration alone.
    pub(crate) fn queues_found(&self, cx: &mut Context<'_>, subscriptions: &[Arc<str>]) {
        let now_ms = cx.now_ms;
        for subscription in subscriptions {
            let topics = subscription.splitn(3, '/').nth(2);
            let name = topics.and_then(|topics| topics.strip_prefix(QUEUE_LEVEL));
            let made = match name {
                Some(name) if self.service.registry.may_be_named(name, subscription) => self
                    .make_queue(
                        cx.broker,
                        &cx.policy.amqp,
                        now_ms,
                        (name, Maker::Broker, Anchor::Lasting),
                    ),
                _ => Err(refusal(
                    Condition::NOT_FOUND,
                    "this node's configuration does not have it",
                )),
            };
            if let Err((_, detail)) = made {
                tracing::warn!(
                    queue = &**subscription,
                    detail,
                    "another node has a queue that this one has not"
                );
            }
        }
    }

    fn make_queue(
        &self,
        broker: &mut Broker<SessionState>,
        config: &Amqp,
        now_ms: u64,
        (name, maker, anchor): (&str, Maker<'_>, Anchor),
    ) -> Result<(), Refusal> {
        let mut why = None;
        let found = self
            .service
            .registry
            .find(name, config, maker, |subscription, rules| {
                let rules = QueueRules {
                    name: name.into(),
                    maximum_deliveries: rules.maximum_deliveries,
                    dead_letter: (rules.dead_letter.as_deref())
                        .map(|name| topic_of_queue(name).into()),
                    has_priorities: rules.has_priorities,
                    reader: Arc::new(QueueReader {
                        maximum_delay_ms: rules.maximum_delay_ms,
                    }),
                };
                if broker.is_in_cluster() && anchor == Anchor::Lasting {
                    // Its root keeps it.
                    let declared = broker.declare_queue(now_ms, subscription, rules);
                    why = (declared.err()).map(|error| not_subscribed(broker, subscription, error));
                    return why.is_none();
                }
                why = make_anchor(broker, now_ms, subscription, rules, anchor).err();
                let is_made = why.is_none();
                let is_held = anchor == Anchor::Held;
                if let Some(owner) = maker.owner().filter(|_| is_made && !is_held) {
                    broker.keep_node(&owner_record(name), owner.as_bytes());
                }
                if is_made {
                    self.count_anchors(1, i64::from(is_held));
                }
                is_made
            });
        match found {
            Found::Here => Ok(()),
            Found::Absent => Err(refusal(Condition::NOT_FOUND, "there is no such queue")),
            Found::TooMany => Err(refusal(
                Condition::RESOURCE_LIMIT_EXCEEDED,
                why.unwrap_or("there are as many queues as amqp.maximum_queues"),
            )),
            Found::TooManyOfUser => Err(refusal(
                Condition::RESOURCE_LIMIT_EXCEEDED,
                "the user has made as many queues as one user may (amqp.maximum_queues_per_user)",
            )),
            Found::MemoryShort => Err(refusal(
                Condition::RESOURCE_LIMIT_EXCEEDED,
                "no queue is made while memory is short (broker.memory_ceiling)",
            )),
        }
    }
}

/// How long the anchor of a queue lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Anchor {
    /// Until somebody removes the queue.
    Lasting,
    /// No longer than the process: its session is one that ends with its connection, and never is at its end.
    Held,
}

/// Names of the queues whose anchors a shard has.
fn anchored(broker: &Broker<SessionState>) -> Vec<Box<str>> {
    let (mut names, mut next) = (Vec::new(), Some(0));
    while let Some(cursor) = next {
        let (sessions, rest) = broker.sessions(cursor, SESSIONS_AT_ONCE);
        let anchors = sessions.iter().map(|session| session.name.id());
        names.extend(anchors.filter_map(|id| Some(id.strip_prefix(QUEUE_PREFIX)?.into())));
        next = rest;
    }
    names
}

fn make_anchor(
    broker: &mut Broker<SessionState>,
    now_ms: u64,
    subscription: &str,
    rules: QueueRules,
    anchor: Anchor,
) -> Result<(), &'static str> {
    let is_held = anchor == Anchor::Held;
    let opened = broker.open(
        now_ms,
        OpenSession {
            name: anchor_of(&rules.name),
            clean_start: false,
            expiry_s: if is_held { 0 } else { NEVER_EXPIRES_S },
            consumer: consumer_id(if is_held { HELD_ANCHOR } else { ANCHOR }),
            will: None,
            on_demand: true,
            selector: None,
        },
    );
    let session = match opened {
        Ok(Opened::Ready { session, .. }) => session,
        Ok(Opened::Pending { session }) => {
            // Another shard has it from before a restart.
            broker.close(now_ms, session, Close::NORMAL);
            return Ok(());
        }
        Err(OpenError::TooManySessions) => return Err(TOO_MANY_SESSIONS),
        Err(OpenError::StoreFull) => return Err(STORE_FULL),
        Err(_) => return Err("the queue's session was not opened"),
    };
    let others: Vec<_> = (broker.filters(session))
        .filter(|filter| ***filter != *subscription)
        .cloned()
        .collect();
    for other in others {
        tracing::warn!(
            queue = &*rules.name,
            before = &*other,
            "the queue has another filter now: what waited in it is gone"
        );
        broker.unsubscribe(now_ms, session, &other);
    }
    let options = SubscribeOptions {
        qos: Qos::ExactlyOnce,
        ..SubscribeOptions::default()
    };
    let subscribed = if broker.is_in_cluster() {
        // A shared subscription of the cluster that its member keeps alive.
        broker.subscribe(now_ms, session, subscription, options)
    } else {
        broker.keep_queue(now_ms, session, subscription, options, rules)
    };
    if is_held && subscribed.is_ok() {
        broker.park(session);
    } else {
        broker.close(now_ms, session, Close::NORMAL);
    }
    (subscribed.map(drop)).map_err(|error| not_subscribed(broker, subscription, error))
}

/// Why a queue does not have its subscription.
fn not_subscribed(
    broker: &Broker<SessionState>,
    subscription: &str,
    error: SubscribeError,
) -> &'static str {
    match error {
        SubscribeError::TooMany => TOO_MANY_SUBSCRIPTIONS,
        SubscribeError::StoreFull => STORE_FULL,
        SubscribeError::InvalidFilter => fault_of_filter(subscription, broker.limits()),
        _ => "the queue's subscription was not made",
    }
}
