//! The client's side of the exchange.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq as _;

use super::{Nonce, ScramError, attribute, decode_key, escape, is_nonce, message_text};
use crate::keys::{self, Key};
use crate::record::{MAX_PASSWORD_BYTES, MAX_SALT_BYTES, MAX_USER_BYTES, MIN_ITERATIONS, prepared};

/// Most iterations that a client does for a server that it doesn't trust yet; 0.1 to 1 s of CPU.
pub const MAX_CLIENT_ITERATIONS: u32 = 1_000_000;

/// The header of a client that has no channel binding and acts for itself, and its base64.
const GS2_HEADER: &str = "n,,";
const GS2_HEADER_BASE64: &str = "biws";

/// A client that has sent its first message and waits for the challenge.
pub struct ScramClient {
    password: String,
    nonce: String,
    /// The first message without its header, which the proof covers.
    first_bare: String,
}

impl fmt::Debug for ScramClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramClient").finish_non_exhaustive()
    }
}

impl ScramClient {
    /// Starts an exchange; the second value is the first message to send.
    ///
    /// # Errors
    /// When the user name or the password is empty, too long or has control characters.
    pub fn start(user: &str, password: &str, nonce: &Nonce) -> Result<(Self, String), ScramError> {
        if !prepared(user, MAX_USER_BYTES) || !prepared(password, MAX_PASSWORD_BYTES) {
            return Err(ScramError::Credentials);
        }
        let first_bare = format!("n={},r={}", escape(user), nonce.as_str());
        let message = format!("{GS2_HEADER}{first_bare}");
        let client = Self {
            password: password.to_owned(),
            nonce: nonce.as_str().to_owned(),
            first_bare,
        };
        Ok((client, message))
    }

    /// Answers the server's first message; the second value is the proof to send.
    ///
    /// # Errors
    /// When the message is malformed, answers another exchange, or asks for too few or too many
    /// iterations.
    pub fn challenge(self, message: &[u8]) -> Result<(ClientFinish, String), ScramError> {
        let challenge = message_text(message)?;
        if challenge.starts_with("m=") {
            return Err(ScramError::Extension);
        }
        if challenge.starts_with("e=") {
            return Err(ScramError::Refused);
        }
        let mut attributes = challenge.split(',');
        let nonce = attribute(&mut attributes, 'r')?;
        let added = nonce
            .strip_prefix(self.nonce.as_str())
            .ok_or(ScramError::Nonce)?;
        // A server that adds nothing could replay an old exchange (RFC 5802 section 5.1).
        if !is_nonce(added, super::MAX_MESSAGE_BYTES) {
            return Err(ScramError::Nonce);
        }
        let salt = BASE64
            .decode(attribute(&mut attributes, 's')?)
            .ok()
            .filter(|salt| (1..=MAX_SALT_BYTES).contains(&salt.len()))
            .ok_or(ScramError::Syntax)?;
        let iterations: u32 = attribute(&mut attributes, 'i')?
            .parse()
            .map_err(|_| ScramError::Syntax)?;
        if !(MIN_ITERATIONS..=MAX_CLIENT_ITERATIONS).contains(&iterations) {
            return Err(ScramError::Iterations);
        }

        let salted = keys::salted_password(self.password.as_bytes(), &salt, iterations);
        let client_key = keys::client_key(&salted);
        let final_bare = format!("c={GS2_HEADER_BASE64},r={nonce}");
        let signed: [&[u8]; 5] = [
            self.first_bare.as_bytes(),
            b",",
            challenge.as_bytes(),
            b",",
            final_bare.as_bytes(),
        ];
        let client_signature = keys::hmac(&keys::digest(&client_key), &signed);
        let proof = BASE64.encode(keys::xor(&client_key, &client_signature));
        let server_signature = keys::hmac(&keys::server_key(&salted), &signed);
        Ok((
            ClientFinish { server_signature },
            format!("{final_bare},p={proof}"),
        ))
    }
}

/// A client that has sent its proof and waits for the server's.
pub struct ClientFinish {
    server_signature: Key,
}

impl fmt::Debug for ClientFinish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientFinish").finish_non_exhaustive()
    }
}

impl ClientFinish {
    /// Checks the server's last message. Only then is it known that the server holds the user's
    /// record.
    ///
    /// # Errors
    /// When the signature is wrong, or the server says that the exchange failed.
    pub fn verify(self, message: &[u8]) -> Result<(), ScramError> {
        let text = message_text(message)?;
        if text.starts_with("e=") {
            return Err(ScramError::Refused);
        }
        let signature = decode_key(attribute(&mut text.split(','), 'v')?)?;
        if bool::from(signature.ct_eq(&self.server_signature)) {
            Ok(())
        } else {
            Err(ScramError::Signature)
        }
    }
}
