//! The section `cluster`: other nodes, by way of NATS JetStream.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sterna_cluster::is_name;

use super::Config;
use super::secrets::without_secrets;

settings! {
    /// Other nodes, by way of NATS; [Clusters](cluster.md) says what a cluster does and what not.
    ///
    /// Without `nats` there are no other nodes, and nothing of this runs.
    #[derive(Eq)]
    pub struct Cluster {
        /// Servers of NATS with JetStream, such as `["tls://nats-1.example:4222"]`; `nats://` for those without TLS. One
        /// of them is connected, and another when it fails.
        restart nats: Vec<String>;
        /// Name of the cluster: 1 to 32 letters, digits, `-` and `_`. Clusters of different names may share servers.
        restart name: String = "sterna".to_owned();
        /// Name of this node, which no other node of the cluster has: 1 to 32 letters, digits, `-` and `_`.
        restart node: Option<String>, said "the host's name up to its first dot";
        /// Credentials file of NATS: a JWT and its key.
        restart credentials_file: Option<PathBuf>;
        /// User of NATS; goes with `password_file`.
        restart user: Option<String>;
        /// File whose first line is the user's password.
        restart password_file: Option<PathBuf>;
        /// Certificates in PEM that sign those of the servers.
        restart ca: Option<PathBuf>, said "the system's";
        /// Certificate with its chain that this node shows to the servers, in PEM; goes with `key`.
        restart certificate: Option<PathBuf>;
        /// Key of that certificate, in PEM.
        restart key: Option<PathBuf>;
        /// Whether `nats://` may be of servers that are not on loopback. All messages then go in the clear.
        restart allow_plaintext_beyond_loopback: bool = false;
        /// Copies that NATS keeps of each message. At most the number of servers.
        restart replicas: u8 = 3, within 1..=5;
        /// Whether the node starts beside a store that is not empty. The store stays on disk, unread: sessions and
        /// messages of a start without a cluster are not in the cluster.
        restart ignore_store: bool = false;
        /// Time without a word of a node after which it gets no messages of QoS 0.
        restart lease_ms: u64 = 4_000, within MIN_LEASE_MS..;
        /// Time for which a node is sure of its sessions after it has heard from NATS. A client whose node died or is
        /// cut off waits for the rest of it.
        restart session_lease_ms: u64 = 1_500, within MIN_LEASE_MS..;
        /// Time in which a session is claimed in the cluster. After it the client is refused. At least twice
        /// `session_lease_ms`.
        restart claim_timeout_ms: u64 = 6_000;
        /// Time without a word of a node after which nothing waits for it. Another node then has its sessions, and their
        /// wills are published. At least twice `session_lease_ms`.
        restart absence_ms: u64 = 60_000;
        /// Time for which NATS keeps that a session has ended, or that an idempotency key is free. The node removes it
        /// then. At least `absence_ms`: a node that was cut off finds it.
        restart ended_session_ms: u64 = 60_000, within MIN_END_MS..;
        /// Time for which NATS keeps that a node does not want a filter any more, or that a ban has ended. A node that was
        /// cut off for longer sends messages for nothing, and has the ban until it starts again.
        restart ended_filter_ms: u64 = 3_600_000, within MIN_END_MS..;
        /// Time for which NATS keeps that a topic has no retained message any more. A node that was cut off for longer
        /// still has the message.
        restart cleared_topic_ms: u64 = 7 * 24 * 3_600_000, within MIN_END_MS..;
        /// Ends that wait for these times on this node: so many of sessions and keys, of filters and bans, and of retained
        /// messages. Above it the oldest of their kind are removed at once.
        restart maximum_waiting_ends: u32 = 100_000, within 1..;
        /// Names that nodes of the cluster have had. A node with another name does not join: some hundred bytes stay of
        /// each name for ever, so that nothing of it comes again.
        restart maximum_node_names: u32 = 10_000, within 1..;
        /// Time by which a clock may differ from the median of all nodes' and NATS servers' clocks. A node that
        /// [differs by more](cluster.md#clocks) serves nobody.
        restart maximum_clock_skew_ms: u64 = 2_000, within 100..;
        /// Time in which NATS has to answer. After it the same is asked again.
        restart answer_timeout_ms: u64 = 2_000, within 1..;
        /// Time in which another node takes QoS 1 and 2 that is [given to it
        /// directly](cluster-design.md#given-or-by-the-inbox). After it the messages wait for that node in NATS, and their
        /// acknowledgements have waited so long. A shorter one sends more by NATS when nodes are busy.
        restart give_timeout_ms: u64 = 500, within 1..;
        /// Time for which QoS 1 and 2 for other nodes wait for NATS. So long the node goes by its last knowledge of the
        /// others' wants. After it they are refused until NATS is back, and all QoS 1 and 2 where the node hears
        /// nothing.
        restart patience_ms: u64 = 15_000;
        /// Longest time between two attempts to connect.
        restart maximum_backoff_ms: u64 = 2_000, within 1..;
        /// Bytes of messages that wait in this process for NATS. Above it they are refused, and those of QoS 0 dropped.
        /// As many of QoS 0 from other nodes may wait for this node's threads.
        restart maximum_waiting_bytes: u64 = 64 << 20, within 1..;
        /// Bytes of messages that wait in NATS for all nodes together.
        restart maximum_inbox_bytes: u64 = 1 << 30, within 1..;
        /// Bytes that NATS keeps for sessions that outlive their connections. Above seven eighths of it, messages that
        /// such a session wants are refused.
        restart maximum_log_bytes: u64 = 1 << 30, within 1..;
        /// Bytes of one batch of messages to a node, and no more than NATS takes. One larger message is a batch of its
        /// own.
        restart batch_bytes: u32 = 256 << 10, within 1..;
        /// Entries of the log, retained messages, records and filters, of each kind, handed to NATS before it has
        /// answered. More is faster where NATS is far away, and loads it more.
        restart maximum_in_flight: u32 = 256, within 1..;
        /// Sessions that read the log in NATS at once, on this node; others wait. Each holds up to
        /// `store.read_ahead_messages` in memory meanwhile.
        restart maximum_log_reads: u32 = 16, within 1..;
        /// Messages [published exactly once](cluster-design.md#what-an-entry-settles), of all nodes, that this node remembers
        /// until their records are kept; some 200 bytes each. Above it the oldest are forgotten: if a node dies then,
        /// its messages may come twice.
        restart maximum_unsettled_entries: u32 = 100_000, within 1..;
        /// Messages of one [shared subscription](cluster-design.md#shared-subscriptions) that members on this node hold
        /// together. Each takes some 10 bytes of a letter between nodes.
        restart maximum_branch_messages: u32 = 16_384, within 1..=MAX_BRANCH_MESSAGES;
        /// Time after which a node looks again for the node that has a shared subscription. A shorter one finds it
        /// sooner, and asks all nodes more often.
        restart group_seek_interval_ms: u64 = 500, within MIN_SEEK_INTERVAL_MS..;
        /// Time for which a shared subscription goes on after its last member has left, and keeps its messages. At
        /// least twice `group_seek_interval_ms`.
        restart group_linger_ms: u64 = 5_000;
        /// The [region](cluster.md#regions) that this cluster is, where there are others: 1 to 32 letters, digits, `-`
        /// and `_`.
        restart region: Option<String>;
        /// Filters whose messages cross between regions, out of this one and into it, such as `["plant/#"]`.
        restart region_topics: Vec<String>, said "none cross";
        /// The other regions.
        section remote_regions: Vec<RemoteRegion>;
        /// Bytes of messages that wait in NATS for other regions.
        restart maximum_region_bytes: u64 = 1 << 30, within 1..;
        /// Choice when so much waits. `discard_oldest`: the oldest messages go. `refuse`: publishers of messages that
        /// cross are refused at seven eighths.
        restart region_full: RegionFull = RegionFull::DiscardOldest;
    }
}

