//! MQTT's form as fields of HTTP, and back (`docs/http.md`).

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sterna_mqtt::{EncodeError, Property, PropertyBuf, PublishProperties, QoS, topic};

use crate::{base64, percent};

/// Names of the fields, in lower case.
pub mod field {
    #![allow(missing_docs, reason = "the names are explained in docs/mapping.md")]
    pub const CONTENT_TYPE: &str = "content-type";
    pub const QOS: &str = "sterna-qos";
    pub const RETAIN: &str = "sterna-retain";
    pub const EXPIRY: &str = "sterna-expiry";
    pub const RESPONSE_TOPIC: &str = "sterna-response-topic";
    pub const CORRELATION_DATA: &str = "sterna-correlation-data";
    pub const USER_PROPERTY: &str = "sterna-user-property";
    pub const PAYLOAD_FORMAT: &str = "sterna-payload-format";
}

/// Base64 with or without padding, and with any trailing bits.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The fields of a request or response, of any version of HTTP.
pub trait FieldSource {
    /// Hands over every value of the field of this name, in lower case, in order.
    fn each(&self, name: &str, each: &mut dyn FnMut(&[u8]));
}

/// Names in lower case, and values.
impl<N: AsRef<str>, V: AsRef<[u8]>> FieldSource for [(N, V)] {
    fn each(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        for (_, value) in self.iter().filter(|(known, _)| known.as_ref() == name) {
            each(value.as_ref());
        }
    }
}

/// A field is not as `docs/http.md` says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldError {
    /// The field, in lower case.
    pub field: &'static str,
    /// The fault of the field.
    pub detail: Cow<'static, str>,
}

impl FieldError {
    /// An error of this field.
    #[must_use]
    pub const fn new(field: &'static str, detail: &'static str) -> Self {
        Self {
            field,
            detail: Cow::Borrowed(detail),
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.detail)
    }
}

impl std::error::Error for FieldError {}

/// A message of HTTP in MQTT's form; the payload is the content.
#[derive(Debug)]
pub struct FromFields {
    /// The level; 1 where the fields don't say.
    pub qos: QoS,
    /// Whether it is, or is to be, retained.
    pub retain: bool,
    /// Seconds that it is of use.
    pub expiry_s: Option<u32>,
    /// Properties of a PUBLISH, without Message Expiry Interval.
    pub properties: PropertyBuf,
}

/// MQTT's form of a request that publishes, or of the answer to `?last`.
///
/// # Errors
/// The first field that is not as `docs/http.md` says.
pub fn from_fields(fields: &(impl FieldSource + ?Sized)) -> Result<FromFields, FieldError> {
    Ok(FromFields {
        qos: qos(fields)?,
        retain: flag(fields, field::RETAIN)?,
        expiry_s: number(fields, field::EXPIRY)?,
        properties: properties(fields)?,
    })
}

fn properties(fields: &(impl FieldSource + ?Sized)) -> Result<PropertyBuf, FieldError> {
    let mut out = PropertyBuf::new();
    let mut push = |name, property: Property<'_>| {
        out.push(property).map_err(|error| {
            let detail = match error {
                EncodeError::NullCharacter => "contains U+0000",
                EncodeError::FieldTooLong | EncodeError::TooLarge { .. } => {
                    "longer than 65,535 bytes"
                }
            };
            FieldError::new(name, detail)
        })
    };
    if let Some(format) = single(fields, field::PAYLOAD_FORMAT)? {
        if !format.eq_ignore_ascii_case(b"utf-8") {
            return Err(FieldError::new(field::PAYLOAD_FORMAT, "not `utf-8`"));
        }
        push(
            field::PAYLOAD_FORMAT,
            Property::PayloadFormatIndicator(true),
        )?;
    }
    if let Some(value) = single(fields, field::CONTENT_TYPE)?.filter(|value| !value.is_empty()) {
        let value = text(field::CONTENT_TYPE, std::str::from_utf8(&value).ok())?;
        push(field::CONTENT_TYPE, Property::ContentType(value))?;
    }
    if let Some(value) = single(fields, field::RESPONSE_TOPIC)? {
        let value = percent::decode_text(&value);
        let value = text(field::RESPONSE_TOPIC, value.as_deref())?;
        topic::check_name(value)
            .map_err(|error| FieldError::new(field::RESPONSE_TOPIC, error.detail()))?;
        push(field::RESPONSE_TOPIC, Property::ResponseTopic(value))?;
    }
    if let Some(value) = single(fields, field::CORRELATION_DATA)? {
        let value = BASE64
            .decode(value)
            .map_err(|_| FieldError::new(field::CORRELATION_DATA, "not base64"))?;
        push(field::CORRELATION_DATA, Property::CorrelationData(&value))?;
    }
    let mut result = Ok(());
    fields.each(field::USER_PROPERTY, &mut |list| {
        for pair in list.split(|&byte| byte == b',') {
            let pair = pair.trim_ascii();
            if pair.is_empty() || result.is_err() {
                continue; // an empty member of a list is none (RFC 9110, section 5.6.1.2)
            }
            result = user_property(pair).and_then(|(name, value)| {
                push(field::USER_PROPERTY, Property::UserProperty(&name, &value))
            });
        }
    });
    result?;
    Ok(out)
}

