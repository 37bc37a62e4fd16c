//! SUBSCRIBE and UNSUBSCRIBE.

use sterna_broker::{RetainHandling, SubscribeError, SubscribeOptions};
use sterna_mqtt::packet::{self, Subscribe, Unsubscribe};
use sterna_mqtt::{Lane, QoS, ReasonCode};

use super::Door;
use super::acknowledge::Acknowledgement;
use super::admission::{qos, wire_qos};
use super::client::Client;
use crate::context::Context;

impl Door {
    pub(super) fn subscribe(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        subscribe: &Subscribe<'_>,
    ) {
        if subscribe.len() > cx.policy.mqtt.maximum_list_entries as usize {
            self.turn_away(
                cx,
                client,
                ReasonCode::QuotaExceeded,
                "too many filters in SUBSCRIBE",
            );
            return;
        }
        // [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT311-3.8.4-4] each filter as if it came alone, one answer
        let (codes, token) = cx.appended(|cx| {
            let codes = subscribe.filters().map(|(filter, options)| {
                subscribe_one(cx, client, lane, filter, options, subscribe.identifier())
            });
            codes.collect()
        });
        let done = Acknowledgement::SubAck(lane, subscribe.packet_id, codes);
        self.acknowledge_kept(cx, client, token, done);
    }

    pub(super) fn unsubscribe(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        unsubscribe: &Unsubscribe<'_>,
    ) {
        if unsubscribe.len() > cx.policy.mqtt.maximum_list_entries as usize {
            self.turn_away(
                cx,
                client,
                ReasonCode::QuotaExceeded,
                "too many filters in UNSUBSCRIBE",
            );
            return;
        }
        let Some(session) = client.session() else {
            return;
        };
        let now_ms = cx.now_ms;
        // [MQTT-3.10.4-1] [MQTT-3.10.4-6] [MQTT311-3.10.4-1] [MQTT311-3.10.4-2]
        let (codes, token) = cx.appended(|cx| {
            let codes = unsubscribe.topics().map(|filter| {
                if cx.broker.unsubscribe(now_ms, session, filter) {
                    ReasonCode::Success
                } else {
                    ReasonCode::NoSubscriptionExisted
                }
            });
            codes.collect()
        });
        let done = Acknowledgement::UnsubAck(lane, unsubscribe.packet_id, codes);
        self.acknowledge_kept(cx, client, token, done);
    }
}

fn subscribe_one(
    cx: &mut Context<'_>,
    client: &Client,
    lane: Lane,
    filter: &str,
    options: packet::SubscribeOptions,
    identifier: Option<u32>,
) -> ReasonCode {
    let Some(session) = client.session() else {
        return ReasonCode::UnspecifiedError;
    };
    if let Some(most) = client.sips.most_subscriptions()
        && cx.broker.filters(session).all(|known| **known != *filter)
        && cx.broker.filters(session).count() >= most
    {
        let why =
            "the limit of the user has no more subscriptions (authorization.limit.subscriptions)";
        return refused(cx, client, filter, ReasonCode::QuotaExceeded, why);
    }
    // [MQTT-3.2.2-9] [MQTT-3.2.2-10] [MQTT-3.8.4-7] [MQTT311-3.8.4-6] granted at the QoS that is served
    let most = QoS::from_u8(cx.policy.mqtt.maximum_qos).unwrap_or(QoS::ExactlyOnce);
    let options = SubscribeOptions {
        qos: qos(options.qos.min(most)),
        no_local: options.no_local,
        retain_as_published: options.retain_as_published,
        retain_handling: match options.retain_handling {
            packet::RetainHandling::Send => RetainHandling::Always,
            packet::RetainHandling::SendIfNew => RetainHandling::IfNew,
            packet::RetainHandling::DoNotSend => RetainHandling::Never,
        },
        identifier,
        // Deliveries come on the stream that asked for them.
        hint: lane.reply().0,
        keep: false,
    };
    match cx.broker.subscribe(cx.now_ms, session, filter, options) {
        Ok(subscribed) => ReasonCode::granted(wire_qos(subscribed.qos)),
        Err(SubscribeError::InvalidFilter) => {
            let why = "no valid filter, or beyond the limits of filters";
            refused(cx, client, filter, ReasonCode::TopicFilterInvalid, why)
        }
        Err(SubscribeError::TooMany) => {
            let why = cx.why_full(
                "too many subscriptions (broker.maximum_subscriptions_per_session and the settings beside it)",
            );
            refused(cx, client, filter, ReasonCode::QuotaExceeded, why)
        }
        Err(SubscribeError::StoreFull) => {
            let why = "the store has no room";
            refused(cx, client, filter, ReasonCode::QuotaExceeded, why)
        }
        Err(SubscribeError::NoQueueInCluster) => {
            let why = "a cluster keeps no queue for a shared subscription";
            let reason = ReasonCode::SharedSubscriptionsNotSupported;
            refused(cx, client, filter, reason, why)
        }
        Err(SubscribeError::NotAllowed) => {
            let why = "the rules do not allow it";
            refused(cx, client, filter, ReasonCode::NotAuthorized, why)
        }
        Err(SubscribeError::NoLocalOnShared | SubscribeError::NoSession) => {
            ReasonCode::UnspecifiedError
        }
    }
}

/// Tells the operator that a subscription is refused. Returns the reason code.
fn refused(
    cx: &Context<'_>,
    client: &Client,
    filter: &str,
    reason: ReasonCode,
    detail: &str,
) -> ReasonCode {
    if let Some(line) = cx.repeats(client.id, &client.name, detail) {
        tracing::info!(
            peer = line.peer,
            client = &*client.name,
            user = client.identity.user(),
            filter,
            reason = reason.name(),
            detail,
            more = line.more,
            "subscription refused"
        );
    }
    reason
}
