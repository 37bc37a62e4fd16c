//! Three nodes, a model of JetStream that knows names again for two minutes, and a client that repeats what it has no
//! answer to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sterna_broker::{Destination, Once, Outgoing, Records, SessionKey, Settles as Wanted};
use sterna_cluster::owners::{Key, Process};
use sterna_cluster::tail::{Settled, Settles, Tail};

use super::node::Node;

const NODES: usize = 3;

/// Time for which JetStream knows a name again.
const WINDOW_MS: u64 = 120_000;

const SESSION: Key = [7; 16];

/// Messages that a client may have on their way.
const MOST_UNDER_WAY: usize = 4;

/// A small generator: the same numbers for a seed each time.
struct Dice(u64);

impl Dice {
    const fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// An entry of the log; its position is its place, counted from 1.
struct Logged {
    name: Once,
    at_ms: u64,
    line: Option<String>,
    payload: String,
}

/// How far the client is with a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It was sent over this connection, and is acknowledged when its node has kept a token.
    Sent(u64),
    /// It is to be sent again.
    Unsent,
    /// It was acknowledged (PUBREC), and its release is to be sent.
    Received,
    /// It was released, and that is acknowledged when its node has kept a token.
    Released(u64),
}

/// A client, which has one connection at most.
struct Client {
    /// The node, and the session there.
    connection: Option<(usize, SessionKey)>,
    /// What the front door of that node knows to be received.
    received: BTreeSet<u16>,
    under_way: Vec<(u16, String, Stage)>,
    next_number: u64,
}

pub(crate) struct World {
    dice: Dice,
    now_ms: u64,
    knows_tail: bool,
    /// Whether the client is a sender of AMQP.
    is_link: bool,
    log: Vec<Logged>,
    /// What is kept of the session: the epoch of its writer, and the records.
    kept: (u64, Records),
    epoch: u64,
    owner: Option<usize>,
    nodes: Vec<Node>,
    /// The last mark of each node: its process, and how far that had kept everything.
    marks: BTreeMap<usize, (u64, u64)>,
    tail: Tail,
    client: Client,
    acknowledged: BTreeSet<String>,
    /// Records that were found in the tail.
    pub(crate) amended: usize,
}

impl World {
    pub(crate) fn new(seed: u64, knows_tail: bool) -> Self {
        let mut world = Self {
            dice: Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            now_ms: 1_000_000,
            knows_tail,
            is_link: seed % 2 == 1,
            log: Vec::new(),
            kept: (0, Records::new()),
            epoch: 0,
            owner: None,
            nodes: Vec::new(),
            marks: BTreeMap::new(),
            tail: Tail::new(1_000),
            client: Client {
                connection: None,
                received: BTreeSet::new(),
                under_way: Vec::new(),
                next_number: 0,
            },
            acknowledged: BTreeSet::new(),
            amended: 0,
        };
        world.tail.begin(1);
        for at in 0..NODES {
            world.nodes.push(Node::start(process(at, 1), world.now_ms));
            world.mark(at);
        }
        world
    }

    const fn end(&self) -> u64 {
        self.log.len() as u64 + 1
    }

    /// A node says up to which position it has kept everything, its earlier starts included.
    fn mark(&mut self, at: usize) {
        let Process { node, incarnation } = self.nodes[at].process.clone();
        let earlier = self.tail.kept_earlier(&node, incarnation);
        let settled = self.nodes[at].settled_to(self.end());
        let settled = settled.min(earlier.unwrap_or(u64::MAX));
        self.tail.kept(&node, incarnation, settled);
        self.marks.insert(at, (incarnation, settled));
    }

    /// The messages of a node's next turn get into the log, or those of the turn after it, whose topics may be others.
    fn append(&mut self, at: usize) {
        let skipped = usize::from(self.dice.roll(4) == 0);
        let waiting = (self.nodes[at].turns.iter_mut()).filter(|turn| !turn.outgoing.is_empty());
        let Some(turn) = waiting.take(skipped + 1).last() else {
            return;
        };
        for one in std::mem::take(&mut turn.outgoing) {
            self.append_one(at, &one);
        }
    }

