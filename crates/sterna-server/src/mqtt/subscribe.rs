//! SUBSCRIBE and UNSUBSCRIBE.

use sterna_broker::{RetainHandling, SubscribeError, SubscribeOptions};
use sterna_mqtt::packet::{self, Subscribe, Unsubscribe};
use sterna_mqtt::{Lane, QoS, ReasonCode};

use super::Door;
use super::acknowledge::Acknowledgement;
use super::admission::{qos, wire_qos};
use super::client::Client;
use super::quota::{Quota, Why};
use crate::context::Context;
use crate::session::topics::fault_of_filter;

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
                "more filters in SUBSCRIBE than mqtt.maximum_list_entries",
            );
            return;
        }
        // [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT311-3.8.4-4] each filter as if it came alone, one answer
        let mut why = None;
        let (codes, token) = cx.appended(|cx| {
            let codes = subscribe.filters().map(|(filter, options)| {
                let done = subscribe_one(cx, client, lane, filter, options, subscribe.identifier());
                done.unwrap_or_else(|(code, words)| {
                    why = why.take().or(words);
                    code
                })
            });
            codes.collect()
        });
        let done = Acknowledgement::SubAck(lane, subscribe.packet_id, codes, why);
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
                "more filters in UNSUBSCRIBE than mqtt.maximum_list_entries",
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

/// Why a subscription is not made: the reason code, and words for the client.
type Refused = (ReasonCode, Option<Why>);

fn subscribe_one(
    cx: &mut Context<'_>,
    client: &Client,
    lane: Lane,
    filter: &str,
    options: packet::SubscribeOptions,
    identifier: Option<u32>,
) -> Result<ReasonCode, Refused> {
    let Some(session) = client.session() else {
        return Err((ReasonCode::UnspecifiedError, None));
    };
    if let Some(most) = client.sips.most_subscriptions()
        && cx.broker.filters(session).all(|known| **known != *filter)
        && cx.broker.filters(session).count() >= most
    {
        return Err(beyond(cx, client, filter, Quota::SubscriptionsOfUser));
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
    let subscribed = cx.broker.subscribe(cx.now_ms, session, filter, options);
    let error = match subscribed {
        Ok(subscribed) => return Ok(ReasonCode::granted(wire_qos(subscribed.qos))),
        Err(error) => error,
    };
    let (reason, detail) = match error {
        SubscribeError::TooMany if cx.is_short_for_new() => {
            return Err(beyond(cx, client, filter, Quota::Memory));
        }
        SubscribeError::TooMany => return Err(beyond(cx, client, filter, Quota::Subscriptions)),
        SubscribeError::StoreFull => return Err(beyond(cx, client, filter, Quota::Store)),
        SubscribeError::InvalidFilter => {
            let fault = fault_of_filter(filter, cx.broker.limits());
            let reason = ReasonCode::TopicFilterInvalid;
            tell_refused(cx, client, filter, reason, fault);
            return Err((reason, Some(Quota::Topic(fault).into())));
        }
        SubscribeError::NoQueueInCluster => (
            ReasonCode::SharedSubscriptionsNotSupported,
            "a cluster keeps no queue for a shared subscription",
        ),
        SubscribeError::NotAllowed => return Err(denied(cx, client, filter)),
        SubscribeError::NoLocalOnShared | SubscribeError::NoSession => {
            return Err((ReasonCode::UnspecifiedError, None));
        }
    };
    tell_refused(cx, client, filter, reason, detail);
    Err((reason, None))
}

/// A subscription is beyond a limit.
fn beyond(cx: &Context<'_>, client: &Client, filter: &str, quota: Quota) -> Refused {
    let reason = ReasonCode::QuotaExceeded;
    tell_refused(cx, client, filter, reason, quota.detail());
    (reason, Some(quota.into()))
}

/// The rules or the webhook refuse a subscription.
fn denied(cx: &Context<'_>, client: &Client, filter: &str) -> Refused {
    let (reason, subject) = (ReasonCode::NotAuthorized, client.subject(cx));
    let denial = (cx.policy.rules).subscription_denial(subject, filter);
    tell_refused(cx, client, filter, reason, &denial.detail());
    let words = denial.of_webhook();
    (reason, words.map(|words| Why::Webhook(words.into())))
}

/// Tells the operator that a subscription is refused.
fn tell_refused(cx: &Context<'_>, client: &Client, filter: &str, reason: ReasonCode, detail: &str) {
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
}
