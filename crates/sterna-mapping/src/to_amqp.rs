//! From MQTT's form to AMQP's sections.

use std::collections::{BTreeMap, HashSet};

use bytes::BytesMut;
use sterna_amqp::messaging::{Header, MessageId, MessageWriter, Properties};
use sterna_amqp::types::{Map, MapWriter, Symbol, Timestamp, Value};
use sterna_mqtt::PublishProperties;

use crate::body::{self, Whole};
use crate::{AMQP_BODY, DEFAULT_PRIORITY, RETAIN_ANNOTATION, address_of_topic, name, text};

/// Input for a message of AMQP, beside properties and payload.
#[derive(Clone, Copy, Debug)]
pub struct ToAmqp<'a> {
    /// The topic it is published to.
    pub topic: &'a str,
    /// The header without the priority, which is among the properties. A header with default values
    /// only is left out.
    pub header: Header,
    /// Whether it is, or is to be, retained.
    pub retain: bool,
    /// Further message annotations.
    pub annotations: Option<Map<'a>>,
}

/// Fields and application properties that User Properties stand for.
#[derive(Default)]
struct Named<'m> {
    fields: Properties<'m>,
    /// Bytes of a message-id.
    message_id: Option<Vec<u8>>,
    user_id: Option<Vec<u8>>,
    priority: Option<u8>,
    /// The publisher's content-type of an encoded body.
    content_type: Option<Symbol<'m>>,
    /// The last mark.
    mark: Option<&'m str>,
    /// All others, and those that do not fit their field: of a name that occurs more than once the last.
    application: Vec<(&'m str, &'m str)>,
    /// Their places, by their names. Nothing while there are few.
    places: BTreeMap<&'m str, usize>,
}

/// Names that are found by looking at each.
const FEW_NAMES: usize = 16;

impl<'m> Named<'m> {
    fn read(published: &PublishProperties<'m>) -> Self {
        let mut this = Self::default();
        for (name, value) in published.user_properties() {
            if !this.set(name, value) {
                this.put(name, value);
            }
        }
        this
    }

    /// Adds an application property.
    fn put(&mut self, name: &'m str, value: &'m str) {
        let known = if self.application.len() < FEW_NAMES {
            (self.application.iter()).position(|(known, _)| *known == name)
        } else {
            if self.places.is_empty() {
                let names = self.application.iter().enumerate();
                self.places = names.map(|(place, (name, _))| (*name, place)).collect();
            }
            self.places.get(name).copied()
        };
        if let Some(place) = known {
            self.application[place].1 = value;
            return;
        }
        if !self.places.is_empty() {
            self.places.insert(name, self.application.len());
        }
        self.application.push((name, value));
    }

    /// Sets the field that a User Property of this name stands for. False for any other name, and for a
    /// value that the field cannot have.
    fn set(&mut self, name: &str, value: &'m str) -> bool {
        fn to<T>(field: &mut Option<T>, value: Option<T>) -> bool {
            let fits = value.is_some();
            if fits {
                *field = value;
            }
            fits
        }
        let symbol = || value.is_ascii().then_some(Symbol(value));
        let fields = &mut self.fields;
        match name {
            name::SUBJECT => to(&mut fields.subject, Some(value)),
            name::MESSAGE_ID => {
                self.message_id = text::binary_message_id(value);
                to(&mut fields.message_id, Some(MessageId::String(value)))
            }
            name::USER_ID => to(&mut self.user_id, text::from_base64(value)),
            name::CONTENT_ENCODING => to(&mut fields.content_encoding, symbol()),
            name::CREATION_TIME => {
                let time = value.parse().ok().map(Timestamp);
                to(&mut fields.creation_time, time)
            }
            name::GROUP_ID => to(&mut fields.group_id, Some(value)),
            name::GROUP_SEQUENCE => to(&mut fields.group_sequence, value.parse().ok()),
            name::REPLY_TO_GROUP_ID => to(&mut fields.reply_to_group_id, Some(value)),
            name::PRIORITY => to(&mut self.priority, value.parse().ok()),
            name::CONTENT_TYPE => to(&mut self.content_type, symbol()),
            name::TYPE => to(&mut self.mark, Some(value)),
            _ => false,
        }
    }
}

