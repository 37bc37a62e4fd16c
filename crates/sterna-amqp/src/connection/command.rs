//! The caller's commands for connections and sessions.

use super::{Connection, Decision, Phase, SessionId};
use crate::frame::{self, TYPE_AMQP};
use crate::performatives::{End, Error, Performative};
use crate::session::{AmqpSession, SessionState};
use crate::{CommandError, Lane, LaneWriter};

impl Connection {
    /// Closes the connection, or refuses a peer's open. Links and sessions end at once; the peer's
    /// answer brings [`Event::Closed`](super::Event::Closed).
    ///
    /// # Errors
    ///
    /// [`CommandError::NotOpen`] before the peer's header has come, and after the close.
    pub fn close(
        &mut self,
        error: Option<Error<'_>>,
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        if !matches!(self.phase, Phase::Open | Phase::Opened) {
            return Err(CommandError::NotOpen);
        }
        self.decision = Decision::None;
        self.write_close(error, out.buffer(Lane::CONTROL));
        self.drop_sessions();
        self.closing_since_ms = self.now_ms;
        self.phase = Phase::CloseSent;
        Ok(())
    }

    /// Begins a session on a lane of its own, or on the control lane.
    ///
    /// # Errors
    ///
    /// [`CommandError::NotOpen`] before the own open is sent. [`CommandError::Limit`] if there are
    /// as many sessions as the peer allows (one, before its open has come).
    pub fn begin(
        &mut self,
        lane: Lane,
        out: &mut impl LaneWriter,
    ) -> Result<SessionId, CommandError> {
        if !self.open_sent || matches!(self.phase, Phase::CloseSent | Phase::Closed) {
            return Err(CommandError::NotOpen);
        }
        let id = self.free_channel().ok_or(CommandError::Limit)?;
        let session = AmqpSession::new(id, lane, SessionState::BeginSent, &self.limits);
        session.write_begin(&self.limits, out.buffer(lane));
        self.put_session(session);
        self.wrote = true;
        Ok(id)
    }

    /// The lowest channel that is free and that the peer takes.
    pub(super) fn free_channel(&self) -> Option<SessionId> {
        let free = self
            .sessions
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.sessions.len());
        let id = u16::try_from(free).ok()?;
        (id <= self.peer.channel_max.min(self.limits.channel_max)).then_some(SessionId(id))
    }

    pub(super) fn put_session(&mut self, session: AmqpSession) {
        let index = usize::from(session.id.0);
        if index == self.sessions.len() {
            self.sessions.push(None);
        }
        self.sessions[index] = Some(Box::new(session));
    }

    /// Ends a session. Its links end at once; the peer's answer brings
    /// [`Event::Ended`](super::Event::Ended).
    ///
    /// # Errors
    ///
    /// [`CommandError::NoSession`] if it has ended before.
    pub fn end(
        &mut self,
        id: SessionId,
        error: Option<Error<'_>>,
        out: &mut impl LaneWriter,
    ) -> Result<(), CommandError> {
        let (session, context) = self.session(id)?;
        *context.wrote = true;
        frame::encode(out.buffer(session.lane), TYPE_AMQP, id.0, |out| {
            Performative::End(End { error }).encode(out);
        });
        session.surface_links(context.names, context.events);
        session.state = SessionState::EndSent {
            frames: 0,
            surfaced: false,
        };
        Ok(())
    }
}
