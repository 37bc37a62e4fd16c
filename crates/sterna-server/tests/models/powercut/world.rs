//! Lives of a server: clients that act at random, a disk that works in steps, and cuts of its power.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use sterna_broker::Limits;
use sterna_ledger::{Ledger, Moment, Promise, Protocol};
use sterna_net::sim::Random;
use sterna_server::config::{Config, Durability, Listener, Queue};
use sterna_store::disk::SimulatedDisk;
use sterna_store::{Engine, ShardStore};

use crate::fixture::{Broker, everybodys};
use crate::powercut::report::Outcome;
use crate::powercut::{amqp, http, moves, mqtt, wills};

/// Time within which the store syncs where it does so by an interval, in milliseconds.
const SYNC_INTERVAL_MS: u64 = 10;
/// The longest that a sync takes.
const LONGEST_SYNC_MS: u64 = 8;
/// The longest that a step lasts.
const LONGEST_STEP_MS: u64 = 3;
/// The disk is never behind for longer, other than with a sync.
const LONGEST_BEHIND_MS: u64 = 6;
/// What was acknowledged so long before a cut is on the disk: an interval, a sync that was under way when it
/// ended, its own, and the delays of their steps.
const SYNCED_AFTER_MS: u64 =
    SYNC_INTERVAL_MS + 2 * LONGEST_SYNC_MS + 4 * (LONGEST_BEHIND_MS + LONGEST_STEP_MS);
/// The farthest that the wall clock is ahead of true time, or behind it, in milliseconds.
const FARTHEST_CLOCK_MS: u64 = 6 * 3_600_000;
/// Steps in which everybody gets what is owed.
const MOST_DRAIN_STEPS: usize = 1_500;
const IDENTITY: [u8; 16] = *b"a simulated disk";

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    pub seed: u64,
    pub cuts: u32,
    pub durability: Durability,
    /// Acknowledge before the commit, which must be caught.
    pub is_early: bool,
}

impl Settings {
    pub fn new(seed: u64, cuts: u32, durability: Durability) -> Self {
        Self {
            seed,
            cuts,
            durability,
            is_early: false,
        }
    }
}

/// What an actor may do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Load,
    /// Publishers begin nothing, and everybody stays.
    Drain,
}

/// What actors act on.
pub struct Stage<'w> {
    pub broker: &'w mut Broker,
    pub ledger: &'w mut Ledger,
    pub random: &'w mut Random,
    pub phase: Phase,
    pub shards: usize,
}

impl Stage<'_> {
    pub fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    pub fn shard(&mut self) -> usize {
        self.random.below(self.shards as u64) as usize
    }
}

