//! Messages as they came (part 3, section 3.2).

use std::ops::Range;

use super::sections::{Header, Properties};
use super::state::Received;
use crate::DecodeError;
use crate::types::{Composite as _, Described, List, Map, Reader, Value};

/// The sections of a message, in the order in which they come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the names are the specification's")]
pub enum SectionKind {
    Header,
    DeliveryAnnotations,
    MessageAnnotations,
    Properties,
    ApplicationProperties,
    Data,
    AmqpSequence,
    AmqpValue,
    Footer,
}

impl SectionKind {
    const ALL: [(Self, u64, &'static str); 9] = [
        (Self::Header, 0x70, "amqp:header:list"),
        (
            Self::DeliveryAnnotations,
            0x71,
            "amqp:delivery-annotations:map",
        ),
        (
            Self::MessageAnnotations,
            0x72,
            "amqp:message-annotations:map",
        ),
        (Self::Properties, 0x73, "amqp:properties:list"),
        (
            Self::ApplicationProperties,
            0x74,
            "amqp:application-properties:map",
        ),
        (Self::Data, 0x75, "amqp:data:binary"),
        (Self::AmqpSequence, 0x76, "amqp:amqp-sequence:list"),
        (Self::AmqpValue, 0x77, "amqp:amqp-value:*"),
        (Self::Footer, 0x78, "amqp:footer:map"),
    ];

    fn of(described: &Described<'_>) -> Option<Self> {
        match described.descriptor() {
            Value::Ulong(code @ 0x70..=0x78) => Some(Self::ALL[(code - 0x70) as usize].0),
            Value::Symbol(symbol) => Self::ALL
                .iter()
                .find(|(.., name)| *name == symbol)
                .map(|(kind, ..)| *kind),
            _ => None,
        }
    }

    /// The numeric descriptor.
    #[must_use]
    pub const fn code(self) -> u64 {
        0x70 + self as u64
    }

    const fn is_body(self) -> bool {
        matches!(self, Self::Data | Self::AmqpSequence | Self::AmqpValue)
    }
}

/// One section of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Section<'a> {
    /// Kind of the section.
    pub kind: SectionKind,
    /// Value of the section, without its descriptor.
    pub value: Value<'a>,
    /// Range of the section in the payload, with its descriptor.
    pub range: Range<usize>,
}

/// Walks the sections of a payload.
#[derive(Clone, Debug)]
pub struct Sections<'a> {
    reader: Reader<'a>,
    payload_bytes: usize,
}

impl<'a> Sections<'a> {
    /// The sections of a payload.
    #[must_use]
    pub const fn new(payload: &'a [u8]) -> Self {
        Self {
            reader: Reader::new(payload),
            payload_bytes: payload.len(),
        }
    }

    fn read(&mut self) -> Result<Section<'a>, DecodeError> {
        let start = self.payload_bytes - self.reader.rest().len();
        let Value::Described(described) = self.reader.value()? else {
            return Err(DecodeError::decode("section of a message is not described"));
        };
        let kind = SectionKind::of(&described)
            .ok_or(DecodeError::decode("unknown section of a message"))?;
        Ok(Section {
            kind,
            value: described.value(),
            range: start..self.payload_bytes - self.reader.rest().len(),
        })
    }
}

impl<'a> Iterator for Sections<'a> {
    type Item = Result<Section<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.is_empty() {
            return None;
        }
        let section = self.read();
        if section.is_err() {
            self.reader = Reader::new(&[]);
        }
        Some(section)
    }
}

/// A message whose sections have been found; nothing is copied.
#[derive(Clone, Debug)]
pub struct MessageView<'a> {
    payload: &'a [u8],
    header: Option<List<'a>>,
    delivery_annotations: Option<Map<'a>>,
    message_annotations: Option<Map<'a>>,
    properties: Option<List<'a>>,
    application_properties: Option<Map<'a>>,
    footer: Option<Map<'a>>,
    bare: Range<usize>,
    body: Range<usize>,
    /// The first section of the body.
    first: Option<(SectionKind, Value<'a>)>,
}

impl<'a> MessageView<'a> {
    /// Finds the sections of a message of format 0 and checks their order and types.
    ///
    /// # Errors
    ///
    /// `amqp:decode-error` for other bytes. A message without a body is accepted: the specification
    /// does not know it, but some clients send it.
    pub fn parse(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut view = Self {
            payload,
            header: None,
            delivery_annotations: None,
            message_annotations: None,
            properties: None,
            application_properties: None,
            footer: None,
            bare: 0..0,
            body: 0..0,
            first: None,
        };
        let mut last = None;
        let mut bare_start = None;
        for section in Sections::new(payload) {
            let Section { kind, value, range } = section?;
            let again = matches!(kind, SectionKind::Data | SectionKind::AmqpSequence);
            let in_order = last.is_none_or(|last| last < kind || (last == kind && again));
            let mixed = kind.is_body() && view.first.is_some_and(|(first, _)| first != kind);
            if !in_order || mixed {
                return Err(DecodeError::decode("sections of a message out of order"));
            }
            last = Some(kind);
            view.place(kind, value)?;
            if kind >= SectionKind::Properties && kind < SectionKind::Footer {
                let start = *bare_start.get_or_insert(range.start);
                view.bare = start..range.end;
            }
            if kind.is_body() {
                let start = if view.body.is_empty() {
                    range.start
                } else {
                    view.body.start
                };
                view.body = start..range.end;
            }
        }
        Ok(view)
    }

