//! The engine on a simulated disk, with faults and power cuts. Synced frames are always there, the frames
//! that are there are a prefix of the appended ones, and the records follow from that prefix. What readers have said not
//! to need may be gone from full segments; all else is there.
#![allow(clippy::unwrap_used)] // it is all test

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use sterna_broker::{LogNeeds, NeededFilter, ReaderNeeds};
use sterna_store::disk::{Fault, SimulatedDisk};
use sterna_store::{Draft, Durability, Engine, Handle, Progress, Request, Settings};

const IDENTITY: [u8; 16] = *b"0123456789abcdef";

type Record = (Vec<u8>, Option<Vec<u8>>);

#[derive(Clone, Debug)]
enum Op {
    Append {
        messages: Vec<(u8, u16)>,
        changes: Vec<(u8, Option<u8>)>,
    },
    /// Steps of the engine, and milliseconds that pass.
    Turn(u8, u8),
    WantSync,
    /// The readers need nothing of the first N frames any more.
    Release(u8),
    /// They need from the N-th frame on only topics of this set, up to the M-th.
    Needs(u8, u16, u8),
    Fail(Fault, u8),
    /// Free bytes; `None` for any number.
    Room(Option<u16>),
    SlowSync(u8),
    Cut,
    CutWithin(u8),
    Kill,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let messages = prop::collection::vec((0..12_u8, 0..700_u16), 0..4);
    let changes = prop::collection::vec((0..20_u8, prop::option::of(any::<u8>())), 0..4);
    let append =
        (messages, changes).prop_map(|(messages, changes)| Op::Append { messages, changes });
    let turn = (1..40_u8, 0..12_u8).prop_map(|(steps, ms)| Op::Turn(steps, ms));
    let fault = prop_oneof![Just(Fault::Write), Just(Fault::Sync)];
    let op = prop_oneof![
        12 => append,
        8 => turn,
        2 => Just(Op::WantSync),
        2 => (0..40_u8).prop_map(Op::Release),
        3 => (0..20_u8, any::<u16>(), 10..90_u8)
            .prop_map(|(from, topics, to)| Op::Needs(from, topics, to)),
        1 => (fault, 1..4_u8).prop_map(|(fault, times)| Op::Fail(fault, times)),
        1 => prop::option::of(0..30_000_u16).prop_map(Op::Room),
        1 => (0..30_u8).prop_map(Op::SlowSync),
        1 => Just(Op::Cut),
        2 => (1..60_u8).prop_map(Op::CutWithin),
        1 => Just(Op::Kill),
    ];
    prop::collection::vec(op, 1..120)
}

/// One append.
#[derive(Clone, Debug)]
struct Appended {
    sequence: u64,
    first: u64,
    messages: Vec<(String, Vec<u8>)>,
    changes: Vec<Record>,
}

struct World {
    disk: SimulatedDisk,
    settings: Settings,
    engine: Engine,
    handle: Handle,
    now_ms: u64,
    frames: Vec<Appended>,
    /// Positions before this one may be gone.
    needed_from: u64,
    /// All that readers have said to need; a message may be gone that one of these does not have.
    told: Vec<LogNeeds>,
    appends: u64,
}

/// Whether a message is among the needs.
fn is_needed(needs: &LogNeeds, position: u64, topic: &str) -> bool {
    position >= needs.all_from
        || needs.readers.iter().any(|reader| {
            let mut filters = reader.filters.iter();
            position >= reader.from
                && filters.any(|known| sterna_topic::matches(&known.filter, topic))
        })
}

fn topic_of(number: u8) -> String {
    match number {
        0 => "$x/y".to_owned(),
        _ => format!("t/{number}/{}", "x".repeat(usize::from(number))),
    }
}

fn open(disk: &SimulatedDisk, settings: &Settings) -> (Engine, Handle) {
    let engine =
        Engine::open_with_identity(Arc::new(disk.clone()), settings.clone(), IDENTITY).unwrap();
    let handle = engine.handle(Box::new(|| {}));
    (engine, handle)
}

