//! One connection: its streams, its engine, and the loop that moves bytes between them.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use sterna_amqp::connection::{ClientOptions, SessionId};
use sterna_amqp::frame::{Frame, TYPE_AMQP, Unit};
use sterna_amqp::performatives::Open;
use sterna_amqp::{Condition, Connection, Framer, Lane, Scope};
use tokio::sync::futures::OwnedNotified;

use super::lanes::Carrier;
use super::state::EarlyMessage;
use super::{Driver, End, Sent};
use crate::amqp::Error;
use crate::amqp::login::Verdict;
use crate::link;
use crate::transport::Transport;
use crate::transport::ending::Unacknowledged;
use crate::transport::quic::EarlyData;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes that wait to be sent, above which no more messages are written.
pub(super) const MAX_UNSENT_BYTES: usize = 256 << 10;
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
    pub(super) carrier: Carrier,
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
    /// Settled messages in early data, until the server's verdict.
    pub(super) early: Vec<EarlyMessage>,
    /// Where sessions are, until they have ended.
    pub(super) session_lanes: HashMap<SessionId, Lane>,
    pub(super) closing: Closing,
    /// Events that follow are those of a transport that is gone.
    pub(super) is_lost: bool,
    /// Why the SASL exchange failed.
    verdict: Verdict,
    /// When the transport was there.
    pub(super) started: Instant,
    room: Option<Pin<Box<OwnedNotified>>>,
}

impl Wire {
    /// Writes the start of the protocol.
    pub(super) fn open(
        driver: &Driver,
        transport: Transport,
        deadline: Instant,
        credit: u32,
    ) -> Result<Self, Error> {
        let options = &driver.options;
        let framer = Framer::default();
        let mut carrier = Carrier::new(transport, &options.url, deadline, READ_BYTES, framer);
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
            &mut carrier.lanes,
        );
        Ok(Self {
            engine,
            carrier,
            open_sent,
            is_open: false,
            begun_early: false,
            credit,
            spare: None,
            early: Vec::new(),
            session_lanes: HashMap::new(),
            closing: Closing::No,
            is_lost: false,
            verdict,
            started: Instant::now(),
            room: None,
        })
    }

    /// The transport is gone, or as good as.
    fn lose_engine(&mut self, driver: &mut Driver) {
        self.is_lost = true;
        self.engine.transport_closed();
        let _ = self.drain_events(driver);
    }

    /// Nothing is early any more: messages count as sent when they were handed to the transport.
    fn settle_early(&mut self) {
        for early in std::mem::take(&mut self.early) {
            self.carrier.lanes.wait(early.lane, early.message.sent);
        }
    }

    /// Gives everything back that early data carried, and a new control stream for another start.
    async fn start_over(&mut self, driver: &mut Driver) -> End {
        driver.unsend(std::mem::take(&mut self.early));
        self.carrier.lose_written();
        let Some(quic) = self.carrier.quic.take() else {
            return End::Failed(Error::Ended);
        };
        // The streams of before are gone with the early data.
        match Transport::over(quic).await {
            Ok(transport) => End::StartOver(Some(Box::new((transport, self.carrier.deadline)))),
            Err(error) => End::Failed(error.into()),
        }
    }

    /// Whether the server hung up on a pipelined start, without a word.
    pub(super) fn is_unanswered(&self, end: &End) -> bool {
        self.carrier.received_bytes == 0 && end.may_be_of_haste()
    }

    /// Writes the last frames to a peer that broke the protocol, as far as it goes without waiting.
    fn give_up(&mut self, error: Error, cx: &mut Context<'_>) -> End {
        let _ = self.write(cx);
        if self.closing == Closing::No || !matches!(error, Error::Lost(_)) {
            return End::Failed(error);
        }
        // A peer that has read the close may hang up without one of its own.
        let hung_up =
            matches!(&error, Error::Lost(why) if why.kind() == io::ErrorKind::UnexpectedEof);
        let left = self.carrier.unacknowledged();
        let is_harmless = hung_up || left == Unacknowledged::default();
        if self.closing == Closing::Connection && is_harmless {
            return End::Wanted;
        }
        End::Failed(Error::Unacknowledged(left))
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

    /// Writes what there is to write. True when there was progress.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, Arc<io::Error>> {
        let mut progress = self.carrier.write(cx)?;
        for at in (1..self.carrier.lanes.0.len()).rev() {
            let io = &self.carrier.lanes.0[at];
            if io.outlet.ending && (io.ended || io.outlet.is_finished()) {
                self.carrier.remove(at);
                // The close may wait for this.
                progress = true;
            }
        }
        Ok(progress)
    }

    // ---- Reading ---------------------------------------------------------------------------

    fn read(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> Result<bool, Error> {
        let mut progress = false;
        let mut at = 0;
        while at < self.carrier.lanes.0.len() {
            if self.is_blocked(driver, cx) {
                return Ok(progress);
            }
            let io = &mut self.carrier.lanes.0[at];
            let lane = Lane(io.id);
            if !io.unread.is_empty() && self.engine.accepts_input(lane) {
                let bytes = std::mem::take(&mut io.unread);
                self.process(driver, lane, &bytes)?;
                progress = true;
                continue;
            }
            if io.unread.len() >= MAX_UNREAD_BYTES || io.ended {
                if io.ended && !io.outlet.ending && at > 0 {
                    self.lane_lost(driver, lane);
                    progress = true;
                }
                at += 1;
                continue;
            }
            let Poll::Ready(read) = self.carrier.poll_read(at, cx) else {
                at += 1;
                continue;
            };
            progress = true;
            let bytes = read.map_err(Error::Lost)?;
            if bytes > 0 {
                let input = std::mem::take(&mut self.carrier.input);
                let result = self.process(driver, lane, &input[..bytes]);
                self.carrier.input = input;
                result?;
                at += 1;
            }
        }
        Ok(progress)
    }

    /// Whether too many bytes wait for the application to read more.
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
                    .receive(Lane::CONTROL, &alive, now_ms, &mut self.carrier.lanes);
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
        self.carrier.lanes.abort(lane);
    }

    /// Handles bytes of one lane; what cannot be taken yet stays in the lane's `unread`.
    fn process(&mut self, driver: &mut Driver, lane: Lane, bytes: &[u8]) -> Result<(), Error> {
        let Some(io) = self.carrier.lanes.get(lane.0) else {
            return Ok(());
        };
        let mut framer = std::mem::take(&mut io.state);
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
                    let violation = self.engine.decode_failed(error, &mut self.carrier.lanes);
                    let _ = self.drain_events(driver);
                    break Err(violation.into());
                }
            };
            let now_ms = driver.clock.now_ms();
            match self
                .engine
                .receive(lane, &unit, now_ms, &mut self.carrier.lanes)
            {
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
        if let Some(io) = self.carrier.lanes.get(lane.0) {
            io.state = framer;
        }
        result
    }

    fn keep(&mut self, lane: Lane, input: &[u8]) {
        if let Some(io) = self.carrier.lanes.get(lane.0) {
            let mut kept = BytesMut::from(input);
            kept.extend_from_slice(&io.unread);
            io.unread = kept;
        }
    }

    /// Before the open a violation says that the server does not let this client in.
    fn refused(&self, violation: sterna_amqp::Violation) -> Error {
        let reason = self.verdict.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = *reason {
            return Error::Authentication(error);
        }
        match violation.condition {
            Condition::UNAUTHORIZED_ACCESS if !self.is_open => Error::Refused(violation.detail),
            Condition::INTERNAL_ERROR if !self.is_open => Error::Busy(violation.detail),
            _ => violation.into(),
        }
    }

    // ---- Time ------------------------------------------------------------------------------

    fn poll_timer(&mut self, driver: &Driver, cx: &mut Context<'_>) -> Result<(), Error> {
        if self.closing != Closing::No {
            self.carrier.begin_end(driver.options.close_timeout);
            if self.carrier.poll_patience(cx).is_ready() {
                return Err(Error::Unacknowledged(self.carrier.unacknowledged()));
            }
        }
        let due = match (self.is_open, self.engine.deadline_ms()) {
            (false, _) => self.carrier.deadline,
            (true, Some(at_ms)) => driver.clock.instant(at_ms),
            (true, None) => return Ok(()),
        };
        if !self.carrier.poll_due(due, cx) {
            return Ok(());
        }
        if !self.is_open {
            let timeout = driver.options.longest_connect();
            return Err(self.carrier.timeout(timeout).into());
        }
        let now_ms = driver.clock.now_ms();
        self.engine
            .on_timeout(now_ms, &mut self.carrier.lanes)
            .map_err(|violation| {
                // Silence breaks no rule: mostly the broker or the path to it is gone.
                let text = format!("the broker does not answer any more: {}", violation.detail);
                Error::Lost(Arc::new(io::Error::new(io::ErrorKind::TimedOut, text)))
            })?;
        // The next time is another one.
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Ends the transport in order. On QUIC, both ends have read all data after both closes. The
    /// end of the stream would cost a round trip.
    async fn close(&mut self) {
        if let Some(quic) = self.carrier.quic.take() {
            quic.close().await;
        } else {
            self.carrier.finish(CLOSE_TIMEOUT).await;
        }
    }
}

