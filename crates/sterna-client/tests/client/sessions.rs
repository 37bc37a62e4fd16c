//! The client against a scripted broker over TCP: what it sends when, and what it promises.
#![allow(clippy::unwrap_used)] // it is all test

use std::time::Duration;

use sterna_auth::{ClientFirst, Nonce, Record, ServerStart};
use sterna_client::{
    Client, ConnectError, Error, Event, Events, Login, Options, Property, Publish, QoS, ReasonCode,
    RetainHandling, SendError, Subscription, Version, Will,
};
use sterna_mqtt::packet::{Auth, ConnAck, Packet};
use tokio::net::TcpStream;

use crate::broker::{Broker, Got, Listener, connected, published};

fn message(topic: &str, qos: QoS) -> Publish {
    Publish::new(topic, "x").unwrap().qos(qos)
}

fn filter(filter: &str) -> Subscription {
    Subscription::new(filter, QoS::AtLeastOnce).unwrap()
}

#[tokio::test]
async fn everything_asked_for_at_the_start_leaves_in_one_write() {
    let listener = Listener::new().await;
    let (client, _events) = Client::start(listener.options()).unwrap();
    let subscribed = client.subscribe([filter("a/#"), filter("b")]);
    let published_ = client.publish(message("a", QoS::AtLeastOnce));
    let broker = async {
        let mut broker = listener.accept().await;
        assert!(matches!(
            broker.next().await,
            Got::Connect {
                clean_start: true,
                ..
            }
        ));
        assert!(broker.has_more(), "the SUBSCRIBE came in the same segment");
        let filters = vec!["a/#".to_owned(), "b".to_owned()];
        assert_eq!(broker.next().await, Got::Subscribe { id: 1, filters });
        assert!(broker.has_more(), "and so did the PUBLISH");
        assert_eq!(
            broker.next().await,
            published(2, "a", QoS::AtLeastOnce, false)
        );
        assert!(!broker.has_more());
        broker.connack(false, &[]).await;
        broker
            .suback(1, &[ReasonCode::GrantedQoS1, ReasonCode::NotAuthorized])
            .await;
        broker.ack(Packet::PubAck, 2).await;
        broker
    };
    let (subscribed, published_, _broker) = tokio::join!(subscribed, published_, broker);
    assert_eq!(
        subscribed.unwrap(),
        [ReasonCode::GrantedQoS1, ReasonCode::NotAuthorized]
    );
    assert_eq!(published_.unwrap().reason, ReasonCode::Success);
}

#[tokio::test]
async fn nothing_is_early_when_the_application_does_not_want_it() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    options.early_requests = false;
    let (client, _events) = Client::start(options).unwrap();
    let delivery = client.send(message("a", QoS::AtMostOnce)).await.unwrap();
    let mut broker = listener.accept().await;
    assert!(matches!(broker.next().await, Got::Connect { .. }));
    tokio::time::sleep(Duration::from_millis(30)).await;
    broker.connack(false, &[]).await;
    assert_eq!(
        broker.next().await,
        published(0, "a", QoS::AtMostOnce, false)
    );
    delivery.await.unwrap();
}

/// A server that hangs up on what comes before its answer is asked again, in its own way.
#[tokio::test]
async fn a_server_that_wants_to_speak_first_may() {
    let listener = Listener::new().await;
    let (client, _events) = Client::start(listener.options()).unwrap();
    let delivery = client.send(message("a", QoS::AtLeastOnce)).await.unwrap();
    let mut broker = listener.accept().await;
    assert!(matches!(broker.next().await, Got::Connect { .. }));
    drop(broker);
    let mut broker = listener.accept().await;
    assert!(matches!(broker.next().await, Got::Connect { .. }));
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert!(!broker.has_more());
    broker.connack(false, &[Property::ReceiveMaximum(1)]).await;
    assert_eq!(
        broker.next().await,
        published(1, "a", QoS::AtLeastOnce, false)
    );
    broker.ack(Packet::PubAck, 1).await;
    delivery.await.unwrap();
    // Now the server is known, and what it takes.
    drop(broker);
    let mut broker = listener.accept().await;
    let one = client.send(message("b", QoS::AtLeastOnce)).await.unwrap();
    let two = client.send(message("c", QoS::AtLeastOnce)).await.unwrap();
    assert!(matches!(broker.next().await, Got::Connect { .. }));
    assert_eq!(
        broker.next().await,
        published(1, "b", QoS::AtLeastOnce, false)
    );
    broker.connack(false, &[Property::ReceiveMaximum(1)]).await;
    broker.ack(Packet::PubAck, 1).await;
    assert_eq!(
        broker.next().await,
        published(2, "c", QoS::AtLeastOnce, false)
    );
    broker.ack(Packet::PubAck, 2).await;
    one.await.unwrap();
    two.await.unwrap();
}

