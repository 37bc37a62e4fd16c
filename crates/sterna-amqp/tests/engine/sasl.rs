//! The SASL layer (part 5, section 5.3) at both ends.

use sterna_amqp::connection::{ClientOptions, ServerOptions};
use sterna_amqp::performatives::{Open, Role};
use sterna_amqp::sasl::{
    Anonymous, External, Mechanism, Plain, PlainCredentials, SaslCode, SaslError, mechanism,
};
use sterna_amqp::{CommandError, Condition, Connection, Event, Lane, Limits};
use sterna_auth::{ClientFinish, ClientFirst, Nonce, Record, ScramClient, ServerStart};

use crate::harness::{End, Lanes, Pair, frames, options};

const PASSWORD: &str = "pencil";

fn record() -> Record {
    Record::from_password(PASSWORD, b"sixteen random B", 4096).unwrap()
}

/// A server's side of every mechanism, with one user.
#[derive(Default)]
struct Checker {
    scram: Option<ServerStart>,
    seen: Vec<String>,
}

impl Checker {
    fn handle(&mut self, connection: &mut Connection, out: &mut Lanes, event: &Event<'_>) {
        match event {
            Event::SaslInit {
                is_offered: false, ..
            } => {
                let let_in = connection.sasl_outcome(SaslCode::Ok, None, out);
                assert_eq!(let_in, Err(CommandError::State));
                let asked = connection.sasl_challenge(b"", out);
                assert_eq!(asked, Err(CommandError::State));
                self.seen.push("not offered".to_owned());
                connection.sasl_outcome(SaslCode::Auth, None, out).unwrap();
            }
            Event::SaslInit {
                mechanism: mechanism::ANONYMOUS,
                initial_response,
                ..
            } => {
                self.seen.push(format!("{initial_response:?}"));
                connection.sasl_outcome(SaslCode::Ok, None, out).unwrap();
            }
            Event::SaslInit {
                mechanism: mechanism::EXTERNAL,
                initial_response: None | Some([]),
                ..
            } => connection.sasl_outcome(SaslCode::Ok, None, out).unwrap(),
            Event::SaslInit {
                mechanism: mechanism::PLAIN,
                initial_response,
                ..
            } => {
                let right = PlainCredentials {
                    authorization_identity: "",
                    user: "user",
                    password: PASSWORD,
                };
                let given = initial_response.and_then(PlainCredentials::parse);
                let code = if given == Some(right) {
                    SaslCode::Ok
                } else {
                    SaslCode::Auth
                };
                connection.sasl_outcome(code, None, out).unwrap();
            }
            Event::SaslInit {
                mechanism: mechanism::SCRAM_SHA_256,
                initial_response: Some(first),
                ..
            } => {
                let nonce = Nonce::from_random([2; 18]);
                let first = ClientFirst::parse(first).unwrap();
                let (start, challenge) = ServerStart::new(first, record(), &nonce);
                self.scram = Some(start);
                connection
                    .sasl_challenge(challenge.as_bytes(), out)
                    .unwrap();
            }
            Event::SaslResponse { response } => match self.scram.take().unwrap().verify(response) {
                Ok(last) => connection
                    .sasl_outcome(SaslCode::Ok, Some(last.as_bytes()), out)
                    .unwrap(),
                Err(_) => connection.sasl_outcome(SaslCode::Auth, None, out).unwrap(),
            },
            Event::SaslInit { .. } => connection.sasl_outcome(SaslCode::Sys, None, out).unwrap(),
            Event::Open(_) => connection.open(&Open::new("server"), out).unwrap(),
            _ => {}
        }
    }
}

/// A client's `SCRAM-SHA-256` as a program makes it from `sterna-auth`.
enum Scram {
    Start(String, String),
    First(ScramClient),
    Last(ClientFinish),
    Done,
}

impl Mechanism for Scram {
    fn name(&self) -> &str {
        mechanism::SCRAM_SHA_256
    }

    fn initial_response(&mut self) -> Option<Vec<u8>> {
        let Self::Start(user, password) = std::mem::replace(self, Self::Done) else {
            return None;
        };
        let nonce = Nonce::from_random([1; 18]);
        let (client, first) = ScramClient::start(&user, &password, &nonce).ok()?;
        *self = Self::First(client);
        Some(first.into_bytes())
    }

