//! What the mqtt5 client does with the broker, once for every variant.

use std::collections::BTreeSet;
use std::time::Duration;

use mqtt5::types::{PublishProperties, RetainHandling};
use mqtt5::{DisconnectReason, PublishOptions, QoS, SubscribeOptions};

use crate::{Outcome, Run, Step, Stop, expect, named};

const QUALITIES: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

pub(crate) fn all() -> Vec<(&'static str, Run)> {
    vec![
        named!("publish-subscribe", publish_subscribe),
        named!("many-messages", many_messages),
        named!("large-payload", large_payload),
        named!("many-topics", many_topics),
        named!("unsubscribe", unsubscribe),
        named!("retained", retained),
        named!("properties", properties),
        named!("will", will),
        named!("will-not-on-disconnect", will_not_on_disconnect),
        named!("session-resume", session_resume),
        named!("takeover", takeover),
        named!("shared-subscription", shared_subscription),
        named!("migration", migration),
        named!("early-data", early_data),
    ]
}

/// [MQTT-3.8.4-8] [MQTT-4.3.3-8] [MQTT311-3.8.4-6]
async fn publish_subscribe(step: Step) -> Outcome {
    let (mut subscriber, publisher) = (step.client("s").await?, step.client("p").await?);
    for granted in QUALITIES {
        subscriber
            .subscribe(&step.topic(&format!("{}", granted as u8)), granted)
            .await?;
    }
    for qos in QUALITIES {
        for granted in QUALITIES {
            let topic = step.topic(&format!("{}", granted as u8));
            publisher.publish(&topic, [qos as u8], qos).await?;
            let message = subscriber.receive().await?;
            let wanted = (qos as u8).min(granted as u8);
            expect(
                message.topic == topic && message.payload == [qos as u8],
                || format!("got {:?} on {}", message.payload, message.topic),
            )?;
            expect(message.qos as u8 == wanted, || {
                format!(
                    "quality of service {:?}, published {qos:?}, granted {granted:?}",
                    message.qos
                )
            })?;
        }
    }
    subscriber.quiet("a message came twice").await?;
    subscriber.client.disconnect().await?;
    Ok(publisher.client.disconnect().await?)
}

/// [MQTT-4.6.0-5]: in order where one stream carries them, each once where every message has its own.
async fn many_messages(step: Step) -> Outcome {
    const COUNT: u32 = 300;
    let (mut subscriber, publisher) = (step.client("s").await?, step.client("p").await?);
    subscriber
        .subscribe(&step.topic("x"), QoS::ExactlyOnce)
        .await?;
    for qos in QUALITIES {
        for number in 0..COUNT {
            publisher
                .publish(&step.topic("x"), number.to_be_bytes(), qos)
                .await?;
        }
        let mut got = Vec::new();
        for _ in 0..COUNT {
            let message = subscriber.receive().await?;
            let bytes = <[u8; 4]>::try_from(message.payload.as_slice())?;
            got.push(u32::from_be_bytes(bytes));
        }
        if step.variant.ordered() || qos != QoS::AtMostOnce {
            let wrong = got.iter().zip(0..).find(|(got, wanted)| *got != wanted);
            expect(wrong.is_none(), || {
                format!("message {wrong:?} (got, expected) at {qos:?}")
            })?;
        } else {
            let different: BTreeSet<u32> = got.iter().copied().collect();
            expect(different.len() == COUNT as usize, || {
                format!("{} different messages", different.len())
            })?;
        }
    }
    subscriber.quiet("a message came twice").await
}

