//! The simulation's own tests: a wrong network would hide errors of the tested code.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;

use super::{Client, ClientOptions, Settings, Simulation, Step};
use crate::mailbox::Courier;
use crate::{
    Chunk, CloseReason, ConnectionId, Handler, Network, SHARE_BYTES, StreamEnd, StreamId,
    TransportKind,
};

/// A call of a handler.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Told {
    Opened(ConnectionId),
    Chunk {
        on: StreamId,
        length: usize,
        early: bool,
        confirmed: bool,
    },
    Confirmed,
    Migrated,
    Datagram(Vec<u8>),
    Finished(StreamId),
    Aborted(StreamId, u64),
    Writable,
    Closed(CloseReason),
    Mail(Vec<(usize, u64)>),
    Timeout(u64),
}

type Reaction = Box<dyn FnMut(&mut Recorder, &mut dyn Network, ConnectionId, Option<Chunk<'_>>)>;

/// Records its calls, and does the actions of a test.
struct Recorder {
    shard: usize,
    courier: Courier<(usize, u64)>,
    told: Vec<Told>,
    bytes: BTreeMap<(ConnectionId, StreamId), Vec<u8>>,
    /// Called for `opened` (without a chunk) and `received`.
    reaction: Option<Reaction>,
    deadline_ms: Option<u64>,
    turns: u64,
    is_in_turn: bool,
    done: bool,
}

impl Recorder {
    fn new(shard: usize, courier: Courier<(usize, u64)>) -> Self {
        Self {
            shard,
            courier,
            told: Vec::new(),
            bytes: BTreeMap::new(),
            reaction: None,
            deadline_ms: None,
            turns: 0,
            is_in_turn: false,
            done: false,
        }
    }

    fn react(&mut self, net: &mut dyn Network, id: ConnectionId, chunk: Option<Chunk<'_>>) {
        if let Some(mut reaction) = self.reaction.take() {
            reaction(self, net, id, chunk);
            self.reaction = Some(reaction);
        }
    }
}

impl Handler for Recorder {
    type Mail = (usize, u64);

    fn opened(&mut self, net: &mut dyn Network, id: ConnectionId) {
        assert!(net.info(id).is_some());
        self.told.push(Told::Opened(id));
        self.react(net, id, None);
    }

    fn received(&mut self, net: &mut dyn Network, id: ConnectionId, chunk: Chunk<'_>) {
        assert!(!chunk.bytes.is_empty());
        let Chunk {
            stream,
            bytes,
            early,
            confirmed,
        } = chunk;
        self.told.push(Told::Chunk {
            on: stream,
            length: bytes.len(),
            early,
            confirmed,
        });
        self.bytes
            .entry((id, stream))
            .or_default()
            .extend_from_slice(bytes);
        self.react(net, id, Some(chunk));
    }

    fn confirmed(&mut self, net: &mut dyn Network, id: ConnectionId) {
        assert!(net.info(id).is_some_and(|info| info.is_peer_proved));
        self.told.push(Told::Confirmed);
    }

    fn migrated(&mut self, _: &mut dyn Network, _: ConnectionId) {
        self.told.push(Told::Migrated);
    }

    fn datagram(&mut self, net: &mut dyn Network, id: ConnectionId, chunk: Chunk<'_>) {
        self.told.push(Told::Datagram(chunk.bytes.to_vec()));
        net.send_datagram(id, Bytes::copy_from_slice(chunk.bytes));
    }

    fn stream_ended(
        &mut self,
        net: &mut dyn Network,
        id: ConnectionId,
        stream: StreamId,
        end: StreamEnd,
    ) {
        match end {
            StreamEnd::Finished => {
                self.told.push(Told::Finished(stream));
                if self.reaction.is_some() {
                    net.finish(id, stream);
                }
            }
            StreamEnd::Aborted(code) => self.told.push(Told::Aborted(stream, code)),
            StreamEnd::Stopped(_) => {}
        }
    }

    fn writable(&mut self, _: &mut dyn Network, _: ConnectionId) {
        self.told.push(Told::Writable);
    }

    fn closed(&mut self, _: &mut dyn Network, _: ConnectionId, reason: &CloseReason) {
        self.told.push(Told::Closed(reason.clone()));
    }

    fn mail(&mut self, _: &mut dyn Network, mail: &mut Vec<(usize, u64)>) {
        assert!(self.is_in_turn);
        self.told.push(Told::Mail(std::mem::take(mail)));
    }

    fn timeout(&mut self, net: &mut dyn Network) {
        assert!(self.is_in_turn);
        self.told.push(Told::Timeout(net.now_ms()));
        self.deadline_ms = None;
    }

    fn begin_of_turn(&mut self, _: &mut dyn Network) {
        assert!(!self.is_in_turn, "the turn before has ended");
        self.is_in_turn = true;
    }

    fn end_of_turn(&mut self, _: &mut dyn Network) {
        assert!(self.is_in_turn, "it has begun");
        self.is_in_turn = false;
        self.turns += 1;
        self.courier.flush();
    }

    fn deadline_ms(&self) -> Option<u64> {
        self.deadline_ms
    }

    fn finished(&self) -> bool {
        self.done
    }
}

fn simulation(seed: u64, settings: Settings, shards: usize) -> Simulation<Recorder> {
    Simulation::new(seed, settings, shards, Recorder::new)
}

/// One shard that echoes.
fn echo(seed: u64, settings: Settings) -> Simulation<Recorder> {
    let mut sim = simulation(seed, settings, 1);
    sim.handler_mut(0).reaction = Some(Box::new(|_, net, id, chunk| {
        if let Some(chunk) = chunk {
            net.send(id, chunk.stream, chunk.bytes);
        }
    }));
    sim
}

fn quiet(seed: u64) -> (Simulation<Recorder>, Client) {
    let mut sim = simulation(seed, Settings::default(), 1);
    let client = sim.connect(ClientOptions::default());
    sim.run_for(1_000);
    (sim, client)
}

fn first(sim: &Simulation<Recorder>) -> ConnectionId {
    match sim.handler(0).told[0] {
        Told::Opened(id) => id,
        _ => panic!("a connection opens first"),
    }
}

/// Has the handler do something in its next turn.
fn ask(
    sim: &mut Simulation<Recorder>,
    client: Client,
    mut wish: impl FnMut(&mut dyn Network, ConnectionId) + 'static,
) {
    sim.handler_mut(0).reaction = Some(Box::new(move |_, net, id, _| wish(net, id)));
    sim.send(client, StreamId::FIRST, b"!");
    assert!(sim.run_until(10_000, |sim| sim.unread_bytes(client) == 0));
    sim.handler_mut(0).reaction = None;
}

#[test]
fn bytes_arrive_whole_and_in_order_in_pieces_of_any_size() {
    for seed in 0..50 {
        let mut sim = echo(seed, Settings::default());
        let client = sim.connect(ClientOptions::default());
        let (one, two) = (sim.open(client, true), sim.open(client, true));
        let bytes: Vec<u8> = (0..10_000u32)
            .map(|n| (n * 7 + seed as u32) as u8)
            .collect();
        for piece in bytes.chunks(333) {
            sim.send(client, one, piece);
            sim.send(client, two, piece);
        }
        sim.finish(client, one);
        sim.finish(client, two);
        assert!(sim.run_until(60_000, |sim| {
            sim.has_finished(client, one) && sim.has_finished(client, two)
        }));
        assert_eq!(sim.take(client, one), bytes);
        assert_eq!(sim.take(client, two), bytes);
        assert_eq!(sim.take(client, one), b"");
        let told = &sim.handler(0).told;
        let lengths: Vec<_> = told
            .iter()
            .filter_map(|told| match told {
                Told::Chunk {
                    length,
                    early: false,
                    confirmed: true,
                    ..
                } => Some(*length),
                _ => None,
            })
            .collect();
        assert!(lengths.iter().all(|length| (1..=1_500).contains(length)));
        assert!(lengths.len() >= 14, "in pieces: {lengths:?}");
        assert_eq!(
            told.iter()
                .filter(|told| matches!(told, Told::Finished(_)))
                .count(),
            2
        );
        assert_eq!(sim.unread_bytes(client), 0);
    }
}

#[test]
fn equal_seeds_run_alike_and_others_do_not() {
    let run = |seed| {
        let settings = Settings {
            cuts_per_million: 2_000,
            ..Settings::default()
        };
        let mut sim = simulation(seed, settings, 3);
        for shard in 0..3 {
            sim.handler_mut(shard).reaction = Some(Box::new(|this, net, id, chunk| {
                if let Some(chunk) = chunk {
                    net.send(id, chunk.stream, chunk.bytes);
                    let to = chunk.bytes.len() % 3;
                    this.courier
                        .post(to, (this.shard, chunk.bytes.len() as u64));
                }
            }));
        }
        let clients: Vec<_> = (0..20)
            .map(|_| sim.connect(ClientOptions::default()))
            .collect();
        for round in 0..20u8 {
            for client in &clients {
                sim.send(*client, StreamId::FIRST, &[round; 2_000]);
            }
            sim.run_for(100);
        }
        (sim.fingerprint(), sim.turns(), sim.now_ms())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}

#[test]
fn letters_stay_in_order_per_pair_of_shards_and_mix_across_pairs() {
    let mut mixed = 0;
    for seed in 0..30 {
        let mut sim = simulation(seed, Settings::default(), 4);
        for round in 0..100 {
            for shard in 0..4 {
                for to in 0..4 {
                    let handler = sim.handler_mut(shard);
                    handler.courier.post(to, (shard, round));
                }
                sim.nudge(shard);
            }
            sim.run_for(1);
        }
        sim.run_for(1_000);
        for shard in 0..4 {
            let letters = sim.handler(shard).told.iter().flat_map(|told| match told {
                Told::Mail(letters) => letters.clone(),
                _ => Vec::new(),
            });
            let letters: Vec<_> = letters.collect();
            assert_eq!(letters.len(), 400);
            for from in 0..4 {
                let of: Vec<_> = letters.iter().filter(|letter| letter.0 == from).collect();
                assert!(
                    of.windows(2).all(|pair| pair[0].1 + 1 == pair[1].1),
                    "in order"
                );
            }
            mixed += letters
                .windows(2)
                .filter(|pair| pair[0].1 > pair[1].1)
                .count();
        }
    }
    assert!(mixed > 1_000, "senders overtake each other: {mixed}");
}

#[test]
fn deadlines_are_kept_and_never_early() {
    let mut sim = simulation(5, Settings::default(), 1);
    let start = sim.now_ms();
    sim.handler_mut(0).deadline_ms = Some(start + 12_345);
    sim.nudge(0);
    sim.run_for(3_600_000);
    assert_eq!(sim.handler(0).told, [Told::Timeout(start + 12_345)]);
    assert_eq!(sim.now_ms(), start + 3_600_000);
    assert!(
        sim.turns() < 5,
        "an idle hour costs nothing: {} turns",
        sim.turns()
    );
}

#[test]
#[should_panic(expected = "no time passed")]
fn a_shard_that_spins_is_found_out() {
    struct Spinning;
    impl Handler for Spinning {
        type Mail = ();
        fn opened(&mut self, _: &mut dyn Network, _: ConnectionId) {}
        fn received(&mut self, _: &mut dyn Network, _: ConnectionId, _: Chunk<'_>) {}
        fn stream_ended(
            &mut self,
            _: &mut dyn Network,
            _: ConnectionId,
            _: StreamId,
            _: StreamEnd,
        ) {
        }
        fn writable(&mut self, _: &mut dyn Network, _: ConnectionId) {}
        fn closed(&mut self, _: &mut dyn Network, _: ConnectionId, _: &CloseReason) {}
        fn mail(&mut self, _: &mut dyn Network, _: &mut Vec<()>) {}
        fn timeout(&mut self, _: &mut dyn Network) {}
        fn end_of_turn(&mut self, _: &mut dyn Network) {}
        fn deadline_ms(&self) -> Option<u64> {
            Some(0)
        }
        fn finished(&self) -> bool {
            false
        }
    }
    Simulation::new(0, Settings::default(), 1, |_, _| Spinning).run_for(1);
}

#[test]
fn half_closed_connections_still_carry_bytes_the_other_way() {
    let (mut sim, client) = quiet(1);
    sim.send(client, StreamId::FIRST, b"request");
    sim.finish(client, StreamId::FIRST);
    sim.send(client, StreamId::FIRST, b"ignored");
    sim.run_for(1_000);
    assert!(
        sim.handler(0)
            .told
            .contains(&Told::Finished(StreamId::FIRST))
    );
    let other = sim.open(client, true);
    sim.handler_mut(0).reaction = Some(Box::new(|_, net, id, _| {
        net.send(id, StreamId::FIRST, b"answer");
        net.finish(id, StreamId::FIRST);
        net.send(id, StreamId::FIRST, b"ignored");
    }));
    sim.send(client, other, b"now");
    sim.run_for(1_000);
    assert_eq!(sim.received(client, StreamId::FIRST), b"answer");
    assert!(sim.has_finished(client, StreamId::FIRST));
    assert_eq!(
        sim.handler(0).bytes[&(first(&sim), StreamId::FIRST)],
        b"request"
    );
}

#[test]
fn a_stream_that_is_watched_and_given_up_by_the_client_is_reported() {
    let (mut sim, client) = quiet(2);
    sim.pause(client, true);
    ask(&mut sim, client, |net, id| {
        net.send_shared(id, StreamId::FIRST, Bytes::from(vec![1; 20 * SHARE_BYTES]));
        net.watch(id, StreamId::FIRST);
    });
    sim.run_for(100_000);
    assert!(!sim.handler(0).told.contains(&Told::Writable));
    sim.abort(client, StreamId::FIRST, 7);
    sim.run_for(100_000);
    assert!(sim.handler(0).told.contains(&Told::Writable));
}

#[test]
fn a_client_that_does_not_read_is_felt_and_reported_when_it_does() {
    let (mut sim, client) = quiet(2);
    sim.pause(client, true);
    let unsent = Rc::new(RefCell::new(0));
    let seen = Rc::clone(&unsent);
    ask(&mut sim, client, move |net, id| {
        net.send_shared(id, StreamId::FIRST, Bytes::from(vec![1; 150 * SHARE_BYTES]));
        *seen.borrow_mut() = net.unsent_bytes(id);
    });
    assert_eq!(*unsent.borrow(), 150 * SHARE_BYTES - 16 * 1024);
    sim.run_for(100_000);
    assert_eq!(sim.received(client, StreamId::FIRST), b"");
    assert!(!sim.handler(0).told.contains(&Told::Writable));
    sim.pause(client, false);
    sim.run_for(100_000);
    assert_eq!(
        sim.received(client, StreamId::FIRST).len(),
        150 * SHARE_BYTES
    );
    assert_eq!(
        sim.handler(0)
            .told
            .iter()
            .filter(|told| **told == Told::Writable)
            .count(),
        1
    );
}

#[test]
fn a_pause_does_not_hide_for_ever_that_the_client_is_gone() {
    let (mut sim, client) = quiet(4);
    ask(&mut sim, client, |net, id| net.pause(id, true));
    sim.send(client, StreamId::FIRST, &[9; 5_000]);
    sim.close(client, 4);
    sim.run_for(11_000);
    assert!(!sim.is_known(client));
    let told = &sim.handler(0).told;
    let closed = Told::Closed(CloseReason::Peer { code: 4 });
    assert_eq!(told.last(), Some(&closed));
    assert_eq!(
        sim.handler(0).bytes[&(first(&sim), StreamId::FIRST)],
        b"!",
        "from before the pause"
    );
}

#[test]
fn a_client_that_is_gone_is_read_to_its_end_with_pauses_in_between() {
    let (mut sim, client) = quiet(4);
    ask(&mut sim, client, |net, id| net.pause(id, true));
    sim.send(client, StreamId::FIRST, &vec![9; 1_000_000]);
    sim.finish(client, StreamId::FIRST);
    sim.close(client, 4);
    let id = first(&sim);
    let pause = |sim: &mut Simulation<Recorder>, paused| {
        let world = &mut sim.world;
        super::Port { world, shard: 0 }.pause(id, paused);
    };
    for _ in 0..4 {
        sim.run_for(8_000);
        pause(&mut sim, false);
        sim.run_for(1);
        pause(&mut sim, true);
    }
    assert!(sim.unread_bytes(client) > 0 && sim.is_known(client));
    pause(&mut sim, false);
    sim.run_for(100_000);
    assert_eq!(
        sim.handler(0).bytes[&(id, StreamId::FIRST)].len(),
        1_000_001
    );
    let told = &sim.handler(0).told;
    assert_eq!(told[told.len() - 2], Told::Finished(StreamId::FIRST));
}

#[test]
fn a_server_that_does_not_read_leaves_bytes_with_the_client() {
    let (mut sim, client) = quiet(3);
    ask(&mut sim, client, |net, id| net.pause(id, true));
    sim.send(client, StreamId::FIRST, &[9; 5_000]);
    sim.finish(client, StreamId::FIRST);
    sim.close(client, 4);
    sim.run_for(9_000);
    assert_eq!(sim.unread_bytes(client), 5_000);
    assert!(sim.is_known(client));
    let id = first(&sim);
    let port = &mut super::Port {
        world: &mut sim.world,
        shard: 0,
    };
    port.pause(id, false);
    sim.run_for(10_000);
    assert_eq!(sim.handler(0).bytes[&(id, StreamId::FIRST)].len(), 5_001);
    let told = &sim.handler(0).told;
    assert_eq!(told[told.len() - 2], Told::Finished(StreamId::FIRST));
    assert_eq!(
        told[told.len() - 1],
        Told::Closed(CloseReason::Peer { code: 4 })
    );
}

#[test]
fn early_data_is_tagged_until_the_connection_is_confirmed() {
    let mut sim = simulation(4, Settings::default(), 1);
    let client = sim.connect(ClientOptions {
        early: true,
        ..ClientOptions::default()
    });
    sim.send(client, StreamId::FIRST, b"early");
    sim.run_for(1_000);
    sim.send(client, StreamId::FIRST, b"late");
    sim.run_for(1_000);
    let told = &sim.handler(0).told;
    let confirmed = told
        .iter()
        .position(|told| *told == Told::Confirmed)
        .expect("confirmed");
    for (at, told) in told.iter().enumerate() {
        if let Told::Chunk {
            early,
            confirmed: sure,
            ..
        } = told
        {
            assert_eq!((*early, *sure), (at < confirmed, at > confirmed));
        }
    }
    assert!(
        told[..confirmed]
            .iter()
            .any(|told| matches!(told, Told::Chunk { early: true, .. }))
    );
}

#[test]
fn last_words_arrive_before_the_servers_close() {
    for seed in 0..50 {
        let (mut sim, client) = quiet(seed);
        ask(&mut sim, client, |net, id| {
            net.send(id, StreamId::FIRST, &[3; 9_000]);
            net.close(id, 7);
            net.send(id, StreamId::FIRST, b"nothing after that");
            assert!(net.info(id).is_some());
        });
        sim.run_for(10_000);
        assert_eq!(sim.received(client, StreamId::FIRST), [3; 9_000]);
        assert_eq!(sim.closed(client), Some(&CloseReason::Peer { code: 7 }));
        assert_eq!(
            sim.handler(0).told.last(),
            Some(&Told::Closed(CloseReason::Local))
        );
        assert!(!sim.is_known(client));
        sim.send(client, StreamId::FIRST, b"?");
        sim.run_for(1_000);
        assert_eq!(
            sim.handler(0).told.last(),
            Some(&Told::Closed(CloseReason::Local))
        );
    }
}

#[test]
fn a_closed_connection_lingers_only_so_long() {
    let (mut sim, client) = quiet(6);
    sim.pause(client, true);
    ask(&mut sim, client, |net, id| {
        net.send(id, StreamId::FIRST, b"DISCONNECT");
        net.close(id, 7);
    });
    sim.run_for(1_500);
    assert!(sim.is_known(client));
    sim.run_for(1_000);
    assert!(!sim.is_known(client));
    assert_eq!(
        sim.handler(0).told.last(),
        Some(&Told::Closed(CloseReason::Local))
    );
}

#[test]
fn a_cut_loses_what_is_under_way_and_is_noticed_once() {
    let mut whole = 0;
    for seed in 0..100 {
        let (mut sim, client) = quiet(seed);
        sim.send(client, StreamId::FIRST, &[8; 9_000]);
        sim.run_for(1);
        sim.cut(client);
        sim.cut(client);
        assert!(matches!(sim.closed(client), Some(CloseReason::Failed(_))));
        sim.send(client, StreamId::FIRST, b"too late");
        sim.run_for(20_000);
        let handler = sim.handler(0);
        let closed = handler
            .told
            .iter()
            .filter(|told| matches!(told, Told::Closed(_)));
        assert_eq!(closed.count(), 1);
        let arrived = handler
            .bytes
            .get(&(first(&sim), StreamId::FIRST))
            .map_or(0, Vec::len);
        whole += usize::from(arrived == 9_000);
        assert!(handler.bytes.values().flatten().all(|byte| *byte == 8));
    }
    assert!(whole < 50, "most lose something: {whole}");
    // Before the server ever heard of it: it never does.
    let mut sim = simulation(1, Settings::default(), 1);
    let client = sim.connect(ClientOptions::default());
    sim.cut(client);
    sim.run_for(20_000);
    assert!(sim.handler(0).told.is_empty());
}

#[test]
fn cuts_happen_by_themselves_when_asked_for() {
    let settings = Settings {
        cuts_per_million: 50_000,
        ..Settings::default()
    };
    let mut sim = echo(9, settings);
    let clients: Vec<_> = (0..50)
        .map(|_| sim.connect(ClientOptions::default()))
        .collect();
    for client in &clients {
        sim.send(*client, StreamId::FIRST, &[1; 9_000]);
    }
    sim.run_for(60_000);
    let cut = clients
        .iter()
        .filter(|client| sim.closed(**client).is_some())
        .count();
    assert!((10..=50).contains(&cut), "{cut}");
}

#[test]
fn aborts_take_both_directions_of_a_stream_and_leave_the_others() {
    let (mut sim, client) = quiet(10);
    assert_eq!(sim.open(client, true), StreamId::FIRST);
    let (one, two) = (sim.open(client, true), sim.open(client, true));
    sim.send(client, one, b"one");
    sim.send(client, two, b"two");
    sim.run_for(1_000);
    sim.abort(client, one, 31);
    sim.send(client, one, b"nothing more");
    sim.run_for(1_000);
    assert!(sim.handler(0).told.contains(&Told::Aborted(one, 31)));
    ask(&mut sim, client, move |net, id| {
        net.send(id, one, b"nobody hears");
        net.abort(id, two, 32);
        net.send(id, two, b"nothing more");
    });
    sim.run_for(1_000);
    assert_eq!(sim.aborted(client, two), Some(32));
    assert_eq!(
        (sim.received(client, one), sim.received(client, two)),
        (&b""[..], &b""[..])
    );
    assert_eq!(sim.closed(client), None);
}

#[test]
fn byte_streams_have_one_stream_and_end_with_its_abort() {
    let mut sim = simulation(11, Settings::default(), 1);
    let tcp = ClientOptions {
        transport: TransportKind::Tcp,
        ..ClientOptions::default()
    };
    let client = sim.connect(tcp.clone());
    sim.run_for(1_000);
    ask(&mut sim, client, |net, id| {
        net.send(id, StreamId(1), b"there is no such stream");
        assert!(!net.send_datagram(id, Bytes::from_static(b"x")));
        net.abort(id, StreamId::FIRST, 1);
    });
    sim.run_for(1_000);
    assert!(sim.closed(client).is_some());
    assert_eq!(
        sim.handler(0).told.last(),
        Some(&Told::Closed(CloseReason::Local))
    );
    let client = sim.connect(tcp);
    sim.run_for(1_000);
    sim.abort(client, StreamId::FIRST, 1);
    sim.run_for(10_000);
    assert!(!sim.is_known(client));
}

#[test]
fn the_server_opens_streams_and_one_way_streams_stay_one_way() {
    let (mut sim, client) = quiet(12);
    let up = sim.open(client, false);
    assert_eq!(up, StreamId(2));
    sim.send(client, up, b"publish");
    sim.finish(client, up);
    sim.run_for(1_000);
    assert_eq!(sim.handler(0).bytes[&(first(&sim), up)], b"publish");
    ask(&mut sim, client, move |net, id| {
        net.send(id, up, b"no way back");
        net.send(id, StreamId(3), b"settings");
        net.finish(id, StreamId(3));
    });
    sim.run_for(1_000);
    assert_eq!(sim.received(client, StreamId(3)), b"settings");
    assert!(sim.has_finished(client, StreamId(3)));
    assert_eq!(sim.received(client, up), b"");
    assert_eq!(
        sim.streams(client).collect::<Vec<_>>(),
        [StreamId(0), up, StreamId(3)]
    );
}

#[test]
fn identifiers_of_connections_that_are_gone_do_nothing() {
    let (mut sim, client) = quiet(13);
    let old = first(&sim);
    sim.close(client, 0);
    sim.run_for(1_000);
    let next = sim.connect(ClientOptions::default());
    sim.run_for(1_000);
    ask(&mut sim, next, move |net, id| {
        assert_eq!((id.slot, id.generation), (old.slot, old.generation + 1));
        net.send(old, StreamId::FIRST, b"to nobody");
        net.close(old, 1);
        net.abort(old, StreamId::FIRST, 1);
        assert!(net.info(old).is_none());
        assert_eq!(net.unsent_bytes(old), 0);
    });
    sim.run_for(1_000);
    assert_eq!(sim.closed(next), None);
    assert_eq!(sim.received(next, StreamId::FIRST), b"");
}

#[test]
fn datagrams_get_lost_now_and_then() {
    let (mut sim, client) = quiet(14);
    for n in 0..1_000u16 {
        sim.send_datagram(client, &n.to_be_bytes());
    }
    sim.send_datagram(client, &[0; 5_000]);
    sim.run_for(1_000);
    let arrived = sim
        .handler(0)
        .told
        .iter()
        .filter(|told| matches!(told, Told::Datagram(_)));
    let arrived = arrived.count();
    let back = sim.take_datagrams(client).len();
    assert!((940..1_000).contains(&arrived), "{arrived}");
    assert!(back < arrived && back > 900, "{back} of {arrived}");
}

#[test]
fn steps_tell_whose_they_were() {
    let mut sim = echo(15, Settings::default());
    let client = sim.connect(ClientOptions::default());
    sim.send(client, StreamId::FIRST, b"ping");
    let limit = sim.now_ms() + 1_000;
    let mut steps = Vec::new();
    while let Some(step) = sim.step(limit) {
        steps.push(step);
    }
    assert!(steps.contains(&Step::Turn { shard: 0 }));
    assert_eq!(steps.last(), Some(&Step::Client(client)));
    assert_eq!(sim.now_ms(), limit);
    assert_eq!(sim.received(client, StreamId::FIRST), b"ping");
}

#[test]
fn a_shard_that_has_finished_takes_no_more_turns() {
    let mut sim = echo(16, Settings::default());
    sim.handler_mut(0).done = true;
    assert!(sim.is_finished());
    let client = sim.connect(ClientOptions::default());
    sim.send(client, StreamId::FIRST, b"ping");
    sim.run_for(1_000);
    assert_eq!(sim.turns(), 0);
    assert!(sim.handler(0).told.is_empty());
}

#[test]
fn clients_can_move() {
    let (mut sim, client) = quiet(17);
    let elsewhere = "203.0.113.9:1".parse().expect("an address");
    sim.migrate(client, elsewhere);
    sim.run_for(1_000);
    assert!(sim.handler(0).told.contains(&Told::Migrated));
    ask(&mut sim, client, move |net, id| {
        assert_eq!(net.info(id).map(|info| info.peer), Some(elsewhere));
        let path = net.path(id);
        assert!(path.rtt_us > 0 && path.min_rtt_us > 0);
        assert_eq!((path.migrations, path.open_streams), (1, 1));
        assert_eq!(path.received_payload_bytes, path.received_bytes);
    });
}
