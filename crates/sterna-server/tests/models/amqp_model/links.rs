//! Links as their clients remember them, whether they are attached or not.

use std::collections::{BTreeMap, BTreeSet};

use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::Unsettled;
use sterna_amqp::messaging::{
    Source, Target, TargetArchetype, TerminusDurability, TerminusExpiryPolicy,
};
use sterna_amqp::performatives::{ReceiverSettleMode, Role, SenderSettleMode};
use sterna_amqp::types::{Encoded, Value};

use crate::amqp_client::Client;
use crate::amqp_model::model::Mode;

/// A link of a client.
pub struct Link {
    pub name: String,
    /// Where it is attached.
    pub id: Option<LinkId>,
    /// The broker has answered an attach of it.
    pub is_known: bool,
    /// A detach for good is on its way.
    pub closing: bool,
    /// What was unsettled when it was detached.
    pub unsettled: Vec<Unsettled>,
    pub detached_at_ms: u64,
    pub end: End,
}

/// What a link does.
pub enum End {
    Sender(Sender),
    Receiver(Receiver),
}

pub struct Sender {
    /// `None` for the anonymous node.
    pub address: Option<String>,
    pub mode: Mode,
    /// Accepted, and to be settled by this end, by token.
    pub to_settle: Vec<u64>,
}

pub struct Receiver {
    pub address: String,
    pub store: usize,
    pub kind: Option<i32>,
    pub snd_settle_mode: SenderSettleMode,
    pub rcv_settle_mode: ReceiverSettleMode,
    pub policy: TerminusExpiryPolicy,
    pub timeout_s: u32,
    /// When the broker forgets the terminus, once it has begun to expire.
    pub expires_at_ms: Option<u64>,
    /// The terminus is detached, and lasts as long as this session.
    pub suspended_in: Option<SessionId>,
    /// Whether the broker has nothing left of the terminus, or may not have.
    pub is_over: bool,
    /// Deliveries that may still come on the credit given.
    pub credit: u32,
    pub held: BTreeMap<Vec<u8>, Held>,
    /// Messages that this link could not take.
    pub refused: BTreeSet<usize>,
    /// The last message of each sender that has come in order.
    pub last: BTreeMap<String, usize>,
}

/// A delivery that is not settled.
#[derive(Clone, Debug)]
pub struct Held {
    pub id: u32,
    pub message: usize,
    pub stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// To be decided.
    Fresh,
    /// Told, without settlement: the broker is to answer. Whether the message is gone by it, and
    /// whether the broker has certainly heard.
    Told { gone: bool, sure: bool },
    /// Decided within a transaction.
    Retired,
    /// From before the link was suspended; the broker has not taken it up again.
    Suspended { gone: bool, sure: bool },
}

impl Receiver {
    pub fn source(&self) -> Source<'_> {
        Source {
            durable: if self.policy == TerminusExpiryPolicy::Never {
                TerminusDurability::UnsettledState
            } else {
                TerminusDurability::None
            },
            expiry_policy: self.policy,
            timeout: self.timeout_s,
            ..Source::new(&self.address)
        }
    }

    /// Whether another connection finds the terminus again.
    pub fn outlives_connection(&self) -> bool {
        self.policy == TerminusExpiryPolicy::Never || self.timeout_s > 0
    }
}

impl Link {
    pub fn role(&self) -> Role {
        match self.end {
            End::Sender(_) => Role::Sender,
            End::Receiver(_) => Role::Receiver,
        }
    }

    pub fn sender(&mut self) -> &mut Sender {
        match &mut self.end {
            End::Sender(sender) => sender,
            End::Receiver(_) => panic!("{} is a receiver", self.name),
        }
    }

    pub fn receiver(&mut self) -> &mut Receiver {
        match &mut self.end {
            End::Receiver(receiver) => receiver,
            End::Sender(_) => panic!("{} is a sender", self.name),
        }
    }

    pub fn as_receiver(&self) -> Option<&Receiver> {
        match &self.end {
            End::Receiver(receiver) => Some(receiver),
            End::Sender(_) => None,
        }
    }
}

impl Sender {
    pub fn target(&self) -> TargetArchetype<'_> {
        TargetArchetype::Target(match &self.address {
            Some(address) => Target::new(address),
            None => Target::default(),
        })
    }

    pub fn modes(&self) -> (SenderSettleMode, ReceiverSettleMode) {
        match self.mode {
            Mode::Settled => (SenderSettleMode::Settled, ReceiverSettleMode::First),
            Mode::First => (SenderSettleMode::Mixed, ReceiverSettleMode::First),
            Mode::Second => (SenderSettleMode::Unsettled, ReceiverSettleMode::Second),
        }
    }
}

/// A client program: its connection, when it has one, and what it remembers.
pub struct Agent {
    pub container: String,
    pub client: Option<Client>,
    pub sessions: Vec<SessionId>,
    pub links: Vec<Link>,
    /// Messages of which the beginning has been read.
    pub begun: BTreeMap<usize, u32>,
    pub transaction: Option<Transaction>,
    /// The coordinator's link.
    pub coordinator: Option<LinkId>,
}

/// A transaction under way.
pub struct Transaction {
    pub id: Vec<u8>,
    /// The tokens of messages that are posted.
    pub posted: Vec<u64>,
    pub retired: Vec<Retired>,
    /// A link whose deliveries it settles is gone: it may fail.
    pub has_lost: bool,
}

/// A delivery that is accepted within a transaction.
pub struct Retired {
    pub link: usize,
    pub store: usize,
    pub tag: Vec<u8>,
    pub message: usize,
    pub settled: bool,
}

impl Agent {
    pub fn link_at(&self, id: LinkId) -> Option<usize> {
        self.links.iter().position(|link| link.id == Some(id))
    }
}

/// A map of one filter: messages of a kind.
pub fn selector(kind: i32) -> Encoded {
    let mut out = bytes::BytesMut::new();
    let mut map = sterna_amqp::types::MapWriter::new(&mut out);
    let entry = map.entry(&Value::Symbol("selector"));
    entry.extend_from_slice(&[0]);
    Value::Symbol("apache.org:selector-filter:string").encode(entry);
    Value::String(&format!("kind = {kind}")).encode(entry);
    map.finish();
    Encoded::from_bytes(out.freeze()).expect("a map")
}
