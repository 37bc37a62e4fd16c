//! AMQP: what is told when.

use sterna_amqp::connection::LinkId;
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{
    Outcome, Source, Target, TargetArchetype, TerminusDurability, TerminusExpiryPolicy,
};
use sterna_amqp::performatives::{ReceiverSettleMode, Role};
use sterna_amqp::transactions::Coordinator;
use sterna_amqp::types::Multiple;
use sterna_net::TransportKind;

use crate::amqp_client::{Client, Start, in_transaction};
use crate::fixture::Broker;
use crate::store::{Held, config, with_strict_rule};

const TRANSPORTS: [TransportKind; 2] = [TransportKind::Tcp, TransportKind::Quic];

/// A source that stays when its client goes.
pub(crate) fn durable(address: &str) -> Source<'_> {
    Source {
        durable: TerminusDurability::UnsettledState,
        expiry_policy: TerminusExpiryPolicy::Never,
        ..Source::new(address)
    }
}

fn start(broker: &mut Broker, transport: TransportKind, container: &str) -> Client {
    Client::start(broker, Start::new(container).over(transport))
}

/// A subscription that is kept.
fn keeper(broker: &mut Broker, transport: TransportKind) -> Client {
    let mut keeper = start(broker, transport, "keeper");
    let session = keeper.begin(broker);
    keeper.receiver(broker, session, "sub", durable("kept/#"), 1_000);
    keeper
}

fn accepted(tokens: std::ops::RangeInclusive<u64>) -> Vec<(u64, String)> {
    tokens.map(|token| (token, "accepted".to_owned())).collect()
}

#[test]
fn deliveries_are_accepted_when_they_are_kept() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let mut keeper = keeper(&mut broker, transport);
        let mut client = start(&mut broker, transport, "c");
        let session = client.begin(&mut broker);
        let kept = client.sender(&mut broker, session, "kept/a");
        let other = client.sender(&mut broker, session, "other");
        store.hold();
        client.send(&mut broker, other, 1, "nobody keeps it");
        assert_eq!(client.outcomes(), accepted(1..=1));
        for token in 2..=4 {
            client.send(&mut broker, kept, token, "m");
        }
        client.send(&mut broker, other, 5, "behind them");
        assert_eq!(client.outcomes(), []);
        keeper.turn(&mut broker);
        assert_eq!(keeper.texts().len(), 3, "live readers do not wait");
        store.sync(&mut broker);
        client.turn(&mut broker);
        assert_eq!(client.outcomes(), accepted(2..=5), "{transport:?}");
    }
}

/// A channel is used again. Answers to the session before would name the deliveries and links of the new one.
#[test]
fn answers_that_wait_end_with_their_session() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let _keeper = keeper(&mut broker, TransportKind::Tcp);
    let mut client = start(&mut broker, TransportKind::Tcp, "c");
    let session = client.begin(&mut broker);
    let link = client.sender(&mut broker, session, "kept/a");
    store.hold();
    client.send(&mut broker, link, 1, "m");
    (client.engine.end(session, None, &mut client.out)).expect("a session");
    client.flush(&mut broker);
    // It has waited for them as long as it may.
    broker.advance(config().network.shutdown_timeout_ms / 2);
    client.turn(&mut broker);
    let session = client.begin(&mut broker);
    let link = client.sender(&mut broker, session, "other");
    assert!(
        client.engine.credit(link) > 0,
        "nothing is before its attach"
    );
    store.sync(&mut broker);
    client.turn(&mut broker);
    assert_eq!((client.outcomes(), client.condition()), (vec![], None));
}

