//! The ends of requests, subscriptions and connections.

use std::net::SocketAddr;
use std::sync::Arc;

use sterna_broker::{Close, ConsumerId, EndCause, EvictReason, SessionKey};
use sterna_http::{ExchangeId, Responses};

use super::Api;
use super::answer::{Trouble, fail};
use super::credentials;
use super::open::CLUSTER_AWAY;
use super::peer::Peer;
use super::subscription::{Outlet, State, Subscription, is_durable};
use crate::context::{Context, STORE_FULL};
use crate::http::problem::ProblemKind as Kind;
use crate::identity::{Identity, Refusal};
use crate::judge::is_banned;
use crate::rights::Distrust;
use crate::session::http::session_name;

/// Code with which WebTransport sessions end in order.
pub(super) const NO_ERROR: u32 = 0;
/// Code with which a WebTransport session is closed whose user may not have it any more.
const FORBIDDEN: u32 = 403;

/// Tells the operator whose responses and sessions end on a connection, and why.
fn log_ended(
    cx: &Context<'_>,
    peer: &Peer,
    trouble: &Trouble,
    is_over: &dyn Fn(&Identity) -> bool,
) {
    let mut told: Vec<Option<&str>> = Vec::new();
    for identity in peer.owners().filter(|identity| is_over(identity)) {
        let user = identity.user();
        if told.contains(&user) {
            continue;
        }
        told.push(user);
        let (status, detail) = (trouble.status(), trouble.detail());
        let who = user.unwrap_or_default();
        if let Some(line) = cx.repeats(peer.connection, who, detail) {
            tracing::warn!(
                peer = line.peer,
                user,
                status,
                detail,
                more = line.more,
                "HTTP client turned away"
            );
        }
    }
}

impl Subscription {
    /// Whether the session is the client's by name.
    pub(super) fn is_durable(&self) -> bool {
        is_durable(&self.name)
    }

    /// The end of its connection. Nobody comes back to a session without a name.
    pub(super) fn ended_for(&self, cause: EndCause) -> Close {
        Close {
            expiry_s: (!self.is_durable()).then_some(0),
            ..Close::of(cause)
        }
    }
}

impl Api {
    /// Forgets a subscription; `close` unless the broker has taken its session already.
    pub(super) fn drop_subscription(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        at: usize,
        close: Option<Close>,
    ) {
        let subscription = peer.subscriptions.swap_remove(at);
        if let Some(close) = close {
            cx.broker.close(cx.now_ms, subscription.session, close);
        }
        // The last trace of a session that is connected: after a panic it is found by this.
        self.consumers.remove(&subscription.consumer);
    }

    /// Ends the response of a subscription that has no filter any more, and its session where that is
    /// nobody's by name.
    pub(super) fn end_response(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        at: usize,
        cause: EndCause,
    ) {
        let subscription = &peer.subscriptions[at];
        finish(out, subscription);
        if let Outlet::Transport { .. } = subscription.outlet {
            let id = subscription.exchange;
            peer.transports.retain(|transport| transport.session != id);
        }
        let close = subscription.ended_for(cause);
        self.drop_subscription(cx, peer, at, Some(close));
    }

    /// Ends the sessions and responses of users who would not get in any more.
    pub(crate) fn end_unwanted(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
    ) {
        let policy = Arc::clone(cx.policy);
        let info = cx.net.info(peer.connection);
        let unwanted = (peer.owners()).filter_map(|identity| {
            let why = policy.still_admits(info, identity).err()?;
            Some((identity.clone(), why))
        });
        let unwanted: Vec<(Identity, Distrust)> = unwanted.collect();
        for (identity, why) in unwanted {
            let trouble = credentials::unwanted(&policy, &why);
            let why = (&trouble, EndCause::NotAllowed);
            self.end_those(cx, peer, out, why, |one| *one == identity);
        }
        let transports = peer.transports.iter_mut();
        let transports = transports.map(|transport| &mut transport.identity);
        let subscriptions = peer.subscriptions.iter_mut().map(|one| &mut one.identity);
        for identity in transports.chain(subscriptions) {
            policy.note_standing(identity, "");
        }
    }

