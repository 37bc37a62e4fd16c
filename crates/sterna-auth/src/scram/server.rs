//! The server's side of the exchange.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{
    MAX_NONCE_BYTES, Nonce, ScramError, attribute, decode_key, is_nonce, message_text, unescape,
};
use crate::keys;
use crate::record::{MAX_USER_BYTES, Record, prepared};

/// A client's first message, read and checked; it names the user whose record the server needs
/// next.
#[derive(Clone, Debug)]
pub struct ClientFirst {
    user: String,
    acts_as: Option<String>,
    nonce: String,
    /// The header, which the client repeats in its last message.
    header: String,
    /// The message without its header, which the proof covers.
    bare: String,
}

impl ClientFirst {
    /// Reads a client's first message.
    ///
    /// # Errors
    /// When it is malformed, demands channel binding or an extension, or names no proper user.
    pub fn parse(message: &[u8]) -> Result<Self, ScramError> {
        let text = message_text(message)?;
        let (flag, rest) = text.split_once(',').ok_or(ScramError::Syntax)?;
        match flag {
            // `y`: the client supports binding but assumes that the server does not, which is true.
            "n" | "y" => {}
            flag if flag.starts_with("p=") => return Err(ScramError::ChannelBinding),
            _ => return Err(ScramError::Syntax),
        }
        let (identity, bare) = rest.split_once(',').ok_or(ScramError::Syntax)?;
        let acts_as = match identity {
            "" => None,
            identity => Some(unescape(
                identity.strip_prefix("a=").ok_or(ScramError::Syntax)?,
            )?),
        };
        if bare.starts_with("m=") {
            return Err(ScramError::Extension);
        }
        let mut attributes = bare.split(',');
        let user = unescape(attribute(&mut attributes, 'n')?)?;
        if !prepared(&user, MAX_USER_BYTES) {
            return Err(ScramError::Credentials);
        }
        let nonce = attribute(&mut attributes, 'r')?;
        if !is_nonce(nonce, MAX_NONCE_BYTES) {
            return Err(ScramError::Nonce);
        }
        Ok(Self {
            user,
            acts_as,
            nonce: nonce.to_owned(),
            header: text[..text.len() - bare.len()].to_owned(),
            bare: bare.to_owned(),
        })
    }

    /// The user to be authenticated.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// User whose rights are requested, if the message has one (RFC 5802's authzid). A server
    /// without this feature refuses any name except the user's own.
    #[must_use]
    pub fn acts_as(&self) -> Option<&str> {
        self.acts_as.as_deref()
    }
}

/// A server that has sent its challenge and waits for the proof.
#[derive(Debug)]
pub struct ServerStart {
    record: Record,
    nonce: String,
    header: String,
    /// Both first messages, which the proof covers: `client-first-bare,server-first`.
    signed: String,
}

impl ServerStart {
    /// Answers a client's first message; the second value is the challenge to send.
    ///
    /// `record` is the user's, or a decoy ([`DecoySecret::record`](crate::DecoySecret::record)) for
    /// an unknown user. Then the exchange continues to its end, and fails there as with a wrong
    /// password.
    #[must_use]
    pub fn new(first: ClientFirst, record: Record, nonce: &Nonce) -> (Self, String) {
        let nonce = first.nonce + nonce.as_str();
        let challenge = format!(
            "r={nonce},s={},i={}",
            BASE64.encode(record.salt()),
            record.iterations()
        );
        let signed = format!("{},{challenge}", first.bare);
        (
            Self {
                record,
                nonce,
                header: first.header,
                signed,
            },
            challenge,
        )
    }

    /// Checks the client's proof. Returns the last message to send, with which the server proves
    /// itself in turn.
    ///
    /// # Errors
    /// [`ScramError::Proof`] for a wrong password and for an unknown user. Others when the message
    /// is malformed or belongs to another exchange.
    pub fn verify(self, message: &[u8]) -> Result<String, ScramError> {
        let text = message_text(message)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(ScramError::Syntax)?;
        let mut attributes = without_proof.split(',');
        let header = BASE64
            .decode(attribute(&mut attributes, 'c')?)
            .map_err(|_| ScramError::Syntax)?;
        if header != self.header.as_bytes() {
            return Err(ScramError::ChannelBinding);
        }
        if attribute(&mut attributes, 'r')? != self.nonce {
            return Err(ScramError::Nonce);
        }
        let signed: [&[u8]; 3] = [self.signed.as_bytes(), b",", without_proof.as_bytes()];
        let client_signature = keys::hmac(self.record.stored_key(), &signed);
        let client_key = keys::xor(&decode_key(proof)?, &client_signature);
        if !self.record.verify_client_key(&client_key) {
            return Err(ScramError::Proof);
        }
        Ok(format!(
            "v={}",
            BASE64.encode(keys::hmac(self.record.server_key(), &signed))
        ))
    }
}