fn user_property(pair: &[u8]) -> Result<(Cow<'_, str>, Cow<'_, str>), FieldError> {
    let at = pair.iter().position(|&byte| byte == b'=');
    let at = at.ok_or(FieldError::new(field::USER_PROPERTY, "not `name=value`"))?;
    let decoded = |part| text(field::USER_PROPERTY, percent::decode_text(part));
    Ok((decoded(&pair[..at])?, decoded(&pair[at + 1..])?))
}

/// A text that could be decoded.
fn text<T>(name: &'static str, text: Option<T>) -> Result<T, FieldError> {
    text.ok_or_else(|| FieldError::new(name, "not percent-encoded UTF-8"))
}

/// The value of a field that occurs at most once.
fn single(
    fields: &(impl FieldSource + ?Sized),
    name: &'static str,
) -> Result<Option<Vec<u8>>, FieldError> {
    let mut found = None;
    let mut count = 0;
    fields.each(name, &mut |value| {
        count += 1;
        found.get_or_insert_with(|| value.trim_ascii().to_vec());
    });
    if count > 1 {
        return Err(FieldError::new(name, "occurs more than once"));
    }
    Ok(found)
}

fn qos(fields: &(impl FieldSource + ?Sized)) -> Result<QoS, FieldError> {
    match single(fields, field::QOS)?.as_deref() {
        None | Some(b"1") => Ok(QoS::AtLeastOnce),
        Some(b"0") => Ok(QoS::AtMostOnce),
        Some(b"2") => Ok(QoS::ExactlyOnce),
        Some(_) => Err(FieldError::new(field::QOS, "not 0, 1 or 2")),
    }
}

fn flag(fields: &(impl FieldSource + ?Sized), name: &'static str) -> Result<bool, FieldError> {
    match single(fields, name)?.as_deref() {
        None | Some(b"?0" | b"0" | b"false") => Ok(false),
        Some(b"?1" | b"1" | b"true") => Ok(true),
        Some(_) => Err(FieldError::new(name, "not ?1 or ?0")),
    }
}

fn number(
    fields: &(impl FieldSource + ?Sized),
    name: &'static str,
) -> Result<Option<u32>, FieldError> {
    let Some(value) = single(fields, name)? else {
        return Ok(None);
    };
    let digits = std::str::from_utf8(&value).ok();
    let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|text| text.parse().ok());
    let detail = "not a whole number of seconds below 4,294,967,296";
    Ok(Some(number.ok_or_else(|| FieldError::new(name, detail))?))
}

/// Input for the fields of a message.
#[derive(Clone, Copy, Debug)]
pub struct ToFields<'a> {
    /// The level.
    pub qos: QoS,
    /// Whether it is, or is to be, retained.
    pub retain: bool,
    /// Seconds that it is of use; those among the properties don't count.
    pub expiry_s: Option<u32>,
    /// The properties.
    pub properties: PublishProperties<'a>,
}

