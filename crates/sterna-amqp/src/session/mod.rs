//! Sessions (AMQP 1.0, part 2, section 2.5).
//!
//! The commands are methods of [`Connection`](crate::Connection); here is the state of an endpoint.

mod disposition;
pub(crate) mod flow;
mod ledger;

use std::collections::BTreeSet;

use bytes::BytesMut;
use rustc_hash::FxHashMap;

pub(crate) use ledger::{Ledger, before};

use crate::connection::{Context, ErrorBuf, Event, Events, Fault, LinkId, Names, SessionId};
use crate::frame::{self, TYPE_AMQP};
use crate::link::{DeliveryTag, Link, LinkState, Unsettled};
use crate::messaging::DeliveryStateBuf;
use crate::performatives::{Attach, Begin, Detach, Error, Performative, ReceiverSettleMode, Role};
use crate::{CommandError, Condition, DecodeError, Lane, Limits};

/// Transfers that the session may send, as it says: the limit is the peer's incoming window.
const OUTGOING_WINDOW: u32 = i32::MAX as u32;

/// Where a session endpoint stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SessionState {
    /// A begin was sent, its answer is awaited.
    BeginSent,
    /// Both ends have begun.
    Mapped,
    /// An end was sent: its answer is awaited, other frames are ignored.
    EndSent {
        /// Number of frames so far.
        frames: u32,
        /// Whether the caller knows already.
        surfaced: bool,
    },
}

/// A delivery that was sent and is not settled.
#[derive(Debug)]
pub(crate) struct OutgoingDelivery {
    pub(crate) handle: u32,
    pub(crate) tag: DeliveryTag,
    pub(crate) token: u64,
    pub(crate) state: Option<DeliveryStateBuf>,
}

/// A delivery that was received and is not settled.
#[derive(Debug)]
pub(crate) struct IncomingDelivery {
    pub(crate) handle: u32,
    pub(crate) tag: DeliveryTag,
    pub(crate) token: u64,
    pub(crate) state: Option<DeliveryStateBuf>,
    pub(crate) settle_mode: ReceiverSettleMode,
}

impl From<OutgoingDelivery> for Unsettled {
    fn from(one: OutgoingDelivery) -> Self {
        Self {
            tag: one.tag,
            token: one.token,
            state: one.state,
        }
    }
}

impl From<IncomingDelivery> for Unsettled {
    fn from(one: IncomingDelivery) -> Self {
        Self {
            tag: one.tag,
            token: one.token,
            state: one.state,
        }
    }
}

/// One end of a session.
#[derive(Debug)]
pub(crate) struct AmqpSession {
    pub(crate) id: SessionId,
    pub(crate) lane: Lane,
    pub(crate) remote_channel: Option<u16>,
    pub(crate) state: SessionState,
    /// Transfer-id of the next transfer that comes; known from the begin on.
    pub(crate) next_incoming_id: u32,
    /// Transfers that may still come.
    pub(crate) incoming_window: u32,
    pub(crate) next_outgoing_id: u32,
    /// Transfers that may still be sent.
    pub(crate) remote_incoming_window: u32,
    pub(crate) remote_handle_max: u32,
    pub(crate) next_delivery_id: u32,
    /// Delivery-id of the delivery that came last.
    pub(crate) last_delivery_id: Option<u32>,
    /// By the own handle.
    pub(crate) links: Vec<Option<Box<Link>>>,
    /// Those of them that are free.
    free_handles: BTreeSet<u32>,
    /// The links whose attach the peer has not answered.
    asked: Vec<u32>,
    /// From the peer's handles to own ones.
    pub(crate) remote_handles: FxHashMap<u32, u32>,
    pub(crate) outgoing: Ledger<OutgoingDelivery>,
    pub(crate) incoming: Ledger<IncomingDelivery>,
    /// Bytes of messages of which parts have arrived.
    pub(crate) assembling_bytes: usize,
}

impl AmqpSession {
    pub(crate) fn new(id: SessionId, lane: Lane, state: SessionState, limits: &Limits) -> Self {
        Self {
            id,
            lane,
            remote_channel: None,
            state,
            next_incoming_id: 0,
            incoming_window: limits.incoming_window,
            next_outgoing_id: 0,
            remote_incoming_window: 0,
            remote_handle_max: u32::MAX,
            next_delivery_id: 0,
            last_delivery_id: None,
            links: Vec::new(),
            free_handles: BTreeSet::new(),
            asked: Vec::new(),
            remote_handles: FxHashMap::default(),
            outgoing: Ledger::default(),
            incoming: Ledger::default(),
            assembling_bytes: 0,
        }
    }

