//! Messages on their way to clients, and their outcomes.

use bytes::BytesMut;
use sterna_amqp::connection::{Connection, LinkId, SessionId};
use sterna_amqp::link::{OutgoingTransfer, Recovery, Unsettled};
use sterna_amqp::messaging::{DeliveryState, DeliveryStateBuf, Outcome};
use sterna_amqp::performatives::SenderSettleMode;
use sterna_amqp::{CommandError, Condition};
use sterna_broker::{self as broker, ConsumerId, Delivery, SessionKey, Unacknowledged};
use sterna_net::ConnectionId;

use super::Door;
use super::acknowledge::Acknowledgement;
use super::client::{Client, Drain, Sending, SourceLink, SourceState};
use super::recovery::DeliveryName;
use super::target::forget_of;
use crate::config::Protocol;
use crate::context::Context;
use crate::door::{Promise, StepOutput};
use crate::mapping::{AmqpForm, amqp_form, tail as tail_of};
use crate::metrics::DropReason;

/// A client's disposition of one delivery.
#[derive(Debug)]
pub(super) struct Disposed {
    pub(super) link: LinkId,
    pub(super) delivery_id: u32,
    pub(super) token: u64,
    pub(super) state: Option<DeliveryStateBuf>,
    pub(super) settled: bool,
}

/// Deliveries that go back to their queues, in the order in which they were sent.
pub(super) type Returned = Vec<(SessionKey, u64, broker::Outcome)>;

/// Gives deliveries back, the latest first, so that they keep their order.
pub(super) fn give_back(cx: &mut Context<'_>, returned: &mut Returned) {
    let now_ms = cx.now_ms;
    for (session, tag, outcome) in returned.drain(..).rev() {
        cx.broker.settle(now_ms, session, tag, outcome);
    }
}

/// Lets a source go on.
pub(super) fn unpark(cx: &mut Context<'_>, source: &mut SourceLink) {
    if std::mem::take(&mut source.parked) {
        cx.broker.unpark(source.session);
    }
}

/// The broker's outcome for an outcome of AMQP.
pub(super) fn broker_outcome(outcome: &Outcome<'_>) -> broker::Outcome {
    match outcome {
        Outcome::Accepted => broker::Outcome::Accepted,
        // The reason code of MQTT 5.0 for an unspecified error.
        Outcome::Rejected(_) => broker::Outcome::Rejected(0x80),
        Outcome::Modified(modified) if modified.undeliverable_here => {
            if modified.delivery_failed {
                broker::Outcome::Undeliverable
            } else {
                broker::Outcome::Declined
            }
        }
        Outcome::Modified(modified) if modified.delivery_failed => broker::Outcome::Failed,
        Outcome::Released | Outcome::Modified(_) => broker::Outcome::Released,
    }
}

/// Keeps the annotations with which a receiver gives a message back, for its next delivery (part 3,
/// section 3.4.4).
pub(super) fn modify(
    cx: &mut Context<'_>,
    receiver: ConnectionId,
    session: SessionKey,
    tag: u64,
    state: &DeliveryState<'_>,
) {
    let DeliveryState::Outcome(Outcome::Modified(modified)) = state else {
        return;
    };
    let Some(annotations) = modified.message_annotations.filter(|map| !map.is_empty()) else {
        return;
    };
    let Some(Unacknowledged::Sent(delivery)) = cx.broker.unacknowledged_by_tag(session, tag) else {
        return;
    };
    let form = AmqpForm {
        message: &delivery.message,
        qos: delivery.qos,
        retain: delivery.retain,
        redelivered: false,
        failures: 0,
        now_ms: cx.now_ms.max(delivery.message.published_ms()),
        source: "",
    };
    let max_bytes = cx.policy.amqp.maximum_modified_annotations_bytes as usize;
    if let Some(message) = crate::mapping::modified(&form, annotations, max_bytes) {
        cx.broker.replace(session, tag, message);
    } else if let Some(line) = cx.repeats(receiver, "", "annotations are not kept") {
        tracing::info!(
            peer = line.peer,
            topic = delivery.message.topic(),
            max_bytes,
            more = line.more,
            "annotations of a message that a receiver has modified are not kept: they are malformed, or \
             more than amqp.maximum_modified_annotations_bytes"
        );
    }
}

