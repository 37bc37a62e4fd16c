//! A TCP connection in the clear. Its first bytes tell where the server speaks something else on this port.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::url::{Protocol, Scheme};

/// The connection of a URL whose scheme encrypts nothing.
#[derive(Debug)]
pub(crate) struct Clear {
    tcp: TcpStream,
    scheme: Scheme,
    has_read: bool,
}

impl Clear {
    pub(crate) const fn new(tcp: TcpStream, scheme: Scheme) -> Self {
        Self {
            tcp,
            scheme,
            has_read: false,
        }
    }
}

/// A sentence where these are the first bytes of a server that speaks something else than the scheme.
fn another_language(first: &[u8], scheme: Scheme) -> Option<String> {
    let protocol = scheme.protocol();
    let waits_for_http = scheme.is_websocket() || protocol == Protocol::Http;
    match first {
        // An alert (RFC 8446, section 5.1): it was sent no ClientHello.
        [0x15, 0x03, ..] => Some(format!(
            "the server speaks TLS on this port: use {}://",
            scheme.encrypted().name()
        )),
        [b'H', b'T', b'T', b'P', ..] if !waits_for_http => Some(format!(
            "the server speaks HTTP on this port, not {protocol}"
        )),
        [b'A', b'M', b'Q', b'P', ..] if waits_for_http || protocol != Protocol::Amqp => {
            Some(format!(
                "the server speaks AMQP on this port: {}:// is not for it",
                scheme.name()
            ))
        }
        _ => None,
    }
}

impl AsyncRead for Clear {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.tcp).poll_read(cx, buffer))?;
        if !self.has_read {
            let first = &buffer.filled()[before..];
            self.has_read = !first.is_empty();
            if let Some(why) = another_language(first, self.scheme) {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Clear {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_of_another_language_are_known_and_others_are_left_alone() {
        let alert = [0x15, 0x03, 0x03, 0, 2, 2, 10];
        for (scheme, name) in [
            (Scheme::Mqtt, "mqtts"),
            (Scheme::Ws, "wss"),
            (Scheme::Amqp, "amqps"),
            (Scheme::AmqpWs, "amqp+wss"),
            (Scheme::Http, "https"),
        ] {
            let text = another_language(&alert, scheme).unwrap();
            assert!(text.ends_with(&format!("use {name}://")), "{text}");
        }
        let http = b"HTTP/1.1 400 Bad Request";
        let amqp = b"AMQP\0\x01\0\0";
        let connack = [0x20, 0x02, 0, 0];
        let answers = [
            (Scheme::Mqtt, [true, true, false]),
            (Scheme::Amqp, [true, false, false]),
            (Scheme::Http, [false, true, false]),
            (Scheme::AmqpWs, [false, true, false]),
        ];
        for (scheme, is_wrong) in answers {
            for (first, is_wrong) in [&http[..], amqp, &connack].into_iter().zip(is_wrong) {
                assert_eq!(
                    another_language(first, scheme).is_some(),
                    is_wrong,
                    "{scheme:?}"
                );
            }
        }
        assert_eq!(another_language(b"A", Scheme::Mqtt), None);
        assert_eq!(another_language(b"", Scheme::Http), None);
    }
}
