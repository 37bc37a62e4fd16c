//! Messages on their way to a client.

use bytes::{Bytes, BytesMut};
use sterna_broker::{
    Close, ConsumerId, Delivery, EndCause, Outcome, Qos, SessionKey, Unacknowledged,
};
use sterna_http::{Content, Responses};

use super::Api;
use super::answer::respond;
use super::end::finish;
use super::open::reserve_ids;
use super::peer::Peer;
use super::subscription::{Keep, Outlet, Sending, State, Subscription};
use crate::config::Protocol;
use crate::context::Context;
use crate::http::format::{OutgoingMessage, Place, write_datagram};
use crate::inspect::Tally;
use crate::session::http::{Window, state_mut};
use crate::sys::Counts;

/// Bytes that are gathered before they are handed to the transport: a piece of a long message.
const GATHERED_BYTES: usize = 16 << 10;

/// Bytes of messages above which a poll takes no more. The rest of a longer one follows piece by piece.
const POLL_BYTES: usize = 256 << 10;

/// Above this the buffer is given back after use instead of being kept.
const KEPT_BYTES: usize = 256 << 10;

/// Why the queue was left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Nothing is in it.
    Empty,
    /// It is another's turn, or the poll is full.
    More,
    /// There is no room, or too much is not acknowledged.
    Parked,
    /// The session is not this consumer's any more.
    Gone,
    /// The poll has its last message.
    Over,
}

impl Api {
    /// Sends messages that wait for a session, as far as its client takes them.
    pub(crate) fn deliver(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        let is_it = |subscription: &Subscription| {
            subscription.consumer == consumer
                && subscription.session == session
                && !matches!(subscription.state, State::Opening(_))
        };
        match peer.subscriptions.iter().position(is_it) {
            Some(at) => self.pump(cx, peer, out, at),
            None => cx.broker.park(session),
        }
    }

    /// There is room again in some responses.
    pub(crate) fn writable(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
    ) {
        resume_parked(cx, peer, |_| true);
        self.resume_held(cx, peer, out);
    }

    /// Sends messages that wait for a subscription: first those to be sent again, then new ones.
    pub(super) fn pump(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        at: usize,
    ) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let subscription = &mut peer.subscriptions[at];
        subscription.parked = false;
        if matches!(subscription.outlet, Outlet::Poll(_)) {
            self.poll(cx, peer, out, at, &mut buffer);
        } else {
            let counted = (&mut self.counts, &mut peer.sips.tally);
            let left = stream(cx, out, subscription, &mut buffer, counted);
            match left {
                Left::Parked => {
                    subscription.parked = true;
                    cx.broker.park(subscription.session);
                }
                Left::More if subscription.has_more() => {
                    cx.broker.note_more(subscription.session);
                }
                Left::Over => {
                    finish(out, subscription);
                    self.end_poll(cx, peer, at);
                }
                Left::Empty if is_over(cx, subscription) => {
                    self.end_response(cx, peer, out, at, EndCause::Deleted);
                }
                Left::Empty | Left::More | Left::Gone => {}
            }
        }
        buffer.clear();
        if buffer.capacity() <= KEPT_BYTES {
            self.buffer = buffer;
        }
    }

    /// Answers a poll, if there is anything.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        peer: &mut Peer,
        out: &mut dyn Responses,
        at: usize,
        buffer: &mut BytesMut,
    ) {
        let subscription = &mut peer.subscriptions[at];
        let Outlet::Poll(polling) = &subscription.outlet else {
            return;
        };
        let is_late = cx.now_ms >= polling.deadline_ms;
        // The poll has nothing to say while the client does not take the output of others.
        let has_room = out.has_room(subscription.exchange);
        if !has_room && !is_late {
            subscription.parked = true;
            cx.broker.park(subscription.session);
            return;
        }
        let mut left = if has_room { polling.poll.max } else { 0 };
        buffer.extend_from_slice(subscription.format.opening());
        let mut last = polling.after;
        let mut gathered = 0;
        while left > 0 && buffer.len() < POLL_BYTES {
            let mut sending = match next(cx, subscription) {
                Ok(next) => next,
                Err(reason) => {
                    if reason == Left::Parked {
                        subscription.parked = true;
                        cx.broker.park(subscription.session);
                    }
                    break;
                }
            };
            count(cx, &mut self.counts, &sending.delivery);
            peer.sips.tally.sent += 1;
            last = Some(sending.id).filter(|id| *id != 0).unwrap_or(last);
            let is_first = gathered == 0;
            gathered += 1;
            left -= 1;
            if !write(subscription, &mut sending, is_first, buffer, POLL_BYTES) {
                subscription.unfinished = Some(Box::new(sending));
                break;
            }
        }
        cx.broker.note_copied(buffer.len());
        let now_ms = cx.now_ms;
        let Outlet::Poll(polling) = &mut subscription.outlet else {
            return;
        };
        polling.after = last;
        let is_over = now_ms >= polling.deadline_ms || matches!(subscription.state, State::Ending);
        if gathered == 0 && !is_over {
            return;
        }
        let link = format!(
            "<{}session={}&after={last}>; rel=\"next\"",
            polling.next, subscription.name
        );
        let fields: [(&str, &[u8]); 5] = [
            ("link", link.as_bytes()),
            ("cache-control", b"no-store"),
            ("sterna-session", subscription.name.as_bytes()),
            ("x-content-type-options", b"nosniff"),
            ("content-type", subscription.format.media_type().as_bytes()),
        ];
        let (id, reader) = (subscription.exchange, &subscription.reader);
        if gathered == 0 {
            respond(out, id, reader, 204, &fields[..3], Content::Empty);
        } else if subscription.unfinished.is_some() {
            respond(out, id, reader, 200, &fields, Content::Open);
            self.counts.messages_sent += 1;
            subscription.outlet = Outlet::LastOfPoll;
            flush(out, subscription, buffer, now_ms);
            return cx.broker.note_more(subscription.session);
        } else {
            buffer.extend_from_slice(subscription.format.closing());
            respond(out, id, reader, 200, &fields, Content::Whole(buffer));
        }
        self.counts.messages_sent += 1;
        self.end_poll(cx, peer, at);
    }

    /// A poll was answered.
    fn end_poll(&mut self, cx: &mut Context<'_>, peer: &mut Peer, at: usize) {
        let subscription = &peer.subscriptions[at];
        let close = if matches!(subscription.state, State::Ending) {
            subscription.ended_for(EndCause::Deleted)
        } else {
            Close::NORMAL
        };
        self.drop_subscription(cx, peer, at, Some(close));
    }
}