/// A client.
pub trait Actor {
    fn name(&self) -> &'static str;
    /// Connects, reads, answers, begins something.
    fn act(&mut self, stage: &mut Stage<'_>);
    /// Its connection is gone.
    fn lost(&mut self, ledger: &mut Ledger);
    /// Its connection breaks; not where it has none.
    fn cut(&mut self, broker: &mut Broker) -> bool;
    /// What was acknowledged since a moment may be gone.
    fn excuse(&mut self, _since: Moment) {}
    /// Whether it waits for nothing.
    fn is_idle(&self) -> bool;
}

struct World {
    settings: Settings,
    config: Config,
    random: Random,
    disk: SimulatedDisk,
    store: sterna_store::Settings,
    life: Option<Life>,
    /// True time; what the broker takes for it differs by the jumps of its clock.
    now_ms: u64,
    /// When the broker starts, its wall clock shows so much less than true time and the farthest ahead.
    behind_ms: u64,
    /// When the disk was last given all steps that it wanted.
    worked_ms: u64,
    /// Moments of the ledger, by true time; those that lie too far back are gone.
    moments: VecDeque<(u64, Moment)>,
    outcome: Outcome,
    actors: Vec<Box<dyn Actor>>,
}

struct Life {
    broker: Broker,
    engine: Engine,
    woken: Arc<AtomicBool>,
    shards: usize,
}

/// Plays a run, and returns what was found.
pub fn run(settings: &Settings) -> Outcome {
    let mut world = World::new(settings);
    world.begin();
    // Readers are there before the first message.
    world.drain();
    while world.outcome.cuts < settings.cuts {
        let lives = 1 + world.random.below(6);
        for _ in 0..lives {
            world.live();
            if world.outcome.cuts == settings.cuts {
                break;
            }
        }
        world.drain();
        world.compare();
        if world.outcome.ledger.all_breaches() >= 10 {
            break;
        }
    }
    world.outcome
}

impl World {
    fn new(settings: &Settings) -> Self {
        let mut config = everybodys();
        config.store.durability = settings.durability;
        config.store.sync_interval_ms = SYNC_INTERVAL_MS;
        config.sys.interval_s = 0;
        if settings.is_early {
            config.listeners = vec![Listener {
                durability: Some(Durability::Memory),
                ..Listener::at("mqtt://127.0.0.1:0")
            }];
        }
        config.amqp.queues = vec![Queue {
            name: "q".to_owned(),
            filter: Some("t/#".to_owned()),
            ..Queue::default()
        }];
        config.amqp.queues.push(Queue {
            name: moves::QUEUE.to_owned(),
            ..Queue::default()
        });
        let store = sterna_store::Settings {
            // Small, so that many are held by sleepers, and rewritten.
            segment_bytes: 4 << 10,
            minimum_free_bytes: 0,
            checkpoint_interval_ms: 40,
            rewrite_interval_ms: 0,
            rewrite_least_percent: 10,
            rewrite_bytes_per_s: u64::MAX,
            ..sterna_store::Settings::from(&config.store)
        };
        let mut ledger = Ledger::default();
        let mut actors = Vec::new();
        mqtt::enter(&mut ledger, &mut actors);
        amqp::enter(&mut ledger, &mut actors);
        http::enter(&mut ledger, &mut actors);
        moves::enter(&mut actors);
        mqtt::retainer(&mut ledger, &mut actors);
        wills::enter(&mut ledger, &mut actors);
        Self {
            settings: settings.clone(),
            config,
            random: Random::new(settings.seed),
            disk: SimulatedDisk::new(settings.seed),
            store,
            life: None,
            now_ms: 1_700_000_000_000,
            behind_ms: FARTHEST_CLOCK_MS,
            worked_ms: 1_700_000_000_000,
            moments: VecDeque::new(),
            outcome: Outcome::new(ledger),
            actors,
        }
    }

    /// Opens the store, and starts a broker on it.
    fn begin(&mut self) {
        self.disk.set_now_ms(self.now_ms);
        let disk = Arc::new(self.disk.clone());
        let engine = Engine::open_with_identity(disk, self.store.clone(), IDENTITY);
        let engine = engine.expect("the store opens");
        for damage in &engine.report().damage {
            complain(&mut self.outcome.ledger, format!("damage: {damage}"));
        }
        self.outcome.ledger.life_begins();
        let woken = Arc::new(AtomicBool::new(false));
        let shards = 1 + self.random.below(3) as usize;
        let limits = Limits {
            cursor_interval_ms: 50,
            survey_interval_ms: 20,
            // Readers fall behind soon.
            queued_messages: 20,
            // Some clients are back by then, and some are not.
            will_grace_ms: self.random.below(200),
            redelivery_pause_ms: 10,
            redelivery_pause_most_ms: 100,
            ..Limits::default()
        };
        let failure = Arc::new(OnceLock::new());
        let clock_ms = self.now_ms + FARTHEST_CLOCK_MS - self.behind_ms;
        let broker = Broker::restored_at(&self.config, shards, limits, clock_ms, || {
            let woken = Arc::clone(&woken);
            let handle = engine.handle(Box::new(move || woken.store(true, Ordering::Relaxed)));
            Box::new(ShardStore::new(handle, Arc::clone(&failure)))
        });
        assert_eq!(failure.get(), None, "the records are read");
        self.disk
            .set_sync_takes_ms(self.random.below(LONGEST_SYNC_MS + 1));
        self.life = Some(Life {
            broker,
            engine,
            woken,
            shards,
        });
    }