/// Whether an outcome puts the message back into its queue.
pub(super) const fn is_returning(outcome: broker::Outcome) -> bool {
    matches!(
        outcome,
        broker::Outcome::Released
            | broker::Outcome::Failed
            | broker::Outcome::Undeliverable
            | broker::Outcome::Declined
    )
}

impl Door {
    /// Sends messages that wait for a session, as far as its link's credit and the transport allow.
    pub(crate) fn deliver(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        let mut found = false;
        if let Some((connection, link)) = self.place_of(consumer) {
            self.with_client(cx, connection, |door, cx, client| {
                let source = client.sources.get(&link);
                if source.is_some_and(|source| source.session == session) {
                    found = true;
                    door.pump(cx, client, link);
                }
            });
        }
        if !found {
            cx.broker.park(session);
        }
    }

    /// The receiver has set its credit.
    pub(super) fn credit(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        credit: u32,
        drain: bool,
        in_transaction: bool,
    ) {
        let Some(source) = client.sources.get_mut(link) else {
            return;
        };
        if in_transaction {
            let detail = "messages cannot be acquired in a transaction";
            let error = (Condition::NOT_IMPLEMENTED, detail);
            // A link that is gone needs no error.
            self.detach_source(client, link, true, error);
            return;
        }
        let now_ms = cx.now_ms;
        Self::ask(cx, &client.engine, link, source, credit);
        if drain {
            source.drain = Drain::Asked;
            cx.broker.drain(now_ms, source.session);
        } else {
            source.drain = Drain::No;
        }
        self.resume(cx, client, link);
    }

    /// Grants the messages that its receiver takes to the queues that a link reads, but no more than may be
    /// unsettled. A queue no longer counts messages that it has given away.
    fn ask(
        cx: &mut Context<'_>,
        engine: &Connection,
        link: LinkId,
        source: &mut SourceLink,
        credit: u32,
    ) {
        let most = cx.policy.amqp.maximum_unsettled_deliveries;
        let room = most.saturating_sub(engine.unsettled_on(link));
        source.is_capped = credit > room;
        let now_ms = cx.now_ms;
        cx.broker.demand(now_ms, source.session, credit.min(room));
    }

    /// Nothing is on its way to a session any more.
    pub(crate) fn drained(
        &mut self,
        cx: &mut Context<'_>,
        consumer: ConsumerId,
        session: SessionKey,
    ) {
        let Some((connection, link)) = self.place_of(consumer) else {
            return;
        };
        self.with_client(cx, connection, |door, cx, client| {
            if let Some(source) = client.sources.get_mut(link)
                && source.session == session
                && source.drain == Drain::Asked
            {
                source.drain = Drain::Ready;
                door.resume(cx, client, link);
            }
        });
    }

    /// The transport lets all links go on.
    pub(super) fn resume_all(&mut self, cx: &mut Context<'_>, client: &mut Client) {
        let mut links: Vec<LinkId> = client.sources.keys().copied().collect();
        links.sort_unstable();
        for link in links {
            self.resume(cx, client, link);
        }
    }

    /// The session's window lets its links go on.
    pub(super) fn window(&mut self, cx: &mut Context<'_>, client: &mut Client, session: SessionId) {
        let links: Vec<LinkId> = client.engine.links_of(session).collect();
        for link in links {
            self.resume(cx, client, link);
        }
    }

    /// Lets a link go on.
    pub(super) fn resume(&mut self, cx: &mut Context<'_>, client: &mut Client, link: LinkId) {
        if let Some(source) = client.sources.get_mut(link) {
            unpark(cx, source);
            self.pump(cx, client, link);
        }
    }

