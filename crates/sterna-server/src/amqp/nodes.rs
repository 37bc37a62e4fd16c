//! Nodes that are made for links (AMQP 1.0, part 3, sections 3.5.9 to 3.5.13), and when they end.
//!
//! A dynamic node is a topic below `amqp/dynamic/`, or the queue of that name. Its lifetime policy is that of its answer.
//! Each link that leads to it is counted, by a [`NodeLink`] in the link's state, so that no end of a link is missed. A
//! link of such a node lasts no longer than its connection. So nothing of a node outlives the process, but for queues
//! that end with their last message.
//!
//! Nobody finds a node from the moment on at which it ends. The rest of it is cleared away in the next turn of any
//! shard: links that others have to it, its queue, its subscriptions.
//!
//! In a cluster a node is on the process of the link that made it. Processes tell each other by marks ([`Mark`]) what they
//! have, and look at those each second. So each knows whether others have links, and whether a node of another one has
//! ended.

use std::cell::{Cell, RefCell};
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
use super::kept_nodes::policy_bits;
use super::owners::owner_record;
use super::registry::{LinkKey, Registry, lock};
use crate::context::Context;
use crate::mail::Mail;
use crate::mail::amqp::{AmqpLetter, Body};
use crate::session::amqp::{DYNAMIC, QUEUE_LEVEL, is_dynamic, topic_of_queue};
use crate::session::anchor_of;

/// First byte of the key of the record of a node that outlives the process.
const RECORD: u8 = b'd';
/// Queues that end with their last message are looked at again after this time, and what other processes have.
const ROUND_MS: u64 = 1_000;
/// Looks after which a node is over in a cluster: others may have come to it just before.
const LOOKS: u32 = 2;
/// Looks after which the process of a node has it no more. One that takes over from a dead one says so in this time.
const ABSENT_LOOKS: u32 = 3;

/// The policies in the order of their records.
pub(super) const POLICIES: [LifetimePolicy; 4] = [
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
    reach: Reach,
    /// How often it was looked at since it is over, or since its process has it no more.
    looks: u32,
}

/// The processes that a node concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// This one. There is no cluster.
    Alone,
    /// Those of a cluster. It was made here.
    Here,
    /// Those of a cluster. Another has it, and this one has links to it.
    Elsewhere,
}

/// A fact that the processes of a cluster tell each other of a node, as a name below its topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mark {
    /// It is here.
    Node,
    /// Links to it are here, and it is not.
    Links,
    /// Its queue is here, and is empty.
    Empty,
}

impl Mark {
    fn of(self, topic: &str) -> String {
        let name = match self {
            Self::Node => "node",
            Self::Links => "links",
            Self::Empty => "empty",
        };
        format!("{topic}/${name}")
    }
}

/// The queues of nodes of which a shard has the root in a cluster.
#[derive(Debug, Default)]
pub(super) struct Roots {
    has_some: Cell<bool>,
    /// When they are looked at.
    due_ms: Cell<u64>,
    /// Those that are empty, by their topics.
    empty: RefCell<BTreeSet<Box<str>>>,
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
    reach: Reach,
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
    fn new(policy: LifetimePolicy, reach: Reach) -> Self {
        Self {
            policy,
            maker: None,
            made_by: None,
            links: FxHashMap::default(),
            due_ms: None,
            reach,
            looks: 0,
        }
    }

    const fn counts_links(&self) -> bool {
        matches!(
            self.policy,
            LifetimePolicy::DeleteOnNoLinks | LifetimePolicy::DeleteOnNoLinksOrMessages
        )
    }

    const fn counts_messages(&self) -> bool {
        matches!(
            self.policy,
            LifetimePolicy::DeleteOnNoMessages | LifetimePolicy::DeleteOnNoLinksOrMessages
        )
    }

