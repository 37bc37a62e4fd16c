//! Messages on their way to the client.

use bytes::{BufMut, BytesMut};

use super::Connection;
use crate::alias::AliasUse;
use crate::packet::{Ack, encode_ack, publish};
use crate::session::Stage;
use crate::topic::MAX_TOPIC_BYTES;
use crate::wire::{packet_bytes, put_binary, put_varint, varint_bytes};
use crate::{
    Lane, MAX_REMAINING_BYTES, MqttSession, PacketId, PacketType, PropertyId, QoS, ReasonCode,
};

/// A message for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutgoingPublish<'a> {
    /// The caller's name of the delivery; comes back with `Event::Delivered`.
    pub tag: u64,
    /// The lane on which it is sent. Topic Aliases are used on the control lane only.
    pub lane: Lane,
    /// QoS of this delivery.
    pub qos: QoS,
    /// The identifier that a new delivery above QoS 0 has to have; `None` for the next that is free.
    pub packet_id: Option<PacketId>,
    /// Whether a new delivery above QoS 0 may have been sent before, on a connection that the session knows nothing of.
    pub dup: bool,
    /// The RETAIN flag.
    pub retain: bool,
    /// Topic Name in UTF-8. It was checked when it came in, and is not checked again.
    pub topic: &'a [u8],
    /// Properties as [`PublishProperties::forward`](crate::PublishProperties::forward) gives them,
    /// in their encoding.
    pub properties: &'a [u8],
    /// Time at which the message expires, in milliseconds since the Unix epoch.
    pub expires_at_ms: Option<u64>,
    /// Subscription Identifiers of the subscriptions that matched.
    pub identifiers: &'a [u32],
    /// The application's data.
    pub payload: &'a [u8],
}

/// A PUBLISH that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Packet Identifier; `None` with QoS 0.
    pub packet_id: Option<PacketId>,
    /// Whether the payload is left to the caller. It then has to follow the buffer directly, before
    /// other bytes on that lane.
    pub append_payload: bool,
}

/// Why a PUBLISH was not written. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotSent {
    /// Larger than the client takes, or than a packet can be. Treat it as delivered
    /// ([MQTT-3.1.2-25]).
    TooLarge,
    /// [`Connection::can_send`] says no, or the identifier that it has to have is in use; try again after an
    /// acknowledgement.
    NotNow,
}

/// A delivery of an earlier connection that is to be sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resend {
    /// Packet Identifier.
    pub packet_id: PacketId,
    /// The caller's name of the delivery.
    pub tag: u64,
    /// QoS of the delivery: 1 or 2.
    pub qos: QoS,
}

/// Fields of a PUBLISH besides the message.
struct Head<'a> {
    topic: &'a [u8],
    alias: Option<u16>,
    packet_id: Option<PacketId>,
    dup: bool,
}

impl Connection {
    /// Whether a new message of this QoS may be sent now. The connection must be up. Above QoS 0,
    /// the client's Receive Maximum must leave room. All messages of an earlier connection must
    /// have been sent again, too. Ask again after each `Event::Delivered`.
    #[must_use]
    pub fn can_send(&self, session: &MqttSession, qos: QoS) -> bool {
        if !qos.is_acknowledged() {
            return self.is_connected();
        }
        // [MQTT-4.9.0-2] [MQTT-4.9.0-3] nothing else is ever held back. The span keeps a client
        // that acknowledges all messages but one from growing the session without end.
        self.has_quota(session)
            && !session.has_resends()
            && session.span() < 4 * usize::from(self.send_quota) + 64
    }

