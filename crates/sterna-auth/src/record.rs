//! A server's record of a password.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq as _;

use crate::keys::{self, KEY_BYTES, Key};

/// Fewest iterations that a record may ask for (RFC 7677 section 4: at least 4096).
pub const MIN_ITERATIONS: u32 = 4_096;
/// Most iterations that a record may ask for; about 1 s of CPU for one password.
pub const MAX_ITERATIONS: u32 = 10_000_000;
/// Iterations of new records: OWASP's recommendation for PBKDF2 with SHA-256, 0.1 to 0.3 s of CPU
/// for one password.
///
/// More iterations protect better against a stolen password file. A check of a plain password costs
/// the server as much, and each SCRAM exchange the client. For small devices with SCRAM,
/// [`MIN_ITERATIONS`] and a long random password are the better choice.
pub const DEFAULT_ITERATIONS: u32 = 600_000;
/// Longest password taken, in bytes of UTF-8; longer ones are refused, not cut.
pub const MAX_PASSWORD_BYTES: usize = 1_024;
/// Longest user name taken, in bytes of UTF-8.
pub const MAX_USER_BYTES: usize = 1_024;
/// Shortest salt of a record, in bytes.
pub const MIN_SALT_BYTES: usize = 8;
/// Longest salt of a record, in bytes.
pub const MAX_SALT_BYTES: usize = 64;

const PREFIX: &str = "SCRAM-SHA-256$";

/// Bytes of a decoy's salt where nothing else is said.
const DECOY_SALT_BYTES: usize = 16;

/// Why a record could not be read or made. The text never contains any part of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordError {
    /// The text does not have the form `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`, and none of
    /// [`ForeignRecord`](crate::ForeignRecord).
    Form,
    /// Iterations below [`MIN_ITERATIONS`] or above [`MAX_ITERATIONS`].
    Iterations,
    /// Salt shorter than [`MIN_SALT_BYTES`] or longer than [`MAX_SALT_BYTES`].
    Salt,
    /// Password empty, longer than [`MAX_PASSWORD_BYTES`] or with control characters.
    Password,
    /// User name empty, longer than [`MAX_USER_BYTES`], or with control characters or a colon.
    User,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => f.write_str(
                "not of the form SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>, nor a $7$ or $6$ record \
                 of mosquitto_passwd",
            ),
            Self::Iterations => {
                write!(
                    f,
                    "iterations must lie between {MIN_ITERATIONS} and {MAX_ITERATIONS}"
                )
            }
            Self::Salt => {
                write!(
                    f,
                    "the salt must have {MIN_SALT_BYTES} to {MAX_SALT_BYTES} bytes"
                )
            }
            Self::Password => write!(
                f,
                "a password has 1 to {MAX_PASSWORD_BYTES} bytes and no control characters"
            ),
            Self::User => write!(
                f,
                "a user name has 1 to {MAX_USER_BYTES} bytes, no control characters and no colon"
            ),
        }
    }
}

impl std::error::Error for RecordError {}

/// Prepares a user name or a password by a part of SASLprep (RFC 4013). Control characters are
/// refused (section 2.3). All other text is taken unchanged, byte for byte.
///
/// Unicode normalisation is left out on purpose. It needs tables that change with each Unicode
/// version, and devices send the bytes that they were provisioned with.
pub(crate) fn prepared(text: &str, max_bytes: usize) -> bool {
    !text.is_empty() && text.len() <= max_bytes && !text.chars().any(char::is_control)
}

/// Whether a text can be the name of a user: 1 to [`MAX_USER_BYTES`] bytes without control characters.
#[must_use]
pub fn is_user_name(text: &str) -> bool {
    prepared(text, MAX_USER_BYTES)
}

/// A server's record of one user's password: enough to check it, not enough to use it elsewhere.
///
/// Parses from and prints as PostgreSQL's form,
/// `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>` with base64 after the iterations
/// (RFC 5803 holds the same four values). `Debug` shows no secret.
#[derive(Clone)]
pub struct Record {
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Key,
    server_key: Key,
    /// A decoy stands for a user who does not exist and accepts nothing.
    decoy: bool,
}

impl Record {
    /// Makes the record of a password. `salt` should be 16 random bytes.
    ///
    /// # Errors
    /// When the password, the salt or the iterations are out of the limits of this module.
    pub fn from_password(
        password: &str,
        salt: &[u8],
        iterations: u32,
    ) -> Result<Self, RecordError> {
        if !prepared(password, MAX_PASSWORD_BYTES) {
            return Err(RecordError::Password);
        }
        check_salt(salt)?;
        check_iterations(iterations)?;
        let salted = keys::salted_password(password.as_bytes(), salt, iterations);
        Ok(Self {
            iterations,
            salt: salt.to_vec(),
            stored_key: keys::digest(&keys::client_key(&salted)),
            server_key: keys::server_key(&salted),
            decoy: false,
        })
    }

