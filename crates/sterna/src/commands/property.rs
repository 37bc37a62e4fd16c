//! The properties of `-D`: which packet they go into, their names and their values.

use std::ffi::{OsStr, OsString};

use sterna_client::{Options, Property, PropertyBuf, Publish, Version, Will};

/// Stands between the parts of one `-D` once they are joined; no property can contain it.
const SEPARATOR: char = '\u{1f}';

/// The packets that take properties, as `-D` names them.
const PACKETS: [&str; 6] = [
    "connect",
    "publish",
    "subscribe",
    "unsubscribe",
    "disconnect",
    "will",
];

/// A property of `-D`: packet, name, and a value or a key with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    packet: &'static str,
    name: String,
    key: String,
    value: String,
}

impl std::str::FromStr for Given {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(SEPARATOR).collect();
        let packet = |name: &str| {
            PACKETS
                .into_iter()
                .find(|known| known.eq_ignore_ascii_case(name))
                .ok_or_else(|| {
                    format!(
                        "'{name}' takes no properties; these do: {}",
                        PACKETS.join(", ")
                    )
                })
        };
        match parts[..] {
            [command, name, value] if name != "user-property" => Ok(Self {
                packet: packet(command)?,
                name: name.to_owned(),
                key: String::new(),
                value: value.to_owned(),
            }),
            [command, name, key, value] if name == "user-property" => Ok(Self {
                packet: packet(command)?,
                name: name.to_owned(),
                key: key.to_owned(),
                value: value.to_owned(),
            }),
            [first, ..] if parts.len() == 1 => {
                packet(first)?;
                Err("-D wants a packet, a property's name and its value".to_owned())
            }
            _ => Err(
                "user-property wants a key and a value, every other property one value".to_owned(),
            ),
        }
    }
}

/// Joins each `-D packet name [key] value` of a command line into one argument. The name decides
/// how many words belong to it.
pub(crate) fn join(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut joined = Vec::new();
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        let is_packet = |next: &OsString| {
            next.to_str()
                .is_some_and(|next| PACKETS.iter().any(|p| p.eq_ignore_ascii_case(next)))
        };
        if (argument != "-D" && argument != "--property")
            || !arguments.peek().is_some_and(is_packet)
        {
            joined.push(argument);
            continue;
        }
        let mut parts: Vec<OsString> = arguments.by_ref().take(2).collect();
        let words = if parts.get(1).is_some_and(|name| name == "user-property") {
            2
        } else {
            1
        };
        parts.extend(arguments.by_ref().take(words));
        joined.push("--property".into());
        joined.push(parts.join(OsStr::new(&SEPARATOR.to_string())));
    }
    joined
}

/// All properties of a command line.
#[derive(Clone, Debug, Default)]
pub(super) struct Properties {
    given: Vec<Given>,
}

impl Properties {
    /// Checks the properties against the version and against what the command has a packet for.
    pub(super) fn new(given: &[Given], version: Version, packets: &[&str]) -> Result<Self, String> {
        if !version.is_v5() && !given.is_empty() {
            return Err("-D: only MQTT 5 has properties".to_owned());
        }
        if let Some(other) = given.iter().find(|one| !packets.contains(&one.packet)) {
            return Err(format!(
                "-D: this command sends no {} with properties",
                other.packet
            ));
        }
        Ok(Self {
            given: given.to_vec(),
        })
    }

    fn of(&self, packet: &'static str) -> impl Iterator<Item = &Given> {
        self.given
            .iter()
            .filter(move |given| given.packet == packet)
    }

    /// The options with the properties of CONNECT.
    pub(super) fn connect(&self, options: &mut Options) -> Result<(), String> {
        for given in self.of("connect") {
            match given.name.as_str() {
                "receive-maximum" => options.receive_maximum = given.number()?,
                "maximum-packet-size" => options.max_packet_bytes = given.number()?,
                "topic-alias-maximum" => options.topic_alias_maximum = given.number()?,
                "session-expiry-interval" => options.session_expiry_s = given.number()?,
                "authentication-method" | "authentication-data" => {
                    return Err("-D: use --scram for an authentication method".to_owned());
                }
                _ => options
                    .property(given.property()?)
                    .map_err(|error| given.wrong(&error))?,
            }
        }
        Ok(())
    }

