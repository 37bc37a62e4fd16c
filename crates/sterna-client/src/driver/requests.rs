//! Turns requests of the application into packets.

use std::task::{Context, Poll};

use bytes::BytesMut;
use sterna_mqtt::client::{Publication as View, SendError};
use sterna_mqtt::packet::{Disconnect, RetainHandling};
use sterna_mqtt::{PacketId, Property, PropertyBuf, ReasonCode};

use super::connection::Link;
use super::{Asked, Driver, Granted, Publication, Request, Sent, Standing};
use crate::client::{Event, Published};
use crate::error::Error;
use crate::link::Driver as _;
use crate::message::{Publish, Subscription};
use crate::options::Streams;

/// Filters in one SUBSCRIBE of the client's own making.
const FILTERS_AT_ONCE: usize = 32;

/// The engine's view of a message.
pub(super) fn view(message: &Publish) -> View<'_> {
    View {
        topic: &message.topic,
        payload: &message.payload,
        qos: message.qos,
        retain: message.retain,
        properties: message.properties.properties(),
    }
}

fn log_publish(message: &Publish, id: Option<PacketId>) {
    let (qos, payload_bytes) = (message.qos as u8, message.payload.len());
    tracing::debug!(
        topic = message.topic,
        qos,
        ?id,
        payload_bytes,
        "PUBLISH sent"
    );
}

impl Link {
    /// Takes what the application has asked for, as far as the server and the buffers have room.
    pub(super) fn take_requests(
        &mut self,
        driver: &mut Driver,
        cx: &mut Context<'_>,
        progress: &mut bool,
    ) {
        if self.connection.is_closed() {
            return;
        }
        while driver.has_room_for_requests() {
            match driver.inlets.requests.poll_recv(cx) {
                // Without a handle left, the requests that were handed over are sent, and then the
                // connection ends.
                Poll::Ready(request) => {
                    let request = request.unwrap_or_else(Request::last);
                    driver.queue(request, self.connection.is_connected());
                }
                Poll::Pending => break,
            }
        }
        if self.awaits_answer {
            return;
        }
        while let Some(request) = driver.requests.pop_front() {
            if matches!(request, Request::Disconnect { .. }) {
                // The end comes after everything that was handed over before it, and after the
                // server's answer. Only then is it known whether the server took anything.
                self.take_publications(driver, cx, progress);
                let all_sent = !driver.has_work() && self.connection.is_connected();
                if all_sent {
                    self.carrier.begin_end(driver.options.close_timeout);
                }
                if !all_sent || !self.finish_further_lanes() {
                    driver.requests.push_front(request);
                    return;
                }
            }
            match self.ask(driver, request) {
                Ok(()) if self.pause => return,
                Ok(()) => *progress = true,
                Err(request) => {
                    driver.requests.push_front(request);
                    break;
                }
            }
        }
        if !self.connection.is_closed() {
            self.take_publications(driver, cx, progress);
        }
    }

    fn take_publications(
        &mut self,
        driver: &mut Driver,
        cx: &mut Context<'_>,
        progress: &mut bool,
    ) {
        while self.has_room(driver) {
            let publication = match driver.publications.pop_front() {
                Some(publication) => publication,
                None => match driver.inlets.publications.poll_recv(cx) {
                    Poll::Ready(Some(publication)) => publication,
                    Poll::Ready(None) | Poll::Pending => break,
                },
            };
            match self.publish(driver, publication, cx) {
                None => *progress = true,
                Some(waiting) => {
                    driver.publications.push_front(waiting);
                    break;
                }
            }
        }
        while self.has_room_for_bulk() {
            let publication = match driver.bulk.pop_front() {
                Some(publication) => publication,
                None => match driver.inlets.bulk.poll_recv(cx) {
                    Poll::Ready(Some(publication)) => publication,
                    Poll::Ready(None) | Poll::Pending => break,
                },
            };
            match self.publish(driver, publication, cx) {
                None => *progress = true,
                Some(waiting) => {
                    driver.bulk.push_front(waiting);
                    break;
                }
            }
        }
    }

