//! States and settlement of deliveries (AMQP 1.0, part 2, sections 2.6.12 and 2.7.6).

use super::{AmqpSession, before};
use crate::connection::{Connection, Context, Event, Fault, SessionId, Told};
use crate::link::Link;
use crate::messaging::{DeliveryState, DeliveryStateBuf};
use crate::performatives::{Disposition, Performative, ReceiverSettleMode, Role};
use crate::{CommandError, DecodeError, LaneWriter};

fn unsettle(links: &mut [Option<Box<Link>>], handle: u32) {
    if let Some(Some(link)) = links.get_mut(handle as usize) {
        debug_assert!(link.unsettled > 0, "what is settled was counted");
        link.unsettled = link.unsettled.saturating_sub(1);
    }
}

impl AmqpSession {
    /// Unsettled deliveries, sent and received.
    pub(crate) fn unsettled_deliveries(&self) -> usize {
        self.outgoing.len() + self.incoming.len()
    }

    pub(crate) fn disposition_received<'a>(
        &mut self,
        disposition: &Disposition<'a>,
        context: &mut Context<'_>,
    ) -> Result<Option<Event<'a>>, Fault> {
        let first = disposition.first;
        let last = disposition.last.unwrap_or(first);
        if before(last, first) {
            return Err(Fault::Session(DecodeError::invalid(
                "last delivery before the first",
            )));
        }
        let settled = disposition.settled;
        let state = disposition.state.as_ref().map(DeliveryStateBuf::new);
        // That a delivery is on its way decides nothing. It is kept for the case that the link is suspended.
        let decides = !matches!(state, None | Some(DeliveryStateBuf::Received(_)));
        let session = self.id;
        let links = &mut self.links;
        let mut tell = |handle, delivery_id, token, state: Option<&DeliveryStateBuf>| {
            if settled {
                unsettle(links, handle);
            }
            let told = Told {
                handle,
                delivery_id,
                token,
            };
            (context.events).push_disposition(session, told, state, settled);
        };
        match disposition.role {
            Role::Receiver => self.outgoing.retain_range(first, last, |id, one| {
                let news = state.is_some() && one.state != state;
                if news {
                    one.state.clone_from(&state);
                }
                if (news && decides) || settled {
                    tell(one.handle, id, one.token, one.state.as_ref());
                }
                !settled
            }),
            Role::Sender => self.incoming.retain_range(first, last, |id, one| {
                // A sender's own outcome is reported; this end's state stays.
                if settled || decides {
                    tell(one.handle, id, one.token, state.as_ref());
                }
                !settled
            }),
        }
        Ok(None)
    }
}

impl Connection {
    /// Receiver: reports the state of deliveries of a session from `first` to `last`, both
    /// included, on any links. With `settled`, they are settled. Deliveries that are settled
    /// already are skipped.
    ///
    /// # Errors
    ///
    /// [`CommandError::Argument`] if `last` is before `first`. Also if the sender has to settle one
    /// of the deliveries first (receiver settle mode second).
    pub fn dispose(
        &mut self,
        session: SessionId,
        (first, last): (u32, u32),
        state: Option<&DeliveryState<'_>>,
        settled: bool,
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let (session, context) = self.session(session)?;
        if before(last, first) {
            return Err(CommandError::Argument);
        }
        let kept = state.map(DeliveryStateBuf::new);
        let mut second = false;
        session.incoming.retain_range(first, last, |_, one| {
            second |= one.settle_mode == ReceiverSettleMode::Second;
            true
        });
        if settled && second {
            return Err(CommandError::Argument);
        }
        let disposition = Performative::Disposition(Disposition {
            role: Role::Receiver,
            first,
            last: (last != first).then_some(last),
            settled,
            state: state.cloned(),
            batchable: false,
        });
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        session.write(&disposition, context.peer_frame_bytes, buffer)?;
        let links = &mut session.links;
        session.incoming.retain_range(first, last, |_, one| {
            if kept.is_some() {
                one.state.clone_from(&kept);
            }
            if settled {
                unsettle(links, one.handle);
            }
            !settled
        });
        Ok(())
    }

    /// Sender: settles the deliveries of a session from `first` to `last`, both included, and
    /// forgets them. That is the answer to a disposition that told an outcome without settling
    /// (receiver settle mode second).
    ///
    /// # Errors
    ///
    /// [`CommandError::Argument`] if `last` is before `first`.
    pub fn settle(
        &mut self,
        session: SessionId,
        (first, last): (u32, u32),
        state: Option<&DeliveryState<'_>>,
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let (session, context) = self.session(session)?;
        if before(last, first) {
            return Err(CommandError::Argument);
        }
        let disposition = Performative::Disposition(Disposition {
            role: Role::Sender,
            first,
            last: (last != first).then_some(last),
            settled: true,
            state: state.cloned(),
            batchable: false,
        });
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        session.write(&disposition, context.peer_frame_bytes, buffer)?;
        let links = &mut session.links;
        session.outgoing.retain_range(first, last, |_, one| {
            unsettle(links, one.handle);
            false
        });
        Ok(())
    }

    /// Sender: tells a state of its own without settling, for example an outcome of its own.
    ///
    /// # Errors
    ///
    /// [`CommandError::Argument`] if the delivery does not exist or is settled.
    pub fn update(
        &mut self,
        session: SessionId,
        delivery_id: u32,
        state: &DeliveryState<'_>,
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let (session, context) = self.session(session)?;
        if session.outgoing.get_mut(delivery_id).is_none() {
            return Err(CommandError::Argument);
        }
        let disposition = Performative::Disposition(Disposition {
            role: Role::Sender,
            first: delivery_id,
            last: None,
            settled: false,
            state: Some(state.clone()),
            batchable: false,
        });
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        session.write(&disposition, context.peer_frame_bytes, buffer)?;
        if let Some(one) = session.outgoing.get_mut(delivery_id) {
            one.state = Some(DeliveryStateBuf::new(state));
        }
        Ok(())
    }

    /// Unsettled deliveries of a session: sent, and received.
    #[must_use]
    pub fn unsettled(&self, session: SessionId) -> (usize, usize) {
        match self.sessions_at(session) {
            Some(session) => (session.outgoing.len(), session.incoming.len()),
            None => (0, 0),
        }
    }
}
