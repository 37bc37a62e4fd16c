//! The identity of a client: one judge for every door.
//!
//! [`judge`] takes the known facts of a connection (its listener, its certificate, its address) and the client's claim.
//! It answers with an [`Identity`] or a [`Refusal`], at once or later. A password is checked beside the shard, and the
//! verdict comes by letter. The rule it keeps is in `docs/configuring.md`, "Who a client is":
//!
//! - Every proof that is shown must hold.
//! - Proofs that name a user must name the same one.
//! - Nothing is decided by an address that nobody has proved: [`waits_for_proof`].
//! - A user name and a password of no bytes are nothing: devices send the fields that nobody has filled in.
//! - A client that shows nothing is the user of its certificate, else nobody in particular where
//!   the listener admits that.

use std::sync::Arc;

use sterna_broker::SessionName;
use sterna_net::{ConnectionId, ConnectionInfo, TransportKind};

use crate::audit;
use crate::bans::{self, Ban, Newcomer};
use crate::config::Protocol;
use crate::context::Context;
use crate::identity::{
    Credentials, Exchange, Holder, Identity, Known, Login, OAUTHBEARER, Pending, Proof, Refusal,
    Request, Standing, Subject, is_token, token_of_message,
};
use crate::last_refusal::{note_ban, note_disagreement, quoted, subject_of, untimely};
use crate::mail::Mail;
use crate::policy::Policy;

/// A client's claim about itself, beside the certificate of its connection.
#[derive(Clone, Copy)]
pub(crate) enum Claim<'a> {
    /// Nothing.
    Nothing,
    /// That it has the certificate of its connection, and is its holder (SASL EXTERNAL); the name may
    /// be empty.
    Holder(&'a str),
    /// A user name, and a password in plain text or a signed token in its place; each may be empty.
    Password(&'a str, &'a [u8]),
    /// A bearer token.
    Token(&'a [u8]),
    /// The first message of an exchange by this method.
    Exchange(&'a str, &'a [u8]),
}

/// The verdict of the judge.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The client has this identity.
    Known(Identity),
    /// A password is being checked; a letter will say.
    Pending(Pending),
    /// The client is to prove that it knows the password, in answer to this challenge.
    Challenge(Box<Exchange>, String),
    /// It may not come in.
    Refused(Refusal),
}

/// Judges a client. The letter of a pending verdict carries `number`.
pub(crate) fn judge(
    cx: &Context<'_>,
    connection: ConnectionId,
    number: u64,
    claim: Claim<'_>,
) -> Verdict {
    let Some(info) = cx.net.info(connection) else {
        return Verdict::Refused(Refusal::NoCredentials);
    };
    cx.meters.last_refusal.forget();
    let case = match Case::new(cx, connection, info) {
        Ok(case) => case,
        Err(refusal) => return Verdict::Refused(refusal),
    };
    if case.is_address_banned() {
        return Verdict::Refused(Refusal::Banned);
    }
    match claim {
        Claim::Nothing => case.quiet(),
        Claim::Holder(name) => case.holder(name),
        Claim::Password(user, password) => case.password(connection, number, user, password),
        Claim::Token(token) => case.token(connection, number, token),
        Claim::Exchange(method, first) => case.exchange(connection, number, method, first),
    }
    .unwrap_or_else(Verdict::Refused)
}

/// Whether a claim waits until its client has shown that it is at its address ([`ConnectionInfo::is_peer_proved`]).
///
/// A first flight (0-RTT) can have any source address, and nothing has to come back. So it is heard only where no
/// address decides anything, and its credentials are known to be right without work and without doubt. All else
/// is looked at, and counted, after the handshake.
pub(crate) fn waits_for_proof(
    cx: &Context<'_>,
    connection: ConnectionId,
    claim: Claim<'_>,
) -> bool {
    let Some(info) = cx.net.info(connection).filter(|info| !info.is_peer_proved) else {
        return false;
    };
    let policy = cx.policy;
    policy.rules.look_at_addresses()
        || cx.bans.look_at_addresses()
        // The webhook is told the address.
        || policy.webhook.authenticates()
        || policy.rules.have_questions()
        || !Case::new(cx, connection, info).is_ok_and(|case| case.is_right_at_once(claim))
}