    /// Whether a message that must not hold up others would take the room that they need.
    fn takes_too_much(&self, driver: &Driver, message: &Publish) -> bool {
        let window = usize::from(self.connection.limits().receive_maximum);
        driver.options.streams == Streams::Priority
            && message.is_bulk()
            && message.qos.is_acknowledged()
            && driver.session.in_flight() >= (window - window / 4).max(1)
    }

    /// Sends a message with QoS 0 in a datagram, where the server has agreed to that and it fits.
    fn send_as_datagram(&mut self, driver: &Driver, message: &Publish) -> bool {
        if !self.datagrams || message.qos.is_acknowledged() {
            return false;
        }
        let Some(quic) = &self.carrier.quic else {
            return false;
        };
        let Some(most_bytes) = quic.max_datagram_bytes() else {
            return false;
        };
        let mut bytes = BytesMut::new();
        let written = self
            .connection
            .publish_datagram(&view(message), most_bytes, &mut bytes);
        let packet_bytes = bytes.len() as u64;
        if written.is_err() || !quic.send_datagram(bytes.freeze()) {
            return false;
        }
        log_publish(message, None);
        self.connection.sent(driver.clock.now_ms());
        self.datagram_messages += 1;
        self.carrier.sent_bytes += packet_bytes;
        true
    }

    /// Sends a message; gives it back when it must wait for the server.
    fn publish(
        &mut self,
        driver: &mut Driver,
        mut publication: Publication,
        cx: &mut Context<'_>,
    ) -> Option<Publication> {
        if self.takes_too_much(driver, &publication.message) {
            return Some(publication);
        }
        // A stream must not be opened for what cannot be sent yet.
        let qos = publication.message.qos;
        let control = self.carrier.lanes.control();
        if driver.session.has_resends()
            || !self.connection.make_room(&mut driver.session, qos, control)
        {
            return Some(publication);
        }
        if self.send_as_datagram(driver, &publication.message) {
            if let Some(done) = publication.done.take() {
                let _ = done.send(Ok(Published {
                    reason: ReasonCode::Success,
                }));
            }
            return None;
        }
        let Some(lane) = self.lane_for(driver, &publication.message, cx) else {
            return Some(publication);
        };
        let tag = driver.tag();
        let buffer = sterna_mqtt::LaneWriter::buffer(&mut self.carrier.lanes, lane);
        let buffered_bytes = buffer.len();
        let message = view(&publication.message);
        match self
            .connection
            .publish(&mut driver.session, lane, &message, tag, buffer)
        {
            Ok(packet_id) => {
                log_publish(&publication.message, packet_id);
                if packet_id.is_some() {
                    self.note_sent(lane);
                    let sent = Sent {
                        publication,
                        handed_over: false,
                        lane,
                    };
                    driver.sent.insert(tag, sent);
                } else {
                    let done = publication.done.take();
                    self.note_unacknowledged(lane, buffered_bytes, done);
                }
                None
            }
            Err(error) => {
                self.note_unused(lane);
                if error == SendError::Later {
                    return Some(publication);
                }
                publication.finish(Err(error.into()));
                None
            }
        }
    }