    fn challenge(&mut self, challenge: &[u8]) -> Result<Vec<u8>, SaslError> {
        let Self::First(client) = std::mem::replace(self, Self::Done) else {
            return Err(SaslError);
        };
        let (finish, proof) = client.challenge(challenge).map_err(|_| SaslError)?;
        *self = Self::Last(finish);
        Ok(proof.into_bytes())
    }

    fn success(&mut self, additional_data: Option<&[u8]>) -> Result<(), SaslError> {
        match std::mem::replace(self, Self::Done) {
            Self::Last(finish) => finish
                .verify(additional_data.unwrap_or_default())
                .map_err(|_| SaslError),
            _ => Err(SaslError),
        }
    }
}

fn server(mechanisms: &[&str], require_sasl: bool) -> End {
    let options = ServerOptions {
        container_id: "server".to_owned(),
        mechanisms: mechanisms.iter().map(|&name| name.to_owned()).collect(),
        require_sasl,
    };
    let connection = Connection::server(&options, &Limits::default(), 0);
    End::new(connection, Lanes::default())
}

fn client(mechanism: Option<Box<dyn Mechanism>>, pipelined: bool) -> End {
    let mut out = Lanes::default();
    let options = ClientOptions {
        open: Open::new("client"),
        mechanism,
        pipelined,
    };
    let connection = Connection::client(options, &Limits::default(), 0, &mut out);
    End::new(connection, out)
}

const ALL: [&str; 4] = [
    mechanism::SCRAM_SHA_256,
    mechanism::PLAIN,
    mechanism::EXTERNAL,
    mechanism::ANONYMOUS,
];

/// Lets both ends talk until they are quiet; returns how often the client has waited.
fn talk(client: &mut End, server: &mut End, checker: &mut Checker, seen: &mut Vec<String>) -> u32 {
    let mut flights = 0;
    while !(client.out.is_empty() && server.out.is_empty()) {
        flights += 1;
        server.read(&mut client.out, 0, usize::MAX, |connection, out, event| {
            checker.handle(connection, out, &event);
        });
        client.read(&mut server.out, 0, usize::MAX, |_, _, event| {
            seen.push(format!("{event:?}"));
        });
    }
    flights
}

#[test]
fn every_mechanism_lets_in() {
    let plain = || Plain {
        user: "user".to_owned(),
        password: PASSWORD.to_owned(),
    };
    let scram = || Scram::Start("user".to_owned(), PASSWORD.to_owned());
    for pipelined in [false, true] {
        let mechanisms: [Box<dyn Mechanism>; 4] = [
            Box::new(Anonymous {
                trace: "me".to_owned(),
            }),
            Box::new(External::default()),
            Box::new(plain()),
            Box::new(scram()),
        ];
        for mechanism in mechanisms {
            let name = mechanism.name().to_owned();
            let mut server = server(&ALL, true);
            let mut client = client(Some(mechanism), pipelined);
            let mut seen = Vec::new();
            let mut checker = Checker::default();
            let flights = talk(&mut client, &mut server, &mut checker, &mut seen);
            assert!(client.connection.is_open(), "{name} {pipelined}");
            assert!(server.connection.is_open(), "{name} {pipelined}");
            assert_eq!(seen.len(), 2, "{seen:?}");
            assert!(seen[0].contains("Authenticated"));
            assert!(seen[1].contains("Open"));
            // The mechanism's own rounds remain; header, init and open wait for nothing.
            let flights_expected = match (pipelined, name == mechanism::SCRAM_SHA_256) {
                (true, false) => 1,
                (true, true) | (false, false) => 3,
                (false, true) => 4,
            };
            assert_eq!(flights, flights_expected, "{name} {pipelined}");
        }
    }
}

