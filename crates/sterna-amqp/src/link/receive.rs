//! Receiving messages (AMQP 1.0, part 2, sections 2.6.12 to 2.6.14).

use bytes::BytesMut;

use super::{DeliveryTag, Link, LinkState, Partial, Recovery};
use crate::connection::{Context, Delivery, Event, Fault, LinkId, Payload};
use crate::frame::{self, Frame, TYPE_AMQP};
use crate::messaging::DeliveryStateBuf;
use crate::performatives::{
    Disposition, Performative, ReceiverSettleMode, Role, SenderSettleMode, Transfer,
};
use crate::session::{AmqpSession, IncomingDelivery, before};
use crate::{Condition, DecodeError, Limits};

impl Link {
    /// Whether a frame of the link is to be handled: not after the link's detach was sent.
    pub(crate) fn count_errant(&mut self, limits: &Limits) -> Result<bool, Fault> {
        match &mut self.state {
            LinkState::Errant { frames } => {
                *frames += 1;
                if *frames > limits.max_errant_frames {
                    return Err(Fault::Session(DecodeError::new(
                        Condition::ERRANT_LINK,
                        "link continues after its detach with an error",
                    )));
                }
                Ok(false)
            }
            LinkState::DetachSent { .. } => Ok(false),
            LinkState::AttachSent | LinkState::Deciding | LinkState::Attached => Ok(true),
        }
    }

    /// Checks the first transfer of a delivery and uses up its credit.
    fn begin_delivery(
        &mut self,
        transfer: &Transfer<'_>,
        last_delivery_id: Option<u32>,
    ) -> Result<Partial, Fault> {
        let fault = |error| Fault::Link(self.handle, error);
        let delivery_id = transfer
            .delivery_id
            .ok_or_else(|| fault(DecodeError::invalid("first transfer without a delivery-id")))?;
        if last_delivery_id.is_some_and(|last| !before(last, delivery_id)) {
            return Err(Fault::Session(DecodeError::invalid(
                "delivery-id is not after the last",
            )));
        }
        let tag = transfer.delivery_tag.ok_or_else(|| {
            fault(DecodeError::invalid(
                "first transfer without a delivery-tag",
            ))
        })?;
        let tag = DeliveryTag::new(tag)
            .ok_or_else(|| fault(DecodeError::invalid("delivery-tag is too long")))?;
        let settled = transfer.settled.unwrap_or(false);
        // A resumed delivery is settled when it is over, in any mode.
        let allowed = match self.snd_settle_mode {
            SenderSettleMode::Mixed => true,
            SenderSettleMode::Settled => settled || transfer.more || transfer.aborted,
            SenderSettleMode::Unsettled => !settled || transfer.resume,
        };
        if !allowed {
            return Err(fault(DecodeError::new(
                Condition::NOT_ALLOWED,
                "settlement against the sender settle mode",
            )));
        }
        if transfer.rcv_settle_mode == Some(ReceiverSettleMode::Second)
            && self.rcv_settle_mode == ReceiverSettleMode::First
        {
            return Err(fault(DecodeError::invalid(
                "receiver settle mode second on a link of mode first",
            )));
        }
        if self.credit > 0 {
            self.credit -= 1;
        } else if self.grace > 0 {
            self.grace -= 1;
        } else {
            return Err(fault(DecodeError::new(
                Condition::TRANSFER_LIMIT_EXCEEDED,
                "delivery without credit",
            )));
        }
        self.delivery_count = self.delivery_count.wrapping_add(1);
        self.available = self.available.saturating_sub(1);
        let mut resumed = None;
        if transfer.resume {
            let known = self.recovering.iter().position(|one| one.tag == tag);
            resumed = known.map(|index| self.recovering.swap_remove(index));
        }
        Ok(Partial {
            delivery_id,
            tag,
            message_format: transfer.message_format.unwrap_or(0),
            settled,
            settle_mode: transfer.rcv_settle_mode.unwrap_or(self.rcv_settle_mode),
            state: transfer.state.as_ref().map(DeliveryStateBuf::new),
            batchable: transfer.batchable,
            // Section 2.6.13: a resumed delivery that only the sender knows is ignored.
            ignored: transfer.resume && resumed.is_none(),
            resumed,
            payload: BytesMut::new(),
        })
    }

    /// Checks a transfer that goes on with a delivery.
    fn continue_delivery(&self, partial: &Partial, transfer: &Transfer<'_>) -> Result<(), Fault> {
        let invalid = |detail| Err(Fault::Link(self.handle, DecodeError::invalid(detail)));
        if transfer
            .delivery_id
            .is_some_and(|id| id != partial.delivery_id)
        {
            return invalid("delivery-id of another delivery before the end of this");
        }
        if transfer
            .delivery_tag
            .is_some_and(|tag| tag != partial.tag.as_bytes())
        {
            return invalid("delivery-tag changes within a delivery");
        }
        if transfer
            .message_format
            .is_some_and(|format| format != partial.message_format)
        {
            return invalid("message-format changes within a delivery");
        }
        Ok(())
    }
}

