//! Traces of messages: a response that does not end, with a line of JSON for each event.

use std::sync::Arc;

use serde_json::{Value, json};
use sterna_http::{Content, ExchangeId, Responses};
use sterna_mqtt::topic;
use sterna_net::ConnectionId;

use super::asked::Question;
use super::call::Call;
use super::changes::Change;
use super::desk::Desk;
use super::far_trace::Wanted;
use super::role::Role;
use crate::audit::Outcome;
use crate::http::{ProblemKind as Kind, Trouble, respond};
use crate::identity::Identity;
use crate::mail::admin::{Body, Said};
use crate::mail::{AdminLetter, Mail};
use crate::rights::Distrust;
use crate::watch::{Events, Subject};

/// The media type of a trace.
pub(super) const MEDIA_TYPE: &str = "application/x-ndjson";

/// A trace that an operator looks at.
#[derive(Debug)]
pub(super) struct Tracing {
    number: u64,
    pub(super) connection: ConnectionId,
    exchange: ExchangeId,
    /// The operator who looks.
    identity: Identity,
    /// Events that did not reach the operator.
    lost: u64,
    /// The time at which the operator is told that the trace goes on, or is found not to read.
    next_ms: u64,
    /// The time since which there is no room.
    full_since_ms: Option<u64>,
    /// The subject as other nodes are asked; `None` where this one tells alone.
    wanted: Option<Wanted>,
    others: Vec<Other>,
}

/// Another node that is asked what it sees.
#[derive(Debug)]
struct Other {
    node: Arc<str>,
    /// Whether its answer is under way.
    is_asked: bool,
    /// When it is asked again.
    next_ms: u64,
    /// Whether it tells; `None` before that is known.
    tells: Option<bool>,
}

/// Time between two questions to a node that has much to tell, in milliseconds.
const PAUSE_MS: u64 = 100;

/// Time after which a node that does not answer is asked again, in milliseconds.
const RETRY_MS: u64 = 1_000;

/// The traces of one shard's operators.
#[derive(Debug, Default)]
pub(super) struct Traces {
    open: Vec<Tracing>,
    begun: u64,
}

impl Traces {
    /// The number of a trace that begins.
    pub(super) const fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// When the first of a connection wants to be looked at.
    pub(super) fn deadline_ms(&self, connection: ConnectionId) -> Option<u64> {
        let own = self
            .open
            .iter()
            .filter(|trace| trace.connection == connection);
        own.map(|trace| {
            let until_ms = trace.identity.until_ms().unwrap_or(u64::MAX);
            let others = trace.others.iter().filter(|other| !other.is_asked);
            let others_ms = others.map(|other| other.next_ms);
            others_ms.fold(trace.next_ms.min(until_ms), u64::min)
        })
        .min()
    }

    /// The connection of a trace.
    pub(super) fn connection_of(&self, number: u64) -> Option<ConnectionId> {
        let mut open = self.open.iter();
        open.find_map(|trace| (trace.number == number).then_some(trace.connection))
    }
}

impl Desk<'_, '_> {
    /// Begins a trace.
    pub(super) fn trace(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        call: &Call,
        identity: &Identity,
    ) -> Result<(), Trouble> {
        let invalid = |detail: String| Trouble::new(Kind::InvalidParameter, detail);
        let names = call.parameter("events").into_iter();
        let names = names.flat_map(|names| names.split(','));
        let events = names.map(|name| {
            Subject::event_named(name).ok_or_else(|| invalid(format!("there is no event `{name}`")))
        });
        let payload_bytes = match call.parameter("payloads") {
            None | Some("no") => 0,
            Some("yes") => self.cx.policy.admin.maximum_payload_bytes as usize,
            Some(_) => return Err(invalid("payloads is yes or no".to_owned())),
        };
        let subject = Subject {
            client: call.parameter("client").map(Into::into),
            topic: call.parameter("topic").map(Into::into),
            events: events.collect::<Result<_, _>>()?,
            payload_bytes,
        };
        if subject.client.is_none() && subject.topic.is_none() && subject.events.is_empty() {
            let detail = "name a client, a topic filter, both, or events";
            return Err(invalid(detail.to_owned()));
        }
        if let Some(filter) = &subject.topic {
            topic::check_filter(filter)
                .map_err(|error| Trouble::new(Kind::InvalidFilter, error.detail()))?;
        }
        if !self
            .admin
            .sources
            .begin_trace(self.cx.policy.admin.maximum_traces)
        {
            let detail = "as many traces are under way as admin.maximum_traces";
            return Err(Trouble::new(Kind::Busy, detail));
        }
        let now_ms = self.cx.now_ms;
        let next_ms = now_ms + self.heartbeat_ms();
        let number = self.admin.traces.begin();
        let is_of_all = self.admin.sources.node().is_some() && call.parameter("local").is_none();
        let wanted = is_of_all.then(|| {
            let started_ms = self.admin.sources.started_ms();
            Wanted {
                key: format!("{started_ms}.{}.{number}", self.cx.shard),
                client: subject.client.clone(),
                topic: subject.topic.clone(),
                events: subject
                    .events
                    .iter()
                    .map(|name| (*name).to_owned())
                    .collect(),
                has_payloads: payload_bytes > 0,
                is_over: false,
            }
        });
        let traces = &mut self.admin.traces;
        traces.open.push(Tracing {
            number,
            connection: self.connection,
            exchange: id,
            identity: identity.clone(),
            lost: 0,
            next_ms,
            full_since_ms: None,
            wanted,
            others: Vec::new(),
        });
        let from = self.cx.shard;
        self.tell_shards(|| Body::Watch {
            from,
            number,
            subject: subject.clone(),
        });
        let fields = [
            ("content-type", MEDIA_TYPE.as_bytes()),
            ("cache-control", b"no-store"),
            ("x-content-type-options", b"nosniff"),
        ];
        respond(out, id, &None, 200, &fields, Content::Open);
        let node = self.admin.sources.node();
        let watching = json!({ "event": "watching", "at_ms": now_ms });
        out.send(id, line_of(node, watching).as_bytes());
        self.ask_others(out, number);
        Ok(())
    }

