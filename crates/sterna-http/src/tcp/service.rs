//! The library's calls for each request, and the content of the responses that it sends.
#![expect(clippy::future_not_send, reason = "they stay on their shard")]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use rustc_hash::FxHashMap;

use sterna_net::is_authority;

use super::beneath::Targets;
use crate::exchange::{ExchangeId, Refusal, repeated_field};
use crate::limits::Limits;

/// Bytes that a field counts for beside its own, as in HTTP/3 (RFC 9114, section 4.2.2).
const FIELD_OVERHEAD_BYTES: usize = 32;

/// Most bytes that the library is given at once. It keeps them even if the client takes nothing.
const PIECE_BYTES: usize = 16 << 10;

/// The state that the carrier and the library's futures share.
#[derive(Debug)]
pub(super) struct Hall {
    pub(super) limits: Arc<Limits>,
    pub(super) now_ms: u64,
    /// Reports for the application, in order.
    pub(super) told: VecDeque<Told>,
    /// Requests that are not answered in full.
    pub(super) answers: FxHashMap<u64, Rc<RefCell<Answer>>>,
    /// Requests so far.
    pub(super) requests: u64,
    /// Bytes of contents that are not complete.
    pub(super) assembling_bytes: usize,
    /// Bytes of all responses that wait for the library.
    pub(super) queued_bytes: Rc<Cell<usize>>,
    /// The application waits until they are fewer.
    pub(super) is_full: bool,
    /// Requests that the library has not let go of.
    pub(super) lasting: usize,
    /// A content was not read to its end.
    pub(super) is_torn: bool,
    /// A response has room again for which the application waits.
    pub(super) is_relieved: bool,
    /// Targets of HTTP/1.1 before the library has cut them.
    pub(super) targets: Targets,
}

impl Hall {
    /// Whether the responses that wait for the library are as large as they may be. The application is told when they
    /// are smaller again.
    pub(super) fn is_full(&mut self) -> bool {
        self.is_full = self.queued_bytes.get() >= self.limits.high_watermark_bytes;
        self.is_full
    }

    fn relieve(&mut self) {
        if self.is_full && self.queued_bytes.get() < self.limits.high_watermark_bytes {
            self.is_full = false;
            self.is_relieved = true;
        }
    }

    /// A request that the library has let go of leaves nothing behind.
    pub(super) fn check(&self) {
        let left = (
            self.answers.len(),
            self.queued_bytes.get(),
            self.assembling_bytes,
        );
        debug_assert!(
            self.lasting != 0 || left == (0, 0, 0),
            "answers, their bytes, and bytes of contents without a request: {left:?}"
        );
        debug_assert!(
            self.answers.len() <= self.lasting,
            "each answer belongs to a request"
        );
    }

    /// Whether everything that was asked is read and answered.
    pub(super) fn is_between_requests(&self) -> bool {
        self.lasting == 0 && !self.is_torn && self.told.is_empty()
    }
}

/// Something for the application.
#[derive(Debug)]
pub(super) enum Told {
    /// A request is complete.
    Request(ExchangeId, Box<Parts>, Bytes),
    /// One is turned away.
    Refused(ExchangeId, Box<Parts>, Refusal),
    /// The client has given one up that was not answered in full.
    Gone(ExchangeId),
    /// The client has given one up that was not complete, which is only counted.
    Abandoned,
}

/// One request's answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// When the request has to be complete, until it is.
    pub(super) deadline_ms: Option<u64>,
    pub(super) is_late: bool,
    pub(super) is_head: bool,
    /// The client knows interim answers, as in HTTP/1.0 none does.
    knows_interim: bool,
    /// The response, until the library has it.
    pub(super) head: Option<(StatusCode, HeaderMap)>,
    /// A response has begun.
    pub(super) has_begun: bool,
    queue: VecDeque<Bytes>,
    tail: BytesMut,
    queued_bytes: usize,
    /// Bytes of all responses of the connection, counted in the same way.
    of_connection: Rc<Cell<usize>>,
    /// Bytes of content that the library has taken.
    pub(super) taken_bytes: u64,
    /// Nothing is added to the content.
    pub(super) is_complete: bool,
    /// It will not be completed.
    pub(super) is_broken: bool,
    /// The application waits for room.
    pub(super) is_full: bool,
    /// The application was told of the request.
    is_told: bool,
    waker: Option<Waker>,
}

impl Answer {
    /// Has the library look again.
    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whether nothing of the answer has come, and an interim answer may.
    pub(super) const fn awaits_head(&self) -> bool {
        self.knows_interim && self.is_told && !self.has_begun
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.queue(bytes.len());
        self.tail.extend_from_slice(bytes);
    }

    pub(super) fn push_shared(&mut self, bytes: Bytes) {
        self.queue(bytes.len());
        if !self.tail.is_empty() {
            self.queue.push_back(self.tail.split().freeze());
        }
        self.queue.push_back(bytes);
    }

