//! Nodes that are made for links (AMQP 1.0, part 3, sections 3.5.9 to 3.5.13), and when they end.
//!
//! A dynamic node is a topic below `amqp/dynamic/`, or the queue of that name. Its lifetime policy is that of its answer.
//! Each link that leads to it is counted, by a [`NodeLink`] in the link's state, so that no end of a link is missed. A
//! link of such a node lasts no longer than its connection. So nothing of a node outlives the process, but for queues
//! that end with their last message.
//!
//! Nobody finds a node from the moment on at which it ends. The rest of it is cleared away in the next turn of any
//! shard: links that others have to it, its queue, its subscriptions.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;
use sterna_amqp::Condition;
use sterna_amqp::messaging::LifetimePolicy;
use sterna_amqp::performatives::Error;
use sterna_amqp::types::{Encoded, MapWriter, Multiple, Value};
use sterna_broker::{EndCause, Share};
use sterna_net::ConnectionId;

use super::Door;
use super::address::{Kind, Node as Address};
use super::attach::{Refusal, refusal};
use super::client::Client;
use super::owners::owner_record;
use super::queues::anchor_of;
use super::registry::{LinkKey, Registry, lock};
use crate::context::Context;
use crate::mail::Mail;
use crate::mail::amqp::{AmqpLetter, Body};
use crate::session::amqp::{DYNAMIC, QUEUE_LEVEL, is_dynamic, topic_of_queue};

/// First byte of the key of the record of a node that outlives the process.
const RECORD: u8 = b'd';
/// Queues that end with their last message are looked at again after this time.
const ROUND_MS: u64 = 1_000;

/// The policies in the order of their records.
const POLICIES: [LifetimePolicy; 4] = [
    LifetimePolicy::DeleteOnClose,
    LifetimePolicy::DeleteOnNoLinks,
    LifetimePolicy::DeleteOnNoMessages,
    LifetimePolicy::DeleteOnNoLinksOrMessages,
];

/// The name of a link, and whether it receives from its node. A link that is attached anew elsewhere is the same.
type LinkName = (LinkKey, bool);

/// The nodes of all links, by their topics.
#[derive(Debug)]
pub(super) struct Nodes {
    table: Mutex<Table>,
    /// When somebody is to look at them; to be read without the lock.
    due_ms: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    nodes: FxHashMap<Arc<str>, Node>,
    /// Nodes that have ended and are not cleared away.
    gone: Vec<Gone>,
    /// Queues that end when they are empty, by the time of the next look.
    waiting: BTreeSet<(u64, Arc<str>)>,
    next: u64,
}

#[derive(Debug)]
struct Node {
    policy: LifetimePolicy,
    /// The number of the link that made it; `None` when that is gone.
    maker: Option<u64>,
    made_by: Option<LinkName>,
    links: FxHashMap<u64, Place>,
    /// Its place among those that wait.
    due_ms: Option<u64>,
}

/// Where a link to a node is.
#[derive(Clone, Copy, Debug)]
struct Place {
    shard: usize,
    connection: ConnectionId,
}

/// A node that has ended, with the links that others still have to it.
#[derive(Debug)]
struct Gone {
    topic: Arc<str>,
    links: Vec<(u64, Place)>,
}

/// A link to a node that was made for a link. The node may end when this is dropped.
#[derive(Debug)]
pub(super) struct NodeLink {
    registry: Arc<Registry>,
    topic: Arc<str>,
    number: u64,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            due_ms: AtomicU64::new(u64::MAX),
        }
    }
}

impl Drop for NodeLink {
    fn drop(&mut self) {
        self.registry.leave_node(&self.topic, self.number);
    }
}

/// The queue that a node's topic is of; `None` for a topic.
fn queue_of(topic: &str) -> Option<&str> {
    topic.strip_prefix(QUEUE_LEVEL)
}

