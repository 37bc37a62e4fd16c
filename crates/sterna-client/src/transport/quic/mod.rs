//! MQTT over QUIC: the first stream that the client opens carries CONNECT, further ones carry more
//! of the same session.

mod cork;
pub(crate) mod memory;
mod stream;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    ClientConfig, Connecting, Connection, ConnectionError, Endpoint, EndpointConfig, IdleTimeout,
    RecvStream, SendStream, TransportConfig, VarInt, ZeroRttAccepted,
};

use super::{Settings, explain_tls};
use crate::error::ConnectError;
use cork::{Cork, CorkedRuntime};
pub use stream::EarlyData;
pub(crate) use stream::QuicStream;
use stream::Verdict;

/// The application protocol of MQTT over QUIC, as all brokers name it.
const ALPN: &[u8] = b"mqtt";
/// Shortest idle timeout, in seconds.
const MIN_IDLE_S: u64 = 30;
/// Time for the news of the end to leave. All data has arrived before, so nobody needs an answer.
const CLOSE_PAUSE: Duration = Duration::from_millis(2);
/// Application error code of an orderly end, as other brokers and clients use it.
const NO_ERROR: VarInt = VarInt::from_u32(0);
/// Where the control stream stands among streams that have something to send.
pub(crate) const CONTROL_PRIORITY: i32 = 16;

type Opening =
    Pin<Box<dyn Future<Output = Result<(SendStream, RecvStream), ConnectionError>> + Send + Sync>>;

/// A QUIC connection to a broker. It has its own socket, so that it can move to another network
/// alone.
pub(crate) struct Quic {
    endpoint: Endpoint,
    connection: Connection,
    verdict: Arc<Verdict>,
    /// Tells when the handshake is complete, as long as it is not.
    handshake: Option<ZeroRttAccepted>,
    /// Keeps the first datagram back.
    cork: Option<Cork>,
    /// A stream that the server has no room for yet.
    opening: Option<Opening>,
    /// How often the connection has moved.
    pub(crate) migrations: u64,
}

/// The configuration of QUIC for these settings, with the tickets of this process.
pub(super) fn client_config(settings: &Settings) -> Result<ClientConfig, ConnectError> {
    let tls = settings.tls.config(&[ALPN], settings.early_data)?;
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

/// Where and how to connect.
#[derive(Clone)]
pub(super) struct Attempt {
    pub(super) config: ClientConfig,
    /// The name in the server's certificate.
    pub(super) name: String,
    pub(super) bind: Option<IpAddr>,
}

/// A connection that has been started and has sent nothing.
pub(super) struct Started {
    endpoint: Endpoint,
    connecting: Connecting,
    cork: Cork,
}

impl Attempt {
    /// Prepares a connection to one address. Nothing is sent yet.
    pub(super) fn start(self, address: SocketAddr) -> Result<Started, ConnectError> {
        let any: IpAddr = if address.is_ipv4() {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let local = SocketAddr::new(self.bind.unwrap_or(any), 0);
        let socket = std::net::UdpSocket::bind(local)?;
        let (runtime, cork) = CorkedRuntime::new();
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime)?;
        let connecting = endpoint
            .connect_with(self.config, address, &self.name)
            .map_err(|error| ConnectError::Quic(error.to_string()))?;
        Ok(Started {
            endpoint,
            connecting,
            cork,
        })
    }
}

impl Started {
    /// The connection, ready to be written to before anything was sent, if there is a ticket that
    /// allows it; else what was started.
    pub(super) fn into_early(self) -> Result<Quic, Box<Self>> {
        let Self {
            endpoint,
            connecting,
            cork,
        } = self;
        match connecting.into_0rtt() {
            Ok((connection, handshake)) => Ok(Quic {
                endpoint,
                connection,
                verdict: Arc::new(Verdict::new(EarlyData::Pending)),
                handshake: Some(handshake),
                cork: Some(cork),
                opening: None,
                migrations: 0,
            }),
            Err(connecting) => Err(Box::new(Self {
                endpoint,
                connecting,
                cork,
            })),
        }
    }

    /// The connection once the handshake is complete.
    pub(super) async fn established(self) -> Result<Quic, ConnectError> {
        let Self {
            endpoint,
            connecting,
            cork,
        } = self;
        drop(cork);
        let connection = connecting
            .await
            .map_err(|error| ConnectError::Quic(explain_tls(&error)))?;
        Ok(Quic {
            endpoint,
            connection,
            verdict: Arc::new(Verdict::new(EarlyData::NotTried)),
            handshake: None,
            cork: None,
            opening: None,
            migrations: 0,
        })
    }
}

impl Quic {
    /// The server's address.
    pub(super) fn peer(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    /// What became of the early data.
    pub(crate) fn early_data(&self) -> EarlyData {
        self.verdict.get()
    }

    /// Lets the first datagram leave. Without effect when it has left.
    pub(crate) fn uncork(&mut self) {
        self.cork = None;
    }

    /// Ready once, with the verdict about the early data, when the handshake is complete.
    ///
    /// # Errors
    /// When it failed.
    pub(crate) fn poll_handshake(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<EarlyData, ConnectError>> {
        let Some(handshake) = &mut self.handshake else {
            return Poll::Pending;
        };
        let Poll::Ready(accepted) = Pin::new(handshake).poll(cx) else {
            return Poll::Pending;
        };
        self.handshake = None;
        if let (false, Some(error)) = (accepted, self.connection.close_reason()) {
            return Poll::Ready(Err(ConnectError::Quic(explain_tls(&error))));
        }
        let verdict = if accepted {
            EarlyData::Accepted
        } else {
            EarlyData::Rejected
        };
        tracing::debug!(?verdict, "early data");
        self.verdict.set(verdict);
        Poll::Ready(Ok(verdict))
    }

    /// Opens a stream in both directions; ready when the server has room for one more.
    pub(crate) fn poll_open(
        &mut self,
        priority: i32,
        cx: &mut Context<'_>,
    ) -> Poll<Result<QuicStream, ConnectError>> {
        let opening = self.opening.get_or_insert_with(|| {
            let connection = self.connection.clone();
            Box::pin(async move { connection.open_bi().await })
        });
        let Poll::Ready(opened) = opening.as_mut().poll(cx) else {
            return Poll::Pending;
        };
        self.opening = None;
        Poll::Ready(match opened {
            Ok((send, receive)) => Ok(QuicStream::new(
                self.connection.clone(),
                Arc::clone(&self.verdict),
                priority,
                send,
                receive,
            )),
            Err(error) => Err(ConnectError::Quic(error.to_string())),
        })
    }

    /// Moves the connection to a new local port, as a change of network would.
    pub(crate) fn rebind(&mut self) -> io::Result<()> {
        let mut address = self.endpoint.local_addr()?;
        address.set_port(0);
        self.endpoint.rebind(std::net::UdpSocket::bind(address)?)?;
        self.migrations += 1;
        Ok(())
    }

    /// Ends the connection. What was written to a stream that was not shut down may be lost.
    pub(crate) async fn close(mut self) {
        self.uncork();
        self.connection.close(NO_ERROR, b"");
        // The packet is sent by quinn's own task, which only needs its turn.
        tokio::time::sleep(CLOSE_PAUSE).await;
    }
}
