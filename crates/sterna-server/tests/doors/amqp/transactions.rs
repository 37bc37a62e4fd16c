//! Transactions: posting and retirement, commit and rollback.

use sterna_amqp::connection::LinkId;
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{
    DeliveryState, Outcome, Source, Target, TargetArchetype, TerminusExpiryPolicy,
};
use sterna_amqp::performatives::Role;
use sterna_server::Policy;
use sterna_server::config::{ActionName, Config, Effect, Rule};

use crate::amqp_client::{Client, in_transaction};
use crate::fixture::Broker;

fn discharge(
    broker: &mut Broker,
    client: &mut Client,
    link: LinkId,
    txn_id: &[u8],
    fail: bool,
) -> String {
    client.discharge(broker, link, 1001, txn_id, fail);
    client.outcomes().pop().expect("an outcome").1
}

#[test]
fn what_is_posted_takes_effect_at_the_discharge_or_never() {
    for fail in [false, true] {
        let mut broker = Broker::new();
        let mut client = Client::connect(&mut broker, "c");
        let session = client.begin(&mut broker);
        client.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
        let sender = client.sender(&mut broker, session, "queue/q");
        let link = client.coordinator(&mut broker, session);
        let txn = client.declare(&mut broker, link).expect("declared");
        client.post(&mut broker, sender, 1, &txn, "one");
        client.post(&mut broker, sender, 1, &txn, "two");
        let posted = "transactional amqp:accepted:list".to_owned();
        assert_eq!(client.outcomes(), [(1, posted.clone()), (1, posted)]);
        assert!(client.texts().is_empty());
        let outcome = discharge(&mut broker, &mut client, link, &txn, fail);
        assert_eq!(outcome, "accepted");
        let expected: &[&str] = if fail { &[] } else { &["one", "two"] };
        assert_eq!(client.accept_all(&mut broker), expected);
        let outcome = discharge(&mut broker, &mut client, link, &txn, fail);
        assert_eq!(outcome, "rejected amqp:transaction:unknown-id");
    }
}

#[test]
fn what_is_posted_is_judged_again_at_the_discharge() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "r", Source::new("+/x"), 10);
    let link = client.coordinator(&mut broker, session);
    let txn = client.declare(&mut broker, link).expect("declared");
    for topic in ["open/x", "secret/x"] {
        let sender = client.sender(&mut broker, session, topic);
        client.post(&mut broker, sender, 1, &txn, topic);
    }
    client.outcomes();
    let mut config = Config::default();
    config.authorization.rules = vec![Rule {
        effect: Effect::Deny,
        actions: vec![ActionName::Publish],
        topics: vec!["secret/#".to_owned()],
        ..Rule::default()
    }];
    broker.apply(Policy::load(&config).expect("a policy"));
    let outcome = discharge(&mut broker, &mut client, link, &txn, false);
    assert_eq!(outcome, "rejected amqp:transaction:rollback");
    assert!(client.texts().is_empty(), "as a whole or not at all");
}

#[test]
fn what_is_retired_is_settled_at_the_discharge_or_comes_back() {
    for fail in [false, true] {
        for settled in [false, true] {
            let mut broker = Broker::new();
            let mut client = Client::connect(&mut broker, "c");
            let session = client.begin(&mut broker);
            let sender = client.sender(&mut broker, session, "queue/q");
            client.send(&mut broker, sender, 1, "one");
            let receiver = client.receiver(&mut broker, session, "r", Source::new("queue/q"), 1);
            let link = client.coordinator(&mut broker, session);
            let txn = client.declare(&mut broker, link).expect("declared");
            let id = client.received.pop().expect("the message").id;
            let state = in_transaction(&txn, Some(Outcome::Accepted));
            client.dispose(&mut broker, session, (id, id), &state, settled);
            discharge(&mut broker, &mut client, link, &txn, fail);
            if fail && !settled {
                // It is as before: the receiver has it.
                let released = DeliveryState::RELEASED;
                client.dispose(&mut broker, session, (id, id), &released, true);
            }
            client.credit(&mut broker, receiver, 1);
            let again = client.texts().len();
            assert_eq!(again, usize::from(fail), "fail {fail}, settled {settled}");
            let unsettled = client.engine.unsettled(session).1;
            assert_eq!(unsettled, usize::from(fail));
        }
    }
}