/// [MQTT-3.3.4-1]
async fn large_payload(step: Step) -> Outcome {
    let (mut subscriber, publisher) = (step.client("s").await?, step.client("p").await?);
    subscriber
        .subscribe(&step.topic("x"), QoS::ExactlyOnce)
        .await?;
    let payload: Vec<u8> = (0..1024 * 1024_u32)
        .map(|byte| (byte.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for qos in QUALITIES {
        publisher
            .publish(&step.topic("x"), payload.clone(), qos)
            .await?;
        let message = subscriber.receive().await?;
        expect(message.payload == payload, || {
            format!("another payload of {} bytes", message.payload.len())
        })?;
    }
    Ok(())
}

/// A stream for each of 120 topics, more than the client keeps open at once.
async fn many_topics(step: Step) -> Outcome {
    let (mut subscriber, publisher) = (step.client("s").await?, step.client("p").await?);
    subscriber
        .subscribe(&step.topic("t/+"), QoS::AtLeastOnce)
        .await?;
    for number in 0..120_u8 {
        publisher
            .publish(
                &step.topic(&format!("t/{number}")),
                [number],
                QoS::AtLeastOnce,
            )
            .await?;
        let message = subscriber.receive().await?;
        expect(message.payload == [number], || {
            format!("message {number} is {:?}", message.payload)
        })?;
    }
    Ok(())
}

/// [MQTT-3.10.4-1]
async fn unsubscribe(step: Step) -> Outcome {
    let (mut subscriber, publisher) = (step.client("s").await?, step.client("p").await?);
    for name in ["x", "y"] {
        subscriber
            .subscribe(&step.topic(name), QoS::AtLeastOnce)
            .await?;
    }
    subscriber.client.unsubscribe(step.topic("x")).await?;
    for name in ["x", "y"] {
        publisher
            .publish(&step.topic(name), name, QoS::AtLeastOnce)
            .await?;
    }
    let message = subscriber.receive().await?;
    expect(message.payload == b"y", || {
        format!("got {:?}", message.payload)
    })?;
    subscriber.quiet("a message after UNSUBSCRIBE").await
}

/// [MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-11]
async fn retained(step: Step) -> Outcome {
    let publisher = step.client("p").await?;
    let keep = PublishOptions {
        qos: QoS::AtLeastOnce,
        retain: true,
        ..PublishOptions::default()
    };
    publisher
        .publish_with(&step.topic("r"), "kept", keep.clone())
        .await?;
    let mut late = step.client("l").await?;
    late.subscribe(&step.topic("r"), QoS::AtLeastOnce).await?;
    let message = late.receive().await?;
    expect(message.retain && message.payload == b"kept", || {
        format!("got {message:?}")
    })?;
    if step.variant.five() {
        let mut other = step.client("o").await?;
        let options = SubscribeOptions {
            qos: QoS::AtLeastOnce,
            retain_handling: RetainHandling::DontSend,
            ..SubscribeOptions::default()
        };
        other.subscribe_with(&step.topic("r"), options).await?;
        other.quiet("retain handling 2").await?;
    }
    publisher.publish_with(&step.topic("r"), "", keep).await?;
    let mut after = step.client("a").await?;
    after.subscribe(&step.topic("r"), QoS::AtLeastOnce).await?;
    after.quiet("a cleared retained message").await
}

/// [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20] [MQTT-3.3.4-3]
async fn properties(step: Step) -> Outcome {
    if !step.variant.five() {
        return Err(Stop::Left("properties are of MQTT 5.0".to_owned()));
    }
    let (mut subscriber, publisher) = (step.client("s").await?, step.client("p").await?);
    let options = SubscribeOptions {
        qos: QoS::AtLeastOnce,
        ..SubscribeOptions::default()
    };
    subscriber
        .subscribe_with(&step.topic("x"), options.with_subscription_identifier(9))
        .await?;
    let pairs =
        [("b", "2"), ("a", "1"), ("b", "3")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    let sent = PublishProperties {
        payload_format_indicator: Some(true),
        message_expiry_interval: Some(100),
        response_topic: Some("r/t".to_owned()),
        correlation_data: Some(vec![0, 255]),
        user_properties: pairs.to_vec(),
        content_type: Some("a/b".to_owned()),
        ..PublishProperties::default()
    };
    let options = PublishOptions {
        qos: QoS::AtLeastOnce,
        properties: sent.clone(),
        ..PublishOptions::default()
    };
    publisher
        .publish_with(&step.topic("x"), "m", options)
        .await?;
    let got = subscriber.receive().await?.properties;
    expect(got.user_properties == sent.user_properties, || {
        format!("{:?}", got.user_properties)
    })?;
    expect(got.response_topic == sent.response_topic, || {
        format!("{:?}", got.response_topic)
    })?;
    expect(got.correlation_data == sent.correlation_data, || {
        format!("{:?}", got.correlation_data)
    })?;
    expect(got.content_type == sent.content_type, || {
        format!("{:?}", got.content_type)
    })?;
    expect(got.payload_format_indicator == Some(true), || {
        format!("{:?}", got.payload_format_indicator)
    })?;
    expect(got.subscription_identifiers == [9], || {
        format!("{:?}", got.subscription_identifiers)
    })?;
    let left = got.message_expiry_interval;
    expect(left.is_some_and(|left| (90..=100).contains(&left)), || {
        format!("message expiry {left:?} of 100")
    })
}

/// [MQTT-3.1.2-14] [MQTT311-3.1.2-8]
async fn will(step: Step) -> Outcome {
    let mut watcher = step.client("w").await?;
    watcher
        .subscribe(&step.topic("will"), QoS::AtLeastOnce)
        .await?;
    let dying = step
        .client_with(step.options("d").with_will(step.will()))
        .await?;
    dying.client.disconnect_abnormally().await?;
    let message = watcher.receive().await?;
    expect(message.payload == b"gone", || {
        format!("got {:?}", message.payload)
    })
}

/// [MQTT-3.14.4-3] [MQTT311-3.1.2-10]
async fn will_not_on_disconnect(step: Step) -> Outcome {
    let mut watcher = step.client("w").await?;
    watcher
        .subscribe(&step.topic("will"), QoS::AtLeastOnce)
        .await?;
    let leaving = step
        .client_with(step.options("d").with_will(step.will()))
        .await?;
    leaving.client.disconnect().await?;
    watcher.quiet("a will after DISCONNECT").await
}

/// [MQTT-3.1.2-5] [MQTT-4.5.0-1] [MQTT311-3.1.2-5]: the client keeps its callbacks across connections.
async fn session_resume(step: Step) -> Outcome {
    let publisher = step.client("p").await?;
    let mut options = step.options("s").with_clean_start(false);
    if step.variant.five() {
        options = options.with_session_expiry_interval(60);
    }
    let mut one = step
        .client_with(options.with_resume_existing_session(true))
        .await?;
    expect(!one.session_present, || {
        "session present at the first connection".to_owned()
    })?;
    one.subscribe(&step.topic("q"), QoS::ExactlyOnce).await?;
    one.client.disconnect().await?;
    for number in 0..20_u8 {
        let qos = if number % 2 == 0 {
            QoS::AtLeastOnce
        } else {
            QoS::ExactlyOnce
        };
        publisher.publish(&step.topic("q"), [number], qos).await?;
    }
    one.connect().await?;
    expect(one.session_present, || "session not present".to_owned())?;
    let mut got = BTreeSet::new();
    for _ in 0..20 {
        got.insert(one.receive().await?.payload);
    }
    expect(got.len() == 20, || {
        format!("{} different queued messages of 20", got.len())
    })?;
    one.quiet("a queued message came twice").await
}

/// [MQTT-3.1.4-3]
async fn takeover(step: Step) -> Outcome {
    let mut first = step.client("a").await?;
    let mut second = step.client("a").await?;
    let reason = first.ended().await?;
    // The crate's own tasks race to name the end: the one that reads the DISCONNECT first finishes
    // its stream, and the one that accepts streams may see the broker's close meanwhile.
    let told = match &reason {
        DisconnectReason::ServerDisconnect(code) => *code as u8 == 0x8E,
        DisconnectReason::NetworkError(text) => text == "normal closure" || !step.variant.five(),
        _ => false,
    };
    expect(told, || {
        format!("the first client ended with {reason:?}, expected 0x8E")
    })?;
    second.subscribe(&step.topic("x"), QoS::AtLeastOnce).await?;
    second
        .publish(&step.topic("x"), "mine", QoS::AtLeastOnce)
        .await?;
    second.receive().await.map(drop)
}

/// [MQTT-4.8.2-1]
async fn shared_subscription(step: Step) -> Outcome {
    if !step.variant.five() {
        return Err(Stop::Left(
            "shared subscriptions are of MQTT 5.0".to_owned(),
        ));
    }
    let publisher = step.client("p").await?;
    let (mut one, mut two) = (step.client("1").await?, step.client("2").await?);
    let filter = format!("$share/g/{}", step.topic("s"));
    one.subscribe(&filter, QoS::AtLeastOnce).await?;
    two.subscribe(&filter, QoS::AtLeastOnce).await?;
    for number in 0..20_u8 {
        publisher
            .publish(&step.topic("s"), [number], QoS::AtLeastOnce)
            .await?;
    }
    let mut got: Vec<u8> = Vec::new();
    let mut parts = [0, 0];
    while got.len() < 20 {
        let (part, message) = tokio::select! {
            message = one.receive() => (0, message?),
            message = two.receive() => (1, message?),
        };
        parts[part] += 1;
        got.extend(&message.payload);
    }
    got.sort_unstable();
    expect(got == (0..20).collect::<Vec<u8>>(), || {
        format!("messages {got:?}")
    })?;
    expect(parts.iter().all(|&part| part > 0), || {
        format!("shares {parts:?}")
    })?;
    one.quiet("a message for both").await?;
    two.quiet("a message for both").await
}

/// RFC 9000 section 9: a new socket under the same connection.
async fn migration(step: Step) -> Outcome {
    let mut one = step.client("a").await?;
    one.subscribe(&step.topic("x"), QoS::AtLeastOnce).await?;
    for number in 0..3_u8 {
        one.client.migrate().await?;
        one.publish(&step.topic("x"), [number], QoS::AtLeastOnce)
            .await?;
        let message = one.receive().await?;
        expect(message.payload == [number], || {
            format!("got {:?} after a migration", message.payload)
        })?;
    }
    Ok(())
}

/// The second connection of a client may come in 0-RTT; it works whether the broker takes it or not.
async fn early_data(step: Step) -> Outcome {
    let mut one = step.prepare(step.options("a")).await?;
    one.client.set_quic_early_data(true).await;
    let mut early = Vec::new();
    for round in 0..3_u8 {
        one.connect().await?;
        early.push(one.client.was_zero_rtt().await);
        // A filter of its own: the client keeps its callbacks from one connection to the next.
        let topic = step.topic(&round.to_string());
        one.subscribe(&topic, QoS::AtLeastOnce).await?;
        one.publish(&topic, [round], QoS::AtLeastOnce).await?;
        let message = one.receive().await?;
        expect(message.payload == [round], || {
            format!("got {:?} in round {round}", message.payload)
        })?;
        // The ticket comes after the handshake.
        tokio::time::sleep(Duration::from_millis(100)).await;
        one.client.disconnect().await?;
    }
    if early == [false; 3] {
        return Err(Stop::Left(
            "the broker takes no early data; it works without".to_owned(),
        ));
    }
    expect(early == [false, true, true], || {
        format!("0-RTT was taken: {early:?} in three connections")
    })
}