impl Node {
    /// Whether it ends now (`Some(true)`), or when its queue is empty (`Some(false)`).
    fn end(&self, is_queue: bool) -> Option<bool> {
        let (is_over, waits) = match self.policy {
            LifetimePolicy::DeleteOnClose => (self.maker.is_none(), false),
            LifetimePolicy::DeleteOnNoLinks => (self.links.is_empty(), false),
            LifetimePolicy::DeleteOnNoMessages => (self.maker.is_none(), true),
            LifetimePolicy::DeleteOnNoLinksOrMessages => (self.links.is_empty(), true),
        };
        // A topic has no messages.
        is_over.then_some(!(waits && is_queue))
    }
}

impl Table {
    fn set_due(&mut self, topic: &Arc<str>, due_ms: Option<u64>) {
        let Some(node) = self.nodes.get_mut(topic) else {
            return;
        };
        if let Some(before_ms) = std::mem::replace(&mut node.due_ms, due_ms) {
            self.waiting.remove(&(before_ms, Arc::clone(topic)));
        }
        if let Some(due_ms) = due_ms {
            self.waiting.insert((due_ms, Arc::clone(topic)));
        }
    }

    /// Ends a node, or has it wait for the end of its messages, or not wait any more. True where it has ended.
    fn judge(&mut self, topic: &Arc<str>) -> bool {
        let Some(node) = self.nodes.get(topic) else {
            return false;
        };
        match node.end(queue_of(topic).is_some()) {
            Some(true) => self.end(topic),
            Some(false) if node.due_ms.is_none() => {
                self.set_due(topic, Some(0));
                false
            }
            Some(false) => false,
            None => {
                self.set_due(topic, None);
                false
            }
        }
    }

    fn end(&mut self, topic: &Arc<str>) -> bool {
        self.set_due(topic, None);
        let Some(node) = self.nodes.remove(topic) else {
            return false;
        };
        self.gone.push(Gone {
            topic: Arc::clone(topic),
            links: node.links.into_iter().collect(),
        });
        true
    }

    fn due_ms(&self) -> u64 {
        let first = self.waiting.first();
        let next_ms = first.map_or(u64::MAX, |(due_ms, _)| *due_ms);
        if self.gone.is_empty() { next_ms } else { 0 }
    }
}

impl Nodes {
    /// Changes the table, and says when it is to be looked at next.
    fn change<R>(&self, change: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = lock(&self.table);
        let result = change(&mut table);
        self.due_ms.store(table.due_ms(), Ordering::Relaxed);
        result
    }

    fn has(&self, topic: &str) -> bool {
        lock(&self.table).nodes.contains_key(topic)
    }

    /// Takes up the record of a node; other records are passed over.
    pub(super) fn restore(&self, key: &[u8], value: &[u8]) {
        if let Some((&RECORD, topic)) = key.split_first()
            && let Ok(topic) = std::str::from_utf8(topic)
            && let &[policy] = value
            && let Some(policy) = POLICIES.get(usize::from(policy))
        {
            let topic: Arc<str> = topic.into();
            let node = Node {
                policy: *policy,
                maker: None,
                made_by: None,
                links: FxHashMap::default(),
                due_ms: None,
            };
            self.change(|table| {
                table.nodes.insert(Arc::clone(&topic), node);
                table.judge(&topic)
            });
        }
    }

    /// # Panics
    /// Where a node is not as its links and its place say.
    pub(super) fn check(&self) {
        let table = lock(&self.table);
        let due = table.nodes.values().filter(|node| node.due_ms.is_some());
        assert_eq!(due.count(), table.waiting.len(), "nodes that wait");
        for (topic, node) in &table.nodes {
            let is_here = |number: &u64| node.links.contains_key(number);
            assert!(
                node.maker.as_ref().is_none_or(is_here),
                "a maker is a link of its node"
            );
            let end = node.end(queue_of(topic).is_some());
            assert_ne!(end, Some(true), "a node that is over is gone");
            assert_eq!(
                end.is_some(),
                node.due_ms.is_some(),
                "a node waits for its last message"
            );
        }
    }
}

