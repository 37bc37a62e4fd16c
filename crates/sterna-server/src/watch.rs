//! Traces: the ways of messages of one client, or of some topics, told to operators while they look.
//!
//! Each shard has a [`Watch`]. While nobody looks, a step of a message costs a branch on its flag. While
//! somebody does, events are gathered here, and leave at the end of the turn.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sterna_broker::{Message, Origin, Outcome, RoadWatcher, SessionName, Step};

use crate::session::reader_parts;

/// Events of messages, which a trace tells where it names none.
const MESSAGE_EVENTS: [&str; 7] = [
    "received",
    "refused",
    "queued",
    "logged",
    "sent",
    "acknowledged",
    "dropped",
];
/// Most origins that a trace learns: clients of so many users with one identifier.
const MAXIMUM_ORIGINS: usize = 64;
/// Events of the audit log, which a trace has to name.
const AUDIT_EVENTS: [&str; 3] = ["login", "login_refused", "action"];

/// The subject of a trace: messages that a client publishes or gets, messages of topics, or both in one. Events of the
/// audit log about clients belong to it, too.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Subject {
    /// A client identifier of MQTT, or another reader's name.
    pub(crate) client: Option<Box<str>>,
    /// A topic filter.
    pub(crate) topic: Option<Box<str>>,
    /// Only these events; those of messages where it is empty.
    pub(crate) events: Vec<&'static str>,
    /// Number of payload bytes to trace of each message that is received.
    pub(crate) payload_bytes: usize,
}

impl Subject {
    /// The event of a name, if there is one.
    pub(crate) fn event_named(name: &str) -> Option<&'static str> {
        let mut known = MESSAGE_EVENTS.iter().chain(&AUDIT_EVENTS);
        known.find(|known| **known == name).copied()
    }

    /// Whether a line of the audit log is about its client; a topic no such line has.
    fn is_about(&self, client: Option<&str>) -> bool {
        self.client.is_none() || self.client.as_deref() == client
    }

    fn wants(&self, event: &str) -> bool {
        if self.events.is_empty() {
            return !AUDIT_EVENTS.contains(&event);
        }
        self.events.contains(&event)
    }
}

/// Events of one trace.
#[derive(Debug)]
pub(crate) struct Events {
    /// The shard that has asked.
    pub(crate) from: usize,
    /// The number of the trace there.
    pub(crate) number: u64,
    /// A line of JSON for each.
    pub(crate) lines: String,
    /// Events that were left out.
    pub(crate) lost: u64,
}

/// A trace under way.
#[derive(Debug)]
struct Trace {
    events: Events,
    subject: Subject,
    /// The origins by which the client's messages are known. A client of each user may have the identifier: they are
    /// learnt from what they publish.
    origins: Vec<Origin>,
    most_per_s: u32,
    /// The second that is counted, and its events.
    second: u64,
    written: u32,
}

/// The traces of one shard.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    is_on: AtomicBool,
    now_ms: AtomicU64,
    traces: Mutex<Vec<Trace>>,
    /// The publisher of the message that the broker routes now; `None` for its own.
    publisher: Mutex<Option<Box<str>>>,
    /// Where spans go; once set, the watch is on for good.
    spans: std::sync::OnceLock<crate::otlp::Spans>,
}

/// The known facts about a message at one of its steps.
#[derive(Clone, Copy, Debug)]
struct Known<'a> {
    origin: Origin,
    topic: &'a str,
    publisher: Option<&'a str>,
    reader: Option<&'a str>,
    /// The user of the reader's session.
    user: Option<&'a str>,
}

impl Trace {
    /// Whether this is an origin of the client's messages, as far as is known.
    fn is_origin(&self, origin: Origin) -> bool {
        origin != Origin::NONE && self.origins.contains(&origin)
    }

    /// Learns by which origin messages of the client are known.
    fn learn(&mut self, known: Known<'_>) {
        let is_its = known.publisher.is_some() && known.publisher == self.subject.client.as_deref();
        if is_its
            && known.origin != Origin::NONE
            && self.origins.len() < MAXIMUM_ORIGINS
            && !self.origins.contains(&known.origin)
        {
            self.origins.push(known.origin);
        }
    }

    fn concerns(&self, known: Known<'_>) -> bool {
        let of_client = self.subject.client.as_deref().is_none_or(|client| {
            known.publisher == Some(client)
                || known.reader == Some(client)
                || self.is_origin(known.origin)
        });
        let of_topic = (self.subject.topic.as_deref())
            .is_none_or(|filter| sterna_topic::matches(filter, known.topic));
        of_client && of_topic
    }
}

