//! Kept readers that are behind when their connection ends: all that was acknowledged to its publisher arrives.

use sterna_amqp::link::AttachOptions;
use sterna_amqp::performatives::Role;
use sterna_mqtt::packet::{Connect, Publish};
use sterna_mqtt::{Packet, PacketId, Property, QoS, Version};

use crate::amqp::durable;
use crate::amqp_client::Client as AmqpClient;
use crate::fixture::{Broker, Peer, block, plain, publish};
use crate::h3_client::Client as HttpClient;
use crate::store::{Held, config};

const V5: Version = Version::V5;

/// Messages that are published while the reader is connected and acknowledges none.
const BEHIND: u32 = 6_000;

/// The end of the reader's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The protocol's own.
    Orderly,
    Lost,
    /// SIGTERM.
    Stop,
    /// SIGKILL.
    Kill,
}

const ENDS: [End; 4] = [End::Orderly, End::Lost, End::Stop, End::Kill];

/// Publishes numbers, each of which is acknowledged.
fn publish_all(broker: &mut Broker, numbers: std::ops::Range<u32>) {
    let publisher = broker.client(V5, "publisher");
    for number in numbers.clone() {
        let packet_id = PacketId::new((number % 60_000) as u16 + 1);
        let payload = number.to_string();
        let packet = Packet::Publish(Publish {
            packet_id,
            ..publish("kept/a", &payload, QoS::AtLeastOnce)
        });
        broker.packet(publisher, V5, &packet);
    }
    let told = broker.told(publisher, V5);
    let acknowledged = told
        .iter()
        .filter(|told| told.starts_with("PUBACK") && told.ends_with("Success"));
    assert_eq!(acknowledged.count(), numbers.len(), "each is acknowledged");
}

/// The next broker, where the end is one of the process.
fn after(broker: Broker, store: &Held, end: End) -> Broker {
    let mut broker = broker;
    match end {
        End::Orderly | End::Lost => return broker,
        End::Stop => {
            broker.stop();
            broker.advance(60_000);
            assert!(broker.finished());
        }
        End::Kill => {}
    }
    drop(broker);
    store.broker(&config(), 1)
}

fn connect(broker: &mut Broker) -> Peer {
    let peer = broker.open();
    let properties = block(&[Property::SessionExpiryInterval(1_000)]);
    let connect = Connect {
        clean_start: false,
        properties: properties.properties(),
        ..plain(V5, "reader")
    };
    broker.packet(peer, V5, &Packet::Connect(connect));
    peer
}

/// Acknowledges what has come until nothing comes, and returns it.
fn take_all(broker: &mut Broker, peer: Peer) -> Vec<u32> {
    let mut numbers = Vec::new();
    loop {
        let came = broker.packets(peer, V5, |packet| match packet {
            Packet::Publish(publish) => {
                let text = std::str::from_utf8(publish.payload).expect("text");
                let number = text.parse::<u32>().expect("a number");
                publish.packet_id.map(|id| (id.get(), number))
            }
            _ => None,
        });
        let came: Vec<(u16, u32)> = came.into_iter().flatten().collect();
        if came.is_empty() {
            numbers.sort_unstable();
            numbers.dedup();
            return numbers;
        }
        for (id, number) in came {
            let [high, low] = id.to_be_bytes();
            broker.send(peer, &[0x40, 2, high, low]);
            numbers.push(number);
        }
    }
}

#[test]
fn a_session_of_mqtt_that_is_behind_gets_all_when_it_comes_back() {
    for end in ENDS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let reader = connect(&mut broker);
        assert_eq!(broker.told(reader, V5), ["CONNACK Success"]);
        broker.subscribe(reader, V5, "kept/#", QoS::AtLeastOnce);
        publish_all(&mut broker, 0..BEHIND);
        match end {
            End::Orderly => broker.send(reader, &[0xe0, 0]),
            End::Lost => broker.cut(reader),
            End::Stop | End::Kill => {}
        }
        let mut broker = after(broker, &store, end);
        let reader = connect(&mut broker);
        let came = take_all(&mut broker, reader);
        assert_eq!(came, (0..BEHIND).collect::<Vec<_>>(), "{end:?}");
    }
}

#[test]
fn a_thousand_in_flight_and_many_that_wait_arrive_after_a_restart() {
    for end in [End::Stop, End::Kill] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let reader = connect(&mut broker);
        assert_eq!(broker.told(reader, V5), ["CONNACK Success"]);
        broker.subscribe(reader, V5, "kept/#", QoS::AtLeastOnce);
        publish_all(&mut broker, 0..1_900);
        let mut broker = after(broker, &store, end);
        let reader = connect(&mut broker);
        let came = take_all(&mut broker, reader);
        assert_eq!(came, (0..1_900).collect::<Vec<_>>(), "{end:?}");
    }
}

#[test]
fn a_durable_subscription_of_amqp_that_is_behind_gets_all_when_it_comes_back() {
    for end in ENDS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let mut client = AmqpClient::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        let link = client.receiver(&mut broker, session, "sub", durable("kept/#"), 500);
        publish_all(&mut broker, 0..BEHIND);
        client.turn(&mut broker);
        assert_eq!(client.received.len(), 500);
        match end {
            End::Orderly => client.detach(&mut broker, link, false),
            End::Lost => {
                client.cut(&mut broker);
            }
            End::Stop | End::Kill => {}
        }
        let mut broker = after(broker, &store, end);
        let mut client = AmqpClient::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        let link = client.attach(
            &mut broker,
            session,
            "sub",
            Role::Receiver,
            &AttachOptions {
                recover: true,
                ..AttachOptions::default()
            },
        );
        let mut numbers = Vec::new();
        loop {
            client.credit(&mut broker, link, 1_000);
            let came = client.accept_all(&mut broker);
            if came.is_empty() {
                break;
            }
            numbers.extend(
                came.iter()
                    .map(|text| text.parse::<u32>().expect("a number")),
            );
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers, (0..BEHIND).collect::<Vec<_>>(), "{end:?}");
    }
}

#[test]
fn a_named_session_of_http_that_is_behind_gets_all_when_it_comes_back() {
    for end in ENDS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let get = "/v1/topics/kept%2F%23?session=s&qos=1";
        let mut client = HttpClient::connect(&mut broker);
        let number = client.request(&mut broker, "GET", get, &[], b"");
        assert_eq!(client.response(number).status, 200);
        publish_all(&mut broker, 0..BEHIND);
        match end {
            End::Orderly | End::Lost => broker.cut(client.peer),
            End::Stop | End::Kill => {}
        }
        let mut broker = after(broker, &store, end);
        let mut client = HttpClient::connect(&mut broker);
        let number = client.request(&mut broker, "GET", get, &[], b"");
        let (mut numbers, mut seen) = (Vec::new(), 0);
        loop {
            client.turn(&mut broker);
            let content = client.response(number).content.clone();
            let text = String::from_utf8(content).expect("text");
            let mut last = None;
            for line in text[seen..].lines().filter(|line| line.starts_with('{')) {
                let value: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
                if let (Some(id), Some(payload)) = (value["id"].as_u64(), value["payload"].as_str())
                {
                    last = Some(id);
                    numbers.push(payload.parse::<u32>().expect("a number"));
                }
            }
            seen = text.len();
            let Some(last) = last else { break };
            let last = format!("{{\"id\": {last}}}");
            let ack = client.request(
                &mut broker,
                "POST",
                "/v1/sessions/s/ack",
                &[],
                last.as_bytes(),
            );
            assert_eq!(client.response(ack).status, 204);
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers, (0..BEHIND).collect::<Vec<_>>(), "{end:?}");
    }
}
