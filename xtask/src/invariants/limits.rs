//! Every limit of an engine, of the carriers of HTTP or of the broker is a setting.

use super::text::words;
use crate::sources::SourceFile;

/// Where structures named `Limits` are, by crate.
const STRUCTURES: [&str; 5] = [
    "crates/sterna-amqp/src/limits.rs",
    "crates/sterna-broker/src/limits.rs",
    "crates/sterna-h3/src/limits.rs",
    "crates/sterna-http/src/limits.rs",
    "crates/sterna-mqtt/src/server/mod.rs",
];

/// Crates that fill them. The carriers of HTTP pass settings of the server on to the engine of HTTP/3.
const SETTERS: [&str; 2] = ["sterna-http", "sterna-server"];

/// Limits that are fixed, and the reasons why they need no setting.
const FIXED: [(&str, &str); 24] = [
    (
        "sterna-amqp.max_sasl_frame_bytes",
        "512, as the specification says (part 5, section 5.3.1)",
    ),
    (
        "sterna-amqp.max_errant_frames",
        "a count of one connection; nothing is kept for it",
    ),
    (
        "sterna-amqp.min_peer_idle_timeout_ms",
        "keeps empty frames rare, holds no memory",
    ),
    (
        "sterna-amqp.max_sasl_rounds",
        "no mechanism that is offered has more than two",
    ),
    (
        "sterna-broker.topic_bytes",
        "65,535, as the wire format says",
    ),
    (
        "sterna-broker.queue_full",
        "a choice, not a limit; the default is documented",
    ),
    (
        "sterna-broker.unacknowledged",
        "65,535, as many as there are Packet Identifiers",
    ),
    (
        "sterna-broker.match_cache_topics",
        "a cache of the shard's, which no peer makes larger",
    ),
    ("sterna-broker.match_cache_targets", "as above"),
    ("sterna-broker.route_backlog", "between shards"),
    (
        "sterna-h3.max_fields",
        "bounded by http.maximum_fields_bytes as well",
    ),
    (
        "sterna-h3.max_interim_responses",
        "of a client, which the server is not",
    ),
    (
        "sterna-h3.max_skipped_streams",
        "a count of one connection, whose streams are settings",
    ),
    ("sterna-h3.max_held_bytes", "of one connection, small"),
    ("sterna-h3.max_settings", "one frame of a connection"),
    ("sterna-h3.max_idle_bytes", "of one connection, small"),
    (
        "sterna-h3.window_ms",
        "the time in which resets are counted",
    ),
    (
        "sterna-h3.max_waiting_streams",
        "of one connection, whose streams are settings",
    ),
    (
        "sterna-h3.max_capsule_bytes",
        "of one WebTransport session, small",
    ),
    ("sterna-mqtt.min_version", "a choice, not a limit"),
    (
        "sterna-mqtt.max_incoming_ids",
        "16,384 of a session, two bytes each; mqtt.receive_maximum is the setting",
    ),
    (
        "sterna-mqtt.max_alias_topic_bytes",
        "65,536 of one connection; mqtt.topic_alias_maximum is the setting",
    ),
    ("sterna-mqtt.features", "a setting for each"),
    ("sterna-mqtt.isolate_lanes", "a choice, not a limit"),
];

/// Fields of `Limits` that the server fills from no setting, unless they are among the fixed ones. Also
/// fixed ones that no longer exist.
pub(super) fn unset_limits(files: &[SourceFile]) -> Vec<String> {
    let server: String = files
        .iter()
        .filter(|file| SETTERS.contains(&file.crate_name()))
        .filter(|file| !STRUCTURES.contains(&file.name.as_str()))
        .map(SourceFile::shipped_code)
        .collect();
    let is_set = |field: &str| {
        words(&server, field)
            .into_iter()
            .any(|at| server[at + field.len()..].starts_with(": "))
    };
    let mut violations = Vec::new();
    let mut fixed: Vec<&str> = FIXED.iter().map(|(name, _)| *name).collect();
    for name in STRUCTURES {
        let Some(file) = files.iter().find(|file| file.name == name) else {
            violations.push(format!("{name}: there is no such file"));
            continue;
        };
        for field in fields(&file.shipped_code()) {
            let full = format!("{}.{field}", file.crate_name());
            let known = fixed.len();
            fixed.retain(|name| *name != full);
            if known == fixed.len() && !is_set(&field) {
                violations.push(format!(
                    "{full}: neither a setting nor among the fixed limits"
                ));
            }
        }
    }
    violations.extend(
        fixed
            .iter()
            .map(|name| format!("{name}: there is no such limit")),
    );
    violations
}

/// The fields of the structure named `Limits`.
fn fields(code: &str) -> Vec<String> {
    let body = code.split_once("pub struct Limits {");
    let body = body.map_or("", |(_, rest)| rest.split('}').next().unwrap_or(""));
    body.lines()
        .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'))
        .map(|(field, _)| field.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::divide;

    #[test]
    fn a_limit_without_a_setting_is_found() {
        let fixed = |prefix: &str| {
            let mut text = String::new();
            for field in FIXED
                .iter()
                .filter_map(|(name, _)| name.strip_prefix(prefix))
            {
                text.push_str("    pub ");
                text.push_str(field);
                text.push_str(": u32,\n");
            }
            text
        };
        let mut files = Vec::new();
        for name in STRUCTURES {
            let prefix = format!("{}.", name.split('/').nth(1).unwrap_or(""));
            let mut own = fixed(&prefix);
            if prefix == "sterna-amqp." {
                own = own.replace("    pub max_sasl_rounds: u32,\n", "");
                own.push_str("    /// Set: here.\n    pub known: u32,\n    pub forgotten: u32,\n");
            }
            if prefix == "sterna-http." {
                own.push_str("    pub known: u32,\n    pub overlooked: u32,\n");
            }
            files.push((name.to_owned(), format!("pub struct Limits {{\n{own}}}\n")));
        }
        let server = "fn f() { Limits { known: 1, ..x } } // forgotten: 1\n";
        files.push((
            "crates/sterna-server/src/server.rs".to_owned(),
            server.to_owned(),
        ));
        assert_eq!(
            unset_limits(&divide(files)),
            [
                "sterna-amqp.forgotten: neither a setting nor among the fixed limits",
                "sterna-http.overlooked: neither a setting nor among the fixed limits",
                "sterna-amqp.max_sasl_rounds: there is no such limit",
            ]
        );
    }
}
