//! A request to several nodes of a cluster: who is asked what next, and what becomes of the answers. Without input,
//! output or clock.
//!
//! Nodes are asked in the order of their names. A list of places goes from one to the next, and a page ends at the first
//! that keeps it waiting. A list in an order asks all at once, and is as long as all of them are known.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::api::Condition;
use super::call::Call;
use super::changes::Change;
use super::role::Role;
use crate::http::{ProblemKind as Kind, Trouble};
use crate::mail::admin::Said;
use crate::mail::ranking::Rank;

/// Least bytes that an answer may have, however many nodes are asked at once.
const LEAST_ANSWER_BYTES: usize = 16 * 1024;

/// A node of the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Node {
    pub(super) name: Arc<str>,
    /// Whether it was heard of within its lease. Others are named, and not asked.
    pub(super) is_here: bool,
}

/// The nodes that a request goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// All, one after the other.
    Listed,
    /// All at once, in the order of clients' ranks.
    Ranked,
    /// All at once, in the order of queues' names.
    Queues,
    /// One of them, by its place.
    One(usize),
    /// This one, then all others: one of them has the thing.
    Owner,
    /// This one, and the one that it names.
    Queue,
    /// All at once: each does it.
    Every,
    /// One of them, by its place, and then all others, where the first has lifted a ban.
    Lift(usize),
}

/// The place of an entry in a list that has an order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Rank(Rank),
    Name(Box<str>),
}

/// A question to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Asking {
    /// Its place.
    pub(super) node: usize,
    /// Most entries; `None` as the request says.
    limit: Option<usize>,
    /// Where to go on; `None` as the request says.
    after: Option<String>,
}

/// The next step after answers.
#[derive(Debug)]
pub(super) enum Turn {
    /// Nodes are to be asked: [`Round::asked`].
    Ask,
    /// A page of a list, and where it goes on.
    Page(Vec<Value>, Option<String>),
    /// The answer of one node.
    One(Arc<str>, Value),
    /// The answers of all nodes that answer.
    Every(Vec<(Arc<str>, Value)>),
    /// None of the nodes can do it, or it is not known whether they can.
    Refused(Trouble),
}

/// The bounds of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Most entries of a page, where the request is for one.
    pub(super) limit: Option<usize>,
    /// Most bytes of an answer.
    pub(super) answer_bytes: usize,
    /// The time at which a page of a list ends, in milliseconds since the Unix epoch.
    pub(super) until_ms: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) call: Call,
    /// The content of the request; empty for none.
    pub(super) content: String,
    /// The change for the audit log; `None` for a request that only reads.
    pub(super) change: Option<Change>,
    /// The conditions of the request.
    pub(super) condition: Condition,
    /// The user who has sent it, and the role.
    pub(super) by: (Option<String>, Option<Role>),
    nodes: Vec<Node>,
    own: usize,
    way: Way,
    bounds: Bounds,
    asked: Vec<Asking>,
    unanswered: BTreeSet<Arc<str>>,
    /// Of a list: the node that is next, and where to go on there.
    at: usize,
    after: Option<String>,
    items: Vec<Value>,
    bytes: usize,
    found: Vec<(Key, Value)>,
    /// Behind it, not all entries are known.
    horizon: Option<Key>,
    told: Vec<(usize, Value)>,
    refusal: Option<Trouble>,
    /// Whether a list has asked a node.
    has_asked: bool,
    /// Whether the nodes of the second step are asked.
    is_second: bool,
    /// The answer of the first step, where another node knows more.
    first: Option<(usize, Value)>,
}

/// The problem that a node has answered with.
fn trouble_of(status: u16, value: &Value) -> Trouble {
    let name = value["type"].as_str().unwrap_or_default();
    let kind = Kind::of_type(name).filter(|kind| kind.status() == status);
    let detail = value["detail"].as_str().unwrap_or("a node refuses it");
    Trouble::new(kind.unwrap_or(Kind::ClusterAway), detail.to_owned())
}

