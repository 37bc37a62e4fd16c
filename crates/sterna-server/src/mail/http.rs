//! Questions about HTTP sessions of other shards, and the answers.

use serde::{Deserialize, Serialize};
use sterna_broker::SessionName;
use sterna_cluster::Answerer;
use sterna_net::ConnectionId;

/// A question about an HTTP session, or the answer.
#[derive(Debug)]
pub struct HttpLetter(pub(crate) Body);

/// Shards that a question about a session is passed on to, if the session moves meanwhile.
pub(crate) const MAXIMUM_HOPS: u8 = 8;

impl HttpLetter {
    /// A question of another node about a session; `None` where it is not understood.
    pub(crate) fn of_node(
        session: &SessionName,
        question: &[u8],
        answer: Answerer,
    ) -> Option<Self> {
        let work = serde_json::from_slice(question).ok()?;
        Some(Self(Body::OfNode {
            session: session.clone(),
            work,
            answer,
            hops: MAXIMUM_HOPS,
        }))
    }
}

#[derive(Debug)]
pub(crate) enum Body {
    Question {
        session: SessionName,
        work: Work,
        from: From,
        /// Shards that it may still be passed on to.
        hops: u8,
    },
    Answer {
        from: From,
        done: Result<Done, WorkError>,
    },
    /// The same question, of another node's client.
    OfNode {
        session: SessionName,
        work: Work,
        answer: Answerer,
        /// See [`Body::Question`].
        hops: u8,
    },
}

/// The place where a question comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From {
    pub(crate) shard: usize,
    pub(crate) connection: ConnectionId,
    /// Number of the request on its connection.
    pub(crate) exchange: u64,
}

/// The work that a session is asked for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    /// To describe the session.
    Describe,
    /// To acknowledge messages.
    Acknowledge(Acknowledge),
    /// To end the session.
    End,
}

/// The messages that are acknowledged.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Acknowledge {
    UpTo(u64),
    Each(Vec<u64>),
}

/// The result of the work.
#[derive(PartialEq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Done {
    /// The description of a session.
    Described(serde_json::Value),
    Acknowledged,
    Ended,
}

/// The reason why the work was not done.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkError {
    /// There is no such session.
    NoSession,
    /// No message of the session has this id yet.
    UnknownId,
    /// The session is on another shard, or on its way between shards.
    Elsewhere,
    /// The cluster gives no answer.
    Away,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_of_nodes_come_back() {
        let each = Acknowledge::Each(vec![1, u64::MAX]);
        let works = [
            (Work::Describe, r#""describe""#),
            (Work::End, r#""end""#),
            (
                Work::Acknowledge(Acknowledge::UpTo(7)),
                r#"{"acknowledge":{"up_to":7}}"#,
            ),
            (
                Work::Acknowledge(each),
                r#"{"acknowledge":{"each":[1,18446744073709551615]}}"#,
            ),
        ];
        for (work, text) in works {
            assert_eq!(serde_json::to_string(&work).unwrap(), text);
            assert_eq!(serde_json::from_str::<Work>(text).unwrap(), work);
        }
        let described = Done::Described(serde_json::json!({"pending": null}));
        for done in [
            Ok(described),
            Ok(Done::Acknowledged),
            Err(WorkError::UnknownId),
        ] {
            let text = serde_json::to_vec(&done).unwrap();
            let read: Result<Done, WorkError> = serde_json::from_slice(&text).unwrap();
            assert_eq!(read, done);
        }
    }
}
