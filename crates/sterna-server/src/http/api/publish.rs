//! Messages from clients.

use sterna_broker::{
    CompanionRecord, Companions, Message, MessageName, Once, Origin, Publication, Retention,
};
use sterna_http::{Request, Responses};
use sterna_mqtt::topic;
use sterna_net::ConnectionId;

use super::Api;
use super::acknowledge::Acknowledgement;
use super::answer::Trouble;
use super::open::Asker;
use super::peer::Peer;
use super::target::Target;
use crate::authorization::MessageKind;
use crate::config::{ActionName, Protocol};
use crate::context::{Context, NOT_RETAINED, TOO_FAST};
use crate::door::Promise;
use crate::http::fields::Fields;
use crate::http::problem::ProblemKind as Kind;
use crate::http::registry::{Begin, Fingerprint, KeyRecord};
use crate::identity::Identity;
use crate::mapping::message_from_http;
use crate::metrics::DropReason;
use crate::session::topics::TOO_DEEP;

/// Checks the name of a topic.
///
/// # Errors
/// When it is none.
pub(super) fn check_name(topic: &str) -> Result<(), Trouble> {
    topic::check_name(topic).map_err(|error| Trouble::new(Kind::InvalidTopic, error.detail()))
}

/// Status of the answer to a message that was published.
pub(super) const PUBLISHED: u16 = 204;

/// Most bytes of an `Idempotency-Key`.
const MAXIMUM_KEY_BYTES: usize = 255;

/// Whether this is a value of `Idempotency-Key`.
pub(super) fn is_key(key: &[u8]) -> bool {
    (1..=MAXIMUM_KEY_BYTES).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic)
}

/// Checks the value of `Idempotency-Key`.
fn check_key(key: &[u8]) -> Result<(), Trouble> {
    if is_key(key) {
        return Ok(());
    }
    let detail = "idempotency-key: not 1 to 255 visible characters";
    Err(Trouble::new(Kind::InvalidField, detail))
}

/// The name of a publisher in traces: its user, empty for one without a name.
fn name_of(identity: &Identity) -> &str {
    identity.user().unwrap_or_default()
}

/// A message is refused because its sender publishes faster than it may.
pub(super) fn too_fast(cx: &Context<'_>, identity: &Identity, topic: &str) -> Trouble {
    let of = (name_of(identity), topic);
    cx.meters
        .refuse(Protocol::Http, of, DropReason::RateExceeded);
    Trouble::new(Kind::TooManyRequests, TOO_FAST)
}

fn not_retained() -> Trouble {
    Trouble::new(Kind::RetainedFull, NOT_RETAINED)
}

/// Companions of the message of a request that has a key.
pub(super) struct Keyed {
    /// The name of the message in the log of a cluster.
    once: Option<Once>,
    /// The record by which the request is known.
    key: KeyRecord,
    value: Vec<u8>,
}

impl Api {
    /// Publishes the message of a request.
    ///
    /// # Errors
    /// The answer to a request that fails.
    #[allow(clippy::too_many_arguments, reason = "a step of a request")]
    pub(super) fn post(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        target: &Target<'_>,
        topic: &str,
        asker: &Asker,
        request: &Request,
    ) -> Result<(), Trouble> {
        if !(peer.sips).published(cx, Protocol::Http, request.content.len(), true) {
            return Err(too_fast(cx, &asker.identity, topic));
        }
        target.without_parameters()?;
        check_name(topic)?;
        let now_ms = cx.now_ms;
        let message = message_from_http(&Fields(&request.head), topic, &request.content, now_ms)
            .map_err(|error| Trouble::new(Kind::InvalidField, error.to_string()))?;
        let Some(key) = request.head.field("idempotency-key") else {
            let promise = self.publish(cx, peer, &asker.identity, message, None)?;
            self.published(cx, peer, out, asker, promise, false);
            return Ok(());
        };
        check_key(key)?;
        let (fingerprint, kind) = (Fingerprint::of(&message), MessageKind::of(&message));
        let (http, user) = (&cx.policy.http, asker.identity.user());
        let claim = peer.take_claim(asker.id);
        let place = (cx.shard, now_ms);
        let who = ((user, cx.address(peer.connection)), key);
        let forget = |record: &KeyRecord| cx.broker.forget_node(record);
        let begun = (self.registry).begin(http, who, fingerprint, claim, place, forget);
        let ticket = match begun {
            Begin::First(ticket) => ticket,
            Begin::Replay(status, token) => {
                if status != PUBLISHED {
                    return Err(not_retained());
                }
                let promise = peer
                    .promise_of(cx, asker.identity.subject(cx, peer.connection), topic, kind)
                    .at(token);
                self.published(cx, peer, out, asker, promise, true);
                return Ok(());
            }
            Begin::Reused => {
                let detail = "the key was used for another message";
                return Err(Trouble::new(Kind::KeyReused, detail));
            }
            Begin::Away => {
                let detail = "the cluster cannot say whether a request with this key was done";
                return Err(Trouble::new(Kind::ClusterAway, detail));
            }
            Begin::InProgress => {
                let detail = "a request with this key is not answered yet";
                return Err(Trouble::new(Kind::KeyInUse, detail));
            }
        };
        let (record_key, value) = ticket.record(PUBLISHED);
        let keyed = Keyed {
            once: ticket.once(),
            key: record_key,
            value,
        };
        match self.publish(cx, peer, &asker.identity, message, Some(&keyed)) {
            Ok(mut promise) => {
                if self.registry.is_in_cluster() {
                    cx.broker.keep_shared(&keyed.key, &keyed.value);
                    promise = promise.at(cx.broker.token());
                }
                ticket.done(PUBLISHED, promise.token());
                self.published(cx, peer, out, asker, promise, false);
                Ok(())
            }
            Err(trouble) => {
                // It was delivered all the same, so it must not be again. After other failures it may be
                // tried again.
                if trouble.kind() == Kind::RetainedFull {
                    let (key, value) = ticket.record(trouble.status());
                    cx.broker.keep_node(&key, &value);
                    cx.broker.keep_shared(&key, &value);
                    ticket.done(trouble.status(), cx.broker.token());
                }
                Err(trouble)
            }
        }
    }

