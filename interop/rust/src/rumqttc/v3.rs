//! Connections of MQTT 3.1.1.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rumqttc::{
    AsyncClient, ClientError, ConnAck, ConnectReturnCode, ConnectionError, Event, LastWill,
    MqttOptions, Outgoing, Packet, Publish, QoS, SubscribeFilter, SubscribeReasonCode,
};
use serde_json::{Value, json};
use sterna_interop::{answer, fail, pack, say, text, unpack};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{MAX_PACKET_BYTES, WINDOW, Waiting, address, waiter};

/// The options that a connect request asks for.
pub(crate) fn options(request: &Value) -> Result<MqttOptions, String> {
    let (host, port, transport) = address(request)?;
    let mut options = MqttOptions::new(text(&request["id"]), host, port);
    options
        .set_transport(transport)
        .set_clean_session(request["clean"] == true)
        .set_keep_alive(Duration::from_secs(
            request["keep_alive"].as_u64().unwrap_or_default(),
        ))
        .set_max_packet_size(MAX_PACKET_BYTES, MAX_PACKET_BYTES)
        .set_inflight(WINDOW)
        .set_manual_acks(request["manual_ack"] == true);
    let will = &request["will"];
    if !will.is_null() {
        let (payload, retain) = (unpack(&will["payload"]), will["retain"] == true);
        options.set_last_will(LastWill::new(
            text(&will["topic"]),
            payload,
            quality(&will["qos"]),
            retain,
        ));
    }
    Ok(options)
}

fn quality(value: &Value) -> QoS {
    match value.as_u64() {
        Some(1) => QoS::AtLeastOnce,
        Some(2) => QoS::ExactlyOnce,
        _ => QoS::AtMostOnce,
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
    let unacknowledged: Arc<Mutex<VecDeque<Publish>>> = Arc::default();
    let requests = {
        let (waiting, unacknowledged) = (waiting.clone(), unacknowledged.clone());
        tokio::spawn(async move {
            while let Some(request) = inbox.recv().await {
                if let Err(error) = perform(&client, &request, &waiting, &unacknowledged).await {
                    fail(request["n"].as_u64().unwrap_or_default(), &error, None);
                }
            }
        })
    };
    let (reason, detail) = loop {
        match events.poll().await {
            Ok(Event::Incoming(packet)) => incoming(handle, packet, &waiting, &unacknowledged),
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
    unacknowledged: &Mutex<VecDeque<Publish>>,
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
                let next = unacknowledged.lock().unwrap().pop_front();
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
    let filters = filters
        .iter()
        .map(|one| SubscribeFilter::new(text(&one["filter"]), quality(&one["qos"])));
    client.subscribe_many(filters).await
}

async fn publish(client: &AsyncClient, request: &Value) -> Result<(), ClientError> {
    let (payload, retain) = (unpack(&request["payload"]), request["retain"] == true);
    client
        .publish(
            text(&request["topic"]),
            quality(&request["qos"]),
            retain,
            payload,
        )
        .await
}

fn connected(connack: &ConnAck) -> Value {
    json!({"session_present": connack.session_present})
}

fn refusal(error: &ConnectionError) -> Option<u8> {
    match error {
        ConnectionError::ConnectionRefused(code) => Some(match code {
            ConnectReturnCode::Success => 0,
            ConnectReturnCode::RefusedProtocolVersion => 1,
            ConnectReturnCode::BadClientId => 2,
            ConnectReturnCode::ServiceUnavailable => 3,
            ConnectReturnCode::BadUserNamePassword => 4,
            ConnectReturnCode::NotAuthorized => 5,
        }),
        _ => None,
    }
}

/// MQTT 3.1.1 has no DISCONNECT from the server.
const fn server_reason(_: &ConnectionError) -> Option<u8> {
    None
}

fn incoming(
    handle: u64,
    packet: Packet,
    waiting: &Mutex<Waiting>,
    unacknowledged: &Mutex<VecDeque<Publish>>,
) {
    let mut waiting = waiting.lock().unwrap();
    match packet {
        Packet::Publish(publish) => {
            let line = json!({
                "event": "message", "client": handle, "topic": publish.topic, "payload": pack(&publish.payload),
                "qos": publish.qos as u8, "retain": publish.retain, "dup": publish.dup,
            });
            if publish.qos != QoS::AtMostOnce {
                unacknowledged.lock().unwrap().push_back(publish);
            }
            // Only now, so that an acknowledgement that is asked for at once finds its message.
            say(&line);
        }
        Packet::PubAck(ack) => waiting.publish.done(ack.pkid, json!({})),
        Packet::PubComp(ack) => waiting.publish.done(ack.pkid, json!({})),
        Packet::SubAck(ack) => {
            let codes: Vec<u8> = ack
                .return_codes
                .iter()
                .map(|code| match code {
                    SubscribeReasonCode::Success(qos) => *qos as u8,
                    SubscribeReasonCode::Failure => 0x80,
                })
                .collect();
            waiting.subscribe.done(ack.pkid, json!({"codes": codes}));
        }
        Packet::UnsubAck(ack) => waiting.unsubscribe.done(ack.pkid, json!({})),
        _ => {}
    }
}
