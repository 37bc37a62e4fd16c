//! One connection: its streams, its engine, and the loop that moves bytes between them.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use sterna_amqp::connection::{ClientOptions, SessionId};
use sterna_amqp::frame::{Frame, TYPE_AMQP, Unit};
use sterna_amqp::performatives::Open;
use sterna_amqp::{Connection, Lane, Scope};
use tokio::io::ReadBuf;
use tokio::sync::futures::OwnedNotified;
use tokio::time::Sleep;

use super::lanes::{LaneIo, Lanes};
use super::{Driver, End};
use crate::amqp::Error;
use crate::amqp::login::Verdict;
use crate::error::ConnectError;
use crate::transport::ending::{self, Patience, Unacknowledged};
use crate::transport::quic::{EarlyData, memory};
use crate::transport::{self, Quic, Transport};

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// With so many bytes waiting to be sent, no more messages are written.
pub(super) const MAX_UNSENT_BYTES: usize = 256 << 10;
/// Rounds before the runtime gets its turn again.
const MAX_ROUNDS: usize = 64;
/// Longest wait for the peer to end its side of the transport, when both have said `close`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a lane that are kept until they can be taken.
const MAX_UNREAD_BYTES: usize = 1 << 20;

/// Where a connection that the application ends stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Closing {
    No,
    /// The sessions are ending.
    Sessions,
    /// The close was written.
    Connection,
}

/// One connection.
pub(super) struct Wire {
    pub(super) engine: Connection,
    pub(super) lanes: Lanes,
    pub(super) quic: Option<Quic>,
    pub(super) peer: std::net::SocketAddr,
    /// The own open has been written, so that sessions can begin.
    pub(super) open_sent: bool,
    /// The peer's open has come.
    pub(super) is_open: bool,
    /// Sessions begun before that, of which there may be one.
    pub(super) begun_early: bool,
    /// Credit that the peer grants to a client with its ticket.
    pub(super) credit: u32,
    /// A stream that was opened for a session that could not begin yet.
    pub(super) spare: Option<Lane>,
    /// Where sessions are, until they have ended.
    pub(super) session_lanes: HashMap<SessionId, Lane>,
    pub(super) closing: Closing,
    /// Events that follow are those of a transport that is gone.
    pub(super) is_lost: bool,
    /// Why the SASL exchange failed.
    verdict: Verdict,
    /// When the transport was there.
    pub(super) started: Instant,
    deadline: Instant,
    patience: Option<Patience>,
    /// What streams carried that ended before everything on them was acknowledged.
    unacknowledged: Unacknowledged,
    timer: Pin<Box<Sleep>>,
    input: Box<[u8]>,
    room: Option<Pin<Box<OwnedNotified>>>,
    heard: bool,
    handshaking: bool,
}

impl Wire {
    /// Writes whatever goes first.
    pub(super) fn open(
        driver: &Driver,
        transport: Transport,
        deadline: Instant,
        credit: u32,
    ) -> Result<Self, Error> {
        let Transport {
            control,
            quic,
            peer,
        } = transport;
        let options = &driver.options;
        let mut lanes = Lanes(vec![LaneIo::new(Lane::CONTROL, control)]);
        let verdict = Verdict::default();
        let mechanism = options.sasl.mechanism(&options.container_id, &verdict)?;
        let pipelined = driver.runs_ahead();
        let open_sent = mechanism
            .as_ref()
            .is_none_or(|one| pipelined && !one.may_be_challenged());
        let name = options.tls.server_name.as_deref();
        let hostname = options.hostname.as_deref().or(name);
        let open = Open {
            hostname: hostname.or_else(|| Some(options.url.host())),
            ..Open::new(&options.container_id)
        };
        let engine = Connection::client(
            ClientOptions {
                open,
                mechanism,
                pipelined,
            },
            &options.limits(),
            driver.clock.now_ms(),
            &mut lanes,
        );
        Ok(Self {
            engine,
            lanes,
            quic,
            peer,
            open_sent,
            is_open: false,
            begun_early: false,
            credit,
            spare: None,
            session_lanes: HashMap::new(),
            closing: Closing::No,
            is_lost: false,
            verdict,
            started: Instant::now(),
            deadline,
            patience: None,
            unacknowledged: Unacknowledged::default(),
            timer: Box::pin(tokio::time::sleep_until(deadline.into())),
            input: vec![0; READ_BYTES].into_boxed_slice(),
            room: None,
            heard: false,
            handshaking: false,
        })
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
        if let End::StartOver(..) = end {
            return self.start_over(driver).await;
        }
        self.remember(driver);
        self.is_lost = true;
        self.engine.transport_closed();
        let _ = self.drain_events(driver);
        if matches!(end, End::Wanted) {
            self.close().await;
        } else if let Some(quic) = self.quic.take() {
            tokio::spawn(quic.close());
        }
        for io in &mut self.lanes.0 {
            io.outlet.lose_written();
        }
        end
    }