    /// Iterations of PBKDF2 that a check of a password costs.
    #[must_use]
    pub const fn iterations(&self) -> u32 {
        self.iterations
    }

    /// The salt, between [`MIN_SALT_BYTES`] and [`MAX_SALT_BYTES`] bytes.
    #[must_use]
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// Whether the record stands for a user who does not exist; see [`DecoySecret::record`].
    #[must_use]
    pub const fn is_decoy(&self) -> bool {
        self.decoy
    }

    /// Checks a plain password. The time depends on the iterations and on the password's length. It
    /// does not depend on the number of right bytes, and not on whether the record is a decoy.
    ///
    /// Passwords are bytes here, because MQTT's password field is binary data. Longer ones than
    /// [`MAX_PASSWORD_BYTES`] are refused at once, which tells nothing about the stored one.
    #[must_use]
    pub fn verify_password(&self, password: &[u8]) -> bool {
        if password.len() > MAX_PASSWORD_BYTES {
            return false;
        }
        let salted = keys::salted_password(password, &self.salt, self.iterations);
        self.verify_client_key(&keys::client_key(&salted))
    }

    /// Checks a key that a client proved to know.
    pub(crate) fn verify_client_key(&self, client_key: &Key) -> bool {
        let same = keys::digest(client_key).ct_eq(&self.stored_key);
        bool::from(same & subtle::Choice::from(u8::from(!self.decoy)))
    }

    pub(crate) const fn stored_key(&self) -> &Key {
        &self.stored_key
    }

    pub(crate) const fn server_key(&self) -> &Key {
        &self.server_key
    }
}

fn check_salt(salt: &[u8]) -> Result<(), RecordError> {
    if (MIN_SALT_BYTES..=MAX_SALT_BYTES).contains(&salt.len()) {
        Ok(())
    } else {
        Err(RecordError::Salt)
    }
}

fn check_iterations(iterations: u32) -> Result<(), RecordError> {
    if (MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations) {
        Ok(())
    } else {
        Err(RecordError::Iterations)
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{PREFIX}{}:{}${}:{}",
            self.iterations,
            BASE64.encode(&self.salt),
            BASE64.encode(self.stored_key),
            BASE64.encode(self.server_key)
        )
    }
}

impl FromStr for Record {
    type Err = RecordError;

    fn from_str(text: &str) -> Result<Self, RecordError> {
        let (parameters, keys) = text
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('$'))
            .ok_or(RecordError::Form)?;
        let (iterations, salt) = parameters.split_once(':').ok_or(RecordError::Form)?;
        let (stored_key, server_key) = keys.split_once(':').ok_or(RecordError::Form)?;
        if !iterations.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(RecordError::Form);
        }
        let iterations = iterations.parse().map_err(|_| RecordError::Iterations)?;
        check_iterations(iterations)?;
        let salt = decode(salt)?;
        check_salt(&salt)?;
        Ok(Self {
            iterations,
            salt,
            stored_key: decode_key(stored_key)?,
            server_key: decode_key(server_key)?,
            decoy: false,
        })
    }
}

fn decode(text: &str) -> Result<Vec<u8>, RecordError> {
    BASE64.decode(text).map_err(|_| RecordError::Form)
}

fn decode_key(text: &str) -> Result<Key, RecordError> {
    <[u8; KEY_BYTES]>::try_from(decode(text)?).map_err(|_| RecordError::Form)
}

/// A server's secret from which the records of users who do not exist are made.
///
/// With them neither the salt, nor the number of messages, nor the time tells whether a user
/// exists.
#[derive(Clone)]
pub struct DecoySecret([u8; 32]);

impl DecoySecret {
    /// A number below `count` for an unknown user: always the same, and any of them alike.
    #[must_use]
    pub fn choose(&self, user: &str, count: usize) -> usize {
        let digest = keys::hmac(&self.0, &[b"likeness", user.as_bytes()]);
        let mut number = [0; 8];
        number.copy_from_slice(&digest[..8]);
        let place = u128::from(u64::from_be_bytes(number)) * count as u128;
        (place >> 64) as usize
    }

    /// From 32 random bytes. Keep the same ones over restarts: a salt that changes when a server
    /// restarts is the mark of a decoy.
    #[must_use]
    pub const fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// The record that stands for an unknown `user`. A name always has the same record, and no
    /// password matches it. `iterations` should be those of the real records; the number is clamped
    /// to the limits of a record.
    #[must_use]
    pub fn record(&self, user: &str, iterations: u32) -> Record {
        self.record_like(user, (iterations, DECOY_SALT_BYTES))
    }

