//! A byte stream inside binary frames of a WebSocket (MQTT 5.0, section 6; OASIS AMQP WebSocket
//! Binding 1.0).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use futures_util::{Sink as _, Stream as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::NO_ANSWER;
use crate::error::ConnectError;
use crate::url::Url;

/// Smallest limit on one frame; a server may put many packets into one.
const MIN_FRAME_BYTES: usize = 16 << 20;
/// Buffers of the WebSocket layer, in bytes.
const BUFFER_BYTES: usize = 16 << 10;

/// Does the handshake on a connected stream.
pub(super) async fn connect<S>(
    url: &Url,
    stream: S,
    max_packet_bytes: usize,
) -> Result<Frames<S>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let max_bytes = max_packet_bytes.max(MIN_FRAME_BYTES);
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(Some(max_bytes))
        .max_frame_size(Some(max_bytes));
    let (stream, _response) =
        tokio_tungstenite::client_async_with_config(request(url)?, stream, Some(config))
            .await
            .map_err(|error| ConnectError::WebSocket(explain(&error, url)))?;
    Ok(Frames {
        stream,
        unread: Bytes::new(),
    })
}

/// A failure of the handshake with what to do about it, where that can be known.
fn explain(error: &Error, url: &Url) -> String {
    match error {
        Error::Protocol(ProtocolError::HandshakeIncomplete) => NO_ANSWER.to_owned(),
        Error::Http(answer) if answer.status() == StatusCode::NOT_FOUND => {
            let protocol = url.scheme().protocol();
            format!(
                "the server has no WebSocket at {} ({error}): the path of {protocol} is mostly /{}",
                url.websocket_path(),
                protocol.name(),
            )
        }
        _ => error.to_string(),
    }
}

fn request(url: &Url) -> Result<Request, ConnectError> {
    let host = if url.host().contains(':') {
        format!("[{}]", url.host())
    } else {
        url.host().to_owned()
    };
    let scheme = if url.scheme().is_encrypted() {
        "wss"
    } else {
        "ws"
    };
    let address = format!("{scheme}://{host}:{}{}", url.port(), url.websocket_path());
    let mut request = address
        .into_client_request()
        .map_err(|error| ConnectError::WebSocket(error.to_string()))?;
    // [MQTT-6.0.0-3]: tungstenite then refuses a server that doesn't answer with the same.
    let subprotocol = HeaderValue::from_static(url.scheme().protocol().name());
    request
        .headers_mut()
        .insert("Sec-WebSocket-Protocol", subprotocol);
    Ok(request)
}

/// A byte stream over the frames of a WebSocket. Packets need not start where frames do.
pub(super) struct Frames<S> {
    stream: WebSocketStream<S>,
    unread: Bytes,
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Frames<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.unread.has_remaining() {
                let take = self.unread.len().min(buffer.remaining());
                buffer.put_slice(&self.unread.split_to(take));
                return Poll::Ready(Ok(()));
            }
            match ready!(Pin::new(&mut self.stream).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.unread = bytes,
                // Tungstenite answers a ping by itself, at the next read or write.
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                // [MQTT-6.0.0-1]: any frame of data that is not binary closes the connection.
                Some(Ok(Message::Text(_) | Message::Frame(_))) => {
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the server sent a WebSocket frame that is not binary",
                    )));
                }
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Frames<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.stream).poll_ready(cx)).map_err(io_error)?;
        Pin::new(&mut self.stream)
            .start_send(Message::Binary(Bytes::copy_from_slice(bytes)))
            .map_err(io_error)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx).map_err(io_error)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx).map_err(io_error)
    }
}

fn io_error(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        error => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_tungstenite::tungstenite::handshake::server;

    use super::*;

    #[expect(
        clippy::result_large_err,
        clippy::unnecessary_wraps,
        reason = "tungstenite's callback has this signature"
    )]
    fn answer_mqtt(
        request: &server::Request,
        mut response: server::Response,
    ) -> Result<server::Response, server::ErrorResponse> {
        assert_eq!(request.uri().path(), "/mqtt");
        assert_eq!(request.headers()["sec-websocket-protocol"], "mqtt");
        response
            .headers_mut()
            .insert("Sec-WebSocket-Protocol", HeaderValue::from_static("mqtt"));
        Ok(response)
    }

    fn url() -> Url {
        "ws://localhost:9001".parse().unwrap()
    }

    /// The client asks for the subprotocol `mqtt` [MQTT-6.0.0-3].
    #[tokio::test]
    async fn bytes_pass_whatever_the_frames() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let server = tokio::spawn(async move {
            let mut stream = tokio_tungstenite::accept_hdr_async(far, answer_mqtt)
                .await
                .unwrap();
            let received = futures_util::StreamExt::next(&mut stream)
                .await
                .unwrap()
                .unwrap();
            assert_eq!(received, Message::Binary(Bytes::from_static(b"one")));
            for part in [&b"t"[..], b"", b"wo"] {
                let part = Message::Binary(Bytes::copy_from_slice(part));
                futures_util::SinkExt::send(&mut stream, part)
                    .await
                    .unwrap();
            }
            stream.close(None).await.unwrap();
        });
        let mut client = connect(&url(), near, 0).await.unwrap();
        client.write_all(b"one").await.unwrap();
        client.flush().await.unwrap();
        let mut back = String::new();
        client.read_to_string(&mut back).await.unwrap();
        assert_eq!(back, "two");
        server.await.unwrap();
    }

    /// Text is an error of the connection [MQTT-6.0.0-1].
    #[tokio::test]
    async fn text_is_refused() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let server = tokio::spawn(async move {
            let mut stream = tokio_tungstenite::accept_hdr_async(far, answer_mqtt)
                .await
                .unwrap();
            futures_util::SinkExt::send(&mut stream, Message::text("no"))
                .await
                .unwrap();
        });
        let mut client = connect(&url(), near, 0).await.unwrap();
        let error = client.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        server.await.unwrap();
    }

    /// A newcomer meets them at another port, and with another path.
    #[tokio::test]
    async fn a_refused_handshake_says_what_may_be_wrong() {
        let (near, mut far) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move { far.read_u8().await });
        let refused = connect(&url(), near, 0).await.map(|_| ()).unwrap_err();
        assert!(
            refused.to_string().contains("may not speak HTTP"),
            "{refused}"
        );
        for (address, place, usual) in [
            ("ws://h/foo", " /foo ", "MQTT is mostly /mqtt"),
            ("amqp+ws://h/foo", " /foo ", "AMQP 1.0 is mostly /amqp"),
        ] {
            let (near, mut far) = tokio::io::duplex(1 << 16);
            let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
            far.write_all(answer).await.unwrap();
            let url = address.parse().unwrap();
            let refused = connect(&url, near, 0).await.map(|_| ()).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains(place) && text.contains(usual), "{text}");
        }
    }

    #[tokio::test]
    async fn a_server_without_the_subprotocol_is_refused() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let server = tokio::spawn(async move {
            let _ = tokio_tungstenite::accept_async(far).await;
        });
        let refused = connect(&url(), near, 0).await.map(|_| ()).unwrap_err();
        assert!(matches!(refused, ConnectError::WebSocket(_)), "{refused}");
        server.await.unwrap();
    }
}
