//! Users with passwords, tokens and certificates, and one way to come in by each door.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sterna_amqp::sasl::{Anonymous, External, Mechanism, Plain, SaslError};
use sterna_auth::{Nonce, Record, ScramClient, TokenDigest, TokenFile, TokenRecord};
use sterna_h3::Features;
use sterna_mqtt::packet::{Auth, Connect, SubscribeOptions};
use sterna_mqtt::{Packet, Property, QoS, ReasonCode, Version};
use sterna_net::TransportKind;
use sterna_server::config::{Config, Listener};

use crate::amqp_client::{Client as AmqpClient, Happened, Start};
use crate::fixture::{Broker, Peer, block, plain};
use crate::h3_client::Client as H3Client;

/// The names that a client can turn out to have; `nobody` is none.
pub const NAMES: [&str; 4] = ["ann", "bob", "device", "nobody"];

/// The index of the listener of operators.
pub const ADMIN: u16 = 1;

/// What a client shows beside its certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shown {
    Nothing,
    /// A user name without a password.
    Name(&'static str),
    Password(&'static str, &'static str),
    Scram(&'static str, &'static str),
    Token(&'static str),
    /// A signed token in the place of a password, with a user name that may be empty.
    Signed(&'static str, &'static str),
    /// A signed token by `OAUTHBEARER`, or in HTTP as `Bearer`.
    Bearer(&'static str),
}

/// A way to come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Door {
    Mqtt311,
    Mqtt5,
    /// AMQP; `Nothing` is shown as this says.
    Amqp(Quiet),
    Http,
}

/// What an AMQP client without credentials does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quiet {
    NoLayer,
    Anonymous,
    External,
}

pub const DOORS: [Door; 6] = [
    Door::Mqtt311,
    Door::Mqtt5,
    Door::Amqp(Quiet::NoLayer),
    Door::Amqp(Quiet::Anonymous),
    Door::Amqp(Quiet::External),
    Door::Http,
];

/// A folder with users and tokens, and the configuration that names it. `ann` and `bob` have passwords,
/// `ann-pass` and `bob-pass`; each of the topics `who/NAME` is open to that user alone.
pub fn guarded(change: impl FnOnce(&mut Config)) -> (tempfile::TempDir, Config) {
    let directory = tempfile::tempdir().expect("a folder");
    let mut config = Config {
        listeners: vec![
            Listener::at("http://127.0.0.1:0"),
            Listener::at("admin://127.0.0.1:0"),
        ],
        ..Config::default()
    };
    config.admin.viewers = [&NAMES[..3], &["anonymous"]]
        .concat()
        .iter()
        .map(ToString::to_string)
        .collect();
    let passwords = directory.path().join("passwords");
    let mut text = String::new();
    for user in ["ann", "bob"] {
        let password = format!("{user}-pass");
        let record = Record::from_password(&password, &[7; 16], sterna_auth::MIN_ITERATIONS);
        writeln!(text, "{user}:{}", record.expect("a record")).expect("text");
    }
    std::fs::write(&passwords, text).expect("a file");
    let tokens = directory.path().join("tokens");
    let mut file = TokenFile::new();
    for (user, token, expires_at_s) in [
        ("ann", "ann-token", None),
        ("ann", "ann-old-token", Some(1_600_000_000)),
        ("bob", "bob-token", Some(1_800_000_000)),
    ] {
        file.add(TokenRecord {
            user: user.into(),
            digest: TokenDigest::of(token.as_bytes()),
            expires_at_s,
        })
        .expect("a user");
    }
    std::fs::write(&tokens, file.to_string()).expect("a file");
    config.authentication.password_file = Some(passwords);
    config.authentication.token_file = Some(tokens);
    config.authorization.default_allow = false;
    config.passwords.iterations = 0;
    config.authorization.rules = rules();
    change(&mut config);
    (directory, config)
}

/// Each name may read `who/NAME` and write `of/NAME`, all may use `free/#`.
fn rules() -> Vec<sterna_server::config::Rule> {
    let mut text = String::new();
    for user in &NAMES[..3] {
        writeln!(
            text,
            "[[authorization.rule]]\nusers = [\"{user}\"]\ntopics = [\"who/{user}\", \"free/#\"]"
        )
        .expect("text");
    }
    text.push_str(
        "[[authorization.rule]]\nusers = [\"*\"]\neffect = \"deny\"\ntopics = [\"#\"]\n\
         [[authorization.rule]]\ntopics = [\"who/nobody\", \"free/#\"]\n",
    );
    sterna_server::config::parse("test", &text)
        .expect("rules")
        .authorization
        .rules
}

