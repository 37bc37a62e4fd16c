//! Traces of messages: a response that does not end, with a line of JSON for each event.

use serde_json::json;
use sterna_http::{Content, ExchangeId, Responses};
use sterna_mqtt::topic;
use sterna_net::ConnectionId;

use super::changes::Change;
use super::desk::Desk;
use super::role::Role;
use super::routes::Call;
use crate::audit::Outcome;
use crate::http::{ProblemKind as Kind, Trouble, respond};
use crate::identity::Identity;
use crate::mail::admin::Body;
use crate::mail::{AdminLetter, Mail};
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
}

/// The traces of one shard's operators.
#[derive(Debug, Default)]
pub(super) struct Traces {
    open: Vec<Tracing>,
    begun: u64,
}

impl Traces {
    /// When the first of a connection wants to be looked at.
    pub(super) fn deadline_ms(&self, connection: ConnectionId) -> Option<u64> {
        let own = self
            .open
            .iter()
            .filter(|trace| trace.connection == connection);
        own.map(|trace| {
            let until_ms = trace.identity.until_ms().unwrap_or(u64::MAX);
            trace.next_ms.min(until_ms)
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
        let traces = &mut self.admin.traces;
        traces.begun += 1;
        let number = traces.begun;
        traces.open.push(Tracing {
            number,
            connection: self.connection,
            exchange: id,
            identity: identity.clone(),
            lost: 0,
            next_ms,
            full_since_ms: None,
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
        out.send(
            id,
            line(&json!({ "event": "watching", "at_ms": now_ms })).as_bytes(),
        );
        Ok(())
    }

    fn heartbeat_ms(&self) -> u64 {
        u64::from(self.cx.policy.http.heartbeat_interval_s.max(1)) * 1000
    }

    fn tell_shards(&mut self, body: impl Fn() -> Body) {
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
        out.send(trace.exchange, events.lines.as_bytes());
        if trace.lost > 0 {
            let lost = std::mem::take(&mut trace.lost);
            let event = json!({ "event": "lost", "at_ms": now_ms, "events": lost });
            out.send(trace.exchange, line(&event).as_bytes());
        }
    }

    /// Ends the traces of the connection whose operators may not look any more.
    pub(super) fn end_unwanted_traces(&mut self, out: &mut dyn Responses) {
        let info = self.cx.net.info(self.connection);
        let now_ms = self.cx.now_ms;
        let may_look = |identity: &Identity| {
            !identity.has_ended(now_ms)
                && self.cx.policy.still_admits(info, identity)
                && self.role(identity) >= Some(Role::Operator)
        };
        let unwanted: Vec<(ExchangeId, Identity)> = (self.admin.traces.open.iter())
            .filter(|trace| trace.connection == self.connection && !may_look(&trace.identity))
            .map(|trace| (trace.exchange, trace.identity.clone()))
            .collect();
        for (exchange, identity) in unwanted {
            let change = Change {
                action: "trace",
                target: String::new(),
                peer: self.peer(),
                user: identity.user().map(str::to_owned),
                role: self.role(&identity),
            };
            let why = "the credentials have ended, or the role is taken away: the trace is ended";
            self.log_change(&change, Outcome::Refused(why));
            out.cancel(exchange);
            self.end_traces(Some(exchange));
        }
    }

    /// Looks after traces of the connection: tells that they go on, and ends those that nobody reads or may read.
    pub(super) fn look_after_traces(&mut self, out: &mut dyn Responses) {
        self.end_unwanted_traces(out);
        let (now_ms, heartbeat_ms) = (self.cx.now_ms, self.heartbeat_ms());
        let stalled_ms = u64::from(self.cx.policy.http.stalled_timeout_s) * 1000;
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

fn line(event: &serde_json::Value) -> String {
    format!("{event}\n")
}
