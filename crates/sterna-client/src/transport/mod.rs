//! Byte streams to a broker, over each transport.
//!
//! [MQTT-4.2-1] Every transport gives the connection an ordered, lossless stream that can be read
//! and written. QUIC can open further ones. The bytes of one write leave in one segment, record,
//! frame or packet, as far as they fit. So CONNECT, SUBSCRIBE and the first PUBLISH travel
//! together.

pub(crate) mod carrier;
pub(crate) mod clear;
pub(crate) mod ending;
pub(crate) mod memory;
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

use clear::Clear;
pub(crate) use quic::{Quic, QuicStream, alert};

use crate::SocketSetup;
use crate::error::ConnectError;
use crate::link::LinkOptions;
use crate::tls;
use crate::url::Url;

/// Longest wait for one address before the next one is tried (RFC 8305 section 5: 250 ms).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Most addresses of one host that are tried.
const MAX_ADDRESSES: usize = 16;

/// The fault of a server that has read a request and closed the connection.
pub(crate) const NO_ANSWER: &str =
    "the server closed the connection without an answer: it may not speak HTTP on this port";

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
    /// Over TLS on TCP: nothing has left yet, because the first bytes travel as early data.
    is_early: bool,
}

impl Transport {
    /// Whether nothing has left yet, so that bytes that are written at once share the first packet with
    /// the handshake's start.
    pub(crate) fn holds_first_flight(&self) -> bool {
        self.is_early || self.quic.as_ref().is_some_and(Quic::is_corked)
    }

    /// A connection over QUIC with its control stream.
    pub(crate) async fn over(mut quic: Quic) -> Result<Self, ConnectError> {
        let control = poll_fn(|cx| quic.poll_open(quic::CONTROL_PRIORITY, cx)).await?;
        Ok(Self {
            control: Channel::Quic(Box::pin(control)),
            peer: quic.peer(),
            quic: Some(quic),
            is_early: false,
        })
    }
}

/// Makes connections in memory, in place of those of a network.
#[cfg(test)]
#[derive(Clone)]
pub(crate) struct Dial(
    pub(crate) Arc<dyn Fn() -> io::Result<tokio::io::DuplexStream> + Send + Sync>,
);

#[cfg(test)]
impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dial")
    }
}

#[cfg(test)]
impl Dial {
    fn connect(&self) -> Result<Transport, ConnectError> {
        Ok(Transport {
            control: Channel::Bytes(Box::pin((self.0)()?)),
            quic: None,
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            is_early: false,
        })
    }
}

/// Settings of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) link: LinkOptions,
    /// The keep-alive interval in seconds, from which QUIC's idle timeout follows; 0 for no keep
    /// alive.
    pub(crate) keep_alive_s: u16,
    /// Whether QUIC gives these signs itself, because the protocol above does not.
    pub(crate) quic_pings: bool,
    /// The largest packet or frame that is taken, which bounds a WebSocket frame.
    pub(crate) max_packet_bytes: usize,
}

/// Connects by the transport of the URL's scheme.
pub(crate) async fn connect(settings: &Settings) -> Result<Transport, ConnectError> {
    let (url, timeout) = (&settings.link.url, settings.link.longest_connect());
    match tokio::time::timeout(timeout, connect_untimed(url, settings)).await {
        Ok(result) => result,
        Err(_) => Err(ConnectError::timeout(timeout)),
    }
    .map_err(|error| error.at(url))
}

/// Warns that the server is not verified.
pub(crate) fn warn_if_insecure(url: &Url, settings: &Settings) {
    if settings.link.tls.insecure && url.scheme().is_encrypted() {
        tracing::warn!(
            %url,
            "the server is NOT verified: anyone on the path can read and change everything"
        );
    }
}

