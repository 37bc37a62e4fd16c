//! Nodes that are made for links: how long they last (part 3, sections 3.5.9 to 3.5.13).

use sterna_amqp::connection::{LinkId, SessionId};
use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{
    LifetimePolicy, Source, Target, TargetArchetype, TerminusExpiryPolicy, capability,
};
use sterna_amqp::performatives::{Attach, Role};
use sterna_amqp::types::{Composite as _, Encoded, Map, MapWriter, Multiple, Symbol, Value};
use sterna_server::config::Config;

use crate::amqp_client::{Client, Happened, message_to};
use crate::fixture::Broker;

/// The end of a link at which a node is made, and the kind of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Made {
    by: Role,
    is_queue: bool,
}

impl Made {
    const fn by(by: Role, is_queue: bool) -> Self {
        Self { by, is_queue }
    }
}

const MADE: [Made; 4] = [
    Made::by(Role::Receiver, false),
    Made::by(Role::Receiver, true),
    Made::by(Role::Sender, false),
    Made::by(Role::Sender, true),
];

/// How the link that made a node ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Closed,
    /// With expiry policy `link-detach`.
    Detached,
    SessionEnded,
    ConnectionClosed,
    ConnectionLost,
}

const WAYS: [Way; 5] = [
    Way::Closed,
    Way::Detached,
    Way::SessionEnded,
    Way::ConnectionClosed,
    Way::ConnectionLost,
];

fn properties(policy: Option<LifetimePolicy>) -> Encoded {
    Encoded::build(|out| {
        let mut map = MapWriter::new(out);
        if let Some(policy) = policy {
            let entry = map.entry(&Value::Symbol(LifetimePolicy::PROPERTY));
            entry.extend_from_slice(policy.encoded().bytes());
        }
        map.finish();
    })
}

fn map(encoded: &Encoded) -> Option<Map<'_>> {
    match encoded.value() {
        Value::Map(map) => Some(map),
        _ => None,
    }
}

/// Attaches a link that asks for a node. Returns its address, if it got one.
fn make(
    broker: &mut Broker,
    (client, session): (&mut Client, SessionId),
    (name, made): (&str, Made),
    policy: Option<LifetimePolicy>,
    expiry_policy: TerminusExpiryPolicy,
) -> (LinkId, Option<String>) {
    let properties = properties(policy);
    let kind = if made.is_queue {
        capability::TEMPORARY_QUEUE
    } else {
        capability::TEMPORARY_TOPIC
    };
    let (dynamic, capabilities) = (true, Multiple::One(Symbol(kind)));
    let dynamic_node_properties = map(&properties);
    let options = match made.by {
        Role::Receiver => AttachOptions {
            source: Some(Source {
                dynamic,
                capabilities,
                dynamic_node_properties,
                expiry_policy,
                ..Source::default()
            }),
            target: Some(TargetArchetype::Target(Target::default())),
            ..AttachOptions::default()
        },
        Role::Sender => AttachOptions {
            source: Some(Source::default()),
            target: Some(TargetArchetype::Target(Target {
                dynamic,
                capabilities,
                dynamic_node_properties,
                expiry_policy,
                ..Target::default()
            })),
            ..AttachOptions::default()
        },
    };
    let link = client.attach(broker, session, name, made.by, &options);
    let answer = client.answers.get(&link);
    let address = answer.and_then(|answer| answer.address.clone());
    (link, address)
}

fn enter(broker: &mut Broker, container: &str) -> (Client, SessionId) {
    let mut client = Client::connect(broker, container);
    let session = client.begin(broker);
    (client, session)
}

/// Whether a new client finds a node, at both ends of a link. An absent one is `amqp:not-found`.
fn is_there(broker: &mut Broker, address: &str) -> bool {
    let (mut client, session) = enter(broker, "looker");
    let mut found = Vec::new();
    for role in [Role::Sender, Role::Receiver] {
        let link = match role {
            Role::Sender => client.sender(broker, session, address),
            Role::Receiver => client.receiver(broker, session, "look", Source::new(address), 0),
        };
        let is_refused = client.answers[&link].refused;
        if is_refused {
            assert_eq!(client.condition().as_deref(), Some("amqp:not-found"));
        }
        found.push(!is_refused);
    }
    assert_eq!(found[0], found[1], "both ends see the same node");
    client.cut(broker);
    found[0]
}