/// The session that a client means by an identifier if its claim holds; `None` where its user shows only when it is
/// judged.
pub(crate) fn session_of(
    cx: &Context<'_>,
    connection: ConnectionId,
    claim: Claim<'_>,
    client_id: &str,
) -> Option<SessionName> {
    let case = Case::new(cx, connection, cx.net.info(connection)?).ok()?;
    case.session_of(claim, client_id)
}

/// Whether a client needs nothing beside its certificate. Bans do not count: a banned client is to learn of
/// its ban, and not that it lacks credentials.
pub(crate) fn admits_quiet(cx: &Context<'_>, connection: ConnectionId) -> bool {
    let info = cx.net.info(connection);
    let case = info.and_then(|info| Case::new(cx, connection, info).ok());
    case.is_some_and(|case| matches!(case.quiet(), Ok(Verdict::Known(_))))
}

/// Whether a client whose identity is known may come in, as far as bans go. `name` is its own name, if it has one;
/// with it, its login counts as one of a client that may flap.
///
/// # Errors
/// It is banned, or is from now on.
pub(crate) fn check_ban(
    cx: &Context<'_>,
    connection: ConnectionId,
    identity: &Identity,
    name: Option<&str>,
) -> Result<(), Refusal> {
    if is_banned(cx, connection, identity, name) {
        return Err(Refusal::Banned);
    }
    // The login is counted when the handshake is complete: the door asks again then.
    if is_unproved(cx, connection) {
        return Ok(());
    }
    let now_ms = cx.now_ms;
    let who = newcomer(cx, connection, identity, name);
    let limits = &cx.policy.bans;
    if name.is_some() && cx.bans.flaps(limits, now_ms, who) {
        ban(cx, connection, &bans::of_flapping(limits, now_ms, who));
        return Err(Refusal::Banned);
    }
    Ok(())
}

/// Whether nobody has shown to be at the address of a client.
pub(crate) fn is_unproved(cx: &Context<'_>, connection: ConnectionId) -> bool {
    (cx.net.info(connection)).is_some_and(|info| !info.is_peer_proved)
}

/// The same without counting its login.
pub(crate) fn is_banned(
    cx: &Context<'_>,
    connection: ConnectionId,
    identity: &Identity,
    name: Option<&str>,
) -> bool {
    let who = newcomer(cx, connection, identity, name);
    finds_ban(cx, connection, who)
}

/// Whether a ban keeps a client out. The line about the refusal gets its number.
fn finds_ban(cx: &Context<'_>, connection: ConnectionId, who: Newcomer<'_>) -> bool {
    let Some(number) = cx.bans.find(cx.now_ms, who) else {
        return false;
    };
    if let Some(ban) = cx.bans.get(number) {
        note_ban(cx, connection, number, &ban);
    }
    true
}

fn newcomer<'a>(
    cx: &Context<'_>,
    connection: ConnectionId,
    identity: &'a Identity,
    name: Option<&'a str>,
) -> Newcomer<'a> {
    Newcomer {
        user: identity.user(),
        client: name,
        address: (cx.net.info(connection))
            .filter(|info| info.is_peer_proved)
            .map(|info| info.peer.ip()),
    }
}

/// Bans a client because of its behaviour.
fn ban(cx: &Context<'_>, connection: ConnectionId, ban: &Ban) {
    if let Ok(number) = cx.bans.add(&cx.policy.bans, ban.since_ms, ban.clone()) {
        audit::banned(number, ban);
        note_ban(cx, connection, number, ban);
    } else {
        tracing::warn!(
            %ban,
            "there are as many bans as bans.maximum_bans; this one is not made"
        );
    }
    announce_bans(cx);
}

/// Tells all shards that bans have changed.
pub(crate) fn announce_bans(cx: &Context<'_>) {
    for shard in 0..usize::from(cx.broker.directory().shards()) {
        if let Some(post) = cx.outbox.postbox(shard) {
            post(Mail::Bans);
        }
    }
}

