//! The ends of links, sessions, streams and connections.

use std::net::SocketAddr;

use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::Unsettled;
use sterna_amqp::messaging::TerminusExpiryPolicy;
use sterna_amqp::performatives::Error;
use sterna_amqp::{Condition, Lane};
use sterna_broker::{Close, ConsumerId, EndCause, EvictReason, NEVER_EXPIRES_S, SessionKey};
use sterna_net::{ConnectionId, StreamEnd, StreamId};

use super::attach::{cluster_away, durable_name, ended_after};
use super::client::{Client, Lingering, SourceLink, State, Target};
use super::exact::ExactLink;
use super::target::forget;
use super::{Door, code, log_end};
use crate::context::{Context, STORE_FULL};
use crate::door::Held;
use crate::giving_way::Owner;
use crate::inspect;

/// To whom a client's departed links count.
fn owner_of(cx: &Context<'_>, client: &Client) -> Owner {
    let address = cx.address(client.id);
    Owner::of(client.user(), address)
}

impl Door {
    /// A link is gone, by whichever end.
    pub(super) fn detached(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        closed: bool,
        mut unsettled: Vec<Unsettled>,
    ) {
        if let Some(mut target) = client.targets.remove(link) {
            self.leaves_place(cx, client, link, &target.name);
            // One that was stolen goes on elsewhere.
            let closed = closed && !target.is_stolen;
            let stays = !closed && !target.is_stolen && !matches!(client.state, State::Ended);
            if let Some(lifetime) = target.lifetime.take()
                && stays
                && target.until != TerminusExpiryPolicy::LinkDetach
            {
                // As many as a session may have attached; the one that waits longest makes room.
                let most = cx.policy.amqp.maximum_links_per_session as usize;
                if client.lingering.len() >= most.max(1) {
                    client.lingering.remove(0);
                }
                client.lingering.push(Lingering {
                    session: link.session,
                    name: target.name.clone(),
                    until: target.until,
                    lifetime,
                });
            }
            if target.node == Target::Coordinator {
                Self::roll_back_all(cx, client, Some(link));
            }
            let timeout_s = cx.policy.amqp.suspended_link_timeout_s;
            if let Some(claim) = target.claim {
                let has_unsettled = (target.exact.as_ref()).is_none_or(ExactLink::has_unsettled);
                self.release_claim(cx, claim, !closed && has_unsettled);
            }
            if let Some(exact) = &target.exact {
                unsettled.retain(|delivery| !exact.knows(&delivery.tag));
                let now_ms = cx.now_ms;
                let remembered_ms =
                    (!closed && timeout_s > 0).then(|| now_ms + u64::from(timeout_s) * 1000);
                let registry = &self.service.registry;
                let most = registry.most_exact(&cx.policy.amqp);
                let links = &registry.exact;
                let owner = owner_of(cx, client);
                forget(
                    cx,
                    links.detach((owner, exact), remembered_ms, now_ms, most),
                );
            }
            // Another node would not know of these, and this node would not know their outcome there.
            let is_alone = !cx.broker.is_in_cluster();
            if is_alone && !closed && !unsettled.is_empty() && timeout_s > 0 {
                let deadline_ms = cx.now_ms + u64::from(timeout_s) * 1000;
                let key = client.link_key(&target.name);
                self.service.registry.suspend(
                    (owner_of(cx, client), key),
                    (unsettled, cx.broker.token()),
                    deadline_ms,
                    &cx.policy.amqp,
                );
            }
            return;
        }
        let Some(mut source) = client.sources.remove(link) else {
            return;
        };
        // The message that was being sent is among those sent and not settled.
        source.sending = None;
        source.resuming.clear();
        let ended = matches!(client.state, State::Ended);
        let cause = source.refused_for.unwrap_or(client.cause);
        match source.expiry.policy {
            _ if closed => self.end_source(cx, &source, 0, cause),
            TerminusExpiryPolicy::LinkDetach => {
                self.end_source(cx, &source, source.expiry.timeout_s, cause);
            }
            TerminusExpiryPolicy::Never => self.end_source(cx, &source, NEVER_EXPIRES_S, cause),
            TerminusExpiryPolicy::SessionEnd | TerminusExpiryPolicy::ConnectionClose if ended => {
                self.end_source(cx, &source, source.expiry.timeout_s, cause);
            }
            TerminusExpiryPolicy::SessionEnd | TerminusExpiryPolicy::ConnectionClose => {
                cx.broker.demand(cx.now_ms, source.session, 0);
                cx.broker.park(source.session);
                source.parked = true;
                // As many as a session may have attached; the one that waits longest makes room.
                let most = cx.policy.amqp.maximum_links_per_session as usize;
                if client.suspended.len() >= most.max(1) {
                    let (_, oldest) = client.suspended.remove(0);
                    self.end_source(cx, &oldest, oldest.expiry.timeout_s, cause);
                }
                client.suspended.push((link.session, source));
            }
        }
    }

