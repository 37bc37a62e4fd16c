//! Input.

use super::{Connection, Context, ErrorBuf, Event, Fault, LinkId, Phase, SessionId};
use crate::frame::{self, Frame, TYPE_AMQP, Unit};
use crate::performatives::{Attach, Begin, Close, End, Performative, Role};
use crate::session::{AmqpSession, SessionState};
use crate::{Condition, DecodeError, Lane, LaneWriter, Scope, Violation};

impl Connection {
    /// Handles one unit of a lane: checks that it may come now, and keeps the state. It answers
    /// units that need no decision, and returns an event for the others. [`Connection::next_event`]
    /// has further events.
    ///
    /// # Errors
    ///
    /// A violation of the peer, and the part that it ended. The frame that reports it has been
    /// written, and [`Event::Detached`] and [`Event::Ended`] follow. After a violation of the
    /// connection only the peer's close is processed.
    pub fn receive<'a>(
        &mut self,
        lane: Lane,
        unit: &Unit<'a>,
        now_ms: u64,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, Violation> {
        self.now_ms = self.now_ms.max(now_ms);
        self.last_received_ms = self.now_ms;
        let handled = match (self.phase, unit) {
            (Phase::Closed, _) | (Phase::CloseSent, Unit::Header(_)) => return Ok(None),
            (Phase::CloseSent, Unit::Frame(frame)) => return Ok(self.only_close(frame)),
            _ if !self.accepts_input(lane) => Err(Fault::Connection(DecodeError::new(
                Condition::ILLEGAL_STATE,
                "input before a decision",
            ))),
            (_, Unit::Header(_)) if !lane.is_control() => Err(Fault::Connection(
                DecodeError::framing("protocol header on another lane than control"),
            )),
            (_, Unit::Header(header)) => self
                .header_received(*header, out.buffer(Lane::CONTROL))
                .map(|()| None)
                .map_err(Fault::Connection),
            (Phase::Opened, Unit::Frame(frame)) => {
                return self.frame_received(lane, frame, out);
            }
            (_, Unit::Frame(frame)) => self
                .frame_before_open(frame, out.buffer(Lane::CONTROL))
                .map_err(Fault::Connection),
        };
        handled.map_err(|fault| self.violation(None, fault, out))
    }