/// Ends an exchange with the client's proof; the text is the last message for the client.
///
/// # Errors
/// Why it may not come in.
pub(crate) fn finish(
    cx: &Context<'_>,
    connection: ConnectionId,
    exchange: Exchange,
    proof: &[u8],
) -> Result<(Identity, String), Refusal> {
    let info = cx.net.info(connection).ok_or(Refusal::Exchange)?;
    let case = Case::new(cx, connection, info)?;
    let user = exchange.user().to_owned();
    case.may_guess(Subject::User(&user))?;
    let finished = exchange.finish(&cx.policy.users, proof);
    case.note(Subject::User(&user), finished.is_ok());
    Ok((Identity::of(&user, Proof::Scram), finished?))
}

/// A client before its judge.
struct Case<'a, 'c> {
    cx: &'a Context<'c>,
    connection: ConnectionId,
    info: &'a ConnectionInfo,
    now_ms: u64,
    holder: Option<Holder>,
    /// The user that the certificate names, where certificates name users.
    named: Option<String>,
}

impl<'a, 'c> Case<'a, 'c> {
    fn new(
        cx: &'a Context<'c>,
        connection: ConnectionId,
        info: &'a ConnectionInfo,
    ) -> Result<Self, Refusal> {
        let now_ms = cx.now_ms;
        let chain = &info.peer_certificates;
        let refused = |refusal: Refusal, words: String| {
            cx.meters.last_refusal.note(connection, refusal, words);
            refusal
        };
        let holder = Holder::of(chain, now_ms)
            .map_err(|refusal| refused(refusal, untimely(chain, now_ms)))?;
        (cx.policy.trust.admits(chain)).map_err(|why| refused(Refusal::Certificate, why))?;
        let named = match &holder {
            Some(holder) if cx.policy.certificate_as_username => (holder.user_name())
                .map_err(|refusal| refused(refusal, format!("it has {}", subject_of(chain))))?,
            _ => None,
        };
        Ok(Self {
            cx,
            connection,
            info,
            now_ms,
            holder,
            named,
        })
    }

    /// Whether nobody may come in from its address, or it has guessed too often. Operators may, to lift a ban.
    fn is_address_banned(&self) -> bool {
        let listener = self.cx.policy.listener(self.info.listener);
        if listener.protocol == Protocol::Admin || !self.info.is_peer_proved {
            return false;
        }
        let address = self.info.peer.ip();
        let who = Newcomer {
            user: None,
            client: None,
            address: Some(address),
        };
        if finds_ban(self.cx, self.connection, who) {
            return true;
        }
        let limits = &self.cx.policy.bans;
        let Some(checker) = self.cx.checker.filter(|_| limits.guessing_failures > 0) else {
            return false;
        };
        let guessing = &self.cx.policy.guessing;
        let failures = checker.guesses().failures(guessing, address, self.now_ms);
        let guesses = failures >= u64::from(limits.guessing_failures);
        if guesses {
            checker.guesses().forgive(address);
            let made = bans::of_guessing(limits, self.now_ms, address);
            ban(self.cx, self.connection, &made);
        }
        guesses
    }

    /// Whether a claim is known to be right: nothing is counted but a wrong password, and that against its user alone.
    /// A user who is guessed at is not looked at. A password is only compared with those that were found right.
    fn is_right_at_once(&self, claim: Claim<'_>) -> bool {
        let policy = self.cx.policy;
        let is_signed = |token: &[u8]| policy.issuer.is_configured() && is_token(token);
        let is_issued = |token: &[u8]| policy.issuer.identify(token, self.now_ms).is_ok();
        match claim {
            Claim::Nothing | Claim::Password("", b"") => self.quiet().is_ok(),
            Claim::Holder(name) => self.holder(name).is_ok(),
            Claim::Password(name, b"") if is_token_as_name(policy, name) => {
                is_issued(name.as_bytes())
            }
            Claim::Password(_, token) | Claim::Token(token) if is_signed(token) => is_issued(token),
            Claim::Password(_, password)
                if !policy.users.are_configured()
                    || (password.is_empty() && self.named.is_some()) =>
            {
                self.quiet().is_ok()
            }
            Claim::Password(user, password) => self.is_remembered(user, password),
            Claim::Token(token) => policy.tokens.find(token, self.now_ms).is_some(),
            // The challenge is worth nothing to a client that does not read it.
            Claim::Exchange(..) => false,
        }
    }

