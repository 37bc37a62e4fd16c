//! Clients with wills: some are lost for ever, and one comes again and again.

use sterna_ledger::{Ledger, Promise, Protocol, PublisherId, Sending, Stamp};
use sterna_mqtt::packet::{Connect, Publish, Will};
use sterna_mqtt::{Packet, Property, PropertyContext, PublishProperties, QoS, Version};
use sterna_net::TransportKind;

use crate::fixture::{Broker, Peer, block, plain, publish};
use crate::powercut::world::{Actor, Phase, Stage};

/// Where a host says whether it is there; retained.
pub const HOST: &str = "r/host";
const HOST_NAME: &str = "host";
/// Longest delay of a will, in seconds.
const MOST_DELAY_S: u64 = 1;

pub fn enter(ledger: &mut Ledger, actors: &mut Vec<Box<dyn Actor>>) {
    for (name, qos, expiry_s) in [
        ("mortal", QoS::AtLeastOnce, 0),
        ("exact-mortal", QoS::ExactlyOnce, 0),
        ("lasting-mortal", QoS::ExactlyOnce, 3_600),
    ] {
        let sending = Sending {
            protocol: Protocol::Mqtt,
            is_exact: qos == QoS::ExactlyOnce,
        };
        actors.push(Box::new(Mortal {
            name,
            publisher: ledger.publisher(name, sending),
            qos,
            expiry_s,
            number: 0,
            peer: None,
            will: None,
            is_connected: false,
        }));
    }
    actors.push(Box::new(Host {
        number: 0,
        peer: None,
        state: State::Away,
    }));
}

/// One client after another, each of which is lost and never comes back: its will has to come.
struct Mortal {
    name: &'static str,
    publisher: PublisherId,
    qos: QoS,
    expiry_s: u32,
    number: u32,
    peer: Option<Peer>,
    will: Option<Stamp>,
    is_connected: bool,
}

impl Mortal {
    fn connect(&mut self, stage: &mut Stage<'_>) {
        self.number += 1;
        let name = format!("{}-{}", self.name, self.number);
        let topic = format!("w/{name}");
        let stamp = stage.ledger.send(self.publisher, &topic);
        let payload = stamp.payload();
        let delay_s = if self.expiry_s > 0 {
            stage.below(MOST_DELAY_S + 1) as u32
        } else {
            0
        };
        let delay = block(&[Property::WillDelayInterval(delay_s)]);
        let session = block(&[Property::SessionExpiryInterval(self.expiry_s)]);
        let connect = Connect {
            keep_alive_s: 0,
            properties: session.properties(),
            will: Some(Will {
                topic: &topic,
                payload: &payload,
                qos: self.qos,
                retain: false,
                properties: delay
                    .publish_properties(PropertyContext::Will)
                    .expect("of a will"),
            }),
            ..plain(Version::V5, &name)
        };
        let shard = stage.shard();
        let peer = stage.broker.open_on(shard, TransportKind::Tcp, Vec::new());
        stage
            .broker
            .packet(peer, Version::V5, &Packet::Connect(connect));
        self.peer = Some(peer);
        self.will = Some(stamp);
    }
}

impl Actor for Mortal {
    fn name(&self) -> &'static str {
        self.name
    }

    fn act(&mut self, stage: &mut Stage<'_>) {
        let Some(peer) = self.peer else {
            if stage.phase == Phase::Load {
                self.connect(stage);
            }
            return;
        };
        let come = stage.broker.packets(
            peer,
            Version::V5,
            |packet| matches!(packet, Packet::ConnAck(ack) if !ack.reason.is_error()),
        );
        self.is_connected |= come.contains(&true);
        let is_over = stage.broker.is_closed(peer) || stage.phase == Phase::Drain;
        if self.is_connected && (is_over || stage.below(4) == 0) {
            self.cut(stage.broker);
            self.lost(stage.ledger);
        }
    }

    fn lost(&mut self, ledger: &mut Ledger) {
        self.peer = None;
        if let Some(stamp) = self.will.take() {
            if std::mem::take(&mut self.is_connected) {
                ledger.acknowledged(stamp);
            } else {
                // It never heard whether it was let in.
                ledger.doubtful(stamp);
            }
        }
    }

    fn cut(&mut self, broker: &mut Broker) -> bool {
        let Some(peer) = self.peer.filter(|peer| !broker.is_closed(*peer)) else {
            return false;
        };
        broker.cut(peer);
        true
    }

    fn is_idle(&self) -> bool {
        self.peer.is_none()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Away,
    /// CONNECT is sent.
    Coming,
    /// It was let in, and has said that it is there.
    Born,
    /// That was acknowledged.
    Known,
}

