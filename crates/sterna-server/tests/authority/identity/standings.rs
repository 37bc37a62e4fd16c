//! Groups of tokens, while connections of one client come, are refused and go, and while rules change.

use serde_json::json;
use sterna_mqtt::packet::{Connect, Will};
use sterna_mqtt::{Packet, Property, PropertyContext, PublishProperties, QoS, Version};
use sterna_net::TransportKind;
use sterna_server::Policy;
use sterna_server::config::{ActionName, Config};

use crate::fixture::{Broker, Peer, block, plain};
use crate::h3_client::Client as H3Client;
use crate::identity::hook::{subscribes, told};
use crate::identity::tokens::{Issuer, claims, issued};
use crate::identity::world::certificate;

/// Contractors may read everything but secrets, which `ops` alone may.
const RULES: &str = "[authorization]\ndefault_allow = false\n\
    [[authorization.group]]\nname = 'contractors'\n\
    [[authorization.group]]\nname = 'ops'\n\
    [[authorization.rule]]\ngroups = ['contractors']\neffect = 'deny'\ntopics = ['secret/#']\n\
    [[authorization.rule]]\ngroups = ['ops']\ntopics = ['vault/#']\n\
    [[authorization.rule]]\nusers = ['*']\neffect = 'deny'\nactions = ['subscribe']\ntopics = ['vault/#']\n\
    [[authorization.rule]]\nusers = ['*']\ntopics = ['#']\n";

/// Only `ops` may publish in the vault.
const WILLS: &str = "[authorization]\ndefault_allow = false\n\
    [[authorization.group]]\nname = 'ops'\n\
    [[authorization.rule]]\ngroups = ['ops']\ntopics = ['vault/#']\n\
    [[authorization.rule]]\nusers = ['*']\ntopics = ['plain/#']\n\
    [[authorization.rule]]\nusers = ['bob']\nactions = ['subscribe']\ntopics = ['#']\n";

fn of_groups() -> (tempfile::TempDir, Issuer, Config) {
    issued(|config| {
        config.authentication.jwt.groups_claim = Some("groups".to_owned());
        config.authorization = (sterna_server::config::parse("test", RULES))
            .expect("rules")
            .authorization;
    })
}

/// Another rule: for everybody here the rights stay as they were.
fn reload(broker: &mut Broker, config: &mut Config) {
    let mut more = config.authorization.rules[0].clone();
    more.topics = vec![format!("unused/{}", config.authorization.rules.len())];
    config.authorization.rules.insert(0, more);
    broker.apply(Policy::load(config).expect("a policy"));
}

fn connect(broker: &mut Broker, user: &str, token: &str, will: Option<&str>) -> Peer {
    let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    let lasting = block(&[Property::SessionExpiryInterval(3600)]);
    let connect = Connect {
        user_name: Some(user),
        password: Some(token.as_bytes()),
        clean_start: false,
        properties: lasting.properties(),
        will: will.map(|topic| Will {
            topic,
            payload: b"gone",
            qos: QoS::AtMostOnce,
            retain: false,
            properties: PublishProperties::EMPTY,
        }),
        ..plain(Version::V5, "x")
    };
    broker.packet(peer, Version::V5, &Packet::Connect(connect));
    broker.await_verdicts();
    peer
}

/// Publishes as a user of the files.
fn publish(broker: &mut Broker, topics: &[&str]) {
    let peer = crate::identity::hook::connect(broker, "publisher", "bob", "bob-pass");
    for topic in topics {
        broker.publish(peer, Version::V5, topic, "", QoS::AtMostOnce);
    }
    broker.cut(peer);
}

/// A second connection of a client is refused. The first keeps its groups, and so the rules that deny it something.
#[test]
fn a_connection_that_is_refused_takes_no_denial_from_another() {
    let (_directory, issuer, mut config) = of_groups();
    let mut broker = Broker::with(&config, 1);
    let token = issuer.token(&claims("joe", &json!({"groups": ["contractors"]})));
    let first = connect(&mut broker, "joe", token, None);
    assert!(told(&mut broker, first)[0].contains("Success"));
    let refused = connect(&mut broker, "joe", token, Some("$SYS/x"));
    let words = told(&mut broker, refused);
    assert!(words[0].contains("Not authorized"), "{words:?}");
    assert!(broker.is_closed(refused) && !broker.is_closed(first));

    assert!(subscribes(&mut broker, first, "secret/a").contains("0x87"));
    assert!(subscribes(&mut broker, first, "#").contains("0x01"));
    for _ in 0..2 {
        publish(&mut broker, &["secret/a", "plain/a"]);
        let got = told(&mut broker, first).join(" ");
        assert!(
            got.contains("plain/a") && !got.contains("secret/a"),
            "{got}"
        );
        reload(&mut broker, &mut config);
    }
}

