//! A client's mechanisms.

use std::fmt;

use super::{PlainCredentials, mechanism};

/// The mechanism does not accept the server's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaslError;

impl fmt::Display for SaslError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server's SASL message is not acceptable")
    }
}

impl std::error::Error for SaslError {}

/// A client's side of a mechanism. `SCRAM-SHA-256` is one that the caller makes from `sterna-auth`.
pub trait Mechanism: Send {
    /// The name by which servers offer it.
    fn name(&self) -> &str;

    /// Whether the server may answer the first message with a challenge. Then bytes after the SASL
    /// layer cannot be sent before the outcome is known.
    fn may_be_challenged(&self) -> bool {
        true
    }

    /// The first message.
    fn initial_response(&mut self) -> Option<Vec<u8>>;

    /// Answers a challenge.
    ///
    /// # Errors
    ///
    /// When the challenge is not acceptable; the connection ends.
    fn challenge(&mut self, challenge: &[u8]) -> Result<Vec<u8>, SaslError>;

    /// Checks the data of the server's success. Mechanisms in which the server proves itself check
    /// that it has, here or in an earlier challenge.
    ///
    /// # Errors
    ///
    /// When the server has not proved itself; the connection ends.
    fn success(&mut self, additional_data: Option<&[u8]>) -> Result<(), SaslError>;
}

impl fmt::Debug for dyn Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// RFC 4505.
#[derive(Clone, Debug, Default)]
pub struct Anonymous {
    /// Anything that helps the server's operators to tell clients apart.
    pub trace: String,
}

impl Mechanism for Anonymous {
    fn name(&self) -> &str {
        mechanism::ANONYMOUS
    }

    fn may_be_challenged(&self) -> bool {
        false
    }

    fn initial_response(&mut self) -> Option<Vec<u8>> {
        Some(self.trace.clone().into_bytes())
    }

    fn challenge(&mut self, _challenge: &[u8]) -> Result<Vec<u8>, SaslError> {
        Err(SaslError)
    }

    fn success(&mut self, _additional_data: Option<&[u8]>) -> Result<(), SaslError> {
        Ok(())
    }
}

/// RFC 4422, appendix A.
#[derive(Clone, Debug, Default)]
pub struct External {
    /// User whose rights are requested; empty for the authenticated user.
    pub authorization_identity: String,
}

impl Mechanism for External {
    fn name(&self) -> &str {
        mechanism::EXTERNAL
    }

    fn may_be_challenged(&self) -> bool {
        false
    }

    fn initial_response(&mut self) -> Option<Vec<u8>> {
        Some(self.authorization_identity.clone().into_bytes())
    }

    fn challenge(&mut self, challenge: &[u8]) -> Result<Vec<u8>, SaslError> {
        // An empty challenge asks for the initial response again.
        if challenge.is_empty() {
            Ok(self.authorization_identity.clone().into_bytes())
        } else {
            Err(SaslError)
        }
    }

    fn success(&mut self, _additional_data: Option<&[u8]>) -> Result<(), SaslError> {
        Ok(())
    }
}

/// RFC 4616. Only to be used where the transport encrypts.
#[derive(Clone)]
pub struct Plain {
    /// The user name, without NUL.
    pub user: String,
    /// The password, without NUL.
    pub password: String,
}

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plain")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl Mechanism for Plain {
    fn name(&self) -> &str {
        mechanism::PLAIN
    }

    fn may_be_challenged(&self) -> bool {
        false
    }

    fn initial_response(&mut self) -> Option<Vec<u8>> {
        let credentials = PlainCredentials {
            authorization_identity: "",
            user: &self.user,
            password: &self.password,
        };
        Some(credentials.message())
    }

    fn challenge(&mut self, _challenge: &[u8]) -> Result<Vec<u8>, SaslError> {
        Err(SaslError)
    }

    fn success(&mut self, _additional_data: Option<&[u8]>) -> Result<(), SaslError> {
        Ok(())
    }
}
