//! Messages from clients.

use crate::authorization::{MessageKind, Subject};
use crate::door::Early;
use crate::session::topics::TOO_DEEP;
use sterna_amqp::connection::{Delivery, LinkId};
use sterna_amqp::messaging::{DeliveryState, DeliveryStateBuf, MessageView, Outcome, Rejected};
use sterna_amqp::performatives::{Error, ReceiverSettleMode};
use sterna_amqp::types::{Map, Value};
use sterna_amqp::{Condition, DecodeError};
use sterna_broker::{CompanionRecord, Companions, Message, Publication, Qos, Retention};
use sterna_net::ConnectionId;

use super::Door;
use super::acknowledge::Acknowledgement;
use super::address::{End, Kind, Node, topic_of_key};
use super::attach::{Refusal, not_to_publish, refusal};
use super::client::{Accepted, Client, Target};
use super::exact::{Decided, ExactLink, NotTaken};
use crate::config::Protocol;
use crate::context::{Context, NOT_RETAINED, TOO_FAST};
use crate::door::Promise;
use crate::mapping::message_from_amqp;
use crate::metrics::DropReason;
use crate::repeats::brief;

impl Door {
    pub(super) fn delivery(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        delivery: &Delivery<'_>,
    ) {
        let Some(target) = client.targets.get(&delivery.link) else {
            return;
        };
        if target.node == Target::Coordinator {
            return self.transaction_request(cx, client, delivery);
        }
        let bytes = delivery.payload.len();
        let is_within = (client.sips).published(cx, Protocol::Amqp, bytes, true);
        self.counts.publish_received += 1;
        let node = target.node.clone();
        let message = if is_within {
            self.message(cx, client, &node, delivery)
        } else {
            Err(refusal(Condition::RESOURCE_LIMIT_EXCEEDED, TOO_FAST))
        };
        if let Err((condition, _)) = &message {
            let reason = match *condition {
                _ if !is_within => DropReason::RateExceeded,
                Condition::UNAUTHORIZED_ACCESS => DropReason::NotAuthorized,
                _ => DropReason::Invalid,
            };
            // Without one, the topic is in the message alone, which could not be read.
            let topic = match &node {
                Target::Topic(topic) => &**topic,
                _ => "",
            };
            (cx.meters).refuse(Protocol::Amqp, (&client.container, topic), reason);
        }
        if let Some(DeliveryState::Transactional(state)) =
            delivery.state.as_ref().map(|state| state.view())
        {
            self.post(cx, client, delivery, state.txn_id, message);
        } else if let Some(published) = self.take(cx, client, delivery, message) {
            self.conclude(cx, client, delivery, published);
        }
        self.renew_credit(cx, client, delivery.link);
    }

    /// Publishes a message; `None` where its link was attached anew elsewhere, and takes nothing any more.
    fn take(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        delivery: &Delivery<'_>,
        message: Result<Message, Refusal>,
    ) -> Option<Result<Promise, Refusal>> {
        let (listener, publisher) = (client.listener, client.subject(cx));
        let from = (listener, client.id, &*client.container);
        let target = client.targets.get(&delivery.link)?;
        let Some(exact) = target.exact.as_ref().filter(|_| !delivery.settled) else {
            let alone = Companions::default();
            let publish = |message| publish(cx, from, publisher, message, alone);
            return Some(message.and_then(publish));
        };
        let claim = target.claim;
        let most = cx.policy.amqp.maximum_unsettled_deliveries as usize;
        let taken = exact.take(delivery.tag, delivery.delivery_id, most, |record| {
            let result = message.and_then(|message| {
                let companions = match (&record, claim) {
                    (Some(key), Some(claim)) => claim.companions(key),
                    (Some(key), None) => of_node(key),
                    (None, _) => Companions::default(),
                };
                publish(cx, from, publisher, message, companions)
            });
            match &result {
                Ok(promise) => Decided {
                    state: DeliveryStateBuf::Accepted,
                    token: promise.token(),
                    result,
                },
                Err((condition, detail)) => Decided {
                    state: DeliveryStateBuf::new(&rejected(*condition, detail)),
                    token: 0,
                    result,
                },
            }
        });
        match taken {
            Ok(result) => Some(result),
            Err(NotTaken::Full) => {
                let detail = "too many deliveries of the link are not settled";
                Some(Err(refusal(Condition::RESOURCE_LIMIT_EXCEEDED, detail)))
            }
            Err(NotTaken::Stolen) => {
                let error = Error::new(Condition::STOLEN, "the link was attached elsewhere");
                // A link that is gone needs no error.
                let _ = client
                    .engine
                    .detach(delivery.link, true, Some(error), &mut self.out);
                None
            }
        }
    }