    /// Ends the sessions and responses of users whose token has expired.
    pub(crate) fn end_expired(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
    ) {
        let now_ms = cx.now_ms;
        let trouble = credentials::unwanted(cx.policy, "the token has expired");
        let why = (&trouble, EndCause::NotAllowed);
        self.end_those(cx, peer, out, why, |identity| identity.has_ended(now_ms));
    }

    /// Ends the sessions and responses of users who are banned.
    pub(crate) fn end_banned(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
    ) {
        let refusal = Refusal::Banned;
        let trouble = Trouble::new(Kind::Forbidden, refusal.detail());
        let banned: Vec<Identity> = (peer.owners())
            .filter(|identity| is_banned(cx, peer.connection, identity, None))
            .cloned()
            .collect();
        let why = (&trouble, EndCause::Banned);
        self.end_those(cx, peer, out, why, |identity| banned.contains(identity));
    }

    fn end_those(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        (trouble, cause): (&Trouble, EndCause),
        is_over: impl Fn(&Identity) -> bool,
    ) {
        log_ended(cx, peer, trouble, &is_over);
        let unwanted: Vec<ExchangeId> = (peer.transports.iter())
            .filter(|transport| is_over(&transport.identity))
            .map(|transport| transport.session)
            .collect();
        let ended: Vec<_> = (peer.subscriptions.iter())
            .filter(|one| is_over(&one.identity))
            .map(|one| (one.consumer, one.session))
            .collect();
        for id in unwanted {
            peer.transports.retain(|transport| transport.session != id);
            out.close_session(id, FORBIDDEN, trouble.detail());
            if let Some(at) = peer.subscription_of(id) {
                self.drop_subscription(cx, peer, at, Some(Close::of(cause)));
            }
        }
        for (consumer, session) in ended {
            cx.broker.close(cx.now_ms, session, Close::of(cause));
            self.end_subscription(cx, peer, out, consumer, trouble);
        }
    }

    /// The client has given a request up.
    pub(crate) fn gone(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        _: &mut dyn Responses,
        id: ExchangeId,
    ) {
        peer.held.retain(|held| held.request.id != id);
        drop(peer.take_claim(id));
        peer.asked.retain(|(asked, _)| *asked != id);
        if let Some(at) = peer.subscription_of(id) {
            let cause = peer.turned_away_for.unwrap_or(EndCause::Client);
            self.drop_subscription(cx, peer, at, Some(Close::of(cause)));
        }
    }

    /// The connection is gone.
    pub(crate) fn closed(&mut self, cx: &mut Context<'_>, peer: &mut Peer, cause: EndCause) {
        while !peer.subscriptions.is_empty() {
            let at = peer.subscriptions.len() - 1;
            self.drop_subscription(cx, peer, at, Some(Close::of(cause)));
        }
        peer.held.clear();
        peer.claims.clear();
        peer.asked.clear();
        peer.transports.clear();
        peer.promises.clear();
    }

    /// The broker stops: requests and subscriptions under way end.
    pub(crate) fn stop(&mut self, cx: &mut Context<'_>, peer: &mut Peer, out: &mut dyn Responses) {
        self.stopping = true;
        peer.promises.clear();
        let trouble = Trouble::new(Kind::Stopping, "the broker is stopping");
        for held in std::mem::take(&mut peer.held) {
            fail(out, held.request.id, &None, &trouble);
        }
        for (id, reader) in std::mem::take(&mut peer.asked) {
            fail(out, id, &reader, &trouble);
        }
        while let Some(subscription) = peer.subscriptions.last() {
            match (&subscription.outlet, &subscription.state) {
                (Outlet::Poll(_), _) | (_, State::Opening(_)) => {
                    fail(out, subscription.exchange, &subscription.reader, &trouble);
                }
                _ => finish(out, subscription),
            }
            let at = peer.subscriptions.len() - 1;
            self.drop_subscription(cx, peer, at, Some(Close::of(EndCause::Stop)));
        }
        for transport in std::mem::take(&mut peer.transports) {
            out.close_session(transport.session, NO_ERROR, "the broker is stopping");
        }
    }

