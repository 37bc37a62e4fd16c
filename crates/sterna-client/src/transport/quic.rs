//! MQTT over QUIC: the first stream that the client opens carries CONNECT, further ones carry more
//! of the same session.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connection, Endpoint, IdleTimeout, RecvStream, SendStream, StoppedError,
    TransportConfig, VarInt,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Settings, Stream, explain_tls};
use crate::error::ConnectError;

/// The application protocol of MQTT over QUIC, as all brokers name it.
const ALPN: &[u8] = b"mqtt";
/// Shortest idle timeout, in seconds.
const MIN_IDLE_S: u64 = 30;
/// Time for the news of the end to leave. All data has arrived before, so nobody needs an answer.
const CLOSE_PAUSE: Duration = Duration::from_millis(2);
/// Application error code of an orderly end, as other brokers and clients use it.
const NO_ERROR: VarInt = VarInt::from_u32(0);

/// A QUIC connection to a broker. It has its own socket, so that it can move to another network
/// alone.
#[derive(Clone, Debug)]
pub(crate) struct Quic {
    endpoint: Endpoint,
    connection: Connection,
}

/// The configuration of QUIC for these settings, with the tickets of this process.
pub(super) fn client_config(settings: &Settings) -> Result<ClientConfig, ConnectError> {
    let tls = settings.tls.config(&[ALPN])?;
    let crypto = QuicClientConfig::try_from(tls)
        .map_err(|error| ConnectError::Quic(format!("no cipher for QUIC: {error}")))?;
    let mut config = ClientConfig::new(Arc::new(crypto));
    let mut transport = TransportConfig::default();
    // MQTT's keep alive finds a dead peer after 1.5 times its interval; QUIC must not be quicker,
    // and a client without keep alive sleeps as long as it wants.
    let idle_ms = match settings.keep_alive_s {
        0 => None,
        keep_alive_s => {
            let idle_ms = (3 * u64::from(keep_alive_s)).max(MIN_IDLE_S) * 1000;
            VarInt::from_u64(idle_ms).ok()
        }
    };
    transport.max_idle_timeout(idle_ms.map(IdleTimeout::from));
    // Streams of the server's own have no meaning under ALPN `mqtt`, nor have datagrams.
    transport.max_concurrent_bidi_streams(0_u8.into());
    transport.max_concurrent_uni_streams(0_u8.into());
    transport.datagram_receive_buffer_size(None);
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// Connects to one address.
pub(super) async fn connect(
    config: ClientConfig,
    address: SocketAddr,
    name: String,
    bind: Option<IpAddr>,
) -> Result<Quic, ConnectError> {
    let any: IpAddr = if address.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let endpoint = Endpoint::client(SocketAddr::new(bind.unwrap_or(any), 0))?;
    let connecting = endpoint
        .connect_with(config, address, &name)
        .map_err(|error| ConnectError::Quic(error.to_string()))?;
    let connection = connecting
        .await
        .map_err(|error| ConnectError::Quic(explain_tls(&error)))?;
    Ok(Quic {
        endpoint,
        connection,
    })
}

impl Quic {
    /// The address that answered.
    pub(super) fn peer(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// Opens a stream in both directions; waits while the server allows no more.
    pub(crate) async fn open(&self) -> Result<Pin<Box<dyn Stream>>, ConnectError> {
        let (send, receive) = self
            .connection
            .open_bi()
            .await
            .map_err(|error| ConnectError::Quic(error.to_string()))?;
        Ok(Box::pin(QuicStream {
            send,
            receive,
            delivered: None,
        }))
    }

    /// Moves the connection to a new local port, as a change of network would.
    pub(crate) fn rebind(&self) -> io::Result<()> {
        let mut address = self.endpoint.local_addr()?;
        address.set_port(0);
        self.endpoint.rebind(std::net::UdpSocket::bind(address)?)
    }

    /// Ends the connection. What was written to a stream that was not shut down may be lost.
    pub(crate) async fn close(self) {
        self.connection.close(NO_ERROR, b"");
        // The packet is sent by quinn's own task, which only needs its turn.
        tokio::time::sleep(CLOSE_PAUSE).await;
    }
}

/// The future of [`SendStream::stopped`].
type Delivered = Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send>>;

/// One stream in both directions. Shutting it down waits until the server has all that was written,
/// because closing the connection would drop what is still on its way.
struct QuicStream {
    send: SendStream,
    receive: RecvStream,
    delivered: Option<Delivered>,
}

impl AsyncRead for QuicStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.receive), cx, buffer)
    }
}

impl AsyncWrite for QuicStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let delivered = this.delivered.get_or_insert_with(|| {
            // An error says that the stream ended before, which is as good.
            let _ = this.send.finish();
            Box::pin(this.send.stopped())
        });
        delivered.as_mut().poll(cx).map(|_| Ok(()))
    }
}
