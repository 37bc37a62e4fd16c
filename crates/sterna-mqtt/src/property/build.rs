//! Properties to be sent.

use super::{Properties, Property, PropertyContext, PropertyId, PublishProperties};
use crate::wire::varint_bytes;
use crate::{DecodeError, EncodeError, text};

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
    /// [`EncodeError::FieldTooLong`] for a string or binary value of more than 65,535 bytes, and
    /// [`EncodeError::NullCharacter`] for a string with U+0000. The block is as before.
    pub fn push(&mut self, property: Property<'_>) -> Result<(), EncodeError> {
        match property {
            Property::PayloadFormatIndicator(v) => self.bool(PropertyId::PayloadFormatIndicator, v),
            Property::MessageExpiryInterval(v) => self.u32(PropertyId::MessageExpiryInterval, v),
            Property::ContentType(v) => self.string(PropertyId::ContentType, v)?,
            Property::ResponseTopic(v) => self.string(PropertyId::ResponseTopic, v)?,
            Property::CorrelationData(v) => self.binary(PropertyId::CorrelationData, v)?,
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
                self.string(PropertyId::AssignedClientIdentifier, v)?;
            }
            Property::ServerKeepAlive(v) => self.u16(PropertyId::ServerKeepAlive, v),
            Property::AuthenticationMethod(v) => {
                self.string(PropertyId::AuthenticationMethod, v)?;
            }
            Property::AuthenticationData(v) => self.binary(PropertyId::AuthenticationData, v)?,
            Property::RequestProblemInformation(v) => {
                self.bool(PropertyId::RequestProblemInformation, v);
            }
            Property::WillDelayInterval(v) => self.u32(PropertyId::WillDelayInterval, v),
            Property::RequestResponseInformation(v) => {
                self.bool(PropertyId::RequestResponseInformation, v);
            }
            Property::ResponseInformation(v) => {
                self.string(PropertyId::ResponseInformation, v)?;
            }
            Property::ServerReference(v) => {
                self.string(PropertyId::ServerReference, v)?;
            }
            Property::ReasonString(v) => self.string(PropertyId::ReasonString, v)?,
            Property::ReceiveMaximum(v) => self.u16(PropertyId::ReceiveMaximum, v),
            Property::TopicAliasMaximum(v) => self.u16(PropertyId::TopicAliasMaximum, v),
            Property::TopicAlias(v) => self.u16(PropertyId::TopicAlias, v),
            Property::MaximumQoS(v) => self.bool(PropertyId::MaximumQoS, v != 0),
            Property::RetainAvailable(v) => self.bool(PropertyId::RetainAvailable, v),
            Property::UserProperty(name, value) => {
                check_text(value)?;
                self.string(PropertyId::UserProperty, name)?;
                self.field(value.as_bytes());
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

    /// Appends all properties of another block.
    pub fn extend(&mut self, properties: Properties<'_>) {
        self.bytes.extend_from_slice(properties.raw);
    }

    /// Shortens the block to its state of `len` bytes.
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

    fn string(&mut self, id: PropertyId, value: &str) -> Result<(), EncodeError> {
        check_text(value)?;
        self.bytes.push(id as u8);
        self.field(value.as_bytes());
        Ok(())
    }

    fn binary(&mut self, id: PropertyId, value: &[u8]) -> Result<(), EncodeError> {
        check_length(value)?;
        self.bytes.push(id as u8);
        self.field(value);
        Ok(())
    }

    /// Appends a field whose length was checked.
    fn field(&mut self, value: &[u8]) {
        self.bytes
            .extend_from_slice(&(value.len() as u16).to_be_bytes());
        self.bytes.extend_from_slice(value);
    }
}

fn check_length(value: &[u8]) -> Result<(), EncodeError> {
    if value.len() > 65_535 {
        return Err(EncodeError::FieldTooLong);
    }
    Ok(())
}

/// Checks that a text is a UTF-8 Encoded String.
fn check_text(value: &str) -> Result<(), EncodeError> {
    check_length(value.as_bytes())?;
    // [MQTT-1.5.4-2]
    if text::has_any(value.as_bytes(), [0]) {
        return Err(EncodeError::NullCharacter);
    }
    Ok(())
}
