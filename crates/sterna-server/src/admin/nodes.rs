//! Requests that are the cluster's: the node that is asked asks the others, and puts their answers together. Rights are
//! checked here, and changes are audited here.

use std::sync::Arc;

use serde_json::{Value, json};
use sterna_cluster::Answerer;
use sterna_http::{ExchangeId, Responses};

use super::answers::{give_page, give_value, missing};
use super::api::{DEFAULT_PAGE, Done};
use super::asked::{Question, add_unanswered};
use super::call::Call;
use super::changes::{Change, outcome_of};
use super::desk::{Desk, Purpose};
use super::parameters::LIMIT;
use super::role::Role;
use super::round::{Bounds, Node, Round, Turn, Way};
use super::routes::{Operation, Reach};
use crate::audit::Outcome;
use crate::http::{ProblemKind as Kind, Trouble};
use crate::mail::admin::{Answer, Body, Said};
use crate::mail::{AdminLetter, Mail};
use crate::metrics::Meters;

impl Round {
    /// The answers to a round have come, and nobody waits for them any more. A change is a line of the audit log all
    /// the same. `meters` are those of the shard.
    pub(super) fn end_unheard(mut self: Box<Self>, meters: &Meters, answers: Vec<Answer>) {
        let turn = self.take(u64::MAX, said(answers));
        if let Some(change) = self.change.take() {
            audit(change, meters, &turn);
        }
    }

    /// The name of a node that is asked now.
    pub(super) fn asked_name(&self, at: usize) -> String {
        let asking = self.asked().get(at);
        let name = asking.map(|asking| &**self.node(asking.node));
        format!("node {}", name.unwrap_or_default())
    }
}

fn said(answers: Vec<Answer>) -> Vec<Said> {
    let said = answers.into_iter().map(|answer| match answer {
        Answer::Node(said) => said,
        _ => Said::Away,
    });
    said.collect()
}

/// A line of the audit log about a change at nodes.
fn audit(mut change: Change, meters: &Meters, turn: &Turn) {
    match turn {
        Turn::Refused(trouble) => change.log(meters, outcome_of(trouble)),
        Turn::Ask => change.log(meters, Outcome::Refused("its operator has gone")),
        Turn::One(node, value) => {
            change.learn(value);
            change.target = format!("{} at {node}", change.target);
            change.log(meters, Outcome::Done);
        }
        Turn::Every(told) => {
            let sessions = told
                .iter()
                .filter_map(|(_, value)| value["sessions"].as_u64());
            if told
                .iter()
                .any(|(_, value)| value.get("sessions").is_some())
            {
                change.learn(&json!({ "sessions": sessions.sum::<u64>() }));
            }
            let nodes: Vec<&str> = told.iter().map(|(node, _)| &**node).collect();
            change.target = format!("{} at {}", change.target, nodes.join(", "));
            change.log(meters, Outcome::Done);
        }
        Turn::Page(..) => change.log(meters, Outcome::Done),
    }
}

impl Desk<'_, '_> {
    /// The nodes of the cluster in the order of their names, and the place of this one.
    fn nodes(&self, own: &str) -> (Vec<Node>, usize) {
        let roster = self.admin.sources.roster();
        let others = roster.iter().map(|(name, is_here)| Node {
            name: Arc::clone(name),
            is_here: *is_here,
        });
        let mut nodes: Vec<Node> = others.filter(|node| *node.name != *own).collect();
        let at = nodes.partition_point(|node| *node.name < *own);
        let node = Node {
            name: own.into(),
            is_here: true,
        };
        nodes.insert(at, node);
        (nodes, at)
    }

