//! AMQP: deliveries that come exactly once, over links that are lost and over restarts.

use bytes::BytesMut;
use sterna_amqp::Event;
use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::{AttachOptions, OutgoingTransfer, Unsettled};
use sterna_amqp::messaging::{
    DeliveryState, MessageWriter, Outcome, Source, Target, TargetArchetype, TerminusDurability,
};
use sterna_amqp::performatives::{ReceiverSettleMode, Role};
use sterna_net::TransportKind;

use crate::amqp::durable;
use crate::amqp_client::{Client, Happened, Start, in_transaction};
use crate::fixture::Broker;
use crate::store::{Held, config, with_strict_rule};

/// A client on a shard, with a session.
fn enter(broker: &mut Broker, container: &str, shard: usize) -> (Client, SessionId) {
    let mut client = Client::start(broker, Start::new(container).on(shard));
    let session = client.begin(broker);
    (client, session)
}

/// A durable subscription to `kept/#`.
fn keeper(broker: &mut Broker) -> Client {
    let (mut keeper, session) = enter(broker, "keeper", 0);
    keeper.receiver(broker, session, "sub", durable("kept/#"), 1_000);
    keeper
}

/// A sender's link by the same name, on which deliveries come once.
fn once(
    client: &mut Client,
    broker: &mut Broker,
    session: SessionId,
    unsettled: &[Unsettled],
) -> LinkId {
    let options = AttachOptions {
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(Source::default()),
        target: Some(TargetArchetype::Target(Target {
            durable: TerminusDurability::UnsettledState,
            ..Target::new("kept/a")
        })),
        recover: true,
        unsettled,
        ..AttachOptions::default()
    };
    client.attach(broker, session, "once", Role::Sender, &options)
}

/// Ends the transport at the client alone; what was unsettled of each link.
fn lose(client: &mut Client) -> Vec<Unsettled> {
    client.engine.transport_closed();
    let mut left = Vec::new();
    while let Some(event) = client.engine.next_event() {
        if let Event::Detached { unsettled, .. } = event {
            left.extend(unsettled);
        }
    }
    left
}

/// What becomes of deliveries from before, by their tokens.
fn recovered(client: &Client) -> Vec<(u64, String)> {
    let mut recovered: Vec<_> = (client.recovered.iter())
        .map(|(_, delivery, recovery)| {
            let name = format!("{recovery:?}");
            let name = name.split('(').next().unwrap_or_default().to_owned();
            (delivery.token, name)
        })
        .collect();
    recovered.sort();
    recovered
}

/// A connection may live on at the broker while its client is back already.
#[test]
fn a_link_that_comes_back_takes_what_the_connection_before_has_not_done() {
    for shard in [0, 1] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 2);
        let mut keeper = keeper(&mut broker);
        let (mut old, session) = enter(&mut broker, "c", 0);
        let link = once(&mut old, &mut broker, session, &[]);
        store.hold();
        old.send(&mut broker, link, 1, "one");
        // The second is on its way when the client loses its connection.
        let mut message = BytesMut::new();
        MessageWriter::new(&mut message).data(b"two");
        let tag = 2_u64.to_be_bytes();
        let transfer = OutgoingTransfer::new(&tag, 2);
        (old.engine)
            .transfer(link, &transfer, &[&message], false, &mut old.out)
            .expect("credit");
        let late = old.out.take();
        let unsettled = lose(&mut old);
        assert_eq!(unsettled.len(), 2);

        let (mut new, session) = enter(&mut broker, "c", shard);
        once(&mut new, &mut broker, session, &unsettled);
        for (lane, bytes) in late {
            broker.send_on(old.peer, old.stream(lane), &bytes);
        }
        store.sync(&mut broker);
        new.turn(&mut broker);
        let expected = [(1, "Settle".to_owned()), (2, "Resend".to_owned())];
        assert_eq!(recovered(&new), expected, "shard {shard}");
        broker.cut(old.peer);
        keeper.turn(&mut broker);
        assert_eq!(keeper.texts(), ["one"], "shard {shard}");
    }
}

