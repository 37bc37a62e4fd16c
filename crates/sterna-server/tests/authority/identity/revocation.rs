//! Certificates that are revoked, and authorities and users that are removed, under live connections.

use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use sterna_net::TransportKind;
use sterna_server::Policy;
use sterna_server::config::Config;

use crate::fixture::{Broker, Lines};
use crate::h3_client::Client as H3Client;
use crate::identity::table::{SHOWN, TRANSPORTS};
use crate::identity::world::{
    DOORS, Door, Entered, Quiet, Shown, carries, enter, guarded, operator, takes,
};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signs")
}

fn leaf(authority: &Authority, name: &str, serial: u64) -> Box<[u8]> {
    let mut params = CertificateParams::new(vec!["x".to_owned()]).expect("parameters");
    params.serial_number = Some(SerialNumber::from(serial));
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2030, 1, 1);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, authority).expect("signs");
    certificate.der().as_ref().into()
}

fn revoke(authority: &Authority, serials: &[u64]) -> String {
    let revoked = serials.iter().map(|&serial| RevokedCertParams {
        serial_number: SerialNumber::from(serial),
        revocation_time: date_time_ymd(2024, 1, 1),
        reason_code: None,
        invalidity_date: None,
    });
    let list = CertificateRevocationListParams {
        this_update: date_time_ymd(2024, 1, 1),
        next_update: date_time_ymd(2090, 1, 1),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list.signed_by(authority).expect("signs");
    list.pem().expect("PEM")
}

fn write(path: &Path, texts: &[&str]) {
    std::fs::write(path, texts.join("\n")).expect("written");
}

/// A client of each door over each transport that carries certificates.
fn enter_all(broker: &mut Broker, whose: &str, der: &[u8]) -> Vec<(String, Entered)> {
    let doors = [
        Door::Mqtt311,
        Door::Mqtt5,
        Door::Amqp(Quiet::NoLayer),
        Door::Http,
    ];
    let mut all = Vec::new();
    for door in doors {
        for transport in [
            TransportKind::Tls,
            TransportKind::SecureWebSocket,
            TransportKind::Quic,
        ] {
            if !carries(door, transport, true) {
                continue;
            }
            let name = format!("{whose}-{door:?}-{transport:?}");
            let entered = enter(broker, door, transport, Some(der), Shown::Nothing, &name);
            let entered = entered.unwrap_or_else(|| panic!("{name} enters"));
            all.push((name, entered));
        }
    }
    all
}

fn is_closed(broker: &Broker, entered: &Entered) -> bool {
    let peer = match entered {
        Entered::Mqtt(peer, _) | Entered::Http1(peer, _) => *peer,
        Entered::Amqp(client) => client.peer,
        Entered::Http(client, _) => client.peer,
    };
    broker.is_closed(peer)
}

fn reload(broker: &mut Broker, config: &Config) {
    broker.apply(Policy::load(config).expect("a policy"));
}

#[test]
fn a_revocation_ends_the_live_connections_of_its_certificate_alone() {
    let authority = authority("an authority");
    let (directory, config) = guarded(|_| {});
    let (ca, list) = (directory.path().join("ca"), directory.path().join("list"));
    write(&ca, &[&authority.pem()]);
    write(&list, &[&revoke(&authority, &[77])]);
    for names in [true, false] {
        write(&list, &[&revoke(&authority, &[77])]);
        let mut config = config.clone();
        config.tls.client_ca = Some(ca.clone());
        config.tls.client_revocation_lists = vec![list.clone()];
        config.tls.certificate_as_username = names;
        // Each wrong attempt is to be looked at.
        config.guessing.free_failures = 0;
        config.guessing.free_failures_per_address = 0;
        let mut broker = Broker::with(&config, 1);
        let (gone, kept) = (leaf(&authority, "ann", 7), leaf(&authority, "bob", 8));
        let its = enter_all(&mut broker, "lost", &gone);
        let others = enter_all(&mut broker, "kept", &kept);
        // A reload that changes nothing ends nobody.
        reload(&mut broker, &config);
        assert!(!its.iter().any(|(_, one)| is_closed(&broker, one)));

        write(&list, &[&revoke(&authority, &[77, 7])]);
        reload(&mut broker, &config);
        for (name, entered) in &its {
            assert!(is_closed(&broker, entered), "{name} names={names}");
        }
        for (name, entered) in &others {
            assert!(!is_closed(&broker, entered), "{name} names={names}");
        }
        // Nor does a resumed handshake help, of which the TLS library looks at nothing.
        let mut refused = 0;
        for shown in SHOWN {
            for transport in TRANSPORTS {
                for door in DOORS {
                    if !takes(door, shown) || !carries(door, transport, true) {
                        continue;
                    }
                    let name = format!("again{refused}");
                    let entered = enter(&mut broker, door, transport, Some(&gone), shown, &name);
                    assert!(entered.is_none(), "{door:?} {transport:?} {shown:?}");
                    refused += 1;
                }
            }
            if takes(Door::Http, shown) {
                let who = operator(&mut broker, TransportKind::Tls, Some(&gone), shown);
                assert_eq!(who, None, "admin {shown:?}");
            }
        }
        assert!(refused > 100, "{refused}");
    }
}

#[test]
fn an_authority_that_is_removed_or_gets_another_key_takes_its_clients_along() {
    let (first, second) = (authority("first"), authority("second"));
    let (directory, mut config) = guarded(|_| {});
    let ca = directory.path().join("ca");
    config.tls.client_ca = Some(ca.clone());
    let (a, b) = (leaf(&first, "ann", 1), leaf(&second, "bob", 2));
    write(&ca, &[&first.pem(), &second.pem()]);
    let mut broker = Broker::with(&config, 1);
    let of_first = enter_all(&mut broker, "a", &a);
    let of_second = enter_all(&mut broker, "b", &b);
    write(&ca, &[&first.pem()]);
    reload(&mut broker, &config);
    assert!(of_second.iter().all(|(_, one)| is_closed(&broker, one)));
    assert!(!of_first.iter().any(|(_, one)| is_closed(&broker, one)));
    // The same name, and another key.
    let renewed = authority("first");
    write(&ca, &[&renewed.pem()]);
    reload(&mut broker, &config);
    assert!(of_first.iter().all(|(_, one)| is_closed(&broker, one)));
    // A handshake that has verified the old key, and ends only now, helps nobody: also after another reload.
    for _ in 0..2 {
        for door in DOORS {
            for transport in TRANSPORTS {
                if takes(door, Shown::Nothing) && carries(door, transport, true) {
                    let shown = Shown::Nothing;
                    let entered = enter(&mut broker, door, transport, Some(&a), shown, "late");
                    assert!(entered.is_none(), "{door:?} {transport:?}");
                }
            }
        }
        reload(&mut broker, &config);
    }
    let of_renewed = enter_all(&mut broker, "c", &leaf(&renewed, "ann", 1));
    reload(&mut broker, &config);
    assert!(!of_renewed.iter().any(|(_, one)| is_closed(&broker, one)));
}

/// The SASL layer lets a client in, which then says nothing. Its user is removed before it opens the connection.
#[test]
fn a_user_that_is_removed_between_its_login_and_its_open_is_out() {
    let (directory, config) = guarded(|_| {});
    let mut broker = Broker::with(&config, 1);
    let mut silent = |user: &str| {
        let peer = broker.open_speaking(b"amqp", 0, TransportKind::Tls, Vec::new());
        let response = format!("\0{user}\0{user}-pass");
        let mut init = vec![0x00, 0x53, 0x41, 0xc0, 0, 2, 0xa3, 5];
        init.extend(b"PLAIN");
        init.extend([0xa0, response.len() as u8]);
        init.extend(response.as_bytes());
        init[4] = (init.len() - 5) as u8;
        let mut bytes = b"AMQP\x03\x01\x00\x00".to_vec();
        bytes.extend((init.len() as u32 + 8).to_be_bytes());
        bytes.extend([2, 1, 0, 0]);
        bytes.extend(init);
        broker.send(peer, &bytes);
        broker.await_verdicts();
        // The outcome `ok`.
        let told = broker.take(peer);
        assert!(told.ends_with(&[0x50, 0x00]), "{told:x?}");
        peer
    };
    let (removed, stays) = (silent("ann"), silent("bob"));
    let passwords = directory.path().join("passwords");
    let text = std::fs::read_to_string(&passwords).expect("a file");
    let left: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with("ann:"))
        .collect();
    std::fs::write(&passwords, left.join("\n")).expect("written");
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, "").expect("written");
    reload(&mut broker, &config);
    assert!(broker.is_closed(removed) && !broker.is_closed(stays));
}

