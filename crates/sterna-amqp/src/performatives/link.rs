//! Attach, flow, transfer, disposition and detach.

use super::Error;
use crate::messaging::{DeliveryState, Source, TargetArchetype};
use crate::types::{Map, Multiple, composite, symbolic};

symbolic! {
    /// Which end of a link (part 2, section 2.8.1).
    Role: bool {
        /// The end that messages leave.
        Sender = false,
        /// The end that messages reach.
        Receiver = true,
    }
}

impl Role {
    /// The role of the other end.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }
}

symbolic! {
    /// When a sender settles (part 2, section 2.8.2).
    SenderSettleMode: u8 {
        /// Every delivery after its outcome.
        Unsettled = 0,
        /// Every delivery as it is sent.
        Settled = 1,
        /// Each as the sender likes.
        Mixed = 2,
    }
}

symbolic! {
    /// When a receiver settles (part 2, section 2.8.3).
    ReceiverSettleMode: u8 {
        /// At once.
        First = 0,
        /// After the sender.
        Second = 1,
    }
}

composite! {
    /// Attaches a link to a session (part 2, section 2.7.3).
    Attach<'a> = 0x12, "amqp:attach:list" {
        /// The link's name, unique for a direction between two containers.
        name: &'a str, required;
        /// Its number in the session, in the sender's direction.
        handle: u32, required;
        /// The sender's end.
        role: Role, required;
        /// Settle mode of the link's sender.
        snd_settle_mode: SenderSettleMode, default SenderSettleMode::Mixed;
        /// Settle mode of the link's receiver.
        rcv_settle_mode: ReceiverSettleMode, default ReceiverSettleMode::First;
        /// Where messages come from.
        source: Source<'a>, optional;
        /// Where they go.
        target: TargetArchetype<'a>, optional;
        /// Delivery-tags and states of the deliveries that the sender of the frame has not settled.
        unsettled: Map<'a>, optional;
        /// Whether there are more than these.
        incomplete_unsettled: bool, default false;
        /// A sender's first delivery-count.
        initial_delivery_count: u32, optional;
        /// Largest message that the sender of the frame takes, in bytes; 0 is no limit.
        max_message_size: u64, optional;
        /// Extensions that the sender has.
        offered_capabilities: Multiple<'a>, default Multiple::None;
        /// Extensions that the sender would use.
        desired_capabilities: Multiple<'a>, default Multiple::None;
        /// Anything else.
        properties: Map<'a>, optional;
    }
}

composite! {
    /// Updates flow state of a session, and of a link (part 2, section 2.7.4).
    #[derive(Copy)]
    Flow<'a> = 0x13, "amqp:flow:list" {
        /// Transfer-id of the transfer that the sender expects next; absent before it has read the
        /// begin.
        next_incoming_id: u32, optional;
        /// Transfers that the sender takes.
        incoming_window: u32, required;
        /// Transfer-id of the sender's next transfer.
        next_outgoing_id: u32, required;
        /// Transfers that the sender may send.
        outgoing_window: u32, required;
        /// The link that the rest is about.
        handle: u32, optional;
        /// Deliveries so far.
        delivery_count: u32, optional;
        /// Deliveries that may come on top.
        link_credit: u32, optional;
        /// Messages that a sender has ready.
        available: u32, optional;
        /// Whether credit is to be used up at once.
        drain: bool, default false;
        /// Whether an answer is asked for.
        echo: bool, default false;
        /// Anything else.
        properties: Map<'a>, optional;
    }
}

composite! {
    /// Transfers a message, or a part of one (part 2, section 2.7.5). The payload follows it.
    Transfer<'a> = 0x14, "amqp:transfer:list" {
        /// The link.
        handle: u32, required;
        /// Number of the delivery in the session; in the first transfer of each.
        delivery_id: u32, optional;
        /// Name of the delivery in the link; in the first transfer of each.
        delivery_tag: &'a [u8], optional;
        /// Format of the payload; 0 is a message of part 3.
        message_format: u32, optional;
        /// Whether the sender has settled.
        settled: bool, optional;
        /// Whether another transfer of this delivery follows.
        more: bool, default false;
        /// Settle mode of the receiver for this delivery.
        rcv_settle_mode: ReceiverSettleMode, optional;
        /// The state at the sender.
        state: DeliveryState<'a>, optional;
        /// Whether a delivery of a link that was suspended goes on.
        resume: bool, default false;
        /// Whether the delivery is given up.
        aborted: bool, default false;
        /// Whether the sender can wait for the disposition.
        batchable: bool, default false;
    }
}

composite! {
    /// Tells the state of deliveries (part 2, section 2.7.6).
    Disposition<'a> = 0x15, "amqp:disposition:list" {
        /// Whether a sender or a receiver says this.
        role: Role, required;
        /// The first delivery-id.
        first: u32, required;
        /// The last; absent for one delivery.
        last: u32, optional;
        /// Whether they are settled.
        settled: bool, default false;
        /// Their state.
        state: DeliveryState<'a>, optional;
        /// Whether the sender of the frame can wait for the answer.
        batchable: bool, default false;
    }
}

composite! {
    /// Detaches a link (part 2, section 2.7.7).
    Detach<'a> = 0x16, "amqp:detach:list" {
        /// The link.
        handle: u32, required;
        /// Whether it is gone for good, and not only suspended.
        closed: bool, default false;
        /// Why, if not as planned.
        error: Error<'a>, optional;
    }
}