    /// The round of a request; `None` where this node answers alone.
    ///
    /// # Errors
    /// There is no such node, or this one does not know the others yet.
    pub(super) fn round(&self, call: &mut Call, content: &[u8]) -> Result<Option<Round>, Trouble> {
        let no_node = || Trouble::new(Kind::NoNode, "the cluster has no node of this name");
        let named = call.parameter("node").map(str::to_owned);
        let is_local = match call.parameter("local") {
            None => false,
            Some("yes") if named.is_none() => true,
            Some(_) => {
                let detail = "local is \"yes\", or not there, and then no node is named";
                return Err(Trouble::new(Kind::InvalidParameter, detail));
            }
        };
        if call.route.reach == Reach::Here {
            return Ok(None);
        }
        let Some(own) = self.admin.sources.node() else {
            return named.map_or(Ok(None), |_| Err(no_node()));
        };
        if !is_local && !self.admin.sources.has_joined() {
            let detail =
                "this node has not joined the cluster, and knows no other: local=yes asks it alone";
            return Err(Trouble::new(Kind::ClusterAway, detail));
        }
        let (mut nodes, mut at) = self.nodes(own);
        let place_of = |name: &str| nodes.iter().position(|node| *node.name == *name);
        let only = match &named {
            _ if is_local => Some(at),
            Some(name) => Some(place_of(name).ok_or_else(no_node)?),
            None => None,
        };
        let limits = &self.cx.policy.admin;
        let has_limit = call
            .route
            .parameters
            .iter()
            .any(|known| known.about == LIMIT.about);
        let limit = has_limit
            .then(|| call.limit(DEFAULT_PAGE, limits.maximum_page))
            .transpose()?;
        let is_sorted = call.parameter("sort").is_some();
        let way = match (call.route.reach, only) {
            (Reach::Listed, only) => {
                if let Some(only) = only {
                    nodes = vec![nodes.swap_remove(only)];
                    at = usize::from(only != at);
                }
                if is_sorted { Way::Ranked } else { Way::Listed }
            }
            (Reach::Id, only) => {
                let (node, rest) = match call.argument.rsplit_once(':') {
                    Some((node, rest)) => (Some(node.to_owned()), rest.to_owned()),
                    None => (None, call.argument.clone()),
                };
                let place = match node {
                    Some(node) => place_of(&node).ok_or_else(|| missing(call.route.problems[0]))?,
                    None => only.unwrap_or(at),
                };
                call.argument = rest;
                if call.route.operation == Operation::Lift && only.is_none() {
                    Way::Lift(place)
                } else {
                    Way::One(place)
                }
            }
            (Reach::Here, _) | (Reach::Named, None) => return Ok(None),
            (_, Some(only)) => Way::One(only),
            (Reach::Queues, None) => Way::Queues,
            (Reach::Owner, None) => Way::Owner,
            (Reach::Queue, None) => Way::Queue,
            (Reach::Every, None) => Way::Every,
        };
        let bounds = Bounds {
            limit,
            answer_bytes: limits.maximum_answer_bytes as usize,
            until_ms: self.cx.now_ms + u64::from(limits.node_timeout_ms),
        };
        let content = String::from_utf8_lossy(content).into_owned();
        Round::new(call.clone(), content, (nodes, at), way, bounds).map(Some)
    }

    /// Begins a round.
    pub(super) fn begin_round(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        mut round: Box<Round>,
    ) {
        let turn = round.begin(self.cx.now_ms);
        self.take_turn(out, id, round, turn);
    }

    /// Nodes have answered.
    pub(super) fn round_answered(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        mut round: Box<Round>,
        answers: Vec<Answer>,
    ) {
        let turn = round.take(self.cx.now_ms, said(answers));
        self.take_turn(out, id, round, turn);
    }

    fn take_turn(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        mut round: Box<Round>,
        turn: Turn,
    ) {
        if matches!(turn, Turn::Ask) {
            return self.ask_nodes(out, id, round);
        }
        if let Some(change) = round.change.take() {
            audit(change, self.cx.meters, &turn);
        }
        let unanswered = round.unanswered();
        let route = round.call.route;
        match turn {
            Turn::Ask => {}
            Turn::Page(items, next) => give_page(out, id, items, next, &unanswered),
            Turn::One(..) if route.success.1.is_none() => {
                Done::new(id, route.success.0, None).tell(out);
            }
            Turn::One(node, mut value) => {
                if value.get("node").is_none_or(Value::is_null) && value.is_object() {
                    value["node"] = (*node).into();
                }
                if let Some(items) = value["items"].as_array_mut() {
                    for item in items.iter_mut().filter(|item| item.get("node").is_none()) {
                        item["node"] = (*node).into();
                    }
                    add_unanswered(&mut value, &unanswered);
                }
                if route.method == "GET" {
                    give_value(out, id, &round.condition, &value);
                } else {
                    Done::new(id, route.success.0, Some(value)).tell(out);
                }
            }
            Turn::Every(told) => {
                let own = self.admin.sources.node().unwrap_or_default();
                let value = put_together(route.operation, own, told, &unanswered);
                if route.method == "GET" {
                    give_value(out, id, &round.condition, &value);
                } else {
                    Done::new(id, route.success.0, Some(value)).tell(out);
                }
            }
            Turn::Refused(trouble) => {
                let trouble = if route.method == "GET" {
                    trouble
                } else {
                    trouble.logged()
                };
                self.refused(out, id, &trouble);
            }
        }
    }