#[tokio::test]
async fn a_message_is_done_when_the_broker_says_so() {
    let listener = Listener::new().await;
    let (client, _events, mut broker) = connected(listener.options(), &listener).await;
    let once = client.send(message("a", QoS::AtLeastOnce)).await.unwrap();
    let exactly = client.send(message("b", QoS::ExactlyOnce)).await.unwrap();
    assert_eq!(
        broker.next().await,
        published(1, "a", QoS::AtLeastOnce, false)
    );
    assert_eq!(
        broker.next().await,
        published(2, "b", QoS::ExactlyOnce, false)
    );
    let ack = sterna_mqtt::packet::Ack::new(crate::broker::packet_id(1), ReasonCode::QuotaExceeded);
    broker.send(Packet::PubAck(ack)).await;
    broker.ack(Packet::PubRec, 2).await;
    assert_eq!(broker.next().await, Got::PubRel(2));
    broker.ack(Packet::PubComp, 2).await;
    match once.await {
        Err(Error::Rejected(refusal)) => assert_eq!(refusal.reason, ReasonCode::QuotaExceeded),
        other => panic!("{other:?}"),
    }
    exactly.await.unwrap();
}

#[tokio::test]
async fn messages_come_in_and_are_acknowledged() {
    let listener = Listener::new().await;
    let (_client, mut events, mut broker) = connected(listener.options(), &listener).await;
    broker.publish("t", b"0", QoS::AtMostOnce, 0).await;
    broker.publish("t", b"1", QoS::AtLeastOnce, 7).await;
    broker.publish("t", b"2", QoS::ExactlyOnce, 8).await;
    assert_eq!(broker.next().await, Got::PubAck(7));
    assert_eq!(broker.next().await, Got::PubRec(8));
    broker.ack(Packet::PubRel, 8).await;
    assert_eq!(broker.next().await, Got::PubComp(8));
    for payload in ["0", "1", "2"] {
        let message = events.message().await.unwrap();
        assert_eq!(
            (message.topic(), &message.payload()[..]),
            ("t", payload.as_bytes())
        );
    }
}

#[tokio::test]
async fn a_kept_session_goes_on_where_it_broke() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    options.session_expiry_s = 60;
    let (client, mut events, mut broker) = connected(options, &listener).await;
    assert!(matches!(events.next().await, Some(Event::Connected(_))));
    let delivery = client.send(message("a", QoS::AtLeastOnce)).await.unwrap();
    assert_eq!(
        broker.next().await,
        published(1, "a", QoS::AtLeastOnce, false)
    );
    drop(broker);
    assert!(matches!(
        events.next().await,
        Some(Event::Disconnected {
            error: Error::Lost(_),
            retry_in: Some(_)
        })
    ));
    let mut broker = listener.accept().await;
    let Got::Connect { clean_start, .. } = broker.next().await else {
        panic!("no CONNECT")
    };
    assert!(!clean_start);
    broker.connack(true, &[]).await;
    assert_eq!(
        broker.next().await,
        published(1, "a", QoS::AtLeastOnce, true)
    );
    broker.ack(Packet::PubAck, 1).await;
    delivery.await.unwrap();
    match events.next().await {
        Some(Event::Connected(connected)) => {
            assert!(connected.session_present);
            assert_eq!(connected.connections, 2);
        }
        other => panic!("{other:?}"),
    }
}