impl Round {
    /// A round over `nodes`, which are in the order of their names; `own` is the place of the node that is asked.
    ///
    /// # Errors
    /// `after` of a list is not what a page before has said.
    pub(super) fn new(
        call: Call,
        content: String,
        (nodes, own): (Vec<Node>, usize),
        way: Way,
        bounds: Bounds,
    ) -> Result<Self, Trouble> {
        let mut round = Self {
            call,
            content,
            change: None,
            condition: Condition::default(),
            by: (None, None),
            nodes,
            own,
            way,
            bounds,
            asked: Vec::new(),
            unanswered: BTreeSet::new(),
            at: 0,
            after: None,
            items: Vec::new(),
            bytes: 0,
            found: Vec::new(),
            horizon: None,
            told: Vec::new(),
            refusal: None,
            has_asked: false,
            is_second: false,
            first: None,
        };
        if way == Way::Listed {
            let after = round.call.after(|text| {
                let (node, after) = text.split_once(':')?;
                Some((node.to_owned(), after.to_owned()))
            })?;
            if let Some((node, after)) = after {
                round.at = round.nodes.partition_point(|known| *known.name < *node);
                let is_there =
                    (round.nodes.get(round.at)).is_some_and(|known| *known.name == *node);
                // One that has gone is passed over.
                round.after = Some(after).filter(|after| is_there && !after.is_empty());
            }
        }
        Ok(round)
    }

    /// The nodes that are asked now.
    pub(super) fn asked(&self) -> &[Asking] {
        &self.asked
    }

    /// A node by its place.
    pub(super) fn node(&self, place: usize) -> &Arc<str> {
        &self.nodes[place].name
    }

    /// Whether a place is that of the node that is asked.
    pub(super) const fn is_own(&self, place: usize) -> bool {
        place == self.own
    }

    /// The names of nodes that have not answered, in order.
    pub(super) fn unanswered(&self) -> Vec<&str> {
        self.unanswered.iter().map(|node| &**node).collect()
    }

    /// The target of a question.
    pub(super) fn target(&self, asking: &Asking) -> String {
        let limit = asking.limit.map(|limit| limit.to_string());
        // A list goes on at each node as that says; others say the same to all.
        let after = match self.way {
            Way::Listed => asking.after.as_deref(),
            _ => self.call.parameter("after"),
        };
        self.call.target(limit.as_deref(), after)
    }

    /// Most bytes of the answer to a question.
    pub(super) fn answer_bytes(&self) -> usize {
        let most = self.bounds.answer_bytes;
        (most / self.asked.len().max(1)).max(LEAST_ANSWER_BYTES.min(most))
    }

    /// Begins.
    pub(super) fn begin(&mut self, now_ms: u64) -> Turn {
        match self.way {
            Way::Listed => {
                // Each page names those that are known to be silent, wherever the page is.
                let away = self.nodes.iter().filter(|node| !node.is_here);
                self.unanswered
                    .extend(away.map(|node| Arc::clone(&node.name)));
                self.go_on(now_ms)
            }
            Way::Ranked | Way::Queues | Way::Every => self.ask(0..self.nodes.len()),
            // A change has no second step that a lost client could prevent.
            Way::Owner if self.change.is_some() => {
                self.is_second = true;
                self.ask(0..self.nodes.len())
            }
            Way::Owner | Way::Queue => self.ask(self.own..=self.own),
            Way::One(node) | Way::Lift(node) => self.ask(node..=node),
        }
    }

    /// Asks those of some nodes that are here, and names the others. Where all are away, it is over.
    fn ask(&mut self, places: impl IntoIterator<Item = usize>) -> Turn {
        let mut asked = Vec::new();
        for place in places {
            let node = &self.nodes[place];
            if node.is_here {
                asked.push(Asking {
                    node: place,
                    limit: self.bounds.limit,
                    after: None,
                });
            } else {
                self.unanswered.insert(Arc::clone(&node.name));
            }
        }
        self.asked = asked;
        if self.asked.is_empty() {
            return self.end();
        }
        Turn::Ask
    }

    /// Takes the answers of the nodes that are asked, in their order.
    pub(super) fn take(&mut self, now_ms: u64, said: Vec<Said>) -> Turn {
        let mut again = Vec::new();
        for (asking, said) in std::mem::take(&mut self.asked).into_iter().zip(said) {
            match said {
                Said::Answer(status, value, bytes) => {
                    self.bytes += bytes;
                    self.note(asking.node, status, value);
                }
                Said::TooLarge => match asking.limit {
                    // Of long entries there is room for fewer.
                    Some(limit) if limit > 1 => again.push(Asking {
                        limit: Some((limit / 4).max(1)),
                        ..asking
                    }),
                    _ => self.lacks(asking.node),
                },
                Said::Away => self.lacks(asking.node),
            }
        }
        if !again.is_empty() {
            self.asked = again;
            return Turn::Ask;
        }
        if self.way == Way::Listed {
            return self.go_on(now_ms);
        }
        self.end()
    }

