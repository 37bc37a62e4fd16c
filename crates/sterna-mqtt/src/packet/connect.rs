//! CONNECT (MQTT 5.0 section 3.1; MQTT 3.1.1 section 3.1).

use bytes::{BufMut, BytesMut};

use super::{TRAILING, begin, block_bytes, field_bytes, put_block};
use crate::property::{Properties, PropertyContext, PublishProperties, value};
use crate::wire::{Reader, put_binary};
use crate::{DecodeError, EncodeError, PacketType, QoS, ReasonCode, Version, topic};

const USER_NAME: u8 = 0x80;
const PASSWORD: u8 = 0x40;
const WILL_RETAIN: u8 = 0x20;
const WILL_QOS_SHIFT: u8 = 3;
const WILL: u8 = 0x04;
const CLEAN_START: u8 = 0x02;
const RESERVED: u8 = 0x01;

/// Added to the protocol level by bridges of Mosquitto, which this way ask for No Local and Retain As
/// Published before 5.0.
const BRIDGE: u8 = 0x80;
const LEVEL_V31: u8 = Version::V31 as u8;
const LEVEL_V311: u8 = Version::V311 as u8;
const BRIDGE_V31: u8 = BRIDGE | LEVEL_V31;
const BRIDGE_V311: u8 = BRIDGE | LEVEL_V311;

/// A request to connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connect<'a> {
    /// The version that the client speaks.
    pub version: Version,
    /// Clean Start (5.0) or Clean Session (before).
    pub clean_start: bool,
    /// Keep Alive time in seconds; 0 turns it off.
    pub keep_alive_s: u16,
    /// Client Identifier; may be empty.
    pub client_id: &'a str,
    /// Message that the server publishes if the connection ends without DISCONNECT.
    pub will: Option<Will<'a>>,
    /// User name.
    pub user_name: Option<&'a str>,
    /// Password.
    pub password: Option<&'a [u8]>,
    /// Properties; empty before 5.0.
    pub properties: Properties<'a>,
}

/// A will (MQTT 5.0 section 3.1.2.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Will<'a> {
    /// Topic Name.
    pub topic: &'a str,
    /// Payload.
    pub payload: &'a [u8],
    /// QoS of the publication.
    pub qos: QoS,
    /// Whether it is published as a retained message.
    pub retain: bool,
    /// Properties; empty before 5.0.
    pub properties: PublishProperties<'a>,
}

