//! PUBLISH from a client.

use sterna_broker::{
    CompanionRecord, Companions, InvalidMessage, Keeping, Message, MessageHeader, MessageName,
    Publication, PublishRefusal, Retention, Routed, SessionKey,
};
use sterna_mqtt::server::IncomingPublish;
use sterna_mqtt::session::ReceivedId;
use sterna_mqtt::{Frame, Lane, Packet, PacketId, PacketType, QoS, ReasonCode};

use super::Door;
use super::acknowledge::Acknowledgement;
use super::admission::{has_more_user_properties, in_parts, qos};
use super::client::Client;
use super::quota::{Quota, Why};
use super::received::received_key;
use super::repetitions::{Digest, Repetition};
use crate::authorization::{Denial, MessageKind};
use crate::config::{ActionName, EarlyData, Protocol};
use crate::context::Context;
use crate::door::{Early, Promise};
use crate::metrics::DropReason;
use crate::session;
use crate::session::topics::fault_of_name;

impl Door {
    /// A message has come; the rules have said whether it `is_allowed`.
    pub(super) fn publish(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        frame: &Frame<'_>,
        publish: &IncomingPublish<'_>,
        is_allowed: bool,
    ) {
        let Some(session) = client.session() else {
            return;
        };
        let is_told = client.engine.version().is_v5();
        let bytes = publish.payload.len();
        let is_within = (client.sips).published(cx, Protocol::Mqtt, bytes, is_told);
        if !is_within {
            let of = (&*client.name, &*publish.topic);
            cx.meters
                .refuse(Protocol::Mqtt, of, DropReason::RateExceeded);
        }
        if let Some(displaced) = publish.displaced {
            cx.broker.forget(session, &received_key(displaced));
        }
        self.counts.publish_received += 1;
        self.counts.publish_bytes_received += publish.payload.len() as u64;
        let topic = &*publish.topic;
        if !is_within && !is_told && publish.qos.is_acknowledged() {
            // [MQTT311-3.3.5-2] an acknowledgement would say that it is kept
            let detail = "the user owes more messages than it may (authorization.limit.debt_s)";
            self.mark_refused(cx, client, lane, publish);
            return self.turn_away(cx, client, ReasonCode::QuotaExceeded, detail);
        }
        let mut token = 0;
        let mut refused = None;
        let mut repeats = None;
        let is_early = client.early == Early::Allowed;
        let kind = MessageKind::new(publish.qos as u8, publish.retain, is_early);
        let most = cx.policy.mqtt.maximum_list_entries;
        let is_long = has_more_user_properties(&publish.properties, most);
        let reason = if !is_within || is_long {
            ReasonCode::QuotaExceeded
        } else if is_allowed {
            let routed = match self.repetition(cx, client, publish) {
                Repetition::Done(append) => {
                    repeats = Some(append.max(keep_received(cx, session, publish)));
                    Ok(Routed {
                        matched: 1,
                        ..Routed::default()
                    })
                }
                Repetition::Unsure => Ok(Routed {
                    refused: Some(PublishRefusal::ClusterAway),
                    ..Routed::default()
                }),
                Repetition::No => self.route(cx, client, session, frame, publish),
            };
            match routed {
                Err(InvalidMessage) => ReasonCode::TopicNameInvalid,
                Ok(routed) => {
                    token = routed.token;
                    refused = routed.refused;
                    if let Some(why @ (PublishRefusal::StoreFull | PublishRefusal::ClusterAway)) =
                        refused
                        && publish.qos.is_acknowledged()
                        && !client.engine.version().is_v5()
                    {
                        // [MQTT311-3.3.5-2] an acknowledgement would say that it is kept
                        cx.meters.drops.count_refused(Protocol::Mqtt, why, 1);
                        let detail = why.detail();
                        self.mark_refused(cx, client, lane, publish);
                        return self.turn_away(cx, client, ReasonCode::QuotaExceeded, detail);
                    }
                    match routed.retention {
                        _ if refused == Some(PublishRefusal::ClusterAway) => {
                            ReasonCode::ImplementationSpecificError
                        }
                        _ if refused.is_some() => ReasonCode::QuotaExceeded,
                        Retention::InvalidTopic => ReasonCode::TopicNameInvalid,
                        Retention::Refused => ReasonCode::QuotaExceeded,
                        _ if routed.matched == 0 => ReasonCode::NoMatchingSubscribers,
                        _ => ReasonCode::Success,
                    }
                }
            }
        } else {
            ReasonCode::NotAuthorized
        };
        let why = match reason {
            ReasonCode::QuotaExceeded if !is_within => Some(Quota::Rate),
            ReasonCode::QuotaExceeded if is_long => Some(Quota::UserProperties),
            ReasonCode::QuotaExceeded => Some(refused.map_or(Quota::Retained, Quota::Refused)),
            ReasonCode::TopicNameInvalid => {
                Some(Quota::Topic(fault_of_name(topic, cx.broker.limits())))
            }
            _ => None,
        };
        let denial = if !is_within || reason.is_error() {
            tell_refused(cx, client, (topic, kind), reason, (why, refused))
        } else {
            None
        };
        let why = why.map(Why::from).or(denial);
        if reason.is_error() && client.engine.version().is_v5() {
            // The acknowledgement may have to wait, and its connection may end before.
            self.mark_refused(cx, client, lane, publish);
        }
        // [MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT311-3.3.5-2] the older versions have no way to refuse:
        // the client takes the acknowledgement, and the message goes nowhere.
        let acknowledgement = match (publish.qos, publish.packet_id) {
            (QoS::AtLeastOnce, Some(packet_id)) => {
                Acknowledgement::PubAck(lane, packet_id, reason, why)
            }
            (QoS::ExactlyOnce, Some(packet_id)) => {
                if token > 0
                    && reason.is_error()
                    && client.engine.version().is_v5()
                    && let Some(received) = publish.received
                {
                    // It was appended, and its identifier is free all the same.
                    cx.broker.forget(session, &received_key(received));
                    token = cx.broker.token();
                }
                Acknowledgement::PubRec(lane, packet_id, reason, why)
            }
            _ if token == 0 => return,
            _ => Acknowledgement::Nothing,
        };
        let promise = match (repeats, token) {
            // The connection of the first may have had another listener.
            (Some(append), _) => Promise::again(cx).at(append),
            (None, 0) => Promise::NOTHING,
            (None, _) => {
                Promise::of_message(cx, client.listener, client.subject(cx), topic, kind).at(token)
            }
        };
        let promise = promise.bound(client.is_bound);
        self.acknowledge(cx, client, promise, acknowledgement);
    }