/// A link may go while its connection stays, and its acknowledgements wait.
#[test]
fn a_link_that_is_detached_while_its_acknowledgement_waits_tells_it_later() {
    for transport in [TransportKind::Tcp, TransportKind::Quic] {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let mut keeper = keeper(&mut broker);
        let mut client = Client::start(&mut broker, Start::new("c").over(transport));
        let session = client.begin(&mut broker);
        let link = once(&mut client, &mut broker, session, &[]);
        store.hold();
        client.send(&mut broker, link, 1, "one");
        client.detach(&mut broker, link, false);
        // It has waited for the store as long as it may.
        broker.advance(config().network.shutdown_timeout_ms / 2);
        client.turn(&mut broker);
        let left = client.happened.iter().find_map(|one| match one {
            Happened::Detached { unsettled, .. } => Some(unsettled.clone()),
            _ => None,
        });
        let left = left.expect("it is detached");
        assert_eq!(left.len(), 1);
        once(&mut client, &mut broker, session, &left);
        store.sync(&mut broker);
        client.turn(&mut broker);
        assert_eq!(recovered(&client), [(1, "Settle".to_owned())]);
        keeper.turn(&mut broker);
        assert_eq!(keeper.texts(), ["one"]);
    }
}

#[test]
fn a_restarted_broker_knows_what_it_took_and_forgets_what_is_settled() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 2);
    let _keeper = keeper(&mut broker);
    let (mut client, session) = enter(&mut broker, "c", 1);
    let link = once(&mut client, &mut broker, session, &[]);
    assert_eq!(
        client.answers[&link].durable,
        TerminusDurability::UnsettledState
    );
    client.send(&mut broker, link, 1, "one");
    assert_eq!(client.outcomes(), [(1, "accepted".to_owned())]);
    let records = |store: &Held| {
        let keys = store.memory.keys().into_iter();
        keys.filter(|key| key.ends_with(b"once\0\0\0\0\0\0\0\x01"))
            .count()
    };
    assert_eq!(records(&store), 1);
    let unsettled_first = store.memory.snapshot();
    (client.engine)
        .settle(session, (0, 0), None, &mut client.out)
        .expect("a session");
    client.turn(&mut broker);
    assert_eq!(records(&store), 0);
    // The client has not seen the outcome of the second.
    store.hold();
    client.send(&mut broker, link, 2, "two");
    assert_eq!(client.outcomes(), []);
    let before = store.memory.snapshot();
    let left = lose(&mut client);
    assert_eq!(left.len(), 1, "the first is settled by the client");
    drop(broker);

    // Nor has it sent it, if the broker was killed before.
    for (memory, fate, texts) in [
        (before, "Settle", &["one", "two"][..]),
        (unsettled_first, "Resend", &["one"]),
    ] {
        let store = Held::on(memory);
        let mut broker = store.broker(&config(), 2);
        let (mut client, session) = enter(&mut broker, "c", 0);
        once(&mut client, &mut broker, session, &left);
        assert_eq!(recovered(&client), [(2, fate.to_owned())]);
        let (mut keeper, session) = enter(&mut broker, "keeper", 0);
        keeper.receiver(&mut broker, session, "sub", durable("kept/#"), 10);
        assert_eq!(keeper.texts(), texts);
        assert_eq!(records(&store), 0, "what is settled is forgotten");
    }
}

/// A receiver's link by the same name, which settles second.
fn second(
    client: &mut Client,
    broker: &mut Broker,
    session: SessionId,
    unsettled: &[Unsettled],
) -> LinkId {
    let options = AttachOptions {
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(durable("kept/#")),
        target: Some(TargetArchetype::Target(Target::default())),
        recover: true,
        unsettled,
        ..AttachOptions::default()
    };
    let link = client.attach(broker, session, "sub", Role::Receiver, &options);
    client.credit(broker, link, 10);
    link
}

fn settled(client: &mut Client) -> usize {
    let before = client.happened.len();
    (client.happened).retain(|one| !matches!(one, Happened::Disposed { settled: true, .. }));
    before - client.happened.len()
}

