//! WebTransport sessions. Messages go out on a stream of the server or in datagrams. They come in on streams of
//! the client or in datagrams.

use bytes::{Bytes, BytesMut};
use sterna_broker::{Close, EndCause};
use sterna_http::{ExchangeId, Responses};

use super::Api;
use super::acknowledge::Acknowledgement;
use super::answer::Trouble;
use super::deliver::resume_parked;
use super::open::Asker;
use super::peer::Peer;
use super::plan::Subscribe;
use super::publish::{PUBLISHED, too_fast};
use super::sessions::do_work;
use super::target::Target;
use crate::config::Protocol;
use crate::context::Context;
use crate::door::Promise;
use crate::http::format::message_from_frame;
use crate::http::problem::ProblemKind as Kind;
use crate::identity::Identity;
use crate::mail::http::{Acknowledge, Work};
use crate::session::http::session_name;
use sterna_mapping::frame::{Frame, FrameError, FrameReader, write_answer};

/// The code with which a stream is given up: it does not carry frames, or there are too many streams.
const BAD_FRAME: u32 = 1;

/// A WebTransport session.
#[derive(Debug)]
pub(super) struct Transport {
    pub(super) session: ExchangeId,
    pub(super) identity: Identity,
    streams: Vec<Incoming>,
}

/// A stream that the client has opened.
#[derive(Debug)]
struct Incoming {
    stream: u64,
    is_bidirectional: bool,
    reader: FrameReader,
    waiting: Option<Box<Waiting>>,
}

/// The input of a stream that waits for a reader whose queue is half full.
#[derive(Debug)]
struct Waiting {
    frame: Bytes,
    behind: BytesMut,
    /// Whether the client has ended the stream behind it.
    is_end: bool,
}

impl Incoming {
    /// Bytes that are kept of the stream.
    fn held_bytes(&self) -> usize {
        let waiting = self.waiting.as_ref();
        self.reader.held_bytes()
            + waiting.map_or(0, |waiting| waiting.frame.len() + waiting.behind.len())
    }
}

impl Transport {
    pub(super) const fn new(session: ExchangeId, identity: Identity) -> Self {
        Self {
            session,
            identity,
            streams: Vec::new(),
        }
    }

    /// Whether input waits for a reader.
    pub(super) fn waits(&self) -> bool {
        (self.streams.iter()).any(|incoming| incoming.waiting.is_some())
    }
}

impl Api {
    /// Accepts a session, with a subscription unless it asks for none.
    ///
    /// # Errors
    /// The answer to a request that fails.
    pub(super) fn session(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        target: &Target<'_>,
        asker: Asker,
        plan: Subscribe,
    ) -> Result<(), Trouble> {
        let most = cx.policy.http.maximum_webtransport_sessions as usize;
        if most == 0 {
            return Err(Trouble::new(Kind::NoResource, "WebTransport is off"));
        }
        if peer.transports.len() >= most {
            let detail = "too many WebTransport sessions on this connection";
            return Err(Trouble::new(Kind::TooManyRequests, detail));
        }
        if !plan.filters.is_empty() || plan.session.is_some() {
            return self.subscribe(cx, peer, out, target, asker, plan);
        }
        out.accept_session(asker.id, &[]);
        self.counts.messages_sent += 1;
        peer.transports
            .push(Transport::new(asker.id, asker.identity));
        Ok(())
    }

    /// The client has opened a stream of a session.
    #[expect(clippy::unused_self, reason = "called as everything else of the API")]
    pub(crate) fn session_stream(
        &self,
        cx: &Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        session: ExchangeId,
        stream: u64,
        is_bidirectional: bool,
    ) {
        let http = &cx.policy.http;
        let transport = transport_mut(peer, session);
        let streams = transport.map(|transport| &mut transport.streams);
        match streams {
            Some(streams) if streams.len() < http.maximum_webtransport_streams as usize => {
                streams.push(Incoming {
                    stream,
                    is_bidirectional,
                    reader: FrameReader::new(http.maximum_content_bytes as usize),
                    waiting: None,
                });
            }
            _ => out.reset_session_stream(session, stream, BAD_FRAME),
        }
    }

    /// Bytes have come on a stream of a session.
    pub(crate) fn session_bytes(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        session: ExchangeId,
        stream: u64,
        bytes: &[u8],
    ) {
        if let Some(waiting) = waiting_mut(peer, session, stream) {
            waiting.behind.extend_from_slice(bytes);
        }
        self.read_stream(cx, peer, out, (session, stream), None, bytes);
    }