    /// Publishes a message that is new.
    fn route(
        &self,
        cx: &mut Context<'_>,
        client: &Client,
        session: SessionKey,
        frame: &Frame<'_>,
        publish: &IncomingPublish<'_>,
    ) -> Result<Routed, InvalidMessage> {
        let header = header(publish, cx.now_ms);
        let shared = shared(frame, publish, header).transpose()?;
        // [MQTT-4.3.3-10] also when the broker ends before PUBREL comes
        let key = publish.received.map(received_key);
        let record = key.as_ref().map(|key| CompanionRecord::Session {
            session,
            key,
            value: &[],
        });
        let name = publish.received.map(|received| MessageName::Counted {
            session,
            packet_id: received.packet_id.get(),
        });
        let companions = Companions { record, name };
        // [MQTT-4.5.0-1] [MQTT311-3.3.5-1] [MQTT311-4.5.0-1]
        let origin = Some(session);
        let routed = if let Some(message) = shared {
            let publication = Publication {
                origin,
                publisher: None,
                message,
                companions,
            };
            cx.publish(&client.name, publication)
        } else {
            let (topic, payload) = (&publish.topic, publish.payload);
            in_parts(topic, &publish.properties, payload, header, |parts| {
                cx.publish_parts(&client.name, origin, parts, companions)
            })?
        };
        if client.early == Early::Allowed
            && let Some(packet_id) = publish.packet_id
        {
            let digest = self.digest(cx, client, packet_id, publish);
            let sender = (cx.shard, client.id);
            (self.service.repetitions).done_early(sender, digest, routed.token);
        }
        Ok(routed)
    }

