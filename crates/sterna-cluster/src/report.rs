//! The report of a node on its cluster: the nodes that are there, and the state of NATS.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A cluster as one node sees it, with what the others say of themselves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the node that reports.
    pub node: String,
    /// All nodes, by name; the reporting one among them.
    pub nodes: Vec<NodeView>,
    /// The cluster's streams in NATS; empty where NATS does not answer.
    pub streams: Vec<StreamView>,
    /// Other regions, in the order of the configuration.
    pub regions: Vec<RegionView>,
    /// The facts that could not be learnt, one sentence each.
    pub problems: Vec<String>,
}

/// Another region, as this one sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RegionView {
    /// Its name.
    pub region: String,
    /// Entries of this region's messages that it has not said to have; `None` where NATS does not answer.
    pub waiting: Option<u64>,
    /// Milliseconds since it was last heard of; `None` where it was not since the node's start.
    pub heard_ms: Option<u64>,
    /// Entries of its messages that are still to come, as NATS knew when it last heard of them. `None` where NATS
    /// does not say.
    pub behind: Option<u64>,
}

/// A node as the reporting one sees it, with what it says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NodeView {
    /// Its name.
    pub node: String,
    /// `here`, `away` or `gone`.
    pub presence: &'static str,
    /// Filters for which it has readers, as the reporting node knows.
    pub filters: usize,
    /// Batches of messages in its inbox that it has not taken; `None` where NATS does not say.
    pub inbox_batches: Option<u64>,
    /// The node's own report; `None` where it does not answer.
    pub told: Option<NodeWord>,
}

/// The report of a node on itself, when it is asked. In an upgrade nodes of two programs ask each other: unknown fields
/// are passed over, and those that are missing have their defaults.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeWord {
    /// Its name.
    pub node: String,
    /// A number that is higher after each of its starts.
    pub incarnation: u64,
    /// Version of its program.
    pub version: String,
    /// Versions of the wire form that it reads, such as `1` or `1-2`.
    pub wire: String,
    /// `ready`, `draining`, or why it does not take part as it should.
    pub state: String,
    /// Its settings that all nodes are to have alike, by their names.
    pub settings: BTreeMap<String, String>,
    /// Name of the server of NATS that it is connected to.
    pub nats_server: String,
    /// Version of that server.
    pub nats_version: String,
    /// Bytes of messages that wait in its process for NATS.
    pub waiting_bytes: u64,
    /// Messages that it has received from other nodes since its start.
    pub received_messages: u64,
    /// Messages that it has sent to other nodes since its start, for each of them.
    pub sent_messages: u64,
}

/// A stream of the cluster, as NATS describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StreamView {
    /// Its name.
    pub stream: String,
    /// Messages in it.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Copies that NATS is to keep.
    pub replicas: usize,
    /// The server that leads; `None` for none, and for a single server.
    pub leader: Option<String>,
    /// The other servers with a copy.
    pub followers: Vec<FollowerView>,
}

/// A copy of a stream that does not lead.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FollowerView {
    /// Name of its server.
    pub server: String,
    /// Whether it has everything.
    pub is_current: bool,
    /// Whether the server is out of reach.
    pub is_offline: bool,
    /// Operations that it is behind; `None` where NATS does not say.
    pub lag: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of two versions ask each other.
    #[test]
    fn a_word_of_another_version_is_understood() {
        let newer = r#"{"node":"a","state":"ready","something_new":[1]}"#;
        let word: NodeWord = serde_json::from_str(newer).expect("understood");
        assert_eq!((&*word.node, &*word.state), ("a", "ready"));
        assert_eq!(word.incarnation, 0);
    }
}
