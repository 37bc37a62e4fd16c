//! The webhook at every door: who clients are, what is said of them, and what they may do.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sterna_mqtt::packet::{Auth, Connect, SubscribeOptions, Will};
use sterna_mqtt::{Packet, Property, PropertyContext, PublishProperties, QoS, ReasonCode, Version};
use sterna_net::TransportKind;
use sterna_server::Policy;
use sterna_server::config::{Config, Listener, Rule};

use crate::fixture::{Broker, Lines, Peer, block, plain};
use crate::h2_client::Client as H2Client;
use crate::h3_client::Client as H3Client;
use crate::identity::table::TRANSPORTS;
use crate::identity::world::{
    ADMIN, DOORS, Door, Entered, Quiet, Shown, authorization, carries, certificate, enter, guarded,
    oauth, takes,
};

/// How long a question may take that is asked: a hang is told from a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the service does with a question.
#[derive(Clone)]
pub enum Reply {
    /// This JSON, with status 200.
    Json(Value),
    /// These bytes, whatever they are.
    Raw(String),
    /// Nothing, and the connection stays open.
    Silence,
    /// The connection is closed.
    Down,
}

type Answerer = Box<dyn FnMut(&Value) -> Reply + Send>;

/// A service at a port of this host, and the questions that it was asked.
#[derive(Clone)]
pub struct Hook {
    address: SocketAddr,
    answerer: Arc<Mutex<Answerer>>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Hook {
    pub fn start(answer: impl FnMut(&Value) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let hook = Self {
            address: listener.local_addr().expect("an address"),
            answerer: Arc::new(Mutex::new(Box::new(answer))),
            asked: Arc::default(),
        };
        let own = hook.clone();
        // Ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let own = own.clone();
                std::thread::spawn(move || own.serve(stream.expect("a connection")));
            }
        });
        hook
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        let (head, question) = loop {
            let read = stream.read(&mut piece).unwrap_or(0);
            if read == 0 {
                return;
            }
            bytes.extend_from_slice(&piece[..read]);
            let text = String::from_utf8_lossy(&bytes);
            if let Some((head, content)) = text.split_once("\r\n\r\n")
                && let Ok(question) = serde_json::from_str::<Value>(content)
            {
                break (head.to_owned(), question);
            }
        };
        self.asked
            .lock()
            .expect("a lock")
            .push((head, question.clone()));
        let reply = (self.answerer.lock().expect("a lock"))(&question);
        // The broker may find the answer bad and leave.
        match reply {
            Reply::Json(json) => {
                let json = json.to_string();
                let length = json.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}"
                );
            }
            Reply::Raw(text) => drop(stream.write_all(text.as_bytes())),
            Reply::Silence => std::mem::forget(stream),
            Reply::Down => {}
        }
    }

    pub fn answers(&self, answer: impl FnMut(&Value) -> Reply + Send + 'static) {
        *self.answerer.lock().expect("a lock") = Box::new(answer);
    }

    pub fn asked(&self) -> Vec<(String, Value)> {
        self.asked.lock().expect("a lock").clone()
    }

    /// Waits until it has read so many questions. A machine that is busy has them read after the broker has given them up.
    pub fn await_asked(&self, count: usize) {
        let begin = Instant::now();
        while self.asked().len() < count {
            assert!(
                begin.elapsed() < PATIENCE,
                "{} questions",
                self.asked().len()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook?x=1", self.address)
    }
}

/// Knows `ann` and `device` by their passwords and tokens, and lets them do anything.
pub fn knows(question: &Value) -> Reply {
    let text = |name: &str| question[name].as_str().unwrap_or_default();
    let user = match (text("user"), text("password"), text("token")) {
        // The last one has its token as the user name.
        ("device", "device-pass", "")
        | ("", "", "device-token")
        | ("device-name-token", "", "") => "device",
        // One of the file, whose password is another there.
        ("ann", "hook-pass", "") => "ann",
        _ => return Reply::Json(json!({"result": "deny"})),
    };
    Reply::Json(json!({"result": "allow", "user": user}))
}

/// A broker that asks a service about credentials.
pub fn hooked(hook: &Hook, change: impl FnOnce(&mut Config)) -> (tempfile::TempDir, Config) {
    guarded(|config| {
        config.webhook.authentication_url = Some(hook.url());
        // Tests say themselves when a service is slow.
        config.webhook.timeout_ms = 60_000;
        // Each wrong attempt is to be looked at.
        config.guessing.free_failures = 0;
        config.guessing.free_failures_per_address = 0;
        change(config);
    })
}

#[test]
fn every_door_asks_about_whom_no_file_knows() {
    let hook = Hook::start(knows);
    let (_directory, config) = hooked(&hook, |config| {
        config.tls.certificate_as_username = true;
    });
    let mut broker = Broker::with(&config, 1);
    let mut verdicts = 0;
    for (shown, user) in [
        (Shown::Password("device", "device-pass"), Some("device")),
        (Shown::Password("device", "wrong"), None),
        (Shown::Password("device", ""), None),
        (Shown::Name("device-name-token"), Some("device")),
        (Shown::Password("device-name-token", ""), Some("device")),
        (Shown::Password("", "device-token"), Some("device")),
        (Shown::Name("eve-name-token"), None),
        (Shown::Password("ann-token", ""), None),
        // The file decides about its own.
        (Shown::Password("ann", "ann-pass"), Some("ann")),
        (Shown::Password("ann", "hook-pass"), None),
        (Shown::Token("device-token"), Some("device")),
        (Shown::Token("ann-token"), Some("ann")),
        (Shown::Token("eve-token"), None),
        (Shown::Bearer("device-token"), Some("device")),
        (Shown::Bearer("eve-token"), None),
        // At the other doors, too, though they take none of the file.
        (Shown::Bearer("ann-token"), Some("ann")),
        (Shown::Token("ann-old-token"), None),
    ] {
        for badge in [None, Some("device"), Some("bob")] {
            let der = badge.map(|name| certificate(Some(name), 2020..2030));
            // An empty password claims nothing but the name.
            let by_name = shown == Shown::Password("device", "") && badge == Some("device");
            let expected = user.or_else(|| by_name.then_some("device"));
            let expected = expected.filter(|user| badge.is_none_or(|badge| badge == *user));
            for door in DOORS {
                for transport in TRANSPORTS {
                    if !takes(door, shown) || !carries(door, transport, der.is_some()) {
                        continue;
                    }
                    let is_of_file = matches!(shown, Shown::Bearer("ann-token"));
                    let expected = expected.filter(|_| !is_of_file || door == Door::Http);
                    let name = format!("c{verdicts}");
                    let entered = enter(&mut broker, door, transport, der.as_deref(), shown, &name);
                    let who = entered.map(|mut entered| entered.name(&mut broker));
                    assert_eq!(who, expected, "{door:?} {transport:?} {badge:?} {shown:?}");
                    verdicts += 1;
                }
            }
        }
    }
    assert!(verdicts > 150, "{verdicts}");
    let asked = hook.asked();
    assert!(asked.len() < verdicts, "answers are remembered");
    let (head, question) = &asked[0];
    assert!(
        head.starts_with("POST /hook?x=1 HTTP/1.1\r\nHost: 127.0.0.1:"),
        "{head}"
    );
    assert_eq!(
        *question,
        json!({
            "request": "authenticate", "protocol": "mqtt", "transport": "tcp",
            "address": "127.0.0.1", "user": "device", "password": "device-pass",
        })
    );
    assert!(asked.iter().all(|(_, question)| question["user"] != "ann"));
    let is_of_file = |token: &Value| token == "ann-token" || token == "ann-old-token";
    assert!(!(asked.iter()).any(|(_, question)| is_of_file(&question["token"])));
}

/// Operators are told apart by their listener in each version of HTTP, also where the other door knows the login.
#[test]
fn the_service_is_told_of_operators_whatever_they_speak() {
    let hook = Hook::start(|question| {
        let is_operator = question["protocol"] == "admin";
        let result = if is_operator { "deny" } else { "allow" };
        Reply::Json(json!({"result": result, "user": "device"}))
    });
    let (_directory, config) = hooked(&hook, |_| {});
    let mut broker = Broker::with(&config, 1);
    let field = authorization(Shown::Token("device-token")).expect("a field");
    let mut ask = |listener: u16, path: &str| {
        broker.listener = listener;
        let mut client = H2Client::connect(&mut broker, b"h2");
        let fields = [("authorization", field.as_str())];
        let mut answer = client.request(&mut broker, "GET", path, &fields, b"");
        broker.await_verdicts();
        client.turn(&mut broker, &mut [&mut answer]);
        answer.status
    };
    assert_eq!(ask(0, "/v1/topics/free/x?wait=0s") / 100, 2);
    assert_eq!(ask(ADMIN, "/admin/v1/me"), 401);
    let asked = hook.asked();
    let told: Vec<_> = asked.iter().map(|(_, asked)| &asked["protocol"]).collect();
    assert_eq!(told, ["http", "admin"]);
}

pub fn connect(broker: &mut Broker, client: &str, user: &str, password: &str) -> Peer {
    let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    let lasting = block(&[Property::SessionExpiryInterval(3600)]);
    let connect = Connect {
        user_name: Some(user),
        password: Some(password.as_bytes()),
        clean_start: false,
        properties: lasting.properties(),
        ..plain(Version::V5, client)
    };
    broker.packet(peer, Version::V5, &Packet::Connect(connect));
    broker.await_verdicts();
    peer
}

pub fn connect_with_will(broker: &mut Broker, client: &str, topic: &str) -> Peer {
    let peer = broker.open_speaking(b"mqtt", 0, TransportKind::Tcp, Vec::new());
    let connect = Connect {
        user_name: Some("ann"),
        password: Some(b"ann-pass"),
        will: Some(Will {
            topic,
            payload: b"gone",
            qos: QoS::AtMostOnce,
            retain: false,
            properties: PublishProperties::default(),
        }),
        ..plain(Version::V5, client)
    };
    broker.packet(peer, Version::V5, &Packet::Connect(connect));
    peer
}

pub fn told(broker: &mut Broker, peer: Peer) -> Vec<String> {
    broker.await_verdicts();
    broker.told(peer, Version::V5)
}

pub fn subscribes(broker: &mut Broker, peer: Peer, filter: &str) -> String {
    let options = SubscribeOptions::new(QoS::AtLeastOnce);
    broker.subscribe_with(peer, Version::V5, filter, options, &[]);
    told(broker, peer).join(" ")
}

pub fn rules(text: &str) -> Vec<Rule> {
    let config = sterna_server::config::parse("test", text).expect("rules");
    config.authorization.rules
}

#[test]
fn groups_rules_client_identifiers_and_the_end_are_kept_to() {
    let hook = Hook::start(|question| {
        let user = question["user"].as_str().expect("a user");
        let rest = match user {
            "grouped" => json!({"groups": ["plant"]}),
            "ruled" => json!({"rules": [
                {"topics": ["own/%u/#"]},
                {"effect": "deny", "topics": ["#"]},
            ]}),
            "bound" => json!({"client_ids": ["%u-*"]}),
            "brief" => json!({"expires_in_s": 20}),
            _ => json!({}),
        };
        let mut answer = json!({"result": "allow"});
        for (name, value) in rest.as_object().expect("an object") {
            answer[name] = value.clone();
        }
        Reply::Json(answer)
    });
    let (_directory, mut config) = hooked(&hook, |config| {
        config.authorization = sterna_server::config::parse(
            "test",
            "[authorization]\ndefault_allow = false\n[[authorization.group]]\nname = 'plant'\n\
             [[authorization.rule]]\ngroups = ['plant']\ntopics = ['plant/#']\n\
             [[authorization.rule]]\ntopics = ['free/#']\n",
        )
        .expect("rules")
        .authorization;
    });
    let mut broker = Broker::with(&config, 1);
    let (granted, refused) = ("SUBACK 1 0x01", "SUBACK 1 0x87");
    let enter = |broker: &mut Broker, user: &str| {
        let peer = connect(broker, &format!("{user}-1"), user, "x");
        assert_eq!(
            told(broker, peer)[0].split(' ').nth(1),
            Some("Success"),
            "{user}"
        );
        peer
    };
    let grouped = enter(&mut broker, "grouped");
    let ruled = enter(&mut broker, "ruled");
    let other = enter(&mut broker, "other");
    for (peer, filter, expected) in [
        (grouped, "plant/a", granted),
        (grouped, "free/a", granted),
        (grouped, "own/ruled/a", refused),
        (ruled, "own/ruled/a", granted),
        (ruled, "own/other/a", refused),
        (ruled, "free/a", refused),
        (ruled, "plant/a", refused),
        (other, "free/a", granted),
        (other, "plant/a", refused),
    ] {
        assert_eq!(subscribes(&mut broker, peer, filter), expected, "{filter}");
    }
    for (peer, topic, reason) in [
        (ruled, "own/ruled/a", "No matching subscribers"),
        (ruled, "free/a", "Not authorized"),
        (grouped, "plant/x", "No matching subscribers"),
        (other, "plant/x", "Not authorized"),
    ] {
        broker.publish(peer, Version::V5, topic, "x", QoS::AtLeastOnce);
        let told = told(&mut broker, peer).join(" ");
        // The own subscription is one, too.
        let is_like =
            told.contains(reason) || (reason != "Not authorized" && told.contains("Success"));
        assert!(is_like, "{topic}: {told}");
    }

    // A reload keeps what they have, and what a client that is away has until it comes back.
    let away = connect(&mut broker, "away", "grouped", "x");
    told(&mut broker, away);
    assert_eq!(subscribes(&mut broker, away, "plant/away"), granted);
    broker.cut(away);
    config
        .authorization
        .rules
        .extend(rules("[[authorization.rule]]\ntopics = ['new']\n"));
    broker.apply(Policy::load(&config).expect("a policy"));
    broker.publish(grouped, Version::V5, "plant/a", "still", QoS::AtMostOnce);
    broker.publish(grouped, Version::V5, "plant/away", "kept", QoS::AtMostOnce);
    broker.publish(grouped, Version::V5, "plant/away", "kept", QoS::AtLeastOnce);
    let heard = told(&mut broker, grouped).join(" ");
    assert!(heard.contains("still"), "{heard}");
    let back = connect(&mut broker, "away", "grouped", "x");
    let heard = told(&mut broker, back).join(" ");
    assert!(
        heard.contains("Success") && heard.contains("kept"),
        "{heard}"
    );
    // Who has left the group has nothing of it when it comes back.
    broker.cut(back);
    hook.answers(|_| Reply::Json(json!({"result": "allow"})));
    broker.apply(Policy::load(&config).expect("a policy"));
    broker.publish(
        grouped,
        Version::V5,
        "plant/away",
        "secret",
        QoS::AtLeastOnce,
    );
    told(&mut broker, grouped);
    let back = connect(&mut broker, "away", "grouped", "x");
    broker.publish(
        grouped,
        Version::V5,
        "plant/away",
        "secret",
        QoS::AtLeastOnce,
    );
    let heard = told(&mut broker, back).join(" ");
    assert!(
        heard.contains("Success") && !heard.contains("secret"),
        "{heard}"
    );
}

#[test]
fn identifiers_that_are_not_given_are_refused_and_the_end_comes() {
    let hook = Hook::start(|question| {
        Reply::Json(match question["user"].as_str() {
            Some("bound") => json!({"result": "allow", "client_ids": ["%u-*"]}),
            _ => json!({"result": "allow", "expires_in_s": 20}),
        })
    });
    let (_directory, config) = hooked(&hook, |_| {});
    let mut broker = Broker::with(&config, 1);
    let other = connect(&mut broker, "other-1", "bound", "x");
    assert_eq!(told(&mut broker, other), ["CONNACK Not authorized"]);
    let own = connect(&mut broker, "bound-1", "bound", "x");
    assert!(told(&mut broker, own)[0].contains("Success"));
    let brief = connect(&mut broker, "b", "brief", "x");
    assert!(told(&mut broker, brief)[0].contains("Success"));
    broker.advance(19_999);
    assert!(!broker.is_closed(brief));
    broker.advance(1);
    assert_eq!(
        told(&mut broker, brief),
        ["DISCONNECT Maximum connect time"]
    );
    assert!(!broker.is_closed(own));
}

/// MQTT 5 renews what the webhook has given for a time.
#[test]
fn re_authentication_asks_again() {
    let hook = Hook::start(|question| {
        Reply::Json(match question["token"].as_str() {
            Some("first") => json!({"result": "allow", "user": "ann", "expires_in_s": 20}),
            Some("second") => json!({"result": "allow", "user": "ann", "expires_in_s": 100}),
            Some("bobs") => json!({"result": "allow", "user": "bob"}),
            _ => json!({"result": "deny"}),
        })
    });
    let (_directory, config) = hooked(&hook, |_| {});
    for (next, lives) in [("second", true), ("bobs", false), ("third", false)] {
        let mut broker = Broker::with(&config, 1);
        let door = (Door::Mqtt5, TransportKind::Tcp);
        let entered = enter(
            &mut broker,
            door.0,
            door.1,
            None,
            Shown::Bearer("first"),
            "c",
        );
        let Some(Entered::Mqtt(peer, version)) = entered else {
            panic!("enters")
        };
        broker.advance(10_000);
        let properties = block(&[
            Property::AuthenticationMethod("OAUTHBEARER"),
            Property::AuthenticationData(oauth(next).as_bytes()),
        ]);
        let auth = Auth {
            reason: ReasonCode::ReAuthenticate,
            properties: properties.properties(),
        };
        broker.packet(peer, version, &Packet::Auth(auth));
        let heard = told(&mut broker, peer);
        let expected = if lives {
            "AUTH Success"
        } else {
            "DISCONNECT Not authorized"
        };
        assert_eq!(heard, [expected], "{next}");
        broker.advance(80_000);
        assert_eq!(broker.is_closed(peer), !lives);
    }
}

/// Asks about everything, and answers about topics that begin with `yes`.
pub fn yes(question: &Value) -> Reply {
    let is_yes = (question["topic"].as_str()).is_some_and(|topic| topic.starts_with("yes"));
    let result = if is_yes { "allow" } else { "deny" };
    Reply::Json(json!({ "result": result }))
}

pub fn asking(hook: &Hook, change: impl FnOnce(&mut Config)) -> (tempfile::TempDir, Config) {
    guarded(|config| {
        config.webhook.authorization_url = Some(hook.url());
        config.webhook.timeout_ms = 60_000;
        config.authorization.rules = rules(
            "[[authorization.rule]]\neffect = 'deny'\ntopics = ['yes/denied']\n\
             [[authorization.rule]]\ntopics = ['free/#']\n\
             [[authorization.rule]]\neffect = 'ask'\nactions = ['publish', 'subscribe', 'delete']\ntopics = ['#']\n",
        );
        change(config);
    })
}

#[test]
fn a_rule_that_asks_is_decided_by_the_webhook_at_every_door() {
    let hook = Hook::start(yes);
    let (_directory, config) = asking(&hook, |_| {});
    let mut broker = Broker::with(&config, 1);
    let shown = Shown::Password("ann", "ann-pass");
    let transport = TransportKind::Quic;
    for door in [Door::Mqtt311, Door::Mqtt5] {
        let name = format!("{door:?}");
        let entered = enter(&mut broker, door, transport, None, shown, &name);
        let Some(Entered::Mqtt(peer, version)) = entered else {
            panic!("enters")
        };
        let no = if version == Version::V5 {
            "0x87"
        } else {
            "0x80"
        };
        for (filter, code) in [
            ("yes/a", "0x00"),
            ("no/a", no),
            ("free/a", "0x00"),
            ("yes/denied", no),
            ("$share/g/yes/b", "0x00"),
            ("$share/g/no/b", no),
            ("#", no),
        ] {
            let options = SubscribeOptions::new(QoS::AtMostOnce);
            broker.subscribe_with(peer, version, filter, options, &[]);
            broker.await_verdicts();
            let told = broker.told(peer, version);
            assert_eq!(told, [format!("SUBACK 1 {code}")], "{filter}");
        }
        // What follows a question waits behind it.
        for topic in ["yes/a", "no/a", "free/a"] {
            broker.publish(
                peer,
                version,
                topic,
                &format!("{name} {topic}"),
                QoS::AtMostOnce,
            );
        }
        broker.await_verdicts();
        let told = broker.told(peer, version).join(" ");
        let places: Vec<_> = ["yes/a", "no/a", "free/a"]
            .map(|topic| told.find(&format!("{name} {topic}")))
            .into();
        assert!(places[0].is_some() && places[1].is_none(), "{told}");
        assert!(places[0] < places[2], "{told}");
    }

    let plain = enter(
        &mut broker,
        Door::Amqp(Quiet::NoLayer),
        transport,
        None,
        shown,
        "c",
    );
    let Some(Entered::Amqp(mut client)) = plain else {
        panic!("enters")
    };
    let session = client.begin(&mut broker);
    for (address, is_allowed) in [("yes/a", true), ("no/a", false), ("free/a", true)] {
        let source = sterna_amqp::messaging::Source::new(address);
        let link = client.receiver(&mut broker, session, &format!("r{address}"), source, 9);
        broker.await_verdicts();
        client.turn(&mut broker);
        let refused = client.answers.get(&link).is_none_or(|one| one.refused);
        assert_eq!(!refused, is_allowed, "{address}");
        let link = client.sender(&mut broker, session, address);
        broker.await_verdicts();
        client.turn(&mut broker);
        let refused = client.answers.get(&link).is_none_or(|one| one.refused);
        assert_eq!(!refused, is_allowed, "{address}");
    }

    let mut http = H3Client::connect(&mut broker);
    let value = authorization(shown).expect("a field");
    let fields = [("authorization", value.as_str())];
    for (method, path, status) in [
        ("POST", "/v1/topics/yes/a", 204),
        ("POST", "/v1/topics/no/a", 403),
        ("POST", "/v1/topics/free/a", 204),
        ("PUT", "/v1/topics/yes/p", 201),
        ("PUT", "/v1/topics/no/p", 403),
        ("GET", "/v1/topics/yes/a?wait=0s", 204),
        ("GET", "/v1/topics/no/a?wait=0s", 403),
        ("GET", "/v1/topics/no/a?last", 403),
        ("DELETE", "/v1/topics/no/p", 403),
        ("DELETE", "/v1/topics/yes/p", 204),
    ] {
        let number = http.request(&mut broker, method, path, &fields, b"");
        broker.await_verdicts();
        http.turn(&mut broker);
        let found = http.response(number).status;
        let is_like = found == status || (status / 100 == 2 && found / 100 == 2);
        assert!(is_like, "{method} {path}: {found}");
    }
    let asked = hook.asked();
    assert!(
        asked
            .iter()
            .all(|(_, question)| question["topic"] != "yes/denied")
    );
    let about = asked.iter().filter(|(_, question)| {
        *question
            == json!({
                "request": "authorize", "user": "ann", "client_id": "Mqtt5",
                "action": "publish", "topic": "yes/a",
            })
    });
    assert_eq!(about.count(), 1);
}

/// Who comes by a certificate or SCRAM is known, and is asked for what it may do like others. The metrics say what
/// was asked, and what was remembered.
#[test]
fn clients_of_certificates_and_scram_are_asked_for_what_they_do() {
    let hook = Hook::start(yes);
    let (_directory, config) = asking(&hook, |config| {
        config.tls.certificate_as_username = true;
        (config.listeners).push(Listener::at("admin://127.0.0.1:0"));
        config.admin.viewers = vec!["anonymous".to_owned()];
    });
    let mut broker = Broker::with(&config, 1);
    let badge = certificate(Some("device"), 2020..2030);
    let transport = TransportKind::Quic;
    let mut asked = 0;
    for (shown, der, user) in [
        (Shown::Nothing, Some(&*badge), "device"),
        (Shown::Scram("ann", "ann-pass"), None, "ann"),
    ] {
        for door in [Door::Mqtt311, Door::Mqtt5] {
            if !takes(door, shown) {
                continue;
            }
            let name = format!("{user}-{door:?}");
            let entered = enter(&mut broker, door, transport, der, shown, &name);
            let Some(Entered::Mqtt(peer, version)) = entered else {
                panic!("{name} enters")
            };
            for topic in ["yes/a", "no/a"] {
                for _ in 0..20 {
                    broker.publish(peer, version, topic, "x", QoS::AtMostOnce);
                    broker.await_verdicts();
                }
            }
            let questions = hook.asked().split_off(asked);
            asked += questions.len();
            let told: Vec<_> = (questions.iter())
                .map(|(_, question)| (question["user"].as_str(), question["topic"].as_str()))
                .collect();
            let expected = ["yes/a", "no/a"].map(|topic| (Some(user), Some(topic)));
            assert_eq!(told, expected, "{name}: each topic once");
        }
    }

    broker.listener = 1;
    let operator = broker.open_speaking(b"", 0, TransportKind::Tcp, Vec::new());
    broker.send(
        operator,
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    let page = broker.take_on(operator, sterna_net::StreamId::FIRST);
    let page = String::from_utf8(page).expect("text");
    let value = |sample: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(sample));
        let value = line.unwrap_or_else(|| panic!("no {sample} in {page}"));
        value.trim().parse::<u64>().expect("a number")
    };
    let of = "subject=\"authorization\"";
    let questions = |outcome: &str| {
        value(&format!(
            "sterna_webhook_questions_total{{{of},outcome=\"{outcome}\"}}"
        ))
    };
    assert_eq!(questions("allowed") + questions("denied"), asked as u64);
    assert!(questions("denied") > 0 && questions("failed") == 0);
    let answered = value(&format!("sterna_webhook_answer_seconds_count{{{of}}}"));
    assert_eq!(answered, asked as u64);
    let lookups = |result: &str| {
        value(&format!(
            "sterna_webhook_lookups_total{{{of},result=\"{result}\"}}"
        ))
    };
    // Messages do not look: what was said of a client's last topics is at hand.
    assert!(
        lookups("hit") <= 4 * asked as u64 && lookups("hit") > 0,
        "{}",
        lookups("hit")
    );
    assert!(lookups("miss") >= asked as u64);
    assert_eq!(value(&format!("sterna_webhook_paused{{{of}}}")), 0);
    assert!(value(&format!("sterna_webhook_connections_total{{{of}}}")) > 0);
    assert_eq!(value("sterna_webhook_open_questions"), 0);
}

