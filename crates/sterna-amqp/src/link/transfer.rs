//! Sending messages (AMQP 1.0, part 2, sections 2.6.12 and 2.6.14).

use bytes::BytesMut;

use super::{DeliveryTag, Link, LinkState, Sending};
use crate::connection::{Connection, Context, LinkId};
use crate::frame::{self, TYPE_AMQP};
use crate::messaging::{DeliveryState, DeliveryStateBuf};
use crate::performatives::{Performative, ReceiverSettleMode, Role, SenderSettleMode, Transfer};
use crate::session::{AmqpSession, OutgoingDelivery};
use crate::{CommandError, LaneWriter};

/// A delivery that is to be sent.
#[derive(Clone, Debug)]
pub struct OutgoingTransfer<'a> {
    /// Delivery tag of at most 32 bytes, unique among the unsettled deliveries of the link.
    pub tag: &'a [u8],
    /// The caller's, for the events about it.
    pub token: u64,
    /// Format of the payload; 0 is a message of part 3.
    pub message_format: u32,
    /// Whether it is settled as it is sent.
    pub settled: bool,
    /// Settle mode of the receiver, if not that of the link.
    pub rcv_settle_mode: Option<ReceiverSettleMode>,
    /// State of the delivery, mostly a transaction.
    pub state: Option<DeliveryState<'a>>,
    /// Whether it is one from before the link was suspended
    /// ([`Recovery::Resume`](super::Recovery), [`Recovery::Settle`](super::Recovery)).
    pub resume: bool,
    /// Whether the disposition may take its time.
    pub batchable: bool,
}

impl<'a> OutgoingTransfer<'a> {
    /// A new, unsettled delivery.
    #[must_use]
    pub const fn new(tag: &'a [u8], token: u64) -> Self {
        Self {
            tag,
            token,
            message_format: 0,
            settled: false,
            rcv_settle_mode: None,
            state: None,
            resume: false,
            batchable: false,
        }
    }
}

/// The written part of a delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Number of the delivery in the session.
    pub delivery_id: u32,
    /// Written bytes of the payload. [`Connection::transfer_more`] sends the rest when the window
    /// has opened.
    pub payload_bytes: usize,
    /// Whether it is whole: everything was written, and no more was announced.
    pub complete: bool,
}

/// Bytes of several slices, one after the other.
struct Pieces<'p> {
    slices: &'p [&'p [u8]],
    offset: usize,
    left: usize,
}

impl<'p> Pieces<'p> {
    fn new(pieces: &'p [&'p [u8]]) -> Self {
        Self {
            slices: pieces,
            offset: 0,
            left: pieces.iter().map(|piece| piece.len()).sum(),
        }
    }

    fn take(&mut self, mut bytes: usize, out: &mut BytesMut) {
        self.left -= bytes;
        while let Some((piece, rest)) = self.slices.split_first() {
            let available = &piece[self.offset..];
            if available.len() > bytes {
                out.extend_from_slice(&available[..bytes]);
                self.offset += bytes;
                return;
            }
            out.extend_from_slice(available);
            bytes -= available.len();
            self.slices = rest;
            self.offset = 0;
        }
    }
}

impl AmqpSession {
    /// Writes transfers until the payload is used up or the window is shut.
    fn write_transfers(
        &mut self,
        handle: u32,
        mut first: Transfer<'_>,
        payload: &[&[u8]],
        more: bool,
        context: &Context<'_>,
        out: &mut BytesMut,
    ) -> Result<(usize, bool), CommandError> {
        let mut pieces = Pieces::new(payload);
        let whole = pieces.left;
        loop {
            if self.remote_incoming_window == 0 {
                break;
            }
            let start = frame::begin(out, TYPE_AMQP, self.id.0);
            first.more = more;
            Performative::Transfer(first.clone()).encode(out);
            let mut used = out.len() - start;
            if used + pieces.left > context.peer_frame_bytes && !more {
                out.truncate(start + frame::FRAME_HEADER_BYTES);
                first.more = true;
                Performative::Transfer(first.clone()).encode(out);
                used = out.len() - start;
            }
            let room = context.peer_frame_bytes.saturating_sub(used);
            if used > context.peer_frame_bytes || (room == 0 && pieces.left > 0) {
                out.truncate(start);
                return Err(CommandError::FrameTooLarge);
            }
            pieces.take(room.min(pieces.left), out);
            frame::finish(out, start);
            self.remote_incoming_window -= 1;
            self.next_outgoing_id = self.next_outgoing_id.wrapping_add(1);
            if pieces.left == 0 {
                // Even with nothing left, a frame that said there was more is not the last.
                if more || !first.more {
                    break;
                }
            }
            // Fields of the first transfer are not repeated.
            first = Transfer {
                settled: None,
                ..continuation(handle)
            };
        }
        let sent = whole - pieces.left;
        Ok((sent, pieces.left == 0 && !first.more))
    }
}