    /// Ends a receiving link with an error: why is known when its end comes as an event. False where there is no such
    /// link, or its attach is not answered.
    pub(super) fn detach_source(
        &mut self,
        client: &mut Client,
        link: LinkId,
        closed: bool,
        (condition, detail): (Condition, &str),
    ) -> bool {
        if let Some(source) = client.sources.get_mut(link) {
            source.refused_for = Some(cause_of(condition));
        }
        let error = Some(Error::new(condition, detail));
        let detached = (client.engine).detach(link, closed, error, &mut self.out);
        detached.is_ok()
    }

    /// Ends the connection of a source's session, which then lives for so long.
    pub(super) fn end_source(
        &mut self,
        cx: &mut Context<'_>,
        source: &SourceLink,
        expiry_s: u32,
        cause: EndCause,
    ) {
        let close = Close {
            cause,
            ..ended_after(expiry_s)
        };
        self.close_source(cx, source, close);
    }

    /// Ends the connection of a source's session.
    pub(super) fn close_source(&mut self, cx: &mut Context<'_>, source: &SourceLink, close: Close) {
        cx.broker.close(cx.now_ms, source.session, close);
        // The last trace of a session that is connected: after a panic it is found by this.
        self.service.consumers.remove(&source.consumer);
    }

    /// A session is gone, by whichever end.
    pub(super) fn ended(&mut self, cx: &mut Context<'_>, client: &mut Client, session: SessionId) {
        // The next session of the channel has other deliveries and links by the same numbers.
        client
            .promises
            .retain(|answer| answer.session() != Some(session));
        client.accepted = (client.accepted).filter(|accepted| accepted.session != session);
        client.lingering.retain(|link| {
            link.session != session || link.until != TerminusExpiryPolicy::SessionEnd
        });
        self.end_suspended(cx, client, |of, source| {
            of == session && source.expiry.policy == TerminusExpiryPolicy::SessionEnd
        });
        let Some(at) = client.sessions.iter().position(|(id, _)| *id == session) else {
            return;
        };
        let (_, lane) = client.sessions.swap_remove(at);
        let is_used = client.sessions.iter().any(|(_, other)| *other == lane);
        if !lane.is_control() && !is_used {
            client.finishing.push(StreamId(lane.0));
        }
    }

    fn end_suspended(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        ends: impl Fn(SessionId, &SourceLink) -> bool,
    ) {
        let suspended = std::mem::take(&mut client.suspended);
        for (session, source) in suspended {
            if ends(session, &source) {
                self.end_source(cx, &source, source.expiry.timeout_s, client.cause);
            } else {
                client.suspended.push((session, source));
            }
        }
    }

    /// The connection is gone, or is over: everything of it ends.
    pub(super) fn lost(&mut self, cx: &mut Context<'_>, client: &mut Client, cause: EndCause) {
        if matches!(client.state, State::Ended) {
            return;
        }
        client.cause = cause;
        // Some clients leave when the offer has no mechanism for them.
        if client.is_stranger() && client.engine.awaits_mechanism() && !self.stopping {
            Self::log_quiet(cx, client);
        }
        self.write_accepted(cx, client);
        Self::decide_untold(client);
        if let Some(name) = client.live_name()
            && tracing::enabled!(tracing::Level::DEBUG)
        {
            inspect::log_path(cx, client.id, name);
        }
        client.state = State::Ended;
        client.held = Vec::new();
        Self::roll_back_all(cx, client, None);
        client.engine.transport_closed();
        self.handle_rest(cx, client);
        self.end_suspended(cx, client, |_, _| true);
        client.lingering.clear();
    }

