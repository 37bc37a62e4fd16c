//! Traces: of single connections (`trace`), and of single messages (`otlp`).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Traces (qlog) of single clients' QUIC connections. A reload switches them on and off.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trace {
    /// Client identifiers whose connections are traced.
    pub clients: Vec<String>,
    /// Folder for traces, with a file for each connection. Default: `traces` in the data directory.
    pub directory: Option<PathBuf>,
    /// Bytes after which a trace ends.
    pub maximum_bytes: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            clients: Vec::new(),
            directory: None,
            maximum_bytes: 64 << 20,
        }
    }
}

/// Collector for spans of messages that carry a trace context.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Otlp {
    /// `http://HOST:PORT/PATH` of a collector that takes OTLP as JSON; without it there are no spans.
    pub url: Option<String>,
    /// Spans that wait to be sent; more are dropped and counted in the log.
    pub maximum_spans: u32,
    /// Time that a request to the collector may take for each of its steps, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for Otlp {
    fn default() -> Self {
        Self {
            url: None,
            maximum_spans: 10_000,
            timeout_ms: 5_000,
        }
    }
}

impl Otlp {
    /// A sentence for each fault.
    pub(super) fn problems(&self) -> Vec<String> {
        let Some(url) = &self.url else {
            return Vec::new();
        };
        let mut problems = Vec::new();
        if collector(url).is_none() {
            problems.push(format!(
                "otlp.url: `{url}` is not http://HOST:PORT/PATH, such as http://localhost:4318/v1/traces"
            ));
        }
        if self.maximum_spans == 0 || self.timeout_ms == 0 {
            problems.push("otlp.maximum_spans and otlp.timeout_ms are at least 1".to_owned());
        }
        problems
    }
}

/// Host with port, and path, of a collector's URL.
pub(crate) fn collector(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("http://")?;
    let at = rest.find('/')?;
    let (host, path) = rest.split_at(at);
    let (name, port) = host.rsplit_once(':')?;
    let is_sound = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_url = !name.is_empty() && port.parse::<u16>().is_ok() && is_sound(rest);
    is_url.then_some((host, path))
}