    /// Sends as much as there is, and as may be sent now.
    fn pump(&mut self, cx: &mut Context<'_>, client: &mut Client, link: LinkId) {
        let Some(source) = client.sources.get_mut(link) else {
            return;
        };
        let session = source.session;
        if !matches!(source.state, SourceState::Attached) {
            cx.broker.park(session);
            source.parked = true;
            return;
        }
        let pump = Pump {
            link,
            now_ms: cx.now_ms,
            unsent_bytes: cx.net.unsent_bytes(client.id),
            high_watermark_bytes: self.high_watermark_bytes,
        };
        let mut is_done = false;
        for _ in 0..cx.broker.messages_of_visit() {
            let sent = pump.one(cx, &mut client.engine, source, &mut self.out);
            match sent {
                Step::Sent { payload_bytes } => {
                    self.counts.messages_sent += 1;
                    self.counts.publish_sent += 1;
                    client.sips.tally.sent += 1;
                    self.counts.publish_bytes_sent += payload_bytes;
                }
                Step::Skipped => {}
                Step::Wait => {
                    cx.broker.park(session);
                    source.parked = true;
                    is_done = client.engine.credit(link) == 0;
                    break;
                }
                Step::Empty => {
                    is_done = !cx.broker.is_undecided(session);
                    break;
                }
            }
        }
        // There is nothing more, or no credit left: either way a drain is done.
        if is_done && source.drain == Drain::Ready && source.sending.is_none() {
            source.drain = Drain::No;
            // A link that is gone has no credit to give back.
            let _ = client.engine.drained(link, 0, &mut self.out);
        }
        if source.is_capped && source.drain == Drain::No {
            let credit = client.engine.credit(link);
            Self::ask(cx, &client.engine, link, source, credit);
        }
    }

    /// Settles or resumes a delivery from before the link was suspended.
    pub(super) fn recover(
        cx: &mut Context<'_>,
        client: &mut Client,
        link: LinkId,
        delivery: Unsettled,
        recovery: Recovery,
    ) {
        let Some(source) = client.sources.get_mut(link) else {
            // A target's deliveries were published before: the rest is for the engines.
            let target = client.targets.get(&link);
            if let Some(exact) = target.and_then(|target| target.exact.as_ref()) {
                match recovery {
                    Recovery::Resumed { delivery_id } => exact.resumed(&delivery.tag, delivery_id),
                    Recovery::Settled(_) => {
                        let claim = target.and_then(|target| target.claim);
                        forget_of(cx, claim, exact.settled_before(&delivery.tag));
                    }
                    _ => {}
                }
            }
            return;
        };
        let known = match &recovery {
            Recovery::Settle(state) => Some(Some(state)),
            Recovery::Settled(state) => Some(state.as_ref()),
            _ => None,
        };
        if let Some(state) = known {
            let state = state.or(source.default_outcome.as_ref());
            let outcome = match state.map(DeliveryStateBuf::view) {
                Some(DeliveryState::Outcome(outcome)) => broker_outcome(&outcome),
                _ => broker::Outcome::Accepted,
            };
            if let Some(state) = state.filter(|_| is_returning(outcome)) {
                modify(cx, client.id, source.session, delivery.token, &state.view());
            }
            let now_ms = cx.now_ms;
            cx.broker
                .settle(now_ms, source.session, delivery.token, outcome);
        }
        if !matches!(recovery, Recovery::Settled(_) | Recovery::Wait) {
            source.resuming.push_back((delivery, recovery));
        }
    }

