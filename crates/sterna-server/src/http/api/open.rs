//! The beginning of a subscription: its session, the unacknowledged messages of an earlier response, and its
//! filters.

use sterna_broker::{
    Close, ConsumerId, EndCause, OpenError, OpenSession, Opened, Outcome, RetainHandling,
    SessionKey, SubscribeError, SubscribeOptions, Unacknowledged,
};
use sterna_http::{Content, ExchangeId, Responses};
use sterna_mqtt::topic;

use super::acknowledge::Acknowledgement;
use super::answer::{Trouble, fail, respond};
use super::end::NO_ERROR;
use super::origin::Reader;
use super::peer::Peer;
use super::plan::Subscribe;
use super::subscription::{
    Flow, Keep, Opening, Outlet, Polling, State, Subscription, Timing, consumer_id, is_durable,
    new_name,
};
use super::target::Target;
use super::{Api, log_refusal};
use crate::context::{
    Context, STORE_FULL, TOO_MANY_OF_USER, TOO_MANY_SESSIONS, TOO_MANY_SUBSCRIPTIONS,
};
use crate::http::problem::ProblemKind as Kind;
use crate::identity::Identity;
use crate::session::http::{HttpSession, IDS_KEY, Window, reserved_ids, session_name, state_mut};
use crate::session::topics::fault_of_filter;

/// Details of answers about a session that may not begin, or that belongs to another user.
pub(super) const CLUSTER_AWAY: &str = "the cluster cannot say which node has the session";

/// The sender of a request, and the way in which the request is answered.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) id: ExchangeId,
    pub(super) reader: Reader,
    pub(super) identity: Identity,
    /// Whether it is an extended CONNECT, which is accepted as a WebTransport session.
    pub(super) is_session: bool,
}

