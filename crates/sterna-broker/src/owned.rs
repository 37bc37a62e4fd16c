//! The owner of a session in a cluster: what a node's shards and the engine that knows other nodes tell each other.
//!
//! A new session waits for the engine before it begins ([`Ownership::Claim`]), as one waits that is to come from
//! another shard. One that was here before goes on without: it is this node's as long as the engine does not say
//! otherwise ([`Broker::lose_session`](crate::Broker::lose_session)).

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use rustc_hash::FxHashSet;

use crate::api::SessionKey;
use crate::message::Message;
use crate::name::SessionName;
use crate::records::{Fields, Kind, key, put_number};
use crate::store::Record;
use crate::will::{SessionWill, Wait, encode_record, put_terms, terms_of};

/// A note from a shard to the engine; they come in order.
#[derive(Clone, Debug)]
pub enum Ownership {
    /// A session wants to begin, and waits for
    /// [`Broker::session_claimed`](crate::Broker::session_claimed).
    Claim {
        /// The session.
        session: SessionKey,
        /// The session's name.
        name: SessionName,
        /// Its will.
        will: Option<Arc<[u8]>>,
        /// Whether it outlives its connection.
        outlives: bool,
        /// Whether it begins anew, whatever another node has kept of it.
        is_clean: bool,
        /// Whether it is refused where another node has it that may be sure of it.
        if_free: bool,
    },
    /// A session has another will now, or none.
    SetWill {
        /// The session's name.
        name: SessionName,
        /// The will.
        will: Option<Arc<[u8]>>,
    },
    /// A will is due. It is published when
    /// [`Broker::publish_owned_will`](crate::Broker::publish_owned_will) says so.
    PublishWill {
        /// The session's name.
        name: SessionName,
        /// The will.
        will: Arc<[u8]>,
    },
    /// A session that is here, told again: [`Broker::renew_sessions`](crate::Broker::renew_sessions).
    Renew {
        /// The session's name.
        name: SessionName,
        /// Its will.
        will: Option<Arc<[u8]>>,
    },
    /// A session has ended.
    Release {
        /// The session's name.
        name: SessionName,
    },
    /// The session that [`Broker::lose_session`](crate::Broker::lose_session) named has ended.
    Ended {
        /// The session's name.
        name: SessionName,
    },
    /// [`Broker::adopt`](crate::Broker::adopt) is done.
    Adopted {
        /// The session's name.
        name: SessionName,
    },
    /// [`Broker::adopt`](crate::Broker::adopt) did nothing: a client waits for a session of this name.
    NotAdopted {
        /// The session's name.
        name: SessionName,
    },
}

/// Why a session may not begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimRefusal {
    /// The engine, which knows of other nodes, is away.
    Away,
    /// The client has come to another node since.
    TakenOver,
}

/// A shard's part.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    pub(crate) notes: Vec<Ownership>,
    /// Sessions whose claims are not settled: slot and generation.
    pub(crate) claimed: FxHashSet<(u32, u32)>,
    /// Whether this node is not sure that its sessions are its own.
    pub(crate) is_unsure: bool,
    /// Wills that the engine was told to publish, and the bytes that they count for until it has; the oldest first.
    pub(crate) due_wills: VecDeque<(Weak<[u8]>, usize)>,
}

/// The bytes of a will, as other nodes keep it. First come the seconds of its delay, then those of its expiry plus
/// one (zero for none) with [`GIVEN`], then its message.
pub(crate) fn encode_will(will: &SessionWill) -> Arc<[u8]> {
    let mut out = Vec::new();
    put_number(&mut out, u64::from(will.delay_s));
    put_terms(&mut out, will.expiry_s, will.given_until_ms.is_some());
    will.message.encode(&mut out);
    out.into()
}

/// Whether a will waits for a while, and is not published where its client comes back to its session before.
#[must_use]
pub fn is_will_delayed(will: &[u8]) -> bool {
    will.first().is_some_and(|&first| first != 0)
}

/// The record of a will that waits, as a session has it whose connection has ended at this moment.
///
/// `None` for a will without a delay, and for what is no will.
#[must_use]
pub fn delayed_will(name: &SessionName, will: &[u8], now_ms: u64) -> Option<Record> {
    let delay_s = Fields::new(will).number().filter(|&delay_s| delay_s > 0)?;
    let (message, expiry_s, is_given) = decode_will(will)?;
    let due_ms = now_ms.saturating_add(delay_s.saturating_mul(1_000));
    let delay_s = u32::try_from(delay_s).ok()?;
    let wait = (Wait::Lost(due_ms), delay_s);
    let value = encode_record(wait, (expiry_s, is_given), &message);
    Some((key(Kind::Will, name.text(), &[]), value.into()))
}

/// A will's message, for how many seconds it holds, and whether it needs rights that came with its client; `None` for
/// what is none.
pub(crate) fn decode_will(will: &[u8]) -> Option<(Message, Option<u32>, bool)> {
    let mut fields = Fields::new(will);
    fields.number()?;
    let (expiry_s, is_given) = terms_of(&mut fields)?;
    let message = Message::decode(Bytes::copy_from_slice(fields.rest())).ok()?;
    Some((message, expiry_s, is_given))
}
