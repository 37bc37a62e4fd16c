//! Connections (AMQP 1.0, part 2, section 2.4): one state machine for either end.
//!
//! A [`Connection`] takes the units that [`Framer`](crate::Framer)s cut, and keeps the state of the
//! connection, its sessions and links. It answers units that need no decision, and yields
//! [`Event`]s for the others. Commands are methods; they write whole frames into the buffer of a
//! lane.

mod command;
mod event;
mod events;
mod handshake;
mod names;
mod receive;
mod timer;

use bytes::BytesMut;
use rustc_hash::FxHashMap;

pub use event::{Delivery, ErrorBuf, Event, Payload};
pub(crate) use events::{Events, Told};
pub use handshake::{ClientOptions, ServerOptions};
pub(crate) use names::Names;

use crate::frame::{self, TYPE_AMQP};
use crate::performatives::{Close, Error, Open, Performative};
use crate::sasl::Mechanism;
use crate::session::AmqpSession;
use crate::{
    CommandError, DecodeError, Lane, LaneWriter, Limits, MIN_MAX_FRAME_BYTES, Scope, Violation,
};

/// A session of a connection: its channel number in the direction of sending. The number may be
/// used again after [`Event::Ended`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u16);

/// A link of a session: its handle in the direction of sending. The number may be used again after
/// [`Event::Detached`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId {
    /// The session.
    pub session: SessionId,
    /// The handle.
    pub handle: u32,
}

/// An end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The end that opened the transport.
    Client,
    /// The end that accepted it.
    Server,
}

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// A protocol header is awaited.
    Header {
        /// The SASL layer is through.
        authenticated: bool,
    },
    /// Within the SASL layer.
    Sasl(SaslPhase),
    /// The peer's open is awaited.
    Open,
    /// The peer's open has come.
    Opened,
    /// A close was sent: its answer is awaited, other frames are ignored.
    CloseSent,
    /// Over.
    Closed,
}

/// The awaited frame within the SASL layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SaslPhase {
    /// Client: the server's mechanisms.
    Mechanisms,
    /// Server: the client's choice.
    Init,
    /// Server: an answer to a challenge.
    Response,
    /// Client: a challenge or the outcome.
    Outcome,
}

/// A decision that the caller has to make before more input is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decision {
    None,
    Sasl,
    /// The same for a mechanism that was not offered: the client can only be refused.
    Refusal,
    Open,
}

/// The peer's limits.
#[derive(Clone, Copy, Debug)]
struct Peer {
    max_frame_bytes: u32,
    channel_max: u16,
    idle_timeout_ms: u32,
}

/// An error that is on its way to becoming a [`Violation`].
#[derive(Debug)]
pub(crate) enum Fault {
    Connection(DecodeError),
    Session(DecodeError),
    /// The violation of the link with this (own) handle.
    Link(u32, DecodeError),
}

/// The parts of a connection that a session needs.
#[derive(Debug)]
pub(crate) struct Context<'c> {
    pub(crate) limits: &'c Limits,
    /// Largest frame that the peer takes.
    pub(crate) peer_frame_bytes: usize,
    /// Events of the present step.
    pub(crate) events: &'c mut Events,
    pub(crate) names: &'c mut Names,
    /// Set when something is written.
    pub(crate) wrote: &'c mut bool,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    side: Side,
    limits: Limits,
    phase: Phase,
    decision: Decision,
    container_id: Box<str>,
    peer: Peer,
    open_sent: bool,
    /// Server: the offered mechanisms. Empty: no SASL layer.
    mechanisms: Vec<String>,
    require_sasl: bool,
    sasl_rounds: u32,
    /// Client.
    mechanism: Option<Box<dyn Mechanism>>,
    pipelined: bool,
    /// Client: the host that it addresses.
    hostname: Option<Box<str>>,
    /// Client: the open frame until it is sent.
    open_frame: Option<BytesMut>,
    /// Sessions by the channel in the direction of sending.
    sessions: Vec<Option<Box<AmqpSession>>>,
    /// From the peer's channels to own ones.
    channels: FxHashMap<u16, SessionId>,
    names: Names,
    events: Events,
    started_ms: u64,
    /// The latest time that was passed in.
    now_ms: u64,
    last_received_ms: u64,
    /// Whether bytes were written since the last look.
    wrote: bool,
    heartbeat_ms: u64,
    closing_since_ms: u64,
}

