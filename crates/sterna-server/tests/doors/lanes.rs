//! Any interleaving of packets over the streams of a connection, with streams that are aborted and
//! finished at any moment, against a reference model of the session: what was delivered, what is
//! outstanding, what is subscribed.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sterna_mqtt::packet::{Ack, Publish, SubscribeOptions, encode_subscribe};
use sterna_mqtt::{
    Framer, MAX_PACKET_BYTES, Packet, PacketId, Properties, QoS, ReasonCode, Version,
};
use sterna_net::{StreamId, TransportKind};

use crate::fixture::{Broker, Peer, encode, plain, publish};

const V5: Version = Version::V5;
const CONTROL: StreamId = StreamId::FIRST;
const FILTERS: usize = 3;

/// A step of a client, a stream or somebody else. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    /// PUBLISH to `in`, cut after so many bytes; the rest comes with the stream's next packet.
    Publish {
        lane: usize,
        qos: QoS,
        cut: usize,
    },
    /// The client repeats a QoS 2 PUBLISH whose PUBREC it may have missed, on any stream.
    Repeat {
        lane: usize,
        which: usize,
    },
    /// PUBREL for one of them, on any stream if its own is gone.
    Release {
        lane: usize,
        which: usize,
    },
    Subscribe {
        lane: usize,
        filter: usize,
    },
    Unsubscribe {
        lane: usize,
        filter: usize,
    },
    Open {
        bidirectional: bool,
    },
    Abort {
        lane: usize,
    },
    Finish {
        lane: usize,
    },
    /// Somebody publishes to one of the filters.
    Feed {
        filter: usize,
        qos: QoS,
    },
    /// The client answers a delivery, on any stream.
    Answer {
        lane: usize,
        which: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let qos = || {
        prop_oneof![
            Just(QoS::AtMostOnce),
            Just(QoS::AtLeastOnce),
            Just(QoS::ExactlyOnce)
        ]
    };
    let number = || 0_usize..1000;
    let step = prop_oneof![
        4 => (number(), qos(), 0_usize..40)
            .prop_map(|(lane, qos, cut)| Step::Publish { lane, qos, cut }),
        1 => (number(), number()).prop_map(|(lane, which)| Step::Repeat { lane, which }),
        2 => (number(), number()).prop_map(|(lane, which)| Step::Release { lane, which }),
        2 => (number(), 0..FILTERS).prop_map(|(lane, filter)| Step::Subscribe { lane, filter }),
        1 => (number(), 0..FILTERS).prop_map(|(lane, filter)| Step::Unsubscribe { lane, filter }),
        2 => any::<bool>().prop_map(|bidirectional| Step::Open { bidirectional }),
        2 => number().prop_map(|lane| Step::Abort { lane }),
        1 => number().prop_map(|lane| Step::Finish { lane }),
        4 => (0..FILTERS, qos()).prop_map(|(filter, qos)| Step::Feed { filter, qos }),
        4 => (number(), number()).prop_map(|(lane, which)| Step::Answer { lane, which }),
    ];
    prop::collection::vec(step, 1..80)
}

/// A stream as the client sees it.
#[derive(Default)]
struct Lane {
    /// Bytes of a packet that were not sent yet, and what the packet does once it is whole.
    rest: Option<(Vec<u8>, Arrival)>,
    framer: Framer,
}

/// What the broker does when a packet is whole.
#[derive(Clone, Debug)]
enum Arrival {
    Message(Vec<u8>),
    Second(u16, Vec<u8>),
    Release(u16),
    Subscribed(usize),
    Unsubscribed(usize),
    Answer(u16),
    Completed(u16),
}

/// How far a delivery to the client is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Delivery {
    /// PUBLISH came; to be answered with PUBACK or PUBREC.
    Came(QoS),
    /// PUBREC was sent and PUBREL came; to be answered with PUBCOMP.
    Released,
    /// Answered, and nothing more to do until the broker says so.
    Answered,
}