impl Api {
    /// Subscribes, if that is allowed.
    ///
    /// # Errors
    /// The answer to a request that fails.
    pub(super) fn subscribe(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        target: &Target<'_>,
        asker: Asker,
        plan: Subscribe,
    ) -> Result<(), Trouble> {
        let http = &cx.policy.http;
        if peer.subscriptions.len() >= http.maximum_subscriptions as usize {
            let detail = "too many subscriptions on this connection (http.maximum_subscriptions)";
            return Err(Trouble::new(Kind::TooManySubscriptions, detail));
        }
        if let Some(most) = peer.sips.most_subscriptions()
            && peer.subscriptions_of(asker.identity.user()) >= most
        {
            return Err(Trouble::new(Kind::TooManySubscriptions, TOO_MANY_OF_USER));
        }
        for filter in &plan.filters {
            may_subscribe(cx, peer, &asker.identity, filter)?;
        }
        let now_ms = cx.now_ms;
        let known = plan.session.as_deref().filter(|name| {
            is_durable(name)
                // Another node may have it.
                || cx.broker.is_in_cluster()
                || cx
                    .broker
                    .owner_exists(&session_name(asker.identity.user(), name))
        });
        let name = match known {
            Some(name) => name.to_owned(),
            None => new_name().ok_or_else(|| Trouble::new(Kind::Busy, "no randomness"))?,
        };
        let durable = is_durable(&name);
        // A message sent at QoS 0 is not remembered, so there is nothing to come back for. But the client of a
        // poll comes back for its messages.
        let expiry_s = if durable {
            http.session_expiry_s
        } else if plan.qos.is_acknowledged() || plan.poll.is_some() {
            http.resume_timeout_s
        } else {
            0
        };
        let window = |messages| Window {
            messages,
            bytes: http.maximum_unacknowledged_bytes,
        };
        let keep = if durable {
            Keep::Acknowledged(window(http.maximum_unacknowledged as usize))
        } else {
            let polled = plan.poll.map_or(0, |poll| poll.max);
            let resumed = http.resume_window_messages as usize;
            let shared = plan.filters.iter().any(|filter| is_shared(filter));
            // Of a shared subscription a member gets only so much that is not settled.
            let most = if shared {
                (cx.broker.limits().group_window as usize / 2).max(1)
            } else {
                usize::MAX
            };
            Keep::Last(window(resumed.min(most).max(polled)))
        };
        let outlet = match plan.poll {
            Some(poll) => Outlet::Poll(Box::new(Polling {
                poll,
                deadline_ms: now_ms + poll.wait_ms,
                next: next_target(target),
                after: plan.after.unwrap_or(0),
            })),
            None if asker.is_session => Outlet::Transport { stream: u64::MAX },
            None => Outlet::Stream,
        };
        self.next_consumer += 1;
        let consumer = consumer_id(self.next_consumer);
        self.consumers.insert(consumer, peer.connection);
        let open = OpenSession {
            name: session_name(asker.identity.user(), &name),
            clean_start: false,
            expiry_s,
            consumer,
            will: None,
            on_demand: false,
            selector: None,
        };
        let (opened, token) = cx.appended(|cx| cx.open(peer.connection, open));
        if opened.is_err() {
            self.consumers.remove(&consumer);
        }
        let (session, present) = match opened {
            Ok(Opened::Ready { session, present }) => (session, Some(present)),
            Ok(Opened::Pending { session }) => (session, None),
            Err(error) => return Err(not_opened(cx, error)),
        };
        let format = plan.format;
        let opening = Box::new(Opening {
            plan,
            identity: asker.identity,
            token,
            expiry_s,
            is_present: false,
        });
        peer.subscriptions.push(Subscription {
            exchange: asker.id,
            consumer,
            session,
            identity: opening.identity.clone(),
            name: name.into(),
            reader: asker.reader,
            format,
            outlet,
            state: State::Opening(opening),
            resend: std::collections::VecDeque::new(),
            unfinished: None,
            keep,
            parked: false,
            timing: Timing {
                heartbeat_ms: u64::from(http.heartbeat_interval_s) * 1000,
                stalled_ms: u64::from(http.stalled_timeout_s) * 1000,
            },
            quiet_since_ms: now_ms,
            flow: Flow::default(),
        });
        if let Some(present) = present {
            let at = peer.subscriptions.len() - 1;
            self.begin(cx, peer, out, at, present);
        }
        Ok(())
    }

    /// A session has come from another shard.
    pub(crate) fn session_opened(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        consumer: ConsumerId,
        session: SessionKey,
        present: bool,
    ) {
        let waits = |subscription: &Subscription| {
            subscription.consumer == consumer
                && subscription.session == session
                && matches!(subscription.state, State::Opening(_))
        };
        if let Some(at) = peer.subscriptions.iter().position(waits) {
            self.begin(cx, peer, out, at, present);
        }
    }

    /// Takes up a session that is here. The response begins once that is kept.
    fn begin(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        at: usize,
        present: bool,
    ) {
        let subscription = &mut peer.subscriptions[at];
        let (consumer, session) = (subscription.consumer, subscription.session);
        let State::Opening(mut opening) = std::mem::replace(&mut subscription.state, State::Live)
        else {
            return;
        };
        if !present && opening.plan.session.is_some() && !subscription.is_durable() {
            // Another node might have had it, so it was asked for by its name.
            return self.begin_anew(cx, peer, out, at, opening);
        }
        cx.note_origin(peer.connection, session);
        let (joined, token) = cx.appended(|cx| join(cx, subscription, &opening.plan));
        if let Err(trouble) = joined {
            let (id, reader) = (subscription.exchange, subscription.reader.clone());
            log_refusal(cx, peer.connection, opening.identity.user(), None, &trouble);
            fail(out, id, &reader, &trouble);
            self.counts.messages_sent += 1;
            // A session that was there before is left as it was.
            let expiry_s = (!present).then_some(0);
            let close = Close {
                expiry_s,
                ..Close::of(trouble.cause())
            };
            self.drop_subscription(cx, peer, at, Some(close));
            return;
        }
        // The effects of earlier responses are kept first, since this response builds on them.
        let token = if present {
            cx.broker.token()
        } else {
            token.max(opening.token)
        };
        opening.is_present = present;
        subscription.state = State::Opening(opening);
        let promise = peer.promise(cx).at(token);
        let subscribed = Acknowledgement::Subscribed(consumer, session);
        self.acknowledge(cx, peer, out, promise, subscribed);
    }