impl Connection {
    fn new(side: Side, container_id: &str, limits: &Limits, now_ms: u64) -> Self {
        Self {
            side,
            limits: *limits,
            phase: Phase::Header {
                authenticated: false,
            },
            decision: Decision::None,
            container_id: container_id.into(),
            peer: Peer {
                max_frame_bytes: MIN_MAX_FRAME_BYTES,
                channel_max: 0,
                idle_timeout_ms: 0,
            },
            open_sent: false,
            mechanisms: Vec::new(),
            require_sasl: false,
            sasl_rounds: 0,
            mechanism: None,
            pipelined: false,
            hostname: None,
            open_frame: None,
            sessions: Vec::new(),
            channels: FxHashMap::default(),
            names: Names::default(),
            events: Events::default(),
            started_ms: now_ms,
            now_ms,
            last_received_ms: now_ms,
            wrote: false,
            heartbeat_ms: 0,
            closing_since_ms: 0,
        }
    }

    /// The end that this connection is.
    #[must_use]
    pub const fn side(&self) -> Side {
        self.side
    }

    /// Whether both opens have been exchanged and no close was sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Opened && self.open_sent
    }

    /// Whether the connection is over. It then processes no more input. The transport is to be
    /// closed when the output is sent.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Whether units of this lane may be handed in now. Otherwise keep the bytes (within a limit)
    /// until the caller has decided about earlier ones. Peers may send at once the frames that are
    /// to be processed later (pipelined open, part 2, section 2.4.2).
    #[must_use]
    pub fn accepts_input(&self, lane: Lane) -> bool {
        self.decision == Decision::None
            && (lane.is_control()
                || matches!(self.phase, Phase::Opened | Phase::CloseSent | Phase::Closed))
    }

    /// Largest frame that is accepted now, for [`Framer::next`](crate::Framer::next).
    #[must_use]
    pub fn max_frame_bytes(&self) -> usize {
        match self.phase {
            Phase::Header { .. } | Phase::Sasl(_) => self.limits.max_sasl_frame_bytes as usize,
            _ => self.limits.frame_bytes() as usize,
        }
    }

    /// Largest frame that the peer takes, in bytes.
    #[must_use]
    pub const fn peer_max_frame_bytes(&self) -> u32 {
        self.peer.max_frame_bytes
    }

    /// Further events of the last unit or command. Ask until it is `None`.
    pub fn next_event(&mut self) -> Option<Event<'static>> {
        self.events.pop_front()
    }

    /// The session of an id, and the parts that it needs.
    pub(crate) fn session(
        &mut self,
        id: SessionId,
    ) -> Result<(&mut AmqpSession, Context<'_>), CommandError> {
        if !self.open_sent || matches!(self.phase, Phase::CloseSent | Phase::Closed) {
            return Err(CommandError::NotOpen);
        }
        let context = Context {
            limits: &self.limits,
            peer_frame_bytes: self.peer.max_frame_bytes as usize,
            events: &mut self.events,
            names: &mut self.names,
            wrote: &mut self.wrote,
        };
        match self.sessions.get_mut(usize::from(id.0)) {
            Some(Some(session)) if session.is_live() => Ok((session, context)),
            _ => Err(CommandError::NoSession),
        }
    }

    /// The session on a channel of the peer.
    pub(crate) fn session_of(&self, channel: u16) -> Option<SessionId> {
        self.channels.get(&channel).copied()
    }

    pub(crate) fn sessions_at(&self, id: SessionId) -> Option<&AmqpSession> {
        self.sessions.get(usize::from(id.0))?.as_deref()
    }

    /// The limits that the connection was made with.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The lane of a session, on which its frames are written.
    #[must_use]
    pub fn lane_of(&self, id: SessionId) -> Option<Lane> {
        let session = self.sessions.get(usize::from(id.0))?.as_ref()?;
        Some(session.lane)
    }

    /// Writes the open, with the values of the limits.
    fn write_open(&mut self, open: &Open<'_>, out: &mut BytesMut) {
        frame::encode(out, TYPE_AMQP, 0, |out| {
            Performative::Open(self.with_limits(open)).encode(out);
        });
        self.open_sent = true;
        self.wrote = true;
    }

    fn with_limits<'o>(&self, open: &Open<'o>) -> Open<'o> {
        Open {
            max_frame_size: self.limits.frame_bytes(),
            channel_max: self.limits.channel_max,
            idle_time_out: (self.limits.idle_timeout_ms > 0).then_some(self.limits.idle_timeout_ms),
            ..open.clone()
        }
    }

    /// Writes a close, and an open before it if there was none.
    fn write_close(&mut self, error: Option<Error<'_>>, out: &mut BytesMut) {
        if !self.open_sent {
            let container_id = std::mem::take(&mut self.container_id);
            self.write_open(&Open::new(&container_id), out);
            self.container_id = container_id;
        }
        frame::encode(out, TYPE_AMQP, 0, |out| {
            Performative::Close(Close { error }).encode(out);
        });
        self.wrote = true;
    }

    /// Ends everything that the caller knows of.
    fn drop_sessions(&mut self) {
        let mut sessions = std::mem::take(&mut self.sessions);
        self.channels.clear();
        self.names = Names::default();
        for session in sessions.iter_mut().flatten() {
            session.surface_end(None, &mut self.names, &mut self.events);
        }
    }

    /// The transport is lost. Every remaining link and session ends with its event. So links can be
    /// attached again on another connection with their unsettled deliveries.
    pub fn transport_closed(&mut self) {
        self.drop_sessions();
        self.decision = Decision::None;
        self.phase = Phase::Closed;
    }

    /// Ends the connection because of the peer's error.
    fn fail(&mut self, error: DecodeError, out: &mut impl LaneWriter) -> Violation {
        let violation = Violation {
            scope: Scope::Connection,
            condition: error.condition,
            detail: error.detail,
        };
        self.decision = Decision::None;
        match self.phase {
            Phase::Header { .. } => {
                // Section 2.2: the header that would have been right is the answer.
                self.refuse_header(out.buffer(Lane::CONTROL));
                self.phase = Phase::Closed;
            }
            // The layer has no frame for a fault.
            Phase::Sasl(_) => self.phase = Phase::Closed,
            Phase::Open | Phase::Opened => {
                self.write_close(Some(error.into()), out.buffer(Lane::CONTROL));
                self.closing_since_ms = self.now_ms;
                self.phase = Phase::CloseSent;
            }
            Phase::CloseSent | Phase::Closed => {}
        }
        self.drop_sessions();
        violation
    }

    /// Server: the mechanisms were offered, and the client has chosen none yet.
    #[must_use]
    pub const fn awaits_mechanism(&self) -> bool {
        matches!(self.phase, Phase::Sasl(SaslPhase::Init))
    }

    /// Bytes of a lane could not be cut: the violation that this is.
    pub fn decode_failed(&mut self, error: DecodeError, out: &mut impl LaneWriter) -> Violation {
        self.fail(error, out)
    }

    /// A lane other than control is gone, with no frame to say so: its sessions have ended. Does
    /// nothing for sessions that have ended before.
    pub fn lane_closed(&mut self, lane: Lane) {
        if lane.is_control() {
            return;
        }
        for slot in &mut self.sessions {
            if let Some(session) = slot
                && session.lane == lane
            {
                session.surface_end(None, &mut self.names, &mut self.events);
                if let Some(remote) = session.remote_channel {
                    self.channels.remove(&remote);
                }
                *slot = None;
            }
        }
    }
}
