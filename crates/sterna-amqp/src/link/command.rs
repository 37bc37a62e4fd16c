//! The caller's commands for links.

use bytes::BytesMut;

use super::recovery::{encode_map, reconcile};
use super::{AttachOptions, Link, LinkState, Recovery, Unsettled};
use crate::connection::{Connection, Context, Event, LinkId, SessionId};
use crate::frame::{self, TYPE_AMQP};
use crate::performatives::{Attach, Detach, Error, Flow, Performative, Role};
use crate::session::AmqpSession;
use crate::session::flow::TXN_ID;
use crate::types::{Encoded, Map, MapWriter, Value};
use crate::{CommandError, LaneWriter, Limits};

/// Most of a frame that an unsettled map may take: the rest of the attach needs room, too.
const MAP_PARTS: (usize, usize) = (3, 4);

impl AmqpSession {
    /// Writes an attach with the unsettled deliveries.
    fn write_attach(
        &mut self,
        handle: u32,
        options: &AttachOptions<'_>,
        context: &Context<'_>,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let Some(Some(link)) = self.links.get_mut(handle as usize) else {
            return Err(CommandError::NoLink);
        };
        let max_message_bytes = own_max_message_bytes(options, context.limits);
        let (map, incomplete) = if options.recover || !options.unsettled.is_empty() {
            let room = context.peer_frame_bytes / MAP_PARTS.1 * MAP_PARTS.0;
            let (map, incomplete) = encode_map(options.unsettled, room);
            (Some(map), incomplete || options.is_incomplete)
        } else {
            (None, false)
        };
        let unsettled = match map.as_ref().map(Encoded::value) {
            Some(Value::Map(map)) => Some(map),
            _ => None,
        };
        let attach = Attach {
            unsettled,
            incomplete_unsettled: incomplete,
            ..options.attach(link, max_message_bytes)
        };
        let start = out.len();
        frame::encode(out, TYPE_AMQP, self.id.0, |out| {
            Performative::Attach(attach).encode(out);
        });
        if out.len() - start > context.peer_frame_bytes {
            out.truncate(start);
            return Err(CommandError::FrameTooLarge);
        }
        link.incomplete |= incomplete;
        link.recovering = options.unsettled.to_vec();
        match link.role {
            Role::Sender => {
                link.delivery_count = options.initial_delivery_count;
                link.initial_delivery_count = options.initial_delivery_count;
            }
            Role::Receiver => link.max_message_bytes = max_message_bytes,
        }
        Ok(())
    }

    /// Both attaches are known: compares the unsettled deliveries.
    pub(crate) fn recover_link(
        &mut self,
        handle: u32,
        remote: Option<Map<'_>>,
        context: &mut Context<'_>,
        _out: &mut BytesMut,
    ) {
        let id = LinkId {
            session: self.id,
            handle,
        };
        let Some(Some(link)) = self.links.get_mut(handle as usize) else {
            return;
        };
        link.incomplete |= link.remote_incomplete;
        if link.recovering.is_empty() {
            return;
        }
        let own = std::mem::take(&mut link.recovering);
        let reconciled = reconcile(link.role, own, remote, link.remote_incomplete);
        link.recovering = match link.role {
            // A sender's come back with their transfers; those that wait are kept.
            Role::Sender => reconciled
                .events
                .iter()
                .filter(|(_, recovery)| {
                    !matches!(recovery, Recovery::Settled(_) | Recovery::Resend)
                })
                .map(|(delivery, _)| delivery.clone())
                .collect(),
            Role::Receiver => reconciled.kept,
        };
        for (delivery, recovery) in reconciled.events {
            context.events.push_back(Event::Recover {
                link: id,
                delivery,
                recovery,
            });
        }
    }
}

fn own_max_message_bytes(options: &AttachOptions<'_>, limits: &Limits) -> u64 {
    match options.max_message_size {
        None | Some(0) => limits.max_message_bytes,
        Some(bytes) => bytes.min(limits.max_message_bytes),
    }
}

impl Connection {
    /// Attaches a link, for the first time or again. The peer's answer brings
    /// [`Event::Attached`].
    ///
    /// # Errors
    ///
    /// [`CommandError::Limit`] if there are as many links as the peer or the limits allow, or the
    /// name is too long. [`CommandError::State`] if the session has a link of that name and role;
    /// [`CommandError::FrameTooLarge`].
    pub fn attach(
        &mut self,
        session: SessionId,
        name: &str,
        role: Role,
        options: &AttachOptions<'_>,
        out: &mut impl LaneWriter,
    ) -> Result<LinkId, CommandError> {
        let (session, context) = self.session(session)?;
        let taken = session
            .links
            .iter()
            .flatten()
            .any(|link| link.role == role && *link.name == *name);
        if taken {
            return Err(CommandError::State);
        }
        if name.len() > context.limits.max_link_name_bytes as usize {
            return Err(CommandError::Limit);
        }
        let handle = session
            .free_handle(context.limits)
            .ok_or(CommandError::Limit)?;
        let mut link = Link::new(name, role, handle, LinkState::AttachSent);
        link.snd_settle_mode = options.snd_settle_mode;
        link.rcv_settle_mode = options.rcv_settle_mode;
        session.put_link(link);
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        if let Err(error) = session.write_attach(handle, options, &context, buffer) {
            session.remove_link(handle, context.names);
            return Err(error);
        }
        Ok(LinkId {
            session: session.id,
            handle,
        })
    }

