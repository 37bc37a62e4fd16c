//! Messages, as an application sends and receives them.

use std::fmt;

use bytes::{BufMut as _, Bytes, BytesMut};
use sterna_mqtt::packet::{self, RetainHandling, SubscribeOptions};
use sterna_mqtt::{
    EncodeError, PacketId, Properties, Property, PropertyBuf, PropertyContext, PublishProperties,
    QoS, topic,
};

/// Why a message, a filter or an option cannot be sent, found before anything was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidError {
    /// The topic is empty, too long, or has wildcards or a null character.
    Topic,
    /// The topic filter is empty, too long, or has a wildcard where none can stand.
    Filter,
    /// A string or binary field is longer than 65,535 bytes, or a string has a null character.
    Field,
    /// A number is out of its range, for example a subscription identifier of 0.
    Range,
    /// The request names no topic filter.
    Empty,
    /// The version of MQTT does not have the requested feature.
    Version,
    /// The URL is of another protocol than MQTT.
    Protocol,
}

impl fmt::Display for InvalidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Topic => {
                "a topic has 1 to 65,535 bytes, no wildcards (+ and #) and no null character"
            }
            Self::Filter => {
                "a topic filter has 1 to 65,535 bytes, + only as a whole level and # only as the last"
            }
            Self::Field => "a field has more than 65,535 bytes or a null character",
            Self::Range => "a number is out of its range",
            Self::Empty => "no topic filter",
            Self::Version => "this version of MQTT has no such thing",
            Self::Protocol => {
                "the URL is of AMQP or HTTP, which an MQTT client does not speak: use amqp::Connection or http::Client"
            }
        })
    }
}

impl std::error::Error for InvalidError {}

impl From<EncodeError> for InvalidError {
    fn from(_: EncodeError) -> Self {
        Self::Field
    }
}

/// Urgency of a message among those that wait to be sent. It has an effect over QUIC, with any
/// [`Streams`](crate::Streams) but one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Priority {
    /// Only when nothing else is to be sent.
    Bulk,
    /// The default urgency.
    #[default]
    Normal,
    /// Before the others.
    High,
}

impl Priority {
    /// The priority of a stream that carries such messages; the first stream is above all.
    pub(crate) const fn of_stream(self) -> i32 {
        match self {
            Self::Bulk => -8,
            Self::Normal => 0,
            Self::High => 8,
        }
    }
}

/// A message to publish.
///
/// ```
/// use sterna_client::{Publish, QoS};
///
/// let message = Publish::new("house/kitchen/temperature", "21.5")?
///     .qos(QoS::AtLeastOnce)
///     .content_type("text/plain")?
///     .user_property("unit", "°C")?;
/// # Ok::<(), sterna_client::InvalidError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Publish {
    pub(crate) topic: String,
    pub(crate) payload: Bytes,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) properties: PropertyBuf,
    pub(crate) priority: Priority,
}

impl Publish {
    /// A message with QoS 0, not retained, without properties.
    ///
    /// # Errors
    /// When the topic cannot be published to.
    pub fn new(topic: impl Into<String>, payload: impl Into<Bytes>) -> Result<Self, InvalidError> {
        let topic = topic.into();
        topic::check_name(&topic).map_err(|_| InvalidError::Topic)?;
        Ok(Self {
            topic,
            payload: payload.into(),
            qos: QoS::AtMostOnce,
            retain: false,
            properties: PropertyBuf::new(),
            priority: Priority::Normal,
        })
    }

    /// Sets the QoS.
    #[must_use]
    pub const fn qos(mut self, qos: QoS) -> Self {
        self.qos = qos;
        self
    }

    /// Sets whether the message is retained.
    #[must_use]
    pub const fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// Sets the priority among the messages of this client.
    #[must_use]
    pub const fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Whether other messages precede it: its priority is [`Priority::Bulk`], or the normal one
    /// with QoS 0.
    #[must_use]
    pub const fn is_bulk(&self) -> bool {
        match self.priority {
            Priority::Bulk => true,
            Priority::Normal => matches!(self.qos, QoS::AtMostOnce),
            Priority::High => false,
        }
    }

