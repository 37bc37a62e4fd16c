//! Traces: of single connections (`trace`), and of single messages (`otlp`).

use std::path::PathBuf;

use super::secrets::without_secrets;

settings! {
    /// Traces (qlog) of single clients' QUIC connections. A reload switches them on and off while connections live.
    #[derive(Eq)]
    pub struct Trace {
        /// Client identifiers whose connections are traced.
        reload clients: Vec<String>;
        /// Folder for traces, with a file for each connection.
        reload directory: Option<PathBuf>, said "`traces` in the data directory";
        /// Bytes after which a trace ends.
        reload maximum_bytes: u64 = 64 << 20;
    }
}

settings! {
    /// Spans of single messages, for a collector of OpenTelemetry: [traces of messages](operations.md#spans).
    #[derive(Eq)]
    pub struct Otlp {
        /// `http://HOST:PORT/PATH` of a collector that takes OTLP as JSON, such as `http://localhost:4318/v1/traces`.
        /// Without it there are no spans.
        restart url: Option<String>;
        /// Spans that wait to be sent. More are dropped and counted in the log.
        restart maximum_spans: u32 = 10_000, within 1..;
        /// Time for each step of a request to the collector: connecting, writing, reading.
        restart timeout_ms: u64 = 5_000, within 1..;
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
                "otlp.url: `{}` is not http://HOST:PORT/PATH, such as http://localhost:4318/v1/traces",
                without_secrets(url)
            ));
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