/// A self-signed certificate with a common name, valid between two years.
pub fn certificate(name: Option<&str>, years: std::ops::Range<i32>) -> Box<[u8]> {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(vec!["x".to_owned()]).expect("parameters");
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(name) = name {
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
    }
    params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
    params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
    let certificate = params.self_signed(&key).expect("a certificate");
    certificate.der().as_ref().into()
}

/// The bare public key of a peer, as RFC 7250 carries it.
pub fn bare_key() -> Box<[u8]> {
    let key = rcgen::KeyPair::generate().expect("a key");
    rcgen::PublicKeyData::subject_public_key_info(&key).into()
}

/// SCRAM-SHA-256 as an AMQP client does it.
struct Scram {
    step: Option<ScramClient>,
    first: Vec<u8>,
    last: Option<sterna_auth::ClientFinish>,
}

impl Mechanism for Scram {
    fn name(&self) -> &'static str {
        "SCRAM-SHA-256"
    }
    fn may_be_challenged(&self) -> bool {
        true
    }
    fn initial_response(&mut self) -> Option<Vec<u8>> {
        Some(self.first.clone())
    }
    fn challenge(&mut self, challenge: &[u8]) -> Result<Vec<u8>, SaslError> {
        let step = self.step.take().ok_or(SaslError)?;
        let (last, proof) = step.challenge(challenge).map_err(|_| SaslError)?;
        self.last = Some(last);
        Ok(proof.into_bytes())
    }
    fn success(&mut self, data: Option<&[u8]>) -> Result<(), SaslError> {
        let last = self.last.take().ok_or(SaslError)?;
        last.verify(data.ok_or(SaslError)?).map_err(|_| SaslError)
    }
}

/// The first message of `OAUTHBEARER` (RFC 7628).
pub fn oauth(token: &str) -> String {
    format!("n,,\u{1}auth=Bearer {token}\u{1}\u{1}")
}

/// `OAUTHBEARER` as an AMQP client does it; the second value gets the server's error.
pub struct Bearer(pub &'static str, pub Arc<Mutex<Vec<String>>>);

impl Mechanism for Bearer {
    fn name(&self) -> &'static str {
        "OAUTHBEARER"
    }
    fn may_be_challenged(&self) -> bool {
        true
    }
    fn initial_response(&mut self) -> Option<Vec<u8>> {
        Some(oauth(self.0).into_bytes())
    }
    fn challenge(&mut self, error: &[u8]) -> Result<Vec<u8>, SaslError> {
        let text = std::str::from_utf8(error).map_err(|_| SaslError)?;
        self.1.lock().expect("a lock").push(text.to_owned());
        Ok(b"\x01".to_vec())
    }
    fn success(&mut self, _: Option<&[u8]>) -> Result<(), SaslError> {
        Ok(())
    }
}

fn scram(user: &str, password: &str) -> (ScramClient, String) {
    let nonce = Nonce::from_random([3; 18]);
    ScramClient::start(user, password, &nonce).expect("starts")
}

/// The connection of a client that was let in.
pub enum Entered {
    Mqtt(Peer, Version),
    Amqp(Box<AmqpClient>),
    /// By HTTP/3.
    Http(Box<H3Client>, Option<String>),
    /// By HTTP/1.1.
    Http1(Peer, Option<String>),
}

/// Whether a door can be shown this at all.
pub fn takes(door: Door, shown: Shown) -> bool {
    match (door, shown) {
        (Door::Amqp(quiet), Shown::Nothing) => quiet != Quiet::External,
        // One of the three ways of AMQP stands for all where something is shown.
        (
            Door::Amqp(quiet),
            Shown::Password(..) | Shown::Scram(..) | Shown::Signed(..) | Shown::Bearer(_),
        ) => quiet == Quiet::NoLayer,
        (Door::Amqp(_), Shown::Name(_) | Shown::Token(_)) => false,
        (Door::Mqtt311, shown) => {
            !matches!(shown, Shown::Scram(..) | Shown::Token(_) | Shown::Bearer(_))
        }
        (Door::Mqtt5, shown) => !matches!(shown, Shown::Token(_)),
        (Door::Http, shown) => !matches!(shown, Shown::Scram(..) | Shown::Name(_)),
    }
}

/// Whether a door is reached over a transport, also with a certificate where the client has one.
pub const fn carries(door: Door, transport: TransportKind, has_certificate: bool) -> bool {
    match transport {
        TransportKind::Tcp => !has_certificate,
        TransportKind::WebSocket => !has_certificate && !matches!(door, Door::Http),
        TransportKind::SecureWebSocket => !matches!(door, Door::Http),
        TransportKind::Tls | TransportKind::Quic | TransportKind::Simulated => true,
    }
}