#[test]
fn a_stalled_store_holds_credit_back_and_gives_it_again() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut config = config();
        config.amqp.link_credit = 4;
        config.amqp.maximum_unsettled_deliveries = 4;
        let mut broker = store.broker(&config, 1);
        let _keeper = keeper(&mut broker, transport);
        let mut client = start(&mut broker, transport, "c");
        let session = client.begin(&mut broker);
        let link = client.sender(&mut broker, session, "kept/a");
        store.hold();
        for token in 1..=4 {
            client.send(&mut broker, link, token, "m");
        }
        assert_eq!(client.engine.credit(link), 0);
        // A sign of life of the client is enough to live on.
        for _ in 0..10 {
            broker.advance(100_000);
            if transport == TransportKind::Tcp {
                broker.send(client.peer, b"\0\0\0\x08\x02\0\0\0");
            }
            client.turn(&mut broker);
        }
        assert!(!broker.is_closed(client.peer));
        store.sync(&mut broker);
        client.turn(&mut broker);
        assert_eq!(client.outcomes(), accepted(1..=4));
        assert_eq!(client.engine.credit(link), 4, "{transport:?}");
        client.send(&mut broker, link, 5, "m");
        store.sync(&mut broker);
        client.turn(&mut broker);
        assert_eq!(client.outcomes(), accepted(5..=5));
    }
}

#[test]
fn settled_deliveries_pace_their_sender() {
    let store = Held::new();
    let mut config = config();
    config.store.maximum_waiting_acknowledgements = 2;
    let mut broker = store.broker(&config, 1);
    let _keeper = keeper(&mut broker, TransportKind::Tcp);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let link = client.sender(&mut broker, session, "queue/q");
    store.hold();
    client.send_settled(&mut broker, link, "m");
    assert!(!broker.wires[0].paused.contains(&client.peer.id));
    client.send_settled(&mut broker, link, "m");
    assert!(broker.wires[0].paused.contains(&client.peer.id));
    // The silence is the broker's, for longer than twice the idle time-out.
    broker.advance(500_000);
    client.turn(&mut broker);
    assert!(!broker.is_closed(client.peer));
    store.sync(&mut broker);
    assert!(!broker.wires[0].paused.contains(&client.peer.id));
    broker.advance(121_000);
    assert!(
        broker.is_closed(client.peer),
        "from here on it is the client's"
    );
}

#[test]
fn a_broker_that_stops_reads_no_sender_again() {
    let store = Held::new();
    let mut config = config();
    config.store.maximum_waiting_acknowledgements = 2;
    let mut broker = store.broker(&config, 1);
    let _keeper = keeper(&mut broker, TransportKind::Tcp);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let link = client.sender(&mut broker, session, "queue/q");
    store.hold();
    client.send_settled(&mut broker, link, "m");
    let one = store.memory.appends();
    client.send_settled(&mut broker, link, "m");
    broker.stop();
    store.sync_up_to(&mut broker, one);
    assert!(!broker.finished() && broker.wires[0].paused.contains(&client.peer.id));
    store.sync(&mut broker);
    assert!(broker.finished());
}

/// AMQP 1.0, part 3, section 3.5.5.
#[test]
fn a_terminus_is_kept_before_it_is_attached() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let mut client = start(&mut broker, transport, "c");
        let session = client.begin(&mut broker);
        store.hold();
        let passing = client.receiver(&mut broker, session, "p", Source::new("kept/a"), 10);
        assert_eq!(client.answers[&passing].durable, TerminusDurability::None);
        let lasting = client.receiver(&mut broker, session, "sub", durable("kept/#"), 10);
        assert!(!client.answers.contains_key(&lasting));
        let mut sender = start(&mut broker, transport, "s");
        let session = sender.begin(&mut broker);
        let link = sender.sender(&mut broker, session, "kept/a");
        sender.send(&mut broker, link, 1, "m");
        client.turn(&mut broker);
        let came = |client: &mut Client, of: LinkId| {
            let all = std::mem::take(&mut client.received);
            all.iter().filter(|one| one.link == of).count()
        };
        assert_eq!(came(&mut client, lasting), 0);
        store.sync(&mut broker);
        client.turn(&mut broker);
        // What it is and how it is set up stays, but not how far deliveries are.
        let answer = &client.answers[&lasting];
        assert_eq!(answer.durable, TerminusDurability::Configuration);
        client.credit(&mut broker, lasting, 10);
        assert_eq!(came(&mut client, lasting), 1, "{transport:?}");
        sender.turn(&mut broker);
        assert_eq!(sender.outcomes(), accepted(1..=1));
    }
}

