//! Authentication of an AMQP client.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sterna_amqp::sasl::{Anonymous, External, Mechanism, Plain, SaslError, mechanism};
use sterna_auth::{ClientFinish, Nonce, ScramClient, ScramError};

use super::Error;
use crate::options::random_bytes;

/// Authentication of a client in the SASL layer (part 5, section 5.3).
#[derive(Clone, PartialEq, Eq)]
pub enum Sasl {
    /// No SASL layer at all: the protocol header of AMQP is the first thing that is said.
    None,
    /// ANONYMOUS: not at all, but within the layer, as most brokers want it.
    Anonymous,
    /// PLAIN: user name and password. Over an encrypted transport only the server sees them.
    Plain {
        /// User name.
        user: String,
        /// Password.
        password: String,
    },
    /// EXTERNAL: by the client's certificate, which the transport shows.
    External,
    /// SCRAM-SHA-256 (RFC 7677): an exchange from which the server doesn't learn the password. The
    /// server has to prove that it knows it.
    ScramSha256 {
        /// User name.
        user: String,
        /// Password.
        password: String,
    },
}

impl fmt::Debug for Sasl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Anonymous => f.write_str("Anonymous"),
            Self::Plain { user, .. } => write!(f, "Plain {{ user: {user:?}, .. }}"),
            Self::External => f.write_str("External"),
            Self::ScramSha256 { user, .. } => write!(f, "ScramSha256 {{ user: {user:?}, .. }}"),
        }
    }
}

/// Why an exchange failed; the engine only says that it did.
pub(super) type Verdict = Arc<Mutex<Option<ScramError>>>;

impl Sasl {
    /// The mechanism for one connection.
    pub(super) fn mechanism(
        &self,
        container_id: &str,
        verdict: &Verdict,
    ) -> Result<Option<Box<dyn Mechanism>>, Error> {
        Ok(match self {
            Self::None => None,
            Self::Anonymous => Some(Box::new(Anonymous {
                trace: container_id.to_owned(),
            })),
            Self::Plain { user, password } => Some(Box::new(Plain {
                user: user.clone(),
                password: password.clone(),
            })),
            Self::External => Some(Box::new(External::default())),
            Self::ScramSha256 { user, password } => {
                let mut random = [0; 18];
                random_bytes(&mut random);
                let nonce = Nonce::from_random(random);
                let (client, first) = ScramClient::start(user, password, &nonce)?;
                Some(Box::new(Scram {
                    exchange: Exchange::Started(client),
                    first,
                    verdict: Arc::clone(verdict),
                }))
            }
        })
    }
}

/// Where an exchange stands.
enum Exchange {
    Started(ScramClient),
    Proven(ClientFinish),
    Verified,
    Failed,
}

/// SCRAM-SHA-256 (RFC 5802, RFC 7677).
struct Scram {
    exchange: Exchange,
    first: String,
    verdict: Verdict,
}

impl Scram {
    fn fail(&mut self, error: ScramError) -> SaslError {
        self.exchange = Exchange::Failed;
        *self.verdict.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        SaslError
    }

    fn verify(&mut self, finish: ClientFinish, signature: &[u8]) -> Result<(), SaslError> {
        match finish.verify(signature) {
            Ok(()) => {
                self.exchange = Exchange::Verified;
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }
}

impl Mechanism for Scram {
    fn name(&self) -> &str {
        mechanism::SCRAM_SHA_256
    }

    fn initial_response(&mut self) -> Option<Vec<u8>> {
        Some(self.first.clone().into_bytes())
    }

    fn challenge(&mut self, challenge: &[u8]) -> Result<Vec<u8>, SaslError> {
        match std::mem::replace(&mut self.exchange, Exchange::Failed) {
            Exchange::Started(client) => match client.challenge(challenge) {
                Ok((finish, proof)) => {
                    self.exchange = Exchange::Proven(finish);
                    Ok(proof.into_bytes())
                }
                Err(error) => Err(self.fail(error)),
            },
            // Some servers send their signature in a challenge, before the outcome.
            Exchange::Proven(finish) => self.verify(finish, challenge).map(|()| Vec::new()),
            Exchange::Verified | Exchange::Failed => Err(self.fail(ScramError::Syntax)),
        }
    }

    fn success(&mut self, additional_data: Option<&[u8]>) -> Result<(), SaslError> {
        match std::mem::replace(&mut self.exchange, Exchange::Failed) {
            Exchange::Proven(finish) => self.verify(finish, additional_data.unwrap_or_default()),
            Exchange::Verified => Ok(()),
            // A server that accepts a client without an exchange has proven nothing.
            Exchange::Started(_) | Exchange::Failed => Err(self.fail(ScramError::Signature)),
        }
    }
}
