//! Flow control of sessions and links (AMQP 1.0, part 2, sections 2.5.6 and 2.6.7).

use bytes::BytesMut;

use super::{AmqpSession, OUTGOING_WINDOW, before};
use crate::connection::{Context, Event, Fault, LinkId};
use crate::frame::{self, TYPE_AMQP};
use crate::link::{Link, LinkState};
use crate::performatives::{Flow, Performative, Role};
use crate::types::Value;
use crate::{Condition, DecodeError};

/// Key of the transaction among the properties of a flow (part 4, section 4.4.3).
pub(crate) const TXN_ID: &str = "txn-id";

impl AmqpSession {
    /// The session's fields of a flow.
    pub(crate) fn flow(&self) -> Flow<'static> {
        Flow {
            next_incoming_id: self.is_begun().then_some(self.next_incoming_id),
            incoming_window: self.incoming_window,
            next_outgoing_id: self.next_outgoing_id,
            outgoing_window: OUTGOING_WINDOW,
            handle: None,
            delivery_count: None,
            link_credit: None,
            available: None,
            drain: false,
            echo: false,
            properties: None,
        }
    }

    pub(crate) fn write_flow(&self, flow: Flow<'_>, out: &mut BytesMut) {
        frame::encode(out, TYPE_AMQP, self.id.0, |out| {
            Performative::Flow(flow).encode(out);
        });
    }

    /// The link's fields of a flow.
    pub(crate) fn link_flow(&self, link: &Link) -> Flow<'static> {
        let known = link.role == Role::Sender || link.remote_handle.is_some();
        Flow {
            handle: Some(link.handle),
            delivery_count: known.then_some(link.delivery_count),
            link_credit: Some(link.credit),
            available: (link.role == Role::Sender).then_some(link.available),
            drain: link.drain,
            ..self.flow()
        }
    }

    pub(crate) fn write_link_flow(&self, handle: u32, echo: bool, out: &mut BytesMut) {
        if let Some(Some(link)) = self.links.get(handle as usize) {
            let flow = Flow {
                echo,
                ..self.link_flow(link)
            };
            self.write_flow(flow, out);
        }
    }

    /// Counts a transfer that came, and renews the window when half of it is used.
    pub(crate) fn count_incoming(
        &mut self,
        context: &Context<'_>,
        out: &mut BytesMut,
    ) -> Result<(), Fault> {
        if self.incoming_window == 0 {
            return Err(Fault::Session(DecodeError::new(
                Condition::WINDOW_VIOLATION,
                "more transfers than the incoming window",
            )));
        }
        debug_assert!(
            self.incoming_window <= context.limits.incoming_window,
            "a window is at most the announced one"
        );
        self.incoming_window -= 1;
        self.next_incoming_id = self.next_incoming_id.wrapping_add(1);
        if self.incoming_window <= context.limits.incoming_window / 2 {
            self.incoming_window = context.limits.incoming_window;
            self.write_flow(self.flow(), out);
        }
        Ok(())
    }

    pub(crate) fn flow_received<'a>(
        &mut self,
        flow: &Flow<'a>,
        context: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Result<Option<Event<'a>>, Fault> {
        // Without it the peer has not read the begin: all frames since then count.
        let expected = flow.next_incoming_id.unwrap_or(0);
        if before(self.next_outgoing_id, expected) {
            return Err(Fault::Session(DecodeError::invalid(
                "next-incoming-id of a transfer that was not sent",
            )));
        }
        let sent_since = self.next_outgoing_id.wrapping_sub(expected);
        let was_shut = self.remote_incoming_window == 0;
        self.remote_incoming_window = flow.incoming_window.saturating_sub(sent_since);
        if was_shut && self.remote_incoming_window > 0 {
            context.events.push_back(Event::Window { session: self.id });
        }
        let Some(remote_handle) = flow.handle else {
            if flow.delivery_count.is_some()
                || flow.link_credit.is_some()
                || flow.available.is_some()
                || flow.drain
            {
                return Err(Fault::Session(DecodeError::invalid(
                    "flow of a link without a handle",
                )));
            }
            if flow.echo {
                self.write_flow(self.flow(), out);
            }
            return Ok(None);
        };
        let id = self.id;
        let link = self.remote_link(remote_handle)?;
        if !link.count_errant(context.limits)? {
            return Ok(None);
        }
        let handle = link.handle;
        let event = match link.role {
            Role::Sender => {
                if let Some(credit) = flow.link_credit {
                    let count = flow.delivery_count.unwrap_or(link.initial_delivery_count);
                    if before(link.delivery_count, count) {
                        return Err(Fault::Link(
                            handle,
                            DecodeError::invalid("delivery-count of a delivery that was not sent"),
                        ));
                    }
                    let since = link.delivery_count.wrapping_sub(count);
                    link.credit = credit.saturating_sub(since);
                }
                link.drain = flow.drain;
                Event::Credit {
                    link: LinkId {
                        session: id,
                        handle,
                    },
                    credit: link.credit,
                    drain: link.drain,
                    txn_id: flow.properties.and_then(|map| match map.get(TXN_ID) {
                        Some(Value::Binary(txn_id)) => Some(txn_id),
                        _ => None,
                    }),
                }
            }
            Role::Receiver => {
                if let Some(count) = flow.delivery_count {
                    link.sender_counts(count)
                        .map_err(|error| Fault::Link(handle, error))?;
                }
                link.available = flow.available.unwrap_or(0);
                Event::SenderFlow {
                    link: LinkId {
                        session: id,
                        handle,
                    },
                    credit: link.credit,
                    available: link.available,
                }
            }
        };
        // A drain is answered when it is done.
        if flow.echo && link.state == LinkState::Attached {
            self.write_link_flow(handle, false, out);
        }
        Ok(Some(event))
    }
}

impl Link {
    /// Receiver: takes the sender's count of deliveries; the sender may have skipped some to use up
    /// credit.
    fn sender_counts(&mut self, count: u32) -> Result<(), DecodeError> {
        if before(count, self.delivery_count) {
            return Err(DecodeError::invalid("delivery-count goes back"));
        }
        let skipped = count.wrapping_sub(self.delivery_count);
        if skipped > self.credit.saturating_add(self.grace) {
            return Err(DecodeError::new(
                Condition::TRANSFER_LIMIT_EXCEEDED,
                "delivery-count beyond the credit",
            ));
        }
        self.delivery_count = count;
        self.grace -= skipped.saturating_sub(self.credit);
        self.credit = self.credit.saturating_sub(skipped);
        if self.credit == 0 {
            self.drain = false;
        }
        Ok(())
    }
}
