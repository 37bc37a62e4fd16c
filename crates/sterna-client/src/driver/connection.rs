//! One connection: its streams, its engine, and the loop that moves bytes between them.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use sterna_mqtt::client::{Connection, Event as Input};
use sterna_mqtt::packet::{ConnAck, Disconnect, Publish};
use sterna_mqtt::{Framer, Lane, QoS, ReasonCode, Version, Violation};

use super::lanes::{Carrier, LaneState, Lanes, Purpose, Sharing};
use super::opening::{
    DATAGRAMS, Exchange, finish_exchange, open_connection, prove, start_exchange,
};
use super::{Done, Driver, End, Sent};
use crate::client::{Connected, Event, Published};
use crate::error::{Error, Refusal};
use crate::link;
use crate::message::Message;
use crate::options::{Login, Options, Streams};
use crate::path::PathStatistics;
use crate::transport::Transport;
use crate::transport::ending::Unacknowledged;
use crate::transport::quic::EarlyData;

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// Bytes that wait to be sent, above which no more messages are taken from the application.
const MAX_UNSENT_BYTES: usize = 256 << 10;

/// One connection.
pub(super) struct Link {
    pub(super) connection: Connection,
    pub(super) carrier: Carrier,
    pub(super) sharing: Sharing,
    /// Messages of streams that are gone.
    pub(super) orphans: Vec<sterna_mqtt::session::AwaitedAck>,
    /// Whether control may carry messages that were sent again and are not acknowledged.
    pub(super) has_resent: bool,
    /// Messages that came and went as datagrams.
    pub(super) datagram_messages: u64,
    /// Both sides want messages as datagrams.
    pub(super) datagrams: bool,
    exchange: Option<Exchange>,
    pub(super) reauthenticating: Option<Done<()>>,
    /// The application's wish to disconnect, when it is carried out.
    pub(super) closing: Option<Done<()>>,
    /// Nothing is to be sent before the server has answered the CONNECT.
    pub(super) awaits_answer: bool,
    /// Others on this runtime get their turn before anything more is written.
    pub(super) pause: bool,
    /// The connection has moved to another address in the last turn.
    moved: bool,
}

impl Link {
    /// Writes CONNECT, and behind it what may follow at once.
    pub(super) fn open(
        driver: &mut Driver,
        transport: Transport,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let state = LaneState::new(Purpose::Control, driver.clock.now_ms());
        let url = &driver.options.url;
        let mut carrier = Carrier::new(transport, url, deadline, READ_BYTES, state);
        let over_quic = carrier.quic.is_some();
        let (connection, exchange) = open_connection(driver, over_quic, carrier.lanes.control())?;
        driver.requeue_lost();
        let mut link = Self {
            connection,
            carrier,
            sharing: Sharing::default(),
            orphans: Vec::new(),
            has_resent: true,
            datagram_messages: 0,
            datagrams: false,
            exchange,
            reauthenticating: None,
            closing: None,
            awaits_answer: !driver.may_be_early(),
            pause: false,
            moved: false,
        };
        if driver.may_be_early() && driver.options.clean_start_at(driver.connections) {
            driver.doubt_subscriptions();
            link.subscribe_again(driver);
        }
        Ok(link)
    }

    /// Ends the transport behind a DISCONNECT, and tells the caller what may be lost.
    async fn close(&mut self, driver: &Driver, end: End, done: Done<()>) -> End {
        let (arrived, left) = if matches!(end, End::Wanted) {
            tracing::debug!("DISCONNECT written, closing");
            let finished = self.carrier.finish(driver.options.close_timeout).await;
            if let Some(quic) = self.carrier.quic.take() {
                quic.close().await;
            }
            finished
        } else {
            (false, self.carrier.unacknowledged())
        };
        tracing::debug!(arrived, ?left, "closed");
        let outcome = if arrived && left == Unacknowledged::default() {
            Ok(())
        } else {
            Err(Error::Unacknowledged(left))
        };
        if let Err(Err(error)) = done.send(outcome) {
            tracing::warn!(url = %driver.options.url, %error, "the client's end");
        }
        End::Wanted
    }

    /// Whether the server hung up without a word, because of packets right behind the CONNECT.
    pub(super) fn is_unanswered(&self, end: &End) -> bool {
        self.connection.has_sent_early()
            && !self.connection.is_closed()
            && !self.connection.is_connected()
            && end.may_be_of_haste()
    }

