//! Addresses of nodes (`docs/amqp.md`).

use sterna_amqp::Condition;
use sterna_mapping::TOPIC_PREFIX;

use crate::config::{Amqp, is_queue_name, is_topic_name};
use crate::session::amqp::{DYNAMIC, QUEUE_LEVEL, topic_of_queue};

/// Characters that filters have, and names of topics and queues have not.
const WILDCARDS: [char; 2] = ['+', '#'];
/// Before the name of a queue.
const QUEUE_PREFIX: &str = "queue://";

/// The node that an address names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Node {
    /// A topic, or in a source a filter.
    Topic(String),
    /// A queue.
    Queue(String),
    /// The topic that each message's subject names.
    BySubject,
}

/// Which kind of node a plain name is, as the capabilities of a terminus say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Topic,
    Queue,
}

/// Which end of a link an address stands in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Source,
    Target,
}

/// Why an address names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AddressError {
    pub(super) condition: Condition,
    pub(super) detail: &'static str,
}

const fn error(condition: Condition, detail: &'static str) -> AddressError {
    AddressError { condition, detail }
}

const NOT_FOUND: AddressError = error(
    Condition::NOT_FOUND,
    "an address that starts with a slash is /queues/NAME or /exchanges/amq.topic/KEY",
);
/// Nodes by which clients of other brokers declare queues, or show tokens. One that is taken for a topic would accept
/// requests, and nobody would answer.
const OF_OTHER_BROKERS: [(&str, AddressError); 5] = [
    ("/management", NO_MANAGEMENT),
    ("$management", NO_MANAGEMENT),
    (
        "$cbs",
        error(
            Condition::NOT_FOUND,
            "there is no node for tokens: a token is shown by SASL, as OAUTHBEARER or as the password of PLAIN",
        ),
    ),
    ("/queue/", OLD_FORM),
    ("/topic/", OLD_FORM),
];
const NO_MANAGEMENT: AddressError = error(
    Condition::NOT_FOUND,
    "there is no management node: a queue is made by the first link to queue/NAME or /queues/NAME, the exchange \
     /exchanges/amq.topic is there, and operators have the admin API over HTTP",
);
const OLD_FORM: AddressError = error(
    Condition::NOT_FOUND,
    "this is RabbitMQ's address form v1: write queue/NAME or /queues/NAME for a queue, and the topic itself or \
     /exchanges/amq.topic/KEY for a topic",
);
const BAD_ESCAPE: AddressError = error(
    Condition::INVALID_FIELD,
    "a percent sign in the address is not followed by two hexadecimal digits of UTF-8",
);

impl Node {
    /// Reads an address.
    pub(super) fn parse(
        address: &str,
        kind: Option<Kind>,
        end: End,
        config: &Amqp,
    ) -> Result<Self, AddressError> {
        let after = |prefixes: &[String], usual| {
            prefixes
                .iter()
                .map(String::as_str)
                .filter(|prefix| !prefix.is_empty())
                .chain([usual])
                .find_map(|prefix| address.strip_prefix(prefix))
        };
        // A name that no queue can have is no topic instead: messages to it would be accepted, and gone.
        let is_filter = |name: &str| end == End::Source && name.contains(WILDCARDS);
        // An empty prefix is every plain name's.
        let is_plain_queue = kind.is_none()
            && config.queue_prefixes.iter().any(String::is_empty)
            && !address.starts_with(DYNAMIC)
            && !address.contains(WILDCARDS);
        let is_of_others = |(known, _): &&(&str, AddressError)| {
            address == *known || (known.ends_with('/') && address.starts_with(known))
        };
        let node = if let Some(name) = after(&config.queue_prefixes, QUEUE_PREFIX) {
            Self::Queue(name.to_owned())
        } else if let Some(name) = after(&config.topic_prefixes, TOPIC_PREFIX) {
            Self::Topic(name.to_owned())
        } else if let Some((_, error)) = OF_OTHER_BROKERS.iter().find(is_of_others) {
            return Err(*error);
        } else if address.starts_with('/') {
            Self::parse_v2(address, end)?
        } else if let Some(name) = address.strip_prefix(QUEUE_LEVEL)
            && kind != Some(Kind::Topic)
            && !is_filter(name)
        {
            Self::Queue(name.to_owned())
        } else if kind == Some(Kind::Queue) || is_plain_queue {
            Self::Queue(address.to_owned())
        } else {
            Self::Topic(address.to_owned())
        };
        node.check(end)?;
        Ok(node)
    }