    fn heartbeat_ms(&self) -> u64 {
        u64::from(self.cx.policy.http.heartbeat_interval_s.max(1)) * 1000
    }

    pub(super) fn tell_shards(&mut self, body: impl Fn() -> Body) {
        for shard in 0..usize::from(self.cx.broker.directory().shards()) {
            let letter = AdminLetter(body());
            self.cx.outbox.post(shard, Mail::Admin(Box::new(letter)));
        }
    }

    /// A shard has seen something.
    pub(super) fn seen(&mut self, out: &mut dyn Responses, events: &Events) {
        let (now_ms, heartbeat_ms) = (self.cx.now_ms, self.heartbeat_ms());
        let mut open = self.admin.traces.open.iter_mut();
        let Some(trace) = open.find(|trace| trace.number == events.number) else {
            return;
        };
        trace.lost += events.lost;
        if !out.has_room(trace.exchange) {
            trace.lost += events.lines.lines().count() as u64;
            trace.full_since_ms.get_or_insert(now_ms);
            return;
        }
        trace.full_since_ms = None;
        trace.next_ms = now_ms + heartbeat_ms;
        match self.admin.sources.node() {
            None => out.send(trace.exchange, events.lines.as_bytes()),
            Some(node) => {
                // Each line is an object.
                let own = format!("{{\"node\":\"{node}\",");
                let lines = events
                    .lines
                    .lines()
                    .filter_map(|line| line.strip_prefix('{'));
                let lines: String = lines.flat_map(|rest| [&own, rest, "\n"]).collect();
                out.send(trace.exchange, lines.as_bytes());
            }
        }
        if trace.lost > 0 {
            let lost = std::mem::take(&mut trace.lost);
            let event = json!({ "event": "lost", "at_ms": now_ms, "events": lost });
            out.send(trace.exchange, line(&event).as_bytes());
        }
    }

    /// Asks other nodes what they see, those of which no answer is under way. Those that are away are named once.
    fn ask_others(&mut self, out: &mut dyn Responses, number: u64) {
        let now_ms = self.cx.now_ms;
        let sources = Arc::clone(&self.admin.sources);
        let limits = &self.cx.policy.admin;
        let bounds = (limits.node_timeout_ms, limits.maximum_answer_bytes as usize);
        let Some(own) = sources.node() else {
            return;
        };
        let mut open = self.admin.traces.open.iter_mut();
        let Some(trace) = open.find(|trace| trace.number == number) else {
            return;
        };
        let Some(wanted) = &trace.wanted else {
            return;
        };
        let roster = sources.roster();
        let is_known = |node: &str| roster.iter().any(|(name, _)| **name == *node);
        trace
            .others
            .retain(|other| other.is_asked || is_known(&other.node));
        for (node, _) in roster.iter().filter(|(name, _)| **name != *own) {
            if trace.others.iter().all(|other| other.node != *node) {
                trace.others.push(Other {
                    node: Arc::clone(node),
                    is_asked: false,
                    next_ms: now_ms,
                    tells: None,
                });
            }
        }
        let mut due = Vec::new();
        for other in &mut trace.others {
            if other.is_asked || other.next_ms > now_ms {
                continue;
            }
            let mut roster = roster.iter();
            if roster.any(|(name, is_here)| *name == other.node && *is_here) {
                other.is_asked = true;
                due.push(Arc::clone(&other.node));
            } else {
                other.next_ms = now_ms + RETRY_MS;
                other.turn(out, trace.exchange, now_ms, Some(NO_ANSWER));
            }
        }
        let question = question_of(own, wanted.clone());
        for node in due {
            self.ask_other(&node, question.clone(), bounds, number);
        }
    }