    /// A client will not send a message again.
    pub(super) fn released(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        (packet_id, received): (PacketId, Option<ReceivedId>),
        reason: ReasonCode,
    ) {
        let Some(session) = client.session() else {
            return;
        };
        let done = Acknowledgement::PubComp(lane, packet_id, reason);
        let Some(received) = received else {
            // An earlier connection may have released it, and the client uses its identifier anew.
            return self.acknowledge_again(cx, client, done);
        };
        let key = received_key(received);
        let ((), token) = cx.appended(|cx| cx.broker.forget(session, &key));
        self.acknowledge_kept(cx, client, token, done);
    }
}

/// Counts a refused message, and tells the operator. Returns the words for the client where the webhook has decided.
#[cold]
fn tell_refused(
    cx: &Context<'_>,
    client: &Client,
    (topic, kind): (&str, MessageKind),
    reason: ReasonCode,
    (why, refused): (Option<Quota>, Option<PublishRefusal>),
) -> Option<Why> {
    let refuse = |reason| {
        let of = (&*client.name, topic);
        cx.meters.refuse(Protocol::Mqtt, of, reason);
    };
    match (why, refused) {
        // It was counted before.
        (Some(Quota::Rate), _) => {}
        // The broker has told traces.
        (_, Some(why)) => cx.meters.drops.count_refused(Protocol::Mqtt, why, 1),
        (Some(Quota::Retained), None) => cx.meters.not_retained(Protocol::Mqtt),
        (None, None) if reason == ReasonCode::NotAuthorized => refuse(DropReason::NotAuthorized),
        _ => refuse(DropReason::Invalid),
    }
    let denial = (reason == ReasonCode::NotAuthorized).then(|| {
        let subject = client.subject(cx);
        (cx.policy.rules).denial(subject, ActionName::Publish, topic, kind)
    });
    let of_webhook = denial.as_ref().and_then(Denial::of_webhook);
    let told = of_webhook.map(|words| Why::Webhook(words.into()));
    let detail = refused.map_or_else(|| reason.name(), PublishRefusal::detail);
    let detail = why.map_or(detail, Quota::detail);
    let detail = denial.map_or_else(|| detail.into(), |denial| denial.detail());
    let Some(line) = cx.repeats(client.id, &client.name, &detail) else {
        return told;
    };
    tracing::info!(
        peer = line.peer,
        client = &*client.name,
        user = client.identity.user(),
        topic,
        reason = reason.name(),
        detail = &*detail,
        more = line.more,
        "publication refused"
    );
    told
}

/// Bytes that count for a message beside its payload, so that many empty ones count, too.
const MESSAGE_BYTES: usize = 8;

impl Door {
    /// Has a refused message count as new when its client sends it again over another connection.
    /// [MQTT-4.3.3-9] [MQTT311-3.3.5-2]
    fn mark_refused(
        &self,
        cx: &mut Context<'_>,
        client: &Client,
        lane: Lane,
        publish: &IncomingPublish<'_>,
    ) {
        let Some(packet_id) = publish.packet_id else {
            return;
        };
        if publish.qos == QoS::ExactlyOnce
            && let Some(session) = client.session()
            && let Some(state) = session::mqtt_mut(cx.broker, session)
        {
            state.mark_refused(lane, packet_id);
        }
        if client.early == Early::Allowed {
            let digest = self.digest(cx, client, packet_id, publish);
            (self.service.repetitions).refused((cx.shard, client.id), digest);
        }
    }

    fn digest(
        &self,
        cx: &Context<'_>,
        client: &Client,
        packet_id: PacketId,
        publish: &IncomingPublish<'_>,
    ) -> Digest {
        self.service.repetitions.digest(
            client.subject(cx),
            packet_id,
            (publish.qos, publish.retain),
            &publish.topic,
            &publish.properties,
            publish.payload,
        )
    }

