//! Bans by behaviour, at every door.

use sterna_mqtt::{Packet, Version};
use sterna_net::TransportKind;
use sterna_server::config::{self, Config};

use crate::amqp_client::{Client as AmqpClient, Start};
use crate::fixture::{Broker, plain};
use crate::identity::world::{DOORS, Door, Quiet, Shown, enter, guarded, takes};

const HERE: [u8; 4] = [192, 0, 2, 1];
const THERE: [u8; 4] = [192, 0, 2, 2];

fn try_at(broker: &mut Broker, door: Door, shown: Shown) -> bool {
    let entered = enter(broker, door, TransportKind::Quic, None, shown, "c");
    // In HTTP a refusal by a rule is another one than that by a ban.
    entered.is_some_and(|mut entered| {
        door != Door::Http || (200..300).contains(&entered.reads(broker, "free/x"))
    })
}

/// Wrong passwords at any door, for any users, ban the address at all doors, also with the right password.
#[test]
fn an_address_that_guesses_is_banned_at_every_door() {
    for guessing in DOORS {
        if !takes(guessing, Shown::Password("ann", "wrong")) {
            continue;
        }
        let (_directory, config) = guarded(|config| {
            config.bans.guessing_failures = 3;
            config.bans.guessing_ban_s = 100;
        });
        let mut broker = Broker::with(&config, 2);
        broker.come_from(HERE);
        for user in ["ann", "bob", "eve"] {
            assert!(!try_at(
                &mut broker,
                guessing,
                Shown::Password(user, "wrong")
            ));
        }
        for door in DOORS {
            let right = Shown::Password("ann", "ann-pass");
            if takes(door, right) {
                broker.come_from(HERE);
                assert!(!try_at(&mut broker, door, right), "{door:?}");
                broker.come_from(THERE);
                assert!(try_at(&mut broker, door, right), "{door:?}");
            }
        }
        broker.come_from(HERE);
        broker.advance(99_000);
        let right = Shown::Password("ann", "ann-pass");
        assert!(!try_at(&mut broker, guessing, right));
        broker.advance(2_000);
        assert!(try_at(&mut broker, guessing, right));
    }
}

/// A ban ends the connections that the address has.
#[test]
fn a_ban_ends_live_connections() {
    let (_directory, config) = guarded(|config| config.bans.guessing_failures = 3);
    let mut broker = Broker::with(&config, 2);
    broker.come_from(HERE);
    let right = Shown::Password("ann", "ann-pass");
    assert!(try_at(&mut broker, Door::Mqtt5, right));
    assert!(try_at(&mut broker, Door::Amqp(Quiet::NoLayer), right));
    broker.come_from(THERE);
    assert!(
        enter(
            &mut broker,
            Door::Mqtt311,
            TransportKind::Tcp,
            None,
            right,
            "d"
        )
        .is_some()
    );
    let before = broker.open_connections(0) + broker.open_connections(1);
    broker.come_from(HERE);
    for _ in 0..4 {
        assert!(!try_at(
            &mut broker,
            Door::Http,
            Shown::Password("eve", "wrong")
        ));
    }
    broker.advance(5_000);
    let after = broker.open_connections(0) + broker.open_connections(1);
    assert!(after < before, "{after} of {before}");
    broker.come_from(THERE);
    assert!(try_at(&mut broker, Door::Mqtt5, right));
}

/// However many clients there are, a ban looks at some of them in each turn.
#[test]
fn a_ban_ends_many_clients_in_parts() {
    const PART: usize = 500;
    let (_directory, config) = guarded(|config| {
        config.authentication.anonymous = Some(true);
        config.bans.guessing_failures = 3;
    });
    let mut broker = Broker::with(&config, 1);
    broker.come_from(HERE);
    for number in 0..=2 * PART {
        let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
        let name = format!("c{number}");
        let connect = Packet::Connect(plain(Version::V5, &name));
        broker.packet(peer, Version::V5, &connect);
        assert!(broker.told(peer, Version::V5)[0].contains("Success"));
    }
    for _ in 0..4 {
        let wrong = Shown::Password("eve", "wrong");
        assert!(!try_at(&mut broker, Door::Mqtt5, wrong));
    }
    let mut left = broker.open_connections(0);
    assert!((PART + 1..2 * PART + 1).contains(&left), "{left}");
    while left > 0 {
        broker.advance(1);
        let now = broker.open_connections(0);
        assert!((left.saturating_sub(PART)..left).contains(&now), "{left}");
        left = now;
    }
}