/// Lets parked subscriptions go on, in their turn.
pub(super) fn resume_parked(
    cx: &mut Context<'_>,
    peer: &mut Peer,
    which: impl Fn(&Subscription) -> bool,
) {
    for subscription in &mut peer.subscriptions {
        if subscription.parked && which(subscription) {
            subscription.parked = false;
            if subscription.has_more() {
                cx.broker.note_more(subscription.session);
            }
            cx.broker.unpark(subscription.session);
        }
    }
}

/// Sends messages that wait for a subscription whose response does not end.
fn stream(
    cx: &mut Context<'_>,
    out: &mut dyn Responses,
    subscription: &mut Subscription,
    buffer: &mut BytesMut,
    (counts, tally): (&mut Counts, &mut Tally),
) -> Left {
    let now_ms = cx.now_ms;
    let mut has_room = out.has_room(subscription.exchange);
    let most = cx.broker.messages_of_visit();
    let mut pieces = 0;
    let left = loop {
        if buffer.len() >= GATHERED_BYTES {
            flush(out, subscription, buffer, now_ms);
            has_room = out.has_room(subscription.exchange);
        }
        if !has_room {
            break Left::Parked;
        }
        // One in any case: each session has its turn.
        if pieces >= most || (pieces > 0 && cx.broker.has_delivered()) {
            break Left::More;
        }
        pieces += 1;
        let mut sending = if let Some(unfinished) = subscription.unfinished.take() {
            *unfinished
        } else if matches!(subscription.outlet, Outlet::LastOfPoll) {
            buffer.extend_from_slice(subscription.format.closing());
            break Left::Over;
        } else {
            let next = match next(cx, subscription) {
                Ok(next) => next,
                Err(left) => break left,
            };
            count(cx, counts, &next.delivery);
            tally.sent += 1;
            if send_datagram(out, subscription, &next.item()) {
                continue;
            }
            next
        };
        subscription.quiet_since_ms = now_ms;
        let before = buffer.len();
        let is_whole = write(subscription, &mut sending, false, buffer, GATHERED_BYTES);
        cx.broker.note_copied(buffer.len() - before);
        if !is_whole {
            subscription.unfinished = Some(Box::new(sending));
        } else if let Some(payload) = shared_payload(subscription, &sending) {
            flush(out, subscription, buffer, now_ms);
            subscription.flow.sent(payload.len(), now_ms);
            // Over TCP the carrier copies it.
            cx.broker.note_copied(payload.len());
            out.send_shared(subscription.exchange, payload);
            has_room = out.has_room(subscription.exchange);
        }
    };
    flush(out, subscription, buffer, now_ms);
    left
}

/// The payload that goes behind a message without a copy. A stream of a WebTransport session takes copies only.
fn shared_payload(subscription: &Subscription, sending: &Sending) -> Option<Bytes> {
    matches!(subscription.outlet, Outlet::Stream)
        .then(|| (subscription.format).shared_payload(&sending.delivery.message))?
}

/// Appends a piece of a message, until the buffer has so many bytes; whether it is the last one.
fn write(
    subscription: &Subscription,
    sending: &mut Sending,
    is_first: bool,
    buffer: &mut BytesMut,
    until_bytes: usize,
) -> bool {
    let mut place = sending.place;
    let to = (buffer, until_bytes);
    let (format, name) = (subscription.format, &*subscription.name);
    let is_whole = format.write(&sending.item(), name, is_first, &mut place, to);
    sending.place = place;
    is_whole
}

