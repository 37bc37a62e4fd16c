//! Properties (MQTT 5.0 section 2.2.2): validated once, kept raw, read lazily.

mod build;
mod message;

pub use build::PropertyBuf;
pub use message::{Forward, ForwardSlices, PublishProperties};

use crate::DecodeError;
use crate::wire::Reader;

/// A closure that picks the value of one kind of property, for [`Properties::find`].
macro_rules! value {
    ($name:ident) => {
        |property| match property {
            crate::property::Property::$name(value) => Some(value),
            _ => None,
        }
    };
}
pub(crate) use value;

/// Identifier of a property (MQTT 5.0 table 2-4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PropertyId {
    /// Payload Format Indicator.
    PayloadFormatIndicator = 1,
    /// Message Expiry Interval.
    MessageExpiryInterval = 2,
    /// Content Type.
    ContentType = 3,
    /// Response Topic.
    ResponseTopic = 8,
    /// Correlation Data.
    CorrelationData = 9,
    /// Subscription Identifier.
    SubscriptionIdentifier = 11,
    /// Session Expiry Interval.
    SessionExpiryInterval = 17,
    /// Assigned Client Identifier.
    AssignedClientIdentifier = 18,
    /// Server Keep Alive.
    ServerKeepAlive = 19,
    /// Authentication Method.
    AuthenticationMethod = 21,
    /// Authentication Data.
    AuthenticationData = 22,
    /// Request Problem Information.
    RequestProblemInformation = 23,
    /// Will Delay Interval.
    WillDelayInterval = 24,
    /// Request Response Information.
    RequestResponseInformation = 25,
    /// Response Information.
    ResponseInformation = 26,
    /// Server Reference.
    ServerReference = 28,
    /// Reason String.
    ReasonString = 31,
    /// Receive Maximum.
    ReceiveMaximum = 33,
    /// Topic Alias Maximum.
    TopicAliasMaximum = 34,
    /// Topic Alias.
    TopicAlias = 35,
    /// Maximum QoS.
    MaximumQoS = 36,
    /// Retain Available.
    RetainAvailable = 37,
    /// User Property.
    UserProperty = 38,
    /// Maximum Packet Size.
    MaximumPacketSize = 39,
    /// Wildcard Subscription Available.
    WildcardSubscriptionAvailable = 40,
    /// Subscription Identifier Available.
    SubscriptionIdentifierAvailable = 41,
    /// Shared Subscription Available.
    SharedSubscriptionAvailable = 42,
}

