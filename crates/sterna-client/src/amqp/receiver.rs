//! The application's side of a link that messages arrive by.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use sterna_amqp::DecodeError;
use tokio::sync::{mpsc, oneshot};

use super::connection::{Inlet, LinkHandle};
use super::driver::{Arrived, Attachment, Command, Decided};
use super::error::Remote;
use super::message::Message;
use super::options::ReceiverSettles;
use super::{Error, LinkInfo, Outcome};

/// A link that messages arrive by. Dropping it detaches the link: for good, or, where the source
/// outlives its link, not for good.
#[derive(Debug)]
pub struct Receiver {
    handle: LinkHandle,
    deliveries: mpsc::UnboundedReceiver<Arrived>,
    outlives_link: bool,
}

impl Receiver {
    pub(super) fn new(
        handle: LinkHandle,
        deliveries: mpsc::UnboundedReceiver<Arrived>,
        outlives_link: bool,
    ) -> Self {
        Self {
            handle,
            deliveries,
            outlives_link,
        }
    }

    /// The link's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// Waits until the peer has attached its end. For a dynamic source, the answer has its address.
    ///
    /// # Errors
    /// When it refused, or the link or client has ended.
    pub async fn attached(&self) -> Result<Arc<LinkInfo>, Error> {
        self.handle.attached().await
    }

    /// The next message.
    ///
    /// # Errors
    /// When the link or client has ended, with the reason.
    pub async fn next(&mut self) -> Result<Delivery, Error> {
        match self.deliveries.recv().await {
            Some(arrived) => Ok(self.take(arrived)),
            None => Err(self.handle.end()),
        }
    }

    /// The next message if there is one already.
    pub fn try_next(&mut self) -> Option<Delivery> {
        let arrived = self.deliveries.try_recv().ok()?;
        Some(self.take(arrived))
    }

    fn take(&self, arrived: Arrived) -> Delivery {
        let inlet = &self.handle.inlet;
        inlet.held.take(arrived.payload.len());
        if arrived.settled {
            // It needs no decision. That the client has ended the next call tells.
            let _ = inlet.send(Command::Taken {
                link: self.handle.link,
            });
        }
        Delivery {
            inlet: Arc::clone(inlet),
            link: self.handle.link,
            arrived,
        }
    }

    /// Gives credit for this number of further messages, with [`Credit::Manual`](super::Credit).
    ///
    /// # Errors
    /// When the client has ended.
    pub fn add_credit(&self, add: u32) -> Result<(), Error> {
        let link = self.handle.link;
        self.handle.inlet.send(Command::Credit { link, add })
    }

    /// Asks the peer to use up the credit at once, or give it back, and waits for that. Messages that
    /// came by it can be had from [`Receiver::try_next`] afterwards. With
    /// [`Credit::Window`](super::Credit) new credit follows.
    ///
    /// # Errors
    /// When the link is lost meanwhile.
    pub async fn drain(&self) -> Result<(), Error> {
        let link = self.handle.link;
        self.handle
            .inlet
            .ask(|done| Command::Drain { link, done })
            .await
    }

    /// Closes the link; a durable subscription ends with that.
    ///
    /// # Errors
    /// When the link had ended before, with the reason.
    pub async fn close(self) -> Result<(), Error> {
        self.handle.detach(true).await
    }

    /// Detaches the link without closing it: the peer keeps a durable subscription, and messages for
    /// it.
    ///
    /// # Errors
    /// When the link had ended before, with the reason.
    pub async fn detach(self) -> Result<(), Error> {
        self.handle.detach(false).await
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.handle.abandon(!self.outlives_link);
        self.deliveries.close();
        while let Ok(arrived) = self.deliveries.try_recv() {
            self.handle.inlet.held.take(arrived.payload.len());
        }
    }
}

/// A message that has arrived. Unless it is settled, the application decides about it.
///
/// If a delivery is dropped without a decision, it stays with this link, and uses its window. When
/// the link or connection ends, it goes to another receiver, or comes again.
#[derive(Debug)]
pub struct Delivery {
    inlet: Arc<Inlet>,
    link: u64,
    arrived: Arrived,
}

impl Delivery {
    /// The message.
    ///
    /// # Errors
    /// When the bytes are no message of format 0.
    pub fn message(&self) -> Result<Message, DecodeError> {
        Message::decode(&self.arrived.payload)
    }

    /// The bytes of the message with all its sections.
    #[must_use]
    pub const fn payload(&self) -> &Bytes {
        &self.arrived.payload
    }

    /// Format of the payload; 0 is a message of part 3.
    #[must_use]
    pub const fn message_format(&self) -> u32 {
        self.arrived.message_format
    }

    /// The delivery's name, at most 32 bytes.
    #[must_use]
    pub fn tag(&self) -> &[u8] {
        self.arrived.tag.as_bytes()
    }

    /// Whether the sender has settled: then there is nothing to decide.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.arrived.settled
    }

    /// Time at which this end is to settle.
    #[must_use]
    pub const fn receiver_settles(&self) -> ReceiverSettles {
        self.arrived.settle_mode
    }

    /// Takes the message.
    #[must_use = "whether the decision stands is told by the future; drop it if it doesn't matter"]
    pub fn accept(self) -> Settlement {
        self.settle(&Outcome::Accepted)
    }

    /// Refuses the message, which is not to be sent again.
    #[must_use = "whether the decision stands is told by the future; drop it if it doesn't matter"]
    pub fn reject(self, condition: &str, description: &str) -> Settlement {
        self.settle(&Outcome::Rejected(Some(Remote {
            condition: condition.to_owned(),
            description: Some(description.to_owned()),
        })))
    }

    /// Gives the message back, as if it had never come.
    #[must_use = "whether the decision stands is told by the future; drop it if it doesn't matter"]
    pub fn release(self) -> Settlement {
        self.settle(&Outcome::Released)
    }

    /// Decides in any way. The decision leaves at once; the future that comes back tells whether it
    /// stands.
    #[must_use = "whether the decision stands is told by the future; drop it if it doesn't matter"]
    pub fn settle(self, outcome: &Outcome) -> Settlement {
        self.decide(outcome, None)
    }

    /// Decides, within a transaction if there is one, which ends with this attachment.
    pub(super) fn decide(
        self,
        outcome: &Outcome,
        transaction: Option<(Attachment, &[u8])>,
    ) -> Settlement {
        let (done, answer) = oneshot::channel();
        if self.arrived.settled {
            let _ = done.send(Ok(()));
            return Settlement { answer };
        }
        let command = Command::Decide {
            generation: self.arrived.generation,
            decision: Decided {
                link: self.link,
                delivery_id: self.arrived.delivery_id,
                tag: self.arrived.tag,
                state: outcome.state(transaction.map(|(_, txn_id)| txn_id)),
                second: self.arrived.settle_mode == ReceiverSettles::Second,
                attachment: transaction.map(|(attachment, _)| attachment),
                done,
            },
        };
        // An end of the client closes the channel of the answer.
        let _ = self.inlet.send(command);
        Settlement { answer }
    }
}

/// Whether a decision about a delivery stands.
///
/// With [`ReceiverSettles::First`] it stands when it was told. With [`ReceiverSettles::Second`] it
/// stands when the sender has settled, too, also over several connections. [`Error::Stale`] means
/// that the connection was lost before the decision was told. The message then comes again.
/// Dropping the future changes nothing.
#[derive(Debug)]
pub struct Settlement {
    answer: oneshot::Receiver<Result<(), Error>>,
}

impl Future for Settlement {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        Poll::Ready(answer.unwrap_or(Err(Error::Ended)))
    }
}
