//! Transactions (part 4): messages and decisions that take effect together.

use bytes::{Bytes, BytesMut};
use sterna_amqp::messaging::{DeliveryState, DeliveryStateBuf};
use sterna_amqp::transactions::{Declare, Discharge, Request};

use super::driver::{Attachment, Fate};
use super::message::Message;
use super::receiver::{Delivery, Settlement};
use super::sender::{Sender, Sending};
use super::{Error, Outcome};

/// A link to the peer's coordinator of transactions. Transactions live on their connection; with a
/// lost one they are rolled back, and what is done with one later fails with
/// [`Error::TransactionLost`].
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
    /// When the coordinator refuses, or the link or client has ended. [`Error::Unknown`] when the
    /// connection is lost meanwhile.
    pub async fn declare(&self) -> Result<Transaction<'_>, Error> {
        let declare = Request::Declare(Declare { global_id: None });
        let (attachment, fate) = loop {
            let attachment = self.sender.attachment().await?;
            match self.request(attachment, &declare).await {
                // The attachment ended before the request was sent.
                Err(Error::TransactionLost) => {}
                fate => break (attachment, fate?),
            }
        };
        match fate.as_ref().map(DeliveryStateBuf::view) {
            Some(DeliveryState::Declared(declared)) => Ok(Transaction {
                controller: self,
                attachment,
                txn_id: Bytes::copy_from_slice(declared.txn_id),
            }),
            _ => Err(refusal(&fate)),
        }
    }

    /// Sends a request, which belongs to this attachment: it fails with it.
    async fn request(&self, attachment: Attachment, request: &Request<'_>) -> Result<Fate, Error> {
        let mut payload = BytesMut::new();
        request.encode(&mut payload);
        let sending = self
            .sender
            .hand_over(payload.freeze(), false, Some(attachment), None)
            .await?;
        sending.fate().await
    }
}

fn refusal(fate: &Fate) -> Error {
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
    /// The attachment of the controller's link that it was declared on.
    attachment: Attachment,
    txn_id: Bytes,
}

impl Transaction<'_> {
    /// The coordinator's name for it.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        &self.txn_id
    }

    /// Hands a message over, which takes effect with the transaction. The outcome that the future
    /// tells is the one that it will have, or [`Error::TransactionLost`].
    ///
    /// # Errors
    /// When the link or client has ended.
    pub async fn post(&self, sender: &Sender, message: Message) -> Result<Sending, Error> {
        let (attachment, txn_id) = (Some(self.attachment), Some(self.txn_id.clone()));
        sender
            .hand_over(message.encode(), false, attachment, txn_id)
            .await
    }

    /// Decides about a delivery, which takes effect with the transaction. With
    /// [`Error::TransactionLost`] the delivery was released.
    #[must_use = "whether the decision stands is told by the future; drop it if it doesn't matter"]
    pub fn retire(&self, delivery: Delivery, outcome: &Outcome) -> Settlement {
        delivery.decide(outcome, Some((self.attachment, &self.txn_id)))
    }

    /// Ends the transaction: everything takes effect.
    ///
    /// # Errors
    /// When the coordinator refuses, or with [`Error::TransactionLost`], nothing has taken effect.
    /// Where the connection is lost before the answer, the next one brings it. With [`Error::Unknown`] none came, or the
    /// coordinator had forgotten it: look at what the transaction was to change before you do it again.
    pub async fn commit(self) -> Result<(), Error> {
        self.discharge(false).await
    }

    /// Ends the transaction: nothing takes effect.
    ///
    /// # Errors
    /// When the coordinator does not know the transaction, or the connection was lost before its
    /// answer: nothing takes effect either. Also when the link or client has ended.
    pub async fn rollback(self) -> Result<(), Error> {
        self.discharge(true).await
    }

    async fn discharge(self, fail: bool) -> Result<(), Error> {
        let request = Request::Discharge(Discharge {
            txn_id: &self.txn_id,
            fail,
        });
        let fate = self.controller.request(self.attachment, &request).await?;
        match Outcome::of(&fate) {
            Outcome::Accepted => Ok(()),
            _ => Err(refusal(&fate)),
        }
    }
}
