//! SUBSCRIBE and SUBACK (MQTT 5.0 sections 3.8 and 3.9).

use bytes::{BufMut, BytesMut};

use super::{begin, block_bytes, field_bytes, put_block};
use crate::property::{Properties, PropertyContext, value};
use crate::wire::{Reader, put_binary};
use crate::{DecodeError, EncodeError, PacketId, PacketType, QoS, ReasonCode, Version, topic};

/// Retained messages that a new subscription gets (MQTT 5.0, section 3.8.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum RetainHandling {
    /// All retained messages that match.
    #[default]
    Send = 0,
    /// All retained messages that match, if the subscription did not exist before.
    SendIfNew = 1,
    /// None.
    DoNotSend = 2,
}

/// Options of a subscription (MQTT 5.0 section 3.8.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SubscribeOptions {
    /// Highest QoS of deliveries.
    pub qos: QoS,
    /// Whether own publications are left out.
    pub no_local: bool,
    /// Whether the RETAIN flag is passed on as it was published.
    pub retain_as_published: bool,
    /// Handling of retained messages.
    pub retain_handling: RetainHandling,
}

impl SubscribeOptions {
    /// Options with this QoS and everything else as MQTT 3.1.1 has it.
    #[must_use]
    pub const fn new(qos: QoS) -> Self {
        Self {
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        }
    }

    /// The byte on the wire, for a connection of this version.
    #[must_use]
    pub const fn to_byte(self, version: Version) -> u8 {
        let mut byte = self.qos as u8;
        if version.is_v5() {
            if self.no_local {
                byte |= 0b0100;
            }
            if self.retain_as_published {
                byte |= 0b1000;
            }
            byte |= (self.retain_handling as u8) << 4;
        }
        byte
    }

    /// Reads the byte.
    ///
    /// # Errors
    ///
    /// `MalformedPacket` for reserved bits, `ProtocolError` for values that do not exist.
    pub const fn from_byte(byte: u8, version: Version) -> Result<Self, DecodeError> {
        // [MQTT-3.8.3-5] [MQTT311-3.8.3-4]
        let reserved = if version.is_v5() {
            0b1100_0000
        } else {
            0b1111_1100
        };
        if byte & reserved != 0 {
            return Err(DecodeError::malformed(
                "reserved bits of the subscription options",
            ));
        }
        let Some(qos) = QoS::from_u8(byte & 0b11) else {
            return Err(DecodeError::protocol("subscription with QoS 3"));
        };
        let retain_handling = match byte >> 4 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(DecodeError::protocol("Retain Handling is 3")),
        };
        Ok(Self {
            qos,
            no_local: byte & 0b0100 != 0,
            retain_as_published: byte & 0b1000 != 0,
            retain_handling,
        })
    }
}

/// A request to subscribe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subscribe<'a> {
    /// Identifier for the SUBACK.
    pub packet_id: PacketId,
    /// Properties; empty before 5.0.
    pub properties: Properties<'a>,
    payload: &'a [u8],
    version: Version,
    is_of_bridge: bool,
    count: u32,
}

impl<'a> Subscribe<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let properties = if version.is_v5() {
            Properties::parse(reader.property_block()?, PropertyContext::Subscribe)?
        } else {
            Properties::EMPTY
        };
        let payload = reader.rest();
        // [MQTT-3.8.3-2] [MQTT-3.8.3-3] [MQTT311-3.8.3-3]
        if payload.is_empty() {
            return Err(DecodeError::protocol("SUBSCRIBE without a Topic Filter"));
        }
        let mut count = 0;
        while !reader.is_empty() {
            // [MQTT-3.8.3-1] [MQTT311-3.8.3-1]
            let filter = reader.string()?;
            check_filter(filter, version)?;
            let options = SubscribeOptions::from_byte(reader.u8()?, version)?;
            // [MQTT-3.8.3-4]
            if options.no_local && topic::is_shared(filter) {
                return Err(DecodeError::protocol("No Local with a shared subscription"));
            }
            count += 1;
        }
        Ok(Self {
            packet_id,
            properties,
            payload,
            version,
            is_of_bridge: false,
            count,
        })
    }

    /// The same packet of a bridge before 5.0: its subscriptions have No Local (except shared ones)
    /// and Retain As Published.
    #[must_use]
    pub(crate) const fn of_bridge(self) -> Self {
        Self {
            is_of_bridge: true,
            ..self
        }
    }

    /// The filters and their options, in the order of the packet.
    #[must_use]
    pub const fn filters(&self) -> Filters<'a> {
        Filters {
            reader: Reader::new(self.payload),
            version: self.version,
            is_of_bridge: self.is_of_bridge,
        }
    }

    /// Number of filters; at least one.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Never: a SUBSCRIBE has at least one filter.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The Subscription Identifier.
    #[must_use]
    pub fn identifier(&self) -> Option<u32> {
        self.properties.find(value!(SubscriptionIdentifier))
    }
}

/// The filters of a SUBSCRIBE with their options.
#[derive(Clone, Debug)]
pub struct Filters<'a> {
    reader: Reader<'a>,
    version: Version,
    is_of_bridge: bool,
}