#[test]
fn a_link_that_is_detached_or_stolen_while_its_attach_waits_is_not_attached() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let mut first = Client::connect(&mut broker, "c");
    let session = first.begin(&mut broker);
    store.hold();
    let stolen = first.receiver(&mut broker, session, "sub", durable("kept/#"), 10);
    let mut second = Client::connect(&mut broker, "c");
    let session = second.begin(&mut broker);
    let link = second.receiver(&mut broker, session, "sub", durable("kept/#"), 10);
    store.sync(&mut broker);
    first.turn(&mut broker);
    second.turn(&mut broker);
    assert!(
        first
            .answers
            .get(&stolen)
            .is_none_or(|answer| answer.refused)
    );
    assert!(!second.answers[&link].refused);
    // A connection that is cut with an attach that waits leaves nothing behind but the session.
    store.hold();
    let mut third = Client::connect(&mut broker, "d");
    let session = third.begin(&mut broker);
    third.receiver(&mut broker, session, "sub", durable("kept/#"), 10);
    broker.cut(third.peer);
    store.sync(&mut broker);
    let (sessions, _) = broker.sessions(0);
    let connected = sessions.iter().filter(|info| info.consumer.is_some());
    assert_eq!(connected.count(), 1);
}

fn coordinator(broker: &mut Broker, client: &mut Client) -> LinkId {
    let session = client.begin(broker);
    client.coordinator(broker, session)
}

#[test]
fn a_transaction_is_told_when_it_is_kept() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let mut keeper = keeper(&mut broker, transport);
        let mut client = start(&mut broker, transport, "c");
        let coordinator = coordinator(&mut broker, &mut client);
        let session = client.begin(&mut broker);
        let link = client.sender(&mut broker, session, "kept/a");
        store.hold();
        let declared = client.declare(&mut broker, coordinator);
        let txn_id = declared.expect("nothing of it is kept");
        client.post(&mut broker, link, 2, &txn_id, "m");
        assert_eq!(client.outcomes().len(), 1, "nor of what is posted");
        client.discharge(&mut broker, coordinator, 3, &txn_id, false);
        assert_eq!(client.outcomes(), []);
        keeper.turn(&mut broker);
        assert_eq!(keeper.texts(), ["m"]);
        store.sync(&mut broker);
        client.turn(&mut broker);
        assert_eq!(client.outcomes(), accepted(3..=3), "{transport:?}");
    }
}

/// A transaction waits as the strictest of its messages asks.
#[test]
fn a_rule_may_ask_for_more_than_a_listener() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&with_strict_rule(), 1);
        let _keeper = keeper(&mut broker, transport);
        broker.listener = 2;
        let mut client = start(&mut broker, transport, "c");
        let coordinator = coordinator(&mut broker, &mut client);
        let session = client.begin(&mut broker);
        let loose = client.sender(&mut broker, session, "kept/a");
        let strict = client.sender(&mut broker, session, "kept/strict/a");
        store.hold();
        client.send(&mut broker, loose, 1, "m");
        assert_eq!(client.outcomes(), accepted(1..=1));
        client.send(&mut broker, strict, 2, "m");
        store.write(&mut broker);
        client.turn(&mut broker);
        assert_eq!(client.outcomes(), []);
        store.sync(&mut broker);
        client.turn(&mut broker);
        assert_eq!(client.outcomes(), accepted(2..=2), "{transport:?}");

        store.hold();
        let declared = client.declare(&mut broker, coordinator);
        let txn_id = declared.expect("nothing of it is kept");
        for (token, link) in [(4, strict), (5, loose)] {
            client.post(&mut broker, link, token, &txn_id, "m");
        }
        assert_eq!(client.outcomes().len(), 2, "nothing of them is kept");
        client.discharge(&mut broker, coordinator, 6, &txn_id, false);
        store.write(&mut broker);
        client.turn(&mut broker);
        assert_eq!(client.outcomes(), []);
        store.sync(&mut broker);
        client.turn(&mut broker);
        assert_eq!(client.outcomes(), accepted(6..=6), "{transport:?}");
    }
}