#[test]
fn wrong_passwords_are_told() {
    let mechanisms: [Box<dyn Mechanism>; 2] = [
        Box::new(Plain {
            user: "user".to_owned(),
            password: "wrong".to_owned(),
        }),
        Box::new(Scram::Start("user".to_owned(), "wrong".to_owned())),
    ];
    for mechanism in mechanisms {
        let mut server = server(&ALL, true);
        let mut client = client(Some(mechanism), true);
        talk(
            &mut client,
            &mut server,
            &mut Checker::default(),
            &mut Vec::new(),
        );
        assert!(server.connection.is_closed());
        assert!(client.connection.is_closed());
        assert_eq!(
            client.violations[0].condition,
            Condition::UNAUTHORIZED_ACCESS
        );
        // What was sent along is not processed.
        assert_eq!(server.violations, []);
    }
}

/// A server's passing error is not taken for a refusal of the client.
#[test]
fn the_code_of_the_outcome_says_whether_to_ask_again() {
    for (code, condition) in [
        (SaslCode::Auth, Condition::UNAUTHORIZED_ACCESS),
        (SaslCode::SysPerm, Condition::UNAUTHORIZED_ACCESS),
        (SaslCode::Sys, Condition::INTERNAL_ERROR),
        (SaslCode::SysTemp, Condition::INTERNAL_ERROR),
    ] {
        let mut server = server(&ALL, true);
        let mut client = client(Some(Box::new(Anonymous::default())), true);
        server.read(&mut client.out, 0, usize::MAX, |connection, out, event| {
            if matches!(event, Event::SaslInit { .. }) {
                connection.sasl_outcome(code, None, out).unwrap();
            }
        });
        client.read(&mut server.out, 0, usize::MAX, |_, _, _| {});
        assert!(client.connection.is_closed());
        assert_eq!(client.violations[0].condition, condition, "{code:?}");
    }
}

/// A server that has not the user's record cannot pretend that it has.
#[test]
fn a_server_that_does_not_prove_itself_is_left() {
    let mut client = client(
        Some(Box::new(Scram::Start(
            "user".to_owned(),
            PASSWORD.to_owned(),
        ))),
        false,
    );
    let mut server = server(&ALL, true);
    for _ in 0..3 {
        server.read(&mut client.out, 0, usize::MAX, |connection, out, event| {
            if matches!(event, Event::SaslInit { .. }) {
                connection.sasl_outcome(SaslCode::Ok, None, out).unwrap();
            }
        });
        client.read(&mut server.out, 0, usize::MAX, |_, _, _| {});
    }
    assert!(client.connection.is_closed());
    assert_eq!(
        client.violations[0].detail,
        "the server has not proved itself"
    );
}

#[test]
fn a_mechanism_that_is_not_offered_is_refused() {
    let mut server = server(&[mechanism::PLAIN], true);
    let mut client = client(Some(Box::new(Anonymous::default())), true);
    let mut checker = Checker::default();
    talk(&mut client, &mut server, &mut checker, &mut Vec::new());
    assert_eq!(checker.seen, ["not offered"]);
    assert_eq!(
        client.violations[0].detail,
        "the server asks for credentials"
    );
    assert!(server.connection.is_closed() && client.connection.is_closed());
}

#[test]
fn sasl_frames_come_in_order() {
    let header = b"AMQP\x03\x01\x00\x00".as_slice();
    let response = b"\x00\x00\x00\x10\x02\x01\x00\x00\x00\x53\x43\xc0\x03\x01\xa0\x00".as_slice();
    let outcome = b"\x00\x00\x00\x10\x02\x01\x00\x00\x00\x53\x44\xc0\x03\x01\x50\x00".as_slice();
    let amqp = b"\x00\x00\x00\x08\x02\x00\x00\x00".as_slice();
    let unknown = b"\x00\x00\x00\x0d\x02\x01\x00\x00\x00\x53\x10\x45\x00".as_slice();
    let large = b"\x00\x00\x02\x01\x02\x01\x00\x00".as_slice();
    for (name, bytes, condition) in [
        ("response first", response, Condition::ILLEGAL_STATE),
        ("outcome of a client", outcome, Condition::ILLEGAL_STATE),
        ("AMQP frame", amqp, Condition::FRAMING_ERROR),
        ("open in a SASL frame", unknown, Condition::DECODE_ERROR),
        ("frame of 513 bytes", large, Condition::FRAMING_ERROR),
        ("header again", header, Condition::FRAMING_ERROR),
    ] {
        let mut server = server(&ALL, true);
        let mut input = Lanes::default();
        input
            .0
            .insert(0, [header, bytes].concat().as_slice().into());
        server.read(&mut input, 0, usize::MAX, |_, _, event| panic!("{event:?}"));
        assert_eq!(server.violations.len(), 1, "{name}");
        assert_eq!(server.violations[0].condition, condition, "{name}");
        assert!(server.connection.is_closed(), "{name}");
    }
}

