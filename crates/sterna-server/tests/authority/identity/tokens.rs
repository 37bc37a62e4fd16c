//! Signed tokens: right and wrong ones at every door, their end, their renewal, and attacks on them.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::{Value, json};
use sterna_mqtt::packet::{Auth, Connect, Publish};
use sterna_mqtt::{Packet, PacketId, Property, QoS, ReasonCode, Version};
use sterna_net::TransportKind;
use sterna_server::Policy;
use sterna_server::config::{Config, Jwt, JwtAlgorithm};

use crate::amqp_client::{Client as AmqpClient, Start};
use crate::fixture::{Broker, Peer, block, encode, plain, publish};
use crate::h3_client::Client as H3Client;
use crate::identity::table::TRANSPORTS;
use crate::identity::world::{
    Bearer, DOORS, Door, Entered, Quiet, Shown, authorization, carries, certificate, enter,
    guarded, oauth, operator, takes,
};

/// The time at which every broker of these tests begins, in seconds.
const NOW_S: u64 = 1_700_000_000;
const SKEW_S: u64 = 30;
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
/// Keys and tokens that another program has made.
const VECTORS: &str = include_str!("../../../src/identity/jwt/vectors.json");

/// An issuer, and a folder with its keys.
pub struct Issuer {
    directory: tempfile::TempDir,
    curve: EcdsaKeyPair,
    edwards: Ed25519KeyPair,
    vectors: Value,
}

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let curve = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        let edwards = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
        let this = Self {
            directory: tempfile::tempdir().expect("a folder"),
            curve: EcdsaKeyPair::from_pkcs8(algorithm, curve.as_ref(), &random).expect("a key"),
            edwards: Ed25519KeyPair::from_pkcs8(edwards.as_ref()).expect("a key"),
            vectors: serde_json::from_str(VECTORS).expect("JSON"),
        };
        this.publish(&["own-ec", "own-ed", "own-secret", "r"]);
        this
    }

    /// Writes the keys of these names.
    fn publish(&self, names: &[&str]) {
        let point = self.curve.public_key().as_ref();
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut keys = vec![
            json!({"kty": "EC", "crv": "P-256", "kid": "own-ec",
                   "x": encode(&point[1..33]), "y": encode(&point[33..])}),
            json!({"kty": "OKP", "crv": "Ed25519", "kid": "own-ed",
                   "x": encode(self.edwards.public_key().as_ref())}),
            json!({"kty": "oct", "kid": "own-secret", "k": encode(SECRET)}),
        ];
        let foreign = self.vectors["jwks"]["keys"].as_array().expect("keys");
        keys.extend(foreign.iter().cloned());
        keys.retain(|key| names.iter().any(|name| key["kid"] == *name));
        assert_eq!(keys.len(), names.len());
        let path = self.directory.path().join("keys.json");
        std::fs::write(path, json!({ "keys": keys }).to_string()).expect("written");
    }

    fn config(&self) -> Jwt {
        Jwt {
            key_files: vec![self.directory.path().join("keys.json")],
            algorithms: vec![
                JwtAlgorithm::Es256,
                JwtAlgorithm::EdDsa,
                JwtAlgorithm::Rs256,
                JwtAlgorithm::Hs256,
            ],
            issuer: Some("https://issuer.example".to_owned()),
            audiences: vec!["sterna".to_owned()],
            clock_skew_s: SKEW_S as u32,
            maximum_token_bytes: 4096,
            ..Jwt::default()
        }
    }

    /// A token by a header's algorithm and key, signed as `sign` says.
    fn signed(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> &'static str {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(sign(message.as_bytes()));
        format!("{message}.{signature}").leak()
    }

    fn by_curve(&self, message: &[u8]) -> Vec<u8> {
        let signature = self.curve.sign(&SystemRandom::new(), message);
        signature.expect("signs").as_ref().to_vec()
    }

    /// A token by ES256 with these claims.
    pub fn token(&self, claims: &Value) -> &'static str {
        let header = json!({"alg": "ES256", "kid": "own-ec"});
        Self::signed(&header, claims, |message| self.by_curve(message))
    }
}