/// Comes in by a door; `None` where that is refused.
pub fn enter(
    broker: &mut Broker,
    door: Door,
    transport: TransportKind,
    certificate: Option<&[u8]>,
    shown: Shown,
    name: &str,
) -> Option<Entered> {
    let certificates: Vec<Box<[u8]>> = certificate.into_iter().map(Into::into).collect();
    match door {
        Door::Mqtt311 => mqtt(broker, Version::V311, transport, certificates, shown, name),
        Door::Mqtt5 => mqtt(broker, Version::V5, transport, certificates, shown, name),
        Door::Amqp(quiet) => amqp(broker, quiet, transport, certificates, shown, name),
        Door::Http => http(broker, transport, certificates, shown),
    }
}

fn mqtt(
    broker: &mut Broker,
    version: Version,
    transport: TransportKind,
    certificates: Vec<Box<[u8]>>,
    shown: Shown,
    name: &str,
) -> Option<Entered> {
    let peer = broker.open_speaking(b"mqtt", 0, transport, certificates);
    let mut connect = Connect {
        clean_start: false,
        ..plain(version, name)
    };
    let mut exchange = None;
    let mut properties = block(&[]);
    match shown {
        Shown::Nothing => {}
        Shown::Name(user) => connect.user_name = Some(user),
        Shown::Password(user, password) | Shown::Signed(user, password) => {
            connect.user_name = Some(user);
            connect.password = Some(password.as_bytes());
        }
        Shown::Scram(user, password) => {
            let (step, first) = scram(user, password);
            exchange = Some(step);
            properties = block(&[
                Property::AuthenticationMethod("SCRAM-SHA-256"),
                Property::AuthenticationData(first.as_bytes()),
            ]);
        }
        Shown::Bearer(token) => {
            properties = block(&[
                Property::AuthenticationMethod("OAUTHBEARER"),
                Property::AuthenticationData(oauth(token).as_bytes()),
            ]);
        }
        Shown::Token(_) => return None,
    }
    connect.properties = properties.properties();
    broker.packet(peer, version, &Packet::Connect(connect));
    broker.await_verdicts();
    if let Some(step) = exchange
        && !broker.is_closed(peer)
    {
        let challenge = broker.packets(peer, version, |packet| match packet {
            Packet::Auth(auth) => auth
                .properties
                .authentication_data()
                .unwrap_or_default()
                .to_vec(),
            other => panic!("{other:?}"),
        });
        let (_, proof) = step.challenge(&challenge[0]).expect("a challenge");
        let properties = block(&[
            Property::AuthenticationMethod("SCRAM-SHA-256"),
            Property::AuthenticationData(proof.as_bytes()),
        ]);
        let auth = Auth {
            reason: ReasonCode::ContinueAuthentication,
            properties: properties.properties(),
        };
        broker.packet(peer, version, &Packet::Auth(auth));
    }
    let told = broker.told(peer, version);
    let entered = told.first().is_some_and(|told| told.contains("Success"));
    // In early data it may have to wait.
    if !broker.is_early {
        assert_eq!(broker.is_closed(peer), !entered, "{told:?}");
    }
    entered.then_some(Entered::Mqtt(peer, version))
}

fn amqp(
    broker: &mut Broker,
    quiet: Quiet,
    transport: TransportKind,
    certificates: Vec<Box<[u8]>>,
    shown: Shown,
    container: &str,
) -> Option<Entered> {
    let mechanism: Option<Box<dyn Mechanism>> = match (shown, quiet) {
        (Shown::Bearer(token), _) => Some(Box::new(Bearer(token, Arc::default()))),
        (Shown::Password(user, password) | Shown::Signed(user, password), _) => {
            Some(Box::new(Plain {
                user: user.to_owned(),
                password: password.to_owned(),
            }))
        }
        (Shown::Scram(user, password), _) => {
            let (step, first) = scram(user, password);
            Some(Box::new(Scram {
                step: Some(step),
                first: first.into_bytes(),
                last: None,
            }))
        }
        (_, Quiet::NoLayer) => None,
        (_, Quiet::Anonymous) => Some(Box::new(Anonymous::default())),
        (_, Quiet::External) => Some(Box::new(External::default())),
    };
    let start = Start {
        mechanism,
        certificates,
        ..Start::new(container).over(transport)
    };
    let mut client = AmqpClient::start(broker, start);
    client.turn(broker);
    broker.await_verdicts();
    client.turn(broker);
    let is_closed = (client.happened.iter()).any(|one| matches!(one, Happened::Closed(_)));
    (client.is_open && !is_closed).then(|| Entered::Amqp(Box::new(client)))
}

