//! Credentials: SCRAM-SHA-256 exchanges, password records and bearer tokens, sans-IO.
//!
//! One record per user serves every proof of a password. A [`Record`] has the form of PostgreSQL's
//! (`SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`). With it a server can run a SCRAM
//! exchange ([`ServerStart`], RFC 5802 and RFC 7677) and never learns the password. It can also
//! check a plain password in constant time (the password field of an MQTT CONNECT, SASL PLAIN).
//! Records that Mosquitto has made ([`ForeignRecord`]) serve plain passwords until they are replaced.
//! Bearer tokens of HTTP have a [`TokenFile`] of their own.
//!
//! The crate reads no clock, file or source of randomness: nonces, salts and the secret for decoy
//! records are arguments.
//!
//! # A whole exchange
//!
//! ```
//! use sterna_auth::{ClientFirst, Nonce, Record, ScramClient, ServerStart};
//!
//! let record = Record::from_password("pencil", b"sixteen random B", 4096)?;
//! let (client, first) = ScramClient::start("user", "pencil", &Nonce::from_random([1; 18]))?;
//! let hello = ClientFirst::parse(first.as_bytes())?;
//! assert_eq!(hello.user(), "user");
//! let (server, challenge) = ServerStart::new(hello, record, &Nonce::from_random([2; 18]));
//! let (client, proof) = client.challenge(challenge.as_bytes())?;
//! let signature = server.verify(proof.as_bytes())?;
//! client.verify(signature.as_bytes())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod foreign;
mod keys;
mod passwords;
mod record;
mod scram;
mod tokens;

pub use foreign::ForeignRecord;
pub use passwords::{MAX_USERS, PasswordFile, PasswordFileError};
pub use record::{
    DEFAULT_ITERATIONS, DecoySecret, MAX_ITERATIONS, MAX_PASSWORD_BYTES, MAX_SALT_BYTES,
    MAX_USER_BYTES, MIN_ITERATIONS, MIN_SALT_BYTES, Record, RecordError, is_user_name,
};
pub use scram::{
    ClientFinish, ClientFirst, MAX_CLIENT_ITERATIONS, MAX_MESSAGE_BYTES, MECHANISM, Nonce,
    ScramClient, ScramError, ServerStart,
};
pub use tokens::{
    MAX_TOKENS, TOKEN_BYTES, TokenDigest, TokenFault, TokenFile, TokenFileError, TokenRecord,
    token_from_random,
};