struct Model {
    broker: Broker,
    peer: Peer,
    watcher: Peer,
    feeder: Peer,
    lanes: BTreeMap<StreamId, Lane>,
    next_stream: [u64; 2],
    next_id: u16,
    /// QoS 2 messages that the broker has seen and that are not released.
    received: BTreeMap<u16, Vec<u8>>,
    /// Those that were sent at all, with the stream that they were sent on.
    sent: BTreeMap<u16, (StreamId, Vec<u8>)>,
    /// What the watcher has to get, in any order between streams.
    expected: Vec<Vec<u8>>,
    watched: Vec<Vec<u8>>,
    subscribed: BTreeSet<usize>,
    fed: Vec<Vec<u8>>,
    got: Vec<Vec<u8>>,
    outstanding: BTreeMap<u16, Delivery>,
    payloads: u32,
}

impl Model {
    fn new() -> Self {
        let mut broker = Broker::new();
        let watcher = broker.client(V5, "watcher");
        broker.subscribe(watcher, V5, "in", QoS::AtMostOnce);
        let feeder = broker.client(V5, "feeder");
        let peer = broker.open_on(0, TransportKind::Quic, Vec::new());
        broker.packet(peer, V5, &Packet::Connect(plain(V5, "streams")));
        assert_eq!(broker.told(peer, V5), ["CONNACK Success"]);
        Self {
            broker,
            peer,
            watcher,
            feeder,
            lanes: BTreeMap::from([(CONTROL, Lane::default())]),
            next_stream: [4, 2],
            next_id: 1,
            received: BTreeMap::new(),
            sent: BTreeMap::new(),
            expected: Vec::new(),
            watched: Vec::new(),
            subscribed: BTreeSet::new(),
            fed: Vec::new(),
            got: Vec::new(),
            outstanding: BTreeMap::new(),
            payloads: 0,
        }
    }

    fn lane(&self, which: usize) -> StreamId {
        *self
            .lanes
            .keys()
            .nth(which % self.lanes.len())
            .expect("control is always there")
    }

    fn payload(&mut self) -> Vec<u8> {
        self.payloads += 1;
        format!("message {}", self.payloads).into_bytes()
    }

    fn id(&mut self) -> PacketId {
        let id = self.next_id;
        self.next_id += 1;
        PacketId::new(id).expect("not zero")
    }

    /// Sends a packet on a stream, behind what is still to come there; `cut` bytes of it at first.
    fn send(&mut self, stream: StreamId, bytes: &[u8], arrival: Arrival, cut: Option<usize>) {
        self.complete(stream);
        let at = cut.map_or(bytes.len(), |cut| cut % bytes.len());
        if at > 0 {
            self.broker.send_on(self.peer, stream, &bytes[..at]);
        }
        if at == bytes.len() {
            self.arrived(stream, arrival);
        } else if let Some(lane) = self.lanes.get_mut(&stream) {
            lane.rest = Some((bytes[at..].to_vec(), arrival));
        }
        self.read();
    }

    /// Sends the rest of a packet that was cut.
    fn complete(&mut self, stream: StreamId) {
        let rest = self
            .lanes
            .get_mut(&stream)
            .and_then(|lane| lane.rest.take());
        if let Some((rest, arrival)) = rest {
            self.broker.send_on(self.peer, stream, &rest);
            self.arrived(stream, arrival);
            self.read();
        }
    }

    fn arrived(&mut self, _stream: StreamId, arrival: Arrival) {
        match arrival {
            Arrival::Message(payload) => self.expected.push(payload),
            Arrival::Second(id, payload) => {
                if self.received.insert(id, payload.clone()).is_none() {
                    self.expected.push(payload);
                }
            }
            Arrival::Release(id) => {
                self.received.remove(&id);
                self.sent.remove(&id);
            }
            Arrival::Subscribed(filter) => drop(self.subscribed.insert(filter)),
            Arrival::Unsubscribed(filter) => drop(self.subscribed.remove(&filter)),
            Arrival::Answer(id) => {
                // PUBREC brings PUBREL back, which `read` sees; PUBACK is the end.
                if self.outstanding.get(&id) == Some(&Delivery::Came(QoS::AtLeastOnce)) {
                    self.outstanding.remove(&id);
                } else {
                    self.outstanding.insert(id, Delivery::Answered);
                }
            }
            Arrival::Completed(id) => drop(self.outstanding.remove(&id)),
        }
    }