impl<'a> Iterator for Filters<'a> {
    type Item = (&'a str, SubscribeOptions);

    fn next(&mut self) -> Option<Self::Item> {
        // Validated when the packet was decoded.
        let filter = self.reader.text()?;
        let mut options = SubscribeOptions::from_byte(self.reader.u8().ok()?, self.version).ok()?;
        if self.is_of_bridge {
            options.no_local = !topic::is_shared(filter);
            options.retain_as_published = true;
        }
        Some((filter, options))
    }
}

/// Checks a filter of a SUBSCRIBE or UNSUBSCRIBE. Before 5.0 `$share` has no meaning, so a filter
/// that is no correct shared subscription is one like any other.
pub(super) fn check_filter(filter: &str, version: Version) -> Result<(), DecodeError> {
    let checked = if version.is_v5() {
        topic::check_any_filter(filter)
    } else {
        topic::check_filter(filter)
    };
    Ok(checked?)
}

/// The answer to a SUBSCRIBE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubAck<'a> {
    /// Identifier of the SUBSCRIBE.
    pub packet_id: PacketId,
    /// Properties; empty before 5.0.
    pub properties: Properties<'a>,
    codes: &'a [u8],
}

impl<'a> SubAck<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let packet_id = reader.packet_id()?;
        let properties = if version.is_v5() {
            Properties::parse(reader.property_block()?, PropertyContext::SubAck)?
        } else {
            Properties::EMPTY
        };
        let codes = reader.rest();
        // [MQTT-3.9.3-1]
        if codes.is_empty() {
            return Err(DecodeError::protocol("SUBACK without a reason code"));
        }
        for &code in codes {
            // [MQTT-3.9.3-2] [MQTT311-3.9.3-2]
            let valid = if version.is_v5() {
                ReasonCode::from_u8(code).is_some_and(|code| code.is_valid_in(PacketType::SubAck))
            } else {
                matches!(code, 0..=2 | 0x80)
            };
            if !valid {
                return Err(DecodeError::malformed("reason code not allowed in SUBACK"));
            }
        }
        Ok(Self {
            packet_id,
            properties,
            codes,
        })
    }

    /// The reason codes, one per filter of the SUBSCRIBE.
    #[must_use]
    pub const fn codes(&self) -> ReasonCodes<'a> {
        ReasonCodes { codes: self.codes }
    }
}

/// The reason codes of a SUBACK or UNSUBACK.
#[derive(Clone, Debug)]
pub struct ReasonCodes<'a> {
    pub(super) codes: &'a [u8],
}

impl Iterator for ReasonCodes<'_> {
    type Item = ReasonCode;

    fn next(&mut self) -> Option<ReasonCode> {
        let (&first, rest) = self.codes.split_first()?;
        self.codes = rest;
        ReasonCode::from_u8(first)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.codes.len(), Some(self.codes.len()))
    }
}

impl ExactSizeIterator for ReasonCodes<'_> {}

/// Appends a SUBSCRIBE; nothing on error.
///
/// # Errors
///
/// As for [`Packet::encode`](super::Packet::encode).
pub fn encode_subscribe<'f>(
    version: Version,
    packet_id: PacketId,
    properties: Properties<'_>,
    filters: impl Iterator<Item = (&'f str, SubscribeOptions)> + Clone,
    max_packet_bytes: usize,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let mut remaining = 2;
    if version.is_v5() {
        remaining += block_bytes(properties.raw().len());
    }
    for (filter, _) in filters.clone() {
        remaining += field_bytes(filter.as_bytes())? + 1;
    }
    begin(
        PacketType::Subscribe.first_byte(),
        remaining,
        max_packet_bytes,
        out,
    )?;
    out.put_u16(packet_id.get());
    if version.is_v5() {
        put_block(out, properties.raw());
    }
    for (filter, options) in filters {
        put_binary(out, filter.as_bytes());
        out.put_u8(options.to_byte(version));
    }
    Ok(())
}

/// Appends a SUBACK; nothing on error. `codes` has one code per filter of the SUBSCRIBE, in order;
/// for older versions every failure is written as 0x80.
///
/// # Errors
///
/// As for [`Packet::encode`](super::Packet::encode).
pub fn encode_suback(
    version: Version,
    packet_id: PacketId,
    properties: Properties<'_>,
    codes: impl ExactSizeIterator<Item = ReasonCode>,
    max_packet_bytes: usize,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    let mut remaining = 2 + codes.len();
    if version.is_v5() {
        remaining += block_bytes(properties.raw().len());
    }
    begin(
        PacketType::SubAck.first_byte(),
        remaining,
        max_packet_bytes,
        out,
    )?;
    // [MQTT-2.2.1-6] [MQTT-3.8.4-2] [MQTT-3.9.2-1] [MQTT311-2.3.1-7] [MQTT311-3.8.4-2]
    out.put_u16(packet_id.get());
    if version.is_v5() {
        put_block(out, properties.raw());
    }
    // [MQTT-3.8.4-6] [MQTT-3.9.3-1] [MQTT311-3.8.4-5]
    for code in codes {
        out.put_u8(if version.is_v5() {
            code as u8
        } else {
            code.for_v3_suback()
        });
    }
    Ok(())
}
