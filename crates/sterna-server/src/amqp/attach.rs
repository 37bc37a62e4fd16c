//! Where clients' receiving links lead: sources.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::BytesMut;
use sterna_amqp::connection::LinkId;
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{
    DeliveryState, DeliveryStateBuf, Source, Target as TargetTerminus, TargetArchetype, capability,
};
use sterna_amqp::performatives::{Attach, Error, Role};
use sterna_amqp::types::{Composite, Encoded, Multiple};
use sterna_amqp::{Condition, DecodeError};
use sterna_broker::{
    Close, EndCause, OpenSession, Opened, Origin, Qos, RetainHandling, SessionKey, SessionName,
    SubscribeError, SubscribeOptions,
};

use sterna_net::ConnectionId;

use super::acknowledge::Acknowledgement;
use super::address::{AddressError, End, Kind, Node, share_name};
use super::claims::not_opened;
use super::client::{Client, Drain, Expiry, SourceLink, SourceState};
use super::end::{cause_of, store_full};
use super::recovery::{settle_told, take_up};
use super::selection::{Selection, filter_bytes};
use super::wanted::{Wanted, names_places};
use super::{Door, KEEPER, consumer_id, outgoing};
use crate::authorization::MessageKind;
use crate::config::{ActionName, Amqp};
use crate::context::{Context, Cure, TOO_MANY_SUBSCRIPTIONS};
use crate::door::Promise;
use crate::repeats::brief;
use crate::session::amqp::{DYNAMIC, TERMINUS_KEY, Terminus};
use crate::session::topics::fault_of_filter;
use crate::session::{AMQP_PREFIX, SessionState};

/// Why a link is not attached.
pub(super) type Refusal = (Condition, String);

pub(super) fn refusal(condition: Condition, detail: &str) -> Refusal {
    (condition, detail.to_owned())
}

pub(super) fn refused_address(error: AddressError) -> Refusal {
    refusal(error.condition, error.detail)
}

pub(super) fn refused_field(error: DecodeError) -> Refusal {
    refusal(error.condition, error.detail)
}

/// The topic that an address of a message names.
pub(super) fn topic_of_address(config: &Amqp, address: &str, kind: Option<Kind>) -> Option<String> {
    Node::parse(address, kind, End::Target, config)
        .ok()?
        .topic()
}

/// A topic that nobody else knows. Its first two bits are those.
pub(super) fn dynamic_topic(bits: u8) -> Result<String, Refusal> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|_| refusal(Condition::INTERNAL_ERROR, "no randomness for an address"))?;
    random[0] = (random[0] & 0x3f) | bits;
    let mut topic = DYNAMIC.to_owned();
    for byte in random {
        let _ = write!(topic, "{byte:02x}");
    }
    Ok(topic)
}

pub(super) fn kind_of(capabilities: &Multiple<'_>) -> Option<Kind> {
    let has = |names: [&str; 2]| names.iter().any(|name| capabilities.contains(name));
    // Temporary ones of JMS clients, too.
    if has([capability::QUEUE, capability::TEMPORARY_QUEUE]) {
        Some(Kind::Queue)
    } else if has([capability::TOPIC, capability::TEMPORARY_TOPIC]) {
        Some(Kind::Topic)
    } else {
        None
    }
}

impl Door {
    pub(super) fn attach(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        attach: &Attach<'_>,
    ) {
        let attached = match attach.role {
            _ if client.links() >= cx.policy.amqp.maximum_links_per_connection as usize => {
                let detail = "the connection has amqp.maximum_links_per_connection links";
                Err(refusal(Condition::RESOURCE_LIMIT_EXCEEDED, detail))
            }
            Role::Sender => self.attach_target(cx, client, link, attach),
            Role::Receiver => self.attach_source(cx, client, link, attach),
        };
        if let Err(refusal) = attached {
            let node = match attach.role {
                Role::Sender => (attach.target.as_ref())
                    .and_then(TargetArchetype::node)
                    .and_then(TargetTerminus::address),
                Role::Receiver => attach.source.as_ref().and_then(Source::address),
            };
            self.refuse_attach(cx, client, link, (attach.name, node), &refusal);
        }
    }

