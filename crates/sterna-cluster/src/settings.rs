//! What the engine is told.

use std::path::PathBuf;

/// Settings of a node. `docs/configuration.md` has them for operators, section `cluster`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// URLs of NATS servers, `nats://` or `tls://`, with a host and a port.
    pub servers: Vec<String>,
    /// Name of the cluster. Clusters of different names share NATS servers and nothing else.
    pub name: String,
    /// Name of this node in the cluster.
    pub node: String,
    /// A credentials file of NATS: a JWT and the key of an account's user.
    pub credentials_file: Option<PathBuf>,
    /// User and password.
    pub user: Option<(String, String)>,
    /// Certificates in PEM that sign those of the servers. Default: those of the system.
    pub ca: Option<PathBuf>,
    /// Certificate chain and key of this node, in PEM.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Whether a connection without TLS is refused.
    pub requires_tls: bool,
    /// Copies that NATS keeps of each message, 1 to 5.
    pub replicas: usize,
    /// Time without a word after which a node is away, in milliseconds.
    pub lease_ms: u64,
    /// Time for which this node is sure of its sessions after it has heard from NATS, in milliseconds.
    pub session_lease_ms: u64,
    /// Time in which a session is claimed, in milliseconds. After it its client is refused.
    pub claim_timeout_ms: u64,
    /// Time without a word after which nothing waits for a node any more, in milliseconds.
    pub absence_ms: u64,
    /// Time in which NATS has to answer, in milliseconds.
    pub answer_timeout_ms: u64,
    /// Time for which messages of QoS 1 and 2 for other nodes are taken while NATS does not take them, in
    /// milliseconds: their acknowledgements wait.
    pub patience_ms: u64,
    /// Bytes of one batch of messages to a node; one larger message is a batch of its own.
    pub batch_bytes: usize,
    /// Entries, records and filters of a kind that are handed to NATS at once, before it has answered.
    pub maximum_in_flight: usize,
    /// Readers that read the log at once.
    pub maximum_log_reads: usize,
    /// Bytes that may wait in all nodes' inboxes together.
    pub inbox_bytes: u64,
    /// Bytes that the log may have.
    pub log_bytes: u64,
    /// The longest time between two attempts to connect, in milliseconds.
    pub maximum_backoff_ms: u64,
    /// Number of this node's shards.
    pub shards: usize,
}

/// Whether a name may be that of a cluster or a node: 1 to 32 letters, digits, `-` and `_`. Names are parts of
/// subjects and of streams' names.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=32).contains(&name.len()) && name.bytes().all(is_part)
}

impl Settings {
    /// A subject of this cluster.
    pub(crate) fn subject(&self, rest: &str) -> String {
        format!("sterna.{}.{rest}", self.name)
    }

    /// The name of one of this cluster's streams.
    pub(crate) fn stream(&self, rest: &str) -> String {
        format!("STERNA_{}_{rest}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_subjects() {
        for name in ["a", "eu-west_1", "0123456789012345678901234567890A"] {
            assert!(is_name(name));
        }
        for name in [
            "",
            "a.b",
            "a b",
            "*",
            ">",
            "é",
            "01234567890123456789012345678901A",
        ] {
            assert!(!is_name(name));
        }
    }
}
