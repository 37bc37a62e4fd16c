//! Values and messages of the AMQP scenario, to and from those of fe2o3-amqp (../../../README.md has the form).

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use fe2o3_amqp::types::messaging::annotations::OwnedKey;
use fe2o3_amqp::types::messaging::{
    Annotations, ApplicationProperties, Body, Data, DeliveryAnnotations, Footer, Header, Message,
    MessageAnnotations, MessageId, Properties,
};
use fe2o3_amqp::types::primitives::{SimpleValue, Uuid, Value};
use fe2o3_amqp_types::messaging::{AmqpSequence, AmqpValue, Batch, Priority};
use serde_amqp::described::Described;
use serde_amqp::descriptor::Descriptor;
use serde_amqp::primitives::{Array, Binary, OrderedMap, Symbol, Timestamp};
use serde_json::{Map, Value as Json, json};
use sha2::{Digest, Sha256};

/// Bodies above this are told by their length and digest.
const SHOWN_BYTES: usize = 65_536;

pub(crate) type Result<T> = std::result::Result<T, String>;

fn text(said: &Json) -> Result<&str> {
    said.as_str().ok_or_else(|| format!("{said} is no text"))
}

fn number<T: std::str::FromStr>(said: &Json) -> Result<T> {
    text(said)?
        .parse()
        .map_err(|_| format!("{said} is no such number"))
}

fn octets<const N: usize>(said: &Json) -> Result<[u8; N]> {
    let raw = hex::decode(text(said)?).map_err(|why| why.to_string())?;
    raw.try_into()
        .map_err(|_| format!("{said} has another length"))
}

fn base64(said: &Json) -> Result<Vec<u8>> {
    BASE64.decode(text(said)?).map_err(|why| why.to_string())
}

fn items(said: &Json) -> Result<&Vec<Json>> {
    said.as_array().ok_or_else(|| format!("{said} is no list"))
}

/// The library's value of the scenario's.
pub(crate) fn decode(said: &Json) -> Result<Value> {
    let value = &said[1];
    Ok(match text(&said[0])? {
        "null" => Value::Null,
        "boolean" => Value::Bool(value.as_bool().ok_or("no boolean")?),
        "ubyte" => Value::Ubyte(number(value)?),
        "ushort" => Value::Ushort(number(value)?),
        "uint" => Value::Uint(number(value)?),
        "ulong" => Value::Ulong(number(value)?),
        "byte" => Value::Byte(number(value)?),
        "short" => Value::Short(number(value)?),
        "int" => Value::Int(number(value)?),
        "long" => Value::Long(number(value)?),
        "float" => Value::Float(f32::from_be_bytes(octets(value)?).into()),
        "double" => Value::Double(f64::from_be_bytes(octets(value)?).into()),
        "decimal32" => Value::Decimal32(octets(value)?.into()),
        "decimal64" => Value::Decimal64(octets(value)?.into()),
        "decimal128" => Value::Decimal128(octets(value)?.into()),
        "char" => Value::Char(char::from_u32(number(value)?).ok_or("no character")?),
        "timestamp" => Value::Timestamp(Timestamp::from_milliseconds(number(value)?)),
        "uuid" => Value::Uuid(Uuid::from(octets::<16>(value)?)),
        "binary" => Value::Binary(Binary::from(base64(value)?)),
        "string" => Value::String(text(value)?.to_owned()),
        "symbol" => Value::Symbol(Symbol::from(text(value)?)),
        "list" => Value::List(items(value)?.iter().map(decode).collect::<Result<_>>()?),
        "map" => {
            let mut made = OrderedMap::new();
            for pair in items(value)? {
                made.insert(decode(&pair[0])?, decode(&pair[1])?);
            }
            Value::Map(made)
        }
        "array" => Value::Array(Array(
            items(&said[2])?.iter().map(decode).collect::<Result<_>>()?,
        )),
        "described" => Value::Described(Box::new(Described {
            descriptor: match decode(value)? {
                Value::Symbol(name) => Descriptor::Name(name),
                Value::Ulong(code) => Descriptor::Code(code),
                other => return Err(format!("no descriptor: {other:?}")),
            },
            value: decode(&said[2])?,
        })),
        other => return Err(format!("no type {other}")),
    })
}

