//! HTTP/3: our engine on a QUIC connection.
//!
//! A connection has no driver: the waiter for a response reads its stream and passes the bytes to
//! the engine. Only the streams that the server opens have a task, of which the control stream
//! lasts as long as the connection.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use bytes::Bytes;
use quinn::{ReadError, RecvStream, SendStream, VarInt, WriteError};
use sterna_h3::{
    Chunk, Connection, Content, ErrorCode, Event, Features, Field, Limits, Output, RequestLine,
    Scope, Settings, StreamId, Violation,
};
use tokio::sync::watch;

use super::upload::Upload;
use super::{LinkError, OutgoingRequest, Progress, Response};
use crate::error::ConnectError;
use crate::http::options::Options;
use crate::path::PathStatistics;
use crate::transport::Quic;
use crate::transport::memory::Memory;
use crate::transport::quic::{self, EarlyData};

/// Largest piece that is read of a stream at once, in bytes.
const READ_BYTES: usize = 65_536;

/// The SETTINGS of servers, for requests in early data (RFC 9114, section 7.2.4.2).
static SETTINGS: Memory<Settings> = Memory::new();

/// Where a connection stands.
#[derive(Clone, Debug)]
struct State {
    /// Whether the handshake is not complete yet.
    is_early: bool,
    /// The first request that the server does not process any more (GOAWAY).
    refused_from: Option<StreamId>,
}

/// The engine, and what belongs to it.
struct Engine {
    connection: Connection,
    /// The control stream, which lasts.
    _control: SendStream,
    /// Early data that is not taken makes everything begin anew, with the same numbers of streams.
    generation: u32,
}

/// A connection.
pub(in crate::http) struct H3 {
    connection: quinn::Connection,
    quic: Mutex<Quic>,
    engine: Mutex<Engine>,
    /// A stream that was opened for a request that could not be sent. Streams are opened in the order
    /// of the engine's numbers, so that one at a time does it.
    spare: tokio::sync::Mutex<Option<(SendStream, RecvStream)>>,
    state: watch::Sender<State>,
    authority: String,
    /// Whether this end takes datagrams.
    takes_datagrams: bool,
    is_corked: AtomicBool,
    is_authenticated: AtomicBool,
    opened: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Actions on the stream of a command.
#[derive(Default)]
struct Actions {
    writes: Vec<Bytes>,
    fin: bool,
    reset: Option<ErrorCode>,
    stop: Option<ErrorCode>,
}

impl Output for Actions {
    fn write(&mut self, _: StreamId, bytes: &[u8]) {
        self.writes.push(Bytes::copy_from_slice(bytes));
    }

    fn write_shared(&mut self, _: StreamId, bytes: Bytes) {
        self.writes.push(bytes);
    }

    fn finish(&mut self, _: StreamId) {
        self.fin = true;
    }

    fn reset(&mut self, _: StreamId, code: ErrorCode) {
        self.reset = Some(code);
    }

    fn stop(&mut self, _: StreamId, code: ErrorCode) {
        self.stop = Some(code);
    }