    fn append_one(&mut self, at: usize, outgoing: &Outgoing) {
        let Destination::Log {
            once: Some(name), ..
        } = outgoing.destination
        else {
            panic!("{:?}", outgoing.destination);
        };
        let payload = String::from_utf8(outgoing.message.payload().to_vec()).expect("text");
        let is_known = self.log.iter().any(|known| {
            known.name == name && known.payload == payload && self.now_ms < known.at_ms + WINDOW_MS
        });
        if is_known {
            return;
        }
        let node = &self.nodes[at];
        let record = match outgoing.settles.as_deref() {
            Some(Wanted::Session { round, key, .. }) => Settles::Session {
                key: SESSION,
                epoch: node.epoch,
                round: *round,
                record: key.clone(),
            },
            other => panic!("{other:?}"),
        };
        let by = node.process.clone();
        let line = Settled { by, record }.line();
        self.log.push(Logged {
            name,
            at_ms: self.now_ms,
            line,
            payload,
        });
        self.saw(self.log.len());
        let end = self.end();
        for node in &self.nodes {
            node.follow(end);
        }
    }

    /// An entry comes by, or is read.
    fn saw(&mut self, position: usize) {
        let line = self.log[position - 1].line.as_deref().expect("a short one");
        let settled = Settled::parse(line).expect("its own form");
        self.tail.saw(position as u64, settled);
        self.tail.check();
    }

    /// The records of a node's next turn are kept, unless another has the session by now.
    fn keep(&mut self, at: usize) -> bool {
        let node = &mut self.nodes[at];
        if !node.keep_next() {
            return false;
        }
        if node.epoch == self.kept.0 {
            self.kept.1.clone_from(&node.records);
        }
        true
    }

    /// A node does everything that it has handed over.
    fn finish_turns(&mut self, at: usize) {
        while !self.nodes[at].turns.is_empty() {
            self.append(at);
            self.keep(at);
        }
    }

    fn publish(&mut self) {
        let Some((at, session)) = self.client.connection else {
            return;
        };
        let unsent =
            (self.client.under_way.iter()).position(|(_, _, stage)| *stage == Stage::Unsent);
        let place = if let Some(place) = unsent {
            place
        } else {
            if self.client.under_way.len() == MOST_UNDER_WAY {
                return;
            }
            let is_free = |id: &u16| self.client.under_way.iter().all(|(used, ..)| used != id);
            let id = (1..=MOST_UNDER_WAY as u16)
                .find(is_free)
                .expect("few are used");
            self.client.next_number += 1;
            let payload = format!("{}", self.client.next_number);
            self.client.under_way.push((id, payload, Stage::Unsent));
            self.client.under_way.len() - 1
        };
        let (id, payload, stage) = &mut self.client.under_way[place];
        let (id, now_ms) = (*id, self.now_ms);
        let token = if self.client.received.insert(id) {
            let key = key(self.is_link, id);
            self.nodes[at].publish(now_ms, session, (&key, id, self.is_link), payload)
        } else {
            0
        };
        *stage = Stage::Sent(token);
    }

    /// The client takes the acknowledgements that its node may send, and releases what it has sent.
    fn listen(&mut self) {
        let Some((at, session)) = self.client.connection else {
            return;
        };
        let node = &mut self.nodes[at];
        let mut forgotten = Vec::new();
        for (id, payload, stage) in &mut self.client.under_way {
            match *stage {
                Stage::Sent(token) if node.has_kept(token) => {
                    self.acknowledged.insert(payload.clone());
                    *stage = Stage::Received;
                }
                Stage::Received => {
                    self.client.received.remove(id);
                    let token = node.forget(session, &key(self.is_link, *id));
                    *stage = Stage::Released(token);
                }
                Stage::Released(token) if node.has_kept(token) => forgotten.push(*id),
                Stage::Sent(_) | Stage::Released(_) | Stage::Unsent => {}
            }
        }
        (self.client.under_way).retain(|(id, ..)| !forgotten.contains(id));
    }

    /// The connection ends.
    fn disconnect(&mut self) {
        self.client.connection = None;
        self.client.received.clear();
        for (_, _, stage) in &mut self.client.under_way {
            *stage = match *stage {
                Stage::Sent(_) | Stage::Unsent => Stage::Unsent,
                Stage::Received | Stage::Released(_) => Stage::Received,
            };
        }
    }

