//! The first connection of an HTTP client: why it fails, and how soon that is the end.
#![allow(clippy::unwrap_used, clippy::field_reassign_with_default)] // it is all test

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sterna_client::http::{Client, Error, Event, Options, Subscribe};
use sterna_client::{ConnectError, Publish, QoS};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::http_broker::{Answer, Identity, Script, Server};
use crate::patience::{PATIENCE, soon};

/// A server that reads something, answers with these bytes, and hangs up. It counts its connections.
async fn stranger(answer: &'static [u8]) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let _ = tcp.read(&mut [0; 4_096]).await;
                let _ = tcp.write_all(answer).await;
            });
        }
    });
    (address, count)
}

fn options(address: SocketAddr) -> Options {
    Identity::new().options("http", address)
}

fn message() -> Publish {
    let message = Publish::new("a", "x").unwrap();
    message.qos(QoS::AtLeastOnce)
}

/// A server of another protocol takes a connection, too: that is none yet.
#[tokio::test]
async fn a_server_that_never_answers_a_request_is_not_tried_again() {
    for (answer, reason) in [
        (&b""[..], "may not speak HTTP on this port"),
        (&[0x15, 3, 3, 0, 2, 2, 10], "use https://"),
        (b"AMQP\0\x01\0\0", "speaks AMQP on this port"),
    ] {
        let (address, count) = stranger(answer).await;
        let client = Client::new(options(address)).unwrap();
        let mut events = client.events();
        let error = soon(client.publish(message())).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(count.load(Ordering::Relaxed), 1, "{error}");
        let event = soon(events.next()).await;
        assert!(
            matches!(event, Some(Event::Disconnected { retry_in: None, .. })),
            "{event:?}"
        );
        let subscribe = Subscribe::new("a", QoS::AtLeastOnce).unwrap();
        let client = Client::new(options(address)).unwrap();
        let error = soon(client.subscribe(subscribe)).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(count.load(Ordering::Relaxed), 2, "{error}");
    }
}

#[tokio::test]
async fn neither_is_one_that_is_silent() {
    let server = Server::tcp(Script::new(|_| Answer::Silence), &[]).await;
    let mut options = server.options("http");
    // The server has read the request by then.
    options.response_timeout = Duration::from_secs(3);
    let error = soon(Client::new(options).unwrap().publish(message())).await;
    assert!(matches!(error, Err(Error::Timeout(_))), "{error:?}");
    assert_eq!(server.script.asked().len(), 1);
}

#[tokio::test]
async fn a_server_that_falls_silent_later_is_asked_again_elsewhere() {
    let count = AtomicUsize::new(0);
    let server = Server::http3(Script::new(move |_| {
        match count.fetch_add(1, Ordering::Relaxed) {
            1 => Answer::Silence,
            _ => Answer::status(204),
        }
    }));
    let mut options = server.options("h3");
    // The answers that come take less.
    options.response_timeout = Duration::from_secs(3);
    let client = Client::new(options).unwrap();
    soon(client.publish(message())).await.unwrap();
    soon(client.publish(message())).await.unwrap();
    assert_eq!(client.connection().unwrap().connections, 2);
}

#[tokio::test]
async fn it_is_tried_again_where_the_first_may_be() {
    let (address, count) = stranger(b"").await;
    let mut options = options(address);
    options.retry_first = true;
    let error = soon(Client::new(options).unwrap().publish(message())).await;
    assert!(matches!(error, Err(Error::Connect(_))), "{error:?}");
    assert_eq!(count.load(Ordering::Relaxed), 20);
}

/// Nobody answers by UDP, which takes the whole time. The certificate is the end at once.
#[tokio::test]
async fn a_certificate_that_is_not_trusted_ends_the_attempt_by_udp() {
    let server = Server::tcp(Script::yes(), &[b"h2", b"http/1.1"]).await;
    for pinned in [
        Vec::new(),
        Identity::new()
            .options("https", server.address)
            .tls
            .fingerprints
            .clone(),
    ] {
        let mut options = server.options("https");
        options.tls.fingerprints = pinned;
        options.head_start = Duration::from_millis(20);
        options.connect_timeout = 100 * PATIENCE;
        let error = soon(Client::new(options).unwrap().connected()).await;
        assert!(
            matches!(error, Err(Error::Connect(ConnectError::Handshake(_)))),
            "{error:?}"
        );
    }
}

/// The same the other way round: TCP takes the connection and says nothing.
#[tokio::test]
async fn a_certificate_that_is_not_trusted_ends_the_attempt_by_tcp() {
    let server = Server::http3(Script::yes());
    let silent = TcpListener::bind(server.address).await;
    // Another process may have the port; then TCP ends sooner, and the test shows less.
    let _silent = silent.ok();
    for head_start in [0, 60_000] {
        let mut options = server.options("https");
        options.tls.fingerprints = Vec::new();
        options.head_start = Duration::from_millis(head_start);
        options.connect_timeout = 100 * PATIENCE;
        let error = soon(Client::new(options).unwrap().connected()).await;
        assert!(
            matches!(error, Err(Error::Connect(ConnectError::Quic(_)))),
            "{error:?}"
        );
    }
}