    fn datagram(&mut self, _: &[u8]) -> bool {
        false
    }
}

fn code(code: ErrorCode) -> VarInt {
    VarInt::from_u64(code.0).unwrap_or(VarInt::MAX)
}

fn stream_id(id: quinn::StreamId) -> StreamId {
    StreamId(id.into())
}

/// Opens the engine's end of a connection.
async fn open_engine(
    connection: &quinn::Connection,
    remembered: Option<Settings>,
    generation: u32,
) -> Result<Engine, LinkError> {
    let mut actions = Actions::default();
    let engine = Connection::client(
        &Limits::default(),
        Features::default(),
        remembered,
        &mut actions,
    );
    let mut control = connection.open_uni().await.map_err(LinkError::lost)?;
    for bytes in actions.writes {
        control.write_chunk(bytes).await.map_err(LinkError::lost)?;
    }
    Ok(Engine {
        connection: engine,
        _control: control,
        generation,
    })
}

impl H3 {
    /// Opens this end of HTTP/3. Data waits for the first request if that can travel in early data.
    pub(super) async fn open(options: &Options, quic: Quic) -> Result<Arc<Self>, ConnectError> {
        let connection = quic.connection().clone();
        let is_early = quic.early_data() == EarlyData::Pending;
        let remembered = is_early.then(|| SETTINGS.recall(quic.url())).flatten();
        let engine = open_engine(&connection, remembered, 0).await.map_err(|_| {
            let reason = connection.close_reason().map(|reason| reason.to_string());
            ConnectError::Quic(reason.unwrap_or_else(|| "the connection was closed".to_owned()))
        })?;
        let state = State {
            is_early,
            refused_from: None,
        };
        let this = Arc::new(Self {
            connection: connection.clone(),
            takes_datagrams: options.quic.settings().datagram_buffer_bytes > 0,
            is_corked: AtomicBool::new(quic.is_corked()),
            quic: Mutex::new(quic),
            engine: Mutex::new(engine),
            spare: tokio::sync::Mutex::new(None),
            state: watch::Sender::new(state),
            authority: options.authority(),
            is_authenticated: AtomicBool::new(false),
            opened: Instant::now(),
        });
        if !is_early {
            lock(&this.quic).remember();
        }
        tokio::spawn(keep(connection, Arc::downgrade(&this)));
        Ok(this)
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }

    pub(super) fn is_alive(&self) -> bool {
        self.connection.close_reason().is_none() && self.state.borrow().refused_from.is_none()
    }

    pub(super) fn is_early(&self) -> bool {
        self.state.borrow().is_early
    }

    pub(super) fn early_data(&self) -> EarlyData {
        lock(&self.quic).early_data()
    }

    pub(super) fn is_authenticated(&self) -> bool {
        self.is_authenticated.load(Ordering::Relaxed)
    }

    pub(super) fn set_authenticated(&self, authenticated: bool) {
        self.is_authenticated
            .store(authenticated, Ordering::Relaxed);
    }

    pub(super) fn statistics(&self) -> PathStatistics {
        lock(&self.quic).statistics()
    }

    fn uncork(&self) {
        if self.is_corked.swap(false, Ordering::Relaxed) {
            lock(&self.quic).uncork();
        }
    }

    /// Waits until the handshake is complete, having nothing more to send with it.
    pub(super) async fn established(&self) -> Result<(), LinkError> {
        self.uncork();
        self.handshake().await
    }

    /// Waits until the handshake is complete.
    pub(super) async fn handshake(&self) -> Result<(), LinkError> {
        let mut state = self.state.subscribe();
        tokio::select! {
            biased;
            _ = state.wait_for(|state| !state.is_early) => Ok(()),
            error = self.connection.closed() => Err(LinkError::lost(error)),
        }
    }

    pub(super) fn give_up(&self) {
        self.uncork();
        self.connection.close(code(ErrorCode::H3_NO_ERROR), b"");
        if self.is_early() {
            lock(&self.quic).forget();
        }
    }

    pub(super) async fn close(&self) {
        if self.is_early() {
            lock(&self.quic).forget();
        } else {
            lock(&self.quic).remember();
        }
        self.uncork();
        quic::close(&self.connection, code(ErrorCode::H3_NO_ERROR)).await;
    }

    /// Sends a request: where it is small its head, content and end leave in one packet.
    pub(super) async fn send(
        self: &Arc<Self>,
        outgoing: &OutgoingRequest<'_>,
    ) -> Result<Response, LinkError> {
        outgoing.progress.note();
        let mut exchange = self.open_exchange(outgoing).await?;
        exchange.write_all(&outgoing.progress).await?;
        self.uncork();
        exchange.response().await
    }

