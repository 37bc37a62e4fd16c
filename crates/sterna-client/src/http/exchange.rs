//! One request, as often as it takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::watch;

use super::client::{Connected, Event};
use super::error::Error;
use super::fields::Fields;
use super::link::{self, Body, Link, LinkError, OutgoingRequest, Progress, Response};
use super::options::Options;
use super::problem::Problem;
use crate::backoff::Failures;
use crate::error::ConnectError;
use crate::options::random_characters;
use crate::url::Scheme;

/// Largest problem that is read, in bytes.
const MAX_PROBLEM_BYTES: usize = 16_384;
/// Longest place of a redirect that is kept, in characters.
const MAX_LOCATION: usize = 1_000;
/// Most immediate repetitions of a request that the broker has not begun, before that counts as a
/// failure.
const MAX_AT_ONCE: u32 = 2;
/// Characters of the part of idempotency keys that tells clients apart: 80 bits.
const KEY_CHARACTERS: usize = 16;

/// When a request has an `Idempotency-Key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyed {
    /// Always, so that it may be repeated.
    Always,
    /// In early data only, where others may repeat it.
    Early,
    /// Never.
    Never,
}

/// A request of the interface.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: &'static str,
    /// Path and query.
    pub(super) target: String,
    pub(super) fields: Fields,
    pub(super) content: Bytes,
    pub(super) keyed: Keyed,
    /// Whether it may be repeated, and travel in early data, without a key.
    pub(super) is_safe: bool,
}

impl Request {
    /// One that only reads.
    pub(super) fn read(method: &'static str, target: String) -> Self {
        Self {
            method,
            target,
            fields: Fields::new(),
            content: Bytes::new(),
            keyed: Keyed::Never,
            is_safe: true,
        }
    }

    /// One that changes something, and changes no more when it is repeated.
    pub(super) fn change(method: &'static str, target: String) -> Self {
        Self {
            is_safe: false,
            ..Self::read(method, target)
        }
    }

    /// Whether an answer of this status says that it was done.
    fn is_success(&self, status: u16) -> bool {
        let is_conditional = || self.fields.iter().any(|(name, _)| *name == "if-none-match");
        matches!(status, 200..=299) || (status == 304 && is_conditional())
    }

    /// Whether sending it again does no harm.
    fn is_repeatable(&self, key: Option<&str>) -> bool {
        key.is_some() || self.keyed == Keyed::Never
    }
}

/// State that all handles of a client share.
pub(super) struct Inner {
    pub(super) options: Arc<Options>,
    credentials: Option<Vec<u8>>,
    link: std::sync::Mutex<Option<Link>>,
    /// Held by the task that connects.
    connecting: tokio::sync::Mutex<()>,
    connections: AtomicU64,
    /// Whether the broker has answered any request.
    answered: AtomicBool,
    pub(super) events: watch::Sender<Option<Event>>,
    is_closed: AtomicBool,
    key_prefix: String,
    keys: AtomicU64,
}

impl Inner {
    pub(super) fn new(options: Options) -> Result<Self, Error> {
        options.check()?;
        Ok(Self {
            credentials: options.credentials.field(),
            options: Arc::new(options),
            link: std::sync::Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            connections: AtomicU64::new(0),
            answered: AtomicBool::new(false),
            events: watch::Sender::new(None),
            is_closed: AtomicBool::new(false),
            key_prefix: random_characters(KEY_CHARACTERS),
            keys: AtomicU64::new(0),
        })
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Link>> {
        self.link
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Number of connections up to now.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// The connection, where there is one.
    pub(super) fn current(&self) -> Option<Link> {
        self.slot().clone().filter(Link::is_alive)
    }

    /// The connection, or a new one.
    pub(super) async fn link(self: &Arc<Self>) -> Result<Link, Error> {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(link) = self.current() {
            return Ok(link);
        }
        self.check_open()?;
        let link = Link::connect(&self.options).await?;
        tracing::debug!(url = %self.options.url, version = %link.version(), "connected");
        self.connections.fetch_add(1, Ordering::Relaxed);
        *self.slot() = Some(link.clone());
        self.check_open()?;
        if link.is_early() {
            tokio::spawn(look_after(Arc::downgrade(self), link.clone()));
        }
        Ok(link)
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::Ended);
        }
        Ok(())
    }