/// Everything that waits for one answer leaves in its order, also over an alias.
#[test]
fn order_is_kept_over_questions() {
    let hook = Hook::start(yes);
    let (_directory, config) = asking(&hook, |_| {});
    let mut broker = Broker::with(&config, 1);
    let reader = connect(&mut broker, "reader", "bob", "bob-pass");
    told(&mut broker, reader);
    assert_eq!(subscribes(&mut broker, reader, "yes/#"), "SUBACK 1 0x01");
    let writer = connect(&mut broker, "writer", "ann", "ann-pass");
    told(&mut broker, writer);
    let alias = block(&[Property::TopicAlias(1)]);
    let mut expected = Vec::new();
    for number in 0..40 {
        let payload = format!("<{number}>");
        // Each tenth one is about a topic that was not asked about before.
        let topic = format!("yes/{}", number / 10);
        let packet = sterna_mqtt::packet::Publish {
            properties: alias
                .publish_properties(PropertyContext::Publish)
                .expect("an alias"),
            topic: if number % 10 == 0 { &topic } else { "" },
            ..crate::fixture::publish("", &payload, QoS::AtMostOnce)
        };
        broker.packet(writer, Version::V5, &Packet::Publish(packet));
        expected.push(payload);
    }
    broker.await_verdicts();
    let heard = told(&mut broker, reader).join(" ");
    let mut rest = heard.as_str();
    for payload in &expected {
        let at = rest
            .find(payload.as_str())
            .unwrap_or_else(|| panic!("{payload}: {heard}"));
        rest = &rest[at..];
    }
    assert!(!broker.is_closed(writer));
}

