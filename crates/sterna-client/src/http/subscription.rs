//! A subscription: a sequence of messages over one or more responses.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::error::Error;
use super::exchange::{Inner, Request};
use super::frames::{Frame, Frames, MEDIA_TYPE};
use super::link::{Body, Link, LinkError, Response};
use super::options::{Subscribe, check_any_session};
use crate::backoff::Failures;
use crate::link::Echoes;
use crate::message::Message;

/// Messages that are acknowledged together at most, where the application is slower than they come.
const ACKNOWLEDGED_TOGETHER: u64 = 64;

/// A message of a subscription.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Received {
    /// Number of the message in the subscription; `None` with QoS 0. Numbers grow.
    pub id: Option<u64>,
    /// The message. It may have come before where [`Message::is_duplicate`] says so.
    pub message: Message,
}

/// Work of a subscription on its way: a task, which is given up when this is dropped. It goes on while no call waits for
/// it, since others may wait for the connection that it makes.
struct Task<T>(JoinHandle<Result<T, Error>>);

impl<T: Send + 'static> Task<T> {
    fn start(work: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // It ends early with the runtime alone.
        let ended = std::task::ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(ended.unwrap_or(Err(Error::Ended)))
    }
}

/// A response that messages come from.
struct Stream {
    body: Body,
    link: Link,
    began: Instant,
    /// When a call began to wait for what comes next.
    silent_since: Option<Instant>,
    /// The failures in a row that it ends if it lasts.
    failures: Failures,
    /// Requests for it that were lost.
    echoes: Echoes,
    /// The session's name in the response.
    session: Option<String>,
    /// The message that it was to begin behind.
    after: Option<u64>,
}

/// The end of a stream.
enum Cut {
    /// The broker has ended the response in order, on this connection.
    Ended(Link),
    /// The response broke off.
    Lost(Error),
}

/// A subscription. It hands out messages one by one. Without a call, the broker keeps them up to
/// its limits. It ends when it goes away; a durable one can then be resumed by its name.
pub struct Subscription {
    inner: Arc<Inner>,
    subscribe: Subscribe,
    /// The name of the session: given, or made by the broker.
    session: Option<String>,
    /// Number of times that a new session replaced a lost one.
    restarts: u64,
    stream: Option<Stream>,
    /// The way to the next stream, where there is none.
    resuming: Option<Task<Stream>>,
    frames: Frames,
    /// The last message that was handed over.
    handed: Option<u64>,
    /// The last one that the application is done with.
    done: Option<u64>,
    /// The last one that was acknowledged, or is about to be.
    acknowledged: Option<u64>,
    acknowledging: Option<Task<()>>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("session", &self.session)
            .field("handed", &self.handed)
            .finish_non_exhaustive()
    }
}

impl Subscription {
    pub(super) async fn open(inner: Arc<Inner>, subscribe: Subscribe) -> Result<Self, Error> {
        let mut this = Self {
            session: subscribe.session.clone(),
            frames: Frames::new(inner.options.max_message_bytes),
            inner,
            subscribe,
            restarts: 0,
            stream: None,
            resuming: None,
            handed: None,
            done: None,
            acknowledged: None,
            acknowledging: None,
        };
        let stream = this.resumption(Failures::default()).ask().await?;
        this.begin(stream);
        Ok(this)
    }

    /// The name of the session, as the broker knows it; one that it made begins with `~`.
    #[must_use]
    pub fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Number of resumptions at which the broker had forgotten the session, so that messages may be
    /// missing.
    #[must_use]
    pub const fn restarts(&self) -> u64 {
        self.restarts
    }

    const fn is_durable(&self) -> bool {
        self.subscribe.session.is_some()
    }