async fn connect_untimed(url: &Url, settings: &Settings) -> Result<Transport, ConnectError> {
    #[cfg(test)]
    if let Some(dial) = &settings.link.dial {
        return dial.connect();
    }
    warn_if_insecure(url, settings);
    let addresses = resolve(url, settings.link.bind).await?;
    if url.scheme().is_quic() {
        return Transport::over(establish_quic(url, settings, addresses).await?).await;
    }

    let (tcp, peer) = establish_tcp(settings, &addresses).await?;
    let encrypted = url.scheme().is_encrypted();
    let mut is_early = false;
    let control: Pin<Box<dyn Stream>> = if encrypted {
        let offered: Vec<&[u8]> = settings
            .link
            .tls
            .alpn
            .iter()
            .map(String::as_bytes)
            .collect();
        // A WebSocket's first bytes are a request, and the client waits for its answer.
        let may_be_early = settings.link.tls.early_data && !url.scheme().is_websocket();
        let tls = establish_tls(url, settings, &offered, tcp, may_be_early).await?;
        if url.scheme().is_websocket() {
            Box::pin(websocket::connect(url, tls, settings.max_packet_bytes).await?)
        } else {
            is_early = may_be_early && tls.get_ref().1.is_handshaking();
            Box::pin(tls)
        }
    } else if url.scheme().is_websocket() {
        let clear = Clear::new(tcp, url.scheme());
        Box::pin(websocket::connect(url, clear, settings.max_packet_bytes).await?)
    } else {
        Box::pin(Clear::new(tcp, url.scheme()))
    };
    Ok(Transport {
        control: Channel::Bytes(control),
        quic: None,
        peer,
        is_early,
    })
}

/// A TCP connection to one of the addresses, and that address. The socket itself may not know it yet:
/// with Fast Open it connects at the first write.
pub(crate) async fn establish_tcp(
    settings: &Settings,
    addresses: &[SocketAddr],
) -> Result<(TcpStream, SocketAddr), ConnectError> {
    let bind = settings.link.bind;
    first_of(addresses, move |address| {
        connect_tcp(address, bind, settings.link.socket_setup.clone())
    })
    .await
}

/// TLS over a TCP connection, with these protocols on offer. With `early_data`, and a ticket of a server
/// that permits it, the first bytes are written during the handshake.
pub(crate) async fn establish_tls(
    url: &Url,
    settings: &Settings,
    offered: &[&[u8]],
    tcp: TcpStream,
    early_data: bool,
) -> Result<TlsStream<TcpStream>, ConnectError> {
    let config = settings.link.tls.config(offered, early_data, None)?;
    let name = settings.link.tls.server_name(url.host())?;
    TlsConnector::from(config)
        .early_data(early_data)
        .connect(name, tcp)
        .await
        .map_err(|error| {
            let names_authorities = settings.link.tls.names_authorities();
            ConnectError::Handshake(tls::explain(&error, names_authorities))
        })
}

/// A connection over QUIC without a stream: at once, without having sent anything, where an earlier
/// connection left a ticket.
pub(crate) async fn establish_quic(
    url: &Url,
    settings: &Settings,
    mut addresses: Vec<SocketAddr>,
) -> Result<Quic, ConnectError> {
    let known = quic::memory::SERVERS.recall(url);
    let name = settings
        .link
        .tls
        .server_name(url.host())?
        .to_str()
        .into_owned();
    let attempt = quic::attempt(settings, name, url, known.as_ref())?;
    let known = known.map(|known| known.address);
    let known = known.and_then(|known| addresses.iter().position(|address| *address == known));
    let mut first = None;
    if let Some(at) = known {
        // Early data is for the address that answered before; another one may not even exist.
        addresses[..=at].rotate_right(1);
        if settings.link.early_data {
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

/// Tries the addresses in order: the next one if one fails or is silent for [`ATTEMPT_DELAY`].
/// Gives the first connection that stands (the idea of RFC 8305). The error is the first address's.
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

async fn connect_tcp(
    address: SocketAddr,
    bind: Option<IpAddr>,
    setup: Option<SocketSetup>,
) -> Result<(TcpStream, SocketAddr), ConnectError> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    if let Some(bind) = bind {
        socket.bind(SocketAddr::new(bind, 0))?;
    }
    // Each write is complete already, so a wait for more only costs a round trip.
    socket.set_nodelay(true)?;
    if let Some(setup) = setup {
        setup.apply(&socket)?;
    }
    Ok((socket.connect(address).await?, address))
}
