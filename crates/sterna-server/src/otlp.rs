//! Spans of single messages, as OTLP in JSON, for messages whose sender asks for them. It asks by the User
//! Property `traceparent`: a W3C trace context (Trace Context, section 3.2) with the flag `sampled`.
//!
//! A span's number follows from the context and the step, so that nothing is kept between two steps. A shard
//! only puts spans into a queue with a limit; a thread sends them.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::{Value, json};
use sterna_broker::{Message, Outcome, Step};
use sterna_mqtt::property::{PropertyContext, PublishProperties};

use crate::config::Otlp;
use crate::session::reader_parts;

/// Most spans of one request.
const MAX_BATCH: usize = 512;
/// Longest head of an answer, in bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// Kinds of spans (OTLP, `SpanKind`).
const INTERNAL: u8 = 1;
const PRODUCER: u8 = 4;
const CONSUMER: u8 = 5;
/// Status of a span that failed (OTLP, `StatusCode`).
const ERROR: u8 = 2;

/// The way of spans to the thread that sends them. A clone is another handle on it.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    queue: SyncSender<Value>,
    lost: Arc<AtomicU64>,
}

/// A sampled trace context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parent<'a> {
    trace: &'a str,
    span: &'a str,
}

impl Spans {
    /// Starts the thread that sends spans to `otlp.url`; `None` without one. It ends when the last handle is
    /// gone.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn start(config: &Otlp) -> io::Result<Option<Self>> {
        let Some(url) = config.url.clone() else {
            return Ok(None);
        };
        let (queue, spans) = sync_channel(config.maximum_spans as usize);
        let lost = Arc::new(AtomicU64::new(0));
        let timeout = Duration::from_millis(config.timeout_ms);
        let counted = Arc::clone(&lost);
        std::thread::Builder::new()
            .name("otlp".to_owned())
            .spawn(move || run(&url, timeout, &spans, &counted))?;
        Ok(Some(Self { queue, lost }))
    }

    /// A message has come one step further, at a time in milliseconds since the Unix epoch.
    pub(crate) fn saw(&self, now_ms: u64, message: &Message, step: Step<'_>) {
        if message.properties().is_empty() {
            return;
        }
        // They were checked when they came.
        let properties = PublishProperties::parse(message.properties(), PropertyContext::Publish);
        let Ok(properties) = properties else {
            return;
        };
        let mut contexts = properties.user_properties();
        let context = contexts.find(|(name, _)| *name == "traceparent");
        let Some(parent) = context.and_then(|(_, text)| sampled(text)) else {
            return;
        };
        let span = span(now_ms, message, step, parent);
        if self.queue.try_send(span).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Reads a context, if its sender samples the trace.
fn sampled(text: &str) -> Option<Parent<'_>> {
    let mut parts = text.split('-');
    let mut next = |digits: usize| {
        let part = parts.next()?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (part.len() == digits && part.bytes().all(is_hex)).then_some(part)
    };
    let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
    let is_known = version != "ff" && (version != "00" || parts.next().is_none());
    let is_named = |id: &str| id.bytes().any(|byte| byte != b'0');
    let is_sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 != 0);
    let is_good = is_known && is_named(trace) && is_named(span) && is_sampled;
    is_good.then_some(Parent { trace, span })
}

/// The number of the span of a step: the same on every shard, and another for each reader.
fn number(parent: Parent<'_>, step: &str, reader: &str) -> String {
    let mut hasher = DefaultHasher::new();
    (parent.trace, parent.span, step, reader).hash(&mut hasher);
    format!("{:016x}", hasher.finish().max(1))
}

