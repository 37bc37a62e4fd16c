//! Turns requests of the application into state.

use std::collections::{BTreeMap, HashMap};

use sterna_amqp::messaging::{DeliveryState, DeliveryStateBuf};
use tokio::sync::oneshot;

use super::state::{
    Decision, DriverLink, DriverSession, Kind, LinkInfo, ReceiverState, SenderState,
};
use super::{Command, Driver, Farewell};
use crate::amqp::Error;
use crate::link::{Echoes, Status, Told};

impl Driver {
    /// Takes a command; `None` says that the last handle was dropped.
    pub(super) fn take(&mut self, command: Option<Command>) {
        match command {
            None => {
                if self.closing.is_none() {
                    self.closing = Some(Farewell(None));
                }
            }
            Some(Command::Begin { session, permit }) => {
                drop(permit);
                self.sessions.insert(session, DriverSession::default());
                self.unbegun.insert(session);
            }
            Some(Command::End { session, done }) => self.end_requested(session, done),
            Some(Command::AttachSender {
                session,
                link,
                name,
                options,
                coordinator,
                status,
                permit,
            }) => {
                drop(permit);
                let state = SenderState {
                    options: *options,
                    coordinator,
                    waiting: BTreeMap::new(),
                    resuming: BTreeMap::new(),
                    sending: None,
                    sent: BTreeMap::new(),
                    undetermined: 0,
                    peer_recovers: false,
                    drain: false,
                };
                self.attach_requested(session, link, name, Kind::Sender(state), status);
            }
            Some(Command::AttachReceiver {
                session,
                link,
                name,
                options,
                status,
                deliveries,
                permit,
            }) => {
                drop(permit);
                let state = ReceiverState {
                    options: *options,
                    deliveries,
                    outstanding: 0,
                    granted: 0,
                    drain: None,
                    drain_sent: false,
                    decided: HashMap::new(),
                    recovering: HashMap::new(),
                };
                self.attach_requested(session, link, name, Kind::Receiver(state), status);
                self.thirsty.insert(link);
            }
            Some(Command::Send { message, .. }) if self.is_over(message.attachment) => {
                message.sent.tell(Err(Error::TransactionLost));
            }
            Some(Command::Send { link, message }) => {
                let token = self.token();
                match self.links.get_mut(&link).map(|link| &mut link.kind) {
                    Some(Kind::Sender(sender)) => {
                        sender.waiting.insert(token, message);
                        self.active.insert(link);
                    }
                    _ => message.sent.tell(Err(Error::Ended)),
                }
            }
            Some(Command::Decide {
                generation,
                mut decision,
            }) => {
                let is_over = self.is_over(decision.attachment);
                let current = self
                    .links
                    .get_mut(&decision.link)
                    .filter(|link| link.generation == generation && link.id.is_some());
                let Some(link) = current else {
                    let _ = decision.done.send(Err(Error::Stale));
                    return;
                };
                if let Kind::Receiver(receiver) = &mut link.kind {
                    receiver.outstanding = receiver.outstanding.saturating_sub(1);
                }
                self.thirsty.insert(decision.link);
                if is_over {
                    // The application has let go of the delivery, so it goes back and comes again.
                    let _ = decision.done.send(Err(Error::TransactionLost));
                    decision.state = DeliveryStateBuf::new(&DeliveryState::RELEASED);
                    decision.done = oneshot::channel().0;
                }
                self.decisions.push(Decision {
                    link: decision.link,
                    delivery_id: decision.delivery_id,
                    tag: decision.tag,
                    state: decision.state,
                    second: decision.second,
                    done: decision.done,
                });
            }
            Some(Command::Taken { link }) => {
                if let Some(receiver) = self.receiver(link) {
                    receiver.outstanding = receiver.outstanding.saturating_sub(1);
                    self.thirsty.insert(link);
                }
            }
            Some(Command::Credit { link, add }) => {
                if let Some(receiver) = self.receiver(link) {
                    receiver.granted = receiver.granted.saturating_add(add);
                    self.thirsty.insert(link);
                }
            }
            Some(Command::Drain { link, done }) => match self.receiver(link) {
                Some(receiver) if receiver.drain.is_none() => {
                    receiver.drain = Some(done);
                    receiver.drain_sent = false;
                    self.thirsty.insert(link);
                }
                Some(_) => {
                    let _ = done.send(Err(Error::Invalid("the link is being drained")));
                }
                None => {
                    let _ = done.send(Err(Error::Ended));
                }
            },
            Some(Command::Detach { link, closed, done }) => {
                self.detach_requested(link, closed, done);
            }
            Some(Command::Path(done)) => self.path_requests.push(done),
            Some(Command::Close(done)) => self.closing = Some(Farewell(done)),
        }
    }

    pub(super) fn receiver(&mut self, link: u64) -> Option<&mut ReceiverState> {
        match &mut self.links.get_mut(&link)?.kind {
            Kind::Receiver(receiver) => Some(receiver),
            Kind::Sender(_) => None,
        }
    }

    pub(super) fn sender(&mut self, link: u64) -> Option<&mut SenderState> {
        match &mut self.links.get_mut(&link)?.kind {
            Kind::Sender(sender) => Some(sender),
            Kind::Receiver(_) => None,
        }
    }

    fn attach_requested(
        &mut self,
        session: u64,
        key: u64,
        name: String,
        kind: Kind,
        status: Told<LinkInfo, Error>,
    ) {
        if !self.sessions.contains_key(&session) {
            status.send_replace(Status::Ended(Error::Ended));
            return;
        }
        let link = DriverLink {
            session,
            name,
            kind,
            status,
            id: None,
            is_attached: false,
            attached: 0,
            generation: 0,
            unsettled: Vec::new(),
            attached_with: Vec::new(),
            detaching: None,
            detach_sent: false,
            restarts: 0,
            echoes: Echoes::default(),
        };
        self.links.insert(key, link);
        self.unattached.insert(key);
    }

    fn detach_requested(&mut self, key: u64, closed: bool, done: Option<super::Done<()>>) {
        match self.links.get_mut(&key) {
            Some(link) if link.detaching.is_none() => {
                link.detaching = Some((closed, done));
                self.leaving.insert(key);
            }
            _ => {
                if let Some(done) = done {
                    let _ = done.send(Err(Error::Ended));
                }
            }
        }
    }

    fn end_requested(&mut self, key: u64, done: super::Done<()>) {
        match self.sessions.get_mut(&key) {
            Some(session) if session.ending.is_none() => {
                session.ending = Some(done);
                self.ending.insert(key);
            }
            _ => {
                let _ = done.send(Err(Error::Ended));
            }
        }
    }
}