    /// Reads what the broker has sent, everywhere.
    fn read(&mut self) {
        let streams: Vec<StreamId> = self.lanes.keys().copied().collect();
        for stream in streams {
            let bytes = self.broker.take_on(self.peer, stream);
            let lane = self.lanes.get_mut(&stream).expect("open");
            let mut input = &bytes[..];
            while let Some(frame) = lane
                .framer
                .next(&mut input, MAX_PACKET_BYTES)
                .expect("MQTT")
            {
                match Packet::decode(&frame, V5).expect("a legal packet") {
                    Packet::Publish(message) => {
                        self.got.push(message.payload.to_vec());
                        if let Some(id) = message.packet_id {
                            let came = Delivery::Came(message.qos);
                            let known = self.outstanding.insert(id.get(), came);
                            assert_eq!(known, None, "identifiers are unique in the session");
                        }
                    }
                    Packet::PubRel(release) => {
                        let id = release.packet_id.get();
                        assert!(self.outstanding.contains_key(&id));
                        self.outstanding.insert(id, Delivery::Released);
                    }
                    Packet::Disconnect(end) => panic!("DISCONNECT {:?}", end.reason),
                    _ => {}
                }
            }
        }
        // Nothing may come on a stream that is gone or cannot carry it.
        let open = |stream: &StreamId| self.lanes.contains_key(stream) && stream.is_bidirectional();
        let strays: Vec<_> = self.broker.wires[0]
            .sent
            .iter()
            .filter(|((id, stream), bytes)| {
                *id == self.peer.id && !open(stream) && !bytes.is_empty()
            })
            .collect();
        assert!(strays.is_empty(), "sent where nobody reads: {strays:?}");
        let watched = self
            .broker
            .packets(self.watcher, V5, |packet| match packet {
                Packet::Publish(message) => message.payload.to_vec(),
                other => panic!("{other:?}"),
            });
        self.watched.extend(watched);
    }