    /// Says that a message was published, once it is kept.
    fn published(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        asker: &Asker,
        promise: Promise,
        is_replay: bool,
    ) {
        let done = Acknowledgement::Done {
            id: asker.id,
            reader: asker.reader.clone(),
            status: PUBLISHED,
            is_replay,
        };
        self.acknowledge(cx, peer, out, promise, done);
    }

    /// Publishes a message, if that is allowed, together with its record. The answer to the client
    /// waits for the promise.
    ///
    /// # Errors
    /// The reason why the message is not published.
    pub(super) fn publish(
        &mut self,
        cx: &mut Context<'_>,
        peer: &Peer,
        identity: &Identity,
        message: Message,
        keyed: Option<&Keyed>,
    ) -> Result<Promise, Trouble> {
        self.counts.publish_received += 1;
        self.counts.publish_bytes_received += message.payload().len() as u64;
        let topic = cx.meters.watch.is_on().then(|| message.topic().to_owned());
        let published = Self::route(cx, peer, identity, message, keyed);
        if let Err(trouble) = &published {
            let of = (name_of(identity), topic.as_deref().unwrap_or_default());
            match trouble.kind() {
                // They are counted, and the broker has told traces of them.
                Kind::QueueFull | Kind::StoreFull | Kind::ClusterAway => {}
                Kind::RetainedFull => cx.meters.not_retained(Protocol::Http),
                Kind::Forbidden => {
                    (cx.meters).refuse(Protocol::Http, of, DropReason::NotAuthorized);
                }
                _ => cx.meters.refuse(Protocol::Http, of, DropReason::Invalid),
            }
        }
        published
    }

    fn route(
        cx: &mut Context<'_>,
        peer: &Peer,
        identity: &Identity,
        message: Message,
        keyed: Option<&Keyed>,
    ) -> Result<Promise, Trouble> {
        check_name(message.topic())?;
        let kind = MessageKind::of(&message);
        may_publish(cx, peer.connection, identity, message.topic(), kind)?;
        let promise = peer.promise_of(
            cx,
            identity.subject(cx, peer.connection),
            message.topic(),
            kind,
        );
        let companions = keyed.map_or_else(Companions::default, |Keyed { once, key, value }| {
            let name = once.map(|once| MessageName::Given {
                once,
                record: Some((key, value)),
            });
            let record = Some(CompanionRecord::Node { key, value });
            Companions { record, name }
        });
        let client = (message.retain()).then(|| cx.publisher(peer.connection, identity.user()));
        let publication = Publication {
            origin: None,
            publisher: client,
            message: message.with_origin(Origin::NONE),
            companions,
        };
        let routed = cx.publish(name_of(identity), publication);
        if let Some(why) = routed.refused {
            cx.meters.drops.count_refused(Protocol::Http, why, 1);
            return Err(Trouble::of_publication(why));
        }
        match routed.retention {
            Retention::InvalidTopic => Err(Trouble::new(Kind::InvalidTopic, TOO_DEEP)),
            Retention::Refused => Err(not_retained()),
            Retention::NotAsked | Retention::Stored | Retention::Cleared | Retention::Absent => {
                Ok(promise.at(routed.token))
            }
        }
    }
}

/// Whether the rules let a client publish such a message to a topic.
///
/// # Errors
/// When they don't.
pub(super) fn may_publish(
    cx: &Context<'_>,
    connection: ConnectionId,
    identity: &Identity,
    topic: &str,
    kind: MessageKind,
) -> Result<(), Trouble> {
    if (cx.policy.rules).may_publish(identity.subject(cx, connection), topic, kind) {
        return Ok(());
    }
    let (name, subject) = (
        identity.user().unwrap_or_default(),
        identity.subject(cx, connection),
    );
    let denial = (cx.policy.rules).denial(subject, ActionName::Publish, topic, kind);
    let detail = denial.detail();
    if let Some(line) = cx.repeats(connection, name, &detail) {
        tracing::info!(
            peer = line.peer,
            user = identity.user(),
            topic,
            reason = Kind::Forbidden.name(),
            detail = &*detail,
            more = line.more,
            "publication refused"
        );
    }
    let told = denial.told("the rules forbid to publish to this topic");
    Err(Trouble::new(Kind::Forbidden, told).logged())
}
