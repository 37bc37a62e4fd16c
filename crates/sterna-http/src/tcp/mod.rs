//! Requests and responses on TCP. A library has HTTP/2 and HTTP/1.1; its futures are driven within
//! the shard's turn.
//!
//! The library reads and writes `pipe.rs`, and calls `service.rs`. `executor.rs` polls it,
//! `respond.rs` has the application's responses. `beneath.rs` sees what the library does not tell.

mod beneath;
mod executor;
mod pipe;
mod respond;
mod service;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::HeaderValue;
use hyper::server::conn::{http1, http2};
use rustc_hash::FxHashMap;
use sterna_net::{ConnectionId, Network, foreign};

use crate::carrier::{Moment, Settings};
use crate::date;
use crate::exchange::{Application, ExchangeId, Fault, Head, Request};
use crate::limits::{Limits, TOO_MANY_RESETS};
use beneath::{Frames, Targets};
use executor::{Executor, Flag, Tasks};
use pipe::{End, Pipe};
use service::{Answer, Hall, Service, Told};

/// The first bytes of a client of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Windows of HTTP/2, as QUIC has them by default.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;

/// Time after a request of HTTP/1.1 after which the library's buffers are given back.
const REST_MS: u64 = 1_000;

/// The answer to a head that comes too slowly.
const TOO_SLOW: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// The answer to another protocol.
const NOT_HTTP: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// GOAWAY with ENHANCE_YOUR_CALM, for which no request counts as taken (RFC 9113, section 6.8).
const TOO_MUCH: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11];

/// The interim answer that every client of HTTP/1.1 can pass over (RFC 9110, section 15.2).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A connection of HTTP/2 or HTTP/1.1.
#[derive(Debug)]
pub(crate) struct Carrier {
    id: ConnectionId,
    pipe: Rc<RefCell<Pipe>>,
    hall: Rc<RefCell<Hall>>,
    engine: Engine,
    flag: Arc<Flag>,
    tasks: Tasks,
    limits: Arc<Limits>,
    now_ms: u64,
    date: [u8; date::BYTES],
    /// Value of Alt-Svc (RFC 7838).
    alternative: Option<HeaderValue>,
    /// The application was told that there is no room.
    is_full: bool,
    /// Time at which a head that has begun must be complete; HTTP/1.1 only.
    head_deadline_ms: Option<u64>,
    /// Time at which the connection is closed unless a request is open.
    idle_deadline_ms: u64,
    /// There was a request.
    is_used: bool,
    /// Bytes that the client had not taken when the last step began.
    untaken_bytes: usize,
    /// Time at which the library's buffers are given back unless a request is open.
    rest_ms: u64,
    /// Requests that were given up, less those that time has made up for.
    resets: u64,
    resets_ms: u64,
    /// Frames of HTTP/2 that the library does not tell of.
    frames: Frames,
    /// The client has ended its side and still gets its answers, which the transport has yet to be told.
    keeps_open: bool,
    /// Bytes that the transport had taken over at its last progress, and the time of that.
    taken_over_bytes: u64,
    taken_over_ms: u64,
    is_over: bool,
}

/// The library, by the version that the client speaks.
enum Engine {
    /// The version is still open. Has the bytes received so far.
    Unknown(Vec<u8>),
    /// HTTP/1.1, between two requests that are far apart: the library would keep its buffers.
    Resting,
    Http1(Box<http1::Connection<End, Service>>),
    Http2(Pin<Box<http2::Connection<End, Service, Executor>>>),
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown(_) => "Unknown",
            Self::Resting => "Resting",
            Self::Http1(_) => "Http1",
            Self::Http2(_) => "Http2",
        })
    }
}