    /// The next message. A call that is given up loses nothing, as in a `select!` with other work. The next call waits
    /// on: neither [`silence_timeout`](super::Options::silence_timeout) nor the back-off begins anew.
    ///
    /// A response that is cut off is resumed, as [`Options::reconnect`](super::Options) says. Of a
    /// durable subscription the messages before are acknowledged with this call, unless
    /// [`Subscribe::acknowledge`] says otherwise.
    ///
    /// # Errors
    /// When the broker refuses to go on, has ended the subscription, or cannot be reached any more.
    pub async fn next(&mut self) -> Result<Received, Error> {
        self.done = self.handed;
        loop {
            match self.frames.next_frame()? {
                Some(Frame::Heartbeat) => continue,
                Some(Frame::Message { id, message }) => {
                    self.note(id, message.is_duplicate());
                    if self.unacknowledged() >= ACKNOWLEDGED_TOGETHER {
                        self.start_acknowledging();
                    }
                    return Ok(Received { id, message });
                }
                None => {}
            }
            // Nothing more is here, so that there is time to say what has been done.
            self.start_acknowledging();
            self.read().await?;
        }
    }

    /// The next message, if it has already come. Messages that were handed over before do not count
    /// as done by this call.
    ///
    /// # Errors
    /// When the received bytes cannot be read.
    pub fn try_next(&mut self) -> Result<Option<Received>, Error> {
        while let Some(frame) = self.frames.next_frame()? {
            if let Frame::Message { id, message } = frame {
                self.note(id, message.is_duplicate());
                return Ok(Some(Received { id, message }));
            }
        }
        Ok(None)
    }

    /// Notes that a message has come.
    fn note(&mut self, id: Option<u64>, is_duplicate: bool) {
        if id.is_some() && id <= self.handed && !is_duplicate {
            // Numbers grow, so that this is another session of the same name.
            self.begin_anew();
        }
        self.handed = id.or(self.handed);
    }

    /// Another session takes the place of one that is gone: numbers begin anew.
    fn begin_anew(&mut self) {
        self.restarts += 1;
        self.handed = None;
        self.done = None;
        self.acknowledged = None;
    }

    /// Acknowledges everything up to a message of a durable subscription.
    ///
    /// # Errors
    /// When the broker refuses it, and when it could not be asked.
    pub async fn acknowledge(&mut self, id: u64) -> Result<(), Error> {
        let Some(session) = self.session.as_deref().filter(|_| self.is_durable()) else {
            return Err(Error::invalid(
                "only durable subscriptions are acknowledged",
            ));
        };
        self.inner.acknowledge(session, id).await?;
        self.acknowledged = self.acknowledged.max(Some(id));
        Ok(())
    }

    /// Acknowledges messages that were handed over, where the client does that, and ends the
    /// response. A durable subscription stays at the broker.
    ///
    /// # Errors
    /// When the broker refuses it, and when it could not be asked.
    pub async fn close(mut self) -> Result<(), Error> {
        self.stream = None;
        self.resuming = None;
        if let Some(acknowledging) = self.acknowledging.take() {
            acknowledging.await?;
        }
        self.done = self.handed;
        self.start_acknowledging();
        match self.acknowledging.take() {
            Some(acknowledging) => acknowledging.await,
            None => Ok(()),
        }
    }

    /// Approximate number of messages that are done and not acknowledged.
    fn unacknowledged(&self) -> u64 {
        match (self.done, self.acknowledged) {
            (Some(done), Some(acknowledged)) => done.saturating_sub(acknowledged),
            (Some(_), None) => ACKNOWLEDGED_TOGETHER,
            (None, _) => 0,
        }
    }

    /// Starts to acknowledge what is done, where the client does that and nothing is under way.
    fn start_acknowledging(&mut self) {
        if !self.is_durable()
            || !self.subscribe.acknowledge
            || self.acknowledging.is_some()
            || self.done <= self.acknowledged
        {
            return;
        }
        if let (Some(id), Some(session)) = (self.done, self.session.clone()) {
            self.acknowledged = Some(id);
            let inner = Arc::clone(&self.inner);
            let acknowledge = async move { inner.acknowledge(&session, id).await };
            self.acknowledging = Some(Task::start(acknowledge));
        }
    }

