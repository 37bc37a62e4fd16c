//! SCRAM-SHA-256 (RFC 5802, RFC 7677): the four messages, and the code that both sides share.
//!
//! Channel binding is not offered: the mechanism is `SCRAM-SHA-256`, not `SCRAM-SHA-256-PLUS`. A
//! client that demands a binding (`p=…`) is refused.

mod client;
mod server;

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

pub use client::{ClientFinish, MAX_CLIENT_ITERATIONS, ScramClient};
pub use server::{ClientFirst, ServerStart};

use crate::keys::{KEY_BYTES, Key};

/// The name of the mechanism, as MQTT's Authentication Method and in SASL.
pub const MECHANISM: &str = "SCRAM-SHA-256";

/// Longest message taken from the peer, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 8_192;

/// Longest nonce of one side, in bytes.
const MAX_NONCE_BYTES: usize = 256;

/// Why an exchange failed.
///
/// A server should tell its peer only "not authorised". A wrong password and an unknown user are
/// the same error here, [`ScramError::Proof`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScramError {
    /// A message is longer than [`MAX_MESSAGE_BYTES`], is not UTF-8, or breaks the grammar of RFC
    /// 5802 section 7.
    Syntax,
    /// The message asks for an extension that must be understood (`m=`); there are none.
    Extension,
    /// The client asks for channel binding, which `SCRAM-SHA-256` does not have.
    ChannelBinding,
    /// The user name or the password is empty, too long, or has control characters.
    Credentials,
    /// A nonce does not begin with that of the exchange, or is not printable.
    Nonce,
    /// The server asks for fewer iterations than [`MIN_ITERATIONS`](crate::MIN_ITERATIONS) or more
    /// than [`MAX_CLIENT_ITERATIONS`].
    Iterations,
    /// The client's proof is wrong: a wrong password, or an unknown user.
    Proof,
    /// The server's signature is wrong: it doesn't know the password and is not who it claims to
    /// be.
    Signature,
    /// The server ended the exchange with an error of its own (`e=…`).
    Refused,
}

impl fmt::Display for ScramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syntax => "malformed SCRAM message",
            Self::Extension => "unknown mandatory SCRAM extension",
            Self::ChannelBinding => "channel binding is not supported",
            Self::Credentials => {
                "user name or password is empty, too long or has control characters"
            }
            Self::Nonce => "the nonce is not this exchange's",
            Self::Iterations => "the server asks for too few or too many iterations",
            Self::Proof => "not authorised",
            Self::Signature => "the server doesn't know the password",
            Self::Refused => "refused by the server",
        })
    }
}

impl std::error::Error for ScramError {}

/// One side's nonce: printable ASCII without commas (RFC 5802 section 7, `printable`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonce(String);

impl Nonce {
    /// From 18 random bytes, as 24 characters of base64. The bytes must never have been used
    /// before.
    #[must_use]
    pub fn from_random(random: [u8; 18]) -> Self {
        Self(BASE64.encode(random))
    }

    /// From text.
    ///
    /// # Errors
    /// When the text is empty, longer than 256 bytes, or has anything but printable ASCII without
    /// commas.
    pub fn from_text(text: &str) -> Result<Self, ScramError> {
        if is_nonce(text, MAX_NONCE_BYTES) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ScramError::Nonce)
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_nonce(text: &str, max_bytes: usize) -> bool {
    !text.is_empty()
        && text.len() <= max_bytes
        && text
            .bytes()
            .all(|byte| matches!(byte, 0x21..=0x2B | 0x2D..=0x7E))
}

fn message_text(message: &[u8]) -> Result<&str, ScramError> {
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(ScramError::Syntax);
    }
    std::str::from_utf8(message).map_err(|_| ScramError::Syntax)
}

/// The value of the attribute `name`, which must be the next one of `attributes`.
fn attribute<'a>(
    attributes: &mut impl Iterator<Item = &'a str>,
    name: char,
) -> Result<&'a str, ScramError> {
    attributes
        .next()
        .and_then(|text| text.strip_prefix(name))
        .and_then(|text| text.strip_prefix('='))
        .ok_or(ScramError::Syntax)
}

fn decode_key(text: &str) -> Result<Key, ScramError> {
    BASE64
        .decode(text)
        .ok()
        .and_then(|bytes| <[u8; KEY_BYTES]>::try_from(bytes).ok())
        .ok_or(ScramError::Syntax)
}

