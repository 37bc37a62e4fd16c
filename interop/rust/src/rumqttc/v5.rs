//! Connections of MQTT 5.0.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rumqttc::Outgoing;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    ConnAck, ConnectProperties, Filter, LastWill, LastWillProperties, Packet, PubAckReason,
    PubRecReason, Publish, PublishProperties, RetainForwardRule, SubscribeProperties,
    SubscribeReasonCode, UnsubAckReason,
};
use rumqttc::v5::{AsyncClient, ClientError, ConnectionError, Event, MqttOptions, StateError};
use serde_json::{Value, json};
use sterna_interop::{answer, fail, pack, pairs, say, text, unpack};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{MAX_PACKET_BYTES, WINDOW, Waiting, address, waiter};

/// The options that a connect request asks for.
pub(crate) fn options(request: &Value) -> Result<MqttOptions, String> {
    let (host, port, transport) = address(request)?;
    let mut options = MqttOptions::new(text(&request["id"]), host, port);
    options
        .set_transport(transport)
        .set_clean_start(request["clean"] == true)
        .set_keep_alive(Duration::from_secs(
            request["keep_alive"].as_u64().unwrap_or_default(),
        ))
        .set_outgoing_inflight_upper_limit(WINDOW)
        .set_manual_acks(request["manual_ack"] == true);
    let asked = &request["properties"];
    let number = |name: &str| asked[name].as_u64();
    let mut properties = ConnectProperties::new();
    properties.session_expiry_interval = number("session_expiry").map(|value| value as u32);
    properties.receive_maximum = number("receive_maximum").map(|value| value as u16);
    // Without it the library ends the connection at 10 KiB.
    properties.max_packet_size =
        Some(number("maximum_packet_size").map_or(MAX_PACKET_BYTES as u32, |value| value as u32));
    properties.topic_alias_max = number("topic_alias_maximum").map(|value| value as u16);
    options.set_connect_properties(properties);
    let will = &request["will"];
    if !will.is_null() {
        let asked = &will["properties"];
        let properties = LastWillProperties {
            delay_interval: asked["will_delay"].as_u64().map(|value| value as u32),
            payload_format_indicator: asked["payload_format"].as_u64().map(|value| value as u8),
            message_expiry_interval: asked["message_expiry"].as_u64().map(|value| value as u32),
            content_type: asked["content_type"].as_str().map(str::to_owned),
            response_topic: asked["response_topic"].as_str().map(str::to_owned),
            correlation_data: bytes(&asked["correlation_data"]),
            user_properties: pairs(&asked["user_properties"]),
        };
        let properties = (asked != &json!({})).then_some(properties);
        let (payload, retain) = (unpack(&will["payload"]), will["retain"] == true);
        options.set_last_will(LastWill::new(
            text(&will["topic"]),
            payload,
            quality(&will["qos"]),
            retain,
            properties,
        ));
    }
    Ok(options)
}

fn bytes(value: &Value) -> Option<Bytes> {
    value.as_str().map(|_| unpack(value).into())
}

fn quality(value: &Value) -> QoS {
    match value.as_u64() {
        Some(1) => QoS::AtLeastOnce,
        Some(2) => QoS::ExactlyOnce,
        _ => QoS::AtMostOnce,
    }
}

/// What has arrived on one connection.
#[derive(Debug, Default)]
pub(crate) struct Received {
    unacknowledged: VecDeque<Publish>,
    aliases: HashMap<u16, String>,
}

impl Received {
    /// The library tells the application of a message before it resolves the alias.
    fn topic(&mut self, publish: &Publish) -> String {
        let topic = String::from_utf8_lossy(&publish.topic).into_owned();
        let Some(alias) = publish
            .properties
            .as_ref()
            .and_then(|given| given.topic_alias)
        else {
            return topic;
        };
        if topic.is_empty() {
            return self.aliases.get(&alias).cloned().unwrap_or_default();
        }
        self.aliases.insert(alias, topic.clone());
        topic
    }
}

