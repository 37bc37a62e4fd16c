//! Properties (MQTT 5.0 section 2.2.2): validated once, kept raw, read lazily.

use crate::wire::{Reader, varint_bytes};
use crate::{DecodeError, EncodeError};

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
    /// What the payload contains.
    ContentType(&'a str),
    /// Where a response is to be published.
    ResponseTopic(&'a str),
    /// What tells the requester which request a response is for.
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

/// Where properties stand: each place allows properties of its own.
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
    /// `MalformedPacket` for an identifier that is unknown or not allowed there and for a value
    /// that is not of its type; `ProtocolError` for a value out of range and for a second
    /// occurrence of what may occur once.
    pub fn parse(raw: &'a [u8], context: PropertyContext) -> Result<Self, DecodeError> {
        validate(raw, context, |_, _, _| {})?;
        Ok(Self { raw })
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
        self.find(|p| {
            if let Property::ReasonString(v) = p {
                Some(v)
            } else {
                None
            }
        })
    }

    /// The Server Reference.
    #[must_use]
    pub fn server_reference(self) -> Option<&'a str> {
        self.find(|p| {
            if let Property::ServerReference(v) = p {
                Some(v)
            } else {
                None
            }
        })
    }

    /// The Session Expiry Interval in seconds.
    #[must_use]
    pub fn session_expiry_s(self) -> Option<u32> {
        self.find(|p| {
            if let Property::SessionExpiryInterval(v) = p {
                Some(v)
            } else {
                None
            }
        })
    }

    /// The Authentication Method.
    #[must_use]
    pub fn authentication_method(self) -> Option<&'a str> {
        self.find(|p| {
            if let Property::AuthenticationMethod(v) = p {
                Some(v)
            } else {
                None
            }
        })
    }

    /// The Authentication Data.
    #[must_use]
    pub fn authentication_data(self) -> Option<&'a [u8]> {
        self.find(|p| {
            if let Property::AuthenticationData(v) = p {
                Some(v)
            } else {
                None
            }
        })
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

impl<'a> Reader<'a> {
    /// A string that was validated before.
    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.binary().ok()?).ok()
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
                if crate::topic::has_wildcard(reader.string()?) {
                    return Err(DecodeError::protocol("Response Topic contains a wildcard"));
                }
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

/// The properties of a PUBLISH or of a will.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PublishProperties<'a> {
    raw: &'a [u8],
    /// First and one past the last byte of the properties that are passed on.
    forward_start: u32,
    forward_end: u32,
    /// Bytes that are passed on; less than the range where others lie in between.
    forward_bytes: u32,
    message_expiry_s: Option<u32>,
    alias: Option<u16>,
}

impl<'a> PublishProperties<'a> {
    /// No properties.
    pub const EMPTY: Self = Self {
        raw: &[],
        forward_start: 0,
        forward_end: 0,
        forward_bytes: 0,
        message_expiry_s: None,
        alias: None,
    };

    /// Validates the properties (without their length) of a PUBLISH or of a will.
    ///
    /// # Errors
    ///
    /// As for [`Properties::parse`], and `TopicAliasInvalid` for a Topic Alias of 0.
    pub fn parse(raw: &'a [u8], context: PropertyContext) -> Result<Self, DecodeError> {
        if raw.is_empty() {
            return Ok(Self::EMPTY);
        }
        let mut this = Self { raw, ..Self::EMPTY };
        let mut previous_kept: Option<u32> = None;
        validate(raw, context, |id, start, bytes| {
            let start = start as u32;
            if let Some(kept) = previous_kept.take() {
                this.keep(kept, start);
            }
            match id {
                2 => this.message_expiry_s = Reader::new(&bytes[1..]).u32().ok(),
                35 => this.alias = Reader::new(&bytes[1..]).u16().ok(),
                11 | 24 => {}
                _ => previous_kept = Some(start),
            }
        })?;
        if let Some(kept) = previous_kept {
            this.keep(kept, raw.len() as u32);
        }
        // [MQTT-3.3.2-7] [MQTT-3.3.2-8]
        if this.alias == Some(0) {
            return Err(DecodeError::new(
                crate::ReasonCode::TopicAliasInvalid,
                "Topic Alias is zero",
            ));
        }
        Ok(this)
    }

    fn keep(&mut self, start: u32, end: u32) {
        if self.forward_bytes == 0 {
            self.forward_start = start;
        }
        self.forward_end = end;
        self.forward_bytes += end - start;
    }