impl Way {
    fn go(self, broker: &mut Broker, mut client: Client, link: LinkId) -> Option<Client> {
        match self {
            Self::Closed => client.detach(broker, link, true),
            Self::Detached => client.detach(broker, link, false),
            Self::SessionEnded => {
                let (engine, out) = (&mut client.engine, &mut client.out);
                engine.end(link.session, None, out).expect("a session");
                client.turn(broker);
            }
            Self::ConnectionClosed => {
                let (engine, out) = (&mut client.engine, &mut client.out);
                engine.close(None, out).expect("a connection");
                client.turn(broker);
            }
            Self::ConnectionLost => {
                client.cut(broker);
                return None;
            }
        }
        Some(client)
    }

    const fn expiry(self) -> TerminusExpiryPolicy {
        match self {
            Self::Detached => TerminusExpiryPolicy::LinkDetach,
            // It is answered with what is done: the connection is the longest that a node's link lasts.
            Self::ConnectionClosed | Self::ConnectionLost => TerminusExpiryPolicy::Never,
            Self::Closed | Self::SessionEnded => TerminusExpiryPolicy::SessionEnd,
        }
    }
}

#[test]
fn a_node_goes_with_the_link_that_made_it() {
    for made in MADE {
        for way in WAYS {
            for policy in [None, Some(LifetimePolicy::DeleteOnClose)] {
                let at = (made, way, policy);
                let mut broker = Broker::with(&Config::default(), 2);
                let (mut client, session) = enter(&mut broker, "c");
                let place = (&mut client, session);
                let (link, address) = make(&mut broker, place, ("n", made), policy, way.expiry());
                let address = address.expect("an address");
                assert!(is_there(&mut broker, &address), "{at:?}");
                let (mut other, of) = enter(&mut broker, "other");
                let sender = other.anonymous_sender(&mut broker, of);
                let message = message_to(&address, "m");
                other.send_message(&mut broker, sender, 1, &message, false, None);
                assert_eq!(other.outcomes(), [(1, "accepted".to_owned())], "{at:?}");
                let _left = way.go(&mut broker, client, link);
                assert!(!is_there(&mut broker, &address), "{at:?}");
                broker.advance(0);
                other.send_message(&mut broker, sender, 2, &message, false, None);
                let refused = (2, "rejected amqp:not-found".to_owned());
                assert_eq!(other.outcomes(), [refused], "{at:?}");
                assert_eq!(broker.stored_messages(), 0, "{at:?}");
                other.cut(&mut broker);
                let (sessions, _) = broker.sessions(0);
                let (others, _) = broker.sessions(1);
                assert_eq!(
                    (sessions.len(), others.len()),
                    (0, 0),
                    "{at:?}: nothing stays"
                );
            }
        }
    }
}

#[test]
fn a_node_of_a_detached_link_lasts_as_long_as_its_session() {
    for made in MADE {
        let mut broker = Broker::new();
        let (mut client, session) = enter(&mut broker, "c");
        let expiry = TerminusExpiryPolicy::SessionEnd;
        let place = (&mut client, session);
        let (link, address) = make(&mut broker, place, ("n", made), None, expiry);
        let address = address.expect("an address");
        client.detach(&mut broker, link, false);
        assert!(is_there(&mut broker, &address), "{made:?}");
        // The same link again, by the address that it was given.
        let link = match made.by {
            Role::Receiver => client.receiver(&mut broker, session, "n", Source::new(&address), 0),
            Role::Sender => {
                let options = AttachOptions {
                    source: Some(Source::default()),
                    target: Some(TargetArchetype::Target(Target::new(&address))),
                    ..AttachOptions::default()
                };
                client.attach(&mut broker, session, "n", Role::Sender, &options)
            }
        };
        assert!(!client.answers[&link].refused, "{made:?}");
        assert!(is_there(&mut broker, &address), "{made:?}");
        client.detach(&mut broker, link, false);
        (client.engine.end(session, None, &mut client.out)).expect("a session");
        client.turn(&mut broker);
        assert!(!is_there(&mut broker, &address), "{made:?}");
    }
}

#[test]
fn a_node_lasts_as_long_as_a_link_leads_to_it() {
    for made in MADE {
        for way in WAYS {
            let mut broker = Broker::with(&Config::default(), 2);
            let (mut client, session) = enter(&mut broker, "c");
            let policy = Some(LifetimePolicy::DeleteOnNoLinks);
            let place = (&mut client, session);
            let (link, address) = make(&mut broker, place, ("n", made), policy, way.expiry());
            let address = address.expect("an address");
            let (mut other, of) = enter(&mut broker, "other");
            let sender = other.sender(&mut broker, of, &address);
            let _left = way.go(&mut broker, client, link);
            let (mut third, of) = enter(&mut broker, "third");
            let reader = third.receiver(&mut broker, of, "r", Source::new(&address), 10);
            assert!(!third.answers[&reader].refused, "{made:?} {way:?}");
            other.send(&mut broker, sender, 1, "m");
            third.turn(&mut broker);
            assert_eq!(third.accept_all(&mut broker), ["m"], "{made:?} {way:?}");
            other.detach(&mut broker, sender, true);
            assert!(is_there(&mut broker, &address), "{made:?} {way:?}");
            third.detach(&mut broker, reader, true);
            assert!(!is_there(&mut broker, &address), "{made:?} {way:?}");
        }
    }
}