    fn ask_other(&mut self, node: &Arc<str>, question: Vec<u8>, bounds: (u32, usize), number: u64) {
        let shard = self.cx.shard;
        let Some(reply) = self.cx.outbox.postbox(shard) else {
            return;
        };
        let name: Box<str> = (**node).into();
        let reply = move |said| {
            let body = Body::Traced {
                number,
                node: name,
                said,
            };
            reply(Mail::Admin(Box::new(AdminLetter(body))));
        };
        self.ask_node(Some(node), question, bounds, reply);
    }

    /// Another node has told what it has seen, or does not answer.
    pub(super) fn traced(&mut self, out: &mut dyn Responses, number: u64, node: &str, said: Said) {
        let (now_ms, heartbeat_ms) = (self.cx.now_ms, self.heartbeat_ms());
        let mut open = self.admin.traces.open.iter_mut();
        let Some(trace) = open.find(|trace| trace.number == number) else {
            return;
        };
        let mut others = trace.others.iter_mut();
        let Some(other) = others.find(|other| *other.node == *node) else {
            return;
        };
        other.is_asked = false;
        match said {
            Said::Answer(200, mut value, _) => {
                other.turn(out, trace.exchange, now_ms, None);
                trace.lost += value["lost"].as_u64().unwrap_or(0);
                let events = match value["events"].take() {
                    Value::Array(events) => events,
                    _ => Vec::new(),
                };
                other.next_ms = now_ms + if events.is_empty() { 0 } else { PAUSE_MS };
                if out.has_room(trace.exchange) {
                    let count = events.len();
                    let lines = events.into_iter().map(|event| line_of(Some(node), event));
                    let lines: String = lines.collect();
                    out.send(trace.exchange, lines.as_bytes());
                    trace.full_since_ms = None;
                    if count > 0 {
                        trace.next_ms = now_ms + heartbeat_ms;
                    }
                } else {
                    trace.lost += events.len() as u64;
                    trace.full_since_ms.get_or_insert(now_ms);
                }
            }
            Said::Answer(_, value, _) => {
                other.next_ms = now_ms + RETRY_MS;
                let why = value["detail"].as_str().unwrap_or(NO_ANSWER);
                other.turn(out, trace.exchange, now_ms, Some(why));
            }
            Said::TooLarge | Said::Away => {
                other.next_ms = now_ms + RETRY_MS;
                other.turn(out, trace.exchange, now_ms, Some(NO_ANSWER));
            }
        }
        self.ask_others(out, number);
    }

    /// Ends the traces of the connection whose operators may not look any more.
    pub(super) fn end_unwanted_traces(&mut self, out: &mut dyn Responses) {
        let info = self.cx.net.info(self.connection);
        let now_ms = self.cx.now_ms;
        let over = |identity: &Identity| -> Option<Distrust> {
            if identity.has_ended(now_ms) {
                return Some("the token has expired".into());
            }
            if let Err(why) = self.cx.policy.still_admits(info, identity) {
                return Some(why);
            }
            let is_operator = self.role(identity) >= Some(Role::Operator);
            (!is_operator).then_some("the role is taken away".into())
        };
        let unwanted: Vec<(ExchangeId, Identity, Distrust)> = (self.admin.traces.open.iter())
            .filter(|trace| trace.connection == self.connection)
            .filter_map(|trace| {
                let why = over(&trace.identity)?;
                Some((trace.exchange, trace.identity.clone(), why))
            })
            .collect();
        for (exchange, identity, why) in unwanted {
            let change = Change {
                action: "trace",
                target: String::new(),
                peer: self.peer(),
                user: identity.user().map(str::to_owned),
                role: self.role(&identity),
                node: None,
                repeats: (self.cx.now_ms, self.cx.policy.repeats),
                detail: None,
            };
            let why = format!("{why}: the trace is ended");
            self.log_change(&change, Outcome::Refused(&why));
            out.cancel(exchange);
            self.end_traces(Some(exchange));
        }
    }

    /// Has the traces of the connection tell now that they go on. A client that has closed both sides is found out by it:
    /// nothing else may come for long, and its place among the traces is another's.
    pub(super) fn show_life_of_traces(&mut self, out: &mut dyn Responses) {
        let (connection, now_ms) = (self.connection, self.cx.now_ms);
        let open = self.admin.traces.open.iter_mut();
        for trace in open.filter(|trace| trace.connection == connection) {
            trace.next_ms = now_ms;
        }
        self.look_after_traces(out);
    }

