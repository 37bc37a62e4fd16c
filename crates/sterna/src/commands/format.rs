//! Output of received messages: the format strings of `-F`.

use std::fmt::Write as _;
use std::str::FromStr;

use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

use super::clock::LocalTime;

/// Largest field width, in characters.
const MAX_WIDTH: usize = 10_000;

/// The fields of one message.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) topic: &'a str,
    pub(super) payload: &'a [u8],
    pub(super) qos: u8,
    pub(super) retain: bool,
    pub(super) packet_id: u16,
    pub(super) topic_alias: Option<u16>,
    pub(super) content_type: Option<&'a str>,
    pub(super) correlation_data: Option<&'a [u8]>,
    pub(super) expiry_s: Option<u32>,
    pub(super) payload_format: Option<u8>,
    pub(super) response_topic: Option<&'a str>,
    pub(super) user_properties: Vec<(&'a str, &'a str)>,
    pub(super) subscription_ids: Vec<u32>,
}

/// A format string, read and checked.
#[derive(Clone, Debug)]
pub(super) struct Format {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Field {
        field: Field,
        layout: Layout,
    },
    /// `@X`: strftime's `%X`.
    Time(String),
    /// `@N`: nanoseconds within the second.
    Nanoseconds,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Layout {
    zeros: bool,
    left: bool,
    min_width: usize,
    max_width: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    TopicAlias,
    ContentType,
    CorrelationData,
    Expiry,
    PayloadFormat,
    IsoTime,
    Json { payload_as_json: bool },
    Length,
    PacketId,
    UserProperties,
    Payload,
    QoS,
    ResponseTopic,
    Retain,
    SubscriptionId,
    Topic,
    UnixTime,
    Hex { upper: bool },
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut plain = Vec::new();
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            let piece = match character {
                '%' => {
                    let mut layout = Layout::default();
                    while let Some(flag) = characters.next_if(|next| matches!(next, '0' | '-')) {
                        layout.zeros |= flag == '0';
                        layout.left |= flag == '-';
                    }
                    layout.min_width = number(&mut characters)?.unwrap_or(0);
                    if characters.next_if_eq(&'.').is_some() {
                        layout.max_width = Some(number(&mut characters)?.unwrap_or(0));
                    }
                    match characters.next() {
                        None => return Err("the format ends after %".to_owned()),
                        Some('%') => {
                            plain.push(b'%');
                            continue;
                        }
                        Some(letter) => Piece::Field {
                            field: field(letter)?,
                            layout,
                        },
                    }
                }
                '@' => match characters.next() {
                    None => return Err("the format ends after @".to_owned()),
                    Some('@') => {
                        plain.push(b'@');
                        continue;
                    }
                    Some('N') => Piece::Nanoseconds,
                    Some(letter) => Piece::Time(format!("%{letter}")),
                },
                '\\' => {
                    plain.push(match characters.next() {
                        Some('\\') => b'\\',
                        Some('0') => 0,
                        Some('a') => 0x07,
                        Some('e') => 0x1B,
                        Some('n') => b'\n',
                        Some('r') => b'\r',
                        Some('t') => b'\t',
                        Some('v') => 0x0B,
                        Some(other) => return Err(format!("\\{other} is not an escape of -F")),
                        None => return Err("the format ends after \\".to_owned()),
                    });
                    continue;
                }
                other => {
                    plain.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
                    continue;
                }
            };
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(piece);
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Self { pieces })
    }
}

fn number(
    characters: &mut std::iter::Peekable<std::str::Chars<'_>>,
) -> Result<Option<usize>, String> {
    let mut value = None;
    while let Some(digit) = characters.peek().and_then(|next| next.to_digit(10)) {
        characters.next();
        let grown = value.unwrap_or(0) * 10 + digit as usize;
        if grown > MAX_WIDTH {
            return Err(format!(
                "a field of -F is at most {MAX_WIDTH} characters wide"
            ));
        }
        value = Some(grown);
    }
    Ok(value)
}

