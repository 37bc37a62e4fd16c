//! The properties of a message: those of a PUBLISH or a will, and those that are passed on.

use super::{Properties, Property, PropertyContext, PropertyIter, validate, value};
use crate::wire::Reader;
use crate::{DecodeError, ReasonCode};

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
    has_identifier: bool,
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
        has_identifier: false,
    };

    /// Validates the properties (without their length) of a PUBLISH or of a will.
    ///
    /// # Errors
    ///
    /// As for [`Properties::parse`], and `TopicAliasInvalid` for a Topic Alias of 0.
    #[inline]
    pub fn parse(raw: &'a [u8], context: PropertyContext) -> Result<Self, DecodeError> {
        if raw.is_empty() {
            Ok(Self::EMPTY)
        } else {
            Self::parse_some(raw, context)
        }
    }

    fn parse_some(raw: &'a [u8], context: PropertyContext) -> Result<Self, DecodeError> {
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
                11 => this.has_identifier = true,
                24 => {}
                _ => previous_kept = Some(start),
            }
        })?;
        if let Some(kept) = previous_kept {
            this.keep(kept, raw.len() as u32);
        }
        // [MQTT-3.3.2-7] [MQTT-3.3.2-8]
        if this.alias == Some(0) {
            return Err(DecodeError::new(
                ReasonCode::TopicAliasInvalid,
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
        self.all().find(value!(WillDelayInterval)).unwrap_or(0)
    }

    /// Whether the payload is declared to be UTF-8 text.
    #[must_use]
    pub fn is_utf8_payload(&self) -> bool {
        self.all()
            .find(value!(PayloadFormatIndicator))
            .unwrap_or(false)
    }

    /// The Content Type.
    #[must_use]
    pub fn content_type(&self) -> Option<&'a str> {
        self.all().find(value!(ContentType))
    }

    /// The Response Topic.
    #[must_use]
    pub fn response_topic(&self) -> Option<&'a str> {
        self.all().find(value!(ResponseTopic))
    }

    /// The Correlation Data.
    #[must_use]
    pub fn correlation_data(&self) -> Option<&'a [u8]> {
        self.all().find(value!(CorrelationData))
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

    /// Whether there is a Subscription Identifier.
    #[must_use]
    pub const fn has_subscription_identifier(&self) -> bool {
        self.has_identifier
    }

    /// The properties passed on to subscribers, unaltered and in order. Left out are Topic Alias,
    /// Message Expiry Interval, Subscription Identifiers and Will Delay Interval.
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
