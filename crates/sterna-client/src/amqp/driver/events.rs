//! Turns events of the engine into state, and into answers to the application.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use sterna_amqp::Condition;
use sterna_amqp::connection::{Delivery, ErrorBuf, Event as Input, LinkId, Payload};
use sterna_amqp::link::{Recovery, Unsettled};
use sterna_amqp::messaging::{DeliveryState, DeliveryStateBuf, Source, Target, TargetArchetype};
use sterna_amqp::performatives::{Attach, Error as WireError, ReceiverSettleMode, Role};

use super::state::{Arrived, EarlyMessage, Kind, LinkInfo, ReceiverState, SenderState};
use super::wire::{Closing, Wire};
use super::{Driver, OutgoingAmqpMessage};
use crate::amqp::Error;
use crate::amqp::connection::Connected;
use crate::amqp::memory::{CREDITS, announced};
use crate::link::Status;

/// Most attempts to begin a session or attach a link again on one connection without progress.
const MAX_RESTARTS: u32 = 3;

impl Wire {
    /// Handles what else follows from the last unit or command.
    pub(super) fn drain_events(&mut self, driver: &mut Driver) -> Result<(), Error> {
        while let Some(event) = self.engine.next_event() {
            self.handle(driver, event)?;
        }
        Ok(())
    }

    pub(super) fn handle(&mut self, driver: &mut Driver, event: Input<'_>) -> Result<(), Error> {
        match event {
            Input::Authenticated => self.open_sent = true,
            Input::Open(open) => {
                self.is_open = true;
                self.open_sent = true;
                driver.connections += 1;
                if self.carrier.quic.is_some() {
                    CREDITS.remember(&driver.options.url, announced(&open));
                    self.carrier.remember();
                }
                tracing::debug!(container_id = open.container_id, "open received");
                driver.set_connected(Connected {
                    peer: self.carrier.peer,
                    container_id: open.container_id.to_owned(),
                    connections: driver.connections,
                    early_data: self.carrier.early_data(),
                });
            }
            Input::Begun { session, .. } => {
                let key = driver.session_keys.get(&session);
                if let Some(session) = key.and_then(|key| driver.sessions.get_mut(key)) {
                    session.restarts = 0;
                }
            }
            Input::Attached { link, attach } => attached(driver, link, &attach),
            Input::Attach { link, .. } => {
                let error =
                    WireError::new(Condition::NOT_ALLOWED, "this client attaches its own links");
                let _ = self
                    .engine
                    .refuse_attach(link, error, &mut self.carrier.lanes);
            }
            Input::Credit { link, drain, .. } => {
                if let Some(key) = driver.link_keys.get(&link).copied() {
                    if let Some(sender) = driver.sender(key) {
                        sender.drain = drain;
                    }
                    driver.active.insert(key);
                }
            }
            Input::Window { session } => {
                let keys = driver.link_keys.iter();
                let woken = keys.filter(|(id, _)| id.session == session);
                driver.active.extend(woken.map(|(_, key)| *key));
            }
            Input::SenderFlow { link, credit, .. } => {
                if let Some(key) = driver.link_keys.get(&link).copied()
                    && let Some(receiver) = driver.receiver(key)
                    && credit == 0
                {
                    if receiver.window().is_none() {
                        receiver.granted = 0;
                    }
                    if let Some(done) = receiver.drain.take() {
                        let _ = done.send(Ok(()));
                    }
                    driver.thirsty.insert(key);
                }
            }
            Input::Delivery(delivery) => arrived(driver, delivery),
            Input::Aborted { link } => {
                if let Some(key) = driver.link_keys.get(&link).copied() {
                    if let Some(receiver) = driver.receiver(key) {
                        receiver.granted = receiver.granted.saturating_sub(1);
                    }
                    driver.thirsty.insert(key);
                }
            }
            Input::Disposition {
                link,
                delivery_id,
                token,
                state,
                settled,
            } => self.disposition(driver, link, delivery_id, token, state, settled),
            Input::Recover {
                link,
                delivery,
                recovery,
            } => recover(driver, link, delivery, recovery),
            Input::Detached {
                link,
                closed,
                error,
                unsettled,
            } => self.detached(driver, link, closed, error, unsettled),
            Input::Ended { session, error } => self.ended(driver, session, error),
            Input::Closed { error } => {
                if self.closing == Closing::No {
                    return Err(Error::Closed(error.map(Into::into)));
                }
            }
            // Servers begin no sessions with this client; one that does has been answered.
            Input::Begin { .. } | Input::SaslInit { .. } | Input::SaslResponse { .. } => {}
        }
        Ok(())
    }