fn by_secret(secret: &[u8], message: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::sign(&key, message).as_ref().to_vec()
}

/// Claims of a user that are good for an hour, with changes; `null` takes one away.
pub fn claims(user: &str, changes: &Value) -> Value {
    let mut claims = json!({
        "iss": "https://issuer.example",
        "aud": "sterna",
        "sub": user,
        "exp": NOW_S + 3600,
    });
    for (name, value) in changes.as_object().expect("an object") {
        claims[name] = value.clone();
    }
    let object = claims.as_object_mut().expect("an object");
    object.retain(|_, value| !value.is_null());
    claims
}

/// Users, tokens and an issuer.
pub fn issued(change: impl FnOnce(&mut Config)) -> (tempfile::TempDir, Issuer, Config) {
    let issuer = Issuer::new();
    let (directory, config) = guarded(|config| {
        config.authentication.jwt = issuer.config();
        change(config);
    });
    assert_eq!(config.check(), Ok(()));
    (directory, issuer, config)
}

/// What may be wrong with a token, each with the user whom it names, if it is good.
fn tokens(issuer: &Issuer) -> Vec<(&'static str, &'static str, Option<&'static str>)> {
    let good = claims("ann", &json!({}));
    let header = |algorithm: &str, key: &str| json!({"alg": algorithm, "kid": key});
    let by_curve = |message: &[u8]| issuer.by_curve(message);
    let by_edwards = |message: &[u8]| issuer.edwards.sign(message).as_ref().to_vec();
    let by_shared = |message: &[u8]| by_secret(SECRET, message);
    let nothing = |_: &[u8]| Vec::new();
    let changed = |changes: Value| issuer.token(&claims("ann", &changes));
    let rsa: &'static str = {
        let token = issuer.vectors["tokens"]["RS256"].as_str();
        token.expect("a token").to_owned().leak()
    };
    let of_stranger = Issuer::new();
    let modulus = issuer.vectors["jwks"]["keys"][0]["n"].as_str().expect("n");
    let modulus = URL_SAFE_NO_PAD.decode(modulus).expect("base64url");
    let pem = issuer.vectors["pem"].as_str().expect("PEM").to_owned();
    let pem_of_rsa = pem.split_inclusive("-----END PUBLIC KEY-----\n").next();
    let pem_of_rsa = pem_of_rsa.expect("a key").to_owned();
    let confused = |secret: Vec<u8>| move |message: &[u8]| by_secret(&secret, message);
    vec![
        ("ES256", issuer.token(&good), Some("ann")),
        (
            "EdDSA",
            Issuer::signed(&header("EdDSA", "own-ed"), &good, by_edwards),
            Some("ann"),
        ),
        (
            "HS256",
            Issuer::signed(&header("HS256", "own-secret"), &good, by_shared),
            Some("ann"),
        ),
        ("RS256", rsa, Some("ann")),
        (
            "another user",
            issuer.token(&claims("bob", &json!({}))),
            Some("bob"),
        ),
        (
            "no kid, one key",
            Issuer::signed(&json!({"alg": "ES256"}), &good, by_curve),
            Some("ann"),
        ),
        (
            "several audiences",
            changed(json!({"aud": ["x", "sterna"]})),
            Some("ann"),
        ),
        (
            "expired within the skew",
            changed(json!({"exp": NOW_S - SKEW_S + 5})),
            Some("ann"),
        ),
        (
            "valid within the skew",
            changed(json!({"nbf": NOW_S + SKEW_S})),
            Some("ann"),
        ),
        (
            "wrong signature",
            Issuer::signed(&header("ES256", "own-ec"), &good, by_edwards),
            None,
        ),
        ("signed by a stranger", of_stranger.token(&good), None),
        (
            "no signature",
            Issuer::signed(&header("ES256", "own-ec"), &good, nothing),
            None,
        ),
        (
            "a changed RSA token",
            format!("{}AAAA", &rsa[..rsa.len() - 4]).leak(),
            None,
        ),
        ("expired", changed(json!({"exp": NOW_S - SKEW_S})), None),
        ("without an end", changed(json!({"exp": null})), None),
        (
            "an end that is a text",
            changed(json!({"exp": "2100-01-01"})),
            None,
        ),
        (
            "not yet valid",
            changed(json!({"nbf": NOW_S + SKEW_S + 1})),
            None,
        ),
        ("wrong audience", changed(json!({"aud": "another"})), None),
        ("no audience", changed(json!({"aud": null})), None),
        (
            "wrong issuer",
            changed(json!({"iss": "https://evil.example"})),
            None,
        ),
        ("no issuer", changed(json!({"iss": null})), None),
        ("no user", changed(json!({"sub": null})), None),
        (
            "a user with a line break",
            changed(json!({"sub": "ann\n"})),
            None,
        ),
        (
            "alg none",
            Issuer::signed(&header("none", "own-ec"), &good, nothing),
            None,
        ),
        (
            "alg None, signed",
            Issuer::signed(&header("None", "own-ec"), &good, by_curve),
            None,
        ),
        (
            "no alg",
            Issuer::signed(&json!({"kid": "own-ec"}), &good, by_curve),
            None,
        ),
        (
            "RSA modulus as secret",
            Issuer::signed(&header("HS256", "r"), &good, confused(modulus)),
            None,
        ),
        (
            "RSA key in PEM as secret",
            Issuer::signed(
                &header("HS256", "r"),
                &good,
                confused(pem_of_rsa.into_bytes()),
            ),
            None,
        ),
        (
            "the algorithm of another key",
            Issuer::signed(&header("EdDSA", "own-ec"), &good, by_curve),
            None,
        ),
        (
            "unknown kid",
            Issuer::signed(&header("ES256", "x"), &good, by_curve),
            None,
        ),
        (
            "a key of its own",
            Issuer::signed(
                &json!({"alg": "ES256", "jwk": {"kty": "oct"}, "jku": "http://127.0.0.1/"}),
                &good,
                |message| of_stranger.by_curve(message),
            ),
            None,
        ),
        (
            "an extension",
            Issuer::signed(
                &json!({"alg": "ES256", "kid": "own-ec", "crit": ["b64"]}),
                &good,
                by_curve,
            ),
            None,
        ),
        ("no object", "eyJ9.eyJ9.AAAA", None),
        ("too long", changed(json!({"x": "x".repeat(4000)})), None),
    ]
}