    pub(super) fn describe(&self, link: &Link) -> Connected {
        Connected {
            version: link.version(),
            connections: self.connections(),
            early_data: link.early_data(),
        }
    }

    /// Tells that the broker answers, if it was not known.
    fn tell_connected(&self, link: &Link) {
        self.events.send_if_modified(|event| {
            let is_news = !matches!(event, Some(Event::Connected(_)));
            if is_news {
                *event = Some(Event::Connected(self.describe(link)));
            }
            is_news
        });
    }

    /// Tells that the broker does not answer.
    pub(super) fn tell_disconnected(&self, error: &Error, retry_in: Option<Duration>) {
        let error = error.clone();
        let event = Event::Disconnected { error, retry_in };
        self.events.send_replace(Some(event));
    }

    /// Ends the client.
    pub(super) async fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let link = self.slot().take();
        if let Some(link) = link {
            link.close().await;
        }
    }

    /// The next idempotency key.
    fn key(&self) -> String {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        format!("{}{number:x}", self.key_prefix)
    }

    /// Sends a request until it is answered, and gives the answer of success.
    ///
    /// # Errors
    /// The broker's problem, or the reason that keeps the request from being answered.
    pub(super) async fn execute(self: &Arc<Self>, request: &Request) -> Result<Response, Error> {
        let answered = self.execute_after(&mut Failures::default(), request).await;
        answered.map(|(response, _)| response)
    }

    /// The same where attempts have failed already; gives the connection of the answer, too.
    ///
    /// # Errors
    /// As [`Inner::execute`].
    pub(super) async fn execute_after(
        self: &Arc<Self>,
        failures: &mut Failures,
        request: &Request,
    ) -> Result<(Response, Link), Error> {
        let mut attempt = Attempt {
            key: (request.keyed == Keyed::Always).then(|| self.key()),
            ..Attempt::default()
        };
        let mut at_once = 0;
        loop {
            self.check_open()?;
            let error = match self.try_once(request, &mut attempt).await {
                Ok((response, link)) if request.is_success(response.status) => {
                    return Ok((response, link));
                }
                Ok((response, _)) if response.status < 400 => return Err(unexpected(&response)),
                Ok((response, _)) if self.again_differently(&response, &mut attempt) => continue,
                // The broker is still at work on an earlier attempt.
                Ok((response, _)) if response.status == 409 && attempt.key.is_some() => {
                    Failed::Busy(problem(response).await)
                }
                Ok((response, _)) => return Err(problem(response).await),
                Err(error) => error,
            };
            let is_undone = matches!(
                error,
                Failed::Link(LinkError::Undone(_) | LinkError::EarlyData)
            );
            if is_undone && at_once < MAX_AT_ONCE {
                at_once += 1;
                continue;
            }
            let is_temporary = match &error {
                Failed::Connect(error) => error.is_temporary(),
                Failed::Link(LinkError::Lost(_) | LinkError::Timeout(_)) => {
                    request.is_repeatable(attempt.key.as_deref())
                }
                Failed::Busy(_)
                | Failed::Link(
                    LinkError::Undone(_) | LinkError::EarlyData | LinkError::NoRoom(_),
                ) => true,
                Failed::Link(_) => false,
            };
            let is_busy = matches!(error, Failed::Busy(_) | Failed::Link(LinkError::NoRoom(_)));
            let is_unreachable = matches!(error, Failed::Connect(Error::Connect(_)));
            // A connection proves nothing: a server of another protocol takes it, too.
            let is_first = !self.answered.load(Ordering::Relaxed) && !is_busy;
            let error = error.into_error();
            let error = if is_first {
                self.perhaps_not_http(error)
            } else {
                error
            };
            let may_retry = is_temporary && (!is_first || self.options.retry_first);
            let reconnect = self.options.reconnect.filter(|_| may_retry);
            let delay = failures.add(reconnect);
            if !is_busy && (is_temporary || is_unreachable) {
                self.tell_disconnected(&error, delay);
            }
            let Some(delay) = delay else {
                return Err(error);
            };
            tracing::debug!(%error, ?delay, target = request.target, "trying again");
            tokio::time::sleep(delay).await;
        }
    }

    async fn try_once(
        self: &Arc<Self>,
        request: &Request,
        attempt: &mut Attempt,
    ) -> Result<(Response, Link), Failed> {
        let link = self.link().await.map_err(Failed::Connect)?;
        if link.is_early() {
            // The broker may reject early data, so it gets only requests that a repetition cannot
            // harm.
            let may_be_early = request.is_safe || request.keyed != Keyed::Never;
            if attempt.is_late || !may_be_early {
                self.established(&link).await.map_err(Failed::Link)?;
            }
        }
        if link.is_early() && request.keyed == Keyed::Early && attempt.key.is_none() {
            attempt.key = Some(self.key());
        }
        let has_credentials = self.credentials.is_some();
        let once = self.options.credentials_once && link.is_authenticated();
        attempt.with_credentials = has_credentials && (!once || attempt.needs_credentials);
        let credentials = self.credentials.as_deref();
        let mut fields: Vec<_> = request
            .fields
            .iter()
            .map(|(name, value)| (*name, value.as_slice()))
            .collect();
        if let Some(key) = &attempt.key {
            fields.push(("idempotency-key", key.as_bytes()));
        }
        let outgoing = OutgoingRequest {
            method: request.method,
            target: &request.target,
            fields: &fields,
            credentials: credentials.filter(|_| attempt.with_credentials),
            content: request.content.clone(),
            progress: Progress::default(),
        };
        let timeout = self.options.response_timeout;
        let sending = std::pin::pin!(link.send(&outgoing));
        let answered = tokio::select! {
            answered = outgoing.progress.within(timeout, sending) => answered,
            error = self.handshake_overdue(&link) => {
                self.give_up(&link);
                return Err(Failed::Connect(error.into()));
            }
        };
        let answered = answered.unwrap_or_else(|| {
            // It is dead, or as good as.
            self.give_up_request(&link);
            Err(LinkError::Timeout(timeout))
        });
        match answered {
            Ok(response) => {
                self.answered.store(true, Ordering::Relaxed);
                if response.status != 503 {
                    self.tell_connected(&link);
                }
                if attempt.with_credentials && response.status != 401 {
                    link.set_authenticated(true);
                } else if response.status == 401 {
                    link.set_authenticated(false);
                }
                Ok((response, link.clone()))
            }
            Err(LinkError::EarlyData) => {
                attempt.is_late = true;
                Err(Failed::Link(LinkError::EarlyData))
            }
            // HTTP/1.1 connects for a request where no connection is free.
            Err(LinkError::Connect(error)) => Err(Failed::Connect(error.into())),
            Err(error) => Err(Failed::Link(error)),
        }
    }

    /// The error of a first request, which says where the server seems to speak another protocol in the clear.
    fn perhaps_not_http(&self, error: Error) -> Error {
        let Error::Lost(why) = &error else {
            return error;
        };
        if self.options.url.scheme() != Scheme::Http {
            return error;
        }
        match link::another_protocol(why) {
            Some(text) => ConnectError::Http(text).at(&self.options.url).into(),
            None => error,
        }
    }

    /// Ends where early data was sent, and the handshake takes longer than connecting may.
    async fn handshake_overdue(&self, link: &Link) -> ConnectError {
        let timeout = self.options.longest_connect();
        let overdue = link.is_early()
            && tokio::time::timeout(timeout, link.established_quietly())
                .await
                .is_err();
        if !overdue {
            return std::future::pending().await;
        }
        ConnectError::timeout(timeout).at(&self.options.url)
    }

    /// Waits until the handshake is complete, as long as connecting may take.
    pub(super) async fn established(&self, link: &Link) -> Result<(), LinkError> {
        let timeout = self.options.longest_connect();
        let waited = tokio::time::timeout(timeout, link.established()).await;
        waited.unwrap_or_else(|_| {
            self.give_up(link);
            Err(LinkError::Timeout(timeout))
        })
    }

    /// Whether the request is to be sent once more in another way.
    fn again_differently(&self, response: &Response, attempt: &mut Attempt) -> bool {
        match response.status {
            // RFC 8470, section 5.2.
            425 if !attempt.is_late => {
                attempt.is_late = true;
                true
            }
            401 if !attempt.with_credentials && self.credentials.is_some() => {
                attempt.needs_credentials = true;
                true
            }
            _ => false,
        }
    }

    /// Takes the connection of a request for lost. Others go on where they have their own.
    pub(super) fn give_up_request(&self, link: &Link) {
        if link.give_up_request() {
            self.give_up(link);
        }
    }

    /// Takes a connection for lost.
    pub(super) fn give_up(&self, link: &Link) {
        link.give_up();
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|current| current.is(link)) {
            *slot = None;
        }
    }
}