    /// Writes a PUBLISH for a new delivery.
    ///
    /// The client's version and limits decide which fields are written: identifier, Topic Alias,
    /// remaining lifetime, Subscription Identifiers, properties.
    ///
    /// # Errors
    ///
    /// See [`NotSent`].
    pub fn publish(
        &mut self,
        session: &mut MqttSession,
        delivery: &OutgoingPublish<'_>,
        now_ms: u64,
        out: &mut BytesMut,
    ) -> Result<Sent, NotSent> {
        if !delivery.qos.is_acknowledged() {
            return self.publish_at_most_once(delivery, now_ms, out);
        }
        // [MQTT-3.3.4-7] [MQTT-3.3.4-9] [MQTT-4.9.0-2]
        if !self.can_send(session, delivery.qos) {
            return Err(NotSent::NotNow);
        }
        // The check comes before the identifier is taken, so that nothing has to be undone.
        if self.publish_bytes(delivery, delivery.topic, None) > self.client_max() {
            return Err(NotSent::TooLarge);
        }
        let stage = if delivery.qos == QoS::ExactlyOnce {
            Stage::PublishQoS2
        } else {
            Stage::PublishQoS1
        };
        let packet_id = match delivery.packet_id {
            Some(packet_id) => session
                .allocate_as(packet_id, delivery.tag, stage)
                .then_some(packet_id),
            None => session.allocate(delivery.tag, stage),
        };
        let packet_id = packet_id.ok_or(NotSent::NotNow)?;
        if !delivery.lane.is_control() {
            session.sent_on(packet_id, delivery.lane);
        }
        Ok(self.write_new(delivery, Some(packet_id), now_ms, out))
    }

    /// As [`publish`](Self::publish) for a delivery of QoS 0, which needs nothing of the session. Its QoS is not
    /// looked at.
    ///
    /// # Errors
    ///
    /// See [`NotSent`].
    #[inline]
    pub fn publish_at_most_once(
        &mut self,
        delivery: &OutgoingPublish<'_>,
        now_ms: u64,
        out: &mut BytesMut,
    ) -> Result<Sent, NotSent> {
        if !self.is_connected() {
            return Err(NotSent::NotNow);
        }
        if self.publish_bytes(delivery, delivery.topic, None) > self.client_max() {
            return Err(NotSent::TooLarge);
        }
        Ok(self.write_new(delivery, None, now_ms, out))
    }

    #[inline]
    fn write_new(
        &mut self,
        delivery: &OutgoingPublish<'_>,
        packet_id: Option<PacketId>,
        now_ms: u64,
        out: &mut BytesMut,
    ) -> Sent {
        let (topic, alias) = self.name(delivery);
        // [MQTT-4.3.1-1] [MQTT-4.3.2-2] [MQTT-4.3.3-2] [MQTT-3.3.1-2] [MQTT-3.3.1-3] a new delivery has no DUP
        // flag, with any flag in the publisher's packet. [MQTT-3.3.1-1] one that may be a repetition has it
        let head = Head {
            topic,
            alias,
            packet_id,
            dup: delivery.dup && packet_id.is_some(),
        };
        self.write(delivery, &head, now_ms, out)
    }

    /// The next message of an earlier connection that is to be sent again, in the original order.
    /// `None` if there is none, or if the client's Receive Maximum leaves no room for it now.
    /// PUBREL packets due before it are written to `out`, the buffer of the control lane.
    ///
    /// Answer with [`Connection::resend`], or with [`Connection::give_up`] if the message is gone.
    pub fn next_resend(&self, session: &mut MqttSession, out: &mut BytesMut) -> Option<Resend> {
        // [MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-4.8.2-4] [MQTT311-2.3.1-3] [MQTT311-4.4.0-1]
        // [MQTT311-4.6.0-1]
        while self.is_connected() {
            let next = session.next_resend()?;
            let qos = match next.stage {
                Stage::PublishQoS1 => QoS::AtLeastOnce,
                Stage::PublishQoS2 => QoS::ExactlyOnce,
                // [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.3.3-13]
                Stage::Release => {
                    self.release(session, next.packet_id, out);
                    continue;
                }
                Stage::Subscribe | Stage::Unsubscribe => {
                    session.forget_outgoing(next.packet_id);
                    continue;
                }
            };
            if !self.has_quota(session) {
                return None;
            }
            return Some(Resend {
                packet_id: next.packet_id,
                tag: next.tag,
                qos,
            });
        }
        None
    }