    /// Replaces the payload.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Says that the payload is UTF-8 text (MQTT 5).
    ///
    /// # Errors
    /// None today; as for the other properties.
    pub fn utf8(self) -> Result<Self, InvalidError> {
        self.property(Property::PayloadFormatIndicator(true))
    }

    /// The seconds after which the message is of no use to anybody (MQTT 5).
    ///
    /// # Errors
    /// None today; as for the other properties.
    pub fn expires_after_s(self, seconds: u32) -> Result<Self, InvalidError> {
        self.property(Property::MessageExpiryInterval(seconds))
    }

    /// Type of the payload, mostly a MIME type (MQTT 5).
    ///
    /// # Errors
    /// When it is not a valid string of at most 65,535 bytes.
    pub fn content_type(self, content_type: &str) -> Result<Self, InvalidError> {
        self.property(Property::ContentType(content_type))
    }

    /// Sets the topic for the answer (MQTT 5, section 3.3.2.3.5).
    ///
    /// # Errors
    /// When it is not a topic that can be published to.
    pub fn response_topic(self, topic: &str) -> Result<Self, InvalidError> {
        self.property(Property::ResponseTopic(topic))
    }

    /// Data that the answer must carry, so that the requester recognises it (MQTT 5).
    ///
    /// # Errors
    /// When it is longer than 65,535 bytes.
    pub fn correlation_data(self, data: &[u8]) -> Result<Self, InvalidError> {
        self.property(Property::CorrelationData(data))
    }

    /// Adds a name with a value; their order is kept and names may come twice (MQTT 5).
    ///
    /// # Errors
    /// When either is not a valid string of at most 65,535 bytes.
    pub fn user_property(self, name: &str, value: &str) -> Result<Self, InvalidError> {
        self.property(Property::UserProperty(name, value))
    }

    /// Adds any property of a PUBLISH. Those that the connection sets itself (Topic Alias,
    /// Subscription Identifier) are refused. Versions before MQTT 5 don't send properties.
    ///
    /// # Errors
    /// When the property cannot stand in a message, stands there already, or its value is not
    /// valid.
    pub fn property(mut self, property: Property<'_>) -> Result<Self, InvalidError> {
        if matches!(
            property,
            Property::TopicAlias(_) | Property::SubscriptionIdentifier(_)
        ) {
            return Err(InvalidError::Range);
        }
        push(&mut self.properties, property, PropertyContext::Publish)?;
        Ok(self)
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }
}

impl fmt::Debug for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publish")
            .field("topic", &self.topic)
            .field("payload_bytes", &self.payload.len())
            .field("qos", &self.qos)
            .field("retain", &self.retain)
            .finish_non_exhaustive()
    }
}

/// Adds a property to a block and checks the block as the receiver would.
pub(crate) fn push(
    block: &mut PropertyBuf,
    property: Property<'_>,
    context: PropertyContext,
) -> Result<(), InvalidError> {
    let mut grown = block.clone();
    grown.push(property)?;
    Properties::parse(grown.properties().raw(), context).map_err(|_| match property {
        Property::ResponseTopic(_) => InvalidError::Topic,
        Property::SubscriptionIdentifier(_)
        | Property::ReceiveMaximum(_)
        | Property::MaximumPacketSize(_) => InvalidError::Range,
        _ => InvalidError::Field,
    })?;
    *block = grown;
    Ok(())
}

/// A topic filter with the options of its subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub(crate) filter: String,
    pub(crate) options: SubscribeOptions,
    pub(crate) identifier: Option<u32>,
}

impl Subscription {
    /// A subscription with this highest QoS and the options of MQTT 3.1.1.
    ///
    /// # Errors
    /// When the filter is not valid.
    pub fn new(filter: impl Into<String>, qos: QoS) -> Result<Self, InvalidError> {
        let filter = filter.into();
        topic::check_any_filter(&filter).map_err(|_| InvalidError::Filter)?;
        Ok(Self {
            filter,
            options: SubscribeOptions::new(qos),
            identifier: None,
        })
    }

    /// Leaves out messages of this client itself (No Local; MQTT 5, section 3.8.3.1). Not for
    /// shared subscriptions.
    ///
    /// # Errors
    /// When the subscription is shared.
    pub fn no_local(mut self) -> Result<Self, InvalidError> {
        if topic::is_shared(&self.filter) {
            return Err(InvalidError::Filter);
        }
        self.options.no_local = true;
        Ok(self)
    }