impl Carrier {
    pub(crate) fn new(id: ConnectionId, settings: Settings, protocol: &[u8], now_ms: u64) -> Self {
        let limits = settings.limits;
        let hall = Hall {
            limits: Arc::clone(&limits),
            now_ms,
            told: VecDeque::new(),
            answers: FxHashMap::default(),
            requests: 0,
            assembling_bytes: 0,
            queued_bytes: Rc::default(),
            is_full: false,
            lasting: 0,
            is_torn: false,
            is_relieved: false,
            targets: Targets::default(),
        };
        let alternative = (settings.http3_port).map(|port| format!("h3=\":{port}\"; ma=86400"));
        let mut carrier = Self {
            id,
            pipe: Rc::new(RefCell::new(Pipe::new(limits.high_watermark_bytes))),
            hall: Rc::new(RefCell::new(hall)),
            engine: Engine::Unknown(Vec::new()),
            flag: Flag::raised(),
            tasks: Tasks::default(),
            now_ms,
            date: [b' '; date::BYTES],
            alternative: alternative.and_then(|value| HeaderValue::try_from(value).ok()),
            is_full: false,
            head_deadline_ms: None,
            idle_deadline_ms: now_ms + limits.connect_timeout_ms,
            is_used: false,
            untaken_bytes: 0,
            rest_ms: now_ms + REST_MS,
            resets: 0,
            resets_ms: now_ms,
            frames: Frames::new(PREFACE.len(), now_ms),
            keeps_open: false,
            taken_over_bytes: 0,
            taken_over_ms: now_ms,
            is_over: false,
            limits,
        };
        match protocol {
            b"h2" => carrier.engine = carrier.http2(),
            b"http/1.1" => carrier.engine = carrier.http1(),
            _ => {}
        }
        carrier
    }

    fn http1(&self) -> Engine {
        let limits = &self.limits;
        // A head above the limits gets a problem for an answer, up to twice the limits.
        let head_bytes = 2 * (limits.max_fields_bytes as usize + limits.max_target_bytes as usize);
        let mut builder = http1::Builder::new();
        builder
            .auto_date_header(false)
            .half_close(true)
            .header_read_timeout(None)
            .max_header_size(head_bytes)
            .max_buf_size(head_bytes.max(8192));
        let (end, service) = (End(Rc::clone(&self.pipe)), Service(Rc::clone(&self.hall)));
        self.flag.raise();
        Engine::Http1(Box::new(builder.serve_connection(end, service)))
    }

    fn http2(&self) -> Engine {
        let limits = &self.limits;
        let mut builder = http2::Builder::new(self.tasks.executor());
        builder
            .auto_date_header(false)
            .max_concurrent_streams(limits.max_requests)
            .max_header_list_size(limits.max_fields_bytes.saturating_mul(2))
            .max_local_error_reset_streams(limits.max_resets as usize)
            // Those that come and go in one packet, before they are taken in.
            .max_pending_accept_reset_streams(limits.max_resets as usize)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(limits.response_bytes());
        let (end, service) = (End(Rc::clone(&self.pipe)), Service(Rc::clone(&self.hall)));
        self.flag.raise();
        Engine::Http2(Box::pin(builder.serve_connection(end, service)))
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, moment: Moment) {
        self.now_ms = moment.now_ms;
        self.date = moment.date;
        self.hall.borrow_mut().now_ms = moment.now_ms;
        let untaken_bytes = moment.unsent_bytes + self.hall.borrow().queued_bytes.get();
        if untaken_bytes < self.untaken_bytes && self.is_used {
            self.idle_deadline_ms = self.now_ms + self.limits.idle_timeout_ms;
        }
        self.untaken_bytes = untaken_bytes;
        let mut pipe = self.pipe.borrow_mut();
        let nothing_waited = pipe.unsent_bytes() == 0;
        pipe.begin(moment.unsent_bytes);
        let taken_over = pipe.taken_over_bytes();
        if nothing_waited || taken_over > self.taken_over_bytes {
            self.taken_over_bytes = taken_over;
            self.taken_over_ms = moment.now_ms;
        }
    }

    /// Bytes arrived.
    pub(crate) fn received(&mut self, app: &mut dyn Application, bytes: &[u8]) {
        if self.is_over {
            return;
        }
        if let Engine::Unknown(said) = &mut self.engine {
            said.extend_from_slice(bytes);
            let told = said.len().min(PREFACE.len());
            let is_http2 = said[..told] == PREFACE[..told];
            if is_http2 && told < PREFACE.len() {
                self.begin_head();
                return;
            }
            let said = std::mem::take(said);
            if let Some(detail) = foreign(&said, "HTTP") {
                self.pipe.borrow_mut().write(NOT_HTTP);
                return self.end(app, Fault::Violation, "400", &detail);
            }
            self.engine = if is_http2 { self.http2() } else { self.http1() };
            self.push(app, &said);
        } else {
            if matches!(self.engine, Engine::Resting) {
                self.engine = self.http1();
            }
            self.push(app, bytes);
        }
        if self.is_over {
            return;
        }
        let (before, is_content) = {
            let hall = self.hall.borrow();
            (hall.requests, hall.lasting > 0)
        };
        self.settle(app);
        let hall = self.hall.borrow();
        if hall.requests != before || matches!(self.engine, Engine::Http2(_)) {
            self.head_deadline_ms = None;
        } else if !is_content && hall.answers.is_empty() && self.pipe.borrow().has_room() {
            // Where there is no room the library has not looked: an earlier response is on its way. The end of a content
            // begins no head.
            drop(hall);
            self.begin_head();
        }
    }