impl Watch {
    fn traces(&self) -> MutexGuard<'_, Vec<Trace>> {
        self.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publisher(&self) -> MutexGuard<'_, Option<Box<str>>> {
        (self.publisher.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the publisher of the messages that the broker routes from now on; `None` for the broker's own. Only while
    /// there is a trace.
    pub(crate) fn set_publisher(&self, name: Option<&str>) {
        *self.publisher() = name.map(Box::from);
    }

    /// Whether there is a trace.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Sends spans from now on.
    pub(crate) fn send_spans(&self, spans: crate::otlp::Spans) {
        self.is_on.store(true, Ordering::Relaxed);
        // It is set once, before the shard runs.
        let _ = self.spans.set(spans);
    }

    /// Whether spans are sent.
    fn has_spans(&self) -> bool {
        self.spans.get().is_some()
    }

    /// Notes the time of this turn, in milliseconds since the Unix epoch.
    pub(crate) fn turn(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Ordering::Relaxed);
        // A panic may have ended the step that set it.
        self.set_publisher(None);
    }

    /// Begins a trace of the shard `from`, with at most `most_per_s` events in a second.
    pub(crate) fn begin(&self, from: usize, number: u64, subject: Subject, most_per_s: u32) {
        let client = subject.client.as_deref();
        // Of a client without a user name, and of one whose name is its identifier.
        let origins = client.into_iter().flat_map(|client| {
            [None, Some(client)]
                .map(|user| Origin::of_client(SessionName::new(user, client).text()))
        });
        let origins = origins.collect();
        self.traces().push(Trace {
            events: Events {
                from,
                number,
                lines: String::new(),
                lost: 0,
            },
            origins,
            subject,
            most_per_s,
            second: 0,
            written: 0,
        });
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Ends a trace; whether there are others.
    pub(crate) fn end(&self, from: usize, number: u64) -> bool {
        let mut traces = self.traces();
        traces.retain(|trace| (trace.events.from, trace.events.number) != (from, number));
        let is_on = !traces.is_empty() || self.has_spans();
        self.is_on.store(is_on, Ordering::Relaxed);
        is_on
    }

    /// Takes the gathered events.
    pub(crate) fn take(&self) -> Vec<Events> {
        let mut traces = self.traces();
        let full = traces.iter_mut();
        let full = full.filter(|trace| !trace.events.lines.is_empty() || trace.events.lost > 0);
        full.map(|trace| {
            let events = &mut trace.events;
            Events {
                from: events.from,
                number: events.number,
                lines: std::mem::take(&mut events.lines),
                lost: std::mem::take(&mut events.lost),
            }
        })
        .collect()
    }

    /// A publication was refused before it was routed.
    pub(crate) fn refused(&self, publisher: &str, topic: &str, reason: &str) {
        if self.is_on() {
            let known = Known {
                origin: Origin::NONE,
                topic,
                publisher: Some(publisher),
                reader: None,
                user: None,
            };
            self.note("refused", known, |_| json!({ "reason": reason }));
        }
    }

    /// The audit log has a line about a client, or an operator.
    pub(crate) fn audited(&self, event: &'static str, client: Option<&str>, line: &Value) {
        if self.is_on() {
            let known = Known {
                origin: Origin::NONE,
                topic: "",
                publisher: None,
                reader: client,
                user: None,
            };
            self.note(event, known, |_| line.clone());
        }
    }

    /// A reader does not get messages, for this reason.
    pub(crate) fn dropped(
        &self,
        (reader, origin): (&str, Origin),
        topic: &str,
        reason: &str,
        messages: u64,
    ) {
        if self.is_on() {
            let (reader, user) = reader_parts(reader);
            let known = Known {
                origin,
                topic,
                publisher: None,
                reader: Some(reader),
                user,
            };
            self.note(
                "dropped",
                known,
                |_| json!({ "reader": reader, "reason": reason, "messages": messages }),
            );
        }
    }

    #[cold]
    fn note(&self, event: &'static str, known: Known<'_>, make: impl Fn(&Subject) -> Value) {
        let now_ms = self.now_ms.load(Ordering::Relaxed);
        let is_audit = AUDIT_EVENTS.contains(&event);
        let mut traces = self.traces();
        for trace in &mut *traces {
            trace.learn(known);
        }
        let concerned = traces.iter_mut().filter(|trace| {
            trace.subject.wants(event)
                && if is_audit {
                    trace.subject.is_about(known.reader)
                } else {
                    trace.concerns(known)
                }
        });
        for trace in concerned {
            let second = now_ms / 1000;
            if trace.second != second {
                (trace.second, trace.written) = (second, 0);
            }
            if trace.written == trace.most_per_s {
                trace.events.lost += 1;
                continue;
            }
            trace.written += 1;
            let mut line = make(&trace.subject);
            line["event"] = event.into();
            line["at_ms"] = now_ms.into();
            if !is_audit {
                line["topic"] = known.topic.into();
            }
            if let Some(user) = known.user {
                line["user"] = user.into();
            }
            let is_of_client = trace.is_origin(known.origin);
            let client = trace.subject.client.as_deref().filter(|_| is_of_client);
            if let Some(publisher) = known.publisher.or(client) {
                line["publisher"] = publisher.into();
            }
            trace.events.lines.push_str(&line.to_string());
            trace.events.lines.push('\n');
        }
    }
}

/// The watch, as the broker knows it.
#[derive(Debug)]
pub(crate) struct Eye(pub(crate) Arc<Watch>);

impl RoadWatcher for Eye {
    fn saw(&self, message: &Message, step: Step<'_>) {
        let reader = match step {
            Step::Received { .. } | Step::Refused(_) => None,
            Step::Queued { reader, .. }
            | Step::Logged { reader }
            | Step::Sent { reader, .. }
            | Step::Settled { reader, .. } => Some(reader),
        };
        let (reader, user) = reader.map_or((None, None), |reader| {
            let (reader, user) = reader_parts(reader);
            (Some(reader), user)
        });
        let publisher = self.0.publisher();
        let known = Known {
            origin: message.origin(),
            topic: message.topic(),
            // Other steps may be of other messages, which have found room meanwhile.
            publisher: publisher.as_deref().filter(|_| reader.is_none()),
            reader,
            user,
        };
        let event = match step {
            Step::Received { .. } => "received",
            Step::Refused(_) => "refused",
            Step::Queued { .. } => "queued",
            Step::Logged { .. } => "logged",
            Step::Sent { .. } => "sent",
            Step::Settled { .. } => "acknowledged",
        };
        (self.0).note(event, known, |subject| line(message, step, subject));
        if let Some(spans) = self.0.spans.get() {
            spans.saw(self.0.now_ms.load(Ordering::Relaxed), message, step);
        }
    }
}

/// The payload of a message, or the part of it that fits: text, or base64.
pub(crate) fn add_payload(line: &mut Value, payload: &[u8], maximum_bytes: usize) {
    let shown = &payload[..payload.len().min(maximum_bytes)];
    let is_cut = shown.len() < payload.len();
    // A cut may be within a character.
    let text = match std::str::from_utf8(shown) {
        Ok(text) => Some(text),
        Err(error) if is_cut && error.error_len().is_none() => {
            std::str::from_utf8(&shown[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    line["payload_bytes"] = payload.len().into();
    line["is_cut"] = is_cut.into();
    match text {
        Some(text) => line["payload"] = text.into(),
        None => line["payload_base64"] = STANDARD.encode(shown).into(),
    }
}

fn line(message: &Message, step: Step<'_>, subject: &Subject) -> Value {
    match step {
        Step::Received { matched, away } if subject.payload_bytes > 0 => {
            let mut line = json!({
                "matched": matched,
                "away": away,
                "qos": message.qos() as u8,
                "retain": message.retain(),
            });
            add_payload(&mut line, message.payload(), subject.payload_bytes);
            line
        }
        Step::Received { matched, away } => json!({
            "matched": matched,
            "away": away,
            "qos": message.qos() as u8,
            "retain": message.retain(),
            "payload_bytes": message.payload().len(),
        }),
        Step::Refused(why) => json!({ "reason": why.name() }),
        Step::Queued { reader, waiting } => {
            json!({ "reader": reader_parts(reader).0, "waiting": waiting })
        }
        Step::Logged { reader } => json!({ "reader": reader_parts(reader).0 }),
        Step::Sent {
            reader,
            qos,
            redelivered,
        } => json!({
            "reader": reader_parts(reader).0,
            "qos": qos as u8,
            "redelivered": redelivered,
        }),
        Step::Settled { reader, outcome } => {
            let (outcome, reason_code) = match outcome {
                Outcome::Accepted => ("accepted", None),
                Outcome::Rejected(code) => ("rejected", Some(code)),
                Outcome::Released => ("released", None),
                Outcome::Failed => ("failed", None),
                Outcome::Undeliverable | Outcome::Declined => ("undeliverable", None),
            };
            json!({
                "reader": reader_parts(reader).0,
                "outcome": outcome,
                "reason_code": reason_code,
            })
        }
    }
}