    /// Asks the nodes that are next.
    fn ask_nodes(&mut self, out: &mut dyn Responses, id: ExchangeId, round: Box<Round>) {
        let (user, role) = &round.by;
        let limits = &self.cx.policy.admin;
        let (within_ms, own_ms) = (limits.node_timeout_ms, limits.gather_timeout_ms);
        let maximum_bytes = round.answer_bytes();
        let own = self.admin.sources.node().unwrap_or_default().to_owned();
        let questions = round.asked().iter().map(|asking| {
            let question = Question {
                method: round.call.route.method.to_owned(),
                target: round.target(asking),
                content: round.content.clone(),
                node: own.clone(),
                user: user.clone(),
                role: role.map_or("", Role::name).to_owned(),
                trace: None,
            };
            let node = (!round.is_own(asking.node)).then(|| Arc::clone(round.node(asking.node)));
            (node, serde_json::to_vec(&question).unwrap_or_default())
        });
        let questions: Vec<(Option<Arc<str>>, Vec<u8>)> = questions.collect();
        // Nodes are given up by themselves; shards of this one are not.
        let deadline_ms = self.cx.now_ms + u64::from(within_ms) + u64::from(own_ms);
        let opened = self.open_until(id, Purpose::Nodes(round), 0..questions.len(), deadline_ms);
        let number = match opened {
            Ok(number) => number,
            Err(trouble) => return self.refused(out, id, &trouble),
        };
        let shard = self.cx.shard;
        for (place, (node, question)) in questions.into_iter().enumerate() {
            let Some(reply) = self.cx.outbox.postbox(shard) else {
                continue;
            };
            let reply = move |said: Said| {
                let body = Body::Answer {
                    number,
                    shard: place,
                    answer: Answer::Node(said),
                };
                reply(Mail::Admin(Box::new(AdminLetter(body))));
            };
            self.ask_node(node.as_deref(), question, (within_ms, maximum_bytes), reply);
        }
    }

    /// Asks a node, or this one for `None`. `reply` is called by any thread.
    pub(super) fn ask_node(
        &mut self,
        node: Option<&str>,
        question: Vec<u8>,
        (within_ms, maximum_bytes): (u32, usize),
        reply: impl FnOnce(Said) + Send + 'static,
    ) {
        let Some(node) = node else {
            let answer = Answerer::new(move |answer| {
                let is_too_large = answer.len() > maximum_bytes;
                reply(if is_too_large {
                    Said::TooLarge
                } else {
                    Said::read(&answer)
                });
            });
            let body = Body::Asked {
                question: question.into(),
                answer,
            };
            let letter = Mail::Admin(Box::new(AdminLetter(body)));
            return self.cx.outbox.post(self.cx.shard, letter);
        };
        if let Some(asker) = self.admin.sources.cluster_asker() {
            let bounds = (u64::from(within_ms), maximum_bytes);
            let is_asked = asker.ask_node(node, question, bounds, |answer| reply(answer.into()));
            if !is_asked {
                tracing::debug!(node, "the engine of the cluster has ended");
            }
        }
    }
}

/// The answer to what each node does, or tells of itself.
fn put_together(
    operation: Operation,
    own: &str,
    told: Vec<(Arc<str>, Value)>,
    unanswered: &[&str],
) -> Value {
    let mut whole = if operation == Operation::EndSessionsOf {
        let sessions = told
            .iter()
            .filter_map(|(_, value)| value["sessions"].as_u64());
        json!({ "sessions": sessions.sum::<u64>() })
    } else {
        // The members on top are this node's.
        let mut mine = told.iter().filter(|(node, _)| **node == *own);
        mine.next()
            .map_or_else(|| json!({}), |(_, value)| value.clone())
    };
    let nodes = told.into_iter().map(|(node, mut value)| {
        if let Some(members) = value.as_object_mut() {
            members.retain(|name, _| OF_EACH.contains(&name.as_str()));
        }
        value["node"] = (*node).into();
        value
    });
    whole["of_nodes"] = nodes.collect();
    if operation == Operation::Ban {
        whole["node"] = own.into();
    }
    add_unanswered(&mut whole, unanswered);
    whole
}

/// Members of what each node says that are told of each.
const OF_EACH: [&str; 6] = [
    "sessions",
    "matched",
    "shared_subscriptions",
    "queues",
    "is_retained",
    "id",
];
