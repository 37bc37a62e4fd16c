//! Delivery states (part 3, section 3.4; part 4, sections 4.5.5 and 4.5.8).

use bytes::BytesMut;

use crate::DecodeError;
use crate::performatives::Error;
use crate::transactions::{Declared, TransactionalState};
use crate::types::{Composite, Described, Encoded, Field, Map, Value, composite};

composite! {
    /// Received part of a delivery (section 3.4.1).
    #[derive(Copy)]
    Received = 0x23, "amqp:received:list" {
        /// Index of the section up to which everything has been received.
        section_number: u32, required;
        /// Bytes received of that section.
        section_offset: u64, required;
    }
}

composite! {
    /// Taken (section 3.4.2).
    #[derive(Copy)]
    Accepted = 0x24, "amqp:accepted:list" {}
}

composite! {
    /// Invalid and not to be sent again (section 3.4.3).
    Rejected<'a> = 0x25, "amqp:rejected:list" {
        /// Why.
        error: Error<'a>, optional;
    }
}

composite! {
    /// The message was not taken, and is as if it had never been sent (section 3.4.4).
    #[derive(Copy)]
    Released = 0x26, "amqp:released:list" {}
}

composite! {
    /// The message was not taken, and is to be changed (section 3.4.5).
    #[derive(Copy)]
    Modified<'a> = 0x27, "amqp:modified:list" {
        /// Counts as an attempt to deliver it.
        delivery_failed: bool, default false;
        /// Whether the message is not to be sent to this receiver again.
        undeliverable_here: bool, default false;
        /// Message annotations to set.
        message_annotations: Map<'a>, optional;
    }
}

/// A terminal delivery state.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the types have the documentation")]
pub enum Outcome<'a> {
    Accepted,
    Rejected(Rejected<'a>),
    Released,
    Modified(Modified<'a>),
}

impl<'a> Outcome<'a> {
    fn from_described(described: &Described<'a>) -> Result<Option<Self>, DecodeError> {
        Ok(Some(if described.is(Accepted::CODE, Accepted::NAME) {
            Accepted::from_described(described)?;
            Self::Accepted
        } else if described.is(Rejected::CODE, Rejected::NAME) {
            Self::Rejected(Rejected::from_described(described)?)
        } else if described.is(Released::CODE, Released::NAME) {
            Released::from_described(described)?;
            Self::Released
        } else if described.is(Modified::CODE, Modified::NAME) {
            Self::Modified(Modified::from_described(described)?)
        } else {
            return Ok(None);
        }))
    }

    /// The symbolic descriptor, by which sources list their outcomes.
    #[must_use]
    pub const fn symbol(&self) -> &'static str {
        match self {
            Self::Accepted => Accepted::NAME,
            Self::Rejected(_) => Rejected::NAME,
            Self::Released => Released::NAME,
            Self::Modified(_) => Modified::NAME,
        }
    }
}

impl<'a> Field<'a> for Outcome<'a> {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        let Value::Described(described) = value else {
            return Err(DecodeError::decode("outcome is not a described type"));
        };
        Self::from_described(&described)?.ok_or(DecodeError::invalid("unknown outcome"))
    }

    fn write(&self, out: &mut BytesMut) {
        match self {
            Self::Accepted => Accepted {}.encode(out),
            Self::Rejected(rejected) => rejected.encode(out),
            Self::Released => Released {}.encode(out),
            Self::Modified(modified) => modified.encode(out),
        }
    }
}

/// State of a delivery at one end of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeliveryState<'a> {
    /// On its way.
    Received(Received),
    /// Decided.
    Outcome(Outcome<'a>),
    /// The outcome of a declare.
    Declared(Declared<'a>),
    /// Decided or posted within a transaction.
    Transactional(TransactionalState<'a>),
}

impl DeliveryState<'_> {
    /// [`Outcome::Accepted`].
    pub const ACCEPTED: DeliveryState<'static> = DeliveryState::Outcome(Outcome::Accepted);
    /// [`Outcome::Released`].
    pub const RELEASED: DeliveryState<'static> = DeliveryState::Outcome(Outcome::Released);

    /// Whether the end will not change its mind any more.
    #[must_use]
    pub const fn is_terminal(&self) -> bool {
        matches!(self, Self::Outcome(_) | Self::Declared(_))
    }
}

impl<'a> DeliveryState<'a> {
    /// Reads the state of a delivery in an unsettled map.
    ///
    /// # Errors
    /// It is not a delivery state, or not a known one; null is none.
    pub fn read(value: Value<'a>) -> Result<Self, DecodeError> {
        Self::from_value(value)
    }
}

impl<'a> Field<'a> for DeliveryState<'a> {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        let Value::Described(described) = value else {
            return Err(DecodeError::decode(
                "delivery state is not a described type",
            ));
        };
        if let Some(outcome) = Outcome::from_described(&described)? {
            return Ok(Self::Outcome(outcome));
        }
        if described.is(Received::CODE, Received::NAME) {
            Received::from_described(&described).map(Self::Received)
        } else if described.is(Declared::CODE, Declared::NAME) {
            Declared::from_described(&described).map(Self::Declared)
        } else if described.is(TransactionalState::CODE, TransactionalState::NAME) {
            TransactionalState::from_described(&described).map(Self::Transactional)
        } else {
            Err(DecodeError::invalid("unknown delivery state"))
        }
    }

    fn write(&self, out: &mut BytesMut) {
        match self {
            Self::Received(received) => received.encode(out),
            Self::Outcome(outcome) => outcome.write(out),
            Self::Declared(declared) => declared.encode(out),
            Self::Transactional(state) => state.encode(out),
        }
    }
}

/// A delivery state that is kept. The common ones take no heap memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeliveryStateBuf {
    /// [`Outcome::Accepted`].
    Accepted,
    /// [`Outcome::Released`].
    Released,
    /// [`DeliveryState::Received`].
    Received(Received),
    /// Any other, encoded.
    Other(Encoded),
}

impl DeliveryStateBuf {
    /// Keeps a state.
    #[must_use]
    pub fn new(state: &DeliveryState<'_>) -> Self {
        match state {
            DeliveryState::Outcome(Outcome::Accepted) => Self::Accepted,
            DeliveryState::Outcome(Outcome::Released) => Self::Released,
            DeliveryState::Received(received) => Self::Received(*received),
            other => Self::Other(Encoded::build(|out| other.write(out))),
        }
    }

    /// The state.
    #[must_use]
    pub fn view(&self) -> DeliveryState<'_> {
        match self {
            Self::Accepted => DeliveryState::ACCEPTED,
            Self::Released => DeliveryState::RELEASED,
            Self::Received(received) => DeliveryState::Received(*received),
            // It was encoded from a state.
            Self::Other(encoded) => {
                DeliveryState::from_value(encoded.value()).unwrap_or(DeliveryState::RELEASED)
            }
        }
    }

    /// Whether the end will not change its mind any more.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.view().is_terminal()
    }
}
