//! Clients of MQTT: they keep what a client has to keep, and nothing more.

use std::collections::{BTreeSet, VecDeque};

use sterna_ledger::{
    Ledger, Moment, Promise, Protocol, PublisherId, ReaderId, Reading, Sending, Stamp,
};
use sterna_mqtt::packet::{Connect, Publish, SubscribeOptions};
use sterna_mqtt::{Packet, PacketId, Property, PropertyContext, QoS, Version};
use sterna_net::TransportKind;

use crate::fixture::{Broker, Peer, block, plain, publish};
use crate::powercut::world::{Actor, Phase, Stage};

/// Publications under way at once.
const WINDOW: usize = 5;
/// What expires in a day outlives every jump of the wall clock.
const DAY_S: u32 = 24 * 3_600;
pub const RETAINED: &str = "r/kept";

/// What a client is for.
enum Part {
    Publishes {
        publisher: PublisherId,
        topic: String,
        qos: QoS,
        retain: bool,
    },
    Reads {
        reader: ReaderId,
        filter: &'static str,
        qos: QoS,
        /// It unsubscribes now and then.
        is_fickle: bool,
        /// It is there only when everybody gets what is owed.
        sleeps: bool,
        /// It answers nothing until everybody gets what is owed, and its connection is lost often.
        lags: bool,
    },
}

/// One that is sent and not done.
struct Sent {
    id: u16,
    stamp: Stamp,
    is_released: bool,
}

/// A change of its subscription that waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    Subscribe,
    Unsubscribe,
}

struct Client {
    name: &'static str,
    version: Version,
    part: Part,
    peer: Option<Peer>,
    is_connected: bool,
    /// Since when the broker has a session of it.
    session: Option<Moment>,
    /// Identifiers of QoS 2 that came and were not released, with their payloads.
    taken: Vec<(u16, Vec<u8>)>,
    sent: VecDeque<Sent>,
    next_id: u16,
    asked: Asked,
    /// It wants to be subscribed.
    wants: bool,
    /// Something has come on this connection that it will not answer.
    owes: bool,
}

fn client(name: &'static str, version: Version, part: Part) -> Box<dyn Actor> {
    Box::new(Client {
        name,
        version,
        part,
        peer: None,
        is_connected: false,
        session: None,
        taken: Vec::new(),
        sent: VecDeque::new(),
        next_id: 0,
        asked: Asked::Nothing,
        wants: true,
        owes: false,
    })
}

/// Publishers and readers.
pub fn enter(ledger: &mut Ledger, actors: &mut Vec<Box<dyn Actor>>) {
    for (name, version, qos, topic) in [
        ("mqtt-1", Version::V5, QoS::AtLeastOnce, "t/mqtt-1"),
        ("mqtt-2", Version::V5, QoS::ExactlyOnce, "t/mqtt-2"),
        ("mqtt311-1", Version::V311, QoS::AtLeastOnce, "t/mqtt311-1"),
        ("mqtt311-2", Version::V311, QoS::ExactlyOnce, "t/mqtt311-2"),
        // Their messages may share a frame of the log.
        ("shares-1", Version::V5, QoS::AtLeastOnce, "t/shared"),
        ("shares-2", Version::V311, QoS::AtLeastOnce, "t/shared"),
    ] {
        let publisher = ledger.publisher(name, sending(qos));
        let part = Part::Publishes {
            publisher,
            topic: topic.to_owned(),
            qos,
            retain: false,
        };
        actors.push(client(name, version, part));
    }
    for (name, version, qos, filter) in [
        ("reads-1", Version::V5, QoS::AtLeastOnce, "t/#"),
        ("reads-2", Version::V5, QoS::ExactlyOnce, "t/#"),
        ("reads311-2", Version::V311, QoS::ExactlyOnce, "t/#"),
        ("reads-retained", Version::V5, QoS::AtLeastOnce, RETAINED),
        ("reads-wills", Version::V5, QoS::ExactlyOnce, "w/#"),
        ("fickle", Version::V5, QoS::ExactlyOnce, "t/mqtt-1"),
        ("lags-1", Version::V5, QoS::AtLeastOnce, "t/#"),
        ("lags-2", Version::V5, QoS::ExactlyOnce, "t/#"),
        ("sleeps-1", Version::V5, QoS::AtLeastOnce, "t/mqtt311-1"),
        ("sleeps-2", Version::V5, QoS::ExactlyOnce, "t/mqtt-2"),
    ] {
        let reading = Reading {
            protocol: Protocol::Mqtt,
            is_exact: qos == QoS::ExactlyOnce,
            is_ordered: true,
        };
        let part = Part::Reads {
            reader: ledger.reader(name, reading),
            filter,
            qos,
            is_fickle: name == "fickle",
            sleeps: name.starts_with("sleeps"),
            lags: name.starts_with("lags"),
        };
        actors.push(client(name, version, part));
    }
}