#[test]
fn every_door_gives_the_same_verdict_on_tokens() {
    for takes_names in [false, true] {
        verdicts_on_tokens(takes_names);
    }
}

fn verdicts_on_tokens(takes_names: bool) {
    let (_directory, issuer, config) = issued(|config| {
        config.authentication.jwt.token_as_user_name = takes_names;
        config.tls.certificate_as_username = true;
        // Each wrong attempt of the table is to be looked at.
        config.guessing.free_failures = 0;
        config.guessing.free_failures_per_address = 0;
    });
    let mut broker = Broker::with(&config, 1);
    let mut verdicts = 0;
    for (what, token, user) in tokens(&issuer) {
        for badge in [None, Some("ann"), Some("bob")] {
            let der = badge.map(|name| certificate(Some(name), 2020..2030));
            for (shown, named) in [
                (Shown::Signed("", token), None),
                (Shown::Signed("ann", token), Some("ann")),
                (Shown::Bearer(token), None),
                (Shown::Name(token), None),
                (Shown::Password(token, ""), None),
            ] {
                let is_name = matches!(shown, Shown::Name(_) | Shown::Password(..));
                let agrees = |name: Option<&str>| name.is_none() || name == user;
                let expected = user.filter(|_| agrees(named) && agrees(badge));
                let expected = expected.filter(|_| takes_names || !is_name);
                for door in DOORS {
                    for transport in TRANSPORTS {
                        if !takes(door, shown) || !carries(door, transport, der.is_some()) {
                            continue;
                        }
                        let name = format!("c{verdicts}");
                        let der = der.as_deref();
                        let entered = enter(&mut broker, door, transport, der, shown, &name);
                        let who = entered.map(|mut entered| entered.name(&mut broker));
                        assert_eq!(
                            who, expected,
                            "{what} {door:?} {transport:?} {badge:?} {named:?}"
                        );
                        verdicts += 1;
                    }
                }
            }
        }
    }
    assert!(verdicts > 1000, "{verdicts}");
}

