//! Questions about HTTP sessions of other shards, and the answers.

use sterna_net::ConnectionId;

/// A question about an HTTP session, or the answer.
#[derive(Debug)]
pub struct HttpLetter(pub(crate) Body);

#[derive(Debug)]
pub(crate) enum Body {
    Question {
        client_id: Box<str>,
        work: Work,
        from: From,
        /// Shards that it may still be passed on to.
        hops: u8,
    },
    Answer {
        from: From,
        done: Result<Done, WorkError>,
    },
}

/// Whose question it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From {
    pub(crate) shard: usize,
    pub(crate) connection: ConnectionId,
    /// Number of the request on its connection.
    pub(crate) exchange: u64,
}

/// What is asked of a session.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// To say what it holds.
    Describe,
    /// To be done with messages.
    Acknowledge(Acknowledge),
}

/// Which messages are done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Acknowledge {
    UpTo(u64),
    Each(Vec<u64>),
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Done {
    /// What a session holds.
    Described(serde_json::Value),
    Acknowledged,
}

/// Why nothing came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WorkError {
    /// There is no such session.
    NoSession,
    /// No message of the session has this id yet.
    UnknownId,
    /// The session is on another shard, or on its way between shards.
    Elsewhere,
}