const fn continuation(handle: u32) -> Transfer<'static> {
    Transfer {
        handle,
        delivery_id: None,
        delivery_tag: None,
        message_format: None,
        settled: None,
        more: false,
        rcv_settle_mode: None,
        state: None,
        resume: false,
        aborted: false,
        batchable: false,
    }
}

fn sender(link: &Link) -> Result<(), CommandError> {
    if link.role != Role::Sender {
        return Err(CommandError::WrongRole);
    }
    match link.state {
        // With credit that is known beforehand, even before the answer.
        LinkState::Attached | LinkState::AttachSent => Ok(()),
        _ => Err(CommandError::State),
    }
}

impl Connection {
    /// Sender: whether [`Connection::transfer`] would send an unsettled delivery now (a resumed one
    /// only, if the link [is incomplete](Connection::is_incomplete)). A delivery that is sent
    /// settled needs no room among the unsettled ones. It can be sent even if this returns false
    /// for lack of that room.
    #[must_use]
    pub fn can_send(&self, id: LinkId) -> bool {
        let session = self.sessions_at(id.session);
        session.is_some_and(|session| session.is_live() && session.remote_incoming_window > 0)
            && self.link_at(id).is_some_and(|link| {
                sender(link).is_ok()
                    && link.credit > 0
                    && link.sending.is_none()
                    && link.unsettled < self.limits().unsettled_per_link
            })
    }

    /// Sender: bytes of the largest message that the peer takes on a link; `None` for any.
    #[must_use]
    pub fn peer_max_message_bytes(&self, id: LinkId) -> Option<u64> {
        let link = self.link_at(id).filter(|link| sender(link).is_ok())?;
        Some(link.max_message_bytes).filter(|&bytes| bytes != 0)
    }

    /// Sender: sends a delivery, in one or more transfers. `payload` is given in pieces, which need
    /// not be put together. With `more`, further pieces follow in later calls.
    ///
    /// The part that exceeds the session's window is left: see [`Sent`].
    ///
    /// # Errors
    ///
    /// [`CommandError::NoCredit`] if the link has no credit or the session no window.
    /// [`CommandError::State`] while another delivery is incomplete. Also while unsettled maps are
    /// incomplete and this delivery is not resumed. [`CommandError::Argument`] for a tag that is
    /// too long, or a settlement that the settle mode excludes. [`CommandError::MessageTooLarge`]
    /// above the peer's limit. [`CommandError::Limit`] with the largest number of unsettled
    /// deliveries.
    pub fn transfer(
        &mut self,
        id: LinkId,
        transfer: &OutgoingTransfer<'_>,
        payload: &[&[u8]],
        more: bool,
        out: &mut impl LaneWriter,
    ) -> Result<Sent, CommandError> {
        let (session, context) = self.session(id.session)?;
        let window = session.remote_incoming_window;
        let link = session.link(id.handle)?;
        sender(link)?;
        let tag = DeliveryTag::new(transfer.tag).ok_or(CommandError::Argument)?;
        let settled = match link.snd_settle_mode {
            SenderSettleMode::Mixed => true,
            SenderSettleMode::Settled => transfer.settled,
            SenderSettleMode::Unsettled => !transfer.settled || transfer.resume,
        };
        if !settled {
            return Err(CommandError::Argument);
        }
        if link.sending.is_some() || (link.incomplete && !transfer.resume) {
            return Err(CommandError::State);
        }
        if link.credit == 0 || window == 0 {
            return Err(CommandError::NoCredit);
        }
        if !transfer.settled && link.unsettled >= context.limits.unsettled_per_link {
            return Err(CommandError::Limit);
        }
        let bytes: u64 = payload.iter().map(|piece| piece.len() as u64).sum();
        if link.max_message_bytes != 0 && bytes > link.max_message_bytes {
            return Err(CommandError::MessageTooLarge);
        }
        let delivery_id = session.next_delivery_id;
        let first = Transfer {
            delivery_id: Some(delivery_id),
            delivery_tag: Some(transfer.tag),
            message_format: Some(transfer.message_format),
            settled: transfer.settled.then_some(true),
            rcv_settle_mode: transfer.rcv_settle_mode,
            state: transfer.state.clone(),
            resume: transfer.resume,
            batchable: transfer.batchable,
            ..continuation(id.handle)
        };
        let outgoing = OutgoingDelivery {
            handle: id.handle,
            tag,
            token: transfer.token,
            state: transfer.state.as_ref().map(DeliveryStateBuf::new),
        };
        if !transfer.settled && !session.outgoing.push(delivery_id, outgoing) {
            return Err(CommandError::Limit);
        }
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        let start = buffer.len();
        let written = session.write_transfers(id.handle, first, payload, more, &context, buffer);
        let (payload_bytes, complete) = match written {
            Ok(written) => written,
            Err(error) => {
                buffer.truncate(start);
                session.outgoing.remove(delivery_id);
                return Err(error);
            }
        };
        session.next_delivery_id = delivery_id.wrapping_add(1);
        let link = session.link(id.handle)?;
        link.delivery_count = link.delivery_count.wrapping_add(1);
        link.credit -= 1;
        link.available = link.available.saturating_sub(1);
        if transfer.resume {
            link.recovering.retain(|one| one.tag != tag);
        }
        if !transfer.settled {
            link.unsettled += 1;
            debug_assert!(
                link.unsettled <= context.limits.unsettled_per_link,
                "the limit was looked at before"
            );
        }
        link.sending = (!complete).then_some(Sending {
            delivery_id,
            bytes: payload_bytes as u64,
        });
        Ok(Sent {
            delivery_id,
            payload_bytes,
            complete,
        })
    }