/// Operators show the same tokens, as bearer tokens and as passwords.
#[test]
fn the_admin_listener_gives_the_same_verdict_on_tokens() {
    let (_directory, issuer, config) = issued(|config| {
        config.guessing.free_failures = 0;
        config.guessing.free_failures_per_address = 0;
        config.listeners[1].anonymous = Some(false);
    });
    let mut broker = Broker::with(&config, 1);
    for (what, token, user) in tokens(&issuer) {
        for transport in [TransportKind::Tcp, TransportKind::Tls] {
            for shown in [Shown::Bearer(token), Shown::Signed("", token)] {
                let who = operator(&mut broker, transport, None, shown);
                assert_eq!(who, user, "{what} {transport:?} {shown:?}");
            }
        }
    }
}

/// SASL says why a token is refused, in JSON, before the outcome (RFC 7628, section 3.2.2).
#[test]
fn a_refused_token_gets_an_error_challenge_and_then_the_outcome() {
    let (_directory, issuer, config) = issued(|_| {});
    let mut broker = Broker::with(&config, 1);
    let good = issuer.token(&claims("ann", &json!({})));
    let old = issuer.token(&claims("ann", &json!({"exp": NOW_S - 1000})));
    for (token, status) in [
        (good, None),
        (old, Some("invalid_token")),
        ("no token", Some("invalid_token")),
        ("a\u{1}auth=Bearer b", Some("invalid_request")),
    ] {
        let errors: Arc<Mutex<Vec<String>>> = Arc::default();
        let start = Start {
            mechanism: Some(Box::new(Bearer(token, Arc::clone(&errors)))),
            ..Start::new("c")
        };
        let mut client = AmqpClient::start(&mut broker, start);
        client.turn(&mut broker);
        client.turn(&mut broker);
        let told = errors.lock().expect("a lock");
        let told = told.iter().map(|text| {
            let error: Value = serde_json::from_str(text).expect("JSON");
            error["status"].as_str().expect("a status").to_owned()
        });
        let told: Vec<String> = told.collect();
        assert_eq!(told.first().map(String::as_str), status, "{token}");
        assert_eq!(client.is_open, status.is_none(), "{token}");
        assert_eq!(broker.is_closed(client.peer), status.is_some(), "{token}");
    }
}

/// Groups and rules of a token are those of its client, and a token without the claims is refused.
#[test]
fn claims_give_groups_and_rules() {
    let (_directory, issuer, config) = issued(|config| {
        let jwt = &mut config.authentication.jwt;
        jwt.groups_claim = Some("/realm/groups".to_owned());
        jwt.rules_claim = Some("rules".to_owned());
        config.authorization = sterna_server::config::parse(
            "test",
            "[authorization]\ndefault_allow = false\n[[authorization.group]]\nname = 'plant'\n\
             [[authorization.rule]]\ngroups = ['plant']\ntopics = ['plant/#']\n",
        )
        .expect("rules")
        .authorization;
    });
    let mut broker = Broker::with(&config, 1);
    let none = json!([]);
    let own = json!([{"topics": ["own/%u/#"], "actions": ["subscribe"]}]);
    let asking = json!([{"topics": ["a"], "effect": "ask"}]);
    for (what, groups, rules, allowed) in [
        (
            "a group",
            json!(["plant", "x"]),
            none.clone(),
            Some(["plant/a"].as_slice()),
        ),
        ("one text", json!("plant"), none.clone(), Some(&["plant/a"])),
        ("another group", json!(["office"]), none.clone(), Some(&[])),
        ("a rule", json!([]), own.clone(), Some(&["own/ann/a"])),
        (
            "both",
            json!(["plant"]),
            own,
            Some(&["plant/a", "own/ann/a"]),
        ),
        ("no group", Value::Null, none.clone(), None),
        ("no rules", json!([]), Value::Null, None),
        ("no list", json!([]), json!({"topics": ["a"]}), None),
        ("a rule that asks", json!([]), asking, None),
        ("a number", json!([1]), none, None),
    ] {
        let claims = claims("ann", &json!({"realm": {"groups": groups}, "rules": rules}));
        let token = issuer.token(&claims);
        for door in [Door::Mqtt5, Door::Amqp(Quiet::NoLayer), Door::Http] {
            let shown = Shown::Bearer(token);
            let name = format!("{what}{door:?}");
            let entered = enter(&mut broker, door, TransportKind::Quic, None, shown, &name);
            // Each request of HTTP is judged for itself.
            let entered = entered.filter(|_| door != Door::Http || allowed.is_some());
            assert_eq!(entered.is_some(), allowed.is_some(), "{what} {door:?}");
            let (Some(mut entered), Some(allowed)) = (entered, allowed) else {
                continue;
            };
            for topic in ["plant/a", "own/ann/a", "own/bob/a", "other"] {
                let may = entered.reads(&mut broker, topic) / 100 == 2;
                assert_eq!(may, allowed.contains(&topic), "{what} {door:?} {topic}");
            }
        }
    }
}

