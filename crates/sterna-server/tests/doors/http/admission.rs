//! Who may ask: names, origins, credentials, rules, and early data.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sterna_h3::{Content, Features};
use sterna_mqtt::{QoS, Version};
use sterna_net::TransportKind;
use sterna_server::Policy;
use sterna_server::config::{Config, EarlyData, HttpAuthentication, HttpEarlyDataRefusal, Rule};

use crate::fixture::Broker;
use crate::h3_client::{Client, Order};
use crate::http::publish::{config, problem};

const V5: Version = Version::V5;

/// Users and tokens, and nobody else.
pub(crate) fn guarded(change: impl FnOnce(&mut Config)) -> (tempfile::TempDir, Config) {
    let directory = tempfile::tempdir().expect("a folder");
    let passwords = directory.path().join("passwords");
    let record = |password: &str| {
        sterna_auth::Record::from_password(password, &[7; 16], sterna_auth::MIN_ITERATIONS)
            .expect("a record")
    };
    let text = format!("ann:{}\nbob:{}\n", record("secret"), record("hidden"));
    std::fs::write(&passwords, text).expect("a file");
    let tokens = directory.path().join("tokens");
    let mut file = sterna_auth::TokenFile::new();
    file.add(sterna_auth::TokenRecord {
        user: "eve".into(),
        digest: sterna_auth::TokenDigest::of(b"token-of-eve"),
        expires_at_s: None,
    })
    .expect("a user");
    std::fs::write(&tokens, file.to_string()).expect("a file");
    let config = config(|config| {
        config.authentication.password_file = Some(passwords);
        config.passwords.iterations = 0;
        config.authentication.token_file = Some(tokens);
        config.authentication.anonymous = Some(false);
        change(config);
    });
    (directory, config)
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

fn post_as(broker: &mut Broker, client: &mut Client, credentials: &str) -> u64 {
    let fields = [("authorization", credentials)];
    client.request(broker, "POST", "/v1/topics/a", &fields, b"x")
}

/// Each proof that is shown must hold, and nobody would look at the second.
#[test]
fn two_credentials_are_refused_whichever_comes_first() {
    let (_directory, config) = guarded(|_| {});
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker);
    let (good, wrong) = (basic("ann", "secret"), basic("bob", "wrong"));
    for (first, second) in [(&good, &wrong), (&wrong, &good), (&good, &good)] {
        let fields = [
            ("authorization", first.as_str()),
            ("authorization", second.as_str()),
        ];
        let stream = client.request(&mut broker, "POST", "/v1/topics/a", &fields, b"x");
        assert_eq!(client.response(stream).status, 400);
    }
}

#[test]
fn a_password_is_checked_once_for_a_connection() {
    let (_directory, config) = guarded(|_| {});
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker);
    let good = basic("ann", "secret");
    let fields = [("authorization", good.as_str())];
    let [first, second] =
        [(); 2].map(|()| client.begin("POST", "/v1/topics/a", &fields, Content::Whole(b"x")));
    client.flush(&mut broker);
    broker.await_verdict();
    client.turn(&mut broker);
    assert_eq!(client.response(first).status, 204);
    assert_eq!(client.response(second).status, 204, "by the same verdict");
    let third = post_as(&mut broker, &mut client, &good);
    assert_eq!(client.response(third).status, 204, "at once");
    // Other credentials are checked for themselves, one after the other.
    let wrong = post_as(&mut broker, &mut client, &basic("ann", "Secret"));
    let ann = post_as(&mut broker, &mut client, &good);
    assert_eq!(client.response(ann).status, 204, "hers are known");
    let bob = post_as(&mut broker, &mut client, &basic("bob", "hidden"));
    broker.await_verdict();
    client.turn(&mut broker);
    assert_eq!(problem(&client, wrong), "401 unauthenticated");
    assert_eq!(
        client.response(wrong).field("www-authenticate"),
        Some(r#"Bearer realm="sterna", Basic realm="sterna", charset="UTF-8""#)
    );
    broker.await_verdict();
    client.turn(&mut broker);
    assert_eq!(client.response(bob).status, 204);
}