/// A property with its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Property<'a> {
    /// Whether the payload is UTF-8 text.
    PayloadFormatIndicator(bool),
    /// Lifetime of the message in seconds.
    MessageExpiryInterval(u32),
    /// Content type of the payload.
    ContentType(&'a str),
    /// Topic for the response.
    ResponseTopic(&'a str),
    /// Data by which the requester assigns a response to its request.
    CorrelationData(&'a [u8]),
    /// 1 to 268,435,455.
    SubscriptionIdentifier(u32),
    /// Seconds that the session outlives the connection; `u32::MAX` means for ever.
    SessionExpiryInterval(u32),
    /// The Client Identifier that the server chose.
    AssignedClientIdentifier(&'a str),
    /// Keep Alive time in seconds that the server imposes.
    ServerKeepAlive(u16),
    /// Name of the authentication method.
    AuthenticationMethod(&'a str),
    /// Data of the authentication method.
    AuthenticationData(&'a [u8]),
    /// Whether the client wants Reason Strings and User Properties.
    RequestProblemInformation(bool),
    /// Seconds between the end of a connection and the publication of its will.
    WillDelayInterval(u32),
    /// Whether the client wants Response Information.
    RequestResponseInformation(bool),
    /// Basis for Response Topics.
    ResponseInformation(&'a str),
    /// Another server.
    ServerReference(&'a str),
    /// Text for a human.
    ReasonString(&'a str),
    /// Unacknowledged QoS 1 and 2 messages that the sender accepts; not 0.
    ReceiveMaximum(u16),
    /// Highest Topic Alias that the sender accepts.
    TopicAliasMaximum(u16),
    /// Topic Alias; not 0.
    TopicAlias(u16),
    /// Highest QoS of the server: 0 or 1 (2 is told by absence).
    MaximumQoS(u8),
    /// Whether the server retains messages.
    RetainAvailable(bool),
    /// Name and value.
    UserProperty(&'a str, &'a str),
    /// Largest packet that the sender accepts, in bytes; not 0.
    MaximumPacketSize(u32),
    /// Whether the server takes wildcards.
    WildcardSubscriptionAvailable(bool),
    /// Whether the server takes Subscription Identifiers.
    SubscriptionIdentifierAvailable(bool),
    /// Whether the server takes shared subscriptions.
    SharedSubscriptionAvailable(bool),
}

/// Place of properties: a packet or a will. Each place allows properties of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum PropertyContext {
    /// CONNECT.
    Connect = 1 << 0,
    /// The will within CONNECT.
    Will = 1 << 1,
    /// CONNACK.
    ConnAck = 1 << 2,
    /// PUBLISH.
    Publish = 1 << 3,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP.
    Acknowledgement = 1 << 4,
    /// SUBSCRIBE.
    Subscribe = 1 << 5,
    /// SUBACK and UNSUBACK.
    SubAck = 1 << 6,
    /// UNSUBSCRIBE.
    Unsubscribe = 1 << 7,
    /// DISCONNECT.
    Disconnect = 1 << 8,
    /// AUTH.
    Auth = 1 << 9,
}

/// Type of a property's value on the wire.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown,
    /// A byte that is 0 or 1.
    Bool,
    U16,
    /// Two bytes that are not zero.
    NonZeroU16,
    U32,
    /// Four bytes that are not zero.
    NonZeroU32,
    /// A Variable Byte Integer that is not zero.
    NonZeroVarint,
    String,
    /// A string without wildcards.
    TopicName,
    Binary,
    Pair,
}

#[derive(Clone, Copy)]
struct Rule {
    kind: Kind,
    contexts: u16,
}

const RULES: [Rule; 43] = rules();

/// Table 2-4 of the specification.
const fn rules() -> [Rule; 43] {
    use PropertyContext as C;
    use PropertyId as P;
    const MESSAGE: u16 = C::Publish as u16 | C::Will as u16;
    const AUTH: u16 = C::Connect as u16 | C::ConnAck as u16 | C::Auth as u16;
    const CONNECT: u16 = C::Connect as u16;
    const CONNACK: u16 = C::ConnAck as u16;
    const ENDS: u16 = CONNECT | CONNACK;
    let mut table = [Rule {
        kind: Kind::Unknown,
        contexts: 0,
    }; 43];
    let rows = [
        (P::PayloadFormatIndicator, Kind::Bool, MESSAGE),
        (P::MessageExpiryInterval, Kind::U32, MESSAGE),
        // [MQTT-3.3.2-19]
        (P::ContentType, Kind::String, MESSAGE),
        // [MQTT-3.3.2-13] [MQTT-3.3.2-14]
        (P::ResponseTopic, Kind::TopicName, MESSAGE),
        (P::CorrelationData, Kind::Binary, MESSAGE),
        (
            P::SubscriptionIdentifier,
            Kind::NonZeroVarint,
            C::Publish as u16 | C::Subscribe as u16,
        ),
        (
            P::SessionExpiryInterval,
            Kind::U32,
            ENDS | C::Disconnect as u16,
        ),
        (P::AssignedClientIdentifier, Kind::String, CONNACK),
        (P::ServerKeepAlive, Kind::U16, CONNACK),
        (P::AuthenticationMethod, Kind::String, AUTH),
        (P::AuthenticationData, Kind::Binary, AUTH),
        (P::RequestProblemInformation, Kind::Bool, CONNECT),
        (P::WillDelayInterval, Kind::U32, C::Will as u16),
        (P::RequestResponseInformation, Kind::Bool, CONNECT),
        (P::ResponseInformation, Kind::String, CONNACK),
        (
            P::ServerReference,
            Kind::String,
            CONNACK | C::Disconnect as u16,
        ),
        (
            P::ReasonString,
            Kind::String,
            CONNACK
                | C::Acknowledgement as u16
                | C::SubAck as u16
                | C::Disconnect as u16
                | C::Auth as u16,
        ),
        (P::ReceiveMaximum, Kind::NonZeroU16, ENDS),
        (P::TopicAliasMaximum, Kind::U16, ENDS),
        (P::TopicAlias, Kind::U16, C::Publish as u16),
        (P::MaximumQoS, Kind::Bool, CONNACK),
        (P::RetainAvailable, Kind::Bool, CONNACK),
        (P::UserProperty, Kind::Pair, u16::MAX),
        (P::MaximumPacketSize, Kind::NonZeroU32, ENDS),
        (P::WildcardSubscriptionAvailable, Kind::Bool, CONNACK),
        (P::SubscriptionIdentifierAvailable, Kind::Bool, CONNACK),
        (P::SharedSubscriptionAvailable, Kind::Bool, CONNACK),
    ];
    let mut index = 0;
    while index < rows.len() {
        let (id, kind, contexts) = rows[index];
        table[id as usize] = Rule { kind, contexts };
        index += 1;
    }
    table
}

/// A validated block of properties, without its length.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Properties<'a> {
    raw: &'a [u8],
}

impl<'a> Properties<'a> {
    /// No properties.
    pub const EMPTY: Self = Self { raw: &[] };

    /// Validates a block of properties (without its length) for the place where it stands.
    ///
    /// # Errors
    ///
    /// `MalformedPacket` for an identifier that is unknown or not allowed there. Also for a value
    /// that is not of its type. `ProtocolError` for a value out of range, and for a second
    /// occurrence of a property that may occur once.
    pub fn parse(raw: &'a [u8], context: PropertyContext) -> Result<Self, DecodeError> {
        validate(raw, context, |_, _, _| {})?;
        Ok(Self { raw })
    }

    /// A block that was validated before, or its rest behind one of its properties. Of another block some are missing.
    #[must_use]
    pub const fn known(raw: &'a [u8]) -> Self {
        Self { raw }
    }

    /// The block as it stands on the wire, without its length.
    #[must_use]
    pub const fn raw(self) -> &'a [u8] {
        self.raw
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.raw.is_empty()
    }

    /// The properties in the order of the packet.
    #[must_use]
    pub const fn iter(self) -> PropertyIter<'a> {
        PropertyIter {
            reader: Reader::new(self.raw),
        }
    }

    /// The User Properties in the order of the packet.
    pub fn user_properties(self) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
        self.iter().filter_map(|property| match property {
            Property::UserProperty(name, value) => Some((name, value)),
            _ => None,
        })
    }

    /// The first property for which `pick` returns something.
    #[must_use]
    pub fn find<T>(self, pick: impl FnMut(Property<'a>) -> Option<T>) -> Option<T> {
        self.iter().find_map(pick)
    }

    /// The Reason String.
    #[must_use]
    pub fn reason_string(self) -> Option<&'a str> {
        self.find(value!(ReasonString))
    }

    /// The Server Reference.
    #[must_use]
    pub fn server_reference(self) -> Option<&'a str> {
        self.find(value!(ServerReference))
    }

    /// The Session Expiry Interval in seconds.
    #[must_use]
    pub fn session_expiry_s(self) -> Option<u32> {
        self.find(value!(SessionExpiryInterval))
    }

    /// The Authentication Method.
    #[must_use]
    pub fn authentication_method(self) -> Option<&'a str> {
        self.find(value!(AuthenticationMethod))
    }

    /// The Authentication Data.
    #[must_use]
    pub fn authentication_data(self) -> Option<&'a [u8]> {
        self.find(value!(AuthenticationData))
    }
}

