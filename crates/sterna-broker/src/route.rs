//! Routes: how a subscription gets from the shard it was made on into every shard's index.

use std::sync::Arc;

use crate::api::SubscribeOptions;
use crate::fill::Fill;
use crate::message::{Message, Qos};
use crate::peers::Wanted;
use crate::queue_rules::QueueRules;
use crate::rights::Permit;

/// The facts that all deliveries of a subscription share. Most subscriptions have no identifier, hint and permit,
/// and so no context.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// Subscription Identifiers.
    pub(crate) identifiers: Box<[u32]>,
    /// The stream that asked, zero for none.
    pub(crate) hint: u64,
    /// The session's attendance in which it asked; the hint means nothing in a later one.
    pub(crate) attendance: u32,
    /// The part of its matching topics that it may get, if not all.
    pub(crate) permit: Option<Arc<dyn Permit>>,
    /// The absence of its right; `None` where that was never absent, or its client has all that changed meanwhile.
    pub(crate) rest: Option<Rest>,
}

/// A time in which a subscription has no right: it is there, and gets nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rest {
    /// When it lost its right.
    pub(crate) since_ms: u64,
    /// The route log's length then; `None` where an earlier process, or another node, noted it.
    pub(crate) length: Option<u64>,
    /// Whether the right is back. The client is yet to be sent the retained messages that have changed.
    pub(crate) is_over: bool,
    /// Whether rules took it, whatever is said of the client.
    pub(crate) is_by_rules: bool,
}

impl Rest {
    /// As one number of a record: zero for none.
    pub(crate) fn number(rest: Option<Self>) -> u64 {
        rest.map_or(0, |rest| {
            let flags = u64::from(rest.is_over) | u64::from(rest.is_by_rules) << 1;
            (rest.since_ms << 2 | flags) + 1
        })
    }

    /// The same back.
    pub(crate) fn of_number(number: u64) -> Option<Self> {
        let number = number.checked_sub(1)?;
        Some(Self {
            since_ms: number >> 2,
            length: None,
            is_over: number & 1 != 0,
            is_by_rules: number & 2 != 0,
        })
    }
}

impl Context {
    /// That of a subscription with these identifiers, and no more.
    pub(crate) fn of(identifiers: Box<[u32]>) -> Self {
        Self {
            identifiers,
            hint: 0,
            attendance: 0,
            permit: None,
            rest: None,
        }
    }

    /// Whether messages of a topic may be delivered because of the subscription.
    pub(crate) fn permits(&self, topic: &str) -> bool {
        !self.is_resting() && (self.permit.as_ref()).is_none_or(|permit| permit.permits(topic))
    }

    /// Whether a message of the subscription's queue may be delivered.
    pub(crate) fn permits_message(&self, message: &Message) -> bool {
        !self.is_resting()
            && (self.permit.as_ref()).is_none_or(|permit| permit.permits_message(message))
    }

    /// Whether the subscription has no right.
    pub(crate) fn is_resting(&self) -> bool {
        self.rest.is_some_and(|rest| !rest.is_over)
    }
}

/// A subscription's options, or those of all of one session's subscriptions that match a topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RouteFlags(u8);

impl RouteFlags {
    const QOS: u8 = 3;
    /// Skip what the session's own client published.
    const NO_LOCAL: u8 = 4;
    const RETAIN_AS_PUBLISHED: u8 = 8;
    /// The route leads to a shared subscription's queue.
    const GROUP: u8 = 16;
    /// Skip all but what the session's own client published: the complement, where subscriptions
    /// with and without no-local overlap.
    const ONLY_LOCAL: u8 = 32;
    /// A member keeps the shared subscription's queue; as a route's, the publisher has reserved
    /// room in it.
    const KEEP: u8 = 64;
    /// The session outlives its connection: what it is to get is appended to the log.
    const DURABLE: u8 = 128;

    pub(crate) const GROUP_ROUTE: Self = Self(Self::GROUP);
    pub(crate) const KEPT_GROUP_ROUTE: Self = Self(Self::GROUP | Self::KEEP);

    pub(crate) fn of(options: &SubscribeOptions) -> Self {
        let mut flags = options.qos as u8;
        if options.no_local {
            flags |= Self::NO_LOCAL;
        }
        if options.retain_as_published {
            flags |= Self::RETAIN_AS_PUBLISHED;
        }
        if options.keep {
            flags |= Self::KEEP;
        }
        Self(flags)
    }

    /// The options, as a store keeps them.
    pub(crate) const fn bits(self) -> u8 {
        self.0 & !(Self::DURABLE | Self::GROUP | Self::ONLY_LOCAL)
    }

