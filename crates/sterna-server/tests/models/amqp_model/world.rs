//! The broker, its clients, and what becomes of both between the first message and the last.

use std::collections::BTreeMap;

use sterna_amqp::messaging::DeliveryState;
use sterna_amqp::{Lane, Limits};
use sterna_net::TransportKind;
use sterna_server::config::{Config, Queue};

use crate::amqp_client::{Client, Start};
use crate::amqp_model::events::{Cause, Resumption};
use crate::amqp_model::links::{Agent, End};
use crate::amqp_model::model::{Model, Random};
use crate::fixture::Broker;

pub const QUEUES: [&str; 3] = ["q0", "q1", "alarms"];
/// What the last of the queues takes.
const ALARMS: &str = "t/+/alarm";

pub struct World {
    pub broker: Broker,
    pub random: Random,
    pub model: Model,
    pub agents: Vec<Agent>,
    pub shards: usize,
    /// What clients write stays in their buffers.
    pub is_holding: bool,
    /// Why links that end now end.
    pub cause: Cause,
    pub resumptions: Vec<Resumption>,
    /// What a coordinator has answered.
    pub outcome: Option<String>,
    pub declared: Option<Vec<u8>>,
    /// How long the broker remembers the deliveries of a sending link that was suspended.
    pub remembers_ms: u64,
    pub next_name: usize,
    high_watermark_bytes: usize,
    /// A message may be sent in part.
    pub is_slow: bool,
    pub is_traced: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let shards = 1 + random.below(3);
        let mut config = Config::default();
        config.sys.interval_s = 0;
        config.amqp.maximum_frame_bytes = [1_024, 4_096, 65_536][random.below(3)];
        config.amqp.link_credit = [4, 16, 256][random.below(3)];
        config.amqp.incoming_window = [4, 64, 2_048][random.below(3)];
        config.amqp.queues = QUEUES
            .iter()
            .map(|name| Queue {
                name: (*name).to_owned(),
                filter: (*name == "alarms").then(|| ALARMS.to_owned()),
                ..Queue::default()
            })
            .collect();
        let remembers_ms = u64::from(config.amqp.suspended_link_timeout_s) * 1000;
        let mut model = Model::default();
        for name in QUEUES {
            let filter = match name {
                "alarms" => ALARMS.to_owned(),
                name => format!("queue/{name}"),
            };
            model.add_store(name, &filter, None, true);
        }
        let agents = (0..2 + random.below(4))
            .map(|number| Agent {
                container: format!("c{number}"),
                client: None,
                sessions: Vec::new(),
                links: Vec::new(),
                begun: BTreeMap::new(),
                transaction: None,
                coordinator: None,
            })
            .collect();
        Self {
            broker: Broker::with(&config, shards),
            random,
            model,
            agents,
            shards,
            is_holding: false,
            cause: Cause::Detach,
            resumptions: Vec::new(),
            outcome: None,
            declared: None,
            remembers_ms,
            next_name: 0,
            high_watermark_bytes: config.network.high_watermark_bytes as usize,
            is_slow: false,
            is_traced: std::env::var_os("STERNA_AMQP_MODEL_TRACE").is_some(),
        }
    }

    /// Prints what happens, if `STERNA_AMQP_MODEL_TRACE` is set.
    pub fn trace(&self, a: usize, what: &dyn std::fmt::Debug) {
        if self.is_traced {
            eprintln!(
                "{:>8} {}: {what:?}",
                self.now_ms() - 1_700_000_000_000,
                self.agents[a].container
            );
        }
    }

    /// The transports of a shard take no more than a few bytes, so that messages go out in parts.
    pub fn slow_down(&mut self) {
        if self.is_traced {
            eprintln!("slow");
        }
        let shard = self.random.below(self.shards);
        let room_bytes = self.random.below(3_000);
        self.broker.wires[shard].unsent_bytes = self.high_watermark_bytes - room_bytes;
        self.is_slow = true;
    }

    /// The transports take everything again.
    pub fn speed_up(&mut self) {
        if self.is_traced {
            eprintln!("quick");
        }
        if !std::mem::take(&mut self.is_slow) {
            return;
        }
        for wire in &mut self.broker.wires {
            wire.unsent_bytes = 0;
        }
        for a in 0..self.agents.len() {
            if let Some(client) = &self.agents[a].client {
                self.broker.writable(client.peer);
            }
            self.pump(a);
        }
    }

    pub fn now_ms(&self) -> u64 {
        self.broker.wires[0].now_ms
    }

    pub fn name(&mut self, prefix: &str) -> String {
        self.next_name += 1;
        format!("{prefix}{}", self.next_name)
    }

    pub fn connect(&mut self, a: usize) {
        let transport = if self.random.chance(50) {
            TransportKind::Quic
        } else {
            TransportKind::Tcp
        };
        let mut start = Start::new(&self.agents[a].container)
            .on(self.random.below(self.shards))
            .over(transport);
        start.limits = Limits {
            max_frame_bytes: [1_024, 8_192][self.random.below(2)],
            incoming_window: [3, 2_048][self.random.below(2)],
            ..Limits::default()
        };
        let mut client = Client::start(&mut self.broker, start);
        assert!(client.is_open);
        client.tap = Some(Vec::new());
        self.agents[a].client = Some(client);
        self.begin(a);
    }

    pub fn begin(&mut self, a: usize) {
        if self.is_holding {
            return;
        }
        let agent = &mut self.agents[a];
        let client = agent.client.as_mut().expect("connected");
        agent.sessions.push(client.begin(&mut self.broker));
        self.process(a);
    }

    /// Some of what is on its way arrives, in both directions, and nothing else.
    fn lose_bytes(&mut self, a: usize, lanes: impl Fn(u64) -> bool) {
        let now_ms = self.now_ms();
        let agent = &mut self.agents[a];
        let client = agent.client.as_mut().expect("connected");
        for (lane, bytes) in client.out.take() {
            let arrives = if lanes(lane) {
                self.random.below(bytes.len() + 1)
            } else {
                bytes.len()
            };
            if arrives > 0 {
                let stream = client.stream(lane);
                self.broker.send_on(client.peer, stream, &bytes[..arrives]);
            }
        }
        let mut lost = Vec::new();
        for (lane, bytes) in client.gather(&mut self.broker) {
            let arrives = if lanes(lane) {
                self.random.below(bytes.len() + 1)
            } else {
                bytes.len()
            };
            client.feed(lane, &bytes[..arrives], now_ms);
            // The number of a message may lie across the cut.
            let tail = arrives.saturating_sub(12);
            lost.extend_from_slice(&bytes[arrives..]);
            if arrives < bytes.len() {
                let seen = crate::amqp_model::model::numbers_in(&bytes[tail..arrives]).len();
                let across = crate::amqp_model::model::numbers_in(&bytes[tail..]);
                let inside = crate::amqp_model::model::numbers_in(&bytes[arrives..]).len();
                let from = seen.min(across.len());
                let to = across.len().saturating_sub(inside).max(from);
                for number in &across[from..to] {
                    lost.extend_from_slice(format!("<{number}>").as_bytes());
                }
            }
        }
        if let Some(tap) = &mut client.tap {
            tap.extend_from_slice(&lost);
        }
        self.process(a);
    }

    /// What the broker had sent settled, and the client has not got, is gone.
    fn count_lost(&mut self, a: usize) {
        let agent = &mut self.agents[a];
        for (number, count) in std::mem::take(&mut agent.begun) {
            for link in agent.links.iter().filter(|link| link.id.is_some()) {
                if let Some(receiver) = link.as_receiver()
                    && receiver.snd_settle_mode
                        != sterna_amqp::performatives::SenderSettleMode::Unsettled
                    && let Some(account) =
                        self.model.stores[receiver.store].accounts.get_mut(&number)
                {
                    account.gone_max += count;
                }
            }
        }
    }

    /// The connection is lost at any byte.
    pub fn cut(&mut self, a: usize) {
        self.trace(a, &"cut");
        self.lose_bytes(a, |_| true);
        self.count_lost(a);
        let agent = &mut self.agents[a];
        let client = agent.client.as_mut().expect("connected");
        self.broker.cut(client.peer);
        client.engine.transport_closed();
        client.note_rest();
        self.forget_connection(a);
    }

    /// What is left of a connection that is over.
    pub fn forget_connection(&mut self, a: usize) {
        self.cause = Cause::ConnectionEnd;
        self.process(a);
        self.cause = Cause::Detach;
        self.expire_with(a, None);
        self.rolled_back(a);
        let agent = &mut self.agents[a];
        agent.client = None;
        agent.coordinator = None;
        agent.sessions.clear();
        agent.begun.clear();
        self.resumptions.retain(|one| one.agent != a);
        self.is_holding = false;
        for link in &agent.links {
            assert_eq!(link.id, None, "{} is still attached", link.name);
        }
    }

    /// A stream is lost at any byte, and with it its session.
    pub fn abort_stream(&mut self, a: usize) {
        self.trace(a, &"stream lost");
        let at = self.random.below(self.agents[a].sessions.len());
        let session = self.agents[a].sessions[at];
        let client = self.agents[a].client.as_ref().expect("connected");
        let Some(lane) = client.engine.lane_of(session) else {
            return;
        };
        if lane.is_control() {
            return;
        }
        self.lose_bytes(a, |one| one == lane.0);
        self.count_lost(a);
        let agent = &mut self.agents[a];
        let client = agent.client.as_mut().expect("connected");
        let stream = client.stream(lane.0);
        self.broker.abort(client.peer, stream);
        let _ = self.broker.take_on(client.peer, stream);
        for (other, bytes) in client.out.take() {
            // Nothing more goes out on the stream that is lost.
            if other != lane.0 {
                self.broker
                    .send_on(client.peer, client.stream(other), &bytes);
            }
        }
        client.engine.lane_closed(Lane(lane.0));
        client.note_rest();
        self.cause = Cause::SessionEnd;
        self.process(a);
        self.cause = Cause::Detach;
        self.expire_with(a, Some(session));
        self.agents[a].sessions.remove(at);
        let links = &self.agents[a].links;
        self.resumptions
            .retain(|one| one.agent != a || links[one.link].id.is_some());
        self.is_holding = false;
        self.pump(a);
    }

    /// Time passes, and connections are kept alive.
    pub fn advance(&mut self, ms: u64) {
        let mut left_ms = ms;
        while left_ms > 0 {
            let step_ms = left_ms.min(15_000);
            left_ms -= step_ms;
            self.broker.advance(step_ms);
            let now_ms = self.now_ms();
            for a in 0..self.agents.len() {
                if let Some(client) = &mut self.agents[a].client {
                    let alive = client.engine.on_timeout(now_ms, &mut client.out);
                    alive.expect("the broker is heard of");
                    self.pump(a);
                }
            }
        }
        // Not at the very moment when something expires.
        let now_ms = self.now_ms();
        let close = |at_ms: u64| at_ms.abs_diff(now_ms) < 2_000;
        let links = self.agents.iter().flat_map(|agent| &agent.links);
        let expires: Vec<u64> = links
            .filter_map(|link| link.as_receiver()?.expires_at_ms)
            .collect();
        if expires.into_iter().any(close) {
            return self.advance(2_500);
        }
        self.expire_due();
    }

    /// Nothing is on its way: no message is out more often than it may be.
    pub fn check(&mut self) {
        self.speed_up();
        for a in 0..self.agents.len() {
            self.pump(a);
        }
        let mut out: BTreeMap<(usize, usize), u32> = BTreeMap::new();
        for link in self.agents.iter().flat_map(|agent| &agent.links) {
            if let (Some(_), Some(receiver)) = (link.id, link.as_receiver()) {
                for held in receiver.held.values() {
                    if held.stage == crate::amqp_model::links::Stage::Fresh {
                        *out.entry((receiver.store, held.message)).or_default() += 1;
                    }
                }
            }
        }
        for ((store, message), count) in out {
            let store = &mut self.model.stores[store];
            let account = *store.account(message);
            assert!(
                account.gone_min + count <= account.max,
                "{}: message {message} is out {count} times, {account:?}",
                store.name
            );
        }
    }

    /// Everything is drained and counted.
    fn finish(&mut self) {
        self.check();
        for a in 0..self.agents.len() {
            if self.agents[a].client.is_none() {
                self.connect(a);
            }
            if self.agents[a].sessions.is_empty() {
                self.begin(a);
            }
            self.discharge(a, true);
            // What suspended links hold goes back, or comes again.
            for l in 0..self.agents[a].links.len() {
                let link = &self.agents[a].links[l];
                let Some(receiver) = link.as_receiver() else {
                    continue;
                };
                let is_queue = self.model.stores[receiver.store].is_queue;
                // One of a queue that may be there or not is ended for sure.
                let lives = is_queue
                    || receiver.suspended_in.is_some()
                    || receiver.outlives_connection() && !receiver.is_over;
                if link.id.is_none() && lives {
                    self.reattach(a, l, false);
                }
            }
        }
        let mut rests: BTreeMap<usize, BTreeMap<usize, u32>> = BTreeMap::new();
        for a in 0..self.agents.len() {
            for l in 0..self.agents[a].links.len() {
                // A link that is being detached passes over what still comes.
                self.pump(a);
                let End::Receiver(receiver) = &self.agents[a].links[l].end else {
                    continue;
                };
                let (store, id) = (receiver.store, self.agents[a].links[l].id);
                let Some(id) = id else {
                    continue;
                };
                let client = self.agents[a].client.as_mut().expect("connected");
                if self.model.stores[store].is_queue {
                    client.detach(&mut self.broker, id, true);
                    self.process(a);
                } else if self.model.stores[store].is_alive {
                    self.drain_link(a, l, rests.entry(store).or_default());
                }
            }
        }
        // What was lost with its consumers waits for a while.
        self.broker.advance(60_000);
        for (store, queue) in QUEUES.iter().enumerate() {
            let mut client = Client::connect(&mut self.broker, queue);
            let session = client.begin(&mut self.broker);
            let address = format!("queue/{queue}");
            let source = sterna_amqp::messaging::Source::new(&address);
            client.receiver(&mut self.broker, session, "rest", source, 100_000);
            let rest = rests.entry(store).or_default();
            for text in client.accept_all(&mut self.broker) {
                let number = crate::amqp_model::model::numbers_in(text.as_bytes())[0];
                *rest.entry(number).or_default() += 1;
            }
            drop(client.cut(&mut self.broker));
        }
        let nothing = BTreeMap::new();
        for (number, store) in self.model.stores.iter().enumerate() {
            if store.is_alive {
                store.settle_up(rests.get(&number).unwrap_or(&nothing), &self.model.messages);
            }
        }
    }

    /// A subscription's link takes everything that is left.
    fn drain_link(&mut self, a: usize, l: usize, rest: &mut BTreeMap<usize, u32>) {
        let id = self.agents[a].links[l].id.expect("attached");
        for round in 0.. {
            assert!(round < 1_000, "it never ends");
            self.pump(a);
            let receiver = self.agents[a].links[l].receiver();
            let fresh: Vec<(Vec<u8>, u32, usize)> = receiver
                .held
                .iter()
                .filter(|(_, held)| held.stage == crate::amqp_model::links::Stage::Fresh)
                .map(|(tag, held)| (tag.clone(), held.id, held.message))
                .collect();
            let second =
                receiver.rcv_settle_mode == sterna_amqp::performatives::ReceiverSettleMode::Second;
            if fresh.is_empty() && round > 0 && receiver.credit == 15 {
                return;
            }
            for (tag, delivery, message) in fresh {
                *rest.entry(message).or_default() += 1;
                let receiver = self.agents[a].links[l].receiver();
                if second {
                    let told = crate::amqp_model::links::Stage::Told {
                        gone: true,
                        sure: true,
                    };
                    receiver.held.get_mut(&tag).expect("held").stage = told;
                } else {
                    receiver.held.remove(&tag);
                }
                let client = self.agents[a].client.as_mut().expect("connected");
                let accepted = DeliveryState::ACCEPTED;
                client.dispose(
                    &mut self.broker,
                    id.session,
                    (delivery, delivery),
                    &accepted,
                    !second,
                );
                self.process(a);
            }
            let receiver = self.agents[a].links[l].receiver();
            receiver.credit = 15;
            let client = self.agents[a].client.as_mut().expect("connected");
            client.credit(&mut self.broker, id, 15);
            self.process(a);
        }
    }
}

pub fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..300 {
        world.step();
    }
    world.finish();
}