    /// Tells the client the outcome of its delivery, once the outcome is kept.
    pub(super) fn conclude(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        delivery: &Delivery<'_>,
        result: Result<Promise, Refusal>,
    ) {
        match result {
            Ok(promise) => self.accept(cx, client, delivery, promise),
            Err((condition, detail)) => {
                let link = client.targets.get(&delivery.link);
                let topic = link.and_then(|link| Self::named_topic(cx, &link.node, delivery));
                if let Some(line) = cx.repeats(client.id, &client.container, &detail) {
                    tracing::info!(
                        peer = line.peer,
                        client = &*client.container,
                        user = client.user(),
                        link = link.map(|link| &*link.name),
                        node = link.and_then(|link| link.node.topic()).map(brief),
                        topic = topic.as_deref().map(brief),
                        condition = condition.as_str(),
                        detail,
                        more = line.more,
                        "message refused"
                    );
                }
                let state = rejected(condition, &detail);
                self.settle_received(client, delivery, &state);
            }
        }
    }

    /// The message of a delivery, with the topic that it goes to.
    fn message(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        node: &Target,
        delivery: &Delivery<'_>,
    ) -> Result<Message, Refusal> {
        if delivery.message_format != 0 {
            let detail = "the message format is not served";
            return Err(refusal(Condition::NOT_IMPLEMENTED, detail));
        }
        let qos = match (delivery.settled, delivery.settle_mode) {
            (true, _) => Qos::AtMostOnce,
            (false, ReceiverSettleMode::First) => Qos::AtLeastOnce,
            (false, ReceiverSettleMode::Second) => Qos::ExactlyOnce,
        };
        let payload = &delivery.payload;
        self.counts.publish_bytes_received += payload.len() as u64;
        let own;
        let mut queue = None;
        let topic = if let Target::Topic(topic) = node {
            &**topic
        } else {
            (own, queue) = Self::own_topic(cx, node, payload)?;
            &own
        };
        let early_data = Some(client.early == Early::Allowed);
        let kind = MessageKind {
            qos: Some(qos as u8),
            retain: None,
            early_data,
        };
        if !client.may_publish(cx, topic, kind) {
            return Err(not_to_publish(cx, client, topic, kind));
        }
        match queue {
            Some(name) => self.find_queue(cx, &name, client.user())?,
            None => self.find_node(cx, topic)?,
        }
        let config = &cx.policy.amqp;
        let reply_topic = |address: &str, annotations: Option<Map<'_>>| {
            let kind = jms_kind(annotations, JMS_REPLY_TO);
            super::attach::topic_of_address(config, address, kind)
        };
        let message = message_from_amqp(payload, topic, qos, cx.now_ms, reply_topic)
            .map(|message| message.with_origin(client.origin))
            .map_err(refused)?;
        if cx.policy.rules.look_at_messages() {
            let kind = MessageKind {
                early_data,
                ..MessageKind::of(&message)
            };
            if !client.may_publish(cx, topic, kind) {
                return Err(not_to_publish(cx, client, topic, kind));
            }
        }
        Ok(message)
    }

    /// The topic of a delivery to a link that has none itself, for the log.
    fn named_topic(cx: &Context<'_>, node: &Target, delivery: &Delivery<'_>) -> Option<String> {
        let is_open = !matches!(node, Target::Topic(_) | Target::Coordinator);
        let named = is_open.then(|| Self::own_topic(cx, node, &delivery.payload));
        named.and_then(Result::ok).map(|(topic, _)| topic)
    }

    /// The topic that a message names itself, and the queue where it is a queue's.
    fn own_topic(
        cx: &Context<'_>,
        node: &Target,
        payload: &[u8],
    ) -> Result<(String, Option<String>), Refusal> {
        let view = MessageView::parse(payload).map_err(refused)?;
        let properties = view.properties().map_err(refused)?.unwrap_or_default();
        if *node == Target::BySubject {
            let topic = topic_of_key(properties.subject.unwrap_or_default(), End::Target);
            return match sterna_mqtt::topic::check_name(&topic) {
                Ok(()) => Ok((topic, None)),
                Err(error) => Err(refusal(Condition::INVALID_FIELD, error.detail())),
            };
        }
        let to = properties.to.as_ref().and_then(Value::as_text);
        let to = to.ok_or_else(|| {
            let detail = "a message to the anonymous node names no address in `to`";
            refusal(Condition::PRECONDITION_FAILED, detail)
        })?;
        let kind = jms_kind(view.message_annotations(), JMS_DESTINATION);
        let node = Node::parse(to, kind, End::Target, &cx.policy.amqp)
            .map_err(|error| refusal(error.condition, error.detail))?;
        let topic = node.topic().ok_or_else(|| {
            let detail = "the address in `to` names no node";
            refusal(Condition::NOT_FOUND, detail)
        })?;
        let queue = match node {
            Node::Queue(name) => Some(name),
            Node::Topic(_) | Node::BySubject => None,
        };
        Ok((topic, queue))
    }

    /// Accepts a delivery. Consecutive ones get one disposition.
    fn accept(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        delivery: &Delivery<'_>,
        promise: Promise,
    ) {
        if delivery.settled {
            if !promise.is_empty() {
                self.acknowledge(cx, client, promise, Acknowledgement::Nothing);
            }
            return;
        }
        let settled = delivery.settle_mode == ReceiverSettleMode::First;
        let (session, id) = (delivery.link.session, delivery.delivery_id);
        if let Some(accepted) = &mut client.accepted
            && accepted.session == session
            && accepted.settled == settled
            && accepted.last.wrapping_add(1) == id
        {
            accepted.last = id;
            accepted.promise = accepted.promise.and(promise);
            return;
        }
        self.write_accepted(cx, client);
        client.accepted = Some(Accepted {
            session,
            first: id,
            last: id,
            settled,
            promise,
        });
    }

    /// Writes the disposition of accepted deliveries, once they are kept.
    pub(super) fn write_accepted(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        if let Some(accepted) = client.accepted.take() {
            let promise = accepted.promise;
            self.acknowledge(cx, client, promise, Acknowledgement::Accepted(accepted));
        }
    }

    /// Tells the state of one delivery, once that is kept.
    pub(super) fn dispose(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        delivery: &Delivery<'_>,
        state: &DeliveryState<'_>,
        promise: Promise,
    ) {
        if promise.is_empty() {
            return self.settle_received(client, delivery, state);
        }
        if !delivery.settled {
            let disposed = Acknowledgement::Disposed {
                session: delivery.link.session,
                delivery_id: delivery.delivery_id,
                settled: delivery.settle_mode == ReceiverSettleMode::First,
                state: DeliveryStateBuf::new(state),
            };
            self.acknowledge(cx, client, promise, disposed);
        }
    }

    /// Tells the state of one delivery.
    pub(super) fn settle_received(
        &mut self,
        client: &mut Client,
        delivery: &Delivery<'_>,
        state: &DeliveryState<'_>,
    ) {
        if delivery.settled {
            return;
        }
        let id = delivery.delivery_id;
        // A session that has ended needs none.
        let _ = client.engine.dispose(
            delivery.link.session,
            (id, id),
            Some(state),
            delivery.settle_mode == ReceiverSettleMode::First,
            &mut self.out,
        );
    }

    /// Gives a link its credit again, when half of it is used. Credit and unsettled deliveries together never
    /// exceed the limit on unsettled deliveries. So a client that keeps to its credit keeps to that limit, too.
    pub(super) fn renew_credit(&mut self, cx: &Context<'_>, client: &mut Client, link: LinkId) {
        let Some(target) = client.targets.get(&link) else {
            return;
        };
        let config = &cx.policy.amqp;
        // Those of earlier attachments count as long as they are remembered.
        let remembered = target.exact.as_ref().map_or(0, ExactLink::unsettled);
        let unsettled = client.engine.unsettled_on(link).max(remembered);
        let room = config
            .maximum_unsettled_deliveries
            .saturating_sub(unsettled);
        let credit = config.link_credit.min(room);
        client.is_starved |= credit < config.link_credit;
        if credit > 0 && client.engine.credit(link) <= credit / 2 {
            // A link that is gone needs none.
            let _ = client
                .engine
                .set_credit(link, credit, false, false, &mut self.out);
        }
    }
}

