//! A service that is asked over HTTP for the identities and rights of clients (`docs/webhook.md`).
//!
//! It is asked on threads of its own; answers are remembered for a while. A question without an answer in time and in
//! the right form is a refusal.

mod breaker;
mod meters;
mod queue;
mod wire;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring::{digest, hmac};

use super::endpoint::{Endpoint, Plain, Terms};
use super::grant::{Basis, Grant};
use super::{Identity, Refusal};
use crate::authorization::{Answer, Answers, Recent};
use crate::config;
use crate::giving_way::Owner;
use crate::repeats::{RepeatLimits, Repeats, left_out};
use breaker::Breaker;
pub(crate) use meters::{FIRST_BOUND_US, Meters, Outcome, Subject};
use queue::Queue;
pub(crate) use queue::Ticket;
pub(crate) use wire::{Access, Credentials, Login};

/// A key by which credentials are remembered: they themselves are not kept.
type Digest = [u8; digest::SHA256_OUTPUT_LEN];

/// Recent verdicts on credentials; `None` where they were refused.
type Verdicts = Recent<Digest, Option<Identity>, u64>;

/// A recent verdict on credentials.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    Admitted(Identity),
    Refused,
}

/// The service, and its recent answers.
#[derive(Debug)]
pub struct Webhook {
    config: config::Webhook,
    authentication: Option<Arc<Service>>,
    authorization: Option<Arc<Service>>,
    answers: Arc<Answers>,
    verdicts: Arc<Mutex<Verdicts>>,
    key: hmac::Key,
    queue: Arc<Queue>,
    meters: Arc<Meters>,
    /// Connections that webhooks before it have made.
    connects_before: [u64; Subject::ALL.len()],
}

/// One of its URLs.
#[derive(Debug)]
struct Service {
    url: Arc<str>,
    endpoint: Endpoint,
    /// Fields of each request, with their ends of line.
    fields: String,
    breaker: Mutex<Breaker>,
    /// Lines of the log about answers that are not good.
    lines: Repeats,
    /// Why the last of them was not.
    failure: Mutex<Option<String>>,
    since: Instant,
}

/// How often the log gets a line about answers that are not good. The threads that ask have no shard.
const LINES: RepeatLimits = RepeatLimits {
    interval_ms: 10_000,
    lines: 16,
};

impl Drop for Webhook {
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Webhook {
    /// Reads the files that the settings name. No question is sent yet.
    ///
    /// # Errors
    /// A sentence that names the setting, or the file, and its fault.
    pub fn load(config: &config::Webhook) -> Result<Self, String> {
        let fields = match &config.headers_file {
            None => String::new(),
            Some(path) => {
                let fault = |why: String| format!("{}: {why}", path.display());
                let text = std::fs::read_to_string(path);
                fields_of(&text.map_err(|error| fault(error.to_string()))?).map_err(fault)?
            }
        };
        let service = |setting, url: &Option<String>| {
            let service = |url: &String| Service::new(config, (setting, url), &fields);
            url.as_ref().map(service).transpose()
        };
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| format!("no randomness: {error}"))?;
        let entries = config.maximum_entries as usize;
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let (allow, deny) = (seconds(config.allow_s), seconds(config.deny_s));
        Ok(Self {
            authentication: service("webhook.authentication_url", &config.authentication_url)?,
            authorization: service("webhook.authorization_url", &config.authorization_url)?,
            answers: Arc::new(Answers::new(entries, allow, deny)),
            verdicts: Arc::new(Mutex::new(Recent::new(entries))),
            key: hmac::Key::new(hmac::HMAC_SHA256, &secret),
            queue: Queue::new(config.maximum_concurrent, config.maximum_waiting),
            meters: Arc::default(),
            connects_before: [0; Subject::ALL.len()],
            config: config.clone(),
        })
    }

    /// Whether it is asked about credentials.
    #[must_use]
    pub const fn authenticates(&self) -> bool {
        self.authentication.is_some()
    }

    /// Whether it is asked about actions.
    #[must_use]
    pub const fn authorizes(&self) -> bool {
        self.authorization.is_some()
    }

    /// Its settings.
    pub(crate) const fn config(&self) -> &config::Webhook {
        &self.config
    }