    // ---- Writing ---------------------------------------------------------------------------

    /// Whether there is room for more messages in the buffers.
    pub(super) fn has_room(&self, driver: &Driver) -> bool {
        let bytes = match driver.options.streams {
            // Bulk that waits holds up nothing else.
            Streams::Priority => self.carrier.lanes.0[0].outlet.buffer.len(),
            _ => self.carrier.lanes.unsent_bytes(),
        };
        bytes < MAX_UNSENT_BYTES
    }

    /// The same for messages that must not hold up others.
    pub(super) fn has_room_for_bulk(&self) -> bool {
        self.bulk_bytes() < MAX_UNSENT_BYTES
    }

    // ---- Reading ---------------------------------------------------------------------------

    fn read(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> Result<bool, Error> {
        let mut progress = false;
        let mut at = 0;
        while at < self.carrier.lanes.0.len() {
            let unread = std::mem::take(&mut self.carrier.lanes.0[at].unread);
            if !unread.is_empty() {
                self.process(driver, at, &unread)?;
                progress = true;
            }
            if driver.inlets.events.is_full() {
                return Ok(progress);
            }
            let Poll::Ready(read) = self.carrier.poll_read(at, cx) else {
                at += 1;
                continue;
            };
            progress = true;
            match read.map_err(Error::Lost)? {
                0 => self.lane_lost(driver, at),
                bytes => {
                    self.connection.heard(driver.clock.now_ms());
                    let input = std::mem::take(&mut self.carrier.input);
                    let result = self.process(driver, at, &input[..bytes]);
                    self.carrier.input = input;
                    result?;
                    at += 1;
                }
            }
        }
        Ok(progress | self.read_datagrams(driver, cx)?)
    }

    /// Takes messages that came as datagrams.
    fn read_datagrams(&mut self, driver: &Driver, cx: &mut Context<'_>) -> Result<bool, Error> {
        let mut progress = false;
        while self.datagrams && !driver.inlets.events.is_full() {
            let Some(quic) = &mut self.carrier.quic else {
                break;
            };
            let Poll::Ready(bytes) = quic.poll_datagram(cx) else {
                break;
            };
            progress = true;
            // They are not MQTT.
            if bytes.first().is_none_or(|first| *first == 0) {
                continue;
            }
            self.datagram_messages += 1;
            self.carrier.received_bytes += bytes.len() as u64;
            let limit = self.connection.max_packet_bytes();
            let (mut framer, mut rest) = (Framer::new(), &bytes[..]);
            let now_ms = driver.clock.now_ms();
            let received = match framer.next(&mut rest, limit) {
                Ok(frame) => {
                    let frame = frame.filter(|_| rest.is_empty());
                    self.connection.receive_datagram(frame.as_ref(), now_ms)
                }
                Err(error) => Err(self.connection.decode_failed(error)),
            };
            match received {
                Ok(publish) => arrived(driver, &publish),
                Err(violation) => return Err(self.violated(&violation)),
            }
        }
        Ok(progress)
    }

    /// Statistics of QUIC, with the counts of this connection.
    pub(super) fn path(&self) -> Option<PathStatistics> {
        let mut path = self.carrier.quic.as_ref()?.statistics();
        path.packet_bytes_sent = self.carrier.sent_bytes;
        path.packet_bytes_received = self.carrier.received_bytes;
        path.streams = self.carrier.opened;
        path.datagram_messages = self.datagram_messages;
        Some(path)
    }

    /// Handles bytes of one lane; what there is no room for stays in the lane's `unread`.
    fn process(&mut self, driver: &mut Driver, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let mut framer = std::mem::take(&mut self.carrier.lanes.0[at].state.framer);
        let result = self.process_with(&mut framer, driver, at, bytes);
        self.carrier.lanes.0[at].state.framer = framer;
        result
    }

    fn process_with(
        &mut self,
        framer: &mut Framer,
        driver: &mut Driver,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let mut input = bytes;
        let now_ms = driver.clock.now_ms();
        let lane = Lane(self.carrier.lanes.0[at].id);
        loop {
            if driver.inlets.events.is_full() {
                self.carrier.lanes.0[at].unread.extend_from_slice(input);
                return Ok(());
            }
            let limit = self.connection.max_packet_bytes();
            let frame = match framer.next(&mut input, limit) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(error) => {
                    let violation = self.connection.decode_failed(error);
                    return Err(self.violated(&violation));
                }
            };
            self.awaits_answer = false;
            let session = &mut driver.session;
            let received =
                self.connection
                    .receive(session, lane, &frame, now_ms, &mut self.carrier.lanes);
            let event = match received {
                Ok(Some(event)) => event,
                Ok(None) => continue,
                Err(violation) => return Err(self.violated(&violation)),
            };
            match event {
                Input::Publish { topic, mut publish } => {
                    publish.topic = &topic;
                    let packet_id = publish.packet_id;
                    arrived(driver, &publish);
                    if let Some(packet_id) = packet_id
                        && publish.qos == QoS::ExactlyOnce
                        && !driver.options.acknowledge_on_receipt
                    {
                        driver.held.insert(packet_id, driver.connections);
                    }
                    if let Some(packet_id) =
                        packet_id.filter(|_| driver.options.acknowledge_on_receipt)
                    {
                        // [MQTT-4.5.0-2]: the message is the application's from here on.
                        let success = ReasonCode::Success;
                        self.connection.acknowledge(
                            &mut driver.session,
                            packet_id,
                            success,
                            &mut self.carrier.lanes,
                        );
                    }
                }
                Input::HandedOver { tag } => {
                    if let Some(sent) = driver.sent.get_mut(&tag) {
                        sent.handed_over = true;
                    }
                }
                Input::Delivered {
                    tag,
                    reason,
                    properties,
                } => {
                    tracing::debug!(reason = reason.name(), "message acknowledged");
                    if let Some(Sent {
                        publication, lane, ..
                    }) = driver.sent.remove(&tag)
                    {
                        publication.finish(if reason.is_error() {
                            Err(Error::Rejected(Refusal::new(reason, properties)))
                        } else {
                            Ok(Published { reason })
                        });
                        self.note_answered(lane);
                    }
                    resend(driver, &mut self.connection, &mut self.carrier.lanes);
                }
                Input::Subscribed { tag, codes, .. } | Input::Unsubscribed { tag, codes, .. } => {
                    driver.answered(tag, codes.collect());
                    self.subscribe_again(driver);
                }
                Input::Connected(connack) => {
                    let (connection, exchange) = (&mut self.connection, &mut self.exchange);
                    if let Err(error) =
                        finish_exchange(exchange, connack.properties.authentication_data())
                    {
                        return Err(self.end_with(ReasonCode::NotAuthorized, error));
                    }
                    let early_data = self.carrier.early_data();
                    let agreed = !driver.options.version.is_v5()
                        || connack
                            .properties
                            .find(|it| (it == DATAGRAMS).then_some(()))
                            .is_some();
                    self.datagrams =
                        self.carrier.quic.is_some() && driver.options.datagrams && agreed;
                    let connected =
                        accepted(driver, connection, &connack, self.carrier.peer, early_data);
                    driver.inlets.events.put(Event::Connected(connected));
                    if !connack.session_present {
                        driver.doubt_subscriptions();
                        // MQTT 3.1 does not tell.
                        if driver.options.version != Version::V31 {
                            driver.held.clear();
                        }
                    }
                    refuse_unserved(driver, connection);
                    resend(driver, connection, &mut self.carrier.lanes);
                    self.send_orphans(driver);
                    self.carrier.remember();
                    self.subscribe_again(driver);
                }
                Input::Refused(connack) => {
                    let refusal = Refusal::new(connack.reason, connack.properties);
                    let version = driver.options.version;
                    return Err(Error::Refused(refusal.of_version(version)));
                }
                Input::Disconnected(disconnect) => {
                    let refusal = Refusal::new(disconnect.reason, disconnect.properties);
                    return Err(Error::Disconnected(refusal));
                }
                Input::Challenge(auth) => {
                    let data = auth.properties.authentication_data().unwrap_or_default();
                    match prove(&mut self.exchange, data) {
                        Ok(proof) => {
                            self.connection
                                .authenticate(proof.as_bytes(), self.carrier.lanes.control())?;
                        }
                        Err(error) => return Err(self.end_with(ReasonCode::NotAuthorized, error)),
                    }
                }
                Input::Reauthenticated(auth) => {
                    let data = auth.properties.authentication_data();
                    let proven = finish_exchange(&mut self.exchange, data);
                    if let Err(error) = proven {
                        // [MQTT-4.12.1-2]
                        return Err(self.end_with(ReasonCode::NotAuthorized, error));
                    }
                    if let Some(done) = self.reauthenticating.take() {
                        let _ = done.send(Ok(()));
                    }
                }
            }
        }
    }

