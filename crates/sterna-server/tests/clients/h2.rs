//! A client of HTTP/2 by a library, whose bytes go to the broker of the fixture by hand.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::Request;
use sterna_net::TransportKind;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::fixture::{Broker, Peer};

/// The bytes between the client and the broker.
#[derive(Default)]
struct Wire {
    up: Vec<u8>,
    down: VecDeque<u8>,
    is_ended: bool,
}

#[derive(Clone, Default)]
struct End(Rc<RefCell<Wire>>);

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut wire = self.0.borrow_mut();
        if wire.down.is_empty() {
            return if wire.is_ended {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            };
        }
        let bytes = wire.down.len().min(room.remaining());
        let bytes: Vec<u8> = wire.down.drain(..bytes).collect();
        room.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().up.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A request and what has come of it.
pub struct Exchange {
    answer: Option<ResponseFuture>,
    incoming: Option<RecvStream>,
    /// Where more of the content goes.
    pub sending: SendStream<Bytes>,
    pub status: u16,
    pub fields: http::HeaderMap,
    pub content: Vec<u8>,
    pub is_complete: bool,
    pub error: Option<String>,
    /// Whether what comes is acknowledged, so that more may come.
    pub reads: bool,
}

impl Exchange {
    /// Gives it up.
    pub fn reset(&mut self) {
        self.sending.send_reset(h2::Reason::CANCEL);
    }

    fn poll(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        if let Some(answer) = &mut self.answer
            && let Poll::Ready(answered) = Pin::new(answer).poll(&mut cx)
        {
            self.answer = None;
            match answered {
                Ok(response) => {
                    let (head, incoming) = response.into_parts();
                    self.status = head.status.as_u16();
                    self.fields = head.headers;
                    self.incoming = Some(incoming);
                }
                Err(error) => self.error = Some(error.to_string()),
            }
        }
        while self.reads
            && let Some(incoming) = &mut self.incoming
            && let Poll::Ready(data) = incoming.poll_data(&mut cx)
        {
            match data {
                Some(Ok(bytes)) => {
                    self.content.extend_from_slice(&bytes);
                    let released = incoming.flow_control().release_capacity(bytes.len());
                    released.expect("what came");
                }
                Some(Err(error)) => {
                    self.error = Some(error.to_string());
                    self.incoming = None;
                }
                None => {
                    self.is_complete = true;
                    self.incoming = None;
                }
            }
        }
    }
}

/// See the module.
pub struct Client {
    pub peer: Peer,
    end: End,
    requests: SendRequest<Bytes>,
    connection: Connection<End, Bytes>,
    /// How the connection ended.
    pub ended: Option<Result<(), String>>,
}

impl Client {
    /// Connects, with prior knowledge or as TLS has negotiated.
    pub fn connect(broker: &mut Broker, protocol: &[u8]) -> Self {
        let peer = broker.open_speaking(protocol, 0, TransportKind::Tcp, Vec::new());
        let mut client = Self::new(peer);
        client.turn(broker, &mut []);
        client
    }

    fn new(peer: Peer) -> Self {
        let end = End::default();
        let mut handshake = pin!(h2::client::handshake(end.clone()));
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(shaken) = handshake.as_mut().poll(&mut cx) else {
            panic!("a handshake that only writes");
        };
        let (requests, connection) = shaken.expect("a handshake");
        Self {
            peer,
            end,
            requests,
            connection,
            ended: None,
        }
    }

    /// Begins a request.
    pub fn begin(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        content: Option<&[u8]>,
    ) -> Exchange {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://localhost{path}"));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        let is_whole = content.is_some_and(<[u8]>::is_empty);
        let sent = self.requests.send_request(request, is_whole);
        let (answer, mut sending) = sent.expect("a stream");
        if let Some(content) = content.filter(|content| !content.is_empty()) {
            let content = Bytes::copy_from_slice(content);
            sending.send_data(content, true).expect("room");
        }
        Exchange {
            answer: Some(answer),
            incoming: None,
            sending,
            status: 0,
            fields: http::HeaderMap::new(),
            content: Vec::new(),
            is_complete: false,
            error: None,
            reads: true,
        }
    }

    /// A request that is answered at once.
    pub fn request(
        &mut self,
        broker: &mut Broker,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        content: &[u8],
    ) -> Exchange {
        let mut exchange = self.begin(method, path, fields, Some(content));
        self.turn(broker, &mut [&mut exchange]);
        exchange
    }

    fn poll(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        if self.ended.is_none()
            && let Poll::Ready(ended) = Pin::new(&mut self.connection).poll(&mut cx)
        {
            self.ended = Some(ended.map_err(|error| error.to_string()));
        }
    }

    /// Sends and reads until nothing moves.
    pub fn turn(&mut self, broker: &mut Broker, exchanges: &mut [&mut Exchange]) {
        loop {
            self.poll();
            for exchange in &mut *exchanges {
                exchange.poll();
            }
            // What was read is acknowledged.
            self.poll();
            let up = std::mem::take(&mut self.end.0.borrow_mut().up);
            if !up.is_empty() {
                broker.send(self.peer, &up);
            }
            let down = broker.take(self.peer);
            let is_closed = broker.is_closed(self.peer);
            let mut wire = self.end.0.borrow_mut();
            if up.is_empty() && down.is_empty() && wire.is_ended == is_closed {
                return;
            }
            wire.down.extend(down);
            wire.is_ended = is_closed;
        }
    }
}

/// What a client writes that asks all this, and hears nothing.
pub fn flight(requests: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let id = sterna_net::ConnectionId {
        slot: 0,
        generation: 0,
    };
    let mut client = Client::new(Peer { shard: 0, id });
    // One that is dropped would be reset.
    let exchanges: Vec<Exchange> = (requests.iter())
        .map(|(method, path, content)| {
            let exchange = client.begin(method, path, &[], Some(content));
            client.poll();
            exchange
        })
        .collect();
    let bytes = std::mem::take(&mut client.end.0.borrow_mut().up);
    drop(exchanges);
    bytes
}