/// The broker closes over a packet that it has not read, which is a reset: the client's next write fails.
#[tokio::test]
async fn last_words_of_the_broker_are_read_although_a_write_fails_first() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    options.reconnect = None;
    let (client, mut events, broker) = connected(options, &listener).await;
    assert!(matches!(events.next().await, Some(Event::Connected(_))));
    let delivery = client.send(message("a", QoS::AtLeastOnce)).await.unwrap();
    assert!(broker.stream.peek(&mut [0]).await.unwrap() > 0);
    // The client's task does not run before the test waits, and then finds something to write.
    let last_words = [0x40, 2, 0, 1, 0xe0, 2, 0x8b, 0];
    assert_eq!(broker.stream.try_write(&last_words).unwrap(), 8);
    drop(broker);
    let more = client.send(message("b", QoS::AtLeastOnce));
    let (_, event) = tokio::join!(more, events.next());
    match event {
        Some(Event::Disconnected {
            error: Error::Disconnected(refusal),
            retry_in: None,
        }) => assert_eq!(refusal.reason, ReasonCode::ServerShuttingDown),
        other => panic!("{other:?}"),
    }
    delivery.await.unwrap();
}

/// Without a session at the broker, subscriptions are made again, QoS 1 goes out again as new, and
/// QoS 2, which might then come twice, does not.
#[tokio::test]
async fn a_lost_session_is_rebuilt() {
    let listener = Listener::new().await;
    let (client, _events, mut broker) = connected(listener.options(), &listener).await;
    let subscribed = tokio::spawn({
        let client = client.clone();
        async move { client.subscribe([filter("s"), filter("no")]).await }
    });
    assert!(matches!(broker.next().await, Got::Subscribe { id: 1, .. }));
    broker
        .suback(1, &[ReasonCode::GrantedQoS1, ReasonCode::NotAuthorized])
        .await;
    subscribed.await.unwrap().unwrap();
    let once = client.send(message("a", QoS::AtLeastOnce)).await.unwrap();
    let exactly = client.send(message("b", QoS::ExactlyOnce)).await.unwrap();
    let received = client.send(message("c", QoS::ExactlyOnce)).await.unwrap();
    for _ in 0..3 {
        broker.next().await;
    }
    broker.ack(Packet::PubRec, 4).await;
    assert_eq!(broker.next().await, Got::PubRel(4));
    drop(broker);

    let mut broker = listener.accept().await;
    assert!(matches!(
        broker.next().await,
        Got::Connect {
            clean_start: true,
            ..
        }
    ));
    // The broker said that it would keep nothing, so the client need not wait for its answer.
    assert_eq!(
        broker.next().await,
        Got::Subscribe {
            id: 1,
            filters: vec!["s".to_owned()]
        }
    );
    assert_eq!(
        broker.next().await,
        published(2, "a", QoS::AtLeastOnce, false)
    );
    broker.connack(false, &[]).await;
    broker.suback(1, &[ReasonCode::GrantedQoS1]).await;
    broker.ack(Packet::PubAck, 2).await;
    once.await.unwrap();
    assert!(matches!(exactly.await, Err(Error::SessionLost)));
    received.await.unwrap();
}

/// A client with a session that is kept, and subscriptions that the broker has granted.
async fn subscribed(listener: &Listener, filters: &[&str]) -> (Client, Events, Broker<TcpStream>) {
    let mut options = listener.options();
    options.session_expiry_s = 60;
    let (client, events, mut broker) = connected(options, listener).await;
    let asking = client.subscribe(filters.iter().map(|one| filter(one)));
    let answering = async {
        let Got::Subscribe { id, .. } = broker.next().await else {
            panic!("no SUBSCRIBE")
        };
        let codes = vec![ReasonCode::GrantedQoS1; filters.len()];
        broker.suback(id, &codes).await;
    };
    let (asked, ()) = tokio::join!(asking, answering);
    asked.unwrap();
    (client, events, broker)
}

fn subscribes_to(got: Got, expected: &[&str]) -> u16 {
    match got {
        Got::Subscribe { id, filters } if filters == expected => id,
        other => panic!("{other:?} in place of a SUBSCRIBE to {expected:?}"),
    }
}

/// The client has nothing to say before a message of the application.
async fn says_nothing_more(client: &Client, broker: &mut Broker<TcpStream>) {
    let delivery = client
        .send(message("fence", QoS::AtMostOnce))
        .await
        .unwrap();
    let fence = published(0, "fence", QoS::AtMostOnce, false);
    assert_eq!(broker.next().await, fence);
    delivery.await.unwrap();
}