#[test]
fn what_a_receiver_settles_second_is_kept_before_it_is_told() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let (mut receiver, session) = enter(&mut broker, "r", 0);
    let link = second(&mut receiver, &mut broker, session, &[]);
    let (mut sender, session) = enter(&mut broker, "s", 0);
    let to = sender.sender(&mut broker, session, "kept/a");
    for (token, text) in [(1, "one"), (2, "two"), (3, "three")] {
        sender.send(&mut broker, to, token, text);
    }
    receiver.turn(&mut broker);
    let ids: Vec<u32> = receiver.received.iter().map(|one| one.id).collect();
    assert_eq!(receiver.texts(), ["one", "two", "three"]);
    store.hold();
    let accepted = DeliveryState::ACCEPTED;
    let unkept = store.memory.snapshot();
    receiver.dispose(
        &mut broker,
        link.session,
        (ids[0], ids[0]),
        &accepted,
        false,
    );
    assert_eq!(settled(&mut receiver), 0, "it is not kept");
    let kept = store.memory.snapshot();
    store.sync(&mut broker);
    receiver.turn(&mut broker);
    assert_eq!(settled(&mut receiver), 1);
    store.hold();
    receiver.dispose(
        &mut broker,
        link.session,
        (ids[1], ids[1]),
        &accepted,
        false,
    );
    let left = lose(&mut receiver);
    assert_eq!(left.len(), 2, "the second is accepted, the third is not");
    drop(broker);

    // Whether the first was kept or not, and the second which never was: each is accepted once.
    for (memory, expected) in [(unkept, ["one", "three"]), (kept, ["", "three"])] {
        let store = Held::on(memory);
        let mut broker = store.broker(&config(), 1);
        let (mut receiver, session) = enter(&mut broker, "r", 0);
        let link = second(&mut receiver, &mut broker, session, &left);
        receiver.turn(&mut broker);
        let mut fates = recovered(&receiver);
        fates.dedup();
        assert!(
            fates.iter().any(|(_, fate)| fate == "Settled"),
            "the second stands: {fates:?}"
        );
        let again: Vec<_> = (receiver.received.iter())
            .filter(|one| !one.payload.is_empty())
            .map(crate::amqp_client::Received::text)
            .collect();
        let expected: Vec<_> = expected
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect();
        assert_eq!(again, expected, "what is not settled comes again");
        let ids: Vec<u32> = (receiver.received.iter())
            .filter(|one| !one.payload.is_empty())
            .map(|one| one.id)
            .collect();
        for id in ids {
            receiver.dispose(&mut broker, link.session, (id, id), &accepted, false);
        }
        assert_eq!(settled(&mut receiver), expected.len());
    }
}

/// A queue's message is nobody's again when its receiver goes, unless that has settled it.
#[test]
fn what_a_receiver_of_a_queue_settles_second_does_not_come_again() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 2);
    let (mut receiver, session) = enter(&mut broker, "r", 0);
    let options = AttachOptions {
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(Source::new("queue/q")),
        target: Some(TargetArchetype::Target(Target::default())),
        ..AttachOptions::default()
    };
    let link = receiver.attach(&mut broker, session, "sub", Role::Receiver, &options);
    receiver.credit(&mut broker, link, 10);
    let (mut sender, session) = enter(&mut broker, "s", 1);
    let to = sender.sender(&mut broker, session, "queue/q");
    sender.send(&mut broker, to, 1, "one");
    sender.send(&mut broker, to, 2, "two");
    receiver.turn(&mut broker);
    let first = receiver.received[0].id;
    store.hold();
    let accepted = DeliveryState::ACCEPTED;
    receiver.dispose(&mut broker, link.session, (first, first), &accepted, false);
    assert_eq!(settled(&mut receiver), 0);
    store.sync(&mut broker);
    receiver.turn(&mut broker);
    assert_eq!(settled(&mut receiver), 1);
    let crashed = store.memory.snapshot();
    drop(broker);
    // Also when the next process dies before it has written anything.
    for _ in 0..2 {
        let store = Held::on(crashed.snapshot());
        let mut broker = store.broker(&config(), 1);
        let (mut receiver, session) = enter(&mut broker, "r2", 0);
        let link = receiver.attach(&mut broker, session, "sub", Role::Receiver, &options);
        receiver.credit(&mut broker, link, 10);
        assert_eq!(receiver.texts(), ["two"]);
    }
}

/// A client whose frames are small tells what it has taken in several attaches.
#[test]
fn what_a_receiver_has_yet_to_tell_does_not_come_again() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let (mut receiver, session) = enter(&mut broker, "r", 0);
    let link = second(&mut receiver, &mut broker, session, &[]);
    let (mut sender, session) = enter(&mut broker, "s", 0);
    let to = sender.sender(&mut broker, session, "kept/a");
    for (token, text) in [(1, "one"), (2, "two"), (3, "three")] {
        sender.send(&mut broker, to, token, text);
    }
    receiver.turn(&mut broker);
    assert_eq!(receiver.texts(), ["one", "two", "three"]);
    let unkept = store.memory.snapshot();
    store.hold();
    let accepted = DeliveryState::ACCEPTED;
    receiver.dispose(&mut broker, link.session, (0, 2), &accepted, false);
    let left = lose(&mut receiver);
    assert_eq!(left.len(), 3);
    drop(broker);

    let store = Held::on(unkept);
    let mut broker = store.broker(&config(), 1);
    let (mut receiver, session) = enter(&mut broker, "r", 0);
    let options = AttachOptions {
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(durable("kept/#")),
        target: Some(TargetArchetype::Target(Target::default())),
        recover: true,
        unsettled: &left[..1],
        is_incomplete: true,
        ..AttachOptions::default()
    };
    let link = receiver.attach(&mut broker, session, "sub", Role::Receiver, &options);
    receiver.credit(&mut broker, link, 10);
    receiver.turn(&mut broker);
    let texts: Vec<_> = std::mem::take(&mut receiver.received);
    assert!(texts.iter().all(|one| one.settled), "{texts:?}");
    let detached = (receiver.happened.iter())
        .any(|one| matches!(one, Happened::Detached { closed: false, .. }));
    assert!(detached, "to tell the rest");
    second(&mut receiver, &mut broker, session, &left[1..]);
    let fates = recovered(&receiver);
    assert_eq!(
        fates.iter().filter(|(_, fate)| fate == "Settled").count(),
        3
    );
    assert_eq!(receiver.texts(), [""; 0]);
}