    /// The client comes to a node. One that lives and has the session hands it over.
    fn connect(&mut self, at: usize) {
        self.disconnect();
        if self.marks[&at].0 != self.nodes[at].process.incarnation {
            // A process has no session before it has written a mark.
            self.mark(at);
        }
        if let Some(owner) = self.owner.take() {
            self.nodes[owner].lose(self.now_ms);
            self.finish_turns(owner);
        }
        self.finish_turns(at);
        let (epoch, mut records) = self.kept.clone();
        if self.knows_tail {
            self.amended += self.tail.amend(SESSION, epoch, &mut records);
        }
        self.epoch += 1;
        self.kept = (self.epoch, records.clone());
        let node = &mut self.nodes[at];
        node.epoch = self.epoch;
        node.records.clone_from(&records);
        let (session, present, kept) = node.open(self.now_ms, &records);
        let ids = kept.iter().filter_map(|(key, _)| match **key {
            [b'r' | b'u', high, low] => Some(u16::from_be_bytes([high, low])),
            _ => None,
        });
        self.client.received = ids.collect();
        if !present {
            // [MQTT-3.2.2-5]
            self.client.under_way.clear();
            // CONNACK leaves when the session is kept.
            self.finish_turns(at);
        }
        self.client.connection = Some((at, session));
        self.owner = Some(at);
    }

    /// A node dies, and starts again.
    fn kill(&mut self, at: usize) {
        if self.owner == Some(at) {
            self.owner = None;
            self.disconnect();
        }
        let incarnation = self.nodes[at].process.incarnation + 1;
        self.nodes[at] = Node::start(process(at, incarnation), self.now_ms);
        self.nodes[at].follow(self.end());
    }

    /// Others have everything that processes which are gone had. The session of a node that died must be among it.
    fn sweep(&mut self, at: usize) {
        if self.owner.is_none() {
            self.connect((at + 1) % NODES);
        }
        let Process { node, incarnation } = self.nodes[at].process.clone();
        self.tail.forget(&node, incarnation - 1);
    }

    /// What nodes know is gone with all of them: it is read again in the log, as far as that is still there.
    fn restart(&mut self) {
        for at in 0..NODES {
            self.kill(at);
        }
        self.tail = Tail::new(1_000);
        for (&at, &(incarnation, settled)) in &self.marks {
            let node = process(at, incarnation).node;
            self.tail.had_kept(&node, incarnation, settled);
        }
        self.tail.begin(self.end());
        if let Some((from, to)) = self.tail.missing() {
            for position in from..to {
                self.saw(position as usize);
            }
            self.tail.has_read(from);
        }
        assert_eq!(self.tail.missing(), None);
    }

    pub(crate) fn step(&mut self) {
        let at = self.dice.roll(NODES as u64) as usize;
        self.now_ms += self.dice.roll(500);
        let near = self.client.connection.map_or(at, |(at, _)| at);
        match self.dice.roll(24) {
            0..=5 => self.publish(),
            6..=9 => self.append(near),
            10..=12 => {
                self.keep(near);
            }
            13..=15 => self.listen(),
            16..=17 => self.mark(at),
            18 => self.connect(at),
            19 if self.client.connection.is_none() => self.connect(at),
            19..=20 => self.kill(near),
            21 => self.sweep(at),
            22 if self.dice.roll(4) == 0 => self.restart(),
            // The client is away for long, or nodes are.
            _ => self.now_ms += self.dice.roll(2 * WINDOW_MS),
        }
    }

    /// Everything comes to rest.
    pub(crate) fn rest(&mut self) {
        self.now_ms += 2 * WINDOW_MS;
        self.connect(0);
        for _ in 0..20 {
            self.publish();
            self.finish_turns(0);
            self.listen();
        }
    }

    pub(crate) fn fault(&self) -> Option<String> {
        let mut seen = BTreeSet::new();
        for Logged { payload, .. } in &self.log {
            if !seen.insert(payload) {
                return Some(format!("{payload} was published twice"));
            }
        }
        let lost = self.acknowledged.iter().find(|one| !seen.contains(one));
        lost.map(|lost| format!("{lost} was acknowledged and not published"))
    }
}

fn process(at: usize, incarnation: u64) -> Process {
    let node: Arc<str> = format!("node-{at}").into();
    Process { node, incarnation }
}

/// The key of the record that a message was received.
fn key(is_link: bool, id: u16) -> [u8; 3] {
    let [high, low] = id.to_be_bytes();
    [if is_link { b'u' } else { b'r' }, high, low]
}
