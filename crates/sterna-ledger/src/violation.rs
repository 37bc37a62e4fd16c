//! The promises of a broker, and the text of a violation.

use std::fmt;

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Promise {
    /// An acknowledged message is delivered to every durable reader that had asked for it.
    Kept,
    /// A message that is sent and read exactly once is not doubled.
    Once,
    /// A publisher's messages on a topic come in its order, repetitions aside.
    Order,
    /// A reader gets only messages that were published and that it has asked for.
    Asked,
    /// Bytes come as they were sent.
    Intact,
    /// A transaction is seen whole or not at all.
    Whole,
    /// A session, link or idempotency key that was acknowledged is there after a restart.
    Remembered,
    /// The retained message is the newest one that was acknowledged, or a later one.
    Newest,
    /// The broker starts again, lives until it is killed, and answers.
    Serving,
}

impl Promise {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 9] = [
        Self::Kept,
        Self::Once,
        Self::Order,
        Self::Asked,
        Self::Intact,
        Self::Whole,
        Self::Remembered,
        Self::Newest,
        Self::Serving,
    ];

    /// One word for a breach of it.
    #[must_use]
    pub const fn breach(self) -> &'static str {
        match self {
            Self::Kept => "lost",
            Self::Once => "doubled",
            Self::Order => "out of order",
            Self::Asked => "unasked",
            Self::Intact => "changed",
            Self::Whole => "torn",
            Self::Remembered => "forgotten",
            Self::Newest => "not newest",
            Self::Serving => "not served",
        }
    }
}

/// A breach that was seen.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which promise.
    pub promise: Promise,
    /// The broker's life in which it was seen, from 1.
    pub life: usize,
    /// Which message, publisher and reader, and when.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            promise,
            life,
            text,
        } = self;
        write!(f, "{} (seen in life {life}): {text}", promise.breach())
    }
}