    /// Carries a request out; gives it back when it must wait.
    fn ask(&mut self, driver: &mut Driver, request: Request) -> Result<(), Request> {
        match request {
            Request::Subscribe {
                subscriptions,
                properties,
                done,
            } => match self.send_subscribe(driver, &subscriptions, &properties) {
                Ok(tag) => {
                    let asked = Asked::Subscribe {
                        subscriptions,
                        properties,
                        done: Some(done),
                    };
                    driver.asked.insert(tag, asked);
                }
                Err(SendError::Later) => {
                    return Err(Request::Subscribe {
                        subscriptions,
                        properties,
                        done,
                    });
                }
                Err(error) => {
                    let _ = done.send(Err(error.into()));
                }
            },
            Request::Unsubscribe {
                filters,
                properties,
                done,
            } => {
                let tag = driver.tag();
                let sent = self.connection.unsubscribe(
                    &mut driver.session,
                    filters.iter().map(String::as_str),
                    properties.properties(),
                    tag,
                    self.carrier.lanes.control(),
                );
                match sent {
                    Ok(_) => {
                        driver.asked.insert(
                            tag,
                            Asked::Unsubscribe {
                                filters,
                                properties,
                                done,
                            },
                        );
                    }
                    Err(SendError::Later) => {
                        return Err(Request::Unsubscribe {
                            filters,
                            properties,
                            done,
                        });
                    }
                    Err(error) => {
                        let _ = done.send(Err(error.into()));
                    }
                }
            }
            Request::Acknowledge {
                packet_id,
                connection,
            } => {
                // Of an earlier connection, messages with QoS 1 are delivered again over this one.
                if driver.let_go(packet_id, connection) || connection == driver.connections {
                    let success = ReasonCode::Success;
                    let session = &mut driver.session;
                    self.connection.acknowledge(
                        session,
                        packet_id,
                        success,
                        &mut self.carrier.lanes,
                    );
                }
            }
            Request::Reauthenticate(done) => {
                if !self.connection.is_connected() || self.reauthenticating.is_some() {
                    return Err(Request::Reauthenticate(done));
                }
                self.reauthenticate(&driver.options, done);
            }
            Request::Migrate(done) => {
                let migrated = match &mut self.carrier.quic {
                    Some(quic) => quic.rebind().map_err(|error| Error::Lost(error.into())),
                    None => Err(Error::Unavailable("only connections over QUIC can move")),
                };
                self.pause = migrated.is_ok();
                let _ = done.send(migrated);
            }
            Request::Path(done) => {
                let unavailable = Error::Unavailable("only connections over QUIC know their path");
                let _ = done.send(self.path().ok_or(unavailable));
            }
            Request::Disconnect {
                reason,
                properties,
                done,
            } => {
                let disconnect = Disconnect {
                    reason,
                    properties: properties.properties(),
                };
                match self
                    .connection
                    .disconnect(&disconnect, self.carrier.lanes.control())
                {
                    Ok(()) => self.closing = Some(done),
                    Err(error) => {
                        let _ = done.send(Err(error.into()));
                    }
                }
            }
        }
        Ok(())
    }

    fn send_subscribe(
        &mut self,
        driver: &mut Driver,
        subscriptions: &[Subscription],
        properties: &PropertyBuf,
    ) -> Result<u64, SendError> {
        let tag = driver.tag();
        let mut properties = properties.clone();
        if let Some(identifier) = subscriptions.first().and_then(|first| first.identifier) {
            properties.push(Property::SubscriptionIdentifier(identifier))?;
        }
        self.connection.subscribe(
            &mut driver.session,
            subscriptions
                .iter()
                .map(|one| (one.filter.as_str(), one.options)),
            properties.properties(),
            tag,
            self.carrier.lanes.control(),
        )?;
        let filters: Vec<_> = subscriptions.iter().map(Subscription::filter).collect();
        tracing::debug!(?filters, "SUBSCRIBE sent");
        Ok(tag)
    }