fn read_all(handle: &mut Handle, from: u64, most_messages: usize) -> Vec<(u64, String, Vec<u8>)> {
    let mut read = Vec::new();
    let mut next = from;
    loop {
        let request = Request {
            reader: 0,
            from: next,
            to: u64::MAX,
            filters: Arc::new(["#".into(), "$x/#".into()]),
            most_messages,
            most_bytes: 2_000,
        };
        let answer = handle.read_now(&request);
        read.extend(answer.messages.into_iter().map(|message| {
            (
                message.position,
                message.topic.to_string(),
                message.content.to_vec(),
            )
        }));
        if answer.next == next {
            return read;
        }
        next = answer.next;
    }
}

fn records(handle: &mut Handle) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut records = BTreeMap::new();
    let mut last: Option<Vec<u8>> = None;
    handle
        .load(&mut |key, value| {
            assert!(
                last.as_deref().is_none_or(|last| last < key),
                "in order, each once"
            );
            last = Some(key.to_vec());
            records.insert(key.to_vec(), value.to_vec());
        })
        .unwrap();
    records
}

impl World {
    fn new(seed: u64, durability: Durability) -> Self {
        let disk = SimulatedDisk::new(seed);
        let settings = Settings {
            durability,
            segment_bytes: 4 << 10,
            minimum_free_bytes: 0,
            maximum_unwritten_bytes: 20_000,
            checkpoint_interval_ms: 30,
            rewrite_interval_ms: 0,
            rewrite_least_percent: 20,
            rewrite_bytes_per_s: 2_000_000,
            ..Settings::default()
        };
        let (engine, handle) = open(&disk, &settings);
        Self {
            disk,
            settings,
            engine,
            handle,
            now_ms: 0,
            frames: Vec::new(),
            needed_from: 0,
            told: Vec::new(),
            appends: 0,
        }
    }

    fn turn(&mut self, steps: u8, ms: u8) {
        self.now_ms += u64::from(ms);
        self.disk.set_now_ms(self.now_ms);
        let mut left = u32::from(steps) * 3;
        let (disk, now_ms) = (self.disk.clone(), self.now_ms);
        self.engine.turn(now_ms, &mut || {
            left = left.saturating_sub(1);
            left == 0 || disk.busy_until_ms() > now_ms
        });
        self.engine.check();
    }

    fn append(&mut self, messages: &[(u8, u16)], changes: &[(u8, Option<u8>)]) {
        let mut draft = Draft::default();
        let mut stored = Vec::new();
        for (topic, bytes) in messages {
            let topic = topic_of(*topic);
            self.appends += 1;
            let content = vec![(self.appends % 251) as u8; usize::from(*bytes)];
            draft
                .message(&topic, |out| out.extend_from_slice(&content))
                .unwrap();
            stored.push((topic, content));
        }
        let mut stored_changes = Vec::new();
        for (key, value) in changes {
            let key = format!("key {key}").into_bytes();
            let value = value.map(|value| vec![value; usize::from(value)]);
            draft.change(&key, value.as_deref()).unwrap();
            stored_changes.push((key, value));
        }
        match self.handle.append(&draft) {
            Ok(appended) => {
                let before = self.frames.last();
                let next = before.map_or(1, |last| last.first + last.messages.len() as u64);
                assert!(appended.first >= next, "positions are given once");
                let last = before.map_or(0, |last| last.sequence);
                // A lone message may share the frame of the messages before.
                let most_steps = last..=last + 1;
                assert!(most_steps.contains(&appended.sequence));
                assert!(appended.sequence > last || stored.len() == 1 && stored_changes.is_empty());
                self.frames.push(Appended {
                    sequence: appended.sequence,
                    first: appended.first,
                    messages: stored,
                    changes: stored_changes,
                });
            }
            Err(_) => assert!(
                !messages.is_empty(),
                "frames without messages are always taken"
            ),
        }
        if self.appends.is_multiple_of(3) {
            self.handle.flush();
        }
    }