impl<'a> IntoIterator for Properties<'a> {
    type Item = Property<'a>;
    type IntoIter = PropertyIter<'a>;

    fn into_iter(self) -> PropertyIter<'a> {
        self.iter()
    }
}

/// The properties of a block, one after the other.
#[derive(Clone, Debug)]
pub struct PropertyIter<'a> {
    reader: Reader<'a>,
}

impl PropertyIter<'_> {
    /// Bytes of the block that are not read yet.
    #[must_use]
    pub const fn rest_bytes(&self) -> usize {
        self.reader.rest().len()
    }
}

impl<'a> Iterator for PropertyIter<'a> {
    type Item = Property<'a>;

    fn next(&mut self) -> Option<Property<'a>> {
        if self.reader.is_empty() {
            return None;
        }
        // The block was validated, so no read fails; if one did, the iteration would end.
        let reader = &mut self.reader;
        Some(match reader.u8().ok()? {
            1 => Property::PayloadFormatIndicator(reader.u8().ok()? != 0),
            2 => Property::MessageExpiryInterval(reader.u32().ok()?),
            3 => Property::ContentType(reader.text()?),
            8 => Property::ResponseTopic(reader.text()?),
            9 => Property::CorrelationData(reader.binary().ok()?),
            11 => Property::SubscriptionIdentifier(reader.varint().ok()?),
            17 => Property::SessionExpiryInterval(reader.u32().ok()?),
            18 => Property::AssignedClientIdentifier(reader.text()?),
            19 => Property::ServerKeepAlive(reader.u16().ok()?),
            21 => Property::AuthenticationMethod(reader.text()?),
            22 => Property::AuthenticationData(reader.binary().ok()?),
            23 => Property::RequestProblemInformation(reader.u8().ok()? != 0),
            24 => Property::WillDelayInterval(reader.u32().ok()?),
            25 => Property::RequestResponseInformation(reader.u8().ok()? != 0),
            26 => Property::ResponseInformation(reader.text()?),
            28 => Property::ServerReference(reader.text()?),
            31 => Property::ReasonString(reader.text()?),
            33 => Property::ReceiveMaximum(reader.u16().ok()?),
            34 => Property::TopicAliasMaximum(reader.u16().ok()?),
            35 => Property::TopicAlias(reader.u16().ok()?),
            36 => Property::MaximumQoS(reader.u8().ok()?),
            37 => Property::RetainAvailable(reader.u8().ok()? != 0),
            38 => Property::UserProperty(reader.text()?, reader.text()?),
            39 => Property::MaximumPacketSize(reader.u32().ok()?),
            40 => Property::WildcardSubscriptionAvailable(reader.u8().ok()? != 0),
            41 => Property::SubscriptionIdentifierAvailable(reader.u8().ok()? != 0),
            42 => Property::SharedSubscriptionAvailable(reader.u8().ok()? != 0),
            _ => return None,
        })
    }
}