#[test]
fn a_request_with_credentials_is_judged_by_these() {
    let (_directory, config) = guarded(|config| config.authentication.anonymous = Some(true));
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker);
    for (credentials, status) in [
        ("Bearer token-of-eve", 204),
        ("bearer token-of-eve", 204),
        ("Bearer token-of-adam", 401),
        ("Bearer", 401),
        ("Digest x", 401),
        ("Basic ???", 401),
        ("Basic bm9jb2xvbg==", 401),
        ("", 401),
    ] {
        let number = post_as(&mut broker, &mut client, credentials);
        assert_eq!(client.response(number).status, status, "{credentials}");
    }
    let number = client.request(&mut broker, "POST", "/v1/topics/a", &[], b"x");
    assert_eq!(client.response(number).status, 204, "anonymous");
    let (_directory, config) = guarded(|_| {});
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker);
    let number = client.request(&mut broker, "POST", "/v1/topics/a", &[], b"x");
    assert_eq!(problem(&client, number), "401 unauthenticated");
}

#[test]
fn names_of_sessions_belong_to_the_user() {
    let (_directory, config) = guarded(|config| config.authentication.anonymous = Some(true));
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker);
    let eve = [("authorization", "Bearer token-of-eve")];
    let path = "/v1/topics/a?session=n";
    let hers = client.request(&mut broker, "GET", path, &eve, b"");
    for method in ["GET", "DELETE"] {
        let number = client.request(&mut broker, method, "/v1/sessions/n", &[], b"");
        assert_eq!(problem(&client, number), "404 no-session");
    }
    // Somebody else's session of the same name is another.
    let number = client.request(&mut broker, "GET", path, &[], b"");
    assert_eq!(client.response(number).status, 200);
    assert!(!client.response(hers).is_complete);
    let number = client.request(&mut broker, "DELETE", "/v1/sessions/n", &eve, b"");
    assert_eq!(client.response(number).status, 204);
    assert!(client.response(hers).is_complete);
}

#[test]
fn one_request_speaks_for_a_connection_where_that_is_set() {
    let connection = |config: &mut Config| {
        config.http.authentication = HttpAuthentication::Connection;
        config.authorization.default_allow = false;
        config.authorization.rules = sterna_server::config::parse(
            "test",
            "[[authorization.rule]]\nusers = [\"ann\"]\ntopics = [\"a\"]\n\
             [[authorization.rule]]\nusers = [\"eve\"]\ntopics = [\"e\"]\n",
        )
        .expect("rules")
        .authorization
        .rules;
    };
    let (_directory, config) = guarded(connection);
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker);
    let early = client.request(&mut broker, "POST", "/v1/topics/a", &[], b"x");
    assert_eq!(problem(&client, early), "401 unauthenticated");
    // What follows at once waits for the verdict.
    let good = basic("ann", "secret");
    let first = {
        let fields = [("authorization", good.as_str())];
        client.begin("POST", "/v1/topics/a", &fields, Content::Whole(b"x"))
    };
    let second = client.begin("POST", "/v1/topics/a", &[], Content::Whole(b"x"));
    client.flush(&mut broker);
    broker.await_verdict();
    client.turn(&mut broker);
    for number in [first, second] {
        assert_eq!(client.response(number).status, 204);
    }
    let path = "/v1/topics/e";
    let number = client.request(&mut broker, "POST", path, &[], b"x");
    assert_eq!(problem(&client, number), "403 forbidden");
    let fields = [("authorization", "Bearer token-of-eve")];
    let number = client.request(&mut broker, "POST", path, &fields, b"x");
    assert_eq!(client.response(number).status, 204);
    // It is bound to the connection.
    let mut other = Client::connect(&mut broker);
    let number = other.request(&mut broker, "POST", "/v1/topics/a", &[], b"x");
    assert_eq!(problem(&other, number), "401 unauthenticated");
    // Without the setting every request needs its own.
    let (_directory, config) = guarded(|_| {});
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker);
    post_as(&mut broker, &mut client, &basic("ann", "secret"));
    broker.await_verdict();
    client.turn(&mut broker);
    let number = client.request(&mut broker, "POST", "/v1/topics/a", &[], b"x");
    assert_eq!(problem(&client, number), "401 unauthenticated");
}

