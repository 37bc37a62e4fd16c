//! Groups of tokens, while connections of one client come, are refused and go, and while rules change.

use serde_json::json;
use sterna_mqtt::packet::{Connect, Will};
use sterna_mqtt::{Packet, Property, PublishProperties, QoS, Version};
use sterna_net::TransportKind;
use sterna_server::Policy;
use sterna_server::config::{ActionName, Config};

use crate::fixture::{Broker, Peer, block, plain};
use crate::h3_client::Client as H3Client;
use crate::hook::{subscribes, told};
use crate::tokens::{Issuer, claims, issued};
use crate::world::certificate;

/// Contractors may read everything but secrets, which `ops` alone may.
const RULES: &str = "[authorization]\ndefault_allow = false\n\
    [[authorization.group]]\nname = 'contractors'\n\
    [[authorization.group]]\nname = 'ops'\n\
    [[authorization.rule]]\ngroups = ['contractors']\neffect = 'deny'\ntopics = ['secret/#']\n\
    [[authorization.rule]]\ngroups = ['ops']\ntopics = ['vault/#']\n\
    [[authorization.rule]]\nusers = ['*']\neffect = 'deny'\nactions = ['subscribe']\ntopics = ['vault/#']\n\
    [[authorization.rule]]\nusers = ['*']\ntopics = ['#']\n";

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
    let peer = crate::hook::connect(broker, "publisher", "bob", "bob-pass");
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