/// Sends a message as a datagram, if it is one of QoS 0 on a WebTransport session, and small enough.
fn send_datagram(
    out: &mut dyn Responses,
    subscription: &Subscription,
    item: &OutgoingMessage<'_>,
) -> bool {
    let is_small = item.message.body_bytes() < sterna_net::SHARE_BYTES;
    if !matches!(subscription.outlet, Outlet::Transport { .. }) || item.id != 0 || !is_small {
        return false;
    }
    let mut datagram = BytesMut::new();
    write_datagram(item, &mut datagram);
    out.send_session_datagram(subscription.exchange, &datagram)
}

/// Takes the next message, if one may be sent.
fn next(cx: &mut Context<'_>, subscription: &mut Subscription) -> Result<Sending, Left> {
    let (id, delivery) = take_next(cx, subscription)?;
    let leaves_payload = matches!(subscription.outlet, Outlet::Stream)
        && (subscription.format.shared_payload(&delivery.message)).is_some();
    Ok(Sending {
        id: id.unwrap_or(0),
        delivery,
        begun_ms: cx.now_ms,
        place: Place::begin(leaves_payload),
    })
}

/// The same, with its id.
fn take_next(
    cx: &mut Context<'_>,
    subscription: &mut Subscription,
) -> Result<(Option<u64>, Delivery), Left> {
    let now_ms = cx.now_ms;
    let session = subscription.session;
    while let Some((id, tag)) = subscription.resend.pop_front() {
        let Some(Unacknowledged::Sent(mut delivery)) =
            cx.broker.unacknowledged_by_tag(session, tag)
        else {
            continue;
        };
        if delivery.message.is_expired(now_ms) {
            state_mut(cx.broker, session).map(|state| state.acknowledge(&[id]));
            cx.broker.settle(now_ms, session, tag, Outcome::Accepted);
            continue;
        }
        delivery.redelivered = true;
        return Ok((Some(id), delivery));
    }
    let qos = next_qos(cx, subscription, now_ms).ok_or(Left::Empty)?;
    let state = state_mut(cx.broker, session).ok_or(Left::Gone)?;
    if let Keep::Acknowledged(window) = subscription.keep
        && qos.is_acknowledged()
        && state.fills(window)
    {
        return Err(Left::Parked);
    }
    let delivery = cx
        .broker
        .next_delivery(now_ms, session)
        .ok_or(Left::Empty)?;
    if delivery.tag == 0 {
        return Ok((None, delivery));
    }
    let state = state_mut(cx.broker, session).ok_or(Left::Gone)?;
    let id = state.sent(
        delivery.tag,
        delivery.position,
        delivery.message.body_bytes(),
    );
    reserve_ids(cx, session);
    if let Keep::Last(window) = subscription.keep {
        while let Some(tag) =
            state_mut(cx.broker, session).and_then(|state| state.take_beyond(window))
        {
            cx.broker.settle(now_ms, session, tag, Outcome::Accepted);
        }
    }
    Ok((Some(id), delivery))
}

/// The QoS of the next message that may be sent. If the session is full, messages that are kept only in case the
/// response is cut off make room.
fn next_qos(cx: &mut Context<'_>, subscription: &Subscription, now_ms: u64) -> Option<Qos> {
    const NOTHING: Window = Window {
        messages: 0,
        bytes: 0,
    };
    let session = subscription.session;
    loop {
        if let Some(next) = cx.broker.next(now_ms, session) {
            return Some(next.qos());
        }
        let waits = cx
            .broker
            .queue(session)
            .is_some_and(|queue| queue.pending > 0);
        if !waits || !matches!(subscription.keep, Keep::Last(_)) {
            return None;
        }
        let tag = state_mut(cx.broker, session)?.take_beyond(NOTHING)?;
        cx.broker.settle(now_ms, session, tag, Outcome::Accepted);
    }
}

/// Whether a subscription has ended and nothing waits in its queue, not even for acknowledgements.
fn is_over(cx: &Context<'_>, subscription: &Subscription) -> bool {
    let queue = cx.broker.queue(subscription.session);
    matches!(subscription.state, State::Ending) && queue.is_none_or(|queue| queue.pending == 0)
}

fn count(cx: &Context<'_>, counts: &mut Counts, delivery: &Delivery) {
    (cx.meters.delays(Protocol::Http)).delivered(delivery, cx.now_ms);
    counts.messages_sent += 1;
    counts.publish_sent += 1;
    counts.publish_bytes_sent += delivery.message.payload().len() as u64;
}

/// Hands over the gathered bytes.
pub(super) fn flush(
    out: &mut dyn Responses,
    subscription: &mut Subscription,
    buffer: &mut BytesMut,
    now_ms: u64,
) {
    if buffer.is_empty() {
        return;
    }
    match subscription.outlet {
        Outlet::Transport { stream } => {
            out.send_on_session_stream(subscription.exchange, stream, buffer);
        }
        Outlet::Stream | Outlet::LastOfPoll | Outlet::Poll(_) => {
            out.send(subscription.exchange, buffer);
        }
    }
    subscription.flow.sent(buffer.len(), now_ms);
    buffer.clear();
}