    /// Reads bytes of a stream, behind a frame that has waited.
    fn read_stream(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        (session, stream): (ExchangeId, u64),
        waited: Option<Bytes>,
        bytes: &[u8],
    ) {
        let is_it = |incoming: &Incoming| incoming.stream == stream;
        let Some(transport) = transport_mut(peer, session) else {
            return;
        };
        let Some(at) = transport.streams.iter().position(is_it) else {
            return;
        };
        // A step may touch the session's other streams, so this one is taken out meanwhile.
        let mut incoming = transport.streams.swap_remove(at);
        let mut answers = BytesMut::new();
        let read = if incoming.waiting.is_some() {
            Ok(())
        } else {
            let input = (waited, bytes);
            self.read_frames(cx, peer, session, &mut incoming, input, &mut answers)
        };
        if !answers.is_empty() {
            out.send_on_session_stream(session, stream, &answers);
        }
        let most_bytes = cx.policy.http.maximum_assembling_bytes as usize;
        let fault = match read {
            Err(error) => error.detail(),
            Ok(()) if held_bytes(peer) + incoming.held_bytes() > most_bytes => {
                "incomplete frames are larger than http.maximum_assembling_bytes"
            }
            Ok(()) => {
                if let Some(transport) = transport_mut(peer, session) {
                    transport.streams.push(incoming);
                }
                return;
            }
        };
        give_up(cx, peer, out, session, stream, fault);
    }

    #[allow(clippy::too_many_arguments, reason = "a step of session_bytes")]
    fn read_frames(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        session: ExchangeId,
        incoming: &mut Incoming,
        (mut waited, mut bytes): (Option<Bytes>, &[u8]),
        answers: &mut BytesMut,
    ) -> Result<(), FrameError> {
        loop {
            let next = waited
                .take()
                .map_or_else(|| incoming.reader.next(&mut bytes), |frame| Ok(Some(frame)))?;
            let Some(body) = next else {
                return Ok(());
            };
            let frame = Frame::parse(body)?;
            let may_hold = cx.is_turn_spent() || cx.broker.may_hold();
            let topic = || String::from_utf8_lossy(&frame.body[frame.topic.clone()]).into_owned();
            let is_acknowledged = || frame.flags.qos() != 0;
            if may_hold
                && !frame.is_acknowledgement()
                && self.must_hold_for(cx, peer, &topic(), is_acknowledged)
            {
                incoming.waiting = Some(Box::new(Waiting {
                    frame: frame.body,
                    behind: bytes.into(),
                    is_end: false,
                }));
                return Ok(());
            }
            let id = frame.id;
            let Some((status, promise)) = self.frame(cx, peer, session, &frame) else {
                continue;
            };
            let answer = if incoming.is_bidirectional && id != 0 {
                let stream = incoming.stream;
                Acknowledgement::Frame {
                    session,
                    stream,
                    id,
                    status,
                }
            } else if promise.is_empty() {
                continue;
            } else {
                Acknowledgement::Nothing
            };
            // Those that need not wait leave together.
            let now = peer.promises.make(cx, promise, answer);
            if let Some(Acknowledgement::Frame { id, status, .. }) = now {
                write_answer(id, status, answers);
                self.counts.messages_sent += 1;
            }
        }
    }

    /// Goes on with frames that waited for a reader.
    pub(super) fn read_on(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
    ) {
        let all = peer.transports.iter().flat_map(|transport| {
            let streams = transport.streams.iter();
            let waiting = streams.filter(|incoming| incoming.waiting.is_some());
            waiting.map(|incoming| (transport.session, incoming.stream))
        });
        let all: Vec<(ExchangeId, u64)> = all.collect();
        for (session, stream) in all {
            let incoming = incoming_mut(peer, session, stream);
            let Some(waiting) = incoming.and_then(|incoming| incoming.waiting.take()) else {
                continue;
            };
            let Waiting {
                frame,
                behind,
                is_end,
            } = *waiting;
            self.read_stream(cx, peer, out, (session, stream), Some(frame), &behind);
            if is_end {
                self.session_stream_ended(cx, peer, out, session, stream);
            }
        }
    }

    /// A datagram of a session: one frame of QoS 0.
    pub(crate) fn session_datagram(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        session: ExchangeId,
        bytes: &[u8],
    ) {
        match Frame::parse(Bytes::copy_from_slice(bytes)) {
            Ok(frame) if frame.flags.qos() == 0 => {
                let topic = String::from_utf8_lossy(&frame.body[frame.topic.clone()]);
                let client = peer.name().unwrap_or_default();
                if !frame.is_acknowledgement()
                    && cx.drops_for_the_turn(Protocol::Http, client, &topic)
                {
                    return;
                }
                if let Some((_, promise)) = self.frame(cx, peer, session, &frame)
                    && !promise.is_empty()
                {
                    self.acknowledge(cx, peer, out, promise, Acknowledgement::Nothing);
                }
            }
            // A client that sends datagrams accepts that some are lost.
            Ok(_) | Err(_) => tracing::debug!("a datagram that is not one frame of QoS 0"),
        }
    }

