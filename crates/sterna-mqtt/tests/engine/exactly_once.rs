//! QoS 2 over lanes that are reset, connections that are lost and servers that start again, in any order: each message
//! of a client that follows `docs/quic.md` is taken exactly once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU64;

use proptest::prelude::*;
use sterna_mqtt::session::{Content, Received, ReceivedId};
use sterna_mqtt::{Lane, MqttSession, PacketId, PublishProperties};

/// What the identifiers of a client are unique in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counting {
    Session,
    Stream,
}

#[derive(Clone, Debug)]
enum Step {
    /// The client sends a new message; of two with one content, only their identifiers differ.
    Send { lane: usize, content: u8 },
    /// The client opens a stream.
    Open { bidirectional: bool },
    /// The client continues a message of a lost lane.
    Continue { which: usize, lane: usize },
    /// The next packet of a lane arrives at the server.
    Up(usize),
    /// The next packet of a lane arrives at the client.
    Down(usize),
    /// The server answers the message that it received first.
    Answer,
    /// The client resets a stream, whose packets are lost. The server learns of it with the lane's next packet.
    Reset(usize),
    /// The connection is lost, and another one begins.
    Reconnect,
    /// The same, and the server starts again from its records.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = || 0_usize..100;
    let step = prop_oneof![
        6 => (number(), 0..3_u8).prop_map(|(lane, content)| Step::Send { lane, content }),
        2 => any::<bool>().prop_map(|bidirectional| Step::Open { bidirectional }),
        6 => (number(), number()).prop_map(|(which, lane)| Step::Continue { which, lane }),
        12 => number().prop_map(Step::Up),
        8 => number().prop_map(Step::Down),
        6 => Just(Step::Answer),
        3 => number().prop_map(Step::Reset),
        1 => Just(Step::Reconnect),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..150)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Up {
    /// With the number of the message, which only the test knows.
    Publish(PacketId, bool, u8, usize),
    Release(PacketId),
    Reset,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Down {
    Received(PacketId),
    Completed(PacketId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Published,
    Released,
}

/// A message that its client has not finished.
#[derive(Clone, Debug)]
struct Message {
    number: usize,
    id: PacketId,
    content: u8,
    stage: Stage,
    /// `None`: its lane is lost, and it is to be continued.
    lane: Option<u64>,
    /// The lane before that; control for a unidirectional one.
    last_lane: u64,
    /// It was sent on a lane that is lost.
    is_old: bool,
}

struct World {
    counting: Counting,
    session: MqttSession,
    records: BTreeSet<(PacketId, u64, NonZeroU64)>,
    up: BTreeMap<u64, VecDeque<Up>>,
    down: BTreeMap<u64, VecDeque<Down>>,
    /// Lanes that the server knows to be open.
    known: BTreeSet<u64>,
    unanswered: VecDeque<(u64, PacketId)>,
    messages: Vec<Message>,
    next_stream: [u64; 2],
    /// How often each message was taken.
    taken: Vec<u32>,
    log: Vec<String>,
}

fn content(content: u8) -> Content {
    Content::of("t", false, &PublishProperties::EMPTY, &[content])
}

/// Of these, the one that a number chooses.
fn choose<T: Copy>(of: &[T], number: usize) -> Option<T> {
    (!of.is_empty()).then(|| of[number % of.len()])
}

impl World {
    fn new(counting: Counting) -> Self {
        let mut world = Self {
            counting,
            session: MqttSession::new(),
            records: BTreeSet::new(),
            up: BTreeMap::new(),
            down: BTreeMap::new(),
            known: BTreeSet::new(),
            unanswered: VecDeque::new(),
            messages: Vec::new(),
            next_stream: [0; 2],
            taken: Vec::new(),
            log: Vec::new(),
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.up = BTreeMap::from([(0, VecDeque::new())]);
        self.down = BTreeMap::from([(0, VecDeque::new())]);
        self.known = BTreeSet::from([0]);
        self.unanswered.clear();
        self.next_stream = [4, 2];
        for message in &mut self.messages {
            message.lane = None;
            message.is_old = true;
        }
    }

    fn lanes(&self) -> Vec<u64> {
        let open = self
            .up
            .iter()
            .filter(|(_, queue)| queue.back() != Some(&Up::Reset));
        open.map(|(&lane, _)| lane).collect()
    }

    /// Whether a message may use its identifier on a lane.
    fn is_free(&self, number: usize, id: PacketId, lane: u64) -> bool {
        !(self.messages.iter()).any(|known| {
            let meets = match self.counting {
                Counting::Session => true,
                // Unidirectional streams are answered on control, and count with it.
                // The control stream is the same one in all connections.
                Counting::Stream => {
                    let taken = known.lane.or_else(|| (known.last_lane == 0).then_some(0));
                    taken.map(|lane| Lane(lane).reply()) == Some(Lane(lane).reply())
                        && !(known.lane.is_none() && known.number == number)
                }
            };
            known.id == id && meets
        })
    }

    fn send(&mut self, lane: u64, content: u8) {
        let number = self.taken.len();
        let ids = (1..=4).filter_map(PacketId::new);
        let mut ids = ids.filter(|&id| {
            let same = || self.messages.iter().filter(|known| known.id == id);
            let is_apart = self.counting == Counting::Session
                || same().all(|known| !known.is_old && known.content != content);
            is_apart && self.is_free(number, id, lane)
        });
        let Some(id) = ids.next() else {
            return;
        };
        self.taken.push(0);
        self.messages.push(Message {
            number,
            id,
            content,
            stage: Stage::Published,
            lane: Some(lane),
            last_lane: Lane(lane).reply().0,
            is_old: false,
        });
        self.put(lane, Up::Publish(id, false, content, number));
    }

    fn put(&mut self, lane: u64, packet: Up) {
        self.log.push(format!("client on {lane}: {packet:?}"));
        self.up.entry(lane).or_default().push_back(packet);
    }

    fn go_on(&mut self, which: usize, lane: usize) {
        let waiting = |message: &&Message| {
            let is_first = || {
                // A PUBREL waits until no PUBLISH with its identifier is to be sent again, or waits for PUBREC.
                !(self.messages.iter())
                    .any(|other| other.id == message.id && other.stage == Stage::Published)
            };
            message.lane.is_none()
                && (self.counting == Counting::Session
                    || message.stage == Stage::Published
                    || is_first())
        };
        let waiting: Vec<usize> = (self.messages.iter())
            .filter(waiting)
            .map(|message| message.number)
            .collect();
        let Some(number) = choose(&waiting, which) else {
            return;
        };
        let at = self
            .messages
            .iter()
            .position(|known| known.number == number);
        let at = at.expect("known");
        let message = self.messages[at].clone();
        let free: Vec<u64> = (self.lanes().into_iter())
            .filter(|&lane| {
                // An answer of a lost unidirectional stream may still be on its way, on control.
                let is_home = message.last_lane != 0 || Lane(lane).reply().is_control();
                is_home
                    && (self.counting == Counting::Session
                        || self.is_free(number, message.id, lane))
            })
            .collect();
        let Some(lane) = choose(&free, lane) else {
            return;
        };
        self.messages[at].lane = Some(lane);
        self.messages[at].last_lane = Lane(lane).reply().0;
        self.put(
            lane,
            match message.stage {
                Stage::Published => Up::Publish(message.id, true, message.content, number),
                Stage::Released => Up::Release(message.id),
            },
        );
    }

    fn arrive_up(&mut self, lane: u64) {
        let Some(packet) = self.up.get_mut(&lane).and_then(VecDeque::pop_front) else {
            return;
        };
        self.known.insert(lane);
        self.log
            .push(format!("at the server on {lane}: {packet:?}"));
        let of = Lane(lane);
        match packet {
            Up::Publish(id, dup, of_content, number) => {
                match self.session.receive(of, id, dup, content(of_content)) {
                    Received::New(ReceivedId {
                        packet_id,
                        lane: first,
                        content,
                    }) => {
                        self.taken[number] += 1;
                        let is_new = self.records.insert((packet_id, first, content.number()));
                        assert!(is_new, "records have names of their own");
                        self.unanswered.push_back((lane, id));
                    }
                    Received::Repeated => self.answer_one(lane, id),
                    Received::Pending => {}
                }
            }
            Up::Release(id) => {
                let released = self.session.release(of, id);
                if let Some((received, was_acknowledged)) = released {
                    assert!(
                        was_acknowledged,
                        "PUBREL before PUBREC\n{}",
                        self.log.join("\n")
                    );
                    let ReceivedId {
                        packet_id,
                        lane,
                        content,
                    } = received;
                    assert!(self.records.remove(&(packet_id, lane, content.number())));
                }
                self.put_down(of.reply(), Down::Completed(id));
            }
            Up::Reset => {
                self.session.lane_closed(of);
                self.known.remove(&lane);
                self.up.remove(&lane);
                self.down.remove(&lane);
            }
        }
        self.session.check();
    }

    fn answer_one(&mut self, lane: u64, id: PacketId) {
        let answer = self.session.answer_lane(Lane(lane), id);
        self.session.mark_received(Lane(lane), id);
        if let Some(answer) = answer {
            self.put_down(answer.reply(), Down::Received(id));
        }
    }

    fn put_down(&mut self, lane: Lane, packet: Down) {
        if self.lanes().contains(&lane.0) {
            self.down.entry(lane.0).or_default().push_back(packet);
        }
    }

    fn arrive_down(&mut self, lane: u64) {
        let Some(packet) = self.down.get_mut(&lane).and_then(VecDeque::pop_front) else {
            return;
        };
        self.log
            .push(format!("at the client on {lane}: {packet:?}"));
        let (id, stage) = match packet {
            Down::Received(id) => (id, Stage::Published),
            Down::Completed(id) => (id, Stage::Released),
        };
        let found = self.messages.iter().position(|message| {
            let comes_here = message.lane.map(|sent| Lane(sent).reply()) == Some(Lane(lane));
            message.id == id
                && message.stage == stage
                && (comes_here || self.counting == Counting::Session)
        });
        let Some(at) = found else {
            return;
        };
        match packet {
            Down::Received(_) => {
                let message = &mut self.messages[at];
                message.stage = Stage::Released;
                if let Some(sent) = message.lane {
                    // A client of one counter may release elsewhere, but not before a PUBLISH that it has sent again.
                    let open = self.lanes();
                    let is_anywhere =
                        self.counting == Counting::Session && !self.messages[at].is_old;
                    let to = if is_anywhere {
                        choose(&open, at + usize::from(id.get())).unwrap_or(0)
                    } else {
                        sent
                    };
                    self.messages[at].lane = Some(to);
                    self.put(to, Up::Release(id));
                }
            }
            Down::Completed(_) => {
                // A PUBREL that was sent again could release the next message with this identifier.
                let mut queues = self.up.iter().filter(|&(&other, _)| {
                    self.counting == Counting::Session || Lane(other).reply() == Lane(lane)
                });
                if !queues.any(|(_, queue)| queue.contains(&Up::Release(id))) {
                    self.messages.remove(at);
                }
            }
        }
    }

    fn reset(&mut self, lane: u64) {
        if lane == 0 {
            return;
        }
        self.up.insert(lane, VecDeque::from([Up::Reset]));
        self.down.remove(&lane);
        for message in &mut self.messages {
            if message.lane == Some(lane) {
                message.lane = None;
                message.is_old = true;
            }
        }
    }

    fn reconnect(&mut self) {
        self.session.mark_all_received();
        self.session.begin_connection();
        self.session.check();
        self.connect();
    }

    fn restart(&mut self) {
        let records = self
            .records
            .iter()
            .map(|&(packet_id, lane, content)| ReceivedId {
                packet_id,
                lane,
                content: Content::from_number(content),
            });
        self.session = MqttSession::restored(records, std::iter::empty());
        self.reconnect();
    }

    fn step(&mut self, step: &Step) {
        if matches!(step, Step::Reset(_) | Step::Reconnect | Step::Restart) {
            self.log.push(format!("{step:?}"));
        }
        match *step {
            Step::Send { lane, content } => {
                if let Some(lane) = choose(&self.lanes(), lane) {
                    self.send(lane, content);
                }
            }
            Step::Open { bidirectional } => {
                let next = &mut self.next_stream[usize::from(!bidirectional)];
                let lane = *next;
                *next += 4;
                self.up.insert(lane, VecDeque::new());
                self.down.insert(lane, VecDeque::new());
            }
            Step::Continue { which, lane } => self.go_on(which, lane),
            Step::Up(number) => {
                let lanes: Vec<u64> = self.up.keys().copied().collect();
                if let Some(lane) = choose(&lanes, number) {
                    self.arrive_up(lane);
                }
            }
            Step::Down(number) => {
                let lanes: Vec<u64> = self.down.keys().copied().collect();
                if let Some(lane) = choose(&lanes, number) {
                    self.arrive_down(lane);
                }
            }
            Step::Answer => {
                if let Some((lane, id)) = self.unanswered.pop_front() {
                    self.answer_one(lane, id);
                }
            }
            Step::Reset(number) => {
                if let Some(lane) = choose(&self.lanes(), number) {
                    self.reset(lane);
                }
            }
            Step::Reconnect => self.reconnect(),
            Step::Restart => self.restart(),
        }
    }

    /// Nothing is lost any more.
    fn end(&mut self) {
        for _ in 0..3 {
            self.step(&Step::Open {
                bidirectional: true,
            });
        }
        for round in 0..200 {
            for (which, lane) in (0..8).flat_map(|which| (0..3).map(move |lane| (which, lane))) {
                self.go_on(which, lane + round);
            }
            let lanes: Vec<u64> = self.up.keys().copied().collect();
            for lane in lanes {
                while self.up.get(&lane).is_some_and(|queue| !queue.is_empty()) {
                    self.arrive_up(lane);
                }
            }
            while let Some((lane, id)) = self.unanswered.pop_front() {
                self.answer_one(lane, id);
            }
            let lanes: Vec<u64> = self.down.keys().copied().collect();
            for lane in lanes {
                while self.down.get(&lane).is_some_and(|queue| !queue.is_empty()) {
                    self.arrive_down(lane);
                }
            }
        }
    }
}

fn run(counting: Counting, steps: &[Step]) {
    let mut world = World::new(counting);
    for step in steps {
        world.step(step);
    }
    world.end();
    assert!(
        world.messages.is_empty(),
        "unfinished: {:?}",
        world.messages
    );
    assert!(
        world.taken.iter().all(|&times| times == 1),
        "taken: {:?}\n{}",
        world.taken,
        world.log.join("\n")
    );
    assert_eq!(world.session.incoming_len(), 0, "all are released");
    assert!(world.records.is_empty(), "{:?}", world.records);
    assert!(world.session.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// [MQTT-4.3.3-10]
    #[test]
    fn one_counter(steps in steps()) {
        run(Counting::Session, &steps);
    }

    /// [MQTT-4.3.3-10]
    #[test]
    fn a_counter_per_stream(steps in steps()) {
        run(Counting::Stream, &steps);
    }
}