    /// The message with the properties of PUBLISH.
    pub(super) fn publish(&self, message: Publish) -> Result<Publish, String> {
        self.of("publish").try_fold(message, |message, given| {
            message
                .property(given.property()?)
                .map_err(|error| given.wrong(&error))
        })
    }

    /// The will with its properties.
    pub(super) fn will(&self, mut message: Publish) -> Result<Will, String> {
        let mut delay_s = None;
        for given in self.of("will") {
            if given.name == "will-delay-interval" {
                delay_s = Some(given.number()?);
            } else {
                message = message
                    .property(given.property()?)
                    .map_err(|error| given.wrong(&error))?;
            }
        }
        let will = Will::new(message).map_err(|error| format!("--will-payload: {error}"))?;
        match delay_s {
            Some(seconds) => will
                .delay_s(seconds)
                .map_err(|error| format!("-D: {error}")),
            None => Ok(will),
        }
    }

    pub(super) fn has_will(&self) -> bool {
        self.of("will").next().is_some()
    }

    /// The properties of SUBSCRIBE, UNSUBSCRIBE or DISCONNECT.
    pub(super) fn block(&self, packet: &'static str) -> Result<PropertyBuf, String> {
        let mut block = PropertyBuf::new();
        for given in self.of(packet) {
            let property = given.property()?;
            let fits = matches!(property, Property::UserProperty(..))
                || (packet == "disconnect"
                    && matches!(property, Property::SessionExpiryInterval(_)));
            if !fits {
                let names = names(packet).join(", ");
                return Err(format!(
                    "-D: {packet} has no property {}; it has {names}",
                    given.name
                ));
            }
            block.push(property).map_err(|error| given.wrong(&error))?;
        }
        Ok(block)
    }
}

impl Given {
    fn number<T: std::str::FromStr>(&self) -> Result<T, String> {
        self.value.parse().map_err(|_| {
            format!(
                "-D: {} wants a number in its range, not '{}'",
                self.name, self.value
            )
        })
    }

    fn flag(&self) -> Result<bool, String> {
        match self.value.as_str() {
            "0" => Ok(false),
            "1" => Ok(true),
            other => Err(format!("-D: {} is 0 or 1, not '{other}'", self.name)),
        }
    }

    fn wrong(&self, error: &impl std::fmt::Display) -> String {
        format!("-D: {} {}: {error}", self.packet, self.name)
    }

    fn property(&self) -> Result<Property<'_>, String> {
        Ok(match self.name.as_str() {
            "content-type" => Property::ContentType(&self.value),
            "correlation-data" => Property::CorrelationData(self.value.as_bytes()),
            "message-expiry-interval" => Property::MessageExpiryInterval(self.number()?),
            "payload-format-indicator" => Property::PayloadFormatIndicator(self.flag()?),
            "response-topic" => Property::ResponseTopic(&self.value),
            "user-property" => Property::UserProperty(&self.key, &self.value),
            "request-problem-information" => Property::RequestProblemInformation(self.flag()?),
            "request-response-information" => Property::RequestResponseInformation(self.flag()?),
            "session-expiry-interval" => Property::SessionExpiryInterval(self.number()?),
            "topic-alias" => {
                return Err("-D: topic aliases are set by the client itself".to_owned());
            }
            other => {
                let names = names(self.packet).join(", ");
                let packet = self.packet;
                return Err(format!(
                    "-D: there is no property {other} to set here; {packet} has {names}"
                ));
            }
        })
    }
}

/// The properties of a packet that can be set.
fn names(packet: &str) -> &'static [&'static str] {
    match packet {
        "connect" => &[
            "maximum-packet-size",
            "receive-maximum",
            "request-problem-information",
            "request-response-information",
            "session-expiry-interval",
            "topic-alias-maximum",
            "user-property",
        ],
        "publish" => &MESSAGE[..MESSAGE.len() - 1],
        "will" => MESSAGE,
        "disconnect" => &["session-expiry-interval", "user-property"],
        _ => &["user-property"],
    }
}