    fn disposition(
        &mut self,
        driver: &mut Driver,
        link: LinkId,
        delivery_id: u32,
        token: u64,
        state: Option<DeliveryStateBuf>,
        settled: bool,
    ) {
        let Some(key) = driver.link_keys.get(&link).copied() else {
            return;
        };
        let Some(one) = driver.links.get_mut(&key) else {
            return;
        };
        match &mut one.kind {
            Kind::Receiver(receiver) => {
                if settled && let Some((_, done)) = receiver.decided.remove(&delivery_id) {
                    let _ = done.send(Ok(()));
                }
            }
            Kind::Sender(sender) => {
                let is_decided = state.as_ref().is_some_and(|state| match state.view() {
                    DeliveryState::Transactional(state) => state.outcome.is_some(),
                    state => state.is_terminal(),
                });
                if !settled && !is_decided {
                    return;
                }
                if !settled {
                    // The receiver waits for this end to settle.
                    let view = state.as_ref().map(DeliveryStateBuf::view);
                    let range = (delivery_id, delivery_id);
                    let _ = self.engine.settle(
                        link.session,
                        range,
                        view.as_ref(),
                        &mut self.carrier.lanes,
                    );
                }
                if let Some(message) = sender.sent.remove(&token) {
                    message.sent.tell(Ok(state));
                }
                // There is room for more, and a link whose maps were incomplete may be complete.
                driver.active.insert(key);
            }
        }
    }

    fn detached(
        &self,
        driver: &mut Driver,
        id: LinkId,
        closed: bool,
        error: Option<ErrorBuf>,
        unsettled: Vec<Unsettled>,
    ) {
        let Some(key) = driver.link_keys.remove(&id) else {
            return;
        };
        driver.active.remove(&key);
        driver.thirsty.remove(&key);
        driver.drop_decisions(key);
        let Some(link) = driver.links.get_mut(&key) else {
            return;
        };
        link.id = None;
        link.generation += 1;
        let was_asked = link.detach_sent;
        link.detach_sent = false;
        let was_attached = std::mem::take(&mut link.is_attached);
        link.unsettled = unsettled;
        match &mut link.kind {
            Kind::Sender(sender) => suspend_sender(sender, &mut link.unsettled, self.is_lost),
            Kind::Receiver(receiver) => suspend_receiver(receiver, &mut link.unsettled),
        }
        if was_asked && !self.is_lost {
            driver.end_link(key, &Error::Ended);
            return;
        }
        if self.is_lost {
            link.echoes.lost(self.started.elapsed(), was_attached);
            link.status.send_replace(Status::Pending);
            driver.unattached.insert(key);
            return;
        }
        let is_stolen = error
            .as_ref()
            .is_some_and(|error| *error.condition == *Condition::STOLEN.as_str());
        if is_stolen && link.echoes.explain(self.started.elapsed()) {
            link.status.send_replace(Status::Pending);
            driver.unattached.insert(key);
            return;
        }
        link.restarts += 1;
        if closed || error.is_some() || link.restarts > MAX_RESTARTS {
            driver.end_link(key, &Error::Detached(error.map(Into::into)));
        } else {
            link.status.send_replace(Status::Pending);
            driver.unattached.insert(key);
        }
    }

