//! The application's side of a link that messages leave by.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot};

use super::connection::LinkHandle;
use super::driver::{Attachment, Command, Fate, OutgoingAmqpMessage, Sent};
use super::message::Message;
use super::options::SenderSettles;
use super::{Error, LinkInfo, Outcome};

/// A link for outgoing messages. Dropping it closes the link when all messages that were handed
/// over are settled.
#[derive(Debug)]
pub struct Sender {
    handle: LinkHandle,
    /// For messages under way.
    room: Arc<Semaphore>,
    settles: SenderSettles,
}

impl Sender {
    pub(super) fn new(handle: LinkHandle, room: Arc<Semaphore>, settles: SenderSettles) -> Self {
        Self {
            handle,
            room,
            settles,
        }
    }

    /// The link's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.name
    }

    /// Waits until the peer has attached its end.
    ///
    /// # Errors
    /// When it refused, or the link or client has ended.
    pub async fn attached(&self) -> Result<Arc<LinkInfo>, Error> {
        self.handle.attached().await
    }

    /// Hands a message over, waiting for room. The returned future gives its outcome, and may be
    /// dropped. With [`SenderSettles::Settled`] that is only that it was handed to the operating
    /// system.
    ///
    /// # Errors
    /// When the link or client has ended.
    pub async fn send(&self, message: Message) -> Result<Sending, Error> {
        self.hand_over(message.encode(), false, None, None).await
    }

    /// Sends a message and waits until the receiver has decided about it, through lost connections.
    ///
    /// # Errors
    /// When the message cannot be sent, or the link or client has ended. That the receiver has not
    /// taken the message is no error here; look at the outcome.
    pub async fn deliver(&self, message: Message) -> Result<Outcome, Error> {
        self.send(message).await?.await
    }

    /// Hands over a message that is settled as it is sent. Its outcome is unknown, and it is lost
    /// with a connection. The future that comes back says when it was handed to the operating
    /// system, and where it is early data, when the server has taken that.
    ///
    /// # Errors
    /// When the link settles otherwise ([`SenderSettles::Unsettled`]), or the link or client has
    /// ended.
    pub async fn send_settled(&self, message: Message) -> Result<Sending, Error> {
        if self.settles == SenderSettles::Unsettled {
            return Err(Error::Invalid("the link sends unsettled messages only"));
        }
        self.hand_over(message.encode(), true, None, None).await
    }

    /// Waits until the peer has attached its end, and gives this attachment.
    pub(super) async fn attachment(&self) -> Result<Attachment, Error> {
        Ok(Attachment {
            link: self.handle.link,
            number: self.attached().await?.attached,
        })
    }

    /// Hands an encoded message over, which is not sent once `attachment` has ended.
    pub(super) async fn hand_over(
        &self,
        payload: Bytes,
        settled: bool,
        attachment: Option<Attachment>,
        txn_id: Option<Bytes>,
    ) -> Result<Sending, Error> {
        let settled = settled || self.settles == SenderSettles::Settled;
        let inlet = &self.handle.inlet;
        let room = Arc::clone(&self.room).acquire_owned().await;
        let room = room.map_err(|_| inlet.end())?;
        let bytes = inlet.room(payload.len()).await?;
        let (done, fate) = oneshot::channel();
        inlet.send(Command::Send {
            link: self.handle.link,
            message: OutgoingAmqpMessage {
                payload,
                settled,
                txn_id,
                attachment,
                sent: Sent {
                    done: Some(done),
                    _room: room,
                    _bytes: bytes,
                },
            },
        })?;
        Ok(Sending { fate, settled })
    }

    /// Closes the link. Messages that have not been settled end with an error, so wait for them first.
    ///
    /// # Errors
    /// When the link had ended before, with the reason.
    pub async fn close(self) -> Result<(), Error> {
        self.handle.detach(true).await
    }

    /// Detaches the link without closing it. The peer keeps its end as long as the expiry policy
    /// and timeout of the target say.
    ///
    /// # Errors
    /// When the link had ended before, with the reason.
    pub async fn detach(self) -> Result<(), Error> {
        self.handle.detach(false).await
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.handle.abandon(true);
    }
}

/// The fate of a message that was handed over. Dropping it changes nothing.
#[derive(Debug)]
pub struct Sending {
    fate: oneshot::Receiver<Result<Fate, Error>>,
    settled: bool,
}

impl Sending {
    /// The peer's state for the delivery.
    pub(super) async fn fate(self) -> Result<Fate, Error> {
        self.fate.await.unwrap_or(Err(Error::Ended))
    }
}

impl Future for Sending {
    type Output = Result<Outcome, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let fate = ready!(Pin::new(&mut self.fate).poll(cx)).unwrap_or(Err(Error::Ended));
        Poll::Ready(fate.map(|fate| {
            if self.settled {
                Outcome::Accepted
            } else {
                Outcome::of(&fate)
            }
        }))
    }
}