#[test]
fn a_queue_lasts_as_long_as_its_messages() {
    let policies = [
        LifetimePolicy::DeleteOnNoMessages,
        LifetimePolicy::DeleteOnNoLinksOrMessages,
    ];
    for made in MADE.into_iter().filter(|made| made.is_queue) {
        for policy in policies {
            for way in WAYS {
                let at = (made, policy, way);
                let mut broker = Broker::with(&Config::default(), 2);
                let (mut client, session) = enter(&mut broker, "c");
                let place = (&mut client, session);
                let policy = Some(policy);
                let (link, address) = make(&mut broker, place, ("n", made), policy, way.expiry());
                let address = address.expect("an address");
                let (mut other, of) = enter(&mut broker, "other");
                let sender = other.sender(&mut broker, of, &address);
                other.send(&mut broker, sender, 1, "m");
                assert_eq!(other.outcomes().len(), 1, "{at:?}");
                other.detach(&mut broker, sender, true);
                let _left = way.go(&mut broker, client, link);
                broker.advance(5_000);
                assert!(is_there(&mut broker, &address), "{at:?}");
                let reader = other.receiver(&mut broker, of, "r", Source::new(&address), 10);
                broker.advance(5_000);
                other.turn(&mut broker);
                assert!(is_there(&mut broker, &address), "{at:?}: it is not settled");
                assert_eq!(other.accept_all(&mut broker), ["m"], "{at:?}");
                other.detach(&mut broker, reader, true);
                broker.advance(5_000);
                assert!(!is_there(&mut broker, &address), "{at:?}");
                broker.advance(0);
                let counts = [0, 1].map(|shard| broker.sessions(shard).0.len());
                assert_eq!(counts, [0, 0], "{at:?}: nothing stays");
            }
        }
    }
}

/// A topic has no messages, so its last message is no reason to stay.
#[test]
fn a_topic_without_links_has_no_messages_to_wait_for() {
    let policies = [
        LifetimePolicy::DeleteOnNoMessages,
        LifetimePolicy::DeleteOnNoLinksOrMessages,
    ];
    for policy in policies {
        for made in MADE.into_iter().filter(|made| !made.is_queue) {
            let mut broker = Broker::new();
            let (mut client, session) = enter(&mut broker, "c");
            let expiry = TerminusExpiryPolicy::LinkDetach;
            let place = (&mut client, session);
            let (link, address) = make(&mut broker, place, ("n", made), Some(policy), expiry);
            let address = address.expect("an address");
            assert!(is_there(&mut broker, &address));
            client.detach(&mut broker, link, false);
            assert!(!is_there(&mut broker, &address), "{made:?} {policy:?}");
        }
    }
}

#[test]
fn links_of_others_are_detached_when_their_node_goes() {
    for made in MADE {
        let mut broker = Broker::with(&Config::default(), 2);
        let (mut client, session) = enter(&mut broker, "c");
        let expiry = TerminusExpiryPolicy::LinkDetach;
        let place = (&mut client, session);
        let (link, address) = make(&mut broker, place, ("n", made), None, expiry);
        let address = address.expect("an address");
        let mut others = Vec::new();
        for shard in [0, 1] {
            let start = crate::amqp_client::Start::new("other").on(shard);
            let mut other = Client::start(&mut broker, start);
            let of = other.begin(&mut broker);
            let name = format!("{shard}");
            other.receiver(&mut broker, of, &name, Source::new(&address), 10);
            other.anonymous_sender(&mut broker, of);
            let options = AttachOptions {
                source: Some(Source::default()),
                target: Some(TargetArchetype::Target(Target::new(&address))),
                ..AttachOptions::default()
            };
            other.attach(&mut broker, of, &name, Role::Sender, &options);
            others.push(other);
        }
        client.detach(&mut broker, link, true);
        broker.advance(0);
        for mut other in others {
            other.turn(&mut broker);
            let deleted = |one: &&Happened| match one {
                Happened::Detached { condition, .. } => {
                    condition.as_deref() == Some("amqp:resource-deleted")
                }
                _ => false,
            };
            assert_eq!(other.happened.iter().filter(deleted).count(), 2, "{made:?}");
        }
    }
}