    /// Whether a message was done already, when a copy of the client's first flight came.
    #[inline]
    fn repetition(
        &self,
        cx: &Context<'_>,
        client: &mut Client,
        publish: &IncomingPublish<'_>,
    ) -> Repetition {
        match publish.packet_id {
            Some(packet_id)
                if client.beginning_bytes > 0 && client.is_named && client.early == Early::Over =>
            {
                self.look_for_repetition(cx, client, publish, packet_id)
            }
            _ => Repetition::No,
        }
    }

    fn look_for_repetition(
        &self,
        cx: &Context<'_>,
        client: &mut Client,
        publish: &IncomingPublish<'_>,
        packet_id: PacketId,
    ) -> Repetition {
        let bytes = u32::try_from(publish.payload.len() + MESSAGE_BYTES).unwrap_or(u32::MAX);
        client.beginning_bytes = client.beginning_bytes.saturating_sub(bytes);
        let digest = self.digest(cx, client, packet_id, publish);
        let sender = (cx.shard, client.id);
        // In a cluster; where nothing waits for its append, there is nothing to compare.
        let counts_alone = cx.fence.is_some() && cx.policy.exactly_once != Keeping::Nothing;
        let repetition = (self.service.repetitions).look(sender, digest, cx.now_ms, counts_alone);
        let is_repetition = repetition != Repetition::No;
        cx.meters.repetitions.add(u64::from(is_repetition));
        repetition
    }

    /// Begins with a PUBLISH that may be a replay. False where it has to wait for the handshake: another connection
    /// has begun with the same.
    pub(super) fn begin_early(&self, cx: &Context<'_>, client: &Client, frame: &Frame<'_>) -> bool {
        if frame.packet_type() != Some(PacketType::Publish)
            || cx.policy.listener(client.listener).early_data != EarlyData::Idempotent
        {
            return true;
        }
        let Ok(Packet::Publish(publish)) = Packet::decode(frame, client.engine.version()) else {
            return true;
        };
        let Some(packet_id) = publish.packet_id else {
            return true;
        };
        let digest = self.service.repetitions.digest(
            client.subject(cx),
            packet_id,
            (publish.qos, publish.retain),
            publish.topic,
            &publish.properties,
            publish.payload,
        );
        let sender = (cx.shard, client.id);
        (self.service.repetitions).begin_early(sender, digest, cx.now_ms)
    }

    /// The store has come further, on a shard that counts its own appends.
    pub(crate) fn note_kept(&self, cx: &Context<'_>) {
        let committed = cx.broker.committed();
        let reached = cx.policy.exactly_once.reached(committed);
        self.service.repetitions.kept_up_to(cx.shard, reached);
    }
}

/// Keeps that a repetition of QoS 2 was received; the append, 0 for none. The session of the first may be gone, with
/// its record. [MQTT-4.3.3-10]
fn keep_received(cx: &mut Context<'_>, session: SessionKey, publish: &IncomingPublish<'_>) -> u64 {
    let Some(received) = publish.received else {
        return 0;
    };
    let key = received_key(received);
    let ((), append) = cx.appended(|cx| cx.broker.keep(session, &key, &[]));
    append
}

fn header(publish: &IncomingPublish<'_>, now_ms: u64) -> MessageHeader {
    MessageHeader {
        qos: qos(publish.qos),
        retain: publish.retain,
        published_ms: now_ms,
        expires_at_ms: publish
            .properties
            .message_expiry_s()
            .map(|seconds| now_ms + u64::from(seconds) * 1000),
    }
}

/// A message that shares the memory of its packet. `None` where it is small, or the packet lies in the shard's read buffer.
fn shared(
    frame: &Frame<'_>,
    publish: &IncomingPublish<'_>,
    header: MessageHeader,
) -> Option<Result<Message, InvalidMessage>> {
    let body = frame.shared()?;
    if publish.payload.len() < sterna_net::SHARE_BYTES {
        return None;
    }
    let properties = publish.properties.forward().contiguous()?;
    let topic = frame.range_of(publish.topic.as_bytes())?;
    let payload = frame.range_of(publish.payload)?;
    let properties = frame.range_of(properties).unwrap_or(0..0);
    let message = Message::from_body(body.clone(), topic, properties, payload, header);
    Some(message)
}