fn span(now_ms: u64, message: &Message, step: Step<'_>, parent: Parent<'_>) -> Value {
    let published_ms = message.published_ms().min(now_ms);
    let text = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let mut attributes = vec![
        text("messaging.system", "sterna"),
        text("messaging.destination.name", message.topic()),
    ];
    // Name, kind, reader, begin, parent, and what is wrong.
    let (name, kind, reader, begin_ms, above, fault) = match step {
        Step::Received { matched, .. } => {
            let matched = matched.to_string();
            attributes.push(json!({ "key": "sterna.matched", "value": { "intValue": matched } }));
            ("received", CONSUMER, "", published_ms, None, None)
        }
        Step::Refused(why) => {
            let why = Some(why.name());
            ("refused", CONSUMER, "", published_ms, None, why)
        }
        Step::Queued { reader, .. } | Step::Logged { reader } => (
            "routed",
            INTERNAL,
            reader,
            published_ms,
            Some("received"),
            None,
        ),
        Step::Sent { reader, .. } => (
            "sent",
            PRODUCER,
            reader,
            published_ms,
            Some("received"),
            None,
        ),
        Step::Settled { reader, outcome } => {
            let fault = match outcome {
                Outcome::Accepted => None,
                Outcome::Rejected(_) => Some("rejected"),
                Outcome::Released => Some("released"),
                Outcome::Failed => Some("failed"),
                Outcome::Undeliverable | Outcome::Declined => Some("undeliverable"),
            };
            (
                "acknowledged",
                INTERNAL,
                reader,
                now_ms,
                Some("sent"),
                fault,
            )
        }
    };
    if !reader.is_empty() {
        let (client, user) = reader_parts(reader);
        attributes.push(text("messaging.client.id", client));
        attributes.extend(user.map(|user| text("enduser.id", user)));
    }
    let above = above.map_or_else(
        || parent.span.to_owned(),
        |above| number(parent, above, if above == "sent" { reader } else { "" }),
    );
    let nanoseconds = |ms: u64| format!("{ms}000000");
    let mut span = json!({
        "traceId": parent.trace,
        "spanId": number(parent, name, reader),
        "parentSpanId": above,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": nanoseconds(begin_ms),
        "endTimeUnixNano": nanoseconds(now_ms),
        "attributes": attributes,
    });
    if let Some(why) = fault {
        span["status"] = json!({ "code": ERROR, "message": why });
    }
    span
}

fn run(url: &str, timeout: Duration, spans: &Receiver<Value>, lost: &AtomicU64) {
    let mut has_failed = false;
    let shown = &*crate::config::without_secrets(url);
    while let Ok(first) = spans.recv() {
        let mut batch = vec![first];
        batch.extend(spans.try_iter().take(MAX_BATCH - 1));
        let count = batch.len() as u64;
        let resource = json!({ "attributes": [
            { "key": "service.name", "value": { "stringValue": "sterna" } },
        ] });
        let scope = json!({ "name": "sterna", "version": env!("CARGO_PKG_VERSION") });
        let scopes = json!([{ "scope": scope, "spans": batch }]);
        let body = json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": scopes }] });
        let sent = post(url, timeout, body.to_string().as_bytes());
        if let Err(error) = &sent {
            lost.fetch_add(count, Ordering::Relaxed);
            if !has_failed {
                tracing::warn!(url = shown, %error, "spans cannot be sent");
            }
        }
        has_failed = sent.is_err();
        if !has_failed {
            let lost = lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                tracing::warn!(url = shown, lost, "spans were lost");
            }
        }
    }
}

/// Sends one request, on a connection of its own.
fn post(url: &str, timeout: Duration, body: &[u8]) -> io::Result<()> {
    let parts = crate::config::collector(url);
    let (host, path) = parts.ok_or_else(|| io::Error::other("is not a collector's URL"))?;
    let address = (host.to_socket_addrs()?.next())
        .ok_or_else(|| io::Error::other("the host has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    let mut chunk = [0; 1024];
    while answer.len() < MAX_HEAD_BYTES {
        let length = stream.read(&mut chunk)?;
        if length == 0 {
            break;
        }
        answer.extend_from_slice(&chunk[..length]);
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut fields);
        let parsed = response.parse(&answer).map_err(io::Error::other)?;
        if parsed.is_complete() {
            return match response.code {
                Some(200..=299) => Ok(()),
                code => Err(io::Error::other(format!(
                    "status {}",
                    code.unwrap_or_default()
                ))),
            };
        }
    }
    Err(io::Error::other("the answer is not complete"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_read_as_the_standard_says() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let known = Some(Parent { trace, span });
        let of = |version: &str, flags: &str| format!("{version}-{trace}-{span}-{flags}");
        assert_eq!(sampled(&of("00", "01")), known);
        assert_eq!(sampled(&of("00", "03")), known);
        // A later version may have more.
        assert_eq!(sampled(&format!("{}-more", of("01", "01"))), known);
        for text in [
            of("00", "00"),
            of("ff", "01"),
            format!("{}-more", of("00", "01")),
            of("00", "01").to_uppercase(),
            of("00", "1"),
            of("00", "01").replace(trace, &"0".repeat(32)),
            of("00", "01").replace(span, &"0".repeat(16)),
            String::new(),
        ] {
            assert_eq!(sampled(&text), None, "{text}");
        }
    }
}