    /// Answers [`Event::Attach`]: the link is attached.
    ///
    /// # Errors
    ///
    /// [`CommandError::State`] if no answer is due, [`CommandError::FrameTooLarge`].
    pub fn accept_attach(
        &mut self,
        id: LinkId,
        options: &AttachOptions<'_>,
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let (session, mut context) = self.session(id.session)?;
        if session.link(id.handle)?.state != LinkState::Deciding {
            return Err(CommandError::State);
        }
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        session.write_attach(id.handle, options, &context, buffer)?;
        let link = session.link(id.handle)?;
        link.state = LinkState::Attached;
        link.snd_settle_mode = options.snd_settle_mode;
        link.rcv_settle_mode = options.rcv_settle_mode;
        let remote = link.remote_unsettled.take();
        let remote = match remote.as_ref().map(Encoded::value) {
            Some(Value::Map(map)) => Some(map),
            _ => None,
        };
        session.recover_link(id.handle, remote, &mut context, buffer);
        Ok(())
    }

    /// Answers [`Event::Attach`]: the link is not attached.
    ///
    /// # Errors
    ///
    /// [`CommandError::State`] if no answer is due.
    pub fn refuse_attach(
        &mut self,
        id: LinkId,
        error: Error<'_>,
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let (session, context) = self.session(id.session)?;
        if session.link(id.handle)?.state != LinkState::Deciding {
            return Err(CommandError::State);
        }
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        session.fail_link(id.handle, error, buffer, context.events);
        Ok(())
    }

    /// Detaches a link: finally, or to attach it again later. The peer's answer brings
    /// [`Event::Detached`] with the unsettled deliveries of that time.
    ///
    /// With an error the link ends at once, for good, and the event is there without the answer.
    ///
    /// # Errors
    ///
    /// [`CommandError::NoLink`] if it is detached already, [`CommandError::State`] before the
    /// peer's attach is answered.
    pub fn detach(
        &mut self,
        id: LinkId,
        closed: bool,
        error: Option<Error<'_>>,
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let (session, context) = self.session(id.session)?;
        let link = session.link(id.handle)?;
        if link.state == LinkState::Deciding {
            return Err(CommandError::State);
        }
        if let Some(error) = error {
            let buffer = out.buffer(session.lane);
            *context.wrote = true;
            session.fail_link(id.handle, error, buffer, context.events);
            return Ok(());
        }
        link.state = LinkState::DetachSent { closed };
        let detach = Performative::Detach(Detach {
            handle: id.handle,
            closed,
            error: None,
        });
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        session.write(&detach, context.peer_frame_bytes, buffer)
    }

    /// Receiver: sets the credit, and asks for unused credit to be given back (`drain`), or for the
    /// sender's state (`echo`).
    ///
    /// # Errors
    ///
    /// [`CommandError::WrongRole`], [`CommandError::State`] before the peer's attach is answered.
    pub fn set_credit(
        &mut self,
        id: LinkId,
        credit: u32,
        drain: bool,
        echo: bool,
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let (session, context) = self.session(id.session)?;
        let link = session.link(id.handle)?;
        if link.role != Role::Receiver {
            return Err(CommandError::WrongRole);
        }
        if link.state == LinkState::Deciding {
            return Err(CommandError::State);
        }
        link.grant(credit);
        link.drain = drain;
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        session.write_link_flow(id.handle, echo, buffer);
        Ok(())
    }