impl Registry {
    /// Makes a node for a link.
    fn make_node(
        self: &Arc<Self>,
        topic: &str,
        policy: LifetimePolicy,
        made_by: LinkName,
        place: Place,
    ) -> NodeLink {
        let topic: Arc<str> = topic.into();
        let number = self.nodes.change(|table| {
            table.next += 1;
            let number = table.next;
            let node = Node {
                policy,
                maker: Some(number),
                made_by: Some(made_by),
                links: FxHashMap::from_iter([(number, place)]),
                due_ms: None,
            };
            table.nodes.insert(Arc::clone(&topic), node);
            number
        });
        NodeLink {
            registry: Arc::clone(self),
            topic,
            number,
        }
    }

    /// Notes one more link of a node; `None` where there is no such node.
    fn join_node(self: &Arc<Self>, topic: &str, name: &LinkName, place: Place) -> Option<NodeLink> {
        self.nodes.change(|table| {
            let (topic, node) = table.nodes.get_key_value(topic)?;
            let topic = Arc::clone(topic);
            let is_maker = node.maker.is_some() && node.made_by.as_ref() == Some(name);
            table.next += 1;
            let number = table.next;
            let node = table.nodes.get_mut(&topic)?;
            node.links.insert(number, place);
            if is_maker {
                // The link that made it is attached anew.
                node.maker = Some(number);
            }
            table.judge(&topic);
            Some(NodeLink {
                registry: Arc::clone(self),
                topic,
                number,
            })
        })
    }

    fn leave_node(&self, topic: &Arc<str>, number: u64) {
        let has_ended = self.nodes.change(|table| {
            let Some(node) = table.nodes.get_mut(topic) else {
                return false;
            };
            node.links.remove(&number);
            node.maker = node.maker.filter(|maker| *maker != number);
            table.judge(topic)
        });
        if has_ended {
            self.forget_queue_of(topic);
        }
    }

    /// Ends a node whose queue is empty, where that still ends it.
    fn end_empty_node(&self, topic: &Arc<str>) {
        let has_ended = self.nodes.change(|table| {
            let node = table.nodes.get(topic);
            node.is_some_and(|node| node.due_ms.is_some()) && table.end(topic)
        });
        if has_ended {
            self.forget_queue_of(topic);
        }
    }

    /// Ends a node whose queue was removed.
    pub(super) fn end_node(&self, topic: &str) {
        self.nodes.change(|table| {
            let known = table.nodes.get_key_value(topic);
            if let Some(topic) = known.map(|(topic, _)| Arc::clone(topic)) {
                table.end(&topic);
            }
        });
    }

    /// The queue of a node is nobody's any more.
    fn forget_queue_of(&self, topic: &str) {
        if let Some(name) = queue_of(topic) {
            self.remove(name, || Some(()));
        }
    }

    /// Whether a dynamic node is there.
    pub(super) fn has_node(&self, topic: &str) -> bool {
        self.nodes.has(topic)
    }
}

/// The properties of a node that was made, as its link is told (section 3.5.9).
pub(super) fn properties_of(topic: &str, policy: LifetimePolicy) -> Encoded {
    let modes: &[&str] = if queue_of(topic).is_some() {
        &["move", "copy"]
    } else {
        &["copy"]
    };
    Encoded::build(|out| {
        let mut map = MapWriter::new(out);
        let policy = policy.encoded();
        let entry = map.entry(&Value::Symbol(LifetimePolicy::PROPERTY));
        entry.extend_from_slice(policy.bytes());
        Multiple::Slice(modes).encode(map.entry(&Value::Symbol("supported-dist-modes")));
        map.finish();
    })
}

/// The topic of a dynamic node that an address names, if it does.
pub(super) fn dynamic_topic_of(address: &Address) -> Option<String> {
    let topic = address.topic()?;
    let parsed = sterna_mqtt::topic::Filter::parse(&topic).ok()?;
    is_dynamic(parsed.filter).then(|| parsed.filter.to_owned())
}