/// The scenario's value of the library's.
pub(crate) fn encode(value: &Value) -> Json {
    match value {
        Value::Null => json!(["null"]),
        Value::Bool(is) => json!(["boolean", is]),
        Value::Ubyte(is) => json!(["ubyte", is.to_string()]),
        Value::Ushort(is) => json!(["ushort", is.to_string()]),
        Value::Uint(is) => json!(["uint", is.to_string()]),
        Value::Ulong(is) => json!(["ulong", is.to_string()]),
        Value::Byte(is) => json!(["byte", is.to_string()]),
        Value::Short(is) => json!(["short", is.to_string()]),
        Value::Int(is) => json!(["int", is.to_string()]),
        Value::Long(is) => json!(["long", is.to_string()]),
        Value::Float(is) => json!(["float", hex::encode(is.to_be_bytes())]),
        Value::Double(is) => json!(["double", hex::encode(is.to_be_bytes())]),
        Value::Decimal32(is) => json!(["decimal32", hex::encode(is.as_inner())]),
        Value::Decimal64(is) => json!(["decimal64", hex::encode(is.as_inner())]),
        Value::Decimal128(is) => json!(["decimal128", hex::encode(is.as_inner())]),
        Value::Char(is) => json!(["char", u32::from(*is).to_string()]),
        Value::Timestamp(is) => json!(["timestamp", is.milliseconds().to_string()]),
        Value::Uuid(is) => json!(["uuid", hex::encode(is.as_inner())]),
        Value::Binary(is) => json!(["binary", BASE64.encode(is)]),
        Value::String(is) => json!(["string", is]),
        Value::Symbol(is) => json!(["symbol", is.as_str()]),
        Value::List(is) => json!(["list", is.iter().map(encode).collect::<Vec<_>>()]),
        Value::Map(is) => json!(["map", is.iter().map(pair).collect::<Vec<_>>()]),
        Value::Array(is) => {
            let made: Vec<Json> = is.0.iter().map(encode).collect();
            let of = made.first().map_or(Json::Null, |first| first[0].clone());
            json!(["array", of, made])
        }
        Value::Described(is) => {
            let descriptor = match &is.descriptor {
                Descriptor::Name(name) => json!(["symbol", name.as_str()]),
                Descriptor::Code(code) => json!(["ulong", code.to_string()]),
            };
            json!(["described", descriptor, encode(&is.value)])
        }
    }
}

fn pair((key, value): (&Value, &Value)) -> Json {
    json!([encode(key), encode(value)])
}

fn annotations(said: &Json) -> Result<Annotations> {
    let mut made = Annotations::new();
    for pair in items(said)? {
        made.insert(
            OwnedKey::Symbol(Symbol::from(text(&pair[0][1])?)),
            decode(&pair[1])?,
        );
    }
    Ok(made)
}

fn from_annotations(from: &Annotations) -> Json {
    from.iter()
        .map(|(key, value)| {
            let key = match key {
                OwnedKey::Symbol(name) => json!(["symbol", name.as_str()]),
                OwnedKey::Ulong(code) => json!(["ulong", code.to_string()]),
            };
            json!([key, encode(value)])
        })
        .collect()
}

fn identifier(said: &Json) -> Result<MessageId> {
    Ok(match decode(said)? {
        Value::Ulong(is) => MessageId::Ulong(is),
        Value::Uuid(is) => MessageId::Uuid(is),
        Value::Binary(is) => MessageId::Binary(is),
        Value::String(is) => MessageId::String(is),
        other => return Err(format!("no message-id: {other:?}")),
    })
}