    /// Looks after traces of the connection: tells that they go on, and ends those that nobody reads or may read.
    pub(super) fn look_after_traces(&mut self, out: &mut dyn Responses) {
        self.end_unwanted_traces(out);
        let (now_ms, heartbeat_ms) = (self.cx.now_ms, self.heartbeat_ms());
        let stalled_ms = u64::from(self.cx.policy.http.stalled_timeout_s) * 1000;
        let own = self.admin.traces.open.iter();
        let own = own.filter(|trace| trace.connection == self.connection);
        let numbers: Vec<u64> = own.map(|trace| trace.number).collect();
        for number in numbers {
            self.ask_others(out, number);
        }
        let mut stalled = Vec::new();
        for trace in &mut self.admin.traces.open {
            if trace.connection != self.connection || trace.next_ms > now_ms {
                continue;
            }
            trace.next_ms = now_ms + heartbeat_ms;
            if out.has_room(trace.exchange) {
                trace.full_since_ms = None;
                let lost = std::mem::take(&mut trace.lost);
                let event = if lost > 0 {
                    json!({ "event": "lost", "at_ms": now_ms, "events": lost })
                } else {
                    json!({ "event": "alive", "at_ms": now_ms })
                };
                out.send(trace.exchange, line(&event).as_bytes());
            } else if now_ms - *trace.full_since_ms.get_or_insert(now_ms) >= stalled_ms {
                stalled.push(trace.exchange);
            }
        }
        for exchange in stalled {
            out.cancel(exchange);
            self.end_traces(Some(exchange));
        }
    }

    /// Ends the traces of the connection, or the one of a request.
    pub(super) fn end_traces(&mut self, exchange: Option<ExchangeId>) {
        let connection = self.connection;
        let is_it = |trace: &mut Tracing| {
            trace.connection == connection
                && exchange.is_none_or(|exchange| trace.exchange == exchange)
        };
        let ended: Vec<Tracing> = self.admin.traces.open.extract_if(.., is_it).collect();
        for trace in ended {
            self.admin.sources.end_trace();
            let (from, number) = (self.cx.shard, trace.number);
            self.tell_shards(|| Body::Unwatch { from, number });
            self.release_others(trace);
        }
    }

    /// Tells other nodes that a trace is over. One that does not hear it ends the trace by itself.
    fn release_others(&mut self, trace: Tracing) {
        let sources = Arc::clone(&self.admin.sources);
        let (Some(own), Some(wanted)) = (sources.node(), trace.wanted) else {
            return;
        };
        let limits = &self.cx.policy.admin;
        let bounds = (limits.node_timeout_ms, limits.maximum_answer_bytes as usize);
        let over = question_of(
            own,
            Wanted {
                is_over: true,
                ..wanted
            },
        );
        for other in trace.others {
            self.ask_node(Some(&other.node), over.clone(), bounds, |_| {});
        }
    }

    /// The broker stops: traces end in order.
    pub(super) fn finish_traces(&mut self, out: &mut dyn Responses) {
        for trace in &self.admin.traces.open {
            if trace.connection == self.connection {
                out.finish(trace.exchange);
            }
        }
        self.end_traces(None);
    }
}

fn line(event: &Value) -> String {
    format!("{event}\n")
}

/// A line of a node; of the only one for `None`.
fn line_of(node: Option<&str>, mut event: Value) -> String {
    if let Some(node) = node {
        event["node"] = node.into();
    }
    line(&event)
}

/// The reason for which a node tells nothing, where it gives none.
const NO_ANSWER: &str = "no answer";

/// The question to other nodes.
fn question_of(own: &str, wanted: Wanted) -> Vec<u8> {
    let question = Question {
        method: String::new(),
        target: String::new(),
        content: String::new(),
        node: own.to_owned(),
        user: None,
        role: Role::Operator.name().to_owned(),
        trace: Some(wanted),
    };
    serde_json::to_vec(&question).unwrap_or_default()
}

impl Other {
    /// Says that the node tells from now on, or why not, where it was otherwise before.
    fn turn(
        &mut self,
        out: &mut dyn Responses,
        exchange: ExchangeId,
        now_ms: u64,
        why: Option<&str>,
    ) {
        let tells = why.is_none();
        if self.tells.replace(tells) == Some(tells) || !out.has_room(exchange) {
            return;
        }
        let event = match why {
            None => json!({ "event": "watching", "at_ms": now_ms }),
            Some(why) => json!({ "event": "unanswered", "at_ms": now_ms, "reason": why }),
        };
        out.send(exchange, line_of(Some(&self.node), event).as_bytes());
    }
}