/// Part 2, section 2.6.1: a link that is attached anew elsewhere is the same link.
#[test]
fn a_link_that_is_taken_over_keeps_its_node() {
    for made in MADE {
        for shard in [0, 1] {
            let mut broker = Broker::with(&Config::default(), 2);
            let (mut client, session) = enter(&mut broker, "c");
            let expiry = TerminusExpiryPolicy::LinkDetach;
            let place = (&mut client, session);
            let (_, address) = make(&mut broker, place, ("n", made), None, expiry);
            let address = address.expect("an address");
            let start = crate::amqp_client::Start::new("c").on(shard);
            let mut again = Client::start(&mut broker, start);
            let session = again.begin(&mut broker);
            let link = match made.by {
                Role::Receiver => {
                    let source = Source {
                        expiry_policy: expiry,
                        ..Source::new(&address)
                    };
                    again.receiver(&mut broker, session, "n", source, 0)
                }
                Role::Sender => {
                    let options = AttachOptions {
                        source: Some(Source::default()),
                        target: Some(TargetArchetype::Target(Target {
                            expiry_policy: expiry,
                            ..Target::new(&address)
                        })),
                        ..AttachOptions::default()
                    };
                    again.attach(&mut broker, session, "n", Role::Sender, &options)
                }
            };
            again.turn(&mut broker);
            assert!(!again.answers[&link].refused, "{made:?} {shard}");
            client.turn(&mut broker);
            assert_eq!(client.condition().as_deref(), Some("amqp:link:stolen"));
            client.cut(&mut broker);
            assert!(is_there(&mut broker, &address), "{made:?} {shard}");
            again.detach(&mut broker, link, true);
            assert!(!is_there(&mut broker, &address), "{made:?} {shard}");
        }
    }
}

/// What JMS clients do for each request.
#[test]
fn queues_that_are_gone_do_not_count_against_their_user() {
    let mut config = Config::default();
    config.amqp.maximum_queues_per_user = 3;
    // Nobody but the broker makes lasting ones.
    config.amqp.queues_on_first_use = false;
    let mut broker = Broker::with(&config, 2);
    let (mut client, session) = enter(&mut broker, "c");
    let expiry = TerminusExpiryPolicy::LinkDetach;
    let made = Made {
        by: Role::Sender,
        is_queue: true,
    };
    let mut ask = |broker: &mut Broker, number: usize| {
        let name = format!("temporary {number}");
        let policy = Some(LifetimePolicy::DeleteOnClose);
        let place = (&mut client, session);
        let (link, address) = make(broker, place, (&name, made), policy, expiry);
        let condition = client.condition();
        if address.is_some() && number < 10 {
            client.detach(broker, link, true);
        }
        condition
    };
    for number in 0..10 {
        assert_eq!(ask(&mut broker, number), None, "{number}");
    }
    for number in 10..13 {
        assert_eq!(ask(&mut broker, number), None, "{number}");
    }
    let refused = ask(&mut broker, 13);
    assert_eq!(refused.as_deref(), Some("amqp:resource-limit-exceeded"));
}

#[test]
fn nobody_makes_a_node_by_a_dynamic_name() {
    let mut broker = Broker::new();
    let name = "amqp/dynamic/0123456789abcdef0123456789abcdef";
    for address in [
        name.to_owned(),
        format!("queue/{name}"),
        format!("topic://{name}"),
    ] {
        assert!(!is_there(&mut broker, &address), "{address}");
        let (mut client, session) = enter(&mut broker, "c");
        let link = client.anonymous_sender(&mut broker, session);
        let message = message_to(&address, "m");
        client.send_message(&mut broker, link, 1, &message, false, None);
        let rejected = (1, "rejected amqp:not-found".to_owned());
        assert_eq!(client.outcomes(), [rejected], "{address}");
        client.cut(&mut broker);
    }
    assert_eq!(broker.sessions(0).0.len(), 0, "no queue was made");
}