/// The annotations by which JMS clients name the kind of node of `to` and `reply-to`.
const JMS_DESTINATION: &str = "x-opt-jms-dest";
const JMS_REPLY_TO: &str = "x-opt-jms-reply-to";

/// Which kind of node a JMS client means by a plain name.
fn jms_kind(annotations: Option<Map<'_>>, name: &str) -> Option<Kind> {
    match annotations?.get(name)? {
        // Temporary ones are 2 and 3.
        Value::Byte(0 | 2) => Some(Kind::Queue),
        Value::Byte(1 | 3) => Some(Kind::Topic),
        _ => None,
    }
}

fn refused(error: DecodeError) -> Refusal {
    refusal(error.condition, error.detail)
}

/// The state of a delivery that is not taken.
pub(super) fn rejected(condition: Condition, detail: &str) -> DeliveryState<'_> {
    DeliveryState::Outcome(Outcome::Rejected(Rejected {
        error: Some(Error::new(condition, detail)),
    }))
}

/// The record of a node that a delivery was taken.
const fn of_node(key: &[u8]) -> Companions<'_> {
    Companions {
        record: Some(CompanionRecord::Node { key, value: &[] }),
        name: None,
    }
}

/// Routes a message of a listener's client, by the name of its container. The answer to the client waits for the
/// promise.
fn publish(
    cx: &mut Context<'_>,
    (listener, connection, container): (u16, ConnectionId, &str),
    publisher: Subject<'_>,
    message: Message,
    companions: Companions<'_>,
) -> Result<Promise, Refusal> {
    let promise = Promise::of_message(
        cx,
        listener,
        publisher,
        message.topic(),
        MessageKind::of(&message),
    );
    let topic = (cx.meters.watch.is_on()).then(|| message.topic().to_owned());
    let client = (message.retain()).then(|| cx.publisher(connection, publisher.user));
    let publication = Publication {
        origin: None,
        publisher: client,
        message,
        companions,
    };
    let routed = cx.publish(container, publication);
    if let Some(why) = routed.refused {
        cx.meters.drops.count_refused(Protocol::Amqp, why, 1);
        return Err(refusal(Condition::RESOURCE_LIMIT_EXCEEDED, why.detail()));
    }
    match routed.retention {
        Retention::InvalidTopic => {
            let of = (container, topic.as_deref().unwrap_or_default());
            cx.meters.refuse(Protocol::Amqp, of, DropReason::Invalid);
            Err(refusal(Condition::INVALID_FIELD, TOO_DEEP))
        }
        Retention::Refused => {
            cx.meters.not_retained(Protocol::Amqp);
            Err(refusal(Condition::RESOURCE_LIMIT_EXCEEDED, NOT_RETAINED))
        }
        _ => Ok(promise.at(routed.token)),
    }
}