/// What waits in a queue, read by a client that accepts it.
fn take_all(broker: &mut Broker, queue: &str) -> Vec<String> {
    let mut client = Client::connect(broker, queue);
    let session = client.begin(broker);
    client.receiver(broker, session, "in", Source::new(queue), 100);
    client.accept_all(broker)
}

/// A process may die between any two appends. What a transaction takes from a queue and what it posts is kept together,
/// or neither: otherwise what was taken would come again, and be posted again.
#[test]
fn what_a_transaction_takes_and_posts_is_kept_as_a_whole() {
    for (target, appends) in ["queue/out", "nobody"]
        .map(|to| (0..4).map(move |n| (to, n)))
        .into_iter()
        .flatten()
    {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let mut client = Client::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        let to_queue = client.sender(&mut broker, session, "queue/in");
        client.receiver(&mut broker, session, "in", Source::new("queue/in"), 10);
        for (token, text) in [(1, "one"), (2, "two"), (3, "stays")] {
            client.send(&mut broker, to_queue, token, text);
        }
        let link = client.sender(&mut broker, session, target);
        let coordinator = client.coordinator(&mut broker, session);
        let txn_id = client.declare(&mut broker, coordinator).expect("declared");
        let ids: Vec<u32> = client.received.drain(..).map(|one| one.id).collect();
        let state = in_transaction(&txn_id, Some(Outcome::Accepted));
        client.dispose(&mut broker, session, (ids[0], ids[1]), &state, false);
        client.post(&mut broker, link, 4, &txn_id, "both");
        client.outcomes();
        store.memory.die_after(appends);
        client.discharge(&mut broker, coordinator, 5, &txn_id, false);
        assert_eq!(client.outcomes().last(), accepted(5..=5).last());

        // Some time passes here in no broker: nothing of what it would write later is kept.
        drop(broker);
        let mut broker = Held::on(store.memory.snapshot()).broker(&config(), 1);
        let (left, posted) = (
            take_all(&mut broker, "queue/in"),
            take_all(&mut broker, "queue/out"),
        );
        if appends == 0 {
            assert_eq!(
                (&left[..], &posted[..]),
                (&["one", "two", "stays"].map(String::from)[..], &[][..])
            );
        } else {
            assert_eq!(left, ["stays"], "{target} {appends}");
            assert_eq!(
                posted.len(),
                usize::from(target == "queue/out"),
                "{target} {appends}"
            );
        }
    }
}

/// A delivery that was published and not accepted when its connection was lost is not published again.
#[test]
fn a_link_recovers_deliveries_whose_outcome_was_not_told() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 1);
    let mut keeper = keeper(&mut broker, TransportKind::Tcp);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let options = |unsettled| AttachOptions {
        rcv_settle_mode: ReceiverSettleMode::Second,
        source: Some(Source::default()),
        target: Some(TargetArchetype::Target(Target::new("kept/a"))),
        recover: true,
        unsettled,
        ..AttachOptions::default()
    };
    let link = client.attach(&mut broker, session, "once", Role::Sender, &options(&[]));
    store.hold();
    client.send(&mut broker, link, 1, "m");
    assert_eq!(client.outcomes(), []);
    let left = client.cut(&mut broker);
    let (_, unsettled) = &left[0];
    assert_eq!(unsettled.len(), 1);
    let mut again = Client::connect(&mut broker, "c");
    let session = again.begin(&mut broker);
    let link = again.attach(
        &mut broker,
        session,
        "once",
        Role::Sender,
        &options(unsettled),
    );
    assert!(
        !again.answers.contains_key(&link),
        "it would tell the outcome"
    );
    store.sync(&mut broker);
    again.turn(&mut broker);
    let recovered = again
        .recovered
        .iter()
        .map(|(_, _, recovery)| format!("{recovery:?}"));
    let recovered: Vec<_> = recovered.collect();
    assert!(recovered[0].starts_with("Settle("), "{recovered:?}");
    keeper.turn(&mut broker);
    assert_eq!(keeper.texts(), ["m"]);
}

