//! Features of QUIC only: lanes that end before the connection does, and datagrams.

use bytes::BytesMut;

use super::Publication;
use super::connection::{Connection, State};
use super::send::{SendError, own_properties};
use crate::packet::{Ack, Publish, encode_ack};
use crate::{
    Frame, Lane, MAX_PACKET_BYTES, MqttSession, Packet, PacketId, PacketType, QoS, ReasonCode,
    Violation,
};

impl Connection {
    /// A lane other than control is lost, with its aliases. Its unacknowledged messages may be sent
    /// again on another lane with [`Connection::resend`] and [`Connection::release_again`].
    /// [MQTT-4.4.0-1] forbids repetitions within a connection, but means networks without loss.
    pub fn lane_closed(&mut self, session: &mut MqttSession, lane: Lane) {
        self.peer_aliases.lane_closed(lane);
        session.lane_closed(lane);
    }

    /// Writes the PUBREL of a message that the server has received, because the lane of the first
    /// one is gone.
    pub fn release_again(&self, packet_id: PacketId, out: &mut BytesMut) {
        let ack = Ack::new(packet_id, ReasonCode::Success);
        let _ = encode_ack(
            PacketType::PubRel,
            &ack,
            self.version,
            MAX_PACKET_BYTES,
            out,
        );
    }

    /// Writes a message with QoS 0 as a datagram of its own, of at most `max_bytes`. The datagram
    /// is one PUBLISH packet without Topic Alias.
    ///
    /// # Errors
    ///
    /// [`SendError::Later`] before the CONNACK. [`SendError::Encode`] if the message is too large
    /// for a datagram; a lane may still take it.
    pub fn publish_datagram(
        &self,
        publication: &Publication<'_>,
        max_bytes: usize,
        out: &mut BytesMut,
    ) -> Result<(), SendError> {
        match self.state {
            State::Connecting => return Err(SendError::Later),
            State::Connected => {}
            State::Closed => return Err(SendError::Closed),
        }
        self.check_supported(publication)?;
        let properties = own_properties(publication)?;
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: publication.retain,
            topic: publication.topic,
            packet_id: None,
            properties,
            payload: publication.payload,
        };
        let max_bytes = max_bytes.min(self.limits.max_packet_bytes);
        Ok(publish.encode(self.version, max_bytes, out)?)
    }

    /// Decodes a datagram, which has to be exactly one PUBLISH with QoS 0 and without Topic Alias.
    /// `None` stands for bytes that are no whole packet.
    ///
    /// # Errors
    ///
    /// When the datagram is another packet, or comes while no message is due.
    pub fn receive_datagram<'a>(
        &mut self,
        frame: Option<&Frame<'a>>,
        now_ms: u64,
    ) -> Result<Publish<'a>, Violation> {
        self.heard(now_ms);
        let Some(frame) = frame else {
            return Err(self.broken(ReasonCode::MalformedPacket, "not one packet in a datagram"));
        };
        let packet =
            Packet::decode(frame, self.version).map_err(|error| self.decode_failed(error))?;
        match packet {
            Packet::Publish(publish)
                if self.state == State::Connected
                    && publish.packet_id.is_none()
                    && publish.properties.topic_alias().is_none() =>
            {
                Ok(publish)
            }
            _ => Err(self.broken(
                ReasonCode::ProtocolError,
                "a datagram that is not a plain message with QoS 0",
            )),
        }
    }
}