    /// Reads an address of RabbitMQ's form, version 2.
    fn parse_v2(address: &str, end: End) -> Result<Self, AddressError> {
        if let Some(name) = address.strip_prefix("/queues/") {
            if name.contains('/') {
                return Err(NOT_FOUND);
            }
            return Ok(Self::Queue(unescape(name)?));
        }
        let rest = address.strip_prefix("/exchanges/").ok_or(NOT_FOUND)?;
        let (exchange, key) = match rest.split_once('/') {
            None => (rest, None),
            Some((exchange, key)) => (exchange, Some(key)),
        };
        if unescape(exchange)? != "amq.topic" {
            return Err(error(
                Condition::NOT_FOUND,
                "there is no exchange but amq.topic",
            ));
        }
        match key {
            Some(key) if key.contains('/') => Err(NOT_FOUND),
            Some(key) => Ok(Self::Topic(topic_of_key(&unescape(key)?, end))),
            None if end == End::Target => Ok(Self::BySubject),
            None => Err(NOT_FOUND),
        }
    }

    fn check(&self, end: End) -> Result<(), AddressError> {
        match self {
            Self::Queue(name) if !is_queue_name(name) => Err(error(
                Condition::INVALID_FIELD,
                "the queue's name is empty, too long, or has a wildcard",
            )),
            Self::Topic(name) if end == End::Target && !is_topic_name(name) => Err(error(
                Condition::INVALID_FIELD,
                "the target's address is not a topic name",
            )),
            _ => Ok(()),
        }
    }

    /// The topic that messages to the node are published to; `None` where each names its own.
    pub(super) fn topic(&self) -> Option<String> {
        match self {
            Self::Topic(topic) => Some(topic.clone()),
            Self::Queue(name) => Some(topic_of_queue(name)),
            Self::BySubject => None,
        }
    }
}

/// The topic of a routing key: levels are parted by dots, and `*` stands for one.
pub(super) fn topic_of_key(key: &str, end: End) -> String {
    let levels = key.split('.');
    let level = |level| match (level, end) {
        ("*", End::Source) => "+",
        (level, _) => level,
    };
    levels.map(level).collect::<Vec<_>>().join("/")
}