    fn place(&mut self, kind: SectionKind, value: Value<'a>) -> Result<(), DecodeError> {
        match (kind, value) {
            (SectionKind::Header, Value::List(list)) => self.header = Some(list),
            (SectionKind::DeliveryAnnotations, Value::Map(map)) => {
                self.delivery_annotations = Some(map);
            }
            (SectionKind::MessageAnnotations, Value::Map(map)) => {
                self.message_annotations = Some(map);
            }
            (SectionKind::Properties, Value::List(list)) => self.properties = Some(list),
            (SectionKind::ApplicationProperties, Value::Map(map)) => {
                self.application_properties = Some(map);
            }
            (SectionKind::Footer, Value::Map(map)) => self.footer = Some(map),
            (SectionKind::Data, Value::Binary(_))
            | (SectionKind::AmqpSequence, Value::List(_))
            | (SectionKind::AmqpValue, _) => {
                self.first.get_or_insert((kind, value));
            }
            _ => {
                return Err(DecodeError::decode(
                    "section of a message has the wrong type",
                ));
            }
        }
        Ok(())
    }

    /// The whole payload.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The header, if there is one.
    ///
    /// # Errors
    ///
    /// `amqp:decode-error` if its fields are wrong.
    pub fn header(&self) -> Result<Option<Header>, DecodeError> {
        self.header
            .map(|list| Header::decode_fields(list.len() as u32, list.body()))
            .transpose()
    }

    /// The properties, if there are any.
    ///
    /// # Errors
    ///
    /// `amqp:decode-error` if their fields are wrong.
    pub fn properties(&self) -> Result<Option<Properties<'a>>, DecodeError> {
        self.properties
            .map(|list| Properties::decode_fields(list.len() as u32, list.body()))
            .transpose()
    }

    /// Annotations of this delivery (section 3.2.2).
    #[must_use]
    pub const fn delivery_annotations(&self) -> Option<Map<'a>> {
        self.delivery_annotations
    }

    /// Annotations of nodes on the way (section 3.2.3).
    #[must_use]
    pub const fn message_annotations(&self) -> Option<Map<'a>> {
        self.message_annotations
    }

    /// Properties of the application (section 3.2.5).
    #[must_use]
    pub const fn application_properties(&self) -> Option<Map<'a>> {
        self.application_properties
    }

    /// Values that were known only after the body (section 3.2.9).
    #[must_use]
    pub const fn footer(&self) -> Option<Map<'a>> {
        self.footer
    }

    /// Range of the bare message in the payload: properties, application properties and body, which
    /// do not change on the way.
    #[must_use]
    pub fn bare(&self) -> Range<usize> {
        self.bare.clone()
    }

    /// Range of the body's sections in the payload.
    #[must_use]
    pub fn body_range(&self) -> Range<usize> {
        self.body.clone()
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> Body<'a> {
        let sections = Sections::new(&self.payload[self.body.clone()]);
        match self.first {
            None => Body::Empty,
            Some((SectionKind::AmqpValue, value)) => Body::Value(value),
            Some((SectionKind::AmqpSequence, _)) => Body::Sequences(sections),
            Some(_) => Body::Data(sections),
        }
    }

    /// The bytes of a body that is one data section.
    #[must_use]
    pub fn data(&self) -> Option<&'a [u8]> {
        let Body::Data(mut sections) = self.body() else {
            return None;
        };
        match (sections.next()?.ok()?.value, sections.next()) {
            (Value::Binary(bytes), None) => Some(bytes),
            _ => None,
        }
    }

    /// Checks the parts that [`MessageView::parse`] leaves for later. These are the fields of
    /// header and properties, and the keys of every map (section 3.2.10). Also the types of
    /// application properties (section 3.2.5).
    ///
    /// # Errors
    ///
    /// `amqp:decode-error` or `amqp:invalid-field`.
    pub fn validate(&self) -> Result<(), DecodeError> {
        self.header()?;
        self.properties()?;
        for annotations in [
            self.delivery_annotations,
            self.message_annotations,
            self.footer,
        ] {
            annotations.unwrap_or(Map::EMPTY).check_keys(|key| {
                // Ulongs are reserved, but there.
                matches!(key, Value::Symbol(_) | Value::Ulong(_))
            })?;
        }
        let application = self.application_properties.unwrap_or(Map::EMPTY);
        application.check_keys(|key| matches!(key, Value::String(_)))?;
        let compound = |value: &Value<'_>| {
            matches!(
                value,
                Value::List(_) | Value::Map(_) | Value::Array(_) | Value::Described(_)
            )
        };
        if application.iter().any(|(_, value)| compound(&value)) {
            return Err(DecodeError::invalid(
                "application property has a type that is not simple",
            ));
        }
        Ok(())
    }

    /// Offset in the payload at which a delivery continues after `received`. `None` if the payload
    /// does not have that place.
    #[must_use]
    pub fn offset_of(&self, received: Received) -> Option<usize> {
        let section = Sections::new(self.payload)
            .nth(received.section_number as usize)?
            .ok()?;
        let offset = usize::try_from(received.section_offset).ok()?;
        (offset <= section.range.len()).then(|| section.range.start + offset)
    }
}

/// The body of a message (sections 3.2.6 to 3.2.8).
#[derive(Clone, Debug)]
pub enum Body<'a> {
    /// None, which some clients send.
    Empty,
    /// One or more data sections: binary values.
    Data(Sections<'a>),
    /// One or more amqp-sequence sections: lists.
    Sequences(Sections<'a>),
    /// One amqp-value section.
    Value(Value<'a>),
}
