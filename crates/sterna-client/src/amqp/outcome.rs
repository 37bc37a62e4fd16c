//! Outcome of a delivery.

use sterna_amqp::messaging::{self, DeliveryState, DeliveryStateBuf, Modified, Rejected};
use sterna_amqp::performatives::Error as WireError;
use sterna_amqp::types::{Map, Symbol, Value as Wired};

use super::driver::Fate;
use super::error::Remote;
use super::message::Annotations;
use super::value::{Value, entries_of};

/// Decision of a receiver about a message (part 3, section 3.4).
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Taken.
    Accepted,
    /// Invalid, and not to be sent again; with the reason, if there is one.
    Rejected(Option<Remote>),
    /// The message was not taken, and is as if it had never been sent.
    Released,
    /// The message was not taken, and is to be changed.
    Modified {
        /// Counts as an attempt to deliver it.
        delivery_failed: bool,
        /// Whether the message is not to be sent to this receiver again.
        undeliverable_here: bool,
        /// Message annotations to set.
        annotations: Annotations,
    },
}

impl Outcome {
    /// From what the peer told. One that settles without a state has not taken the message.
    pub(super) fn of(fate: &Fate) -> Self {
        match fate.as_ref().map(DeliveryStateBuf::view) {
            Some(DeliveryState::Outcome(outcome)) => Self::from_wire(&outcome),
            Some(DeliveryState::Transactional(state)) => state
                .outcome
                .as_ref()
                .map_or(Self::Accepted, Self::from_wire),
            Some(DeliveryState::Declared(_)) => Self::Accepted,
            Some(DeliveryState::Received(_)) | None => Self::Released,
        }
    }

    fn from_wire(outcome: &messaging::Outcome<'_>) -> Self {
        match outcome {
            messaging::Outcome::Accepted => Self::Accepted,
            messaging::Outcome::Released => Self::Released,
            messaging::Outcome::Rejected(rejected) => {
                Self::Rejected(rejected.error.as_ref().map(|error| Remote {
                    condition: error.condition.0.to_owned(),
                    description: error.description.map(str::to_owned),
                }))
            }
            messaging::Outcome::Modified(modified) => Self::Modified {
                delivery_failed: modified.delivery_failed,
                undeliverable_here: modified.undeliverable_here,
                annotations: modified
                    .message_annotations
                    .map(entries_of)
                    .unwrap_or_default(),
            },
        }
    }

    /// The state that tells it, within a transaction if there is one.
    pub(super) fn state(&self, txn_id: Option<&[u8]>) -> DeliveryStateBuf {
        let annotations = match self {
            Self::Modified { annotations, .. } if !annotations.is_empty() => {
                Value::Map(annotations.clone()).encoded().ok()
            }
            _ => None,
        };
        let message_annotations: Option<Map<'_>> =
            annotations
                .as_ref()
                .and_then(|annotations| match annotations.value() {
                    Wired::Map(map) => Some(map),
                    _ => None,
                });
        let outcome = match self {
            Self::Accepted => messaging::Outcome::Accepted,
            Self::Released => messaging::Outcome::Released,
            Self::Rejected(error) => messaging::Outcome::Rejected(Rejected {
                error: error.as_ref().map(|error| WireError {
                    condition: Symbol(&error.condition),
                    description: error.description.as_deref(),
                    info: None,
                }),
            }),
            Self::Modified {
                delivery_failed,
                undeliverable_here,
                ..
            } => messaging::Outcome::Modified(Modified {
                delivery_failed: *delivery_failed,
                undeliverable_here: *undeliverable_here,
                message_annotations,
            }),
        };
        DeliveryStateBuf::new(&match txn_id {
            None => DeliveryState::Outcome(outcome),
            Some(txn_id) => {
                DeliveryState::Transactional(sterna_amqp::transactions::TransactionalState {
                    txn_id,
                    outcome: Some(outcome),
                })
            }
        })
    }
}