/// Hands over the fields of a message whose payload is the content.
///
/// Names are in lower case, values visible ASCII and spaces. A content type with other characters
/// ([`is_field_value`]) is left out.
pub fn to_fields(message: &ToFields<'_>, mut put: impl FnMut(&'static str, &str)) {
    let properties = &message.properties;
    if let Some(content_type) = properties.content_type()
        && is_field_value(content_type)
    {
        put(field::CONTENT_TYPE, content_type);
    }
    put(field::QOS, ["0", "1", "2"][message.qos as usize]);
    if message.retain {
        put(field::RETAIN, "?1");
    }
    if let Some(left_s) = message.expiry_s {
        put(field::EXPIRY, &left_s.to_string());
    }
    if let Some(topic) = properties.response_topic() {
        put(field::RESPONSE_TOPIC, &percent::encoded(topic));
    }
    if let Some(data) = properties.correlation_data() {
        put(field::CORRELATION_DATA, &base64(data));
    }
    for (name, value) in properties.user_properties() {
        let mut pair = percent::encoded(name);
        pair.push('=');
        percent::encode(value.as_bytes(), percent::is_field, &mut pair);
        put(field::USER_PROPERTY, &pair);
    }
    if properties.is_utf8_payload() {
        put(field::PAYLOAD_FORMAT, "utf-8");
    }
}

/// Whether a text is a field's value as it is (RFC 9110, section 5.5), and comes back as it is.
#[must_use]
pub fn is_field_value(text: &str) -> bool {
    text == text.trim()
        && !text.is_empty()
        && (text.bytes()).all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

#[cfg(test)]
mod tests {
    use sterna_mqtt::PropertyContext;

    use super::*;

    fn read(fields: &[(&str, &str)]) -> Result<FromFields, FieldError> {
        from_fields(fields)
    }

    #[test]
    fn what_is_wrong_with_a_field_is_said() {
        let expiry = "not a whole number of seconds below 4,294,967,296";
        for (name, value, detail) in [
            ("sterna-qos", "3", "not 0, 1 or 2"),
            ("sterna-qos", "", "not 0, 1 or 2"),
            ("sterna-retain", "yes", "not ?1 or ?0"),
            ("sterna-expiry", "+1", expiry),
            ("sterna-expiry", "4294967296", expiry),
            ("sterna-expiry", "", expiry),
            (
                "sterna-response-topic",
                "a/+",
                "Topic Name contains a wildcard",
            ),
            ("sterna-response-topic", "%", "not percent-encoded UTF-8"),
            ("sterna-response-topic", "%ff", "not percent-encoded UTF-8"),
            ("sterna-response-topic", "", "topic without a character"),
            ("sterna-correlation-data", "?", "not base64"),
            ("sterna-user-property", "a", "not `name=value`"),
            ("sterna-user-property", "a=b, c", "not `name=value`"),
            ("sterna-user-property", "a=%00", "contains U+0000"),
            ("sterna-user-property", "%00=a", "contains U+0000"),
            ("content-type", "a\0", "contains U+0000"),
            ("sterna-payload-format", "binary", "not `utf-8`"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert_eq!((error.field, &*error.detail), (name, detail), "{value}");
        }
        let twice = [("sterna-qos", "1"), ("sterna-qos", "1")];
        let error = read(&twice).unwrap_err();
        assert_eq!(error.to_string(), "sterna-qos: occurs more than once");
        assert!(read(&[("sterna-payload-format", "UTF-8")]).is_ok());
    }

    #[test]
    fn what_is_as_by_default_need_not_be_said() {
        let message = read(&[]).unwrap();
        assert_eq!((message.qos, message.retain), (QoS::AtLeastOnce, false));
        assert_eq!(message.expiry_s, None);
        assert!(message.properties.is_empty());
    }

    #[test]
    fn lists_of_user_properties_may_be_in_one_field_or_in_many() {
        let fields = [
            ("sterna-user-property", "a=1, b=%2C%3D,,c="),
            ("sterna-user-property", "=é"),
        ];
        let message = read(&fields).unwrap();
        let properties = message
            .properties
            .publish_properties(PropertyContext::Publish)
            .unwrap();
        let user: Vec<_> = properties.user_properties().collect();
        assert_eq!(user, [("a", "1"), ("b", ",="), ("c", ""), ("", "é")]);
    }

    #[test]
    fn a_content_type_that_would_break_the_response_is_left_out() {
        for bad in ["text/plain\r\nset-cookie: a=b", " a/b", "a/é", "a\u{1}", ""] {
            let mut block = PropertyBuf::new();
            block.push(Property::ContentType(bad)).unwrap();
            let message = ToFields {
                qos: QoS::AtMostOnce,
                retain: false,
                expiry_s: None,
                properties: block.publish_properties(PropertyContext::Publish).unwrap(),
            };
            let mut names = Vec::new();
            to_fields(&message, |name, _| names.push(name));
            assert_eq!(names, ["sterna-qos"], "{bad:?}");
        }
    }
}