/// The same of a subscription of HTTP, beside which other requests of its user come and go.
#[test]
fn a_request_takes_no_denial_from_a_subscription() {
    let (_directory, issuer, mut config) = of_groups();
    let mut broker = Broker::with(&config, 1);
    let token = issuer.token(&claims("joe", &json!({"groups": ["contractors"]})));
    let bearer = format!("Bearer {token}");
    let fields = [
        ("authorization", bearer.as_str()),
        ("accept", "text/event-stream"),
    ];
    let mut reader = H3Client::connect(&mut broker);
    let stream = reader.request(&mut broker, "GET", "/v1/topics/%23", &fields, b"");
    assert_eq!(reader.response(stream).status, 200);
    let mut other = H3Client::connect(&mut broker);
    let post = other.request(
        &mut broker,
        "POST",
        "/v1/topics/plain/x",
        &fields[..1],
        b"x",
    );
    assert_eq!(other.response(post).status / 100, 2);
    broker.cut(other.peer);
    reload(&mut broker, &mut config);
    publish(&mut broker, &["secret/a", "plain/a"]);
    reader.turn(&mut broker);
    let got = String::from_utf8_lossy(&reader.response(stream).content).into_owned();
    assert!(
        got.contains("plain/a") && !got.contains("secret/a"),
        "{got}"
    );
}

/// A user of the files came by a token with more groups, and comes back with its password.
#[test]
fn rights_of_a_token_end_with_it_also_for_a_user_of_the_files() {
    let (_directory, issuer, config) = of_groups();
    let mut broker = Broker::with(&config, 1);
    let token = issuer.token(&claims("ann", &json!({"groups": ["ops"]})));
    let first = connect(&mut broker, "ann", token, None);
    assert!(subscribes(&mut broker, first, "vault/a").contains("0x01"));
    broker.cut(first);
    let back = connect(&mut broker, "ann", "ann-pass", None);
    let words = told(&mut broker, back).join(" ");
    assert!(words.contains("Success"), "{words}");
    publish(&mut broker, &["vault/a"]);
    let got = told(&mut broker, back).join(" ");
    assert!(!got.contains("vault/a"), "{got}");
}

/// Tokens with groups come with a reload. Clients that are there have none, and new rules hold for them.
#[test]
fn new_rules_hold_for_clients_from_before_tokens_had_groups() {
    let (_directory, _issuer, mut config) = of_groups();
    let groups_claim = config.authentication.jwt.groups_claim.take();
    config.tls.certificate_as_username = true;
    let mut broker = Broker::with(&config, 1);
    let shown = certificate(Some("joe"), 2020..2040);
    let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tls, vec![shown]);
    broker.packet(peer, Version::V5, &Packet::Connect(plain(Version::V5, "x")));
    let words = subscribes(&mut broker, peer, "#");
    assert!(words.contains("0x01"), "{words}");
    let mut deny = config.authorization.rules[0].clone();
    deny.groups = Vec::new();
    deny.users = vec!["*".to_owned()];
    deny.actions = vec![ActionName::Subscribe];
    config.authorization.rules.insert(0, deny);
    config.authentication.jwt.groups_claim = groups_claim;
    broker.apply(Policy::load(&config).expect("a policy"));
    assert!(!broker.is_closed(peer));
    publish(&mut broker, &["secret/a", "plain/a"]);
    let got = told(&mut broker, peer).join(" ");
    assert!(
        got.contains("plain/a") && !got.contains("secret/a"),
        "{got}"
    );
}

/// Enters with a will that is delayed, in a session that is kept for long.
fn leave_will(
    broker: &mut Broker,
    credential: (&str, &str),
    client: &str,
    topic: &str,
    delay_s: u32,
) {
    let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    let lasting = block(&[Property::SessionExpiryInterval(u32::MAX)]);
    let delay = block(&[Property::WillDelayInterval(delay_s)]);
    let connect = Connect {
        user_name: Some(credential.0),
        password: Some(credential.1.as_bytes()),
        properties: lasting.properties(),
        will: Some(Will {
            topic,
            payload: b"gone",
            qos: QoS::AtMostOnce,
            retain: true,
            properties: delay
                .publish_properties(PropertyContext::Will)
                .expect("a will's"),
        }),
        ..plain(Version::V5, client)
    };
    broker.packet(peer, Version::V5, &Packet::Connect(connect));
    broker.await_verdicts();
    let words = told(broker, peer).join(" ");
    assert!(words.contains("Success"), "{words}");
    broker.cut(peer);
}