/// A client that proves itself again has the new token's groups from the next packet on, also of the same input.
#[test]
fn the_groups_of_another_token_hold_from_the_next_packet() {
    let (_directory, issuer, config) = issued(|config| {
        config.authentication.jwt.groups_claim = Some("groups".to_owned());
        config.authorization = sterna_server::config::parse(
            "test",
            "[authorization]\ndefault_allow = false\n[[authorization.group]]\nname = 'plant'\n\
             [[authorization.rule]]\ngroups = ['plant']\ntopics = ['plant/#']\n",
        )
        .expect("rules")
        .authorization;
    });
    let mut broker = Broker::with(&config, 1);
    let token = |group: &str| issuer.token(&claims("ann", &json!({"groups": [group]})));
    let (first, second) = (token("plant"), token("office"));
    let shown = Shown::Bearer(first);
    let entered = enter(
        &mut broker,
        Door::Mqtt5,
        TransportKind::Tcp,
        None,
        shown,
        "c",
    );
    let Some(Entered::Mqtt(peer, version)) = entered else {
        panic!("enters")
    };
    let mut input = Vec::new();
    for (packet_id, token) in [(1, None), (2, Some(second)), (3, Some(first)), (4, None)] {
        let message = Packet::Publish(Publish {
            packet_id: PacketId::new(packet_id),
            ..publish("plant/a", "x", QoS::AtLeastOnce)
        });
        input.extend_from_slice(&encode(version, &message));
        let Some(token) = token else { continue };
        let data = oauth(token);
        let properties = block(&[
            Property::AuthenticationMethod("OAUTHBEARER"),
            Property::AuthenticationData(data.as_bytes()),
        ]);
        let auth = Auth {
            reason: ReasonCode::ReAuthenticate,
            properties: properties.properties(),
        };
        input.extend_from_slice(&encode(version, &Packet::Auth(auth)));
    }
    broker.send(peer, &input);
    let told = broker.told(peer, version);
    let refused: Vec<bool> = (told.iter())
        .filter(|answer| answer.starts_with("PUBACK"))
        .map(|answer| answer.contains("Not authorized"))
        .collect();
    assert_eq!(refused, [false, false, true, false], "{told:?}");
}

/// What a client is told, and how many connections are left.
fn heard(broker: &mut Broker, peer: Peer) -> Vec<String> {
    broker.told(peer, Version::V5)
}

fn enter_by(broker: &mut Broker, door: Door, token: &'static str, name: &str) -> Option<Entered> {
    let shown = Shown::Signed("ann", token);
    enter(broker, door, TransportKind::Quic, None, shown, name)
}

