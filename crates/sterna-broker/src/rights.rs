//! Rights of sessions, as the front door's rules say. The broker asks when a subscription is made, when a will is
//! due, and again when other rules are in force ([`Broker::set_rights`](crate::Broker::set_rights)).

use std::fmt;
use std::sync::Arc;

use crate::message::Message;

/// From where a session's client speaks, in the front door's words: the broker keeps and compares it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Endpoint {
    /// The client's address (of IPv4, the mapped one); `None` where it is not known.
    pub address: Option<[u8; 16]>,
    /// A number for the transport.
    pub transport: u8,
    /// A number for the listener; `None` where it is not known.
    pub listener: Option<u16>,
}

/// The client whose rights are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder<'a> {
    /// The session's client identifier.
    pub client_id: &'a str,
    /// The user whose session it is; `None` for nobody in particular.
    pub owner: Option<&'a str>,
    /// From where its client speaks, or has spoken last; `None` if the front door has not said so
    /// ([`Broker::set_endpoint`](crate::Broker::set_endpoint)) since the start.
    pub endpoint: Option<Endpoint>,
}

/// The part of a subscription that a session may get.
#[derive(Clone, Debug)]
pub enum Right {
    /// Nothing: there is no such subscription.
    Nothing,
    /// All that matches.
    Everything,
    /// The permitted part.
    Some(Arc<dyn Permit>),
}

/// Decides by topic name what a subscription delivers. It is asked on any shard, within its turn: it
/// must be quick, and always say the same of the same topic.
pub trait Permit: fmt::Debug + Send + Sync {
    /// Whether messages of a topic may be delivered.
    fn permits(&self, topic: &str) -> bool;

    /// Whether a message of a queue may be delivered, which may have come there from another topic.
    fn permits_message(&self, message: &Message) -> bool {
        self.permits(message.topic())
    }
}

/// The beginning of the topics of queues. Messages may have come there from other topics, as dead letters do, so each is judged.
pub const QUEUE_TOPICS: &str = "queue/";

/// The rules, as the broker asks them.
pub trait Rights: fmt::Debug + Send + Sync {
    /// Tells these rules from others, also in another process. Where a restart finds other rules, all sessions are judged
    /// anew.
    fn digest(&self) -> [u8; 32];

    /// Whether there is still a user of that name, so that a session of it may live on.
    fn admits(&self, holder: Holder<'_>) -> bool;

    /// The right of a session to a subscription with a filter; of a shared subscription, the filter follows the
    /// share name. `queue` is the share name where its queue is kept
    /// ([`SubscribeOptions::keep`](crate::SubscribeOptions::keep)).
    fn reads(&self, holder: Holder<'_>, filter: &str, queue: Option<&str>) -> Right;

    /// The same of a subscription that was allowed when it was made, when it is judged again.
    fn still_reads(&self, holder: Holder<'_>, filter: &str, queue: Option<&str>) -> Right {
        self.reads(holder, filter, queue)
    }

    /// The same of a subscription that has lost its right by what was said of its holder. It gets nothing while this is
    /// nothing.
    fn reads_again(&self, holder: Holder<'_>, filter: &str, queue: Option<&str>) -> Right {
        self.still_reads(holder, filter, queue)
    }

    /// Whether rules deny a subscription whatever is said of its holder. Its right comes back with other rules then, by
    /// [`still_reads`](Self::still_reads), also while the holder is away.
    fn denies_whatever(&self, holder: Holder<'_>, filter: &str, queue: Option<&str>) -> bool {
        let _ = (holder, filter, queue);
        false
    }

    /// Whether other things may be said of a holder each time that its client comes back. Its session is then
    /// judged each time.
    fn varies(&self, holder: Holder<'_>) -> bool {
        let _ = holder;
        false
    }

    /// Whether a message that waits in the session's own queue may still be delivered.
    fn receives(&self, holder: Holder<'_>, topic: &str) -> bool;

    /// The same, also by the topics from which a message has come to its own one.
    fn receives_message(&self, holder: Holder<'_>, message: &Message) -> bool {
        self.receives(holder, message.topic())
    }

    /// Whether a rule denies a message to a session that may read the queue where it waits.
    fn denies(&self, holder: Holder<'_>, message: &Message) -> bool {
        let _ = (holder, message);
        false
    }

    /// Sessions that the holder's user may have, this one included, where there is none of this name;
    /// `None` for any number.
    fn most_sessions(&self, holder: Holder<'_>) -> Option<u32> {
        let _ = holder;
        None
    }

    /// Whether the session's will may be published.
    fn publishes(&self, holder: Holder<'_>, will: &Message) -> bool;

    /// The same of a will that was allowed by rights which came with the client, when the client may be away. It is asked
    /// instead for a day after the end of the client's connection.
    fn still_publishes(&self, holder: Holder<'_>, will: &Message, now_ms: u64) -> bool {
        let _ = now_ms;
        self.publishes(holder, will)
    }
}