const fn sending(qos: QoS) -> Sending {
    Sending {
        protocol: Protocol::Mqtt,
        is_exact: matches!(qos, QoS::ExactlyOnce),
    }
}

/// The publisher of a retained message.
pub fn retainer(ledger: &mut Ledger, actors: &mut Vec<Box<dyn Actor>>) {
    let publisher = ledger.publisher("retains", sending(QoS::ExactlyOnce));
    let part = Part::Publishes {
        publisher,
        topic: RETAINED.to_owned(),
        qos: QoS::ExactlyOnce,
        retain: true,
    };
    actors.push(client("retains", Version::V5, part));
}

/// What is retained.
pub fn retained(broker: &mut Broker) -> Option<Vec<u8>> {
    retained_of(broker, RETAINED)
}

/// The same of another topic.
pub fn retained_of(broker: &mut Broker, topic: &str) -> Option<Vec<u8>> {
    let peer = broker.client(Version::V5, "looks");
    let options = SubscribeOptions::new(QoS::AtMostOnce);
    broker.subscribe_with(peer, Version::V5, topic, options, &[]);
    let payloads = broker.packets(peer, Version::V5, |packet| match packet {
        Packet::Publish(publish) => Some(publish.payload.to_vec()),
        _ => None,
    });
    broker.cut(peer);
    payloads.into_iter().flatten().next()
}

/// What came, in a form of its own.
enum Came {
    Connected(bool),
    Message {
        qos: QoS,
        id: u16,
        topic: String,
        payload: Vec<u8>,
    },
    Acked(u16, bool),
    Received(u16, bool),
    Release(u16),
    Completed(u16),
    Subscribed(bool),
    Unsubscribed,
    Ended,
}

fn came(packet: &Packet<'_>) -> Option<Came> {
    Some(match packet {
        Packet::ConnAck(ack) if ack.reason.is_error() => Came::Ended,
        Packet::ConnAck(ack) => Came::Connected(ack.session_present),
        Packet::Publish(publish) => Came::Message {
            qos: publish.qos,
            id: publish.packet_id.map_or(0, PacketId::get),
            topic: publish.topic.to_owned(),
            payload: publish.payload.to_vec(),
        },
        Packet::PubAck(ack) => Came::Acked(ack.packet_id.get(), !ack.reason.is_error()),
        Packet::PubRec(ack) => Came::Received(ack.packet_id.get(), !ack.reason.is_error()),
        Packet::PubRel(ack) => Came::Release(ack.packet_id.get()),
        Packet::PubComp(ack) => Came::Completed(ack.packet_id.get()),
        Packet::SubAck(ack) => Came::Subscribed(ack.codes().all(|code| (code as u8) < 0x80)),
        Packet::UnsubAck(_) => Came::Unsubscribed,
        Packet::Disconnect(_) => Came::Ended,
        _ => return None,
    })
}

fn two(first: u8, id: u16) -> [u8; 4] {
    let [high, low] = id.to_be_bytes();
    [first, 2, high, low]
}

impl Client {
    fn connect(&mut self, stage: &mut Stage<'_>) {
        let shard = stage.shard();
        let quic = stage.below(3) == 0;
        let transport = if quic {
            TransportKind::Quic
        } else {
            TransportKind::Tcp
        };
        let peer = stage.broker.open_on(shard, transport, Vec::new());
        let properties = block(&[Property::SessionExpiryInterval(DAY_S)]);
        let mut connect = Connect {
            clean_start: false,
            keep_alive_s: 0,
            ..plain(self.version, self.name)
        };
        if self.version == Version::V5 {
            connect.properties = properties.properties();
        }
        self.peer = Some(peer);
        stage
            .broker
            .packet(peer, self.version, &Packet::Connect(connect));
    }

    fn send(&self, broker: &mut Broker, bytes: &[u8]) {
        if let Some(peer) = self.peer {
            broker.send(peer, bytes);
        }
    }