/// The end of a token is the end of what its client does, and each protocol says so.
#[test]
fn the_end_of_a_token_ends_the_connection() {
    let (_directory, issuer, config) = issued(|_| {});
    let mut broker = Broker::with(&config, 1);
    let token = issuer.token(&claims("ann", &json!({"exp": NOW_S + 20})));
    let Some(Entered::Mqtt(mqtt5, _)) = enter_by(&mut broker, Door::Mqtt5, token, "a") else {
        panic!("enters")
    };
    let Some(Entered::Mqtt(mqtt3, _)) = enter_by(&mut broker, Door::Mqtt311, token, "b") else {
        panic!("enters")
    };
    let amqp = enter_by(&mut broker, Door::Amqp(Quiet::NoLayer), token, "c");
    let Some(Entered::Amqp(mut amqp)) = amqp else {
        panic!("enters")
    };
    let mut http = H3Client::connect(&mut broker);
    let value = authorization(Shown::Bearer(token)).expect("a field");
    let fields = [("authorization", value.as_str())];
    let poll = http.request(
        &mut broker,
        "GET",
        "/v1/topics/free/x?wait=300s",
        &fields,
        b"",
    );
    let fields = [
        ("authorization", value.as_str()),
        ("accept", "text/event-stream"),
    ];
    let stream = http.request(&mut broker, "GET", "/v1/topics/free/x", &fields, b"");
    assert_eq!(http.response(stream).status, 200);

    broker.advance((20 + SKEW_S) * 1000 - 1);
    amqp.turn(&mut broker);
    http.turn(&mut broker);
    assert!(!broker.is_closed(mqtt5) && !broker.is_closed(mqtt3));
    assert!(!broker.is_closed(amqp.peer));
    assert!(!http.response(stream).is_complete);
    heard(&mut broker, mqtt5);

    broker.advance(1);
    amqp.turn(&mut broker);
    http.turn(&mut broker);
    assert_eq!(
        heard(&mut broker, mqtt5),
        ["DISCONNECT Maximum connect time"]
    );
    assert!(broker.is_closed(mqtt5) && broker.is_closed(mqtt3));
    assert_eq!(
        amqp.condition().as_deref(),
        Some("amqp:unauthorized-access")
    );
    assert_eq!(http.response(poll).status, 401);
    let challenge = http.response(poll).field("www-authenticate");
    assert!(challenge.is_some_and(|challenge| challenge.starts_with("Bearer")));
    assert!(http.response(stream).is_complete);
    let fields = [("authorization", value.as_str())];
    let again = http.request(
        &mut broker,
        "GET",
        "/v1/topics/free/x?wait=0s",
        &fields,
        b"",
    );
    assert_eq!(http.response(again).status, 401);
    for door in DOORS {
        if takes(door, Shown::Signed("ann", token)) {
            assert!(
                enter_by(&mut broker, door, token, "again").is_none(),
                "{door:?}"
            );
        }
    }
}

/// The same for a token of the file, beside a user who stays.
#[test]
fn the_end_of_a_token_of_the_file_ends_its_responses() {
    let (directory, config) = guarded(|_| {});
    let path = directory.path().join("tokens");
    let known = std::fs::read_to_string(&path).expect("a file");
    let soon = known.replace(":1800000000", &format!(":{}", NOW_S + 10));
    assert_ne!(known, soon);
    std::fs::write(&path, soon).expect("a file");
    let mut broker = Broker::with(&config, 1);
    let mut http = H3Client::connect(&mut broker);
    let open = |broker: &mut Broker, http: &mut H3Client, user: &str, path: &str| {
        let value = format!("Bearer {user}-token");
        let fields = [
            ("authorization", value.as_str()),
            ("accept", "text/event-stream"),
        ];
        http.request(broker, "GET", path, &fields, b"")
    };
    let ends = open(&mut broker, &mut http, "bob", "/v1/topics/free/x");
    let stays = open(&mut broker, &mut http, "ann", "/v1/topics/free/x");
    broker.advance(9_999);
    http.turn(&mut broker);
    assert_eq!(http.response(ends).status, 200);
    assert!(!http.response(ends).is_complete);
    broker.advance(1);
    http.turn(&mut broker);
    assert!(http.response(ends).is_complete);
    assert_eq!(http.response(stays).status, 200);
    assert!(!http.response(stays).is_complete);
    let again = open(&mut broker, &mut http, "bob", "/v1/topics/free/x");
    assert_eq!(http.response(again).status, 401);
}

