//! Answers to clients that wait until their effects are kept.

use bytes::BytesMut;
use sterna_broker::{ConsumerId, SessionKey};
use sterna_http::{Content, ExchangeId, Responses};

use super::Api;
use super::answer::respond;
use super::origin::Reader;
use super::peer::Peer;
use crate::authorization::{MessageKind, Subject};
use crate::context::Context;
use crate::door::Promise;

use sterna_mapping::frame::write_answer;

/// An answer to a client that waits until its effect is kept.
#[derive(Debug)]
pub(crate) enum Acknowledgement {
    /// Nothing: a frame without an answer only has its place among the waiting answers, so that its publisher is
    /// paced.
    Nothing,
    /// A response without content.
    Done {
        id: ExchangeId,
        reader: Reader,
        status: u16,
        /// Whether it was done before.
        is_replay: bool,
    },
    /// The response of a subscription begins.
    Subscribed(ConsumerId, SessionKey),
    /// The answer to a frame of a WebTransport stream.
    Frame {
        session: ExchangeId,
        stream: u64,
        id: u64,
        status: u16,
    },
    /// The end of such a stream, on which answers come before.
    StreamEnd { session: ExchangeId, stream: u64 },
}

impl Peer {
    /// The promise that the connection's listener asks for.
    pub(super) fn promise(&self, cx: &Context<'_>) -> Promise {
        Promise::on(cx, self.listener(cx))
    }

    /// The promise for a message that is published to a topic.
    pub(super) fn promise_of(
        &self,
        cx: &Context<'_>,
        publisher: Subject<'_>,
        topic: &str,
        kind: MessageKind,
    ) -> Promise {
        Promise::of_message(cx, self.listener(cx), publisher, topic, kind)
    }

    fn listener(&self, cx: &Context<'_>) -> u16 {
        cx.net.info(self.connection).map_or(0, |info| info.listener)
    }
}

impl Api {
    /// Sends an answer once its promise is kept, behind the answers that wait already.
    pub(super) fn acknowledge(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        promise: Promise,
        acknowledgement: Acknowledgement,
    ) {
        if let Some(now) = peer.promises.make(cx, promise, acknowledgement) {
            self.acknowledged(cx, peer, out, now);
        }
    }

    /// Sends an answer whose promise is kept.
    pub(crate) fn acknowledged(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        acknowledgement: Acknowledgement,
    ) {
        match acknowledgement {
            Acknowledgement::Nothing => return,
            Acknowledgement::Done {
                id,
                reader,
                status,
                is_replay,
            } => {
                let fields: &[(&str, &[u8])] = &[("idempotent-replayed", b"?1")];
                let fields = if is_replay { fields } else { &[] };
                respond(out, id, &reader, status, fields, Content::Empty);
            }
            Acknowledgement::Subscribed(consumer, session) => {
                return self.begin_response(cx, peer, out, consumer, session);
            }
            Acknowledgement::Frame {
                session,
                stream,
                id,
                status,
            } => {
                let mut answer = BytesMut::new();
                write_answer(id, status, &mut answer);
                out.send_on_session_stream(session, stream, &answer);
            }
            Acknowledgement::StreamEnd { session, stream } => {
                return out.finish_session_stream(session, stream);
            }
        }
        self.counts.messages_sent += 1;
    }
}
