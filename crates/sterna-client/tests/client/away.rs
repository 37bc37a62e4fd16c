//! The client while its broker is away: what the application does goes on.
#![allow(clippy::unwrap_used)] // it is all test

use std::time::Duration;

use sterna_client::{Backoff, Client, Event, Events, Message, Options, QoS};
use tokio::net::TcpStream;

use crate::broker::{Broker, Got, Listener, connected};
use crate::patience::soon;

/// More than all queues of requests together have room for.
const MESSAGES: u16 = 200;

/// A client that has got messages of this QoS, and not acknowledged them.
async fn with_messages(
    mut options: Options,
    listener: &Listener,
    qos: QoS,
) -> (Client, Events, Broker<TcpStream>, Vec<Message>) {
    options.session_expiry_s = 60;
    options.acknowledge_on_receipt = false;
    options.receive_maximum = MESSAGES;
    let (client, mut events, mut broker) = connected(options, listener).await;
    let mut came = Vec::new();
    for id in 1..=MESSAGES {
        broker.publish("t", b"x", qos, id).await;
        came.push(soon(events.message()).await.unwrap());
    }
    (client, events, broker, came)
}

async fn connection_lost(events: &mut Events) {
    let event = soon(events.next()).await.unwrap();
    let is_lost = matches!(
        event,
        Event::Disconnected {
            retry_in: Some(_),
            ..
        }
    );
    assert!(is_lost, "{event:?}");
}

/// The broker's end of a connection that waits for its CONNACK.
async fn connecting(listener: &Listener) -> Broker<TcpStream> {
    let mut broker = listener.accept().await;
    assert!(matches!(broker.next().await, Got::Connect { .. }));
    broker
}

/// A broker that nobody reaches, and one that accepts connections and says nothing.
#[tokio::test]
async fn acknowledgements_wait_for_no_broker() {
    for is_silent in [false, true] {
        for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let listener = Listener::new().await;
            let address = listener.address();
            let mut options = listener.options();
            options.connect_timeout = Duration::from_secs(3_600);
            let (client, mut events, broker, came) = with_messages(options, &listener, qos).await;
            let silent = is_silent.then_some(listener);
            drop(broker);
            connection_lost(&mut events).await;
            let silent = match silent {
                Some(listener) => Some(connecting(&listener).await),
                None => None,
            };
            for message in &came {
                soon(client.acknowledge(message)).await.unwrap();
            }
            let mut broker = match silent {
                Some(broker) => broker,
                None => connecting(&Listener::at(address).await).await,
            };
            broker.connack(true, &[]).await;
            client.connected().await.unwrap();
            for id in 1..=MESSAGES {
                broker.publish("t", b"x", qos, id).await;
                if qos == QoS::ExactlyOnce {
                    // The application has it, and has said so.
                    assert_eq!(broker.next().await, Got::PubRec(id));
                    continue;
                }
                // It comes again. The earlier acknowledgement says nothing about this delivery.
                let again = soon(events.message()).await.unwrap();
                client.acknowledge(&again).await.unwrap();
                assert_eq!(broker.next().await, Got::PubAck(id));
            }
        }
    }
}

/// The application has no room for the news of a lost connection at first, and makes room in the pause.
#[tokio::test]
async fn events_wait_for_room_and_not_for_the_broker() {
    let listener = Listener::new().await;
    let mut options = listener.options();
    options.incoming_messages = 1;
    let hour = Duration::from_secs(3_600);
    options.reconnect = Some(Backoff {
        min: hour,
        max: hour,
        max_attempts: None,
    });
    let (_client, mut events, mut broker) = connected(options, &listener).await;
    broker.publish("t", b"x", QoS::AtMostOnce, 0).await;
    drop(broker);
    let event = soon(events.next()).await.unwrap();
    assert!(matches!(event, Event::Connected(_)), "{event:?}");
    // The message takes the room. Meanwhile the client notices that the connection is lost.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let message = soon(events.next()).await.unwrap();
    assert!(matches!(message, Event::Message(_)), "{message:?}");
    connection_lost(&mut events).await;
}
