//! Messages with all their sections (part 3, section 3.2).

use bytes::{Bytes, BytesMut};
use sterna_amqp::DecodeError;
use sterna_amqp::messaging::{self, MessageView, MessageWriter, SectionKind, Sections};
use sterna_amqp::types::{self, Symbol, Timestamp};

use super::value::{Value, entries_of, fill_map};

pub use sterna_amqp::messaging::Header;

/// Entries of a map whose keys are symbols, as a rule.
pub type Annotations = Vec<(Value, Value)>;

/// Properties of a message that do not change on its way (section 3.2.4).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Properties {
    /// Names the message: a ulong, uuid, binary or string.
    pub message_id: Option<Value>,
    /// User that made the message.
    pub user_id: Option<Bytes>,
    /// The node it is for.
    pub to: Option<String>,
    /// Subject of the message.
    pub subject: Option<String>,
    /// The node for answers.
    pub reply_to: Option<String>,
    /// The message that this one answers: a ulong, uuid, binary or string.
    pub correlation_id: Option<Value>,
    /// MIME type of the body.
    pub content_type: Option<String>,
    /// Encodings of the body on top of its type.
    pub content_encoding: Option<String>,
    /// Time at which the message becomes useless, in milliseconds since the Unix epoch.
    pub absolute_expiry_time_ms: Option<i64>,
    /// Time of its creation, in milliseconds since the Unix epoch.
    pub creation_time_ms: Option<i64>,
    /// The group it belongs to.
    pub group_id: Option<String>,
    /// Place of the message in its group.
    pub group_sequence: Option<u32>,
    /// The group of answers.
    pub reply_to_group_id: Option<String>,
}

/// The body of a message (sections 3.2.6 to 3.2.8).
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// None, which the specification does not know but some peers send.
    Empty,
    /// Data sections, one as a rule.
    Data(Vec<Bytes>),
    /// Sequence sections.
    Sequence(Vec<Vec<Value>>),
    /// One value of any type.
    Value(Value),
}

/// A message.
///
/// ```
/// use sterna_client::amqp::{Message, Value};
///
/// let mut message = Message::data("21.5");
/// message.properties.content_type = Some("text/plain".into());
/// message.application_properties.push(("unit".into(), Value::from("°C")));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Annotations for intermediaries.
    pub header: Option<Header>,
    /// For the next hop only.
    pub delivery_annotations: Annotations,
    /// Annotations for the next hop.
    pub message_annotations: Annotations,
    /// Properties of the sender.
    pub properties: Properties,
    /// Properties of the application; no lists, maps or arrays.
    pub application_properties: Vec<(String, Value)>,
    /// The body.
    pub body: Body,
    /// Annotations that follow the body.
    pub footer: Annotations,
}

impl Message {
    /// A message with this body and nothing else.
    #[must_use]
    pub fn new(body: Body) -> Self {
        Self {
            header: None,
            delivery_annotations: Vec::new(),
            message_annotations: Vec::new(),
            properties: Properties::default(),
            application_properties: Vec::new(),
            body,
            footer: Vec::new(),
        }
    }

    /// A message of one data section.
    #[must_use]
    pub fn data(bytes: impl Into<Bytes>) -> Self {
        Self::new(Body::Data(vec![bytes.into()]))
    }

    /// A message of one value.
    #[must_use]
    pub fn value(value: impl Into<Value>) -> Self {
        Self::new(Body::Value(value.into()))
    }

