//! Traces that operators of other nodes look at. Their node asks again and again, and is told what was seen since. It
//! waits for an answer as long as nothing is seen, so an event is not late. A trace ends where nobody asks any more.

use serde::{Deserialize, Serialize};
use serde_json::json;
use sterna_http::{ExchangeId, Responses};

use super::Door;
use super::api::Done;
use super::desk::Desk;
use crate::context::Context;
use crate::http::{ProblemKind as Kind, Trouble};
use crate::mail::admin::Body;
use crate::watch::{Events, Subject};

/// The subject of a trace, as nodes ask each other.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) struct Wanted {
    /// Tells the traces of a node apart.
    pub(super) key: String,
    pub(super) client: Option<Box<str>>,
    pub(super) topic: Option<Box<str>>,
    #[serde(default)]
    pub(super) events: Vec<String>,
    #[serde(default)]
    pub(super) has_payloads: bool,
    /// Nobody looks any more.
    #[serde(default)]
    pub(super) is_over: bool,
}

/// A trace of another node's operator.
#[derive(Debug)]
struct FarTrace {
    node: String,
    key: String,
    /// Its number on this shard.
    number: u64,
    /// Events that are still to be told, with commas between.
    events: String,
    lost: u64,
    /// The question that waits for events, and until when.
    waiting: Option<(ExchangeId, u64)>,
    /// When it ends unless it is asked about.
    until_ms: u64,
}

/// The traces that operators of other nodes look at by way of a shard.
#[derive(Debug, Default)]
pub(super) struct FarTraces {
    open: Vec<FarTrace>,
}

impl FarTrace {
    fn tell(&mut self, out: &mut dyn Responses, id: ExchangeId) {
        let events = std::mem::take(&mut self.events);
        let lost = std::mem::take(&mut self.lost);
        self.waiting = None;
        // Each line is an object already.
        let text = format!("{{\"lost\":{lost},\"events\":[{events}]}}");
        let content = sterna_http::Content::Whole(text.as_bytes());
        out.respond(id, 200, &[], content);
    }

    const fn has_news(&self) -> bool {
        !self.events.is_empty() || self.lost > 0
    }
}

impl Door {
    /// When the traces of other nodes are to be looked after, in milliseconds since the Unix epoch.
    pub(crate) fn far_traces_ms(&self) -> Option<u64> {
        let open = self.service.far_traces.open.iter();
        let each = open.map(|trace| {
            let waits_ms = trace.waiting.map_or(u64::MAX, |(_, until_ms)| until_ms);
            trace.until_ms.min(waits_ms)
        });
        each.min()
    }

    /// Answers nodes that have waited for long, and ends traces that nobody asks about.
    pub(crate) fn look_after_far_traces(&mut self, cx: &mut Context<'_>) {
        let now_ms = cx.now_ms;
        while let Some(number) = self.service.far_traces.next_due(now_ms) {
            self.for_nodes(cx, |desk, out| desk.far_trace_due(out, number));
        }
    }
}

impl FarTraces {
    fn next_due(&self, now_ms: u64) -> Option<u64> {
        let mut open = self.open.iter();
        let due = open.find(|trace| {
            let is_waiting = trace
                .waiting
                .is_some_and(|(_, until_ms)| until_ms <= now_ms);
            is_waiting || trace.until_ms <= now_ms
        });
        due.map(|trace| trace.number)
    }

    fn of(&mut self, number: u64) -> Option<&mut FarTrace> {
        self.open.iter_mut().find(|trace| trace.number == number)
    }
}

impl Desk<'_, '_> {
    fn far_trace_due(&mut self, out: &mut dyn Responses, number: u64) {
        let now_ms = self.cx.now_ms;
        let Some(trace) = self.admin.far_traces.of(number) else {
            return;
        };
        if trace.until_ms <= now_ms {
            return self.end_far_trace(number);
        }
        if let Some((id, _)) = trace.waiting {
            trace.tell(out, id);
        }
    }