/// One connection from CONNECT to its end.
pub(crate) async fn run(
    options: MqttOptions,
    connect: Value,
    mut inbox: UnboundedReceiver<Value>,
    waiting: Arc<Mutex<Waiting>>,
) {
    let handle = connect["client"].as_u64().unwrap_or_default();
    let number = connect["n"].as_u64().unwrap_or_default();
    let (client, mut events) = AsyncClient::new(options, 2000);
    let connack = loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(connack))) => break connack,
            Ok(_) => {}
            Err(error) => return fail(number, &error.to_string(), refusal(&error)),
        }
    };
    answer(number, connected(&connack));
    let received: Arc<Mutex<Received>> = Arc::default();
    let requests = {
        let (waiting, received) = (waiting.clone(), received.clone());
        tokio::spawn(async move {
            while let Some(request) = inbox.recv().await {
                if let Err(error) = perform(&client, &request, &waiting, &received).await {
                    fail(request["n"].as_u64().unwrap_or_default(), &error, None);
                }
            }
        })
    };
    let (reason, detail) = loop {
        match events.poll().await {
            Ok(Event::Incoming(packet)) => incoming(handle, packet, &waiting, &received),
            Ok(Event::Outgoing(Outgoing::Publish(pid))) => {
                waiting.lock().unwrap().publish.sent(pid)
            }
            Ok(Event::Outgoing(Outgoing::Subscribe(pid))) => {
                waiting.lock().unwrap().subscribe.sent(pid)
            }
            Ok(Event::Outgoing(Outgoing::Unsubscribe(pid))) => {
                waiting.lock().unwrap().unsubscribe.sent(pid);
            }
            Ok(Event::Outgoing(Outgoing::Disconnect)) => break (None, "disconnected".to_owned()),
            Ok(_) => {}
            Err(error) => break (server_reason(&error), error.to_string()),
        }
    };
    requests.abort();
    drop(events);
    waiting.lock().unwrap().end(handle, reason, &detail);
}

/// Hands a request to the library.
async fn perform(
    client: &AsyncClient,
    request: &Value,
    waiting: &Mutex<Waiting>,
    received: &Mutex<Received>,
) -> Result<(), String> {
    let done = match request["op"].as_str().unwrap_or_default() {
        "subscribe" => {
            waiting.lock().unwrap().subscribe.queue(waiter(request, 1));
            subscribe(client, request).await
        }
        "unsubscribe" => {
            // The library has one filter in each packet.
            let filters = request["filters"].as_array().cloned().unwrap_or_default();
            let waiter = waiter(request, filters.len() as u64);
            for filter in &filters {
                waiting.lock().unwrap().unsubscribe.queue(waiter.clone());
                client
                    .unsubscribe(text(filter))
                    .await
                    .map_err(|error| error.to_string())?;
            }
            Ok(())
        }
        "publish" => {
            waiting.lock().unwrap().publish.queue(waiter(request, 1));
            publish(client, request).await
        }
        "burst" => {
            let count = request["count"].as_u64().unwrap_or_default();
            let waiter = waiter(request, count);
            for number in 0..count {
                waiting.lock().unwrap().publish.queue(waiter.clone());
                let qos = quality(&request["qos"]);
                client
                    .publish(text(&request["topic"]), qos, false, number.to_string())
                    .await
                    .map_err(|error| error.to_string())?;
            }
            Ok(())
        }
        "ack" => {
            for _ in 0..request["count"].as_u64().unwrap_or_default() {
                let next = received.lock().unwrap().unacknowledged.pop_front();
                let next = next.ok_or("no message is left to acknowledge")?;
                client.ack(&next).await.map_err(|error| error.to_string())?;
            }
            answer(request["n"].as_u64().unwrap_or_default(), json!({}));
            Ok(())
        }
        "disconnect" => client.disconnect().await,
        other => return Err(format!("no operation {other}")),
    };
    done.map_err(|error| error.to_string())
}

async fn subscribe(client: &AsyncClient, request: &Value) -> Result<(), ClientError> {
    let filters = request["filters"].as_array().cloned().unwrap_or_default();
    let filters: Vec<Filter> = filters
        .iter()
        .map(|one| {
            let mut filter = Filter::new(text(&one["filter"]), quality(&one["qos"]));
            filter.nolocal = one["no_local"] == true;
            filter.preserve_retain = one["retain_as_published"] == true;
            filter.retain_forward_rule = match one["retain_handling"].as_u64() {
                Some(1) => RetainForwardRule::OnNewSubscribe,
                Some(2) => RetainForwardRule::Never,
                _ => RetainForwardRule::OnEverySubscribe,
            };
            filter
        })
        .collect();
    match request["identifier"].as_u64() {
        None => client.subscribe_many(filters).await,
        Some(id) => {
            let properties = SubscribeProperties {
                id: Some(id as usize),
                user_properties: Vec::new(),
            };
            client
                .subscribe_many_with_properties(filters, properties)
                .await
        }
    }
}

async fn publish(client: &AsyncClient, request: &Value) -> Result<(), ClientError> {
    let (topic, qos) = (text(&request["topic"]), quality(&request["qos"]));
    let (payload, retain) = (unpack(&request["payload"]), request["retain"] == true);
    let asked = &request["properties"];
    if asked == &json!({}) {
        return client.publish(topic, qos, retain, payload).await;
    }
    let properties = PublishProperties {
        payload_format_indicator: asked["payload_format"].as_u64().map(|value| value as u8),
        message_expiry_interval: asked["message_expiry"].as_u64().map(|value| value as u32),
        topic_alias: asked["topic_alias"].as_u64().map(|value| value as u16),
        response_topic: asked["response_topic"].as_str().map(str::to_owned),
        correlation_data: bytes(&asked["correlation_data"]),
        user_properties: pairs(&asked["user_properties"]),
        subscription_identifiers: Vec::new(),
        content_type: asked["content_type"].as_str().map(str::to_owned),
    };
    client
        .publish_with_properties(topic, qos, retain, payload, properties)
        .await
}