/// A host of Sparkplug: its birth and its will are retained in one topic. No will of an earlier connection may come
/// behind its birth.
struct Host {
    number: u32,
    peer: Option<Peer>,
    state: State,
}

impl Host {
    fn connect(&mut self, stage: &mut Stage<'_>) {
        self.number += 1;
        let payload = format!("dead {}", self.number);
        let connect = Connect {
            keep_alive_s: 0,
            will: Some(Will {
                topic: HOST,
                payload: payload.as_bytes(),
                qos: QoS::AtLeastOnce,
                retain: true,
                properties: PublishProperties::EMPTY,
            }),
            ..plain(Version::V5, HOST_NAME)
        };
        let shard = stage.shard();
        let peer = stage.broker.open_on(shard, TransportKind::Tcp, Vec::new());
        stage
            .broker
            .packet(peer, Version::V5, &Packet::Connect(connect));
        self.peer = Some(peer);
        self.state = State::Coming;
    }

    fn be_born(&mut self, stage: &mut Stage<'_>, peer: Peer) {
        let payload = format!("born {}", self.number);
        let birth = Publish {
            retain: true,
            ..publish(HOST, &payload, QoS::AtLeastOnce)
        };
        stage
            .broker
            .packet(peer, Version::V5, &Packet::Publish(birth));
        self.state = State::Born;
    }
}

impl Actor for Host {
    fn name(&self) -> &'static str {
        HOST_NAME
    }

    fn act(&mut self, stage: &mut Stage<'_>) {
        let Some(peer) = self.peer.filter(|peer| !stage.broker.is_closed(*peer)) else {
            return self.connect(stage);
        };
        for come in stage
            .broker
            .packets(peer, Version::V5, |packet| match packet {
                Packet::ConnAck(ack) if !ack.reason.is_error() => Some(State::Coming),
                Packet::PubAck(_) => Some(State::Known),
                _ => None,
            })
        {
            match come {
                Some(State::Coming) => self.be_born(stage, peer),
                Some(reached) => self.state = reached,
                None => {}
            }
        }
        if self.state != State::Known || stage.below(4) > 0 {
            return;
        }
        let found = retained(stage.broker);
        let expected = format!("born {}", self.number);
        if found.as_deref() != Some(expected.as_bytes()) {
            let found = found.map(|found| String::from_utf8_lossy(&found).into_owned());
            let text = format!("{expected} was acknowledged, and {found:?} is retained");
            (stage.ledger).complain(Promise::Newest, Protocol::Mqtt, HOST_NAME, text);
        }
        if stage.phase == Phase::Load && stage.below(2) == 0 {
            self.cut(stage.broker);
            self.lost(stage.ledger);
        }
    }

    fn lost(&mut self, _: &mut Ledger) {
        self.peer = None;
        self.state = State::Away;
    }

    fn cut(&mut self, broker: &mut Broker) -> bool {
        let Some(peer) = self.peer.filter(|peer| !broker.is_closed(*peer)) else {
            return false;
        };
        broker.cut(peer);
        true
    }

    fn is_idle(&self) -> bool {
        self.state == State::Known
    }
}

/// What is retained of the host.
fn retained(broker: &mut Broker) -> Option<Vec<u8>> {
    super::mqtt::retained_of(broker, HOST)
}