/// The broker lost the session, and the connection broke again before the SUBACK. The broker then has a
/// session, without the subscriptions.
#[tokio::test]
async fn subscriptions_are_asked_for_until_they_are_confirmed() {
    let listener = Listener::new().await;
    let (client, _events, broker) = subscribed(&listener, &["a", "b"]).await;
    drop(broker);
    let mut broker = listener.accept_connected(false).await;
    subscribes_to(broker.next().await, &["a", "b"]);
    drop(broker);
    let mut broker = listener.accept_connected(true).await;
    let id = subscribes_to(broker.next().await, &["a", "b"]);
    // The session may have them, and their retained messages then came already.
    let handling = broker.options.iter().map(|options| options.retain_handling);
    assert!(handling.eq([RetainHandling::SendIfNew; 2]));
    broker.suback(id, &[ReasonCode::GrantedQoS1; 2]).await;
    says_nothing_more(&client, &mut broker).await;
    drop(broker);
    let mut broker = listener.accept_connected(true).await;
    says_nothing_more(&client, &mut broker).await;
}

/// The CONNACK that said that the session was lost was lost itself.
#[tokio::test]
async fn subscriptions_are_asked_for_after_a_connect_without_an_answer() {
    let listener = Listener::new().await;
    let (client, _events, broker) = subscribed(&listener, &["a"]).await;
    drop(broker);
    let mut broker = listener.accept().await;
    assert!(matches!(broker.next().await, Got::Connect { .. }));
    drop(broker);
    let mut broker = listener.accept_connected(true).await;
    let id = subscribes_to(broker.next().await, &["a"]);
    broker.suback(id, &[ReasonCode::GrantedQoS1]).await;
    says_nothing_more(&client, &mut broker).await;
    drop(broker);
    // A refusal leaves the session as it is.
    let mut broker = listener.accept().await;
    assert!(matches!(broker.next().await, Got::Connect { .. }));
    broker.refuse(ReasonCode::ServerBusy, "later").await;
    let mut broker = listener.accept_connected(true).await;
    says_nothing_more(&client, &mut broker).await;
}

#[tokio::test]
async fn subscriptions_that_are_not_granted_again_are_told() {
    let listener = Listener::new().await;
    let (client, mut events, broker) = subscribed(&listener, &["a", "b", "c"]).await;
    drop(broker);
    let mut broker = listener.accept_connected(false).await;
    let id = subscribes_to(broker.next().await, &["a", "b", "c"]);
    let codes = [
        ReasonCode::NotAuthorized,
        ReasonCode::QuotaExceeded,
        ReasonCode::GrantedQoS1,
    ];
    broker.suback(id, &codes).await;
    let mut refused = Vec::new();
    while refused.len() < 2 {
        match events.next().await.unwrap() {
            Event::SubscriptionRefused { filter, reason } => refused.push((filter, reason)),
            Event::Message(_) => panic!("a message"),
            _ => {}
        }
    }
    let expected = [("a", codes[0]), ("b", codes[1])].map(|(it, code)| (it.to_owned(), code));
    assert_eq!(refused, expected);
    says_nothing_more(&client, &mut broker).await;
    drop(broker);
    // The quota has room again. The other one is forgotten.
    let mut broker = listener.accept_connected(true).await;
    let id = subscribes_to(broker.next().await, &["b"]);
    broker.suback(id, &[ReasonCode::GrantedQoS1]).await;
    says_nothing_more(&client, &mut broker).await;
}

/// An UNSUBSCRIBE leaves before the CONNACK that says that the session is lost.
#[tokio::test]
async fn what_the_application_has_given_up_is_not_asked_for_again() {
    let listener = Listener::new().await;
    let (client, _events, mut broker) = subscribed(&listener, &["a", "b"]).await;
    let giving_up = tokio::spawn({
        let client = client.clone();
        async move { client.unsubscribe(["a"]).await }
    });
    assert!(matches!(broker.next().await, Got::Unsubscribe { .. }));
    drop(broker);
    let mut broker = listener.accept().await;
    assert!(matches!(broker.next().await, Got::Connect { .. }));
    let Got::Unsubscribe { id: given_up } = broker.next().await else {
        panic!("no UNSUBSCRIBE")
    };
    broker.connack(false, &[]).await;
    let id = subscribes_to(broker.next().await, &["b"]);
    broker
        .unsuback(given_up, &[ReasonCode::NoSubscriptionExisted])
        .await;
    broker.suback(id, &[ReasonCode::GrantedQoS1]).await;
    giving_up.await.unwrap().unwrap();
    says_nothing_more(&client, &mut broker).await;
}

