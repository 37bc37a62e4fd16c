//! Senders' links that are taken from where they were attached before.

use sterna_amqp::connection::LinkId;
use sterna_net::ConnectionId;

/// A word about a link that is attached anew, on another connection.
#[derive(Debug)]
pub struct AmqpLetter(pub(crate) Body);

#[derive(Debug)]
pub(crate) enum Body {
    /// A link has come back elsewhere: the one before is to end.
    Steal {
        name: Box<str>,
        from: Place,
        to: Place,
    },
    /// It has ended, and nothing of it is taken any more.
    Stolen { name: Box<str>, to: Place },
}

/// Where a link is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    pub(crate) connection: ConnectionId,
    pub(crate) link: LinkId,
}