fn field(letter: char) -> Result<Field, String> {
    Ok(match letter {
        'A' => Field::TopicAlias,
        'C' => Field::ContentType,
        'D' => Field::CorrelationData,
        'E' => Field::Expiry,
        'F' => Field::PayloadFormat,
        'I' => Field::IsoTime,
        'j' => Field::Json {
            payload_as_json: false,
        },
        'J' => Field::Json {
            payload_as_json: true,
        },
        'l' => Field::Length,
        'm' => Field::PacketId,
        'P' => Field::UserProperties,
        'p' => Field::Payload,
        'q' => Field::QoS,
        'R' => Field::ResponseTopic,
        'r' => Field::Retain,
        'S' => Field::SubscriptionId,
        't' => Field::Topic,
        'U' => Field::UnixTime,
        'x' => Field::Hex { upper: false },
        'X' => Field::Hex { upper: true },
        other => return Err(format!("%{other} is not a field of -F")),
    })
}

impl Format {
    /// Appends the message as the format shows it, without a line end.
    ///
    /// # Errors
    /// For `%J`, when the payload is not JSON; nothing is appended then.
    pub(super) fn write(
        &self,
        message: &Fields<'_>,
        time: &LocalTime,
        pretty: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let start = out.len();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Time(conversion) => out.extend_from_slice(&time.format(conversion)),
                Piece::Nanoseconds => {
                    out.extend_from_slice(format!("{:09}", time.nanoseconds()).as_bytes());
                }
                Piece::Field { field, layout } => {
                    if let Err(error) = write_field(*field, *layout, message, time, pretty, out) {
                        out.truncate(start);
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }
}

fn write_field(
    field: Field,
    layout: Layout,
    message: &Fields<'_>,
    time: &LocalTime,
    pretty: bool,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let mut text = |text: &str| layout.put(text.as_bytes(), false, out);
    let number = |value: Option<u32>| value.map_or_else(String::new, |value| value.to_string());
    match field {
        Field::Topic => text(message.topic),
        Field::ContentType => text(message.content_type.unwrap_or("")),
        Field::ResponseTopic => text(message.response_topic.unwrap_or("")),
        Field::IsoTime => layout.put(&time.format("%Y-%m-%dT%H:%M:%S%z"), false, out),
        Field::UserProperties => {
            let mut pairs = String::new();
            for (at, (name, value)) in message.user_properties.iter().enumerate() {
                let gap = if at == 0 { "" } else { " " };
                let _ = write!(pairs, "{gap}{name}:{value}");
            }
            text(&pairs);
        }
        Field::TopicAlias => {
            layout.put_number(&number(message.topic_alias.map(u32::from)), out);
        }
        Field::Expiry => layout.put_number(&number(message.expiry_s), out),
        Field::PayloadFormat => {
            layout.put_number(&number(message.payload_format.map(u32::from)), out);
        }
        Field::SubscriptionId => {
            let ids: Vec<_> = message
                .subscription_ids
                .iter()
                .map(u32::to_string)
                .collect();
            layout.put_number(&ids.join(" "), out);
        }
        Field::Length => layout.put_number(&message.payload.len().to_string(), out),
        Field::PacketId => layout.put_number(&message.packet_id.to_string(), out),
        Field::QoS => out.push(b'0' + message.qos),
        Field::Retain => out.push(b'0' + u8::from(message.retain)),
        Field::UnixTime => out
            .extend_from_slice(format!("{}.{:09}", time.seconds(), time.nanoseconds()).as_bytes()),
        Field::Payload => layout.put(message.payload, false, out),
        Field::CorrelationData => {
            layout.put(message.correlation_data.unwrap_or_default(), false, out);
        }
        Field::Hex { upper } => layout.put(&hex(message.payload, upper), layout.zeros, out),
        Field::Json { payload_as_json } => write_json(message, time, payload_as_json, pretty, out)?,
    }
    Ok(())
}

impl Layout {
    fn put(self, text: &[u8], zeros: bool, out: &mut Vec<u8>) {
        // Widths count characters where the text is UTF-8, else bytes.
        let most = self.max_width.unwrap_or(usize::MAX);
        let (end, width) = std::str::from_utf8(text).map_or_else(
            |_| (text.len().min(most), text.len().min(most)),
            |valid| {
                let end = valid
                    .char_indices()
                    .nth(most)
                    .map_or(valid.len(), |(at, _)| at);
                (end, valid[..end].chars().count())
            },
        );
        let text = &text[..end];
        let padding = self.min_width.saturating_sub(width);
        let fill = if zeros && !self.left { b'0' } else { b' ' };
        if self.left {
            out.extend_from_slice(text);
        }
        out.resize(out.len() + padding, fill);
        if !self.left {
            out.extend_from_slice(text);
        }
    }

    fn put_number(self, digits: &str, out: &mut Vec<u8>) {
        self.put(digits.as_bytes(), self.zeros, out);
    }
}

fn hex(bytes: &[u8], upper: bool) -> Vec<u8> {
    let digits: &[u8; 16] = if upper {
        b"0123456789ABCDEF"
    } else {
        b"0123456789abcdef"
    };
    bytes
        .iter()
        .flat_map(|byte| {
            [
                digits[usize::from(byte >> 4)],
                digits[usize::from(byte & 15)],
            ]
        })
        .collect()
}

/// Names and order are those of mosquitto_sub.
#[derive(Serialize)]
struct Json<'a> {
    tst: String,
    topic: &'a str,
    qos: u8,
    retain: u8,
    payloadlen: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    mid: Option<u16>,
    #[serde(skip_serializing_if = "JsonProperties::is_empty")]
    properties: JsonProperties<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<JsonPayload<'a>>,
    /// In place of `payload` when that is not UTF-8, because JSON has no way to say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_hex: Option<String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonPayload<'a> {
    Text(&'a str),
    Value(serde_json::Value),
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct JsonProperties<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    topic_alias: Option<u16>,
    #[serde(skip_serializing_if = "UserProperties::is_empty")]
    user_properties: UserProperties<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_topic: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_format_indicator: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message_expiry_interval: Option<u32>,
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    subscription_identifier: &'a [u32],
}

impl JsonProperties<'_> {
    fn is_empty(&self) -> bool {
        self.topic_alias.is_none()
            && self.user_properties.is_empty()
            && self.content_type.is_none()
            && self.correlation_data.is_none()
            && self.response_topic.is_none()
            && self.payload_format_indicator.is_none()
            && self.message_expiry_interval.is_none()
            && self.subscription_identifier.is_empty()
    }
}

/// In order, and with names that come twice, as the protocol allows.
struct UserProperties<'a>(&'a [(&'a str, &'a str)]);