    pub(super) fn refuse_attach(
        &mut self,
        cx: &Context<'_>,
        client: &mut Client,
        link: LinkId,
        (name, node): (&str, Option<&str>),
        (condition, detail): &Refusal,
    ) {
        if let Some(line) = cx.repeats(client.id, &client.container, detail) {
            let Cure { held_as, freed_by } = Cure::of(cx.memory, detail, client.user());
            tracing::info!(
                peer = line.peer,
                client = &*client.container,
                user = client.user(),
                link = name,
                node = node.map(brief),
                condition = condition.as_str(),
                detail,
                held_as,
                freed_by = freed_by.as_deref(),
                more = line.more,
                "link refused"
            );
        }
        // A link that is gone needs no refusal.
        let _ = client
            .engine
            .refuse_attach(link, Error::new(*condition, detail), &mut self.out);
    }

    fn attach_source(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        attach: &Attach<'_>,
    ) -> Result<(), Refusal> {
        let mut wanted = self.wanted(cx, client, attach)?;
        let lifetime = wanted.lifetime.take();
        if let Some(mut kept) = self.take_suspended(cx, client, attach.name, &wanted) {
            // Its terminus is still here: the link has only been detached.
            let session = kept.session;
            kept.drain = Drain::No;
            kept.snd_settle_mode = wanted.snd_settle_mode;
            if let Some(source) = &attach.source {
                kept.address = source.address().unwrap_or_default().into();
                kept.filter_bytes = filter_bytes(source);
                kept.expiry = wanted.expiry;
                // It counts as a link of its node all the while.
                kept.lifetime = lifetime;
            }
            self.service
                .consumers
                .insert(kept.consumer, (client.id, link));
            client.sources.insert(link, kept);
            self.finish_source(cx, client, link, session, true, wanted);
            return Ok(());
        }
        if let Some(most) = client.sips.most_subscriptions()
            && client.sources.len() >= most
        {
            let detail = "the user's connections may not have more receiving links";
            return Err(refusal(Condition::RESOURCE_LIMIT_EXCEEDED, detail));
        }
        let number = self.service.next_consumer;
        self.service.next_consumer += 1;
        self.service.consumers.insert(number, (client.id, link));
        let (opened, token) =
            cx.appended(|cx| open_session(cx, &wanted, (client.id, number), false));
        wanted.token = token;
        let opened = opened.inspect_err(|_| {
            self.service.consumers.remove(&number);
        })?;
        let session = match opened {
            Opened::Ready { session, .. } | Opened::Pending { session } => session,
        };
        let mut source = SourceLink {
            name: attach.name.into(),
            address: (attach.source.as_ref())
                .and_then(Source::address)
                .unwrap_or_default()
                .into(),
            filter_bytes: attach.source.as_ref().map_or(0, filter_bytes),
            consumer: number,
            session,
            state: SourceState::Attached,
            expiry: wanted.expiry,
            snd_settle_mode: wanted.snd_settle_mode,
            names_places: names_places(&wanted),
            next_number: 0,
            sending: None,
            default_outcome: None,
            lifetime,
            resuming: std::collections::VecDeque::new(),
            drain: Drain::No,
            is_capped: false,
            parked: true,
            refused_for: None,
        };
        // Until there is credit.
        cx.broker.park(session);
        match opened {
            Opened::Ready { present, .. } => {
                client.sources.insert(link, Box::new(source));
                self.finish_source(cx, client, link, session, present, wanted);
            }
            Opened::Pending { .. } => {
                source.state = SourceState::Opening(Box::new(wanted));
                client.sources.insert(link, Box::new(source));
            }
        }
        Ok(())
    }