    /// Reads a piece of the stream, or waits for the next one.
    async fn read(&mut self) -> Result<(), Error> {
        let Some(stream) = &mut self.stream else {
            return self.come_back().await;
        };
        let silence = self.inner.options.silence_timeout;
        let since = *stream.silent_since.get_or_insert_with(Instant::now);
        let read = tokio::select! {
            biased;
            acknowledged = wait(&mut self.acknowledging) => {
                self.acknowledging = None;
                return acknowledged;
            }
            read = stream.body.next() => read,
            () = last(silence.saturating_sub(since.elapsed())) => {
                Err(LinkError::Timeout(silence))
            }
        };
        match read {
            Ok(Some(bytes)) => {
                stream.silent_since = None;
                self.frames.push(&bytes);
            }
            Ok(None) => {
                let link = stream.link.clone();
                self.cut_off(Cut::Ended(link));
            }
            Err(LinkError::Protocol(what)) => return Err(Error::Protocol(what)),
            Err(error) => {
                if matches!(error, LinkError::Timeout(_)) {
                    self.inner.give_up_request(&stream.link);
                }
                self.cut_off(Cut::Lost(error.into()));
            }
        }
        Ok(())
    }

    /// Leaves the stream, and starts the way to the next one.
    fn cut_off(&mut self, cut: Cut) {
        let mut failures = Failures::default();
        let (mut echoes, mut lasted) = (Echoes::default(), Duration::ZERO);
        if let Some(stream) = self.stream.take() {
            (failures, echoes) = (stream.failures, stream.echoes);
            lasted = stream.began.elapsed();
            failures.lasted(lasted);
        }
        self.frames = Frames::new(self.inner.options.max_message_bytes);
        let resumption = Resumption {
            echoes,
            lasted,
            ..self.resumption(failures)
        };
        self.resuming = Some(Task::start(resumption.run(Some(cut))));
    }

    /// Waits for the next stream.
    async fn come_back(&mut self) -> Result<(), Error> {
        if self.resuming.is_none() {
            // An error was the end, and the application asks all the same.
            let resumption = self.resumption(Failures::default());
            self.resuming = Some(Task::start(resumption.run(None)));
        }
        let resumed = wait(&mut self.resuming).await;
        self.resuming = None;
        self.begin(resumed?);
        Ok(())
    }

    /// The way to the stream from here on.
    fn resumption(&self, failures: Failures) -> Resumption {
        // Messages that the application has not confirmed yet have to come again.
        let after = match (self.is_durable(), self.subscribe.acknowledge) {
            (true, false) => None,
            (true, true) => self.done,
            (false, _) => self.handed,
        };
        let target = Inner::subscription_target(&self.subscribe, self.session.as_deref(), after);
        let request = Request {
            fields: vec![("accept", MEDIA_TYPE.into())],
            ..Request::read("GET", target)
        };
        Resumption {
            inner: Arc::clone(&self.inner),
            request,
            session: self.session.clone(),
            after,
            failures,
            echoes: Echoes::default(),
            lasted: Duration::ZERO,
        }
    }

    /// Messages come from this stream now.
    fn begin(&mut self, mut stream: Stream) {
        let (session, after) = (stream.session.take(), stream.after);
        if after.is_some() && session != self.session {
            self.begin_anew();
        } else if self.is_durable() && after.is_some() {
            self.acknowledged = self.acknowledged.max(after);
        }
        self.session = session.or_else(|| self.session.take());
        self.stream = Some(stream);
    }
}

/// The way to a stream. It needs no call of the application's, which may give each of them up.
struct Resumption {
    inner: Arc<Inner>,
    request: Request,
    session: Option<String>,
    /// The message behind which messages are asked for.
    after: Option<u64>,
    failures: Failures,
    echoes: Echoes,
    /// For how long the stream before came.
    lasted: Duration,
}