#[test]
fn a_will_is_asked_about_before_its_client_is_let_in() {
    let hook = Hook::start(yes);
    let (_directory, config) = asking(&hook, |_| {});
    let mut broker = Broker::with(&config, 1);
    for (topic, expected) in [("yes/will", "Success"), ("no/will", "Not authorized")] {
        let peer = connect_with_will(&mut broker, topic, topic);
        broker.await_verdicts();
        let heard = told(&mut broker, peer).join(" ");
        assert!(heard.contains(expected), "{topic}: {heard}");
    }
}

/// A reload asks again, and what stands stays until then.
#[test]
fn a_reload_forgets_the_answers_and_keeps_subscriptions() {
    let hook = Hook::start(|question| match question["request"].as_str() {
        Some("authenticate") => Reply::Json(json!({"result": "allow"})),
        _ => yes(question),
    });
    let (_directory, config) = asking(&hook, |config| {
        config.webhook.authentication_url = Some(hook.url());
    });
    let mut broker = Broker::with(&config, 1);
    let reader = connect(&mut broker, "reader", "eve", "x");
    assert!(told(&mut broker, reader)[0].contains("Success"));
    assert_eq!(subscribes(&mut broker, reader, "yes/a"), "SUBACK 1 0x01");
    let again = connect(&mut broker, "again", "eve", "x");
    assert!(told(&mut broker, again)[0].contains("Success"));
    assert_eq!(hook.asked().len(), 2, "it was remembered");

    hook.answers(|_| Reply::Json(json!({"result": "deny"})));
    broker.apply(Policy::load(&config).expect("a policy"));
    assert!(!broker.is_closed(reader));
    broker.publish(reader, Version::V5, "free/x", "x", QoS::AtMostOnce);
    let refused = connect(&mut broker, "late", "eve", "x");
    assert_eq!(
        told(&mut broker, refused),
        ["CONNACK Bad User Name or Password"]
    );
    assert!(subscribes(&mut broker, reader, "yes/b").contains("0x87"));
    assert!(subscribes(&mut broker, reader, "yes/a").contains("0x87"));
    let bob = connect(&mut broker, "bob", "bob", "bob-pass");
    told(&mut broker, bob);
    hook.answers(yes);
    broker.publish(bob, Version::V5, "yes/a", "still", QoS::AtMostOnce);
    broker.await_verdicts();
    let heard = told(&mut broker, reader).join(" ");
    assert!(heard.contains("still"), "{heard}");
}