    /// A client has told the state of a delivery.
    pub(super) fn disposed(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client,
        disposed: &Disposed,
        returned: &mut Returned,
    ) {
        let link = disposed.link;
        let Some(source) = client.sources.get(&link) else {
            // A sender has settled a delivery that its receiver settles second: there is room for another.
            let target = client.targets.get(&link);
            if let Some(exact) = target.and_then(|target| target.exact.as_ref())
                && disposed.settled
            {
                let claim = target.and_then(|target| target.claim);
                forget_of(cx, claim, exact.settled(disposed.delivery_id));
            }
            return self.renew_credit(cx, client, link);
        };
        let session = source.session;
        let told = disposed.state.as_ref().filter(|told| {
            let view = told.view();
            view.is_terminal() || matches!(view, DeliveryState::Transactional(_))
        });
        let default = (source.default_outcome.as_ref())
            .filter(|_| disposed.settled && told.is_none())
            .cloned();
        let state = told.or(default.as_ref()).map(DeliveryStateBuf::view);
        let outcome = match &state {
            Some(DeliveryState::Transactional(state)) => {
                self.retire(cx, client, disposed, session, state, returned);
                return self.resume(cx, client, link);
            }
            Some(DeliveryState::Outcome(outcome)) => broker_outcome(outcome),
            // Settled without an outcome, and without a default one (part 3, section 3.5.3).
            _ if disposed.settled => broker::Outcome::Accepted,
            _ => return,
        };
        let id = disposed.delivery_id;
        if let Some(state) = &state
            && !disposed.settled
            && !is_returning(outcome)
        {
            let now_ms = cx.now_ms;
            let (_, token) = cx.appended(|cx| {
                (cx.broker).settle_for_good(now_ms, session, disposed.token, outcome)
            });
            let settled = Acknowledgement::SettledForGood {
                link,
                delivery_id: id,
                state: DeliveryStateBuf::new(state),
            };
            let promise = Promise::once(cx, client.listener).at(token);
            self.acknowledge(cx, client, promise, settled);
            return self.resume(cx, client, link);
        }
        if !disposed.settled {
            // A session that has ended needs no answer.
            let _ = client
                .engine
                .settle(link.session, (id, id), state.as_ref(), &mut self.out);
        }
        if disposed.token != 0 {
            if is_returning(outcome) {
                if let Some(state) = &state {
                    modify(cx, client.id, session, disposed.token, state);
                }
                returned.push((session, disposed.token, outcome));
            } else {
                let now_ms = cx.now_ms;
                cx.broker.settle(now_ms, session, disposed.token, outcome);
            }
        }
        self.resume(cx, client, link);
    }
}

/// The result of one step of a pump.
enum Step {
    /// A message has been sent, or its last part.
    Sent { payload_bytes: u64 },
    /// Something else has been done; there may be more.
    Skipped,
    /// Credit, window or transport have to let it go on.
    Wait,
    /// There is nothing more.
    Empty,
}

/// Sends messages of one link.
struct Pump {
    link: LinkId,
    now_ms: u64,
    /// Bytes that the transport had not taken over when the turn began.
    unsent_bytes: usize,
    high_watermark_bytes: usize,
}

impl Pump {
    /// Bytes that may be written before the transport has to take some over.
    fn room_bytes(&self, out: &StepOutput) -> usize {
        self.high_watermark_bytes
            .saturating_sub(self.unsent_bytes + out.len())
    }

    fn one(
        &self,
        cx: &mut Context<'_>,
        engine: &mut Connection,
        source: &mut SourceLink,
        out: &mut StepOutput,
    ) -> Step {
        if self.room_bytes(out) == 0 {
            return Step::Wait;
        }
        if source.sending.is_some() {
            return self.go_on(cx, engine, source, out);
        }
        if !engine.can_send(self.link) {
            return Step::Wait;
        }
        if let Some((delivery, recovery)) = source.resuming.pop_front() {
            return self.recover(cx, engine, source, &delivery, &recovery, out);
        }
        if engine.is_incomplete(self.link) {
            if engine.unsettled_on(self.link) == 0 {
                // All that both ends know of is settled. The next attach tells more (section 2.6.13); a link
                // that is gone already has been detached.
                let _ = engine.detach(self.link, false, None, out);
            }
            return Step::Wait;
        }
        let Some(delivery) = cx.broker.next_delivery(self.now_ms, source.session) else {
            return Step::Empty;
        };
        self.send(cx, engine, source, delivery, false, out)
    }