/// Sends three messages, each with the last digit of its identifier.
async fn publish_three(broker: &mut Broker<TcpStream>) {
    for (id, qos) in [
        (7, QoS::ExactlyOnce),
        (8, QoS::ExactlyOnce),
        (9, QoS::AtLeastOnce),
    ] {
        broker
            .publish("t", &[b'0' + u8::try_from(id).unwrap()], qos, id)
            .await;
    }
}

/// The application acknowledges by itself. Of three messages it has acknowledged the second alone, which
/// waits for the first one's acknowledgement.
#[tokio::test]
async fn what_the_application_has_not_acknowledged_is_not_acknowledged() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    options.session_expiry_s = 60;
    options.acknowledge_on_receipt = false;
    let (client, mut events, mut broker) = connected(options, &listener).await;
    publish_three(&mut broker).await;
    let mut came = Vec::new();
    for _ in 0..3 {
        came.push(events.message().await.unwrap());
    }
    client.acknowledge(&came[1]).await.unwrap();
    says_nothing_more(&client, &mut broker).await;
    drop(broker);

    let mut broker = listener.accept_connected(true).await;
    client.connected().await.unwrap();
    publish_three(&mut broker).await;
    // Of the three, the application has acknowledged this one.
    assert_eq!(broker.next().await, Got::PubRec(8));
    // The first comes once: its acknowledgement is still to be given.
    let again = events.message().await.unwrap();
    assert_eq!(&again.payload()[..], b"9");
    says_nothing_more(&client, &mut broker).await;
    client.acknowledge(&came[0]).await.unwrap();
    assert_eq!(broker.next().await, Got::PubRec(7));
    // For QoS 1, an acknowledgement of the earlier delivery says nothing about this one.
    client.acknowledge(&came[2]).await.unwrap();
    says_nothing_more(&client, &mut broker).await;
    client.acknowledge(&again).await.unwrap();
    assert_eq!(broker.next().await, Got::PubAck(9));
    for id in [7, 8] {
        broker.ack(Packet::PubRel, id).await;
        assert_eq!(broker.next().await, Got::PubComp(id));
    }
    // What was acknowledged while there was no connection is known to the next one.
    broker.publish("t", b"A", QoS::ExactlyOnce, 10).await;
    let late = events.message().await.unwrap();
    drop(broker);
    let mut broker = listener.accept().await;
    client.acknowledge(&late).await.unwrap();
    assert!(matches!(broker.next().await, Got::Connect { .. }));
    broker.connack(true, &[]).await;
    says_nothing_more(&client, &mut broker).await;
    broker.publish("t", b"A", QoS::ExactlyOnce, 10).await;
    assert_eq!(broker.next().await, Got::PubRec(10));
}

#[tokio::test]
async fn a_request_without_an_answer_is_asked_again() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    options.session_expiry_s = 60;
    let (client, _events, mut broker) = connected(options, &listener).await;
    let subscribed = tokio::spawn(async move { client.subscribe([filter("s")]).await });
    assert!(matches!(broker.next().await, Got::Subscribe { .. }));
    drop(broker);
    let mut broker = listener.accept_connected(true).await;
    let Got::Subscribe { id, .. } = broker.next().await else {
        panic!("no SUBSCRIBE")
    };
    broker.suback(id, &[ReasonCode::GrantedQoS1]).await;
    assert_eq!(
        subscribed.await.unwrap().unwrap(),
        [ReasonCode::GrantedQoS1]
    );
}