impl Door {
    /// Makes a node for a link, and tells its topic.
    pub(super) fn make_node(
        &self,
        cx: &mut Context<'_>,
        client: &Client,
        link: (&str, bool),
        (kind, policy): (
            Option<Kind>,
            Result<Option<LifetimePolicy>, sterna_amqp::DecodeError>,
        ),
    ) -> Result<(String, LifetimePolicy, NodeLink), Refusal> {
        let policy = policy.map_err(|error| refusal(error.condition, error.detail))?;
        let policy = policy.unwrap_or(LifetimePolicy::DeleteOnClose);
        let mut topic = super::attach::dynamic_topic()?;
        if kind == Some(Kind::Queue) {
            let counts_messages = matches!(
                policy,
                LifetimePolicy::DeleteOnNoMessages | LifetimePolicy::DeleteOnNoLinksOrMessages
            );
            if counts_messages && cx.broker.is_in_cluster() {
                let detail = "a dynamic queue of a cluster lasts no longer than its links";
                return Err(refusal(Condition::NOT_IMPLEMENTED, detail));
            }
            let record = counts_messages.then(|| {
                let code = POLICIES.iter().position(|one| *one == policy);
                let key = record_of(&topic_of_queue(&topic));
                (key, [code.unwrap_or_default() as u8])
            });
            if let Some((key, code)) = &record {
                cx.broker.keep_node(key, code);
            }
            let made = self.make_dynamic_queue(cx, &topic, client.user(), counts_messages);
            if let Err(refusal) = made {
                if let Some((key, _)) = &record {
                    cx.broker.forget_node(key);
                }
                return Err(refusal);
            }
            topic = topic_of_queue(&topic);
        }
        debug_assert!(topic.contains(DYNAMIC), "a dynamic node has a name like it");
        let name = (client.link_key(link.0), link.1);
        let registry = &self.service.registry;
        let node = registry.make_node(&topic, policy, name, place(cx, client));
        Ok((topic, policy, node))
    }

    /// Notes one more link of the node that an address names, where that was made for a link.
    pub(super) fn join_node(
        &self,
        cx: &mut Context<'_>,
        client: &Client,
        link: (&str, bool),
        address: &Address,
    ) -> Result<Option<NodeLink>, Refusal> {
        let Some(topic) = dynamic_topic_of(address) else {
            return Ok(None);
        };
        let name = (client.link_key(link.0), link.1);
        let registry = &self.service.registry;
        match registry.join_node(&topic, &name, place(cx, client)) {
            Some(node) => Ok(Some(node)),
            None if cx.broker.is_wanted(&topic) => Ok(None),
            None => Err(no_node()),
        }
    }

    /// Whether a topic is not that of a dynamic node which is gone.
    pub(super) fn find_node(&self, cx: &mut Context<'_>, topic: &str) -> Result<(), Refusal> {
        let is_there = !is_dynamic(topic)
            || self.service.registry.has_node(topic)
            || cx.broker.is_wanted(topic);
        is_there.then_some(()).ok_or_else(no_node)
    }

    /// When [`look_at_nodes`](Self::look_at_nodes) is to be called; `None` where there is nothing to look at.
    pub(crate) fn nodes_ms(&self) -> Option<u64> {
        let due_ms = self.service.registry.nodes.due_ms.load(Ordering::Relaxed);
        Some(due_ms).filter(|due_ms| *due_ms != u64::MAX)
    }

    /// Clears nodes away that have ended, and looks at queues that end with their last message.
    pub(crate) fn look_at_nodes(&self, cx: &mut Context<'_>) {
        let now_ms = cx.now_ms;
        if self.nodes_ms().is_none_or(|due_ms| due_ms > now_ms) {
            return;
        }
        let (gone, waiting) = self.service.registry.nodes.change(|table| {
            let due = table.waiting.range(..=(now_ms, Arc::from("\u{10ffff}")));
            let due: Vec<Arc<str>> = due.map(|(_, topic)| Arc::clone(topic)).collect();
            for topic in &due {
                table.set_due(topic, Some(now_ms + ROUND_MS));
            }
            (std::mem::take(&mut table.gone), due)
        });
        for one in gone {
            self.clear_away(cx, one);
        }
        for topic in waiting {
            let home = queue_of(&topic)
                .and_then(|name| self.service.registry.shared_subscription(name))
                .map(|filter| Share::home(&filter, cx.broker.directory().shards()));
            // A record may be there alone.
            let home = home.map_or(cx.shard, usize::from);
            if home == cx.shard {
                self.look_at_queue(cx, &topic);
            } else {
                post(cx, home, Body::LookAtNode { topic });
            }
        }
    }

