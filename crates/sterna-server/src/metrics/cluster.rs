//! Figures of a cluster's node: other nodes, and the traffic with them.

use std::sync::Arc;

use sterna_broker::PeerGate;
use sterna_cluster::{Asker, Status};

use super::page::Page;

/// State of the engine of a cluster, and its backlog.
#[derive(Clone, Debug)]
pub struct ClusterSource {
    /// State of the engine.
    pub status: Arc<Status>,
    /// Backlog of the engine.
    pub gate: Arc<PeerGate>,
    /// The way of questions about it.
    pub asker: Asker,
    /// Name of this node.
    pub node: Box<str>,
    /// Bytes that NATS keeps at most for sessions that outlive their connections.
    pub maximum_log_bytes: u64,
}

/// Writes the figures; all are 0 where there is no cluster.
pub(super) fn write(source: Option<&ClusterSource>, page: &mut Page<'_>) {
    let none = Status::default();
    let status = source.map_or(&none, |source| &*source.status);
    let gate = |number: fn(&PeerGate) -> u64| source.map_or(0, |source| number(&source.gate));
    let is_ready = source.is_some() && status.trouble().is_none();
    for (name, help, number) in [
        (
            "sterna_cluster_ready",
            "1 while the node takes part in its cluster as it should",
            u64::from(is_ready),
        ),
        (
            "sterna_cluster_connected",
            "1 while a server of NATS is connected",
            u64::from(status.is_connected()),
        ),
        (
            "sterna_cluster_open",
            "1 while messages of QoS 1 and 2 are taken for other nodes",
            gate(|gate| u64::from(gate.is_open())),
        ),
        (
            "sterna_cluster_wrong_clocks",
            "Nodes and servers of NATS, this node among them, whose clocks differ by more than cluster.maximum_clock_skew_ms",
            status.clocks().wrong.len() as u64,
        ),
        (
            "sterna_cluster_nodes_here",
            "Other nodes that were heard of within the lease",
            status.nodes_here.get(),
        ),
        (
            "sterna_cluster_nodes_away",
            "Other nodes that were not, and for which messages wait",
            status.nodes_away.get(),
        ),
        (
            "sterna_cluster_filters",
            "Filters that other nodes have readers for",
            status.filters.get(),
        ),
        (
            "sterna_cluster_sessions",
            "Sessions of this node that no other has",
            status.sessions_owned.get(),
        ),
        (
            "sterna_cluster_sessions_claiming",
            "Sessions whose records are being written",
            status.sessions_claimed.get(),
        ),
        (
            "sterna_cluster_waiting_ends",
            "Ends of sessions, keys, filters, bans and retained messages that NATS keeps for a time, and that this node \
             removes then",
            status.ends.get(),
        ),
        (
            "sterna_cluster_node_names",
            "Names of nodes that the cluster had had when this one joined",
            status.node_names.get(),
        ),
        (
            "sterna_cluster_log_bytes",
            "Bytes of messages that NATS keeps for sessions, and that a session may still need",
            status.log_bytes.get(),
        ),
        (
            "sterna_cluster_region_bytes",
            "Bytes of messages in NATS that other regions do not have yet",
            status.region_bytes.get(),
        ),
        (
            "sterna_cluster_waiting_bytes",
            "Bytes of messages that wait in this process for NATS",
            gate(PeerGate::waiting_bytes),
        ),
    ] {
        page.gauge(name, help, number);
    }
    for (name, help, number) in [
        (
            "sterna_cluster_connects",
            "Connections to a server of NATS",
            status.connects.get(),
        ),
        (
            "sterna_cluster_sent_messages",
            "Messages sent to other nodes; one for several nodes counts once for each",
            status.sent_messages.get(),
        ),
        (
            "sterna_cluster_sent_batches",
            "Batches of messages sent to other nodes",
            status.sent_batches.get(),
        ),
        (
            "sterna_cluster_sent_bytes",
            "Bytes of these batches",
            status.sent_bytes.get(),
        ),
        (
            "sterna_cluster_given_batches",
            "Batches of QoS 1 and 2 that another node has taken directly",
            status.given_batches.get(),
        ),
        (
            "sterna_cluster_inbox_batches",
            "Batches of QoS 1 and 2 that were appended to another node's inbox",
            status.inbox_batches.get(),
        ),
        (
            "sterna_cluster_received_messages",
            "Messages received from other nodes",
            status.received_messages.get(),
        ),
        (
            "sterna_cluster_received_batches",
            "Batches of messages received from other nodes",
            status.received_batches.get(),
        ),
        (
            "sterna_cluster_repeated_batches",
            "Batches that came again and were left out",
            status.repeated_batches.get(),
        ),
        (
            "sterna_cluster_unreadable_batches",
            "Batches, records and other messages of NATS that could not be read",
            status.unreadable_batches.get(),
        ),
        (
            "sterna_cluster_region_missed",
            "Entries of other regions' messages that have not come",
            status.region_missed.get(),
        ),
        (
            "sterna_cluster_failed_attempts",
            "Attempts to hand something to NATS that failed, and were made again",
            status.failed_attempts.get(),
        ),
        (
            "sterna_cluster_log_requests",
            "Requests to NATS for entries of the log that readers have not come to",
            status.log_requests.get(),
        ),
        (
            "sterna_cluster_unkept_sessions",
            "Times that a session had more than NATS takes in one message, and was ended as it was kept last",
            status.unkept_sessions.get(),
        ),
        (
            "sterna_cluster_dropped_messages",
            "Messages that a node wanted and has missed",
            gate(PeerGate::dropped),
        ),
        (
            "sterna_cluster_refused_messages",
            "Publications refused because NATS could not take them",
            gate(PeerGate::refused),
        ),
    ] {
        page.counter(name, help, number);
    }
}
