//! Messages on their way to a client.

use sterna_broker::{ConsumerId, Delivery, Next, Outcome, Qos, SessionKey, Unacknowledged};
use sterna_mqtt::server::{NotSent, OutgoingPublish};
use sterna_mqtt::{Lane, LaneWriter as _, MqttSession, PacketId, ReasonCode};
use sterna_net::StreamId;

use super::Door;
use super::acknowledge::Acknowledgement;
use super::admission::wire_qos;
use super::client::{Client, DATAGRAMS, connection};
use crate::config::Protocol;
use crate::context::Context;
use crate::metrics::DropReason;
use crate::session::{self, SessionState, packet_id_at};

impl Door {
    /// Sends messages that wait for a session, as far as its client's window and the transport allow.
    pub(crate) fn deliver(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        let mut found = false;
        self.with_client(cx, connection(consumer), |door, cx, client| {
            // Not yet connected (the CONNACK goes first), or no longer.
            if client.session() == Some(session) {
                found = true;
                door.drain(cx, client, session);
            }
        });
        if !found {
            cx.broker.park(session);
        }
    }

    fn drain(&mut self, cx: &mut Context<'_>, client: &mut Client, session: SessionKey) {
        let now_ms = cx.now_ms;
        let mut unsent_bytes = cx.net.unsent_bytes(client.id);
        let mut delays = cx.meters.delays(Protocol::Mqtt);
        for _ in 0..cx.broker.messages_of_visit() {
            let Some(next) = cx.broker.next(now_ms, session) else {
                return;
            };
            let qos = next.qos();
            let numbering = || {
                let state = session::mqtt(next.broker(), session)?;
                if !client.engine.can_send(state, wire_qos(qos)) {
                    return None;
                }
                Numbering::of(&next, state, now_ms)
            };
            let has_room = unsent_bytes + self.out.len() < self.high_watermark_bytes;
            // At QoS 0 the state of the session says nothing.
            let numbering = match qos {
                _ if !has_room => None,
                Qos::AtMostOnce => (client.engine.is_connected()).then_some(Numbering::Ascending),
                Qos::AtLeastOnce | Qos::ExactlyOnce => numbering(),
            };
            let Some(numbering) = numbering else {
                drop(next);
                // An acknowledgement or the transport lets it go on.
                client.parked = true;
                cx.broker.park(session);
                return;
            };
            let Some(delivery) = next.take() else {
                return;
            };
            let datagram = client.datagrams
                && qos == Qos::AtMostOnce
                && delivery.message.payload().len() < sterna_net::SHARE_BYTES;
            let lane = if datagram {
                Lane::DATAGRAMS
            } else {
                client.delivery_lane(delivery.hint)
            };
            // A message of another shard may be a few milliseconds ahead of this turn's clock. The rest of
            // its interval is never more than the whole. [MQTT-3.3.2-6]
            let sent_ms = now_ms.max(delivery.message.published_ms());
            let publish = OutgoingPublish {
                packet_id: numbering.packet_id(),
                ..outgoing(&delivery, lane)
            };
            let out = self.out.buffer(lane);
            let sent = if qos == Qos::AtMostOnce {
                client.engine.publish_at_most_once(&publish, sent_ms, out)
            } else {
                let Some(state) = session::mqtt_mut(cx.broker, session) else {
                    return;
                };
                client.engine.publish(state, &publish, sent_ms, out)
            };
            match sent {
                Ok(sent) => {
                    delays.delivered(&delivery, now_ms);
                    self.sent(cx, client, lane, &delivery, sent.append_payload);
                    if sent.append_payload {
                        // The transport has the payload already, past the gathered output.
                        unsent_bytes = cx.net.unsent_bytes(client.id);
                    }
                    if datagram {
                        let stream = client.delivery_lane(delivery.hint);
                        self.out
                            .send_datagram(cx.net, client.id, DATAGRAMS, StreamId(stream.0));
                    }
                }
                // [MQTT-3.1.2-25]
                Err(NotSent::TooLarge) => {
                    too_large(cx, client, &delivery);
                    cx.broker
                        .settle(now_ms, session, delivery.tag, Outcome::Accepted);
                }
                Err(NotSent::NotNow) => {
                    cx.broker
                        .settle(now_ms, session, delivery.tag, Outcome::Released);
                    client.parked = true;
                    cx.broker.park(session);
                    return;
                }
            }
        }
    }

    /// Sends messages again that an earlier connection left unacknowledged, as far as the client's window and the
    /// transport allow. [`resume`](Self::resume) goes on with the rest. [MQTT-4.4.0-1]
    pub(super) fn resend(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        let Some(session) = client.session() else {
            return;
        };
        let now_ms = cx.now_ms;
        while cx.net.unsent_bytes(client.id) + self.out.len() < self.high_watermark_bytes {
            let Some(state) = session::mqtt_mut(cx.broker, session) else {
                return;
            };
            let out = self.out.buffer(Lane::CONTROL);
            let Some(again) = client.engine.next_resend(state, out) else {
                return;
            };
            let entry = cx.broker.unacknowledged_by_tag(session, again.tag);
            let Some(state) = session::mqtt_mut(cx.broker, session) else {
                return;
            };
            let out = self.out.buffer(Lane::CONTROL);
            let Some(Unacknowledged::Sent(delivery)) = entry else {
                client.engine.give_up(state, again.packet_id, out);
                continue;
            };
            let publish = outgoing(&delivery, Lane::CONTROL);
            match client
                .engine
                .resend(state, again.packet_id, &publish, now_ms, out)
            {
                Ok(sent) => self.sent(cx, client, Lane::CONTROL, &delivery, sent.append_payload),
                Err(NotSent::TooLarge) => {
                    too_large(cx, client, &delivery);
                    cx.broker
                        .settle(now_ms, session, again.tag, Outcome::Accepted);
                }
                Err(NotSent::NotNow) => return,
            }
        }
    }

