//! Letters between shards. The caller carries it, in order per sender and receiver.

use core::net::SocketAddr;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::api::Selector;
use crate::attempts::{Comeback, Failures};
use crate::cursor::Reader;
use crate::holding::CrowdedReader;
use crate::message::{Message, Qos};
use crate::name::SessionName;
use crate::nodes::{Entry, NIL};
use crate::queues::Dead;
use crate::route::{Context, Parcel};
use crate::selecting::Lookup;
use crate::session::Subscription;
use crate::store::Record;

/// A letter from one shard's broker to another's. Letters from one shard to another must arrive in
/// the order they were taken; letters of different pairs may overtake each other.
#[derive(Debug)]
pub struct Mail<P>(pub(crate) Letter<P>);

/// A session's slot on a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) shard: u16,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

#[derive(Debug)]
pub(crate) enum Letter<P> {
    /// Messages for queues here.
    Deliver(Vec<Parcel>),
    /// Clients of yours wait for a reader of mine, which holds nobody any more.
    LetGo { reader: CrowdedReader },
    /// Tell other nodes this name, or no longer.
    Announce { name: Arc<str>, is_there: bool },
    /// Your index is far behind the route log.
    CatchUp,
    /// Say how far you have sent me what you publish.
    AskMark { from: u16 },
    /// All that I have published before this position of the log was sent before this letter.
    Mark { from: u16, position: u64 },
    /// A consumer came to me for the session you have in this slot.
    Claim(Claim),
    /// I have moved a session; answer when you know it.
    Fence { from: u16, fence: u32 },
    /// I know it, and what I sent you before is what there is.
    FenceAck { fence: u32 },
    /// The session you claimed; `None` if it ended.
    Handover {
        slot: u32,
        generation: u32,
        state: Option<Box<Moved<P>>>,
    },
    /// A shared subscription's message for one of its members.
    Assign(Box<Assign>),
    /// A member of the group is connected and takes N messages.
    Attend(Box<Attend>),
    /// A member of the group is no longer connected.
    Detach {
        group: u32,
        member: u32,
        attendance: u32,
    },
    /// A member has settled `credit` of the group's messages, or takes as many more.
    Credit {
        group: u32,
        member: u32,
        attendance: u32,
        credit: u32,
        /// Places in the log of what the group is done with.
        settled: Vec<u64>,
    },
    /// Take back what a member may be assigned.
    Recall(Recall),
    /// `taken` messages were taken back, and those assigned before are with you.
    Recalled {
        group: u32,
        slot: u32,
        generation: u32,
        attendance: u32,
        taken: u32,
    },
    /// End the subscriptions of those sessions to that filter.
    Unsubscribe {
        filter: Arc<str>,
        subscribers: Vec<u32>,
    },
    /// End the shared subscription of all its members, unless its queue is kept.
    Disband { group: u32 },
    /// End the session of that name, which you have.
    End { name: SessionName },
    /// The selector of a session of yours took too much work: its consumer is let go.
    TooDear {
        slot: u32,
        generation: u32,
        attendance: u32,
    },
    /// A browser takes up to `limit` of the queue's messages.
    Browse(Browse),
    /// The answer to a browser.
    Browsed(Box<Browsed>),
    /// A message of your group that a member has rejected.
    Bury(Box<Dead>),
    /// The root of groups knows what members have. Some of it is others' by now.
    Welcomed { groups: Vec<u32>, void: Vec<u64> },
    /// Messages that a member gives back, in their order.
    Return { group: u32, messages: Vec<Returned> },
}

/// See [`Letter::Claim`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) clean_start: bool,
    pub(crate) to: Address,
    /// The client that claims it.
    pub(crate) by: Option<SocketAddr>,
}

/// See [`Letter::Recall`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recall {
    pub(crate) group: u32,
    pub(crate) member: u32,
    pub(crate) attendance: u32,
    /// The most messages to take back.
    pub(crate) limit: u32,
    /// The session that waits for the answer.
    pub(crate) from: Address,
}