#[tokio::test]
async fn refusals_come_with_their_reason() {
    let listener = Listener::new().await;
    let (client, mut events) = Client::start(listener.options()).unwrap();
    let publishing = client.send(message("a", QoS::AtLeastOnce)).await.unwrap();
    let mut broker = listener.accept().await;
    broker.next().await;
    broker.refuse(ReasonCode::NotAuthorized, "not you").await;
    let refused = |error| match error {
        Error::Refused(refusal) => (refusal.reason, refusal.text.unwrap()),
        other => panic!("{other:?}"),
    };
    let expected = (ReasonCode::NotAuthorized, "not you".to_owned());
    assert_eq!(refused(client.connected().await.unwrap_err()), expected);
    assert_eq!(refused(publishing.await.unwrap_err()), expected);
    assert_eq!(
        refused(client.subscribe([filter("a")]).await.unwrap_err()),
        expected
    );
    assert!(matches!(
        events.next().await,
        Some(Event::Disconnected {
            error: Error::Refused(_),
            retry_in: None
        })
    ));
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn a_first_failure_is_final_unless_the_application_wants_to_go_on() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    let nobody = Options::new("mqtt://127.0.0.1:1".parse().unwrap());
    let failed = Client::connect(nobody).await.unwrap_err();
    assert!(
        matches!(failed, Error::Connect(ConnectError::Socket(_))),
        "{failed:?}"
    );

    options.retry_first = true;
    let (client, _events) = Client::start(options).unwrap();
    for _ in 0..2 {
        let mut broker = listener.accept().await;
        broker.next().await;
        broker.refuse(ReasonCode::ServerBusy, "later").await;
    }
    let _broker = listener.accept_connected(false).await;
    client.connected().await.unwrap();
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_given_up() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    options.connect_timeout = Duration::from_millis(100);
    let (client, _events) = Client::start(options).unwrap();
    let _broker = listener.accept().await;
    let error = client.connected().await.unwrap_err();
    assert!(
        matches!(error, Error::Connect(ConnectError::Timeout { .. })),
        "{error:?}"
    );
}

/// A client that was replaced stays away: two that come back for ever would throw each other out
/// for ever.
#[tokio::test]
async fn a_client_that_was_taken_over_does_not_come_back() {
    let listener = Listener::new().await;
    let (client, _events, mut broker) = connected(listener.options(), &listener).await;
    let taken = sterna_mqtt::packet::Disconnect::new(ReasonCode::SessionTakenOver);
    broker.send(Packet::Disconnect(taken)).await;
    let failed = client
        .publish(message("a", QoS::AtLeastOnce))
        .await
        .unwrap_err();
    assert!(
        matches!(failed, Error::Disconnected(_) | Error::Ended),
        "{failed:?}"
    );
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(matches!(
        client.connected().await,
        Err(Error::Disconnected(_))
    ));
}

/// On a slow path a broker may read the CONNECT of a connection that was lost after that of the next. A client
/// that stayed away for it would be gone for ever.
#[tokio::test]
async fn a_client_comes_back_that_an_own_late_connect_has_replaced() {
    let listener = Listener::new().await;
    let (client, _events, broker) = connected(listener.options(), &listener).await;
    drop(broker);
    let mut unanswered = listener.accept().await;
    unanswered.next().await;
    drop(unanswered);
    let taken = || {
        let taken = sterna_mqtt::packet::Disconnect::new(ReasonCode::SessionTakenOver);
        Packet::Disconnect(taken)
    };
    let mut broker = listener.accept_connected(false).await;
    broker.send(taken()).await;
    let mut broker = listener.accept_connected(false).await;
    client.connected().await.unwrap();
    // The second time it is somebody else.
    broker.send(taken()).await;
    let failed = client.publish(message("a", QoS::AtLeastOnce)).await;
    assert!(failed.is_err(), "{failed:?}");
    assert!(matches!(
        client.connected().await,
        Err(Error::Disconnected(_))
    ));
}

