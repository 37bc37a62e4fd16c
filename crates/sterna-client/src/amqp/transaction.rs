//! Transactions (part 4): messages and decisions that take effect together.

use bytes::{Bytes, BytesMut};
use sterna_amqp::messaging::{DeliveryState, DeliveryStateBuf};
use sterna_amqp::transactions::{Declare, Discharge, Request};

use super::message::Message;
use super::receiver::{Delivery, Settlement};
use super::sender::{Sender, Sending};
use super::{Error, Outcome};

/// A link to the peer's coordinator of transactions. Transactions live on their connection; with a
/// lost one they are rolled back.
#[derive(Debug)]
pub struct Controller {
    sender: Sender,
}

impl Controller {
    pub(super) const fn new(sender: Sender) -> Self {
        Self { sender }
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// When the coordinator refuses, or the link or client has ended.
    pub async fn declare(&self) -> Result<Transaction<'_>, Error> {
        let fate = self
            .request(&Request::Declare(Declare { global_id: None }))
            .await?;
        match fate.as_ref().map(DeliveryStateBuf::view) {
            Some(DeliveryState::Declared(declared)) => Ok(Transaction {
                controller: self,
                txn_id: Bytes::copy_from_slice(declared.txn_id),
            }),
            _ => Err(refusal(&fate)),
        }
    }

    /// Sends a request, which belongs to this connection: it fails with it.
    async fn request(&self, request: &Request<'_>) -> Result<super::driver::Fate, Error> {
        let mut payload = BytesMut::new();
        request.encode(&mut payload);
        let sending = self
            .sender
            .hand_over_encoded(payload.freeze(), false, None)
            .await?;
        sending.fate().await
    }
}

fn refusal(fate: &super::driver::Fate) -> Error {
    match Outcome::of(fate) {
        Outcome::Rejected(error) => Error::Detached(error),
        _ => Error::Invalid("the coordinator did not take the request"),
    }
}

/// A transaction. One that is dropped without an end lasts as long as its controller's link; the
/// coordinator rolls it back then.
#[derive(Debug)]
pub struct Transaction<'c> {
    controller: &'c Controller,
    txn_id: Bytes,
}

impl Transaction<'_> {
    /// The coordinator's name for it.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        &self.txn_id
    }

    /// Hands a message over, which takes effect with the transaction. The outcome that the future
    /// tells is the one that it will have.
    ///
    /// # Errors
    /// When the link or client has ended.
    pub async fn post(&self, sender: &Sender, message: Message) -> Result<Sending, Error> {
        sender
            .hand_over(message, false, Some(self.txn_id.clone()))
            .await
    }

    /// Decides about a delivery, which takes effect with the transaction.
    #[must_use = "whether the decision stands is told by the future; drop it if it doesn't matter"]
    pub fn retire(&self, delivery: Delivery, outcome: &Outcome) -> Settlement {
        delivery.decide(outcome, Some(&self.txn_id))
    }

    /// Ends the transaction: everything takes effect.
    ///
    /// # Errors
    /// When the coordinator refuses, and nothing has taken effect; or the link or client has ended.
    pub async fn commit(self) -> Result<(), Error> {
        self.discharge(false).await
    }

    /// Ends the transaction: nothing takes effect.
    ///
    /// # Errors
    /// When the coordinator does not know the transaction, or the link or client has ended.
    pub async fn rollback(self) -> Result<(), Error> {
        self.discharge(true).await
    }

    async fn discharge(self, fail: bool) -> Result<(), Error> {
        let request = Request::Discharge(Discharge {
            txn_id: &self.txn_id,
            fail,
        });
        let fate = self.controller.request(&request).await?;
        match Outcome::of(&fate) {
            Outcome::Accepted => Ok(()),
            _ => Err(refusal(&fate)),
        }
    }
}
