//! Senders' links that are taken from where they were attached before, and the ends of nodes that were made for links.

use std::sync::Arc;

use sterna_amqp::connection::LinkId;
use sterna_net::ConnectionId;

/// A word about a link that is attached anew, on another connection, or about the node of a link.
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
    /// A node that was made for a link ends when its queue, which the shard has, is empty.
    LookAtNode { topic: Arc<str> },
    /// A node is gone to which the connection has a link of this number.
    NodeGone {
        connection: ConnectionId,
        number: u64,
    },
    /// A queue that was made for a link is gone, and the shard has its anchor.
    EndQueue { name: Box<str> },
}

/// Where a link is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    pub(crate) connection: ConnectionId,
    pub(crate) link: LinkId,
}