#[test]
fn a_certificate_is_a_user() {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(vec!["x".to_owned()]).expect("parameters");
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "device-7");
    let certificate = params.self_signed(&key).expect("a certificate");
    let certificates: Vec<Box<[u8]>> = vec![certificate.der().to_vec().into()];
    let (_directory, config) = guarded(|config| {
        config.tls.certificate_as_username = true;
        config.authorization.default_allow = false;
        config.authorization.rules = sterna_server::config::parse(
            "test",
            "[[authorization.rule]]\nusers = [\"device-7\"]\ntopics = [\"of/%u\"]\n",
        )
        .expect("rules")
        .authorization
        .rules;
    });
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect_on(&mut broker, 0, Features::default(), certificates);
    let number = client.request(&mut broker, "POST", "/v1/topics/of/device-7", &[], b"x");
    assert_eq!(client.response(number).status, 204);
    let number = client.request(&mut broker, "POST", "/v1/topics/of/others", &[], b"x");
    assert_eq!(problem(&client, number), "403 forbidden");
    let number = client.request(&mut broker, "GET", "/v1/topics/of/%23", &[], b"");
    assert_eq!(problem(&client, number), "403 forbidden");
    let number = client.request(
        &mut broker,
        "GET",
        "/v1/topics/of/device-7?wait=0s",
        &[],
        b"",
    );
    assert_eq!(client.response(number).status, 204);
    let number = client.request(&mut broker, "HEAD", "/v1/topics/of/others", &[], b"");
    assert_eq!(client.response(number).status, 403);
}

#[test]
fn names_that_are_not_the_brokers_are_refused() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let number = client.begin_at("example.org", "GET", "/");
    client.turn(&mut broker);
    assert_eq!(problem(&client, number), "421 host");
    let mut broker = Broker::with(
        &config(|config| config.http.hosts = vec!["broker.example".to_owned()]),
        1,
    );
    let mut client = Client::connect(&mut broker);
    for (authority, status) in [("broker.example:8443", 204), ("localhost", 421)] {
        let number = client.begin_at(authority, "OPTIONS", "/v1/topics/a");
        client.turn(&mut broker);
        assert_eq!(client.response(number).status, status, "{authority}");
    }
}

#[test]
fn pages_of_other_origins_may_do_what_the_settings_say() {
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let foreign = [("origin", "https://app.example")];
    for method in ["GET", "POST", "OPTIONS", "HEAD"] {
        let number = client.request(&mut broker, method, "/v1/topics/a", &foreign, b"");
        assert_eq!(client.response(number).status, 403, "{method}");
    }
    let own = [("origin", "https://localhost")];
    let number = client.request(&mut broker, "POST", "/v1/topics/a", &own, b"x");
    assert_eq!(client.response(number).status, 204);
    let mut broker = Broker::with(
        &config(|config| config.http.cors_origins = vec!["https://app.example".to_owned()]),
        1,
    );
    let mut client = Client::connect(&mut broker);
    let ask = [foreign[0], ("access-control-request-method", "POST")];
    let number = client.request(&mut broker, "OPTIONS", "/v1/topics/a", &ask, b"");
    let response = client.response(number);
    assert_eq!(response.status, 204);
    let allowed = response
        .field("access-control-allow-methods")
        .expect("methods");
    assert!(allowed.contains("POST") && allowed.contains("DELETE"));
    let fields = response
        .field("access-control-allow-headers")
        .expect("fields");
    assert!(fields.contains("authorization") && fields.contains("idempotency-key"));
    // Problems can be read, too.
    for (method, path, status) in [
        ("POST", "/v1/topics/a", 204),
        ("GET", "/v1/topics/a?last", 404),
        ("GET", "/v1/topics/a", 200),
    ] {
        let number = client.request(&mut broker, method, path, &foreign, b"");
        let response = client.response(number);
        assert_eq!(response.status, status);
        let reader = response.field("access-control-allow-origin");
        assert_eq!(reader, Some("https://app.example"));
        assert_eq!(response.field("vary"), Some("origin"));
        assert!(response.field("access-control-expose-headers").is_some());
    }
}

/// Early data may do what may come twice.
fn idempotent() -> Config {
    config(|config| config.quic.early_data = EarlyData::Idempotent)
}

/// A client whose requests arrive in early data.
fn early_client(broker: &mut Broker) -> Client {
    let mut client = Client::connect(broker);
    client.early = true;
    client
}