    fn ended(
        &mut self,
        driver: &mut Driver,
        id: sterna_amqp::connection::SessionId,
        error: Option<ErrorBuf>,
    ) {
        // The stream of the session ends with it, also if the peer ended it.
        if let Some(lane) = self.session_lanes.remove(&id) {
            self.carrier.lanes.finish(lane);
        }
        let Some(key) = driver.session_keys.remove(&id) else {
            return;
        };
        let Some(session) = driver.sessions.get_mut(&key) else {
            return;
        };
        session.id = None;
        if self.is_lost {
            driver.unbegun.insert(key);
            return;
        }
        if session.ending.is_some() {
            driver.end_session(key, &Error::Ended);
            return;
        }
        session.restarts += 1;
        if error.is_some() || session.restarts > MAX_RESTARTS {
            driver.end_session(key, &Error::SessionEnded(error.map(Into::into)));
        } else {
            driver.unbegun.insert(key);
        }
    }
}

/// Keeps the state of a sender for its next attach.
fn suspend_sender(sender: &mut SenderState, unsettled: &mut Vec<Unsettled>, is_lost: bool) {
    sender.resuming.clear();
    sender.undetermined = 0;
    sender.drain = false;
    if let Some(sending) = sender.sending.take()
        && let Some(message) = sending.settled
    {
        // Only parts of it were sent, so the receiver does not have it.
        sender.waiting.insert(sending.token, message);
    }
    if is_lost {
        // Transactions live on their connection, and so does what belongs to one. The coordinator
        // may have carried a request out, and tells its outcome when the link comes back.
        let sent = (!sender.coordinator).then_some(&mut sender.sent);
        for messages in sent.into_iter().chain([&mut sender.waiting]) {
            let (lost, kept) = std::mem::take(messages)
                .into_iter()
                .partition(|(_, message)| message.attachment.is_some());
            *messages = kept;
            let lost: BTreeMap<u64, OutgoingAmqpMessage> = lost;
            for message in lost.into_values() {
                message.sent.tell(Err(Error::TransactionLost));
            }
        }
    }
    unsettled.retain(|delivery| sender.sent.contains_key(&delivery.token));
}

/// Keeps the decisions of a receiver that the sender has not settled. The rest comes again.
fn suspend_receiver(receiver: &mut ReceiverState, unsettled: &mut Vec<Unsettled>) {
    for (tag, done) in std::mem::take(&mut receiver.decided).into_values() {
        receiver.recovering.insert(tag, done);
    }
    unsettled.retain(|delivery| receiver.recovering.contains_key(&delivery.tag));
    receiver.outstanding = 0;
    if let Some(done) = receiver.drain.take() {
        let _ = done.send(Err(Error::Stale));
    }
}

fn attached(driver: &mut Driver, id: LinkId, attach: &Attach<'_>) {
    let Some(key) = driver.link_keys.get(&id).copied() else {
        return;
    };
    let Some(link) = driver.links.get_mut(&key) else {
        return;
    };
    let (address, is_refused, filters) = match attach.role {
        Role::Sender => {
            let source = attach.source.as_ref();
            let filters = source.map(|source| {
                let names = source.filters().map(|(name, _)| name.to_owned());
                names.collect::<Vec<_>>()
            });
            (
                source.and_then(Source::address),
                source.is_none(),
                filters.unwrap_or_default(),
            )
        }
        Role::Receiver => {
            let node = attach.target.as_ref().and_then(TargetArchetype::node);
            let address = node.and_then(Target::address);
            (address, attach.target.is_none(), Vec::new())
        }
    };
    if is_refused {
        // Its detach says why (section 2.6.3).
        return;
    }
    link.is_attached = true;
    link.attached += 1;
    link.restarts = 0;
    let info = LinkInfo {
        name: link.name.clone(),
        address: address.map(str::to_owned),
        max_message_bytes: match (attach.role, attach.max_message_size) {
            (Role::Receiver, Some(bytes)) if bytes > 0 => Some(bytes),
            _ => None,
        },
        filters,
        attached: link.attached,
    };
    match &mut link.kind {
        Kind::Sender(sender) => {
            sender.peer_recovers = attach.unsettled.is_some();
            driver.active.insert(key);
        }
        Kind::Receiver(_) => {
            driver.thirsty.insert(key);
        }
    }
    tracing::debug!(name = link.name, address, "link attached");
    link.status.send_replace(Status::Ready(Arc::new(info)));
}