    /// Takes the source of a link that was only detached. One whose session would have another name ends: it lasts
    /// for another time now, and who looks for it later looks by that name.
    fn take_suspended(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        name: &str,
        wanted: &Wanted,
    ) -> Option<Box<SourceLink>> {
        let mut suspended = client.suspended.iter();
        let at = suspended.position(|(_, kept)| *kept.name == *name)?;
        let (_, kept) = client.suspended.remove(at);
        let known = cx.broker.name(kept.session);
        let is_named_so = known.is_none_or(|known| *known == wanted.session);
        if wanted.terminus.is_none() || is_named_so {
            return Some(kept);
        }
        self.end_source(cx, &kept, 0, EndCause::Client);
        None
    }

    /// A session has come from another shard.
    pub(crate) fn session_opened(
        &mut self,
        cx: &mut Context<'_>,
        consumer: sterna_broker::ConsumerId,
        session: SessionKey,
        present: bool,
    ) {
        if consumer == consumer_id(KEEPER) {
            return self.keeper_opened(cx, session);
        }
        let Some((connection, link)) = self.place_of(consumer) else {
            return;
        };
        self.with_client(cx, connection, |door, cx, client| {
            let Some(source) = client.sources.get_mut(link) else {
                return door.target_opened(cx, client, link, session, present);
            };
            if source.session != session {
                return;
            }
            if let SourceState::Opening(wanted) =
                std::mem::replace(&mut source.state, SourceState::Attached)
            {
                cx.broker.park(session);
                door.finish_source(cx, client, link, session, present, *wanted);
            }
        });
    }

    /// Subscribes, and answers the attach once that is kept.
    fn finish_source(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        session: SessionKey,
        present: bool,
        wanted: Wanted,
    ) {
        let Some(source) = client.sources.get_mut(link) else {
            return;
        };
        source.state = SourceState::Answering;
        let names_places = source.names_places;
        let before = wanted.token;
        let who = (client.id, client.origin);
        let (prepared, token) =
            cx.appended(|cx| prepare(cx, who, source, session, present, wanted));
        match prepared {
            Ok(attaching) => {
                // The effects of earlier connections are kept first, since this one builds on them.
                let token = if attaching.present {
                    cx.broker.token()
                } else {
                    token.max(before)
                };
                // The answer may settle deliveries for good.
                let promise = if names_places {
                    Promise::once(cx, client.listener)
                } else {
                    Promise::on(cx, client.listener)
                };
                let promise = promise.at(token);
                let attached = Acknowledgement::Attached(link, Box::new(attaching));
                self.acknowledge(cx, client, promise, attached);
            }
            Err(refusal) => self.refuse_source(cx, client, link, present, &refusal),
        }
    }

    /// Refuses the attach of a source. A terminus that was there before stays, with what it waits for.
    fn refuse_source(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        present: bool,
        refusal: &Refusal,
    ) {
        if let Some(source) = client.sources.remove(link) {
            let mut close = ended_after(0);
            close.expiry_s = close.expiry_s.filter(|_| !present);
            close.cause = cause_of(refusal.0);
            self.close_source(cx, &source, close);
            let node = (!source.address.is_empty()).then_some(&*source.address);
            self.refuse_attach(cx, client, link, (&source.name, node), refusal);
        }
    }