    /// Opens the store again, and compares it with the frames that must be there.
    fn restart(&mut self, kept: u64) {
        let (engine, handle) = open(&self.disk, &self.settings);
        self.engine = engine;
        self.handle = handle;
        let report = self.engine.report();
        assert_eq!(report.damage, [], "a power cut damages nothing");
        let last = self.handle.progress().written;
        assert!(last >= kept, "{last} of {kept} frames");
        self.frames.retain(|frame| frame.sequence <= last);
        self.compare();
        self.handle.needed_from(self.needed_from);
    }

    fn compare(&mut self) {
        let written = self.handle.progress().written;
        let frames = self.frames.iter().filter(|frame| frame.sequence <= written);
        let expected: Vec<(u64, String, Vec<u8>)> = frames
            .clone()
            .flat_map(|frame| {
                let messages = frame.messages.iter().cloned();
                (frame.first..)
                    .zip(messages)
                    .map(|(position, (topic, content))| (position, topic, content))
            })
            .filter(|(position, ..)| *position >= self.needed_from)
            .collect();
        let mut folded = BTreeMap::new();
        for (key, value) in frames.flat_map(|frame| frame.changes.clone()) {
            match value {
                Some(value) => folded.insert(key, value),
                None => folded.remove(&key),
            };
        }
        let most = 1 + (written % 50) as usize;
        let mut read = read_all(&mut self.handle, 0, most);
        read.retain(|(position, ..)| *position >= self.needed_from);
        let is_needed = |(position, topic, _): &&(u64, String, Vec<u8>)| {
            let mut told = self.told.iter();
            told.all(|needs| is_needed(needs, *position, topic))
        };
        let needed = expected.iter().filter(is_needed);
        assert!(needed.eq(read.iter().filter(is_needed)), "messages differ");
        // What is there beside is as it was, in its place.
        let mut rest = expected.iter();
        assert!(
            read.iter().all(|message| rest.any(|one| one == message)),
            "other messages"
        );
        assert!(records(&mut self.handle) == folded, "records differ");
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Append { messages, changes } => self.append(messages, changes),
            Op::Turn(steps, ms) => self.turn(*steps, *ms),
            Op::WantSync => {
                if let Some(last) = self.frames.last() {
                    self.handle.wake_when(last.sequence, Durability::Commit);
                }
            }
            Op::Release(frames) => {
                if let Some(frame) = self.frames.get(usize::from(*frames)) {
                    // What was released once stays so.
                    self.needed_from = self.needed_from.max(frame.first);
                    self.handle.needed_from(self.needed_from);
                }
            }
            Op::Needs(from, topics, to) => {
                let position = |frame: &u8| {
                    let frame = self.frames.get(usize::from(*frame));
                    frame.map_or(u64::MAX, |frame| frame.first)
                };
                let wanted = (0..12_u8).filter(|number| topics & (1_u16 << number) != 0);
                let filters = wanted.map(|number| NeededFilter {
                    filter: topic_of(number).into(),
                    since: 0,
                    until: u64::MAX,
                });
                let needs = LogNeeds {
                    all_from: position(to),
                    readers: vec![ReaderNeeds {
                        filters: filters.collect(),
                        from: position(from),
                        single: Vec::new(),
                    }],
                };
                self.told.push(needs.clone());
                self.handle.needs(needs);
            }
            Op::Fail(fault, times) => self.disk.fail(*fault, u32::from(*times)),
            Op::Room(None) => self.disk.set_capacity_bytes(u64::MAX),
            Op::Room(Some(bytes)) => {
                let bytes = self.disk.used_bytes() + u64::from(*bytes);
                self.disk.set_capacity_bytes(bytes);
            }
            Op::SlowSync(ms) => self.disk.set_sync_takes_ms(u64::from(*ms)),
            Op::Cut => self.cut(),
            Op::CutWithin(changes) => {
                self.disk.fail_power_after(u32::from(*changes));
                for _ in 0..6 {
                    self.turn(40, 15);
                }
                self.cut();
            }
            Op::Kill => {
                let Progress { written, synced } = self.handle.progress();
                // After a failed sync, the operating system may have forgotten what it had.
                let least = if self.handle.is_full() {
                    synced
                } else {
                    written
                };
                self.disk.kill_process();
                self.disk.set_capacity_bytes(u64::MAX);
                self.restart(least);
            }
        }
    }

    fn cut(&mut self) {
        let Progress { synced, .. } = self.handle.progress();
        self.disk.cut_power();
        self.disk.set_capacity_bytes(u64::MAX);
        self.restart(synced);
    }

    /// With a disk that works, everything is written and synced in the end.
    fn settle(&mut self) {
        self.disk.set_capacity_bytes(u64::MAX);
        self.disk.fail(Fault::Write, 0);
        self.disk.set_sync_takes_ms(0);
        self.handle.flush();
        let last = self.frames.last().map_or(0, |frame| frame.sequence);
        self.handle.wake_when(last, Durability::Commit);
        for _ in 0..300 {
            self.turn(80, 100);
        }
        assert!(self.handle.progress().synced >= last);
        assert!(!self.handle.is_full());
        assert_eq!(self.engine.damage(), []);
        self.compare();
    }
}

