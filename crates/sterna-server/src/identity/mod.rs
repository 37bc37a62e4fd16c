//! Identities and their proofs: certificates, tokens, exchanges, and passwords, which are checked
//! beside the shards. `judge.rs` decides with them who a client is.

mod certificate;
mod checker;
mod client_ids;
mod guesses;
mod jwt;
mod scram;
mod users;

use std::sync::Arc;

pub(crate) use certificate::{Holder, common_name};
pub use checker::Checker;
pub(crate) use checker::{Outcome, Request, Ticket};
pub(crate) use client_ids::{is_client_id, may_have_client_id};
pub(crate) use guesses::{Standing, Subject, Table, origin};
pub use jwt::Issuer;
pub(crate) use jwt::{Grant, OAUTHBEARER, is_token, token_of_message};
pub(crate) use scram::Exchange;
pub use users::{Tokens, Users};

/// Who a client is: a user, or nobody in particular, and how that was shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Identity {
    user: Option<Arc<str>>,
    proof: Proof,
    /// What a signed token gives beside the name.
    grant: Option<Arc<Grant>>,
}

/// How a client has shown who it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Proof {
    /// Not at all: the listener admits everybody.
    #[default]
    Nothing,
    /// By the certificate or the bare key of its connection.
    Certificate,
    /// By a password in plain text.
    Password,
    /// By proof of a password (SCRAM).
    Scram,
    /// By a bearer token.
    Token,
    /// By a token that its issuer has signed.
    Jwt,
}

impl Proof {
    /// Its name for operators.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Certificate => "certificate",
            Self::Password => "password",
            Self::Scram => "scram",
            Self::Token => "token",
            Self::Jwt => "jwt",
        }
    }
}

impl Identity {
    /// A client without a name.
    pub(crate) const NOBODY: Self = Self::nameless(Proof::Nothing);

    /// The user of this name.
    pub(crate) fn of(user: &str, proof: Proof) -> Self {
        Self {
            user: Some(user.into()),
            proof,
            grant: None,
        }
    }

    /// The user of this name, as far as a token gives.
    pub(crate) fn granted(user: &str, proof: Proof, grant: Arc<Grant>) -> Self {
        Self {
            grant: Some(grant),
            ..Self::of(user, proof)
        }
    }

    /// A client without a name, by this proof.
    pub(crate) const fn nameless(proof: Proof) -> Self {
        Self {
            user: None,
            proof,
            grant: None,
        }
    }

    /// The user's name; `None` for clients without a name, who are one user among themselves.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// How it was shown.
    pub(crate) const fn proof(&self) -> Proof {
        self.proof
    }

    /// What a signed token gives beside the name.
    pub(crate) fn grant(&self) -> Option<&Grant> {
        self.grant.as_deref()
    }

    /// When it ends, in milliseconds since the Unix epoch; `None` for never.
    pub(crate) fn until_ms(&self) -> Option<u64> {
        self.grant().map(Grant::until_ms)
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self, now_ms: u64) -> bool {
        self.until_ms().is_some_and(|until_ms| until_ms <= now_ms)
    }
}

/// Why a client may not come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It shows nothing, and the listener does not admit that.
    NoCredentials,
    /// Its certificate can't be read, or is not valid at this time.
    Certificate,
    /// Its certificate or key names nobody, and clients with one need a name.
    Nameless,
    /// Its proofs name different users.
    Disagreement,
    /// The user name or the password is wrong.
    Password,
    /// The token is not known, is not accepted, or has expired.
    Token,
    /// The exchange failed, a wrong password included.
    Exchange,
    /// The method of the exchange is not served.
    Method,
    /// There were too many wrong attempts.
    Slowed,
    /// Too many passwords wait to be checked, or this one has waited too long.
    Busy,
    /// There is nothing that could check a password.
    Unavailable,
    /// It is banned.
    Banned,
}

impl Refusal {
    /// All refusals.
    pub(crate) const ALL: [Self; 12] = [
        Self::NoCredentials,
        Self::Certificate,
        Self::Nameless,
        Self::Disagreement,
        Self::Password,
        Self::Token,
        Self::Exchange,
        Self::Method,
        Self::Slowed,
        Self::Busy,
        Self::Unavailable,
        Self::Banned,
    ];

    /// The refusal as metrics and the log name it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NoCredentials => "no_credentials",
            Self::Certificate => "certificate",
            Self::Nameless => "nameless",
            Self::Disagreement => "disagreement",
            Self::Password => "password",
            Self::Token => "token",
            Self::Exchange => "exchange",
            Self::Method => "method",
            Self::Slowed => "slowed",
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
            Self::Banned => "banned",
        }
    }

    /// Says so in words.
    pub(crate) const fn detail(self) -> &'static str {
        match self {
            Self::NoCredentials => "no credentials",
            Self::Certificate => "the client certificate is not valid at this time",
            Self::Nameless => "the client certificate has no common name that is a user name",
            Self::Disagreement => "the certificate and the credentials name different users",
            Self::Password => "wrong user name or password",
            Self::Token => "the token is not accepted, or has expired",
            Self::Exchange => "authentication failed",
            Self::Method => "the authentication method is not served",
            Self::Slowed => "too many wrong credentials; try again later",
            Self::Busy => "too many passwords to check",
            Self::Unavailable => "no password checker",
            Self::Banned => "banned for now",
        }
    }
}

/// A password that is being checked. Dropping it gives the check up, if that has not begun.
#[derive(Debug)]
pub(crate) struct Pending {
    number: u64,
    identity: Identity,
    users: Arc<Users>,
    _ticket: Ticket,
}

impl Pending {
    /// The check of a user's password, which is that of `users`. Its letter carries `number`.
    pub(crate) const fn new(
        number: u64,
        identity: Identity,
        users: Arc<Users>,
        ticket: Ticket,
    ) -> Self {
        Self {
            number,
            identity,
            users,
            _ticket: ticket,
        }
    }

    /// The number of its letter.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The identity that the client claims.
    pub(crate) fn claimed(&self) -> Identity {
        self.identity.clone()
    }

    /// Who it is, now that the letter has come, by the users of today.
    ///
    /// # Errors
    /// Why it may not come in, also because the user was removed or changed meanwhile.
    pub(crate) fn decided(self, users: &Users, outcome: Outcome) -> Result<Identity, Refusal> {
        outcome?;
        let user = self.identity.user().unwrap_or_default();
        if users.agrees_with(&self.users, user) {
            Ok(self.identity)
        } else {
            Err(Refusal::Password)
        }
    }
}
