//! Transactions (AMQP 1.0, part 4). A controller declares and discharges them over a link to a
//! coordinator. It marks transfers and dispositions with a transaction's identifier.

use bytes::BytesMut;

use crate::DecodeError;
use crate::messaging::{Body, MessageView, MessageWriter, Outcome};
use crate::types::{Composite as _, Multiple, Value, composite};

/// Capabilities of a coordinator (section 4.5.7).
pub mod capability {
    /// Transactions within the resource.
    pub const LOCAL_TRANSACTIONS: &str = "amqp:local-transactions";
    /// Several transactions of a session at a time.
    pub const MULTI_TXNS_PER_SSN: &str = "amqp:multi-txns-per-ssn";
    /// Several sessions in one transaction.
    pub const MULTI_SSNS_PER_TXN: &str = "amqp:multi-ssns-per-txn";
}

composite! {
    /// The target of a link to a coordinator (section 4.5.1).
    #[derive(Copy)]
    Coordinator<'a> = 0x30, "amqp:coordinator:list" {
        /// Its capabilities, or the requested ones.
        capabilities: Multiple<'a>, default Multiple::None;
    }
}

composite! {
    /// The message that begins a transaction (section 4.5.2).
    #[derive(Copy)]
    Declare<'a> = 0x31, "amqp:declare:list" {
        /// The distributed transaction to join.
        global_id: Value<'a>, optional;
    }
}

composite! {
    /// The message that ends a transaction (section 4.5.3).
    #[derive(Copy)]
    Discharge<'a> = 0x32, "amqp:discharge:list" {
        /// The transaction.
        txn_id: &'a [u8], required;
        /// Whether it is rolled back.
        fail: bool, default false;
    }
}

composite! {
    /// The outcome of a declare (section 4.5.5).
    #[derive(Copy)]
    Declared<'a> = 0x33, "amqp:declared:list" {
        /// The transaction.
        txn_id: &'a [u8], required;
    }
}

composite! {
    /// The state of a delivery in a transaction (section 4.5.8).
    TransactionalState<'a> = 0x34, "amqp:transactional-state:list" {
        /// The transaction.
        txn_id: &'a [u8], required;
        /// The outcome that takes effect with it.
        outcome: Outcome<'a>, optional;
    }
}

/// A message to a coordinator.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the types have the documentation")]
pub enum Request<'a> {
    Declare(Declare<'a>),
    Discharge(Discharge<'a>),
}

impl<'a> Request<'a> {
    /// Reads the payload of a delivery on a link to a coordinator. It is a message whose body is
    /// one value (section 4.2).
    ///
    /// # Errors
    ///
    /// `amqp:decode-error` for a malformed message, `amqp:not-implemented` for another body.
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        const OTHER: DecodeError = DecodeError::new(
            crate::Condition::NOT_IMPLEMENTED,
            "a coordinator takes declare and discharge only",
        );
        let Body::Value(Value::Described(described)) = MessageView::parse(payload)?.body() else {
            return Err(OTHER);
        };
        if described.is(Declare::CODE, Declare::NAME) {
            Declare::from_described(&described).map(Self::Declare)
        } else if described.is(Discharge::CODE, Discharge::NAME) {
            Discharge::from_described(&described).map(Self::Discharge)
        } else {
            Err(OTHER)
        }
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut BytesMut) {
        MessageWriter::new(out).value_with(|out| match self {
            Self::Declare(declare) => declare.encode(out),
            Self::Discharge(discharge) => discharge.encode(out),
        });
    }
}
