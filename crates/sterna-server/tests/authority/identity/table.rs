//! Every certificate with every credentials, at every door and on every transport: one verdict.

use sterna_net::TransportKind;
use sterna_server::Policy;

use crate::fixture::Broker;
use crate::identity::world::{
    DOORS, Door, Shown, bare_key, carries, certificate, enter, guarded, operator, takes,
};

pub const TRANSPORTS: [TransportKind; 5] = [
    TransportKind::Tcp,
    TransportKind::Tls,
    TransportKind::WebSocket,
    TransportKind::SecureWebSocket,
    TransportKind::Quic,
];

/// What a connection shows in its handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Badge {
    Nothing,
    Of(&'static str),
    Expired(&'static str),
    Nameless,
    Malicious,
    BareKey,
}

const BADGES: [Badge; 7] = [
    Badge::Nothing,
    Badge::Of("ann"),
    Badge::Of("device"),
    Badge::Expired("ann"),
    Badge::Nameless,
    Badge::Malicious,
    Badge::BareKey,
];

impl Badge {
    fn der(self) -> Option<Box<[u8]>> {
        match self {
            Self::Nothing => None,
            Self::Of(name) => Some(certificate(Some(name), 2020..2030)),
            Self::Expired(name) => Some(certificate(Some(name), 2020..2022)),
            Self::Nameless => Some(certificate(None, 2020..2030)),
            Self::Malicious => Some(certificate(Some("ann\n"), 2020..2030)),
            Self::BareKey => Some(bare_key()),
        }
    }
}

pub const SHOWN: [Shown; 19] = [
    Shown::Nothing,
    Shown::Password("", ""),
    Shown::Password("", "x"),
    Shown::Name("ann"),
    Shown::Name("device"),
    Shown::Password("ann", "ann-pass"),
    Shown::Password("ann", "wrong"),
    Shown::Password("ann", ""),
    Shown::Password("bob", "bob-pass"),
    Shown::Password("eve", "ann-pass"),
    Shown::Password("device", "x"),
    Shown::Scram("ann", "ann-pass"),
    Shown::Scram("ann", "wrong"),
    Shown::Scram("bob", "bob-pass"),
    Shown::Scram("eve", "ann-pass"),
    Shown::Token("ann-token"),
    Shown::Token("ann-old-token"),
    Shown::Token("bob-token"),
    Shown::Token("unknown"),
];

/// The rule, said again in another way: who it is, or `None`.
fn expected(badge: Badge, shown: Shown, names: bool, anonymous: bool) -> Option<&'static str> {
    let holder = match badge {
        Badge::Expired(_) => return None,
        Badge::Malicious if names => return None,
        Badge::Of(name) if names => Some(name),
        _ => None,
    };
    let has_badge = badge != Badge::Nothing;
    let claimed = match shown {
        Shown::Nothing | Shown::Password("", "") if has_badge && names && holder.is_none() => {
            return None;
        }
        Shown::Nothing | Shown::Password("", "") if has_badge || anonymous => {
            return Some(holder.unwrap_or("nobody"));
        }
        Shown::Name(user) | Shown::Password(user, "") => {
            return holder.filter(|name| *name == user);
        }
        Shown::Password("ann", "ann-pass")
        | Shown::Scram("ann", "ann-pass")
        | Shown::Token("ann-token") => "ann",
        Shown::Password("bob", "bob-pass")
        | Shown::Scram("bob", "bob-pass")
        | Shown::Token("bob-token") => "bob",
        _ => return None, // wrong ones; signed tokens have a table of their own
    };
    (holder.is_none() || holder == Some(claimed)).then_some(claimed)
}

