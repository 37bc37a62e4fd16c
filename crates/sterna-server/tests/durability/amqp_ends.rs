//! AMQP: what a client is told before its link, session or connection ends.

use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{DeliveryState, Source, Target, TargetArchetype};
use sterna_amqp::performatives::{ReceiverSettleMode, Role};
use sterna_net::{StreamId, TransportKind};

use crate::amqp::durable;
use crate::amqp_client::{Client, Happened, Start};
use crate::fixture::Broker;
use crate::store::{Held, config};

const TRANSPORTS: [TransportKind; 2] = [TransportKind::Tcp, TransportKind::Quic];

/// The way in which a client ends what it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Detach,
    DetachForGood,
    End,
    Close,
}

const WAYS: [Way; 4] = [Way::Detach, Way::DetachForGood, Way::End, Way::Close];

impl Way {
    fn go(self, broker: &mut Broker, client: &mut Client, link: LinkId) {
        let (engine, out) = (&mut client.engine, &mut client.out);
        let done = match self {
            Self::Detach => engine.detach(link, false, None, out),
            Self::DetachForGood => engine.detach(link, true, None, out),
            // The engine forgets a session when it ends it. So the frame is written by hand.
            Self::End => {
                broker.send_on(client.peer, stream(client, link), &frame(0x17));
                Ok(())
            }
            Self::Close => {
                broker.send_on(client.peer, StreamId::FIRST, &frame(0x18));
                Ok(())
            }
        };
        done.expect("it is there");
        client.turn(broker);
    }

    /// Whether the broker has answered.
    fn is_answered(self, client: &Client) -> bool {
        client.happened.iter().any(|one| match one {
            Happened::Detached { .. } => matches!(self, Self::Detach | Self::DetachForGood),
            Happened::Ended(_) => self == Self::End,
            Happened::Closed(_) => self == Self::Close,
            _ => false,
        })
    }
}

fn stream(client: &Client, link: LinkId) -> StreamId {
    let lane = client.engine.lane_of(link.session).expect("a session");
    client.stream(lane.0)
}

/// A frame on channel 0 whose performative has no fields.
fn frame(code: u8) -> [u8; 12] {
    [0, 0, 0, 12, 2, 0, 0, 0, 0, 0x53, code, 0x45]
}

fn start(broker: &mut Broker, transport: TransportKind, container: &str) -> (Client, SessionId) {
    let mut client = Client::start(broker, Start::new(container).over(transport));
    let session = client.begin(broker);
    (client, session)
}

/// A subscription that is kept.
fn keeper(broker: &mut Broker) -> Client {
    let (mut keeper, session) = start(broker, TransportKind::Tcp, "keeper");
    keeper.receiver(broker, session, "sub", durable("kept/#"), 1_000);
    keeper
}

fn outcomes_of(client: &Client) -> usize {
    let accepted = |one: &&Happened| match one {
        Happened::Disposed { state, .. } => state.as_deref() == Some("accepted"),
        _ => false,
    };
    client.happened.iter().filter(accepted).count()
}

/// Part 2, section 2.6.3: a sender that is answered knows of nothing more, and sends again what it was not told of.
#[test]
fn outcomes_leave_before_the_answer_to_an_end() {
    for transport in TRANSPORTS {
        // A close may overtake what is on other streams: a client of QUIC ends its sessions before.
        let is_ordered = |way: &&Way| transport == TransportKind::Tcp || **way != Way::Close;
        for &way in WAYS.iter().filter(is_ordered) {
            let store = Held::new();
            let mut broker = store.broker(&config(), 1);
            let _keeper = keeper(&mut broker);
            let (mut client, session) = start(&mut broker, transport, "c");
            let link = client.sender(&mut broker, session, "kept/a");
            store.hold();
            for token in 1..=3 {
                client.send(&mut broker, link, token, "m");
            }
            way.go(&mut broker, &mut client, link);
            let at = (transport, way);
            assert!(!way.is_answered(&client), "{at:?}: the store has nothing");
            store.sync(&mut broker);
            client.turn(&mut broker);
            assert_eq!(outcomes_of(&client), 3, "{at:?}");
            assert!(way.is_answered(&client), "{at:?}");
        }
    }
}