    /// A node has not answered.
    fn lacks(&mut self, place: usize) {
        self.unanswered.insert(Arc::clone(&self.nodes[place].name));
        if self.way == Way::Listed {
            self.at = place + 1;
            self.after = None;
        }
    }

    fn note(&mut self, place: usize, status: u16, mut value: Value) {
        let is_done = (200..300).contains(&status);
        if !is_done {
            // It has too much to do, or stops.
            if status >= 500 && !self.is_own(place) {
                return self.lacks(place);
            }
            if self.way == Way::Queue && value.get("node").is_some() {
                return self.told.push((place, value));
            }
            // The node that is asked decides whether it can be done.
            if self.way == Way::Every && !self.is_own(place) {
                return self.lacks(place);
            }
            let trouble = trouble_of(status, &value);
            // Another node may have it. A word about a thing that is there counts more.
            if self
                .refusal
                .as_ref()
                .is_none_or(|known| known.status() == 404)
            {
                self.refusal = Some(trouble);
            }
            return;
        }
        if !matches!(self.way, Way::Listed | Way::Ranked | Way::Queues) {
            return self.told.push((place, value));
        }
        let next = value["next"].as_str().map(str::to_owned);
        let Value::Array(items) = value["items"].take() else {
            return self.lacks(place);
        };
        let name = Arc::clone(&self.nodes[place].name);
        if self.way == Way::Listed {
            self.items.extend(items.into_iter().map(|mut item| {
                item["node"] = (*name).into();
                item
            }));
            self.at = place + usize::from(next.is_none());
            self.after = next;
            return;
        }
        for mut item in items {
            let Some(key) = self.key_of(&mut item, &name) else {
                return self.lacks(place);
            };
            self.found.push((key, item));
        }
        if let Some(next) = next {
            let Some(next) = self.key_in(&next) else {
                return self.lacks(place);
            };
            let horizon = self
                .horizon
                .take()
                .map_or_else(|| next.clone(), |known| known.min(next.clone()));
            self.horizon = Some(horizon);
        }
    }

    /// The place of an entry.
    fn key_of(&self, item: &mut Value, node: &Arc<str>) -> Option<Key> {
        if self.way == Way::Queues {
            return Some(Key::Name(item["name"].as_str()?.into()));
        }
        let rank = item.as_object_mut()?.remove("rank")?;
        item["node"] = (**node).into();
        self.key_in(rank.as_str()?)
    }

    /// A place as `next` says it.
    fn key_in(&self, text: &str) -> Option<Key> {
        if self.way == Way::Queues {
            return Some(Key::Name(text.into()));
        }
        Rank::parse(text).map(Key::Rank)
    }

    /// Goes on with a list: asks the next node, or ends the page.
    fn go_on(&mut self, now_ms: u64) -> Turn {
        if let Some(refusal) = self.refusal.take() {
            return Turn::Refused(refusal);
        }
        while self.nodes.get(self.at).is_some_and(|node| !node.is_here) {
            self.at += 1;
            self.after = None;
        }
        let Some(node) = self.nodes.get(self.at) else {
            return Turn::Page(std::mem::take(&mut self.items), None);
        };
        let limit = self.bounds.limit.unwrap_or(1);
        let is_full = self.items.len() >= limit || self.bytes >= self.bounds.answer_bytes;
        // A page within a node ends with it: that node has looked at as much as it may.
        if self.has_asked && (is_full || self.after.is_some() || now_ms >= self.bounds.until_ms) {
            let next = format!(
                "{}:{}",
                node.name,
                self.after.as_deref().unwrap_or_default()
            );
            return Turn::Page(std::mem::take(&mut self.items), Some(next));
        }
        self.has_asked = true;
        self.asked = vec![Asking {
            node: self.at,
            limit: Some(limit - self.items.len()),
            after: self.after.clone(),
        }];
        Turn::Ask
    }

    /// All have answered that are asked.
    fn end(&mut self) -> Turn {
        match self.way {
            Way::Listed => Turn::Page(std::mem::take(&mut self.items), None),
            Way::Ranked | Way::Queues => self.merged(),
            Way::Every => self.every(),
            Way::One(_) => self.one(),
            Way::Owner => {
                if self.told.is_empty() && !self.is_second {
                    self.is_second = true;
                    let own = self.own;
                    return self.ask((0..self.nodes.len()).filter(|place| *place != own));
                }
                self.one()
            }
            Way::Queue => self.of_queue(),
            Way::Lift(first) => {
                if self.told.is_empty() || self.is_second {
                    return self.lifted();
                }
                self.is_second = true;
                let names = &self.told[0].1;
                self.content = serde_json::json!({
                    "user": names["user"],
                    "client": names["client"],
                    "address": names["address"],
                })
                .to_string();
                self.ask((0..self.nodes.len()).filter(|place| *place != first))
            }
        }
    }

