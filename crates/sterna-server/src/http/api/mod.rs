//! What answers requests.
#![allow(
    clippy::unused_self,
    clippy::needless_pass_by_value,
    clippy::too_many_arguments,
    clippy::needless_pass_by_ref_mut,
    clippy::elidable_lifetime_names,
    reason = "what only stands in"
)]

use sterna_broker::{ConsumerId, EvictReason, SessionKey};
use sterna_net::ConnectionId;

use super::exchange::{Content, ExchangeId, Head, Refusal, Request, Responses};
use super::registry::Registry;
use crate::shard::Context;
use crate::sys::Counts;
use std::sync::Arc;

/// What a shard keeps of all its HTTP clients.
#[derive(Debug)]
pub(crate) struct Api {
    _registry: Arc<Registry>,
}

/// What is kept of one connection.
#[derive(Debug)]
pub(crate) struct Peer {}

impl Peer {
    pub(crate) fn new(_cx: &Context<'_>, _connection: ConnectionId) -> Self {
        Self {}
    }

    pub(crate) fn name(&self) -> Option<&str> {
        None
    }
}

/// Whether the broker's name is that of an HTTP subscription.
pub(crate) fn is_consumer(_consumer: ConsumerId) -> bool {
    false
}

type Cx<'a, 'b> = &'a mut Context<'b>;
type Out<'a> = &'a mut dyn Responses;

impl Api {
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        Self {
            _registry: registry,
        }
    }
    pub(crate) fn counts(&self) -> Counts {
        Counts::default()
    }
    pub(crate) fn consumers(&self) -> usize {
        0
    }
    pub(crate) fn request(&mut self, _cx: Cx, _peer: &mut Peer, out: Out, request: Request) {
        out.respond(request.id, 404, &[], Content::Empty);
    }
    pub(crate) fn refuse(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        out: Out,
        id: ExchangeId,
        _head: Option<&Head>,
        refusal: Refusal,
    ) {
        let status = match refusal {
            Refusal::Malformed(_) => 400,
            Refusal::Timeout => 408,
            Refusal::ContentTooLarge => 413,
            Refusal::TargetTooLong => 414,
            Refusal::FieldsTooLarge => 431,
            Refusal::Busy => 503,
        };
        out.respond(id, status, &[], Content::Empty);
    }
    pub(crate) fn gone(&mut self, _cx: Cx, _peer: &mut Peer, _out: Out, _id: ExchangeId) {}
    pub(crate) fn writable(&mut self, _cx: Cx, _peer: &mut Peer, _out: Out) {}
    pub(crate) fn confirmed(&mut self, _cx: Cx, _peer: &mut Peer, _out: Out) {}
    pub(crate) fn closed(&mut self, _cx: Cx, _peer: &mut Peer) {}
    pub(crate) fn stop(&mut self, _cx: Cx, _peer: &mut Peer, _out: Out) {}
    pub(crate) fn password_checked(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        _out: Out,
        _number: u64,
        _good: bool,
    ) {
    }
    pub(crate) fn deliver(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        _out: Out,
        _consumer: ConsumerId,
        _session: SessionKey,
    ) {
    }
    pub(crate) fn evicted(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        _out: Out,
        _consumer: ConsumerId,
        _reason: EvictReason,
    ) {
    }
    pub(crate) fn session_opened(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        _out: Out,
        _consumer: ConsumerId,
        _session: SessionKey,
        _present: bool,
    ) {
    }
    pub(crate) fn unsubscribed(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        _out: Out,
        _consumer: ConsumerId,
        _session: SessionKey,
    ) {
    }
    pub(crate) fn connection_of(&self, _consumer: ConsumerId) -> Option<ConnectionId> {
        None
    }
    pub(crate) fn timeout(&mut self, _cx: Cx, _peer: &mut Peer, _out: Out) {}
    pub(crate) fn deadline_ms(&self, _peer: &Peer) -> Option<u64> {
        None
    }
    pub(crate) fn session_stream(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        _out: Out,
        _session: ExchangeId,
        _stream: u64,
        _is_bidirectional: bool,
    ) {
    }
    pub(crate) fn session_bytes(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        _out: Out,
        _session: ExchangeId,
        _stream: u64,
        _bytes: &[u8],
    ) {
    }
    pub(crate) fn session_stream_ended(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        _out: Out,
        _session: ExchangeId,
        _stream: u64,
    ) {
    }
    pub(crate) fn session_stream_gone(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        _out: Out,
        _session: ExchangeId,
        _stream: u64,
    ) {
    }
    pub(crate) fn session_datagram(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        _out: Out,
        _session: ExchangeId,
        _bytes: &[u8],
    ) {
    }
    pub(crate) fn session_closed(
        &mut self,
        _cx: Cx,
        _peer: &mut Peer,
        _out: Out,
        _session: ExchangeId,
    ) {
    }
}
