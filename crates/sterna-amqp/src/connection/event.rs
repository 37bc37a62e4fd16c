//! The engine's reports to its caller.

use bytes::Bytes;

use super::{LinkId, SessionId};
use crate::link::{DeliveryTag, Recovery, Unsettled};
use crate::messaging::DeliveryStateBuf;
use crate::performatives::{Attach, Begin, Error, Open, ReceiverSettleMode};

/// An event of a connection.
///
/// The event of a frame borrows from the frame.
/// [`Connection::next_event`](super::Connection::next_event) has the events that follow from it.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "lives on the stack for the time of one frame"
)]
pub enum Event<'a> {
    /// Server: the client has chosen a mechanism. To be answered with
    /// [`sasl_challenge`](super::Connection::sasl_challenge) or
    /// [`sasl_outcome`](super::Connection::sasl_outcome); until then no input is accepted.
    SaslInit {
        /// Its name.
        mechanism: &'a str,
        /// Whether it was offered. If not, the client can only be refused, and learns why by the outcome.
        is_offered: bool,
        /// The mechanism's first message.
        initial_response: Option<&'a [u8]>,
        /// The host that is addressed.
        hostname: Option<&'a str>,
    },
    /// Server: the answer to a challenge; to be answered like [`Event::SaslInit`].
    SaslResponse {
        /// The mechanism's message.
        response: &'a [u8],
    },
    /// Client: the server has let it in. Header and open have been sent: sessions can begin.
    Authenticated,
    /// The peer's open. A server answers with [`open`](super::Connection::open) or
    /// [`close`](super::Connection::close); until then no input is accepted.
    Open(Open<'a>),
    /// The peer has begun a session. The answer has been sent.
    Begin {
        /// The session.
        session: SessionId,
        /// The peer's begin.
        begin: Begin<'a>,
    },
    /// The peer has answered a begin.
    Begun {
        /// The session.
        session: SessionId,
        /// The peer's begin.
        begin: Begin<'a>,
    },
    /// The peer attaches a link. To be answered with
    /// [`accept_attach`](super::Connection::accept_attach) or
    /// [`refuse_attach`](super::Connection::refuse_attach).
    Attach {
        /// The link.
        link: LinkId,
        /// The peer's attach.
        attach: Attach<'a>,
    },
    /// The peer has answered an attach. Without a source (for a receiver) or target (for a sender)
    /// it refuses, and a detach with the reason follows.
    Attached {
        /// The link.
        link: LinkId,
        /// The peer's attach.
        attach: Attach<'a>,
    },
    /// Sender: the receiver has set credit or the drain flag.
    Credit {
        /// The link.
        link: LinkId,
        /// Deliveries that may be sent.
        credit: u32,
        /// Whether unused credit is to be given back with [`drained`](super::Connection::drained).
        drain: bool,
        /// The transaction to which deliveries on this credit belong (part 4, section 4.4.3).
        txn_id: Option<&'a [u8]>,
    },
    /// The peer's incoming window has opened after it was used up.
    Window {
        /// The session.
        session: SessionId,
    },
    /// Receiver: the sender has told its state.
    SenderFlow {
        /// The link.
        link: LinkId,
        /// Credit that is left; 0 after a drain.
        credit: u32,
        /// Messages that the sender has ready.
        available: u32,
    },
    /// A whole message.
    Delivery(Delivery<'a>),
    /// Receiver: a delivery has failed. The sender has given it up after a part of it, or has
    /// resumed one that is unknown here. Its credit is used up.
    Aborted {
        /// The link.
        link: LinkId,
    },
    /// The peer has decided on a delivery, or settled it. It may also have done so for a transaction. That a
    /// delivery is on its way makes no event.
    Disposition {
        /// The link.
        link: LinkId,
        /// The delivery.
        delivery_id: u32,
        /// The caller's value; the delivery-id for a received one.
        token: u64,
        /// State of the delivery at the peer.
        state: Option<DeliveryStateBuf>,
        /// Whether it is settled. If so it is forgotten here.
        settled: bool,
    },
    /// The fate of a delivery of a link that was suspended.
    Recover {
        /// The link.
        link: LinkId,
        /// The delivery.
        delivery: Unsettled,
        /// The required action.
        recovery: Recovery,
    },
    /// A link has ended, by either end. Every link that had an event ends with this one. So does a
    /// link without an event whose attach was a violation.
    Detached {
        /// The link.
        link: LinkId,
        /// Whether it is gone for good. Otherwise it is suspended and may be attached again.
        closed: bool,
        /// Why, if not as planned.
        error: Option<ErrorBuf>,
        /// Unsettled deliveries of the link. A suspended link is attached again with them.
        unsettled: Vec<Unsettled>,
    },
    /// A session has ended, by either end. The events of its links came before.
    Ended {
        /// The session.
        session: SessionId,
        /// Why, if not as planned.
        error: Option<ErrorBuf>,
    },
    /// The connection is over: the peer has closed it, or answered a close. The ends of its sessions
    /// and links follow.
    Closed {
        /// Why, if not as planned.
        error: Option<ErrorBuf>,
    },
}

/// A whole message that has arrived.
#[derive(Clone, Debug)]
pub struct Delivery<'a> {
    /// The link.
    pub link: LinkId,
    /// Delivery number, for the disposition.
    pub delivery_id: u32,
    /// Delivery tag.
    pub tag: DeliveryTag,
    /// Format of the payload; 0 is a message of part 3.
    pub message_format: u32,
    /// Whether the sender has settled: then there is no disposition.
    pub settled: bool,
    /// The end that settles first.
    pub settle_mode: ReceiverSettleMode,
    /// The state at the sender: a transaction, as a rule.
    pub state: Option<DeliveryStateBuf>,
    /// Whether the message may have been received before the link was suspended; if it may, the
    /// kept state.
    pub resumed: Option<Unsettled>,
    /// Whether the sender can wait for the disposition.
    pub batchable: bool,
    /// The message.
    pub payload: Payload<'a>,
}

/// The bytes of a message.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// Within the frame.
    Borrowed(&'a [u8]),
    /// Put together from several frames.
    Assembled(Bytes),
}

impl std::ops::Deref for Payload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Assembled(bytes) => bytes,
        }
    }
}

/// An error that is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorBuf {
    /// One of [`Condition`](crate::Condition), or another symbol.
    pub condition: Box<str>,
    /// For people.
    pub description: Option<Box<str>>,
}

impl From<&Error<'_>> for ErrorBuf {
    fn from(error: &Error<'_>) -> Self {
        Self {
            condition: error.condition.0.into(),
            description: error.description.map(Into::into),
        }
    }
}