    /// The broker has given a link's session to another connection.
    pub(crate) fn evicted(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        reason: EvictReason,
        by: Option<SocketAddr>,
    ) {
        let Some((connection, link)) = self.place_of(consumer) else {
            return;
        };
        let (condition, detail) = match reason {
            EvictReason::TakenOver => (Condition::STOLEN, "the link was attached elsewhere"),
            EvictReason::Administrative => {
                (Condition::DETACH_FORCED, "an administrator ended the link")
            }
            EvictReason::ClusterAway => cluster_away(),
            EvictReason::StoreFull => store_full(),
            EvictReason::FarBehind => (
                Condition::RESOURCE_LIMIT_EXCEEDED,
                "the store is nearly full, and the link holds most of it",
            ),
            EvictReason::SelectorTooDear => (
                Condition::RESOURCE_LIMIT_EXCEEDED,
                "the link's filter takes more work than amqp.maximum_selector_steps",
            ),
            EvictReason::MemoryShort => (
                Condition::RESOURCE_LIMIT_EXCEEDED,
                "memory is short, and the link holds most of it",
            ),
            EvictReason::TooLarge => (
                Condition::RESOURCE_LIMIT_EXCEEDED,
                "the cluster does not keep so much of one link",
            ),
        };
        self.with_client(cx, connection, |door, cx, client| {
            client
                .suspended
                .retain(|(_, source)| super::consumer_id(source.consumer) != consumer);
            let source = client.sources.get(&link);
            if source.is_some_and(|source| super::consumer_id(source.consumer) == consumer)
                || Self::target_evicted(client, link, consumer, reason)
            {
                let error = Some(Error::new(condition, detail));
                if reason == EvictReason::TakenOver
                    && let Some(source) = client.sources.get(&link)
                {
                    cx.log_taken_over(client.id, &durable_name(client, &source.name), by);
                }
                if reason == EvictReason::SelectorTooDear {
                    // It was attached, and its client may wonder.
                    cx.log_session_refused(client.id, &client.container, detail);
                }
                // A link that is being attached is refused instead.
                if client
                    .engine
                    .detach(link, true, error.clone(), &mut door.out)
                    .is_err()
                    && let Some(error) = error
                {
                    cx.log_session_refused(client.id, &client.container, detail);
                    // One that is gone needs neither.
                    let _ = client.engine.refuse_attach(link, error, &mut door.out);
                }
                door.handle_rest(cx, client);
            }
        });
        if let Some(number) = super::consumer_number(consumer) {
            self.service.consumers.remove(&number);
        }
    }

    /// The subscription of a receiving link has ended for everybody.
    pub(crate) fn unsubscribed(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        let Some((connection, link)) = self.place_of(consumer) else {
            return;
        };
        if cx.broker.filters(session).next().is_some() {
            return; // it subscribes again
        }
        self.with_client(cx, connection, |door, cx, client| {
            let source = client.sources.get(&link);
            if source.is_none_or(|source| source.session != session) {
                // It is detached, to come back, and subscribes again then. Another link may have its handle.
                return;
            }
            let error = (Condition::RESOURCE_DELETED, "the topic was deleted");
            // One that is being attached is not there yet.
            door.detach_source(client, link, true, error);
            door.handle_rest(cx, client);
        });
    }

    /// The subscription of a receiving link has lost its right. The link ends; a source that outlives its connection is
    /// only detached, and gets messages again when the right is back.
    pub(crate) fn lost_right(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        let Some((connection, link)) = self.place_of(consumer) else {
            return;
        };
        self.with_client(cx, connection, |door, cx, client| {
            let source = client.sources.get(&link);
            let Some(source) = source.filter(|source| source.session == session) else {
                // It is detached, and another link may have its handle.
                return;
            };
            let closed = !source.expiry.outlives_connection();
            let detail = "the rules do not allow to subscribe there any more";
            let error = (Condition::UNAUTHORIZED_ACCESS, detail);
            // One that is being attached is not there yet.
            door.detach_source(client, link, closed, error);
            door.handle_rest(cx, client);
        });
    }