    /// The bytes of a body that is one data section.
    #[must_use]
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.body {
            Body::Data(sections) if sections.len() == 1 => sections.first(),
            _ => None,
        }
    }

    /// Reads a message of format 0. Data sections share the payload.
    ///
    /// # Errors
    /// When the payload is no message of format 0.
    pub fn decode(payload: &Bytes) -> Result<Self, DecodeError> {
        let view = MessageView::parse(payload)?;
        view.validate()?;
        let map = |map: Option<types::Map<'_>>| map.map(entries_of).unwrap_or_default();
        let application = view.application_properties().into_iter().flatten();
        Ok(Self {
            header: view.header()?,
            delivery_annotations: map(view.delivery_annotations()),
            message_annotations: map(view.message_annotations()),
            properties: view
                .properties()?
                .map_or_else(Properties::default, |view| Properties::from_view(&view)),
            application_properties: application
                .filter_map(|(key, value)| Some((key.as_text()?.to_owned(), value.into())))
                .collect(),
            body: Body::from_view(payload, &view)?,
            footer: map(view.footer()),
        })
    }

    /// The payload of the message's delivery.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let body_bytes = match &self.body {
            Body::Data(sections) => sections.iter().map(|bytes| bytes.len() + 8).sum(),
            _ => 0,
        };
        let mut out = BytesMut::with_capacity(body_bytes + 128);
        let mut writer = MessageWriter::new(&mut out);
        if let Some(header) = &self.header {
            writer.header(header);
        }
        if !self.delivery_annotations.is_empty() {
            writer.delivery_annotations(|map| fill_map(&self.delivery_annotations, map));
        }
        if !self.message_annotations.is_empty() {
            writer.message_annotations(|map| fill_map(&self.message_annotations, map));
        }
        if self.properties != Properties::default() {
            self.properties.write(&mut writer);
        }
        if !self.application_properties.is_empty() {
            writer.application_properties(|map| {
                for (key, value) in &self.application_properties {
                    value.encode(map.entry(&types::Value::String(key)));
                }
            });
        }
        self.body.write(&mut writer);
        if !self.footer.is_empty() {
            writer.footer(|map| fill_map(&self.footer, map));
        }
        out.freeze()
    }
}

/// An identifier as the engine knows it; other types cannot name a message and are left out.
fn identifier(value: Option<&Value>) -> Option<messaging::MessageId<'_>> {
    match value? {
        Value::Ulong(id) => Some(messaging::MessageId::Ulong(*id)),
        Value::Uuid(id) => Some(messaging::MessageId::Uuid(*id)),
        Value::Binary(id) => Some(messaging::MessageId::Binary(id)),
        Value::String(id) => Some(messaging::MessageId::String(id)),
        _ => None,
    }
}

impl Properties {
    fn from_view(view: &messaging::Properties<'_>) -> Self {
        let id = |id: messaging::MessageId<'_>| Value::from(types::Value::from(id));
        let address = |value: types::Value<'_>| value.as_text().map(str::to_owned);
        Self {
            message_id: view.message_id.map(id),
            user_id: view.user_id.map(Bytes::copy_from_slice),
            to: view.to.and_then(address),
            subject: view.subject.map(str::to_owned),
            reply_to: view.reply_to.and_then(address),
            correlation_id: view.correlation_id.map(id),
            content_type: view.content_type.map(|symbol| symbol.0.to_owned()),
            content_encoding: view.content_encoding.map(|symbol| symbol.0.to_owned()),
            absolute_expiry_time_ms: view.absolute_expiry_time.map(|time| time.0),
            creation_time_ms: view.creation_time.map(|time| time.0),
            group_id: view.group_id.map(str::to_owned),
            group_sequence: view.group_sequence,
            reply_to_group_id: view.reply_to_group_id.map(str::to_owned),
        }
    }

    fn write(&self, writer: &mut MessageWriter<'_>) {
        writer.properties(&messaging::Properties {
            message_id: identifier(self.message_id.as_ref()),
            user_id: self.user_id.as_deref(),
            to: self.to.as_deref().map(types::Value::String),
            subject: self.subject.as_deref(),
            reply_to: self.reply_to.as_deref().map(types::Value::String),
            correlation_id: identifier(self.correlation_id.as_ref()),
            content_type: self.content_type.as_deref().map(Symbol),
            content_encoding: self.content_encoding.as_deref().map(Symbol),
            absolute_expiry_time: self.absolute_expiry_time_ms.map(Timestamp),
            creation_time: self.creation_time_ms.map(Timestamp),
            group_id: self.group_id.as_deref(),
            group_sequence: self.group_sequence,
            reply_to_group_id: self.reply_to_group_id.as_deref(),
        });
    }
}

