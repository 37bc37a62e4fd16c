//! HTTP/3: the engine on quinn's server.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{RecvStream, SendStream, VarInt};
use sterna_h3::{
    Chunk, Connection, Content, ErrorCode, Event, Features, Field, Limits, Output, StreamId,
};
use tokio::sync::mpsc;

use super::{Answer, Identity, Part, Request, Script};

/// A server of HTTP/3, as long as it exists.
pub(crate) struct Quic {
    pub(crate) address: SocketAddr,
    endpoint: quinn::Endpoint,
    /// Each connection is told to say that it goes away.
    going: tokio::sync::broadcast::Sender<()>,
}

impl Drop for Quic {
    fn drop(&mut self) {
        self.endpoint.close(VarInt::from_u32(0x100), b"");
    }
}

impl Quic {
    pub(crate) fn start(
        identity: &Identity,
        script: &Script,
        address: SocketAddr,
    ) -> io::Result<Self> {
        let mut tls = identity.server(&[b"h3"]);
        tls.max_early_data_size = u32::MAX;
        let crypto = QuicServerConfig::try_from(tls).unwrap();
        let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        let endpoint = quinn::Endpoint::server(config, address)?;
        let (going, _) = tokio::sync::broadcast::channel(1);
        tokio::spawn(accept(endpoint.clone(), script.clone(), going.clone()));
        Ok(Self {
            address: endpoint.local_addr()?,
            endpoint,
            going,
        })
    }

