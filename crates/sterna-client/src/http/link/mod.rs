//! Connections to a broker: one of HTTP/3, one of HTTP/2, or some of HTTP/1.1, which look alike from
//! here on up.

mod h3;
mod io;
mod tcp;
mod upload;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sterna_h3::CommandError;
use tokio::time::Instant;

pub(super) use h3::H3;
pub(super) use tcp::{H1, H2, another_protocol};
pub(super) use upload::Progress;

use super::Version;
use super::options::Options;
use crate::error::ConnectError;
use crate::path::PathStatistics;
use crate::transport;
use crate::transport::quic::EarlyData;
use crate::url::{Scheme, Url};

/// Least time for HTTP/3's answer if the host has refused TCP. Its first datagram may have been
/// lost, and is sent again after a second (RFC 9002, section 6.2.2).
const LEAST_QUIC_PATIENCE: Duration = Duration::from_secs(2);

/// Why a request came to nothing.
#[derive(Clone, Debug)]
pub(super) enum LinkError {
    /// Nothing was done about it at the broker, for certain: it may be sent again.
    Undone(&'static str),
    /// It travelled in early data, which the broker did not take.
    EarlyData,
    /// No further connection came about.
    Connect(ConnectError),
    /// The connection, or the response, was cut off.
    Lost(Arc<std::io::Error>),
    /// No data within this time.
    Timeout(Duration),
    /// All connections that may be open are in use, and none became free within this time.
    NoRoom(Duration),
    /// The broker broke the protocol.
    Protocol(String),
    /// It cannot be sent.
    Command(CommandError),
}

impl LinkError {
    fn lost(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let error = error.into();
        let error = match transport::alert(&*error) {
            Some(alert) => std::io::Error::other(alert),
            None => std::io::Error::other(error),
        };
        Self::Lost(Arc::new(error))
    }
}

/// A request as it is sent.
#[derive(Clone, Debug)]
pub(super) struct OutgoingRequest<'a> {
    pub(super) method: &'static str,
    /// Path and query.
    pub(super) target: &'a str,
    pub(super) fields: &'a [(&'static str, &'a [u8])],
    /// The value of the field authorization.
    pub(super) credentials: Option<&'a [u8]>,
    pub(super) content: Bytes,
    pub(super) progress: Progress,
}

/// A response whose content has yet to come.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) fields: Vec<(String, Vec<u8>)>,
    pub(super) body: Body,
}

impl Response {
    /// The value of the first field of this name, which is in lower case.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.fields
            .iter()
            .find(|(its, _)| its == name)
            .map(|(_, value)| value.as_slice())
    }

    /// The same as text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }
}

/// Content of a response.
#[derive(Debug)]
pub(super) enum Body {
    H3(h3::Exchange),
    Tcp(tcp::Body),
}

impl Body {
    /// The next piece; `None` at the end. A call that is given up loses nothing.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, LinkError> {
        match self {
            Self::H3(exchange) => exchange.content().await,
            Self::Tcp(body) => body.next().await,
        }
    }
}

/// A connection. Clones are handles to the same one.
#[derive(Clone)]
pub(super) enum Link {
    H3(Arc<H3>),
    H2(Arc<H2>),
    H1(Arc<H1>),
}

impl Link {
    /// Connects as the options say.
    pub(super) async fn connect(options: &Arc<Options>) -> Result<Self, ConnectError> {
        let timeout = options.longest_connect();
        // The future of a connect is rare and large, so it is boxed: the futures around it are
        // neither.
        match tokio::time::timeout(timeout, Box::pin(connect(options))).await {
            Ok(result) => result,
            Err(_) => Err(ConnectError::timeout(timeout)),
        }
        .map_err(|error| error.at(&options.url))
    }

    pub(super) fn version(&self) -> Version {
        match self {
            Self::H3(_) => Version::Http3,
            Self::H2(_) => Version::Http2,
            Self::H1(_) => Version::Http11,
        }
    }