/// See [`Letter::Browse`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Browse {
    pub(crate) group: u32,
    /// The tag of the last message that it has seen.
    pub(crate) after: Option<u64>,
    pub(crate) limit: u32,
    pub(crate) attendance: u32,
    /// The session that waits for the answer.
    pub(crate) from: Address,
    /// In a cluster: the number of a browser on another node; zero for one of this node.
    pub(crate) looker: u32,
}

/// See [`Letter::Browsed`].
#[derive(Debug)]
pub(crate) struct Browsed {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) attendance: u32,
    pub(crate) messages: Vec<Arc<Message>>,
    /// The tag to go on behind; `None` at the end of the queue.
    pub(crate) after: Option<u64>,
}

/// A session on its way to another shard.
#[derive(Debug)]
pub(crate) struct Moved<P> {
    pub(crate) protocol: P,
    pub(crate) subscriber: u32,
    pub(crate) subscriptions: Vec<(Arc<str>, Subscription)>,
    /// Sent and not settled, in the order it was sent.
    pub(crate) ledger: Vec<Entry>,
    pub(crate) pending: Vec<Entry>,
    pub(crate) next_sequence: u32,
    pub(crate) is_stored: bool,
    pub(crate) reader: Option<Box<Reader>>,
    /// See [`BrokerSession::judged_by`](crate::session::BrokerSession::judged_by).
    pub(crate) judged_by: u32,
    /// The keys of the records that its front door keeps, and those records that it has not taken yet.
    pub(crate) kept: Vec<Box<[u8]>>,
    pub(crate) restored: Vec<Record>,
    /// See [`Rare::rounds`](crate::session::Rare::rounds).
    pub(crate) rounds: u64,
    /// Lookups of retained messages that wait for their turn.
    pub(crate) lookups: VecDeque<Lookup>,
}

/// See [`Letter::Attend`].
#[derive(Debug)]
pub(crate) struct Attend {
    pub(crate) group: u32,
    pub(crate) member: u32,
    pub(crate) attendance: u32,
    pub(crate) credit: u32,
    /// The most that it ever takes.
    pub(crate) window: u32,
    /// Which messages it takes, if not all.
    pub(crate) selector: Option<Arc<dyn Selector>>,
}

/// See [`Letter::Assign`].
#[derive(Debug)]
pub(crate) struct Assign {
    pub(crate) home: u16,
    pub(crate) group: u32,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) attendance: u32,
    /// See [`Entry::group_tag`].
    pub(crate) tag: u64,
    pub(crate) failures: Failures,
    /// See [`Entry::is_kept`].
    pub(crate) is_kept: bool,
    /// See [`Entry::position`].
    pub(crate) position: u64,
    pub(crate) message: Arc<Message>,
    pub(crate) context: Option<Arc<Context>>,
    pub(crate) qos: Qos,
    pub(crate) retain: bool,
    pub(crate) redelivered: bool,
}

/// A message given back to a shared subscription.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) message: Arc<Message>,
    /// See [`Entry::group_tag`].
    pub(crate) tag: u64,
    pub(crate) failures: Failures,
    /// See [`Entry::position`].
    pub(crate) position: u64,
    pub(crate) redelivered: bool,
    /// The member, with its attendance, that it is not to be given again.
    pub(crate) refused_by: Option<(u32, u32)>,
    /// Why it comes back.
    pub(crate) why: Comeback,
}

impl Returned {
    /// The message of an entry that goes back to its group, whose number comes first. `None` where the entry is
    /// from no group or was handed over.
    pub(crate) fn of(entry: Entry) -> Option<(u32, Self)> {
        let Entry {
            group,
            group_tag: tag,
            failures,
            position,
            redelivered,
            ..
        } = entry;
        let message = entry.message.filter(|_| group != NIL)?;
        Some((
            group,
            Self {
                message,
                tag,
                failures,
                position,
                redelivered,
                refused_by: None,
                why: Comeback::GivenBack,
            },
        ))
    }

    /// The same; `is_lost` where its consumer was lost.
    pub(crate) fn lost_if(is_lost: bool, entry: Entry) -> Option<(u32, Self)> {
        let (group, mut returned) = Self::of(entry)?;
        if is_lost {
            returned.why = Comeback::Lost;
        }
        Some((group, returned))
    }
}