impl UserProperties<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for UserProperties<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

fn write_json(
    message: &Fields<'_>,
    time: &LocalTime,
    payload_as_json: bool,
    pretty: bool,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let text = std::str::from_utf8(message.payload).ok();
    let payload = if payload_as_json {
        let value = serde_json::from_slice(message.payload).map_err(|_| {
            format!(
                "Message payload is not valid JSON on topic {}",
                message.topic
            )
        })?;
        Some(JsonPayload::Value(value))
    } else {
        text.map(JsonPayload::Text)
    };
    let zone = String::from_utf8_lossy(&time.format("%z")).into_owned();
    let moment = String::from_utf8_lossy(&time.format("%Y-%m-%dT%H:%M:%S")).into_owned();
    let json = Json {
        tst: format!("{moment}.{:06}{zone}", time.nanoseconds() / 1000),
        topic: message.topic,
        qos: message.qos,
        retain: message.retain.into(),
        payloadlen: message.payload.len(),
        mid: (message.qos > 0).then_some(message.packet_id),
        properties: JsonProperties {
            topic_alias: message.topic_alias,
            user_properties: UserProperties(&message.user_properties),
            content_type: message.content_type,
            correlation_data: message
                .correlation_data
                .map(|data| String::from_utf8_lossy(data).into_owned()),
            response_topic: message.response_topic,
            payload_format_indicator: message.payload_format,
            message_expiry_interval: message.expiry_s,
            subscription_identifier: &message.subscription_ids,
        },
        payload_hex: (payload.is_none())
            .then(|| String::from_utf8_lossy(&hex(message.payload, false)).into_owned()),
        payload,
    };
    let written = if pretty {
        serde_json::to_writer_pretty(&mut *out, &json)
    } else {
        serde_json::to_writer(&mut *out, &json)
    };
    written.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn message() -> Fields<'static> {
        Fields {
            topic: "x/y",
            payload: b"abcd",
            qos: 2,
            packet_id: 1,
            content_type: Some("ct"),
            response_topic: Some("rrrr"),
            correlation_data: Some(b"cd"),
            expiry_s: Some(30),
            payload_format: Some(1),
            user_properties: vec![("a", "b"), ("a", "c")],
            ..Fields::default()
        }
    }

    fn moment() -> LocalTime {
        LocalTime::at(UNIX_EPOCH + Duration::new(1_795_197_950, 18_606_573))
    }

    fn shown(format: &str, message: &Fields<'_>) -> String {
        let mut out = Vec::new();
        format
            .parse::<Format>()
            .unwrap()
            .write(message, &moment(), false, &mut out)
            .unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The expected texts were printed by mosquitto_sub 2.0.11 for the same message.
    #[test]
    fn fields_widths_and_escapes_are_mosquittos() {
        for (format, expected) in [
            ("[%5p|%-5p|%05l|%-5l]", "[ abcd|abcd |00004|4    ]"),
            (
                "[%10t|%-10t|%2.2t|%.1t|%010t]",
                "[       x/y|x/y       |x/|x|       x/y]",
            ),
            ("[%03m|%q|%r]", "[001|2|0]"),
            ("[%A|%C|%D|%E|%F|%P|%R|%S]", "[|ct|cd|30|1|a:b a:c|rrrr|]"),
            ("[%5E|%05F|%5C|%3.3R]", "[   30|00001|   ct|rrr]"),
            (
                "[%x|%X|%%|@@|\\\\|\\0\\a\\e\\n\\r\\t\\v]",
                "[61626364|61626364|%|@|\\|\0\x07\x1b\n\r\t\x0b]",
            ),
            ("%U @N", "1795197950.018606573 018606573"),
        ] {
            assert_eq!(shown(format, &message()), expected, "{format}");
        }
        let odd = Fields {
            payload: b"\xAB\xCD",
            ..Fields::default()
        };
        assert_eq!(
            shown("%x %X %6x %06X %-6x|", &odd),
            "abcd ABCD   abcd 00ABCD abcd  |"
        );
        assert_eq!(
            shown("@Y-@m %2I", &odd).len(),
            "2026-11 2026-11-20T18:05:50+0000".len()
        );
    }

    #[test]
    fn json_is_one_object() {
        let text = shown("%j", &message());
        let (before, after) = text.split_at(text.find(",\"topic\"").unwrap());
        assert!(before.starts_with("{\"tst\":\"2026-11-"), "{before}");
        assert!(before.contains(".018606"), "{before}");
        assert_eq!(
            after,
            ",\"topic\":\"x/y\",\"qos\":2,\"retain\":0,\"payloadlen\":4,\"mid\":1,\
             \"properties\":{\"user-properties\":{\"a\":\"b\",\"a\":\"c\"},\"content-type\":\"ct\",\
             \"correlation-data\":\"cd\",\"response-topic\":\"rrrr\",\"payload-format-indicator\":1,\
             \"message-expiry-interval\":30},\"payload\":\"abcd\"}"
        );
        let plain = Fields {
            topic: "t",
            payload: b"{\"a\": [1,2.50]}",
            ..Fields::default()
        };
        assert!(shown("%J", &plain).ends_with(",\"payloadlen\":15,\"payload\":{\"a\":[1,2.5]}}"));
        let binary = Fields {
            topic: "t",
            payload: b"\xff",
            ..Fields::default()
        };
        assert!(shown("%j", &binary).ends_with(",\"payload_hex\":\"ff\"}"));
    }

    #[test]
    fn a_payload_that_is_not_json_prints_nothing() {
        let mut out = b"kept".to_vec();
        let format: Format = "%t %J".parse().unwrap();
        let error = format
            .write(&message(), &moment(), false, &mut out)
            .unwrap_err();
        assert_eq!(error, "Message payload is not valid JSON on topic x/y");
        assert_eq!(out, b"kept");
    }

    #[test]
    fn wrong_formats_are_named() {
        for (format, error) in [
            ("%y", "%y is not a field of -F"),
            ("abc%", "the format ends after %"),
            ("abc@", "the format ends after @"),
            ("abc\\", "the format ends after \\"),
            ("\\q", "\\q is not an escape of -F"),
            ("%99999p", "a field of -F is at most 10000 characters wide"),
        ] {
            assert_eq!(format.parse::<Format>().unwrap_err(), error);
        }
    }
}