impl link::Link<Driver> for Wire {
    type State = Framer;
    type Waiter = Sent;

    fn carrier(&mut self) -> &mut Carrier {
        &mut self.carrier
    }

    fn is_accepted(&self) -> bool {
        self.is_open
    }

    fn turn(&mut self, driver: &mut Driver, cx: &mut Context<'_>) -> Result<bool, End> {
        let verdict = self.carrier.poll_handshake(cx).map_err(Error::from)?;
        match verdict {
            // The new control stream is opened outside of this turn.
            Some(EarlyData::Rejected) => return Err(End::StartOver(None)),
            Some(_) => self.settle_early(),
            None => {}
        }
        let mut progress = false;
        self.take_commands(driver, cx, &mut progress);
        self.pump(driver, cx);
        match self.write(cx) {
            Ok(wrote) => progress |= wrote,
            Err(error) => {
                // The peer's last words explain more.
                self.read(driver, cx)?;
                return Err(Error::Lost(error).into());
            }
        }
        if self.closing == Closing::Connection
            && self.engine.is_closed()
            && self.carrier.lanes.0[0].outlet.is_written()
        {
            return Err(End::Wanted);
        }
        let read = self.read(driver, cx);
        let read = read.and_then(|read| self.poll_timer(driver, cx).map(|()| read));
        match read {
            Ok(read) => Ok(progress | read),
            Err(error) => Err(self.give_up(error, cx)),
        }
    }

    async fn finish(&mut self, driver: &mut Driver, end: End) -> End {
        self.lose_engine(driver);
        if matches!(end, End::StartOver(_)) {
            return self.start_over(driver).await;
        }
        self.settle_early();
        if matches!(end, End::Wanted) {
            self.close().await;
        }
        end
    }
}