/// Lessons of an attempt for the next one.
#[derive(Default)]
struct Attempt {
    key: Option<String>,
    /// It has to wait for the handshake.
    is_late: bool,
    with_credentials: bool,
    /// The broker wants to see them.
    needs_credentials: bool,
}

enum Failed {
    Connect(Error),
    Busy(Error),
    Link(LinkError),
}

impl Failed {
    fn into_error(self) -> Error {
        match self {
            Self::Connect(error) | Self::Busy(error) => error,
            Self::Link(error) => error.into(),
        }
    }
}

impl From<LinkError> for Error {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Undone(why) => Self::Lost(Arc::new(std::io::Error::other(why))),
            LinkError::EarlyData => {
                Self::Lost(Arc::new(std::io::Error::other("early data was not taken")))
            }
            LinkError::Connect(error) => Self::Connect(error),
            LinkError::Lost(error) => Self::Lost(error),
            LinkError::Timeout(after) | LinkError::NoRoom(after) => Self::Timeout(after),
            LinkError::Protocol(what) => Self::Protocol(what),
            LinkError::Command(error) => Self::Command(error),
        }
    }
}

/// Looks after a connection whose handshake is not complete: where the broker is reached by TCP
/// only, that takes its place.
async fn look_after(inner: std::sync::Weak<Inner>, link: Link) {
    let Some(options) = inner.upgrade().map(|inner| Arc::clone(&inner.options)) else {
        return;
    };
    if let Some(instead) = link::doubt(&options, &link).await
        && let Some(inner) = inner.upgrade()
    {
        tracing::debug!(url = %options.url, "no answer by UDP: going on by TCP");
        inner.connections.fetch_add(1, Ordering::Relaxed);
        *inner.slot() = Some(instead);
        // Requests that wait there begin anew.
        link.give_up();
    }
}

