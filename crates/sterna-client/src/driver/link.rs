//! One connection: its streams, its engine, and the loop that moves bytes between them.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use sterna_mqtt::client::{Connection, Event as Input};
use sterna_mqtt::packet::{ConnAck, Disconnect, Publish};
use sterna_mqtt::{Framer, Lane, ReasonCode, Violation};
use tokio::io::ReadBuf;
use tokio::sync::mpsc::OwnedPermit;
use tokio::time::Sleep;

use super::lanes::{LaneBuffers, LaneIo, Purpose, Sharing};
use super::opening::{
    DATAGRAMS, Exchange, finish_exchange, open_connection, prove, start_exchange,
};
use super::{Done, Driver, End, Sent};
use crate::client::{Connected, Event, Published};
use crate::error::{ConnectError, Error, Refusal};
use crate::message::Message;
use crate::options::{Login, Options, Streams};
use crate::path::PathStatistics;
use crate::transport::ending::{self, Patience, Unacknowledged};
use crate::transport::quic::EarlyData;
use crate::transport::quic::memory;
use crate::transport::{Quic, Transport};

/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// With so many bytes waiting to be sent, no more messages are taken from the application.
const MAX_UNSENT_BYTES: usize = 256 << 10;
/// Reads and requests that are handled before the runtime gets its turn again.
const MAX_ROUNDS: usize = 64;

type Room = Pin<Box<dyn Future<Output = Result<OwnedPermit<Event>, ()>> + Send>>;