#[test]
fn early_data_may_do_what_may_come_twice() {
    let mut broker = Broker::with(&idempotent(), 1);
    let subscriber = broker.client(V5, "s");
    broker.subscribe(subscriber, V5, "#", QoS::AtLeastOnce);
    let mut client = early_client(&mut broker);
    for (method, path, fields, status) in [
        ("GET", "/v1/topics/a?wait=0s", &[][..], 204),
        ("HEAD", "/v1/topics/a", &[], 404),
        ("OPTIONS", "/v1/topics/a", &[], 204),
        ("POST", "/v1/topics/a", &[("idempotency-key", "k")], 204),
        ("POST", "/v1/topics/b", &[], 0),
        ("PUT", "/v1/topics/c", &[], 0),
        ("DELETE", "/v1/topics/d", &[], 0),
    ] {
        let number = client.request(&mut broker, method, path, fields, b"");
        assert_eq!(client.response(number).status, status, "{method} {path}");
    }
    assert_eq!(broker.told(subscriber, V5), ["PUBLISH1 a="]);
    broker.confirm(client.peer);
    client.turn(&mut broker);
    let statuses: Vec<u16> = (client.heard.responses.values())
        .map(|one| one.status)
        .collect();
    assert_eq!(statuses, [204, 404, 204, 204, 204, 201, 404]);
    assert_eq!(broker.told(subscriber, V5), ["PUBLISH1 b="]);
}

/// A GET of a session takes it from the response before, and acknowledges; an acknowledgement could be late.
#[test]
fn a_flight_that_was_held_back_takes_no_session() {
    let key = [("idempotency-key", "k")];
    let resumed = [("last-event-id", "n/1")];
    for (method, path, fields) in [
        ("GET", "/v1/topics/a?session=n&wait=0s", &[][..]),
        ("GET", "/v1/topics/a?wait=0s", &resumed),
        ("GET", "/v1/topics?filter=$share/g/a&wait=0s", &[]),
        ("POST", "/v1/sessions/n/ack", &key),
        ("DELETE", "/v1/sessions/n", &key),
    ] {
        let mut broker = Broker::with(&idempotent(), 1);
        let mut client = early_client(&mut broker);
        let number = client.request(&mut broker, method, path, fields, b"{\"id\":1}");
        assert_eq!(client.response(number).status, 0, "{method} {path}");
        broker.confirm(client.peer);
        client.turn(&mut broker);
        assert_ne!(client.response(number).status, 0, "{method} {path}");
    }
}

/// Where a rule asks for addresses, no request is answered before its client has shown where it is.
#[test]
fn no_request_is_judged_by_an_address_that_nobody_has_proved() {
    let mut config = idempotent();
    config.authorization.rules.push(Rule {
        topics: vec!["#".to_owned()],
        addresses: vec!["127.0.0.0/8".parse().expect("a prefix")],
        ..Rule::default()
    });
    let mut broker = Broker::with(&config, 1);
    let subscriber = broker.client(V5, "s");
    broker.subscribe(subscriber, V5, "#", QoS::AtLeastOnce);
    let mut client = early_client(&mut broker);
    let fields = [("idempotency-key", "k")];
    let number = client.request(&mut broker, "POST", "/v1/topics/a", &fields, b"x");
    assert_eq!(client.response(number).status, 0);
    broker.confirm(client.peer);
    client.turn(&mut broker);
    assert_eq!(client.response(number).status, 204);
    assert_eq!(broker.told(subscriber, V5), ["PUBLISH1 a=x"]);
}

#[test]
fn a_replayed_request_with_a_key_publishes_once() {
    let mut broker = Broker::with(&idempotent(), 2);
    let subscriber = broker.client(V5, "s");
    broker.subscribe(subscriber, V5, "#", QoS::AtLeastOnce);
    let mut client = early_client(&mut broker);
    let fields = [("idempotency-key", "k")];
    client.begin("POST", "/v1/topics/a", &fields, Content::Whole(b"x"));
    // An attacker has copied the first flight, and sends it to another shard.
    let flight: Vec<_> = (client.out.0.iter())
        .filter_map(|order| match order {
            Order::Bytes(stream, bytes) => Some((*stream, bytes.clone())),
            _ => None,
        })
        .collect();
    client.turn(&mut broker);
    let replay = broker.open_speaking(b"h3", 1, TransportKind::Quic, Vec::new());
    for (stream, bytes) in &flight {
        let chunk = sterna_net::Chunk {
            stream: sterna_net::StreamId(stream.0),
            bytes,
            early: true,
            confirmed: false,
        };
        broker.arrive(replay, chunk);
    }
    broker.finish(replay, sterna_net::StreamId(0));
    assert_eq!(broker.told(subscriber, V5), ["PUBLISH1 a=x"]);
}