fn properties_of(token: &str) -> sterna_mqtt::PropertyBuf {
    block(&[
        Property::AuthenticationMethod("OAUTHBEARER"),
        Property::AuthenticationData(oauth(token).as_bytes()),
    ])
}

fn renew(broker: &mut Broker, peer: Peer, token: &str) -> Vec<String> {
    let properties = properties_of(token);
    let auth = Auth {
        reason: ReasonCode::ReAuthenticate,
        properties: properties.properties(),
    };
    broker.packet(peer, Version::V5, &Packet::Auth(auth));
    heard(broker, peer)
}

/// A token may stand in the place of a password, and HTTP answers both with the same status.
#[test]
fn a_token_that_is_not_accepted_is_wrong_credentials() {
    let (_directory, issuer, config) = issued(|_| {});
    let mut broker = Broker::with(&config, 1);
    let expired = issuer.token(&claims("ann", &json!({"exp": NOW_S - 600})));
    for (version, answer) in [
        (Version::V5, "CONNACK Bad User Name or Password"),
        (Version::V311, "CONNACK Bad User Name or Password"),
    ] {
        let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Quic, Vec::new());
        let connect = Connect {
            user_name: Some("ann"),
            password: Some(expired.as_bytes()),
            ..plain(version, "token")
        };
        broker.packet(peer, version, &Packet::Connect(connect));
        broker.await_verdicts();
        assert_eq!(broker.told(peer, version), [answer]);
    }
}

/// Re-authentication renews a connection, and a bad one ends it.
#[test]
fn a_new_token_renews_the_connection() {
    let (_directory, issuer, config) = issued(|_| {});
    let until = |user: &str, exp_s: u64| issuer.token(&claims(user, &json!({"exp": exp_s})));
    let first = until("ann", NOW_S + 60);
    for (token, reply, lasts) in [
        (until("ann", NOW_S + 600), "AUTH Success", true),
        (
            until("bob", NOW_S + 600),
            "DISCONNECT Not authorized",
            false,
        ),
        (
            until("ann", NOW_S - 600),
            "DISCONNECT Not authorized",
            false,
        ),
        ("garbage", "DISCONNECT Not authorized", false),
    ] {
        let mut broker = Broker::with(&config, 1);
        let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Quic, Vec::new());
        let properties = properties_of(first);
        let connect = Connect {
            properties: properties.properties(),
            keep_alive_s: 0,
            ..plain(Version::V5, "c")
        };
        broker.packet(peer, Version::V5, &Packet::Connect(connect));
        assert_eq!(heard(&mut broker, peer), ["CONNACK Success"]);
        assert_eq!(renew(&mut broker, peer, token), [reply]);
        broker.advance((60 + SKEW_S) * 1000);
        assert_eq!(!broker.is_closed(peer), lasts, "{reply}");
        if lasts {
            broker.advance(540 * 1000 - 1);
            assert!(!broker.is_closed(peer));
            broker.advance(1);
            assert_eq!(
                heard(&mut broker, peer),
                ["DISCONNECT Maximum connect time"]
            );
        }
    }
}

