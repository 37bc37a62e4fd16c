//! Requests to the admin API of a broker, and its answers.

use serde_json::Value;
use sterna_mqtt::packet::{Connect, Packet};
use sterna_mqtt::{Property, Version};
use sterna_net::TransportKind;
use sterna_server::config::Config;

use crate::fixture::{Broker, Peer, block, plain};
use crate::page::{ADMIN, Answer, config, connect};

pub(crate) const V5: Version = Version::V5;

/// A broker, and an operator's connection to its first shard.
pub(crate) struct World {
    pub(crate) broker: Broker,
    pub(crate) peer: Peer,
}

/// An answer with JSON.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) json: Value,
}

impl Told {
    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(&format!("{name}: ")))
    }

    /// The entries of a page.
    pub(crate) fn items(&self) -> &[Value] {
        self.json["items"].as_array().expect("a page")
    }
}

impl World {
    /// Everybody is an administrator.
    pub(crate) fn new(shards: usize) -> Self {
        Self::with(&config(), shards)
    }

    pub(crate) fn with(config: &Config, shards: usize) -> Self {
        Self::of(Broker::with(config, shards))
    }

    pub(crate) fn of(mut broker: Broker) -> Self {
        let peer = connect(&mut broker, ADMIN, 0);
        Self { broker, peer }
    }

    /// Sends a request with fields, and takes the answer.
    pub(crate) fn send(&mut self, method: &str, path: &str, fields: &str, content: &str) -> Answer {
        let length = content.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost:9464\r\n{fields}Content-Length: {length}\r\n\r\n{content}"
        );
        self.broker.send(self.peer, request.as_bytes());
        let mut bytes = self.broker.take(self.peer);
        // What is long leaves in parts, as the transport has room.
        while !is_complete(&bytes, method) {
            self.broker.writable(self.peer);
            let more = self.broker.take(self.peer);
            assert!(!more.is_empty(), "the answer to {method} {path} ends early");
            bytes.extend(more);
        }
        let text = String::from_utf8(bytes).expect("text");
        Answer::of(&text).expect("an answer")
    }

    /// The same with an answer in JSON; `null` without content.
    pub(crate) fn call(&mut self, method: &str, path: &str, content: &str) -> Told {
        let answer = self.send(method, path, "Content-Type: application/json\r\n", content);
        told(answer)
    }

    pub(crate) fn get(&mut self, path: &str) -> Told {
        told(self.send("GET", path, "", ""))
    }

    /// The same where success is expected.
    pub(crate) fn read(&mut self, path: &str) -> Value {
        let told = self.get(path);
        assert_eq!(told.status, 200, "{path}: {told:?}");
        told.json
    }

    /// Every entry of a list, page by page.
    pub(crate) fn all(&mut self, path: &str, limit: usize) -> Vec<Value> {
        let mut items = Vec::new();
        let mut after = String::new();
        loop {
            let separator = if path.contains('?') { '&' } else { '?' };
            let page = self.read(&format!("{path}{separator}limit={limit}{after}"));
            let found = page["items"].as_array().expect("a page");
            assert!(found.len() <= limit, "{} of {limit}", found.len());
            items.extend(found.iter().cloned());
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return items,
            }
        }
    }

    /// A client of MQTT 5 on a shard, whose session lasts for so many seconds.
    pub(crate) fn client(&mut self, shard: usize, name: &str, expiry_s: u32) -> Peer {
        let peer = self.broker.open_on(shard, TransportKind::Tcp, Vec::new());
        let properties = block(&[Property::SessionExpiryInterval(expiry_s)]);
        let connect = Connect {
            clean_start: false,
            properties: properties.properties(),
            ..plain(V5, name)
        };
        self.broker.packet(peer, V5, &Packet::Connect(connect));
        let told = self.broker.told(peer, V5);
        assert!(told[0].starts_with("CONNACK Success"), "{told:?}");
        peer
    }
}

/// Whether an answer has come as a whole.
fn is_complete(bytes: &[u8], method: &str) -> bool {
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    let Some((head, content)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    let length = length.map_or(0, |length| length.parse().expect("a length"));
    method == "HEAD" || content.len() >= length
}

pub(crate) fn told(answer: Answer) -> Told {
    let Answer {
        status,
        head,
        content,
    } = answer;
    let json = serde_json::from_str(&content);
    assert!(json.is_ok() || content.is_empty(), "{content}");
    Told {
        status,
        head,
        json: json.unwrap_or(Value::Null),
    }
}

/// The names of entries.
pub(crate) fn names(items: &[Value]) -> Vec<String> {
    let mut names: Vec<String> = items
        .iter()
        .map(|item| item["name"].as_str().unwrap_or("-").to_owned())
        .collect();
    names.sort_unstable();
    names
}
