//! At least once, whatever is cut, lost, resumed, taken over and acknowledged: random runs against
//! what a client may rely on.
//!
//! One publisher numbers its messages. Clients of one session come and go on several shards; what
//! is under way to one that is cut is lost. In every response ids go up, an id stands for the same
//! message for ever, messages keep their order, and nothing is missing that is not acknowledged. In the
//! end every message has arrived.

use std::collections::{BTreeMap, BTreeSet};

use sterna_h3::Features;

use crate::fixture::Broker;
use crate::h3_client::Client;
use crate::http::publish::config;
use crate::http::subscribe::{lines, post};

const SHARDS: u64 = 3;

/// Numbers that follow from a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// A client with a response of the session.
struct Reader {
    /// Which opening of the session it was.
    opening: u64,
    client: Client,
    number: u64,
    /// Everything above this id that is not acknowledged comes in its response.
    from: u64,
    /// Lines that were looked at.
    read: usize,
}

struct Run {
    random: Random,
    broker: Broker,
    publisher: Client,
    published: u64,
    /// The session's name, once it has one.
    session: Option<String>,
    is_durable: bool,
    readers: Vec<Reader>,
    openings: u64,
    /// What each id that was seen stands for.
    known: BTreeMap<u64, u64>,
    acknowledged: BTreeSet<u64>,
    /// Up to here the application has everything.
    position: u64,
    seed: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let is_durable = random.below(3) > 0;
        let most = [3, 8, 1024][random.below(3) as usize];
        let config = config(|config| {
            config.sys.interval_s = 0;
            config.http.maximum_unacknowledged = most;
        });
        let mut broker = Broker::with(&config, SHARDS as usize);
        let publisher = Client::connect(&mut broker);
        Self {
            session: is_durable.then(|| "n".to_owned()),
            random,
            broker,
            publisher,
            published: 0,
            is_durable,
            readers: Vec::new(),
            openings: 0,
            known: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            position: 0,
            seed,
        }
    }

    fn connect(&mut self) -> Client {
        let shard = self.random.below(SHARDS) as usize;
        Client::connect_on(&mut self.broker, shard, Features::default(), Vec::new())
    }

    /// A response of the session: the first, or one that takes it over.
    fn open(&mut self) {
        let mut client = self.connect();
        let mut path = "/v1/topics/a".to_owned();
        let mut from = 0;
        if let Some(session) = &self.session {
            path = format!("{path}?session={session}");
            // A client that says nothing gets all that is not acknowledged.
            if self.random.below(4) > 0 {
                path = format!("{path}&after={}", self.position);
                from = self.position;
                let said = self.known.range(..=from).map(|(&id, _)| id);
                self.acknowledged.extend(said);
            }
        }
        let number = client.request(&mut self.broker, "GET", &path, &[], b"");
        let response = client.response(number);
        assert_eq!(response.status, 200, "seed {}", self.seed);
        let name = response.field("sterna-session").expect("a name").to_owned();
        match &self.session {
            Some(session) => assert_eq!(*session, name, "seed {}", self.seed),
            None => self.session = Some(name),
        }
        // Whoever had it before learns of its end when it next looks.
        self.openings += 1;
        self.readers.push(Reader {
            opening: self.openings,
            client,
            number,
            from,
            read: 0,
        });
    }

    /// A client looks at what has come.
    fn read(&mut self, at: usize) {
        let seed = self.seed;
        let reader = &mut self.readers[at];
        let is_last = reader.opening == self.openings;
        reader.client.turn(&mut self.broker);
        let lines = lines(&reader.client, reader.number);
        let ids: Vec<u64> = lines
            .iter()
            .map(|line| line["id"].as_u64().expect("an id"))
            .collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "seed {seed}: {ids:?}");
        for line in &lines[reader.read..] {
            let id = line["id"].as_u64().expect("an id");
            let payload: u64 = line["payload"]
                .as_str()
                .expect("text")
                .parse()
                .expect("a number");
            let known = *self.known.entry(id).or_insert(payload);
            assert_eq!(known, payload, "seed {seed}: an id means the same for ever");
        }
        reader.read = lines.len();
        let order: Vec<u64> = self.known.values().copied().collect();
        assert!(order.is_sorted_by(|a, b| a < b), "seed {seed}: {order:?}");
        // Nothing is left out between where it began and where it is.
        if let Some(&last) = ids.last() {
            for id in reader.from + 1..=last {
                let is_there = ids.contains(&id) || self.acknowledged.contains(&id);
                assert!(is_there, "seed {seed}: {id} is missing in {ids:?}");
            }
        }
        // The application goes on from the first id that it has not.
        while self.known.contains_key(&(self.position + 1)) {
            self.position += 1;
        }
        let ended = self.readers[at]
            .client
            .response(self.readers[at].number)
            .is_complete;
        assert!(
            !(ended && is_last),
            "seed {seed}: only a response that was replaced ends"
        );
        if ended {
            self.readers.remove(at);
        }
    }

    fn acknowledge(&mut self) {
        let Some(session) = self.session.clone() else {
            return;
        };
        let mut client = self.connect();
        let path = format!("/v1/sessions/{session}/ack");
        let content = if self.random.below(2) == 0 {
            let ids: Vec<u64> = (self.known.keys().copied())
                .filter(|_| self.random.below(3) == 0)
                .take(3) // no more are taken at once than may be unacknowledged
                .collect();
            self.acknowledged.extend(ids.iter().copied());
            serde_json::json!({ "ids": ids })
        } else {
            let upto = self.random.below(self.position + 1);
            self.acknowledged.extend(1..=upto);
            serde_json::json!({ "id": upto })
        };
        let content = content.to_string();
        let number = client.request(&mut self.broker, "POST", &path, &[], content.as_bytes());
        assert_eq!(
            client.response(number).status,
            204,
            "seed {}: {content}",
            self.seed
        );
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0..=4 => {
                for _ in 0..=self.random.below(4) {
                    let payload = self.published.to_string();
                    post(&mut self.broker, &mut self.publisher, "a", &payload);
                    self.published += 1;
                }
            }
            5 | 6 if !self.readers.is_empty() => {
                let at = self.random.below(self.readers.len() as u64) as usize;
                self.read(at);
            }
            7 if !self.readers.is_empty() => {
                let at = self.random.below(self.readers.len() as u64) as usize;
                let reader = self.readers.remove(at);
                // What it has not looked at is lost.
                self.broker.cut(reader.client.peer);
            }
            8 if self.is_durable => self.acknowledge(),
            _ => self.open(),
        }
    }

    /// Whatever happened: whoever goes on gets the rest.
    fn finish(&mut self) {
        self.open();
        // The first opening of an unnamed session knows nothing of what was published before.
        loop {
            let before = (self.known.len(), self.acknowledged.len());
            let last = self.readers.len() - 1;
            self.read(last);
            if self.is_durable {
                let session = self.session.clone().expect("a name");
                let path = format!("/v1/sessions/{session}/ack?id={}", self.position);
                let mut client = self.connect();
                let number = client.request(&mut self.broker, "POST", &path, &[], b"");
                assert_eq!(client.response(number).status, 204);
                self.acknowledged.extend(1..=self.position);
            }
            if (self.known.len(), self.acknowledged.len()) == before {
                break;
            }
        }
    }
}

#[test]
fn nothing_is_lost_and_order_is_kept_whatever_is_cut_and_resumed() {
    crate::seeds::play("the model of HTTP", 0..60, |seed| {
        let mut run = Run::new(seed);
        // What is published before there is a session is nobody's.
        run.open();
        for _ in 0..40 {
            run.step();
        }
        run.finish();
        let got: Vec<u64> = run.known.values().copied().collect();
        let all: Vec<u64> = (0..run.published).collect();
        assert_eq!(got, all);
    });
}
