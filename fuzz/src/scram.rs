//! SCRAM messages from a peer that knows no password, and files of passwords and tokens.

use std::sync::LazyLock;

use sterna_auth::{
    ClientFirst, DecoySecret, MIN_ITERATIONS, Nonce, PasswordFile, Record, ScramClient,
    ServerStart, TokenFile,
};

/// What the peer doesn't know.
const PASSWORD: &str = "correct horse battery staple";

/// What divides the messages of an input.
const DIVIDER: u8 = 0;

/// The largest number of iterations that is worth an input's time here.
const FEW_ITERATIONS: u32 = 2 * MIN_ITERATIONS;

static RECORD: LazyLock<Record> = LazyLock::new(|| {
    Record::from_password(PASSWORD, b"sixteen random B", MIN_ITERATIONS).expect("within the limits")
});

/// Plays one part of an exchange with the bytes as its peer; the first byte chooses the part.
///
/// # Panics
///
/// Where a peer without the password gets through, an honest one doesn't, or a file
/// changes when it is written and read again.
pub fn messages(bytes: &[u8]) {
    let Some((part, bytes)) = bytes.split_first() else {
        return;
    };
    let divider = bytes
        .iter()
        .position(|byte| *byte == DIVIDER)
        .unwrap_or(bytes.len());
    let first = &bytes[..divider];
    let second = bytes.get(divider + 1..).unwrap_or_default();
    match part % 4 {
        0 => server(first, second),
        1 => client(first, second),
        2 => honest(first),
        _ => {
            password_file(bytes);
            token_file(bytes);
        }
    }
}

fn nonce() -> Nonce {
    Nonce::from_text("nonce").expect("a proper nonce")
}

/// The peer is a client.
fn server(first: &[u8], proof: &[u8]) {
    let Ok(hello) = ClientFirst::parse(first) else {
        return;
    };
    assert!(!hello.user().is_empty());
    let decoy = DecoySecret::new([7; 32]).record(hello.user(), MIN_ITERATIONS);
    for record in [RECORD.clone(), decoy] {
        let (server, challenge) = ServerStart::new(hello.clone(), record, &nonce());
        // The proof as it stands, and as one that belongs to this exchange.
        assert!(server.verify(proof).is_err(), "a proof out of nothing");
        let (server, _) = ServerStart::new(hello.clone(), RECORD.clone(), &nonce());
        let mut fitting = b"c=biws,".to_vec();
        fitting.extend(challenge.bytes().take_while(|byte| *byte != b','));
        fitting.extend(proof);
        assert!(server.verify(&fitting).is_err(), "a proof out of nothing");
    }
}

/// The peer is a server.
fn client(challenge: &[u8], signature: &[u8]) {
    let iterations = String::from_utf8_lossy(challenge)
        .rsplit_once("i=")
        .and_then(|(_, rest)| rest.split(',').next()?.parse::<u32>().ok());
    if iterations.is_none_or(|iterations| iterations > FEW_ITERATIONS) {
        return;
    }
    let (client, _) = ScramClient::start("user", PASSWORD, &nonce()).expect("proper credentials");
    if let Ok((client, _)) = client.challenge(challenge) {
        assert!(
            client.verify(signature).is_err(),
            "a signature out of nothing"
        );
    }
}

/// Both sides are honest, whatever the user is called.
fn honest(user: &[u8]) {
    let user = String::from_utf8_lossy(user);
    let Ok((client, first)) = ScramClient::start(&user, PASSWORD, &nonce()) else {
        return;
    };
    let hello = ClientFirst::parse(first.as_bytes()).expect("the client's first message is read");
    assert_eq!(hello.user(), user);
    let (server, challenge) = ServerStart::new(hello, RECORD.clone(), &nonce());
    let (client, proof) = client
        .challenge(challenge.as_bytes())
        .expect("the challenge is read");
    let signature = server.verify(proof.as_bytes()).expect("the proof holds");
    client
        .verify(signature.as_bytes())
        .expect("the signature holds");
}

fn password_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(file) = PasswordFile::parse(text) else {
        return;
    };
    let written = file.to_string();
    let again = PasswordFile::parse(&written).expect("what was written is read");
    assert_eq!(again.len(), file.len());
    assert_eq!(again.to_string(), written);
    for user in file.users() {
        let (before, after) = (file.get(user), again.get(user));
        assert_eq!(before.map(Record::to_string), after.map(Record::to_string));
        assert!(before.is_some());
    }
}

fn token_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match TokenFile::parse(text) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(file) => {
            let written = file.to_string();
            let again = TokenFile::parse(&written).expect("what was written is read");
            assert!(again.tokens().eq(file.tokens()));
            assert_eq!(again.to_string(), written);
        }
    }
}
