//! What belongs to a user: another who uses the same names gets nothing of it.

use sterna_mqtt::packet::Connect;
use sterna_mqtt::{Packet, Properties, Property, QoS, Version};
use sterna_net::TransportKind;
use sterna_server::config::ClientIds;

use crate::fixture::{Broker, block, plain};
use crate::identity::world::{Door, Entered, Quiet, Shown, enter, guarded};

const ANN: Shown = Shown::Password("ann", "ann-pass");
const BOB: Shown = Shown::Password("bob", "bob-pass");

fn mqtt(
    broker: &mut Broker,
    version: Version,
    shown: Shown,
    name: &str,
) -> Option<crate::fixture::Peer> {
    let door = if version == Version::V5 {
        Door::Mqtt5
    } else {
        Door::Mqtt311
    };
    match enter(broker, door, TransportKind::Tcp, None, shown, name)? {
        Entered::Mqtt(peer, _) => Some(peer),
        _ => None,
    }
}

/// What the proof names is what counts, not how it was proved.
#[test]
fn a_user_finds_its_session_again_by_another_proof() {
    let (_directory, config) = guarded(|_| {});
    let mut broker = Broker::with(&config, 1);
    let properties = block(&[Property::SessionExpiryInterval(100)]);
    let first = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    let connect = Connect {
        user_name: Some("ann"),
        password: Some(b"ann-pass"),
        properties: properties.properties(),
        ..plain(Version::V5, "c")
    };
    broker.packet(first, Version::V5, &Packet::Connect(connect));
    broker.await_verdicts();
    assert_eq!(broker.told(first, Version::V5), ["CONNACK Success"]);
    let shown = Shown::Scram("ann", "ann-pass");
    assert!(mqtt(&mut broker, Version::V5, shown, "c").is_some());
    assert!(broker.is_closed(first), "it was taken over");
    for stranger in [BOB, Shown::Scram("bob", "bob-pass")] {
        assert!(mqtt(&mut broker, Version::V5, stranger, "c").is_some());
    }
    let (sessions, _) = broker.sessions(0);
    let users = sessions.iter().map(|session| session.name.user());
    assert_eq!(users.filter(|user| *user == Some("ann")).count(), 1);
}

/// Somebody makes sessions by the client identifiers of another's devices, which expire never, and leaves. She is let in
/// all the same, has her own session, and gets her own messages.
#[test]
fn nobody_is_kept_out_by_who_came_first_with_the_same_client_identifier() {
    let (_directory, config) = guarded(|config| config.authentication.anonymous = Some(true));
    let properties = block(&[Property::SessionExpiryInterval(u32::MAX)]);
    for version in [Version::V311, Version::V5] {
        let mut broker = Broker::with(&config, 2);
        let come = |broker: &mut Broker, user: Option<&'static str>, shard| {
            let password = user.map(|user| format!("{user}-pass"));
            let connect = Connect {
                user_name: user,
                password: password.as_ref().map(String::as_bytes),
                clean_start: false,
                properties: if version == Version::V5 {
                    properties.properties()
                } else {
                    Properties::EMPTY
                },
                ..plain(version, "device")
            };
            let peer = broker.open_speaking(b"mqtt", shard, TransportKind::Tcp, Vec::new());
            broker.packet(peer, version, &Packet::Connect(connect));
            broker.await_verdicts();
            (peer, broker.told(peer, version))
        };
        for user in [Some("bob"), None] {
            let (peer, told) = come(&mut broker, user, 0);
            assert_eq!(told, ["CONNACK Success"], "{user:?}");
            broker.subscribe(peer, version, "free/#", QoS::AtLeastOnce);
            broker.cut(peer);
        }
        let (peer, told) = come(&mut broker, Some("ann"), 1);
        assert_eq!(told, ["CONNACK Success"], "and nothing of theirs");
        broker.subscribe(peer, version, "free/hers", QoS::AtLeastOnce);
        broker.cut(peer);
        let publisher = mqtt(&mut broker, version, BOB, "p").expect("enters");
        broker.publish(publisher, version, "free/hers", "x", QoS::AtLeastOnce);
        let (_, told) = come(&mut broker, Some("ann"), 0);
        assert_eq!(told, ["CONNACK Success present", "PUBLISH1 free/hers=x"]);
    }
}