    fn release(&self, session: &mut MqttSession, packet_id: PacketId, out: &mut BytesMut) {
        let ack = Ack::new(packet_id, ReasonCode::Success);
        let _ = encode_ack(
            PacketType::PubRel,
            &ack,
            self.version,
            self.client_max(),
            out,
        );
        session.mark_resent(packet_id);
    }

    /// Gives a message up that was sent and will not be sent again. The client may have it: with QoS 2, PUBREL makes it
    /// forget, so that it takes no later message for a repetition of this one. `out` is the buffer of the control lane.
    pub fn give_up(&self, session: &mut MqttSession, packet_id: PacketId, out: &mut BytesMut) {
        let stage = session.outgoing(packet_id).map(|outgoing| outgoing.stage);
        if stage == Some(Stage::PublishQoS2)
            && session.pubrec(packet_id, ReasonCode::Success).is_ok()
        {
            self.release(session, packet_id, out);
        } else {
            session.forget_outgoing(packet_id);
        }
    }

    /// Writes a PUBLISH again with its identifier and the DUP flag.
    ///
    /// # Errors
    ///
    /// [`NotSent::TooLarge`]: the message is [given up](Self::give_up), treat it as delivered.
    /// [`NotSent::NotNow`]: the identifier is not one to be sent again now.
    pub fn resend(
        &mut self,
        session: &mut MqttSession,
        packet_id: PacketId,
        delivery: &OutgoingPublish<'_>,
        now_ms: u64,
        out: &mut BytesMut,
    ) -> Result<Sent, NotSent> {
        let qos = match session.outgoing(packet_id).map(|outgoing| outgoing.stage) {
            Some(Stage::PublishQoS1) => QoS::AtLeastOnce,
            Some(Stage::PublishQoS2) => QoS::ExactlyOnce,
            _ => return Err(NotSent::NotNow),
        };
        if !self.has_quota(session) {
            return Err(NotSent::NotNow);
        }
        let delivery = &OutgoingPublish { qos, ..*delivery };
        if self.publish_bytes(delivery, delivery.topic, None) > self.client_max() {
            // [MQTT-3.1.2-25]
            self.give_up(session, packet_id, out);
            return Err(NotSent::TooLarge);
        }
        session.mark_resent(packet_id);
        let (topic, alias) = self.name(delivery);
        // [MQTT-3.3.1-1] [MQTT311-3.3.1-1]
        let head = Head {
            topic,
            alias,
            packet_id: Some(packet_id),
            dup: true,
        };
        Ok(self.write(delivery, &head, now_ms, out))
    }

    fn has_quota(&self, session: &MqttSession) -> bool {
        self.is_connected() && session.in_flight() < usize::from(self.send_quota)
    }