    /// Does what a frame asks for. Returns the status of the answer and the promise that the answer waits for, if
    /// there is one.
    fn frame(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        session: ExchangeId,
        frame: &Frame,
    ) -> Option<(u16, Promise)> {
        self.counts.messages_received += 1;
        let identity = transport_mut(peer, session)?.identity.clone();
        if frame.is_acknowledgement() {
            let at = peer.subscription_of(session)?;
            let name = &peer.subscriptions[at].name;
            let work = Work::Acknowledge(Acknowledge::UpTo(frame.id));
            let done = do_work(cx, &session_name(identity.user(), name), &work);
            if done.is_ok() {
                resume_parked(cx, peer, |subscription| subscription.exchange == session);
            }
            return None;
        }
        let published = message_from_frame(frame, cx.now_ms)
            .map_err(|error| Trouble::new(Kind::InvalidField, error.to_string()))
            .and_then(|message| {
                let bytes = message.payload().len();
                // Another user may have asked last.
                peer.allow_again(cx, &identity);
                if peer.sips.published(cx, Protocol::Http, bytes, true) {
                    self.publish(cx, peer, &identity, message, None)
                } else {
                    Err(too_fast(cx, &identity, message.topic()))
                }
            });
        Some(match published {
            Ok(promise) => (PUBLISHED, promise),
            Err(trouble) => (trouble.status(), peer.promise(cx)),
        })
    }

    /// The client has ended a stream.
    pub(crate) fn session_stream_ended(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        session: ExchangeId,
        stream: u64,
    ) {
        if let Some(waiting) = waiting_mut(peer, session, stream) {
            waiting.is_end = true;
            return;
        }
        let Some(incoming) = take_stream(peer, session, stream) else {
            return;
        };
        if !incoming.reader.is_between_frames() {
            give_up(
                cx,
                peer,
                out,
                session,
                stream,
                "the stream ends within a frame",
            );
        } else if incoming.is_bidirectional {
            let end = Acknowledgement::StreamEnd { session, stream };
            let promise = peer.promise(cx);
            self.acknowledge(cx, peer, out, promise, end);
        }
    }

    /// The client has given a stream up, or reads it no more.
    pub(crate) fn session_stream_gone(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        session: ExchangeId,
        stream: u64,
    ) {
        take_stream(peer, session, stream);
        let is_its = |subscription: &super::subscription::Subscription| {
            subscription.exchange == session
                && matches!(subscription.outlet, super::subscription::Outlet::Transport { stream: own } if own == stream)
        };
        // A client that does not read its deliveries has given up the subscription.
        if let Some(at) = peer.subscriptions.iter().position(is_its) {
            self.drop_subscription(cx, peer, at, Some(Close::NORMAL));
            peer.transports
                .retain(|transport| transport.session != session);
            out.close_session(
                session,
                super::end::NO_ERROR,
                "nobody reads the subscription",
            );
        }
    }

    /// A session has ended.
    pub(crate) fn session_closed(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        _: &mut dyn Responses,
        session: ExchangeId,
    ) {
        peer.transports
            .retain(|transport| transport.session != session);
        if let Some(at) = peer.subscription_of(session) {
            let cause = peer.turned_away_for.unwrap_or(EndCause::Client);
            self.drop_subscription(cx, peer, at, Some(Close::of(cause)));
        }
    }
}

fn transport_mut(peer: &mut Peer, session: ExchangeId) -> Option<&mut Transport> {
    (peer.transports.iter_mut()).find(|transport| transport.session == session)
}

/// Bytes of frames that are not complete, of all streams.
fn held_bytes(peer: &Peer) -> usize {
    let streams = peer
        .transports
        .iter()
        .flat_map(|transport| &transport.streams);
    streams.map(Incoming::held_bytes).sum()
}

/// Gives up a stream that does not carry frames.
fn give_up(
    cx: &Context<'_>,
    peer: &Peer,
    out: &mut dyn Responses,
    session: ExchangeId,
    stream: u64,
    detail: &str,
) {
    if let Some(line) = cx.repeats(peer.connection, peer.name().unwrap_or_default(), detail) {
        tracing::info!(
            peer = line.peer,
            user = peer.name(),
            detail,
            more = line.more,
            "WebTransport stream given up"
        );
    }
    out.reset_session_stream(session, stream, BAD_FRAME);
}

fn incoming_mut(peer: &mut Peer, session: ExchangeId, stream: u64) -> Option<&mut Incoming> {
    let streams = &mut transport_mut(peer, session)?.streams;
    streams
        .iter_mut()
        .find(|incoming| incoming.stream == stream)
}

fn waiting_mut(peer: &mut Peer, session: ExchangeId, stream: u64) -> Option<&mut Waiting> {
    incoming_mut(peer, session, stream)?.waiting.as_deref_mut()
}

fn take_stream(peer: &mut Peer, session: ExchangeId, stream: u64) -> Option<Incoming> {
    let streams = &mut transport_mut(peer, session)?.streams;
    let at = streams
        .iter()
        .position(|incoming| incoming.stream == stream)?;
    Some(streams.swap_remove(at))
}