    /// Sends again, on the control stream, what a client leaves unread of another. New messages above QoS 0 wait behind
    /// that, so that each topic keeps its order.
    pub(super) fn send_again(&mut self, cx: &mut Context<'_>, client: &mut Client, lane: Lane) {
        let session = client.session();
        let Some(state) = session.and_then(|session| session::mqtt_mut(cx.broker, session)) else {
            return;
        };
        let mut released = Vec::new();
        state.resend_lane(lane, |packet_id| released.push(packet_id));
        for packet_id in released {
            let release = Acknowledgement::PubRel(Lane::CONTROL, packet_id, ReasonCode::Success);
            // That the client has the message may still have to be kept.
            self.acknowledge_again(cx, client, release);
        }
        self.resume(cx, client);
    }

    /// Goes on to send, because of an acknowledgement or because the transport has room: first messages of an
    /// earlier connection, then new ones.
    pub(super) fn resume(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        let Some(session) = client.session() else {
            return;
        };
        if session::mqtt(cx.broker, session).is_some_and(MqttSession::has_resends) {
            self.resend(cx, client);
        }
        if std::mem::take(&mut client.parked) {
            cx.broker.unpark(session);
        }
    }

    #[inline]
    fn sent(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        delivery: &Delivery,
        append_payload: bool,
    ) {
        client.sips.tally.sent += 1;
        self.counts.messages_sent += 1;
        self.counts.publish_sent += 1;
        self.counts.publish_bytes_sent += delivery.message.payload().len() as u64;
        if append_payload {
            let payload = delivery.message.payload_shared();
            self.out
                .append_shared(cx.net, client.id, StreamId(lane.0), payload);
        }
    }

    /// A client has a message of QoS 2, so that it is not sent again.
    pub(super) fn handed_over(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        lane: Lane,
        packet_id: PacketId,
        tag: Option<u64>,
        reason: ReasonCode,
    ) {
        let Some(session) = client.session() else {
            return;
        };
        let (_, token) =
            cx.appended(|cx| tag.is_some_and(|tag| cx.broker.handed_over(session, tag)));
        let release = Acknowledgement::PubRel(lane, packet_id, reason);
        self.acknowledge_kept(cx, client, token, release);
    }

    /// A client is done with a delivery.
    pub(super) fn delivered(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        tag: u64,
        reason: ReasonCode,
    ) {
        let Some(session) = client.session() else {
            return;
        };
        let outcome = if reason.is_error() {
            Outcome::Rejected(reason as u8)
        } else {
            Outcome::Accepted
        };
        cx.broker.settle(cx.now_ms, session, tag, outcome);
        self.resume(cx, client);
    }
}

/// Counts a message that is larger than the client takes. [MQTT-3.1.2-25]
fn too_large(cx: &Context<'_>, client: &Client, delivery: &Delivery) {
    let reason = DropReason::TooLarge;
    (cx.meters).drop_delivery(Protocol::Mqtt, &client.name, &delivery.message, reason);
}

fn outgoing(delivery: &Delivery, lane: Lane) -> OutgoingPublish<'_> {
    let message = &*delivery.message;
    OutgoingPublish {
        tag: delivery.tag,
        lane,
        qos: wire_qos(delivery.qos),
        packet_id: None,
        dup: delivery.redelivered,
        retain: delivery.retain,
        topic: message.topic_bytes(),
        properties: message.properties(),
        expires_at_ms: message.expires_at_ms(),
        identifiers: delivery.identifiers(),
        payload: message.payload(),
    }
}

/// The Packet Identifier of a new delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Numbering {
    /// The next that is free: the session ends with the process, or the message needs none.
    Ascending,
    Chosen(PacketId),
}

impl Numbering {
    /// The identifier of the next message of a session; `None` where it has to wait, because another message has it.
    ///
    /// Places that are 65,535 apart have one identifier. Messages without a place, as retained copies, get those that
    /// places of the next hours do not get. The time is part of them, because the client may still have some of an
    /// earlier process. [MQTT-2.2.1-4] [MQTT-4.4.0-1]
    fn of(next: &Next<'_, SessionState>, state: &MqttSession, now_ms: u64) -> Option<Self> {
        let Some(place) = next.place() else {
            return Some(Self::Ascending);
        };
        let packet_id = if place > 0 {
            Some(packet_id_at(place)).filter(|&packet_id| state.outgoing(packet_id).is_none())
        } else {
            let far = next.broker().next_position() + APART + now_ms % APART;
            // Those that are in use are not looked at one by one.
            state.free_from(packet_id_at(far + state.outgoing_len() as u64))
        };
        packet_id.map(Self::Chosen)
    }

    const fn packet_id(self) -> Option<PacketId> {
        match self {
            Self::Ascending => None,
            Self::Chosen(packet_id) => Some(packet_id),
        }
    }
}

/// Distance of the identifiers of messages without a place from those of the next places: a third of all.
const APART: u64 = 21_845;