    /// The same, with a salt of so many bytes. A name has another salt with other iterations, as a user has whose
    /// record is made anew.
    #[must_use]
    pub fn record_like(&self, user: &str, (iterations, salt_bytes): (u32, usize)) -> Record {
        let half = |name: &[u8]| {
            let parts = [name, &iterations.to_be_bytes(), user.as_bytes()];
            keys::hmac(&self.0, &parts)
        };
        let mut salt = [half(b"salt"), half(b"more salt")].concat();
        salt.truncate(salt_bytes.clamp(MIN_SALT_BYTES, MAX_SALT_BYTES));
        Record {
            iterations: iterations.clamp(MIN_ITERATIONS, MAX_ITERATIONS),
            salt,
            stored_key: keys::hmac(&self.0, &[b"stored key", user.as_bytes()]),
            server_key: keys::hmac(&self.0, &[b"server key", user.as_bytes()]),
            decoy: true,
        }
    }
}

impl fmt::Debug for DecoySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DecoySecret(..)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The record that follows from the password, salt and iterations of RFC 7677 section 3.
    const RFC_RECORD: &str = "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$\
        WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    #[test]
    fn a_record_survives_text() {
        let record: Record = RFC_RECORD.parse().unwrap();
        assert_eq!(record.to_string(), RFC_RECORD);
        assert_eq!(record.iterations(), 4096);
        assert!(record.verify_password(b"pencil"));
        assert!(!record.verify_password(b"Pencil"));
        assert!(!record.verify_password(b""));
        assert!(!record.verify_password(&[b'p'; MAX_PASSWORD_BYTES + 1]));
        assert!(
            !format!("{record:?}").contains("WG5d"),
            "debug output shows no keys"
        );
    }

    #[test]
    fn the_same_password_and_salt_make_the_same_record() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        assert_eq!(
            Record::from_password("pencil", &salt, 4096)
                .unwrap()
                .to_string(),
            RFC_RECORD
        );
    }

    #[test]
    fn limits_are_kept() {
        let made = |password: &str, salt: &[u8], iterations| {
            Record::from_password(password, salt, iterations)
                .map(|_| ())
                .unwrap_err()
        };
        let salt = [7; 16];
        assert_eq!(made("", &salt, 4096), RecordError::Password);
        assert_eq!(made("a\u{7}b", &salt, 4096), RecordError::Password);
        assert_eq!(made(&"a".repeat(1025), &salt, 4096), RecordError::Password);
        assert_eq!(made("a", &salt[..7], 4096), RecordError::Salt);
        assert_eq!(made("a", &[0; 65], 4096), RecordError::Salt);
        assert_eq!(made("a", &salt, 4095), RecordError::Iterations);
        assert_eq!(made("a", &salt, 10_000_001), RecordError::Iterations);
        for (text, error) in [
            ("", RecordError::Form),
            ("SCRAM-SHA-1$4096:AAAA$AAAA:AAAA", RecordError::Form),
            (&RFC_RECORD.replace("4096", "+4096"), RecordError::Form),
            (&RFC_RECORD.replace("4096", "4095"), RecordError::Iterations),
            (
                &RFC_RECORD.replace("4096", "99999999999"),
                RecordError::Iterations,
            ),
            (
                &RFC_RECORD.replace("W22ZaJ0SNY7soEsUEjb6gQ==", "AAAA"),
                RecordError::Salt,
            ),
            (&RFC_RECORD.replace("WG5d", "WG5"), RecordError::Form),
            (&RFC_RECORD[..RFC_RECORD.len() - 4], RecordError::Form),
        ] {
            assert_eq!(text.parse::<Record>().unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn a_decoy_is_steady_and_opens_to_nothing() {
        let secret = DecoySecret::new([9; 32]);
        let decoy = secret.record("nobody", 4096);
        assert_eq!(decoy.to_string(), secret.record("nobody", 4096).to_string());
        assert_ne!(decoy.salt(), secret.record("somebody", 4096).salt());
        assert_eq!(decoy.salt().len(), 16);
        assert!(decoy.is_decoy());
        assert!(!decoy.verify_password(b"pencil"));
        // Even with a key whose digest is the stored one, a decoy refuses.
        let mut forged = Record::from_password("pencil", &[1; 16], 4096).unwrap();
        forged.decoy = true;
        assert!(!forged.verify_password(b"pencil"));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,200}") {
            let _ = text.parse::<Record>();
            let _ = format!("SCRAM-SHA-256${text}").parse::<Record>();
        }
    }
}
