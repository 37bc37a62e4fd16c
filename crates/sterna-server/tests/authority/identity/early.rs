//! First flights (0-RTT) at every door: their addresses are not proved before the handshake is complete.

use sterna_net::TransportKind;
use sterna_server::config::Config;

use crate::fixture::Broker;
use crate::identity::world::{DOORS, Door, Shown, enter, guarded, takes};

const HERE: [u8; 4] = [192, 0, 2, 1];
const THERE: [u8; 4] = [192, 0, 2, 2];
const RIGHT: Shown = Shown::Password("ann", "ann-pass");
const WRONG: Shown = Shown::Password("ann", "wrong");

fn comes(broker: &mut Broker, door: Door, shown: Shown) -> bool {
    let entered = enter(broker, door, TransportKind::Quic, None, shown, "c");
    // In HTTP a refusal by a rule is another one than that by a ban.
    entered.is_some_and(|mut entered| {
        door != Door::Http || (200..300).contains(&entered.reads(broker, "free/x"))
    })
}

/// The same in early data. Its handshake is completed if that is so.
fn comes_early(broker: &mut Broker, door: Door, shown: Shown, is_confirmed: bool) -> bool {
    broker.is_early = true;
    let is_in = comes(broker, door, shown);
    broker.is_early = false;
    let peer = broker.latest();
    if is_confirmed {
        broker.confirm(peer);
        broker.await_verdicts();
    }
    if !broker.is_closed(peer) {
        broker.cut(peer);
    }
    is_in
}

fn doors() -> impl Iterator<Item = Door> {
    DOORS.into_iter().filter(|door| takes(*door, RIGHT))
}

fn with_bans(config: &mut Config) {
    config.bans.guessing_failures = 3;
}

/// Anybody can send wrong passwords from another's address. They count neither against it nor get it banned.
#[test]
fn nobody_is_banned_or_slowed_by_flights_from_a_forged_address() {
    for door in doors() {
        let (_directory, config) = guarded(with_bans);
        let mut broker = Broker::with(&config, 1);
        broker.come_from(HERE);
        assert!(comes(&mut broker, door, RIGHT));
        for _ in 0..10 {
            assert!(!comes_early(&mut broker, door, WRONG, false));
        }
        assert!(comes(&mut broker, door, RIGHT), "{door:?}");
    }
}

/// Who completes the handshake is at its address, and its guesses count.
#[test]
fn guesses_in_early_data_count_when_the_handshake_is_complete() {
    for door in doors() {
        let (_directory, config) = guarded(with_bans);
        let mut broker = Broker::with(&config, 1);
        broker.come_from(HERE);
        for _ in 0..3 {
            assert!(!comes_early(&mut broker, door, WRONG, true));
        }
        assert!(!comes(&mut broker, door, RIGHT), "{door:?}");
        broker.come_from(THERE);
        assert!(comes(&mut broker, door, RIGHT), "{door:?}");
    }
}

/// A client whose password was found right before is let in at once, from wherever.
#[test]
fn a_known_password_is_let_in_early() {
    for door in doors() {
        let (_directory, config) = guarded(|_| {});
        let mut broker = Broker::with(&config, 1);
        assert!(
            !comes_early(&mut broker, door, RIGHT, true),
            "not known yet"
        );
        broker.come_from(HERE);
        assert!(comes_early(&mut broker, door, RIGHT, false), "{door:?}");
    }
}

/// Flights from forged addresses are no way to guess without a limit: a user at whom somebody guesses is looked at
/// after the handshake alone.
#[test]
fn guesses_from_forged_addresses_are_limited() {
    for door in doors() {
        let (_directory, config) = guarded(|config| config.guessing.free_failures_per_user = 5);
        let mut broker = Broker::with(&config, 1);
        assert!(comes(&mut broker, door, RIGHT));
        for _ in 0..6 {
            assert!(!comes_early(&mut broker, door, WRONG, false));
        }
        assert!(!comes_early(&mut broker, door, RIGHT, false), "{door:?}");
        assert!(comes(&mut broker, door, RIGHT), "{door:?}");
    }
}

/// While an address is banned, a client could pretend another one.
#[test]
fn no_ban_is_evaded_by_a_forged_address() {
    for door in doors() {
        let (_directory, config) = guarded(with_bans);
        let mut broker = Broker::with(&config, 1);
        broker.come_from(THERE);
        assert!(comes(&mut broker, door, RIGHT));
        broker.come_from(HERE);
        for _ in 0..3 {
            assert!(!comes(&mut broker, door, WRONG));
        }
        assert!(!comes(&mut broker, door, RIGHT), "banned");
        broker.come_from(THERE);
        assert!(!comes_early(&mut broker, door, RIGHT, false), "{door:?}");
        assert!(comes(&mut broker, door, RIGHT), "{door:?}");
    }
}

/// Logins before the handshake count as others do, when it is complete.
#[test]
fn a_client_that_flaps_in_early_data_is_banned() {
    for door in doors().filter(|door| *door != Door::Http) {
        for is_confirmed in [false, true] {
            let (_directory, config) = guarded(|config| config.bans.flapping_logins = 3);
            let mut broker = Broker::with(&config, 1);
            assert!(comes(&mut broker, door, RIGHT));
            let peer = broker.latest();
            broker.cut(peer);
            for _ in 0..4 {
                comes_early(&mut broker, door, RIGHT, is_confirmed);
            }
            assert_eq!(comes(&mut broker, door, RIGHT), !is_confirmed, "{door:?}");
        }
    }
}