/// AMQP 1.0, part 2, section 2.6.13, and part 4, section 4.3: the request to the coordinator is a delivery, so that its
/// outcome is recovered as that of any other.
#[test]
fn a_commit_whose_answer_was_lost_is_told_when_its_link_comes_back() {
    for (mode, shard) in [
        (ReceiverSettleMode::First, 0),
        (ReceiverSettleMode::First, 1),
        (ReceiverSettleMode::Second, 0),
    ] {
        let case = format!("{mode:?}, shard {shard}");
        let store = Held::new();
        let mut broker = store.broker(&config(), 2);
        let mut keeper = keeper(&mut broker, TransportKind::Tcp);
        let mut client = Client::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        let options = |unsettled| AttachOptions {
            rcv_settle_mode: mode,
            source: Some(Source::default()),
            target: Some(TargetArchetype::Coordinator(Coordinator {
                capabilities: Multiple::None,
            })),
            recover: true,
            unsettled,
            ..AttachOptions::default()
        };
        let link = client.attach(&mut broker, session, "txn", Role::Sender, &options(&[]));
        let sender = client.sender(&mut broker, session, "kept/a");
        let txn_id = client.declare(&mut broker, link).expect("a transaction");
        client.post(&mut broker, sender, 2, &txn_id, "m");
        store.hold();
        client.discharge(&mut broker, link, 3, &txn_id, false);
        let left = client.cut(&mut broker);
        let (_, unsettled) = (left.iter().find(|(of, _)| *of == link)).expect("the link");
        let unsettled: Vec<_> = (unsettled.iter())
            .filter(|delivery| delivery.token == 3)
            .cloned()
            .collect();
        assert_eq!(unsettled.len(), 1, "{case}");
        let mut again = Client::start(&mut broker, Start::new("c").on(shard));
        let session = again.begin(&mut broker);
        let attach = options(&unsettled);
        let link = again.attach(&mut broker, session, "txn", Role::Sender, &attach);
        let is_told = again.answers.contains_key(&link);
        assert!(!is_told, "{case}: it would tell the outcome");
        store.sync(&mut broker);
        again.turn(&mut broker);
        let recovered: Vec<_> = (again.recovered.iter())
            .map(|(_, _, recovery)| format!("{recovery:?}"))
            .collect();
        assert!(recovered[0].contains("Accepted"), "{case}: {recovered:?}");
        // Nothing takes effect twice.
        again.discharge(&mut broker, link, 4, &txn_id, false);
        assert!(again.outcomes()[0].1.contains("unknown-id"), "{case}");
        keeper.turn(&mut broker);
        assert_eq!(keeper.texts(), ["m"], "{case}");
    }
}

#[test]
fn a_full_store_refuses_transfers() {
    for transport in TRANSPORTS {
        let store = Held::new();
        let mut broker = store.broker(&config(), 1);
        let mut keeper = keeper(&mut broker, transport);
        let mut client = start(&mut broker, transport, "c");
        let session = client.begin(&mut broker);
        let link = client.sender(&mut broker, session, "kept/a");
        store.memory.set_full(true);
        client.send(&mut broker, link, 1, "m");
        let refused = "rejected amqp:resource-limit-exceeded".to_owned();
        assert_eq!(client.outcomes(), [(1, refused)]);
        store.memory.set_full(false);
        client.send(&mut broker, link, 2, "n");
        assert_eq!(client.outcomes(), accepted(2..=2));
        keeper.turn(&mut broker);
        assert_eq!(keeper.texts(), ["n"], "{transport:?}");
    }
}