    /// Whether requests can be sent.
    pub(super) fn is_alive(&self) -> bool {
        match self {
            Self::H3(link) => link.is_alive(),
            Self::H2(link) => link.is_alive(),
            Self::H1(_) => true,
        }
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::H3(one), Self::H3(other)) => Arc::ptr_eq(one, other),
            (Self::H2(one), Self::H2(other)) => Arc::ptr_eq(one, other),
            (Self::H1(one), Self::H1(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Whether what is sent now leaves before the handshake is complete.
    pub(super) fn is_early(&self) -> bool {
        matches!(self, Self::H3(link) if link.is_early())
    }

    /// Waits until the handshake is complete. Data that waits to leave with it leaves.
    pub(super) async fn established(&self) -> Result<(), LinkError> {
        match self {
            Self::H3(link) => link.established().await,
            Self::H2(_) | Self::H1(_) => Ok(()),
        }
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn send(&self, outgoing: &OutgoingRequest<'_>) -> Result<Response, LinkError> {
        match self {
            Self::H3(link) => link.send(outgoing).await,
            Self::H2(link) => link.send(outgoing).await,
            Self::H1(link) => link.send(outgoing).await,
        }
    }

    /// Whether a request with credentials was answered, where that counts for the connection.
    pub(super) fn is_authenticated(&self) -> bool {
        matches!(self, Self::H3(link) if link.is_authenticated())
    }

    /// Notes what an answer says about that.
    pub(super) fn set_authenticated(&self, authenticated: bool) {
        if let Self::H3(link) = self {
            link.set_authenticated(authenticated);
        }
    }

    /// Takes the connection for lost.
    pub(super) fn give_up(&self) {
        match self {
            Self::H3(link) => link.give_up(),
            Self::H2(link) => link.give_up(),
            Self::H1(link) => link.give_up(),
        }
    }

    /// Takes the connection of a request for lost, and says whether that was the only one. Each request
    /// of HTTP/1.1 has one for itself.
    pub(super) fn give_up_request(&self) -> bool {
        if let Self::H1(link) = self {
            link.forget_idle();
            return false;
        }
        self.give_up();
        true
    }

    /// Ends the connection in order.
    pub(super) async fn close(&self) {
        match self {
            Self::H3(link) => link.close().await,
            _ => self.give_up(),
        }
    }

    pub(super) fn path(&self) -> Option<PathStatistics> {
        match self {
            Self::H3(link) => Some(link.statistics()),
            _ => None,
        }
    }

    pub(super) fn early_data(&self) -> EarlyData {
        match self {
            Self::H3(link) => link.early_data(),
            _ => EarlyData::NotTried,
        }
    }
}

async fn connect(options: &Arc<Options>) -> Result<Link, ConnectError> {
    let settings = options.transport();
    let url = &options.url;
    transport::warn_if_insecure(url, &settings);
    match url.scheme() {
        Scheme::H3 => Box::pin(connect_quic(options)).await,
        Scheme::Https if options.http3 => Box::pin(race(options)).await,
        _ => Box::pin(tcp::connect(options)).await,
    }
}

async fn connect_quic(options: &Arc<Options>) -> Result<Link, ConnectError> {
    let settings = options.transport();
    let addresses = transport::resolve(&options.url, options.bind).await?;
    let quic = transport::establish_quic(&h3_url(&options.url), &settings, addresses).await?;
    H3::open(options, quic).await.map(Link::H3)
}

/// The same place, by QUIC and nothing else.
fn h3_url(url: &Url) -> Url {
    let port = url.port();
    url.clone().with_scheme(Scheme::H3, Some(port))
}

/// HTTP/3, and after a head start TLS over TCP beside it: the first that stands (the idea of RFC
/// 8305). Where early data can be sent, that counts as standing; [`doubt`] looks after it. A certificate that is not
/// trusted ends both, since UDP that does not arrive says nothing for the whole time.
async fn race(options: &Arc<Options>) -> Result<Link, ConnectError> {
    let mut quic = Box::pin(connect_quic(options));
    let alone = Instant::now() + options.head_start;
    let quic_error = tokio::select! {
        biased;
        result = &mut quic => match result {
            Ok(link) => return Ok(link),
            Err(error) if error.is_untrusted() => return Err(error),
            Err(error) => Some(error),
        },
        () = tokio::time::sleep_until(alone) => None,
    };
    let mut tcp = Box::pin(tcp::connect(options));
    let (quic_error, tcp_error) = if let Some(error) = quic_error {
        (error, tcp.await)
    } else {
        tokio::select! {
            biased;
            result = &mut quic => match result {
                Ok(link) => return Ok(link),
                Err(error) if error.is_untrusted() => return Err(error),
                Err(error) => (error, tcp.await),
            },
            result = &mut tcp => match result {
                Ok(link) => return Ok(link),
                Err(error) if error.is_untrusted() => return Err(error),
                Err(error) => {
                    let patience = quic_patience(&error, alone);
                    match tokio::time::timeout(patience.unwrap_or(Duration::MAX), quic).await {
                        Ok(Ok(link)) => return Ok(link),
                        Ok(Err(quic_error)) => (quic_error, Err(error)),
                        Err(_) => (ConnectError::timeout(alone.elapsed()), Err(error)),
                    }
                }
            },
        }
    };
    let tcp_error = match tcp_error {
        Ok(link) => return Ok(link),
        Err(error) => error,
    };
    tracing::debug!(%quic_error, %tcp_error, "neither HTTP/3 nor HTTP over TCP");
    // A timeout says less than an error from the other transport.
    Err(match &quic_error {
        ConnectError::Timeout { .. } => tcp_error,
        ConnectError::Quic(text) if text.contains("timed out") => tcp_error,
        _ => quic_error,
    })
}

/// Further wait for HTTP/3 after TCP has failed. A refusal of TCP took a round trip, and QUIC's
/// answer takes one or two. `None` is as long as connecting may take.
fn quic_patience(error: &ConnectError, began: Instant) -> Option<Duration> {
    let is_refused = error.is_refused();
    is_refused.then(|| LEAST_QUIC_PATIENCE.max(4 * began.elapsed()))
}

/// For early data to a broker that UDP may not reach any more. Gives a connection over TCP, if one
/// stands before the handshake is complete.
pub(super) async fn doubt(options: &Arc<Options>, link: &Link) -> Option<Link> {
    if options.url.scheme() != Scheme::Https || !link.is_early() {
        return None;
    }
    tokio::select! {
        biased;
        _ = link.established_quietly() => return None,
        () = tokio::time::sleep(options.head_start) => {}
    }
    tokio::select! {
        biased;
        _ = link.established_quietly() => None,
        result = Box::pin(tcp::connect(options)) => result.ok(),
    }
}

impl Link {
    /// Waits until the handshake is complete. Requests that wait to leave with it go on waiting.
    pub(super) async fn established_quietly(&self) -> Result<(), LinkError> {
        match self {
            Self::H3(link) => link.handshake().await,
            Self::H2(_) | Self::H1(_) => Ok(()),
        }
    }
}