    /// Passes the RETAIN flag on as the publisher set it (MQTT 5).
    #[must_use]
    pub const fn retain_as_published(mut self) -> Self {
        self.options.retain_as_published = true;
        self
    }

    /// Selects the retained messages that are sent when the subscription is made (MQTT 5, section
    /// 3.8.3.1).
    #[must_use]
    pub const fn retain_handling(mut self, handling: RetainHandling) -> Self {
        self.options.retain_handling = handling;
        self
    }

    /// A number that the server puts on every message of this subscription (MQTT 5).
    ///
    /// # Errors
    /// When it is not from 1 to 268,435,455.
    pub fn identifier(mut self, identifier: u32) -> Result<Self, InvalidError> {
        if identifier == 0 || identifier > 268_435_455 {
            return Err(InvalidError::Range);
        }
        self.identifier = Some(identifier);
        Ok(self)
    }

    /// The topic filter.
    #[must_use]
    pub fn filter(&self) -> &str {
        &self.filter
    }
}

/// A message that a server publishes in a client's name when the client is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    pub(crate) message: Publish,
    pub(crate) properties: PropertyBuf,
}

impl Will {
    /// The message becomes the will, with its properties.
    ///
    /// # Errors
    /// When the payload is longer than 65,535 bytes.
    pub fn new(message: Publish) -> Result<Self, InvalidError> {
        if message.payload.len() > 65_535 {
            return Err(InvalidError::Field);
        }
        let properties = message.properties.clone();
        Ok(Self {
            message,
            properties,
        })
    }

    /// Seconds that the server waits for the client to come back (MQTT 5).
    ///
    /// # Errors
    /// When the delay was set before.
    pub fn delay_s(mut self, seconds: u32) -> Result<Self, InvalidError> {
        push(
            &mut self.properties,
            Property::WillDelayInterval(seconds),
            PropertyContext::Will,
        )?;
        Ok(self)
    }
}

/// A message that came in.
///
/// Topic, properties and payload lie in one piece of memory. So keeping a message, or passing it to
/// another task, costs one allocation. Clones share it.
#[derive(Clone)]
pub struct Message {
    /// Topic, property block, payload, one behind the other.
    body: Bytes,
    topic_bytes: u16,
    properties_bytes: u32,
    packet_id: u16,
    qos: QoS,
    retain: bool,
    duplicate: bool,
    /// Number of the connection over which it came.
    connection: u64,
}

impl Message {
    pub(crate) fn new(publish: &packet::Publish<'_>, connection: u64) -> Self {
        let properties = publish.properties.raw();
        let mut body =
            BytesMut::with_capacity(publish.topic.len() + properties.len() + publish.payload.len());
        body.put_slice(publish.topic.as_bytes());
        body.put_slice(properties);
        body.put_slice(publish.payload);
        Self {
            body: body.freeze(),
            topic_bytes: publish.topic.len() as u16,
            properties_bytes: properties.len() as u32,
            packet_id: publish.packet_id.map_or(0, PacketId::get),
            qos: publish.qos,
            retain: publish.retain,
            duplicate: publish.dup,
            connection,
        }
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        // It was a string before it was copied here, so this never gives the empty one.
        std::str::from_utf8(&self.body[..usize::from(self.topic_bytes)]).unwrap_or_default()
    }

    /// The payload, sharing the message's memory.
    #[must_use]
    pub fn payload(&self) -> Bytes {
        self.body.slice(self.payload_start()..)
    }

    /// The payload.
    #[must_use]
    pub fn payload_bytes(&self) -> &[u8] {
        &self.body[self.payload_start()..]
    }

    fn payload_start(&self) -> usize {
        usize::from(self.topic_bytes) + self.properties_bytes as usize
    }