    /// The topic's form in the packet: name and alias.
    #[inline]
    fn name<'d>(&mut self, delivery: &OutgoingPublish<'d>) -> (&'d [u8], Option<u16>) {
        let topic = delivery.topic;
        if self.outgoing_alias_maximum == 0 || !delivery.lane.is_control() {
            return (topic, None);
        }
        let maximum = self.outgoing_alias_maximum;
        let max_bytes = self.limits.max_alias_topic_bytes as usize;
        let choice = self
            .outgoing_aliases
            .get_or_insert_default()
            .choose(topic, maximum, max_bytes);
        match choice {
            AliasUse::Name => (topic, None),
            AliasUse::Alias(alias) => (&[], Some(alias)),
            AliasUse::Set(alias) => {
                // Only if the larger packet is still one that the client takes.
                if self.publish_bytes(delivery, topic, Some(alias)) > self.client_max() {
                    return (topic, None);
                }
                self.outgoing_aliases
                    .get_or_insert_default()
                    .set(topic, alias);
                (topic, Some(alias))
            }
        }
    }

    /// Size of the whole packet in bytes; `usize::MAX` if there is no such packet.
    #[inline]
    fn publish_bytes(
        &self,
        delivery: &OutgoingPublish<'_>,
        topic: &[u8],
        alias: Option<u16>,
    ) -> usize {
        let mut remaining = 2 + topic.len() + delivery.payload.len();
        if delivery.qos.is_acknowledged() {
            remaining += 2;
        }
        if self.version.is_v5() {
            let block = block_bytes(delivery, alias);
            remaining += varint_bytes(block) + block;
        }
        if remaining > MAX_REMAINING_BYTES || topic.len() > MAX_TOPIC_BYTES {
            usize::MAX
        } else {
            packet_bytes(remaining)
        }
    }

    #[inline]
    fn write(
        &self,
        delivery: &OutgoingPublish<'_>,
        head: &Head<'_>,
        now_ms: u64,
        out: &mut BytesMut,
    ) -> Sent {
        let v5 = self.version.is_v5();
        let block = if v5 {
            block_bytes(delivery, head.alias)
        } else {
            0
        };
        let mut header = 2 + head.topic.len();
        if head.packet_id.is_some() {
            header += 2;
        }
        if v5 {
            header += varint_bytes(block) + block;
        }
        let remaining = header + delivery.payload.len();
        let append_payload = delivery.payload.len() >= self.limits.share_payload_bytes as usize;
        let copied = if append_payload {
            0
        } else {
            delivery.payload.len()
        };
        out.reserve(5 + header + copied);
        out.put_u8(publish::first_byte(head.dup, delivery.qos, delivery.retain));
        put_varint(out, remaining);
        put_binary(out, head.topic);
        if let Some(packet_id) = head.packet_id {
            out.put_u16(packet_id.get());
        }
        if v5 {
            put_varint(out, block);
            if let Some(alias) = head.alias {
                out.put_u8(PropertyId::TopicAlias as u8);
                out.put_u16(alias);
            }
            if let Some(expires_at_ms) = delivery.expires_at_ms {
                // [MQTT-3.3.2-6]; a message sent before is repeated even without remaining
                // lifetime: [MQTT-4.3.3-7] [MQTT-4.3.3-13]
                let left_s = expires_at_ms.saturating_sub(now_ms).div_ceil(1000);
                out.put_u8(PropertyId::MessageExpiryInterval as u8);
                out.put_u32(u32::try_from(left_s).unwrap_or(u32::MAX));
            }
            // [MQTT-3.3.4-3] [MQTT-3.3.4-4]
            for identifier in identifiers(delivery) {
                out.put_u8(PropertyId::SubscriptionIdentifier as u8);
                put_varint(out, identifier as usize);
            }
            out.put_slice(delivery.properties);
        }
        if !append_payload {
            out.put_slice(delivery.payload);
        }
        Sent {
            packet_id: head.packet_id,
            append_payload,
        }
    }
}

/// The valid Subscription Identifiers of a delivery.
fn identifiers(delivery: &OutgoingPublish<'_>) -> impl Iterator<Item = u32> {
    let valid = 1..=MAX_REMAINING_BYTES as u32;
    delivery
        .identifiers
        .iter()
        .copied()
        .filter(move |id| valid.contains(id))
}

/// Bytes of the properties of a PUBLISH, without their length.
fn block_bytes(delivery: &OutgoingPublish<'_>, alias: Option<u16>) -> usize {
    let identifiers: usize = identifiers(delivery)
        .map(|id| 1 + varint_bytes(id as usize))
        .sum();
    let alias = if alias.is_some() { 3 } else { 0 };
    let expiry = if delivery.expires_at_ms.is_some() {
        5
    } else {
        0
    };
    alias + expiry + identifiers + delivery.properties.len()
}