    fn violated(&mut self, violation: &Violation) -> Error {
        self.connection
            .violation(violation, self.carrier.lanes.control());
        if violation.reason == ReasonCode::KeepAliveTimeout {
            return Error::Silent;
        }
        Error::Protocol(*violation)
    }

    /// Ends the connection because of something that this end found.
    fn end_with(&mut self, reason: ReasonCode, error: Error) -> Error {
        let _ = self
            .connection
            .disconnect(&Disconnect::new(reason), self.carrier.lanes.control());
        error
    }

    /// True when there is room for messages again.
    fn wait_for_room(&mut self, driver: &Driver, cx: &Context<'_>) -> bool {
        // As long as nothing is read, silence means nothing.
        self.connection.heard(driver.clock.now_ms());
        driver.inlets.events.poll_room(cx).is_ready()
    }

    // ---- Time ------------------------------------------------------------------------------

    fn poll_timer(&mut self, driver: &Driver, cx: &mut Context<'_>) -> Result<bool, Error> {
        let due = if self.connection.is_connected() {
            self.connection
                .deadline_ms()
                .map(|at_ms| driver.clock.instant(at_ms))
        } else {
            Some(self.carrier.deadline)
        };
        let waits = self.sharing.wait_until_ms;
        let waits = waits.map(|at_ms| driver.clock.instant(at_ms));
        let due = match (due, waits) {
            (Some(due), Some(waits)) => due.min(waits),
            (Some(due), None) => due,
            (None, Some(waits)) => waits,
            (None, None) => return Ok(false),
        };
        if !self.carrier.poll_due(due, cx) {
            return Ok(false);
        }
        if waits.is_some_and(|waits| waits <= Instant::now()) {
            self.sharing.wait_until_ms = None;
            self.sharing.gave_up = true;
            return Ok(true);
        }
        if !self.connection.is_connected() {
            let timeout = driver.options.longest_connect();
            return Err(self.carrier.timeout(timeout).into());
        }
        let now_ms = driver.clock.now_ms();
        match self
            .connection
            .on_timeout(now_ms, self.carrier.lanes.control())
        {
            Ok(()) => Ok(true),
            Err(violation) => Err(self.violated(&violation)),
        }
    }