    /// The same where another one was that may still be saying that it is gone.
    pub(crate) async fn start_again(
        identity: &Identity,
        script: &Script,
        address: SocketAddr,
    ) -> Self {
        loop {
            match Self::start(identity, script, address) {
                Ok(started) => return started,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Says on every connection that no further request is taken.
    pub(crate) fn go_away(&self) {
        self.going.send(()).unwrap();
    }
}

async fn accept(
    endpoint: quinn::Endpoint,
    script: Script,
    going: tokio::sync::broadcast::Sender<()>,
) {
    let number = AtomicUsize::new(0);
    while let Some(incoming) = endpoint.accept().await {
        let Ok(connecting) = incoming.accept() else {
            continue;
        };
        let Ok((connection, _)) = connecting.into_0rtt() else {
            unreachable!("servers always can");
        };
        let number = number.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(serve(connection, script.clone(), number, going.subscribe()));
    }
}

/// What streams and bodies tell the task of their connection.
enum Told {
    Arrived(StreamId, Bytes, bool, bool),
    Opened(SendStream),
    Part(StreamId, Part),
}

#[derive(Default)]
struct Wire {
    actions: Vec<Action>,
}

enum Action {
    Write(StreamId, Bytes),
    Finish(StreamId),
    Reset(StreamId, ErrorCode),
}

impl Output for Wire {
    fn write(&mut self, stream: StreamId, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        self.actions.push(Action::Write(stream, bytes));
    }
    fn finish(&mut self, stream: StreamId) {
        self.actions.push(Action::Finish(stream));
    }
    fn reset(&mut self, stream: StreamId, code: ErrorCode) {
        self.actions.push(Action::Reset(stream, code));
    }
    fn stop(&mut self, _: StreamId, _: ErrorCode) {}
    fn datagram(&mut self, _: &[u8]) -> bool {
        false
    }
}

fn id(stream: quinn::StreamId) -> StreamId {
    StreamId(stream.into())
}

async fn read(mut stream: RecvStream, tell: mpsc::UnboundedSender<Told>) {
    let id = id(stream.id());
    let early = stream.is_0rtt();
    loop {
        let told = match stream.read_chunk(65_536, true).await {
            Ok(Some(chunk)) => Told::Arrived(id, chunk.bytes, early, false),
            Ok(None) => Told::Arrived(id, Bytes::new(), early, true),
            Err(_) => return,
        };
        let end = matches!(told, Told::Arrived(_, _, _, true));
        if tell.send(told).is_err() || end {
            return;
        }
    }
}

async fn serve(
    connection: quinn::Connection,
    script: Script,
    number: usize,
    mut going: tokio::sync::broadcast::Receiver<()>,
) {
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut wire = Wire::default();
    let mut engine = Connection::server(&Limits::default(), Features::default(), &mut wire);
    let mut streams: HashMap<StreamId, SendStream> = HashMap::new();
    let Ok(control) = connection.open_uni().await else {
        return;
    };
    streams.insert(id(control.id()), control);
    tokio::spawn({
        let (connection, tell) = (connection.clone(), tell.clone());
        async move {
            loop {
                let receive = tokio::select! {
                    opened = connection.accept_bi() => match opened {
                        Ok((send, receive)) => {
                            let _ = tell.send(Told::Opened(send));
                            receive
                        }
                        Err(_) => return,
                    },
                    opened = connection.accept_uni() => match opened {
                        Ok(receive) => receive,
                        Err(_) => return,
                    },
                };
                tokio::spawn(read(receive, tell.clone()));
            }
        }
    });
    let mut requests: HashMap<StreamId, Request> = HashMap::new();
    loop {
        for action in std::mem::take(&mut wire.actions) {
            let (Action::Write(at, _) | Action::Finish(at) | Action::Reset(at, _)) = &action;
            let Some(stream) = streams.get_mut(at) else {
                continue;
            };
            match action {
                Action::Write(_, bytes) => {
                    let _ = stream.write_chunk(bytes).await;
                }
                Action::Finish(_) => {
                    let _ = stream.finish();
                }
                Action::Reset(_, code) => {
                    let _ = stream.reset(VarInt::from_u64(code.0).unwrap());
                }
            }
        }
        let news = tokio::select! {
            news = told.recv() => news,
            Ok(()) = going.recv() => {
                engine.go_away(false, &mut wire).unwrap();
                continue;
            }
            _ = connection.closed() => return,
        };
        match news {
            None => return,
            Some(Told::Opened(send)) => {
                streams.insert(id(send.id()), send);
            }
            Some(Told::Part(stream, part)) => match part {
                Part::Bytes(bytes) => {
                    let _ = engine.send(stream, &bytes, &mut wire);
                }
                Part::End => {
                    let _ = engine.finish(stream, &mut wire);
                }
                Part::Cut => connection.close(VarInt::from_u32(1), b"cut"),
            },
            Some(Told::Arrived(stream, bytes, early, fin)) => {
                let mut chunk = Chunk {
                    early,
                    fin,
                    ..Chunk::new(stream, &bytes)
                };
                let mut complete = Vec::new();
                while let Some(event) = engine.receive(&mut chunk, 0, &mut wire).unwrap() {
                    match event {
                        Event::Request {
                            stream,
                            head,
                            early,
                        } => {
                            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                            let request = Request {
                                method: head.method().to_owned(),
                                target: head.path().unwrap().to_owned(),
                                fields: head
                                    .iter()
                                    .map(|field| (text(field.name), text(field.value)))
                                    .collect(),
                                content: Vec::new(),
                                early,
                                connection: number,
                                version: "h3",
                            };
                            requests.insert(stream, request);
                        }
                        Event::Content { stream, bytes } => {
                            let request = requests.get_mut(&stream).unwrap();
                            request.content.extend_from_slice(bytes);
                        }
                        Event::End { stream } => complete.extend(requests.remove(&stream)),
                        _ => {}
                    }
                }
                for request in complete {
                    let answer = script.answer(request);
                    match answer {
                        Answer::Whole(status, fields, content) => {
                            let fields: Vec<_> = fields
                                .iter()
                                .map(|(name, value)| Field::new(name, value.as_bytes()))
                                .collect();
                            let content = if content.is_empty() {
                                Content::Empty
                            } else {
                                Content::Whole(&content)
                            };
                            engine
                                .respond(stream, status, &fields, content, &mut wire)
                                .unwrap();
                        }
                        Answer::Stream(fields, mut parts) => {
                            let fields: Vec<_> = fields
                                .iter()
                                .map(|(name, value)| Field::new(name, value.as_bytes()))
                                .collect();
                            engine
                                .respond(stream, 200, &fields, Content::Streamed, &mut wire)
                                .unwrap();
                            let tell = tell.clone();
                            tokio::spawn(async move {
                                while let Some(part) = parts.recv().await {
                                    if tell.send(Told::Part(stream, part)).is_err() {
                                        return;
                                    }
                                }
                            });
                        }
                        Answer::Cut => connection.close(VarInt::from_u32(1), b"cut"),
                        Answer::Refused => engine
                            .cancel(stream, ErrorCode::H3_REQUEST_REJECTED, &mut wire)
                            .unwrap(),
                        Answer::Silence => {}
                    }
                }
                while engine.next_event().is_some() {}
            }
        }
    }
}