/// Leaves out what the packet did not have.
fn present(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| {
            !field.is_null() && field.as_array().is_none_or(|list| !list.is_empty())
        });
    }
    value
}

fn connected(connack: &ConnAck) -> Value {
    let properties = connack.properties.as_ref().map_or_else(
        || json!({}),
        |given| {
            present(json!({
                "session_expiry": given.session_expiry_interval, "receive_maximum": given.receive_max,
                "maximum_qos": given.max_qos, "retain_available": given.retain_available,
                "maximum_packet_size": given.max_packet_size,
                "assigned_client_id": given.assigned_client_identifier,
                "topic_alias_maximum": given.topic_alias_max, "server_keep_alive": given.server_keep_alive,
                "subscription_identifiers_available": given.subscription_identifiers_available,
                "shared_subscription_available": given.shared_subscription_available,
            }))
        },
    );
    json!({"session_present": connack.session_present, "properties": properties})
}

/// The library's enumeration has no numbers, so refusals are told by their name in the text.
const fn refusal(_: &ConnectionError) -> Option<u8> {
    None
}

const fn server_reason(error: &ConnectionError) -> Option<u8> {
    match error {
        ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => {
            Some(*reason_code as u8)
        }
        _ => None,
    }
}

fn incoming(handle: u64, packet: Packet, waiting: &Mutex<Waiting>, received: &Mutex<Received>) {
    let mut waiting = waiting.lock().unwrap();
    match packet {
        Packet::Publish(publish) => {
            let properties = publish.properties.as_ref().map_or_else(
                || json!({}),
                |given| {
                    present(json!({
                        "payload_format": given.payload_format_indicator,
                        "message_expiry": given.message_expiry_interval, "topic_alias": given.topic_alias,
                        "response_topic": given.response_topic,
                        "correlation_data": given.correlation_data.as_ref().map(|data| pack(data)),
                        "user_properties": given.user_properties, "content_type": given.content_type,
                        "subscription_identifiers": given.subscription_identifiers,
                    }))
                },
            );
            let mut received = received.lock().unwrap();
            let topic = received.topic(&publish);
            let line = json!({
                "event": "message", "client": handle, "topic": topic, "payload": pack(&publish.payload),
                "qos": publish.qos as u8, "retain": publish.retain, "dup": publish.dup,
                "properties": properties,
            });
            if publish.qos != QoS::AtMostOnce {
                received.unacknowledged.push_back(publish);
            }
            // Only now, so that an acknowledgement that is asked for at once finds its message.
            say(&line);
        }
        Packet::PubAck(ack) => {
            let Some(waiter) = waiting.publish.take(ack.pkid) else {
                return;
            };
            match ack.reason {
                PubAckReason::Success => waiter.done(json!({"reason": 0})),
                PubAckReason::NoMatchingSubscribers => waiter.done(json!({"reason": 0x10})),
                other => waiter.fail(&format!("PUBACK: {other:?}"), None),
            }
        }
        Packet::PubRec(ack) if ack.reason != PubRecReason::Success => {
            if ack.reason != PubRecReason::NoMatchingSubscribers {
                if let Some(waiter) = waiting.publish.take(ack.pkid) {
                    waiter.fail(&format!("PUBREC: {:?}", ack.reason), None);
                }
            }
        }
        Packet::PubComp(ack) => waiting.publish.done(ack.pkid, json!({})),
        Packet::SubAck(ack) => {
            let codes: Vec<u8> = ack
                .return_codes
                .iter()
                .map(|code| match code {
                    SubscribeReasonCode::Success(qos) => *qos as u8,
                    _ => 0x80,
                })
                .collect();
            waiting.subscribe.done(ack.pkid, json!({"codes": codes}));
        }
        Packet::UnsubAck(ack) => {
            // Packets of one filter each are answered together; the codes of all are not kept.
            let refused = ack.reasons.iter().find(|reason| {
                !matches!(
                    reason,
                    UnsubAckReason::Success | UnsubAckReason::NoSubscriptionExisted
                )
            });
            let Some(waiter) = waiting.unsubscribe.take(ack.pkid) else {
                return;
            };
            match refused {
                None => waiter.done(json!({})),
                Some(reason) => waiter.fail(&format!("UNSUBACK: {reason:?}"), None),
            }
        }
        _ => {}
    }
}