#[test]
fn early_data_is_refused_or_let_through_as_the_settings_say() {
    let post = |broker: &mut Broker, client: &mut Client, fields: &[(&str, &str)]| {
        client.request(broker, "POST", "/v1/topics/a", fields, b"x")
    };
    let status = |config: &mut Config| {
        config.http.early_data_refusal = HttpEarlyDataRefusal::Status;
    };
    let mut broker = Broker::with(&config(status), 1);
    let mut client = early_client(&mut broker);
    let number = post(&mut broker, &mut client, &[]);
    assert_eq!(problem(&client, number), "425 too-early");
    let mut broker = Broker::with(&config(|config| config.quic.early_data = EarlyData::All), 1);
    let mut client = early_client(&mut broker);
    let number = post(&mut broker, &mut client, &[]);
    assert_eq!(client.response(number).status, 204);
    let mut broker = Broker::with(&config(|config| config.quic.early_data = EarlyData::Off), 1);
    let mut client = early_client(&mut broker);
    let number = client.request(&mut broker, "HEAD", "/v1/topics/a", &[], b"");
    assert_eq!(client.response(number).status, 0);
    broker.confirm(client.peer);
    client.turn(&mut broker);
    assert_eq!(client.response(number).status, 404);
    // What forwards requests says so itself.
    let mut broker = Broker::new();
    let mut client = Client::connect(&mut broker);
    let number = post(&mut broker, &mut client, &[("early-data", "1")]);
    assert_eq!(problem(&client, number), "425 too-early");
    let number = post(
        &mut broker,
        &mut client,
        &[("early-data", "1"), ("idempotency-key", "k")],
    );
    assert_eq!(client.response(number).status, 204);
}

/// The user still has a password: the proof that was shown is what has to stand.
#[test]
fn a_token_that_is_gone_ends_what_it_opened() {
    let (_directory, config) = guarded(|_| {});
    let path = config.authentication.token_file.clone().expect("a file");
    let (kept, gone) = (b"kept".as_slice(), b"gone".as_slice());
    let write = |tokens: &[&[u8]]| {
        let mut file = sterna_auth::TokenFile::new();
        for token in tokens {
            file.add(sterna_auth::TokenRecord {
                user: "ann".into(),
                digest: sterna_auth::TokenDigest::of(token),
                expires_at_s: None,
            })
            .expect("a user");
        }
        let text = file.to_string();
        std::fs::write(
            &path,
            if tokens.is_empty() {
                "# no tokens\n"
            } else {
                &text
            },
        )
        .expect("a file");
    };
    write(&[kept, gone]);
    let mut broker = Broker::with(&config, 1);
    let mut client = Client::connect(&mut broker);
    let [first, second, third] = [
        "Bearer kept".to_owned(),
        "Bearer gone".to_owned(),
        basic("ann", "secret"),
    ]
    .map(|shown| {
        let fields = [
            ("authorization", shown.as_str()),
            ("accept", "text/event-stream"),
        ];
        let stream = client.request(&mut broker, "GET", "/v1/topics/a", &fields, b"");
        if shown.starts_with("Basic") {
            broker.await_verdict();
            client.turn(&mut broker);
        }
        assert_eq!(client.response(stream).status, 200);
        stream
    });
    for (tokens, open) in [
        (&[kept, gone][..], [true, true, true]),
        (&[kept], [true, false, true]),
        (&[], [false, false, true]),
    ] {
        write(tokens);
        let policy = Policy::load(&config).expect("a policy");
        broker.apply(policy);
        client.turn(&mut broker);
        let are = [first, second, third].map(|stream| !client.response(stream).is_complete);
        assert_eq!(are, open, "{tokens:?}");
    }
}