    /// Begins a new session in the place of one that is gone, by a new name.
    fn begin_anew(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        at: usize,
        mut opening: Box<Opening>,
    ) {
        let subscription = &mut peer.subscriptions[at];
        let ended = Close {
            expiry_s: Some(0),
            ..Close::NORMAL
        };
        cx.broker.close(cx.now_ms, subscription.session, ended);
        (opening.plan.session, opening.plan.after) = (None, None);
        let (user, connection) = (opening.identity.user(), peer.connection);
        let name = new_name().ok_or_else(|| Trouble::new(Kind::Busy, "no randomness"));
        let (opened, token) = cx.appended(|cx| {
            let name = name?;
            let open = OpenSession {
                name: session_name(user, &name),
                clean_start: false,
                expiry_s: opening.expiry_s,
                consumer: subscription.consumer,
                will: None,
                on_demand: false,
                selector: None,
            };
            let opened = cx.open(connection, open);
            let opened = opened.map_err(|error| not_opened(cx, error))?;
            Ok((name, opened))
        });
        opening.token = opening.token.max(token);
        match opened {
            Ok((name, opened)) => {
                let (Opened::Ready { session, .. } | Opened::Pending { session }) = opened;
                subscription.session = session;
                subscription.name = name.into();
                subscription.state = State::Opening(opening);
                if let Opened::Ready { present, .. } = opened {
                    self.begin(cx, peer, out, at, present);
                }
            }
            Err(trouble) => {
                let (id, reader) = (subscription.exchange, subscription.reader.clone());
                log_refusal(cx, peer.connection, opening.identity.user(), None, &trouble);
                fail(out, id, &reader, &trouble);
                self.counts.messages_sent += 1;
                self.drop_subscription(cx, peer, at, None);
            }
        }
    }

    /// Begins the response of a subscription that is kept.
    pub(super) fn begin_response(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        let is_it = |subscription: &Subscription| {
            subscription.consumer == consumer && subscription.session == session
        };
        let Some(at) = peer.subscriptions.iter().position(is_it) else {
            return; // it was given up
        };
        let subscription = &mut peer.subscriptions[at];
        let State::Opening(opening) = std::mem::replace(&mut subscription.state, State::Live)
        else {
            return;
        };
        tracing::debug!(
            session = &*subscription.name,
            user = opening.identity.user(),
            resumed = opening.is_present,
            "subscribed"
        );
        self.counts.connections += 1;
        let fields: [(&str, &[u8]); 4] = [
            ("content-type", subscription.format.media_type().as_bytes()),
            ("cache-control", b"no-store"),
            ("x-content-type-options", b"nosniff"),
            ("sterna-session", subscription.name.as_bytes()),
        ];
        match &mut subscription.outlet {
            Outlet::Stream => {
                let (id, reader) = (subscription.exchange, &subscription.reader);
                respond(out, id, reader, 200, &fields, Content::Open);
                self.counts.messages_sent += 1;
            }
            Outlet::Poll(_) | Outlet::LastOfPoll => {}
            Outlet::Transport { stream } => {
                let id = subscription.exchange;
                out.accept_session(id, &fields[3..]);
                let Some(opened) = out.open_session_stream(id) else {
                    out.close_session(id, NO_ERROR, "the client allows no stream");
                    let close = Close::of(EndCause::Refused);
                    return self.drop_subscription(cx, peer, at, Some(close));
                };
                *stream = opened;
                peer.transports.push(super::webtransport::Transport::new(
                    id,
                    opening.identity.clone(),
                ));
            }
        }
        cx.broker.unpark(peer.subscriptions[at].session);
        self.pump(cx, peer, out, at);
    }
}