impl Body {
    fn from_view(payload: &Bytes, view: &MessageView<'_>) -> Result<Self, DecodeError> {
        let sections = |kind: SectionKind| {
            Sections::new(payload).filter(move |section| {
                section
                    .as_ref()
                    .map_or(true, |section| section.kind == kind)
            })
        };
        Ok(match view.body() {
            messaging::Body::Empty => Self::Empty,
            messaging::Body::Value(value) => Self::Value(value.into()),
            messaging::Body::Data(_) => {
                let mut parts = Vec::new();
                for section in sections(SectionKind::Data) {
                    if let types::Value::Binary(bytes) = section?.value {
                        parts.push(payload.slice_ref(bytes));
                    }
                }
                Self::Data(parts)
            }
            messaging::Body::Sequences(_) => {
                let mut parts = Vec::new();
                for section in sections(SectionKind::AmqpSequence) {
                    if let types::Value::List(list) = section?.value {
                        parts.push(list.iter().map(Into::into).collect());
                    }
                }
                Self::Sequence(parts)
            }
        })
    }

    fn write(&self, writer: &mut MessageWriter<'_>) {
        match self {
            Self::Empty => {}
            Self::Data(sections) => {
                for bytes in sections {
                    writer.data(bytes);
                }
            }
            Self::Sequence(sections) => {
                for values in sections {
                    let mut list = BytesMut::new();
                    Value::List(values.clone()).encode(&mut list);
                    if let Ok(types::Value::List(list)) = types::Value::decode(&list) {
                        writer.sequence(list);
                    }
                }
            }
            Self::Value(value) => {
                writer.value_with(|out| value.encode(out));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(body: Body) -> Message {
        Message {
            header: Some(Header {
                durable: true,
                priority: 7,
                ttl: Some(1000),
                first_acquirer: true,
                delivery_count: 2,
            }),
            delivery_annotations: vec![(Value::symbol("x-opt-d"), 1_u32.into())],
            message_annotations: vec![(Value::symbol("x-opt-retain"), true.into())],
            properties: Properties {
                message_id: Some(Value::Uuid([7; 16])),
                user_id: Some(Bytes::from_static(b"me")),
                to: Some("a/b".into()),
                subject: Some("s".into()),
                reply_to: Some("r".into()),
                correlation_id: Some(Value::Ulong(9)),
                content_type: Some("text/plain".into()),
                content_encoding: Some("gzip".into()),
                absolute_expiry_time_ms: Some(5),
                creation_time_ms: Some(6),
                group_id: Some("g".into()),
                group_sequence: Some(3),
                reply_to_group_id: Some("rg".into()),
            },
            application_properties: vec![("n".into(), 2.5_f64.into())],
            body,
            footer: vec![(Value::symbol("x-opt-f"), "foot".into())],
        }
    }

    #[test]
    fn every_section_comes_back() {
        for body in [
            Body::Empty,
            Body::Data(vec![Bytes::from_static(b"one"), Bytes::new()]),
            Body::Sequence(vec![vec![1_i32.into(), "two".into()], Vec::new()]),
            Body::Value(Value::Map(vec![("k".into(), Value::Null)])),
        ] {
            let message = full(body);
            let decoded = Message::decode(&message.encode()).unwrap();
            assert_eq!(decoded, message);
        }
        let bare = Message::data("x");
        assert_eq!(Message::decode(&bare.encode()).unwrap(), bare);
        assert!(Message::decode(&Bytes::from_static(b"nonsense")).is_err());
    }
}
