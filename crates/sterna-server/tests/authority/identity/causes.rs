//! The true cause of a refused login: a field of its one line, at `log.level = "warn"`, at every door.

use serde_json::json;
use sterna_net::TransportKind;
use sterna_server::config::Config;

use crate::fixture::{Broker, Lines};
use crate::identity::tokens::{claims, issued};
use crate::identity::world::{
    DOORS, Door, Quiet, Shown, carries, certificate, enter, guarded, takes,
};

/// The one line about a client at each door that is shown this, over TLS. Two clients differ in it: the second gets a line
/// of its own, and a third that is like the first gets none.
fn lines(config: &Config, shown: [(Option<&[u8]>, Shown); 2]) -> Vec<[String; 2]> {
    let mut all = Vec::new();
    for door in DOORS {
        // AMQP does not offer ANONYMOUS to a client that needs more, so that one refuses itself.
        if door == Door::Amqp(Quiet::Anonymous) {
            continue;
        }
        if !shown.iter().all(|(certificate, shown)| {
            takes(door, *shown) && carries(door, TransportKind::Tls, certificate.is_some())
        }) {
            continue;
        }
        let text = Lines::of(tracing::Level::WARN, |_| {
            let mut config = config.clone();
            config.guessing.free_failures = 0;
            config.guessing.free_failures_per_address = 0;
            let mut broker = Broker::with(&config, 1);
            for (certificate, shown) in [shown[0], shown[1], shown[0]] {
                let entered = enter(
                    &mut broker,
                    door,
                    TransportKind::Tls,
                    certificate,
                    shown,
                    "c",
                );
                assert!(entered.is_none(), "{door:?}");
            }
        });
        let lines: Vec<&str> = (text.lines())
            .filter(|line| line.contains("peer="))
            .collect();
        let [first, second] = *lines else {
            panic!("{door:?}: {text}");
        };
        for line in [first, second] {
            assert!(line.contains("login refused"), "{door:?}: {line}");
        }
        all.push([first.to_owned(), second.to_owned()]);
    }
    assert!(!all.is_empty());
    all
}

/// Whether each line names its cause.
fn have(lines: &[[String; 2]], words: [&str; 2]) {
    for pair in lines {
        for (line, words) in pair.iter().zip(words) {
            let cause = line.split_once("cause=").map_or("", |(_, cause)| cause);
            assert!(cause.contains(words), "{words}: {line}");
        }
    }
}

#[test]
fn a_certificate_that_is_out_of_date_is_named() {
    let (_directory, config) = guarded(|config| config.tls.certificate_as_username = true);
    let [one, other] = ["ann", "bo\nb"].map(|name| certificate(Some(name), 2001..2002));
    let shown = Shown::Nothing;
    have(
        &lines(&config, [(Some(&one), shown), (Some(&other), shown)]),
        [
            "common name 'ann', serial ",
            "common name 'bo\\\\nb', serial ",
        ],
    );
    have(
        &lines(&config, [(Some(&one), shown), (Some(&other), shown)]),
        ["valid until Jan  1 00:00:00 2002 +00:00"; 2],
    );
    let nameless = certificate(None, 2001..2040);
    let control = certificate(Some("\u{7}"), 2001..2040);
    have(
        &lines(&config, [(Some(&nameless), shown), (Some(&control), shown)]),
        [
            "it has no common name, serial ",
            "it has common name '\\\\u{7}'",
        ],
    );
}

#[test]
fn names_that_disagree_are_both_told() {
    let (_directory, config) = guarded(|config| config.tls.certificate_as_username = true);
    let device = certificate(Some("device"), 2001..2040);
    let shown = ["ann", "bob"].map(|user| {
        let password = Shown::Password(user, "secret");
        (Some(&*device), password)
    });
    have(
        &lines(&config, shown),
        [
            "the certificate names 'device', and the client is to be 'ann'",
            "the certificate names 'device', and the client is to be 'bob'",
        ],
    );
}

#[test]
fn a_refused_token_has_its_cause() {
    let (_directory, issuer, config) = issued(|_| {});
    let late = issuer.token(&claims("ann", &json!({"exp": 1_600_000_000})));
    let other = issuer.token(&claims("ann", &json!({"iss": "https://other.example"})));
    let causes = [
        "the token has expired; it names the user 'ann'",
        "the token is not of authentication.jwt.issuer; it names the user 'ann'",
    ];
    let signed = [late, other].map(|token| (None, Shown::Signed("", token)));
    have(&lines(&config, signed), causes);
    let bearers = [late, other].map(|token| (None, Shown::Bearer(token)));
    have(&lines(&config, bearers), causes);
    let file = ["ann-old-token", "unknown-token"].map(|token| (None, Shown::Token(token)));
    have(
        &lines(&config, file),
        [
            "the token of authentication.token_file has expired",
            "authentication.token_file does not have the token",
        ],
    );
}

#[test]
fn a_ban_is_named_with_the_command_that_ends_it() {
    let (_directory, mut config) = guarded(|config| config.bans.guessing_failures = 1);
    config.guessing.free_failures = 100;
    config.guessing.free_failures_per_address = 100;
    for door in DOORS {
        let wrong = Shown::Password("ann", "wrong");
        if !takes(door, wrong) {
            continue;
        }
        let text = Lines::of(tracing::Level::WARN, |_| {
            let mut broker = Broker::with(&config, 1);
            for shown in [wrong, Shown::Password("ann", "ann-pass")] {
                let entered = enter(&mut broker, door, TransportKind::Tls, None, shown, "c");
                // In HTTP that is the status 403.
                assert!(entered.is_none() || door == Door::Http, "{door:?}");
            }
        });
        let only = |word: &str| {
            let lines: Vec<&str> = text.lines().filter(|line| line.contains(word)).collect();
            let [line] = *lines else {
                panic!("{word}: {text}");
            };
            line.to_owned()
        };
        let banned = only(": banned");
        assert!(
            banned.contains("ban=1") && banned.contains("reason="),
            "{banned}"
        );
        let refused = only("reason=\"banned\"");
        assert!(
            refused.contains("cause=\"ban 1: address 127.0.0.1, by guessing, because: "),
            "{refused}"
        );
        for line in [banned, refused] {
            assert!(line.contains("freed_by=\"sterna admin unban 1\""), "{line}");
        }
    }
}
