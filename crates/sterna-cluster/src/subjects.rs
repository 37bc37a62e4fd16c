//! The subjects of a cluster in NATS, each without the cluster's name: who publishes, who hears and who proves its rights
//! go by this one list. `docs/cluster-wire.md` says what each is for.
//!
//! A node, a digest or another part that is given may be a wildcard of NATS.

/// Questions of `sterna cluster status`.
pub(crate) const ASK: &str = "ask";
/// Names of nodes that drain.
pub(crate) const DRAIN: &str = "drain";
/// Names of those who export the cluster, for the audit logs of nodes.
pub(crate) const EXPORT: &str = "export";
/// Whether an import is under way.
pub(crate) const IMPORT: &str = "node.import";
/// Questions for the time.
pub(crate) const CLOCK: &str = "clock";
/// In place of a topic in the log: messages that were published together. No topic has it.
pub(crate) const TOGETHER: &str = "together";
/// Retained messages for other regions, and other messages.
pub(crate) const OUT_KINDS: [&str; 2] = ["out.r", "out.m"];
/// In place of the digest of a filter: nobody has anything any more of the process that is gone.
pub(crate) const SWEPT: &str = "swept";

/// A node's word.
pub(crate) fn alive(node: &str) -> String {
    format!("alive.{node}")
}

/// Batches of a node for another that may be missed.
pub(crate) fn to(node: &str, source: &str) -> String {
    format!("to.{node}.{source}")
}

/// Batches of a node for a process of another.
pub(crate) fn give(node: &str, incarnation: impl std::fmt::Display, source: &str) -> String {
    format!("give.{node}.{incarnation}.{source}")
}

/// Requests of operators at other nodes.
pub(crate) fn door(node: &str) -> String {
    format!("door.{node}")
}

/// Questions about sessions that a node has.
pub(crate) fn asked_for(node: &str) -> String {
    format!("for.{node}")
}

/// Sessions that have ended elsewhere.
pub(crate) fn ended(node: &str) -> String {
    format!("ended.{node}")
}

/// The last entry of this region's that another has.
pub(crate) fn taken(region: &str) -> String {
    format!("taken.{region}")
}

/// Where a node enters. The place of what it writes there is the incarnation of its process.
pub(crate) fn join(node: &str) -> String {
    format!("node.{node}.join")
}

/// A filter for which a node has readers, or [`SWEPT`].
pub(crate) fn want(node: &str, digest: &str) -> String {
    format!("node.{node}.want.{digest}")
}

/// The last entry that came from another region.
pub(crate) fn came(region: &str) -> String {
    format!("node.region.{region}.came.last")
}

/// A ban of the cluster.
pub(crate) fn ban(digest: &str) -> String {
    format!("ban.{digest}")
}

/// Batches of a node that wait for another.
pub(crate) fn inbox(node: &str, source: &str) -> String {
    format!("inbox.{node}.{source}")
}

/// The records of a session, or a key of a request.
pub(crate) fn kept(digest: &str) -> String {
    format!("kept.{digest}")
}

/// A session's record.
pub(crate) fn session(digest: &str) -> String {
    format!("session.{digest}")
}

/// A node's floor.
pub(crate) fn floor(node: &str) -> String {
    format!("floor.{node}")
}

/// A node's mark.
pub(crate) fn mark(node: &str) -> String {
    format!("mark.{node}")
}

/// Messages of a topic in the log, or [`TOGETHER`].
pub(crate) fn log(place: &str) -> String {
    format!("log.{place}")
}

/// The retained message of a topic.
pub(crate) fn retained(place: &str) -> String {
    format!("retained.{place}")
}

/// The first token of [`retained_of`].
pub(crate) const RETAINED_OF: &str = "retained-of";

/// The retained message of a topic in another region.
pub(crate) fn retained_of(region: &str, place: &str) -> String {
    format!("{RETAINED_OF}.{region}.{place}")
}

/// Messages of a topic for other regions, of one of [`OUT_KINDS`].
pub(crate) fn out(kind: &str, place: &str) -> String {
    format!("{kind}.{place}")
}