impl Resumption {
    /// Finds out what the cut means, and asks until there is a stream.
    async fn run(mut self, cut: Option<Cut>) -> Result<Stream, Error> {
        let mut delay = match cut {
            Some(Cut::Lost(error)) => {
                self.echoes.lost(self.lasted, true);
                self.pause(&error)?
            }
            Some(Cut::Ended(link)) => {
                let error = self.why_ended(&link).await?;
                self.pause(&error)?
            }
            None => Duration::ZERO,
        };
        loop {
            tokio::time::sleep(delay).await;
            match self.ask().await {
                // The broker is there and has no room.
                Err(error @ Error::Problem(_)) if error.is_temporary() => {
                    delay = self.pause(&error)?;
                }
                result => return result,
            }
        }
    }

    /// The pause after a failure; the error itself where that is not to be repaired.
    fn pause(&mut self, error: &Error) -> Result<Duration, Error> {
        let is_first = self.failures.is_none();
        let delay = self.failures.add(self.inner.options.reconnect);
        // Mostly the broker is there, and only the connection was lost.
        let delay = delay.map(|delay| if is_first { Duration::ZERO } else { delay });
        tracing::debug!(%error, ?delay, session = self.session, "the subscription was cut off");
        self.inner.tell_disconnected(error, delay);
        delay.ok_or_else(|| error.clone())
    }

    /// Why the broker has ended a response in order: because it ends itself, which is the result, or
    /// because the subscription is over.
    /// Where a lost request of its own may have taken the session, it is asked for once more.
    async fn why_ended(&mut self, link: &Link) -> Result<Error, Error> {
        let ended = Error::Lost(Arc::new(std::io::Error::other(
            "the broker ended the response",
        )));
        if !link.is_alive() {
            return Ok(ended);
        }
        let Some(session) = &self.session else {
            return Err(Error::Closed);
        };
        let connections = self.inner.connections();
        let outages = self.inner.events.subscribe();
        match self.inner.session(session).await {
            // Another client listens, or it is gone, while the broker was there all the time.
            Ok(Some(session)) if session.connected && !self.echoes.explain(self.lasted) => {
                Err(Error::Closed)
            }
            Ok(None)
                if self.inner.connections() == connections
                    && !outages.has_changed().unwrap_or(true) =>
            {
                Err(Error::Closed)
            }
            Ok(_) => Ok(ended),
            Err(error) if error.is_temporary() => Ok(error),
            Err(error) => Err(error),
        }
    }

    /// Asks for the stream.
    async fn ask(&mut self) -> Result<Stream, Error> {
        let (began, failed) = (Instant::now(), self.failures.count());
        let answered = self.inner.execute_after(&mut self.failures, &self.request);
        let (response, link) = answered.await?;
        for _ in failed..self.failures.count() {
            self.echoes.lost(began.elapsed(), false);
        }
        Self::check(&response)?;
        let session = response.text("sterna-session").map(str::to_owned);
        if let Some(session) = &session {
            check_any_session(session)
                .map_err(|_| Error::Protocol("a session without a proper name".to_owned()))?;
        }
        tracing::debug!(session, "subscribed");
        Ok(Stream {
            body: response.body,
            link,
            began: Instant::now(),
            silent_since: None,
            failures: std::mem::take(&mut self.failures),
            echoes: std::mem::take(&mut self.echoes),
            session,
            after: self.after,
        })
    }

    fn check(response: &Response) -> Result<(), Error> {
        let kind = response.text("content-type").unwrap_or_default();
        if response.status == 200 && kind.starts_with(MEDIA_TYPE) {
            return Ok(());
        }
        let text = format!("status {} with content of type '{kind}'", response.status);
        Err(Error::Protocol(text))
    }
}

/// Waits for the rest of a time. A rest of none is over at the first look, which a timer of the runtime is not: a call
/// that is given up at once would never see its end.
async fn last(rest: Duration) {
    if !rest.is_zero() {
        tokio::time::sleep(rest).await;
    }
}

/// The result of a task; never without one under way.
async fn wait<T: Send>(task: &mut Option<Task<T>>) -> Result<T, Error> {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}
