//! HTTP/2 and HTTP/1.1, over TLS or in the clear.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::HeaderValue;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use super::io::{Io, Tasks};
use super::upload::Upload;
use super::{Link, LinkError, OutgoingRequest, Response};
use crate::error::ConnectError;
use crate::http::options::Options;
use crate::transport::{self, clear::Clear};
use crate::url::Scheme;

/// Protocols that ALPN offers.
const OFFERED: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// Largest list of fields that is taken of a response, in bytes.
const MAX_FIELDS_BYTES: u32 = 16_384;
/// The same for the head of a response of HTTP/1.1, which is read into one buffer.
const MAX_HEAD_BYTES: usize = 65_536;

/// Connects over TCP, with TLS where the URL says `https`.
pub(super) async fn connect(options: &Arc<Options>) -> Result<Link, ConnectError> {
    let settings = options.transport();
    let addresses = transport::resolve(&options.url, options.bind).await?;
    let (tcp, _) = transport::establish_tcp(&settings, &addresses).await?;
    if options.url.scheme() == Scheme::Http {
        let first = open_h1(Clear::new(tcp, Scheme::Http)).await?;
        return Ok(Link::H1(Arc::new(H1::new(options, first))));
    }
    let tls = transport::establish_tls(&options.url, &settings, &OFFERED, tcp, false).await?;
    if tls.get_ref().1.alpn_protocol() == Some(OFFERED[0]) {
        return H2::open(options, tls)
            .await
            .map(|h2| Link::H2(Arc::new(h2)));
    }
    let first = open_h1(tls).await?;
    Ok(Link::H1(Arc::new(H1::new(options, first))))
}

fn unusable(error: impl fmt::Display) -> ConnectError {
    ConnectError::Http(error.to_string())
}

/// A request as hyper has it.
fn request(
    options: &Options,
    authority: &str,
    outgoing: &OutgoingRequest<'_>,
    is_http2: bool,
) -> Result<http::Request<Upload>, LinkError> {
    let invalid = |_| LinkError::Protocol("a field or target that none may have".to_owned());
    let target = if is_http2 {
        let scheme = options.url.scheme();
        format!("{scheme}://{authority}{}", outgoing.target)
    } else {
        outgoing.target.to_owned()
    };
    let mut builder = http::Request::builder().method(outgoing.method).uri(target);
    if !is_http2 {
        builder = builder.header("host", authority);
    }
    for (name, value) in outgoing.fields {
        builder = builder.header(*name, *value);
    }
    if let Some(credentials) = outgoing.credentials {
        let mut value = HeaderValue::from_bytes(credentials)
            .map_err(|_| LinkError::Protocol("credentials that no field may have".to_owned()))?;
        value.set_sensitive(true);
        builder = builder.header("authorization", value);
    }
    let upload = Upload::new(outgoing.content.clone(), outgoing.progress.clone());
    builder.body(upload).map_err(invalid)
}

fn response(response: http::Response<Incoming>, lease: Option<Lease>) -> Response {
    let (head, content) = response.into_parts();
    Response {
        status: head.status.as_u16(),
        fields: head
            .headers
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
            .collect(),
        body: super::Body::Tcp(Body { content, lease }),
    }
}

/// An error of hyper whose text has its causes, which hyper's own text leaves out.
#[derive(Debug)]
struct Caused(hyper::Error);

impl fmt::Display for Caused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut cause = std::error::Error::source(&self.0);
        while let Some(error) = cause {
            let text = error.to_string();
            // Some texts have their cause already.
            if !last.contains(&text) {
                write!(f, ": {text}")?;
                last = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for Caused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// A sentence where the end of a connection says that the server speaks another protocol.
pub(in crate::http) fn another_protocol(error: &std::io::Error) -> Option<String> {
    let Caused(error) = error.get_ref()?.downcast_ref()?;
    if error.is_incomplete_message() {
        return Some(transport::NO_ANSWER.to_owned());
    }
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let io: Option<&std::io::Error> = error.downcast_ref();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::InvalidData) {
            return Some(error.to_string());
        }
        cause = error.source();
    }
    None
}

fn failed(error: hyper::Error) -> LinkError {
    if error.is_canceled() {
        // It was never written.
        LinkError::Undone("the connection was closed")
    } else if error.is_parse() {
        LinkError::Protocol(error.to_string())
    } else {
        LinkError::lost(Caused(error))
    }
}

/// The content of a response.
pub(in crate::http) struct Body {
    content: Incoming,
    /// Of HTTP/1.1: its connection, which is free after the last piece.
    lease: Option<Lease>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

impl Body {
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, LinkError> {
        loop {
            let frame = poll_fn(|cx| Pin::new(&mut self.content).poll_frame(cx)).await;
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) if bytes.is_empty() => {}
                    Ok(bytes) => return Ok(Some(bytes)),
                    // Trailers say nothing.
                    Err(_) => {}
                },
                Some(Err(error)) => {
                    self.lease = None;
                    return Err(LinkError::lost(Caused(error)));
                }
                None => {
                    if let Some(lease) = self.lease.take() {
                        lease.give_back();
                    }
                    return Ok(None);
                }
            }
        }
    }
}

/// An HTTP/2 connection.
pub(in crate::http) struct H2 {
    options: Arc<Options>,
    authority: String,
    sender: http2::SendRequest<Upload>,
    given_up: AtomicBool,
    task: AbortHandle,
}