fn from_identifier(from: MessageId) -> Json {
    encode(&match from {
        MessageId::Ulong(is) => Value::Ulong(is),
        MessageId::Uuid(is) => Value::Uuid(is),
        MessageId::Binary(is) => Value::Binary(is),
        MessageId::String(is) => Value::String(is),
    })
}

fn header(said: &Map<String, Json>) -> Result<Header> {
    let mut made = Header::default();
    for (name, value) in said {
        match name.as_str() {
            "durable" => made.durable = value.as_bool().unwrap_or_default(),
            "first_acquirer" => made.first_acquirer = value.as_bool().unwrap_or_default(),
            "priority" => made.priority = Priority(number(value)?),
            "ttl" => made.ttl = Some(number(value)?),
            _ => made.delivery_count = number(value)?,
        }
    }
    Ok(made)
}

fn properties(said: &Map<String, Json>) -> Result<Properties> {
    let mut made = Properties::default();
    for (name, value) in said {
        let inner = &value[1];
        match name.as_str() {
            "message_id" => made.message_id = Some(identifier(value)?),
            "correlation_id" => made.correlation_id = Some(identifier(value)?),
            "user_id" => made.user_id = Some(Binary::from(base64(inner)?)),
            "to" => made.to = Some(text(inner)?.into()),
            "subject" => made.subject = Some(text(inner)?.into()),
            "reply_to" => made.reply_to = Some(text(inner)?.into()),
            "content_type" => made.content_type = Some(text(inner)?.into()),
            "content_encoding" => made.content_encoding = Some(text(inner)?.into()),
            "absolute_expiry_time" => {
                made.absolute_expiry_time = Some(Timestamp::from_milliseconds(number(inner)?));
            }
            "creation_time" => {
                made.creation_time = Some(Timestamp::from_milliseconds(number(inner)?));
            }
            "group_id" => made.group_id = Some(text(inner)?.into()),
            "group_sequence" => made.group_sequence = Some(number(inner)?),
            _ => made.reply_to_group_id = Some(text(inner)?.into()),
        }
    }
    Ok(made)
}

fn from_properties(from: Properties) -> Json {
    let mut made = Map::new();
    let mut put = |name: &str, value: Option<Json>| {
        if let Some(value) = value {
            made.insert(name.to_owned(), value);
        }
    };
    let string = |is: String| json!(["string", is]);
    let symbol = |is: Symbol| json!(["symbol", is.as_str()]);
    let time = |is: Timestamp| json!(["timestamp", is.milliseconds().to_string()]);
    put("message_id", from.message_id.map(from_identifier));
    put(
        "user_id",
        from.user_id.map(|is| json!(["binary", BASE64.encode(is)])),
    );
    put("to", from.to.map(string));
    put("subject", from.subject.map(string));
    put("reply_to", from.reply_to.map(string));
    put("correlation_id", from.correlation_id.map(from_identifier));
    put("content_type", from.content_type.map(symbol));
    put("content_encoding", from.content_encoding.map(symbol));
    put("absolute_expiry_time", from.absolute_expiry_time.map(time));
    put("creation_time", from.creation_time.map(time));
    put("group_id", from.group_id.map(string));
    put(
        "group_sequence",
        from.group_sequence
            .map(|is| json!(["uint", is.to_string()])),
    );
    put("reply_to_group_id", from.reply_to_group_id.map(string));
    Json::Object(made)
}

fn data(raw: Vec<u8>) -> Data {
    Data(Binary::from(raw))
}

fn body(said: &Json) -> Result<Body<Value>> {
    if let Some(size) = said["pattern"].as_u64() {
        let raw = (0..size).map(|at| (at % 251) as u8).collect();
        return Ok(Body::Data(Batch::new(vec![data(raw)])));
    }
    if let Some(sections) = said["data"].as_array() {
        let sections = sections
            .iter()
            .map(|one| base64(one).map(data))
            .collect::<Result<Vec<_>>>()?;
        return Ok(Body::Data(Batch::new(sections)));
    }
    if let Some(sections) = said["sequence"].as_array() {
        let mut made = Vec::new();
        for one in sections {
            made.push(AmqpSequence(
                items(one)?.iter().map(decode).collect::<Result<_>>()?,
            ));
        }
        return Ok(Body::Sequence(Batch::new(made)));
    }
    Ok(Body::Value(AmqpValue(decode(&said["value"])?)))
}