    /// Whether it ends now (`Some(true)`), or is looked at until it ends (`Some(false)`).
    fn end(&self, is_queue: bool) -> Option<bool> {
        if self.reach == Reach::Elsewhere {
            return Some(self.links.is_empty());
        }
        let is_over = if self.counts_links() {
            self.links.is_empty()
        } else {
            self.maker.is_none()
        };
        // A topic has no messages.
        let waits = (self.counts_messages() && is_queue)
            || (self.counts_links() && self.reach != Reach::Alone);
        is_over.then_some(!waits)
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
        } else {
            node.looks = 0;
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
            reach: node.reach,
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

    /// Takes up the record of a node; other records are passed over.
    pub(super) fn restore(&self, key: &[u8], value: &[u8]) {
        if let Some((&RECORD, topic)) = key.split_first()
            && let Ok(topic) = std::str::from_utf8(topic)
            && let &[policy] = value
            && let Some(policy) = POLICIES.get(usize::from(policy))
        {
            let topic: Arc<str> = topic.into();
            let node = Node::new(*policy, Reach::Alone);
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
    /// Makes a node for a link, or notes that of another process.
    fn make_node(
        self: &Arc<Self>,
        topic: &str,
        (policy, reach): (LifetimePolicy, Reach),
        made_by: Option<LinkName>,
        place: Place,
    ) -> NodeLink {
        let topic: Arc<str> = topic.into();
        let number = self.nodes.change(|table| {
            table.next += 1;
            let number = table.next;
            let node = Node {
                maker: made_by.is_some().then_some(number),
                made_by,
                links: FxHashMap::from_iter([(number, place)]),
                ..Node::new(policy, reach)
            };
            table.nodes.insert(Arc::clone(&topic), node);
            table.judge(&topic);
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

    /// A look has found a node over, or not. It ends where that is still so, and was so often enough.
    fn looked_at(&self, topic: &Arc<str>, is_over: bool) {
        let has_ended = self.nodes.change(|table| {
            let Some(node) = table.nodes.get_mut(topic) else {
                return false;
            };
            node.looks = if is_over { node.looks + 1 } else { 0 };
            let most = match node.reach {
                Reach::Alone => 1,
                Reach::Here => LOOKS,
                Reach::Elsewhere => ABSENT_LOOKS,
            };
            node.due_ms.is_some() && node.looks >= most && table.end(topic)
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

    /// Whether this process has a dynamic node.
    pub(super) fn has_node(&self, topic: &str) -> bool {
        let table = lock(&self.nodes.table);
        let node = table.nodes.get(topic);
        node.is_some_and(|node| node.reach != Reach::Elsewhere)
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
        let mut topic = super::attach::dynamic_topic(policy_bits(policy))?;
        let reach = if cx.broker.is_in_cluster() {
            Reach::Here
        } else {
            Reach::Alone
        };
        if kind == Some(Kind::Queue) {
            // In a cluster it has a keeper.
            let is_lasting = Node::new(policy, reach).counts_messages() && reach == Reach::Alone;
            let record = is_lasting.then(|| {
                let code = POLICIES.iter().position(|one| *one == policy);
                let key = record_of(&topic_of_queue(&topic));
                (key, [code.unwrap_or_default() as u8])
            });
            if let Some((key, code)) = &record {
                cx.broker.keep_node(key, code);
            }
            let made = self.make_dynamic_queue(cx, &topic, client.user(), is_lasting);
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
        let place = place(cx, client);
        let node = registry.make_node(&topic, (policy, reach), Some(name), place);
        cx.broker.announce(cx.now_ms, &Mark::Node.of(&topic), true);
        if reach == Reach::Here
            && Node::new(policy, reach).counts_messages()
            && let Some(name) = queue_of(&topic)
        {
            self.keep_node(cx, name);
        }
        Ok((topic, policy, node))
    }

    /// Has a node that another process had.
    pub(super) fn take_node_over(&self, cx: &mut Context<'_>, topic: &str, policy: LifetimePolicy) {
        let had_links = self.service.registry.nodes.change(|table| {
            let topic: Arc<str> = topic.into();
            let node = Node::new(policy, Reach::Here);
            let known = table.nodes.entry(Arc::clone(&topic)).or_insert(node);
            let had_links = known.reach == Reach::Elsewhere;
            if had_links {
                (known.policy, known.reach, known.looks) = (policy, Reach::Here, 0);
            }
            table.judge(&topic);
            had_links
        });
        cx.broker.announce(cx.now_ms, &Mark::Node.of(topic), true);
        if had_links {
            cx.broker.announce(cx.now_ms, &Mark::Links.of(topic), false);
        }
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
        let place = place(cx, client);
        self.find_node(cx, &topic)?;
        if let Some(node) = registry.join_node(&topic, &name, place) {
            return Ok(Some(node));
        }
        // Its policy is that process's business.
        let of = (LifetimePolicy::DeleteOnNoLinks, Reach::Elsewhere);
        let node = registry.make_node(&topic, of, None, place);
        cx.broker.announce(cx.now_ms, &Mark::Links.of(&topic), true);
        Ok(Some(node))
    }

    /// Whether a topic is not that of a dynamic node which is gone.
    pub(super) fn find_node(&self, cx: &mut Context<'_>, topic: &str) -> Result<(), Refusal> {
        let is_there = !is_dynamic(topic)
            || self.service.registry.has_node(topic)
            || cx.broker.is_announced(&Mark::Node.of(topic));
        is_there.then_some(()).ok_or_else(no_node)
    }

    /// When [`look_at_nodes`](Self::look_at_nodes) is to be called; `None` where there is nothing to look at.
    pub(crate) fn nodes_ms(&self) -> Option<u64> {
        let due_ms = self.service.registry.nodes.due_ms.load(Ordering::Relaxed);
        let roots = &self.service.roots;
        let roots_ms = roots.has_some.get().then(|| roots.due_ms.get());
        let due_ms = due_ms.min(roots_ms.unwrap_or(u64::MAX));
        Some(due_ms).filter(|due_ms| *due_ms != u64::MAX)
    }

    /// Clears nodes away that have ended, and looks at queues that end with their last message.
    pub(crate) fn look_at_nodes(&self, cx: &mut Context<'_>) {
        let now_ms = cx.now_ms;
        self.tell_of_empty_queues(cx);
        if self.service.registry.nodes.due_ms.load(Ordering::Relaxed) > now_ms {
            return;
        }
        let (gone, waiting) = self.service.registry.nodes.change(|table| {
            let due = table.waiting.range(..=(now_ms, Arc::from("\u{10ffff}")));
            let due = due.filter_map(|(_, topic)| {
                let node = table.nodes.get(topic)?;
                let has_messages = node.counts_messages() && queue_of(topic).is_some();
                let counts = (node.counts_links(), has_messages);
                Some((Arc::clone(topic), node.reach, counts))
            });
            let due: Vec<_> = due.collect();
            for (topic, ..) in &due {
                table.set_due(topic, Some(now_ms + ROUND_MS));
            }
            (std::mem::take(&mut table.gone), due)
        });
        for one in gone {
            self.clear_away(cx, one);
        }
        for (topic, reach, (counts_links, counts_messages)) in waiting {
            let registry = &self.service.registry;
            if reach == Reach::Elsewhere {
                let is_there = cx.broker.is_announced(&Mark::Node.of(&topic));
                registry.looked_at(&topic, !is_there);
                continue;
            }
            if counts_links && cx.broker.is_announced(&Mark::Links.of(&topic)) {
                registry.looked_at(&topic, false);
                continue;
            }
            if !counts_messages {
                registry.looked_at(&topic, true);
                continue;
            }
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
        let is_empty = if cx.broker.is_in_cluster() {
            let mut roots = cx.broker.open_roots();
            let here = roots.find(|(root, _)| Some(&***root) == filter.as_deref());
            let here = here.map(|(_, is_empty)| is_empty);
            drop(roots);
            here.unwrap_or_else(|| cx.broker.is_announced(&Mark::Empty.of(topic)))
        } else {
            let is_empty = filter.and_then(|filter| cx.broker.is_queue_empty(&filter));
            is_empty.unwrap_or(true)
        };
        self.service.registry.looked_at(topic, is_empty);
    }

    /// Tells other processes of a cluster which queues of nodes are empty, of those whose root this shard has.
    fn tell_of_empty_queues(&self, cx: &mut Context<'_>) {
        let now_ms = cx.now_ms;
        let roots = &self.service.roots;
        if !cx.broker.is_in_cluster() || roots.due_ms.get() > now_ms {
            return;
        }
        roots.due_ms.set(now_ms + ROUND_MS);
        let of_nodes = cx.broker.open_roots().filter_map(|(filter, is_empty)| {
            let topics = filter.splitn(3, '/').nth(2)?;
            queue_of(topics).filter(|name| is_dynamic(name))?;
            Some((Box::from(topics), is_empty))
        });
        let of_nodes: Vec<(Box<str>, bool)> = of_nodes.collect();
        roots.has_some.set(!of_nodes.is_empty());
        let empty = of_nodes.into_iter().filter(|(_, is_empty)| *is_empty);
        let now: BTreeSet<Box<str>> = empty.map(|(topic, _)| topic).collect();
        let before = roots.empty.replace(now.clone());
        for topic in before.difference(&now) {
            cx.broker.announce(now_ms, &Mark::Empty.of(topic), false);
        }
        for topic in now.difference(&before) {
            cx.broker.announce(now_ms, &Mark::Empty.of(topic), true);
        }
    }

    fn clear_away(&self, cx: &mut Context<'_>, gone: Gone) {
        let Gone {
            topic,
            links,
            reach,
        } = gone;
        let mark = if reach == Reach::Elsewhere {
            Mark::Links
        } else {
            Mark::Node
        };
        cx.broker.announce(cx.now_ms, &mark.of(&topic), false);
        if reach == Reach::Elsewhere && links.is_empty() {
            // It may go on where it is.
            return;
        }
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
            if reach == Reach::Here {
                Self::end_keeper(cx, name);
            }
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