    /// A node asks what was seen for its operator's trace.
    pub(super) fn tell_node(
        &mut self,
        out: &mut dyn Responses,
        id: ExchangeId,
        node: &str,
        wanted: Wanted,
    ) -> Result<(), Trouble> {
        let now_ms = self.cx.now_ms;
        let unasked_ms = u64::from(self.cx.policy.admin.unasked_trace_ms);
        let mut open = self.admin.far_traces.open.iter();
        let known = open.find(|trace| trace.node == node && trace.key == wanted.key);
        let number = known.map(|trace| trace.number);
        if wanted.is_over {
            if let Some(number) = number {
                self.end_far_trace(number);
            }
            Done::new(id, 200, Some(json!({}))).tell(out);
            return Ok(());
        }
        let Some(number) = number else {
            let number = self.begin_far_trace(node, wanted)?;
            Done::new(id, 200, Some(json!({ "lost": 0, "events": [] }))).tell(out);
            if let Some(trace) = self.admin.far_traces.of(number) {
                trace.until_ms = now_ms + unasked_ms;
            }
            return Ok(());
        };
        let hold_ms = u64::from(self.cx.policy.admin.node_timeout_ms) / 2;
        let Some(trace) = self.admin.far_traces.of(number) else {
            return Ok(());
        };
        trace.until_ms = now_ms + unasked_ms;
        let before = trace.waiting.take();
        if trace.has_news() {
            trace.tell(out, id);
        } else {
            trace.waiting = Some((id, now_ms + hold_ms));
        }
        // The node has given that one up.
        if let Some((before, _)) = before {
            self.admin.questions.forget(before);
        }
        Ok(())
    }

    fn begin_far_trace(&mut self, node: &str, wanted: Wanted) -> Result<u64, Trouble> {
        let limits = &self.cx.policy.admin;
        let names = wanted.events.iter();
        let payload_bytes = if wanted.has_payloads {
            limits.maximum_payload_bytes as usize
        } else {
            0
        };
        let subject = Subject {
            client: wanted.client,
            topic: wanted.topic,
            // One that this program does not know is not seen here.
            events: names
                .filter_map(|name| Subject::event_named(name))
                .collect(),
            payload_bytes,
        };
        if !self.admin.sources.begin_trace(limits.maximum_traces) {
            let detail = "as many traces are under way as admin.maximum_traces";
            return Err(Trouble::new(Kind::Busy, detail));
        }
        let number = self.admin.traces.begin();
        self.admin.far_traces.open.push(FarTrace {
            node: node.to_owned(),
            key: wanted.key,
            number,
            events: String::new(),
            lost: 0,
            waiting: None,
            until_ms: self.cx.now_ms + u64::from(limits.unasked_trace_ms),
        });
        let from = self.cx.shard;
        self.tell_shards(|| Body::Watch {
            from,
            number,
            subject: subject.clone(),
        });
        Ok(number)
    }

    fn end_far_trace(&mut self, number: u64) {
        let open = &mut self.admin.far_traces.open;
        let Some(at) = open.iter().position(|trace| trace.number == number) else {
            return;
        };
        let trace = open.swap_remove(at);
        if let Some((id, _)) = trace.waiting {
            self.admin.questions.forget(id);
        }
        self.admin.sources.end_trace();
        let from = self.cx.shard;
        self.tell_shards(|| Body::Unwatch { from, number });
    }

    /// A shard has seen something for another node's operator.
    pub(super) fn seen_for_node(&mut self, out: &mut dyn Responses, events: &Events) {
        let most_bytes = self.cx.policy.admin.maximum_answer_bytes as usize;
        let Some(trace) = self.admin.far_traces.of(events.number) else {
            return;
        };
        trace.lost += events.lost;
        for line in events.lines.lines() {
            // The frame around the events has some bytes, too.
            if trace.events.len() + line.len() + 100 > most_bytes {
                trace.lost += 1;
                continue;
            }
            if !trace.events.is_empty() {
                trace.events.push(',');
            }
            trace.events.push_str(line);
        }
        if let Some((id, _)) = trace.waiting {
            trace.tell(out, id);
        }
    }
}