    /// See [`session_of`].
    fn session_of(&self, claim: Claim<'_>, client_id: &str) -> Option<SessionName> {
        let named = |user: Option<&str>| Some(SessionName::new(user, client_id));
        let policy = self.cx.policy;
        let known = match claim {
            Claim::Password(name, b"") if is_token_as_name(policy, name) => {
                return named(policy.issuer.claimed_user(name.as_bytes()).as_deref());
            }
            Claim::Password(_, token) | Claim::Token(token)
                if policy.issuer.is_configured() && is_token(token) =>
            {
                return named(policy.issuer.claimed_user(token).as_deref());
            }
            Claim::Password(user, password)
                if policy.users.are_configured() && !password.is_empty() =>
            {
                return named(Some(user));
            }
            Claim::Nothing | Claim::Password(..) => self.quiet(),
            Claim::Holder(name) => self.holder(name),
            Claim::Token(_) | Claim::Exchange(..) => return None,
        };
        match known {
            Ok(Verdict::Known(identity)) => named(identity.user()),
            _ => None,
        }
    }

    fn is_remembered(&self, user: &str, password: &[u8]) -> bool {
        let Some(checker) = self.cx.checker else {
            return false;
        };
        let (limits, subject) = (&self.cx.policy.guessing, Subject::User(user));
        if (checker.guesses()).is_guessed_at(limits, subject, self.now_ms) {
            return false;
        }
        let is_right = checker.compare(&self.cx.policy.users, user, password);
        if is_right == Some(false) {
            (checker.guesses()).note_unproved(limits, subject, self.now_ms);
        }
        is_right == Some(true)
    }

    /// The verdict on a client that shows nothing beside its certificate.
    fn quiet(&self) -> Result<Verdict, Refusal> {
        let identity = match (&self.named, &self.holder) {
            (Some(name), _) => Identity::of(name, Proof::Certificate),
            (None, Some(_)) if self.cx.policy.certificate_as_username => {
                let words = format!("it has {}", subject_of(&self.info.peer_certificates));
                return Err(self.refused(Refusal::Nameless, words));
            }
            (None, Some(_)) => Identity::nameless(Proof::Certificate),
            (None, None) if self.cx.policy.listener(self.info.listener).anonymous => {
                Identity::NOBODY
            }
            (None, None) => return Err(Refusal::NoCredentials),
        };
        Ok(Verdict::Known(identity))
    }

    fn holder(&self, name: &str) -> Result<Verdict, Refusal> {
        let Some(holder) = &self.holder else {
            return Err(Refusal::NoCredentials);
        };
        if !name.is_empty() && holder.common_name() != Some(name) {
            let own = holder.common_name().unwrap_or_default();
            let names = [("the certificate names", own), ("EXTERNAL is to be", name)];
            return Err(self.disagree(names));
        }
        self.quiet()
    }

