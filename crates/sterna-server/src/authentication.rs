//! Who may connect: anonymous clients, users with a password, client certificates, and SCRAM.
//!
//! Checking a plain password costs milliseconds by design, so it never happens on a shard: a thread of
//! its own does it and the shard goes on with everyone else.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use sterna_auth::{
    ClientFirst, DecoySecret, MECHANISM, Nonce, PasswordFile, ServerStart, TokenFile,
};

/// Password checks that may wait at once; beyond it clients are told that the server is busy.
const MAXIMUM_WAITING_CHECKS: usize = 4096;

/// The users in force, and a secret from which unknown users get a decoy, so that nobody can tell from
/// outside whether a user exists.
#[derive(Debug)]
pub struct Users {
    file: PasswordFile,
    decoy: DecoySecret,
}

impl Users {
    /// Reads a password file; without one there are no users.
    ///
    /// # Errors
    /// A sentence that names the file, the line and its fault.
    pub fn load(path: Option<&Path>) -> Result<Self, String> {
        let file = match path {
            None => PasswordFile::new(),
            Some(path) => std::fs::read_to_string(path)
                .map_err(|e| e.to_string())
                .and_then(|text| PasswordFile::parse(&text).map_err(|e| e.to_string()))
                .map_err(|why| format!("{}: {why}", path.display()))?,
        };
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|e| format!("no randomness: {e}"))?;
        Ok(Self {
            file,
            decoy: DecoySecret::new(secret),
        })
    }

    /// Whether there is anyone to check a password against.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.file.is_empty()
    }

    /// Whether there is a user of this name.
    #[must_use]
    pub fn has(&self, user: &str) -> bool {
        self.file.get(user).is_some()
    }

    pub(crate) fn have_same_names(&self, other: &Self) -> bool {
        self.file.users().eq(other.file.users())
    }

    fn verify(&self, user: &str, password: &[u8]) -> bool {
        self.file
            .get_or_decoy(user, &self.decoy)
            .verify_password(password)
    }
}

/// The bearer tokens in force.
#[derive(Debug, Default)]
pub struct Tokens {
    file: TokenFile,
}

impl Tokens {
    /// Reads a token file; without one there are no tokens.
    ///
    /// # Errors
    /// A sentence that names the file, the line and its fault.
    pub fn load(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let file = std::fs::read_to_string(path)
            .map_err(|e| e.to_string())
            .and_then(|text| TokenFile::parse(&text).map_err(|e| e.to_string()))
            .map_err(|why| format!("{}: {why}", path.display()))?;
        Ok(Self { file })
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.file.is_empty()
    }

    /// Whether there is a token of a user.
    #[must_use]
    pub fn has_user(&self, user: &str) -> bool {
        self.file.tokens().any(|token| token.user == user)
    }

    pub(crate) fn have_same_names(&self, other: &Self) -> bool {
        let names = |tokens: &Self| -> Vec<String> {
            tokens
                .file
                .tokens()
                .map(|token| token.user.clone())
                .collect()
        };
        names(self) == names(other)
    }

    /// Whose a token is, unless it has expired; `now_ms` counts from the Unix epoch. It costs a digest,
    /// so that a shard can do it.
    #[must_use]
    pub fn user_of(&self, token: &[u8], now_ms: u64) -> Option<&str> {
        self.file.user_of(token, now_ms / 1000)
    }
}

/// A password to check, and what to do with the verdict.
struct Check {
    users: Arc<Users>,
    user: String,
    password: Vec<u8>,
    verdict: Box<dyn FnOnce(bool) + Send>,
}

/// Checks passwords on a thread of its own, which ends with the last copy of this handle.
#[derive(Clone, Debug)]
pub struct Checker {
    waiting: SyncSender<Check>,
}

impl Checker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start() -> std::io::Result<Self> {
        let (waiting, checks): (_, Receiver<Check>) = sync_channel(MAXIMUM_WAITING_CHECKS);
        std::thread::Builder::new()
            .name("passwords".to_owned())
            .spawn(move || {
                for check in checks {
                    (check.verdict)(check.users.verify(&check.user, &check.password));
                }
            })?;
        Ok(Self { waiting })
    }

    /// Checks a password; `verdict` is called on the checker's thread. Returns false, and calls
    /// nothing, when too many checks wait already.
    #[must_use]
    pub fn check(
        &self,
        users: Arc<Users>,
        user: String,
        password: Vec<u8>,
        verdict: impl FnOnce(bool) + Send + 'static,
    ) -> bool {
        let check = Check {
            users,
            user,
            password,
            verdict: Box::new(verdict),
        };
        match self.waiting.try_send(check) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}

/// Why an enhanced authentication ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The method is not served: reason code 0x8C.
    Method,
    /// The exchange failed, a wrong password included: reason code 0x87.
    Failed,
}

/// An enhanced authentication under way (MQTT 5.0, section 4.12) with method SCRAM-SHA-256.
#[derive(Debug)]
pub struct Exchange {
    user: String,
    step: Option<ServerStart>,
}

impl Exchange {
    /// Whether a method is served. It is only where there are users.
    #[must_use]
    pub fn serves(users: &Users, method: &str) -> bool {
        method == MECHANISM && !users.is_empty()
    }