/// Walks through a block and checks everything. `seen` gets the identifier, where the property
/// begins in the block and the bytes from its identifier on.
#[inline]
fn validate<'a>(
    raw: &'a [u8],
    context: PropertyContext,
    mut seen: impl FnMut(u8, usize, &'a [u8]),
) -> Result<(), DecodeError> {
    let mut reader = Reader::new(raw);
    let mut present = 0_u64;
    while !reader.is_empty() {
        let rest = reader.rest();
        // Identifiers are Variable Byte Integers and all known ones take one byte.
        let id = reader.u8()?;
        let Some(&rule) = RULES.get(usize::from(id)) else {
            return Err(DecodeError::malformed("unknown property"));
        };
        if rule.contexts & context as u16 == 0 {
            return Err(DecodeError::malformed(
                "property not allowed in this packet",
            ));
        }
        let repeatable = rule.kind == Kind::Pair
            || (rule.kind == Kind::NonZeroVarint && matches!(context, PropertyContext::Publish));
        let bit = 1 << id;
        if present & bit != 0 && !repeatable {
            return Err(DecodeError::protocol("property occurs more than once"));
        }
        present |= bit;
        match rule.kind {
            Kind::Bool => {
                if reader.u8()? > 1 {
                    return Err(DecodeError::protocol("property is neither 0 nor 1"));
                }
            }
            Kind::U16 => {
                reader.u16()?;
            }
            Kind::NonZeroU16 => {
                if reader.u16()? == 0 {
                    return Err(DecodeError::protocol("property is zero"));
                }
            }
            Kind::U32 => {
                reader.u32()?;
            }
            Kind::NonZeroU32 => {
                if reader.u32()? == 0 {
                    return Err(DecodeError::protocol("property is zero"));
                }
            }
            Kind::NonZeroVarint => {
                if reader.varint()? == 0 {
                    return Err(DecodeError::protocol("Subscription Identifier is zero"));
                }
            }
            Kind::String => {
                reader.string()?;
            }
            Kind::TopicName => {
                // [MQTT-3.3.2-14] [MQTT-4.7.3-1]
                crate::topic::check_name(reader.string()?)?;
            }
            Kind::Binary => {
                reader.binary()?;
            }
            Kind::Pair => {
                // [MQTT-1.5.7-1]
                reader.string()?;
                reader.string()?;
            }
            Kind::Unknown => return Err(DecodeError::malformed("unknown property")),
        }
        seen(id, raw.len() - rest.len(), rest);
    }
    // Section 3.1.2.11.10: data without a method.
    let data = 1 << PropertyId::AuthenticationData as u8;
    let method = 1 << PropertyId::AuthenticationMethod as u8;
    if present & (data | method) == data {
        return Err(DecodeError::protocol(
            "Authentication Data without Authentication Method",
        ));
    }
    Ok(())
}
