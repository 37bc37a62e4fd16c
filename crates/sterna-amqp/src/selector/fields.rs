//! Meaning of names in selectors.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;

use super::eval::Operand;
use crate::messaging::{Header, MessageId, MessageView, Properties};
use crate::types::{Map, Timestamp, Value, uuid_text};

/// The number of properties, and of names, up to which each lookup looks at all properties.
const FEW: usize = 16;

/// Source of the values of names.
pub trait Fields {
    /// The value of a name; [`Operand::Null`] if there is none.
    fn field(&self, name: &str) -> Operand<'_>;

    /// The steps that the next lookup takes.
    fn lookup_steps(&self) -> u64 {
        1
    }
}

/// Header, properties and application properties of a message.
#[derive(Debug)]
pub struct MessageFields<'a> {
    view: &'a MessageView<'a>,
    header: Header,
    properties: Properties<'a>,
    /// Names that were looked up among many properties.
    lookups: Cell<usize>,
    /// The properties by their names, once many are looked up among many.
    by_name: OnceCell<BTreeMap<&'a str, Value<'a>>>,
}

impl<'a> MessageFields<'a> {
    /// Reads header and properties once; malformed ones count as absent.
    #[must_use]
    pub fn new(view: &'a MessageView<'a>) -> Self {
        Self {
            view,
            header: view.header().ok().flatten().unwrap_or_default(),
            properties: view.properties().ok().flatten().unwrap_or_default(),
            lookups: Cell::new(0),
            by_name: OnceCell::new(),
        }
    }

    /// The value of an application property.
    fn application(&self, name: &str) -> Option<Value<'a>> {
        let map = self.view.application_properties()?;
        if map.len() > FEW {
            self.lookups.set(self.lookups.get() + 1);
            if self.lookups.get() > FEW {
                return (self.by_name.get_or_init(|| by_name(map)))
                    .get(name)
                    .copied();
            }
        }
        map.get(name)
    }

    /// The value of one of JMS's headers, or of a field after `amqp.`.
    fn standard(&self, name: &str) -> Option<Operand<'_>> {
        let properties = &self.properties;
        Some(match name {
            "JMSDeliveryMode" => Operand::String(Cow::Borrowed(if self.header.durable {
                "PERSISTENT"
            } else {
                "NON_PERSISTENT"
            })),
            "JMSPriority" | "amqp.priority" => Operand::Integer(self.header.priority.into()),
            "JMSRedelivered" | "amqp.redelivered" => {
                Operand::Boolean(self.header.delivery_count > 0)
            }
            // Counts this delivery, too.
            "JMSXDeliveryCount" => Operand::Integer(i64::from(self.header.delivery_count) + 1),
            "JMSMessageID" | "amqp.message_id" => id(properties.message_id),
            "JMSCorrelationID" | "amqp.correlation_id" => id(properties.correlation_id),
            "JMSTimestamp" | "amqp.creation_time" => time(properties.creation_time),
            "JMSExpiration" | "amqp.absolute_expiry_time" => time(properties.absolute_expiry_time),
            "JMSType" | "amqp.subject" => text(properties.subject),
            "JMSDestination" | "amqp.to" => of_value(properties.to),
            "JMSReplyTo" | "amqp.reply_to" => of_value(properties.reply_to),
            "JMSXGroupID" | "amqp.group_id" => text(properties.group_id),
            "JMSXGroupSeq" | "amqp.group_sequence" => properties
                .group_sequence
                .map_or(Operand::Null, |value| Operand::Integer(value.into())),
            "JMSXUserID" | "amqp.user_id" => text(
                properties
                    .user_id
                    .and_then(|id| std::str::from_utf8(id).ok()),
            ),
            "amqp.durable" => Operand::Boolean(self.header.durable),
            "amqp.first_acquirer" => Operand::Boolean(self.header.first_acquirer),
            "amqp.delivery_count" => Operand::Integer(self.header.delivery_count.into()),
            "amqp.ttl" => self
                .header
                .ttl
                .map_or(Operand::Null, |ttl| Operand::Integer(ttl.into())),
            "amqp.content_type" => text(properties.content_type.map(|symbol| symbol.0)),
            "amqp.content_encoding" => text(properties.content_encoding.map(|symbol| symbol.0)),
            "amqp.reply_to_group_id" => text(properties.reply_to_group_id),
            _ => return None,
        })
    }
}

impl Fields for MessageFields<'_> {
    fn field(&self, name: &str) -> Operand<'_> {
        if (name.starts_with("JMS") || name.starts_with("amqp."))
            && let Some(value) = self.standard(name)
        {
            return value;
        }
        of_value(self.application(name))
    }

    fn lookup_steps(&self) -> u64 {
        let properties = self.view.application_properties();
        let properties = properties.map_or(0, |map| map.len());
        match self.lookups.get() {
            // They are sorted then.
            FEW => 8 * properties as u64,
            0..FEW => properties as u64,
            _ => 16,
        }
    }
}

/// The entries of a map by their names, as [`Map::get`] finds them: of a name that comes twice the first.
fn by_name(map: Map<'_>) -> BTreeMap<&str, Value<'_>> {
    let mut known = BTreeMap::new();
    for (key, value) in map {
        if let Some(name) = key.as_text() {
            known.entry(name).or_insert(value);
        }
    }
    known
}

fn text(text: Option<&str>) -> Operand<'_> {
    text.map_or(Operand::Null, |text| Operand::String(Cow::Borrowed(text)))
}

fn time(time: Option<Timestamp>) -> Operand<'static> {
    time.map_or(Operand::Null, |time| Operand::Integer(time.0))
}

fn id(id: Option<MessageId<'_>>) -> Operand<'_> {
    match id {
        None => Operand::Null,
        Some(MessageId::String(id)) => Operand::String(Cow::Borrowed(id)),
        Some(MessageId::Ulong(id)) => unsigned(id),
        Some(MessageId::Uuid(id)) => Operand::String(Cow::Owned(uuid_text(&id))),
        Some(MessageId::Binary(id)) => text(std::str::from_utf8(id).ok()),
    }
}

fn unsigned(value: u64) -> Operand<'static> {
    i64::try_from(value).map_or(Operand::Float(value as f64), Operand::Integer)
}

/// Numbers, texts and booleans of AMQP; anything else has no value in a selector.
fn of_value(value: Option<Value<'_>>) -> Operand<'_> {
    match value {
        Some(Value::Boolean(value)) => Operand::Boolean(value),
        Some(Value::Ubyte(value)) => Operand::Integer(value.into()),
        Some(Value::Ushort(value)) => Operand::Integer(value.into()),
        Some(Value::Uint(value)) => Operand::Integer(value.into()),
        Some(Value::Ulong(value)) => unsigned(value),
        Some(Value::Byte(value)) => Operand::Integer(value.into()),
        Some(Value::Short(value)) => Operand::Integer(value.into()),
        Some(Value::Int(value)) => Operand::Integer(value.into()),
        Some(Value::Long(value) | Value::Timestamp(value)) => Operand::Integer(value),
        Some(Value::Float(value)) => Operand::Float(value.into()),
        Some(Value::Double(value)) => Operand::Float(value),
        Some(Value::Char(value)) => Operand::String(Cow::Owned(value.to_string())),
        Some(Value::String(value) | Value::Symbol(value)) => Operand::String(Cow::Borrowed(value)),
        _ => Operand::Null,
    }
}