    /// One client acts, time passes, and the disk does some steps.
    fn step(&mut self, phase: Phase) {
        let Some(life) = &mut self.life else { return };
        let ledger = &mut self.outcome.ledger;
        self.moments.push_back((self.now_ms, ledger.mark()));
        let actor = self.random.below(self.actors.len() as u64) as usize;
        let actors = match phase {
            Phase::Load => &mut self.actors[actor..=actor],
            Phase::Drain => &mut self.actors[..],
        };
        for actor in actors {
            if phase == Phase::Load && self.random.chance(10_000) && actor.cut(&mut life.broker) {
                self.outcome.lost_connections += 1;
                actor.lost(ledger);
            }
            let mut stage = Stage {
                broker: &mut life.broker,
                ledger,
                random: &mut self.random,
                phase,
                shards: life.shards,
            };
            actor.act(&mut stage);
        }
        let ms = self.random.below(LONGEST_STEP_MS + 1);
        let ms = ms.max(u64::from(phase == Phase::Drain));
        self.pass(ms);
        let steps = match phase {
            Phase::Load => self.random.below(12),
            Phase::Drain => 200,
        };
        let is_behind = self.now_ms - self.worked_ms >= LONGEST_BEHIND_MS;
        if is_behind || self.random.chance(100_000) {
            self.worked_ms = self.now_ms;
            self.work(400);
        } else {
            self.work(steps);
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.disk.set_now_ms(self.now_ms);
        if let Some(life) = &mut self.life {
            life.broker.advance(ms);
        }
    }

    /// The threads of the store do some steps.
    fn work(&mut self, steps: u64) {
        let Some(life) = &mut self.life else { return };
        let (disk, now_ms) = (&self.disk, self.now_ms);
        let mut left = steps * 3;
        life.engine.turn(now_ms, &mut || {
            left = left.saturating_sub(1);
            left == 0 || disk.busy_until_ms() > now_ms
        });
        life.engine.check();
        if life.woken.swap(false, Ordering::Relaxed) {
            life.broker.wake();
        }
        life.broker.inputs.clear();
    }

    /// A life under load, and its end.
    fn live(&mut self) {
        let steps = match self.random.below(4) {
            0 => self.random.below(20),
            1 => self.random.below(300),
            _ => 20 + self.random.below(150),
        };
        for _ in 0..steps {
            self.step(Phase::Load);
        }
        let is_kill = self.random.chance(100_000);
        let end_ms = self.now_ms;
        if !is_kill && self.random.chance(500_000) {
            // In the midst of whatever the disk does next. Nobody hears any more of it.
            let changes = self.random.below(40) as u32;
            self.disk.fail_power_after(changes);
            for _ in 0..4 {
                self.work(60);
                self.pass(5);
            }
        }
        if let Some(life) = self.life.take() {
            let usage = life.engine.usage_reader().usage();
            self.outcome.rewritten_segments += usage.rewritten_segments;
        }
        if is_kill {
            self.disk.kill_process();
            self.outcome.kills += 1;
        } else {
            self.disk.cut_power();
            self.outcome.cuts += 1;
        }
        for actor in &mut self.actors {
            actor.lost(&mut self.outcome.ledger);
        }
        let from_ms = end_ms.saturating_sub(SYNCED_AFTER_MS);
        let is_synced = |&(at_ms, _): &(u64, Moment)| at_ms < from_ms;
        let synced = self.moments.partition_point(is_synced);
        self.moments.drain(..synced);
        if !is_kill
            && self.settings.durability == Durability::Interval
            && let Some((_, since)) = self.moments.front()
        {
            self.outcome.ledger.excuse(*since);
            for actor in &mut self.actors {
                actor.excuse(*since);
            }
        }
        self.now_ms += self.random.below(50);
        if self.random.chance(200_000) {
            // A process follows the wall clock when it starts; until then the jump is not seen.
            self.behind_ms = self.random.below(2 * FARTHEST_CLOCK_MS);
            self.outcome.clock_jumps += 1;
        }
        self.begin();
    }

    /// Everybody gets what is owed.
    fn drain(&mut self) {
        for step in 0..MOST_DRAIN_STEPS {
            self.step(Phase::Drain);
            let is_idle = self.actors.iter().all(|actor| actor.is_idle());
            if step > 3 && is_idle && self.outcome.ledger.missing() == 0 {
                break;
            }
        }
        // Second copies would come now.
        for _ in 0..5 {
            self.pass(20);
            self.step(Phase::Drain);
        }
        for actor in &self.actors {
            if !actor.is_idle() {
                complain(&mut self.outcome.ledger, format!("{} waits", actor.name()));
            }
        }
    }

    fn compare(&mut self) {
        self.outcome.ledger.close();
        self.outcome.comparisons += 1;
        let Some(life) = &mut self.life else { return };
        let found = mqtt::retained(&mut life.broker);
        let ledger = &mut self.outcome.ledger;
        ledger.judge_retained(Protocol::Mqtt, mqtt::RETAINED, found.as_deref());
    }
}

/// The store, or a client, is not served.
fn complain(ledger: &mut Ledger, text: String) {
    ledger.complain(Promise::Serving, Protocol::Mqtt, "the broker", text);
}