/// The time is that of a drain: half of `network.shutdown_timeout_ms`.
#[test]
fn an_end_waits_for_a_store_that_stands_still_as_long_as_a_drain_does() {
    for way in WAYS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let _keeper = keeper(&mut broker);
        let (mut client, session) = start(&mut broker, TransportKind::Tcp, "c");
        let link = client.sender(&mut broker, session, "kept/a");
        store.hold();
        client.send(&mut broker, link, 1, "m");
        way.go(&mut broker, &mut client, link);
        broker.advance(config().network.shutdown_timeout_ms / 2 - 1);
        client.turn(&mut broker);
        assert!(!way.is_answered(&client), "{way:?}");
        broker.advance(1);
        client.turn(&mut broker);
        assert!(way.is_answered(&client), "{way:?}");
        assert_eq!(outcomes_of(&client), 0, "{way:?}: it was not kept");
        store.sync(&mut broker);
    }
}

/// A wait that was too long takes nothing from the next one.
#[test]
fn each_end_has_its_whole_time_again() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let _keeper = keeper(&mut broker);
    let (mut client, session) = start(&mut broker, TransportKind::Tcp, "c");
    let link = client.sender(&mut broker, session, "kept/a");
    let other = client.sender(&mut broker, session, "kept/b");
    store.hold();
    client.send(&mut broker, link, 1, "m");
    Way::Detach.go(&mut broker, &mut client, link);
    broker.advance(config().network.shutdown_timeout_ms / 2);
    client.turn(&mut broker);
    assert!(Way::Detach.is_answered(&client));
    store.sync(&mut broker);
    client.turn(&mut broker);
    client.happened.clear();
    store.hold();
    client.send(&mut broker, other, 2, "m");
    Way::Detach.go(&mut broker, &mut client, other);
    assert!(!Way::Detach.is_answered(&client));
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert_eq!(outcomes_of(&client), 1);
    assert!(Way::Detach.is_answered(&client));
}

/// All of it comes in one piece, and the answers come in this order.
#[test]
fn a_link_a_session_and_a_connection_that_end_together_wait_once() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let _keeper = keeper(&mut broker);
    let (mut client, session) = start(&mut broker, TransportKind::Tcp, "c");
    let link = client.sender(&mut broker, session, "kept/a");
    store.hold();
    client.send(&mut broker, link, 1, "m");
    let (engine, out) = (&mut client.engine, &mut client.out);
    engine.detach(link, true, None, out).expect("a link");
    client.flush(&mut broker);
    let both = [frame(0x17), frame(0x18)].concat();
    broker.send_on(client.peer, StreamId::FIRST, &both);
    broker.advance(config().network.shutdown_timeout_ms / 2);
    client.turn(&mut broker);
    let order = client.happened.iter().map(|one| match one {
        Happened::Detached { .. } => "detach",
        Happened::Ended(_) => "end",
        Happened::Closed(_) => "close",
        _ => "other",
    });
    assert_eq!(order.collect::<Vec<_>>(), ["detach", "end", "close"]);
}

/// A transport that is gone takes the answers with it, and not what its client has said.
#[test]
fn an_end_that_waits_is_done_when_its_connection_is_lost() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let _keeper = keeper(&mut broker);
    let (mut client, session) = start(&mut broker, TransportKind::Tcp, "c");
    let receiver = client.receiver(&mut broker, session, "mine", durable("other"), 10);
    let link = client.sender(&mut broker, session, "kept/a");
    store.hold();
    client.send(&mut broker, link, 1, "m");
    Way::DetachForGood.go(&mut broker, &mut client, receiver);
    assert_eq!(broker.sessions(0).0.len(), 2, "it waits");
    broker.cut(client.peer);
    store.sync(&mut broker);
    let (sessions, _) = broker.sessions(0);
    assert_eq!(sessions.len(), 1, "its subscription was closed");
}