    fn send_publish(&self, broker: &mut Broker, sent: &Sent, dup: bool) {
        let Part::Publishes {
            topic, qos, retain, ..
        } = &self.part
        else {
            return;
        };
        let payload = sent.stamp.payload();
        let mut packet = Publish {
            packet_id: PacketId::new(sent.id),
            retain: *retain,
            dup,
            payload: &payload,
            ..publish(topic, "", *qos)
        };
        // The clock jumps, and neither expires what has a day nor holds back what waits a moment.
        let expiry = Property::MessageExpiryInterval(DAY_S);
        let delay = Property::UserProperty("x-opt-delivery-delay", "40");
        let properties = block(&[expiry, delay]);
        if self.version == Version::V5 {
            packet.properties = properties
                .publish_properties(PropertyContext::Publish)
                .expect("of a publication");
        }
        let packet = Packet::Publish(packet);
        if let Some(peer) = self.peer {
            broker.packet(peer, self.version, &packet);
        }
    }

    fn connected(&mut self, is_present: bool, stage: &mut Stage<'_>) {
        self.is_connected = true;
        if !is_present {
            if self.session.is_some() {
                let text = format!("the session of {}", self.name);
                (stage.ledger).complain(Promise::Remembered, Protocol::Mqtt, self.name, text);
            }
            self.taken.clear();
            if let Part::Reads { reader, filter, .. } = self.part {
                stage.ledger.leaves(reader, filter);
            }
        }
        self.session.get_or_insert_with(|| stage.ledger.mark());
        for sent in &self.sent {
            if sent.is_released {
                self.send(stage.broker, &two(0x62, sent.id));
            } else {
                self.send_publish(stage.broker, sent, is_present);
            }
        }
    }

    /// Reads what has come. With `answers` false it dies before it answers.
    fn read(&mut self, stage: &mut Stage<'_>, answers: bool) {
        let Some(peer) = self.peer else { return };
        let come = stage.broker.packets(peer, self.version, came);
        for one in come.into_iter().flatten() {
            match one {
                Came::Connected(is_present) => self.connected(is_present, stage),
                Came::Ended => {
                    stage.broker.cut(peer);
                    return self.lost(stage.ledger);
                }
                Came::Message {
                    qos,
                    id,
                    topic,
                    payload,
                } => {
                    let Part::Reads { reader, .. } = self.part else {
                        continue;
                    };
                    let known = self.taken.iter().any(|(taken, _)| *taken == id);
                    if qos == QoS::ExactlyOnce && known {
                        stage.ledger.told_again(reader, &payload);
                    } else {
                        stage.ledger.received(reader, Some(&topic), &payload);
                    }
                    if qos == QoS::ExactlyOnce && !known {
                        self.taken.push((id, payload));
                    }
                    if answers {
                        let first = if qos == QoS::ExactlyOnce { 0x50 } else { 0x40 };
                        self.send(stage.broker, &two(first, id));
                    }
                }
                Came::Release(id) => {
                    if let Part::Reads { reader, .. } = self.part
                        && let Some(at) = self.taken.iter().position(|(taken, _)| *taken == id)
                    {
                        // If the broker forgets this, it delivers again.
                        let (_, payload) = self.taken.remove(at);
                        stage.ledger.told_again(reader, &payload);
                    }
                    if answers {
                        self.send(stage.broker, &two(0x70, id));
                    }
                }
                Came::Acked(id, is_taken) => {
                    self.acknowledged(stage.ledger, id, is_taken);
                    self.sent.retain(|sent| sent.id != id);
                }
                Came::Received(id, is_taken) => {
                    self.acknowledged(stage.ledger, id, is_taken);
                    if is_taken {
                        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.id == id) {
                            sent.is_released = true;
                        }
                        if answers {
                            self.send(stage.broker, &two(0x62, id));
                        }
                    } else {
                        self.sent.retain(|sent| sent.id != id);
                    }
                }
                Came::Completed(id) => self.sent.retain(|sent| sent.id != id),
                Came::Subscribed(is_granted) => {
                    let Part::Reads { reader, filter, .. } = self.part else {
                        continue;
                    };
                    if self.asked == Asked::Subscribe && is_granted {
                        stage.ledger.granted(reader, filter);
                    }
                    self.asked = Asked::Nothing;
                }
                Came::Unsubscribed => {
                    let Part::Reads { reader, filter, .. } = self.part else {
                        continue;
                    };
                    if self.asked == Asked::Unsubscribe {
                        stage.ledger.left(reader, filter);
                    }
                    self.asked = Asked::Nothing;
                }
            }
        }
    }

    fn acknowledged(&self, ledger: &mut Ledger, id: u16, is_taken: bool) {
        if let Some(sent) = self.sent.iter().find(|sent| sent.id == id) {
            if is_taken {
                ledger.acknowledged(sent.stamp);
            } else {
                ledger.refused(sent.stamp);
            }
        }
    }

    fn publish(&mut self, stage: &mut Stage<'_>) {
        let Part::Publishes {
            publisher, topic, ..
        } = &self.part
        else {
            return;
        };
        let used: BTreeSet<u16> = self.sent.iter().map(|sent| sent.id).collect();
        // Few identifiers, which are used again soon.
        let mut id = self.next_id;
        loop {
            id = id % 7 + 1;
            if !used.contains(&id) {
                break;
            }
        }
        self.next_id = id;
        let sent = Sent {
            id,
            stamp: stage.ledger.send(*publisher, topic),
            is_released: false,
        };
        self.send_publish(stage.broker, &sent, false);
        self.sent.push_back(sent);
    }

    /// Asks for what it wants and has not.
    fn ask(&mut self, stage: &mut Stage<'_>) {
        let Part::Reads {
            reader,
            filter,
            qos,
            ..
        } = &self.part
        else {
            return;
        };
        let (Some(peer), Asked::Nothing) = (self.peer, self.asked) else {
            return;
        };
        let is_granted = stage.ledger.is_granted(*reader, filter);
        if self.wants && !is_granted {
            stage.ledger.asks(*reader, filter);
            self.asked = Asked::Subscribe;
            let options = SubscribeOptions::new(*qos);
            stage
                .broker
                .subscribe_with(peer, self.version, filter, options, &[]);
        } else if !self.wants && is_granted {
            stage.ledger.leaves(*reader, filter);
            self.asked = Asked::Unsubscribe;
            let mut bytes = vec![0xa2, 0, 0, 9];
            if self.version == Version::V5 {
                bytes.push(0);
            }
            bytes.extend_from_slice(&(filter.len() as u16).to_be_bytes());
            bytes.extend_from_slice(filter.as_bytes());
            bytes[1] = (bytes.len() - 2) as u8;
            self.send(stage.broker, &bytes);
        }
    }
}

