//! Begin and end.

use super::Error;
use crate::types::{Map, Multiple, composite};

composite! {
    /// Begins a session on a channel (part 2, section 2.7.2).
    Begin<'a> = 0x11, "amqp:begin:list" {
        /// In an answer: the channel of the begin that is answered.
        remote_channel: u16, optional;
        /// Transfer-id of the sender's next transfer.
        next_outgoing_id: u32, required;
        /// Transfers that the sender takes.
        incoming_window: u32, required;
        /// Transfers that the sender may send.
        outgoing_window: u32, required;
        /// Highest handle that the sender takes.
        handle_max: u32, default u32::MAX;
        /// Extensions that the sender has.
        offered_capabilities: Multiple<'a>, default Multiple::None;
        /// Extensions that the sender would use.
        desired_capabilities: Multiple<'a>, default Multiple::None;
        /// Anything else.
        properties: Map<'a>, optional;
    }
}

composite! {
    /// Ends a session (part 2, section 2.7.8).
    End<'a> = 0x17, "amqp:end:list" {
        /// Why, if not as planned.
        error: Error<'a>, optional;
    }
}