    /// Subscribes again to what the server's session may lack, as far as there is room for requests.
    pub(super) fn subscribe_again(&mut self, driver: &mut Driver) {
        let mut by_identifier: Vec<(Option<u32>, Vec<Subscription>)> = Vec::new();
        for subscription in driver.due_subscriptions() {
            let identifier = subscription.identifier;
            match by_identifier
                .iter_mut()
                .find(|(known, list)| *known == identifier && list.len() < FILTERS_AT_ONCE)
            {
                Some((_, list)) => list.push(subscription),
                None => by_identifier.push((identifier, vec![subscription])),
            }
        }
        for (_, subscriptions) in by_identifier {
            match self.ask_again(driver, subscriptions) {
                Ok(()) => {}
                // The next answer makes room; at the connection's end the next connection has it.
                Err((SendError::Later | SendError::Closed, _)) => return,
                // The limits before the CONNACK are narrow ones.
                Err(_) if !self.connection.is_connected() => {}
                // One that the server cannot take does not keep it from the others.
                Err((_, subscriptions)) => {
                    for subscription in subscriptions {
                        match self.ask_again(driver, vec![subscription]) {
                            Ok(()) => {}
                            Err((SendError::Later | SendError::Closed, _)) => return,
                            Err((error, refused)) => {
                                let reason = match error {
                                    SendError::Unsupported(reason) => reason,
                                    SendError::Encode(_) => ReasonCode::PacketTooLarge,
                                    _ => ReasonCode::ImplementationSpecificError,
                                };
                                for subscription in refused {
                                    driver.refused_again(subscription, reason);
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// Sends one SUBSCRIBE of the client's own making; gives the subscriptions back if it cannot be sent.
    fn ask_again(
        &mut self,
        driver: &mut Driver,
        subscriptions: Vec<Subscription>,
    ) -> Result<(), (SendError, Vec<Subscription>)> {
        let mut sent = subscriptions.clone();
        for subscription in &mut sent {
            // The session may have it after all. Its retained messages have come then.
            let handling = &mut subscription.options.retain_handling;
            if *handling == RetainHandling::Send {
                *handling = RetainHandling::SendIfNew;
            }
        }
        let properties = PropertyBuf::new();
        let tag = match self.send_subscribe(driver, &sent, &properties) {
            Ok(tag) => tag,
            Err(error) => return Err((error, subscriptions)),
        };
        for subscription in &subscriptions {
            if let Some(granted) = driver.subscriptions.get_mut(&subscription.filter) {
                granted.standing = Standing::Asked;
            }
        }
        let asked = Asked::Subscribe {
            subscriptions,
            properties,
            done: None,
        };
        driver.asked.insert(tag, asked);
        Ok(())
    }
}

impl Driver {
    /// Subscriptions to request again. The application's own requests that wait or are under way take
    /// care of theirs: they are later than the grant.
    fn due_subscriptions(&self) -> Vec<Subscription> {
        let due = |granted: &&Granted| granted.standing == Standing::Due;
        if !self.subscriptions.values().any(|granted| due(&granted)) {
            return Vec::new();
        }
        let mut handled = std::collections::BTreeSet::new();
        for asked in self.asked.values() {
            match asked {
                Asked::Subscribe { subscriptions, .. } => {
                    handled.extend(subscriptions.iter().map(|one| one.filter.as_str()));
                }
                Asked::Unsubscribe { filters, .. } => {
                    handled.extend(filters.iter().map(String::as_str));
                }
            }
        }
        for request in &self.requests {
            match request {
                Request::Subscribe { subscriptions, .. } => {
                    handled.extend(subscriptions.iter().map(|one| one.filter.as_str()));
                }
                Request::Unsubscribe { filters, .. } => {
                    handled.extend(filters.iter().map(String::as_str));
                }
                _ => {}
            }
        }
        let subscriptions = self.subscriptions.values().filter(due);
        subscriptions
            .filter(|granted| !handled.contains(granted.subscription.filter.as_str()))
            .map(|granted| granted.subscription.clone())
            .collect()
    }

    /// The server does not grant a subscription again.
    fn refused_again(&mut self, subscription: Subscription, reason: ReasonCode) {
        let filter = subscription.filter;
        tracing::warn!(
            filter,
            reason = reason.name(),
            "the broker refuses a subscription that it granted before"
        );
        // A quota has room later: the subscription stays, and is due on the next connection.
        if reason != ReasonCode::QuotaExceeded {
            self.subscriptions.remove(&filter);
        }
        let refused = Event::SubscriptionRefused { filter, reason };
        self.inlets.events.put(refused);
    }

    /// A SUBACK or UNSUBACK came.
    pub(super) fn answered(&mut self, tag: u64, codes: Vec<ReasonCode>) {
        tracing::debug!(codes = ?codes, "request answered");
        match self.asked.remove(&tag) {
            Some(Asked::Subscribe {
                subscriptions,
                done,
                ..
            }) => {
                for (subscription, code) in subscriptions.into_iter().zip(&codes) {
                    if !code.is_error() {
                        let granted = Granted {
                            subscription: subscription.clone(),
                            standing: Standing::Confirmed,
                        };
                        self.subscriptions.insert(subscription.filter, granted);
                    } else if done.is_none() {
                        self.refused_again(subscription, *code);
                    } else {
                        self.subscriptions.remove(&subscription.filter);
                    }
                }
                if let Some(done) = done {
                    let _ = done.send(Ok(codes));
                }
            }
            Some(Asked::Unsubscribe { filters, done, .. }) => {
                for filter in filters {
                    self.subscriptions.remove(&filter);
                }
                let _ = done.send(Ok(codes));
            }
            None => {}
        }
    }
}
