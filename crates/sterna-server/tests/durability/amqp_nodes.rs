//! AMQP: nodes that are made for links, over the end of the process (part 3, sections 3.5.9 to 3.5.13).

use sterna_amqp::link::AttachOptions;
use sterna_amqp::messaging::{LifetimePolicy, Source, Target, TargetArchetype, capability};
use sterna_amqp::performatives::Role;
use sterna_amqp::types::{Encoded, Map, MapWriter, Multiple, Symbol, Value};

use crate::amqp_client::Client;
use crate::fixture::Broker;
use crate::store::{Held, config};

const POLICIES: [LifetimePolicy; 4] = [
    LifetimePolicy::DeleteOnClose,
    LifetimePolicy::DeleteOnNoLinks,
    LifetimePolicy::DeleteOnNoMessages,
    LifetimePolicy::DeleteOnNoLinksOrMessages,
];

fn map(encoded: &Encoded) -> Option<Map<'_>> {
    match encoded.value() {
        Value::Map(map) => Some(map),
        _ => None,
    }
}

/// Has a client's link made a node. Returns its address.
fn make(
    broker: &mut Broker,
    client: &mut Client,
    (role, kind): (Role, &str),
    policy: LifetimePolicy,
) -> String {
    let properties = Encoded::build(|out| {
        let mut map = MapWriter::new(out);
        let entry = map.entry(&Value::Symbol(LifetimePolicy::PROPERTY));
        entry.extend_from_slice(policy.encoded().bytes());
        map.finish();
    });
    let capabilities = Multiple::One(Symbol(kind));
    let mut options = AttachOptions {
        source: Some(Source::default()),
        target: Some(TargetArchetype::Target(Target::default())),
        ..AttachOptions::default()
    };
    if role == Role::Receiver {
        options.source = Some(Source {
            dynamic: true,
            capabilities,
            dynamic_node_properties: map(&properties),
            ..crate::amqp::durable("")
        });
    } else {
        options.target = Some(TargetArchetype::Target(Target {
            dynamic: true,
            capabilities,
            dynamic_node_properties: map(&properties),
            ..Target::default()
        }));
    }
    if let Some(source) = &mut options.source {
        source.address = None;
    }
    let session = client.begin(broker);
    let link = client.attach(broker, session, "maker", role, &options);
    client.answers[&link].address.clone().expect("an address")
}

/// Whether a node is there for a sender. One that is not is not found.
fn is_there(broker: &mut Broker, address: &str) -> bool {
    let mut client = Client::connect(broker, "looker");
    let session = client.begin(broker);
    let link = client.sender(broker, session, address);
    let is_refused = client.answers[&link].refused;
    if is_refused {
        assert_eq!(client.condition().as_deref(), Some("amqp:not-found"));
    }
    client.cut(broker);
    !is_refused
}

/// The process is killed with all links attached, and one message in the node.
#[test]
fn a_node_is_gone_after_a_kill_or_waits_for_its_last_message() {
    for shards in [1, 2] {
        for kind in [capability::TEMPORARY_QUEUE, capability::TEMPORARY_TOPIC] {
            for role in [Role::Sender, Role::Receiver] {
                for policy in POLICIES {
                    let at = (shards, kind, role, policy);
                    let mut config = config();
                    config.amqp.maximum_queues_per_user = 2;
                    let store = Held::new();
                    let mut broker = store.broker(&config, shards);
                    let mut client = Client::connect(&mut broker, "c");
                    let address = make(&mut broker, &mut client, (role, kind), policy);
                    let session = client.begin(&mut broker);
                    let sender = client.sender(&mut broker, session, &address);
                    client.send(&mut broker, sender, 1, "m");
                    assert_eq!(client.outcomes().len(), 1, "{at:?}");
                    drop(broker);

                    let mut broker = store.broker(&config, shards);
                    broker.advance(5_000);
                    let waits = matches!(
                        policy,
                        LifetimePolicy::DeleteOnNoMessages
                            | LifetimePolicy::DeleteOnNoLinksOrMessages
                    );
                    let is_kept = waits && kind == capability::TEMPORARY_QUEUE;
                    assert_eq!(is_there(&mut broker, &address), is_kept, "{at:?}");
                    if is_kept {
                        let mut reader = Client::connect(&mut broker, "reader");
                        let session = reader.begin(&mut broker);
                        let source = Source::new(&address);
                        let link = reader.receiver(&mut broker, session, "r", source, 10);
                        assert_eq!(reader.accept_all(&mut broker), ["m"], "{at:?}");
                        reader.detach(&mut broker, link, true);
                        broker.advance(5_000);
                        assert!(!is_there(&mut broker, &address), "{at:?}");
                    }
                    let sessions = (0..shards).map(|shard| broker.sessions(shard).0.len());
                    assert_eq!(sessions.sum::<usize>(), 0, "{at:?}: nothing stays");
                    // Nothing counts against the user, either.
                    for number in 0..2 {
                        let mut other = Client::connect(&mut broker, "other");
                        let session = other.begin(&mut broker);
                        let name = format!("queue/{number}");
                        let link = other.sender(&mut broker, session, &name);
                        assert!(!other.answers[&link].refused, "{at:?} {number}");
                    }
                }
            }
        }
    }
}

/// A queue that is empty when the process ends is gone after it, with all that was written of it.
#[test]
fn an_empty_queue_leaves_no_record() {
    let store = Held::new();
    let mut broker = store.broker(&config(), 2);
    let before = store.counts().1;
    let mut client = Client::connect(&mut broker, "c");
    let what = (Role::Sender, capability::TEMPORARY_QUEUE);
    let policy = LifetimePolicy::DeleteOnNoMessages;
    let address = make(&mut broker, &mut client, what, policy);
    assert!(store.counts().1 > before);
    drop(broker);
    let mut broker = store.broker(&config(), 2);
    broker.advance(5_000);
    assert!(!is_there(&mut broker, &address));
    drop(broker);
    assert_eq!(store.counts().1, before);
}