    fn publish(&mut self, stream: StreamId, message: &Publish<'_>, cut: Option<usize>) {
        let bytes = encode(V5, &Packet::Publish(*message));
        let payload = message.payload.to_vec();
        let arrival = match (message.qos, message.packet_id) {
            (QoS::ExactlyOnce, Some(id)) => Arrival::Second(id.get(), payload),
            _ => Arrival::Message(payload),
        };
        self.send(stream, &bytes, arrival, cut);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish { lane, qos, cut } => {
                let stream = self.lane(lane);
                let payload = self.payload();
                let packet_id = qos.is_acknowledged().then(|| self.id());
                let message = Publish {
                    packet_id,
                    payload: &payload,
                    ..publish("in", "", qos)
                };
                if let (QoS::ExactlyOnce, Some(id)) = (qos, packet_id) {
                    self.sent.insert(id.get(), (stream, payload.clone()));
                }
                self.publish(stream, &message, (cut > 0).then_some(cut));
            }
            Step::Repeat { lane, which } => {
                let Some((id, (own, payload))) = self.choose(which) else {
                    return;
                };
                // On its own stream as long as that is open: identifiers belong to streams.
                let stream = self.own_or(own, lane);
                self.complete(stream);
                let message = Publish {
                    dup: true,
                    packet_id: PacketId::new(id),
                    payload: &payload,
                    ..publish("in", "", QoS::ExactlyOnce)
                };
                self.sent.insert(id, (stream, payload.clone()));
                self.publish(stream, &message, None);
            }
            Step::Release { lane, which } => {
                let Some((id, (own, _))) = self.choose(which) else {
                    return;
                };
                let stream = self.own_or(own, lane);
                self.complete(stream);
                if self.received.contains_key(&id) {
                    let ack = Ack::new(PacketId::new(id).expect("not zero"), ReasonCode::Success);
                    let bytes = encode(V5, &Packet::PubRel(ack));
                    self.send(stream, &bytes, Arrival::Release(id), None);
                }
            }
            Step::Subscribe { lane, filter } => {
                let stream = self.lane(lane);
                let name = format!("s/{filter}");
                let mut out = bytes::BytesMut::new();
                encode_subscribe(
                    V5,
                    self.id(),
                    Properties::EMPTY,
                    [(&*name, SubscribeOptions::new(QoS::ExactlyOnce))].into_iter(),
                    MAX_PACKET_BYTES,
                    &mut out,
                )
                .expect("fits");
                self.send(stream, &out, Arrival::Subscribed(filter), None);
            }
            Step::Unsubscribe { lane, filter } => {
                let stream = self.lane(lane);
                let name = format!("s/{filter}");
                let id = self.id().get().to_be_bytes();
                let mut bytes = vec![0xA2, 5 + name.len() as u8, id[0], id[1], 0, 0];
                bytes.push(name.len() as u8);
                bytes.extend_from_slice(name.as_bytes());
                self.send(stream, &bytes, Arrival::Unsubscribed(filter), None);
            }
            Step::Open { bidirectional } => {
                let next = &mut self.next_stream[usize::from(!bidirectional)];
                let stream = StreamId(*next);
                *next += 4;
                self.lanes.insert(stream, Lane::default());
            }
            Step::Abort { lane } => {
                let stream = self.lane(lane);
                if stream != CONTROL {
                    // What was not whole is lost with it.
                    self.read();
                    self.lanes.remove(&stream);
                    self.broker.abort(self.peer, stream);
                }
            }
            Step::Finish { lane } => {
                let stream = self.lane(lane);
                if stream != CONTROL {
                    self.complete(stream);
                    self.lanes.remove(&stream);
                    self.broker.finish(self.peer, stream);
                }
            }
            Step::Feed { filter, qos } => {
                let payload = self.payload();
                let text = String::from_utf8(payload.clone()).expect("text");
                let topic = format!("s/{filter}");
                self.broker.publish(self.feeder, V5, &topic, &text, qos);
                if qos == QoS::ExactlyOnce {
                    self.broker.send(self.feeder, &[0x62, 2, 0, 7]);
                }
                self.broker.take(self.feeder);
                if self.subscribed.contains(&filter) {
                    self.fed.push(payload);
                }
            }
            Step::Answer { lane, which } => {
                let ready: Vec<(u16, Delivery)> = self
                    .outstanding
                    .iter()
                    .filter(|(_, state)| **state != Delivery::Answered)
                    .map(|(id, state)| (*id, *state))
                    .collect();
                if ready.is_empty() {
                    return;
                }
                let (id, state) = ready[which % ready.len()];
                let ack = Ack::new(PacketId::new(id).expect("not zero"), ReasonCode::Success);
                let (packet, arrival) = match state {
                    Delivery::Came(QoS::AtLeastOnce) => (Packet::PubAck(ack), Arrival::Answer(id)),
                    Delivery::Came(_) => (Packet::PubRec(ack), Arrival::Answer(id)),
                    _ => (Packet::PubComp(ack), Arrival::Completed(id)),
                };
                let stream = self.lane(lane);
                self.send(stream, &encode(V5, &packet), arrival, None);
            }
        }
        self.read();
    }

    /// One of the QoS 2 messages that were sent and not released.
    fn choose(&self, which: usize) -> Option<(u16, (StreamId, Vec<u8>))> {
        let ids: Vec<_> = self.sent.keys().collect();
        let id = **ids.get(which % ids.len().max(1))?;
        Some((id, self.sent[&id].clone()))
    }

    fn own_or(&self, own: StreamId, lane: usize) -> StreamId {
        if self.lanes.contains_key(&own) {
            own
        } else {
            self.lane(lane)
        }
    }

    fn check(&mut self) {
        self.read();
        assert!(!self.broker.is_closed(self.peer));
        let sorted = |list: &[Vec<u8>]| {
            let mut list = list.to_vec();
            list.sort();
            list
        };
        assert_eq!(
            sorted(&self.watched),
            sorted(&self.expected),
            "what was published"
        );
        assert_eq!(
            sorted(&self.got),
            sorted(&self.fed),
            "what was subscribed to"
        );
        let (sessions, _) = self.broker.sessions(0);
        let session = sessions
            .iter()
            .find(|session| session.name.id() == "streams")
            .expect("connected");
        assert_eq!(session.subscriptions, self.subscribed.len());
        assert_eq!(session.queue.pending, 0);
        assert_eq!(session.queue.unacknowledged, self.outstanding.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// [MQTT-4.3.3-10] [MQTT-4.3.3-12]
    #[test]
    fn streams_that_come_and_go_keep_the_ledger(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step);
        }
        model.check();
        // Everything can still be completed, over whatever streams are left.
        let lanes: Vec<StreamId> = model.lanes.keys().copied().collect();
        for stream in lanes {
            model.complete(stream);
        }
        for _ in 0..2 * model.outstanding.len() {
            model.step(&Step::Answer { lane: 0, which: 0 });
        }
        prop_assert!(model.outstanding.is_empty());
        model.check();
    }
}