    /// Its recent answers about actions.
    pub(crate) const fn answers(&self) -> &Arc<Answers> {
        &self.answers
    }

    /// Follows another, and counts on.
    pub(crate) fn succeed(&mut self, old: &Self) {
        self.answers.count_on(&old.answers);
        self.meters = Arc::clone(&old.meters);
        self.connects_before = Subject::ALL.map(|subject| old.connects(subject));
    }

    /// Lookups of remembered answers that found one, and that found none.
    pub(crate) fn lookups(&self, subject: Subject) -> (u64, u64) {
        match subject {
            Subject::Authentication => self.meters.lookups(),
            Subject::Authorization => self.answers.lookups(),
        }
    }

    /// The counts.
    pub(crate) fn meters(&self) -> &Meters {
        &self.meters
    }

    /// Whether the service is left alone after failures.
    pub(crate) fn is_paused(&self, subject: Subject) -> bool {
        let service = self.service(subject);
        service.is_some_and(|service| lock(&service.breaker).is_paused(Instant::now()))
    }

    /// Why the last answer that was not good was not. An outage strikes everybody, so it is the cause for others, too.
    pub(crate) fn last_failure(&self, subject: Subject) -> Option<String> {
        lock(&self.service(subject)?.failure).clone()
    }

    /// Connections to the service that were made.
    pub(crate) fn connects(&self, subject: Subject) -> u64 {
        let own = (self.service(subject)).map_or(0, |service| service.endpoint.connects());
        self.connects_before[subject as usize] + own
    }

    const fn service(&self, subject: Subject) -> Option<&Arc<Service>> {
        match subject {
            Subject::Authentication => self.authentication.as_ref(),
            Subject::Authorization => self.authorization.as_ref(),
        }
    }

    /// Questions that wait or are under way.
    #[must_use]
    pub fn open_questions(&self) -> usize {
        self.queue.len()
    }

    /// Answers that are remembered: about credentials, and about actions.
    #[must_use]
    pub fn remembered(&self) -> (usize, usize) {
        (lock(&self.verdicts).len(), self.answers.len())
    }

    /// Whether a client that it has let in would still be asked about in the same place.
    pub(crate) fn stands_by(&self, grant: &Grant) -> bool {
        match grant.basis() {
            Basis::Webhook(url) => {
                (self.authentication.as_ref()).is_some_and(|own| own.url == *url)
            }
            Basis::File(_) | Basis::Jwt(..) => false,
        }
    }

