//! Byte streams to a broker, over each transport.
//!
//! [MQTT-4.2-1] Every transport gives the connection the same thing: an ordered, lossless stream
//! that can be read and written, and over QUIC the means to open more of them. What leaves in one
//! write here leaves in one segment, record, frame or packet as far as it fits, so CONNECT,
//! SUBSCRIBE and the first PUBLISH travel together.

pub(crate) mod ending;
pub(crate) mod outlet;
pub(crate) mod quic;
mod websocket;

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use sterna_quic::Overrides;

pub(crate) use quic::{Quic, QuicStream};

use crate::error::ConnectError;
use crate::tls::{self, Tls};
use crate::url::Url;

/// How long one address may keep the next one waiting (RFC 8305 section 5: 250 ms).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Most addresses of one host that are tried.
const MAX_ADDRESSES: usize = 16;

/// A stream in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Stream for T {}

/// A stream of one of the transports.
pub(crate) enum Channel {
    /// The only one of its connection.
    Bytes(Pin<Box<dyn Stream>>),
    /// One of QUIC's.
    Quic(Pin<Box<QuicStream>>),
}

impl Channel {
    fn stream(&mut self) -> Pin<&mut dyn Stream> {
        match self {
            Self::Bytes(stream) => stream.as_mut(),
            Self::Quic(stream) => stream.as_mut(),
        }
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buffer)
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, bytes)
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}

/// A connection to a broker before anything was said.
pub(crate) struct Transport {
    /// The stream that carries the start of the protocol; the only one but over QUIC.
    pub(crate) control: Channel,
    /// Over QUIC: the connection that the stream belongs to.
    pub(crate) quic: Option<Quic>,
    /// The address that answered.
    pub(crate) peer: SocketAddr,
}

/// How to connect, apart from where.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) tls: Tls,
    pub(crate) timeout: Duration,
    pub(crate) bind: Option<IpAddr>,
    /// The interval of signs of life in seconds, to which QUIC's idle timeout is fitted; 0 for none.
    pub(crate) keep_alive_s: u16,
    /// Whether QUIC gives these signs itself, because the protocol above does not.
    pub(crate) quic_pings: bool,
    /// The largest packet or frame that is taken, which bounds a WebSocket frame.
    pub(crate) max_packet_bytes: usize,
    /// Whether to write before QUIC's handshake is complete.
    pub(crate) early_data: bool,
    /// QUIC's own settings.
    pub(crate) quic: Overrides,
    /// Where QUIC's traces go.
    #[cfg(feature = "qlog")]
    pub(crate) qlog: Option<crate::Qlog>,
}

/// Connects to `url` by its scheme's transport.
pub(crate) async fn connect(url: &Url, settings: &Settings) -> Result<Transport, ConnectError> {
    match tokio::time::timeout(settings.timeout, connect_untimed(url, settings)).await {
        Ok(result) => result,
        Err(_) => Err(ConnectError::timeout(settings.timeout)),
    }
    .map_err(|error| error.at(url))
}

/// Says that nobody checks who the server is.
pub(crate) fn warn_if_insecure(url: &Url, settings: &Settings) {
    if settings.tls.insecure && url.scheme().is_encrypted() {
        tracing::warn!(
            %url,
            "the server is NOT verified: anyone on the path can read and change everything"
        );
    }
}

async fn connect_untimed(url: &Url, settings: &Settings) -> Result<Transport, ConnectError> {
    warn_if_insecure(url, settings);
    let addresses = resolve(url, settings.bind).await?;
    if url.scheme().is_quic() {
        return connect_quic(url, settings, addresses).await;
    }

    let tcp = establish_tcp(settings, &addresses).await?;
    let peer = tcp.peer_addr()?;
    let encrypted = url.scheme().is_encrypted();
    let control: Pin<Box<dyn Stream>> = if encrypted {
        let offered: Vec<&[u8]> = settings.tls.alpn.iter().map(String::as_bytes).collect();
        let tls = establish_tls(url, settings, &offered, tcp).await?;
        if url.scheme().is_websocket() {
            Box::pin(websocket::connect(url, tls, settings.max_packet_bytes).await?)
        } else {
            Box::pin(tls)
        }
    } else if url.scheme().is_websocket() {
        Box::pin(websocket::connect(url, tcp, settings.max_packet_bytes).await?)
    } else {
        Box::pin(tcp)
    };
    Ok(Transport {
        control: Channel::Bytes(control),
        quic: None,
        peer,
    })
}

/// A TCP connection to one of the addresses.
pub(crate) async fn establish_tcp(
    settings: &Settings,
    addresses: &[SocketAddr],
) -> Result<TcpStream, ConnectError> {
    let bind = settings.bind;
    first_of(addresses, move |address| connect_tcp(address, bind)).await
}

