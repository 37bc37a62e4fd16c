//! Who gets in.

use sterna_amqp::sasl::{Anonymous, External, Mechanism, Plain, SaslError};
use sterna_net::TransportKind;
use sterna_server::config::Config;

use crate::amqp_client::{Client, Start};
use crate::fixture::Broker;

/// A broker's configuration with users whose passwords are `secret`.
pub fn with_users(names: &[&str]) -> (tempfile::TempDir, Config) {
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path().join("passwords");
    let record =
        sterna_auth::Record::from_password("secret", &[7; 16], sterna_auth::MIN_ITERATIONS)
            .expect("a record");
    let lines: Vec<String> = (names.iter())
        .map(|name| format!("{name}:{record}\n"))
        .collect();
    std::fs::write(&path, lines.concat()).expect("written");
    let mut config = Config::default();
    config.authentication.password_file = Some(path);
    config.passwords.iterations = 0;
    (directory, config)
}

pub fn plain(user: &str, password: &str) -> Plain {
    Plain {
        user: user.to_owned(),
        password: password.to_owned(),
    }
}

/// SCRAM-SHA-256 as a client does it.
struct Scram {
    step: Option<sterna_auth::ScramClient>,
    first: Vec<u8>,
    last: Option<sterna_auth::ClientFinish>,
}

impl Scram {
    fn new(user: &str, password: &str) -> Self {
        let nonce = sterna_auth::Nonce::from_random([3; 18]);
        let (step, first) =
            sterna_auth::ScramClient::start(user, password, &nonce).expect("starts");
        Self {
            step: Some(step),
            first: first.into_bytes(),
            last: None,
        }
    }
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

    fn success(&mut self, additional_data: Option<&[u8]>) -> Result<(), SaslError> {
        let last = self.last.take().ok_or(SaslError)?;
        let data = additional_data.ok_or(SaslError)?;
        last.verify(data).map_err(|_| SaslError)
    }
}

fn enter(broker: &mut Broker, start: Start) -> Client {
    let mut client = Client::start(broker, start);
    client.turn(broker);
    client
}

#[test]
fn passwords_are_checked_and_scram_proves_both_ends() {
    let (_directory, config) = with_users(&["ann"]);
    let mut broker = Broker::with(&config, 1);
    for (password, enters) in [("secret", true), ("wrong", false)] {
        let mut client = enter(&mut broker, Start::new("c").with(plain("ann", password)));
        broker.await_verdict();
        client.turn(&mut broker);
        assert_eq!(client.is_open, enters, "PLAIN {password}");
        assert_eq!(broker.is_closed(client.peer), !enters);
        let client = enter(
            &mut broker,
            Start::new("c").with(Scram::new("ann", password)),
        );
        assert_eq!(client.is_open, enters, "SCRAM {password}");
    }
    let client = enter(
        &mut broker,
        Start::new("c").with(Scram::new("eve", "secret")),
    );
    assert!(!client.is_open && client.refusal.is_some());
}

#[test]
fn nobody_enters_without_credentials_where_they_are_asked_for() {
    let (_directory, config) = with_users(&["ann"]);
    let mut broker = Broker::with(&config, 1);
    let client = enter(&mut broker, Start::new("c"));
    assert!(!client.is_open, "no SASL layer");
    assert!(broker.is_closed(client.peer));
    let anonymous = Anonymous::default();
    let client = enter(&mut broker, Start::new("c").with(anonymous));
    assert!(!client.is_open, "ANONYMOUS is not offered");
}

#[test]
fn anybody_enters_where_nobody_is_known() {
    let mut broker = Broker::new();
    let client = enter(&mut broker, Start::new("c"));
    assert!(client.is_open, "no SASL layer");
    let client = enter(&mut broker, Start::new("c").with(Anonymous::default()));
    assert!(client.is_open, "ANONYMOUS");
    let client = enter(&mut broker, Start::new("c").with(plain("any", "thing")));
    assert!(client.is_open, "a name is taken and ignored");
}

#[test]
fn a_certificate_names_its_client() {
    let mut config = Config::default();
    config.tls.certificate_as_username = true;
    config.authorization.default_allow = false;
    config.authorization.rules = vec![sterna_server::config::Rule {
        users: vec!["device-7".to_owned()],
        topics: vec!["own/%u".to_owned()],
        ..Default::default()
    }];
    let mut broker = Broker::with(&config, 1);
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(vec!["x".to_owned()]).expect("parameters");
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "device-7");
    let certificate = params.self_signed(&key).expect("a certificate");
    let start = |mechanism: External| Start {
        certificates: vec![certificate.der().to_vec().into()],
        ..Start::new("c").over(TransportKind::Tls).with(mechanism)
    };
    let mut client = enter(&mut broker, start(External::default()));
    assert!(client.is_open);
    let session = client.begin(&mut broker);
    client.sender(&mut broker, session, "own/device-7");
    assert_eq!(client.condition(), None);
    client.sender(&mut broker, session, "own/device-8");
    assert_eq!(
        client.condition().as_deref(),
        Some("amqp:unauthorized-access")
    );
    let other = External {
        authorization_identity: "device-8".to_owned(),
    };
    let client = enter(&mut broker, start(other));
    assert!(!client.is_open, "it cannot act as another");
}

#[test]
fn mqtt_clients_cannot_take_the_sessions_of_amqp() {
    use sterna_mqtt::{Packet, Version};
    let mut broker = Broker::new();
    for id in ["$amqp/c/sub", "$queue/orders"] {
        let peer = broker.open();
        let connect = crate::fixture::plain(Version::V5, id);
        broker.packet(peer, Version::V5, &Packet::Connect(connect));
        let told = broker.told(peer, Version::V5);
        assert_eq!(told, ["CONNACK Client Identifier not valid"]);
    }
}