#[test]
fn the_answer_says_what_the_node_is() {
    for made in MADE {
        let mut broker = Broker::new();
        let (mut client, session) = enter(&mut broker, "c");
        let expiry = TerminusExpiryPolicy::Never;
        let place = (&mut client, session);
        let (link, address) = make(&mut broker, place, ("n", made), None, expiry);
        let answer = client.answers[&link].attach.clone();
        let attach = Attach::from_value(answer.value()).expect("an attach");
        let target = attach.target.as_ref().and_then(TargetArchetype::node);
        let (policy, properties, answered) = match (made.by, &attach.source, target) {
            (Role::Receiver, Some(source), _) => (
                source.lifetime_policy(),
                source.dynamic_node_properties,
                (source.expiry_policy, source.timeout),
            ),
            (_, _, Some(target)) => (
                target.lifetime_policy(),
                target.dynamic_node_properties,
                (target.expiry_policy, target.timeout),
            ),
            other => panic!("{other:?}"),
        };
        assert_eq!(policy, Ok(Some(LifetimePolicy::DeleteOnClose)), "{made:?}");
        let modes = properties.and_then(|map| map.get("supported-dist-modes"));
        assert!(modes.is_some(), "{made:?}");
        // The longest that a node's link lasts.
        assert_eq!(
            answered,
            (TerminusExpiryPolicy::ConnectionClose, 0),
            "{made:?}"
        );
        let address = address.expect("an address");
        assert_eq!(address.starts_with("queue/"), made.is_queue, "{address}");
    }
}

/// A queue is one by its address alone: not everybody who answers knows the capability.
#[test]
fn an_answer_reaches_a_temporary_queue_by_its_address() {
    let mut broker = Broker::new();
    let (mut client, session) = enter(&mut broker, "c");
    let made = Made {
        by: Role::Sender,
        is_queue: true,
    };
    let place = (&mut client, session);
    let expiry = TerminusExpiryPolicy::LinkDetach;
    let (_, address) = make(&mut broker, place, ("n", made), None, expiry);
    let address = address.expect("an address");
    let (mut other, of) = enter(&mut broker, "other");
    let link = other.anonymous_sender(&mut broker, of);
    let message = message_to(&address, "early");
    other.send_message(&mut broker, link, 1, &message, false, None);
    assert_eq!(other.outcomes(), [(1, "accepted".to_owned())]);
    client.receiver(&mut broker, session, "r", Source::new(&address), 10);
    assert_eq!(client.accept_all(&mut broker), ["early"]);
}

#[test]
fn a_policy_that_is_none_is_refused() {
    let mut broker = Broker::new();
    let (mut client, session) = enter(&mut broker, "c");
    let properties = Encoded::build(|out| {
        let mut map = MapWriter::new(out);
        map.push(&Value::Symbol(LifetimePolicy::PROPERTY), &Value::Uint(1));
        map.finish();
    });
    let source = Source {
        dynamic: true,
        dynamic_node_properties: map(&properties),
        ..Source::default()
    };
    let link = client.receiver(&mut broker, session, "n", source, 1);
    assert!(client.answers[&link].refused);
    assert_eq!(client.condition().as_deref(), Some("amqp:invalid-field"));
}

/// The default outcome of a source is what a delivery is that its receiver settles without one (3.5.3).
#[test]
fn a_delivery_that_is_settled_without_an_outcome_has_the_default_one() {
    use sterna_amqp::messaging::{Modified, Outcome, Rejected};
    let failed = Modified {
        delivery_failed: true,
        undeliverable_here: false,
        message_annotations: None,
    };
    // What comes of the queue's message: whether it comes again, with how many failures, or is a dead letter.
    let rows = [
        (None, None, 0),
        (Some(Outcome::Accepted), None, 0),
        (Some(Outcome::Rejected(Rejected { error: None })), None, 1),
        (Some(Outcome::Released), Some(0), 0),
        (Some(Outcome::Modified(failed)), Some(1), 0),
    ];
    for (default_outcome, comes_again, dead) in rows {
        let mut config = Config::default();
        config.amqp.queue_dead_letter = Some("dead".to_owned());
        let mut broker = Broker::with(&config, 1);
        let (mut client, session) = enter(&mut broker, "c");
        let source = Source {
            default_outcome: default_outcome.clone(),
            ..Source::new("queue/q")
        };
        let link = client.receiver(&mut broker, session, "r", source, 1);
        let sender = client.sender(&mut broker, session, "queue/q");
        client.send(&mut broker, sender, 1, "m");
        let id = client.received[0].id;
        client.received.clear();
        (client.engine)
            .dispose(session, (id, id), None, true, &mut client.out)
            .expect("a session");
        client.turn(&mut broker);
        client.credit(&mut broker, link, 1);
        let came = client
            .received
            .first()
            .map(crate::amqp_client::Received::delivery_count);
        assert_eq!(came, comes_again, "{default_outcome:?}");
        client.received.clear();
        client.receiver(&mut broker, session, "d", Source::new("queue/dead"), 1);
        assert_eq!(client.received.len(), dead, "{default_outcome:?}");
    }
}