    fn queue(&mut self, bytes: usize) {
        self.queued_bytes += bytes;
        self.of_connection.set(self.of_connection.get() + bytes);
    }

    fn unqueue(&mut self, bytes: usize) {
        self.queued_bytes -= bytes;
        self.of_connection.set(self.of_connection.get() - bytes);
    }

    pub(super) const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    fn pop(&mut self) -> Option<Bytes> {
        let next = match self.queue.front_mut() {
            Some(first) if first.len() > PIECE_BYTES => first.split_to(PIECE_BYTES),
            Some(_) => self.queue.pop_front()?,
            None if self.tail.is_empty() => return None,
            None => self
                .tail
                .split_to(self.tail.len().min(PIECE_BYTES))
                .freeze(),
        };
        self.unqueue(next.len());
        self.taken_bytes += next.len() as u64;
        Some(next)
    }
}

/// A response that is broken off.
#[derive(Debug)]
pub(super) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the response was broken off")
    }
}

impl std::error::Error for Broken {}

impl From<Infallible> for Broken {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Hands requests to the carrier.
#[derive(Clone, Debug)]
pub(super) struct Service(pub(super) Rc<RefCell<Hall>>);

impl hyper::service::Service<http::Request<Incoming>> for Service {
    type Response = http::Response<Body>;
    type Error = Broken;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Broken>>>>;

    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        Box::pin(serve(Rc::clone(&self.0), request))
    }
}

async fn serve(
    hall: Rc<RefCell<Hall>>,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Broken> {
    let (parts, content) = request.into_parts();
    let exchange = Exchange::begin(hall, &parts);
    let refusal = if exchange.has_fragment() {
        Some(Refusal::Malformed("a target has no fragment (`#`)"))
    } else {
        check(&parts, &content, &exchange.hall.borrow().limits)
    };
    let (version, is_empty) = (parts.version, content.is_end_stream());
    let gathered = match refusal {
        Some(refusal) => Err(refusal),
        None => exchange.gather(content).await,
    };
    // The library closes a connection of HTTP/1.1 behind a content that was not read. The client hears of
    // it, or it sends its next request into the end (RFC 9112, section 9.6).
    let closes = gathered.is_err() && !is_empty && version < Version::HTTP_2;
    exchange.tell(parts, gathered, is_empty);
    let (status, mut fields) = poll_fn(|cx| exchange.poll_head(cx)).await?;
    if closes {
        fields.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let mut response = http::Response::new(Body(exchange));
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    Ok(response)
}

/// The fault of a request whose content has not come; `None` if it has none.
fn check(head: &Parts, content: &Incoming, limits: &Limits) -> Option<Refusal> {
    let target_bytes = (head.uri.path_and_query()).map_or(0, |target| target.as_str().len());
    if target_bytes > limits.max_target_bytes as usize {
        return Some(Refusal::TargetTooLong);
    }
    let field_bytes = |(name, value): (&http::HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + FIELD_OVERHEAD_BYTES
    };
    if head.headers.iter().map(field_bytes).sum::<usize>() > limits.max_fields_bytes as usize {
        return Some(Refusal::FieldsTooLarge);
    }
    // RFC 9112, section 3.2.
    let host = head.headers.get(header::HOST);
    if host.is_none() && head.version == Version::HTTP_11 {
        return Some(Refusal::Malformed("a request has one field host"));
    }
    let is_good = |host: &HeaderValue| host.to_str().is_ok_and(is_authority);
    if host.is_some_and(|host| !is_good(host)) {
        return Some(Refusal::Malformed("the field host is no name of a host"));
    }
    // RFC 9113, section 8.3.1. In HTTP/1.1 the target's counts instead (RFC 9112, section 3.2.2).
    if head.version == Version::HTTP_2
        && let (Some(authority), Some(host)) =
            (head.uri.authority(), head.headers.get(header::HOST))
        && host.as_bytes() != authority.as_str().as_bytes()
    {
        return Some(Refusal::Malformed("host says other than :authority"));
    }
    if content.size_hint().lower() > u64::from(limits.max_content_bytes) {
        return Some(Refusal::ContentTooLarge);
    }
    let repeated = repeated_field(|name| head.headers.get_all(name).iter().count());
    repeated.map(Refusal::Malformed)
}

/// A request while it lasts; the application learns when the library lets go of it too early.
#[derive(Debug)]
struct Exchange {
    id: ExchangeId,
    hall: Rc<RefCell<Hall>>,
    answer: Rc<RefCell<Answer>>,
}

impl Exchange {
    fn begin(hall: Rc<RefCell<Hall>>, head: &Parts) -> Self {
        let mut shared = hall.borrow_mut();
        let id = ExchangeId(shared.requests);
        shared.requests += 1;
        shared.lasting += 1;
        let answer = Answer {
            deadline_ms: Some(shared.now_ms + shared.limits.content_timeout_ms),
            is_head: head.method == http::Method::HEAD,
            knows_interim: head.version == Version::HTTP_11,
            of_connection: Rc::clone(&shared.queued_bytes),
            ..Answer::default()
        };
        let answer = Rc::new(RefCell::new(answer));
        shared.answers.insert(id.0, Rc::clone(&answer));
        drop(shared);
        Self { id, hall, answer }
    }

    /// Whether the library has cut a fragment off the target.
    fn has_fragment(&self) -> bool {
        self.hall.borrow_mut().targets.had_fragment(self.id.0)
    }

    /// Gathers the content.
    async fn gather(&self, mut content: Incoming) -> Result<Bytes, Refusal> {
        let mut gathered = Gathered {
            hall: &self.hall,
            bytes: Vec::new(),
        };
        loop {
            let frame = poll_fn(|cx| {
                let mut answer = self.answer.borrow_mut();
                if answer.is_late {
                    return Poll::Ready(Err(Refusal::Timeout));
                }
                answer.waker = Some(cx.waker().clone());
                drop(answer);
                Pin::new(&mut content).poll_frame(cx).map(Ok)
            });
            match frame.await? {
                None => return Ok(gathered.take()),
                Some(Err(_)) => return Err(Refusal::Malformed("a content that is cut off")),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        gathered.push(&bytes)?;
                    }
                }
            }
        }
    }

    /// Tells the application of the request, which is empty if it has no content.
    fn tell(&self, head: Parts, content: Result<Bytes, Refusal>, is_empty: bool) {
        let head = Box::new(head);
        {
            let mut answer = self.answer.borrow_mut();
            answer.deadline_ms = None;
            answer.is_told = true;
        }
        let mut hall = self.hall.borrow_mut();
        hall.is_torn |= content.is_err() && !is_empty;
        hall.told.push_back(match content {
            Ok(content) => Told::Request(self.id, head, content),
            Err(refusal) => Told::Refused(self.id, head, refusal),
        });
    }

    fn poll_head(&self, cx: &Context<'_>) -> Poll<Result<(StatusCode, HeaderMap), Broken>> {
        let mut answer = self.answer.borrow_mut();
        if answer.is_broken {
            return Poll::Ready(Err(Broken));
        }
        if let Some(head) = answer.head.take() {
            return Poll::Ready(Ok(head));
        }
        answer.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let mut hall = self.hall.borrow_mut();
        let mut answer = self.answer.borrow_mut();
        let unread_bytes = answer.queued_bytes;
        answer.unqueue(unread_bytes);
        hall.relieve();
        hall.lasting -= 1;
        let was_open = hall.answers.remove(&self.id.0).is_some();
        if was_open {
            hall.told.push_back(if answer.is_told {
                Told::Gone(self.id)
            } else {
                Told::Abandoned
            });
        }
    }
}