impl AmqpSession {
    pub(crate) fn transfer_received<'a>(
        &mut self,
        transfer: &Transfer<'a>,
        payload: &'a [u8],
        frame: &Frame<'a>,
        context: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Result<Option<Event<'a>>, Fault> {
        self.count_incoming(context, out)?;
        let session = self.id;
        let last_delivery_id = self.last_delivery_id;
        let link = self.remote_link(transfer.handle)?;
        let handle = link.handle;
        if !link.count_errant(context.limits)? {
            // Its number is used in any case.
            if let Some(id) = transfer.delivery_id
                && last_delivery_id.is_none_or(|last| before(last, id))
            {
                self.last_delivery_id = Some(id);
            }
            return Ok(None);
        }
        if link.role != Role::Receiver {
            return Err(Fault::Link(
                handle,
                DecodeError::new(Condition::NOT_ALLOWED, "transfer from a receiver"),
            ));
        }
        let id = LinkId { session, handle };
        let (mut partial, is_new) = match link.partial.take() {
            Some(partial) => {
                if let Err(fault) = link.continue_delivery(&partial, transfer) {
                    link.partial = Some(partial);
                    return Err(fault);
                }
                (*partial, false)
            }
            None => (link.begin_delivery(transfer, last_delivery_id)?, true),
        };
        let held = partial.payload.len();
        partial.settled |= transfer.settled.unwrap_or(false);
        let link_fault =
            |condition, detail| Err(Fault::Link(handle, DecodeError::new(condition, detail)));
        if link.max_message_bytes != 0
            && (partial.payload.len() + payload.len()) as u64 > link.max_message_bytes
        {
            self.assembling_bytes -= held;
            return link_fault(
                Condition::MESSAGE_SIZE_EXCEEDED,
                "message is larger than max-message-size",
            );
        }
        debug_assert!(
            self.assembling_bytes >= held,
            "the bytes of a partial delivery were counted"
        );
        if is_new {
            self.last_delivery_id = Some(partial.delivery_id);
        }
        self.assembling_bytes -= held;
        let link = self.remote_link(transfer.handle)?;
        if transfer.aborted {
            // An aborted delivery is settled (section 2.7.5).
            if let Some(delivery) = partial.resumed {
                context.events.push_back(Event::Recover {
                    link: id,
                    recovery: Recovery::Settled(delivery.state.clone()),
                    delivery,
                });
                return Ok(None);
            }
            return Ok(Some(Event::Aborted { link: id }));
        }
        if transfer.more {
            if !partial.ignored {
                partial.payload.extend_from_slice(payload);
            }
            let bytes = partial.payload.len();
            link.partial = Some(Box::new(partial));
            self.assembling_bytes += bytes;
            return Ok(None);
        }
        if link.snd_settle_mode == SenderSettleMode::Settled && !partial.settled {
            return link_fault(
                Condition::NOT_ALLOWED,
                "settlement against the sender settle mode",
            );
        }
        if partial.ignored {
            return Ok(Some(Event::Aborted { link: id }));
        }
        let payload = if partial.payload.is_empty() {
            frame
                .share(payload)
                .map_or(Payload::Borrowed(payload), Payload::Assembled)
        } else {
            partial.payload.extend_from_slice(payload);
            Payload::Assembled(std::mem::take(&mut partial.payload).freeze())
        };
        self.complete_delivery(partial, payload, id, context, out)
    }

    fn complete_delivery<'a>(
        &mut self,
        partial: Partial,
        payload: Payload<'a>,
        id: LinkId,
        context: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Result<Option<Event<'a>>, Fault> {
        let decided = partial
            .resumed
            .as_ref()
            .and_then(|delivery| delivery.state.clone())
            .filter(DeliveryStateBuf::is_terminal);
        if partial.settled
            && let Some(delivery) = partial.resumed.clone()
            && (decided.is_some() || payload.is_empty())
        {
            context.events.push_back(Event::Recover {
                link: id,
                delivery,
                recovery: Recovery::Settled(partial.state),
            });
            return Ok(None);
        }
        if !partial.settled {
            let token = partial
                .resumed
                .as_ref()
                .map_or_else(|| partial.delivery_id.into(), |delivery| delivery.token);
            let incoming = IncomingDelivery {
                handle: id.handle,
                tag: partial.tag,
                token,
                state: decided.clone(),
                settle_mode: partial.settle_mode,
            };
            let Ok(link) = self.link(id.handle) else {
                return Ok(None);
            };
            if link.unsettled >= context.limits.unsettled_per_link {
                return Err(Fault::Link(
                    id.handle,
                    DecodeError::new(
                        Condition::RESOURCE_LIMIT_EXCEEDED,
                        "too many unsettled deliveries",
                    ),
                ));
            }
            link.unsettled += 1;
            if !self.incoming.push(partial.delivery_id, incoming) {
                return Err(Fault::Session(DecodeError::new(
                    Condition::RESOURCE_LIMIT_EXCEEDED,
                    "delivery-ids too far from the oldest unsettled",
                )));
            }
        }
        if let (Some(state), Some(delivery)) = (&decided, partial.resumed.clone()) {
            // The decision of before is told again; the message has been received.
            frame::encode(out, TYPE_AMQP, self.id.0, |out| {
                Performative::Disposition(Disposition {
                    role: Role::Receiver,
                    first: partial.delivery_id,
                    last: None,
                    settled: false,
                    state: Some(state.view()),
                    batchable: false,
                })
                .encode(out);
            });
            context.events.push_back(Event::Recover {
                link: id,
                delivery,
                recovery: Recovery::Resumed {
                    delivery_id: partial.delivery_id,
                },
            });
            return Ok(None);
        }
        Ok(Some(Event::Delivery(Delivery {
            link: id,
            delivery_id: partial.delivery_id,
            tag: partial.tag,
            message_format: partial.message_format,
            settled: partial.settled,
            settle_mode: partial.settle_mode,
            state: partial.state,
            resumed: partial.resumed,
            batchable: partial.batchable,
            payload,
        })))
    }
}