/// Undoes percent-encoding (RFC 3986, section 2.1).
fn unescape(text: &str) -> Result<String, AddressError> {
    if !text.contains('%') {
        return Ok(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(BAD_ESCAPE);
        };
        bytes.push((high << 4 | low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| BAD_ESCAPE)
}

/// A name as one level of a topic, or as the name of a share. Characters that those cannot have are
/// percent-encoded.
pub(super) fn share_name(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '/' => name.push_str("%2F"),
            '%' => name.push_str("%25"),
            '+' => name.push_str("%2B"),
            '#' => name.push_str("%23"),
            other => name.push(other),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(address: &str, kind: Option<Kind>, end: End) -> Result<Node, Condition> {
        let config = Amqp {
            topic_prefixes: vec!["multicast://".to_owned()],
            queue_prefixes: vec!["anycast://".to_owned()],
            ..Amqp::default()
        };
        Node::parse(address, kind, end, &config).map_err(|error| error.condition)
    }

    #[test]
    fn every_form_of_an_address_is_read() {
        let topic = |name: &str| Ok(Node::Topic(name.to_owned()));
        let queue = |name: &str| Ok(Node::Queue(name.to_owned()));
        for (address, kind, end, node) in [
            ("a/b", None, End::Target, topic("a/b")),
            ("a/+/#", None, End::Source, topic("a/+/#")),
            ("queue/orders", None, End::Target, queue("orders")),
            ("queue/a/b", None, End::Source, queue("a/b")),
            ("queue/#", None, End::Source, topic("queue/#")),
            ("queue/x", Some(Kind::Topic), End::Source, topic("queue/x")),
            ("orders", Some(Kind::Queue), End::Source, queue("orders")),
            ("/queues/a%2Fb", None, End::Source, queue("a/b")),
            ("/queues/a/b", None, End::Source, Err(Condition::NOT_FOUND)),
            ("/exchanges/amq.topic/a.b", None, End::Target, topic("a/b")),
            (
                "/exchanges/amq.topic/a.*.#",
                None,
                End::Source,
                topic("a/+/#"),
            ),
            (
                "/exchanges/amq.topic",
                None,
                End::Target,
                Ok(Node::BySubject),
            ),
            (
                "/exchanges/amq.topic",
                None,
                End::Source,
                Err(Condition::NOT_FOUND),
            ),
            (
                "/exchanges/amq.direct/a",
                None,
                End::Target,
                Err(Condition::NOT_FOUND),
            ),
            ("/queue/a", None, End::Target, Err(Condition::NOT_FOUND)),
            ("topic:///a", None, End::Target, topic("/a")),
            ("queue://a", None, End::Target, queue("a")),
            ("multicast://a", None, End::Target, topic("a")),
            ("anycast://a", None, End::Target, queue("a")),
            ("a/#", None, End::Target, Err(Condition::INVALID_FIELD)),
            ("", None, End::Target, Err(Condition::INVALID_FIELD)),
            ("queue://", None, End::Source, Err(Condition::INVALID_FIELD)),
            (
                "/queues/a%2",
                None,
                End::Source,
                Err(Condition::INVALID_FIELD),
            ),
        ] {
            assert_eq!(parse(address, kind, end), node, "{address} {kind:?}");
        }
    }

    /// A node that others know says what there is instead, and is not taken for a topic.
    #[test]
    fn addresses_of_other_brokers_are_refused_by_a_sentence() {
        let config = Amqp::default();
        for (address, says) in [
            ("/management", "admin API"),
            ("$management", "admin API"),
            ("$cbs", "OAUTHBEARER"),
            ("/queue/a", "v1"),
            ("/topic/a", "v1"),
            ("/exchange/a", "/queues/NAME"),
            ("/amq/queue/a", "/queues/NAME"),
            ("/exchanges/amq.direct", "amq.topic"),
        ] {
            for end in [End::Source, End::Target] {
                let found = Node::parse(address, None, end, &config).expect_err(address);
                assert_eq!(found.condition, Condition::NOT_FOUND, "{address}");
                assert!(found.detail.contains(says), "{address}: {}", found.detail);
            }
        }
        let told = Amqp {
            queue_prefixes: vec!["/queue/".to_owned()],
            ..Amqp::default()
        };
        let node = Node::parse("/queue/a", None, End::Source, &told);
        assert_eq!(
            node,
            Ok(Node::Queue("a".to_owned())),
            "a setting comes first"
        );
        let topic = Node::parse("topic://$cbs", None, End::Source, &config);
        assert_eq!(topic, Ok(Node::Topic("$cbs".to_owned())));
    }

    #[test]
    fn a_name_that_no_queue_can_have_names_nothing() {
        let plain = Amqp {
            queue_prefixes: vec![String::new()],
            ..Amqp::default()
        };
        let most = "x".repeat(1_024);
        let long = "x".repeat(1_025);
        let queue_level = |name: &str| format!("queue/{name}");
        for end in [End::Source, End::Target] {
            let parse = |address: &str, kind, config| {
                Node::parse(address, kind, end, config).map_err(|error| error.condition)
            };
            let usual = &Amqp::default();
            let refused = Err(Condition::INVALID_FIELD);
            let node = parse(&queue_level(&most), None, usual);
            assert_eq!(node, Ok(Node::Queue(most.clone())));
            assert_eq!(parse(&most, None, &plain), Ok(Node::Queue(most.clone())));
            assert_eq!(parse(&queue_level(&long), None, usual), refused);
            assert_eq!(parse("queue/", None, usual), refused);
            assert_eq!(parse(&long, None, &plain), refused);
            // A topic may have it.
            let topic = Ok(Node::Topic(queue_level(&long)));
            assert_eq!(parse(&queue_level(&long), Some(Kind::Topic), usual), topic);
        }
    }

    #[test]
    fn an_empty_prefix_makes_every_plain_name_a_queue() {
        let config = Amqp {
            queue_prefixes: vec![String::new(), "anycast://".to_owned()],
            ..Amqp::default()
        };
        let topic = |name: &str| Node::Topic(name.to_owned());
        let queue = |name: &str| Node::Queue(name.to_owned());
        for (address, kind, end, node) in [
            ("orders", None, End::Target, queue("orders")),
            ("a/b", None, End::Source, queue("a/b")),
            ("anycast://a", None, End::Target, queue("a")),
            ("queue/a", None, End::Target, queue("a")),
            ("queue://a", None, End::Target, queue("a")),
            ("/queues/a", None, End::Target, queue("a")),
            ("topic://a/b", None, End::Target, topic("a/b")),
            ("/exchanges/amq.topic/a.b", None, End::Target, topic("a/b")),
            ("a/b", Some(Kind::Topic), End::Target, topic("a/b")),
            ("a/#", None, End::Source, topic("a/#")),
            // The addresses that the broker itself has given out.
            ("amqp/dynamic/1", None, End::Target, topic("amqp/dynamic/1")),
        ] {
            let parsed = Node::parse(address, kind, end, &config);
            assert_eq!(parsed, Ok(node), "{address} {kind:?}");
        }
    }

    #[test]
    fn share_names_tell_queues_apart() {
        assert_eq!(share_name("a/b"), "a%2Fb");
        assert_eq!(share_name("a%2Fb"), "a%252Fb");
    }
}
