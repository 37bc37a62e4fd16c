//! Links (AMQP 1.0, part 2, section 2.6).
//!
//! The commands are methods of [`Connection`](crate::Connection). This module has the state of an
//! endpoint, and the part that survives it.

mod command;
mod receive;
mod recovery;
mod tag;
mod transfer;

use std::sync::Arc;

use bytes::BytesMut;

pub use recovery::{Recovery, Unsettled};
pub use tag::{DeliveryTag, MAX_TAG_BYTES};
pub use transfer::{OutgoingTransfer, Sent};

use crate::messaging::{DeliveryStateBuf, Source, TargetArchetype};
use crate::performatives::{Attach, ReceiverSettleMode, Role, SenderSettleMode};
use crate::types::{Encoded, Map, Multiple};

/// Where a link endpoint stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkState {
    /// An attach was sent, its answer is awaited.
    AttachSent,
    /// An attach came, the caller decides.
    Deciding,
    /// Both ends are attached.
    Attached,
    /// A detach was sent, its answer is awaited.
    DetachSent {
        /// Whether it said that the link is gone for good.
        closed: bool,
    },
    /// A detach with an error was sent, and the caller has been told. Further input is ignored.
    Errant {
        /// Number of frames so far.
        frames: u32,
    },
}

/// One end of a link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) name: Arc<str>,
    /// This end.
    pub(crate) role: Role,
    pub(crate) handle: u32,
    pub(crate) remote_handle: Option<u32>,
    pub(crate) state: LinkState,
    pub(crate) snd_settle_mode: SenderSettleMode,
    pub(crate) rcv_settle_mode: ReceiverSettleMode,
    /// Deliveries sent or received, as a serial number.
    pub(crate) delivery_count: u32,
    /// Sender: where `delivery_count` began.
    pub(crate) initial_delivery_count: u32,
    pub(crate) credit: u32,
    /// Receiver: transfers beyond the credit that may be on their way since it was lowered.
    pub(crate) grace: u32,
    pub(crate) drain: bool,
    pub(crate) available: u32,
    /// Largest message: the peer's limit for a sender, the own for a receiver; 0 is none.
    pub(crate) max_message_bytes: u64,
    /// Unsettled deliveries that have delivery-ids.
    pub(crate) unsettled: u32,
    /// Receiver: a message of which parts have arrived.
    pub(crate) partial: Option<Box<Partial>>,
    /// Sender: a message of which parts have been sent.
    pub(crate) sending: Option<Sending>,
    /// Deliveries from before the link was suspended, whose fate is open.
    pub(crate) recovering: Vec<Unsettled>,
    /// The peer's unsettled map, until the caller has decided about the attach.
    pub(crate) remote_unsettled: Option<Encoded>,
    /// One of the unsettled maps is incomplete: only resumed deliveries may be sent.
    pub(crate) incomplete: bool,
    pub(crate) remote_incomplete: bool,
}

/// A message of which parts have arrived.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) delivery_id: u32,
    pub(crate) tag: DeliveryTag,
    pub(crate) message_format: u32,
    pub(crate) settled: bool,
    pub(crate) settle_mode: ReceiverSettleMode,
    pub(crate) state: Option<DeliveryStateBuf>,
    pub(crate) batchable: bool,
    /// Resumed, but unknown here: it is ignored.
    pub(crate) ignored: bool,
    pub(crate) resumed: Option<Unsettled>,
    pub(crate) payload: BytesMut,
}

/// A message of which parts have been sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) delivery_id: u32,
    pub(crate) bytes: u64,
}

impl Link {
    pub(crate) fn new(name: &str, role: Role, handle: u32, state: LinkState) -> Self {
        Self {
            name: name.into(),
            role,
            handle,
            remote_handle: None,
            state,
            snd_settle_mode: SenderSettleMode::Mixed,
            rcv_settle_mode: ReceiverSettleMode::First,
            delivery_count: 0,
            initial_delivery_count: 0,
            credit: 0,
            grace: 0,
            drain: false,
            available: 0,
            max_message_bytes: 0,
            unsettled: 0,
            partial: None,
            sending: None,
            recovering: Vec::new(),
            remote_unsettled: None,
            incomplete: false,
            remote_incomplete: false,
        }
    }

    /// Receiver: sets the credit. Transfers may be on their way that the earlier credit allowed.
    pub(crate) fn grant(&mut self, credit: u32) {
        let credit = credit.min(i32::MAX as u32);
        let allowed = self.credit.saturating_add(self.grace);
        self.grace = allowed.saturating_sub(credit);
        self.credit = credit;
    }

    /// Whether the caller knows the link and has not been told of its end.
    pub(crate) const fn is_surfaced(&self) -> bool {
        !matches!(self.state, LinkState::Errant { .. })
    }

    /// Whether frames of the link are still for it.
    pub(crate) const fn is_live(&self) -> bool {
        matches!(
            self.state,
            LinkState::AttachSent | LinkState::Deciding | LinkState::Attached
        )
    }
}

/// Values of an attach, or of an answer to one.
#[derive(Clone, Debug)]
pub struct AttachOptions<'a> {
    /// Settle mode of the sender.
    pub snd_settle_mode: SenderSettleMode,
    /// Settle mode of the receiver.
    pub rcv_settle_mode: ReceiverSettleMode,
    /// Source of messages.
    pub source: Option<Source<'a>>,
    /// Target of messages.
    pub target: Option<TargetArchetype<'a>>,
    /// A sender's first delivery-count.
    pub initial_delivery_count: u32,
    /// Largest message that this end takes as a receiver, in bytes; `None` for
    /// [`Limits::max_message_bytes`](crate::Limits::max_message_bytes).
    pub max_message_size: Option<u64>,
    /// Unsettled deliveries of the link that was suspended
    /// ([`Event::Detached`](crate::Event::Detached)).
    pub unsettled: &'a [Unsettled],
    /// Whether there are more, so that the absence of a delivery says nothing.
    pub is_incomplete: bool,
    /// Whether the link was attached before, so that `unsettled` means something even when empty.
    pub recover: bool,
    /// Extensions that this end has.
    pub offered_capabilities: Multiple<'a>,
    /// Extensions that this end would use.
    pub desired_capabilities: Multiple<'a>,
    /// Anything else.
    pub properties: Option<Map<'a>>,
}

impl Default for AttachOptions<'_> {
    fn default() -> Self {
        Self {
            snd_settle_mode: SenderSettleMode::Mixed,
            rcv_settle_mode: ReceiverSettleMode::First,
            source: None,
            target: None,
            initial_delivery_count: 0,
            max_message_size: None,
            unsettled: &[],
            is_incomplete: false,
            recover: false,
            offered_capabilities: Multiple::None,
            desired_capabilities: Multiple::None,
            properties: None,
        }
    }
}

impl<'a> AttachOptions<'a> {
    /// The frame body, without an unsettled map.
    pub(crate) fn attach(&self, link: &'a Link, own_max_message_bytes: u64) -> Attach<'a> {
        let sender = link.role == Role::Sender;
        Attach {
            name: &link.name,
            handle: link.handle,
            role: link.role,
            snd_settle_mode: self.snd_settle_mode,
            rcv_settle_mode: self.rcv_settle_mode,
            source: self.source.clone(),
            target: self.target.clone(),
            unsettled: None,
            incomplete_unsettled: false,
            initial_delivery_count: sender.then_some(self.initial_delivery_count),
            max_message_size: (!sender).then_some(own_max_message_bytes),
            offered_capabilities: self.offered_capabilities,
            desired_capabilities: self.desired_capabilities,
            properties: self.properties,
        }
    }
}
