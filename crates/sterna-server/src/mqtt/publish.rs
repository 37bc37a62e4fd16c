//! PUBLISH from a client.

use sterna_broker::{Message, MessageHeader, Publication, Retention};
use sterna_mqtt::server::IncomingPublish;
use sterna_mqtt::{Frame, Lane, QoS, ReasonCode};

use super::admission::{copy, qos};
use super::client::Client;
use super::{Door, log_end};
use crate::context::Context;
use crate::door::Early;
use crate::session;

impl Door {
    pub(super) fn publish(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        frame: &Frame<'_>,
        publish: &IncomingPublish<'_>,
    ) {
        let Some(session) = client.session() else {
            return;
        };
        self.counts.publish_received += 1;
        self.counts.publish_bytes_received += publish.payload.len() as u64;
        let topic = &*publish.topic;
        let reason = if cx.policy.rules.may_publish(client.subject(), topic) {
            let now_ms = cx.net.now_ms();
            match message(frame, publish, now_ms) {
                Err((reason, _)) => reason,
                Ok(_) if self.is_repetition(cx, client, publish) => ReasonCode::Success,
                Ok(message) => {
                    // [MQTT-4.5.0-1] [MQTT311-3.3.5-1] [MQTT311-4.5.0-1]
                    let routed = cx.broker.publish(
                        now_ms,
                        Publication {
                            origin: Some(session),
                            message,
                        },
                    );
                    match routed.retention {
                        _ if routed.refused => ReasonCode::QuotaExceeded,
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
        if reason.is_error() {
            let peer = cx.net.info(client.id).map(|info| info.peer);
            tracing::info!(
                peer = peer.map(tracing::field::display),
                client = &*client.name,
                topic,
                reason = reason.name(),
                "publication refused"
            );
        }
        // [MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT311-3.3.5-2] the older versions have no way to refuse:
        // the client takes the acknowledgement, and the message goes nowhere.
        match (publish.qos, publish.packet_id) {
            (QoS::AtLeastOnce, Some(packet_id)) => {
                client.engine.puback(lane, packet_id, reason, &mut self.out);
                self.counts.messages_sent += 1;
            }
            (QoS::ExactlyOnce, Some(packet_id)) => {
                let Some(state) = session::mqtt_mut(cx.broker, session) else {
                    log_end(cx.net, client, "", "the session is gone");
                    return;
                };
                client
                    .engine
                    .pubrec(state, lane, packet_id, reason, &mut self.out);
                self.counts.messages_sent += 1;
            }
            _ => {}
        }
    }
}

/// Bytes that count for a message beside its payload, so that many empty ones count, too.
const MESSAGE_BYTES: usize = 8;

impl Door {
    /// Whether a message was done already, when a copy of the client's first flight came.
    fn is_repetition(
        &self,
        cx: &Context<'_>,
        client: &mut Client,
        publish: &IncomingPublish<'_>,
    ) -> bool {
        let Some(packet_id) = publish.packet_id else {
            return false;
        };
        if client.beginning_bytes == 0 || !client.is_named || client.early != Early::Over {
            return false;
        }
        let bytes = u32::try_from(publish.payload.len() + MESSAGE_BYTES).unwrap_or(u32::MAX);
        client.beginning_bytes = client.beginning_bytes.saturating_sub(bytes);
        let digest = self.service.repetitions.digest(
            client.subject(),
            packet_id,
            (publish.qos, publish.retain),
            &publish.topic,
            &publish.properties,
            publish.payload,
        );
        let sender = (cx.shard, client.id);
        (self.service.repetitions).is_repetition(sender, digest, cx.net.now_ms())
    }
}

/// The broker's message: a copy of a packet that lay in the shard's read buffer, a share of one that
/// was put together from pieces.
fn message(
    frame: &Frame<'_>,
    publish: &IncomingPublish<'_>,
    now_ms: u64,
) -> Result<Message, (ReasonCode, &'static str)> {
    let header = MessageHeader {
        qos: qos(publish.qos),
        retain: publish.retain,
        published_ms: now_ms,
        expires_at_ms: publish
            .properties
            .message_expiry_s()
            .map(|seconds| now_ms + u64::from(seconds) * 1000),
    };
    if let Some(body) = frame.shared()
        && publish.payload.len() >= sterna_net::SHARE_BYTES
        && let Some(properties) = publish.properties.forward().contiguous()
        && let Some(topic) = frame.range_of(publish.topic.as_bytes())
        && let Some(payload) = frame.range_of(publish.payload)
    {
        let properties = frame.range_of(properties).unwrap_or(0..0);
        return Message::from_body(body.clone(), topic, properties, payload, header).map_err(
            |_| {
                (
                    ReasonCode::TopicNameInvalid,
                    "the message's parts do not fit",
                )
            },
        );
    }
    copy(&publish.topic, &publish.properties, publish.payload, header)
}