#[test]
fn a_transaction_ends_with_its_coordinator_and_its_connection() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let sender = client.sender(&mut broker, session, "queue/q");
    let link = client.coordinator(&mut broker, session);
    let txn = client.declare(&mut broker, link).expect("declared");
    client.post(&mut broker, sender, 1, &txn, "one");
    client.detach(&mut broker, link, true);
    let link = client.coordinator(&mut broker, session);
    let outcome = discharge(&mut broker, &mut client, link, &txn, false);
    assert_eq!(outcome, "rejected amqp:transaction:unknown-id");
    let txn = client.declare(&mut broker, link).expect("declared");
    client.post(&mut broker, sender, 1, &txn, "two");
    drop(client.cut(&mut broker));
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "r", Source::new("queue/q"), 10);
    assert!(client.texts().is_empty());
}

/// A client that goes on with a transaction of a lost connection is told, and does not act on another.
#[test]
fn a_transaction_has_a_name_that_no_other_connection_has() {
    let mut broker = Broker::new();
    let mut names = Vec::new();
    for container in ["one", "two"] {
        let mut client = Client::connect(&mut broker, container);
        let session = client.begin(&mut broker);
        let link = client.coordinator(&mut broker, session);
        for _ in 0..2 {
            names.push(client.declare(&mut broker, link).expect("declared"));
        }
        if let [known, _, ..] = &names[..]
            && container == "two"
        {
            let outcome = discharge(&mut broker, &mut client, link, known, false);
            assert_eq!(outcome, "rejected amqp:transaction:unknown-id");
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 4);
}

#[test]
fn what_was_retired_in_a_lost_transaction_is_recovered_undecided() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let source = Source {
        expiry_policy: TerminusExpiryPolicy::Never,
        ..Source::new("a")
    };
    let receiver = client.receiver(&mut broker, session, "r", source.clone(), 1);
    let sender = client.sender(&mut broker, session, "a");
    client.send(&mut broker, sender, 1, "one");
    let link = client.coordinator(&mut broker, session);
    let txn = client.declare(&mut broker, link).expect("declared");
    let id = client.received.pop().expect("the message").id;
    let state = in_transaction(&txn, Some(Outcome::Accepted));
    client.dispose(&mut broker, session, (id, id), &state, false);
    let left = client.cut(&mut broker);
    let unsettled = left.into_iter().find(|(id, _)| *id == receiver);
    let (_, unsettled) = unsettled.expect("the receiver");
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let options = AttachOptions {
        source: Some(source),
        target: Some(TargetArchetype::Target(Target::default())),
        unsettled: &unsettled,
        recover: true,
        ..AttachOptions::default()
    };
    let receiver = client.attach(&mut broker, session, "r", Role::Receiver, &options);
    client.credit(&mut broker, receiver, 1);
    assert!(client.received.iter().any(|one| one.resumed));
    assert_eq!(client.accept_all(&mut broker), ["one"]);
}

