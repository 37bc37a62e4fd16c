//! State that outlives connections: the application's sessions and links.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use sterna_amqp::Lane;
use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::{DeliveryTag, Recovery, Unsettled};
use sterna_amqp::messaging::DeliveryStateBuf;
use sterna_amqp::performatives::ReceiverSettleMode;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::amqp::Error;
use crate::amqp::options::{Credit, ReceiverOptions, SenderOptions};
use crate::link::{Echoes, Told};

/// Where an answer goes.
pub(in crate::amqp) type Done<T> = oneshot::Sender<Result<T, Error>>;
/// Outcome of a sent delivery: its state, if the peer told one.
pub(in crate::amqp) type Fate = Option<DeliveryStateBuf>;

/// The peer's terms of a link, from its attach.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkInfo {
    /// The link's name.
    pub name: String,
    /// Address of the peer's node: the requested one, or the broker's choice for a dynamic node.
    /// `None` for the anonymous node.
    pub address: Option<String>,
    /// The largest message that the peer takes, in bytes, if it has a limit.
    pub max_message_bytes: Option<u64>,
    /// Names of the filters that the source applies.
    pub filters: Vec<String>,
    /// Number of times the link was attached, with this one.
    pub attached: u64,
}

/// The recipient of a sent message's outcome, and the room that the message takes.
pub(in crate::amqp) struct Sent {
    pub(in crate::amqp) done: Option<Done<Fate>>,
    /// Among the messages of its link.
    pub(in crate::amqp) _room: OwnedSemaphorePermit,
    /// Among the bytes of the connection.
    pub(in crate::amqp) _bytes: OwnedSemaphorePermit,
}

impl Sent {
    pub(super) fn tell(mut self, fate: Result<Fate, Error>) {
        if let Some(done) = self.done.take() {
            // The application may have dropped its end.
            let _ = done.send(fate);
        }
    }
}

/// One attachment of a coordinator's link. Its transactions end with it.
#[derive(Clone, Copy, Debug)]
pub(in crate::amqp) struct Attachment {
    pub(in crate::amqp) link: u64,
    /// Number of times that the link was attached, with this one.
    pub(in crate::amqp) number: u64,
}

/// A message that is to be sent, until it is settled.
pub(in crate::amqp) struct OutgoingAmqpMessage {
    pub(in crate::amqp) payload: Bytes,
    pub(in crate::amqp) settled: bool,
    /// The transaction that it is posted in.
    pub(in crate::amqp) txn_id: Option<Bytes>,
    /// The attachment that it ends with: of a post's transaction, or of a request to a coordinator.
    pub(in crate::amqp) attachment: Option<Attachment>,
    pub(in crate::amqp) sent: Sent,
}

/// A message of which parts have been sent.
pub(super) struct Sending {
    pub(super) token: u64,
    /// Bytes of the payload that were written.
    pub(super) offset: usize,
    /// The message, if it is settled; others are among those that were sent.
    pub(super) settled: Option<OutgoingAmqpMessage>,
}

/// A settled message in early data, as long as the server may reject that.
pub(super) struct EarlyMessage {
    pub(super) link: u64,
    pub(super) token: u64,
    pub(super) lane: Lane,
    pub(super) message: OutgoingAmqpMessage,
}

/// State of a sender.
pub(super) struct SenderState {
    pub(super) options: SenderOptions,
    /// The target is a coordinator of transactions.
    pub(super) coordinator: bool,
    /// To be sent as new deliveries, in order.
    pub(super) waiting: BTreeMap<u64, OutgoingAmqpMessage>,
    /// To be taken up again after the link was suspended, in order.
    pub(super) resuming: BTreeMap<u64, (Unsettled, Recovery)>,
    pub(super) sending: Option<Sending>,
    /// Sent and not settled.
    pub(super) sent: BTreeMap<u64, OutgoingAmqpMessage>,
    /// Number of those that wait for complete maps of unsettled deliveries.
    pub(super) undetermined: usize,
    /// The peer remembers the link.
    pub(super) peer_recovers: bool,
    /// The peer wants unused credit back.
    pub(super) drain: bool,
}

/// A message that arrived, on its way to the application.
#[derive(Debug)]
pub(in crate::amqp) struct Arrived {
    pub(in crate::amqp) generation: u64,
    pub(in crate::amqp) delivery_id: u32,
    pub(in crate::amqp) tag: DeliveryTag,
    pub(in crate::amqp) settled: bool,
    pub(in crate::amqp) settle_mode: ReceiverSettleMode,
    pub(in crate::amqp) message_format: u32,
    pub(in crate::amqp) payload: Bytes,
}

/// State of a receiver.
pub(super) struct ReceiverState {
    pub(super) options: ReceiverOptions,
    pub(super) deliveries: mpsc::UnboundedSender<Arrived>,
    /// Handed to the application, which has not decided.
    pub(super) outstanding: u32,
    /// Manual credit that is not used up.
    pub(super) granted: u32,
    pub(super) drain: Option<Done<()>>,
    /// The peer was asked for it.
    pub(super) drain_sent: bool,
    /// Decided, and not settled by the sender (receiver settle mode second), by delivery-id.
    pub(super) decided: HashMap<u32, (DeliveryTag, Done<()>)>,
    /// The same from before the link was suspended.
    pub(super) recovering: HashMap<DeliveryTag, Done<()>>,
}

impl ReceiverState {
    pub(super) const fn window(&self) -> Option<u32> {
        match self.options.credit {
            Credit::Window(window) => Some(window),
            Credit::Manual => None,
        }
    }
}

pub(super) enum Kind {
    Sender(SenderState),
    Receiver(ReceiverState),
}

/// A link of the application's.
pub(super) struct DriverLink {
    pub(super) session: u64,
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) status: Told<LinkInfo, Error>,
    /// Its number on this connection, from attach to detach.
    pub(super) id: Option<LinkId>,
    /// The peer has attached its end.
    pub(super) is_attached: bool,
    /// Number of times it was.
    pub(super) attached: u64,
    /// Counts suspensions, so that decisions about deliveries of before are known as such.
    pub(super) generation: u64,
    /// With which it is attached again.
    pub(super) unsettled: Vec<Unsettled>,
    /// With which it was attached last.
    pub(super) attached_with: Vec<Unsettled>,
    /// The application wants it to end: for good or not, and who is told.
    pub(super) detaching: Option<(bool, Option<Done<()>>)>,
    pub(super) detach_sent: bool,
    /// Number of attaches on a connection since the last progress.
    pub(super) restarts: u32,
    /// Attaches of earlier connections (part 2, section 2.6.1).
    pub(super) echoes: Echoes,
}

/// A session of the application's.
#[derive(Default)]
pub(super) struct DriverSession {
    /// Its channel on this connection.
    pub(super) id: Option<SessionId>,
    /// The application wants it to end, and who is told.
    pub(super) ending: Option<Done<()>>,
    pub(super) end_sent: bool,
    pub(super) restarts: u32,
}

/// A decision about a delivery, on its way.
pub(super) struct Decision {
    pub(super) link: u64,
    pub(super) delivery_id: u32,
    pub(super) tag: DeliveryTag,
    pub(super) state: DeliveryStateBuf,
    /// The sender settles first.
    pub(super) second: bool,
    pub(super) done: Done<()>,
}