/// Appends the message to `out`, without the end of its body: the returned last bytes of the
/// payload.
///
/// The properties were checked at their arrival. Topic Alias, Subscription Identifier and Message
/// Expiry Interval have no form here; `form` has the time to live.
pub fn to_amqp<'m>(
    published: &PublishProperties<'m>,
    payload: &'m [u8],
    form: &ToAmqp<'_>,
    out: &mut BytesMut,
) -> &'m [u8] {
    let mut named = Named::read(published);
    let content_type = published.content_type();
    let is_encoded = content_type == Some(AMQP_BODY) && body::is_body(payload);
    if !is_encoded && let Some(unfit) = named.content_type.take() {
        named.put(name::CONTENT_TYPE, unfit.0);
    }
    let mut restored = BytesMut::new();
    let mut whole = None;
    let mut by_mark = None;
    if let Some(mark) = named.mark {
        whole = Whole::of_mark(mark, payload).filter(|_| !is_encoded);
        let is_restored =
            !is_encoded && whole.is_none() && body::restore(mark, payload, &mut restored);
        if whole.is_some() || is_restored {
            by_mark = body::content_type_of(mark);
        } else {
            named.put(name::TYPE, mark);
        }
    }
    let content_type = content_type.filter(|known| !is_encoded && Some(*known) != by_mark);

    let mut writer = MessageWriter::new(out);
    let header = Header {
        priority: named.priority.unwrap_or(DEFAULT_PRIORITY),
        ..form.header
    };
    if header != Header::default() {
        writer.header(&header);
    }
    if form.retain || form.annotations.is_some() {
        writer.message_annotations(|map| {
            let further = form.annotations.unwrap_or(Map::EMPTY);
            if form.retain && further.get(RETAIN_ANNOTATION).is_none() {
                map.push(&Value::Symbol(RETAIN_ANNOTATION), &Value::Boolean(true));
            }
            for (key, value) in further {
                map.push(&key, &value);
            }
        });
    }
    let to = address_of_topic(form.topic);
    let reply_to = published.response_topic().map(address_of_topic);
    writer.properties(&Properties {
        message_id: match &named.message_id {
            Some(bytes) => Some(MessageId::Binary(bytes)),
            None => named.fields.message_id,
        },
        user_id: named.user_id.as_deref(),
        to: Some(Value::String(&to)),
        reply_to: reply_to.as_deref().map(Value::String),
        correlation_id: published.correlation_data().map(|bytes| {
            std::str::from_utf8(bytes).map_or(MessageId::Binary(bytes), MessageId::String)
        }),
        content_type: if is_encoded {
            named.content_type
        } else {
            content_type.filter(|text| text.is_ascii()).map(Symbol)
        },
        ..named.fields
    });
    if !named.application.is_empty() {
        writer.application_properties(|map| {
            for (name, value) in &named.application {
                map.push(&Value::String(name), &Value::String(value));
            }
        });
    }
    if is_encoded {
        return payload;
    }
    if !restored.is_empty() {
        out.extend_from_slice(&restored);
        return &[];
    }
    let is_text = published.is_utf8_payload() && std::str::from_utf8(payload).is_ok();
    let otherwise = if is_text { Whole::Text } else { Whole::Data };
    whole.unwrap_or(otherwise).put_head(payload.len(), out);
    payload
}

/// Appends a map of annotations: those of `base` and those of `over`. Entries of `over` replace
/// those of `base` with the same key (AMQP 1.0, part 3, section 3.4.4).
pub fn merge_annotations(base: Option<Map<'_>>, over: Map<'_>, out: &mut BytesMut) {
    // Keys are symbols, and ulongs that are reserved.
    let names: HashSet<&str> = over.iter().filter_map(|(key, _)| key.as_text()).collect();
    let is_over = |key: &Value<'_>| match key.as_text() {
        Some(name) => names.contains(name),
        None => over.iter().any(|(other, _)| other == *key),
    };
    let mut map = MapWriter::new(out);
    for (key, value) in base.into_iter().flatten() {
        if !is_over(&key) {
            map.push(&key, &value);
        }
    }
    for (key, value) in over {
        map.push(&key, &value);
    }
    map.finish();
}
