//! Identities and their proofs: certificates, tokens, exchanges, and passwords, which are checked
//! beside the shards. `judge.rs` decides with them who a client is.

mod certificate;
mod checker;
mod client_ids;
mod endpoint;
mod grant;
mod guesses;
mod jwt;
mod scram;
mod secret_file;
mod trust;
mod users;
mod webhook;

use std::sync::Arc;

use sterna_auth::TokenRecord;

pub(crate) use certificate::{Holder, common_name};
pub use checker::Checker;
pub(crate) use checker::{Request, Ticket};
pub(crate) use client_ids::{is_client_id, may_have_client_id};
pub(crate) use grant::{Basis, Grant};
pub(crate) use guesses::{Standing, Subject, origin};
pub use jwt::Issuer;
pub(crate) use jwt::{OAUTHBEARER, is_token, token_of_message};
pub(crate) use scram::Exchange;
pub use secret_file::SecretFile;
pub use trust::Trust;
pub use users::{Tokens, Users};
pub use webhook::Webhook;
pub(crate) use webhook::{Access, Credentials, Known, Login, Ticket as WebhookTicket};
pub(crate) use webhook::{
    FIRST_BOUND_US as WEBHOOK_BOUND_US, Outcome as WebhookOutcome, Subject as WebhookSubject,
};

use crate::authorization;

/// The outcome of a claim that took longer: the identity, or `None` where the claimed one is right.
pub(crate) type Outcome = Result<Option<Identity>, Refusal>;

/// Identity of a client: a user or nobody, with the proof that was shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    user: Option<Arc<str>>,
    proof: Proof,
    /// The grant of a token or of the webhook, beside the name.
    grant: Option<Arc<Grant>>,
    /// Groups and rules of the client; where clients can have them, an empty standing if it has
    /// none.
    standing: Option<Arc<authorization::Standing>>,
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
    /// By credentials of which the webhook has said that they are right.
    Webhook,
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
            Self::Webhook => "webhook",
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
            standing: None,
        }
    }

    /// The user of a token of the file.
    pub(crate) fn of_token(record: &TokenRecord) -> Self {
        Self::granted(&record.user, Proof::Token, Arc::new(Grant::of_file(record)))
    }

    /// The user of this name, as far as a token gives.
    pub(crate) fn granted(user: &str, proof: Proof, grant: Arc<Grant>) -> Self {
        Self {
            standing: grant.standing().cloned(),
            grant: Some(grant),
            ..Self::of(user, proof)
        }
    }

    /// The same client, with groups and rules.
    #[cfg(test)]
    pub(crate) fn standing_as(self, standing: Arc<authorization::Standing>) -> Self {
        Self {
            standing: Some(standing),
            ..self
        }
    }

    /// A client without a name, by this proof.
    pub(crate) const fn nameless(proof: Proof) -> Self {
        Self {
            user: None,
            proof,
            grant: None,
            standing: None,
        }
    }

    /// The user's name; `None` for clients without a name, who are one user among themselves.
    pub(crate) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The owner of decisions that are remembered about it.
    pub(crate) fn owner(&self) -> authorization::Owner<'_> {
        authorization::Owner {
            user: self.user.as_ref(),
            standing: self.standing.as_ref(),
        }
    }

    /// How it was shown.
    pub(crate) const fn proof(&self) -> Proof {
        self.proof
    }

    /// The grant of a token or of the webhook, beside the name.
    pub(crate) fn grant(&self) -> Option<&Grant> {
        self.grant.as_deref()
    }

    /// When it ends, in milliseconds since the Unix epoch; `None` for never.
    pub(crate) fn until_ms(&self) -> Option<u64> {
        self.grant.as_deref()?.until_ms()
    }

    /// Groups and rules, where a token or the webhook has given any.
    pub(crate) const fn standing(&self) -> Option<&Arc<authorization::Standing>> {
        self.standing.as_ref()
    }

    /// The same identity, of which it is known that there is nothing more to know.
    pub(crate) fn with_standing(self) -> Self {
        Self {
            standing: Some(self.standing.unwrap_or_default()),
            ..self
        }
    }

    /// Notes the groups and rules of a client that has come in, as long as it is connected.
    pub(crate) fn note_standing(&mut self, standings: &authorization::Standings, client: &str) {
        if let (Some(user), Some(standing)) = (&self.user, &mut self.standing) {
            standings.note(user, client, standing);
        }
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
    /// The webhook gives no good answer, or is not asked after failures.
    Webhook,
}

impl Refusal {
    /// All refusals.
    pub(crate) const ALL: [Self; 13] = [
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
        Self::Webhook,
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
            Self::Webhook => "webhook",
        }
    }

    /// Says so in words.
    pub(crate) const fn detail(self) -> &'static str {
        match self {
            Self::NoCredentials => "no credentials",
            Self::Certificate => "the client certificate is revoked, or not valid at this time",
            Self::Nameless => "the client certificate has no common name that is a user name",
            Self::Disagreement => {
                "the certificate, the token and the user name do not name the same user"
            }
            Self::Password => "wrong user name or password",
            Self::Token => "the token is not accepted, or has expired",
            Self::Exchange => "authentication failed",
            Self::Method => "the authentication method is not served",
            Self::Slowed => "too many wrong credentials; try again later",
            Self::Busy => {
                "too many logins wait to be checked (passwords.maximum_waiting, webhook.maximum_waiting)"
            }
            Self::Unavailable => "no password checker",
            Self::Banned => "banned for now",
            Self::Webhook => "the webhook gives no answer that counts",
        }
    }
}

/// A claim that is being looked at. Dropping it gives that up, if it has not begun.
#[derive(Debug)]
pub(crate) struct Pending {
    number: u64,
    identity: Identity,
    by: By,
}

/// The authority that looks at a claim.
#[derive(Debug)]
enum By {
    /// The checker of passwords, by the records of these users.
    Checker(
        Arc<Users>,
        #[expect(dead_code, reason = "dropping it gives up")] Ticket,
    ),
    /// The webhook.
    Webhook(#[expect(dead_code, reason = "dropping it gives up")] WebhookTicket),
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
            by: By::Checker(users, ticket),
        }
    }

    /// A question to the webhook about a client that says it is `identity`. Its letter carries `number`.
    pub(crate) const fn asked(number: u64, identity: Identity, ticket: WebhookTicket) -> Self {
        Self {
            number,
            identity,
            by: By::Webhook(ticket),
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

    /// The identity, now that the letter has come, by the users and the webhook of today.
    ///
    /// # Errors
    /// Why it may not come in, also because the user was removed or changed meanwhile.
    pub(crate) fn decided(
        self,
        users: &Users,
        webhook: &Webhook,
        outcome: Outcome,
    ) -> Result<Identity, Refusal> {
        let found = outcome?;
        match self.by {
            By::Checker(before, _) => {
                let user = self.identity.user().unwrap_or_default();
                if users.agrees_with(&before, user) {
                    Ok(self.identity)
                } else {
                    Err(Refusal::Password)
                }
            }
            By::Webhook(_) => {
                let identity = found.unwrap_or(self.identity);
                let stands = |grant: &Grant| !grant.is_of_webhook() || webhook.stands_by(grant);
                if identity.grant().is_none_or(stands) {
                    Ok(identity)
                } else {
                    Err(Refusal::Webhook)
                }
            }
        }
    }
}