    /// Receiver: sets the credit for deliveries that belong to a transaction (part 4, section 4.4.3).
    ///
    /// # Errors
    ///
    /// As [`Connection::set_credit`], and [`CommandError::FrameTooLarge`].
    pub fn acquire(
        &mut self,
        id: LinkId,
        credit: u32,
        txn_id: &[u8],
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let (session, context) = self.session(id.session)?;
        let link = session.link(id.handle)?;
        if link.role != Role::Receiver {
            return Err(CommandError::WrongRole);
        }
        if link.state == LinkState::Deciding {
            return Err(CommandError::State);
        }
        link.grant(credit);
        link.drain = false;
        let properties = Encoded::build(|out| {
            let mut map = MapWriter::new(out);
            map.push(&Value::Symbol(TXN_ID), &Value::Binary(txn_id));
            map.finish();
        });
        let Value::Map(properties) = properties.value() else {
            return Err(CommandError::Argument);
        };
        let Some(Some(link)) = session.links.get(id.handle as usize) else {
            return Err(CommandError::NoLink);
        };
        let flow = Performative::Flow(Flow {
            properties: Some(properties),
            ..session.link_flow(link)
        });
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        session.write(&flow, context.peer_frame_bytes, buffer)
    }

    /// Sender: has no more messages to send now. Reports the number of ready messages. If the
    /// receiver drains, the rest of the credit is given back.
    ///
    /// # Errors
    ///
    /// [`CommandError::WrongRole`], [`CommandError::State`] before both ends are attached.
    pub fn drained(
        &mut self,
        id: LinkId,
        available: u32,
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let (session, context) = self.session(id.session)?;
        let link = session.link(id.handle)?;
        if link.role != Role::Sender {
            return Err(CommandError::WrongRole);
        }
        if link.state != LinkState::Attached || link.sending.is_some() {
            return Err(CommandError::State);
        }
        link.available = available;
        if link.drain {
            link.delivery_count = link.delivery_count.wrapping_add(link.credit);
            link.credit = 0;
        }
        let buffer = out.buffer(session.lane);
        *context.wrote = true;
        session.write_link_flow(id.handle, false, buffer);
        Ok(())
    }

    /// Sender: credit that the receiver is known to grant before its flow has come, by an agreement
    /// beside the protocol.
    ///
    /// # Errors
    ///
    /// [`CommandError::WrongRole`].
    pub fn assume_credit(&mut self, id: LinkId, credit: u32) -> Result<(), CommandError> {
        let (session, _) = self.session(id.session)?;
        if !session.is_begun() {
            session.remote_incoming_window = session.remote_incoming_window.max(credit);
        }
        let link = session.link(id.handle)?;
        if link.role != Role::Sender {
            return Err(CommandError::WrongRole);
        }
        link.credit = link.credit.max(credit);
        Ok(())
    }

    /// Receiver: settles an earlier delivery whose recovery waits.
    ///
    /// # Errors
    ///
    /// [`CommandError::Argument`] if the delivery does not exist.
    pub fn forget(&mut self, id: LinkId, delivery: &Unsettled) -> Result<(), CommandError> {
        let (session, _) = self.session(id.session)?;
        let recovering = &mut session.link(id.handle)?.recovering;
        let before = recovering.len();
        recovering.retain(|one| one.tag != delivery.tag);
        if recovering.len() == before {
            return Err(CommandError::Argument);
        }
        Ok(())
    }

    /// Whether one end could not list all of its unsettled deliveries when the link was attached
    /// again. Then only resumed deliveries may be sent. When those are settled, the link is to be
    /// detached and attached once more (section 2.6.13).
    #[must_use]
    pub fn is_incomplete(&self, id: LinkId) -> bool {
        self.link_at(id).is_some_and(|link| link.incomplete)
    }

    /// Credit of a link, as this end knows it.
    #[must_use]
    pub fn credit(&self, id: LinkId) -> u32 {
        self.link_at(id).map_or(0, |link| link.credit)
    }

    /// Unsettled deliveries of a link, as this end knows it.
    #[must_use]
    pub fn unsettled_on(&self, id: LinkId) -> u32 {
        self.link_at(id).map_or(0, |link| link.unsettled)
    }

    /// The link that a frame of the peer is about, by the channel and the handle of the frame.
    #[must_use]
    pub fn link_of(&self, channel: u16, handle: u32) -> Option<LinkId> {
        let session = self.session_of(channel)?;
        let handle = *self.sessions_at(session)?.remote_handles.get(&handle)?;
        Some(LinkId { session, handle })
    }

    /// The links of a session, in the order of their handles.
    pub fn links_of(&self, session: SessionId) -> impl Iterator<Item = LinkId> + '_ {
        let links = self.sessions_at(session).into_iter();
        let links = links.flat_map(|session| session.links.iter().flatten());
        links.map(move |link| LinkId {
            session,
            handle: link.handle,
        })
    }

    /// Name and role of a link's own end.
    #[must_use]
    pub fn link_name(&self, id: LinkId) -> Option<(&str, Role)> {
        self.link_at(id).map(|link| (&*link.name, link.role))
    }

    pub(crate) fn link_at(&self, id: LinkId) -> Option<&Link> {
        let session = self.sessions_at(id.session)?;
        session.links.get(id.handle as usize)?.as_deref()
    }
}