    /// Sender: goes on with a delivery that is incomplete.
    ///
    /// # Errors
    ///
    /// [`CommandError::State`] if none is; [`CommandError::NoCredit`] if the session has no window;
    /// [`CommandError::MessageTooLarge`]: then [`Connection::abort`] it.
    pub fn transfer_more(
        &mut self,
        id: LinkId,
        payload: &[&[u8]],
        more: bool,
        out: &mut impl LaneWriter,
    ) -> Result<Sent, CommandError> {
        let (session, context) = self.session(id.session)?;
        if session.remote_incoming_window == 0 {
            return Err(CommandError::NoCredit);
        }
        let link = session.link(id.handle)?;
        sender(link)?;
        let mut sending = link.sending.ok_or(CommandError::State)?;
        let bytes: u64 = payload.iter().map(|piece| piece.len() as u64).sum();
        if link.max_message_bytes != 0 && sending.bytes + bytes > link.max_message_bytes {
            return Err(CommandError::MessageTooLarge);
        }
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        let next = continuation(id.handle);
        let (payload_bytes, complete) =
            session.write_transfers(id.handle, next, payload, more, &context, buffer)?;
        sending.bytes += payload_bytes as u64;
        session.link(id.handle)?.sending = (!complete).then_some(sending);
        Ok(Sent {
            delivery_id: sending.delivery_id,
            payload_bytes,
            complete,
        })
    }

    /// Sender: gives up a delivery that is incomplete. It is settled and forgotten; its credit is
    /// used up.
    ///
    /// # Errors
    ///
    /// [`CommandError::State`] if none is; [`CommandError::NoCredit`] if the session has no window.
    pub fn abort(&mut self, id: LinkId, out: &mut impl LaneWriter) -> Result<(), CommandError> {
        let (session, context) = self.session(id.session)?;
        if session.remote_incoming_window == 0 {
            return Err(CommandError::NoCredit);
        }
        let link = session.link(id.handle)?;
        let sending = link.sending.take().ok_or(CommandError::State)?;
        // The peer may have settled what it has only a part of.
        if session.outgoing.remove(sending.delivery_id).is_some() {
            let link = session.link(id.handle)?;
            debug_assert!(link.unsettled > 0, "what is given up was counted");
            link.unsettled = link.unsettled.saturating_sub(1);
        }
        let transfer = Transfer {
            aborted: true,
            ..continuation(id.handle)
        };
        session.remote_incoming_window -= 1;
        session.next_outgoing_id = session.next_outgoing_id.wrapping_add(1);
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        session.write(
            &Performative::Transfer(transfer),
            context.peer_frame_bytes,
            buffer,
        )
    }

    /// Sender: ends a delivery of before that cannot be resumed ([`Recovery::Abort`]).
    ///
    /// # Errors
    ///
    /// As [`Connection::transfer`].
    ///
    /// [`Recovery::Abort`]: super::Recovery::Abort
    pub fn abort_resumed(
        &mut self,
        id: LinkId,
        tag: &[u8],
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let (session, context) = self.session(id.session)?;
        let window = session.remote_incoming_window;
        let link = session.link(id.handle)?;
        sender(link)?;
        if link.sending.is_some() {
            return Err(CommandError::State);
        }
        if link.credit == 0 || window == 0 {
            return Err(CommandError::NoCredit);
        }
        let kept = DeliveryTag::new(tag).ok_or(CommandError::Argument)?;
        link.recovering.retain(|one| one.tag != kept);
        link.delivery_count = link.delivery_count.wrapping_add(1);
        link.credit -= 1;
        let delivery_id = session.next_delivery_id;
        session.next_delivery_id = delivery_id.wrapping_add(1);
        session.remote_incoming_window -= 1;
        session.next_outgoing_id = session.next_outgoing_id.wrapping_add(1);
        let transfer = Transfer {
            delivery_id: Some(delivery_id),
            delivery_tag: Some(tag),
            message_format: Some(0),
            resume: true,
            aborted: true,
            ..continuation(id.handle)
        };
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        session.write(
            &Performative::Transfer(transfer),
            context.peer_frame_bytes,
            buffer,
        )
    }
}