/// Asks the admin listener who one is; `None` where that is refused. Without a name it is `nobody`.
pub fn operator(
    broker: &mut Broker,
    transport: TransportKind,
    certificate: Option<&[u8]>,
    shown: Shown,
) -> Option<&'static str> {
    let certificates: Vec<Box<[u8]>> = certificate.into_iter().map(Into::into).collect();
    broker.listener = ADMIN;
    let peer = broker.open_speaking(b"http/1.1", 0, transport, certificates);
    broker.listener = 0;
    let field = authorization(shown);
    let field = field.map_or_else(String::new, |value| format!("Authorization: {value}\r\n"));
    let request = format!("GET /admin/v1/me HTTP/1.1\r\nHost: localhost\r\n{field}\r\n");
    broker.send(peer, request.as_bytes());
    broker.await_verdicts();
    let answer = String::from_utf8(broker.take(peer)).expect("text");
    if !answer.starts_with("HTTP/1.1 200") {
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
        return None;
    }
    let is = |name: &&str| answer.contains(&format!(r#""user":"{name}""#));
    let named = NAMES[..3].iter().copied().find(is);
    let name = named.or_else(|| answer.contains(r#""user":null"#).then_some("nobody"));
    Some(name.expect("a name"))
}

/// The field of a request.
pub fn authorization(shown: Shown) -> Option<String> {
    match shown {
        Shown::Password(user, password) | Shown::Signed(user, password) => Some(format!(
            "Basic {}",
            STANDARD.encode(format!("{user}:{password}"))
        )),
        Shown::Token(token) | Shown::Bearer(token) => Some(format!("Bearer {token}")),
        _ => None,
    }
}

fn http(
    broker: &mut Broker,
    transport: TransportKind,
    certificates: Vec<Box<[u8]>>,
    shown: Shown,
) -> Option<Entered> {
    let authorization = authorization(shown);
    let mut entered = if transport == TransportKind::Quic {
        let client = H3Client::connect_on(broker, 0, Features::default(), certificates);
        Entered::Http(Box::new(client), authorization)
    } else {
        let peer = broker.open_speaking(b"http/1.1", 0, transport, certificates);
        Entered::Http1(peer, authorization)
    };
    // Each request is judged for itself: this one is about what all may read.
    let is_in = matches!(entered.reads(broker, "free/x"), 200..300 | 403);
    is_in.then_some(entered)
}

impl Entered {
    /// The status, or a like number, with which reading a topic is answered.
    pub fn reads(&mut self, broker: &mut Broker, topic: &str) -> u16 {
        match self {
            Self::Mqtt(peer, version) => {
                let options = SubscribeOptions::new(QoS::AtMostOnce);
                broker.subscribe_with(*peer, *version, topic, options, &[]);
                let told = broker.told(*peer, *version);
                u16::from(told[0] == "SUBACK 1 0x00") * 200
            }
            Self::Amqp(client) => {
                let session = client.begin(broker);
                let source = sterna_amqp::messaging::Source::new(topic);
                let link = client.receiver(broker, session, topic, source, 0);
                let refused = client.answers.get(&link).is_none_or(|one| one.refused);
                u16::from(!refused) * 200
            }
            Self::Http(client, authorization) => {
                let path = format!("/v1/topics/{topic}?wait=0s");
                let fields: Vec<(&str, &str)> = (authorization.iter())
                    .map(|value| ("authorization", value.as_str()))
                    .collect();
                let number = client.request(broker, "GET", &path, &fields, b"");
                broker.await_verdicts();
                client.turn(broker);
                client.response(number).status
            }
            Self::Http1(peer, authorization) => {
                let field = authorization
                    .as_deref()
                    .map_or_else(String::new, |value| format!("Authorization: {value}\r\n"));
                let request = format!(
                    "GET /v1/topics/{topic}?wait=0s HTTP/1.1\r\nHost: localhost\r\n{field}\r\n"
                );
                broker.send(*peer, request.as_bytes());
                broker.await_verdicts();
                let answer = String::from_utf8(broker.take(*peer)).expect("text");
                let status = answer.split(' ').nth(1).expect("an answer");
                status.parse().expect("a status")
            }
        }
    }

    /// The name by which the rules know it.
    pub fn name(&mut self, broker: &mut Broker) -> &'static str {
        let mut found = NAMES
            .iter()
            .filter(|name| self.reads(broker, &format!("who/{name}")) / 100 == 2);
        let name = found.next().expect("a name");
        assert_eq!(found.next(), None, "one name alone");
        name
    }
}