/// Enough cases for each run of all tests; `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = std::env::var("PROPTEST_CASES").map_or(100, |_| default.cases);
    ProptestConfig {
        cases,
        max_shrink_iters: 4_000,
        ..default
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_was_synced_survives_and_what_survives_is_a_prefix(
        seed in any::<u64>(),
        durability in prop_oneof![
            Just(Durability::Commit), Just(Durability::Interval), Just(Durability::Memory)
        ],
        ops in ops(),
    ) {
        let mut world = World::new(seed, durability);
        for op in &ops {
            world.run(op);
        }
        world.settle();
        world.run(&Op::Cut);
    }
}

/// The operating system takes what a failed sync had for written, and shows it to the next process.
#[test]
fn a_records_file_whose_sync_failed_survives_a_kill_and_a_cut() {
    use Op::{Append, Cut, CutWithin, Fail, Kill, Release, Turn};
    let empty = || Append {
        messages: Vec::new(),
        changes: Vec::new(),
    };
    let ops = [
        empty(),
        Turn(2, 0),
        Turn(1, 0),
        empty(),
        Turn(1, 0),
        CutWithin(22),
        empty(),
        empty(),
        empty(),
        Cut,
        empty(),
        Turn(2, 0),
        Append {
            messages: vec![(0, 411), (4, 373), (2, 327)],
            changes: vec![(0, Some(237))],
        },
        Turn(3, 0),
        Cut,
        Turn(3, 0),
        Release(0),
        Fail(Fault::Sync, 2),
        Turn(3, 0),
        Kill,
        empty(),
        Cut,
    ];
    let mut world = World::new(1_753_905_928_503_912_125, Durability::Interval);
    for op in &ops {
        world.run(op);
    }
    world.settle();
    world.run(&Cut);
}

/// The frames of a segment whose sync failed are in the next one, too.
#[test]
fn a_segment_whose_sync_failed_is_no_damage_after_a_cut() {
    use Op::{Append, CutWithin, Fail, Room, Turn};
    let ops = [
        Turn(1, 0),
        Fail(Fault::Sync, 1),
        Append {
            messages: Vec::new(),
            changes: vec![(0, Some(178)), (0, Some(234))],
        },
        Room(None),
        Append {
            messages: vec![(3, 18), (8, 289), (1, 599)],
            changes: vec![(0, None)],
        },
        Turn(2, 0),
        Turn(1, 4),
        Turn(1, 6),
        CutWithin(9),
    ];
    let mut world = World::new(1_576_641_477_003_159_207, Durability::Commit);
    for op in &ops {
        world.run(op);
    }
    world.settle();
    world.run(&Op::Cut);
}