    /// Whether neither end has ended it.
    pub(crate) const fn is_live(&self) -> bool {
        !matches!(self.state, SessionState::EndSent { .. })
    }

    /// Whether the peer's begin has come.
    pub(crate) const fn is_begun(&self) -> bool {
        self.remote_channel.is_some()
    }

    pub(crate) fn write_begin(&self, limits: &Limits, out: &mut BytesMut) {
        let begin = Begin {
            remote_channel: self.remote_channel,
            next_outgoing_id: self.next_outgoing_id,
            incoming_window: self.incoming_window,
            outgoing_window: OUTGOING_WINDOW,
            handle_max: limits.links_per_session.saturating_sub(1),
            offered_capabilities: crate::types::Multiple::None,
            desired_capabilities: crate::types::Multiple::None,
            properties: None,
        };
        frame::encode(out, TYPE_AMQP, self.id.0, |out| {
            Performative::Begin(begin).encode(out);
        });
    }

    /// The peer's begin has come.
    pub(crate) fn begun(&mut self, channel: u16, begin: &Begin<'_>) {
        self.remote_channel = Some(channel);
        self.next_incoming_id = begin.next_outgoing_id;
        // With credit known beforehand, transfers may have gone ahead of the begin's answer.
        self.remote_incoming_window = begin.incoming_window.saturating_sub(self.next_outgoing_id);
        self.remote_handle_max = begin.handle_max;
        if self.is_live() {
            self.state = SessionState::Mapped;
        }
    }

    pub(crate) fn write(
        &self,
        performative: &Performative<'_>,
        peer_frame_bytes: usize,
        out: &mut BytesMut,
    ) -> Result<(), CommandError> {
        let start = out.len();
        frame::encode(out, TYPE_AMQP, self.id.0, |out| performative.encode(out));
        if out.len() - start > peer_frame_bytes {
            out.truncate(start);
            return Err(CommandError::FrameTooLarge);
        }
        Ok(())
    }

    /// A link that the caller knows of, in any state.
    pub(crate) fn link(&mut self, handle: u32) -> Result<&mut Link, CommandError> {
        match self.links.get_mut(handle as usize) {
            Some(Some(link)) if link.is_live() => Ok(link),
            _ => Err(CommandError::NoLink),
        }
    }

    /// The link of one of the peer's handles.
    pub(crate) fn remote_link(&mut self, remote_handle: u32) -> Result<&mut Link, Fault> {
        let found = self.remote_handles.get(&remote_handle);
        match found.and_then(|own| self.links.get_mut(*own as usize)) {
            Some(Some(link)) => Ok(link),
            _ => Err(Fault::Session(DecodeError::new(
                Condition::UNATTACHED_HANDLE,
                "no link has the handle",
            ))),
        }
    }

    pub(crate) fn uses_remote_handle(&self, remote_handle: u32) -> bool {
        self.remote_handles.contains_key(&remote_handle)
    }

    /// The lowest handle that is free and that the peer takes.
    pub(crate) fn free_handle(&self, limits: &Limits) -> Option<u32> {
        let free = self.free_handles.first().copied();
        let free = free.unwrap_or(self.links.len() as u32);
        (free < limits.links_per_session && free <= self.remote_handle_max).then_some(free)
    }

    pub(crate) fn put_link(&mut self, link: Link) {
        let index = link.handle as usize;
        if link.remote_handle.is_none() && link.state == LinkState::AttachSent {
            self.asked.push(link.handle);
        }
        if index == self.links.len() {
            self.links.push(None);
        } else {
            self.free_handles.remove(&link.handle);
        }
        self.links[index] = Some(Box::new(link));
    }

    /// Takes the unsettled deliveries of a link out of the ledgers.
    fn take_unsettled(&mut self, handle: u32) -> Vec<Unsettled> {
        let mut unsettled = Vec::new();
        let mut count = 0;
        if let Some(Some(link)) = self.links.get_mut(handle as usize) {
            unsettled = std::mem::take(&mut link.recovering);
            count = std::mem::take(&mut link.unsettled) as usize;
            if let Some(partial) = link.partial.take() {
                self.assembling_bytes -= partial.payload.len();
            }
            link.sending = None;
            link.remote_unsettled = None;
        }
        let outgoing = self.outgoing.extract(count, |one| one.handle == handle);
        let rest = count.saturating_sub(outgoing.len());
        let incoming = self.incoming.extract(rest, |one| one.handle == handle);
        unsettled.extend(outgoing.into_iter().map(Unsettled::from));
        unsettled.extend(incoming.into_iter().map(Unsettled::from));
        unsettled
    }