    /// The options that a store had.
    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits & (Self::QOS | Self::NO_LOCAL | Self::RETAIN_AS_PUBLISHED | Self::KEEP))
    }

    /// The same options of a session that outlives its connection, or doesn't.
    pub(crate) const fn with_durable(self, is_durable: bool) -> Self {
        if is_durable {
            Self(self.0 | Self::DURABLE)
        } else {
            Self(self.0 & !Self::DURABLE)
        }
    }

    /// Whether the session outlives its connection.
    pub(crate) const fn outlives(self) -> bool {
        self.0 & Self::DURABLE != 0
    }

    /// Whether messages of QoS 1 and 2 for it are appended to the log.
    pub(crate) const fn is_durable(self) -> bool {
        self.outlives() && self.qos().is_acknowledged()
    }

    pub(crate) const fn qos(self) -> Qos {
        match self.0 & Self::QOS {
            0 => Qos::AtMostOnce,
            1 => Qos::AtLeastOnce,
            _ => Qos::ExactlyOnce,
        }
    }

    pub(crate) const fn is_group(self) -> bool {
        self.0 & Self::GROUP != 0
    }

    pub(crate) const fn keeps(self) -> bool {
        self.0 & Self::KEEP != 0
    }

    /// Whether it depends on the publisher who gets a message.
    pub(crate) const fn is_selective(self) -> bool {
        self.0 & (Self::NO_LOCAL | Self::ONLY_LOCAL) != 0
    }

    pub(crate) const fn no_local(self) -> bool {
        self.0 & Self::NO_LOCAL != 0
    }

    pub(crate) const fn only_local(self) -> bool {
        self.0 & Self::ONLY_LOCAL != 0
    }

    pub(crate) const fn retain_as_published(self) -> bool {
        self.0 & Self::RETAIN_AS_PUBLISHED != 0
    }

    /// The options of one delivery for two subscriptions. [MQTT-3.3.4-2]
    pub(crate) fn merged(self, other: Self) -> Self {
        let qos = (self.0 & Self::QOS).max(other.0 & Self::QOS);
        let retain = (self.0 | other.0) & Self::RETAIN_AS_PUBLISHED;
        Self(qos | retain)
    }

    pub(crate) const fn with_no_local(self) -> Self {
        Self(self.0 | Self::NO_LOCAL)
    }

    pub(crate) const fn with_only_local(self) -> Self {
        Self(self.0 | Self::ONLY_LOCAL)
    }
}

/// Where a subscriber's queue is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Place {
    pub(crate) shard: u16,
    /// Its slot on that shard; a group's number stands in for it among matches.
    pub(crate) slot: u32,
    /// Tells the sessions of a slot apart; zero for groups.
    pub(crate) generation: u32,
}

/// One queue that a topic's messages go to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) flags: RouteFlags,
    pub(crate) context: Option<Arc<Context>>,
}

/// A message for some of a shard's queues.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) message: Arc<Message>,
    /// Its place in the log; zero where it is not there.
    pub(crate) position: u64,
    pub(crate) targets: Arc<[Target]>,
}

/// An entry of the route log. Sessions with subscriptions, and groups, have numbers that are the
/// same on every shard.
#[derive(Clone, Debug)]
pub(crate) enum RouteUpdate {
    /// A session has a place, or has `moved` to another.
    Placed { id: u32, place: Place, moved: bool },
    /// A session subscribes, or replaces its subscription.
    Subscribed {
        id: u32,
        filter: Arc<str>,
        flags: RouteFlags,
        context: Option<Arc<Context>>,
    },
    /// A session sleeps: it reads what it subscribes to in the log. `is_kept` where that has something
    /// for it (QoS 1 and 2).
    Slept {
        id: u32,
        filter: Arc<str>,
        is_kept: bool,
    },
    /// A session ends a subscription.
    Unsubscribed { id: u32, filter: Arc<str> },
    /// A session joins a group, or changes its options. `filter` is whole, with `$share/NAME/`.
    Joined {
        group: u32,
        filter: Arc<str>,
        member: u32,
        flags: RouteFlags,
        context: Option<Arc<Context>>,
    },
    /// A group has its first member that keeps its queue or outlives its connection. Or it has none any more, or
    /// has got other rules.
    Kept {
        group: u32,
        filter: Arc<str>,
        fill: Option<Arc<Fill>>,
        rules: Option<Arc<QueueRules>>,
        /// Whether its messages of QoS 1 and 2 are appended to the log.
        is_durable: bool,
        /// Where the log ended when that began.
        since: u64,
    },
    /// Other nodes want, or want no more, what a filter matches.
    Peers { filter: Arc<str>, wanted: Wanted },
    /// Sessions that another node has from now on want what a filter matches, until that node has told so; or it
    /// has.
    HandedOver { filter: Arc<str>, holds: bool },
    /// A session leaves a group.
    Left { group: u32, member: u32 },
    /// A group's last member has left.
    GroupEnded { group: u32, filter: Arc<str> },
}

/// The part of a `$share/NAME/FILTER` that topics are matched against.
pub(crate) fn topics_of_shared(filter: &str) -> &str {
    filter.splitn(3, '/').nth(2).unwrap_or_default()
}