/// Its place in the log is another message's after a crash, and the client would tell that it has that one.
#[test]
fn what_a_receiver_knows_by_its_place_leaves_when_it_is_kept() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let (mut receiver, session) = enter(&mut broker, "r", 0);
    second(&mut receiver, &mut broker, session, &[]);
    let (mut other, session) = enter(&mut broker, "other", 0);
    other.receiver(&mut broker, session, "sub", durable("kept/#"), 10);
    let (mut sender, session) = enter(&mut broker, "s", 0);
    let to = sender.sender(&mut broker, session, "kept/a");
    store.hold();
    sender.send(&mut broker, to, 1, "one");
    receiver.turn(&mut broker);
    other.turn(&mut broker);
    assert_eq!(receiver.texts(), [""; 0]);
    assert_eq!(other.texts(), ["one"], "others do not wait");
    store.sync(&mut broker);
    receiver.turn(&mut broker);
    assert_eq!(receiver.texts(), ["one"]);
}

/// A rule may ask for more than the listener, also where the outcome is told on another link.
#[test]
fn an_outcome_is_told_again_when_the_disk_has_what_it_is_about() {
    let mut config = with_strict_rule();
    config.authorization.rules[0].topics = vec!["kept/a".to_owned()];
    let store = Held::new();
    let mut broker = store.broker(&config, 1);
    let _keeper = keeper(&mut broker);
    broker.listener = 1;
    let (mut client, session) = enter(&mut broker, "c", 0);
    let link = once(&mut client, &mut broker, session, &[]);
    store.hold();
    client.send(&mut broker, link, 1, "one");
    store.write(&mut broker);
    client.turn(&mut broker);
    assert_eq!(client.outcomes(), []);
    let left = lose(&mut client);
    broker.cut(client.peer);
    let (mut client, session) = enter(&mut broker, "c", 0);
    once(&mut client, &mut broker, session, &left);
    store.write(&mut broker);
    client.turn(&mut broker);
    assert_eq!(recovered(&client), []);
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert_eq!(recovered(&client), [(1, "Settle".to_owned())]);
}

/// After a power cut the delivery would come again, and its receiver has forgotten it.
#[test]
fn a_transaction_settles_second_when_the_disk_has_it() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    broker.listener = 1;
    let (mut receiver, session) = enter(&mut broker, "r", 0);
    let link = second(&mut receiver, &mut broker, session, &[]);
    let coordinator = receiver.coordinator(&mut broker, session);
    let (mut sender, session) = enter(&mut broker, "s", 0);
    let to = sender.sender(&mut broker, session, "kept/a");
    sender.send(&mut broker, to, 1, "one");
    receiver.turn(&mut broker);
    let id = receiver.received[0].id;
    let txn_id = (receiver.declare(&mut broker, coordinator)).expect("declared");
    let accepted = in_transaction(&txn_id, Some(Outcome::Accepted));
    receiver.dispose(&mut broker, link.session, (id, id), &accepted, false);
    store.hold();
    receiver.discharge(&mut broker, coordinator, 1, &txn_id, false);
    let is_settled = |receiver: &Client| {
        let is_it = |one: &Happened| matches!(one, Happened::Disposed { link: of, settled: true, .. } if *of == link);
        receiver.happened.iter().any(is_it)
    };
    store.write(&mut broker);
    receiver.turn(&mut broker);
    assert!(!is_settled(&receiver), "the kernel has it");
    store.sync(&mut broker);
    receiver.turn(&mut broker);
    assert!(is_settled(&receiver));
}
