//! Records of passwords that Mosquitto's `mosquitto_passwd` has made: good for a plain password, not for SCRAM.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::Hmac;
use sha2::{Digest as _, Sha512};
use subtle::ConstantTimeEq as _;

use crate::record::{MAX_ITERATIONS, MAX_PASSWORD_BYTES, MAX_SALT_BYTES, RecordError};

/// Bytes of a SHA-512 digest.
const DIGEST_BYTES: usize = 64;

/// A record of one user's password in a form of Mosquitto's.
///
/// - `$7$<iterations>$<salt>$<digest>`: PBKDF2 with HMAC-SHA-512, by default 101 iterations
/// - `$6$<salt>$<digest>`: SHA-512 of the password and the salt, of Mosquitto 1.6 and earlier
///
/// Salt and digest are in base64. Both forms cost a thief of the file little, so a server that has seen the password
/// replaces them by a [`Record`](crate::Record). `Debug` shows no secret.
#[derive(Clone)]
pub struct ForeignRecord {
    /// `None` for `$6$`.
    iterations: Option<u32>,
    salt: Vec<u8>,
    digest: [u8; DIGEST_BYTES],
}

impl ForeignRecord {
    /// Checks a plain password. The time does not depend on the number of right bytes.
    #[must_use]
    pub fn verify_password(&self, password: &[u8]) -> bool {
        if password.len() > MAX_PASSWORD_BYTES {
            return false;
        }
        let mut found = [0; DIGEST_BYTES];
        if let Some(iterations) = self.iterations {
            let made = pbkdf2::pbkdf2::<Hmac<Sha512>>(password, &self.salt, iterations, &mut found);
            debug_assert!(made.is_ok(), "HMAC accepts keys of every length");
        } else {
            let digest = Sha512::new()
                .chain_update(password)
                .chain_update(&self.salt);
            found.copy_from_slice(&digest.finalize());
        }
        found.ct_eq(&self.digest).into()
    }
}

impl fmt::Debug for ForeignRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignRecord")
            .field("iterations", &self.iterations)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for ForeignRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.iterations {
            Some(iterations) => write!(f, "$7${iterations}")?,
            None => f.write_str("$6")?,
        }
        let (salt, digest) = (BASE64.encode(&self.salt), BASE64.encode(self.digest));
        write!(f, "${salt}${digest}")
    }
}

impl FromStr for ForeignRecord {
    type Err = RecordError;

    fn from_str(text: &str) -> Result<Self, RecordError> {
        let (iterations, rest) = if let Some(rest) = text.strip_prefix("$7$") {
            let (iterations, rest) = rest.split_once('$').ok_or(RecordError::Form)?;
            if !iterations.bytes().all(|digit| digit.is_ascii_digit()) {
                return Err(RecordError::Form);
            }
            let iterations: u32 = iterations.parse().map_err(|_| RecordError::Iterations)?;
            if !(1..=MAX_ITERATIONS).contains(&iterations) {
                return Err(RecordError::Iterations);
            }
            (Some(iterations), rest)
        } else {
            (None, text.strip_prefix("$6$").ok_or(RecordError::Form)?)
        };
        let (salt, digest) = rest.split_once('$').ok_or(RecordError::Form)?;
        let decode = |text: &str| BASE64.decode(text).map_err(|_| RecordError::Form);
        let salt = decode(salt)?;
        if !(1..=MAX_SALT_BYTES).contains(&salt.len()) {
            return Err(RecordError::Salt);
        }
        Ok(Self {
            iterations,
            salt,
            digest: decode(digest)?.try_into().map_err(|_| RecordError::Form)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Both made by `mosquitto_passwd` 2.0 for the password `pass word`.
    const MADE: [&str; 2] = [
        "$7$101$TW8yJOn8lwmx+LAH$mwDPYDx8osXJwYsxCEKHamrwAUtxS3jEr2ENsE43jWZkN55wqwGBXPzcPYT2/QkYhu6QAYB161OzABMU8LCepA==",
        "$6$06v3aHF2XQ6mvI8m$Lhmg9Cc/mnRY8D8+oxt0FEwe/HeSIg+g5RmyYyEng6H9ZSZNgCTiNXV8hJFezmECdz2BGj3+Ify8ppsHcpRYEQ==",
    ];

    #[test]
    fn what_mosquitto_has_made_is_read_written_and_checked() {
        for text in MADE {
            let record: ForeignRecord = text.parse().unwrap();
            assert_eq!(record.to_string(), text);
            assert!(record.verify_password(b"pass word"), "{text}");
            for wrong in [
                &b"pass"[..],
                b"",
                b"pass word ",
                &[b'x'; MAX_PASSWORD_BYTES + 1],
            ] {
                assert!(!record.verify_password(wrong), "{text}");
            }
            assert!(!format!("{record:?}").contains("mwDP"));
        }
    }

    #[test]
    fn limits_are_kept() {
        for (text, error) in [
            (MADE[0].replace("101", "0"), RecordError::Iterations),
            (MADE[0].replace("101", "10000001"), RecordError::Iterations),
            (
                MADE[0].replace("101", "99999999999"),
                RecordError::Iterations,
            ),
            (MADE[0].replace("101", "+101"), RecordError::Form),
            (MADE[0].replace("mwDP", "mwD"), RecordError::Form),
            (MADE[1].replace("06v3aHF2XQ6mvI8m", ""), RecordError::Salt),
            (MADE[1].replace("$6$", "$5$"), RecordError::Form),
            ("$6$".to_owned(), RecordError::Form),
            ("$7$1".to_owned(), RecordError::Form),
        ] {
            assert_eq!(text.parse::<ForeignRecord>().unwrap_err(), error, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in ".{0,200}") {
            for form in ["", "$6$", "$7$", "$7$101$"] {
                let _ = format!("{form}{text}").parse::<ForeignRecord>();
            }
        }
    }
}