impl Drop for H2 {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl H2 {
    async fn open(
        options: &Arc<Options>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let (sender, connection) = http2::Builder::new(Tasks)
            .max_header_list_size(MAX_FIELDS_BYTES)
            .handshake(Io(stream))
            .await
            .map_err(unusable)?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "HTTP/2 ended");
            }
        });
        Ok(Self {
            options: Arc::clone(options),
            authority: options.authority(),
            sender,
            given_up: AtomicBool::new(false),
            task: task.abort_handle(),
        })
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.sender.is_closed() && !self.given_up.load(Ordering::Relaxed)
    }

    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
        self.task.abort();
    }

    pub(super) async fn send(&self, outgoing: &OutgoingRequest<'_>) -> Result<Response, LinkError> {
        outgoing.progress.note();
        let request = request(&self.options, &self.authority, outgoing, true)?;
        let mut sender = self.sender.clone();
        sender.ready().await.map_err(failed)?;
        let answer = sender.send_request(request).await.map_err(failed)?;
        Ok(response(answer, None))
    }
}

/// A connection of HTTP/1.1 on which a request can be sent.
struct Idle {
    sender: http1::SendRequest<Upload>,
    task: AbortHandle,
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn open_h1(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Idle, ConnectError> {
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake(Io(stream))
        .await
        .map_err(unusable)?;
    let task = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "HTTP/1.1 ended");
        }
    });
    Ok(Idle {
        sender,
        task: task.abort_handle(),
    })
}

/// Connections of HTTP/1.1, each with one request at a time.
pub(in crate::http) struct H1 {
    options: Arc<Options>,
    authority: String,
    idle: Arc<Mutex<Vec<Idle>>>,
    /// Connections with a request under way, and some that are gone.
    leased: Mutex<Vec<AbortHandle>>,
    room: Arc<Semaphore>,
}

/// A connection with a request under way.
struct Lease {
    connection: Idle,
    pool: Arc<Mutex<Vec<Idle>>>,
    _room: OwnedSemaphorePermit,
}

impl Lease {
    /// The response is complete: the connection is free for the next request.
    fn give_back(self) {
        let Self {
            connection, pool, ..
        } = self;
        // The list has at most as many connections as were granted, so it stays short.
        pool.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(connection);
    }
}

impl H1 {
    fn new(options: &Arc<Options>, first: Idle) -> Self {
        Self {
            options: Arc::clone(options),
            authority: options.authority(),
            idle: Arc::new(Mutex::new(vec![first])),
            leased: Mutex::new(Vec::new()),
            room: Arc::new(Semaphore::new(options.max_connections)),
        }
    }

    /// Gives up connections without a request. Where one does not answer, these may be as dead.
    pub(super) fn forget_idle(&self) {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    pub(super) fn give_up(&self) {
        self.forget_idle();
        let mut leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        for connection in leased.drain(..) {
            connection.abort();
        }
    }

    /// Notes which connections have a request under way: no more than may be open.
    fn note_lease(&self, connection: &Idle) {
        let mut leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        leased.retain(|task| !task.is_finished() && task.id() != connection.task.id());
        leased.push(connection.task.clone());
    }

    /// A connection that is idle, else a new one.
    async fn lease(&self) -> Result<(Lease, bool), LinkError> {
        let timeout = self.options.response_timeout;
        let room = Arc::clone(&self.room).acquire_owned();
        let room = tokio::time::timeout(timeout, room).await;
        let room = room
            .map_err(|_| LinkError::NoRoom(timeout))?
            .map_err(|_| LinkError::Undone("the client has ended"))?;
        let lease = |connection| Lease {
            connection,
            pool: Arc::clone(&self.idle),
            _room: room,
        };
        loop {
            let idle = self
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop();
            match idle {
                // The broker may have closed it meanwhile.
                Some(idle) if idle.sender.is_closed() => {}
                Some(idle) => return Ok((lease(idle), true)),
                None => break,
            }
        }
        let timeout = self.options.longest_connect();
        let dialled = tokio::time::timeout(timeout, dial(&self.options)).await;
        let connection = dialled
            .unwrap_or(Err(ConnectError::timeout(timeout)))
            .map_err(|error| LinkError::Connect(error.at(&self.options.url)))?;
        Ok((lease(connection), false))
    }

    pub(super) async fn send(&self, outgoing: &OutgoingRequest<'_>) -> Result<Response, LinkError> {
        let request = request(&self.options, &self.authority, outgoing, false)?;
        let (mut lease, is_reused) = self.lease().await?;
        outgoing.progress.note();
        self.note_lease(&lease.connection);
        let sender = &mut lease.connection.sender;
        if sender.ready().await.is_err() {
            return Err(LinkError::Undone("the connection was closed"));
        }
        match sender.send_request(request).await {
            Ok(answer) => Ok(response(answer, Some(lease))),
            Err(error) if is_reused && error.is_canceled() => {
                Err(LinkError::Undone("the connection was closed while idle"))
            }
            Err(error) => Err(failed(error)),
        }
    }
}

/// One more connection.
async fn dial(options: &Arc<Options>) -> Result<Idle, ConnectError> {
    let settings = options.transport();
    let addresses = transport::resolve(&options.url, options.bind).await?;
    let (tcp, _) = transport::establish_tcp(&settings, &addresses).await?;
    if options.url.scheme() == Scheme::Http {
        return open_h1(Clear::new(tcp, Scheme::Http)).await;
    }
    let tls = transport::establish_tls(&options.url, &settings, &OFFERED[1..], tcp, false).await?;
    open_h1(tls).await
}
