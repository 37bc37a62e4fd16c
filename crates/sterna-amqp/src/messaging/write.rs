//! Writes messages (part 3, section 3.2).

use bytes::BytesMut;

use super::sections::{Header, Properties};
use super::view::SectionKind;
use crate::types::{Composite as _, List, Map, MapWriter, Value, encode_descriptor};

/// Appends the sections of a message. Call the methods in the order of the sections.
#[derive(Debug)]
pub struct MessageWriter<'o> {
    out: &'o mut BytesMut,
}

impl<'o> MessageWriter<'o> {
    /// Writes to the end of `out`.
    pub fn new(out: &'o mut BytesMut) -> Self {
        Self { out }
    }

    fn section(&mut self, kind: SectionKind, write: impl FnOnce(&mut BytesMut)) -> &mut Self {
        encode_descriptor(self.out, kind.code());
        write(self.out);
        self
    }

    fn map(&mut self, kind: SectionKind, write: impl FnOnce(&mut MapWriter<'_>)) -> &mut Self {
        self.section(kind, |out| {
            let mut map = MapWriter::new(out);
            write(&mut map);
            map.finish();
        })
    }

    /// The header.
    pub fn header(&mut self, header: &Header) -> &mut Self {
        header.encode(self.out);
        self
    }

    /// Delivery annotations.
    pub fn delivery_annotations(&mut self, write: impl FnOnce(&mut MapWriter<'_>)) -> &mut Self {
        self.map(SectionKind::DeliveryAnnotations, write)
    }

    /// Message annotations.
    pub fn message_annotations(&mut self, write: impl FnOnce(&mut MapWriter<'_>)) -> &mut Self {
        self.map(SectionKind::MessageAnnotations, write)
    }

    /// Message annotations as they came.
    pub fn message_annotations_of(&mut self, map: Map<'_>) -> &mut Self {
        self.section(SectionKind::MessageAnnotations, |out| {
            Value::Map(map).encode(out);
        })
    }

    /// Properties.
    pub fn properties(&mut self, properties: &Properties<'_>) -> &mut Self {
        properties.encode(self.out);
        self
    }

    /// Application properties.
    pub fn application_properties(&mut self, write: impl FnOnce(&mut MapWriter<'_>)) -> &mut Self {
        self.map(SectionKind::ApplicationProperties, write)
    }

    /// A data section; there may be several.
    pub fn data(&mut self, bytes: &[u8]) -> &mut Self {
        self.section(SectionKind::Data, |out| Value::Binary(bytes).encode(out))
    }

    /// An amqp-sequence section; there may be several.
    pub fn sequence(&mut self, list: List<'_>) -> &mut Self {
        self.section(SectionKind::AmqpSequence, |out| {
            Value::List(list).encode(out);
        })
    }

    /// An amqp-value section.
    pub fn value(&mut self, value: &Value<'_>) -> &mut Self {
        self.value_with(|out| value.encode(out))
    }

    /// An amqp-value section with the output of `write`: exactly one value.
    pub fn value_with(&mut self, write: impl FnOnce(&mut BytesMut)) -> &mut Self {
        self.section(SectionKind::AmqpValue, write)
    }

    /// The footer.
    pub fn footer(&mut self, write: impl FnOnce(&mut MapWriter<'_>)) -> &mut Self {
        self.map(SectionKind::Footer, write)
    }
}