    async fn open_exchange(
        self: &Arc<Self>,
        outgoing: &OutgoingRequest<'_>,
    ) -> Result<Exchange, LinkError> {
        let mut spare = self.spare.lock().await;
        let (send, receive) = match spare.take() {
            Some(streams) => streams,
            None => self.connection.open_bi().await.map_err(LinkError::lost)?,
        };
        let line = RequestLine::https(outgoing.method, &self.authority, outgoing.target);
        let mut fields: Vec<_> = outgoing
            .fields
            .iter()
            .map(|(name, value)| Field::new(name, value))
            .collect();
        if let Some(credentials) = outgoing.credentials {
            fields.push(Field::secret("authorization", credentials));
        }
        let content = match outgoing.content.len() {
            0 => Content::Empty,
            _ => Content::Shared(outgoing.content.clone()),
        };
        let mut actions = Actions::default();
        let (requested, generation) = {
            let mut engine = lock(&self.engine);
            let requested = engine
                .connection
                .request(&line, &fields, content, &mut actions);
            (requested, engine.generation)
        };
        let id = match requested {
            Ok(id) => id,
            Err(error) => {
                *spare = Some((send, receive));
                return Err(match error {
                    sterna_h3::CommandError::GoingAway | sterna_h3::CommandError::Closed => {
                        LinkError::Undone("the connection takes no further request")
                    }
                    error => LinkError::Command(error),
                });
            }
        };
        if id != stream_id(send.id()) {
            // Early data was refused this very moment: the numbers have begun anew.
            drop(spare);
            self.give_up();
            return Err(LinkError::Undone("the connection began anew"));
        }
        Ok(Exchange {
            link: Arc::clone(self),
            id,
            generation,
            send,
            receive,
            actions,
            state: self.state.subscribe(),
            arrived: VecDeque::new(),
            is_complete: false,
        })
    }

    /// Hands what came on a stream to the engine, and says what it was.
    fn receive(
        &self,
        chunk: &mut Chunk<'_>,
        actions: &mut Actions,
        mut tell: impl FnMut(Event<'_>),
    ) -> Result<(), Violation> {
        let now_ms = self.now_ms();
        let mut engine = lock(&self.engine);
        let connection = &mut engine.connection;
        let result = loop {
            match connection.receive(chunk, now_ms, actions) {
                Ok(Some(event)) => {
                    if !self.note(&event) {
                        tell(event);
                    }
                }
                Ok(None) => break Ok(()),
                Err(violation) => break Err(violation),
            }
        };
        while let Some(event) = connection.next_event() {
            if !self.note(&event) {
                tell(event);
            }
        }
        drop(engine);
        if let Err(violation) = &result
            && violation.scope == Scope::Connection
        {
            let detail = violation.detail.as_bytes();
            self.connection.close(code(violation.code), detail);
        }
        result
    }

    /// Notes what concerns the connection.
    fn note(&self, event: &Event<'_>) -> bool {
        match event {
            Event::Settings(settings) if settings.datagrams && self.lacks_datagrams() => {
                let detail = b"SETTINGS_H3_DATAGRAM without max_datagram_frame_size";
                self.connection
                    .close(code(ErrorCode::H3_SETTINGS_ERROR), detail);
                true
            }
            Event::Settings(settings) => {
                SETTINGS.remember(lock(&self.quic).url(), *settings);
                true
            }
            Event::GoAway { id } => {
                self.state
                    .send_modify(|state| state.refused_from = Some(*id));
                true
            }
            _ => false,
        }
    }

    /// Whether this end takes datagrams, and the server has said in the handshake that it takes none
    /// (RFC 9297, section 2.1.1).
    fn lacks_datagrams(&self) -> bool {
        self.takes_datagrams && self.connection.max_datagram_size().is_none()
    }

    /// Begins anew, because the server did not take the early data.
    async fn begin_anew(&self) -> Result<(), LinkError> {
        let mut spare = self.spare.lock().await;
        *spare = None;
        let generation = lock(&self.engine).generation + 1;
        let engine = open_engine(&self.connection, None, generation).await?;
        *lock(&self.engine) = engine;
        Ok(())
    }
}

impl Drop for H3 {
    fn drop(&mut self) {
        self.connection.close(code(ErrorCode::H3_NO_ERROR), b"");
    }
}

impl fmt::Debug for H3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("H3").finish_non_exhaustive()
    }
}