    /// Tells the caller that a link is gone.
    fn surface_detach(
        &mut self,
        handle: u32,
        closed: bool,
        error: Option<ErrorBuf>,
        events: &mut Events,
    ) {
        let unsettled = self.take_unsettled(handle);
        events.push_back(Event::Detached {
            link: LinkId {
                session: self.id,
                handle,
            },
            closed,
            error,
            unsettled,
        });
    }

    /// Forgets a link.
    pub(crate) fn remove_link(&mut self, handle: u32, names: &mut Names) {
        let slot = self.links.get_mut(handle as usize);
        let Some(link) = slot.and_then(Option::take) else {
            return;
        };
        names.forget(self.id, &link);
        match link.remote_handle {
            Some(remote) => {
                self.remote_handles.remove(&remote);
            }
            None => self.asked.retain(|asked| *asked != handle),
        }
        self.free_handles.insert(handle);
        while matches!(self.links.last(), Some(None)) {
            self.links.pop();
            self.free_handles.remove(&(self.links.len() as u32));
        }
    }

    /// Tells the caller that every link is gone, as suspended.
    pub(crate) fn surface_links(&mut self, names: &mut Names, events: &mut Events) {
        let mut links = std::mem::take(&mut self.links);
        // Not link by link: each would look at the deliveries of all.
        let outgoing = std::mem::take(&mut self.outgoing).into_entries();
        let incoming = std::mem::take(&mut self.incoming).into_entries();
        let sent = outgoing.map(|one| (one.handle, Unsettled::from(one)));
        let received = incoming.map(|one| (one.handle, Unsettled::from(one)));
        for (handle, delivery) in sent.chain(received) {
            if let Some(Some(link)) = links.get_mut(handle as usize) {
                link.recovering.push(delivery);
            }
        }
        for link in links.into_iter().flatten() {
            names.forget(self.id, &link);
            if link.is_surfaced() {
                events.push_back(Event::Detached {
                    link: LinkId {
                        session: self.id,
                        handle: link.handle,
                    },
                    closed: false,
                    error: None,
                    unsettled: link.recovering,
                });
            }
        }
        self.free_handles.clear();
        self.asked.clear();
        self.remote_handles.clear();
        self.assembling_bytes = 0;
    }

    /// Tells the caller that the session and its links are gone.
    pub(crate) fn surface_end(
        &mut self,
        error: Option<ErrorBuf>,
        names: &mut Names,
        events: &mut Events,
    ) {
        self.surface_links(names, events);
        if !matches!(self.state, SessionState::EndSent { surfaced: true, .. }) {
            events.push_back(Event::Ended {
                session: self.id,
                error,
            });
        }
    }

    /// Detaches a link with an error, and ignores its further input.
    pub(crate) fn fail_link(
        &mut self,
        handle: u32,
        error: Error<'_>,
        out: &mut BytesMut,
        events: &mut Events,
    ) {
        let id = self.id;
        let Some(Some(link)) = self.links.get_mut(handle as usize) else {
            return;
        };
        if !link.is_live() {
            return;
        }
        if link.state == LinkState::Deciding {
            // An attach without termini refuses (section 2.6.3).
            let options = crate::link::AttachOptions::default();
            let attach = options.attach(link, 0);
            frame::encode(out, TYPE_AMQP, id.0, |out| {
                Performative::Attach(attach).encode(out);
            });
        }
        link.state = LinkState::Errant { frames: 0 };
        let kept = ErrorBuf::from(&error);
        frame::encode(out, TYPE_AMQP, id.0, |out| {
            Performative::Detach(Detach {
                handle,
                closed: true,
                error: Some(error),
            })
            .encode(out);
        });
        self.surface_detach(handle, true, Some(kept), events);
    }

