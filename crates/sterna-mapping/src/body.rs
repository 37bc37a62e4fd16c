//! Bodies of AMQP as payloads of MQTT and HTTP, and back.

use std::borrow::Cow;

use bytes::{BufMut as _, BytesMut};
use sterna_amqp::messaging::{Body, MessageView, MessageWriter, SectionKind, Sections};
use sterna_amqp::types::{Value, code};

use crate::json::{self, Json};
use crate::text::{self, Simple};

/// Content Type of the text of a simple value.
const TEXT: &str = "text/plain";
/// Content Type of a map or list.
const JSON: &str = "application/json";

const NULL: &str = "null";
const LIST: &str = "list";
const MAP: &str = "map";
/// One sequence section.
const SEQUENCE: &str = "sequence";

/// Longest mark: a User Property holds no more (MQTT 5.0, section 1.5.4).
const MAX_MARK_BYTES: usize = 65_535;

/// A body as a payload.
#[derive(Debug)]
pub(crate) struct Payload<'a> {
    pub(crate) bytes: Cow<'a, [u8]>,
    /// Whether the payload is text.
    pub(crate) is_text: bool,
    /// The type that the text or the bytes alone do not say.
    pub(crate) mark: Option<Cow<'static, str>>,
    /// Content Type where the message has none.
    pub(crate) content_type: Option<&'static str>,
    /// Whether the payload is the encoding of the body's sections.
    pub(crate) is_encoded: bool,
}

impl<'a> Payload<'a> {
    const fn bytes(bytes: &'a [u8]) -> Self {
        Self {
            bytes: Cow::Borrowed(bytes),
            is_text: false,
            mark: None,
            content_type: None,
            is_encoded: false,
        }
    }

    fn encoded(view: &MessageView<'a>) -> Self {
        Self {
            is_encoded: true,
            ..Self::bytes(&view.payload()[view.body_range()])
        }
    }

    fn json(json: Json, name: &'static str) -> Option<Self> {
        let mark = if json.types.is_empty() {
            Cow::Borrowed(name)
        } else {
            Cow::Owned(format!("{name} {}", json.types))
        };
        (mark.len() <= MAX_MARK_BYTES).then_some(Self {
            bytes: Cow::Owned(json.text),
            is_text: true,
            mark: Some(mark),
            content_type: Some(JSON),
            is_encoded: false,
        })
    }

    fn of_value(value: &Value<'a>) -> Option<Self> {
        Some(match *value {
            Value::Null => Self {
                mark: Some(Cow::Borrowed(NULL)),
                ..Self::bytes(&[])
            },
            Value::String(text) => Self {
                is_text: true,
                ..Self::bytes(text.as_bytes())
            },
            Value::Binary(bytes) => Self {
                mark: Some(Cow::Borrowed(Simple::Binary.name())),
                ..Self::bytes(bytes)
            },
            Value::List(_) => Self::json(json::of_compound(value)?, LIST)?,
            Value::Map(_) => Self::json(json::of_compound(value)?, MAP)?,
            _ => {
                let (simple, text) = text::exact(value)?;
                Self {
                    bytes: match text {
                        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
                    },
                    is_text: true,
                    mark: Some(Cow::Borrowed(simple.name())),
                    content_type: Some(TEXT),
                    is_encoded: false,
                }
            }
        })
    }

    /// The payload for a message's body.
    pub(crate) fn of(view: &MessageView<'a>) -> Self {
        if let Some(data) = view.data() {
            return Self::bytes(data);
        }
        let known = match view.body() {
            Body::Empty => Some(Self::bytes(&[])),
            Body::Value(value) => Self::of_value(&value),
            Body::Sequences(mut sections) => match (sections.next(), sections.next()) {
                (Some(Ok(section)), None) => sequence(&section.value),
                _ => None,
            },
            Body::Data(_) => None,
        };
        known.unwrap_or_else(|| Self::encoded(view))
    }
}

fn sequence<'a>(value: &Value<'a>) -> Option<Payload<'a>> {
    match *value {
        Value::List(_) => Payload::json(json::of_compound(value)?, SEQUENCE),
        _ => None,
    }
}

/// Appends the body of a payload with a mark, without the marks of [`Whole`]. False, with nothing
/// appended, if the payload does not fit the mark.
pub(crate) fn restore(mark: &str, payload: &[u8], out: &mut BytesMut) -> bool {
    let start = out.len();
    let fits = append(mark, payload, out).is_some()
        // The nesting depth of values is known only for the whole section.
        && Sections::new(&out[start..]).all(|section| section.is_ok());
    if !fits {
        out.truncate(start);
    }
    fits
}

fn append(mark: &str, payload: &[u8], out: &mut BytesMut) -> Option<()> {
    let (name, types) = mark.split_once(' ').unwrap_or((mark, ""));
    let json = |out: &mut BytesMut| {
        let mut value = BytesMut::new();
        json::append(payload, types, name == MAP, &mut value).then(|| {
            MessageWriter::new(out).value_with(|out| out.unsplit(value));
        })
    };
    match name {
        LIST | MAP => return json(out),
        SEQUENCE => {
            let mut value = BytesMut::new();
            if !json::append(payload, types, false, &mut value) {
                return None;
            }
            let Ok(Value::List(list)) = Value::decode(&value) else {
                return None;
            };
            MessageWriter::new(out).sequence(list);
            return Some(());
        }
        _ if name.len() < mark.len() => return None,
        NULL if payload.is_empty() => {
            MessageWriter::new(out).value(&Value::Null);
            return Some(());
        }
        _ => {}
    }
    let simple = Simple::of_name(name)?;
    let text = std::str::from_utf8(payload).ok()?;
    let fits = simple.parse(text, |value| {
        MessageWriter::new(out).value(value);
    });
    fits.then_some(())
}

/// The Content Type that a mark brings with it where the message has none.
pub(crate) fn content_type_of(mark: &str) -> Option<&'static str> {
    match mark.split(' ').next()? {
        LIST | MAP | SEQUENCE => Some(JSON),
        name => match Simple::of_name(name)? {
            Simple::Binary | Simple::String => None,
            _ => Some(TEXT),
        },
    }
}

/// Whether bytes are exactly the body sections of a message.
pub(crate) fn is_body(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && MessageView::parse(bytes).is_ok_and(|view| view.body_range() == (0..bytes.len()))
}

/// A section of one value whose bytes are the payload's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whole {
    Data,
    Text,
    Binary,
}

impl Whole {
    /// The section for a payload with this mark; `None` where the mark asks for something else.
    pub(crate) fn of_mark(mark: &str, payload: &[u8]) -> Option<Self> {
        match Simple::of_name(mark)? {
            Simple::Binary => Some(Self::Binary),
            Simple::String if std::str::from_utf8(payload).is_ok() => Some(Self::Text),
            _ => None,
        }
    }

    /// Appends descriptor, constructor and length: all that goes before the bytes.
    pub(crate) fn put_head(self, len: usize, out: &mut BytesMut) {
        let (kind, short, long) = match self {
            Self::Data => (SectionKind::Data, code::VBIN8, code::VBIN32),
            Self::Text => (SectionKind::AmqpValue, code::STR8, code::STR32),
            Self::Binary => (SectionKind::AmqpValue, code::VBIN8, code::VBIN32),
        };
        out.put_slice(&[code::DESCRIBED, code::SMALLULONG, kind.code() as u8]);
        if let Ok(len) = u8::try_from(len) {
            out.put_slice(&[short, len]);
        } else {
            out.put_u8(long);
            // A message has at most 4 GiB.
            out.put_u32(len as u32);
        }
    }
}