/// A key that is taken away takes its clients with it, and no others.
#[test]
fn a_key_that_is_revoked_ends_what_it_has_signed() {
    let (_directory, issuer, config) = issued(|_| {});
    let by_curve = issuer.token(&claims("ann", &json!({})));
    let header = json!({"alg": "HS256", "kid": "own-secret"});
    let sign = |message: &[u8]| by_secret(SECRET, message);
    let by_shared = Issuer::signed(&header, &claims("ann", &json!({})), sign);
    for door in DOORS {
        if !takes(door, Shown::Signed("ann", by_curve)) {
            continue;
        }
        let mut broker = Broker::with(&config, 1);
        issuer.publish(&["own-ec", "own-secret"]);
        broker.apply(Policy::load(&config).expect("a policy"));
        let mut ends = enter_by(&mut broker, door, by_curve, "ends").expect("enters");
        let mut stays = enter_by(&mut broker, door, by_shared, "stays").expect("enters");
        issuer.publish(&["own-secret"]);
        broker.apply(Policy::load(&config).expect("a policy"));
        for (entered, is_in) in [(&mut ends, false), (&mut stays, true)] {
            match entered {
                Entered::Mqtt(peer, _) => assert_eq!(!broker.is_closed(*peer), is_in),
                Entered::Amqp(client) => assert_eq!(!broker.is_closed(client.peer), is_in),
                Entered::Http(..) | Entered::Http1(..) => {
                    let status = entered.reads(&mut broker, "who/ann");
                    assert_eq!(status / 100 == 2, is_in, "{status}");
                }
            }
        }
        assert!(enter_by(&mut broker, door, by_curve, "again").is_none());
        assert!(enter_by(&mut broker, door, by_shared, "other").is_some());
    }
    issuer.publish(&["own-secret"]);
    let path = issuer.directory.path().join("keys.json");
    std::fs::write(path, "{").expect("written");
    assert!(Policy::load(&config).is_err(), "the last good keys stay");
}

/// Guesses with tokens count as those with passwords do, and an expired token is none.
#[test]
fn wrong_tokens_are_guesses() {
    let (_directory, issuer, config) = issued(|_| {});
    let stranger = Issuer::new();
    let wrong = stranger.token(&claims("ann", &json!({})));
    let expired = issuer.token(&claims("ann", &json!({"exp": NOW_S - 600})));
    let right = issuer.token(&claims("ann", &json!({})));
    let of_bob = Shown::Bearer(issuer.token(&claims("bob", &json!({}))));
    let free = config.guessing.free_failures;
    for door in DOORS {
        if !takes(door, Shown::Signed("ann", wrong)) {
            continue;
        }
        let mut broker = Broker::with(&config, 1);
        broker.come_from([192, 0, 2, 1]);
        for _ in 0..3 * free {
            assert!(enter_by(&mut broker, door, expired, "x").is_none());
        }
        for _ in 0..=free {
            assert!(enter_by(&mut broker, door, wrong, "x").is_none());
        }
        let password = Shown::Password("ann", "ann-pass");
        let try_it = |broker: &mut Broker, shown: Shown| {
            enter(broker, Door::Http, TransportKind::Quic, None, shown, "x").is_some()
        };
        for shown in [Shown::Bearer(right), password] {
            assert!(
                !try_it(&mut broker, shown),
                "{door:?} {shown:?} has to wait"
            );
        }
        assert!(try_it(&mut broker, of_bob), "other users do not");
        broker.come_from([192, 0, 2, 2]);
        assert!(
            try_it(&mut broker, Shown::Bearer(right)),
            "nor other addresses"
        );
        broker.come_from([192, 0, 2, 1]);
        broker.advance(config.guessing.first_delay_ms);
        assert!(try_it(&mut broker, Shown::Bearer(right)));
    }
}

/// A token says which client identifiers its user may have.
#[test]
fn a_token_binds_client_identifiers() {
    let (_directory, issuer, config) = issued(|config| {
        config.authentication.jwt.client_ids_claim = Some("devices".to_owned());
    });
    let mut broker = Broker::with(&config, 1);
    let bound = |devices: Value| issuer.token(&claims("ann", &json!({ "devices": devices })));
    let token = bound(json!(["%u-1", "pump-*"]));
    let unbound = issuer.token(&claims("ann", &json!({})));
    for door in [Door::Mqtt311, Door::Mqtt5, Door::Amqp(Quiet::NoLayer)] {
        for (name, may) in [
            ("ann-1", true),
            ("pump-7", true),
            ("ann-2", false),
            ("%u-1", false),
        ] {
            let entered = enter_by(&mut broker, door, token, name);
            assert_eq!(entered.is_some(), may, "{door:?} {name}");
            if let Some(Entered::Mqtt(peer, _)) = entered {
                broker.cut(peer);
            }
        }
        assert!(enter_by(&mut broker, door, unbound, "ann-1").is_none());
        assert!(enter_by(&mut broker, door, bound(json!([])), "ann-1").is_none());
    }
}