    /// The answer of the node that has the thing.
    fn one(&mut self) -> Turn {
        if !self.told.is_empty() {
            let (place, value) = self.told.swap_remove(0);
            return Turn::One(Arc::clone(&self.nodes[place].name), value);
        }
        let refusal = self.refusal.take();
        // A node that does not answer may have what others lack.
        if !self.unanswered.is_empty() && refusal.as_ref().is_none_or(|known| known.status() == 404)
        {
            return Turn::Refused(self.no_answer());
        }
        Turn::Refused(refusal.unwrap_or_else(|| self.no_answer()))
    }

    fn no_answer(&self) -> Trouble {
        let nodes = self.unanswered().join(", ");
        let detail = match self.way {
            Way::Owner if self.unanswered.len() < self.nodes.len() => {
                format!("no node that answers has it; no answer from {nodes}")
            }
            _ => format!("no answer from {nodes}"),
        };
        Trouble::new(Kind::ClusterAway, detail)
    }

    fn every(&mut self) -> Turn {
        if let Some(refusal) = self.refusal.take() {
            return Turn::Refused(refusal);
        }
        let told = std::mem::take(&mut self.told).into_iter();
        let told = told.map(|(place, value)| (Arc::clone(&self.nodes[place].name), value));
        Turn::Every(told.collect())
    }

    fn lifted(&mut self) -> Turn {
        if self.told.is_empty() {
            return self.one();
        }
        if self.unanswered.is_empty() {
            let (place, value) = self.told.swap_remove(0);
            return Turn::One(Arc::clone(&self.nodes[place].name), value);
        }
        let nodes = self.unanswered().join(", ");
        let detail = format!("the ban is lifted at the other nodes; no answer from {nodes}");
        Turn::Refused(Trouble::new(Kind::ClusterAway, detail))
    }

    /// The answer about a queue, of the node that has it.
    fn of_queue(&mut self) -> Turn {
        if let Some((place, value)) = self.told.pop() {
            let is_known = value.get("messages").is_some() || value.get("items").is_some();
            if is_known {
                return Turn::One(Arc::clone(&self.nodes[place].name), value);
            }
            let named = value["node"].as_str().unwrap_or_default();
            let mut nodes = self.nodes.iter();
            let at = nodes.position(|known| *known.name == *named);
            if let Some(at) = at.filter(|at| !self.is_second && *at != place) {
                self.is_second = true;
                self.first = Some((place, value));
                return self.ask(at..=at);
            }
            self.first.get_or_insert((place, value));
        }
        let Some((place, mut value)) = self.first.take() else {
            return self.one();
        };
        // Its name and rules are the same on all nodes.
        if value.get("name").is_some() {
            value["unanswered"] = self.unanswered().into();
            return Turn::One(Arc::clone(&self.nodes[place].name), value);
        }
        let detail = match value["node"].as_str() {
            Some(node) => format!("node {node} has the queue, and does not answer"),
            None => "no node has the queue at the moment; try again".to_owned(),
        };
        Turn::Refused(Trouble::new(Kind::ClusterAway, detail))
    }

    /// A page of a list in an order: as much as is known of all nodes.
    fn merged(&mut self) -> Turn {
        if let Some(refusal) = self.refusal.take() {
            return Turn::Refused(refusal);
        }
        let mut found = std::mem::take(&mut self.found);
        // Of two accounts of a queue, the one with its content comes first.
        let lacks = |value: &Value| value.get("messages").is_none();
        found.sort_by(|a, b| (&a.0, lacks(&a.1)).cmp(&(&b.0, lacks(&b.1))));
        found.dedup_by(|later, first| later.0 == first.0);
        if let Some(horizon) = &self.horizon {
            found.retain(|(key, _)| key <= horizon);
        }
        let limit = self.bounds.limit.unwrap_or(usize::MAX);
        let is_cut = found.len() > limit;
        found.truncate(limit);
        let last = found.last().map(|(key, _)| key.clone()).filter(|_| is_cut);
        let next = last.or_else(|| self.horizon.take()).map(|key| match key {
            Key::Rank(rank) => rank.text(),
            Key::Name(name) => name.into(),
        });
        Turn::Page(found.into_iter().map(|(_, item)| item).collect(), next)
    }
}

#[cfg(test)]
mod tests;