/// A receiver that settles second is told that its outcome is kept, and forgets the delivery then.
#[test]
fn a_settled_answer_leaves_before_its_link_is_detached() {
    for way in WAYS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let (mut client, session) = start(&mut broker, TransportKind::Tcp, "c");
        let options = AttachOptions {
            rcv_settle_mode: ReceiverSettleMode::Second,
            source: Some(durable("kept/a")),
            target: Some(TargetArchetype::Target(Target::default())),
            ..AttachOptions::default()
        };
        let link = client.attach(&mut broker, session, "sub", Role::Receiver, &options);
        client.credit(&mut broker, link, 10);
        let (mut sender, of) = start(&mut broker, TransportKind::Tcp, "s");
        let target = sender.sender(&mut broker, of, "kept/a");
        sender.send(&mut broker, target, 1, "m");
        client.turn(&mut broker);
        let id = client.received[0].id;
        store.hold();
        let accepted = DeliveryState::ACCEPTED;
        client.dispose(&mut broker, session, (id, id), &accepted, false);
        way.go(&mut broker, &mut client, link);
        assert!(!way.is_answered(&client), "{way:?}");
        store.sync(&mut broker);
        client.turn(&mut broker);
        let is_settled = |one: &Happened| matches!(one, Happened::Disposed { settled: true, .. });
        let settled = client.happened.iter().position(is_settled);
        assert_eq!(settled, Some(0), "{way:?}");
        assert!(way.is_answered(&client), "{way:?}");
    }
}

/// A client that has discharged its transaction and closes hears whether it was done.
#[test]
fn the_outcome_of_a_discharge_leaves_before_the_answer_to_a_close() {
    for way in WAYS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let _keeper = keeper(&mut broker);
        let (mut client, session) = start(&mut broker, TransportKind::Tcp, "c");
        let coordinator = client.coordinator(&mut broker, session);
        let link = client.sender(&mut broker, session, "kept/a");
        let txn_id = client.declare(&mut broker, coordinator).expect("one");
        client.post(&mut broker, link, 2, &txn_id, "m");
        client.happened.clear();
        store.hold();
        client.discharge(&mut broker, coordinator, 3, &txn_id, false);
        way.go(&mut broker, &mut client, coordinator);
        assert!(!way.is_answered(&client), "{way:?}");
        store.sync(&mut broker);
        client.turn(&mut broker);
        assert_eq!(outcomes_of(&client), 1, "{way:?}");
        assert!(way.is_answered(&client), "{way:?}");
    }
}

/// The close comes on another stream than the messages, which wait for the answer to their link's attach.
#[test]
fn a_close_waits_for_what_waits_on_other_streams() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let mut keeper = keeper(&mut broker);
    let (mut client, session) = start(&mut broker, TransportKind::Quic, "c");
    let link = client.sender(&mut broker, session, "kept/a");
    store.hold();
    client.send(&mut broker, link, 1, "m");
    // This answer waits behind the outcome, and the message behind this answer.
    let options = AttachOptions {
        source: Some(Source::default()),
        target: Some(TargetArchetype::Target(Target::new("kept/b"))),
        ..AttachOptions::default()
    };
    let late = client.attach(&mut broker, session, "late", Role::Sender, &options);
    (client.engine.assume_credit(late, 1)).expect("a link");
    client.send(&mut broker, late, 2, "n");
    Way::Close.go(&mut broker, &mut client, link);
    assert!(!Way::Close.is_answered(&client));
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert!(
        !Way::Close.is_answered(&client),
        "the message has come behind the answer to its attach"
    );
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert!(Way::Close.is_answered(&client));
    keeper.turn(&mut broker);
    assert_eq!(keeper.texts(), ["m", "n"]);
}