/// The error for an answer that is neither success nor refusal.
fn unexpected(response: &Response) -> Error {
    let location = response.text("location");
    let location = location.map(|place| place.chars().take(MAX_LOCATION).collect());
    Error::Unexpected {
        status: response.status,
        location,
    }
}

/// The broker's problem.
async fn problem(response: Response) -> Error {
    let status = response.status;
    let retry_after = response
        .text("retry-after")
        .and_then(|seconds| seconds.parse().ok())
        .map(Duration::from_secs);
    let mut body = response.body;
    // A problem that cannot be read is told by its status.
    let patience = Duration::from_secs(5);
    let content = tokio::time::timeout(patience, read_all(&mut body, MAX_PROBLEM_BYTES)).await;
    let content = content.ok().and_then(Result::ok).unwrap_or_default();
    let mut problem = Problem::parse(status, &content);
    problem.retry_after = retry_after;
    Error::Problem(Box::new(problem))
}

/// The whole content of a response, up to a limit.
async fn read_all(body: &mut Body, max_bytes: usize) -> Result<Bytes, Error> {
    let Some(first) = body.next().await? else {
        return Ok(Bytes::new());
    };
    let mut all = BytesMut::new();
    let mut next = Some(first);
    while let Some(piece) = next {
        if all.len() + piece.len() > max_bytes {
            return Err(Error::TooLarge { max_bytes });
        }
        // Mostly there is but one.
        let following = body.next().await?;
        if all.is_empty() && following.is_none() {
            return Ok(piece);
        }
        all.extend_from_slice(&piece);
        next = following;
    }
    Ok(all.freeze())
}

impl Inner {
    /// The whole content of a response; for how long the pieces may keep it waiting is limited, too.
    pub(super) async fn content(&self, response: Response) -> Result<Bytes, Error> {
        let timeout = self.options.response_timeout;
        let mut body = response.body;
        let reading = read_all(&mut body, self.options.max_message_bytes);
        match tokio::time::timeout(timeout, reading).await {
            Ok(content) => content,
            Err(_) => Err(Error::Timeout(timeout)),
        }
    }

    /// Reads a response to its end, where nothing is expected of it.
    pub(super) async fn finish(&self, response: Response) -> Result<(), Error> {
        self.content(response).await.map(drop)
    }
}