fn from_body(from: Body<Value>) -> Json {
    match from {
        Body::Value(AmqpValue(value)) => json!({ "value": encode(&value) }),
        Body::Sequence(sections) => {
            let sections: Vec<Vec<Json>> = sections
                .into_iter()
                .map(|one| one.0.iter().map(encode).collect())
                .collect();
            json!({ "sequence": sections })
        }
        Body::Data(sections) => {
            let sections: Vec<Binary> = sections.into_iter().map(|one| one.0).collect();
            let total: usize = sections.iter().map(|one| one.len()).sum();
            if total > SHOWN_BYTES {
                let mut digest = Sha256::new();
                for one in &sections {
                    digest.update(one);
                }
                return json!({ "digest": [total, hex::encode(digest.finalize())] });
            }
            let sections: Vec<String> = sections.iter().map(|one| BASE64.encode(one)).collect();
            json!({ "data": sections })
        }
        Body::Empty => json!({}),
    }
}

/// The library's message of the scenario's.
pub(crate) fn to_message(said: &Json) -> Result<Message<Body<Value>>> {
    let section = |name: &str| said.get(name);
    let application_properties = match section("application_properties") {
        None => None,
        Some(pairs) => {
            let mut made = OrderedMap::new();
            for pair in items(pairs)? {
                let value = SimpleValue::try_from(decode(&pair[1])?)
                    .map_err(|value| format!("no simple value: {value:?}"))?;
                made.insert(text(&pair[0][1])?.to_owned(), value);
            }
            Some(ApplicationProperties(made))
        }
    };
    Ok(Message {
        header: said["header"].as_object().map(header).transpose()?,
        delivery_annotations: section("delivery_annotations")
            .map(|one| annotations(one).map(DeliveryAnnotations))
            .transpose()?,
        message_annotations: section("message_annotations")
            .map(|one| annotations(one).map(MessageAnnotations))
            .transpose()?,
        properties: said["properties"].as_object().map(properties).transpose()?,
        application_properties,
        body: body(&said["body"])?,
        footer: section("footer")
            .map(|one| annotations(one).map(Footer))
            .transpose()?,
    })
}

/// What has arrived, as the scenario has it.
pub(crate) fn from_message(from: Message<Body<Value>>) -> Json {
    let mut made = Map::new();
    if let Some(header) = from.header {
        let mut said = json!({
            "durable": header.durable,
            "priority": header.priority.0.to_string(),
            "first_acquirer": header.first_acquirer,
            "delivery_count": header.delivery_count.to_string(),
        });
        if let Some(ttl) = header.ttl {
            said["ttl"] = json!(ttl.to_string());
        }
        made.insert("header".into(), said);
    }
    if let Some(DeliveryAnnotations(section)) = &from.delivery_annotations {
        made.insert("delivery_annotations".into(), from_annotations(section));
    }
    if let Some(MessageAnnotations(section)) = &from.message_annotations {
        made.insert("message_annotations".into(), from_annotations(section));
    }
    if let Some(section) = from.properties {
        made.insert("properties".into(), from_properties(section));
    }
    if let Some(ApplicationProperties(section)) = from.application_properties {
        let pairs = section
            .into_inner()
            .into_iter()
            .map(|(key, value)| json!([["string", key], encode(&Value::from(value))]))
            .collect();
        made.insert("application_properties".into(), pairs);
    }
    made.insert("body".into(), from_body(from.body));
    if let Some(Footer(section)) = &from.footer {
        made.insert("footer".into(), from_annotations(section));
    }
    Json::Object(made)
}