    /// Answers the attach of a source that is kept.
    pub(super) fn answer_source(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        attaching: Attaching,
    ) {
        // It may be gone, and another in its place.
        let source = client.sources.get_mut(link);
        let Some(source) = source.filter(|source| {
            source.session == attaching.session && matches!(source.state, SourceState::Answering)
        }) else {
            return;
        };
        source.state = SourceState::Attached;
        let session = attaching.session;
        let told = attaching.wanted.told.as_deref();
        let is_incomplete = attaching.wanted.is_incomplete;
        let present = attaching.present;
        let names_places = source.names_places;
        let unsettled = take_up(cx, session, (present, names_places), (told, is_incomplete));
        let (wanted, terminus) = (attaching.wanted, attaching.terminus);
        let default_outcome = Source::from_value(terminus.source.value());
        let default_outcome = default_outcome
            .ok()
            .and_then(|source| source.default_outcome);
        source.default_outcome =
            default_outcome.map(|outcome| DeliveryStateBuf::new(&DeliveryState::Outcome(outcome)));
        let target = wanted.target.as_ref().map(Encoded::value);
        let options = AttachOptions {
            snd_settle_mode: wanted.snd_settle_mode,
            rcv_settle_mode: wanted.rcv_settle_mode,
            source: Source::from_value(terminus.source.value()).ok(),
            target: target.and_then(|value| {
                TargetTerminus::from_value(value)
                    .ok()
                    .map(TargetArchetype::Target)
            }),
            unsettled: &unsettled,
            is_incomplete,
            recover: wanted.told.is_some(),
            ..AttachOptions::default()
        };
        let answered = (client.engine)
            .accept_attach(link, &options, &mut self.out)
            .map_err(|error| (Condition::FRAME_SIZE_TOO_SMALL, error.to_string()));
        if let Err(refusal) = answered {
            return self.refuse_source(cx, client, link, present, &refusal);
        }
        // A link that was only detached may have had credit.
        source.parked = true;
        outgoing::unpark(cx, source);
        self.handle_rest(cx, client);
        // Credit may have come before, and deliveries to be sent again wait in no queue.
        self.resume(cx, client, link);
    }

    /// Where the link is that the broker knows as a consumer.
    pub(super) fn place_of(
        &self,
        consumer: sterna_broker::ConsumerId,
    ) -> Option<(ConnectionId, LinkId)> {
        self.service
            .consumers
            .get(&super::consumer_number(consumer)?)
            .copied()
    }
}

/// A source whose attach is to be answered.
#[derive(Debug)]
pub(crate) struct Attaching {
    session: SessionKey,
    /// Whether it was there before.
    present: bool,
    terminus: Terminus,
    wanted: Wanted,
}

/// Finds out the node that a source is attached to, and subscribes.
fn prepare(
    cx: &mut Context<'_>,
    (connection, origin): (ConnectionId, Origin),
    source: &mut SourceLink,
    mut session: SessionKey,
    mut present: bool,
    mut wanted: Wanted,
) -> Result<Attaching, Refusal> {
    let now_ms = cx.now_ms;
    if cx.broker.protocol(session).is_none() {
        // Between its opening and this turn another connection has taken the session.
        return Err(stolen());
    }
    cx.note_origin(connection, session);
    let known = if present {
        known_terminus(cx, session)
    } else {
        None
    };
    let known_bytes = known.as_ref().map(Terminus::to_bytes);
    let terminus = match (wanted.terminus.take(), known) {
        (None, None) => {
            let detail = "there is no source of this name";
            return Err(refusal(Condition::NOT_FOUND, detail));
        }
        (None, Some(known)) => {
            if let Some(expiry) = expiry_of(&known) {
                wanted.expiry = expiry;
                source.expiry = expiry;
            }
            wanted.selection = selection_of(cx, &known, origin);
            if wanted.selection.is_some() {
                // It was not known when the session was opened.
                cx.broker.close(now_ms, session, Close::NORMAL);
                let opened = open_session(cx, &wanted, (connection, source.consumer), false)?;
                let (Opened::Ready { session: new, .. } | Opened::Pending { session: new }) =
                    opened;
                session = new;
                source.session = new;
                cx.broker.park(new);
                cx.note_origin(connection, new);
            }
            known
        }
        (Some(asked), Some(known)) if asked.is_as(&known) => asked,
        (Some(asked), _) => {
            if present {
                // It is another source now: the waiting messages are for the one before.
                cx.broker.close(now_ms, session, ended_after(0));
                let opened = open_session(cx, &wanted, (connection, source.consumer), true)?;
                let (Opened::Ready { session: new, .. } | Opened::Pending { session: new }) =
                    opened;
                session = new;
                source.session = new;
                cx.broker.park(new);
                cx.note_origin(connection, new);
                present = false;
            }
            if wanted.browses {
                browse(cx, session, &asked.filter)?;
            } else {
                subscribe(cx, session, &asked.filter)?;
            }
            asked
        }
    };
    if present && cx.broker.filters(session).next().is_none() {
        // Its topic was deleted while nobody was attached; here is who wants it again.
        subscribe(cx, session, &terminus.filter)?;
    }
    source.names_places = names_places(&wanted);
    cx.broker.set_names_places(session, source.names_places);
    if let Some(told) = wanted.told.as_ref().filter(|_| present) {
        settle_told(cx, session, told, source.names_places);
    }
    let bytes = terminus.to_bytes();
    if wanted.expiry.outlives_connection() && !(present && known_bytes.as_ref() == Some(&bytes)) {
        cx.broker.keep(session, TERMINUS_KEY, &bytes);
    }
    if let Some(state) = cx.broker.protocol_mut(session) {
        *state = SessionState::Amqp(Some(Box::new(terminus.clone())));
    }
    Ok(Attaching {
        session,
        present,
        terminus,
        wanted,
    })
}