fn arrived(driver: &mut Driver, delivery: Delivery<'_>) {
    let Some(key) = driver.link_keys.get(&delivery.link).copied() else {
        return;
    };
    let Some(link) = driver.links.get_mut(&key) else {
        return;
    };
    let generation = link.generation;
    let Kind::Receiver(receiver) = &mut link.kind else {
        return;
    };
    let payload = match delivery.payload {
        Payload::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
        Payload::Assembled(bytes) => bytes,
    };
    receiver.granted = receiver.granted.saturating_sub(1);
    receiver.outstanding += 1;
    let bytes = payload.len();
    let message = Arrived {
        generation,
        delivery_id: delivery.delivery_id,
        tag: delivery.tag,
        settled: delivery.settled,
        settle_mode: delivery.settle_mode,
        message_format: delivery.message_format,
        payload,
    };
    driver.outlets.held.add(bytes);
    if receiver.deliveries.send(message).is_err() {
        // The application has dropped the receiver, which is about to be detached.
        driver.outlets.held.take(bytes);
    }
    driver.thirsty.insert(key);
}

fn recover(driver: &mut Driver, id: LinkId, delivery: Unsettled, recovery: Recovery) {
    let Some(key) = driver.link_keys.get(&id).copied() else {
        return;
    };
    let Some(link) = driver.links.get_mut(&key) else {
        return;
    };
    match &mut link.kind {
        Kind::Receiver(receiver) => {
            let Some(done) = receiver.recovering.remove(&delivery.tag) else {
                return;
            };
            match recovery {
                Recovery::Resumed { delivery_id } => {
                    receiver.decided.insert(delivery_id, (delivery.tag, done));
                }
                Recovery::Wait => {
                    receiver.recovering.insert(delivery.tag, done);
                }
                // The sender has settled.
                _ => {
                    let _ = done.send(Ok(()));
                }
            }
        }
        Kind::Sender(sender) => {
            let second = sender.options.receiver_settles == ReceiverSettleMode::Second;
            match recovery {
                // Its transaction is over, so that the answer to a second request would say nothing of the first.
                Recovery::Resume(_) | Recovery::Abort if sender.coordinator => {
                    if let Some(message) = sender.sent.remove(&delivery.token) {
                        message.sent.tell(Err(Error::Unknown));
                    }
                }
                Recovery::Resend => {
                    let Some(message) = sender.sent.remove(&delivery.token) else {
                        return;
                    };
                    // A coordinator may have carried a request out.
                    if sender.coordinator || (second && !sender.peer_recovers) {
                        message.sent.tell(Err(Error::Unknown));
                    } else {
                        sender.waiting.insert(delivery.token, message);
                    }
                }
                Recovery::Settled(state) => {
                    if let Some(message) = sender.sent.remove(&delivery.token) {
                        message.sent.tell(Ok(state));
                    }
                }
                Recovery::Wait => sender.undetermined += 1,
                recovery => {
                    sender.resuming.insert(delivery.token, (delivery, recovery));
                }
            }
            driver.active.insert(key);
        }
    }
}

impl Driver {
    /// Early data was rejected, so the server has not read it. Messages that were first sent in it
    /// are sent again as new ones; `early` are the settled ones among them.
    pub(super) fn unsend(&mut self, early: Vec<EarlyMessage>) {
        for one in early {
            match self.sender(one.link) {
                Some(sender) => {
                    sender.waiting.insert(one.token, one.message);
                }
                None => one.message.sent.tell(Err(Error::Ended)),
            }
        }
        for link in self.links.values_mut() {
            let Kind::Sender(sender) = &mut link.kind else {
                continue;
            };
            link.unsettled = std::mem::take(&mut link.attached_with);
            let before: HashSet<u64> = link
                .unsettled
                .iter()
                .map(|delivery| delivery.token)
                .collect();
            let (kept, unsent) = std::mem::take(&mut sender.sent)
                .into_iter()
                .partition(|(token, _)| before.contains(token));
            sender.sent = kept;
            let unsent: BTreeMap<u64, OutgoingAmqpMessage> = unsent;
            sender.waiting.extend(unsent);
        }
    }
}