    fn password(
        &self,
        connection: ConnectionId,
        number: u64,
        user: &str,
        password: &[u8],
    ) -> Result<Verdict, Refusal> {
        if user.is_empty() && password.is_empty() {
            return self.quiet();
        }
        if password.is_empty() && is_token_as_name(self.cx.policy, user) {
            return self.signed(user.as_bytes(), "");
        }
        if self.cx.policy.issuer.is_configured() && is_token(password) {
            if !user.is_empty() {
                self.agree(user)?;
            }
            return self.signed(password, user);
        }
        let users = &self.cx.policy.users;
        // A name alone proves nothing, and denies nothing where the certificate proves the same one.
        // Where there are no users, a password proves nothing either: clients that were told one give
        // it even where nobody asks.
        let webhook = &self.cx.policy.webhook;
        if !users.are_configured() && !webhook.authenticates() {
            if !user.is_empty() {
                self.agree(user)?;
            }
            return self.quiet();
        }
        // A token by itself, in the field that the device has for it (MQTT 5.0, 3.1.2.8 and 3.1.2.9). The webhook says
        // whose it is, also where a certificate has a name.
        if webhook.authenticates() && user.is_empty() {
            return self.asked(connection, number, Credentials::Token(password));
        }
        let is_alone = password.is_empty();
        if is_alone && self.named.as_deref() == Some(user) {
            return self.quiet();
        }
        let is_asked = webhook.authenticates() && !users.has(user);
        let credentials = Credentials::Password(user, password);
        // A token may be longer than a name, and have other characters.
        if is_asked && is_alone {
            return self.asked(connection, number, credentials);
        }
        // A signed token that is shown beside a password is nobody's name, and not to be logged as one.
        if !sterna_auth::is_user_name(user) || is_token(user.as_bytes()) {
            return Err(Refusal::Password);
        }
        self.agree(user)?;
        if is_asked {
            return self.asked(connection, number, credentials);
        }
        if is_alone {
            return Err(Refusal::Password);
        }
        let Some(checker) = self.cx.checker else {
            return Err(Refusal::Unavailable);
        };
        let standing = self.may_guess(Subject::User(user))?;
        let identity = Identity::of(user, Proof::Password);
        if checker.remembers(users, user, password) {
            self.note(Subject::User(user), true);
            return Ok(Verdict::Known(identity));
        }
        let post = self.cx.outbox.postbox(self.cx.shard);
        let post = post.ok_or(Refusal::Unavailable)?;
        let ticket = checker.check(Request {
            users,
            guessing: &self.cx.policy.guessing,
            passwords: &self.cx.policy.passwords,
            user,
            password,
            address: self.info.peer.ip(),
            standing,
            now_ms: self.now_ms,
            tell: Box::new(move |outcome| {
                post(Mail::Judged {
                    connection,
                    number,
                    outcome: outcome.map(|()| None),
                });
            }),
        })?;
        let users = Arc::clone(users);
        let pending = Pending::new(number, identity, users, ticket);
        Ok(Verdict::Pending(pending))
    }

    /// A token that its issuer has signed; the client says that it is `user`, if that is not empty.
    fn signed(&self, token: &[u8], user: &str) -> Result<Verdict, Refusal> {
        let issuer = &self.cx.policy.issuer;
        let claimed = issuer.claimed_user(token);
        let subject = claimed
            .as_deref()
            .map_or(Subject::Token(token), Subject::User);
        self.may_guess(subject)?;
        let identity = issuer.identify(token, self.now_ms).map_err(|fault| {
            if fault.is_guess() {
                self.note(subject, false);
            }
            // The client is not told why: the issuer's own would know.
            let words = match &claimed {
                Some(name) => format!("{}; it names the user {}", fault.detail(), quoted(name)),
                None => fault.detail().to_owned(),
            };
            self.refused(Refusal::Token, words)
        })?;
        self.note(subject, true);
        let named = identity.user().unwrap_or_default();
        if !user.is_empty() && user != named {
            let proofs = [("the token names", named), ("the user name is", user)];
            return Err(self.disagree(proofs));
        }
        self.agree(named)?;
        Ok(Verdict::Known(identity))
    }

    fn token(
        &self,
        connection: ConnectionId,
        number: u64,
        token: &[u8],
    ) -> Result<Verdict, Refusal> {
        if self.cx.policy.issuer.is_configured() && is_token(token) {
            return self.signed(token, "");
        }
        let subject = Subject::Token(token);
        self.may_guess(subject)?;
        let found = self.cx.policy.tokens.find(token, self.now_ms);
        if found.is_none() && self.cx.policy.webhook.authenticates() {
            return self.asked(connection, number, Credentials::Token(token));
        }
        self.note(subject, found.is_some());
        let record = found.ok_or_else(|| {
            let words = if self.cx.policy.tokens.has(token) {
                "the token of authentication.token_file has expired"
            } else {
                "authentication.token_file does not have the token"
            };
            self.refused(Refusal::Token, words.to_owned())
        })?;
        self.agree(&record.user)?;
        Ok(Verdict::Known(Identity::of_token(record)))
    }