    /// The broker has given a session to another request, or ended it.
    pub(crate) fn evicted(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        consumer: ConsumerId,
        (reason, by): (EvictReason, Option<SocketAddr>),
    ) {
        let is_it = |subscription: &&Subscription| subscription.consumer == consumer;
        if reason == EvictReason::TakenOver
            && let Some(subscription) = peer.subscriptions.iter().find(is_it)
        {
            let session = session_name(peer.name(), &subscription.name);
            cx.log_taken_over(peer.connection, &session, by);
        }
        let (kind, detail) = match reason {
            EvictReason::TakenOver => (
                Kind::SessionBusy,
                "another request has taken the session over",
            ),
            EvictReason::Administrative => (Kind::NoSession, "the session was ended"),
            EvictReason::ClusterAway => (Kind::ClusterAway, CLUSTER_AWAY),
            EvictReason::StoreFull => (Kind::StoreFull, STORE_FULL),
            EvictReason::FarBehind => (
                Kind::StoreFull,
                "the store is nearly full, and the session holds most of it",
            ),
            EvictReason::MemoryShort => (
                Kind::MemoryShort,
                "memory is short, and the session holds most of it",
            ),
            EvictReason::TooLarge | EvictReason::SelectorTooDear => (
                Kind::TooManySubscriptions,
                "the cluster does not keep so much of one session",
            ),
        };
        self.end_subscription(cx, peer, out, consumer, &Trouble::new(kind, detail));
    }

    /// Ends the response of a subscription whose session is closed; with an error, if it has not begun.
    fn end_subscription(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        consumer: ConsumerId,
        trouble: &Trouble,
    ) {
        let is_it = |subscription: &Subscription| subscription.consumer == consumer;
        let Some(at) = peer.subscriptions.iter().position(is_it) else {
            return;
        };
        let subscription = &peer.subscriptions[at];
        let (session, detail) = (&*subscription.name, trouble.detail());
        tracing::debug!(session, detail, "subscription ended");
        let waits = matches!(subscription.state, State::Opening(_))
            || matches!(subscription.outlet, Outlet::Poll(_));
        if waits {
            self.counts.messages_sent += 1;
            cx.log_session_refused(peer.connection, session, detail);
            fail(out, subscription.exchange, &subscription.reader, trouble);
        } else {
            finish(out, subscription);
        }
        if let Outlet::Transport { .. } = subscription.outlet {
            let id = subscription.exchange;
            peer.transports.retain(|transport| transport.session != id);
        }
        self.drop_subscription(cx, peer, at, None);
    }

    /// Filters of a subscription have ended for everybody.
    pub(crate) fn unsubscribed(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        let is_it = |subscription: &Subscription| {
            subscription.consumer == consumer
                && subscription.session == session
                && matches!(subscription.state, State::Live)
        };
        let Some(at) = peer.subscriptions.iter().position(is_it) else {
            return;
        };
        if cx.broker.filters(session).next().is_some() {
            return;
        }
        let subscription = &mut peer.subscriptions[at];
        subscription.state = State::Ending;
        // Queued messages are still sent.
        if !subscription.parked {
            self.pump(cx, peer, out, at);
        }
    }
}

impl Api {
    /// A subscription has lost the right to a filter: its response ends.
    pub(crate) fn lost_right(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        let is_it = |subscription: &Subscription| {
            subscription.consumer == consumer
                && subscription.session == session
                && matches!(subscription.state, State::Live)
        };
        if let Some(at) = peer.subscriptions.iter().position(is_it) {
            self.end_response(cx, peer, out, at, EndCause::NotAllowed);
        }
    }
}

/// Ends the response of a subscription in order. In the middle of a message it is broken off, so that the client sees that
/// the message is not complete.
pub(super) fn finish(out: &mut dyn Responses, subscription: &Subscription) {
    match subscription.outlet {
        Outlet::Stream | Outlet::LastOfPoll if subscription.unfinished.is_some() => {
            out.cancel(subscription.exchange);
        }
        Outlet::Stream | Outlet::LastOfPoll | Outlet::Poll(_) => out.finish(subscription.exchange),
        Outlet::Transport { .. } => {
            out.close_session(
                subscription.exchange,
                NO_ERROR,
                "the subscription has ended",
            );
        }
    }
}