/// A transaction takes effect as a whole or not at all: AMQP 1.0, part 4, section 4.4.
#[test]
fn a_transaction_whose_retired_delivery_went_back_has_no_effect() {
    for settled in [false, true] {
        for is_by_rules in [false, true] {
            let mut broker = Broker::new();
            let mut client = Client::connect(&mut broker, "c");
            let session = client.begin(&mut broker);
            let from = client.sender(&mut broker, session, "queue/from");
            client.send(&mut broker, from, 1, "m");
            client.outcomes();
            let source = || Source::new("queue/from");
            let receiver = client.receiver(&mut broker, session, "r", source(), 1);
            let to = client.sender(&mut broker, session, "queue/to");
            let link = client.coordinator(&mut broker, session);
            let txn = client.declare(&mut broker, link).expect("declared");
            let id = client.received.pop().expect("the message").id;
            let state = in_transaction(&txn, Some(Outcome::Accepted));
            client.dispose(&mut broker, session, (id, id), &state, settled);
            client.post(&mut broker, to, 2, &txn, "n");
            client.outcomes();
            if is_by_rules {
                let mut config = Config::default();
                config.authorization.rules = vec![Rule {
                    effect: Effect::Deny,
                    actions: vec![ActionName::Subscribe],
                    topics: vec!["queue/from".to_owned()],
                    ..Rule::default()
                }];
                broker.apply(Policy::load(&config).expect("a policy"));
                client.turn(&mut broker);
                broker.apply(Policy::load(&Config::default()).expect("a policy"));
            } else {
                client.detach(&mut broker, receiver, false);
                client.receiver(&mut broker, session, "r", source(), 0);
            }
            let outcome = discharge(&mut broker, &mut client, link, &txn, false);
            // A right that comes back has taken no delivery from its receiver.
            let (expected, to, from) = if is_by_rules {
                ("accepted", Some("n"), None)
            } else {
                ("rejected amqp:transaction:rollback", None, Some("m"))
            };
            let case = format!("settled {settled}, by rules {is_by_rules}");
            assert_eq!(outcome, expected, "{case}");
            client.receiver(&mut broker, session, "to", Source::new("queue/to"), 10);
            assert_eq!(client.texts(), Vec::from_iter(to), "{case}");
            client.receiver(&mut broker, session, "from", source(), 10);
            assert_eq!(client.texts(), Vec::from_iter(from), "{case}");
        }
    }
}

#[test]
fn transactions_are_limited() {
    let mut config = Config::default();
    config.amqp.maximum_transactions = 1;
    config.amqp.maximum_transaction_deliveries = 2;
    config.amqp.maximum_transaction_bytes = 100;
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    let sender = client.sender(&mut broker, session, "a");
    let link = client.coordinator(&mut broker, session);
    let txn = client.declare(&mut broker, link).expect("declared");
    assert_eq!(client.declare(&mut broker, link), None, "one at a time");
    client.happened.clear();
    client.post(&mut broker, sender, 1, &txn, &"x".repeat(200));
    let refused = (1, "rejected amqp:resource-limit-exceeded".to_owned());
    assert_eq!(client.outcomes()[0], refused, "too many bytes");
    for _ in 0..2 {
        client.post(&mut broker, sender, 1, &txn, "x");
    }
    client.outcomes();
    client.post(&mut broker, sender, 1, &txn, "x");
    assert_eq!(client.outcomes(), [refused], "too many messages");
    client.post(&mut broker, sender, 1, b"none", "x");
    let condition = client.condition();
    assert_eq!(condition.as_deref(), Some("amqp:transaction:unknown-id"));
}

#[test]
fn a_transaction_for_which_a_queue_has_no_room_is_rolled_back_as_a_whole() {
    let limits = sterna_broker::Limits {
        group_queued_messages: 2,
        ..sterna_broker::Limits::default()
    };
    let config = Config::default();
    let mut broker = Broker::restored(&config, 1, limits, || Box::new(sterna_broker::NoStore));
    let mut client = Client::connect(&mut broker, "c");
    let session = client.begin(&mut broker);
    client.receiver(&mut broker, session, "r", Source::new("a"), 10);
    let topic = client.sender(&mut broker, session, "a");
    let queue = client.sender(&mut broker, session, "queue/q");
    let link = client.coordinator(&mut broker, session);
    for (messages, outcome) in [(3, "rejected amqp:transaction:rollback"), (2, "accepted")] {
        let txn = client.declare(&mut broker, link).expect("declared");
        client.post(&mut broker, topic, 1, &txn, "beside");
        for _ in 0..messages {
            client.post(&mut broker, queue, 1, &txn, "m");
        }
        client.outcomes();
        assert_eq!(
            discharge(&mut broker, &mut client, link, &txn, false),
            outcome
        );
        let beside = client.accept_all(&mut broker).len();
        assert_eq!(beside, usize::from(outcome == "accepted"));
    }
    client.receiver(&mut broker, session, "q", Source::new("queue/q"), 10);
    assert_eq!(client.accept_all(&mut broker), ["m", "m"]);
}
