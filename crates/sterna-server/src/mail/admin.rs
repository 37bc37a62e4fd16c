//! Questions of one shard to all shards, and the answers.

use crate::metrics::Figures;

/// A question to all shards, or one shard's answer.
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
}

/// The answer of one shard.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The shard goes on.
    Present,
    /// Its counts.
    Figures(Box<Figures>),
}

/// The subject of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    /// Proof that the shard goes on.
    Presence,
    /// The counts of the shard.
    Figures,
}