fn flapping() -> Config {
    let text = "[bans]\nflapping_logins = 3\nflapping_window_s = 10\nflapping_ban_s = 60\n";
    let config = config::parse("x", text).expect("a configuration");
    config.check().expect("no faults");
    config
}

#[test]
fn a_client_that_comes_and_goes_too_often_is_banned_for_a_while() {
    for version in [Version::V5, Version::V311] {
        let mut broker = Broker::with(&flapping(), 2);
        let connect = |broker: &mut Broker, address, name| {
            broker.come_from(address);
            let peer = broker.open_on(1, TransportKind::Tcp, Vec::new());
            broker.packet(peer, version, &Packet::Connect(plain(version, name)));
            let told = broker.told(peer, version).join(" ");
            broker.cut(peer);
            told
        };
        for _ in 0..3 {
            assert!(connect(&mut broker, HERE, "flaps").contains("Success"));
        }
        let refused = connect(&mut broker, HERE, "flaps");
        let words = if version == Version::V5 {
            "Banned"
        } else {
            "CONNACK"
        };
        assert!(
            refused.contains(words) && !refused.contains("Success"),
            "{refused}"
        );
        // Neither another client, nor one of that name elsewhere, which nobody's name is not enough for.
        assert!(connect(&mut broker, HERE, "other").contains("Success"));
        assert!(connect(&mut broker, THERE, "flaps").contains("Success"));
        broker.advance(59_000);
        assert!(!connect(&mut broker, HERE, "flaps").contains("Success"));
        broker.advance(2_000);
        assert!(connect(&mut broker, HERE, "flaps").contains("Success"));
    }
}

#[test]
fn a_container_that_flaps_is_banned_too() {
    let mut broker = Broker::with(&flapping(), 1);
    for expected in [None, None, None, Some("amqp:unauthorized-access")] {
        let mut amqp = AmqpClient::start(&mut broker, Start::new("c"));
        amqp.turn(&mut broker);
        assert_eq!(amqp.condition().as_deref(), expected);
        amqp.cut(&mut broker);
    }
}

/// A client identifier is the client's own choice. A nameless client that gives another's harms nameless ones alone.
#[test]
fn a_nameless_client_cannot_have_the_client_of_a_user_banned() {
    let right = Shown::Password("ann", "ann-pass");
    let doors = [Door::Mqtt311, Door::Mqtt5, Door::Amqp(Quiet::NoLayer)];
    for (of_ann, of_nobody) in doors
        .into_iter()
        .flat_map(|one| doors.map(|other| (one, other)))
    {
        let (_directory, config) = guarded(|config| {
            config.authentication.anonymous = Some(true);
            config.bans.flapping_logins = 3;
        });
        let mut broker = Broker::with(&config, 2);
        broker.come_from(HERE);
        let pump = |broker: &mut Broker, door, shown| {
            enter(broker, door, TransportKind::Tcp, None, shown, "pump")
        };
        let mut anns = pump(&mut broker, of_ann, right).expect("enters");
        for _ in 0..4 {
            // It has a session of its own by that name.
            drop(pump(&mut broker, of_nobody, Shown::Nothing));
        }
        assert!(pump(&mut broker, of_nobody, Shown::Nothing).is_none());
        broker.advance(5_000);
        let doors = (of_ann, of_nobody);
        assert_eq!(anns.reads(&mut broker, "who/ann"), 200, "{doors:?}");
        assert!(pump(&mut broker, of_ann, right).is_some(), "{doors:?}");
    }
}