#[test]
fn every_door_gives_the_same_verdict() {
    let mut verdicts = 0;
    for (names, anonymous) in [(false, false), (false, true), (true, false), (true, true)] {
        let (_directory, config) = guarded(|config| {
            config.tls.certificate_as_username = names;
            config.authentication.anonymous = Some(anonymous);
            config.listeners[1].anonymous = Some(anonymous);
            // Each wrong attempt of the table is to be looked at.
            config.guessing.free_failures = 0;
            config.guessing.free_failures_per_address = 0;
        });
        let mut broker = Broker::with(&config, 1);
        for badge in BADGES {
            let der = badge.der();
            for shown in SHOWN {
                for door in DOORS {
                    for transport in TRANSPORTS {
                        if !takes(door, shown) || !carries(door, transport, der.is_some()) {
                            continue;
                        }
                        let name = format!("c{verdicts}");
                        let entered =
                            enter(&mut broker, door, transport, der.as_deref(), shown, &name);
                        let who = entered.map(|mut entered| entered.name(&mut broker));
                        assert_eq!(
                            who,
                            expected(badge, shown, names, anonymous),
                            "{door:?} {transport:?} {badge:?} {shown:?} names={names} \
                             anonymous={anonymous}"
                        );
                        verdicts += 1;
                    }
                }
                for transport in [TransportKind::Tcp, TransportKind::Tls] {
                    if !takes(Door::Http, shown) || !carries(Door::Http, transport, der.is_some()) {
                        continue;
                    }
                    let who = operator(&mut broker, transport, der.as_deref(), shown);
                    // A certificate without a name is no operator where the listener does not admit everybody.
                    let expected = expected(badge, shown, names, anonymous);
                    let expected = expected.filter(|who| anonymous || *who != "nobody");
                    assert_eq!(
                        who, expected,
                        "admin {transport:?} {badge:?} {shown:?} names={names} anonymous={anonymous}"
                    );
                    verdicts += 1;
                }
            }
        }
    }
    assert!(verdicts > 2000, "{verdicts}");
}

/// Without a password file a password proves nothing, and a certificate still does.
#[test]
fn without_users_a_password_is_taken_and_ignored() {
    for (names, anonymous) in [(false, false), (false, true), (true, false), (true, true)] {
        let (_directory, config) = guarded(|config| {
            config.authentication.password_file = None;
            config.tls.certificate_as_username = names;
            config.authentication.anonymous = Some(anonymous);
        });
        let mut broker = Broker::with(&config, 1);
        for badge in [Badge::Nothing, Badge::Of("ann")] {
            let der = badge.der();
            for (at, user) in ["ann", "bob"].into_iter().enumerate() {
                let shown = Shown::Password(user, "anything");
                let quiet = expected(badge, Shown::Nothing, names, anonymous);
                let is_other = names && badge != Badge::Nothing && user != "ann";
                let whom = quiet.filter(|_| !is_other);
                for door in DOORS {
                    if !takes(door, shown) {
                        continue;
                    }
                    let name = format!("{badge:?}{at}{door:?}");
                    let der = der.as_deref();
                    let entered = enter(&mut broker, door, TransportKind::Quic, der, shown, &name);
                    let who = entered.map(|mut entered| entered.name(&mut broker));
                    assert_eq!(
                        who, whom,
                        "{door:?} {badge:?} {user} names={names} anonymous={anonymous}"
                    );
                }
            }
        }
    }
}

/// A user that is removed is refused at every door from then on, also while its password is being
/// checked.
#[test]
fn a_removed_user_is_refused() {
    let (directory, config) = guarded(|_| {});
    let mut broker = Broker::with(&config, 1);
    let shown = [
        Shown::Password("ann", "ann-pass"),
        Shown::Scram("ann", "ann-pass"),
        Shown::Token("ann-token"),
    ];
    let try_all = |broker: &mut Broker, may: bool| {
        for shown in shown {
            for door in DOORS {
                if takes(door, shown) {
                    let name = format!("{door:?}{may}");
                    let entered = enter(broker, door, TransportKind::Quic, None, shown, &name);
                    assert_eq!(entered.is_some(), may, "{door:?} {shown:?}");
                }
            }
        }
    };
    try_all(&mut broker, true);
    for file in ["passwords", "tokens"] {
        let path = directory.path().join(file);
        let text = std::fs::read_to_string(&path).expect("a file");
        let kept: Vec<&str> = (text.lines())
            .filter(|line| !line.starts_with("ann:"))
            .collect();
        std::fs::write(&path, kept.join("\n")).expect("written");
    }
    broker.apply(Policy::load(&config).expect("a policy"));
    try_all(&mut broker, false);
}