    pub(crate) fn attach_received<'a>(
        &mut self,
        attach: Attach<'a>,
        context: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Result<Option<Event<'a>>, Fault> {
        let limits = context.limits;
        if attach.handle >= limits.links_per_session {
            return Err(Fault::Connection(DecodeError::framing(
                "handle is above handle-max",
            )));
        }
        if self.uses_remote_handle(attach.handle) {
            return Err(Fault::Session(DecodeError::new(
                Condition::HANDLE_IN_USE,
                "handle has a link",
            )));
        }
        let role = attach.role.other();
        let mut asked = self.asked.iter();
        let answered = asked.position(|handle| {
            let link = self.links.get(*handle as usize).and_then(Option::as_ref);
            link.is_some_and(|link| link.role == role && *link.name == *attach.name)
        });
        let handle = match answered {
            Some(at) => self.asked.remove(at),
            None => self.new_link(&attach, context)?,
        };
        self.remote_handles.insert(attach.handle, handle);
        let Some(Some(link)) = self.links.get_mut(handle as usize) else {
            return Ok(None);
        };
        link.remote_handle = Some(attach.handle);
        if link.is_live() {
            context.names.note(self.id, link);
        }
        if role == Role::Receiver {
            let Some(count) = attach.initial_delivery_count else {
                return Err(Fault::Link(
                    handle,
                    DecodeError::invalid("sender without initial-delivery-count"),
                ));
            };
            link.delivery_count = count;
        } else {
            link.max_message_bytes = attach.max_message_size.unwrap_or(0);
        }
        link.remote_incomplete = attach.incomplete_unsettled;
        if attach
            .unsettled
            .is_some_and(|map| map.len() > limits.unsettled_per_link as usize)
        {
            return Err(Fault::Link(
                handle,
                DecodeError::new(
                    Condition::RESOURCE_LIMIT_EXCEEDED,
                    "unsettled map is too large",
                ),
            ));
        }
        if let Some(map) = attach.unsettled {
            map.check_keys(|key| matches!(key, crate::types::Value::Binary(_)))
                .map_err(|error| Fault::Link(handle, error))?;
        }
        let id = LinkId {
            session: self.id,
            handle,
        };
        match link.state {
            LinkState::AttachSent => {
                link.state = LinkState::Attached;
                link.snd_settle_mode = attach.snd_settle_mode;
                link.rcv_settle_mode = attach.rcv_settle_mode;
                self.recover_link(handle, attach.unsettled, context, out);
                Ok(Some(Event::Attached { link: id, attach }))
            }
            LinkState::Deciding => {
                link.snd_settle_mode = attach.snd_settle_mode;
                link.rcv_settle_mode = attach.rcv_settle_mode;
                link.remote_unsettled = attach
                    .unsettled
                    .map(|map| crate::types::Encoded::new(&crate::types::Value::Map(map)));
                Ok(Some(Event::Attach { link: id, attach }))
            }
            // The caller has changed its mind meanwhile.
            LinkState::Attached | LinkState::DetachSent { .. } | LinkState::Errant { .. } => {
                Ok(None)
            }
        }
    }

    /// Makes the endpoint of a link that the peer attaches.
    fn new_link(&mut self, attach: &Attach<'_>, context: &Context<'_>) -> Result<u32, Fault> {
        /// Largest attach that has only a name.
        const ATTACH_BYTES: usize = 64;
        let limits = context.limits;
        let limit =
            |detail| Fault::Session(DecodeError::new(Condition::RESOURCE_LIMIT_EXCEEDED, detail));
        if attach.name.len() > limits.max_link_name_bytes as usize {
            return Err(limit("name of a link is too long"));
        }
        if attach.name.len() + ATTACH_BYTES > context.peer_frame_bytes {
            return Err(Fault::Session(DecodeError::new(
                Condition::FRAME_SIZE_TOO_SMALL,
                "the peer does not take an answer to so long a name",
            )));
        }
        let handle = self
            .free_handle(limits)
            .ok_or_else(|| limit("no handle is left for the answer"))?;
        self.put_link(Link::new(
            attach.name,
            attach.role.other(),
            handle,
            LinkState::Deciding,
        ));
        Ok(handle)
    }

    pub(crate) fn detach_received<'a>(
        &mut self,
        detach: &Detach<'a>,
        context: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Result<Option<Event<'a>>, Fault> {
        let channel = self.id.0;
        let link = self.remote_link(detach.handle)?;
        let handle = link.handle;
        let state = link.state;
        let mut closed = detach.closed;
        match state {
            LinkState::Errant { .. } => {
                self.remove_link(handle, context.names);
                return Ok(None);
            }
            LinkState::DetachSent { closed: asked } => closed |= asked,
            LinkState::AttachSent | LinkState::Deciding | LinkState::Attached => {
                if state == LinkState::Deciding {
                    let options = crate::link::AttachOptions::default();
                    let attach = options.attach(link, 0);
                    frame::encode(out, TYPE_AMQP, channel, |out| {
                        Performative::Attach(attach).encode(out);
                    });
                }
                frame::encode(out, TYPE_AMQP, channel, |out| {
                    Performative::Detach(Detach {
                        handle,
                        closed,
                        error: None,
                    })
                    .encode(out);
                });
            }
        }
        let error = detach.error.as_ref().map(Into::into);
        self.surface_detach(handle, closed, error, context.events);
        self.remove_link(handle, context.names);
        Ok(None)
    }
}
