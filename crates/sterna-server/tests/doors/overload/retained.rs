//! The share of retained messages: whoever holds most of it leaves its last part to all others, at every door.

use bytes::BytesMut;
use sterna_amqp::connection::LinkId;
use sterna_amqp::messaging::{MessageWriter, Properties};
use sterna_amqp::types::Value;
use sterna_broker::{Limits, NoStore, Store};
use sterna_mqtt::{Packet, QoS};
use sterna_server::config::Config;

use super::store::Held;
use super::{AMQP, HTTP, MQTT, V5, config};
use crate::amqp_client::{Client as AmqpClient, in_transaction};
use crate::fixture::{Broker, Peer, publish};

const ATTACKER: [u8; 4] = [10, 0, 0, 1];
const HONEST: [u8; 4] = [10, 0, 0, 2];

/// Retained messages that there may be, and those that one address may have.
const ALL: usize = 40;
const OF_ONE: usize = 34;

const DOORS: [u16; 4] = [MQTT, AMQP, AMQP, HTTP];

fn limits() -> Limits {
    Limits {
        retained_messages: ALL,
        ..Limits::default()
    }
}

fn broker(config: &Config, store: impl Fn() -> Box<dyn Store>) -> Broker {
    Broker::restored(config, 1, limits(), store)
}

/// A client that publishes.
enum Client {
    Mqtt(Peer),
    Amqp(Box<AmqpClient>, LinkId),
    /// With the link to the coordinator of its transactions.
    Transactions(Box<AmqpClient>, LinkId, LinkId),
    Http(Peer),
}

impl Client {
    /// A client at an address, of a protocol by its place in [`DOORS`].
    fn connect(broker: &mut Broker, address: [u8; 4], door: usize) -> Self {
        broker.come_from(address);
        broker.listener = DOORS[door];
        let name = format!("{address:?}-{door}");
        match door {
            0 => Self::Mqtt(broker.client(V5, &name)),
            1 | 2 => {
                let mut client = Box::new(AmqpClient::connect(broker, &name));
                let session = client.begin(broker);
                let link = client.anonymous_sender(broker, session);
                if door == 1 {
                    Self::Amqp(client, link)
                } else {
                    let coordinator = client.coordinator(broker, session);
                    Self::Transactions(client, link, coordinator)
                }
            }
            _ => Self::Http(broker.open()),
        }
    }

    /// Publishes a message that is to be retained; its answer.
    fn retain(&mut self, broker: &mut Broker, topic: &str) -> String {
        match self {
            Self::Mqtt(peer) => {
                let mut packet = publish(topic, "x", QoS::AtLeastOnce);
                packet.retain = true;
                broker.packet(*peer, V5, &Packet::Publish(packet));
                broker.told(*peer, V5).pop().expect("an answer")
            }
            Self::Amqp(client, link) => {
                client.send_message(broker, *link, 1, &retained(topic), false, None);
                client.outcomes().pop().expect("an outcome").1
            }
            Self::Transactions(client, link, coordinator) => {
                let txn = client.declare(broker, *coordinator).expect("declared");
                let state = in_transaction(&txn, None);
                client.send_message(broker, *link, 1, &retained(topic), false, Some(state));
                client.outcomes();
                client.discharge(broker, *coordinator, 2, &txn, false);
                client.outcomes().pop().expect("an outcome").1
            }
            Self::Http(peer) => {
                let request = format!(
                    "POST /v1/topics/{topic} HTTP/1.1\r\nHost: localhost\r\nSterna-Retain: ?1\r\n\
                     Content-Length: 1\r\n\r\nx"
                );
                broker.send(*peer, request.as_bytes());
                String::from_utf8(broker.take(*peer)).expect("text")
            }
        }
    }

    /// How its protocol says that a message was not retained; `None` where it has no way to.
    fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Mqtt(_) => Some("Quota exceeded"),
            Self::Amqp(..) => Some("amqp:resource-limit-exceeded"),
            Self::Transactions(..) => None,
            Self::Http(_) => Some("HTTP/1.1 507"),
        }
    }

    /// Whether a message is retained, and whether the answer says so.
    fn keeps(&mut self, broker: &mut Broker, topic: &str) -> bool {
        let before = kept(broker);
        let answer = self.retain(broker, topic);
        let is_kept = kept(broker) > before;
        if let Some(refusal) = self.refusal() {
            assert_eq!(answer.contains(refusal), !is_kept, "{answer}");
        }
        is_kept
    }
}

fn retained(topic: &str) -> BytesMut {
    let mut message = BytesMut::new();
    MessageWriter::new(&mut message)
        .message_annotations(|map| {
            map.push(&Value::Symbol("x-opt-retain"), &Value::Boolean(true));
        })
        .properties(&Properties {
            to: Some(Value::String(topic)),
            ..Properties::default()
        })
        .data(b"x");
    message
}

fn kept(broker: &Broker) -> usize {
    broker.retained()
}

#[test]
fn an_attacker_at_any_door_leaves_a_part_to_others_at_every_door() {
    for attacking in 0..DOORS.len() {
        let mut broker = broker(&config(), || Box::new(NoStore));
        let mut attacker = Client::connect(&mut broker, ATTACKER, attacking);
        let count = (0..ALL)
            .take_while(|number| attacker.keeps(&mut broker, &format!("a-{number}")))
            .count();
        assert_eq!(count, OF_ONE, "{attacking}");
        for door in 0..DOORS.len() {
            let mut again = Client::connect(&mut broker, ATTACKER, door);
            assert!(!again.keeps(&mut broker, "more"), "{attacking} at {door}");
            let mut honest = Client::connect(&mut broker, HONEST, door);
            let topic = format!("honest-{door}");
            assert!(honest.keeps(&mut broker, &topic), "{attacking} at {door}");
        }
    }
}

#[test]
fn the_part_is_left_over_a_restart() {
    for attacking in 0..DOORS.len() {
        let store = Held::new();
        let stored = || -> Box<dyn Store> { Box::new(store.clone()) };
        let mut first = broker(&config(), stored);
        let mut attacker = Client::connect(&mut first, ATTACKER, attacking);
        for number in 0..ALL {
            attacker.keeps(&mut first, &format!("a-{number}"));
        }
        assert_eq!(kept(&first), OF_ONE);
        drop(first);
        let mut second = broker(&config(), stored);
        assert_eq!(kept(&second), OF_ONE);
        for door in 0..DOORS.len() {
            let mut again = Client::connect(&mut second, ATTACKER, door);
            assert!(!again.keeps(&mut second, "more"), "{attacking} at {door}");
            let mut honest = Client::connect(&mut second, HONEST, door);
            assert!(honest.keeps(&mut second, &format!("honest-{door}")));
        }
    }
}