/// The answer to a client whose session was not opened.
fn not_opened(cx: &Context<'_>, error: OpenError) -> Trouble {
    match error {
        OpenError::TooManySessions => {
            Trouble::new(Kind::TooManySessions, cx.why_full(TOO_MANY_SESSIONS))
        }
        OpenError::StoreFull => Trouble::new(Kind::StoreFull, STORE_FULL),
        OpenError::ClusterAway => Trouble::new(Kind::ClusterAway, CLUSTER_AWAY),
        _ => {
            let detail = "another request has taken the session over at this moment";
            Trouble::new(Kind::SessionBusy, detail)
        }
    }
}

/// Whether a filter is that of a shared subscription.
fn is_shared(filter: &str) -> bool {
    filter.starts_with(topic::SHARE_PREFIX)
}

/// Whether rules and settings let a client subscribe to a filter.
fn may_subscribe(
    cx: &Context<'_>,
    peer: &Peer,
    identity: &Identity,
    filter: &str,
) -> Result<(), Trouble> {
    // Rules are about topics. The topics of a shared subscription follow the share name.
    let topics = topic::Filter::parse(filter).map_or(filter, |parsed| parsed.filter);
    if cx
        .policy
        .rules
        .may_subscribe(identity.subject(cx, peer.connection), topics)
    {
        return Ok(());
    }
    let subject = identity.subject(cx, peer.connection);
    let denial = cx.policy.rules.subscription_denial(subject, filter);
    let (name, detail) = (identity.user().unwrap_or_default(), denial.detail());
    if let Some(line) = cx.repeats(peer.connection, name, &detail) {
        tracing::info!(
            peer = line.peer,
            user = identity.user(),
            filter,
            reason = Kind::Forbidden.name(),
            detail = &*detail,
            more = line.more,
            "subscription refused"
        );
    }
    let told = denial.told("the rules forbid to subscribe to this filter");
    Err(Trouble::new(Kind::Forbidden, told).logged())
}

/// Takes up a session: settles the acknowledged messages, queues the ones to be sent again, and sets the filters.
fn join(
    cx: &mut Context<'_>,
    subscription: &mut Subscription,
    plan: &Subscribe,
) -> Result<(), Trouble> {
    let now_ms = cx.now_ms;
    let session = subscription.session;
    let outdated = || Trouble::new(Kind::SessionBusy, "the session is being taken over");
    restore_ids(cx, session).ok_or_else(outdated)?;
    let end = cx.broker.next_position();
    let state = state_mut(cx.broker, session).ok_or_else(outdated)?;
    // The id of an earlier session of that name says nothing of this one.
    let after = plan.after.filter(|&id| state.has_given(id, end));
    let place = after.and_then(|id| state.position_of(id));
    let acknowledged = after.map(|id| state.acknowledge_up_to(id));
    let acknowledged = acknowledged.unwrap_or_default();
    for tag in acknowledged.tags {
        cx.broker.settle(now_ms, session, tag, Outcome::Accepted);
    }
    cx.broker.settle_places(session, &acknowledged.places);
    if let Some(place) = place {
        // Another node may have sent it.
        let session = session_name(subscription.identity.user(), &subscription.name);
        cx.broker.settle_up_to_named(now_ms, &session, place);
    }
    let ledger = cx.broker.unacknowledged(session);
    let state: &mut HttpSession = state_mut(cx.broker, session).ok_or_else(outdated)?;
    state.keep(ledger.iter().map(|entry| match entry {
        Unacknowledged::Sent(delivery) => {
            let bytes = delivery.message.body_bytes();
            (delivery.tag, delivery.position, bytes)
        }
        Unacknowledged::HandedOver { tag, position } => (*tag, *position, 0),
    }));
    subscription.resend = state.after(0).collect();
    if let Outlet::Poll(polling) = &mut subscription.outlet {
        polling.after = after.unwrap_or(0);
    }
    add_filters(cx, session, plan)?;
    reserve_ids(cx, session);
    Ok(())
}