#[test]
fn without_a_layer_where_none_is_demanded() {
    let mut server = server(&ALL, false);
    let mut client = client(None, true);
    talk(
        &mut client,
        &mut server,
        &mut Checker::default(),
        &mut Vec::new(),
    );
    assert!(client.connection.is_open() && server.connection.is_open());
}

#[test]
fn rounds_are_limited() {
    let mut client = client(
        Some(Box::new(Scram::Start(
            "user".to_owned(),
            PASSWORD.to_owned(),
        ))),
        false,
    );
    let mut server = server(&ALL, true);
    let mut errors = Vec::new();
    for _ in 0..3 {
        server.read(&mut client.out, 0, usize::MAX, |connection, out, event| {
            if matches!(event, Event::SaslInit { .. }) {
                assert_eq!(
                    connection.open(&Open::new("server"), out),
                    Err(CommandError::State)
                );
                for _ in 0..9 {
                    errors.push(connection.sasl_challenge(b"r=x", out));
                }
            }
        });
        client.read(&mut server.out, 0, usize::MAX, |_, _, _| {});
    }
    // One answer at a time.
    assert_eq!(errors[0], Ok(()));
    assert!(
        errors[1..]
            .iter()
            .all(|error| *error == Err(CommandError::State))
    );
    assert!(
        client.connection.is_closed(),
        "the challenge is no answer to its nonce"
    );
}

/// Passwords do not show in what is printed.
#[test]
fn passwords_are_not_printed() {
    let plain = Plain {
        user: "user".to_owned(),
        password: "secret-1".to_owned(),
    };
    let message = b"\0user\0secret-1";
    let credentials = PlainCredentials::parse(message).unwrap();
    assert!(!format!("{plain:?} {credentials:?}").contains("secret"));
    for malformed in [&b"user\0secret"[..], b"a\0b\0c\0d", b"\0\xff\0x"] {
        assert!(PlainCredentials::parse(malformed).is_none());
    }
    for (message, user, password) in [
        (&b"\0\0"[..], "", ""),
        (b"\0\0x", "", "x"),
        (b"\0x\0", "x", ""),
    ] {
        let given = PlainCredentials::parse(message).expect("empty parts are parts");
        assert_eq!((given.user, given.password), (user, password));
    }
}

/// With everything in one flight the first frames fit into 512 bytes each.
#[test]
fn the_first_flight_with_sasl() {
    let mut pair = Pair::new(&Limits::default());
    pair.client = client(Some(Box::new(Anonymous::default())), true);
    let client = &mut pair.client.connection;
    let out = &mut pair.client.out;
    let session = client.begin(Lane(0), out).unwrap();
    client
        .attach(session, "a", Role::Sender, &options("s", "t"), out)
        .unwrap();
    let sent = frames(&out.0[&0]);
    let names: Vec<&str> = sent
        .iter()
        .map(|frame| frame.1.split('(').next().unwrap())
        .collect();
    assert_eq!(names.len(), 6, "{names:?}");
    assert!(names[0].contains("Sasl") && names[1].contains("Init"));
    assert!(names[2].contains("Amqp") && names[3].contains("Open"));
    assert!(names[4].contains("Begin") && names[5].contains("Attach"));
    let mut server = server(&ALL, true);
    let mut checker = Checker::default();
    let mut attached = 0;
    server.read(out, 0, usize::MAX, |connection, out, event| {
        checker.handle(connection, out, &event);
        attached += u32::from(matches!(event, Event::Attach { .. }));
    });
    assert_eq!(attached, 1);
}