/// [MQTT-3.14.4-1] [MQTT-3.14.4-2]: everything, then DISCONNECT, then nothing.
#[tokio::test]
async fn disconnect_comes_last() {
    let listener = Listener::new().await;
    let (client, mut events, mut broker) = connected(listener.options(), &listener).await;
    for _ in 0..100 {
        client.send(message("a", QoS::AtMostOnce)).await.unwrap();
    }
    let disconnecting = tokio::spawn({
        let client = client.clone();
        async move { client.disconnect().await }
    });
    for _ in 0..100 {
        assert_eq!(
            broker.next().await,
            published(0, "a", QoS::AtMostOnce, false)
        );
    }
    assert_eq!(broker.next().await, Got::Disconnect(ReasonCode::Success));
    assert_eq!(broker.next().await, Got::Closed);
    drop(broker);
    disconnecting.await.unwrap().unwrap();
    let after = client.publish(message("a", QoS::AtMostOnce)).await;
    assert!(matches!(after, Err(Error::Ended)));
    assert!(matches!(events.next().await, Some(Event::Connected(_))));
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn the_last_handle_takes_the_connection_with_it() {
    let listener = Listener::new().await;
    let (client, _events, mut broker) = connected(listener.options(), &listener).await;
    drop(client.send(message("a", QoS::AtMostOnce)).await.unwrap());
    drop(client);
    assert_eq!(
        broker.next().await,
        published(0, "a", QoS::AtMostOnce, false)
    );
    assert_eq!(broker.next().await, Got::Disconnect(ReasonCode::Success));
}

/// An application that is slow to read slows the broker down, and loses nothing.
#[tokio::test]
async fn what_nobody_reads_is_not_fetched() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    options.incoming_messages = 4;
    let (client, mut events, mut broker) = connected(options, &listener).await;
    let payload = vec![b'.'; 60_000];
    let sending = tokio::spawn(async move {
        for number in 0..500_u32 {
            broker
                .publish(&number.to_string(), &payload, QoS::AtMostOnce, 0)
                .await;
        }
        broker
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!sending.is_finished(), "30 MB fit into no socket buffer");
    for number in 0..500_u32 {
        assert_eq!(events.message().await.unwrap().topic(), number.to_string());
    }
    sending.await.unwrap();
    drop(client);
}

#[tokio::test]
async fn publishing_waits_for_room() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    options.queued_messages = 2;
    let (client, _events) = Client::start(options).unwrap();
    let mut broker = listener.accept().await;
    broker.next().await;
    broker.connack(false, &[Property::ReceiveMaximum(1)]).await;
    client.connected().await.unwrap();
    let mut deliveries = Vec::new();
    for _ in 0..3 {
        deliveries.push(client.send(message("a", QoS::AtLeastOnce)).await.unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // One is sent, one waits in the client's hand, one in the queue: there is room for one more.
    deliveries.push(client.send(message("a", QoS::AtLeastOnce)).await.unwrap());
    let full = client.send(message("a", QoS::AtLeastOnce));
    assert!(
        tokio::time::timeout(Duration::from_millis(50), full)
            .await
            .is_err()
    );
    // [MQTT-3.3.4-9]: other packets don't wait.
    let subscribing = tokio::spawn({
        let client = client.clone();
        async move { client.subscribe([filter("s")]).await }
    });
    assert_eq!(
        broker.next().await,
        published(1, "a", QoS::AtLeastOnce, false)
    );
    let Got::Subscribe { id: subscribe, .. } = broker.next().await else {
        panic!("no SUBSCRIBE")
    };
    broker.ack(Packet::PubAck, 1).await;
    broker.suback(subscribe, &[ReasonCode::Success]).await;
    subscribing.await.unwrap().unwrap();
    for delivery in deliveries.drain(1..) {
        let Got::Publish { id, .. } = broker.next().await else {
            panic!("no PUBLISH")
        };
        broker.ack(Packet::PubAck, id).await;
        delivery.await.unwrap();
    }
}

#[tokio::test]
async fn what_the_broker_cannot_take_is_told_to_the_application() {
    let listener = Listener::new().await;
    let (client, _events) = Client::start(listener.options()).unwrap();
    let mut broker = listener.accept().await;
    broker.next().await;
    broker
        .connack(
            false,
            &[Property::MaximumQoS(0), Property::MaximumPacketSize(50)],
        )
        .await;
    client.connected().await.unwrap();
    let unsupported = client
        .publish(message("a", QoS::AtLeastOnce))
        .await
        .unwrap_err();
    assert!(matches!(
        unsupported,
        Error::Send(SendError::Unsupported(_))
    ));
    let large = Publish::new("a", vec![0; 100]).unwrap();
    let large = client.publish(large).await.unwrap_err();
    assert!(matches!(large, Error::Send(SendError::Encode(_))));
}

/// [MQTT-3.1.2-20] [MQTT-3.1.2-21]
#[tokio::test]
async fn the_connection_is_kept_alive() {
    let listener = Listener::new().await;
    let (client, _events) = Client::start(listener.options()).unwrap();
    let mut broker = listener.accept().await;
    broker.next().await;
    broker.connack(false, &[Property::ServerKeepAlive(1)]).await;
    for _ in 0..2 {
        assert_eq!(broker.next().await, Got::PingReq);
        broker.send(Packet::PingResp).await;
    }
    drop(client);
}

#[tokio::test]
async fn a_broker_that_breaks_the_protocol_is_left() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    options.reconnect = None;
    let (client, _events, mut broker) = connected(options, &listener).await;
    broker.ack(Packet::PubRel, 1).await;
    assert_eq!(broker.next().await, Got::PubComp(1));
    broker.suback(9, &[ReasonCode::Success]).await;
    assert_eq!(
        broker.next().await,
        Got::Disconnect(ReasonCode::ProtocolError)
    );
    assert_eq!(broker.next().await, Got::Closed);
    let error = client
        .publish(message("a", QoS::AtMostOnce))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error:?}");
}

