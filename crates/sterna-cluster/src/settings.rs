//! Settings of the cluster engine.

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
    /// Time for which NATS keeps that a session has ended, or that a key of a request is free, in milliseconds.
    pub ended_session_ms: u64,
    /// Time for which NATS keeps that a node does not want a filter any more, or that a ban has ended, in milliseconds.
    pub ended_filter_ms: u64,
    /// Time for which NATS keeps that a topic has no retained message any more, in milliseconds.
    pub cleared_topic_ms: u64,
    /// Ends of one kind that wait for their removal; above it they are removed before their time.
    pub maximum_waiting_ends: usize,
    /// Names of nodes that the cluster has had. A node with another name does not join.
    pub maximum_node_names: usize,
    /// How far a clock may be from the cluster's, in milliseconds.
    pub maximum_clock_skew_ms: u64,
    /// Time in which NATS has to answer, in milliseconds.
    pub answer_timeout_ms: u64,
    /// Time in which another node takes a batch that is given to it, in milliseconds. After it the batch goes to that
    /// node's inbox.
    pub give_timeout_ms: u64,
    /// The time, in milliseconds, for which messages of QoS 1 and 2 for other nodes are accepted although NATS
    /// takes none. Their acknowledgements wait.
    pub patience_ms: u64,
    /// Bytes of one batch of messages to a node; one larger message is a batch of its own.
    pub batch_bytes: usize,
    /// Entries, records and filters of a kind that are handed to NATS at once, before it has answered.
    pub maximum_in_flight: usize,
    /// Readers that read the log at once.
    pub maximum_log_reads: usize,
    /// Entries of the log that settle a record and are remembered, because the record may not be kept yet.
    pub maximum_unsettled_entries: usize,
    /// Bytes that may wait in all nodes' inboxes together.
    pub inbox_bytes: u64,
    /// Bytes that the log may have.
    pub log_bytes: u64,
    /// The longest time between two attempts to connect, in milliseconds.
    pub maximum_backoff_ms: u64,
    /// Number of this node's shards.
    pub shards: usize,
    /// The region that the cluster is; `None` where it has no others to speak with.
    pub region: Option<Region>,
}

/// A region: a cluster of its own, to which others bring messages.
#[derive(Clone, Debug)]
pub struct Region {
    /// Its name.
    pub name: String,
    /// Filters whose messages cross, out of this region and into it.
    pub topics: Vec<String>,
    /// The other regions.
    pub remotes: Vec<Remote>,
    /// Bytes of messages that may wait for other regions.
    pub waiting_bytes: u64,
    /// Whether publishers are refused when this many bytes wait. Otherwise the oldest messages go.
    pub refuses_when_full: bool,
}

/// Another region.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Its name.
    pub name: String,
    /// The domain of its JetStream.
    pub domain: String,
}

/// Characters of the longest name.
pub(crate) const LONGEST_NAME: usize = 32;

/// Whether a name may be that of a cluster or a node: 1 to 32 letters, digits, `-` and `_`. Names are parts of
/// subjects and of streams' names.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_part)
}

impl Settings {
    /// A subject of this cluster. Regions share an account of NATS, and no subject.
    pub(crate) fn subject(&self, rest: &str) -> String {
        match &self.region {
            None => format!("sterna.{}.{rest}", self.name),
            Some(region) => self.subject_of(&region.name, rest),
        }
    }

    /// The name of one of this cluster's streams.
    pub(crate) fn stream(&self, rest: &str) -> String {
        match &self.region {
            None => format!("STERNA_{}_{rest}", self.name),
            Some(region) => self.stream_of(&region.name, rest),
        }
    }

    /// A subject of a region.
    pub(crate) fn subject_of(&self, region: &str, rest: &str) -> String {
        format!("sterna.{}@{region}.{rest}", self.name)
    }

    /// The name of a region's stream.
    pub(crate) fn stream_of(&self, region: &str, rest: &str) -> String {
        format!("STERNA_{}@{region}_{rest}", self.name)
    }

    /// Whether messages of a topic cross between regions.
    pub(crate) fn crosses(&self, topic: &str) -> bool {
        let mut filters = self.region.iter().flat_map(|region| &region.topics);
        !topic.starts_with('$') && filters.any(|filter| sterna_topic::matches(filter, topic))
    }

    /// Filters whose messages leave this region; none where there is no other.
    pub(crate) fn exported(&self) -> &[String] {
        match &self.region {
            Some(region) if !region.remotes.is_empty() => &region.topics,
            _ => &[],
        }
    }
}

#[cfg(test)]
impl Settings {
    /// Settings of a node of the cluster `c` in a region.
    pub(crate) fn sample(region: Option<Region>) -> Self {
        Self {
            servers: Vec::new(),
            name: "c".to_owned(),
            node: "a".to_owned(),
            credentials_file: None,
            user: None,
            ca: None,
            certificate: None,
            requires_tls: false,
            replicas: 1,
            lease_ms: 4_000,
            session_lease_ms: 1_500,
            claim_timeout_ms: 6_000,
            absence_ms: 60_000,
            ended_session_ms: 60_000,
            ended_filter_ms: 3_600_000,
            cleared_topic_ms: 604_800_000,
            maximum_waiting_ends: 100_000,
            maximum_node_names: 10_000,
            maximum_clock_skew_ms: 2_000,
            answer_timeout_ms: 2_000,
            give_timeout_ms: 500,
            patience_ms: 15_000,
            batch_bytes: 1 << 18,
            inbox_bytes: 1 << 30,
            log_bytes: 1 << 30,
            maximum_backoff_ms: 2_000,
            maximum_in_flight: 256,
            maximum_log_reads: 16,
            maximum_unsettled_entries: 100_000,
            shards: 1,
            region,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_share_no_subject_and_no_stream() {
        let region = |name: &str| Region {
            name: name.to_owned(),
            topics: vec!["plant/#".to_owned()],
            remotes: Vec::new(),
            waiting_bytes: 1,
            refuses_when_full: false,
        };
        let alone = Settings::sample(None);
        let north = Settings::sample(Some(region("north")));
        let south = Settings::sample(Some(region("south")));
        for one in [Settings::subject, Settings::stream] {
            assert_ne!(one(&alone, "x"), one(&north, "x"));
            assert_ne!(one(&north, "x"), one(&south, "x"));
            assert_eq!(
                one(&north, "x").split('.').count(),
                one(&alone, "x").split('.').count()
            );
        }
        assert_eq!(north.subject("x"), south.subject_of("north", "x"));
        assert_eq!(north.stream("x"), south.stream_of("north", "x"));
        assert!(north.crosses("plant/1") && !north.crosses("other"));
        assert!(!alone.crosses("plant/1"));
        assert_eq!(north.exported(), [""; 0], "there is no other region");
    }

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