impl Actor for Client {
    fn name(&self) -> &'static str {
        self.name
    }

    fn act(&mut self, stage: &mut Stage<'_>) {
        if self.peer.is_some_and(|peer| stage.broker.is_closed(peer)) {
            self.lost(stage.ledger);
        }
        if let Part::Reads { sleeps: true, .. } = self.part
            && stage.phase == Phase::Load
        {
            if self.cut(stage.broker) {
                self.lost(stage.ledger);
            }
            return;
        }
        if self.peer.is_none() {
            return self.connect(stage);
        }
        let lags = matches!(self.part, Part::Reads { lags: true, .. });
        let is_load = stage.phase == Phase::Load;
        let dies = is_load && stage.below(if lags { 15 } else { 60 }) == 0;
        if lags && !is_load && std::mem::take(&mut self.owes) {
            // It gets that again.
            self.cut(stage.broker);
            return self.lost(stage.ledger);
        }
        self.owes = lags && is_load;
        self.read(stage, !dies && !self.owes);
        if dies {
            self.cut(stage.broker);
            return self.lost(stage.ledger);
        }
        if !self.is_connected {
            return;
        }
        match self.part {
            Part::Publishes { .. } => {
                let count = stage.below(3) as usize;
                let free = WINDOW.saturating_sub(self.sent.len());
                for _ in 0..count.min(free) {
                    if stage.phase == Phase::Load {
                        self.publish(stage);
                    }
                }
            }
            Part::Reads { is_fickle, .. } => {
                if is_fickle && stage.below(20) == 0 && stage.phase == Phase::Load {
                    self.wants = !self.wants;
                }
                self.ask(stage);
            }
        }
    }

    fn lost(&mut self, _: &mut Ledger) {
        self.peer = None;
        self.is_connected = false;
        self.asked = Asked::Nothing;
    }

    fn cut(&mut self, broker: &mut Broker) -> bool {
        let Some(peer) = self.peer.filter(|peer| !broker.is_closed(*peer)) else {
            return false;
        };
        broker.cut(peer);
        true
    }

    fn excuse(&mut self, since: Moment) {
        self.session.take_if(|moment| *moment >= since);
    }

    fn is_idle(&self) -> bool {
        self.is_connected && self.sent.is_empty() && self.asked == Asked::Nothing
    }
}