settings! {
    /// The other [regions](cluster.md#regions), such as `[{ name = "south", domain = "south" }]`.
    #[derive(Eq)]
    pub struct RemoteRegion {
        /// Name of the other region: its `cluster.region`.
        restart name: String, said "required";
        /// Domain of its JetStream.
        restart domain: Option<String>, said "as `name`";
    }
}

/// The choice where too much waits for other regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RegionFull {
    /// The oldest messages go, and other regions miss them.
    #[default]
    DiscardOldest,
    /// Publishers of crossing messages of QoS 1 and 2 are refused at seven eighths, and QoS 0 does not cross.
    Refuse,
}

/// Where Linux has the host's name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// Most messages of a branch: a letter names all of them twice, and fits a message of NATS.
const MAX_BRANCH_MESSAGES: u64 = 32_768;

/// Least time between two looks for a shared subscription's node, in milliseconds: each goes to all nodes.
const MIN_SEEK_INTERVAL_MS: u64 = 50;

/// Least time for which an end is kept, in milliseconds: NATS counts in seconds.
const MIN_END_MS: u64 = 1_000;

/// Least lease, in milliseconds: a node says four times in it that it is there.
const MIN_LEASE_MS: u64 = 400;

impl Cluster {
    /// Whether there are other nodes.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.nats.is_empty()
    }

    /// The name of this node.
    ///
    /// # Errors
    /// A sentence, where none is set and the host's name cannot be one.
    pub(crate) fn node_name(&self) -> Result<String, String> {
        if let Some(node) = &self.node {
            return Ok(node.clone());
        }
        let host = fs::read_to_string(HOST_NAME).unwrap_or_default();
        let name = host.trim().split('.').next().unwrap_or_default();
        if is_name(name) {
            Ok(name.to_owned())
        } else {
            Err(format!(
                "cluster.node is not set, and the host's name `{name}` cannot be a node's"
            ))
        }
    }

    /// The faults of the settings, each a sentence that names one setting.
    pub(crate) fn problems(&self, config: &Config) -> Vec<String> {
        let mut problems = Vec::new();
        if !self.is_on() {
            return problems;
        }
        for url in &self.nats {
            match Server::parse(url) {
                Err(why) => {
                    let shown = without_credentials(url);
                    problems.push(format!("cluster.nats: `{shown}` {why}"));
                }
                Ok(server) if server.is_encrypted || server.is_loopback => {}
                Ok(_) if self.allow_plaintext_beyond_loopback => {}
                Ok(_) => problems.push(format!(
                    "cluster.nats: `{}` would carry all messages in the clear: use `tls://`, or set \
                     cluster.allow_plaintext_beyond_loopback = true if that is meant",
                    without_credentials(url)
                )),
            }
        }
        let names = "1 to 32 letters, digits, `-` and `_`";
        if !is_name(&self.name) {
            problems.push(format!("cluster.name is {names}"));
        }
        match self.node_name() {
            Ok(node) if is_name(&node) => {}
            Ok(_) => problems.push(format!("cluster.node is {names}")),
            Err(why) => problems.push(why),
        }
        for (one, name, other, other_name) in [
            (
                self.user.is_some(),
                "user",
                self.password_file.is_some(),
                "password_file",
            ),
            (
                self.certificate.is_some(),
                "certificate",
                self.key.is_some(),
                "key",
            ),
        ] {
            if one != other {
                problems.push(format!(
                    "cluster.{name} and cluster.{other_name} go together"
                ));
            }
        }
        for (name, path) in self.files() {
            if !path.is_file() {
                problems.push(format!("{name}: there is no file {}", path.display()));
            }
        }
        if self.claim_timeout_ms < self.session_lease_ms.saturating_mul(2) {
            problems.push(
                "cluster.claim_timeout_ms is at least twice cluster.session_lease_ms".to_owned(),
            );
        }
        if self.absence_ms < self.session_lease_ms.saturating_mul(2) {
            problems
                .push("cluster.absence_ms is at least twice cluster.session_lease_ms".to_owned());
        }
        if self.absence_ms < self.lease_ms {
            problems.push("cluster.absence_ms is at least cluster.lease_ms".to_owned());
        }
        if self.ended_session_ms < self.absence_ms {
            problems.push("cluster.ended_session_ms is at least cluster.absence_ms".to_owned());
        }
        problems.extend(self.group_problems());
        problems.extend(self.region_problems());
        problems.extend(Self::promises(config));
        problems
    }

    /// The faults of the settings of shared subscriptions.
    fn group_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.group_linger_ms < self.group_seek_interval_ms.saturating_mul(2) {
            problems.push(
                "cluster.group_linger_ms is at least twice cluster.group_seek_interval_ms"
                    .to_owned(),
            );
        }
        problems
    }

    /// The faults of the settings of regions.
    fn region_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let names = "1 to 32 letters, digits, `-` and `_`";
        let Some(own) = &self.region else {
            for (name, is_set) in [
                ("region_topics", !self.region_topics.is_empty()),
                ("remote_regions", !self.remote_regions.is_empty()),
            ] {
                if is_set {
                    problems.push(format!("cluster.{name} needs cluster.region"));
                }
            }
            return problems;
        };
        if !is_name(own) {
            problems.push(format!("cluster.region is {names}"));
        }
        let mut seen = vec![own.as_str()];
        let mut domains = Vec::new();
        for (number, remote) in (1..).zip(&self.remote_regions) {
            let of = format!("cluster.remote_regions {number}");
            let name = &remote.name;
            if !is_name(name) {
                problems.push(format!("{of}: `{name}` is no name: {names}"));
            } else if name == own {
                problems.push(format!("{of}: `{name}` is this region itself"));
            } else if seen.contains(&name.as_str()) {
                problems.push(format!("{of}: `{name}` is there twice"));
            }
            seen.push(name);
            let domain = remote.domain();
            if !is_name(domain) {
                problems.push(format!(
                    "{of}: the domain `{domain}` of `{name}` is no name: {names}"
                ));
            } else if domains.contains(&domain) {
                problems.push(format!(
                    "{of}: the domain `{domain}` is another region's, too"
                ));
            }
            domains.push(domain);
        }
        for (at, filter) in self.region_topics.iter().enumerate() {
            let why = if filter.starts_with('$') {
                "begins with `$`: such topics stay on their node"
            } else if sterna_mqtt::topic::check_filter(filter).is_err() {
                "is no topic filter"
            } else if self.region_topics[..at].contains(filter) {
                "is there twice"
            } else {
                continue;
            };
            problems.push(format!("cluster.region_topics: `{filter}` {why}"));
        }
        problems
    }

    /// The promises of a configuration that a cluster does not keep yet.
    fn promises(config: &Config) -> Vec<String> {
        let mut problems = Vec::new();
        if config.store.enabled {
            problems.push(
                "cluster: what sessions have is kept in NATS, and not in a node's own store: set \
                 store.enabled = false"
                    .to_owned(),
            );
        }
        for (number, queue) in (1..).zip(&config.amqp.queues) {
            if (queue.filter.as_ref()).is_some_and(|filter| filter.starts_with('$')) {
                problems.push(format!(
                    "amqp.queue {number}: in a cluster topics that begin with `$` stay on their node: `{}` cannot have such a filter",
                    queue.name
                ));
            }
        }
        problems
    }

    /// The files that it names, with the settings' names.
    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        [
            ("cluster.credentials_file", &self.credentials_file),
            ("cluster.password_file", &self.password_file),
            ("cluster.ca", &self.ca),
            ("cluster.certificate", &self.certificate),
            ("cluster.key", &self.key),
        ]
        .into_iter()
        .filter_map(|(name, path)| Some((name, path.as_deref()?)))
    }
}