    /// Ends a connection whose client would not get in any more.
    pub(super) fn unwanted(&mut self, cx: &mut Context<'_>, client: &mut Client, detail: &str) {
        let condition = Condition::UNAUTHORIZED_ACCESS;
        log_end(cx, client, condition.as_str(), detail);
        let error = Error::new(condition, detail);
        // Before its open a client is told nothing.
        let _ = client.engine.close(Some(error), &mut self.out);
        self.lost(cx, client, EndCause::NotAllowed);
    }

    /// Ends a connection because memory is short and its client holds more than others.
    pub(super) fn shed_client(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        let detail = "memory is short, and this client holds most of it";
        let condition = Condition::RESOURCE_LIMIT_EXCEEDED;
        log_end(cx, client, condition.as_str(), detail);
        let error = Error::new(condition, detail);
        // Before its open a client is told nothing.
        let _ = client.engine.close(Some(error), &mut self.out);
        self.lost(cx, client, EndCause::Limit);
    }

    /// A peer has ended one side of a stream: without an end in order, its sessions have ended.
    pub(crate) fn stream_ended(
        &mut self,
        cx: &mut Context<'_>,
        connection: ConnectionId,
        stream: StreamId,
        end: StreamEnd,
    ) {
        self.with_client(cx, connection, |door, cx, client| {
            if end == StreamEnd::Finished {
                return door.finished(cx, client, stream);
            }
            let name = &*client.container;
            tracing::debug!(client = name, stream = stream.0, ?end, "stream ended");
            if stream == StreamId::FIRST {
                door.lost(cx, client, EndCause::Lost);
            } else {
                door.lane_gone(cx, client, stream);
            }
        });
    }

    pub(super) fn finished(&mut self, cx: &mut Context<'_>, client: &mut Client, stream: StreamId) {
        if matches!(client.state, State::Ended) {
            return;
        }
        // A whole connection can come in one flight, its end included, before its open is decided.
        if client.holds(stream) || !client.accepts(stream) {
            if stream == StreamId::FIRST && client.held.is_empty() {
                return self.lost(cx, client, EndCause::Lost);
            }
            self.hold(cx, client, Held::Finished(stream));
        } else if stream == StreamId::FIRST {
            self.lost(cx, client, EndCause::Lost);
        } else if client.sessions.iter().any(|(_, lane)| lane.0 == stream.0) {
            // Without an end before it this is a stream that is lost.
            self.lane_gone(cx, client, stream);
        } else {
            cx.net.finish(client.id, stream);
            client.framers.forget(stream);
        }
    }

    fn lane_gone(&mut self, cx: &mut Context<'_>, client: &mut Client, stream: StreamId) {
        client.held.retain(|held| held.stream() != stream);
        client.framers.forget(stream);
        client.engine.lane_closed(Lane(stream.0));
        let before = std::mem::replace(&mut client.cause, EndCause::Lost);
        self.handle_rest(cx, client);
        client.cause = before;
        client.finishing.retain(|id| *id != stream);
        cx.net.abort(client.id, stream, code::VIOLATION);
    }
}

/// The cause of an end for which a link's client is told this.
pub(super) fn cause_of(condition: Condition) -> EndCause {
    match condition {
        Condition::UNAUTHORIZED_ACCESS => EndCause::NotAllowed,
        Condition::RESOURCE_LIMIT_EXCEEDED | Condition::FRAME_SIZE_TOO_SMALL => EndCause::Limit,
        Condition::RESOURCE_DELETED => EndCause::Deleted,
        Condition::STOLEN => EndCause::Evicted(EvictReason::TakenOver),
        _ => EndCause::Refused,
    }
}

/// The source outlives its connection, and its records find no room.
pub(super) const fn store_full() -> (Condition, &'static str) {
    (Condition::RESOURCE_LIMIT_EXCEEDED, STORE_FULL)
}