    /// All properties as a general view.
    #[must_use]
    pub const fn all(&self) -> Properties<'a> {
        Properties { raw: self.raw }
    }

    /// The block as it stands on the wire, without its length.
    #[must_use]
    pub const fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The Topic Alias; not 0.
    #[must_use]
    pub const fn topic_alias(&self) -> Option<u16> {
        self.alias
    }

    /// The Message Expiry Interval in seconds.
    #[must_use]
    pub const fn message_expiry_s(&self) -> Option<u32> {
        self.message_expiry_s
    }

    /// Seconds until a will is published after its connection has ended (will only).
    #[must_use]
    pub fn will_delay_s(&self) -> u32 {
        self.all()
            .find(|p| {
                if let Property::WillDelayInterval(v) = p {
                    Some(v)
                } else {
                    None
                }
            })
            .unwrap_or(0)
    }

    /// Whether the payload is declared to be UTF-8 text.
    #[must_use]
    pub fn is_utf8_payload(&self) -> bool {
        self.all()
            .find(|p| {
                if let Property::PayloadFormatIndicator(v) = p {
                    Some(v)
                } else {
                    None
                }
            })
            .unwrap_or(false)
    }

    /// The Content Type.
    #[must_use]
    pub fn content_type(&self) -> Option<&'a str> {
        self.all().find(|p| {
            if let Property::ContentType(v) = p {
                Some(v)
            } else {
                None
            }
        })
    }

    /// The Response Topic.
    #[must_use]
    pub fn response_topic(&self) -> Option<&'a str> {
        self.all().find(|p| {
            if let Property::ResponseTopic(v) = p {
                Some(v)
            } else {
                None
            }
        })
    }

    /// The Correlation Data.
    #[must_use]
    pub fn correlation_data(&self) -> Option<&'a [u8]> {
        self.all().find(|p| {
            if let Property::CorrelationData(v) = p {
                Some(v)
            } else {
                None
            }
        })
    }

    /// The User Properties in the order of the packet.
    pub fn user_properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
        self.all().user_properties()
    }

    /// The Subscription Identifiers (server to client only).
    pub fn subscription_identifiers(&self) -> impl Iterator<Item = u32> + Clone + 'a {
        self.all().iter().filter_map(|property| match property {
            Property::SubscriptionIdentifier(id) => Some(id),
            _ => None,
        })
    }

    /// What is passed on to subscribers unaltered and in order: everything but Topic Alias, Message
    /// Expiry Interval, Subscription Identifiers and Will Delay Interval.
    #[must_use]
    pub const fn forward(&self) -> Forward<'a> {
        Forward {
            raw: self.raw,
            start: self.forward_start,
            end: self.forward_end,
            bytes: self.forward_bytes,
        }
    }
}

/// Properties to pass on to subscribers, in their encoding on the wire.
///
/// [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
/// [MQTT-3.1.3-10]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forward<'a> {
    raw: &'a [u8],
    start: u32,
    end: u32,
    bytes: u32,
}

impl<'a> Forward<'a> {
    /// Their number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes as usize
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// All of them as one slice: always, except where a property that is not passed on stands
    /// between others.
    #[must_use]
    pub fn contiguous(&self) -> Option<&'a [u8]> {
        if self.end - self.start == self.bytes {
            self.raw.get(self.start as usize..self.end as usize)
        } else {
            None
        }
    }

    /// All of them as slices in order.
    #[must_use]
    pub fn slices(&self) -> ForwardSlices<'a> {
        if let Some(whole) = self.contiguous() {
            return ForwardSlices {
                whole: Some(whole),
                rest: PropertyIter {
                    reader: Reader::new(&[]),
                },
            };
        }
        let range = self
            .raw
            .get(self.start as usize..self.end as usize)
            .unwrap_or_default();
        ForwardSlices {
            whole: None,
            rest: PropertyIter {
                reader: Reader::new(range),
            },
        }
    }

    /// Appends all of them.
    pub fn copy_to(&self, out: &mut impl bytes::BufMut) {
        for slice in self.slices() {
            out.put_slice(slice);
        }
    }
}

/// The slices of a [`Forward`].
#[derive(Clone, Debug)]
pub struct ForwardSlices<'a> {
    whole: Option<&'a [u8]>,
    rest: PropertyIter<'a>,
}

impl<'a> Iterator for ForwardSlices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if let Some(whole) = self.whole.take() {
            return (!whole.is_empty()).then_some(whole);
        }
        loop {
            let before = self.rest.reader.rest();
            let property = self.rest.next()?;
            let after = self.rest.reader.rest();
            match property {
                Property::TopicAlias(_)
                | Property::MessageExpiryInterval(_)
                | Property::SubscriptionIdentifier(_)
                | Property::WillDelayInterval(_) => {}
                _ => return before.get(..before.len() - after.len()),
            }
        }
    }
}

/// Builds a block of properties.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PropertyBuf {
    bytes: Vec<u8>,
}

