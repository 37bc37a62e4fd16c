//! A client and a matcher as simple as they can be, so that the server's own code does not judge itself.
//! Packets are made and read by hand.

use std::collections::BTreeSet;

use sterna_mqtt::Version;
use sterna_net::sim::Client;

/// A message that arrived (at QoS 2: that was taken over).
pub(crate) struct Event {
    pub(crate) topic: String,
    pub(crate) number: usize,
}

/// A publication that the server has not acknowledged to its end.
struct Pending {
    packet_id: u16,
    topic: String,
    payload: String,
    qos: u8,
    released: bool,
}

/// A client whose state survives its connections.
pub(crate) struct Naive {
    name: String,
    version: Version,
    link: Option<Client>,
    connected: bool,
    ever_connected: bool,
    unread: Vec<u8>,
    next_packet_id: u16,
    pending: Vec<Pending>,
    requests: BTreeSet<u16>,
    taken_over: BTreeSet<u16>,
    log: Vec<Event>,
}

impl Naive {
    pub(crate) fn new(name: String, version: Version) -> Self {
        Self {
            name,
            version,
            link: None,
            connected: false,
            ever_connected: false,
            unread: Vec::new(),
            next_packet_id: 0,
            pending: Vec::new(),
            requests: BTreeSet::new(),
            taken_over: BTreeSet::new(),
            log: Vec::new(),
        }
    }

    pub(crate) const fn link(&self) -> Option<Client> {
        self.link
    }

    pub(crate) const fn is_connected(&self) -> bool {
        self.connected
    }

    pub(crate) const fn is_new(&self) -> bool {
        !self.ever_connected
    }

    pub(crate) fn unanswered(&self) -> usize {
        self.requests.len()
    }

    pub(crate) const fn unacknowledged(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn take_log(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.log)
    }

    pub(crate) fn lost(&mut self) {
        self.link = None;
        self.connected = false;
    }

    const fn v5(&self) -> bool {
        matches!(self.version, Version::V5)
    }

    /// CONNECT on a new link.
    pub(crate) fn connect(&mut self, link: Client, clean: bool) -> Vec<u8> {
        self.link = Some(link);
        self.connected = false;
        self.unread.clear();
        // Requests of the last connection are void.
        self.requests.clear();
        let mut body = vec![0, 4];
        body.extend_from_slice(b"MQTT");
        body.extend_from_slice(&[if self.v5() { 5 } else { 4 }]);
        // A 3.1.1 session is only kept if it was not clean from the start.
        let clean = clean && self.v5();
        body.extend_from_slice(&[if clean { 2 } else { 0 }, 0, 0]);
        if self.v5() {
            body.extend_from_slice(&[5, 17, 0xFF, 0xFF, 0xFF, 0xFF]);
        }
        body.extend_from_slice(&text(&self.name));
        packet(0x10, &body)
    }

    fn packet_id(&mut self) -> u16 {
        loop {
            self.next_packet_id = self.next_packet_id.wrapping_add(1);
            let id = self.next_packet_id;
            let used =
                self.pending.iter().any(|p| p.packet_id == id) || self.requests.contains(&id);
            if id != 0 && !used {
                return id;
            }
        }
    }

    fn request(&mut self, first: u8, payload: &[u8]) -> Vec<u8> {
        let id = self.packet_id();
        self.requests.insert(id);
        let mut body = id.to_be_bytes().to_vec();
        if self.v5() {
            body.push(0);
        }
        body.extend_from_slice(payload);
        packet(first, &body)
    }

    pub(crate) fn subscribe(&mut self, filter: &str, qos: u8) -> Vec<u8> {
        let mut payload = text(filter);
        payload.push(qos);
        self.request(0x82, &payload)
    }

    pub(crate) fn unsubscribe(&mut self, filter: &str) -> Vec<u8> {
        self.request(0xA2, &text(filter))
    }

    pub(crate) fn publish(&mut self, topic: &str, payload: &str, qos: u8) -> Vec<u8> {
        let packet_id = if qos > 0 { self.packet_id() } else { 0 };
        let pending = Pending {
            packet_id,
            topic: topic.to_owned(),
            payload: payload.to_owned(),
            qos,
            released: false,
        };
        let bytes = self.publication(&pending, false);
        if qos > 0 {
            self.pending.push(pending);
        }
        bytes
    }

    fn publication(&self, pending: &Pending, dup: bool) -> Vec<u8> {
        let mut body = text(&pending.topic);
        if pending.qos > 0 {
            body.extend_from_slice(&pending.packet_id.to_be_bytes());
        }
        if self.v5() {
            body.push(0);
        }
        body.extend_from_slice(pending.payload.as_bytes());
        packet(0x30 | pending.qos << 1 | if dup { 8 } else { 0 }, &body)
    }