/// A content that is being gathered, and counted.
struct Gathered<'a> {
    hall: &'a RefCell<Hall>,
    bytes: Vec<u8>,
}

impl Gathered<'_> {
    fn push(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let mut hall = self.hall.borrow_mut();
        if self.bytes.len() + bytes.len() > hall.limits.max_content_bytes as usize {
            return Err(Refusal::ContentTooLarge);
        }
        if hall.assembling_bytes + bytes.len() > hall.limits.max_assembling_bytes as usize {
            return Err(Refusal::Busy);
        }
        hall.assembling_bytes += bytes.len();
        if self.bytes.is_empty() {
            self.bytes.reserve_exact(bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn take(mut self) -> Bytes {
        self.hall.borrow_mut().assembling_bytes -= self.bytes.len();
        Bytes::from(std::mem::take(&mut self.bytes))
    }
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        self.hall.borrow_mut().assembling_bytes -= self.bytes.len();
    }
}

/// The content of a response, as far as the application has given it.
#[derive(Debug)]
pub(super) struct Body(Exchange);

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let Exchange { hall, answer, .. } = &self.0;
        let mut answer = answer.borrow_mut();
        if answer.is_broken {
            return Poll::Ready(Some(Err(Broken)));
        }
        if let Some(bytes) = answer.pop() {
            let mut hall = hall.borrow_mut();
            if answer.is_full && answer.queued_bytes < hall.limits.response_bytes() {
                answer.is_full = false;
                hall.is_relieved = true;
            }
            hall.relieve();
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if answer.is_complete {
            return Poll::Ready(None);
        }
        answer.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let answer = self.0.answer.borrow();
        answer.is_complete && answer.queued_bytes == 0 && !answer.is_broken
    }

    fn size_hint(&self) -> SizeHint {
        let answer = self.0.answer.borrow();
        if answer.is_complete {
            SizeHint::with_exact(answer.queued_bytes as u64)
        } else {
            SizeHint::default()
        }
    }
}