    /// Gives bytes to the library, and looks at them before.
    fn push(&mut self, app: &mut dyn Application, bytes: &[u8]) {
        match self.engine {
            Engine::Http2(_) => {
                let limits = &self.limits;
                let most = (limits.max_control_frames.into(), limits.max_resets.into());
                if let Some(kind) = self.frames.look(bytes, self.now_ms, most) {
                    return self.end_calmly(app, kind.fault());
                }
            }
            Engine::Http1(_) => {
                let is_between = self.is_between_requests();
                let mut hall = self.hall.borrow_mut();
                if is_between {
                    let next = hall.requests;
                    hall.targets.go_on(next);
                }
                hall.targets.look(bytes);
            }
            Engine::Unknown(_) | Engine::Resting => {}
        }
        self.pipe.borrow_mut().push(bytes);
    }

    /// There is a request.
    fn used(&mut self) {
        self.is_used = true;
        self.idle_deadline_ms = self.now_ms + self.limits.idle_timeout_ms;
        self.rest_ms = self.now_ms + REST_MS;
    }

    /// A head has begun, if none has.
    fn begin_head(&mut self) {
        let deadline_ms = self.now_ms + self.limits.fields_timeout_ms;
        self.head_deadline_ms.get_or_insert(deadline_ms);
    }

    /// The client has ended its side: it asks nothing more. In HTTP/1.1 what it has asked is answered to its end, and
    /// the library ends the connection behind that. HTTP/2 needs both sides.
    pub(crate) fn finished(&mut self, app: &mut dyn Application) {
        self.pipe.borrow_mut().end();
        self.settle(app);
        self.is_over |= !matches!(self.engine, Engine::Http1(_));
        if !self.is_over {
            self.keeps_open = true;
            self.probe();
            app.half_closed(self);
        }
    }

    /// Shows a client without an answer that its request is not forgotten. One that has closed both directions is
    /// found out by that: to its end alone it looks the same.
    fn probe(&self) {
        let hall = self.hall.borrow();
        let waits = |answer: &Rc<RefCell<Answer>>| answer.borrow().awaits_head();
        let mut pipe = self.pipe.borrow_mut();
        // Earlier answers are written as a whole where there is room: the library has one request at a time.
        if hall.answers.values().any(waits) && pipe.has_room() {
            pipe.write(CONTINUE);
        }
    }

    /// There is room again.
    pub(crate) fn writable(&mut self, app: &mut dyn Application) {
        if std::mem::take(&mut self.is_full) {
            app.writable(self);
        }
    }