/// One connection.
pub(super) struct Link {
    pub(super) connection: Connection,
    pub(super) out: LaneBuffers,
    pub(super) lanes: Vec<LaneIo>,
    pub(super) sharing: Sharing,
    /// What was sent on streams that are gone.
    pub(super) orphans: Vec<sterna_mqtt::session::AwaitedAck>,
    /// Streams that were opened.
    pub(super) streams: u64,
    /// MQTT packets handed to the transport, in bytes.
    pub(super) packet_bytes_sent: u64,
    packet_bytes_received: u64,
    /// Messages that came and went as datagrams.
    pub(super) datagram_messages: u64,
    /// Both sides want messages as datagrams.
    pub(super) datagrams: bool,
    pub(super) quic: Option<Quic>,
    peer: std::net::SocketAddr,
    exchange: Option<Exchange>,
    pub(super) reauthenticating: Option<Done<()>>,
    /// The CONNACK must have come by then.
    deadline: Instant,
    timer: Pin<Box<Sleep>>,
    /// Waits for room for events.
    room: Option<Room>,
    input: Box<[u8]>,
    /// The application's wish to disconnect, when it is carried out.
    pub(super) closing: Option<Done<()>>,
    /// The end has begun, and is waited for so long.
    pub(super) patience: Option<Patience>,
    /// What streams carried that ended before everything on them was acknowledged.
    pub(super) unacknowledged: Unacknowledged,
    /// Nothing is to be sent before the server has answered the CONNECT.
    pub(super) awaits_answer: bool,
    /// Something was sent, and QUIC's handshake is not complete.
    handshaking: bool,
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
        let Transport {
            control,
            quic,
            peer,
        } = transport;
        let now_ms = driver.clock.now_ms();
        let control = LaneIo::new(Lane::CONTROL, control, Purpose::Control, now_ms);
        let mut out = LaneBuffers::new();
        let (connection, exchange) = open_connection(driver, quic.is_some(), out.control())?;
        driver.requeue_lost();
        let mut link = Self {
            connection,
            out,
            lanes: vec![control],
            sharing: Sharing::default(),
            orphans: Vec::new(),
            streams: 1,
            packet_bytes_sent: 0,
            packet_bytes_received: 0,
            datagram_messages: 0,
            datagrams: false,
            quic,
            peer,
            exchange,
            reauthenticating: None,
            deadline,
            timer: Box::pin(tokio::time::sleep_until(deadline.into())),
            room: None,
            input: vec![0; READ_BYTES].into_boxed_slice(),
            closing: None,
            patience: None,
            unacknowledged: Unacknowledged::default(),
            awaits_answer: !driver.may_be_early(),
            handshaking: false,
            pause: false,
            moved: false,
        };
        if driver.may_be_early() && driver.options.clean_start_at(driver.connections) {
            link.subscribe_again(driver);
        }
        Ok(link)
    }

    /// Moves bytes until the connection ends.
    pub(super) async fn run(&mut self, driver: &mut Driver) -> End {
        let end = poll_fn(|cx| {
            let end = self.poll(driver, cx);
            // Whatever belongs into the first datagram is written now.
            if let Some(quic) = &mut self.quic {
                quic.uncork();
            }
            end
        })
        .await;
        let end = self.explain(driver, end);
        if self.connection.is_connected() || self.connection.is_closed() {
            self.remember(driver);
        }
        if let Some(done) = self.reauthenticating.take() {
            let error = if let End::Failed(error) = &end {
                error.clone()
            } else {
                Error::Ended
            };
            let _ = done.send(Err(error));
        }
        let end = match self.closing.take() {
            Some(done) => self.close(driver, end, done).await,
            None => end,
        };
        if let Some(quic) = self.quic.take() {
            tokio::spawn(quic.close());
        }
        for io in &mut self.lanes {
            io.outlet.lose_written();
        }
        end
    }

    /// Ends the transport behind a DISCONNECT, and tells whoever asked for it what may be lost.
    async fn close(&mut self, driver: &Driver, end: End, done: Done<()>) -> End {
        let mut arrived = false;
        if matches!(end, End::Wanted) {
            tracing::debug!("DISCONNECT written, closing");
            let is_at_risk = self.unacknowledged(false).messages > 0;
            let (control, quic) = (&mut self.lanes[0].outlet.channel, self.quic.as_ref());
            let longest = driver.options.close_timeout;
            arrived = ending::finish(control, quic, &mut self.input, longest, is_at_risk).await;
            if let Some(quic) = self.quic.take() {
                quic.close().await;
            }
        }
        let left = self.unacknowledged(arrived);
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

    /// What may be lost with the connection, where it is known whether the control stream has arrived.
    pub(super) fn unacknowledged(&self, control_arrived: bool) -> Unacknowledged {
        let mut left = self.unacknowledged;
        for io in self.lanes.iter().skip(usize::from(control_arrived)) {
            left += io.outlet.unacknowledged();
        }
        left
    }

    /// Ready when the end has begun and nothing has moved for too long.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sent_bytes = self.packet_bytes_sent;
        match &mut self.patience {
            Some(patience) => patience.poll(self.quic.as_ref(), sent_bytes, cx),
            None => Poll::Pending,
        }
    }

    /// A stream that ends with a handshake that failed doesn't know why.
    fn explain(&self, driver: &Driver, end: End) -> End {
        match (&end, &self.quic) {
            (End::Failed(Error::Lost(_)), Some(quic)) if self.handshaking => {
                quic.handshake_error().map_or(end, |error| {
                    End::Failed(error.at(&driver.options.url).into())
                })
            }
            _ => end,
        }
    }

    /// Whether the server hung up on what came right behind the CONNECT, without a word.
    pub(super) fn is_unanswered(&self, end: &End) -> bool {
        self.connection.has_sent_early()
            && !self.connection.is_closed()
            && !self.connection.is_connected()
            && matches!(end, End::Failed(Error::Lost(_)))
    }

    /// Whether QUIC's handshake is still under way.
    pub(super) fn is_handshaking(&self) -> bool {
        self.handshaking
    }

    /// One turn: as much of everything as is possible without waiting.
    fn poll(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..MAX_ROUNDS {
            let mut progress = false;
            if let Err(error) = self.poll_handshake(driver, cx) {
                return Poll::Ready(End::Failed(error));
            }
            if let (true, Some(quic)) = (std::mem::take(&mut self.moved), &self.quic) {
                quic.pad();
            }
            self.take_requests(driver, cx, &mut progress);
            if std::mem::take(&mut self.pause) {
                self.moved = true;
                // The transport's own task has something to say first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.write(driver, cx) {
                // There is room for more.
                Ok(wrote) => progress |= wrote,
                Err(error) => return Poll::Ready(End::Failed(Error::Lost(Arc::new(error)))),
            }
            if self.connection.is_closed() {
                // A DISCONNECT of the application's is written.
                if self.out.unsent_bytes() == 0 {
                    return Poll::Ready(End::Wanted);
                }
                let patience = self.poll_patience(cx);
                return patience.map(|()| End::Failed(self.gave_up()));
            }
            if self.poll_patience(cx).is_ready() {
                return Poll::Ready(End::Failed(self.gave_up()));
            }
            if driver.is_blocked() {
                progress |= self.wait_for_room(driver, cx);
            } else {
                match self.read(driver, cx) {
                    Ok(read) => progress |= read,
                    Err(error) => return Poll::Ready(self.give_up(error, cx)),
                }
            }
            match self.poll_timer(driver, cx) {
                Ok(fired) => progress |= fired,
                Err(error) => return Poll::Ready(self.give_up(error, cx)),
            }
            if !progress {
                return Poll::Pending;
            }
        }
        // Others on this runtime get their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The end was waited for in vain.
    fn gave_up(&self) -> Error {
        Error::Unacknowledged(self.unacknowledged(false))
    }

    /// Writes what is still to be said to a server that broke the protocol or was refused, as far
    /// as it goes without waiting.
    fn give_up(&mut self, error: Error, cx: &mut Context<'_>) -> End {
        self.write_last(cx);
        End::Failed(error)
    }

    // ---- Writing ---------------------------------------------------------------------------

    /// Learns that QUIC's handshake is complete, where something was sent before.
    fn poll_handshake(&mut self, driver: &Driver, cx: &mut Context<'_>) -> Result<(), Error> {
        let Some(quic) = &mut self.quic else {
            return Ok(());
        };
        self.handshaking = quic.early_data() == EarlyData::Pending;
        let url = &driver.options.url;
        match quic.poll_handshake(cx) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(verdict)) => {
                self.handshaking = false;
                if verdict == EarlyData::Rejected {
                    self.open_again(cx);
                }
                Ok(())
            }
            Poll::Ready(Err(error)) => {
                memory::forget(url.host(), url.port());
                Err(error.at(url).into())
            }
        }
    }

    /// Whether there is room for more messages in the buffers.
    pub(super) fn has_room(&self, driver: &Driver) -> bool {
        let bytes = match driver.options.streams {
            // Bulk that waits holds up nothing else.
            Streams::Priority => self.out.control_bytes(),
            _ => self.out.unsent_bytes(),
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
        while at < self.lanes.len() {
            if !self.lanes[at].unread.is_empty() {
                let bytes = std::mem::take(&mut self.lanes[at].unread);
                self.process(driver, at, &bytes)?;
                progress = true;
            }
            if driver.is_blocked() {
                return Ok(progress);
            }
            let mut buffer = ReadBuf::new(&mut self.input);
            match self.lanes[at].outlet.channel.poll_read(cx, &mut buffer) {
                Poll::Pending => at += 1,
                Poll::Ready(Err(error)) if at == 0 => return Err(Error::Lost(Arc::new(error))),
                Poll::Ready(Ok(())) if at == 0 && buffer.filled().is_empty() => {
                    let closed = io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the broker closed the connection",
                    );
                    return Err(Error::Lost(Arc::new(closed)));
                }
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let filled = buffer.filled().len();
                    self.packet_bytes_received += filled as u64;
                    self.connection.heard(driver.clock.now_ms());
                    let input = std::mem::take(&mut self.input);
                    let result = self.process(driver, at, &input[..filled]);
                    self.input = input;
                    result?;
                    progress = true;
                    at += 1;
                }
                Poll::Ready(_) => {
                    self.lane_lost(driver, at);
                    progress = true;
                }
            }
        }
        Ok(progress | self.read_datagrams(driver, cx)?)
    }

    /// Takes messages that came as datagrams.
    fn read_datagrams(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> Result<bool, Error> {
        let mut progress = false;
        while self.datagrams && !driver.is_blocked() {
            let Some(quic) = &mut self.quic else { break };
            let Poll::Ready(bytes) = quic.poll_datagram(cx) else {
                break;
            };
            progress = true;
            // Such are no MQTT.
            if bytes.first().is_none_or(|first| *first == 0) {
                continue;
            }
            self.datagram_messages += 1;
            self.packet_bytes_received += bytes.len() as u64;
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

    /// What QUIC knows of the path, with what is counted here.
    pub(super) fn path(&self) -> Option<PathStatistics> {
        let mut path = self.quic.as_ref()?.statistics();
        path.packet_bytes_sent = self.packet_bytes_sent;
        path.packet_bytes_received = self.packet_bytes_received;
        path.streams = self.streams;
        path.datagram_messages = self.datagram_messages;
        Some(path)
    }

    /// Keeps for the next connection what this one has learnt.
    fn remember(&self, driver: &Driver) {
        if let Some(quic) = &self.quic {
            let url = &driver.options.url;
            memory::remember(url.host(), url.port(), quic.known());
        }
    }

    /// Handles bytes of one lane; what there is no room for stays in the lane's `unread`.
    fn process(&mut self, driver: &mut Driver, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let mut input = bytes;
        let now_ms = driver.clock.now_ms();
        loop {
            if driver.is_blocked() {
                self.lanes[at].unread.extend_from_slice(input);
                return Ok(());
            }
            let io = &mut self.lanes[at];
            let limit = self.connection.max_packet_bytes();
            let frame = match io.framer.next(&mut input, limit) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                Err(error) => {
                    let violation = self.connection.decode_failed(error);
                    return Err(self.violated(&violation));
                }
            };
            self.awaits_answer = false;
            let session = &mut driver.session;
            let received = self
                .connection
                .receive(session, io.lane, &frame, now_ms, &mut self.out);
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
                    if let Some(packet_id) =
                        packet_id.filter(|_| driver.options.acknowledge_on_receipt)
                    {
                        // [MQTT-4.5.0-2]: the message is the application's from here on.
                        let success = ReasonCode::Success;
                        self.connection.acknowledge(
                            &mut driver.session,
                            packet_id,
                            success,
                            &mut self.out,
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
                    resend(driver, &mut self.connection, &mut self.out);
                }
                Input::Subscribed { tag, codes, .. } | Input::Unsubscribed { tag, codes, .. } => {
                    driver.answered(tag, codes.collect());
                }
                Input::Connected(connack) => {
                    let (connection, exchange) = (&mut self.connection, &mut self.exchange);
                    if let Err(error) =
                        finish_exchange(exchange, connack.properties.authentication_data())
                    {
                        return Err(self.end_with(ReasonCode::NotAuthorized, error));
                    }
                    let quic = self.quic.as_ref();
                    let early_data = quic.map_or(EarlyData::NotTried, Quic::early_data);
                    let agreed = !driver.options.version.is_v5()
                        || connack
                            .properties
                            .find(|it| (it == DATAGRAMS).then_some(()))
                            .is_some();
                    self.datagrams = quic.is_some() && driver.options.datagrams && agreed;
                    let connected = accepted(driver, connection, &connack, self.peer, early_data);
                    driver.events.push_back(Event::Connected(connected));
                    let session_lost = !connack.session_present;
                    resend(driver, connection, &mut self.out);
                    self.send_orphans(driver);
                    self.remember(driver);
                    if session_lost && !driver.asks_for_all() {
                        self.subscribe_again(driver);
                    }
                }
                Input::Refused(connack) => {
                    return Err(Error::Refused(Refusal::new(
                        connack.reason,
                        connack.properties,
                    )));
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
                                .authenticate(proof.as_bytes(), self.out.control())?;
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
        self.connection.violation(violation, self.out.control());
        if violation.reason == ReasonCode::KeepAliveTimeout {
            return Error::Silent;
        }
        Error::Protocol(*violation)
    }

    /// Ends the connection because of something that this end found.
    fn end_with(&mut self, reason: ReasonCode, error: Error) -> Error {
        let _ = self
            .connection
            .disconnect(&Disconnect::new(reason), self.out.control());
        error
    }

    /// True when there is room for events again.
    fn wait_for_room(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> bool {
        // As long as nothing is read, silence means nothing.
        self.connection.heard(driver.clock.now_ms());
        let room = self.room.get_or_insert_with(|| {
            let events = driver.inlets.events.clone();
            Box::pin(async move { events.reserve_owned().await.map_err(|_| ()) })
        });
        let Poll::Ready(permit) = room.as_mut().poll(cx) else {
            return false;
        };
        self.room = None;
        if let (Ok(permit), Some(event)) = (permit, driver.events.pop_front()) {
            permit.send(event);
        }
        true
    }

    // ---- Time ------------------------------------------------------------------------------

    fn poll_timer(&mut self, driver: &Driver, cx: &mut Context<'_>) -> Result<bool, Error> {
        let due = if self.connection.is_connected() {
            self.connection
                .deadline_ms()
                .map(|at_ms| driver.clock.instant(at_ms))
        } else {
            Some(self.deadline)
        };
        let waits = self.sharing.wait_until_ms;
        let waits = waits.map(|at_ms| driver.clock.instant(at_ms));
        let due = match (due, waits) {
            (Some(due), Some(waits)) => due.min(waits),
            (Some(due), None) => due,
            (None, Some(waits)) => waits,
            (None, None) => return Ok(false),
        };
        if self.timer.deadline().into_std() != due {
            self.timer.as_mut().reset(due.into());
        }
        if self.timer.as_mut().poll(cx).is_pending() {
            return Ok(false);
        }
        if waits.is_some_and(|waits| waits <= Instant::now()) {
            self.sharing.wait_until_ms = None;
            self.sharing.gave_up = true;
            return Ok(true);
        }
        if !self.connection.is_connected() {
            let timeout = driver.options.longest_connect();
            let error = ConnectError::timeout(timeout);
            return Err(error.at(&driver.options.url).into());
        }
        let now_ms = driver.clock.now_ms();
        match self.connection.on_timeout(now_ms, self.out.control()) {
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
                .reauthenticate(first.as_bytes(), self.out.control())?;
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

/// A message came.
fn arrived(driver: &mut Driver, publish: &Publish<'_>) {
    let (qos, payload_bytes) = (publish.qos as u8, publish.payload.len());
    let (topic, id) = (publish.topic, publish.packet_id);
    tracing::debug!(topic, qos, ?id, payload_bytes, "PUBLISH received");
    let message = Message::new(publish, driver.connections);
    driver.events.push_back(Event::Message(message));
}

/// Sends again what an earlier connection left over, as far as the server's Receive Maximum goes.
fn resend(driver: &mut Driver, connection: &mut Connection, out: &mut LaneBuffers) {
    while let Some(outgoing) = connection.next_resend(&mut driver.session, out.control()) {
        let Some(sent) = driver.sent.get_mut(&outgoing.tag) else {
            driver.session.forget_outgoing(outgoing.packet_id);
            continue;
        };
        sent.lane = Lane::CONTROL;
        let publication = super::requests::view(&sent.publication.message);
        let again = connection.resend(&mut driver.session, outgoing, &publication, out.control());
        if let Err(error) = again {
            driver.session.forget_outgoing(outgoing.packet_id);
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
