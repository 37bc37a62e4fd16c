//! A broker with an admin listener, and its page of metrics taken apart.

use std::collections::{BTreeMap, BTreeSet};

use sterna_net::{StreamId, TransportKind};
use sterna_server::config::{Config, Listener};

use crate::fixture::{Broker, Peer, everybodys};

/// Listeners of all tests here, by index.
pub(crate) const MQTT: u16 = 0;
pub(crate) const AMQP: u16 = 1;
pub(crate) const HTTP: u16 = 2;
pub(crate) const ADMIN: u16 = 3;

/// The configuration with an admin listener on loopback.
pub(crate) fn config() -> Config {
    let listeners = [
        "mqtt://127.0.0.1:0",
        "amqp://127.0.0.1:0",
        "http://127.0.0.1:0",
        "admin://127.0.0.1:0",
    ];
    Config {
        listeners: listeners.into_iter().map(Listener::at).collect(),
        ..everybodys()
    }
}

/// A connection to a listener.
pub(crate) fn connect(broker: &mut Broker, listener: u16, shard: usize) -> Peer {
    broker.listener = listener;
    let peer = broker.open_speaking(b"", shard, TransportKind::Tcp, Vec::new());
    broker.listener = MQTT;
    peer
}

/// An answer of HTTP/1.1.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) content: String,
}

impl Answer {
    /// Takes an answer apart.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let (head, content) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Self {
            status,
            head: head.to_ascii_lowercase(),
            content: content.to_owned(),
        })
    }
}

/// Takes the answer.
pub(crate) fn answer(broker: &mut Broker, peer: Peer) -> Option<Answer> {
    let text = String::from_utf8(broker.take_on(peer, StreamId::FIRST)).expect("text");
    Answer::of(&text)
}

/// Asks for a path, with more fields.
pub(crate) fn get(broker: &mut Broker, peer: Peer, path: &str, fields: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost:9464\r\n{fields}\r\n");
    broker.send(peer, request.as_bytes());
    answer(broker, peer).expect("an answer")
}

/// Samples by name and labels as they are written.
#[derive(Debug)]
pub(crate) struct Page {
    samples: BTreeMap<String, String>,
    /// Names of families, and their types.
    types: BTreeMap<String, String>,
}

impl Page {
    /// Takes a page apart, and holds that it is one.
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.strip_suffix("# EOF\n").expect("the end of the page");
        let mut samples = BTreeMap::new();
        let mut types: BTreeMap<String, String> = BTreeMap::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert!(
                    types.insert(name.to_owned(), kind.to_owned()).is_none(),
                    "{name} twice"
                );
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').expect("a value");
                value.parse::<f64>().expect("a number");
                assert!(
                    samples.insert(name.to_owned(), value.to_owned()).is_none(),
                    "{name} twice"
                );
                let family = name.split('{').next().unwrap_or_default();
                let known = ["", "_total", "_bucket", "_sum", "_count"];
                let is_known = known.iter().any(|suffix| {
                    (family.strip_suffix(suffix)).is_some_and(|family| types.contains_key(family))
                });
                assert!(is_known, "{family} has no type");
            }
        }
        Self { samples, types }
    }

    /// The value of a sample, a whole number; panics if there is none.
    pub(crate) fn value(&self, sample: &str) -> u64 {
        let value = self.samples.get(sample);
        let value = value.unwrap_or_else(|| panic!("no {sample} in {:#?}", self.samples.keys()));
        value.parse().expect("a whole number")
    }

    /// The sum of all samples of a name, whole numbers.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        let begin = format!("{name}{{");
        let of_name = |sample: &&String| **sample == name || sample.starts_with(&begin);
        let all: Vec<_> = self.samples.keys().filter(of_name).collect();
        assert!(!all.is_empty(), "no {name}");
        all.iter().map(|sample| self.value(sample)).sum()
    }

    /// The names of families, those of counters with `_total`.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.types.iter().map(|(name, kind)| match &**kind {
            "counter" => format!("{name}_total"),
            _ => name.clone(),
        })
    }

    /// All values of a label.
    pub(crate) fn values_of(&self, label: &str) -> BTreeSet<&str> {
        let begin = format!("{label}=\"");
        let of_sample = |sample: &'_ String| -> Option<(usize, usize)> {
            let from = sample.find(&begin)? + begin.len();
            Some((from, from + sample[from..].find('"')?))
        };
        let values = self.samples.keys();
        values
            .filter_map(|sample| of_sample(sample).map(|(from, to)| &sample[from..to]))
            .collect()
    }
}

/// Scrapes over a connection.
pub(crate) fn scrape_on(broker: &mut Broker, peer: Peer) -> Page {
    let answer = get(broker, peer, "/metrics", "");
    assert_eq!(answer.status, 200, "{answer:?}");
    let form = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(answer.head.contains(form), "{}", answer.head);
    Page::parse(&answer.content)
}

/// Scrapes over a connection of its own.
pub(crate) fn scrape(broker: &mut Broker) -> Page {
    let peer = connect(broker, ADMIN, 0);
    let page = scrape_on(broker, peer);
    broker.cut(peer);
    page
}