    /// Takes a delivery from before up again.
    fn recover(
        &self,
        cx: &mut Context<'_>,
        engine: &mut Connection,
        source: &mut SourceLink,
        delivery: &Unsettled,
        recovery: &Recovery,
        out: &mut StepOutput,
    ) -> Step {
        let tag = delivery.tag.as_bytes();
        match recovery {
            Recovery::Settle(state) => {
                let transfer = OutgoingTransfer {
                    settled: true,
                    resume: true,
                    state: Some(state.view()),
                    ..OutgoingTransfer::new(tag, delivery.token)
                };
                // It may be sent: that was asked before.
                let _ = engine.transfer(self.link, &transfer, &[], false, out);
                Step::Skipped
            }
            Recovery::Abort => {
                // As above.
                let _ = engine.abort_resumed(self.link, tag, out);
                Step::Skipped
            }
            Recovery::Resend | Recovery::Resume(_) => {
                let entry = cx
                    .broker
                    .unacknowledged_by_tag(source.session, delivery.token);
                let Some(Unacknowledged::Sent(again)) = entry else {
                    // It waits in the queue again, since a restart.
                    // It may be sent: that was asked before.
                    let _ = engine.abort_resumed(self.link, tag, out);
                    return Step::Skipped;
                };
                let resume = matches!(recovery, Recovery::Resume(_));
                self.send(cx, engine, source, again, resume, out)
            }
            Recovery::Settled(_) | Recovery::Resumed { .. } | Recovery::Wait => Step::Skipped,
        }
    }

    /// Begins to send a message.
    fn send(
        &self,
        cx: &mut Context<'_>,
        engine: &mut Connection,
        source: &mut SourceLink,
        delivery: Delivery,
        resume: bool,
        out: &mut StepOutput,
    ) -> Step {
        // A message of another shard may be a few milliseconds ahead of this turn's clock. The rest of its
        // interval is never more than the whole.
        let now_ms = self.now_ms.max(delivery.message.published_ms());
        let form = AmqpForm {
            message: &delivery.message,
            qos: delivery.qos,
            retain: delivery.retain,
            redelivered: delivery.redelivered,
            failures: delivery.failures,
            now_ms,
            source: &source.address,
        };
        let mut head = BytesMut::new();
        let tail = amqp_form(&form, &mut head);
        let (broker_tag, own_tag);
        let tag = if delivery.tag != 0 {
            let place = if source.names_places {
                delivery.position
            } else {
                0
            };
            broker_tag = DeliveryName::of(delivery.tag, place);
            broker_tag.as_bytes()
        } else {
            own_tag = source.next_number.to_be_bytes();
            source.next_number = source.next_number.wrapping_add(1);
            &own_tag[..]
        };
        let settled = match source.snd_settle_mode {
            SenderSettleMode::Settled => true,
            SenderSettleMode::Unsettled => false,
            SenderSettleMode::Mixed => delivery.tag == 0,
        };
        let transfer = OutgoingTransfer {
            settled,
            resume,
            batchable: !settled,
            ..OutgoingTransfer::new(tag, delivery.tag)
        };
        // Of a large message no more than the transport has room for: the rest waits here.
        let whole = head.len() + tail.len();
        let now_bytes = whole.min(self.room_bytes(out).max(head.len()));
        let pieces = [&head[..], &tail[..now_bytes - head.len()]];
        let more = now_bytes < whole;
        // The engine sees the first part alone, and a part of what is too large is of no use.
        let most = engine.peer_max_message_bytes(self.link);
        let transferred = if most.is_some_and(|most| whole as u64 > most) {
            Err(CommandError::MessageTooLarge)
        } else {
            engine.transfer(self.link, &transfer, &pieces, more, out)
        };
        match transferred {
            Ok(sent) if sent.complete => self.sent(cx, source, &delivery),
            Ok(sent) => {
                source.sending = Some(Sending {
                    head: head.freeze(),
                    tail_bytes: tail.len(),
                    sent_bytes: sent.payload_bytes,
                    delivery,
                });
                Step::Wait
            }
            Err(CommandError::MessageTooLarge | CommandError::FrameTooLarge) => {
                if resume {
                    // The receiver still has the beginning of it. It may be sent: that was asked before.
                    let _ = engine.abort_resumed(self.link, tag, out);
                }
                self.too_large(cx, source, &delivery)
            }
            Err(_) => {
                let released = broker::Outcome::Released;
                cx.broker
                    .settle(self.now_ms, source.session, delivery.tag, released);
                Step::Wait
            }
        }
    }