/// MQTT 3.1.1 has neither properties nor a session expiry.
#[tokio::test]
async fn older_versions_work_too() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    options.version = Version::V311;
    options.client_id = Some("old".to_owned());
    options.clean_start = false;
    let will = message("gone", QoS::AtLeastOnce)
        .content_type("text/plain")
        .unwrap();
    options.will = Some(Will::new(will).unwrap());
    options.login = Login::Password {
        user: Some("u".to_owned()),
        password: Some(b"p".to_vec()),
    };
    let (client, mut events) = Client::start(options).unwrap();
    let mut broker = listener.accept().await;
    match broker.next().await {
        Got::Connect {
            clean_start,
            client_id,
            user,
            ..
        } => {
            assert_eq!(
                (clean_start, client_id.as_str(), user.as_deref()),
                (false, "old", Some("u"))
            );
        }
        other => panic!("{other:?}"),
    }
    broker.connack(true, &[]).await;
    let with_properties = message("a", QoS::AtLeastOnce)
        .user_property("a", "b")
        .unwrap();
    let delivery = client.send(with_properties).await.unwrap();
    assert_eq!(
        broker.next().await,
        published(1, "a", QoS::AtLeastOnce, false)
    );
    broker.ack(Packet::PubAck, 1).await;
    delivery.await.unwrap();
    broker.publish("t", b"0", QoS::AtMostOnce, 0).await;
    assert_eq!(events.message().await.unwrap().topic(), "t");
}

/// The password never travels, and the broker has to know it, too.
#[tokio::test]
async fn scram_proves_both_sides() {
    let listener = Listener::new().await;
    let record = Record::from_password("secret", &[1; 16], 4096).unwrap();
    for (password, honest) in [("secret", true), ("secret", false), ("wrong", true)] {
        let mut options = listener.options();
        options.reconnect = None;
        options.login = Login::Scram {
            user: "u".to_owned(),
            password: password.to_owned(),
        };
        let (client, _events) = Client::start(options).unwrap();
        let delivery = client.send(message("a", QoS::AtMostOnce)).await.unwrap();
        let mut broker = listener.accept().await;
        let Got::Connect { data, .. } = broker.next().await else {
            panic!("no CONNECT")
        };
        // [MQTT-3.1.2-30]
        assert!(
            !broker.has_more(),
            "nothing but the CONNECT before the server's answer"
        );
        let first = ClientFirst::parse(&data.unwrap()).unwrap();
        assert_eq!(first.user(), "u");
        let nonce = Nonce::from_random([2; 18]);
        let (exchange, challenge) = ServerStart::new(first, record.clone(), &nonce);
        let properties = |data: &str| {
            crate::broker::block(&[
                Property::AuthenticationMethod("SCRAM-SHA-256"),
                Property::AuthenticationData(data.as_bytes()),
            ])
        };
        let block = properties(&challenge);
        let reason = ReasonCode::ContinueAuthentication;
        broker
            .send(Packet::Auth(Auth {
                reason,
                properties: block.properties(),
            }))
            .await;
        let Got::Auth { data, .. } = broker.next().await else {
            panic!("no AUTH")
        };
        let verified = exchange.verify(&data);
        assert_eq!(verified.is_ok(), password == "secret");
        let Ok(signature) = verified else { continue };
        let block = properties(if honest { &signature } else { &challenge });
        let connack = ConnAck {
            session_present: false,
            reason: ReasonCode::Success,
            properties: block.properties(),
        };
        broker.send(Packet::ConnAck(connack)).await;
        if honest {
            client.connected().await.unwrap();
            assert_eq!(
                broker.next().await,
                published(0, "a", QoS::AtMostOnce, false)
            );
            delivery.await.unwrap();
        } else {
            let error = client.connected().await.unwrap_err();
            assert!(matches!(error, Error::Authentication(_)), "{error:?}");
            assert_eq!(
                broker.next().await,
                Got::Disconnect(ReasonCode::NotAuthorized)
            );
        }
    }
}
