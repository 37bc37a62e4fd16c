//! Filters of sources (part 3, section 3.5.8, and the filters that brokers have registered).

use crate::types::{Map, MapIter, Value};

/// Descriptors of known filters.
pub mod descriptor {
    /// A selector in the language of JMS ([`crate::selector`]).
    pub const SELECTOR: (u64, &str) = (0x0000_468c_0000_0004, "apache.org:selector-filter:string");
    /// A pattern of topics.
    pub const TOPIC: (u64, &str) = (
        0x0000_468c_0000_0001,
        "apache.org:legacy-amqp-topic-binding:string",
    );
    /// An exact subject.
    pub const DIRECT: (u64, &str) = (
        0x0000_468c_0000_0000,
        "apache.org:legacy-amqp-direct-binding:string",
    );
    /// No messages that came over the same connection.
    pub const NO_LOCAL: (u64, &str) = (0x0000_468c_0000_0003, "apache.org:no-local-filter:list");
}

/// One filter of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filter<'a> {
    /// A selector ([`crate::selector::Selector`]).
    Selector(&'a str),
    /// A pattern of topics, in the broker's syntax.
    Topic(&'a str),
    /// An exact subject.
    Direct(&'a str),
    /// No messages that came over the same connection.
    NoLocal,
    /// Any other. A source that is attached without it tells the peer that it is not applied.
    Other(Value<'a>),
}

impl<'a> Filter<'a> {
    fn from_value(value: Value<'a>) -> Self {
        let Value::Described(described) = value else {
            return Self::Other(value);
        };
        let is = |(code, symbol): (u64, &str)| described.is(code, symbol);
        match described.value().as_text() {
            Some(text) if is(descriptor::SELECTOR) => Self::Selector(text),
            Some(text) if is(descriptor::TOPIC) => Self::Topic(text),
            Some(text) if is(descriptor::DIRECT) => Self::Direct(text),
            _ if is(descriptor::NO_LOCAL) => Self::NoLocal,
            _ => Self::Other(value),
        }
    }
}

/// The filters of a source with their names. A message has to pass all of them.
#[derive(Clone, Debug)]
pub struct Filters<'a>(MapIter<'a>);

impl<'a> Filters<'a> {
    pub(super) const fn new(map: Map<'a>) -> Self {
        Self(map.iter())
    }
}

impl<'a> Iterator for Filters<'a> {
    type Item = (&'a str, Filter<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (name, value) = self.0.next()?;
            // A null filter is one that is not applied.
            if !value.is_null() {
                return Some((name.as_text().unwrap_or(""), Filter::from_value(value)));
            }
        }
    }
}
