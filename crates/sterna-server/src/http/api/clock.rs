//! Subscriptions as time passes: signs of life, polls that end empty, and clients that take nothing.

use sterna_broker::Close;
use sterna_http::Responses;

use super::Api;
use super::deliver::flush;
use super::end::NO_ERROR;
use super::peer::Peer;
use super::subscription::{Outlet, State, Subscription};
use crate::context::Context;
use crate::identity::Identity;

/// The next deadline of a subscription.
fn deadline_ms(subscription: &Subscription) -> Option<u64> {
    if matches!(subscription.state, State::Opening(_)) {
        return None;
    }
    if let Outlet::Poll(polling) = &subscription.outlet {
        return Some(polling.deadline_ms);
    }
    let stalled_ms = subscription
        .flow
        .deadline_ms(subscription.timing.stalled_ms);
    let heartbeat_ms = heartbeat_ms(subscription);
    stalled_ms.into_iter().chain(heartbeat_ms).min()
}

/// The time of a response's next sign of life.
fn heartbeat_ms(subscription: &Subscription) -> Option<u64> {
    let interval_ms = subscription.timing.heartbeat_ms;
    (interval_ms > 0).then(|| subscription.quiet_since_ms + interval_ms)
}

impl Peer {
    /// When [`Api::timeout`] wants to be called.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        let until_ms = self.owners().filter_map(Identity::until_ms);
        let subscriptions = self.subscriptions.iter().filter_map(deadline_ms);
        subscriptions.chain(until_ms).min()
    }
}

impl Api {
    /// Does what is due.
    pub(crate) fn timeout(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
    ) {
        let now_ms = cx.now_ms;
        self.end_expired(cx, peer, out);
        // One may end; then another takes its place.
        let mut at = peer.subscriptions.len();
        while at > 0 {
            at -= 1;
            let subscription = &mut peer.subscriptions[at];
            let is_due = |deadline_ms: Option<u64>| deadline_ms.is_some_and(|due| due <= now_ms);
            if !is_due(deadline_ms(subscription)) {
                continue;
            }
            if matches!(subscription.outlet, Outlet::Poll(_)) {
                self.pump(cx, peer, out, at);
                continue;
            }
            if is_due(
                subscription
                    .flow
                    .deadline_ms(subscription.timing.stalled_ms),
            ) {
                let taken_bytes = out.taken_bytes(subscription.exchange);
                if !subscription.flow.taken(taken_bytes, now_ms) {
                    self.cut_off(cx, peer, out, at);
                    continue;
                }
            }
            if is_due(heartbeat_ms(subscription)) {
                self.beat(subscription, out, now_ms);
            }
        }
    }

    /// Has every open response give a sign of life now.
    pub(crate) fn show_life(&mut self, cx: &Context<'_>, peer: &mut Peer, out: &mut dyn Responses) {
        for subscription in &mut peer.subscriptions {
            let is_poll = matches!(subscription.outlet, Outlet::Poll(_));
            if !is_poll && !matches!(subscription.state, State::Opening(_)) {
                self.beat(subscription, out, cx.now_ms);
            }
        }
    }

    /// A sign of life. A response that is full, or in the middle of a message, needs none: it has more to say.
    fn beat(&mut self, subscription: &mut Subscription, out: &mut dyn Responses, now_ms: u64) {
        subscription.quiet_since_ms = now_ms;
        if subscription.unfinished.is_none() && out.has_room(subscription.exchange) {
            let mut buffer = std::mem::take(&mut self.buffer);
            buffer.extend_from_slice(subscription.format.heartbeat());
            flush(out, subscription, &mut buffer, now_ms);
            self.buffer = buffer;
        }
    }

    /// Cuts off a response that its client does not take. The session goes on as after any cut.
    fn cut_off(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        at: usize,
    ) {
        let subscription = &peer.subscriptions[at];
        if let Some(line) = cx.repeats(peer.connection, &subscription.name, "it is cut off") {
            tracing::warn!(
                peer = line.peer,
                session = &*subscription.name,
                more = line.more,
                "the client of a subscription takes nothing; its response is cut off"
            );
        }
        let id = subscription.exchange;
        if matches!(subscription.outlet, Outlet::Transport { .. }) {
            out.close_session(id, NO_ERROR, "nobody reads the subscription");
            peer.transports.retain(|transport| transport.session != id);
        } else {
            out.cancel(id);
        }
        self.drop_subscription(cx, peer, at, Some(Close::LOST));
    }
}