/// A token of the file that ends some day is no other than one that never ends, as long as the files have its user.
#[test]
fn responses_by_a_token_of_the_file_stay_as_long_as_its_user() {
    let (directory, config) = guarded(|_| {});
    let mut broker = Broker::with(&config, 1);
    let mut http = H3Client::connect(&mut broker);
    let [forever, some_day] = ["Bearer ann-token", "Bearer bob-token"].map(|token| {
        let fields = [("authorization", token), ("accept", "text/event-stream")];
        http.request(&mut broker, "GET", "/v1/topics/free/x", &fields, b"")
    });
    let mut reload_and_look = |ends: bool| {
        reload(&mut broker, &config);
        http.turn(&mut broker);
        for response in [forever, some_day].map(|id| http.response(id)) {
            assert_eq!((response.status, response.is_complete), (200, ends));
        }
    };
    reload_and_look(false);
    for file in ["passwords", "tokens"] {
        std::fs::write(directory.path().join(file), "").expect("a file");
    }
    reload_and_look(true);
}

/// What the log has at `warn` about the ends of clients of three doors after a reload, and what an MQTT client is told.
fn ended(
    config: &Config,
    certificate: Option<&[u8]>,
    shown: Shown,
    change: impl FnOnce(&mut Config),
) -> (String, String) {
    let mut heard = String::new();
    let lines = Lines::of(tracing::Level::WARN, |_| {
        let mut broker = Broker::with(config, 1);
        let mut clients = Vec::new();
        for (door, name) in [(Door::Mqtt5, "m"), (Door::Amqp(Quiet::NoLayer), "a")] {
            let transport = TransportKind::Tls;
            if takes(door, shown) {
                let entered = enter(&mut broker, door, transport, certificate, shown, name);
                clients.push(entered.expect("it enters"));
            }
        }
        let certificates = certificate.into_iter().map(Into::into).collect();
        let http = broker.open_speaking(b"http/1.1", 0, TransportKind::Tls, certificates);
        let credentials = match shown {
            Shown::Password("ann", _) => "authorization: Basic YW5uOmFubi1wYXNz\r\n",
            Shown::Token("ann-token") => "authorization: Bearer ann-token\r\n",
            _ => "",
        };
        let request = format!(
            "GET /v1/topics/free/x HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n{credentials}\r\n"
        );
        broker.send(http, request.as_bytes());
        broker.await_verdicts();
        let answer = String::from_utf8_lossy(&broker.take(http)).into_owned();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let mut config = config.clone();
        change(&mut config);
        reload(&mut broker, &config);
        for client in &clients {
            assert!(is_closed(&broker, client));
            match client {
                Entered::Mqtt(peer, _) => {
                    heard.push_str(&String::from_utf8_lossy(&broker.take(*peer)));
                }
                Entered::Amqp(client) => {
                    heard.push_str(&String::from_utf8_lossy(&broker.take(client.peer)));
                }
                Entered::Http(..) | Entered::Http1(..) => {}
            }
        }
    });
    (heard, lines)
}

