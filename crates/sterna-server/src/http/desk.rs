//! Where the carriers have requests answered: the API, with what it needs for a step.

use sterna_broker::EndCause;
use sterna_http::{Application, ExchangeId, Fault, Head, Refusal, Request, Responses};
use sterna_net::ConnectionId;

use super::api::{Api, Peer};
use crate::context::Context;

/// The API for one connection and one step.
pub(super) struct Desk<'a, 'b> {
    pub(super) connection: ConnectionId,
    pub(super) api: &'a mut Api,
    pub(super) cx: &'a mut Context<'b>,
    pub(super) peer: &'a mut Peer,
}

impl Application for Desk<'_, '_> {
    fn request(&mut self, out: &mut dyn Responses, request: Request) {
        self.api.request(self.cx, self.peer, out, request);
    }

    fn refuse(&mut self, out: &mut dyn Responses, id: ExchangeId, head: &Head, refusal: Refusal) {
        (self.api).refuse(self.cx, self.peer, out, id, Some(head), refusal);
    }

    fn gone(&mut self, out: &mut dyn Responses, id: ExchangeId) {
        self.api.gone(self.cx, self.peer, out, id);
    }

    fn writable(&mut self, out: &mut dyn Responses) {
        self.api.writable(self.cx, self.peer, out);
    }

    fn half_closed(&mut self, out: &mut dyn Responses) {
        self.api.show_life(self.cx, self.peer, out);
    }

    fn stop(&mut self, out: &mut dyn Responses) {
        self.api.stop(self.cx, self.peer, out);
    }

    fn session_stream(
        &mut self,
        out: &mut dyn Responses,
        session: ExchangeId,
        stream: u64,
        is_bidirectional: bool,
    ) {
        (self.api).session_stream(self.cx, self.peer, out, session, stream, is_bidirectional);
    }

    fn session_bytes(
        &mut self,
        out: &mut dyn Responses,
        session: ExchangeId,
        stream: u64,
        bytes: &[u8],
    ) {
        (self.api).session_bytes(self.cx, self.peer, out, session, stream, bytes);
    }

    fn session_stream_ended(&mut self, out: &mut dyn Responses, session: ExchangeId, stream: u64) {
        (self.api).session_stream_ended(self.cx, self.peer, out, session, stream);
    }

    fn session_stream_gone(&mut self, out: &mut dyn Responses, session: ExchangeId, stream: u64) {
        (self.api).session_stream_gone(self.cx, self.peer, out, session, stream);
    }

    fn session_datagram(&mut self, out: &mut dyn Responses, session: ExchangeId, bytes: &[u8]) {
        (self.api).session_datagram(self.cx, self.peer, out, session, bytes);
    }

    fn session_closed(&mut self, out: &mut dyn Responses, session: ExchangeId) {
        (self.api).session_closed(self.cx, self.peer, out, session);
    }

    fn turned_away(&mut self, fault: Fault, code: &str, detail: &str) {
        self.peer.turned_away_for = Some(match fault {
            Fault::Violation => EndCause::Violation,
            Fault::Limit => EndCause::Limit,
            Fault::Slow => EndCause::Lost,
        });
        let name = self.peer.name().unwrap_or_default();
        let Some(line) = self.cx.repeats(self.connection, name, detail) else {
            return;
        };
        tracing::warn!(
            peer = line.peer,
            client = self.peer.name(),
            code,
            detail,
            more = line.more,
            "HTTP client turned away"
        );
    }
}