    /// Whether it is asked in the same places about the same things.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.config == other.config
    }

    /// The recent verdict on credentials; `None` if there is none.
    pub(crate) fn recall(&self, login: &Login<'_>) -> Option<Known> {
        let digest = self.digest(login);
        let said = lock(&self.verdicts).get(&digest, login.now_ms).cloned();
        let known = match said {
            None => None,
            Some(None) => Some(Known::Refused),
            Some(Some(identity)) if identity.has_ended(login.now_ms) => None,
            Some(Some(identity)) => Some(Known::Admitted(identity)),
        };
        self.meters.looked_up(known.is_some());
        known
    }

    /// Asks about credentials. `tell` gets who it is, or `None` where it is refused, on another thread.
    ///
    /// # Errors
    /// [`Refusal::Webhook`] where it cannot be asked now, [`Refusal::Busy`] where too many wait; `tell` is
    /// not called then.
    pub(crate) fn authenticate(
        &self,
        login: &Login<'_>,
        tell: impl FnOnce(Result<Option<Identity>, Refusal>) + Send + 'static,
    ) -> Result<Ticket, Refusal> {
        let Some(question) = login.question() else {
            return Err(Refusal::Token);
        };
        let user = match login.credentials {
            Credentials::Password(user, _) => Some(user.to_owned()),
            Credentials::Token(_) => None,
        };
        let is_bound = !matches!(login.credentials, Credentials::Password(_, b""));
        let (now_ms, digest) = (login.now_ms, self.digest(login));
        // Nobody is proved to be the user that it names.
        let owner = Owner::of(None, Some(login.address));
        let times = (self.config.allow_s, self.config.deny_s);
        let verdicts = Arc::clone(&self.verdicts);
        let heard = move |answer: Result<Option<Identity>, Refusal>| {
            if let Ok(known) = &answer {
                let seconds = if known.is_some() { times.0 } else { times.1 };
                let until_ms = now_ms + u64::from(seconds) * 1000;
                lock(&verdicts).add(owner, digest, known.clone(), until_ms);
            }
            tell(answer);
        };
        let is_allowed = Option::is_some;
        self.ask(
            (Subject::Authentication, is_allowed),
            login.address,
            question,
            heard,
            move |answer, url| wire::read_login(answer, user.as_deref(), is_bound, now_ms, url),
        )
    }

    /// Asks about an action. `tell` is called on another thread when the answer is among
    /// [`answers`](Self::answers); a failure is one, too, that denies.
    ///
    /// # Errors
    /// As [`Webhook::authenticate`].
    pub(crate) fn authorize(
        &self,
        access: &Access,
        origin: IpAddr,
        tell: impl FnOnce() + Send + 'static,
    ) -> Result<Ticket, Refusal> {
        let question = access.question();
        let (answers, access) = (Arc::clone(&self.answers), access.clone());
        let service = self.authorization.clone();
        let heard = move |answer: Result<Answer, Refusal>| {
            let answer = answer.unwrap_or_else(|refusal| {
                let why = service.and_then(|service| lock(&service.failure).clone());
                let why = why.filter(|_| refusal == Refusal::Webhook);
                Answer::Failed(why.as_deref().unwrap_or_else(|| refusal.detail()).into())
            });
            let Access {
                user,
                client,
                action,
                topic,
            } = &access;
            answers.add(user.as_deref(), client, *action, topic, answer);
            tell();
        };
        let is_allowed = |answer: &Answer| *answer == Answer::Allowed;
        self.ask(
            (Subject::Authorization, is_allowed),
            origin,
            question,
            heard,
            |answer, _| wire::read_access(answer),
        )
    }

    /// Asks a service in its turn; `heard` gets what `read` has made of the answer.
    fn ask<A: 'static>(
        &self,
        (subject, is_allowed): (Subject, fn(&A) -> bool),
        origin: IpAddr,
        question: Vec<u8>,
        heard: impl FnOnce(Result<A, Refusal>) + Send + 'static,
        read: impl FnOnce(&str, &Arc<str>) -> Result<A, String> + Send + 'static,
    ) -> Result<Ticket, Refusal> {
        let service = self.service(subject).ok_or(Refusal::Unavailable)?;
        if !lock(&service.breaker).admits(origin, Instant::now()) {
            self.meters.count(subject, Outcome::Paused);
            return Err(Refusal::Webhook);
        }
        let deadline = Instant::now() + Duration::from_millis(self.config.timeout_ms);
        let service = Arc::clone(service);
        let meters = Arc::clone(&self.meters);
        let mut owed = Owed(Some(heard), std::marker::PhantomData);
        let work = move |deadline: Result<Instant, Refusal>| {
            let answer = deadline.and_then(|deadline| {
                let began = Instant::now();
                let answer = service.ask(&question, origin, deadline, read);
                meters.took(subject, began.elapsed());
                answer
            });
            let outcome = match &answer {
                Ok(answer) if is_allowed(answer) => Outcome::Allowed,
                Ok(_) => Outcome::Denied,
                Err(refusal) => Outcome::of(*refusal),
            };
            meters.count(subject, outcome);
            owed.give(answer);
        };
        let asked = self.queue.push(deadline, origin, Box::new(work));
        if asked.is_err() {
            self.meters.count(subject, Outcome::Busy);
        }
        asked
    }

    fn digest(&self, login: &Login<'_>) -> Digest {
        let mut context = hmac::Context::with_key(&self.key);
        let (kind, user, secret) = match login.credentials {
            Credentials::Password(user, password) => ("p", user, password),
            Credentials::Token(token) => ("t", "", token),
        };
        let address = login.address.to_string();
        let certificate = login.certificate.unwrap_or_default();
        for part in [
            kind,
            user,
            login.protocol,
            login.transport,
            &address,
            certificate,
        ] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part.as_bytes());
        }
        context.update(secret);
        let mut digest = [0; digest::SHA256_OUTPUT_LEN];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }
}