/// Waits for the end of the handshake, and then takes what streams the server opens.
async fn keep(connection: quinn::Connection, link: Weak<H3>) {
    if let Some(early) = link.upgrade().filter(|link| link.is_early()) {
        drop(early);
        let verdict = std::future::poll_fn(|cx| match link.upgrade() {
            Some(link) => lock(&link.quic).poll_handshake(cx),
            None => std::task::Poll::Ready(Err(ConnectError::Quic("given up".to_owned()))),
        });
        let verdict = verdict.await;
        let Some(link) = link.upgrade() else { return };
        match verdict {
            Ok(EarlyData::Rejected) => {
                if link.begin_anew().await.is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(_) => return,
        }
        lock(&link.quic).remember();
        link.state.send_modify(|state| state.is_early = false);
    }
    while let Ok(stream) = connection.accept_uni().await {
        tokio::spawn(listen(stream, Weak::clone(&link)));
    }
    if let Some(link) = link.upgrade() {
        lock(&link.quic).remember();
    }
}

/// Reads a stream that the server opened.
async fn listen(mut stream: RecvStream, link: Weak<H3>) {
    let id = stream_id(stream.id());
    loop {
        let read = stream.read_chunk(READ_BYTES, true).await;
        let Some(link) = link.upgrade() else { return };
        let (bytes, fin) = match read {
            Ok(Some(chunk)) => (chunk.bytes, false),
            Ok(None) => (Bytes::new(), true),
            Err(ReadError::Reset(reset)) => {
                let reset = ErrorCode(reset.into_inner());
                let now_ms = link.now_ms();
                let mut actions = Actions::default();
                let mut engine = lock(&link.engine);
                if let Err(violation) =
                    engine
                        .connection
                        .peer_reset(id, reset, now_ms, &mut actions)
                {
                    let detail = violation.detail.as_bytes();
                    link.connection.close(code(violation.code), detail);
                }
                return;
            }
            Err(_) => return,
        };
        let mut chunk = Chunk {
            fin,
            ..Chunk::new(id, &bytes)
        };
        let mut actions = Actions::default();
        let result = link.receive(&mut chunk, &mut actions, |_| ());
        if let Some(stop) = actions.stop {
            // An error says that the stream has ended before.
            let _ = stream.stop(code(stop));
            return;
        }
        if fin || result.is_err() {
            return;
        }
    }
}

/// A received part of a response.
enum Piece {
    Head(sterna_h3::ResponseHead),
    Content(Bytes),
}

/// A request and its response. When it goes away before the response is complete, the request is
/// cancelled.
pub(in crate::http) struct Exchange {
    link: Arc<H3>,
    id: StreamId,
    generation: u32,
    send: SendStream,
    receive: RecvStream,
    actions: Actions,
    state: watch::Receiver<State>,
    arrived: VecDeque<Piece>,
    is_complete: bool,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Exchange {
    async fn write_all(&mut self, progress: &Progress) -> Result<(), LinkError> {
        for bytes in std::mem::take(&mut self.actions.writes) {
            let mut upload = Upload::new(bytes, progress.clone());
            while let Some(piece) = upload.next() {
                match self.send.write_chunk(piece).await {
                    Ok(()) => {}
                    // The server has answered without the rest, or the stream says why it did not.
                    Err(WriteError::Stopped(_) | WriteError::ClosedStream) => return Ok(()),
                    Err(WriteError::ZeroRttRejected) => return Err(LinkError::EarlyData),
                    Err(WriteError::ConnectionLost(reason)) => return Err(LinkError::lost(reason)),
                }
            }
        }
        progress.note();
        if self.actions.fin {
            // An error says that the server reads no further.
            let _ = self.send.finish();
        }
        Ok(())
    }

    /// The head of the response, behind those that come before it.
    async fn response(mut self) -> Result<Response, LinkError> {
        loop {
            while let Some(piece) = self.arrived.pop_front() {
                let Piece::Head(head) = piece else { continue };
                if head.is_interim() {
                    continue;
                }
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                return Ok(Response {
                    status: head.status(),
                    fields: head
                        .iter()
                        .map(|field| (text(field.name), field.value.to_vec()))
                        .collect(),
                    body: super::Body::H3(self),
                });
            }
            self.read().await?;
        }
    }

    /// The next piece of the content; `None` at its end.
    pub(super) async fn content(&mut self) -> Result<Option<Bytes>, LinkError> {
        loop {
            while let Some(piece) = self.arrived.pop_front() {
                if let Piece::Content(bytes) = piece {
                    return Ok(Some(bytes));
                }
            }
            if self.is_complete {
                return Ok(None);
            }
            self.read().await?;
        }
    }

    /// Reads a piece of the stream.
    async fn read(&mut self) -> Result<(), LinkError> {
        if self.is_complete {
            return Err(LinkError::Protocol("a response without a head".to_owned()));
        }
        let refused = |state: &State| state.refused_from.is_some_and(|from| self.id >= from);
        let read = tokio::select! {
            biased;
            _ = self.state.wait_for(refused) => {
                return Err(LinkError::Undone("the server is going away"));
            }
            read = self.receive.read_chunk(READ_BYTES, true) => read,
        };
        let (bytes, fin) = match read {
            Ok(Some(chunk)) => (chunk.bytes, false),
            Ok(None) => (Bytes::new(), true),
            Err(ReadError::Reset(reset)) => {
                self.is_complete = true;
                return Err(match ErrorCode(reset.into_inner()) {
                    // Section 4.1.1: it was not processed.
                    ErrorCode::H3_REQUEST_REJECTED => {
                        LinkError::Undone("the server refused the request")
                    }
                    code => LinkError::lost(format!("the server gave the response up: {code}")),
                });
            }
            Err(ReadError::ZeroRttRejected) => return Err(LinkError::EarlyData),
            Err(ReadError::ConnectionLost(reason)) => return Err(LinkError::lost(reason)),
            Err(error) => return Err(LinkError::lost(error)),
        };
        self.take(&bytes, fin)
    }

    /// Hands a piece to the engine.
    fn take(&mut self, bytes: &Bytes, fin: bool) -> Result<(), LinkError> {
        let mut chunk = Chunk {
            fin,
            ..Chunk::new(self.id, bytes)
        };
        let Self {
            link,
            arrived,
            actions,
            is_complete,
            ..
        } = self;
        let result = link.receive(&mut chunk, actions, |event| match event {
            Event::Response { head, .. } => arrived.push_back(Piece::Head(head)),
            Event::Content { bytes: content, .. } => {
                arrived.push_back(Piece::Content(bytes.slice_ref(content)));
            }
            Event::End { .. } => *is_complete = true,
            // Trailers say nothing.
            _ => {}
        });
        result.map_err(|violation| LinkError::Protocol(violation.to_string()))?;
        if fin && !*is_complete {
            // The engine has given the stream up: GOAWAY came in between.
            return Err(LinkError::Undone("the server is going away"));
        }
        Ok(())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        let mut engine = lock(&self.link.engine);
        if engine.generation == self.generation {
            // An error says that the engine has given it up itself.
            let _ = engine.connection.cancel(
                self.id,
                ErrorCode::H3_REQUEST_CANCELLED,
                &mut self.actions,
            );
        }
        drop(engine);
        let why = code(ErrorCode::H3_REQUEST_CANCELLED);
        let _ = self.send.reset(why);
        let _ = self.receive.stop(why);
    }
}