    // ---- Authentication --------------------------------------------------------------------

    /// Starts an exchange anew on a connection that stands.
    pub(super) fn reauthenticate(&mut self, options: &Options, done: Done<()>) {
        let Login::Scram { user, password } = &options.login else {
            let _ = done.send(Err(Error::Unavailable(
                "only a SCRAM login can be repeated",
            )));
            return;
        };
        let started = start_exchange(user, password).and_then(|(exchange, first)| {
            self.connection
                .reauthenticate(first.as_bytes(), self.carrier.lanes.control())?;
            Ok(exchange)
        });
        match started {
            Ok(exchange) => {
                self.exchange = Some(exchange);
                self.reauthenticating = Some(done);
            }
            Err(error) => {
                let _ = done.send(Err(error));
            }
        }
    }
}

impl link::Link<Driver> for Link {
    type State = LaneState;
    type Waiter = Done<Published>;

    fn carrier(&mut self) -> &mut Carrier {
        &mut self.carrier
    }

    fn is_accepted(&self) -> bool {
        self.connection.is_connected() || self.connection.is_closed()
    }

    fn turn(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> Result<bool, End> {
        let verdict = self.carrier.poll_handshake(cx).map_err(Error::from)?;
        if verdict == Some(EarlyData::Rejected) {
            self.open_again(cx);
        }
        if let (true, Some(quic)) = (std::mem::take(&mut self.moved), &self.carrier.quic) {
            quic.pad();
        }
        let mut progress = false;
        self.take_requests(driver, cx, &mut progress);
        if std::mem::take(&mut self.pause) {
            self.moved = true;
            // The transport's own task has something to say first.
            cx.waker().wake_by_ref();
            return Ok(false);
        }
        // There is room for more.
        progress |= self.write(driver, cx)?;
        // A DISCONNECT of the application's is written.
        if self.connection.is_closed() && self.carrier.lanes.unsent_bytes() == 0 {
            return Err(End::Wanted);
        }
        if self.carrier.poll_patience(cx).is_ready() {
            return Err(Error::Unacknowledged(self.carrier.unacknowledged()).into());
        }
        if self.connection.is_closed() {
            return Ok(false);
        }
        let read = if driver.inlets.events.is_full() {
            Ok(self.wait_for_room(driver, cx))
        } else {
            self.read(driver, cx)
        };
        let moved = read.and_then(|read| Ok(read | self.poll_timer(driver, cx)?));
        match moved {
            Ok(moved) => Ok(progress | moved),
            Err(error) => {
                // The last packet to a server that broke the protocol or was refused still leaves.
                let _ = self.carrier.write(cx);
                Err(error.into())
            }
        }
    }

    async fn finish(&mut self, driver: &mut Driver, end: End) -> End {
        if let Some(done) = self.reauthenticating.take() {
            let error = match &end {
                End::Failed(error) => error.clone(),
                _ => Error::Ended,
            };
            let _ = done.send(Err(error));
        }
        match self.closing.take() {
            Some(done) => self.close(driver, end, done).await,
            None => end,
        }
    }
}

/// A message came.
fn arrived(driver: &Driver, publish: &Publish<'_>) {
    let (qos, payload_bytes) = (publish.qos as u8, publish.payload.len());
    let (topic, id) = (publish.topic, publish.packet_id);
    tracing::debug!(topic, qos, ?id, payload_bytes, "PUBLISH received");
    let message = Message::new(publish, driver.connections);
    driver.inlets.events.put(Event::Message(message));
}

/// Fails messages that were sent before the CONNACK, which says now that the server does not take such. It ends the
/// connection because of them. Else nobody would know what became of them.
fn refuse_unserved(driver: &mut Driver, connection: &Connection) {
    let refused: Vec<_> = (driver.sent.iter())
        .filter(|(_, sent)| !sent.handed_over)
        .filter_map(|(tag, sent)| {
            let publication = super::requests::view(&sent.publication.message);
            let checked = connection.check_supported(&publication);
            checked.err().map(|error| (*tag, error))
        })
        .collect();
    for (tag, error) in refused {
        if let Some(sent) = driver.sent.remove(&tag) {
            sent.publication.finish(Err(error.into()));
        }
    }
}

/// Sends again what an earlier connection left over, as far as the server's Receive Maximum goes.
fn resend(driver: &mut Driver, connection: &mut Connection, out: &mut Lanes) {
    while let Some(outgoing) = connection.next_resend(&mut driver.session, out.control()) {
        let Some(sent) = driver.sent.get_mut(&outgoing.tag) else {
            connection.give_up(&mut driver.session, outgoing, out.control());
            continue;
        };
        sent.lane = Lane::CONTROL;
        let publication = super::requests::view(&sent.publication.message);
        let again = connection.resend(&mut driver.session, outgoing, &publication, out.control());
        if let Err(error) = again {
            connection.give_up(&mut driver.session, outgoing, out.control());
            if let Some(sent) = driver.sent.remove(&outgoing.tag) {
                sent.publication.finish(Err(error.into()));
            }
        }
    }
}

/// The server has accepted.
fn accepted(
    driver: &mut Driver,
    connection: &Connection,
    connack: &ConnAck<'_>,
    peer: std::net::SocketAddr,
    early_data: EarlyData,
) -> Arc<Connected> {
    driver.connections += 1;
    if let Some(assigned) = connack.assigned_client_id() {
        // [MQTT-3.1.3-7]
        assigned.clone_into(&mut driver.client_id);
    }
    let (session_present, limits) = (connack.session_present, connection.limits());
    tracing::debug!(session_present, ?limits, "CONNACK received");
    driver.limits = Some(*limits);
    driver.requeue_lost();
    driver.set_connected(Connected {
        session_present: connack.session_present,
        client_id: driver.client_id.clone(),
        peer,
        limits: *connection.limits(),
        response_information: connack.response_information().map(str::to_owned),
        connections: driver.connections,
        early_data,
    })
}