impl<'a> Connect<'a> {
    /// Decodes the body of a CONNECT.
    pub(crate) fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        // [MQTT-3.1.4-1] [MQTT311-3.1.4-1]
        let mut reader = Reader::new(body);
        let name = reader.binary()?;
        let level = reader.u8()?;
        let version = match (name, level) {
            (b"MQTT", 5) => Version::V5,
            (b"MQTT", LEVEL_V311 | BRIDGE_V311) => Version::V311,
            (b"MQIsdp", LEVEL_V31 | BRIDGE_V31) => Version::V31,
            // [MQTT-3.1.2-2] [MQTT311-3.1.2-2] in the form of 3.1.1, also for later levels: 3.1.1
            // requires return code 0x01, 5.0 only permits reason code 0x84.
            (b"MQTT", _) => return Err(UNSUPPORTED.in_connect(Version::V311)),
            (b"MQIsdp", _) => return Err(UNSUPPORTED.in_connect(Version::V31)),
            // [MQTT-3.1.2-1] [MQTT311-3.1.2-1] closed without an answer
            _ => {
                return Err(DecodeError::new(
                    ReasonCode::UnsupportedProtocolVersion,
                    "protocol name is not MQTT",
                ));
            }
        };
        Self::decode_rest(reader, version).map_err(|error| error.in_connect(version))
    }

    /// Whether the body of a CONNECT says that a bridge speaks: protocol level 0x83 or 0x84.
    pub(crate) fn is_of_bridge(body: &[u8]) -> bool {
        let mut reader = Reader::new(body);
        matches!(
            (reader.binary(), reader.u8()),
            (Ok(b"MQIsdp"), Ok(BRIDGE_V31)) | (Ok(b"MQTT"), Ok(BRIDGE_V311))
        )
    }

    fn decode_rest(mut reader: Reader<'a>, version: Version) -> Result<Self, DecodeError> {
        let flags = reader.u8()?;
        // [MQTT-3.1.2-3] [MQTT311-3.1.2-3]; MQTT 3.1 leaves the bit undefined
        if flags & RESERVED != 0 && version != Version::V31 {
            return Err(DecodeError::malformed("reserved flag of CONNECT"));
        }
        let keep_alive_s = reader.u16()?;
        let properties = if version.is_v5() {
            Properties::parse(reader.property_block()?, PropertyContext::Connect)?
        } else {
            Properties::EMPTY
        };
        // [MQTT-3.1.3-1] [MQTT311-3.1.3-1] [MQTT311-3.1.3-3] the order of the fields
        // [MQTT-3.1.3-3] [MQTT311-3.1.3-4] [MQTT311-3.1.3-5] any string will do
        let client_id = reader.string()?;
        let will = if flags & WILL != 0 {
            Some(Will::decode(&mut reader, flags, version)?)
        } else {
            // [MQTT-3.1.2-10] [MQTT311-3.1.2-12] no will
            // [MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT-3.1.2-13] [MQTT311-3.1.2-11] [MQTT311-3.1.2-13]
            // [MQTT311-3.1.2-15]
            // MQTT 3.1 section 3.1: without a will they are disregarded.
            let will_flags = flags & (WILL_RETAIN | 0b11 << WILL_QOS_SHIFT);
            if will_flags != 0 && version != Version::V31 {
                return Err(DecodeError::malformed("will flags without a will"));
            }
            None
        };
        // MQTT 3.1 section 3.1: the Remaining Length takes precedence over these two flags, so that with nothing left
        // neither says anything.
        let may_lack = version == Version::V31;
        // [MQTT-3.1.2-16] [MQTT-3.1.2-17] [MQTT-3.1.3-12]
        // [MQTT311-3.1.2-18] [MQTT311-3.1.2-19] [MQTT311-3.1.3-11]
        let user_name = if flags & USER_NAME != 0 && !(may_lack && reader.is_empty()) {
            Some(reader.string()?)
        } else {
            None
        };
        // [MQTT311-3.1.2-22]; 5.0 allows a password alone
        let is_unused = may_lack && reader.is_empty();
        if flags & (USER_NAME | PASSWORD) == PASSWORD && !version.is_v5() && !is_unused {
            return Err(DecodeError::malformed("password without a user name"));
        }
        // [MQTT-3.1.2-18] [MQTT-3.1.2-19] [MQTT311-3.1.2-20] [MQTT311-3.1.2-21]
        let password = if flags & PASSWORD != 0 && !(may_lack && reader.is_empty()) {
            Some(reader.binary()?)
        } else {
            None
        };
        if !reader.is_empty() {
            return Err(TRAILING);
        }
        Ok(Self {
            version,
            clean_start: flags & CLEAN_START != 0,
            keep_alive_s,
            client_id,
            will,
            user_name,
            password,
            properties,
        })
    }

    /// Seconds that the session is to outlive the connection; `u32::MAX` means for ever. Before 5.0
    /// this is the meaning of Clean Session = 0.
    #[must_use]
    pub fn session_expiry_s(&self) -> u32 {
        if self.version.is_v5() {
            self.properties.session_expiry_s().unwrap_or(0)
        } else if self.clean_start {
            0
        } else {
            u32::MAX
        }
    }

    /// QoS 1 and 2 messages that the client takes unacknowledged: 1 to 65,535.
    #[must_use]
    pub fn receive_maximum(&self) -> u16 {
        self.properties
            .find(value!(ReceiveMaximum))
            .unwrap_or(u16::MAX)
    }

    /// Largest packet that the client takes, in bytes; `u32::MAX` where it names none.
    #[must_use]
    pub fn maximum_packet_bytes(&self) -> u32 {
        self.properties
            .find(value!(MaximumPacketSize))
            .unwrap_or(u32::MAX)
    }

    /// Highest Topic Alias that the client takes; 0 for none.
    #[must_use]
    pub fn topic_alias_maximum(&self) -> u16 {
        self.properties.find(value!(TopicAliasMaximum)).unwrap_or(0)
    }

    /// Whether the client wants Reason Strings and User Properties with every packet.
    #[must_use]
    pub fn wants_problem_information(&self) -> bool {
        self.properties
            .find(value!(RequestProblemInformation))
            .unwrap_or(true)
    }

    /// Whether the client wants Response Information in the CONNACK.
    #[must_use]
    pub fn wants_response_information(&self) -> bool {
        self.properties
            .find(value!(RequestResponseInformation))
            .unwrap_or(false)
    }

    /// Appends the packet; nothing on error.
    ///
    /// # Errors
    ///
    /// As for [`Packet::encode`](super::Packet::encode).
    pub fn encode(&self, max_packet_bytes: usize, out: &mut BytesMut) -> Result<(), EncodeError> {
        let v5 = self.version.is_v5();
        let name = self.version.protocol_name().as_bytes();
        let mut remaining = 2 + name.len() + 4 + field_bytes(self.client_id.as_bytes())?;
        let mut flags = 0;
        if self.clean_start {
            flags |= CLEAN_START;
        }
        if v5 {
            remaining += block_bytes(self.properties.raw().len());
        }
        if let Some(will) = &self.will {
            // [MQTT-3.1.2-6] [MQTT-3.1.2-9]
            flags |= WILL | (will.qos as u8) << WILL_QOS_SHIFT;
            if will.retain {
                flags |= WILL_RETAIN;
            }
            if v5 {
                remaining += block_bytes(will.properties.raw().len());
            }
            remaining += field_bytes(will.topic.as_bytes())? + field_bytes(will.payload)?;
        }
        if let Some(user_name) = self.user_name {
            flags |= USER_NAME;
            remaining += field_bytes(user_name.as_bytes())?;
        }
        if let Some(password) = self.password {
            flags |= PASSWORD;
            remaining += field_bytes(password)?;
        }
        begin(
            PacketType::Connect.first_byte(),
            remaining,
            max_packet_bytes,
            out,
        )?;
        put_binary(out, name);
        out.put_u8(self.version as u8);
        out.put_u8(flags);
        out.put_u16(self.keep_alive_s);
        if v5 {
            put_block(out, self.properties.raw());
        }
        put_binary(out, self.client_id.as_bytes());
        if let Some(will) = &self.will {
            if v5 {
                put_block(out, will.properties.raw());
            }
            put_binary(out, will.topic.as_bytes());
            put_binary(out, will.payload);
        }
        if let Some(user_name) = self.user_name {
            put_binary(out, user_name.as_bytes());
        }
        if let Some(password) = self.password {
            put_binary(out, password);
        }
        Ok(())
    }
}

impl<'a> Will<'a> {
    fn decode(reader: &mut Reader<'a>, flags: u8, version: Version) -> Result<Self, DecodeError> {
        // [MQTT311-3.1.2-14]
        let qos = QoS::from_u8(flags >> WILL_QOS_SHIFT & 0b11)
            .ok_or(DecodeError::malformed("will with QoS 3"))?;
        // [MQTT-3.1.2-6] [MQTT-3.1.2-9] [MQTT311-3.1.2-9]
        let properties = if version.is_v5() {
            PublishProperties::parse(reader.property_block()?, PropertyContext::Will)?
        } else {
            PublishProperties::EMPTY
        };
        // [MQTT-3.1.3-11] [MQTT311-3.1.3-10]
        let topic = reader.string()?;
        topic::check_name(topic)?;
        let payload = reader.binary()?;
        Ok(Self {
            topic,
            payload,
            qos,
            retain: flags & WILL_RETAIN != 0,
            properties,
        })
    }
}

const UNSUPPORTED: DecodeError = DecodeError::new(
    ReasonCode::UnsupportedProtocolVersion,
    "protocol level is not served",
);
