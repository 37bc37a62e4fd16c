//! The filter of the log: which lines of which targets it gets. It is made here alone.

use sterna_server::audit::TARGET as AUDIT;
use sterna_server::config::Log;
use tracing_subscriber::EnvFilter;

/// Libraries whose lines know no peer, and which peers can cause without limit. The broker has lines of its own about what
/// matters, so these are heard only of errors.
const LIBRARIES: [&str; 9] = [
    "async_nats",
    "h2",
    "hyper",
    "hyper_util",
    "mio",
    "quinn",
    "quinn_proto",
    "quinn_udp",
    "rustls",
];

/// The filter that a configuration asks for. A library that `log.level` names has the level that it says.
pub(super) fn log_filter(log: &Log) -> EnvFilter {
    let mut directives = Vec::new();
    let is_off = (log.level.split(',')).any(|one| one.trim().eq_ignore_ascii_case("off"));
    for library in LIBRARIES {
        let level = if is_off { "off" } else { "error" };
        directives.push(format!("{library}={level}"));
    }
    // A later directive about a target takes the place of an earlier one.
    directives.push(log.level.clone());
    directives.push(format!("{AUDIT}={}", log.audit.name()));
    EnvFilter::try_new(directives.join(",")).unwrap_or_else(|_| EnvFilter::new("info"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use sterna_server::config::AuditLevel;
    use tracing::{Level, event};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("a lock").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The lines, of one of each kind, that a level lets through.
    fn heard(level: &str) -> Vec<String> {
        let log = Log {
            level: level.to_owned(),
            audit: AuditLevel::Warn,
            ..Log::default()
        };
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(log_filter(&log))
            .without_time()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            event!(target: "h2::proto::streams::recv", Level::WARN, "warning of h2");
            event!(target: "h2::proto::streams::recv", Level::ERROR, "error of h2");
            event!(target: "rustls::server", Level::DEBUG, "detail of rustls");
            event!(target: "sterna_net::shard", Level::WARN, "warning of ours");
            event!(target: "sterna_net::shard", Level::DEBUG, "detail of ours");
            event!(target: AUDIT, Level::WARN, "refused");
            event!(target: AUDIT, Level::INFO, "reload");
        });
        let text = String::from_utf8(written.0.lock().expect("a lock").clone()).expect("text");
        let lines = text.lines();
        let lines = lines.filter_map(|line| Some(line.rsplit_once(": ")?.1.to_owned()));
        lines.collect()
    }

    #[test]
    fn libraries_are_heard_of_errors_unless_the_level_names_them() {
        let ours = ["error of h2", "warning of ours"];
        assert_eq!(heard("info"), [&ours[..], &["refused"]].concat());
        let detailed = [
            "error of h2",
            "warning of ours",
            "detail of ours",
            "refused",
        ];
        assert_eq!(heard("debug"), detailed);
        assert_eq!(heard("off"), ["refused"]);
        assert_eq!(
            heard("error,h2=warn"),
            ["warning of h2", "error of h2", "refused"]
        );
        assert_eq!(
            heard("info,rustls=debug"),
            [
                "error of h2",
                "detail of rustls",
                "warning of ours",
                "refused"
            ]
        );
        assert_eq!(heard("info,h2=off"), ["warning of ours", "refused"]);
    }
}