    /// Goes on with a message of which parts have been sent.
    fn go_on(
        &self,
        cx: &mut Context<'_>,
        engine: &mut Connection,
        source: &mut SourceLink,
        out: &mut StepOutput,
    ) -> Step {
        let Some(mut sending) = source.sending.take() else {
            return Step::Skipped;
        };
        let message = &sending.delivery.message;
        let tail = tail_of(message, sending.tail_bytes);
        let whole = sending.head.len() + tail.len();
        let end = whole.min(sending.sent_bytes + self.room_bytes(out));
        let part = |piece: &'_ [u8], offset: usize| {
            let from = sending.sent_bytes.saturating_sub(offset).min(piece.len());
            let to = end.saturating_sub(offset).min(piece.len());
            from..to.max(from)
        };
        let head_part = &sending.head[part(&sending.head, 0)];
        let tail_part = &tail[part(tail, sending.head.len())];
        let more = end < whole;
        match engine.transfer_more(self.link, &[head_part, tail_part], more, out) {
            Ok(sent) if sent.complete => {
                let delivery = sending.delivery;
                self.sent(cx, source, &delivery)
            }
            Ok(sent) => {
                sending.sent_bytes += sent.payload_bytes;
                source.sending = Some(sending);
                Step::Wait
            }
            Err(CommandError::NoCredit) => {
                source.sending = Some(sending);
                Step::Wait
            }
            Err(CommandError::MessageTooLarge | CommandError::FrameTooLarge) => {
                // Nothing is sent behind a part without its end. It may be sent: there is a window.
                let _ = engine.abort(self.link, out);
                let delivery = sending.delivery;
                self.too_large(cx, source, &delivery)
            }
            // The link is gone.
            Err(_) => Step::Skipped,
        }
    }

    /// A message cannot be sent on this link.
    fn too_large(&self, cx: &mut Context<'_>, source: &SourceLink, delivery: &Delivery) -> Step {
        if delivery.tag == 0 {
            // The broker knows no more of it.
            let (message, reason) = (&delivery.message, DropReason::TooLarge);
            (cx.meters).drop_delivery(Protocol::Amqp, &source.name, message, reason);
        }
        // The consumer has not seen it.
        let declined = broker::Outcome::Declined;
        cx.broker
            .settle(self.now_ms, source.session, delivery.tag, declined);
        Step::Skipped
    }

    fn sent(&self, cx: &mut Context<'_>, source: &SourceLink, delivery: &Delivery) -> Step {
        (cx.meters.delays(Protocol::Amqp)).delivered(delivery, self.now_ms);
        if source.snd_settle_mode == SenderSettleMode::Settled && delivery.tag != 0 {
            let accepted = broker::Outcome::Accepted;
            cx.broker
                .settle(self.now_ms, source.session, delivery.tag, accepted);
        }
        Step::Sent {
            payload_bytes: delivery.message.payload().len() as u64,
        }
    }
}