    /// Gives everything back that early data carried, and a new control stream for another start.
    async fn start_over(&mut self, driver: &mut Driver) -> End {
        self.is_lost = true;
        self.engine.transport_closed();
        let _ = self.drain_events(driver);
        driver.unsend();
        for io in &mut self.lanes.0 {
            io.outlet.lose_written();
        }
        self.lanes.0.truncate(1);
        let Some(mut quic) = self.quic.take() else {
            return End::Failed(Error::Ended);
        };
        // The streams of before are gone with the early data.
        let opened = poll_fn(|cx| quic.poll_open(transport::quic::CONTROL_PRIORITY, cx));
        match opened.await {
            Ok(stream) => {
                let transport = Transport {
                    control: transport::Channel::Quic(Box::pin(stream)),
                    quic: Some(quic),
                    peer: self.peer,
                };
                End::StartOver(Some(Box::new((transport, self.deadline))))
            }
            Err(error) => End::Failed(error.into()),
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

    /// Whether the server hung up on a pipelined start, without a word.
    pub(super) fn is_unanswered(&self, end: &End) -> bool {
        !self.heard && matches!(end, End::Failed(Error::Lost(_)))
    }

    /// Whether QUIC's handshake is still under way.
    pub(super) fn is_handshaking(&self) -> bool {
        self.handshaking
    }

    /// Keeps for the next connection what this one has learnt.
    pub(super) fn remember(&self, driver: &Driver) {
        if let (true, Some(quic)) = (self.is_open, &self.quic) {
            let url = &driver.options.url;
            memory::remember(url.host(), url.port(), quic.known());
        }
    }

    /// What became of the early data.
    pub(super) fn early_data(&self) -> EarlyData {
        self.quic
            .as_ref()
            .map_or(EarlyData::NotTried, Quic::early_data)
    }

    /// One turn: as much of everything as is possible without waiting.
    fn poll(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..MAX_ROUNDS {
            let mut progress = false;
            match self.poll_handshake(driver, cx) {
                Ok(None) => {}
                Ok(Some(end)) => return Poll::Ready(end),
                Err(error) => return Poll::Ready(End::Failed(error)),
            }
            self.take_commands(driver, cx, &mut progress);
            self.pump(driver, cx);
            match self.write(cx) {
                Ok(wrote) => progress |= wrote,
                Err(error) => {
                    // What the peer said before it hung up explains more.
                    if let Err(said) = self.read(driver, cx) {
                        return Poll::Ready(End::Failed(said));
                    }
                    return Poll::Ready(End::Failed(Error::Lost(Arc::new(error))));
                }
            }
            if self.closing == Closing::Connection
                && self.engine.is_closed()
                && self.lanes.0[0].is_written()
            {
                return Poll::Ready(End::Wanted);
            }
            match self.read(driver, cx) {
                Ok(read) => progress |= read,
                Err(error) => return Poll::Ready(self.give_up(error, cx)),
            }
            match self.poll_timer(driver, cx) {
                Ok(None) => {}
                Ok(Some(end)) => return Poll::Ready(end),
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

    /// Writes what is still to be said to a peer that broke the protocol, as far as it goes without
    /// waiting.
    fn give_up(&mut self, error: Error, cx: &mut Context<'_>) -> End {
        let _ = self.write(cx);
        if self.closing == Closing::No || !matches!(error, Error::Lost(_)) {
            return End::Failed(error);
        }
        // A peer that has read the close may hang up without one of its own.
        let hung_up =
            matches!(&error, Error::Lost(why) if why.kind() == io::ErrorKind::UnexpectedEof);
        let left = self.unacknowledged();
        let is_harmless = hung_up || left == Unacknowledged::default();
        if self.closing == Closing::Connection && is_harmless {
            return End::Wanted;
        }
        End::Failed(Error::Unacknowledged(left))
    }

    /// Learns that QUIC's handshake is complete, where something was sent before.
    fn poll_handshake(
        &mut self,
        driver: &Driver,
        cx: &mut Context<'_>,
    ) -> Result<Option<End>, Error> {
        let Some(quic) = &mut self.quic else {
            return Ok(None);
        };
        self.handshaking = quic.early_data() == EarlyData::Pending;
        match quic.poll_handshake(cx) {
            Poll::Pending => Ok(None),
            Poll::Ready(Ok(verdict)) => {
                self.handshaking = false;
                // The new control stream is opened outside of this turn.
                Ok((verdict == EarlyData::Rejected).then_some(End::StartOver(None)))
            }
            Poll::Ready(Err(error)) => {
                let url = &driver.options.url;
                memory::forget(url.host(), url.port());
                Err(error.at(url).into())
            }
        }
    }

    fn take_commands(&self, driver: &mut Driver, cx: &mut Context<'_>, progress: &mut bool) {
        while self.closing == Closing::No && driver.closing.is_none() {
            let Poll::Ready(command) = driver.outlets.commands.poll_recv(cx) else {
                return;
            };
            driver.take(command);
            *progress = true;
        }
    }

    /// Writes what there is to write. True when something was taken.
    fn write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut wrote = false;
        let mut at = 0;
        while at < self.lanes.0.len() {
            let io = &mut self.lanes.0[at];
            match io.write(cx) {
                Ok(some) => wrote |= some,
                Err(error) if at == 0 => return Err(error),
                // Its reading side tells.
                Err(_) => io.ended = true,
            }
            let is_done = at > 0 && io.ending && (io.ended || io.poll_end(cx).is_ready());
            if is_done {
                io.outlet.lose_written();
                self.unacknowledged += io.outlet.unacknowledged();
                self.lanes.0.remove(at);
                // The close may wait for this.
                wrote = true;
            } else {
                at += 1;
            }
        }
        Ok(wrote)
    }

    // ---- Reading ---------------------------------------------------------------------------

    fn read(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> Result<bool, Error> {
        let mut progress = false;
        let mut at = 0;
        while at < self.lanes.0.len() {
            if self.is_blocked(driver, cx) {
                return Ok(progress);
            }
            let lane = self.lanes.0[at].lane;
            if !self.lanes.0[at].unread.is_empty() && self.engine.accepts_input(lane) {
                let bytes = std::mem::take(&mut self.lanes.0[at].unread);
                self.process(driver, lane, &bytes)?;
                progress = true;
                continue;
            }
            let io = &mut self.lanes.0[at];
            if io.unread.len() >= MAX_UNREAD_BYTES || io.ended {
                if io.ended && !io.ending && at > 0 {
                    self.lane_lost(driver, lane);
                    progress = true;
                }
                at += 1;
                continue;
            }
            let mut buffer = ReadBuf::new(&mut self.input);
            match io.outlet.channel.poll_read(cx, &mut buffer) {
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
                    self.heard = true;
                    let input = std::mem::take(&mut self.input);
                    let result = self.process(driver, lane, &input[..filled]);
                    self.input = input;
                    result?;
                    progress = true;
                    at += 1;
                }
                Poll::Ready(_) => {
                    io.ended = true;
                    progress = true;
                }
            }
        }
        Ok(progress)
    }

    /// Whether so much waits for the application that nothing more is read.
    fn is_blocked(&mut self, driver: &Driver, cx: &mut Context<'_>) -> bool {
        let held = &driver.outlets.held;
        loop {
            if held.bytes() < driver.options.incoming_bytes {
                self.room = None;
                return false;
            }
            // As long as nothing is read, silence means nothing: an empty frame breaks it.
            let alive = Unit::Frame(Frame::new(TYPE_AMQP, 0, &[]));
            if self.is_open {
                let now_ms = driver.clock.now_ms();
                let _ = self
                    .engine
                    .receive(Lane::CONTROL, &alive, now_ms, &mut self.lanes);
            }
            let room = self
                .room
                .get_or_insert_with(|| Box::pin(Arc::clone(&held.taken).notified_owned()));
            if room.as_mut().poll(cx).is_pending() {
                return true;
            }
            self.room = None;
        }
    }

    /// A stream besides the first has ended without the session's end: its links are suspended.
    fn lane_lost(&mut self, driver: &mut Driver, lane: Lane) {
        tracing::debug!(stream = lane.0, "stream lost");
        self.engine.lane_closed(lane);
        let _ = self.drain_events(driver);
        self.lanes.abort(lane);
    }

    /// Handles bytes of one lane; what cannot be taken yet stays in the lane's `unread`.
    fn process(&mut self, driver: &mut Driver, lane: Lane, bytes: &[u8]) -> Result<(), Error> {
        let Some(at) = self.lanes.0.iter().position(|io| io.lane == lane) else {
            return Ok(());
        };
        let mut framer = std::mem::take(&mut self.lanes.0[at].framer);
        let mut input = bytes;
        let result = loop {
            if !self.engine.accepts_input(lane) {
                self.keep(lane, input);
                break Ok(());
            }
            let unit = match framer.next(&mut input, self.engine.max_frame_bytes()) {
                Ok(Some(unit)) => unit,
                Ok(None) => break Ok(()),
                Err(error) => {
                    let violation = self.engine.decode_failed(error, &mut self.lanes);
                    let _ = self.drain_events(driver);
                    break Err(violation.into());
                }
            };
            let now_ms = driver.clock.now_ms();
            match self.engine.receive(lane, &unit, now_ms, &mut self.lanes) {
                Ok(Some(event)) => {
                    if let Err(error) = self.handle(driver, event) {
                        break Err(error);
                    }
                }
                Ok(None) => {}
                Err(violation) if violation.scope == Scope::Connection => {
                    let _ = self.drain_events(driver);
                    break Err(self.refused(violation));
                }
                // The engine has told the peer; the session or link ends with its event.
                Err(violation) => tracing::debug!(%violation, "violation by the peer"),
            }
            if let Err(error) = self.drain_events(driver) {
                break Err(error);
            }
        };
        let at = self.lanes.0.iter().position(|io| io.lane == lane);
        if let Some(at) = at {
            self.lanes.0[at].framer = framer;
        }
        result
    }

    fn keep(&mut self, lane: Lane, input: &[u8]) {
        let at = self.lanes.0.iter().position(|io| io.lane == lane);
        if let Some(at) = at {
            let mut kept = BytesMut::from(input);
            kept.extend_from_slice(&self.lanes.0[at].unread);
            self.lanes.0[at].unread = kept;
        }
    }

    /// Before the open a violation says that the server does not let this client in.
    fn refused(&self, violation: sterna_amqp::Violation) -> Error {
        let reason = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = *reason {
            return Error::Authentication(error);
        }
        if !self.is_open && violation.condition == sterna_amqp::Condition::UNAUTHORIZED_ACCESS {
            return Error::Refused(violation.detail);
        }
        violation.into()
    }

    // ---- Time ------------------------------------------------------------------------------

    fn poll_timer(&mut self, driver: &Driver, cx: &mut Context<'_>) -> Result<Option<End>, Error> {
        if self.closing != Closing::No {
            let sent_bytes = self.lanes.sent_bytes();
            let patience = self.patience.get_or_insert_with(|| {
                let longest = driver.options.close_timeout;
                Patience::new(longest, self.quic.as_ref(), sent_bytes)
            });
            if patience.poll(self.quic.as_ref(), sent_bytes, cx).is_ready() {
                return Err(Error::Unacknowledged(self.unacknowledged()));
            }
        }
        let due = match (self.is_open, self.engine.deadline_ms()) {
            (false, _) => self.deadline,
            (true, Some(at_ms)) => driver.clock.instant(at_ms),
            (true, None) => return Ok(None),
        };
        if self.timer.deadline().into_std() != due {
            self.timer.as_mut().reset(due.into());
        }
        if self.timer.as_mut().poll(cx).is_pending() {
            return Ok(None);
        }
        if !self.is_open {
            let timeout = driver.options.longest_connect();
            let error = ConnectError::timeout(timeout);
            return Err(error.at(&driver.options.url).into());
        }
        let now_ms = driver.clock.now_ms();
        self.engine.on_timeout(now_ms, &mut self.lanes)?;
        // The next time is another one.
        cx.waker().wake_by_ref();
        Ok(None)
    }

    /// What may be lost with the connection.
    fn unacknowledged(&self) -> Unacknowledged {
        let mut left = self.unacknowledged;
        for io in &self.lanes.0 {
            left += io.outlet.unacknowledged();
        }
        left
    }

    /// Ends the transport in order. On QUIC there is nothing more to wait for once both have said
    /// `close`: what either had to say has been read, and the end of the stream would be a round trip.
    async fn close(&mut self) {
        if let Some(quic) = self.quic.take() {
            quic.close().await;
        } else {
            let control = &mut self.lanes.0[0].outlet.channel;
            let _ = ending::finish(control, None, &mut self.input, CLOSE_TIMEOUT, false).await;
        }
    }
}