#[test]
fn the_service_is_told_the_brokers_secret() {
    let hook = Hook::start(knows);
    let (directory, mut config) = hooked(&hook, |_| {});
    let path = directory.path().join("headers");
    std::fs::write(&path, "Authorization: Bearer the-secret\n").expect("written");
    config.webhook.headers_file = Some(path);
    let mut broker = Broker::with(&config, 1);
    let peer = connect(&mut broker, "c", "device", "device-pass");
    assert!(told(&mut broker, peer)[0].contains("Success"));
    let (head, _) = &hook.asked()[0];
    assert!(
        head.ends_with("\r\nAuthorization: Bearer the-secret"),
        "{head}"
    );
}

/// The operator need not look for another line to learn why the service let nobody in.
#[test]
fn a_refusal_has_the_cause_of_the_failed_question() {
    for (reply, cause) in [
        (Reply::Down, "without an answer"),
        (
            Reply::Raw("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n".to_owned()),
            "the answer has status 502",
        ),
        (Reply::Json(json!({"result": "perhaps"})), "perhaps"),
    ] {
        for door in [
            Door::Mqtt311,
            Door::Mqtt5,
            Door::Amqp(Quiet::NoLayer),
            Door::Http,
        ] {
            let text = Lines::of(tracing::Level::WARN, |_| {
                let reply = reply.clone();
                let hook = Hook::start(move |_| reply.clone());
                let (_directory, config) = hooked(&hook, |_| {});
                let mut broker = Broker::with(&config, 1);
                let shown = Shown::Password("device", "device-pass");
                let entered = enter(&mut broker, door, TransportKind::Tls, None, shown, "c");
                assert!(entered.is_none(), "{door:?}");
            });
            let lines = text.lines().filter(|line| line.contains("login refused"));
            let [line] = *lines.collect::<Vec<_>>() else {
                panic!("{door:?}: {text}");
            };
            let said = line.split_once("cause=").map(|(_, cause)| cause);
            assert!(
                said.is_some_and(|said| said.contains(cause)),
                "{door:?}: {line}"
            );
        }
    }
}
