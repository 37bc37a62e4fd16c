//! Open, close and error.

use crate::types::{Map, Multiple, Symbol, composite};
use crate::{Condition, DecodeError};

composite! {
    /// Negotiates a connection (part 2, section 2.7.1).
    Open<'a> = 0x10, "amqp:open:list" {
        /// Name of its sender.
        container_id: &'a str, required;
        /// The host that is addressed.
        hostname: &'a str, optional;
        /// Largest frame that the sender takes, in bytes.
        max_frame_size: u32, default u32::MAX;
        /// Highest channel number that the sender takes.
        channel_max: u16, default u16::MAX;
        /// The sender wants to hear something this often, in milliseconds.
        idle_time_out: u32, optional;
        /// Languages of the sender's texts.
        outgoing_locales: Multiple<'a>, default Multiple::None;
        /// Languages that the sender would like to read.
        incoming_locales: Multiple<'a>, default Multiple::None;
        /// Extensions that the sender has.
        offered_capabilities: Multiple<'a>, default Multiple::None;
        /// Extensions that the sender would use.
        desired_capabilities: Multiple<'a>, default Multiple::None;
        /// Anything else.
        properties: Map<'a>, optional;
    }
}

impl<'a> Open<'a> {
    /// An open with nothing but a container id.
    #[must_use]
    pub const fn new(container_id: &'a str) -> Self {
        Self {
            container_id,
            hostname: None,
            max_frame_size: u32::MAX,
            channel_max: u16::MAX,
            idle_time_out: None,
            outgoing_locales: Multiple::None,
            incoming_locales: Multiple::None,
            offered_capabilities: Multiple::None,
            desired_capabilities: Multiple::None,
            properties: None,
        }
    }
}

composite! {
    /// Ends a connection (part 2, section 2.7.9).
    Close<'a> = 0x18, "amqp:close:list" {
        /// Why, if not as planned.
        error: Error<'a>, optional;
    }
}

composite! {
    /// An error (part 2, section 2.8.14).
    Error<'a> = 0x1d, "amqp:error:list" {
        /// One of [`Condition`], or another symbol.
        condition: Symbol<'a>, required;
        /// For people.
        description: &'a str, optional;
        /// Anything else.
        info: Map<'a>, optional;
    }
}

impl<'a> Error<'a> {
    /// An error with a description.
    #[must_use]
    pub const fn new(condition: Condition, description: &'a str) -> Self {
        Self {
            condition: Symbol(condition.as_str()),
            description: Some(description),
            info: None,
        }
    }
}

impl From<DecodeError> for Error<'static> {
    fn from(error: DecodeError) -> Self {
        Self::new(error.condition, error.detail)
    }
}