#[test]
fn two_users_with_one_client_identifier_have_two_wills() {
    let (_directory, config) = guarded(|_| {});
    let mut broker = Broker::with(&config, 1);
    let watcher = mqtt(&mut broker, Version::V5, BOB, "watcher").expect("enters");
    broker.subscribe(watcher, Version::V5, "free/#", QoS::AtLeastOnce);
    let will = |payload| sterna_mqtt::packet::Will {
        topic: "free/will",
        payload,
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: sterna_mqtt::PublishProperties::default(),
    };
    let connect = |user, password, payload| Connect {
        user_name: Some(user),
        password: Some(password),
        will: Some(will(payload)),
        properties: Properties::EMPTY,
        ..plain(Version::V5, "c")
    };
    let owner = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    let hers = connect("ann", b"ann-pass", b"ann is gone");
    broker.packet(owner, Version::V5, &Packet::Connect(hers));
    broker.await_verdicts();
    assert_eq!(broker.told(owner, Version::V5), ["CONNACK Success"]);
    let stranger = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    let his = connect("bob", b"bob-pass", b"bob is gone");
    broker.packet(stranger, Version::V5, &Packet::Connect(his));
    broker.await_verdicts();
    assert_eq!(broker.told(stranger, Version::V5), ["CONNACK Success"]);
    assert!(!broker.is_closed(owner));
    assert_eq!(broker.told(watcher, Version::V5), [""; 0]);
    broker.cut(owner);
    let told = broker.told(watcher, Version::V5);
    assert_eq!(told, ["PUBLISH1 free/will=ann is gone"]);
    assert!(!broker.is_closed(stranger));
    broker.cut(stranger);
    let told = broker.told(watcher, Version::V5);
    assert_eq!(told, ["PUBLISH1 free/will=bob is gone"]);
}

/// Two users' containers and links of the same name are different ones.
#[test]
fn amqp_names_are_names_of_a_user() {
    use sterna_amqp::messaging::{Source, TerminusExpiryPolicy};
    use sterna_amqp::types::Multiple;
    let (_directory, config) = guarded(|_| {});
    for shared in [false, true] {
        let mut broker = Broker::with(&config, 1);
        let mut clients: Vec<_> = [ANN, BOB]
            .into_iter()
            .map(|shown| {
                let door = Door::Amqp(Quiet::NoLayer);
                let entered = enter(&mut broker, door, TransportKind::Tcp, None, shown, "c");
                let Some(Entered::Amqp(mut client)) = entered else {
                    panic!("it enters");
                };
                let session = client.begin(&mut broker);
                let source = Source {
                    expiry_policy: TerminusExpiryPolicy::Never,
                    capabilities: if shared {
                        Multiple::One(sterna_amqp::types::Symbol("shared"))
                    } else {
                        Multiple::Slice(&[])
                    },
                    ..Source::new("free/x")
                };
                client.receiver(&mut broker, session, "link", source, 10);
                client
            })
            .collect();
        let publisher = mqtt(&mut broker, Version::V5, ANN, "p").expect("enters");
        for payload in ["1", "2"] {
            broker.publish(publisher, Version::V5, "free/x", payload, QoS::AtLeastOnce);
        }
        for client in &mut clients {
            client.turn(&mut broker);
            assert_eq!(client.received.len(), 2, "shared: {shared}");
        }
    }
}

#[test]
fn client_identifiers_are_bound_to_users_by_a_list() {
    let (_directory, config) = guarded(|config| {
        config.authentication.anonymous = Some(true);
        config.authentication.client_ids = vec![
            ClientIds {
                users: vec!["*".to_owned()],
                patterns: vec!["%u".to_owned(), "%u-*".to_owned()],
            },
            ClientIds {
                users: Vec::new(),
                patterns: vec!["public-*".to_owned()],
            },
        ];
    });
    let mut broker = Broker::with(&config, 1);
    for (shown, client_id, enters) in [
        (ANN, "ann", true),
        (ANN, "ann-2", true),
        (ANN, "public-1", true),
        (ANN, "bob", false),
        (ANN, "anna", false),
        (ANN, "%u", false),
        (Shown::Nothing, "public-2", true),
        (Shown::Nothing, "ann", false),
        (Shown::Nothing, "", true),
    ] {
        for door in [Door::Mqtt311, Door::Mqtt5, Door::Amqp(Quiet::Anonymous)] {
            // 3.1.1 wants a clean session for an assigned one; AMQP assigns none.
            if client_id.is_empty() && door != Door::Mqtt5 {
                continue;
            }
            let shown = match (door, shown) {
                (Door::Amqp(Quiet::Anonymous), ANN) => continue,
                (_, shown) => shown,
            };
            let entered = enter(
                &mut broker,
                door,
                TransportKind::Tcp,
                None,
                shown,
                client_id,
            );
            assert_eq!(entered.is_some(), enters, "{door:?} {shown:?} {client_id}");
        }
    }
    let door = Door::Amqp(Quiet::NoLayer);
    for (container, enters) in [("ann-3", true), ("bob", false)] {
        let entered = enter(&mut broker, door, TransportKind::Tcp, None, ANN, container);
        assert_eq!(entered.is_some(), enters, "{container}");
    }
}