    /// The properties of MQTT 5; empty with older versions.
    #[must_use]
    pub fn properties(&self) -> PublishProperties<'_> {
        let raw = &self.body[usize::from(self.topic_bytes)..self.payload_start()];
        // They were valid when they were copied here.
        PublishProperties::parse(raw, PropertyContext::Publish).unwrap_or(PublishProperties::EMPTY)
    }

    /// The QoS with which it was delivered.
    #[must_use]
    pub const fn qos(&self) -> QoS {
        self.qos
    }

    /// Whether the message is a retained one, sent because of a new subscription. With "retain as
    /// published": whether its publisher wanted it retained.
    #[must_use]
    pub const fn retain(&self) -> bool {
        self.retain
    }

    /// Whether it may have come before.
    #[must_use]
    pub const fn is_duplicate(&self) -> bool {
        self.duplicate
    }

    pub(crate) const fn connection(&self) -> u64 {
        self.connection
    }

    /// The identifier of the delivery; 0 with QoS 0.
    #[must_use]
    pub const fn packet_id(&self) -> u16 {
        self.packet_id
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("topic", &self.topic())
            .field("payload_bytes", &self.payload_bytes().len())
            .field("qos", &self.qos)
            .field("retain", &self.retain)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_messages_cannot_be_made() {
        for topic in ["", "a/+", "#", "a\0b"] {
            assert_eq!(
                Publish::new(topic, "").unwrap_err(),
                InvalidError::Topic,
                "{topic:?}"
            );
        }
        let message = || Publish::new("a", "").unwrap();
        for topic in ["", "a/#"] {
            assert_eq!(
                message().response_topic(topic).unwrap_err(),
                InvalidError::Topic,
                "{topic:?}"
            );
        }
        assert_eq!(
            message().content_type("\0").unwrap_err(),
            InvalidError::Field
        );
        let long = "x".repeat(65_536);
        assert_eq!(
            message().user_property("a", &long).unwrap_err(),
            InvalidError::Field
        );
        let once = message().expires_after_s(1).unwrap();
        assert_eq!(once.expires_after_s(2).unwrap_err(), InvalidError::Field);
        assert_eq!(
            message().property(Property::TopicAlias(1)).unwrap_err(),
            InvalidError::Range
        );
        let large = message().payload(vec![0; 65_536]);
        assert_eq!(Will::new(large).unwrap_err(), InvalidError::Field);
    }

    #[test]
    fn invalid_subscriptions_cannot_be_made() {
        for filter in ["", "a/b#", "a+", "$share//a"] {
            let made = Subscription::new(filter, QoS::AtMostOnce);
            assert_eq!(made.unwrap_err(), InvalidError::Filter, "{filter:?}");
        }
        let plain = Subscription::new("a/+/#", QoS::ExactlyOnce).unwrap();
        assert_eq!(
            plain.clone().identifier(0).unwrap_err(),
            InvalidError::Range
        );
        assert_eq!(
            plain.clone().identifier(268_435_456).unwrap_err(),
            InvalidError::Range
        );
        assert!(plain.identifier(268_435_455).unwrap().no_local().is_ok());
        let shared = Subscription::new("$share/g/a", QoS::AtMostOnce).unwrap();
        assert_eq!(shared.no_local().unwrap_err(), InvalidError::Filter);
    }

    #[test]
    fn a_message_keeps_all_its_parts() {
        let mut block = PropertyBuf::new();
        block.push(Property::ContentType("text")).unwrap();
        block.push(Property::SubscriptionIdentifier(7)).unwrap();
        let message = Message::new(
            &packet::Publish {
                dup: true,
                qos: QoS::AtLeastOnce,
                retain: true,
                topic: "a/b",
                packet_id: PacketId::new(5),
                properties: block.publish_properties(PropertyContext::Publish).unwrap(),
                payload: b"data",
            },
            1,
        );
        assert_eq!(
            (message.topic(), message.payload_bytes()),
            ("a/b", &b"data"[..])
        );
        assert_eq!(message.payload(), "data");
        assert_eq!(message.properties().content_type(), Some("text"));
        assert_eq!(
            message
                .properties()
                .subscription_identifiers()
                .collect::<Vec<_>>(),
            [7]
        );
        assert_eq!((message.packet_id(), message.qos()), (5, QoS::AtLeastOnce));
        assert!(message.retain() && message.is_duplicate());
        assert!(format!("{message:?}").contains("payload_bytes: 4"));
    }
}