    /// Ends a node whose queue is empty. This shard has the queue.
    pub(super) fn look_at_queue(&self, cx: &mut Context<'_>, topic: &Arc<str>) {
        let filter =
            queue_of(topic).and_then(|name| self.service.registry.shared_subscription(name));
        let is_empty = filter.and_then(|filter| cx.broker.is_queue_empty(&filter));
        if is_empty.unwrap_or(true) {
            self.service.registry.end_empty_node(topic);
        }
    }

    fn clear_away(&self, cx: &mut Context<'_>, Gone { topic, links }: Gone) {
        tracing::debug!(node = &*topic, links = links.len(), "dynamic node ended");
        for (number, place) in links {
            let body = Body::NodeGone {
                connection: place.connection,
                number,
            };
            post(cx, place.shard, body);
        }
        let now_ms = cx.now_ms;
        cx.broker.clear_retained(&topic);
        if let Some(name) = queue_of(&topic) {
            let shard = cx.broker.directory().shard_of(&anchor_of(name));
            match shard.map(|shard| usize::from(shard.0)) {
                Some(shard) if shard != cx.shard => {
                    let name = name.into();
                    post(cx, shard, Body::EndQueue { name });
                }
                Some(_) | None => self.end_dynamic_queue(cx, name),
            }
        } else {
            cx.broker.unsubscribe_all(now_ms, &topic);
        }
    }

    /// A node of a link is gone: the link is detached.
    pub(super) fn node_gone(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        number: u64,
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            let is_it =
                |node: &Option<NodeLink>| node.as_ref().is_some_and(|node| node.number == number);
            let sources = client.sources.iter();
            let source = sources.filter(|(_, source)| is_it(&source.lifetime));
            let targets = client.targets.iter();
            let target = targets.filter(|(_, target)| is_it(&target.lifetime));
            let found = source.map(|(link, _)| *link).next();
            let found = found.or_else(|| target.map(|(link, _)| *link).next());
            if let Some(link) = found {
                let why = (Condition::RESOURCE_DELETED, "the node was deleted");
                // One that is being attached is refused instead.
                if !door.detach_source(client, link, true, why) {
                    let error = Error::new(why.0, why.1);
                    let _ = client.engine.refuse_attach(link, error, &mut door.out);
                }
                door.handle_rest(cx, client);
            } else {
                let (of_it, others) = std::mem::take(&mut client.suspended)
                    .into_iter()
                    .partition(|(_, source)| is_it(&source.lifetime));
                client.suspended = others;
                let of_it: Vec<(_, Box<super::client::SourceLink>)> = of_it;
                for (_, source) in of_it {
                    door.end_source(cx, &source, 0, EndCause::Deleted);
                }
            }
        });
    }
}

impl NodeLink {
    /// Whether the node was made for a link of this client.
    pub(super) fn is_of(&self, client: &Client) -> bool {
        let table = lock(&self.registry.nodes.table);
        let maker = table.nodes.get(&self.topic);
        maker
            .and_then(|node| node.made_by.as_ref())
            .is_some_and(|(key, _)| *key == client.link_key(&key.name))
    }
}

/// Removes the records of a queue that was the node of a link.
pub(super) fn forget_dynamic_queue(cx: &mut Context<'_>, name: &str) {
    cx.broker.forget_node(&record_of(&topic_of_queue(name)));
    cx.broker.forget_node(&owner_record(name));
}

/// The key of the record of a node.
fn record_of(topic: &str) -> Vec<u8> {
    [&[RECORD], topic.as_bytes()].concat()
}

fn no_node() -> Refusal {
    let detail = "there is no such node: the link that it was made for is gone";
    refusal(Condition::NOT_FOUND, detail)
}

const fn place(cx: &Context<'_>, client: &Client) -> Place {
    Place {
        shard: cx.shard,
        connection: client.id,
    }
}

fn post(cx: &mut Context<'_>, shard: usize, body: Body) {
    (cx.outbox).post(shard, Mail::Amqp(Box::new(AmqpLetter(body))));
}