    /// Reads what arrived and returns what is to be sent.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.unread.extend_from_slice(bytes);
        let mut answer = Vec::new();
        while let Some((first, body, used)) = cut(&self.unread) {
            self.unread.drain(..used);
            self.handle(first, &body, &mut answer);
        }
        answer
    }

    fn handle(&mut self, first: u8, body: &[u8], answer: &mut Vec<u8>) {
        match first >> 4 {
            2 => self.connack(body, answer),
            3 => self.message(first, body, answer),
            4 | 7 => self.pending.retain(|p| p.packet_id != id(body)),
            5 => {
                let refused = body.get(2).is_some_and(|code| *code >= 0x80);
                assert!(!refused, "{}: PUBREC refuses", self.name);
                if let Some(pending) = self.pending.iter_mut().find(|p| p.packet_id == id(body)) {
                    pending.released = true;
                }
                answer.extend_from_slice(&packet(0x62, &body[..2]));
            }
            6 => {
                self.taken_over.remove(&id(body));
                answer.extend_from_slice(&packet(0x70, &body[..2]));
            }
            9 | 11 => {
                assert!(
                    self.requests.remove(&id(body)),
                    "{}: an answer to nothing",
                    self.name
                );
            }
            14 => assert_eq!(body, [0x8E], "{}: DISCONNECT {body:02x?}", self.name),
            other => panic!("{}: packet type {other}", self.name),
        }
    }

    fn connack(&mut self, body: &[u8], answer: &mut Vec<u8>) {
        if body[1] == 0x80 {
            // A connection that was opened before this one has arrived after it and taken over what
            // this one was still waiting for. The end of this one follows.
            return;
        }
        assert_eq!(body[1], 0, "{}: refused", self.name);
        assert_eq!(
            body[0] == 1,
            self.ever_connected,
            "{}: session present",
            self.name
        );
        self.connected = true;
        self.ever_connected = true;
        // Publications go on in their order.
        for pending in &self.pending {
            if pending.released {
                answer.extend_from_slice(&packet(0x62, &pending.packet_id.to_be_bytes()));
            } else {
                answer.extend_from_slice(&self.publication(pending, true));
            }
        }
    }

    fn message(&mut self, first: u8, body: &[u8], answer: &mut Vec<u8>) {
        let qos = first >> 1 & 3;
        let length = usize::from(id(body));
        let topic = String::from_utf8(body[2..2 + length].to_vec()).expect("a topic");
        let mut rest = &body[2 + length..];
        let mut packet_id = 0;
        if qos > 0 {
            packet_id = id(rest);
            rest = &rest[2..];
        }
        if self.v5() {
            assert!(rest[0] < 0x80, "few properties");
            rest = &rest[1 + usize::from(rest[0])..];
        }
        let number = std::str::from_utf8(rest)
            .expect("text")
            .parse()
            .expect("a number");
        if qos < 2 || self.taken_over.insert(packet_id) {
            self.log.push(Event { topic, number });
        }
        match qos {
            1 => answer.extend_from_slice(&packet(0x40, &packet_id.to_be_bytes())),
            2 => answer.extend_from_slice(&packet(0x50, &packet_id.to_be_bytes())),
            _ => {}
        }
    }
}

fn id(body: &[u8]) -> u16 {
    u16::from_be_bytes([body[0], body[1]])
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut length = body.len();
    loop {
        let more = if length > 127 { 0x80 } else { 0 };
        bytes.push((length & 127) as u8 | more);
        length >>= 7;
        if length == 0 {
            break;
        }
    }
    bytes.extend_from_slice(body);
    bytes
}

/// The first whole packet: its first byte, its body, and its size.
fn cut(bytes: &[u8]) -> Option<(u8, Vec<u8>, usize)> {
    let first = *bytes.first()?;
    let (mut length, mut at) = (0, 1);
    loop {
        let byte = *bytes.get(at)?;
        length |= usize::from(byte & 127) << (7 * (at - 1));
        at += 1;
        if byte < 128 {
            break;
        }
    }
    let body = bytes.get(at..at + length)?.to_vec();
    Some((first, body, at + length))
}

/// Group and filter of a shared subscription.
pub(crate) fn shared(filter: &str) -> Option<(&str, &str)> {
    filter.strip_prefix("$share/")?.split_once('/')
}

/// Whether a filter matches a topic, level by level.
pub(crate) fn matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let filter: Vec<&str> = filter.split('/').collect();
    let topic: Vec<&str> = topic.split('/').collect();
    for (at, level) in filter.iter().enumerate() {
        match *level {
            "#" => return topic.len() >= at,
            "+" if at < topic.len() => {}
            name if topic.get(at) == Some(&name) => {}
            _ => return false,
        }
    }
    filter.len() == topic.len()
}