    fn exchange(
        &self,
        connection: ConnectionId,
        number: u64,
        method: &str,
        first: &[u8],
    ) -> Result<Verdict, Refusal> {
        let issuer = &self.cx.policy.issuer;
        let is_asked = self.cx.policy.webhook.authenticates();
        if method == OAUTHBEARER && (is_asked || issuer.is_configured()) {
            let (token, acts_as) = token_of_message(first).ok_or(Refusal::Exchange)?;
            let token = token.as_bytes();
            if issuer.is_configured() && is_token(token) {
                return self.signed(token, acts_as);
            }
            if !is_asked {
                let words = "OAUTHBEARER takes signed tokens alone, and this is none";
                return Err(self.refused(Refusal::Token, words.to_owned()));
            }
            // The token's user is not known when the webhook lets the client in.
            if !acts_as.is_empty() {
                let words = format!(
                    "the client is to be {}, and the webhook says whose a token is",
                    quoted(acts_as)
                );
                return Err(self.refused(Refusal::Disagreement, words));
            }
            return self.asked(connection, number, Credentials::Token(token));
        }
        let (exchange, challenge) = Exchange::start(&self.cx.policy.users, method, first)?;
        self.agree(exchange.user())?;
        self.may_guess(Subject::User(exchange.user()))?;
        Ok(Verdict::Challenge(Box::new(exchange), challenge))
    }

    /// Credentials that the webhook knows, or not.
    fn asked(
        &self,
        connection: ConnectionId,
        number: u64,
        credentials: Credentials<'_>,
    ) -> Result<Verdict, Refusal> {
        let tried = Guessed::of(credentials);
        let subject = tried.subject();
        let wrong = match credentials {
            Credentials::Password(..) => Refusal::Password,
            Credentials::Token(_) => Refusal::Token,
        };
        self.may_guess(subject)?;
        // The file decides about its own: one that has expired, or is shown where tokens of files are not taken.
        let token = match credentials {
            Credentials::Token(token) => Some(token),
            Credentials::Password(user, b"") => Some(user.as_bytes()),
            Credentials::Password(..) => None,
        };
        if token.is_some_and(|token| self.cx.policy.tokens.has(token)) {
            self.note(subject, false);
            return Err(wrong);
        }
        let webhook = &self.cx.policy.webhook;
        let login = Login {
            credentials,
            protocol: self.cx.policy.spoken(self.info).name(),
            transport: transport(self.info.transport),
            address: self.info.peer.ip(),
            certificate: self.holder.as_ref().and_then(Holder::common_name),
            now_ms: self.now_ms,
        };
        match webhook.recall(&login) {
            Some(Known::Refused) => {
                self.note(subject, false);
                return Err(wrong);
            }
            Some(Known::Admitted(identity)) => {
                self.note(subject, true);
                self.agree(identity.user().unwrap_or_default())?;
                return Ok(Verdict::Known(identity));
            }
            None => {}
        }
        let post = self.cx.outbox.postbox(self.cx.shard);
        let post = post.ok_or(Refusal::Unavailable)?;
        let checker = self.cx.checker.cloned();
        let (limits, address) = (self.cx.policy.guessing.clone(), self.info.peer.ip());
        let (now_ms, named) = (self.now_ms, self.named.clone());
        let ticket = webhook.authenticate(&login, move |answer| {
            if let (Some(checker), Ok(known)) = (checker, &answer) {
                let is_right = known.is_some();
                let mut guesses = checker.guesses();
                guesses.note(&limits, address, tried.subject(), is_right, now_ms);
            }
            let outcome = answer.and_then(|known| {
                let identity = known.ok_or(wrong)?;
                match &named {
                    Some(name) if identity.user() != Some(name) => Err(Refusal::Disagreement),
                    _ => Ok(Some(identity)),
                }
            });
            post(Mail::Judged {
                connection,
                number,
                outcome,
            });
        })?;
        let claimed = match credentials {
            Credentials::Password(user, password) if !password.is_empty() => {
                Identity::of(user, Proof::Webhook)
            }
            // The answer says whose it is.
            Credentials::Password(..) | Credentials::Token(_) => Identity::nameless(Proof::Webhook),
        };
        Ok(Verdict::Pending(Pending::asked(number, claimed, ticket)))
    }