/// An answer that is owed to a client: without another one it is a refusal.
struct Owed<A, F: FnOnce(Result<A, Refusal>)>(Option<F>, std::marker::PhantomData<fn(A)>);

impl<A, F: FnOnce(Result<A, Refusal>)> Owed<A, F> {
    fn give(&mut self, answer: Result<A, Refusal>) {
        if let Some(heard) = self.0.take() {
            heard(answer);
        }
    }
}

impl<A, F: FnOnce(Result<A, Refusal>)> Drop for Owed<A, F> {
    fn drop(&mut self) {
        // Not where the question was given up: nobody waits.
        if std::thread::panicking() {
            self.give(Err(Refusal::Webhook));
        }
    }
}

impl Service {
    fn new(
        config: &config::Webhook,
        url: (&'static str, &str),
        fields: &str,
    ) -> Result<Arc<Self>, String> {
        let plain = if config.allow_plaintext_beyond_loopback {
            Plain::Everywhere
        } else {
            Plain::Here
        };
        let endpoint = Endpoint::new(&Terms {
            url,
            ca: ("webhook.ca", config.ca.as_deref()),
            plain,
            timeout_ms: config.timeout_ms,
            maximum_bytes: ("webhook.maximum_answer_bytes", config.maximum_answer_bytes),
            keep_alive: Duration::from_secs(config.keep_alive_s.into()),
        })?;
        let pause = Duration::from_millis(config.pause_ms);
        Ok(Arc::new(Self {
            url: url.1.into(),
            endpoint,
            fields: fields.to_owned(),
            breaker: Mutex::new(Breaker::new(config.failures, pause)),
            lines: Repeats::default(),
            failure: Mutex::default(),
            since: Instant::now(),
        }))
    }

    fn ask<A>(
        &self,
        question: &[u8],
        origin: IpAddr,
        deadline: Instant,
        read: impl FnOnce(&str, &Arc<str>) -> Result<A, String>,
    ) -> Result<A, Refusal> {
        let answer = self.endpoint.post(&self.fields, question, deadline);
        let url = self.endpoint.shown();
        let silence = answer
            .as_ref()
            .err()
            .and_then(|unanswered| unanswered.silence);
        if let Some(silence) = silence {
            if lock(&self.breaker).failed(origin, silence, Instant::now()) {
                tracing::warn!(url, "the webhook is not asked for webhook.pause_ms");
            }
        } else if lock(&self.breaker).succeeded(origin) {
            tracing::info!(url, "the webhook answers again");
        }
        let answer = answer.map_err(|unanswered| unanswered.why);
        answer
            .and_then(|answer| read(&answer, &self.url))
            .map_err(|why| {
                // One for all that ask: in an outage there may be thousands.
                let now_ms = self.since.elapsed().as_millis() as u64;
                *lock(&self.failure) = Some(why.clone());
                if let Some(more) = self.lines.pass(now_ms, LINES, None, "no good answer") {
                    let more = left_out(more);
                    tracing::warn!(url, why, more, "the webhook gives no good answer");
                }
                Refusal::Webhook
            })
    }
}

/// The fields of a file, one `Name: value` a line, with the ends of line of HTTP.
fn fields_of(text: &str) -> Result<String, String> {
    let mut fields = String::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let good = (line.split_once(':')).is_some_and(|(name, value)| {
            let is_visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
            !name.is_empty() && name.bytes().all(is_name) && value.bytes().all(is_visible)
        });
        if !good {
            return Err(format!("line {} is not `Name: value`", at + 1));
        }
        fields.push_str(line);
        fields.push_str("\r\n");
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_names_and_values() {
        let fields = fields_of("# ours\nAuthorization: Bearer abc\n\n X-Broker: 1\n");
        assert_eq!(
            fields.unwrap(),
            "Authorization: Bearer abc\r\nX-Broker: 1\r\n"
        );
        for bad in ["x", ": y", "a b: c", "a: \u{1}"] {
            assert_eq!(fields_of(bad).unwrap_err(), "line 1 is not `Name: value`");
        }
    }
}