impl RemoteRegion {
    /// The domain of its JetStream.
    pub(crate) fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or(&self.name)
    }
}

/// A URL for the log, without its user and password.
fn without_credentials(url: &str) -> String {
    match url.rfind('@') {
        Some(at) if !url.contains("://") => format!("…{}", &url[at..]),
        _ => without_secrets(url).into_owned(),
    }
}

/// A server of NATS, as its URL has it.
#[derive(PartialEq, Eq, Debug)]
struct Server {
    is_encrypted: bool,
    is_loopback: bool,
}

impl Server {
    fn parse(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or("has no scheme: nats:// or tls://")?;
        let is_encrypted = match scheme {
            "nats" => false,
            "tls" => true,
            _ => return Err("has a scheme that is neither nats:// nor tls://"),
        };
        if rest.contains('@') {
            return Err(
                "has credentials in it: they belong into cluster.credentials_file or \
                 cluster.password_file",
            );
        }
        let (host, port) = rest.rsplit_once(':').ok_or("has no port")?;
        if port.parse::<u16>().is_err() || host.is_empty() {
            return Err("has no host and port");
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_loopback = host == "localhost"
            || (host.parse::<std::net::IpAddr>()).is_ok_and(|address| address.is_loopback());
        Ok(Self {
            is_encrypted,
            is_loopback,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cluster: Cluster) -> Config {
        let mut config = Config {
            cluster: Cluster {
                node: Some("a".to_owned()),
                ..cluster
            },
            ..Config::default()
        };
        config.store.enabled = false;
        config
    }

    fn problems(config: &Config) -> Vec<String> {
        config.cluster.problems(config)
    }

    fn at(url: &str) -> Cluster {
        Cluster {
            nats: vec![url.to_owned()],
            ..Cluster::default()
        }
    }

    #[test]
    fn without_servers_nothing_is_asked_of_it() {
        let cluster = Cluster {
            name: "not a name".to_owned(),
            ..Cluster::default()
        };
        assert!(problems(&config(cluster)).is_empty());
    }

    #[test]
    fn what_crosses_a_network_is_encrypted_or_said_to_be_not() {
        for url in [
            "nats://127.0.0.1:4222",
            "nats://[::1]:4222",
            "nats://localhost:4222",
            "tls://nats.example:4222",
        ] {
            assert_eq!(problems(&config(at(url))), [""; 0], "{url}");
        }
        let open = at("nats://nats.example:4222");
        assert_eq!(problems(&config(open.clone())).len(), 1);
        let said = Cluster {
            allow_plaintext_beyond_loopback: true,
            ..open
        };
        assert!(problems(&config(said)).is_empty());
        for url in [
            "nats.example:4222",
            "http://localhost:4222",
            "nats://localhost",
            "nats://:4222",
            "nats://user:secret@localhost:4222",
        ] {
            assert_eq!(problems(&config(at(url))).len(), 1, "{url}");
        }
    }

    #[test]
    fn what_a_cluster_does_not_keep_is_refused_at_the_start() {
        let mut promising = config(at("nats://localhost:4222"));
        promising.store.enabled = true;
        promising.amqp.queues.push(super::super::Queue {
            name: "local".to_owned(),
            filter: Some("$SYS/#".to_owned()),
            ..super::super::Queue::default()
        });
        let problems = problems(&promising);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("store.enabled"));
        assert!(problems[1].contains("amqp.queue"));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let cluster = Cluster {
            name: "a.b".to_owned(),
            user: Some("u".to_owned()),
            key: Some("/nowhere".into()),
            lease_ms: 10,
            absence_ms: 5,
            group_seek_interval_ms: 5,
            group_linger_ms: 9,
            ..at("nats://localhost:4222")
        };
        let problems = problems(&config(cluster));
        for name in [
            "cluster.name",
            "cluster.user",
            "cluster.certificate",
            "cluster.key",
            "cluster.absence_ms",
            "cluster.group_linger_ms",
        ] {
            let named = problems.iter().any(|problem| problem.starts_with(name));
            assert!(named, "{name}: {problems:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_regions_is_named() {
        let remote = |name: &str, domain: Option<&str>| RemoteRegion {
            name: name.to_owned(),
            domain: domain.map(str::to_owned),
        };
        let nowhere = Cluster {
            region_topics: vec!["a/#".to_owned()],
            remote_regions: vec![remote("south", None)],
            ..at("nats://localhost:4222")
        };
        assert_eq!(
            problems(&config(nowhere)),
            [
                "cluster.region_topics needs cluster.region",
                "cluster.remote_regions needs cluster.region"
            ]
        );
        let right = Cluster {
            region: Some("north".to_owned()),
            region_topics: vec!["a/#".to_owned(), "+/b".to_owned()],
            remote_regions: vec![remote("south", None), remote("east", Some("hub"))],
            ..at("nats://localhost:4222")
        };
        assert_eq!(problems(&config(right.clone())), [""; 0]);
        let wrong = Cluster {
            region: Some("n.1".to_owned()),
            region_topics: ["a/#", "a/#/b", "$SYS/#", "a/#", ""]
                .map(str::to_owned)
                .to_vec(),
            remote_regions: vec![
                remote("south", None),
                remote("south", Some("x.y")),
                remote("n.1", Some("south")),
                remote("", Some("z")),
            ],
            ..right
        };
        let problems = problems(&config(wrong));
        for part in [
            "cluster.region is 1 to 32",
            "`south` is there twice",
            "the domain `x.y` of `south`",
            "the domain `south` is another",
            "`n.1` is no name",
            "`` is no name",
            "region_topics: `a/#/b` is no topic filter",
            "region_topics: `$SYS/#` begins",
            "region_topics: `a/#` is there twice",
            "region_topics: `` is no topic filter",
        ] {
            let is_there = problems.iter().any(|problem| problem.contains(part));
            assert!(is_there, "{part}: {problems:?}");
        }
    }

    #[test]
    fn no_fault_of_a_url_shows_its_credentials() {
        assert_eq!(
            without_credentials("nats://bob:s3cret@p@[::1]:4222"),
            "nats://…@[::1]:4222"
        );
        assert_eq!(without_credentials("bob:s3cret@host:1"), "…@host:1");
        assert_eq!(without_credentials("nats://host:1"), "nats://host:1");
    }
}