/// The properties of messages, at the end that of a will alone.
const MESSAGE: &[&str] = &[
    "content-type",
    "correlation-data",
    "message-expiry-interval",
    "payload-format-indicator",
    "response-topic",
    "user-property",
    "will-delay-interval",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(line: &str) -> Vec<String> {
        join(line.split_whitespace().map(OsString::from))
            .into_iter()
            .map(|argument| argument.into_string().unwrap())
            .collect()
    }

    fn given(line: &str) -> Result<Given, String> {
        joined(line)[1].parse()
    }

    #[test]
    fn the_name_decides_how_many_words_follow() {
        assert_eq!(
            joined("pub -D publish content-type text mqtt://h/t -D PUBLISH user-property a b -m x"),
            [
                "pub",
                "--property",
                "publish\u{1f}content-type\u{1f}text",
                "mqtt://h/t",
                "--property",
                "PUBLISH\u{1f}user-property\u{1f}a\u{1f}b",
                "-m",
                "x"
            ]
        );
        assert_eq!(
            joined("passwd -D file user"),
            ["passwd", "-D", "file", "user"]
        );
        assert_eq!(joined("pub -D publish"), ["pub", "--property", "publish"]);
        assert_eq!(
            given("-D Publish user-property a b").unwrap().packet,
            "publish"
        );
        assert!(given("-D publish content-type").is_err());
        assert!(given("-D publish user-property a").is_err());
        assert!(
            "puback\u{1f}a\u{1f}b"
                .parse::<Given>()
                .unwrap_err()
                .contains("takes no properties")
        );
    }

    #[test]
    fn the_names_that_are_told_are_taken() {
        for packet in PACKETS {
            for name in names(packet) {
                let value = match *name {
                    "user-property" => "a b",
                    "content-type" | "correlation-data" | "response-topic" => "a",
                    _ => "1",
                };
                let all = properties(&[&format!("-D {packet} {name} {value}")]);
                let message = || Publish::new("a", "").unwrap();
                let mut options = Options::new("mqtt://h".parse().unwrap());
                let taken = match packet {
                    "connect" => all.connect(&mut options),
                    "publish" => all.publish(message()).map(drop),
                    "will" => all.will(message()).map(drop),
                    packet => all.block(packet).map(drop),
                };
                assert_eq!(taken, Ok(()), "{packet} {name}");
            }
        }
    }

    fn properties(lines: &[&str]) -> Properties {
        let given: Vec<_> = lines.iter().map(|line| given(line).unwrap()).collect();
        Properties::new(&given, Version::V5, &PACKETS).unwrap()
    }

    #[test]
    fn each_packet_takes_its_own() {
        let all = properties(&[
            "-D connect receive-maximum 7",
            "-D connect user-property a b",
            "-D publish message-expiry-interval 30",
            "-D will will-delay-interval 5",
            "-D subscribe user-property c d",
            "-D disconnect session-expiry-interval 9",
        ]);
        let mut options = Options::new("mqtt://h".parse().unwrap());
        all.connect(&mut options).unwrap();
        assert_eq!(options.receive_maximum, 7);
        all.publish(Publish::new("a", "").unwrap()).unwrap();
        assert!(all.has_will());
        all.will(Publish::new("a", "").unwrap()).unwrap();
        assert!(!all.block("subscribe").unwrap().is_empty());
        assert!(all.block("unsubscribe").unwrap().is_empty());
        assert!(!all.block("disconnect").unwrap().is_empty());
    }

    #[test]
    fn wrong_values_are_named() {
        let publish = |line| {
            properties(&[line])
                .publish(Publish::new("a", "").unwrap())
                .unwrap_err()
        };
        assert!(publish("-D publish message-expiry-interval x").contains("wants a number"));
        assert!(publish("-D publish payload-format-indicator 2").contains("0 or 1"));
        assert!(publish("-D publish topic-alias 2").contains("itself"));
        let unknown = publish("-D publish nonsense 2");
        assert!(unknown.contains("no property nonsense"), "{unknown}");
        assert!(
            unknown.ends_with("response-topic, user-property"),
            "{unknown}"
        );
        assert!(publish("-D publish request-problem-information 1").contains("request-problem"));
        let old = [given("-D publish content-type x").unwrap()];
        assert!(Properties::new(&old, Version::V311, &PACKETS).is_err());
        assert!(Properties::new(&old, Version::V5, &["subscribe"]).is_err());
        assert!(
            properties(&["-D subscribe content-type x"])
                .block("subscribe")
                .is_err()
        );
    }
}