    /// Whether credentials name the user that the certificate names, if it names one.
    fn agree(&self, user: &str) -> Result<(), Refusal> {
        match &self.named {
            Some(name) if name != user => {
                let names = [
                    ("the certificate names", &**name),
                    ("the client is to be", user),
                ];
                Err(self.disagree(names))
            }
            _ => Ok(()),
        }
    }

    /// A refusal with its cause, for the log.
    fn refused(&self, refusal: Refusal, words: String) -> Refusal {
        (self.cx.meters.last_refusal).note(self.connection, refusal, words);
        refusal
    }

    /// Two proofs name different users.
    fn disagree(&self, names: [(&str, &str); 2]) -> Refusal {
        note_disagreement(self.cx, self.connection, names);
        Refusal::Disagreement
    }

    /// Whether an attempt is looked at, after those before it.
    fn may_guess(&self, subject: Subject<'_>) -> Result<Standing, Refusal> {
        let Some(checker) = self.cx.checker.filter(|_| self.info.is_peer_proved) else {
            return Ok(Standing::Unknown);
        };
        let (limits, address) = (&self.cx.policy.guessing, self.info.peer.ip());
        let standing = (checker.guesses()).standing(limits, address, subject, self.now_ms);
        if standing == Standing::Slowed {
            return Err(Refusal::Slowed);
        }
        Ok(standing)
    }

    /// Counts an attempt.
    fn note(&self, subject: Subject<'_>, is_right: bool) {
        if let Some(checker) = self.cx.checker.filter(|_| self.info.is_peer_proved) {
            let (limits, address) = (&self.cx.policy.guessing, self.info.peer.ip());
            checker
                .guesses()
                .note(limits, address, subject, is_right, self.now_ms);
        }
    }
}

/// Whether a user name without a password is a signed token.
fn is_token_as_name(policy: &Policy, name: &str) -> bool {
    policy.issuer.takes_token_as_name() && is_token(name.as_bytes())
}

/// The user name of a claim as the log may have it: none where it can be a token, which is a secret.
pub(crate) fn loggable<'a>(policy: &Policy, claim: Claim<'a>) -> Option<&'a str> {
    match claim {
        Claim::Password(name, _) if is_token(name.as_bytes()) => None,
        Claim::Password(_, b"") if policy.webhook.authenticates() => None,
        Claim::Password(name, _) => Some(name).filter(|name| !name.is_empty()),
        Claim::Nothing | Claim::Holder(_) | Claim::Token(_) | Claim::Exchange(..) => None,
    }
}

/// The owner of credentials that another thread looks at.
enum Guessed {
    User(String),
    Token(Vec<u8>),
}

impl Guessed {
    fn of(credentials: Credentials<'_>) -> Self {
        match credentials {
            // The name may be a token, which the log is not to have.
            Credentials::Password(user, b"") => Self::Token(user.as_bytes().to_vec()),
            Credentials::Password(user, _) => Self::User(user.to_owned()),
            Credentials::Token(token) => Self::Token(token.to_vec()),
        }
    }

    fn subject(&self) -> Subject<'_> {
        match self {
            Self::User(user) => Subject::User(user),
            Self::Token(token) => Subject::Token(token),
        }
    }
}

/// A transport as the webhook is told of it.
const fn transport(kind: TransportKind) -> &'static str {
    match kind {
        TransportKind::Tcp => "tcp",
        TransportKind::Tls => "tls",
        TransportKind::WebSocket => "websocket",
        TransportKind::SecureWebSocket => "secure-websocket",
        TransportKind::Quic => "quic",
        TransportKind::Simulated => "simulated",
    }
}