    /// Starts with the client's first message; the second value is the challenge for the client.
    ///
    /// # Errors
    /// [`Refusal`] with the reason to answer.
    pub fn start(users: &Users, method: &str, first: &[u8]) -> Result<(Self, String), Refusal> {
        if !Self::serves(users, method) {
            return Err(Refusal::Method);
        }
        let first = ClientFirst::parse(first).map_err(|_| Refusal::Failed)?;
        if first.acts_as().is_some_and(|other| other != first.user()) {
            return Err(Refusal::Failed);
        }
        let mut random = [0; 18];
        getrandom::fill(&mut random).map_err(|_| Refusal::Failed)?;
        let user = first.user().to_owned();
        let record = users.file.get_or_decoy(&user, &users.decoy);
        let (step, challenge) = ServerStart::new(first, record, &Nonce::from_random(random));
        Ok((
            Self {
                user,
                step: Some(step),
            },
            challenge,
        ))
    }

    /// Checks the client's proof; the values are the user's name and the last message for the client.
    ///
    /// # Errors
    /// [`Refusal::Failed`], also when the proof was already checked.
    pub fn finish(&mut self, proof: &[u8]) -> Result<(String, String), Refusal> {
        let step = self.step.take().ok_or(Refusal::Failed)?;
        let last = step.verify(proof).map_err(|_| Refusal::Failed)?;
        Ok((self.user.clone(), last))
    }
}

/// The common name in the subject of a client certificate that the TLS library has verified.
#[must_use]
pub fn common_name(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let name = certificate
        .subject()
        .iter_common_name()
        .last()?
        .as_str()
        .ok()?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sterna_auth::ScramClient;

    fn users() -> (tempfile::TempDir, Arc<Users>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwords");
        let record =
            sterna_auth::Record::from_password("secret", &[7; 16], sterna_auth::DEFAULT_ITERATIONS)
                .unwrap();
        std::fs::write(&path, format!("ann:{record}\n")).unwrap();
        let users = Arc::new(Users::load(Some(&path)).unwrap());
        (directory, users)
    }

    #[test]
    fn passwords_are_checked_beside_the_shard() {
        let (_directory, users) = users();
        let checker = Checker::start().unwrap();
        for (user, password, good) in [
            ("ann", "secret", true),
            ("ann", "Secret", false),
            ("bob", "secret", false),
        ] {
            let (tell, verdict) = std::sync::mpsc::channel();
            let password = password.as_bytes().to_vec();
            assert!(
                checker.check(users.clone(), user.to_owned(), password, move |v| {
                    tell.send(v).unwrap();
                })
            );
            assert_eq!(verdict.recv().unwrap(), good, "{user}");
        }
    }

    #[test]
    fn tokens_are_read_from_their_file_or_it_is_said_why_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let digest = sterna_auth::TokenDigest::of(b"secret");
        std::fs::write(&path, format!("# ann's\nann:{digest}:2\n")).unwrap();
        let tokens = Tokens::load(Some(&path)).unwrap();
        assert_eq!(tokens.user_of(b"secret", 1_999), Some("ann"));
        assert_eq!(tokens.user_of(b"secret", 2_000), None);
        assert_eq!(tokens.user_of(b"Secret", 0), None);
        std::fs::write(&path, "ann:secret\n").unwrap();
        let why = Tokens::load(Some(&path)).unwrap_err();
        assert!(
            why.ends_with("tokens: line 1: the digest is not 64 hexadecimal digits"),
            "{why}"
        );
        assert!(Tokens::load(None).unwrap().is_empty());
    }

    #[test]
    fn scram_runs_to_its_end() {
        let (_directory, users) = users();
        let nonce = Nonce::from_random([3; 18]);
        let (client, first) = ScramClient::start("ann", "secret", &nonce).unwrap();
        let (mut exchange, challenge) =
            Exchange::start(&users, "SCRAM-SHA-256", first.as_bytes()).unwrap();
        let (client, proof) = client.challenge(challenge.as_bytes()).unwrap();
        let (user, last) = exchange.finish(proof.as_bytes()).unwrap();
        assert_eq!(user, "ann");
        client.verify(last.as_bytes()).unwrap();
        assert_eq!(exchange.finish(proof.as_bytes()), Err(Refusal::Failed));
    }

    #[test]
    fn an_unknown_user_is_challenged_like_any_other_and_fails_at_the_end() {
        let (_directory, users) = users();
        let nonce = Nonce::from_random([3; 18]);
        let (client, first) = ScramClient::start("eve", "secret", &nonce).unwrap();
        let (mut exchange, challenge) =
            Exchange::start(&users, "SCRAM-SHA-256", first.as_bytes()).unwrap();
        let (_, proof) = client.challenge(challenge.as_bytes()).unwrap();
        assert_eq!(exchange.finish(proof.as_bytes()), Err(Refusal::Failed));
        assert!(matches!(
            Exchange::start(&users, "PLAIN", b""),
            Err(Refusal::Method)
        ));
    }

    #[test]
    fn the_subjects_common_name_is_read() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["x".to_owned()]).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "device-7");
        let certificate = params.self_signed(&key).unwrap();
        assert_eq!(common_name(certificate.der()).as_deref(), Some("device-7"));
        assert_eq!(common_name(b"nonsense"), None);
    }
}