/// The right to publish came with a token's group. It holds for a will whose client is away, and ends a day later.
#[test]
fn rights_of_a_token_hold_for_a_delayed_will_and_not_for_ever() {
    const DAY_S: u32 = 24 * 60 * 60;
    let (_directory, issuer, mut config) = of_groups();
    config.authorization = (sterna_server::config::parse("test", WILLS))
        .expect("rules")
        .authorization;
    config.bans.flapping_logins = 1;
    let mut broker = Broker::with(&config, 1);
    let token = issuer.token(&claims("joe", &json!({"groups": ["ops"]})));
    let watcher = crate::identity::hook::connect(&mut broker, "watcher", "bob", "bob-pass");
    assert!(subscribes(&mut broker, watcher, "#").contains("0x01"));
    let files = issuer.token(&claims("ann", &json!({"groups": ["ops"]})));
    leave_will(&mut broker, ("joe", token), "a", "vault/soon", 5);
    leave_will(&mut broker, ("ann", files), "b", "vault/of-the-files", 5);
    leave_will(&mut broker, ("joe", token), "c", "vault/late", DAY_S + 60);
    leave_will(&mut broker, ("joe", token), "d", "plain/late", DAY_S + 60);
    leave_will(&mut broker, ("joe", token), "e", "plain/reloaded", 5);
    leave_will(&mut broker, ("ann", "ann-pass"), "f", "plain/removed", 5);
    leave_will(&mut broker, ("joe", token), "g", "vault/banned", 5);
    let flapping = crate::identity::hook::connect(&mut broker, "g", "joe", token);
    assert!(broker.is_closed(flapping));
    config.authorization.rules[1].topics = vec!["plain/late".to_owned()];
    broker.apply(Policy::load(&config).expect("a policy"));
    broker.advance(6_000);
    let got = told(&mut broker, watcher).join(" ");
    assert!(got.contains("vault/soon"), "{got}");
    assert!(got.contains("vault/of-the-files"), "{got}");
    assert!(!got.contains("vault/banned"), "{got}");
    assert!(
        !got.contains("plain/"),
        "these were allowed by a rule that is gone: {got}"
    );
    for wire in &mut broker.wires {
        wire.now_ms += u64::from(DAY_S) * 1_000 + 60_000;
    }
    broker.advance(1_000);
    let watcher = crate::identity::hook::connect(&mut broker, "later", "bob", "bob-pass");
    let got = subscribes(&mut broker, watcher, "#");
    assert!(
        got.contains("plain/late") && !got.contains("vault/late"),
        "{got}"
    );
}

/// Nothing is known of the groups of a client that is away. A rule that denies whatever they are takes the right from there
/// on, and gives it back where it goes again, as for users of the files.
#[test]
fn what_rules_deny_whatever_a_token_gives_is_not_the_clients_while_it_is_away() {
    for is_here_at in [[false, false], [true, false], [false, true]] {
        let (_directory, issuer, config) = of_groups();
        let mut broker = Broker::with(&config, 2);
        let token = issuer.token(&claims("joe", &json!({"groups": ["ops"]})));
        let mut reader = connect(&mut broker, "joe", token, None);
        for filter in ["plain/#", "vault/#"] {
            assert!(subscribes(&mut broker, reader, filter).contains("0x01"));
        }
        let mut denied = config.clone();
        let mut rule = config.authorization.rules[2].clone();
        rule.topics = vec!["plain/#".to_owned()];
        denied.authorization.rules.insert(0, rule);
        let mut got = Vec::new();
        let mut be_there = |broker: &mut Broker, is_here: bool| {
            if broker.is_closed(reader) == is_here {
                if is_here {
                    reader = connect(broker, "joe", token, None);
                } else {
                    broker.cut(reader);
                }
            }
            if is_here {
                got.extend(told(broker, reader));
            }
        };
        let say = |broker: &mut Broker, text: &str| {
            let bob = crate::identity::hook::connect(broker, "publisher", "bob", "bob-pass");
            for topic in ["plain/a", "vault/a"] {
                broker.publish(bob, Version::V5, topic, text, QoS::AtLeastOnce);
            }
            broker.cut(bob);
        };
        be_there(&mut broker, false);
        say(&mut broker, "before");
        be_there(&mut broker, is_here_at[0]);
        broker.apply(Policy::load(&denied).expect("a policy"));
        be_there(&mut broker, false);
        say(&mut broker, "denied");
        be_there(&mut broker, is_here_at[1]);
        broker.apply(Policy::load(&config).expect("a policy"));
        be_there(&mut broker, false);
        say(&mut broker, "after");
        be_there(&mut broker, true);
        let came = |topic: &str| -> Vec<&str> {
            let begin = format!("{topic}=");
            let first = got.iter().filter(|line| !line.contains(" dup "));
            let of_topic = first.filter_map(|line| line.split_once(&begin));
            of_topic.map(|(_, text)| text).collect()
        };
        // Messages of before are judged when it is their turn: here in the time of the denial.
        let plain: &[&str] = if is_here_at[1] {
            &["after"]
        } else {
            &["before", "after"]
        };
        assert_eq!(came("plain/a"), plain, "{is_here_at:?}");
        assert_eq!(
            came("vault/a"),
            ["before", "denied", "after"],
            "{is_here_at:?}"
        );
    }
}
