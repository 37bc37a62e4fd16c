//! Questions of one shard to others, and the answers.

use bytes::Bytes;
use serde_json::Value;
use sterna_broker::SessionName;
use sterna_cluster::{Answerer, NodeAnswer};
use sterna_net::ConnectionId;

use crate::control::Obeyed;
use crate::metrics::Figures;
use crate::watch::{Events, Subject};

use super::ranking::{Rank, RankBy};

/// A question to a shard, or its answer.
#[derive(Debug)]
pub struct AdminLetter(pub(crate) Body);

#[derive(Debug)]
pub(crate) enum Body {
    Question {
        /// The shard that asks.
        from: usize,
        /// The number of the question there.
        number: u64,
        ask: Ask,
    },
    Answer {
        number: u64,
        /// The shard that answers.
        shard: usize,
        answer: Answer,
    },
    /// A question of this node, or of another one, that the door answers as a request.
    Asked { question: Bytes, answer: Answerer },
    /// Events that a node has seen for a trace.
    Traced {
        /// The number of the trace here.
        number: u64,
        node: Box<str>,
        said: Said,
    },
    /// To begin a trace.
    Watch {
        /// The shard that asks.
        from: usize,
        /// The number of the trace there.
        number: u64,
        subject: Subject,
    },
    /// To end a trace.
    Unwatch { from: usize, number: u64 },
    /// Events that a shard has seen.
    Seen(Events),
}

/// The answer of one shard.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The shard goes on.
    Present,
    /// Its counts.
    Figures(Box<Figures>),
    /// To a query of the admin API.
    Found(Found),
    /// The state of the cluster.
    Report(Box<sterna_cluster::Report>),
    /// The outcome of an order to the process.
    Obeyed(Obeyed),
    /// The answer of a node.
    Node(Said),
}

/// The answer of a node to a request.
#[derive(Debug)]
pub(crate) enum Said {
    /// Status, content (`null` for none), and bytes of the content.
    Answer(u16, Value, usize),
    /// It has more bytes than it may.
    TooLarge,
    /// There is none, or none that is understood.
    Away,
}

impl Said {
    /// The form of an answer between nodes: the status, a space, and the content.
    pub(crate) fn write(status: u16, content: &[u8]) -> Vec<u8> {
        let mut out = format!("{status} ").into_bytes();
        out.extend_from_slice(content);
        out
    }

    /// Reads that form.
    pub(crate) fn read(answer: &[u8]) -> Self {
        let read = || {
            let (status, content) = answer.split_at_checked(4)?;
            let status = std::str::from_utf8(status).ok()?.trim_end().parse().ok()?;
            let value = if content.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(content).ok()?
            };
            Some(Self::Answer(status, value, content.len()))
        };
        read().unwrap_or(Self::Away)
    }
}

impl From<NodeAnswer> for Said {
    fn from(answer: NodeAnswer) -> Self {
        match answer {
            NodeAnswer::Said(answer) => Self::read(&answer),
            NodeAnswer::TooLarge => Self::TooLarge,
            NodeAnswer::Away => Self::Away,
        }
    }
}

/// The things that a shard has found, as the API writes them.
#[derive(Debug)]
pub(crate) enum Found {
    /// It has nothing by that name.
    Nothing,
    /// Another node of the cluster has the queue; `None` where none has it at the moment.
    Elsewhere(Option<Box<str>>),
    /// The one thing.
    One(Value),
    /// Some of many, and where to go on.
    Page(Vec<Value>, Option<u64>),
    /// Some of many, and where to go on: a place, and the filter there behind which to go on.
    Part(Vec<Value>, Option<(usize, Option<Box<str>>)>),
    /// The first of some in an order, whether there were more, and where to go on.
    Ranked(Vec<(Rank, Value)>, bool, Option<u64>),
    /// Of the things that were asked for by number, those that the shard has.
    Some(Vec<(usize, Value)>),
}

/// The subject of a question.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Proof that the shard goes on.
    Presence,
    /// The counts of the shard, for a scrape: paths of clients are surveyed from then on.
    Scrape,
    /// The counts of the shard.
    Figures,
    /// A query of the admin API.
    Query(Query),
}

/// A question of the admin API to a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Query {
    /// Connections, from a place on.
    Clients { window: Window, whose: Whose },
    /// The first connections in an order, of some from a place on.
    Ranked {
        window: Window,
        whose: Whose,
        order: RankBy,
        /// Those behind it.
        after: Option<Rank>,
    },
    /// One connection.
    Client(ConnectionId),
    /// To end a connection.
    Disconnect(ConnectionId),
    /// Sessions, from a place on.
    Sessions { window: Window, whose: Whose },
    /// A session.
    Session(SessionName),
    /// To end a session. `append` is the one that keeps it, once it has ended; 0 for none.
    EndSession {
        session: SessionName,
        append: Option<u64>,
    },
    /// To end the sessions of a user, or of clients without one, from a place on, where so many have ended.
    EndSessionsOf {
        user: Option<Box<str>>,
        from: usize,
        ended: usize,
        /// The append that keeps it, once it is done.
        append: Option<u64>,
    },
    /// To remove a queue whose session is here. `append` is the one that keeps that, once it is done; 0 for none.
    RemoveQueue { name: Box<str>, append: Option<u64> },
    /// Subscriptions of all sessions, from a place on and behind a filter there.
    AllSubscriptions {
        window: Window,
        behind: Option<Box<str>>,
        /// Those that get messages of this topic.
        topic: Option<Box<str>>,
        /// Those of exactly this filter.
        filter: Option<Box<str>>,
    },
    /// Subscriptions of a session, behind a filter.
    Subscriptions {
        session: SessionName,
        after: Option<Box<str>>,
        limit: usize,
    },
    /// Queues by their shared subscriptions, those of them that the shard has.
    Queues(Vec<Box<str>>),
    /// Messages that wait in a queue, behind a place.
    Messages {
        queue: Box<str>,
        after: Option<u64>,
        limit: usize,
    },
    /// To remove messages that wait in a queue.
    Purge { queue: Box<str>, limit: usize },
    /// To move them to the topic of another queue.
    Move {
        queue: Box<str>,
        topic: Box<str>,
        limit: usize,
        /// Those that were moved before the next had to be read in the log.
        moved: usize,
    },
}

/// The choice of connections or sessions: those of one name, of one user, or both.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Whose {
    pub(crate) name: Option<Box<str>>,
    pub(crate) user: Option<Box<str>>,
    /// Only those without a user.
    pub(crate) is_nobodys: bool,
}

impl Whose {
    /// Whether it is a connection of this client and user.
    pub(crate) fn is(&self, name: Option<&str>, user: Option<&str>) -> bool {
        let fits = |wanted: &Option<Box<str>>, own| wanted.is_none() || own == wanted.as_deref();
        let is_whose = !self.is_nobodys || user.is_none();
        is_whose && fits(&self.name, name) && fits(&self.user, user)
    }
}

/// A part of many things that a shard has in places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// The first place.
    pub(crate) from: usize,
    /// Most things.
    pub(crate) limit: usize,
    /// Most places.
    pub(crate) scan: usize,
}