/// Writes a user name as `saslname`: `,` and `=` are escaped.
fn escape(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

/// Reads a `saslname`; any other use of `=` is an error (RFC 5802 section 5.1).
fn unescape(name: &str) -> Result<String, ScramError> {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((plain, escaped)) = rest.split_once('=') {
        out.push_str(plain);
        if let Some(after) = escaped.strip_prefix("2C") {
            out.push(',');
            rest = after;
        } else if let Some(after) = escaped.strip_prefix("3D") {
            out.push('=');
            rest = after;
        } else {
            return Err(ScramError::Syntax);
        }
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::{DecoySecret, Record};

    /// The example exchange of RFC 7677 section 3.
    mod rfc {
        pub(super) const CLIENT_NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
        pub(super) const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        pub(super) const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
        pub(super) const SERVER_FIRST: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
            s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        pub(super) const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
            p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        pub(super) const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
    }

    fn rfc_record() -> Record {
        static RECORD: LazyLock<Record> = LazyLock::new(|| {
            let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
            Record::from_password("pencil", &salt, 4096).unwrap()
        });
        RECORD.clone()
    }

    fn rfc_server(first: &str) -> Result<(ServerStart, String), ScramError> {
        let first = ClientFirst::parse(first.as_bytes())?;
        let nonce = Nonce::from_text(rfc::SERVER_NONCE)?;
        Ok(ServerStart::new(first, rfc_record(), &nonce))
    }

    fn rfc_client(password: &str) -> ScramClient {
        let nonce = Nonce::from_text(rfc::CLIENT_NONCE).unwrap();
        let (client, first) = ScramClient::start("user", password, &nonce).unwrap();
        assert_eq!(first, rfc::CLIENT_FIRST);
        client
    }

    #[test]
    fn the_rfc_7677_exchange() {
        let (server, challenge) = rfc_server(rfc::CLIENT_FIRST).unwrap();
        assert_eq!(challenge, rfc::SERVER_FIRST);
        let (client, proof) = rfc_client("pencil")
            .challenge(challenge.as_bytes())
            .unwrap();
        assert_eq!(proof, rfc::CLIENT_FINAL);
        let signature = server.verify(proof.as_bytes()).unwrap();
        assert_eq!(signature, rfc::SERVER_FINAL);
        client.verify(signature.as_bytes()).unwrap();
    }

    #[test]
    fn a_wrong_password_and_an_unknown_user_are_one_error() {
        let (server, challenge) = rfc_server(rfc::CLIENT_FIRST).unwrap();
        let (_, proof) = rfc_client("pencils")
            .challenge(challenge.as_bytes())
            .unwrap();
        assert_eq!(
            server.verify(proof.as_bytes()).unwrap_err(),
            ScramError::Proof
        );

        let decoy = DecoySecret::new([1; 32]).record("user", 4096);
        let first = ClientFirst::parse(rfc::CLIENT_FIRST.as_bytes()).unwrap();
        let (server, challenge) =
            ServerStart::new(first, decoy, &Nonce::from_text(rfc::SERVER_NONCE).unwrap());
        assert_eq!(challenge.len(), rfc::SERVER_FIRST.len());
        let (_, proof) = rfc_client("pencil")
            .challenge(challenge.as_bytes())
            .unwrap();
        assert_eq!(
            server.verify(proof.as_bytes()).unwrap_err(),
            ScramError::Proof
        );
    }

    #[test]
    fn a_server_without_the_password_is_found_out() {
        let (client, _) = rfc_client("pencil")
            .challenge(rfc::SERVER_FIRST.as_bytes())
            .unwrap();
        let forged = format!("v={}", BASE64.encode([0; 32]));
        assert_eq!(
            client.verify(forged.as_bytes()).unwrap_err(),
            ScramError::Signature
        );
        let (client, _) = rfc_client("pencil")
            .challenge(rfc::SERVER_FIRST.as_bytes())
            .unwrap();
        assert_eq!(
            client.verify(b"e=unknown-user").unwrap_err(),
            ScramError::Refused
        );
        let (client, _) = rfc_client("pencil")
            .challenge(rfc::SERVER_FIRST.as_bytes())
            .unwrap();
        assert_eq!(client.verify(b"x").unwrap_err(), ScramError::Syntax);
    }

    #[test]
    fn a_client_refuses_bad_challenges() {
        let refused = |challenge: &str| {
            rfc_client("pencil")
                .challenge(challenge.as_bytes())
                .map(|_| ())
                .unwrap_err()
        };
        let weak = rfc::SERVER_FIRST.replace("i=4096", "i=4095");
        let endless = rfc::SERVER_FIRST.replace("i=4096", "i=4000000000");
        assert_eq!(refused(&weak), ScramError::Iterations);
        assert_eq!(refused(&endless), ScramError::Iterations);
        assert_eq!(
            refused(&rfc::SERVER_FIRST.replace("r=rO", "r=xO")),
            ScramError::Nonce
        );
        let short = rfc::SERVER_FIRST.replace(rfc::SERVER_NONCE, "");
        assert_eq!(
            refused(&short),
            ScramError::Nonce,
            "the server must add to the nonce"
        );
        assert_eq!(
            refused(&format!("m=x,{}", rfc::SERVER_FIRST)),
            ScramError::Extension
        );
        assert_eq!(refused("e=other-error"), ScramError::Refused);
        assert_eq!(refused("r="), ScramError::Nonce);
        assert_eq!(
            refused(&rfc::SERVER_FIRST.replace("s=W22", "s=*22")),
            ScramError::Syntax
        );
        assert_eq!(
            refused(&"r".repeat(MAX_MESSAGE_BYTES + 1)),
            ScramError::Syntax
        );
    }

    #[test]
    fn a_server_refuses_bad_first_messages() {
        let refused = |first: &str| rfc_server(first).map(|_| ()).unwrap_err();
        assert_eq!(
            refused("p=tls-unique,,n=user,r=abc"),
            ScramError::ChannelBinding
        );
        assert_eq!(refused("n,,m=x,n=user,r=abc"), ScramError::Extension);
        assert_eq!(refused("n,,n=,r=abc"), ScramError::Credentials);
        assert_eq!(refused("n,,n=a\u{1}b,r=abc"), ScramError::Credentials);
        assert_eq!(refused("n,,n=a=b,r=abc"), ScramError::Syntax);
        assert_eq!(refused("n,,n=user,r="), ScramError::Nonce);
        assert_eq!(
            refused(&format!("n,,n=user,r={}", "a".repeat(257))),
            ScramError::Nonce
        );
        assert_eq!(refused("n,,n=user"), ScramError::Syntax);
        assert_eq!(refused("x,,n=user,r=abc"), ScramError::Syntax);
        assert_eq!(refused("n,b=x,n=user,r=abc"), ScramError::Syntax);
        assert_eq!(refused("n"), ScramError::Syntax);
    }

    #[test]
    fn a_server_refuses_bad_final_messages() {
        let refused = |last: &str| {
            rfc_server(rfc::CLIENT_FIRST)
                .unwrap()
                .0
                .verify(last.as_bytes())
                .unwrap_err()
        };
        assert_eq!(
            refused(&rfc::CLIENT_FINAL.replace("biws", "eSws")),
            ScramError::ChannelBinding
        );
        assert_eq!(
            refused(&rfc::CLIENT_FINAL.replace("r=rO", "r=xO")),
            ScramError::Nonce
        );
        assert_eq!(
            refused(&rfc::CLIENT_FINAL.replace("p=d", "p=e")),
            ScramError::Proof
        );
        assert_eq!(
            refused(&rfc::CLIENT_FINAL.replace(",p=", ",x=y,p=")),
            ScramError::Proof
        );
        assert_eq!(refused("c=biws"), ScramError::Syntax);
        assert_eq!(refused(""), ScramError::Syntax);
    }

    #[test]
    fn identities_and_odd_names_are_read() {
        let first = ClientFirst::parse(b"y,a=boss=2C1,n=a=3Db=2Cc,r=abc,x=ignored").unwrap();
        assert_eq!(first.user(), "a=b,c");
        assert_eq!(first.acts_as(), Some("boss,1"));
        let nonce = Nonce::from_random([0; 18]);
        let (_, message) = ScramClient::start("a=b,c", "p", &nonce).unwrap();
        assert_eq!(
            ClientFirst::parse(message.as_bytes()).unwrap().user(),
            "a=b,c"
        );
        assert_eq!(
            ScramClient::start("", "p", &nonce).unwrap_err(),
            ScramError::Credentials
        );
        assert_eq!(
            ScramClient::start("a", "p\n", &nonce).unwrap_err(),
            ScramError::Credentials
        );
        assert!(!format!("{:?}", ScramClient::start("a", "hidden", &nonce)).contains("hidden"));
    }

    #[test]
    fn a_client_that_could_bind_is_let_in() {
        // `y`: the client could bind but believes that the server cannot, which is so.
        let first = rfc::CLIENT_FIRST.replacen('n', "y", 1);
        let (server, challenge) = rfc_server(&first).unwrap();
        assert_eq!(challenge, rfc::SERVER_FIRST);
        // The proof covers the header, so the exchange with `c=eSws` has another proof than the
        // RFC's.
        let last = rfc::CLIENT_FINAL.replace("biws", "eSws");
        assert_eq!(
            server.verify(last.as_bytes()).unwrap_err(),
            ScramError::Proof
        );
    }

    proptest! {
        #[test]
        fn messages_never_panic(text in "[nyprcsivem=,a-c0-9 +/\u{0}-\u{ff}]{0,120}") {
            let _ = ClientFirst::parse(text.as_bytes());
            let _ = rfc_client("pencil").challenge(text.as_bytes());
            let _ = rfc_server(rfc::CLIENT_FIRST).unwrap().0.verify(text.as_bytes());
        }

        #[test]
        fn names_survive_escaping(name in "[a-z=,]{1,20}") {
            prop_assert_eq!(unescape(&escape(&name)).unwrap(), name);
        }
    }
}