/// Goes on behind all ids that were given before a restart. In a cluster, ids mean what they meant at other nodes.
fn restore_ids(cx: &mut Context<'_>, session: SessionKey) -> Option<()> {
    let records = cx.broker.take_records(session);
    let known = records.iter().find(|(key, _)| **key == *IDS_KEY);
    let known = reserved_ids(known.map(|(_, value)| &value[..]));
    if !cx.broker.is_in_cluster() {
        state_mut(cx.broker, session)?.restore(known);
        return Some(());
    }
    let end = cx.broker.next_position();
    let state = state_mut(cx.broker, session)?;
    if !state.names_places() {
        let first = if known == 0 { end } else { known };
        state.name_places(first, end);
        if known == 0 {
            cx.broker.keep(session, IDS_KEY, &first.to_be_bytes());
        }
    }
    Some(())
}

/// Keeps how many ids may have been given, so that none is given again after a restart.
pub(super) fn reserve_ids(cx: &mut Context<'_>, session: SessionKey) {
    let reserved = state_mut(cx.broker, session).and_then(HttpSession::reserve);
    if let Some(up_to) = reserved {
        cx.broker.keep(session, IDS_KEY, &up_to.to_be_bytes());
    }
}

/// Adds filters to a session.
fn add_filters(cx: &mut Context<'_>, session: SessionKey, plan: &Subscribe) -> Result<(), Trouble> {
    let most = cx.policy.http.maximum_filters as usize;
    let known: Vec<_> = cx.broker.filters(session).cloned().collect();
    let is_new = |filter: &str| !known.iter().any(|known| **known == *filter);
    if known.len()
        + (plan.filters.iter())
            .filter(|filter| is_new(filter))
            .count()
        > most
    {
        let detail = format!("a subscription has at most {most} filters");
        return Err(Trouble::new(Kind::TooManySubscriptions, detail));
    }
    let options = SubscribeOptions {
        qos: plan.qos,
        no_local: false,
        retain_as_published: false,
        retain_handling: if plan.retained {
            RetainHandling::IfNew
        } else {
            RetainHandling::Never
        },
        identifier: None,
        hint: 0,
        keep: false,
    };
    for filter in &plan.filters {
        (cx.broker.subscribe(cx.now_ms, session, filter, options)).map_err(
            |error| match error {
                SubscribeError::InvalidFilter => Trouble::new(
                    Kind::InvalidFilter,
                    fault_of_filter(filter, cx.broker.limits()),
                ),
                SubscribeError::TooMany => {
                    let detail = cx.why_full(TOO_MANY_SUBSCRIPTIONS);
                    Trouble::new(Kind::TooManySubscriptions, detail)
                }
                SubscribeError::StoreFull => Trouble::new(Kind::StoreFull, STORE_FULL),
                SubscribeError::NoQueueInCluster => Trouble::new(
                    Kind::InvalidFilter,
                    "a queue of a cluster is kept by its nodes",
                ),
                SubscribeError::NotAllowed => Trouble::new(
                    Kind::Forbidden,
                    "the rules forbid to subscribe to this filter",
                ),
                SubscribeError::NoLocalOnShared | SubscribeError::NoSession => {
                    Trouble::new(Kind::SessionBusy, "the session is being taken over")
                }
            },
        )?;
    }
    Ok(())
}

/// The target of the request that goes on after a poll, up to session and position.
fn next_target(target: &Target<'_>) -> String {
    let query = target.query_without(&["session", "after"]);
    let mark = if query.is_empty() { "" } else { "&" };
    format!("{}?{query}{mark}", target.path)
}