/// The filters of a source that was attached before.
fn selection_of(cx: &Context<'_>, known: &Terminus, origin: Origin) -> Option<Arc<Selection>> {
    let source = Source::from_value(known.source.value()).ok()?;
    let (selection, _) = Selection::read(&source, origin, &cx.policy.amqp).ok()?;
    selection.map(Arc::new)
}

/// When a source expires, as it was answered.
fn expiry_of(terminus: &Terminus) -> Option<Expiry> {
    let source = Source::from_value(terminus.source.value()).ok()?;
    Some(Expiry {
        policy: source.expiry_policy,
        timeout_s: source.timeout,
    })
}

/// The terms with which a session's link was attached before; also over a restart.
fn known_terminus(cx: &mut Context<'_>, session: SessionKey) -> Option<Terminus> {
    if let Some(SessionState::Amqp(terminus)) = cx.broker.protocol(session) {
        return terminus.as_deref().cloned();
    }
    let records = cx.broker.take_records(session);
    let kept = records.iter().find(|(key, _)| **key == *TERMINUS_KEY);
    Terminus::from_bytes(&kept?.1)
}

/// Whether a client may publish such a message to a topic.
pub(super) fn may_publish(
    cx: &Context<'_>,
    client: &Client,
    topic: &str,
    kind: MessageKind,
) -> bool {
    (cx.policy.rules).may_publish(client.subject(cx), topic, kind)
}

/// The refusal of a message that the rules or the webhook do not allow.
pub(super) fn not_to_publish(
    cx: &Context<'_>,
    client: &Client,
    topic: &str,
    kind: MessageKind,
) -> Refusal {
    let subject = client.subject(cx);
    let denial = (cx.policy.rules).denial(subject, ActionName::Publish, topic, kind);
    let told = denial.told("the rules do not allow to publish there");
    (Condition::UNAUTHORIZED_ACCESS, told.into_owned())
}

/// The refusal of a subscription that the rules or the webhook do not allow.
pub(super) fn not_to_subscribe(cx: &Context<'_>, client: &Client, filter: &str) -> Refusal {
    let denial = (cx.policy.rules).subscription_denial(client.subject(cx), filter);
    let told = denial.told("the rules do not allow to subscribe there");
    (Condition::UNAUTHORIZED_ACCESS, told.into_owned())
}

/// The end of a session's connection after which it lives for so long.
pub(super) fn ended_after(expiry_s: u32) -> Close {
    Close {
        expiry_s: Some(expiry_s),
        ..Close::NORMAL
    }
}

/// The sessions of a user's links by their names. [`AMQP_PREFIX`] keeps them apart from MQTT's clients.
fn session_of_link(client: &Client, link: &str, what: &str) -> SessionName {
    let (container, link) = (share_name(&client.container), share_name(link));
    SessionName::new(
        client.user(),
        &format!("{AMQP_PREFIX}{container}/{link}{what}"),
    )
}