    /// When `timeout` wants to be called.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        if self.is_over {
            return None;
        }
        let hall = self.hall.borrow();
        let idle_ms = hall.answers.is_empty().then_some(self.idle_deadline_ms);
        let rest_ms = (idle_ms.is_some() && matches!(self.engine, Engine::Http1(_)))
            .then_some(self.rest_ms)
            .filter(|rest_ms| *rest_ms > self.now_ms);
        let answers = hall.answers.values();
        let contents = answers.filter_map(|answer| answer.borrow().deadline_ms);
        let own = [self.head_deadline_ms, idle_ms, rest_ms, self.stalled_ms()];
        contents.chain(own.into_iter().flatten()).min()
    }

    /// When the connection is cut off because the client takes nothing of what waits for it. The
    /// application cannot see that of a response that the library has taken over.
    fn stalled_ms(&self) -> Option<u64> {
        let waits = self.pipe.borrow().unsent_bytes() > 0;
        waits.then(|| self.taken_over_ms + self.limits.stalled_timeout_ms)
    }

    /// Ends requests that come too slowly, and a connection that nobody uses.
    pub(crate) fn timeout(&mut self, app: &mut dyn Application) {
        let now_ms = self.now_ms;
        let is_due = |deadline_ms: Option<u64>| deadline_ms.is_some_and(|due_ms| due_ms <= now_ms);
        if is_due(self.head_deadline_ms) {
            self.head_deadline_ms = None;
            self.pipe.borrow_mut().write(TOO_SLOW);
            self.end(app, Fault::Slow, "408", "a head that comes too slowly");
            return;
        }
        if is_due(self.stalled_ms()) {
            self.end(app, Fault::Slow, "stalled", "the client takes nothing");
            return;
        }
        let hall = self.hall.borrow();
        for answer in hall.answers.values() {
            let mut answer = answer.borrow_mut();
            if is_due(answer.deadline_ms) {
                answer.deadline_ms = None;
                answer.is_late = true;
                answer.wake();
            }
        }
        let is_idle = hall.answers.is_empty() && self.idle_deadline_ms <= now_ms;
        drop(hall);
        if is_idle {
            self.leave(app);
        } else if self.rest_ms <= now_ms {
            // There may be room that the library does not know of yet.
            self.settle(app);
            self.rest();
        }
    }

    /// Whether it is certain that the library stands between two requests.
    fn is_between_requests(&self) -> bool {
        self.head_deadline_ms.is_none()
            && self.hall.borrow().is_between_requests()
            && self.pipe.borrow().is_idle()
    }

    /// Gives the library's buffers back, where it is certain that it stands between two requests.
    fn rest(&mut self) {
        if self.is_over || !self.is_between_requests() {
            return;
        }
        self.engine = match std::mem::replace(&mut self.engine, Engine::Resting) {
            Engine::Http1(connection) => {
                let read = connection.into_parts().read_buf;
                if read.is_empty() {
                    Engine::Resting
                } else {
                    // The next request has begun behind the last one.
                    self.begin_head();
                    self.pipe.borrow_mut().push(&read);
                    self.http1()
                }
            }
            other => other,
        };
    }

    /// Lets the application end what is open, and ends the connection.
    pub(crate) fn stop(&mut self, app: &mut dyn Application) {
        app.stop(self);
        self.leave(app);
    }

    /// Says goodbye, and ends the connection.
    fn leave(&mut self, app: &mut dyn Application) {
        match &mut self.engine {
            Engine::Unknown(_) | Engine::Resting => {}
            Engine::Http1(connection) => Pin::new(&mut **connection).graceful_shutdown(),
            Engine::Http2(connection) => connection.as_mut().graceful_shutdown(),
        }
        self.flag.raise();
        self.settle(app);
        self.is_over = true;
    }

    /// Ends the connection of a client that costs too much, and says so where the version has a word for it.
    fn end_calmly(&mut self, app: &mut dyn Application, detail: &str) {
        if matches!(self.engine, Engine::Http2(_)) {
            self.pipe.borrow_mut().write(TOO_MUCH);
        }
        self.end(app, Fault::Limit, "ENHANCE_YOUR_CALM", detail);
    }

    /// Ends the connection because of what the client did.
    fn end(&mut self, app: &mut dyn Application, fault: Fault, code: &str, detail: &str) {
        app.turned_away(fault, code, detail);
        self.is_over = true;
    }

    /// Lets the library work, and the application, until both have nothing to do.
    pub(crate) fn settle(&mut self, app: &mut dyn Application) {
        loop {
            let is_busy = self.poll(app) | self.tasks.poll();
            let told = self.hall.borrow_mut().told.pop_front();
            let is_relieved = std::mem::take(&mut self.hall.borrow_mut().is_relieved);
            match told {
                Some(told) => self.tell(app, told),
                None if is_relieved => {}
                None if is_busy => continue,
                None => break,
            }
            if is_relieved {
                app.writable(self);
            }
        }
        self.hall.borrow().check();
        if !self.hall.borrow().answers.is_empty() {
            self.used();
        }
    }

    /// Polls the connection, if it is to be polled; whether it was.
    fn poll(&mut self, app: &mut dyn Application) -> bool {
        let is_there = matches!(self.engine, Engine::Http1(_) | Engine::Http2(_));
        if self.is_over || !is_there || !self.flag.lower() {
            return false;
        }
        let waker = Waker::from(Arc::clone(&self.flag));
        let mut cx = Context::from_waker(&waker);
        let polled = match &mut self.engine {
            Engine::Unknown(_) | Engine::Resting => return false,
            Engine::Http1(connection) => Pin::new(&mut **connection).poll(&mut cx),
            Engine::Http2(connection) => connection.as_mut().poll(&mut cx),
        };
        if let Poll::Ready(result) = polled {
            if let Err(error) = result {
                tracing::debug!(connection = ?self.id, %error, "ended");
                // Before the application hears that its requests are gone.
                if let Some((fault, code)) = fault_of(&error) {
                    let pipe = self.pipe.borrow();
                    let detail = detail_of(&error, |text| pipe.has_said(text));
                    drop(pipe);
                    app.turned_away(fault, &code, &detail);
                }
            }
            self.is_over = true;
        }
        true
    }

    fn tell(&mut self, app: &mut dyn Application, told: Told) {
        self.used();
        match told {
            Told::Request(id, head, content) => {
                let request = Request {
                    id,
                    head: Head::Tcp(head),
                    content,
                    early: false,
                };
                app.request(self, request);
            }
            Told::Refused(id, head, refusal) => {
                let head = Head::Tcp(head);
                app.refuse(self, id, &head, refusal);
            }
            Told::Gone(id) => {
                app.gone(self, id);
                self.count_reset(app);
            }
            Told::Abandoned => self.count_reset(app),
        }
    }

    /// Counts a request that was given up before it was answered in full.
    fn count_reset(&mut self, app: &mut dyn Application) {
        let most = u64::from(self.limits.max_resets);
        let back = beneath::come_back(&mut self.resets_ms, self.now_ms, most);
        self.resets = self.resets.saturating_sub(back);
        self.resets += 1;
        if self.resets > most {
            self.end_calmly(app, TOO_MANY_RESETS);
        }
    }

    /// Hands over what the step has written; returns how many bytes it were.
    pub(crate) fn flush(&mut self, net: &mut dyn Network, is_paced: bool) -> u64 {
        if std::mem::take(&mut self.keeps_open) {
            net.keep_half_closed(self.id);
        }
        self.pipe.borrow_mut().flush(net, self.id, is_paced)
    }

    /// Bytes of contents of which parts have arrived, and of what the library has not taken yet.
    pub(crate) fn partial_bytes(&self) -> usize {
        self.hall.borrow().assembling_bytes + self.pipe.borrow().held_bytes()
    }

    /// The code to close the connection with, once it is over.
    pub(crate) fn close_code(&self) -> Option<u64> {
        self.is_over.then_some(0)
    }

    /// The answer to a request that is open.
    fn answer(&self, id: ExchangeId) -> Option<Rc<RefCell<Answer>>> {
        self.hall.borrow().answers.get(&id.0).map(Rc::clone)
    }

    /// The application is done with a request.
    fn forget(&self, id: ExchangeId) {
        self.hall.borrow_mut().answers.remove(&id.0);
    }
}

/// The reason in words for which the library has ended a client's connection. Its error leaves out what its last frame says:
/// `said` is whether that ends with a text. The limits that it holds are settings.
fn detail_of(error: &hyper::Error, said: impl Fn(&[u8]) -> bool) -> String {
    if said(b"too_many_resets") || said(b"too_many_internal_resets") {
        return TOO_MANY_RESETS.to_owned();
    }
    error.to_string()
}

/// The fault for which the library has ended a client's connection, and the code that it was told. `None` where it was not
/// the client's fault, or the client has ended the connection itself.
fn fault_of(error: &hyper::Error) -> Option<(Fault, String)> {
    if error.is_parse() {
        return Some((Fault::Violation, "400".to_owned()));
    }
    let cause = error.source()?.downcast_ref::<h2::Error>()?;
    if cause.is_remote() || cause.is_io() {
        return None;
    }
    let reason = cause.reason()?;
    let fault = match reason {
        h2::Reason::NO_ERROR | h2::Reason::INTERNAL_ERROR => return None,
        h2::Reason::ENHANCE_YOUR_CALM => Fault::Limit,
        _ => Fault::Violation,
    };
    Some((fault, format!("{reason:?}")))
}