    /// After a close was sent only the answer counts.
    fn only_close<'a>(&mut self, frame: &Frame<'a>) -> Option<Event<'a>> {
        match Performative::decode(frame.body()) {
            Ok((Performative::Close(close), _)) => {
                self.phase = Phase::Closed;
                Some(Event::Closed {
                    error: close.error.as_ref().map(Into::into),
                })
            }
            _ => None,
        }
    }

    fn frame_received<'a>(
        &mut self,
        lane: Lane,
        frame: &Frame<'a>,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, Violation> {
        let mut session = None;
        self.dispatch(lane, frame, &mut session, out)
            .map_err(|fault| self.violation(session, fault, out))
    }

    /// Writes the answer to a fault.
    fn violation(
        &mut self,
        session: Option<SessionId>,
        fault: Fault,
        out: &mut impl LaneWriter,
    ) -> Violation {
        let (scope, error) = match (session, fault) {
            (None, Fault::Session(error) | Fault::Link(_, error))
            | (_, Fault::Connection(error)) => return self.fail(error, out),
            (Some(id), Fault::Session(error)) => (Scope::Session(id), error),
            (Some(session), Fault::Link(handle, error)) => {
                (Scope::Link(LinkId { session, handle }), error)
            }
        };
        self.wrote = true;
        let id = match scope {
            Scope::Session(id) | Scope::Link(LinkId { session: id, .. }) => id,
            Scope::Connection => return self.fail(error, out),
        };
        if let Some(Some(session)) = self.sessions.get_mut(usize::from(id.0)) {
            let out = out.buffer(session.lane);
            if let Scope::Link(link) = scope {
                session.fail_link(link.handle, error.into(), out, &mut self.events);
            } else {
                let error = crate::performatives::Error::from(error);
                let kept = ErrorBuf::from(&error);
                frame::encode(out, TYPE_AMQP, id.0, |out| {
                    Performative::End(End { error: Some(error) }).encode(out);
                });
                session.surface_end(Some(kept), &mut self.names, &mut self.events);
                session.state = SessionState::EndSent {
                    frames: 0,
                    surfaced: true,
                };
            }
        }
        Violation {
            scope,
            condition: error.condition,
            detail: error.detail,
        }
    }

    fn dispatch<'a>(
        &mut self,
        lane: Lane,
        frame: &Frame<'a>,
        on: &mut Option<SessionId>,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, Fault> {
        if frame.frame_type() != TYPE_AMQP {
            return Err(Fault::Connection(DecodeError::framing(
                "frame of another type",
            )));
        }
        let channel = frame.channel();
        if channel > self.limits.channel_max {
            return Err(Fault::Connection(DecodeError::framing(
                "channel is above channel-max",
            )));
        }
        if frame.body().is_empty() {
            // Section 2.4.5: only a sign of life.
            return Ok(None);
        }
        let (performative, payload) =
            Performative::decode(frame.body()).map_err(Fault::Connection)?;
        match performative {
            Performative::Open(_) => {
                return Err(Fault::Connection(DecodeError::new(
                    Condition::ILLEGAL_STATE,
                    "second open",
                )));
            }
            Performative::Close(close) => {
                return Ok(Some(self.close_received(&close, out)));
            }
            Performative::Begin(begin) => {
                return self
                    .begin_received(lane, channel, begin, out)
                    .map_err(Fault::Connection);
            }
            _ => {}
        }
        let Some(&id) = self.channels.get(&channel) else {
            return Err(Fault::Connection(DecodeError::new(
                Condition::NOT_ALLOWED,
                "no session on the channel",
            )));
        };
        *on = Some(id);
        if let Performative::Attach(attach) = &performative {
            self.steal(id, attach, out);
        }
        let Some(Some(session)) = self.sessions.get_mut(usize::from(id.0)) else {
            return Ok(None);
        };
        let mut context = Context {
            limits: &self.limits,
            peer_frame_bytes: self.peer.max_frame_bytes as usize,
            events: &mut self.events,
            names: &mut self.names,
            wrote: &mut self.wrote,
        };
        let out = out.buffer(session.lane);
        if let Performative::End(end) = performative {
            let error = end.error.as_ref().map(Into::into);
            if session.is_live() {
                frame::encode(out, TYPE_AMQP, id.0, |out| {
                    Performative::End(End { error: None }).encode(out);
                });
                *context.wrote = true;
            }
            session.surface_end(error, context.names, context.events);
            self.sessions[usize::from(id.0)] = None;
            self.channels.remove(&channel);
            return Ok(None);
        }
        if let SessionState::EndSent { frames, .. } = &mut session.state {
            *frames += 1;
            if *frames > self.limits.max_errant_frames {
                return Err(Fault::Connection(DecodeError::new(
                    Condition::NOT_ALLOWED,
                    "session continues after its end",
                )));
            }
            return Ok(None);
        }
        let bytes_before = out.len();
        let is_transfer = matches!(performative, Performative::Transfer(_));
        let event = match performative {
            Performative::Attach(attach) => session.attach_received(attach, &mut context, out),
            Performative::Flow(flow) => session.flow_received(&flow, &mut context, out),
            Performative::Transfer(transfer) => {
                session.transfer_received(&transfer, payload, frame, &mut context, out)
            }
            Performative::Disposition(disposition) => {
                session.disposition_received(&disposition, &mut context)
            }
            Performative::Detach(detach) => session.detach_received(&detach, &mut context, out),
            Performative::Open(_)
            | Performative::Begin(_)
            | Performative::End(_)
            | Performative::Close(_) => Ok(None),
        };
        *context.wrote |= out.len() != bytes_before;
        if is_transfer && session.assembling_bytes > 0 {
            self.check_assembling()?;
        }
        event
    }

    /// Bytes of all messages of which only parts have arrived.
    #[must_use]
    pub fn assembling_bytes(&self) -> usize {
        let sessions = self.sessions.iter().flatten();
        sessions.map(|session| session.assembling_bytes).sum()
    }

    /// Unsettled deliveries of all sessions, sent and received.
    #[must_use]
    pub fn unsettled_deliveries(&self) -> usize {
        let sessions = self.sessions.iter().flatten();
        sessions.map(|session| session.unsettled_deliveries()).sum()
    }

    /// All messages together of which parts have arrived have a limit.
    fn check_assembling(&self) -> Result<(), Fault> {
        if self.assembling_bytes() as u64 > self.limits.max_assembling_bytes {
            return Err(Fault::Session(DecodeError::new(
                Condition::RESOURCE_LIMIT_EXCEEDED,
                "too much of messages that are incomplete",
            )));
        }
        Ok(())
    }

    fn close_received(&mut self, close: &Close<'_>, out: &mut impl LaneWriter) -> Event<'static> {
        self.write_close(None, out.buffer(Lane::CONTROL));
        self.drop_sessions();
        self.phase = Phase::Closed;
        Event::Closed {
            error: close.error.as_ref().map(Into::into),
        }
    }

    fn begin_received<'a>(
        &mut self,
        lane: Lane,
        channel: u16,
        begin: Begin<'a>,
        out: &mut impl LaneWriter,
    ) -> Result<Option<Event<'a>>, DecodeError> {
        if self.channels.contains_key(&channel) {
            return Err(DecodeError::new(
                Condition::NOT_ALLOWED,
                "channel has a session",
            ));
        }
        if let Some(answered) = begin.remote_channel {
            let session = match self.sessions.get_mut(usize::from(answered)) {
                Some(Some(session)) if session.remote_channel.is_none() => session,
                _ => {
                    return Err(DecodeError::invalid(
                        "remote-channel of a begin that was not sent",
                    ));
                }
            };
            let id = session.id;
            session.begun(channel, &begin);
            let live = session.is_live();
            self.channels.insert(channel, id);
            return Ok(live.then_some(Event::Begun { session: id, begin }));
        }
        let id = self.free_channel().ok_or(DecodeError::new(
            Condition::RESOURCE_LIMIT_EXCEEDED,
            "no channel is left for the answer",
        ))?;
        let mut session = AmqpSession::new(id, lane, SessionState::Mapped, &self.limits);
        session.begun(channel, &begin);
        session.write_begin(&self.limits, out.buffer(lane));
        self.wrote = true;
        self.put_session(session);
        self.channels.insert(channel, id);
        Ok(Some(Event::Begin { session: id, begin }))
    }

    /// A link that is attached again elsewhere in the connection is stolen from where it was
    /// (section 2.6.1).
    fn steal(&mut self, by: SessionId, attach: &Attach<'_>, out: &mut impl LaneWriter) {
        let own_role: Role = attach.role.other();
        let Some(LinkId {
            session: from,
            handle,
        }) = self.names.find(attach.name, own_role)
        else {
            return;
        };
        let Some(Some(session)) = self.sessions.get_mut(usize::from(from.0)) else {
            return;
        };
        let is_live = session.is_live();
        let Some(link) = session.link(handle).ok().filter(|_| is_live) else {
            return;
        };
        debug_assert_eq!(*link.name, *attach.name, "a name is its link's");
        if from == by && session.uses_remote_handle(attach.handle) {
            // That is another error, which is found in a moment.
            return;
        }
        let error = DecodeError::new(Condition::STOLEN, "link was attached elsewhere");
        let out = out.buffer(session.lane);
        session.fail_link(handle, error.into(), out, &mut self.events);
        self.wrote = true;
    }
}