/// The name by which a source is found again: of its user, container and link.
pub(super) fn durable_name(client: &Client, link: &str) -> SessionName {
    session_of_link(client, link, "")
}

/// The name of a source that ends with its connection: another one than a source of the same link that does not.
pub(super) fn passing_name(client: &Client, link: &str) -> SessionName {
    session_of_link(client, link, "/~")
}

impl Client {
    /// The name of the session that a sending link is in a cluster. No source's ends like it.
    pub(super) fn sender_name(&self, link: &str) -> SessionName {
        session_of_link(self, link, "/>")
    }
}

/// Keeps a terminus; `None` where it cannot be read again.
pub(super) fn encoded<'a>(terminus: &impl Composite<'a>) -> Option<Encoded> {
    let mut out = BytesMut::new();
    terminus.encode(&mut out);
    Encoded::from_bytes(out.freeze()).ok()
}

pub(super) fn stolen() -> Refusal {
    refusal(Condition::STOLEN, "the link was attached elsewhere")
}

fn open_session(
    cx: &mut Context<'_>,
    wanted: &Wanted,
    (connection, consumer): (ConnectionId, u64),
    clean_start: bool,
) -> Result<Opened, Refusal> {
    let opened = cx.open(
        connection,
        OpenSession {
            name: wanted.session.clone(),
            clean_start,
            expiry_s: wanted.expiry.session_expiry_s(),
            consumer: consumer_id(consumer),
            will: None,
            on_demand: true,
            selector: wanted
                .selection
                .clone()
                .map(|selection| selection as Arc<dyn sterna_broker::Selector>),
        },
    );
    opened.map_err(|error| not_opened(cx, error))
}

pub(super) fn refused((condition, detail): (Condition, &str)) -> Refusal {
    refusal(condition, detail)
}

/// It is not known whether another node has the source.
pub(super) const fn cluster_away() -> (Condition, &'static str) {
    (
        Condition::RESOURCE_LIMIT_EXCEEDED,
        "the cluster cannot say which node has the source",
    )
}

/// Lets a session look at the messages that wait in a queue.
fn browse(cx: &mut Context<'_>, session: SessionKey, filter: &str) -> Result<(), Refusal> {
    let browsed = cx.broker.browse(cx.now_ms, session, filter);
    browsed.map_err(|_| refusal(Condition::NOT_FOUND, "the queue is gone"))
}

fn subscribe(cx: &mut Context<'_>, session: SessionKey, filter: &str) -> Result<(), Refusal> {
    let options = SubscribeOptions {
        qos: Qos::ExactlyOnce,
        retain_handling: RetainHandling::Always,
        ..SubscribeOptions::default()
    };
    let subscribed = cx.broker.subscribe(cx.now_ms, session, filter, options);
    subscribed.map(drop).map_err(|error| match error {
        SubscribeError::InvalidFilter => {
            let fault = fault_of_filter(filter, cx.broker.limits());
            refusal(Condition::INVALID_FIELD, fault)
        }
        SubscribeError::TooMany => {
            let detail = cx.why_full(TOO_MANY_SUBSCRIPTIONS);
            refusal(Condition::RESOURCE_LIMIT_EXCEEDED, detail)
        }
        SubscribeError::StoreFull => refused(store_full()),
        SubscribeError::NoQueueInCluster => refusal(
            Condition::NOT_IMPLEMENTED,
            "a queue of a cluster is kept by its nodes, and not by a session",
        ),
        SubscribeError::NotAllowed => refusal(
            Condition::UNAUTHORIZED_ACCESS,
            "the rules do not allow to subscribe there",
        ),
        SubscribeError::NoLocalOnShared | SubscribeError::NoSession => {
            refusal(Condition::INTERNAL_ERROR, "the subscription was not made")
        }
    })
}