impl PropertyBuf {
    /// An empty block.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// Appends a property. The caller sees to it that it is allowed in the packet, in range, and
    /// not there already.
    ///
    /// # Errors
    ///
    /// [`EncodeError::FieldTooLong`] for a string or binary value of more than 65,535 bytes; the
    /// block is as before.
    pub fn push(&mut self, property: Property<'_>) -> Result<(), EncodeError> {
        match property {
            Property::PayloadFormatIndicator(v) => self.bool(PropertyId::PayloadFormatIndicator, v),
            Property::MessageExpiryInterval(v) => self.u32(PropertyId::MessageExpiryInterval, v),
            Property::ContentType(v) => self.string(PropertyId::ContentType, v.as_bytes())?,
            Property::ResponseTopic(v) => self.string(PropertyId::ResponseTopic, v.as_bytes())?,
            Property::CorrelationData(v) => self.string(PropertyId::CorrelationData, v)?,
            Property::SubscriptionIdentifier(v) => {
                self.bytes.push(PropertyId::SubscriptionIdentifier as u8);
                let mut value = v;
                for _ in 1..varint_bytes(v as usize) {
                    self.bytes.push(value as u8 | 0x80);
                    value >>= 7;
                }
                self.bytes.push(value as u8 & 0x7f);
            }
            Property::SessionExpiryInterval(v) => self.u32(PropertyId::SessionExpiryInterval, v),
            Property::AssignedClientIdentifier(v) => {
                self.string(PropertyId::AssignedClientIdentifier, v.as_bytes())?;
            }
            Property::ServerKeepAlive(v) => self.u16(PropertyId::ServerKeepAlive, v),
            Property::AuthenticationMethod(v) => {
                self.string(PropertyId::AuthenticationMethod, v.as_bytes())?;
            }
            Property::AuthenticationData(v) => self.string(PropertyId::AuthenticationData, v)?,
            Property::RequestProblemInformation(v) => {
                self.bool(PropertyId::RequestProblemInformation, v);
            }
            Property::WillDelayInterval(v) => self.u32(PropertyId::WillDelayInterval, v),
            Property::RequestResponseInformation(v) => {
                self.bool(PropertyId::RequestResponseInformation, v);
            }
            Property::ResponseInformation(v) => {
                self.string(PropertyId::ResponseInformation, v.as_bytes())?;
            }
            Property::ServerReference(v) => {
                self.string(PropertyId::ServerReference, v.as_bytes())?;
            }
            Property::ReasonString(v) => self.string(PropertyId::ReasonString, v.as_bytes())?,
            Property::ReceiveMaximum(v) => self.u16(PropertyId::ReceiveMaximum, v),
            Property::TopicAliasMaximum(v) => self.u16(PropertyId::TopicAliasMaximum, v),
            Property::TopicAlias(v) => self.u16(PropertyId::TopicAlias, v),
            Property::MaximumQoS(v) => self.bool(PropertyId::MaximumQoS, v != 0),
            Property::RetainAvailable(v) => self.bool(PropertyId::RetainAvailable, v),
            Property::UserProperty(name, value) => {
                if name.len() > 65_535 || value.len() > 65_535 {
                    return Err(EncodeError::FieldTooLong);
                }
                self.string(PropertyId::UserProperty, name.as_bytes())?;
                self.bytes
                    .extend_from_slice(&(value.len() as u16).to_be_bytes());
                self.bytes.extend_from_slice(value.as_bytes());
            }
            Property::MaximumPacketSize(v) => self.u32(PropertyId::MaximumPacketSize, v),
            Property::WildcardSubscriptionAvailable(v) => {
                self.bool(PropertyId::WildcardSubscriptionAvailable, v);
            }
            Property::SubscriptionIdentifierAvailable(v) => {
                self.bool(PropertyId::SubscriptionIdentifierAvailable, v);
            }
            Property::SharedSubscriptionAvailable(v) => {
                self.bool(PropertyId::SharedSubscriptionAvailable, v);
            }
        }
        Ok(())
    }

    /// Appends all properties of another block, for instance a [`Forward::contiguous`] one.
    pub fn extend(&mut self, properties: Properties<'_>) {
        self.bytes.extend_from_slice(properties.raw);
    }

    /// Shortens the block to what it was when it had `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Bytes of the block.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Empties the block and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// The block as a view for the encoders.
    #[must_use]
    pub fn properties(&self) -> Properties<'_> {
        Properties { raw: &self.bytes }
    }

    /// The block as a view for a PUBLISH or a will.
    ///
    /// # Errors
    ///
    /// As for [`PublishProperties::parse`].
    pub fn publish_properties(
        &self,
        context: PropertyContext,
    ) -> Result<PublishProperties<'_>, DecodeError> {
        PublishProperties::parse(&self.bytes, context)
    }

    fn bool(&mut self, id: PropertyId, value: bool) {
        self.bytes.extend_from_slice(&[id as u8, u8::from(value)]);
    }

    fn u16(&mut self, id: PropertyId, value: u16) {
        self.bytes.push(id as u8);
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    fn u32(&mut self, id: PropertyId, value: u32) {
        self.bytes.push(id as u8);
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    fn string(&mut self, id: PropertyId, value: &[u8]) -> Result<(), EncodeError> {
        if value.len() > 65_535 {
            return Err(EncodeError::FieldTooLong);
        }
        self.bytes.push(id as u8);
        self.bytes
            .extend_from_slice(&(value.len() as u16).to_be_bytes());
        self.bytes.extend_from_slice(value);
        Ok(())
    }
}