/// The operator and the client learn which certificate, user or setting it is.
#[test]
fn each_end_of_trust_has_its_true_cause() {
    let authority = authority("an authority");
    let (directory, mut config) = guarded(|_| {});
    let (ca, list) = (directory.path().join("ca"), directory.path().join("list"));
    write(&ca, &[&authority.pem()]);
    write(&list, &[&revoke(&authority, &[77])]);
    let without = config.clone();
    config.tls.client_ca = Some(ca.clone());
    config.tls.client_revocation_lists = vec![list.clone()];
    config.tls.certificate_as_username = true;
    let device = leaf(&authority, "ann", 0x0abc);
    let check = |(heard, lines): (String, String), words: &str, all: usize| {
        let told = heard.matches(words).count();
        assert_eq!(told, all - 1, "{words}: {heard}");
        let lines: Vec<_> = lines
            .lines()
            .filter(|line| line.contains("peer="))
            .collect();
        assert_eq!(lines.len(), all, "{words}: {lines:#?}");
        for line in lines {
            assert!(line.contains(words), "{words}: {line}");
        }
    };
    let certified = |change: &dyn Fn(&mut Config)| {
        ended(&config, Some(&device), Shown::Nothing, |config| {
            change(config);
        })
    };
    check(
        certified(&|_| write(&list, &[&revoke(&authority, &[0x0abc])])),
        "the client's certificate is revoked: common name 'ann', serial 0ABC",
        3,
    );
    write(&list, &[&revoke(&authority, &[77])]);
    let other = self::authority("another");
    check(
        certified(&|_| write(&ca, &[&other.pem()])),
        "no authority of tls.client_ca vouches for the client's certificate: common name 'ann', serial 0ABC",
        3,
    );
    let password = Shown::Password("ann", "ann-pass");
    let (passwords, tokens) = (
        directory.path().join("passwords"),
        directory.path().join("tokens"),
    );
    let text = std::fs::read_to_string(&passwords).expect("a file");
    let kept = std::fs::read_to_string(&tokens).expect("a file");
    check(
        ended(&without, None, password, |_| {
            std::fs::write(&passwords, "# no users\n").expect("written");
            std::fs::write(&tokens, "# no tokens\n").expect("written");
        }),
        "the user is not in authentication.password_file any more",
        3,
    );
    std::fs::write(&passwords, text).expect("written");
    std::fs::write(&tokens, kept).expect("written");
    check(
        ended(&without, None, Shown::Token("ann-token"), |_| {
            std::fs::write(&tokens, "# no tokens\n").expect("written");
        }),
        "the token is not in authentication.token_file any more",
        1,
    );
    let open = Config {
        listeners: vec![sterna_server::config::Listener {
            anonymous: Some(true),
            ..without.listeners[0].clone()
        }],
        ..without
    };
    check(
        ended(&open, None, Shown::Nothing, |config| {
            config.listeners[0].anonymous = Some(false);
        }),
        "the listener admits no clients without credentials any more",
        3,
    );
}