/// TLS over a TCP connection, with these protocols on offer.
pub(crate) async fn establish_tls(
    url: &Url,
    settings: &Settings,
    offered: &[&[u8]],
    tcp: TcpStream,
) -> Result<TlsStream<TcpStream>, ConnectError> {
    let config = settings.tls.config(offered, false, None)?;
    let name = settings.tls.server_name(url.host())?;
    TlsConnector::from(config)
        .connect(name, tcp)
        .await
        .map_err(|error| ConnectError::Handshake(tls::explain(&error)))
}

/// Connects over QUIC: at once, without having sent anything, where an earlier connection left a
/// ticket.
async fn connect_quic(
    url: &Url,
    settings: &Settings,
    addresses: Vec<SocketAddr>,
) -> Result<Transport, ConnectError> {
    quic_transport(establish_quic(url, settings, addresses).await?).await
}

/// The same without a stream.
pub(crate) async fn establish_quic(
    url: &Url,
    settings: &Settings,
    mut addresses: Vec<SocketAddr>,
) -> Result<Quic, ConnectError> {
    let known = quic::memory::recall(url.host(), url.port());
    let name = settings.tls.server_name(url.host())?.to_str().into_owned();
    let attempt = quic::attempt(settings, name, url, known.as_ref())?;
    let known = known.map(|known| known.address);
    let known = known.and_then(|known| addresses.iter().position(|address| *address == known));
    let mut first = None;
    if let Some(at) = known {
        // Early data is for the address that answered before; another one may not even exist.
        addresses[..=at].rotate_right(1);
        if settings.early_data {
            match attempt.clone().start(addresses[0])?.into_early() {
                Ok(quic) => return Ok(quic),
                Err(started) => first = Some(started),
            }
        }
    }
    let first = Mutex::new(first);
    let connecting = first_of(&addresses, |address| {
        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
        let started = match first.take() {
            Some(started) => Ok(*started),
            None => attempt.clone().start(address),
        };
        async move { started?.established().await }
    });
    connecting.await
}

async fn quic_transport(mut quic: Quic) -> Result<Transport, ConnectError> {
    let peer = quic.peer();
    let control = poll_fn(|cx| quic.poll_open(quic::CONTROL_PRIORITY, cx)).await?;
    Ok(Transport {
        control: Channel::Quic(Box::pin(control)),
        quic: Some(quic),
        peer,
    })
}

/// The addresses of a URL's host.
pub(crate) async fn resolve(
    url: &Url,
    bind: Option<IpAddr>,
) -> Result<Vec<SocketAddr>, ConnectError> {
    let failed = |error| ConnectError::Resolve {
        host: url.host().to_owned(),
        error: Arc::new(error),
    };
    let found = tokio::net::lookup_host((url.host(), url.port()))
        .await
        .map_err(failed)?;
    let addresses: Vec<_> = found
        .filter(|address| bind.is_none_or(|bind| bind.is_ipv4() == address.is_ipv4()))
        .take(MAX_ADDRESSES)
        .collect();
    if addresses.is_empty() {
        return Err(failed(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            "no address of the wanted family",
        )));
    }
    Ok(addresses)
}

/// Tries the addresses in order, the next one when one fails or keeps silent for [`ATTEMPT_DELAY`],
/// and gives the first connection that stands (the idea of RFC 8305). The error is the first
/// address's.
async fn first_of<T, F>(
    addresses: &[SocketAddr],
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, ConnectError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ConnectError>> + Send + 'static,
{
    let mut attempts = JoinSet::new();
    let mut first_error = None;
    let mut remaining = addresses.iter();
    loop {
        if let Some(address) = remaining.next() {
            attempts.spawn(attempt(*address));
        }
        let finished = if remaining.len() == 0 {
            attempts.join_next().await
        } else {
            match tokio::time::timeout(ATTEMPT_DELAY, attempts.join_next()).await {
                Ok(finished) => finished,
                Err(_) => continue,
            }
        };
        match finished {
            Some(Ok(Ok(connected))) => return Ok(connected),
            Some(Ok(Err(error))) => {
                first_error.get_or_insert(error);
            }
            Some(Err(failed)) => {
                first_error.get_or_insert_with(|| ConnectError::Socket(Arc::new(failed.into())));
            }
            None => {
                return Err(first_error.unwrap_or_else(|| {
                    ConnectError::Socket(Arc::new(io::ErrorKind::AddrNotAvailable.into()))
                }));
            }
        }
    }
}

async fn connect_tcp(address: SocketAddr, bind: Option<IpAddr>) -> Result<TcpStream, ConnectError> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    if let Some(bind) = bind {
        socket.bind(SocketAddr::new(bind, 0))?;
    }
    // What is written belongs together already, so waiting for more only costs a round trip.
    socket.set_nodelay(true)?;
    Ok(socket.connect(address).await?)
}
